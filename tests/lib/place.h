// SPDX-License-Identifier: Apache-2.0
//
// Fixture of the tests of REMIXes, versions, merges and compaction: a directory with all that tables need, on an env
// with calls that can fail on demand; keys; records with values that follow from a number; memtables, tables and
// REMIXes made from them.
#ifndef PLACE_H
#define PLACE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include "tests/lib/fault.h"
#include "tests/lib/paths.h"
#include "tests/lib/temp.h"
#include "remix/build.h"
#include "remix/cursor.h"
#include "table/build.h"
#include "view/version.h"
#include "wh.h"

#define PLACE_STORE_ID 0x1122334455667788ull

// ---- failures

enum {
  FAULT_OPEN = 1,
  FAULT_READ = 2,
  FAULT_WRITE = 4,
  FAULT_SYNC = 8,
  FAULT_CLOSE = 16,
  FAULT_STAT = 32,
  FAULT_RENAME = 64,
  FAULT_UNLINK = 128,
  FAULT_LIST = 256
};

// From now on the nth call (from 1) of these kinds fails: a write with -ENOSPC, any other with -EIO. on: and all after
// it.
void fault_io_set(unsigned kinds, int64_t nth, bool on);
extern _Atomic bool fault_io_full;  // every failing call gives -ENOSPC, until fault_io_end
// Ends the failures. Returns whether a call has failed.
bool fault_io_end(void);

#define PLACE_REAL (env_posix()->ops)  // below the calls that fail

// ---- the place

struct place {
  char dir[TEMP_DIR];
  struct env_dir at;  // the same, held
  struct env_ops ops;
  struct env env;
  struct epoch epoch;
  struct epoch_slot slot;
  struct blkio io;
  struct blkio_queue *queue;
  struct cache *cache;
  struct fdpool *fds;
  struct sst_ctx ctx;
  uint64_t next;  // file number
};

// Settings of the places that are made from now on.
extern bool place_native;        // on the real env, with the engine that suits it; no call fails on demand
extern uint32_t place_max_open;  // descriptors of tables
extern bool place_cold;          // all reads are taken to come from a disk; else none
extern bool place_direct;        // tables bypass the page cache, where the file system can
extern enum remixdb_compression place_compression;  // for table_make

// cache_size 0: there is no cache.
void place_init(struct place *p, size_t cache_size);
void place_fini(struct place *p);
// The place's call for opening a file, for a test that puts its own before it.
int place_open(struct env *e, int at, const char *path, unsigned flags);

static inline void enter(struct place *p) { epoch_enter(&p->epoch, &p->slot); }
static inline void leave(struct place *p) { epoch_exit(&p->slot); }

// The names in the directory, sorted, one to a line. The caller frees.
char *place_files(struct place *p);
// Bytes on the disk of all files in the directory.
uint64_t place_bytes(const struct place *p);
// Compares two names, for qsort.
int place_name_cmp(const void *a, const void *b);

// Flips a bit of the file, and flips it back the next time.
void byte_flip(const char *path, long off);

// ---- keys

struct keyset {
  struct kref *keys;  // distinct, ascending
  uint32_t nr;
};

int key_order(const void *a, const void *b);  // the order of two struct kref, for qsort

// Sorts nr keys and drops duplicates. k owns the bytes of its keys.
void keyset_sort(struct keyset *k, uint32_t nr);

// Keys with long stretches in common, some of them the beginning of others, the empty one among them.
void keyset_make(struct keyset *k, uint32_t nr, uint64_t *rng);

void keyset_free(struct keyset *k);

// The number of keys less than the key.
uint32_t keyset_rank(const struct keyset *k, struct kref key);

// ---- records

// State of a key in a memtable, a table or the whole: NONE, TOMB, or a number from which its value follows.
#define NONE 0u
#define TOMB 1u

#define VALUE_MAX 9000u
// Makes the value of a key and a number in buf, of VALUE_MAX bytes, and returns its length. base: the mean length;
// above 50, one value in 400 takes several pages.
uint32_t value_make(struct kref key, uint32_t what, uint32_t base, uint8_t *buf);

// The record is a tombstone, or has that value. In any thread.
bool value_is(const struct kv_rec *r, struct kref key, uint32_t what, uint32_t base);

void mem_put(struct place *p, struct wh *wh, struct kref key, uint32_t what, uint32_t base, uint64_t seq);

// A table of the keys [from, to), at least one of which is not NONE.
struct sst *table_make(struct place *p, const struct keyset *k, const uint32_t *what, uint32_t from, uint32_t to,
                       uint32_t base, bool ckeys);

// The path of a REMIX in the place.
char *remix_path(const struct place *p, uint64_t number, char path[ENV_PATH_MAX]);

// The arguments for building a REMIX with tags over all runs of old (NULL: none) and the new tables.
struct remix_build place_build(struct place *p, uint64_t number, const struct remix *old, struct sst **fresh,
                               uint32_t nr_fresh);

// A REMIX over one more table than old has (NULL: none). Takes over the references to both.
struct remix *remix_add(struct place *p, struct remix *old, struct sst *t, bool tags);
#endif
