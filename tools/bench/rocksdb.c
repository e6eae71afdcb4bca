// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/engine.h"

#include <rocksdb/c.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct store {
  rocksdb_t *db;
  rocksdb_options_t *options;
  rocksdb_block_based_table_options_t *table;
  rocksdb_cache_t *cache;
  rocksdb_column_family_handle_t *family;
};

static void store_free(struct store *s) {
  if (s->family) rocksdb_column_family_handle_destroy(s->family);
  if (s->db) rocksdb_close(s->db);
  rocksdb_options_destroy(s->options);
  rocksdb_block_based_options_destroy(s->table);
  rocksdb_cache_destroy(s->cache);
  free(s);
}

#define API(name) rocksdb_##name
#define ENGINE bench_rocksdb
#define STATS "rocksdb.stats"
#include "tools/bench/leveldb_api.inc"

static const char *version(void) { return BENCH_ROCKSDB; }  // its header tells it to C++ only, so the Makefile reads it

static int compression(const char *name) {
  static const struct {
    const char *name;
    int id;
  } kinds[] = {{"none", rocksdb_no_compression},
               {"zstd", rocksdb_zstd_compression},
               {"lz4", rocksdb_lz4_compression},
               {"snappy", rocksdb_snappy_compression}};
  for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
    if (!strcmp(kinds[i].name, name)) return kinds[i].id;
  return -1;
}

static void *store_open(const struct bench_config *c) {
  const int kind = compression(c->compression);
  struct store *s = kind < 0 ? NULL : calloc(1, sizeof(*s));
  if (!s) return bench_error(&bench_rocksdb, "open", "no such compression"), NULL;
  s->cache = rocksdb_cache_create_lru(c->cache_mb << 20);
  s->table = rocksdb_block_based_options_create();
  if (c->cache_mb) rocksdb_block_based_options_set_block_cache(s->table, s->cache);
  else rocksdb_block_based_options_set_no_block_cache(s->table, 1);
  rocksdb_block_based_options_set_filter_policy(s->table, rocksdb_filterpolicy_create_bloom_full(10));
  rocksdb_block_based_options_set_format_version(s->table, 5);
  rocksdb_block_based_options_set_data_block_index_type(
      s->table, rocksdb_block_based_table_data_block_index_type_binary_search_and_hash);
  rocksdb_block_based_options_set_data_block_hash_ratio(s->table, 0.75);
  rocksdb_options_t *o = s->options = rocksdb_options_create();
  rocksdb_options_set_block_based_table_factory(o, s->table);
  rocksdb_options_set_create_if_missing(o, 1);
  rocksdb_options_set_compression(o, kind);
  rocksdb_options_set_write_buffer_size(o, c->memtable_mb << 20);
  rocksdb_options_set_max_write_buffer_number(o, 2);
  rocksdb_options_set_max_background_jobs(o, c->cores > 2 ? (int)c->cores : 2);
  rocksdb_options_set_level_compaction_dynamic_level_bytes(o, 1);
  rocksdb_options_set_max_open_files(o, -1);
  rocksdb_options_set_stats_dump_period_sec(o, 0);
  if (c->blob_size) {
    rocksdb_options_set_enable_blob_files(o, 1);
    rocksdb_options_set_min_blob_size(o, c->blob_size);
    rocksdb_options_set_blob_compression_type(o, kind);
    rocksdb_options_set_enable_blob_gc(o, 1);
  }
  if (c->threads == 1) {
    rocksdb_options_set_allow_concurrent_memtable_write(o, 0);
    rocksdb_options_set_enable_write_thread_adaptive_yield(o, 0);
  }
  if (c->direct_io) {
    rocksdb_options_set_use_direct_reads(o, 1);
    rocksdb_options_set_use_direct_io_for_flush_and_compaction(o, 1);
  }
  char *err = NULL;
  const char *const family = "default";
  const rocksdb_options_t *const family_options = o;
  s->db = rocksdb_open_column_families(o, c->dir, 1, &family, &family_options, &s->family, &err);
  if (!err) return s;
  failed("open", err);
  store_free(s);
  return NULL;
}

static enum bench_status take(rocksdb_pinnableslice_t *p, struct bench_record *r) {
  if (!p) return BENCH_NONE;
  size_t len;
  const char *v = rocksdb_pinnableslice_value(p, &len);
  bench_take_value(r, v, len);
  rocksdb_pinnableslice_destroy(p);
  return BENCH_OK;
}

static enum bench_status get(void *session, const void *key, uint32_t klen, struct bench_record *r) {
  struct session *s = session;
  char *err = NULL;
  rocksdb_pinnableslice_t *p = rocksdb_get_pinned(s->store->db, s->ro, key, klen, &err);
  return err ? failed("get", err) : take(p, r);
}

static enum bench_status multi_get(void *session, uint32_t nr, const struct bench_slice *keys, struct bench_record *r) {
  struct session *s = session;
  const char *ptrs[BENCH_MULTI_MAX];
  size_t lens[BENCH_MULTI_MAX];
  rocksdb_pinnableslice_t *values[BENCH_MULTI_MAX];
  char *errs[BENCH_MULTI_MAX];
  if (!nr || nr > BENCH_MULTI_MAX)
    return bench_error(&bench_rocksdb, "multi_get", "so many keys at once are not taken");
  uint32_t k = 0;
  do {
    ptrs[k] = keys[k].ptr;
    lens[k] = keys[k].len;
  } while (++k < nr);
  rocksdb_batched_multi_get_cf(s->store->db, s->ro, s->store->family, nr, ptrs, lens, values, errs, false);
  enum bench_status status = BENCH_OK;
  for (uint32_t i = 0; i < nr; i++) {
    if (errs[i]) status = failed("multi_get", errs[i]);
    if (take(values[i], &r[i]) == BENCH_NONE) r[i].vlen = BENCH_ABSENT;
  }
  return status;
}

static enum bench_status seek_for_prev(void *session, const void *key, uint32_t klen, struct bench_record *r) {
  struct session *s = session;
  scan_begin(s);
  rocksdb_iter_seek_for_prev(s->it, key, klen);
  return copy(s, r);
}

static bool flush(void *store) {
  struct store *s = store;
  rocksdb_flushoptions_t *fo = rocksdb_flushoptions_create();
  char *err = NULL;
  rocksdb_flush(s->db, fo, &err);
  rocksdb_flushoptions_destroy(fo);
  return !err || failed("flush", err) == BENCH_OK;
}

// Waits until nothing is flushed or compacted at several looks in a row: between a flush and the compaction that it
// causes all counts are 0 for a moment.
static bool settle(void *store) {
  static const char *const busy[] = {"rocksdb.mem-table-flush-pending", "rocksdb.compaction-pending",
                                     "rocksdb.num-running-flushes", "rocksdb.num-running-compactions"};
  struct store *s = store;
  for (int calm = 0; calm < 10; calm++) {
    for (size_t i = 0; i < sizeof(busy) / sizeof(busy[0]); i++) {
      uint64_t n = 0;
      if (rocksdb_property_int(s->db, busy[i], &n)) return bench_error(&bench_rocksdb, "settle", busy[i]) == BENCH_OK;
      if (n) calm = 0;
    }
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  return true;
}

const struct bench_engine bench_rocksdb = {
    .name = "rocksdb",
    .settings = "write_buffer_size = memtable, 2 write buffers, LRU block cache, full Bloom filters of 10 bits, hash "
                "index in data blocks, format 5, level compaction with dynamic level bytes, max_background_jobs = "
                "cores, max_open_files = -1; with one thread no concurrent memtable writes; with --blob_size blob "
                "files of that least size, with garbage collection; WAL without sync; "
                "rocksdb_get_pinned and a copy; an iterator per thread, kept in benchmarks that only read, else made "
                "for every seek",
    .fill_batch = 1,
    .version = version,
    BENCH_FUNCTIONS,
    .multi_get = multi_get,
    .seek_for_prev = seek_for_prev,
    .flush = flush,
    .compact = compact,
    .settle = settle,
    .stats = stats,
};
