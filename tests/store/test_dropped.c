// SPDX-License-Identifier: Apache-2.0
//
// The room of dropped spaces comes back by itself, also where their keys share partitions and tables with other spaces;
// nothing else is lost. Room is measured by the sizes of the store's files.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "tests/lib/check.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "compact/dropped.h"
#include "store/dropped_ask.h"

#include <errno.h>

#define SPACES 5u
#define APART (64u << 10)  // bytes of a value that is kept apart

static const char *const names[SPACES] = {"a", "b", "c", "d", "e"};

struct world {
  struct xdb *x;
  struct xdb_ref *r;  // a ref of the unnamed space
  struct xdb_ref *refs[SPACES];
  bool there[SPACES];
  uint32_t keys[SPACES], vlen[SPACES];
};

static bool no_cache;  // every read comes from the disk

static struct remixdb_opts options(int workers) {
  struct remixdb_opts o = small_opts(workers);
  if (no_cache) o.cache_mb = 0;
  o.worker_cores = "none";
  o.compression = REMIXDB_COMPRESSION_NONE;
  return o;
}

static void use(struct world *w, struct xdb *x) {
  CHECK(w->x = x);
  CHECK(w->r = remixdb_ref(x));
  for (uint32_t i = 0; i < SPACES; i++) {
    struct xdb_space *const sp = remixdb_space_open(x, names[i], false);
    w->there[i] = sp != NULL;
    w->refs[i] = sp ? remixdb_space_ref(sp) : NULL;
    remixdb_space_close(sp);
  }
}

static void make(struct world *w, uint32_t i) {
  struct xdb_space *const sp = remixdb_space_open(w->x, names[i], true);
  CHECK(sp && (w->refs[i] = remixdb_space_ref(sp)));
  remixdb_space_close(sp);
  w->there[i] = true;
}

static void leave(struct world *w) {
  for (uint32_t i = 0; i < SPACES; i++) remixdb_unref(w->refs[i]);
  remixdb_unref(w->r);
  remixdb_close(w->x);
}

static void world_open(struct world *w, int workers) {
  const struct remixdb_opts o = options(workers);
  use(w, quick_open(&o));
}

static void world_init(struct world *w, int workers) {
  memset(w, 0, sizeof(*w));
  setup_again();
  world_open(w, workers);
  shrink(w->x, (size_t)400 << 10, 16);
  for (uint32_t i = 0; i < SPACES; i++) make(w, i);
}

static void value_of(uint32_t space, uint32_t key, uint8_t *buf, uint32_t len) {
  uint64_t rng = (uint64_t)space << 32 | key;
  for (uint32_t i = 0; i < len; i++) buf[i] = (uint8_t)(i % 64 ? buf[i - 1] + 1u : rng_next(&rng));
}

static void fill(struct world *w, uint32_t i, uint32_t from, uint32_t to, uint32_t vlen) {
  uint8_t *const v = malloc(vlen);
  for (uint32_t k = from; k < to; k++) {
    char key[16];
    (void)snprintf(key, sizeof(key), "%08u", k);
    value_of(i, k, v, vlen);
    CHECK(remixdb_put(w->refs[i], key, 8, v, vlen));
  }
  free(v);
  if (to > w->keys[i]) w->keys[i] = to;
  w->vlen[i] = vlen;
}

static void check_space(struct xdb_ref *r, uint32_t i, uint32_t keys, uint32_t vlen) {
  uint8_t *const want = malloc(vlen + 1), *const buf = malloc(vlen + 1);
  struct xdb_iter *const it = remixdb_iter_create(r);
  remixdb_iter_seek(it, NULL, 0);
  for (uint32_t k = 0; k < keys; k++, remixdb_iter_skip1(it)) {
    char key[16];
    uint32_t len = 0, klen = 0, vl = 0;
    (void)snprintf(key, sizeof(key), "%08u", k);
    value_of(i, k, want, vlen);
    CHECK(remixdb_getn(r, key, 8, buf, vlen, &len) && len == vlen && memcmp(buf, want, vlen) == 0);
    CHECK(remixdb_iter_valid(it));
    const void *const kp = remixdb_iter_key(it, &klen);
    CHECK(kp && klen == 8 && memcmp(kp, key, 8) == 0);
    const void *const vp = remixdb_iter_value(it, &vl);
    CHECK(vp && vl == vlen && memcmp(vp, want, vlen) == 0);
  }
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
  free(want);
  free(buf);
}

static void check_all(struct world *w) {
  for (uint32_t i = 0; i < SPACES; i++)
    if (w->there[i]) check_space(w->refs[i], i, w->keys[i], w->vlen[i]);
  CHECK(remixdb_verify(w->r));
}

static void drop(struct world *w, uint32_t i) {
  CHECK(remixdb_space_drop(w->x, names[i]));
  remixdb_unref(w->refs[i]);
  w->refs[i] = NULL;
  w->there[i] = false;
  w->keys[i] = 0;
}

// Waits until nothing of a dropped space is left in tables.
static void settle(struct world *w) {
  for (uint32_t n = 0;; n++) {
    OK(xdb_wait_idle(w->x));
    if (!atomic_load(&w->x->dropped.asked) && stat_of(w->x, "dropped_bytes") == 0) break;
    CHECK_SAYS(n < 60000, "%llu bytes are left", (unsigned long long)stat_of(w->x, "dropped_bytes"));
    (void)usleep(1000);
  }
  OK(xdb_wait_idle(w->x));
}

// Bytes of tables, REMIX files and value files.
static uint64_t room_of(const char *path) {
  struct files_entry *list;
  size_t nr;
  uint64_t sum = 0;
  OK(paths_files(env_posix(), path, &list, &nr));
  for (size_t i = 0; i < nr; i++) {
    char name[600];
    struct stat st;
    const enum files_kind kind = files_kind_of(list[i].name, NULL);
    if (!files_holds_data(kind) || kind == FILES_IS_LOG) continue;
    (void)snprintf(name, sizeof(name), "%s/%s", path, list[i].name);
    if (stat(name, &st) == 0) sum += (uint64_t)st.st_blocks * 512;
  }
  mem_free(list);
  return sum;
}

static uint64_t room(void) { return room_of(dir); }

// ---- the ways

// All spaces share one partition, and most tables have keys of all of them. No end of a table tells that c is gone.
static void run_mixed(int workers, uint32_t vlen, bool crash) {
  struct world w;
  world_init(&w, workers);
  for (uint32_t part = 0; part < 3; part++)
    for (uint32_t i = 0; i < SPACES; i++) fill(&w, i, part * 40, part * 40 + 40, i == 2 ? vlen : 100);
  CHECK(remixdb_flush(w.r));
  const uint64_t before = room(), took = (uint64_t)120 * vlen;
  CHECK(before > took);
  drop(&w, 2);
  if (crash) {
    w.x->leave_log = true;
    leave(&w);
    atomic_store(&version_eager, vlen & 1 ? 0 : VERSION_EAGER);
    world_open(&w, workers);
    atomic_store(&version_eager, VERSION_EAGER);
  }
  settle(&w);
  CHECK_SAYS(room() < before - took + took / 8, "%llu of %llu", (unsigned long long)room(), (unsigned long long)before);
  CHECK(stat_of(w.x, "dropped_merges") > 0 || crash);
  check_all(&w);
  // once is enough
  const uint64_t merged = stat_of(w.x, "dropped_merges"), rounds = stat_of(w.x, "rounds");
  for (uint32_t n = 0; n < 5; n++) dropped_ask(w.x);
  settle(&w);
  CHECK(stat_of(w.x, "dropped_merges") == merged && stat_of(w.x, "rounds") == rounds);
  // keys that were in the memtable when their space was dropped
  fill(&w, 3, 0, 60, vlen);
  const uint64_t with = room();
  drop(&w, 3);
  fill(&w, 0, 0, 10, 100);
  CHECK(remixdb_flush(w.r));
  settle(&w);
  CHECK(room() < with + with / 8);
  check_all(&w);
  leave(&w);
}

static void test_mixed(void **state) {
  (void)state;
  for (int workers = 0; workers <= 2; workers += 2) {
    run_mixed(workers, 2000, false);
    run_mixed(workers, APART, false);
    run_mixed(workers, APART, true);
    run_mixed(workers, APART + 1, true);
  }
}

// Tables of the dropped space only, in one partition with others: they leave, and no table is merged.
static void run_tables(int workers) {
  struct world w;
  world_init(&w, workers);
  shrink(w.x, (size_t)400 << 10, 128);
  w.x->compact.young_from = 0;
  for (uint32_t part = 0; part < 2; part++) {
    for (uint32_t i = SPACES; i-- > 0;) {  // keys behind all others would make new partitions
      fill(&w, i, part * 80, part * 80 + 80, 1000);
      CHECK(remixdb_flush(w.r));
    }
  }
  CHECK(stat_of(w.x, "partitions") == 2);
  const uint64_t before = room(), read = stat_of(w.x, "read_bytes"), tables = stat_of(w.x, "tables"),
                 merged = atomic_load(&w.x->compact.stats.read_bytes);
  drop(&w, 1);
  drop(&w, 3);
  settle(&w);
  CHECK(stat_of(w.x, "dropped_tables") == 4 && stat_of(w.x, "dropped_merges") == 0);
  CHECK(stat_of(w.x, "tables") == tables - 4 && atomic_load(&w.x->compact.stats.read_bytes) == merged);
  CHECK(stat_of(w.x, "read_bytes") < read + 40000);  // a few keys; the tables have 80,000 bytes each
  CHECK(room() < before - (uint64_t)300 * 1000);
  check_all(&w);
  leave(&w);
  world_open(&w, workers);
  check_all(&w);
  leave(&w);
}

static void test_tables(void **state) {
  (void)state;
  run_tables(0);
  run_tables(2);
}

// A tiny space beside a large one, made and dropped again and again: no round writes the large one again for it, also
// where the large one has values apart. A merge comes when values apart of dropped spaces are worth it.
static void run_tiny(bool apart) {
  struct world w;
  world_init(&w, 0);
  shrink(w.x, (size_t)1 << 20, 1024);
  fill(&w, 0, 0, 4000, 500);
  if (apart) fill(&w, 1, 0, 8, APART);
  CHECK(remixdb_compact(w.r) && stat_of(w.x, "partitions") <= 3);
  const uint64_t begun = stat_of(w.x, "table_bytes_written"), all = stat_of(w.x, "table_bytes");
  CHECK(all > 2000000);
  drop(&w, 4);
  for (uint32_t q = 0; q < 5; q++) {
    make(&w, 4);
    fill(&w, 4, 0, 4, 100);
    fill(&w, 0, q, q + 4, 500);
    CHECK(remixdb_flush(w.r));
    drop(&w, 4);
    OK(xdb_wait_idle(w.x));
  }
  CHECK(stat_of(w.x, "dropped_merges") == 0 && stat_of(w.x, "dropped_bytes") > 0);
  CHECK_SAYS(stat_of(w.x, "table_bytes_written") - begun < all / 2, "%llu of %llu",
             (unsigned long long)(stat_of(w.x, "table_bytes_written") - begun), (unsigned long long)all);
  check_all(&w);
  make(&w, 4);
  fill(&w, 4, 0, 2, APART);
  fill(&w, 0, 0, 4, 500);
  CHECK(remixdb_flush(w.r));
  const uint64_t before = room();
  drop(&w, 4);
  settle(&w);
  CHECK(stat_of(w.x, "dropped_merges") > 0 && room() < before - APART);
  check_all(&w);
  leave(&w);
}

static void test_tiny(void **state) {
  (void)state;
  run_tiny(false);
  run_tiny(true);
}

// Snapshots and iterators from before the drop read on. Their files go when they end.
static void test_readers(void **state) {
  (void)state;
  for (int workers = 0; workers <= 2; workers += 2) {
    struct world w;
    world_init(&w, workers);
    for (uint32_t i = 0; i < SPACES; i++) fill(&w, i, 0, 60, i == 2 ? APART : 500);
    CHECK(remixdb_flush(w.r));
    const uint64_t before = room(), took = (uint64_t)60 * APART;
    struct xdb_space *const sp = remixdb_space_open(w.x, names[2], false);
    struct xdb_snapshot *const snap = remixdb_snapshot(w.r);
    struct xdb_ref *const old = remixdb_snapshot_space_ref(snap, sp);
    struct xdb_iter *const it = remixdb_iter_create(w.refs[2]);
    remixdb_iter_seek(it, NULL, 0);
    CHECK(old && remixdb_iter_valid(it));
    CHECK(remixdb_space_drop(w.x, names[2]));
    settle(&w);
    CHECK(room() > before - took / 8);
    check_space(old, 2, 60, APART);
    uint32_t n = 1;
    for (remixdb_iter_skip1(it); remixdb_iter_valid(it); remixdb_iter_skip1(it)) n++;
    CHECK(n == 60);
    remixdb_iter_destroy(it);
    remixdb_unref(old);
    remixdb_snapshot_release(snap);
    remixdb_space_close(sp);
    remixdb_unref(w.refs[2]);
    w.refs[2] = NULL;
    w.there[2] = false;
    OK(xdb_wait_idle(w.x));
    CHECK(room() < before - took + took / 8);
    check_all(&w);
    leave(&w);
  }
}

// Writers fill one memtable after the other, so that no merge of its own has the time.
static void test_writers(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  for (uint32_t i = 0; i < SPACES; i++) fill(&w, i, 0, 300, 1000);
  CHECK(remixdb_flush(w.r));
  const uint64_t before = room();
  drop(&w, 1);
  drop(&w, 2);
  uint8_t v[1000];
  value_of(9, 9, v, sizeof(v));
  for (uint32_t k = 0; stat_of(w.x, "dropped_bytes") || atomic_load(&w.x->dropped.asked); k++) {
    char key[16];
    (void)snprintf(key, sizeof(key), "%08u", k % 500);
    CHECK(k < 2000000 && remixdb_put(w.r, key, 8, v, sizeof(v)));
  }
  settle(&w);
  CHECK(remixdb_compact(w.r));
  OK(xdb_wait_idle(w.x));
  CHECK(room() < before + (uint64_t)600 * 1100 - (uint64_t)600 * 950);
  check_all(&w);
  leave(&w);
}

// A round of a memtable makes the merge that was given up too often.
static void test_given_up(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  for (uint32_t i = 0; i < SPACES; i++) fill(&w, i, 0, 100, 100);
  CHECK(remixdb_flush(w.r));
  xdb_lock(w.x);
  w.x->scan_merges.ending = true;  // no merge of its own may begin
  xdb_unlock(w.x);
  drop(&w, 2);
  do OK(xdb_wait_idle(w.x));
  while (atomic_load(&w.x->dropped.asked));
  struct compact_dropped found;
  OK(compact_dropped_find(&w.x->compact, &w.r->slot, xdb_super(w.x)->version, &found));
  CHECK(found.due == 1 && !found.parts && !found.tables && !found.apart);
  CHECK(stat_of(w.x, "dropped_bytes") > 0 && stat_of(w.x, "dropped_merges") == 0);
  atomic_store(&w.x->compact.dropped_too, true);
  CHECK(remixdb_put(w.r, "k", 1, "v", 1) && remixdb_flush(w.r));
  CHECK(stat_of(w.x, "dropped_bytes") == 0 && stat_of(w.x, "dropped_merges") == 1);
  check_all(&w);
  leave(&w);
}

// The partitions of an opened store are away: those of other spaces only stay so.
static void test_away(void **state) {
  (void)state;
  const uint64_t eager = atomic_load(&version_eager);
  for (uint32_t gone = 0; gone < SPACES; gone++) {
    for (int workers = 0; workers <= 2; workers += 2) {
      struct world w;
      world_init(&w, workers);
      for (uint32_t i = 0; i < SPACES; i++) fill(&w, i, 0, 600, 1000);
      CHECK(remixdb_compact(w.r));
      leave(&w);
      const uint64_t before = room();
      atomic_store(&version_eager, 0);
      world_open(&w, workers);
      const struct version *tree = xdb_super(w.x)->version->spaces;
      uint32_t away = 0;
      CHECK(tree->nr_parts > 2 * SPACES);
      for (uint32_t i = 0; i < tree->nr_parts; i++) away += part_is_away(tree->parts[i]);
      CHECK(away == tree->nr_parts);
      drop(&w, gone);
      settle(&w);
      CHECK(room() < before - (uint64_t)550 * 1000);
      tree = xdb_super(w.x)->version->spaces;
      away = 0;
      for (uint32_t i = 0; i < tree->nr_parts; i++) away += part_is_away(tree->parts[i]);
      CHECK(away > SPACES || stat_of(w.x, "dropped_merges"));  // a merge opens all
      check_all(&w);
      leave(&w);
      atomic_store(&version_eager, eager);
    }
  }
}

// ---- spaces of which little is left

#define MANY 40u

static struct xdb_ref *many_ref(struct world *w, uint32_t i) {
  char name[16];
  (void)snprintf(name, sizeof(name), "many %02u", i);
  struct xdb_space *const sp = remixdb_space_open(w->x, name, true);
  struct xdb_ref *const r = sp ? remixdb_space_ref(sp) : NULL;
  CHECK(r);
  remixdb_space_close(sp);
  return r;
}

// Many spaces, each with records [0, 60), and then with [0, 2) only.
static void fill_many(struct world *w) {
  uint8_t v[1000];
  for (uint32_t i = 0; i < MANY; i++) {
    struct xdb_ref *const r = many_ref(w, i);
    for (uint32_t k = 0; k < 60; k++) {
      char key[16];
      (void)snprintf(key, sizeof(key), "%08u", k);
      value_of(i, k, v, sizeof(v));
      CHECK(remixdb_put(r, key, 8, v, sizeof(v)));
    }
    remixdb_unref(r);
  }
  CHECK(remixdb_flush(w->r));
  for (uint32_t i = 0; i < MANY; i++) {
    struct xdb_ref *const r = many_ref(w, i);
    const struct remixdb_range most = {{"00000002", 8}, {"9", 1}};
    CHECK(remixdb_del_range(r, &most));
    remixdb_unref(r);
  }
}

// Rounds of a few records of the unnamed space, until nothing is left to join.
static void settle_many(struct world *w) {
  uint64_t before = UINT64_MAX;
  for (uint32_t n = 0; n < 50; n++) {
    CHECK(remixdb_put(w->r, "k", 1, "v", 1) && remixdb_flush(w->r));
    const uint64_t now = xdb_super(w->x)->version->spaces->nr_parts;
    if (now == before) return;
    before = now;
  }
  CHECK(!"the joins come to an end");
}

// The number of partitions follows what lives, not the number of spaces: what is left of many is in one partition. All
// can be dropped one by one, and the others stay.
static void test_joined(void **state) {
  (void)state;
  for (int workers = 0; workers <= 2; workers += 2) {
    struct world w;
    world_init(&w, workers);
    fill_many(&w);
    settle_many(&w);
    const uint32_t parts = xdb_super(w.x)->version->spaces->nr_parts;
    CHECK_SAYS(parts <= 4 && stat_of(w.x, "joined") + stat_of(w.x, "emptied") > 8, "%u partitions", parts);
    for (uint32_t gone = 0; gone < MANY; gone += 13) {
      char name[16];
      (void)snprintf(name, sizeof(name), "many %02u", gone);
      CHECK(remixdb_space_drop(w.x, name));
      settle(&w);
      CHECK(stat_of(w.x, "dropped_bytes") == 0);
    }
    for (uint32_t i = 0; i < MANY; i++) {
      struct xdb_ref *const r = many_ref(&w, i);
      check_space(r, i, i % 13 ? 2 : 0, 1000);
      remixdb_unref(r);
    }
    CHECK(remixdb_verify(w.r));
    leave(&w);
  }
}

static void damage_all(const struct sst *t) {
  FILE *const f = fopen(t->path, "r+b");
  CHECK(f);
  for (uint32_t p = 0; p < t->nr_pages; p++) {
    const long off = (long)(t->base + (uint64_t)p * BLOCK_PAGE) + 40;
    CHECK(fseek(f, off, SEEK_SET) == 0);
    const int c = fgetc(f);
    CHECK(c != EOF && fseek(f, off, SEEK_SET) == 0 && fputc(c ^ 1, f) != EOF);
  }
  CHECK(fclose(f) == 0);
}

// A table of a space is damaged, where partitions of spaces are to be joined. The store takes writes all the same, of
// the space, too, and all other records are there.
static void test_damaged(void **state) {
  (void)state;
  no_cache = true;  // merges that come before the damage may bring blocks of the table into a cache
  for (int workers = 0; workers <= 2; workers += 2) {
    struct world w;
    world_init(&w, workers);
    w.x->compact.join = 0;
    fill_many(&w);
    CHECK(remixdb_flush(w.r));
    const struct version *const tree = xdb_super(w.x)->version->spaces;
    CHECK(tree->nr_parts > 16);
    damage_all(part_run(tree->parts[tree->nr_parts / 2], 0));
    const uint64_t was = stat_of(w.x, "joined");
    w.x->compact.join = COMPACT_JOIN;
    settle_many(&w);
    CHECK(stat_of(w.x, "joined") > was + 4 && stat_of(w.x, "failed") == 1);
    uint32_t lost = 0;
    for (uint32_t i = 0; i < MANY; i++) {
      struct xdb_ref *const r = many_ref(&w, i);
      for (uint32_t k = 0; k < 2; k++) {
        char key[16];
        uint8_t v[1000], want[1000];
        (void)snprintf(key, sizeof(key), "%08u", k);
        value_of(i, k, want, sizeof(want));
        if (remixdb_getn(r, key, 8, v, sizeof(v), NULL)) CHECK(memcmp(v, want, sizeof(want)) == 0);
        else {
          CHECK(remixdb_errcode() == REMIXDB_CORRUPT);
          lost++;
        }
      }
      CHECK(remixdb_put(r, "zz", 2, "new", 3));
      remixdb_unref(r);
    }
    CHECK_SAYS(lost > 0 && lost <= 8, "%u", lost);
    leave(&w);
  }
  no_cache = false;
}

// The partition with the first key of a space. It is alive until the next round.
static struct part *part_with(struct world *w, uint32_t i, const char **name_out) {
  const struct version *const v = xdb_super(w->x)->version;
  const struct names_entry *const e = names_find(v->names, names[i], strlen(names[i]));
  uint8_t key[NAMES_ID + 8];
  CHECK(e);
  names_id_put(key, e->id);
  memcpy(key + NAMES_ID, "00000000", 8);
  struct part *const p = v->spaces->parts[version_find(v->spaces, kref(key, sizeof(key)))];
  for (uint32_t r = 0; r < part_runs(p); r++) {
    const struct sst *const t = part_run(p, r);
    if (kv_cmp(t->min, kref(key, sizeof(key))) <= 0 && kv_cmp(t->max, kref(key, sizeof(key))) >= 0)
      *name_out = strrchr(t->path, '/') + 1;
  }
  return p;
}

// A table with keys of a dropped space cannot be read for a time. The room of another dropped space comes back all the
// same, and that of the first one when the table can be read.
static void test_reads_fail(void **state) {
  (void)state;
  static const uint32_t keys[SPACES] = {330, 10, 300, 10, 300};
  struct world w = {0};
  struct xdb *x;
  struct simdisk *const d = simdisk_create();
  no_cache = true;
  const struct remixdb_opts o = options(0);
  simdisk_no_punch(d, true);  // a table is a file of its own
  OK(xdb_open("/store", &o, simdisk_env(d), &x));
  use(&w, x);
  shrink(x, (size_t)400 << 10, 16);
  x->compact.join = 0;
  for (uint32_t i = 0; i < SPACES; i++) make(&w, i);
  for (uint32_t i = 0; i < SPACES; i++) fill(&w, i, 0, keys[i], 1000);
  CHECK(remixdb_flush(w.r));
  const char *name = NULL, *other = NULL;
  char bad[32];
  struct part *const p = part_with(&w, 1, &name);
  CHECK(name && p != part_with(&w, 3, &other) && other);
  (void)snprintf(bad, sizeof(bad), "%s", name);
  part_ref(p);
  simdisk_fault_name(d, bad);
  simdisk_fault(d, SIMDISK_READ, 0, UINT64_MAX, EIO);
  const uint64_t began = time_ns();
  drop(&w, 1);
  CHECK(stat_of(x, "dropped_merges") == 0 && part_is_left(p, began) && !part_is_left(p, UINT64_MAX - 1));
  CHECK(atomic_load(&x->dropped.again_ns) > began);
  atomic_store(&p->unread_ns, UINT64_MAX / 2);  // the time does not come while the test goes on
  drop(&w, 3);
  CHECK(stat_of(x, "dropped_merges") == 1 && stat_of(x, "failed") == 0);
  CHECK(part_dropped(p, xdb_super(x)->version->names) == PART_UNKNOWN && atomic_load(&p->failed_reads) == 1);
  simdisk_fault(d, SIMDISK_READ, 0, 0, 0);
  check_all(&w);
  dropped_ask(x);  // the time has not come
  CHECK(stat_of(x, "dropped_merges") == 1 && atomic_load(&x->dropped.again_ns) > 0);
  atomic_store(&p->unread_ns, 1);
  dropped_ask(x);
  CHECK(stat_of(x, "dropped_merges") == 2 && stat_of(x, "dropped_bytes") == 0);
  check_all(&w);
  part_unref(p);
  leave(&w);
  simdisk_destroy(d);
  no_cache = false;
}

// The number of a table of the unnamed space, as the beginning of its file's name.
static void unnamed_table(struct xdb *x, char *name) {
  struct part_files f;
  part_files(xdb_super(x)->version->parts[0], &f);
  CHECK(f.nr > 0);
  sst_name(name, f.tables[0].number);
}

// A partition of the unnamed space cannot be opened, and may refer to any value file. A dropped space leaves all the
// same. Its value files go when the partition can be opened.
static void test_values_stay(void **state) {
  (void)state;
  struct world w = {0};
  struct xdb *x;
  struct simdisk *const d = simdisk_create();
  const struct remixdb_opts o = options(0);
  char name[32];
  OK(xdb_open("/store", &o, simdisk_env(d), &x));
  use(&w, x);
  packs_cannot(x->packs);
  make(&w, 1);
  fill(&w, 1, 0, 60, APART);
  CHECK(remixdb_put(w.r, "k", 1, "v", 1) && remixdb_flush(w.r));
  leave(&w);
  atomic_store(&version_eager, 0);
  OK(xdb_open("/store", &o, simdisk_env(d), &x));
  atomic_store(&version_eager, VERSION_EAGER);
  use(&w, x);
  unnamed_table(x, name);
  const uint64_t before = simdisk_used(d), took = (uint64_t)60 * APART;
  simdisk_fault_name(d, name);
  simdisk_fault(d, SIMDISK_READ, 0, UINT64_MAX, EIO);
  const uint64_t began = time_ns();
  drop(&w, 1);
  CHECK(version_is_empty(xdb_super(x)->version->spaces));
  CHECK(simdisk_used(d) > before - took / 8 && atomic_load(&x->dropped.again_ns) > began);
  dropped_ask(x);
  CHECK(simdisk_used(d) > before - took / 8);
  simdisk_fault(d, SIMDISK_READ, 0, 0, 0);
  dropped_ask(x);
  CHECK(simdisk_used(d) < before - took + took / 8);
  const uint64_t number = xdb_super(x)->version->number;
  dropped_ask(x);
  CHECK(xdb_super(x)->version->number == number && remixdb_probe(w.r, "k", 1));
  check_all(&w);
  leave(&w);
  simdisk_destroy(d);
}

// Two partitions of the spaces' tree, each with tables of all spaces and then with one of each of its spaces alone.
static void fill_two(struct world *w, struct simdisk *d) {
  const struct remixdb_opts o = options(0);
  struct xdb *x;
  memset(w, 0, sizeof(*w));
  OK(xdb_open("/store", &o, simdisk_env(d), &x));
  use(w, x);
  packs_cannot(x->packs);
  shrink(x, (size_t)400 << 10, 16);
  x->compact.join = 0;
  x->compact.young_from = 0;
  for (uint32_t i = 0; i < SPACES; i++) make(w, i);
  for (uint32_t i = 0; i < SPACES; i++) fill(w, i, 0, 40, 1000);
  CHECK(remixdb_compact(w->r));
  x->compact.build.max_pages = 128;
  for (uint32_t i = SPACES; i-- > 0;) {
    fill(w, i, 40, 80, 1000);
    CHECK(remixdb_flush(w->r));
  }
  CHECK(xdb_super(x)->version->spaces->nr_parts == 2);
}

// Flips bits in all blocks and compressed keys of the partition's tables; the next call flips them back.
static void damage_part(struct simdisk *d, const struct part *p) {
  for (uint32_t r = 0; r < part_runs(p); r++) {
    const struct sst *const t = part_run(p, r);
    for (uint64_t off = 40; off < (uint64_t)t->nr_pages * BLOCK_PAGE; off += 512)
      CHECK(simdisk_flip(d, t->path, t->base + off, 1));
    for (uint64_t off = 0; off < t->ckb_len; off += 64) CHECK(simdisk_flip(d, t->path, t->base + t->ckb_off + off, 1));
  }
}

// Tables leave a partition, although they cannot leave a damaged one before it.
static void test_tables_damaged(void **state) {
  (void)state;
  struct world w;
  struct simdisk *const d = simdisk_create();
  no_cache = true;
  fill_two(&w, d);
  struct part *const p = xdb_super(w.x)->version->spaces->parts[0];
  part_ref(p);
  damage_part(d, p);
  drop(&w, 1);
  CHECK(stat_of(w.x, "dropped_tables") == 0 && part_unread_ns(p) == PART_DAMAGED);
  drop(&w, 3);
  const struct version *const v = xdb_super(w.x)->version;
  CHECK(stat_of(w.x, "dropped_tables") == 1 && v->spaces->parts[0] == p);
  CHECK(part_dropped(p, v->names) == PART_STUCK);
  for (uint32_t r = 0; r < part_runs(v->spaces->parts[1]); r++)
    CHECK(!table_is_dropped(part_run(v->spaces->parts[1], r), v->names));
  CHECK(stat_of(w.x, "dropped_bytes") > 0);
  fill(&w, 4, 80, 85, 1000);
  w.x->compact.young_from = 1;
  fill(&w, 0, 80, 85, 1000);
  CHECK(remixdb_flush(w.r));
  CHECK(xdb_super(w.x)->version->spaces->parts[0] != p);
  damage_part(d, p);
  check_all(&w);
  CHECK(remixdb_compact(w.r));
  CHECK(stat_of(w.x, "dropped_bytes") == 0);
  check_all(&w);
  part_unref(p);
  leave(&w);
  simdisk_destroy(d);
  no_cache = false;
}

// Makes the store of fill_two and drops these spaces, while `many` reads fail from the nth one on. damaged: merges have
// found damage in the first partition before. Returns whether a read has failed.
static bool drop_unread(struct world *w, struct simdisk *d, uint64_t n, uint64_t many, bool damaged, uint32_t nr) {
  fill_two(w, d);
  if (damaged) (void)part_set_unread(xdb_super(w->x)->version->spaces->parts[0], REMIXDB_CORRUPT);
  const uint64_t before = simdisk_calls(d, SIMDISK_READ);
  simdisk_fault(d, SIMDISK_READ, n, many, EIO);
  for (uint32_t i = 0; i < nr; i++) drop(w, 1 + 2 * i);
  const bool hit = simdisk_calls(d, SIMDISK_READ) > before + n;
  simdisk_fault(d, SIMDISK_READ, 0, 0, 0);
  return hit;
}

static void end_unread(struct world *w, struct simdisk *d) {
  check_all(w);
  leave(w);
  simdisk_destroy(d);
}

// The nth read fails while a space is dropped. The room of the space comes back when its time has come.
static void test_tables_reads(void **state) {
  (void)state;
  uint32_t failed = 0;
  bool hit = true;
  no_cache = true;
  for (uint64_t n = 0; hit; n++) {
    struct world w;
    struct simdisk *const d = simdisk_create();
    hit = drop_unread(&w, d, n, 1, false, 1);
    const struct version *const v = xdb_super(w.x)->version;
    for (uint32_t i = 0; i < v->spaces->nr_parts; i++) {
      struct part *const p = v->spaces->parts[i];
      failed += part_is_unread(p);
      CHECK(part_unread_ns(p) != PART_DAMAGED);
      atomic_store(&p->unread_ns, 0);
    }
    dropped_ask(w.x);
    CHECK_SAYS(stat_of(w.x, "dropped_bytes") == 0, "%llu", (unsigned long long)n);
    CHECK(stat_of(w.x, "dropped_tables") == 1);
    end_unread(&w, d);
  }
  CHECK(failed > 3);
  no_cache = false;
}

// All reads fail from the nth one on, where merges have found damage. The look for dropped spaces ends all the same. A
// partition that is made from one that is stuck is stuck, too.
static void test_tables_reads_damaged(void **state) {
  (void)state;
  uint32_t stuck = 0;
  bool hit = true;
  no_cache = true;
  for (uint64_t n = 0; hit; n++) {
    struct world w;
    struct simdisk *const d = simdisk_create();
    hit = drop_unread(&w, d, n, UINT64_MAX, true, 2);
    const struct version *const v = xdb_super(w.x)->version;
    const struct part *const p = v->spaces->parts[0];
    if (part_unread_ns(p) == PART_DAMAGED) CHECK(part_dropped(p, v->names) != PART_UNKNOWN);
    if (part_dropped(p, v->names) == PART_STUCK) {
      struct part *made;
      OK(part_create(part_anchor(p), NULL, NULL, &made));
      part_inherit(made, p);
      CHECK(part_dropped(made, v->names) == PART_STUCK && part_unread_ns(made) == PART_DAMAGED);
      part_unref(made);
      stuck++;
    }
    end_unread(&w, d);
  }
  CHECK(stuck > 0);
  no_cache = false;
}

// ---- power cuts and a full disk

// Fills three spaces on the disk, drops the one in the middle, and one at the end.
static bool script(struct env *env, const struct remixdb_opts *o, uint32_t *drops) {
  struct world w = {0};
  struct xdb *x;
  *drops = 0;
  if (xdb_open("/store", o, env, &x) != REMIXDB_OK) return false;
  use(&w, x);
  bool ok = true;
  uint8_t v[40000];
  for (uint32_t i = 0; i < 3 && ok; i++) {
    struct xdb_space *const sp = remixdb_space_open(x, names[i], true);
    ok = sp && (w.refs[i] = remixdb_space_ref(sp));
    remixdb_space_close(sp);
  }
  for (uint32_t k = 0; k < 6 && ok; k++) {
    char key[16];
    (void)snprintf(key, sizeof(key), "%08u", k);
    for (uint32_t i = 0; i < 3 && ok; i++) {
      const uint32_t len = i == 1 ? sizeof(v) : 200;
      value_of(i, k, v, len);
      ok = remixdb_put(w.refs[i], key, 8, v, len);
    }
    if (k % 2) ok = ok && remixdb_flush(w.r);
  }
  for (uint32_t i = 1; i < 3 && ok; i++) {
    ok = remixdb_space_drop(x, names[i]);
    *drops += ok;
  }
  leave(&w);
  return ok;
}

// The store opens, has what it must have, and after the opening nothing of a dropped space is left.
static void check_after(struct env *env, struct simdisk *d, const struct remixdb_opts *o, uint32_t drops) {
  struct world w = {0};
  struct xdb *x;
  OK(xdb_open("/store", o, env, &x));
  use(&w, x);
  const bool whole = drops > 0;
  CHECK(!whole || (w.there[0] && !w.there[1]));
  CHECK(drops < 2 || !w.there[2]);
  if (whole) check_space(w.refs[0], 0, 6, 200);
  if (whole && w.there[2]) check_space(w.refs[2], 2, 6, 200);
  CHECK(remixdb_verify(w.r));
  CHECK(stat_of(x, "dropped_bytes") == 0);
  if (whole) {
    CHECK(remixdb_flush(w.r));
    CHECK_SAYS(simdisk_used(d) < 200000, "%llu bytes", (unsigned long long)simdisk_used(d));
  }
  leave(&w);
}

static void test_cuts(void **state) {
  (void)state;
  struct remixdb_opts o = options(0);
  o.wal_mb = 1;
  uint32_t cuts = 0, drops = 0, seen = 0;
  bool ok = false;
  for (uint64_t at = 40; !ok; at++) {
    for (uint64_t outcome = 0; outcome < 2; outcome++, cuts++) {
      struct simdisk *const d = simdisk_create();
      simdisk_no_allocate(d, true);
      simdisk_power_off(d, at);
      ok = script(simdisk_env(d), &o, &drops);
      seen |= 1u << drops;
      struct simdisk *const after = simdisk_crash(d, at * 2 + outcome);
      simdisk_no_allocate(after, true);
      check_after(simdisk_env(after), after, &o, drops);
      simdisk_destroy(after);
      simdisk_destroy(d);
    }
  }
  CHECK(cuts > 100 && seen == 7);
}

// Opens a store on the disk and fills its spaces: each key in all of them, and with `alone` also each space alone.
static void disk_fill(struct world *w, struct simdisk *d, bool alone) {
  memset(w, 0, sizeof(*w));
  const struct remixdb_opts o = options(0);
  struct xdb *x;
  simdisk_no_allocate(d, true);
  OK(xdb_open("/store", &o, simdisk_env(d), &x));
  use(w, x);
  x->compact.young_from = 0;
  for (uint32_t i = 0; i < SPACES; i++) make(w, i);
  for (uint32_t i = SPACES; i-- > 0;) {
    fill(w, i, 0, 100, 1000);
    if (alone) CHECK(remixdb_flush(w->r));
  }
  for (uint32_t i = 0; i < SPACES; i++) fill(w, i, 100, 140, 1000);
  CHECK(remixdb_flush(w->r));
  CHECK(stat_of(x, "partitions") == 2);
}

// On a full disk the tables that are of the space only leave first, and make the room for the merge of the others.
static void test_full(void **state) {
  (void)state;
  struct world w;
  struct simdisk *const d = simdisk_create();
  disk_fill(&w, d, true);
  simdisk_space(d, simdisk_used(d) + (50u << 10));  // the merge of the partition writes 600,000 bytes
  drop(&w, 2);
  drop(&w, 1);
  CHECK(stat_of(w.x, "dropped_tables") == 2);
  check_all(&w);
  simdisk_space(d, UINT64_MAX);
  CHECK(remixdb_put(w.refs[0], "00000000", 8, "v", 1));
  fill(&w, 0, 0, 1, 1000);
  CHECK(remixdb_flush(w.r));
  CHECK(stat_of(w.x, "dropped_bytes") == 0);
  check_all(&w);
  leave(&w);
  simdisk_destroy(d);
}

// There is no room for the merge: the drop succeeds all the same, the store goes on, and a later round makes it.
static void test_no_room(void **state) {
  (void)state;
  struct world w;
  struct simdisk *const d = simdisk_create();
  disk_fill(&w, d, false);
  simdisk_space(d, simdisk_used(d) + (100u << 10));
  drop(&w, 2);
  CHECK(stat_of(w.x, "dropped_bytes") > 0 && stat_of(w.x, "dropped_merges") == 0);
  CHECK(remixdb_put(w.r, "k", 1, "v", 1) && remixdb_flush(w.r));
  CHECK(stat_of(w.x, "dropped_bytes") > 0);
  check_all(&w);
  const uint64_t before = simdisk_used(d);
  simdisk_space(d, UINT64_MAX);
  CHECK(remixdb_put(w.r, "k", 1, "v", 1) && remixdb_flush(w.r));
  CHECK(stat_of(w.x, "dropped_bytes") == 0 && stat_of(w.x, "dropped_merges") == 1);
  CHECK(simdisk_used(d) < before - 120000);
  check_all(&w);
  leave(&w);
  simdisk_destroy(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_mixed),
      cmocka_unit_test(test_tiny),
      cmocka_unit_test(test_tables),
      cmocka_unit_test(test_readers),
      cmocka_unit_test(test_writers),
      cmocka_unit_test(test_given_up),
      cmocka_unit_test(test_cuts),
      cmocka_unit_test(test_full),
      cmocka_unit_test(test_no_room),
      cmocka_unit_test(test_away),
      cmocka_unit_test(test_joined),
      cmocka_unit_test(test_damaged),
      cmocka_unit_test(test_reads_fail),
      cmocka_unit_test(test_values_stay),
      cmocka_unit_test(test_tables_damaged),
      cmocka_unit_test(test_tables_reads),
      cmocka_unit_test(test_tables_reads_damaged),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
