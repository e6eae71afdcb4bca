// SPDX-License-Identifier: Apache-2.0
#include "base/epoch.h"

#include <assert.h>
#include <sched.h>

void epoch_init(struct epoch *e) {
  atomic_init(&e->now, 1);
  atomic_init(&e->horizon, 0);
  atomic_init(&e->retired_nr, 0);
  atomic_init(&e->nr_slots, 0);
  (void)pthread_mutex_init(&e->lock, NULL);
  atomic_init(&e->slots.at, 0);
  e->slots.next = e->slots.prev = &e->slots;
  e->retired = NULL;
  e->retired_tail = &e->retired;
}

static void epoch_run(struct epoch_item *item) {
  while (item) {
    struct epoch_item *const next = item->next;  // fn frees the item
    item->fn(item, item->arg);
    item = next;
  }
}

void epoch_fini(struct epoch *e) {
  assert(e->slots.next == &e->slots);
  while (e->retired) {  // fn may retire further items
    struct epoch_item *const all = e->retired;
    e->retired = NULL;
    e->retired_tail = &e->retired;
    epoch_run(all);
  }
  (void)pthread_mutex_destroy(&e->lock);
}

void epoch_join(struct epoch *e, struct epoch_slot *s) {
  atomic_init(&s->at, 0);
  (void)pthread_mutex_lock(&e->lock);
  s->next = &e->slots;
  s->prev = e->slots.prev;
  s->prev->next = s;
  e->slots.prev = s;
  atomic_fetch_add_explicit(&e->nr_slots, 1, memory_order_relaxed);
  (void)pthread_mutex_unlock(&e->lock);
}

void epoch_leave(struct epoch *e, struct epoch_slot *s) {
  assert(atomic_load_explicit(&s->at, memory_order_relaxed) == 0);
  (void)pthread_mutex_lock(&e->lock);
  s->prev->next = s->next;
  s->next->prev = s->prev;
  atomic_fetch_sub_explicit(&e->nr_slots, 1, memory_order_relaxed);
  (void)pthread_mutex_unlock(&e->lock);
  s->next = s->prev = NULL;
}

uint64_t epoch_stamp(struct epoch *e) {
  const uint64_t t = atomic_fetch_add_explicit(&e->now, 1, memory_order_seq_cst);
  atomic_thread_fence(memory_order_seq_cst);
  return t;
}

// Scans the slots, raises the horizon as far as they allow, and returns it: every stamp up to it has passed. The caller
// holds the lock.
//
// Why a later entry with an old `now` does not lower the horizon: a thread unlinks its objects before it takes a stamp.
// So the objects of all stamps below the loaded `now` were unlinked before that load. The fence orders that load before
// the loads of the slots. If the scan does not see that a thread has entered, the fence in epoch_enter comes after the
// scan's fence. Then the thread finds none of these objects.
static uint64_t epoch_scan(struct epoch *e) {
  uint64_t low = atomic_load_explicit(&e->now, memory_order_seq_cst);
  atomic_thread_fence(memory_order_seq_cst);
  for (struct epoch_slot *s = e->slots.next; s != &e->slots; s = s->next) {
    // acquire: the reads that the thread made inside its epoch come before the freeing
    const uint64_t at = atomic_load_explicit(&s->at, memory_order_acquire);
    if (at && at < low) low = at;
  }
  uint64_t horizon = atomic_load_explicit(&e->horizon, memory_order_relaxed);
  if (low - 1 > horizon) {
    horizon = low - 1;
    atomic_store_explicit(&e->horizon, horizon, memory_order_release);
  }
  return horizon;
}

bool epoch_passed(struct epoch *e, uint64_t stamp) {
  // acquire: pairs with the release in epoch_scan; the thread that ran epoch_scan had acquired the slots
  if (atomic_load_explicit(&e->horizon, memory_order_acquire) >= stamp) return true;
  (void)pthread_mutex_lock(&e->lock);
  const uint64_t horizon = epoch_scan(e);
  (void)pthread_mutex_unlock(&e->lock);
  return horizon >= stamp;
}

void epoch_wait(struct epoch *e, uint64_t stamp) {
  // Readers are inside for microseconds only, so yielding often suffices.
  for (int i = 0; i < 4; i++) {
    if (epoch_passed(e, stamp)) return;
    (void)sched_yield();
  }
  for (uint64_t nap_ns = 2000; !epoch_passed(e, stamp); nap_ns = nap_ns < 500000 ? nap_ns * 2 : 1000000)
    time_sleep_ns(nap_ns);
}

void epoch_retire(struct epoch *e, struct epoch_item *item, void (*fn)(struct epoch_item *, void *), void *arg) {
  item->next = NULL;
  item->fn = fn;
  item->arg = arg;
  (void)pthread_mutex_lock(&e->lock);
  item->stamp = epoch_stamp(e);  // under the lock, so that the list is in order of stamp
  *e->retired_tail = item;
  e->retired_tail = &item->next;
  atomic_fetch_add_explicit(&e->retired_nr, 1, memory_order_relaxed);
  (void)pthread_mutex_unlock(&e->lock);
}

void epoch_reclaim(struct epoch *e) {
  if (atomic_load_explicit(&e->retired_nr, memory_order_relaxed) == 0) return;
  struct epoch_item *due = NULL, **due_tail = &due;
  size_t nr = 0;
  (void)pthread_mutex_lock(&e->lock);
  const uint64_t horizon = epoch_scan(e);
  while (e->retired && e->retired->stamp <= horizon) {
    *due_tail = e->retired;
    due_tail = &e->retired->next;
    e->retired = e->retired->next;
    nr++;
  }
  *due_tail = NULL;
  if (!e->retired) e->retired_tail = &e->retired;
  atomic_fetch_sub_explicit(&e->retired_nr, nr, memory_order_relaxed);
  (void)pthread_mutex_unlock(&e->lock);
  epoch_run(due);
}
