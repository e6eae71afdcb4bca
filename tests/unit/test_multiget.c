// SPDX-License-Identifier: Apache-2.0
//
// Many keys together: two memtables and partitions against an array, with blocks, memory and descriptors that cannot be
// had; then whole stores through the public interface, against gets one by one.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "base/thread.h"
#include "tests/lib/check.h"

#include <sys/stat.h>
#include "remix/paged.h"
#include "view/multiget.h"

#include "tests/lib/scene.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/starve.h"
#include "tests/lib/temp.h"
#include "store/below.h"
#include "xdb.h"
#include "store/flush.h"

#include <time.h>

// ---- a list of keys to be looked up, some of them more than once, and room for their values

#define LIST_MAX 2500u
#define ROOM 256u

struct list {
  uint32_t nr;
  bool with_values;
  struct remixdb_slice keys[LIST_MAX];
  struct remixdb_buf values[LIST_MAX];
  bool found[LIST_MAX];
  uint8_t key_room[LIST_MAX][KEY_NEAR_MAX], value_room[LIST_MAX][ROOM];
};

static void list_random(const struct scene *s, struct list *l, uint32_t nr, uint64_t *rng) {
  l->nr = nr;
  l->with_values = rng_next(rng) % 8 != 0;
  for (uint32_t i = 0; i < l->nr; i++) {
    if (i && rng_next(rng) % 6 == 0) {
      l->keys[i] = l->keys[rng_next(rng) % i];
    } else {
      const uint32_t len = key_near(s, rng, l->key_room[i]);
      l->keys[i] = (struct remixdb_slice){len || i % 2 ? l->key_room[i] : NULL, len};
    }
    struct remixdb_buf *const b = &l->values[i];
    *b = (struct remixdb_buf){.ptr = l->value_room[i], .cap = ROOM, .len = 4711};
    if (rng_next(rng) % 8 == 0) b->cap = (uint32_t)(rng_next(rng) % 30);
    if (rng_next(rng) % 16 == 0) *b = (struct remixdb_buf){.ptr = NULL, .cap = 0, .len = 4711};
    l->found[i] = rng_next(rng) % 2;
  }
  memset(l->value_room, 0xEE, sizeof(l->value_room));
}

// Whether what is said of key i is what the array says; with `partly`, a key that is there may also be said not to be.
// small_out: whether its value is one that does not fit.
static bool list_right(const struct scene *s, const struct list *l, uint32_t i, bool partly, bool *small_out) {
  const struct kref key = kref(l->keys[i].ptr, l->keys[i].len);
  const uint32_t at = keyset_rank(&s->k, key);
  const bool there = at < s->k.nr && kv_eq(s->k.keys[at], key) && s->live[at] != NONE;
  const struct remixdb_buf *const b = &l->values[i];
  *small_out = false;
  if (!l->found[i]) return (!there || partly) && (!l->with_values || b->len == 0);
  if (!there) return false;
  if (!l->with_values) return b->len == 4711;
  uint8_t want[VALUE_MAX];
  const uint32_t len = value_make(key, s->live[at], VALUE, want);
  const uint32_t n = len < b->cap ? len : b->cap;
  *small_out = b->ptr && n < len;
  if (b->len != len || (n && memcmp(b->ptr, want, n) != 0)) return false;
  for (uint32_t k = n; b->ptr && k < ROOM; k++)
    if (l->value_room[i][k] != 0xEE) return false;
  return true;
}

static void list_check(const struct scene *s, const struct list *l, enum remixdb_status st, size_t nr_found,
                       bool may_fail) {
  bool any_small = false;
  size_t found = 0;
  const bool failed = st != REMIXDB_OK && st != REMIXDB_TOOBIG;
  CHECK(may_fail || !failed);
  for (uint32_t i = 0; i < l->nr; i++) {
    bool small;
    CHECK(list_right(s, l, i, failed, &small));
    any_small = any_small || small;
    found += l->found[i];
  }
  CHECK(nr_found == found);
  if (!failed) CHECK(st == (any_small ? REMIXDB_TOOBIG : REMIXDB_OK));
}

// As xdb_multi_get does it. Between two parts somebody writes, when `seq` is given.
static enum remixdb_status look_up(struct scene *s, struct multiget *m, struct list *l, size_t *nr_out, uint64_t *seq,
                                   uint64_t *rng) {
  multiget_begin(m, l->nr, l->keys, l->with_values ? l->values : NULL, l->found, NULL);
  enter(&s->p);
  while (multiget_part(m, s->active, s->frozen, s->version, s->moment)) {
    leave(&s->p);
    for (uint32_t i = 0; seq && i < 5; i++)
      mem_put(&s->p, s->active, s->k.keys[rng_next(rng) % s->k.nr], i % 3 ? 70000 + i : TOMB, VALUE, ++*seq);
    enter(&s->p);
  }
  leave(&s->p);
  return multiget_end(m, nr_out);
}

static const struct plan plans[] = {
    {300, 200, 200, 4, 3, 4, 1 << 20},       // all of it
    {300, 200, 200, 4, 3, 4, 0},             // no cache
    {300, 200, 200, 4, 3, 4, 40 << 10},      // hardly any
    {60, 400, 400, 3, 4, 3, 1 << 20},        // nearly all keys are everywhere
    {400, 0, UINT32_MAX, 6, 3, 5, 1 << 20},  // partitions only
    {400, 0, 0, 1, 0, 5, 0},                 // nothing at all
    {200, 300, 0, 1, 0, 5, 0},               // one memtable only
    {200, 0, 300, 8, 0, 5, 0},               // the other
    {200, 300, 300, 8, 1, 2, 0},             // many tombstones, many partitions, some without a table
    {3, 6, 6, 2, 2, 3, 0},                   // hardly a key
    {1, 2, UINT32_MAX, 1, 1, 2, 0},
    {20000, 30, 30, 3, 5, 6, 100 << 10},  // more blocks than a batch
    {20000, 300, 300, 3, 5, 6, 0},
};

// Where keys that were looked up are: for each of what the young view and the older one may have of them.
static uint64_t nr_seen[3][3];

static void places_seen(const struct scene *s, const struct list *l) {
  for (uint32_t i = 0; i < l->nr; i++) {
    const struct kref key = kref(l->keys[i].ptr, l->keys[i].len);
    const uint32_t at = keyset_rank(&s->k, key);
    if (at == s->k.nr || !kv_eq(s->k.keys[at], key) || !s->version->parts[version_find(s->version, key)]->young)
      continue;
    nr_seen[s->young[at] > TOMB ? 2 : s->young[at]][s->old[at] > TOMB ? 2 : s->old[at]]++;
  }
}

// One by one, as xdb_get looks below memtables.
static void gets_check(struct scene *s, const struct list *l) {
  const struct super v = {.version = s->version};
  struct sst_hold hold = {0};
  for (uint32_t i = 0; i < l->nr; i++) {
    const struct kref key = kref(l->keys[i].ptr, l->keys[i].len);
    const uint32_t at = keyset_rank(&s->k, key), what = at < s->k.nr && kv_eq(s->k.keys[at], key) ? s->disk[at] : NONE;
    struct kv_rec r;
    enter(&s->p);
    const enum remixdb_status got = xdb_below_get(&v, TREE_UNNAMED, key, hash64(key.ptr, key.len), s->moment, &hold,
                                                  &r);
    CHECK(got == REMIXDB_OK || got == REMIXDB_NOTFOUND);
    if (got == REMIXDB_OK) CHECK(kv_eq(kref(r.key, r.klen), key) && value_is(&r, key, what, VALUE));
    else CHECK(what <= TOMB);
    leave(&s->p);
  }
  sst_hold_fini(&hold);
}

static void model_check(const struct plan *plan, struct list *l, uint32_t times, uint64_t *rng) {
  struct scene s;
  struct multiget *m;
  scene_init(&s, plan, rng_next(rng));
  OK(multiget_create(blkio_shared(&s.p.io), &m));
  uint64_t seq = 1000000;
  for (uint32_t n = 0; n < times; n++) {
    size_t nr;
    list_random(&s, l, (uint32_t)(rng_next(rng) % (n % 2 ? 70 : LIST_MAX + 1)), rng);
    const enum remixdb_status got = look_up(&s, m, l, &nr, n % 3 == 0 ? &seq : NULL, rng);
    list_check(&s, l, got, nr, false);
    if (s.version->nr_young == 0) continue;
    places_seen(&s, l);
    if (n % 5 == 1) gets_check(&s, l);
    if (n % 4 == 3) version_again(&s);
  }
  multiget_destroy(m);
  scene_fini(&s);
}

static void test_model(void **state) {
  (void)state;
  struct list *const l = malloc(sizeof(*l));
  for (uint32_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
    for (uint32_t native = 0; native < 2; native++) {
      uint64_t rng = check_seed + i;
      place_native = native;
      model_check(&plans[i], l, 30, &rng);
    }
  }
  place_native = false;
  multiget_destroy(NULL);
  free(l);
}

static const struct plan plans_young[] = {
    {600, 30, 30, 4, 3, 4, 1 << 20},          // all of it
    {600, 30, 30, 4, 3, 4, 0},                // no cache
    {600, 0, UINT32_MAX, 6, 3, 5, 40 << 10},  // hardly any, and partitions only
    {60, 40, 40, 3, 4, 3, 0},                 // nearly all keys are everywhere
    {900, 0, 0, 60, 3, 3, 1 << 20},           // many partitions
    {9000, 30, 30, 3, 5, 6, 0},               // more blocks than a batch
};

static void test_young(void **state) {
  (void)state;
  struct list *const l = malloc(sizeof(*l));
  uint64_t rng = check_seed;
  memset(nr_seen, 0, sizeof(nr_seen));
  for (scene_young = YOUNG_SOME; scene_young < YOUNG_PLANS; scene_young++) {
    for (uint32_t i = 0; i < sizeof(plans_young) / sizeof(plans_young[0]); i++) {
      place_native = rng_next(&rng) % 2;
      model_check(&plans_young[i], l, 10, &rng);
    }
  }
  // keys whose bits are far apart, in views that have no tags: each has to be looked up alone
  scene_long_keys = true;
  for (uint32_t i = 0; i < 8; i++) {
    scene_young = i % 4 ? YOUNG_EVERYWHERE : YOUNG_SOME;
    place_native = i % 2;
    model_check(&(struct plan){250, i % 3 ? 0 : 20, 0, 1 + i % 3, 3, 4, i < 4 ? 0 : 1 << 20}, l, 12, &rng);
  }
  scene_long_keys = false;
  scene_young = YOUNG_NOWHERE;
  place_native = false;
  free(l);
  for (uint32_t young = 0; young < 3; young++)
    for (uint32_t old = 0; old < 3; old++) CHECK(nr_seen[young][old] > 100);
}

static _Atomic uint32_t nr_allocs;

static bool count_allocs(size_t size) {
  (void)size;
  atomic_fetch_add(&nr_allocs, 1);
  return true;
}

// Without a cache, the blocks of a call are read into memory that stays for the next calls.
static void test_keeps_memory(void **state) {
  (void)state;
  struct list *const l = malloc(sizeof(*l));
  struct scene s;
  struct multiget *m;
  uint64_t rng = check_seed;
  place_native = true;
  scene_init(&s, &(struct plan){20000, 30, 30, 3, 5, 6, 0}, rng_next(&rng));
  OK(multiget_create(blkio_shared(&s.p.io), &m));
  list_random(&s, l, LIST_MAX, &rng);
  // The speed of the disk has a say in how many blocks are read together, so the memory may grow late.
  for (uint32_t round = 0; round < 50; round++) {
    size_t nr;
    atomic_store(&nr_allocs, 0);
    atomic_store(&mem_fault, count_allocs);
    const enum remixdb_status got = look_up(&s, m, l, &nr, NULL, NULL);
    atomic_store(&mem_fault, NULL);
    list_check(&s, l, got, nr, false);
    if (atomic_load(&nr_allocs) == 0) break;
  }
  CHECK(atomic_load(&nr_allocs) == 0);
  multiget_destroy(m);
  scene_fini(&s);
  place_native = false;
  free(l);
}

// Where reads come from the disk, the first blocks are asked for before all keys are looked up, and in one trip. A ring
// tells: it takes them in turns.
static void test_cold_turns(void **state) {
  (void)state;
  enum { NR = 64, TURNS_WARM = 6 };  // a few additions, and candidates that are another key
  struct list *const l = malloc(sizeof(*l));
  place_native = true;
  for (uint32_t cold = 0; cold < 2; cold++) {
    uint64_t rng = check_seed;
    place_cold = cold;
    // in some scenes hardly anything has to be read
    for (uint32_t wide = 0, tries = 0; wide == 0; tries++) {
      struct scene s;
      struct multiget *m;
      CHECK(tries < 20);
      scene_init(&s, &(struct plan){20000, 0, UINT32_MAX, 1, 1, 9, 4 << 20}, rng_next(&rng));
      OK(multiget_create(blkio_shared(&s.p.io), &m));
      for (uint32_t n = 0; n < 20; n++) {
        size_t nr;
        list_random(&s, l, NR, &rng);
        const uint64_t reads = atomic_load(&s.p.io.nr_reads), turns = atomic_load(&s.p.io.nr_turns);
        const enum remixdb_status got = look_up(&s, m, l, &nr, NULL, &rng);
        list_check(&s, l, got, nr, false);
        if (atomic_load(&s.p.io.nr_reads) - reads < NR / 3) continue;
        wide++;
        if (s.p.io.kind == BLKIO_URING) CHECK((atomic_load(&s.p.io.nr_turns) - turns > TURNS_WARM) == (cold != 0));
      }
      multiget_destroy(m);
      scene_fini(&s);
    }
  }
  place_native = place_cold = false;
  free(l);
}

// ---- few descriptors

static struct place *watched;
static bool beyond;     // a descriptor more than there may be: somebody has lost patience
static uint32_t opens;  // how often files were opened

static int watch_open(struct env *e, int at, const char *path, unsigned flags) {
  if (watched && fdpool_open_count(watched->fds) > place_max_open) beyond = true;
  opens++;
  return place_open(e, at, path, flags);
}

// As version_again, but the partitions are away.
static void version_away(struct scene *s) {
  version_again(s);
  version_unref(s->version);
  OK(version_open(&s->p.ctx, NULL, NULL, &s->version));
}

// A thread whose reads are under way has descriptors. It waits for none to read a page of an index, or to open a
// partition: the pool need not pass its bound.
static void test_waits_for_no_descriptor(void **state) {
  (void)state;
  struct list *const l = malloc(sizeof(*l));
  struct remix_pool pool;
  uint64_t rng = check_seed, loads = 0;
  place_max_open = 2;
  place_cold = true;  // so that reads begin with the first block
  starve(true);
  atomic_store(&version_eager, 0);
  for (uint32_t n = 0; n < 6; n++) {
    struct scene s;
    struct multiget *m;
    size_t nr;
    scene_young = n % 2 ? YOUNG_SOME : YOUNG_NOWHERE;
    scene_init(&s, &(struct plan){4000, 30, 30, n % 3 ? 8 : 60, n % 3 ? 4 : 2, 6, n < 4 ? 0 : 1 << 20}, rng_next(&rng));
    remix_pool_init(&pool, &s.p.epoch, NULL);
    if (n % 3) s.p.ctx.pages = &pool;
    s.p.ops.open = watch_open;
    watched = &s.p;
    OK(multiget_create(blkio_shared(&s.p.io), &m));
    for (uint32_t i = 0; i < 6; i++) {
      if (i % 3 == 0 || n % 3 == 0) version_away(&s);
      list_random(&s, l, 400, &rng);
      const enum remixdb_status got = look_up(&s, m, l, &nr, NULL, &rng);
      list_check(&s, l, got, nr, false);
      CHECK(!beyond);
    }
    watched = NULL;
    loads += atomic_load(&pool.loads);
    multiget_destroy(m);
    scene_fini(&s);
    remix_pool_fini(&pool);
  }
  CHECK(loads > 100);
  scene_young = YOUNG_NOWHERE;
  starve(false);
  atomic_store(&version_eager, VERSION_EAGER);
  place_max_open = 100;
  place_cold = false;
  free(l);
}

// ---- groups where reads come from the disk

static uint32_t reads_first;  // reads of blocks before the first file was opened
static ssize_t (*place_read)(struct env *e, int fd, void *buf, size_t len, uint64_t off);

static ssize_t watch_read(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  reads_first += opens == 0;
  return place_read(e, fd, buf, len, off);
}

#define TWO_KEYS 40u

// Adds keys that are in tables of the partition, until the list has nr. False: there are too few.
static bool list_of_part(const struct scene *s, struct list *l, uint32_t part, uint32_t nr) {
  for (uint32_t a = 0; a < s->k.nr && l->nr < nr; a++)
    if (s->disk[a] != NONE && version_find(s->version, s->k.keys[a]) == part)
      l->keys[l->nr++] = (struct remixdb_slice){s->k.keys[a].ptr, s->k.keys[a].len};
  return l->nr == nr;
}

// The first partition from `part` on that has so many keys.
static uint32_t part_with(const struct scene *s, struct list *l, uint32_t part) {
  for (l->nr = 0; !list_of_part(s, l, part, TWO_KEYS); l->nr = 0) CHECK(++part < s->version->nr_parts);
  return part;
}

// The keys of the call are looked up in groups of 16, and the blocks of the first group are asked for before the second
// one is looked up. A partition that is away tells: where the 17th key is the first of it, blocks are read before its
// files are opened.
static void test_cold_groups(void **state) {
  (void)state;
  struct list *const l = calloc(1, sizeof(*l));
  struct scene s;
  struct multiget *m;
  size_t nr;
  place_cold = true;
  atomic_store(&version_eager, 0);
  scene_init(&s, &(struct plan){20000, 0, UINT32_MAX, 12, 6, 9, 0}, check_seed);
  place_read = s.p.ops.pread;
  OK(multiget_create(blkio_shared(&s.p.io), &m));
  const uint32_t one = part_with(&s, l, 0), two = part_with(&s, l, one + 1);
  for (uint32_t first = 1; first < TWO_KEYS; first++) {
    version_away(&s);
    OK(part_ready(s.version->parts[one]));
    // a call before has waited for blocks, and has opened the tables
    l->nr = 0;
    CHECK(list_of_part(&s, l, one, first));
    CHECK(look_up(&s, m, l, &nr, NULL, NULL) == REMIXDB_OK);
    CHECK(list_of_part(&s, l, two, TWO_KEYS));
    s.p.ops.open = watch_open;
    s.p.ops.pread = watch_read;
    opens = reads_first = 0;
    CHECK(look_up(&s, m, l, &nr, NULL, NULL) == REMIXDB_OK);
    s.p.ops.open = place_open;
    s.p.ops.pread = place_read;
    CHECK(opens > 0 && (reads_first > 0) == (first >= 16));
  }
  multiget_destroy(m);
  scene_fini(&s);
  place_cold = false;
  atomic_store(&version_eager, VERSION_EAGER);
  free(l);
}

// ---- failures

static _Atomic int64_t mem_left;
static bool mem_some(size_t size) {
  (void)size;
  return atomic_fetch_sub_explicit(&mem_left, 1, memory_order_relaxed) > 0;
}

enum fault { FAIL_READ, FAIL_READS, FAIL_OPEN, FAIL_OPENS, FAIL_MEMORY, FAIL_KINDS };

// The n-th read, opening or allocation fails; in some rounds all later ones fail too. Returned values are right, a key
// may only be missed when the status says so, and the next call is whole again.
static void fails(void) {
  struct list *const l = malloc(sizeof(*l));
  place_max_open = 2;  // so that tables have to be opened all the time
  for (uint32_t kind = 0; kind < FAIL_KINDS; kind++) {
    uint64_t rng = check_seed + kind;
    uint32_t failed = 0, missed = 0, some = 0;
    // In some stores hardly anything has to be read: then another one. An opening that fails once is tried again.
    for (uint32_t nth = 0; nth == 0 || (nth < 10 && kind != FAIL_OPEN && (failed < 3 || missed == 0 || some == 0));
         nth++) {
      struct scene s;
      for (uint32_t tables = 0; tables < 6;) {  // not too few of them
        scene_init(&s, &(struct plan){6000, 200, 200, 3, 4, 6, kind % 2 ? 60 << 10 : 0}, rng_next(&rng));
        for (uint32_t i = 0; i < s.version->nr_parts; i++) tables += part_runs(s.version->parts[i]);
        if (tables >= 6) break;
        tables = 0;
        scene_fini(&s);
      }
      for (int64_t n = 1; n < 80; n++) {
        struct multiget *m = NULL;
        size_t nr = 0;
        list_random(&s, l, 350, &rng);
        if (kind == FAIL_READ || kind == FAIL_READS) fault_io_set(FAULT_READ, n, kind == FAIL_READS);
        if (kind == FAIL_OPEN || kind == FAIL_OPENS) fault_io_set(FAULT_OPEN, 1 + n % 3, kind == FAIL_OPENS);
        if (kind == FAIL_MEMORY) {
          atomic_store(&mem_left, n);
          atomic_store(&mem_fault, mem_some);
        }
        enum remixdb_status got = multiget_create(blkio_shared(&s.p.io), &m);
        if (got == REMIXDB_OK) {
          got = look_up(&s, m, l, &nr, NULL, NULL);
          (void)fault_io_end();
          atomic_store(&mem_fault, NULL);
          list_check(&s, l, got, nr, true);
          if (got != REMIXDB_OK && got != REMIXDB_TOOBIG) {
            failed++;
            CHECK(got == (kind == FAIL_MEMORY ? REMIXDB_NOMEM : REMIXDB_IO));
            if (kind != FAIL_MEMORY) CHECK(strstr(err_msg(), ".sst"));
            uint32_t lost = 0;
            for (uint32_t i = 0; i < l->nr; i++) {
              bool small;
              lost += !list_right(&s, l, i, false, &small);
            }
            missed += lost;
            some += lost && nr;
          }
          got = look_up(&s, m, l, &nr, NULL, NULL);
          list_check(&s, l, got, nr, false);
        }
        (void)fault_io_end();
        atomic_store(&mem_fault, NULL);
        multiget_destroy(m);
      }
      scene_fini(&s);
    }
    if (kind != FAIL_OPEN && (failed < 3 || missed == 0 || some == 0))
      fail_msg("TEST_SEED=%llu kind %u: %u calls failed, %u of them in part, %u keys", (unsigned long long)check_seed,
               kind, failed, some, missed);
  }
  place_max_open = 100;
  free(l);
}

static void test_fails(void **state) {
  (void)state;
  fails();
  scene_young = YOUNG_SOME;
  fails();
  scene_young = YOUNG_NOWHERE;
}

// A young view that cannot be read says nothing of a key, and the version of the older view is not given.
static void test_young_fails(void **state) {
  (void)state;
  struct list *const l = malloc(sizeof(*l));
  uint64_t rng = check_seed;
  scene_young = YOUNG_EVERYWHERE;
  for (uint32_t n = 0; n < 12; n++) {
    struct scene s;
    struct multiget *m;
    struct kv_rec r;
    struct sst_hold hold = {0};
    size_t nr;
    scene_long_keys = n % 3 == 0;
    scene_init(&s, &(struct plan){250, 0, 0, 2, 3, 4, n % 2 ? 1 << 20 : 0}, rng_next(&rng));
    OK(multiget_create(blkio_shared(&s.p.io), &m));
    const struct super v = {.version = s.version};
    uint32_t failed = 0;
    for (uint32_t a = 0; a < s.k.nr; a++) {
      if (n % 2 && a % 16) continue;  // cached blocks do not fail
      if (s.young[a] == NONE) continue;
      const struct kref key = s.k.keys[a];
      l->nr = 1;
      l->with_values = true;
      l->keys[0] = (struct remixdb_slice){key.ptr, key.len};
      l->values[0] = (struct remixdb_buf){l->value_room[0], ROOM, 0};
      memset(l->value_room[0], 0xEE, ROOM);
      fault_io_set(FAULT_READ, 1, false);
      enum remixdb_status got = look_up(&s, m, l, &nr, NULL, NULL);
      bool met = fault_io_end();
      CHECK(got == (met ? REMIXDB_IO : REMIXDB_OK));
      CHECK(nr == (!met && s.live[a] != NONE) && l->found[0] == nr);
      failed += met;
      fault_io_set(FAULT_READ, 1, false);
      enter(&s.p);
      got = xdb_below_get(&v, TREE_UNNAMED, key, hash64(key.ptr, key.len), s.moment, &hold, &r);
      leave(&s.p);
      met = fault_io_end();
      CHECK(got == (met ? REMIXDB_IO : REMIXDB_OK));
      sst_hold_fini(&hold);
    }
    if (s.version->nr_young && n % 2 == 0) CHECK(failed > 0);
    multiget_destroy(m);
    scene_fini(&s);
  }
  scene_long_keys = false;
  scene_young = YOUNG_NOWHERE;
  free(l);
}

// ---- whole stores

static char dir[TEMP_DIR];

static int setup(void **state) {
  (void)state;
  return temp_make(dir, "multiget") ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  return remove_tree(dir);
}

static struct xdb *open_with(const struct remixdb_opts *o) {
  struct xdb *const x = remixdb_open_opts(dir, o);
  CHECK(x != NULL);
  return x;
}

static void put(struct xdb_ref *r, const char *key, const char *val) {
  CHECK(remixdb_put(r, key, (uint32_t)strlen(key), val, (uint32_t)strlen(val)));
}
static struct remixdb_slice slice(const char *key) { return (struct remixdb_slice){key, (uint32_t)strlen(key)}; }

static void test_contract(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(1);
  struct xdb *const x = open_with(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  put(r, "", "of the empty key");
  put(r, "a", "apple");
  put(r, "b", "");
  put(r, "c", "cherry");
  put(r, "gone", "gone");
  CHECK(remixdb_del(r, "gone", 4));
  for (uint32_t flushed = 0; flushed < 2; flushed++) {
    char buf[8][32];
    memset(buf, 'x', sizeof(buf));
    const struct remixdb_slice keys[8] = {slice("c"),    slice("nothing"), slice("a"), {NULL, 0},
                                          slice("gone"), slice("a"),       slice("b"), slice("c")};
    struct remixdb_buf vals[8];
    bool found[8] = {false, true, false, false, true, false, false, false};
    for (uint32_t i = 0; i < 8; i++) vals[i] = (struct remixdb_buf){buf[i], sizeof(buf[i]), 99};
    vals[7] = (struct remixdb_buf){NULL, 0, 99};  // only the length
    vals[6].cap = 0;                              // an empty value fits into nothing
    CHECK(remixdb_multi_get(r, 8, keys, vals, found) == 6 && remixdb_errcode() == REMIXDB_OK);
    static const char *const want[8] = {"cherry", NULL, "apple", "of the empty key", NULL, "apple", "", "cherry"};
    for (uint32_t i = 0; i < 8; i++) {
      CHECK(found[i] == (want[i] != NULL));
      CHECK(vals[i].len == (want[i] ? strlen(want[i]) : 0));
      if (want[i] && i != 7) CHECK(memcmp(buf[i], want[i], vals[i].len) == 0 && buf[i][vals[i].len] == 'x');
      if (!want[i]) CHECK(buf[i][0] == 'x');
    }
    // values that do not fit
    memset(buf, 'x', sizeof(buf));
    vals[2].cap = 3;
    vals[3].cap = 0;
    CHECK(remixdb_multi_get(r, 8, keys, vals, found) == 6 && remixdb_errcode() == REMIXDB_TOOBIG);
    CHECK(strstr(remixdb_errmsg(), "key 2") && strstr(remixdb_errmsg(), "5 bytes"));
    CHECK(found[2] && vals[2].len == 5 && memcmp(buf[2], "appx", 4) == 0);
    CHECK(found[3] && vals[3].len == 16 && buf[3][0] == 'x');
    CHECK(found[5] && vals[5].len == 5 && memcmp(buf[5], "applex", 6) == 0);
    // existence
    memset(found, true, sizeof(found));
    CHECK(remixdb_multi_get(r, 8, keys, NULL, found) == 6 && remixdb_errcode() == REMIXDB_OK);
    for (uint32_t i = 0; i < 8; i++) CHECK(found[i] == (want[i] != NULL));
    // nothing asked, nothing found: no error
    CHECK(remixdb_multi_get(r, 0, NULL, NULL, NULL) == 0 && remixdb_errcode() == REMIXDB_OK);
    CHECK(remixdb_multi_get(r, 1, keys + 1, vals, found) == 0 && remixdb_errcode() == REMIXDB_OK);
    // refused calls touch nothing
    struct remixdb_slice bad_key = {NULL, 3}, long_key = {buf, REMIXDB_KV_MAX + 1};
    struct remixdb_buf bad_val = {NULL, 3, 99};
    bool said = true;
    CHECK(remixdb_multi_get(NULL, 1, keys, vals, &said) == 0 && remixdb_errcode() == REMIXDB_INVALID);
    CHECK(remixdb_multi_get(NULL, 0, keys, vals, &said) == 0 && remixdb_errcode() == REMIXDB_INVALID);
    CHECK(remixdb_multi_get(r, 1, NULL, vals, &said) == 0 && remixdb_errcode() == REMIXDB_INVALID);
    CHECK(remixdb_multi_get(r, 1, keys, vals, NULL) == 0 && remixdb_errcode() == REMIXDB_INVALID);
    CHECK(remixdb_multi_get(r, 1, &bad_key, vals, &said) == 0 && remixdb_errcode() == REMIXDB_INVALID);
    CHECK(remixdb_multi_get(r, 1, &long_key, vals, &said) == 0 && remixdb_errcode() == REMIXDB_INVALID);
    CHECK(remixdb_multi_get(r, 1, keys, &bad_val, &said) == 0 && remixdb_errcode() == REMIXDB_INVALID);
    CHECK(said && bad_val.len == 99 && strlen(remixdb_errmsg()) > 0);
    OK(xdb_flush(x));
  }
  remixdb_unref(r);
  remixdb_close(x);
}

// Keys by number. In long ones the difference is farther from the beginning than a REMIX can say.
static uint32_t numbered_key(uint32_t i, bool lengthy, uint8_t *buf) {
  uint32_t len = 0;
  if (lengthy) {
    len = 20 + i % 7 * 1500;
    memset(buf, 'k', len);
    if (len > 20) buf[10] = (uint8_t)('a' + i % 3);
  }
  return len + (uint32_t)sprintf((char *)buf + len, "%s%07u", i % 5 ? "key" : "another", i * 11);
}

static uint32_t numbered_value(uint32_t i, uint32_t version, uint32_t most, uint8_t *buf) {
  uint64_t r = (uint64_t)i << 32 | version;
  const uint32_t len = (uint32_t)(rng_next(&r) % (rng_next(&r) % 50 ? most : most * 20));
  memset(buf, (int)rng_next(&r), len);
  if (len >= 8) store64le(buf, rng_next(&r));
  return len;
}

struct kind {
  const char *io;
  uint32_t cache_mb;
  bool zstd, tags, direct, lengthy;
};

static const struct kind kinds[] = {
    {"uring", 0, false, true, false, false},   {"uring", 1, true, true, true, false},
    {"uring", 64, false, false, false, false}, {"aio", 0, true, false, false, false},
    {"aio", 1, false, true, true, false},      {"sync", 0, false, true, false, false},
    {"sync", 1, true, true, false, false},     {"uring", 0, false, false, false, true},
    {"uring", 1, false, true, false, true},
};

#define STORE_KEYS 4000u
#define GROUP_KEYS 300u

struct group {
  struct remixdb_slice keys[GROUP_KEYS];
  struct remixdb_buf values[GROUP_KEYS];
  bool found[GROUP_KEYS];
  uint32_t ids[GROUP_KEYS];
  uint8_t *key_room, *value_room;
};

#define KEY_ROOM 10000u
#define VALUE_ROOM 12000u

static struct group *group_make(void) {
  struct group *const g = calloc(1, sizeof(*g));
  g->key_room = malloc(GROUP_KEYS * KEY_ROOM);
  g->value_room = malloc(GROUP_KEYS * VALUE_ROOM);
  for (uint32_t i = 0; i < GROUP_KEYS; i++) g->keys[i].ptr = g->key_room + i * KEY_ROOM;
  return g;
}

static void group_free(struct group *g) {
  free(g->key_room);
  free(g->value_room);
  free(g);
}

static void group_set(struct group *g, uint32_t i, uint32_t id, bool lengthy) {
  g->ids[i] = id;
  g->keys[i].len = numbered_key(id, lengthy, g->key_room + i * KEY_ROOM);
  g->values[i] = (struct remixdb_buf){g->value_room + i * VALUE_ROOM, VALUE_ROOM, 99};
}

static void test_store(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct group *const g = group_make();
  static uint32_t now[STORE_KEYS], then[STORE_KEYS];
  static uint8_t key[KEY_ROOM], val[VALUE_ROOM], got[VALUE_ROOM];
  for (uint32_t n = 0; n < sizeof(kinds) / sizeof(kinds[0]); n++) {
    const struct kind *const kind = &kinds[n];
    const uint32_t nr_keys = kind->lengthy ? 900 : STORE_KEYS, most = 150;
    struct remixdb_opts o = small_opts(1);
    o.io = kind->io;
    o.cache_mb = kind->cache_mb;
    o.compression = kind->zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
    o.tags = kind->tags;
    o.direct_io = kind->direct;
    struct xdb *const x = open_with(&o);
    struct xdb_ref *const r = remixdb_ref(x);
    struct xdb_snapshot *snap = NULL;
    struct xdb_ref *snap_ref = NULL;
    memset(now, 0, sizeof(now));
    for (uint32_t round = 0; round < 9; round++) {
      for (uint32_t i = 0; i < nr_keys / 3; i++) {
        const uint32_t id = (uint32_t)(rng_next(&rng) % nr_keys), klen = numbered_key(id, kind->lengthy, key);
        now[id] = rng_next(&rng) % 6 ? round * 100000 + i + 1 : 0;
        if (now[id]) CHECK(remixdb_put(r, key, klen, val, numbered_value(id, now[id], most, val)));
        else CHECK(remixdb_del(r, key, klen));
      }
      if (round == 5) {
        CHECK((snap = remixdb_snapshot(r)) && (snap_ref = remixdb_snapshot_ref(snap)));
        memcpy(then, now, sizeof(now));
      }
      if (round % 3 == 2) OK(xdb_flush(x));
      for (uint32_t turn = 0; turn < (snap ? 2 : 1); turn++) {
        const uint32_t nr = (uint32_t)(rng_next(&rng) % 3 ? GROUP_KEYS : 1 + rng_next(&rng) % GROUP_KEYS),
                       *const want = turn ? then : now;
        struct xdb_ref *const at = turn ? snap_ref : r;
        for (uint32_t i = 0; i < nr; i++)  // every tenth is none of them
          group_set(g, i, (uint32_t)(rng_next(&rng) % (nr_keys + nr_keys / 10)), kind->lengthy);
        const size_t nr_found = remixdb_multi_get(at, nr, g->keys, g->values, g->found);
        CHECK(remixdb_errcode() == REMIXDB_OK);
        size_t count = 0;
        for (uint32_t i = 0; i < nr; i++) {
          const uint32_t id = g->ids[i], version = id < nr_keys ? want[id] : 0;
          CHECK(g->found[i] == (version != 0));
          uint32_t len = 0;
          CHECK(remixdb_getn(at, g->keys[i].ptr, g->keys[i].len, got, sizeof(got), &len) == g->found[i]);
          count += g->found[i];
          if (!version) continue;
          CHECK(g->values[i].len == numbered_value(id, version, most, val));
          CHECK(memcmp(g->values[i].ptr, val, g->values[i].len) == 0);
          CHECK(len == g->values[i].len && memcmp(got, val, len) == 0);
        }
        CHECK(nr_found == count);
      }
    }
    remixdb_unref(snap_ref);
    remixdb_snapshot_release(snap);
    remixdb_unref(r);
    remixdb_close(x);
    CHECK(remixdb_errcode() == REMIXDB_OK);
    CHECK(teardown(NULL) == 0 && mkdir(dir, 0700) == 0);
  }
  group_free(g);
}

// Absent keys read hardly a block from disk, though an entry of their segment has their tag.
static void test_absent(void **state) {
  (void)state;
  struct group *const g = group_make();
  static uint8_t key[KEY_ROOM], val[VALUE_ROOM];
  struct remixdb_opts o = small_opts(1);
  o.cache_mb = 0;
  o.tags = true;
  struct xdb *const x = open_with(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  for (uint32_t id = 0; id < 2 * STORE_KEYS; id += 2) {
    const uint32_t klen = numbered_key(id, false, key);
    CHECK(remixdb_put(r, key, klen, val, numbered_value(id, 1, 100, val)));
  }
  OK(xdb_flush(x));
  for (uint32_t there = 0; there < 2; there++) {
    const uint64_t before = atomic_load(&x->io.nr_reads);
    uint32_t nr = 0;
    for (uint32_t from = 0; from + GROUP_KEYS <= STORE_KEYS; from += GROUP_KEYS, nr += GROUP_KEYS) {
      for (uint32_t i = 0; i < GROUP_KEYS; i++) group_set(g, i, 2 * (from + i) + !there, false);
      CHECK(remixdb_multi_get(r, GROUP_KEYS, g->keys, g->values, g->found) == (there ? GROUP_KEYS : 0));
    }
    const uint64_t reads = atomic_load(&x->io.nr_reads) - before;
    CHECK(nr >= STORE_KEYS / 2);
    CHECK(there ? reads > nr / 100 : reads <= nr / 20);
  }
  remixdb_unref(r);
  remixdb_close(x);
  group_free(g);
}

// A disk whose reads fail, and one that changes written bytes: no wrong data, and the status says so.
static void test_bad_disk(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct group *const g = group_make();
  static uint8_t key[KEY_ROOM], val[VALUE_ROOM];
  for (uint32_t cache = 0; cache < 2; cache++) {
    struct simdisk *const d = simdisk_create();
    struct remixdb_opts o = small_opts(1);
    o.workers = 0;
    o.cache_mb = cache;
    struct xdb *x;
    struct xdb_ref *r;
    OK(xdb_open("/store", &o, simdisk_env(d), &x));
    OK(xdb_ref(x, &r));
    for (uint32_t id = 0; id < STORE_KEYS; id++) {
      const uint32_t klen = numbered_key(id, false, key);
      OK(xdb_put(r, KV_REC(kref(key, klen), val, numbered_value(id, 1, 600, val), false)));
    }
    OK(xdb_flush(x));
    for (uint32_t turn = 0; turn < 2; turn++) {
      if (turn) {  // damage that stays
        const struct version *const v = atomic_load(&x->super)->version;
        uint32_t hit = 0;
        for (uint32_t p = 0; p < v->nr_parts; p++) {
          const struct sst *const t = v->parts[p]->remix ? v->parts[p]->remix->runs[0] : NULL;
          for (uint32_t page = 1; t && page < t->nr_pages; page += 4, hit++)
            CHECK(simdisk_flip(d, t->path, (uint64_t)page * 4096 + rng_next(&rng) % 4096, 0x10));
        }
        CHECK(hit > 20);
        xdb_unref(r);
        OK(xdb_close(x));
        OK(xdb_open("/store", &o, simdisk_env(d), &x));  // and with nothing in the cache
        OK(xdb_ref(x, &r));
      }
      uint32_t failed = 0, lost = 0;
      for (uint32_t round = 0; round < 40; round++) {
        const uint32_t nr = 1 + (uint32_t)(rng_next(&rng) % GROUP_KEYS);
        if (!turn) {
          simdisk_fault_name(d, "0");
          simdisk_fault(d, SIMDISK_READ, rng_next(&rng) % 20, 1 + rng_next(&rng) % 10, EIO);
        }
        for (uint32_t i = 0; i < nr; i++) group_set(g, i, (uint32_t)(rng_next(&rng) % STORE_KEYS), false);
        const size_t nr_found = remixdb_multi_get(r, nr, g->keys, g->values, g->found);
        const enum remixdb_status s = remixdb_errcode();
        simdisk_fault(d, SIMDISK_READ, 0, 0, 0);
        size_t missing = 0;
        for (uint32_t i = 0; i < nr; i++) {
          missing += !g->found[i];
          if (g->found[i]) CHECK(g->values[i].len == numbered_value(g->ids[i], 1, 600, val));
          else CHECK(g->values[i].len == 0);
          if (g->found[i]) CHECK(memcmp(g->values[i].ptr, val, g->values[i].len) == 0);
        }
        CHECK(nr_found == nr - missing);
        CHECK(s == (missing == 0 ? REMIXDB_OK : turn ? REMIXDB_CORRUPT : REMIXDB_IO));
        if (missing) CHECK(strstr(remixdb_errmsg(), ".sst") || strstr(remixdb_errmsg(), ".val"));
        failed += missing != 0;
        lost += missing < nr && missing;
      }
      if (failed <= 10 || lost <= 5)
        fail_msg("cache %u turn %u: %u failed, %u of them in part", cache, turn, failed, lost);
    }
    xdb_unref(r);
    OK(xdb_close(x));
    simdisk_destroy(d);
  }
  group_free(g);
}

// ---- threads

#define THREAD_CHECK(cond)                                                                                  \
  do {                                                                                                      \
    if (!(cond)) {                                                                                          \
      fprintf(stderr, "TEST_SEED=%llu line %d: %s (%s)\n", (unsigned long long)check_seed, __LINE__, #cond, \
              remixdb_errmsg());                                                                            \
      abort();                                                                                              \
    }                                                                                                       \
  } while (0)

#define WAVE_KEYS 1500u
#define WAVES 25u

struct waves {
  struct xdb *xdb;
  _Atomic bool done;
  _Atomic uint32_t looks, crossed;  // crossed: saw a wave on its way
};

// Writes wave after wave over all keys in order, with enough beside it that memtables fill and are compacted.
static void *wave_writer(void *arg) {
  struct waves *const w = arg;
  struct xdb_ref *const r = remixdb_ref(w->xdb);
  uint8_t key[64], val[600];
  memset(val, 'v', sizeof(val));
  for (uint32_t wave = 1; wave <= WAVES; wave++) {
    for (uint32_t i = 0; i < WAVE_KEYS; i++) {
      store32le(val, wave);
      THREAD_CHECK(remixdb_put(r, key, numbered_key(i, false, key), val, 4 + wave * i % 200));
      if (i % 4 == 0) THREAD_CHECK(remixdb_put(r, key, numbered_key(100000 + i, false, key), val, sizeof(val)));
    }
  }
  remixdb_unref(r);
  atomic_store(&w->done, true);
  return NULL;
}

// At any moment the keys up to some one are of a wave, and those after it of the wave before.
static void *wave_reader(void *arg) {
  struct waves *const w = arg;
  struct xdb_ref *const r = remixdb_ref(w->xdb);
  struct group *const g = group_make();
  static _Thread_local bool found[WAVE_KEYS];
  struct remixdb_slice *const keys = calloc(WAVE_KEYS, sizeof(*keys));
  struct remixdb_buf *const vals = calloc(WAVE_KEYS, sizeof(*vals));
  uint8_t(*const room)[64] = malloc(WAVE_KEYS * 64);
  uint32_t *const waves = calloc(WAVE_KEYS, sizeof(*waves));
  bool last = false;
  while (!last) {
    last = atomic_load(&w->done);
    for (uint32_t i = 0; i < WAVE_KEYS; i++) {
      keys[i] = (struct remixdb_slice){room[i], numbered_key(i, false, room[i])};
      vals[i] = (struct remixdb_buf){&waves[i], 4, 0};
      waves[i] = 0;
    }
    const size_t nr = remixdb_multi_get(r, WAVE_KEYS, keys, vals, found);
    THREAD_CHECK(remixdb_errcode() == REMIXDB_OK || remixdb_errcode() == REMIXDB_TOOBIG);
    uint32_t steps = 0;
    for (uint32_t i = 1; i < WAVE_KEYS; i++) {
      if (waves[i] == waves[i - 1]) continue;
      THREAD_CHECK(waves[i] + 1 == waves[i - 1]);
      steps++;
    }
    THREAD_CHECK(steps <= 1);
    THREAD_CHECK(nr == WAVE_KEYS || waves[0] <= 1);
    if (steps) atomic_fetch_add(&w->crossed, 1);
    atomic_fetch_add(&w->looks, 1);
  }
  THREAD_CHECK(waves[WAVE_KEYS - 1] == WAVES);
  free(keys);
  free(vals);
  free(room);
  free(waves);
  group_free(g);
  remixdb_unref(r);
  return NULL;
}

static void test_one_moment(void **state) {
  (void)state;
  for (uint32_t cache = 0; cache < 2; cache++) {
    struct remixdb_opts o = small_opts(1);
    o.cache_mb = cache;
    struct waves w = {.xdb = open_with(&o)};
    pthread_t t[3];
    for (uint32_t i = 0; i < 3; i++) OK(thread_start(&t[i], i ? wave_reader : wave_writer, &w, "waves"));
    for (uint32_t i = 0; i < 3; i++) CHECK(pthread_join(t[i], NULL) == 0);
    CHECK(atomic_load(&w.looks) > 2 && atomic_load(&w.crossed) > 0);
    CHECK(stat_of(w.xdb, "rounds") > 0);  // there was compaction
    remixdb_close(w.xdb);
    CHECK(teardown(NULL) == 0 && mkdir(dir, 0700) == 0);
  }
}

// Readers of all kinds in a cache that is too small, while a writer replaces the records.

struct crowd {
  struct xdb *xdb;
  _Atomic uint32_t version[STORE_KEYS];  // at least this one is there
  _Atomic bool done;
  uint32_t rounds;
};

static void *crowd_writer(void *arg) {
  struct crowd *const c = arg;
  struct xdb_ref *const r = remixdb_ref(c->xdb);
  uint64_t rng = check_seed;
  uint8_t key[64], *const val = malloc(VALUE_ROOM);
  for (uint32_t n = 1; n <= c->rounds; n++) {
    const uint32_t id = (uint32_t)(rng_next(&rng) % STORE_KEYS);
    memset(val, 'w', VALUE_ROOM);
    store32le(val, n);
    store32le(val + 4, id);
    THREAD_CHECK(
        remixdb_put(r, key, numbered_key(id, false, key), val, 8 + (uint32_t)(rng_next(&rng) % (n % 50 ? 700 : 6000))));
    atomic_store(&c->version[id], n);
  }
  free(val);
  remixdb_unref(r);
  atomic_store(&c->done, true);
  return NULL;
}

static void *crowd_reader(void *arg) {
  struct crowd *const c = arg;
  struct xdb_ref *const r = remixdb_ref(c->xdb);
  struct group *const g = group_make();
  uint64_t rng = (uintptr_t)g;
  static _Thread_local uint32_t least[GROUP_KEYS];
  bool last = false;
  while (!last) {
    last = atomic_load(&c->done);
    const uint32_t nr = rng_next(&rng) % 4 ? GROUP_KEYS : 1 + (uint32_t)(rng_next(&rng) % 20);
    for (uint32_t i = 0; i < nr; i++) {
      group_set(g, i, (uint32_t)(rng_next(&rng) % STORE_KEYS), false);
      least[i] = atomic_load(&c->version[g->ids[i]]);
    }
    if (rng_next(&rng) % 4 == 0) {
      for (uint32_t i = 0; i < nr; i++) {
        g->found[i] = remixdb_getn(r, g->keys[i].ptr, g->keys[i].len, g->values[i].ptr, VALUE_ROOM, &g->values[i].len);
        THREAD_CHECK(g->found[i] || remixdb_errcode() == REMIXDB_NOTFOUND);
      }
    } else {
      (void)remixdb_multi_get(r, nr, g->keys, g->values, g->found);
      THREAD_CHECK(remixdb_errcode() == REMIXDB_OK);
    }
    for (uint32_t i = 0; i < nr; i++) {
      THREAD_CHECK(g->found[i] || least[i] == 0);
      if (!g->found[i]) continue;
      THREAD_CHECK(g->values[i].len >= 8 && load32le((uint8_t *)g->values[i].ptr + 4) == g->ids[i]);
      THREAD_CHECK(load32le(g->values[i].ptr) >= least[i]);
    }
  }
  group_free(g);
  remixdb_unref(r);
  return NULL;
}

static void test_crowd(void **state) {
  (void)state;
  static const char *const ios[] = {"uring", "sync"};
  for (uint32_t n = 0; n < 4; n++) {
    struct remixdb_opts o = small_opts(1);
    o.io = ios[n / 2];
    o.cache_mb = n % 2;
    struct crowd *const c = calloc(1, sizeof(*c));
    c->xdb = open_with(&o);
    c->rounds = 9000;
    pthread_t t[4];
    for (uint32_t i = 0; i < 4; i++) OK(thread_start(&t[i], i ? crowd_reader : crowd_writer, c, "crowd"));
    for (uint32_t i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
    remixdb_close(c->xdb);
    free(c);
    CHECK(teardown(NULL) == 0 && mkdir(dir, 0700) == 0);
  }
}

int main(void) {
  const char *const s = getenv("TEST_SEED");
  check_seed = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL);
  (void)unsetenv("REMIXDB_IO");  // the engines are chosen here
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_model),
      cmocka_unit_test(test_young),
      cmocka_unit_test(test_keeps_memory),
      cmocka_unit_test(test_cold_turns),
      cmocka_unit_test(test_waits_for_no_descriptor),
      cmocka_unit_test(test_cold_groups),
      cmocka_unit_test(test_fails),
      cmocka_unit_test(test_young_fails),
      cmocka_unit_test_setup_teardown(test_contract, setup, teardown),
      cmocka_unit_test_setup_teardown(test_store, setup, teardown),
      cmocka_unit_test_setup_teardown(test_absent, setup, teardown),
      cmocka_unit_test(test_bad_disk),
      cmocka_unit_test_setup_teardown(test_one_moment, setup, teardown),
      cmocka_unit_test_setup_teardown(test_crowd, setup, teardown),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (failed) fprintf(stderr, "repeat with TEST_SEED=%llu\n", (unsigned long long)check_seed);
  return failed;
}
