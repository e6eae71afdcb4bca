// SPDX-License-Identifier: Apache-2.0
#include "value/file.h"

#include <assert.h>

#include "base/zmem.h"

#define VALUE_TRUSTED (16u << 20)  // memory for so many bytes is taken on a reference's word
#define VALUE_RUN (1u << 20)       // bytes of whole chunks that one call reads
#define VALUE_COLD 256u            // values that are asked for before they are read, once one came from the disk
#define VALUE_WARM (16u << 10)     // bytes that come from the page cache in the time of blkio.disk_ns
#define VALUE_ENTRIES 256u         // entries that are read at once

// ---- scratch memory. Only the thread that has taken a set uses it.

struct value_scratch {
  uint8_t *win;  // bytes of the file; the first win_cap are there
  size_t win_cap;
  uint8_t *chunk;   // VALUE_CHUNK bytes; NULL until needed
  ZSTD_DCtx *zstd;  // NULL until needed
};

static void scratch_free(struct value_scratch *x) {
  if (!x) return;
  (void)ZSTD_freeDCtx(x->zstd);
  mem_free(x->win);
  mem_free(x->chunk);
  mem_free(x);
}

static struct value_scratch *scratch_take(struct value_ctx *c) {
  for (uint32_t i = 0; i < VALUE_SCRATCH; i++) {
    struct value_scratch *const x = atomic_exchange_explicit(&c->scratch[i], NULL, memory_order_acquire);
    if (x) return x;
  }
  return mem_calloc(1, sizeof(struct value_scratch));
}

static void scratch_give(struct value_ctx *c, struct value_scratch *x) {
  for (uint32_t i = 0; i < VALUE_SCRATCH; i++) {
    struct value_scratch *none = NULL;
    if (atomic_compare_exchange_strong_explicit(&c->scratch[i], &none, x, memory_order_release, memory_order_relaxed))
      return;
  }
  scratch_free(x);
}

void value_ctx_fini(struct value_ctx *c) {
  for (uint32_t i = 0; i < VALUE_SCRATCH; i++)
    scratch_free(atomic_exchange_explicit(&c->scratch[i], NULL, memory_order_acquire));
}

// ---- files

enum remixdb_status value_file_make(struct value_ctx *c, const struct value_head *h, struct value_file **out) {
  char name[32];
  files_value_name(name, h->number);
  struct value_file *const f = mem_calloc(1, sizeof(*f));
  if (!f) return REMIXDB_NOMEM;
  if (!(f->path = env_path_new(c->sst->dir, name))) {
    mem_free(f);
    return REMIXDB_NOMEM;
  }
  f->ctx = c;
  f->number = h->number;
  f->origin = h->store_id;
  f->print = h->print;
  f->key = h->key;
  f->fd = -1;
  atomic_init(&f->refs, 1);
  fdpool_add(c->sst->fds, &f->file, c->sst->dir, f->path, ENV_READ);
  *out = f;
  return REMIXDB_OK;
}

enum remixdb_status value_file_open(struct value_ctx *c, uint64_t number, struct value_file **out) {
  char name[32];
  uint8_t bytes[VALUE_HEAD];
  struct value_head h;
  int fd;
  uint64_t size = 0;
  const struct sst_ctx *const x = c->sst;
  const struct files_ids ids = sst_ctx_ids(x);
  files_value_name(name, number);
  char path[ENV_PATH_MAX];
  enum remixdb_status s = env_path(path, x->dir->path, name);
  if (s == REMIXDB_OK) s = env_open(x->dir, name, ENV_READ, &fd);
  if (s == REMIXDB_NOTFOUND) return err_corrupt(path, 0, "is missing");
  if (s != REMIXDB_OK) return s;
  s = env_read(x->env, fd, path, bytes, sizeof(bytes), 0);
  if (s == REMIXDB_OK) s = env_size(x->env, fd, path, &size);
  env_close_quiet(x->env, fd);
  if (s == REMIXDB_OK) s = value_head_get(bytes, path, &h);
  if (s == REMIXDB_OK && (h.number != number || !files_ids_have(&ids, h.store_id)))
    s = err_corrupt(path, 0, "is value file %llu of store %016llx", (unsigned long long)h.number,
                    (unsigned long long)h.store_id);
  if (s == REMIXDB_OK) s = value_file_make(c, &h, out);
  if (s != REMIXDB_OK) return s;
  value_file_set_size(*out, size);
  (*out)->full = (*out)->named = true;
  return s;
}

void value_file_set_size(struct value_file *f, uint64_t size) {
  const uint64_t was = value_file_size(f);
  atomic_store_explicit(&f->tail, size, memory_order_relaxed);
  if (!atomic_load_explicit(&f->obsolete, memory_order_relaxed))
    atomic_fetch_add_explicit(&f->ctx->room, size - was, memory_order_relaxed);
}

static void give_room(struct value_file *f) {
  atomic_fetch_sub_explicit(&f->ctx->room, value_file_size(f), memory_order_relaxed);
}

void value_file_retire(struct value_file *f) {
  if (!atomic_exchange_explicit(&f->obsolete, true, memory_order_relaxed)) give_room(f);
}

void value_file_unref(struct value_file *f) {
  // acq_rel: the thread that frees has seen all uses by the others, and `obsolete`
  if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
  const struct sst_ctx *const x = f->ctx->sst;
  fdpool_remove(&f->file);
  env_close_quiet(x->env, f->fd);
  if (atomic_load_explicit(&f->obsolete, memory_order_relaxed))
    IGNORED(env_unlink(x->dir, env_name(f->path)), "the next opening removes it");
  else give_room(f);
  mem_free(f->path);
  mem_free(f);
}

#define SECURE_BYTES (1u << 20)  // written again at a time

static enum remixdb_status write_again(struct value_file *f, int fd) {
  struct env *const env = f->ctx->sst->env;
  uint8_t *const buf = mem_alloc(SECURE_BYTES);
  enum remixdb_status s = buf ? REMIXDB_OK : REMIXDB_NOMEM;
  for (uint64_t off = f->low; off < f->high && s == REMIXDB_OK;) {
    size_t n = f->high - off < SECURE_BYTES ? (size_t)(f->high - off) : SECURE_BYTES;
    s = env_read_upto(env, fd, f->path, buf, n, off, &n);  // a record may end in zeros that were never written
    if (s != REMIXDB_OK || n == 0) break;
    s = env_write(env, fd, f->path, buf, n, off);
    off += n;
  }
  mem_free(buf);
  return s == REMIXDB_NOSPACE ? REMIXDB_OK : s;  // a file system that never writes in place
}

enum remixdb_status value_file_secure(struct value_file *f) {
  struct env *const env = f->ctx->sst->env;
  struct env_stat st;
  int fd;
  enum remixdb_status s = env_open(f->ctx->sst->dir, env_name(f->path), ENV_READ | ENV_WRITE, &fd);
  if (s == REMIXDB_NOTFOUND) return err_set(REMIXDB_IO, "%s: removed while it was being recovered", f->path);
  if (s != REMIXDB_OK) return s;
  const int rc = env->ops->fstat(env, fd, &st);
  if (rc < 0) s = err_errno(-rc, "stat", f->path);
  else if (st.links == 1) s = write_again(f, fd);
  if (s == REMIXDB_OK) s = env_sync_all(env, fd, f->path);
  env_close_quiet(env, fd);
  return s;
}

// ---- reading

struct reading {
  struct value_file *f;
  int fd;
  struct value_scratch *x;
  uint64_t at, win_at;  // of the record, and of the bytes in the window
  size_t win_len;
  bool index;  // the record is to be an index
  struct value_rec rec;
  uint64_t entries, data;  // offsets in the file
  // Entries [first, first + nr) are in `entry`; prev: where chunk `first` begins.
  uint64_t first, prev;
  uint32_t nr;
  uint8_t entry[VALUE_ENTRIES * VALUE_ENTRY];
};

static enum remixdb_status broken(const struct reading *v, uint64_t off, const char *what) {
  return err_corrupt(v->f->path, off, "%s of the value at %llu", what, (unsigned long long)v->at);
}

static enum remixdb_status win_reserve(struct value_scratch *x, size_t n) {
  if (n <= x->win_cap) return REMIXDB_OK;
  mem_free(x->win);
  x->win_cap = 0;
  if (!(x->win = mem_alloc(n))) return REMIXDB_NOMEM;
  x->win_cap = n;
  return REMIXDB_OK;
}

// Learns from the wait of ns nanoseconds for len bytes.
static void cold_learn(struct value_ctx *c, uint64_t ns, size_t len) {
  const struct blkio *const io = c->sst->io;
  if (io && ns / (1 + len / VALUE_WARM) >= io->disk_ns)
    atomic_store_explicit(&c->cold, VALUE_COLD, memory_order_relaxed);
}

// How much of a record the first read takes.
static size_t first_read(uint32_t klen, uint32_t vlen) {
  if (vlen <= VALUE_ONCE) return (size_t)value_cost(klen, vlen);
  return (size_t)value_entries_at(klen) + VALUE_ENTRIES * VALUE_ENTRY;
}

static enum remixdb_status read_into(struct reading *v, uint64_t off, void *buf, size_t n) {
  atomic_fetch_add_explicit(&v->f->ctx->read_bytes, n, memory_order_relaxed);
  return env_read(v->f->ctx->sst->env, v->fd, v->f->path, buf, n, off);
}

// Makes the bytes [off, off + n) of the file readable, until the next call.
static enum remixdb_status need(struct reading *v, uint64_t off, size_t n, const uint8_t **out) {
  if (off < v->win_at || off - v->win_at > v->win_len || n > v->win_len - (size_t)(off - v->win_at)) {
    v->win_len = 0;
    enum remixdb_status s = win_reserve(v->x, n);
    if (s == REMIXDB_OK) s = read_into(v, off, v->x->win, n);
    if (s != REMIXDB_OK) return s;
    v->win_at = off;
    v->win_len = n;
  }
  *out = v->x->win + (off - v->win_at);
  return REMIXDB_OK;
}

// Reads the head, and the whole record where that is small, and compares them with the reference and the key.
static enum remixdb_status read_head(struct reading *v, const struct value_ref *r, struct kref key) {
  const size_t want = first_read(key.len, r->len);
  enum remixdb_status s = win_reserve(v->x, want);
  size_t nr = 0;
  const uint64_t began = value_cold(v->f->ctx) ? 0 : time_ns();
  if (s == REMIXDB_OK) s = env_read_upto(v->f->ctx->sst->env, v->fd, v->f->path, v->x->win, want, v->at, &nr);
  if (s != REMIXDB_OK) return s;
  if (began) cold_learn(v->f->ctx, time_ns() - began, nr);
  atomic_fetch_add_explicit(&v->f->ctx->read_bytes, nr, memory_order_relaxed);
  v->win_at = v->at;
  v->win_len = nr;
  if (!value_rec_get(v->x->win, nr, v->f->key, v->at, &v->rec)) return broken(v, v->at, "head");
  if ((uint32_t)v->rec.sum != r->check || v->rec.vlen != r->len || v->rec.klen != key.len || v->rec.index != v->index ||
      (key.len && memcmp(v->x->win + VALUE_REC_HEAD, key.ptr, key.len) != 0))
    return broken(v, v->at, "the record that refers to this does not fit the head");
  v->entries = v->at + value_entries_at(key.len);
  v->data = v->at + value_data_at(key.len, r->len);
  return REMIXDB_OK;
}

// Goes to the entries from chunk `c` on.
static enum remixdb_status read_entries(struct reading *v, uint64_t c) {
  const uint64_t left = value_chunks(v->rec.vlen) - c;
  const uint32_t nr = left < VALUE_ENTRIES ? (uint32_t)left : VALUE_ENTRIES, before = c > 0;
  const uint8_t *p;
  const enum remixdb_status s = need(v, v->entries + (c - before) * VALUE_ENTRY, (size_t)(nr + before) * VALUE_ENTRY,
                                     &p);
  if (s != REMIXDB_OK) return s;
  v->prev = before ? load64le(p) : 0;
  memcpy(v->entry, p + before * VALUE_ENTRY, (size_t)nr * VALUE_ENTRY);
  v->first = c;
  v->nr = nr;
  return REMIXDB_OK;
}

// A chunk's place among the record's chunks.
struct chunk {
  uint64_t begin, sum;
  uint32_t stored, len;  // bytes in the file, and of the value
};

static enum remixdb_status find_chunk(struct reading *v, uint64_t c, struct chunk *out) {
  if (v->nr == 0 || c < v->first || c >= v->first + v->nr) {
    const enum remixdb_status s = read_entries(v, c);
    if (s != REMIXDB_OK) return s;
  }
  const uint8_t *const e = v->entry + (c - v->first) * VALUE_ENTRY;
  const uint64_t begin = c == v->first ? v->prev : load64le(e - VALUE_ENTRY), end = load64le(e);
  const uint32_t len = value_chunk_len(v->rec.vlen, c);
  const bool last = c + 1 == value_chunks(v->rec.vlen);
  if (end <= begin || end - begin > len || end > v->rec.stored || (last && end != v->rec.stored))
    return broken(v, v->entries + c * VALUE_ENTRY, "an entry");
  *out = (struct chunk){begin, load64le(e + 8), (uint32_t)(end - begin), len};
  return REMIXDB_OK;
}

static enum remixdb_status check_sum(const struct reading *v, const struct chunk *c, const uint8_t *stored) {
  if (likely(hash64_seed(stored, c->stored, value_chunk_seed(&v->rec, c->begin)) == c->sum)) return REMIXDB_OK;
  return broken(v, v->data + c->begin, "checksum of a chunk");
}

static enum remixdb_status unpack(struct reading *v, const struct chunk *c, const uint8_t *stored, uint8_t *to) {
  struct value_scratch *const x = v->x;
  if (!x->zstd && !(x->zstd = ZSTD_createDCtx_advanced(zmem())))
    return err_set(REMIXDB_NOMEM, "no memory for decompression");
  // exactly one frame: decompression accepts several
  const bool one = ZSTD_findFrameCompressedSize(stored, c->stored) == c->stored;
  const size_t n = one ? ZSTD_decompressDCtx(x->zstd, to, c->len, stored, c->stored) : 0;
  return one && n == c->len ? REMIXDB_OK : broken(v, v->data + c->begin, "frame of a chunk");
}

// Reads the bytes [from, to) of a chunk into buf; NULL: only checks it.
static enum remixdb_status read_chunk(struct reading *v, const struct chunk *c, uint32_t from, uint32_t to,
                                      uint8_t *buf) {
  const uint8_t *p;
  enum remixdb_status s = need(v, v->data + c->begin, c->stored, &p);
  if (s == REMIXDB_OK) s = check_sum(v, c, p);
  if (s != REMIXDB_OK) return s;
  const bool whole = from == 0 && to == c->len;
  if (c->stored != c->len) {
    if (whole && buf) return unpack(v, c, p, buf);
    if (!v->x->chunk && !(v->x->chunk = mem_alloc(VALUE_CHUNK))) return REMIXDB_NOMEM;
    if ((s = unpack(v, c, p, v->x->chunk)) != REMIXDB_OK) return s;
    p = v->x->chunk;
  }
  if (buf) memcpy(buf, p + from, to - from);
  return REMIXDB_OK;
}

// Reads whole chunks that lie in the file as they are, from chunk `c` on and up to the end `to` of the value's bytes,
// straight into buf. *n_out: bytes read; 0: the first chunk is not of that kind.
static enum remixdb_status read_plain(struct reading *v, uint64_t c, uint64_t to, uint8_t *buf, uint32_t *n_out) {
  struct chunk run[VALUE_RUN / VALUE_CHUNK];
  uint32_t nr = 0, n = 0;
  enum remixdb_status s = REMIXDB_OK;
  *n_out = 0;
  for (; nr < VALUE_RUN / VALUE_CHUNK && c + nr < value_chunks(v->rec.vlen); nr++) {
    if ((s = find_chunk(v, c + nr, &run[nr])) != REMIXDB_OK) return s;
    if (run[nr].stored != run[nr].len || (c + nr) * VALUE_CHUNK + run[nr].len > to) break;
    n += run[nr].len;
  }
  if (nr == 0) return s;
  s = read_into(v, v->data + run[0].begin, buf, n);
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) s = check_sum(v, &run[i], buf + (run[i].begin - run[0].begin));
  *n_out = n;
  return s;
}

// Reads the bytes [from, to) of the value. buf NULL: only checks them.
static enum remixdb_status read_range(struct reading *v, uint64_t from, uint64_t to, uint8_t *buf) {
  while (from < to) {
    const uint64_t c = from / VALUE_CHUNK;
    const uint32_t in = (uint32_t)(from % VALUE_CHUNK);
    uint32_t n = 0;
    enum remixdb_status s = REMIXDB_OK;
    // Bytes that are in the window already are copied from there.
    if (buf && in == 0 && v->rec.vlen > VALUE_ONCE) s = read_plain(v, c, to, buf, &n);
    if (s == REMIXDB_OK && n == 0) {
      struct chunk chunk;
      if ((s = find_chunk(v, c, &chunk)) != REMIXDB_OK) return s;
      const uint64_t end = to - c * VALUE_CHUNK;
      n = (end < chunk.len ? (uint32_t)end : chunk.len) - in;
      s = read_chunk(v, &chunk, in, in + n, buf);
    }
    if (s != REMIXDB_OK) return s;
    from += n;
    if (buf) buf += n;
  }
  return REMIXDB_OK;
}

static enum remixdb_status reading_run(struct value_file *f, const struct value_ref *r, struct kref key, uint32_t off,
                                       uint8_t *buf, uint32_t n, bool index) {
  struct value_ctx *const c = f->ctx;
  struct value_scratch *const x = scratch_take(c);
  if (!x) return REMIXDB_NOMEM;
  // Each chunk's entries are set before they are read, so `entry` needs no zeros.
  struct reading v;
  v.f = f;
  v.x = x;
  v.at = v.win_at = r->at;
  v.win_len = 0;
  v.index = index;
  v.nr = 0;
  v.first = v.prev = 0;
  enum remixdb_status s = fdpool_acquire(&f->file, &v.fd);
  if (s == REMIXDB_OK) {
    s = read_head(&v, r, key);
    if (s == REMIXDB_OK) s = read_range(&v, off, (uint64_t)off + n, buf);
    fdpool_release(&f->file);
  }
  scratch_give(c, x);
  atomic_fetch_add_explicit(&c->reads, 1, memory_order_relaxed);
  return s;
}

enum remixdb_status value_read(struct value_file *f, const struct value_ref *r, struct kref key, uint32_t off,
                               void *buf, uint32_t cap, uint32_t *n_out) {
  const uint32_t left = off < r->len ? r->len - off : 0, n = left < cap ? left : cap;
  *n_out = n;
  return n ? reading_run(f, r, key, off, buf, n, false) : REMIXDB_OK;
}

uint64_t value_first_end(const struct value_ref *r, uint32_t klen) {
  return r->at + (r->len <= VALUE_ONCE ? first_read(klen, r->len) : VALUE_ONCE);
}

void value_will_need(struct value_file *f, uint64_t from, uint64_t to, uint32_t nr) {
  struct value_ctx *const c = f->ctx;
  const uint32_t cold = atomic_load_explicit(&c->cold, memory_order_relaxed);
  const uint64_t size = value_file_size(f);
  int fd;
  if (from >= size || !fdpool_try_acquire(&f->file, &fd)) return;
  env_advise(c->sst->env, fd, from, (to < size ? to : size) - from, ENV_WILL_NEED);
  fdpool_release(&f->file);
  atomic_store_explicit(&c->cold, cold > nr ? cold - nr : 0, memory_order_relaxed);  // two threads may count as one
}

enum remixdb_status value_expect(struct value_file *f, const struct value_ref *r, struct kref key) {
  return likely(r->len <= VALUE_TRUSTED) ? REMIXDB_OK : reading_run(f, r, key, r->len - 1, NULL, 1, false);
}

enum remixdb_status value_check(struct value_file *f, const struct value_ref *r, struct kref key) {
  return reading_run(f, r, key, 0, NULL, r->len, false);
}

enum remixdb_status value_read_index(struct value_file *f, const struct value_ref *r, struct kref key, void *buf) {
  return reading_run(f, r, key, 0, buf, r->len, true);
}
