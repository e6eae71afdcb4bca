// SPDX-License-Identifier: Apache-2.0
//
// Writes that are committed as one: batches, which xdb.c has, and transactions.
#ifndef STORE_WRITE_H
#define STORE_WRITE_H

#include "store/batch.h"
#include "store/ref.h"
#include "store/values.h"

// The checks of a transaction that writes (store/txn_check.h).
struct many_check {
  // Outside of any epoch, before each try: does what a try has found to be due. Fails with REMIXDB_ABORTED (a
  // conflict), or as reading does.
  enum remixdb_status (*tables)(struct many_check *c);
  // Inside the epoch of a try, with the store's super. False: no try can begin.
  bool (*begin)(struct many_check *c, const struct super *v);
  // Locks the leaves of what was read in the tree up to the key; NULL: those of all that was read there. Keys ascend,
  // and the unnamed tree comes first. Fails with REMIXDB_NOMEM, or with REMIXDB_ABORTED (a conflict).
  enum remixdb_status (*lock)(struct many_check *c, uint32_t tree, struct wh_many *many, const struct kref *key);
  // The leaves of all keys before `to` are locked, by the deletion of a range; to.ptr NULL: all leaves.
  void (*locked)(struct many_check *c, uint32_t tree, struct kref to);
  // With all leaves locked and all writes linked. False: a conflict.
  bool (*passes)(struct many_check *c, const struct memtable *active);
  bool conflict;  // no further try
};

// Writes that are committed as one. All zero before many_add.
struct many_writes {
  struct batch_op *ops;  // in order of keys
  size_t nr;
  struct wh_link *links;      // one per operation
  size_t log_bytes, memory;   // bytes that it takes in the log and in the memtable
  struct value_apart *apart;  // for each operation: its value if xdb_write_many has written that apart; NULL: none
  bool paced;                 // some values go apart
  struct many_check *check;   // NULL: a batch, or a transaction that has read nothing
};

// Counts an operation that is in w->ops at nr, or puts it there. w->ops has room.
static inline void many_add(struct many_writes *w, const struct batch_op *op) {
  struct kv_rec rec = op->rec;
  if (values_apart(rec.klen, rec.vlen)) {
    w->paced = true;
    if (values_direct(rec.klen, rec.vlen)) {  // as it will be
      rec.vlen = VALUE_REF;
      rec.kind |= KV_APART;
    }
  }
  w->log_bytes += kv_rec_size(&rec);
  w->memory += wh_record_memory(rec.klen, rec.vlen);
  w->ops[w->nr++] = *op;
}
// Commits all of w, or nothing. r: for its epochs, its pace and its store; it may be a ref of a snapshot. Fails as
// xdb_write does, or with REMIXDB_ABORTED if w->check found a conflict.
MUST_CHECK enum remixdb_status xdb_write_many(struct xdb_ref *r, struct many_writes *w);
#endif
