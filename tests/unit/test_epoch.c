// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/cores.h"
#include "base/thread.h"
#include "tests/lib/check.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/epoch.h"

static void test_stamps_and_slots(void **state) {
  (void)state;
  struct epoch e;
  struct epoch_slot a, b;
  epoch_init(&e);
  epoch_join(&e, &a);
  epoch_join(&e, &b);
  const uint64_t t1 = epoch_stamp(&e);
  assert_true(epoch_passed(&e, t1));  // nobody was inside
  epoch_enter(&e, &a);
  const uint64_t t2 = epoch_stamp(&e);
  assert_true(t2 > t1);
  assert_false(epoch_passed(&e, t2));
  assert_true(epoch_passed(&e, t1));  // stays
  epoch_enter(&e, &b);                // came after t2: does not hold it up
  assert_false(epoch_passed(&e, t2));
  epoch_exit(&a);
  assert_true(epoch_passed(&e, t2));
  const uint64_t t3 = epoch_stamp(&e);
  assert_false(epoch_passed(&e, t3));
  epoch_enter(&e, &a);
  epoch_exit(&b);
  assert_true(epoch_passed(&e, t3));  // a entered after it
  epoch_exit(&a);
  epoch_leave(&e, &a);
  const uint64_t t4 = epoch_stamp(&e);
  epoch_wait(&e, t4);
  epoch_leave(&e, &b);
  assert_true(epoch_passed(&e, epoch_stamp(&e)));
  epoch_fini(&e);
}

// An entrant that read an old `now` and was then held back must not make passed stamps current again.
static void test_late_entrant(void **state) {
  (void)state;
  struct epoch e;
  struct epoch_slot a;
  epoch_init(&e);
  epoch_join(&e, &a);
  const uint64_t old = atomic_load(&e.now);
  const uint64_t t = epoch_stamp(&e);
  assert_true(epoch_passed(&e, t));
  atomic_store(&a.at, old);  // as epoch_enter does when it is interrupted between its load and its store
  assert_true(epoch_passed(&e, t));
  const uint64_t t2 = epoch_stamp(&e);
  assert_false(epoch_passed(&e, t2));
  assert_true(epoch_passed(&e, t));  // not after the scan for t2 either
  epoch_exit(&a);
  assert_true(epoch_passed(&e, t2));
  epoch_leave(&e, &a);
  epoch_fini(&e);
}

// A slot that moves on to now no longer holds up earlier stamps, and stays inside.
static void test_renew(void **state) {
  (void)state;
  struct epoch e;
  struct epoch_slot a;
  epoch_init(&e);
  epoch_join(&e, &a);
  for (uint32_t i = 0; i < 3; i++) {
    epoch_renew(&e, &a);
    const uint64_t at = atomic_load(&a.at);
    assert_true(at > 0);
    epoch_renew(&e, &a);
    assert_int_equal(atomic_load(&a.at), at);
    const uint64_t t = epoch_stamp(&e);
    assert_false(epoch_passed(&e, t));
    if (i == 1) epoch_exit(&a);
    epoch_renew(&e, &a);
    assert_true(epoch_passed(&e, t));
    assert_false(epoch_passed(&e, epoch_stamp(&e)));
  }
  epoch_exit(&a);
  epoch_leave(&e, &a);
  epoch_fini(&e);
}

static void count_fn(struct epoch_item *item, void *arg) {
  item->fn = NULL;
  ++*(int *)arg;
}

static void test_retire(void **state) {
  (void)state;
  struct epoch e;
  struct epoch_slot a;
  struct epoch_item items[5];
  int freed = 0;
  epoch_init(&e);
  epoch_join(&e, &a);
  epoch_reclaim(&e);
  epoch_retire(&e, &items[0], count_fn, &freed);
  assert_int_equal(freed, 0);  // never in the call itself
  epoch_reclaim(&e);
  assert_int_equal(freed, 1);
  epoch_retire(&e, &items[1], count_fn, &freed);
  epoch_enter(&e, &a);
  epoch_retire(&e, &items[2], count_fn, &freed);
  epoch_retire(&e, &items[3], count_fn, &freed);
  epoch_reclaim(&e);
  assert_int_equal(freed, 2);  // items[1] only: later ones may still be seen
  epoch_reclaim(&e);
  assert_int_equal(freed, 2);
  epoch_exit(&a);
  epoch_reclaim(&e);
  assert_int_equal(freed, 4);
  epoch_retire(&e, &items[4], count_fn, &freed);
  epoch_leave(&e, &a);
  epoch_fini(&e);
  assert_int_equal(freed, 5);
}

struct chain {
  struct epoch *e;
  struct epoch_item item;
  int left;
};

static void chain_fn(struct epoch_item *item, void *arg) {
  struct chain *const c = arg;
  if (c->left-- > 0) epoch_retire(c->e, item, chain_fn, c);
}

// Freeing one thing may retire the next; fini runs those too.
static void test_fn_retires(void **state) {
  (void)state;
  struct epoch e;
  epoch_init(&e);
  struct chain c = {.e = &e, .left = 3};
  epoch_retire(&e, &c.item, chain_fn, &c);
  epoch_reclaim(&e);
  assert_int_equal(c.left, 2);
  epoch_fini(&e);
  assert_int_equal(c.left, -1);
}

// ---- readers follow a pointer that writers replace and retire: nobody ever reads freed memory

enum { READERS = 3, WRITERS = 2, WRITES = 3000 };

struct node {
  struct epoch_item item;
  uint64_t a, b;  // b == ~a while alive
};

struct world {
  struct epoch e;
  _Atomic(struct node *) cur;
  _Atomic int made, freed;
  _Atomic bool stop;
};

static void node_free(struct epoch_item *item, void *arg) {
  struct node *const n = (struct node *)item;
  struct world *const w = arg;
  n->a = n->b = 0;
  atomic_fetch_add(&w->freed, 1);
  mem_free(n);
}

static void *reader_main(void *p) {
  struct world *const w = p;
  struct epoch_slot s;
  void *bad = NULL;
  epoch_join(&w->e, &s);
  for (uint32_t i = 0; !atomic_load_explicit(&w->stop, memory_order_relaxed); i++) {
    epoch_enter(&w->e, &s);
    for (int k = 0; k < 3; k++) {
      const struct node *const n = atomic_load_explicit(&w->cur, memory_order_acquire);
      if (i % 64 == 0) (void)sched_yield();
      if (n->b != ~n->a) bad = p;
    }
    epoch_exit(&s);
    if (i % 256 == 0) {  // threads come and go
      epoch_leave(&w->e, &s);
      epoch_join(&w->e, &s);
    }
  }
  epoch_leave(&w->e, &s);
  return bad;
}

static void *writer_main(void *p) {
  struct world *const w = p;
  for (uint64_t i = 0; i < WRITES; i++) {
    struct node *const n = mem_alloc(sizeof(*n));
    if (!n) return p;
    n->a = i;
    n->b = ~i;
    atomic_fetch_add(&w->made, 1);
    struct node *const old = atomic_exchange_explicit(&w->cur, n, memory_order_acq_rel);
    if (i % 5 == 0) {
      const uint64_t t = epoch_stamp(&w->e);
      epoch_wait(&w->e, t);
      node_free(&old->item, w);
    } else {
      epoch_retire(&w->e, &old->item, node_free, w);
    }
    if (i % 16 == 0) epoch_reclaim(&w->e);
  }
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  static struct world w;
  pthread_t r[READERS], wr[WRITERS];
  void *ret;
  epoch_init(&w.e);
  struct node *const n = mem_alloc(sizeof(*n));
  assert_non_null(n);
  n->a = 1;
  n->b = ~1ull;
  atomic_store(&w.cur, n);
  atomic_store(&w.made, 1);
  for (int i = 0; i < READERS; i++) OK(thread_start(&r[i], reader_main, &w, "reader"));
  for (int i = 0; i < WRITERS; i++) OK(thread_start(&wr[i], writer_main, &w, "writer"));
  for (int i = 0; i < WRITERS; i++) {
    assert_int_equal(pthread_join(wr[i], &ret), 0);
    assert_null(ret);
  }
  atomic_store(&w.stop, true);
  for (int i = 0; i < READERS; i++) {
    assert_int_equal(pthread_join(r[i], &ret), 0);
    assert_null(ret);
  }
  epoch_fini(&w.e);
  assert_int_equal(atomic_load(&w.freed), atomic_load(&w.made) - 1);
  mem_free(atomic_load(&w.cur));
}

// ---- an entrant and an unlinking at the same moment: either sees the other

#define MOMENTS 200000u
#define MOMENTS_NS 400000000u         // and no longer
#define FAR_BYTES ((size_t)32 << 20)  // more than the caches near the processor

struct meeting {
  struct epoch e;
  _Alignas(CACHE_LINE) _Atomic uint32_t go;        // the moment that has begun
  _Alignas(CACHE_LINE) _Atomic uint32_t judged;    // the reclaimer has its answer
  _Alignas(CACHE_LINE) _Atomic uint32_t left;      // the entrant is outside
  _Alignas(CACHE_LINE) _Atomic uint32_t unlinked;  // this moment's object
  _Atomic bool held;                               // the entrant found the object still there
  _Atomic bool over;
  uint8_t *far;
  uint32_t moments, was_held, seen, passed_over;  // the reclaimer's
};

static void wait_until(const _Atomic uint32_t *what, uint32_t reaches) {
  for (uint32_t i = 0; atomic_load_explicit(what, memory_order_acquire) < reaches; i++)
    if (i > 2000) (void)sched_yield();
}

static void some_delay(uint64_t *rng, uint32_t most) {
  for (volatile uint32_t n = (uint32_t)(rng_next(rng) % most); n > 0; n--) {}
}

// On a processor of its own: threads that take turns on one have a fence between them.
static void pin(uint32_t which) {
  uint32_t cores[2];
  if (cores_list(cores, 2) > 1) (void)cores_pin(cores[which]);
}

static void *entrant_main(void *p) {
  struct meeting *const m = p;
  struct epoch_slot s;
  uint64_t rng = 1;
  pin(0);
  epoch_join(&m->e, &s);
  for (uint32_t i = 1;; i++) {
    wait_until(&m->go, i);
    if (atomic_load_explicit(&m->over, memory_order_relaxed)) break;
    some_delay(&rng, 64);
    // stores after these are seen late; loads are not late
    for (uint32_t n = 0; n < 12; n++) m->far[rng_next(&rng) % FAR_BYTES] = (uint8_t)i;
    epoch_enter(&m->e, &s);
    atomic_store_explicit(&m->held, atomic_load_explicit(&m->unlinked, memory_order_acquire) < i, memory_order_relaxed);
    wait_until(&m->judged, i);
    epoch_exit(&s);
    atomic_store_explicit(&m->left, i, memory_order_release);
  }
  epoch_leave(&m->e, &s);
  return NULL;
}

static void *reclaimer_main(void *p) {
  struct meeting *const m = p;
  uint64_t rng = 2;
  const uint64_t until = time_ns() + MOMENTS_NS;
  pin(1);
  uint32_t i = 1;
  for (; i <= MOMENTS && time_ns() < until; i++) {
    atomic_store_explicit(&m->go, i, memory_order_release);
    some_delay(&rng, 1000);
    atomic_store_explicit(&m->unlinked, i, memory_order_release);
    const bool passed = epoch_passed(&m->e, epoch_stamp(&m->e));
    atomic_store_explicit(&m->judged, i, memory_order_release);
    wait_until(&m->left, i);
    const bool held = atomic_load_explicit(&m->held, memory_order_relaxed);
    m->passed_over += passed && held;
    m->was_held += held;
    m->seen += !passed;
  }
  atomic_store_explicit(&m->over, true, memory_order_relaxed);
  atomic_store_explicit(&m->go, i, memory_order_release);
  m->moments = i - 1;
  return NULL;
}

static void test_same_moment(void **state) {
  (void)state;
  static struct meeting meeting;
  struct meeting *const m = &meeting;
  pthread_t entrant, reclaimer;
  epoch_init(&m->e);
  m->far = malloc(FAR_BYTES);
  assert_non_null(m->far);
  memset(m->far, 1, FAR_BYTES);
  OK(thread_start(&entrant, entrant_main, m, "entrant"));
  OK(thread_start(&reclaimer, reclaimer_main, m, "reclaimer"));
  assert_int_equal(pthread_join(reclaimer, NULL), 0);
  assert_int_equal(pthread_join(entrant, NULL), 0);
  print_message("%u moments: %u times the entrant found the object, %u times it was seen\n", m->moments, m->was_held,
                m->seen);
  if (m->passed_over) fail_msg("%u times what was held had passed", m->passed_over);
  free(m->far);
  epoch_fini(&m->e);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_stamps_and_slots), cmocka_unit_test(test_late_entrant), cmocka_unit_test(test_renew),
      cmocka_unit_test(test_retire),           cmocka_unit_test(test_fn_retires),   cmocka_unit_test(test_threads),
      cmocka_unit_test(test_same_moment),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
