// SPDX-License-Identifier: Apache-2.0
#include "compact/next.h"

#include <assert.h>

#include "compact/tables.h"

// A merge takes the order of records from the old files. The builder of each table has checked the order within the
// table. This function checks the order between a job's tables, and at the ends of the job's range. A version with a
// table outside of its partition could not be opened again.
static enum remixdb_status check_range(const struct job *j) {
  const struct version *v = j->base;
  const uint32_t next = j->part + j->nr_parts;
  const struct kref low = part_anchor(old_part(j)),
                    end = next < v->nr_parts ? part_anchor(v->parts[next]) : kref(NULL, 0);
  const struct sst *before = j->append ? last_table(old_part(j)) : NULL;
  for (uint32_t i = 0; i < j->nr_tables; before = j->tables[i++]) {
    const struct sst *const t = j->tables[i];
    bool in = kv_cmp(t->min, low) >= 0 && (!before || kv_cmp(before->max, t->min) < 0) &&
              (!end.ptr || kv_cmp(t->max, end) < 0);
    if (j->upto) in = in && kv_cmp(t->max, last_table(old_part(j))->max) <= 0;
    if (!in) return err_corrupt(t->path, 0, "what it was merged from is not in order, or not of its partition");
  }
  return REMIXDB_OK;
}

// Adds the partitions that a job leaves as they are, or empty, to parts. An empty partition is dropped, and the
// partition before it takes over the range, unless that is away (P8 in view/part.h). Partition 0 stays, because its
// anchor is empty.
static enum remixdb_status add_old_parts(const struct job *j, struct part **parts, uint32_t *nr) {
  struct part *const old = j->base->parts[j->part];
  const bool leaves = part_takes_over(*nr ? parts[*nr - 1] : NULL);
  enum remixdb_status s = REMIXDB_OK;
  if (!writes_tables(j) && !j->gone) {
    if (part_is_empty(old) && leaves) return s;
    if (unlikely(part_opens(old))) {
      if (part_young(old)) remix_ref(part_young(old));
      s = part_above(old, part_young(old), &parts[*nr]);
    } else {
      part_ref(parts[*nr] = old);
    }
    *nr += s == REMIXDB_OK;
  } else if (j->nr_outputs == 0 && !leaves && !j->append) {
    s = part_create(part_anchor(old), NULL, NULL, &parts[*nr]);
    *nr += s == REMIXDB_OK;
  }
  return s;
}

// How many keys of the older view a new young view hides: those that the young view before it hid, and more.
static uint64_t hides_now(const struct job *j, const struct part *old, const struct remix *young) {
  const uint64_t sum = part_hides(old) + j->hides, most = remix_live(young);
  return sum < most ? sum : most;
}

// Adds the partition of an output. before: the job's table before this partition's tables, if there is one.
static enum remixdb_status add_output(const struct output *o, const struct sst *before, struct part **parts,
                                      uint32_t *nr) {
  const struct job *const j = o->job;
  struct part *const old = j->base->parts[j->part];
  const struct kref anchor = o->anchor.ptr ? o->anchor
                             : before      ? tables_separator(before, o->fresh[0])
                                           : part_anchor(old);
  struct remix *const remix = j->young ? part_remix(old) : o->remix, *const young = j->young ? o->remix
                                                                                    : j->cut == CUT_SLICE
                                                                                        ? part_young(old)
                                                                                        : NULL;
  if (remix) remix_ref(remix);
  if (young) remix_ref(young);
  const enum remixdb_status s = j->young && part_is_away(old) ? part_above(old, young, &parts[*nr])
                                                              : part_create(anchor, remix, young, &parts[*nr]);
  if (s != REMIXDB_OK) return s;
  const bool opened = part_is_away(old) && !part_is_away(parts[*nr]);  // its files are whole again
  if ((j->young || o->keep) && !opened) part_inherit(parts[*nr], old);
  if (j->cut == CUT_LAST) parts[*nr]->more_runs = o->more_runs;
  else if (j->young || o->keep) parts[*nr]->more_runs = old->more_runs;
  if (j->young) parts[*nr]->hides = hides_now(j, old, o->remix);
  else if (young) parts[*nr]->hides = old->hides;
  ++*nr;
  return s;
}

// Makes the next version of a tree.
static enum remixdb_status next_tree(const struct round *r, const struct round_tree *tree, struct version **out) {
  uint32_t nr = tree->end_job - tree->first_job;
  for (uint32_t i = tree->first_job; i < tree->end_job; i++) nr += r->jobs[i].nr_outputs;
  struct part **parts = mem_calloc(nr, sizeof(*parts));
  if (!parts) return REMIXDB_NOMEM;
  nr = 0;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = tree->first_job; i < tree->end_job && s == REMIXDB_OK; i++) {
    const struct job *j = &r->jobs[i];
    assert(i == tree->first_job || j->part == r->jobs[i - 1].part + (j->append ? 0 : r->jobs[i - 1].nr_parts));
    if ((s = check_range(j)) == REMIXDB_OK) s = add_old_parts(j, parts, &nr);
    const struct sst *before = j->append ? last_table(old_part(j)) : NULL;
    for (uint32_t at = 0; at < j->nr_outputs && s == REMIXDB_OK; at++) {
      const struct output *o = &j->outputs[at];
      s = add_output(o, before, parts, &nr);
      if (o->nr_fresh) before = o->fresh[o->nr_fresh - 1];
    }
  }
  if (s == REMIXDB_OK) s = version_create(parts, nr, out);
  else
    for (uint32_t i = 0; i < nr; i++) part_unref(parts[i]);
  if (s == REMIXDB_OK) (*out)->erased = tree->base->erased;
  mem_free(parts);
  return s;
}

enum remixdb_status next_version(struct round *r, struct version *base, struct version **out) {
  struct version *v, *spaces = base->spaces;
  enum remixdb_status s = next_tree(r, &r->trees[TREE_UNNAMED], &v);
  if (s != REMIXDB_OK) return s;
  if (round_has(r, TREE_SPACES)) s = next_tree(r, &r->trees[TREE_SPACES], &spaces);
  else if (spaces) version_ref(spaces);
  if (s != REMIXDB_OK) {
    version_unref(v);
    return s;
  }
  v->spaces = spaces;
  *out = v;
  return s;
}
