// SPDX-License-Identifier: Apache-2.0
#include "log/state.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

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
  while (e->tick == tick) cond_wait(&e->cond, &e->mu);
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

struct wal_seg *wal_seg_create(const struct env_dir *dir, uint32_t nr) {
  const size_t len = strlen(dir->path) + sizeof("/wal-4294967295");
  struct wal_seg *const seg = mem_calloc(1, sizeof(*seg) + len);
  if (!seg) return NULL;
  seg->fd = -1;
  seg->nr = nr;
  (void)snprintf(seg->path, len, "%s/wal-%u", dir->path, nr);
  return seg;
}

void wal_seg_destroy(struct wal *w, struct wal_seg *seg) {
  if (!seg) return;
  env_close_quiet(w->env, seg->fd);
  mem_free(seg);
}

void wal_segs_destroy(struct wal *w, struct wal_seg *seg) {
  while (seg) {
    struct wal_seg *const next = seg->next;
    wal_seg_destroy(w, seg);
    seg = next;
  }
}

void wal_pool_add(struct wal *w, struct wal_seg *seg) {
  struct wal_seg **at = &w->spares;
  while (*at) at = &(*at)->next;
  seg->next = NULL;
  *at = seg;
  atomic_fetch_add_explicit(&w->nr_pooled, 1, memory_order_relaxed);
}

void wal_foreign_add(struct wal *w, struct wal_seg *seg) {
  env_close_quiet(w->env, seg->fd);
  seg->fd = -1;
  seg->next = w->foreign;
  w->foreign = seg;
}

bool wal_is_own(const struct wal *w, const uint8_t *head, size_t nr) {
  struct wal_head h;
  if (nr == WAL_HEAD && wal_head_get(head, "", w->store_id, &h) == REMIXDB_OK) return true;
  for (size_t i = 0; i < nr; i++)
    if (head[i]) return false;
  return true;
}

static struct wal_seg *wal_pool_take(struct wal *w) {
  struct wal_seg *const seg = w->spares;
  if (!seg) return NULL;
  w->spares = seg->next;
  seg->next = NULL;
  atomic_fetch_sub_explicit(&w->nr_pooled, 1, memory_order_relaxed);
  return seg;
}

// The smallest number no file of the log has. Under admin, which whoever changes one of the lists holds too.
static uint32_t wal_free_nr(const struct wal *w) {
  for (uint32_t nr = 0;; nr++) {
    bool used = w->next && w->next->nr == nr;
    for (const struct wal_seg *seg = w->segs; seg && !used; seg = seg->next) used = seg->nr == nr;
    for (const struct wal_seg *seg = w->spares; seg && !used; seg = seg->next) used = seg->nr == nr;
    for (const struct wal_seg *seg = w->foreign; seg && !used; seg = seg->next) used = seg->nr == nr;
    if (!used) return nr;
  }
}

// By how much a segment that has so much room grows: it doubles, so that the log of a small store is small.
static uint64_t wal_step(const struct wal *w, uint64_t alloc) {
  if (alloc >= w->step) return w->step;
  uint64_t step = w->step < WAL_FIRST ? w->step : WAL_FIRST;
  while (step < w->step && step * 2 <= alloc) step *= 2;
  return step;
}

// What is kept of its room for the last records: less than what has workers told that more is wanted, and than what the
// limit leaves behind a full segment.
static uint64_t wal_keep(const struct wal *w, const struct wal_seg *seg) {
  const uint64_t keep = wal_step(w, seg->alloc) / WAL_KEEP_PART;
  return keep < WAL_KEEP_MAX ? keep : WAL_KEEP_MAX;
}

// What all files will have on disk when the active segment is full. Under admin.
static uint64_t wal_room(struct wal *w) {
  const uint64_t last = w->limit / WAL_FULL_PART;
  uint64_t room = w->next ? w->next->alloc : 0;
  lib_lock(&w->lock);
  const uint64_t full = w->limit == UINT64_MAX ? 0 : atomic_load_explicit(&w->full_at, memory_order_relaxed) + last;
  if (w->active && w->active->alloc < full) room += full - w->active->alloc;
  for (const struct wal_seg *seg = w->segs; seg; seg = seg->next) room += seg->alloc;
  for (const struct wal_seg *seg = w->spares; seg; seg = seg->next) room += seg->alloc;
  lib_unlock(&w->lock);
  return room;
}

// Of `more` bytes of room those that the limit leaves. Under admin.
static uint64_t wal_within(struct wal *w, uint64_t more) {
  const uint64_t room = wal_room(w), left = room < w->limit ? w->limit - room : 0;
  return more < left ? more : left;
}

void wal_bound(struct wal *w) {
  uint64_t others = 0;
  for (const struct wal_seg *seg = w->segs; seg; seg = seg->next) others += seg == w->active ? 0 : seg->alloc;
  const uint64_t last = w->limit / WAL_FULL_PART, most = w->limit / 2 - last, left = w->limit - last - wal_step(w, 0);
  const uint64_t at = others + most <= left ? most : others < left ? left - others : 0;
  atomic_store_explicit(&w->older, w->segs != w->active, memory_order_relaxed);
  atomic_store_explicit(&w->full_at, w->limit == UINT64_MAX ? UINT64_MAX - last : at, memory_order_relaxed);
}

bool wal_holds(const struct wal *w) {
  return atomic_load_explicit(&w->seg_bytes, memory_order_relaxed) > WAL_HEAD ||
         atomic_load_explicit(&w->older, memory_order_relaxed);
}

bool wal_full(const struct wal *w, size_t more, bool last) {
  const uint64_t bytes = atomic_load_explicit(&w->seg_bytes, memory_order_relaxed),
                 at = atomic_load_explicit(&w->full_at, memory_order_relaxed);
  if (likely(!last && more == 0)) return bytes >= at;
  const uint64_t part = w->limit / WAL_FULL_PART;
  return bytes >= (last ? at + part : at) || (bytes > part && more > at - bytes);
}

// Room for the first step of seg, and for `expected` bytes when there is so much, durable with its size so that later
// syncs find nothing of that to do. Under admin.
static enum remixdb_status wal_seg_reserve(struct wal *w, struct wal_seg *seg, uint64_t expected) {
  const uint64_t first = wal_step(w, 0);
  enum remixdb_status s = env_size(w->env, seg->fd, seg->path, &seg->alloc);
  if (s != REMIXDB_OK) return s;
  // the file is in none of the log's lists
  uint64_t to = expected > seg->alloc ? wal_within(w, expected) : seg->alloc;
  if (to < first) to = first;
  if (seg->alloc >= to) return REMIXDB_OK;
  s = env_allocate(w->env, seg->fd, seg->path, seg->alloc, to - seg->alloc);
  if (s == REMIXDB_NOSPACE && to > first) {
    // what a failed allocation has taken all the same is not known; the room that was asked for is had without it
    if (seg->alloc >= first) return REMIXDB_OK;
    to = first;
    s = env_allocate(w->env, seg->fd, seg->path, seg->alloc, to - seg->alloc);
  }
  // with a page a segment can begin, and take some deletes
  while (s == REMIXDB_NOSPACE && to > WAL_REST && to / 2 >= seg->alloc) {
    to /= 2;
    s = to > seg->alloc ? env_allocate(w->env, seg->fd, seg->path, seg->alloc, to - seg->alloc) : REMIXDB_OK;
  }
  if (s != REMIXDB_OK) return s;
  seg->alloc = to;
  return env_sync_all(w->env, seg->fd, seg->path);
}

// Opens a file that is there for a new segment. *serves_out: it may be written over. Else it is not the log's any more:
// what has come into its place is foreign, and one that has another name as well loses this one, so that the other's
// content stays.
static enum remixdb_status wal_file_open(struct wal *w, struct wal_seg *seg, bool *serves_out) {
  struct env_stat info;
  uint8_t head[WAL_HEAD];
  size_t nr = 0;
  *serves_out = false;
  enum remixdb_status s = env_stat(w->dir, wal_seg_name(seg), &info);
  if (s == REMIXDB_OK && info.is_file) s = env_open(w->dir, wal_seg_name(seg), ENV_READ | ENV_WRITE, &seg->fd);
  if (s == REMIXDB_OK && seg->fd >= 0) s = env_read_upto(w->env, seg->fd, seg->path, head, sizeof(head), 0, &nr);
  if (s == REMIXDB_NOTFOUND) {  // somebody removed it; it is no loss
    wal_seg_destroy(w, seg);
    return REMIXDB_OK;
  }
  if (s != REMIXDB_OK) return s;
  if (seg->fd < 0 || !wal_is_own(w, head, nr)) {
    wal_foreign_add(w, seg);
    return REMIXDB_OK;
  }
  *serves_out = info.links <= 1;
  if (*serves_out) return REMIXDB_OK;
  s = env_unlink(w->dir, wal_seg_name(seg));
  if (s == REMIXDB_OK) wal_seg_destroy(w, seg);
  return s;
}

// A new file, open. What an earlier try has left under its name serves.
static enum remixdb_status wal_file_make(struct wal *w, struct wal_seg **out) {
  for (;;) {
    struct env_stat info;
    bool serves;
    struct wal_seg *const seg = wal_seg_create(w->dir, wal_free_nr(w));
    *out = seg;
    if (!seg) return REMIXDB_NOMEM;
    enum remixdb_status s = env_stat(w->dir, wal_seg_name(seg), &info);
    const bool there = s == REMIXDB_OK;
    if (s == REMIXDB_NOTFOUND)
      s = env_open(w->dir, wal_seg_name(seg), ENV_READ | ENV_WRITE | ENV_CREATE | ENV_EXCL, &seg->fd);
    else if (there) s = wal_file_open(w, seg, &serves);
    if (s != REMIXDB_OK) {
      wal_seg_destroy(w, seg);
      return s;
    }
    if (!there || serves) return REMIXDB_OK;
  }
}

// A file for a new segment that may have `expected` bytes, open: a spare, or a new one whose name is durable. Under
// admin. full_ok: a disk too full to reserve room is no failure, because the caller writes the header at once and later
// appends ask for room again.
static enum remixdb_status wal_file_take(struct wal *w, uint64_t expected, bool full_ok, struct wal_seg **out) {
  enum remixdb_status s;
  struct wal_seg *seg;
  *out = NULL;
  while ((seg = wal_pool_take(w)) != NULL) {
    bool serves;
    s = wal_file_open(w, seg, &serves);
    if (s == REMIXDB_OK && !serves) continue;
    if (s == REMIXDB_OK) s = wal_seg_reserve(w, seg, expected);
    if (s == REMIXDB_OK || (s == REMIXDB_NOSPACE && full_ok)) {
      *out = seg;
      return REMIXDB_OK;
    }
    env_close_quiet(w->env, seg->fd);
    seg->fd = -1;
    wal_pool_add(w, seg);
    return s;
  }
  if ((s = wal_file_make(w, &seg)) != REMIXDB_OK) return s;
  s = wal_seg_reserve(w, seg, expected);
  if (s == REMIXDB_NOSPACE && full_ok) s = REMIXDB_OK;
  if (s == REMIXDB_OK) s = env_sync_dir(w->dir);
  if (s == REMIXDB_OK) {
    *out = seg;
    return REMIXDB_OK;
  }
  env_close_quiet(w->env, seg->fd);
  seg->fd = -1;
  // An empty file under a log's name is a spare; leaving it is as good as removing it, but it may hold the last room on
  // disk.
  struct err_saved e;
  err_save(&e, s);
  (void)w->env->ops->unlink(w->env, w->dir->fd, wal_seg_name(seg));
  mem_free(seg);
  return err_raise(&e);
}

// Makes seg the segment h. Does not write the header.
void wal_seg_begin(struct wal_seg *seg, const struct wal_head *h) {
  seg->h = *h;
  seg->key = wal_key(h->store_id, h->gen);
  seg->end = WAL_HEAD;
  seg->durable = 0;
  seg->level = (struct wal_level){0};
  wal_head_put(seg->head, h);
}

// ---- errors

// With the lock held: every later append and sync returns this error. A full disk that an fsync reports came after the
// system had accepted the data, which it may have dropped: unlike one found in time it does not pass.
static void wal_fail(struct wal *w, enum remixdb_status s) {
  if (w->err.status == REMIXDB_OK) {
    err_save(&w->err, s);
    w->err.status = REMIXDB_IO;
  }
  w->lim = w->pos;
  wal_event_wake(&w->written);
  wal_event_wake(&w->synced);
}

enum remixdb_status wal_error(const struct wal *w) {
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

#define WAL_LOW \
  2u  // a segment is to have more room when less than this part of a step is left: for wal_ahead to make it,
#define WAL_NEEDED 4u  // and when it has not, for who appends

// Where the segment's end is by now.
static uint64_t wal_at(const struct wal *w) {
  return w->cur ? w->cur->off + (uint64_t)(w->pos - w->cur->mem) : w->active->end;
}

// From where on more room is wanted.
static uint64_t wal_watch(const struct wal *w, const struct wal_seg *seg) {
  const uint64_t part = wal_step(w, seg->alloc) / WAL_LOW;
  return seg->alloc > part ? seg->alloc - part : 0;
}

// How far records may go in the current buffer: what the buffer has and what the disk has room for, but for what is
// kept for the last.
static void wal_limit(struct wal *w) {
  const struct wal_buf *const b = w->cur;
  if (!b) {
    w->pos = w->lim = w->none;
    return;
  }
  const uint64_t keep = wal_keep(w, w->active),
                 room = w->active->alloc > b->off + keep ? w->active->alloc - b->off - keep : 0;
  w->lim = b->mem + (room < b->cap ? (size_t)room : b->cap);
  // who comes here has workers told that more room will be wanted
  const uint64_t watch = wal_watch(w, w->active);
  if (watch > wal_at(w) && watch - b->off < (uint64_t)(w->lim - b->mem)) w->lim = b->mem + (watch - b->off);
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
  if (w->out_head) w->out_tail->next = b;
  else w->out_head = b;
  w->out_tail = b;
}

static void wal_out_remove(struct wal *w, struct wal_buf *b) {
  struct wal_buf *prev = NULL;
  for (struct wal_buf *i = w->out_head; i != b; i = i->next) prev = i;
  if (prev) prev->next = b->next;
  else w->out_head = b->next;
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
    const struct wal_frame f = {.len = (uint32_t)(b->len - WAL_FRAME_HEAD),
                                .count = b->count,
                                .first_seq = b->first_seq,
                                .durable = b->durable};
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

// Makes the active segment's room reach `need`, or waits for the thread that does something of that kind. The lock is
// given up meanwhile, so that the caller looks at everything anew.
static enum remixdb_status wal_grow(struct wal *w, uint64_t need) {
  if (w->growing) {
    wal_event_wait(w, &w->written);
    return REMIXDB_OK;
  }
  struct wal_seg *const seg = w->active;
  const uint64_t from = seg->alloc, all = align_up(need, wal_step(w, from)), most = w->limit / 2;
  const uint64_t to = all <= most ? all : need < most ? most : need;
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

// Whether it is time to make room ahead of need, because less than a `part` of a step is left.
static bool wal_short_of_room(const struct wal *w, uint32_t part) {
  const struct wal_seg *const seg = w->active;
  return wal_at(w) + wal_step(w, seg->alloc) / part > seg->alloc && w->grow_refused != seg->alloc &&
         seg->alloc < w->limit / 2 && !w->scarce;
}

// Makes room ahead of need. The lock is given up meanwhile.
static void wal_grow_ahead(struct wal *w) {
  const uint64_t alloc = w->active->alloc;
  if (wal_grow(w, alloc + 1) != REMIXDB_OK) w->grow_refused = alloc;
}

#define WAL_NEXT_PART 8u  // the next segment is made ready when this part of what makes the active one full is written

// Whether wal_ahead has something to do. A segment that ends early needs no next one ready, and a small store not its
// room on disk.
static bool wal_is_behind(const struct wal *w) {
  const struct wal_seg *const seg = w->active;
  const bool next = atomic_load_explicit(&w->next_for, memory_order_relaxed) >= seg->alloc;
  const uint64_t early = w->limit == UINT64_MAX
                             ? wal_step(w, seg->alloc) / 2
                             : atomic_load_explicit(&w->full_at, memory_order_relaxed) / WAL_NEXT_PART;
  return wal_short_of_room(w, WAL_LOW) || (!next && wal_at(w) > early && w->durable_gen >= seg->h.gen);
}

// ---- appending

// Called with the lock held; it is still held when this returns REMIXDB_OK and nbytes fit, and not held otherwise.
// last: into what is kept of the segment's room.
static enum remixdb_status wal_make_room(struct wal *w, size_t nbytes, bool last) {
  enum remixdb_status s = REMIXDB_OK;
  struct wal_buf *big = NULL;
  if (nbytes > WAL_FRAME_MAX) {
    lib_unlock(&w->lock);
    return err_set(REMIXDB_TOOBIG, "a batch of %zu bytes; at most %u go into the log at once", nbytes, WAL_FRAME_MAX);
  }
  if (w->read_only) {
    lib_unlock(&w->lock);
    return err_set(REMIXDB_READONLY, "%s: the log was opened read-only", w->dir->path);
  }
  if (w->seq > WAL_NUMBER_MAX - WAL_FRAME_MAX) {  // no frame has so many records
    const uint64_t seq = w->seq;
    lib_unlock(&w->lock);
    return err_set(REMIXDB_CORRUPT, "%s: sequence numbers have run out at %llu", w->dir->path, (unsigned long long)seq);
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
      if (!b) wal_event_wait(w, &w->written);
      else if ((s = wal_write(w, b)) != REMIXDB_OK) break;
      continue;
    }
    if (w->cur && (big || (size_t)(w->cur->mem + w->cur->cap - w->pos) < nbytes)) {
      wal_seal(w);
      w->end_work = true;
    }
    const struct wal_seg *const seg = w->active;
    const uint64_t start = w->cur ? w->cur->off + (uint64_t)(w->pos - w->cur->mem) : seg->end + WAL_FRAME_HEAD,
                   keep = last ? 0 : wal_keep(w, seg);
    if (start + nbytes + keep > seg->alloc) {
      if (w->scarce && !last) {
        s = err_set(REMIXDB_NOSPACE, "%s: No space left on device: what room there is, is kept for deletes",
                    w->dir->path);
        break;
      }
      s = wal_grow(w, start + nbytes + keep);
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
        if (wal_short_of_room(w, WAL_NEEDED)) w->end_work = true;
      } else {
        struct wal_buf *const b = wal_out_sealed(w);
        if (!b) wal_event_wait(w, &w->written);
        else if ((s = wal_write(w, b)) != REMIXDB_OK) break;
        continue;
      }
    }
    if (wal_is_behind(w)) atomic_store_explicit(&w->behind, true, memory_order_relaxed);
    wal_limit(w);
    if ((size_t)(w->lim - w->pos) < nbytes) w->lim = w->pos + nbytes;
    assert((size_t)(w->lim - w->pos) >= nbytes && w->lim <= w->cur->mem + w->cur->cap);
    return REMIXDB_OK;
  }
  if (big) wal_buf_put(w, big);
  lib_unlock(&w->lock);
  return s;
}

static inline enum remixdb_status wal_begin_as(struct wal *w, size_t nbytes, bool last, uint64_t *gen_out) {
  lib_lock(&w->lock);
  if (unlikely(nbytes > (size_t)(w->lim - w->pos))) {
    const enum remixdb_status s = wal_make_room(w, nbytes, last);
    if (s != REMIXDB_OK) return s;
  }
  *gen_out = atomic_load_explicit(&w->gen, memory_order_relaxed);
  return REMIXDB_OK;
}

enum remixdb_status wal_begin(struct wal *w, size_t nbytes, uint64_t *gen_out) {
  return wal_begin_as(w, nbytes, false, gen_out);
}
enum remixdb_status wal_begin_last(struct wal *w, size_t nbytes, uint64_t *gen_out) {
  return wal_begin_as(w, nbytes, true, gen_out);
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

// Called with the lock held; gives it back. Writes what is sealed by now and nobody writes: this call's share, and at
// most what a call that failed has left. What others seal meanwhile is theirs, so that no thread is kept writing for
// them.
static void wal_end_slow(struct wal *w) {
  w->end_work = false;
  if (w->cur && w->cur->kind == WAL_BUF_BIG) wal_seal(w);
  const uint64_t end = w->next_ticket;
  for (struct wal_buf *b; w->err.status == REMIXDB_OK && (b = wal_out_sealed(w)) != NULL && b->ticket < end;) {
    if (wal_write(w, b) != REMIXDB_OK) break;
  }
  if (wal_short_of_room(w, WAL_NEEDED) && !w->growing && w->err.status == REMIXDB_OK) wal_grow_ahead(w);
  lib_unlock(&w->lock);
}

void wal_end(struct wal *w) {
  const struct wal_buf *const b = w->cur;
  if (likely(b != NULL))
    atomic_store_explicit(&w->seg_bytes, b->off + (uint64_t)(w->pos - b->mem), memory_order_relaxed);
  if (unlikely(w->end_work)) wal_end_slow(w);
  else lib_unlock(&w->lock);
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
// between two others is damage, never the work of a crash; and no frame can be on disk whose generation is more than
// one above that of every header on disk. make: a new file is made when there is none to be recycled.
static enum remixdb_status wal_prepare_locked(struct wal *w, uint64_t expected, bool make) {
  if (w->read_only) return err_set(REMIXDB_READONLY, "%s: the log was opened read-only", w->dir->path);
  enum remixdb_status s = wal_settle(w);
  if (s != REMIXDB_OK) return s;
  atomic_store_explicit(&w->next_for, expected, memory_order_relaxed);
  struct wal_seg *const next = w->next;
  if (!next) return make || w->spares ? wal_file_take(w, expected, false, &w->next) : REMIXDB_OK;
  // It is good without; and its size will be durable with the first frames.
  const uint64_t to = next->alloc < expected ? next->alloc + wal_within(w, expected - next->alloc) : next->alloc;
  if (next->alloc < to && env_allocate(w->env, next->fd, next->path, next->alloc, to - next->alloc) == REMIXDB_OK)
    next->alloc = to;
  return REMIXDB_OK;
}

// The prepared segment, which there is no more. Under admin.
static struct wal_seg *wal_next_take(struct wal *w) {
  struct wal_seg *const seg = w->next;
  w->next = NULL;
  atomic_store_explicit(&w->next_for, 0, memory_order_relaxed);
  return seg;
}

static enum remixdb_status wal_prepare_as(struct wal *w, bool ahead) {
  (void)pthread_mutex_lock(&w->admin);
  lib_lock(&w->lock);
  const uint64_t expected = w->scarce ? 0 : w->active->alloc;
  const bool make = !ahead || !w->turned || w->segs == w->active;
  lib_unlock(&w->lock);
  const enum remixdb_status s = wal_prepare_locked(w, expected, make);
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}

enum remixdb_status wal_prepare(struct wal *w) { return wal_prepare_as(w, false); }

bool wal_ahead_pending(const struct wal *w) { return atomic_load_explicit(&w->behind, memory_order_relaxed); }

void wal_ahead(struct wal *w) {
  lib_lock(&w->lock);
  atomic_store_explicit(
      &w->behind, false,
      memory_order_relaxed);  // until the next buffer is begun: what fails is not tried again and again
  const bool sound = w->err.status == REMIXDB_OK && !w->read_only;
  if (sound && wal_short_of_room(w, WAL_LOW) && !w->growing) wal_grow_ahead(w);
  const bool next = sound && wal_is_behind(w) && !wal_short_of_room(w, WAL_LOW);
  lib_unlock(&w->lock);
  if (next && wal_prepare_as(w, true) != REMIXDB_OK) {
    // who switches finds out
  }
}

// With the lock held: seg becomes the active segment.
static void wal_activate(struct wal *w, struct wal_seg *seg) {
  seg->next = NULL;
  if (w->active) w->active->next = seg;
  else w->segs = seg;
  w->active = seg;
  w->grow_refused = 0;
  w->st.segments++;
  atomic_store_explicit(&w->gen, seg->h.gen, memory_order_relaxed);
  atomic_store_explicit(&w->seg_bytes, seg->end, memory_order_relaxed);
  wal_bound(w);
}

enum remixdb_status wal_switch(struct wal *w, void (*fn)(void *arg, uint64_t new_gen), void *arg) {
  (void)pthread_mutex_lock(&w->admin);
  enum remixdb_status s = wal_prepare_locked(w, 0, true);
  if (s != REMIXDB_OK) goto out;
  lib_lock(&w->lock);
  while (w->growing) wal_event_wait(w, &w->written);
  s = wal_error(w);
  if (s == REMIXDB_OK && w->active->h.gen >= WAL_NUMBER_MAX)
    s = err_set(REMIXDB_CORRUPT, "%s: the log's generations have run out", w->dir->path);
  if (s != REMIXDB_OK) {
    lib_unlock(&w->lock);
    goto out;
  }
  wal_seal(w);
  const struct wal_seg *const old = w->active;
  struct wal_seg *const seg = wal_next_take(w);
  const struct wal_head h = {.store_id = w->store_id,
                             .gen = old->h.gen + 1,
                             .prev_gen = old->h.gen,
                             .prev_len = old->end,
                             .prev_durable = old->durable,
                             .last_seq = w->seq};
  wal_seg_begin(seg, &h);
  wal_activate(w, seg);
  w->turned = true;
  // The header goes out like a frame: in line, so that a sync waits for it, and tried again when the disk is full.
  seg->head_buf = (struct wal_buf){
      .seg = seg, .mem = seg->head, .cap = WAL_HEAD, .len = WAL_HEAD, .kind = WAL_BUF_HEADER};
  wal_out_add(w, &seg->head_buf);
  if (fn) fn(arg, h.gen);
  // The switch has happened: a failure from here on is told by the calls that come after.
  (void)wal_drain(w, w->next_ticket);
  lib_unlock(&w->lock);
out:
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}

// Under admin. With a limit one file is kept beside the segments, the prepared one or a spare: any two together have no
// more than that.
static bool wal_has_too_much(struct wal *w, uint32_t keep) {
  const uint32_t nr = atomic_load_explicit(&w->nr_pooled, memory_order_relaxed);
  if (nr == 0 || nr > keep) return nr != 0;
  return w->limit != UINT64_MAX && (nr > 1 || w->next || wal_room(w) > w->limit);
}

enum remixdb_status wal_trim(struct wal *w, uint32_t keep) {
  while (wal_has_too_much(w, keep)) {
    struct wal_seg *const seg = wal_pool_take(w);
    const enum remixdb_status s = env_unlink(w->dir, wal_seg_name(seg));
    if (s != REMIXDB_OK) {
      wal_pool_add(w, seg);
      return s;
    }
    wal_seg_destroy(w, seg);
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
      wal_bound(w);
    }
    lib_unlock(&w->lock);
    if (!take) break;
    env_close_quiet(w->env, old->fd);
    old->fd = -1;
    wal_pool_add(w, old);
  }
  if (s == REMIXDB_OK) s = wal_trim(w, WAL_POOL);
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}

enum remixdb_status wal_shed(struct wal *w) {
  if (w->read_only) return REMIXDB_OK;
  (void)pthread_mutex_lock(&w->admin);
  struct wal_seg *const next = wal_next_take(w);
  if (next) {
    env_close_quiet(w->env, next->fd);
    next->fd = -1;
    wal_pool_add(w, next);
  }
  const enum remixdb_status s = wal_trim(w, 0);
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}

void wal_scarce(struct wal *w, bool on) {
  lib_lock(&w->lock);
  w->scarce = on;
  lib_unlock(&w->lock);
}

// The room of the active segment ends soon behind what is in it.
static bool wal_cut_active(struct wal *w) {
  lib_lock(&w->lock);
  while (w->growing) wal_event_wait(w, &w->written);
  struct wal_seg *const seg = w->active;
  const uint64_t to = align_up(wal_at(w), WAL_REST) + WAL_FIRST;
  const bool any = w->err.status == REMIXDB_OK && w->nr_retained == 0 && seg->alloc > to;
  if (any) {
    // no record goes behind that from here on, and nobody makes it longer meanwhile
    seg->alloc = w->grow_refused = to;
    wal_limit(w);
    w->growing = true;
    lib_unlock(&w->lock);
    const enum remixdb_status s = env_truncate(w->env, seg->fd, seg->path, to);
    (void)s;  // then the file is longer than is known, which later growth makes use of
    lib_lock(&w->lock);
    w->growing = false;
    wal_event_wake(&w->written);
  }
  lib_unlock(&w->lock);
  return any;
}

bool wal_yield(struct wal *w) {
  if (w->read_only) return false;
  (void)pthread_mutex_lock(&w->admin);
  struct wal_seg *const next = w->next;
  const uint64_t first = wal_step(w, 0);
  bool any = w->spares && wal_trim(w, 0) == REMIXDB_OK;
  if (next && next->alloc > first && env_truncate(w->env, next->fd, next->path, first) == REMIXDB_OK) {
    next->alloc = first;
    any = true;
  }
  (void)pthread_mutex_unlock(&w->admin);
  return wal_cut_active(w) || any;
}

// Puts a watermark into a segment whose header is durable, and makes it durable. Under admin. Of a segment that was
// recovered the file is not open.
static enum remixdb_status wal_level_write(struct wal *w, struct wal_seg *seg, const struct wal_level *l) {
  uint8_t p[WAL_LEVEL_LEN];
  int fd = seg->fd;
  enum remixdb_status s = REMIXDB_OK;
  wal_level_put(p, &seg->key, l);
  if (fd < 0) {
    s = env_open(w->dir, wal_seg_name(seg), ENV_READ | ENV_WRITE, &fd);
    if (s == REMIXDB_NOTFOUND) s = err_set(REMIXDB_IO, "%s: removed while the store is open", seg->path);
    if (s != REMIXDB_OK) return s;
  }
  // where the file has another name as well, what was replayed from it stays as it is: the segment that follows says
  // the same in its header
  struct env_stat links;
  const int rc = w->env->ops->fstat(w->env, fd, &links);
  const bool shared = rc >= 0 && links.links > 1;
  if (rc < 0) s = err_errno(-rc, "stat", seg->path);
  else if (!shared) s = env_write(w->env, fd, seg->path, p, WAL_LEVEL_LEN, WAL_LEVEL);
  // Whatever an fsync reports may be of frames that were written before: unlike what the write reports it does not
  // pass.
  if (s == REMIXDB_OK && env_sync_data(w->env, fd, seg->path) != REMIXDB_OK) s = REMIXDB_IO;
  if (fd != seg->fd) env_close_quiet(w->env, fd);
  if (s == REMIXDB_OK && !shared) seg->level = *l;
  return s;
}

enum remixdb_status wal_mark(struct wal *w) {
  if (w->read_only) return REMIXDB_OK;
  (void)pthread_mutex_lock(&w->admin);  // keeps the segments, and which one is active
  lib_lock(&w->lock);
  while (w->syncing)
    wal_event_wait(w, &w->synced);  // the system tells one caller of a failure: no sync may run beside this one's
  enum remixdb_status s = wal_error(w);
  struct wal_seg *const seg = w->active;
  struct wal_seg *before = w->segs;
  while (before != seg && before->next != seg) before = before->next;
  const struct wal_level l = {.gen = seg->h.gen, .end = seg->durable};
  // an empty segment has nothing to lose, and its header may say all there is to say of the older ones
  const bool news = l.end > WAL_HEAD || (l.end == WAL_HEAD && seg->h.prev_durable < seg->h.prev_len);
  if (s == REMIXDB_OK && news) {
    w->syncing = true;
    lib_unlock(&w->lock);
    if (seg->level.end < l.end) s = wal_level_write(w, seg, &l);
    if (s == REMIXDB_OK && before != seg && before->level.gen < l.gen) s = wal_level_write(w, before, &l);
    if (s == REMIXDB_NOSPACE) s = REMIXDB_OK;  // of a file system that never writes in place; the log is good without
    lib_lock(&w->lock);
    w->syncing = false;
    if (s != REMIXDB_OK && s != REMIXDB_NOMEM) {
      wal_fail(w, s);
      s = wal_error(w);
    }
    wal_event_wake(&w->synced);
  }
  lib_unlock(&w->lock);
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}

void wal_stats(struct wal *w, struct wal_stats *out) {
  lib_lock(&w->lock);
  *out = w->st;
  out->records = w->seq - w->st.records;  // st.records holds the number that the first append followed
  if (w->cur) out->bytes += (uint64_t)(w->pos - w->cur->mem);
  lib_unlock(&w->lock);
  out->spare_segments = atomic_load_explicit(&w->nr_pooled, memory_order_relaxed);
}

// ---- beginning and end

// Begins the segment that appends go to, with its header durable before return.
enum remixdb_status wal_begin_segment(struct wal *w, const struct wal_head *h) {
  struct wal_seg *seg;
  enum remixdb_status s = wal_file_take(w, 0, true, &seg);
  if (s != REMIXDB_OK) return s;
  wal_seg_begin(seg, h);
  // what an earlier life has left would be written full by a store whose disk has no room to bring as much into tables
  const uint64_t first = wal_step(w, 0);
  if (seg->alloc > first && (s = env_truncate(w->env, seg->fd, seg->path, first)) == REMIXDB_OK) seg->alloc = first;
  if (s == REMIXDB_OK) s = env_write(w->env, seg->fd, seg->path, seg->head, WAL_HEAD, 0);
  if (s == REMIXDB_OK) s = env_sync_all(w->env, seg->fd, seg->path);
  if (s != REMIXDB_OK) {
    env_close_quiet(w->env, seg->fd);
    seg->fd = -1;
    wal_pool_add(w, seg);
    return s;
  }
  seg->durable = WAL_HEAD;
  w->durable_gen = h->gen;
  wal_activate(w, seg);
  return REMIXDB_OK;
}

void wal_adopt(struct wal *w, struct wal_seg *seg) {
  seg->alloc = seg->size;
  w->durable_gen = seg->h.gen;
  w->active = seg;
  atomic_store_explicit(&w->gen, seg->h.gen, memory_order_relaxed);
  atomic_store_explicit(&w->seg_bytes, seg->end, memory_order_relaxed);
  wal_bound(w);
}

void wal_destroy(struct wal *w) {
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
  wal_segs_destroy(w, w->foreign);
  wal_seg_destroy(w, w->next);
  wal_event_fini(&w->written);
  wal_event_fini(&w->synced);
  (void)pthread_mutex_destroy(&w->admin);
  mem_free(w);
}

// NULL: REMIXDB_NOMEM.
struct wal *wal_create(const struct wal_opts *o) {
  struct wal *const w = mem_alloc_aligned(CACHE_LINE, align_up(sizeof(*w), CACHE_LINE));
  if (!w) return NULL;
  memset(w, 0, sizeof(*w));
  w->env = o->dir->env;
  w->dir = o->dir;
  w->store_id = o->store_id;
  w->step = o->step ? o->step : WAL_PREALLOC;
  w->limit = o->limit ? o->limit : UINT64_MAX;
  wal_bound(w);
  w->read_only = o->read_only;
  w->pos = w->lim = w->none;
  wal_event_init(&w->written);
  wal_event_init(&w->synced);
  (void)pthread_mutex_init(&w->admin, NULL);
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

// What the log takes on disk beyond what it holds goes: files that were kept for later, and room, but for some that a
// disk which is full by the next opening does not have to give. Where that fails the log is larger than it needs to be,
// which loses nothing: a crash at any of these calls leaves the same log.
static enum remixdb_status wal_shrink(struct wal *w) {
  const bool any = w->next || w->spares;
  enum remixdb_status s = wal_shed(w);
  if (s == REMIXDB_OK && any) s = env_sync_dir(w->dir);
  for (struct wal_seg *i = w->segs; i && s == REMIXDB_OK; i = i->next) {
    const uint64_t size = i == w->active ? align_up(i->end, WAL_REST) + WAL_REST : align_up(i->end, WAL_REST);
    uint64_t was = 0;
    if (i->fd >= 0) s = env_size(w->env, i->fd, i->path, &was);
    if (s != REMIXDB_OK || was <= size) continue;
    s = env_truncate(w->env, i->fd, i->path, size);
    if (s == REMIXDB_OK) s = env_sync_all(w->env, i->fd, i->path);
  }
  return s;
}

enum remixdb_status wal_close(struct wal *w) {
  enum remixdb_status s = wal_sync(w);
  if (s == REMIXDB_OK) s = wal_mark(w);
  if (s == REMIXDB_OK && !w->read_only) s = wal_shrink(w);
  for (struct wal_seg *i = w->segs; i; i = i->next) {
    if (i->fd < 0) continue;
    if (s == REMIXDB_OK && !w->read_only) s = env_close(w->env, i->fd, i->path);
    else env_close_quiet(w->env, i->fd);
    i->fd = -1;
  }
  wal_destroy(w);
  return s;
}
