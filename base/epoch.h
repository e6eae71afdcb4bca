// SPDX-License-Identifier: Apache-2.0
//
// Safe reclamation (epoch-based; Fraser 2004). A thread that is going to follow shared pointers enters an epoch in its
// own slot and leaves it when done; what was unlinked at a stamp is reclaimed once every thread that was inside at that
// moment has left. Entering and leaving write only the thread's own cache line.
//
// Invariants
//   E1  `now` only grows; it starts at 1. A slot's `at` is 0 outside, and the value of `now` read at entry inside.
//   E2  An object unlinked before epoch_stamp() returned t can be held only by threads whose `at` is in [1, t].
//   E3  epoch_passed(t) is true only when no slot has an `at` in [1, t]; it stays true.
// Entry is: at = now, a full fence, then shared loads; and the unlinking side is: unlink, a full fence (the
// fetch_add of epoch_stamp), then reading the slots. So either the entrant sees the unlinking or the reclaimer sees the
// entrant. The entrant may have read an old `now`; it then only delays reclamation.
#ifndef EPOCH_H
#define EPOCH_H

#include "lib.h"

struct epoch_slot {  // one per thread that reads; embedded in its ref
  _Alignas(CACHE_LINE) _Atomic uint64_t at;
  struct epoch_slot *next, *prev;  // in the domain's list, under its lock
};

struct epoch_item {  // embedded in what is retired
  struct epoch_item *next;
  uint64_t stamp;
  void (*fn)(struct epoch_item *item, void *arg);  // frees it
  void *arg;
};

struct epoch {
  _Alignas(CACHE_LINE) _Atomic uint64_t now;
  _Atomic uint64_t horizon;                    // every stamp up to it has passed; written under the lock, release
  _Atomic size_t retired_nr;                   // items in the list; written under the lock, relaxed
  pthread_mutex_t lock;                        // guards slots and retired; never held while an item's fn runs
  struct epoch_slot slots;                     // list head
  struct epoch_item *retired, **retired_tail;  // in order of stamp
};

void epoch_init(struct epoch *e);
void epoch_fini(struct epoch *e);                         // no slot may be joined; runs what is still retired
void epoch_join(struct epoch *e, struct epoch_slot *s);   // s->at becomes 0
void epoch_leave(struct epoch *e, struct epoch_slot *s);  // must be outside

static inline void epoch_enter(struct epoch *e, struct epoch_slot *s) {
  const uint64_t now = atomic_load_explicit(&e->now, memory_order_relaxed);
#if defined(__x86_64__)
  // The exchange is both the store and the full fence of the processor; a second one would double the price. What is
  // left to forbid is the compiler's moving of later loads.
  (void)atomic_exchange_explicit(&s->at, now, memory_order_seq_cst);
  atomic_signal_fence(memory_order_seq_cst);
#else
  // release: what was read before the last exit stays before it for who reads this value instead of the 0
  atomic_store_explicit(&s->at, now, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst);
#endif
}
// For one who may be inside already, and from now on holds nothing of what was found before. When no stamp was taken
// since, it is free of charge.
static inline void epoch_renew(struct epoch *e, struct epoch_slot *s) {
  if (atomic_load_explicit(&s->at, memory_order_relaxed) != atomic_load_explicit(&e->now, memory_order_relaxed))
    epoch_enter(e, s);
}
static inline void epoch_exit(struct epoch_slot *s) { atomic_store_explicit(&s->at, 0, memory_order_release); }

// Call after unlinking; returns the stamp to ask about. Any thread.
uint64_t epoch_stamp(struct epoch *e);
// Whether all that were inside at the stamp have left. Takes the domain's lock for a scan of the slots; does not wait.
bool epoch_passed(struct epoch *e, uint64_t stamp);
// Waits until it has passed (sleeping in growing naps up to 1 ms). Must be called outside of any epoch.
void epoch_wait(struct epoch *e, uint64_t stamp);
// fn(item, arg) is called by some later epoch_reclaim (or epoch_fini) once the stamp, taken here, has passed. Cannot
// fail.
void epoch_retire(struct epoch *e, struct epoch_item *item, void (*fn)(struct epoch_item *, void *), void *arg);
// Runs what is due, in the calling thread. Cheap when nothing is.
void epoch_reclaim(struct epoch *e);
#endif
