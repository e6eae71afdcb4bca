// SPDX-License-Identifier: Apache-2.0
//
// Room on disk that a store keeps for the time when the disk is full.
//
// Work that frees room needs room first: a flush of tombstones, a merge that leaves records out, the next CURRENT. So
// the store keeps the file RESERVE: 1/16 of the tables and value files or a little more, in a small store up to 1/8,
// between 32 KiB and 64 MiB, or a memtable if that is larger. From a recovery until the first round, the file is
// larger, for the replayed records. If a flush or a compaction that a caller asked for finds the disk full, the store
// removes the file, and the call tries again. A delete that finds the log full asks for a flush, too. From then on the
// store is scarce: the log grows for deletes only, so that puts do not use the freed room up. The store stops being
// scarce when it has made the file again. A file that only cannot grow, by up to a third, does not make the store
// scarce. If the file system cannot reserve room, there is no file.
#ifndef STORE_RESERVE_H
#define STORE_RESERVE_H

#include "store/state.h"

void reserve_init(struct xdb *x);
void reserve_fini(struct xdb *x);
// Sets how large the file should be: from the files of v, the value files of memtables, and `logged` bytes of replayed
// records that are not in tables yet. Any thread that keeps v alive.
void reserve_measure(struct xdb *x, const struct version *v, uint64_t logged);
// Makes the file as large as it should be. On a full disk the file takes the room that there is, and the store becomes
// scarce. Returns true if the store is not scarce. Waits for the disk.
bool reserve_keep(struct xdb *x);
void reserve_grow(struct xdb *x);  // by reserve_follow alone
// A long value was written. Before a store's first round, the values that no version has yet may be all of the store.
// So the file grows with them: each time that value files have grown by half. May wait for the disk. Outside of any
// lock and epoch.
static inline void reserve_follow(struct xdb *x) {
  const uint64_t room = atomic_load_explicit(&x->value_ctx.room, memory_order_relaxed);
  if (unlikely(room >= atomic_load_explicit(&x->reserve.again, memory_order_relaxed))) reserve_grow(x);
}
// For a write that was refused: returns true if the store was scarce and has just stopped being scarce.
bool reserve_back(struct xdb *x);
bool reserve_scarce(struct xdb *x);
uint64_t reserve_bytes(struct xdb *x);  // bytes of the file, if it is there; 0: none to spend
// The part of it that tables account for: value files have bounds of their own for their garbage.
uint64_t reserve_for_tables(struct xdb *x);
// Removes the file. Returns true if that freed room. Waits for the disk.
bool reserve_spend(struct xdb *x);
// The same for work that ends with a new CURRENT: makes the file no smaller than CURRENT may need, so that this work is
// not in vain. reserve_spend gives the rest.
bool reserve_spend_work(struct xdb *x);
#endif
