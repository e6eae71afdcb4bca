// SPDX-License-Identifier: Apache-2.0
//
// Lives of a store in which one file is damaged, on a disk in memory: a table, a REMIX, a pack or a value file. The
// store has named spaces, one of which is dropped, young views, garbage, joins, and values apart. Each call answers
// right, or fails and names the damaged file. Keys that the damage has not reached are read right all the time, and
// writes go on, unless a partition cannot be opened, or a young view cannot be built again. When the damage is undone,
// everything is there.
//
// TEST_SEED repeats a life; DAMAGE_LIVES is the number of lives.
#include "store/space_ref.h"
#include "tests/lib/check.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/slow.h"
#include "tests/lib/temp.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/flush.h"
#include "store/idle.h"
#include "store/ref.h"
#include "xdb.h"

#define SPACES 4u  // the first one is the unnamed; the last one is dropped
#define KEYS 300u
#define VALUE_MOST 9000u
#define DIR "/store"
#define HANG 100u  // seconds for a life

struct life {
  struct simdisk *disk;
  struct remixdb_opts opts;
  struct xdb *x;
  struct xdb_space *spaces[SPACES];
  struct xdb_ref *refs[SPACES];  // NULL: dropped
  uint64_t rng;
  uint32_t now[SPACES][KEYS];  // the number of the write that gave the key its value; 0: there is none
  bool bad[SPACES][KEYS];      // the damage may have reached it
  uint32_t writes, copies;
  uint32_t table_pages, young_from, join;
  bool away;
  // the damage; `name` empty: none yet
  char name[64];
  int64_t size;
  uint64_t off;
  uint32_t nr;      // flipped bytes, 97 apart
  bool may_refuse;  // writes
  bool refused;
  uint32_t told;
  uint64_t lines[64];  // hashes of what was told since the opening; 0: none. A round's thread, or nobody
  _Atomic bool told_twice;
};

static struct {
  uint32_t lives, kinds[FILES_IS_RESERVE], refused, may_refuse, unopened, failures, joined, young, dropped, garbage,
      told, copies, shut;
} sums;

static uint32_t below(struct life *l, uint32_t n) { return (uint32_t)(rng_next(&l->rng) % n); }

static void listen(void *arg, const char *line) {
  struct life *const l = arg;
  if (strstr(line, "cannot be merged any more")) {
    const uint64_t hash = hash64(line, strlen(line)) | 1;
    uint32_t i = 0;
    while (i < 63 && l->lines[i] && l->lines[i] != hash) i++;
    if (l->lines[i] == hash) atomic_store(&l->told_twice, true);
    l->lines[i] = hash;
    l->told++;
  }
  if (getenv("DAMAGE_SAYS")) fprintf(stderr, "%s\n", line);
}

// ---- records

static uint32_t make_key(char buf[16], uint32_t k) {
  return (uint32_t)snprintf(buf, 16, "%s%05u", k % 7 ? "key" : "k", k);
}

static uint32_t make_value(uint32_t write, uint8_t *buf) {
  uint64_t rng = write * 0x9E3779B97F4A7C15ull;
  const uint32_t len = rng_next(&rng) % 8 == 0 ? 3000 + (uint32_t)(rng_next(&rng) % 6000)
                                               : (uint32_t)(rng_next(&rng) % 300);
  for (uint32_t i = 0; i < len; i++) buf[i] = (uint8_t)(rng_next(&rng) >> 32);
  return len;
}

// A call has failed: it says why.
static void failed(struct life *l, const char *what) {
  sums.failures++;
  const enum remixdb_status s = remixdb_errcode();
  char value_file[40];  // one whose header is damaged counts as missing
  (void)snprintf(value_file, sizeof(value_file), "value file %llu,", strtoull(l->name, NULL, 10));
  if (l->name[0] && s == REMIXDB_CORRUPT && (strstr(remixdb_errmsg(), l->name) || strstr(remixdb_errmsg(), value_file)))
    return;
  fail_msg("TEST_SEED=%llu, %s: %s, of %s: \"%s\"", (unsigned long long)check_seed, what, remixdb_strerror(s), l->name,
           remixdb_errmsg());
}

static void write_key(struct life *l, uint32_t s, uint32_t k, bool del) {
  static uint8_t value[VALUE_MOST];
  char key[16];
  if (!l->refs[s]) return;
  const uint32_t klen = make_key(key, k), write = ++l->writes, vlen = make_value(write, value);
  if (del ? remixdb_del(l->refs[s], key, klen) : remixdb_put(l->refs[s], key, klen, value, vlen)) {
    l->now[s][k] = del ? 0 : write;
    return;
  }
  failed(l, "a write");
  CHECK_SAYS(l->may_refuse, "TEST_SEED=%llu: writes are refused: %s", (unsigned long long)check_seed, remixdb_errmsg());
  l->refused = true;
}

// Reads a key by a ref of the space. Returns false if it cannot be read.
static bool read_key(struct life *l, struct xdb_ref *r, uint32_t s, uint32_t k) {
  static uint8_t value[VALUE_MOST], want[VALUE_MOST];
  char key[16];
  uint32_t vlen = 0;
  const bool there = remixdb_getn(r, key, make_key(key, k), value, sizeof(value), &vlen);
  if (!there && remixdb_errcode() != REMIXDB_NOTFOUND) {
    failed(l, "a get");
    return false;
  }
  CHECK_SAYS(there == (l->now[s][k] != 0), "space %u, key %u", s, k);
  if (there) CHECK(vlen == make_value(l->now[s][k], want) && memcmp(value, want, vlen) == 0);
  return true;
}

static void read_all(struct life *l, bool undone) {
  for (uint32_t s = 0; s < SPACES; s++)
    for (uint32_t k = 0; k < KEYS && l->refs[s]; k++) {
      const bool good = read_key(l, l->refs[s], s, k);
      // an absent key may need a block of its neighbours
      CHECK_SAYS(good || (!undone && (l->bad[s][k] || l->now[s][k] == 0)), "space %u, key %u, %s of %s: %s", s, k,
                 undone ? "without the damage" : "beside the damage", l->name, remixdb_errmsg());
    }
}

static void iterate(struct life *l, uint32_t s) {
  if (!l->refs[s]) return;
  struct xdb_iter *const it = remixdb_iter_create(l->refs[s]);
  CHECK(it);
  uint32_t seen = 0;
  for (remixdb_iter_seek(it, "", 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
    static uint8_t want[VALUE_MOST];
    uint32_t klen, vlen, k;
    const char *const key = remixdb_iter_key(it, &klen);
    if (!key) break;
    CHECK(klen >= 6);
    char digits[6] = {0};
    memcpy(digits, key + klen - 5, 5);
    k = (uint32_t)strtoul(digits, NULL, 10);
    CHECK(k < KEYS && l->now[s][k]);
    seen++;
    const void *const value = remixdb_iter_value(it, &vlen);
    if (value) CHECK(vlen == make_value(l->now[s][k], want) && memcmp(value, want, vlen) == 0);
    else break;
  }
  if (remixdb_iter_status(it) != REMIXDB_OK) {
    failed(l, "an iterator");
  } else {
    for (uint32_t k = 0; k < KEYS; k++) seen -= l->now[s][k] != 0;
    CHECK(seen == 0);
  }
  remixdb_iter_destroy(it);
}

// ---- the store

static bool store_open(struct life *l, const char *dir, bool read_only, bool eager) {
  struct remixdb_opts o = l->opts;
  o.read_only = read_only;
  memset(l->lines, 0, sizeof(l->lines));
  atomic_store(&version_eager, eager ? VERSION_EAGER : 0);
  const enum remixdb_status s = xdb_open(dir, &o, simdisk_env(l->disk), &l->x);
  atomic_store(&version_eager, VERSION_EAGER);
  err_finish(s);
  if (s != REMIXDB_OK) {
    l->x = NULL;
    return false;
  }
  if (!read_only) {
    if (xdb_wait_idle(l->x) != REMIXDB_OK) CHECK(l->name[0]);  // the log is replayed, and writes are refused
    pthread_mutex_lock(&l->x->lock);
    l->x->memtable_limit = 70 << 10;
    pthread_mutex_unlock(&l->x->lock);
    l->x->compact.memtable_size = 70 << 10;
    l->x->compact.build.max_pages = l->table_pages;
    l->x->compact.young_from = l->young_from;
    l->x->compact.garbage_from = 1;
    l->x->compact.cut_from = 0;
    l->x->compact.join = l->join;
    l->x->garbage_merges.rest_ns = 1000000;
    l->x->compact.apart_from = 2000;
    l->x->values.full = l->x->compact.values.full = 100000;
  }
  for (uint32_t i = 0; i < SPACES; i++) {
    char name[2] = {(char)('a' + i), 0};
    l->spaces[i] = NULL;
    if (i == SPACES - 1 && l->name[0] && !l->refs[i]) continue;  // dropped
    if (i) CHECK((l->spaces[i] = remixdb_space_open(l->x, name, !read_only)) != NULL);
    l->refs[i] = i ? remixdb_space_ref(l->spaces[i]) : remixdb_ref(l->x);
    CHECK(l->refs[i]);
  }
  return true;
}

// Closes the store. Whether the last space has a ref tells whether it is there.
static void store_close(struct life *l) {
  for (uint32_t i = 0; i < SPACES; i++) {
    if (!l->refs[i]) continue;
    remixdb_unref(l->refs[i]);
    remixdb_space_close(l->spaces[i]);
  }
  sums.joined += (uint32_t)atomic_load(&l->x->compact.stats.joined);
  sums.young += (uint32_t)atomic_load(&l->x->compact.stats.young);
  sums.dropped += (uint32_t)(atomic_load(&l->x->compact.stats.dropped_merges) +
                             atomic_load(&l->x->compact.stats.dropped_tables));
  sums.garbage += (uint32_t)atomic_load(&l->x->compact.stats.garbage_merges);
  for (const struct version *tree = xdb_super(l->x)->version; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) sums.shut += part_is_shut(tree->parts[i]);
  const enum remixdb_status s = xdb_close(l->x);
  err_finish(s);
  if (s != REMIXDB_OK) failed(l, "a close");
  l->x = NULL;
}

// ---- the damage

static bool is_there(const struct life *l, const struct pack_part *part, uint64_t number,
                     void (*name_of)(char *, uint64_t)) {
  char name[32];
  if (part) files_pack_name(name, part->pack->number);
  else name_of(name, number);
  return strcmp(name, l->name) == 0;
}

// A young view is built from the keys of all of its tables, so damage of one of them may stop a partition.
static bool in_young_view(struct life *l) {
  bool in = false;
  pthread_mutex_lock(&l->x->lock);
  for (const struct version *tree = xdb_super(l->x)->version; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      struct part_files f;
      part_files(tree->parts[i], &f);
      for (uint32_t r = f.nr - f.nr_young; r < f.nr; r++)
        in = in || is_there(l, f.tables[r].part, f.tables[r].number, sst_name);
      if (f.young.number) in = in || is_there(l, f.young.part, f.young.number, remix_name);
    }
  pthread_mutex_unlock(&l->x->lock);
  return in;
}

// Tells whether the key's partition cannot be opened. The log may have the key, and a round brings it into the
// partition.
static bool part_closed(struct life *l, uint32_t s, uint32_t k) {
  char name[16];
  struct kref key = kref(name, make_key(name, k));
  OK(space_key(l->refs[s], &key));
  const struct version *const tree = version_tree(xdb_super(l->x)->version, l->refs[s]->tree);
  return part_ready(tree->parts[version_find(tree, key)]) != REMIXDB_OK;
}

// Finds out which keys it has reached, by a copy of the disk. No other thread uses the disk, and all of it is durable.
static void look_at_damage(struct life *l) {
  struct life *const c = malloc(sizeof(*c));
  CHECK(c);
  *c = *l;
  c->disk = simdisk_crash(l->disk, 1);
  if (!store_open(c, DIR, true, !l->away)) {
    failed(l, "an opening of a copy");
    l->may_refuse = true;
    memset(l->bad, true, sizeof(l->bad));
  } else {
    for (uint32_t s = 0; s < SPACES; s++)
      for (uint32_t k = 0; k < KEYS && c->refs[s]; k++)
        l->bad[s][k] = part_closed(c, s, k) || !read_key(c, c->refs[s], s, k);
    l->may_refuse = in_young_view(c);
    store_close(c);
  }
  simdisk_destroy(c->disk);
  free(c);
}

static void flip_all(struct life *l) {
  char path[96];
  (void)snprintf(path, sizeof(path), DIR "/%s", l->name);
  if (simdisk_size(l->disk, path) != l->size) return;  // it has gone
  for (uint32_t i = 0; i < l->nr; i++)
    if (l->off + 97 * i < (uint64_t)l->size) CHECK(simdisk_flip(l->disk, path, l->off + 97 * i, 1u << i % 8));
}

static void damage(struct life *l) {
  struct files_entry *list, *fit[256];
  size_t nr, nr_fit = 0;
  const bool value = below(l, 4) == 0;  // there are more value files than others
  CHECK(remixdb_sync(l->refs[0]));
  if (l->opts.workers) store_close(l);
  OK(paths_files(simdisk_env(l->disk), DIR, &list, &nr));
  for (size_t i = 0; i < nr && nr_fit < 256; i++) {
    char path[96];
    (void)snprintf(path, sizeof(path), DIR "/%s", list[i].name);
    if (files_is_numbered(list[i].kind) && (list[i].kind == FILES_IS_VALUE) == value && simdisk_size(l->disk, path) > 0)
      fit[nr_fit++] = &list[i];
  }
  CHECK(nr_fit > 0);
  const struct files_entry *const f = fit[below(l, (uint32_t)nr_fit)];
  char path[96];
  (void)snprintf(path, sizeof(path), DIR "/%s", f->name);
  (void)snprintf(l->name, sizeof(l->name), "%s", f->name);
  l->size = simdisk_size(l->disk, path);
  l->off = rng_next(&l->rng) % (uint64_t)l->size;
  if (getenv("DAMAGE_SAYS")) fprintf(stderr, "DAMAGE %s at %llu\n", f->name, (unsigned long long)l->off);
  l->nr = below(l, 2) ? 1 : 1 + below(l, 400);
  flip_all(l);
  sums.kinds[f->kind]++;
  mem_free(list);
  look_at_damage(l);
  sums.may_refuse += l->may_refuse;
  if (l->opts.workers && !store_open(l, DIR, false, !l->away)) {
    failed(l, "an opening");
    CHECK(l->may_refuse);
  }
}

// ---- steps

static void reopen(struct life *l, bool eager) {
  store_close(l);
  l->refused = false;
  l->table_pages = 3 + below(l, 40);  // where they become larger, there are joins
  if (store_open(l, DIR, false, eager)) return;
  failed(l, "an opening");
  CHECK(l->may_refuse);
}

static void drop_space(struct life *l) {
  const uint32_t s = SPACES - 1;
  if (!l->refs[s]) return;
  remixdb_unref(l->refs[s]);
  remixdb_space_close(l->spaces[s]);
  l->refs[s] = NULL;
  memset(l->now[s], 0, sizeof(l->now[s]));
  if (remixdb_space_drop(l->x, "d")) return;
  failed(l, "a drop");
  CHECK(l->may_refuse);
}

static void wear(struct life *l) {
  epoch_enter(&l->x->epoch, &l->refs[0]->slot);
  for (const struct version *tree = xdb_super(l->x)->version; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      struct remix *const x = part_remix(tree->parts[i]);
      if (x && below(l, 3) == 0) remix_add_debt(x, UINT32_MAX);
    }
  epoch_exit(&l->refs[0]->slot);
}

static void checkpoint(struct life *l) {
  char dir[32];
  (void)snprintf(dir, sizeof(dir), "/copy%u", l->copies++);
  sums.copies++;
  if (!remixdb_checkpoint(l->refs[0], dir)) failed(l, "a checkpoint");
}

static void step(struct life *l) {
  const uint32_t dice = below(l, 100), s = below(l, SPACES);
  if (dice < 6) {
    if (!remixdb_flush(l->refs[0])) failed(l, "a flush");
  } else if (dice < 8) {
    if (!remixdb_compact(l->refs[0])) failed(l, "a compaction");
  } else if (dice < 10) {
    wear(l);
    iterate(l, s);
  } else if (dice < 12) {
    reopen(l, !l->away);
  } else if (dice < 13) {
    checkpoint(l);
  } else if (dice < 14 && l->name[0]) {
    drop_space(l);
  } else if (dice < 16) {
    idle_garbage(l->x);
  } else if (dice < 18) {
    const uint32_t from = below(l, KEYS);
    for (uint32_t k = from; k < KEYS && k < from + 60; k++) write_key(l, s, k, true);
  } else {
    for (uint32_t i = 0; i < 12; i++) {
      const uint32_t k = below(l, KEYS);
      if (l->refs[s] && !read_key(l, l->refs[s], s, k)) CHECK(l->bad[s][k] || l->now[s][k] == 0);
      write_key(l, s, below(l, 2) ? k : below(l, KEYS / 8), below(l, 6) == 0);
    }
  }
}

static void live(uint64_t seed) {
  struct life *const l = calloc(1, sizeof(*l));
  CHECK(l);
  check_seed = seed;
  l->rng = seed;
  (void)alarm(HANG * (SLOW > 8 ? 10 : 1));
  l->disk = simdisk_create();
  l->opts = small_opts((int)below(l, 3));
  l->opts.logger = listen;
  l->opts.logger_priv = l;
  l->table_pages = 3;
  l->young_from = below(l, 2) ? 1 + below(l, 32) : 1u << 20;  // hardly any young views
  l->join = below(l, 4) ? COMPACT_JOIN : 0;
  l->away = below(l, 2);
  CHECK(store_open(l, DIR, false, true));
  for (uint32_t s = 0; s < SPACES; s++)
    for (uint32_t k = 0; k < KEYS; k++) write_key(l, s, k, false);
  for (uint32_t i = 0; i < 60; i++) step(l);
  CHECK(l->x && !l->refused);
  damage(l);
  if (l->x && below(l, 2)) reopen(l, !l->away);
  for (uint32_t i = 0; i < 90 && l->x; i++) step(l);
  sums.refused += l->refused;
  sums.unopened += !l->x;
  if (l->x) {
    read_all(l, false);
    for (uint32_t s = 0; s < SPACES; s++) iterate(l, s);
    store_close(l);
  }
  flip_all(l);
  l->may_refuse = false;
  CHECK_SAYS(store_open(l, DIR, false, true), "%s", remixdb_errmsg());
  read_all(l, true);
  CHECK(remixdb_compact(l->refs[0]));
  read_all(l, true);
  store_close(l);
  CHECK(!l->told_twice);
  sums.told += l->told;
  sums.lives++;
  (void)alarm(0);
  simdisk_destroy(l->disk);
  free(l);
}

static void test_lives(void **state) {
  (void)state;
  const char *const lives = getenv("DAMAGE_LIVES");
  const uint64_t nr = lives ? strtoull(lives, NULL, 10) : SLOW > 1 ? 6 : 30, first = check_seed;
  for (uint64_t i = 0; i < nr; i++) live(first + i);
  printf("%u lives: damage in %u tables, %u REMIXes, %u packs, %u value files; %u might refuse writes, %u did, %u did "
         "not open; %u calls failed, damage told %u times; %u partitions shut at a close; %u joined, %u young, %u of "
         "dropped spaces, %u for garbage, %u checkpoints\n",
         sums.lives, sums.kinds[FILES_IS_TABLE], sums.kinds[FILES_IS_REMIX], sums.kinds[FILES_IS_PACK],
         sums.kinds[FILES_IS_VALUE], sums.may_refuse, sums.refused, sums.unopened, sums.failures, sums.told, sums.shut,
         sums.joined, sums.young, sums.dropped, sums.garbage, sums.copies);
}

int main(void) {
  check_seed = check_seed_start();
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_lives)};
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
