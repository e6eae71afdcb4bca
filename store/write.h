// SPDX-License-Identifier: Apache-2.0
//
// Parts of writing that xdb.c shares with transactions: writes that are committed as one, and a merge's decision.
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
  // Locks the leaves of what was read in the tree up to the key; NULL: of all that was read there. Keys ascend, and the
  // unnamed tree comes first. Fails with REMIXDB_NOMEM, or with REMIXDB_ABORTED (a conflict).
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
  struct value_apart *apart;  // of each operation whose value xdb_write_many has written apart; NULL: none
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

struct merge_call {
  struct kref key;
  uint64_t hash;
  uint32_t nr_id;  // bytes of the id of a space before the user's key
  remixdb_merge_fn fn;
  void *priv;
  bool compares;             // there is no fn: `to` is written if the record has this version; 0: if there is none
  uint64_t version, is;      // `is`: the version that it has; 0: there is none
  enum remixdb_merge_op op;  // the decision; REMIXDB_MERGE_KEEP: nothing is written
  struct kv_rec to;          // else what is written; fn's value is fn's
  // A value that is apart, read by a try before; own memory. NULL: none. was_ref: the reference to it.
  void *was;
  uint8_t was_ref[VALUE_REF];
};
// Decides by the user's function, whose decision it checks, or by the version. rec: the key's record, with its seq if
// c->compares is set; or NULL.
MUST_CHECK enum remixdb_status merge_decide(const struct xdb *x, struct merge_call *c, const struct kv_rec *rec);
#endif
