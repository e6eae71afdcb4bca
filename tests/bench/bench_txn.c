// SPDX-License-Identifier: Apache-2.0
//
// Transactions per second: each gets three records and puts two, of a store that fits into memory. Beside them those of
// RocksDB's OptimisticTransactionDB, where its headers are.
//
//   bench_txn DIR [remixdb|rocksdb] [threads] [transactions of each thread] [records]
//
// Prints the engine, the threads, the commits per second, the transactions that met a conflict, and the processor
// time of these threads per commit. The workers' time is not in it, and other programs change it less than the rate.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib.h"
#include "remixdb.h"

#if defined(BENCH_ROCKSDB)
#include <rocksdb/c.h>
#endif

#define READS 3
#define WRITES 2
#define VALUE 100u

static uint32_t nr_records = 1000000, nr_txns = 200000;

// A thread's results, in lines of their own, so that counting costs the other threads nothing.
struct part {
  _Alignas(2 * CACHE_LINE) uint64_t rng, commits, conflicts, cpu_ns;
};

static uint64_t thread_cpu_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void give_up(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static uint32_t key_of(uint32_t i, char buf[24]) { return (uint32_t)snprintf(buf, 24, "user%012u", i * 2654435761u); }
static uint32_t draw(uint64_t *rng, char buf[24]) { return key_of((uint32_t)(rng_next(rng) % nr_records), buf); }

// ---- RemixDB

static struct xdb *db;

static void remixdb_fill(const char *dir) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.cache_mb = 512;
  if (!(db = remixdb_open_opts(dir, &o))) give_up("open", remixdb_errmsg());
  struct xdb_ref *const ref = remixdb_ref(db);
  char key[24], val[VALUE] = {0};
  for (uint32_t i = 0; i < nr_records; i++)
    if (!remixdb_put(ref, key, key_of(i, key), val, VALUE)) give_up("put", remixdb_errmsg());
  if (!remixdb_flush(ref)) give_up("flush", remixdb_errmsg());
  for (uint32_t i = 0; i < nr_records; i++) (void)remixdb_probe(ref, key, key_of(i, key));  // into the cache
  remixdb_unref(ref);
}

static void *remixdb_run(void *arg) {
  struct part *const part = arg;
  uint64_t rng = part->rng;
  const uint64_t began = thread_cpu_ns();
  char key[24], val[VALUE] = {0};
  for (uint32_t n = 0; n < nr_txns; n++) {
    struct xdb_txn *const t = remixdb_txn_begin(db);
    struct xdb_ref *const ref = t ? remixdb_txn_ref(t, NULL) : NULL;
    if (!ref) give_up("begin", remixdb_errmsg());
    uint32_t len;
    for (uint32_t i = 0; i < READS; i++)
      if (!remixdb_getn(ref, key, draw(&rng, key), val, VALUE, &len)) give_up("get", remixdb_errmsg());
    for (uint32_t i = 0; i < WRITES; i++)
      if (!remixdb_put(ref, key, draw(&rng, key), val, VALUE)) give_up("put", remixdb_errmsg());
    const bool done = remixdb_txn_commit(t);
    if (!done && remixdb_errcode() != REMIXDB_ABORTED) give_up("commit", remixdb_errmsg());
    done ? part->commits++ : part->conflicts++;
  }
  part->cpu_ns = thread_cpu_ns() - began;
  return NULL;
}

// ---- RocksDB

#if defined(BENCH_ROCKSDB)
static rocksdb_optimistictransactiondb_t *rocks;

static void check(const char *what, const char *err) {
  if (err) give_up(what, err);
}

// The settings of tools/bench/rocksdb.c, and what the check of conflicts needs in memory.
static void rocksdb_fill(const char *dir, uint32_t threads) {
  char *err = NULL, key[24], val[VALUE] = {0};
  rocksdb_options_t *const o = rocksdb_options_create();
  rocksdb_block_based_table_options_t *const table = rocksdb_block_based_options_create();
  rocksdb_block_based_options_set_block_cache(table, rocksdb_cache_create_lru((size_t)512 << 20));
  rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10));
  rocksdb_block_based_options_set_format_version(table, 5);
  rocksdb_block_based_options_set_data_block_index_type(
      table, rocksdb_block_based_table_data_block_index_type_binary_search_and_hash);
  rocksdb_options_set_block_based_table_factory(o, table);
  rocksdb_options_set_create_if_missing(o, 1);
  rocksdb_options_set_compression(o, rocksdb_no_compression);
  rocksdb_options_set_write_buffer_size(o, (size_t)256 << 20);
  rocksdb_options_set_max_write_buffer_size_to_maintain(o, (int64_t)256 << 20);
  if (threads == 1) {
    rocksdb_options_set_allow_concurrent_memtable_write(o, 0);
    rocksdb_options_set_enable_write_thread_adaptive_yield(o, 0);
  }
  rocks = rocksdb_optimistictransactiondb_open(o, dir, &err);
  check("open", err);
  rocksdb_t *const base = rocksdb_optimistictransactiondb_get_base_db(rocks);
  rocksdb_writeoptions_t *const wo = rocksdb_writeoptions_create();
  rocksdb_readoptions_t *const ro = rocksdb_readoptions_create();
  for (uint32_t i = 0; i < nr_records; i++) {
    rocksdb_put(base, wo, key, key_of(i, key), val, VALUE, &err);
    check("put", err);
  }
  rocksdb_flush(base, rocksdb_flushoptions_create(), &err);
  check("flush", err);
  for (uint32_t i = 0; i < nr_records; i++) {
    size_t len;
    rocksdb_free(rocksdb_get(base, ro, key, key_of(i, key), &len, &err));
    check("get", err);
  }
}

static void *rocksdb_run(void *arg) {
  struct part *const part = arg;
  uint64_t rng = part->rng;
  const uint64_t began = thread_cpu_ns();
  char key[24], val[VALUE] = {0}, *err = NULL;
  rocksdb_writeoptions_t *const wo = rocksdb_writeoptions_create();
  rocksdb_readoptions_t *const ro = rocksdb_readoptions_create();
  rocksdb_optimistictransaction_options_t *const to = rocksdb_optimistictransaction_options_create();
  rocksdb_optimistictransaction_options_set_set_snapshot(to, 1);
  rocksdb_transaction_t *t = NULL;
  for (uint32_t n = 0; n < nr_txns; n++) {
    t = rocksdb_optimistictransaction_begin(rocks, wo, to, t);
    const rocksdb_snapshot_t *const snap = rocksdb_transaction_get_snapshot(t);
    rocksdb_readoptions_set_snapshot(ro, snap);
    for (uint32_t i = 0; i < READS; i++) {
      size_t len = 0;
      rocksdb_pinnableslice_t *const p = rocksdb_transaction_get_pinned_for_update(t, ro, key, draw(&rng, key), 1,
                                                                                   &err);
      check("get", err);
      const char *const v = p ? rocksdb_pinnableslice_value(p, &len) : NULL;
      if (!v) give_up("get", "a record is missing");
      memcpy(val, v, len < VALUE ? len : VALUE);
      rocksdb_pinnableslice_destroy(p);
    }
    for (uint32_t i = 0; i < WRITES; i++) {
      rocksdb_transaction_put(t, key, draw(&rng, key), val, VALUE, &err);
      check("put", err);
    }
    rocksdb_transaction_commit(t, &err);
    err ? part->conflicts++ : part->commits++;
    rocksdb_free(err);
    err = NULL;
    rocksdb_free((void *)(uintptr_t)snap);
  }
  part->cpu_ns = thread_cpu_ns() - began;
  return NULL;
}
#endif

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s DIR remixdb|rocksdb [threads] [transactions of each thread] [records]\n", argv[0]);
    return 2;
  }
  const uint32_t threads = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1;
  if (argc > 4) nr_txns = (uint32_t)strtoul(argv[4], NULL, 10);
  if (argc > 5) nr_records = (uint32_t)strtoul(argv[5], NULL, 10);
  void *(*run)(void *) = remixdb_run;
  if (threads == 0 || threads > 64 || nr_records == 0) give_up("arguments", "1 to 64 threads, and some records");
  if (strcmp(argv[2], "remixdb") == 0) {
    remixdb_fill(argv[1]);
  } else {
#if defined(BENCH_ROCKSDB)
    rocksdb_fill(argv[1], threads);
    run = rocksdb_run;
#else
    give_up(argv[2], "this program was built without it");
#endif
  }
  pthread_t ids[64];
  static struct part parts[64];
  struct part sum = {0};
  const uint64_t began = time_ns();
  for (uint32_t i = 0; i < threads; i++) {
    parts[i].rng = i + 1;
    if (pthread_create(&ids[i], NULL, run, &parts[i]) != 0) give_up("pthread_create", "failed");
  }
  for (uint32_t i = 0; i < threads; i++) (void)pthread_join(ids[i], NULL);
  const uint64_t ns = time_ns() - began;
  for (uint32_t i = 0; i < threads; i++) {
    sum.commits += parts[i].commits;
    sum.conflicts += parts[i].conflicts;
    sum.cpu_ns += parts[i].cpu_ns;
  }
  printf("%s threads=%u commits_per_s=%.0f conflicts=%llu cpu_ns_per_commit=%.0f\n", argv[2], threads,
         (double)sum.commits * 1e9 / (double)ns, (unsigned long long)sum.conflicts,
         (double)sum.cpu_ns / (double)(sum.commits ? sum.commits : 1));
  if (db) remixdb_close(db);
  return 0;
}
