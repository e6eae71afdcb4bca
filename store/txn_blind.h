// SPDX-License-Identifier: Apache-2.0
//
// The ranges that a transaction has deleted. The transaction keeps a tombstone for each key that it sees there, and the
// commit deletes what others have put there meanwhile (store/ranges.h): so the deletion of a range is no read.
//
// A read inside a range that was deleted before depends on the transaction's own writes alone, so it is not noted. A
// rollback takes back the deletions after its savepoint: reads that come later are noted again.
//
// One thread.
#ifndef STORE_TXN_BLIND_H
#define STORE_TXN_BLIND_H

#include "store/txn_state.h"

// Adds a range of the tree, from <= key < to; to.ptr NULL: no end. Copies the keys. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status txn_blind_add(struct xdb_txn *t, uint32_t tree, struct kref from, struct kref to);
// Forgets all ranges but the first nr.
void txn_blind_cut(struct xdb_txn *t, uint32_t nr);
// Notes a read of a key, or of a range by an iterator that sees the deletions up to this number (t->blind_number).
// Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status txn_note_key(struct xdb_txn *t, uint32_t tree, struct kref key);
MUST_CHECK enum remixdb_status txn_note_range(struct xdb_txn *t, uint32_t tree, const struct read_range *r,
                                              uint64_t number);
#endif
