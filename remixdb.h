// SPDX-License-Identifier: Apache-2.0
//
// RemixDB: an embedded, ordered key-value store. This is the only header a program needs; link with -lremixdb.
//
// Threads. A `struct xdb` may be used by any number of threads at once. A `struct xdb_ref` is one thread's view of
// it: make one per thread, and do not use one ref, or the iterators made from it, in two threads at the same time
// (handing it from one thread to another is fine). Close in the order: iterators, refs, store. A store belongs to the
// process that opened it: in a child made by fork every call with something of the store does nothing and sets
// REMIXDB_INVALID, those that end something, too (what they would free stays). A child made inside a function that the
// library calls must not return from it. A child may open stores of its own. A thread that is cancelled
// (pthread_cancel, of the deferred type) in a call ends after it; a function that the library calls, the logger for
// one, is a part of the call.
//
// Keys and values are byte strings. Keys are ordered as memcmp does, a shorter key before a longer one that it
// prefixes. A key of length 0 is legal. klen + vlen is at most REMIXDB_KV_MAX.
//
// Errors. A call that returns NULL or false has set the calling thread's status, remixdb_errcode(), and a message,
// remixdb_errmsg(); but remixdb_iter_valid sets none. A call that succeeds sets it to REMIXDB_OK. "No such key" is
// REMIXDB_NOTFOUND. Every call can set REMIXDB_INVALID (a NULL pointer, an empty name), REMIXDB_NOMEM, REMIXDB_IO and
// REMIXDB_CORRUPT, and one that is given a key REMIXDB_TOOBIG (it is longer than REMIXDB_KV_MAX); the comments name
// what else each one sets.
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

enum remixdb_status {
  REMIXDB_OK = 0,
  REMIXDB_NOTFOUND,  // no such key
  REMIXDB_INVALID,   // an argument is not valid
  REMIXDB_TOOBIG,    // a key, a value or a result is larger than what may hold it
  REMIXDB_NOMEM,     // memory, or a file descriptor, could not be had
  REMIXDB_IO,        // a system call failed: the message begins with the system's reason and names the file
  REMIXDB_NOSPACE,   // the disk is full; writes go on when there is room again
  REMIXDB_CORRUPT,   // a file of the store holds what it cannot hold; the message has the file and the offset
  REMIXDB_LOCKED,    // another process, or another open in this one, holds the store
  REMIXDB_READONLY,  // a write to a store opened with read_only, or to a snapshot
  REMIXDB_VERSION,   // the store was written in a format that this library does not know
  REMIXDB_EXISTS,    // error_if_exists was given and the store exists
  REMIXDB_ABORTED    // the call was given up, because the function of remixdb_progress said so
};

// The status of this thread's last remixdb call (calls that can neither fail nor miss do not change it).
enum remixdb_status remixdb_errcode(void);
// What happened, with file name and the system's reason; "" when nothing did. Never NULL. Valid until this thread's
// next call.
const char *remixdb_errmsg(void);
// The name of a status in a few words. Never NULL, static.
const char *remixdb_strerror(enum remixdb_status s);
// "MAJOR.MINOR.PATCH" of the library that runs. Static.
const char *remixdb_version(void);

struct xdb;       // a store
struct xdb_ref;   // one thread's view of it
struct xdb_iter;  // an iterator

// ---- options

enum remixdb_compression { REMIXDB_COMPRESSION_NONE = 0, REMIXDB_COMPRESSION_ZSTD = 1 };

enum { REMIXDB_SYNC_NONE = 0, REMIXDB_SYNC_EACH = -1 };  // for remixdb_opts.sync; N > 0 is "every N ms"

// Fill in with remixdb_opts_init, then change what is to differ. The strings are read while the store is opened, and
// not kept.
struct remixdb_opts {
  size_t size;         // sizeof(struct remixdb_opts) of the caller: lets the struct grow without breaking programs
  size_t cache_mb;     // block cache, MiB; 0 = none, blocks are read from the file each time. Default 256
  size_t memtable_mb;  // one memtable, MiB; there may be two. 0 = the default, 256
  size_t wal_mb;       // what all files of the log take on disk, MiB; 0 = twice the memtable (the default)
  bool ckeys;          // new tables hold a compressed-keys block, which makes compaction read less. Default true
  bool tags;           // REMIX indexes hold an 8-bit hash tag per entry, which makes get faster. Default true
  // Compaction threads; at most 64. 0 = compaction runs in the caller's thread, deterministically. -1 = auto (default):
  // as many as worker_cores lists, else half of the cores, but 2 to 4 (1 on one core)
  int workers;
  const char *worker_cores;  // "auto" (default; also NULL: the last ones, half of them at most), "none" (not pinned),
                             // or a list such as "0,2,4-7"
  const char *io;  // "auto" (default; also NULL), "uring", "aio", "sync"; REMIXDB_IO in the environment overrides it
  bool direct_io;  // tables bypass the system's page cache. Default false
  enum remixdb_compression compression;  // of new tables' data blocks. Default none
  int compression_level;                 // zstd's level; 0 = zstd's default
  int sync;  // REMIXDB_SYNC_NONE (default), REMIXDB_SYNC_EACH, or N > 0: a sync begins at most N ms after a write, or
             // when the one before ends
  bool read_only;  // nothing on disk is changed; writes get REMIXDB_READONLY; several may have it open so, and nobody
                   // else. Default false
  bool create;     // make the store when the directory holds none. Default true
  bool error_if_exists;  // REMIXDB_EXISTS when it is there. Default false
  // Descriptors the store may hold for tables; 0 = the default, 1000; at least 16. Fewer where the process may have
  // few. Beside them it has about ten for the lock and the log, and on Linux one for each worker, and one for each 128
  // that the process may have, but at most 32, for all that read from disk. A ref, an iterator or a snapshot takes none
  uint32_t max_open_files;
  void (*logger)(void *priv,
                 const char *line);  // called with a line for what a user may want to know; any thread. Default NULL
  void *logger_priv;
};

// Fills `o` with the defaults; `size` is sizeof(*o). Does nothing when o is NULL.
void remixdb_opts_init(struct remixdb_opts *o, size_t size);

// ---- a store

// Opens the store in `dir`, making the directory (its last component) and the store when there is none. Runs recovery:
// everything acknowledged as synced is there. Files are opened by this name as long as the store is open: a process
// that changes its working directory meanwhile gives an absolute one. cache_size_mb 0 means no block cache; mt_size_mb
// 0 takes the default. NULL on failure: REMIXDB_LOCKED, REMIXDB_VERSION, REMIXDB_CORRUPT, REMIXDB_NOSPACE, REMIXDB_IO,
// ... Nothing on disk is then changed when an existing store could not be read; remixdb_repair makes one of what can be
// read of a corrupt one.
struct xdb *remixdb_open(const char *dir, size_t cache_size_mb, size_t mt_size_mb, bool tags);
// The same without compressed-keys blocks and tags: smallest on disk.
struct xdb *remixdb_open_compact(const char *dir, size_t cache_size_mb, size_t mt_size_mb);
// The same with all options; NULL for `o` takes the defaults. Also REMIXDB_EXISTS, REMIXDB_NOTFOUND (create is false
// and there is none).
struct xdb *remixdb_open_opts(const char *dir, const struct remixdb_opts *o);
// Syncs the log, ends the workers, closes. All refs must have been unref'd, all snapshots released. NULL is allowed.
// Blocks until the memtable that is being compacted, if there is one, is in tables. The status: OK when the last sync
// succeeded and nothing had stopped writes before.
void remixdb_close(struct xdb *xdb);
// A view of the store for the calling thread. NULL: REMIXDB_NOMEM.
struct xdb_ref *remixdb_ref(struct xdb *xdb);
// Ends it; its iterators must have been destroyed. NULL is allowed.
void remixdb_unref(struct xdb_ref *ref);

// ---- writing and reading

// Sets the key's value. True when accepted: visible to every reader at once, on disk after remixdb_sync (or at once
// with REMIXDB_SYNC_EACH). May wait for compaction when writes come faster than it. REMIXDB_TOOBIG,
// REMIXDB_NOSPACE, REMIXDB_READONLY. The buffers are the caller's and not kept. With REMIXDB_SYNC_EACH it can also be
// that the write was accepted, and its sync failed: every reader sees it, but it is not known to be on disk.
bool remixdb_put(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen);
// Another name for remixdb_put.
bool remixdb_set(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen);
// Deletes the key; true when accepted, whether or not it existed. Otherwise as remixdb_put; but when the disk is full
// deletes are still taken, into room that is kept for them while the store is open, until that is used up. They make no
// room by themselves: what they hide goes when compaction finds room to write anew.
bool remixdb_del(struct xdb_ref *ref, const void *kbuf, uint32_t klen);
// Whether the key exists. False: REMIXDB_NOTFOUND, or an error.
bool remixdb_probe(struct xdb_ref *ref, const void *kbuf, uint32_t klen);
// Copies the key's value to vbuf_out, which must have room for it (REMIXDB_KV_MAX bytes always suffice), and its length
// to *vlen_out. NULL skips either. False: REMIXDB_NOTFOUND, or an error; the outputs are then unchanged.
bool remixdb_get(struct xdb_ref *ref, const void *kbuf, uint32_t klen, void *vbuf_out, uint32_t *vlen_out);
// The same, copying at most vcap bytes; *vlen_out is the full length. False with REMIXDB_TOOBIG when it did not fit
// (the first vcap bytes are then copied and *vlen_out is set).
bool remixdb_getn(struct xdb_ref *ref, const void *kbuf, uint32_t klen, void *vbuf, uint32_t vcap, uint32_t *vlen_out);
enum remixdb_merge_op { REMIXDB_MERGE_KEEP, REMIXDB_MERGE_PUT, REMIXDB_MERGE_DEL };
// What to do with a key: v0 is its value (NULL: there is none; an empty value is not NULL), valid during the call. For
// REMIXDB_MERGE_PUT *v1 and *v1len are the new value, which must stay until remixdb_merge returns. KEEP leaves things
// as they are.
typedef enum remixdb_merge_op (*remixdb_merge_fn)(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len,
                                                  void *priv);
// Atomic read-modify-write: no other write of the key comes between what fn is given and what it decides. fn is called
// in this thread while other writers of the key wait: it should be short, and it must not call the store. It is called
// once, or again with the newer value when the memtable was changed at that very moment; the last call counts.
// Otherwise as remixdb_put.
bool remixdb_merge(struct xdb_ref *ref, const void *kbuf, uint32_t klen, remixdb_merge_fn fn, void *priv);
// What a merge's function decides, in memory of the caller's. It is for bindings to languages whose functions may end
// without a result, by an exception for instance: what such a function leaves here counts, and it is REMIXDB_MERGE_KEEP
// until the function says otherwise.
struct remixdb_decision {
  void (*decide)(struct remixdb_decision *d);  // the function; called as a remixdb_merge_fn is
  void *priv;                                  // the caller's own
  const void *v0;                              // for the function: the key's value, as a remixdb_merge_fn gets it
  uint32_t v0len;
  uint32_t v1len;  // from the function, with op REMIXDB_MERGE_PUT: the new value, which must stay until
                   // remixdb_merge_decide returns
  const void *v1;
  enum remixdb_merge_op op;  // from the function: what to do. Each call of the function begins with REMIXDB_MERGE_KEEP,
                             // v1 NULL and v1len 0
};
// The same as remixdb_merge, with a function that puts its decision into *d. REMIXDB_INVALID: d or its function is
// NULL, or op is none of the three; nothing is written. *d is the caller's and must stay until the call returns; no
// other thread may use it meanwhile.
bool remixdb_merge_decide(struct xdb_ref *ref, const void *kbuf, uint32_t klen, struct remixdb_decision *d);

// A key of many, and where its value goes. The bytes are the caller's.
struct remixdb_slice {
  const void *ptr;
  uint32_t len;
};
struct remixdb_buf {
  void *ptr;     // NULL (with cap 0): only the length is asked for
  uint32_t cap;  // bytes there is room for
  uint32_t len;  // out: the value's full length; 0 when it was not found
};
// Looks up nr keys (any number, in any order, a key more than once if need be), all at one moment: what it delivers is
// what the store held then, whatever is written meanwhile. Much faster than as many calls of remixdb_get, because the
// keys wait for memory and for the disk together. found[i] becomes whether key i is there; values[i] then gets its
// length, and min(len, cap) bytes of it at ptr. values may be NULL: then only found is filled. Returns how many keys
// were found. The status afterwards:
//   REMIXDB_OK       every key was looked up, and every value that has a buffer fits; some keys may be missing
//   REMIXDB_TOOBIG   every key was looked up, but some value is longer than its buffer (len > cap, ptr not NULL): its
//   first cap bytes
//                    were copied, found and len are right
//   REMIXDB_INVALID  ref, keys or found is NULL (with nr > 0), a key's ptr is NULL and its len is not 0, a key is
//   longer than
//                    REMIXDB_KV_MAX, or a value's ptr is NULL and its cap is not 0: nothing was looked up, 0 is
//                    returned, and found and values are unchanged
//   another error    some keys could not be looked up (REMIXDB_IO, REMIXDB_CORRUPT, REMIXDB_NOMEM: the first that was
//   met). Their found is false.
//                    All others are as they would be without it, so that found true is true
size_t remixdb_multi_get(struct xdb_ref *ref, size_t nr, const struct remixdb_slice *keys, struct remixdb_buf *values,
                         bool *found);

// Where remixdb_multi_get_packed puts the values of many keys: in one buffer. All memory is the caller's.
struct remixdb_packed {
  void *
      ptr;  // the buffer. Value i becomes the lens[i] bytes at ptr + offs[i]; the values lie in any order, without gaps
  size_t cap;      // bytes of the buffer; those beyond UINT32_MAX are not used
  uint32_t *offs;  // one per key, out: the offset of the value in the buffer; 0 when the value is not there
  uint32_t *lens;  // one per key, out: the length of the value; 0 when it was not found
  bool *found;     // one per key, out: whether the key is there
  size_t len;      // out: bytes of all the values that were found, also of those that did not fit
};
// The same as remixdb_multi_get for callers to whom an array of structs is dear, as bindings to other languages are:
// key i is the klens[i] bytes that follow those of key i - 1 in `keys`, which has keys_len bytes in all. Returns how
// many keys were found. The status afterwards:
//   REMIXDB_OK       every key was looked up, and every value is in the buffer
//   REMIXDB_TOOBIG   every key was looked up, but the buffer is too small: found, lens and out->len are right, and
//   which values are in the buffer is not told.
//                    The next call needs a buffer of out->len bytes, or more when the store has changed since
//   REMIXDB_INVALID  ref or out is NULL; or with nr > 0 keys (unless keys_len is 0), klens, offs, lens or found is
//   NULL; out->ptr is NULL and out->cap is not 0;
//                    the lengths of the keys do not add up to keys_len, or a key is longer than REMIXDB_KV_MAX: nothing
//                    was looked up, 0 is returned, and *out is unchanged
//   another error    as of remixdb_multi_get
size_t remixdb_multi_get_packed(struct xdb_ref *ref, size_t nr, const uint32_t *klens, const void *keys,
                                size_t keys_len, struct remixdb_packed *out);

// When it returns true everything put before it, by any thread, is on disk. Threads that sync at the same time share
// one fsync. REMIXDB_NOSPACE: nothing is lost, it can be tried again. REMIXDB_IO: the store takes no more writes until
// it is opened again.
bool remixdb_sync(struct xdb_ref *ref);

// ---- batches

struct xdb_batch;  // puts and deletes gathered to be written as one; belongs to no store, used by one thread at a time

// NULL: REMIXDB_NOMEM.
struct xdb_batch *remixdb_batch_create(void);
// Add to the batch; key and value are copied. False: REMIXDB_TOOBIG, REMIXDB_NOMEM; the batch is then as it was. Of
// operations on the same key the last one counts.
bool remixdb_batch_put(struct xdb_batch *b, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen);
bool remixdb_batch_del(struct xdb_batch *b, const void *kbuf, uint32_t klen);
enum remixdb_batch_op { REMIXDB_BATCH_PUT, REMIXDB_BATCH_DEL };
// Adds many operations that lie in one buffer. Operation i is ops[i], an enum remixdb_batch_op (ops NULL: all are
// puts). Its key has klens[i] bytes, its value vlens[i] (0 for REMIXDB_BATCH_DEL); they lie in `bytes`, the value
// behind its key, and behind those of operation i - 1, nbytes in all. Everything is copied. False: REMIXDB_TOOBIG (of
// one operation), REMIXDB_NOMEM, REMIXDB_INVALID (also: the lengths do not add up to nbytes); the batch is then as it
// was.
bool remixdb_batch_load(struct xdb_batch *b, size_t nr, const uint8_t *ops, const uint32_t *klens,
                        const uint32_t *vlens, const void *bytes, size_t nbytes);
// How many operations it holds; 0 for NULL.
size_t remixdb_batch_count(const struct xdb_batch *b);
// Empties it.
void remixdb_batch_clear(struct xdb_batch *b);
// NULL is allowed.
void remixdb_batch_destroy(struct xdb_batch *b);
// Writes all of the batch or none of it, to every reader and after a crash. The batch is not changed and can be written
// again. REMIXDB_TOOBIG: it is larger than a memtable, nothing is written. Otherwise as remixdb_put.
bool remixdb_write(struct xdb_ref *ref, struct xdb_batch *b);

// ---- iterators

// An iterator over the store, not yet positioned. What it sees is the store at its last seek: it never blocks writers
// and is never changed by them. An iterator standing on a key keeps the memory and the files of that moment until it
// seeks, comes to the end, parks or is destroyed. NULL: REMIXDB_NOMEM.
struct xdb_iter *remixdb_iter_create(struct xdb_ref *ref);
// To the first key >= k; (NULL, 0) is the first key. Not valid afterwards when there is none, or on an error (the
// status tells).
void remixdb_iter_seek(struct xdb_iter *it, const void *kbuf, uint32_t klen);
// To the last key.
void remixdb_iter_seek_last(struct xdb_iter *it);
// To the last key <= k.
void remixdb_iter_seek_for_prev(struct xdb_iter *it, const void *kbuf, uint32_t klen);
// Whether it stands on a key.
bool remixdb_iter_valid(struct xdb_iter *it);
// Copies the key and the value; a NULL buffer (or length) skips that part. False when not valid: REMIXDB_NOTFOUND, or
// the error that ended it. The buffers must have room (REMIXDB_KV_MAX bytes always suffice).
bool remixdb_iter_peek(struct xdb_iter *it, void *kbuf_out, uint32_t *klen_out, void *vbuf_out, uint32_t *vlen_out);
// To the next key.
void remixdb_iter_skip1(struct xdb_iter *it);
// The same nr times.
void remixdb_iter_skip(struct xdb_iter *it, uint32_t nr);
// To the previous key; before the first it becomes not valid. Steps in both directions may be mixed.
void remixdb_iter_prev(struct xdb_iter *it);
// The key and the value it stands on, without copying: the bytes are the store's and hold until the iterator moves,
// parks or is destroyed. NULL when it is not valid (REMIXDB_NOTFOUND, or the error that ended it); an empty one is not
// NULL.
const void *remixdb_iter_key(struct xdb_iter *it, uint32_t *klen_out);
const void *remixdb_iter_value(struct xdb_iter *it, uint32_t *vlen_out);

// A page: records that remixdb_iter_page copies at once. Set it to zeros, then the fields for the call. All memory is
// the caller's and may be another for each call.
struct remixdb_page {
  void *ptr;        // where the bytes go: the first record's key, its value, the next one's key, ... without gaps
  size_t cap;       // bytes there is room for
  uint32_t *klens;  // room for `max` lengths, out: those of the keys
  uint32_t *vlens;  // the same of the values; NULL: keys only
  uint32_t max;     // records there is room for, at least 1
  bool back;        // towards smaller keys
  bool after;   // in and out: the page begins behind the record that the iterator stands on. A call leaves it as the
                // next one needs it; the caller sets it to false only after moving the iterator by another call
  uint32_t nr;  // out: records copied
  size_t len;   // out: bytes copied
};
// Copies records from where the iterator stands, as many as there is room for, and moves the iterator over them. Called
// again with the same page it goes on. All pages are of the moment of the iterator's last seek. True: at least one
// record was copied. False, with nr 0:
//   REMIXDB_NOTFOUND  the iterator has come to its end, or stands nowhere
//   REMIXDB_TOOBIG    not even one record fits: klens[0] and vlens[0] say what it needs, and the iterator stands on it.
//   (One that is not valid was given too long
//                     a key by its last seek.)
//   REMIXDB_INVALID   it, p or p->klens is NULL, p->max is 0, or p->ptr is NULL and p->cap is not 0: the iterator has
//   not moved, *p is unchanged another error     as of remixdb_iter_peek or the step that failed. An error behind the
//   first record is told by the next call
// Where the iterator stands then is known again after remixdb_iter_unread, a seek or a park: before a peek, a skip or a
// prev call one of them. Until the call that says REMIXDB_NOTFOUND, or one of these, it keeps the memory and the files
// of its moment.
bool remixdb_iter_page(struct xdb_iter *it, struct remixdb_page *p);
// Gives back the last nr records that were copied by way of p, at most those of the last page: moves the iterator to
// the first of them, or with nr 0 to the record behind all of them (where there is none, it is not valid). p->after
// becomes false, p->nr and p->len 0; so a second call with nr 0 changes nothing. False: REMIXDB_INVALID (it or p is
// NULL), or an error of a step, after which the iterator is not valid.
bool remixdb_iter_unread(struct xdb_iter *it, struct remixdb_page *p, uint32_t nr);
// Releases what it pins; it needs a seek before further use.
void remixdb_iter_park(struct xdb_iter *it);
// NULL is allowed.
void remixdb_iter_destroy(struct xdb_iter *it);
// Why it is not valid: REMIXDB_OK (the end, or not positioned) or the error.
enum remixdb_status remixdb_iter_status(struct xdb_iter *it);

// ---- snapshots

struct xdb_snapshot;  // the store as it was at one moment

// A snapshot of what the ref reads: everything written before the call, by any thread, and nothing written after. It
// costs no copy; while it lives it keeps the memory and the files of that moment. NULL: REMIXDB_NOMEM. It must be
// released before the store is closed.
struct xdb_snapshot *remixdb_snapshot(struct xdb_ref *ref);
// A ref that reads the snapshot: every read call works on it and answers the same as long as it lives; writes get
// REMIXDB_READONLY. One per thread, as of the store; ended with remixdb_unref. NULL: REMIXDB_NOMEM.
struct xdb_ref *remixdb_snapshot_ref(struct xdb_snapshot *s);
// After its refs are unref'd. What only it held is freed. NULL is allowed.
void remixdb_snapshot_release(struct xdb_snapshot *s);

// ---- administration

// Brings what is in memory into tables, and waits for it. REMIXDB_NOSPACE, REMIXDB_READONLY (also for a snapshot's
// ref).
bool remixdb_flush(struct xdb_ref *ref);
// Brings all that was written before into the fewest tables each partition can have, without deleted keys and
// overwritten values, and waits for it. Takes room on disk for a part of the store at a time. Writers go on meanwhile.
// Otherwise as remixdb_flush.
bool remixdb_compact(struct xdb_ref *ref);
// Makes `dir` a store of its own that holds what the ref reads at this moment (of a snapshot's ref: what the snapshot
// holds). Tables are hard links where that is possible, else copies; what is in memory is written to a log of its own.
// dir must not exist, or hold no store (REMIXDB_EXISTS; REMIXDB_LOCKED when it is open). All of it is durable when it
// returns true; on failure nothing is left, but a directory that was there stays. What is left of a checkpoint whose
// process died is not opened (REMIXDB_CORRUPT): remixdb_destroy removes it, another checkpoint to the same directory
// replaces it. Writers go on meanwhile. REMIXDB_NOSPACE.
bool remixdb_checkpoint(struct xdb_ref *ref, const char *dir);
// Reads everything from disk, past the cache, and checks every checksum, order and index (of the log what is durable;
// not with read_only, whose opening has read it). Goes on after damage: the logger gets a line for each file that is
// found damaged (an index whose table cannot be opened is not looked at, nor the log behind its first damage), and the
// status and message are of the first. Writers go on meanwhile. REMIXDB_CORRUPT; REMIXDB_NOMEM: no damage was found,
// but for want of memory or descriptors not all could be read.
bool remixdb_verify(struct xdb_ref *ref);
// Makes a store of what can still be read of the damaged one in dir, which must not be open: the newest readable
// version of every key. Everything is read and written anew, so there must be room for a second copy. What was there is
// put aside in dir/lost.N, with a REPORT that names each loss: file, offset, sequence numbers as far as they are known.
// What was not even damaged is put aside too. True, with REMIXDB_OK, when the store is there again, also when something
// was lost: then remixdb_errmsg says so, in words that begin with LOST behind the directory's name; it is empty when
// everything that the store was known to hold is there. An interrupted repair is ended by calling it again, and tells
// the same; until then the store is not opened. REMIXDB_NOTFOUND, REMIXDB_LOCKED, REMIXDB_NOSPACE (nothing has
// changed), REMIXDB_VERSION, REMIXDB_EXISTS (there are a thousand lost.N: remove some).
bool remixdb_repair(const char *dir);
// Removes the store in dir, also a damaged one: its own files only, and the directory when nothing else is in it and
// `dir` is no symbolic link. REMIXDB_NOTFOUND when there is none: other programs' files may have names like a store's,
// and where no file is one of ours by what is in it nothing is touched. REMIXDB_LOCKED when it is open.
bool remixdb_destroy(const char *dir);

// How far a long call has come: `what` is its name ("flush", "compact", "checkpoint" or "verify"), done of total, in a
// unit of the call's own; total is an estimate, and 0 while it is not known. False gives the call up, which then fails
// with REMIXDB_ABORTED.
typedef bool (*remixdb_progress_fn)(void *priv, const char *what, uint64_t done, uint64_t total);
// From now on fn is told how far remixdb_flush, remixdb_compact, remixdb_checkpoint and remixdb_verify on this ref have
// come; NULL (the default) ends that. It is called in the thread of the call, at its beginning, about every MiB of what
// is read or copied or every 50 ms of waiting, and at last with done == total when the call has succeeded: then what it
// returns does not matter. done never goes back. fn may take its time and may use the store through other refs, but not
// through this one; no lock is held meanwhile, and nobody waits for it. What a call that is given up leaves: flush and
// compact end the round that they wait for in the background, and what was compacted stays so; checkpoint leaves
// nothing, as on any failure. With workers = 0 a round runs inside the call, without reports. Sets no status.
void remixdb_progress(struct xdb_ref *ref, remixdb_progress_fn fn, void *priv);

// ---- memory handed out, figures

// The store's figures as JSON text: entries, bytes written by log, tables and REMIX, cache misses, memory, engine, ...
// (docs/FIGURES.md). The caller frees it with remixdb_free. NULL: REMIXDB_NOMEM.
char *remixdb_stats(struct xdb *xdb);
void remixdb_free(void *p);

#ifdef __cplusplus
}
#endif
#endif
