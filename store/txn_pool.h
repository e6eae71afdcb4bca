// SPDX-License-Identifier: Apache-2.0
//
// Transactions that have ended wait in the store's pool (base/pool.h) for the next ones, with their refs and some
// memory.
//
// A transaction in the pool keeps its reference to the super. If the next one finds that this is still the store's
// super, it begins, and ends, without a change of the super's count, which all threads share. So that the pool keeps no
// old super, each thread that has replaced the store's super calls txn_pool_let_go.
//
// Why no old super stays: a thread puts a transaction into a place, and then loads the store's super. The call makes an
// exchange with the place, after the super was replaced. If the exchange comes after the put, it finds the transaction.
// Else the put acquires the exchange, so the thread's load gives the new super, and the thread makes the call itself.
#ifndef STORE_TXN_POOL_H
#define STORE_TXN_POOL_H

#include "store/ref.h"

struct xdb_txn;

// Takes a transaction out of the pool; NULL: there is none. Its super is NULL, or one that was the store's.
struct xdb_txn *txn_pool_take(struct xdb *x);
// Gives up what an ended transaction without iterators has, and keeps the rest for the next one, or ends it. Outside of
// any epoch.
void txn_pool_put(struct xdb_txn *t);
// The store has a new super: the transactions in the pool give back older ones. Outside of any epoch and of the log's
// lock.
void txn_pool_let_go(struct xdb *x);
// Ends the transactions that wait. No other thread uses the pool.
void txn_pool_fini(struct xdb *x);

// Ends a transaction that no thread uses any more. Private to store/txn*.c.
void txn_destroy(struct xdb_txn *t);

// The counts of the calling thread's place.
static inline struct txn_counts *txn_counts(struct xdb *x) { return &x->txns.counts[pool_home()]; }
// The sums of the counts at the moment.
struct txn_figures {
  uint64_t open, committed, conflicts;
};
void txn_figures(const struct xdb *x, struct txn_figures *out);
#endif
