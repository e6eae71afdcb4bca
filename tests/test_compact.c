// SPDX-License-Identifier: Apache-2.0
//
// Compaction with small tables: each thing that can be done to a partition, many rounds against a model, and every failure on
// the way.
#include "compact.h"

#include "merge.h"
#include "place.h"

#define TABLE 16u                      // pages of a table
#define VALUE 50u                      // bytes of a value, about, and no large ones; a few more, and there are

// What became of a partition's young view in a round that wrote into the partition.
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
  uint32_t *disk, *fresh;              // what base and frozen have
  uint8_t *back;                       // handed back in the last round: how often
  uint32_t nr_back, next_what;
  uint64_t back_bytes;
  bool back_wrong;
  enum remixdb_status back_status;     // what hand_back returns
  // the round's way to the workers and back
  bool allow_abort;
  struct compact_whole *whole;         // NULL, or for the next round
  bool worn;                           // rounds are of what scans have paid for
  uint64_t went[WENT_KINDS];           // in all rounds that were installed
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool done;
  struct version *next;
  enum remixdb_status status;
  struct err_saved error;
};

// In a worker's thread: nothing is asserted here.
static enum remixdb_status hand_back(void *arg, struct worker *wk, const struct kv_rec *rec) {
  struct world *w = arg;
  epoch_enter(&w->p.epoch, &wk->slot);  // is outside, as somebody who writes has to be
  epoch_exit(&wk->slot);
  const struct kref key = kref(rec->key, rec->klen);
  const uint32_t at = keyset_rank(&w->k, key);
  if (at == w->k.nr || !kv_eq(w->k.keys[at], key) || w->fresh[at] == NONE || !value_is(rec, key, w->fresh[at], w->value))
    w->back_wrong = true;
  else w->back[at]++;
  w->nr_back++;
  w->back_bytes += rec->klen + rec->vlen;
  return w->back_status == REMIXDB_OK ? REMIXDB_OK : err_set(w->back_status, "hand_back was told to fail");
}

static void round_fn(void *arg, struct worker *wk) {
  struct world *w = arg;
  struct version *next = NULL;
  const enum remixdb_status s = w->worn ? compact_worn_round(&w->c, wk, w->base, &next)
                                        : compact_round(&w->c, wk, w->base, w->frozen, w->allow_abort, w->whole, &next);
  pthread_mutex_lock(&w->lock);
  w->status = s;
  err_save(&w->error, s);
  w->next = next;
  w->done = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

static void world_init(struct world *w, uint32_t keys, uint32_t threads, uint64_t seed) {
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
  w->c.hand_back = hand_back;
  w->c.arg = w;
  atomic_store(&w->c.next_file, 1);
  ok(workers_create(threads, NULL, 0, &w->p.io, &w->p.epoch, round_fn, w, &w->c.workers));
  struct part *only;
  ok(part_create(kref("", 0), NULL, NULL, &only));
  ok(version_create(&only, 1, &w->base));
  w->disk = calloc(w->k.nr, sizeof(*w->disk));
  w->fresh = calloc(w->k.nr, sizeof(*w->fresh));
  w->back = calloc(w->k.nr, 1);
  w->next_what = 2;
  w->value = VALUE;
  ok(wh_create(&w->p.epoch, 64 << 10, NULL, &w->frozen));
}

static void world_fini(struct world *w) {
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

static void put(struct world *w, uint32_t at, bool tomb) {
  w->fresh[at] = tomb ? TOMB : w->next_what++;
  mem_put(&w->p, w->frozen, w->k.keys[at], w->fresh[at], w->value, ++w->seq);
}

static void put_range(struct world *w, uint32_t from, uint32_t to, uint32_t every, bool tomb) {
  for (uint32_t a = from; a < to; a += every) put(w, a, tomb);
}

static void thaw(struct world *w) {  // forgets the frozen memtable
  wh_destroy(w->frozen);
  ok(wh_create(&w->p.epoch, 64 << 10, NULL, &w->frozen));
  memset(w->fresh, 0, w->k.nr * sizeof(*w->fresh));
}

// ---- looking at what a round made

// A version read from end to end says what the model does, and each partition holds its own keys only.
static void expect_contents(struct world *w, struct version *v, const uint32_t *what) {
  struct merge m;
  struct wh *empty;
  ok(wh_create(&w->p.epoch, 64 << 10, NULL, &empty));
  merge_init(&m, NULL);
  merge_set(&m, empty, NULL, v, 0);
  uint32_t at = 0;
  enter(&w->p);
  for (ok(merge_seek(&m, kref(NULL, 0)));; ok(merge_next(&m)), at++) {
    while (at < w->k.nr && what[at] <= TOMB) at++;
    if (!merge_valid(&m)) break;
    struct kv_rec r;
    ok(merge_record(&m, &r));
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
    if (p->remix) assert_false(p->remix->young);
    if (!p->young) continue;
    assert_non_null(p->remix);
    assert_true(p->young->young && p->young->nr_runs > 0);
    assert_true(p->young->nr_entries * COMPACT_YOUNG_SHARE <= p->remix->nr_entries);
    young++;
  }
  assert_int_equal(v->nr_young, young);
}

static char *files_of(const struct version *v) {
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

static void expect_files(struct world *w, const struct version *v) {
  char *there = place_files(&w->p), *named = files_of(v);
  assert_string_equal(there, named);
  free(there);
  free(named);
}

static void kinds_get(struct world *w, uint64_t *kinds) {
  for (uint32_t i = 0; i < COMPACT_KINDS; i++) kinds[i] = atomic_load(&w->c.stats.kinds[i]);
}

// Starts a round and does not wait.
static void round_begin(struct world *w) {
  memset(w->back, 0, w->k.nr);
  w->nr_back = 0;
  w->back_bytes = 0;
  w->back_wrong = false;
  w->done = false;
  w->next = NULL;
  workers_kick(w->c.workers);
}

static enum remixdb_status round_end(struct world *w) {
  pthread_mutex_lock(&w->lock);
  while (!w->done) pthread_cond_wait(&w->changed, &w->lock);
  pthread_mutex_unlock(&w->lock);
  return w->status;
}

static enum remixdb_status round_try(struct world *w) {
  round_begin(w);
  return round_end(w);
}

// What was handed back: all new keys of some partitions and none of the others, once each; as many partitions as the stats say.
static void expect_back(struct world *w, uint64_t aborted) {
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

static void round_install(struct world *w);

// A round that succeeds, looked at from all sides and installed. kinds_out: what was done in it; may be NULL.
static void round_ok(struct world *w, uint64_t *kinds_out) {
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
static uint32_t runs_kept(const struct part *was, const struct remix *x) {
  uint32_t nr = 0;
  while (nr < part_runs(was) && nr < x->nr_runs && part_run(was, nr) == x->runs[nr]) nr++;
  return nr;
}

// What became of one partition's views.
static void went_one(struct world *w, const struct part *was, const struct part *is) {
  if (was == is) return;
  if (is && is->young) {
    assert_ptr_equal(was->remix, is->remix);
    uint32_t kept = 0;
    while (kept < part_young_runs(was) && kept < is->young->nr_runs && was->young->runs[kept] == is->young->runs[kept]) kept++;
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

static void round_went(struct world *w) {
  for (uint32_t i = 0; i < w->base->nr_parts; i++) {
    const struct part *const was = w->base->parts[i];
    const struct part *const is = w->next->parts[version_find(w->next, part_anchor(was))];
    went_one(w, was, kv_eq(part_anchor(was), part_anchor(is)) ? is : NULL);
  }
}

static void round_install(struct world *w) {
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

static void expect_kind_at(int line, const uint64_t *kinds, enum compact_kind kind, uint64_t nr) {
  if (kinds[kind] == nr) return;
  fail_msg("line %d: keep %d, abort %d, minor %d, major %d, split %d: kind %d is not %d", line, (int)kinds[0], (int)kinds[1],
           (int)kinds[2], (int)kinds[3], (int)kinds[4], kind, (int)nr);
}
#define expect_kind(kinds, kind, nr) expect_kind_at(__LINE__, kinds, kind, nr)

static struct remix *remix_of(struct world *w, uint32_t part) { return w->base->parts[part]->remix; }

static struct remix *young_of(struct world *w, uint32_t part) { return w->base->parts[part]->young; }

static uint64_t tombs_of(struct world *w, uint32_t part) {
  uint64_t n = 0;
  for (uint32_t r = 0; r < part_runs(w->base->parts[part]); r++) n += part_run(w->base->parts[part], r)->nr_tombs;
  return n;
}

// So many of the first keys fill about so many tables.
static uint32_t keys_for(struct world *w, double tables) {
  uint64_t bytes = 0;
  uint32_t a = 0;
  static uint8_t buf[VALUE_MAX];
  for (; a < w->k.nr && (double)bytes < tables * w->c.build.max_pages * BLOCK_PAGE; a++)
    bytes += kv_rec_size(w->k.keys[a].len, value_make(w->k.keys[a], 2, w->value, buf), false) + 2;
  assert_true(a < w->k.nr);
  return a;
}

// ---- each kind

static void test_keep(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 1000, 0, 1);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_KEEP, 1);
  assert_null(remix_of(&w, 0));
  put_range(&w, 0, keys_for(&w, 0.5), 1, false);
  round_ok(&w, kinds);
  struct part *part = w.base->parts[0];
  part_ref(part);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_KEEP, 1);
  assert_ptr_equal(w.base->parts[0], part);
  part_unref(part);
  assert_int_equal(atomic_load(&w.c.work), 1);
  world_fini(&w);
}

static void test_first(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 8000, 0, 2);
  const uint32_t n = keys_for(&w, 0.8);
  put_range(&w, 0, n, 1, false);
  for (uint32_t a = 0; a < n; a += 5) put(&w, a, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_int_equal(w.base->nr_parts, 1);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  assert_int_equal(tombs_of(&w, 0), 0);
  world_fini(&w);

  // nothing but tombstones, with nothing to hide: no file at all
  world_init(&w, 1000, 0, 3);
  put_range(&w, 0, w.k.nr, 1, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_null(remix_of(&w, 0));
  world_fini(&w);

  // more than a partition should hold
  world_init(&w, 8000, 0, 4);
  put_range(&w, 0, keys_for(&w, 5.5), 1, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  assert_true(w.base->nr_parts >= 3 && w.base->nr_parts <= 4);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) assert_true(remix_of(&w, i)->nr_runs <= COMPACT_PART_TABLES);
  assert_int_equal(remix_of(&w, 0)->nr_runs, COMPACT_PART_TABLES);
  world_fini(&w);
}

static void test_minor(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 3000, 0, 5);
  const uint32_t n = keys_for(&w, 0.8);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  for (uint32_t i = 0; i < 4; i++) {
    struct sst *oldest = remix_of(&w, 0)->runs[0];
    put_range(&w, i, n, 6, i == 2);
    round_ok(&w, kinds);
    expect_kind(kinds, COMPACT_MINOR, 1);
    assert_int_equal(remix_of(&w, 0)->nr_runs, i + 2);
    assert_ptr_equal(remix_of(&w, 0)->runs[0], oldest);
  }
  assert_true(tombs_of(&w, 0) > 0);  // they hide what is below
  world_fini(&w);
}

// One partition with as many runs as it may have: the first of so many tables' size, the others of every n-th key of the same.
static void runs_make(struct world *w, double first, uint32_t every) {
  const uint32_t n = keys_for(w, first);
  put_range(w, 0, n, 1, false);
  round_ok(w, NULL);
  for (uint32_t r = 1; r < compact_run_limit(&w->c, w->base->parts[0], UINT64_MAX); r++) {
    put_range(w, r, n, every, false);
    round_ok(w, NULL);
  }
  assert_int_equal(w->base->nr_parts, 1);
  assert_int_equal(remix_of(w, 0)->nr_runs, compact_run_limit(&w->c, w->base->parts[0], UINT64_MAX));
}

// Too many runs: the small new ones become one, the large old one stays, and so do the tombstones.
static void test_major_some(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 3000, 0, 6);
  runs_make(&w, 0.85, 40);
  struct sst *oldest = remix_of(&w, 0)->runs[0];
  const uint32_t n = keys_for(&w, 0.85);
  put_range(&w, 3, n, 40, true);
  remix_jumped(remix_of(&w, 0), 1000000);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 2);
  assert_ptr_equal(remix_of(&w, 0)->runs[0], oldest);
  assert_true(atomic_load(&remix_of(&w, 0)->jumps) < 1000000);  // of what was paid for, this was the most
  assert_true(tombs_of(&w, 0) > 0);
  assert_true(atomic_load(&w.c.stats.read_bytes) > 0);
  world_fini(&w);
}

// All runs alike: all of them become one, and no tombstone is left.
static void test_major_all(void **state) {
  (void)state;
  for (uint32_t deleted = 0; deleted < 2; deleted++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    world_init(&w, 3000, 0, 7);
    const uint32_t n = keys_for(&w, 0.4);
    for (uint32_t r = 0; r == 0 || r < compact_run_limit(&w.c, w.base->parts[0], UINT64_MAX); r++) {
      put_range(&w, r, n, COMPACT_RUNS, false);
      round_ok(&w, kinds);
      expect_kind(kinds, r ? COMPACT_MINOR : COMPACT_MAJOR, 1);
    }
    put_range(&w, 0, n, deleted ? 1 : 3, true);
    round_ok(&w, kinds);
    expect_kind(kinds, COMPACT_MAJOR, 1);
    assert_int_equal(w.base->nr_parts, 1);
    assert_int_equal(tombs_of(&w, 0), 0);
    if (deleted) assert_null(remix_of(&w, 0));
    else assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
    // and a partition that was emptied takes new data
    put_range(&w, 0, n, 2, false);
    round_ok(&w, kinds);
    expect_kind(kinds, deleted ? COMPACT_MAJOR : COMPACT_MINOR, 1);
    world_fini(&w);
  }
}

// Few runs, but most of what they hold is old: merged though there is room for more.
static void test_major_garbage(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 3000, 0, 8);
  const uint32_t n = keys_for(&w, 0.9);
  uint32_t rounds = 0;
  do {
    put_range(&w, 0, n, 1, rounds % 2 == 1);
    round_ok(&w, kinds);
    assert_int_equal(w.base->nr_parts, 1);
    assert_true(++rounds < COMPACT_RUNS);
  } while (rounds == 1 || kinds[COMPACT_MAJOR] == 0);
  assert_true(!remix_of(&w, 0) || remix_of(&w, 0)->nr_runs <= 2);
  world_fini(&w);
}

static void test_split(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 12000, 0, 9);
  // runs that hold different keys, so that all of it stays
  const uint32_t n = keys_for(&w, 10);
  uint32_t r = 0;
  do {
    put_range(&w, r, n, 20, false);
    put(&w, 0, false);
    round_ok(&w, kinds);
    assert_true(++r < 20);
  } while (kinds[COMPACT_SPLIT] == 0);
  assert_true(r > 4);
  assert_true(w.base->nr_parts >= 2 && w.base->nr_parts <= 6);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) {
    assert_true(remix_of(&w, i)->nr_runs <= COMPACT_PART_TABLES + 1);
    // an anchor is no longer than it has to be
    if (!i) continue;
    const struct kref a = part_anchor(w.base->parts[i]);
    const uint32_t at = keyset_rank(&w.k, a);
    assert_true(at > 0 && at < w.k.nr);
    assert_true(kv_cmp(kref(a.ptr, a.len - 1), w.k.keys[at - 1]) <= 0);
  }
  world_fini(&w);
}

static uint32_t first_key_of(struct world *w, uint32_t part) { return keyset_rank(&w->k, part_anchor(w->base->parts[part])); }

// Three partitions of two tables.
static void three_parts(struct world *w) {
  put_range(w, 0, keys_for(w, 5.4), 2, false);
  put_range(w, 1, keys_for(w, 5.4), 2, false);
  round_ok(w, NULL);
  assert_true(w->base->nr_parts >= 3);
}

// New keys behind all there are, and the partition has its share: it stays as it is.
static void test_append(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 12000, 0, 10);
  const uint32_t n = keys_for(&w, 1.3), n2 = keys_for(&w, 6.3), n3 = keys_for(&w, 6.4);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_parts, 1);
  struct part *first = w.base->parts[0];
  part_ref(first);
  put_range(&w, n, n2, 1, false);
  for (uint32_t a = n; a < n2; a += 7) put(&w, a, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  assert_ptr_equal(w.base->parts[0], first);
  assert_true(w.base->nr_parts >= 3);
  for (uint32_t i = 1; i < w.base->nr_parts; i++) assert_int_equal(tombs_of(&w, i), 0);
  // tombstones of what is not there: nothing is made of them
  const uint32_t parts = w.base->nr_parts;
  put_range(&w, n2, n3, 1, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_KEEP, parts - 1);
  assert_int_equal(w.base->nr_parts, parts);
  part_unref(first);
  world_fini(&w);
}

// The same with some keys before the end of what is there: they are the partition's own, the others do not touch it.
static void test_append_over(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 12000, 0, 13);
  const uint32_t n = keys_for(&w, 1.3), n2 = keys_for(&w, 5);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  struct sst *const first = remix_of(&w, 0)->runs[0];
  put_range(&w, n - 300, n2, 1, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  assert_ptr_equal(remix_of(&w, 0)->runs[0], first);
  assert_true(remix_of(&w, 0)->runs[remix_of(&w, 0)->nr_runs - 1]->nr_records == 300);
  assert_true(w.base->nr_parts >= 2);
  assert_int_equal(first_key_of(&w, 1), n);
  // the few of them go back, when they may
  const uint32_t parts = w.base->nr_parts, n3 = keys_for(&w, 7);
  w.allow_abort = true;
  put(&w, n2 - 2, true);
  put_range(&w, n2, n3, 1, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  expect_kind(kinds, COMPACT_KEEP, parts - 1);
  assert_int_equal(w.back[n2 - 2], 1);
  // a little behind the end, in each of the many gaps between partitions, makes no partitions of its own
  w.allow_abort = false;
  const uint32_t many = w.base->nr_parts;
  w.c.memtable_size = COMPACT_ABORT_SHARE * 1000;
  for (uint32_t i = 1; i < many; i++) put_range(&w, first_key_of(&w, i) - 2, first_key_of(&w, i), 1, true);
  round_ok(&w, NULL);
  for (uint32_t i = 1; i < many; i++) put_range(&w, first_key_of(&w, i) - 2, first_key_of(&w, i), 1, false);
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_parts, many);
  world_fini(&w);
}

// A partition that is left without anything goes, and the one before it takes its keys.
static void test_empty_parts(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 8000, 0, 14);
  three_parts(&w);
  const uint32_t parts = w.base->nr_parts, one = first_key_of(&w, 1), two = first_key_of(&w, 2);
  for (uint32_t r = 0; w.base->nr_parts == parts; r++) {
    assert_true(r < 3);  // what is deleted is garbage at once
    put_range(&w, one, two, 1, true);
    round_ok(&w, NULL);
  }
  assert_int_equal(w.base->nr_parts, parts - 1);
  assert_int_equal(first_key_of(&w, 1), two);
  put_range(&w, one, two, 3, false);
  round_ok(&w, NULL);
  // all of them: the first stays, empty
  for (uint32_t r = 0; remix_of(&w, 0) || w.base->nr_parts > 1; r++) {
    assert_true(r < 4);
    put_range(&w, 0, w.k.nr, 1, true);
    round_ok(&w, NULL);
  }
  put_range(&w, 0, w.k.nr, 5, false);
  round_ok(&w, NULL);
  world_fini(&w);
}

// ---- compacting what is asked for

static void test_whole(void **state) {
  (void)state;
  struct world w;
  static struct compact_whole whole;
  world_init(&w, 12000, 0, 15);
  w.c.memtable_size = COMPACT_ABORT_SHARE * 1000;
  // small partitions behind each other, of which one gets many runs, one tombstones and one both
  const uint32_t n = keys_for(&w, 9);
  w.c.build.max_pages = TABLE / 8;
  for (uint32_t i = 0; i < 12; i++) {
    put_range(&w, n / 12 * i, n / 12 * (i + 1), 1, false);
    round_ok(&w, NULL);
  }
  const uint32_t parts = w.base->nr_parts;
  assert_true(parts > 20);
  for (uint32_t i = 0; i < 4; i++) {
    put_range(&w, first_key_of(&w, 3) + i, first_key_of(&w, 4), 9, i % 2);
    put_range(&w, first_key_of(&w, 9) + i, first_key_of(&w, 10), 9, false);
    round_ok(&w, NULL);
  }
  w.c.build.max_pages = TABLE;
  w.whole = &whole;
  whole = (struct compact_whole){.budget = 3 * TABLE * BLOCK_PAGE};
  uint32_t rounds = 0;
  do {
    put_range(&w, first_key_of(&w, 0) + rounds, n, 997, rounds % 2);  // new data comes all the time
    const uint64_t before = atomic_load(&w.c.stats.table_bytes);
    round_ok(&w, NULL);
    assert_true(atomic_load(&w.c.stats.table_bytes) - before < 8 * TABLE * BLOCK_PAGE);
    assert_true(++rounds < 20);
  } while (!whole.end);
  assert_true(rounds >= 3);
  assert_true(w.base->nr_parts < parts / 2);
  // and with nothing new: the fewest tables, nothing in them that nobody can read
  whole = (struct compact_whole){.budget = UINT64_MAX};
  round_ok(&w, NULL);
  assert_true(whole.end);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) {
    const struct remix *x = remix_of(&w, i);
    uint64_t pages = 0;
    for (uint32_t r = 0; r < x->nr_runs; r++) pages += x->runs[r]->nr_pages;
    assert_int_equal(x->nr_entries, x->nr_keys);
    assert_true(x->nr_runs <= 1 + pages / TABLE && x->nr_runs <= COMPACT_PART_TABLES);
  }
  // then there is nothing to do but for neighbours that have come to fit each other, until there are none
  uint64_t kinds[COMPACT_KINDS];
  do {
    whole = (struct compact_whole){.budget = UINT64_MAX};
    round_ok(&w, kinds);
    assert_true(++rounds < 25);
  } while (kinds[COMPACT_KEEP] < w.base->nr_parts);
  // a round that fails leaves the place where it was
  put_range(&w, 0, n, 3, false);
  whole = (struct compact_whole){.budget = 1};
  fault_io_set(FAULT_WRITE, 1, false);
  assert_int_equal(round_try(&w), REMIXDB_NOSPACE);
  (void)fault_io_end();
  assert_false(whole.end);
  assert_int_equal(whole.from_len, 0);
  round_ok(&w, NULL);
  assert_true(!whole.end && whole.from_len > 0);
  // all is deleted: one empty partition is left
  put_range(&w, 0, w.k.nr, 1, true);
  whole = (struct compact_whole){.budget = UINT64_MAX};
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_parts, 1);
  assert_null(remix_of(&w, 0));
  world_fini(&w);
}

// ---- handing back

static void test_abort(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 8000, 0, 11);
  three_parts(&w);
  const uint32_t parts = w.base->nr_parts;
  w.allow_abort = true;
  // a key or two here, many there
  const uint32_t one = first_key_of(&w, 0) + 10, two = first_key_of(&w, 1) + 10;
  put(&w, one, true);
  put_range(&w, two, two + 150, 1, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  expect_kind(kinds, COMPACT_MINOR, 1);
  expect_kind(kinds, COMPACT_KEEP, parts - 2);
  assert_int_equal(w.nr_back, 1);
  assert_int_equal(w.back[one], 1);
  assert_true(atomic_load(&w.c.stats.handed_back) > 0);

  // it is there still, and is written when nothing may go back
  assert_int_equal(w.fresh[one], TOMB);
  w.allow_abort = false;
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 0);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_int_equal(w.disk[one], TOMB);
  assert_int_equal(w.nr_back, 0);

  // no room for any of it
  w.allow_abort = true;
  w.c.memtable_size = 64;
  put(&w, one, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 0);

  // room for either, but not for both: the dearer one
  w.c.memtable_size = COMPACT_ABORT_SHARE * 400;
  put(&w, one, true);
  put_range(&w, two, two + 3, 1, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_int_equal(w.back[one], 1);
  world_fini(&w);
}

// What cannot be put back keeps the round from being installed.
static void test_abort_fails(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 8000, 0, 12);
  three_parts(&w);
  w.allow_abort = true;
  const uint32_t two = first_key_of(&w, 1) + 10;
  put(&w, first_key_of(&w, 0) + 10, false);
  put_range(&w, two, two + 150, 1, false);
  w.back_status = REMIXDB_NOSPACE;
  assert_int_equal(round_try(&w), REMIXDB_NOSPACE);
  assert_string_equal(w.error.msg, "hand_back was told to fail");
  assert_null(w.next);
  assert_int_equal(w.nr_back, 1);
  expect_files(&w, w.base);
  w.back_status = REMIXDB_OK;
  round_ok(&w, NULL);
  world_fini(&w);
}

// ---- many rounds

struct mix {
  uint32_t keys, threads, rounds;
  uint32_t writes;       // at most, in a round
  uint32_t tombs;        // one in so many
  bool window;           // a round's writes lie near each other
  bool ascending;        // and the window moves on
  bool abort;
  bool young;            // young views begin sooner and later
  bool worn;             // and scans pay for a round now and then
};

static void worn_by_chance(struct world *w, uint64_t *rng) {
  for (uint32_t i = 0; i < w->base->nr_parts; i++) {
    const struct part *const p = w->base->parts[i];
    if (p->remix && rng_next(rng) % 2) remix_jumped(p->remix, UINT32_MAX);
    if (p->young && rng_next(rng) % 2) remix_jumped(p->young, UINT32_MAX);
  }
  w->worn = true;
  const enum remixdb_status s = round_try(w);
  w->worn = false;
  if (s != REMIXDB_OK) fail_msg("status %d: %s", s, w->error.msg);
  if (!w->next) return;
  uint32_t *const fresh = calloc(w->k.nr, sizeof(*fresh));  // is still to come
  memcpy(fresh, w->fresh, w->k.nr * sizeof(*fresh));
  memset(w->fresh, 0, w->k.nr * sizeof(*fresh));
  round_install(w);
  for (uint32_t a = 0; a < w->k.nr; a++) {
    if (fresh[a] == NONE) continue;
    w->fresh[a] = fresh[a];
    mem_put(&w->p, w->frozen, w->k.keys[a], fresh[a], w->value, ++w->seq);
  }
  free(fresh);
}

static void rounds_once(const struct mix *x, uint64_t seed, uint64_t *all, uint64_t *went) {
  struct world w;
  uint64_t rng = seed;
  world_init(&w, x->keys, x->threads, seed);
  w.value = VALUE + 10;
  w.allow_abort = x->abort;
  for (uint32_t r = 0; r < x->rounds; r++) {
    w.c.build.ckeys = rng_next(&rng) % 3 != 0;
    w.c.build.compression = rng_next(&rng) % 3 ? REMIXDB_COMPRESSION_NONE : REMIXDB_COMPRESSION_ZSTD;
    w.c.tags = rng_next(&rng) % 3 != 0;
    const uint32_t span = x->window ? w.k.nr / 8 : w.k.nr;
    const uint32_t room = w.k.nr - span;
    const uint32_t from = x->ascending ? (uint32_t)((uint64_t)room * r / x->rounds) : (uint32_t)(rng_next(&rng) % (room + 1));
    const uint32_t nr = (uint32_t)(rng_next(&rng) % (x->writes + 1)) / (x->young ? 1u << rng_next(&rng) % 6 : 1);
    if (x->young && r == 0) put_range(&w, 0, w.k.nr, 2, false);
    for (uint32_t i = 0; i < nr; i++) {
      const bool tomb = rng_next(&rng) % x->tombs == 0;
      put(&w, from + (uint32_t)(rng_next(&rng) % span), tomb);
    }
    uint64_t kinds[COMPACT_KINDS];
    if (x->young) w.c.young_from = 1u << rng_next(&rng) % 6;
    const uint64_t young = atomic_load(&w.c.stats.young), before = w.went[BEGUN] + w.went[WENT_ON] + w.went[MERGED];
    round_ok(&w, kinds);
    assert_int_equal(atomic_load(&w.c.stats.young) - young, w.went[BEGUN] + w.went[WENT_ON] + w.went[MERGED] - before);
    for (uint32_t i = 0; i < COMPACT_KINDS; i++) all[i] += kinds[i];
    if (x->worn && rng_next(&rng) % 5 == 0) worn_by_chance(&w, &rng);
    if (rng_next(&rng) % 4) continue;
    // through the disk, as when the store is opened again
    w.base->store_id = PLACE_STORE_ID;
    w.base->next_file = atomic_load(&w.c.next_file);
    ok(version_save(&w.p.ctx, w.base));
    version_unref(w.base);
    ok(version_load(&w.p.ctx, NULL, NULL, &w.base));
    uint32_t cleaned;
    ok(version_clean(&w.p.ctx, w.base, &cleaned));
    assert_int_equal(cleaned, 0);
    expect_contents(&w, w.base, w.disk);
    char path[ENV_PATH_MAX];
    ok(env_path(path, w.p.dir, VERSION_FILE));
    assert_int_equal(unlink(path), 0);
  }
  for (uint32_t i = 0; i < WENT_KINDS; i++) went[i] += w.went[i];
  world_fini(&w);
}

static void test_rounds(void **state) {
  (void)state;
  const char *const given = getenv("TEST_SEED");
  const uint64_t seed = given && *given ? strtoull(given, NULL, 0) : 100;
  static const struct mix mixes[] = {
      {1500, 0, 25, 600, 5, false, false, true, false, false},
      {1500, 0, 25, 900, 2, false, false, false, false, false},   // half of it deletes
      {3000, 0, 25, 800, 8, true, false, true, false, false},
      {4000, 0, 25, 900, 50, true, true, true, false, false},     // ascending keys
      {40, 0, 40, 40, 3, false, false, false, false, false},      // the same few keys again and again
      {3000, 2, 20, 900, 5, false, false, true, false, false},    // in threads
      {1500, 0, 90, 60, 5, false, false, false, true, true},      // little beside much
      {1500, 0, 90, 15, 2, false, false, false, true, false},
      {3000, 0, 60, 80, 8, true, false, true, true, false},
      {4000, 0, 60, 500, 20, true, true, true, true, true},
      {3000, 2, 40, 150, 3, false, false, true, true, true},
  };
  uint64_t all[COMPACT_KINDS] = {0}, went[WENT_KINDS] = {0};
  for (uint32_t i = 0; i < sizeof(mixes) / sizeof(mixes[0]); i++) {
    printf("mix %u, seed %llu\n", i, (unsigned long long)(seed + i));
    rounds_once(&mixes[i], seed + i, all, went);
  }
  printf("young views: %u begun, %u went on, %u merged, %u joined, %u deeper, %u all\n", (unsigned)went[BEGUN], (unsigned)went[WENT_ON], (unsigned)went[MERGED],
         (unsigned)went[JOINED], (unsigned)went[DEEPER], (unsigned)went[ALL_TAKEN]);
  if (seed != 100) return;  // any other may come to fewer things
  for (uint32_t i = 0; i < WENT_KINDS; i++) assert_true(went[i] > 0);
  for (uint32_t i = 0; i < COMPACT_KINDS; i++) assert_true(all[i] > 0);
}

// Several workers at once, while a reader goes over what is there.
static void threads_once(void) {
  struct world w;
  world_init(&w, 11000, 3, 20);
  w.allow_abort = true;
  put_range(&w, 0, keys_for(&w, 8), 1, false);
  round_ok(&w, NULL);
  assert_true(w.base->nr_parts >= 4);
  uint64_t rng = 1;
  for (uint32_t r = 0; r < 6; r++) {
    for (uint32_t i = 0; i < 800; i++) put(&w, (uint32_t)(rng_next(&rng) % w.k.nr), i % 9 == 0);
    round_begin(&w);
    expect_contents(&w, w.base, w.disk);
    const enum remixdb_status s = round_end(&w);
    if (s != REMIXDB_OK) fail_msg("status %d: %s", s, w.error.msg);
    round_install(&w);
  }
  world_fini(&w);
}

static void test_threads(void **state) {
  (void)state;
  threads_once();
  place_native = true;  // rings, where there are any: tables are read and written through one queue
  threads_once();
  place_native = false;
}

// What is compressed is measured by what it was before, or tables would be many and small, or one partition get too many of them.
static void test_compressed(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 12000, 0, 21);
  w.c.build.compression = REMIXDB_COMPRESSION_ZSTD;
  w.value = 400;
  const uint32_t n = keys_for(&w, 8);
  uint64_t stored = 0, pages = 0;
  uint32_t rounds = 0, limit = 0;
  do {
    for (uint32_t r = stored = pages = 0; remix_of(&w, 0) && r < remix_of(&w, 0)->nr_runs; r++) {
      stored += remix_of(&w, 0)->runs[r]->data_size;
      pages += remix_of(&w, 0)->runs[r]->nr_pages;
    }
    put_range(&w, rounds, n, 10, false);
    round_ok(&w, kinds);
    if (rounds++ == 0) limit = compact_run_limit(&w.c, w.base->parts[0], UINT64_MAX);
    assert_true(rounds <= limit + 1);
  } while (kinds[COMPACT_SPLIT] == 0);
  assert_true(rounds >= limit - 1);
  assert_true(stored < pages * BLOCK_PAGE / 6);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  assert_true(w.base->nr_parts >= rounds / 3 && w.base->nr_parts <= rounds / 2 + 1);
  world_fini(&w);
}

// Runs so large that merging some makes them hardly fewer: the partition is split at once when there are a few of them. Smaller ones may be more, and little new data
// (large == 2) does not have all of them written again.
static void test_split_soon(void **state) {
  (void)state;
  for (uint32_t large = 0; large < 3; large++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    world_init(&w, 12000, 0, 29);
    const uint32_t n = keys_for(&w, large ? 7 : 2);
    for (uint32_t r = 0; r < COMPACT_SPLIT_RUNS; r++) {
      put_range(&w, r, n, COMPACT_SPLIT_RUNS + 1, false);
      round_ok(&w, kinds);
      expect_kind(kinds, r ? COMPACT_MINOR : COMPACT_MAJOR, 1);
    }
    assert_int_equal(remix_of(&w, 0)->nr_runs, COMPACT_SPLIT_RUNS);
    if (large == 2) put(&w, 7, false);
    else put_range(&w, COMPACT_SPLIT_RUNS, n, COMPACT_SPLIT_RUNS + 1, false);
    round_ok(&w, kinds);
    expect_kind(kinds, large == 1 ? COMPACT_SPLIT : COMPACT_MINOR, 1);
    world_fini(&w);
  }
}

// An estimate of what is left can be far too low (few large records among many tombstones): the tables are large all the same.
static void test_low_estimate(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 22);
  const uint32_t n = keys_for(&w, 1.9);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  for (uint32_t r = 1; r < COMPACT_RUNS; r++) {
    put_range(&w, n, w.k.nr, 1, true);
    put(&w, 0, false);  // not all of it behind
    round_ok(&w, NULL);
  }
  put_range(&w, n, w.k.nr, 1, true);
  put(&w, 0, false);
  round_ok(&w, NULL);
  uint32_t tables = 0;
  for (uint32_t i = 0; i < w.base->nr_parts; i++) tables += remix_of(&w, i) ? remix_of(&w, i)->nr_runs : 0;
  assert_true(tables <= 2 * COMPACT_RUNS);
  world_fini(&w);
}

static void test_progress(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 23);
  assert_int_equal(atomic_load(&w.c.work), 0);
  // few records count too
  put_range(&w, 0, 100, 1, false);
  round_ok(&w, NULL);
  assert_true(atomic_load(&w.c.progress) > atomic_load(&w.c.work) / 2);
  const uint32_t n = keys_for(&w, 5);
  for (uint32_t r = 0; r < 14; r++) {
    const uint64_t table_bytes = atomic_load(&w.c.stats.table_bytes), remix_bytes = atomic_load(&w.c.stats.remix_bytes);
    put_range(&w, r % 10, n, 10, r > 10);
    round_ok(&w, NULL);
    const uint64_t progress = atomic_load(&w.c.progress), work = atomic_load(&w.c.work);
    // an estimate; but near enough to slow writers by
    if (progress < work / 2 || progress > work + work / 4)
      fail_msg("round %u: %u done of %u", r, (unsigned)progress, (unsigned)work);
    assert_true(atomic_load(&w.c.stats.table_bytes) > table_bytes);
    assert_true(atomic_load(&w.c.stats.remix_bytes) > remix_bytes);
  }
  assert_int_equal(atomic_load(&w.c.stats.remix_data_pages), 0);  // compressed keys everywhere
  assert_int_equal(atomic_load(&w.c.stats.failed), 0);
  w.c.build.ckeys = false;
  put_range(&w, 3, n, 10, false);
  round_ok(&w, NULL);
  put_range(&w, 5, n, 10, false);
  round_ok(&w, NULL);
  assert_true(atomic_load(&w.c.stats.remix_data_pages) > 0);
  world_fini(&w);
}

// ---- retiring

static void test_retire(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 8000, 0, 24);
  three_parts(&w);
  const uint32_t one = first_key_of(&w, 1) + 5;
  put_range(&w, one, one + 100, 1, false);
  ok(round_try(&w));
  struct version *old = w.base;
  struct remix *gone = old->parts[1]->remix;
  char *both = place_files(&w.p);

  // somebody reads the old version yet
  struct merge m;
  struct kv_rec r;
  merge_init(&m, NULL);
  struct wh *empty;
  ok(wh_create(&w.p.epoch, 64 << 10, NULL, &empty));
  merge_set(&m, empty, NULL, old, 0);
  version_ref(old);
  enter(&w.p);
  ok(merge_seek(&m, w.k.keys[one]));
  leave(&w.p);

  // without memory nothing is retired
  fault_mem_set(1);
  compact_retire(old, w.next);
  assert_true(fault_mem_end());
  assert_false(atomic_load(&gone->obsolete));
  compact_retire(old, w.next);
  assert_true(atomic_load(&gone->obsolete));
  for (uint32_t i = 0; i < old->nr_parts; i++) {
    const struct remix *x = old->parts[i]->remix;
    assert_int_equal(atomic_load(&x->obsolete), i == 1);
    for (uint32_t t = 0; t < x->nr_runs; t++) assert_false(atomic_load(&x->runs[t]->obsolete));  // a minor one keeps the tables
  }
  version_unref(old);
  char *now = place_files(&w.p);
  assert_string_equal(now, both);
  free(now);
  expect_contents(&w, old, w.disk);
  enter(&w.p);
  ok(merge_record(&m, &r));
  leave(&w.p);
  merge_park(&m);
  merge_fini(&m);
  wh_destroy(empty);
  version_unref(old);
  expect_files(&w, w.next);
  w.base = w.next;
  free(both);

  // the other way round: what a round made goes, when it cannot be installed
  thaw(&w);
  char *before = place_files(&w.p);
  put_range(&w, one, one + 50, 1, false);
  ok(round_try(&w));
  compact_retire(w.next, w.base);
  version_unref(w.next);
  now = place_files(&w.p);
  assert_string_equal(now, before);
  free(now);
  free(before);
  world_fini(&w);
}

// ---- for scans

// Scans have paid for the partition.
static void wear(struct world *w, uint32_t part) { remix_jumped(remix_of(w, part), UINT32_MAX); }

static void wear_all(struct world *w) {
  for (uint32_t i = 0; i < w->base->nr_parts; i++)
    if (remix_of(w, i)) wear(w, i);
}

static uint32_t due_of(struct world *w) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < w->base->nr_parts; i++) nr += remix_of(w, i) && compact_worn(remix_of(w, i));
  return nr;
}

static uint64_t jumps_of(struct world *w, uint32_t part) { return atomic_load(&remix_of(w, part)->jumps); }

// Views that scans have read something in vain of.
static uint64_t paid_of(const struct version *v) {
  uint64_t nr = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct part *const p = v->parts[i];
    nr += (p->remix && atomic_load(&p->remix->jumps)) + (p->young && atomic_load(&p->young->jumps));
  }
  return nr;
}

static uint64_t pages_of(struct world *w, uint32_t part) {
  uint64_t pages = 0;
  for (uint32_t r = 0; r < remix_of(w, part)->nr_runs; r++) pages += remix_of(w, part)->runs[r]->nr_pages;
  return pages;
}

// A round that finds so many partitions to merge, looked at from all sides and installed.
static void worn_ok(struct world *w, uint64_t nr, uint64_t *kinds_out) {
  uint64_t before[COMPACT_KINDS], after[COMPACT_KINDS], all = 0;
  struct compact_stats *const stats = &w->c.stats;
  const uint64_t rounds = atomic_load(&stats->rounds), worn = atomic_load(&stats->worn), read = atomic_load(&stats->read_bytes);
  const uint64_t work = atomic_load(&w->c.work);
  const uint64_t paid = paid_of(w->base);
  kinds_get(w, before);
  w->worn = true;
  ok(round_try(w));
  w->worn = false;
  kinds_get(w, after);
  for (uint32_t i = 0; i < COMPACT_KINDS; i++) all += after[i] -= before[i];
  assert_int_equal(all, nr);
  assert_int_equal(after[COMPACT_MAJOR] + after[COMPACT_SPLIT], nr);
  assert_int_equal(atomic_load(&stats->worn), worn + nr);
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

// What has been paid for: no less than the merge would write, and than what is worth a round.
static void test_worn_due(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 40);
  w.c.build.max_pages = 2048;
  w.value = 400;
  worn_ok(&w, 0, NULL);  // not even a table
  put_range(&w, 0, w.k.nr, 1, false);
  round_ok(&w, NULL);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  wear(&w, 0);  // one run has nothing to be merged with
  assert_false(compact_worn(remix_of(&w, 0)));
  worn_ok(&w, 0, NULL);
  put_range(&w, 0, w.k.nr, 9, false);
  round_ok(&w, NULL);
  struct remix *x = remix_of(&w, 0);
  const uint64_t pages = pages_of(&w, 0);
  assert_true(pages > COMPACT_JUMPS_MIN);
  atomic_store(&x->jumps, 0);  // what was looked at has been paid for
  atomic_store(&x->jumps_due, 0);
  remix_jumped(x, pages - 1);
  assert_false(compact_worn(x));
  assert_int_equal(atomic_load(&x->jumps_due), pages);
  worn_ok(&w, 0, NULL);
  assert_int_equal(jumps_of(&w, 0), pages - 1);
  remix_jumped(x, 1);
  assert_true(compact_worn(x));
  worn_ok(&w, 1, NULL);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  world_fini(&w);

  world_init(&w, 3000, 0, 41);
  put_range(&w, 0, 800, 1, false);
  round_ok(&w, NULL);
  put_range(&w, 3, 800, 20, true);
  round_ok(&w, NULL);
  assert_true(pages_of(&w, 0) < COMPACT_JUMPS_MIN);
  atomic_store(&remix_of(&w, 0)->jumps, 0);
  remix_jumped(remix_of(&w, 0), COMPACT_JUMPS_MIN - 1);
  worn_ok(&w, 0, NULL);
  remix_jumped(remix_of(&w, 0), 1);
  worn_ok(&w, 1, NULL);
  // new data that becomes one more run takes nothing of what has been paid
  put_range(&w, 3, 800, 20, false);
  round_ok(&w, NULL);
  remix_jumped(remix_of(&w, 0), COMPACT_JUMPS_MIN);
  put_range(&w, 5, 800, 20, false);
  round_ok(&w, NULL);
  assert_true(jumps_of(&w, 0) >= COMPACT_JUMPS_MIN);
  worn_ok(&w, 1, NULL);
  assert_true(jumps_of(&w, 0) < COMPACT_JUMPS_MIN);
  world_fini(&w);
}

// The many small runs first: a large old one only when there is no better use of the same bytes.
static void test_worn_some(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 3000, 0, 42);
  const uint32_t n = keys_for(&w, 0.85);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  for (uint32_t r = 0; r < 5; r++) {
    put_range(&w, r, n, 40, r == 3);
    if (r) put_range(&w, 0, n, 40, false);  // old versions
    round_ok(&w, NULL);
  }
  struct sst *const oldest = remix_of(&w, 0)->runs[0];
  assert_int_equal(remix_of(&w, 0)->nr_runs, 6);
  const uint64_t tombs = tombs_of(&w, 0), written = atomic_load(&w.c.stats.table_bytes);
  assert_true(tombs > 0);
  wear(&w, 0);
  worn_ok(&w, 1, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 2);
  assert_ptr_equal(remix_of(&w, 0)->runs[0], oldest);
  assert_int_equal(tombs_of(&w, 0), tombs);  // they hide what is below
  assert_true(atomic_load(&w.c.stats.table_bytes) - written < oldest->data_size / 2);
  assert_true(remix_of(&w, 0)->nr_entries > remix_of(&w, 0)->nr_keys);
  // paid for anew, all of it, and nothing is left to hide
  worn_ok(&w, 0, NULL);
  wear(&w, 0);
  worn_ok(&w, 1, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  assert_int_equal(tombs_of(&w, 0), 0);
  assert_int_equal(remix_of(&w, 0)->nr_entries, remix_of(&w, 0)->nr_keys);
  wear(&w, 0);
  worn_ok(&w, 0, NULL);
  // all of it deleted: the merge leaves nothing
  w.c.build.max_pages = 10 * TABLE;  // as much garbage as that would be merged at once
  put_range(&w, 0, n, 1, true);
  round_ok(&w, NULL);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 2);
  wear(&w, 0);
  worn_ok(&w, 1, NULL);
  assert_null(remix_of(&w, 0));
  worn_ok(&w, 0, NULL);
  world_fini(&w);
}

// Tables that lie beside each other are read like one: nothing is gained by merging them, nor by merging one of them alone with what lies above.
static void test_worn_levels(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 12000, 0, 43);
  put_range(&w, 0, keys_for(&w, 1.6), 1, false);
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_parts, 1);
  struct remix *x = remix_of(&w, 0);
  assert_int_equal(x->nr_runs, 2);
  assert_true(kv_cmp(x->runs[0]->max, x->runs[1]->min) < 0);
  wear(&w, 0);
  assert_false(compact_worn(x));
  worn_ok(&w, 0, NULL);
  // one above them both
  put_range(&w, 0, keys_for(&w, 1.6), 30, true);
  round_ok(&w, NULL);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 3);
  wear(&w, 0);
  worn_ok(&w, 1, kinds);
  x = remix_of(&w, 0);
  assert_int_equal(x->nr_runs, 2);
  assert_true(kv_cmp(x->runs[0]->max, x->runs[1]->min) < 0);
  assert_int_equal(tombs_of(&w, 0), 0);
  // two above them: these become one, and the others stay
  struct sst *const low = x->runs[0], *const high = x->runs[1];
  for (uint32_t r = 0; r < 2; r++) {
    put_range(&w, r, keys_for(&w, 1.6), 30, false);
    round_ok(&w, NULL);
  }
  wear(&w, 0);
  worn_ok(&w, 1, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  x = remix_of(&w, 0);
  assert_int_equal(x->nr_runs, 3);
  assert_ptr_equal(x->runs[0], low);
  assert_ptr_equal(x->runs[1], high);
  // small ones that touch at one key are not beside each other
  put(&w, 5, false);
  put(&w, 9, false);
  round_ok(&w, NULL);
  put(&w, 1, false);
  put(&w, 5, true);
  round_ok(&w, NULL);
  wear(&w, 0);
  worn_ok(&w, 1, NULL);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 4);
  world_fini(&w);

  // nor are three of which the outer ones are of the same keys
  world_init(&w, 3000, 0, 50);
  for (uint32_t r = 0; r < 3; r++) {
    put_range(&w, r == 1 ? 2000 : 1000, r == 1 ? 2100 : 1100, 1 + r, false);
    round_ok(&w, NULL);
    wear(&w, 0);
    worn_ok(&w, r == 2, NULL);
  }
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  world_fini(&w);
}

// All of a partition, which is more than one should hold.
static void test_worn_split(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 12000, 0, 44);
  const uint32_t n = keys_for(&w, 6);
  for (uint32_t r = 0; r < 7; r++) {
    put_range(&w, r, n, 7, false);
    if (r) put_range(&w, 0, 200, 1, r % 2);
    round_ok(&w, NULL);
  }
  assert_int_equal(w.base->nr_parts, 1);
  assert_true(remix_of(&w, 0)->nr_runs >= 7);
  wear(&w, 0);
  worn_ok(&w, 1, kinds);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  assert_true(w.base->nr_parts >= 3 && w.base->nr_parts <= 4);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) {
    assert_true(remix_of(&w, i)->nr_runs <= COMPACT_PART_TABLES + 1);
    assert_int_equal(remix_of(&w, i)->nr_entries, remix_of(&w, i)->nr_keys);
  }
  wear_all(&w);
  worn_ok(&w, 0, NULL);
  world_fini(&w);
}

// As many at a time as there are workers; the others stay as they are, and due.
static void test_worn_workers(void **state) {
  (void)state;
  for (uint32_t threads = 0; threads < 3; threads++) {
    struct world w;
    world_init(&w, 12000, threads, 45);
    three_parts(&w);
    put_range(&w, 1, keys_for(&w, 5.4), 25, true);
    round_ok(&w, NULL);
    const uint32_t parts = w.base->nr_parts;
    wear_all(&w);
    for (uint32_t left = due_of(&w), each = threads ? threads : 1, nr; left; left -= nr) {
      assert_int_equal(due_of(&w), left);
      nr = left < each ? left : each;
      worn_ok(&w, nr, NULL);
    }
    assert_int_equal(atomic_load(&w.c.stats.worn), parts);
    worn_ok(&w, 0, NULL);
    world_fini(&w);
  }
}

// The n-th file that is opened makes the round more urgent that is asked for then.
static struct world *yield_world;
static _Atomic int64_t yield_left;

static int yield_open(struct env *e, const char *path, unsigned flags) {
  if (atomic_fetch_sub(&yield_left, 1) == 1) atomic_store(&yield_world->c.yield, true);
  return place_open(e, path, flags);
}

static void test_worn_yield(void **state) {
  (void)state;
  struct world w;
  uint32_t given_up = 0;
  world_init(&w, 8000, 0, 46);
  const uint32_t n = keys_for(&w, 3);
  for (uint32_t r = 0; r < 3; r++) {
    put_range(&w, r, n, 3, false);
    round_ok(&w, NULL);
  }
  wear(&w, 0);
  atomic_store(&w.c.yield, true);
  w.worn = true;
  assert_int_equal(round_try(&w), REMIXDB_ABORTED);
  assert_null(w.next);
  assert_true(w.error.msg[0] != 0);
  assert_int_equal(jumps_of(&w, 0), 0);
  expect_files(&w, w.base);
  expect_contents(&w, w.base, w.disk);
  worn_ok(&w, 0, NULL);  // to be paid for again, whether it is still urgent
  atomic_store(&w.c.yield, false);
  worn_ok(&w, 0, NULL);
  // wherever it is told to: it leaves nothing, or it is as good as done
  yield_world = &w;
  w.p.ops.open = yield_open;
  for (int64_t nth = 1;; nth++) {
    wear(&w, 0);
    atomic_store(&w.c.yield, false);
    atomic_store(&yield_left, nth);
    w.worn = true;
    const enum remixdb_status s = round_try(&w);
    if (s == REMIXDB_OK) {
      compact_retire(w.next, w.base);
      version_unref(w.next);
    } else {
      assert_int_equal(s, REMIXDB_ABORTED);
      assert_null(w.next);
      given_up++;
    }
    expect_files(&w, w.base);
    if (!atomic_load(&w.c.yield)) break;
  }
  w.p.ops.open = place_open;
  assert_true(given_up >= 3);
  assert_int_equal(atomic_load(&w.c.stats.failed), 0);
  expect_contents(&w, w.base, w.disk);
  // new data is more urgent than anything
  atomic_store(&w.c.yield, true);
  w.worn = false;
  put_range(&w, 1, n, 3, true);
  round_ok(&w, NULL);
  atomic_store(&w.c.yield, false);
  wear_all(&w);
  worn_ok(&w, 1, NULL);
  world_fini(&w);
}

// Many rounds of both kinds, in threads, while a reader goes over what is there.
static void test_worn_threads(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 11000, 3, 47);
  put_range(&w, 0, keys_for(&w, 8), 1, false);
  round_ok(&w, NULL);
  uint64_t rng = 1;
  for (uint32_t r = 0; r < 6; r++) {
    for (uint32_t i = 0; i < 500; i++) put(&w, (uint32_t)(rng_next(&rng) % w.k.nr), i % 9 == 0);
    round_ok(&w, NULL);
    wear_all(&w);
    w.worn = true;
    round_begin(&w);
    expect_contents(&w, w.base, w.disk);
    ok(round_end(&w));
    w.worn = false;
    assert_non_null(w.next);
    round_install(&w);
  }
  assert_true(atomic_load(&w.c.stats.worn) >= 12);
  world_fini(&w);
}

// ---- young views

#define YOUNG_TABLE (8 * TABLE)  // pages
#define YOUNG_VALUE 1000u        // so that a few records fill a page

// One partition of so many tables of every second key, and a young view begins where `from` times the new data is there. Returns a key behind them.
static uint32_t young_init(struct world *w, uint32_t keys, double tables, uint32_t from, uint64_t seed) {
  world_init(w, keys, 0, seed);
  w->c.build.max_pages = YOUNG_TABLE;
  w->value = YOUNG_VALUE;
  const uint32_t n = keys_for(w, 2 * tables);
  put_range(w, 0, n, 2, false);
  round_ok(w, NULL);
  assert_int_equal(w->base->nr_parts, 1);
  w->c.young_from = from;
  return n;
}

// A round of `nr` keys spread over the first n, from `at` on.
static void young_round(struct world *w, uint32_t n, uint32_t at, uint32_t nr, bool tomb, uint64_t *kinds) {
  const uint32_t every = (n - at) / nr;
  for (uint32_t i = 0; i < nr; i++) put(w, at + i * every, tomb);
  round_ok(w, kinds);
}

static void test_young_begins(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  // so many that all limits are met exactly: 992, of which a 32nd and one make 1024
  const uint32_t n = 2 * 960;
  world_init(&w, 9000, 0, 60);
  w.value = YOUNG_VALUE;
  w.c.build.max_pages = 2 * YOUNG_TABLE;
  put_range(&w, 0, n, 2, false);
  round_ok(&w, NULL);
  // none without being told to
  young_round(&w, n, 1, 32, false, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_null(young_of(&w, 0));
  // nor where a little too much comes
  w.c.young_from = COMPACT_YOUNG_FROM;
  const uint32_t most = (uint32_t)(remix_of(&w, 0)->nr_entries / COMPACT_YOUNG_FROM);
  young_round(&w, n, 0, most + 1, false, kinds);
  assert_null(young_of(&w, 0));
  assert_int_equal(atomic_load(&w.c.stats.young), 0);
  struct remix *const old = remix_of(&w, 0);
  assert_int_equal(old->nr_entries, COMPACT_YOUNG_FROM * COMPACT_YOUNG_FROM);
  remix_jumped(old, 700);
  const uint64_t written = atomic_load(&w.c.stats.remix_bytes);
  young_round(&w, n, 1, (uint32_t)(old->nr_entries / COMPACT_YOUNG_FROM), true, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_ptr_equal(remix_of(&w, 0), old);
  assert_non_null(young_of(&w, 0));
  assert_int_equal(young_of(&w, 0)->nr_runs, 1);
  assert_int_equal(atomic_load(&w.c.stats.young), 1);
  assert_int_equal(atomic_load(&w.c.stats.remix_bytes) - written, young_of(&w, 0)->file_size);
  assert_true(atomic_load(&w.c.work) < old->nr_entries / 4);  // what is not touched is no work
  assert_true(tombs_of(&w, 0) > 0);  // they hide what is below
  // goes on with more at a time, up to its share
  remix_jumped(young_of(&w, 0), 5);
  const uint64_t jumps = atomic_load(&young_of(&w, 0)->jumps), room = old->nr_entries / COMPACT_YOUNG_SHARE - young_of(&w, 0)->nr_entries;
  assert_true(room > most);
  young_round(&w, n, 0, (uint32_t)room, false, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_ptr_equal(remix_of(&w, 0), old);
  assert_int_equal(young_of(&w, 0)->nr_runs, 2);
  assert_int_equal(young_of(&w, 0)->nr_entries, old->nr_entries / COMPACT_YOUNG_SHARE);
  assert_true(atomic_load(&young_of(&w, 0)->jumps) >= jumps);
  assert_int_equal(atomic_load(&w.c.stats.young), 2);
  // nothing new, nothing done
  struct part *const part = w.base->parts[0];
  part_ref(part);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_KEEP, 1);
  assert_ptr_equal(w.base->parts[0], part);
  part_unref(part);
  // and one more key ends it: a run of the other view, which keeps its own
  const uint32_t runs = old->nr_runs;
  struct sst *was[REMIX_RUNS_MAX];
  memcpy(was, old->runs, runs * sizeof(was[0]));
  const uint64_t paid = atomic_load(&old->jumps), tombs = tombs_of(&w, 0), read = atomic_load(&w.c.stats.read_bytes);
  uint64_t data = 0;
  for (uint32_t r = 0; r < 2; r++) data += young_of(&w, 0)->runs[r]->data_size;
  put(&w, 1, true);  // is a tombstone already
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_null(young_of(&w, 0));
  assert_int_equal(w.base->nr_young, 0);
  assert_int_equal(remix_of(&w, 0)->nr_runs, runs + 1);
  for (uint32_t r = 0; r < runs; r++) assert_ptr_equal(remix_of(&w, 0)->runs[r], was[r]);
  assert_true(tombs_of(&w, 0) > 0 && tombs_of(&w, 0) <= tombs);
  assert_int_equal(atomic_load(&w.c.stats.young), 2);
  assert_int_equal(atomic_load(&w.c.stats.read_bytes) - read, data);
  assert_true(paid >= 700 && atomic_load(&remix_of(&w, 0)->jumps) >= paid);  // no run of it is gone
  assert_int_equal(w.went[BEGUN], 1);
  assert_int_equal(w.went[WENT_ON], 1);
  assert_int_equal(w.went[JOINED], 1);
  world_fini(&w);
}

// Little comes again and again: the runs of the young view are merged with each other, and the other view is not touched.
static void test_young_merged(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  const uint32_t n = young_init(&w, 9000, 1.7, 8, 61);
  struct remix *const old = remix_of(&w, 0);
  const uint32_t limit = compact_run_limit(&w.c, w.base->parts[0], 0);
  uint32_t rounds = 0;
  for (; part_runs(w.base->parts[0]) < limit; rounds++) {
    young_round(&w, n, rounds, 3 + rounds % 3, rounds % 4 == 3, kinds);
    expect_kind(kinds, COMPACT_MINOR, 1);
    assert_int_equal(young_of(&w, 0)->nr_runs, rounds + 1);
  }
  const uint64_t tombs = tombs_of(&w, 0), written = atomic_load(&w.c.stats.remix_bytes), young = atomic_load(&w.c.stats.young);
  assert_true(tombs > 0);
  remix_jumped(young_of(&w, 0), 100000);
  young_round(&w, n, 1, 4, false, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_ptr_equal(remix_of(&w, 0), old);
  assert_non_null(young_of(&w, 0));
  assert_true(young_of(&w, 0)->nr_runs < rounds);
  assert_true(tombs_of(&w, 0) > 0);
  assert_true(atomic_load(&w.c.stats.remix_bytes) - written < old->file_size);
  assert_int_equal(atomic_load(&w.c.stats.young), young + 1);
  assert_true(atomic_load(&young_of(&w, 0)->jumps) < 100000);  // was paid for runs that are gone
  assert_int_equal(w.went[MERGED], 1);
  world_fini(&w);
}

// The first young run is large for the view, so that a merge leaves it. With more new data than the view may have that run is merged all the same, as the view ends.
static void test_young_merged_some(void **state) {
  (void)state;
  for (uint32_t over = 0; over < 2; over++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    const uint32_t n = young_init(&w, 9000, 1.7, 8, 62);
    struct remix *const old = remix_of(&w, 0);
    const uint32_t old_nr = old->nr_runs;
    young_round(&w, n, 1, (uint32_t)old->nr_entries / 11, false, kinds);
    struct sst *const first = young_of(&w, 0)->runs[0];
    for (uint32_t r = 0; part_runs(w.base->parts[0]) < compact_run_limit(&w.c, w.base->parts[0], 0); r++) young_round(&w, n, r, 2, r % 2, NULL);
    assert_true(tombs_of(&w, 0) > 0);
    const uint32_t runs = young_of(&w, 0)->nr_runs;
    put(&w, 30, true);
    young_round(&w, n, 31, over ? 45 : 2, false, kinds);
    expect_kind(kinds, COMPACT_MAJOR, 1);
    assert_true(tombs_of(&w, 0) > 0);
    if (over) {
      assert_null(young_of(&w, 0));
      assert_int_equal(remix_of(&w, 0)->nr_runs, old_nr + 1);
      assert_int_equal(w.went[JOINED], 1);
    } else {
      assert_ptr_equal(remix_of(&w, 0), old);
      assert_true(young_of(&w, 0)->nr_runs > 1 && young_of(&w, 0)->nr_runs <= runs);
      assert_ptr_equal(young_of(&w, 0)->runs[0], first);
    }
    world_fini(&w);
  }
}

// Too many runs, of which few are young: the merge takes these and some of the other view's, and there is one view again.
static void test_young_deeper(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  const uint32_t n = young_init(&w, 9000, 0.8, 0, 63);
  struct sst *const oldest = remix_of(&w, 0)->runs[0];
  const uint32_t limit = compact_run_limit(&w.c, w.base->parts[0], 0);
  for (uint32_t r = 0; r < limit - 4; r++) young_round(&w, n, r, 5, r % 3 == 0, NULL);
  assert_null(young_of(&w, 0));
  w.c.young_from = 8;
  while (part_runs(w.base->parts[0]) < limit) young_round(&w, n, 7, 6, false, NULL);
  assert_int_equal(young_of(&w, 0)->nr_runs, 3);
  const uint64_t read = atomic_load(&w.c.stats.read_bytes);
  uint64_t data = 0;
  for (uint32_t r = 1; r < limit; r++) data += part_run(w.base->parts[0], r)->data_size;
  const uint64_t young = atomic_load(&w.c.stats.young);
  put(&w, 8, true);
  young_round(&w, n, 9, 6, false, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_null(young_of(&w, 0));
  assert_int_equal(remix_of(&w, 0)->nr_runs, 2);
  assert_ptr_equal(remix_of(&w, 0)->runs[0], oldest);
  assert_true(tombs_of(&w, 0) > 0);
  assert_int_equal(atomic_load(&w.c.stats.read_bytes) - read, data);  // each of these once
  assert_int_equal(atomic_load(&w.c.stats.young), young);
  assert_int_equal(w.went[DEEPER], 1);
  world_fini(&w);
}

// All runs of both views are merged: old versions and tombstones of either go, and no key comes back.
static void test_young_all(void **state) {
  (void)state;
  for (uint32_t large = 0; large < 2; large++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    const uint32_t n = young_init(&w, 9000, large ? 1.7 : 0.4, 1, 64);
    if (large) {  // as much again
      w.c.memtable_size = 1 << 26;
      put_range(&w, n, 2 * n, 2, false);
      round_ok(&w, NULL);
      assert_int_equal(w.base->nr_parts, 1);
    }
    uint32_t r = 0;
    for (; r < 3; r++) young_round(&w, n, r, 6, r % 2, NULL);
    assert_non_null(young_of(&w, 0));
    assert_true(tombs_of(&w, 0) > 0);
    static struct compact_whole whole;
    whole = (struct compact_whole){.budget = UINT64_MAX};
    w.whole = &whole;
    round_ok(&w, kinds);
    expect_kind(kinds, large ? COMPACT_SPLIT : COMPACT_MAJOR, 1);
    assert_int_equal(w.went[ALL_TAKEN], 1);
    assert_int_equal(w.base->nr_parts > 1, large);
    for (uint32_t i = 0; i < w.base->nr_parts; i++) {
      assert_null(young_of(&w, i));
      assert_int_equal(tombs_of(&w, i), 0);
      assert_int_equal(remix_of(&w, i)->nr_entries, remix_of(&w, i)->nr_keys);
    }
    // all deleted: what is in the young view alone goes too
    w.whole = NULL;
    for (r = 0; r < 3; r++) young_round(&w, n, 3 * r, 9, false, NULL);
    put_range(&w, 0, w.k.nr, 1, true);
    w.whole = &whole;
    whole = (struct compact_whole){.budget = UINT64_MAX};
    round_ok(&w, NULL);
    assert_int_equal(w.base->nr_parts, 1);
    assert_null(remix_of(&w, 0));
    world_fini(&w);
  }
}

// Most of the partition is old versions, by what both views know: all of it is merged, though the new data would fit the young one.
static void test_young_garbage(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  const uint32_t n = young_init(&w, 9000, 0.9, 0, 65);
  w.c.build.max_pages = 4 * YOUNG_TABLE;  // garbage is not worth a merge yet
  put_range(&w, 0, n, 2, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  w.c.young_from = 1;
  young_round(&w, n, 1, 10, false, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_non_null(young_of(&w, 0));
  w.c.build.max_pages = YOUNG_TABLE;
  young_round(&w, n, 3, 4, false, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_null(young_of(&w, 0));
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  assert_int_equal(remix_of(&w, 0)->nr_entries, 14);
  assert_int_equal(tombs_of(&w, 0), 0);
  world_fini(&w);
}

// The largest key is one of the young view: what is behind that is behind the partition, and nothing else is.
static void test_young_append(void **state) {
  (void)state;
  for (uint32_t before = 0; before < 2; before++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    const uint32_t n = young_init(&w, 9000, 1.3, 8, 66), n2 = n + 2000;
    put_range(&w, n, n + 20, 2, false);
    put(&w, 4, true);
    round_ok(&w, kinds);
    expect_kind(kinds, COMPACT_MINOR, 1);
    assert_non_null(young_of(&w, 0));
    struct part *const first = w.base->parts[0];
    struct remix *const old = first->remix;
    if (!before) part_ref(first);
    if (before) put_range(&w, n + 1, n + 19, 3, false);
    put_range(&w, n + 19, n2, 1, false);
    for (uint32_t a = n + 19; a < n2; a += 7) put(&w, a, true);
    round_ok(&w, kinds);
    expect_kind(kinds, COMPACT_SPLIT, 1);
    expect_kind(kinds, COMPACT_MINOR, before);
    assert_ptr_equal(remix_of(&w, 0), old);
    if (before) assert_int_equal(young_of(&w, 0)->nr_runs, 2);
    else {
      assert_ptr_equal(w.base->parts[0], first);
      part_unref(first);
    }
    assert_true(w.base->nr_parts >= 2 && w.base->nr_young == 1);
    assert_true(first_key_of(&w, 1) > n + 18 && first_key_of(&w, 1) <= n + 21);
    for (uint32_t i = 1; i < w.base->nr_parts; i++) assert_int_equal(tombs_of(&w, i), 0);
    // tombstones behind the end make nothing
    const uint32_t parts = w.base->nr_parts;
    w.c.memtable_size = 1 << 10;
    put_range(&w, n2, n2 + 100, 1, true);
    round_ok(&w, kinds);
    assert_int_equal(w.base->nr_parts, parts);
    assert_int_equal(w.base->nr_young, 1);
    world_fini(&w);
  }
}

// It has many runs, young ones counted: it is full.
static void test_young_append_runs(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  const uint32_t n = young_init(&w, 9000, 0.6, 8, 67);
  for (uint32_t r = 1; r < COMPACT_APPEND_RUNS; r++) young_round(&w, n, r, 4, false, NULL);
  assert_int_equal(young_of(&w, 0)->nr_runs, COMPACT_APPEND_RUNS - 1);
  struct part *const first = w.base->parts[0];
  part_ref(first);
  w.c.memtable_size = 1 << 10;
  put_range(&w, n + 1, n + 300, 1, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  assert_ptr_equal(w.base->parts[0], first);
  part_unref(first);
  assert_int_equal(w.base->nr_parts, 2);
  world_fini(&w);
}

// What is handed back leaves both views as they are; where a young view makes the new data cheap it is not.
static void test_young_abort(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  const uint32_t n = young_init(&w, 9000, 1.7, 8, 68);
  young_round(&w, n, 1, 5, true, NULL);
  w.allow_abort = true;
  struct part *const part = w.base->parts[0];
  part_ref(part);
  put(&w, 5, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  assert_ptr_equal(w.base->parts[0], part);
  assert_int_equal(atomic_load(&w.c.stats.young), 1);
  assert_int_equal(w.back[5], 1);
  // too much for the other view's REMIX to be written, but not for the young one's
  uint64_t bytes = 0;
  uint32_t nr = 0;
  for (; bytes <= part->young->file_size / 2; nr++) bytes += kv_rec_size(w.k.keys[7 * nr].len, 0, true) + 2;
  assert_true(bytes * 2 < part->remix->file_size);
  part_unref(part);
  for (uint32_t i = 0; i < nr; i++) put(&w, 7 * i, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_int_equal(w.nr_back, 0);
  assert_int_equal(young_of(&w, 0)->nr_runs, 2);
  // a merge within the young view that is given back
  w.allow_abort = false;
  for (uint32_t r = 0; part_runs(w.base->parts[0]) < compact_run_limit(&w.c, w.base->parts[0], 0); r++) young_round(&w, n, r, 1, false, NULL);
  w.allow_abort = true;
  struct part *const again = w.base->parts[0];
  part_ref(again);
  const uint64_t young = atomic_load(&w.c.stats.young);
  put(&w, 11, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  assert_ptr_equal(w.base->parts[0], again);
  assert_int_equal(atomic_load(&w.c.stats.young), young);
  part_unref(again);
  world_fini(&w);
}

// A compaction of all there is leaves no young view in what it has been through, and those behind it as they are.
static void test_young_whole(void **state) {
  (void)state;
  struct world w;
  static struct compact_whole whole;
  world_init(&w, 12000, 0, 69);
  three_parts(&w);
  w.c.memtable_size = 1 << 24;  // nothing is behind a partition
  put_range(&w, 0, w.k.nr, 40, true);
  round_ok(&w, NULL);
  const uint32_t parts = w.base->nr_parts;
  w.c.young_from = 8;
  for (uint32_t i = 0; i < parts; i++)
    if (i != 1) put_range(&w, first_key_of(&w, i) + 1, first_key_of(&w, i) + 9, 2, i % 2);
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_young, parts - 1);
  assert_null(young_of(&w, 1));
  whole = (struct compact_whole){.budget = 1};
  w.whole = &whole;
  struct part *const last = w.base->parts[parts - 1];
  put(&w, first_key_of(&w, 0) + 3, true);
  round_ok(&w, NULL);
  assert_false(whole.end);
  assert_null(young_of(&w, 0));
  assert_ptr_equal(w.base->parts[w.base->nr_parts - 1], last);
  assert_non_null(last->young);
  for (uint32_t rounds = 0; !whole.end; rounds++) {
    assert_true(rounds < 2 * parts);
    round_ok(&w, NULL);
  }
  assert_int_equal(w.base->nr_young, 0);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) {
    assert_int_equal(tombs_of(&w, i), 0);
    assert_int_equal(remix_of(&w, i)->nr_entries, remix_of(&w, i)->nr_keys);
  }
  world_fini(&w);

  // neighbours that become one, one with a young view and one without
  for (uint32_t which = 0; which < 3; which++) {
    world_init(&w, 8000, 0, 70);
    w.c.build.max_pages = TABLE / 4;
    put_range(&w, 0, keys_for(&w, 3), 1, false);
    round_ok(&w, NULL);
    assert_int_equal(w.base->nr_parts, 2);
    w.c.young_from = 8;
    w.c.memtable_size = 1 << 24;
    const uint32_t one = first_key_of(&w, 1);
    if (which != 1) put_range(&w, 1, one, 20, which == 0);
    if (which != 0) put_range(&w, one + 1, keys_for(&w, 3), 20, true);
    round_ok(&w, NULL);
    assert_int_equal(w.base->nr_young, which == 2 ? 2 : 1);
    w.c.build.max_pages = 2 * TABLE;
    whole = (struct compact_whole){.budget = UINT64_MAX};
    w.whole = &whole;
    put(&w, 2, true);
    round_ok(&w, NULL);
    assert_int_equal(w.base->nr_parts, 1);
    assert_null(young_of(&w, 0));
    assert_int_equal(tombs_of(&w, 0), 0);
    world_fini(&w);
  }

  // as few tables as there can be, all of them live as far as either view knows: a young view is a reason all the same
  const uint32_t n = young_init(&w, 8000, 0.85, 8, 71);
  young_round(&w, n, 1, (uint32_t)remix_of(&w, 0)->nr_entries / 9, false, NULL);
  assert_non_null(young_of(&w, 0));
  w.c.build.max_pages = (remix_of(&w, 0)->runs[0]->nr_pages + young_of(&w, 0)->runs[0]->nr_pages) - 1;
  whole = (struct compact_whole){.budget = UINT64_MAX};
  w.whole = &whole;
  round_ok(&w, NULL);
  assert_null(young_of(&w, 0));
  world_fini(&w);
}

// Scans have paid for the young view, for the other one, for both.
static void test_young_worn(void **state) {
  (void)state;
  for (uint32_t which = 1; which < 4; which++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    const uint32_t n = young_init(&w, 9000, 0.8, 0, 72);
    for (uint32_t r = 0; r < 4; r++) young_round(&w, n, r, 9, r % 2, NULL);
    w.c.young_from = 8;
    for (uint32_t r = 0; r < 3; r++) young_round(&w, n, r, 8, r % 2, NULL);
    struct remix *const old = remix_of(&w, 0), *const young = young_of(&w, 0);
    struct sst *was[REMIX_RUNS_MAX];
    memcpy(was, old->runs, old->nr_runs * sizeof(was[0]));
    assert_int_equal(old->nr_runs, 5);
    assert_int_equal(young->nr_runs, 3);
    worn_ok(&w, 0, NULL);
    const uint64_t tombs = tombs_of(&w, 0), of_old = atomic_load(&old->jumps), counted = atomic_load(&w.c.stats.young);
    assert_true(tombs > 0);
    if (which & 1) remix_jumped(young, UINT32_MAX);
    if (which & 2) remix_jumped(old, UINT32_MAX);
    assert_int_equal(compact_worn(young), which & 1);
    assert_int_equal(compact_worn(old), which >> 1);
    worn_ok(&w, 1, kinds);
    expect_kind(kinds, COMPACT_MAJOR, 1);
    assert_null(young_of(&w, 0));
    assert_int_equal(atomic_load(&w.c.stats.young), counted);
    const struct remix *const now = remix_of(&w, 0);
    assert_true(which == 1 ? now->nr_runs == 6 : now->nr_runs >= 2 && now->nr_runs < 5);
    for (uint32_t r = 0; r + 1 < now->nr_runs; r++) assert_ptr_equal(now->runs[r], was[r]);
    assert_true(tombs_of(&w, 0) > 0 && tombs_of(&w, 0) <= tombs);
    // what was paid for the other one is as it was, unless the round was made for it
    assert_true(which == 1 ? atomic_load(&now->jumps) >= of_old : atomic_load(&now->jumps) < UINT32_MAX);
    world_fini(&w);
  }
}

// One run is reason enough for a young view; all of its tables are to be paid for, and no fewer blocks than a round is worth.
static void test_young_worn_due(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 73);
  w.c.build.max_pages = 4096;
  w.value = 3000;
  put(&w, 0, false);
  round_ok(&w, NULL);
  put_range(&w, 0, w.k.nr, 1, true);
  round_ok(&w, NULL);
  w.c.young_from = 8;
  for (uint32_t r = 0; r < 2; r++) {
    put_range(&w, r, 1160, 2, false);
    round_ok(&w, NULL);
  }
  assert_int_equal(young_of(&w, 0)->nr_runs, 2);
  const uint64_t pages = young_of(&w, 0)->runs[0]->nr_pages + young_of(&w, 0)->runs[1]->nr_pages;
  assert_true(pages > COMPACT_JUMPS_MIN);
  atomic_store(&young_of(&w, 0)->jumps, 0);
  remix_jumped(young_of(&w, 0), pages - 1);
  worn_ok(&w, 0, NULL);
  assert_int_equal(atomic_load(&young_of(&w, 0)->jumps_due), pages);
  remix_jumped(young_of(&w, 0), 1);
  worn_ok(&w, 1, NULL);
  assert_null(young_of(&w, 0));
  world_fini(&w);

  const uint32_t n = young_init(&w, 9000, 1.7, 8, 74);
  young_round(&w, n, 1, 40, true, NULL);
  struct remix *x = young_of(&w, 0);
  assert_non_null(x);
  assert_int_equal(x->nr_runs, 1);
  atomic_store(&x->jumps, 0);
  remix_jumped(x, COMPACT_JUMPS_MIN - 1);
  assert_false(compact_worn(x));
  assert_int_equal(atomic_load(&x->jumps_due), COMPACT_JUMPS_MIN);
  worn_ok(&w, 0, NULL);
  assert_ptr_equal(young_of(&w, 0), x);
  remix_jumped(x, 1);
  assert_true(compact_worn(x));
  const uint32_t runs = remix_of(&w, 0)->nr_runs;
  worn_ok(&w, 1, NULL);
  assert_null(young_of(&w, 0));
  assert_int_equal(remix_of(&w, 0)->nr_runs, runs + 1);
  // all that is left after both views are one
  wear(&w, 0);
  worn_ok(&w, 1, NULL);
  assert_int_equal(tombs_of(&w, 0), 0);
  world_fini(&w);
}

// The round takes as many partitions as there are workers, whichever view is worn.
static void test_young_worn_workers(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 2, 75);
  three_parts(&w);
  w.c.young_from = 8;
  w.c.memtable_size = 1 << 24;
  put_range(&w, 1, keys_for(&w, 5.4), 40, true);
  round_ok(&w, NULL);
  const uint32_t parts = w.base->nr_parts;
  assert_int_equal(w.base->nr_young, parts);
  for (uint32_t i = 0; i < parts; i++) remix_jumped(young_of(&w, i), UINT32_MAX);
  for (uint32_t left = parts, nr; left; left -= nr) {
    nr = left < 2 ? left : 2;
    worn_ok(&w, nr, NULL);
    assert_int_equal(w.base->nr_young, left - nr);
  }
  world_fini(&w);
}

// What a version has not that another one has is retired, by views: a REMIX, its own tables, and no one else's.
static void test_young_retire(void **state) {
  (void)state;
  struct world w;
  const uint32_t n = young_init(&w, 9000, 1.7, 8, 76);
  young_round(&w, n, 1, 20, true, NULL);
  struct version *old = w.base;
  struct part *const p = old->parts[0];
  for (uint32_t join = 0; join < 2; join++) {
    for (uint32_t i = 0; i < (join ? p->remix->nr_entries / 8 : 10); i++) put(&w, 3 + i, false);
    ok(round_try(&w));
    assert_int_equal(w.next->parts[0]->young == NULL, join);
    version_ref(old);
    fault_mem_set(1);
    compact_retire(old, w.next);
    assert_true(fault_mem_end());
    assert_false(atomic_load(&p->young->obsolete));
    if (!join) {
      // cannot be installed: what was made goes, what was there does not
      compact_retire(w.next, old);
      version_unref(w.next);
      version_unref(old);
      expect_files(&w, old);
      assert_false(atomic_load(&p->remix->obsolete) || atomic_load(&p->young->obsolete));
      for (uint32_t r = 0; r < part_runs(p); r++) assert_false(atomic_load(&part_run(p, r)->obsolete));
      ok(round_try(&w));
      version_ref(old);
    }
    compact_retire(old, w.next);
    assert_int_equal(atomic_load(&p->remix->obsolete), join);
    assert_true(atomic_load(&p->young->obsolete));
    for (uint32_t r = 0; r < part_runs(p); r++) assert_int_equal(atomic_load(&part_run(p, r)->obsolete), join && r >= part_old_runs(p));
    if (!join) {
      // as nothing else has it: as if the round had not been
      atomic_store(&p->young->obsolete, false);
      compact_retire(w.next, old);
      version_unref(w.next);
      version_unref(old);
      expect_files(&w, old);
      thaw(&w);
      continue;
    }
    version_unref(old);
    for (uint32_t a = 0; a < w.k.nr; a++)
      if (w.fresh[a] != NONE) w.disk[a] = w.fresh[a];
    version_unref(old);
    w.base = w.next;
    expect_files(&w, w.base);
    expect_contents(&w, w.base, w.disk);
  }
  thaw(&w);
  world_fini(&w);
}

// ---- what can fail

// Several partitions of which one gets a little, one many runs, one new data behind it.
static void ready_to_fail(struct world *w, uint64_t seed) {
  world_init(w, 2500, 0, seed);
  w->value = VALUE + 10;
  w->c.build.max_pages = 4;
  w->c.memtable_size = COMPACT_ABORT_SHARE * 400;
  w->allow_abort = true;
  three_parts(w);
  w->allow_abort = false;
  for (uint32_t r = 0; remix_of(w, 1)->nr_runs < compact_run_limit(&w->c, w->base->parts[1], UINT64_MAX); r++) {
    assert_true(r <= COMPACT_RUNS);
    put_range(w, first_key_of(w, 1) + r, first_key_of(w, 2), 30, false);
    round_ok(w, NULL);
  }
  w->allow_abort = true;
  put(w, first_key_of(w, 0) + 3, true);
  put_range(w, first_key_of(w, 1), first_key_of(w, 2), 25, true);
  put_range(w, first_key_of(w, 1) + 1, first_key_of(w, 2), 25, false);
  put_range(w, keys_for(w, 5.4), w->k.nr, 1, false);
}

// The same for a round that merges for scans: some runs of one partition, all of another.
static void ready_to_fail_worn(struct world *w, uint64_t seed) {
  world_init(w, 2500, 2, seed);
  w->value = VALUE + 10;
  w->c.build.max_pages = 4;
  three_parts(w);
  for (uint32_t r = 0; r < 4; r++) {
    put_range(w, first_key_of(w, 1) + r, first_key_of(w, 2), 30, r % 2);
    if (r == 0) put_range(w, 0, first_key_of(w, 1), 3, true);
    round_ok(w, NULL);
  }
  w->worn = true;
}

// One young view begins, one goes on, one has its runs merged within it, one is joined, and new data comes behind one.
static void ready_to_fail_young(struct world *w, uint64_t seed) {
  world_init(w, 6000, 0, seed);
  w->value = 200;
  w->c.build.max_pages = 16;
  w->c.memtable_size = COMPACT_ABORT_SHARE * 4000;
  put_range(w, 0, keys_for(w, 16), 2, false);
  round_ok(w, NULL);
  assert_true(w->base->nr_parts >= 4);
  w->c.young_from = 8;
  const uint32_t parts = w->base->nr_parts, merged = first_key_of(w, 1), joined = first_key_of(w, 2), on = first_key_of(w, 3);
  for (uint32_t r = 0; part_runs(w->base->parts[1]) < compact_run_limit(&w->c, w->base->parts[1], 0); r++) {
    put_range(w, merged + r, merged + r + 2, 1, r % 2);
    if (r < 2) put_range(w, joined + r, joined + 30, 3, r % 2);
    if (r < 2) put_range(w, on + r, on + 10, 3, r % 2);
    round_ok(w, NULL);
  }
  assert_int_equal(w->base->nr_parts, parts);
  put_range(w, 3, 9, 2, true);
  put_range(w, merged, merged + 40, 2, false);
  put(w, merged + 1, true);
  put_range(w, joined + 1, on, 2, true);
  put_range(w, on, on + 12, 5, true);
  put_range(w, w->k.nr - 500, w->k.nr, 1, false);
}

static enum remixdb_status round_again(struct world *w) {
  for (uint32_t i = 0; i < 2 && w->worn; i++) {
    wear(w, i);
    if (young_of(w, i)) remix_jumped(young_of(w, i), UINT32_MAX);
  }
  return round_try(w);
}

// After a failure there is what there was, and no more.
static void expect_failed(struct world *w, enum remixdb_status s, bool contents) {
  if (w->status != s) fail_msg("status %d: %s", w->status, w->error.msg);
  assert_null(w->next);
  assert_true(w->error.msg[0] != 0);
  assert_false(w->back_wrong);
  expect_files(w, w->base);
  if (contents) expect_contents(w, w->base, w->disk);
}

// Every allocation of a round fails in turn, or each of so many; then there is no more that could.
static void no_memory(struct world *w, int64_t step) {
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

static void test_no_memory(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  for (uint32_t compressed = 0; compressed < 2; compressed++) {
    ready_to_fail(&w, 30);
    w.c.build.compression = compressed ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
    w.c.build.ckeys = !compressed;
    no_memory(&w, compressed ? 3 : 1);
    round_ok(&w, kinds);
    expect_kind(kinds, COMPACT_ABORT, 1);
    world_fini(&w);
  }
}

// Both partitions are merged as well as if nothing had failed.
static void expect_worn_after(struct world *w) {
  uint64_t kinds[COMPACT_KINDS];
  struct sst *const low = remix_of(w, 1)->runs[0];
  wear(w, 0);
  wear(w, 1);
  worn_ok(w, 2, kinds);
  assert_ptr_equal(remix_of(w, 1)->runs[0], low);
  assert_true(tombs_of(w, 1) > 0);
  assert_int_equal(tombs_of(w, 0), 0);
  world_fini(w);
}

static void test_worn_no_memory(void **state) {
  (void)state;
  struct world w;
  ready_to_fail_worn(&w, 48);
  no_memory(&w, 1);
  expect_worn_after(&w);
}

// Every call of a round fails in turn.
static void io_fails(struct world *w) {
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

static void test_io_fails(void **state) {
  (void)state;
  struct world w;
  ready_to_fail(&w, 31);
  io_fails(&w);
  uint64_t done[COMPACT_KINDS];
  round_ok(&w, done);
  expect_kind(done, COMPACT_ABORT, 1);
  assert_true(done[COMPACT_MAJOR] >= 1 && done[COMPACT_MINOR] + done[COMPACT_SPLIT] >= 1);
  world_fini(&w);
}

static void expect_young_after(struct world *w) {
  uint64_t kinds[COMPACT_KINDS];
  memset(w->went, 0, sizeof(w->went));
  round_ok(w, kinds);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  for (enum went i = BEGUN; i <= JOINED; i++)
    if (w->went[i] == 0) fail_msg("nothing of kind %d", i);
  world_fini(w);
}

static void test_young_no_memory(void **state) {
  (void)state;
  struct world w;
  ready_to_fail_young(&w, 78);
  no_memory(&w, 1);
  expect_young_after(&w);
}

static void test_young_io_fails(void **state) {
  (void)state;
  struct world w;
  ready_to_fail_young(&w, 78);
  io_fails(&w);
  expect_young_after(&w);
}

// A merge for scans of a young view, and of both views.
static void test_young_worn_fails(void **state) {
  (void)state;
  struct world w;
  ready_to_fail_worn(&w, 79);
  w.worn = false;
  w.c.young_from = 4;
  put_range(&w, first_key_of(&w, 0) + 1, first_key_of(&w, 0) + 9, 3, true);
  put_range(&w, first_key_of(&w, 1) + 1, first_key_of(&w, 1) + 9, 3, true);
  round_ok(&w, NULL);
  assert_true(young_of(&w, 0) && young_of(&w, 1));
  w.worn = true;
  no_memory(&w, 1);
  io_fails(&w);
  (void)round_again(&w);
  round_install(&w);
  assert_true(!young_of(&w, 0) && !young_of(&w, 1));
  world_fini(&w);
}

static void test_worn_io_fails(void **state) {
  (void)state;
  struct world w;
  ready_to_fail_worn(&w, 49);
  io_fails(&w);
  expect_worn_after(&w);
}

// A table that is damaged fails the round that has to read it, and no data is lost by it.
static void test_damaged(void **state) {
  (void)state;
  struct world w;
  ready_to_fail(&w, 32);
  const struct remix *x = remix_of(&w, 1);
  struct sst *t = x->runs[x->nr_runs - 1];
  FILE *f = fopen(t->path, "r+b");
  assert_non_null(f);
  assert_int_equal(fseek(f, 60, SEEK_SET), 0);
  uint8_t was[8];
  assert_int_equal(fread(was, 1, 8, f), 8);
  assert_int_equal(fseek(f, 60, SEEK_SET), 0);
  assert_int_equal(fwrite("damaged!", 1, 8, f), 8);
  assert_int_equal(fflush(f), 0);
  assert_int_equal(round_try(&w), REMIXDB_CORRUPT);
  assert_non_null(strstr(w.error.msg, t->path));
  expect_failed(&w, REMIXDB_CORRUPT, false);
  assert_int_equal(fseek(f, 60, SEEK_SET), 0);
  assert_int_equal(fwrite(was, 1, 8, f), 8);
  assert_int_equal(fclose(f), 0);
  round_ok(&w, NULL);
  world_fini(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keep),        cmocka_unit_test(test_first),         cmocka_unit_test(test_minor),
      cmocka_unit_test(test_major_some),  cmocka_unit_test(test_major_all),     cmocka_unit_test(test_major_garbage),
      cmocka_unit_test(test_split),       cmocka_unit_test(test_append),       cmocka_unit_test(test_append_over),
      cmocka_unit_test(test_empty_parts),  cmocka_unit_test(test_whole),         cmocka_unit_test(test_abort),
      cmocka_unit_test(test_abort_fails), cmocka_unit_test(test_rounds),        cmocka_unit_test(test_threads),
      cmocka_unit_test(test_compressed),  cmocka_unit_test(test_split_soon),    cmocka_unit_test(test_low_estimate),  cmocka_unit_test(test_progress),
      cmocka_unit_test(test_retire),      cmocka_unit_test(test_no_memory),     cmocka_unit_test(test_io_fails),
      cmocka_unit_test(test_damaged),     cmocka_unit_test(test_worn_due),      cmocka_unit_test(test_worn_some),
      cmocka_unit_test(test_worn_levels), cmocka_unit_test(test_worn_split),    cmocka_unit_test(test_worn_workers),
      cmocka_unit_test(test_worn_yield),  cmocka_unit_test(test_worn_threads),  cmocka_unit_test(test_worn_no_memory),
      cmocka_unit_test(test_worn_io_fails),
      cmocka_unit_test(test_young_no_memory),
      cmocka_unit_test(test_young_io_fails),
      cmocka_unit_test(test_young_worn_fails),
      cmocka_unit_test(test_young_begins),
      cmocka_unit_test(test_young_merged),
      cmocka_unit_test(test_young_merged_some),
      cmocka_unit_test(test_young_deeper),
      cmocka_unit_test(test_young_all),
      cmocka_unit_test(test_young_garbage),
      cmocka_unit_test(test_young_append),
      cmocka_unit_test(test_young_append_runs),
      cmocka_unit_test(test_young_abort),
      cmocka_unit_test(test_young_whole),
      cmocka_unit_test(test_young_worn),
      cmocka_unit_test(test_young_worn_due),
      cmocka_unit_test(test_young_worn_workers),
      cmocka_unit_test(test_young_retire),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
