// SPDX-License-Identifier: Apache-2.0
//
// RemixDB: an embedded, ordered key-value store. A program includes this header and links with -lremixdb.
//
//   struct xdb *db = remixdb_open("/path/to/store", 256, 256, true);  // cache and memtable in MiB
//   struct xdb_ref *ref = remixdb_ref(db);                            // one for each thread
//   remixdb_put(ref, "key", 3, "value", 5);
//   remixdb_unref(ref);
//   remixdb_close(db);
//
// Keys and values are byte strings. Keys are ordered as memcmp orders them; a key comes before every longer key that it
// is a prefix of. An empty key is legal. A key has at most REMIXDB_KV_MAX bytes, a value at most 2^32 - 1.
//
// Threads. Any number of threads may use one `struct xdb`. One thread at a time uses a `struct xdb_ref`, with the
// iterators and asynchronous gets of that ref: usually each thread makes its own. Between two calls a ref may move to
// another thread, with its iterators and asynchronous gets. The program then orders the two threads, by a lock or a
// queue for example. Callers that own no thread borrow refs (remixdb_ref_borrow). Close in this order: iterators and
// asynchronous gets, refs, store; snapshots and spaces at any time before the store.
//
// Errors. A call that fails returns NULL or false. It sets the thread's status, remixdb_errcode(), and a message,
// remixdb_errmsg(). A call that can fail, and succeeds, sets the status to REMIXDB_OK. Calls that cannot fail leave the
// status unchanged, except after wrong use (below): remixdb_unref, remixdb_iter_valid, remixdb_iter_destroy,
// remixdb_snapshot_release, remixdb_progress and the like. A missing key is REMIXDB_NOTFOUND. Every call that can fail
// can set REMIXDB_INVALID (a pointer is NULL that must not be, for example), REMIXDB_NOMEM, REMIXDB_IO and
// REMIXDB_CORRUPT. A call that takes one key can also set REMIXDB_TOOBIG: the key is longer than REMIXDB_KV_MAX. The
// comments name all other statuses of a call. Wrong use sets REMIXDB_INVALID in every call: remixdb_iter_valid(NULL),
// and any call in a child made by fork. Only the calls that "do nothing for NULL" leave the status as it is.
//
// Fork. A store belongs to the process that opened it. In a child made by fork, every call on that store, or on a ref,
// iterator, xdb_gets or snapshot of that store, does nothing and sets REMIXDB_INVALID; a call that closes something
// frees nothing. The child may open other stores. A child made inside one of the caller's functions, a merge function
// for example, must not return from that function.
//
// Cancellation. A thread that is cancelled in a call (pthread_cancel, deferred type) ends after the call. A caller's
// function that the library runs, the logger for example, is a part of the call. Such a function returns to the
// library: it throws no exception and does not leave by longjmp, because the library may hold locks.
#ifndef REMIXDB_H
#define REMIXDB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REMIXDB_VERSION_STRING "0.1.0"
#define REMIXDB_KV_MAX 65500u  // the largest klen, in bytes; values may be longer

// ---- errors

enum remixdb_status {
  REMIXDB_OK = 0,
  REMIXDB_NOTFOUND,  // the key, or the store, does not exist
  REMIXDB_INVALID,   // an argument is not valid
  REMIXDB_TOOBIG,    // a key, a value or a result does not fit
  REMIXDB_NOMEM,     // out of memory, or of file descriptors
  REMIXDB_IO,        // a system call failed: the message begins with the system's reason and names the file
  REMIXDB_NOSPACE,   // the disk is full; writes go on when it has room again
  REMIXDB_CORRUPT,   // a file of the store is damaged: the message names the file and the offset
  REMIXDB_LOCKED,    // another process, or another open in this process, has the store
  REMIXDB_READONLY,  // a write to a snapshot, or to a store that was opened with read_only
  REMIXDB_VERSION,   // this library does not know the store's format
  REMIXDB_EXISTS,    // the store exists already
  REMIXDB_ABORTED,   // a transaction met a conflict; a key has not the version that remixdb_put_if or remixdb_del_if
                     // names; the caller's progress function gave the call up; or an xdb_gets has no room for another
                     // get
  REMIXDB_GONE       // the ref's space is dropped
};

// The status of this thread's last call that set one ("Errors" above).
enum remixdb_status remixdb_errcode(void);
// The message of this thread's last call: the cause, the file's name, the system's reason. The message is empty when
// the call had nothing to say, and never NULL. It is valid until this thread's next call.
const char *remixdb_errmsg(void);
// A status in a few words. Static, never NULL.
const char *remixdb_strerror(enum remixdb_status s);
// The version of the library that runs, "MAJOR.MINOR.PATCH". Static.
const char *remixdb_version(void);

struct xdb;           // a store
struct xdb_ref;       // one thread's access to a store or a snapshot
struct xdb_iter;      // an iterator
struct xdb_batch;     // puts and deletes that are written together
struct xdb_snapshot;  // the store at one moment
struct xdb_space;     // a named key space

// The same two for a ref: status and message of the last call on the ref, or on its iterators and asynchronous
// gets, whichever thread made that call. REMIXDB_OK for a new ref; calls that cannot fail leave both unchanged. If a
// program's tasks move between threads, the program asks the ref: the thread's status may be another task's. The
// message is valid until the next call on the ref, and never NULL. Only the thread that has the ref asks. These two
// calls change no status. NULL is REMIXDB_INVALID.
enum remixdb_status remixdb_ref_errcode(const struct xdb_ref *ref);
const char *remixdb_ref_errmsg(const struct xdb_ref *ref);

// ---- options

enum remixdb_compression { REMIXDB_COMPRESSION_NONE = 0, REMIXDB_COMPRESSION_ZSTD = 1 };

enum { REMIXDB_SYNC_NONE = 0, REMIXDB_SYNC_EACH = -1 };  // for remixdb_opts.sync; N > 0 means "every N ms"

// The value of cache_mb that makes the cache follow memory_mb.
#define REMIXDB_AUTO ((size_t)-2)

// The largest size in MiB of an option, on systems with addresses of 64 bits: 16 TiB.
#define REMIXDB_SIZE_MB_MAX ((size_t)1 << 24)

// Call remixdb_opts_init, then change single fields. The opening reads the strings and keeps no pointer to them.
struct remixdb_opts {
  // sizeof(struct remixdb_opts) in the caller, so that the struct can grow without breaking programs.
  size_t size;
  // Size of the block cache in MiB. 0: no cache, so every read takes its blocks from the file. Default REMIXDB_AUTO:
  // the part of memory_mb that the rest of the store leaves.
  size_t cache_mb;
  // Size of one memtable in MiB; two memtables may exist at a time. 0, the default: an eighth of memory_mb or a little
  // less, at least 1, at most 256.
  size_t memtable_mb;
  // Size of all files of the log together, in MiB. 0: twice the memtable, the default. No size has more than
  // REMIXDB_SIZE_MB_MAX MiB.
  size_t wal_mb;
  // New tables get a block of compressed keys, so that compaction and iterators for keys only read less. A table gets
  // none if this block would have more than 3/10 of the bytes of the table's data; with compression also if it would
  // have more than half of the bytes that the data take. Default true.
  bool ckeys;
  // REMIX indexes get an 8-bit hash tag per entry, so that gets are faster. Default true.
  bool tags;
  // Number of compaction threads, at most 64. 0: compaction runs in the threads of the callers, at points that depend
  // on the calls alone. -1: one thread for each core in the list worker_cores; without a list half of the cores, but at
  // least 2 and at most 4 (1 on a machine with one core). Default -1.
  int workers;
  // Cores for the workers: a list such as "0,2,4-7"; "none": any core; "auto": the last cores, at most half of all.
  // Default "auto", which NULL means too.
  const char *worker_cores;
  // I/O engine: "uring", "aio", "sync" or "auto". Default "auto", which NULL means too. The environment variable
  // REMIXDB_IO overrides it.
  const char *io;
  // Tables bypass the system's page cache. Default false.
  bool direct_io;
  // How new tables compress their data blocks. Default REMIXDB_COMPRESSION_NONE.
  enum remixdb_compression compression;
  // zstd's level, up to 22. 0: zstd's own default.
  int compression_level;
  // REMIXDB_SYNC_NONE (the default): only remixdb_sync syncs the log. REMIXDB_SYNC_EACH: every write waits for a sync.
  // N > 0: a sync begins at most N ms after a write. If another sync runs at that time, the sync begins when the other
  // one ends.
  int sync;
  // The store changes nothing on disk, and writes fail with REMIXDB_READONLY. Several processes may have a store open
  // with read_only at the same time, if no process has it open for writing. Default false.
  bool read_only;
  // The opening makes a store if the directory has none. Default true.
  bool create;
  // The opening of a store that exists fails with REMIXDB_EXISTS. Default false.
  bool error_if_exists;
  // Number of file descriptors for tables, at least 16. 0: the default, 1000. The store takes fewer if the process may
  // not have so many. The lock and the log take about ten more descriptors. On Linux each worker takes one more. All
  // readers together share one more per 128 descriptors of the process's limit, at most 32. An xdb_gets takes one, or
  // two with remixdb_gets_fd. A ref, an iterator or a snapshot takes no descriptor. Open ingests keep a quarter of the
  // number at most (remixdb_ingest_begin).
  uint32_t max_open_files;
  // The store calls this function with a line of text for each event that a user may want to know. Any thread may be
  // the caller, several at once, also a worker in the midst of compaction. So the function must be short. It may use
  // the store, through a borrowed ref for example. But a call that would have to wait for compaction, or until the
  // names of spaces are changed, fails with REMIXDB_INVALID there: the two would wait for each other. Such calls are
  // remixdb_flush, remixdb_compact, remixdb_ingest_commit, remixdb_set_option, remixdb_close (does nothing then),
  // opening a space that is not open, dropping one, and a deletion of a large range; also a write if the memtable has
  // no room for it. The logger of one store may write to another store, if that one's logger does not write to the
  // first. Default NULL: the lines are dropped.
  void (*logger)(void *priv, const char *line);
  // The logger's first argument.
  void *logger_priv;
  // One budget for the memory of the store, in MiB: block cache, memtables, indexes, metadata of tables, buffers of the
  // log, and compaction, together. 0: a quarter of the machine's memory, or of what the process's cgroup may use, if
  // that is less; the default. cache_mb and memtable_mb rule where they are set; if both are set and memory_mb is 0,
  // there is no budget. Where indexes need more than five sixteenths of the budget, or an eighth of the memory if there
  // is none, they are read page by page when they are needed: a get then costs up to one read more.
  size_t memory_mb;
};

// Sets *o to the defaults. `size` is sizeof(*o). Does nothing when o is NULL.
void remixdb_opts_init(struct remixdb_opts *o, size_t size);

// ---- a store

// Opens the store in `dir`. If there is no store, the call makes one, and the last component of the path. Recovery
// brings back every write that was synced. cache_size_mb 0: no block cache. mt_size_mb 0: the default memtable. The
// store uses the path `dir` until it closes, so a process that changes its working directory must give an absolute
// path.
// Returns NULL on failure: also REMIXDB_LOCKED, REMIXDB_VERSION or REMIXDB_NOSPACE. After REMIXDB_CORRUPT,
// remixdb_repair can rebuild the store from its readable part. A store that cannot be read stays as it is. The files of
// another program, which also has a CURRENT, are REMIXDB_CORRUPT, too; the message then ends so: "there is no store of
// RemixDB, but another program's files".
struct xdb *remixdb_open(const char *dir, size_t cache_size_mb, size_t mt_size_mb, bool tags);
// Opens like remixdb_open, without compressed-keys blocks and tags: the store takes the least room on disk.
struct xdb *remixdb_open_compact(const char *dir, size_t cache_size_mb, size_t mt_size_mb);
// Opens like remixdb_open, with all options; NULL for `o` means the defaults. Fails also with REMIXDB_EXISTS, or with
// REMIXDB_NOTFOUND if there is no store and `create` is false.
struct xdb *remixdb_open_opts(const char *dir, const struct remixdb_opts *o);
// Changes an option of an open store; writes, reads and compaction go on meanwhile. `value` is text:
//   "memory_mb"       at least 1. The cache follows before the call returns, unless cache_mb was set; memtables, unless
//                     memtable_mb was set, and compaction follow as they are made. With workers a memtable above the
//                     new size goes into tables at once. Indexes that are in memory follow when rounds write them, and
//                     pieces of blocks when their tables go. The size of the log stays, and a memtable is frozen when
//                     it has filled half of that.
//   "cache_mb"        at least 1, and at most the machine's memory. A smaller cache gives its memory back before the
//                     call returns, except blocks that iterators and pins keep. It does not follow memory_mb any more.
//                     A store that was opened with cache_mb = 0 keeps 0.
//   "workers"         1 to 64, or "-1" as in remixdb_opts. The call waits until threads that go have ended their work.
//                     A store that was opened with workers = 0 keeps 0.
//   "sync"            "none", "each", or a number as in remixdb_opts. Writes that another thread makes meanwhile are
//                     synced as before or as from now on. Earlier writes are on disk when the call returns, unless the
//                     old value was "none".
//   "compression"     "none", "zstd" or "zstd:LEVEL", for tables that are begun, and values apart that are written,
//                     from now on.
//   "max_open_files"  at least 16. Descriptors beyond a smaller number are closed as soon as they are not in use.
// Several changes at the same time come one after the other. The call must not come from a function that the library
// runs. Fails with REMIXDB_INVALID for every other option and for a value that is not valid, with REMIXDB_READONLY if
// the option has no effect on a store that is open with read_only, with REMIXDB_NOMEM, or as remixdb_sync does; the old
// value then holds.
bool remixdb_set_option(struct xdb *xdb, const char *name, const char *value);
// Closes the store: waits until a running compaction ends, brings the memtable into tables, ends the workers, syncs and
// closes the log, and frees the store. If the memtable holds few records (32 KiB), or cannot be brought into tables,
// its records stay in the log. The caller must first unref all refs and release all snapshots. Status REMIXDB_OK means
// that all writes are on disk, and that no error had stopped writes. Does nothing for NULL.
void remixdb_close(struct xdb *xdb);
// Makes a ref for the calling thread. remixdb_unref ends the ref. Returns NULL on failure.
struct xdb_ref *remixdb_ref(struct xdb *xdb);
// Ends the ref. The caller must first destroy the iterators of the ref. Does nothing for NULL.
void remixdb_unref(struct xdb_ref *ref);
// Takes a ref of the store from a pool inside the store, or makes one if the pool is empty. For callers that own no
// thread: coroutines, tasks of a thread pool, the goroutines of Go. Any number of refs may be borrowed at a time, and a
// call never waits for another caller. All calls work on the ref. remixdb_ref_return ends its use. Any thread. Returns
// NULL on failure.
struct xdb_ref *remixdb_ref_borrow(struct xdb *xdb);
// Gives a borrowed ref back. The caller must first destroy the iterators and asynchronous gets of the ref, and does not
// use the ref afterwards. The pool keeps at most 64 refs that nobody has; remixdb_close frees them. Status, message and
// progress function of the ref are forgotten. For a ref that was not borrowed this is remixdb_unref, which may end a
// borrowed ref, too. Any thread; does nothing for NULL.
void remixdb_ref_return(struct xdb_ref *ref);

// ---- writing and reading

// Sets the key's value. The call copies both buffers. When the call returns true, every reader sees the value; after
// the next remixdb_sync the value is on disk. The call may wait for compaction if writes come faster than compaction
// can take them. Fails also with REMIXDB_TOOBIG, REMIXDB_NOSPACE or REMIXDB_READONLY. With REMIXDB_SYNC_EACH, true
// means that the value is on disk. False can then also mean that only the sync failed: readers see the value, but it
// may not be on disk.
bool remixdb_put(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen);
// Does the same as remixdb_put.
bool remixdb_set(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen);
// Deletes the key. Returns true whether or not the key existed. The store keeps some room on disk for deletes, so it
// still takes deletes on a full disk until that room is used up. A delete alone frees no room; compaction does, by
// itself, in what room there is. Otherwise like remixdb_put.
bool remixdb_del(struct xdb_ref *ref, const void *kbuf, uint32_t klen);
struct remixdb_range;
// Deletes all keys of a range at one moment, for readers and after a crash. A range with from >= to, or with an empty
// key as `to`, is empty: true. Snapshots, and iterators until their next seek, still see the keys.
// A range of a few thousand keys, or of a small part of a partition, costs about as much as a delete of each. With more
// keys the cost depends mostly on the number of tables, not of keys: tables that have no other keys go as a whole, and
// where a table has other keys, too, the store writes an index again. Readers pay nothing for the deleted keys. The
// call then waits until the round of compaction that runs has ended, and writes a new CURRENT. Meanwhile the store
// takes all other writes, except that writes to keys of the range wait for the moment of the deletion itself. Disk
// space comes back before the call returns, as far as no reader still needs it; in a table with other keys, by
// compaction. Durable as a put is: after a sync. On a full disk it works as a delete does. Otherwise like remixdb_put.
bool remixdb_del_range(struct xdb_ref *ref, const struct remixdb_range *range);
// Tells whether the key exists. The status of false is REMIXDB_NOTFOUND, or an error.
bool remixdb_probe(struct xdb_ref *ref, const void *kbuf, uint32_t klen);
// Copies the key's value to vbuf_out and the value's length to *vlen_out; NULL skips either. The buffer must have room
// for the value, whatever its length is. The status of false is REMIXDB_NOTFOUND, or an error; the outputs are then
// unchanged.
bool remixdb_get(struct xdb_ref *ref, const void *kbuf, uint32_t klen, void *vbuf_out, uint32_t *vlen_out);
// Like remixdb_get, but copies at most vcap bytes. *vlen_out is always the value's full length. Fails with
// REMIXDB_TOOBIG if the value does not fit; the value's first vcap bytes are then in the buffer.
bool remixdb_getn(struct xdb_ref *ref, const void *kbuf, uint32_t klen, void *vbuf, uint32_t vcap, uint32_t *vlen_out);
// Copies a piece of the value: the bytes from off on, at most cap bytes. *n_out: how many were copied; *vlen_out: the
// value's full length; NULL skips either. If off is the length or beyond, the call succeeds with 0 bytes. The call
// needs memory for the piece only, however long the value is. buf may be NULL if cap is 0. Two calls may read two
// values of the key; a ref of a snapshot always reads the same. Fails with REMIXDB_NOTFOUND, or an error; both outputs
// are then 0.
bool remixdb_get_part(struct xdb_ref *ref, const void *kbuf, uint32_t klen, uint32_t off, void *buf, uint32_t cap,
                      uint32_t *n_out, uint32_t *vlen_out);

// Puts the key with a time at which it expires, in milliseconds since 1970-01-01 UTC; 0 is never. From that time on the
// record is absent to every call, as a deleted one is, and compaction removes it from the disk. A time in the past is a
// delete. A put without a time clears the time that the key had; a merge that changes the value keeps it.
//   The store compares with the system's clock when it reads. A snapshot, a transaction and an iterator with `hold`
// compare with the time of their beginning, other iterators with the time of their last seek. If the clock is set back,
// a record that was absent may come back: compaction removes a record only when the clock has stood at or behind its
// time for REMIXDB_EXPIRY_SETTLES_MS while the store was open.
//   An open store with workers finds expired records by itself, without reads or writes by the user. It merges a
// partition if they are a quarter of its bytes or more. So the partition's files shrink after the records have expired:
// within three times REMIXDB_EXPIRY_SETTLES_MS, and the time of the merge. A record in the memtable leaves when the
// memtable is flushed. Otherwise like remixdb_put.
#define REMIXDB_EXPIRY_SETTLES_MS 300000u
bool remixdb_put_expire(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen,
                        uint64_t expires_ms);
// Sets *expires_ms_out (NULL skips it) to the time at which the key expires; 0: never. The status of false is
// REMIXDB_NOTFOUND, or an error.
bool remixdb_expiry(struct xdb_ref *ref, const void *kbuf, uint32_t klen, uint64_t *expires_ms_out);

// Versions. The version of a key's record is the sequence number of the write that made it: never 0, higher with each
// write of the key, and the same after compaction and after the store was opened again. A merge that keeps the value
// leaves it. Records of tables that an older library wrote all have version 1. A repair gives new versions.
//
// Like remixdb_getn, and sets *version_out (NULL skips it) to the version, also with REMIXDB_TOOBIG. A key that the
// ref's own transaction has written has no version before the commit: REMIXDB_INVALID.
bool remixdb_getv(struct xdb_ref *ref, const void *kbuf, uint32_t klen, void *vbuf, uint32_t vcap, uint32_t *vlen_out,
                  uint64_t *version_out);
// Puts or deletes the key only if it has this version at that moment; for remixdb_put_if, 0 means: only if the key does
// not exist. Atomic: no other write of the key comes between. Fails with REMIXDB_ABORTED, and changes nothing, if the
// key has another version or does not exist. remixdb_put_if clears the key's expiry. remixdb_del_if of version 0 is
// REMIXDB_INVALID. In a transaction they compare with the version that the transaction reads. They fail for a key that
// the transaction itself has written: it has no version before the commit. Otherwise like remixdb_put.
bool remixdb_put_if(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen,
                    uint64_t version);
bool remixdb_del_if(struct xdb_ref *ref, const void *kbuf, uint32_t klen, uint64_t version);

// Returns a copy of the key's value in memory of its own, which the caller frees with remixdb_free, and the value's
// length in *vlen_out (NULL skips it). A copy of an empty value is not NULL. Returns NULL on failure: REMIXDB_NOTFOUND,
// or an error; *vlen_out is then unchanged.
void *remixdb_get_alloc(struct xdb_ref *ref, const void *kbuf, uint32_t klen, uint32_t *vlen_out);
struct xdb_pin;  // a value that stays where it is until it is released
// Finds the key's value without a copy, and keeps it in the store's memory until remixdb_pin_release. *v_out is the
// value, never NULL; *vlen_out its length (NULL skips it). The bytes do not change, whatever happens to the key, and
// they outlive the ref: any thread may read them, and may release the pin. A pin keeps one of these:
//   - a value of at most 1 KiB: a copy in the pin, which is cheaper than the other ways and keeps nothing else;
//   - a longer value that was written lately: the memtable that has it, with all memory of that memtable;
//   - a longer value in a table: its block in the block cache, and the table's file, even after compaction;
//   - a longer value whose block gets no room in the cache, or that lies apart from its record, as values of 4 KiB or
//     more do: a copy in the pin.
// A pin does not stop reclamation of anything else. A program should hold few memtables and blocks for long: the figure
// `pinned` tells. Release all pins before the store closes. Returns NULL on failure: REMIXDB_NOTFOUND, or an error; the
// outputs are then unchanged.
struct xdb_pin *remixdb_get_pinned(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void **v_out,
                                   uint32_t *vlen_out);
// Gives the value back. If the pin was the last user of a memtable or of a table that compaction has replaced, the call
// frees that memtable, or removes that file. Does nothing for NULL.
void remixdb_pin_release(struct xdb_pin *pin);

enum remixdb_merge_op { REMIXDB_MERGE_KEEP, REMIXDB_MERGE_PUT, REMIXDB_MERGE_DEL };
// Decides about a key. v0 is the key's value, valid during the call. NULL means that the key does not exist; an empty
// value is not NULL. REMIXDB_MERGE_KEEP changes nothing. REMIXDB_MERGE_PUT takes the new value from *v1 and *v1len; the
// new value's bytes must stay until remixdb_merge returns. REMIXDB_MERGE_DEL deletes the key.
typedef enum remixdb_merge_op (*remixdb_merge_fn)(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len,
                                                  void *priv);
// Atomic read-modify-write: no other write of the key comes between fn's argument and fn's decision. fn runs in this
// thread, while other writers of the key wait: fn must be short, and must not call the store. If the memtable is
// switched meanwhile, or another thread writes the key while a value of 16 KiB or more is written, fn runs again with
// the newest value, and fn's last decision counts. Otherwise like remixdb_put.
bool remixdb_merge(struct xdb_ref *ref, const void *kbuf, uint32_t klen, remixdb_merge_fn fn, void *priv);
// A merge function and the function's decision. Bindings need it for languages where a function may end without a
// result, for example by an exception. The decision is REMIXDB_MERGE_KEEP until the function changes it.
struct remixdb_decision {
  void (*decide)(struct remixdb_decision *d);  // the function; runs as a remixdb_merge_fn does
  void *priv;                                  // for the caller's use
  const void *v0;                              // to the function: the key's value, as a remixdb_merge_fn gets it
  uint32_t v0len;                              // to the function
  uint32_t v1len;  // from the function: the new value's length. 0 when a call of the function begins
  const void *v1;  // from the function, for REMIXDB_MERGE_PUT: the new value, which must stay until the call of
                   // remixdb_merge_decide returns. NULL when a call of the function begins
  enum remixdb_merge_op op;  // from the function. REMIXDB_MERGE_KEEP when a call of the function begins
};
// Like remixdb_merge, with a function that leaves its decision in *d. The caller owns *d; until the call returns, *d
// must stay, and no other thread may use it. Fails with REMIXDB_INVALID, and writes nothing, if d or d->decide is NULL,
// or if the function left an unknown op.
bool remixdb_merge_decide(struct xdb_ref *ref, const void *kbuf, uint32_t klen, struct remixdb_decision *d);

// Brings every earlier write, by any thread, to disk. Threads that sync at the same time share one fsync. After
// REMIXDB_NOSPACE nothing is lost, and the caller may try again. After REMIXDB_IO the store refuses writes until it is
// opened again.
bool remixdb_sync(struct xdb_ref *ref);

// ---- many keys at once

// Bytes that the caller owns, for example one key of many.
struct remixdb_slice {
  const void *ptr;
  uint32_t len;
};
struct remixdb_range {  // the keys from <= key < to. A ptr that is NULL means that this end is open
  struct remixdb_slice from, to;
};
// Where a value goes.
struct remixdb_buf {
  void *ptr;     // the caller's buffer; NULL with cap 0: the caller wants the length only
  uint32_t cap;  // bytes of room at ptr
  uint32_t len;  // out: the value's full length; 0 when the key is missing
};
// Looks up nr keys at one moment, in any order; a key may appear more than once. Much faster than nr calls of
// remixdb_get: the waits for memory and disk run side by side. Sets found[i] for every key. For each key that exists,
// sets values[i].len to the value's length and copies at most values[i].cap bytes of the value to values[i].ptr. values
// may be NULL; with nr 0 keys and found may be NULL, too. Returns the number of keys found. The status afterwards:
//   REMIXDB_OK       every key was looked up, and every value with a buffer fits. Keys may be missing.
//   REMIXDB_TOOBIG   every key was looked up, but a value is longer than its buffer (len > cap, ptr not NULL). The
//                    buffer has its first cap bytes; found and len are right.
//   REMIXDB_INVALID  ref is NULL; keys or found is NULL although nr > 0; a key or a buffer is NULL and not empty; or a
//                    key is longer than REMIXDB_KV_MAX. Returns 0 and changes nothing.
//   another error    some keys could not be looked up; their found is false. The status is that of the error that
//                     occurred earliest. All other keys are as they would be without the error.
size_t remixdb_multi_get(struct xdb_ref *ref, size_t nr, const struct remixdb_slice *keys, struct remixdb_buf *values,
                         bool *found);

// Where remixdb_multi_get_packed puts the values of many keys. All memory is the caller's. Value i is the lens[i] bytes
// at ptr + offs[i]. The values lie in any order, without gaps.
struct remixdb_packed {
  void *ptr;       // the buffer
  size_t cap;      // bytes of room at ptr; the call uses at most UINT32_MAX of them
  uint32_t *offs;  // out, one per key: the value's offset; 0 when the value is not in the buffer
  uint32_t *lens;  // out, one per key: the value's length; 0 when the key is missing
  bool *found;     // out, one per key
  size_t len;      // out: bytes of all values found, including those that did not fit
};
// Like remixdb_multi_get, for bindings to languages where an array of structs is expensive. `keys` holds all keys one
// after the other, keys_len bytes in all; key i has klens[i] bytes. Returns the number of keys found. The status
// afterwards:
//   REMIXDB_OK       every key was looked up, and every value is in the buffer.
//   REMIXDB_TOOBIG   every key was looked up, but the buffer is too small: found, lens and out->len are right, offs and
//                    the buffer are not. Try again with out->len bytes, or more if the store has changed.
//   REMIXDB_INVALID  ref or out is NULL; an array is NULL although nr > 0; keys or out->ptr is NULL and not empty; the
//                    lengths do not add up to keys_len; or a key is longer than REMIXDB_KV_MAX. Returns 0 and leaves
//                    *out unchanged.
//   another error    as for remixdb_multi_get.
size_t remixdb_multi_get_packed(struct xdb_ref *ref, size_t nr, const uint32_t *klens, const void *keys,
                                size_t keys_len, struct remixdb_packed *out);

// ---- asynchronous gets

// One thread, an event loop for example, keeps many gets under way: it begins them one by one, and takes their results
// in any order as the reads from the disk end.
//
//   struct xdb_gets *gets = remixdb_gets_create(ref, 256);
//   remixdb_get_begin(gets, "key", 3, buf, sizeof(buf), request);  // as often as there is room
//   n = remixdb_get_poll(gets, got, 64, 1);                        // waits until at least one get has ended
//
// An xdb_gets belongs to its ref, as an iterator does: two threads never use the ref and its xdb_gets at the same time.
// Other calls on the ref may come between. Destroy it before the ref.

struct xdb_gets;  // gets under way

// The result of a get.
struct remixdb_got {
  void *priv;                  // as remixdb_get_begin got it
  enum remixdb_status status;  // REMIXDB_OK; REMIXDB_NOTFOUND; REMIXDB_TOOBIG: the value is longer than its buffer, and
                               // the buffer has the first bytes; or an error, which changes no other get
  uint32_t len;                // the value's full length with REMIXDB_OK and REMIXDB_TOOBIG, else 0
  const char *msg;             // the error's message; "" without one, never NULL. Valid until the next call on the
                               // xdb_gets
};

// Room for `depth` gets under way, 1 to REMIXDB_GETS_MAX: those that have begun, until their results are taken. A get
// takes about half a KiB, and while it waits for the disk the size of its block, or up to 128 KiB and a key for a value
// that lies apart. With io_uring the object has a ring of its own, which takes one descriptor and has at most 1,024
// reads at the disk; other reads follow as these end. The ref may be a snapshot's. NULL: REMIXDB_NOMEM, REMIXDB_INVALID
// (depth).
#define REMIXDB_GETS_MAX 4096u
struct xdb_gets *remixdb_gets_create(struct xdb_ref *ref, uint32_t depth);
// Begins a get, and does not wait for the disk. The exception is a key of more than 4 KiB that shares that much with
// other keys. The get reads the store, or the snapshot, as it is during this call; later writes do not change its
// result. The call copies the key. At most vcap bytes of the value go to vbuf, which must stay until the result is
// taken; its contents are undefined before, and after another status than REMIXDB_OK and REMIXDB_TOOBIG. NULL with vcap
// 0: the caller wants the length only. A value of 4 KiB or more lies apart from its record, so it takes one more read,
// or several of up to 1 MiB each if it is longer than 128 KiB. A get that needs no disk has its result at once, and
// gives it to the next poll. Reads from the disk are gathered, and the next poll, or a later begin, starts them
// together. True: the get has begun, and will have one result. False: it has not, and will have none. REMIXDB_ABORTED:
// `depth` gets are under way, so results must be taken first.
bool remixdb_get_begin(struct xdb_gets *gets, const void *kbuf, uint32_t klen, void *vbuf, uint32_t vcap, void *priv);
// Starts what was gathered, and takes at most `max` results, in any order. Waits until `min` gets have ended, or all
// that are under way, or `max`, whichever is least; with 0 it does not wait. With 0 for max, out may be NULL. Returns
// the number of results. 0 with REMIXDB_OK: no get has ended. 0 with REMIXDB_NOTFOUND: none is under way.
// Without io_uring (the option `io`, a system without it, a ring that was refused) no read stays under way between two
// calls: the poll waits until all gets have ended. With AIO it reads their blocks side by side, else one by one.
size_t remixdb_get_poll(struct xdb_gets *gets, struct remixdb_got *out, size_t max, size_t min);
// A descriptor for epoll, poll or select, which the object owns. It is readable while remixdb_get_poll may have
// something to do: when a get has begun, when a read has ended, when a poll left results because of `max`. The poll
// makes it unreadable again. A poll may find nothing although the descriptor was readable. The program only watches the
// descriptor: it neither reads nor closes it. A program that asks for no descriptor saves the system calls for it. -1:
// REMIXDB_NOMEM; REMIXDB_INVALID, also on systems without eventfd, where a program polls after its begins.
int remixdb_gets_fd(struct xdb_gets *gets);
// Gives up the gets that are under way: they have no result, and their buffers are free at once. Waits for the reads
// that are at the disk. Frees the object. Does nothing for NULL.
void remixdb_gets_destroy(struct xdb_gets *gets);

// ---- batches

// A batch belongs to no store. Only one thread at a time may use a batch.

// Makes an empty batch. Returns NULL on failure.
struct xdb_batch *remixdb_batch_create(void);
// Add an operation; the batch copies key and value. The last operation on a key counts. After a failure (REMIXDB_TOOBIG
// or REMIXDB_NOMEM, for example) the batch is unchanged.
bool remixdb_batch_put(struct xdb_batch *b, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen);
bool remixdb_batch_del(struct xdb_batch *b, const void *kbuf, uint32_t klen);
enum remixdb_batch_op { REMIXDB_BATCH_PUT, REMIXDB_BATCH_DEL, REMIXDB_BATCH_DEL_RANGE };
// Adds the deletion of a range; the batch copies the bounds. It deletes what the store has when the batch is written,
// and what earlier operations of the batch put; later operations count. An empty range adds nothing. The write of a
// batch with ranges waits as remixdb_del_range does.
bool remixdb_batch_del_range(struct xdb_batch *b, const struct remixdb_range *range);
// Adds nr operations from one buffer, and copies them. ops[i] is REMIXDB_BATCH_PUT or _DEL; ops NULL: all are puts.
// `bytes` holds key and value of each operation, one after the other, nbytes in all. Key i has klens[i] bytes. Value i
// has vlens[i] bytes, 0 for a delete. After a failure the batch is unchanged: REMIXDB_TOOBIG (one operation is too
// large), REMIXDB_NOMEM, or REMIXDB_INVALID (the lengths do not add up to nbytes, for example).
bool remixdb_batch_load(struct xdb_batch *b, size_t nr, const uint8_t *ops, const uint32_t *klens,
                        const uint32_t *vlens, const void *bytes, size_t nbytes);
// Adds a put with a time at which the key expires (remixdb_put_expire). A time that is past when the batch is written
// is a delete.
bool remixdb_batch_put_expire(struct xdb_batch *b, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen,
                              uint64_t expires_ms);
// Returns the number of operations; 0 for NULL.
size_t remixdb_batch_count(const struct xdb_batch *b);
// Returns about how many bytes the batch takes in the log; 0 for NULL.
size_t remixdb_batch_bytes(const struct xdb_batch *b);
// An operation of a batch, as remixdb_batch_each shows it. All pointers are valid during the call of the function.
struct remixdb_batch_item {
  size_t size;  // sizeof(struct remixdb_batch_item) in the library; a later version may have more fields
  enum remixdb_batch_op op;
  struct remixdb_slice space;       // its name; length 0: the unnamed space; ptr NULL: the space of the ref that writes
  struct remixdb_slice key, value;  // a delete has no value: ptr NULL. An empty key or value has a ptr that is not NULL
  struct remixdb_range range;       // for REMIXDB_BATCH_DEL_RANGE, which has no key and no value
  uint64_t expires_ms;              // 0: never
};
// Gets the operations one by one. Returns false to end the call. The function must not change the batch.
typedef bool (*remixdb_batch_fn)(void *priv, const struct remixdb_batch_item *item);
// Calls fn for each operation, in the order of adding, in this thread. Returns true also if fn has ended the call.
bool remixdb_batch_each(const struct xdb_batch *b, remixdb_batch_fn fn, void *priv);
// Adds all operations of `from` to `to`, and copies them. `from` may be `to`. After a failure `to` is unchanged.
bool remixdb_batch_append(struct xdb_batch *to, const struct xdb_batch *from);
// Chooses the space of the operations that are added next: this one, or the unnamed one for NULL. Before the first such
// call, and after remixdb_batch_clear, operations go to the space of the ref that writes the batch. The last operation
// on a key of a space counts. The batch copies the name, so the handle may be closed before the batch is written. A
// batch with spaces of two stores fails: the calls that add then set REMIXDB_INVALID. So does remixdb_write to another
// store. remixdb_write sets REMIXDB_GONE if a space is dropped.
void remixdb_batch_space(struct xdb_batch *b, struct xdb_space *space);
// Removes all operations. Does nothing for NULL.
void remixdb_batch_clear(struct xdb_batch *b);
// Frees the batch. Does nothing for NULL.
void remixdb_batch_destroy(struct xdb_batch *b);
// Writes the whole batch or nothing: every reader, and the store after a crash, has all of the batch or none of it. The
// batch stays as it is and can be written again. A batch may hold 1 GiB of keys and values, whatever the size of the
// memtable; meanwhile it takes about three times its size in memory. Fails with REMIXDB_TOOBIG, and writes nothing, if
// the batch takes more than 1.25 GiB in the log, which adds 2 to 7 bytes to a record. While the batch is put in place,
// other writers of its keys, and of keys beside these, wait: about 0.2 s for each 100,000 records. Readers do not wait.
// Otherwise like remixdb_put.
bool remixdb_write(struct xdb_ref *ref, struct xdb_batch *b);

// ---- iterators

// An iterator shows the store as it was at the iterator's last seek. An iterator blocks no writer, and later writes do
// not change what it shows. While an iterator stands on a key, it keeps the memory and the files of that moment. It
// gives them back when it seeks, reaches an end, parks or is destroyed.

// Makes an iterator without a position. Returns NULL on failure.
struct xdb_iter *remixdb_iter_create(struct xdb_ref *ref);

struct remixdb_iter_opts {
  size_t size;  // sizeof(struct remixdb_iter_opts) in the caller; remixdb_iter_opts_init sets it
  // The iterator stands only on keys within the bounds that begin with the prefix. A seek below these keys goes to the
  // first of them, a seek back from above them to the last; a step out of them leaves the iterator not valid. No block
  // is read for keys beyond, except for one key of each part of the store that tells where the bound lies. An empty
  // prefix, or a prefix whose ptr is NULL, restricts nothing. If from >= to, or `to` is an empty key, the range is
  // empty.
  struct remixdb_range bounds;
  struct remixdb_slice prefix;
  // Records have no values: remixdb_iter_value returns NULL with length 0, remixdb_iter_peek leaves the value's buffer
  // alone and sets its length to 0, and so does remixdb_iter_page. A scan reads the compressed keys of a table, at once
  // where these are shorter on the disk, else after two blocks. Those blocks, tables without compressed keys (option
  // `ckeys`) and records that expire are read with their values, but not values that lie apart.
  bool keys_only;
  // The number of records that the caller means to read after each seek. The seek then reads the blocks of these
  // records from the disk together with its own. 0: the library estimates the number from earlier scans of this ref.
  // The number never changes a result.
  uint32_t expect;
  // All seeks read the snapshot, which is of the same store. The caller may release the snapshot meanwhile. NULL: each
  // seek reads what the ref reads then. On a ref of a transaction a snapshot is REMIXDB_INVALID.
  struct xdb_snapshot *snapshot;
  // All seeks read what the ref reads when the iterator is made. The iterator keeps the memory and the files of that
  // moment until it is destroyed, also if it is parked.
  bool hold;
};
// Sets *o to the defaults. `size` is sizeof(*o). Later versions of the library will accept these options, too.
void remixdb_iter_opts_init(struct remixdb_iter_opts *o, size_t size);
// Like remixdb_iter_create, with options; NULL for `o` means the defaults. Copies the options, the bounds and the
// prefix. Returns NULL on failure. REMIXDB_TOOBIG: a bound or the prefix is longer than a key can be. REMIXDB_INVALID:
// also a snapshot of another store.
struct xdb_iter *remixdb_iter_create_opts(struct xdb_ref *ref, const struct remixdb_iter_opts *o);
// Moves to the smallest key that is not below the key given; (NULL, 0) moves to the smallest key of the store. If there
// is no such key, or on an error, the iterator is not valid afterwards, and the status tells which of the two happened.
// This holds for all seeks.
void remixdb_iter_seek(struct xdb_iter *it, const void *kbuf, uint32_t klen);
// Moves to the largest key of the store.
void remixdb_iter_seek_last(struct xdb_iter *it);
// Moves to the largest key that is not above the key given.
void remixdb_iter_seek_for_prev(struct xdb_iter *it, const void *kbuf, uint32_t klen);
// Tells whether the iterator stands on a key. If that key or its value then cannot be read, the calls below fail, and
// the iterator is not valid any more.
bool remixdb_iter_valid(struct xdb_iter *it);
// Copies the key, the value and their lengths; NULL skips a part. The buffers must have room: REMIXDB_KV_MAX bytes
// suffice for a key, and a call with NULL buffers gives the lengths. Returns false if the iterator is not valid. The
// status is then REMIXDB_NOTFOUND, or the error that ended the iteration.
bool remixdb_iter_peek(struct xdb_iter *it, void *kbuf_out, uint32_t *klen_out, void *vbuf_out, uint32_t *vlen_out);
// Moves to the next key.
void remixdb_iter_skip1(struct xdb_iter *it);
// Moves nr times to the next key.
void remixdb_iter_skip(struct xdb_iter *it, uint32_t nr);
// Moves to the previous key. A step back from the smallest key leaves the iterator not valid. Steps in both directions
// may be mixed.
void remixdb_iter_prev(struct xdb_iter *it);
// Return the key, or the value, without a copy. The bytes belong to the store. They are valid until the iterator moves,
// parks or is destroyed. The result is NULL if the iterator is not valid; the status is as for remixdb_iter_peek. An
// empty value is not NULL.
const void *remixdb_iter_key(struct xdb_iter *it, uint32_t *klen_out);
const void *remixdb_iter_value(struct xdb_iter *it, uint32_t *vlen_out);
// Gives back the memory and the files that the iterator keeps. The iterator needs a seek before further use.
void remixdb_iter_park(struct xdb_iter *it);
// Frees the iterator. Does nothing for NULL.
void remixdb_iter_destroy(struct xdb_iter *it);
// Returns the reason why the iterator is not valid: REMIXDB_OK (it is at an end, or has no position yet), or the error.
enum remixdb_status remixdb_iter_status(struct xdb_iter *it);

// Estimates the number of keys in the range that the ref reads, and the bytes of their keys and values before
// compression. Either pointer may be NULL. The call reads indexes in memory, at most two keys at each end of the range,
// and at most a few hundred blocks where new data is not yet merged with old data. Its time grows with the logarithm of
// the records, and a little with the number of tables; it looks at a bounded part of the memtables.
// After overwrites and deletes that are merged, the number of keys is exact. A sample tells how much of the new data
// overwrites or deletes older keys, so the number is mostly off by less than a hundredth of all keys. In a small range
// it may miss the part of the range's new data that a sample of a few thousand keys misses. New data that only
// overwrites, or only deletes, causes no error. A range whose new data has few records is mostly counted exactly. Bytes
// come from the pages and the average records of the range, and from the sample. Expired records that are not compacted
// yet may be counted; a transaction's own writes are not. An empty range has none. REMIXDB_TOOBIG: a bound is longer
// than a key can be.
bool remixdb_count(struct xdb_ref *ref, const struct remixdb_range *range, uint64_t *keys_out, uint64_t *bytes_out);

// A page: room for many records that remixdb_iter_page copies at once. The caller sets all fields to zero, then the
// fields that are not marked "out". The caller owns all memory, and may use different memory in each call.
struct remixdb_page {
  void *ptr;        // the bytes: the first record's key and value, the next record's key and value, ... without gaps
  size_t cap;       // bytes of room at ptr
  uint32_t *klens;  // out: the keys' lengths; room for `max`
  uint32_t *vlens;  // out: the values' lengths; room for `max`. NULL: keys only
  uint32_t max;     // the most records of a call, at least 1
  bool back;        // true: towards smaller keys
  // true: the page begins after the record that the iterator stands on. Each call of remixdb_iter_page sets this field
  // for the next call. The caller sets it to false after another function has moved the iterator.
  bool after;
  uint32_t nr;  // out: records copied
  size_t len;   // out: bytes copied
};
// Copies records from the iterator's position on, as many as fit, and moves the iterator over them. The next call with
// the same page goes on from there. All pages show the store at the moment of the iterator's last seek. Returns true if
// at least one record was copied. If not, sets p->nr to 0 and returns false with one of these statuses:
//   REMIXDB_NOTFOUND  the iterator is at an end, or has no position.
//   REMIXDB_TOOBIG    not even one record fits: klens[0] and vlens[0] are the lengths of the next record, and the
//                     iterator stands on that record. (If the iterator is not valid, the key of its last seek was too
//                     long.)
//   REMIXDB_INVALID   it, p or p->klens is NULL, p->max is 0, or p->ptr is NULL and p->cap is not 0. Nothing changes.
//   another error     as for remixdb_iter_peek and the steps. If an error follows the first record, this call returns
//                     true, and the next call reports the error.
// After a page the iterator's position is not defined. The caller must call remixdb_iter_unread, a seek or a park
// before a peek, a skip or a prev. Until one of these calls, or until REMIXDB_NOTFOUND, the iterator keeps the memory
// and the files of its moment.
bool remixdb_iter_page(struct xdb_iter *it, struct remixdb_page *p);
// Gives the last nr records of the last page back: the iterator then stands on the earliest of these nr records. With
// nr 0 the iterator stands on the record that follows the page, or is not valid if there is no such record. Sets
// p->after to false, p->nr and p->len to 0; so a second call with nr 0 changes nothing. If nr is larger than the page,
// the iterator goes on towards the records before the page, and is not valid if there are too few. Fails with
// REMIXDB_INVALID if it or p is NULL, or with the error of a step; after such an error the iterator is not valid.
bool remixdb_iter_unread(struct xdb_iter *it, struct remixdb_page *p, uint32_t nr);

// ---- snapshots

// Makes a snapshot of the records that the ref reads: the snapshot has all writes before the call, by any thread, and
// no later write. A snapshot copies nothing, but keeps the memory and the files of its moment. The caller must release
// the snapshot before the store closes. Returns NULL on failure.
struct xdb_snapshot *remixdb_snapshot(struct xdb_ref *ref);
// Makes a ref that reads the snapshot's unnamed key space. Every call that reads works on this ref; writes fail with
// REMIXDB_READONLY. Each thread makes its own ref, and ends it with remixdb_unref. Returns NULL on failure.
struct xdb_ref *remixdb_snapshot_ref(struct xdb_snapshot *s);
// Gives the snapshot back. The memory and the files that only the snapshot kept go with the last ref and the last
// iterator that read it. Does nothing for NULL.
void remixdb_snapshot_release(struct xdb_snapshot *s);

// ---- key spaces
//
// A store has one unnamed key space, which remixdb_ref shows, and any number of named ones, up to 65,536 at a time.
// Each has its own keys. All share the log, the memtable and the sequence numbers of the store. So batches are atomic
// across spaces, a sync makes the writes of all spaces durable, and a snapshot and a checkpoint hold all spaces. A
// space that is not used costs some bytes of memory. A name has 1 to 255 bytes, and no newline.

// Opens a space; create: makes it if the store has none of this name. A space that a call has made is durable when the
// call returns, and so are all writes to the store that were made before the call, by any thread: the call syncs them
// first. Each call that makes or drops a space writes the names of all spaces, so making n spaces takes time in
// proportion to n * n. Any thread may use the handle, also several at once. Returns NULL on failure: REMIXDB_NOTFOUND;
// when it makes a space also REMIXDB_READONLY, REMIXDB_NOSPACE, REMIXDB_TOOBIG (too many spaces), or the failure that
// stopped the store.
struct xdb_space *remixdb_space_open(struct xdb *xdb, const char *name, bool create);
// Frees the handle; refs of the space go on. Close it before the store. Does nothing for NULL.
void remixdb_space_close(struct xdb_space *space);
// Drops a space with all its keys, durably, whatever it holds. All writes to the store that were made before the call,
// by any thread, are durable before the drop is, so records that were copied out of the space are there when the space
// is gone. A write made during the call may be lost in a crash that keeps the drop. The name is free at once. Refs of
// the space, and handles, say REMIXDB_GONE from then on. Snapshots, and iterators that have a position, read on as
// before, until an iterator ends or parks; meanwhile they keep the files. The room comes back by itself: workers remove
// the files, and merge the parts of the store where the space's keys are among others (figure dropped_bytes). Without
// workers the call does that, and a failure there is not its own. Fails as the making of a space does.
bool remixdb_space_drop(struct xdb *xdb, const char *name);
// Returns the names of all spaces, each with a newline after it, the oldest space first. Free the text with
// remixdb_free. Returns NULL on failure.
char *remixdb_space_list(struct xdb *xdb);
// Makes a ref whose calls read and write the space; NULL is not allowed. Calls that concern the whole store (flush,
// snapshot, stats and the like) do the same as on any ref. Fails also with REMIXDB_GONE. Returns NULL on failure.
struct xdb_ref *remixdb_space_ref(struct xdb_space *space);
// Like remixdb_snapshot_ref, for a space; NULL: the unnamed one. A space that was made after the snapshot is empty.
struct xdb_ref *remixdb_snapshot_space_ref(struct xdb_snapshot *s, struct xdb_space *space);

// ---- transactions

// A transaction reads the store as it was when the transaction began, and its own writes. Its writes go into the store
// at the commit: all together, or not at all. Transactions are serializable: the committed ones, together with all
// other writes, have the effect that they would have one after the other. They are optimistic: no call waits for a
// transaction. The commit fails if another write has come, after the beginning, to a key or a range that the
// transaction read. So a program runs a transaction again when its commit fails with REMIXDB_ABORTED.
//
// A range is what an iterator has passed: from the key of its seek to the farthest key that it stood on. A key that
// others add to a range is a conflict, too. A write that rests on no read causes no conflict. So a transaction that
// only writes always commits, and so does one that only reads. The deletion of a range in a transaction is such a
// write: the commit deletes all keys that are in the range then, with a tombstone for each, except those that the
// transaction has put after the deletion. For the transaction the range is empty from then on, and its reads there
// cause no conflicts.
//
// A transaction, its refs and their iterators belong to one thread at a time. An open transaction keeps the memory and
// the files of its moment, as a snapshot does. Its own writes and the keys that it has read are in memory. Its writes
// take at most 1.25 GiB in the log. The caller ends each transaction before the store closes.
struct xdb_txn;

// Begins a transaction. Returns NULL on failure.
struct xdb_txn *remixdb_txn_begin(struct xdb *xdb);
// Returns a ref of the transaction, which ends with it: remixdb_unref and remixdb_ref_return refuse it. Gets,
// multi-gets, merges, iterators, puts, deletes and batches work on it as on other refs. An iterator sees the
// transaction's writes up to its last seek, and must seek again after a rollback. remixdb_flush, remixdb_compact,
// remixdb_compact_range, remixdb_checkpoint, remixdb_verify, remixdb_snapshot, remixdb_ingest_begin and
// remixdb_gets_create fail with REMIXDB_INVALID. space NULL: the unnamed space. The refs of all spaces belong to one
// transaction. The commit of a transaction that has written to a space that is dropped fails with REMIXDB_ABORTED.
// Returns NULL on failure, with REMIXDB_GONE if the space is dropped.
struct xdb_ref *remixdb_txn_ref(struct xdb_txn *txn, struct xdb_space *space);
// The same, but reads through this ref cause no conflicts.
struct xdb_ref *remixdb_txn_untracked(struct xdb_txn *txn, struct xdb_space *space);
// Writes what the transaction has written, as remixdb_write does, and ends it in any case. Iterators that are still
// open lose their position, and then only remixdb_iter_destroy is useful. Fails with REMIXDB_ABORTED after a conflict:
// nothing is written. Otherwise like remixdb_write; writers of the keys that it has read wait, too.
bool remixdb_txn_commit(struct xdb_txn *txn);
// Ends the transaction, and forgets its writes. Does nothing for NULL.
void remixdb_txn_abort(struct xdb_txn *txn);
// Notes the transaction's writes as they are. Savepoints stack.
bool remixdb_txn_savepoint(struct xdb_txn *txn);
// Takes back the writes since the last savepoint, and that savepoint. Reads since then still count. Fails with
// REMIXDB_INVALID if there is no savepoint.
bool remixdb_txn_rollback(struct xdb_txn *txn);

// ---- administration

// Brings the memtable into tables, and waits until it is there. Fails also with REMIXDB_NOSPACE, or with
// REMIXDB_READONLY; the latter also on a snapshot's ref. Where the system cannot read what a compaction needs, a flush
// fails with REMIXDB_IO, and so do puts while memtables are full. Both go on when the read succeeds.
bool remixdb_flush(struct xdb_ref *ref);
// Brings all earlier writes into the fewest tables, without deleted keys and overwritten values, and waits until they
// are there. The call works on one part of the store at a time, and needs room on disk for a copy of that part. Writers
// go on meanwhile. A part that cannot be read is left as it is: the call compacts the others, and then fails with
// REMIXDB_CORRUPT or REMIXDB_IO. Otherwise like remixdb_flush.
bool remixdb_compact(struct xdb_ref *ref);
// The same for the parts of the store that may hold keys of the range: also their other keys, and no other part. An
// empty range does nothing. REMIXDB_TOOBIG: a bound is longer than a key can be. Reports as "compact"
// (remixdb_progress).
bool remixdb_compact_range(struct xdb_ref *ref, const struct remixdb_range *range);
// ---- sorted ingest

// Writes sorted records straight into tables, without the log and the memtables. Nobody sees the records until the
// commit; then all of them are there at once, also after a crash. Readers and writers go on meanwhile. The ref must not
// be a snapshot's or a transaction's, and outlives the ingest; other calls on the ref may come between. An ingest takes
// memory for one table in the making, about 10 MiB, and little more for a long value. From its first record on an
// ingest keeps one to three of the max_open_files descriptors, as long as all of them keep a quarter at most. Further
// ingests, as many as there are, open their files when they write to them, and sync them: for each 2 MB, and for each
// 256 KB that long values take. They are about a third slower. Returns NULL on failure, also with REMIXDB_READONLY.
struct xdb_ingest;
struct xdb_ingest *remixdb_ingest_begin(struct xdb_ref *ref);
// Adds a record, with a key and a value of any length that a put takes. Each key is greater than the one before; if
// not, the call fails with REMIXDB_INVALID and changes nothing, as it does with REMIXDB_TOOBIG (the key is longer than
// REMIXDB_KV_MAX). After REMIXDB_NOSPACE, REMIXDB_IO or REMIXDB_NOMEM later puts and the commit fail with the same
// status. With a progress function (remixdb_progress, "ingest") a put may fail with REMIXDB_ABORTED; the record is not
// added then, and the call may be tried again.
bool remixdb_ingest_put(struct xdb_ingest *g, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen);
// Makes the records visible at one moment of the call. They replace all values of their keys that were written before
// it; each write after it is newer, and whoever sees such a write sees all of the ingest. Transactions, merges, put_if
// and del_if that have read older values notice it as they notice a put. The call flushes (remixdb_flush) and waits for
// it; reads and writes go on. Shortly before that moment all writes wait, also merges, batches and commits of
// transactions: until the tables' footers and the store's list of files are synced, and, if a write that has come since
// the flush began has a key of the ingest, until these writes are in a new memtable and log. Calls that wait for
// compaction wait for the whole call: remixdb_flush, remixdb_compact, remixdb_compact_range, another ingest's commit,
// and remixdb_del_range if it takes more than a few thousand keys. No read waits. All of it is durable when the call
// returns true. Frees the ingest in any case. After a failure none of the records is there, and the files are gone;
// after REMIXDB_IO the next opening decides. Fails also with REMIXDB_GONE if the space is dropped before that moment.
// The progress function (remixdb_progress) can give the ingest up before the call flushes, and not later.
bool remixdb_ingest_commit(struct xdb_ingest *g);
// Gives the ingest up and removes its files. Does nothing for NULL.
void remixdb_ingest_abort(struct xdb_ingest *g);

// Makes a separate store in `dir`, with the records that the ref reads at this moment. For a snapshot's ref these are
// the records of the snapshot. The call links the tables where the file system can, else copies them, and writes the
// records of the memtables to a new log. It copies a value file that has values of the memtables, if the store is open
// with read_only or the file may still be written to. The new store is durable when the call returns true. Writers go
// on meanwhile.
// Fails also with REMIXDB_EXISTS (`dir` holds a store), REMIXDB_LOCKED (`dir` holds a store, which is open) or
// REMIXDB_NOSPACE. A call that fails removes the files that it made, but not a directory that existed. If the process
// dies in the call, the opening of `dir` fails with REMIXDB_CORRUPT; remixdb_destroy removes the unfinished store, and
// another checkpoint to `dir` replaces it.
bool remixdb_checkpoint(struct xdb_ref *ref, const char *dir);
// Reads every file, past the cache, and checks every checksum, order and index. The call reads the durable part of the
// log; in a store that is open with read_only it does not read the log, because the opening has read it. The call goes
// on after damage: the logger gets a line for each damaged file. Status and message are those of the damaged file that
// was read earliest. An index stays unread if one of its tables does not open; the log stays unread after its earliest
// damage. Writers go on meanwhile. Fails with REMIXDB_CORRUPT if there is damage. Fails with REMIXDB_NOMEM if there is
// no damage, but memory or descriptors did not suffice to read everything.
bool remixdb_verify(struct xdb_ref *ref);
// Rebuilds the damaged store in `dir` with the newest readable version of every key. The store must not be open. The
// call writes all data again, so the disk must have room for a second copy. It moves the old files, damaged or not, to
// dir/lost.N. The file REPORT in that directory names each loss: file, offset, and sequence numbers where they are
// known. When the call returns true, the store opens again. remixdb_errmsg is then empty if no loss is known; else it
// has the directory's name, LOST, and the sum of the losses. After an interrupted repair the store does not open. The
// caller calls this function again, which ends the repair and reports the same losses. Fails also with
// REMIXDB_NOTFOUND, REMIXDB_LOCKED, REMIXDB_VERSION, REMIXDB_NOSPACE (nothing has changed) or REMIXDB_EXISTS (there are
// a thousand directories lost.N: remove some).
bool remixdb_repair(const char *dir);
// Removes the store in `dir`, also a damaged one: first the store's files, then the directory if it is empty and `dir`
// is not a symbolic link. Files of other programs may have the same names, so the call removes nothing unless the
// content of some file shows that the directory is a store's. Fails also with REMIXDB_NOTFOUND (there is no store) or
// REMIXDB_LOCKED (the store is open).
bool remixdb_destroy(const char *dir);

// A function that a long call reports its progress to. `what` is "flush", "compact", "ingest", "checkpoint" or
// "verify". done and total count the same unit, which differs from call to call. total is an estimate, and 0 while it
// is unknown. If the function returns false, the long call gives up and fails with REMIXDB_ABORTED.
typedef bool (*remixdb_progress_fn)(void *priv, const char *what, uint64_t done, uint64_t total);
// Sets fn as the progress function of this ref: later calls of remixdb_flush, remixdb_compact, remixdb_compact_range,
// remixdb_checkpoint and remixdb_verify on the ref, and of remixdb_ingest_put and remixdb_ingest_commit of its ingests,
// report to fn. fn NULL, the default, means no reports. fn runs in the thread of the call. fn runs when the call
// begins, and then about every MiB read or copied, or every 50 ms of waiting. At the end of a call that succeeds, fn
// runs once more with done == total; fn's result does not matter then. done never decreases. fn may take long, and may
// use the store through other refs: the call holds no lock while fn runs, and no thread waits for fn. With workers = 0
// there are no reports during a round of compaction. If fn gives up a flush or a compaction, the running round goes on
// in the background, and finished work stays. If fn gives up a checkpoint, nothing stays. Does nothing for a ref of
// NULL.
void remixdb_progress(struct xdb_ref *ref, remixdb_progress_fn fn, void *priv);

// ---- figures and memory

// Returns the store's figures as JSON text: entries, bytes written, cache misses, memory and more (docs/FIGURES.md).
// The caller frees the text with remixdb_free. Returns NULL on failure.
char *remixdb_stats(struct xdb *xdb);
// Sets *value_out to one figure, by its name in the JSON: "cache.misses" is the member `misses` of the object `cache`,
// "refs" a member of the outermost object. A flag is 0 or 1. Takes about as long as remixdb_stats. Fails with
// REMIXDB_NOTFOUND if there is no figure of this name, or with REMIXDB_INVALID if the figure is a string.
bool remixdb_figure(struct xdb *xdb, const char *name, uint64_t *value_out);
// Frees memory that a call of this library returned. Does nothing for NULL.
void remixdb_free(void *p);

#ifdef __cplusplus
}
#endif
#endif
