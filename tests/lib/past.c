// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/past.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/check.h"
#include "tests/lib/expect.h"

#define PAST_MANY 48u  // keys of one call
#define PAST_PAGE 64u  // records of one page

static int past_key_cmp(const void *a, const void *b) {
  const struct past_key *const x = a, *const y = b;
  return kv_cmp(kref(x->ptr, x->len), kref(y->ptr, y->len));
}

static uint32_t past_key_make(uint64_t *rng, enum key_kind kind, uint32_t i, uint8_t *buf) {
  uint32_t len;
  switch (kind == KEYS_MIXED ? below(rng, 7) : kind) {
    case KEYS_FEW:
    case KEYS_TEXT: return (uint32_t)snprintf((char *)buf, 32, "user%08u", (uint32_t)below(rng, 100000000));
    case KEYS_PREFIX:  // long beginnings in common, keys that are the beginning of others
      len = 150 + (uint32_t)below(rng, 60);
      memset(buf, 'p', len);
      for (uint32_t k = 148; k < len; k++) buf[k] = (uint8_t)('a' + below(rng, 2));
      return len;
    case 3:
      len = (uint32_t)below(rng, 40);
      memset(buf, chance(rng, 50) ? 0 : 0xff, len);
      if (len) buf[below(rng, len)] = (uint8_t)rng_next(rng);
      return len;
    case 4:
      len = 1 + (uint32_t)below(rng, 12);
      for (uint32_t k = 0; k < len; k++) buf[k] = (uint8_t)rng_next(rng);
      return len;
    case 5:
      if (!chance(rng, 2)) return (uint32_t)snprintf((char *)buf, 32, "%c/%06u", (int)('a' + below(rng, 20)), i);
      len = 1000 + (uint32_t)below(rng, 3000);
      memset(buf, 'q', len);
      store32le(buf + len - 4, i);
      return len;
    default: return (uint32_t)snprintf((char *)buf, 32, "%c/%06u", (int)('a' + below(rng, 20)), i);
  }
}

void past_init(struct past *m, enum key_kind kind, uint32_t nr, uint32_t vlen_max) {
  memset(m, 0, sizeof(*m));
  m->rng = check_seed;
  m->vlen_max = vlen_max;
  m->keys = calloc(nr, sizeof(*m->keys));
  m->buf = malloc(PAST_VLEN_MAX + 1);
  m->want = malloc(PAST_VLEN_MAX + 1);
  CHECK(m->keys && m->buf && m->want);
  for (uint32_t i = 0; i < nr; i++) {
    struct past_key *const k = &m->keys[i];
    k->len = i ? past_key_make(&m->rng, kind, i, m->buf) : 0;
    k->ptr = malloc(k->len + 1);
    CHECK(k->ptr);
    memcpy(k->ptr, m->buf, k->len);
  }
  qsort(m->keys, nr, sizeof(*m->keys), past_key_cmp);
  for (uint32_t i = 0; i < nr; i++) {
    if (m->nr && past_key_cmp(&m->keys[m->nr - 1], &m->keys[i]) == 0) free(m->keys[i].ptr);
    else m->keys[m->nr++] = m->keys[i];
  }
}

void past_fini(struct past *m) {
  for (uint32_t i = 0; i < m->nr; i++) {
    free(m->keys[i].ptr);
    free(m->keys[i].vers);
  }
  free(m->keys);
  free(m->buf);
  free(m->want);
}

// ---- content

struct past_ver past_at(const struct past *m, uint32_t i, uint64_t time) {
  const struct past_key *const k = &m->keys[i];
  uint32_t lo = 0, hi = k->nr;  // the first version that is later
  if (hi && k->vers[hi - 1].time <= time) return k->vers[hi - 1];
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (k->vers[mid].time <= time) lo = mid + 1;
    else hi = mid;
  }
  return lo ? k->vers[lo - 1] : (struct past_ver){0};
}

bool past_has(const struct past *m, int64_t i, uint64_t time) { return past_at(m, (uint32_t)i, time).id != 0; }

void past_set(struct past *m, uint32_t i, uint32_t id, uint32_t len) { past_set_expiring(m, i, id, len, 0); }

void past_clock(struct past *m, uint64_t wall) {
  m->wall = wall;
  m->time++;
  for (uint32_t i = 0; i < m->nr; i++) {
    struct past_key *const k = &m->keys[i];
    const struct past_ver *const v = k->nr ? &k->vers[k->nr - 1] : NULL;
    if (!v || !v->expires || v->expires > wall) continue;
    past_set(m, i, 0, 0);
    k->vers[k->nr - 1].expired = true;
  }
}

uint64_t past_expires(struct past *m) {
  return m->wall && chance(&m->rng, 15) ? m->wall + 1 + below(&m->rng, 2000) : 0;
}

void past_written_again(struct past *m) {
  for (uint32_t i = 0; i < m->nr; i++)
    if (m->keys[i].nr) m->keys[i].vers[m->keys[i].nr - 1].version = 0;
}

void past_set_expiring(struct past *m, uint32_t i, uint32_t id, uint32_t len, uint64_t expires) {
  struct past_key *const k = &m->keys[i];
  if (k->nr && k->vers[k->nr - 1].time == m->time) k->nr--;
  if (k->nr == k->cap) {
    k->cap = k->cap ? 2 * k->cap : 2;
    k->vers = realloc(k->vers, k->cap * sizeof(*k->vers));
    CHECK(k->vers);
  }
  k->vers[k->nr++] = (struct past_ver){.time = m->time, .id = id, .len = len, .expires = expires};
}

void past_forget(struct past *m, uint64_t oldest) {
  for (uint32_t i = 0; i < m->nr; i++) {
    struct past_key *const k = &m->keys[i];
    uint32_t old = 0;
    while (old + 1 < k->nr && k->vers[old + 1].time <= oldest) old++;
    if (old == 0) continue;
    k->nr -= old;
    memmove(k->vers, k->vers + old, k->nr * sizeof(*k->vers));
  }
}

uint32_t past_rank(const struct past *m, const uint8_t *ptr, uint32_t len) {
  uint32_t lo = 0, hi = m->nr;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (kv_cmp(kref(m->keys[mid].ptr, m->keys[mid].len), kref(ptr, len)) < 0) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

// A key of the model, changed a little, in buf: most likely none of the store's. Gives its length.
static uint32_t past_near(struct past *m, uint8_t *buf) {
  const struct past_key *const k = &m->keys[below(&m->rng, m->nr)];
  uint32_t len = k->len;
  memcpy(buf, k->ptr, len);
  switch (below(&m->rng, 4)) {
    case 0: buf[len++] = (uint8_t)rng_next(&m->rng); break;
    case 1: len -= len != 0; break;
    case 2: buf[len++] = 0; break;
    default:
      if (len) buf[below(&m->rng, len)] ^= (uint8_t)(1u << below(&m->rng, 8));
  }
  return len;
}

// ---- values

void past_value(uint32_t id, uint32_t len, uint8_t *buf) {
  uint64_t rng = id;
  const bool dull = rng_next(&rng) % 2;
  uint64_t word = rng;
  for (uint32_t at = 0; at < len; at += 8) {
    if (!dull) word = rng_next(&rng);
    memcpy(buf + at, &word, len - at < 8 ? len - at : 8);
  }
}

bool past_value_is(struct past *m, struct past_ver v, const void *val, uint32_t len) {
  if (v.id == 0 || len != v.len) return false;
  past_value(v.id, v.len, m->want);
  return memcmp(m->want, val, len) == 0;
}

uint32_t past_vlen(struct past *m, uint32_t i) {
  const uint64_t kind = below(&m->rng, 1000);
  uint32_t len = (uint32_t)below(&m->rng, kind < 50 ? 1 : kind < 950 ? 200 : kind < 997 ? 6000 : REMIXDB_KV_MAX);
  if (kind == 999)  // the most that a record has room for, one more, and values of many chunks
    len = chance(&m->rng, 50)   ? REMIXDB_KV_MAX - m->keys[i].len + (uint32_t)below(&m->rng, 2)
          : chance(&m->rng, 90) ? (uint32_t)below(&m->rng, 400000)
                                : (uint32_t)below(&m->rng, PAST_VLEN_MAX + 1);
  return len > m->vlen_max ? len % (m->vlen_max + 1) : len;
}

// ---- writing

bool past_put(struct past *m, struct xdb_ref *ref, uint32_t i) {
  const uint32_t id = ++m->next_id, len = past_vlen(m, i);
  past_value(id, len, m->buf);
  const uint64_t expires = past_expires(m);
  if (!(expires ? remixdb_put_expire(ref, m->keys[i].ptr, m->keys[i].len, m->buf, len, expires)
                : (chance(&m->rng, 90) ? remixdb_put : remixdb_set)(ref, m->keys[i].ptr, m->keys[i].len, m->buf, len)))
    return false;
  m->time++;
  past_set_expiring(m, i, id, len, expires);
  return true;
}

// The newest version of key i, or NULL.
static struct past_ver *newest(struct past *m, uint32_t i) {
  return m->keys[i].nr ? &m->keys[i].vers[m->keys[i].nr - 1] : NULL;
}

void past_compare(struct past *m, struct xdb_ref *ref, uint32_t i) {
  const struct past_key *const k = &m->keys[i];
  const struct past_ver *const v = newest(m, i);
  uint64_t version = 0;
  const bool there = remixdb_getv(ref, k->ptr, k->len, m->buf, PAST_VLEN_MAX, NULL, &version);
  CHECK(there == (v && v->id) && (version != 0) == there);
  if (there && v->version) CHECK(version == v->version);
  const bool right = chance(&m->rng, 70), del = there && chance(&m->rng, 30);
  const uint64_t wanted = right ? version : version + 1 + below(&m->rng, 3);
  const uint32_t id = ++m->next_id, len = past_vlen(m, i);
  past_value(id, len, m->buf);
  const bool done = del ? remixdb_del_if(ref, k->ptr, k->len, wanted)
                        : remixdb_put_if(ref, k->ptr, k->len, m->buf, len, wanted);
  CHECK(done == right && (done || remixdb_errcode() == REMIXDB_ABORTED));
  if (!done) return;
  m->time++;
  past_set(m, i, del ? 0 : id, del ? 0 : len);
}

// The version of a key and its time of expiry, as the ref tells them.
static void check_version(struct past *m, struct xdb_ref *ref, uint32_t i, uint64_t time) {
  struct past_key *const k = &m->keys[i];
  uint64_t version = 0, expires = 77;
  uint32_t n = k->nr;
  while (n && k->vers[n - 1].time > time) n--;
  struct past_ver *const v = n ? &k->vers[n - 1] : NULL;
  const bool there = remixdb_getv(ref, k->ptr, k->len, m->buf, PAST_VLEN_MAX, NULL, &version);
  CHECK(there == (v && v->id) && remixdb_expiry(ref, k->ptr, k->len, &expires) == there);
  if (!there) return;
  CHECK(version != 0 && expires == v->expires && (v->version == 0 || v->version == version));
  v->version = version;
  for (uint32_t older = 0; older + 1 < n; older++) CHECK(k->vers[older].version < version);
}

bool past_del(struct past *m, struct xdb_ref *ref, uint32_t i) {
  if (!remixdb_del(ref, m->keys[i].ptr, m->keys[i].len)) return false;
  m->time++;
  past_set(m, i, 0, 0);
  return true;
}

// ---- reading

void past_check_get(struct past *m, struct xdb_ref *ref, uint32_t i, uint64_t time) {
  const struct past_key *const k = &m->keys[i];
  const struct past_ver v = past_at(m, i, time);
  uint32_t len = 12345;
  switch (below(&m->rng, m->unversioned ? 5 : 6)) {
    case 5: check_version(m, ref, i, time); return;
    case 4: {
      const uint32_t off = (uint32_t)below(&m->rng, v.len + 3ull), cap = (uint32_t)below(&m->rng, 300);
      uint32_t n = 54321;
      CHECK(remixdb_get_part(ref, k->ptr, k->len, off, m->buf, cap, &n, &len) == (v.id != 0));
      CHECK(remixdb_errcode() == (v.id ? REMIXDB_OK : REMIXDB_NOTFOUND) && len == v.len);
      CHECK(n == (off >= v.len ? 0 : v.len - off < cap ? v.len - off : cap));
      past_value(v.id, v.len, m->want);
      CHECK(memcmp(m->want + off, m->buf, n) == 0);
      return;
    }
    case 0:
      CHECK(remixdb_probe(ref, k->ptr, k->len) == (v.id != 0));
      CHECK(remixdb_errcode() == (v.id ? REMIXDB_OK : REMIXDB_NOTFOUND));
      return;
    case 1: {
      const uint32_t cap = (uint32_t)below(&m->rng, 300);
      const bool got = remixdb_getn(ref, k->ptr, k->len, m->buf, cap, &len);
      CHECK(remixdb_errcode() == (v.id == 0 ? REMIXDB_NOTFOUND : v.len > cap ? REMIXDB_TOOBIG : REMIXDB_OK));
      CHECK(got == (remixdb_errcode() == REMIXDB_OK));
      if (v.id == 0) return;
      CHECK(len == v.len);
      past_value(v.id, v.len, m->want);
      CHECK(memcmp(m->want, m->buf, len < cap ? len : cap) == 0);
      return;
    }
    default:
      CHECK(remixdb_get(ref, k->ptr, k->len, m->buf, &len) == (v.id != 0));
      CHECK(remixdb_errcode() == (v.id ? REMIXDB_OK : REMIXDB_NOTFOUND));
      if (v.id) CHECK(past_value_is(m, v, m->buf, len));
      else CHECK(len == 12345);
  }
}

void past_check_near(struct past *m, struct xdb_ref *ref, uint64_t time) {
  const uint32_t len = past_near(m, m->buf), at = past_rank(m, m->buf, len);
  const bool there = at < m->nr && kv_eq(kref(m->keys[at].ptr, m->keys[at].len), kref(m->buf, len)) &&
                     past_has(m, at, time);
  CHECK(remixdb_probe(ref, m->buf, len) == there);
}

void past_check_many(struct past *m, struct xdb_ref *ref, uint64_t time) {
  struct remixdb_slice keys[PAST_MANY] = {{0}};
  struct remixdb_buf values[PAST_MANY] = {{0}};
  bool found[PAST_MANY];
  uint32_t at[PAST_MANY];
  const uint32_t nr = (uint32_t)below(&m->rng, PAST_MANY + 1);
  const bool with_values = chance(&m->rng, 80), near = nr && chance(&m->rng, 30);
  size_t there = 0;
  bool cut = false;
  for (uint32_t i = 0; i < nr; i++) {
    at[i] = (uint32_t)below(&m->rng, m->nr);
    keys[i] = (struct remixdb_slice){m->keys[at[i]].ptr, m->keys[at[i]].len};
    const uint32_t cap = chance(&m->rng, 20) ? 0 : (uint32_t)below(&m->rng, 500);
    values[i] = (struct remixdb_buf){.ptr = cap ? malloc(cap) : NULL, .cap = cap, .len = 4711};
  }
  if (near) {
    keys[0] = (struct remixdb_slice){m->buf, past_near(m, m->buf)};
    at[0] = past_rank(m, m->buf, keys[0].len);
    if (at[0] == m->nr || !kv_eq(kref(m->keys[at[0]].ptr, m->keys[at[0]].len), kref(m->buf, keys[0].len)))
      at[0] = m->nr;
  }
  const size_t got = remixdb_multi_get(ref, nr, keys, with_values ? values : NULL, found);
  const enum remixdb_status s = remixdb_errcode();
  for (uint32_t i = 0; i < nr; i++) {
    const struct past_ver v = at[i] < m->nr ? past_at(m, at[i], time) : (struct past_ver){0};
    CHECK(found[i] == (v.id != 0));
    there += found[i];
    if (with_values) {
      CHECK(values[i].len == v.len);
      cut |= values[i].ptr && v.len > values[i].cap;
      past_value(v.id, v.len, m->want);
      if (values[i].ptr) CHECK(memcmp(values[i].ptr, m->want, v.len < values[i].cap ? v.len : values[i].cap) == 0);
    }
    free(values[i].ptr);
  }
  CHECK(got == there && s == (cut ? REMIXDB_TOOBIG : REMIXDB_OK));
}

void past_check_packed(struct past *m, struct xdb_ref *ref, uint64_t time) {
  static uint8_t kbuf[PAST_MANY * 4100], vbuf[20000];
  uint32_t klens[PAST_MANY] = {0}, at[PAST_MANY], offs[PAST_MANY], lens[PAST_MANY];
  bool found[PAST_MANY];
  struct remixdb_packed out = {.cap = chance(&m->rng, 60) ? sizeof(vbuf) : (size_t)below(&m->rng, 3000),
                               .offs = offs,
                               .lens = lens,
                               .found = found};
  out.ptr = out.cap ? vbuf : NULL;
  const uint32_t nr = (uint32_t)below(&m->rng, PAST_MANY + 1);
  size_t keys_len = 0, there = 0, len = 0;
  for (uint32_t i = 0; i < nr; i++) {
    const bool near = chance(&m->rng, 10);
    at[i] = (uint32_t)below(&m->rng, m->nr);
    klens[i] = near ? past_near(m, kbuf + keys_len) : m->keys[at[i]].len;
    if (!near) memcpy(kbuf + keys_len, m->keys[at[i]].ptr, klens[i]);
    if (near) at[i] = past_rank(m, kbuf + keys_len, klens[i]);
    if (near &&
        (at[i] == m->nr || !kv_eq(kref(m->keys[at[i]].ptr, m->keys[at[i]].len), kref(kbuf + keys_len, klens[i]))))
      at[i] = m->nr;
    keys_len += klens[i];
  }
  const size_t got = remixdb_multi_get_packed(ref, nr, klens, kbuf, keys_len, &out);
  const enum remixdb_status s = remixdb_errcode();
  for (uint32_t i = 0; i < nr; i++) {
    const struct past_ver v = at[i] < m->nr ? past_at(m, at[i], time) : (struct past_ver){0};
    CHECK(found[i] == (v.id != 0) && lens[i] == v.len);
    there += found[i];
    len += v.len;
    if (s != REMIXDB_OK || !found[i]) continue;
    CHECK((size_t)offs[i] + lens[i] <= out.cap && past_value_is(m, v, vbuf + offs[i], lens[i]));
  }
  CHECK(got == there && out.len == len && s == (len > out.cap ? REMIXDB_TOOBIG : REMIXDB_OK));
}

// ---- iterators

bool past_cursor_valid(const struct past *m, const struct past_cursor *c) {
  return c->at >= 0 && c->at < (int64_t)m->nr;
}

void past_cursor_check(struct past *m, struct past_cursor *c) {
  CHECK(remixdb_iter_valid(c->it) == past_cursor_valid(m, c));
  CHECK(remixdb_iter_status(c->it) == REMIXDB_OK);
  uint32_t klen, vlen;
  if (!past_cursor_valid(m, c)) {
    CHECK(!remixdb_iter_peek(c->it, m->buf, &klen, NULL, &vlen) && remixdb_errcode() == REMIXDB_NOTFOUND);
    CHECK(!remixdb_iter_key(c->it, &klen) && !remixdb_iter_value(c->it, &vlen) &&
          remixdb_errcode() == REMIXDB_NOTFOUND);
    return;
  }
  const struct past_key *const k = &m->keys[c->at];
  const struct past_ver v = past_at(m, (uint32_t)c->at, c->time);
  const void *const key = remixdb_iter_key(c->it, &klen);
  CHECK(key && kv_eq(kref(key, klen), kref(k->ptr, k->len)));
  if (c->keys_only) {
    memset(m->buf, 7, 8);
    CHECK(remixdb_iter_peek(c->it, NULL, &klen, m->buf, &vlen) && klen == k->len && vlen == 0 && m->buf[0] == 7);
    CHECK(!remixdb_iter_value(c->it, &vlen) && vlen == 0 && remixdb_errcode() == REMIXDB_OK);
    return;
  }
  switch (below(&m->rng, 4)) {
    case 0:
      CHECK(remixdb_iter_peek(c->it, m->buf, &klen, NULL, NULL) && kv_eq(kref(m->buf, klen), kref(k->ptr, k->len)));
      CHECK(remixdb_iter_peek(c->it, NULL, NULL, m->buf, &vlen) && past_value_is(m, v, m->buf, vlen));
      return;
    case 1:
    case 2: {
      const void *const val = remixdb_iter_value(c->it, &vlen);
      CHECK(val && past_value_is(m, v, val, vlen));
      return;
    }
    default: return;  // keys only
  }
}

// The next key that is there, from at on (itself included).
static void past_cursor_settle(const struct past *m, struct past_cursor *c, int64_t at, int step) {
  const int64_t low = c->bounded ? c->low : 0, high = c->bounded ? c->high : (int64_t)m->nr;
  if (step > 0 && at < low) at = low;
  if (step < 0 && at >= high) at = high - 1;
  while (at >= low && at < high && !past_has(m, at, c->time)) at += step;
  c->at = at < low || low >= high ? -1 : at >= high ? (int64_t)m->nr : at;
}

static int64_t past_bound(struct past *m, struct remixdb_slice *out) {
  const uint32_t i = (uint32_t)below(&m->rng, m->nr);
  const bool near = chance(&m->rng, 40);
  uint8_t *const buf = malloc(REMIXDB_KV_MAX);
  CHECK(buf);
  const uint32_t len = near ? past_near(m, buf) : m->keys[i].len;
  if (!near) memcpy(buf, m->keys[i].ptr, len);
  *out = (struct remixdb_slice){buf, len};
  return past_rank(m, buf, len);
}

// A prefix of a key; narrows the bounds to the keys that have it.
static void past_prefix(struct past *m, struct past_cursor *c, struct remixdb_slice *out) {
  const struct past_key *const k = &m->keys[below(&m->rng, m->nr)];
  const uint32_t len = (uint32_t)below(&m->rng, (k->len < 12 ? k->len : 12) + 1);
  *out = (struct remixdb_slice){k->ptr, len};
  int64_t low = 0, high = m->nr;
  while (low < high && (m->keys[low].len < len || memcmp(m->keys[low].ptr, k->ptr, len) != 0)) low++;
  while (high > low && (m->keys[high - 1].len < len || memcmp(m->keys[high - 1].ptr, k->ptr, len) != 0)) high--;
  if (low > c->low) c->low = low;
  if (high < c->high) c->high = high;
}

void past_cursor_make(struct past *m, struct past_cursor *c, struct xdb_ref *ref, uint64_t time) {
  struct remixdb_iter_opts o;
  remixdb_iter_opts_init(&o, sizeof(o));
  *c = (struct past_cursor){.at = -1, .bounded = true, .time = time, .high = m->nr};
  o.expect = chance(&m->rng, 50) ? 0 : (uint32_t)below(&m->rng, 100);
  o.keys_only = c->keys_only = chance(&m->rng, 30);
  o.hold = chance(&m->rng, 20);
  if (!ref->txn && chance(&m->rng, 10)) CHECK((o.snapshot = remixdb_snapshot(ref)) != NULL);
  c->fixed = o.hold || o.snapshot;
  if (chance(&m->rng, 60)) c->low = past_bound(m, &o.bounds.from);
  if (chance(&m->rng, 60)) c->high = past_bound(m, &o.bounds.to);
  void *const from = (void *)(uintptr_t)o.bounds.from.ptr, *const to = (void *)(uintptr_t)o.bounds.to.ptr;
  if (chance(&m->rng, 30)) past_prefix(m, c, &o.prefix);
  CHECK((c->it = remixdb_iter_create_opts(ref, &o)) != NULL);
  remixdb_snapshot_release(o.snapshot);  // it goes with the iterator
  if (from) memset(from, 0xEE, o.bounds.from.len);
  if (to) memset(to, 0xEE, o.bounds.to.len);
  free(from);
  free(to);
}

void past_cursor_seek(struct past *m, struct past_cursor *c, struct xdb_ref *ref, uint64_t time, enum seek_kind how) {
  if (!c->it) CHECK((c->it = expect_iter(ref, rng_next(&m->rng))) != NULL);
  if (!c->fixed) c->time = time;
  uint8_t *const buf = m->buf;
  const bool near = chance(&m->rng, 40);
  const uint32_t i = (uint32_t)below(&m->rng, m->nr), len = near ? past_near(m, buf) : m->keys[i].len;
  if (!near) memcpy(buf, m->keys[i].ptr, len);
  const uint32_t at = past_rank(m, buf, len);
  const bool same = at < m->nr && kv_eq(kref(m->keys[at].ptr, m->keys[at].len), kref(buf, len));
  switch (how) {
    case SEEK_TO_FIRST:
      remixdb_iter_seek(c->it, NULL, 0);
      past_cursor_settle(m, c, 0, 1);
      break;
    case SEEK_AT_LEAST:
      remixdb_iter_seek(c->it, buf, len);
      past_cursor_settle(m, c, at, 1);
      break;
    case SEEK_AT_MOST:
      remixdb_iter_seek_for_prev(c->it, buf, len);
      past_cursor_settle(m, c, (int64_t)at - !same, -1);
      break;
    default:
      remixdb_iter_seek_last(c->it);
      past_cursor_settle(m, c, (int64_t)m->nr - 1, -1);
      break;
  }
  CHECK(remixdb_errcode() == REMIXDB_OK);
  past_cursor_check(m, c);
}

void past_cursor_skip(struct past *m, struct past_cursor *c, uint32_t nr) {
  if (nr == 1) remixdb_iter_skip1(c->it);
  else remixdb_iter_skip(c->it, nr);
  for (; nr && past_cursor_valid(m, c); nr--) past_cursor_settle(m, c, c->at + 1, 1);
  past_cursor_check(m, c);
}

void past_cursor_prev(struct past *m, struct past_cursor *c) {
  remixdb_iter_prev(c->it);
  if (past_cursor_valid(m, c)) past_cursor_settle(m, c, c->at - 1, -1);
  past_cursor_check(m, c);
}

// The page has the records from the key `at` on; from[i] becomes the key of record i. Returns the key after them.
static int64_t past_cursor_page_is(struct past *m, const struct past_cursor *c, const struct remixdb_page *p,
                                   int64_t at, int64_t *from) {
  struct past_cursor k = *c;
  const uint8_t *bytes = p->ptr;
  for (uint32_t i = 0; i < p->nr;
       i++, past_cursor_settle(m, &k, at + (p->back ? -1 : 1), p->back ? -1 : 1), at = k.at) {
    CHECK(at >= 0 && at < (int64_t)m->nr);
    const struct past_key *const key = &m->keys[at];
    CHECK(kv_eq(kref(bytes, p->klens[i]), kref(key->ptr, key->len)));
    bytes += p->klens[i];
    from[i] = at;
    if (p->vlens && c->keys_only) CHECK(p->vlens[i] == 0);
    if (!p->vlens || c->keys_only) continue;
    CHECK(past_value_is(m, past_at(m, (uint32_t)at, c->time), bytes, p->vlens[i]));
    bytes += p->vlens[i];
  }
  CHECK(p->len <= p->cap && (p->nr == 0 || bytes == (const uint8_t *)p->ptr + p->len));
  return at;
}

void past_cursor_pages(struct past *m, struct past_cursor *c) {
  static uint8_t room[70000];
  uint32_t klens[PAST_PAGE], vlens[PAST_PAGE];
  struct remixdb_page p = {.klens = klens, .vlens = chance(&m->rng, 70) ? vlens : NULL, .back = chance(&m->rng, 50)};
  int64_t from[PAST_PAGE], at = c->at;
  for (uint64_t n = 1 + below(&m->rng, 4); n; n--) {
    p.max = 1 + (uint32_t)below(&m->rng, PAST_PAGE);
    p.cap = chance(&m->rng, 50) ? sizeof(room) : (size_t)below(&m->rng, 2000);
    p.ptr = p.cap ? room : NULL;
    const bool got = remixdb_iter_page(c->it, &p), there = at >= 0 && at < (int64_t)m->nr;
    CHECK(got == (p.nr > 0) && p.nr <= p.max);
    CHECK(remixdb_errcode() == (got ? REMIXDB_OK : there ? REMIXDB_TOOBIG : REMIXDB_NOTFOUND));
    at = past_cursor_page_is(m, c, &p, at, from);
    if (p.nr == p.max || at < 0 || at >= (int64_t)m->nr) continue;
    const size_t next = m->keys[at].len + (p.vlens && !c->keys_only ? past_at(m, (uint32_t)at, c->time).len : 0);
    CHECK(next > p.cap - p.len);  // there is one more, and it does not fit
    if (!got) CHECK(klens[0] == m->keys[at].len && (!p.vlens || vlens[0] == next - klens[0]));
  }
  const uint32_t nr = (uint32_t)below(&m->rng, p.nr + 1);
  c->at = nr ? from[p.nr - nr] : at;
  CHECK(remixdb_iter_unread(c->it, &p, nr) && p.nr == 0 && !p.after);
  past_cursor_check(m, c);
  CHECK(remixdb_iter_unread(c->it, &p, 0));
  past_cursor_check(m, c);
}

void past_cursor_rest(struct past *m, struct past_cursor *c, bool back) {
  past_cursor_check(m, c);
  while (past_cursor_valid(m, c)) {
    if (back) past_cursor_prev(m, c);
    else past_cursor_skip(m, c, 1);
  }
}

void past_cursor_drop(struct past_cursor *c) {
  remixdb_iter_destroy(c->it);
  *c = (struct past_cursor){0};
}

// ---- asynchronous gets

void past_gets_drop(struct past_gets *g) {
  remixdb_gets_destroy(g->gets);
  for (uint32_t k = 0; k < PAST_GETS; k++) free(g->slots[k].buf);
  *g = (struct past_gets){0};
}

void past_gets_begin(struct past *m, struct past_gets *g, struct xdb_ref *ref, uint32_t i, uint64_t time) {
  if (!g->gets) g->gets = remixdb_gets_create(ref, PAST_GETS);
  CHECK(g->gets);
  struct past_get *w = g->slots;
  while (g->nr < PAST_GETS && w->busy) w++;
  const uint32_t cap = chance(&m->rng, 20) ? (uint32_t)below(&m->rng, 100) : m->vlen_max;
  uint8_t *const buf = chance(&m->rng, 90) ? malloc(cap ? cap : 1) : NULL;
  const bool begun = remixdb_get_begin(g->gets, m->keys[i].ptr, m->keys[i].len, buf, buf ? cap : 0, w);
  CHECK(begun == (g->nr < PAST_GETS) && remixdb_errcode() == (begun ? REMIXDB_OK : REMIXDB_ABORTED));
  if (!begun) free(buf);
  if (!begun) return;
  *w = (struct past_get){.busy = true, .i = i, .cap = buf ? cap : 0, .time = time, .buf = buf};
  g->nr++;
}

void past_gets_take(struct past *m, struct past_gets *g, bool all) {
  struct remixdb_got got[PAST_GETS];
  if (!g->gets) return;
  const size_t max = all ? PAST_GETS : below(&m->rng, PAST_GETS + 1), min = all ? g->nr : below(&m->rng, 4);
  const size_t nr = remixdb_get_poll(g->gets, max ? got : NULL, max, min);
  CHECK(remixdb_errcode() == (g->nr ? REMIXDB_OK : REMIXDB_NOTFOUND) && nr <= g->nr && (!all || nr == g->nr));
  for (size_t k = 0; k < nr; k++) {
    struct past_get *const w = got[k].priv;
    const struct past_ver v = past_at(m, w->i, w->time);
    CHECK(w->busy);
    CHECK(got[k].status == (v.id == 0 ? REMIXDB_NOTFOUND : w->buf && v.len > w->cap ? REMIXDB_TOOBIG : REMIXDB_OK));
    CHECK(got[k].len == (v.id ? v.len : 0));
    if (v.id) past_value(v.id, v.len, m->want);
    if (v.id && w->buf) CHECK(memcmp(w->buf, m->want, v.len < w->cap ? v.len : w->cap) == 0);
    free(w->buf);
    *w = (struct past_get){0};
    g->nr--;
  }
}

uint64_t past_gets_oldest(const struct past_gets *g, uint64_t time) {
  for (uint32_t k = 0; k < PAST_GETS; k++)
    if (g->slots[k].busy && g->slots[k].time < time) time = g->slots[k].time;
  return time;
}

void past_check_all(struct past *m, struct xdb_ref *ref, uint64_t time) {
  struct past_cursor c = {0};
  const bool back = chance(&m->rng, 50);
  past_cursor_seek(m, &c, ref, time, back ? SEEK_TO_LAST : SEEK_TO_FIRST);
  past_cursor_rest(m, &c, back);
  past_cursor_drop(&c);
  struct past_gets g = {0};
  for (uint32_t i = 0; i < m->nr; i++) {
    past_check_get(m, ref, i, time);
    if (ref->txn) continue;  // has no asynchronous gets
    if (g.nr == PAST_GETS) past_gets_take(m, &g, true);
    past_gets_begin(m, &g, ref, i, time);
  }
  past_gets_take(m, &g, true);
  past_gets_drop(&g);
  past_check_many(m, ref, time);
}
