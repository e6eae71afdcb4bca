// SPDX-License-Identifier: Apache-2.0
//
// The store as a whole against a model: random calls in one thread, iterators that stay open while everything under
// them is replaced, partitions that are cut, and a store that has nothing to do. test_xdb_threads.c has several
// threads, test_bad_disk.c full and failing disks, test_replay.c the log.
//
// TEST_SEED in the environment repeats a run's random choices.
#include <sys/resource.h>

#include "tests/lib/check.h"
#include "tests/lib/store_model.h"

static uint64_t seed_first;  // the seed of all tests

static void model_cursor_step(struct model *m) {
  struct cursor *const c = &m->cursors[rng_next(&m->rng) % CURSORS];
  const uint64_t what = rng_next(&m->rng) % 100;
  if (!c->it || what < 12) {
    const bool near = rng_next(&m->rng) % 3 == 0;
    const struct key k = near ? model_near(m) : m->keys[rng_next(&m->rng) % m->nr];
    cursor_seek(m, c, k);
  } else if (what < 60) {
    cursor_skip(m, c, 1);
  } else if (what < 75) {
    cursor_skip(m, c, (uint32_t)(rng_next(&m->rng) % 100));
  } else if (what < 97) {
    cursor_check(m, c, true);
  } else if (what < 98) {
    cursor_rest(m, c);
  } else if (what < 99) {
    remixdb_iter_park(c->it);
    CHECK(!remixdb_iter_valid(c->it) && remixdb_iter_status(c->it) == REMIXDB_OK);
    cursor_seek(m, c, m->keys[rng_next(&m->rng) % m->nr]);
  } else {
    cursor_drop(c);
  }
}

// Chooses the options that may change from one opening to the next.
static void model_choose(struct model *m, int workers) {
  static const char *const engines[] = {"auto", "sync", "aio", "uring"};
  struct remixdb_opts *const o = &m->opts;
  const uint64_t r = rng_next(&m->rng);
  *o = small_opts(workers);
  o->tags = r & 1;
  o->ckeys = r & 2;
  o->compression = r & 4 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  o->compression_level = 1;
  o->direct_io = (r >> 3) % 4 == 0;
  o->cache_mb = (r >> 5) % 3 == 0 ? 0 : 1 + (r >> 7) % 8;
  o->io = engines[(r >> 10) % 4];
  o->max_open_files = (r >> 12) % 2 ? 16 : 0;
  o->worker_cores = (r >> 13) % 2 ? "none" : "auto";
}

static void model_run(struct model *m, uint32_t steps, int workers) {
  for (uint32_t step = 0; step < steps; step++) {
    const uint64_t what = rng_next(&m->rng) % 10000;
    const uint32_t i = (uint32_t)(rng_next(&m->rng) % m->nr);
    if (what < 4200) {
      model_put(m, i);
    } else if (what < 5300) {
      model_del(m, i);
    } else if (what < 7700) {
      model_get(m, i);
    } else if (what < 8000) {
      const struct key k = model_near(m);
      const uint32_t at = model_find(m, k);
      const bool there = at < m->nr && key_cmp(&m->keys[at], &k) == 0 && m->now[at].ver;
      CHECK(remixdb_probe(m->ref, k.ptr, k.len) == there);
    } else if (what < 9970) {
      model_cursor_step(m);
    } else if (what < 9985) {
      CHECK(remixdb_sync(m->ref));
    } else if (what < 9992) {
      OK(xdb_flush(m->xdb));
    } else if (what < 9996) {
      model_scan(m);
    } else if (what < 9998) {
      // a neighbourhood goes altogether: whole segments, and blocks, of tombstones
      for (uint32_t k = i; k < m->nr && k < i + 300; k++) model_del(m, k);
    } else {
      for (uint32_t c = 0; c < CURSORS; c++)
        if (m->cursors[c].it) cursor_rest(m, &m->cursors[c]);
      model_close(m);
      model_choose(m, workers);
      model_open(m);
      model_check(m);
    }
  }
}

static void run_model(uint64_t nr, int workers, uint32_t keys, uint32_t steps, uint32_t val_max) {
  check_seed = seed_first + nr;
  struct model m;
  model_init(&m, keys, val_max);
  model_choose(&m, workers);
  model_open(&m);
  model_run(&m, steps, workers);
  model_check(&m);
  model_close(&m);
  model_choose(&m, workers);
  model_open(&m);
  model_check(&m);
  // all keys go; an iterator that saw them still does
  cursor_seek(&m, &m.cursors[0], (struct key){NULL, 0});
  for (uint32_t i = 0; i < m.nr; i++) model_del(&m, i);
  OK(xdb_flush(m.xdb));
  model_scan(&m);
  cursor_rest(&m, &m.cursors[0]);
  model_close(&m);
  model_open(&m);
  model_check(&m);
  model_close(&m);
  model_fini(&m);
}

static void test_model_alone(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 3; i++) {
    run_model(i, 0, i % 2 ? 500 : 4000, 9000, 65000);
    setup_again();
  }
}

static void test_model_small_values(void **state) {
  (void)state;
  run_model(100, 0, 15000, 25000, 40);
}

static void test_model_workers(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 3; i++) {
    run_model(200 + i, 1 + (int)(i % 2), i % 2 ? 500 : 4000, 9000, 65000);
    setup_again();
  }
}

// ---- many partitions: iterators go on showing the same when the partitions under them are cut and put after each
// other

#define PARTITIONS_TABLE 1000u  // pages

static void put_every(struct model *m, uint32_t from, uint32_t step) {
  for (uint32_t i = from; i < m->nr; i += step) CHECK(model_put(m, i));
  OK(xdb_flush(m->xdb));
}

static void test_partitions(void **state) {
  (void)state;
  check_seed = seed_first + 300;
  struct model m;
  model_init(&m, 7000, 5500);
  m.val_min = 4700;
  m.opts = small_opts(1);
  m.opts.cache_mb = 16;
  m.opts.compression = REMIXDB_COMPRESSION_ZSTD;  // the partitions are as large without it, the files are not
  m.opts.compression_level = 1;
  m.opts.memtable_mb = 4;
  model_open(&m);
  m.xdb->compact.build.max_pages = PARTITIONS_TABLE;
  m.xdb->compact.apart_from = 0;                          // values apart make no partitions
  cursor_seek(&m, &m.cursors[0], (struct key){NULL, 0});  // an empty store
  put_every(&m, 0, 2);  // in order: when a partition is full, the keys after it make another
  cursor_rest(&m, &m.cursors[0]);
  const uint64_t before = stat_of(m.xdb, "partitions");
  CHECK(before > 1);
  m.xdb->leave_log = true;
  model_close(&m);
  m.opts.memtable_mb = 16;
  model_open(&m);
  m.xdb->compact.build.max_pages = PARTITIONS_TABLE;
  m.xdb->compact.apart_from = 0;
  cursor_seek(&m, &m.cursors[0], (struct key){NULL, 0});
  put_every(&m, 0, 2);  // then half of the records are old
  cursor_seek(&m, &m.cursors[1], (struct key){NULL, 0});
  cursor_skip(&m, &m.cursors[1], m.nr / 4);
  for (uint32_t i = 0; i < 4; i++) put_every(&m, 1, 2);  // between the others: more than the partitions can hold
  CHECK(stat_of(m.xdb, "partitions") > before && stat_of(m.xdb, "split") > 0);
  cursor_seek(&m, &m.cursors[2], (struct key){NULL, 0});
  m.val_min = 0;
  m.val_max = 100;
  for (uint32_t i = 0; i < 3000; i++) {
    model_put(&m, (uint32_t)(rng_next(&m.rng) % m.nr));
    model_del(&m, (uint32_t)(rng_next(&m.rng) % m.nr));
  }
  OK(xdb_flush(m.xdb));
  for (uint32_t i = 0; i < 3; i++) cursor_rest(&m, &m.cursors[i]);
  model_check(&m);
  model_close(&m);
  model_open(&m);
  model_check(&m);
  model_close(&m);
  model_fini(&m);
  setup_again();
}

// ---- nothing to do

static void usage(uint64_t *us_out, uint64_t *switches_out) {
  struct rusage u;
  CHECK(getrusage(RUSAGE_SELF, &u) == 0);
  *us_out = (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
            (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
  *switches_out = (uint64_t)u.ru_nvcsw;
}

// Tells whether the process does next to nothing for a while. The wake-ups would show a thread that looks every 10 ms.
static bool is_calm(uint64_t *us_out, uint64_t *switches_out) {
  uint64_t us, switches;
  usage(&us, &switches);
  time_sleep_ns(300000000);
  usage(us_out, switches_out);
  *us_out -= us;
  *switches_out -= switches;
  return *us_out <= 15000 && *switches_out <= 20;
}

static void test_idle(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) {
    struct remixdb_opts o = small_opts(i);
    o.sync = i == 2 ? 1 : REMIXDB_SYNC_NONE;
    struct xdb *const x = remixdb_open_opts(dir, &o);
    CHECK(x);
    struct xdb_ref *const r = remixdb_ref(x);
    uint8_t val[1000] = {0};
    for (uint32_t k = 0; k < 3000; k++) CHECK(remixdb_put(r, &k, sizeof(k), val, sizeof(val)));
    struct xdb_iter *const it = remixdb_iter_create(r);
    remixdb_iter_seek(it, NULL, 0);
    CHECK(remixdb_iter_valid(it) && xdb_wait_idle(x) == REMIXDB_OK && remixdb_sync(r));
    time_sleep_ns(100000000);
    uint64_t us, switches;
    for (uint32_t tries = 0; !is_calm(&us, &switches); tries++)  // work that was under way ends
      CHECK_SAYS(tries < 100, "an idle store took %llu us and woke up %llu times", (unsigned long long)us,
                 (unsigned long long)switches);
    remixdb_iter_destroy(it);
    remixdb_unref(r);
    remixdb_close(x);
  }
}

// A ref is inside the cursors' epoch from the first position that one of its iterators takes to the last one that is
// given up. A seek renews it when there is no other position.
static void test_stay(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  struct xdb_ref *r;
  struct xdb_iter *a, *b;
  OK(xdb_open(dir, &o, env_posix(), &x));
  OK(xdb_ref(x, &r));
  OK(xdb_put(r, KV_REC(kref("k", 1), "v", 1, false)));
  OK(xdb_iter_create(r, &a));
  OK(xdb_iter_create(r, &b));
  const _Atomic uint64_t *const at = &r->stay.at;
  CHECK(atomic_load(at) == 0);
  OK(xdb_iter_seek(a, kref("", 0)));
  uint64_t stamp = epoch_stamp(&x->cursors);
  CHECK(xdb_iter_valid(a) && !epoch_passed(&x->cursors, stamp));
  OK(xdb_iter_seek(a, kref("", 0)));
  CHECK(epoch_passed(&x->cursors, stamp) && atomic_load(at) != 0);
  OK(xdb_iter_seek(b, kref("k", 1)));
  stamp = epoch_stamp(&x->cursors);
  OK(xdb_iter_seek(b, kref("k", 1)));  // a may stand on a leaf that died earlier
  CHECK(!epoch_passed(&x->cursors, stamp));
  OK(xdb_iter_skip(a, 1));  // to its end
  CHECK(!xdb_iter_valid(a) && !epoch_passed(&x->cursors, stamp));
  xdb_iter_park(a);  // once more changes nothing
  xdb_iter_destroy(a);
  CHECK(!epoch_passed(&x->cursors, stamp));
  OK(xdb_iter_seek_last(b));
  CHECK(epoch_passed(&x->cursors, stamp) && atomic_load(at) != 0);
  OK(xdb_iter_seek(b, kref("l", 1)));  // nothing there
  CHECK(!xdb_iter_valid(b) && atomic_load(at) == 0);
  OK(xdb_iter_seek_for_prev(b, kref("l", 1)));
  CHECK(atomic_load(at) != 0);
  xdb_iter_destroy(b);
  CHECK(atomic_load(at) == 0 && r->stays == 0);
  xdb_unref(r);
  OK(xdb_close(x));
}

int main(void) {
  seed_first = check_seed_or(time_ns() % 1000000 * 1000);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_model_alone, setup, teardown),
      cmocka_unit_test_setup_teardown(test_model_small_values, setup, teardown),
      cmocka_unit_test_setup_teardown(test_model_workers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_partitions, setup, teardown),
      cmocka_unit_test_setup_teardown(test_idle, setup, teardown),
      cmocka_unit_test_setup_teardown(test_stay, setup, teardown),
  };
  return cmocka_run_group_tests_name("xdb", tests, NULL, NULL);
}
