// SPDX-License-Identifier: Apache-2.0
//
// Writing value files. Threads write side by side: each gets a place of its own in the newest file and writes there.
// A file is full at VALUE_FILE bytes, or at fewer if the user of the log says so. A value that is large beside that
// gets a file of its own.
//
// Invariants
//   W1  A place is given to one value only, until it is given back. So bytes that are referred to never change.
//   W2  value_log_sync makes a value durable if its value_put or value_batch_end returned before the call, and so the
//       name of its file. A caller that writes references syncs the values first.
//   W3  A failed sync, and a failed write for another reason than a full disk or want of memory, is sticky: later puts
//       and syncs return it. So does the put that has met it before its own value was written. A rewind ends a sync's
//       want of room or memory, because it gives back all that is not durable. An inner rewind does not: the sync may
//       have been that of older values, which stay. Nothing gives back the values of a log that `lasts`, and the system
//       may have dropped any of them. So each failed sync of that log is REMIXDB_IO.
//   W4  A file is in use from the reservation of a place until the caller says that the reference is held or given up
//       (value_put_end), and until a batch that has written to it ends (value_batch_fini). Only a file that is full,
//       synced and not in use leaves the log's list (value_log_settle). A use begins as one of `writers`, which need
//       the descriptor. Once the bytes are written, it may become one of `kept`, which do not. Before a thread puts
//       another value, the one before has ended or is kept. So a thread has one writer at most, and one more for the
//       extent of a batch.
//   W5  A full file without `writers` is closed once it is synced. Until then its descriptor holds a place of the pool
//       (fdpool_hold). Where the pool has none, the thread that has filled the file, or was its last writer, syncs all.
//       So the log has only so many descriptors, and one for each writer, and for the active file. A thread that must
//       not sync (value_log_turn, value_log_rewind, after a failure) leaves one more until the next sync.
//   W6  A full file that is not in use and has no value leaves the list and the disk at once: a value that was to have
//       it for its own was not written.
#ifndef VALUE_WRITE_H
#define VALUE_WRITE_H

#include <zstd.h>

#include "value/set.h"

#define VALUE_FILE ((uint64_t)256 << 20)  // bytes of a full file
#define VALUE_OWN_PART 4u                 // a value with more than 1/4 of them gets a file of its own
#define VALUE_STAGE ((uint32_t)8 << 20)  // a value with more bytes is compressed piece by piece, into a file of its own
#define VALUE_EXTENT (256u << 10)        // bytes that a batch reserves at a time

struct value_log {
  struct value_ctx *ctx;
  _Atomic uint64_t packing;  // for the next values: value_log_compress. Relaxed: a user may change it at any time
  uint64_t full;             // most bytes of a full file: VALUE_FILE, or less in tests
  _Atomic uint64_t file;     // bytes of a full file if that is less (value_log_size). Relaxed; 0: l->full
  // Returns a new file's number. No file has the name that name_of makes of it.
  uint64_t (*new_number)(void *arg, void (*name_of)(char *buf, uint64_t number));
  void *arg;
  bool lasts;                 // no rewind follows a failed sync, and the files are not dropped after it (W3)
  struct lib_lock lock;       // guards the list, `active`, `zstd` and the fields of the files that say so; brief
  struct value_file *files;   // open for writing, or not settled; the log has a reference to each
  struct value_file *active;  // takes the next values; NULL: none
  ZSTD_CCtx *zstd;            // kept for the next value; NULL: none
  pthread_mutex_t sync_lock;  // held by a sync. Taken before `lock`
  _Atomic uint32_t failed;    // the sticky error's status, or 0; written under `lock`, read relaxed
  struct err_saved error;     // guarded by `lock`
  _Atomic uint64_t values, value_bytes, file_bytes, nr_files, syncs;  // written since the store was opened. Relaxed
};

void value_log_init(struct value_log *l, struct value_ctx *c);
// Sets how values that are put after the call are stored. level: zstd's; 0: its default. Without a call they stay as
// they are.
static inline void value_log_compress(struct value_log *l, enum remixdb_compression how, int level) {
  atomic_store_explicit(&l->packing, (uint64_t)how << 32 | (uint32_t)level, memory_order_relaxed);
}
// The same as of another log.
static inline void value_log_compress_as(struct value_log *l, const struct value_log *other) {
  const uint64_t packing = atomic_load_explicit(&other->packing, memory_order_relaxed);
  atomic_store_explicit(&l->packing, packing, memory_order_relaxed);
}
// Files that begin after the call are full at so many bytes, at most at l->full.
static inline void value_log_size(struct value_log *l, uint64_t file) {
  atomic_store_explicit(&l->file, file, memory_order_relaxed);
}
// Bytes of a full file.
static inline uint64_t value_log_file(const struct value_log *l) {
  const uint64_t file = atomic_load_explicit(&l->file, memory_order_relaxed);
  return file && file < l->full ? file : l->full;
}
// Closes the files. Their values are durable only as far as value_log_sync has made them so.
void value_log_fini(struct value_log *l);

// Writes a value. ref: VALUE_REF bytes, the reference to it. *file_out: its file, with one reference, in use until
// value_put_end. After a failure there is no file. Fails with REMIXDB_NOSPACE or REMIXDB_NOMEM, and nothing has
// changed; or with the sticky error. Any thread.
MUST_CHECK enum remixdb_status value_put(struct value_log *l, struct kref key, const void *val, uint32_t vlen,
                                         uint8_t *ref, struct value_file **file_out);
// The reference is held by what holds the file, or is given up. Drops the caller's reference to the file. May sync
// (W5), so the caller holds no lock that others need.
void value_put_end(struct value_log *l, struct value_file *f);
// The caller puts more values before this one ends: the file stays in use until value_kept_end, and this value needs no
// descriptor. May sync, like value_put_end. Fails with the sticky error if that sync fails; the file is kept
// nevertheless.
MUST_CHECK enum remixdb_status value_put_keep(struct value_log *l, struct value_file *f);
// value_put_end after value_put_keep. Never syncs.
void value_kept_end(struct value_log *l, struct value_file *f);
// Returns the sticky error, or REMIXDB_OK. After a call that may sync and has no status.
MUST_CHECK enum remixdb_status value_log_error(struct value_log *l);
// See W2. Blocks for the disk. Any thread; one after the other.
MUST_CHECK enum remixdb_status value_log_sync(struct value_log *l);
// For a log that one thread writes to, between two calls of the user: the active file holds a place of the pool, too,
// or is synced and closed until the next write. Fails as value_log_sync does.
MUST_CHECK enum remixdb_status value_log_pause(struct value_log *l);
// Closes the active file to further values, so that a copy of the directory by hard links does not change.
void value_log_turn(struct value_log *l);
// The file of this number in the list; NULL: it is not there. No settling runs beside the call.
struct value_file *value_log_find(struct value_log *l, uint64_t number);
// Tells whether a file is in the list.
bool value_log_has(struct value_log *l, const struct value_file *f);
// Tells whether the file takes the next values.
bool value_log_takes(struct value_log *l, const struct value_file *f);
// Takes the files that are full, synced and not in use out of the list, and retires those that `keep` does not want;
// these need not be synced. Returns them, for value_log_drop. Does not wait for the disk.
MUST_CHECK struct value_file *value_log_settle(struct value_log *l, bool (*keep)(void *arg, const struct value_file *f),
                                               void *arg);
// Drops the log's references to them.
void value_log_drop(struct value_log *l, struct value_file *gone);

// A moment of a log that only batches write to.
struct value_mark {
  uint64_t newest;        // number of the newest file
  uint64_t active, tail;  // number of the active file, and where the next value begins; 0: there is none
  uint64_t value_bytes;   // bytes of the active file's values
  bool inner;             // set by the caller: a rewind to an older mark follows if the log has failed (W3)
};
struct value_mark value_log_mark(struct value_log *l);
// Gives back what was written since the mark: retires the files that are newer, and shortens the file that was active.
// All batches have ended, and nothing refers to their values. A call that fails to shorten a file leaves the bytes.
// Never syncs.
void value_log_rewind(struct value_log *l, const struct value_mark *m);

// ---- many values in a row, by one thread. Short ones are gathered; a value that fills an extent is written at once.
struct value_batch {
  struct value_log *log;
  struct value_file *file;       // with a reference, in use; NULL: no extent
  uint64_t at;                   // the extent's offset
  uint8_t *buf;                  // VALUE_EXTENT bytes; NULL: not needed yet
  size_t len;                    // bytes gathered,
  uint64_t values, value_bytes;  // and the values in them
  ZSTD_CCtx *zstd;               // NULL: not needed yet
  int level;                     // that it is set to
  uint64_t out_file;             // the number of a file; its bytes before `out` are on their way to the disk
  uint64_t out;
  struct value_set files;  // all files that the batch has written to; they stay in use until value_batch_fini
};
// b: all zero but for `log`. The same statuses as value_put. After a failure the caller ends the batch. Takes memory
// for an extent; a value that fills an extent takes what value_put takes.
MUST_CHECK enum remixdb_status value_batch_put(struct value_batch *b, struct kref key, const void *val, uint32_t vlen,
                                               uint8_t *ref);
// Writes what is gathered, and frees the memory for it. The files stay in use until value_batch_fini.
MUST_CHECK enum remixdb_status value_batch_end(struct value_batch *b);
void value_batch_fini(struct value_batch *b);
#endif
