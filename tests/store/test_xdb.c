// SPDX-License-Identifier: Apache-2.0
//
// The store as a whole against a model: random calls in one thread, iterators that stay open while everything under
// them is replaced, threads that come and go, writers and readers at once, full and failing disks.
//
// TEST_SEED in the environment repeats a run's random choices.
#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/lib/check.h"
#include "tests/lib/store.h"
#include "xdb.h"

static uint64_t seed_first;  // of all tests

// ---- the model: a fixed set of keys in order, and which version of each is there. A value follows from key and
// version.

struct key {
  uint8_t *ptr;
  uint32_t len;
};

struct now {
  uint32_t ver;  // 0: not there
  uint32_t len;
};

struct cursor {  // an iterator and what it must show
  struct xdb_iter *it;
  struct now *seen;  // the model at its seek
  uint32_t at;       // nr: past the end
};

#define CURSORS 4u

struct model {
  struct key *keys;
  uint32_t nr;
  struct now *now;
  uint32_t next_ver;
  uint64_t rng;
  struct remixdb_opts opts;
  struct xdb *xdb;
  struct xdb_ref *ref;
  struct cursor cursors[CURSORS];
  uint32_t val_min, val_max;
  uint8_t *buf, *want;  // of REMIXDB_KV_MAX bytes
};

static int key_cmp(const void *a, const void *b) {
  const struct key *const x = a, *const y = b;
  return kv_cmp(kref(x->ptr, x->len), kref(y->ptr, y->len));
}

// Keys of every kind: none, zeros, 0xff, chains of prefixes, long shared beginnings, random bytes, texts, a few very
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

static void model_init(struct model *m, uint32_t nr, uint32_t val_max) {
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

static void model_fini(struct model *m) {
  for (uint32_t i = 0; i < m->nr; i++) free(m->keys[i].ptr);
  free(m->keys);
  free(m->now);
  free(m->buf);
  free(m->want);
}

static void model_open(struct model *m) {
  m->xdb = remixdb_open_opts(dir, &m->opts);
  CHECK(m->xdb);
  m->ref = remixdb_ref(m->xdb);
  CHECK(m->ref);
}

static void cursor_drop(struct cursor *c) {
  remixdb_iter_destroy(c->it);
  free(c->seen);
  *c = (struct cursor){0};
}

static void model_close(struct model *m) {
  for (uint32_t i = 0; i < CURSORS; i++) cursor_drop(&m->cursors[i]);
  remixdb_unref(m->ref);
  remixdb_close(m->xdb);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  m->xdb = NULL;
  m->ref = NULL;
}

// Half of the values can be compressed, most of the largest.
static void value_fill(uint8_t *p, uint32_t i, struct now n) {
  uint64_t rng = (uint64_t)i << 32 | n.ver;
  const bool dull = rng_next(&rng) % (n.len > 40000 ? 8 : 2) != 0;
  uint64_t word = rng;
  for (uint32_t at = 0; at < n.len; at += 8) {
    if (!dull) word = rng_next(&rng);
    memcpy(p + at, &word, n.len - at < 8 ? n.len - at : 8);
  }
}

static bool value_good(struct model *m, uint32_t i, struct now n, const uint8_t *val, uint32_t len) {
  if (len != n.len) return false;
  value_fill(m->want, i, n);
  return memcmp(m->want, val, len) == 0;
}

// Mostly small ones, some of several blocks, a few of the largest.
static uint32_t random_len(struct model *m, uint32_t klen) {
  const uint64_t r = rng_next(&m->rng), kind = r % 100;
  const uint32_t most = REMIXDB_KV_MAX - klen, below = kind < 8 ? 1 : kind < 85 ? 200 : kind < 97 ? 5000 : 65000;
  uint32_t len = (uint32_t)(r >> 8) % below;
  if (kind == 99 && (r >> 40) % 4 == 0) len = most;
  if (len > m->val_max) len %= m->val_max + 1;
  if (len < m->val_min) len = m->val_min + (uint32_t)(r >> 8) % (m->val_max - m->val_min + 1);
  return len < most ? len : most;
}

// False: refused for want of space; nothing has changed then.
static bool model_put(struct model *m, uint32_t i) {
  const struct now n = {++m->next_ver, random_len(m, m->keys[i].len)};
  value_fill(m->buf, i, n);
  if (!remixdb_put(m->ref, m->keys[i].ptr, m->keys[i].len, m->buf, n.len)) {
    CHECK(remixdb_errcode() == REMIXDB_NOSPACE);
    return false;
  }
  m->now[i] = n;
  return true;
}

static bool model_del(struct model *m, uint32_t i) {
  if (!remixdb_del(m->ref, m->keys[i].ptr, m->keys[i].len)) {
    CHECK(remixdb_errcode() == REMIXDB_NOSPACE);
    return false;
  }
  m->now[i].ver = 0;
  return true;
}

static void model_get(struct model *m, uint32_t i) {
  const struct key k = m->keys[i];
  const struct now n = m->now[i];
  uint32_t len = 12345;
  switch (rng_next(&m->rng) % 4) {
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

// The first key of the model that is not smaller.
static uint32_t model_find(const struct model *m, struct key k) {
  uint32_t lo = 0, hi = m->nr;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (key_cmp(&m->keys[mid], &k) < 0) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

// A key of the model, changed a little (in buf, with some room): most likely none of the store's.
static struct key model_near(struct model *m) {
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

static void cursor_check(struct model *m, struct cursor *c, bool values) {
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

static void cursor_seek(struct model *m, struct cursor *c, struct key k) {
  if (!c->it) CHECK((c->it = remixdb_iter_create(m->ref)) && (c->seen = malloc(m->nr * sizeof(*c->seen))));
  c->at = model_find(m, k);
  remixdb_iter_seek(c->it, k.ptr, k.len);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  memcpy(c->seen, m->now, m->nr * sizeof(*c->seen));
  cursor_check(m, c, true);
}

static void cursor_skip(struct model *m, struct cursor *c, uint32_t nr) {
  remixdb_iter_skip(c->it, nr);
  for (; nr && c->at < m->nr; nr--) {
    c->at++;
    while (c->at < m->nr && c->seen[c->at].ver == 0) c->at++;
  }
  cursor_check(m, c, true);
}

// From where it stands to the end.
static void cursor_rest(struct model *m, struct cursor *c) {
  cursor_check(m, c, true);
  while (c->at < m->nr) {
    remixdb_iter_skip1(c->it);
    c->at++;
    cursor_check(m, c, rng_next(&m->rng) % 8 == 0);
  }
}

static void model_scan(struct model *m) {
  struct cursor c = {0};
  cursor_seek(m, &c, (struct key){NULL, 0});
  cursor_rest(m, &c);
  cursor_drop(&c);
}

static void model_check(struct model *m) {
  model_scan(m);
  for (uint32_t i = 0; i < m->nr; i++) model_get(m, i);
}

static void model_cursor_step(struct model *m) {
  struct cursor *const c = &m->cursors[rng_next(&m->rng) % CURSORS];
  const uint64_t what = rng_next(&m->rng) % 100;
  if (!c->it || what < 12) {
    const bool near = rng_next(&m->rng) % 3 == 0;
    const struct key k = near ? model_near(m) : m->keys[rng_next(&m->rng) % m->nr];
    cursor_seek(m, c, k);
  } else if (what < 60) {
    cursor_skip(m, c, 1);
  } else if (what < 75) {
    cursor_skip(m, c, (uint32_t)(rng_next(&m->rng) % 100));
  } else if (what < 97) {
    cursor_check(m, c, true);
  } else if (what < 98) {
    cursor_rest(m, c);
  } else if (what < 99) {
    remixdb_iter_park(c->it);
    CHECK(!remixdb_iter_valid(c->it) && remixdb_iter_status(c->it) == REMIXDB_OK);
    cursor_seek(m, c, m->keys[rng_next(&m->rng) % m->nr]);
  } else {
    cursor_drop(c);
  }
}

// Chooses the options that may change from one opening to the next.
static void model_choose(struct model *m, int workers) {
  static const char *const engines[] = {"auto", "sync", "aio", "uring"};
  struct remixdb_opts *const o = &m->opts;
  const uint64_t r = rng_next(&m->rng);
  *o = small_opts(workers);
  o->tags = r & 1;
  o->ckeys = r & 2;
  o->compression = r & 4 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  o->compression_level = 1;
  o->direct_io = (r >> 3) % 4 == 0;
  o->cache_mb = (r >> 5) % 3 == 0 ? 0 : 1 + (r >> 7) % 8;
  o->io = engines[(r >> 10) % 4];
  o->max_open_files = (r >> 12) % 2 ? 16 : 0;
  o->worker_cores = (r >> 13) % 2 ? "none" : "auto";
}

static void model_run(struct model *m, uint32_t steps, int workers) {
  for (uint32_t step = 0; step < steps; step++) {
    const uint64_t what = rng_next(&m->rng) % 10000;
    const uint32_t i = (uint32_t)(rng_next(&m->rng) % m->nr);
    if (what < 4200) {
      model_put(m, i);
    } else if (what < 5300) {
      model_del(m, i);
    } else if (what < 7700) {
      model_get(m, i);
    } else if (what < 8000) {
      const struct key k = model_near(m);
      const uint32_t at = model_find(m, k);
      const bool there = at < m->nr && key_cmp(&m->keys[at], &k) == 0 && m->now[at].ver;
      CHECK(remixdb_probe(m->ref, k.ptr, k.len) == there);
    } else if (what < 9970) {
      model_cursor_step(m);
    } else if (what < 9985) {
      CHECK(remixdb_sync(m->ref));
    } else if (what < 9992) {
      CHECK(xdb_flush(m->xdb) == REMIXDB_OK);
    } else if (what < 9996) {
      model_scan(m);
    } else if (what < 9998) {
      // a neighbourhood goes altogether: whole segments, and blocks, of tombstones
      for (uint32_t k = i; k < m->nr && k < i + 300; k++) model_del(m, k);
    } else {
      for (uint32_t c = 0; c < CURSORS; c++)
        if (m->cursors[c].it) cursor_rest(m, &m->cursors[c]);
      model_close(m);
      model_choose(m, workers);
      model_open(m);
      model_check(m);
    }
  }
}

static void run_model(uint64_t nr, int workers, uint32_t keys, uint32_t steps, uint32_t val_max) {
  check_seed = seed_first + nr;
  struct model m;
  model_init(&m, keys, val_max);
  model_choose(&m, workers);
  model_open(&m);
  model_run(&m, steps, workers);
  model_check(&m);
  model_close(&m);
  model_choose(&m, workers);
  model_open(&m);
  model_check(&m);
  // all of it gone, iterators that saw it before excepted
  cursor_seek(&m, &m.cursors[0], (struct key){NULL, 0});
  for (uint32_t i = 0; i < m.nr; i++) model_del(&m, i);
  CHECK(xdb_flush(m.xdb) == REMIXDB_OK);
  model_scan(&m);
  cursor_rest(&m, &m.cursors[0]);
  model_close(&m);
  model_open(&m);
  model_check(&m);
  model_close(&m);
  model_fini(&m);
}

static void test_model_alone(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 3; i++) {
    run_model(i, 0, i % 2 ? 500 : 4000, 9000, 65000);
    setup_again();
  }
}

static void test_model_small_values(void **state) {
  (void)state;
  run_model(100, 0, 15000, 25000, 40);
}

static void test_model_workers(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 3; i++) {
    run_model(200 + i, 1 + (int)(i % 2), i % 2 ? 500 : 4000, 9000, 65000);
    setup_again();
  }
}

// ---- many partitions: iterators go on showing what they saw when the partitions under them are cut and put behind
// each other

#define PARTITIONS_TABLE 1000u  // pages

static void put_every(struct model *m, uint32_t from, uint32_t step) {
  for (uint32_t i = from; i < m->nr; i += step) CHECK(model_put(m, i));
  CHECK(xdb_flush(m->xdb) == REMIXDB_OK);
}

static void test_partitions(void **state) {
  (void)state;
  check_seed = seed_first + 300;
  struct model m;
  model_init(&m, 7000, 5500);
  m.val_min = 4700;
  m.opts = small_opts(1);
  m.opts.cache_mb = 16;
  m.opts.compression = REMIXDB_COMPRESSION_ZSTD;  // the partitions are as large without it, the files are not
  m.opts.compression_level = 1;
  m.opts.memtable_mb = 4;
  model_open(&m);
  m.xdb->compact.build.max_pages = PARTITIONS_TABLE;
  cursor_seek(&m, &m.cursors[0], (struct key){NULL, 0});  // an empty store
  put_every(&m, 0, 2);  // in order: when a partition is full, what is behind it makes another
  cursor_rest(&m, &m.cursors[0]);
  const uint64_t before = stat_of(m.xdb, "partitions");
  CHECK(before > 1);
  m.xdb->leave_log = true;
  model_close(&m);
  m.opts.memtable_mb = 16;
  model_open(&m);
  m.xdb->compact.build.max_pages = PARTITIONS_TABLE;
  cursor_seek(&m, &m.cursors[0], (struct key){NULL, 0});
  put_every(&m, 0, 2);  // half of what is there is old
  cursor_seek(&m, &m.cursors[1], (struct key){NULL, 0});
  cursor_skip(&m, &m.cursors[1], m.nr / 4);
  for (uint32_t i = 0; i < 4; i++) put_every(&m, 1, 2);  // between the others: more than the partitions can hold
  CHECK(stat_of(m.xdb, "partitions") > before && stat_of(m.xdb, "split") > 0);
  cursor_seek(&m, &m.cursors[2], (struct key){NULL, 0});
  m.val_min = 0;
  m.val_max = 100;
  for (uint32_t i = 0; i < 3000; i++) {
    model_put(&m, (uint32_t)(rng_next(&m.rng) % m.nr));
    model_del(&m, (uint32_t)(rng_next(&m.rng) % m.nr));
  }
  CHECK(xdb_flush(m.xdb) == REMIXDB_OK);
  for (uint32_t i = 0; i < 3; i++) cursor_rest(&m, &m.cursors[i]);
  model_check(&m);
  model_close(&m);
  model_open(&m);
  model_check(&m);
  model_close(&m);
  model_fini(&m);
  setup_again();
}

// ---- threads at once

// Each writer goes over its keys in order, again and again: its p-th write (from 0) is of key p % FLOW_KEYS. So what a
// reader finds says how far the writer was, and a view of one moment shows the keys up to some place one version ahead
// of the others.
#define FLOW_WRITERS 2u
#define FLOW_KEYS 200u

struct flow {
  struct xdb *xdb;
  uint32_t id;                   // of the writer
  _Atomic uint64_t begun, done;  // writes of this writer: begun before a call, done after it
  struct flow *all;
  _Atomic bool *stop;
  uint64_t rng;
  _Atomic uint64_t *work;  // of readers: how often they came round
};

static uint32_t flow_version(uint32_t i, uint64_t writes) {
  return (uint32_t)((writes + FLOW_KEYS - 1 - i) / FLOW_KEYS);
}
static bool flow_there(uint32_t ver) { return ver % 4 != 0; }  // of a key's versions each fourth is a delete

static uint32_t flow_key(char *buf, uint32_t id, uint32_t i) {
  return (uint32_t)snprintf(buf, 32, "writer%u-%05u", id, i);
}

static uint32_t flow_value(uint8_t *buf, uint32_t id, uint32_t i, uint32_t ver) {
  uint64_t rng = (uint64_t)id << 60 | (uint64_t)i << 32 | ver;
  const uint32_t len = 16 + (uint32_t)(rng_next(&rng) % 1200);
  const uint32_t head[4] = {id, i, ver, len};
  memcpy(buf, head, sizeof(head));
  memset(buf + sizeof(head), (int)(ver + i), len - sizeof(head));
  return len;
}

// The version that a value is of; it must be whole.
static uint32_t flow_parse(const uint8_t *val, uint32_t len, uint32_t id, uint32_t i) {
  uint8_t want[2048];
  uint32_t head[4];
  THREAD_CHECK(len >= sizeof(head));
  memcpy(head, val, sizeof(head));
  THREAD_CHECK(head[0] == id && head[1] == i && head[3] == len);
  THREAD_CHECK(flow_value(want, id, i, head[2]) == len && memcmp(want, val, len) == 0);
  return head[2];
}

static void *flow_write(void *arg) {
  struct flow *const f = arg;
  struct xdb_ref *const r = remixdb_ref(f->xdb);
  THREAD_CHECK(r);
  uint8_t val[2048];
  char key[32];
  for (uint64_t p = 0; !atomic_load(f->stop); p++) {
    const uint32_t i = (uint32_t)(p % FLOW_KEYS), ver = flow_version(i, p + 1);
    const uint32_t klen = flow_key(key, f->id, i), vlen = flow_value(val, f->id, i, ver);
    atomic_store(&f->begun, p + 1);
    if (flow_there(ver)) THREAD_CHECK(remixdb_put(r, key, klen, val, vlen));
    else THREAD_CHECK(remixdb_del(r, key, klen));
    atomic_store(&f->done, p + 1);
    if (p % 3001 == 3000) THREAD_CHECK(remixdb_sync(r));
  }
  remixdb_unref(r);
  return NULL;
}

static void *flow_read(void *arg) {
  struct flow *const f = arg;
  struct xdb_ref *const r = remixdb_ref(f->xdb);
  THREAD_CHECK(r);
  static _Thread_local uint32_t last[FLOW_WRITERS][FLOW_KEYS];
  memset(last, 0, sizeof(last));
  uint8_t val[2048];
  char key[32];
  while (!atomic_load(f->stop)) {
    const uint32_t w = (uint32_t)(rng_next(&f->rng) % FLOW_WRITERS), i = (uint32_t)(rng_next(&f->rng) % FLOW_KEYS);
    uint32_t len;
    const uint32_t low = flow_version(i, atomic_load(&f->all[w].done));
    const bool found = remixdb_get(r, key, flow_key(key, w, i), val, &len);
    const uint32_t high = flow_version(i, atomic_load(&f->all[w].begun));
    if (found) {
      const uint32_t ver = flow_parse(val, len, w, i);
      THREAD_CHECK(ver >= low && ver <= high && ver >= last[w][i]);
      last[w][i] = ver;
    } else {
      THREAD_CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
      uint32_t ver = low;
      while (ver <= high && flow_there(ver)) ver++;
      THREAD_CHECK(ver <= high);
    }
    atomic_fetch_add(f->work, 1);
  }
  remixdb_unref(r);
  return NULL;
}

// Whether a reader's view of a writer's keys (version 0: not there) is the store after some number of its writes
// between low and high.
static bool flow_consistent(const uint32_t *seen, uint64_t low, uint64_t high) {
  for (uint64_t writes = low; writes <= high; writes++) {
    uint32_t i = 0;
    for (; i < FLOW_KEYS; i++) {
      const uint32_t ver = flow_version(i, writes);
      if (seen[i] != (flow_there(ver) ? ver : 0)) break;
    }
    if (i == FLOW_KEYS) return true;
  }
  return false;
}

static void *flow_scan(void *arg) {
  struct flow *const f = arg;
  struct xdb_ref *const r = remixdb_ref(f->xdb);
  struct xdb_iter *const it = remixdb_iter_create(r);
  THREAD_CHECK(r && it);
  uint8_t val[2048];
  char key[64], want[64];
  while (!atomic_load(f->stop)) {
    uint32_t seen[FLOW_WRITERS][FLOW_KEYS] = {{0}};
    uint64_t low[FLOW_WRITERS], high[FLOW_WRITERS];
    for (uint32_t w = 0; w < FLOW_WRITERS; w++) low[w] = atomic_load(&f->all[w].done);
    remixdb_iter_seek(it, "writer", 6);
    THREAD_CHECK(remixdb_errcode() == REMIXDB_OK);
    for (uint32_t w = 0; w < FLOW_WRITERS; w++) high[w] = atomic_load(&f->all[w].begun);
    uint32_t place = 0;  // the smallest key that may come
    for (; remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
      uint32_t klen, vlen;
      THREAD_CHECK(remixdb_iter_peek(it, key, &klen, val, &vlen));
      if (klen < 6 || memcmp(key, "writer", 6) != 0) break;
      while (place < FLOW_WRITERS * FLOW_KEYS) {
        const uint32_t n = flow_key(want, place / FLOW_KEYS, place % FLOW_KEYS);
        if (n == klen && memcmp(want, key, n) == 0) break;
        place++;
      }
      THREAD_CHECK(place < FLOW_WRITERS * FLOW_KEYS);
      seen[place / FLOW_KEYS][place % FLOW_KEYS] = flow_parse(val, vlen, place / FLOW_KEYS, place % FLOW_KEYS);
      place++;
      if (rng_next(&f->rng) % 100 == 0) time_sleep_ns(20000);
    }
    THREAD_CHECK(remixdb_iter_status(it) == REMIXDB_OK);
    for (uint32_t w = 0; w < FLOW_WRITERS; w++) THREAD_CHECK(flow_consistent(seen[w], low[w], high[w]));
    if (rng_next(&f->rng) % 4 == 0) remixdb_iter_park(it);
    atomic_fetch_add(f->work, 1);
  }
  remixdb_iter_destroy(it);
  remixdb_unref(r);
  return NULL;
}

// A thread that writes a little and ends; every second one leaves its view of the store, and an iterator on a key,
// behind.
struct guest {
  struct xdb *xdb;
  struct xdb_ref *ref;
  struct xdb_iter *it;
  uint32_t nr;
};

static uint32_t guest_key(char *buf, uint32_t i) { return (uint32_t)snprintf(buf, 32, "guest-%06u", i); }

static void *guest_main(void *arg) {
  struct guest *const g = arg;
  struct xdb_ref *const r = remixdb_ref(g->xdb);
  struct xdb_iter *const it = remixdb_iter_create(r);
  THREAD_CHECK(r && it);
  char key[32];
  for (uint32_t i = 0; i < 20; i++) THREAD_CHECK(remixdb_put(r, key, guest_key(key, g->nr + i), &g->nr, 4));
  remixdb_iter_seek(it, "guest-", 6);
  THREAD_CHECK(remixdb_iter_valid(it));
  if (g->nr / 20 % 2) {
    g->ref = r;
    g->it = it;
  } else {
    remixdb_iter_destroy(it);
    remixdb_unref(r);
  }
  return NULL;
}

#define GUESTS 40u

static void run_flow(uint64_t nr, int workers, uint64_t ms) {
  check_seed = seed_first + nr;
  struct remixdb_opts o = small_opts(workers);
  uint64_t rng = check_seed;
  o.ckeys = rng_next(&rng) % 2;
  o.tags = rng_next(&rng) % 2;
  o.sync = rng_next(&rng) % 2 ? 5 : REMIXDB_SYNC_NONE;
  struct xdb *x = remixdb_open_opts(dir, &o);
  CHECK(x);
  _Atomic bool stop = false;
  _Atomic uint64_t reads = 0, scans = 0;
  struct flow flows[FLOW_WRITERS + 3];
  pthread_t threads[FLOW_WRITERS + 3];
  memset(flows, 0, sizeof(flows));
  const uint32_t nr_threads = sizeof(flows) / sizeof(flows[0]);
  for (uint32_t i = 0; i < nr_threads; i++) {
    struct flow *const f = &flows[i];
    f->xdb = x;
    f->id = i;
    f->all = flows;
    f->stop = &stop;
    f->rng = check_seed + i;
    f->work = i == nr_threads - 1 ? &scans : &reads;
  }
  for (uint32_t i = 0; i < nr_threads; i++) {
    void *(*const fn)(void *) = i < FLOW_WRITERS ? flow_write : i < nr_threads - 1 ? flow_read : flow_scan;
    CHECK(pthread_create(&threads[i], NULL, fn, &flows[i]) == 0);
  }
  struct guest guests[GUESTS];
  memset(guests, 0, sizeof(guests));
  for (uint32_t i = 0; i < GUESTS; i++) {
    pthread_t t;
    guests[i].xdb = x;
    guests[i].nr = i * 20;
    CHECK(pthread_create(&t, NULL, guest_main, &guests[i]) == 0 && pthread_join(t, NULL) == 0);
    time_sleep_ns(ms * 1000000 / GUESTS);
  }
  // some time, and then until everybody has done something and memtables have come and gone; a slow machine takes
  // longer
  const uint64_t rounds = stat_of(x, "rounds");
  while (atomic_load(&reads) < 100 || atomic_load(&scans) < 3 || stat_of(x, "rounds") < rounds + 2)
    time_sleep_ns(1000000);
  atomic_store(&stop, true);
  for (uint32_t i = 0; i < nr_threads; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  // what the guests left is as good as it was
  struct xdb_ref *r = remixdb_ref(x);
  char key[32];
  for (uint32_t i = 0; i < GUESTS; i++) {
    if (!guests[i].it) continue;
    for (uint32_t k = 0; k < (i + 1) * 20; k++, remixdb_iter_skip1(guests[i].it)) {
      uint32_t len;
      CHECK(remixdb_iter_peek(guests[i].it, key, &len, NULL, NULL));
      char want[32];
      CHECK(len == guest_key(want, k) && memcmp(key, want, len) == 0);
    }
    remixdb_iter_destroy(guests[i].it);
    CHECK(remixdb_probe(guests[i].ref, key, 12) && remixdb_put(guests[i].ref, "late", 4, NULL, 0));
    remixdb_unref(guests[i].ref);
  }
  for (int round = 0; round < 2; round++) {
    for (uint32_t w = 0; w < FLOW_WRITERS; w++) {
      for (uint32_t i = 0; i < FLOW_KEYS; i++) {
        uint8_t val[2048];
        uint32_t len;
        const uint32_t ver = flow_version(i, flows[w].done);
        CHECK(remixdb_get(r, key, flow_key(key, w, i), val, &len) == flow_there(ver));
        if (flow_there(ver)) CHECK(flow_parse(val, len, w, i) == ver);
      }
    }
    for (uint32_t i = 0; i < GUESTS * 20; i++) CHECK(remixdb_probe(r, key, guest_key(key, i)));
    remixdb_unref(r);
    remixdb_close(x);
    CHECK(remixdb_errcode() == REMIXDB_OK);
    if (round == 1) break;
    x = remixdb_open_opts(dir, &o);
    CHECK(x);
    r = remixdb_ref(x);
  }
}

static void test_threads(void **state) {
  (void)state;
  for (int workers = 0; workers < 3; workers++) {
    run_flow(400 + (uint64_t)workers, workers, 500);
    setup_again();
  }
}

// ---- nothing to do, nothing done

static void usage(uint64_t *us_out, uint64_t *switches_out) {
  struct rusage u;
  CHECK(getrusage(RUSAGE_SELF, &u) == 0);
  *us_out = (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
            (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
  *switches_out = (uint64_t)u.ru_nvcsw;
}

// ---- a log of many records, replayed by several threads: several versions of a key, neighbours that come together,
// large records between small ones

static uint32_t replay_key(uint8_t *buf, uint32_t i) {
  return (uint32_t)snprintf((char *)buf, 16, "%c%05u", 'a' + (int)(i % 7), i * 7919 % 100003);
}

static void test_replay(void **state) {
  (void)state;
  enum { KEYS = 2000, WRITES = 8000 };
  static uint32_t last[KEYS], len[KEYS];
  static uint8_t val[REMIXDB_KV_MAX], want[REMIXDB_KV_MAX];
  for (int workers = 0; workers <= 3; workers++) {
    struct remixdb_opts o = small_opts(workers);
    o.memtable_mb = 64;
    o.wal_mb = 0;
    uint64_t rng = seed_first + (uint64_t)workers;
    memset(last, 0, sizeof(last));
    uint64_t writes = 0;
    for (int round = 0; round < 2; round++) {  // the second replays two segments
      struct xdb *x = remixdb_open_opts(dir, &o);
      CHECK(x);
      struct xdb_ref *r = remixdb_ref(x);
      for (uint32_t i = 1; i <= WRITES; i++) {
        const uint32_t k = (uint32_t)(i % 3 ? rng_next(&rng) % KEYS : i / 3 % KEYS),
                       number = i + WRITES * (uint32_t)round;
        uint8_t key[16];
        const uint32_t klen = replay_key(key, k);
        writes++;
        if (rng_next(&rng) % 10 == 0) {
          last[k] = 0;
          CHECK(remixdb_del(r, key, klen));
          continue;
        }
        last[k] = number;
        len[k] = rng_next(&rng) % 500 ? (uint32_t)(rng_next(&rng) % 100) : (uint32_t)(rng_next(&rng) % 60000);
        memset(val, (int)(number % 251), len[k]);
        CHECK(remixdb_put(r, key, klen, val, len[k]));
      }
      remixdb_unref(r);
      x->leave_log = true;
      remixdb_close(x);
      CHECK(remixdb_errcode() == REMIXDB_OK && (x = remixdb_open_opts(dir, &o)) && (r = remixdb_ref(x)));
      x->leave_log = true;
      CHECK(x->recovery.nr_records == writes && xdb_super(x)->version->parts[0]->remix == NULL);
      char why[200];
      if (!wh_check(xdb_super(x)->active->wh, why, sizeof(why))) fail_msg("%d workers: %s", workers, why);
      for (uint32_t k = 0; k < KEYS; k++) {
        uint8_t key[16];
        uint32_t vlen;
        const uint32_t klen = replay_key(key, k);
        const bool there = remixdb_get(r, key, klen, val, &vlen);
        memset(want, (int)(last[k] % 251), last[k] ? len[k] : 0);
        if (there != (last[k] != 0) || (there && (vlen != len[k] || memcmp(val, want, vlen) != 0)))
          fail_msg("%d workers, seed %llu: key %u is not as it was written last", workers,
                   (unsigned long long)seed_first, k);
      }
      remixdb_unref(r);
      remixdb_close(x);
    }
    setup_again();
  }
}

static void test_idle(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) {
    struct remixdb_opts o = small_opts(i);
    o.sync = i == 2 ? 1 : REMIXDB_SYNC_NONE;
    struct xdb *const x = remixdb_open_opts(dir, &o);
    CHECK(x);
    struct xdb_ref *const r = remixdb_ref(x);
    uint8_t val[1000] = {0};
    for (uint32_t k = 0; k < 3000; k++) CHECK(remixdb_put(r, &k, sizeof(k), val, sizeof(val)));
    struct xdb_iter *const it = remixdb_iter_create(r);
    remixdb_iter_seek(it, NULL, 0);
    CHECK(remixdb_iter_valid(it) && xdb_wait_idle(x) == REMIXDB_OK && remixdb_sync(r));
    time_sleep_ns(100000000);  // the end of what was under way
    uint64_t us[2], switches[2];
    usage(&us[0], &switches[0]);
    time_sleep_ns(300000000);
    usage(&us[1], &switches[1]);
    // a thread that looked every 10 ms would be seen by the second
    if (us[1] - us[0] > 15000 || switches[1] - switches[0] > 20)
      fail_msg("an idle store took %llu us and woke up %llu times", (unsigned long long)(us[1] - us[0]),
               (unsigned long long)(switches[1] - switches[0]));
    remixdb_iter_destroy(it);
    remixdb_unref(r);
    remixdb_close(x);
  }
}

static void test_sync_every(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(1);
  o.sync = 1;
  struct xdb *const x = remixdb_open_opts(dir, &o);
  CHECK(x);
  struct xdb_ref *const r = remixdb_ref(x);
  for (uint32_t k = 0; k < 50; k++) {
    CHECK(remixdb_put(r, &k, sizeof(k), &k, sizeof(k)));
    if (k % 10) continue;
    while (stat_of(x, "durable_sequence") < stat_of(x, "sequence")) time_sleep_ns(200000);  // hangs when it never is
  }
  // when the log has come to rest it says how far it is durable
  char path[ENV_PATH_MAX];
  uint8_t head[512];
  CHECK(env_path(path, dir, "wal-0") == REMIXDB_OK);
  do {
    time_sleep_ns(20000000);
    FILE *const f = fopen(path, "rb");
    CHECK(f && fread(head, sizeof(head), 1, f) == 1 && fclose(f) == 0);
  } while (load64le(head + 464) == 0);
  CHECK(load64le(head + 464) == wal_segment_bytes(x->wal));
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

// ---- bad disks: an env that refuses on demand

enum trouble { TROUBLE_NONE, TROUBLE_FULL, TROUBLE_WRITE, TROUBLE_SYNC };
static _Atomic int trouble;
static struct env_ops bad_ops;
static struct env bad_env = {.ops = &bad_ops, .native = false};

static ssize_t bad_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  const int t = atomic_load(&trouble);
  if (t == TROUBLE_FULL) return -ENOSPC;
  if (t == TROUBLE_WRITE) return -EIO;
  return env_posix()->ops->pwrite(e, fd, buf, len, off);
}

static int bad_allocate(struct env *e, int fd, uint64_t off, uint64_t len) {
  return atomic_load(&trouble) == TROUBLE_FULL ? -ENOSPC : env_posix()->ops->allocate(e, fd, off, len);
}

static int bad_sync(struct env *e, int fd) {
  return atomic_load(&trouble) == TROUBLE_SYNC ? -EIO : env_posix()->ops->sync_data(e, fd);
}

static void bad_open(struct model *m) {
  bad_ops = *env_posix()->ops;
  bad_ops.pwrite = bad_pwrite;
  bad_ops.allocate = bad_allocate;
  bad_ops.sync_data = bad_ops.sync_all = bad_sync;
  atomic_store(&trouble, TROUBLE_NONE);
  if (xdb_open(dir, &m->opts, &bad_env, &m->xdb) != REMIXDB_OK) fail_msg("%s", err_msg());
  m->ref = remixdb_ref(m->xdb);
  CHECK(m->ref);
}

// After a while the store must have noticed, and write and compact again.
static void room_again(struct model *m) {
  atomic_store(&trouble, TROUBLE_NONE);
  const uint64_t began = time_ns();
  while (!model_put(m, 0) || xdb_flush(m->xdb) != REMIXDB_OK) {
    CHECK(time_ns() - began < 30000000000ull);
    time_sleep_ns(5000000);
  }
}

// A full disk refuses writes until there is room, wherever it is met: nothing is lost, and what was refused is not
// there.
static void run_full_disk(uint64_t nr, int workers) {
  check_seed = seed_first + nr;
  struct model m;
  model_init(&m, 1000, 3000);
  m.opts = small_opts(workers);
  bad_open(&m);
  uint32_t refused = 0;
  for (uint32_t step = 0; step < 12000; step++) {
    const uint64_t r = rng_next(&m.rng);
    const uint32_t k = (uint32_t)(r >> 32) % m.nr;
    if (r % 1000 == 0 || step % 2000 == 0) atomic_store(&trouble, TROUBLE_FULL);
    bool good = true;
    if (r % 1000 == 1) good = remixdb_sync(m.ref);
    else if (r % 10 == 2) model_get(&m, k);
    else good = r % 4 ? model_put(&m, k) : model_del(&m, k);
    if (good) continue;
    refused++;
    CHECK(remixdb_errcode() == REMIXDB_NOSPACE && strstr(remixdb_errmsg(), dir));
    model_get(&m, k);
    if (r % 4 == 0) model_scan(&m);
    if (r % 3) continue;
    room_again(&m);
  }
  CHECK(refused > 0);
  room_again(&m);
  CHECK(remixdb_sync(m.ref));
  model_check(&m);
  model_close(&m);
  bad_open(&m);
  model_check(&m);
  model_close(&m);
  model_fini(&m);
}

static void test_full_disk(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    run_full_disk(500 + (uint64_t)i, i);
    setup_again();
  }
}

// Two that make the same store at the same time: while the second looks around, the first gets done.
static struct xdb *first_opened;

static int racing_stat(struct env *e, int at, const char *path, struct env_stat *out) {
  const int rc = env_posix()->ops->stat(e, at, path, out);
  if (rc == -ENOENT && !first_opened && strcmp(path, FILES_CURRENT) == 0) {
    const struct remixdb_opts o = small_opts(0);
    if (xdb_open(dir, &o, env_posix(), &first_opened) != REMIXDB_OK) fail_msg("%s", err_msg());
  }
  return rc;
}

static void test_made_by_two(void **state) {
  (void)state;
  bad_ops = *env_posix()->ops;
  bad_ops.stat = racing_stat;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  const enum remixdb_status s = xdb_open(dir, &o, &bad_env, &x);
  if (s != REMIXDB_LOCKED) fail_msg("%s: %s", remixdb_strerror(s), err_msg());
  remixdb_close(first_opened);
  first_opened = NULL;
}

// The disk is full at one moment only: when the version file is written.
static int full_for_current_open(struct env *e, int at, const char *path, unsigned flags) {
  if (atomic_load(&trouble) == TROUBLE_FULL && strncmp(path, FILES_CURRENT, strlen(FILES_CURRENT)) == 0) return -ENOSPC;
  return env_posix()->ops->open(e, at, path, flags);
}

static void test_full_at_version(void **state) {
  (void)state;
  check_seed = seed_first + 510;
  struct model m;
  model_init(&m, 300, 3000);
  m.opts = small_opts(0);
  bad_open(&m);
  bad_ops.open = full_for_current_open;
  bad_ops.pwrite = env_posix()->ops->pwrite;
  bad_ops.allocate = env_posix()->ops->allocate;
  atomic_store(&trouble, TROUBLE_FULL);
  for (uint32_t i = 0; i < m.nr; i++) CHECK(model_put(&m, i));
  CHECK(xdb_flush(m.xdb) == REMIXDB_NOSPACE);
  model_check(&m);
  room_again(&m);
  model_check(&m);
  model_close(&m);
  bad_open(&m);
  model_check(&m);
  model_close(&m);
  model_fini(&m);
}

static bool model_matches(struct model *m) {
  for (uint32_t i = 0; i < m->nr; i++) {
    uint32_t len;
    if (remixdb_get(m->ref, m->keys[i].ptr, m->keys[i].len, m->buf, &len) != (m->now[i].ver != 0)) return false;
    if (m->now[i].ver && !value_good(m, i, m->now[i], m->buf, len)) return false;
  }
  return true;
}

// After a failed write or sync: no more writes, reads as before, and what comes back is what was synced and some of
// what came after, in order.
static void run_failed_disk(uint64_t nr, enum trouble what, int workers) {
  check_seed = seed_first + nr;
  struct model m;
  model_init(&m, 150, 3000);
  m.opts = small_opts(workers);
  bad_open(&m);
  for (uint32_t i = 0; i < 1500; i++) {
    const uint32_t k = (uint32_t)(rng_next(&m.rng) % m.nr);
    CHECK(rng_next(&m.rng) % 4 ? model_put(&m, k) : model_del(&m, k));
  }
  CHECK(remixdb_sync(m.ref) && xdb_wait_idle(m.xdb) == REMIXDB_OK);
  struct now *const synced = malloc(m.nr * sizeof(*synced));
  struct {
    uint32_t at;
    struct now now;
  } *const after = malloc(5000 * sizeof(*after));
  CHECK(synced && after);
  memcpy(synced, m.now, m.nr * sizeof(*synced));
  atomic_store(&trouble, what);
  uint32_t accepted = 0;
  bool good = true;
  for (; good && accepted < 5000; accepted += good) {
    const uint32_t k = (uint32_t)(rng_next(&m.rng) % m.nr);
    const struct now n = {++m.next_ver, random_len(&m, m.keys[k].len)};
    value_fill(m.buf, k, n);
    good = remixdb_put(m.ref, m.keys[k].ptr, m.keys[k].len, m.buf, n.len);
    if (!good) break;
    m.now[k] = n;
    after[accepted].at = k;
    after[accepted].now = n;
    if (accepted % 200 == 199) good = remixdb_sync(m.ref) || (accepted++, false);
  }
  CHECK(accepted < 5000);
  atomic_store(&trouble, TROUBLE_NONE);
  for (int i = 0; i < 3; i++) {
    CHECK(!remixdb_put(m.ref, "k", 1, "v", 1) && remixdb_errcode() == REMIXDB_IO &&
          strstr(remixdb_errmsg(), strerror(EIO)));
    CHECK(strstr(remixdb_errmsg(), dir));
    CHECK(!remixdb_del(m.ref, "k", 1) && remixdb_errcode() == REMIXDB_IO);
    CHECK(!remixdb_sync(m.ref) && remixdb_errcode() == REMIXDB_IO);
    model_check(&m);
  }
  remixdb_unref(m.ref);
  remixdb_close(m.xdb);
  CHECK(remixdb_errcode() == REMIXDB_IO && strstr(remixdb_errmsg(), strerror(EIO)));
  bad_open(&m);
  memcpy(m.now, synced, m.nr * sizeof(*synced));
  uint32_t kept = 0;
  while (!model_matches(&m)) {
    CHECK(kept < accepted);
    m.now[after[kept].at] = after[kept].now;
    kept++;
  }
  model_check(&m);
  CHECK(model_put(&m, 0) && remixdb_sync(m.ref));
  model_close(&m);
  free(synced);
  free(after);
  model_fini(&m);
}

static void test_failed_disk(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 4; i++) {
    run_failed_disk(520 + i, i % 2 ? TROUBLE_SYNC : TROUBLE_WRITE, (int)i / 2);
    setup_again();
  }
}

// A ref is inside the cursors' domain from the first position that one of its iterators takes to the last one that is
// given up, and goes on to now with a seek when there is but one.
static void test_stay(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  struct xdb_ref *r;
  struct xdb_iter *a, *b;
  OK(xdb_open(dir, &o, env_posix(), &x));
  OK(xdb_ref(x, &r));
  OK(xdb_put(r, kref("k", 1), "v", 1, false));
  OK(xdb_iter_create(r, &a));
  OK(xdb_iter_create(r, &b));
  const _Atomic uint64_t *const at = &r->stay.at;
  CHECK(atomic_load(at) == 0);
  OK(xdb_iter_seek(a, kref("", 0)));
  uint64_t stamp = epoch_stamp(&x->cursors);
  CHECK(xdb_iter_valid(a) && !epoch_passed(&x->cursors, stamp));
  OK(xdb_iter_seek(a, kref("", 0)));
  CHECK(epoch_passed(&x->cursors, stamp) && atomic_load(at) != 0);
  OK(xdb_iter_seek(b, kref("k", 1)));
  stamp = epoch_stamp(&x->cursors);
  OK(xdb_iter_seek(b, kref("k", 1)));  // a may be on what died before
  CHECK(!epoch_passed(&x->cursors, stamp));
  OK(xdb_iter_skip(a, 1));  // to its end
  CHECK(!xdb_iter_valid(a) && !epoch_passed(&x->cursors, stamp));
  xdb_iter_park(a);  // once more changes nothing
  xdb_iter_destroy(a);
  CHECK(!epoch_passed(&x->cursors, stamp));
  OK(xdb_iter_seek_last(b));
  CHECK(epoch_passed(&x->cursors, stamp) && atomic_load(at) != 0);
  OK(xdb_iter_seek(b, kref("l", 1)));  // nothing there
  CHECK(!xdb_iter_valid(b) && atomic_load(at) == 0);
  OK(xdb_iter_seek_for_prev(b, kref("l", 1)));
  CHECK(atomic_load(at) != 0);
  xdb_iter_destroy(b);
  CHECK(atomic_load(at) == 0 && r->stays == 0);
  xdb_unref(r);
  OK(xdb_close(x));
}

int main(void) {
  seed_first = check_seed_or(time_ns() % 1000000 * 1000);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_model_alone, setup, teardown),
      cmocka_unit_test_setup_teardown(test_model_small_values, setup, teardown),
      cmocka_unit_test_setup_teardown(test_model_workers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_partitions, setup, teardown),
      cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
      cmocka_unit_test_setup_teardown(test_replay, setup, teardown),
      cmocka_unit_test_setup_teardown(test_idle, setup, teardown),
      cmocka_unit_test_setup_teardown(test_sync_every, setup, teardown),
      cmocka_unit_test_setup_teardown(test_stay, setup, teardown),
      cmocka_unit_test_setup_teardown(test_made_by_two, setup, teardown),
      cmocka_unit_test_setup_teardown(test_full_disk, setup, teardown),
      cmocka_unit_test_setup_teardown(test_full_at_version, setup, teardown),
      cmocka_unit_test_setup_teardown(test_failed_disk, setup, teardown),
  };
  return cmocka_run_group_tests_name("xdb", tests, NULL, NULL);
}
