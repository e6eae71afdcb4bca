// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/engine.h"

#include <leveldb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct store {
  leveldb_t *db;
  leveldb_options_t *options;
  leveldb_cache_t *cache;
  leveldb_filterpolicy_t *filter;
};

static void store_free(struct store *s) {
  if (s->db) leveldb_close(s->db);
  leveldb_options_destroy(s->options);
  leveldb_filterpolicy_destroy(s->filter);
  leveldb_cache_destroy(s->cache);
  free(s);
}

#define API(name) leveldb_##name
#define ENGINE bench_leveldb
#define STATS "leveldb.stats"
#include "tools/bench/leveldb_api.inc"

static const char *version(void) {
  static char text[32];
  snprintf(text, sizeof(text), "%d.%d", leveldb_major_version(), leveldb_minor_version());
  return text;
}

static void *store_open(const struct bench_config *c) {
  const bool snappy = !strcmp(c->compression, "snappy");
  if ((!snappy && strcmp(c->compression, "none")) || c->direct_io) {
    bench_error(&bench_leveldb, "open", "compression is none or snappy, and there is no direct I/O");
    return NULL;
  }
  struct store *s = calloc(1, sizeof(*s));
  if (!s) return NULL;
  leveldb_options_t *o = s->options = leveldb_options_create();
  leveldb_options_set_create_if_missing(o, 1);
  leveldb_options_set_cache(o, s->cache = leveldb_cache_create_lru(c->cache_mb << 20));
  leveldb_options_set_filter_policy(o, s->filter = leveldb_filterpolicy_create_bloom(10));
  leveldb_options_set_write_buffer_size(o, c->memtable_mb << 20);
  leveldb_options_set_compression(o, snappy ? leveldb_snappy_compression : leveldb_no_compression);
  leveldb_options_set_max_open_files(o, 100000);
  char *err = NULL;
  s->db = leveldb_open(o, c->dir, &err);
  if (!err) return s;
  failed("open", err);
  store_free(s);
  return NULL;
}

static enum bench_status get(void *session, const void *key, uint32_t klen, struct bench_record *r) {
  struct session *s = session;
  char *err = NULL;
  size_t len;
  char *v = leveldb_get(s->store->db, s->ro, key, klen, &len, &err);
  if (err) return failed("get", err);
  if (!v) return BENCH_NONE;
  bench_take_value(r, v, len);
  leveldb_free(v);
  return BENCH_OK;
}

// LevelDB does not tell whether it compacts. It counts as settled when its levels have not changed for a second.
static bool settle(void *store) {
  char *last = NULL;
  for (int calm = 0; calm < 20; calm++) {
    char *now = stats(store);
    if (!now || !last || strcmp(now, last)) calm = 0;
    free(last);
    last = now;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
  }
  free(last);
  return true;
}

const struct bench_engine bench_leveldb = {
    .name = "leveldb",
    .settings = "write_buffer_size = memtable, LRU cache, Bloom filters of 10 bits, all files kept open, log without "
                "sync; leveldb_get and a copy; an iterator per thread, kept in benchmarks that only read, else made "
                "for every seek",
    .maps_files = true,
    .fill_batch = 1,
    .version = version,
    BENCH_FUNCTIONS,
    .compact = compact,
    .settle = settle,
    .stats = stats,
};
