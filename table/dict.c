// SPDX-License-Identifier: Apache-2.0
#include "table/dict.h"

#include <assert.h>

#include "base/zmem.h"

void sst_dicts_init(struct sst_dicts *p) {
  (void)pthread_mutex_init(&p->lock, NULL);
  p->hand = NULL;
  p->bytes = 0;
  p->nr = 0;
}

void sst_dicts_fini(struct sst_dicts *p) {
  assert(p->nr == 0 && p->bytes == 0);
  (void)pthread_mutex_destroy(&p->lock);
}

void sst_dict_free(void *own) { (void)ZSTD_freeDDict(own); }

// ---- the ring; under the pool's lock

static void ring_add(struct sst_dicts *p, struct sst_dict *d) {
  if (p->hand) {
    d->next = p->hand;
    d->prev = p->hand->prev;
    d->prev->next = d->next->prev = d;
  } else {
    p->hand = d->next = d->prev = d;
  }
  p->nr++;
  p->bytes += atomic_load_explicit(&d->bytes, memory_order_relaxed);
}

static void ring_remove(struct sst_dicts *p, struct sst_dict *d) {
  if (p->hand == d) p->hand = d->next == d ? NULL : d->next;
  d->prev->next = d->next;
  d->next->prev = d->prev;
  d->next = d->prev = NULL;
  p->nr--;
  p->bytes -= atomic_load_explicit(&d->bytes, memory_order_relaxed);
}

static void made_set(struct sst_dict *d, void *made) {
  const size_t bytes = ZSTD_sizeof_DDict(made);
  atomic_store_explicit(&d->bytes, bytes, memory_order_relaxed);
  budget_take(d->budget, BUDGET_TABLES, bytes);
  atomic_store_explicit(&d->made, made, memory_order_seq_cst);
}

// `made` was taken out, and nobody uses it.
static void made_drop(struct sst_dict *d, void *made) {
  budget_give(d->budget, BUDGET_TABLES, atomic_load_explicit(&d->bytes, memory_order_relaxed));
  atomic_store_explicit(&d->bytes, 0, memory_order_relaxed);
  sst_dict_free(made);
}

// Drops one that is not used. Returns false if all are in use.
static bool ring_drop(struct sst_dicts *p) {
  for (uint64_t steps = 2 * (uint64_t)p->nr; steps > 0; steps--) {
    struct sst_dict *const d = p->hand;
    p->hand = d->next;
    if (atomic_exchange_explicit(&d->used, false, memory_order_relaxed)) continue;
    void *const made = atomic_exchange_explicit(&d->made, NULL, memory_order_seq_cst);
    if (atomic_load_explicit(&d->users, memory_order_seq_cst)) {  // Z1
      atomic_store_explicit(&d->made, made, memory_order_seq_cst);
      continue;
    }
    ring_remove(p, d);
    made_drop(d, made);
    return true;
  }
  return false;
}

// Makes room for so many bytes more. Returns false if there is none.
static bool ring_room(struct sst_dicts *p, const struct budget *b, size_t bytes) {
  const uint64_t most = b ? atomic_load_explicit(&b->dicts_most, memory_order_relaxed) : UINT64_MAX;
  while (p->bytes + bytes > most)
    if (bytes > most || !ring_drop(p)) return false;
  return true;
}

void sst_dicts_trim(struct sst_dicts *p, struct budget *b) {
  (void)pthread_mutex_lock(&p->lock);
  (void)ring_room(p, b, 0);
  (void)pthread_mutex_unlock(&p->lock);
}

// ---- the dictionary of a table

// Makes a dictionary of these bytes. Fails with REMIXDB_NOMEM or REMIXDB_CORRUPT.
static enum remixdb_status make(const struct sst *t, const uint8_t *bytes, uint32_t len, uint64_t off, void **out) {
  bool lacking = false;
  *out = ZSTD_createDDict_advanced(bytes, len, ZSTD_dlm_byCopy, ZSTD_dct_auto, zmem_telling(&lacking));
  if (*out) return REMIXDB_OK;
  return lacking ? REMIXDB_NOMEM : err_corrupt(t->path, off, "malformed dictionary");
}

// Keeps the new dictionary if there is room and the table has none. Returns whether it has kept it.
static bool keep(const struct sst *t, void *made) {
  struct sst_dict *const d = t->dict;
  struct sst_dicts *const p = t->ctx->dicts;
  if (!p) {  // there is no bound, and only the opening comes here
    made_set(d, made);
    return true;
  }
  (void)pthread_mutex_lock(&p->lock);
  const bool kept = !atomic_load_explicit(&d->made, memory_order_relaxed) &&
                    ring_room(p, d->budget, ZSTD_sizeof_DDict(made));
  if (kept) {
    made_set(d, made);
    ring_add(p, d);
  }
  (void)pthread_mutex_unlock(&p->lock);
  return kept;
}

enum remixdb_status sst_dict_open(struct sst *t, const uint8_t *bytes, uint32_t len, uint64_t off) {
  void *made;
  struct sst_dict *const d = mem_calloc(1, sizeof(*d));
  if (!d) return REMIXDB_NOMEM;
  t->dict = d;
  atomic_init(&d->made, NULL);
  atomic_init(&d->users, 0);
  atomic_init(&d->used, false);
  atomic_init(&d->bytes, 0);
  d->off = off;
  d->len = len;
  d->hash = hash64(bytes, len);
  d->budget = t->ctx->budget;
  const enum remixdb_status s = make(t, bytes, len, off, &made);
  if (s == REMIXDB_OK && !keep(t, made)) sst_dict_free(made);
  return s;
}

void sst_dict_close(struct sst *t) {
  struct sst_dict *const d = t->dict;
  struct sst_dicts *const p = t->ctx->dicts;
  if (!d) return;
  assert(atomic_load_explicit(&d->users, memory_order_relaxed) == 0);
  if (p) (void)pthread_mutex_lock(&p->lock);
  void *const made = atomic_exchange_explicit(&d->made, NULL, memory_order_relaxed);
  if (d->next) ring_remove(p, d);
  if (p) (void)pthread_mutex_unlock(&p->lock);
  if (made) made_drop(d, made);
  mem_free(d);
  t->dict = NULL;
}

// Reads the bytes of the dictionary. They are at *at_out in the memory *mem_out, which the caller frees.
static enum remixdb_status read_bytes(const struct sst *t, uint8_t **mem_out, const uint8_t **at_out) {
  const struct sst_dict *const d = t->dict;
  const uint64_t from = d->off & ~(uint64_t)(BLKIO_ALIGN - 1), to = align_up(d->off + d->len, BLKIO_ALIGN);
  int fd;
  uint8_t *const mem = *mem_out = mem_alloc_aligned(BLKIO_ALIGN, (size_t)(to - from));
  if (!mem) return REMIXDB_NOMEM;
  // The thread may hold other descriptors, so it does not wait for one.
  enum remixdb_status s = fdpool_acquire_beyond(t->file, &fd);
  if (s != REMIXDB_OK) return s;
  s = blkio_read_aside(t->ctx->io, fd, t->path, mem, (uint32_t)(to - from), from);
  fdpool_release(t->file);
  *at_out = mem + (d->off - from);
  if (s == REMIXDB_OK && hash64(*at_out, d->len) != d->hash) s = err_corrupt(t->path, d->off, "dictionary has changed");
  return s;
}

enum remixdb_status sst_dict_again(const struct sst *t, const void **dict_out, void **own_out) {
  uint8_t *mem = NULL;
  const uint8_t *at = NULL;
  void *made = NULL;
  enum remixdb_status s = read_bytes(t, &mem, &at);
  if (s == REMIXDB_OK) s = make(t, at, t->dict->len, t->dict->off, &made);
  mem_free(mem);
  if (s != REMIXDB_OK) return s;
  *dict_out = made;
  if (!keep(t, made)) *own_out = made;
  return s;
}
