// SPDX-License-Identifier: Apache-2.0
//
// A store that goes on beside a damaged partition that nobody has opened (view/part.h, P5): all calls that do not need
// that partition work, its new data goes into tables, and all of it is there when the damage is undone.
#include "tests/lib/store.h"

#include "remixdb.h"
#include "store/idle.h"
#include "value/set.h"
#include "view/version.h"

#define KEYS 20000u
#define LONG 5000u  // bytes of a value that lies apart

struct state {
  struct xdb *x;
  struct xdb_ref *ref;
  struct xdb_space *space;
  struct xdb_ref *there;    // a ref of the space
  uint32_t told;            // events of damage
  char path[3 * TEMP_DIR];  // the damaged file's
  uint64_t off;             // and the byte
  uint32_t *round;          // model: the number of the last write of each key; 0: none
  bool spaces;              // the damaged partition is of the named space
};

static uint32_t key_of(uint32_t i, char buf[24]) { return (uint32_t)snprintf(buf, 24, "%08u", i); }

static uint32_t value_of(uint32_t i, uint32_t round, uint8_t *buf) {
  const uint32_t len = i % 50 == 3 ? LONG + round : 20 + (i + round) % 80;
  memset(buf, (int)(i + round), len);
  return len;
}

static void listen(void *arg, const char *line) {
  struct state *const s = arg;
  s->told += strstr(line, "cannot be merged any more") != NULL;
}

static void store_open(struct state *s, int workers) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.cache_mb = 1;
  o.memtable_mb = 8;
  o.workers = workers;
  o.logger = listen;
  o.logger_priv = s;
  atomic_store(&version_eager, 0);
  OK(xdb_open(dir, &o, quick_env(), &s->x));
  atomic_store(&version_eager, VERSION_EAGER);
  packs_cannot(s->x->packs);
  shrink(s->x, 256 << 10, 20);
  s->x->compact.young_from = 2;
  s->x->values.full = s->x->compact.values.full = 200000;
  CHECK((s->ref = remixdb_ref(s->x)) && (s->space = remixdb_space_open(s->x, "other", true)));
  CHECK((s->there = remixdb_space_ref(s->space)) != NULL);
}

static void store_close(struct state *s) {
  remixdb_unref(s->there);
  remixdb_space_close(s->space);
  remixdb_unref(s->ref);
  OK(xdb_close(s->x));
}

static struct xdb_ref *ref_of(const struct state *s) { return s->spaces ? s->there : s->ref; }

static void put(struct state *s, uint32_t i, uint32_t round) {
  static uint8_t value[2 * LONG];
  char key[24];
  CHECK(remixdb_put(ref_of(s), key, key_of(i, key), value, value_of(i, round, value)));
  s->round[i] = round;
}

// Tells whether the key can be read. If so, it has its value.
static bool good(struct state *s, struct xdb_ref *ref, uint32_t i) {
  static uint8_t value[2 * LONG], want[2 * LONG];
  char key[24];
  uint32_t len = 0;
  if (!remixdb_getn(ref, key, key_of(i, key), value, sizeof(value), &len)) {
    CHECK(remixdb_errcode() == REMIXDB_CORRUPT && strstr(remixdb_errmsg(), strrchr(s->path, '/')));
    return false;
  }
  CHECK(len == value_of(i, s->round[i], want) && memcmp(value, want, len) == 0);
  return true;
}

static const struct version *tree_of(const struct state *s) {
  return version_tree(xdb_super(s->x)->version, s->spaces ? TREE_SPACES : TREE_UNNAMED);
}

static void flip(const struct state *s) {
  FILE *const f = fopen(s->path, "r+b");
  assert_true(f && fseek(f, (long)s->off, SEEK_SET) == 0);
  const int c = fgetc(f);
  assert_true(fseek(f, -1, SEEK_CUR) == 0 && fputc(c ^ 4, f) != EOF && fclose(f) == 0);
}

// A store whose partitions are away. One of them, with *from_out <= key < *to_out, is about to be damaged.
static void ready(struct state *s, bool spaces, bool table, int workers, uint32_t *from_out, uint32_t *to_out) {
  char name[32];
  setup_again();
  *s = (struct state){.spaces = spaces, .round = calloc(KEYS, sizeof(*s->round))};
  CHECK(s->round);
  store_open(s, 0);
  for (uint32_t i = 0; i < KEYS; i++) put(s, (uint32_t)((uint64_t)i * 7919 % KEYS), 1);
  CHECK(remixdb_put(s->ref, "x", 1, "y", 1) && remixdb_put(s->there, "x", 1, "y", 1) && remixdb_compact(s->ref));
  store_close(s);
  store_open(s, workers);
  const struct version *const tree = tree_of(s);
  CHECK(tree->nr_parts > 5);
  const uint32_t at = tree->nr_parts / 2;
  struct part_files f;
  part_files(tree->parts[at], &f);
  if (table) sst_name(name, f.tables[0].number);
  else remix_name(name, f.remix.number);
  (void)snprintf(s->path, sizeof(s->path), "%s/%s", dir, name);
  s->off = table ? f.tables[0].size - 300 : f.remix.size - 40;
  // anchors may be shorter than keys
  const uint32_t skip = spaces ? NAMES_ID : 0;
  for (uint32_t k = 0; k < 2; k++) {
    const struct kref a = part_anchor(tree->parts[at + k]);
    char digits[9] = "00000000";
    memcpy(digits, a.ptr + skip, a.len - skip);
    *(k ? to_out : from_out) = (uint32_t)strtoul(digits, NULL, 10);
  }
  CHECK(*to_out > *from_out + 100);
}

static const struct part *shut_part(const struct state *s) {
  const struct version *const tree = tree_of(s);
  const struct part *p = NULL;
  for (uint32_t i = 0; i < tree->nr_parts; i++) {
    if (!part_is_shut(tree->parts[i])) continue;
    CHECK(!p);
    p = tree->parts[i];
  }
  return p;
}

// All keys but those of the damaged partition are there.
static void check_all(struct state *s, uint32_t from, uint32_t to, bool damaged) {
  for (uint32_t i = 0; i < KEYS; i++)
    CHECK_SAYS(good(s, ref_of(s), i) == (!damaged || i < from || i >= to), "key %u", i);
}

// An iterator goes through all that is before the partition, and through all that is behind it.
static void check_scans(struct state *s, uint32_t from, uint32_t to) {
  char key[24];
  struct xdb_iter *const it = remixdb_iter_create(ref_of(s));
  uint32_t nr = 0;
  CHECK(it);
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) nr++;
  CHECK(nr == from && remixdb_iter_status(it) == REMIXDB_CORRUPT);
  nr = 0;
  for (remixdb_iter_seek(it, key, key_of(to, key)); remixdb_iter_valid(it); remixdb_iter_skip1(it)) nr++;
  CHECK(nr == KEYS - to + 1 && remixdb_iter_status(it) == REMIXDB_OK);  // and "x"
  nr = 0;
  for (remixdb_iter_seek_last(it); remixdb_iter_valid(it); remixdb_iter_prev(it)) nr++;
  CHECK(nr == KEYS - to + 1 && remixdb_iter_status(it) == REMIXDB_CORRUPT);
  remixdb_iter_destroy(it);
}

// Many memtables are written, and all calls are made that change the store.
static void go_on(struct state *s, uint32_t from, uint32_t to, uint32_t *round) {
  char key[24], other[24];
  for (uint32_t n = 0; n < 3; n++) {
    ++*round;
    for (uint32_t i = 0; i < KEYS; i++)
      if (i % 3 == n || (i % 50 == 3 && i < from)) put(s, (uint32_t)((uint64_t)i * 7919 % KEYS), *round);
    CHECK(remixdb_sync(s->ref) && remixdb_flush(s->ref));
    OK(xdb_wait_idle(s->x));
    CHECK(s->told == 1 && s->x->rounds.error.status == REMIXDB_OK && atomic_load(&s->x->failed) == 0);
    CHECK(wal_segment_bytes(s->x->wal) < 100000 && shut_part(s));
  }
  CHECK(!remixdb_compact(s->ref) && remixdb_errcode() == REMIXDB_CORRUPT);
  CHECK(strstr(remixdb_errmsg(), strrchr(s->path, '/')));
  // a range before the partition, by reference and by tombstones; then one that touches it
  const struct remixdb_range range = {{key, key_of(from, key)}, {other, key_of(to - 1, other)}};
  CHECK(!remixdb_del_range(ref_of(s), &range) && remixdb_errcode() == REMIXDB_CORRUPT);
  CHECK(remixdb_del_range(ref_of(s), &(struct remixdb_range){{NULL, 0}, {key, key_of(from / 2, key)}}));
  ++*round;
  for (uint32_t i = 0; i < from / 2; i++) put(s, i, *round);
  CHECK(remixdb_flush(s->ref));
  idle_garbage(s->x);
  OK(xdb_wait_idle(s->x));
}

static void ingest(struct state *s, uint32_t from, uint32_t to, uint32_t round, bool works) {
  static uint8_t value[2 * LONG];
  char key[24];
  struct xdb_ingest *const g = remixdb_ingest_begin(ref_of(s));
  CHECK(g);
  for (uint32_t i = from; i < to; i++)
    CHECK(remixdb_ingest_put(g, key, key_of(i, key), value, value_of(i, round, value)));
  CHECK_SAYS(remixdb_ingest_commit(g) == works, "%u to %u", from, to);
  if (!works) CHECK(remixdb_errcode() == REMIXDB_CORRUPT && strstr(remixdb_errmsg(), strrchr(s->path, '/')));
  for (uint32_t i = from; i < to && works; i++) s->round[i] = round;
}

// A checkpoint that was just made: it has the damage, too. Where only an index is damaged, a repair finds all keys.
static void check_copy(struct state *s, char *copy, uint32_t from, uint32_t to, bool repair) {
  char keep[sizeof(dir)];
  (void)snprintf(keep, sizeof(keep), "%s", dir);
  (void)snprintf(dir, sizeof(dir), "%s", copy);
  store_open(s, 0);
  check_all(s, from, to, true);
  store_close(s);
  if (repair) {
    CHECK(remixdb_repair(copy));
    store_open(s, 0);
    check_all(s, from, to, false);
    store_close(s);
  }
  CHECK(remixdb_destroy(copy));
  (void)snprintf(dir, sizeof(dir), "%s", keep);
}

static void run(bool spaces, bool table, int workers) {
  struct state s;
  char copy[sizeof(dir)];
  uint32_t from, to, round = 1;
  ready(&s, spaces, table, workers, &from, &to);
  flip(&s);
  struct xdb_snapshot *const snap = remixdb_snapshot(s.ref);
  CHECK(snap);
  go_on(&s, from, to, &round);
  check_all(&s, from, to, true);
  check_scans(&s, from, to);
  ++round;
  ingest(&s, 10, from / 2, round, true);
  ingest(&s, from, from + 50, round, false);
  CHECK(!remixdb_verify(s.ref) && remixdb_errcode() == REMIXDB_CORRUPT);
  (void)snprintf(copy, sizeof(copy), "%.100s.c", dir);
  CHECK(remixdb_checkpoint(s.ref, copy));
  remixdb_snapshot_release(snap);
  store_close(&s);
  check_copy(&s, copy, from, to, !table);
  // opened again, the partition is away, and damaged
  s.told = 0;
  store_open(&s, workers);
  CHECK(!shut_part(&s));
  check_all(&s, from, to, true);
  go_on(&s, from, to, &round);
  check_all(&s, from, to, true);
  // the damage is undone
  flip(&s);
  if (workers) {
    store_close(&s);
    store_open(&s, workers);
  } else {
    for (uint32_t i = from; i < to && table; i += 7) put(&s, i, round);  // the round that opens it may have new data
    CHECK(remixdb_compact(s.ref) && !shut_part(&s));
    for (uint32_t i = 0; i < tree_of(&s)->nr_parts; i++) CHECK(!part_is_unread(tree_of(&s)->parts[i]));
  }
  check_all(&s, from, to, false);
  CHECK(remixdb_compact(s.ref) && remixdb_verify(s.ref));
  check_all(&s, from, to, false);
  store_close(&s);
  free(s.round);
}

static void test_goes_on(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 4; i++) run(i & 1, i & 2, i == 3 ? 2 : 0);
}

// Flips a bit in each sector of a file, but for its end.
static void flip_all(const char *path) {
  FILE *const f = fopen(path, "r+b");
  assert_true(f && fseek(f, 0, SEEK_END) == 0);
  const long size = ftell(f);
  for (long off = 40; off < size; off += 64) {
    assert_true(fseek(f, off, SEEK_SET) == 0);
    const int c = fgetc(f);
    assert_true(fseek(f, -1, SEEK_CUR) == 0 && fputc(c ^ 4, f) != EOF);
  }
  assert_int_equal(fclose(f), 0);
}

static void hurry(struct xdb *x) {
  pthread_mutex_lock(&x->lock);
  x->rounds.failed_ns = 0;
  pthread_mutex_unlock(&x->lock);
}

// The young view of an open partition is damaged, so new data for it goes nowhere. Writes fail while memtables are
// full. They go on when the files are whole again, or when the partition's range is deleted, which does not read it.
static void run_open(bool undo, int workers) {
  struct state s;
  uint32_t from, to, nr = 0, len;
  char key[24], other[24];
  ready(&s, false, true, workers, &from, &to);
  OK(version_ready(xdb_super(s.x)->version, NULL, NULL));
  for (uint32_t i = from; i < to; i += 40) put(&s, i, 2);
  CHECK(remixdb_flush(s.ref));
  const struct part *const p = tree_of(&s)->parts[version_find(tree_of(&s), kref(key, key_of(from, key)))];
  CHECK(part_young(p) && part_young_runs(p) == 1);
  (void)snprintf(s.path, sizeof(s.path), "%s", part_run(p, part_runs(p) - 1)->path);
  flip_all(s.path);
  for (uint32_t i = from; i < to; i += 7) put(&s, i, 3);
  CHECK(!remixdb_flush(s.ref) && remixdb_errcode() == REMIXDB_CORRUPT);
  CHECK(strstr(remixdb_errmsg(), strrchr(s.path, '/')) && s.told == 1);
  static uint8_t value[2 * LONG];
  while (remixdb_put(s.ref, key, key_of(nr, key), value, value_of(nr, 4, value))) {
    s.round[nr] = 4;
    CHECK(++nr < from);
  }
  CHECK(nr > 100 && remixdb_errcode() == REMIXDB_CORRUPT && strstr(remixdb_errmsg(), strrchr(s.path, '/')));
  if (undo) {
    flip_all(s.path);
  } else {
    const struct remixdb_range range = {{key, key_of(from, key)}, {other, key_of(to, other)}};
    CHECK(remixdb_del_range(s.ref, &range));
  }
  hurry(s.x);
  for (uint32_t i = 0; i < from; i++) put(&s, i, 5);
  CHECK(remixdb_flush(s.ref));
  for (uint32_t i = 0; i < KEYS; i++) {
    if (undo || i < from || i >= to) CHECK(good(&s, s.ref, i));
    else CHECK(!remixdb_getn(s.ref, key, key_of(i, key), NULL, 0, &len) && remixdb_errcode() == REMIXDB_NOTFOUND);
  }
  CHECK(remixdb_compact(s.ref) == true && remixdb_verify(s.ref));
  store_close(&s);
  free(s.round);
}

static bool del(struct state *s, uint32_t from, uint32_t to) {
  char key[24], other[24];
  const struct remixdb_range range = {{key, key_of(from, key)}, {other, key_of(to, other)}};
  return remixdb_del_range(ref_of(s), &range);
}

// Scans over the keys from `to` on give all of them. Backward they end at the damaged partition.
static void check_behind(struct state *s, uint32_t to) {
  char key[24];
  struct xdb_iter *const it = remixdb_iter_create(s->ref);
  uint32_t nr = 1;  // "x"
  CHECK(it);
  for (uint32_t i = to; i < KEYS; i++) nr += s->round[i] != 0;
  uint32_t left = nr;
  for (remixdb_iter_seek(it, key, key_of(to, key)); remixdb_iter_valid(it); remixdb_iter_skip1(it)) left--;
  CHECK(left == 0 && remixdb_iter_status(it) == REMIXDB_OK);
  left = nr;
  for (remixdb_iter_seek_last(it); remixdb_iter_valid(it); remixdb_iter_prev(it)) left--;
  CHECK(left == 0 && remixdb_iter_status(it) == REMIXDB_CORRUPT);
  remixdb_iter_destroy(it);
}

// All keys of the partition behind the damaged one go, in one of three ways. The damaged one does not take its range
// over, so the keys that are written there again can be read.
static void empty_behind(struct state *s, uint32_t to, uint32_t way) {
  char key[24], digits[9] = "00000000";
  const struct version *tree = tree_of(s);
  const uint32_t at = version_find(tree, kref(key, key_of(to - 1, key)));
  CHECK(!s->spaces && at + 2 < tree->nr_parts);
  const struct kref end = part_anchor(tree->parts[at + 2]);
  memcpy(digits, end.ptr, end.len);
  const uint32_t behind = (uint32_t)strtoul(digits, NULL, 10);
  s->x->ranges.few = s->x->ranges.most = 100;
  if (way == 0) CHECK(del(s, to, behind));
  for (uint32_t i = to; i < behind && way > 0; i++) CHECK(remixdb_del(s->ref, key, key_of(i, key)));
  CHECK(remixdb_flush(s->ref));
  if (way == 2) CHECK(!remixdb_compact(s->ref) && remixdb_errcode() == REMIXDB_CORRUPT);
  for (uint32_t i = to; i < behind; i++) s->round[i] = 0;
  tree = tree_of(s);
  CHECK(version_find(tree, kref(key, key_of(behind - 1, key))) == at + 1);
  if (way != 1) CHECK(part_is_empty(tree->parts[at + 1]));
  check_behind(s, to);
  for (uint32_t i = to; i < behind; i += 2) put(s, i, 7);
  CHECK(remixdb_flush(s->ref));
  for (uint32_t i = to; i < behind; i += 2) CHECK(good(s, s->ref, i));
  check_behind(s, to);
  for (uint32_t i = to + 1; i < behind; i += 2) put(s, i, 7);
  // the partition that was empty can be deleted, too
  CHECK(del(s, to, behind));
  for (uint32_t i = to; i < behind; i++) put(s, i, 8);
}

// The range of the damaged partition is deleted, as a whole. Then the store has no damage any more. nr: rounds that
// have put tables above the partition. behind: the way of empty_behind; 3: all keys stay.
static void run_deleted(uint32_t nr, bool spaces, uint32_t behind, int workers) {
  struct state s;
  uint32_t from, to, len;
  char key[24];
  ready(&s, spaces, true, workers, &from, &to);
  flip(&s);
  for (uint32_t n = 0; n < nr; n++) {
    for (uint32_t i = 0; i < KEYS; i += 9) put(&s, i, 2 + n);
    CHECK(remixdb_flush(s.ref));
  }
  if (behind < 3) empty_behind(&s, to, behind);
  CHECK((shut_part(&s) != NULL) == (nr > 0));
  for (uint32_t i = from - 40; i < from + 40; i++) put(&s, i, 9);
  CHECK(!del(&s, from - 1, to - 1) && remixdb_errcode() == REMIXDB_CORRUPT);
  CHECK(del(&s, from - 1, to));  // an anchor may be shorter than the least key behind it
  for (uint32_t again = 0; again < 3; again++) {
    for (uint32_t i = 0; i < KEYS; i++) {
      if (i < from - 1 || i >= to || s.round[i] == 10) CHECK_SAYS(good(&s, ref_of(&s), i), "key %u", i);
      else
        CHECK(!remixdb_getn(ref_of(&s), key, key_of(i, key), NULL, 0, &len) && remixdb_errcode() == REMIXDB_NOTFOUND);
    }
    CHECK(!shut_part(&s) && remixdb_verify(s.ref));
    if (again == 0) CHECK(remixdb_compact(s.ref));
    for (uint32_t i = from; i < to && again == 1; i += 3) put(&s, i, 10);
    if (again < 2) store_close(&s);
    if (again < 2) store_open(&s, workers);
  }
  store_close(&s);
  free(s.round);
}

static void test_deleted(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 4; i++) run_deleted(i, i & 1, 3, i == 2);
  for (uint32_t i = 0; i < 6; i++) run_deleted(i / 3 * 2, false, i % 3, 0);
}

static void damage_table(struct state *s, const struct part *p) {
  char name[32];
  struct part_files f;
  part_files(p, &f);
  sst_name(name, f.tables[0].number);
  (void)snprintf(s->path, sizeof(s->path), "%s/%s", dir, name);
  s->off = f.tables[0].size - 300;
  flip(s);
}

static void drop_other(struct state *s) {
  remixdb_unref(s->there);
  remixdb_space_close(s->space);
  s->there = NULL;
  s->space = NULL;
  CHECK(remixdb_space_drop(s->x, "other"));
}

// The first partition of the spaces' tree, or the last one of a space, is damaged. It goes when all of its space is
// deleted, and when its space is dropped. Keys of a later space do not come to lie in it.
static void run_edge(bool last, bool drop) {
  struct state s = {.spaces = true, .round = calloc(KEYS, sizeof(*s.round))};
  char key[24], got[8];
  uint32_t len, at = 0;
  CHECK(s.round);
  setup_again();
  store_open(&s, 0);
  struct xdb_space *b = remixdb_space_open(s.x, "b", true);
  struct xdb_ref *r = remixdb_space_ref(b);
  CHECK(b && r);
  for (uint32_t i = 0; i < KEYS; i++) {
    put(&s, i, 1);
    if (last) CHECK(remixdb_put(r, key, key_of(i, key), key, 8));
  }
  CHECK(remixdb_compact(s.ref));
  remixdb_unref(r);
  remixdb_space_close(b);
  store_close(&s);
  store_open(&s, 0);
  for (uint32_t i = 0; last && i < tree_of(&s)->nr_parts; i++)
    if (names_id_from(part_anchor(tree_of(&s)->parts[i])) == 1) at = i;
  CHECK(at + 1 < tree_of(&s)->nr_parts && (at > 0) == last);
  damage_table(&s, tree_of(&s)->parts[at]);
  CHECK(remixdb_space_drop(s.x, "b") && remixdb_flush(s.ref));
  put(&s, 0, 2);
  CHECK(remixdb_flush(s.ref));
  OK(xdb_wait_idle(s.x));
  CHECK((b = remixdb_space_open(s.x, "c", true)) && (r = remixdb_space_ref(b)));
  for (uint32_t i = 0; i < KEYS; i++) CHECK(remixdb_put(r, key, key_of(i, key), key, 8));
  CHECK(remixdb_flush(s.ref));
  for (uint32_t i = 0; i < KEYS; i++)
    CHECK(remixdb_getn(r, key, key_of(i, key), got, sizeof(got), &len) && len == 8 && memcmp(got, key, len) == 0);
  if (drop) {
    drop_other(&s);
    CHECK(remixdb_put(r, "x", 1, "y", 1) && remixdb_flush(s.ref));
    OK(xdb_wait_idle(s.x));
  } else {
    CHECK(remixdb_del_range(s.there, &(struct remixdb_range){{NULL, 0}, {NULL, 0}}));
    CHECK(!remixdb_getn(s.there, "x", 1, NULL, 0, &len) && remixdb_errcode() == REMIXDB_NOTFOUND);
  }
  for (uint32_t i = 0; i < tree_of(&s)->nr_parts; i++) CHECK(!part_is_away(tree_of(&s)->parts[i]));
  CHECK(remixdb_compact(s.ref) && remixdb_verify(s.ref));
  for (uint32_t i = 0; i < KEYS; i++)
    CHECK(remixdb_getn(r, key, key_of(i, key), got, sizeof(got), &len) && len == 8 && memcmp(got, key, len) == 0);
  remixdb_unref(r);
  remixdb_space_close(b);
  store_close(&s);
  free(s.round);
}

static void test_edges(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 4; i++) run_edge(i & 1, i & 2);
}

static void test_open(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 4; i++) run_open(i & 1, i & 2);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_goes_on),
      cmocka_unit_test(test_open),
      cmocka_unit_test(test_deleted),
      cmocka_unit_test(test_edges),
  };
  return check_seed_end(cmocka_run_group_tests(tests, setup, teardown));
}
