// SPDX-License-Identifier: Apache-2.0
//
// Files that have a name of the store's and are not the store's: symbolic links, pipes, files of others and of other
// stores, second names of its own files; and files of another history: of a copy, or of the source of a checkpoint,
// that went on by itself. The store waits for none of them, and writes to, cuts or removes none.
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "admin/checkpoint.h"
#include "admin/destroy.h"
#include "admin/repair.h"
#include "admin/verify.h"
#include "store/flush.h"
#include "store/syncer.h"

#define VALUE 900u

static struct env *e;
static struct simdisk *disk;
static struct remixdb_opts opts;

static const char *path_in(const char *store, const char *name) {
  static char paths[8][700];
  static uint32_t next;
  char *const p = paths[next++ % 8];
  (void)snprintf(p, sizeof(paths[0]), "%s/%s%s%s", dir, store, name ? "/" : "", name ? name : "");
  return p;
}

static void on_disk(void) {
  disk = simdisk_create();
  e = simdisk_env(disk);
  (void)snprintf(dir, sizeof(dir), "/s");
  OK(env_mkdir(ENV_PATHS(e), dir));
  OK(paths_sync_dir(e, "/"));
  opts = small_opts(0);
}

static void off_disk(void) {
  CHECK(simdisk_open_files(disk) == 0);
  simdisk_destroy(disk);
}

static struct xdb_ref *r;
static struct xdb *begin(const char *store) {
  struct xdb *x;
  OK(xdb_open(path_in(store, NULL), &opts, e, &x));
  OK(xdb_ref(x, &r));
  return x;
}

static void end(struct xdb *x) {
  xdb_unref(r);
  OK(xdb_close(x));
}

// Rounds in which log segments are recycled and tables come and go.
static void write_from(struct xdb *x, uint32_t from, uint32_t to, char what) {
  char key[16], value[VALUE];
  memset(value, what, sizeof(value));
  for (uint32_t i = from; i < to; i++) {
    OK(xdb_put(r, KV_REC(kref(key, (uint32_t)snprintf(key, sizeof(key), "k%05u", i)), value, VALUE, false)));
    if (i % 20 == 19) OK(xdb_sync(r));
    if (i % 50 == 49) OK(xdb_flush(x));
  }
  OK(xdb_sync(r));
}

static void check_from(uint32_t from, uint32_t to, char what) {
  char key[16], value[VALUE];
  for (uint32_t i = from; i < to; i++) {
    OK(xdb_get(r, kref(key, (uint32_t)snprintf(key, sizeof(key), "k%05u", i)), value, VALUE, NULL));
    CHECK(value[0] == what && value[VALUE - 1] == what);
  }
}

static void make_store(const char *store, uint32_t nr, char what) {
  struct xdb *x = begin(store);
  write_from(x, 0, nr, what);
  OK(xdb_flush(x));
  end(x);
}

// ---- the files of a directory as they were

struct picture {
  uint32_t nr;
  char names[64][40];
  uint64_t sums[64], inos[64];
};

static const char *picture_of;
static bool picture_add(void *arg, const char *name) {
  struct picture *const p = arg;
  struct env_stat st;
  uint8_t *buf;
  size_t len;
  CHECK(p->nr < 64);
  OK(env_stat(ENV_PATHS(e), path_in(picture_of, name), &st));
  (void)snprintf(p->names[p->nr], sizeof(p->names[0]), "%s", name);
  p->inos[p->nr] = st.ino;
  p->sums[p->nr] = 0;
  if (st.is_file) {
    OK(paths_read_file(ENV_PATHS(e), path_in(picture_of, name), 64 << 20, &buf, &len));
    p->sums[p->nr] = hash64(buf, len) + len;
    mem_free(buf);
  }
  p->nr++;
  return true;
}

static struct picture picture(const char *store) {
  struct picture p = {.nr = 0};
  picture_of = store;
  OK(paths_list(e, path_in(store, NULL), picture_add, &p));
  return p;
}

static uint32_t picture_find(const struct picture *p, const char *name) {
  uint32_t i = 0;
  while (i < p->nr && strcmp(p->names[i], name) != 0) i++;
  return i;
}

static void expect_same(const struct picture *was, const struct picture *now) {
  CHECK(was->nr == now->nr);
  for (uint32_t i = 0; i < was->nr; i++) {
    const uint32_t k = picture_find(now, was->names[i]);
    if (k == now->nr || was->sums[i] != now->sums[k]) fail_msg("%s has changed", was->names[i]);
  }
}

// Those that were there under these names are there, untouched.
static void expect_kept(const struct picture *was, const struct picture *now, const char *const *names, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t a = picture_find(was, names[i]), b = picture_find(now, names[i]);
    CHECK(a < was->nr);
    if (b == now->nr || was->inos[a] != now->inos[b] || was->sums[a] != now->sums[b])
      fail_msg("%s is not what it was", names[i]);
  }
}

static void file_put(const char *store, const char *name, const void *buf, size_t len) {
  int fd;
  const char *const path = path_in(store, name);
  OK(env_create(ENV_PATHS(e), path, ENV_WRITE, &fd));
  OK(env_write(e, fd, path, buf, len, 0));
  OK(env_sync_all(e, fd, path));
  OK(env_close(e, fd, path));
}

static void file_copy(const char *from, const char *from_name, const char *to, const char *to_name) {
  uint8_t *buf;
  size_t len;
  OK(paths_read_file(ENV_PATHS(e), path_in(from, from_name), 64 << 20, &buf, &len));
  file_put(to, to_name, buf, len);
  mem_free(buf);
}

static const char *name_with(const struct picture *p, const char *end) {
  for (uint32_t i = 0; i < p->nr; i++)
    if (strstr(p->names[i], end)) return p->names[i];
  fail_msg("no file %s", end);
  return NULL;
}

// ---- foreign files

// Links and pipes, a text, another store's log, table and REMIX: all under names of a log's or a table's.
static void test_foreign(void **state) {
  (void)state;
  static const char *const foreign[] = {"wal-0",      "wal-4",      "wal-5",        "wal-6",      "000040.sst",
                                        "000041.sst", "000042.sst", "000043.remix", "000050.sst", "RESERVE"};
  const uint32_t nr = sizeof(foreign) / sizeof(foreign[0]);
  on_disk();
  make_store("other", 200, 'o');
  make_store("one", 300, 'a');
  const struct picture other = picture("other");
  CHECK(simdisk_size(disk, path_in("one", "wal-0")) >= 0);
  // the number of the log's only file is taken away from it
  OK(env_rename(ENV_PATHS(e), path_in("one", "wal-0"), ENV_PATHS(e), path_in("one", "wal-12")));
  simdisk_special(disk, path_in("one", "wal-0"), ENXIO);
  simdisk_special(disk, path_in("one", "wal-4"), ELOOP);
  file_put("one", "wal-5", "a text of somebody's", 20);
  file_copy("other", name_with(&other, "wal-"), "one", "wal-6");
  simdisk_special(disk, path_in("one", "000040.sst"), ELOOP);
  simdisk_special(disk, path_in("one", "000041.sst"), ENXIO);
  file_copy("other", name_with(&other, ".sst"), "one", "000042.sst");
  file_copy("other", name_with(&other, ".remix"), "one", "000043.remix");
  OK(env_mkdir(ENV_PATHS(e), path_in("one", "000050.sst")));
  file_put("one", "RESERVE", "a text", 6);
  OK(paths_sync_dir(e, path_in("one", NULL)));
  const struct picture was = picture("one");
  for (uint32_t i = 0; i < 6; i++) {
    struct xdb *x = begin("one");
    check_from(0, 300 + 200 * i, 'a');
    write_from(x, 300 + 200 * i, 500 + 200 * i, 'a');
    struct verify_report report;
    OK(verify_store(r, &report));
    end(x);
    const struct picture now = picture("one");
    expect_kept(&was, &now, foreign, nr);
  }
  // the end of the store is not theirs
  OK(destroy_store(e, path_in("one", NULL)));
  const struct picture now = picture("one");
  static const char *const stay[] = {"wal-0",      "wal-4",      "wal-6",        "000040.sst",
                                     "000041.sst", "000042.sst", "000043.remix", "000050.sst"};
  expect_kept(&was, &now, stay, sizeof(stay) / sizeof(stay[0]));
  CHECK(now.nr == sizeof(stay) / sizeof(stay[0]));
  off_disk();
}

// Where CURRENT or LOCK is no file, nothing is opened and nothing is waited for.
static void test_no_files(void **state) {
  (void)state;
  static const char *const names[] = {"CURRENT", "LOCK"};
  static const int errnums[] = {ELOOP, ENXIO, EMLINK};
  for (uint32_t i = 0; i < 6; i++) {
    struct xdb *x;
    on_disk();
    make_store("one", 60, 'a');
    OK(env_unlink(ENV_PATHS(e), path_in("one", names[i % 2])));
    simdisk_special(disk, path_in("one", names[i % 2]), errnums[i / 2]);
    CHECK(xdb_open(path_in("one", NULL), &opts, e, &x) == REMIXDB_IO);
    CHECK(strstr(err_msg(), "not a file") && strstr(err_msg(), names[i % 2]));
    off_disk();
  }
}

// A repair's directories that are none lead nowhere.
static void test_repair_links(void **state) {
  (void)state;
  static const char *const names[] = {"repair.new", "repair.done", "repair.in"};
  on_disk();
  make_store("one", 60, 'a');
  for (uint32_t i = 0; i < 3; i++) simdisk_special(disk, path_in("one", names[i]), ELOOP);
  const struct picture was = picture("one");
  end(begin("one"));
  CHECK(repair_store(e, path_in("one", NULL), NULL) == REMIXDB_IO);
  struct picture now = picture("one");
  expect_kept(&was, &now, names, 3);
  OK(destroy_store(e, path_in("one", NULL)));
  now = picture("one");
  expect_kept(&was, &now, names, 3);
  CHECK(now.nr == 3);
  off_disk();
}

// ---- second names

static const char *link_from, *link_to;
static bool link_one(void *arg, const char *name) {
  int fd;
  (void)arg;
  // on disk, too: RESERVE is not synced by the store
  OK(env_open(ENV_PATHS(e), path_in(link_from, name), ENV_READ | ENV_WRITE, &fd));
  OK(env_sync_all(e, fd, name));
  env_close_quiet(e, fd);
  OK(env_link(ENV_PATHS(e), path_in(link_from, name), ENV_PATHS(e), path_in(link_to, name)));
  return true;
}

// As cp -al does.
static void link_all(const char *from, const char *to) {
  OK(env_mkdir(ENV_PATHS(e), path_in(to, NULL)));
  link_from = from;
  link_to = to;
  OK(paths_list(e, path_in(from, NULL), link_one, NULL));
  OK(paths_sync_dir(e, path_in(to, NULL)));
  OK(paths_sync_dir(e, dir));
}

// A copy by hard links stays what it was, whatever becomes of the store, and the other way round. cut: the machine
// stops before the store is closed.
static void run_copy(bool cut, uint32_t writes) {
  on_disk();
  struct xdb *x = begin("one");
  write_from(x, 0, writes, 'a');
  if (cut) {
    struct simdisk *const before = disk;
    disk = simdisk_crash(before, writes);
    xdb_unref(r);
    OK(xdb_close(x));
    simdisk_destroy(before);
    e = simdisk_env(disk);
  } else {
    end(x);
  }
  link_all("one", "copy");
  const struct picture was = picture("copy");
  for (uint32_t i = 0; i < 4; i++) {
    x = begin("one");
    // closed with the log that was replayed still in use
    if (i == 0) OK(xdb_put(r, KV_REC(kref("a", 1), "b", 1, false)));
    if (i == 0) end(x), x = begin("one");
    write_from(x, writes + 100 * i, writes + 100 * i + 100, 'b');
    if (i == 2) OK(xdb_compact(x));
    end(x);
    const struct picture now = picture("copy");
    expect_same(&was, &now);
  }
  // power goes while the store is in use again: the copy is unchanged
  x = begin("one");
  simdisk_power_off(disk, 30);
  char value[VALUE] = "x";
  for (uint32_t i = 0; i < 100; i++) {
    enum remixdb_status s = xdb_put(r, KV_REC(kref("z", 1), value, VALUE, false));
    if (s == REMIXDB_OK && i % 3 == 0) s = xdb_sync(r);
    if (s == REMIXDB_OK && i % 9 == 0) s = xdb_flush(x);
    (void)s;
  }
  struct simdisk *const whole = disk;
  disk = simdisk_crash(whole, writes);
  simdisk_power_on(whole);
  xdb_unref(r);
  const enum remixdb_status closed = xdb_close(x);
  (void)closed;
  simdisk_destroy(whole);
  e = simdisk_env(disk);
  const struct picture after = picture("copy");
  expect_same(&was, &after);
  const struct picture one = picture("one");
  x = begin("copy");
  check_from(0, writes, 'a');
  write_from(x, writes, writes + 300, 'c');
  end(x);
  const struct picture still = picture("one");
  expect_same(&one, &still);
  x = begin("one");
  check_from(0, writes, 'a');
  check_from(writes, writes + 400, 'b');
  end(x);
  off_disk();
}

static void test_copy(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 24; i++) run_copy(i % 2, 10 + 37 * i);
}

// ---- two histories of one store

// The records of a store, as a sum. The scan reads everything.
static enum remixdb_status sum_of(const char *store, bool read_only, uint64_t *sum_out) {
  struct remixdb_opts o = opts;
  struct xdb *x;
  struct xdb_iter *it;
  o.read_only = read_only;
  o.create = false;
  enum remixdb_status s = xdb_open(path_in(store, NULL), &o, e, &x);
  if (s != REMIXDB_OK) return s;
  OK(xdb_ref(x, &r));
  OK(xdb_iter_create(r, &it));
  *sum_out = 0;
  for (s = xdb_iter_seek(it, kref("", 0)); s == REMIXDB_OK && xdb_iter_valid(it); s = xdb_iter_skip(it, 1)) {
    struct kv_rec rec;
    OK(xdb_iter_record(it, &rec));
    *sum_out = hash64_seed(rec.val, rec.vlen, hash64_seed(rec.key, rec.klen, *sum_out + 1));
  }
  xdb_iter_destroy(it);
  x->leave_log = true;
  end(x);
  return s;
}

static const char *copy_from, *copy_to;
static bool copy_one(void *arg, const char *name) {
  (void)arg;
  if (strcmp(name, "LOCK") != 0) file_copy(copy_from, name, copy_to, name);
  return true;
}

// As cp -r does.
static void copy_all(const char *from, const char *to) {
  OK(env_mkdir(ENV_PATHS(e), path_in(to, NULL)));
  copy_from = from;
  copy_to = to;
  OK(paths_list(e, path_in(from, NULL), copy_one, NULL));
  OK(paths_sync_dir(e, path_in(to, NULL)));
}

// How a copy of a store goes on.
enum going {
  STAYS,     // not at all
  OPENED,    // opened and closed
  LOGS,      // records that stay in the log, of one opening
  LOGS_ON,   // the same of three openings
  FLUSHES,   // tables
  CRASHES,   // tables, then records in the log, and no end
  COMPACTS,  // all tables are merged, and no record is new
  ADDS,      // tables with keys that no other copy has
  GOINGS
};

static void go_on(const char *store, enum going how, char what) {
  if (how == STAYS) return;
  for (uint32_t life = 0; life < (how == LOGS_ON ? 3 : 1); life++) {
    struct xdb *x = begin(store);
    char key[16], value[VALUE];
    memset(value, what, sizeof(value));
    if (how == FLUSHES || how == CRASHES) write_from(x, 0, 100, what);
    if (how == COMPACTS) OK(xdb_compact(x));
    if (how == ADDS) write_from(x, what * 100u, what * 100u + 60, what);
    for (uint32_t i = 0; i < 8 && (how == LOGS || how == LOGS_ON || how == CRASHES); i++) {
      OK(xdb_put(r, KV_REC(kref(key, (uint32_t)snprintf(key, sizeof(key), "log%u.%u", life, i)), value, 50, false)));
      OK(xdb_sync(r));
    }
    if (how == FLUSHES || how == ADDS) OK(xdb_flush(x));
    else x->leave_log = true;
    end(x);
  }
}

// Results of files of one history in the other, by kind of file.
enum { OF_TABLE, OF_REMIX, OF_LOG, OF_CURRENT, OF_KINDS };
struct outcomes {
  uint32_t refused[OF_KINDS], told[OF_KINDS], other[OF_KINDS], clean[OF_KINDS];
};

static int kind_of(const char *name) {
  return strstr(name, ".sst") ? OF_TABLE : strstr(name, ".remix") ? OF_REMIX : name[0] == 'w' ? OF_LOG : OF_CURRENT;
}

// Whether the store has the other one's files, but for those that no version names: then it is the other one.
static bool is_other(const char *store, const char *other) {
  const struct picture a = picture(store), b = picture(other);
  for (uint32_t i = 0; i < b.nr; i++) {
    const char *const name = b.names[i];
    if (strcmp(name, "LOCK") == 0 || strcmp(name, "RESERVE") == 0) continue;
    const uint32_t k = picture_find(&a, name);
    if (k == a.nr || a.sums[k] != b.sums[i]) return false;
  }
  return true;
}

// A repair of a store with a file of another history tells of the loss, if there is any: the store's sum was `own`. It
// takes no record of a foreign table. A segment of the log that both histories continued is another matter: nothing
// tells which of them is the store's. alien: all values of the other one begin with this. Returns whether it finds
// none.
static bool check_repaired(const char *store, char alien, uint64_t own) {
  struct repair_report report;
  uint64_t sum;
  OK(repair_store(e, path_in(store, NULL), &report));
  OK(sum_of(store, false, &sum));
  CHECK(report.losses > 0 || sum == own);
  struct xdb *x = begin(store);
  struct xdb_iter *it;
  uint32_t aliens = 0;
  OK(xdb_iter_create(r, &it));
  OK(xdb_iter_seek(it, kref("", 0)));
  for (; xdb_iter_valid(it); OK(xdb_iter_skip(it, 1))) {
    struct kv_rec rec;
    OK(xdb_iter_record(it, &rec));
    aliens += ((const char *)rec.val)[0] == alien;
  }
  xdb_iter_destroy(it);
  end(x);
  CHECK(report.losses > 0 || aliens == 0);
  return aliens == 0;
}

// Files of `from` come into a copy of `to`, one by one. A file that the store needs is refused. A file that it does not
// need changes nothing. If all that differed was the file, the store has become the other one.
static void exchange(const char *from, const char *to, char alien, struct outcomes *out) {
  const struct picture theirs = picture(from), ours = picture(to);
  uint64_t own = 0, sum = 0;
  copy_all(to, "is");
  OK(sum_of("is", true, &own));
  OK(destroy_store(e, path_in("is", NULL)));
  for (uint32_t i = 0; i < theirs.nr; i++) {
    const char *const name = theirs.names[i];
    const uint32_t k = picture_find(&ours, name);
    if (strcmp(name, "LOCK") == 0 || strcmp(name, "RESERVE") == 0) continue;
    if (k < ours.nr && ours.sums[k] == theirs.sums[i]) continue;
    char mix[16];
    static uint32_t nr_mixed;  // a repair leaves a directory in each
    (void)snprintf(mix, sizeof(mix), "mix%u", nr_mixed++);
    (void)snprintf(check_what, sizeof(check_what), "%s of %s in %s", name, from, to);
    copy_all(to, mix);
    file_copy(from, name, mix, name);
    OK(paths_sync_dir(e, path_in(mix, NULL)));
    const int kind = kind_of(name);
    const bool other = is_other(mix, from);
    const struct picture before = picture(mix);
    const enum remixdb_status s = sum_of(mix, true, &sum);
    if (s == REMIXDB_OK) {
      CHECK(other || sum == own);
      out->other[kind]++;
      OK(destroy_store(e, path_in(mix, NULL)));
      continue;
    }
    FAILS(s, REMIXDB_CORRUPT);
    out->refused[kind]++;
    out->told[kind] += strstr(err_msg(), "another history") != NULL || strstr(err_msg(), "another store") != NULL;
    // nor does an opening that may write change anything
    FAILS(sum_of(mix, false, &sum), REMIXDB_CORRUPT);
    const struct picture after = picture(mix);
    expect_kept(&before, &after, &name, 1);
    if (kind == OF_TABLE || kind == OF_LOG) out->clean[kind] += check_repaired(mix, alien, own);
    OK(destroy_store(e, path_in(mix, NULL)));
  }
  check_what[0] = 0;
}

// Two copies go on in each way there is. Then each file of the one comes into the other.
static void test_parted_copies(void **state) {
  (void)state;
  struct outcomes all = {0};
  for (enum going a = OPENED; a < GOINGS; a++) {
    for (enum going b = STAYS; b < GOINGS; b++) {
      on_disk();
      make_store("base", 100, 'o');
      copy_all("base", "one");
      copy_all("base", "two");
      go_on("one", a, 'A');
      go_on("two", b, 'B');
      exchange("one", "two", 'A', &all);
      off_disk();
    }
  }
  for (int k = 0; k < OF_KINDS; k++)
    print_message("kind %d: %u refused, %u of them with the reason; %u not needed, or all that differs\n", k,
                  all.refused[k], all.told[k], all.other[k]);
  for (int k = 0; k < OF_KINDS; k++) CHECK(all.refused[k] >= 5);
  // the message says why, unless a needed file is missing as well
  CHECK(all.told[OF_TABLE] == all.refused[OF_TABLE] && all.told[OF_REMIX] > 0);
  CHECK(all.told[OF_LOG] > 0 && all.told[OF_CURRENT] > 0);
  CHECK(all.clean[OF_TABLE] == all.refused[OF_TABLE] && all.clean[OF_LOG] > 0);
}

// The same of two copies that a power cut left with several segments of the log. Both continue the last one, or begin
// the next one.
static void test_parted_logs(void **state) {
  (void)state;
  struct outcomes all = {0};
  for (enum going base = LOGS; base <= CRASHES; base++) {
    for (enum going a = LOGS; a <= CRASHES; a++) {
      on_disk();
      make_store("base", 50, 'o');
      go_on("base", base, 'p');
      copy_all("base", "one");
      copy_all("base", "two");
      go_on("one", a, 'A');
      go_on("two", a, 'B');  // the same, with other values of the same lengths
      exchange("one", "two", 'A', &all);
      exchange("two", "one", 'B', &all);
      off_disk();
    }
  }
  CHECK(all.refused[OF_LOG] > 5);
}

// A checkpoint has an id of its own. It and its source go on; no file of the one serves in the other.
static void test_parted_checkpoint(void **state) {
  (void)state;
  struct outcomes all = {0};
  for (uint32_t i = 0; i < 2 * GOINGS; i++) {
    const enum going a = (enum going)(i / 2), b = (enum going)((a + 3 * (i % 2)) % GOINGS);
    on_disk();
    struct xdb *x = begin("one");
    write_from(x, 0, 100, 'o');
    OK(checkpoint_make(r, path_in("two", NULL)));
    end(x);
    uint64_t ids[2], *origins;
    uint32_t nr;
    OK(version_ids(simdisk_dir(e, path_in("one", NULL)), &ids[0], &origins, &nr));
    CHECK(nr == 0 && !origins);
    OK(version_ids(simdisk_dir(e, path_in("two", NULL)), &ids[1], &origins, &nr));
    CHECK(ids[0] != ids[1] && nr == 1 && origins[0] == ids[0]);
    mem_free(origins);
    go_on("one", a, 'A');
    go_on("two", b, 'B');
    exchange("one", "two", 'A', &all);
    exchange("two", "one", 'B', &all);
    off_disk();
  }
  for (int k = 0; k < OF_KINDS; k++) CHECK(all.refused[k] > 2);
}

// ---- the life of a checkpoint

static uint32_t count_origins(const char *store) {
  uint64_t id, *origins;
  uint32_t nr;
  OK(version_ids(simdisk_dir(e, path_in(store, NULL)), &id, &origins, &nr));
  mem_free(origins);
  return nr;
}

// Its linked files are its own: it removes those that it does not name any more, also after a power cut, and then
// forgets their id. A checkpoint of a checkpoint has the ids of both. Each can be destroyed, and the others stay.
static void test_checkpoint_goes_on(void **state) {
  (void)state;
  uint64_t sums[3], sum;
  on_disk();
  struct xdb *x = begin("one");
  write_from(x, 0, 100, 'a');
  OK(checkpoint_make(r, path_in("two", NULL)));
  end(x);
  x = begin("two");
  write_from(x, 100, 150, 'b');
  OK(checkpoint_make(r, path_in("three", NULL)));
  end(x);
  CHECK(count_origins("one") == 0 && count_origins("two") == 1 && count_origins("three") == 2);
  OK(sum_of("one", true, &sums[0]));
  OK(sum_of("two", true, &sums[1]));
  OK(sum_of("three", true, &sums[2]));
  CHECK(sums[1] == sums[2] && sums[0] != sums[1]);
  // power goes while all tables are replaced
  for (uint64_t cut = 0;; cut++) {
    struct simdisk *const whole = disk;
    disk = simdisk_crash(whole, cut);
    e = simdisk_env(disk);
    x = begin("three");
    simdisk_power_off(disk, 2 * cut);
    const enum remixdb_status s = xdb_compact(x);
    const bool off = simdisk_is_off(disk);
    CHECK(s == REMIXDB_OK || off);
    xdb_unref(r);
    IGNORED(xdb_close(x), "the power may be off");
    struct simdisk *const after = simdisk_crash(disk, 3 * cut + 1);
    simdisk_destroy(disk);
    disk = after;
    e = simdisk_env(disk);
    OK(sum_of("three", false, &sum));
    CHECK(sum == sums[2]);
    x = begin("three");
    OK(xdb_compact(x));
    struct verify_report report;
    OK(verify_store(r, &report));
    end(x);
    end(begin("three"));
    x = begin("three");
    write_from(x, 0, 50, 'c');
    end(x);
    CHECK(count_origins("three") == 0);
    // no linked file is left, and those of the others are untouched
    const struct picture mine = picture("three"), first = picture("one"), second = picture("two");
    for (uint32_t i = 0; i < mine.nr; i++) {
      for (uint32_t k = 0; k < first.nr; k++) CHECK(mine.inos[i] != first.inos[k]);
      for (uint32_t k = 0; k < second.nr; k++) CHECK(mine.inos[i] != second.inos[k]);
    }
    OK(sum_of("one", true, &sum));
    CHECK(sum == sums[0]);
    OK(destroy_store(e, path_in("two", NULL)));
    OK(destroy_store(e, path_in("three", NULL)));
    struct env_stat st;
    FAILS(env_stat(ENV_PATHS(e), path_in("two", NULL), &st), REMIXDB_NOTFOUND);
    FAILS(env_stat(ENV_PATHS(e), path_in("three", NULL), &st), REMIXDB_NOTFOUND);
    OK(sum_of("one", false, &sum));
    CHECK(sum == sums[0]);
    simdisk_destroy(disk);
    disk = whole;
    e = simdisk_env(disk);
    if (!off) break;
  }
  off_disk();
}

// Without CURRENT the log tells whose tables are a checkpoint's, also after it has gone on. A table of a store that it
// has nothing to do with is left out.
static void test_checkpoint_repaired(void **state) {
  (void)state;
  for (uint32_t on = 0; on < 3; on++) {
    on_disk();
    make_store("other", 60, 'x');
    struct xdb *x = begin("one");
    write_from(x, 0, 120, 'a');
    OK(checkpoint_make(r, path_in("two", NULL)));
    end(x);
    if (on) {
      x = begin("two");
      write_from(x, 120, 220, 'b');
      end(x);
    }
    if (on == 2) end(begin("two"));
    const struct picture other = picture("other");
    file_copy("other", name_with(&other, ".sst"), "two", "000900.sst");
    OK(env_unlink(ENV_PATHS(e), path_in("two", "CURRENT")));
    OK(paths_sync_dir(e, path_in("two", NULL)));
    struct repair_report report;
    OK(repair_store(e, path_in("two", NULL), &report));
    CHECK(report.version_lost && report.tables_lost == 1);
    x = begin("two");
    check_from(0, 120, 'a');
    if (on) check_from(120, 220, 'b');
    end(x);
    off_disk();
  }
}

// A file that comes while the store is open is reported by verify.
static void test_replaced_while_open(void **state) {
  (void)state;
  static const char *const ends[] = {".sst", ".remix"};
  for (uint32_t i = 0; i < 2; i++) {
    on_disk();
    make_store("base", 50, 'o');
    copy_all("base", "one");
    copy_all("base", "two");
    struct xdb *x = begin("one");
    write_from(x, 200, 300, 'A');
    end(x);
    x = begin("two");
    write_from(x, 300, 400, 'B');
    end(x);
    x = begin("two");
    struct verify_report report;
    OK(verify_store(r, &report));
    const struct picture one = picture("one"), two = picture("two");
    const char *name = NULL;
    for (uint32_t k = 0; k < two.nr && !name; k++) {
      const uint32_t m = picture_find(&one, two.names[k]);
      if (strstr(two.names[k], ends[i]) && m < one.nr && one.sums[m] != two.sums[k]) name = two.names[k];
    }
    CHECK(name != NULL);
    file_copy("one", name, "two", name);
    FAILS(verify_store(r, &report), REMIXDB_CORRUPT);
    CHECK(report.damaged >= 1);
    end(x);
    off_disk();
  }
}

// ---- on the system's files

static void test_files(void **state) {
  (void)state;
  char victim[700];
  e = quick_env();
  opts = small_opts(0);
  (void)snprintf(victim, sizeof(victim), "%s/victim", dir);
  FILE *const f = fopen(victim, "w");
  CHECK(f && fputs("of somebody", f) >= 0 && fclose(f) == 0);
  make_store("one", 100, 'a');
  CHECK(mkfifo(path_in("one", "wal-1"), 0600) == 0 || errno == EEXIST);
  CHECK(mkfifo(path_in("one", "wal-7"), 0600) == 0);
  CHECK(symlink(victim, path_in("one", "wal-5")) == 0);
  CHECK(symlink(victim, path_in("one", "CURRENT.tmp")) == 0);
  CHECK(symlink(victim, path_in("one", "CREATING")) == 0);
  for (uint32_t i = 1; i < 20; i++) {
    struct xdb *x = begin("one");
    write_from(x, 100 * i, 100 * i + 100, 'a');
    end(x);
  }
  struct env_stat st;
  CHECK(env_stat(ENV_PATHS(e), victim, &st) == REMIXDB_OK && st.size == 11);
  // repair's directories are links to another store
  make_store("two", 100, 'b');
  CHECK(symlink(path_in("two", NULL), path_in("one", "repair.new")) == 0);
  CHECK(symlink(path_in("two", NULL), path_in("one", "repair.in")) == 0);
  CHECK(repair_store(e, path_in("one", NULL), NULL) == REMIXDB_IO);
  OK(destroy_store(e, path_in("one", NULL)));
  struct xdb *x = begin("two");
  check_from(0, 100, 'b');
  end(x);
  static const char *const names[] = {"CURRENT", "LOCK"};
  for (uint32_t i = 0; i < 2; i++) {
    const char *const store = i ? "two" : "three";
    if (i == 0) make_store(store, 60, 'c');
    CHECK(unlink(path_in(store, names[i])) == 0 && mkfifo(path_in(store, names[i]), 0600) == 0);
    CHECK(xdb_open(path_in(store, NULL), &opts, e, &x) == REMIXDB_IO);
    CHECK(strstr(err_msg(), "not a file"));
  }
}

int main(void) {
  hang_alarm();  // a call that waits for a pipe waits for ever
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_files, setup, teardown),
      cmocka_unit_test(test_foreign),
      cmocka_unit_test(test_no_files),
      cmocka_unit_test(test_repair_links),
      cmocka_unit_test(test_copy),
      cmocka_unit_test(test_parted_copies),
      cmocka_unit_test(test_parted_logs),
      cmocka_unit_test(test_parted_checkpoint),
      cmocka_unit_test(test_checkpoint_goes_on),
      cmocka_unit_test(test_checkpoint_repaired),
      cmocka_unit_test(test_replaced_while_open),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
