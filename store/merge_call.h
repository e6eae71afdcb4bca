// SPDX-License-Identifier: Apache-2.0
//
// Merges: a function of the user makes a key's new value from the old one, or a put depends on the key's version. xdb.h
// has the calls. Transactions share the decision.
#ifndef STORE_MERGE_CALL_H
#define STORE_MERGE_CALL_H

#include "store/ref.h"
#include "value/format.h"

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
// Decides by the user's function, and checks its decision, or by the version. rec: the key's record, with its seq if
// c->compares is set; or NULL.
MUST_CHECK enum remixdb_status merge_decide(const struct xdb *x, struct merge_call *c, const struct kv_rec *rec);
#endif
