// SPDX-License-Identifier: Apache-2.0
//
// Iterators of a transaction: an iterator over the transaction's moment, merged with the transaction's own writes up to
// the last seek. Such an iterator belongs to a struct xdb_iter (xdb_iter.own), and leaves that one's merge alone: the
// merge is never valid, so the quick ways of a step leave the work to these calls.
//
// The range from the key of a seek to the farthest key that the iterator has stood on is read: the iterator notes it in
// the transaction at its next seek, when it ends, and at the commit.
#ifndef STORE_TXN_ITER_H
#define STORE_TXN_ITER_H

#include "store/txn_state.h"

struct txn_iter *txn_iter_after(const struct txn_iter *t);  // the next iterator of the transaction, or NULL
// Notes what the iterator has read since its last seek. The next move must be a seek. Fails with REMIXDB_NOMEM; the
// transaction is then marked as lost (xdb_txn.lost), so that it does not commit without that range.
MUST_CHECK enum remixdb_status txn_iter_note(struct txn_iter *t);
// The transaction has ended: the iterator loses its position, and every later move fails with REMIXDB_INVALID.
void txn_iter_end(struct txn_iter *t);

// The calls of struct xdb_ref_calls.
MUST_CHECK enum remixdb_status txn_iter_create(struct xdb_ref *r, const struct xdb_iter_opts *o,
                                               const struct xdb_iter_bounds *bounds, struct xdb_own_iter **out);
void txn_iter_destroy(struct xdb_own_iter *it);
void txn_iter_park(struct xdb_own_iter *it);
MUST_CHECK enum remixdb_status txn_iter_seek(struct xdb_own_iter *it, enum seek_how how, struct kref key);
MUST_CHECK enum remixdb_status txn_iter_skip(struct xdb_own_iter *it, uint32_t nr);
MUST_CHECK enum remixdb_status txn_iter_prev(struct xdb_own_iter *it);
MUST_CHECK enum remixdb_status txn_iter_record(struct xdb_own_iter *it, struct kv_rec *rec_out);
MUST_CHECK enum remixdb_status txn_iter_load(struct xdb_own_iter *it, struct kv_rec *rec, void *buf);
MUST_CHECK enum remixdb_status txn_iter_unend(struct xdb_own_iter *it, bool first);
#endif
