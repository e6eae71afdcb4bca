// SPDX-License-Identifier: Apache-2.0
//
// The calls that the benchmark makes of a store. The same loops measure every engine through this table. A call does a
// whole step (move and copy out), and every engine copies its results to buffers of the loop.
#ifndef BENCH_ENGINE_H
#define BENCH_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tools/bench/key.h"

struct bench_config {
  const char *dir;    // exists; the store's own
  uint64_t num;       // records expected
  uint32_t key_size;  // bytes
  enum bench_shape shape;
  uint32_t value_size;  // bytes
  uint32_t blob_size;   // values of so many bytes lie in files of their own, where the engine lets choose; 0: none
  size_t cache_mb;
  size_t memtable_mb;
  uint32_t threads;
  uint32_t cores;           // processors this process may run on
  const char *compression;  // "none", "zstd", "lz4", "snappy"
  const char *io;           // "auto", "uring", "aio", "sync": RemixDB's own choice; other engines have one way
  bool direct_io;
  bool larger_than_memory;  // twice the data exceeds the memory there is
};

enum bench_status {
  BENCH_OK = 0,
  BENCH_NONE,   // no such key, or the end
  BENCH_ERROR,  // bench_error has told it
};

// A session lasts for one benchmark and may rely on these.
enum {
  BENCH_READS_ONLY = 1,   // nobody writes meanwhile: one view of the store may serve all reads
  BENCH_WRITES_ONLY = 2,  // nobody reads meanwhile
  BENCH_ASCENDING = 4,    // keys are put in ascending order, each larger than all that are there
  BENCH_SYNC = 8,         // every write is on disk when it returns
};

// Buffers for a record, and its lengths: the full lengths, even when the buffers are shorter.
struct bench_record {
  uint8_t *key, *value;
  uint32_t klen, vlen;
  uint32_t kcap, vcap;
};
static inline void bench_take_value(struct bench_record *r, const void *value, size_t len) {
  memcpy(r->value, value, len < r->vcap ? len : r->vcap);
  r->vlen = (uint32_t)len;
}
static inline void bench_take(struct bench_record *r, const void *key, size_t klen, const void *value, size_t vlen) {
  memcpy(r->key, key, klen < r->kcap ? klen : r->kcap);
  r->klen = (uint32_t)klen;
  bench_take_value(r, value, vlen);
}

struct bench_slice {
  const void *ptr;
  uint32_t len;
};

#define BENCH_MULTI_MAX 256u
#define BENCH_ABSENT UINT32_MAX  // multi_get: the length of a value that was not found

// Makes the new value from the old one (NULL: none). False: the old value is wrong, and nothing is written.
typedef bool (*bench_modify_fn)(void *arg, const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len);

// Counts of an engine since its store was opened. BENCH_UNKNOWN: it does not count this.
#define BENCH_UNKNOWN UINT64_MAX
struct bench_counters {
  uint64_t reads, read_bytes;  // reads of its files, as they were asked of the system
  uint64_t trips;              // waits for a read, or for several that were asked for at once
};

// A session belongs to one thread. Functions marked optional may be NULL.
struct bench_engine {
  const char *name;
  const char *settings;  // how the engine is set up, in words
  bool maps_files;       // pages of its files leave the page cache only while it is closed
  uint32_t fill_batch;   // writes at a time, in a benchmark that only writes; as its users would do

  const char *(*version)(void);
  void *(*open)(const struct bench_config *c);  // makes the store when there is none; NULL: told
  bool (*close)(void *store);
  // batch: above 1, writes may be gathered and written so many at a time, each batch as one. NULL: told
  void *(*begin)(void *store, unsigned flags, uint32_t batch);
  bool (*finish)(void *session);  // writes the gathered records
  void (*end)(void *session);

  enum bench_status (*put)(void *session, const void *key, uint32_t klen, const void *value, uint32_t vlen);
  // Sets r->value and r->vlen.
  enum bench_status (*get)(void *session, const void *key, uint32_t klen, struct bench_record *r);
  enum bench_status (*del)(void *session, const void *key, uint32_t klen);  // OK whether or not it was there
  // Optional: without it the benchmark gets and puts.
  enum bench_status (*rmw)(void *session, const void *key, uint32_t klen, bench_modify_fn fn, void *arg);
  // Optional: without it the benchmark makes single gets. nr: 1 to BENCH_MULTI_MAX. Value i goes to r[i].value, its
  // length or BENCH_ABSENT to r[i].vlen.
  enum bench_status (*multi_get)(void *session, uint32_t nr, const struct bench_slice *keys, struct bench_record *r);

  // A scan: seek, next or prev any number of times, done.
  enum bench_status (*seek)(void *session, const void *key, uint32_t klen, struct bench_record *r);  // first key >= key
  enum bench_status (*seek_for_prev)(void *session, const void *key, uint32_t klen,
                                     struct bench_record *r);  // last key <= key; optional: seek, and prev from there
  enum bench_status (*seek_last)(void *session, struct bench_record *r);  // optional, with prev
  enum bench_status (*next)(void *session, struct bench_record *r);
  enum bench_status (*prev)(void *session, struct bench_record *r);
  void (*done)(void *session);

  bool (*flush)(void *store);    // memory to disk; optional
  bool (*compact)(void *store);  // down to the fewest files; optional
  bool (*settle)(void *store);   // waits until the background work caused so far is done; optional
  char *(*stats)(void *store);   // malloc'd text; optional
  void (*counters)(void *store, struct bench_counters *out);  // optional: nothing is known
};

// The functions that every engine has, for its table; it gives them these names.
#define BENCH_FUNCTIONS                                                                                           \
  .open = store_open, .close = store_close, .begin = session_begin, .finish = session_finish, .end = session_end, \
  .put = put, .get = get, .del = del, .seek = seek, .seek_last = seek_last, .next = next, .prev = prev, .done = done

// The engines this program was built with, ended by NULL.
extern const struct bench_engine *const bench_engines[];
const struct bench_engine *bench_engine_find(const char *name);  // NULL: none of that name

// Tells the failure of an engine on standard error. Always BENCH_ERROR.
enum bench_status bench_error(const struct bench_engine *e, const char *what, const char *message);

extern const struct bench_engine bench_remixdb, bench_rocksdb, bench_leveldb, bench_lmdb, bench_wiredtiger;

#endif
