// SPDX-License-Identifier: Apache-2.0
//
// Cursors of a REMIX: reading ahead, moving from one REMIX to another, scan debt in young views, and threads.
#include "base/thread.h"
#include "tests/lib/check.h"
#include "tests/lib/remix_model.h"

// Stepping forward reads ahead, in far fewer reads than there are blocks, and reads each block once.
static void test_readahead(void **state) {
  (void)state;
  uint64_t rng = 17;
  struct place p;
  place_init(&p, 8 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_BINARY, 6000, 3, &rng);
  struct remix *x = part_build_all(&t, true);
  uint32_t pages = 0;
  for (uint32_t r = 0; r < t.nr; r++) pages += t.sst[r]->nr_pages;
  struct remix_cursor c;
  struct kv_rec r;
  struct cache_stats stats;
  remix_cursor_init(&c, p.queue);
  OK(remix_cursor_set(&c, x));
  enter(&p);
  for (remix_seek_first(&c); remix_valid(&c); remix_next(&c)) OK(remix_record(&c, &r));
  leave(&p);
  cache_stats(p.cache, &stats);
  assert_true(pages > 100);
  assert_true(stats.misses < pages / 4);
  remix_cursor_fini(&c);
  done(x);
  part_fini(&t);
  place_fini(&p);
}

// A cursor moves to a REMIX with more or fewer runs, and to none.
// How many runs hold a block that a cursor has pinned, or that it has for itself.
static uint32_t nr_held(const struct remix_cursor *c) {
  uint32_t nr = 0;
  for (uint32_t r = 0; r < c->cap; r++) nr += c->holds[r].kind > SST_HOLD_FRAME;
  return nr;
}

// A cursor that comes to another view keeps what it holds, one block for each run, and reads right with it. Without a
// view it holds nothing.
static void test_cursor_moves(void **state) {
  (void)state;
  uint64_t rng = check_seed_for("cursor moves");
  struct place p;
  place_init(&p, 1 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_PATHS, 300, 9, &rng);
  struct remix *x[9];
  struct entry *e[9];
  uint32_t nr[9];
  for (uint32_t i = 0; i < 9; i++) {
    t.nr = i + 1;
    x[i] = part_build(&t, i ? x[i - 1] : NULL, UINT32_MAX, 1, i % 2, NULL);
    e[i] = part_live(&t, &nr[i]);
  }
  struct remix_cursor c;
  uint32_t held = 0;
  remix_cursor_init(&c, NULL);
  OK(remix_seek(&c, kref("a", 1)));
  assert_false(remix_valid(&c));
  for (uint32_t i = 0; i < 200; i++) {
    const uint32_t n = (uint32_t)(rng_next(&rng) % 9);
    const struct kref key = t.k.keys[rng_next(&rng) % t.k.nr];
    const uint32_t before = nr_held(&c);
    held += before;
    OK(remix_cursor_set(&c, x[n]));
    assert_false(remix_valid(&c));
    assert_int_equal(nr_held(&c), before);
    enter(&p);
    OK(remix_seek(&c, key));
    uint32_t at = lower(&t, e[n], nr[n], key);
    check_at(&t, &c, e[n], nr[n], at, true);
    for (uint32_t j = 0; j < 40 && remix_valid(&c); j++) {
      remix_next(&c);
      check_at(&t, &c, e[n], nr[n], ++at, j % 2);
    }
    leave(&p);
    if (i % 10) continue;
    OK(remix_cursor_set(&c, NULL));
    assert_int_equal(nr_held(&c), 0);
  }
  assert_true(held > 200);
  remix_cursor_fini(&c);
  for (uint32_t i = 0; i < 9; i++) {
    done(x[i]);
    free(e[i]);
  }
  part_fini(&t);
  place_fini(&p);
}

// A cursor that goes to and fro between two views reads a block again only if it has read another block of that run.
// A scan of one view is none in the other.
static void test_to_and_fro(void **state) {
  (void)state;
  struct place p;
  uint64_t rng = check_seed_for("to and fro");
  struct remix *x[2];
  struct entry *e[2];
  struct tables t[2];
  uint32_t nr[2], at[2];
  place_init(&p, 0);  // each block that is not held is read
  for (uint32_t i = 0; i < 2; i++) {
    part_small(&t[i], &p, KEYS_BINARY, 2000, 4, &rng);
    x[i] = part_build_all(&t[i], true);
    e[i] = part_live(&t[i], &nr[i]);
  }
  // an entry of the first view, and one of the second in another run
  at[0] = nr[0] / 2;
  for (at[1] = 0; e[1][at[1]].run == e[0][at[0]].run; at[1]++) assert_true(at[1] < nr[1]);
  struct remix_cursor c;
  remix_cursor_init(&c, NULL);
  uint64_t reads = 0;
  for (uint32_t i = 0; i < 20; i++) {
    const uint32_t n = i % 2;
    OK(remix_cursor_set(&c, x[n]));
    enter(&p);
    OK(remix_seek(&c, t[n].k.keys[e[n][at[n]].key]));
    check_at(&t[n], &c, e[n], nr[n], at[n], true);
    leave(&p);
    if (i == 1) reads = atomic_load(&p.io.nr_reads);
  }
  assert_int_equal(atomic_load(&p.io.nr_reads), reads);
  // steps in one view, then the other one from its beginning; the steps are remembered, as entries of all versions
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t n = i % 2, came = remix_came(&c);
    assert_int_equal(came, i ? 100 : 0);
    c.scan_debt = 0;  // as if all blocks had been in the cache
    OK(remix_cursor_set(&c, x[n]));
    assert_in_range(remix_came(&c), came, 5 * came);
    enter(&p);
    remix_seek_first(&c);
    for (uint32_t k = 0; k < 100; k++, remix_next(&c)) check_at(&t[n], &c, e[n], nr[n], k, true);
    leave(&p);
  }
  assert_true(nr_held(&c) > 1);
  remix_cursor_fini(&c);
  for (uint32_t i = 0; i < 2; i++) {
    done(x[i]);
    free(e[i]);
    part_fini(&t[i]);
  }
  place_fini(&p);
}

// In a young view every block that a seek reads adds to the scan debt. Where bits are far, each key that it reads may
// be in another block.
static void test_young_far(void **state) {
  (void)state;
  struct place p;
  struct remix_cursor c;
  uint64_t rng = check_seed_for("young scan_debt");
  struct tables t = {.p = &p};
  place_init(&p, 0);
  remix_cursor_init(&c, NULL);
  keyset_of_kind(&t.k, KEYS_FAR, 100, &rng);
  part_add_table(&t, has_make(&t.k, 1, &rng), true);
  part_add_table(&t, has_make(&t.k, 2, &rng), true);
  struct remix *const x = part_build_all(&t, false);
  assert_true(check_walk(&t, x) > 0);
  remix_make_young(x);
  OK(remix_cursor_set(&c, x));
  enter(&p);
  for (uint32_t i = 0; i < 300; i++) {
    const uint64_t before = c.scan_debt >= 64 ? 0 : c.scan_debt, reads = atomic_load(&p.io.nr_reads);
    OK(remix_seek(&c, t.k.keys[rng_next(&rng) % t.k.nr]));
    assert_int_equal(c.scan_debt - before, atomic_load(&p.io.nr_reads) - reads);
  }
  leave(&p);
  const uint64_t left = c.scan_debt, debt = atomic_load(&x->scan_debt);
  assert_true(debt > 300 && left > 0);
  OK(remix_cursor_set(&c, x));
  assert_true(c.scan_debt == 0 && atomic_load(&x->scan_debt) == debt + left);
  remix_cursor_fini(&c);
  done(x);
  part_fini(&t);
  place_fini(&p);
}

struct reader {
  struct tables *t;
  struct remix *x;
  const struct entry *e;
  uint32_t nr;
  uint64_t seed;
  uint32_t wrong;
};

static void *reader_main(void *arg) {
  struct reader *d = arg;
  struct epoch_slot slot;
  struct sst_hold hold = {0};
  struct remix_cursor c;
  struct kv_rec r;
  epoch_join(&d->t->p->epoch, &slot);
  remix_cursor_init(&c, NULL);
  if (remix_cursor_set(&c, d->x) != REMIXDB_OK) d->wrong++;
  for (uint32_t i = 0; i < 3000; i++) {
    const uint32_t at = (uint32_t)(rng_next(&d->seed) % d->nr);
    const struct kref k = d->t->k.keys[d->e[at].key];
    remix_ref(d->x);
    epoch_enter(&d->t->p->epoch, &slot);
    if (remix_get(d->x, k, hash64(k.ptr, k.len), &hold, &r) != REMIXDB_OK || !kv_eq(kref(r.key, r.klen), k)) d->wrong++;
    if (remix_seek(&c, k) != REMIXDB_OK || !remix_valid(&c)) {
      d->wrong++;
    } else {
      for (uint32_t n = 0; n < 5 && remix_valid(&c); n++) {
        if (remix_record(&c, &r) != REMIXDB_OK || !kv_eq(kref(r.key, r.klen), d->t->k.keys[d->e[at + n].key]))
          d->wrong++;
        remix_next(&c);
      }
    }
    epoch_exit(&slot);
    remix_unref(d->x);
  }
  remix_cursor_fini(&c);
  sst_hold_fini(&hold);
  epoch_leave(&d->t->p->epoch, &slot);
  return NULL;
}

// Readers share a REMIX over a cache too small for its tables.
static void test_threads(void **state) {
  (void)state;
  uint64_t rng = check_seed_for("threads");
  struct place p;
  place_init(&p, 256 << 10);
  struct tables t;
  part_small(&t, &p, KEYS_BINARY, 4000, 4, &rng);
  struct remix *x = part_build_all(&t, true);
  uint32_t nr;
  struct entry *e = part_live(&t, &nr);
  pthread_t threads[4];
  struct reader readers[4];
  for (uint32_t i = 0; i < 4; i++) {
    readers[i] = (struct reader){.t = &t, .x = x, .e = e, .nr = nr, .seed = rng + i};
    OK(thread_start(&threads[i], reader_main, &readers[i], "reader"));
  }
  for (uint32_t i = 0; i < 4; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(readers[i].wrong, 0);
  }
  free(e);
  done(x);
  part_fini(&t);
  place_fini(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_readahead), cmocka_unit_test(test_cursor_moves), cmocka_unit_test(test_to_and_fro),
      cmocka_unit_test(test_young_far), cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
