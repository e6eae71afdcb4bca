// SPDX-License-Identifier: Apache-2.0
//
// Openings that do not read the keys: what an opening reads, partitions that are brought by several threads at once,
// partitions that cannot be brought, and calls that must work while partitions are away.
#include "tests/lib/store.h"

#include <errno.h>

#include "remix/pack.h"
#include "remix/paged.h"
#include "remixdb.h"
#include "tests/lib/paths.h"
#include "view/version.h"

#define KEYS 20000u
#define THREADS 4u

static struct env counting;
static const struct env_ops *real;
static struct env_ops ops;
static _Atomic uint64_t bytes_read;
static _Atomic bool reads_fail;
static struct xdb *watched;  // the store whose round is watched while it opens partitions; NULL: none is
static uint64_t least_work, most_done, nr_looks;

static void look(void) {
  if (version_tree_away(xdb_super(watched)->version) == 0) return;
  const uint64_t work = atomic_load(&watched->compact.work), done = atomic_load(&watched->compact.progress);
  if (nr_looks++ == 0 || work < least_work) least_work = work;
  if (done > most_done) most_done = done;
}

static ssize_t count_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  if (watched) look();
  if (atomic_load_explicit(&reads_fail, memory_order_relaxed)) return -EIO;
  const ssize_t n = real->pread(e, fd, buf, len, off);
  if (n > 0) atomic_fetch_add_explicit(&bytes_read, (uint64_t)n, memory_order_relaxed);
  return n;
}

static struct env *counting_env(void) {
  counting = *quick_env();
  real = counting.ops;
  ops = *real;
  ops.pread = count_pread;
  counting.ops = &ops;
  counting.native = false;
  return &counting;
}

static uint32_t key_of(uint32_t i, char buf[24]) { return (uint32_t)snprintf(buf, 24, "%08u", i); }

static struct remixdb_opts options(void) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.cache_mb = 1;
  o.memtable_mb = 8;
  o.workers = 0;
  return o;
}

struct state {
  struct xdb *x;
  struct xdb_ref *ref;
};

// eager: bytes of REMIX files up to which an opening brings all.
static bool files_only;  // no packs: each table and each REMIX is a file of its own

static void store_open(struct state *s, uint64_t eager) {
  const struct remixdb_opts o = options();
  atomic_store(&version_eager, eager);
  OK(xdb_open(dir, &o, counting_env(), &s->x));
  if (files_only) packs_cannot(s->x->packs);
  shrink(s->x, 256 << 10, 20);
  s->x->compact.young_from = 2;
  s->x->compact.memtable_size = 0;  // nothing is handed back
  assert_non_null(s->ref = remixdb_ref(s->x));
}

static void store_close(struct state *s) {
  remixdb_unref(s->ref);
  OK(xdb_close(s->x));
  atomic_store(&version_eager, VERSION_EAGER);
}

// Many partitions, some with a young view, and a named space.
static void store_make(void) {
  struct state s;
  char key[24], value[100] = {0};
  setup_again();
  store_open(&s, VERSION_EAGER);
  for (uint32_t i = 0; i < KEYS; i++) {
    const uint32_t k = (uint32_t)((uint64_t)i * 7919 % KEYS);
    CHECK(remixdb_put(s.ref, key, key_of(k, key), value, k % 100));
  }
  CHECK(remixdb_compact(s.ref));
  for (uint32_t i = 0; i < KEYS; i += 97) CHECK(remixdb_del(s.ref, key, key_of(i, key)));
  CHECK(remixdb_flush(s.ref));
  struct xdb_space *const space = remixdb_space_open(s.x, "other", true);
  struct xdb_ref *const there = remixdb_space_ref(space);
  CHECK(space && there);
  for (uint32_t i = 0; i < 500; i++) CHECK(remixdb_put(there, key, key_of(i, key), value, 10));
  CHECK(remixdb_flush(s.ref));
  remixdb_unref(there);
  remixdb_space_close(space);
  const struct version *const v = xdb_super(s.x)->version;
  CHECK(v->nr_parts > 4);
  CHECK(v->nr_young > 0);
  CHECK(!version_is_empty(v->spaces));
  store_close(&s);
}

static uint32_t nr_away(struct xdb *x) {
  uint32_t nr = 0;
  for (const struct version *t = xdb_super(x)->version; t; t = t->spaces)
    for (uint32_t i = 0; i < t->nr_parts; i++) nr += part_is_away(t->parts[i]);
  return nr;
}
static uint32_t nr_parts(struct xdb *x) {
  uint32_t nr = 0;
  for (const struct version *t = xdb_super(x)->version; t; t = t->spaces)
    for (uint32_t i = 0; i < t->nr_parts; i++) nr += !part_is_empty(t->parts[i]);
  return nr;
}

static bool is_live(uint32_t i) { return i % 97 != 0; }

static void check_key(struct xdb_ref *ref, uint32_t i) {
  char key[24], value[100];
  uint32_t len = 0;
  const bool there = remixdb_getn(ref, key, key_of(i, key), value, sizeof(value), &len);
  THREAD_CHECK(there == is_live(i) && (!there || len == i % 100));
}

static uint64_t files_ends(struct xdb *x) {
  uint64_t bytes = 0;
  for (const struct version *t = xdb_super(x)->version; t; t = t->spaces)
    for (uint32_t i = 0; i < t->nr_parts; i++) {
      struct part_files f;
      part_files(t->parts[i], &f);
      bytes += 256ull * f.nr + 80ull * ((f.remix.number != 0) + (f.young.number != 0));
    }
  return bytes;
}

// An opening reads the ends of files, CURRENT and the log; the first get reads one partition.
static void test_opening(void **state) {
  (void)state;
  struct state s;
  store_make();
  bytes_read = 0;
  store_open(&s, UINT64_MAX);
  const uint64_t all = bytes_read;
  assert_int_equal(nr_away(s.x), 0);
  store_close(&s);
  bytes_read = 0;
  store_open(&s, 0);
  const uint64_t few = bytes_read;
  assert_int_equal(nr_away(s.x), nr_parts(s.x));
  if (few > files_ends(s.x) + 32768)
    fail_msg("an opening reads %llu bytes, %llu of them beside the ends of files", (unsigned long long)few,
             (unsigned long long)(few - files_ends(s.x)));
  if (all < 2 * few) fail_msg("%llu and %llu bytes", (unsigned long long)all, (unsigned long long)few);
  check_key(s.ref, KEYS / 2);
  assert_int_equal(nr_away(s.x), nr_parts(s.x) - 1);
  for (uint32_t i = 0; i < KEYS; i++) check_key(s.ref, i);
  assert_int_equal(nr_away(s.x), 1);  // the named space's
  store_close(&s);
}

// The ways of reading, each the first to come to all partitions.
static void read_all(struct state *s, uint32_t way) {
  uint64_t nr = 0, keys = 0;
  uint32_t live = 0;
  for (uint32_t i = 0; i < KEYS; i++) live += is_live(i);
  struct xdb_iter *const it = remixdb_iter_create(s->ref);
  if (way == 0) {
    for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) nr++;
  } else if (way == 1) {
    for (remixdb_iter_seek_last(it); remixdb_iter_valid(it); remixdb_iter_prev(it)) nr++;
  } else if (way == 2) {
    remixdb_iter_seek(it, NULL, 0);
    remixdb_iter_skip(it, live - 1);
    nr = remixdb_iter_valid(it) ? live - 1 : 0;
    remixdb_iter_skip1(it);
    nr += !remixdb_iter_valid(it);
  } else if (way == 3) {
    CHECK(remixdb_count(s->ref, &(struct remixdb_range){0}, &nr, &keys));
    if (nr > live - live / 50 && nr < live + live / 50) nr = live;
  } else if (way == 4) {
    enum { MANY = 200 };
    static char names[MANY][24];
    struct remixdb_slice k[MANY];
    bool found[MANY];
    for (uint32_t i = 0; i < KEYS; i += MANY) {
      for (uint32_t j = 0; j < MANY; j++) k[j] = (struct remixdb_slice){names[j], key_of(i + j, names[j])};
      nr += remixdb_multi_get(s->ref, MANY, k, NULL, found);
    }
  } else {
    CHECK(remixdb_verify(s->ref));
    nr = live;
  }
  assert_int_equal(remixdb_iter_status(it), REMIXDB_OK);
  remixdb_iter_destroy(it);
  if (nr != live) fail_msg("way %u: %llu keys of %u", way, (unsigned long long)nr, live);
}

static void test_ways(void **state) {
  (void)state;
  store_make();
  for (uint32_t way = 0; way < 6; way++) {
    struct state s;
    store_open(&s, 0);
    read_all(&s, way);
    assert_true(nr_away(s.x) <= 1);
    store_close(&s);
  }
}

static struct xdb *shared;

static void *read_some(void *arg) {
  struct xdb_ref *const ref = remixdb_ref(shared);
  uint64_t rng = (uintptr_t)arg;
  THREAD_CHECK(ref != NULL);
  for (uint32_t i = 0; i < 3000; i++) check_key(ref, (uint32_t)below(&rng, KEYS));
  remixdb_unref(ref);
  return NULL;
}

// Several threads come to partitions that are away; a round runs beside them.
static void test_threads(void **state) {
  (void)state;
  store_make();
  for (uint32_t round = 0; round < 3; round++) {
    struct state s;
    pthread_t t[THREADS];
    store_open(&s, 0);
    shared = s.x;
    for (uint32_t i = 0; i < THREADS; i++)
      assert_int_equal(pthread_create(&t[i], NULL, read_some, (void *)(uintptr_t)(i + 1)), 0);
    CHECK(remixdb_put(s.ref, "x", 1, "y", 1));
    if (round) CHECK(remixdb_flush(s.ref));
    for (uint32_t i = 0; i < THREADS; i++) assert_int_equal(pthread_join(t[i], NULL), 0);
    store_close(&s);
  }
}

// Writers are slowed down by the work that a round has left. That counts the indexes that the first round after an
// opening has to read.
static void test_work(void **state) {
  (void)state;
  struct state s;
  store_make();
  store_open(&s, 0);
  const struct version *const v = xdb_super(s.x)->version;
  uint64_t entries = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) entries += v->parts[i]->away->entries;
  assert_true(entries >= KEYS);
  assert_int_equal(version_tree_away(v), entries);
  CHECK(remixdb_put(s.ref, "x", 1, "y", 1));
  nr_looks = most_done = 0;
  watched = s.x;
  CHECK(remixdb_flush(s.ref));
  watched = NULL;
  assert_true(nr_looks > 4);
  assert_true(least_work > entries);
  assert_true(most_done > 0 && most_done <= entries);
  assert_true(atomic_load(&s.x->compact.progress) >= entries);
  assert_int_equal(version_tree_away(xdb_super(s.x)->version), 0);
  store_close(&s);
}

static uint32_t nr_paged(struct xdb *x) {
  const struct version *const v = xdb_super(x)->version;
  uint32_t nr = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) nr += part_remix(v->parts[i]) && remix_is_paged(part_remix(v->parts[i]));
  return nr;
}

// Entries of partitions that are away, as the accounts have them.
static uint64_t away_counted(struct xdb *x) {
  const struct version *const v = xdb_super(x)->version;
  const uint64_t entries = atomic_load(&x->memory.accounts.away);
  assert_int_equal(entries, version_tree_away(v) + version_tree_away(v->spaces));
  return entries;
}

// Reads all keys, so that none of their partitions is away. Returns how many of them are paged.
static uint32_t paged_of(struct state *s, uint64_t bound) {
  atomic_store(&s->x->memory.accounts.indexes_most, bound);
  for (uint32_t i = 0; i < KEYS; i++) check_key(s->ref, i);
  assert_int_equal(version_tree_away(xdb_super(s->x)->version), 0);
  assert_true(away_counted(s->x) < 1000);  // the named space's
  return nr_paged(s->x);
}

// A partition gets a whole index only if there is room for what the partitions need that come after it. So the first
// ones do not take the room of the directories of the others.
static void test_room(void **state) {
  (void)state;
  struct state s;
  const uint32_t from = atomic_load(&remix_paged_from);
  atomic_store(&remix_paged_from, 1);
  store_make();
  store_open(&s, 0);
  const uint32_t nr = xdb_super(s.x)->version->nr_parts;
  assert_true(nr > 4 && away_counted(s.x) >= KEYS);
  assert_int_equal(paged_of(&s, UINT64_MAX), 0);
  const uint64_t whole = budget_indexes(&s.x->memory.accounts);
  store_close(&s);
  store_open(&s, 0);
  const uint32_t some = paged_of(&s, whole);  // a quarter is for pages
  assert_true(some > 0 && some < nr);
  store_close(&s);
  store_open(&s, 0);
  struct budget *const b = &s.x->memory.accounts;
  const uint64_t others = away_counted(s.x) / BUDGET_AWAY_ENTRIES, room = 3000 + budget_indexes(b) + others;
  atomic_store(&b->indexes_most, room + room / 3);
  assert_true(budget_index_fits(b, 2990));  // beside what the others will need
  assert_false(budget_index_fits(b, 3010));
  store_close(&s);
  atomic_store(&remix_paged_from, from);
}

#define QUICK_KEYS 50000u
static uint32_t quick_key(uint32_t i, char buf[32]) {
  const uint64_t mixed = (i + 1) * 0x9E3779B97F4A7C15ull;
  memcpy(buf, "user:", 5);
  memcpy(buf + 5, &mixed, 8);
  memcpy(buf + 13, "profile", 7);
  return 20;
}

// Compares what partitions find first with what their views find. Returns how many of the keys were found in the copy.
static uint32_t quick_check(struct xdb *x) {
  const struct version *const v = xdb_super(x)->version;
  uint32_t quick = 0;
  for (uint32_t i = 0; i < QUICK_KEYS; i += 7) {
    char buf[32];
    const struct kref key = kref(buf, quick_key(i, buf) - i % 3 * 5);
    const struct part *const p = v->parts[version_find(v, key)];
    const struct remix *const remix = part_remix(p), *const young = part_young(p);
    const uint8_t *const seg = part_get_begin(p, key);
    const uint32_t seek = part_seek_begin(p, key);
    if (!remix) assert_true(seg == NULL && seek == ANCHORS_UNKNOWN);
    else assert_ptr_equal(seg, remix_get_begin(young ? young : remix, key));
    if (seek != ANCHORS_UNKNOWN) assert_int_equal(seek, remix_segment(remix, key));
    quick += seek != ANCHORS_UNKNOWN;
  }
  return quick;
}

static void quick_read(struct xdb_ref *ref) {
  struct xdb_iter *const it = remixdb_iter_create(ref);
  assert_non_null(it);
  for (uint32_t i = 0; i < QUICK_KEYS; i += 11) {
    char buf[32], got[32];
    uint32_t klen;
    const uint32_t len = quick_key(i, buf);
    CHECK(remixdb_probe(ref, buf, len));
    remixdb_iter_seek(it, buf, len);
    CHECK(remixdb_iter_peek(it, got, &klen, NULL, NULL) && klen == len && memcmp(got, buf, len) == 0);
    buf[len - 1] = '~';
    CHECK(!remixdb_probe(ref, buf, len));
  }
  remixdb_iter_destroy(it);
}

// Several runs: rows lie between the segments of a view, and the copy knows them.
static void quick_groups(struct xdb *x, struct xdb_ref *ref) {
  char buf[32];
  x->compact.young_from = 0;
  for (uint32_t run = 0; run < 4; run++) {
    for (uint32_t i = run; i < QUICK_KEYS; i += 5) CHECK(remixdb_put(ref, buf, quick_key(i, buf), "again", 5));
    CHECK(remixdb_flush(ref));
  }
  const struct version *const v = xdb_super(x)->version;
  uint32_t grouped = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) grouped += part_remix(v->parts[i])->index->lay.row > 0;
  assert_true(grouped > 0);
  assert_true(quick_check(x) > QUICK_KEYS / 7 / 2);
  quick_read(ref);
}

// A partition keeps a copy of what a search for a segment reads of its view: from the first moment when a round has
// made it, with the view when it was away, and never of a paged view.
static void test_quick(void **state) {
  (void)state;
  const struct remixdb_opts o = options();
  const uint32_t from = atomic_load(&remix_paged_from);
  struct xdb *x;
  char buf[32];
  setup_again();
  OK(xdb_open(dir, &o, quick_env(), &x));
  struct xdb_ref *ref = remixdb_ref(x);
  for (uint32_t i = 0; i < QUICK_KEYS; i++)
    CHECK(remixdb_put(ref, buf, quick_key((uint32_t)((uint64_t)i * 7919 % QUICK_KEYS), buf), "value", 5));
  CHECK(remixdb_flush(ref));
  assert_true(quick_check(x) > QUICK_KEYS / 7 / 2);
  quick_read(ref);
  quick_groups(x, ref);
  x->compact.young_from = 2;
  CHECK(remixdb_put(ref, buf, quick_key(QUICK_KEYS / 2, buf), "other", 5));
  CHECK(remixdb_flush(ref));
  CHECK(xdb_super(x)->version->nr_young > 0);
  assert_true(quick_check(x) > QUICK_KEYS / 7 / 2);
  quick_read(ref);
  for (uint32_t paged = 0; paged < 2; paged++) {
    remixdb_unref(ref);
    OK(xdb_close(x));
    atomic_store(&version_eager, 0);
    atomic_store(&remix_paged_from, paged ? 1 : from);
    OK(xdb_open(dir, &o, quick_env(), &x));
    if (paged) atomic_store(&x->memory.accounts.indexes_most, 1);
    assert_non_null(ref = remixdb_ref(x));
    assert_int_equal(quick_check(x), 0);
    quick_read(ref);
    assert_int_equal(version_tree_away(xdb_super(x)->version), 0);
    assert_int_equal(nr_paged(x), paged ? xdb_super(x)->version->nr_parts : 0);
    if (paged) assert_int_equal(quick_check(x), 0);
    else assert_true(quick_check(x) > QUICK_KEYS / 7 / 2);
  }
  remixdb_unref(ref);
  OK(xdb_close(x));
  atomic_store(&version_eager, VERSION_EAGER);
  atomic_store(&remix_paged_from, from);
}

// The path of the file of the REMIX or a table of the partition with this key.
static void path_of(struct xdb *x, uint32_t i, bool table, char *buf, size_t size) {
  char key[24], name[32];
  const struct version *const v = xdb_super(x)->version;
  struct part_files f;
  part_files(v->parts[version_find(v, kref(key, key_of(i, key)))], &f);
  if (table) sst_name(name, f.tables[0].number);
  else remix_name(name, f.remix.number);
  (void)snprintf(buf, size, "%s/%s", dir, name);
}

static void flip(const char *path, uint64_t from_end) {
  struct stat st;
  FILE *const f = fopen(path, "r+b");
  assert_true(f && fstat(fileno(f), &st) == 0 && fseek(f, (long)(st.st_size - (long)from_end), SEEK_SET) == 0);
  const int c = fgetc(f);
  assert_true(fseek(f, -1, SEEK_CUR) == 0 && fputc(c ^ 4, f) != EOF && fclose(f) == 0);
}

#define CORRUPT(call) assert_true(!(call) && remixdb_errcode() == REMIXDB_CORRUPT)

// A partition that is damaged fails with what is wrong, each time; the others serve. When the damage is gone, so is the
// error.
static void damaged(bool table) {
  struct state s;
  char path[3 * TEMP_DIR], key[24];
  const uint32_t bad = KEYS / 2 + 1, good = 5;
  uint64_t nr, size;
  store_open(&s, 0);
  path_of(s.x, bad, table, path, sizeof(path));
  flip(path, table ? 300 : 40);  // a table's metadata lies before its footer
  for (uint32_t again = 0; again < 2; again++) {
    CORRUPT(remixdb_getn(s.ref, key, key_of(bad, key), NULL, 0, NULL));
    assert_non_null(strstr(remixdb_errmsg(), strrchr(path, '/')));
    CORRUPT(remixdb_probe(s.ref, key, key_of(bad, key)));
    check_key(s.ref, good);
  }
  const struct remixdb_slice keys[2] = {{"00000005", 8}, {key, key_of(bad, key)}};
  bool found[2];
  assert_int_equal(remixdb_multi_get(s.ref, 2, keys, NULL, found), 1);
  assert_int_equal(remixdb_errcode(), REMIXDB_CORRUPT);
  struct xdb_iter *const it = remixdb_iter_create(s.ref);
  remixdb_iter_seek(it, "00000001", 8);
  assert_true(remixdb_iter_valid(it));
  while (remixdb_iter_valid(it)) remixdb_iter_skip1(it);
  assert_int_equal(remixdb_iter_status(it), REMIXDB_CORRUPT);
  remixdb_iter_seek(it, key, key_of(bad, key));
  assert_true(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_CORRUPT);
  CORRUPT(remixdb_count(s.ref, &(struct remixdb_range){0}, &nr, &size));
  CORRUPT(remixdb_verify(s.ref));
  flip(path, table ? 300 : 40);
  check_key(s.ref, bad + 1);
  remixdb_iter_destroy(it);
  CHECK(remixdb_put(s.ref, key, key_of(bad, key), "", 0));
  store_close(&s);
  store_open(&s, 0);
  uint32_t len = 1;
  CHECK(remixdb_getn(s.ref, key, key_of(bad, key), NULL, 0, &len) && len == 0);  // no write is lost
  CHECK(remixdb_flush(s.ref) && remixdb_verify(s.ref));
  store_close(&s);
}

static void test_damaged(void **state) {
  (void)state;
  files_only = true;
  for (uint32_t table = 0; table < 2; table++) {
    store_make();
    damaged(table);
  }
  files_only = false;
}

// A failed round may be tried again at once.
static void hurry(struct xdb *x) {
  pthread_mutex_lock(&x->lock);
  x->rounds.failed_ns = 0;
  pthread_mutex_unlock(&x->lock);
}

#define FAILS_BY(status, call) assert_true(!(call) && remixdb_errcode() == (status) && remixdb_errmsg()[0])

// All reads fail; or the young view is damaged, in its file or in a table's metadata.
enum unread { READS_FAIL, TABLE_DAMAGED, INDEX_DAMAGED };

// The path of the file of the young view, or of its first table, in the first partition that has one.
static void path_of_young(struct xdb *x, bool table, char *buf, size_t size) {
  const struct version *const v = xdb_super(x)->version;
  char name[32];
  struct part_files f;
  part_files(v->parts[v->young[0]], &f);
  if (table) sst_name(name, f.tables[f.nr - f.nr_young].number);
  else remix_name(name, f.young.number);
  (void)snprintf(buf, size, "%s/%s", dir, name);
}

// The round of a memtable cannot open a partition, or not its young view, into which new data has to go. Writes go on
// until the next memtable is full, too. When the partition can be opened, the round succeeds, and so do writes. Nothing
// is lost.
static void run_unread(enum unread how) {
  struct state s;
  char path[3 * TEMP_DIR], key[24], value[100] = {0};
  const enum remixdb_status want = how == READS_FAIL ? REMIXDB_IO : REMIXDB_CORRUPT;
  const uint64_t at = how == TABLE_DAMAGED ? 300 : 40;
  store_make();
  store_open(&s, 0);
  const uint32_t away = nr_away(s.x);
  path_of_young(s.x, how == TABLE_DAMAGED, path, sizeof(path));
  for (uint32_t i = 0; i < KEYS; i += KEYS / 50) CHECK(remixdb_put(s.ref, key, key_of(i, key), value, i % 100));
  if (how == READS_FAIL) atomic_store(&reads_fail, true);
  else flip(path, at);
  FAILS_BY(want, remixdb_flush(s.ref));
  assert_true(nr_away(s.x) == away || how != READS_FAIL);
  assert_true(nr_away(s.x) > 0);
  uint32_t nr = 0;
  while (remixdb_put(s.ref, key, key_of(nr, key), value, nr % 100)) CHECK(++nr < KEYS);
  assert_int_equal(remixdb_errcode(), want);
  assert_true(nr > 100);
  hurry(s.x);
  FAILS_BY(want, remixdb_flush(s.ref));
  FAILS_BY(want, remixdb_put(s.ref, "x", 1, "y", 1));
  if (how == READS_FAIL) atomic_store(&reads_fail, false);
  else flip(path, at);
  hurry(s.x);
  CHECK(remixdb_put(s.ref, "x", 1, "y", 1) && remixdb_flush(s.ref));
  assert_true(nr_away(s.x) < away);
  for (uint32_t again = 0; again < 2; again++) {
    for (uint32_t i = 0; i < nr; i++) {
      uint32_t len = 100;
      CHECK(remixdb_getn(s.ref, key, key_of(i, key), value, sizeof(value), &len) && len == i % 100);
    }
    check_key(s.ref, KEYS - 1);
    CHECK(remixdb_probe(s.ref, "x", 1) && remixdb_verify(s.ref));
    store_close(&s);
    store_open(&s, 0);
  }
  store_close(&s);
}

static void test_unread(void **state) {
  (void)state;
  files_only = true;
  for (enum unread how = READS_FAIL; how <= INDEX_DAMAGED; how++) run_unread(how);
  files_only = false;
}

// A store with a log of many segments freezes its memtable when it is opened. It opens and takes writes, although the
// round cannot open the partition for which it has new data.
static void test_long_log(void **state) {
  (void)state;
  struct state s;
  char path[3 * TEMP_DIR], key[24];
  files_only = true;
  store_make();
  for (uint32_t i = 0; i < 5; i++) {
    store_open(&s, 0);
    for (uint32_t k = i; k < KEYS; k += KEYS / 50) CHECK(remixdb_put(s.ref, key, key_of(k, key), "x", 1));
    s.x->leave_log = true;
    if (i == 4) path_of_young(s.x, false, path, sizeof(path));
    store_close(&s);
    store_share_logs();  // else the next opening continues the segment
  }
  flip(path, 40);
  const struct remixdb_opts o = options();
  atomic_store(&version_eager, 0);
  OK(xdb_open(dir, &o, counting_env(), &s.x));
  assert_non_null(s.ref = remixdb_ref(s.x));
  CHECK(s.x->recovery.nr_segments > 4 && s.x->rounds.error.status == REMIXDB_CORRUPT);
  CHECK(remixdb_put(s.ref, "x", 1, "y", 1));
  FAILS_BY(REMIXDB_CORRUPT, remixdb_flush(s.ref));
  flip(path, 40);
  hurry(s.x);
  CHECK(remixdb_flush(s.ref));
  for (uint32_t i = 0; i < 5; i++) CHECK(remixdb_probe(s.ref, key, key_of(i, key)));
  CHECK(remixdb_probe(s.ref, "x", 1) && remixdb_verify(s.ref));
  store_close(&s);
  files_only = false;
}

// A missing or foreign file is found by the opening itself.
static void test_missing(void **state) {
  (void)state;
  struct state s;
  char path[3 * TEMP_DIR], away[3 * TEMP_DIR + 8];
  const struct remixdb_opts o = options();
  files_only = true;
  for (uint32_t table = 0; table < 2; table++) {
    store_make();
    store_open(&s, 0);
    path_of(s.x, KEYS / 2, table, path, sizeof(path));
    store_close(&s);
    (void)snprintf(away, sizeof(away), "%s.away", path);
    assert_int_equal(rename(path, away), 0);
    atomic_store(&version_eager, 0);
    FAILS(xdb_open(dir, &o, quick_env(), &s.x), REMIXDB_CORRUPT);
    assert_int_equal(rename(away, path), 0);
    flip(path, table ? 256 - 8 : 3);  // in the footer; in the checksum
    FAILS(xdb_open(dir, &o, quick_env(), &s.x), REMIXDB_CORRUPT);
    flip(path, table ? 256 - 8 : 3);
    store_open(&s, 0);
    store_close(&s);
  }
  files_only = false;
}

// Calls that need no keys leave partitions away: checkpoints, figures, new spaces, a close.
static void test_untouched(void **state) {
  (void)state;
  struct state s;
  char copy[3 * TEMP_DIR];
  store_make();
  store_open(&s, 0);
  const uint32_t parts = nr_parts(s.x);
  uint64_t keys = 0, tables = 0;
  CHECK(remixdb_figure(s.x, "table_keys", &keys) && remixdb_figure(s.x, "tables", &tables));
  assert_true(keys >= KEYS - KEYS / 97 && tables >= parts);
  (void)snprintf(copy, sizeof(copy), "%s.copy", dir);
  CHECK(remixdb_checkpoint(s.ref, copy));
  struct xdb_space *const space = remixdb_space_open(s.x, "third", true);
  assert_non_null(space);
  remixdb_space_close(space);
  assert_int_equal(nr_away(s.x), parts);
  store_close(&s);
  store_open(&s, 0);  // CURRENT was written while all were away
  read_all(&s, 0);
  store_close(&s);
  char keep[sizeof(dir)];
  memcpy(keep, dir, sizeof(dir));
  memcpy(dir, copy, sizeof(dir) < sizeof(copy) ? sizeof(dir) : sizeof(copy));
  store_open(&s, 0);
  read_all(&s, 1);
  store_close(&s);
  CHECK(remixdb_destroy(copy));
  memcpy(dir, keep, sizeof(dir));
}

// Descriptors run out in a checkpoint, at each opening of a file in turn. A failed checkpoint leaves no store, also
// where the clean-up fails with it.
static int64_t opens_left = INT64_MAX;

static int few_opens(struct env *e, int at, const char *name, unsigned flags) {
  return opens_left-- > 0 ? real->open(e, at, name, flags) : -EMFILE;
}

static int few_lists(struct env *e, int at, const char *name, bool (*fn)(void *arg, const char *name), void *arg) {
  return opens_left-- > 0 ? real->list(e, at, name, fn, arg) : -EMFILE;
}

static void test_copy_descriptors(void **state) {
  (void)state;
  struct env *const e = counting_env();
  struct remixdb_opts o;
  char copy[sizeof(dir) + 8];
  bool done = false;
  setup_again();
  ops.open = few_opens;
  ops.list = few_lists;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = 0;
  for (int64_t n = 0; !done; n++) {
    struct xdb *x, *y;
    struct xdb_ref *r;
    (void)snprintf(copy, sizeof(copy), "%s.%d", dir, (int)n);
    o.create = true;
    OK(xdb_open(dir, &o, e, &x));
    OK(xdb_ref(x, &r));
    opens_left = n;
    done = remixdb_checkpoint(r, copy);
    opens_left = INT64_MAX;
    o.create = false;
    const enum remixdb_status s = xdb_open(copy, &o, e, &y);
    assert_true((s == REMIXDB_OK) == done && n < 100);
    if (s == REMIXDB_OK) OK(xdb_close(y));
    xdb_unref(r);
    OK(xdb_close(x));
    if (access(copy, F_OK) == 0) assert_true(remixdb_destroy(copy));
  }
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_opening), cmocka_unit_test(test_ways),      cmocka_unit_test(test_work),
      cmocka_unit_test(test_room),    cmocka_unit_test(test_threads),   cmocka_unit_test(test_damaged),
      cmocka_unit_test(test_missing), cmocka_unit_test(test_untouched), cmocka_unit_test(test_quick),
      cmocka_unit_test(test_unread),  cmocka_unit_test(test_long_log),  cmocka_unit_test(test_copy_descriptors),
  };
  return check_seed_end(cmocka_run_group_tests(tests, setup, teardown));
}
