// SPDX-License-Identifier: Apache-2.0
//
// Writing: puts and deletes, batches, merges, and what a round hands back.
#ifndef XDB_WRITE_H
#define XDB_WRITE_H

#include "store/batch.h"
#include "store/ref.h"

// tomb: a delete. When the disk is full it is taken all the same, also by a full memtable (a quarter more), as long as the log has room (wal_begin_last).
MUST_CHECK enum remixdb_status xdb_put(struct xdb_ref *r, struct kref key, const void *val, uint32_t vlen, bool tomb);
// All of the batch or nothing, to readers and after a crash: the leaves of its keys stay locked from the first version linked to the last one stamped, its records
// are one frame of the log, and one store publishes them. The batch is not changed. REMIXDB_TOOBIG: larger than a memtable.
MUST_CHECK enum remixdb_status xdb_write(struct xdb_ref *r, const struct xdb_batch *b);
// fn is called with the key's leaf locked: it must not call the store. When the memtable is frozen at that moment it is called again, with what is there then.
MUST_CHECK enum remixdb_status xdb_merge(struct xdb_ref *r, struct kref key, remixdb_merge_fn fn, void *priv);

// For a round (compact.hand_back; arg is the store): a record goes into the active memtable, unless there is a newer one of its key.
MUST_CHECK enum remixdb_status xdb_write_back(void *arg, struct worker *w, const struct kv_rec *rec);
#endif
