// SPDX-License-Identifier: Apache-2.0
//
// Threads that wait for an eventcount: no wake-up is lost, each wakes one, waking does not wait. All tests run with the
// system's sleep and with the portable form.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/thread.h"
#include "tests/lib/check.h"

#include "base/eventcount.h"

#define PATIENCE_NS 300000000000ull  // a wake-up that has not come by then is lost, however slow the machine is

static int set_up(void **state) {
  atomic_store(&eventcount_portable, *(const bool *)*state);
  return 0;
}

// ---- one thread

static void test_begun(void **state) {
  (void)state;
  struct eventcount e;
  eventcount_init(&e);
  eventcount_wake(&e);  // nobody waits: nothing happens
  eventcount_wake_all(&e);
  assert_int_equal(atomic_load(&e.turn), 0);
  uint32_t begun = eventcount_begin(&e);
  eventcount_wake(&e);
  assert_true(eventcount_sleep(&e, begun, PATIENCE_NS));  // woken before it sleeps
  begun = eventcount_begin(&e);
  eventcount_wake_all(&e);
  eventcount_wake(&e);
  assert_true(eventcount_sleep(&e, begun, PATIENCE_NS));
  assert_int_equal(atomic_load(&e.turn), 3);
  (void)eventcount_begin(&e);
  eventcount_end(&e);
  eventcount_wake(&e);
  assert_int_equal(atomic_load(&e.turn), 3);
  assert_int_equal(atomic_load(&e.waiters), 0);
  eventcount_fini(&e);
}

static void test_time(void **state) {
  (void)state;
  struct eventcount e;
  pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  eventcount_init(&e);
  assert_false(eventcount_sleep(&e, eventcount_begin(&e), 0));
  const uint64_t began = time_ns();
  while (eventcount_sleep(&e, eventcount_begin(&e), 2000000)) {}
  assert_true(time_ns() - began >= 2000000);
  (void)pthread_mutex_lock(&m);
  while (eventcount_wait(&e, &m, 1000000)) {}
  assert_int_equal(pthread_mutex_trylock(&m) != 0, 1);  // it has the mutex again
  (void)pthread_mutex_unlock(&m);
  const uint32_t begun = eventcount_begin(&e);
  eventcount_wake(&e);
  assert_true(eventcount_sleep(&e, begun, UINT64_MAX - 1));
  assert_int_equal(atomic_load(&e.waiters), 0);
  eventcount_fini(&e);
}

// ---- tokens: threads that give wake threads that take, and each token is one wake-up

struct tokens {
  struct eventcount given;
  _Atomic uint32_t left;  // tokens that nobody has taken
  _Atomic bool end;       // no more come
  _Atomic uint64_t taken, slept, lost;
};

static bool take(struct tokens *t) {
  uint32_t left = atomic_load_explicit(&t->left, memory_order_relaxed);
  while (left &&
         !atomic_compare_exchange_weak_explicit(&t->left, &left, left - 1, memory_order_relaxed, memory_order_relaxed))
    continue;
  return left != 0;
}

static void *taker(void *arg) {
  struct tokens *const t = arg;
  for (;;) {
    if (take(t)) {
      atomic_fetch_add_explicit(&t->taken, 1, memory_order_relaxed);
      continue;
    }
    const uint32_t begun = eventcount_begin(&t->given);
    if (atomic_load_explicit(&t->left, memory_order_relaxed) || atomic_load_explicit(&t->end, memory_order_relaxed)) {
      eventcount_end(&t->given);
      if (atomic_load_explicit(&t->end, memory_order_relaxed) && !atomic_load_explicit(&t->left, memory_order_relaxed))
        return NULL;
      continue;
    }
    atomic_fetch_add_explicit(&t->slept, 1, memory_order_relaxed);
    if (!eventcount_sleep(&t->given, begun, PATIENCE_NS)) atomic_fetch_add_explicit(&t->lost, 1, memory_order_relaxed);
  }
}

struct giver {
  struct tokens *t;
  uint32_t nr;
  uint64_t rng;
};

// Gives tokens one by one, at times so slowly that all takers fall asleep, and at times close to each other.
static void *giver(void *arg) {
  struct giver *const g = arg;
  for (uint32_t i = 0; i < g->nr; i++) {
    atomic_fetch_add_explicit(&g->t->left, 1, memory_order_relaxed);
    eventcount_wake(&g->t->given);
    const uint64_t r = rng_next(&g->rng);
    if (r % 64 == 0) time_sleep_ns(20000);
    else
      for (volatile uint32_t spin = r % 512; spin > 0; spin--) {}
  }
  return NULL;
}

// Returns how often a taker slept.
static uint64_t play(uint32_t givers, uint32_t takers, uint32_t nr) {
  struct tokens t = {.left = 0};
  struct giver g[4];
  pthread_t give[4], take_from[8];
  eventcount_init(&t.given);
  for (uint32_t i = 0; i < takers; i++) OK(thread_start(&take_from[i], taker, &t, "taker"));
  for (uint32_t i = 0; i < givers; i++) {
    g[i] = (struct giver){&t, nr, check_seed + i};
    OK(thread_start(&give[i], giver, &g[i], "giver"));
  }
  for (uint32_t i = 0; i < givers; i++) thread_join(give[i]);
  // Every token had its wake-up, so the takers take all without another one.
  const uint64_t until = time_ns() + PATIENCE_NS;
  while (atomic_load(&t.left) && time_ns() < until) time_sleep_ns(100000);
  const uint32_t left = atomic_load(&t.left);
  atomic_store(&t.end, true);
  eventcount_wake_all(&t.given);
  for (uint32_t i = 0; i < takers; i++) thread_join(take_from[i]);
  assert_int_equal(left, 0);
  assert_int_equal(atomic_load(&t.lost), 0);
  assert_int_equal(atomic_load(&t.taken), (uint64_t)givers * nr);
  assert_int_equal(atomic_load(&t.given.waiters), 0);
  eventcount_fini(&t.given);
  return atomic_load(&t.slept);
}

static void test_tokens(void **state) {
  (void)state;
  const uint32_t nr = LIB_SANITIZED ? 3000 : 20000;
  assert_true(play(1, 1, nr) + play(1, 4, nr) + play(4, 1, nr) + play(4, 8, nr) > 0);
}

// ---- two threads that take turns: each sleeps while the other one works, so each wake-up counts

struct ball {
  struct eventcount turned;
  pthread_mutex_t lock;  // guards `turn` where `locked` is set
  _Atomic uint32_t turn;
  uint32_t rounds;
  bool locked, lost;
};

static bool pass_unlocked(struct ball *b, uint32_t mine) {
  for (;;) {
    const uint32_t begun = eventcount_begin(&b->turned);
    if (atomic_load_explicit(&b->turn, memory_order_relaxed) % 2 == mine) break;
    if (!eventcount_sleep(&b->turned, begun, PATIENCE_NS)) return false;
  }
  eventcount_end(&b->turned);
  atomic_fetch_add_explicit(&b->turn, 1, memory_order_relaxed);
  eventcount_wake(&b->turned);
  return true;
}

static bool pass_locked(struct ball *b, uint32_t mine) {
  bool in_time = true;
  (void)pthread_mutex_lock(&b->lock);
  while (in_time && atomic_load_explicit(&b->turn, memory_order_relaxed) % 2 != mine)
    in_time = eventcount_wait(&b->turned, &b->lock, PATIENCE_NS);
  atomic_fetch_add_explicit(&b->turn, 1, memory_order_relaxed);
  eventcount_wake(&b->turned);
  (void)pthread_mutex_unlock(&b->lock);
  return in_time;
}

static bool passes(struct ball *b, uint32_t mine) {
  for (uint32_t i = 0; i < b->rounds; i++)
    if (!(b->locked ? pass_locked(b, mine) : pass_unlocked(b, mine))) return false;
  return true;
}

static void *other_side(void *arg) {
  struct ball *const b = arg;
  b->lost = !passes(b, 1);
  return NULL;
}

static void test_turns(void **state) {
  (void)state;
  for (uint32_t locked = 0; locked <= 1; locked++) {
    struct ball b = {.rounds = LIB_SANITIZED ? 5000 : 30000, .locked = locked};
    pthread_t t;
    eventcount_init(&b.turned);
    (void)pthread_mutex_init(&b.lock, NULL);
    OK(thread_start(&t, other_side, &b, "ball"));
    assert_true(passes(&b, 0));
    thread_join(t);
    assert_false(b.lost);
    assert_int_equal(atomic_load(&b.turn), 2 * b.rounds);
    (void)pthread_mutex_destroy(&b.lock);
    eventcount_fini(&b.turned);
  }
}

// ---- many sleepers

struct sleepers {
  struct eventcount e;
  _Atomic uint32_t asleep, awake;
};

static void *sleeper(void *arg) {
  struct sleepers *const s = arg;
  const uint32_t begun = eventcount_begin(&s->e);
  atomic_fetch_add(&s->asleep, 1);
  while (!eventcount_sleep(&s->e, begun, PATIENCE_NS)) abort();
  atomic_fetch_add(&s->awake, 1);
  return NULL;
}

static bool wait_for(_Atomic uint32_t *count, uint32_t nr) {
  const uint64_t until = time_ns() + PATIENCE_NS;
  while (atomic_load(count) < nr && time_ns() < until) time_sleep_ns(100000);
  return atomic_load(count) >= nr;
}

// So many wake-ups wake so many threads; wake_all wakes the rest.
static void test_each_wakes_one(void **state) {
  (void)state;
  struct sleepers s = {.asleep = 0};
  pthread_t t[8];
  eventcount_init(&s.e);
  for (uint32_t i = 0; i < 8; i++) OK(thread_start(&t[i], sleeper, &s, "sleeper"));
  assert_true(wait_for(&s.asleep, 8));
  time_sleep_ns(20000000);  // all sleep by now, mostly; one that does not yet wakes by itself
  for (uint32_t i = 1; i <= 4; i++) {
    eventcount_wake(&s.e);
    assert_true(wait_for(&s.awake, i));
  }
  eventcount_wake_all(&s.e);
  assert_true(wait_for(&s.awake, 8));
  for (uint32_t i = 0; i < 8; i++) thread_join(t[i]);
  assert_int_equal(atomic_load(&s.e.waiters), 0);
  eventcount_fini(&s.e);
}

// ---- E4: a thread that was woken and does not get on, as if it had no processor: it is in the handler of a signal

static struct {
  _Atomic bool go_on;
  _Atomic uint32_t inside, woken;
  struct sleepers s;
} held;

static void hold_here(int nr) {
  (void)nr;
  atomic_fetch_add(&held.inside, 1);
  while (!atomic_load(&held.go_on)) {
    const struct timespec nap = {.tv_nsec = 1000000};
    (void)nanosleep(&nap, NULL);
  }
}

static void *waker(void *arg) {
  (void)arg;
  for (uint32_t i = 0; i < 100; i++) {
    eventcount_wake(&held.s.e);
    atomic_fetch_add(&held.woken, 1);
  }
  return NULL;
}

static void test_waking_does_not_wait(void **state) {
  (void)state;
  struct sigaction act = {.sa_handler = hold_here}, before;
  pthread_t stuck, other, wakes;
  memset(&held, 0, sizeof(held));
  eventcount_init(&held.s.e);
  assert_int_equal(sigaction(SIGUSR1, &act, &before), 0);
  assert_int_equal(pthread_create(&stuck, NULL, sleeper, &held.s), 0);
  assert_true(wait_for(&held.s.asleep, 1));
  time_sleep_ns(5000000);  // it sleeps by now
  assert_int_equal(pthread_kill(stuck, SIGUSR1), 0);
  assert_true(wait_for(&held.inside, 1));
  eventcount_wake(&held.s.e);
  OK(thread_start(&other, sleeper, &held.s, "other"));
  assert_true(wait_for(&held.s.asleep, 2));
  time_sleep_ns(5000000);
  OK(thread_start(&wakes, waker, NULL, "waker"));
  const bool all = wait_for(&held.woken, 100), one = wait_for(&held.s.awake, 1);
  atomic_store(&held.go_on, true);
  thread_join(wakes);
  assert_true(all && one);
  assert_true(wait_for(&held.s.awake, 2));
  thread_join(stuck);
  thread_join(other);
  assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
  eventcount_fini(&held.s.e);
}

int main(void) {
  (void)check_seed_start();
  static bool system_has = false, portable = true;
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_prestate_setup_teardown(test_begun, set_up, NULL, &system_has),
    cmocka_unit_test_prestate_setup_teardown(test_begun, set_up, NULL, &portable),
    cmocka_unit_test_prestate_setup_teardown(test_time, set_up, NULL, &system_has),
    cmocka_unit_test_prestate_setup_teardown(test_time, set_up, NULL, &portable),
    cmocka_unit_test_prestate_setup_teardown(test_tokens, set_up, NULL, &system_has),
    cmocka_unit_test_prestate_setup_teardown(test_tokens, set_up, NULL, &portable),
    cmocka_unit_test_prestate_setup_teardown(test_turns, set_up, NULL, &system_has),
    cmocka_unit_test_prestate_setup_teardown(test_turns, set_up, NULL, &portable),
    cmocka_unit_test_prestate_setup_teardown(test_each_wakes_one, set_up, NULL, &system_has),
    cmocka_unit_test_prestate_setup_teardown(test_each_wakes_one, set_up, NULL, &portable),
#if defined(__linux__)
    cmocka_unit_test_prestate_setup_teardown(test_waking_does_not_wait, set_up, NULL, &system_has),
#endif
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
