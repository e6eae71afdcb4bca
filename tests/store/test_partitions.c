// SPDX-License-Identifier: Apache-2.0
//
// A store keeps as much as lives in it, not as much as was ever written: partitions, tables, files, bytes of CURRENT
// and of indexes. Queues and time series that run for many memtables, with deletes, ranges, expiry, ingests and records
// that stay behind; a hot range of keys that moves; most of a store deleted. All records are compared with a model,
// also through a snapshot, and after the store was opened again.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "tests/lib/check.h"
#include "tests/lib/store.h"

#include "compact/join.h"
#include "store/expiry.h"
#include "store/garbage_look.h"
#include "store/idle.h"

#define MEMTABLE ((size_t)96 << 10)
#define TABLE_PAGES 24u
#define KEY 16u
#define VALUE 60u
#define PER 500u            // records of about a memtable
static uint32_t memtables;  // set by main
#define WINDOW (20 * PER)
#define PARTS 8u  // in which the memtables are counted

#define BASE_MS (50ull * 365 * 86400000)
static _Atomic uint64_t wall = BASE_MS, steady = 1000;
static uint64_t wall_ms(void *arg) { return (void)arg, wall; }
static uint64_t steady_ms(void *arg) { return (void)arg, steady; }
static const struct env_clock test_clock = {wall_ms, steady_ms, NULL};

// Records have the numbers [0, in), and those before `out` have gone, as far as the scene does not leave them.
struct stage {
  const struct scene *scene;
  struct xdb *x;
  struct xdb_ref *ref;
  uint64_t in, out;
  uint8_t *dead;  // by number, where the scene deletes in another order; else NULL
  double tables;  // that lived at the last look
  uint64_t rng;
};

struct scene {
  const char *name;
  void (*cycle)(struct stage *s, uint64_t n);
  bool (*lives)(const struct stage *s, uint64_t n);
  uint64_t stream;     // so many numbers that follow each other are of different streams
  bool many;           // numbers that died in no order: `dead` is there
  uint32_t slower;     // so many times fewer cycles
  uint32_t per_table;  // partitions for a table that lives, at most
};

static struct kref key_of(const struct stage *s, uint64_t n, char *buf) {
  const uint64_t streams = s->scene->stream ? s->scene->stream : 1;
  (void)snprintf(buf, KEY + 1, "%04x%012llx", (unsigned)(n % streams) & 0xFFFF,
                 (unsigned long long)(n / streams) & 0xFFFFFFFFFFFF);
  return kref((uint8_t *)buf, KEY);
}

static void value_of(uint64_t n, uint8_t *buf) {
  uint64_t seed = n;
  for (uint32_t i = 0; i + 8 <= VALUE; i += 8) store64le(buf + i, i ? rng_next(&seed) : n);
  memset(buf + VALUE / 8 * 8, 'v', VALUE % 8);
}

static void put(struct stage *s, uint64_t n) {
  char key[KEY + 1];
  uint8_t val[VALUE];
  value_of(n, val);
  CHECK(remixdb_put(s->ref, key_of(s, n, key).ptr, KEY, val, VALUE));
}

static void del(struct stage *s, uint64_t n) {
  char key[KEY + 1];
  CHECK(remixdb_del(s->ref, key_of(s, n, key).ptr, KEY));
}

// ---- scenes

static bool lives_in_window(const struct stage *s, uint64_t n) { return n >= s->out; }

static void one_in_one_out(struct stage *s, uint64_t n) {
  (void)n;
  put(s, s->in++);
  if (s->in - s->out > WINDOW) del(s, s->out++);
}

static void ranges(struct stage *s, uint64_t n) {
  char from[KEY + 1], to[KEY + 1];
  (void)n;
  put(s, s->in++);
  if (s->in - s->out < WINDOW + PER / 2) return;
  const struct remixdb_range range = {{key_of(s, s->out, from).ptr, KEY}, {key_of(s, s->in - WINDOW, to).ptr, KEY}};
  CHECK(remixdb_del_range(s->ref, &range));
  s->out = s->in - WINDOW;
}

// One of 300 stays.
static bool lives_or_stays(const struct stage *s, uint64_t n) { return n >= s->out || n % 300 == 0; }
static void some_stay(struct stage *s, uint64_t n) {
  (void)n;
  put(s, s->in++);
  if (s->in - s->out <= WINDOW) return;
  if (s->out % 300) del(s, s->out);
  s->out++;
}

// A record a second.
static void expire(struct stage *s, uint64_t n) {
  char key[KEY + 1];
  uint8_t val[VALUE];
  (void)n;
  value_of(s->in, val);
  CHECK(remixdb_put_expire(s->ref, key_of(s, s->in, key).ptr, KEY, val, VALUE, BASE_MS + (s->in + WINDOW) * 1000));
  s->in++;
  wall = BASE_MS + s->in * 1000;
  steady = wall;
  s->out = s->in >= WINDOW ? s->in - WINDOW + 1 : 0;
}

static void ingests(struct stage *s, uint64_t n) {
  if (n % 40) return;
  struct xdb_ingest *const g = remixdb_ingest_begin(s->ref);
  CHECK(g);
  for (uint32_t i = 0; i < 40; i++, s->in++) {
    char key[KEY + 1];
    uint8_t val[VALUE];
    value_of(s->in, val);
    CHECK(remixdb_ingest_put(g, key_of(s, s->in, key).ptr, KEY, val, VALUE));
  }
  CHECK(remixdb_ingest_commit(g));
  while (s->in - s->out > WINDOW) del(s, s->out++);
}

// A range of keys is written in no order, overwritten, and deleted but for one of 500; then comes the next range.
#define RANGE (8 * PER)
static uint64_t scattered(uint64_t i) { return i * 2654435761u % RANGE; }
static bool is_not_dead(const struct stage *s, uint64_t n) { return !s->dead[n]; }
static void hot_range(struct stage *s, uint64_t n) {
  const uint64_t first = n / (3 * RANGE) * RANGE, at = n % RANGE, phase = n % (3 * RANGE) / RANGE;
  const uint64_t which = first + scattered(at);
  if (phase == 0 && at == 0) {  // none of it is there yet
    memset(s->dead + first, 1, RANGE);
    s->in = first + RANGE;
  }
  if (phase < 2) {
    put(s, which);
    s->dead[which] = 0;
  } else if (which % 500) {
    del(s, which);
    s->dead[which] = 1;
  }
}

// A load in no order; all but one of 100 is deleted; then a few other keys are overwritten again and again.
static void mostly_deleted(struct stage *s, uint64_t n) {
  const uint64_t all = (uint64_t)memtables * PER, load = all / 16 * 6, few = 4 * PER;
  if (n == 0) {
    memset(s->dead, 1, all);
    s->in = load + few;
  }
  const uint64_t which = n < 2 * load ? n * 2654435761u % load : load + n % few;
  if (n < load || n >= 2 * load) {
    put(s, which);
    s->dead[which] = 0;
  } else if (which % 100) {
    del(s, which);
    s->dead[which] = 1;
  }
}

static const struct scene scenes[] = {
    {"queue", one_in_one_out, lives_in_window, 0, false, 1, 2},
    {"forty queues", one_in_one_out, lives_in_window, 40, false, 1, 2},
    {"ranges", ranges, lives_in_window, 0, false, 1, 2},
    {"some stay", some_stay, lives_or_stays, 0, false, 1, 2},
    {"some of forty stay", some_stay, lives_or_stays, 40, false, 1, 2},
    {"expiry", expire, lives_in_window, 0, false, 1, 2},
    {"ingests", ingests, lives_in_window, 0, false, 6, 5},
    {"hot range", hot_range, is_not_dead, 0, true, 1, 2},
    {"mostly deleted", mostly_deleted, is_not_dead, 0, true, 1, 5},
};

// ---- against the model

static uint64_t living(const struct stage *s) {
  uint64_t nr = 0;
  for (uint64_t n = 0; n < s->in; n++) nr += s->scene->lives(s, n);
  return nr;
}

static void expect_all(const struct stage *s, struct xdb_ref *ref) {
  struct xdb_iter *const it = remixdb_iter_create(ref);
  uint64_t nr = 0;
  char before[KEY + 1] = "", key[KEY + 1];
  CHECK(it);
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it), nr++) {
    uint8_t want[VALUE];
    uint32_t klen, vlen;
    const void *const k = remixdb_iter_key(it, &klen), *const v = remixdb_iter_value(it, &vlen);
    CHECK(k && v && klen == KEY && vlen == VALUE && memcmp(before, k, KEY) < 0);
    memcpy(before, k, KEY);
    const uint64_t n = load64le(v);
    value_of(n, want);
    CHECK_SAYS(n < s->in && s->scene->lives(s, n), "%llu", (unsigned long long)n);
    CHECK(memcmp(want, v, VALUE) == 0 && memcmp(key_of(s, n, key).ptr, k, KEY) == 0);
  }
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
  const uint64_t want = living(s);
  CHECK_SAYS(nr == want, "%llu, not %llu", (unsigned long long)nr, (unsigned long long)want);
}

static void expect_gets(struct stage *s) {
  for (uint32_t i = 0; i < 2000 && s->in; i++) {
    char key[KEY + 1];
    uint8_t val[VALUE];
    const uint64_t n = below(&s->rng, s->in);
    const bool there = remixdb_getn(s->ref, key_of(s, n, key).ptr, KEY, val, VALUE, NULL);
    CHECK(there == s->scene->lives(s, n) && (!there || load64le(val) == n));
  }
}

// ---- figures

struct figures {
  uint64_t partitions, tables, files, current, index;
};

static uint64_t figure(struct xdb *x, const char *name) {
  uint64_t value = 0;
  CHECK_SAYS(remixdb_figure(x, name, &value), "%s", name);
  return value;
}

static bool count_file(void *arg, const char *name) {
  (void)name;
  ++*(uint64_t *)arg;
  return true;
}

static struct figures figures_of(struct xdb *x) {
  struct stat st;
  char path[4 * TEMP_DIR];
  struct figures f = {.partitions = figure(x, "partitions"), .tables = figure(x, "tables")};
  f.index = figure(x, "memory.remix") + figure(x, "memory.tables");
  OK(env_list(&x->home, count_file, &f.files));
  (void)snprintf(path, sizeof(path), "%s/%s", dir, FILES_CURRENT);
  CHECK(stat(path, &st) == 0);
  f.current = (uint64_t)st.st_size;
  return f;
}

// The records that live, or lived a part of the cycles before, would fill so many tables.
static void expect_few(struct stage *s, const char *when) {
  const struct figures f = figures_of(s->x);
  const double now = (double)(living(s) * (KEY + VALUE)) / (TABLE_PAGES * BLOCK_PAGE),
               tables = now > s->tables ? now : s->tables;
  s->tables = now;
  if (getenv("PARTITION_FIGURES"))
    print_message("%s, %s: %.1f tables lived; %u partitions, %u tables, %u files, CURRENT %u, indexes %u; joined %u, "
                  "emptied %u\n",
                  s->scene->name, when, tables, (unsigned)f.partitions, (unsigned)f.tables, (unsigned)f.files,
                  (unsigned)f.current, (unsigned)f.index, (unsigned)figure(s->x, "compaction.joined"),
                  (unsigned)figure(s->x, "compaction.emptied"));
  CHECK_SAYS((double)f.partitions <= 8 + s->scene->per_table * tables, "%s, %s: %u partitions for %.1f tables",
             s->scene->name, when, (unsigned)f.partitions, tables);
  CHECK_SAYS(f.tables <= 20 + 11 * f.partitions, "%s, %s: %u tables for %u partitions", s->scene->name, when,
             (unsigned)f.tables, (unsigned)f.partitions);
  CHECK_SAYS(f.files <= 12 + 2 * f.tables, "%s, %s: %u files", s->scene->name, when, (unsigned)f.files);
  CHECK_SAYS(f.current <= 600 + 80 * f.partitions + 120 * f.tables, "%s, %s: CURRENT has %u bytes", s->scene->name,
             when, (unsigned)f.current);
}

// ---- running

static void stage_open(struct stage *s, int workers) {
  struct remixdb_opts o = small_opts(workers);
  struct env *const e = quick_env();
  e->clock = &test_clock;
  o.cache_mb = 4;
  OK(xdb_open(dir, &o, e, &s->x));
  shrink(s->x, MEMTABLE, TABLE_PAGES);
  s->x->compact.young_from = 2;
  CHECK((s->ref = remixdb_ref(s->x)) != NULL);
}

static void stage_close(struct stage *s) {
  remixdb_unref(s->ref);
  remixdb_close(s->x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

static void wait_settled(struct xdb *x) {
  do {
    time_sleep_ns(1000000);
    OK(xdb_wait_idle(x));
  } while (garbage_pending(x));  // for ever: the alarm ends it
  OK(xdb_wait_idle(x));
}

// A snapshot that is held for a part of the cycles has what lived when it was taken.
struct shot {
  struct xdb_snapshot *s;
  struct xdb_ref *ref;
  struct stage then;
};

static void shot_take(struct shot *t, const struct stage *s) {
  const uint64_t all = (uint64_t)memtables * PER;
  t->then = *s;
  if (s->dead) memcpy(t->then.dead = malloc(all), s->dead, all);
  CHECK((t->s = remixdb_snapshot(s->ref)) && (t->ref = remixdb_snapshot_ref(t->s)));
}

static void shot_end(struct shot *t) {
  expect_all(&t->then, t->ref);
  free(t->then.dead);
  remixdb_unref(t->ref);
  remixdb_snapshot_release(t->s);
}

static void expect_nothing(const struct stage *s) {
  struct xdb_iter *const it = remixdb_iter_create(s->ref);
  CHECK(it);
  remixdb_iter_seek(it, NULL, 0);
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
  const struct figures f = figures_of(s->x);
  CHECK_SAYS(f.partitions < JOIN_MANY, "%s: %u partitions for nothing", s->scene->name, (unsigned)f.partitions);
}

static void run_scene(const struct scene *scene) {
  const uint64_t all = (uint64_t)memtables * PER, cycles = all / scene->slower;
  struct stage s = {.scene = scene, .rng = check_seed};
  wall = BASE_MS;
  steady = BASE_MS;
  if (scene->many) CHECK((s.dead = malloc(all)));
  stage_open(&s, 0);
  for (uint32_t part = 0; part < PARTS; part++) {
    struct shot shot;
    char when[40];
    (void)snprintf(when, sizeof(when), "part %u", part);
    if (part % 2) shot_take(&shot, &s);
    for (uint64_t n = part * (cycles / PARTS); n < (part + 1) * (cycles / PARTS); n++) scene->cycle(&s, n);
    if (part % 2) shot_end(&shot);
    expect_all(&s, s.ref);
    expect_gets(&s);
    expect_few(&s, when);
  }
  CHECK(remixdb_verify(s.ref));
  stage_close(&s);
  // at rest
  stage_open(&s, 1);
  s.x->garbage_merges.rest_ns = 1000000;
  expect_all(&s, s.ref);
  CHECK(remixdb_flush(s.ref));
  wait_settled(s.x);
  expect_few(&s, "at rest");
  expect_all(&s, s.ref);
  // all is deleted, one by one or as a range
  const struct remixdb_range range = {{"0", 1}, {"~", 1}};
  if (scene - scenes == 0) CHECK(remixdb_del_range(s.ref, &range));
  for (uint64_t n = 0; n < s.in && scene - scenes != 0; n++)
    if (scene->lives(&s, n)) del(&s, n);
  CHECK(remixdb_flush(s.ref));
  wait_settled(s.x);
  expect_nothing(&s);
  stage_close(&s);
  stage_open(&s, 1);
  expect_nothing(&s);
  stage_close(&s);
  free(s.dead);
}

static void test_scene(void **state) { run_scene(*state); }

int main(int argc, char **argv) {
  check_seed = check_seed_or(1);
  memtables = SLOW > 1 ? 160 : usual_or_long(200, 600);
  hang_alarm();
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  struct CMUnitTest tests[sizeof(scenes) / sizeof(scenes[0])];
  for (uint32_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
    tests[i] = (struct CMUnitTest){scenes[i].name, test_scene, setup, teardown, (void *)(uintptr_t)&scenes[i]};
  return _cmocka_run_group_tests("partitions", tests, sizeof(scenes) / sizeof(scenes[0]), NULL, NULL);
}
