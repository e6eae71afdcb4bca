// SPDX-License-Identifier: Apache-2.0
#include "wal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

// ---- format (docs/FORMAT.md, "The log")

#define WAL_MAGIC 0x4C4157584D455223ull  // "#REMXWAL"
#define WAL_VERSION 1u
#define WAL_HEAD 512u        // of a segment: one sector, so that it is there whole or not at all
#define WAL_HEAD_SUM 504u    // offset of its checksum, in this and every later version
#define WAL_LEVEL 448u       // offset of the watermark, which the header's checksum leaves out: it is written later, in place
#define WAL_LEVEL_LEN 24u
#define WAL_FRAME_HEAD 40u
#define WAL_FRAME_MAX (1u << 30)  // payload of one frame
#define WAL_NUMBER_MAX ((uint64_t)1 << 62)  // of generations and sequence numbers; they count up, so that this is never reached

#define WAL_SPARES 2u          // files kept for recycling
#define WAL_WINDOW (1u << 20)  // recovery reads in pieces of this size

struct wal_head {
  uint64_t store_id, gen;
  uint64_t prev_gen, prev_len, prev_durable;  // prev_len 0: there is none before
  uint64_t last_seq;                          // of all segments before
};

// A watermark: segment `gen` is durable up to `end`, and every older one whole. It is in that segment's header, and in the one's
// before it, so that a segment can be missed. gen 0: none.
struct wal_level {
  uint64_t gen, end;
};

// What the frames of one segment are tied to it with.
struct wal_key {
  uint64_t seed;
  uint32_t magic;
};

struct wal_frame {
  uint64_t sum, first_seq, durable;
  uint32_t len, count;
};

static void wal_head_put(uint8_t *p, const struct wal_head *h) {
  memset(p, 0, WAL_HEAD);
  store64le(p, WAL_MAGIC);
  store32le(p + 8, WAL_VERSION);
  store64le(p + 16, h->store_id);
  store64le(p + 24, h->gen);
  store64le(p + 32, h->prev_gen);
  store64le(p + 40, h->prev_len);
  store64le(p + 48, h->prev_durable);
  store64le(p + 56, h->last_seq);
  store64le(p + WAL_HEAD_SUM, hash64(p, WAL_LEVEL));
}

// REMIXDB_NOTFOUND: these bytes are no header of this store. REMIXDB_VERSION: they are one that this library cannot read.
static enum remixdb_status wal_head_get(const uint8_t *p, const char *path, uint64_t store_id, struct wal_head *out) {
  if (load64le(p) != WAL_MAGIC || load64le(p + WAL_HEAD_SUM) != hash64(p, WAL_LEVEL)) return REMIXDB_NOTFOUND;
  const uint32_t version = load32le(p + 8);
  if (version > WAL_VERSION) return err_set(REMIXDB_VERSION, "%s: log format %u, known up to %u", path, version, WAL_VERSION);
  *out = (struct wal_head){.store_id = load64le(p + 16), .gen = load64le(p + 24), .prev_gen = load64le(p + 32),
                           .prev_len = load64le(p + 40), .prev_durable = load64le(p + 48), .last_seq = load64le(p + 56)};
  const bool sane = version == WAL_VERSION && out->store_id == store_id && out->gen <= WAL_NUMBER_MAX &&
                    out->prev_durable <= out->prev_len && (out->prev_len == 0 || (out->prev_len >= WAL_HEAD && out->prev_gen < out->gen));
  return sane ? REMIXDB_OK : REMIXDB_NOTFOUND;
}

static struct wal_key wal_key(uint64_t store_id, uint64_t gen) {
  uint8_t id[16];
  store64le(id, store_id);
  store64le(id + 8, gen);
  const uint64_t seed = hash64(id, sizeof(id));
  return (struct wal_key){.seed = seed, .magic = (uint32_t)(seed >> 32) | 1};  // its first byte is never the 0 of empty space
}

// p: where the watermark is in the header of the segment k.
static void wal_level_put(uint8_t *p, const struct wal_key *k, const struct wal_level *l) {
  store64le(p + 8, l->gen);
  store64le(p + 16, l->end);
  store64le(p, hash64_seed(p + 8, WAL_LEVEL_LEN - 8, k->seed + WAL_LEVEL));
}

// What is not sound says nothing: gen 0.
static struct wal_level wal_level_get(const uint8_t *p, const struct wal_key *k, uint64_t gen) {
  const struct wal_level l = {.gen = load64le(p + 8), .end = load64le(p + 16)};
  const bool sound = load64le(p) == hash64_seed(p + 8, WAL_LEVEL_LEN - 8, k->seed + WAL_LEVEL) && l.gen >= gen && l.end >= WAL_HEAD;
  return sound ? l : (struct wal_level){0};
}

// The offset in the seed ties a frame to its place: a copy of it elsewhere, in a value for example, is no frame.
static uint32_t wal_frame_check(const struct wal_key *k, uint64_t off, const uint8_t *p) {
  return (uint32_t)hash64_seed(p + 8, 28, ~(k->seed + off));
}

static uint64_t wal_frame_sum(const struct wal_key *k, uint64_t off, const uint8_t *p, size_t len) {
  return hash64_seed(p + 8, WAL_FRAME_HEAD - 8 + len, k->seed + off);
}

// p: head and payload of a frame that goes to offset off. Fills in the head.
static void wal_frame_put(uint8_t *p, const struct wal_key *k, uint64_t off, const struct wal_frame *f) {
  store32le(p + 8, k->magic);
  store32le(p + 12, f->len);
  store64le(p + 16, f->first_seq);
  store64le(p + 24, f->durable);
  store32le(p + 32, f->count);
  store32le(p + 36, wal_frame_check(k, off, p));
  store64le(p, wal_frame_sum(k, off, p, f->len));
}

// Whether p, WAL_FRAME_HEAD bytes, is the head of a frame of this segment at this offset. Says nothing of the payload.
static bool wal_frame_get(const uint8_t *p, const struct wal_key *k, uint64_t off, struct wal_frame *out) {
  if (load32le(p + 8) != k->magic || load32le(p + 36) != wal_frame_check(k, off, p)) return false;
  *out = (struct wal_frame){.sum = load64le(p), .len = load32le(p + 12), .first_seq = load64le(p + 16),
                            .durable = load64le(p + 24), .count = load32le(p + 32)};
  return out->count > 0 && out->count <= out->len && out->len <= WAL_FRAME_MAX && out->durable <= off &&
         (out->durable == 0 || out->durable >= WAL_HEAD);
}

// ---- structures

enum wal_buf_state { WAL_BUF_FREE, WAL_BUF_FILLING, WAL_BUF_SEALED, WAL_BUF_WRITING };
enum wal_buf_kind { WAL_BUF_NORMAL, WAL_BUF_BIG, WAL_BUF_HEADER };

// Bytes on their way to a segment: a frame, or a segment's header. Guarded by the log's lock; while it is being written only
// the writing thread looks at `mem`.
struct wal_buf {
  struct wal_buf *next;  // of the free ones, or of those that go out, in order
  struct wal_seg *seg;
  uint8_t *mem;
  size_t cap, len;
  uint64_t off, ticket;
  uint64_t first_seq, durable;
  uint32_t count;
  enum wal_buf_state state;
  enum wal_buf_kind kind;
  bool retained;  // the disk was full when it was written; it is tried again
};

// A file of the log: a live segment, the prepared next one, or a spare.
struct wal_seg {
  struct wal_seg *next;
  int fd;  // -1: closed
  uint32_t nr;
  bool headed;    // `h` was read from it (recovery)
  struct wal_head h;
  struct wal_key key;
  struct wal_level level;  // in its header (recovery; of a segment that is written: what was put there, under admin)
  uint64_t size;     // of the file (recovery)
  uint64_t end;      // of what was sealed into it
  uint64_t durable;  // up to here it is known to be on disk, and every older segment whole; 0: not even the header
  uint64_t alloc;    // up to here there is room on disk
  struct wal_buf head_buf;
  uint8_t head[WAL_HEAD];
  char path[];
};

// Something to wait for with the log's lock given up meanwhile. `tick` changes under both locks, so that either is enough to
// read it: who waits takes it under the log's lock, then sleeps under mu until it is another.
struct wal_event {
  pthread_mutex_t mu;
  pthread_cond_t cond;
  uint64_t tick;
  uint32_t waiters;  // under the log's lock
};

struct wal {
  // What an append touches. All of this struct is guarded by `lock` unless it says otherwise.
  struct lib_lock lock;
  bool end_work;      // wal_end has more to do than unlock
  uint8_t *pos;       // where the next record goes in `cur`
  uint8_t *lim;       // records may go up to here; equal to pos whenever an append has to stop and think
  uint64_t seq;       // the last number given
  struct wal_buf *cur;                // the buffer being filled, or NULL
  _Atomic uint64_t gen, seg_bytes;    // of the active segment; written under the lock, read relaxed by anyone
  _Atomic uint64_t durable_seq;       // the same

  _Alignas(CACHE_LINE) struct wal_seg *active;
  struct wal_seg *segs;               // oldest to active
  struct wal_buf *free;
  struct wal_buf *out_head, *out_tail;  // sealed or being written, by ticket
  uint64_t next_ticket;
  uint32_t nr_retained;
  bool syncing;                       // a thread leads a sync
  bool growing;                       // a thread makes room in the active segment
  uint64_t grow_refused;              // making room ahead failed at this size: not tried again before it is needed
  uint64_t durable_gen;               // the newest segment whose header is durable
  struct err_saved err;               // the sticky error
  struct wal_event written;           // a write or a growth ended
  struct wal_event synced;            // a sync ended
  struct wal_stats st;
  struct wal_buf bufs[4];

  // Never changes after wal_open.
  struct env *env;
  char *dir;
  uint64_t store_id;
  bool read_only;

  pthread_mutex_t admin;              // one prepare, switch or release at a time; taken before `lock`
  struct wal_seg *next;               // under admin: the prepared segment
  struct wal_seg *spares;             // under admin
  _Atomic uint32_t nr_spares;         // their number; relaxed
  uint8_t none[8];                    // pos and lim point here when there is no buffer
};

static void wal_event_init(struct wal_event *e) {
  (void)pthread_mutex_init(&e->mu, NULL);
  cond_init(&e->cond);
}

static void wal_event_fini(struct wal_event *e) {
  (void)pthread_cond_destroy(&e->cond);
  (void)pthread_mutex_destroy(&e->mu);
}

// Gives the lock up until the event happens next; it may also return early.
static void wal_event_wait(struct wal *w, struct wal_event *e) {
  const uint64_t tick = e->tick;
  e->waiters++;
  lib_unlock(&w->lock);
  (void)pthread_mutex_lock(&e->mu);
  while (e->tick == tick) (void)pthread_cond_wait(&e->cond, &e->mu);
  (void)pthread_mutex_unlock(&e->mu);
  lib_lock(&w->lock);
  e->waiters--;
}

// With the lock held.
static void wal_event_wake(struct wal_event *e) {
  if (e->waiters == 0) return;
  (void)pthread_mutex_lock(&e->mu);
  e->tick++;
  (void)pthread_cond_broadcast(&e->cond);
  (void)pthread_mutex_unlock(&e->mu);
}

// ---- files

static struct wal_seg *wal_seg_create(const char *dir, uint32_t nr) {
  const size_t len = strlen(dir) + sizeof("/wal-4294967295");
  struct wal_seg *const s = mem_calloc(1, sizeof(*s) + len);
  if (!s) return NULL;
  s->fd = -1;
  s->nr = nr;
  (void)snprintf(s->path, len, "%s/wal-%u", dir, nr);
  return s;
}

static void wal_seg_destroy(struct wal *w, struct wal_seg *s) {
  if (!s) return;
  env_close_quiet(w->env, s->fd);
  mem_free(s);
}

static void wal_segs_destroy(struct wal *w, struct wal_seg *s) {
  while (s) {
    struct wal_seg *const next = s->next;
    wal_seg_destroy(w, s);
    s = next;
  }
}

static void wal_spare_add(struct wal *w, struct wal_seg *s) {
  struct wal_seg **at = &w->spares;
  while (*at) at = &(*at)->next;
  s->next = NULL;
  *at = s;
  atomic_fetch_add_explicit(&w->nr_spares, 1, memory_order_relaxed);
}

static struct wal_seg *wal_spare_take(struct wal *w) {
  struct wal_seg *const s = w->spares;
  if (!s) return NULL;
  w->spares = s->next;
  s->next = NULL;
  atomic_fetch_sub_explicit(&w->nr_spares, 1, memory_order_relaxed);
  return s;
}

// The smallest number no file of the log has. Under admin, which whoever changes one of the lists holds too.
static uint32_t wal_free_nr(const struct wal *w) {
  for (uint32_t nr = 0;; nr++) {
    bool used = w->next && w->next->nr == nr;
    for (const struct wal_seg *s = w->segs; s && !used; s = s->next) used = s->nr == nr;
    for (const struct wal_seg *s = w->spares; s && !used; s = s->next) used = s->nr == nr;
    if (!used) return nr;
  }
}

// Room for the first WAL_PREALLOC bytes of s, durable with its size so that later syncs find nothing of that to do.
static enum remixdb_status wal_seg_reserve(struct wal *w, struct wal_seg *s) {
  enum remixdb_status st = env_size(w->env, s->fd, s->path, &s->alloc);
  if (st != REMIXDB_OK || s->alloc >= WAL_PREALLOC) return st;
  st = env_allocate(w->env, s->fd, s->path, s->alloc, WAL_PREALLOC - s->alloc);
  if (st != REMIXDB_OK) return st;
  s->alloc = WAL_PREALLOC;
  return env_sync_all(w->env, s->fd, s->path);
}

// A file for a new segment, open: a spare, or a new one whose name is durable. Under admin. full_ok: a disk too full to
// reserve room is no failure, because the caller writes the header at once and later appends ask for room again.
static enum remixdb_status wal_file_take(struct wal *w, bool full_ok, struct wal_seg **out) {
  enum remixdb_status st;
  struct wal_seg *s;
  *out = NULL;
  while ((s = wal_spare_take(w)) != NULL) {
    st = env_open(w->env, s->path, ENV_READ | ENV_WRITE, &s->fd);
    if (st == REMIXDB_NOTFOUND) {  // somebody removed it; it is no loss
      wal_seg_destroy(w, s);
      continue;
    }
    if (st == REMIXDB_OK) st = wal_seg_reserve(w, s);
    if (st == REMIXDB_OK || (st == REMIXDB_NOSPACE && full_ok)) {
      *out = s;
      return REMIXDB_OK;
    }
    env_close_quiet(w->env, s->fd);
    s->fd = -1;
    wal_spare_add(w, s);
    return st;
  }
  s = wal_seg_create(w->dir, wal_free_nr(w));
  if (!s) return REMIXDB_NOMEM;
  st = env_open(w->env, s->path, ENV_READ | ENV_WRITE | ENV_CREATE | ENV_EXCL, &s->fd);
  if (st != REMIXDB_OK) {
    mem_free(s);
    return st;
  }
  st = wal_seg_reserve(w, s);
  if (st == REMIXDB_NOSPACE && full_ok) st = REMIXDB_OK;
  if (st == REMIXDB_OK) st = env_sync_dir(w->env, w->dir);
  if (st == REMIXDB_OK) {
    *out = s;
    return REMIXDB_OK;
  }
  env_close_quiet(w->env, s->fd);
  s->fd = -1;
  // An empty file under a log's name is a spare; leaving it is as good as removing it, but it may hold the last room on disk.
  struct err_saved e;
  err_save(&e, st);
  (void)w->env->ops->unlink(w->env, s->path);
  mem_free(s);
  return err_raise(&e);
}

// Makes s the segment h. Does not write the header.
static void wal_seg_begin(struct wal_seg *s, const struct wal_head *h) {
  s->h = *h;
  s->key = wal_key(h->store_id, h->gen);
  s->end = WAL_HEAD;
  s->durable = 0;
  s->level = (struct wal_level){0};
  wal_head_put(s->head, h);
}

// ---- errors

// With the lock held: every later append and sync returns this error. A full disk that an fsync reports came after the system
// had accepted the data, which it may have dropped: unlike one found in time it does not pass.
static void wal_fail(struct wal *w, enum remixdb_status s) {
  if (w->err.status == REMIXDB_OK) {
    err_save(&w->err, s);
    w->err.status = REMIXDB_IO;
  }
  w->lim = w->pos;
  wal_event_wake(&w->written);
  wal_event_wake(&w->synced);
}

static enum remixdb_status wal_error(const struct wal *w) {
  return likely(w->err.status == REMIXDB_OK) ? REMIXDB_OK : err_raise(&w->err);
}

// ---- buffers; all with the lock held

static struct wal_buf *wal_buf_create(size_t size) {
  struct wal_buf *const b = mem_calloc(1, sizeof(*b));
  if (!b) return NULL;
  b->mem = mem_alloc(size);
  if (!b->mem) {
    mem_free(b);
    return NULL;
  }
  b->cap = size;
  b->kind = WAL_BUF_BIG;
  return b;
}

static void wal_buf_put(struct wal *w, struct wal_buf *b) {
  b->state = WAL_BUF_FREE;
  b->retained = false;
  if (b->kind == WAL_BUF_NORMAL) {
    b->next = w->free;
    w->free = b;
  } else if (b->kind == WAL_BUF_BIG) {
    w->st.buffer_bytes -= b->cap;
    mem_free(b->mem);
    mem_free(b);
  }
}

// How far records may go in the current buffer: what the buffer has and what the disk has room for.
static void wal_limit(struct wal *w) {
  const struct wal_buf *const b = w->cur;
  if (!b) {
    w->pos = w->lim = w->none;
    return;
  }
  const uint64_t room = w->active->alloc > b->off ? w->active->alloc - b->off : 0;
  w->lim = b->mem + (room < b->cap ? (size_t)room : b->cap);
  if (w->lim < w->pos || w->err.status != REMIXDB_OK || w->nr_retained) w->lim = w->pos;
}

static void wal_buf_open(struct wal *w, struct wal_buf *b) {
  assert(!w->cur);
  b->state = WAL_BUF_FILLING;
  b->seg = w->active;
  b->off = w->active->end;
  b->first_seq = w->seq + 1;
  w->cur = b;
  w->pos = b->mem + WAL_FRAME_HEAD;
  wal_limit(w);
}

static void wal_out_add(struct wal *w, struct wal_buf *b) {
  b->state = WAL_BUF_SEALED;
  b->ticket = w->next_ticket++;
  b->next = NULL;
  if (w->out_head)
    w->out_tail->next = b;
  else
    w->out_head = b;
  w->out_tail = b;
}

static void wal_out_remove(struct wal *w, struct wal_buf *b) {
  struct wal_buf *prev = NULL;
  for (struct wal_buf *i = w->out_head; i != b; i = i->next) prev = i;
  if (prev)
    prev->next = b->next;
  else
    w->out_head = b->next;
  if (w->out_tail == b) w->out_tail = prev;
}

// The oldest that nobody writes, or NULL.
static struct wal_buf *wal_out_sealed(const struct wal *w) {
  struct wal_buf *b = w->out_head;
  while (b && b->state != WAL_BUF_SEALED) b = b->next;
  return b;
}

// Ends the frame being filled, if there is one. Its bytes go out later, outside of the lock.
static void wal_seal(struct wal *w) {
  struct wal_buf *const b = w->cur;
  if (!b) return;
  b->count = (uint32_t)(w->seq + 1 - b->first_seq);
  b->len = (size_t)(w->pos - b->mem);
  w->cur = NULL;
  wal_limit(w);
  if (b->count == 0) {
    wal_buf_put(w, b);
    return;
  }
  b->durable = b->seg->durable;
  b->seg->end = b->off + b->len;
  w->st.frames++;
  w->st.bytes += b->len;
  wal_out_add(w, b);
}

// Writes a sealed buffer; the lock is given up meanwhile. REMIXDB_NOSPACE: the buffer is kept and stays in line.
static enum remixdb_status wal_write(struct wal *w, struct wal_buf *b) {
  struct wal_seg *const seg = b->seg;
  b->state = WAL_BUF_WRITING;
  lib_unlock(&w->lock);
  if (b->kind != WAL_BUF_HEADER) {
    const struct wal_frame f = {
        .len = (uint32_t)(b->len - WAL_FRAME_HEAD), .count = b->count, .first_seq = b->first_seq, .durable = b->durable};
    wal_frame_put(b->mem, &seg->key, b->off, &f);
  }
  const enum remixdb_status s = env_write(w->env, seg->fd, seg->path, b->mem, b->len, b->off);
  lib_lock(&w->lock);
  if (s == REMIXDB_NOSPACE) {
    b->state = WAL_BUF_SEALED;
    if (!b->retained) w->nr_retained++;
    b->retained = true;
    w->lim = w->pos;
  } else {
    if (b->retained) w->nr_retained--;
    wal_out_remove(w, b);
    wal_buf_put(w, b);
    if (s != REMIXDB_OK) wal_fail(w, s);
  }
  wal_event_wake(&w->written);
  return s == REMIXDB_OK || s == REMIXDB_NOSPACE ? s : wal_error(w);
}

// Has all of a ticket below `end` written, by this thread or others. The lock is given up meanwhile.
static enum remixdb_status wal_drain(struct wal *w, uint64_t end) {
  for (;;) {
    enum remixdb_status s = wal_error(w);
    if (s != REMIXDB_OK) return s;
    if (!w->out_head || w->out_head->ticket >= end) return REMIXDB_OK;
    struct wal_buf *const b = wal_out_sealed(w);
    if (b && b->ticket < end) {
      s = wal_write(w, b);
      if (s != REMIXDB_OK) return s;
    } else {
      wal_event_wait(w, &w->written);
    }
  }
}

// Makes the active segment's room reach `need`, or waits for the thread that does something of that kind. The lock is given up
// meanwhile, so that the caller looks at everything anew.
static enum remixdb_status wal_grow(struct wal *w, uint64_t need) {
  if (w->growing) {
    wal_event_wait(w, &w->written);
    return REMIXDB_OK;
  }
  struct wal_seg *const seg = w->active;
  const uint64_t from = seg->alloc, to = align_up(need, WAL_PREALLOC);
  w->growing = true;  // keeps the segment active
  lib_unlock(&w->lock);
  const enum remixdb_status s = env_allocate(w->env, seg->fd, seg->path, from, to - from);
  lib_lock(&w->lock);
  w->growing = false;
  if (s == REMIXDB_OK) {
    seg->alloc = to;
    wal_limit(w);
  }
  wal_event_wake(&w->written);
  return s;
}

// Whether it is time to make room ahead of need.
static bool wal_wants_room(const struct wal *w) {
  const struct wal_seg *const seg = w->active;
  return seg->end + WAL_PREALLOC / 2 > seg->alloc && w->grow_refused != seg->alloc;
}

// ---- appending

// Called with the lock held; it is still held when this returns REMIXDB_OK and nbytes fit, and not held otherwise.
static enum remixdb_status wal_make_room(struct wal *w, size_t nbytes) {
  enum remixdb_status s = REMIXDB_OK;
  struct wal_buf *big = NULL;
  if (nbytes > WAL_FRAME_MAX) {
    lib_unlock(&w->lock);
    return err_set(REMIXDB_TOOBIG, "a batch of %zu bytes; at most %u go into the log at once", nbytes, WAL_FRAME_MAX);
  }
  if (w->read_only) {
    lib_unlock(&w->lock);
    return err_set(REMIXDB_READONLY, "%s: the log was opened read-only", w->dir);
  }
  if (WAL_FRAME_HEAD + nbytes > WAL_BUF) {
    lib_unlock(&w->lock);
    big = wal_buf_create(WAL_FRAME_HEAD + nbytes);
    if (!big) return REMIXDB_NOMEM;
    lib_lock(&w->lock);
    w->st.buffer_bytes += big->cap;
  }
  for (;;) {
    s = wal_error(w);
    if (s != REMIXDB_OK) break;
    if (w->nr_retained) {  // the disk was full: first what was accepted before
      struct wal_buf *const b = wal_out_sealed(w);
      if (!b)
        wal_event_wait(w, &w->written);
      else if ((s = wal_write(w, b)) != REMIXDB_OK)
        break;
      continue;
    }
    if (w->cur && (big || (size_t)(w->cur->mem + w->cur->cap - w->pos) < nbytes)) {
      wal_seal(w);
      w->end_work = true;
    }
    const struct wal_seg *const seg = w->active;
    const uint64_t start = w->cur ? w->cur->off + (uint64_t)(w->pos - w->cur->mem) : seg->end + WAL_FRAME_HEAD;
    if (start + nbytes > seg->alloc) {
      s = wal_grow(w, start + nbytes);
      if (s != REMIXDB_OK) break;
      continue;
    }
    if (!w->cur) {
      if (big) {
        wal_buf_open(w, big);
        big = NULL;
        w->end_work = true;
      } else if (w->free) {
        struct wal_buf *const b = w->free;
        w->free = b->next;
        wal_buf_open(w, b);
        if (wal_wants_room(w)) w->end_work = true;
      } else {
        struct wal_buf *const b = wal_out_sealed(w);
        if (!b)
          wal_event_wait(w, &w->written);
        else if ((s = wal_write(w, b)) != REMIXDB_OK)
          break;
        continue;
      }
    }
    wal_limit(w);
    assert((size_t)(w->lim - w->pos) >= nbytes);
    return REMIXDB_OK;
  }
  if (big) wal_buf_put(w, big);
  lib_unlock(&w->lock);
  return s;
}

enum remixdb_status wal_begin(struct wal *w, size_t nbytes, uint64_t *gen_out) {
  lib_lock(&w->lock);
  if (unlikely(nbytes > (size_t)(w->lim - w->pos))) {
    const enum remixdb_status s = wal_make_room(w, nbytes);
    if (s != REMIXDB_OK) return s;
  }
  *gen_out = atomic_load_explicit(&w->gen, memory_order_relaxed);
  return REMIXDB_OK;
}

uint64_t wal_put(struct wal *w, struct kref key, const void *val, uint32_t vlen, bool tomb) {
  uint8_t *p = w->pos;
  assert(kv_rec_size(key.len, tomb ? 0 : vlen, tomb) <= (size_t)(w->lim - p));
  p = kv_head_put(p, key.len, vlen, tomb);
  if (key.len) memcpy(p, key.ptr, key.len);
  p += key.len;
  if (!tomb && vlen) {
    memcpy(p, val, vlen);
    p += vlen;
  }
  w->pos = p;
  return ++w->seq;
}

// Called with the lock held; gives it back. Writes what is sealed by now and nobody writes: this call's share, and at most what
// a call that failed has left. What others seal meanwhile is theirs, so that no thread is kept writing for them.
static void wal_end_slow(struct wal *w) {
  w->end_work = false;
  if (w->cur && w->cur->kind == WAL_BUF_BIG) wal_seal(w);
  const uint64_t end = w->next_ticket;
  for (struct wal_buf *b; w->err.status == REMIXDB_OK && (b = wal_out_sealed(w)) != NULL && b->ticket < end;) {
    if (wal_write(w, b) != REMIXDB_OK) break;
  }
  if (wal_wants_room(w) && !w->growing && w->err.status == REMIXDB_OK) {
    const uint64_t alloc = w->active->alloc;
    if (wal_grow(w, alloc + 1) != REMIXDB_OK) w->grow_refused = alloc;
  }
  lib_unlock(&w->lock);
}

void wal_end(struct wal *w) {
  const struct wal_buf *const b = w->cur;
  if (likely(b != NULL)) atomic_store_explicit(&w->seg_bytes, b->off + (uint64_t)(w->pos - b->mem), memory_order_relaxed);
  if (unlikely(w->end_work))
    wal_end_slow(w);
  else
    lib_unlock(&w->lock);
}

// ---- sync

// With the lock held and `syncing` set: makes durable what was appended up to now. The lock is given up meanwhile.
static enum remixdb_status wal_sync_lead(struct wal *w) {
  wal_seal(w);
  struct wal_seg *const last = w->active;
  const uint64_t last_end = last->end, seq = w->seq;
  enum remixdb_status s = wal_drain(w, w->next_ticket);
  if (s != REMIXDB_OK) return s;
  // Oldest first (L5). A segment that is not durable stays in the list, and only the leader makes one durable. All but
  // `last` have their final length.
  for (struct wal_seg *i = w->segs;; i = i->next) {
    const uint64_t end = i == last ? last_end : i->end;
    if (i->durable < end) {
      lib_unlock(&w->lock);
      s = env_sync_data(w->env, i->fd, i->path);
      lib_lock(&w->lock);
      if (s != REMIXDB_OK) {
        wal_fail(w, s);
        return wal_error(w);
      }
      i->durable = end;
      w->st.syncs++;
    }
    if (i == last) break;
  }
  w->durable_gen = last->h.gen;
  atomic_store_explicit(&w->durable_seq, seq, memory_order_relaxed);
  return REMIXDB_OK;
}

enum remixdb_status wal_sync(struct wal *w) {
  enum remixdb_status s;
  if (w->read_only) return REMIXDB_OK;
  lib_lock(&w->lock);
  const uint64_t seq = w->seq, gen = w->active->h.gen;
  for (;;) {
    s = wal_error(w);
    if (s != REMIXDB_OK) break;
    // The header counts too: a segment that nothing was appended to must be there when a version names it.
    if (atomic_load_explicit(&w->durable_seq, memory_order_relaxed) >= seq && w->durable_gen >= gen) break;
    if (w->syncing) {  // it may have begun before our records were there; then one of those who wait leads the next
      wal_event_wait(w, &w->synced);
      continue;
    }
    w->syncing = true;
    s = wal_sync_lead(w);
    w->syncing = false;
    wal_event_wake(&w->synced);
    if (s != REMIXDB_OK) break;
  }
  lib_unlock(&w->lock);
  return s;
}

enum remixdb_status wal_flush(struct wal *w) {
  if (w->read_only) return REMIXDB_OK;
  lib_lock(&w->lock);
  enum remixdb_status s = wal_error(w);
  if (s == REMIXDB_OK) {
    wal_seal(w);
    s = wal_drain(w, w->next_ticket);
  }
  lib_unlock(&w->lock);
  return s;
}

uint64_t wal_durable_seq(const struct wal *w) { return atomic_load_explicit(&w->durable_seq, memory_order_relaxed); }
uint64_t wal_gen(const struct wal *w) { return atomic_load_explicit(&w->gen, memory_order_relaxed); }
uint64_t wal_segment_bytes(const struct wal *w) { return atomic_load_explicit(&w->seg_bytes, memory_order_relaxed); }

// ---- segments

// The active segment's header durable, and with it all older segments. Under admin.
static enum remixdb_status wal_settle(struct wal *w) {
  lib_lock(&w->lock);
  const enum remixdb_status s = wal_error(w);
  const bool settled = w->durable_gen >= w->active->h.gen;
  lib_unlock(&w->lock);
  return s != REMIXDB_OK || settled ? s : wal_sync(w);
}

// A segment begins only after the one before has a durable header. Recovery relies on it twice: a generation missing
// between two others is damage, never the work of a crash; and no frame can be on disk whose generation is more than one
// above that of every header on disk.
static enum remixdb_status wal_prepare_locked(struct wal *w) {
  if (w->read_only) return err_set(REMIXDB_READONLY, "%s: the log was opened read-only", w->dir);
  enum remixdb_status s = wal_settle(w);
  if (s == REMIXDB_OK && !w->next) s = wal_file_take(w, false, &w->next);
  return s;
}

enum remixdb_status wal_prepare(struct wal *w) {
  (void)pthread_mutex_lock(&w->admin);
  const enum remixdb_status s = wal_prepare_locked(w);
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}

// With the lock held: s becomes the active segment.
static void wal_activate(struct wal *w, struct wal_seg *s) {
  s->next = NULL;
  if (w->active)
    w->active->next = s;
  else
    w->segs = s;
  w->active = s;
  w->grow_refused = 0;
  w->st.segments++;
  atomic_store_explicit(&w->gen, s->h.gen, memory_order_relaxed);
  atomic_store_explicit(&w->seg_bytes, s->end, memory_order_relaxed);
}

enum remixdb_status wal_switch(struct wal *w, void (*fn)(void *arg, uint64_t new_gen), void *arg) {
  (void)pthread_mutex_lock(&w->admin);
  enum remixdb_status s = wal_prepare_locked(w);
  if (s != REMIXDB_OK) goto out;
  lib_lock(&w->lock);
  while (w->growing) wal_event_wait(w, &w->written);
  s = wal_error(w);
  if (s != REMIXDB_OK) {
    lib_unlock(&w->lock);
    goto out;
  }
  wal_seal(w);
  const struct wal_seg *const old = w->active;
  struct wal_seg *const seg = w->next;
  w->next = NULL;
  const struct wal_head h = {.store_id = w->store_id, .gen = old->h.gen + 1, .prev_gen = old->h.gen, .prev_len = old->end,
                             .prev_durable = old->durable, .last_seq = w->seq};
  wal_seg_begin(seg, &h);
  wal_activate(w, seg);
  // The header goes out like a frame: in line, so that a sync waits for it, and tried again when the disk is full.
  seg->head_buf = (struct wal_buf){.seg = seg, .mem = seg->head, .cap = WAL_HEAD, .len = WAL_HEAD, .kind = WAL_BUF_HEADER};
  wal_out_add(w, &seg->head_buf);
  if (fn) fn(arg, h.gen);
  // The switch has happened: a failure from here on is told by the calls that come after.
  (void)wal_drain(w, w->next_ticket);
  lib_unlock(&w->lock);
out:
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}

// Removes what is more than should be kept. Under admin.
static enum remixdb_status wal_trim(struct wal *w) {
  while (atomic_load_explicit(&w->nr_spares, memory_order_relaxed) > WAL_SPARES) {
    struct wal_seg *const s = wal_spare_take(w);
    const enum remixdb_status st = env_unlink(w->env, s->path);
    if (st != REMIXDB_OK) {
      wal_spare_add(w, s);
      return st;
    }
    wal_seg_destroy(w, s);
  }
  return REMIXDB_OK;
}

enum remixdb_status wal_release(struct wal *w, uint64_t gen) {
  if (w->read_only) return REMIXDB_OK;
  (void)pthread_mutex_lock(&w->admin);
  // Then every older segment is durable: no write and no sync of it can be under way.
  enum remixdb_status s = wal_settle(w);
  while (s == REMIXDB_OK) {
    lib_lock(&w->lock);
    struct wal_seg *const old = w->segs;
    const bool take = old != w->active && old->h.gen < gen;
    if (take) {
      assert(old->durable == old->end);
      w->segs = old->next;
      w->st.segments--;
    }
    lib_unlock(&w->lock);
    if (!take) break;
    env_close_quiet(w->env, old->fd);
    old->fd = -1;
    wal_spare_add(w, old);
  }
  if (s == REMIXDB_OK) s = wal_trim(w);
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}

// Puts a watermark into a segment whose header is durable, and makes it durable. Under admin. Of a segment that was recovered the
// file is not open.
static enum remixdb_status wal_level_write(struct wal *w, struct wal_seg *s, const struct wal_level *l) {
  uint8_t p[WAL_LEVEL_LEN];
  int fd = s->fd;
  enum remixdb_status st = REMIXDB_OK;
  wal_level_put(p, &s->key, l);
  if (fd < 0) {
    st = env_open(w->env, s->path, ENV_READ | ENV_WRITE, &fd);
    if (st == REMIXDB_NOTFOUND) st = err_set(REMIXDB_IO, "%s: removed while the store is open", s->path);
    if (st != REMIXDB_OK) return st;
  }
  st = env_write(w->env, fd, s->path, p, WAL_LEVEL_LEN, WAL_LEVEL);
  if (st == REMIXDB_OK) st = env_sync_data(w->env, fd, s->path);
  if (fd != s->fd) env_close_quiet(w->env, fd);
  if (st == REMIXDB_OK) s->level = *l;
  return st;
}

enum remixdb_status wal_mark(struct wal *w) {
  if (w->read_only) return REMIXDB_OK;
  (void)pthread_mutex_lock(&w->admin);  // keeps the segments, and which one is active
  lib_lock(&w->lock);
  enum remixdb_status st = wal_error(w);
  struct wal_seg *const seg = w->active;
  struct wal_seg *before = w->segs;
  while (before != seg && before->next != seg) before = before->next;
  const struct wal_level l = {.gen = seg->h.gen, .end = seg->durable};
  lib_unlock(&w->lock);
  // an empty segment has nothing to lose, and its header may say all there is to say of the older ones
  const bool news = l.end > WAL_HEAD || (l.end == WAL_HEAD && seg->h.prev_durable < seg->h.prev_len);
  if (st != REMIXDB_OK || !news) goto out;
  if (seg->level.end < l.end) st = wal_level_write(w, seg, &l);
  if (st == REMIXDB_OK && before != seg && before->level.gen < l.gen) st = wal_level_write(w, before, &l);
  if (st == REMIXDB_NOSPACE) st = REMIXDB_OK;  // of a file system that never writes in place; the log is good without
  if (st != REMIXDB_OK && st != REMIXDB_NOMEM) {
    lib_lock(&w->lock);
    wal_fail(w, st);
    st = wal_error(w);
    lib_unlock(&w->lock);
  }
out:
  (void)pthread_mutex_unlock(&w->admin);
  return st;
}

void wal_stats(struct wal *w, struct wal_stats *out) {
  lib_lock(&w->lock);
  *out = w->st;
  out->records = w->seq - w->st.records;  // st.records holds the number that the first append followed
  if (w->cur) out->bytes += (uint64_t)(w->pos - w->cur->mem);
  lib_unlock(&w->lock);
  out->spare_segments = atomic_load_explicit(&w->nr_spares, memory_order_relaxed);
}

// ---- recovery

// A window over a file.
struct wal_reader {
  struct env *env;
  const struct wal_seg *seg;
  uint8_t *buf;
  size_t cap, len;
  uint64_t off;
};

static void wal_reader_aim(struct wal_reader *r, const struct wal_seg *seg) {
  r->seg = seg;
  r->len = 0;
}

// Makes n bytes from off on readable, fewer (*nr_out) when the file ends first. They hold until the next call.
static enum remixdb_status wal_reader_get(struct wal_reader *r, uint64_t off, size_t n, const uint8_t **out, size_t *nr_out) {
  if (off < r->off || off + n > r->off + r->len) {
    size_t want = n > WAL_WINDOW ? n : WAL_WINDOW;
    if (want > r->cap) {
      uint8_t *const buf = mem_alloc(want);
      if (!buf) return REMIXDB_NOMEM;
      mem_free(r->buf);
      r->buf = buf;
      r->cap = want;
    }
    r->off = off;
    r->len = 0;
    const enum remixdb_status s = env_read_upto(r->env, r->seg->fd, r->seg->path, r->buf, want, off, &r->len);
    if (s != REMIXDB_OK) return s;
  }
  const uint64_t left = r->off + r->len - off;
  *out = r->buf + (off - r->off);
  *nr_out = left < n ? (size_t)left : n;
  return REMIXDB_OK;
}

// Whether the payload is exactly f->count records. A batch is replayed whole or not at all, so this is asked before the first is.
static bool wal_frame_decodes(const struct wal_frame *f, const uint8_t *p) {
  const uint8_t *const end = p + f->len;
  struct kv_rec rec;
  for (uint32_t i = 0; i < f->count; i++) {
    p = kv_rec_get(p, end, &rec);
    if (!p) return false;
  }
  return p == end;
}

// Replays frames up to `limit` (the segment's final length, or its file's size). *end_out: where the first broken frame begins,
// or limit.
static enum remixdb_status wal_replay(struct wal_reader *r, uint64_t limit, wal_replay_fn fn, void *arg, uint64_t *seq,
                                      struct wal_recovery *rec, uint64_t *end_out) {
  const struct wal_seg *const seg = r->seg;
  uint64_t off = WAL_HEAD;
  enum remixdb_status s = REMIXDB_OK;
  while (limit - off >= WAL_FRAME_HEAD) {
    const uint8_t *p;
    size_t nr;
    struct wal_frame f;
    s = wal_reader_get(r, off, WAL_FRAME_HEAD, &p, &nr);
    if (s != REMIXDB_OK) return s;
    if (nr < WAL_FRAME_HEAD || !wal_frame_get(p, &seg->key, off, &f) || f.first_seq != *seq + 1) break;
    const size_t size = WAL_FRAME_HEAD + (size_t)f.len;
    if (size > limit - off || size > seg->size - off) break;
    s = wal_reader_get(r, off, size, &p, &nr);
    if (s != REMIXDB_OK) return s;
    if (nr < size || wal_frame_sum(&seg->key, off, p, f.len) != f.sum) break;
    p += WAL_FRAME_HEAD;
    if (!wal_frame_decodes(&f, p)) break;
    const uint8_t *const end = p + f.len;
    for (uint32_t i = 0; i < f.count; i++) {
      struct kv_rec kv;
      p = kv_rec_get(p, end, &kv);
      s = fn ? fn(arg, *seq + 1, &kv) : REMIXDB_OK;
      if (s != REMIXDB_OK) return s;
      ++*seq;
    }
    off += size;
    rec->nr_frames++;
    rec->nr_records += f.count;
    rec->bytes += size;
  }
  *end_out = off;
  return REMIXDB_OK;
}

// Looks at every byte of [off, limit) of the reader's file for the head of a frame of the segment k. *durable_out: the largest
// durable offset one of them states. *end_out: where the last frame so found ends (off when there is none). Heads suffice as
// witnesses: their own check is as good as the frame's.
static enum remixdb_status wal_scan(struct wal_reader *r, const struct wal_key *k, uint64_t off, uint64_t limit,
                                    uint64_t *durable_out, uint64_t *end_out) {
  *durable_out = 0;
  *end_out = off;
  while (off < limit && limit - off >= WAL_FRAME_HEAD) {
    const uint8_t *p;
    size_t nr;
    const enum remixdb_status s = wal_reader_get(r, off, limit - off < WAL_WINDOW ? (size_t)(limit - off) : WAL_WINDOW, &p, &nr);
    if (s != REMIXDB_OK) return s;
    if (nr < WAL_FRAME_HEAD) break;
    const size_t last = nr - WAL_FRAME_HEAD;  // a head may begin up to here
    for (size_t i = 0; i <= last; i++) {
      const uint8_t *const hit = memchr(p + i + 8, (int)(k->magic & 0xff), last - i + 1);
      if (!hit) break;
      i = (size_t)(hit - p) - 8;
      struct wal_frame f;
      if (!wal_frame_get(p + i, k, off + i, &f)) continue;
      if (f.durable > *durable_out) *durable_out = f.durable;
      const uint64_t end = off + i + WAL_FRAME_HEAD + f.len;
      if (end > *end_out) *end_out = end < limit ? end : limit;
    }
    off += last + 1;
  }
  return REMIXDB_OK;
}

// The segment broke at `at`. REMIXDB_OK: nothing says that this was durable, it is a torn tail. `top`: the segment after it, or
// NULL.
static enum remixdb_status wal_judge(struct wal_reader *r, const struct wal_seg *seg, uint64_t at, uint64_t limit,
                                     const struct wal_seg *top, struct wal_recovery *rec) {
  uint64_t durable, end;
  wal_reader_aim(r, seg);
  enum remixdb_status s = wal_scan(r, &seg->key, at, limit < seg->size ? limit : seg->size, &durable, &end);
  if (s != REMIXDB_OK) return s;
  if (top && top->h.prev_durable > durable) durable = top->h.prev_durable;
  if (durable > at) {
    return err_corrupt(seg->path, at, "broken frame; the log says later on that all before %llu was durable",
                       (unsigned long long)durable);
  }
  rec->cut_bytes += top ? limit - at : end - at;
  if (!top) return REMIXDB_OK;
  wal_reader_aim(r, top);
  s = wal_scan(r, &top->key, WAL_HEAD, top->size, &durable, &end);
  if (s != REMIXDB_OK) return s;
  if (durable > 0) return err_corrupt(seg->path, at, "broken frame; the next segment, %s, was synced after this one", top->path);
  rec->cut_bytes += end - WAL_HEAD;
  return REMIXDB_OK;
}

// Looks in a file without a header for frames of the generation. *end_out: as of wal_scan, WAL_HEAD when there are none.
static enum remixdb_status wal_scan_headless(struct wal *w, struct wal_seg *s, uint64_t gen, uint64_t *durable_out, uint64_t *end_out) {
  struct wal_reader r = {.env = w->env};
  const struct wal_key k = wal_key(w->store_id, gen);
  *durable_out = 0;
  *end_out = WAL_HEAD;
  enum remixdb_status st = env_open(w->env, s->path, ENV_READ, &s->fd);
  if (st == REMIXDB_NOTFOUND) return REMIXDB_OK;
  if (st != REMIXDB_OK) return st;
  wal_reader_aim(&r, s);
  st = wal_scan(&r, &k, WAL_HEAD, s->size, durable_out, end_out);
  env_close_quiet(w->env, s->fd);
  s->fd = -1;
  mem_free(r.buf);
  return st;
}

// The newest segment's header may be what is damaged; then nothing leads to it. A crash can lose a header too, but not one that
// a frame behind it calls durable. `newest`: the largest generation a header has; the next one to begin has at most two more.
static enum remixdb_status wal_judge_headless(struct wal *w, struct wal_seg *s, uint64_t newest) {
  for (uint64_t gen = newest + 1; gen <= newest + 2; gen++) {
    uint64_t durable, end;
    const enum remixdb_status st = wal_scan_headless(w, s, gen, &durable, &end);
    if (st != REMIXDB_OK) return st;
    if (durable > 0) {
      return err_corrupt(s->path, 0, "broken header of a segment; its frames, of generation %llu, say that it was durable",
                         (unsigned long long)gen);
    }
  }
  return REMIXDB_OK;
}

struct wal_names {
  const char *dir;
  struct wal_seg *segs;
  bool nomem;
};

static bool wal_name(void *arg, const char *name) {
  struct wal_names *const n = arg;
  if (strncmp(name, "wal-", 4) != 0) return true;
  name += 4;
  uint32_t nr = 0;
  const size_t len = strlen(name);
  if (len == 0 || len > 9 || (name[0] == '0' && len > 1)) return true;
  for (size_t i = 0; i < len; i++) {
    if (name[i] < '0' || name[i] > '9') return true;
    nr = nr * 10 + (uint32_t)(name[i] - '0');
  }
  struct wal_seg *const s = wal_seg_create(n->dir, nr);
  if (!s) {
    n->nomem = true;
    return false;
  }
  s->next = n->segs;
  n->segs = s;
  return true;
}

static enum remixdb_status wal_head_read(struct wal *w, struct wal_seg *s) {
  uint8_t head[WAL_HEAD];
  size_t nr;
  enum remixdb_status st = env_open(w->env, s->path, ENV_READ, &s->fd);
  if (st == REMIXDB_NOTFOUND) return REMIXDB_OK;  // it went between the listing and here; if it was needed it is missed later
  if (st != REMIXDB_OK) return st;
  st = env_size(w->env, s->fd, s->path, &s->size);
  if (st == REMIXDB_OK) st = env_read_upto(w->env, s->fd, s->path, head, sizeof(head), 0, &nr);
  if (st == REMIXDB_OK && nr == sizeof(head)) {
    st = wal_head_get(head, s->path, w->store_id, &s->h);
    s->headed = st == REMIXDB_OK;
    if (st == REMIXDB_NOTFOUND) st = REMIXDB_OK;
  }
  env_close_quiet(w->env, s->fd);
  s->fd = -1;
  s->key = wal_key(w->store_id, s->h.gen);
  if (s->headed) s->level = wal_level_get(head + WAL_LEVEL, &s->key, s->h.gen);
  return st;
}

static int wal_seg_cmp(const void *a, const void *b) {
  const struct wal_seg *const x = *(struct wal_seg *const *)a, *const y = *(struct wal_seg *const *)b;
  if (x->headed != y->headed) return x->headed ? 1 : -1;
  if (x->h.gen != y->h.gen) return x->h.gen < y->h.gen ? -1 : 1;
  return (x->nr > y->nr) - (x->nr < y->nr);
}

// A segment that must be there has no header in any file: tells which file it is, if its frames do. `why`: who needs it.
static enum remixdb_status wal_missing(struct wal *w, struct wal_seg **all, size_t nr, uint64_t gen, const char *why) {
  const struct wal_seg *headless = NULL;
  for (size_t i = 0; i < nr; i++) {
    uint64_t durable, end;
    if (!all[i] || all[i]->headed) continue;
    headless = all[i];
    const enum remixdb_status st = wal_scan_headless(w, all[i], gen, &durable, &end);
    if (st != REMIXDB_OK) return st;
    if (end > WAL_HEAD) {
      return err_corrupt(headless->path, 0, "broken header of a segment; its frames are of generation %llu (%s)",
                         (unsigned long long)gen, why);
    }
  }
  return err_set(REMIXDB_CORRUPT, "%s: the log's generation %llu is missing (%s)%s%s", w->dir, (unsigned long long)gen, why,
                 headless ? "; without a header is " : "", headless ? headless->path : "");
}

// Puts the chain of segments that must be replayed, oldest first, into w->segs and their entries in `all` to NULL. The chain is
// what the newest header leads back to; a segment that an earlier recovery cut is not in it, because the one begun then names
// the one before.
static enum remixdb_status wal_chain(struct wal *w, struct wal_seg **all, size_t nr, uint64_t oldest) {
  for (size_t i = 1; i < nr; i++) {
    if (all[i - 1]->headed && all[i]->h.gen >= oldest && all[i]->h.gen == all[i - 1]->h.gen)
      return err_corrupt(all[i]->path, 24, "generation %llu is in %s too", (unsigned long long)all[i]->h.gen, all[i - 1]->path);
  }
  uint64_t gen = nr > 0 && all[nr - 1]->headed && all[nr - 1]->h.gen > oldest ? all[nr - 1]->h.gen : oldest;
  for (size_t i = nr;;) {
    while (i > 0 && all[i - 1]->headed && all[i - 1]->h.gen > gen) i--;
    if (i == 0 || !all[i - 1]->headed || all[i - 1]->h.gen != gen) {
      char why[64];
      (void)snprintf(why, sizeof(why), "from %llu on they are needed", (unsigned long long)oldest);
      return wal_missing(w, all, nr, gen, why);
    }
    struct wal_seg *const s = all[--i];
    all[i] = NULL;
    s->next = w->segs;
    w->segs = s;
    if (gen == oldest) return REMIXDB_OK;
    if (s->h.prev_len == 0 || s->h.prev_gen < oldest) {
      return err_set(REMIXDB_CORRUPT, "%s: the log's generation %llu is missing (%s does not lead to it)", w->dir,
                     (unsigned long long)oldest, s->path);
    }
    gen = s->h.prev_gen;
  }
}

// Replays w->segs and cuts it to what was replayed. *seq: in, the number before; out, the last.
static enum remixdb_status wal_recover(struct wal *w, wal_replay_fn fn, void *arg, uint64_t *seq, struct wal_recovery *rec) {
  struct wal_reader r = {.env = w->env};
  enum remixdb_status st = REMIXDB_OK;
  const unsigned mode = w->read_only ? ENV_READ : ENV_READ | ENV_WRITE;
  for (struct wal_seg *s = w->segs; s; s = s->next) {
    st = env_open(w->env, s->path, mode, &s->fd);
    if (st == REMIXDB_NOTFOUND) st = err_set(REMIXDB_IO, "%s: removed while it was being recovered", s->path);
    if (st != REMIXDB_OK) goto out;
  }
  // The highest watermark: the watermarks of one log are of one truth, and what the highest says of older segments is all of it.
  const struct wal_seg *top = NULL, *last = NULL;
  for (const struct wal_seg *s = w->segs; s; s = s->next) {
    const bool higher = s->level.gen && (!top || s->level.gen > top->level.gen || (s->level.gen == top->level.gen && s->level.end > top->level.end));
    if (higher) top = s;
    last = s;
  }
  const struct wal_level level = top ? top->level : (struct wal_level){0};
  if (level.gen > last->h.gen) {
    st = err_corrupt(top->path, WAL_LEVEL, "the log's generation %llu is missing; it was durable up to %llu", (unsigned long long)level.gen,
                     (unsigned long long)level.end);
    goto out;
  }
  for (struct wal_seg *s = w->segs; s; s = s->next) {
    if (s->h.last_seq != *seq) {
      st = err_corrupt(s->path, 56, "the segment follows sequence number %llu, the store is at %llu",
                       (unsigned long long)s->h.last_seq, (unsigned long long)*seq);
      goto out;
    }
    struct wal_seg *const next = s->next;
    const uint64_t limit = next ? next->h.prev_len : s->size;
    wal_reader_aim(&r, s);
    st = wal_replay(&r, limit, fn, arg, seq, rec, &s->end);
    if (st != REMIXDB_OK) goto out;
    rec->nr_segments++;
    w->active = s;
    const bool whole = next && s->end == limit;
    if (level.gen == s->h.gen ? s->end < level.end : level.gen > s->h.gen && !whole) {
      st = err_corrupt(s->path, s->end, "broken frame; by the watermark in %s this was durable", top->path);
      goto out;
    }
    if (whole) continue;
    if (next && next->next) {  // the one after next began when the header of next was durable, and so all of this one
      st = err_corrupt(s->path, s->end, "broken frame; the log goes on for more than one segment after it");
      goto out;
    }
    st = wal_judge(&r, s, s->end, limit, next, rec);
    if (st != REMIXDB_OK) goto out;
    s->next = NULL;
    if (next) {
      env_close_quiet(w->env, next->fd);
      next->fd = -1;
      wal_spare_add(w, next);
    }
    break;
  }
out:
  mem_free(r.buf);
  return st;
}

// What was replayed may be in the system's memory only (after the death of a process alone): it is made durable before anything
// is put behind it.
static enum remixdb_status wal_sync_replayed(struct wal *w) {
  for (struct wal_seg *s = w->segs; s; s = s->next) {
    const enum remixdb_status st = env_sync_all(w->env, s->fd, s->path);
    if (st != REMIXDB_OK) return st;
    s->durable = s->end;
    env_close_quiet(w->env, s->fd);
    s->fd = -1;
  }
  return REMIXDB_OK;
}

// Begins the segment that appends go to, with its header durable before return.
static enum remixdb_status wal_begin_segment(struct wal *w, const struct wal_head *h) {
  struct wal_seg *s;
  enum remixdb_status st = wal_file_take(w, true, &s);
  if (st != REMIXDB_OK) return st;
  wal_seg_begin(s, h);
  st = env_write(w->env, s->fd, s->path, s->head, WAL_HEAD, 0);
  if (st == REMIXDB_OK) st = env_sync_all(w->env, s->fd, s->path);
  if (st != REMIXDB_OK) {
    wal_seg_destroy(w, s);
    return st;
  }
  s->durable = WAL_HEAD;
  w->durable_gen = h->gen;
  wal_activate(w, s);
  return REMIXDB_OK;
}

static void wal_destroy(struct wal *w) {
  struct wal_buf *b = w->out_head;
  while (b) {
    struct wal_buf *const next = b->next;
    wal_buf_put(w, b);
    b = next;
  }
  if (w->cur) wal_buf_put(w, w->cur);
  for (size_t i = 0; i < sizeof(w->bufs) / sizeof(w->bufs[0]); i++) mem_free(w->bufs[i].mem);
  wal_segs_destroy(w, w->segs);
  wal_segs_destroy(w, w->spares);
  wal_seg_destroy(w, w->next);
  wal_event_fini(&w->written);
  wal_event_fini(&w->synced);
  (void)pthread_mutex_destroy(&w->admin);
  mem_free(w->dir);
  mem_free(w);
}

// NULL: REMIXDB_NOMEM.
static struct wal *wal_create(const struct wal_opts *o) {
  struct wal *const w = mem_alloc_aligned(CACHE_LINE, align_up(sizeof(*w), CACHE_LINE));
  if (!w) return NULL;
  memset(w, 0, sizeof(*w));
  w->env = o->env;
  w->store_id = o->store_id;
  w->read_only = o->read_only;
  w->pos = w->lim = w->none;
  wal_event_init(&w->written);
  wal_event_init(&w->synced);
  (void)pthread_mutex_init(&w->admin, NULL);
  const size_t len = strlen(o->dir) + 1;
  w->dir = mem_alloc(len);
  if (!w->dir) goto fail;
  memcpy(w->dir, o->dir, len);
  for (size_t i = 0; i < sizeof(w->bufs) / sizeof(w->bufs[0]) && !w->read_only; i++) {
    struct wal_buf *const b = &w->bufs[i];
    b->mem = mem_alloc_aligned(4096, WAL_BUF);
    if (!b->mem) goto fail;
    b->cap = WAL_BUF;
    w->st.buffer_bytes += b->cap;
    wal_buf_put(w, b);
  }
  return w;
fail:
  wal_destroy(w);
  return NULL;
}

// All files of the log into *all_out (an array for mem_free), ordered by generation, those without a header first.
static enum remixdb_status wal_list(struct wal *w, struct wal_seg ***all_out, size_t *nr_out) {
  struct wal_names names = {.dir = w->dir};
  struct wal_seg **all = NULL;
  size_t nr = 0;
  enum remixdb_status st = env_list(w->env, w->dir, wal_name, &names);
  if (names.nomem) st = REMIXDB_NOMEM;
  for (struct wal_seg *s = names.segs; s && st == REMIXDB_OK; s = s->next) {
    st = wal_head_read(w, s);
    nr++;
  }
  if (st == REMIXDB_OK) {
    all = mem_calloc(nr, sizeof(*all));
    if (!all) st = REMIXDB_NOMEM;
  }
  if (st != REMIXDB_OK) {
    wal_segs_destroy(w, names.segs);
    return st;
  }
  size_t i = 0;
  for (struct wal_seg *s = names.segs; s; s = s->next) all[i++] = s;
  for (i = 0; i < nr; i++) all[i]->next = NULL;
  qsort(all, nr, sizeof(all[0]), wal_seg_cmp);
  *all_out = all;
  *nr_out = nr;
  return REMIXDB_OK;
}

// Files that are there before the store is were left by a creation that did not end. Their frames may bear the generation and
// the id that this one begins with, so they are not recycled.
static enum remixdb_status wal_remove_all(struct wal *w, struct wal_seg **all, size_t nr) {
  enum remixdb_status st = REMIXDB_OK;
  for (size_t i = 0; i < nr && st == REMIXDB_OK; i++) {
    st = env_unlink(w->env, all[i]->path);
    if (st != REMIXDB_OK) break;
    wal_seg_destroy(w, all[i]);
    all[i] = NULL;
  }
  return st != REMIXDB_OK || nr == 0 ? st : env_sync_dir(w->env, w->dir);
}

enum remixdb_status wal_open(const struct wal_opts *o, uint64_t oldest_gen, uint64_t last_seq, bool fresh, wal_replay_fn replay,
                             void *arg, struct wal_recovery *rec_out, struct wal **out) {
  struct wal_recovery rec = {.last_seq = last_seq};
  struct wal_seg **all = NULL;
  size_t nr = 0;
  uint64_t gen = oldest_gen;
  *out = NULL;
  if (rec_out) *rec_out = rec;
  if (oldest_gen > WAL_NUMBER_MAX || last_seq > WAL_NUMBER_MAX) {
    return err_set(REMIXDB_CORRUPT, "%s: the log cannot begin with generation %llu after sequence number %llu", o->dir,
                   (unsigned long long)oldest_gen, (unsigned long long)last_seq);
  }
  struct wal *const w = wal_create(o);
  if (!w) return REMIXDB_NOMEM;
  enum remixdb_status st = wal_list(w, &all, &nr);
  if (st != REMIXDB_OK) goto out;
  if (!fresh) {
    const uint64_t newest = nr > 0 && all[nr - 1]->headed ? all[nr - 1]->h.gen : 0;
    gen = newest + 2;  // frames of the generation between may be there, their header lost; they must not become valid
    st = wal_chain(w, all, nr, oldest_gen);
    for (size_t i = 0; i < nr && st == REMIXDB_OK; i++) {
      if (all[i] && !all[i]->headed) st = wal_judge_headless(w, all[i], newest);
    }
    if (st == REMIXDB_OK) st = wal_recover(w, replay, arg, &rec.last_seq, &rec);
    if (st != REMIXDB_OK) goto out;
  } else if (!o->read_only) {
    st = wal_remove_all(w, all, nr);
    if (st != REMIXDB_OK) goto out;
  }
  for (size_t i = 0; i < nr; i++) {
    if (all[i]) wal_spare_add(w, all[i]);
    all[i] = NULL;
  }
  w->seq = rec.last_seq;
  w->st.records = rec.last_seq;
  w->st.segments = rec.nr_segments;
  atomic_store_explicit(&w->durable_seq, rec.last_seq, memory_order_relaxed);
  if (o->read_only) {
    atomic_store_explicit(&w->gen, w->active ? w->active->h.gen : oldest_gen, memory_order_relaxed);
  } else {
    const struct wal_seg *const last = w->active;
    st = wal_sync_replayed(w);
    if (st != REMIXDB_OK) goto out;
    const uint64_t len = last ? last->end : 0;
    const struct wal_head h = {.store_id = o->store_id, .gen = gen, .prev_gen = last ? last->h.gen : 0, .prev_len = len,
                               .prev_durable = len, .last_seq = rec.last_seq};
    st = wal_begin_segment(w, &h);
    if (st != REMIXDB_OK) goto out;
    (void)wal_trim(w);  // what cannot be removed now is tried again with each release
  }
out:
  for (size_t i = 0; i < nr; i++) wal_seg_destroy(w, all[i]);
  mem_free(all);
  if (rec_out) *rec_out = rec;
  if (st == REMIXDB_OK)
    *out = w;
  else
    wal_destroy(w);
  return st;
}

// ---- verifying

// The oldest segment of a generation >= gen, as a copy to read from: its number, its generation and how far it is durable. NULL: there is none.
static enum remixdb_status wal_seg_copy(struct wal *w, uint64_t gen, struct wal_seg **out) {
  struct wal_seg *const c = wal_seg_create(w->dir, UINT32_MAX);  // room for any number
  *out = NULL;
  if (!c) return REMIXDB_NOMEM;
  lib_lock(&w->lock);
  const struct wal_seg *i = w->segs;
  while (i && i->h.gen < gen) i = i->next;
  if (i) {
    c->nr = i->nr;
    c->h = i->h;
    c->durable = i->durable;
    memcpy(c->path, i->path, strlen(i->path) + 1);
  }
  lib_unlock(&w->lock);
  if (i) *out = c;
  else wal_seg_destroy(w, c);
  return REMIXDB_OK;
}

static enum remixdb_status wal_seg_verify(struct wal *w, struct wal_seg *s, uint64_t *bytes_out) {
  struct wal_reader r = {.env = w->env};
  struct wal_recovery rec = {0};
  const uint64_t durable = s->durable, gen = s->h.gen;
  uint64_t seq = s->h.last_seq, end = 0;
  enum remixdb_status st = wal_head_read(w, s);
  if (st == REMIXDB_OK && (!s->headed || s->h.gen != gen)) st = err_corrupt(s->path, 0, "broken header of a segment that is in use");
  if (st == REMIXDB_OK) st = env_open(w->env, s->path, ENV_READ, &s->fd);
  if (st == REMIXDB_NOTFOUND) st = err_corrupt(s->path, 0, "is missing");
  if (st == REMIXDB_OK) {
    wal_reader_aim(&r, s);
    st = wal_replay(&r, durable, NULL, NULL, &seq, &rec, &end);
  }
  if (st == REMIXDB_OK && end != durable) st = err_corrupt(s->path, end, "broken frame; all before %llu was durable", (unsigned long long)durable);
  if (bytes_out) *bytes_out += end;
  mem_free(r.buf);
  return st;
}

enum remixdb_status wal_verify(struct wal *w, uint64_t *bytes_out) {
  for (uint64_t gen = 0;;) {
    struct wal_seg *s, *again;
    enum remixdb_status st = wal_seg_copy(w, gen, &s);
    if (st != REMIXDB_OK || !s) return st;
    const uint64_t mine = s->h.gen;
    struct err_saved why = {.status = REMIXDB_OK};
    if (s->durable) {
      st = wal_seg_verify(w, s, bytes_out);
      err_save(&why, st);
    }
    wal_seg_destroy(w, s);
    if (st != REMIXDB_OK) {  // was it still the same segment at the end?
      const enum remixdb_status copied = wal_seg_copy(w, mine, &again);
      if (copied != REMIXDB_OK) return copied;
      const bool there = again && again->h.gen == mine;
      wal_seg_destroy(w, again);
      if (there) return err_raise(&why);
    }
    gen = mine + 1;
  }
}

// ---- what is left of a damaged log

// The next frame that is whole, at or after `off` and with numbers above seq. *at_out: where; limit when there is none.
static enum remixdb_status wal_next_whole(struct wal_reader *r, const struct wal_key *k, uint64_t off, uint64_t limit, uint64_t seq, uint64_t *at_out) {
  *at_out = limit;
  for (; off < limit && limit - off >= WAL_FRAME_HEAD; off++) {
    const uint8_t *p;
    size_t nr;
    struct wal_frame f;
    enum remixdb_status st = wal_reader_get(r, off, WAL_FRAME_HEAD, &p, &nr);
    if (st != REMIXDB_OK) return st;
    if (nr < WAL_FRAME_HEAD) return REMIXDB_OK;
    if (load32le(p + 8) != k->magic || !wal_frame_get(p, k, off, &f) || f.first_seq <= seq || WAL_FRAME_HEAD + (uint64_t)f.len > limit - off) continue;
    const size_t size = WAL_FRAME_HEAD + (size_t)f.len;
    if ((st = wal_reader_get(r, off, size, &p, &nr)) != REMIXDB_OK) return st;
    if (nr < size || wal_frame_sum(k, off, p, f.len) != f.sum || !wal_frame_decodes(&f, p + WAL_FRAME_HEAD)) continue;
    *at_out = off;
    return REMIXDB_OK;
  }
  return REMIXDB_OK;
}

static enum remixdb_status wal_seg_salvage(struct wal_reader *r, uint64_t *seq, wal_replay_fn fn, void *arg, struct wal_salvage *out) {
  const struct wal_seg *const s = r->seg;
  uint64_t broken = WAL_HEAD, off;
  enum remixdb_status st = REMIXDB_OK;
  if (s->h.last_seq > *seq) *seq = s->h.last_seq;
  while ((st = wal_next_whole(r, &s->key, broken, s->size, *seq, &off)) == REMIXDB_OK && off < s->size) {
    const uint8_t *p;
    size_t nr;
    struct wal_frame f;
    out->lost_bytes += off - broken;
    if ((st = wal_reader_get(r, off, WAL_FRAME_HEAD, &p, &nr)) != REMIXDB_OK || !wal_frame_get(p, &s->key, off, &f)) break;
    const size_t size = WAL_FRAME_HEAD + (size_t)f.len;
    if ((st = wal_reader_get(r, off, size, &p, &nr)) != REMIXDB_OK || nr < size) break;
    p += WAL_FRAME_HEAD;
    const uint8_t *const end = p + f.len;
    *seq = f.first_seq - 1;
    for (uint32_t i = 0; i < f.count && p; i++) {
      struct kv_rec kv;
      p = kv_rec_get(p, end, &kv);
      if (p && (st = fn(arg, ++*seq, &kv)) != REMIXDB_OK) return st;
    }
    out->nr_records += f.count;
    broken = off + size;
  }
  return st;
}

enum remixdb_status wal_read_damaged(const struct wal_opts *o, uint64_t oldest_gen, wal_replay_fn fn, void *arg, struct wal_salvage *out) {
  struct wal_opts mine = *o;
  struct wal_seg **all = NULL;
  size_t nr = 0;
  mine.read_only = true;
  *out = (struct wal_salvage){0};
  struct wal *const w = wal_create(&mine);
  if (!w) return REMIXDB_NOMEM;
  struct wal_reader r = {.env = w->env};
  enum remixdb_status st = wal_list(w, &all, &nr);
  const uint64_t newest = st == REMIXDB_OK && nr && all[nr - 1]->headed ? all[nr - 1]->h.gen : 0;
  if (oldest_gen == 0) oldest_gen = newest > 1 ? all[nr - 1]->h.prev_gen : 1;
  uint64_t seq = 0;
  for (size_t i = 0; i < nr && st == REMIXDB_OK; i++) {
    struct wal_seg *const s = all[i];
    if (!s->headed || s->h.gen < oldest_gen) continue;
    if ((st = env_open(w->env, s->path, ENV_READ, &s->fd)) != REMIXDB_OK) break;
    wal_reader_aim(&r, s);
    st = wal_seg_salvage(&r, &seq, fn, arg, out);
    out->nr_segments++;
  }
  if (st == REMIXDB_NOTFOUND) st = err_set(REMIXDB_IO, "%s: a segment was removed meanwhile", w->dir);
  for (size_t i = 0; i < nr; i++) wal_seg_destroy(w, all[i]);
  mem_free(all);
  mem_free(r.buf);
  wal_destroy(w);
  return st;
}

struct wal_id_search {
  struct env *env;
  const char *dir;
  uint64_t id;
};

static bool wal_id_look(void *arg, const char *name) {
  struct wal_id_search *const f = arg;
  char path[ENV_PATH_MAX];
  uint8_t head[WAL_HEAD];
  size_t nr = 0;
  int fd;
  if (strncmp(name, "wal-", 4) != 0 || env_path(path, f->dir, name) != REMIXDB_OK) return true;
  if (env_open(f->env, path, ENV_READ, &fd) != REMIXDB_OK) return true;
  const enum remixdb_status st = env_read_upto(f->env, fd, path, head, sizeof(head), 0, &nr);
  env_close_quiet(f->env, fd);
  struct wal_head h;
  if (st == REMIXDB_OK && nr == sizeof(head) && wal_head_get(head, path, load64le(head + 16), &h) == REMIXDB_OK) f->id = h.store_id;
  return f->id == 0;
}

enum remixdb_status wal_store_id(struct env *env, const char *dir, uint64_t *id_out) {
  struct wal_id_search f = {.env = env, .dir = dir};
  const enum remixdb_status st = env_list(env, dir, wal_id_look, &f);
  if (st != REMIXDB_OK) return st;
  *id_out = f.id;
  return f.id ? REMIXDB_OK : REMIXDB_NOTFOUND;
}

enum remixdb_status wal_close(struct wal *w) {
  enum remixdb_status s = wal_sync(w);
  if (s == REMIXDB_OK) s = wal_mark(w);
  for (struct wal_seg *i = w->segs; i; i = i->next) {
    if (i->fd < 0) continue;
    if (s == REMIXDB_OK && !w->read_only)
      s = env_close(w->env, i->fd, i->path);
    else
      env_close_quiet(w->env, i->fd);
    i->fd = -1;
  }
  wal_destroy(w);
  return s;
}
