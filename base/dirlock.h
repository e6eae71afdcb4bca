// SPDX-License-Identifier: Apache-2.0
//
// The lock of a store's directory. An opening that writes holds it alone; openings that only read share it. It is two
// locks. The one on the directory itself keeps other openings out whatever happens to the file LOCK. The one on LOCK
// keeps out earlier versions of this library.
//
// Some file systems cannot lock directories (NFS). There LOCK is the only lock: if somebody removes it, another opening
// may make a new LOCK and lock that. So the store checks with each install that LOCK is still the file that it holds.
//
// Both descriptors are open while the lock is held. A child made by fork closes its copies; otherwise it would keep the
// lock. Any thread; a struct serves one thread at a time.
#ifndef DIRLOCK_H
#define DIRLOCK_H

#include "base/files.h"
#include "base/fork.h"

struct dirlock {
  struct env *env;            // NULL: not held, as in a struct that is all zero
  int dir_fd;                 // the directory, locked; -1: it cannot be locked
  int file_fd;                // LOCK, locked; -1: a shared lock without LOCK
  struct fork_closes closes;  // both, of a native env
};

static inline bool dirlock_held(const struct dirlock *l) { return l->env != NULL; }
// REMIXDB_LOCKED: another opening holds it; there is no waiting. exclusive: makes LOCK if it is absent. A failure
// leaves nothing held.
MUST_CHECK enum remixdb_status dirlock_take(const struct env_dir *d, bool exclusive, struct dirlock *out);
// Checks that nobody else can have taken the lock of this directory since. REMIXDB_IO: somebody can.
MUST_CHECK enum remixdb_status dirlock_check(const struct dirlock *l, const struct env_dir *d);
void dirlock_give(struct dirlock *l);  // ignores a lock that is not held; *l has not moved since it was taken
#endif
