// SPDX-License-Identifier: Apache-2.0
#include "log/format.h"

// Offsets of fields, all little-endian. docs/FORMAT.md describes the whole structures. In a segment's header:
enum {
  HEAD_MAGIC = 0,          // u64
  HEAD_VERSION = 8,        // u32
  HEAD_STORE_ID = 16,      // u64
                           // WAL_HEAD_GEN, u64
  HEAD_PREV_GEN = 32,      // u64
  HEAD_PREV_LEN = 40,      // u64
  HEAD_PREV_DURABLE = 48,  // u64
                           // WAL_HEAD_LAST_SEQ, u64
  HEAD_NONCE = 64,         // u64
                           // WAL_HEAD_PREV_PRINT, u64
                           // WAL_HEAD_PREV_FRAMES, u64
  HEAD_NR_ORIGINS = 88,    // u32, how many the store has
  HEAD_ORIGINS = 96,       // u64 each
                           // WAL_LEVEL: the watermark
                           // WAL_HEAD_SUM, u64: checks the bytes before the watermark
};
// In a watermark:
enum {
  LEVEL_SUM = 0,  // u64, of the rest
  LEVEL_GEN = 8,  // u64
  LEVEL_END = 16  // u64
};
// In a frame's head:
enum {
  FRAME_SUM = 0,       // u64, of all that follows, the records included
                       // WAL_FRAME_MAGIC, u32
  FRAME_LEN = 12,      // u32, of the records, and FRAME_KINDS
  FRAME_SEQ = 16,      // u64, of the first record
  FRAME_DURABLE = 24,  // u64
  FRAME_COUNT = 32,    // u32, of records
  FRAME_CHECK = 36,    // u32, of the head from the magic on
};

_Static_assert(HEAD_ORIGINS + 8 * WAL_ORIGINS == WAL_LEVEL, "origins fill the header up to the watermark");

uint64_t wal_head_put(uint8_t *p, const struct wal_head *h) {
  memset(p, 0, WAL_HEAD);
  store64le(p + HEAD_MAGIC, WAL_MAGIC);
  store32le(p + HEAD_VERSION, WAL_VERSION);
  store64le(p + HEAD_STORE_ID, h->store_id);
  store64le(p + WAL_HEAD_GEN, h->gen);
  store64le(p + HEAD_PREV_GEN, h->prev_gen);
  store64le(p + HEAD_PREV_LEN, h->prev_len);
  store64le(p + HEAD_PREV_DURABLE, h->prev_durable);
  store64le(p + WAL_HEAD_LAST_SEQ, h->last_seq);
  store64le(p + HEAD_NONCE, h->nonce);
  store64le(p + WAL_HEAD_PREV_PRINT, h->prev_print);
  store64le(p + WAL_HEAD_PREV_FRAMES, h->prev_frames);
  store32le(p + HEAD_NR_ORIGINS, h->nr_origins);
  for (uint32_t i = 0; i < h->nr_origins && i < WAL_ORIGINS; i++) store64le(p + HEAD_ORIGINS + 8 * i, h->origins[i]);
  const uint64_t print = hash64(p, WAL_LEVEL);
  store64le(p + WAL_HEAD_SUM, print);
  return print;
}

uint64_t wal_head_origin(const uint8_t *p, uint32_t i) { return load64le(p + HEAD_ORIGINS + 8 * i); }

enum remixdb_status wal_head_get(const uint8_t *p, const char *path, uint64_t store_id, struct wal_head *out) {
  if (load64le(p + HEAD_MAGIC) != WAL_MAGIC) return REMIXDB_NOTFOUND;
  const uint32_t version = load32le(p + HEAD_VERSION);
  const uint64_t sum = load64le(p + WAL_HEAD_SUM);
  if (sum != hash64(p, WAL_LEVEL)) {
    // Version 1 stands for two layouts. One is the layout of version 2. The other has no watermark, and its checksum
    // covers all bytes before the checksum.
    if (version != 1 || sum != hash64(p, WAL_HEAD_SUM)) return REMIXDB_NOTFOUND;
    return err_set(REMIXDB_VERSION, "%s: log format 1 without a watermark is older than what this library reads", path);
  }
  if (version == 0 || version > WAL_VERSION)
    return err_set(REMIXDB_VERSION, "%s: log format %u; this library knows 1 to %u", path, version, WAL_VERSION);
  *out = (struct wal_head){.store_id = load64le(p + HEAD_STORE_ID),
                           .gen = load64le(p + WAL_HEAD_GEN),
                           .prev_gen = load64le(p + HEAD_PREV_GEN),
                           .prev_len = load64le(p + HEAD_PREV_LEN),
                           .prev_durable = load64le(p + HEAD_PREV_DURABLE),
                           .last_seq = load64le(p + WAL_HEAD_LAST_SEQ),
                           .version = version,
                           .print = sum};
  if (version >= WAL_VERSION_CHAIN) {
    out->nonce = load64le(p + HEAD_NONCE);
    out->prev_print = load64le(p + WAL_HEAD_PREV_PRINT);
    out->prev_frames = load64le(p + WAL_HEAD_PREV_FRAMES);
    out->nr_origins = load32le(p + HEAD_NR_ORIGINS);
  }
  const bool sane = out->store_id == store_id && out->gen > 0 && out->gen <= WAL_NUMBER_MAX &&
                    out->last_seq <= WAL_NUMBER_MAX && out->prev_durable <= out->prev_len &&
                    (out->prev_len == 0 || (out->prev_len >= WAL_HEAD && out->prev_gen < out->gen));
  return sane ? REMIXDB_OK : REMIXDB_NOTFOUND;
}

uint64_t wal_head_store_id(const uint8_t *p) { return load64le(p + HEAD_STORE_ID); }

struct wal_key wal_key(uint64_t store_id, uint64_t gen) {
  uint8_t id[16];
  store64le(id, store_id);
  store64le(id + 8, gen);
  const uint64_t seed = hash64(id, sizeof(id));
  // Bit 0 is set, so the magic's first byte in the file is never the 0 of empty space.
  return (struct wal_key){.seed = seed, .magic = (uint32_t)(seed >> 32) | 1};
}

void wal_level_put(uint8_t *p, const struct wal_key *k, const struct wal_level *l) {
  store64le(p + LEVEL_GEN, l->gen);
  store64le(p + LEVEL_END, l->end);
  store64le(p + LEVEL_SUM, hash64_seed(p + LEVEL_GEN, WAL_LEVEL_LEN - LEVEL_GEN, k->seed + WAL_LEVEL));
}

struct wal_level wal_level_get(const uint8_t *p, const struct wal_key *k, uint64_t gen) {
  const struct wal_level l = {.gen = load64le(p + LEVEL_GEN), .end = load64le(p + LEVEL_END)};
  const bool sound = load64le(p + LEVEL_SUM) ==
                         hash64_seed(p + LEVEL_GEN, WAL_LEVEL_LEN - LEVEL_GEN, k->seed + WAL_LEVEL) &&
                     l.gen >= gen && l.gen <= WAL_NUMBER_MAX && l.end >= WAL_HEAD;
  return sound ? l : (struct wal_level){0};
}

// The seed depends on the offset. So a copy of a frame at another place, for example in a value, does not count as a
// frame.
static uint32_t wal_frame_check(const struct wal_key *k, uint64_t off, const uint8_t *p) {
  return (uint32_t)hash64_seed(p + WAL_FRAME_MAGIC, FRAME_CHECK - WAL_FRAME_MAGIC, ~(k->seed + off));
}

uint64_t wal_frame_sum(const struct wal_key *k, uint64_t off, const uint8_t *p, size_t len) {
  return hash64_seed(p + WAL_FRAME_MAGIC, WAL_FRAME_HEAD - WAL_FRAME_MAGIC + len, k->seed + off);
}

#define FRAME_KINDS 0x80000000u  // in the length: the records may be of every kind (KV_IN_LOG)

uint64_t wal_frame_put(uint8_t *p, const struct wal_key *k, uint64_t off, const struct wal_frame *f) {
  store32le(p + WAL_FRAME_MAGIC, k->magic);
  store32le(p + FRAME_LEN, f->len | (f->kinds ? FRAME_KINDS : 0));
  store64le(p + FRAME_SEQ, f->first_seq);
  store64le(p + FRAME_DURABLE, f->durable);
  store32le(p + FRAME_COUNT, f->count);
  store32le(p + FRAME_CHECK, wal_frame_check(k, off, p));
  const uint64_t sum = wal_frame_sum(k, off, p, f->len);
  store64le(p + FRAME_SUM, sum);
  return sum;
}

bool wal_frame_get(const uint8_t *p, const struct wal_key *k, uint64_t off, struct wal_frame *out) {
  if (load32le(p + WAL_FRAME_MAGIC) != k->magic || load32le(p + FRAME_CHECK) != wal_frame_check(k, off, p))
    return false;
  const uint32_t len = load32le(p + FRAME_LEN);
  *out = (struct wal_frame){.sum = load64le(p + FRAME_SUM),
                            .len = len & ~FRAME_KINDS,
                            .kinds = len & FRAME_KINDS ? KV_IN_LOG : KV_BARE,
                            .first_seq = load64le(p + FRAME_SEQ),
                            .durable = load64le(p + FRAME_DURABLE),
                            .count = load32le(p + FRAME_COUNT)};
  return out->count > 0 && out->count <= out->len && out->len <= WAL_FRAME_MAX && out->first_seq > 0 &&
         out->first_seq <= WAL_NUMBER_MAX - out->count + 1 && out->durable <= off &&
         (out->durable == 0 || out->durable >= WAL_HEAD);
}
