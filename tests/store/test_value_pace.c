// SPDX-License-Identifier: Apache-2.0
//
// A writer that overwrites values as fast as it can does not outrun the collection of garbage: the value files never
// take more than 1.6 times what lives, and the values of two full memtables.
#include "tests/lib/store.h"

#include "store/value_pace.h"
#include "store/values.h"

#define LIVE (20u << 20)            // bytes of all values
#define HELD (4u << 20)             // bytes of a full memtable
#define TURNS (SLOW > 1 ? 3u : 6u)  // times that all is written

static struct xdb *x;
static struct xdb_ref *r;
static uint64_t rng;
static uint8_t *val;

#define GOOD(call) CHECK_SAYS((call), "%s: %s", remixdb_strerror(remixdb_errcode()), remixdb_errmsg())

static uint64_t figure(const char *name) {
  uint64_t n;
  GOOD(remixdb_figure(x, name, &n));
  return n;
}

static void put(uint32_t i, uint32_t len, bool batch) {
  char k[16];
  const uint32_t klen = (uint32_t)snprintf(k, sizeof(k), "key-%06u", i);
  store64le(val, rng_next(&rng));
  if (batch) {
    struct xdb_batch *const b = remixdb_batch_create();
    GOOD(remixdb_batch_put(b, k, klen, val, len));
    GOOD(remixdb_write(r, b));
    remixdb_batch_destroy(b);
  } else {
    GOOD(remixdb_put(r, k, klen, val, len));
  }
}

// Opens a new store with small memtables and value files.
static void open_small(int workers) {
  const struct remixdb_opts o = small_opts(workers);
  x = quick_open(&o);
  shrink(x, 1u << 20, 64);
  x->values.full = x->compact.values.full = 16u << 20;
  x->values_least = HELD;
  value_pace_init(x);
  GOOD((r = remixdb_ref(x)) != NULL);
}

// Overwrites values of one length. Returns the most bytes that the value files took.
static uint64_t overwrite(int workers, uint32_t len, bool in_order) {
  const uint32_t keys = LIVE / len;
  uint64_t most = 0;
  setup_again();
  open_small(workers);
  for (uint32_t i = 0; i < keys; i++) put(i, len, false);
  for (uint32_t t = 1; t < TURNS; t++) {
    for (uint32_t i = 0; i < keys; i++) {
      put(in_order ? i : (uint32_t)below(&rng, keys), len, t % 4 == 3);
      const uint64_t room = atomic_load(&x->value_ctx.room);
      if (room > most) most = room;
    }
  }
  CHECK(figure("values.collections") > 0);
  CHECK(values_most(x) == HELD);
  for (uint32_t i = 0; i < keys; i += 7) {
    char k[16];
    uint32_t n;
    GOOD(remixdb_get(r, k, (uint32_t)snprintf(k, sizeof(k), "key-%06u", i), val, &n));
    CHECK(n == len);
  }
  OK(xdb_wait_idle(x));
  GOOD(remixdb_compact(r));
  // A tenth may be garbage. Heads of values, and indexes that lead to moved ones, take a hundredth more.
  CHECK_SAYS(figure("values.room") < LIVE + LIVE / 6, "%llu", (unsigned long long)figure("values.room"));
  remixdb_unref(r);
  remixdb_close(x);
  return most;
}

static void test_room(void **state) {
  (void)state;
  const uint64_t bound = (uint64_t)LIVE / 10 * 16 + 2 * HELD + LIVE / 16;  // and a file that is being collected
  static const uint32_t lens[] = {64u << 10, 300u << 10, 8u << 10};
  for (int workers = 0; workers < (SLOW > 1 ? 2 : 3); workers++) {
    for (uint32_t i = 0; i<6; i += SLOW> 1 ? 5 : 1) {
      const uint64_t most = overwrite(workers, lens[i / 2], i % 2);
      CHECK_SAYS(most <= bound, "%d workers, %u bytes, %s: %llu of %llu bytes", workers, lens[i / 2],
                 i % 2 ? "in order" : "random", (unsigned long long)most, (unsigned long long)bound);
    }
  }
}

static enum remixdb_merge_op replace(const void *v0, uint32_t vlen0, const void **v1, uint32_t *vlen1, void *priv) {
  (void)v0, (void)vlen0;
  *v1 = val;
  *vlen1 = *(const uint32_t *)priv;
  return REMIXDB_MERGE_PUT;
}

// Every kind of write freezes the memtable whose values have become too many: one key is overwritten again and again.
static void test_kinds(void **state) {
  (void)state;
  enum { PUT, MERGE, PUT_IF, RANGE, KINDS };
  const uint32_t len = 600u << 10, turns = 64;
  open_small(1);
  for (uint32_t kind = 0; kind < KINDS; kind++) {
    const uint64_t rounds = figure("compaction.rounds");
    uint64_t version = 0;
    const char key = (char)('a' + kind);
    for (uint32_t i = 0; i < turns; i++) {
      uint32_t n;
      if (kind == PUT) GOOD(remixdb_put(r, &key, 1, val, len));
      if (kind == MERGE) GOOD(remixdb_merge(r, &key, 1, replace, (void *)(uintptr_t)&len));
      if (kind == PUT_IF) {
        GOOD(remixdb_put_if(r, &key, 1, val, len, version));
        CHECK(!remixdb_getv(r, &key, 1, NULL, 0, &n, &version) && remixdb_errcode() == REMIXDB_TOOBIG);
      }
      if (kind == RANGE) {
        struct xdb_batch *const b = remixdb_batch_create();
        GOOD(remixdb_batch_del_range(b, &(struct remixdb_range){{"x", 1}, {"y", 1}}));
        GOOD(remixdb_batch_put(b, &key, 1, val, len));
        GOOD(remixdb_write(r, b));
        remixdb_batch_destroy(b);
      }
    }
    OK(xdb_wait_idle(x));
    CHECK_SAYS(figure("compaction.rounds") - rounds >= (uint64_t)turns * len / HELD / 2, "kind %u", kind);
  }
  remixdb_unref(r);
  remixdb_close(x);
}

// After an opening all values count as live, until a round has looked.
static void test_opened(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(1);
  for (uint32_t pass = 0; pass < 2; pass++) {
    x = pass ? remixdb_open_opts(dir, &o) : quick_open(&o);
    GOOD(x && (r = remixdb_ref(x)) != NULL);
    const uint64_t room = atomic_load(&x->value_ctx.room);
    if (pass) CHECK(room > LIVE && atomic_load(&x->collect.allowed) > room + 2 * values_most(x));
    for (uint32_t i = 0; i < 40 && !pass; i++) put(i, LIVE / 40, false);
    remixdb_unref(r);
    remixdb_close(x);
  }
}

// Values in young views that can hide nothing long count as live.
static void test_young(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(1);
  x = quick_open(&o);
  x->values_least = HELD;
  value_pace_init(x);
  GOOD((r = remixdb_ref(x)) != NULL);
  for (uint32_t i = 0; i < 50000; i++) put(i * 10, 10, false);
  GOOD(remixdb_compact(r));
  for (uint32_t i = 0; i < 40; i++) put(i * 10000 + 5, LIVE / 40, false);
  GOOD(remixdb_flush(r));
  OK(xdb_wait_idle(x));
  CHECK(figure("young_views") > 0);
  const uint64_t room = atomic_load(&x->value_ctx.room), allowed = atomic_load(&x->collect.allowed);
  CHECK_SAYS(room > LIVE && allowed > room + 2 * values_most(x), "%llu, %llu", (unsigned long long)room,
             (unsigned long long)allowed);
  remixdb_unref(r);
  remixdb_close(x);
}

static int pace_setup(void **state) {
  if (!val) val = calloc(1, 1u << 20);
  rng = check_seed;
  atomic_store(&value_pace_most_ns, 5000000000u);  // a slow machine takes longer to collect as much
  return setup(state);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_room, pace_setup, teardown),
      cmocka_unit_test_setup_teardown(test_kinds, pace_setup, teardown),
      cmocka_unit_test_setup_teardown(test_opened, pace_setup, teardown),
      cmocka_unit_test_setup_teardown(test_young, pace_setup, teardown),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
