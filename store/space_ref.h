// SPDX-License-Identifier: Apache-2.0
//
// Refs of named key spaces, and their keys.
//
// A writer finds out inside its epoch whether its space still exists: the super that has the memtable also has the
// names. A drop installs names without the space's. When that install has ended, all epochs that could see the older
// names have ended, so no later write goes into the space.
#ifndef STORE_SPACE_REF_H
#define STORE_SPACE_REF_H

#include "store/iter_opts.h"
#include "store/ref.h"
#include "store/snapshot.h"
#include "store/space.h"

// Makes a ref of a space. Fails with REMIXDB_GONE or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status xdb_space_ref(struct xdb_space *sp, struct xdb_ref **out);
// Makes a ref of a space at a snapshot's moment; sp NULL: the unnamed space. A space that was dropped since is read
// as it was. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status xdb_snapshot_space_ref(struct xdb_snapshot *snap, struct xdb_space *sp,
                                                      struct xdb_ref **out);

// Puts the id of the ref's space before a key. *key then lies in memory of the ref, until the next call. Fails with
// REMIXDB_GONE if the space is dropped and the ref has no snapshot, and with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status space_key_make(struct xdb_ref *r, struct kref *key);
static inline enum remixdb_status space_key(struct xdb_ref *r, struct kref *key) {
  return likely(r->space == NULL) ? REMIXDB_OK : space_key_make(r, key);
}
// The same for a record that is written, which then belongs to the spaces' tree: *mine is memory for its head.
static inline enum remixdb_status space_rec(struct xdb_ref *r, const struct kv_rec **rec, struct kv_rec *mine) {
  if (likely(r->space == NULL)) return REMIXDB_OK;
  struct kref key = kref((*rec)->key, (*rec)->klen);
  const enum remixdb_status s = space_key_make(r, &key);
  *mine = **rec;
  mine->key = key.ptr;
  mine->klen = key.len;
  mine->kind |= KV_SPACES;
  *rec = mine;
  return s;
}
// The same for nr keys. *own_out: memory for the new keys, which the caller frees with mem_free.
MUST_CHECK enum remixdb_status space_keys(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys,
                                          struct remixdb_slice **own_out);
// The bounds of a range of the ref's keys, in its tree; the contract of iter_bounds. Fails also with REMIXDB_GONE.
MUST_CHECK enum remixdb_status space_bounds(const struct xdb_ref *r, const struct remixdb_range *range,
                                            struct xdb_iter_bounds *out);
// Fails with REMIXDB_GONE if the ref's space is dropped and the ref has no snapshot.
MUST_CHECK enum remixdb_status space_check(const struct xdb_ref *r);
// The same for a write of a key of the spaces' tree, inside the epoch in which the caller found the super.
MUST_CHECK enum remixdb_status space_check_write(const struct super *v, struct kref key);
MUST_CHECK enum remixdb_status space_say_gone(void);  // returns REMIXDB_GONE with its message
#endif
