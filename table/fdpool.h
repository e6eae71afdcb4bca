// SPDX-License-Identifier: Apache-2.0
//
// Bounds the descriptors held for tables. A file that is used is opened on need; when the bound is reached one that has
// not been used for a while is closed (CLOCK, Corbato 1968). A descriptor in use is never closed; when all are in use,
// a thread waits for one that is given back: they are used for the length of a read. Tables that are being written have
// a place in the pool as well (fdpool_reserve), but at most half of all places, so that those who read go on. Also when
// the system refuses (EMFILE, ENFILE): the pool closes an unused one and tries again before it reports the error.
//
// Any thread. Who uses a file that is open changes the file's own word and nothing else; the pool's one short mutex is
// for opening, closing and waiting.
//
// Invariants
//   F1  A file's descriptor changes under the lock only: from none by a store, to none by an exchange that finds no
//   users. So who has counted itself as a user has a
//       descriptor that stays.
//   F2  A thread that waits says so (`wanted`) before it looks for an unused descriptor; who gives one back looks at
//   `wanted` after it has. Both are sequentially
//       consistent, so one of the two sees the other, and nobody sleeps while a descriptor is unused.
#ifndef FDPOOL_H
#define FDPOOL_H

#include "base/env.h"

struct fdpool;
struct fdpool_file {  // embedded in what owns the file
  struct fdpool *pool;
  const struct env_dir *dir;  // it and the path are the owner's, valid until removed
  const char *path;           // ends with the name in the directory
  unsigned flags;             // ENV_READ [| ENV_DIRECT]
  _Atomic uint64_t
      state;  // descriptor + 1 (0: closed) in the upper half, in the lower one FDPOOL_USED and the number of users
  struct fdpool_file *next, *prev;  // ring of the open ones; guarded by the pool's lock
};
#define FDPOOL_USED 0x80000000u  // since the hand last passed
// max_open: at least 2.
MUST_CHECK enum remixdb_status fdpool_create(struct env *env, uint32_t max_open, struct fdpool **out);
void fdpool_destroy(struct fdpool *p);  // all files have been removed; NULL is allowed
void fdpool_add(struct fdpool *p, struct fdpool_file *f, const struct env_dir *dir, const char *path,
                unsigned flags);            // opens nothing
void fdpool_remove(struct fdpool_file *f);  // closes it; nobody uses it
// The descriptor, good until fdpool_release. May wait for other threads to give descriptors back, so the caller holds
// none of this pool; should all who hold some wait for more all the same, the bound is passed after FDPOOL_PATIENCE_NS
// instead of waiting for ever. REMIXDB_IO, also when the file is gone.
MUST_CHECK enum remixdb_status fdpool_acquire(struct fdpool_file *f, int *fd_out);
// The same for a caller that holds others: does not wait. False when there is no place, or the file could not be opened
// (a later fdpool_acquire tells why).
MUST_CHECK bool fdpool_try_acquire(struct fdpool_file *f, int *fd_out);
void fdpool_release(struct fdpool_file *f);
// A place for a descriptor that the caller opens, for long, and closes before it gives the place back. Waits until
// there is one; the caller holds none.
void fdpool_reserve(struct fdpool *p);
void fdpool_unreserve(struct fdpool *p);
#define FDPOOL_PATIENCE_NS 2000000000ull
// Descriptors open or being opened, and places given away.
uint32_t fdpool_open_count(struct fdpool *p);
#endif
