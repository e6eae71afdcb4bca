// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/scene.h"

enum young_plan scene_young;

bool scene_long_keys;

static uint32_t what_random(const struct plan *plan, uint32_t n, uint64_t *rng) {
  return rng_next(rng) % plan->tombs == 0 ? TOMB : 2 + n;
}

// Keys with up to 8,400 bytes in common.
static void keyset_lengthen(struct keyset *k, uint64_t *rng) {
  const uint32_t nr = k->nr;
  for (uint32_t i = 1; i < nr; i += 2) {
    const uint32_t same = (uint32_t)(rng_next(rng) % 3) * 4200;
    uint8_t *const key = malloc(same + 5);
    memset(key, 'x', same + 2);
    key[0] = (uint8_t)('a' + rng_next(rng) % 4);
    for (uint32_t b = same + 2; b < same + 5; b++)
      key[b] = (uint8_t) "\0\xff"
                         "ab\x80"[rng_next(rng) % 5];
    free((void *)(uintptr_t)k->keys[i].ptr);
    k->keys[i] = kref(key, same + 5);
  }
  keyset_sort(k, nr);
}

// Adds a table to a view; takes over x. what: the states of all keys.
static struct remix *scene_table(struct scene *s, struct remix *x, const uint32_t *what, uint32_t from, uint32_t to,
                                 uint64_t *rng) {
  const uint64_t dice = rng_next(rng);
  for (uint32_t a = from; a < to; a++)
    if (what[a] != NONE)
      return remix_add(&s->p, x, table_make(&s->p, &s->k, what, from, to, VALUE, dice & 1), dice & 2);
  return x;
}

// Fills in the keys that a table of a young view has, in one of several manners.
static void young_what(const struct scene *s, const struct plan *plan, uint32_t manner, uint32_t from, uint32_t to,
                       uint32_t *what, uint64_t *rng) {
  const uint32_t sparse = 1 + (uint32_t)(rng_next(rng) % 6), value = 500 + (uint32_t)(rng_next(rng) % 100);
  bool stretch = false;
  for (uint32_t a = from; a < to; a++) {
    const bool there = s->old[a] != NONE, chosen = rng_next(rng) % sparse == 0;
    if (rng_next(rng) % 16 == 0) stretch = !stretch;
    switch (manner) {
      case 0: what[a] = chosen ? what_random(plan, value, rng) : NONE; break;
      case 1: what[a] = chosen ? TOMB : NONE; break;  // tombstones alone
      case 2:
        what[a] = stretch ? TOMB : chosen && !there ? what_random(plan, value, rng) : NONE;
        break;  // deleted stretches
      case 3:
        what[a] = chosen && !there ? what_random(plan, value, rng) : NONE;
        break;  // nothing that the older view has
      case 4: what[a] = chosen && there ? what_random(plan, value, rng) : NONE; break;  // nothing else
      case 5: what[a] = a + 1 == to ? TOMB : NONE; break;                               // one at the end
      case 6:
        what[a] = a == from ? TOMB : a + 1 == to ? what_random(plan, value, rng) : NONE;
        break;                         // and one at the beginning
      default: what[a] = TOMB; break;  // all of it is deleted
    }
  }
}

#define YOUNG_MANNERS 8u

static struct remix *young_make(struct scene *s, const struct plan *plan, uint32_t from, uint32_t to, uint64_t *rng) {
  const uint32_t tables = 1 + (uint32_t)(rng_next(rng) % 3);
  struct remix *x = NULL;
  for (uint32_t t = 0; t < tables && to > from; t++) {
    uint32_t *const what = calloc(s->k.nr, sizeof(*what));
    young_what(s, plan, (uint32_t)(rng_next(rng) % YOUNG_MANNERS), from, to, what, rng);
    x = scene_table(s, x, what, from, to, rng);
    for (uint32_t a = from; a < to; a++)
      if (what[a] != NONE) s->disk[a] = s->young[a] = what[a];
    free(what);
  }
  if (x) remix_make_young(x);
  return x;
}

// The partition after nr_full others gets a young view; all_full partitions hold anything.
static bool young_wanted(uint32_t nr_full, uint32_t all_full, uint64_t *rng) {
  switch (scene_young) {
    case YOUNG_SOME: return rng_next(rng) % 2;
    case YOUNG_EVERYWHERE: return true;
    case YOUNG_FIRST: return nr_full == 0;
    case YOUNG_LAST: return nr_full + 1 == all_full;
    case YOUNG_FEW: return rng_next(rng) % 12 == 0;
    default: return false;
  }
}

static void parts_make(struct scene *s, const struct plan *plan, uint64_t *rng) {
  struct part *parts[PARTS_MAX];
  struct remix *x[PARTS_MAX] = {NULL}, *young[PARTS_MAX] = {NULL};
  uint32_t nr = 0, from = 0, begin[PARTS_MAX + 1], all_full = 0, nr_full = 0;
  s->disk = calloc(s->k.nr, sizeof(*s->disk));
  s->old = calloc(s->k.nr, sizeof(*s->old));
  s->young = calloc(s->k.nr, sizeof(*s->young));
  for (uint32_t i = 0; i < plan->parts; i++) {
    uint32_t to = s->k.nr;
    if (i + 1 < plan->parts) to = from + (uint32_t)(rng_next(rng) % (2 * (s->k.nr - from) / (plan->parts - i) + 1));
    if (i && (from == s->k.nr || from == begin[nr - 1])) continue;
    const uint32_t tables = (uint32_t)(rng_next(rng) % (plan->tables + 1));
    for (uint32_t t = 0; t < tables && to > from; t++) {
      uint32_t *what = calloc(s->k.nr, sizeof(*what));
      const uint32_t sparse = 1 + (uint32_t)(rng_next(rng) % 6);
      for (uint32_t a = from; a < to; a++) {
        if (rng_next(rng) % sparse) continue;
        s->disk[a] = s->old[a] = what[a] = what_random(plan, 100 + t, rng);
      }
      x[nr] = scene_table(s, x[nr], what, from, to, rng);
      free(what);
    }
    all_full += x[nr] != NULL;
    begin[nr++] = from;
    from = to;
  }
  begin[nr] = s->k.nr;
  for (uint32_t i = 0; i < nr; i++) {
    if (x[i] && young_wanted(nr_full++, all_full, rng)) young[i] = young_make(s, plan, begin[i], begin[i + 1], rng);
    OK(part_create(i ? s->k.keys[begin[i]] : kref("", 0), x[i], young[i], &parts[i]));
  }
  OK(version_create(parts, nr, &s->version));
}

struct version *version_old(const struct scene *s) {
  struct part *parts[PARTS_MAX];
  struct version *v;
  for (uint32_t i = 0; i < s->version->nr_parts; i++) {
    struct part *const p = s->version->parts[i];
    if (p->remix) remix_ref(p->remix);
    OK(part_create(part_anchor(p), p->remix, NULL, &parts[i]));
  }
  OK(version_create(parts, s->version->nr_parts, &v));
  return v;
}

void version_again(struct scene *s) {
  s->version->store_id = PLACE_STORE_ID;
  s->version->number = s->version->log_gen = 1;
  s->version->next_file = s->p.next;
  OK(version_save(&s->p.ctx, s->version));
  version_unref(s->version);
  OK(version_load(&s->p.ctx, NULL, NULL, &s->version));
}

void scene_init(struct scene *s, const struct plan *plan, uint64_t seed) {
  uint64_t rng = seed;
  memset(s, 0, sizeof(*s));
  place_init(&s->p, plan->cache);
  keyset_make(&s->k, plan->keys, &rng);
  if (scene_long_keys) keyset_lengthen(&s->k, &rng);
  parts_make(s, plan, &rng);
  uint32_t *mem[2];
  for (uint32_t i = 0; i < 2; i++) mem[i] = calloc(s->k.nr, sizeof(uint32_t));
  OK(wh_create(&s->p.epoch, 64 << 10, NULL, &s->active));
  uint64_t seq = 1000;
  if (plan->frozen != UINT32_MAX) {
    OK(wh_create(&s->p.epoch, 64 << 10, NULL, &s->frozen));
    for (uint32_t i = 0; i < plan->frozen; i++) {
      const uint32_t a = (uint32_t)(rng_next(&rng) % s->k.nr), what = what_random(plan, 10000 + i, &rng);
      mem_put(&s->p, s->frozen, s->k.keys[a], what, VALUE, ++seq);
      mem[1][a] = what;
    }
  }
  // the moment is before some writes to the active memtable, so that it has versions and keys that a reader must not
  // see
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

void scene_fini(struct scene *s) {
  version_unref(s->version);
  wh_destroy(s->active);
  if (s->frozen) wh_destroy(s->frozen);
  free(s->live);
  free(s->disk);
  free(s->old);
  free(s->young);
  keyset_free(&s->k);
  place_fini(&s->p);
}

uint32_t key_near(const struct scene *s, uint64_t *rng, uint8_t *buf) {
  const struct kref k = s->k.keys[rng_next(rng) % s->k.nr];
  uint32_t len = k.len;
  if (len) memcpy(buf, k.ptr, len);
  switch (rng_next(rng) % 6) {
    case 0: buf[len++] = (uint8_t)rng_next(rng); break;
    case 1:
      if (len) len--;
      break;
    case 2:
      if (len) buf[len - 1] ^= (uint8_t)(1u << rng_next(rng) % 8);
      break;
    default: break;
  }
  return len;
}
