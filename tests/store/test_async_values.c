// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous gets of values that lie apart from their records: results of all lengths, reads and trips counted, the
// moment, damage, missing memory, and the end with gets under way.
#include <dirent.h>

#include "tests/lib/bytes.h"
#include "tests/lib/fault.h"
#include "tests/lib/store.h"
#include "store/async.h"

#define KEYS 30u
#define MOST (2500u << 10)

static const char *const engines[] = {"uring", "aio", "sync"};
#define ENGINES (sizeof(engines) / sizeof(engines[0]))

// Each a case of value/read.h: one chunk, two, the longest that is read at once, one more byte, and several runs of
// chunks. The second stays with its record.
static const uint32_t lens[] = {4096, 900, 20000, 65536, 70000, 131072, 131073, 300000, 1300000, MOST};
#define LENS (sizeof(lens) / sizeof(lens[0]))

static uint32_t key_of(uint32_t i, char *buf) { return (uint32_t)sprintf(buf, "key%04u", i); }
static uint32_t len_of(uint32_t i) { return lens[i % LENS]; }

// Odd keys have values that can be compressed, but for some of their chunks. No two are alike.
static const uint8_t *value_of(uint32_t i, uint32_t round) {
  static uint8_t bytes[2][MOST + 4096];
  if (!bytes[0][0]) {
    uint64_t rng = 1;
    for (uint32_t at = 0; at < sizeof(bytes[0]); at++) {
      bytes[0][at] = (uint8_t)(1 + at % 255) ^ (uint8_t)(rng_next(&rng) & 0xfe);
      bytes[1][at] = at / 100000 % 3 == 1 || at % 16 < 4 ? bytes[0][at] : 0;
    }
  }
  return bytes[i % 2] + (size_t)(round * KEYS + i) * 8;
}

static void put(struct xdb_ref *r, uint32_t i, uint32_t round) {
  char key[32];
  CHECK(remixdb_put(r, key, key_of(i, key), value_of(i, round), len_of(i)));
}

struct fixture {
  struct xdb *x;
  struct xdb_ref *ref;
  struct xdb_gets *gets;
};

static void begin_store(struct fixture *f, const char *io, enum remixdb_compression compression) {
  struct remixdb_opts o = small_opts(0);
  o.io = io;
  o.cache_mb = 0;
  o.compression = compression;
  setup_again();
  f->x = remixdb_open_opts(dir, &o);
  CHECK(f->x);
  f->ref = remixdb_ref(f->x);
  CHECK(f->ref);
  f->gets = remixdb_gets_create(f->ref, KEYS + 1);
  CHECK(f->gets);
}

static void end_store(struct fixture *f) {
  remixdb_gets_destroy(f->gets);
  remixdb_unref(f->ref);
  remixdb_close(f->x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

static void fill(struct fixture *f, uint32_t round) {
  for (uint32_t i = 0; i < KEYS; i++) put(f->ref, i, round);
}

// ---- gets and their results

static uint8_t *bufs[KEYS];
static uint32_t caps[KEYS];

static void begin(struct fixture *f, uint32_t i, uint32_t cap) {
  char key[32];
  const uint32_t klen = key_of(i, key);
  caps[i] = cap;
  bufs[i] = cap ? malloc(cap) : NULL;
  CHECK(bufs[i] || !cap);
  CHECK(remixdb_get_begin(f->gets, key, klen, bufs[i], cap, (void *)(uintptr_t)i));
}

static void bufs_free(void) {
  for (uint32_t i = 0; i < KEYS; i++) {
    free(bufs[i]);
    bufs[i] = NULL;
  }
}

static void result_is(const struct remixdb_got *g, uint32_t round) {
  const uint32_t i = (uint32_t)(uintptr_t)g->priv, len = len_of(i);
  const bool fits = !bufs[i] || caps[i] >= len;
  CHECK_SAYS(g->status == (fits ? REMIXDB_OK : REMIXDB_TOOBIG), "key %u: %d %s", i, (int)g->status, g->msg);
  CHECK_SAYS(g->len == len, "key %u: %u bytes", i, g->len);
  if (bufs[i]) CHECK(memcmp(bufs[i], value_of(i, round), fits ? len : caps[i]) == 0);
}

static void take_all(struct fixture *f, uint32_t nr, uint32_t round) {
  for (struct remixdb_got got[8]; nr > 0;) {
    const size_t n = remixdb_get_poll(f->gets, got, 8, nr % 2);
    for (size_t k = 0; k < n; k++) result_is(&got[k], round);
    nr -= (uint32_t)n;
  }
  CHECK(remixdb_get_poll(f->gets, NULL, 0, 0) == 0 && remixdb_errcode() == REMIXDB_NOTFOUND);
  bufs_free();
}

static void get_all(struct fixture *f, uint64_t *rng, uint32_t round) {
  for (uint32_t turn = 0; turn < 4; turn++) {
    for (uint32_t i = 0; i < KEYS; i++) {
      const uint32_t len = len_of(i);
      begin(f, i, turn < 2 ? len + turn : turn == 2 ? (uint32_t)below(rng, len) : 65536 * (i % 3));
    }
    take_all(f, KEYS, round);
  }
}

static uint64_t value_reads(const struct fixture *f) { return atomic_load(&f->x->value_ctx.reads); }

static uint32_t value_files(void) {
  uint32_t nr = 0;
  DIR *const d = opendir(dir);
  for (const struct dirent *e; d && (e = readdir(d)) != NULL;) nr += strstr(e->d_name, ".val") != NULL;
  CHECK(d && closedir(d) == 0);
  return nr;
}

// ---- tests

// Values of the memtable, of tables, and where a collection has put them.
static void test_results(void **state) {
  (void)state;
  uint64_t rng = check_seed_for("results");
  for (uint32_t e = 0; e < 2 * ENGINES; e++) {
    struct fixture f;
    begin_store(&f, engines[e / 2], e % 2 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    fill(&f, 1);
    get_all(&f, &rng, 1);
    CHECK(remixdb_flush(f.ref));
    get_all(&f, &rng, 1);
    for (uint32_t i = 0; i < KEYS; i += 3) put(f.ref, i, 1);
    CHECK(remixdb_compact(f.ref));
    get_all(&f, &rng, 1);
    end_store(&f);
  }
}

// Beginning reads no value. With io_uring and AIO values that are read at once take one trip together, and a value in
// several runs of chunks takes one for each.
static void test_reads(void **state) {
  (void)state;
  for (uint32_t e = 0; e < ENGINES; e++) {
    struct fixture f;
    begin_store(&f, engines[e], REMIXDB_COMPRESSION_NONE);
    fill(&f, 1);
    const bool together = strcmp(blkio_engine(&f.x->io), "sync") != 0;
    uint64_t reads = value_reads(&f), bytes = atomic_load(&f.x->value_ctx.read_bytes);
    uint64_t trips = stat_of(f.x, "trips");
    uint32_t nr = 0;
    for (uint32_t i = 0; i < KEYS; i++) {
      if (len_of(i) < 20000 || len_of(i) > 131072) continue;
      begin(&f, i, len_of(i));
      nr++;
    }
    CHECK(value_reads(&f) == reads && atomic_load(&f.x->value_ctx.read_bytes) == bytes);
    take_all(&f, nr, 1);
    CHECK(value_reads(&f) == reads + nr);
    trips = stat_of(f.x, "trips") - trips;
    CHECK_SAYS(trips == (together ? 1 : 0), "%s: %u trips", engines[e], (unsigned)trips);
    trips = stat_of(f.x, "trips");
    begin(&f, LENS - 1, MOST);
    take_all(&f, 1, 1);
    trips = stat_of(f.x, "trips") - trips;
    CHECK_SAYS(trips == (together ? 1 + 3 : 0), "%s: %u trips", engines[e], (unsigned)trips);
    // a length takes no read
    reads = value_reads(&f);
    begin(&f, 0, 0);
    take_all(&f, 1, 1);
    CHECK(value_reads(&f) == reads);
    end_store(&f);
  }
}

// A get shows the moment of its beginning, whatever is written and collected before its result is taken. The files of
// that moment stay until then, and no longer.
static void test_moment(void **state) {
  (void)state;
  for (uint32_t e = 0; e < 2 * ENGINES; e++) {
    struct fixture f;
    begin_store(&f, engines[e / 2], REMIXDB_COMPRESSION_NONE);
    fill(&f, 1);
    if (e % 2) CHECK(remixdb_flush(f.ref));
    for (uint32_t i = 0; i < KEYS; i++) begin(&f, i, len_of(i));
    fill(&f, 2);
    CHECK(remixdb_flush(f.ref));
    fill(&f, 3);
    for (uint32_t i = 0; i < KEYS; i++) {
      char key[32];
      CHECK(remixdb_del(f.ref, key, key_of(i, key)));
    }
    CHECK(remixdb_compact(f.ref));
    CHECK(value_files() > 0);
    take_all(&f, KEYS, 1);
    CHECK_SAYS(value_files() == 0, "%u value files", value_files());
    end_store(&f);
  }
}

// The end with gets at every stage. The sanitizers would see a write to a buffer that is free.
static void test_destroy(void **state) {
  (void)state;
  for (uint32_t e = 0; e < ENGINES; e++) {
    struct fixture f;
    begin_store(&f, engines[e], REMIXDB_COMPRESSION_NONE);
    fill(&f, 1);
    for (uint32_t turn = 0; turn < 4; turn++) {
      for (uint32_t i = turn; i < KEYS; i++) begin(&f, i, len_of(i));
      for (uint32_t n = 0; n < turn; n++) CHECK(remixdb_get_poll(f.gets, NULL, 0, 0) == 0);
      remixdb_gets_destroy(f.gets);
      bufs_free();
      f.gets = remixdb_gets_create(f.ref, KEYS + 1);
      CHECK(f.gets);
    }
    for (uint32_t i = 0; i < KEYS; i++) begin(&f, i, len_of(i));
    take_all(&f, KEYS, 1);
    end_store(&f);
  }
}

// A damaged head, a damaged chunk, and a file that ends too early fail the gets that need them, with a message that
// names the file, and no others.
static void test_damage(void **state) {
  (void)state;
  for (uint32_t e = 0; e < 2 * ENGINES; e++) {
    struct fixture f;
    begin_store(&f, engines[e / 2], e % 2 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    fill(&f, 1);
    CHECK(remixdb_flush(f.ref));
    const struct value_set *const values = &f.x->super->version->values;
    for (uint32_t n = 0; n < values->nr; n++) {
      size_t len;
      uint8_t *const b = file_read(values->files[n]->path, &len);
      for (size_t at = 50000; at < len; at += 1000000) b[at] ^= 1;
      file_write(values->files[n]->path, b, len);
      free(b);
      CHECK(truncate(values->files[n]->path, (off_t)len - 3000) == 0);
    }
    struct remixdb_got got[KEYS];
    uint32_t bad = 0;
    for (uint32_t i = 0; i < KEYS; i++) begin(&f, i, len_of(i));
    CHECK(remixdb_get_poll(f.gets, got, KEYS, KEYS) == KEYS);
    for (uint32_t k = 0; k < KEYS; k++) {
      const uint32_t i = (uint32_t)(uintptr_t)got[k].priv;
      uint32_t len = 0;
      char key[32];
      // a plain get says the same
      uint8_t *const val = malloc(len_of(i));
      const bool good = remixdb_getn(f.ref, key, key_of(i, key), val, len_of(i), &len);
      CHECK_SAYS(got[k].status == remixdb_errcode(), "key %u: %d %s", i, (int)got[k].status, got[k].msg);
      CHECK_SAYS(strcmp(got[k].msg, remixdb_errmsg()) == 0, "key %u: %s", i, got[k].msg);
      if (good) result_is(&got[k], 1);
      else CHECK(got[k].status == REMIXDB_CORRUPT && got[k].len == 0 && strstr(got[k].msg, dir));
      bad += !good;
      free(val);
    }
    CHECK_SAYS(bad > 5 && bad < KEYS - 5, "%u are damaged", bad);
    bufs_free();
    end_store(&f);
  }
}

// Each allocation fails in turn: a get has its value or REMIXDB_NOMEM, and the object serves on.
static void test_nomem(void **state) {
  (void)state;
  for (uint32_t e = 0; e < 2 * ENGINES; e++) {
    struct fixture f;
    begin_store(&f, engines[e / 2], e % 2 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    for (uint32_t i = 0; i < LENS; i++) put(f.ref, i, 1);
    CHECK(remixdb_flush(f.ref));
    bool failed = true;
    for (int64_t nth = 1; failed; nth++) {
      struct remixdb_got got[LENS];
      bool begun[LENS];
      uint32_t nr = 0;
      for (uint32_t i = 0; i < LENS; i++) {
        caps[i] = len_of(i);
        bufs[i] = malloc(caps[i]);
      }
      fault_mem_set(nth);
      for (uint32_t i = 0; i < LENS; i++) {
        char key[32];
        const uint32_t klen = key_of(i, key);
        begun[i] = remixdb_get_begin(f.gets, key, klen, bufs[i], caps[i], (void *)(uintptr_t)i);
        nr += begun[i];
      }
      CHECK(remixdb_get_poll(f.gets, got, LENS, LENS) == nr);
      failed = fault_mem_end();
      for (uint32_t k = 0; k < nr; k++) {
        if (got[k].status == REMIXDB_NOMEM) CHECK(failed && got[k].msg[0] && got[k].len == 0);
        else result_is(&got[k], 1);
      }
      bufs_free();
    }
    end_store(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_results), cmocka_unit_test(test_reads),  cmocka_unit_test(test_moment),
      cmocka_unit_test(test_destroy), cmocka_unit_test(test_damage), cmocka_unit_test(test_nomem),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
