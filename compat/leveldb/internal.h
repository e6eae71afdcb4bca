// SPDX-License-Identifier: Apache-2.0
//
// The structs behind leveldb/c.h. The library uses the public face of RemixDB only.
#ifndef COMPAT_LEVELDB_INTERNAL_H
#define COMPAT_LEVELDB_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "leveldb/c.h"
#include "remixdb.h"

#define LDB_KEY_KEPT 256u  // bytes of an earlier key that are kept for a comparison

struct leveldb_comparator_t {
  void *state;
  void (*destructor)(void *state);
  int (*compare)(void *state, const char *a, size_t alen, const char *b, size_t blen);
  const char *(*name)(void *state);
};

struct leveldb_t {
  struct xdb *xdb;
  // NULL: none was given. Else each write compares its key with an earlier one, which `lock` guards.
  const leveldb_comparator_t *comparator;
  pthread_mutex_t lock;
  char earlier[LDB_KEY_KEPT];
  size_t earlier_len;
  bool has_earlier;
};

struct leveldb_snapshot_t {
  struct xdb_snapshot *snapshot;
  _Atomic(struct xdb_ref *) idle;  // a ref of the snapshot that no thread uses; taken by an exchange
};

// How large the block cache of each store is that is opened with it. The store keeps no pointer to it.
struct leveldb_cache_t {
  size_t capacity;  // bytes
};

struct leveldb_options_t {
  const leveldb_comparator_t *comparator;
  const leveldb_cache_t *cache;  // NULL: not set
  bool create_if_missing, error_if_exists, compressed;
  size_t write_buffer_size;  // 0: not set
  int max_open_files;        // 0: not set
};

struct leveldb_readoptions_t {
  const leveldb_snapshot_t *snapshot;
};

struct leveldb_writeoptions_t {
  bool sync;
};

struct leveldb_writebatch_t {
  struct xdb_batch *batch;
  char *error;  // the error of an operation that the batch could not take; NULL: none
};

// Memory for messages and values: malloc. Tests replace it.
extern void *(*ldb_malloc)(size_t size);
// Sets *errptr to the message "KIND: WHAT", in memory from malloc, and frees the old one. Without memory for it,
// *errptr is a message that says so, in memory that stays: a failure always has a message. ldb_message_free frees each
// message.
void ldb_error(char **errptr, const char *kind, const char *what);
// Sets *errptr to a copy of another message in the same way.
void ldb_message_copy(char **errptr, const char *message);
void ldb_message_free(char *message);
// Tells the failure of the ref's last call in the same way; ref NULL: this thread's last call.
void ldb_failed(char **errptr, const struct xdb_ref *ref);

// order.c: whether the comparator orders keys as their bytes do.
bool ldb_order_of_bytes(const leveldb_comparator_t *c);
// Compares a key that is written with an earlier one. False: the comparator orders the two otherwise, and *errptr says
// so.
bool ldb_order_holds(leveldb_t *db, const char *key, size_t klen, char **errptr);

// snapshot.c
// A ref that reads the snapshot, for one call; NULL on failure. ldb_snapshot_reader_end gives it back.
struct xdb_ref *ldb_snapshot_reader(const leveldb_snapshot_t *snap);
void ldb_snapshot_reader_end(const leveldb_snapshot_t *snap, struct xdb_ref *ref);
#endif
