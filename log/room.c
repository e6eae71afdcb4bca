// SPDX-License-Identifier: Apache-2.0
#include "log/room.h"

#include <assert.h>

// With a limit, the log prepares the next segment when the active segment has 1/WAL_NEXT_PART of the bytes that make it
// full.
#define WAL_NEXT_PART 8u

uint64_t wal_step(const struct wal *w, uint64_t alloc) {
  if (alloc >= w->step) return w->step;
  uint64_t step = w->step < WAL_FIRST ? w->step : WAL_FIRST;
  while (step < w->step && step * 2 <= alloc) step *= 2;
  return step;
}

uint64_t wal_keep(const struct wal *w, const struct wal_seg *seg) {
  const uint64_t keep = wal_step(w, seg->alloc) / WAL_KEEP_PART;
  return keep < WAL_KEEP_MAX ? keep : WAL_KEEP_MAX;
}

uint32_t wal_low(const struct wal *w) { return w->active->alloc < wal_step(w, 0) ? WAL_NEEDED : WAL_LOW; }

// Returns the offset from which on the active segment should get more room.
static uint64_t wal_watch(const struct wal *w, const struct wal_seg *seg) {
  const uint64_t part = wal_step(w, seg->alloc) / wal_low(w);
  return seg->alloc > part ? seg->alloc - part : 0;
}

// Records end where the buffer ends, or where the segment's room on disk ends. The room that only wal_begin_last may
// use does not count.
void wal_limit(struct wal *w) {
  const struct wal_buf *const b = w->cur;
  if (!b) {
    wal_pos_none(w);
    return;
  }
  const uint64_t keep = wal_keep(w, w->active),
                 room = w->active->alloc > b->off + keep ? w->active->alloc - b->off - keep : 0;
  w->lim = b->mem + (room < b->cap ? (size_t)room : b->cap);
  // The append that would pass this offset takes the slow path, and so does the append after it. That one sets
  // `behind`, so that a worker makes more room.
  const uint64_t watch = wal_watch(w, w->active);
  if (watch > wal_at(w) && watch - b->off < (uint64_t)(w->lim - b->mem)) w->lim = b->mem + (watch - b->off);
  if (w->lim < w->pos || w->err.status != REMIXDB_OK || w->nr_retained || w->held) w->lim = w->pos;
}

uint64_t wal_room(struct wal *w) {
  const uint64_t last = w->limit / WAL_FULL_PART;
  uint64_t room = w->next ? w->next->alloc : 0;
  wal_lock(w);
  const uint64_t full = w->limit == UINT64_MAX ? 0 : atomic_load_explicit(&w->full_at, memory_order_relaxed) + last;
  if (w->active && w->active->alloc < full) room += full - w->active->alloc;
  for (const struct wal_seg *seg = w->segs; seg; seg = seg->next) room += seg->alloc;
  for (const struct wal_seg *seg = w->pool; seg; seg = seg->next) room += seg->alloc;
  wal_unlock(w);
  return room;
}

uint64_t wal_room_most(struct wal *w) {
  (void)pthread_mutex_lock(&w->admin);
  const uint64_t room = wal_room(w);
  (void)pthread_mutex_unlock(&w->admin);
  return room;
}

uint64_t wal_within(struct wal *w, uint64_t more) {
  const uint64_t room = wal_room(w), left = room < w->limit ? w->limit - room : 0;
  return more < left ? more : left;
}

// Where older segments alone exceed the limit, the active one may have 1/WAL_OVER_PART of it: they are those of a batch
// that is larger than a segment, or of an opening with a larger limit. Otherwise every writer would wait until the
// round of their records ends.
#define WAL_OVER_PART 16u

void wal_bound(struct wal *w) {
  uint64_t others = 0;
  for (const struct wal_seg *seg = w->segs; seg; seg = seg->next) others += seg == w->active ? 0 : seg->alloc;
  const uint64_t last = w->limit / WAL_FULL_PART, most = w->limit / 2 - last, left = w->limit - last - wal_step(w, 0);
  const uint64_t rest = others < left ? left - others : others < w->limit ? 0 : w->limit / WAL_OVER_PART;
  const uint64_t at = rest < most ? rest : most;
  atomic_store_explicit(&w->older, w->segs != w->active, memory_order_relaxed);
  atomic_store_explicit(&w->full_at, w->limit == UINT64_MAX ? UINT64_MAX - last : at, memory_order_relaxed);
}

bool wal_segment_holds(const struct wal *w) {
  return atomic_load_explicit(&w->seg_bytes, memory_order_relaxed) > WAL_HEAD;
}

bool wal_holds_older(const struct wal *w) { return atomic_load_explicit(&w->older, memory_order_relaxed); }

bool wal_holds(const struct wal *w) { return wal_segment_holds(w) || wal_holds_older(w); }

bool wal_full(const struct wal *w, size_t more, bool last) {
  const uint64_t bytes = atomic_load_explicit(&w->seg_bytes, memory_order_relaxed),
                 at = atomic_load_explicit(&w->full_at, memory_order_relaxed);
  if (likely(!last && more == 0)) return bytes >= at;
  const uint64_t part = w->limit / WAL_FULL_PART;
  return bytes >= (last ? at + part : at) || (bytes > part && more > at - bytes);
}

bool wal_short_of_room(const struct wal *w, uint32_t part) {
  const struct wal_seg *const seg = w->active;
  return wal_at(w) + wal_step(w, seg->alloc) / part > seg->alloc && w->grow_refused != seg->alloc &&
         seg->alloc < w->limit / 2 && !w->scarce;
}

enum remixdb_status wal_grow(struct wal *w, uint64_t need) {
  if (w->growing) {
    wal_wait(w, &w->written);
    return REMIXDB_OK;
  }
  struct wal_seg *const seg = w->active;
  const uint64_t from = seg->alloc, all = align_up(need, wal_step(w, from)), most = w->limit / 2;
  const uint64_t to = all <= most ? all : need < most ? most : need;
  assert(need > from && to >= need);
  w->growing = true;  // keeps the segment active
  wal_unlock(w);
  const enum remixdb_status s = env_allocate(w->env, seg->fd, seg->path, from, to - from);
  wal_lock(w);
  w->growing = false;
  if (s == REMIXDB_OK) {
    seg->alloc = to;
    wal_limit(w);
  }
  w->events |= WAL_WRITTEN;
  return s;
}

void wal_grow_ahead(struct wal *w) {
  const uint64_t alloc = w->active->alloc;
  if (wal_grow(w, alloc + 1) != REMIXDB_OK) w->grow_refused = alloc;
}

bool wal_is_behind(const struct wal *w) {
  const struct wal_seg *const seg = w->active;
  const bool next = atomic_load_explicit(&w->next_for, memory_order_relaxed) >= seg->alloc;
  // Until the active segment has this many bytes, the log prepares no next segment: a small store may never use its
  // room. An earlier switch prepares the next segment itself.
  const uint64_t early = w->limit == UINT64_MAX
                             ? wal_step(w, seg->alloc) / 2
                             : atomic_load_explicit(&w->full_at, memory_order_relaxed) / WAL_NEXT_PART;
  return wal_short_of_room(w, wal_low(w)) || (!next && wal_at(w) > early && w->durable_gen >= seg->h.gen);
}

void wal_scarce(struct wal *w, bool on) {
  wal_lock(w);
  w->scarce = on;
  wal_unlock(w);
}
