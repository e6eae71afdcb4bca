// SPDX-License-Identifier: Apache-2.0
#include "value/read.h"

#include <assert.h>

#include "base/zmem.h"

#define VALUE_TRUSTED (16u << 20)  // memory for so many bytes is taken on a reference's word
#define VALUE_COLD 256u            // values that are asked for before they are read, once one came from the disk
#define VALUE_WARM (16u << 10)     // bytes that come from the page cache in the time of blkio.disk_ns
#define VALUE_ENTRIES 256u         // entries that are read at once

_Static_assert(VALUE_ONCE == VALUE_FEW * VALUE_CHUNK, "a value that is read by one call has few entries");

// ---- readings

// Bytes of the file that the owner of a reading has brought.
struct window {
  const uint8_t *bytes;
  uint64_t off;
  size_t len;
};

static enum remixdb_status broken(const struct value_reading *v, uint64_t off, const char *what) {
  return err_corrupt(v->f->path, off, "%s of the value at %llu", what, (unsigned long long)v->ref.at);
}

// How much of a record the first read takes.
static uint32_t first_read(uint32_t klen, uint32_t vlen) {
  if (vlen <= VALUE_ONCE) return (uint32_t)value_cost(klen, vlen);
  return (uint32_t)value_entries_at(klen) + VALUE_ENTRIES * VALUE_ENTRY;
}

void value_reading_begin(struct value_reading *v, struct value_file *f, const struct value_ref *r, struct kref key,
                         uint32_t off, void *buf, uint32_t n) {
  assert(n > 0 && off < r->len && n <= r->len - off);
  v->f = f;
  v->ref = *r;
  v->key = key;
  v->from = off;
  v->to = (uint64_t)off + n;
  v->buf = buf;
  v->index = v->headed = false;
  v->first = v->prev = 0;
  v->nr = 0;
  v->many = NULL;
  v->scratch = NULL;
  v->off = r->at;
  v->len = first_read(key.len, r->len);
  v->into = NULL;
}

void value_reading_end(struct value_reading *v) {
  mem_free(v->many);
  atomic_fetch_add_explicit(&v->f->ctx->reads, 1, memory_order_relaxed);
}

static void ask(struct value_reading *v, uint64_t off, uint32_t len, uint8_t *into) {
  v->off = off;
  v->len = len;
  v->into = into;
}

// Returns the bytes [off, off + n) of the file; NULL: the window does not have them.
static const uint8_t *look(const struct window *w, uint64_t off, size_t n) {
  if (off < w->off || off - w->off > w->len || n > w->len - (size_t)(off - w->off)) return NULL;
  return w->bytes + (off - w->off);
}

// Compares the head with the reference and the key.
static enum remixdb_status take_head(struct value_reading *v, const struct window *w) {
  const struct kref key = v->key;
  const struct value_ref *const r = &v->ref;
  if (!value_rec_get(w->bytes, w->len, v->f->key, r->at, &v->rec)) return broken(v, r->at, "head");
  if ((uint32_t)v->rec.sum != r->check || v->rec.vlen != r->len || v->rec.klen != key.len || v->rec.index != v->index ||
      (key.len && memcmp(w->bytes + VALUE_REC_HEAD, key.ptr, key.len) != 0))
    return broken(v, r->at, "the record that refers to this does not fit the head");
  v->entries = r->at + value_entries_at(key.len);
  v->data = r->at + value_data_at(key.len, r->len);
  v->headed = true;
  return REMIXDB_OK;
}

static uint8_t *entries_of(struct value_reading *v) { return v->many ? v->many : v->few; }

// Takes the entries from chunk `c` on, or asks for them.
static enum remixdb_status take_entries(struct value_reading *v, const struct window *w, uint64_t c) {
  const uint64_t all = value_chunks(v->rec.vlen), left = all - c;
  const uint32_t nr = left < VALUE_ENTRIES ? (uint32_t)left : VALUE_ENTRIES, before = c > 0;
  const uint64_t off = v->entries + (c - before) * VALUE_ENTRY;
  const uint32_t len = (nr + before) * VALUE_ENTRY;
  const uint8_t *const p = look(w, off, len);
  if (!p) {
    ask(v, off, len, NULL);
    return REMIXDB_OK;
  }
  if (all > VALUE_FEW && !v->many && !(v->many = mem_alloc(VALUE_ENTRIES * VALUE_ENTRY))) return REMIXDB_NOMEM;
  v->prev = before ? load64le(p) : 0;
  memcpy(entries_of(v), p + before * VALUE_ENTRY, (size_t)nr * VALUE_ENTRY);
  v->first = c;
  v->nr = nr;
  return REMIXDB_OK;
}

static bool has_entry(const struct value_reading *v, uint64_t c) { return c >= v->first && c < v->first + v->nr; }

// A chunk's place among the record's chunks.
struct chunk {
  uint64_t begin, sum;
  uint32_t stored, len;  // bytes in the file, and of the value
};

// The reading has the chunk's entry.
static enum remixdb_status find_chunk(struct value_reading *v, uint64_t c, struct chunk *out) {
  const uint8_t *const e = entries_of(v) + (c - v->first) * VALUE_ENTRY;
  const uint64_t begin = c == v->first ? v->prev : load64le(e - VALUE_ENTRY), end = load64le(e);
  const uint32_t len = value_chunk_len(v->rec.vlen, c);
  const bool last = c + 1 == value_chunks(v->rec.vlen);
  if (end <= begin || end - begin > len || end > v->rec.stored || (last && end != v->rec.stored))
    return broken(v, v->entries + c * VALUE_ENTRY, "an entry");
  *out = (struct chunk){begin, load64le(e + 8), (uint32_t)(end - begin), len};
  return REMIXDB_OK;
}

static enum remixdb_status check_sum(const struct value_reading *v, const struct chunk *c, const uint8_t *stored) {
  if (likely(hash64_seed(stored, c->stored, value_chunk_seed(&v->rec, c->begin)) == c->sum)) return REMIXDB_OK;
  return broken(v, v->data + c->begin, "checksum of a chunk");
}

// to: c->len bytes; NULL: into x->chunk.
static enum remixdb_status unpack(struct value_reading *v, struct value_scratch *x, const struct chunk *c,
                                  const uint8_t *stored, uint8_t *to) {
  if (!to && !x->chunk && !(x->chunk = mem_alloc(VALUE_CHUNK))) return REMIXDB_NOMEM;
  if (!x->zstd && !(x->zstd = ZSTD_createDCtx_advanced(zmem())))
    return err_set(REMIXDB_NOMEM, "no memory for decompression");
  // exactly one frame: decompression accepts several
  const bool one = ZSTD_findFrameCompressedSize(stored, c->stored) == c->stored;
  const size_t n = one ? ZSTD_decompressDCtx(x->zstd, to ? to : x->chunk, c->len, stored, c->stored) : 0;
  return one && n == c->len ? REMIXDB_OK : broken(v, v->data + c->begin, "frame of a chunk");
}

// Checks a chunk and copies its bytes [from, to) into buf; NULL: only checks it.
static enum remixdb_status use_chunk(struct value_reading *v, const struct chunk *c, const uint8_t *p, uint32_t from,
                                     uint32_t to, uint8_t *buf) {
  enum remixdb_status s = check_sum(v, c, p);
  if (s != REMIXDB_OK) return s;
  if (c->stored == c->len) {
    if (buf) memcpy(buf, p + from, to - from);
    return s;
  }
  const bool whole = from == 0 && to == c->len && buf;
  struct value_scratch *const x = v->scratch ? v->scratch : value_scratch_take(&v->f->ctx->scratch);
  if (!x) return REMIXDB_NOMEM;
  s = unpack(v, x, c, p, whole ? buf : NULL);
  if (s == REMIXDB_OK && !whole && buf) memcpy(buf, x->chunk + from, to - from);
  if (!v->scratch) value_scratch_give(&v->f->ctx->scratch, x);
  return s;
}

// Goes on behind n bytes of the value.
static void advance(struct value_reading *v, uint32_t n) {
  v->from += n;
  if (v->buf) v->buf += n;
}

// Counts the whole chunks from `c` on that lie in the file as they are (plain) or in any way, are wanted, have their
// entry, and take at most `most` bytes of the file. *len_out: their bytes in the file.
static enum remixdb_status run_of(struct value_reading *v, uint64_t c, bool plain, uint32_t most, uint32_t *len_out) {
  uint32_t len = 0;
  for (; has_entry(v, c) && c * VALUE_CHUNK < v->to; c++) {
    struct chunk k;
    const enum remixdb_status s = find_chunk(v, c, &k);
    if (s != REMIXDB_OK) return s;
    if (plain && (k.stored != k.len || c * VALUE_CHUNK + k.len > v->to)) break;
    if (len > 0 && k.stored > most - len) break;
    len += k.stored;
  }
  *len_out = len;
  return REMIXDB_OK;
}

// Checks the chunks that were read straight into the value's memory.
static enum remixdb_status take_run(struct value_reading *v, uint32_t len) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t done = 0; done < len && s == REMIXDB_OK;) {
    struct chunk k;
    s = find_chunk(v, v->from / VALUE_CHUNK, &k);
    if (s == REMIXDB_OK) s = check_sum(v, &k, v->buf);
    done += k.len;
    advance(v, k.len);
  }
  return s;
}

// Uses the chunk of the next byte, if the window has it, or asks for what is needed for that.
static enum remixdb_status step(struct value_reading *v, const struct window *w) {
  const uint64_t c = v->from / VALUE_CHUNK;
  const uint32_t in = (uint32_t)(v->from % VALUE_CHUNK);
  uint32_t len = 0;
  enum remixdb_status s = REMIXDB_OK;
  if (!has_entry(v, c)) return take_entries(v, w, c);
  // Bytes of a short value are in the window already, and are copied from there (R3).
  if (v->buf && in == 0 && v->rec.vlen > VALUE_ONCE) s = run_of(v, c, true, VALUE_RUN, &len);
  struct chunk k = {0};
  if (s == REMIXDB_OK) s = find_chunk(v, c, &k);
  if (s != REMIXDB_OK) return s;
  if (len > 0) {
    ask(v, v->data + k.begin, len, v->buf);
    return s;
  }
  const uint8_t *const p = look(w, v->data + k.begin, k.stored);
  if (!p) {
    // A plain read brings one chunk, which the processor's cache still has when it is unpacked.
    s = run_of(v, c, false, v->scratch ? k.stored : VALUE_ONCE, &len);
    ask(v, v->data + k.begin, len, NULL);
    return s;
  }
  const uint64_t end = v->to - c * VALUE_CHUNK;
  const uint32_t to = end < k.len ? (uint32_t)end : k.len;
  s = use_chunk(v, &k, p, in, to, v->buf);
  advance(v, to - in);
  return s;
}

enum remixdb_status value_reading_take(struct value_reading *v, const uint8_t *bytes, size_t n) {
  const struct window w = {bytes, v->off, n};
  const uint32_t len = v->len;
  const bool run = v->into != NULL;
  enum remixdb_status s = REMIXDB_OK;
  atomic_fetch_add_explicit(&v->f->ctx->read_bytes, n, memory_order_relaxed);
  ask(v, 0, 0, NULL);
  // The file may end behind a record before the bytes that the first read asks for.
  if (!v->headed) s = take_head(v, &w);
  else if (n < len) s = err_corrupt(v->f->path, w.off + n, "truncated: %zu bytes missing", (size_t)len - n);
  else if (run) s = take_run(v, len);
  while (s == REMIXDB_OK && v->len == 0 && v->from < v->to) s = step(v, &w);
  if (s != REMIXDB_OK) v->len = 0;
  return s;
}

// ---- reading at once

// Learns from the wait of ns nanoseconds for len bytes.
static void cold_learn(struct value_ctx *c, uint64_t ns, size_t len) {
  const struct blkio *const io = c->sst->io;
  if (io && ns / (1 + len / VALUE_WARM) >= io->disk_ns)
    atomic_store_explicit(&c->cold, VALUE_COLD, memory_order_relaxed);
}

// Brings the bytes that the reading needs.
static enum remixdb_status bring(struct value_reading *v, int fd) {
  struct value_ctx *const c = v->f->ctx;
  uint8_t *to = v->into;
  size_t n = 0;
  enum remixdb_status s = REMIXDB_OK;
  if (!to) {
    s = value_scratch_reserve(v->scratch, v->len);
    to = v->scratch->win;
  }
  const uint64_t began = v->headed || value_cold(c) ? 0 : time_ns();
  if (s == REMIXDB_OK) s = env_read_upto(c->sst->env, fd, v->f->path, to, v->len, v->off, &n);
  if (s != REMIXDB_OK) return s;
  if (began) cold_learn(c, time_ns() - began, n);
  return value_reading_take(v, to, n);
}

static enum remixdb_status read_now(struct value_file *f, const struct value_ref *r, struct kref key, uint32_t off,
                                    void *buf, uint32_t n, bool index) {
  struct value_reading v;
  int fd;
  struct value_scratch *const x = value_scratch_take(&f->ctx->scratch);
  if (!x) return REMIXDB_NOMEM;
  value_reading_begin(&v, f, r, key, off, buf, n);
  v.index = index;
  v.scratch = x;
  enum remixdb_status s = fdpool_acquire(&f->file, &fd);
  if (s == REMIXDB_OK) {
    while (s == REMIXDB_OK && v.len > 0) s = bring(&v, fd);
    fdpool_release(&f->file);
  }
  value_reading_end(&v);
  value_scratch_give(&f->ctx->scratch, x);
  return s;
}

enum remixdb_status value_read(struct value_file *f, const struct value_ref *r, struct kref key, uint32_t off,
                               void *buf, uint32_t cap, uint32_t *n_out) {
  const uint32_t left = off < r->len ? r->len - off : 0, n = left < cap ? left : cap;
  *n_out = n;
  return n ? read_now(f, r, key, off, buf, n, false) : REMIXDB_OK;
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
  return likely(r->len <= VALUE_TRUSTED) ? REMIXDB_OK : read_now(f, r, key, r->len - 1, NULL, 1, false);
}

enum remixdb_status value_check(struct value_file *f, const struct value_ref *r, struct kref key) {
  return read_now(f, r, key, 0, NULL, r->len, false);
}

enum remixdb_status value_read_index(struct value_file *f, const struct value_ref *r, struct kref key, void *buf) {
  return read_now(f, r, key, 0, buf, r->len, true);
}
