// SPDX-License-Identifier: Apache-2.0
//
// Named key spaces: their names, and the handles of those that somebody has opened. store/space_ref.h has their refs
// and keys, and drops them.
//
// The keys of all spaces lie in one tree (view/version.h, V7). A key of that tree is the id of its space, then the
// user's key. The version has the names (view/names.h); a space that nobody has opened is an entry there and nothing
// else. A change of the names is an install of its own (install_names), beside rounds.
#ifndef STORE_SPACE_H
#define STORE_SPACE_H

#include "store/state.h"

struct xdb_space {
  struct xdb *xdb;
  struct xdb_space *next;  // in its list of xdb.spaces; guarded by the lock there
  uint32_t hash;           // the name's
  uint32_t refs;           // handles and refs; guarded by that lock
  uint32_t id;
  _Atomic bool gone;  // it is dropped. Set with release, read with acquire
  uint32_t len;       // bytes of the name
  char name[];        // not terminated
};

// The contracts of remixdb_space_open, _close, _drop and _list. The name has been checked (1 to NAMES_LEN_MAX bytes).
MUST_CHECK enum remixdb_status xdb_space_open(struct xdb *x, const char *name, size_t len, bool create,
                                              struct xdb_space **out);
void xdb_space_close(struct xdb_space *sp);  // drops a reference; NULL is allowed
MUST_CHECK enum remixdb_status xdb_space_drop(struct xdb *x, const char *name, size_t len);
MUST_CHECK enum remixdb_status xdb_space_list(struct xdb *x, char **out);

// Adds a reference to a handle that the caller has.
void space_count(struct xdb_space *sp);
static inline bool space_is_gone(const struct xdb_space *sp) {
  return atomic_load_explicit(&sp->gone, memory_order_acquire);
}
// Returns the current names with a reference; NULL: there are none. Takes xdb.lock.
struct names *space_names(struct xdb *x);
#endif
