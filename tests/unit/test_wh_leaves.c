// SPDX-License-Identifier: Apache-2.0
//
// The leaves of the index in memory: their order, anchors, splits and merges, with a guide and without, and the
// table of recent keys: gets look at it first.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "tests/lib/wh_model.h"

// ---- order and anchors

// Leaves in which all keys have the same piece; from a number on, keys are sampled. For each number of keys: seeks
// before, at and after each key.
static void test_ties(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  for (uint32_t nr = 1; nr <= WH_LEAF_KEYS; nr++) {
    struct wh_model m;
    wh_model_init(&m);
    uint8_t key[8] = "same", order[WH_LEAF_KEYS];
    for (uint32_t i = 0; i < nr; i++) {
      const uint32_t j = (uint32_t)(rng_next(&rng) % (i + 1));
      order[i] = order[j];
      order[j] = (uint8_t)i;
    }
    struct wh_cursor c;
    for (uint32_t i = 0; i < nr; i++) {
      key[4] = (uint8_t)(order[i] * 2);
      wh_model_have(&m, kref(key, 5), 0);
      if (i % 3 == 2) {  // few at a time have no place yet
        wh_model_cursor(&m, &c, m.seq);
        for (uint32_t k = 0; k <= i; k++, wh_next(&c))
          CHECK(wh_valid(&c) && kv_eq(wh_key(&c), wh_model_kref(&m.keys[k])));
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
    wh_model_fini(&m);
  }
}

// Other threads neither read nor write an order that a thread is writing, or began to write and left.
static void test_order_busy(void **state) {
  (void)state;
  struct wh_model m;
  wh_model_init(&m);
  char buf[16];
  const uint32_t nr = 100;
  struct wh_cursor c;
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t k = i * 37 % nr;
    wh_model_have(&m, digits_key(buf, 3, k), 0);
    if (i != nr - 5) continue;
    wh_model_cursor(&m, &c, m.seq);
  }
  epoch_enter(&m.epoch, &m.slot);
  struct wh_leaf *const l = wh_model_leaf(&m, kref("", 0));
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
  for (uint32_t i = 0; i < nr; i++, wh_next(&c)) CHECK(wh_valid(&c) && kv_eq(wh_key(&c), digits_key(buf, 3, i)));
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
  wh_model_fini(&m);
}

// A separator is as short as can be (W2): without its last byte it would not be greater than the last key to its left.
// Nothing is removed here, so this stays true.
static void test_separators(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  for (uint32_t shape = 0; shape <= SHAPES; shape++) {
    struct wh_model m;
    uint8_t buf[KEY_CAP + 1];
    wh_model_init(&m);
    for (uint32_t i = 0; i < 3000; i++)
      CHECK(wh_model_put(&m, shape < SHAPES ? shape_key((enum shape)shape, i, &rng, buf) : tied_key(&rng, buf), 0,
                         false, false) == REMIXDB_OK);
    epoch_enter(&m.epoch, &m.slot);
    for (struct wh_leaf *l = wh_model_leaf(&m, kref("", 0)), *next; (next = wh_leaf_next(l)) != NULL; l = next) {
      uint8_t order[WH_LEAF_KEYS];
      const uint32_t n = wh_leaf_order(l, order);
      CHECK(n > 0 && next->anchor.len > 0);
      CHECK(kv_cmp(kref(next->anchor.ptr, next->anchor.len - 1), wh_entry_key(wh_leaf_entry(l, order[n - 1]))) <= 0);
    }
    epoch_exit(&m.slot);
    wh_model_fini(&m);
  }
}

// Keys in order fill their leaves, and the leaves know their order. A leaf keeps its order through a split.
static void test_filled(void **state) {
  (void)state;
  struct wh_model m;
  wh_model_init(&m);
  char buf[16];
  for (uint32_t i = 0; i < 5 * WH_LEAF_KEYS; i++) wh_model_have(&m, digits_key(buf, 8, i), 0);
  epoch_enter(&m.epoch, &m.slot);
  for (uint32_t i = 0; i < 5; i++) {
    const struct wh_leaf *const l = wh_model_leaf(&m, digits_key(buf, 8, i * WH_LEAF_KEYS));
    CHECK(atomic_load(&l->count) == WH_LEAF_KEYS);
    if (i < 4) CHECK((atomic_load(&l->ordered) & WH_ORDER_N) == WH_LEAF_KEYS);
    CHECK(i == 0 || i == 4 || l->skip >= 4);
  }
  epoch_exit(&m.slot);
  CHECK_INDEX(m.wh);
  wh_model_fini(&m);
}

// ---- removal

#define PENDING 700u

// Pending versions of keys that only the index has.
struct pending {
  uint8_t key[KEY_CAP];
  uint32_t len;
  struct wh_ver *ver;
};

static bool is_pending(const struct pending *p, uint32_t nr, struct kref key) {
  for (uint32_t i = 0; i < nr; i++)
    if (kv_eq(kref(p[i].key, p[i].len), key)) return true;
  return false;
}

// Links a pending version of the key, which lies in p. Returns whether the key was new.
static bool pend(struct wh_model *m, struct pending *p, struct kref key) {
  struct wh_slot s;
  epoch_enter(&m->epoch, &m->slot);
  wh_lock(m->wh, key, key_hash(key), &s);
  const bool fresh = s.entry == NULL;
  if (fresh) {
    OK(wh_link(&s, KV_REC(kref(NULL, 0), "x", 1, false)));
    p->ver = s.ver;
    p->len = key.len;
  }
  wh_unlock(&s);
  epoch_exit(&m->slot);
  return fresh;
}

static void take_back(struct wh_model *m, const struct pending *p) {
  const struct kref key = kref(p->key, p->len);
  struct wh_slot s;
  epoch_enter(&m->epoch, &m->slot);
  wh_lock(m->wh, key, key_hash(key), &s);
  CHECK(s.entry != NULL);
  s.ver = p->ver;
  wh_unlink(&s);
  CHECK(s.entry == NULL && s.ver == NULL);
  wh_unlock(&s);
  epoch_exit(&m->slot);
  epoch_enter(&m->epoch, &m->slot);
  wh_lock(m->wh, key, key_hash(key), &s);
  CHECK(s.entry == NULL);
  wh_unlock(&s);
  epoch_exit(&m->slot);
}

// Keys of the shape, most of them pending, are taken back in any order.
static void pend_and_take_back(struct wh_model *m, enum shape shape, uint64_t from, uint64_t *rng) {
  struct pending *const p = calloc(PENDING, sizeof(*p));
  uint32_t nr = 0;
  for (uint64_t n = 0; n < PENDING; n++) {
    const struct kref key = shape_key(shape, from + n, rng, p[nr].key);
    if (rng_next(rng) % 40) {
      nr += pend(m, &p[nr], key);
      continue;
    }
    const uint32_t at = wh_model_rank(m, key);
    const bool there = at < m->nr && kv_eq(wh_model_kref(&m->keys[at]), key);
    if (!there && !is_pending(p, nr, key)) wh_model_have(m, key, 4);
  }
  CHECK(wh_count(m->wh) == m->nr + nr);
  CHECK_INDEX(m->wh);
  wh_model_verify(m, WH_PENDING - 1, rng, 10);
  while (nr) {
    const uint32_t i = (uint32_t)(rng_next(rng) % nr);
    take_back(m, &p[i]);
    p[i] = p[--nr];
    if (nr % 64) continue;
    CHECK_INDEX(m->wh);
    wh_model_verify(m, WH_PENDING - 1, rng, 10);
  }
  CHECK(wh_count(m->wh) == m->nr);
  free(p);
}

// Pending keys fill many leaves and are taken back, beside a few that stay: leaves shrink and merge, nodes of the trie
// go.
static void test_removal(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  for (enum shape shape = 0; shape < SHAPES; shape++) {
    struct wh_model m;
    wh_model_init(&m);
    for (uint32_t round = 0; round < 2; round++) pend_and_take_back(&m, shape, round * PENDING, &rng);
    wh_model_fini(&m);
  }
}

// A leaf whose left neighbour is locked must neither merge with it nor wait for it. When the neighbour is free they
// merge. Keys 71 to 200 come in falling order: one split, somewhere between 120 and 154.
static void test_merge_locked(void **state) {
  (void)state;
  struct wh_model m;
  wh_model_init(&m);
  struct wh_ver *ver[201] = {NULL};
  char key[16];
  struct wh_slot s, held;
  epoch_enter(&m.epoch, &m.slot);
  for (uint32_t k = 200; k > 70; k--) {
    const struct kref ref = digits_key(key, 3, k);
    wh_lock(m.wh, ref, key_hash(ref), &s);
    OK(wh_link(&s, KV_REC(kref(NULL, 0), "", 0, false)));
    ver[k] = s.ver;
    wh_unlock(&s);
  }
  const struct kref held_key = kref("071x", 4);
  for (uint32_t k = 71; k <= 200; k++) {
    if (k == 116) {
      k = 160;
      wh_lock(m.wh, held_key, key_hash(held_key), &held);
    }
    if (k == 200) {  // the rest has fitted into half a leaf for long
      CHECK_INDEX(m.wh);
      OK(wh_link(&held, KV_REC(kref(NULL, 0), "y", 1, false)));
      wh_stamp(&held, ++m.seq);
      wh_unlock(&held);
      CHECK(wh_get(m.wh, held_key, key_hash(held_key), m.seq) == held.ver);
      CHECK_INDEX(m.wh);
    }
    const struct kref ref = digits_key(key, 3, k);
    wh_lock(m.wh, ref, key_hash(ref), &s);
    if (k == 200) CHECK(s.leaf != held.leaf);
    s.ver = ver[k];
    wh_unlink(&s);
    wh_unlock(&s);
  }
  CHECK_INDEX(m.wh);
  CHECK(wh_get(m.wh, held_key, key_hash(held_key), m.seq) == held.ver);
  CHECK(wh_model_leaf(&m, held_key) == wh_model_leaf(&m, kref("200", 3)));
  epoch_exit(&m.slot);
  CHECK(wh_count(m.wh) == 1 + 159 - 115);
  wh_model_fini(&m);
}

// ---- with a guide, which takes 32 leaves: wh_check finds a leaf that was not handed over to it

#define GUIDED_KEYS 9600u
#define GUIDED_GROUP 100u

struct guided {
  struct wh_model m;
  struct wh_ver *vers[GUIDED_KEYS];  // pending ones
  uint16_t turn[GUIDED_KEYS];
};

static struct guided *guided_create(void) {
  struct guided *const g = calloc(1, sizeof(*g));
  wh_model_init(&g->m);
  for (uint32_t i = 0; i < GUIDED_KEYS; i++) g->turn[i] = (uint16_t)i;
  return g;
}

static void guided_destroy(struct guided *g) {
  CHECK(wh_count(g->m.wh) == g->m.nr);
  wh_model_fini(&g->m);
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

// Links pending versions of the keys from `from` on, in turn, or takes them back. Keys of two groups differ early, so
// leaves are cut between groups again and again.
static void guided_pass(struct guided *g, uint32_t from, bool take_back) {
  struct wh_model *const m = &g->m;
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
      OK(wh_link(&s, KV_REC(kref(NULL, 0), "", 0, false)));
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
    wh_model_have(&g->m, key, 3);
  }
  for (uint32_t round = 0; round < 3; round++) {
    guided_pass(g, 0, false);
    guided_shuffle(g, &rng);
    wh_model_verify(&g->m, WH_PENDING - 1, &rng, 20);
    guided_pass(g, 0, true);
    wh_model_verify(&g->m, WH_PENDING - 1, &rng, 20);
  }
  guided_destroy(g);
}

// Leaves are added after the last one, taken away, and added again where they were.
static void test_guided_end(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct guided *const g = guided_create();
  guided_pass(g, 0, false);
  for (uint32_t round = 0; round < 2; round++) {
    guided_pass(g, GUIDED_KEYS / 2, true);
    guided_pass(g, GUIDED_KEYS / 2, false);
  }
  wh_model_verify(&g->m, WH_PENDING - 1, &rng, 0);
  guided_pass(g, 0, true);
  guided_destroy(g);
}

// ---- recent keys

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

// Counts of finds in `recent` for the keys of pairs.
struct found {
  uint32_t entries, vers;
};

// Gets of the key at two moments. The newest put, unless it was taken back, was of `newest`.
static void get_twin(struct wh_model *m, struct kref key, const struct kref *newest, struct found *found,
                     uint64_t *rng) {
  epoch_enter(&m->epoch, &m->slot);
  const struct wh_begun w = wh_get_begin(m->wh, key, key_hash(key));
  CHECK(w.recent != NULL && w.leaf == NULL);
  const bool is_ver = wh_recent_is_ver(w.recent);
  if (newest) CHECK(kv_eq(is_ver ? wh_ver_key(w.recent) : wh_entry_key(w.recent), *newest));
  found->vers += is_ver;
  found->entries += !is_ver;
  const uint64_t moments[] = {m->seq, m->seq - rng_next(rng) % 8};
  for (uint32_t i = 0; i < 2; i++)
    CHECK(ver_matches(wh_get_end(m->wh, w, key, key_hash(key), moments[i]), wh_model_get(m, key, moments[i])));
  epoch_exit(&m->slot);
}

// Puts of the two keys, in turn, some of them taken back, with gets of both after each.
static void put_twins(struct wh_model *m, const struct kref key[2], struct found *found, uint64_t *rng) {
  for (uint32_t n = 0; n < 12; n++) {
    const uint32_t k = n == 0 ? 0 : (uint32_t)(rng_next(rng) % 2);
    const bool back = n > 0 && rng_next(rng) % 3 == 0;
    OK(wh_model_put(m, key[k], n, n % 5 == 4, back));
    for (uint32_t j = 0; j < 2; j++) get_twin(m, key[j], back ? NULL : &key[k], found, rng);
  }
}

// Pairs of keys of the length that lead to the same word of `recent` and have the same tag: only the keys tell them
// apart.
static void twins(uint32_t klen) {
  enum { NR = 400000 };
  uint64_t rng = check_seed;
  uint8_t bufs[2][KEY_CAP];
  struct twin *const t = malloc(NR * sizeof(*t));
  struct wh_model m;
  wh_model_init(&m);
  for (uint32_t i = 0; i < NR; i++) {
    const uint64_t h = key_hash(twin_key(i, klen, bufs[0]));
    t[i] = (struct twin){h >> 48 << 32 | (uint64_t)(uint32_t)h * m.wh->nr_recent >> 32, i};
  }
  qsort(t, NR, sizeof(*t), twin_cmp);
  uint32_t pairs = 0, zeros = 0;
  struct found found = {0, 0};
  epoch_enter(&m.epoch, &m.slot);
  for (uint32_t i = 0; i < NR; i++) {  // a tag of zeros, where there is no entry
    if (t[i].way >> 32) break;
    const struct kref key = twin_key(t[i].number, klen, bufs[0]);
    CHECK(wh_get(m.wh, key, key_hash(key), WH_PENDING - 1) == NULL);
    zeros++;
  }
  epoch_exit(&m.slot);
  CHECK(zeros > 0);
  wh_model_have(&m, kref("a", 1), 1);
  epoch_enter(&m.epoch, &m.slot);  // with few keys gets go to the leaf at once
  const struct wh_begun few = wh_get_begin(m.wh, kref("a", 1), hash64("a", 1));
  CHECK(few.leaf != NULL && few.recent == NULL);
  epoch_exit(&m.slot);
  // as many keys as an index must have before its gets look there; none of them is one of a pair's
  for (uint32_t i = NR; atomic_load(&m.wh->guide) == NULL; i++) {
    wh_model_have(&m, twin_key(i, klen, bufs[0]), 1);
  }
  for (uint32_t i = 1; i < NR; i++) {
    if (t[i].way != t[i - 1].way) continue;
    const struct kref key[2] = {twin_key(t[i - 1].number, klen, bufs[0]), twin_key(t[i].number, klen, bufs[1])};
    pairs++;
    put_twins(&m, key, &found, &rng);
    if (pairs % 16 == 0) CHECK_INDEX(m.wh);
  }
  CHECK(pairs > 5 && found.entries > pairs);
  CHECK(klen <= WH_VER_KEY_MAX ? found.vers > pairs : found.vers == 0);
  CHECK(wh_count(m.wh) == m.nr);
  CHECK_INDEX(m.wh);
  wh_model_verify(&m, m.seq, &rng, 50);
  wh_model_fini(&m);
  free(t);
}

static void test_twins(void **state) {
  (void)state;
  twins(4);
  twins(11);
  twins(WH_VER_KEY_MAX);
  twins(WH_VER_KEY_MAX + 1);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ties),       cmocka_unit_test(test_filled),     cmocka_unit_test(test_separators),
      cmocka_unit_test(test_order_busy), cmocka_unit_test(test_removal),    cmocka_unit_test(test_merge_locked),
      cmocka_unit_test(test_guided),     cmocka_unit_test(test_guided_end), cmocka_unit_test(test_twins),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
