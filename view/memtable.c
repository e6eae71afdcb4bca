// SPDX-License-Identifier: Apache-2.0
#include "view/memtable.h"

// A sanitizer notices the use of a dropped memtable only if its memory is given back to the system.
#define KEEP_CHUNKS (!LIB_SANITIZED)

#define MAPPED_CHUNK ((size_t)1 << 20)  // smaller ones are not worth preparing

void memtables_init(struct memtables *all, struct epoch *epoch, struct epoch *cursors, size_t limit) {
  size_t chunk = 64u << 10;
  while (chunk < 2u << 20 && chunk * 32 < limit) chunk *= 2;
  all->epoch = epoch;
  all->cursors = cursors;
  all->first = NULL;
  pthread_mutex_init(&all->lock, NULL);
  arena_pool_init(&all->chunks, chunk, KEEP_CHUNKS ? limit : 0);
}

void memtables_fini(struct memtables *all) {
  if (!all->epoch) return;
  arena_pool_fini(&all->chunks);
  pthread_mutex_destroy(&all->lock);
}

static uint64_t held(const struct memtable *m) {
  const struct wh *const spaces = memtable_tree(m, TREE_SPACES);
  return wh_held(m->wh) + (spaces ? wh_held(spaces) : 0);
}

uint64_t memtables_kept(struct memtables *all, const struct memtable *active, const struct memtable *frozen) {
  uint64_t bytes = 0;
  pthread_mutex_lock(&all->lock);
  for (const struct memtable *m = all->first; m; m = m->next)
    if (m != active && m != frozen) bytes += held(m);
  pthread_mutex_unlock(&all->lock);
  return bytes;
}

void memtable_leave(struct memtable *m) {
  pthread_mutex_lock(&m->all->lock);
  m->left = true;
  pthread_mutex_unlock(&m->all->lock);
}

void memtables_give_back(struct memtables *all) {
  pthread_mutex_lock(&all->lock);
  for (struct memtable *m = all->first; m; m = m->next) {
    if (!m->left) continue;
    struct wh *const spaces = memtable_tree(m, TREE_SPACES);
    wh_give_back(m->wh);
    if (spaces) wh_give_back(spaces);
  }
  pthread_mutex_unlock(&all->lock);
}

// Bytes of its chunks.
static size_t used_small(const struct memtable *m) {
  const struct wh *const spaces = memtable_tree(m, TREE_SPACES);
  return wh_memory_small(m->wh) + (spaces ? wh_memory_small(spaces) : 0);
}

size_t memtables_growth(const struct memtables *all, const struct memtable *active, const struct memtable *frozen) {
  const struct arena_pool *const p = &all->chunks;
  if (!frozen || p->chunk_size < MAPPED_CHUNK) return 0;
  const size_t full = used_small(frozen), more = full + full / MEMTABLE_LATE, used = used_small(active);
  const size_t most = more < p->limit ? more : p->limit;
  return used < most ? most - used : 0;
}

size_t memtables_target(const struct memtables *all, const struct memtable *active, bool frozen) {
  const struct arena_pool *const p = &all->chunks;
  if (p->chunk_size < MAPPED_CHUNK) return 0;
  const size_t half = p->limit / 2, used = used_small(active);
  if (used < p->chunk_size / 2 && !frozen) return 0;
  return p->chunk_size + (used > half && !frozen ? 2 * (used - half) : 0);
}

static enum remixdb_status make_index(struct memtables *all, struct wh **out) {
  const enum remixdb_status s = wh_create(all->epoch, all->chunks.chunk_size, &all->chunks, out);
  if (s == REMIXDB_OK) wh_recycle(*out, all->cursors);
  return s;
}

enum remixdb_status memtable_spaces(struct memtable *m) {
  struct wh *made, *there = NULL;
  if (memtable_tree(m, TREE_SPACES)) return REMIXDB_OK;
  const enum remixdb_status s = make_index(m->all, &made);
  if (s != REMIXDB_OK) return s;
  // release: a reader that finds the index finds it initialized. Another thread may have been earlier.
  if (!atomic_compare_exchange_strong_explicit(&m->spaces, &there, made, memory_order_release, memory_order_relaxed))
    wh_destroy(made);
  return REMIXDB_OK;
}

enum remixdb_status memtable_create(struct memtables *all, struct memtable **out) {
  struct memtable *m = mem_calloc(1, sizeof(*m));
  if (!m) return REMIXDB_NOMEM;
  const enum remixdb_status s = make_index(all, &m->wh);
  if (s != REMIXDB_OK) {
    mem_free(m);
    return s;
  }
  atomic_init(&m->refs, 1);
  m->all = all;
  pthread_mutex_lock(&all->lock);
  m->next = all->first;
  if (m->next) m->next->prev = m;
  all->first = m;
  pthread_mutex_unlock(&all->lock);
  *out = m;
  return REMIXDB_OK;
}

void memtable_unref(struct memtable *m) {
  if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1) return;
  struct memtables *all = m->all;
  pthread_mutex_lock(&all->lock);
  if (m->next) m->next->prev = m->prev;
  if (m->prev) m->prev->next = m->next;
  else all->first = m->next;
  pthread_mutex_unlock(&all->lock);
  struct wh *const spaces = memtable_tree(m, TREE_SPACES);
  if (spaces) wh_destroy(spaces);
  value_list_fini(&m->values);
  wh_destroy(m->wh);
  mem_free(m);
}
