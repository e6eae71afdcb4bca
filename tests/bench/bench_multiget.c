// SPDX-License-Identifier: Apache-2.0
//
// How much faster one remixdb_multi_get is than a loop of remixdb_get over the same number of keys: rounds of both in
// turn on one store, for each the time per key, and the ratio of the medians.
//
//   bench_multiget DIR [name=value ...]
//     keys=10000000   keys in the store; it is filled when DIR holds none (in random order), and must be of the same
//     keys otherwise vlen=120        bytes of a value; a key has 16 dense=0         1: keys are consecutive numbers in
//     digits; 0: they are spread over all 16-digit hexadecimal numbers group=256       keys of a call lookups=200000
//     keys of a round rounds=9 absent=0        percent of the lookups for keys that are not there cache=2048      block
//     cache, MiB direct=0        1: direct_io: the page cache takes no memory beside the block cache cold=0          1:
//     direct_io, and the system's page cache is dropped before each round (as root; said when it could not be) mem=0 1:
//     the store is filled anew each time and stays in the memtable zstd=0          1: compressed tables multi=0 1: only
//     multi_get, 2: only get (for a profiler)
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <fcntl.h>
#include <unistd.h>

#include "remixdb.h"

#define KLEN 16u
#define GROUP_MAX 4096u

static uint64_t opt_keys = 10000000, opt_vlen = 120, opt_dense, opt_group = 256, opt_lookups = 200000, opt_rounds = 9,
                opt_absent, opt_cache = 2048, opt_direct, opt_cold, opt_mem, opt_zstd, opt_multi;

static const struct {
  const char *name;
  uint64_t *value;
} options[] = {{"keys", &opt_keys},       {"vlen", &opt_vlen},     {"dense", &opt_dense},   {"group", &opt_group},
               {"lookups", &opt_lookups}, {"rounds", &opt_rounds}, {"absent", &opt_absent}, {"cache", &opt_cache},
               {"direct", &opt_direct},   {"cold", &opt_cold},     {"mem", &opt_mem},       {"zstd", &opt_zstd},
               {"multi", &opt_multi}};

static uint64_t clock_ns(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
static uint64_t cpu_ns(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

static uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

static uint64_t rng_state = 42;
static uint64_t rng(void) { return mix(rng_state += 0x9E3779B97F4A7C15ull); }

static void die(const char *what) {
  fprintf(stderr, "%s: %s: %s\n", what, remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
  exit(1);
}

static void key_make(uint64_t i, char *buf) {
  char text[KLEN + 1];
  snprintf(text, sizeof(text), opt_dense ? "%016" PRIu64 : "%016" PRIx64, opt_dense ? i : mix(i + 1));
  memcpy(buf, text, KLEN);
}

static void value_make(uint64_t i, char *buf) {
  uint64_t x = i;
  for (uint64_t at = 0; at < opt_vlen; at += 8) {
    if (at % 32 == 0) x = mix(x + 1);
    memcpy(buf + at, &x, opt_vlen - at < 8 ? opt_vlen - at : 8);
  }
}

static void fill(struct xdb_ref *r) {
  char key[KLEN], *const val = malloc(opt_vlen + 8);
  uint64_t step = opt_keys * 6 / 10 | 1;  // a number prime to `keys` visits all of them
  for (uint64_t a = step, b = opt_keys; b != 1;) {
    const uint64_t t = a % b;
    a = b;
    b = t;
    if (b == 0) a = step += 2, b = opt_keys;
  }
  for (uint64_t i = 0, at = 0; i < opt_keys; i++, at = (at + step) % opt_keys) {
    key_make(at, key);
    value_make(at, val);
    if (!remixdb_put(r, key, KLEN, val, (uint32_t)opt_vlen)) die("put");
  }
  if (!remixdb_sync(r)) die("sync");
  free(val);
}

static struct xdb *open_store(const char *dir, bool measuring) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.cache_mb = opt_cache;
  o.direct_io = opt_cold || opt_direct;
  o.compression = opt_zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  if (opt_mem) o.memtable_mb = 16384;
  else if (!measuring) o.memtable_mb = 64;
  struct xdb *const x = remixdb_open_opts(dir, &o);
  if (!x) die(dir);
  return x;
}

static bool drop_caches(void) {
  sync();
  const int fd = open("/proc/sys/vm/drop_caches", O_WRONLY);
  const bool good = fd >= 0 && write(fd, "3\n", 2) == 2;
  if (fd >= 0) close(fd);
  return good;
}

static uint64_t pick(void) {
  const uint64_t i = rng() % opt_keys;
  return rng() % 100 < opt_absent ? i + opt_keys : i;
}

// The keys of a round are made before the clock runs; values are checked, so that wrong answers do not count.
static char *round_keys, *round_vals;
static uint64_t *round_ids;

static void round_prepare(void) {
  for (uint64_t i = 0; i < opt_lookups; i++) {
    round_ids[i] = pick();
    key_make(round_ids[i], round_keys + i * KLEN);
  }
  memset(round_vals, 0, opt_group * opt_vlen);
}

static void check(uint64_t id, bool found, uint32_t len, const char *val) {
  static char want[65536];
  if (found != (id < opt_keys)) fprintf(stderr, "key %" PRIu64 ": found is %d\n", id, found), exit(1);
  if (!found) return;
  value_make(id, want);
  if (len != opt_vlen || memcmp(val, want, len) != 0) fprintf(stderr, "key %" PRIu64 ": a wrong value\n", id), exit(1);
}

struct took {
  double ns, cpu;  // a key
};

static struct took took(uint64_t ns, uint64_t cpu) {
  return (struct took){(double)ns / (double)opt_lookups, (double)cpu / (double)opt_lookups};
}

static struct took run_get(struct xdb_ref *r) {
  uint64_t ns = 0, cpu = 0;
  static uint32_t lens[GROUP_MAX];
  static bool found[GROUP_MAX];
  for (uint64_t i = 0; i < opt_lookups; i += opt_group) {
    const uint64_t n = opt_lookups - i < opt_group ? opt_lookups - i : opt_group;
    const uint64_t began = now_ns(), cpu_began = cpu_ns();
    for (uint64_t k = 0; k < n; k++)
      found[k] = remixdb_getn(r, round_keys + (i + k) * KLEN, KLEN, round_vals + k * opt_vlen, (uint32_t)opt_vlen,
                              &lens[k]);
    cpu += cpu_ns() - cpu_began;
    ns += now_ns() - began;
    for (uint64_t k = 0; k < n; k += 16) check(round_ids[i + k], found[k], lens[k], round_vals + k * opt_vlen);
  }
  return took(ns, cpu);
}

static struct took run_multi(struct xdb_ref *r) {
  uint64_t ns = 0, cpu = 0;
  static struct remixdb_slice keys[GROUP_MAX];
  static struct remixdb_buf vals[GROUP_MAX];
  static bool found[GROUP_MAX];
  for (uint64_t i = 0; i < opt_lookups; i += opt_group) {
    const uint64_t n = opt_lookups - i < opt_group ? opt_lookups - i : opt_group;
    const uint64_t began = now_ns(), cpu_began = cpu_ns();
    for (uint64_t k = 0; k < n; k++) {
      keys[k] = (struct remixdb_slice){round_keys + (i + k) * KLEN, KLEN};
      vals[k] = (struct remixdb_buf){.ptr = round_vals + k * opt_vlen, .cap = (uint32_t)opt_vlen};
    }
    (void)remixdb_multi_get(r, n, keys, vals, found);
    cpu += cpu_ns() - cpu_began;
    ns += now_ns() - began;
    if (remixdb_errcode() != REMIXDB_OK) die("multi_get");
    for (uint64_t k = 0; k < n; k += 16) check(round_ids[i + k], found[k], vals[k].len, round_vals + k * opt_vlen);
  }
  return took(ns, cpu);
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *v, uint64_t n) {
  qsort(v, n, sizeof(*v), compare);
  return v[n / 2];
}

// Returns the exit status, or 0.
static int parse(int argc, char **argv) {
  for (int a = 2; a < argc; a++) {
    const char *const eq = strchr(argv[a], '=');
    bool known = false;
    for (size_t i = 0; eq && i < sizeof(options) / sizeof(options[0]); i++) {
      if (strlen(options[i].name) != (size_t)(eq - argv[a]) ||
          strncmp(argv[a], options[i].name, (size_t)(eq - argv[a])) != 0)
        continue;
      *options[i].value = strtoull(eq + 1, NULL, 10);
      known = true;
    }
    if (!known) return fprintf(stderr, "%s: not an option\n", argv[a]), 2;
  }
  if (opt_group == 0 || opt_group > GROUP_MAX || opt_vlen > 65000 || opt_keys == 0 || opt_rounds == 0 ||
      opt_rounds > 1000)
    return fprintf(stderr, "an option is out of range\n"), 2;
  return 0;
}

static void measure(struct xdb *x, struct xdb_ref *r) {
  double(*const v)[1000] = calloc(
      5, sizeof(*v));  // the rounds' figures: get, its processor time, multi_get, its processor time, ratio
  bool dropped = true;
  for (uint64_t i = 0; i < opt_rounds; i++) {
    round_prepare();
    if (opt_cold) dropped = drop_caches() && dropped;
    const struct took one = opt_multi == 1 ? (struct took){1, 1} : run_get(r);
    round_prepare();
    if (opt_cold) dropped = drop_caches() && dropped;
    const struct took many = opt_multi == 2 ? (struct took){1, 1} : run_multi(r);
    v[0][i] = one.ns;
    v[1][i] = one.cpu;
    v[2][i] = many.ns;
    v[3][i] = many.cpu;
    v[4][i] = one.ns / many.ns;
  }
  if (!dropped) printf("the page cache could not be dropped\n");
  char *const stats = remixdb_stats(x);
  const char *const io = strstr(stats, "\"io\":"), *const keys = strstr(stats, "\"memtable\":"),
                    *const parts = strstr(stats, "\"partitions\":");
  printf("%.*s %.*s %.*s\n", 12, io, 48, keys, 40, parts);
  remixdb_free(stats);
  double m[5];
  for (uint32_t k = 0; k < 5; k++) m[k] = median(v[k], opt_rounds);
  printf("a key: get %.0f ns (processor %.0f), multi_get of %" PRIu64 " %.0f ns (processor %.0f)", m[0], m[1],
         opt_group, m[2], m[3]);
  printf("; ratio of medians %.2f, of rounds %.2f to %.2f, median %.2f\n", m[0] / m[2], v[4][0], v[4][opt_rounds - 1],
         m[4]);
  free(v);
}

int main(int argc, char **argv) {
  if (argc < 2 || argv[1][0] == '-') return fprintf(stderr, "usage: %s DIR [name=value ...]\n", argv[0]), 2;
  const int bad = parse(argc, argv);
  if (bad) return bad;
  round_keys = malloc(opt_lookups * KLEN);
  round_ids = malloc(opt_lookups * sizeof(*round_ids));
  round_vals = malloc(opt_group * opt_vlen + 8);

  struct xdb *x = open_store(argv[1], false);
  struct xdb_ref *r = remixdb_ref(x);
  struct xdb_iter *const it = remixdb_iter_create(r);
  remixdb_iter_seek(it, NULL, 0);
  const bool empty = !remixdb_iter_valid(it);
  remixdb_iter_destroy(it);
  if (empty) {
    const uint64_t began = now_ns();
    fill(r);
    printf("filled with %" PRIu64 " keys in %.1f s\n", opt_keys, (double)(now_ns() - began) * 1e-9);
  }
  if (!opt_mem) {  // an opening with room for the log brings it into tables, so lookups go to tables
    remixdb_unref(r);
    remixdb_close(x);
    x = open_store(argv[1], true);
    r = remixdb_ref(x);
  }
  if (!opt_cold && !opt_mem) {  // everything into the cache
    char key[KLEN];
    for (uint64_t i = 0; i < opt_keys; i++) {
      key_make(i, key);
      if (!remixdb_probe(r, key, KLEN)) die("probe");
    }
  }
  measure(x, r);
  remixdb_unref(r);
  remixdb_close(x);
  return 0;
}
