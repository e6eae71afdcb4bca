// SPDX-License-Identifier: Apache-2.0
//
// Damage: every bit of every file of small stores is flipped, one at a time, every file is cut at every length, and
// each is taken away. A store so damaged either does not open, with an error that names the file, or what it answers by
// get, forwards and backwards is right, or such an error: never a wrong answer, never an empty store in place of a
// damaged one. For every byte it is known which: all are under a checksum but what the formats leave out, and no such
// byte changes an answer.
//
// A run does a ninth of it, and a quarter of that for the third store, which adds little to the first; under a
// sanitizer less. ROT_ALL=1 does everything, as `make soak` does. A failure prints the seed, and ROT_SEED repeats it.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "admin/verify.h"
#include "store/flush.h"
#include "store/syncer.h"
#include "store/whole.h"
#include "table/scan.h"
#include "tests/lib/check.h"
#include "tests/lib/slow.h"
#include "tests/lib/tiny.h"

#if SLOW > 1
#define SAMPLE (SLOW > 8 ? 100u : 20u)
#else
#define SAMPLE 9u
#endif

static uint64_t seed, rng;
static bool all;
static uint32_t sample;  // one of so many
static uint64_t nr_flips, nr_cuts, nr_refused, nr_errors, nr_unseen;

static bool chosen(void) { return sample == 1 || rng_next(&rng) % sample == 0; }

// The step that the test is at, for messages.

// ---- the stores

// NULL: the key is wherever there is room in it.
static struct kref key_of(uint8_t *buf, uint32_t i) {
  return kref(buf, (uint32_t)snprintf((char *)buf, 32, "key/%03u", i));
}
#define KEY(i) key_of((uint8_t[32]){0}, i)

// Two runs with old versions and tombstones; three segments of the log, each of an opening of its own.
static struct tiny *make_store(bool ckeys, bool tags) {
  struct tiny *const t = tiny_create(ckeys, tags, REMIXDB_COMPRESSION_NONE);
  tiny_open(t);
  for (uint32_t i = 0; i < 40; i++) tiny_put(t, KEY(2 * i), 40 + i % 30, false);
  OK(xdb_flush(t->x));
  for (uint32_t i = 0; i < 10; i++) tiny_put(t, KEY(7 * i), 10 + i, i % 2);
  for (uint32_t i = 0; i < 5; i++) tiny_del(t, KEY(16 * i + 2));
  OK(xdb_flush(t->x));
  for (uint32_t life = 0; life < 3; life++) {
    for (uint32_t i = 0; i < 4; i++) {
      tiny_put(t, KEY(100 + 10 * life + i), 12, false);
      if (i == 1) OK(xdb_sync(t->ref));
    }
    tiny_del(t, KEY(14 + 20 * life));
    OK(tiny_close(t));
    if (life < 2) tiny_open(t);
  }
  if (ckeys) tiny_drop_pool(t);  // the other store shows that they are nothing
  return t;
}

static struct tiny *make_ckeys(void) { return make_store(true, true); }
static struct tiny *make_compact(void) { return make_store(false, false); }

// A compressed table with a dictionary; a log of one segment.
static struct tiny *make_zstd(void) {
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_ZSTD);
  tiny_open(t);
  for (uint32_t i = 0; i < 26; i++) tiny_put(t, KEY(i), 1800, false);
  OK(xdb_flush(t->x));
  tiny_put(t, KEY(3), 30, false);
  OK(tiny_close(t));
  tiny_drop_pool(t);
  uint8_t dict_len[4];
  CHECK(simdisk_peek(t->disk, tiny_path("000001.sst"),
                     (uint64_t)simdisk_size(t->disk, tiny_path("000001.sst")) - 256 + 128, dict_len, 4));
  CHECK(load32le(dict_len) > 0);
  return t;
}

static const struct store {
  const char *name;
  struct tiny *(*make)(void);
  uint32_t sample;
} stores[] = {{"compressed keys", make_ckeys, SAMPLE},
              {"zstd", make_zstd, SAMPLE},
              {"compact", make_compact, 4 * SAMPLE}};
#define STORES (sizeof(stores) / sizeof(stores[0]))

// ---- the possible effects of damage

enum fate {
  FATE_RIGHT,    // nothing that counts is there: all answers are right
  FATE_REFUSED,  // the store does not open
  FATE_ERROR     // it opens, some answers are right and some are errors
};

// The files of a store, and the bytes of each that count.
struct file {
  char name[32];
  uint8_t *good;
  size_t len;
  enum { TABLE, REMIX, LOG, SPARE, CURRENT } kind;
  size_t end;       // the end of a log's frames
  size_t data_end;  // the end of a table's blocks; its compressed keys go on to
  size_t ckb_end;
};

struct files {
  struct file file[32];
  uint32_t nr;
};

static void files_load(struct files *f, const struct tiny *t) {
  struct tiny_files names;
  uint64_t oldest = 0, newest = 0;
  tiny_list(t, &names);
  f->nr = names.nr;
  for (uint32_t i = 0; i < names.nr; i++) {
    struct file *const x = &f->file[i];
    (void)snprintf(x->name, sizeof(x->name), "%s", names.names[i]);
    x->good = tiny_read_file(t, x->name, &x->len);
    const uint8_t *const foot = x->good + x->len - 256;
    if (strstr(x->name, ".sst")) {
      x->kind = TABLE;
      x->data_end = load64le(foot + 56);
      x->ckb_end = x->data_end + load64le(foot + 72);
    } else if (strstr(x->name, ".remix")) {
      x->kind = REMIX;
    } else if (strcmp(x->name, "CURRENT") == 0) {
      x->kind = CURRENT;
      oldest = load64le(x->good + 40);
    } else {
      assert_int_equal(strncmp(x->name, "wal-", 4), 0);
      x->kind = LOG;
      if (load64le(x->good + 24) > newest) newest = load64le(x->good + 24);
    }
  }
  for (uint32_t i = 0; i < f->nr; i++) {
    struct file *const x = &f->file[i];
    if (x->kind != LOG) continue;
    const uint64_t gen = load64le(x->good + 24);
    if (gen < oldest) x->kind = SPARE;
    if (gen == newest) x->end = load64le(x->good + 464);
    for (uint32_t k = 0; k < f->nr; k++)  // the number in the next segment
      if (f->file[k].kind >= LOG && f->file[k].kind <= SPARE && load64le(f->file[k].good + 24) > gen &&
          load64le(f->file[k].good + 32) == gen)
        x->end = load64le(f->file[k].good + 40);
    if (x->kind == LOG) assert_true(x->end > 512 && x->end <= x->len);
  }
}

static void files_free(struct files *f) {
  for (uint32_t i = 0; i < f->nr; i++) free(f->file[i].good);
}

// Openings bring no partition: damage that is not at a file's ends is found when the partition is used.
static bool away;

static enum fate fate_of_flip(const struct file *f, size_t off) {
  if (away && f->kind == REMIX) {
    const bool looked_at = off < 12 || (off >= 16 && off < 40) || off >= f->len - 8;
    return looked_at ? FATE_REFUSED : FATE_ERROR;
  }
  if (away && f->kind == TABLE && off >= f->ckb_end && off < f->len - 256) return FATE_ERROR;
  switch (f->kind) {
    case TABLE: return off < f->data_end ? FATE_ERROR : off < f->ckb_end ? FATE_RIGHT : FATE_REFUSED;
    case LOG: return off < 448 || (off >= 504 && off < f->end) ? FATE_REFUSED : FATE_RIGHT;
    case SPARE: return FATE_RIGHT;
    default: return FATE_REFUSED;
  }
}

static enum fate fate_of_cut(const struct file *f, size_t len) {
  return f->kind == SPARE || (f->kind == LOG && len >= f->end) ? FATE_RIGHT : FATE_REFUSED;
}

// An error is of the right kind and says where: the file itself; of a log, which may be known by another segment only,
// at least which part.
static void check_error(const struct file *f, enum remixdb_status s, const char *msg) {
  CHECK(s == REMIXDB_CORRUPT);  // nor is a flipped format's number taken for a later library's
  CHECK(strstr(msg, f->name) || (f->kind >= LOG && f->kind <= SPARE && strstr(msg, "generation")));
}

// One damage, already done.
static void check_damaged(struct tiny *t, const struct file *f, enum fate fate) {
  const enum remixdb_status s = tiny_try_open(t, true);
  if (s != REMIXDB_OK) {
    CHECK(fate == FATE_REFUSED);
    check_error(f, s, err_msg());
    nr_refused++;
    return;
  }
  CHECK(fate != FATE_REFUSED);
  struct tiny_errors e;
  CHECK(tiny_look(t, t->ref, &e));
  if (fate == FATE_ERROR) {
    CHECK(e.nr > 0);
    check_error(f, e.status, e.msg);
    nr_errors++;
  } else {
    CHECK(e.nr == 0);
    nr_unseen++;
  }
  // it costs as much as all the rest, and of a table all damage is for it to find
  if (f->kind != TABLE || fate == FATE_RIGHT || nr_errors % 4 == 0) {
    struct verify_report report;
    const enum remixdb_status v = verify_store(t->ref, &report);
    if (f->kind == TABLE || fate == FATE_ERROR) {
      check_error(f, v, err_msg());
      CHECK(report.damaged >= 1);
    } else {
      CHECK(v == REMIXDB_OK);
    }
  }
  CHECK(tiny_close(t) == REMIXDB_OK);
}

// ---- every bit, every length, every file

static void each_store(void (*fn)(struct tiny *t, const struct files *f)) {
  for (size_t i = 0; i < STORES; i++) {
    struct tiny *const t = stores[i].make();
    struct files f;
    (void)snprintf(check_what, sizeof(check_what), "%s", stores[i].name);
    sample = all ? 1 : stores[i].sample * (away ? 8 : 1);
    tiny_check(t, true);
    files_load(&f, t);
    fn(t, &f);
    tiny_check(t, true);  // it was all put back
    files_free(&f);
    tiny_destroy(t);
  }
}

static void flip_all(struct tiny *t, const struct files *f) {
  for (uint32_t i = 0; i < f->nr; i++) {
    const struct file *const x = &f->file[i];
    for (size_t off = 0; off < x->len; off++) {
      for (uint32_t bit = 0; bit < 8; bit++) {
        if (!chosen() || (away && x->kind == REMIX && off == 8 && bit == 0)) continue;  // another known format's
        (void)snprintf(check_what, sizeof(check_what), "bit %u of byte %zu of %s (of %zu)", bit, off, x->name, x->len);
        CHECK(simdisk_flip(t->disk, tiny_path(x->name), off, (uint8_t)(1u << bit)));
        check_damaged(t, x, fate_of_flip(x, off));
        CHECK(simdisk_flip(t->disk, tiny_path(x->name), off, (uint8_t)(1u << bit)));
        nr_flips++;
      }
    }
  }
}

static void test_flips(void **state) {
  (void)state;
  each_store(flip_all);
}

static void test_flips_away(void **state) {
  (void)state;
  away = true;
  atomic_store(&version_eager, 0);
  each_store(flip_all);
  atomic_store(&version_eager, VERSION_EAGER);
  away = false;
}

static void cut_all(struct tiny *t, const struct files *f) {
  for (uint32_t i = 0; i < f->nr; i++) {
    const struct file *const x = &f->file[i];
    for (size_t len = 0; len < x->len; len++) {
      if (!chosen()) continue;
      (void)snprintf(check_what, sizeof(check_what), "%s (of %zu) cut to %zu", x->name, x->len, len);
      tiny_write_file(t, x->name, x->good, len);
      check_damaged(t, x, fate_of_cut(x, len));
      nr_cuts++;
    }
    (void)snprintf(check_what, sizeof(check_what), "%s gone", x->name);
    CHECK(env_unlink(ENV_PATHS(simdisk_env(t->disk)), tiny_path(x->name)) == REMIXDB_OK);
    check_damaged(t, x, fate_of_cut(x, 0));
    tiny_write_file(t, x->name, x->good, x->len);
  }
}

static void test_cuts(void **state) {
  (void)state;
  each_store(cut_all);
}

// ---- larger damage: sectors and pages that read as zeroes, a file in another's place

static void zero_all(struct tiny *t, const struct files *f) {
  static const uint8_t zero[4096];
  for (uint32_t i = 0; i < f->nr; i++) {
    const struct file *const x = &f->file[i];
    for (size_t size = 512; size <= sizeof(zero); size *= 8) {
      for (size_t off = 0; off < x->len; off += size) {
        const size_t len = x->len - off < size ? x->len - off : size;
        if (memcmp(x->good + off, zero, len) == 0) continue;
        enum fate worst = FATE_RIGHT;
        for (size_t k = off; k < off + len; k++) {
          const enum fate fate = x->good[k] ? fate_of_flip(x, k) : FATE_RIGHT;
          if (fate == FATE_REFUSED || worst == FATE_RIGHT) worst = fate;
        }
        (void)snprintf(check_what, sizeof(check_what), "%zu bytes at %zu of %s (of %zu) zero", len, off, x->name,
                       x->len);
        CHECK(simdisk_poke(t->disk, tiny_path(x->name), off, zero, len));
        check_damaged(t, x, worst);
        CHECK(simdisk_poke(t->disk, tiny_path(x->name), off, x->good + off, len));
      }
    }
  }
}

static void exchange_all(struct tiny *t, const struct files *f) {
  for (uint32_t i = 0; i < f->nr; i++) {
    for (uint32_t k = 0; k < f->nr; k++) {
      const struct file *const x = &f->file[i], *const other = &f->file[k];
      if (i == k) continue;
      (void)snprintf(check_what, sizeof(check_what), "what is in %s is in %s, too", other->name, x->name);
      tiny_write_file(t, x->name, other->good, other->len);
      // only a segment that is needed can be one more time in the place of a spare
      check_damaged(t, x, x->kind == SPARE && other->kind != LOG ? FATE_RIGHT : FATE_REFUSED);
      tiny_write_file(t, x->name, x->good, x->len);
    }
  }
}

static void test_zeroes(void **state) {
  (void)state;
  each_store(zero_all);
}

static void test_exchanged(void **state) {
  (void)state;
  each_store(exchange_all);
}

// ---- a log that was not closed

// Opening a log that was not closed may lose whole frames after the last sync, and nothing else.
static void test_open_log(void **state) {
  (void)state;
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_NONE);
  tiny_open(t);
  for (uint32_t i = 0; i < 5; i++) {
    tiny_put(t, KEY(i), 20, false);
    OK(xdb_sync(t->ref));
  }
  struct tiny *const synced = tiny_keep(t);
  tiny_put(t, KEY(1), 30, false);
  tiny_del(t, KEY(2));
  OK(wal_flush(t->x->wal));
  simdisk_fault(t->disk, SIMDISK_WRITE, 0, UINT64_MAX, EIO);
  simdisk_fault(t->disk, SIMDISK_SYNC, 0, UINT64_MAX, EIO);
  assert_int_not_equal(tiny_close(t), REMIXDB_OK);
  simdisk_fault(t->disk, SIMDISK_WRITE, 0, 0, 0);
  simdisk_fault(t->disk, SIMDISK_SYNC, 0, 0, 0);
  struct tiny_files names;
  tiny_list(t, &names);
  uint64_t nr_whole = 0, nr_tail = 0, nr_found = 0;
  for (uint32_t i = 0; i < names.nr; i++) {
    const char *const name = names.names[i];
    if (strncmp(name, "wal-", 4) != 0) continue;
    size_t len;
    uint8_t *const good = tiny_read_file(t, name, &len);
    for (size_t n = 0; n < 9 * len; n++) {  // every bit, then every length
      (void)snprintf(check_what, sizeof(check_what), "%s, unclosed: %s %zu", name, n < 8 * len ? "bit" : "cut to",
                     n < 8 * len ? n : n - 8 * len);
      if (n < 8 * len) CHECK(simdisk_flip(t->disk, tiny_path(name), n / 8, (uint8_t)(1u << n % 8)));
      else tiny_write_file(t, name, good, n - 8 * len);
      struct tiny_errors e;
      const enum remixdb_status s = tiny_try_open(t, true);
      if (s == REMIXDB_OK) {
        const bool whole = tiny_look(t, t->ref, &e);
        const bool tail = !whole && tiny_look(synced, t->ref, &e);
        // where a file ends nothing tells that it once went on, when it was not closed
        CHECK(whole || tail || n >= 8 * len);
        CHECK(e.nr == 0 || n >= 8 * len);
        nr_whole += whole;
        nr_tail += tail;
        CHECK(tiny_close(t) == REMIXDB_OK);
      } else {
        CHECK(s == REMIXDB_CORRUPT && strstr(err_msg(), "wal-"));
        nr_found++;
      }
      if (n < 8 * len) CHECK(simdisk_flip(t->disk, tiny_path(name), n / 8, (uint8_t)(1u << n % 8)));
    }
    tiny_write_file(t, name, good, len);
    free(good);
  }
  assert_true(nr_whole > 100 && nr_tail > 100 && nr_found > 1000);
  tiny_destroy(t);
  tiny_destroy(synced);
}

// ---- beyond reads: openings that write, compactions

// The store as it is, on a disk of its own: all of it is durable.
static struct tiny *copy_of(const struct tiny *t) {
  struct tiny *const c = tiny_keep(t);
  c->disk = simdisk_crash(t->disk, 1);
  simdisk_no_allocate(c->disk, true);
  return c;
}

static void check_unchanged(const struct tiny *t, const struct files *f, const struct file *damaged, size_t off,
                            uint32_t bit) {
  struct tiny_files names;
  tiny_list(t, &names);
  CHECK(names.nr == f->nr);
  for (uint32_t i = 0; i < f->nr; i++) {
    size_t len;
    const struct file *const x = &f->file[i];
    uint8_t *const now = tiny_read_file(t, x->name, &len);
    CHECK(len == x->len);
    if (x == damaged) now[off] ^= (uint8_t)(1u << bit);
    CHECK(memcmp(now, x->good, len) == 0);
    free(now);
  }
}

// A whole compaction reads all blocks, and leaves a partition as it is that it cannot read.
static void check_whole(struct tiny *t, const struct file *damaged, size_t off) {
  const enum remixdb_status s = xdb_compact(t->x);
  if (s != REMIXDB_OK) check_error(damaged, s, err_msg());
  if (damaged->kind != TABLE) return;
  if (off < damaged->data_end) CHECK(s != REMIXDB_OK);
  OK(xdb_failure(t->x));
}

// An opening that writes, writes, then a compaction of everything: each fails, naming the file, or does not care.
// Wherever it stops, the store opens again as it should with the damage undone, unless the damage was refused, and then
// nothing has changed.
static void compact_over(struct tiny *t, const struct files *f) {
  for (uint32_t i = 0; i < f->nr; i++) {
    const struct file *const x = &f->file[i];
    const uint32_t every = (x->kind == TABLE ? 101 : 31) * (all || SLOW == 1 ? 1 : 4);
    for (size_t off = rng_next(&rng) % every; off < x->len; off += 1 + rng_next(&rng) % (2 * every)) {
      const uint32_t bit = (uint32_t)rng_next(&rng) % 8;
      (void)snprintf(check_what, sizeof(check_what), "a compaction with bit %u of byte %zu of %s (of %zu)", bit, off,
                     x->name, x->len);
      struct tiny *const c = copy_of(t);
      CHECK(simdisk_flip(c->disk, tiny_path(x->name), off, (uint8_t)(1u << bit)));
      enum remixdb_status s = tiny_try_open(c, false);
      CHECK((s != REMIXDB_OK) == (fate_of_flip(x, off) == FATE_REFUSED));
      if (s != REMIXDB_OK) {
        check_error(x, s, err_msg());
        check_unchanged(c, f, x, off, bit);
      } else {
        for (uint32_t k = 0; k < 60; k++) tiny_put(c, KEY(3 * k), 60, true);
        s = xdb_flush(c->x);
        if (s != REMIXDB_OK) check_error(x, s, err_msg());
        if (x->kind == TABLE) CHECK(s == REMIXDB_OK);  // new data has a place beside any damage
        if (nr_flips % 4 == 0) check_whole(c, x, off);
        struct tiny_errors e;
        CHECK(tiny_look(c, c->ref, &e));
        if (e.nr) check_error(x, e.status, e.msg);
        s = tiny_close(c);
        if (s != REMIXDB_OK) check_error(x, s, err_msg());
        if (simdisk_size(c->disk, tiny_path(x->name)) == (int64_t)x->len && x->kind == TABLE)
          CHECK(simdisk_flip(c->disk, tiny_path(x->name), off, (uint8_t)(1u << bit)));
        tiny_check(c, true);
        tiny_check(c, false);
      }
      tiny_destroy(c);
      nr_flips++;
    }
  }
}

static void test_compactions(void **state) {
  (void)state;
  each_store(compact_over);
}

// ---- a table alone: a reader of all of it finds every changed bit

// All that can be read of a table; REMIXDB_OK when all of it is sound.
static enum remixdb_status read_table(const struct sst_ctx *ctx, struct blkio_queue *q, uint64_t number) {
  struct sst *x;
  struct sst_keys keys;
  struct sst_scan *scan;
  struct kv_rec rec;
  sst_pos pos;
  enum remixdb_status s = sst_open(ctx, number, &x);
  if (s != REMIXDB_OK) return s;
  s = sst_keys_open(x, q, &keys);
  while (s == REMIXDB_OK) s = sst_keys_next(&keys);
  sst_keys_close(&keys);
  if (s == REMIXDB_NOTFOUND && (s = sst_scan_create(x, q, &scan)) == REMIXDB_OK) {
    while (s == REMIXDB_OK) s = sst_scan_next(scan, &rec, &pos);
    sst_scan_destroy(scan);
  }
  sst_unref(x);
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
}

static void read_tables(struct tiny *t, const struct files *f) {
  struct env *const e = simdisk_env(t->disk);
  struct blkio io;
  struct blkio_queue *q;
  struct fdpool *fds;
  blkio_init(&io, e, BLKIO_SYNC);
  CHECK(blkio_queue_create(&io, &q) == REMIXDB_OK);
  CHECK(fdpool_create(e, 16, &fds) == REMIXDB_OK);
  const struct sst_ctx ctx = {
      .env = e, .dir = simdisk_dir(e, TINY_DIR), .io = &io, .fds = fds, .store_id = TINY_STORE_ID};
  for (uint32_t i = 0; i < f->nr; i++) {
    const struct file *const x = &f->file[i];
    if (x->kind != TABLE) continue;
    const uint64_t number = strtoull(x->name, NULL, 10);
    CHECK(read_table(&ctx, q, number) == REMIXDB_OK);
    for (size_t bit = 0; bit < 8 * x->len; bit++) {
      if (!chosen()) continue;
      (void)snprintf(check_what, sizeof(check_what), "bit %zu of byte %zu of table %s (of %zu)", bit % 8, bit / 8,
                     x->name, x->len);
      CHECK(simdisk_flip(t->disk, tiny_path(x->name), bit / 8, (uint8_t)(1u << bit % 8)));
      const enum remixdb_status s = read_table(&ctx, q, number);
      check_error(x, s, err_msg());
      CHECK(simdisk_flip(t->disk, tiny_path(x->name), bit / 8, (uint8_t)(1u << bit % 8)));
      nr_flips++;
    }
  }
  fdpool_destroy(fds);
  blkio_queue_destroy(q);
}

static void test_tables(void **state) {
  (void)state;
  each_store(read_tables);
}

int main(void) {
  check_seed_name = "ROT_SEED";
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_flips),     cmocka_unit_test(test_cuts),       cmocka_unit_test(test_zeroes),
      cmocka_unit_test(test_exchanged), cmocka_unit_test(test_open_log),   cmocka_unit_test(test_compactions),
      cmocka_unit_test(test_tables),    cmocka_unit_test(test_flips_away),
  };
  const char *const own = getenv("ROT_SEED"), *const given = own ? own : getenv("TEST_SEED"),
                    *const whole = getenv("ROT_ALL");
  seed = given ? strtoull(given, NULL, 0) : time_ns();
  rng = seed;
  all = whole && strcmp(whole, "0") != 0;
  const int rc = cmocka_run_group_tests(tests, NULL, NULL);
  print_message("%s: %llu bits flipped, %llu lengths cut; %llu stores refused, %llu opened and gave errors, %llu were "
                "right all the same\n",
                all ? "everything" : "a sample", (unsigned long long)nr_flips, (unsigned long long)nr_cuts,
                (unsigned long long)nr_refused, (unsigned long long)nr_errors, (unsigned long long)nr_unseen);
  if (!all)
    print_message("one of %u, of the last store one of %u; ROT_SEED=%llu, ROT_ALL=1 for everything\n", SAMPLE,
                  4 * SAMPLE, (unsigned long long)seed);
  return rc;
}
