// SPDX-License-Identifier: Apache-2.0
//
// A batch: puts and deletes that are written together. A batch belongs to no store. Only one thread at a time uses a
// batch.
//
// An operation goes to the space of the ref that writes the batch, or to one that it states itself. Then it has the
// kind KV_SPACES and, before its key, the id of the space; id 0 is the unnamed space.
#ifndef BATCH_H
#define BATCH_H

#include "kv.h"

#define BATCH_BYTES_MAX (5u << 28)  // bytes of a batch at most: 1.25 GiB, so that 1 GiB of keys and values fits

struct batch_op {
  struct kv_rec rec;  // as the log gets it. The bytes of key and value lie in the batch, or behind the operations
  uint64_t hash;      // hash64 of the key
  size_t at;          // how many operations were added before it
};

struct xdb_space;

// A space that operations name.
struct batch_name {
  uint32_t id, len;
  char *bytes;  // the name; own memory
};
#define BATCH_OF_REF UINT32_MAX  // no id of a space

struct xdb_batch {
  uint8_t *data;  // records in the codec of kv.h, one per operation
  size_t len, cap;
  size_t nr;       // operations
  size_t of_ref;   // bytes that the keys of operations without a space of their own take with an id before them
  uint32_t space;  // the space of the operations that are added next: an id, 0, or BATCH_OF_REF
  bool spaces;     // some operation states a space
  bool ranges;     // some operation deletes a range (KV_RANGE); an end that is open has length 0
  enum remixdb_status failed;  // why a space could not be taken: adding fails. REMIXDB_OK: nothing has failed
  uint64_t store_id;           // the names' store
  struct batch_name *names;    // ascending by id
  uint32_t nr_names, cap_names;
};

MUST_CHECK enum remixdb_status batch_create(struct xdb_batch **out);
void batch_destroy(struct xdb_batch *b);  // NULL is allowed
void batch_clear(struct xdb_batch *b);    // keeps the batch's memory for later operations
// Later operations go to the space; NULL: to the unnamed one. If that fails, later calls that add return the failure:
// REMIXDB_NOMEM, or REMIXDB_INVALID for spaces of two stores.
void batch_space(struct xdb_batch *b, const struct xdb_space *sp);
// Adds an operation of any kind of KV_IN_LOG but KV_SPACES; copies key and value. Fails with REMIXDB_NOMEM, or with the
// failure of batch_space; the batch is then unchanged.
MUST_CHECK enum remixdb_status batch_add(struct xdb_batch *b, const struct kv_rec *rec);
// Adds the deletion of [from, to); ptr NULL: an open end. An empty range adds nothing. Otherwise like batch_add.
MUST_CHECK enum remixdb_status batch_add_range(struct xdb_batch *b, struct kref from, struct kref to);
// Adds the operations of remixdb_batch_load. The caller has checked the lengths. Fails with REMIXDB_NOMEM; the batch is
// then unchanged.
MUST_CHECK enum remixdb_status batch_load(struct xdb_batch *b, size_t nr, const uint8_t *ops, const uint32_t *klens,
                                          const uint32_t *vlens, const uint8_t *bytes);
// Adds all operations of `from`, which may be b itself, with their spaces. Fails as batch_add does; the operations of b
// are then unchanged.
MUST_CHECK enum remixdb_status batch_append(struct xdb_batch *b, const struct xdb_batch *from);
// Calls fn for each operation, in the order of adding, until fn returns false. fn must not change the batch.
void batch_each(const struct xdb_batch *b, remixdb_batch_fn fn, void *priv);
// For a batch without ranges: returns the last operation on each key, in the order of the keys, those of the unnamed
// tree first. space: the id of the space of the ref that writes; 0: the unnamed one. The caller frees *ops_out with
// mem_free. The operations point into the batch, which must not change before that. *nr_out may be 0.
MUST_CHECK enum remixdb_status batch_sorted(const struct xdb_batch *b, uint32_t space, struct batch_op **ops_out,
                                            size_t *nr_out);
// Returns all operations, b->nr of them, in the order of adding. The end of a range is as it was added, without an id.
// Otherwise like batch_sorted.
MUST_CHECK enum remixdb_status batch_listed(const struct xdb_batch *b, uint32_t space, struct batch_op **ops_out);
#endif
