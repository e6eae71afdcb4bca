// SPDX-License-Identifier: Apache-2.0
//
// Memtables and supers: references, and the records that readers see.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arena.h"
#include "tests/lib/check.h"

#include "tests/lib/fault.h"
#include "view/super.h"
#include "wh/state.h"

#define LIMIT ((size_t)1 << 20)

struct world {
  struct epoch epoch, cursors;
  struct memtables all;
  struct version *version;
};

static void world_init(struct world *w) {
  memset(w, 0, sizeof(*w));
  epoch_init(&w->epoch);
  epoch_init(&w->cursors);
  memtables_init(&w->all, &w->epoch, &w->cursors, LIMIT);
  struct part *p;
  OK(part_create(kref("", 0), NULL, NULL, &p));
  OK(version_create(&p, 1, &w->version));
}

static void world_fini(struct world *w) {
  version_unref(w->version);
  epoch_fini(&w->cursors);
  epoch_fini(&w->epoch);
  assert_null(w->all.first);
  memtables_fini(&w->all);
}

static struct memtable *memtable_new(struct world *w) {
  struct memtable *m;
  OK(memtable_create(&w->all, &m));
  return m;
}

// Those that were never begun can be ended.
static void test_never_begun(void **state) {
  (void)state;
  struct memtables none = {0};
  memtables_fini(&none);
  memtable_unref(NULL);
  super_unref(NULL);
}

// memtables_kept counts the live memtables other than the view's two, in any order of release.
static void test_kept(void **state) {
  (void)state;
  struct world w;
  for (uint32_t first = 0; first < 3; first++) {
    world_init(&w);
    struct memtable *m[3];
    for (uint32_t i = 0; i < 3; i++) m[i] = memtable_new(&w);
    const uint64_t each = wh_held(m[0]->wh);
    assert_true(each > wh_memory(m[0]->wh));
    assert_int_equal(memtables_kept(&w.all, m[0], NULL), 2 * each);
    assert_int_equal(memtables_kept(&w.all, m[1], m[2]), each);
    for (uint32_t k = 0; k < 3; k++) {
      memtable_unref(m[(first + k) % 3]);
      assert_int_equal(memtables_kept(&w.all, NULL, NULL), (2 - k) * each);
    }
    world_fini(&w);
  }
}

static void fill(struct memtable *m, uint32_t nr, uint32_t *at) {
  static const uint8_t val[1000];
  struct epoch_slot slot;
  epoch_join(m->all->epoch, &slot);
  for (uint32_t i = 0; i < nr; i++, ++*at) {
    struct wh_slot s;
    epoch_enter(m->all->epoch, &slot);
    wh_lock(m->wh, kref(at, sizeof(*at)), hash64(at, sizeof(*at)), &s);
    OK(wh_link(&s, KV_REC(kref(NULL, 0), val, sizeof(val), false)));
    wh_stamp(&s, *at + 1);
    wh_unlock(&s);
    epoch_exit(&slot);
  }
  epoch_leave(m->all->epoch, &slot);
}

// A memtable that only readers keep counts with the unused rest of its last chunk, until it gives that back. Its
// records stay, and the chunk does not serve again. A memtable that the view has gives nothing back.
static void test_given_back(void **state) {
  (void)state;
  struct world w;
  world_init(&w);
  struct memtables large;
  memtables_init(&large, &w.epoch, &w.cursors, 64u << 20);
  const size_t chunk = large.chunks.chunk_size;
  assert_true(chunk >= 1u << 20);
  struct memtable *m[2];
  uint32_t at = 0, before;
  for (uint32_t i = 0; i < 2; i++) {
    OK(memtable_create(&large, &m[i]));
    before = at;
    fill(m[i], 100, &at);
  }
  assert_true(memtables_kept(&large, m[0], NULL) >= chunk);
  memtables_give_back(&large);
  assert_true(memtables_kept(&large, m[0], NULL) >= chunk);
  memtable_leave(m[1]);
  memtables_give_back(&large);
  const uint64_t used = wh_held(m[1]->wh);
  assert_true(used < chunk / 2 && memtables_kept(&large, m[0], NULL) == used);
  memtables_give_back(&large);
  assert_true(wh_held(m[1]->wh) == used && wh_held(m[0]->wh) >= chunk);
  for (uint32_t k = before; k < at; k++) {
    const struct wh_ver *const v = wh_get(m[1]->wh, kref(&k, sizeof(k)), hash64(&k, sizeof(k)), k + 1);
    assert_true(v != NULL);
  }
  fill(m[1], 100, &at);  // into another chunk
  assert_true(wh_held(m[1]->wh) > chunk);
  memtable_unref(m[1]);
  if (!LIB_SANITIZED) assert_int_equal(arena_pool_held(&large.chunks), chunk);
  memtable_unref(m[0]);
  if (!LIB_SANITIZED) assert_int_equal(arena_pool_held(&large.chunks), 2 * chunk);
  memtables_fini(&large);
  world_fini(&w);
}

// Memory for the next memtable is wanted ahead: none as long as the first chunk is half empty, then a chunk, and all of
// it by the time this one is full; one chunk while a memtable is frozen. Values that take a chunk of their own do not
// count.
static void test_ahead(void **state) {
  (void)state;
  struct world w;
  world_init(&w);
  struct memtables large;
  const size_t limit = (33u << 20) + 12345;
  memtables_init(&large, &w.epoch, &w.cursors, limit);
  const size_t chunk = large.chunks.chunk_size;
  struct memtable *m;
  OK(memtable_create(&large, &m));
  uint32_t at = 0;
  assert_int_equal(memtables_target(&large, m, false), 0);
  uint32_t nr_few = 0;
  for (size_t before = 0; wh_memory(m->wh) < limit; fill(m, 500, &at)) {
    const size_t wanted = memtables_target(&large, m, false);
    const bool few = wh_memory_small(m->wh) < chunk / 2;
    nr_few += few;
    assert_int_equal(wanted == 0, few);
    if (!few && wh_memory_small(m->wh) <= limit / 2 - (LIB_SANITIZED ? limit / 2 : 0)) assert_true(wanted == chunk);
    assert_true(wanted >= before);
    assert_true(memtables_target(&large, m, true) == chunk);
    const size_t used = wh_memory_small(m->wh), more = used + used / MEMTABLE_LATE;
    if (!LIB_SANITIZED) assert_true(memtables_growth(&large, m, m) + used == (more < limit ? more : limit));
    assert_true(memtables_growth(&large, m, NULL) == 0);
    before = wanted;
    while (arena_pool_fill(&large.chunks, wanted)) {}
    const size_t held = arena_pool_held(&large.chunks);
    if (!LIB_SANITIZED) assert_true(held <= limit && (held >= wanted || held + chunk > limit));
  }
  assert_true(nr_few > 1);
  if (!LIB_SANITIZED) assert_true(arena_pool_held(&large.chunks) + chunk > limit);
  const size_t wanted = memtables_target(&large, m, false);
  struct arena *const arena = &m->wh->arena;
  assert_non_null(arena_alloc(arena, 2 * chunk));
  assert_true(memtables_target(&large, m, false) == wanted);
  memtable_unref(m);
  if (!LIB_SANITIZED) assert_false(arena_pool_short(&large.chunks, SIZE_MAX));
  memtables_fini(&large);
  m = memtable_new(&w);  // its chunks are the allocator's
  assert_int_equal(memtables_target(&w.all, m, false), 0);
  memtable_unref(m);
  world_fini(&w);
}

// A super keeps its memtables and its version. Holders of an old super keep the old ones.
static void test_view_keeps(void **state) {
  (void)state;
  struct world w;
  world_init(&w);
  struct memtable *a = memtable_new(&w), *b = memtable_new(&w);
  struct super *old = super_create(a, NULL, w.version), *next = super_create(b, a, w.version);
  assert_non_null(old);
  assert_non_null(next);
  memtable_unref(a);
  memtable_unref(b);
  assert_int_equal(atomic_load(&a->refs), 2);
  assert_int_equal(atomic_load(&b->refs), 1);
  super_ref(old);
  super_unref(old);
  assert_int_equal(atomic_load(&a->refs), 2);
  super_unref(next);
  assert_ptr_equal(w.all.first, a);
  assert_null(a->next);
  assert_int_equal(atomic_load(&a->refs), 1);
  super_unref(old);
  world_fini(&w);
}

// A retired view goes when those that may see it have left, and not before.
static void test_view_retired(void **state) {
  (void)state;
  struct world w;
  world_init(&w);
  struct epoch_slot reader;
  epoch_join(&w.epoch, &reader);
  struct memtable *m = memtable_new(&w);
  struct super *v = super_create(m, NULL, w.version);
  assert_non_null(v);
  memtable_unref(m);
  epoch_enter(&w.epoch, &reader);
  super_retire(&w.epoch, v);
  epoch_reclaim(&w.epoch);
  assert_ptr_equal(w.all.first, m);
  epoch_exit(&reader);
  epoch_reclaim(&w.epoch);
  assert_null(w.all.first);
  epoch_leave(&w.epoch, &reader);
  world_fini(&w);
}

// Without memory nothing is made, and nothing is held.
static void test_no_memory(void **state) {
  (void)state;
  struct world w;
  world_init(&w);
  struct memtable *m = NULL;
  uint32_t failures = 0;
  for (int64_t nth = 1;; nth++) {
    fault_mem_set(nth);
    const enum remixdb_status s = memtable_create(&w.all, &m);
    if (!fault_mem_end()) {
      OK(s);
      break;
    }
    FAILS(s, REMIXDB_NOMEM);
    assert_null(w.all.first);
    failures++;
  }
  assert_true(failures >= 2);  // the memtable and its index
  fault_mem_set(1);
  assert_null(super_create(m, NULL, w.version));
  assert_true(fault_mem_end());
  assert_int_equal(atomic_load(&m->refs), 1);
  memtable_unref(m);
  world_fini(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_never_begun), cmocka_unit_test(test_kept),       cmocka_unit_test(test_given_back),
      cmocka_unit_test(test_ahead),       cmocka_unit_test(test_view_keeps), cmocka_unit_test(test_view_retired),
      cmocka_unit_test(test_no_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
