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
// Keys and values are byte strings. Keys are ordered as memcmp orders them; a key comes before every longer key that
// it is a prefix of. An empty key is legal. A key and its value have at most REMIXDB_KV_MAX bytes together.
//
// Threads. Any number of threads may use one `struct xdb`. A `struct xdb_ref` is one thread's access to it: each thread
// makes its own. Two threads never use a ref, or an iterator made from it, at the same time. A thread may hand its ref
// to another thread. Close in this order: iterators, refs, store.
//
// Errors. A call that fails returns NULL or false. It sets the thread's status, remixdb_errcode(), and a message,
// remixdb_errmsg(). A call that succeeds sets the status to REMIXDB_OK. A missing key is REMIXDB_NOTFOUND. Every call
// can set REMIXDB_INVALID (for example an argument is NULL), REMIXDB_NOMEM, REMIXDB_IO and REMIXDB_CORRUPT. A call that
// takes a key can also set REMIXDB_TOOBIG (the key is longer than REMIXDB_KV_MAX). The comments name all other statuses
// of a call. remixdb_iter_valid sets no status.
//
// Fork. A store belongs to the process that opened it. In a child made by fork, every call on that store, or on a ref,
// iterator or snapshot of it, does nothing and sets REMIXDB_INVALID; a call that closes something frees nothing. The
// child may open stores of its own. A child made inside one of the caller's functions, a merge function for example,
// must not return from that function.
//
// Cancellation. A thread that is cancelled in a call (pthread_cancel, deferred type) ends after the call. A caller's
// function that the library runs, the logger for example, is a part of the call.
#ifndef REMIXDB_H
#define REMIXDB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REMIXDB_VERSION_STRING "0.1.0"
#define REMIXDB_KV_MAX 65500u  // the largest klen + vlen, in bytes

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
  REMIXDB_ABORTED    // the caller's progress function gave the call up
};

// The status of this thread's last call. Calls that can neither fail nor miss leave it unchanged.
enum remixdb_status remixdb_errcode(void);
// The message of this thread's last call: the cause, the file's name, the system's reason. Empty when there is none,
// never NULL. It is valid until this thread's next call.
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

// ---- options

enum remixdb_compression { REMIXDB_COMPRESSION_NONE = 0, REMIXDB_COMPRESSION_ZSTD = 1 };

enum { REMIXDB_SYNC_NONE = 0, REMIXDB_SYNC_EACH = -1 };  // for remixdb_opts.sync; N > 0 means "every N ms"

// Call remixdb_opts_init, then change single fields. The store reads the strings while it opens and keeps none of them.
struct remixdb_opts {
  // sizeof(struct remixdb_opts) in the caller, so that the struct can grow without breaking programs.
  size_t size;
  // Block cache in MiB. 0: none, every read takes its blocks from the file. Default 256.
  size_t cache_mb;
  // One memtable in MiB; two may exist at a time. 0: the default, 256.
  size_t memtable_mb;
  // All files of the log on disk, in MiB. 0: twice the memtable, the default.
  size_t wal_mb;
  // New tables get a block of compressed keys, so that compaction reads less. Default true.
  bool ckeys;
  // REMIX indexes get an 8-bit hash tag per entry, so that gets are faster. Default true.
  bool tags;
  // Compaction threads, at most 64. 0: compaction runs in the caller's thread, deterministically. -1: as many as
  // worker_cores lists, else half of the cores, but 2 to 4 (1 on one core). Default -1.
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
  // zstd's level. 0: zstd's own default.
  int compression_level;
  // REMIXDB_SYNC_NONE (the default): only remixdb_sync syncs the log. REMIXDB_SYNC_EACH: every write waits for a sync.
  // N > 0: a sync begins at most N ms after a write, or when the sync before it ends.
  int sync;
  // Nothing on disk changes, and writes get REMIXDB_READONLY. Several processes may open a store with read_only at the
  // same time, but none that writes. Default false.
  bool read_only;
  // Makes the store when the directory holds none. Default true.
  bool create;
  // Refuses a store that exists, with REMIXDB_EXISTS. Default false.
  bool error_if_exists;
  // File descriptors for tables, at least 16. 0: the default, 1000. The store takes fewer when the process may not have
  // so many. The lock and the log take about ten more. On Linux each worker takes one, and all readers share one per
  // 128 descriptors of the process's limit, at most 32. A ref, an iterator or a snapshot takes none.
  uint32_t max_open_files;
  // Gets a line for each event that a user may want to know. Any thread may call it. Default NULL.
  void (*logger)(void *priv, const char *line);
  // The logger's first argument.
  void *logger_priv;
};

// Sets *o to the defaults. `size` is sizeof(*o). Does nothing when o is NULL.
void remixdb_opts_init(struct remixdb_opts *o, size_t size);

// ---- a store

// Opens the store in `dir`. Makes the store, and the last component of the path, when there is none. Recovery brings
// back every write that was synced. cache_size_mb 0: no block cache. mt_size_mb 0: the default memtable. The store uses
// `dir` until it closes: a process that changes its working directory gives an absolute path.
// NULL: REMIXDB_LOCKED, REMIXDB_VERSION, REMIXDB_NOSPACE. REMIXDB_CORRUPT: remixdb_repair rebuilds the store from what
// is readable. An existing store that cannot be read stays as it is.
struct xdb *remixdb_open(const char *dir, size_t cache_size_mb, size_t mt_size_mb, bool tags);
// The same without compressed-keys blocks and tags: takes the least room on disk.
struct xdb *remixdb_open_compact(const char *dir, size_t cache_size_mb, size_t mt_size_mb);
// The same with all options; NULL for `o` means the defaults. Also REMIXDB_EXISTS; REMIXDB_NOTFOUND: there is no store,
// and `create` is false.
struct xdb *remixdb_open_opts(const char *dir, const struct remixdb_opts *o);
// Syncs the log, ends the workers and frees the store. First unref all refs and release all snapshots. Waits until a
// memtable that is being compacted is in tables. Status REMIXDB_OK: the sync succeeded, and no error had stopped
// writes. Does nothing for NULL.
void remixdb_close(struct xdb *xdb);
// A ref for the calling thread. End it with remixdb_unref. NULL: REMIXDB_NOMEM.
struct xdb_ref *remixdb_ref(struct xdb *xdb);
// Ends the ref. First destroy its iterators. Does nothing for NULL.
void remixdb_unref(struct xdb_ref *ref);

// ---- writing and reading

// Sets the key's value. True: every reader sees the value at once; it is on disk after remixdb_sync. The call copies
// both buffers. It may wait for compaction when writes come faster than compaction can take them. Fails with
// REMIXDB_TOOBIG, REMIXDB_NOSPACE or REMIXDB_READONLY. With REMIXDB_SYNC_EACH true means that the value is on disk.
// False can then also mean that only the sync failed: readers see the value, but it may not be on disk.
bool remixdb_put(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen);
// Another name for remixdb_put.
bool remixdb_set(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen);
// Deletes the key. True whether or not the key existed. When the disk is full, the store still takes deletes, into room
// that it keeps for them, until that room is used up. A delete alone frees nothing: compaction does, once it finds room
// to write. Otherwise like remixdb_put.
bool remixdb_del(struct xdb_ref *ref, const void *kbuf, uint32_t klen);
// Whether the key exists. False: REMIXDB_NOTFOUND, or an error.
bool remixdb_probe(struct xdb_ref *ref, const void *kbuf, uint32_t klen);
// Copies the key's value to vbuf_out and its length to *vlen_out; NULL skips either. The buffer must have room for the
// value: REMIXDB_KV_MAX bytes always suffice. False: REMIXDB_NOTFOUND, or an error; the outputs are then unchanged.
bool remixdb_get(struct xdb_ref *ref, const void *kbuf, uint32_t klen, void *vbuf_out, uint32_t *vlen_out);
// Like remixdb_get, but copies at most vcap bytes. *vlen_out is always the value's full length. REMIXDB_TOOBIG: the
// value did not fit; its first vcap bytes are in the buffer.
bool remixdb_getn(struct xdb_ref *ref, const void *kbuf, uint32_t klen, void *vbuf, uint32_t vcap, uint32_t *vlen_out);

enum remixdb_merge_op { REMIXDB_MERGE_KEEP, REMIXDB_MERGE_PUT, REMIXDB_MERGE_DEL };
// Decides about a key. v0 is its value, valid during the call; NULL means that there is none, and an empty value is not
// NULL. REMIXDB_MERGE_KEEP changes nothing. REMIXDB_MERGE_PUT takes the new value from *v1 and *v1len; its bytes must
// stay until remixdb_merge returns.
typedef enum remixdb_merge_op (*remixdb_merge_fn)(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len,
                                                  void *priv);
// Atomic read-modify-write: no other write of the key comes between fn's argument and fn's decision. fn runs in this
// thread, while other writers of the key wait: keep it short, and call nothing of the store in it. If the memtable is
// switched meanwhile, fn runs again with the value of that moment, and its last decision counts. Otherwise like
// remixdb_put.
bool remixdb_merge(struct xdb_ref *ref, const void *kbuf, uint32_t klen, remixdb_merge_fn fn, void *priv);
// A merge function and its decision, for bindings to languages whose functions may end without a result, for example
// by an exception. The decision is REMIXDB_MERGE_KEEP until the function changes it.
struct remixdb_decision {
  void (*decide)(struct remixdb_decision *d);  // the function; it runs as a remixdb_merge_fn does
  void *priv;                                  // the caller's own
  const void *v0;                              // to the function: the key's value, as a remixdb_merge_fn gets it
  uint32_t v0len;                              // to the function
  uint32_t v1len;                              // from the function: the new value's length. 0 when a call begins
  const void *v1;  // from the function, for REMIXDB_MERGE_PUT: the new value, which must stay until the call of
                   // remixdb_merge_decide returns. NULL when a call of the function begins
  enum remixdb_merge_op op;  // from the function. REMIXDB_MERGE_KEEP when a call of the function begins
};
// Like remixdb_merge, with a function that leaves its decision in *d. *d is the caller's: it must stay, and no other
// thread may use it, until the call returns. REMIXDB_INVALID: d or its function is NULL, or the function left an
// unknown op; nothing is written.
bool remixdb_merge_decide(struct xdb_ref *ref, const void *kbuf, uint32_t klen, struct remixdb_decision *d);

// True: every earlier write, by any thread, is on disk. Threads that sync at the same time share one fsync.
// REMIXDB_NOSPACE: nothing is lost, try again. REMIXDB_IO: the store refuses writes until it is opened again.
bool remixdb_sync(struct xdb_ref *ref);

// ---- many keys at once

// Bytes of the caller's, for example one key of many.
struct remixdb_slice {
  const void *ptr;
  uint32_t len;
};
// Where a value goes.
struct remixdb_buf {
  void *ptr;     // the caller's; NULL with cap 0: the caller wants the length only
  uint32_t cap;  // bytes of room at ptr
  uint32_t len;  // out: the value's full length; 0 when the key is missing
};
// Looks up nr keys at one moment, in any order; a key may appear more than once. Much faster than nr calls of
// remixdb_get: the waits for memory and disk run side by side. Sets found[i] for every key. For each key that exists,
// values[i].len gets the value's length and values[i].ptr at most cap bytes of it. values may be NULL. Returns the
// number of keys found. The status afterwards:
//   REMIXDB_OK       every key was looked up, and every value with a buffer fits. Keys may be missing.
//   REMIXDB_TOOBIG   every key was looked up, but a value is longer than its buffer (len > cap, ptr not NULL). The
//                    buffer has its first cap bytes; found and len are right.
//   REMIXDB_INVALID  an argument is NULL, a key or a buffer is NULL and not empty, or a key is longer than
//                    REMIXDB_KV_MAX. Returns 0 and changes nothing.
//   another error    some keys could not be looked up; their found is false. The status is that of the first of them.
//                    All other keys are as they would be without the error.
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
// behind the other, keys_len bytes in all; key i has klens[i] bytes. Returns the number of keys found. The status
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

// ---- batches

// A batch belongs to no store. One thread uses it at a time.

// An empty batch. NULL: REMIXDB_NOMEM.
struct xdb_batch *remixdb_batch_create(void);
// Add an operation; the batch copies key and value. The last operation on a key counts. False: REMIXDB_TOOBIG,
// REMIXDB_NOMEM; the batch is then unchanged.
bool remixdb_batch_put(struct xdb_batch *b, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen);
bool remixdb_batch_del(struct xdb_batch *b, const void *kbuf, uint32_t klen);
enum remixdb_batch_op { REMIXDB_BATCH_PUT, REMIXDB_BATCH_DEL };
// Adds nr operations from one buffer, and copies them. ops[i] is an enum remixdb_batch_op; ops NULL: all are puts.
// `bytes` holds key and value of each operation, one behind the other, nbytes in all. Key i has klens[i] bytes, value i
// vlens[i], which is 0 for a delete. False: REMIXDB_TOOBIG (one operation), REMIXDB_NOMEM, REMIXDB_INVALID (for example
// the lengths do not add up to nbytes); the batch is then unchanged.
bool remixdb_batch_load(struct xdb_batch *b, size_t nr, const uint8_t *ops, const uint32_t *klens,
                        const uint32_t *vlens, const void *bytes, size_t nbytes);
// The number of operations; 0 for NULL.
size_t remixdb_batch_count(const struct xdb_batch *b);
// Removes all operations.
void remixdb_batch_clear(struct xdb_batch *b);
// Frees the batch. Does nothing for NULL.
void remixdb_batch_destroy(struct xdb_batch *b);
// Writes all of the batch or nothing: for every reader, and after a crash. The batch stays as it is and can be written
// again. REMIXDB_TOOBIG: the batch is larger than a memtable; nothing is written. Otherwise like remixdb_put.
bool remixdb_write(struct xdb_ref *ref, struct xdb_batch *b);

// ---- iterators

// An iterator shows the store at the moment of its last seek. It blocks no writer, and writers do not change it. While
// it stands on a key it keeps the memory and the files of its moment, until it seeks, reaches an end, parks or is
// destroyed.

// An iterator without a position. NULL: REMIXDB_NOMEM.
struct xdb_iter *remixdb_iter_create(struct xdb_ref *ref);

struct remixdb_range {  // from <= key < to; a NULL ptr is an open end
  struct remixdb_slice from, to;
};
struct remixdb_iter_opts {
  size_t size;  // of this struct, set by remixdb_iter_opts_init
  // Not supported yet, and refused with REMIXDB_INVALID when set: bounds, prefix, keys_only, snapshot, hold.
  struct remixdb_range bounds;
  struct remixdb_slice prefix;
  bool keys_only;
  // How many records you mean to read after each seek. Their blocks are then read from the disk together with the
  // seek's. 0: learned from the scans of this ref. It never changes a result.
  uint32_t expect;
  struct xdb_snapshot *snapshot;
  bool hold;
};
// Fills in the defaults; the options then work for later versions of the library, too.
void remixdb_iter_opts_init(struct remixdb_iter_opts *o, size_t size);
// As remixdb_iter_create. o may be NULL: the defaults. Copies the options. NULL: REMIXDB_NOMEM, REMIXDB_INVALID.
struct xdb_iter *remixdb_iter_create_opts(struct xdb_ref *ref, const struct remixdb_iter_opts *o);
// Moves to the first key >= k; (NULL, 0): to the first key of all. If there is no such key, or on an error, the
// iterator is not valid afterwards. The status tells which. This holds for all seeks.
void remixdb_iter_seek(struct xdb_iter *it, const void *kbuf, uint32_t klen);
// Moves to the last key.
void remixdb_iter_seek_last(struct xdb_iter *it);
// Moves to the last key <= k.
void remixdb_iter_seek_for_prev(struct xdb_iter *it, const void *kbuf, uint32_t klen);
// Whether the iterator stands on a key.
bool remixdb_iter_valid(struct xdb_iter *it);
// Copies the key, the value and their lengths; NULL skips a part. The buffers must have room: REMIXDB_KV_MAX bytes
// always suffice. False: REMIXDB_NOTFOUND, the iterator is not valid; or the error that ended it.
bool remixdb_iter_peek(struct xdb_iter *it, void *kbuf_out, uint32_t *klen_out, void *vbuf_out, uint32_t *vlen_out);
// Moves to the next key.
void remixdb_iter_skip1(struct xdb_iter *it);
// Moves nr times to the next key.
void remixdb_iter_skip(struct xdb_iter *it, uint32_t nr);
// Moves to the previous key. Before the first key the iterator is not valid. Steps in both directions may be mixed.
void remixdb_iter_prev(struct xdb_iter *it);
// The key, or the value, without a copy. The bytes belong to the store. They hold until the iterator moves, parks or is
// destroyed. NULL: REMIXDB_NOTFOUND, the iterator is not valid; or the error that ended it. An empty value is not NULL.
const void *remixdb_iter_key(struct xdb_iter *it, uint32_t *klen_out);
const void *remixdb_iter_value(struct xdb_iter *it, uint32_t *vlen_out);
// Gives back everything that the iterator holds. It needs a seek before further use.
void remixdb_iter_park(struct xdb_iter *it);
// Frees the iterator. Does nothing for NULL.
void remixdb_iter_destroy(struct xdb_iter *it);
// The reason why the iterator is not valid: REMIXDB_OK (an end, or no position yet), or the error.
enum remixdb_status remixdb_iter_status(struct xdb_iter *it);

// A page: room for many records that remixdb_iter_page copies at once. Set all to zero, then the fields for the call.
// All memory is the caller's, and may be different memory in each call.
struct remixdb_page {
  void *ptr;        // the bytes: first record's key, its value, next record's key, ... without gaps
  size_t cap;       // bytes of room at ptr
  uint32_t *klens;  // out: the keys' lengths; room for `max`
  uint32_t *vlens;  // out: the values' lengths; room for `max`. NULL: keys only
  uint32_t max;     // the most records of a call, at least 1
  bool back;        // true: towards smaller keys
  bool after;       // true: the page begins behind the record that the iterator stands on. Each call sets it for the
                    // next one. The caller sets it to false after another call has moved the iterator
  uint32_t nr;      // out: records copied
  size_t len;       // out: bytes copied
};
// Copies records from the iterator's position on, as many as fit, and moves the iterator over them. The next call with
// the same page goes on there. All pages show the moment of the last seek. True: at least one record was copied.
// False, with nr 0:
//   REMIXDB_NOTFOUND  the iterator is at its end, or has no position.
//   REMIXDB_TOOBIG    not even one record fits: klens[0] and vlens[0] are the lengths of the next one, and the iterator
//                     stands on it. (An iterator that is not valid had too long a key in its last seek.)
//   REMIXDB_INVALID   it, p or p->klens is NULL, p->max is 0, or p->ptr is NULL and p->cap is not 0. Nothing changes.
//   another error     as for remixdb_iter_peek and the steps. The next call tells of an error behind the first record.
// After a page the position is known again only after remixdb_iter_unread, a seek or a park: call one of them before a
// peek, a skip or a prev. Until then, or until REMIXDB_NOTFOUND, the iterator keeps the memory and files of its moment.
bool remixdb_iter_page(struct xdb_iter *it, struct remixdb_page *p);
// Gives the last nr records of the last page back: the iterator then stands on the first of them. nr 0: it stands
// behind the page's last record, or is not valid when there is no more. Sets p->after to false, p->nr and p->len to 0;
// so a second call with nr 0 changes nothing. False: REMIXDB_INVALID (it or p is NULL), or the error of a step, after
// which the iterator is not valid.
bool remixdb_iter_unread(struct xdb_iter *it, struct remixdb_page *p, uint32_t nr);

// ---- snapshots

// A snapshot of what the ref reads: all writes before the call, by any thread, and none after it. It copies nothing,
// but keeps the memory and the files of its moment. Release it before the store closes. NULL: REMIXDB_NOMEM.
struct xdb_snapshot *remixdb_snapshot(struct xdb_ref *ref);
// A ref that reads the snapshot. Every read call works on it; writes get REMIXDB_READONLY. Each thread makes its own,
// and ends it with remixdb_unref. NULL: REMIXDB_NOMEM.
struct xdb_ref *remixdb_snapshot_ref(struct xdb_snapshot *s);
// Frees the snapshot and what only it kept. First unref its refs. Does nothing for NULL.
void remixdb_snapshot_release(struct xdb_snapshot *s);

// ---- administration

// Brings the memtable into tables, and waits for that. Fails with REMIXDB_NOSPACE. REMIXDB_READONLY, also for a
// snapshot's ref.
bool remixdb_flush(struct xdb_ref *ref);
// Brings all earlier writes into the fewest tables, without deleted keys and overwritten values, and waits for that. It
// works on one part of the store at a time, and needs room on disk for that part. Writers go on meanwhile. Otherwise
// like remixdb_flush.
bool remixdb_compact(struct xdb_ref *ref);
// Makes `dir` a store of its own, with the records that the ref reads at this moment. For a snapshot's ref these are
// the records of the snapshot. The call links the tables where the file system can, else copies them, and writes the
// memtables to a new log. All of it is durable when the call returns true. Writers go on meanwhile. REMIXDB_EXISTS:
// `dir` holds a store; REMIXDB_LOCKED: that store is open; REMIXDB_NOSPACE. A failure removes what the call made, but
// not a directory that was there. If the process dies in the call, `dir` does not open (REMIXDB_CORRUPT).
// remixdb_destroy removes the rest; another checkpoint to `dir` replaces it.
bool remixdb_checkpoint(struct xdb_ref *ref, const char *dir);
// Reads every file, past the cache, and checks every checksum, order and index. It reads the durable part of the log,
// and nothing with read_only, because opening has read it. It goes on after damage: the logger gets a line for each
// damaged file; status and message are those of the first. An index whose table does not open, and the log behind its
// first damage, stay unread. Writers go on meanwhile. Fails with REMIXDB_CORRUPT. REMIXDB_NOMEM: there was no damage,
// but memory or descriptors did not suffice to read everything.
bool remixdb_verify(struct xdb_ref *ref);
// Rebuilds the damaged store in `dir` with the newest readable version of every key. The store must not be open. All
// data is written again, so there must be room for a second copy. The old files, damaged or not, go to dir/lost.N with
// a REPORT that names each loss: file, offset, and sequence numbers where they are known. True, REMIXDB_OK: the store
// opens again. remixdb_errmsg is then empty if no loss is known. Else it has the directory's name, LOST, and the sum of
// the losses. After an interrupted repair the store does not open: call this function again, which reports the same.
// Fails with REMIXDB_NOTFOUND, REMIXDB_LOCKED or REMIXDB_VERSION. REMIXDB_NOSPACE: nothing has changed. REMIXDB_EXISTS:
// there are a thousand lost.N, remove some.
bool remixdb_repair(const char *dir);
// Removes the store in `dir`, also a damaged one: the store's own files, then the directory if it is empty and `dir` is
// not a symbolic link. Files of other programs may have the same names, so the call removes nothing unless the content
// of some file is a store's. REMIXDB_NOTFOUND: there is no store. REMIXDB_LOCKED: the store is open.
bool remixdb_destroy(const char *dir);

// Progress of a long call. `what` is "flush", "compact", "checkpoint" or "verify". done and total have a unit of the
// call's own; total is an estimate, and 0 while it is unknown. Returning false gives the call up: it fails with
// REMIXDB_ABORTED.
typedef bool (*remixdb_progress_fn)(void *priv, const char *what, uint64_t done, uint64_t total);
// From now on fn follows remixdb_flush, remixdb_compact, remixdb_checkpoint and remixdb_verify on this ref; NULL, the
// default, ends that. fn runs in the thread of the call. It runs when the call begins, and then about every MiB read or
// copied, or every 50 ms of waiting. At the end of a call that succeeds it runs once more, with done == total; its
// result does not matter then. done never decreases. fn may take long, and may use the store through other refs: the
// call holds no lock meanwhile, and no thread waits for it. With workers = 0 there are no reports during a round. If a
// flush or compaction is given up, its round goes on in the background, and finished work stays. If a checkpoint is
// given up, nothing stays. remixdb_progress itself sets no status.
void remixdb_progress(struct xdb_ref *ref, remixdb_progress_fn fn, void *priv);

// ---- figures and memory

// The store's figures as JSON text: entries, bytes written, cache misses, memory and more (docs/FIGURES.md). Free the
// text with remixdb_free. NULL: REMIXDB_NOMEM.
char *remixdb_stats(struct xdb *xdb);
// Frees memory that a call of this library returned. Does nothing for NULL.
void remixdb_free(void *p);

#ifdef __cplusplus
}
#endif
#endif
