// SPDX-License-Identifier: Apache-2.0
#include "table/slots.h"

#define SHARDS 16u
#define SLOTS_PER_FRAME 3u

struct slots *slots_create(uint32_t nr_frames, struct slots *before) {
  struct slots *const s = mem_calloc(1, sizeof(*s));
  if (!s) return NULL;
  s->nr_frames = nr_frames;
  s->nr_buckets = (uint32_t)(((uint64_t)nr_frames * SLOTS_PER_FRAME / SLOTS_BUCKET / SHARDS + 1) * SHARDS);
  s->before = before;
  const size_t size = (size_t)s->nr_buckets * SLOTS_BUCKET * sizeof(*s->at);
  s->at = mem_alloc_aligned(CACHE_LINE, size);
  if (!s->at) {
    mem_free(s);
    return NULL;
  }
  memset((void *)s->at, 0, size);
  return s;
}

void slots_destroy(struct slots *s) {
  for (struct slots *before; s; s = before) {
    before = s->before;
    mem_free(s->at);
    mem_free(s);
  }
}

size_t slots_memory(const struct slots *s) {
  size_t n = 0;
  for (; s; s = s->before) n += sizeof(*s) + (size_t)s->nr_buckets * SLOTS_BUCKET * sizeof(*s->at);
  return n;
}

static inline bool slot_is(const struct slot *t, struct slots_key k) {
  // acquire: the key is read before a look at the frame that comes later
  return atomic_load_explicit(&t->table, memory_order_acquire) == k.table &&
         atomic_load_explicit(&t->block, memory_order_acquire) == k.block;
}

// A slot that passes to another key is empty meanwhile. It names a frame again that this reader has seen in it only
// after the reader's epoch. So if the frame is there before and after, the key was this frame's.
uint32_t slots_frame(const struct slots *s, struct slots_key k) {
  const struct slot *const b = slots_bucket(s, k.hash);
  for (uint32_t i = 0; i < SLOTS_BUCKET; i++) {
    const uint32_t frame = atomic_load_explicit(&b[i].frame, memory_order_acquire);
    if (frame && slot_is(&b[i], k) && atomic_load_explicit(&b[i].frame, memory_order_relaxed) == frame) return frame;
  }
  return 0;
}

struct slot *slots_find(const struct slots *s, struct slots_key k) {
  struct slot *const b = slots_bucket(s, k.hash);
  for (uint32_t i = 0; i < SLOTS_BUCKET; i++)
    if (atomic_load_explicit(&b[i].frame, memory_order_relaxed) && slot_is(&b[i], k)) return &b[i];
  return NULL;
}

void slots_set(struct slot *slot, struct slots_key k, uint32_t frame) {
  atomic_store_explicit(&slot->frame, 0, memory_order_relaxed);
  // release: a reader that sees the new key, and then looks at the frame again, sees that the slot was emptied
  atomic_store_explicit(&slot->table, k.table, memory_order_release);
  atomic_store_explicit(&slot->block, k.block, memory_order_release);
  atomic_store_explicit(&slot->frame, frame, memory_order_release);
}
