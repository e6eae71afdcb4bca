// SPDX-License-Identifier: Apache-2.0
//
// What readers of the whole are tested on: two memtables, partitions of several tables, a moment, and an array that says what is there.
// Included by one file per program.
#ifndef SCENE_H
#define SCENE_H

#include "place.h"

#define VALUE 30u
#define PARTS_MAX 64u

struct scene {
  struct place p;
  struct keyset k;
  struct wh *active, *frozen;  // frozen may be NULL
  struct version *version;
  uint64_t moment;
  // the model
  uint32_t *disk, *live;       // per key; live: at the moment, never TOMB
};

struct plan {
  uint32_t keys;
  uint32_t active, frozen;     // so many writes; frozen UINT32_MAX: there is none
  uint32_t parts;
  uint32_t tables;             // at most, in a partition
  uint32_t tombs;              // one in so many
  size_t cache;
};

static inline uint32_t what_random(const struct plan *plan, uint32_t n, uint64_t *rng) {
  return rng_next(rng) % plan->tombs == 0 ? TOMB : 2 + n;
}

static inline void parts_make(struct scene *s, const struct plan *plan, uint64_t *rng) {
  struct part *parts[PARTS_MAX];
  uint32_t nr = 0, from = 0;
  s->disk = calloc(s->k.nr, sizeof(*s->disk));
  for (uint32_t i = 0; i < plan->parts; i++) {
    uint32_t to = s->k.nr;
    if (i + 1 < plan->parts) to = from + (uint32_t)(rng_next(rng) % (2 * (s->k.nr - from) / (plan->parts - i) + 1));
    if (i && (from == s->k.nr || kv_cmp(part_anchor(parts[nr - 1]), s->k.keys[from]) >= 0)) continue;
    struct remix *x = NULL;
    const uint32_t tables = (uint32_t)(rng_next(rng) % (plan->tables + 1));
    for (uint32_t t = 0; t < tables && to > from; t++) {
      uint32_t *what = calloc(s->k.nr, sizeof(*what));
      const uint32_t sparse = 1 + (uint32_t)(rng_next(rng) % 6);
      bool any = false;
      for (uint32_t a = from; a < to; a++) {
        if (rng_next(rng) % sparse) continue;
        s->disk[a] = what[a] = what_random(plan, 100 + t, rng);
        any = true;
      }
      const uint64_t dice = rng_next(rng);
      if (any) x = remix_add(&s->p, x, table_make(&s->p, &s->k, what, from, to, VALUE, dice & 1), dice & 2);
      free(what);
    }
    ok(part_create(i ? s->k.keys[from] : kref("", 0), x, NULL, &parts[nr++]));
    from = to;
  }
  ok(version_create(parts, nr, &s->version));
}

static inline void scene_init(struct scene *s, const struct plan *plan, uint64_t seed) {
  uint64_t rng = seed;
  memset(s, 0, sizeof(*s));
  place_init(&s->p, plan->cache);
  keyset_make(&s->k, plan->keys, &rng);
  parts_make(s, plan, &rng);
  uint32_t *mem[2];
  for (uint32_t i = 0; i < 2; i++) mem[i] = calloc(s->k.nr, sizeof(uint32_t));
  ok(wh_create(&s->p.epoch, 64 << 10, NULL, &s->active));
  uint64_t seq = 1000;
  if (plan->frozen != UINT32_MAX) {
    ok(wh_create(&s->p.epoch, 64 << 10, NULL, &s->frozen));
    for (uint32_t i = 0; i < plan->frozen; i++) {
      const uint32_t a = (uint32_t)(rng_next(&rng) % s->k.nr), what = what_random(plan, 10000 + i, &rng);
      mem_put(&s->p, s->frozen, s->k.keys[a], what, VALUE, ++seq);
      mem[1][a] = what;
    }
  }
  // the moment is before some of what the active one holds, so that it has versions and keys that are not to be seen
  s->moment = seq + (plan->active ? 1 + rng_next(&rng) % plan->active : 0);
  for (uint32_t i = 0; i < plan->active; i++) {
    const uint32_t a = (uint32_t)(rng_next(&rng) % s->k.nr), what = what_random(plan, 20000 + i, &rng);
    mem_put(&s->p, s->active, s->k.keys[a], what, VALUE, ++seq);
    if (seq <= s->moment) mem[0][a] = what;
  }
  s->live = calloc(s->k.nr, sizeof(*s->live));
  for (uint32_t a = 0; a < s->k.nr; a++) {
    const uint32_t what = mem[0][a] ? mem[0][a] : mem[1][a] ? mem[1][a] : s->disk[a];
    s->live[a] = what == TOMB ? NONE : what;
  }
  free(mem[0]);
  free(mem[1]);
}

static inline void scene_fini(struct scene *s) {
  version_unref(s->version);
  wh_destroy(s->active);
  if (s->frozen) wh_destroy(s->frozen);
  free(s->live);
  free(s->disk);
  keyset_free(&s->k);
  place_fini(&s->p);
}

// A key of the set, or one beside it; buf of 256 bytes. Returns its length.
static inline uint32_t key_near(const struct scene *s, uint64_t *rng, uint8_t *buf) {
  const struct kref k = s->k.keys[rng_next(rng) % s->k.nr];
  uint32_t len = k.len;
  if (len) memcpy(buf, k.ptr, len);
  switch (rng_next(rng) % 6) {
    case 0: buf[len++] = (uint8_t)rng_next(rng); break;
    case 1: if (len) len--; break;
    case 2: if (len) buf[len - 1] ^= (uint8_t)(1u << rng_next(rng) % 8); break;
    default: break;
  }
  return len;
}
#endif
