// SPDX-License-Identifier: Apache-2.0
//
// The options of an iterator: bounds, and the moment that it reads.
#ifndef STORE_ITER_OPTS_H
#define STORE_ITER_OPTS_H

#include "store/snapshot.h"

// The fields of struct remixdb_iter_opts, and the space.
struct xdb_iter_opts {
  struct remixdb_range bounds;
  struct remixdb_slice prefix;
  struct kref space;  // all keys of the iterator begin with these bytes, which its caller does not see; at most
                      // XDB_ITER_SPACE. The bounds, the prefix and the keys of seeks are without them
  struct xdb_snapshot *snapshot;
  uint32_t expect;
  bool keys_only, hold;
};
#define XDB_ITER_SPACE 8u

// Bounds as keys of the tree. ptr NULL: none on this side.
struct xdb_iter_bounds {
  struct kref low, high;
  uint8_t *bytes;  // own memory; the keys lie in it
};
// The intersection of the bounds, the prefix and the space. The caller frees out->bytes with mem_free; NULL: there are
// no bounds. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status iter_bounds(const struct xdb_iter_opts *o, struct xdb_iter_bounds *out);
#endif
