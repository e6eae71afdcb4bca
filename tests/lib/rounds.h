// SPDX-License-Identifier: Apache-2.0
//
// Rounds of compaction with small tables, against a model: a version, the memtable that is to come into it, and what
// both hold. A round is made, looked at from all sides, and installed. For the tests of compact/.
#ifndef TESTS_ROUNDS_H
#define TESTS_ROUNDS_H

#include "tests/lib/check.h"
#include "compact/compact.h"

#include "view/merge.h"
#include "tests/lib/place.h"

#define TABLE 16u  // pages of a table
#define VALUE 50u  // bytes of a value, about, and no large ones; a few more, and there are

// Fate of a partition's young view in a round that wrote into the partition.
enum went {
  BEGUN,      // there was none
  WENT_ON,    // its runs are as they were, and there are more
  MERGED,     // it is still there, but some of its runs are not
  JOINED,     // its runs and the new data became the newest of the other view, which kept all of its own
  DEEPER,     // which lost some of its own to the same merge
  ALL_TAKEN,  // nothing stayed as it was
  WENT_KINDS
};

struct world {
  struct place p;
  struct keyset k;
  struct compact c;
  struct version *base;
  struct wh *frozen;
  uint64_t seq;
  uint32_t value;
  // the model, per key
  uint32_t *disk, *fresh;  // what base and frozen have
  uint8_t *back;           // handed back in the last round: how often
  uint32_t nr_back, next_what;
  uint64_t back_bytes;
  bool back_wrong;
  enum remixdb_status back_status;  // what hand_back returns
  // the round's way to the workers and back
  bool allow_abort;
  struct compact_whole *whole;  // NULL, or for the next round
  bool scan_merges;             // rounds are of what scans have paid for
  uint64_t went[WENT_KINDS];    // in all rounds that were installed
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool done;
  struct version *next;
  enum remixdb_status status;
  struct err_saved error;
};

// In a worker's thread: nothing is asserted here.
static inline enum remixdb_status hand_back(void *arg, struct worker *wk, const struct kv_rec *rec) {
  struct world *w = arg;
  epoch_enter(&w->p.epoch, &wk->slot);  // is outside, as somebody who writes has to be
  epoch_exit(&wk->slot);
  const struct kref key = kref(rec->key, rec->klen);
  const uint32_t at = keyset_rank(&w->k, key);
  if (at == w->k.nr || !kv_eq(w->k.keys[at], key) || w->fresh[at] == NONE ||
      !value_is(rec, key, w->fresh[at], w->value))
    w->back_wrong = true;
  else w->back[at]++;
  w->nr_back++;
  w->back_bytes += rec->klen + rec->vlen;
  return w->back_status == REMIXDB_OK ? REMIXDB_OK : err_set(w->back_status, "hand_back was told to fail");
}

static inline void round_fn(void *arg, struct worker *wk) {
  struct world *w = arg;
  struct version *next = NULL;
  const enum remixdb_status s = w->scan_merges
                                    ? compact_scan_round(&w->c, wk, w->base, &next)
                                    : compact_round(&w->c, wk, w->base, w->frozen, w->allow_abort, w->whole, &next);
  pthread_mutex_lock(&w->lock);
  w->status = s;
  err_save(&w->error, s);
  w->next = next;
  w->done = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

static inline void world_init(struct world *w, uint32_t keys, uint32_t threads, uint64_t seed) {
  uint64_t rng = seed;
  memset(w, 0, sizeof(*w));
  place_init(&w->p, 256 << 10);
  keyset_make(&w->k, keys, &rng);
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->changed, NULL);
  w->c.ctx = &w->p.ctx;
  w->c.epoch = &w->p.epoch;
  w->c.build = (struct sst_build_opts){.ckeys = true, .max_pages = TABLE};
  w->c.tags = true;
  w->c.memtable_size = 1 << 20;
  w->c.scan_merge_parts = threads ? threads : 1;
  w->c.hand_back = hand_back;
  w->c.arg = w;
  atomic_store(&w->c.next_file, 1);
  OK(workers_create(threads, NULL, 0, &w->p.io, &w->p.epoch, round_fn, w, &w->c.workers));
  struct part *only;
  OK(part_create(kref("", 0), NULL, NULL, &only));
  OK(version_create(&only, 1, &w->base));
  w->disk = calloc(w->k.nr, sizeof(*w->disk));
  w->fresh = calloc(w->k.nr, sizeof(*w->fresh));
  w->back = calloc(w->k.nr, 1);
  w->next_what = 2;
  w->value = VALUE;
  OK(wh_create(&w->p.epoch, 64 << 10, NULL, &w->frozen));
}

static inline void world_fini(struct world *w) {
  workers_destroy(w->c.workers);
  version_unref(w->base);
  wh_destroy(w->frozen);
  free(w->disk);
  free(w->fresh);
  free(w->back);
  keyset_free(&w->k);
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  place_fini(&w->p);
}

static inline void put(struct world *w, uint32_t at, bool tomb) {
  w->fresh[at] = tomb ? TOMB : w->next_what++;
  mem_put(&w->p, w->frozen, w->k.keys[at], w->fresh[at], w->value, ++w->seq);
}

static inline void put_range(struct world *w, uint32_t from, uint32_t to, uint32_t every, bool tomb) {
  for (uint32_t a = from; a < to; a += every) put(w, a, tomb);
}

static inline void thaw(struct world *w) {  // forgets the frozen memtable
  wh_destroy(w->frozen);
  OK(wh_create(&w->p.epoch, 64 << 10, NULL, &w->frozen));
  memset(w->fresh, 0, w->k.nr * sizeof(*w->fresh));
}

// ---- looking at what a round made

// A version read from end to end says what the model does, and each partition holds its own keys only.
static inline void expect_contents(struct world *w, struct version *v, const uint32_t *what) {
  struct merge m;
  struct wh *empty;
  OK(wh_create(&w->p.epoch, 64 << 10, NULL, &empty));
  merge_init(&m, NULL);
  merge_set(&m, empty, NULL, v, 0);
  uint32_t at = 0;
  enter(&w->p);
  for (OK(merge_seek(&m, kref(NULL, 0)));; OK(merge_next(&m)), at++) {
    while (at < w->k.nr && what[at] <= TOMB) at++;
    if (!merge_valid(&m)) break;
    struct kv_rec r;
    OK(merge_record(&m, &r));
    if (at == w->k.nr) fail_msg("a key too many, number %u", keyset_rank(&w->k, kref(r.key, r.klen)));
    if (!kv_eq(kref(r.key, r.klen), w->k.keys[at]))
      fail_msg("key %u where %u should be", keyset_rank(&w->k, kref(r.key, r.klen)), at);
    if (!value_is(&r, w->k.keys[at], what[at], w->value)) fail_msg("value of key %u", at);
  }
  assert_int_equal(at, w->k.nr);
  leave(&w->p);
  merge_park(&m);
  merge_fini(&m);
  wh_destroy(empty);

  assert_int_equal(v->parts[0]->alen, 0);
  uint32_t young = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    if (i) assert_true(kv_cmp(part_anchor(v->parts[i - 1]), part_anchor(v->parts[i])) < 0);
    const struct part *const p = v->parts[i];
    for (uint32_t r = 0; r < part_runs(p); r++) {
      const struct sst *const t = part_run(p, r);
      assert_true(kv_cmp(part_anchor(p), t->min) <= 0);
      if (i + 1 < v->nr_parts) assert_true(kv_cmp(t->max, part_anchor(v->parts[i + 1])) < 0);
      assert_true(t->nr_pages < w->c.build.max_pages + BLOCK_PAGES_MAX);
      if (r) assert_true(part_run(p, r - 1)->number < t->number);  // oldest first, through both views
    }
    assert_true(part_runs(p) <= 2 * COMPACT_RUNS);
    if (p->remix) assert_false(remix_is_young(p->remix));
    if (!p->young) continue;
    assert_non_null(p->remix);
    assert_true(remix_is_young(p->young) && p->young->nr_runs > 0);
    assert_true(p->young->nr_entries * COMPACT_YOUNG_SHARE <= p->remix->nr_entries);
    young++;
  }
  assert_int_equal(v->nr_young, young);
}

static inline char *files_of(const struct version *v) {
  char *names[512];
  uint32_t nr = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct part *const p = v->parts[i];
    const struct remix *const views[] = {p->remix, p->young};
    for (uint32_t k = 0; k < 2; k++) {
      if (!views[k]) continue;
      names[nr] = malloc(32);
      remix_name(names[nr++], views[k]->number);
    }
    for (uint32_t r = 0; r < part_runs(p); r++) {
      names[nr] = malloc(32);
      sst_name(names[nr++], part_run(p, r)->number);
    }
    assert_true(nr < 400);
  }
  qsort(names, nr, sizeof(names[0]), place_name_cmp);
  char *all = calloc(nr + 1, 64);
  for (uint32_t i = 0; i < nr; i++) {
    strcat(strcat(all, names[i]), "\n");
    free(names[i]);
  }
  return all;
}

static inline void expect_files(struct world *w, const struct version *v) {
  char *there = place_files(&w->p), *named = files_of(v);
  assert_string_equal(there, named);
  free(there);
  free(named);
}

static inline void kinds_get(struct world *w, uint64_t *kinds) {
  for (uint32_t i = 0; i < COMPACT_KINDS; i++) kinds[i] = atomic_load(&w->c.stats.kinds[i]);
}

// Starts a round and does not wait.
static inline void round_begin(struct world *w) {
  memset(w->back, 0, w->k.nr);
  w->nr_back = 0;
  w->back_bytes = 0;
  w->back_wrong = false;
  w->done = false;
  w->next = NULL;
  workers_kick(w->c.workers);
}

static inline enum remixdb_status round_end(struct world *w) {
  pthread_mutex_lock(&w->lock);
  while (!w->done) pthread_cond_wait(&w->changed, &w->lock);
  pthread_mutex_unlock(&w->lock);
  return w->status;
}

static inline enum remixdb_status round_try(struct world *w) {
  round_begin(w);
  return round_end(w);
}

// Checks the records handed back: all new keys of some partitions and none of the others, once each, and as many
// partitions as the stats say.
static inline void expect_back(struct world *w, uint64_t aborted) {
  assert_false(w->back_wrong);
  uint64_t parts = 0;
  uint32_t nr = 0;
  for (uint32_t i = 0; i < w->base->nr_parts; i++) {
    uint32_t all = 0, back = 0;
    for (uint32_t a = 0; a < w->k.nr; a++) {
      if (w->fresh[a] == NONE || version_find(w->base, w->k.keys[a]) != i) continue;
      if (w->back[a]) assert_int_equal(back, all);  // but for what was put behind the partition
      all++;
      back += w->back[a];
      assert_true(w->back[a] <= 1);
    }
    parts += back != 0;
    nr += back;
  }
  assert_int_equal(nr, w->nr_back);
  assert_int_equal(parts, aborted);
  assert_true(w->back_bytes <= w->c.memtable_size / COMPACT_ABORT_SHARE);
}

static inline void round_install(struct world *w);

// A round that succeeds, looked at from all sides and installed. kinds_out: what was done in it; may be NULL.
static inline void round_ok(struct world *w, uint64_t *kinds_out) {
  uint64_t before[COMPACT_KINDS], after[COMPACT_KINDS];
  const uint64_t rounds = atomic_load(&w->c.stats.rounds);
  kinds_get(w, before);
  const enum remixdb_status s = round_try(w);
  if (s != REMIXDB_OK) fail_msg("status %d: %s", s, w->error.msg);
  kinds_get(w, after);
  uint64_t all = 0;
  for (uint32_t i = 0; i < COMPACT_KINDS; i++) all += after[i] -= before[i];
  // each partition once, twice when new data was put behind it and in it, or not at all when it became one with others
  assert_true((w->whole || all >= w->base->nr_parts) && all <= 2 * (uint64_t)w->base->nr_parts);
  assert_int_equal(atomic_load(&w->c.stats.rounds), rounds + 1);
  expect_back(w, after[COMPACT_ABORT]);
  if (kinds_out) memcpy(kinds_out, after, sizeof(after));
  round_install(w);
}

// The first so many runs of the partition are still in the view.
static inline uint32_t runs_kept(const struct part *was, const struct remix *x) {
  uint32_t nr = 0;
  while (nr < part_runs(was) && nr < x->nr_runs && part_run(was, nr) == x->runs[nr]) nr++;
  return nr;
}

// Classifies the fate of one partition's views.
static inline void went_one(struct world *w, const struct part *was, const struct part *is) {
  if (was == is) return;
  if (is && is->young) {
    assert_ptr_equal(was->remix, is->remix);
    uint32_t kept = 0;
    while (kept < part_young_runs(was) && kept < is->young->nr_runs && was->young->runs[kept] == is->young->runs[kept])
      kept++;
    assert_true(is->young->nr_runs > kept);
    w->went[!was->young ? BEGUN : kept == was->young->nr_runs ? WENT_ON : MERGED]++;
    return;
  }
  if (!was->remix) return;
  const uint32_t kept = is && is->remix ? runs_kept(was, is->remix) : 0;
  if (was->young) {
    assert_true(kept <= was->remix->nr_runs);  // never a part of the young ones
    w->went[kept == was->remix->nr_runs ? JOINED : kept ? DEEPER : ALL_TAKEN]++;
  }
  for (uint32_t r = 0; kept == 0 && is && r < part_old_runs(is); r++) assert_int_equal(is->remix->runs[r]->nr_tombs, 0);
}

static inline void round_went(struct world *w) {
  for (uint32_t i = 0; i < w->base->nr_parts; i++) {
    const struct part *const was = w->base->parts[i];
    const struct part *const is = w->next->parts[version_find(w->next, part_anchor(was))];
    went_one(w, was, kv_eq(part_anchor(was), part_anchor(is)) ? is : NULL);
  }
}

static inline void round_install(struct world *w) {
  round_went(w);
  // what was there is as it was
  expect_contents(w, w->base, w->disk);
  for (uint32_t a = 0; a < w->k.nr; a++)
    if (w->fresh[a] != NONE && !w->back[a]) w->disk[a] = w->fresh[a];
  expect_contents(w, w->next, w->disk);
  compact_retire(w->base, w->next);
  version_unref(w->base);
  w->base = w->next;
  w->next = NULL;
  expect_files(w, w->base);
  // what went back is the next memtable's
  uint32_t *again = calloc(w->k.nr, sizeof(*again));
  for (uint32_t a = 0; a < w->k.nr; a++) again[a] = w->back[a] ? w->fresh[a] : NONE;
  thaw(w);
  for (uint32_t a = 0; a < w->k.nr; a++) {
    if (!again[a]) continue;
    w->fresh[a] = again[a];
    mem_put(&w->p, w->frozen, w->k.keys[a], again[a], w->value, ++w->seq);
  }
  free(again);
}

static inline void expect_kind_at(int line, const uint64_t *kinds, enum compact_kind kind, uint64_t nr) {
  if (kinds[kind] == nr) return;
  fail_msg("line %d: keep %d, abort %d, minor %d, major %d, split %d: kind %d is not %d", line, (int)kinds[0],
           (int)kinds[1], (int)kinds[2], (int)kinds[3], (int)kinds[4], kind, (int)nr);
}
#define expect_kind(kinds, kind, nr) expect_kind_at(__LINE__, kinds, kind, nr)

static inline struct remix *remix_of(struct world *w, uint32_t part) { return w->base->parts[part]->remix; }

static inline struct remix *young_of(struct world *w, uint32_t part) { return w->base->parts[part]->young; }

static inline uint64_t tombs_of(struct world *w, uint32_t part) {
  uint64_t n = 0;
  for (uint32_t r = 0; r < part_runs(w->base->parts[part]); r++) n += part_run(w->base->parts[part], r)->nr_tombs;
  return n;
}

// So many of the first keys fill about so many tables.
static inline uint32_t keys_for(struct world *w, double tables) {
  uint64_t bytes = 0;
  uint32_t a = 0;
  static uint8_t buf[VALUE_MAX];
  for (; a < w->k.nr && (double)bytes < tables * w->c.build.max_pages * BLOCK_PAGE; a++)
    bytes += kv_rec_size(w->k.keys[a].len, value_make(w->k.keys[a], 2, w->value, buf), false) + 2;
  assert_true(a < w->k.nr);
  return a;
}

static inline uint32_t first_key_of(struct world *w, uint32_t part) {
  return keyset_rank(&w->k, part_anchor(w->base->parts[part]));
}

// Three partitions of two tables.
static inline void three_parts(struct world *w) {
  put_range(w, 0, keys_for(w, 5.4), 2, false);
  put_range(w, 1, keys_for(w, 5.4), 2, false);
  round_ok(w, NULL);
  assert_true(w->base->nr_parts >= 3);
}

// ---- for scans

// Scans have paid for the partition.
static inline void wear(struct world *w, uint32_t part) { remix_add_debt(remix_of(w, part), UINT32_MAX); }

static inline void wear_all(struct world *w) {
  for (uint32_t i = 0; i < w->base->nr_parts; i++)
    if (remix_of(w, i)) wear(w, i);
}

static inline uint32_t due_of(struct world *w) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < w->base->nr_parts; i++) nr += remix_of(w, i) && compact_scan_debt_paid(remix_of(w, i));
  return nr;
}

static inline uint64_t scan_debt_of(struct world *w, uint32_t part) {
  return atomic_load(&remix_of(w, part)->scan_debt);
}

// Views that scans have read something in vain of.
static inline uint64_t paid_of(const struct version *v) {
  uint64_t nr = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct part *const p = v->parts[i];
    nr += (p->remix && atomic_load(&p->remix->scan_debt)) + (p->young && atomic_load(&p->young->scan_debt));
  }
  return nr;
}

static inline uint64_t pages_of(struct world *w, uint32_t part) {
  uint64_t pages = 0;
  for (uint32_t r = 0; r < remix_of(w, part)->nr_runs; r++) pages += remix_of(w, part)->runs[r]->nr_pages;
  return pages;
}

// A round that finds so many partitions to merge, looked at from all sides and installed.
static inline void scan_merge_ok(struct world *w, uint64_t nr, uint64_t *kinds_out) {
  uint64_t before[COMPACT_KINDS], after[COMPACT_KINDS], all = 0;
  struct compact_stats *const stats = &w->c.stats;
  const uint64_t rounds = atomic_load(&stats->rounds), scan_merges = atomic_load(&stats->scan_merges),
                 read = atomic_load(&stats->read_bytes);
  const uint64_t work = atomic_load(&w->c.work);
  const uint64_t paid = paid_of(w->base);
  kinds_get(w, before);
  w->scan_merges = true;
  OK(round_try(w));
  w->scan_merges = false;
  kinds_get(w, after);
  for (uint32_t i = 0; i < COMPACT_KINDS; i++) all += after[i] -= before[i];
  assert_int_equal(all, nr);
  assert_int_equal(after[COMPACT_MAJOR] + after[COMPACT_SPLIT], nr);
  assert_int_equal(atomic_load(&stats->scan_merges), scan_merges + nr);
  assert_int_equal(atomic_load(&stats->rounds), rounds + (nr != 0));
  assert_int_equal(atomic_load(&w->c.work), work);  // writers do not wait for it
  assert_int_equal(w->nr_back, 0);
  if (kinds_out) memcpy(kinds_out, after, sizeof(after));
  if (nr == 0) {
    assert_null(w->next);
    assert_int_equal(atomic_load(&stats->read_bytes), read);
    expect_files(w, w->base);
    return;
  }
  assert_non_null(w->next);
  assert_int_equal(paid - paid_of(w->base), nr);
  round_install(w);
}

// ---- rounds that fail

// The same for a round that merges for scans: some runs of one partition, all of another.
static inline void ready_to_fail_scan_merge(struct world *w, uint64_t seed) {
  world_init(w, 2500, 2, seed);
  w->value = VALUE + 10;
  w->c.build.max_pages = 4;
  three_parts(w);
  for (uint32_t r = 0; r < 4; r++) {
    put_range(w, first_key_of(w, 1) + r, first_key_of(w, 2), 30, r % 2);
    if (r == 0) put_range(w, 0, first_key_of(w, 1), 3, true);
    round_ok(w, NULL);
  }
  w->scan_merges = true;
}

static inline enum remixdb_status round_again(struct world *w) {
  for (uint32_t i = 0; i < 2 && w->scan_merges; i++) {
    wear(w, i);
    if (young_of(w, i)) remix_add_debt(young_of(w, i), UINT32_MAX);
  }
  return round_try(w);
}

// After a failure there is what there was, and no more.
static inline void expect_failed(struct world *w, enum remixdb_status s, bool contents) {
  if (w->status != s) fail_msg("status %d: %s", w->status, w->error.msg);
  assert_null(w->next);
  assert_true(w->error.msg[0] != 0);
  assert_false(w->back_wrong);
  expect_files(w, w->base);
  if (contents) expect_contents(w, w->base, w->disk);
}

// Every allocation of a round fails in turn, or each of so many; then there is no more that could.
static inline void no_memory(struct world *w, int64_t step) {
  uint32_t failed = 0;
  for (int64_t n = 1;; n += step) {
    fault_mem_set(n);
    const enum remixdb_status s = round_again(w);
    const bool any = fault_mem_end();
    if (s != REMIXDB_OK) {
      assert_true(any);
      expect_failed(w, REMIXDB_NOMEM, n % 16 == 0);
      failed++;
      assert_int_equal(atomic_load(&w->c.stats.failed), failed);
      continue;
    }
    compact_retire(w->next, w->base);  // it does without, or there was enough
    version_unref(w->next);
    if (!any) break;
  }
  assert_true(failed > 30);
}

// Every call of a round fails in turn.
static inline void io_fails(struct world *w) {
  int64_t writes = 0;
  static const unsigned kinds[] = {FAULT_OPEN, FAULT_READ, FAULT_WRITE, FAULT_SYNC, FAULT_CLOSE, FAULT_STAT};
  for (uint32_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
    uint32_t failed = 0;
    for (int64_t n = 1;; n++) {
      fault_io_set(kinds[i], n, false);
      const enum remixdb_status s = round_again(w);
      const bool any = fault_io_end();
      if (s != REMIXDB_OK) {
        assert_true(any);
        expect_failed(w, kinds[i] == FAULT_WRITE ? REMIXDB_NOSPACE : REMIXDB_IO, n % 8 == 0);
        failed++;
        writes += kinds[i] == FAULT_WRITE;
        continue;
      }
      compact_retire(w->next, w->base);
      version_unref(w->next);
      if (!any) break;
    }
    assert_true(failed > 1);
  }
  // the disk is full from a moment on, and then has room again
  for (int64_t n = 1; n <= writes; n += 2) {
    fault_io_set(FAULT_WRITE, n, true);
    const enum remixdb_status s = round_again(w);
    (void)fault_io_end();
    assert_int_not_equal(s, REMIXDB_OK);
    expect_failed(w, REMIXDB_NOSPACE, true);
  }
}
#endif
