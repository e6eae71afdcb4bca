// SPDX-License-Identifier: Apache-2.0
//
// Epoch-based reclamation (Fraser 2004): memory that readers may still hold is freed after they have left.
//
// A reader enters an epoch in its own slot, follows shared pointers, and leaves. A writer unlinks an object, takes a
// stamp, and frees the object when the stamp has passed: every thread that was inside at the stamp has left.
// Entering and leaving write the reader's own cache line only.
//
// Invariants
//   E1  `now` only grows and starts at 1. A slot's `at` is 0 outside; inside, it is the `now` that the thread read at
//       entry.
//   E2  Only threads whose `at` is in [1, t] can hold an object that was unlinked before epoch_stamp() returned t.
//   E3  epoch_passed(t) is true only when no slot has an `at` in [1, t]. It stays true.
// Why it works: a reader stores `at`, fences, and then loads shared pointers. A writer unlinks, fences (in
// epoch_stamp), and then reads the slots. So the reader sees the unlinking, or the writer sees the reader. A reader
// that has read an old `now` only delays reclamation.
#ifndef EPOCH_H
#define EPOCH_H

#include "lib.h"

// One per reading thread, embedded in its ref.
struct epoch_slot {
  _Alignas(CACHE_LINE) _Atomic uint64_t at;
  struct epoch_slot *next, *prev;  // in the domain's list, under its lock
};

// Embedded in an object that is retired.
struct epoch_item {
  struct epoch_item *next;
  uint64_t stamp;
  void (*fn)(struct epoch_item *item, void *arg);  // frees the item
  void *arg;
};

struct epoch {
  _Alignas(CACHE_LINE) _Atomic uint64_t now;
  _Atomic uint64_t horizon;                    // all stamps up to this one have passed; written under the lock, release
  _Atomic size_t retired_nr;                   // items in the list; written under the lock, relaxed
  _Atomic uint32_t nr_slots;                   // in the list, which a scan passes over; written under the lock, relaxed
  pthread_mutex_t lock;                        // guards slots and retired; never held while an item's fn runs
  struct epoch_slot slots;                     // list head
  struct epoch_item *retired, **retired_tail;  // in order of stamp
};

void epoch_init(struct epoch *e);
void epoch_fini(struct epoch *e);  // no slot may be joined; frees all items that are still retired
void epoch_join(struct epoch *e, struct epoch_slot *s);   // the slot is outside afterwards
void epoch_leave(struct epoch *e, struct epoch_slot *s);  // the slot must be outside

static inline void epoch_enter(struct epoch *e, struct epoch_slot *s) {
  const uint64_t now = atomic_load_explicit(&e->now, memory_order_relaxed);
#if defined(__x86_64__)
  // The exchange is the store and the processor's full fence in one instruction. The signal fence stops the compiler
  // from moving later loads before it.
  (void)atomic_exchange_explicit(&s->at, now, memory_order_seq_cst);
  atomic_signal_fence(memory_order_seq_cst);
#else
  // release: a scan that reads this value instead of 0 still sees the reads before the last exit as done
  atomic_store_explicit(&s->at, now, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst);
#endif
}
// Leaves and enters again. The thread may be inside, but must no longer use the objects that it has found. Costs
// nothing if no thread has taken a stamp meanwhile.
static inline void epoch_renew(struct epoch *e, struct epoch_slot *s) {
  if (atomic_load_explicit(&s->at, memory_order_relaxed) != atomic_load_explicit(&e->now, memory_order_relaxed))
    epoch_enter(e, s);
}
static inline void epoch_exit(struct epoch_slot *s) { atomic_store_explicit(&s->at, 0, memory_order_release); }

// How many slots a scan passes over, for callers who choose how often they scan. Any thread.
static inline uint32_t epoch_slots(const struct epoch *e) {
  return atomic_load_explicit(&e->nr_slots, memory_order_relaxed);
}
// Returns a stamp for all objects that the caller has unlinked so far. Any thread.
uint64_t epoch_stamp(struct epoch *e);
// Tells whether all threads that were inside at the stamp have left. Locks the domain to scan its slots; never waits
// for readers.
bool epoch_passed(struct epoch *e, uint64_t stamp);
// Sleeps until the stamp has passed, in naps that grow to 1 ms. The caller must be outside of every epoch.
void epoch_wait(struct epoch *e, uint64_t stamp);
// Takes a stamp for the item. When the stamp has passed, a later epoch_reclaim or epoch_fini calls fn(item, arg).
// Cannot fail.
void epoch_retire(struct epoch *e, struct epoch_item *item, void (*fn)(struct epoch_item *, void *), void *arg);
// Frees the retired items whose stamps have passed, in the calling thread. Cheap when nothing is retired.
void epoch_reclaim(struct epoch *e);
#endif
