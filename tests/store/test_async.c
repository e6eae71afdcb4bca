// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous gets through the public calls, with each engine: results, moments, reads counted, a full object, the
// descriptor, the end with gets under way, and other threads that want the same blocks and descriptors meanwhile.
#include <errno.h>
#include <poll.h>

#include "base/thread.h"
#include "tests/lib/check.h"
#include "tests/lib/fault.h"
#include "tests/lib/store.h"
#include "store/async.h"

#define KEYS 6000u
#define VALUE 100u
#define DEPTH_MAX 1024u

static const char *const engines[] = {"uring", "aio", "sync"};
#define ENGINES (sizeof(engines) / sizeof(engines[0]))

// ---- a store whose values follow from key and round

static uint32_t key_of(uint32_t i, char *buf) { return (uint32_t)sprintf(buf, "key%08u", i); }

// Value i has no fixed length: some are empty, some fill several pages.
static uint32_t value_len(uint32_t i) { return i % 97 == 0 ? 0 : i % 401 == 0 ? 9000 + i % 50 : VALUE; }

static uint32_t value_of(uint32_t i, uint32_t round, uint8_t *buf) {
  uint64_t seed = (uint64_t)round << 32 | i;
  const uint32_t len = value_len(i);
  for (uint32_t at = 0; at < len; at++) buf[at] = (uint8_t)(at % 16 < 8 ? rng_next(&seed) : 0);
  return len;
}

static void put(struct xdb_ref *r, uint32_t i, uint32_t round) {
  char key[32];
  static uint8_t val[16384];
  const uint32_t klen = key_of(i, key), vlen = value_of(i, round, val);
  CHECK(remixdb_put(r, key, klen, val, vlen));
}

static void del(struct xdb_ref *r, uint32_t i) {
  char key[32];
  CHECK(remixdb_del(r, key, key_of(i, key)));
}

struct fixture {
  struct xdb *x;
  struct xdb_ref *ref;
  struct xdb_gets *gets;
  uint32_t depth;
};

// Deterministic rounds, small tables: several partitions of several runs.
static struct remixdb_opts options(const char *io) {
  struct remixdb_opts o = small_opts(0);
  o.io = io;
  o.cache_mb = 0;
  return o;
}

static void begin_store(struct fixture *f, const struct remixdb_opts *o, uint32_t depth) {
  setup_again();
  f->x = remixdb_open_opts(dir, o);
  CHECK(f->x);
  shrink(f->x, 300u << 10, 16);
  f->ref = remixdb_ref(f->x);
  CHECK(f->ref);
  f->depth = depth;
  f->gets = remixdb_gets_create(f->ref, depth);
  CHECK(f->gets && remixdb_errcode() == REMIXDB_OK);
}

static void end_store(struct fixture *f) {
  remixdb_gets_destroy(f->gets);
  remixdb_unref(f->ref);
  remixdb_close(f->x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

// All keys in tables, some of them twice and in young views; every 13th deleted, all below KEYS that are no multiple of
// 5 are there.
static bool there(uint32_t i) { return i < KEYS && i % 5 != 0 && i % 13 != 0; }

static void fill(struct fixture *f) {
  for (uint32_t i = 0; i < KEYS; i++)
    if (i % 5 != 0) put(f->ref, i, i % 3);
  CHECK(remixdb_flush(f->ref));
  for (uint32_t i = 0; i < KEYS; i += 7)
    if (there(i)) put(f->ref, i, i % 3);
  for (uint32_t i = 0; i < KEYS; i += 13) del(f->ref, i);
  CHECK(remixdb_flush(f->ref));
}

// ---- gets and their right results

struct want {
  uint32_t i, cap;
  bool has_buf, done;
  uint8_t *buf;
};

static struct want wants[DEPTH_MAX];
static uint32_t nr_wants;

static void wants_free(void) {
  for (uint32_t n = 0; n < nr_wants; n++) free(wants[n].buf);
  nr_wants = 0;
}

static bool begin(struct fixture *f, uint32_t i, uint32_t cap, bool has_buf) {
  char key[32];
  const uint32_t klen = key_of(i, key);
  struct want *const w = &wants[nr_wants];
  CHECK(nr_wants < DEPTH_MAX);
  *w = (struct want){.i = i, .cap = cap, .has_buf = has_buf, .buf = malloc(cap ? cap : 1)};
  CHECK(w->buf);
  const bool begun = remixdb_get_begin(f->gets, key, klen, has_buf ? w->buf : NULL, has_buf ? cap : 0, w);
  memset(key, 0xEE, sizeof(key));  // the call has copied it
  if (begun) nr_wants++;
  else free(w->buf);
  return begun;
}

static void check_got(const struct remixdb_got *g) {
  struct want *const w = g->priv;
  static uint8_t val[16384];
  const uint32_t len = value_of(w->i, w->i % 3, val);
  CHECK(w >= wants && w < wants + nr_wants && !w->done);
  w->done = true;
  if (!there(w->i)) {
    CHECK_SAYS(g->status == REMIXDB_NOTFOUND && g->len == 0 && g->msg[0] == 0, "key %u: %s", w->i, g->msg);
    return;
  }
  const bool fits = !w->has_buf || len <= w->cap;
  CHECK_SAYS(g->status == (fits ? REMIXDB_OK : REMIXDB_TOOBIG), "key %u: %d %s", w->i, (int)g->status, g->msg);
  CHECK(g->len == len && (g->msg[0] != 0) == !fits);
  if (w->has_buf) CHECK(memcmp(w->buf, val, len < w->cap ? len : w->cap) == 0);
}

// Takes results, at most `max` a time, until all of the gets have theirs.
static void take_all(struct fixture *f, size_t max, size_t min) {
  struct remixdb_got got[64];
  size_t left = 0, n;
  for (uint32_t k = 0; k < nr_wants; k++) left += !wants[k].done;
  while (left > 0) {
    n = remixdb_get_poll(f->gets, got, max, min);
    CHECK(remixdb_errcode() == REMIXDB_OK && n <= max && n <= left);
    CHECK(n >= (min < max ? min < left ? min : left : max < left ? max : left));
    for (size_t k = 0; k < n; k++) check_got(&got[k]);
    left -= n;
  }
  CHECK(remixdb_get_poll(f->gets, got, max, min) == 0 && remixdb_errcode() == REMIXDB_NOTFOUND);
  wants_free();
}

// ---- tests

static void results(struct fixture *f, uint64_t seed) {
  fill(f);
  for (uint32_t turn = 0; turn < 12; turn++) {
    const uint32_t nr = 1 + (uint32_t)below(&seed, f->depth);
    for (uint32_t n = 0; n < nr; n++) {
      const uint32_t i = (uint32_t)below(&seed, KEYS + 100);
      const uint32_t cap = chance(&seed, 20) ? (uint32_t)below(&seed, VALUE) : 10000;
      CHECK(begin(f, i, cap, chance(&seed, 90)));
    }
    take_all(f, 1 + below(&seed, 64), below(&seed, 3) * below(&seed, 64));
  }
  // from the memtable, over and beside records of tables
  for (uint32_t i = 1; i < KEYS; i += 31)
    if (there(i)) put(f->ref, i, i % 3);
  for (uint32_t n = 0; n < f->depth; n++) CHECK(begin(f, (uint32_t)below(&seed, KEYS), 10000, true));
  take_all(f, 64, 64);
}

static void test_results(void **state) {
  (void)state;
  uint64_t seed = check_seed_for("results");
  for (uint32_t e = 0; e < ENGINES; e++)
    for (uint32_t form = 0; form < 6; form++) {
      struct fixture f;
      struct remixdb_opts o = options(engines[e]);
      o.cache_mb = form & 1;
      o.tags = form != 4;
      o.direct_io = form == 2;
      o.compression = form == 3 || form == 5 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
      begin_store(&f, &o, form == 0 ? DEPTH_MAX : form == 1 ? 1 : 40);
      results(&f, rng_next(&seed));
      end_store(&f);
    }
}

static void test_arguments(void **state) {
  (void)state;
  struct fixture f;
  const struct remixdb_opts o = options("auto");
  struct remixdb_got got;
  static uint8_t key[REMIXDB_KV_MAX + 1];
  begin_store(&f, &o, 2);
  const uint32_t bad_depths[] = {0, REMIXDB_GETS_MAX + 1, UINT32_MAX};
  for (uint32_t i = 0; i < 3; i++)
    CHECK(!remixdb_gets_create(f.ref, bad_depths[i]) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_gets_create(NULL, 1) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_get_begin(NULL, "k", 1, NULL, 0, NULL) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_get_begin(f.gets, NULL, 1, NULL, 0, NULL) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_get_begin(f.gets, "k", 1, NULL, 1, NULL) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_get_begin(f.gets, key, sizeof(key), NULL, 0, NULL) && remixdb_errcode() == REMIXDB_TOOBIG);
  CHECK(remixdb_get_poll(NULL, &got, 1, 0) == 0 && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(remixdb_get_poll(f.gets, NULL, 1, 0) == 0 && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(remixdb_gets_fd(NULL) == -1 && remixdb_errcode() == REMIXDB_INVALID);
  remixdb_gets_destroy(NULL);
  CHECK(remixdb_get_poll(f.gets, NULL, 0, 5) == 0 && remixdb_errcode() == REMIXDB_NOTFOUND);
  // a long key is copied, too; the empty key is a key
  memset(key, 'k', sizeof(key));
  CHECK(remixdb_put(f.ref, key, 60000, "v", 1) && remixdb_put(f.ref, NULL, 0, "e", 1) && remixdb_flush(f.ref));
  char val[2][4];
  CHECK(remixdb_get_begin(f.gets, key, 60000, val[0], 4, &val[0]));
  CHECK(remixdb_get_begin(f.gets, NULL, 0, val[1], 4, &val[1]));
  memset(key, 0, sizeof(key));
  CHECK(!remixdb_get_begin(f.gets, "k", 1, NULL, 0, NULL) && remixdb_errcode() == REMIXDB_ABORTED);
  CHECK(remixdb_errmsg()[0]);
  for (uint32_t n = 0; n < 2; n++) {
    CHECK(remixdb_get_poll(f.gets, &got, 1, 1) == 1 && got.status == REMIXDB_OK && got.len == 1);
    CHECK(*(char *)got.priv == (got.priv == &val[0] ? 'v' : 'e'));
  }
  CHECK(remixdb_get_begin(f.gets, "k", 1, NULL, 0, NULL));
  CHECK(remixdb_get_poll(f.gets, &got, 1, 1) == 1 && got.status == REMIXDB_NOTFOUND);
  end_store(&f);
}

// Hundreds of cold gets are read together, each block once.
static void test_reads(void **state) {
  (void)state;
  for (uint32_t e = 0; e < ENGINES; e++) {
    struct fixture f;
    const struct remixdb_opts o = options(engines[e]);
    begin_store(&f, &o, DEPTH_MAX);
    for (uint32_t i = 0; i < 40000; i++) put(f.ref, i % KEYS, i % KEYS % 3);
    CHECK(remixdb_compact(f.ref));
    // many keys of one block
    uint64_t before = stat_of(f.x, "reads");
    for (uint32_t i = 1001; i < 1011; i++) {
      char key[32];
      for (uint32_t n = 0; n < 20; n++) CHECK(remixdb_get_begin(f.gets, key, key_of(i, key), NULL, 0, NULL));
    }
    struct remixdb_got got[DEPTH_MAX];
    CHECK(remixdb_get_poll(f.gets, got, DEPTH_MAX, DEPTH_MAX) == 200);
    CHECK(stat_of(f.x, "reads") - before <= 2);
    // many blocks: one submission each time that enough have gathered, and one wait
    before = stat_of(f.x, "reads");
    uint64_t trips = stat_of(f.x, "trips");
    uint32_t nr = 0;
    for (uint32_t i = 1; i < KEYS; i += 53, nr++) {
      char key[32];
      CHECK(remixdb_get_begin(f.gets, key, key_of(i, key), NULL, 0, NULL));
    }
    CHECK(nr > 100);
    CHECK(remixdb_get_poll(f.gets, got, DEPTH_MAX, DEPTH_MAX) == nr);
    for (uint32_t k = 0; k < nr; k++) CHECK(got[k].status == REMIXDB_OK);
    const uint64_t reads = stat_of(f.x, "reads") - before;
    trips = stat_of(f.x, "trips") - trips;
    // once in a while another key has the tag
    CHECK_SAYS(reads >= nr * 9 / 10 && reads <= nr + nr / 16, "%s: %u reads for %u", engines[e], (unsigned)reads, nr);
    const bool together = strcmp(blkio_engine(&f.x->io), "sync") != 0;
    CHECK_SAYS(trips <= (together ? 2 + nr / 32 : reads), "%s: %u trips", engines[e], (unsigned)trips);
    end_store(&f);
  }
}

// A get shows the moment of its beginning, whatever is written and compacted before its result is taken; and it keeps
// the files of that moment no longer than it needs them.
static void test_moment(void **state) {
  (void)state;
  for (uint32_t e = 0; e < ENGINES; e++) {
    struct fixture f;
    const struct remixdb_opts o = options(engines[e]);
    begin_store(&f, &o, 200);
    fill(&f);
    for (uint32_t i = 0; i < 100; i++) CHECK(begin(&f, i * 59, 10000, true));
    for (uint32_t i = 0; i < KEYS; i++) {
      if (i % 2) del(f.ref, i);
      else put(f.ref, i, 9);
    }
    CHECK(remixdb_compact(f.ref));
    CHECK(stat_of(f.x, "files") > 0);
    take_all(&f, 64, 1);
    CHECK(stat_of(f.x, "files") == 0);
    end_store(&f);
  }
}

// Gets that follow each other without a pause keep no old version: each new one counts its own.
static void test_no_old(void **state) {
  (void)state;
  struct fixture f;
  const struct remixdb_opts o = options("uring");
  char key[32];
  struct remixdb_got got;
  begin_store(&f, &o, 4);
  fill(&f);
  for (uint32_t n = 0; n < 3; n++) CHECK(remixdb_get_begin(f.gets, key, key_of(1 + n * 100, key), NULL, 0, NULL));
  for (uint32_t turn = 0; turn < 6; turn++) {
    for (uint32_t i = 0; i < KEYS; i++) put(f.ref, i, turn);
    CHECK(remixdb_compact(f.ref));
    for (uint32_t n = 0; n < 200; n++) {
      CHECK(remixdb_get_begin(f.gets, key, key_of((uint32_t)(n * 29 % KEYS), key), NULL, 0, NULL));
      CHECK(remixdb_get_poll(f.gets, &got, 1, 1) == 1);  // three are always under way
    }
    CHECK(stat_of(f.x, "files") == 0);
  }
  end_store(&f);
}

static void test_snapshot(void **state) {
  (void)state;
  struct fixture f;
  const struct remixdb_opts o = options("auto");
  begin_store(&f, &o, 4);
  fill(&f);
  struct xdb_snapshot *const snap = remixdb_snapshot(f.ref);
  struct xdb_ref *const then = remixdb_snapshot_ref(snap), *const now = f.ref;
  remixdb_gets_destroy(f.gets);
  f.gets = remixdb_gets_create(then, 300);
  CHECK(f.gets);
  for (uint32_t i = 0; i < KEYS; i++) put(now, i, 9);
  CHECK(remixdb_compact(now));
  for (uint32_t i = 0; i < 300; i++) CHECK(begin(&f, i * 19, 10000, true));
  take_all(&f, 64, 64);
  remixdb_gets_destroy(f.gets);
  f.gets = NULL;
  remixdb_unref(then);
  remixdb_snapshot_release(snap);
  end_store(&f);
}

// The end with gets at every stage: gathered, at the disk, ready. Buffers are not written afterwards.
static void test_destroy(void **state) {
  (void)state;
  for (uint32_t e = 0; e < ENGINES; e++) {
    struct fixture f;
    const struct remixdb_opts o = options(engines[e]);
    begin_store(&f, &o, 300);
    fill(&f);
    put(f.ref, 1, 1);
    for (uint32_t turn = 0; turn < 8; turn++) {
      for (uint32_t i = 0; i < turn * 37; i++) CHECK(begin(&f, 1 + i * 11, 10000, true));
      if (turn % 2) CHECK(remixdb_get_poll(f.gets, NULL, 0, 0) == 0);
      CHECK(begin(&f, 1, 10000, true));
      remixdb_gets_destroy(f.gets);
      wants_free();
      f.gets = remixdb_gets_create(f.ref, 300);
      CHECK(f.gets);
    }
    CHECK(stat_of(f.x, "files") == 0);
    end_store(&f);
  }
}

// While a block is at the disk for a get that nobody polls, another ref reads that block, and the cache takes it.
static void test_same_block(void **state) {
  (void)state;
  for (uint32_t e = 0; e < ENGINES; e++) {
    struct fixture f;
    struct remixdb_opts o = options(engines[e]);
    o.cache_mb = 8;
    begin_store(&f, &o, 300);
    fill(&f);
    for (uint32_t i = 0; i < 300; i++) CHECK(begin(&f, 1 + i * 19, 10000, true));
    struct xdb_ref *const other = remixdb_ref(f.x);
    CHECK(other);
    for (uint32_t i = 0; i < 300; i++) {
      char key[32];
      CHECK(remixdb_probe(other, key, key_of(1 + i * 19, key)) == there(1 + i * 19));
    }
    const uint64_t reads = stat_of(f.x, "reads");
    for (uint32_t i = 0; i < 300; i++) {
      char key[32];
      CHECK(remixdb_probe(other, key, key_of(1 + i * 19, key)) == there(1 + i * 19));
    }
    CHECK(stat_of(f.x, "reads") == reads);
    remixdb_unref(other);
    take_all(&f, 64, 64);
    end_store(&f);
  }
}

// Gets leave the blocks that they read in the cache, if it has room. A full cache admits a block at its second miss.
static void test_cache(void **state) {
  (void)state;
  struct fixture f;
  struct remixdb_opts o = options("uring");
  o.cache_mb = 8;
  begin_store(&f, &o, 300);
  fill(&f);
  for (uint32_t turn = 0; turn < 2; turn++) {
    const uint64_t reads = stat_of(f.x, "reads"), misses = stat_of(f.x, "misses");
    for (uint32_t i = 0; i < 300; i++) CHECK(begin(&f, 1 + i * 19, 10000, true));
    take_all(&f, 64, 64);
    CHECK((stat_of(f.x, "reads") - reads > 100) == (turn == 0));
    CHECK(stat_of(f.x, "misses") - misses == (turn == 0 ? stat_of(f.x, "reads") - reads : 0));
  }
  end_store(&f);
  o.cache_mb = 1;
  begin_store(&f, &o, 300);
  for (uint32_t i = 0; i < 40000; i++) put(f.ref, i, i % 3);
  CHECK(remixdb_compact(f.ref));
  uint64_t seed = 3;
  for (uint32_t turn = 0; turn < 20; turn++) {
    struct remixdb_got got[300];
    char key[32];
    for (uint32_t i = 0; i < 300; i++) {
      const uint32_t klen = key_of((uint32_t)below(&seed, 40000), key);
      CHECK(remixdb_get_begin(f.gets, key, klen, NULL, 0, NULL));
    }
    CHECK(remixdb_get_poll(f.gets, got, 300, 300) == 300);
    for (uint32_t k = 0; k < 300; k++) CHECK(got[k].status == REMIXDB_OK);
  }
  CHECK_SAYS(stat_of(f.x, "evictions") > 10 && stat_of(f.x, "declined") > 100, "%u evictions, %u declined",
             (unsigned)stat_of(f.x, "evictions"), (unsigned)stat_of(f.x, "declined"));
  end_store(&f);
}

// The descriptor is readable when there is something to do, and only then: a loop that sleeps on it ends.
static void test_descriptor(void **state) {
  (void)state;
#if !defined(__linux__)
  skip();  // there is no eventfd
#endif
  for (uint32_t e = 0; e < ENGINES; e++) {
    struct fixture f;
    const struct remixdb_opts o = options(engines[e]);
    begin_store(&f, &o, 300);
    fill(&f);
    CHECK(begin(&f, 1, 10000, true));  // before there is a descriptor
    struct pollfd p = {.fd = remixdb_gets_fd(f.gets), .events = POLLIN};
    CHECK(p.fd >= 0 && remixdb_gets_fd(f.gets) == p.fd);
    for (uint32_t turn = 0; turn < 30; turn++) {
      const uint32_t more = turn * 9;
      for (uint32_t i = 0; i < more; i++) CHECK(begin(&f, 1 + (i * 19 + turn) % KEYS, 10000, true));
      struct remixdb_got got[16];
      size_t left = nr_wants;
      while (left > 0) {
        CHECK(poll(&p, 1, -1) == 1);
        const size_t n = remixdb_get_poll(f.gets, got, turn % 2 ? 16 : 3, 0);
        for (size_t k = 0; k < n; k++) check_got(&got[k]);
        left -= n;
      }
      wants_free();
      while (poll(&p, 1, 0) == 1) CHECK(remixdb_get_poll(f.gets, got, 16, 0) == 0);
    }
    end_store(&f);
  }
}

// More tables than descriptors, and gets under way in many of them: others get descriptors, and the bound is kept.
static void test_few_descriptors(void **state) {
  (void)state;
  for (uint32_t e = 0; e < ENGINES; e++) {
    struct fixture f;
    struct remixdb_opts o = options(engines[e]);
    o.max_open_files = 16;
    begin_store(&f, &o, 300);
    shrink(f.x, 300u << 10, 2);
    fill(&f);
    CHECK(stat_of(f.x, "tables") > 40);
    for (uint32_t turn = 0; turn < 3; turn++) {
      for (uint32_t i = 0; i < 300; i++) CHECK(begin(&f, 1 + i * 19 + turn, 10000, true));
      struct xdb_ref *const other = remixdb_ref(f.x);
      for (uint32_t i = 0; i < KEYS; i += 41) {
        char key[32];
        CHECK(remixdb_probe(other, key, key_of(i, key)) == there(i));
      }
      remixdb_unref(other);
      CHECK(stat_of(f.x, "open_files") <= 16);
      take_all(&f, 64, 1);
      CHECK(stat_of(f.x, "open_files") <= 16);
    }
    end_store(&f);
  }
}

// ---- failures

// A ring that is lost with reads in flight: every get still has its result.
static void test_ring_lost(void **state) {
  (void)state;
  struct fixture f;
  const struct remixdb_opts o = options("uring");
  begin_store(&f, &o, 300);
  fill(&f);
  for (uint32_t turn = 0; turn < 3; turn++) {
    for (uint32_t i = 0; i < 300; i++) {
      if (turn == 1 && i == 150) atomic_store(&blkio_test_ring_errno, EINVAL);
      CHECK(begin(&f, 1 + i * 19, 10000, true));
    }
    if (turn == 1 && strcmp(blkio_engine(&f.x->io), "uring") == 0) {
      struct remixdb_got got[64];
      size_t n;
      for (size_t left = 300; left > 0; left -= n) {
        n = remixdb_get_poll(f.gets, got, 64, 64);
        CHECK(n > 0);
        for (size_t k = 0; k < n; k++) check_got(&got[k]);
      }
      wants_free();
      atomic_store(&blkio_test_ring_errno, 0);
      continue;
    }
    take_all(&f, 64, 64);
  }
  atomic_store(&blkio_test_ring_errno, 0);
  end_store(&f);
}

// Damaged blocks fail the gets that need them, with a message that names the file, and no others.
static void test_damage(void **state) {
  (void)state;
  for (uint32_t e = 0; e < 2 * ENGINES; e++) {
    struct fixture f;
    struct remixdb_opts o = options(engines[e / 2]);
    o.compression = e % 2 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
    begin_store(&f, &o, 300);
    for (uint32_t i = 0; i < KEYS; i++) put(f.ref, i, i % 3);
    CHECK(remixdb_compact(f.ref));
    const struct part *const p = f.x->super->version->parts[0];
    FILE *const file = fopen(p->remix->runs[0]->path, "r+");
    CHECK(file);
    CHECK(fseek(file, 2 * 4096 + 100, SEEK_SET) == 0 && fputs("damaged", file) >= 0 && fclose(file) == 0);
    uint32_t bad = 0;
    for (uint32_t i = 0; i < 200; i++) CHECK(begin(&f, i, 10000, true));
    struct remixdb_got got[300];
    CHECK(remixdb_get_poll(f.gets, got, 300, 300) == 200);
    for (uint32_t k = 0; k < 200; k++) {
      const struct want *const w = got[k].priv;
      bad += got[k].status == REMIXDB_CORRUPT;
      if (got[k].status == REMIXDB_CORRUPT) CHECK(strstr(got[k].msg, ".sst") && got[k].len == 0);
      else CHECK(got[k].status == REMIXDB_OK && got[k].len == value_len(w->i));
    }
    CHECK_SAYS(bad > 0 && bad < 100, "%u are damaged", bad);
    wants_free();
    end_store(&f);
  }
}

// Each allocation fails in turn: a get has its value or REMIXDB_NOMEM, and the object serves on.
static void nomem(struct fixture *f, int64_t nth, bool *failed) {
  fault_mem_set(nth);
  struct xdb_gets *const g = remixdb_gets_create(f->ref, 40);
  if (!g) {
    CHECK(remixdb_errcode() == REMIXDB_NOMEM);
    *failed = fault_mem_end();
    return;
  }
  static char key[200], val[40][200];
  uint32_t begun = 0;
  memset(key, 'a', sizeof(key));
  for (uint32_t i = 0; i < 40; i++) {
    (void)sprintf(key + 190, "%04u", i);
    if (remixdb_get_begin(g, key, 194, val[i], 200, val[i])) begun++;
    else CHECK(remixdb_errcode() == REMIXDB_NOMEM);
  }
  struct remixdb_got got[40];
  CHECK(remixdb_get_poll(g, got, 40, 40) == begun);
  *failed = fault_mem_end();
  for (uint32_t k = 0; k < begun; k++) {
    CHECK_SAYS(got[k].status == REMIXDB_OK || got[k].status == REMIXDB_NOMEM, "%d %s", got[k].status, got[k].msg);
    if (got[k].status == REMIXDB_OK) CHECK(got[k].len == 150 && memcmp(got[k].priv, "value", 5) == 0);
    else CHECK(got[k].msg[0]);
  }
  CHECK(remixdb_get_begin(g, key, 194, val[0], 200, NULL));
  CHECK(remixdb_get_poll(g, got, 40, 40) == 1 && got[0].status == REMIXDB_OK);
  remixdb_gets_destroy(g);
}

static void test_nomem(void **state) {
  (void)state;
  for (uint32_t e = 0; e < 2 * ENGINES; e++) {
    struct fixture f;
    struct remixdb_opts o = options(engines[e / 2]);
    o.compression = e % 2 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
    begin_store(&f, &o, 1);
    char key[200], val[150] = "value";
    memset(key, 'a', sizeof(key));
    for (uint32_t i = 0; i < 40; i++) {
      (void)sprintf(key + 190, "%04u", i);
      CHECK(remixdb_put(f.ref, key, 194, val, 150));
    }
    CHECK(remixdb_flush(f.ref));
    bool failed = true;
    for (int64_t nth = 1; failed; nth++) nomem(&f, nth, &failed);
    end_store(&f);
  }
}

// ---- threads

struct beside {
  struct xdb *x;
  _Atomic bool *stop;
  uint64_t seed;
  bool writes;
};

static void *beside_main(void *arg) {
  struct beside *const b = arg;
  struct xdb_ref *const r = remixdb_ref(b->x);
  THREAD_CHECK(r);
  uint8_t val[16384];
  while (!atomic_load(b->stop)) {
    char key[32];
    const uint32_t i = (uint32_t)below(&b->seed, KEYS), klen = key_of(i, key);
    if (!b->writes) THREAD_CHECK(remixdb_probe(r, key, klen) == there(i));
    else if (there(i)) THREAD_CHECK(remixdb_put(r, key, klen, val, value_of(i, i % 3, val)));
  }
  remixdb_unref(r);
  return NULL;
}

// Two threads with gets of their own, a reader and a writer whose rounds replace the tables, over a small cache.
struct looper {
  struct fixture f;
  uint64_t seed;
  uint32_t gets;
};

static void *loop_main(void *arg) {
  struct looper *const l = arg;
  uint8_t(*const bufs)[10000] = malloc((size_t)64 * sizeof(*bufs));
  uint32_t keys[64];
  uint32_t free_slots[64], nr_free = 64;
  THREAD_CHECK(bufs);
  for (uint32_t i = 0; i < 64; i++) free_slots[i] = i;
  for (uint32_t done = 0; done < l->gets;) {
    while (nr_free > 0) {
      const uint32_t slot = free_slots[--nr_free], i = (uint32_t)below(&l->seed, KEYS);
      char key[32];
      keys[slot] = i;
      THREAD_CHECK(
          remixdb_get_begin(l->f.gets, key, key_of(i, key), bufs[slot], sizeof(bufs[0]), (void *)(uintptr_t)slot));
    }
    struct remixdb_got got[64];
    const size_t n = remixdb_get_poll(l->f.gets, got, 64, 1);
    THREAD_CHECK(n > 0);
    for (size_t k = 0; k < n; k++) {
      const uint32_t slot = (uint32_t)(uintptr_t)got[k].priv, i = keys[slot];
      uint8_t want[16384];
      THREAD_CHECK(got[k].status == (there(i) ? REMIXDB_OK : REMIXDB_NOTFOUND));
      if (there(i)) THREAD_CHECK(got[k].len == value_of(i, i % 3, want) && memcmp(bufs[slot], want, got[k].len) == 0);
      free_slots[nr_free++] = slot;
    }
    done += (uint32_t)n;
  }
  free(bufs);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  for (uint32_t e = 0; e < ENGINES; e++) {
    struct fixture f;
    struct remixdb_opts o = options(engines[e]);
    o.workers = 2;
    o.cache_mb = 1;
    begin_store(&f, &o, 1);
    fill(&f);
    _Atomic bool stop;
    atomic_init(&stop, false);
    struct beside besides[2] = {{f.x, &stop, 1, false}, {f.x, &stop, 2, true}};
    struct looper loopers[2];
    pthread_t threads[4];
    for (uint32_t i = 0; i < 2; i++) {
      loopers[i] = (struct looper){.f = f, .seed = 10 + i, .gets = 20000u / SLOW};
      loopers[i].f.ref = remixdb_ref(f.x);
      loopers[i].f.gets = remixdb_gets_create(loopers[i].f.ref, 64);
      CHECK(loopers[i].f.gets);
      OK(thread_start(&threads[i], loop_main, &loopers[i], "loop"));
      OK(thread_start(&threads[2 + i], beside_main, &besides[i], "beside"));
    }
    for (uint32_t i = 0; i < 2; i++) (void)pthread_join(threads[i], NULL);
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < 2; i++) {
      (void)pthread_join(threads[2 + i], NULL);
      remixdb_gets_destroy(loopers[i].f.gets);
      remixdb_unref(loopers[i].f.ref);
    }
    end_store(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_arguments),  cmocka_unit_test(test_results),         cmocka_unit_test(test_reads),
      cmocka_unit_test(test_moment),     cmocka_unit_test(test_no_old),          cmocka_unit_test(test_snapshot),
      cmocka_unit_test(test_destroy),    cmocka_unit_test(test_same_block),      cmocka_unit_test(test_cache),
      cmocka_unit_test(test_descriptor), cmocka_unit_test(test_few_descriptors), cmocka_unit_test(test_ring_lost),
      cmocka_unit_test(test_damage),     cmocka_unit_test(test_nomem),           cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
