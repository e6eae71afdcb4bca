// SPDX-License-Identifier: Apache-2.0
//
// Room on disk that a store keeps for the day when the disk is full: the file RESERVE, of 1/16 to 1/8 of the tables,
// between 32 KiB and 64 MiB; from a recovery to the first round as large as what was replayed, too. What frees room
// needs room first: a flush of tombstones, a merge that leaves records out, another CURRENT. When a flush or a
// compaction that somebody asked for (a delete that finds the log full asks for one, too) meets the full disk, the file
// goes, and it is tried again. From then on the store is scarce: the log grows for deletes only, so that puts do not
// use up what is freed, until the file is there again. Where the file system cannot reserve room there is none.
#ifndef STORE_RESERVE_H
#define STORE_RESERVE_H

#include "store/state.h"

void reserve_init(struct xdb *x);
void reserve_fini(struct xdb *x);
// The store's tables are those of v from now on, and `logged` bytes of records, that were replayed, are to be brought
// into more. Any thread that keeps v alive.
void reserve_measure(struct xdb *x, const struct version *v, uint64_t logged);
// Sees to it that the file is as large as it should be. When it cannot be, because the disk is full, the store is
// scarce, and the file as large as there is room. Whether the store is not scarce (any more). Blocks for the disk.
bool reserve_keep(struct xdb *x);
// For a write that was refused: whether the store was scarce, and is not any more.
bool reserve_back(struct xdb *x);
bool reserve_there(struct xdb *x);
// Removes the file. Whether there was one: room has been freed. Blocks for the disk.
bool reserve_spend(struct xdb *x);
#endif
