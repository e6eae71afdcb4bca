// SPDX-License-Identifier: Apache-2.0
#include "value/write.h"

#include <assert.h>
#include <zstd_errors.h>

#include "base/zmem.h"

struct value_fd {
  int fd;
  bool held;
};

#define PIECE (1u << 20)  // bytes of compressed chunks that are written at once
#define OUT (4u << 20)    // bytes of a batch that the system is told to write out at a time

void value_log_init(struct value_log *l, struct value_ctx *c) {
  pthread_mutex_init(&l->sync_lock, NULL);
  l->ctx = c;
  l->full = VALUE_FILE;
}

void value_log_fini(struct value_log *l) {
  if (!l->ctx) return;
  for (struct value_file *f = l->files, *next; f; f = next) {
    next = f->next;
    value_file_unref(f);
  }
  (void)ZSTD_freeCCtx(l->zstd);
  pthread_mutex_destroy(&l->sync_lock);
  l->ctx = NULL;
}

enum remixdb_status value_log_error(struct value_log *l) {
  if (likely(atomic_load_explicit(&l->failed, memory_order_relaxed) == 0)) return REMIXDB_OK;
  lib_lock(&l->lock);
  const enum remixdb_status s = err_raise(&l->error);
  lib_unlock(&l->lock);
  return s;
}

// Makes s, with the thread's message, the sticky error. Returns the sticky error.
static enum remixdb_status fail(struct value_log *l, enum remixdb_status s) {
  lib_lock(&l->lock);
  if (atomic_load_explicit(&l->failed, memory_order_relaxed) == 0) {
    err_save(&l->error, s);
    atomic_store_explicit(&l->failed, (uint32_t)s, memory_order_relaxed);
  }
  s = err_raise(&l->error);
  lib_unlock(&l->lock);
  return s;
}

// ---- descriptors

// Takes a file's descriptor and its place of the pool, for shut. The log's lock is held, or nobody else has the file.
static struct value_fd take_fd(struct value_file *f) {
  const struct value_fd fd = {f->fd, f->held};
  f->fd = -1;
  f->held = false;
  return fd;
}

static void shut(const struct value_log *l, struct value_fd fd) {
  const struct sst_ctx *const x = l->ctx->sst;
  env_close_quiet(x->env, fd.fd);
  if (fd.held) fdpool_unhold(x->fds, 1);
}

// Takes a place of the pool for the file's descriptor. False: there is none. The caller has a reference.
static bool hold(struct value_log *l, struct value_file *f) {
  struct fdpool *const p = l->ctx->sst->fds;
  if (!fdpool_hold(p, 1)) return false;
  lib_lock(&l->lock);
  const bool needed = f->fd >= 0 && !f->held;
  if (needed) f->held = true;
  lib_unlock(&l->lock);
  if (!needed) fdpool_unhold(p, 1);
  return true;
}

// Tells whether the file takes no more bytes, and its descriptor has no place. The log's lock is held.
static bool lingers(const struct value_file *f) { return f->full && f->writers == 0 && f->fd >= 0 && !f->held; }

// Such a file needs its descriptor for the next sync only. It gets a place until then. If the pool has none, this
// thread syncs, so that there are never many of them; syncs: it may do so. The caller has a reference, and no lock.
// Fails with the sticky error if the sync fails.
static enum remixdb_status linger(struct value_log *l, struct value_file *f, bool syncs) {
  struct value_fd fd = {-1, false};
  lib_lock(&l->lock);
  const bool open = lingers(f), dirty = atomic_load_explicit(&f->dirty, memory_order_acquire);
  if (open && !dirty && !f->syncing) fd = take_fd(f);  // a sync came while the file was in use
  lib_unlock(&l->lock);
  shut(l, fd);
  return !open || !dirty || hold(l, f) || !syncs ? REMIXDB_OK : value_log_sync(l);
}

// The same for a thread whose own call has succeeded or failed: the thread's message stays. An error of the sync stays,
// too, and the next put and the next sync return it. Such an error needs its message (fail), so this is no clean-up.
static void linger_quietly(struct value_log *l, struct value_file *f, bool syncs) {
  struct err_saved why;
  err_save(&why, REMIXDB_OK);
  if (linger(l, f, syncs) != REMIXDB_OK) err_restore(&why);
}

// ---- files and places

// Makes a new file. The log's lock is held. *out has the log's reference.
static enum remixdb_status new_file(struct value_log *l, struct value_file **out) {
  const struct sst_ctx *const x = l->ctx->sst;
  uint8_t head[VALUE_HEAD];
  struct value_head h = {.store_id = x->store_id,
                         .number = l->new_number(l->arg, files_value_name),
                         .nonce = random_seed()};
  struct value_file *f;
  value_head_put(head, &h);
  enum remixdb_status s = value_file_make(l->ctx, &h, &f);
  if (s != REMIXDB_OK) return s;
  s = env_create(x->dir, env_name(f->path), ENV_WRITE, &f->fd);
  if (s == REMIXDB_OK && (s = env_write(x->env, f->fd, f->path, head, sizeof(head), 0)) != REMIXDB_OK)
    value_file_retire(f);
  if (s != REMIXDB_OK) {
    err_cleanup_begin();
    value_file_unref(f);
    err_cleanup_end();
    return s;
  }
  value_file_set_size(f, VALUE_HEAD);
  f->next = l->files;
  l->files = f;
  atomic_fetch_add_explicit(&l->nr_files, 1, memory_order_relaxed);
  *out = f;
  return REMIXDB_OK;
}

// No further value goes to the active file. Returns it with a reference, for `ended`, or NULL. The log's lock is held.
static struct value_file *end_active(struct value_log *l) {
  struct value_file *const f = l->active;
  l->active = NULL;
  if (!f) return NULL;
  f->full = true;
  value_file_ref(f);
  return f;
}

// The log's lock is free again.
static void ended(struct value_log *l, struct value_file *f, bool syncs) {
  linger_quietly(l, f, syncs);
  value_file_unref(f);
}

static void give_back(struct value_log *l, struct value_file *f, uint64_t at, uint64_t len, uint64_t used);
static void put_end(struct value_log *l, struct value_file *f, bool syncs);

// The place was given in a new file, and the file before, which is full, has ended. If its sync has failed, no value
// comes after it: gives the place up, and returns the error (W3).
static enum remixdb_status reserved_after(struct value_log *l, struct value_file *f, uint64_t at, uint64_t len) {
  const enum remixdb_status s = value_log_error(l);
  if (likely(s == REMIXDB_OK)) return s;
  struct err_saved why;
  err_save(&why, s);
  err_cleanup_begin();
  give_back(l, f, at, len, 0);
  put_end(l, f, false);
  err_cleanup_end();
  return err_raise(&why);
}

// Gives a place of `len` bytes. own: in a file of its own. *file_out has a reference for the caller, and is in use.
static enum remixdb_status reserve(struct value_log *l, uint64_t len, bool own, struct value_file **file_out,
                                   uint64_t *at_out) {
  enum remixdb_status s = value_log_error(l);
  if (s != REMIXDB_OK) return s;
  struct value_file *before = NULL;
  lib_lock(&l->lock);
  struct value_file *f = own ? NULL : l->active;
  if (f && value_file_size(f) > VALUE_HEAD && value_file_size(f) + len > value_log_file(l)) {
    before = end_active(l);
    f = NULL;
  }
  if (!f) s = new_file(l, &f);
  if (s == REMIXDB_OK) {
    if (own) f->full = true;
    else l->active = f;
    value_file_ref(f);
    f->writers++;
    *at_out = value_file_size(f);
    value_file_set_size(f, *at_out + len);
    *file_out = f;
  }
  lib_unlock(&l->lock);
  if (unlikely(before != NULL)) {
    ended(l, before, true);
    if (s == REMIXDB_OK) s = reserved_after(l, *file_out, *at_out, len);
  }
  return s;
}

// Gives back the place [at, at + len) if it is the last one. Its bytes from `used` on were not written.
static void give_back(struct value_log *l, struct value_file *f, uint64_t at, uint64_t len, uint64_t used) {
  lib_lock(&l->lock);
  if (value_file_size(f) == at + len) value_file_set_size(f, at + used);
  lib_unlock(&l->lock);
}

// Takes a file out of the list, and retires it, if it is full, not in use, and has no value. The log's lock is held.
// Returns the file, for value_log_drop; NULL: it stays.
static struct value_file *take_empty(struct value_log *l, struct value_file *f) {
  if (!f->full || f->writers || f->kept || f->syncing || value_file_size(f) > VALUE_HEAD) return NULL;
  struct value_file **at = &l->files;
  while (*at && *at != f) at = &(*at)->next;
  if (!*at) return NULL;
  value_file_retire(f);
  *at = f->next;
  f->next = NULL;
  return f;
}

static void put_end(struct value_log *l, struct value_file *f, bool syncs) {
  lib_lock(&l->lock);
  assert(f->writers > 0);
  f->writers--;
  struct value_file *const gone = take_empty(l, f);
  const bool last = lingers(f);
  lib_unlock(&l->lock);
  if (unlikely(gone != NULL)) value_log_drop(l, gone);
  else if (unlikely(last)) linger_quietly(l, f, syncs);
  value_file_unref(f);
}

void value_put_end(struct value_log *l, struct value_file *f) { put_end(l, f, true); }

enum remixdb_status value_put_keep(struct value_log *l, struct value_file *f) {
  lib_lock(&l->lock);
  assert(f->writers > 0);
  f->writers--;
  f->kept++;
  const bool last = lingers(f);
  lib_unlock(&l->lock);
  return last ? linger(l, f, true) : REMIXDB_OK;
}

void value_kept_end(struct value_log *l, struct value_file *f) {
  lib_lock(&l->lock);
  assert(f->kept > 0);
  f->kept--;
  lib_unlock(&l->lock);
  value_file_unref(f);
}

// A write into the place failed with s. A full disk and want of memory may end; all else is sticky.
static enum remixdb_status write_failed(struct value_log *l, struct value_file *f, uint64_t at, uint64_t len,
                                        enum remixdb_status s) {
  struct err_saved why;
  err_save(&why, s);
  err_cleanup_begin();
  give_back(l, f, at, len, 0);
  // The room goes back to the disk if no other value is behind it.
  lib_lock(&l->lock);
  if (value_file_size(f) == at && f->fd >= 0)
    IGNORED(env_truncate(l->ctx->sst->env, f->fd, f->path, at), "the next value that fits is written there");
  lib_unlock(&l->lock);
  put_end(l, f, false);
  err_cleanup_end();
  s = err_raise(&why);
  return s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM ? s : fail(l, s);
}

// Opens a file in use that value_log_pause has closed.
static enum remixdb_status open_again(const struct value_log *l, struct value_file *f) {
  const enum remixdb_status s = env_open(l->ctx->sst->dir, env_name(f->path), ENV_WRITE, &f->fd);
  return s == REMIXDB_NOTFOUND ? err_set(REMIXDB_IO, "%s: removed while it was being written", f->path) : s;
}

static enum remixdb_status write_at(struct value_log *l, struct value_file *f, const void *p, size_t len, uint64_t at) {
  enum remixdb_status s = likely(f->fd >= 0) ? REMIXDB_OK : open_again(l, f);
  if (s == REMIXDB_OK) s = env_write(l->ctx->sst->env, f->fd, f->path, p, len, at);
  if (s == REMIXDB_OK) atomic_fetch_add_explicit(&l->file_bytes, len, memory_order_relaxed);
  return s;
}

// release: a sync that sees the flag covers the bytes
static void wrote(struct value_file *f) { atomic_store_explicit(&f->dirty, true, memory_order_release); }

// ---- compression

// The packing of a value, read once for it.
struct packing {
  bool plain;
  int level;
};

static struct packing packing_of(const struct value_log *l) {
  const uint64_t how = atomic_load_explicit(&l->packing, memory_order_relaxed);
  return (struct packing){how >> 32 == REMIXDB_COMPRESSION_NONE, (int)(uint32_t)how};
}

static enum remixdb_status zstd_take(struct value_log *l, int level, ZSTD_CCtx **out) {
  lib_lock(&l->lock);
  *out = l->zstd;
  l->zstd = NULL;
  lib_unlock(&l->lock);
  if (!*out && !(*out = ZSTD_createCCtx_advanced(zmem()))) return err_set(REMIXDB_NOMEM, "no memory for compression");
  (void)ZSTD_CCtx_setParameter(*out, ZSTD_c_checksumFlag, 0);
  (void)ZSTD_CCtx_setParameter(*out, ZSTD_c_compressionLevel, level);
  return REMIXDB_OK;
}

static void zstd_give(struct value_log *l, ZSTD_CCtx *z) {
  lib_lock(&l->lock);
  ZSTD_CCtx *const other = l->zstd;
  l->zstd = z;
  lib_unlock(&l->lock);
  (void)ZSTD_freeCCtx(other);
}

// Packs a chunk into `to`, which has room for len bytes. Bytes that do not get smaller stay as they are. *n_out: the
// bytes in `to`.
static enum remixdb_status pack(ZSTD_CCtx *z, const uint8_t *from, uint32_t len, uint8_t *to, uint32_t *n_out) {
  const size_t n = len > 1 ? ZSTD_compress2(z, to, len - 1, from, len) : 0;
  if (len > 1 && !ZSTD_isError(n)) {
    *n_out = (uint32_t)n;
    return REMIXDB_OK;
  }
  (void)ZSTD_CCtx_reset(z, ZSTD_reset_session_only);
  if (len > 1 && ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation)
    return err_set(REMIXDB_NOMEM, "no memory for compression");
  memcpy(to, from, len);
  *n_out = len;
  return REMIXDB_OK;
}

// ---- records

static void put_entry(uint8_t *entries, uint64_t c, const struct value_rec *r, uint64_t begin, const uint8_t *stored,
                      uint32_t len) {
  store64le(entries + c * VALUE_ENTRY, begin + len);
  store64le(entries + c * VALUE_ENTRY + 8, hash64_seed(stored, len, value_chunk_seed(r, begin)));
}

// Makes the entries of a value whose chunks stay as they are. Sets r->stored.
static void plain_entries(uint8_t *entries, struct value_rec *r, const uint8_t *val) {
  for (uint64_t c = 0; c < value_chunks(r->vlen); c++) {
    const uint64_t begin = c * VALUE_CHUNK;
    put_entry(entries, c, r, begin, val + begin, value_chunk_len(r->vlen, c));
  }
  r->stored = r->vlen;
}

// Packs all chunks into `data`, which has room for r->vlen bytes, and makes their entries. Sets r->stored.
static enum remixdb_status packed_entries(ZSTD_CCtx *z, uint8_t *entries, struct value_rec *r, const uint8_t *val,
                                          uint8_t *data) {
  enum remixdb_status s = REMIXDB_OK;
  r->stored = 0;
  for (uint64_t c = 0; c < value_chunks(r->vlen) && s == REMIXDB_OK; c++) {
    uint32_t n = 0;
    s = pack(z, val + c * VALUE_CHUNK, value_chunk_len(r->vlen, c), data + r->stored, &n);
    if (s != REMIXDB_OK) break;
    put_entry(entries, c, r, r->stored, data + r->stored, n);
    r->stored += n;
  }
  return s;
}

static void put_ref(uint8_t *ref, const struct value_file *f, uint64_t at, const struct value_rec *r) {
  const struct value_ref to = {f->number, at, r->vlen, (uint32_t)r->sum};
  value_ref_put(ref, &to);
}

// The values are in the file.
static void count(struct value_log *l, struct value_file *f, uint64_t values, uint64_t bytes) {
  atomic_fetch_add_explicit(&f->value_bytes, bytes, memory_order_relaxed);
  atomic_fetch_add_explicit(&l->values, values, memory_order_relaxed);
  atomic_fetch_add_explicit(&l->value_bytes, bytes, memory_order_relaxed);
}

// ---- one value

static enum remixdb_status pack_value(struct value_log *l, int level, uint8_t *entries, struct value_rec *r,
                                      const uint8_t *val, uint8_t *data) {
  ZSTD_CCtx *z;
  enum remixdb_status s = zstd_take(l, level, &z);
  if (s != REMIXDB_OK) return s;
  s = packed_entries(z, entries, r, val, data);
  zstd_give(l, z);
  return s;
}

// The value's bytes are written from the caller's memory, or packed with the head if the log compresses.
static enum remixdb_status put_staged(struct value_log *l, struct packing how, const uint8_t *key, struct value_rec *r,
                                      const uint8_t *val, uint8_t *ref, struct value_file **file_out) {
  const bool plain = how.plain;
  const size_t entries = (size_t)value_entries_at(r->klen), data = (size_t)value_data_at(r->klen, r->vlen);
  uint8_t *const p = mem_alloc(data + (plain ? 0 : r->vlen));
  if (!p) return REMIXDB_NOMEM;
  enum remixdb_status s = REMIXDB_OK;
  if (plain) plain_entries(p + entries, r, val);
  else s = pack_value(l, how.level, p + entries, r, val, p + data);
  const uint64_t len = value_rec_len(r->klen, r->vlen, r->stored);
  struct value_file *f = NULL;
  uint64_t at = 0;
  if (s == REMIXDB_OK) s = reserve(l, len, len > value_log_file(l) / VALUE_OWN_PART, &f, &at);
  if (s == REMIXDB_OK) {
    value_rec_put(p, f->key, at, key, r);
    s = write_at(l, f, p, data + (plain ? 0 : (size_t)r->stored), at);
    if (s == REMIXDB_OK && plain) s = write_at(l, f, val, r->vlen, at + data);
    if (s != REMIXDB_OK) s = write_failed(l, f, at, len, s);
  }
  mem_free(p);
  if (s != REMIXDB_OK) return s;
  wrote(f);
  put_ref(ref, f, at, r);
  *file_out = f;
  return REMIXDB_OK;
}

// Packs the chunks into pieces and writes each. p: the head's memory.
static enum remixdb_status pack_pieces(struct value_log *l, int level, struct value_file *f, uint64_t at,
                                       struct value_rec *r, const uint8_t *val, uint8_t *p, uint8_t *piece) {
  const size_t entries = (size_t)value_entries_at(r->klen), data = (size_t)value_data_at(r->klen, r->vlen);
  ZSTD_CCtx *z;
  enum remixdb_status s = zstd_take(l, level, &z);
  if (s != REMIXDB_OK) return s;
  size_t in = 0;
  r->stored = 0;
  for (uint64_t c = 0, nr = value_chunks(r->vlen); c < nr && s == REMIXDB_OK; c++) {
    uint32_t n = 0;
    s = pack(z, val + c * VALUE_CHUNK, value_chunk_len(r->vlen, c), piece + in, &n);
    if (s != REMIXDB_OK) break;
    put_entry(p + entries, c, r, r->stored, piece + in, n);
    r->stored += n;
    in += n;
    if (in < PIECE && c + 1 < nr) continue;
    s = write_at(l, f, piece, in, at + data + r->stored - in);
    in = 0;
  }
  zstd_give(l, z);
  return s;
}

// A large value of a log that compresses: only a piece of it is in memory besides the caller's.
static enum remixdb_status put_pieces(struct value_log *l, int level, const uint8_t *key, struct value_rec *r,
                                      const uint8_t *val, uint8_t *ref, struct value_file **file_out) {
  const size_t data = (size_t)value_data_at(r->klen, r->vlen);
  uint8_t *const p = mem_alloc(data), *const piece = mem_alloc(PIECE + VALUE_CHUNK);
  struct value_file *f;
  uint64_t at;
  const uint64_t most = value_rec_len(r->klen, r->vlen, r->vlen);
  enum remixdb_status s = p && piece ? reserve(l, most, true, &f, &at) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) {
    s = pack_pieces(l, level, f, at, r, val, p, piece);
    if (s == REMIXDB_OK) {
      value_rec_put(p, f->key, at, key, r);
      s = write_at(l, f, p, data, at);
    }
    if (s != REMIXDB_OK) {
      s = write_failed(l, f, at, most, s);
    } else {
      give_back(l, f, at, most, value_rec_len(r->klen, r->vlen, r->stored));
      wrote(f);
      put_ref(ref, f, at, r);
      *file_out = f;
    }
  }
  mem_free(p);
  mem_free(piece);
  return s;
}

enum remixdb_status value_put(struct value_log *l, struct kref key, const void *val, uint32_t vlen, uint8_t *ref,
                              struct value_file **file_out) {
  struct value_rec r = {.klen = key.len, .vlen = vlen, .nonce = random_seed()};
  assert(vlen > 0 && key.len <= KV_KEY_MAX);
  enum remixdb_status s = value_log_error(l);
  if (s != REMIXDB_OK) return s;
  const struct packing how = packing_of(l);
  s = !how.plain && vlen > VALUE_STAGE ? put_pieces(l, how.level, key.ptr, &r, val, ref, file_out)
                                       : put_staged(l, how, key.ptr, &r, val, ref, file_out);
  if (s == REMIXDB_OK) count(l, *file_out, 1, r.vlen);
  return s;
}

// ---- many values

// Tells the system to write out what the batch has written, up to these bytes of a file in use. Otherwise the sync
// would wait for all of it. With compression `len` may be too large, which does no harm.
static void batch_out(struct value_batch *b, const struct value_file *f, uint64_t at, uint64_t len) {
  if (b->out_file != f->number) b->out = at;
  b->out_file = f->number;
  if (at + len < b->out + OUT) return;
  env_write_out(b->log->ctx->sst->env, f->fd, b->out, at + len - b->out);
  b->out = at + len;
}

// Writes the bytes of the extent, and gives the rest of it back if it is the file's last one.
static enum remixdb_status batch_write(struct value_batch *b) {
  struct value_file *const f = b->file;
  if (!f) return REMIXDB_OK;
  struct value_log *const l = b->log;
  b->file = NULL;
  const enum remixdb_status s = b->len ? write_at(l, f, b->buf, b->len, b->at) : REMIXDB_OK;
  if (s != REMIXDB_OK) return write_failed(l, f, b->at, VALUE_EXTENT, s);
  give_back(l, f, b->at, VALUE_EXTENT, b->len);
  if (b->len) wrote(f);
  count(l, f, b->values, b->value_bytes);
  batch_out(b, f, b->at, b->len);
  b->len = 0;
  b->values = b->value_bytes = 0;
  value_put_end(l, f);  // b->files has the file
  return REMIXDB_OK;
}

// The file stays in use until value_batch_fini. It has a writer now.
static enum remixdb_status batch_keep(struct value_batch *b, struct value_file *f) {
  if (value_set_find(&b->files, f->number)) return REMIXDB_OK;
  const enum remixdb_status s = value_set_add(&b->files, f);
  if (s != REMIXDB_OK) return s;
  lib_lock(&b->log->lock);
  f->kept++;
  lib_unlock(&b->log->lock);
  return s;
}

// Takes an extent.
static enum remixdb_status batch_extend(struct value_batch *b) {
  enum remixdb_status s = batch_write(b);
  if (s != REMIXDB_OK) return s;
  if (!b->buf && !(b->buf = mem_alloc(VALUE_EXTENT))) return REMIXDB_NOMEM;
  if ((s = reserve(b->log, VALUE_EXTENT, false, &b->file, &b->at)) != REMIXDB_OK) return s;
  b->len = 0;
  b->values = b->value_bytes = 0;
  return batch_keep(b, b->file);
}

// A value that fills an extent.
static enum remixdb_status batch_put_long(struct value_batch *b, struct kref key, const void *val, uint32_t vlen,
                                          uint8_t *ref) {
  struct value_file *f;
  enum remixdb_status s = value_put(b->log, key, val, vlen, ref, &f);
  if (s != REMIXDB_OK) return s;
  s = batch_keep(b, f);
  struct value_ref to;
  if (value_ref_get(ref, VALUE_REF, &to)) batch_out(b, f, to.at, vlen);
  value_put_end(b->log, f);
  return s;
}

static enum remixdb_status batch_pack(struct value_batch *b, int level, uint8_t *entries, struct value_rec *r,
                                      const uint8_t *val, uint8_t *data) {
  enum remixdb_status s = REMIXDB_OK;
  if (!b->zstd && (s = zstd_take(b->log, level, &b->zstd)) != REMIXDB_OK) return s;
  if (b->level != level) (void)ZSTD_CCtx_setParameter(b->zstd, ZSTD_c_compressionLevel, level);
  b->level = level;
  return packed_entries(b->zstd, entries, r, val, data);
}

enum remixdb_status value_batch_put(struct value_batch *b, struct kref key, const void *val, uint32_t vlen,
                                    uint8_t *ref) {
  const struct packing how = packing_of(b->log);
  struct value_rec r = {.klen = key.len, .vlen = vlen, .nonce = random_seed()};
  const uint64_t most = value_cost(key.len, vlen);
  if (most > VALUE_EXTENT) return batch_put_long(b, key, val, vlen, ref);
  enum remixdb_status s = REMIXDB_OK;
  if (!b->file || most > VALUE_EXTENT - b->len) s = batch_extend(b);
  if (s != REMIXDB_OK) return s;
  uint8_t *const p = b->buf + b->len, *const entries = p + value_entries_at(key.len);
  uint8_t *const data = p + value_data_at(key.len, vlen);
  if (how.plain) {
    memcpy(data, val, vlen);
    plain_entries(entries, &r, data);
  } else if ((s = batch_pack(b, how.level, entries, &r, val, data)) != REMIXDB_OK) {
    return s;
  }
  const size_t len = (size_t)value_rec_len(key.len, vlen, r.stored);
  memset(data + r.stored, 0, len - (size_t)(data + r.stored - p));
  value_rec_put(p, b->file->key, b->at + b->len, key.ptr, &r);
  put_ref(ref, b->file, b->at + b->len, &r);
  b->len += len;
  b->values++;
  b->value_bytes += vlen;
  return REMIXDB_OK;
}

static void batch_free(struct value_batch *b) {
  if (b->zstd) zstd_give(b->log, b->zstd);
  mem_free(b->buf);
  b->zstd = NULL;
  b->buf = NULL;
}

enum remixdb_status value_batch_end(struct value_batch *b) {
  const enum remixdb_status s = batch_write(b);
  batch_free(b);
  return s;
}

void value_batch_fini(struct value_batch *b) {
  if (b->file) {
    give_back(b->log, b->file, b->at, VALUE_EXTENT, 0);
    put_end(b->log, b->file, false);
  }
  if (b->files.nr) {
    lib_lock(&b->log->lock);
    for (uint32_t i = 0; i < b->files.nr; i++) b->files.files[i]->kept--;
    lib_unlock(&b->log->lock);
  }
  value_set_fini(&b->files);
  batch_free(b);
  b->file = NULL;
}

// ---- giving back

struct value_mark value_log_mark(struct value_log *l) {
  struct value_mark m = {0};
  lib_lock(&l->lock);
  for (const struct value_file *f = l->files; f; f = f->next)
    if (f->number > m.newest) m.newest = f->number;
  if (l->active) {
    m.active = l->active->number;
    m.tail = value_file_size(l->active);
    m.value_bytes = atomic_load_explicit(&l->active->value_bytes, memory_order_relaxed);
  }
  lib_unlock(&l->lock);
  return m;
}

// Takes the place behind the mark from the file that was active then.
static void rewind_file(struct value_log *l, struct value_file *f, const struct value_mark *m) {
  if (f->full || f->fd < 0 || value_file_size(f) == m->tail) return;
  value_file_set_size(f, m->tail);
  atomic_store_explicit(&f->value_bytes, m->value_bytes, memory_order_relaxed);
  IGNORED(env_truncate(l->ctx->sst->env, f->fd, f->path, m->tail), "the next values are written there");
}

// Ends a sticky error that may end: a sync found the disk full, or memory short, and all that it was to make durable is
// given back. The system may have dropped any of it, so nothing is written behind what stays. The lock is held. Returns
// a file for `ended`, as end_active does.
static struct value_file *recover(struct value_log *l) {
  const uint32_t failed = atomic_load_explicit(&l->failed, memory_order_relaxed);
  if (likely(failed != REMIXDB_NOSPACE && failed != REMIXDB_NOMEM)) return NULL;
  l->error = (struct err_saved){0};
  atomic_store_explicit(&l->failed, 0, memory_order_relaxed);
  return end_active(l);
}

void value_log_rewind(struct value_log *l, const struct value_mark *m) {
  struct value_file *gone = NULL;
  lib_lock(&l->lock);
  for (struct value_file **at = &l->files; *at;) {
    struct value_file *const f = *at;
    if (f->number == m->active) rewind_file(l, f, m);
    if (f->number <= m->newest) {
      at = &f->next;
      continue;
    }
    assert(f->writers == 0 && f->kept == 0);
    if (l->active == f) l->active = NULL;
    f->full = true;
    if (f->syncing) {  // the next settling finds that nothing refers to it
      at = &f->next;
      continue;
    }
    value_file_retire(f);
    *at = f->next;
    f->next = gone;
    gone = f;
  }
  struct value_file *const last = m->inner ? NULL : recover(l);
  lib_unlock(&l->lock);
  value_log_drop(l, gone);
  if (last) ended(l, last, false);  // a sync would find the disk full again
}

// ---- syncs

// Finds a file to sync that is not at `seen` or before it in the list, clears its mark, and takes a reference.
static struct value_file *next_dirty(struct value_log *l, struct value_file *const *seen, uint32_t nr_seen) {
  struct value_file *found = NULL;
  lib_lock(&l->lock);
  for (struct value_file *f = l->files; f && !found; f = f->next) {
    bool again = false;
    for (uint32_t i = 0; i < nr_seen; i++) again = again || seen[i] == f;
    // acquire: the bytes of a writer that has set it are in the sync
    if (!again && atomic_exchange_explicit(&f->dirty, false, memory_order_acq_rel)) found = f;
  }
  if (found) {
    value_file_ref(found);
    found->syncing = true;
  }
  lib_unlock(&l->lock);
  return found;
}

// The sync of a file has ended. If the file takes no more bytes, closes it.
static void end_sync(struct value_log *l, struct value_file *f) {
  lib_lock(&l->lock);
  f->syncing = false;
  const bool idle = f->full && f->writers == 0 && !atomic_load_explicit(&f->dirty, memory_order_acquire);
  const struct value_fd fd = idle ? take_fd(f) : (struct value_fd){-1, false};
  lib_unlock(&l->lock);
  shut(l, fd);
}

#define SYNC_FILES 64u  // files in one pass

static enum remixdb_status sync_some(struct value_log *l, bool *more_out) {
  const struct sst_ctx *const x = l->ctx->sst;
  struct value_file *seen[SYNC_FILES];
  uint32_t nr = 0;
  bool unnamed = false;
  enum remixdb_status s = REMIXDB_OK;
  while (nr < SYNC_FILES && s == REMIXDB_OK && (seen[nr] = next_dirty(l, seen, nr)) != NULL) {
    struct value_file *const f = seen[nr++];
    unnamed = unnamed || !f->named;
    s = env_sync_data(x->env, f->fd, f->path);
    atomic_fetch_add_explicit(&l->syncs, 1, memory_order_relaxed);
  }
  if (s == REMIXDB_OK && unnamed) s = env_sync_dir(x->dir);
  *more_out = nr == SYNC_FILES;
  for (uint32_t i = 0; i < nr; i++) {
    if (s == REMIXDB_OK) seen[i]->named = true;
    end_sync(l, seen[i]);
    value_file_unref(seen[i]);
  }
  return s;
}

enum remixdb_status value_log_sync(struct value_log *l) {
  (void)pthread_mutex_lock(&l->sync_lock);
  enum remixdb_status s = value_log_error(l);
  for (bool more = true; more && s == REMIXDB_OK;) {
    s = sync_some(l, &more);
    if (s != REMIXDB_OK) s = fail(l, l->lasts ? REMIXDB_IO : s);
  }
  (void)pthread_mutex_unlock(&l->sync_lock);
  return s;
}

enum remixdb_status value_log_pause(struct value_log *l) {
  struct value_file *const f = l->active;  // only this thread changes it
  if (!f || f->fd < 0 || f->held || hold(l, f)) return REMIXDB_OK;
  const enum remixdb_status s = value_log_sync(l);
  if (s != REMIXDB_OK) return s;
  lib_lock(&l->lock);
  const struct value_fd fd = take_fd(f);
  lib_unlock(&l->lock);
  shut(l, fd);
  return REMIXDB_OK;
}

void value_log_turn(struct value_log *l) {
  lib_lock(&l->lock);
  struct value_file *const f = end_active(l);
  lib_unlock(&l->lock);
  if (f) ended(l, f, false);  // a sync follows soon, or the file goes
}

bool value_log_has(struct value_log *l, const struct value_file *f) {
  lib_lock(&l->lock);
  const struct value_file *i = l->files;
  while (i && i != f) i = i->next;
  lib_unlock(&l->lock);
  return i != NULL;
}

bool value_log_takes(struct value_log *l, const struct value_file *f) {
  lib_lock(&l->lock);
  const bool takes = l->active == f;
  lib_unlock(&l->lock);
  return takes;
}

struct value_file *value_log_find(struct value_log *l, uint64_t number) {
  lib_lock(&l->lock);
  struct value_file *i = l->files;
  while (i && i->number != number) i = i->next;
  lib_unlock(&l->lock);
  return i;
}

struct value_file *value_log_settle(struct value_log *l, bool (*keep)(void *arg, const struct value_file *f),
                                    void *arg) {
  struct value_file *gone = NULL;
  lib_lock(&l->lock);
  for (struct value_file **at = &l->files; *at;) {
    struct value_file *const f = *at;
    // `keep` comes first: a file that a thread makes known to it is in use meanwhile.
    const bool kept = keep(arg, f), dirty = atomic_load_explicit(&f->dirty, memory_order_acquire);
    if (!f->full || f->writers || f->kept || f->syncing || (kept && dirty)) {
      at = &f->next;
      continue;
    }
    if (!kept) value_file_retire(f);
    *at = f->next;
    f->next = gone;
    gone = f;
  }
  lib_unlock(&l->lock);
  return gone;
}

void value_log_drop(struct value_log *l, struct value_file *gone) {
  for (struct value_file *next; gone; gone = next) {
    next = gone->next;
    shut(l, take_fd(gone));
    value_file_unref(gone);
  }
}
