// SPDX-License-Identifier: Apache-2.0
//
// The lock of a store's directory. One opening holds it alone and writes; openings that only read share it. It is two
// locks: one on the directory itself, which keeps other openings out whatever becomes of the file LOCK, and one on that
// file, which earlier libraries know.
//
// A file system may have no locks on directories (NFS). There LOCK is the only one, and a store asks with each install
// whether LOCK is still the file that it holds: where it was removed meanwhile another opening may have made a new one.
//
// A descriptor of each is open while the lock is held. A child made by fork closes its copies, or the lock would be
// held until the child ends, too. Any thread; one struct is one thread's at a time.
#ifndef DIRLOCK_H
#define DIRLOCK_H

#include "base/files.h"
#include "base/fork.h"

struct dirlock {
  struct env *env;            // NULL: nothing is held, as in a struct that is all zero
  int dir_fd;                 // the directory, locked; -1: it cannot be locked
  int file_fd;                // LOCK, locked; -1: it is shared, and there is no LOCK
  struct fork_closes closes;  // both, of a native env
};

static inline bool dirlock_held(const struct dirlock *l) { return l->env != NULL; }
// Does not wait: REMIXDB_LOCKED. exclusive: makes LOCK where there is none. After a failure nothing is held.
MUST_CHECK enum remixdb_status dirlock_take(const struct env_dir *d, bool exclusive, struct dirlock *out);
// Whether nobody else can have taken the lock of this directory since. REMIXDB_IO: somebody can have.
MUST_CHECK enum remixdb_status dirlock_check(const struct dirlock *l, const struct env_dir *d);
void dirlock_give(struct dirlock *l);  // one that is not held is ignored. l is where it was when the lock was taken
#endif
