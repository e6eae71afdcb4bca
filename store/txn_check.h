// SPDX-License-Identifier: Apache-2.0
//
// The checks of a transaction's commit (store/txn.h has the protocol): whether what was read is still as it was.
#ifndef STORE_TXN_CHECK_H
#define STORE_TXN_CHECK_H

#include "store/txn_state.h"
#include "store/write.h"

struct txn_check {
  struct many_check many;  // the first member
  struct xdb_txn *txn;
  uint64_t moment;         // the moment of the beginning
  struct super *compared;  // counted; the reads were compared with this super. NULL: with none
  bool due;                // a try has found that what was read is to be compared
  struct {
    size_t at;           // the first range whose leaves are not all locked
    struct kref from;    // its leaves are locked up to this key; ptr NULL: none is
    struct kref passed;  // the leaves of all keys before this one are locked, by a deletion; ptr NULL: there was none
    bool all;            // the same of all keys
  } locked[TREES];
};

void txn_check_init(struct txn_check *c, struct xdb_txn *t);
void txn_check_fini(struct txn_check *c);
#endif
