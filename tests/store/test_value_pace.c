// SPDX-License-Identifier: Apache-2.0
//
// A writer that overwrites values as fast as it can does not outrun the collection of garbage: the value files never
// take more than 1.6 times what lives, and the values of two full memtables.
#include "tests/lib/store.h"

#include "store/value_pace.h"
#include "store/values.h"

#define LIVE (20u << 20)            // bytes of all values
#define HELD (4u << 20)             // of a full memtable
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

// Overwrites values of one length. Returns the most bytes that the value files took.
static uint64_t overwrite(int workers, uint32_t len, bool in_order) {
  struct remixdb_opts o = small_opts(workers);
  const uint32_t keys = LIVE / len;
  uint64_t most = 0;
  setup_again();
  x = quick_open(&o);
  shrink(x, 1u << 20, 64);
  x->values.full = x->compact.values.full = 16u << 20;
  x->values_least = HELD;
  value_pace_init(x);
  GOOD((r = remixdb_ref(x)) != NULL);
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
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
