// SPDX-License-Identifier: Apache-2.0
//
// Measures a store: this one, and others through the very same loops.
//
//   xdbbench.out [--engine=remixdb] [--db=DIR] [--benchmarks=fillrandom,waitidle,readrandom,...] [flags]
//   xdbbench.out --help
//
// Benchmarks run in the order given, on one store. The fill* ones and ycsbload begin with an empty one unless
// --use_existing_db is given. A benchmark may have parameters of its own: readrandom:distribution=zipfian:threads=2.
// Values that are read are checked; the exit status is 1 when one was wrong or missing or the engine failed, and 2 for
// a wrong flag or a --db that cannot be used.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "remixdb.h"
#include "tools/bench/disk.h"
#include "tools/bench/report.h"
#include "tools/bench/work.h"

#define PATH_CAP 4096
#define TEXT_CAP 1024u    // a benchmark with its parameters
#define MARK ".xdbbench"  // in --db: the directories beside it are ours to remove

static struct {
  struct bench_config config;
  struct bench_params params;
  struct bench_run run;
  const char *benchmarks, *db, *csv;
  const char *disk;          // bench_disk_find of --db
  char dir[PATH_CAP];        // the store's
  char disk_file[PATH_CAP];  // the file of the benchmarks of the disk itself
  size_t memory_mb;          // 0: all of the machine's
  bool use_existing_db, keep;
  bool drop_all;
  bool csv_named;  // the columns were written
  FILE *csv_file;
  struct bench_report report;  // the running benchmark's; the fields of the store stay from one to the next
} g = {
    .config =
        {.num = 1000000, .key_size = 16, .value_size = 100, .cache_mb = 256, .memtable_mb = 64, .compression = "none"},
    .params = {.threads = 1,
               .readwritepercent = 90,
               .scan_max = 100,
               .zipf_theta = 0.99,
               .unique = true,
               .drawn_ahead = 4u << 20,
               .depth = 1},
    .run = {.engine = &bench_remixdb, .seed = 1},
    .benchmarks = "fillrandom,waitidle,readrandom,readmissing,seekrandom,readseq,overwrite",
};

// ---- flags

enum flag_type {
  FLAG_U64,
  FLAG_U32,
  FLAG_SIZE,
  FLAG_BOOL,
  FLAG_REAL,
  FLAG_DISTRIBUTION,
  FLAG_SHAPE,
  FLAG_ENGINE,
  FLAG_COMPRESSION,
  FLAG_IO,
  FLAG_DROP,
  FLAG_VERIFY,
  FLAG_BENCHMARKS,
  FLAG_DIR,
  FLAG_FILE
};

struct flag {
  const char *name;
  enum flag_type type;
  void *to;
  const char *what;
  uint64_t least, most;
};

static const struct flag flags[] = {
    {"benchmarks", FLAG_BENCHMARKS, &g.benchmarks, "what to run, separated by commas", 0, 0},
    {"db", FLAG_DIR, &g.db, "directory for the stores, of one xdbbench at a time ($TMPDIR/xdbbench)", 0, 0},
    {"engine", FLAG_ENGINE, &g.run.engine, "the store to measure", 0, 0},
    {"num", FLAG_U64, &g.config.num, "records", 1, UINT32_MAX},
    {"key_size", FLAG_U32, &g.config.key_size, "bytes; of nested keys the longest has so many", BENCH_KEY_MIN,
     BENCH_KEY_MAX},
    {"key_shape", FLAG_SHAPE, &g.config.shape,
     "number; or long (text after it), prefix (16 long prefixes), nested (each a prefix of the next)", 0, 0},
    {"value_size", FLAG_U32, &g.config.value_size, "bytes", BENCH_VALUE_MIN, BENCH_VALUE_MAX},
    {"blob_size", FLAG_U32, &g.config.blob_size,
     "bytes; RocksDB keeps values from that size on in blob files, with their garbage collection; 0: none", 0,
     1u << 30},
    {"cache_mb", FLAG_SIZE, &g.config.cache_mb, "block cache, MiB", 0, 1u << 24},
    {"memtable_mb", FLAG_SIZE, &g.config.memtable_mb, "memtable (write buffer), MiB", 1, 1u << 24},
    {"compression", FLAG_COMPRESSION, &g.config.compression, "none, zstd, lz4 or snappy, as the engine has it", 0, 0},
    {"memory_mb", FLAG_SIZE, &g.memory_mb,
     "memory that the system lets the process use, with the page cache, MiB, where it is not all", 0, 1u << 24},
    {"direct_io", FLAG_BOOL, &g.config.direct_io, "past the page cache", 0, 1},
    {"io", FLAG_IO, &g.config.io, "auto, uring, aio or sync: how RemixDB reads and writes", 0, 0},
    {"drop", FLAG_DROP, &g.drop_all,
     "dropcaches: files (the store's files leave the page cache) or system (the whole machine's page cache)", 0, 0},
    {"use_existing_db", FLAG_BOOL, &g.use_existing_db, "go on with the store that is there; it is thought to be full",
     0, 1},
    {"may_miss", FLAG_BOOL, &g.run.may_miss, "with use_existing_db: it may hold less than that", 0, 1},
    {"keep", FLAG_BOOL, &g.keep, "leave the store on disk at the end", 0, 1},
    {"seed", FLAG_U64, &g.run.seed, "of keys and draws", 0, UINT64_MAX},
    {"verify", FLAG_VERIFY, &g.run.full,
     "ends (length, first and last 8 bytes of a value) or full (all of it, the order of records, lost writes)", 0, 0},
    {"csv", FLAG_FILE, &g.csv, "append a line for each benchmark to this file", 0, 0},
    // those below may also be given to a single benchmark
    {"ops", FLAG_U64, &g.params.ops, "operations in each thread of what is no filling (num)", 0, UINT32_MAX},
    {"reads", FLAG_U64, &g.params.ops, "the same", 0, UINT32_MAX},
    {"threads", FLAG_U32, &g.params.threads, "threads", 1, 1024},
    {"distribution", FLAG_DISTRIBUTION, &g.params.distribution,
     "of records: uniform or zipfian (scattered over the keys)", 0, 0},
    {"zipf_theta", FLAG_REAL, &g.params.zipf_theta, "exponent of zipfian, below 1", 0, 0},
    {"seek_nexts", FLAG_U32, &g.params.seek_nexts, "steps after a seek", 0, 60000},
    {"seek_missing", FLAG_BOOL, &g.params.seek_missing, "seekrandom to keys that are not there", 0, 1},
    {"backwards", FLAG_BOOL, &g.params.backwards, "seekrandom to the last key at or before, and steps back", 0, 1},
    {"batch_size", FLAG_U32, &g.params.batch_size,
     "writes, or gets of multireadrandom or pages of diskbatch (up to 256), at once (as the engine likes it; 32)", 0,
     1000000},
    {"depth", FLAG_U32, &g.params.depth, "reads in flight in diskread and diskseq", 1, BENCH_DISK_DEPTH_MAX},
    {"readwritepercent", FLAG_U32, &g.params.readwritepercent, "reads of readrandomwriterandom", 0, 100},
    {"scan_max", FLAG_U32, &g.params.scan_max, "longest scan of ycsbe, records", 1, 60000},
    {"write_rate", FLAG_U64, &g.params.write_rate, "writes per second beside readers (no limit)", 0, 1000000000},
    {"read_rate", FLAG_U64, &g.params.read_rate, "gets per second beside fillwhilereading (no limit)", 0, 1000000000},
    {"drawn_ahead", FLAG_U32, &g.params.drawn_ahead,
     "operations of each thread, 8 bytes each, that are drawn before the clock starts; more with it stopped", 256,
     1u << 30},
    {"room_from", FLAG_U32, &g.params.room_from,
     "MiB that a filling has put when its room begins to be watched (it is not)", 0, 1u << 30},
    {"unique", FLAG_BOOL, &g.params.unique, "fillrandom and ycsbload put every record once", 0, 1},
    {"sync", FLAG_BOOL, &g.params.sync, "each write on disk before the next", 0, 1},
    {"histogram", FLAG_BOOL, &g.params.histogram, "time every operation, not one of 16 where there are reads", 0, 1},
};
#define NR_FLAGS (sizeof(flags) / sizeof(flags[0]))

// Always false.
static __attribute__((format(printf, 1, 2))) bool wrong(const char *fmt, ...) {
  va_list ap;
  fputs("xdbbench: ", stderr);
  va_start(ap, fmt);
  vfprintf(stderr, fmt, ap);
  va_end(ap);
  fputc('\n', stderr);
  return false;
}

static bool flush_stdout(void) {
  if (ferror(stdout)) return wrong("standard output could not be written to");  // the reason is of an earlier call
  return fflush(stdout) == 0 || wrong("standard output: %s", strerror(errno));
}

// The arguments of the flag, in words.
static const char *takes(const struct flag *f) {
  static char text[200];
  size_t len = 0;
  switch (f->type) {
    case FLAG_BOOL: return "0 or 1";
    case FLAG_REAL: return "a number above 0 and below 1";
    case FLAG_DISTRIBUTION: return "uniform or zipfian";
    case FLAG_SHAPE: return "number, long, prefix or nested";
    case FLAG_COMPRESSION: return "none, zstd, lz4 or snappy";
    case FLAG_IO: return "auto, uring, aio or sync";
    case FLAG_DROP: return "files or system";
    case FLAG_VERIFY: return "ends or full";
    case FLAG_BENCHMARKS: return "a list such as fillrandom,readrandom";
    case FLAG_DIR: return "a directory";
    case FLAG_FILE: return "a file";
    case FLAG_ENGINE:
      for (size_t i = 0; bench_engines[i] && len < sizeof(text); i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s", i ? " or " : "", bench_engines[i]->name);
      return text;
    default: snprintf(text, sizeof(text), "a number from %" PRIu64 " to %" PRIu64, f->least, f->most); return text;
  }
}

static bool parse_number(const struct flag *f, const char *text, uint64_t *out) {
  char *end;
  errno = 0;
  *out = strtoull(text, &end, 10);
  return *text >= '0' && *text <= '9' && !*end && !errno && *out >= f->least && *out <= f->most;
}

static bool is_compression(const char *text) {
  return !strcmp(text, "none") || !strcmp(text, "zstd") || !strcmp(text, "lz4") || !strcmp(text, "snappy");
}

static bool is_io(const char *text) {
  return !strcmp(text, "auto") || !strcmp(text, "uring") || !strcmp(text, "aio") || !strcmp(text, "sync");
}

static bool set_shape(const char *text, enum bench_shape *to) {
  static const char *const names[] = {
      [BENCH_NUMBER] = "number", [BENCH_LONG] = "long", [BENCH_PREFIX] = "prefix", [BENCH_NESTED] = "nested"};
  for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    if (strcmp(text, names[i])) continue;
    *to = (enum bench_shape)i;
    return true;
  }
  return false;
}

// False: the flag does not take it.
static bool set_value(const struct flag *f, const char *value, void *to) {
  uint64_t n = 0;
  char *end;
  switch (f->type) {
    case FLAG_REAL:
      *(double *)to = strtod(value, &end);
      return end != value && !*end && *(double *)to > 0 && *(double *)to < 1;
    case FLAG_DISTRIBUTION:
      *(enum bench_distribution *)to = strcmp(value, "uniform") ? BENCH_ZIPFIAN : BENCH_UNIFORM;
      return !strcmp(value, "uniform") || !strcmp(value, "zipfian");
    case FLAG_SHAPE: return set_shape(value, to);
    case FLAG_ENGINE: return (*(const struct bench_engine **)to = bench_engine_find(value)) != NULL;
    case FLAG_VERIFY: *(bool *)to = !strcmp(value, "full"); return !strcmp(value, "full") || !strcmp(value, "ends");
    case FLAG_DROP: *(bool *)to = !strcmp(value, "system"); return !strcmp(value, "system") || !strcmp(value, "files");
    case FLAG_COMPRESSION: *(const char **)to = value; return is_compression(value);
    case FLAG_IO: *(const char **)to = value; return is_io(value);
    case FLAG_BENCHMARKS:
    case FLAG_DIR:
    case FLAG_FILE: *(const char **)to = value; return *value != 0;
    default: break;
  }
  if (!parse_number(f, value, &n)) return false;
  if (f->type == FLAG_U64) *(uint64_t *)to = n;
  else if (f->type == FLAG_U32) *(uint32_t *)to = (uint32_t)n;
  else if (f->type == FLAG_SIZE) *(size_t *)to = (size_t)n;
  else *(bool *)to = n != 0;
  return true;
}

// Where `f` lies in `p` when it is a parameter of benchmarks, else in g.
static void *place_of(const struct flag *f, struct bench_params *p) {
  const uintptr_t at = (uintptr_t)f->to - (uintptr_t)&g.params;
  return at < sizeof(g.params) ? (uint8_t *)p + at : p == &g.params ? f->to : NULL;
}

static bool no_flag(const char *of, const char *name) {
  return wrong("there is no flag \"%s%s\"; flags are --name=value or --name, and --help lists them", of, name);
}

// The flag belongs to `of`: "--", or the benchmark it is given to, and ":".
static bool set_flag(const char *of, const char *name, const char *value, struct bench_params *p) {
  for (size_t i = 0; i < NR_FLAGS; i++) {
    const struct flag *f = &flags[i];
    if (strcmp(f->name, name)) continue;
    void *to = place_of(f, p);
    if (!to) return wrong("%s%s is of a whole run, not of one benchmark: give it as --%s", of, name, name);
    if (!value && f->type == FLAG_BOOL) value = "1";
    if (!value) return wrong("%s%s has no value; %s is needed after it and a \"=\"", of, name, takes(f));
    return set_value(f, value, to) || wrong("%s%s is \"%s\"; %s is needed", of, name, value, takes(f));
  }
  return no_flag(of, name);
}

static const struct {
  const char *name, *what;
} steps[] = {
    {"flush", "writes what is in memory to tables"},
    {"compact", "down to the fewest tables"},
    {"waitidle", "waits until the work that writes have caused has settled"},
    {"reopen", "closes and opens the store"},
    {"dropcaches", "takes what was read and written from the page cache (--drop)"},
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
  for (uint32_t i = 0; (name = bench_disk_name(i, &what)); i++) printf("  %-24s%s\n", name, what);
  for (size_t i = 0; i < NR_STEPS; i++) printf("  %-24s%s\n", steps[i].name, steps[i].what);
  printf("\nflags:\n");
  struct bench_params other;
  for (size_t i = 0; i < NR_FLAGS; i++)
    printf("  --%-20s%s%s\n", flags[i].name, flags[i].what, place_of(&flags[i], &other) ? " *" : "");
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

// Finds g.dir, and makes sure that its content may be removed: the mark tells that this program made it. The program
// locks the mark as long as it runs.
static bool store_place(void) {
  char path[PATH_CAP + sizeof(MARK) + 1];
  struct stat st;
  if (mkdir(g.db, 0777) && errno != EEXIST)
    return wrong("--db is \"%s\", which cannot be made: %s", g.db, strerror(errno));
  if (stat(g.db, &st) || !S_ISDIR(st.st_mode)) return wrong("--db is \"%s\", which is no directory", g.db);
  snprintf(path, sizeof(path), "%s/%s", g.db, MARK);
  if ((size_t)snprintf(g.dir, sizeof(g.dir), "%s/%s", g.db, g.run.engine->name) >= sizeof(g.dir))
    return wrong("--db is \"%s\", which is too long a name", g.db);
  if ((size_t)snprintf(g.disk_file, sizeof(g.disk_file), "%s/disk", g.db) >= sizeof(g.disk_file))
    return wrong("--db is \"%s\", which is too long a name", g.db);
  g.config.dir = g.run.dir = g.dir;
  if (stat(path, &st) && !stat(g.dir, &st))
    return wrong("%s is there, and xdbbench did not make it; give another --db", g.dir);
  const int mark = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (mark < 0) return wrong("--db is \"%s\", in which no file can be written: %s: %s", g.db, MARK, strerror(errno));
  if (flock(mark, LOCK_EX | LOCK_NB) == 0) return true;
  return errno == EWOULDBLOCK ? wrong("--db is \"%s\", which is in use by another xdbbench; give another one", g.db)
                              : wrong("%s: %s", path, strerror(errno));
}

static bool store_fresh(void) {
  struct stat st;
  if (!store_close() || (!stat(g.dir, &st) && !bench_dir_remove(g.dir))) return false;
  bench_run_reset(&g.run, false);
  bench_usage_get(&g.report.fresh, g.disk);
  g.report.user_written = 0;
  return store_open();
}

// ---- running

static bool is_step(const char *name) {
  for (size_t i = 0; i < NR_STEPS; i++)
    if (!strcmp(steps[i].name, name)) return true;
  return false;
}

// The block cache of an engine stays as it is.
static bool drop_caches(void) {
  const bool closes = g.run.engine->maps_files && g.run.store;
  if (closes && !store_close()) return false;
  return (g.drop_all ? bench_caches_drop() : bench_dir_drop(g.dir)) && (!closes || store_open());
}

// *known_out: whether the engine has it.
static bool run_step(const char *name, bool *known_out) {
  const struct bench_engine *e = g.run.engine;
  bool (*const fn)(void *) = !strcmp(name, "flush")      ? e->flush
                             : !strcmp(name, "compact")  ? e->compact
                             : !strcmp(name, "waitidle") ? e->settle
                                                         : NULL;
  *known_out = true;
  if (!strcmp(name, "dropcaches")) return drop_caches();
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

// Cuts "name:flag=value:flag=value" into its name and its parameters, which are else those of the run.
static bool parse_benchmark(const char *label, char name_out[TEXT_CAP], struct bench_params *p) {
  char text[TEXT_CAP];
  if (!*label) return wrong("--benchmarks is \"%s\"; there has to be a name on both sides of a comma", g.benchmarks);
  if ((size_t)snprintf(text, sizeof(text), "%s", label) >= sizeof(text))
    return wrong("\"%s\" is too long for a benchmark", label);
  char *next = strchr(text, ':');
  if (next) *next++ = 0;
  *p = g.params;
  if (!bench_work_known(text) && !is_step(text) && !bench_disk_known(text))
    return wrong("there is no benchmark \"%s\"; --help lists them", text);
  char of[TEXT_CAP + 1];
  snprintf(of, sizeof(of), "%s:", text);
  for (char *flag = next; flag; flag = next) {
    next = strchr(flag, ':');
    if (next) *next++ = 0;
    char *value = strchr(flag, '=');
    if (value) *value++ = 0;
    if (!set_flag(of, flag, value, p)) return false;
  }
  const uint32_t most = bench_disk_known(text) ? BENCH_DISK_DEPTH_MAX : bench_work_batch_max(text);
  if (p->batch_size > most)
    return wrong("%sbatch_size is \"%" PRIu32 "\"; a number up to %" PRIu32 " is needed, such as %sbatch_size=%" PRIu32,
                 of, p->batch_size, most, of, most);
  snprintf(name_out, TEXT_CAP, "%s", text);
  return true;
}

static struct bench_counters counters_get(void) {
  struct bench_counters c = {BENCH_UNKNOWN, BENCH_UNKNOWN, BENCH_UNKNOWN};
  if (g.run.store && g.run.engine->counters) g.run.engine->counters(g.run.store, &c);
  return c;
}

// Bytes of the file that the disk is measured on: as many as the records take.
static uint64_t disk_bytes(void) { return g.config.num * (g.config.key_size + g.config.value_size); }

static bool run_benchmark(const char *label) {
  char name[TEXT_CAP];
  struct bench_params p;
  struct bench_report *t = &g.report;
  t->label = label;
  t->r = (struct bench_result){0};
  if (!parse_benchmark(label, name, &p)) return false;
  t->threads = p.threads;
  if (bench_work_fresh(name) && !g.use_existing_db && !store_fresh()) return false;
  const bool disk = bench_disk_known(name);
  if (disk && !bench_disk_prepare(g.disk_file, disk_bytes())) return false;
  if (!disk && !g.run.store && !store_open()) return false;
  bench_usage_reset_peak();
  bench_usage_get(&t->before, g.disk);
  t->counted_before = counters_get();
  bool good, known = true;
  if (is_step(name)) {
    const uint64_t t0 = bench_time_ns();
    good = run_step(name, &known);
    t->r.seconds = (double)(bench_time_ns() - t0) / 1e9;
  } else if (disk) {
    good = bench_disk(g.disk_file, name, &p, g.run.seed, &t->r);
    known = t->r.ops > 0;
  } else {
    good = bench_work(&g.run, name, &p, &t->r);
    known = t->r.ops || t->r.seconds > 0;
  }
  if (!good) return false;  // figures of a part would look like those of the whole
  if (!known) {
    printf("%-24s: %s does not do this\n", label, g.run.engine->name);
    return true;
  }
  bench_usage_get(&t->after, g.disk);
  t->counted_after = counters_get();
  t->user_written += t->r.bytes_written;
  t->space = bench_dir_bytes(g.dir);
  t->live = bench_run_records(&g.run) * (g.run.keys.mean_size + g.config.value_size);
  t->failures = atomic_load(&g.run.failures);
  bench_report_print(stdout, t);
  if (g.csv_file) {
    if (!g.csv_named) bench_report_csv(g.csv_file, t, true);
    g.csv_named = true;
    bench_report_csv(g.csv_file, t, false);
  }
  return true;
}

static bool check_benchmark(const char *label) {
  char name[TEXT_CAP];
  struct bench_params p;
  return parse_benchmark(label, name, &p);
}

// Until one fails.
static bool each_benchmark(bool (*fn)(const char *label)) {
  char *const list = strdup(g.benchmarks), *rest = list;
  bool good = list != NULL;
  while (good && rest) good = fn(strsep(&rest, ","));
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
  if (!each_benchmark(check_benchmark)) return false;  // before anything is done
  g.config.threads = g.params.threads;
  g.config.cores = bench_cores();
  if (g.config.shape != BENCH_NUMBER && g.config.key_size < BENCH_SHAPED_MIN)
    return wrong("--key_size is \"%u\"; other keys than numbers have %u bytes at least", g.config.key_size,
                 BENCH_SHAPED_MIN);
  const uint64_t memory = g.memory_mb ? (uint64_t)g.memory_mb << 20 : bench_memory();
  g.config.larger_than_memory = memory && g.config.num * (g.config.key_size + g.config.value_size) * 2 > memory;
  if (!bench_keys_init(&g.run.keys, g.config.num, g.config.key_size, g.config.value_size, g.config.shape, g.run.seed) ||
      !bench_run_init(&g.run, g.use_existing_db))
    return wrong("there is not enough memory for --num=%" PRIu64 "%s", g.config.num,
                 g.run.full ? " with --verify=full" : "");
  if (!store_place()) return false;
  struct stat st;
  if (g.csv) {
    if (!(g.csv_file = fopen(g.csv, "a")))
      return wrong("--csv is \"%s\", which cannot be written: %s", g.csv, strerror(errno));
    g.csv_named = !fstat(fileno(g.csv_file), &st) && st.st_size > 0;
  }
  if (!g.use_existing_db && !stat(g.dir, &st) && !bench_dir_remove(g.dir)) return false;
  bench_tick_ns();
  g.disk = bench_disk_find(g.db);
  bench_usage_get(&g.report.base, g.disk);
  g.report.fresh = g.report.base;
  g.report.engine = g.run.engine;
  g.report.config = &g.config;
  return true;
}

static void print_head(void) {
  const struct bench_config *c = &g.config;
  printf("engine     : %s %s\nsettings   : %s\n", g.run.engine->name, g.run.engine->version(), g.run.engine->settings);
  printf("records    : %" PRIu64
         " of %u + %u bytes, %.1f MB; cache %zu MiB, memtable %zu MiB, compression %s, seed %" PRIu64 ", in %s\n",
         c->num, c->key_size, c->value_size, (double)(c->num * (c->key_size + c->value_size)) / 1e6, c->cache_mb,
         c->memtable_mb, c->compression, g.run.seed, g.dir);
}

int main(int argc, char **argv) {
  bench_std_fds();
  for (int i = 1; i < argc; i++) {
    char *a = argv[i];
    if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
      help();
      return flush_stdout() ? 0 : 1;
    }
    if (!strcmp(a, "--version")) {
      printf("xdbbench %s\n", remixdb_version());
      return flush_stdout() ? 0 : 1;
    }
    if (strncmp(a, "--", 2)) {
      no_flag("", a);
      return 2;
    }
    char *value = strchr(a, '=');
    if (value) *value++ = 0;
    if (!set_flag("--", a + 2, value, &g.params)) return 2;
  }
  if (!setup()) return 2;
  print_head();
  fflush(stdout);
  bool good = each_benchmark(run_benchmark);
  good &= store_close();
  good &= bench_disk_remove(g.disk_file);
  struct stat st;
  if (!g.keep && !g.use_existing_db && !stat(g.dir, &st)) good &= bench_dir_remove(g.dir);
  if (g.csv_file) {
    const bool lost = ferror(g.csv_file) != 0;  // a line that was flushed before is lost
    if (fclose(g.csv_file) || lost) good = wrong("--csv is \"%s\", and not all could be written to it", g.csv);
  }
  const uint64_t failures = atomic_load(&g.run.failures);
  if (failures) fprintf(stderr, "xdbbench: %s: %" PRIu64 " wrong or missing values\n", g.run.engine->name, failures);
  good &= flush_stdout();
  bench_run_fini(&g.run);
  bench_keys_fini(&g.run.keys);
  return good && !failures ? 0 : 1;
}
