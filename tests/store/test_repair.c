// SPDX-License-Identifier: Apache-2.0
//
// Repairing damaged stores, on the simulated disk: what is readable is kept, what is not is put aside and named, and
// power cuts on the way harm nothing.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "admin/repair.h"
#include "admin/verify.h"
#include "xdb.h"
#include "store/flush.h"
#include "admin/stats.h"
#include "store/syncer.h"
#include "tests/lib/both.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/tiny.h"

#define DIR_NAME "/store"
#define NR_KEYS 1000u
#define ROUNDS 4u

static bool without_keys;  // compressed ones

static struct remixdb_opts options(enum remixdb_compression compression) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = 0;
  o.cache_mb = 1;
  o.memtable_mb = 2;
  o.compression = compression;
  o.ckeys = !without_keys;
  return o;
}

static uint32_t key_of(uint32_t i, char *buf) { return (uint32_t)snprintf(buf, 64, "k/%05u/%08x", i, i * 2654435761u); }
static uint32_t value_of(uint32_t i, uint32_t round, char *buf) {
  return (uint32_t)snprintf(buf, 256, "%u:%u:%0*d", i, round, (int)(i % 120) + 1, 7);
}
static bool deletes(uint32_t i, uint32_t round) { return round > 1 && (i + round) % 13 == 0; }
static bool touches(uint32_t i, uint32_t round) { return round == 1 || i % round == 0 || deletes(i, round); }

// Some of the writes of the last round, puts and deletes.
static bool is_some(uint32_t i) { return i % 20 == 0 || (deletes(i, ROUNDS) && i % 3 == 0); }

// Rounds 1 to 3 in tables, the last in the log; or some of it in a young view.
static struct simdisk *make_store(enum remixdb_compression compression) {
  struct simdisk *disk = simdisk_create();
  const struct remixdb_opts o = options(compression);
  struct xdb *x;
  struct xdb_ref *r;
  OK(xdb_open(DIR_NAME, &o, simdisk_env(disk), &x));
  OK(xdb_ref(x, &r));
  for (uint32_t round = 1; round <= ROUNDS; round++) {
    for (uint32_t part = with_young && round == ROUNDS ? 1 : 2; part <= 2; part++) {
      for (uint32_t i = 0; i < NR_KEYS; i++) {
        char k[64], v[256];
        const uint32_t klen = key_of(i, k);
        if (with_young && round == ROUNDS && is_some(i) != (part == 1)) continue;
        if (touches(i, round)) OK(xdb_put(r, KV_REC(kref(k, klen), v, value_of(i, round, v), deletes(i, round))));
      }
      if (part == 1) {
        x->compact.young_from = 8;
        x->compact.memtable_size = 0;  // nothing is handed back
        OK(xdb_flush(x));
        char *json;
        OK(xdb_stats(x, &json));
        assert_non_null(strstr(json, "\"young_views\":1,"));
        mem_free(json);
      }
    }
    if (round < ROUNDS) OK(xdb_flush(x));
  }
  xdb_unref(r);
  OK(xdb_close(x));
  return disk;
}

// How many keys have their newest value, an older one, none. Anything else fails.
struct tally {
  uint32_t newest, older, none;
};

static struct tally look(struct simdisk *disk) {
  struct tally t = {0};
  const struct remixdb_opts o = options(REMIXDB_COMPRESSION_NONE);
  struct xdb *x;
  struct xdb_ref *r;
  OK(xdb_open(DIR_NAME, &o, simdisk_env(disk), &x));
  OK(xdb_ref(x, &r));
  for (uint32_t i = 0; i < NR_KEYS; i++) {
    char k[64], v[256], got[256];
    uint32_t len = 0, round = ROUNDS;
    const enum remixdb_status s = xdb_get(r, kref(k, key_of(i, k)), got, sizeof(got), &len);
    assert_true(s == REMIXDB_OK || s == REMIXDB_NOTFOUND);
    while (!touches(i, round)) round--;
    const bool gone = deletes(i, round);
    if (s == REMIXDB_NOTFOUND) {
      if (gone) t.newest++;
      else t.none++;
      continue;
    }
    bool found = false;
    for (uint32_t n = round; n > 0 && !found; n--)
      if (touches(i, n) && !deletes(i, n) && len == value_of(i, n, v) && memcmp(v, got, len) == 0) {
        found = true;
        if (n == round) t.newest++;
        else t.older++;
      }
    assert_true(found);
  }
  OK(verify_store(r, NULL));
  xdb_unref(r);
  OK(xdb_close(x));
  return t;
}

struct name_list {
  char names[64][40];
  uint32_t nr;
};
static bool name_add(void *arg, const char *name) {
  struct name_list *l = arg;
  if (strcmp(name, FILES_RESERVE) == 0) return true;  // holds nothing
  assert_true(l->nr < 64);
  (void)snprintf(l->names[l->nr++], sizeof(l->names[0]), "%s", name);
  return true;
}
static struct name_list names_of(struct simdisk *disk, const char *dir) {
  struct name_list l = {.nr = 0};
  OK(paths_list(simdisk_env(disk), dir, name_add, &l));
  return l;
}
static const char *path_in(const char *dir, const char *name) {
  static char path[128];
  (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
  return path;
}
static const char *path_of(const char *name) { return path_in(DIR_NAME, name); }
static bool report_has(struct simdisk *disk, const char *text) {
  uint8_t *buf;
  size_t len;
  OK(paths_read_file(ENV_PATHS(simdisk_env(disk)), DIR_NAME "/lost.1/REPORT", 1 << 20, &buf, &len));
  const bool has = strstr((const char *)buf, text) != NULL;
  mem_free(buf);
  return has;
}

// Nothing is damaged: nothing is lost.
static void test_whole(void **state) {
  (void)state;
  for (uint32_t way = 0; way < 2; way++) {
    struct simdisk *disk = make_store(way ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    struct repair_report rep;
    OK(repair_store(simdisk_env(disk), DIR_NAME, &rep));
    assert_true(rep.tables >= 1 && rep.tables_damaged == 0 && rep.tables_lost == 0 && rep.blocks_lost == 0 &&
                rep.log_bytes_lost == 0 && !rep.version_lost);
    const struct tally t = look(disk);
    assert_int_equal(t.newest, NR_KEYS);
    // the old files are kept
    const struct name_list l = names_of(disk, DIR_NAME "/lost.1");
    bool current = false;
    for (uint32_t i = 0; i < l.nr; i++) current = current || strcmp(l.names[i], FILES_CURRENT) == 0;
    assert_true(current);
    OK(repair_store(simdisk_env(disk), DIR_NAME, &rep));  // and again
    assert_int_equal(look(disk).newest, NR_KEYS);
    simdisk_destroy(disk);
  }
}

// One file damaged or gone at a time. The records in that file may be lost, and no others.
static void test_each_file(void **state) {
  (void)state;
  for (uint32_t way = 0; way < 2; way++) {
    without_keys = !way && with_young;
    struct simdisk *whole = make_store(way ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    const struct name_list l = names_of(whole, DIR_NAME);
    for (uint32_t i = 0; i < l.nr; i++) {
      const enum files_kind kind = files_kind_of(l.names[i], NULL);
      if (kind == FILES_IS_LOCK || kind == FILES_IS_RESERVE) continue;
      for (uint32_t damage = 0; damage < 3; damage++) {  // gone, its first page, its last bytes
        struct simdisk *disk = simdisk_crash(whole, 1);
        struct repair_report rep;
        const int64_t size = simdisk_size(disk, path_of(l.names[i]));
        if (damage == 0) OK(env_unlink(ENV_PATHS(simdisk_env(disk)), path_of(l.names[i])));
        else
          for (int64_t off = 0; off < 64 && off < size; off++)
            assert_true(simdisk_flip(disk, path_of(l.names[i]),
                                     (uint64_t)(damage == 1 ? off + 20 : size - 1 - off) % (uint64_t)size, 0x5a));
        OK(repair_store(simdisk_env(disk), DIR_NAME, &rep));
        const struct tally t = look(disk);
        if (kind == FILES_IS_REMIX) assert_int_equal(t.newest, NR_KEYS);  // the tables have it all
        if (kind == FILES_IS_CURRENT) assert_true(rep.version_lost && t.newest == NR_KEYS);
        if (kind == FILES_IS_TABLE) {
          assert_true(rep.tables_damaged + rep.tables_lost == 1);
          assert_true(report_has(disk, l.names[i]));
          // without its metadata a compressed table cannot be read; otherwise a block or two are lost
          if (damage == 2 && !way)
            assert_true(t.newest == NR_KEYS && rep.losses == 0);  // the bytes after the blocks show that they are all
          if (damage == 0 || (damage == 2 && way)) assert_true(rep.losses == 1 && rep.more_lost);
          if (damage == 1) assert_true(t.newest + NR_KEYS / 5 > NR_KEYS && rep.blocks_lost >= 1);
        }
        simdisk_destroy(disk);
      }
    }
    simdisk_destroy(whole);
  }
  without_keys = false;
}

// ---- reports of losses

enum damage { GONE, FIRST, MIDDLE, LAST, CUT, DAMAGES };

static void damage(struct simdisk *disk, const char *dir, const char *name, enum damage what) {
  const char *const path = path_in(dir, name);
  struct env *const env = simdisk_env(disk);
  const uint64_t size = (uint64_t)simdisk_size(disk, path);
  uint64_t end = size;  // the end of its contents: a log's file is longer
  uint8_t byte = 0;
  while (end > 1 && files_kind_of(name, NULL) == FILES_IS_LOG && simdisk_peek(disk, path, end - 1, &byte, 1) &&
         byte == 0)
    end--;
  const uint64_t at = what == FIRST ? 40 : what == MIDDLE ? end / 2 : end - 1;
  if (what == GONE) {
    OK(env_unlink(ENV_PATHS(env), path));
  } else if (what == CUT) {
    int fd;
    OK(env_open(ENV_PATHS(env), path, ENV_READ | ENV_WRITE, &fd));
    OK(env_truncate(env, fd, path, end / 3));
    OK(env_close(env, fd, path));
  } else {
    assert_true(simdisk_flip(disk, path, at, 0x5a));
  }
}

// Repairs, and checks the report against the store. Returns the number of keys that have changed.
static uint32_t check_told(struct simdisk *disk, const char *what, bool *told_out) {
  struct repair_report rep;
  OK(repair_store(simdisk_env(disk), DIR_NAME, &rep));
  const struct tally t = look(disk);
  const uint32_t changed = t.older + t.none;
  *told_out = rep.losses > 0;
  if (changed && !rep.losses) fail_msg("%s: %u keys are lost, and the report says nothing of it", what, changed);
  if (changed > rep.records_lost && !rep.more_lost)
    fail_msg("%s: %u keys are lost, and the report says %u records", what, changed, (unsigned)rep.records_lost);
  assert_int_equal(rep.losses > 0, rep.told[0] != '\0');
  assert_int_equal(rep.losses > 0, strncmp(rep.told, "LOST", 4) == 0);
  assert_int_equal(report_has(disk, "LOST: "), rep.losses > 0);
  assert_int_equal(report_has(disk, "nothing is lost"), rep.losses == 0);
  return changed;
}

// Every kind of damage to every file, alone and by two (one in 25 of those, or REPAIR_ALL of them): what is lost is
// told.
static void test_told(void **state) {
  (void)state;
  const bool all = getenv("REPAIR_ALL") != NULL;
  for (uint32_t way = 0; way < 2; way++) {
    struct simdisk *whole = make_store(way ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    const struct name_list l = names_of(whole, DIR_NAME);
    const uint32_t nr = l.nr * DAMAGES;
    uint32_t lossy = 0, told_alone = 0;
    for (uint32_t a = 0; a < nr; a++) {
      const char *const name = l.names[a / DAMAGES];
      if (files_kind_of(name, NULL) == FILES_IS_LOCK) continue;
      for (uint32_t b = a; b < nr; b += b == a ? DAMAGES - a % DAMAGES : 1) {  // alone, then with one of a later file
        const char *const other = l.names[b / DAMAGES];
        if (files_kind_of(other, NULL) == FILES_IS_LOCK || (b != a && !all && (a * 7 + b) % 25)) continue;
        struct simdisk *disk = simdisk_crash(whole, 1);
        char what[160];
        bool told;
        (void)snprintf(what, sizeof(what), "way %u, %s %u, %s %u", way, name, a % DAMAGES, other, b % DAMAGES);
        damage(disk, DIR_NAME, name, (enum damage)(a % DAMAGES));
        if (b != a) damage(disk, DIR_NAME, other, (enum damage)(b % DAMAGES));
        const uint32_t changed = check_told(disk, what, &told);
        lossy += changed > 0;
        if (a == b) {
          told_alone += told;
          if (files_kind_of(name, NULL) == FILES_IS_CURRENT) assert_true(told);
          // without the head of an index nothing tells that it had no erased records
          const bool headless = a % DAMAGES == GONE || a % DAMAGES == CUT;
          if (files_kind_of(name, NULL) == FILES_IS_REMIX) assert_true(told == headless);
          if (told && files_kind_of(name, NULL) != FILES_IS_LOG) assert_true(report_has(disk, name));
        }
        simdisk_destroy(disk);
      }
    }
    assert_true(lossy > 10 && told_alone >= 2 * DAMAGES);
    simdisk_destroy(whole);
  }
}

// Where the number of its format is in a file of `size` bytes.
static uint64_t format_at(enum files_kind kind, int64_t size) {
  return kind == FILES_IS_TABLE ? (uint64_t)size - 12 : 8;
}

// Any bit of a format's number, in any file: that is damage, and not the file of a later library. All of it can still
// be read.
static void test_format_bits(void **state) {
  (void)state;
  struct simdisk *whole = make_store(REMIXDB_COMPRESSION_NONE);
  const struct name_list l = names_of(whole, DIR_NAME);
  const struct remixdb_opts o = options(REMIXDB_COMPRESSION_NONE);
  uint32_t refused = 0;
  for (uint32_t i = 0; i < l.nr; i++) {
    const enum files_kind kind = files_kind_of(l.names[i], NULL);
    if (kind == FILES_IS_LOCK || kind == FILES_IS_RESERVE) continue;
    for (uint32_t bit = 0; bit < 32; bit++) {
      struct simdisk *disk = simdisk_crash(whole, 1);
      struct xdb *x;
      const uint64_t at = format_at(kind, simdisk_size(disk, path_of(l.names[i]))) + bit / 8;
      assert_true(simdisk_flip(disk, path_of(l.names[i]), at, (uint8_t)(1u << bit % 8)));
      const enum remixdb_status s = xdb_open(DIR_NAME, &o, simdisk_env(disk), &x);
      if (s == REMIXDB_OK) OK(xdb_close(x));  // a spare of the log
      else FAILS(s, REMIXDB_CORRUPT);
      assert_true(s != REMIXDB_OK || kind == FILES_IS_LOG);
      refused += s != REMIXDB_OK;
      OK(repair_store(simdisk_env(disk), DIR_NAME, NULL));
      assert_int_equal(look(disk).newest, NR_KEYS);
      simdisk_destroy(disk);
    }
  }
  assert_true(refused >= 4 * 32);
  simdisk_destroy(whole);
}

// The number of a later format, and a checksum that is right: nothing is damaged, and repair touches nothing.
static void test_later_format(void **state) {
  (void)state;
  struct simdisk *whole = make_store(REMIXDB_COMPRESSION_NONE);
  const struct name_list l = names_of(whole, DIR_NAME);
  uint32_t refused = 0;
  for (uint32_t i = 0; i < l.nr; i++) {
    const enum files_kind kind = files_kind_of(l.names[i], NULL);
    if (kind != FILES_IS_CURRENT && kind != FILES_IS_TABLE && kind != FILES_IS_LOG) continue;  // a REMIX is not read
    struct simdisk *disk = simdisk_crash(whole, 1);
    const char *const path = path_of(l.names[i]);
    const size_t size = (size_t)simdisk_size(disk, path);
    uint8_t *const bytes = malloc(size), *const foot = bytes + size - 256;
    assert_true(bytes && simdisk_peek(disk, path, 0, bytes, size));
    bytes[format_at(kind, (int64_t)size)] += 5;
    if (kind == FILES_IS_CURRENT) store64le(bytes + size - 8, hash64(bytes, size - 8));
    if (kind == FILES_IS_TABLE) store64le(foot, hash64(foot + 8, 248));
    if (kind == FILES_IS_LOG) store64le(bytes + 504, hash64(bytes, 448));
    assert_true(simdisk_poke(disk, path, 0, bytes, size));
    free(bytes);
    FAILS(repair_store(simdisk_env(disk), DIR_NAME, NULL), REMIXDB_VERSION);
    assert_int_equal(names_of(disk, DIR_NAME).nr, l.nr);
    refused++;
    simdisk_destroy(disk);
  }
  assert_true(refused >= 3);
  simdisk_destroy(whole);
}

// The largest table of the store. Its name is in the list.
static const char *largest_table(struct simdisk *disk, const struct name_list *l) {
  const char *largest = NULL;
  for (uint32_t i = 0; i < l->nr; i++)
    if (files_kind_of(l->names[i], NULL) == FILES_IS_TABLE &&
        (!largest || simdisk_size(disk, path_of(l->names[i])) > simdisk_size(disk, path_of(largest))))
      largest = l->names[i];
  assert_non_null(largest);
  return largest;
}

// A table that cannot be opened, or not be looked at: it is counted and named as lost, all others and the log are kept.
static void test_unreadable(void **state) {
  (void)state;
  struct simdisk *whole = make_store(REMIXDB_COMPRESSION_NONE);
  const struct name_list l = names_of(whole, DIR_NAME);
  struct simdisk *disk = simdisk_crash(whole, 1);
  struct repair_report all;
  OK(repair_store(simdisk_env(disk), DIR_NAME, &all));
  simdisk_destroy(disk);
  for (uint32_t i = 0; i < l.nr; i++) {
    if (files_kind_of(l.names[i], NULL) != FILES_IS_TABLE) continue;
    for (uint32_t way = 0; way < 3; way++) {
      struct repair_report rep;
      disk = simdisk_crash(whole, 1);
      simdisk_fault_name(disk, l.names[i]);
      simdisk_fault(disk,
                    way == 0   ? SIMDISK_OPEN
                    : way == 1 ? SIMDISK_STAT
                               : SIMDISK_READ,
                    0, UINT64_MAX, way == 0 ? EACCES : EIO);
      OK(repair_store(simdisk_env(disk), DIR_NAME, &rep));
      for (uint32_t c = 0; c < SIMDISK_CALLS; c++) simdisk_fault(disk, (enum simdisk_call)c, 0, 0, 0);
      assert_int_equal(rep.tables_lost, 1);
      assert_int_equal(rep.tables, all.tables - 1);
      assert_int_equal(rep.log_records, all.log_records);
      assert_true(report_has(disk, l.names[i]));
      (void)look(disk);
      simdisk_destroy(disk);
    }
  }
  simdisk_destroy(whole);
}

// A lack of descriptors is no damage: the repair fails, and the next one has it all.
static void test_no_descriptor(void **state) {
  (void)state;
  for (uint32_t way = 0; way < 2; way++) {
    struct simdisk *whole = make_store(way ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    if (way)
      assert_true(simdisk_flip(whole, DIR_NAME "/CURRENT", 30,
                               1));  // and nothing says whose the tables are but they and the log
    uint32_t refused = 0;
    bool hit = true;
    for (uint64_t skip = 0; hit; skip++) {
      struct simdisk *disk = simdisk_crash(whole, 1);
      struct repair_report rep;
      simdisk_fault(disk, SIMDISK_OPEN, skip, UINT64_MAX, EMFILE);
      const enum remixdb_status s = repair_store(simdisk_env(disk), DIR_NAME, &rep);
      hit = simdisk_calls(disk, SIMDISK_OPEN) > skip;
      simdisk_fault(disk, SIMDISK_OPEN, 0, 0, 0);
      if (hit) FAILS(s, REMIXDB_NOMEM);
      else OK(s);
      refused += hit;
      if (hit) OK(repair_store(simdisk_env(disk), DIR_NAME, &rep));
      assert_true(rep.tables_lost == 0 && rep.tables_damaged == 0);
      assert_int_equal(look(disk).newest, NR_KEYS);
      simdisk_destroy(disk);
    }
    assert_true(refused > 10);
    simdisk_destroy(whole);
  }
}

// The disk, where one sector of one file cannot be read. One at a time.
static struct {
  struct env *disk;
  struct env_ops ops;
  struct env env;
  const char *name;
  uint64_t at;
  int fd;
} bad;

static int bad_open(struct env *e, int at, const char *path, unsigned flags) {
  (void)e;
  const int fd = bad.disk->ops->open(bad.disk, at, path, flags);
  if (fd >= 0 && strcmp(path, bad.name) == 0) bad.fd = fd;
  return fd;
}
static int bad_close(struct env *e, int fd) {
  (void)e;
  if (fd == bad.fd) bad.fd = -1;
  return bad.disk->ops->close(bad.disk, fd);
}
static ssize_t bad_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  (void)e;
  if (fd == bad.fd && off < bad.at + 512 && bad.at < off + len) return -EIO;
  return bad.disk->ops->pread(bad.disk, fd, buf, len, off);
}
static struct env *bad_env(struct simdisk *disk, const char *name, uint64_t at) {
  bad.disk = simdisk_env(disk);
  bad.name = name;
  bad.at = at;
  bad.fd = -1;
  bad.ops = *bad.disk->ops;
  bad.ops.open = bad_open;
  bad.ops.close = bad_close;
  bad.ops.pread = bad_pread;
  bad.env = *bad.disk;
  bad.env.ops = &bad.ops;
  return &bad.env;
}

// A sector that cannot be read takes its block with it, whether there is metadata or not, and nothing before or after.
static void test_bad_sector(void **state) {
  (void)state;
  struct simdisk *whole = make_store(REMIXDB_COMPRESSION_NONE);
  const struct name_list l = names_of(whole, DIR_NAME);
  const char *const name = largest_table(whole, &l);
  const uint64_t size = (uint64_t)simdisk_size(whole, path_of(name));
  for (uint32_t headless = 0; headless < 2; headless++) {
    for (uint64_t at = 1000; at < size / 2; at += 5 * BLOCK_PAGE) {
      struct simdisk *disk = simdisk_crash(whole, 1);
      struct repair_report rep;
      if (headless) assert_true(simdisk_flip(disk, path_of(name), size - 1, 0x5a));
      OK(repair_store(bad_env(disk, name, at), DIR_NAME, &rep));
      assert_int_equal(rep.tables_damaged, 1);
      const struct tally t = look(disk);
      assert_true(t.newest + 70 > NR_KEYS && t.newest < NR_KEYS);
      simdisk_destroy(disk);
    }
  }
  simdisk_destroy(whole);
}

// The same with blocks of several pages.
static void test_bad_sector_long(void **state) {
  (void)state;
  enum { NR = 38, LEN = 16000 };
  struct simdisk *whole = simdisk_create();
  const struct remixdb_opts o = options(REMIXDB_COMPRESSION_NONE);
  struct xdb *x;
  struct xdb_ref *r;
  static uint8_t value[LEN];
  OK(xdb_open(DIR_NAME, &o, simdisk_env(whole), &x));
  x->compact.apart_from = 0;  // the values are in the table
  OK(xdb_ref(x, &r));
  for (uint32_t i = 0; i < NR; i++) {
    char k[64];
    memset(value, (int)i, LEN);
    OK(xdb_put(r, KV_REC(kref(k, key_of(i, k)), value, LEN, false)));
  }
  x->compact.memtable_size = 0;
  OK(xdb_flush(x));
  xdb_unref(r);
  OK(xdb_close(x));
  const struct name_list l = names_of(whole, DIR_NAME);
  const char *const name = largest_table(whole, &l);
  const uint64_t size = (uint64_t)simdisk_size(whole, path_of(name));
  assert_true(size > NR * LEN && simdisk_flip(whole, path_of(name), size - 1, 0x5a));
  for (uint64_t page = 0; page < NR * LEN / BLOCK_PAGE; page += 7) {
    struct simdisk *disk = simdisk_crash(whole, 1);
    uint32_t kept = 0;
    OK(repair_store(bad_env(disk, name, page * BLOCK_PAGE + 2048), DIR_NAME, NULL));
    OK(xdb_open(DIR_NAME, &o, simdisk_env(disk), &x));
    OK(xdb_ref(x, &r));
    for (uint32_t i = 0; i < NR; i++) {
      char k[64];
      uint32_t len;
      const enum remixdb_status s = xdb_get(r, kref(k, key_of(i, k)), value, LEN, &len);
      assert_true(s == REMIXDB_NOTFOUND || (s == REMIXDB_OK && len == LEN && value[0] == i && value[LEN - 1] == i));
      kept += s == REMIXDB_OK;
    }
    assert_int_equal(kept, NR - 1);
    xdb_unref(r);
    OK(xdb_close(x));
    simdisk_destroy(disk);
  }
  simdisk_destroy(whole);
}

// A frame in the middle of the log is broken: those after it are kept.
static void test_log(void **state) {
  (void)state;
  struct simdisk *disk = simdisk_create();
  const struct remixdb_opts o = options(REMIXDB_COMPRESSION_NONE);
  struct xdb *x;
  struct xdb_ref *r;
  OK(xdb_open(DIR_NAME, &o, simdisk_env(disk), &x));
  OK(xdb_ref(x, &r));
  uint64_t at[10];
  for (uint32_t i = 0; i < 10; i++) {
    char k[16];
    at[i] = wal_segment_bytes(x->wal);
    OK(xdb_put(r, KV_REC(kref(k, (uint32_t)snprintf(k, sizeof(k), "key%u", i)), "value", 5, false)));
    OK(xdb_sync(r));
  }
  xdb_unref(r);
  x->leave_log = true;
  OK(xdb_close(x));
  assert_true(simdisk_flip(disk, DIR_NAME "/wal-0", at[4] + 8, 1));
  FAILS(xdb_open(DIR_NAME, &o, simdisk_env(disk), &x), REMIXDB_CORRUPT);
  struct repair_report rep;
  OK(repair_store(simdisk_env(disk), DIR_NAME, &rep));
  assert_true(rep.log_records == 9 && rep.log_bytes_lost > 0);
  OK(xdb_open(DIR_NAME, &o, simdisk_env(disk), &x));
  OK(xdb_ref(x, &r));
  for (uint32_t i = 0; i < 10; i++) {
    char k[16];
    assert_int_equal(xdb_get(r, kref(k, (uint32_t)snprintf(k, sizeof(k), "key%u", i)), NULL, 0, NULL),
                     i == 4 ? REMIXDB_NOTFOUND : REMIXDB_OK);
  }
  xdb_unref(r);
  OK(xdb_close(x));
  simdisk_destroy(disk);
}

// Power goes at a change, and again in the repair that ends it: until a repair has ended the store does not open as
// anything else than what it was, and after it all is there.
static void test_cuts(void **state) {
  (void)state;
  struct simdisk *whole = make_store(REMIXDB_COMPRESSION_NONE);
  const struct remixdb_opts o = options(REMIXDB_COMPRESSION_NONE);
  simdisk_flip(whole, DIR_NAME "/CURRENT", 30, 1);
  const char *all = getenv("REPAIR_ALL");  // every change; else one in a few
  uint32_t refused = 0, opened = 0;
  for (uint64_t cut = 0;; cut += all ? 1 : 1 + cut % 5) {
    struct simdisk *disk = simdisk_crash(whole, 3);
    simdisk_power_off(disk, cut);
    IGNORED(repair_store(simdisk_env(disk), DIR_NAME, NULL), "the power may have gone");
    const bool off = simdisk_is_off(disk);
    struct simdisk *after = simdisk_crash(disk, cut * 11 + 5);
    simdisk_destroy(disk);
    for (uint32_t again = 0; again < 2; again++) {
      struct xdb *x;
      const enum remixdb_status s = xdb_open(DIR_NAME, &o, simdisk_env(after), &x);
      if (s == REMIXDB_OK) {
        OK(xdb_close(x));
        opened++;
        assert_int_equal(look(after).newest, NR_KEYS);
        break;
      }
      FAILS(s, REMIXDB_CORRUPT);
      refused++;
      if (again == 0) {  // cut a second time, early or late
        simdisk_power_off(after, cut % 2 ? cut % 40 : cut);
        const enum remixdb_status second = repair_store(simdisk_env(after), DIR_NAME, NULL);
        (void)second;
        struct simdisk *next = simdisk_crash(after, cut * 13 + 7);
        simdisk_destroy(after);
        after = next;
      }
    }
    const enum remixdb_status last = repair_store(simdisk_env(after), DIR_NAME, NULL);
    OK(last);
    assert_int_equal(look(after).newest, NR_KEYS);
    simdisk_destroy(after);
    if (!off) break;
  }
  assert_true(refused > 10 && opened >= 1);
  simdisk_destroy(whole);
}

// Files of other programs may have names like ours: no store is made of what shows nothing of one, and nothing is
// moved.
static void test_others(void **state) {
  (void)state;
  static const struct {
    const char *name, *text;
  } dirs[][4] = {
      {{"CURRENT", "MANIFEST-000005\n"}, {"LOCK", ""}, {"000009.sst", "a table of another store"}},
      {{"LOCK", ""}},
      {{"LOCK", ""}, {"notes.txt", "n"}},
      {{"000009.sst", "mine"}},
  };
  for (uint32_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
    struct simdisk *disk = simdisk_create();
    struct env *env = simdisk_env(disk);
    uint32_t nr = 0;
    OK(env_mkdir(ENV_PATHS(env), DIR_NAME));
    for (; nr < 4 && dirs[i][nr].name; nr++) {
      int fd;
      OK(env_open(ENV_PATHS(env), path_of(dirs[i][nr].name), ENV_WRITE | ENV_CREATE, &fd));
      OK(env_write(env, fd, dirs[i][nr].name, dirs[i][nr].text, strlen(dirs[i][nr].text), 0));
      OK(env_close(env, fd, dirs[i][nr].name));
    }
    const uint64_t changes = simdisk_changes(disk);
    FAILS(repair_store(env, DIR_NAME, NULL), REMIXDB_NOTFOUND);
    assert_int_equal(simdisk_changes(disk), changes);
    assert_int_equal(names_of(disk, DIR_NAME).nr, nr);
    simdisk_destroy(disk);
  }
}

static void test_refusals(void **state) {
  (void)state;
  struct simdisk *disk = make_store(REMIXDB_COMPRESSION_NONE);
  const struct remixdb_opts o = options(REMIXDB_COMPRESSION_NONE);
  struct xdb *x;
  OK(xdb_open(DIR_NAME, &o, simdisk_env(disk), &x));
  FAILS(repair_store(simdisk_env(disk), DIR_NAME, NULL), REMIXDB_LOCKED);
  OK(xdb_close(x));
  FAILS(repair_store(simdisk_env(disk), "/nowhere", NULL), REMIXDB_NOTFOUND);
  OK(env_mkdir(ENV_PATHS(simdisk_env(disk)), "/empty"));
  FAILS(repair_store(simdisk_env(disk), "/empty", NULL), REMIXDB_NOTFOUND);
  simdisk_destroy(disk);
}

// Without room for a second copy, or with anything else that fails before it is whole, nothing changes, and no room is
// taken.
static void test_nothing_left(void **state) {
  (void)state;
  struct simdisk *disk = make_store(REMIXDB_COMPRESSION_NONE);
  const struct name_list before = names_of(disk, DIR_NAME);
  const uint64_t used = simdisk_used(disk);
  uint32_t refused = 0;
  enum remixdb_status s = REMIXDB_NOSPACE;
  for (uint64_t room = 0; s != REMIXDB_OK; room += 24 << 10) {
    simdisk_space(disk, used + room);
    s = repair_store(simdisk_env(disk), DIR_NAME, NULL);
    simdisk_space(disk, UINT64_MAX);
    if (s == REMIXDB_OK) break;
    FAILS(s, REMIXDB_NOSPACE);
    assert_int_equal(simdisk_used(disk), used);
    assert_int_equal(names_of(disk, DIR_NAME).nr, before.nr);
    refused++;
  }
  assert_true(refused > 5);
  assert_int_equal(look(disk).newest, NR_KEYS);
  simdisk_destroy(disk);
  // every step that makes something, until there is none that fails
  static const enum simdisk_call calls[] = {SIMDISK_OPEN, SIMDISK_WRITE, SIMDISK_SYNC, SIMDISK_MKDIR};
  struct simdisk *whole = make_store(REMIXDB_COMPRESSION_NONE);
  for (uint32_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
    refused = 0;
    for (uint64_t skip = 0;; skip++) {
      bool pending;
      disk = simdisk_crash(whole, 1);
      simdisk_fault(disk, calls[c], skip, 1, ENOSPC);
      s = repair_store(simdisk_env(disk), DIR_NAME, NULL);
      const bool hit = simdisk_calls(disk, calls[c]) > skip;
      simdisk_fault(disk, calls[c], 0, 0, 0);
      OK(files_repair_pending(simdisk_dir(simdisk_env(disk), DIR_NAME), &pending));
      if (s != REMIXDB_OK && !pending && names_of(disk, DIR_NAME).nr == before.nr) refused++;
      else if (s != REMIXDB_OK && !pending)
        assert_true(names_of(disk, DIR_NAME "/lost.1").nr > 0);  // it is done, all but the end
      if (pending) OK(repair_store(simdisk_env(disk), DIR_NAME, NULL));
      assert_int_equal(look(disk).newest, NR_KEYS);
      simdisk_destroy(disk);
      if (!hit) break;
    }
    assert_true(refused > 0);
  }
  simdisk_destroy(whole);
}

// Makes a store with two deleted ranges. The records of the first are still in tables. Only the log has the second.
static struct tiny *make_ranges(void) {
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_NONE);
  uint8_t key[16];
  tiny_open(t);
  for (uint32_t i = 0; i < 200; i++) tiny_put(t, kref(key, (uint32_t)snprintf((char *)key, 16, "%04u", i)), 30, false);
  OK(xdb_flush(t->x));
  t->x->ranges = (struct range_limits){0, 0, 0};
  OK(xdb_del_range(t->ref, kref("0050", 4), kref("0100", 4)));
  tiny_put(t, kref("0150", 4), 31, false);
  const uint64_t gen = xdb_super(t->x)->version->log_gen;
  OK(xdb_flush(t->x));
  CHECK(xdb_super(t->x)->version->log_gen > gen);  // the log does not have it any more
  OK(xdb_del_range(t->ref, kref("0120", 4), kref("0130", 4)));
  for (uint32_t i = 0; i < t->nr; i++) {
    const struct kref k = kref(t->recs[i].key, t->recs[i].klen);
    const bool first = kv_cmp(k, kref("0050", 4)) >= 0 && kv_cmp(k, kref("0100", 4)) < 0;
    if (first || (kv_cmp(k, kref("0120", 4)) >= 0 && kv_cmp(k, kref("0130", 4)) < 0)) t->recs[i].there = false;
  }
  tiny_put(t, kref("0125", 4), 9, false);
  OK(xdb_sync(t->ref));
  OK(tiny_close(t));
  return t;
}

// Keys that were deleted as a range stay deleted.
static void test_ranges(void **state) {
  (void)state;
  struct tiny *const t = make_ranges();
  struct repair_report report;
  OK(repair_store(simdisk_env(t->disk), TINY_DIR, &report));
  assert_int_equal(report.losses, 0);
  tiny_check(t, false);
  tiny_destroy(t);
}

// They come back if the index cannot be read that tells it. The report counts that as a loss.
static void test_ranges_come_back(void **state) {
  (void)state;
  uint32_t nr = 0;
  struct tiny *const t = make_ranges();
  const struct name_list l = names_of(t->disk, TINY_DIR);
  for (uint32_t i = 0; i < l.nr * DAMAGES; i++) {
    const char *const name = l.names[i / DAMAGES];
    const enum files_kind kind = files_kind_of(name, NULL);
    const enum damage what = (enum damage)(i % DAMAGES);
    if (kind != FILES_IS_REMIX && (kind != FILES_IS_TABLE || what != LAST))
      continue;  // a table's last byte is metadata
    struct simdisk *const disk = simdisk_crash(t->disk, 1);
    struct repair_report report;
    damage(disk, TINY_DIR, name, what);
    OK(repair_store(simdisk_env(disk), TINY_DIR, &report));
    assert_true(report.losses > 0 && strstr(report.told, "LOST"));
    simdisk_destroy(disk);
    nr++;
  }
  assert_true(nr > DAMAGES);
  tiny_destroy(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ranges),
      cmocka_unit_test(test_ranges_come_back),
      BOTH(test_whole),
      BOTH(test_each_file),
      BOTH(test_unreadable),
      OLD(test_no_descriptor),
      OLD(test_bad_sector),
      OLD(test_bad_sector_long),
      OLD(test_log),
      BOTH(test_cuts),
      OLD(test_refusals),
      BOTH(test_format_bits),
      BOTH(test_told),
      OLD(test_later_format),
      OLD(test_nothing_left),
      OLD(test_others),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
