// SPDX-License-Identifier: Apache-2.0
//
// Measures a store: this one, and others through the very same loops.
//
//   xdbbench.out [--engine=remixdb] [--db=DIR] [--benchmarks=fillrandom,waitidle,readrandom,...] [flags]
//   xdbbench.out --help
//
// Benchmarks run in the order given, on one store. The fill* ones and ycsbload begin with an empty one unless --use_existing_db is
// given. A benchmark may have parameters of its own: readrandom:distribution=zipfian:threads=2. Values that are read are checked;
// the exit status is 1 when one was wrong or missing or the engine failed, and 2 for a wrong flag or a --db that cannot be used.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_report.h"
#include "bench_work.h"

#define PATH_CAP 4096
#define TEXT_CAP 1024u  // a benchmark with its parameters
#define MARK ".xdbbench"  // in --db: the directories beside it are ours to remove

static struct {
  struct bench_config config;
  struct bench_params params;
  struct bench_run run;
  const char *benchmarks, *db, *engine, *csv, *verify;
  char dir[PATH_CAP];   // of the store
  bool use_existing_db, keep, list;
  bool csv_named;       // the columns were written
  FILE *csv_file;
  struct bench_report report;  // of the running benchmark; what is of the store stays from one to the next
} g = {
    .config = {.num = 1000000, .key_size = 16, .value_size = 100, .cache_mb = 256, .memtable_mb = 64, .compression = "none"},
    .params = {.threads = 1, .readwritepercent = 90, .scan_max = 100, .zipf_theta = 0.99, .unique = true},
    .run = {.seed = 1},
    .benchmarks = "fillrandom,waitidle,readrandom,readmissing,seekrandom,readseq,overwrite",
    .engine = "remixdb",
    .verify = "ends",
};

// ---- flags

enum flag_type { FLAG_U64, FLAG_U32, FLAG_SIZE, FLAG_BOOL, FLAG_TEXT, FLAG_REAL, FLAG_DISTRIBUTION };

struct flag {
  const char *name;
  enum flag_type type;
  void *to;
  const char *what;
  uint64_t least, most;
};

static const struct flag flags[] = {
    {"benchmarks", FLAG_TEXT, &g.benchmarks, "what to run, separated by commas", 0, 0},
    {"db", FLAG_TEXT, &g.db, "directory for the stores, of one xdbbench at a time ($TMPDIR/xdbbench)", 0, 0},
    {"engine", FLAG_TEXT, &g.engine, "the store to measure", 0, 0},
    {"num", FLAG_U64, &g.config.num, "records", 1, UINT32_MAX},
    {"key_size", FLAG_U32, &g.config.key_size, "bytes", BENCH_KEY_MIN, BENCH_KEY_MAX},
    {"value_size", FLAG_U32, &g.config.value_size, "bytes", BENCH_VALUE_MIN, BENCH_VALUE_MAX},
    {"cache_mb", FLAG_SIZE, &g.config.cache_mb, "block cache, MiB", 0, 1u << 24},
    {"memtable_mb", FLAG_SIZE, &g.config.memtable_mb, "memtable (write buffer), MiB", 1, 1u << 24},
    {"compression", FLAG_TEXT, &g.config.compression, "none, zstd, lz4 or snappy, as the engine has it", 0, 0},
    {"direct_io", FLAG_BOOL, &g.config.direct_io, "past the page cache", 0, 1},
    {"use_existing_db", FLAG_BOOL, &g.use_existing_db, "go on with the store that is there; it is thought to be full", 0, 1},
    {"may_miss", FLAG_BOOL, &g.run.may_miss, "with use_existing_db: it may hold less than that", 0, 1},
    {"keep", FLAG_BOOL, &g.keep, "leave the store on disk at the end", 0, 1},
    {"seed", FLAG_U64, &g.run.seed, "of keys and draws", 0, UINT64_MAX},
    {"verify", FLAG_TEXT, &g.verify, "ends (length, first and last 8 bytes of a value) or full (all of it, the order of records, lost writes)", 0, 0},
    {"csv", FLAG_TEXT, &g.csv, "append a line for each benchmark to this file", 0, 0},
    // those below may also be given to a single benchmark
    {"ops", FLAG_U64, &g.params.ops, "operations in each thread of what is no filling (num)", 0, UINT32_MAX},
    {"reads", FLAG_U64, &g.params.ops, "the same", 0, UINT32_MAX},
    {"threads", FLAG_U32, &g.params.threads, "threads", 1, 1024},
    {"distribution", FLAG_DISTRIBUTION, &g.params.distribution, "of records: uniform or zipfian (scattered over the keys)", 0, 0},
    {"zipf_theta", FLAG_REAL, &g.params.zipf_theta, "exponent of zipfian, below 1", 0, 0},
    {"seek_nexts", FLAG_U32, &g.params.seek_nexts, "steps after a seek", 0, 60000},
    {"seek_missing", FLAG_BOOL, &g.params.seek_missing, "seekrandom to keys that are not there", 0, 1},
    {"batch_size", FLAG_U32, &g.params.batch_size, "writes, or gets of multireadrandom, at once (as the engine likes it; 32)", 0, 1000000},
    {"readwritepercent", FLAG_U32, &g.params.readwritepercent, "reads of readrandomwriterandom", 0, 100},
    {"scan_max", FLAG_U32, &g.params.scan_max, "longest scan of ycsbe, records", 1, 60000},
    {"write_rate", FLAG_U64, &g.params.write_rate, "writes per second beside readers (no limit)", 0, 1000000000},
    {"unique", FLAG_BOOL, &g.params.unique, "fillrandom and ycsbload put every record once", 0, 1},
    {"sync", FLAG_BOOL, &g.params.sync, "each write on disk before the next", 0, 1},
    {"histogram", FLAG_BOOL, &g.params.histogram, "time every operation, not one of 16 where there are reads", 0, 1},
};
#define NR_FLAGS (sizeof(flags) / sizeof(flags[0]))

static bool wrong(const char *what, const char *text) {
  fprintf(stderr, "xdbbench: %s: %s\n", what, text);
  return false;
}

static bool flush_stdout(void) {
  if (ferror(stdout)) return wrong("standard output", "could not be written to");  // the reason is of an earlier call
  return fflush(stdout) == 0 || wrong("standard output", strerror(errno));
}

static bool parse_number(const struct flag *f, const char *text, uint64_t *out) {
  char *end;
  errno = 0;
  const uint64_t v = strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end || errno || v < f->least || v > f->most) return wrong(f->name, "not a number that it takes");
  *out = v;
  return true;
}

// Where `f` lies in `p` when it is a parameter of benchmarks, else in g.
static void *place_of(const struct flag *f, struct bench_params *p) {
  const uintptr_t at = (uintptr_t)f->to - (uintptr_t)&g.params;
  return at < sizeof(g.params) ? (uint8_t *)p + at : p == &g.params ? f->to : NULL;
}

static bool set_flag(const char *name, size_t len, const char *value, struct bench_params *p) {
  for (size_t i = 0; i < NR_FLAGS; i++) {
    const struct flag *f = &flags[i];
    if (strlen(f->name) != len || memcmp(f->name, name, len)) continue;
    void *to = place_of(f, p);
    if (!to) return wrong(f->name, "is of a whole run, not of one benchmark");
    uint64_t n = 0;
    if (!value && f->type != FLAG_BOOL) return wrong(f->name, "needs a value");
    switch (f->type) {
      case FLAG_TEXT: *(const char **)to = value; return true;
      case FLAG_DISTRIBUTION:
        if (strcmp(value, "uniform") && strcmp(value, "zipfian")) return wrong(f->name, "uniform or zipfian");
        *(enum bench_distribution *)to = strcmp(value, "uniform") ? BENCH_ZIPFIAN : BENCH_UNIFORM;
        return true;
      case FLAG_REAL: {
        char *end;
        const double v = strtod(value, &end);
        if (end == value || *end || !(v > 0 && v < 1)) return wrong(f->name, "a number between 0 and 1");
        *(double *)to = v;
        return true;
      }
      default: break;
    }
    if (!parse_number(f, value ? value : "1", &n)) return false;
    if (f->type == FLAG_U64) *(uint64_t *)to = n;
    else if (f->type == FLAG_U32) *(uint32_t *)to = (uint32_t)n;
    else if (f->type == FLAG_SIZE) *(size_t *)to = (size_t)n;
    else *(bool *)to = n != 0;
    return true;
  }
  char text[64];
  snprintf(text, sizeof(text), "%.*s", (int)(len < 63 ? len : 63), name);
  return wrong(text, "no such flag; see --help");
}

static const struct { const char *name, *what; } steps[] = {
    {"flush", "writes what is in memory to tables"},
    {"compact", "down to the fewest tables"},
    {"waitidle", "waits until the work that writes have caused has settled"},
    {"reopen", "closes and opens the store"},
    {"warm", "reads everything once"},
    {"stats", "prints the engine's own figures"},
};
#define NR_STEPS (sizeof(steps) / sizeof(steps[0]))

static void help(void) {
  printf("usage: xdbbench.out [flags]\n\nengines:\n");
  for (size_t i = 0; bench_engines[i]; i++) {
    const struct bench_engine *e = bench_engines[i];
    printf("  %-11s%s: %s\n", e->name, e->version(), e->settings);
  }
  printf("\nbenchmarks:\n");
  const char *name, *what;
  for (uint32_t i = 0; (name = bench_work_name(i, &what)); i++) printf("  %-24s%s\n", name, what);
  for (size_t i = 0; i < NR_STEPS; i++) printf("  %-24s%s\n", steps[i].name, steps[i].what);
  printf("\nflags:\n");
  struct bench_params other;
  for (size_t i = 0; i < NR_FLAGS; i++) printf("  --%-20s%s%s\n", flags[i].name, flags[i].what, place_of(&flags[i], &other) ? " *" : "");
  printf("  (* also of a single benchmark: readrandom:distribution=zipfian:threads=2)\n");
}

// ---- the store

static bool store_open(void) {
  if (!bench_dir_make(g.dir)) return false;
  g.run.store = g.run.engine->open(&g.config);
  return g.run.store != NULL;
}

static bool store_close(void) {
  void *const store = g.run.store;
  g.run.store = NULL;
  return !store || g.run.engine->close(store);
}

// Finds g.dir and sees to it that what is there may be removed: the mark says that this program made it, and is locked as long as it runs.
static bool store_place(void) {
  char path[PATH_CAP + sizeof(MARK) + 1];
  struct stat st;
  if (!bench_dir_make(g.db)) return false;
  snprintf(path, sizeof(path), "%s/%s", g.db, MARK);
  if ((size_t)snprintf(g.dir, sizeof(g.dir), "%s/%s", g.db, g.run.engine->name) >= sizeof(g.dir)) return wrong(g.db, "the name is too long");
  g.config.dir = g.dir;
  if (stat(path, &st) && !stat(g.dir, &st)) return wrong(g.dir, "is there, and xdbbench did not make it; give another --db");
  const int mark = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (mark < 0) return wrong(path, strerror(errno));
  if (flock(mark, LOCK_EX | LOCK_NB) == 0) return true;
  return errno == EWOULDBLOCK ? wrong(g.db, "is in use by another xdbbench; give another --db") : wrong(path, strerror(errno));
}

static bool store_fresh(void) {
  struct stat st;
  if (!store_close() || (!stat(g.dir, &st) && !bench_dir_remove(g.dir))) return false;
  bench_run_reset(&g.run, false);
  bench_usage_get(&g.report.fresh);
  g.report.user_written = 0;
  return store_open();
}

// ---- running

static bool is_step(const char *name) {
  for (size_t i = 0; i < NR_STEPS; i++)
    if (!strcmp(steps[i].name, name)) return true;
  return false;
}

// *known_out: whether the engine has it.
static bool run_step(const char *name, bool *known_out) {
  const struct bench_engine *e = g.run.engine;
  bool (*const fn)(void *) = !strcmp(name, "flush") ? e->flush : !strcmp(name, "compact") ? e->compact : !strcmp(name, "waitidle") ? e->settle : NULL;
  *known_out = true;
  if (!strcmp(name, "reopen")) return store_close() && store_open();
  if (!strcmp(name, "warm")) {
    static struct bench_result unused;
    struct bench_params one = g.params;
    one.threads = 1;
    return bench_work(&g.run, "readseq", &one, &unused);
  }
  if (!strcmp(name, "stats")) {
    char *text = e->stats ? e->stats(g.run.store) : NULL;
    if (text) printf("%s\n", text);
    *known_out = text != NULL;
    free(text);
    return true;
  }
  *known_out = fn != NULL;
  return !fn || fn(g.run.store);
}

// "name:flag=value:flag=value"; `text` is cut into pieces.
static bool parse_benchmark(char *text, struct bench_params *p) {
  char *next = strchr(text, ':');
  if (next) *next++ = 0;
  *p = g.params;
  if (!bench_work_known(text) && !is_step(text)) return wrong(text, "no such benchmark; see --help");
  for (char *flag = next; flag; flag = next) {
    next = strchr(flag, ':');
    if (next) *next++ = 0;
    char *value = strchr(flag, '=');
    if (value) *value++ = 0;
    if (!set_flag(flag, strlen(flag), value, p)) return false;
  }
  return true;
}

static bool run_benchmark(const char *label) {
  char name[TEXT_CAP];
  struct bench_params p;
  struct bench_report *t = &g.report;
  t->label = label;
  t->r = (struct bench_result){0};
  if ((size_t)snprintf(name, sizeof(name), "%s", label) >= sizeof(name)) return wrong(label, "too long");
  if (!parse_benchmark(name, &p)) return false;
  t->threads = p.threads;
  if (bench_work_fresh(name) && !g.use_existing_db && !store_fresh()) return false;
  if (!g.run.store && !store_open()) return false;
  bench_usage_reset_peak();
  bench_usage_get(&t->before);
  bool good, known = true;
  if (is_step(name)) {
    const uint64_t t0 = bench_time_ns();
    good = run_step(name, &known);
    t->r.seconds = (double)(bench_time_ns() - t0) / 1e9;
  } else {
    good = bench_work(&g.run, name, &p, &t->r);
    known = t->r.ops || t->r.seconds > 0 || !good;
  }
  if (!known) {
    printf("%-24s: %s does not do this\n", label, g.run.engine->name);
    return good;
  }
  bench_usage_get(&t->after);
  t->user_written += t->r.bytes_written;
  t->space = bench_dir_bytes(g.dir);
  t->live = bench_run_records(&g.run) * (g.config.key_size + g.config.value_size);
  t->failures = atomic_load(&g.run.failures);
  bench_report_print(stdout, t);
  if (g.csv_file) {
    if (!g.csv_named) bench_report_csv(g.csv_file, t, true);
    g.csv_named = true;
    bench_report_csv(g.csv_file, t, false);
  }
  return good;
}

static bool run_all(void) {
  char *list = strdup(g.benchmarks), *save = NULL;
  bool good = list != NULL;
  // all are looked at before any is run
  for (char *b = good ? strtok_r(list, ",", &save) : NULL; good && b; b = strtok_r(NULL, ",", &save)) {
    char text[TEXT_CAP];
    struct bench_params p;
    snprintf(text, sizeof(text), "%s", b);
    if (!parse_benchmark(text, &p)) exit(2);
  }
  free(list);
  list = strdup(g.benchmarks);
  good = list != NULL;
  for (char *b = good ? strtok_r(list, ",", &save) : NULL; good && b; b = strtok_r(NULL, ",", &save)) good = run_benchmark(b);
  free(list);
  return good;
}

static bool setup(void) {
  static char db[PATH_CAP];
  const char *tmp = getenv("TMPDIR");
  if (!g.db) {
    snprintf(db, sizeof(db), "%s/xdbbench", tmp && *tmp ? tmp : "/tmp");
    g.db = db;
  }
  if (!(g.run.engine = bench_engine_find(g.engine))) return wrong(g.engine, "no such engine in this program; see --help");
  if (strcmp(g.verify, "ends") && strcmp(g.verify, "full")) return wrong("verify", "ends or full");
  g.run.full = !strcmp(g.verify, "full");
  g.config.threads = g.params.threads;
  g.config.cores = bench_cores();
  const uint64_t memory = bench_memory();
  g.config.larger_than_memory = memory && g.config.num * (g.config.key_size + g.config.value_size) * 2 > memory;
  if (!bench_keys_init(&g.run.keys, g.config.num, g.config.key_size, g.config.value_size, g.run.seed) || !bench_run_init(&g.run, g.use_existing_db))
    return wrong("memory", "there is not enough");
  if (!store_place()) return false;
  struct stat st;
  if (!g.use_existing_db && !stat(g.dir, &st) && !bench_dir_remove(g.dir)) return false;
  if (g.csv) {
    if (!(g.csv_file = fopen(g.csv, "a"))) return wrong(g.csv, strerror(errno));
    g.csv_named = !fstat(fileno(g.csv_file), &st) && st.st_size > 0;
  }
  bench_tick_ns();
  bench_usage_get(&g.report.base);
  g.report.fresh = g.report.base;
  g.report.engine = g.run.engine;
  g.report.config = &g.config;
  return true;
}

static void print_head(void) {
  const struct bench_config *c = &g.config;
  printf("engine     : %s %s\nsettings   : %s\n", g.run.engine->name, g.run.engine->version(), g.run.engine->settings);
  printf("records    : %" PRIu64 " of %u + %u bytes, %.1f MB; cache %zu MiB, memtable %zu MiB, compression %s, seed %" PRIu64 ", in %s\n", c->num,
         c->key_size, c->value_size, (double)(c->num * (c->key_size + c->value_size)) / 1e6, c->cache_mb, c->memtable_mb, c->compression, g.run.seed,
         g.dir);
}

int main(int argc, char **argv) {
  bench_std_fds();
  for (int i = 1; i < argc; i++) {
    const char *a = argv[i];
    if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
      help();
      return flush_stdout() ? 0 : 1;
    }
    if (strncmp(a, "--", 2)) {
      wrong(a, "no such flag; see --help");
      return 2;
    }
    const char *value = strchr(a, '=');
    if (!set_flag(a + 2, value ? (size_t)(value - a) - 2 : strlen(a + 2), value ? value + 1 : NULL, &g.params)) return 2;
  }
  if (!setup()) return 2;
  print_head();
  fflush(stdout);
  bool good = run_all();
  good &= store_close();
  if (!g.keep && !g.use_existing_db) good &= bench_dir_remove(g.dir);
  if (g.csv_file) {
    const bool lost = ferror(g.csv_file) != 0;  // of a line that was flushed before
    if (fclose(g.csv_file) || lost) good = wrong(g.csv, "not all could be written");
  }
  const uint64_t failures = atomic_load(&g.run.failures);
  if (failures) fprintf(stderr, "xdbbench: %s: %" PRIu64 " wrong or missing values\n", g.run.engine->name, failures);
  good &= flush_stdout();
  bench_run_fini(&g.run);
  bench_keys_fini(&g.run.keys);
  return good && !failures ? 0 : 1;
}
