// SPDX-License-Identifier: Apache-2.0
//
// Appending and group commit. Appends fill a buffer and seal it. Threads write the sealed buffers, the oldest first;
// several threads may write at once. A sync makes the written bytes durable.
#include "log/file.h"
#include "log/room.h"

#include <assert.h>

#define WAL_END_PAGE 4096u  // the system reads a page of a file that a write does not fill
#define WAL_ASKED 16u       // buffers

// ---- writing buffers. The lock is held.

static void wal_buf_open(struct wal *w, struct wal_buf *b) {
  assert(!w->cur);
  b->state = WAL_BUF_FILLING;
  b->seg = w->active;
  b->off = w->active->end;
  b->first_seq = w->seq + 1;
  w->cur = b;
  w->pos = b->mem + WAL_FRAME_HEAD;
  w->base = b->off - (uint64_t)(uintptr_t)b->mem;
  wal_limit(w);
}

void wal_out_add(struct wal *w, struct wal_buf *b) {
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

// Returns the oldest queued buffer that a thread may write, or NULL. A header waits until all buffers before it are
// written, because it states the sum of the frames of the segment before.
static struct wal_buf *wal_out_sealed(const struct wal *w) {
  struct wal_buf *b = w->out_head;
  while (b && (b->state != WAL_BUF_SEALED || (b->kind == WAL_BUF_HEADER && b != w->out_head))) b = b->next;
  return b;
}

// Puts into a header what was not known when its segment began. All frames of the segment before are written, and that
// one stays in the list until this header is durable.
static void wal_head_complete(struct wal *w, struct wal_seg *seg) {
  const struct wal_seg *before = w->segs;
  while (before->next != seg) before = before->next;
  assert(before->h.print == seg->h.prev_print);
  seg->h.prev_frames = before->frames;
  seg->h.print = wal_head_put(seg->head, &seg->h);
}

void wal_seal(struct wal *w) {
  struct wal_buf *const b = w->cur;
  if (!b) return;
  assert(b->seg == w->active && b->off == b->seg->end);
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

// A write that ends inside a page of a file that is written again waits for the disk, if that page is not in the page
// cache. So once a full buffer is written, this asks for the pages in which later ones may end: the next one, which
// fills meanwhile, and the one after WAL_ASKED buffers, because a read of a busy disk may take longer than a buffer
// takes to fill. That one ends where it would if all had the length of this one. `all`: nobody has asked for the pages
// up to there. `end`: where this one ends. alloc: the segment's room.
static void wal_ask_ahead(struct wal *w, const struct wal_seg *seg, bool all, uint64_t end, uint64_t len,
                          uint64_t alloc) {
  const uint64_t page = (end + WAL_BUF) & ~(uint64_t)(WAL_END_PAGE - 1);
  const uint64_t from = page > WAL_END_PAGE ? page - WAL_END_PAGE : 0;
  env_advise(w->env, seg->fd, from, page + WAL_END_PAGE - from, ENV_WILL_NEED);
  for (uint64_t n = all ? 2 : WAL_ASKED; n <= WAL_ASKED; n++) {
    const uint64_t at = (end + n * len) & ~(uint64_t)(WAL_END_PAGE - 1);
    if (at + 2 * WAL_END_PAGE > alloc) break;
    const uint64_t low = at > WAL_END_PAGE ? at - WAL_END_PAGE : 0;
    env_advise(w->env, seg->fd, low, at + 2 * WAL_END_PAGE - low, ENV_WILL_NEED);
  }
}

// Writes a sealed buffer. Yields the lock. If the call fails with REMIXDB_NOSPACE, the buffer stays in the queue.
static enum remixdb_status wal_write(struct wal *w, struct wal_buf *b) {
  struct wal_seg *const seg = b->seg;
  assert(b->state == WAL_BUF_SEALED);
  b->state = WAL_BUF_WRITING;
  if (b->kind == WAL_BUF_HEADER) wal_head_complete(w, seg);
  const bool goes_on = b->kind == WAL_BUF_NORMAL && b->len > WAL_BUF / 2 && seg == w->active &&
                       seg->alloc - b->off >= 2 * (uint64_t)WAL_BUF + WAL_END_PAGE;
  const uint64_t alloc = seg->alloc, end = b->off + b->len;
  const bool first = b->off == WAL_HEAD || end + WAL_END_PAGE < w->ends_at || end > w->ends_at + WAL_END_PAGE;
  // Frames of uneven lengths end where nobody can tell: one that follows such a frame does not ask for all again.
  const bool all = first && !w->ends_wrong;
  if (goes_on) w->ends_at = end + b->len;
  if (goes_on) w->ends_wrong = first;
  wal_unlock(w);
  if (b->kind != WAL_BUF_HEADER) {
    const struct wal_frame f = {.len = (uint32_t)(b->len - WAL_FRAME_HEAD),
                                .kinds = KV_IN_LOG,
                                .count = b->count,
                                .first_seq = b->first_seq,
                                .durable = b->durable};
    b->sum = wal_frame_put(b->mem, &seg->key, b->off, &f);
  }
  const enum remixdb_status s = env_write(w->env, seg->fd, seg->path, b->mem, b->len, b->off);
  if (goes_on && s == REMIXDB_OK) wal_ask_ahead(w, seg, all, end, b->len, alloc);
  wal_lock(w);
  if (s == REMIXDB_NOSPACE) {
    b->state = WAL_BUF_SEALED;
    if (!b->retained) w->nr_retained++;
    b->retained = true;
    w->lim = w->pos;
  } else {
    if (b->retained) w->nr_retained--;
    if (b->kind != WAL_BUF_HEADER) seg->frames += b->sum;
    wal_out_remove(w, b);
    wal_buf_put(w, b);
    if (s != REMIXDB_OK) wal_fail(w, s);
  }
  w->events |= WAL_WRITTEN;
  return s == REMIXDB_OK || s == REMIXDB_NOSPACE ? s : wal_error(w);
}

// Writes the queued buffers with a ticket below `end`, and waits for those that other threads write. Yields the lock.
// If the disk is full, the buffers stay in the queue.
static enum remixdb_status wal_drain(struct wal *w, uint64_t end) {
  assert(end <= w->next_ticket);
  for (;;) {
    enum remixdb_status s = wal_error(w);
    if (s != REMIXDB_OK) return s;
    if (!w->out_head || w->out_head->ticket >= end) return REMIXDB_OK;
    struct wal_buf *const b = wal_out_sealed(w);
    if (b && b->ticket < end) {
      s = wal_write(w, b);
      if (s != REMIXDB_OK) return s;
    } else {
      wal_wait(w, &w->written);
    }
  }
}

void wal_push(struct wal *w) {
  // A later append or sync meets the same failure and reports it. (IGNORED is not used, because the message of a sticky
  // error must stay.)
  const enum remixdb_status ignored = wal_drain(w, w->next_ticket);
  (void)ignored;
}

// Writes the oldest buffer that no thread writes, or waits until another thread has written one. Yields the lock.
static enum remixdb_status wal_write_oldest(struct wal *w) {
  struct wal_buf *const b = wal_out_sealed(w);
  if (b) return wal_write(w, b);
  wal_wait(w, &w->written);
  return REMIXDB_OK;
}

// ---- appending

// Refuses an append that could not succeed later either.
static enum remixdb_status wal_check_append(const struct wal *w, size_t nbytes) {
  if (nbytes > WAL_FRAME_MAX)
    return err_set(REMIXDB_TOOBIG, "a batch of %zu bytes; at most %u go into the log at once", nbytes, WAL_FRAME_MAX);
  if (w->read_only) return err_set(REMIXDB_READONLY, "%s: the log was opened read-only", w->dir->path);
  if (w->seq > WAL_NUMBER_MAX - WAL_FRAME_MAX)  // a frame has at most WAL_FRAME_MAX records
    return err_set(REMIXDB_CORRUPT, "%s: sequence numbers have run out at %llu", w->dir->path,
                   (unsigned long long)w->seq);
  return REMIXDB_OK;
}

// Opens the buffer *big and sets *big to NULL. If *big is NULL, opens a free buffer. Returns false if no buffer is
// free.
static bool wal_buf_next(struct wal *w, struct wal_buf **big) {
  if (*big) {
    wal_buf_open(w, *big);
    *big = NULL;
    w->end_work = true;
    return true;
  }
  struct wal_buf *const b = w->free;
  if (!b) return false;
  w->free = b->next;
  wal_buf_open(w, b);
  if (wal_short_of_room(w, WAL_NEEDED)) w->end_work = true;
  return true;
}

// The kinds of appends.
enum wal_how {
  WAL_PLAIN,
  WAL_LAST,  // the records may use the room that wal_keep keeps
  WAL_HELD,  // the same, and the thread holds the log
};

// Takes one step to make room for nbytes. The lock is held. *fits_out tells whether nbytes fit now. If they do not, and
// the call returns REMIXDB_OK, the call has yielded the lock, and the caller must try again. *big: a buffer for these
// records alone, or NULL if a normal buffer has room; NULL again once the buffer is open.
static enum remixdb_status wal_try_room(struct wal *w, size_t nbytes, enum wal_how how, struct wal_buf **big,
                                        bool *fits_out) {
  const bool last = how != WAL_PLAIN;
  *fits_out = false;
  const enum remixdb_status s = wal_error(w);
  if (s != REMIXDB_OK) return s;
  if (w->held && how != WAL_HELD) {
    wal_wait(w, &w->unheld);
    return REMIXDB_OK;
  }
  if (w->nr_retained) return wal_write_oldest(w);  // records that were accepted come first
  if (w->cur && (*big || (size_t)(w->cur->mem + w->cur->cap - w->pos) < nbytes)) {
    wal_seal(w);
    w->end_work = true;
  }
  const struct wal_seg *const seg = w->active;
  const uint64_t start = w->cur ? wal_at(w) : seg->end + WAL_FRAME_HEAD, keep = last ? 0 : wal_keep(w, seg);
  if (start + nbytes + keep > seg->alloc) {
    if (w->scarce && !last)
      return err_set(REMIXDB_NOSPACE, "%s: No space left on device: what room there is, is kept for deletes",
                     w->dir->path);
    return wal_grow(w, start + nbytes + keep);
  }
  if (!w->cur && !wal_buf_next(w, big)) return wal_write_oldest(w);
  if (wal_is_behind(w)) atomic_store_explicit(&w->behind, true, memory_order_relaxed);
  wal_limit(w);
  if ((size_t)(w->lim - w->pos) < nbytes) w->lim = w->pos + nbytes;
  assert((size_t)(w->lim - w->pos) >= nbytes && w->lim <= w->cur->mem + w->cur->cap);
  *fits_out = true;
  return REMIXDB_OK;
}

// Makes room for nbytes. The caller holds the lock, and the call may yield it. After REMIXDB_OK nbytes fit, and the
// lock is held. After a failure the lock is not held.
static enum remixdb_status wal_make_room(struct wal *w, size_t nbytes, enum wal_how how) {
  struct wal_buf *big = NULL;
  enum remixdb_status s = wal_check_append(w, nbytes);
  if (s == REMIXDB_OK && WAL_FRAME_HEAD + nbytes > WAL_BUF) {
    wal_unlock(w);
    big = wal_buf_create(WAL_FRAME_HEAD + nbytes);
    if (!big) return REMIXDB_NOMEM;
    wal_lock(w);
    w->st.buffer_bytes += big->cap;
  }
  for (bool fits = false; s == REMIXDB_OK && !fits;) s = wal_try_room(w, nbytes, how, &big, &fits);
  if (big) wal_buf_put(w, big);
  if (s != REMIXDB_OK) wal_unlock(w);
  else if (w->events) w->end_work = true;
  return s;
}

static inline enum remixdb_status wal_begin_as(struct wal *w, size_t nbytes, enum wal_how how, uint64_t *gen_out) {
  lib_lock(&w->lock);
  if (unlikely(nbytes > (size_t)(w->lim - w->pos))) {
    const enum remixdb_status s = wal_make_room(w, nbytes, how);
    if (s != REMIXDB_OK) return s;
  }
  *gen_out = atomic_load_explicit(&w->gen, memory_order_relaxed);
  return REMIXDB_OK;
}

enum remixdb_status wal_lock_with_room(struct wal *w, size_t nbytes) {
  uint64_t gen;
  return wal_begin_as(w, nbytes, WAL_HELD, &gen);
}

enum remixdb_status wal_begin(struct wal *w, size_t nbytes, uint64_t *gen_out) {
  return wal_begin_as(w, nbytes, WAL_PLAIN, gen_out);
}
enum remixdb_status wal_begin_last(struct wal *w, size_t nbytes, uint64_t *gen_out) {
  return wal_begin_as(w, nbytes, WAL_LAST, gen_out);
}
enum remixdb_status wal_begin_held(struct wal *w, size_t nbytes, uint64_t *gen_out) {
  return wal_begin_as(w, nbytes, WAL_HELD, gen_out);
}

// Every append of bytes takes the slow path then, and waits there.
void wal_hold(struct wal *w) {
  wal_lock(w);
  assert(!w->held);
  w->held = true;
  w->lim = w->pos;
  wal_unlock(w);
}

void wal_unhold(struct wal *w) {
  wal_lock(w);
  assert(w->held);
  w->held = false;
  wal_limit(w);
  w->events |= WAL_UNHELD;
  wal_unlock(w);
}

uint64_t wal_put(struct wal *w, const struct kv_rec *rec) {
  assert(kv_rec_size(rec) <= (size_t)(w->lim - w->pos));
  w->pos = kv_rec_put(w->pos, rec);
  return ++w->seq;
}

// Called with the lock held; releases the lock. Writes the sealed buffers that no other thread writes: the buffers of
// this append, and buffers that an earlier call could not write. The call leaves alone the buffers that other threads
// seal from now on, because those threads write them. So the call ends. It also makes room on disk ahead of need.
static void wal_end_slow(struct wal *w) {
  w->end_work = false;
  if (w->cur && w->cur->kind == WAL_BUF_BIG) wal_seal(w);
  const uint64_t end = w->next_ticket;
  for (struct wal_buf *b; w->err.status == REMIXDB_OK && (b = wal_out_sealed(w)) != NULL && b->ticket < end;) {
    if (wal_write(w, b) != REMIXDB_OK) break;
  }
  if (wal_short_of_room(w, WAL_NEEDED) && !w->growing && w->err.status == REMIXDB_OK) wal_grow_ahead(w);
  wal_unlock(w);
}

static inline void wal_count_bytes(struct wal *w) {
  atomic_store_explicit(&w->seg_bytes, w->base + (uint64_t)(uintptr_t)w->pos, memory_order_relaxed);
}

void wal_end(struct wal *w) {
  wal_count_bytes(w);
  assert(w->end_work || !w->events);
  if (unlikely(w->end_work)) wal_end_slow(w);
  else lib_unlock(&w->lock);
}

bool wal_end_unlock(struct wal *w) {
  wal_count_bytes(w);
  const bool work = w->end_work;  // another thread may do it meanwhile
  if (unlikely(w->events)) wal_unlock(w);
  else lib_unlock(&w->lock);
  return work;
}

void wal_end_write(struct wal *w) {
  wal_lock(w);
  wal_end_slow(w);
}

// ---- sync

// Makes a segment's bytes up to `end` durable. Yields the lock.
static enum remixdb_status wal_sync_seg(struct wal *w, const struct wal_seg *seg, uint64_t end) {
  wal_unlock(w);
  const enum remixdb_status s = wal_file_sync(w, seg, seg->fd, end);
  wal_lock(w);
  if (s == REMIXDB_OK) {
    w->st.syncs++;
    return s;
  }
  wal_fail(w, s);
  return wal_error(w);
}

// With the lock held and `syncing` set: makes all records durable that were appended up to now. With `alone` only those
// in the active segment. Yields the lock.
static enum remixdb_status wal_sync_lead(struct wal *w, bool alone) {
  assert(w->syncing);
  wal_seal(w);
  struct wal_seg *const last = w->active;
  const uint64_t last_end = last->end, seq = w->seq;
  enum remixdb_status s = wal_drain(w, w->next_ticket);
  if (s != REMIXDB_OK) return s;
  if (w->values) {  // before the records that refer to them (L8)
    wal_unlock(w);
    s = w->values->sync(w->values->arg);
    wal_lock(w);
    if (s != REMIXDB_OK) {
      wal_fail(w, s);
      return wal_error(w);
    }
  }
  // The loop syncs the oldest segment first, because no segment may count as durable before an older one (log/wal.h,
  // L5). `i` stays valid without the lock: while a thread leads a sync, only segments that are durable leave the list,
  // and only this thread makes segments durable. `last` stays, too: a segment is released for a newer one, and no other
  // thread can make the newer one's header durable meanwhile. All segments before `last` have their final length.
  bool whole = true;  // everything before `last` is durable
  for (struct wal_seg *i = w->segs; i != last; i = i->next) {
    if (i->durable == i->end) continue;
    whole = false;
    if (alone) break;
    if ((s = wal_sync_seg(w, i, i->end)) != REMIXDB_OK) return s;
    i->durable = i->end;
    whole = true;
  }
  if (last->durable < last_end && (s = wal_sync_seg(w, last, last_end)) != REMIXDB_OK) return s;
  w->durable_gen = last->h.gen;
  if (!whole) {
    w->secured_gen = last->h.gen;
    w->secured_end = last_end;
    w->secured_seq = seq;
    return REMIXDB_OK;
  }
  last->durable = last_end;
  atomic_store_explicit(&w->durable_seq, seq, memory_order_relaxed);
  return REMIXDB_OK;
}

// Tells whether the records up to seq are known to be durable, and the header of the segment gen: the store's next
// version may name a segment without records.
static bool wal_is_durable(const struct wal *w, uint64_t seq, uint64_t gen) {
  return atomic_load_explicit(&w->durable_seq, memory_order_relaxed) >= seq && w->durable_gen >= gen;
}

// Syncs all segments, or, with `alone`, the active one. If the log switches meanwhile, all of them: the next segment
// alone would leave records out.
static enum remixdb_status wal_sync_as(struct wal *w, bool alone) {
  enum remixdb_status s;
  if (w->read_only) return REMIXDB_OK;
  wal_lock(w);
  const uint64_t seq = w->seq, gen = w->active->h.gen;
  for (;;) {
    s = wal_error(w);
    if (s != REMIXDB_OK || wal_is_durable(w, seq, gen)) break;
    if (alone && w->secured_gen == gen && w->secured_seq >= seq) break;
    if (w->syncing) {  // that sync may have begun before our records; if so, one of the waiting threads leads the next
      wal_wait(w, &w->synced);
      continue;
    }
    w->syncing = true;
    s = wal_sync_lead(w, alone && w->active->h.gen == gen);
    w->syncing = false;
    w->events |= WAL_SYNCED;
    if (s != REMIXDB_OK) break;
  }
  wal_unlock(w);
  return s;
}

enum remixdb_status wal_sync(struct wal *w) { return wal_sync_as(w, false); }

enum remixdb_status wal_sync_active(struct wal *w) { return wal_sync_as(w, true); }

enum remixdb_status wal_flush(struct wal *w) {
  if (w->read_only) return REMIXDB_OK;
  wal_lock(w);
  enum remixdb_status s = wal_error(w);
  if (s == REMIXDB_OK) {
    wal_seal(w);
    s = wal_drain(w, w->next_ticket);
  }
  wal_unlock(w);
  return s;
}

uint64_t wal_durable_seq(const struct wal *w) { return atomic_load_explicit(&w->durable_seq, memory_order_relaxed); }
uint64_t wal_gen(const struct wal *w) { return atomic_load_explicit(&w->gen, memory_order_relaxed); }
uint64_t wal_segment_bytes(const struct wal *w) { return atomic_load_explicit(&w->seg_bytes, memory_order_relaxed); }

// ---- watermarks

// Writes a watermark into the header of a segment, and syncs the file. That header is durable already. The caller holds
// `admin`. Opens the file if it is closed, as the files of recovered segments are.
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
  // The log does not write to a file that has a second name (a hard link), because the file may belong to a copy of the
  // store. For the segment before the active one that is no loss: the active segment's header has the watermark.
  struct env_stat links;
  s = env_fstat(w->env, fd, seg->path, &links);
  const bool shared = s == REMIXDB_OK && links.links > 1;
  if (s == REMIXDB_OK && !shared) s = env_write(w->env, fd, seg->path, p, WAL_LEVEL_LEN, WAL_LEVEL);
  // A failed fsync may have lost frames that were written earlier. So each failure of the fsync becomes REMIXDB_IO, and
  // wal_mark makes that sticky. A write that fails with REMIXDB_NOSPACE or REMIXDB_NOMEM is not sticky.
  if (s == REMIXDB_OK && wal_file_sync(w, seg, fd, WAL_HEAD) != REMIXDB_OK) s = REMIXDB_IO;
  if (fd != seg->fd) env_close_quiet(w->env, fd);
  if (s == REMIXDB_OK && !shared) seg->level = *l;
  return s;
}

enum remixdb_status wal_mark(struct wal *w) {
  if (w->read_only) return REMIXDB_OK;
  (void)pthread_mutex_lock(&w->admin);  // keeps the list of segments and the active segment unchanged
  wal_lock(w);
  // If two fsyncs of a file run at once, the system may report a failure to one of them only. So no other sync may run.
  while (w->syncing) wal_wait(w, &w->synced);
  enum remixdb_status s = wal_error(w);
  struct wal_seg *const seg = w->active;
  struct wal_seg *before = w->segs;
  while (before != seg && before->next != seg) before = before->next;
  const struct wal_level l = {.gen = seg->h.gen, .end = seg->durable};
  // An empty segment has no bytes to protect, and its header may already state that the older segments are durable.
  const bool news = l.end > WAL_HEAD || (l.end == WAL_HEAD && seg->h.prev_durable < seg->h.prev_len);
  if (s == REMIXDB_OK && news) {
    w->syncing = true;
    wal_unlock(w);
    if (seg->level.end < l.end) s = wal_level_write(w, seg, &l);
    if (s == REMIXDB_OK && before != seg && before->level.gen < l.gen) s = wal_level_write(w, before, &l);
    if (s == REMIXDB_NOSPACE)
      s = REMIXDB_OK;  // copy-on-write file systems need room to overwrite; the log is whole without a watermark
    wal_lock(w);
    w->syncing = false;
    if (s != REMIXDB_OK && s != REMIXDB_NOMEM) {
      wal_fail(w, s);
      s = wal_error(w);
    }
    w->events |= WAL_SYNCED;
  }
  wal_unlock(w);
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}
