// SPDX-License-Identifier: Apache-2.0
//
// Cost of searches and steps on partitions of a million keys, random ones and the paths of this machine's files: keys
// read, blocks read, keys compared, segments visited. The program compiles remix/remix.c and view/merge.c with their
// counters; everything else comes from the library.
#define REMIX_COUNTERS 1
#include "remix/cursor.c"
#include "remix/remix.c"
#include "view/merge.c"

#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#include <sanitizer/msan_interface.h>
#endif
#endif

#include <ftw.h>

#include "tests/lib/check.h"
#include "tests/lib/place.h"
#include "tests/lib/slow.h"

#if defined(NDEBUG)
#define RANDOM_KEYS usual_or_long(250000, 1000000)
#define PATHS_MAX usual_or_long(100000, 400000)
#define DELETED usual_or_long(25000, 100000)
#define SOME_KEYS usual_or_long(100000, 400000)
#else  // slower builds look for other things
#define RANDOM_KEYS 40000u
#define PATHS_MAX 20000u
#define DELETED 10000u
#define SOME_KEYS 40000u
#endif

static uint64_t count(const _Atomic uint64_t *c) { return atomic_load_explicit(c, memory_order_relaxed); }

struct cost {
  uint64_t key_reads, key_compares, records, segments, probes;
};

static struct cost cost_now(void) {
  const struct remix_counters *c = &remix_counters;
  return (struct cost){count(&c->key_reads), count(&c->key_compares), count(&c->records), count(&c->segments),
                       count(&c->probes)};
}

static struct cost cost_since(struct cost from) {
  const struct cost c = cost_now();
  return (struct cost){c.key_reads - from.key_reads, c.key_compares - from.key_compares, c.records - from.records,
                       c.segments - from.segments, c.probes - from.probes};
}

static uint32_t log2_up(uint32_t n) { return n > 1 ? 32 - (uint32_t)__builtin_clz(n - 1) : 0; }

// ---- keys

static struct keyset all_random, all_paths;
static struct keyset some_random;  // the first of them
static uint8_t *bytes;             // bytes of the random ones

static void keys_random(struct keyset *k, uint32_t nr) {
  uint64_t rng = 1;
  bytes = malloc((size_t)nr * 16);
  k->keys = malloc(nr * sizeof(*k->keys));
  k->nr = nr;
  for (uint32_t i = 0; i < nr; i++) {
    store64le(bytes + 16 * (size_t)i, rng_next(&rng));
    store64le(bytes + 16 * (size_t)i + 8, rng_next(&rng));
    k->keys[i] = kref(bytes + 16 * (size_t)i, 16);
  }
  qsort(k->keys, nr, sizeof(*k->keys), key_order);
  some_random = (struct keyset){k->keys, SOME_KEYS};
}

static int path_add(const char *path, const struct stat *st, int type, struct FTW *ftw) {
  (void)st, (void)type, (void)ftw;
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
  __msan_unpoison_string(path);  // the C library that made it is not instrumented
#endif
#endif
  const size_t len = strlen(path);
  if (len > 4000) return 0;
  uint8_t *const p = malloc(len);
  memcpy(p, path, len);
  all_paths.keys[all_paths.nr++] = kref(p, (uint32_t)len);
  return all_paths.nr == PATHS_MAX;
}

static void keys_paths(struct keyset *k) {
  k->keys = malloc(PATHS_MAX * sizeof(*k->keys));
  (void)nftw("/usr", path_add, 32, FTW_PHYS);
  for (uint32_t i = 0; k->nr < 5000; i++) {  // hardly anything is there
    char buf[64];
    const uint32_t len = (uint32_t)sprintf(buf, "/usr/share/not/there/%u/%u/file", i % 7, i);
    k->keys[k->nr++] = kref(memcpy(malloc(len), buf, len), len);
  }
  qsort(k->keys, k->nr, sizeof(*k->keys), key_order);
  print_message("%u paths\n", k->nr);
}

// ---- partitions

enum { ABSENT, LIVE, DEAD };

struct world {
  struct place p;
  const struct keyset *k;
  uint8_t *state;  // per key
  uint8_t *run;    // per key: the newest version's
  uint32_t *live;  // numbers of the live keys, ascending
  uint32_t nr_live, nr_absent;
  struct remix *x;
};

static _Atomic uint64_t nr_preads;

static ssize_t counting_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  (void)e;
  atomic_fetch_add_explicit(&nr_preads, 1, memory_order_relaxed);
  return PLACE_REAL->pread(env_posix(), fd, buf, len, off);
}

static void world_init(struct world *w, const struct keyset *k, size_t cache_size) {
  *w = (struct world){.k = k,
                      .state = calloc(k->nr, 1),
                      .run = calloc(k->nr, 1),
                      .live = malloc(k->nr * sizeof(*w->live))};
  place_init(&w->p, cache_size);
  w->p.ops.pread = counting_pread;
}

static void world_fini(struct world *w) {
  remix_unref(w->x);
  place_fini(&w->p);
  free(w->state);
  free(w->run);
  free(w->live);
}

#define VALUE_LEN 20u
static void value_of(uint32_t key, uint32_t run, uint8_t *buf) {
  for (uint32_t i = 0; i < VALUE_LEN; i += 4) store32le(buf + i, key * 2654435761u + run + i);
}

// has[i]: 0, LIVE or DEAD. The new run is newer than all before.
static void world_add(struct world *w, uint32_t run, const uint8_t *has, bool tags) {
  struct sst_build *b;
  struct sst *t;
  uint64_t size;
  uint8_t val[VALUE_LEN];
  const uint64_t number = w->p.next++;
  OK(sst_build_create(&w->p.ctx, &(struct sst_build_opts){.ckeys = true}, w->p.queue, &b));
  sst_build_start(b, number);
  for (uint32_t i = 0; i < w->k->nr; i++) {
    if (!has[i]) continue;
    value_of(i, run, val);
    const struct kref k = w->k->keys[i];
    sst_build_add(b, &(struct kv_rec){.key = k.ptr,
                                      .klen = k.len,
                                      .val = val,
                                      .vlen = has[i] == DEAD ? 0 : VALUE_LEN,
                                      .kind = has[i] == DEAD});
    w->state[i] = has[i];
    w->run[i] = (uint8_t)run;
  }
  OK(sst_build_finish(b, &size));
  sst_build_destroy(b);
  OK(sst_open(&w->p.ctx, number, &t));
  w->x = remix_add(&w->p, w->x, t, tags);
}

static void world_ready(struct world *w) {
  w->nr_live = w->nr_absent = 0;
  for (uint32_t i = 0; i < w->k->nr; i++) {
    if (w->state[i] == LIVE) w->live[w->nr_live++] = i;
    w->nr_absent += w->state[i] == ABSENT;
  }
  assert_int_equal(w->x->nr_keys, w->nr_live);
}

// A quarter of the keys are in no run. Each other key has its newest version in one run; with `mixed` one in eight has
// older versions too, and one in twenty is deleted.
static void world_fill(struct world *w, uint32_t runs, bool mixed, bool tags) {
  uint64_t rng = runs;
  uint32_t *const in = calloc(w->k->nr, sizeof(*in));  // bit r: run r has it
  uint8_t *const has = malloc(w->k->nr);
  for (uint32_t i = 0; i < w->k->nr; i++) {
    const uint64_t dice = rng_next(&rng);
    if (dice % 4 == 0) continue;
    in[i] = 1u << (dice >> 8) % runs;
    if (mixed && (dice >> 16) % 8 == 0) in[i] |= (uint32_t)(dice >> 24) & ((1u << runs) - 1);
    if (mixed && (dice >> 20) % 20 == 0) in[i] |= 1u << 31;  // deleted
  }
  for (uint32_t r = 0; r < runs; r++) {
    for (uint32_t i = 0; i < w->k->nr; i++) {
      const uint32_t newer = (in[i] & 0x7FFFFFFF) >> r;
      has[i] = !(newer & 1) ? 0 : newer == 1 && in[i] >> 31 ? DEAD : LIVE;
    }
    world_add(w, r, has, tags);
  }
  free(has);
  free(in);
  world_ready(w);
}

static void check_record(const struct world *w, uint32_t key, const struct kv_rec *r) {
  uint8_t val[VALUE_LEN];
  value_of(key, w->run[key], val);
  assert_true(kv_eq(kref(r->key, r->klen), w->k->keys[key]));
  assert_true(!r->kind && r->vlen == VALUE_LEN && memcmp(r->val, val, VALUE_LEN) == 0);
}

// The first live key at or after key number i, as an index into w->live.
static uint32_t live_at(const struct world *w, uint32_t i) {
  uint32_t lo = 0, hi = w->nr_live;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (w->live[mid] < i) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

// ---- seek and get

// Every key, those that are there and those that are not: one entry's key is read, and one block at most; the record of
// a key that is there costs no other. scattered: one in three, all over the place.
static void check_seeks(struct world *w, bool scattered) {
  struct remix_cursor c;
  struct kv_rec r;
  remix_cursor_init(&c, NULL);
  OK(remix_cursor_set(&c, w->x));
  for (uint32_t n = 0; n < w->k->nr / (scattered ? 3 : 1); n++) {
    const uint32_t i = scattered ? (uint32_t)((uint64_t)n * 2654435761u % w->k->nr) : n;
    const struct kref key = w->k->keys[i];
    enter(&w->p);
    const struct cost from = cost_now();
    const uint64_t preads = count(&nr_preads);
    const bool before = n % 4 == 3;
    OK(before ? remix_seek_for_prev(&c, key) : remix_seek(&c, key));
    const struct cost cost = cost_since(from);
    assert_int_equal(cost.key_reads, 1);
    assert_int_equal(cost.key_compares, 1);
    assert_int_equal(cost.records, 0);
    if (!w->p.cache) assert_true(count(&nr_preads) - preads <= 1);
    const uint32_t at = live_at(w, i), stand = !before || w->state[i] == LIVE ? at : at - 1;
    assert_int_equal(remix_valid(&c), stand < w->nr_live);
    if (stand < w->nr_live) {
      OK(remix_record(&c, &r));
      check_record(w, w->live[stand], &r);
      if (!w->p.cache && w->state[i] == LIVE) assert_true(count(&nr_preads) - preads <= 1);
    }
    leave(&w->p);
  }
  remix_cursor_fini(&c);
}

// full: no old versions and no tombstones, so that every segment has 32 live entries.
static void check_gets(struct world *w, bool full) {
  struct sst_hold h = {0};
  struct kv_rec r;
  struct cost sum[3] = {{0}};
  uint64_t nr[3] = {0};
  for (uint32_t i = 0; i < w->k->nr; i++) {
    const struct kref key = w->k->keys[i];
    enter(&w->p);
    const struct cost from = cost_now();
    const enum remixdb_status s = remix_get(w->x, key, hash64(key.ptr, key.len), &h, &r);
    const struct cost cost = cost_since(from);
    const bool dead = remix_is_young(w->x) && w->state[i] == DEAD;
    assert_int_equal(s, w->state[i] == LIVE || dead ? REMIXDB_OK : REMIXDB_NOTFOUND);
    if (dead) assert_true(r.kind && kv_eq(kref(r.key, r.klen), key));
    else if (s == REMIXDB_OK) check_record(w, i, &r);
    assert_int_equal(cost.key_reads, cost.key_compares);
    assert_true(cost.key_reads <= 1);
    sum[w->state[i]].key_compares += cost.key_compares;
    nr[w->state[i]]++;
    leave(&w->p);
  }
  sst_hold_fini(&h);
  double mean[3];
  for (uint32_t i = 0; i < 3; i++) mean[i] = nr[i] ? (double)sum[i].key_compares / (double)nr[i] : 0;
  const double live = mean[LIVE], absent = mean[ABSENT];
  print_message("  get: %.4f comparisons for a key that is there, %.4f for one that is not, %.4f for one deleted\n",
                live, absent, mean[DEAD]);
  if (!w->x->tags) return;
  assert_true(live == 1);
  assert_true(absent <= (remix_is_young(w->x) ? 0.006 : w->p.cache ? 0.13 : 0.04));
  if (full && nr[ABSENT] > 50000)
    assert_true(absent > (remix_is_young(w->x) ? 0.002 : 0.1));  // the tags are looked at at all
}

static void check_searches(const struct keyset *k, uint32_t runs, bool mixed, bool tags) {
  struct world w;
  world_init(&w, k, (size_t)512 << 20);
  world_fill(&w, runs, mixed, tags);
  print_message("%u keys of %s, %u runs%s%s: %llu entries\n", k->nr, k == &all_random ? "16 bytes" : "paths", runs,
                mixed ? ", mixed" : "", tags ? "" : ", no tags", (unsigned long long)w.x->nr_entries);
  check_seeks(&w, false);
  check_gets(&w, !mixed);
  remix_make_young(w.x);
  check_gets(&w, !mixed);
  world_fini(&w);
}

static void test_searches_8(void **state) {
  (void)state;
  check_searches(&all_random, 8, false, true);
  check_searches(&all_paths, 8, true, true);
}

static void test_searches_16(void **state) {
  (void)state;
  check_searches(&all_random, 16, true, true);
  check_searches(&all_paths, 16, true, false);
}

// Without a cache each block that is looked at is a read.
static void test_blocks(void **state) {
  (void)state;
  for (uint32_t n = 0; n < 2; n++) {
    const struct keyset *const k = n ? &all_paths : &all_random;
    const struct keyset some = {k->keys, k->nr < 200000 ? k->nr : 200000};
    struct world w;
    world_init(&w, &some, 0);
    world_fill(&w, n ? 8 : 16, true, true);
    const uint64_t before = count(&nr_preads);
    check_seeks(&w, true);
    assert_true(count(&nr_preads) - before > some.nr / 6);  // they are counted
    check_gets(&w, false);
    world_fini(&w);
  }
}

// ---- segments

// All versions of a key are in one segment, also where every run has every key.
static void test_versions_together(void **state) {
  (void)state;
  const uint32_t runs = 16;
  const struct keyset some = {all_random.keys, all_random.nr < 20000 ? all_random.nr : 20000};
  struct world w;
  world_init(&w, &some, (size_t)64 << 20);
  uint8_t *const has = malloc(some.nr);
  for (uint32_t r = 0; r < runs; r++) {
    for (uint32_t i = 0; i < some.nr; i++) has[i] = (i + r) % 9 == 0 ? DEAD : LIVE;
    world_add(&w, r, has, true);
  }
  world_ready(&w);
  assert_int_equal(w.x->nr_entries, (uint64_t)runs * some.nr);
  assert_int_equal(w.x->nr_segs, some.nr / 2);  // two keys each
  struct remix_walk walk;
  uint32_t key = 0, version = 0;
  for (remix_walk_init(&walk, w.x); remix_walk_valid(&walk); remix_walk_next(&walk)) {
    const uint8_t sel = walk.sel[walk.at];
    if (walk.at == 0) assert_int_equal(version, 0);
    assert_int_equal(sel & REMIX_RUN, runs - 1 - version);
    assert_int_equal((sel & REMIX_OLD) != 0, version > 0);
    assert_int_equal((sel & REMIX_TOMB) != 0, (key + runs - 1 - version) % 9 == 0);
    if (++version == runs) {
      version = 0;
      key++;
    }
  }
  assert_int_equal(key, some.nr);
  check_seeks(&w, false);
  check_gets(&w, false);
  free(has);
  world_fini(&w);
}

// ---- steps

static void test_steps(void **state) {
  (void)state;
  struct world w;
  world_init(&w, &some_random, (size_t)512 << 20);
  world_fill(&w, 8, true, true);
  struct remix_cursor c;
  struct kv_rec r;
  remix_cursor_init(&c, NULL);
  OK(remix_cursor_set(&c, w.x));
  enter(&w.p);
  struct cost from = cost_now();
  uint32_t nr = 0;
  for (remix_seek_first(&c); remix_valid(&c); remix_next(&c)) nr++;
  assert_int_equal(nr, w.nr_live);
  for (remix_seek_last(&c); remix_valid(&c); remix_prev(&c)) nr--;
  assert_int_equal(nr, 0);
  struct cost cost = cost_since(from);
  assert_int_equal(cost.key_reads + cost.key_compares + cost.records, 0);
  assert_int_equal(cost.segments, 2 * w.x->nr_segs);

  // any number of keys, by counts
  uint64_t rng = 5;
  const uint32_t most = 2 * log2_up(w.x->nr_segs) + 4;
  for (uint32_t i = 0; i < 100000; i++) {
    const uint32_t rank = (uint32_t)(rng_next(&rng) % w.nr_live),
                   far = (uint32_t)(rng_next(&rng) % (2u << rng_next(&rng) % 20));
    OK(remix_seek(&c, w.k->keys[w.live[rank]]));
    from = cost_now();
    const uint32_t moved = remix_skip(&c, far, UINT32_MAX), left = w.nr_live - 1 - rank;
    cost = cost_since(from);
    assert_int_equal(moved, far < left ? far : left);
    assert_int_equal(cost.key_reads + cost.key_compares + cost.records, 0);
    assert_true(cost.segments <= 1 && cost.probes <= most);
    OK(remix_record(&c, &r));
    check_record(&w, w.live[rank + moved], &r);
  }
  leave(&w.p);
  remix_cursor_fini(&c);
  world_fini(&w);
}

// ---- tombstones

static struct version *version_of_one(struct remix *x) {
  struct part *p;
  struct version *v;
  remix_ref(x);
  OK(part_create(kref("", 0), x, NULL, &p));
  OK(version_create(&p, 1, &v));
  return v;
}

// Reads `nr` records from key number `first` on, through a merge; what is looked at: segments, counts of live entries,
// records.
static uint64_t scan_cost(struct world *w, uint32_t first, uint32_t nr, bool backward) {
  struct version *const v = version_of_one(w->x);
  struct merge m;
  struct kv_rec r;
  merge_init(&m, NULL);
  merge_set(&m, NULL, NULL, v, 0);
  enter(&w->p);
  OK(merge_seek(&m, w->k->keys[first]));
  if (backward) {
    OK(merge_skip(&m, nr - 1));
    assert_true(merge_valid(&m));
  }
  const struct cost from = cost_now();
  for (uint32_t i = 0, at = live_at(w, first) + (backward ? nr - 1 : 0); i < nr; i++) {
    assert_true(merge_valid(&m));
    OK(merge_record(&m, &r));
    check_record(w, w->live[at], &r);
    OK(backward ? merge_prev(&m) : merge_next(&m));
    at += backward ? -1u : 1u;
  }
  const struct cost cost = cost_since(from);
  assert_int_equal(cost.key_reads, 0);
  merge_park(&m);
  leave(&w->p);
  merge_fini(&m);
  version_unref(v);
  return cost.segments + cost.probes + cost.records;
}

// A scan over DELETED keys that were deleted, against one where they were never there: `every` th key from DELETED on.
static void check_deleted(uint32_t every) {
  struct world w, without;
  uint8_t *const has = calloc(some_random.nr, 1);
  world_init(&w, &some_random, (size_t)512 << 20);
  world_init(&without, &some_random, (size_t)512 << 20);
  const uint32_t first = DELETED, end = first + every * DELETED;
  assert_true(end + DELETED <= some_random.nr);
  for (uint32_t r = 0; r < 4; r++) {  // all of them in four runs
    for (uint32_t i = 0; i < some_random.nr; i++) has[i] = i % 4 == r ? LIVE : 0;
    world_add(&w, r, has, true);
    for (uint32_t i = first; i < end; i += every) has[i] = 0;
    world_add(&without, r, has, true);
  }
  memset(has, 0, some_random.nr);
  for (uint32_t i = first; i < end; i += every) has[i] = DEAD;
  world_add(&w, 4, has, true);
  world_ready(&w);
  world_ready(&without);
  assert_int_equal(w.nr_live, without.nr_live);
  const uint32_t nr = DELETED / 2 + (every - 1) * DELETED;  // from a quarter before to a quarter after
  for (uint32_t backward = 0; backward < 2; backward++) {
    const uint64_t a = scan_cost(&w, first - DELETED / 4, nr, backward),
                   b = scan_cost(&without, first - DELETED / 4, nr, backward);
    print_message("  %u deleted, one in %u, %s: %llu looked at for %u records, %llu when they were never there\n",
                  DELETED, every, backward ? "back" : "forward", (unsigned long long)a, nr, (unsigned long long)b);
    assert_true(a <= 2 * b);
  }
  if (every == 1) {  // over them alone: a search in the counts
    const uint64_t a = scan_cost(&w, first - 1, 2, false);
    assert_true(a <= 6 + 2 * log2_up(w.x->nr_segs));
  }
  free(has);
  world_fini(&w);
  world_fini(&without);
}

static void test_deleted(void **state) {
  (void)state;
  check_deleted(1);
  check_deleted(2);
}

// ---- with memtables

static void mem_add(struct world *w, struct wh *wh, uint32_t key, bool tomb, uint64_t seq) {
  struct wh_slot s;
  const struct kref k = w->k->keys[key];
  enter(&w->p);
  wh_lock(wh, k, hash64(k.ptr, k.len), &s);
  OK(wh_link(&s, KV_REC(kref(NULL, 0), "memtable", tomb ? 0 : 8, tomb)));
  wh_stamp(&s, seq);
  wh_unlock(&s);
  leave(&w->p);
}

// Skips of all lengths arrive where steps do.
static void skips_arrive(struct world *w, struct merge *m, uint64_t *rng) {
  struct kv_rec r;
  for (uint32_t i = 0; i < 3000; i++) {
    uint32_t at = (uint32_t)(rng_next(rng) % w->nr_live);
    const uint32_t far = (uint32_t)(rng_next(rng) % (2u << rng_next(rng) % 19));
    OK(merge_seek(m, w->k->keys[w->live[at]]));
    OK(merge_skip(m, far));
    at += far;
    assert_int_equal(merge_valid(m), at < w->nr_live);
    if (at >= w->nr_live) continue;
    OK(merge_record(m, &r));
    assert_true(kv_eq(kref(r.key, r.klen), w->k->keys[w->live[at]]));
    if (w->run[w->live[at]] < 100) check_record(w, w->live[at], &r);
    else assert_true(r.vlen == 8);
  }
}

// A few keys in the memtables: what lies between them is counted when it is skipped, and not compared when it is
// stepped through.
static void test_few_in_memtables(void **state) {
  (void)state;
  struct world w;
  world_init(&w, &some_random, (size_t)512 << 20);
  world_fill(&w, 8, true, true);
  struct wh *mem[2];
  for (uint32_t i = 0; i < 2; i++) OK(wh_create(&w.p.epoch, 64 << 10, NULL, &mem[i]));
  uint64_t rng = 9;
  const uint32_t few = 100;
  for (uint32_t i = 0; i < few; i++) {
    const uint32_t key = (uint32_t)(rng_next(&rng) % w.k->nr);
    const bool tomb = i % 3 == 0;
    mem_add(&w, mem[i % 2], key, tomb, i + 1);
    // the active one is the newer
    if (i % 2 == 0 || w.run[key] < 100) {
      w.state[key] = tomb ? DEAD : LIVE;
      w.run[key] = (uint8_t)(100 + (i % 2 == 0));
    }
  }
  w.nr_live = 0;
  for (uint32_t i = 0; i < w.k->nr; i++)
    if (w.state[i] == LIVE) w.live[w.nr_live++] = i;
  struct version *const v = version_of_one(w.x);
  struct merge m;
  struct kv_rec r;
  merge_init(&m, NULL);
  merge_set(&m, mem[0], mem[1], v, few);
  enter(&w.p);
  const uint32_t most = few * (REMIX_SEG + 1);  // records whose keys are compared: a segment for each
  struct cost from = cost_now();
  OK(merge_seek(&m, kref(NULL, 0)));
  OK(merge_skip(&m, w.nr_live - 1));
  struct cost cost = cost_since(from);
  print_message("  %u keys skipped, %u in memtables: %llu records read, %llu segments, %llu counts\n", w.nr_live - 1,
                few, (unsigned long long)cost.records, (unsigned long long)cost.segments,
                (unsigned long long)cost.probes);
  assert_true(cost.records <= most && cost.records > 0);
  assert_true(cost.segments <= 3 * few && cost.probes <= few * 2 * log2_up(w.x->nr_segs));
  OK(merge_record(&m, &r));
  assert_true(kv_eq(kref(r.key, r.klen), w.k->keys[w.live[w.nr_live - 1]]));
  OK(merge_next(&m));
  assert_false(merge_valid(&m));

  from = cost_now();
  uint32_t nr = 0;
  for (OK(merge_seek(&m, kref(NULL, 0))); merge_valid(&m); OK(merge_next(&m))) nr++;
  cost = cost_since(from);
  assert_int_equal(nr, w.nr_live);
  assert_true(cost.records <= 2 * most);

  skips_arrive(&w, &m, &rng);
  merge_park(&m);
  leave(&w.p);
  merge_fini(&m);
  version_unref(v);
  for (uint32_t i = 0; i < 2; i++) wh_destroy(mem[i]);
  world_fini(&w);
}

// ---- epochs

static struct place *watched;
static uint64_t last_at, epochs_seen, reads_in_epoch, reads_in_epoch_max;

// Time goes on with every read: a thread that has left its epoch since the last read is in a later one.
static ssize_t watching_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  const uint64_t at = atomic_load(&watched->slot.at);
  if (at != 0) {
    if (at != last_at) {
      epochs_seen++;
      reads_in_epoch = 0;
    }
    last_at = at;
    if (++reads_in_epoch > reads_in_epoch_max) reads_in_epoch_max = reads_in_epoch;
    (void)epoch_stamp(&watched->epoch);
  }
  return counting_pread(e, fd, buf, len, off);
}

// A way over keys that are deleted in the memtable, and are in the tables, is long. It is made in many epochs.
// A memtable that deletes the first nr keys.
static struct wh *tombstones(struct world *w, uint32_t nr) {
  struct wh *mem;
  OK(wh_create(&w->p.epoch, 64 << 10, NULL, &mem));
  for (uint32_t i = 0; i < nr; i++) mem_add(w, mem, i, true, i + 1);
  return mem;
}

static void test_epochs(void **state) {
  (void)state;
  const struct keyset some = {some_random.keys, some_random.nr < 60000 ? some_random.nr : 60000};
  struct world w;
  world_init(&w, &some, 0);
  watched = &w.p;
  w.p.ops.pread = watching_pread;
  uint8_t *const has = malloc(some.nr);
  memset(has, LIVE, some.nr);
  world_add(&w, 0, has, true);
  free(has);
  world_ready(&w);
  struct version *const v = version_of_one(w.x);
  struct merge m;
  struct kv_rec r;
  for (uint32_t given = 0; given < 2; given++) {
    // a memtable of its own for each way: a stretch of tombstones that was walked over once is leapt over afterwards
    struct wh *mem[2];
    for (uint32_t i = 0; i < 2; i++) mem[i] = tombstones(&w, some.nr - 1);
    merge_init(&m, NULL);
    if (given) merge_use_epoch(&m, &w.p.epoch, &w.p.slot);
    merge_set(&m, mem[0], NULL, v, some.nr);
    epochs_seen = reads_in_epoch_max = reads_in_epoch = last_at = 0;
    enter(&w.p);
    OK(merge_seek(&m, kref(NULL, 0)));
    assert_true(merge_valid(&m));
    OK(merge_record(&m, &r));
    assert_true(kv_eq(kref(r.key, r.klen), some.keys[some.nr - 1]));
    leave(&w.p);
    if (given) {
      assert_true(epochs_seen >= some.nr / MERGE_STEPS / 2);
      assert_true(reads_in_epoch_max <= MERGE_STEPS);
    } else {
      assert_int_equal(epochs_seen, 1);
    }
    // backward, and by a skip
    merge_park(&m);
    merge_set(&m, mem[1], NULL, v, some.nr);
    enter(&w.p);
    epochs_seen = 0;
    OK(merge_seek_for_prev(&m, some.keys[some.nr - 2]));
    assert_false(merge_valid(&m));
    if (given) assert_true(epochs_seen >= some.nr / MERGE_STEPS / 2);
    OK(merge_seek(&m, some.keys[some.nr - 1]));
    OK(merge_skip(&m, 10));
    assert_false(merge_valid(&m));
    merge_park(&m);
    leave(&w.p);
    merge_fini(&m);
    for (uint32_t i = 0; i < 2; i++) wh_destroy(mem[i]);
  }
  version_unref(v);
  world_fini(&w);
}

int main(void) {
  keys_random(&all_random, RANDOM_KEYS);
  keys_paths(&all_paths);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_searches_8),        cmocka_unit_test(test_searches_16), cmocka_unit_test(test_blocks),
      cmocka_unit_test(test_versions_together), cmocka_unit_test(test_steps),       cmocka_unit_test(test_deleted),
      cmocka_unit_test(test_few_in_memtables),  cmocka_unit_test(test_epochs),
  };
  const int rc = cmocka_run_group_tests(tests, NULL, NULL);
  keyset_free(&all_paths);
  free(bytes);
  free(all_random.keys);
  return rc;
}
