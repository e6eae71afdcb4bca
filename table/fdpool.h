// SPDX-License-Identifier: Apache-2.0
//
// Bounds the open descriptors of tables. A file is opened when it is used. At the bound, opening one closes another
// that has not been used for a while (CLOCK, Corbato 1968). A descriptor in use stays open. If all are in use, a thread
// waits for one, which takes about as long as a read. If the system refuses a descriptor (EMFILE, ENFILE), the pool
// closes an unused one and tries again, before it reports the error. Tables that are being written take places of the
// pool, too (fdpool_reserve), but at most half of them, so that readers go on. Some descriptors stay open between two
// calls of the user, so nobody may wait for them. They have at most a quarter of the places (fdpool_hold); where that
// is used up, their owners close them.
//
// Any thread may call. The use of an open file changes only the file's own word. The pool's mutex is for opening,
// closing and waiting, and is held for a short time.
//
// Invariants
//   F1  A file gets its descriptor by a store under the lock, and loses it by an exchange under the lock that finds no
//       users. So a counted user's descriptor stays open.
//   F2  A thread announces that it waits (`wanted`) before it looks for an unused descriptor. A thread that gives a
//       descriptor back reads `wanted` afterwards. Both accesses are sequentially consistent, so at least one of the
//       two threads sees what the other has done, and no thread sleeps while a descriptor is unused.
#ifndef FDPOOL_H
#define FDPOOL_H

#include "base/env.h"

struct fdpool;
struct fdpool_file {  // embedded in what owns the file
  struct fdpool *pool;
  const struct env_dir *dir;  // dir and path belong to the owner, until fdpool_remove
  const char *path;           // ends with the name in the directory
  unsigned flags;             // ENV_READ [| ENV_DIRECT]
  enum env_advice advice;     // for each descriptor; ENV_RANDOM unless the owner sets another before the first use
  // Upper half: descriptor + 1, or 0 when the file is closed. Lower half: FDPOOL_USED and the number of users.
  _Atomic uint64_t state;
  struct fdpool_file *next, *prev;  // ring of the open files; guarded by the pool's lock
};
#define FDPOOL_USED 0x80000000u  // used since the hand last passed
// max_open: the bound, at least 2. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status fdpool_create(struct env *env, uint32_t max_open, struct fdpool **out);
// Changes the bound. Descriptors beyond a smaller one are closed when they are not in use. Any thread.
void fdpool_set_max(struct fdpool *p, uint32_t max_open);
void fdpool_destroy(struct fdpool *p);  // after the last fdpool_remove; NULL is allowed
void fdpool_add(struct fdpool *p, struct fdpool_file *f, const struct env_dir *dir, const char *path,
                unsigned flags);            // opens nothing
void fdpool_remove(struct fdpool_file *f);  // closes the file, which has no users
// The descriptor, valid until fdpool_release. May wait until other threads give descriptors back, so the caller must
// hold none of this pool. After fdpool_patience_ns the pool passes its bound, so that threads that break this rule do
// not wait for ever. REMIXDB_IO, also when the file is gone.
MUST_CHECK enum remixdb_status fdpool_acquire(struct fdpool_file *f, int *fd_out);
// The same without waiting, for a caller that may hold others. False: no place is free, or the file cannot be opened,
// and then fdpool_acquire reports why.
MUST_CHECK bool fdpool_try_acquire(struct fdpool_file *f, int *fd_out);
// The same without waiting, for a short read of a caller that may hold others. If no place is free, the pool passes its
// bound until descriptors are given back. Fails as fdpool_acquire does.
MUST_CHECK enum remixdb_status fdpool_acquire_beyond(struct fdpool_file *f, int *fd_out);
void fdpool_release(struct fdpool_file *f);
// Opens one more descriptor of the file, for one reader that passes through it; direct: past the page cache. The caller
// may hold others. Never waits. False: a quarter of the places are taken so, none is free, or the file cannot be
// opened.
MUST_CHECK bool fdpool_open_passing(struct fdpool_file *f, bool direct, int *fd_out);
void fdpool_close_passing(struct fdpool_file *f, int fd);
// Takes a place for a descriptor that the caller itself opens, for long. The caller closes it before fdpool_unreserve.
// Waits until a place is free; the caller holds no descriptor of the pool.
void fdpool_reserve(struct fdpool *p);
void fdpool_unreserve(struct fdpool *p);
// Takes nr places for descriptors that may stay open between two calls of the user. Never waits. False: a quarter of
// the places are held, or held and reserved places are half of all, or too few are free; nothing has changed. nr > 0.
MUST_CHECK bool fdpool_hold(struct fdpool *p, uint32_t nr);
void fdpool_unhold(struct fdpool *p, uint32_t nr);
// False: the bound has become smaller, and more than a quarter of the places are held. Some should be given back.
MUST_CHECK bool fdpool_holds_fit(struct fdpool *p);
#define FDPOOL_PATIENCE_NS 2000000000ull
extern _Atomic uint64_t fdpool_patience_ns;  // FDPOOL_PATIENCE_NS, unless a test changes it; relaxed
// Descriptors that are open or being opened, and reserved and held places.
uint32_t fdpool_open_count(struct fdpool *p);
#endif
