// SPDX-License-Identifier: Apache-2.0
//
// The collection of garbage in value files: values are moved, and each call reads them where they are; how much room
// the files take; snapshots, checkpoints, verify and repair across collections; collections that end early.
#include "tests/lib/fault.h"
#include "tests/lib/paths.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"

#include <dirent.h>
#include <errno.h>

#include "admin/repair.h"
#include "compact/moved.h"
#include "store/collect.h"
#include "store/garbage_look.h"
#include "store/idle.h"
#include "store/install.h"
#include "value/move.h"
#include "view/live.h"

#define KEYS 200u
#define LEAST 17000u  // bytes of a value, which lies apart
#define FULL (1u << 20)

static struct xdb *x;
static struct xdb_ref *r, *spaced;  // refs of the unnamed space and of a named one, with the same keys
static struct xdb_space *space;
static uint64_t rng;
static uint8_t *val, *got;

#define GOOD(call) CHECK_SAYS((call), "%s: %s", remixdb_strerror(remixdb_errcode()), remixdb_errmsg())

// The content of the store: the turn in which a key was written; 0: it is not there. Keys from KEYS on are the space's.
typedef uint32_t world[2 * KEYS];
static world now;

static uint32_t key_of(uint32_t i, char buf[16]) { return (uint32_t)snprintf(buf, 16, "key-%05u", i % KEYS * 7); }
static uint32_t len_of(uint32_t i, uint32_t turn) { return LEAST + (i * 7919 + turn * 104729) % 20000; }
static void fill(uint32_t i, uint32_t turn) {
  const uint32_t len = len_of(i, turn);
  uint64_t n = i * 1000003ull + turn;
  for (uint32_t at = 0; at + 8 <= len; at += 8) store64le(val + at, at % 64 < 32 ? rng_next(&n) : i);
  for (uint32_t at = len & ~7u; at < len; at++) val[at] = (uint8_t)turn;
}
static struct xdb_ref *ref_of(uint32_t i, struct xdb_ref *a, struct xdb_ref *b) { return i < KEYS ? a : b; }

static uint64_t figure(const char *name) {
  uint64_t n;
  GOOD(remixdb_figure(x, name, &n));
  return n;
}

static uint64_t full = FULL;                          // bytes of a full file of the next stores
static void (*logger)(void *priv, const char *line);  // theirs

// A worker reads these sizes, so they are set before there is anything to do.
static void tune(struct xdb *of) {
  shrink(of, 1u << 20, 64);
  of->values.full = of->compact.values.full = full;
}

static void open_in(const char *where, struct env *env, int workers, enum remixdb_compression c) {
  struct remixdb_opts o = small_opts(workers);
  o.compression = c;
  o.logger = logger;
  OK(xdb_open(where, &o, env, &x));
  tune(x);
  GOOD((r = remixdb_ref(x)) != NULL);
  GOOD((space = remixdb_space_open(x, "other", true)) != NULL);
  GOOD((spaced = remixdb_space_ref(space)) != NULL);
}
static void open_it(int workers, enum remixdb_compression c) { open_in(dir, quick_env(), workers, c); }

static void close_it(void) {
  remixdb_unref(r);
  remixdb_unref(spaced);
  remixdb_space_close(space);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

static void put(uint32_t i, uint32_t turn) {
  char k[16];
  const uint32_t klen = key_of(i, k);
  fill(i, turn);
  if (turn) GOOD(remixdb_put(ref_of(i, r, spaced), k, klen, val, len_of(i, turn)));
  else GOOD(remixdb_del(ref_of(i, r, spaced), k, klen));
  now[i] = turn;
}

// Reads all keys, each by one of the ways.
static void all_is(struct xdb_ref *a, struct xdb_ref *b, const world w) {
  for (uint32_t i = 0; i < 2 * KEYS; i++) {
    char k[16];
    const uint32_t klen = key_of(i, k), how = (uint32_t)below(&rng, 5);
    struct xdb_ref *const ref = ref_of(i, a, b);
    uint32_t len = 0, n = 0;
    if (!w[i]) {
      CHECK(!remixdb_get(ref, k, klen, got, &len) && remixdb_errcode() == REMIXDB_NOTFOUND);
      continue;
    }
    fill(i, w[i]);
    const uint32_t want = len_of(i, w[i]);
    if (how == 0) {
      GOOD(remixdb_get(ref, k, klen, got, &len));
    } else if (how == 1) {
      GOOD(remixdb_get_part(ref, k, klen, 5000, got, 3000, &n, &len));
      CHECK(n == 3000 && len == want && memcmp(got, val + 5000, n) == 0);
      continue;
    } else if (how == 2) {
      void *p = NULL;
      GOOD((p = remixdb_get_alloc(ref, k, klen, &len)) != NULL);
      CHECK(len == want && memcmp(p, val, len) == 0);
      remixdb_free(p);
      continue;
    } else if (how == 3) {
      struct remixdb_slice key = {k, klen};
      struct remixdb_buf buf = {got, 40000, 0};
      bool found;
      CHECK(remixdb_multi_get(ref, 1, &key, &buf, &found) == 1 && found);
      len = buf.len;
    } else {
      struct xdb_gets *const g = remixdb_gets_create(ref, 1);
      struct remixdb_got out;
      GOOD(remixdb_get_begin(g, k, klen, got, 40000, NULL));
      CHECK(remixdb_get_poll(g, &out, 1, 1) == 1 && out.status == REMIXDB_OK);
      len = out.len;
      remixdb_gets_destroy(g);
    }
    CHECK(len == want && memcmp(got, val, len) == 0);
  }
  for (uint32_t part = 0; part < 2; part++) {
    struct xdb_iter *const it = remixdb_iter_create(part ? b : a);
    remixdb_iter_seek(it, NULL, 0);
    for (uint32_t i = part * KEYS; i < (part + 1) * KEYS; i++) {
      if (!w[i]) continue;
      uint32_t len;
      fill(i, w[i]);
      CHECK(remixdb_iter_valid(it));
      GOOD(remixdb_iter_peek(it, NULL, NULL, got, &len));
      CHECK(len == len_of(i, w[i]) && memcmp(got, val, len) == 0);
      remixdb_iter_skip1(it);
    }
    CHECK(!remixdb_iter_valid(it));
    remixdb_iter_destroy(it);
  }
}

static uint64_t live_bytes(const world w) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < 2 * KEYS; i++) n += w[i] ? len_of(i, w[i]) : 0;
  return n;
}

static uint64_t files_bytes(uint32_t *nr_out) {
  uint64_t bytes = 0;
  *nr_out = 0;
  DIR *const d = opendir(dir);
  for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
    const size_t n = strlen(e->d_name);
    char path[2 * TEMP_DIR + 300];
    struct stat st;
    if (n < 4 || strcmp(e->d_name + n - 4, ".val") != 0) continue;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
    if (stat(path, &st) != 0 && errno == ENOENT) continue;  // a worker has removed it meanwhile
    bytes += (uint64_t)st.st_size;
    ++*nr_out;
  }
  if (d) (void)closedir(d);
  return bytes;
}

static void write_turn(uint32_t turn, uint32_t percent) {
  for (uint32_t i = 0; i < 2 * KEYS; i++)
    if (chance(&rng, percent)) put(i, turn);
}

// Overwrites until files were collected `times` times.
static uint32_t collect(uint32_t turn, uint64_t times) {
  const uint64_t before = figure("values.collections");
  uint32_t most = 400;
  while (figure("values.collections") < before + times) {
    CHECK(most--);
    write_turn(turn++, 15);
    GOOD(remixdb_flush(r));
    OK(xdb_wait_idle(x));
  }
  return turn;
}

// Puts short values between the keys, so many behind each: then the tree has several partitions.
static void put_short(struct xdb_ref *ref, uint32_t nr) {
  static const uint8_t few[200];
  for (uint32_t i = 0; i < KEYS; i++) {
    char k[32];
    for (uint32_t n = 0; n < nr; n++)
      GOOD(remixdb_put(ref, k, key_of(i, k) + (uint32_t)sprintf(k + key_of(i, k), "-%02u", n), few, sizeof(few)));
  }
  GOOD(remixdb_flush(r));
}

static void begin(int workers, enum remixdb_compression c) {
  memset(now, 0, sizeof(now));
  setup_again();
  open_it(workers, c);
  write_turn(1, 100);
  GOOD(remixdb_flush(r));
}

// ---- reading

static void test_reads(void **state) {
  (void)state;
  for (int how = 0; how < 4; how++) {
    begin(how % 2 ? 2 : 0, how / 2 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    uint32_t turn = collect(2, 3);
    CHECK(figure("values.indexes") > 0 && figure("values.index_memory") > 0);
    CHECK(figure("values.collected_files") >= 3 && figure("values.moved_bytes") > 0);
    CHECK(figure("values.freed_bytes") > 0);
    all_is(r, spaced, now);
    GOOD(remixdb_verify(r));
    close_it();
    open_it(how % 2 ? 2 : 0, REMIXDB_COMPRESSION_NONE);
    all_is(r, spaced, now);
    turn = collect(turn, 3);  // moved values are moved again
    all_is(r, spaced, now);
    GOOD(remixdb_verify(r));
    for (uint32_t i = 0; i < 2 * KEYS; i += 3) put(i, 0);
    collect(turn, 2);
    all_is(r, spaced, now);
    close_it();
  }
}

// ---- room

// Indexes of collected files go: rounds merge the partitions that refer to moved values, with new data for them or
// without; without workers the rounds of memtables alone, else those of a store at rest.
static void test_indexes(void **state) {
  (void)state;
  for (int workers = 0; workers < 2; workers++) {
    begin(workers, REMIXDB_COMPRESSION_NONE);
    uint32_t turn = collect(2, 3);
    CHECK(figure("values.indexes") > 0 && figure("compaction.moved_merges") == 0);
    close_it();
    open_it(workers, REMIXDB_COMPRESSION_NONE);  // bytes that the opening has read
    all_is(r, spaced, now);                      // opens the partitions
    CHECK(figure("values.indexes") > 0);
    x->compact.moved_from = 1;
    x->garbage_merges.rest_ns = 1000000;
    x->compact.garbage_from = 0;
    for (uint32_t n = 0; n < 40 && figure("values.indexes"); n++) {
      if (workers == 0) put(0, ++turn);
      if (workers == 0) GOOD(remixdb_flush(r));
      else idle_garbage(x);
      for (uint32_t i = 0; i < 1000 && garbage_pending(x); i++) usleep(1000);
      OK(xdb_wait_idle(x));
    }
    CHECK(figure("values.indexes") == 0 && figure("values.index_memory") == 0);
    CHECK(figure("compaction.moved_merges") > 0);
    all_is(r, spaced, now);
    GOOD(remixdb_verify(r));
    const uint64_t merges = figure("compaction.moved_merges");
    put(1, ++turn);
    GOOD(remixdb_flush(r));
    CHECK(figure("compaction.moved_merges") == merges);  // nothing was moved since
    close_it();
  }
}

// Where there are many partitions, a round of a memtable merges a few for moved values: at most a memtable's bytes of
// them, or one. Each has its turn.
static void test_indexes_in_turn(void **state) {
  (void)state;
  begin(0, REMIXDB_COMPRESSION_NONE);
  shrink(x, 1u << 20, 8);
  put_short(r, 60);
  uint32_t turn = collect(2, 6);
  const uint32_t parts = xdb_super(x)->version->nr_parts;
  CHECK_SAYS(parts > 3, "%u partitions", parts);
  CHECK(figure("values.indexes") > 0);
  x->compact.moved_from = 1;
  x->compact.memtable_size = 1;
  uint64_t merges = figure("compaction.moved_merges");
  uint32_t rounds = 0;
  for (; rounds < 4 * parts && figure("values.indexes"); rounds++) {
    GOOD(remixdb_put(r, "a", 1, &turn, sizeof(turn)));
    GOOD(remixdb_flush(r));
    const uint64_t now_nr = figure("compaction.moved_merges");
    CHECK_SAYS(now_nr == merges + 1, "%u merges in a round", (unsigned)(now_nr - merges));
    merges = now_nr;
  }
  CHECK_SAYS(figure("values.indexes") == 0 && rounds > 1, "%u rounds", rounds);
  for (uint32_t i = 0; i < KEYS; i++) {
    char k[16];
    uint32_t len;
    fill(i, now[i]);
    GOOD(remixdb_get(r, k, key_of(i, k), got, &len));
    CHECK(len == len_of(i, now[i]) && memcmp(got, val, len) == 0);
  }
  close_it();
}

// Without memory for such a merge the round is made again without it, and the next ones wait.
static void test_indexes_wait(void **state) {
  (void)state;
  begin(0, REMIXDB_COMPRESSION_NONE);
  uint32_t turn = collect(2, 3), waits = 0;
  for (int64_t nth = 1; nth < 400 && waits < 3; nth += 3) {
    for (uint32_t n = 0; n < 40 && !figure("values.indexes"); n++) turn = collect(turn, 1);
    x->compact.moved_from = 1;
    atomic_store(&x->compact.extras_ns, 0);
    const uint64_t merges = figure("compaction.moved_merges");
    put(0, ++turn);
    fault_mem_set(nth);
    const bool good = remixdb_flush(r);
    (void)fault_mem_end();
    x->rounds.failed_ns = 0;
    if (good && atomic_load(&x->compact.extras_ns)) {
      put(0, ++turn);
      GOOD(remixdb_flush(r));
      CHECK(figure("compaction.moved_merges") == merges);
      waits++;
    }
    x->compact.moved_from = UINT64_MAX;
    GOOD(remixdb_flush(r));
    all_is(r, spaced, now);
  }
  CHECK_SAYS(waits == 3, "%u rounds were made again", waits);
  close_it();
}

// Partitions of the named spaces are away, and one cannot be opened. Merges for moved values are due there, and no
// round of the unnamed space fails because of that.
static void test_indexes_away(void **state) {
  (void)state;
  struct simdisk *const d = simdisk_create();
  memset(now, 0, sizeof(now));
  open_in("/store", simdisk_env(d), 0, REMIXDB_COMPRESSION_NONE);
  shrink(x, 1u << 20, 8);
  write_turn(1, 100);
  put_short(spaced, 30);
  uint32_t turn = collect(2, 6), len;
  CHECK(figure("values.indexes") > 0);
  close_it();
  atomic_store(&version_eager, 0);
  open_in("/store", simdisk_env(d), 0, REMIXDB_COMPRESSION_NONE);
  x->compact.moved_from = 1;
  for (uint32_t i = 0; i < KEYS + KEYS / 2; i++) {  // opens all of the unnamed space, and a half of the other
    char k[16];
    const uint32_t klen = key_of(i, k);
    GOOD(remixdb_get(ref_of(i, r, spaced), k, klen, got, &len));
  }
  const struct version *const tree = xdb_super(x)->version->spaces;
  struct part_files files;
  CHECK(moved_due(&x->compact, xdb_super(x)->version, tree));
  CHECK(!part_is_away(tree->parts[0]) && part_is_away(tree->parts[tree->nr_parts - 1]));
  part_files(tree->parts[tree->nr_parts - 1], &files);
  char name[32];
  files_remix_name(name, files.remix.number);
  simdisk_fault_name(d, name);
  simdisk_fault(d, SIMDISK_READ, 0, UINT64_MAX, EIO);
  simdisk_fault(d, SIMDISK_OPEN, 0, UINT64_MAX, EIO);
  for (uint32_t n = 0; n < 3; n++) {
    put(0, ++turn);
    GOOD(remixdb_flush(r));
  }
  close_it();
  atomic_store(&version_eager, VERSION_EAGER);
  simdisk_destroy(d);
}

// A power cut comes between the log's record of a range deletion and CURRENT. The next opening makes the deletion, and
// removes the value files to which nothing refers any more.
static struct simdisk *cuts[64];
static uint32_t nr_cuts;

static void cut_now(void *disk) {
  if (nr_cuts == 64) return;
  cuts[nr_cuts] = simdisk_crash(disk, nr_cuts + 1);
  nr_cuts++;
}

static bool count_value_file(void *nr, const char *name) {
  *(uint32_t *)nr += strstr(name, ".val") != NULL;
  return true;
}

static void test_erased_files(void **state) {
  (void)state;
  struct simdisk *const d = simdisk_create();
  memset(now, 0, sizeof(now));
  open_in("/store", simdisk_env(d), 0, REMIXDB_COMPRESSION_NONE);
  for (uint32_t i = 0; i < KEYS; i++) put(i, 1);
  GOOD(remixdb_flush(r));
  close_it();
  open_in("/store", simdisk_env(d), 0, REMIXDB_COMPRESSION_NONE);
  x->ranges = (struct range_limits){10, 5, 0};
  simdisk_on_change(d, cut_now, d);
  const struct remixdb_range all = {{"", 0}, {NULL, 0}};
  GOOD(remixdb_del_range(r, &all));
  simdisk_on_change(d, NULL, NULL);
  close_it();
  uint32_t erased = 0;
  for (uint32_t i = 0; i < nr_cuts; i++) {
    char k[16];
    uint32_t len, files = 0;
    open_in("/store", simdisk_env(cuts[i]), 0, REMIXDB_COMPRESSION_NONE);
    if (!remixdb_get(r, k, key_of(5, k), got, &len)) {
      OK(paths_list(simdisk_env(cuts[i]), "/store", count_value_file, &files));
      CHECK_SAYS(files == 0, "cut %u: %u value files", i, files);
      erased++;
    }
    close_it();
    simdisk_destroy(cuts[i]);
  }
  CHECK(nr_cuts < 64 && erased > 2 && erased < nr_cuts);
  simdisk_destroy(d);
}

// The least that a version may refer to is never more than what its REMIXes tell. At rest.
static void least_is_least(void) {
  const struct version *const v = xdb_super(x)->version;
  uint64_t least[1000], live[1000];
  CHECK(v->values.nr <= 1000);
  live_least(v, least);
  OK(live_values(v, live));
  for (uint32_t i = 0; i < v->values.nr; i++) CHECK(least[i] <= live[i]);
}

// A load of nothing but overwrites: without workers the files take less than twice what lives, and after a compaction a
// tenth more. Tables that were written again refer to no collected file.
static void test_room(void **state) {
  (void)state;
  for (int workers = 0; workers < 2; workers++) {
    begin(workers, REMIXDB_COMPRESSION_NONE);
    uint64_t most = 0, bytes, live = 0;
    uint32_t nr;
    for (uint32_t turn = 2; turn < 40; turn++) {
      write_turn(turn, 30);
      GOOD(remixdb_flush(r));
      OK(xdb_wait_idle(x));
      least_is_least();
      bytes = files_bytes(&nr);
      live = live_bytes(now);
      if (bytes * 100 / live > most) most = bytes * 100 / live;
    }
    // with workers the collection goes on beside the writes
    CHECK_SAYS(most < (workers ? 300 : 200), "%llu %%", (unsigned long long)most);
    GOOD(remixdb_compact(r));
    OK(xdb_wait_idle(x));  // a worker removes files
    bytes = files_bytes(&nr);
    CHECK_SAYS(bytes < live + live / 10 + nr * 4000, "%llu of %llu bytes", (unsigned long long)bytes,
               (unsigned long long)live);
    all_is(r, spaced, now);
    GOOD(remixdb_compact(r));
    all_is(r, spaced, now);
    for (uint32_t i = 0; i < 2 * KEYS; i++) put(i, 0);
    GOOD(remixdb_compact(r));
    OK(xdb_wait_idle(x));
    CHECK(files_bytes(&nr) == 0 && nr == 0 && figure("values.indexes") == 0);
    close_it();
  }
}

// A file that has room for all that is ever written is closed when a third of it is garbage, and then collected.
static void test_file_in_use(void **state) {
  (void)state;
  for (int workers = 0; workers < 2; workers++) {
    full = 64 * FULL;
    begin(workers, REMIXDB_COMPRESSION_NONE);
    full = FULL;
    uint64_t most = 0;
    uint32_t nr;
    for (uint32_t turn = 2; turn < 20; turn++) {
      write_turn(turn, 60);
      GOOD(remixdb_flush(r));
      OK(xdb_wait_idle(x));
      const uint64_t percent = files_bytes(&nr) * 100 / live_bytes(now);
      if (turn > 6 && percent > most) most = percent;
    }
    CHECK_SAYS(most < 200, "%llu %% in %u files", (unsigned long long)most, nr);
    all_is(r, spaced, now);
    close_it();
  }
}

// Tells whether somebody has counted the hidden records of a view of values: for a paged one that reads its pages.
static bool any_counted(void) {
  const struct version *v = xdb_super(x)->version;
  for (bool any = false; v; v = v->spaces)
    for (uint32_t i = 0; i < v->nr_parts; i++) {
      const struct remix *const whole = part_remix(v->parts[i]), *const young = part_young(v->parts[i]);
      any = any || (whole && atomic_load(&whole->hidden)) || (young && atomic_load(&young->hidden));
      if (any) return true;
    }
  return false;
}

static void wait_looked(void) {
  while (atomic_load(&x->collect.look_ns)) usleep(1000);  // for ever: the alarm ends it
  OK(xdb_wait_idle(x));
}

// A life that ends before its garbage is collected leaves it to the next one, which need not write anything. Where the
// counts of tables leave no room for garbage, the look reads nothing.
static void test_opened(void **state) {
  (void)state;
  uint32_t nr;
  begin(1, REMIXDB_COMPRESSION_NONE);
  OK(xdb_wait_idle(x));
  close_it();
  open_it(1, REMIXDB_COMPRESSION_NONE);
  wait_looked();
  CHECK(!any_counted() && figure("values.collections") == 0);
  collect_stop(x);
  write_turn(2, 75);
  GOOD(remixdb_flush(r));
  OK(xdb_wait_idle(x));
  const uint64_t live = live_bytes(now), before = files_bytes(&nr);
  CHECK(before > live + live / 2 && figure("values.collections") == 0);
  close_it();
  open_it(1, REMIXDB_COMPRESSION_NONE);
  wait_looked();
  OK(xdb_wait_idle(x));
  CHECK(any_counted() && figure("values.collections") > 0);
  const uint64_t after = files_bytes(&nr);
  CHECK_SAYS(after < live + live / 2 + nr * 4000, "%llu of %llu bytes", (unsigned long long)after,
             (unsigned long long)live);
  all_is(r, spaced, now);
  close_it();
}

// CURRENT finds no room, so a collection cannot be installed. The next one waits, although the round has asked for one
// (G5). When there is room again, a collection is made.
static _Atomic uint32_t nr_not_installed;
static void count_line(void *priv, const char *line) {
  (void)priv;
  if (strstr(line, "could not be installed")) atomic_fetch_add(&nr_not_installed, 1);
}

static void test_not_installed(void **state) {
  (void)state;
  memset(now, 0, sizeof(now));
  struct simdisk *const d = simdisk_create();
  atomic_store(&nr_not_installed, 0);
  logger = count_line;
  open_in("/store", simdisk_env(d), 1, REMIXDB_COMPRESSION_NONE);
  logger = NULL;
  write_turn(1, 100);
  GOOD(remixdb_flush(r));
  write_turn(2, 75);
  OK(xdb_wait_idle(x));
  pthread_mutex_lock(&x->collect.lock);
  GOOD(remixdb_flush(r));
  simdisk_fault_name(d, FILES_CURRENT_TMP);
  simdisk_fault(d, SIMDISK_WRITE, 0, UINT64_MAX, ENOSPC);
  pthread_mutex_unlock(&x->collect.lock);
  while (atomic_load(&nr_not_installed) == 0) {  // for ever: the alarm ends it
    collect_urgently(x);
    usleep(1000);
  }
  usleep(100000);
  const uint32_t nr = atomic_load(&nr_not_installed);
  CHECK_SAYS(nr <= 2 && figure("values.collections") == 0, "%u", nr);
  simdisk_fault(d, SIMDISK_WRITE, 0, 0, 0);
  while (figure("values.collections") == 0) {
    collect_urgently(x);
    usleep(10000);
  }
  OK(xdb_wait_idle(x));
  all_is(r, spaced, now);
  close_it();
  simdisk_destroy(d);
}

// ---- older readers

static void test_snapshots(void **state) {
  (void)state;
  begin(0, REMIXDB_COMPRESSION_NONE);
  struct xdb_snapshot *snaps[6];
  world then[6];
  uint32_t turn = 2;
  for (uint32_t i = 0; i < 6; i++) {
    snaps[i] = remixdb_snapshot(r);
    memcpy(then[i], now, sizeof(now));
    turn = collect(turn, 1 + i % 2);
  }
  for (uint32_t i = 0; i < 6; i++) {
    struct xdb_ref *const a = remixdb_snapshot_ref(snaps[i]), *const b = remixdb_snapshot_space_ref(snaps[i], space);
    GOOD(a != NULL);
    GOOD(b != NULL);
    all_is(a, b, then[i]);
    remixdb_unref(a);
    remixdb_unref(b);
    remixdb_snapshot_release(snaps[i]);
  }
  GOOD(remixdb_compact(r));
  OK(xdb_wait_idle(x));
  uint32_t nr;
  CHECK(files_bytes(&nr) < live_bytes(now) * 5 / 4);
  all_is(r, spaced, now);
  close_it();
}

static void test_checkpoint(void **state) {
  (void)state;
  begin(0, REMIXDB_COMPRESSION_NONE);
  uint32_t turn = collect(2, 3);
  CHECK(figure("values.indexes") > 0);
  char copy[2 * TEMP_DIR + 16];
  (void)snprintf(copy, sizeof(copy), "%s/copy", dir);
  GOOD(remixdb_checkpoint(r, copy));
  world then;
  memcpy(then, now, sizeof(now));
  turn = collect(turn, 3);
  all_is(r, spaced, now);
  close_it();
  struct remixdb_opts o = small_opts(0);
  GOOD((x = remixdb_open_opts(copy, &o)) != NULL);
  tune(x);
  r = remixdb_ref(x);
  space = remixdb_space_open(x, "other", true);
  spaced = remixdb_space_ref(space);
  GOOD(remixdb_verify(r));
  all_is(r, spaced, then);
  memcpy(now, then, sizeof(now));
  (void)collect(turn, 2);
  all_is(r, spaced, now);
  close_it();
}

// ---- damage

// A repair finds moved values, with CURRENT and without.
static void test_repair(void **state) {
  (void)state;
  for (int lost = 0; lost < 2; lost++) {
    begin(0, REMIXDB_COMPRESSION_NONE);
    (void)collect(2, 3);
    CHECK(figure("values.indexes") > 0);
    close_it();
    char path[2 * TEMP_DIR + 16];
    (void)snprintf(path, sizeof(path), "%s/CURRENT", dir);
    if (lost) CHECK(unlink(path) == 0);
    GOOD(remixdb_repair(dir));
    CHECK_SAYS(lost || !strstr(remixdb_errmsg(), "LOST"), "%s", remixdb_errmsg());
    struct remixdb_opts o = small_opts(0);
    x = quick_open(&o);
    r = remixdb_ref(x);
    space = remixdb_space_open(x, lost ? "recovered-1" : "other", false);
    GOOD(space != NULL);
    spaced = remixdb_space_ref(space);
    all_is(r, spaced, now);
    close_it();
  }
}

static int collect_setup(void **state) {
  if (!val) {
    val = malloc(40000);
    got = malloc(40000);
  }
  rng = check_seed;
  return setup(state);
}

#define MIDDLE 500000  // half of a value file, about

static void flip(const char *path, long at) {
  FILE *const f = fopen(path, "r+b");
  CHECK(f && fseek(f, at, SEEK_SET) == 0);
  const int c = fgetc(f);
  CHECK(fseek(f, at, SEEK_SET) == 0 && fputc(c ^ 16, f) != EOF && fclose(f) == 0);
}

// A repair counts moved values that are damaged as lost, although their collected file is gone.
static void test_repair_moved(void **state) {
  (void)state;
  begin(0, REMIXDB_COMPRESSION_NONE);
  (void)collect(2, 3);
  // All values that the last collection moved live. They get damaged.
  const struct value_moves *const moves = &xdb_super(x)->version->moves;
  const struct value_index *newest = moves->nr ? moves->all[0] : NULL;
  for (uint32_t i = 1; i < moves->nr; i++)
    if (moves->all[i]->file->number > newest->file->number) newest = moves->all[i];
  CHECK(newest && newest->nr <= 2 * KEYS);
  const uint32_t nr = newest->nr;
  char path[2 * TEMP_DIR];
  static long places[2 * KEYS];
  (void)snprintf(path, sizeof(path), "%s", newest->file->path);
  for (uint32_t i = 0; i < nr; i++)
    places[i] = (long)value_moved_get(newest->entries + i * VALUE_MOVED).to + 1000;  // within the value
  close_it();
  for (uint32_t i = 0; i < nr; i++) flip(path, places[i]);
  open_it(0, REMIXDB_COMPRESSION_NONE);
  uint32_t bad = 0;
  for (uint32_t i = 0; i < 2 * KEYS; i++) {
    char k[16];
    const uint32_t klen = key_of(i, k);
    bad += !remixdb_get(ref_of(i, r, spaced), k, klen, got, NULL);
  }
  CHECK(bad > 0);
  close_it();
  struct repair_report rep;
  OK(repair_store(quick_env(), dir, &rep));
  CHECK_SAYS(rep.records_lost >= bad, "%llu of %u", (unsigned long long)rep.records_lost, bad);
}

// The place of the last key in the first part of the file.
static long place_of_key(FILE *f) {
  static char buf[MIDDLE];
  const size_t n = fread(buf, 1, sizeof(buf), f);
  long at = (long)n - 4;
  while (at > 0 && memcmp(buf + at, "key-", 4) != 0) at--;
  CHECK(at > 0);
  return at;
}

// Flips a bit of each value file: in the middle, or in the key of a value's head, which a pass then does not see. The
// next call flips it back, where the file is still there. Returns how many.
static uint32_t damage_files(bool head) {
  static struct {
    char path[2 * TEMP_DIR + 300];
    long at;
  } done[64];
  static uint32_t nr;
  const bool undo = nr != 0;
  DIR *const d = undo ? NULL : opendir(dir);
  for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
    if (strstr(e->d_name, ".val") && nr < 64)
      (void)snprintf(done[nr++].path, sizeof(done[0].path), "%s/%s", dir, e->d_name);
  if (d) (void)closedir(d);
  for (uint32_t i = 0; i < nr; i++) {
    FILE *const f = fopen(done[i].path, "r+b");
    CHECK(f || undo);
    if (!f) continue;
    if (!undo) done[i].at = head ? place_of_key(f) : MIDDLE;
    CHECK(fclose(f) == 0);
    flip(done[i].path, done[i].at);
  }
  const uint32_t was = nr;
  if (undo) nr = 0;
  return was;
}

// A file with a broken live value is not collected, and the other values stay.
static void test_stuck(void **state) {
  for (uint32_t head = 0; head < 2; head++) {
    begin(0, REMIXDB_COMPRESSION_NONE);
    close_it();
    const uint32_t nr = damage_files(head);
    CHECK(nr > 5);
    open_it(0, REMIXDB_COMPRESSION_NONE);
    // All but the keys with a damaged value are written again.
    for (uint32_t t = 2; t < 4; t++)
      for (uint32_t i = 0; i < 2 * KEYS; i++) {
        char k[16];
        const uint32_t klen = key_of(i, k);
        if (now[i] == 1 && !remixdb_get(ref_of(i, r, spaced), k, klen, got, NULL)) continue;
        put(i, t);
      }
    for (uint32_t t = 0; t < 3; t++) GOOD(remixdb_compact(r));
    uint32_t bad = 0;
    for (uint32_t i = 0; i < 2 * KEYS; i++) {
      char k[16];
      const uint32_t klen = key_of(i, k);
      const bool good = remixdb_get(ref_of(i, r, spaced), k, klen, got, NULL);
      CHECK(good == (now[i] != 1));
      bad += !good;
    }
    CHECK(bad > 0 && bad <= nr);
    (void)damage_files(head);
    all_is(r, spaced, now);  // the damaged values, too
    close_it();
    if (!head) CHECK(teardown(state) == 0 && collect_setup(state) == 0);
  }
}

// Tells whether a file of the version is too short for the values that were counted.
static bool has_lost(void) {
  const struct value_set *const files = &xdb_super(x)->version->values;
  bool lost = false;
  for (uint32_t i = 0; i < files->nr; i++)
    lost = lost || atomic_load(&files->files[i]->value_bytes) > value_file_size(files->files[i]);
  return lost;
}

// Opens what a power cut leaves of a store to which values were written that nobody has synced. CURRENT, which came
// after them, has counted them. The power cut takes them from the end of their file.
static struct simdisk *open_cut(void) {
  struct simdisk *const d = simdisk_create(), *after = NULL;
  world before;
  memset(now, 0, sizeof(now));
  full = 1u << 30;  // one file has all values
  open_in("/store", simdisk_env(d), 0, REMIXDB_COMPRESSION_NONE);
  full = FULL;
  write_turn(1, 100);
  GOOD(remixdb_flush(r));
  memcpy(before, now, sizeof(now));
  for (uint32_t i = 0; i < 8; i++) put(20 * i, 2);
  OK(install_trim(x));  // writes CURRENT, and syncs nothing else
  struct xdb *const was = x;
  struct xdb_ref *const was_r = r, *const was_spaced = spaced;
  struct xdb_space *const was_space = space;
  for (uint64_t seed = 1;; seed++) {
    after = simdisk_crash(d, seed);
    open_in("/store", simdisk_env(after), 0, REMIXDB_COMPRESSION_NONE);
    if (has_lost()) break;
    CHECK(seed < 60);
    close_it();
    simdisk_destroy(after);
  }
  memcpy(now, before, sizeof(now));
  all_is(r, spaced, now);
  struct xdb *const is = x;
  struct xdb_ref *const is_r = r, *const is_spaced = spaced;
  struct xdb_space *const is_space = space;
  x = was, r = was_r, spaced = was_spaced, space = was_space;
  close_it();
  simdisk_destroy(d);
  x = is, r = is_r, spaced = is_spaced, space = is_space;
  return after;
}

// After a power cut that has taken counted bytes a file has fewer values than were counted. Where a memtable hides
// records, no collection takes that for damage, and the garbage goes when nothing is hidden.
static void test_lost_tail(void **state) {
  (void)state;
  struct simdisk *const d = open_cut();
  for (uint32_t t = 3; t < 6; t++) {
    write_turn(t, 60);
    const struct value_set *const at = &xdb_super(x)->version->values;
    for (uint32_t i = 0; i < at->nr; i++) CHECK(!at->files[i]->stuck);
  }
  GOOD(remixdb_compact(r));
  const struct value_set *const at = &xdb_super(x)->version->values;
  for (uint32_t i = 0; i < at->nr; i++) CHECK(!at->files[i]->stuck);
  CHECK(figure("values.freed_bytes") > live_bytes(now) / 4);
  all_is(r, spaced, now);
  close_it();
  simdisk_destroy(d);
}

// Flips a bit in the key of a value's head, in each value file on the disk that has one; the next call flips it back.
static uint32_t flip_head(struct simdisk *d, const char *key) {
  static uint8_t bytes[2 * FULL];
  struct files_entry *list;
  size_t nr;
  uint32_t found = 0;
  OK(paths_files(simdisk_env(d), "/store", &list, &nr));
  for (size_t i = 0; i < nr; i++) {
    char path[64];
    (void)snprintf(path, sizeof(path), "/store/%s", list[i].name);
    const int64_t size = simdisk_size(d, path), len = size < (int64_t)sizeof(bytes) ? size : (int64_t)sizeof(bytes);
    if (list[i].kind != FILES_IS_VALUE || !simdisk_peek(d, path, 0, bytes, (size_t)len)) continue;
    for (int64_t at = 0; at + 9 <= len; at++)
      if (memcmp(bytes + at + 1, key + 1, strlen(key) - 1) == 0 && (bytes[at] | 16) == (key[0] | 16))
        found += simdisk_flip(d, path, (uint64_t)at, 16);
  }
  mem_free(list);
  return found;
}

// The disk of a store with values for the first `nr` keys, as a power cut leaves it. Only the log refers to those
// behind the first eight.
static struct simdisk *cut_disk(const struct remixdb_opts *o, uint32_t nr) {
  struct simdisk *const d = simdisk_create();
  struct xdb *y;
  char k[16];
  OK(xdb_open("/store", o, simdisk_env(d), &y));
  tune(y);
  struct xdb_ref *const a = remixdb_ref(y);
  for (uint32_t i = 0; i < nr; i++) {
    fill(i, 1);
    GOOD(remixdb_put(a, k, key_of(i, k), val, len_of(i, 1)));
    if (i == 7) GOOD(remixdb_flush(a));
  }
  GOOD(remixdb_sync(a));
  struct simdisk *const e = simdisk_crash(d, 1);
  remixdb_unref(a);
  OK(xdb_close(y));
  simdisk_destroy(d);
  return e;
}

// A store that was not closed: CURRENT states fewer bytes of a file than the log has brought there since. A damaged
// head of a live value in that file keeps the file all the same.
static void test_not_counted(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  struct simdisk *const e = cut_disk(&o, 20);
  struct xdb *y;
  char k[16];
  const uint32_t klen = key_of(3, k);
  CHECK(flip_head(e, k) == 1);
  OK(xdb_open("/store", &o, simdisk_env(e), &y));
  tune(y);
  struct xdb_ref *const a = remixdb_ref(y);
  for (uint32_t t = 2; t < 5; t++) {
    for (uint32_t i = 0; i < 20; i++) {
      fill(i, t);
      if (i != 3) GOOD(remixdb_put(a, k, key_of(i, k), val, len_of(i, t)));
    }
    GOOD(remixdb_compact(a));
  }
  (void)key_of(3, k);
  CHECK(!remixdb_get(a, k, klen, got, NULL) && remixdb_errcode() == REMIXDB_CORRUPT);
  CHECK(flip_head(e, k) == 1);
  fill(3, 1);
  GOOD(remixdb_get(a, k, klen, got, NULL));
  CHECK(memcmp(got, val, len_of(3, 1)) == 0);
  remixdb_unref(a);
  OK(xdb_close(y));
  simdisk_destroy(e);
}

// A repair counts a damaged value as lost that only the log refers to, in a file that CURRENT does not name.
static void test_repair_logged(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  struct simdisk *const e = cut_disk(&o, 80);
  struct repair_report rep;
  char k[16];
  (void)key_of(79, k);
  CHECK(flip_head(e, k) == 1);
  OK(repair_store(simdisk_env(e), "/store", &rep));
  CHECK_SAYS(rep.records_lost == 1, "%llu", (unsigned long long)rep.records_lost);
  simdisk_destroy(e);
}

// A compaction that cannot read one table collects the garbage of value files all the same, and then fails.
static void test_damaged_table(void **state) {
  (void)state;
  full = 1u << 30;  // no round collects
  begin(0, REMIXDB_COMPRESSION_NONE);
  for (uint32_t i = 0; i < 300; i++) {
    char k[16];
    GOOD(remixdb_put(r, k, (uint32_t)snprintf(k, sizeof(k), "zz-%05u", i), val, 100));
  }
  write_turn(2, 100);
  GOOD(remixdb_flush(r));
  const struct version *const v = xdb_super(x)->version;
  const struct part *const last = v->parts[v->nr_parts - 1];
  char path[2 * TEMP_DIR];
  long at = -1;
  for (uint32_t t = 0; t < part_runs(last) && at < 0; t++) {
    const struct sst *const s = part_run(last, t);
    if (s->nr_pages < 4 || memcmp(s->max.ptr, "zz-", 3) != 0) continue;
    (void)snprintf(path, sizeof(path), "%s", s->path);
    at = (long)(s->base + (uint64_t)(s->nr_pages - 1) * BLOCK_PAGE) + 40;
  }
  CHECK(at > 0);
  flip(path, at);
  const uint64_t was = figure("values.collected_files");
  CHECK(!remixdb_compact(r) && remixdb_errcode() == REMIXDB_CORRUPT && strstr(remixdb_errmsg(), path));
  CHECK(figure("values.collected_files") > was && figure("values.freed_bytes") > live_bytes(now) / 2);
  flip(path, at);
  const struct remixdb_range small = {{"zz-", 3}, {"zz.", 3}};
  GOOD(remixdb_del_range(r, &small));
  all_is(r, spaced, now);
  close_it();
  full = FULL;
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_reads, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_indexes, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_indexes_in_turn, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_indexes_wait, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_indexes_away, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_erased_files, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_room, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_file_in_use, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_opened, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_not_installed, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_snapshots, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_checkpoint, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_repair, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_repair_moved, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_repair_logged, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_stuck, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_lost_tail, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_not_counted, collect_setup, teardown),
      cmocka_unit_test_setup_teardown(test_damaged_table, collect_setup, teardown),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
