// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/store_model.h"

#include "tests/lib/expect.h"

int key_cmp(const void *a, const void *b) {
  const struct key *const x = a, *const y = b;
  return kv_cmp(kref(x->ptr, x->len), kref(y->ptr, y->len));
}

// Keys of every kind: empty, zeros, 0xff, chains of prefixes, long shared beginnings, random bytes, texts, a few very
// long.
static uint32_t key_make(uint64_t *rng, uint8_t *buf, uint32_t i) {
  uint32_t len;
  switch (rng_next(rng) % 8) {
    case 0:
      len = (uint32_t)(rng_next(rng) % 40);
      memset(buf, rng_next(rng) % 2 ? 0 : 0xff, len);
      if (len) buf[rng_next(rng) % len] = (uint8_t)rng_next(rng);
      return len;
    case 1:
      len = (uint32_t)(rng_next(rng) % 300);
      for (uint32_t k = 0; k < len; k++) buf[k] = (uint8_t)('a' + (k >> 5));
      return len;
    case 2:
      len = 200 + (uint32_t)(rng_next(rng) % 8);
      memset(buf, 'p', len);
      for (uint32_t k = 196; k < len; k++) buf[k] = (uint8_t)(rng_next(rng) % 3);
      return len;
    case 3:
      len = 1 + (uint32_t)(rng_next(rng) % 12);
      for (uint32_t k = 0; k < len; k++) buf[k] = (uint8_t)rng_next(rng);
      return len;
    case 4:
      if (rng_next(rng) % 50)
        return (uint32_t)snprintf((char *)buf, 32, "user%08u", (uint32_t)(rng_next(rng) % 1000000));
      len = 1000 + (uint32_t)(rng_next(rng) % 3000);
      for (uint32_t k = 0; k < len; k++) buf[k] = (uint8_t)('q' + (k == len - 1));
      return len;
    default: return (uint32_t)snprintf((char *)buf, 32, "%c/%06u", (int)('a' + rng_next(rng) % 20), i);
  }
}

void model_init(struct model *m, uint32_t nr, uint32_t val_max) {
  memset(m, 0, sizeof(*m));
  m->rng = check_seed;
  m->val_max = val_max;
  m->keys = calloc(nr, sizeof(*m->keys));
  m->buf = malloc(REMIXDB_KV_MAX);
  m->want = malloc(REMIXDB_KV_MAX);
  CHECK(m->keys && m->buf && m->want);
  for (uint32_t i = 0; i < nr; i++) {
    struct key *const k = &m->keys[i];
    k->len = i ? key_make(&m->rng, m->buf, i) : 0;  // the empty key is always one of them
    k->ptr = malloc(k->len + 1);
    CHECK(k->ptr);
    memcpy(k->ptr, m->buf, k->len);
  }
  qsort(m->keys, nr, sizeof(*m->keys), key_cmp);
  for (uint32_t i = 0; i < nr; i++) {
    if (m->nr && key_cmp(&m->keys[m->nr - 1], &m->keys[i]) == 0) free(m->keys[i].ptr);
    else m->keys[m->nr++] = m->keys[i];
  }
  m->now = calloc(m->nr, sizeof(*m->now));
  CHECK(m->now);
}

void model_fini(struct model *m) {
  for (uint32_t i = 0; i < m->nr; i++) free(m->keys[i].ptr);
  free(m->keys);
  free(m->now);
  free(m->buf);
  free(m->want);
}

void model_open(struct model *m) {
  expect_reads(rng_next(&m->rng));
  m->xdb = remixdb_open_opts(dir, &m->opts);
  CHECK(m->xdb);
  m->ref = remixdb_ref(m->xdb);
  CHECK(m->ref);
}

void model_close(struct model *m) {
  for (uint32_t i = 0; i < CURSORS; i++) cursor_drop(&m->cursors[i]);
  remixdb_unref(m->ref);
  remixdb_close(m->xdb);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  m->xdb = NULL;
  m->ref = NULL;
}

// Half of the values can be compressed, and most of the largest ones.
void value_fill(uint8_t *p, uint32_t i, struct now n) {
  uint64_t rng = (uint64_t)i << 32 | n.ver;
  const bool dull = rng_next(&rng) % (n.len > 40000 ? 8 : 2) != 0;
  uint64_t word = rng;
  for (uint32_t at = 0; at < n.len; at += 8) {
    if (!dull) word = rng_next(&rng);
    memcpy(p + at, &word, n.len - at < 8 ? n.len - at : 8);
  }
}

bool value_good(struct model *m, uint32_t i, struct now n, const uint8_t *val, uint32_t len) {
  if (len != n.len) return false;
  value_fill(m->want, i, n);
  return memcmp(m->want, val, len) == 0;
}

// Mostly small values, some of several blocks, a few of the largest size.
uint32_t random_len(struct model *m, uint32_t klen) {
  const uint64_t r = rng_next(&m->rng), kind = r % 100;
  const uint32_t most = REMIXDB_KV_MAX - klen, below = kind < 8 ? 1 : kind < 85 ? 200 : kind < 97 ? 5000 : 65000;
  uint32_t len = (uint32_t)(r >> 8) % below;
  if (kind == 99 && (r >> 40) % 4 == 0) len = most;
  if (len > m->val_max) len %= m->val_max + 1;
  if (len < m->val_min) len = m->val_min + (uint32_t)(r >> 8) % (m->val_max - m->val_min + 1);
  return len < most ? len : most;
}

bool model_put(struct model *m, uint32_t i) {
  const struct now n = {++m->next_ver, random_len(m, m->keys[i].len)};
  value_fill(m->buf, i, n);
  if (!remixdb_put(m->ref, m->keys[i].ptr, m->keys[i].len, m->buf, n.len)) {
    CHECK(remixdb_errcode() == REMIXDB_NOSPACE);
    return false;
  }
  m->now[i] = n;
  return true;
}

bool model_del(struct model *m, uint32_t i) {
  if (!remixdb_del(m->ref, m->keys[i].ptr, m->keys[i].len)) {
    CHECK(remixdb_errcode() == REMIXDB_NOSPACE);
    return false;
  }
  m->now[i].ver = 0;
  return true;
}

// The value in memory of the store, and as a copy in memory of its own. Both are released at once.
static void get_memory(struct model *m, uint32_t i, bool pinned) {
  const struct key k = m->keys[i];
  const struct now n = m->now[i];
  const void *v = NULL;
  uint32_t len = 12345;
  struct xdb_pin *const pin = pinned ? remixdb_get_pinned(m->ref, k.ptr, k.len, &v, &len) : NULL;
  void *const copy = pinned ? NULL : remixdb_get_alloc(m->ref, k.ptr, k.len, &len);
  CHECK(remixdb_errcode() == (n.ver ? REMIXDB_OK : REMIXDB_NOTFOUND));
  CHECK((pin || copy) == (n.ver != 0));
  if (n.ver) CHECK(value_good(m, i, n, pinned ? v : copy, len));
  else CHECK(len == 12345);
  remixdb_pin_release(pin);
  remixdb_free(copy);
}

void model_get(struct model *m, uint32_t i) {
  const struct key k = m->keys[i];
  const struct now n = m->now[i];
  uint32_t len = 12345;
  switch (rng_next(&m->rng) % 6) {
    case 2:
    case 3: get_memory(m, i, rng_next(&m->rng) % 2); return;
    case 0:
      CHECK(remixdb_probe(m->ref, k.ptr, k.len) == (n.ver != 0));
      CHECK(remixdb_errcode() == (n.ver ? REMIXDB_OK : REMIXDB_NOTFOUND));
      return;
    case 1: {
      const uint32_t cap = (uint32_t)(rng_next(&m->rng) % 300);
      const bool got = remixdb_getn(m->ref, k.ptr, k.len, m->buf, cap, &len);
      CHECK(remixdb_errcode() == (n.ver == 0 ? REMIXDB_NOTFOUND : n.len > cap ? REMIXDB_TOOBIG : REMIXDB_OK));
      CHECK(got == (remixdb_errcode() == REMIXDB_OK));
      if (n.ver == 0) return;
      CHECK(len == n.len);
      value_fill(m->want, i, n);
      CHECK(memcmp(m->want, m->buf, len < cap ? len : cap) == 0);
      return;
    }
    default:
      CHECK(remixdb_get(m->ref, k.ptr, k.len, m->buf, &len) == (n.ver != 0));
      CHECK(remixdb_errcode() == (n.ver ? REMIXDB_OK : REMIXDB_NOTFOUND));
      if (n.ver) CHECK(value_good(m, i, n, m->buf, len));
      else CHECK(len == 12345);
  }
}

uint32_t model_find(const struct model *m, struct key k) {
  uint32_t lo = 0, hi = m->nr;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (key_cmp(&m->keys[mid], &k) < 0) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

struct key model_near(struct model *m) {
  const struct key k = m->keys[rng_next(&m->rng) % m->nr];
  struct key near = {m->buf, k.len};
  memcpy(m->buf, k.ptr, k.len);
  switch (rng_next(&m->rng) % 4) {
    case 0: near.ptr[near.len++] = (uint8_t)rng_next(&m->rng); break;
    case 1: near.len -= near.len != 0; break;
    case 2: near.ptr[near.len++] = 0; break;
    default:
      if (near.len) near.ptr[rng_next(&m->rng) % near.len] ^= (uint8_t)(1u << rng_next(&m->rng) % 8);
  }
  return near;
}

void cursor_check(struct model *m, struct cursor *c, bool values) {
  while (c->at < m->nr && c->seen[c->at].ver == 0) c->at++;
  CHECK(remixdb_iter_valid(c->it) == (c->at < m->nr));
  CHECK(remixdb_iter_status(c->it) == REMIXDB_OK);
  uint32_t klen, vlen;
  if (c->at == m->nr) {
    CHECK(!remixdb_iter_peek(c->it, m->buf, &klen, NULL, &vlen) && remixdb_errcode() == REMIXDB_NOTFOUND);
    return;
  }
  const struct key k = m->keys[c->at];
  CHECK(remixdb_iter_peek(c->it, m->buf, &klen, NULL, &vlen));
  CHECK(klen == k.len && memcmp(m->buf, k.ptr, klen) == 0);
  CHECK(vlen == c->seen[c->at].len);
  if (!values) return;
  CHECK(remixdb_iter_peek(c->it, NULL, NULL, m->buf, &vlen));
  CHECK(value_good(m, c->at, c->seen[c->at], m->buf, vlen));
}

void cursor_seek(struct model *m, struct cursor *c, struct key k) {
  if (!c->it) CHECK((c->it = expect_iter(m->ref, rng_next(&m->rng))) && (c->seen = malloc(m->nr * sizeof(*c->seen))));
  c->at = model_find(m, k);
  remixdb_iter_seek(c->it, k.ptr, k.len);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  memcpy(c->seen, m->now, m->nr * sizeof(*c->seen));
  cursor_check(m, c, true);
}

void cursor_skip(struct model *m, struct cursor *c, uint32_t nr) {
  remixdb_iter_skip(c->it, nr);
  for (; nr && c->at < m->nr; nr--) {
    c->at++;
    while (c->at < m->nr && c->seen[c->at].ver == 0) c->at++;
  }
  cursor_check(m, c, true);
}

void cursor_rest(struct model *m, struct cursor *c) {
  cursor_check(m, c, true);
  while (c->at < m->nr) {
    remixdb_iter_skip1(c->it);
    c->at++;
    cursor_check(m, c, rng_next(&m->rng) % 8 == 0);
  }
}

void cursor_drop(struct cursor *c) {
  remixdb_iter_destroy(c->it);
  free(c->seen);
  *c = (struct cursor){0};
}

void model_scan(struct model *m) {
  struct cursor c = {0};
  cursor_seek(m, &c, (struct key){NULL, 0});
  cursor_rest(m, &c);
  cursor_drop(&c);
}

void model_check(struct model *m) {
  model_scan(m);
  for (uint32_t i = 0; i < m->nr; i++) model_get(m, i);
}
