// SPDX-License-Identifier: Apache-2.0
//
// Value files: large values, apart from the tables that refer to them. An open file has a count of references; versions
// and memtables share it. Records are only added, at places that no other record has, so any thread may read while
// others write.
#ifndef VALUE_FILE_H
#define VALUE_FILE_H

#include "sst.h"
#include "table/fdpool.h"
#include "value/format.h"
#include "value/scratch.h"

// The value files of a store share this struct, which outlives them. All zero but for `sst` to begin with.
struct value_ctx {
  const struct sst_ctx *sst;  // environment, directory, descriptors, ids
  struct value_scratches scratch;
  _Atomic uint64_t reads, read_bytes;  // values or pieces read, and bytes read for them. Relaxed
  // Values that are still to be asked for before they are read (value_will_need); 0: the next reads are timed. Relaxed.
  _Atomic uint32_t cold;
  _Atomic uint64_t room;  // bytes of all files that are open and not obsolete. Relaxed
};
static inline void value_ctx_fini(struct value_ctx *c) { value_scratches_fini(&c->scratch); }

struct value_file {
  struct value_ctx *ctx;
  uint64_t number;  // in the file's name
  uint64_t origin;  // the id of the store that wrote it
  uint64_t print;   // its fingerprint: the header's checksum
  uint64_t key;     // the key of the seeds (value/format.h)
  char *path;
  struct fdpool_file file;  // for reads
  _Atomic uint32_t refs;
  _Atomic bool obsolete;  // the last reference removes the file
  // While it is written (value/write.h): guarded by value_log.lock
  struct value_file *next;
  int fd;     // -1: it is not open for writing
  bool held;  // fd has a place of the pool (fdpool_hold)
  // Records so far end here; for a file that is read only: its size when it was opened. Relaxed: others read it, too
  _Atomic uint64_t tail;
  uint32_t writers;              // values that are being written, or are not referred to yet
  uint32_t kept;                 // users that do not write: values that wait (value_put_keep), value_batches
  bool full;                     // no further value goes there
  bool syncing;                  // a sync uses `fd`
  bool named;                    // its name is durable; used by syncs only
  _Atomic uint64_t value_bytes;  // bytes of all values in it, as they are read, about. Relaxed
  uint64_t low, high;            // for a replay: the records that the log refers to are in [low, high); 0: none
  // For the collection of garbage (store/collect.h); guarded by collect.lock
  uint64_t measured, expected;  // live bytes that a pass found, and those that were expected then; 0: no pass yet
  bool uncounted;               // value_bytes may lack values that the log has after the last save; set by the replay
  bool stuck;                   // it cannot be collected: a live value in it cannot be read
  _Atomic bool dirty;           // it has bytes that no sync has covered; release by the writer of the bytes
};

static inline uint64_t value_file_size(const struct value_file *f) {
  return atomic_load_explicit(&f->tail, memory_order_relaxed);
}

// The file's records end there now. Under value_log.lock, or by the only thread that knows the file.
void value_file_set_size(struct value_file *f, uint64_t size);
// Opens a file and checks its header. *out has one reference. Fails with REMIXDB_CORRUPT (also for a missing file),
// REMIXDB_VERSION, REMIXDB_NOMEM or REMIXDB_IO.
MUST_CHECK enum remixdb_status value_file_open(struct value_ctx *c, uint64_t number, struct value_file **out);
static inline void value_file_ref(struct value_file *f) {
  atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
}
void value_file_unref(
    struct value_file *f);  // NULL is allowed. The last reference closes, and removes an obsolete file
void value_file_retire(struct value_file *f);  // makes the file obsolete; it counts as retired until the last reference
// For value/write.c: makes an open file of this header, with one reference.
MUST_CHECK enum remixdb_status value_file_make(struct value_ctx *c, const struct value_head *h,
                                               struct value_file **out);

// Makes the bytes [low, high) durable, after a crash may have left them in the system's memory only. A failed sync
// leaves pages that the system takes for clean, so the call writes the bytes again, unless the file has a second name.
// A full disk is no failure. No other thread uses the file. Fails with REMIXDB_IO or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status value_file_secure(struct value_file *f);
// Bytes that the record of a value takes in its file at most.
static inline uint64_t value_cost(uint32_t klen, uint32_t vlen) { return value_rec_len(klen, vlen, vlen); }
#endif
