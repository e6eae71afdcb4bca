// SPDX-License-Identifier: Apache-2.0
//
// The lock of a store's directory. An opening that writes holds the lock alone; openings that only read share it. The
// lock consists of two locks. The lock on the directory keeps other openings out whatever happens to the file LOCK. The
// lock on LOCK keeps out earlier versions of this library.
//
// Some file systems cannot lock directories (NFS). On these, LOCK is the only lock: if somebody removes LOCK, another
// opening may make and lock a new file LOCK. So the store checks at each install that the name LOCK still belongs to
// the file that it has locked.
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
// Takes the lock of the open directory. Fails with REMIXDB_LOCKED at once if another opening holds the lock. exclusive:
// the call makes LOCK if it is absent. After a failure nothing is held.
MUST_CHECK enum remixdb_status dirlock_take(const struct env_dir *d, bool exclusive, struct dirlock *out);
// Checks that no other opening can have taken the lock of this directory meanwhile. Fails with REMIXDB_IO if one can.
MUST_CHECK enum remixdb_status dirlock_check(const struct dirlock *l, const struct env_dir *d);
void dirlock_give(struct dirlock *l);  // ignores a lock that is not held; *l has not moved since it was taken
#endif
