// SPDX-License-Identifier: Apache-2.0
//
// Bounds the descriptors held for tables. A file that is used is opened on need; when the bound is reached the descriptor
// unused for the longest time is closed (LRU). A descriptor in use is never closed; when all are in use, one more is opened and
// closed at once after use (so the bound is passed only by as many as are in use at the same time).
// Also when the system refuses (EMFILE, ENFILE): the pool closes an unused one and tries again before it reports the error.
// Any thread; one short mutex, taken on the way of a disk read only.
#ifndef FDPOOL_H
#define FDPOOL_H

#include "env.h"

struct fdpool;
struct fdpool_file {  // embedded in what owns the file
  struct fdpool *pool;
  const char *path;               // the owner's, valid until removed
  unsigned flags;                 // ENV_READ [| ENV_DIRECT]
  int fd;                         // -1 when closed; guarded by the pool's lock
  uint32_t users;                 // guarded by the pool's lock
  struct fdpool_file *next, *prev;  // LRU of unused open ones
};
MUST_CHECK enum remixdb_status fdpool_create(struct env *env, uint32_t max_open, struct fdpool **out);
void fdpool_destroy(struct fdpool *p);  // all files have been removed; NULL is allowed
void fdpool_add(struct fdpool *p, struct fdpool_file *f, const char *path, unsigned flags);  // opens nothing
void fdpool_remove(struct fdpool_file *f);  // closes it; nobody uses it
// The descriptor, good until fdpool_release. REMIXDB_IO, also when the file is gone.
MUST_CHECK enum remixdb_status fdpool_acquire(struct fdpool_file *f, int *fd_out);
void fdpool_release(struct fdpool_file *f);
uint32_t fdpool_open_count(struct fdpool *p);
#endif
