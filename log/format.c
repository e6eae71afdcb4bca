// SPDX-License-Identifier: Apache-2.0
#include "log/format.h"

void wal_head_put(uint8_t *p, const struct wal_head *h) {
  memset(p, 0, WAL_HEAD);
  store64le(p, WAL_MAGIC);
  store32le(p + 8, WAL_VERSION);
  store64le(p + 16, h->store_id);
  store64le(p + 24, h->gen);
  store64le(p + 32, h->prev_gen);
  store64le(p + 40, h->prev_len);
  store64le(p + 48, h->prev_durable);
  store64le(p + 56, h->last_seq);
  store64le(p + WAL_HEAD_SUM, hash64(p, WAL_LEVEL));
}

enum remixdb_status wal_head_get(const uint8_t *p, const char *path, uint64_t store_id, struct wal_head *out) {
  if (load64le(p) != WAL_MAGIC) return REMIXDB_NOTFOUND;
  const uint32_t version = load32le(p + 8);
  const uint64_t sum = load64le(p + WAL_HEAD_SUM);
  if (sum != hash64(p, WAL_LEVEL)) {
    // Two layouts go by the number 1. One is today's; that of the other has no watermark, and its checksum goes up to
    // itself.
    if (version != 1 || sum != hash64(p, WAL_HEAD_SUM)) return REMIXDB_NOTFOUND;
    return err_set(REMIXDB_VERSION, "%s: log format 1 without a watermark is older than what this library reads", path);
  }
  if (version == 0 || version > WAL_VERSION)
    return err_set(REMIXDB_VERSION, "%s: log format %u; this library knows 1 to %u", path, version, WAL_VERSION);
  *out = (struct wal_head){.store_id = load64le(p + 16),
                           .gen = load64le(p + 24),
                           .prev_gen = load64le(p + 32),
                           .prev_len = load64le(p + 40),
                           .prev_durable = load64le(p + 48),
                           .last_seq = load64le(p + 56)};
  const bool sane = out->store_id == store_id && out->gen > 0 && out->gen <= WAL_NUMBER_MAX &&
                    out->last_seq <= WAL_NUMBER_MAX && out->prev_durable <= out->prev_len &&
                    (out->prev_len == 0 || (out->prev_len >= WAL_HEAD && out->prev_gen < out->gen));
  return sane ? REMIXDB_OK : REMIXDB_NOTFOUND;
}

struct wal_key wal_key(uint64_t store_id, uint64_t gen) {
  uint8_t id[16];
  store64le(id, store_id);
  store64le(id + 8, gen);
  const uint64_t seed = hash64(id, sizeof(id));
  return (struct wal_key){.seed = seed,
                          .magic = (uint32_t)(seed >> 32) | 1};  // its first byte is never the 0 of empty space
}

void wal_level_put(uint8_t *p, const struct wal_key *k, const struct wal_level *l) {
  store64le(p + 8, l->gen);
  store64le(p + 16, l->end);
  store64le(p, hash64_seed(p + 8, WAL_LEVEL_LEN - 8, k->seed + WAL_LEVEL));
}

struct wal_level wal_level_get(const uint8_t *p, const struct wal_key *k, uint64_t gen) {
  const struct wal_level l = {.gen = load64le(p + 8), .end = load64le(p + 16)};
  const bool sound = load64le(p) == hash64_seed(p + 8, WAL_LEVEL_LEN - 8, k->seed + WAL_LEVEL) && l.gen >= gen &&
                     l.gen <= WAL_NUMBER_MAX && l.end >= WAL_HEAD;
  return sound ? l : (struct wal_level){0};
}

// The offset in the seed ties a frame to its place: a copy of it elsewhere, in a value for example, is no frame.
static uint32_t wal_frame_check(const struct wal_key *k, uint64_t off, const uint8_t *p) {
  return (uint32_t)hash64_seed(p + 8, 28, ~(k->seed + off));
}

uint64_t wal_frame_sum(const struct wal_key *k, uint64_t off, const uint8_t *p, size_t len) {
  return hash64_seed(p + 8, WAL_FRAME_HEAD - 8 + len, k->seed + off);
}

void wal_frame_put(uint8_t *p, const struct wal_key *k, uint64_t off, const struct wal_frame *f) {
  store32le(p + 8, k->magic);
  store32le(p + 12, f->len);
  store64le(p + 16, f->first_seq);
  store64le(p + 24, f->durable);
  store32le(p + 32, f->count);
  store32le(p + 36, wal_frame_check(k, off, p));
  store64le(p, wal_frame_sum(k, off, p, f->len));
}

bool wal_frame_get(const uint8_t *p, const struct wal_key *k, uint64_t off, struct wal_frame *out) {
  if (load32le(p + 8) != k->magic || load32le(p + 36) != wal_frame_check(k, off, p)) return false;
  *out = (struct wal_frame){.sum = load64le(p),
                            .len = load32le(p + 12),
                            .first_seq = load64le(p + 16),
                            .durable = load64le(p + 24),
                            .count = load32le(p + 32)};
  return out->count > 0 && out->count <= out->len && out->len <= WAL_FRAME_MAX && out->first_seq > 0 &&
         out->first_seq <= WAL_NUMBER_MAX - out->count + 1 && out->durable <= off &&
         (out->durable == 0 || out->durable >= WAL_HEAD);
}
