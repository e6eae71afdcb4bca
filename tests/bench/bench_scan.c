// SPDX-License-Identifier: Apache-2.0
//
// Scans of a whole store whose files are in the system's page cache.
//
//   bench_scan dir [tables[,tables...]] [records] [value] [cache] [rounds] [workers]
//
//     dir       the stores are made in it, and stay there for the next run
//     tables    numbers of tables, all over the same keys: 1,2,4,9,14
//     records   400000 in each store. Keys are 16 hexadecimal digits of random numbers; each record goes to a table
//               drawn at random
//     value     bytes of a value: 100
//     cache     MiB of the block cache: 8
//     rounds    5
//     workers   0. Others clear memory ahead for the cache, and may merge tables after a round
//
// A round opens each store in turn, with an empty block cache, and scans it twice forward; then the same backward. A
// scan copies each key and each value. The figures are medians of the thread's processor time, the kernel's part of it
// and the elapsed time, in nanoseconds per record, and the page faults of the pass.
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "lib.h"
#include "remixdb.h"

#define KLEN 16u
#define VLEN_MAX 4096u
#define TABLES_MAX 16u
#define ROUNDS_MAX 100u
#define NUMBERS_MAX 7u  // numbers of tables, tried until a partition takes them all
#define PATH_BYTES 4096u
#define PASSES 4u  // passes of a round: the first and the second, forward, then backward

static const char *const pass_names[PASSES] = {"on 1st", "on 2nd", "back 1st", "back 2nd"};

static void __attribute__((format(printf, 1, 2), noreturn)) die(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  (void)vfprintf(stderr, fmt, ap);
  va_end(ap);
  (void)fprintf(stderr, "; status %d: %s\n", (int)remixdb_errcode(), remixdb_errmsg());
  exit(1);
}

struct setup {
  const char *dir;
  uint32_t tables[TABLES_MAX], nr;  // nr numbers of tables
  uint32_t records, value, cache, rounds, workers;
};

struct sample {
  double cpu, kernel, wall, faults;
};

static const char *store_path(const struct setup *w, uint32_t tables, char path[PATH_BYTES]) {
  const int n = snprintf(path, PATH_BYTES, "%s/%" PRIu32 "-%" PRIu32 "-%" PRIu32, w->dir, tables, w->records, w->value);
  if (n < 0 || (size_t)n >= PATH_BYTES) die("%s: too long a name", w->dir);
  return path;
}

static struct xdb *store_open(const struct setup *w, uint32_t tables, uint32_t cache, uint32_t workers) {
  char path[PATH_BYTES];
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = (int)workers;
  o.cache_mb = cache;
  o.memtable_mb = 1024;
  o.wal_mb = 4096;
  struct xdb *const x = remixdb_open_opts(store_path(w, tables, path), &o);
  if (!x) die("%s", path);
  return x;
}

static uint64_t figure(struct xdb *x, const char *name) {
  char quoted[64];
  char *const text = remixdb_stats(x);
  (void)snprintf(quoted, sizeof(quoted), "\"%s\":", name);
  const char *const at = text ? strstr(text, quoted) : NULL;
  if (!at) die("no figure %s", name);
  const uint64_t v = strtoull(at + strlen(quoted), NULL, 10);
  remixdb_free(text);
  return v;
}

// Record i of the store, and the table that it goes to.
static uint32_t record_make(const struct setup *w, uint32_t i, uint32_t tables, char *key, uint8_t *val) {
  uint64_t rng = (uint64_t)i + 1;
  (void)snprintf(key, KLEN + 1, "%016" PRIx64, rng_next(&rng));
  for (uint32_t o = 0; o < w->value; o += 8) {
    const uint64_t v = rng_next(&rng);
    memcpy(val + o, &v, w->value - o < 8 ? w->value - o : 8);
  }
  return (uint32_t)(rng_next(&rng) % tables);
}

static void flush(struct xdb_ref *ref) {
  if (!remixdb_flush(ref)) die("flush");
}

// The number of a partition's first table tells how many tables it may have. A table that goes again uses a number up.
static void number_use(struct xdb_ref *ref) {
  if (!remixdb_put(ref, "", 0, "", 0)) die("put");
  flush(ref);
  if (!remixdb_del(ref, "", 0) || !remixdb_compact(ref)) die("compact");
}

static void store_fill(const struct setup *w, uint32_t tables, struct xdb_ref *ref) {
  static uint8_t val[VLEN_MAX];
  char key[KLEN + 1];
  for (uint32_t t = 0; t < tables; t++) {
    for (uint32_t i = 0; i < w->records; i++)
      if (record_make(w, i, tables, key, val) == t && !remixdb_put(ref, key, KLEN, val, w->value)) die("put");
    flush(ref);
  }
}

static void store_make(const struct setup *w, uint32_t tables) {
  for (uint32_t numbers_used = 0;; numbers_used++) {
    struct xdb *const x = store_open(w, tables, w->cache, 0);
    if (figure(x, "tables") == 0) {
      struct xdb_ref *const ref = remixdb_ref(x);
      if (!ref) die("no ref");
      for (uint32_t n = 0; n < numbers_used; n++) number_use(ref);
      store_fill(w, tables, ref);
      remixdb_unref(ref);
    }
    const uint64_t nr = figure(x, "tables"), parts = figure(x, "partitions");
    remixdb_close(x);
    if (nr == tables && parts == 1) return;
    char path[PATH_BYTES];
    if (numbers_used == NUMBERS_MAX || !remixdb_destroy(store_path(w, tables, path)))
      die("%s: %" PRIu64 " tables in %" PRIu64 " partitions", path, nr, parts);
  }
}

static double clock_ns(clockid_t id) {
  struct timespec t;
  (void)clock_gettime(id, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void usage(double *kernel_out, double *faults_out) {
  struct rusage u;
  if (getrusage(RUSAGE_THREAD, &u)) die("getrusage");
  *kernel_out = (double)u.ru_stime.tv_sec * 1e9 + (double)u.ru_stime.tv_usec * 1e3;
  *faults_out = (double)u.ru_minflt;
}

static void pass(const struct setup *w, struct xdb_iter *it, bool back, struct sample *out) {
  static uint8_t key[KLEN], val[VLEN_MAX];
  double kernel, faults;
  uint32_t nr = 0, klen = 0, vlen = 0;
  usage(&kernel, &faults);
  const double wall = clock_ns(CLOCK_MONOTONIC), cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  if (back) {
    for (remixdb_iter_seek_last(it); remixdb_iter_peek(it, key, &klen, val, &vlen); remixdb_iter_prev(it)) nr++;
  } else {
    for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_peek(it, key, &klen, val, &vlen); remixdb_iter_skip1(it)) nr++;
  }
  out->cpu = (clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu) / w->records;
  out->wall = (clock_ns(CLOCK_MONOTONIC) - wall) / w->records;
  usage(&out->kernel, &out->faults);
  out->kernel = (out->kernel - kernel) / w->records;
  out->faults -= faults;
  if (remixdb_iter_status(it) != REMIXDB_OK) die("scan");
  if (nr != w->records || klen != KLEN || vlen != w->value) die("a scan came to %" PRIu32 " records", nr);
}

static void round_run(const struct setup *w, uint32_t tables, struct sample *out) {
  for (uint32_t i = 0; i < PASSES; i += 2) {
    struct xdb *const x = store_open(w, tables, w->cache, w->workers);
    struct xdb_ref *const ref = remixdb_ref(x);
    struct xdb_iter *const it = ref ? remixdb_iter_create(ref) : NULL;
    if (!it) die("no iterator");
    pass(w, it, i != 0, &out[i]);
    pass(w, it, i != 0, &out[i + 1]);
    remixdb_iter_destroy(it);
    remixdb_unref(ref);
    remixdb_close(x);
  }
}

static int by_number(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(const struct setup *w, const struct sample *first, size_t stride, size_t offset) {
  double v[ROUNDS_MAX];
  for (uint32_t n = 0; n < w->rounds; n++) memcpy(&v[n], (const uint8_t *)first + n * stride + offset, sizeof(*v));
  qsort(v, w->rounds, sizeof(*v), by_number);
  return w->rounds % 2 ? v[w->rounds / 2] : (v[w->rounds / 2 - 1] + v[w->rounds / 2]) / 2;
}

static void numbers(const char *text, struct setup *w) {
  char *end;
  for (w->nr = 0; *text; text = *end ? end + 1 : end) {
    const unsigned long n = strtoul(text, &end, 10);
    if (end == text || n == 0 || n > TABLES_MAX || (*end != 0 && *end != ',') || w->nr == TABLES_MAX)
      die("%s: numbers of tables, with commas between", text);
    w->tables[w->nr++] = (uint32_t)n;
  }
}

static uint32_t argument(int argc, char **argv, int i, uint32_t otherwise, uint32_t min, uint32_t max) {
  if (i >= argc) return otherwise;
  const unsigned long n = strtoul(argv[i], NULL, 10);
  if (n < min || n > max) die("%s: from %" PRIu32 " to %" PRIu32, argv[i], min, max);
  return (uint32_t)n;
}

int main(int argc, char **argv) {
  static struct sample samples[TABLES_MAX][ROUNDS_MAX][PASSES];
  static struct setup w;
  if (argc < 2) die("bench_scan dir [tables[,tables...]] [records] [value] [cache] [rounds] [workers]");
  w.dir = argv[1];
  numbers(argc > 2 ? argv[2] : "1,2,4,9,14", &w);
  w.records = argument(argc, argv, 3, 400000, 1000, 10000000);
  w.value = argument(argc, argv, 4, 100, 1, VLEN_MAX);
  w.cache = argument(argc, argv, 5, 8, 0, 100000);
  w.rounds = argument(argc, argv, 6, 5, 1, ROUNDS_MAX);
  w.workers = argument(argc, argv, 7, 0, 0, 64);
  for (uint32_t i = 0; i < w.nr; i++) store_make(&w, w.tables[i]);
  for (uint32_t n = 0; n < w.rounds; n++)
    for (uint32_t i = 0; i < w.nr; i++) round_run(&w, w.tables[i], samples[i][n]);
  for (uint32_t i = 0; i < w.nr; i++) {
    for (uint32_t p = 0; p < PASSES; p++) {
      const struct sample *const s = &samples[i][0][p];
      const size_t stride = sizeof(samples[i][0]);
      printf("%2" PRIu32 " tables, %-8s: processor %6.1f ns, kernel %6.1f, elapsed %6.1f, faults %.0f\n", w.tables[i],
             pass_names[p], median(&w, s, stride, offsetof(struct sample, cpu)),
             median(&w, s, stride, offsetof(struct sample, kernel)),
             median(&w, s, stride, offsetof(struct sample, wall)),
             median(&w, s, stride, offsetof(struct sample, faults)));
    }
  }
  return 0;
}
