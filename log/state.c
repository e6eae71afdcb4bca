// SPDX-License-Identifier: Apache-2.0
#include "log/state.h"

#include <assert.h>

#define NR_BUFS(w) (sizeof((w)->bufs) / sizeof((w)->bufs[0]))

// ---- events

// Called without the lock.
static __attribute__((noinline)) void wal_wake(struct wal *w, unsigned events) {
  if (events & WAL_WRITTEN) eventcount_wake_all(&w->written);
  if (events & WAL_SYNCED) eventcount_wake_all(&w->synced);
  if (events & WAL_UNHELD) eventcount_wake_all(&w->unheld);
}

void wal_lock(struct wal *w) { lib_lock(&w->lock); }

void wal_unlock(struct wal *w) {
  const unsigned events = w->events;
  w->events = 0;
  lib_unlock(&w->lock);
  if (unlikely(events)) wal_wake(w, events);
}

void wal_wait(struct wal *w, struct eventcount *e) {
  const uint32_t begun = eventcount_begin(e);
  wal_unlock(w);
  (void)eventcount_sleep(e, begun, EVENTCOUNT_NEVER);
  wal_lock(w);
}

// ---- errors

void wal_fail(struct wal *w, enum remixdb_status s) {
  assert(s != REMIXDB_OK);
  if (w->err.status == REMIXDB_OK) {
    err_save(&w->err, s);
    w->err.status = REMIXDB_IO;
  }
  w->lim = w->pos;
  w->events |= WAL_WRITTEN | WAL_SYNCED;
}

enum remixdb_status wal_error(const struct wal *w) {
  return likely(w->err.status == REMIXDB_OK) ? REMIXDB_OK : err_raise(&w->err);
}

// ---- buffers

struct wal_buf *wal_buf_create(size_t size) {
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

void wal_buf_put(struct wal *w, struct wal_buf *b) {
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

bool wal_buffers_init(struct wal *w) {
  eventcount_init(&w->written);
  eventcount_init(&w->synced);
  eventcount_init(&w->unheld);
  wal_pos_none(w);
  for (size_t i = 0; i < NR_BUFS(w) && !w->read_only; i++) {
    struct wal_buf *const b = &w->bufs[i];
    b->mem = mem_alloc_aligned(4096, WAL_BUF);
    if (!b->mem) return false;
    b->cap = WAL_BUF;
    w->st.buffer_bytes += b->cap;
    wal_buf_put(w, b);
  }
  return true;
}

void wal_buffers_fini(struct wal *w) {
  struct wal_buf *b = w->out_head;
  while (b) {
    struct wal_buf *const next = b->next;
    wal_buf_put(w, b);
    b = next;
  }
  if (w->cur) wal_buf_put(w, w->cur);
  for (size_t i = 0; i < NR_BUFS(w); i++) mem_free(w->bufs[i].mem);
  eventcount_fini(&w->written);
  eventcount_fini(&w->synced);
  eventcount_fini(&w->unheld);
}

uint64_t wal_at(const struct wal *w) {
  return w->cur ? w->cur->off + (uint64_t)(w->pos - w->cur->mem) : w->active->end;
}

void wal_pos_none(struct wal *w) {
  w->pos = w->lim = w->none;
  w->base = atomic_load_explicit(&w->seg_bytes, memory_order_relaxed) - (uint64_t)(uintptr_t)w->none;
}
