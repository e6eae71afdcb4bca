// SPDX-License-Identifier: Apache-2.0
//
// The log of a store: an opening replays many records with several threads, and the log says how far it is durable.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "tests/lib/check.h"
#include "tests/lib/store.h"

static uint64_t seed_first;  // the seed of all tests

// ---- many records: several versions of a key, neighbours that come together, large records between small ones

#define KEYS 2000u
#define WRITES 8000u

static uint32_t replay_key(uint8_t *buf, uint32_t i) {
  return (uint32_t)snprintf((char *)buf, 16, "%c%05u", 'a' + (int)(i % 7), i * 7919 % 100003);
}

// The number of each key's last write (0: none, or a delete), and its length.
static uint32_t last[KEYS], len[KEYS];
static uint8_t val[REMIXDB_KV_MAX], want[REMIXDB_KV_MAX];

static void write_many(struct xdb_ref *r, uint32_t round, uint64_t *rng) {
  for (uint32_t i = 1; i <= WRITES; i++) {
    const uint32_t k = (uint32_t)(i % 3 ? rng_next(rng) % KEYS : i / 3 % KEYS), number = i + WRITES * round;
    uint8_t key[16];
    const uint32_t klen = replay_key(key, k);
    if (rng_next(rng) % 10 == 0) {
      last[k] = 0;
      CHECK(remixdb_del(r, key, klen));
      continue;
    }
    last[k] = number;
    len[k] = rng_next(rng) % 500 ? (uint32_t)(rng_next(rng) % 100) : (uint32_t)(rng_next(rng) % 60000);
    memset(val, (int)(number % 251), len[k]);
    CHECK(remixdb_put(r, key, klen, val, len[k]));
  }
}

static void check_last(struct xdb_ref *r, int workers) {
  for (uint32_t k = 0; k < KEYS; k++) {
    uint8_t key[16];
    uint32_t vlen;
    const uint32_t klen = replay_key(key, k);
    const bool there = remixdb_get(r, key, klen, val, &vlen);
    memset(want, (int)(last[k] % 251), last[k] ? len[k] : 0);
    CHECK_SAYS(there == (last[k] != 0) && (!there || (vlen == len[k] && memcmp(val, want, vlen) == 0)),
               "%d workers: key %u is not as its last write left it", workers, k);
  }
}

static void test_replay(void **state) {
  (void)state;
  for (int workers = 0; workers <= 3; workers++) {
    struct remixdb_opts o = small_opts(workers);
    o.memtable_mb = 64;
    o.wal_mb = 0;
    uint64_t rng = check_seed = seed_first + (uint64_t)workers;
    memset(last, 0, sizeof(last));
    for (uint32_t round = 0; round < 2; round++) {  // the second one replays two segments
      struct xdb *x = remixdb_open_opts(dir, &o);
      CHECK(x);
      struct xdb_ref *r = remixdb_ref(x);
      write_many(r, round, &rng);
      remixdb_unref(r);
      x->leave_log = true;
      remixdb_close(x);
      CHECK(remixdb_errcode() == REMIXDB_OK && (x = remixdb_open_opts(dir, &o)) && (r = remixdb_ref(x)));
      x->leave_log = true;
      CHECK(x->recovery.nr_records == (round + 1) * WRITES && xdb_super(x)->version->parts[0]->remix == NULL);
      char why[200];
      CHECK_SAYS(wh_check(xdb_super(x)->active->wh, why, sizeof(why)), "%d workers: %s", workers, why);
      check_last(r, workers);
      remixdb_unref(r);
      remixdb_close(x);
    }
    setup_again();
  }
}

// ---- syncs

static void test_sync_every(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(1);
  o.sync = 1;
  struct xdb *const x = remixdb_open_opts(dir, &o);
  CHECK(x);
  struct xdb_ref *const r = remixdb_ref(x);
  for (uint32_t k = 0; k < 50; k++) {
    CHECK(remixdb_put(r, &k, sizeof(k), &k, sizeof(k)));
    if (k % 10) continue;
    while (stat_of(x, "durable_sequence") < stat_of(x, "sequence"))
      time_sleep_ns(200000);  // hangs when it never becomes durable
  }
  // when the log has come to rest it says how far it is durable
  char path[ENV_PATH_MAX];
  uint8_t head[512];
  OK(env_path(path, dir, "wal-0"));
  do {
    time_sleep_ns(20000000);
    FILE *const f = fopen(path, "rb");
    CHECK(f && fread(head, sizeof(head), 1, f) == 1 && fclose(f) == 0);
  } while (load64le(head + 464) == 0);
  CHECK(load64le(head + 464) == wal_segment_bytes(x->wal));
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

int main(void) {
  seed_first = check_seed_or(time_ns() % 1000000 * 1000);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_replay, setup, teardown),
      cmocka_unit_test_setup_teardown(test_sync_every, setup, teardown),
  };
  return cmocka_run_group_tests_name("replay", tests, NULL, NULL);
}
