// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/wh_model.h"

void check_index(const struct wh *wh, int line) {
  char why[256];
  if (!wh_check(wh, why, sizeof(why)))
    fail_msg("TEST_SEED=%llu line %d: %s", (unsigned long long)check_seed, line, why);
}

// ---- the model

void wh_model_init(struct wh_model *m) {
  memset(m, 0, sizeof(*m));
  epoch_init(&m->epoch);
  epoch_init(&m->cursors);
  epoch_join(&m->epoch, &m->slot);
  epoch_join(&m->cursors, &m->stay);
  CHECK(wh_create(&m->epoch, CHUNK, NULL, &m->wh) == REMIXDB_OK);
  wh_recycle(m->wh, &m->cursors);
}

void wh_model_fini(struct wh_model *m) {
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

uint32_t wh_model_rank(const struct wh_model *m, struct kref key) {
  uint32_t lo = 0, hi = m->nr;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (kv_cmp(kref(m->keys[mid].key, m->keys[mid].len), key) < 0) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

void wh_model_add(struct wh_model *m, struct kref key, uint64_t seq, uint32_t vlen, bool tomb) {
  const uint32_t i = wh_model_rank(m, key);
  if (i == m->nr || !kv_eq(wh_model_kref(&m->keys[i]), key)) {
    if (m->nr == m->cap) {
      m->cap = m->cap ? 2 * m->cap : 64;
      m->keys = realloc(m->keys, m->cap * sizeof(*m->keys));
    }
    memmove(m->keys + i + 1, m->keys + i, (m->nr - i) * sizeof(*m->keys));
    m->nr++;
    m->keys[i] = (struct wh_model_key){.key = malloc(key.len ? key.len : 1), .len = key.len};
    if (key.len) memcpy(m->keys[i].key, key.ptr, key.len);
  }
  struct wh_model_key *k = &m->keys[i];
  if (k->nr == k->cap) {
    k->cap = k->cap ? 2 * k->cap : 2;
    k->ver = realloc(k->ver, k->cap * sizeof(*k->ver));
  }
  k->ver[k->nr++] = (struct wh_model_ver){seq, vlen, tomb};
}

const struct wh_model_ver *wh_model_seen(const struct wh_model_key *k, uint64_t moment) {
  for (uint32_t i = k->nr; i > 0; i--)
    if (k->ver[i - 1].seq <= moment) return &k->ver[i - 1];
  return NULL;
}

const struct wh_model_ver *wh_model_get(const struct wh_model *m, struct kref key, uint64_t moment) {
  const uint32_t at = wh_model_rank(m, key);
  const bool there = at < m->nr && kv_eq(wh_model_kref(&m->keys[at]), key);
  return there ? wh_model_seen(&m->keys[at], moment) : NULL;
}

bool ver_matches(const struct wh_ver *v, const struct wh_model_ver *want) {
  if (v == NULL || want == NULL) return v == NULL && want == NULL;
  if (wh_ver_seq(v) != want->seq || wh_ver_tomb(v) != want->tomb || v->vlen != want->vlen) return false;
  for (uint32_t i = 0; i < v->vlen; i++)
    if (v->val[i] != (uint8_t)want->seq) return false;
  return true;
}

enum remixdb_status wh_model_put(struct wh_model *m, struct kref key, uint32_t vlen, bool tomb, bool take_back) {
  uint8_t *val = malloc(vlen ? vlen : 1);
  memset(val, (uint8_t)(m->seq + 1), vlen);
  struct wh_slot s;
  epoch_enter(&m->epoch, &m->slot);
  wh_lock(m->wh, key, key_hash(key), &s);
  const struct wh_ver *before = wh_slot_newest(&s);
  const enum remixdb_status linked = wh_link(&s, KV_REC(kref(NULL, 0), val, vlen, tomb));
  free(val);
  if (linked == REMIXDB_OK) {
    CHECK(wh_slot_newest(&s) == before);  // pending is not committed
    CHECK(wh_get(m->wh, key, key_hash(key), m->seq) == before);
    CHECK(wh_get(m->wh, key, key_hash(key), WH_PENDING - 1) == before);
    if (take_back) {
      wh_unlink(&s);
      CHECK(wh_slot_newest(&s) == before);
    } else {
      wh_stamp(&s, ++m->seq);
      CHECK(wh_slot_newest(&s) == s.ver);
      wh_model_add(m, key, m->seq, vlen, tomb);
    }
  } else {
    CHECK(wh_slot_newest(&s) == before);
  }
  wh_unlock(&s);
  epoch_exit(&m->slot);
  return linked;
}

void wh_model_have(struct wh_model *m, struct kref key, uint32_t vlen) { OK(wh_model_put(m, key, vlen, false, false)); }

struct wh_leaf *wh_model_leaf(struct wh_model *m, struct kref key) {
  struct wh_slot s;
  wh_lock(m->wh, key, key_hash(key), &s);
  struct wh_leaf *const l = s.leaf;
  wh_unlock(&s);
  return l;
}

// ---- everything that can be asked

// Gets of many keys together: every step-th of the model's from `from` on, and keys beside them.
static void wh_model_verify_many(struct wh_model *m, uint64_t moment, uint32_t from, uint32_t step) {
  struct kref keys[WH_GROUP_MAX];
  uint64_t hashes[WH_GROUP_MAX];
  const struct wh_ver *vers[WH_GROUP_MAX];
  uint8_t which[WH_GROUP_MAX], buf[WH_GROUP_MAX][KEY_CAP + 1];
  uint32_t nr = 0;
  for (uint32_t i = from; i < m->nr; i += step) {
    const uint32_t k = WH_GROUP_MAX - 1 - nr;
    const struct wh_model_key *const of = &m->keys[i];
    memcpy(buf[k], of->key, of->len);
    buf[k][of->len] = 0;
    keys[k] = kref(buf[k], of->len + (i % 5 == 0));
    hashes[k] = key_hash(keys[k]);
    vers[k] = (const struct wh_ver *)(const void *)m;  // to be written over
    which[nr++] = (uint8_t)k;
    if (nr < WH_GROUP_MAX && i + step < m->nr) continue;
    epoch_enter(&m->epoch, &m->slot);
    wh_get_many(m->wh, keys, hashes, which, nr, moment, vers);
    epoch_exit(&m->slot);
    for (uint32_t w = 0; w < nr; w++) {
      const uint32_t n = which[w];
      CHECK(ver_matches(vers[n], wh_model_get(m, keys[n], moment)));
    }
    nr = 0;
  }
}

void wh_model_cursor(struct wh_model *m, struct wh_cursor *c, uint64_t moment) {
  wh_cursor_init(c, m->wh, moment);
  epoch_enter(&m->epoch, &m->slot);
  wh_seek(c, kref("", 0));
  epoch_exit(&m->slot);
}

// From the first key to the last, with a get of each.
static void wh_model_verify_forward(struct wh_model *m, uint64_t moment) {
  struct wh_cursor c;
  wh_cursor_init(&c, m->wh, moment);
  CHECK(!wh_valid(&c));
  wh_model_cursor(m, &c, moment);
  for (uint32_t i = 0; i < m->nr; i++) {
    const struct wh_model_ver *want = wh_model_seen(&m->keys[i], moment);
    const struct kref key = wh_model_kref(&m->keys[i]);
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
}

void wh_model_walk(struct wh_model *m, struct wh_cursor *c, int64_t at, int64_t dir, uint32_t steps, uint32_t turn,
                   uint64_t *rng) {
  for (uint32_t step = 0; step < steps; step++) {
    while (at >= 0 && at < m->nr && !wh_model_seen(&m->keys[at], c->moment)) at += dir;
    CHECK(wh_valid(c) == (at >= 0 && at < m->nr));
    if (!wh_valid(c)) return;
    CHECK(kv_eq(wh_key(c), wh_model_kref(&m->keys[at])));
    CHECK(ver_matches(c->ver, wh_model_seen(&m->keys[at], c->moment)));
    if (turn && rng_next(rng) % turn == 0) dir = -dir;
    if (dir > 0) wh_next(c);
    else wh_prev(c);
    at += dir;
  }
}

static void wh_model_verify_backward(struct wh_model *m, uint64_t moment) {
  struct wh_cursor c;
  wh_cursor_init(&c, m->wh, moment);
  epoch_enter(&m->epoch, &m->slot);
  wh_seek_last(&c);
  epoch_exit(&m->slot);
  wh_model_walk(m, &c, (int64_t)m->nr - 1, -1, m->nr + 1, 0, NULL);
  CHECK(!wh_valid(&c));
}

// A key of the model, unchanged or changed a little, in buf.
static struct kref wh_model_near(const struct wh_model *m, uint8_t buf[KEY_CAP + 1], uint64_t *rng) {
  const struct wh_model_key *k = &m->keys[rng_next(rng) % m->nr];
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
  return kref(buf, len);
}

void wh_model_verify(struct wh_model *m, uint64_t moment, uint64_t *rng, uint32_t seeks) {
  wh_model_verify_forward(m, moment);
  wh_model_verify_backward(m, moment);
  wh_model_verify_many(m, moment, 0, 1);
  wh_model_verify_many(m, moment, 3, 1 + (uint32_t)(rng_next(rng) % 50));
  struct wh_cursor c;
  wh_cursor_init(&c, m->wh, moment);
  for (uint32_t n = 0; n < seeks && m->nr; n++) {
    uint8_t buf[KEY_CAP + 1];
    const struct kref key = wh_model_near(m, buf, rng);
    const uint32_t at = wh_model_rank(m, key);
    const bool there = at < m->nr && kv_eq(wh_model_kref(&m->keys[at]), key);
    const bool back = rng_next(rng) % 2;
    epoch_enter(&m->epoch, &m->slot);
    CHECK(ver_matches(wh_get(m->wh, key, key_hash(key), moment), wh_model_get(m, key, moment)));
    if (back) wh_seek_for_prev(&c, key);
    else wh_seek(&c, key);
    epoch_exit(&m->slot);
    wh_model_walk(m, &c, (int64_t)at - (back && !there), back ? -1 : 1, 12, 4, rng);
  }
}

// ---- keys

struct kref shape_key(enum shape shape, uint64_t n, uint64_t *rng, uint8_t *buf) {
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

struct kref digits_key(char *buf, int digits, uint32_t number) {
  return kref(buf, (uint32_t)sprintf(buf, "%0*u", digits, number));
}

struct kref tied_key(uint64_t *rng, uint8_t *buf) {
  uint32_t len = (uint32_t)(rng_next(rng) % 3) * 5;
  memset(buf, 't', len);
  if (len) buf[len - 1] = (uint8_t)('a' + rng_next(rng) % 2);
  const uint32_t zeros = (uint32_t)(rng_next(rng) % 8), ends = (uint32_t)(rng_next(rng) % 8);
  memset(buf + len, 0, zeros);
  len += zeros;
  for (uint32_t i = 0; i < ends; i++) buf[len++] = (uint8_t)(rng_next(rng) % 3 * 127);
  return kref(buf, len);
}

int kref_order(const void *a, const void *b) { return kv_cmp(*(const struct kref *)a, *(const struct kref *)b); }

// ---- many keys as one

void many_make(struct many *b, const struct wh_model *m, enum shape shape, uint32_t nr, uint64_t *rng) {
  const uint64_t from = m->nr + rng_next(rng) % 50;
  for (uint32_t i = 0; i < nr; i++) {
    const bool old = m->nr && rng_next(rng) % 3 == 0;
    b->keys[i] = old ? wh_model_kref(&m->keys[rng_next(rng) % m->nr]) : shape_key(shape, from + i, rng, b->bytes[i]);
    b->tomb[i] = rng_next(rng) % 8 == 0;
    b->vlen[i] = b->tomb[i] ? 0 : (uint32_t)(rng_next(rng) % 60);
  }
  qsort(b->keys, nr, sizeof(b->keys[0]), kref_order);
  b->nr = 0;
  for (uint32_t i = 0; i < nr; i++)
    if (b->nr == 0 || !kv_eq(b->keys[b->nr - 1], b->keys[i])) b->keys[b->nr++] = b->keys[i];
  b->from = b->to = kref(NULL, 0);
  if (rng_next(rng) % 2) return;
  b->from = shape_key(shape, rng_next(rng) % (from + 50), rng, b->bytes[MANY_MAX]);
  if (rng_next(rng) % 4 == 0) b->from = kref("", 0);
  if (rng_next(rng) % 4) b->to = shape_key(shape, rng_next(rng) % (from + 50), rng, b->bytes[MANY_MAX + 1]);
}

static bool in_range(const struct many *b, struct kref key) {
  return b->from.ptr && kv_cmp(key, b->from) >= 0 && (!b->to.ptr || kv_cmp(key, b->to) < 0);
}

static enum remixdb_status note_deleted(void *arg, const struct wh_link *l) {
  struct many *const b = arg;
  if (b->nr_deleted == b->cap_deleted) {
    const uint32_t cap = b->cap_deleted ? 2 * b->cap_deleted : 64;
    struct wh_link *const grown = mem_realloc(b->deleted, cap * sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    b->deleted = grown;
    b->cap_deleted = cap;
  }
  b->deleted[b->nr_deleted++] = *l;
  return REMIXDB_OK;
}

// Deletes the part of the range between two of the keys: at or after key i - 1, and before key i.
static enum remixdb_status delete_before(struct wh_many *w, struct many *b, uint32_t i) {
  struct kref from = b->from, to = b->to;
  if (!from.ptr || (to.ptr && kv_cmp(from, to) >= 0)) return REMIXDB_OK;
  if (i > 0 && kv_cmp(b->keys[i - 1], from) > 0) from = b->keys[i - 1];
  if (i < b->nr && (!to.ptr || kv_cmp(b->keys[i], to) < 0)) to = b->keys[i];
  return to.ptr && kv_cmp(from, to) >= 0 ? REMIXDB_OK : wh_many_delete(w, from, to, note_deleted, b);
}

// The tombstones are of the keys that are to be deleted, and of no other, in order.
static void check_deleted(const struct wh_model *m, const struct many *b) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < m->nr; k++) {
    const struct kref key = wh_model_kref(&m->keys[k]);
    const struct wh_model_ver *const newest = wh_model_get(m, key, WH_PENDING - 1);
    bool own = false;
    for (uint32_t i = 0; i < b->nr && !own; i++) own = kv_eq(b->keys[i], key);
    if (!in_range(b, key) || own || !newest || newest->tomb) continue;
    CHECK(n < b->nr_deleted && kv_eq(kref(b->deleted[n].entry->key, b->deleted[n].entry->klen), key));
    n++;
  }
  CHECK(n == b->nr_deleted);
}

static void many_commit(struct wh_model *m, const struct many *b) {
  for (uint32_t i = 0; i < b->nr; i++) {
    wh_link_stamp(&b->links[i], ++m->seq);
    wh_model_add(m, b->keys[i], m->seq, b->vlen[i], b->tomb[i]);
  }
  m->seq += b->nr_deleted != 0;  // one number for all
  for (uint32_t i = 0; i < b->nr_deleted; i++) {
    wh_link_stamp(&b->deleted[i], m->seq);
    wh_model_add(m, kref(b->deleted[i].entry->key, b->deleted[i].entry->klen), m->seq, 0, true);
  }
}

// The newest committed version, whatever the group has linked.
static enum remixdb_status get_locked(const struct wh_model *m, struct wh_many *w, struct kref key) {
  const struct wh_ver *newest;
  const enum remixdb_status s = wh_many_get(w, key, key_hash(key), &newest);
  CHECK(s == REMIXDB_OK ? ver_matches(newest, wh_model_get(m, key, WH_PENDING - 1)) : !newest);
  return s;
}

enum remixdb_status many_put(struct wh_model *m, struct many *b, bool take_back) {
  uint8_t val[64];
  struct wh_many w;
  enum remixdb_status s = REMIXDB_OK;
  uint32_t linked = 0;
  b->nr_deleted = 0;
  epoch_enter(&m->epoch, &m->slot);
  wh_many_init(&w, m->wh);
  for (; linked < b->nr && s == REMIXDB_OK; linked += s == REMIXDB_OK) {
    memset(val, (uint8_t)(m->seq + 1 + linked), sizeof(val));
    if (linked % 3 == 1 && (s = get_locked(m, &w, b->keys[linked - 1])) != REMIXDB_OK) break;
    if ((s = delete_before(&w, b, linked)) != REMIXDB_OK) break;
    if (linked % 2 && (s = get_locked(m, &w, b->keys[linked])) != REMIXDB_OK) break;
    s = wh_many_link(&w, KV_REC(b->keys[linked], val, b->vlen[linked], b->tomb[linked]), key_hash(b->keys[linked]),
                     &b->links[linked]);
  }
  if (s == REMIXDB_OK) s = delete_before(&w, b, b->nr);
  if (s == REMIXDB_OK) check_deleted(m, b);
  // a pending version is not seen, also when nodes move meanwhile
  for (uint32_t i = 0; i < b->nr; i += 1 + b->nr / 20) {
    CHECK(ver_matches(wh_get(m->wh, b->keys[i], key_hash(b->keys[i]), WH_PENDING - 1),
                      wh_model_get(m, b->keys[i], WH_PENDING - 1)));
  }
  if (s != REMIXDB_OK || take_back) {
    while (linked) wh_many_unlink(&w, &b->links[--linked]);
    while (b->nr_deleted) wh_many_unlink(&w, &b->deleted[--b->nr_deleted]);
  } else {
    many_commit(m, b);
  }
  wh_many_unlock(&w);
  epoch_exit(&m->slot);
  return s;
}

void many_free(struct many *b) {
  mem_free(b->deleted);
  free(b);
}
