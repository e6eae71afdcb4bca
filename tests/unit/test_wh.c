// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wh.h"
#include "wh/state.h"

#define CHUNK 65536u
#define KEY_CAP 512u

static void check_index(const struct wh *wh, int line) {
  char why[256];
  if (!wh_check(wh, why, sizeof(why)))
    fail_msg("TEST_SEED=%llu line %d: %s", (unsigned long long)check_seed, line, why);
}
#define CHECK_INDEX(wh) check_index(wh, __LINE__)

static uint64_t key_hash(struct kref key) { return hash64(key.ptr, key.len); }

// ---- an index and its model: a sorted array of keys with the versions they got

struct model_ver {
  uint64_t seq;
  uint32_t vlen;
  bool tomb;
};

struct model_key {
  uint8_t *key;
  uint32_t len;
  uint32_t nr, cap;
  struct model_ver *ver;  // oldest first
};

struct model {
  struct epoch epoch, cursors;
  struct epoch_slot slot, stay;
  struct wh *wh;
  struct model_key *keys;
  uint32_t nr, cap;
  uint64_t seq;
};

static void model_init(struct model *m) {
  memset(m, 0, sizeof(*m));
  epoch_init(&m->epoch);
  epoch_init(&m->cursors);
  epoch_join(&m->epoch, &m->slot);
  epoch_join(&m->cursors, &m->stay);
  CHECK(wh_create(&m->epoch, CHUNK, NULL, &m->wh) == REMIXDB_OK);
  wh_recycle(m->wh, &m->cursors);
}

static void model_fini(struct model *m) {
  wh_destroy(m->wh);
  epoch_reclaim(&m->epoch);
  epoch_leave(&m->epoch, &m->slot);
  epoch_leave(&m->cursors, &m->stay);
  epoch_fini(&m->cursors);
  epoch_fini(&m->epoch);
  for (uint32_t i = 0; i < m->nr; i++) {
    free(m->keys[i].key);
    free(m->keys[i].ver);
  }
  free(m->keys);
}

// The first key >= key.
static uint32_t model_rank(const struct model *m, struct kref key) {
  uint32_t lo = 0, hi = m->nr;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (kv_cmp(kref(m->keys[mid].key, m->keys[mid].len), key) < 0) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

static struct kref model_kref(const struct model_key *k) { return kref(k->key, k->len); }

static void model_add(struct model *m, struct kref key, uint64_t seq, uint32_t vlen, bool tomb) {
  const uint32_t i = model_rank(m, key);
  if (i == m->nr || !kv_eq(model_kref(&m->keys[i]), key)) {
    if (m->nr == m->cap) {
      m->cap = m->cap ? 2 * m->cap : 64;
      m->keys = realloc(m->keys, m->cap * sizeof(*m->keys));
    }
    memmove(m->keys + i + 1, m->keys + i, (m->nr - i) * sizeof(*m->keys));
    m->nr++;
    m->keys[i] = (struct model_key){.key = malloc(key.len ? key.len : 1), .len = key.len};
    if (key.len) memcpy(m->keys[i].key, key.ptr, key.len);
  }
  struct model_key *k = &m->keys[i];
  if (k->nr == k->cap) {
    k->cap = k->cap ? 2 * k->cap : 2;
    k->ver = realloc(k->ver, k->cap * sizeof(*k->ver));
  }
  k->ver[k->nr++] = (struct model_ver){seq, vlen, tomb};
}

static const struct model_ver *model_seen(const struct model_key *k, uint64_t moment) {
  for (uint32_t i = k->nr; i > 0; i--)
    if (k->ver[i - 1].seq <= moment) return &k->ver[i - 1];
  return NULL;
}

static bool ver_matches(const struct wh_ver *v, const struct model_ver *want) {
  if (v == NULL || want == NULL) return v == NULL && want == NULL;
  if (wh_ver_seq(v) != want->seq || v->tomb != want->tomb || v->vlen != want->vlen) return false;
  for (uint32_t i = 0; i < v->vlen; i++)
    if (v->val[i] != (uint8_t)want->seq) return false;
  return true;
}

// Links a version and commits it in both, or takes it back.
static enum remixdb_status model_put(struct model *m, struct kref key, uint32_t vlen, bool tomb, bool take_back) {
  uint8_t *val = malloc(vlen ? vlen : 1);
  memset(val, (uint8_t)(m->seq + 1), vlen);
  struct wh_slot s;
  epoch_enter(&m->epoch, &m->slot);
  wh_lock(m->wh, key, key_hash(key), &s);
  const struct wh_ver *before = wh_slot_newest(&s);
  const enum remixdb_status status = wh_link(&s, val, vlen, tomb);
  free(val);
  if (status == REMIXDB_OK) {
    CHECK(wh_slot_newest(&s) == before);  // pending is not committed
    CHECK(wh_get(m->wh, key, key_hash(key), m->seq) == before);
    CHECK(wh_get(m->wh, key, key_hash(key), WH_PENDING - 1) == before);
    if (take_back) {
      wh_unlink(&s);
      CHECK(wh_slot_newest(&s) == before);
    } else {
      wh_stamp(&s, ++m->seq);
      CHECK(wh_slot_newest(&s) == s.ver);
      model_add(m, key, m->seq, vlen, tomb);
    }
  } else {
    CHECK(wh_slot_newest(&s) == before);
  }
  wh_unlock(&s);
  epoch_exit(&m->slot);
  return status;
}

// Gets of many keys together: all of the model's that `from` and `step` give, and keys beside them.
static void model_verify_many(struct model *m, uint64_t moment, uint32_t from, uint32_t step) {
  struct kref keys[WH_GROUP_MAX];
  uint64_t hashes[WH_GROUP_MAX];
  const struct wh_ver *vers[WH_GROUP_MAX];
  uint8_t which[WH_GROUP_MAX], buf[WH_GROUP_MAX][KEY_CAP + 1];
  uint32_t at[WH_GROUP_MAX], nr = 0;
  for (uint32_t i = from; i < m->nr; i += step) {
    const uint32_t k = WH_GROUP_MAX - 1 - nr;
    const struct model_key *const of = &m->keys[i];
    memcpy(buf[k], of->key, of->len);
    buf[k][of->len] = 0;
    keys[k] = kref(buf[k], of->len + (i % 5 == 0));
    hashes[k] = key_hash(keys[k]);
    at[k] = i % 5 ? i : model_rank(m, keys[k]);
    vers[k] = (const struct wh_ver *)(const void *)m;  // to be written over
    which[nr++] = (uint8_t)k;
    if (nr < WH_GROUP_MAX && i + step < m->nr) continue;
    epoch_enter(&m->epoch, &m->slot);
    wh_get_many(m->wh, keys, hashes, which, nr, moment, vers);
    epoch_exit(&m->slot);
    for (uint32_t w = 0; w < nr; w++) {
      const uint32_t n = which[w];
      const bool there = at[n] < m->nr && kv_eq(model_kref(&m->keys[at[n]]), keys[n]);
      CHECK(ver_matches(vers[n], there ? model_seen(&m->keys[at[n]], moment) : NULL));
    }
    nr = 0;
  }
}

// Everything that can be asked at the moment.
static void model_verify(struct model *m, uint64_t moment, uint64_t *rng, uint32_t seeks) {
  struct wh_cursor c;
  wh_cursor_init(&c, m->wh, moment);
  CHECK(!wh_valid(&c));
  epoch_enter(&m->epoch, &m->slot);
  wh_seek(&c, kref("", 0));
  epoch_exit(&m->slot);
  for (uint32_t i = 0; i < m->nr; i++) {
    const struct model_ver *want = model_seen(&m->keys[i], moment);
    const struct kref key = model_kref(&m->keys[i]);
    epoch_enter(&m->epoch, &m->slot);
    CHECK(ver_matches(wh_get(m->wh, key, key_hash(key), moment), want));
    epoch_exit(&m->slot);
    if (want == NULL) continue;
    CHECK(wh_valid(&c));
    CHECK(kv_eq(wh_key(&c), key));
    CHECK(ver_matches(c.ver, want));
    wh_next(&c);
  }
  CHECK(!wh_valid(&c));
  epoch_enter(&m->epoch, &m->slot);
  wh_seek_last(&c);
  epoch_exit(&m->slot);
  for (uint32_t i = m->nr; i > 0; i--) {
    const struct model_ver *want = model_seen(&m->keys[i - 1], moment);
    if (want == NULL) continue;
    CHECK(wh_valid(&c));
    CHECK(kv_eq(wh_key(&c), model_kref(&m->keys[i - 1])));
    CHECK(ver_matches(c.ver, want));
    wh_prev(&c);
  }
  CHECK(!wh_valid(&c));
  model_verify_many(m, moment, 0, 1);
  model_verify_many(m, moment, 3, 1 + (uint32_t)(rng_next(rng) % 50));
  if (m->nr == 0) return;
  for (uint32_t n = 0; n < seeks; n++) {
    // a key that is there, or is changed a little
    uint8_t buf[KEY_CAP + 1];
    const struct model_key *k = &m->keys[rng_next(rng) % m->nr];
    uint32_t len = k->len;
    memcpy(buf, k->key, len);
    switch (rng_next(rng) % 5) {
      case 0: buf[len++] = (uint8_t)(rng_next(rng) % 3 * 127); break;
      case 1: len -= len > 0; break;
      case 2:
        if (len) buf[len - 1]++;
        break;
      case 3:
        if (len) buf[rng_next(rng) % len]--;
        break;
      default: break;
    }
    const struct kref key = kref(buf, len);
    const uint32_t at = model_rank(m, key);
    const bool there = at < m->nr && kv_eq(model_kref(&m->keys[at]), key);
    const bool back = rng_next(rng) % 2;
    epoch_enter(&m->epoch, &m->slot);
    CHECK(ver_matches(wh_get(m->wh, key, key_hash(key), moment), there ? model_seen(&m->keys[at], moment) : NULL));
    if (back) wh_seek_for_prev(&c, key);
    else wh_seek(&c, key);
    epoch_exit(&m->slot);
    int64_t i = back ? (int64_t)at - !there : (int64_t)at, dir = back ? -1 : 1;
    for (uint32_t step = 0; step < 12; step++) {
      while (i >= 0 && i < (int64_t)m->nr && !model_seen(&m->keys[i], moment)) i += dir;
      if (i < 0 || i >= (int64_t)m->nr) {
        CHECK(!wh_valid(&c));
        break;
      }
      CHECK(wh_valid(&c));
      CHECK(kv_eq(wh_key(&c), model_kref(&m->keys[i])));
      CHECK(ver_matches(c.ver, model_seen(&m->keys[i], moment)));
      if (rng_next(rng) % 4 == 0) dir = -dir;
      if (dir > 0) wh_next(&c);
      else wh_prev(&c);
      i += dir;
    }
  }
}

// ---- keys of all shapes

enum shape { BINARY, UNARY, LONG_PREFIX, RANDOM16, ASCENDING, DESCENDING, STREAMS, SHAPES };

static struct kref shape_key(enum shape shape, uint64_t n, uint64_t *rng, uint8_t *buf) {
  static const uint8_t bytes[] = {0x00, 0x01, 0x7f, 0xff};
  uint32_t len = 0;
  switch (shape) {
    case BINARY:
      len = (uint32_t)(rng_next(rng) % 11);
      for (uint32_t i = 0; i < len; i++) buf[i] = bytes[rng_next(rng) % 4];
      break;
    case UNARY:
      len = (uint32_t)(rng_next(rng) % 400);
      memset(buf, 0xff, len);
      if (len && rng_next(rng) % 2) buf[len - 1] = (uint8_t)rng_next(rng);
      break;
    case LONG_PREFIX:
      memset(buf, 'p', 150);
      for (uint32_t i = 150; i < 160; i++) buf[i] = (uint8_t)('a' + rng_next(rng) % 3);
      len = rng_next(rng) % 16 ? 150 + (uint32_t)(rng_next(rng) % 11) : (uint32_t)(rng_next(rng) % 161);
      break;
    case RANDOM16:
      len = 16;
      for (uint32_t i = 0; i < 16; i += 8) store64le(buf + i, rng_next(rng));
      break;
    case ASCENDING: len = (uint32_t)sprintf((char *)buf, "%08llu", (unsigned long long)n); break;
    case DESCENDING: len = (uint32_t)sprintf((char *)buf, "%08llu", (unsigned long long)(99999999 - n)); break;
    default:
      len = (uint32_t)sprintf((char *)buf, "%llu:%06llu", (unsigned long long)(n * 7 % 13), (unsigned long long)n);
      break;
  }
  return kref(buf, len);
}

// ---- many keys as one

#define MANY_MAX 300u

struct many {
  struct kref keys[MANY_MAX];
  struct wh_link links[MANY_MAX];
  uint32_t vlen[MANY_MAX];
  bool tomb[MANY_MAX];
  uint32_t nr;
  uint8_t bytes[MANY_MAX][KEY_CAP];
};

static int key_order(const void *a, const void *b) { return kv_cmp(*(const struct kref *)a, *(const struct kref *)b); }

// Different keys in order, some of them the model's.
static void many_make(struct many *b, const struct model *m, enum shape shape, uint32_t nr, uint64_t *rng) {
  const uint64_t from = m->nr + rng_next(rng) % 50;
  for (uint32_t i = 0; i < nr; i++) {
    const bool old = m->nr && rng_next(rng) % 3 == 0;
    b->keys[i] = old ? model_kref(&m->keys[rng_next(rng) % m->nr]) : shape_key(shape, from + i, rng, b->bytes[i]);
    b->tomb[i] = rng_next(rng) % 8 == 0;
    b->vlen[i] = b->tomb[i] ? 0 : (uint32_t)(rng_next(rng) % 60);
  }
  qsort(b->keys, nr, sizeof(b->keys[0]), key_order);
  b->nr = 0;
  for (uint32_t i = 0; i < nr; i++)
    if (b->nr == 0 || !kv_eq(b->keys[b->nr - 1], b->keys[i])) b->keys[b->nr++] = b->keys[i];
}

// Links all, and commits them or takes them back; takes back what was linked when one cannot be.
static enum remixdb_status many_put(struct model *m, struct many *b, bool take_back) {
  uint8_t val[64];
  struct wh_many w;
  enum remixdb_status s = REMIXDB_OK;
  uint32_t linked = 0;
  epoch_enter(&m->epoch, &m->slot);
  wh_many_init(&w, m->wh);
  for (; linked < b->nr && s == REMIXDB_OK; linked += s == REMIXDB_OK) {
    memset(val, (uint8_t)(m->seq + 1 + linked), sizeof(val));
    s = wh_many_link(&w, b->keys[linked], key_hash(b->keys[linked]), val, b->vlen[linked], b->tomb[linked],
                     &b->links[linked]);
  }
  // what is pending is not there, whatever moves meanwhile
  for (uint32_t i = 0; i < b->nr; i += 1 + b->nr / 20) {
    const uint32_t at = model_rank(m, b->keys[i]);
    const bool there = at < m->nr && kv_eq(model_kref(&m->keys[at]), b->keys[i]);
    CHECK(ver_matches(wh_get(m->wh, b->keys[i], key_hash(b->keys[i]), WH_PENDING - 1),
                      there ? model_seen(&m->keys[at], WH_PENDING - 1) : NULL));
  }
  if (s != REMIXDB_OK || take_back) {
    while (linked) wh_many_unlink(&w, &b->links[--linked]);
  } else {
    for (uint32_t i = 0; i < b->nr; i++) {
      wh_link_stamp(&b->links[i], ++m->seq);
      model_add(m, b->keys[i], m->seq, b->vlen[i], b->tomb[i]);
    }
  }
  wh_many_unlock(&w);
  epoch_exit(&m->slot);
  return s;
}

// ---- tests

static void test_empty(void **state) {
  (void)state;
  struct model m;
  model_init(&m);
  uint64_t rng = check_seed;
  CHECK_INDEX(m.wh);
  CHECK(wh_count(m.wh) == 0);
  CHECK(wh_memory(m.wh) > 0);
  model_verify(&m, WH_PENDING - 1, &rng, 0);
  epoch_enter(&m.epoch, &m.slot);
  CHECK(wh_get(m.wh, kref(NULL, 0), hash64("", 0), 1) == NULL);
  CHECK(wh_get(m.wh, kref("a", 1), hash64("a", 1), 1) == NULL);
  struct wh_cursor c;
  wh_cursor_init(&c, m.wh, 1);
  wh_seek_for_prev(&c, kref("zz", 2));
  CHECK(!wh_valid(&c));
  // a locked slot without a change
  struct wh_slot s;
  wh_lock(m.wh, kref("a", 1), hash64("a", 1), &s);
  CHECK(s.entry == NULL && s.ver == NULL);
  CHECK(wh_slot_newest(&s) == NULL);
  wh_unlock(&s);
  epoch_exit(&m.slot);
  CHECK(model_put(&m, kref(NULL, 0), 0, false, false) == REMIXDB_OK);
  CHECK(model_put(&m, kref("", 0), 3, false, false) == REMIXDB_OK);
  CHECK(model_put(&m, kref("a", 1), 0, true, false) == REMIXDB_OK);
  CHECK(wh_count(m.wh) == 2);
  for (uint64_t moment = 0; moment <= 4; moment++) model_verify(&m, moment, &rng, 20);
  CHECK_INDEX(m.wh);
  model_fini(&m);
}

struct twin {
  uint64_t way;  // tag and place in `recent`
  uint32_t number;
};
static int twin_cmp(const void *a, const void *b) {
  const struct twin *x = a, *y = b;
  return x->way < y->way ? -1 : x->way > y->way;
}

// The number's key in buf, of so many bytes.
static struct kref twin_key(uint32_t number, uint32_t klen, uint8_t *buf) {
  memset(buf, 'k', klen);
  memcpy(buf, &number, sizeof(number));
  return kref(buf, klen);
}

// Pairs of keys of that length that lead to the same word of `recent` and have the same tag: only the keys tell them
// apart.
static void twins(uint32_t klen) {
  enum { NR = 400000 };
  uint64_t rng = check_seed;
  uint8_t bufs[2][KEY_CAP];
  struct twin *const t = malloc(NR * sizeof(*t));
  struct model m;
  model_init(&m);
  for (uint32_t i = 0; i < NR; i++) {
    const uint64_t h = key_hash(twin_key(i, klen, bufs[0]));
    t[i] = (struct twin){h >> 48 << 32 | (uint64_t)(uint32_t)h * m.wh->nr_recent >> 32, i};
  }
  qsort(t, NR, sizeof(*t), twin_cmp);
  uint32_t pairs = 0, zeros = 0, entries = 0, vers = 0;
  epoch_enter(&m.epoch, &m.slot);
  for (uint32_t i = 0; i < NR; i++) {  // a tag of zeros, where there is no entry
    if (t[i].way >> 32) break;
    const struct kref key = twin_key(t[i].number, klen, bufs[0]);
    CHECK(wh_get(m.wh, key, key_hash(key), WH_PENDING - 1) == NULL);
    zeros++;
  }
  epoch_exit(&m.slot);
  CHECK(zeros > 0);
  CHECK(model_put(&m, kref("a", 1), 1, false, false) == REMIXDB_OK);
  epoch_enter(&m.epoch, &m.slot);  // with few keys gets go to the leaf at once
  const struct wh_begun few = wh_get_begin(m.wh, kref("a", 1), hash64("a", 1));
  CHECK(few.leaf != NULL && few.recent == NULL);
  epoch_exit(&m.slot);
  // as many keys as an index must have before its gets look there; none of them is one of a pair's
  for (uint32_t i = NR; atomic_load(&m.wh->guide) == NULL; i++) {
    CHECK(model_put(&m, twin_key(i, klen, bufs[0]), 1, false, false) == REMIXDB_OK);
  }
  for (uint32_t i = 1; i < NR; i++) {
    if (t[i].way != t[i - 1].way) continue;
    const struct kref key[2] = {twin_key(t[i - 1].number, klen, bufs[0]), twin_key(t[i].number, klen, bufs[1])};
    pairs++;
    for (uint32_t n = 0; n < 12; n++) {
      const uint32_t k = n == 0 ? 0 : (uint32_t)(rng_next(&rng) % 2);
      const bool back = n > 0 && rng_next(&rng) % 3 == 0;
      CHECK(model_put(&m, key[k], n, n % 5 == 4, back) == REMIXDB_OK);
      for (uint32_t j = 0; j < 2; j++) {
        const uint32_t at = model_rank(&m, key[j]);
        const bool there = at < m.nr && kv_eq(model_kref(&m.keys[at]), key[j]);
        epoch_enter(&m.epoch, &m.slot);
        const struct wh_begun w = wh_get_begin(m.wh, key[j], key_hash(key[j]));
        CHECK(w.recent != NULL && w.leaf == NULL);
        const bool is_ver = wh_recent_is_ver(w.recent);
        if (!back) CHECK(kv_eq(is_ver ? wh_ver_key(w.recent) : wh_entry_key(w.recent), key[k]));
        vers += is_ver;
        entries += !is_ver;
        const uint64_t moments[] = {m.seq, m.seq - rng_next(&rng) % 8};
        for (uint32_t o = 0; o < 2; o++)
          CHECK(ver_matches(wh_get_end(m.wh, w, key[j], key_hash(key[j]), moments[o]),
                            there ? model_seen(&m.keys[at], moments[o]) : NULL));
        epoch_exit(&m.slot);
      }
    }
    if (pairs % 16 == 0) CHECK_INDEX(m.wh);
  }
  CHECK(pairs > 5 && entries > pairs);
  CHECK(klen <= WH_VER_KEY_MAX ? vers > pairs : vers == 0);
  CHECK(wh_count(m.wh) == m.nr);
  CHECK_INDEX(m.wh);
  model_verify(&m, m.seq, &rng, 50);
  model_fini(&m);
  free(t);
}

static void test_twins(void **state) {
  (void)state;
  twins(4);
  twins(11);
  twins(WH_VER_KEY_MAX);
  twins(WH_VER_KEY_MAX + 1);
}

static void test_model(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  for (enum shape shape = 0; shape < SHAPES; shape++) {
    struct model m;
    model_init(&m);
    uint64_t moments[8];
    for (uint64_t n = 0; n < 2400; n++) {
      uint8_t buf[KEY_CAP];
      struct kref key = shape_key(shape, n, &rng, buf);
      if (m.nr && rng_next(&rng) % 4 == 0) key = model_kref(&m.keys[rng_next(&rng) % m.nr]);
      const bool tomb = rng_next(&rng) % 8 == 0;
      CHECK(model_put(&m, key, tomb ? 0 : (uint32_t)(rng_next(&rng) % 40), tomb, rng_next(&rng) % 8 == 0) ==
            REMIXDB_OK);
      if (n % 300 == 0) {
        moments[n / 300] = m.seq;
        CHECK_INDEX(m.wh);
        model_verify(&m, m.seq, &rng, 20);
      }
    }
    CHECK(wh_count(m.wh) == m.nr);
    CHECK_INDEX(m.wh);
    for (uint32_t i = 0; i < 8; i++) model_verify(&m, moments[i], &rng, 60);
    model_verify(&m, WH_PENDING - 1, &rng, 200);
    model_fini(&m);
  }
}

// A cursor keeps its moment whatever is written after, and needs no epoch to step.
static void test_moment(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct model m;
  model_init(&m);
  uint8_t buf[KEY_CAP];
  for (uint64_t n = 0; n < 1000; n++)
    CHECK(model_put(&m, shape_key(BINARY, n, &rng, buf), 8, false, false) == REMIXDB_OK);
  const uint64_t moment = m.seq;
  struct wh_cursor fore, back;
  wh_cursor_init(&fore, m.wh, moment);
  wh_cursor_init(&back, m.wh, moment);
  epoch_enter(&m.cursors, &m.stay);
  epoch_enter(&m.epoch, &m.slot);
  wh_seek(&fore, kref("", 0));
  wh_seek_last(&back);
  epoch_exit(&m.slot);
  const uint32_t nr = m.nr;
  struct kref *order = malloc(nr * sizeof(*order));
  for (uint32_t i = 0; i < nr; i++) order[i] = model_kref(&m.keys[i]);
  for (uint32_t i = 0; i < nr; i++) {
    CHECK(wh_valid(&fore) && kv_eq(wh_key(&fore), order[i]));
    CHECK(wh_valid(&back) && kv_eq(wh_key(&back), order[nr - 1 - i]));
    CHECK(wh_ver_seq(fore.ver) <= moment && wh_ver_seq(back.ver) <= moment);
    for (uint32_t w = 0; w < 4; w++)
      CHECK(model_put(&m, shape_key(BINARY, 0, &rng, buf), 8, false, rng_next(&rng) % 4 == 0) == REMIXDB_OK);
    wh_next(&fore);
    wh_prev(&back);
  }
  CHECK(!wh_valid(&fore) && !wh_valid(&back));
  epoch_exit(&m.stay);
  free(order);
  CHECK_INDEX(m.wh);
  model_fini(&m);
}

// Dead leaves serve again: not while a cursor stays, nor while somebody is in an epoch; all the same leaves are there,
// and what they take tells.
static void test_recycle(void **state) {
  (void)state;
  enum { NR = 24000, PHASES = 4 };
  struct model m[2];
  size_t grown[2][PHASES];
  struct epoch_slot inside;
  for (uint32_t i = 0; i < 2; i++) {
    uint64_t rng = check_seed;
    model_init(&m[i]);
    if (i == 0) wh_recycle(m[i].wh, NULL);
    epoch_join(&m[i].epoch, &inside);
    for (uint32_t phase = 0; phase < PHASES; phase++) {
      const size_t before = wh_memory(m[i].wh);
      if (phase == 1) epoch_enter(&m[i].cursors, &m[i].stay);
      if (phase == 2) epoch_enter(&m[i].epoch, &inside);
      for (uint32_t n = 0; n < NR; n++) {
        struct wh_slot s;
        uint8_t buf[KEY_CAP];
        const struct kref key = shape_key(RANDOM16, n, &rng, buf);
        epoch_enter(&m[i].epoch, &m[i].slot);
        wh_lock(m[i].wh, key, key_hash(key), &s);
        CHECK(wh_link(&s, NULL, 0, false) == REMIXDB_OK);
        wh_stamp(&s, ++m[i].seq);
        wh_unlock(&s);
        epoch_exit(&m[i].slot);
      }
      epoch_exit(&m[i].stay);
      epoch_exit(&inside);
      grown[i][phase] = wh_memory(m[i].wh) - before;
    }
    CHECK_INDEX(m[i].wh);
    epoch_leave(&m[i].epoch, &inside);
    model_fini(&m[i]);
  }
  // half of all leaves are dead: about 12 of some 70 bytes
  CHECK(grown[1][0] < grown[0][0] - grown[0][0] / 10);
  CHECK(grown[1][1] > grown[0][1] - grown[0][1] / 16);  // what died before the cursor came is all there was: two times
                                                        // 32 leaves, of which 80 would be this much
  CHECK(grown[1][2] > grown[1][0] + grown[1][0] / 25);
  CHECK(grown[1][3] < grown[1][2] && grown[1][3] < grown[1][1]);
}

// Many at a time, beside single ones; taken back now and then, which leaves keys without versions in the leaves.
static void test_many(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct many *const b = malloc(sizeof(*b));
  for (enum shape shape = 0; shape < SHAPES; shape++) {
    struct model m;
    model_init(&m);
    uint64_t moments[8];
    for (uint32_t n = 0; n < 32; n++) {
      many_make(b, &m, shape, n % 4 ? (uint32_t)(rng_next(&rng) % 40) : MANY_MAX, &rng);
      CHECK(many_put(&m, b, rng_next(&rng) % 4 == 0) == REMIXDB_OK);
      for (uint32_t i = 0; i < 10; i++) {
        uint8_t buf[KEY_CAP];
        const bool old = m.nr && rng_next(&rng) % 2;
        const struct kref key = old ? model_kref(&m.keys[rng_next(&rng) % m.nr])
                                    : shape_key(shape, 10000 + n * 10 + i, &rng, buf);
        CHECK(model_put(&m, key, 5, false, rng_next(&rng) % 3 == 0) == REMIXDB_OK);
      }
      CHECK(wh_count(m.wh) == m.nr);
      CHECK_INDEX(m.wh);
      if (n % 4 == 0) moments[n / 4] = m.seq;
      if (n % 8 == 0) model_verify(&m, m.seq, &rng, 20);
    }
    for (uint32_t i = 0; i < 8; i++) model_verify(&m, moments[i], &rng, 30);
    model_verify(&m, WH_PENDING - 1, &rng, 100);
    model_fini(&m);
  }
  free(b);
}

// Pending keys that fill many leaves, taken back in any order, beside a few that stay: leaves shrink and merge, nodes
// of the trie go.
static void test_removal(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  for (enum shape shape = 0; shape < SHAPES; shape++) {
    struct model m;
    model_init(&m);
    for (uint32_t round = 0; round < 2; round++) {
      enum { NR = 700 };
      struct {
        uint8_t key[KEY_CAP];
        uint32_t len;
        struct wh_ver *ver;
      } *p = calloc(NR, sizeof(*p));
      uint32_t nr = 0;
      for (uint64_t n = 0; n < NR; n++) {
        const struct kref key = shape_key(shape, round * NR + n, &rng, p[nr].key);
        if (rng_next(&rng) % 40 == 0) {
          const uint32_t at = model_rank(&m, key);
          bool pending = false;
          for (uint32_t i = 0; i < nr; i++) pending |= kv_eq(kref(p[i].key, p[i].len), key);
          if (!pending && (at == m.nr || !kv_eq(model_kref(&m.keys[at]), key)))
            CHECK(model_put(&m, key, 4, false, false) == REMIXDB_OK);
          continue;
        }
        struct wh_slot s;
        epoch_enter(&m.epoch, &m.slot);
        wh_lock(m.wh, key, key_hash(key), &s);
        if (s.entry == NULL) {
          CHECK(wh_link(&s, "x", 1, false) == REMIXDB_OK);
          p[nr].ver = s.ver;
          p[nr++].len = key.len;
        }
        wh_unlock(&s);
        epoch_exit(&m.slot);
      }
      CHECK(wh_count(m.wh) == m.nr + nr);
      CHECK_INDEX(m.wh);
      model_verify(&m, WH_PENDING - 1, &rng, 10);
      while (nr) {
        const uint32_t i = (uint32_t)(rng_next(&rng) % nr);
        const struct kref key = kref(p[i].key, p[i].len);
        struct wh_slot s;
        epoch_enter(&m.epoch, &m.slot);
        wh_lock(m.wh, key, key_hash(key), &s);
        CHECK(s.entry != NULL);
        s.ver = p[i].ver;
        wh_unlink(&s);
        CHECK(s.entry == NULL && s.ver == NULL);
        wh_unlock(&s);
        epoch_exit(&m.slot);
        epoch_enter(&m.epoch, &m.slot);
        wh_lock(m.wh, key, key_hash(key), &s);
        CHECK(s.entry == NULL);
        wh_unlock(&s);
        epoch_exit(&m.slot);
        p[i] = p[--nr];
        if (nr % 64 == 0) {
          CHECK_INDEX(m.wh);
          model_verify(&m, WH_PENDING - 1, &rng, 10);
        }
      }
      CHECK(wh_count(m.wh) == m.nr);
      free(p);
    }
    model_fini(&m);
  }
}

// A leaf whose left neighbour is locked must neither merge with it nor wait for it; when it is free they merge. Keys 71
// to 200 in falling order: one split, somewhere between 120 and 154.
static void test_merge_locked(void **state) {
  (void)state;
  struct model m;
  model_init(&m);
  struct wh_ver *ver[201] = {NULL};
  char key[16];
  struct wh_slot s, held;
  epoch_enter(&m.epoch, &m.slot);
  for (uint32_t k = 200; k > 70; k--) {
    const struct kref ref = kref(key, (uint32_t)sprintf(key, "%03u", k));
    wh_lock(m.wh, ref, key_hash(ref), &s);
    CHECK(wh_link(&s, "", 0, false) == REMIXDB_OK);
    ver[k] = s.ver;
    wh_unlock(&s);
  }
  const struct kref held_key = kref("071x", 4);
  for (uint32_t k = 71; k <= 200; k++) {
    if (k == 116) {
      k = 160;
      wh_lock(m.wh, held_key, key_hash(held_key), &held);
    }
    if (k == 200) {  // what is left fits into half a leaf since long
      CHECK_INDEX(m.wh);
      CHECK(wh_link(&held, "y", 1, false) == REMIXDB_OK);
      wh_stamp(&held, ++m.seq);
      wh_unlock(&held);
      CHECK(wh_get(m.wh, held_key, key_hash(held_key), m.seq) == held.ver);
      CHECK_INDEX(m.wh);
    }
    const struct kref ref = kref(key, (uint32_t)sprintf(key, "%03u", k));
    wh_lock(m.wh, ref, key_hash(ref), &s);
    if (k == 200) CHECK(s.leaf != held.leaf);
    s.ver = ver[k];
    wh_unlink(&s);
    wh_unlock(&s);
  }
  CHECK_INDEX(m.wh);
  CHECK(wh_get(m.wh, held_key, key_hash(held_key), m.seq) == held.ver);
  wh_lock(m.wh, kref("200", 3), hash64("200", 3), &s);
  const struct wh_leaf *const last = s.leaf;
  wh_unlock(&s);
  wh_lock(m.wh, held_key, key_hash(held_key), &s);
  CHECK(s.leaf == last);
  wh_unlock(&s);
  epoch_exit(&m.slot);
  CHECK(wh_count(m.wh) == 1 + 159 - 115);
  model_fini(&m);
}

// ---- with a guide, which takes 32 leaves: wh_check finds a leaf that was not handed over to it

#define GUIDED_KEYS 9600u
#define GUIDED_GROUP 100u

struct guided {
  struct model m;
  struct wh_ver *vers[GUIDED_KEYS];  // pending ones
  uint16_t turn[GUIDED_KEYS];
};

static struct guided *guided_create(void) {
  struct guided *const g = calloc(1, sizeof(*g));
  model_init(&g->m);
  for (uint32_t i = 0; i < GUIDED_KEYS; i++) g->turn[i] = (uint16_t)i;
  return g;
}

static void guided_destroy(struct guided *g) {
  CHECK(wh_count(g->m.wh) == g->m.nr);
  model_fini(&g->m);
  free(g);
}

static void guided_shuffle(struct guided *g, uint64_t *rng) {
  for (uint32_t i = GUIDED_KEYS - 1; i > 0; i--) {
    const uint32_t j = (uint32_t)(rng_next(rng) % (i + 1));
    const uint16_t t = g->turn[i];
    g->turn[i] = g->turn[j];
    g->turn[j] = t;
  }
}

// Links pending versions of the keys from `from` on, in turn, or takes them back. Where two groups meet, keys differ
// early, so that leaves are cut there again and again.
static void guided_pass(struct guided *g, uint32_t from, bool take_back) {
  struct model *const m = &g->m;
  for (uint32_t i = 0, nr = 0; i < GUIDED_KEYS; i++) {
    const uint32_t k = g->turn[i];
    if (k < from) continue;
    char buf[16];
    const struct kref key = kref(buf, (uint32_t)sprintf(buf, "%02u%02u", k / GUIDED_GROUP, k % GUIDED_GROUP));
    struct wh_slot s;
    epoch_enter(&m->epoch, &m->slot);
    wh_lock(m->wh, key, key_hash(key), &s);
    if (take_back) {
      s.ver = g->vers[k];
      wh_unlink(&s);
    } else {
      CHECK(wh_link(&s, "", 0, false) == REMIXDB_OK);
      g->vers[k] = s.ver;
    }
    wh_unlock(&s);
    epoch_exit(&m->slot);
    if (++nr % (GUIDED_KEYS / 8) == 0) CHECK_INDEX(m->wh);
  }
  CHECK_INDEX(m->wh);
}

// Leaves are cut, made anew, merged, and cut again with anchors that the guide knows from before.
static void test_guided(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct guided *const g = guided_create();
  for (uint32_t k = 0; k < GUIDED_KEYS; k += GUIDED_GROUP) {
    char buf[16];
    const struct kref key = kref(buf, (uint32_t)sprintf(buf, "%02u00x", k / GUIDED_GROUP));
    CHECK(model_put(&g->m, key, 3, false, false) == REMIXDB_OK);
  }
  for (uint32_t round = 0; round < 3; round++) {
    guided_pass(g, 0, false);
    guided_shuffle(g, &rng);
    model_verify(&g->m, WH_PENDING - 1, &rng, 20);
    guided_pass(g, 0, true);
    model_verify(&g->m, WH_PENDING - 1, &rng, 20);
  }
  guided_destroy(g);
}

// Leaves are added behind the last one, taken away, and added again where they were.
static void test_guided_end(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct guided *const g = guided_create();
  guided_pass(g, 0, false);
  for (uint32_t round = 0; round < 2; round++) {
    guided_pass(g, GUIDED_KEYS / 2, true);
    guided_pass(g, GUIDED_KEYS / 2, false);
  }
  model_verify(&g->m, WH_PENDING - 1, &rng, 0);
  guided_pass(g, 0, true);
  guided_destroy(g);
}

// The table of prefixes that growth replaces stays until those who may be in it have left.
static void test_growth(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct model m;
  model_init(&m);
  struct epoch_slot other;
  epoch_join(&m.epoch, &other);
  epoch_enter(&m.epoch, &other);
  for (uint64_t n = 0; n < 2000; n++) {
    uint8_t buf[KEY_CAP];
    CHECK(model_put(&m, shape_key(LONG_PREFIX, n, &rng, buf), 1, false, false) == REMIXDB_OK);
  }
  CHECK(m.epoch.retired != NULL);
  epoch_reclaim(&m.epoch);
  CHECK(m.epoch.retired != NULL);
  epoch_exit(&other);
  epoch_reclaim(&m.epoch);
  CHECK(m.epoch.retired == NULL);
  epoch_leave(&m.epoch, &other);
  CHECK_INDEX(m.wh);
  model_verify(&m, m.seq, &rng, 20);
  model_fini(&m);
}

// ---- no memory

static uint64_t fault_rng;
static uint32_t fault_of;  // of 256 requests that many fail
static uint64_t faults;
static bool fault_fn(size_t size) {
  (void)size;
  const bool ok = rng_next(&fault_rng) % 256 >= fault_of;
  faults += !ok;
  return ok;
}

static void test_nomem_create(void **state) {
  (void)state;
  struct epoch e;
  epoch_init(&e);
  fault_rng = check_seed;
  fault_of = 32;
  faults = 0;
  atomic_store(&mem_fault, fault_fn);
  uint32_t ok = 0;
  for (uint32_t i = 0; i < 64; i++) {
    struct wh *wh = NULL;
    const enum remixdb_status s = wh_create(&e, CHUNK, NULL, &wh);
    CHECK(s == REMIXDB_OK || s == REMIXDB_NOMEM);
    if (s == REMIXDB_OK) {
      ok++;
      CHECK_INDEX(wh);
      wh_destroy(wh);
    }
  }
  atomic_store(&mem_fault, NULL);
  CHECK(ok && faults);
  epoch_fini(&e);
}

// Most requests fail. Sizes vary, so the arena's chunks end at every kind of allocation; growth of the table asks on
// its own.
static void test_nomem(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  faults = 0;
  fault_rng = check_seed + 1;
  fault_of = 200;
  for (enum shape shape = 0; shape < SHAPES; shape++) {
    struct model m;
    model_init(&m);
    uint64_t failed = 0;
    for (uint64_t n = 0; n < 2500; n++) {
      uint8_t buf[KEY_CAP];
      const struct kref key = shape_key(shape, n, &rng, buf);
      const uint64_t count = wh_count(m.wh);
      atomic_store(&mem_fault, fault_fn);
      const uint32_t vlen = rng_next(&rng) % 2 ? (uint32_t)(rng_next(&rng) % 2500) : (uint32_t)(rng_next(&rng) % 20);
      const enum remixdb_status s = model_put(&m, key, vlen, false, rng_next(&rng) % 4 == 0);
      atomic_store(&mem_fault, NULL);
      if (s != REMIXDB_OK) {
        CHECK(s == REMIXDB_NOMEM);
        CHECK(wh_count(m.wh) == count);
        if (failed++ % 32 == 0) CHECK_INDEX(m.wh);
      }
      if (n % 400 == 0) {
        CHECK_INDEX(m.wh);
        atomic_store(&mem_fault, fault_fn);  // who reads needs no memory
        model_verify(&m, m.seq, &rng, 10);
        atomic_store(&mem_fault, NULL);
      }
    }
    CHECK(failed > 0);
    CHECK(wh_count(m.wh) == m.nr);
    CHECK_INDEX(m.wh);
    model_verify(&m, m.seq, &rng, 50);
    model_fini(&m);
  }
  CHECK(faults > 0);
}

// The same for many at a time: all of them or none.
static void test_nomem_many(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct many *const b = malloc(sizeof(*b));
  fault_rng = check_seed + 2;
  for (enum shape shape = 0; shape < SHAPES; shape++) {
    struct model m;
    model_init(&m);
    uint32_t failed = 0, good = 0;
    for (uint32_t n = 0; n < 60; n++) {
      many_make(b, &m, shape, 1 + (uint32_t)(rng_next(&rng) % (n % 3 ? 60 : MANY_MAX)), &rng);
      const uint64_t count = wh_count(m.wh);
      fault_of = n % 2 ? 120 : 10;
      atomic_store(&mem_fault, fault_fn);
      const enum remixdb_status s = many_put(&m, b, rng_next(&rng) % 8 == 0);
      atomic_store(&mem_fault, NULL);
      CHECK(s == REMIXDB_OK || s == REMIXDB_NOMEM);
      if (s == REMIXDB_OK) good++;
      else CHECK(wh_count(m.wh) == count);
      failed += s != REMIXDB_OK;
      CHECK_INDEX(m.wh);
      if (n % 15 == 0) model_verify(&m, m.seq, &rng, 10);
    }
    CHECK(failed > 2 && good > 2);
    CHECK(wh_count(m.wh) == m.nr);
    model_verify(&m, m.seq, &rng, 50);
    model_fini(&m);
  }
  free(b);
}

// ---- threads. Numbers are given as the store does it: under one mutex, then published; so a moment is complete.

#define T_KEYS 6000u  // enough for a guide
#define T_WRITERS 3u
#define T_OPS 1200u  // per writer
#define T_BATCH 16u
#define T_PENDING 200u

enum writing {
  DENSE,   // many committed keys, batches in one leaf and over several
  SPARSE,  // few committed keys, many pending ones that come and go: leaves split and merge all the time
  APPEND,  // all writers at the end of the last leaf
};

struct shared {
  enum writing how;
  _Atomic uint32_t appended, locks;
  struct epoch epoch, cursors;
  struct wh *wh;
  pthread_mutex_t lock;  // the log's
  uint64_t last;         // under lock
  _Atomic uint64_t published;
  uint16_t *log;             // key of each number; written before it is published
  struct kref keys[T_KEYS];  // in order
  uint8_t *key_bytes;
  _Atomic uint32_t writers;  // that still write
  _Atomic uint64_t scans;
  _Atomic int broken;  // line of the first failure
};

struct worker {
  struct shared *sh;
  uint64_t rng;
  uint32_t id;
};

#define T_CHECK(sh, cond)                                                              \
  do {                                                                                 \
    int none = 0;                                                                      \
    if (!(cond)) (void)atomic_compare_exchange_strong(&(sh)->broken, &none, __LINE__); \
  } while (0)

static void commit(struct shared *sh, const struct wh_link *links, const uint32_t *ids, uint32_t nr) {
  (void)pthread_mutex_lock(&sh->lock);
  for (uint32_t i = 0; i < nr; i++) {
    sh->log[++sh->last] = (uint16_t)ids[i];
    wh_link_stamp(&links[i], sh->last);
  }
  atomic_store_explicit(&sh->published, sh->last, memory_order_release);
  (void)pthread_mutex_unlock(&sh->lock);
}

struct pending {
  uint32_t nr;
  struct {
    uint32_t key;
    struct wh_ver *ver;
  } of[T_PENDING];
};

// Now and then the lock is held for long, so that others meet it; seldom so long that they sleep.
static void lock_key(struct shared *sh, uint32_t k, struct wh_slot *s) {
  wh_lock(sh->wh, sh->keys[k], key_hash(sh->keys[k]), s);
  const uint32_t n = atomic_fetch_add_explicit(&sh->locks, 1, memory_order_relaxed);
  if (n % 256 == 0) (void)sched_yield();
  for (volatile uint32_t i = 0; n % 8 == 0 && i < 3000;) i = i + 1;
}

static void write_one(struct shared *sh, uint32_t k, bool take_back) {
  struct wh_slot s;
  lock_key(sh, k, &s);
  T_CHECK(sh, wh_link(&s, &k, sizeof(k), false) == REMIXDB_OK);
  if (take_back) wh_unlink(&s);
  else commit(sh, &(struct wh_link){s.entry, s.ver}, &k, 1);
  wh_unlock(&s);
}

// Some keys of one leaf or of several, from k on.
static void write_batch(struct worker *w, uint32_t k, uint32_t step, bool take_back) {
  struct shared *sh = w->sh;
  struct wh_many many;
  struct wh_link links[T_BATCH];
  uint32_t ids[T_BATCH], nr = 0;
  wh_many_init(&many, sh->wh);
  for (const uint32_t most = 1 + (uint32_t)(rng_next(&w->rng) % T_BATCH); nr < most && k < T_KEYS; k += step, nr++) {
    ids[nr] = k;
    T_CHECK(sh,
            wh_many_link(&many, sh->keys[k], key_hash(sh->keys[k]), &k, sizeof(k), false, &links[nr]) == REMIXDB_OK);
    for (volatile uint32_t i = 0; nr == 4 && i < 1000;) i = i + 1;
  }
  if (rng_next(&w->rng) % 32 == 0) (void)sched_yield();
  if (take_back)
    for (uint32_t i = nr; i > 0; i--) wh_many_unlink(&many, &links[i - 1]);
  else commit(sh, links, ids, nr);
  wh_many_unlock(&many);
}

// Keys that are never committed; each writer has its own.
static void leave_pending(struct worker *w, struct pending *p) {
  struct shared *sh = w->sh;
  const uint32_t k = (uint32_t)(rng_next(&w->rng) % (T_KEYS / 2 / T_WRITERS) * T_WRITERS + w->id) * 2 + 1;
  struct wh_slot s;
  if (p->nr == T_PENDING) return;
  lock_key(sh, k, &s);
  if (s.entry == NULL) {
    T_CHECK(sh, wh_link(&s, &k, sizeof(k), false) == REMIXDB_OK);
    p->of[p->nr].key = k;
    p->of[p->nr++].ver = s.ver;
  }
  wh_unlock(&s);
}

static void take_back(struct worker *w, struct pending *p) {
  if (p->nr == 0) return;
  const uint32_t at = (uint32_t)(rng_next(&w->rng) % p->nr);
  struct wh_slot s;
  lock_key(w->sh, p->of[at].key, &s);
  T_CHECK(w->sh, s.entry != NULL);
  s.ver = p->of[at].ver;
  wh_unlink(&s);
  wh_unlock(&s);
  p->of[at] = p->of[--p->nr];
}

static void *writer(void *arg) {
  struct worker *w = arg;
  struct shared *sh = w->sh;
  struct epoch_slot es;
  epoch_join(&sh->epoch, &es);
  struct pending p = {.nr = 0};
  for (uint32_t op = 0; op < T_OPS; op++) {
    const uint64_t dice = rng_next(&w->rng) % 16;
    const uint32_t k = (uint32_t)(rng_next(&w->rng) % (T_KEYS / 2)) * 2;  // even keys are committed
    epoch_enter(&sh->epoch, &es);
    if (sh->how == APPEND) {
      const uint32_t nr = dice < 4 ? T_BATCH : 1, next = atomic_fetch_add(&sh->appended, nr);
      if (nr > 1) write_batch(w, next < T_KEYS ? next : k, 1, dice == 0);
      else write_one(sh, next < T_KEYS ? next : k, false);
    } else if (sh->how == SPARSE) {
      if (dice == 0) write_one(sh, k - k % 50, rng_next(&w->rng) % 2);
      else if (dice == 1) write_batch(w, k - k % 50, 50, rng_next(&w->rng) % 2);
      else if (dice == 2) write_batch(w, k, 2, true);
      else if (op / 150 % 2 == 0) leave_pending(w, &p);
      else take_back(w, &p);
    } else if (dice < 6) {
      write_one(sh, k, dice == 0);
    } else if (dice < 8) {
      write_batch(w, k, 2 * (1 + (uint32_t)(rng_next(&w->rng) % (dice == 6 ? 3 : 60))), rng_next(&w->rng) % 3 == 0);
    } else if (dice < 12) {
      leave_pending(w, &p);
    } else {
      take_back(w, &p);
    }
    epoch_exit(&es);
    if (op % 256 == 0) epoch_reclaim(&sh->epoch);
  }
  epoch_enter(&sh->epoch, &es);
  while (p.nr) take_back(w, &p);
  epoch_exit(&es);
  epoch_leave(&sh->epoch, &es);
  atomic_fetch_sub(&sh->writers, 1);
  return NULL;
}

// Expected content at a moment: the number of each key's newest version, 0 for none.
static void expect(const struct shared *sh, uint64_t moment, uint64_t *seq_of) {
  memset(seq_of, 0, T_KEYS * sizeof(*seq_of));
  for (uint64_t i = 1; i <= moment; i++) seq_of[sh->log[i]] = i;
}

static bool is_at(const struct shared *sh, const struct wh_cursor *c, int64_t k, const uint64_t *seq_of) {
  uint32_t v;
  if (!wh_valid(c) || !kv_eq(wh_key(c), sh->keys[k]) || wh_ver_seq(c->ver) != seq_of[k]) return false;
  memcpy(&v, c->ver->val, sizeof(v));
  return v == k;
}

static void read_many(struct worker *w, struct epoch_slot *es, uint64_t moment, const uint64_t *seq_of) {
  struct shared *sh = w->sh;
  struct kref keys[WH_GROUP_MAX];
  uint64_t hashes[WH_GROUP_MAX];
  const struct wh_ver *vers[WH_GROUP_MAX];
  uint8_t which[WH_GROUP_MAX];
  uint32_t ids[WH_GROUP_MAX];
  for (uint32_t i = 0; i < WH_GROUP_MAX; i++) {
    ids[i] = (uint32_t)(rng_next(&w->rng) % T_KEYS);
    keys[i] = sh->keys[ids[i]];
    hashes[i] = key_hash(keys[i]);
    which[i] = (uint8_t)i;
  }
  epoch_enter(&sh->epoch, es);
  wh_get_many(sh->wh, keys, hashes, which, WH_GROUP_MAX, moment, vers);
  epoch_exit(es);
  for (uint32_t i = 0; i < WH_GROUP_MAX; i++) T_CHECK(sh, (vers[i] ? wh_ver_seq(vers[i]) : 0) == seq_of[ids[i]]);
}

static void *reader(void *arg) {
  struct worker *w = arg;
  struct shared *sh = w->sh;
  struct epoch_slot es, stay;
  epoch_join(&sh->epoch, &es);
  epoch_join(&sh->cursors, &stay);
  uint64_t *seq_of = malloc(T_KEYS * sizeof(*seq_of));
  bool more;
  do {
    more = atomic_load(&sh->writers) != 0;
    const uint64_t moment = atomic_load_explicit(&sh->published, memory_order_acquire);
    expect(sh, moment, seq_of);
    struct wh_cursor c;
    wh_cursor_init(&c, sh->wh, moment);
    const uint32_t what = (uint32_t)(rng_next(&w->rng) % 4);
    if (what < 2) {  // all of it, in one direction
      const int64_t dir = what ? -1 : 1;
      epoch_enter(&sh->epoch, &es);
      epoch_renew(&sh->cursors, &stay);
      if (what) wh_seek_last(&c);
      else wh_seek(&c, kref("", 0));
      epoch_exit(&es);
      for (int64_t k = what ? T_KEYS - 1 : 0; k >= 0 && k < T_KEYS; k += dir) {
        if (!seq_of[k]) continue;
        T_CHECK(sh, is_at(sh, &c, k, seq_of));
        if (!wh_valid(&c)) break;
        if (what) wh_prev(&c);
        else wh_next(&c);
      }
      T_CHECK(sh, !wh_valid(&c));
    } else {  // from somewhere, to and fro; and gets
      for (uint32_t n = 0; n < 8; n++) {
        const uint32_t from = (uint32_t)(rng_next(&w->rng) % T_KEYS);
        int64_t dir = rng_next(&w->rng) % 2 ? 1 : -1, k = from;
        epoch_enter(&sh->epoch, &es);
        epoch_renew(&sh->cursors, &stay);
        if (n % 2) {  // asked for in one epoch, sought in the next
          wh_seek_begin(&c, sh->keys[from], n % 4 == 1);
          epoch_exit(&es);
          epoch_enter(&sh->epoch, &es);
        }
        if (dir > 0) wh_seek(&c, sh->keys[from]);
        else wh_seek_for_prev(&c, sh->keys[from]);
        epoch_exit(&es);
        for (uint32_t step = 0; step < 100; step++) {
          while (k >= 0 && k < T_KEYS && !seq_of[k]) k += dir;
          if (k < 0 || k >= T_KEYS) {
            T_CHECK(sh, !wh_valid(&c));
            break;
          }
          T_CHECK(sh, is_at(sh, &c, k, seq_of));
          if (!wh_valid(&c)) break;
          if (rng_next(&w->rng) % 16 == 0) dir = -dir;
          if (dir > 0) wh_next(&c);
          else wh_prev(&c);
          k += dir;
        }
        for (uint32_t i = 0; i < 50; i++) {
          const uint32_t g = (uint32_t)(rng_next(&w->rng) % T_KEYS);
          epoch_enter(&sh->epoch, &es);
          const struct wh_ver *v = wh_get(sh->wh, sh->keys[g], key_hash(sh->keys[g]), moment);
          epoch_exit(&es);
          T_CHECK(sh, (v ? wh_ver_seq(v) : 0) == seq_of[g]);
        }
        read_many(w, &es, moment, seq_of);
      }
    }
    atomic_fetch_add(&sh->scans, 1);
    if (rng_next(&w->rng) % 4 == 0) epoch_exit(&stay);
  } while (more);
  free(seq_of);
  epoch_exit(&stay);
  epoch_leave(&sh->epoch, &es);
  epoch_leave(&sh->cursors, &stay);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  static const struct {
    enum shape shape;
    enum writing how;
  } rounds[] = {{BINARY, DENSE},       {LONG_PREFIX, DENSE}, {RANDOM16, DENSE},   {BINARY, SPARSE},
                {LONG_PREFIX, SPARSE}, {RANDOM16, SPARSE},   {ASCENDING, APPEND}, {ASCENDING, APPEND}};
  for (uint32_t r = 0; r < sizeof(rounds) / sizeof(rounds[0]); r++) {
    struct shared *sh = calloc(1, sizeof(*sh) + CACHE_LINE);
    struct shared *const free_me = sh;
    sh = (struct shared *)(void *)align_up((uintptr_t)sh, CACHE_LINE);
    sh->how = rounds[r].how;
    epoch_init(&sh->epoch);
    epoch_init(&sh->cursors);
    (void)pthread_mutex_init(&sh->lock, NULL);
    sh->log = calloc(T_KEYS + T_WRITERS * T_OPS * T_BATCH + 1, sizeof(*sh->log));
    sh->key_bytes = malloc((size_t)T_KEYS * KEY_CAP);
    uint64_t rng = check_seed + r;
    for (uint32_t i = 0; i < T_KEYS; i++)
      sh->keys[i] = shape_key(rounds[r].shape, i, &rng, sh->key_bytes + (size_t)i * KEY_CAP);
    for (bool again = true; again;) {  // until all differ
      again = false;
      qsort(sh->keys, T_KEYS, sizeof(sh->keys[0]), key_order);
      for (uint32_t i = 1; i < T_KEYS; i++) {
        if (!kv_eq(sh->keys[i - 1], sh->keys[i])) continue;
        sh->keys[i] = shape_key(rounds[r].shape, i, &rng, (uint8_t *)(uintptr_t)sh->keys[i].ptr);
        again = true;
      }
    }
    OK(wh_create(&sh->epoch, CHUNK, NULL, &sh->wh));
    wh_recycle(sh->wh, &sh->cursors);
    struct epoch_slot es;
    epoch_join(&sh->epoch, &es);
    // Between the keys of a batch more than two leaves' worth is there from the start.
    for (uint32_t k = 0; k < T_KEYS && sh->how == DENSE; k += 2) {
      if (k % 40 < 4) continue;  // some are left for the writers to bring
      struct wh_slot s;
      epoch_enter(&sh->epoch, &es);
      wh_lock(sh->wh, sh->keys[k], key_hash(sh->keys[k]), &s);
      OK(wh_link(&s, &k, sizeof(k), false));
      commit(sh, &(struct wh_link){s.entry, s.ver}, &k, 1);
      wh_unlock(&s);
      epoch_exit(&es);
    }
    epoch_leave(&sh->epoch, &es);
    atomic_store(&sh->writers, T_WRITERS);
    struct worker w[T_WRITERS + 2];
    pthread_t t[T_WRITERS + 2];
    for (uint32_t i = 0; i < T_WRITERS + 2; i++) {
      w[i] = (struct worker){.sh = sh, .rng = check_seed * 31 + i, .id = i};
      OK(thread_start(&t[i], i < T_WRITERS ? writer : reader, &w[i], "wh"));
    }
    for (uint32_t i = 0; i < T_WRITERS + 2; i++) assert_int_equal(pthread_join(t[i], NULL), 0);
    if (atomic_load(&sh->broken))
      fail_msg("TEST_SEED=%llu line %d", (unsigned long long)check_seed, atomic_load(&sh->broken));
    CHECK_INDEX(sh->wh);
    CHECK(atomic_load(&sh->scans) > 0);
    wh_destroy(sh->wh);
    epoch_fini(&sh->cursors);
    epoch_fini(&sh->epoch);
    (void)pthread_mutex_destroy(&sh->lock);
    free(sh->log);
    free(sh->key_bytes);
    free(free_me);
  }
}

// ---- what is asked for before it is sought

// Keys of which up to a leaf's worth share their first bytes, and that end in zeros.
static struct kref tied_key(uint64_t *rng, uint8_t *buf) {
  uint32_t len = (uint32_t)(rng_next(rng) % 3) * 5;
  memset(buf, 't', len);
  if (len) buf[len - 1] = (uint8_t)('a' + rng_next(rng) % 2);
  const uint32_t zeros = (uint32_t)(rng_next(rng) % 8), ends = (uint32_t)(rng_next(rng) % 8);
  memset(buf + len, 0, zeros);
  len += zeros;
  for (uint32_t i = 0; i < ends; i++) buf[len++] = (uint8_t)(rng_next(rng) % 3 * 127);
  return kref(buf, len);
}

// A place that was asked for is the one that is found at the cursor's moment, whatever comes into its leaf meanwhile or
// becomes of it; a seek to the end, or another wish, takes its place, in any order.
static void test_wanted(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct model m;
  uint8_t buf[KEY_CAP + 1];
  model_init(&m);
  epoch_enter(&m.cursors, &m.stay);
  for (uint32_t n = 0; n < 400; n++) CHECK(model_put(&m, tied_key(&rng, buf), 1, false, false) == REMIXDB_OK);
  struct wh_cursor c;
  for (uint32_t n = 0; n < 6000; n++) {
    if (n % 7 == 0) wh_cursor_init(&c, m.wh, m.seq);
    const uint64_t moment = c.moment;
    uint8_t other[KEY_CAP + 1];
    const struct kref key = tied_key(&rng, other);
    const uint32_t wish = (uint32_t)(rng_next(&rng) % 3), how = (uint32_t)(rng_next(&rng) % 5);
    epoch_enter(&m.epoch, &m.slot);
    if (wish && rng_next(&rng) % 2) {  // one that nobody comes for
      const struct kref vain = tied_key(&rng, buf);
      wh_seek_begin(&c, vain, rng_next(&rng) % 2);
      wh_seek_begin_place(&c, vain, rng_next(&rng) % 2);
    }
    if (wish) wh_seek_begin(&c, key, rng_next(&rng) % 2);
    if (wish > 1) wh_seek_begin_place(&c, key, how && how < 3);
    epoch_exit(&m.slot);
    for (uint32_t i = (uint32_t)(rng_next(&rng) % 4); i > 0; i--)
      CHECK(model_put(&m, n % 2 ? tied_key(&rng, buf) : shape_key(RANDOM16, n, &rng, buf), 1, false,
                      rng_next(&rng) % 3 == 0) == REMIXDB_OK);
    int64_t at = model_rank(&m, key);
    const bool there = at < m.nr && kv_eq(model_kref(&m.keys[at]), key);
    int64_t dir = 1;
    epoch_enter(&m.epoch, &m.slot);
    if (how == 0) {
      wh_seek_last(&c);
      at = (int64_t)m.nr - 1;
      dir = -1;
    } else if (how < 3) {
      wh_seek_for_prev(&c, key);
      at -= !there;
      dir = -1;
    } else {
      wh_seek(&c, key);
    }
    epoch_exit(&m.slot);
    for (uint32_t step = 0; step < 8; step++) {
      while (at >= 0 && at < m.nr && !model_seen(&m.keys[at], moment)) at += dir;
      CHECK(wh_valid(&c) == (at >= 0 && at < m.nr));
      if (!wh_valid(&c)) break;
      CHECK(kv_eq(wh_key(&c), model_kref(&m.keys[at])));
      CHECK(ver_matches(c.ver, model_seen(&m.keys[at], moment)));
      if (rng_next(&rng) % 3 == 0) dir = -dir;
      if (dir > 0) wh_next(&c);
      else wh_prev(&c);
      at += dir;
    }
  }
  epoch_exit(&m.stay);
  CHECK_INDEX(m.wh);
  model_verify(&m, m.seq, &rng, 500);
  model_fini(&m);
}

// Leaves in which all pieces are the same: from so many on, keys are sampled. Each count of them, each place, before,
// at and behind each key.
static void test_ties(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  for (uint32_t nr = 1; nr <= WH_LEAF_KEYS; nr++) {
    struct model m;
    model_init(&m);
    uint8_t key[8] = "same", order[WH_LEAF_KEYS];
    for (uint32_t i = 0; i < nr; i++) {
      const uint32_t j = (uint32_t)(rng_next(&rng) % (i + 1));
      order[i] = order[j];
      order[j] = (uint8_t)i;
    }
    struct wh_cursor c;
    for (uint32_t i = 0; i < nr; i++) {
      key[4] = (uint8_t)(order[i] * 2);
      CHECK(model_put(&m, kref(key, 5), 0, false, false) == REMIXDB_OK);
      if (i % 3 == 2) {  // few at a time have no place yet
        wh_cursor_init(&c, m.wh, m.seq);
        epoch_enter(&m.epoch, &m.slot);
        wh_seek(&c, kref("", 0));
        epoch_exit(&m.slot);
        for (uint32_t k = 0; k <= i; k++, wh_next(&c)) CHECK(wh_valid(&c) && kv_eq(wh_key(&c), model_kref(&m.keys[k])));
      }
    }
    wh_cursor_init(&c, m.wh, m.seq);
    epoch_enter(&m.epoch, &m.slot);
    for (uint32_t i = 0; i < 2 * nr; i++) {
      key[4] = (uint8_t)i;
      wh_seek(&c, kref(key, 5));
      CHECK(wh_valid(&c) == (i < 2 * nr - 1));
      if (wh_valid(&c)) CHECK(wh_key(&c).ptr[4] == (i + 1) / 2 * 2);
      wh_seek_for_prev(&c, kref(key, 5));
      CHECK(wh_valid(&c) && wh_key(&c).ptr[4] == (i / 2 < nr ? i / 2 : nr - 1) * 2);
    }
    wh_seek_for_prev(&c, kref(key, 4));
    CHECK(!wh_valid(&c));
    epoch_exit(&m.slot);
    CHECK_INDEX(m.wh);
    model_fini(&m);
  }
}

// An order that somebody is writing, or began to write and left, is neither read nor written by others; and what comes
// in order fills its leaves.
static void test_order_busy(void **state) {
  (void)state;
  struct model m;
  model_init(&m);
  char buf[16];
  const uint32_t nr = 100;
  struct wh_cursor c;
  struct wh_slot s;
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t k = i * 37 % nr;
    CHECK(model_put(&m, kref(buf, (uint32_t)sprintf(buf, "%03u", k)), 0, false, false) == REMIXDB_OK);
    if (i != nr - 5) continue;
    wh_cursor_init(&c, m.wh, m.seq);
    epoch_enter(&m.epoch, &m.slot);
    wh_seek(&c, kref("", 0));
    epoch_exit(&m.slot);
  }
  epoch_enter(&m.epoch, &m.slot);
  wh_lock(m.wh, kref("", 0), key_hash(kref("", 0)), &s);
  struct wh_leaf *const l = s.leaf;
  wh_unlock(&s);
  const uint32_t was = atomic_load(&l->ordered);
  uint64_t words[WH_LEAF_KEYS / 8];
  CHECK((was & WH_ORDER_N) == nr - 4 && !(was & WH_ORDER_BUSY));
  for (uint32_t i = 0; i < WH_LEAF_KEYS / 8; i++) {
    words[i] = atomic_load(&l->order[i]);
    atomic_store(&l->order[i], UINT64_C(0x0101010101010101) * i);
  }
  atomic_store(&l->ordered, was | WH_ORDER_BUSY);
  wh_cursor_init(&c, m.wh, m.seq);
  wh_seek(&c, kref("", 0));
  for (uint32_t i = 0; i < nr; i++, wh_next(&c))
    CHECK(wh_valid(&c) && kv_eq(wh_key(&c), kref(buf, (uint32_t)sprintf(buf, "%03u", i))));
  CHECK(!wh_valid(&c));
  CHECK(atomic_load(&l->ordered) == (was | WH_ORDER_BUSY));
  for (uint32_t i = 0; i < WH_LEAF_KEYS / 8; i++) {
    CHECK(atomic_load(&l->order[i]) == UINT64_C(0x0101010101010101) * i);
    atomic_store(&l->order[i], words[i]);
  }
  atomic_store(&l->ordered, was);
  wh_seek(&c, kref("", 0));
  CHECK((atomic_load(&l->ordered) & (WH_ORDER_N | WH_ORDER_BUSY)) == nr);
  epoch_exit(&m.slot);
  CHECK_INDEX(m.wh);
  model_fini(&m);
}

// A separator is as short as can be (W2): without its last byte it would not be greater than the last key left of it.
// Nothing is removed here, so that stays.
static void test_separators(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  for (uint32_t shape = 0; shape <= SHAPES; shape++) {
    struct model m;
    uint8_t buf[KEY_CAP + 1];
    model_init(&m);
    for (uint32_t i = 0; i < 3000; i++)
      CHECK(model_put(&m, shape < SHAPES ? shape_key((enum shape)shape, i, &rng, buf) : tied_key(&rng, buf), 0, false,
                      false) == REMIXDB_OK);
    epoch_enter(&m.epoch, &m.slot);
    struct wh_slot s;
    wh_lock(m.wh, kref("", 0), key_hash(kref("", 0)), &s);
    wh_unlock(&s);
    for (struct wh_leaf *l = s.leaf, *next; (next = wh_leaf_next(l)) != NULL; l = next) {
      uint8_t order[WH_LEAF_KEYS];
      const uint32_t n = wh_leaf_order(l, order);
      CHECK(n > 0 && next->anchor.len > 0);
      CHECK(kv_cmp(kref(next->anchor.ptr, next->anchor.len - 1), wh_entry_key(wh_leaf_entry(l, order[n - 1]))) <= 0);
    }
    epoch_exit(&m.slot);
    model_fini(&m);
  }
}

// Keys in order fill their leaves, and the leaves know their order; a leaf that a split leaves keeps it, too.
static void test_filled(void **state) {
  (void)state;
  struct model m;
  model_init(&m);
  char buf[16];
  for (uint32_t i = 0; i < 5 * WH_LEAF_KEYS; i++)
    CHECK(model_put(&m, kref(buf, (uint32_t)sprintf(buf, "%08u", i)), 0, false, false) == REMIXDB_OK);
  epoch_enter(&m.epoch, &m.slot);
  for (uint32_t i = 0; i < 5; i++) {
    struct wh_slot s;
    const struct kref key = kref(buf, (uint32_t)sprintf(buf, "%08u", i * WH_LEAF_KEYS));
    wh_lock(m.wh, key, key_hash(key), &s);
    CHECK(atomic_load(&s.leaf->count) == WH_LEAF_KEYS);
    if (i < 4) CHECK((atomic_load(&s.leaf->ordered) & WH_ORDER_N) == WH_LEAF_KEYS);
    CHECK(i == 0 || i == 4 || s.leaf->skip >= 4);
    wh_unlock(&s);
  }
  epoch_exit(&m.slot);
  CHECK_INDEX(m.wh);
  model_fini(&m);
}

#define RACE_ROUNDS (LIB_SANITIZED ? 300u : 6000u)

// One thread fills leaves, others put what it has brought in order, all at once: who finds an order half written, or
// another one at its end, has not read one.
struct race {
  struct epoch epoch;
  struct wh *wh;
  _Atomic uint32_t published, done, broken;
};
static void *race_reader(void *arg) {
  struct race *const r = arg;
  struct epoch_slot es;
  epoch_join(&r->epoch, &es);
  struct wh_cursor c;
  while (!atomic_load(&r->done)) {
    const uint32_t moment = atomic_load_explicit(&r->published, memory_order_acquire);
    epoch_enter(&r->epoch, &es);
    wh_cursor_init(&c, r->wh, moment);
    uint32_t nr = 0;
    uint64_t last = 0;
    for (wh_seek(&c, kref("", 0)); wh_valid(&c); wh_next(&c), nr++) {
      const uint64_t k = load64be(wh_key(&c).ptr);
      if (nr && k <= last) atomic_store(&r->broken, 1);
      last = k;
    }
    if (nr != moment) atomic_store(&r->broken, 2);
    epoch_exit(&es);
  }
  epoch_leave(&r->epoch, &es);
  return NULL;
}
static void test_order_race(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  for (uint32_t round = 0; round < RACE_ROUNDS; round++) {
    struct race *const r = mem_alloc_aligned(CACHE_LINE, align_up(sizeof(*r), CACHE_LINE));
    memset(r, 0, sizeof(*r));
    epoch_init(&r->epoch);
    OK(wh_create(&r->epoch, CHUNK, NULL, &r->wh));
    pthread_t t[3];
    struct epoch_slot es;
    epoch_join(&r->epoch, &es);
    for (uint32_t i = 0; i < 3; i++) OK(thread_start(&t[i], race_reader, r, "wh"));
    for (uint32_t n = 1; n <= 120; n++) {
      uint8_t key[8];
      const uint64_t k = rng_next(&rng) >> (round % 2 ? 0 : 40);
      for (uint32_t b = 0; b < 8; b++) key[b] = (uint8_t)(k >> (56 - 8 * b));
      struct wh_slot s;
      epoch_enter(&r->epoch, &es);
      wh_lock(r->wh, kref(key, 8), hash64(key, 8), &s);
      if (s.entry == NULL) {
        OK(wh_link(&s, "", 0, false));
        wh_stamp(&s, n);
        atomic_store_explicit(&r->published, n, memory_order_release);
      } else {
        n--;
      }
      wh_unlock(&s);
      epoch_exit(&es);
    }
    atomic_store(&r->done, 1);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(pthread_join(t[i], NULL), 0);
    CHECK(!atomic_load(&r->broken));
    CHECK_INDEX(r->wh);
    wh_destroy(r->wh);
    epoch_leave(&r->epoch, &es);
    epoch_fini(&r->epoch);
    mem_free(r);
  }
}

int main(void) {
  const char *const s = getenv("TEST_SEED");
  check_seed = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_empty),        cmocka_unit_test(test_model),        cmocka_unit_test(test_moment),
      cmocka_unit_test(test_recycle),      cmocka_unit_test(test_removal),      cmocka_unit_test(test_growth),
      cmocka_unit_test(test_nomem_create), cmocka_unit_test(test_nomem),        cmocka_unit_test(test_nomem_many),
      cmocka_unit_test(test_many),         cmocka_unit_test(test_guided),       cmocka_unit_test(test_guided_end),
      cmocka_unit_test(test_ties),         cmocka_unit_test(test_filled),       cmocka_unit_test(test_wanted),
      cmocka_unit_test(test_separators),   cmocka_unit_test(test_twins),        cmocka_unit_test(test_order_busy),
      cmocka_unit_test(test_order_race),   cmocka_unit_test(test_merge_locked), cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
