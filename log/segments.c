// SPDX-License-Identifier: Apache-2.0
#include "log/segments.h"

#include <assert.h>

// ---- the pool

void wal_pool_add(struct wal *w, struct wal_seg *seg) {
  struct wal_seg **at = &w->pool;
  assert(seg->fd < 0);
  while (*at) at = &(*at)->next;
  seg->next = NULL;
  *at = seg;
  atomic_fetch_add_explicit(&w->nr_pooled, 1, memory_order_relaxed);
}

static struct wal_seg *wal_pool_take(struct wal *w) {
  struct wal_seg *const seg = w->pool;
  if (!seg) return NULL;
  w->pool = seg->next;
  seg->next = NULL;
  atomic_fetch_sub_explicit(&w->nr_pooled, 1, memory_order_relaxed);
  return seg;
}

void wal_foreign_add(struct wal *w, struct wal_seg *seg) {
  wal_seg_close(w, seg);
  seg->next = w->foreign;
  w->foreign = seg;
}

static bool wal_has_nr(const struct wal_seg *list, uint32_t nr) {
  while (list && list->nr != nr) list = list->next;
  return list != NULL;
}

// Returns the smallest number that no file of the log has. The caller holds admin, so no other thread changes a list of
// files.
static uint32_t wal_free_nr(const struct wal *w) {
  uint32_t nr = 0;
  while ((w->next && w->next->nr == nr) || wal_has_nr(w->segs, nr) || wal_has_nr(w->pool, nr) ||
         wal_has_nr(w->foreign, nr))
    nr++;
  return nr;
}

// ---- a file for a segment; under admin

// Reserves room for the first step of seg, and for `expected` bytes as far as the limit and the disk allow. The call
// makes new room durable together with the file's size, so later syncs need not write the size. seg is in none of the
// log's lists, because the limit counts the files in the lists.
static enum remixdb_status wal_seg_reserve(struct wal *w, struct wal_seg *seg, uint64_t expected) {
  const uint64_t first = wal_step(w, 0);
  enum remixdb_status s = env_size(w->env, seg->fd, seg->path, &seg->alloc);
  if (s != REMIXDB_OK) return s;
  uint64_t to = expected > seg->alloc ? wal_within(w, expected) : seg->alloc;
  if (to < first) to = first;
  if (seg->alloc >= to) return REMIXDB_OK;
  s = env_allocate(w->env, seg->fd, seg->path, seg->alloc, to - seg->alloc);
  if (s == REMIXDB_NOSPACE && to > first) {
    // A failed allocation may have taken some bytes, which the file does not need.
    if (seg->alloc >= first) return REMIXDB_OK;
    to = first;
    s = env_allocate(w->env, seg->fd, seg->path, seg->alloc, to - seg->alloc);
  }
  // A segment can begin with one page, and takes some deletes there. So try half the room again and again.
  while (s == REMIXDB_NOSPACE && to > WAL_REST && to / 2 >= seg->alloc) {
    to /= 2;
    s = to > seg->alloc ? env_allocate(w->env, seg->fd, seg->path, seg->alloc, to - seg->alloc) : REMIXDB_OK;
  }
  if (s != REMIXDB_OK) return s;
  seg->alloc = to;
  // The size is of the data's metadata. A new file needs all of its metadata.
  return seg->stale ? wal_file_sync(w, seg, seg->fd, WAL_HEAD) : env_sync_all(w->env, seg->fd, seg->path);
}

// Opens an existing file for a new segment. *serves_out: whether the log may overwrite the file. If the call returns
// REMIXDB_OK without that, the caller no longer owns seg: a file with foreign bytes has joined the foreign files, and
// otherwise seg is destroyed. If the file has a second name, the call removes the name in the log's directory, so that
// the content stays under the second name.
static enum remixdb_status wal_file_open(struct wal *w, struct wal_seg *seg, bool *serves_out) {
  struct env_stat info;
  uint8_t head[WAL_HEAD];
  size_t nr = 0;
  *serves_out = false;
  enum remixdb_status s = env_stat(w->dir, wal_seg_name(seg), &info);
  if (s == REMIXDB_OK && info.is_file) s = env_open(w->dir, wal_seg_name(seg), ENV_READ | ENV_WRITE, &seg->fd);
  if (s == REMIXDB_OK && seg->fd >= 0) s = env_read_upto(w->env, seg->fd, seg->path, head, sizeof(head), 0, &nr);
  if (s == REMIXDB_NOTFOUND) {  // another program has removed the file; no record in it was needed
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

// Makes and opens a new file. If an earlier attempt left a file under the name, the call uses that file, provided that
// the log may overwrite it.
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

// Returns an open file for a new segment that may have `expected` bytes: from the pool, or a new file whose name is
// durable. full_ok: a disk without room to reserve is no failure, because the caller writes the header at once and
// later appends ask for room again.
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
    wal_seg_close(w, seg);
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
  IGNORED(env_unlink(w->dir, wal_seg_name(seg)), "a blank file may stay and serve later; it may hold the last room");
  wal_seg_destroy(w, seg);
  return s;
}

// ---- preparing and switching

// Makes durable what must be durable before a further segment begins: the header of the active one, and all older ones
// (L4). Recovery relies on that for three facts. A generation that is missing between two others is damage, never the
// effect of a crash. So is a broken frame in a segment after which more than one other begins. No frame on disk has a
// generation that is more than one above the largest generation in a header on disk. Under admin.
static enum remixdb_status wal_settle(struct wal *w) {
  wal_lock(w);
  const enum remixdb_status s = wal_error(w);
  bool settled = w->durable_gen >= w->active->h.gen;
  for (const struct wal_seg *i = w->segs; i != w->active && settled; i = i->next) settled = i->durable == i->end;
  wal_unlock(w);
  return s != REMIXDB_OK || settled ? s : wal_sync(w);
}

// Prepares the next segment. make: if the pool is empty, the call makes a new file. Under admin.
static enum remixdb_status wal_prepare_locked(struct wal *w, uint64_t expected, bool make) {
  if (w->read_only) return err_set(REMIXDB_READONLY, "%s: the log was opened read-only", w->dir->path);
  atomic_store_explicit(&w->next_for, expected, memory_order_relaxed);
  struct wal_seg *const next = w->next;
  if (!next) return make || w->pool ? wal_file_take(w, expected, false, &w->next) : REMIXDB_OK;
  // A failure does no harm, because the segment serves without this room. The sync of the segment's first frames makes
  // the file's new size durable.
  const uint64_t to = next->alloc < expected ? next->alloc + wal_within(w, expected - next->alloc) : next->alloc;
  if (next->alloc < to && env_allocate(w->env, next->fd, next->path, next->alloc, to - next->alloc) == REMIXDB_OK)
    next->alloc = to;
  return REMIXDB_OK;
}

// Takes the prepared segment, or returns NULL. Under admin.
static struct wal_seg *wal_next_take(struct wal *w) {
  struct wal_seg *const seg = w->next;
  w->next = NULL;
  atomic_store_explicit(&w->next_for, 0, memory_order_relaxed);
  return seg;
}

static enum remixdb_status wal_prepare_as(struct wal *w, bool ahead) {
  (void)pthread_mutex_lock(&w->admin);
  wal_lock(w);
  const uint64_t expected = w->scarce ? 0 : w->active->alloc;
  const bool make = !ahead || !w->turned || w->segs == w->active;
  wal_unlock(w);
  const enum remixdb_status s = wal_prepare_locked(w, expected, make);
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}

enum remixdb_status wal_prepare(struct wal *w) { return wal_prepare_as(w, false); }

bool wal_ahead_pending(const struct wal *w) { return atomic_load_explicit(&w->behind, memory_order_relaxed); }

void wal_ahead(struct wal *w) {
  wal_lock(w);
  // The next buffer sets the flag again, so a failed step is not repeated without pause.
  atomic_store_explicit(&w->behind, false, memory_order_relaxed);
  const bool sound = w->err.status == REMIXDB_OK && !w->read_only;
  if (sound && wal_short_of_room(w, wal_low(w)) && !w->growing) wal_grow_ahead(w);
  const bool next = sound && wal_is_behind(w) && !wal_short_of_room(w, wal_low(w));
  wal_unlock(w);
  // A failure needs no report here, because the next switch meets the same failure and reports it. (IGNORED is not
  // used, because the message of a sticky error must stay.)
  const enum remixdb_status ignored = next ? wal_prepare_as(w, true) : REMIXDB_OK;
  (void)ignored;
}

// With the lock held: seg becomes the active segment.
static void wal_activate(struct wal *w, struct wal_seg *seg) {
  assert(!w->cur && (!w->active || seg->h.gen > w->active->h.gen));
  seg->next = NULL;
  if (w->active) w->active->next = seg;
  else w->segs = seg;
  w->active = seg;
  w->grow_refused = 0;
  w->st.segments++;
  atomic_store_explicit(&w->gen, seg->h.gen, memory_order_relaxed);
  atomic_store_explicit(&w->seg_bytes, seg->end, memory_order_relaxed);
  wal_pos_none(w);
  wal_bound(w);
}

// Makes the switch: the prepared segment becomes active. Under admin, with the log's lock held.
static void wal_turn(struct wal *w, void (*fn)(void *arg, uint64_t new_gen), void *arg) {
  wal_seal(w);
  const struct wal_seg *const old = w->active;
  struct wal_seg *const seg = wal_next_take(w);
  assert(seg);
  const struct wal_head h = {.store_id = w->store_id,
                             .gen = old->h.gen + 1,
                             .prev_gen = old->h.gen,
                             .prev_len = old->end,
                             .prev_durable = old->durable,
                             .last_seq = w->seq,
                             .prev_print = old->h.print};  // wal_write adds the sum of its frames
  wal_seg_begin(w, seg, &h);
  wal_activate(w, seg);
  w->turned = true;
  // The log writes the header like a frame. The header is in the queue, so a sync waits until the header is written. If
  // the disk is full, the log tries again.
  seg->head_buf = (struct wal_buf){
      .seg = seg, .mem = seg->head, .cap = WAL_HEAD, .len = WAL_HEAD, .kind = WAL_BUF_HEADER};
  wal_out_add(w, &seg->head_buf);
  if (fn) fn(arg, h.gen);
}

// Takes the lock for a switch, with room for the record `last` (NULL: none), while the segment does not grow. After a
// failure the lock is not held.
static enum remixdb_status wal_switch_lock(struct wal *w, const struct kv_rec *last) {
  const size_t nbytes = last ? kv_rec_size(last) : 0;
  for (;;) {
    enum remixdb_status s = REMIXDB_OK;
    if (last) s = wal_lock_with_room(w, nbytes);
    else wal_lock(w);
    if (s != REMIXDB_OK) return s;
    while (w->growing) wal_wait(w, &w->written);
    if (nbytes <= (size_t)(w->lim - w->pos)) return s;  // others may have used the room meanwhile
    wal_unlock(w);
  }
}

enum remixdb_status wal_switch_after(struct wal *w, const struct kv_rec *last, uint64_t *seq_out,
                                     void (*fn)(void *arg, uint64_t new_gen), void *arg) {
  (void)pthread_mutex_lock(&w->admin);
  enum remixdb_status s = wal_prepare_locked(w, 0, true);
  if (s == REMIXDB_OK) s = wal_settle(w);
  if (s == REMIXDB_OK && (s = wal_switch_lock(w, last)) == REMIXDB_OK) {
    s = wal_error(w);
    if (s == REMIXDB_OK && w->active->h.gen >= WAL_NUMBER_MAX)
      s = err_set(REMIXDB_CORRUPT, "%s: the log's generations have run out", w->dir->path);
    if (s == REMIXDB_OK) {
      if (last) *seq_out = wal_put(w, last);
      wal_turn(w, fn, arg);
      wal_push(w);
    }
    wal_unlock(w);
  }
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}

enum remixdb_status wal_switch(struct wal *w, void (*fn)(void *arg, uint64_t new_gen), void *arg) {
  return wal_switch_after(w, NULL, NULL, fn, arg);
}

enum remixdb_status wal_begin_segment(struct wal *w, const struct wal_head *h) {
  struct wal_seg *seg;
  enum remixdb_status s = wal_file_take(w, 0, true, &seg);
  if (s != REMIXDB_OK) return s;
  wal_seg_begin(w, seg, h);
  // A recycled file may be large. A store on a full disk would fill this room, and then have no room for tables with
  // the same records.
  const uint64_t first = wal_step(w, 0);
  if (seg->alloc > first && (s = env_truncate(w->env, seg->fd, seg->path, first)) == REMIXDB_OK) seg->alloc = first;
  if (s == REMIXDB_OK) s = env_write(w->env, seg->fd, seg->path, seg->head, WAL_HEAD, 0);
  if (s == REMIXDB_OK) s = env_sync_all(w->env, seg->fd, seg->path);
  if (s != REMIXDB_OK) {
    wal_seg_close(w, seg);
    wal_pool_add(w, seg);
    return s;
  }
  seg->durable = WAL_HEAD;
  w->durable_gen = h->gen;
  wal_activate(w, seg);
  return REMIXDB_OK;
}

void wal_adopt(struct wal *w, struct wal_seg *seg) {
  assert(!w->cur && !seg->next && seg->fd >= 0 && seg->durable == seg->end);
  seg->alloc = seg->size;
  w->durable_gen = seg->h.gen;
  w->active = seg;
  atomic_store_explicit(&w->gen, seg->h.gen, memory_order_relaxed);
  atomic_store_explicit(&w->seg_bytes, seg->end, memory_order_relaxed);
  wal_pos_none(w);
  wal_bound(w);
}

enum remixdb_status wal_print(struct wal *w, uint64_t gen, uint64_t *print_out) {
  wal_lock(w);
  const struct wal_seg *seg = w->segs;
  while (seg && seg->h.gen != gen) seg = seg->next;
  if (seg) *print_out = seg->h.print;
  wal_unlock(w);
  return seg ? REMIXDB_OK
             : err_set(REMIXDB_CORRUPT, "%s: the log has no generation %llu", w->dir->path, (unsigned long long)gen);
}

// ---- giving files and room back

// Tells whether the pool has a file that must go. The pool may have `keep` files. With a limit, the log keeps at most
// one file besides the segments, either the prepared file or a file of the pool. A file stays in the pool only while
// all files together are within the limit. Under admin.
static bool wal_has_too_much(struct wal *w, uint32_t keep) {
  const uint32_t nr = atomic_load_explicit(&w->nr_pooled, memory_order_relaxed);
  if (nr == 0 || nr > keep) return nr != 0;
  return w->limit != UINT64_MAX && (nr > 1 || w->next || wal_room(w) > w->limit);
}

enum remixdb_status wal_trim(struct wal *w, uint32_t keep) {
  while (wal_has_too_much(w, keep)) {
    struct wal_seg *const seg = wal_pool_take(w);
    bool serves;
    // The file may belong to another program by now, so check it as for a new segment.
    enum remixdb_status s = wal_file_open(w, seg, &serves);
    if (s == REMIXDB_OK && !serves) continue;
    if (s == REMIXDB_OK) s = env_unlink(w->dir, wal_seg_name(seg));
    if (s != REMIXDB_OK) {
      wal_seg_close(w, seg);
      wal_pool_add(w, seg);
      return s;
    }
    wal_seg_destroy(w, seg);
  }
  return REMIXDB_OK;
}

// If no older segment is left, what wal_sync_active has made durable is known to be so: later frames and a watermark
// state it.
static void wal_know_secured(struct wal *w) {
  wal_lock(w);
  struct wal_seg *const seg = w->active;
  if (w->segs == seg && w->secured_gen == seg->h.gen && seg->durable < w->secured_end) {
    seg->durable = w->secured_end;
    if (w->secured_seq > atomic_load_explicit(&w->durable_seq, memory_order_relaxed))
      atomic_store_explicit(&w->durable_seq, w->secured_seq, memory_order_relaxed);
  }
  wal_unlock(w);
}

enum remixdb_status wal_release(struct wal *w, uint64_t gen) {
  if (w->read_only) return REMIXDB_OK;
  (void)pthread_mutex_lock(&w->admin);
  wal_lock(w);
  enum remixdb_status s = wal_error(w);
  // Once a sync has made the active header durable, no write of an older segment is under way.
  const bool written = w->durable_gen >= w->active->h.gen;
  wal_unlock(w);
  if (s == REMIXDB_OK && !written) s = wal_sync_active(w);
  while (s == REMIXDB_OK) {
    wal_lock(w);
    struct wal_seg *const old = w->segs;
    const bool take = old != w->active && old->h.gen < gen;
    // A thread that leads a sync uses the segments that are not durable yet. Two syncs make this one durable.
    while (take && w->syncing && old->durable < old->end) wal_wait(w, &w->synced);
    if (take) {
      if (old->durable < old->end) old->stale = old->stale > old->end ? old->stale : old->end;
      else if (old->end >= old->stale) old->stale = 0;
      w->segs = old->next;
      w->st.segments--;
      wal_bound(w);
    }
    wal_unlock(w);
    if (!take) break;
    wal_seg_close(w, old);
    wal_pool_add(w, old);
  }
  if (s == REMIXDB_OK) wal_know_secured(w);
  if (s == REMIXDB_OK) s = wal_trim(w, WAL_POOL);
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}

enum remixdb_status wal_shed(struct wal *w) {
  if (w->read_only) return REMIXDB_OK;
  (void)pthread_mutex_lock(&w->admin);
  struct wal_seg *const next = wal_next_take(w);
  if (next) {
    wal_seg_close(w, next);
    wal_pool_add(w, next);
  }
  const enum remixdb_status s = wal_trim(w, 0);
  (void)pthread_mutex_unlock(&w->admin);
  return s;
}

// Cuts off the room that the active segment does not need soon. Returns whether there was such room.
static bool wal_cut_active(struct wal *w) {
  wal_lock(w);
  while (w->growing) wal_wait(w, &w->written);
  struct wal_seg *const seg = w->active;
  const uint64_t to = align_up(wal_at(w), WAL_REST) + WAL_FIRST;
  const bool any = w->err.status == REMIXDB_OK && w->nr_retained == 0 && seg->alloc > to;
  if (any) {
    // From here on no record is appended after `to`, and while `growing` is set no thread makes the file longer.
    seg->alloc = w->grow_refused = to;
    wal_limit(w);
    w->growing = true;
    wal_unlock(w);
    IGNORED(env_truncate(w->env, seg->fd, seg->path, to), "the file stays longer than known; later growth uses that");
    wal_lock(w);
    w->growing = false;
    w->events |= WAL_WRITTEN;
  }
  wal_unlock(w);
  return any;
}

bool wal_cut_waiting(struct wal *w) {
  if (w->read_only) return false;
  (void)pthread_mutex_lock(&w->admin);
  struct wal_seg *const next = w->next;
  const uint64_t first = wal_step(w, 0);
  bool any = w->pool && wal_trim(w, 0) == REMIXDB_OK;
  if (next && next->alloc > first && env_truncate(w->env, next->fd, next->path, first) == REMIXDB_OK) {
    next->alloc = first;
    any = true;
  }
  (void)pthread_mutex_unlock(&w->admin);
  return any;
}

bool wal_yield(struct wal *w) {
  const bool any = wal_cut_waiting(w);
  return (!w->read_only && wal_cut_active(w)) || any;
}
