// SPDX-License-Identifier: Apache-2.0
#include "value/move.h"

#include <assert.h>

#define PASS_WINDOW (1u << 20)                                        // bytes that one call reads
#define HEAD_MOST align_up(VALUE_REC_HEAD + KV_KEY_MAX, VALUE_ALIGN)  // bytes of a record's head and key
#define MOVE_BUF (1u << 20)                                           // bytes that one call writes
#define MOVE_IN (256u << 10)                                          // bytes of chunks that one call reads

// ---- the records of a file

enum remixdb_status value_pass_init(struct value_pass *p, struct value_file *f) {
  *p = (struct value_pass){.at = VALUE_HEAD, .end = value_file_size(f)};
  if (!(p->win = mem_alloc(PASS_WINDOW))) return REMIXDB_NOMEM;
  value_file_ref(p->f = f);
  return REMIXDB_OK;
}

void value_pass_fini(struct value_pass *p) {
  value_file_unref(p->f);
  mem_free(p->win);
  *p = (struct value_pass){0};
}

static enum remixdb_status read_some(struct value_file *f, uint64_t at, void *buf, size_t want, size_t *nr_out) {
  int fd;
  *nr_out = 0;
  enum remixdb_status s = fdpool_acquire(&f->file, &fd);
  if (s != REMIXDB_OK) return s;
  s = env_read_upto(f->ctx->sst->env, fd, f->path, buf, want, at, nr_out);
  fdpool_release(&f->file);
  return s;
}

// Makes the window begin at p->at, unless it has a whole head from there on, or the file's end.
static enum remixdb_status look_on(struct value_pass *p) {
  const uint64_t has = p->win_at + p->win_len;
  if (p->at >= p->win_at && (has >= p->end || p->at + HEAD_MOST <= has)) return REMIXDB_OK;
  const uint64_t left = p->end - p->at;
  size_t nr;
  p->win_at = p->at;
  p->win_len = 0;
  const enum remixdb_status s = read_some(p->f, p->at, p->win, left < PASS_WINDOW ? (size_t)left : PASS_WINDOW, &nr);
  if (s != REMIXDB_OK) return s;
  p->win_len = nr;
  if (p->at + nr < p->end && nr < PASS_WINDOW) p->end = p->at + nr;  // the last record may end in zeros
  return REMIXDB_OK;
}

enum remixdb_status value_pass_next(struct value_pass *p, uint64_t stop, bool *any_out, uint64_t *at_out,
                                    struct value_rec *rec_out) {
  *any_out = false;
  while (p->at < stop && p->at + VALUE_REC_HEAD <= p->end) {
    const enum remixdb_status s = look_on(p);
    if (s != REMIXDB_OK) return s;
    const uint64_t has = p->win_at + p->win_len;
    // The last places at which the window has a whole head, or all that the file has.
    const uint64_t last = has >= p->end ? has : has - HEAD_MOST;
    for (; p->at < stop && p->at <= last && p->at + VALUE_REC_HEAD <= has; p->at += VALUE_ALIGN) {
      const uint8_t *const head = p->win + (p->at - p->win_at);
      if (likely(!value_rec_may_begin(head, p->f->key))) continue;
      if (!value_rec_get(head, (size_t)(has - p->at), p->f->key, p->at, rec_out)) continue;
      p->key = kref(head + VALUE_REC_HEAD, rec_out->klen);
      *at_out = p->at;
      p->at += VALUE_ALIGN;
      *any_out = true;
      return REMIXDB_OK;
    }
  }
  if (p->at < stop) p->at = stop < p->end ? stop : p->end;
  return REMIXDB_OK;
}

void value_pass_over(struct value_pass *p, uint64_t at, const struct value_rec *rec) {
  p->at = at + value_rec_len(rec->klen, rec->vlen, rec->stored);
}

// ---- the new file

enum remixdb_status value_mover_flush(struct value_mover *m) {
  if (m->len == 0) return REMIXDB_OK;
  const enum remixdb_status s = env_write(m->ctx->sst->env, m->to->fd, m->to->path, m->buf, m->len, m->flushed);
  if (s != REMIXDB_OK) return s;
  m->written += m->len;
  m->flushed += m->len;
  m->len = 0;
  if (m->flushed > m->highest) value_file_set_size(m->to, m->highest = m->flushed);
  return s;
}

// p NULL: zeros.
static enum remixdb_status append(struct value_mover *m, const uint8_t *p, size_t n) {
  while (n) {
    if (m->len == MOVE_BUF) {
      const enum remixdb_status s = value_mover_flush(m);
      if (s != REMIXDB_OK) return s;
    }
    const size_t part = n < MOVE_BUF - m->len ? n : MOVE_BUF - m->len;
    if (p) memcpy(m->buf + m->len, p, part);
    else memset(m->buf + m->len, 0, part);
    m->len += part;
    n -= part;
    if (p) p += part;
  }
  return REMIXDB_OK;
}

static enum remixdb_status make_file(struct value_mover *m, uint64_t number) {
  const struct sst_ctx *const x = m->ctx->sst;
  uint8_t head[VALUE_HEAD];
  struct value_head h = {.store_id = x->store_id, .number = number, .nonce = random_seed()};
  value_head_put(head, &h);
  enum remixdb_status s = value_file_make(m->ctx, &h, &m->to);
  if (s != REMIXDB_OK) {
    m->to = NULL;
    return s;
  }
  m->to->full = true;
  s = env_create(x->dir, env_name(m->to->path), ENV_WRITE, &m->to->fd);
  if (s == REMIXDB_OK) s = append(m, head, sizeof(head));
  m->at = VALUE_HEAD;
  return s;
}

enum remixdb_status value_mover_begin(struct value_mover *m, uint64_t number) {
  m->buf = mem_alloc(MOVE_BUF);
  m->in = mem_alloc(MOVE_IN);
  m->in_room = MOVE_IN;
  enum remixdb_status s = m->buf && m->in ? make_file(m, number) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) return s;
  struct err_saved why;
  err_save(&why, s);
  err_cleanup_begin();
  value_mover_fini(m, true);
  err_cleanup_end();
  return err_raise(&why);
}

// Reads exactly n bytes of the record into m->in.
static enum remixdb_status read_in(struct value_mover *m, struct value_file *from, uint64_t at, size_t n) {
  size_t nr;
  if (n > m->in_room) {
    mem_free(m->in);
    m->in_room = 0;
    if (!(m->in = mem_alloc(n))) return REMIXDB_NOMEM;
    m->in_room = n;
  }
  const enum remixdb_status s = read_some(from, at, m->in, n, &nr);
  if (s != REMIXDB_OK || nr == n) return s;
  return err_corrupt(from->path, at + nr, "the file ends inside a value");
}

// Chunks [first, first + nr) whose bytes are to be copied. Entries are in `entries`.
struct copying {
  struct value_file *from;
  uint64_t at;  // the record's offset
  const struct value_rec *rec;
  uint8_t *entries;
  uint64_t data;  // offset of the chunks
};

static enum remixdb_status broken(const struct copying *c, const char *what) {
  return err_corrupt(c->from->path, c->at, "%s of the value at %llu", what, (unsigned long long)c->at);
}

// Checks the entry of a chunk. *begin_out, *stored_out: where its bytes are.
static enum remixdb_status chunk_of(const struct copying *c, uint64_t i, uint64_t *begin_out, uint32_t *stored_out) {
  const uint8_t *const e = c->entries + i * VALUE_ENTRY;
  const uint64_t begin = i ? load64le(e - VALUE_ENTRY) : 0, end = load64le(e);
  const bool last = i + 1 == value_chunks(c->rec->vlen);
  if (end <= begin || end - begin > value_chunk_len(c->rec->vlen, i) || end > c->rec->stored ||
      (last && end != c->rec->stored))
    return broken(c, "an entry");
  *begin_out = begin;
  *stored_out = (uint32_t)(end - begin);
  return REMIXDB_OK;
}

// Reads and checks as many chunks from number i on as one read takes. *nr_out: how many, and *n_out: their bytes.
static enum remixdb_status read_chunks(struct value_mover *m, const struct copying *c, uint64_t i, uint64_t *nr_out,
                                       size_t *n_out) {
  const uint64_t all = value_chunks(c->rec->vlen);
  uint64_t first = 0, begin = 0;
  uint32_t stored = 0;
  size_t n = 0;
  enum remixdb_status s = REMIXDB_OK;
  *nr_out = 0;
  for (; i + *nr_out < all; ++*nr_out) {
    if ((s = chunk_of(c, i + *nr_out, &begin, &stored)) != REMIXDB_OK) return s;
    if (*nr_out && n + stored > MOVE_IN) break;
    if (*nr_out == 0) first = begin;
    n += stored;
  }
  if ((s = read_in(m, c->from, c->data + first, n)) != REMIXDB_OK) return s;
  for (uint64_t k = i; k < i + *nr_out && s == REMIXDB_OK; k++) {
    if ((s = chunk_of(c, k, &begin, &stored)) != REMIXDB_OK) return s;
    const uint64_t sum = hash64_seed(m->in + (begin - first), stored, value_chunk_seed(c->rec, begin));
    if (sum != load64le(c->entries + k * VALUE_ENTRY + 8)) s = broken(c, "checksum of a chunk");
  }
  *n_out = n;
  return s;
}

// Writes the head and the key of a record at m->at, and sets its checksum.
static enum remixdb_status append_head(struct value_mover *m, struct kref key, struct value_rec *r) {
  const size_t n = (size_t)value_entries_at(r->klen);
  uint8_t small[256], *const p = n <= sizeof(small) ? small : mem_alloc(n);
  if (!p) return REMIXDB_NOMEM;
  value_rec_put(p, m->to->key, m->at, key.ptr, r);
  const enum remixdb_status s = append(m, p, n);
  if (p != small) mem_free(p);
  return s;
}

// The record at m->at ends here.
static enum remixdb_status end_record(struct value_mover *m, const struct value_rec *r, struct value_ref *ref_out) {
  const uint64_t end = value_data_at(r->klen, r->vlen) + r->stored;
  *ref_out = (struct value_ref){m->to->number, m->at, r->vlen, (uint32_t)r->sum};
  m->at += value_rec_len(r->klen, r->vlen, r->stored);
  return append(m, NULL, (size_t)(value_rec_len(r->klen, r->vlen, r->stored) - end));
}

enum remixdb_status value_mover_copy(struct value_mover *m, struct value_file *from, uint64_t at,
                                     const struct value_rec *rec, struct kref key, struct value_ref *is_out,
                                     bool *of_source_out) {
  struct value_rec r = *rec;
  const uint64_t nr = value_chunks(r.vlen);
  const size_t n = (size_t)(nr * VALUE_ENTRY);
  struct copying c = {from, at, rec, mem_alloc(n), at + value_data_at(r.klen, r.vlen)};
  *of_source_out = false;
  assert(!rec->index && m->at == m->flushed + m->len);
  enum remixdb_status s = c.entries ? append_head(m, key, &r) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK && (s = read_in(m, from, at + value_entries_at(r.klen), n)) != REMIXDB_OK) *of_source_out = true;
  if (s == REMIXDB_OK) {
    memcpy(c.entries, m->in, n);
    s = append(m, c.entries, n);
  }
  for (uint64_t i = 0, some; i < nr && s == REMIXDB_OK; i += some) {
    size_t bytes;
    if ((s = read_chunks(m, &c, i, &some, &bytes)) != REMIXDB_OK) *of_source_out = true;
    else s = append(m, m->in, bytes);
  }
  mem_free(c.entries);
  if (s == REMIXDB_OK) s = end_record(m, &r, is_out);
  if (s == REMIXDB_OK) m->bytes += r.vlen;
  return s;
}

void value_mover_back(struct value_mover *m, uint64_t at, uint64_t bytes) {
  if (at < m->flushed) {
    m->flushed = at;
    m->len = 0;
  } else {
    m->len = (size_t)(at - m->flushed);
  }
  m->at = at;
  m->bytes = bytes;
}

enum remixdb_status value_mover_index(struct value_mover *m, uint64_t number, const uint8_t *entries, uint32_t len,
                                      struct value_ref *ref_out) {
  uint8_t buf[VALUE_INDEX_KEY];
  struct value_rec r = {.klen = VALUE_INDEX_KEY, .vlen = len, .stored = len, .nonce = random_seed(), .index = true};
  enum remixdb_status s = append_head(m, value_index_key(number, buf), &r);
  for (uint64_t c = 0; c < value_chunks(len) && s == REMIXDB_OK; c++) {
    const uint64_t begin = c * VALUE_CHUNK;
    const uint32_t n = value_chunk_len(len, c);
    uint8_t e[VALUE_ENTRY];
    store64le(e, begin + n);
    store64le(e + 8, hash64_seed(entries + begin, n, value_chunk_seed(&r, begin)));
    s = append(m, e, sizeof(e));
  }
  if (s == REMIXDB_OK) s = append(m, entries, len);
  return s == REMIXDB_OK ? end_record(m, &r, ref_out) : s;
}

enum remixdb_status value_mover_sync(struct value_mover *m) {
  const enum remixdb_status s = value_mover_flush(m);
  return s == REMIXDB_OK ? env_sync_data(m->ctx->sst->env, m->to->fd, m->to->path) : s;
}

enum remixdb_status value_mover_end(struct value_mover *m) {
  struct env *const env = m->ctx->sst->env;
  enum remixdb_status s = value_mover_flush(m);
  if (s == REMIXDB_OK && m->highest > m->at) s = env_truncate(env, m->to->fd, m->to->path, m->at);
  if (s == REMIXDB_OK) s = env_sync_all(env, m->to->fd, m->to->path);
  if (s != REMIXDB_OK) return s;
  value_file_set_size(m->to, m->at);
  atomic_store_explicit(&m->to->value_bytes, m->bytes, memory_order_relaxed);
  env_close_quiet(env, m->to->fd);
  m->to->fd = -1;
  return s;
}

void value_mover_fini(struct value_mover *m, bool remove) {
  if (m->to && remove) value_file_retire(m->to);
  value_file_unref(m->to);
  mem_free(m->buf);
  mem_free(m->in);
  *m = (struct value_mover){.ctx = m->ctx};
}
