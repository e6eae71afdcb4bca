// SPDX-License-Identifier: Apache-2.0
//
// Common slots: a hash table that tells which frame of the cache has a block, for the tables that have no array of
// slots. Its size follows from the cache and not from the tables, so large stores with small caches need few of them.
// A bucket is one cache line. A block has its slot in one bucket only. If that bucket is full, another slot of it is
// given up (cache.h, C9).
//
// Threads: slots_frame may be called by any thread. A slot changes only under the lock of the shard to which its bucket
// belongs; the upper 4 bits of the hash, which choose the bucket, choose that shard, too.
#ifndef SLOTS_H
#define SLOTS_H

#include <stdatomic.h>

#include "lib.h"

#define SLOTS_BUCKET 4u

struct slot {
  _Atomic(const void *) table;
  _Atomic uint32_t block;
  _Atomic uint32_t frame;  // as in an array of slots (cache.h); 0: the slot is empty
};

struct slots {
  struct slot *at;
  uint32_t nr_frames;   // frames that there are slots for
  uint32_t nr_buckets;  // a multiple of 16: then a bucket belongs to one shard
  struct slots *before;
};

// A key: a block of a table. Its hash has well mixed upper bits.
struct slots_key {
  const void *table;
  uint32_t block;
  uint64_t hash;
};

// nr_frames: how many frames there may be; there are three times as many slots. When the cache is full of blocks of one
// page, one bucket in 20 then has as many blocks as slots, or more. before: the slots that these replace. Readers may
// still look at them, so they go with the new ones. NULL: REMIXDB_NOMEM.
struct slots *slots_create(uint32_t nr_frames, struct slots *before);
void slots_destroy(struct slots *s);  // NULL is allowed
size_t slots_memory(const struct slots *s);

static inline struct slot *slots_bucket(const struct slots *s, uint64_t hash) {
  return s->at + (hash >> 32) * s->nr_buckets / ((uint64_t)1 << 32) * SLOTS_BUCKET;
}
// Returns what the key's slot has; 0: there is none. Acquire. A reader inside an epoch in which frames stay (cache.h,
// C2) gets a frame only if it has the block; another reader gets a guess.
uint32_t slots_frame(const struct slots *s, struct slots_key k);

// ---- under the shard's lock
// The key's slot, or NULL.
struct slot *slots_find(const struct slots *s, struct slots_key k);
// Whether the slot is one of these.
static inline bool slots_have(const struct slots *s, const void *slot) {
  return (uintptr_t)slot - (uintptr_t)s->at < (size_t)s->nr_buckets * SLOTS_BUCKET * sizeof(*s->at);
}
// Gives the slot, which names no frame, to a key. Release: readers see what the caller has written before.
void slots_set(struct slot *slot, struct slots_key k, uint32_t frame);
#endif
