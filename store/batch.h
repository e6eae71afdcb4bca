// SPDX-License-Identifier: Apache-2.0
//
// A batch: puts and deletes that are written together. A batch belongs to no store. Only one thread at a time uses a
// batch.
#ifndef BATCH_H
#define BATCH_H

#include "kv.h"

struct batch_op {
  struct kv_rec rec;  // the bytes of key and value lie in the batch
  uint64_t hash;      // hash64 of the key
};

struct xdb_batch {
  uint8_t *data;  // records in the codec of kv.h, one per operation
  size_t len, cap;
  size_t nr;  // operations
};

MUST_CHECK enum remixdb_status batch_create(struct xdb_batch **out);
void batch_destroy(struct xdb_batch *b);  // NULL is allowed
void batch_clear(struct xdb_batch *b);    // keeps the batch's memory for later operations
// Adds an operation of any kind of KV_IN_LOG; copies key and value. Fails with REMIXDB_NOMEM; the batch is then
// unchanged.
MUST_CHECK enum remixdb_status batch_add(struct xdb_batch *b, const struct kv_rec *rec);
// Adds the operations of remixdb_batch_load. The caller has checked the lengths. Fails with REMIXDB_NOMEM; the batch is
// then unchanged.
MUST_CHECK enum remixdb_status batch_load(struct xdb_batch *b, size_t nr, const uint8_t *ops, const uint32_t *klens,
                                          const uint32_t *vlens, const uint8_t *bytes);
// Adds all operations of `from`, which may be b itself. Fails with REMIXDB_NOMEM; the batch is then unchanged.
MUST_CHECK enum remixdb_status batch_append(struct xdb_batch *b, const struct xdb_batch *from);
// Calls fn for each operation, in the order of adding, until fn returns false. fn must not change the batch.
void batch_each(const struct xdb_batch *b, remixdb_batch_fn fn, void *priv);
// Returns the last operation on each key, in the order of the keys. The caller frees *ops_out with mem_free. The
// operations point into the batch, which must not change before that. *nr_out may be 0.
MUST_CHECK enum remixdb_status batch_sorted(const struct xdb_batch *b, struct batch_op **ops_out, size_t *nr_out);
#endif
