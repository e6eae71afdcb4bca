// SPDX-License-Identifier: Apache-2.0
//
// A transaction in memory. Private to store/txn*.c; store/txn.h has the calls and the protocol.
#ifndef STORE_TXN_STATE_H
#define STORE_TXN_STATE_H

#include "store/batch.h"
#include "store/overlay.h"
#include "store/readset.h"
#include "store/ref.h"

struct txn_iter;

struct txn_point {
  uint64_t numbers[TREES];  // the overlays'
  uint32_t nr_blind;
};

struct txn_blind {  // a range that was deleted (store/txn_blind.h)
  uint8_t *bytes;   // both keys; own memory
  struct kref from, to;
  uint32_t tree;
  uint64_t number;  // the deletion's
};

#define TXN_FEW 8u  // writes

struct xdb_txn {
  struct xdb *xdb;
  struct super *super;  // counted; see store/txn_pool.h
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
  struct batch_op ops[TXN_FEW];  // for the commit of a few writes
  struct wh_link links[TXN_FEW];
  struct txn_blind *blind;  // in the order of the deletions
  uint32_t nr_blind, cap_blind;
  uint64_t blind_number;  // the last one's; numbers are never used again
  bool lost;              // memory was missing to note a read: the transaction cannot commit
  bool ended;             // but iterators are open, and the last of them frees it
};
#endif
