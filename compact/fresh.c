// SPDX-License-Identifier: Apache-2.0
#include "compact/fresh.h"

#include <assert.h>

#include "compact/apart.h"
#include "remix/paged.h"

#define SAMPLE_STEP 32u  // one of so many new records is looked up in the older view

// Returns the bytes that the record takes in a table. Adds those that go apart to *apart.
static uint64_t cursor_bytes(const struct wh_cursor *c, uint32_t from, uint64_t *apart) {
  struct kv_rec rec;
  wh_record(c, &rec);
  const uint64_t off = apart_bytes(&rec, from);
  *apart += off;
  return record_bytes(&rec) - off;
}

// No new writer enters a frozen memtable. So each of its records is committed, or will never be. A cursor therefore
// sees the same records at any moment. The cursor also needs no stay in the cursors' domain (wh_recycle), because only
// writers reuse the memory of leaves.
static void cursor_begin(struct wh_cursor *c, const struct compact *compact, const struct wh *frozen, struct kref key,
                         struct worker *w) {
  wh_cursor_init(c, frozen, WH_PENDING - 1);
  epoch_enter(compact->epoch, &w->slot);
  wh_seek(c, key);
  epoch_exit(&w->slot);
}

// Partitions [from, to) to measure.
struct slice {
  struct task task;
  struct round *r;
  const struct round_tree *tree;
  uint32_t from, to;
  enum remixdb_status status;
};

// Tells whether the older view has the key, as far as memory tells. Where it does not tell, half of the keys count.
static bool hides_old(const struct remix *x, struct kref key) {
  if (!x) return false;
  const uint64_t hash = hash64(key.ptr, key.len);
  const enum remix_guess guess = remix_is_paged(x) ? REMIX_UNKNOWN : remix_guess(x, key, hash);
  return guess == REMIX_THERE || (guess == REMIX_UNKNOWN && (hash & 1));
}

// Measures partition i. c stands at the partition's first new record. The call moves c to the first record after the
// partition. from: as in compact/apart.h. *to_sample: new records until one is looked up, at least 1.
static void measure_part(const struct version *v, uint32_t i, struct wh_cursor *c, uint32_t from, uint32_t *to_sample,
                         struct fresh *f) {
  const struct part *const p = v->parts[i];
  const bool bounded = i + 1 < v->nr_parts;
  const struct kref end = bounded ? part_anchor(v->parts[i + 1]) : kref(NULL, 0),
                    max = part_remix(p) ? last_table(p)->max : kref(NULL, 0);
  bool behind = false;
  for (; wh_valid(c); wh_next(c)) {
    if (bounded && kv_cmp(wh_key(c), end) >= 0) break;
    assert(kv_cmp(wh_key(c), part_anchor(p)) >= 0);
    behind = behind || (part_remix(p) && kv_cmp(wh_key(c), max) > 0);
    *(behind ? &f->behind_bytes : &f->bytes) += cursor_bytes(c, from, behind ? &f->behind_apart : &f->apart);
    *(behind ? &f->behind_count : &f->count) += 1;
    const uint64_t seq = wh_ver_seq(c->ver);
    seqs_add(&f->seqs, seq, seq);
    if (--*to_sample) continue;
    *to_sample = SAMPLE_STEP;
    if (!behind && hides_old(part_remix(p), wh_key(c))) f->hides += SAMPLE_STEP;
  }
}

static void measure(struct task *t, struct worker *w) {
  struct slice *const slice = (struct slice *)t;
  const struct version *const v = slice->tree->base;
  struct wh_cursor *c = mem_alloc(sizeof(*c));
  if (!c) {
    slice->status = REMIXDB_NOMEM;
    return;
  }
  cursor_begin(c, slice->r->c, slice->tree->frozen, part_anchor(v->parts[slice->from]), w);
  const uint32_t from = apart_from(slice->r->c);
  uint32_t to_sample = SAMPLE_STEP / 2;
  for (uint32_t i = slice->from; i < slice->to && wh_valid(c); i++)
    measure_part(v, i, c, from, &to_sample, &slice->tree->fresh[i]);
  mem_free(c);
}

// There are a few slices for each worker, because slices differ in their amount of new data.
enum remixdb_status fresh_measure(struct round *r, const struct round_tree *tree) {
  assert(tree->frozen && tree->base->nr_parts > 0);
  const uint32_t nr_parts = tree->base->nr_parts, most = 4 * (workers_count(r->c->workers) + 1),
                 nr = nr_parts < most ? nr_parts : most;
  struct slice *slices = mem_calloc(nr, sizeof(*slices));
  if (!slices) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < nr; i++) {
    slices[i] = (struct slice){.task = {.run = measure, .size = 1},
                               .r = r,
                               .tree = tree,
                               .from = (uint32_t)((uint64_t)nr_parts * i / nr),
                               .to = (uint32_t)((uint64_t)nr_parts * (i + 1) / nr)};
    r->tasks[i] = &slices[i].task;
  }
  workers_run(r->c->workers, r->self, r->tasks, nr);
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < nr; i++)
    if (slices[i].status != REMIXDB_OK) s = slices[i].status;
  mem_free(slices);
  return s == REMIXDB_OK ? s : err_set(s, "no memory to measure what is to be compacted");
}

bool range_valid(const struct range *r) {
  if (r->empty || !wh_valid(&r->cursor)) return false;
  const int order = r->end.ptr ? kv_cmp(wh_key(&r->cursor), r->end) : -1;
  return order < 0 || (order == 0 && r->with_end);
}

void range_begin(struct range *r, const struct job *j, struct worker *w) {
  const struct version *v = j->base;
  const uint32_t next = j->part + j->nr_parts;
  assert(j->nr_parts > 0 && next <= v->nr_parts && !(j->upto && j->append));
  r->empty = !j->frozen;
  if (r->empty) return;
  r->end = next < v->nr_parts ? part_anchor(v->parts[next]) : kref(NULL, 0);
  r->with_end = j->upto;
  if (j->upto) r->end = last_table(old_part(j))->max;
  const struct kref from = j->append ? last_table(old_part(j))->max : part_anchor(v->parts[j->part]);
  cursor_begin(&r->cursor, j->c, j->frozen, from, w);
  if (j->append && wh_valid(&r->cursor) && kv_eq(wh_key(&r->cursor), from)) wh_next(&r->cursor);
}

void range_record(const struct range *r, struct kv_rec *rec) {
  assert(range_valid(r));
  wh_record(&r->cursor, rec);
  rec->seq = wh_ver_seq(r->cursor.ver);
}
