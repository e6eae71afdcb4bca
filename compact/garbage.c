// SPDX-License-Identifier: Apache-2.0
#include "compact/garbage.h"

#include <stdlib.h>

#include "compact/cut.h"
#include "compact/plan.h"

// A partition that may be merged for its garbage.
struct candidate {
  struct job *job;
  struct garbage g;  // without the new data
};

// A merge that a step will make: a whole partition, or one slice of its cut.
struct compact_merge {
  uint64_t cost;
  struct cut *cut;  // NULL: the whole partition,
  bool young;       // or its young view, which becomes a run of the older one
  uint32_t slice;
  uint32_t tree, len;
  uint8_t anchor[];
};

// The bytes that a round finds, and those that it will write.
struct outlook {
  struct garbage all;  // live, garbage: with the new data
  uint64_t cost;       // bytes on the disk of the round's new files,
  uint64_t fresh;      // and of the new data alone
};

// A file has other parts beside blocks of data.
static uint64_t on_disk(uint64_t cost) { return cost + cost / 8; }

// The bytes of data for which a file, with a view of so many bytes, takes `most` bytes.
static uint64_t data_within(uint64_t most, uint64_t view) {
  const uint64_t file = most > view ? most - view : 0;
  return file - file / 9;  // on_disk adds as much
}

// The bound, a little less for what estimates err.
static uint64_t bound(const struct garbage *all) { return all->live + all->live * 3 / 5 - all->live / 256; }

uint64_t garbage_most(const struct garbage *all, uint64_t beside) {
  const uint64_t most = bound(all), clean = all->files - all->garbage, least = clean + clean / GARBAGE_FLOOR;
  return most > beside + least ? most - beside : least;
}

static int worst_first(const void *a, const void *b) {
  const struct candidate *const x = a, *const y = b;
  // the share of garbage; cross products in floating point do not overflow
  const double gx = (double)x->g.garbage * (double)(y->g.live + 1), gy = (double)y->g.garbage * (double)(x->g.live + 1);
  return (gx < gy) - (gx > gy);
}

// The new records of a partition hide some of its live ones.
static void add_fresh(struct garbage *g, const struct fresh *f) {
  const uint64_t hidden = f->hides < g->keys ? f->hides : g->keys;
  const uint64_t bytes = g->keys ? (uint64_t)((double)g->live / (double)g->keys * (double)hidden) : 0;
  g->live -= bytes;
  g->garbage += bytes;
}

// Adds the partitions of a tree that takes part, with the new data, to the outlook, and lists those that may be merged:
// a join merges its own. Returns the length of that list.
static uint32_t add_tree(const struct round *r, const struct round_tree *tree, struct candidate *to,
                         struct outlook *o) {
  uint32_t nr = 0;
  for (uint32_t i = tree->first_job; i < tree->end_job; i++) {
    struct job *const j = &r->jobs[i];
    if (writes_tables(j)) o->cost += on_disk(j->cost);
    o->fresh += on_disk(j->bytes);
    o->all.live += j->bytes;
    for (uint32_t k = 0; k < j->nr_parts && !j->append; k++) {
      struct garbage g;
      garbage_of(tree->base->parts[j->part + k], &g);
      if (j->nr_parts == 1 && part_remix(old_part(j)) && !part_is_left(old_part(j), r->now))
        to[nr++] = (struct candidate){j, g};
      add_fresh(&g, &tree->fresh[j->part + k]);
      o->all.files += g.files;
      o->all.live += g.live;
      o->all.garbage += g.garbage;
    }
  }
  return nr;
}

// Makes the list of candidates, the worst first, and the outlook. *out: own memory.
static enum remixdb_status candidates(const struct round *r, const struct version *base, struct candidate **out,
                                      uint32_t *nr_out, struct outlook *o) {
  *o = (struct outlook){0};
  *nr_out = 0;
  *out = mem_array(r->nr_jobs + 1, sizeof(**out), 0);
  if (!*out) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < TREES; i++)
    if (round_has(r, i)) *nr_out += add_tree(r, &r->trees[i], *out + *nr_out, o);
  if (base->spaces && !round_has(r, TREE_SPACES)) {
    struct garbage g;
    garbage_all(base->spaces, &g);
    o->all.files += g.files;
    o->all.live += g.live;
    o->all.garbage += g.garbage;
  }
  qsort(*out, *nr_out, sizeof(**out), worst_first);
  return REMIXDB_OK;
}

static bool enough(const struct compact *c, uint64_t bytes) {
  const uint64_t from = atomic_load_explicit(&c->garbage_from, memory_order_relaxed);
  return from && bytes >= from;
}

// ---- room for a round of a memtable

void compact_room_fini(struct compact_room *room) {
  for (uint32_t i = 0; i < room->nr; i++) mem_free(room->merges[i]);
  for (uint32_t i = 0; i < room->nr_cuts; i++) cut_destroy(room->cuts[i]);
  mem_free(room->merges);
  mem_free(room->cuts);
  *room = (struct compact_room){0};
}

// Adds a merge of a job's partition, without the new data, to the steps. Returns it; NULL: without memory.
static struct compact_merge *add_step(struct compact_room *room, const struct job *j, uint64_t bytes) {
  const struct kref anchor = part_anchor(old_part(j));
  struct compact_merge *const m = mem_alloc(sizeof(*m) + anchor.len);
  if (!m) return NULL;
  *m = (struct compact_merge){.cost = on_disk(bytes), .tree = j->tree, .len = anchor.len};
  if (anchor.len) memcpy(m->anchor, anchor.ptr, anchor.len);
  return room->merges[room->nr++] = m;
}

// Adds the merge of a slice.
static enum remixdb_status add_slice(struct compact_room *room, const struct job *j, struct cut *k, uint32_t slice) {
  struct compact_merge *const m = add_step(room, j, cut_bytes(k, slice));
  if (!m) return REMIXDB_NOMEM;
  m->cut = k;
  m->slice = slice;
  return REMIXDB_OK;
}

// Adds the slices of the partition's cut. The room takes the cut over.
static enum remixdb_status add_cut(struct compact_room *room, const struct candidate *c, struct cut *k) {
  enum remixdb_status s = REMIXDB_OK;
  room->cuts[room->nr_cuts++] = k;
  for (uint32_t i = 0; i < cut_slices(k) && s == REMIXDB_OK; i++) s = add_slice(room, c->job, k, i);
  return s;
}

// The room of so many candidates gets lists of merges, at most `slices` of each, and of cuts.
static enum remixdb_status list_merges(struct compact_room *room, uint32_t nr, uint32_t slices) {
  room->merges = mem_array((size_t)nr * slices + 1, sizeof(*room->merges), 0);
  room->cuts = mem_array((size_t)nr + 1, sizeof(*room->cuts), 0);
  return room->merges && room->cuts ? REMIXDB_OK : REMIXDB_NOMEM;
}

// Bytes that a step writes, about.
static uint64_t step_bytes(const struct compact *c, const struct garbage *all) {
  const uint64_t step = all->live / GARBAGE_STEP;
  return step > c->memtable_size ? step : c->memtable_size;
}

// The merge of a partition gives back so many bytes of its files.
static uint64_t freed(const struct garbage *g) {
  const uint64_t sum = g->live + g->garbage;
  return sum ? (uint64_t)((double)g->files * (double)g->garbage / (double)sum) : 0;
}

static void take_off(uint64_t *from, uint64_t bytes) { *from -= bytes < *from ? bytes : *from; }

// Tells whether the round's files would take the store beyond the bound.
static bool exceeds(const struct outlook *o, const struct compact_room *room) {
  return o->all.files + o->cost + room->beside > bound(&o->all);
}

// Bytes that files may take beside those of the store, within the bound. The step before has freed what it replaced.
static uint64_t room_left(const struct outlook *o, const struct compact_room *room) {
  const uint64_t most = bound(&o->all), now = o->all.files + room->beside;
  return most > now ? most - now : 0;
}

// Tells whether a merge of the partition drops much that a cut does not drop (C3 in compact/cut.h).
static bool drops_more(const struct candidate *c) {
  const struct job *const j = c->job;
  const struct part *const p = old_part(j);
  const uint64_t ms = atomic_load_explicit(&j->c->expired_ms, memory_order_relaxed);
  uint64_t stay = part_hides(p);
  for (uint32_t r = 0; r < part_runs(p); r++) stay += part_run(p, r)->nr_tombs;
  return stay > c->g.keys / GARBAGE_CUT || (j->names && part_dropped(p, j->names) == PART_DUE) ||
         compact_mostly_expired(p, ms, j->now);
}

// Plans the cut of a partition of `from` steps and more, if a merge of it would exceed the bound by itself. j: a job
// that merges all of it. *out NULL: it is not to be cut.
static enum remixdb_status plan_cut(const struct compact_room *room, const struct candidate *c, const struct job *j,
                                    uint64_t from, const struct outlook *o, struct cut **out) {
  const uint64_t left = room_left(o, room), view = part_remix(old_part(j))->file_size;  // each slice writes one
  *out = NULL;
  if (c->g.live < from * room->step || on_disk(c->g.live) <= left || drops_more(c)) return REMIXDB_OK;
  const enum remixdb_status s = cut_plan(j, data_within(left, view), out);
  // a merge that cannot read the view, either, marks the partition
  return s == REMIXDB_NOMEM ? s : REMIXDB_OK;
}

// Adds the merge of a partition: as one step, or as the slices of a cut, which the room takes over.
static enum remixdb_status add_merge(struct compact_room *room, const struct candidate *c, struct cut *k) {
  if (k) return add_cut(room, c, k);
  return add_step(room, c->job, c->g.live) ? REMIXDB_OK : REMIXDB_NOMEM;
}

// The work of a cut beside that of a merge: each slice makes a view of all entries.
static uint64_t cut_work(const struct candidate *c, const struct cut *k) {
  return cut_slices(k) * part_remix(old_part(c->job))->nr_entries;
}

static uint64_t cut_from(const struct compact *c) { return atomic_load_explicit(&c->cut_from, memory_order_relaxed); }

// Plans the partitions that the round would write as a whole: without them it writes little. *work_out: the work that
// cuts add to that of the round, because each slice makes a view of all entries.
static enum remixdb_status plan_due(const struct round *r, struct compact_room *room, const struct candidate *list,
                                    uint32_t nr, struct outlook *o, uint64_t *work_out) {
  uint64_t sum = 0;
  *work_out = 0;
  for (uint32_t i = 0; i < nr; i++) sum += list[i].job->all ? list[i].job->cost : 0;
  if (!enough(r->c, sum)) return REMIXDB_OK;
  for (uint32_t i = 0; i < nr && exceeds(o, room); i++) {
    const struct job *const j = list[i].job;
    if (!j->all) continue;
    struct cut *cut;
    enum remixdb_status s = plan_cut(room, &list[i], j, cut_from(r->c), o, &cut);
    if (s == REMIXDB_OK) s = add_merge(room, &list[i], cut);
    if (s != REMIXDB_OK) return s;
    const uint64_t then = on_disk(j->bytes) + part_remix(old_part(j))->file_size, now = on_disk(j->cost);
    take_off(&o->cost, now > then ? now - then : 0);
    if (cut) *work_out += cut_work(&list[i], cut);
    take_off(&o->all.files, freed(&list[i].g));
    take_off(&o->all.garbage, list[i].g.garbage);
  }
  return REMIXDB_OK;
}

// Bytes that tables and REMIX files may have before the round: the round has room for its files then, and after it the
// first step of the next round.
static uint64_t before_round(const struct outlook *o, const struct compact_room *room) {
  const uint64_t next = o->fresh + room->step;
  return garbage_most(&o->all, room->beside + (o->cost > next ? o->cost : next));
}

// The partitions with the most garbage, until the bound holds. Adds the work of these to *work_out.
static enum remixdb_status plan_worst(const struct round *r, struct compact_room *room, const struct candidate *list,
                                      uint32_t nr, struct outlook *o, uint64_t *work_out) {
  uint64_t left = GARBAGE_ROUND * (uint64_t)r->c->memtable_size, work = 0;
  for (uint32_t i = 0; i < nr && o->all.files > before_round(o, room) && enough(r->c, o->all.garbage); i++) {
    const struct garbage *const g = &list[i].g;
    if (list[i].job->all) continue;
    if (g->garbage < g->live / GARBAGE_LEAST || (g->live > left && work)) break;
    struct job merge = *list[i].job;
    merge.bytes = merge.apart = merge.count = 0;
    plan_all(&merge);
    struct cut *cut = NULL;
    enum remixdb_status s = REMIXDB_OK;
    if (room_left(o, room) >= room->step / 2) s = plan_cut(room, &list[i], &merge, cut_from(r->c) / 4, o, &cut);
    if (s == REMIXDB_OK) s = add_merge(room, &list[i], cut);
    if (s != REMIXDB_OK) return s;
    if (!merge.gone) work += plan_job_work(&merge);
    if (cut) work += cut_work(&list[i], cut);
    take_off(&left, g->live);
    take_off(&o->all.files, freed(g));
    take_off(&o->all.garbage, g->garbage);
  }
  *work_out += work;
  return REMIXDB_OK;
}

enum remixdb_status garbage_plan_room(struct round *r, const struct version *base, struct compact_room *room) {
  struct candidate *list;
  struct outlook o;
  uint32_t nr;
  uint64_t work = 0;
  room->planned = true;
  enum remixdb_status s = candidates(r, base, &list, &nr, &o);
  if (s != REMIXDB_OK) return s;
  room->step = step_bytes(r->c, &o.all);
  s = list_merges(room, nr, CUT_SLICES);
  if (s == REMIXDB_OK) s = plan_due(r, room, list, nr, &o, &work);
  if (s == REMIXDB_OK) s = plan_worst(r, room, list, nr, &o, &work);
  mem_free(list);
  if (s == REMIXDB_OK && room->nr) {
    plan_work(r);
    atomic_fetch_add_explicit(&r->c->work, work, memory_order_relaxed);
  }
  return s;
}

enum remixdb_status garbage_plan_within(struct round *r, const struct version *base, const struct compact_room *room) {
  struct candidate *list;
  struct outlook o;
  uint32_t nr;
  const enum remixdb_status s = candidates(r, base, &list, &nr, &o);
  if (s != REMIXDB_OK) return s;
  const uint64_t most = garbage_most(&o.all, room->beside + o.fresh);
  uint64_t left = GARBAGE_ROUND * (uint64_t)r->c->memtable_size;
  bool any = false;
  for (uint32_t i = 0; i < nr && o.all.files > most && enough(r->c, o.all.garbage); i++) {
    const struct garbage *const g = &list[i].g;
    struct job *const j = list[i].job;
    if (j->all || j->append || j->upto) continue;
    if (j->gone) {
      take_off(&o.all.files, g->files);
      take_off(&o.all.garbage, g->garbage);
      continue;
    }
    if (g->garbage < g->live / GARBAGE_LEAST || (g->live > left && any)) break;
    take_off(&left, g->live);
    take_off(&o.all.files, freed(g));
    take_off(&o.all.garbage, g->garbage);
    j->may_abort = false;
    j->garbage = any = true;
    plan_all(j);
  }
  mem_free(list);
  return s;
}

// Returns the job of the partition, which may have gone meanwhile.
static struct job *job_of(struct round *r, const struct compact_merge *m) {
  if (!round_has(r, m->tree)) return NULL;
  const struct round_tree *const tree = &r->trees[m->tree];
  const struct kref anchor = kref(m->anchor, m->len);
  const uint32_t part = version_find(tree->base, anchor);
  struct job *const j = &r->jobs[tree->first_job + part];
  return kv_eq(part_anchor(old_part(j)), anchor) && part_remix(old_part(j)) ? j : NULL;
}

// Decides a step's merge. Returns false if it makes none: the partition leaves with the step's version, cannot be read,
// or is not as it was.
static bool decide_step(struct round *r, const struct compact_merge *m) {
  struct job *const j = job_of(r, m);
  if (!j || j->gone || part_is_left(old_part(j), r->now)) return false;
  if (m->cut) return cut_decide(j, m->cut, m->slice);
  j->garbage = true;
  if (m->young) return plan_young_merge(j);
  plan_all(j);
  return true;
}

void garbage_plan_step(struct round *r, struct compact_room *room) {
  uint64_t bytes = 0;
  if (room->at == room->nr) return;
  const struct compact_merge *next = room->merges[room->at];
  do {
    if (decide_step(r, next)) bytes += next->cost;
    next = ++room->at < room->nr ? room->merges[room->at] : NULL;
  } while (next && !next->cut && bytes + next->cost <= room->step);
}

// ---- a full disk

// Plans the end of the partition's young view, if that hides much: slices do not know what it hides (C3). A later plan
// finds it then.
static enum remixdb_status plan_young_end(struct compact_room *room, const struct candidate *c, uint64_t view) {
  const struct part *const p = old_part(c->job);
  const uint64_t bytes = plan_young_bytes(p);
  if (part_hides(p) <= c->g.keys / GARBAGE_LEAST_FULL || bytes > data_within(room->most, view)) return REMIXDB_OK;
  struct compact_merge *const m = add_step(room, c->job, bytes + view);
  if (m) m->young = true;
  return m ? REMIXDB_OK : REMIXDB_NOMEM;
}

// Plans the partition's slices that free something and are small enough. view: bytes of the view that each writes, too.
static enum remixdb_status plan_slices(struct compact_room *room, const struct candidate *c, uint64_t view) {
  struct job merge = *c->job;
  struct cut *k;
  const uint64_t most = data_within(room->most, view);
  plan_all(&merge);
  // a view that cannot be read is left to a merge that marks the partition
  if (cut_plan_full(&merge, most, &k) == REMIXDB_NOMEM) return REMIXDB_NOMEM;
  if (!k) return REMIXDB_OK;
  enum remixdb_status s = REMIXDB_OK;
  room->cuts[room->nr_cuts++] = k;
  for (uint32_t i = 0; i < cut_slices(k) && s == REMIXDB_OK; i++)
    if (cut_frees(k, i) > cut_bytes(k, i) / GARBAGE_LEAST_FULL && cut_bytes(k, i) <= most)
      s = add_slice(room, &merge, k, i);
  return s;
}

static enum remixdb_status plan_small(struct compact_room *room, const struct candidate *c) {
  const uint64_t view = part_remix(old_part(c->job))->file_size;
  if (c->g.garbage <= c->g.live / GARBAGE_LEAST_FULL) return REMIXDB_OK;
  if (c->g.live <= data_within(room->most, view))
    return add_step(room, c->job, c->g.live + view) ? REMIXDB_OK : REMIXDB_NOMEM;
  const enum remixdb_status s = plan_young_end(room, c, view);
  return s == REMIXDB_OK ? plan_slices(room, c, view) : s;
}

enum remixdb_status garbage_plan_full(struct round *r, const struct version *base, struct compact_room *room) {
  struct candidate *list;
  struct outlook o;
  uint32_t nr;
  room->planned = true;
  enum remixdb_status s = candidates(r, base, &list, &nr, &o);
  if (s != REMIXDB_OK) return s;
  const uint64_t step = step_bytes(r->c, &o.all);
  if (room->most > step) room->most = step;
  room->step = room->most;
  if (nr > GARBAGE_FULL) nr = GARBAGE_FULL;
  if (!enough(r->c, o.all.garbage)) nr = 0;
  s = list_merges(room, nr, REMIX_RUNS_MAX + 1);
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) s = plan_small(room, &list[i]);
  mem_free(list);
  return s;
}

// ---- a store at rest

bool garbage_due(const struct compact *c, const struct garbage *all) {
  const uint64_t beside = atomic_load_explicit(&c->beside, memory_order_relaxed);
  return all->files + beside > all->live + all->live / 25 * 7 && all->garbage > all->live / GARBAGE_REST &&
         all->garbage > c->memtable_size / GARBAGE_REST && enough(c, all->garbage);
}

enum remixdb_status garbage_plan_rest(struct round *r, const struct version *base) {
  struct candidate *list;
  struct outlook o;
  uint32_t nr;
  const enum remixdb_status s = candidates(r, base, &list, &nr, &o);
  if (s != REMIXDB_OK) return s;
  const uint32_t most = atomic_load_explicit(&r->c->scan_merge_parts, memory_order_relaxed);
  for (uint32_t i = 0; i < nr && i < most && garbage_due(r->c, &o.all); i++) {
    const struct garbage *const g = &list[i].g;
    if (g->garbage <= g->live / GARBAGE_REST) break;
    take_off(&o.all.files, g->garbage);
    o.all.garbage -= g->garbage;
    list[i].job->scan_merge = list[i].job->garbage = true;
    plan_all(list[i].job);
  }
  mem_free(list);
  return REMIXDB_OK;
}
