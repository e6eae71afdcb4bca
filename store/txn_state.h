// SPDX-License-Identifier: Apache-2.0
//
// A transaction in memory. Private to store/txn*.c; store/txn.h has the calls and the protocol.
#ifndef STORE_TXN_STATE_H
#define STORE_TXN_STATE_H

#include "store/overlay.h"
#include "store/readset.h"
#include "store/ref.h"

struct txn_iter;

struct txn_point {
  uint64_t numbers[TREES];  // of the overlays
};

struct xdb_txn {
  struct xdb *xdb;
  struct xdb_txn *next;  // in the pool
  struct super *super;   // counted; NULL in the pool
  uint64_t moment;
  uint64_t now_ms;                      // the clock of the beginning
  struct xdb_ref *base[TREES];          // read super at moment, without the transaction's writes; keys of the tree
  struct xdb_ref *tracked, *untracked;  // the user's refs of the unnamed space
  struct xdb_ref **refs;                // those of named spaces
  uint32_t nr_refs;
  struct xdb_ref *now;  // for the comparison with the store as it is
  struct overlay own[TREES];
  struct readset reads[TREES];
  struct txn_iter *iters;        // open iterators
  struct txn_point *savepoints;  // the last one last
  uint32_t nr_savepoints, cap_savepoints;
  bool lost;   // memory was missing to note a read: the transaction cannot commit
  bool ended;  // but iterators are open, and the last of them frees it
};

// Keeps an ended transaction without iterators for the next one, or frees it. For the transaction's last iterator.
void txn_keep(struct xdb_txn *t);
#endif
