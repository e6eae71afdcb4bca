// SPDX-License-Identifier: Apache-2.0
//
// The public contract, call by call: statuses, messages, limits, options, and bad input of every kind. A store that
// cannot be opened must be reported with the file's name, and left as it was found.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/contract.h"
#include "lib.h"

#define PATH_SIZE 512

// The message begins with the system's own words.
static bool reason_is(int errnum) {
  return remixdb_errcode() == REMIXDB_IO && strncmp(remixdb_errmsg(), strerror(errnum), strlen(strerror(errnum))) == 0;
}

// ---- directories

static char base[PATH_SIZE - 200];  // everything happens below it

static const char *dir_of(char buf[PATH_SIZE], const char *name) {
  (void)snprintf(buf, PATH_SIZE, "%s/%s", base, name);
  return buf;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
  (void)st, (void)kind, (void)ftw;
  return remove(path);
}

static void remove_tree(const char *path) { (void)nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

struct file {
  char name[64];
  uint64_t size, sum;
};

struct listing {
  bool there;
  uint32_t nr;
  struct file files[64];
};

static int by_name(const void *a, const void *b) {
  const struct file *const x = a, *const y = b;
  return strcmp(x->name, y->name);
}

// The names, sizes and contents of a directory.
static struct listing list_dir(const char *dir) {
  static uint8_t buf[1 << 18];
  struct listing l;
  memset(&l, 0, sizeof(l));
  DIR *const d = opendir(dir);
  if (!d) return l;
  l.there = true;
  for (const struct dirent *e; (e = readdir(d)) != NULL;) {
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    char path[PATH_SIZE + 300];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
    if (l.nr == sizeof(l.files) / sizeof(l.files[0])) fail_msg("%s holds too many files", dir);
    struct file *const f = &l.files[l.nr++];
    (void)snprintf(f->name, sizeof(f->name), "%.63s", e->d_name);
    const int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    for (ssize_t n; (n = read(fd, buf, sizeof(buf))) > 0; f->size += (uint64_t)n)
      f->sum = hash64_seed(buf, (size_t)n, f->sum);
    (void)close(fd);
  }
  (void)closedir(d);
  qsort(l.files, l.nr, sizeof(l.files[0]), by_name);
  return l;
}

static void print_listing(const char *when, const struct listing *l) {
  for (uint32_t i = 0; i < l->nr; i++)
    print_message("%s: %s, %llu bytes\n", when, l->files[i].name, (unsigned long long)l->files[i].size);
}

static void check_same(const struct listing *a, const struct listing *b, const char *what, int line) {
  bool same = a->there == b->there && a->nr == b->nr;
  for (uint32_t i = 0; same && i < a->nr; i++) {
    const struct file *x = &a->files[i], *y = &b->files[i];
    same = strcmp(x->name, y->name) == 0 && x->size == y->size && x->sum == y->sum;
  }
  if (same) return;
  print_listing("before", a);
  print_listing("after", b);
  fail_msg("line %d: the directory was changed by %s", line, what);
}
#define SAME(before, dir, what)                   \
  do {                                            \
    const struct listing now_ = list_dir(dir);    \
    check_same(&(before), &now_, what, __LINE__); \
  } while (0)

static bool ends_with(const char *name, const char *end) {
  const size_t n = strlen(name), m = strlen(end);
  return n >= m && strcmp(name + n - m, end) == 0;
}

static void copy_file(const char *from, const char *to) {
  static uint8_t buf[1 << 16];
  const int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  CHECK(in >= 0 && out >= 0);
  off_t size = 0;
  // holes stay holes: a preallocated log is mostly nothing
  for (off_t at = 0; (at = lseek(in, at, SEEK_DATA)) >= 0;) {
    const ssize_t n = pread(in, buf, sizeof(buf), at);
    if (n <= 0) break;
    CHECK(pwrite(out, buf, (size_t)n, at) == n);
    at += n;
  }
  size = lseek(in, 0, SEEK_END);
  CHECK(ftruncate(out, size) == 0);
  (void)close(in);
  (void)close(out);
}

static void copy_dir(const char *from, const char *to) {
  const struct listing l = list_dir(from);
  CHECK(l.there && mkdir(to, 0755) == 0);
  for (uint32_t i = 0; i < l.nr; i++) {
    char a[PATH_SIZE + 100], b[PATH_SIZE + 100];
    (void)snprintf(a, sizeof(a), "%s/%s", from, l.files[i].name);
    (void)snprintf(b, sizeof(b), "%s/%s", to, l.files[i].name);
    copy_file(a, b);
  }
}

// Reads (or writes) bytes of a file from outside.
static void peek(const char *dir, const char *name, uint64_t off, void *buf, size_t len) {
  char path[PATH_SIZE + 100];
  (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
  const int fd = open(path, O_RDONLY);
  CHECK(fd >= 0 && pread(fd, buf, len, (off_t)off) == (ssize_t)len);
  (void)close(fd);
}

static void poke(const char *dir, const char *name, uint64_t off, const void *buf, size_t len) {
  char path[PATH_SIZE + 100];
  (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
  const int fd = open(path, O_WRONLY);
  CHECK(fd >= 0 && pwrite(fd, buf, len, (off_t)off) == (ssize_t)len);
  (void)close(fd);
}

static void flip(const char *dir, const char *name, uint64_t off) {
  uint8_t b;
  peek(dir, name, off, &b, 1);
  b ^= 0x10;
  poke(dir, name, off, &b, 1);
}

// ---- a store to look at: some records in tables, some in the log only

static struct remixdb_opts small_opts(void) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.cache_mb = 1;
  o.memtable_mb = 1;
  o.workers = 0;
  return o;
}

#define SAMPLE_KEYS 6000u
#define SAMPLE_OLD 5000u  // these are written first: most of them are in tables

static uint32_t sample_key(char *buf, uint32_t i) { return (uint32_t)snprintf(buf, 24, "key-%06u", i); }

static uint32_t sample_value(uint8_t *buf, uint32_t i) {
  uint64_t rng = i;
  const uint32_t len = 200 + (uint32_t)(rng_next(&rng) % 200);
  for (uint32_t at = 0; at < len; at++) buf[at] = (uint8_t)((i * 31 + at * 7) ^ (at >> 3));
  return len;
}

static void sample_put(struct xdb_ref *r, uint32_t i) {
  char key[24];
  uint8_t val[512];
  const uint32_t klen = sample_key(key, i), vlen = sample_value(val, i);
  GOOD(remixdb_put(r, key, klen, val, vlen));
}

static void sample_make(const char *dir, bool compress) {
  struct remixdb_opts o = small_opts();
  if (compress) o.compression = REMIXDB_COMPRESSION_ZSTD;
  struct xdb *const x = remixdb_open_opts(dir, &o);
  CHECK(x);
  struct xdb_ref *const r = remixdb_ref(x);
  for (uint32_t i = 0; i < SAMPLE_KEYS; i++) sample_put(r, i);
  GOOD(remixdb_sync(r));
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

// Allowed reads of a store with damage: each key as it was, or CORRUPT; keys of the log's torn tail (from *end_out on)
// may be gone, but none before one that is there.
static bool sample_look(struct xdb_ref *r, uint32_t *end_out) {
  bool whole = true, gone = false;
  *end_out = SAMPLE_KEYS;
  for (uint32_t i = 0; i < SAMPLE_KEYS; i++) {
    char key[24];
    uint8_t want[512], got[512];
    uint32_t len = 0;
    const uint32_t klen = sample_key(key, i), vlen = sample_value(want, i);
    if (remixdb_getn(r, key, klen, got, sizeof(got), &len)) {
      CHECK(!gone);
      CHECK(len == vlen && memcmp(got, want, len) == 0);
    } else if (remixdb_errcode() == REMIXDB_NOTFOUND) {
      if (!gone) *end_out = i;
      gone = true;
    } else {
      FAILED(REMIXDB_CORRUPT, ".sst");
      whole = false;
    }
  }
  return whole && !gone;
}

static void sample_check(const char *dir) {
  const struct remixdb_opts o = small_opts();
  struct xdb *const x = remixdb_open_opts(dir, &o);
  if (!x) fail_msg("%s: %s", dir, remixdb_errmsg());
  struct xdb_ref *const r = remixdb_ref(x);
  uint32_t end;
  CHECK(sample_look(r, &end));
  struct xdb_iter *const it = remixdb_iter_create(r);
  remixdb_iter_seek(it, NULL, 0);
  for (uint32_t i = 0; i < SAMPLE_KEYS; i++, remixdb_iter_skip1(it)) {
    char key[24], got[24];
    const uint32_t klen = sample_key(key, i);
    uint32_t len;
    CHECK(remixdb_iter_valid(it));
    CHECK(remixdb_iter_peek(it, got, &len, NULL, NULL) && len == klen && memcmp(got, key, len) == 0);
  }
  CHECK(!remixdb_iter_valid(it));
  remixdb_iter_destroy(it);
  remixdb_unref(r);
  remixdb_close(x);
}

static char sample[PATH_SIZE], sample_zstd[PATH_SIZE];

// ---- children: what must happen in another process, or with less rights or means

// fn runs in a child; what it returns (0: good) is returned here.
static int in_child(int (*fn)(void *arg), void *arg) {
  (void)fflush(NULL);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) _exit(fn(arg));
  int st;
  while (waitpid(pid, &st, 0) < 0) CHECK(errno == EINTR);
  return WIFEXITED(st) ? WEXITSTATUS(st) : 1000 + WTERMSIG(st);
}

#define CHILD_CHECK(cond)                                                                                \
  do {                                                                                                   \
    if (!(cond)) {                                                                                       \
      fprintf(stderr, "child, line %d: %s (%s: %s)\n", __LINE__, #cond, status_now(), remixdb_errmsg()); \
      return 1;                                                                                          \
    }                                                                                                    \
  } while (0)

// ---- small things

static void *fresh_thread(void *arg) {
  (void)arg;
  return remixdb_errcode() == REMIXDB_OK && remixdb_errmsg() && remixdb_errmsg()[0] == '\0' ? NULL : (void *)1;
}

static void test_words(void **state) {
  (void)state;
  CHECK(strcmp(remixdb_version(), REMIXDB_VERSION_STRING) == 0);
  unsigned major, minor, patch;
  CHECK(sscanf(remixdb_version(), "%u.%u.%u", &major, &minor, &patch) == 3);
  for (int s = 0; s <= REMIXDB_ABORTED; s++) {
    const char *const text = remixdb_strerror((enum remixdb_status)s);
    CHECK(text && text[0]);
    for (int t = 0; t < s; t++) CHECK(strcmp(text, remixdb_strerror((enum remixdb_status)t)) != 0);
  }
  CHECK(strcasecmp(remixdb_strerror(REMIXDB_IO), strerror(EIO)) != 0);  // it is every reason's status, not EIO's alone
  CHECK(remixdb_strerror((enum remixdb_status)12345) && remixdb_strerror((enum remixdb_status) - 1));
  // the status is each thread's own
  CHECK(!remixdb_open(NULL, 0, 0, true));
  FAILED(REMIXDB_INVALID, "dir");
  pthread_t t;
  void *bad;
  CHECK(pthread_create(&t, NULL, fresh_thread, NULL) == 0 && pthread_join(t, &bad) == 0 && !bad);
  FAILED(REMIXDB_INVALID, "dir");
}

static void test_opts_init(void **state) {
  (void)state;
  struct remixdb_opts o;
  memset(&o, 0xA5, sizeof(o));
  remixdb_opts_init(&o, sizeof(o));
  CHECK(o.size == sizeof(o) && o.cache_mb == 256 && o.memtable_mb == 256 && o.wal_mb == 0);
  CHECK(o.ckeys && o.tags && o.workers == -1);
  CHECK(strcmp(o.worker_cores, "auto") == 0 && strcmp(o.io, "auto") == 0 && !o.direct_io);
  CHECK(o.compression == REMIXDB_COMPRESSION_NONE && o.compression_level == 0 && o.sync == REMIXDB_SYNC_NONE);
  CHECK(!o.read_only && o.create && !o.error_if_exists && o.max_open_files == 1000 && !o.logger && !o.logger_priv);
  remixdb_opts_init(NULL, sizeof(o));
  // a program built with an older, smaller struct: nothing behind its end is touched
  memset(&o, 0xA5, sizeof(o));
  remixdb_opts_init(&o, offsetof(struct remixdb_opts, workers));
  CHECK(o.size == offsetof(struct remixdb_opts, workers) && o.cache_mb == 256 && o.tags);
  for (size_t i = offsetof(struct remixdb_opts, workers); i < sizeof(o); i++) CHECK(((uint8_t *)&o)[i] == 0xA5);
  // with a newer, larger one: what this library does not know is zero
  struct {
    struct remixdb_opts o;
    uint8_t more[64];
  } big;
  memset(&big, 0xA5, sizeof(big));
  remixdb_opts_init(&big.o, sizeof(big));
  CHECK(big.o.size == sizeof(big) && big.o.workers == -1);
  for (size_t i = 0; i < sizeof(big.more); i++) CHECK(big.more[i] == 0);

  char dir[PATH_SIZE];
  dir_of(dir, "sizes");
  // the small one's fields count, the others take their defaults
  void *const old = malloc(offsetof(struct remixdb_opts, workers));  // its end is the end of the allocation
  CHECK(old);
  remixdb_opts_init(old, offsetof(struct remixdb_opts, workers));
  const size_t one = 1;
  memcpy((uint8_t *)old + offsetof(struct remixdb_opts, memtable_mb), &one, sizeof(one));
  struct xdb *x = remixdb_open_opts(dir, old);
  GOOD(x != NULL);
  remixdb_close(x);
  free(old);
  big.o.memtable_mb = 1;
  big.o.workers = 0;
  big.o.error_if_exists = true;
  CHECK(!remixdb_open_opts(dir, &big.o));
  FAILED(REMIXDB_EXISTS, dir);
  big.o.error_if_exists = false;
  x = remixdb_open_opts(dir, &big.o);
  GOOD(x != NULL);
  remixdb_close(x);
  o = small_opts();
  o.size = 0;
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_INVALID, "size");
  remove_tree(dir);
}

static void test_flush_and_compact(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "flush");
  const struct remixdb_opts o = small_opts();
  struct xdb *const x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  struct xdb_ref *const r = remixdb_ref(x);
  GOOD(remixdb_flush(r));
  GOOD(remixdb_compact(r));
  GOOD(remixdb_put(r, "a", 1, "1", 1) && remixdb_put(r, "b", 1, "2", 1));
  GOOD(remixdb_flush(r));
  struct xdb_snapshot *const s = remixdb_snapshot(r);
  GOOD(s != NULL);
  struct xdb_ref *const old = remixdb_snapshot_ref(s);
  GOOD(old != NULL);
  GOOD(remixdb_put(r, "a", 1, "3", 1) && remixdb_del(r, "b", 1));
  GOOD(remixdb_compact(r));
  char *const json = remixdb_stats(x);
  CHECK(strstr(json, "\"table_entries\":1,\"table_keys\":1") != NULL);
  remixdb_free(json);
  uint8_t v;
  uint32_t len;
  GOOD(remixdb_get(r, "a", 1, &v, &len));
  CHECK(v == '3' && !remixdb_probe(r, "b", 1));
  // a snapshot keeps what it sees, and is not what one compacts
  GOOD(remixdb_get(old, "a", 1, &v, &len));
  CHECK(v == '1');
  GOOD(remixdb_probe(old, "b", 1));
  CHECK(!remixdb_flush(old));
  FAILED(REMIXDB_READONLY, "snapshot");
  CHECK(!remixdb_compact(old));
  FAILED(REMIXDB_READONLY, "snapshot");
  remixdb_unref(old);
  remixdb_snapshot_release(s);
  remixdb_unref(r);
  remixdb_close(x);
  remove_tree(dir);
}

static void test_null_arguments(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "null");
  const struct remixdb_opts o = small_opts();
  CHECK(!remixdb_open(NULL, 1, 1, true));
  FAILED(REMIXDB_INVALID, "dir");
  CHECK(!remixdb_open_compact(NULL, 1, 1));
  FAILED(REMIXDB_INVALID, "dir");
  CHECK(!remixdb_open_opts(NULL, &o));
  FAILED(REMIXDB_INVALID, "dir");
  CHECK(!remixdb_ref(NULL));
  FAILED(REMIXDB_INVALID, "xdb");
  CHECK(!remixdb_stats(NULL));
  FAILED(REMIXDB_INVALID, "xdb");

  struct xdb *const x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  struct xdb_ref *const r = remixdb_ref(x);
  GOOD(r != NULL);
  uint32_t len = 77;
  uint8_t buf[8] = {9};
#define INVALID(call, part)                 \
  do {                                      \
    GOOD(remixdb_put(r, "good", 4, "", 0)); \
    CHECK(!(call));                         \
    FAILED(REMIXDB_INVALID, part);          \
  } while (0)
  INVALID(remixdb_put(NULL, "k", 1, "v", 1), "ref");
  INVALID(remixdb_put(r, NULL, 1, "v", 1), "key");
  INVALID(remixdb_put(r, "k", 1, NULL, 1), "value");
  INVALID(remixdb_set(NULL, "k", 1, "v", 1), "ref");
  INVALID(remixdb_set(r, NULL, 1, "v", 1), "key");
  INVALID(remixdb_set(r, "k", 1, NULL, 1), "value");
  INVALID(remixdb_del(NULL, "k", 1), "ref");
  INVALID(remixdb_del(r, NULL, 1), "key");
  INVALID(remixdb_probe(NULL, "k", 1), "ref");
  INVALID(remixdb_probe(r, NULL, 1), "key");
  INVALID(remixdb_get(NULL, "k", 1, buf, &len), "ref");
  INVALID(remixdb_get(r, NULL, 1, buf, &len), "key");
  INVALID(remixdb_getn(NULL, "k", 1, buf, 8, &len), "ref");
  INVALID(remixdb_getn(r, NULL, 1, buf, 8, &len), "key");
  INVALID(remixdb_getn(r, "k", 1, NULL, 8, &len), "buf");
  INVALID(remixdb_sync(NULL), "ref");
  INVALID(remixdb_flush(NULL), "ref");
  INVALID(remixdb_compact(NULL), "ref");
  INVALID(remixdb_iter_create(NULL), "ref");
  INVALID((remixdb_iter_seek(NULL, "k", 1), remixdb_errcode() == REMIXDB_OK), "it");
  INVALID(remixdb_iter_valid(NULL), "it");
  INVALID(remixdb_iter_peek(NULL, buf, &len, buf, &len), "it");
  INVALID((remixdb_iter_skip1(NULL), remixdb_errcode() == REMIXDB_OK), "it");
  INVALID((remixdb_iter_skip(NULL, 3), remixdb_errcode() == REMIXDB_OK), "it");
  INVALID((remixdb_iter_park(NULL), remixdb_errcode() == REMIXDB_OK), "it");
  CHECK(remixdb_iter_status(NULL) == REMIXDB_INVALID);
  CHECK(len == 77 && buf[0] == 9);
  // a seek that cannot be leaves the iterator on nothing, and it says why
  struct xdb_iter *const it = remixdb_iter_create(r);
  GOOD(it != NULL);
  remixdb_iter_seek(it, NULL, 0);
  GOOD(remixdb_iter_valid(it));
  remixdb_iter_seek(it, NULL, 1);
  FAILED(REMIXDB_INVALID, "key");
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_INVALID);
  CHECK(!remixdb_iter_peek(it, NULL, NULL, NULL, NULL));
  FAILED(REMIXDB_INVALID, "key");
  remixdb_iter_skip1(it);
  FAILED(REMIXDB_INVALID, "key");
  remixdb_iter_seek(it, "", 0);
  GOOD(remixdb_iter_valid(it));
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  // NULL with a length of 0 is the empty string
  GOOD(remixdb_put(r, NULL, 0, NULL, 0));
  GOOD(remixdb_probe(r, NULL, 0));
  GOOD(remixdb_probe(r, "", 0));
  GOOD(remixdb_get(r, NULL, 0, NULL, &len));
  CHECK(len == 0);
  GOOD(remixdb_getn(r, NULL, 0, NULL, 0, NULL));
  GOOD(remixdb_del(r, NULL, 0));
  CHECK(!remixdb_probe(r, "", 0));
  FAILED(REMIXDB_NOTFOUND, NULL);
  remixdb_iter_destroy(it);
  // nothing to end, nothing to free
  remixdb_iter_destroy(NULL);
  remixdb_unref(NULL);
  remixdb_close(NULL);
  remixdb_free(NULL);
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  remove_tree(dir);
#undef INVALID
}

// ---- reading and writing

static void test_put_get(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "putget");
  struct xdb *const x = remixdb_open(dir, 1, 1, true);
  GOOD(x != NULL);
  struct xdb_ref *const r = remixdb_ref(x);
  char buf[16] = "unchanged";
  uint32_t len = 99;
  CHECK(!remixdb_get(r, "a", 1, buf, &len));
  FAILED(REMIXDB_NOTFOUND, NULL);
  CHECK(remixdb_errmsg()[0] == '\0' && strcmp(buf, "unchanged") == 0 && len == 99);
  CHECK(!remixdb_getn(r, "a", 1, buf, sizeof(buf), &len));
  FAILED(REMIXDB_NOTFOUND, NULL);
  CHECK(strcmp(buf, "unchanged") == 0 && len == 99);
  CHECK(!remixdb_probe(r, "a", 1));
  FAILED(REMIXDB_NOTFOUND, NULL);
  GOOD(remixdb_del(r, "a", 1));  // there or not

  GOOD(remixdb_put(r, "a", 1, "one", 3));
  GOOD(remixdb_set(r, "b", 1, "two", 3));
  GOOD(remixdb_probe(r, "a", 1));
  GOOD(remixdb_get(r, "a", 1, buf, &len));
  CHECK(len == 3 && memcmp(buf, "onehanged", 9) == 0);
  GOOD(remixdb_get(r, "b", 1, NULL, &len));
  GOOD(remixdb_get(r, "b", 1, buf, NULL));
  CHECK(memcmp(buf, "two", 3) == 0);
  GOOD(remixdb_get(r, "b", 1, NULL, NULL));
  GOOD(remixdb_put(r, "a", 1, "", 0));
  GOOD(remixdb_get(r, "a", 1, buf, &len));
  CHECK(len == 0 && memcmp(buf, "two", 3) == 0);
  GOOD(remixdb_del(r, "a", 1));
  CHECK(!remixdb_get(r, "a", 1, buf, &len));
  FAILED(REMIXDB_NOTFOUND, NULL);
  GOOD(remixdb_sync(r));

  // getn
  GOOD(remixdb_put(r, "n", 1, "0123456789", 10));
  memset(buf, '.', sizeof(buf));
  CHECK(!remixdb_getn(r, "n", 1, buf, 4, &len));
  FAILED(REMIXDB_TOOBIG, "10");
  CHECK(len == 10 && memcmp(buf, "0123....", 8) == 0);
  GOOD(remixdb_getn(r, "n", 1, buf, 10, &len));
  CHECK(len == 10 && memcmp(buf, "0123456789..", 12) == 0);
  len = 0;
  CHECK(!remixdb_getn(r, "n", 1, NULL, 0, &len));
  FAILED(REMIXDB_TOOBIG, "10");
  CHECK(len == 10);
  CHECK(!remixdb_getn(r, "n", 1, buf, 9, NULL));
  FAILED(REMIXDB_TOOBIG, "10");
  GOOD(remixdb_getn(r, "n", 1, buf, 11, NULL));

  // keys are told apart byte for byte
  static const char odd[][3] = {{0}, {0, 0}, {0, 1}, {1}, {(char)0xff}, {(char)0xff, 0}, {(char)0xff, (char)0xff}};
  static const uint32_t odd_len[] = {1, 2, 2, 1, 1, 2, 2};
  for (uint32_t i = 0; i < 7; i++) GOOD(remixdb_put(r, odd[i], odd_len[i], &i, sizeof(i)));
  for (uint32_t i = 0, v; i < 7; i++) {
    GOOD(remixdb_get(r, odd[i], odd_len[i], &v, &len));
    CHECK(len == 4 && v == i);
  }
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  remove_tree(dir);
}

static void test_lengths(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "lengths");
  const struct remixdb_opts o = small_opts();
  struct xdb *x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  struct xdb_ref *r = remixdb_ref(x);
  uint8_t *const big = malloc(REMIXDB_KV_MAX + 1), *const out = malloc(REMIXDB_KV_MAX);
  CHECK(big && out);
  memset(big, 'x', REMIXDB_KV_MAX + 1);
  static const uint32_t lens[][2] = {{REMIXDB_KV_MAX + 1, 0}, {0, REMIXDB_KV_MAX + 1}, {1, REMIXDB_KV_MAX},
                                     {REMIXDB_KV_MAX, 1},     {UINT32_MAX, 0},         {0, UINT32_MAX},
                                     {1, UINT32_MAX},         {UINT32_MAX, 1},         {UINT32_MAX, UINT32_MAX},
                                     {40000, 40000}};
  for (uint32_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
    CHECK(!remixdb_put(r, big, lens[i][0], big, lens[i][1]));
    FAILED(REMIXDB_TOOBIG, "65500");
    CHECK(!remixdb_set(r, big, lens[i][0], big, lens[i][1]));
    FAILED(REMIXDB_TOOBIG, "65500");
    if (lens[i][0] <= REMIXDB_KV_MAX) continue;
    CHECK(!remixdb_del(r, big, lens[i][0]));
    FAILED(REMIXDB_TOOBIG, NULL);
    CHECK(!remixdb_probe(r, big, lens[i][0]));
    FAILED(REMIXDB_TOOBIG, NULL);
    CHECK(!remixdb_get(r, big, lens[i][0], NULL, NULL));
    FAILED(REMIXDB_TOOBIG, NULL);
    CHECK(!remixdb_getn(r, big, lens[i][0], out, 1, NULL));
    FAILED(REMIXDB_TOOBIG, NULL);
    struct xdb_iter *const it = remixdb_iter_create(r);
    remixdb_iter_seek(it, big, lens[i][0]);
    FAILED(REMIXDB_TOOBIG, NULL);
    CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_TOOBIG);
    remixdb_iter_destroy(it);
  }
  // the largest there may be, in the memtable, then in a table, then from the log
  static const uint32_t most[][2] = {
      {REMIXDB_KV_MAX, 0}, {REMIXDB_KV_MAX - 1, 1}, {1, REMIXDB_KV_MAX - 1}, {0, REMIXDB_KV_MAX}, {32750, 32750}};
  for (int round = 0; round < 3; round++) {
    for (uint32_t i = 0; i < 5; i++) {
      if (round == 0) GOOD(remixdb_put(r, big, most[i][0], big, most[i][1]));
      uint32_t len = 0;
      GOOD(remixdb_get(r, big, most[i][0], out, &len));
      CHECK(len == most[i][1] && memcmp(out, big, len) == 0);
    }
    for (uint32_t i = 0; i < 40 && round == 0; i++) {
      char key[8];
      GOOD(remixdb_put(r, key, (uint32_t)snprintf(key, sizeof(key), "%u", i), big, 60000));
    }
    remixdb_unref(r);
    remixdb_close(x);
    x = remixdb_open_opts(dir, &o);
    GOOD(x != NULL);
    r = remixdb_ref(x);
  }
  remixdb_unref(r);
  remixdb_close(x);
  free(big);
  free(out);
  remove_tree(dir);
}

static void test_iterator(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "iter");
  const struct remixdb_opts o = small_opts();
  struct xdb *const x = remixdb_open_opts(dir, &o);
  struct xdb_ref *const r = remixdb_ref(x);
  struct xdb_iter *const it = remixdb_iter_create(r);
  GOOD(it != NULL);
  char key[16], val[16];
  uint32_t klen = 99, vlen = 99;
  // not positioned
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  CHECK(!remixdb_iter_peek(it, key, &klen, val, &vlen));
  FAILED(REMIXDB_NOTFOUND, NULL);
  CHECK(klen == 99 && vlen == 99);
  remixdb_iter_skip1(it);
  remixdb_iter_skip(it, 5);
  remixdb_iter_park(it);
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  // an empty store
  remixdb_iter_seek(it, NULL, 0);
  GOOD(!remixdb_iter_valid(it));
  remixdb_iter_seek(it, "x", 1);
  GOOD(!remixdb_iter_valid(it));
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  for (char c = 'b'; c <= 'z'; c += 2) GOOD(remixdb_put(r, &c, 1, &c, 1));
  CHECK(!remixdb_iter_valid(it));  // what it sees is the store at its last seek
  remixdb_iter_seek(it, NULL, 0);
  GOOD(remixdb_iter_valid(it));
  for (char c = 'b'; c <= 'z'; c += 2) {
    CHECK(remixdb_iter_valid(it));
    GOOD(remixdb_iter_peek(it, key, &klen, val, &vlen));
    CHECK(klen == 1 && key[0] == c && vlen == 1 && val[0] == c);
    klen = vlen = 99;
    GOOD(remixdb_iter_peek(it, NULL, &klen, NULL, &vlen));
    CHECK(klen == 1 && vlen == 1);
    GOOD(remixdb_iter_peek(it, key, NULL, val, NULL));
    GOOD(remixdb_iter_peek(it, NULL, NULL, NULL, NULL));
    remixdb_iter_skip1(it);
    CHECK(remixdb_errcode() == REMIXDB_OK);
  }
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  CHECK(!remixdb_iter_peek(it, key, &klen, val, &vlen));
  FAILED(REMIXDB_NOTFOUND, NULL);
  remixdb_iter_skip1(it);
  CHECK(remixdb_errcode() == REMIXDB_OK && !remixdb_iter_valid(it));
  // seeks between keys, skips, past the end
  remixdb_iter_seek(it, "c", 1);
  GOOD(remixdb_iter_peek(it, key, NULL, NULL, NULL));
  CHECK(key[0] == 'd');
  remixdb_iter_skip(it, 0);
  GOOD(remixdb_iter_peek(it, key, NULL, NULL, NULL));
  CHECK(key[0] == 'd');
  remixdb_iter_skip(it, 3);
  GOOD(remixdb_iter_peek(it, key, NULL, NULL, NULL));
  CHECK(key[0] == 'j');
  remixdb_iter_seek(it, "j", 1);
  GOOD(remixdb_iter_peek(it, key, NULL, NULL, NULL));
  CHECK(key[0] == 'j');
  remixdb_iter_skip(it, UINT32_MAX);
  CHECK(!remixdb_iter_valid(it));
  remixdb_iter_seek(it, "zz", 2);
  CHECK(!remixdb_iter_valid(it));
  // parked: nothing before the next seek
  remixdb_iter_seek(it, "d", 1);
  remixdb_iter_park(it);
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_skip1(it);
  CHECK(!remixdb_iter_valid(it));
  remixdb_iter_park(it);
  GOOD(remixdb_del(r, "d", 1));
  remixdb_iter_seek(it, "d", 1);
  GOOD(remixdb_iter_peek(it, key, NULL, NULL, NULL));
  CHECK(key[0] == 'f');
  remixdb_iter_destroy(it);
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  remove_tree(dir);
}

// ---- what is and is not there

static void test_directories(void **state) {
  (void)state;
  char dir[PATH_SIZE], path[2 * PATH_SIZE];
  struct remixdb_opts o = small_opts();
  // no parent
  dir_of(dir, "none/below");
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_IO, dir);
  CHECK(!list_dir(dir_of(dir, "none")).there);
  CHECK(!remixdb_open_opts("", &o));
  CHECK(remixdb_errcode() != REMIXDB_OK && remixdb_errmsg()[0]);
  // none is to be made
  dir_of(dir, "none");
  o.create = false;
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_NOTFOUND, dir);
  o.read_only = true;
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_NOTFOUND, dir);
  o.create = true;  // read_only makes nothing either
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_NOTFOUND, dir);
  CHECK(!list_dir(dir).there);
  CHECK(mkdir(dir, 0755) == 0);
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_NOTFOUND, dir);
  o.read_only = o.create = false;
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_NOTFOUND, dir);
  CHECK(list_dir(dir).nr == 0);
  // strangers' files are no hindrance and stay
  (void)snprintf(path, sizeof(path), "%s/notes.txt", dir);
  FILE *f = fopen(path, "w");
  CHECK(f && fputs("mine", f) >= 0 && fclose(f) == 0);
  o.create = true;
  struct xdb *x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  remixdb_close(x);
  CHECK(access(path, R_OK) == 0);
  // it is there now
  o.error_if_exists = true;
  const struct listing before = list_dir(dir);
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_EXISTS, dir);
  SAME(before, dir, "an open with error_if_exists");
  remove_tree(dir);
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  remixdb_close(x);
  remove_tree(dir);
  o.error_if_exists = false;
  // a file in the directory's place, or in the place of its parent
  f = fopen(dir, "w");
  CHECK(f && fputs("a file", f) >= 0 && fclose(f) == 0);
  for (int i = 0; i < 3; i++) {
    o.create = i != 1;
    o.read_only = i == 2;
    CHECK(!remixdb_open_opts(dir, &o));
    FAILED(REMIXDB_IO, dir);
  }
  o = small_opts();
  (void)snprintf(path, sizeof(path), "%s/below", dir);
  CHECK(!remixdb_open_opts(path, &o));
  FAILED(REMIXDB_IO, path);
  f = fopen(dir, "r");
  CHECK(f && fgets(path, sizeof(path), f) && fclose(f) == 0 && strcmp(path, "a file") == 0);
  (void)unlink(dir);
  // directories in the place of files
  static const char *const names[] = {"CURRENT", "LOCK"};
  for (uint32_t i = 0; i < 2; i++) {
    CHECK(mkdir(dir, 0755) == 0);
    (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
    CHECK(mkdir(path, 0755) == 0);
    CHECK(!remixdb_open_opts(dir, &o));
    CHECK(remixdb_errcode() == REMIXDB_IO || remixdb_errcode() == REMIXDB_CORRUPT);
    FAILED(remixdb_errcode(), names[i]);
    CHECK(rmdir(path) == 0);
    remove_tree(dir);
  }
  // a path that is too long
  char *const longer = malloc(20000);
  CHECK(longer);
  memset(longer, 'd', 19999);
  longer[19999] = '\0';
  CHECK(!remixdb_open_opts(longer, &o));
  CHECK(remixdb_errcode() == REMIXDB_IO || remixdb_errcode() == REMIXDB_INVALID);
  CHECK(remixdb_errmsg()[0] && strlen(remixdb_errmsg()) < 2000);
  memset(longer, '/', 19999);
  memcpy(longer, dir, strlen(dir));
  longer[4090] = '\0';
  CHECK(!remixdb_open_opts(longer, &o));
  CHECK(remixdb_errcode() == REMIXDB_IO || remixdb_errcode() == REMIXDB_INVALID);
  free(longer);
  char orphan[PATH_SIZE];
  (void)snprintf(orphan, sizeof(orphan), "%.400s/none/store", dir);
  CHECK(!remixdb_open_opts(orphan, &o) && reason_is(ENOENT) && strstr(remixdb_errmsg(), orphan));
}

static int rights_child(void *arg) {
  const char *const dir = arg;
  struct remixdb_opts o = small_opts();
  if (geteuid() == 0) {
    const uid_t nobody = 65534;
    CHILD_CHECK(setgid(nobody) == 0 && setuid(nobody) == 0);
  }
  if (access(base, R_OK | X_OK) != 0) return 77;  // the directory for temporary files is root's alone
  char closed[PATH_SIZE], fresh[PATH_SIZE];
  // may not be entered
  dir_of(closed, "closed");
  CHILD_CHECK(!remixdb_open_opts(closed, &o));
  CHILD_CHECK(reason_is(EACCES) && strstr(remixdb_errmsg(), closed));
  o.read_only = true;
  CHILD_CHECK(!remixdb_open_opts(closed, &o));
  CHILD_CHECK(reason_is(EACCES) && strstr(remixdb_errmsg(), closed));
  // may be read, not written
  o = small_opts();
  CHILD_CHECK(!remixdb_open_opts(dir, &o));
  CHILD_CHECK(reason_is(EACCES) && strstr(remixdb_errmsg(), dir));
  (void)snprintf(fresh, sizeof(fresh), "%.400s/fresh", dir);
  CHILD_CHECK(!remixdb_open_opts(fresh, &o));
  CHILD_CHECK(reason_is(EACCES) && strstr(remixdb_errmsg(), fresh));
  o.read_only = true;
  struct xdb *const x = remixdb_open_opts(dir, &o);
  CHILD_CHECK(x);
  struct xdb_ref *const r = remixdb_ref(x);
  CHILD_CHECK(r);
  char key[24];
  for (uint32_t i = 0; i < SAMPLE_KEYS; i += 500) CHILD_CHECK(remixdb_probe(r, key, sample_key(key, i)));
  remixdb_unref(r);
  remixdb_close(x);
  return 0;
}

static void test_rights(void **state) {
  (void)state;
  char dir[PATH_SIZE], closed[PATH_SIZE];
  copy_dir(sample, dir_of(dir, "rights"));
  copy_dir(sample, dir_of(closed, "closed"));
  const struct listing before = list_dir(sample);
  CHECK(chmod(base, 0755) == 0 && chmod(dir, 0555) == 0 && chmod(closed, 0) == 0);
  const int rc = in_child(rights_child, dir);
  CHECK(chmod(base, 0755) == 0 && chmod(dir, 0755) == 0 && chmod(closed, 0755) == 0);
  if (rc == 77) skip();
  CHECK(rc == 0);
  SAME(before, dir, "opening without rights");
  SAME(before, closed, "opening without rights");
  remove_tree(dir);
  remove_tree(closed);
}

// ---- locks

static int lock_child(void *arg) {
  const struct remixdb_opts o = small_opts();
  CHILD_CHECK(!remixdb_open_opts(arg, &o));
  CHILD_CHECK(remixdb_errcode() == REMIXDB_LOCKED && strstr(remixdb_errmsg(), arg));
  return 0;
}

static int open_child(void *arg) {
  static struct xdb *volatile x;  // kept: to what looks for leaks it is not one
  const struct remixdb_opts o = small_opts();
  x = remixdb_open_opts(arg, &o);
  CHILD_CHECK(x);
  return 0;  // without closing: the lock dies with the process
}

static void test_locked(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "locked");
  struct remixdb_opts o = small_opts();
  CHECK(in_child(open_child, dir) == 0);
  struct xdb *x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  CHECK(in_child(lock_child, dir) == 0);
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_LOCKED, dir);
  o.read_only = true;
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_LOCKED, dir);
  struct xdb_ref *r = remixdb_ref(x);
  GOOD(remixdb_put(r, "still", 5, "works", 5));
  remixdb_unref(r);
  remixdb_close(x);
  // readers share it, and keep a writer out
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  struct xdb *const y = remixdb_open_opts(dir, &o);
  GOOD(y != NULL);
  CHECK(in_child(lock_child, dir) == 0);
  remixdb_close(x);
  r = remixdb_ref(y);
  GOOD(remixdb_probe(r, "still", 5));
  remixdb_unref(r);
  remixdb_close(y);
  CHECK(in_child(open_child, dir) == 0);
  o.read_only = false;
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  remixdb_close(x);
  // a lock file that somebody removed is no hindrance, for readers neither
  char path[PATH_SIZE + 8];
  (void)snprintf(path, sizeof(path), "%s/LOCK", dir);
  CHECK(unlink(path) == 0);
  o.read_only = true;
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  remixdb_close(x);
  o.read_only = false;
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  remixdb_close(x);
  remove_tree(dir);
}

// A child made by fork has the lock's descriptor, too, and may live on for long: closing the store lets go of the lock
// all the same.
static void test_lock_and_children(void **state) {
  (void)state;
  char dir[PATH_SIZE], byte;
  dir_of(dir, "children");
  const struct remixdb_opts o = small_opts();
  struct xdb *x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  int hold[2];
  CHECK(pipe(hold) == 0);
  (void)fflush(NULL);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    (void)close(hold[1]);
    _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);  // until the parent closes its end
  }
  (void)close(hold[0]);
  remixdb_close(x);
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  remixdb_close(x);
  (void)close(hold[1]);
  int st;
  while (waitpid(pid, &st, 0) < 0) CHECK(errno == EINTR);
  CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0);
  remove_tree(dir);
}

// ---- damage

// An open of dir must fail with one of two statuses, name the file, and change nothing.
static void check_refused(const char *dir, enum remixdb_status s, enum remixdb_status or_s, const char *name,
                          const char *what) {
  const struct listing before = list_dir(dir);
  struct remixdb_opts o = small_opts();
  for (int i = 0; i < 2; i++) {
    o.read_only = i == 1;
    struct xdb *const x = remixdb_open_opts(dir, &o);
    if (x) fail_msg("%s: the store opened", what);
    if (remixdb_errcode() != s && remixdb_errcode() != or_s)
      fail_msg("%s: %s: %s", what, status_now(), remixdb_errmsg());
    if (!strstr(remixdb_errmsg(), name) || !strstr(remixdb_errmsg(), dir))
      fail_msg("%s: the message is \"%s\"", what, remixdb_errmsg());
    SAME(before, dir, what);
  }
}

static void test_newer_format(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  copy_dir(sample, dir_of(dir, "newer"));
  uint8_t old[4], newer[4];
  const struct listing l = list_dir(dir);
  size_t len = 0;
  for (uint32_t i = 0; i < l.nr; i++)
    if (strcmp(l.files[i].name, "CURRENT") == 0) len = (size_t)l.files[i].size;
  uint8_t *const current = malloc(len), sum[8];
  CHECK(current && len > 64);
  peek(dir, "CURRENT", 0, current, len);
  peek(dir, "CURRENT", len - 8, sum, 8);
  peek(dir, "CURRENT", 8, old, 4);
  store32le(newer, load32le(old) + 100);
  poke(dir, "CURRENT", 8, newer, 4);
  check_refused(dir, REMIXDB_CORRUPT, REMIXDB_CORRUPT, "CURRENT", "a format that is damaged");
  store32le(current + 8, load32le(newer));
  store64le(current + len - 8, hash64(current, len - 8));
  poke(dir, "CURRENT", len - 8, current + len - 8, 8);
  check_refused(dir, REMIXDB_VERSION, REMIXDB_VERSION, "CURRENT", "a newer CURRENT");
  poke(dir, "CURRENT", 8, old, 4);
  poke(dir, "CURRENT", len - 8, sum, 8);
  free(current);
  // the heads of log segments carry their own version and checksum
  for (uint32_t i = 0; i < l.nr; i++) {
    if (strncmp(l.files[i].name, "wal-", 4) != 0) continue;
    uint8_t head[512], good[512];
    peek(dir, l.files[i].name, 0, head, sizeof(head));
    memcpy(good, head, sizeof(head));
    store32le(head + 8, load32le(head + 8) + 1);
    store64le(head + 504, hash64(head, 448));
    poke(dir, l.files[i].name, 0, head, sizeof(head));
    check_refused(dir, REMIXDB_VERSION, REMIXDB_VERSION, l.files[i].name, "a newer log");
    poke(dir, l.files[i].name, 0, good, sizeof(good));
  }
  sample_check(dir);
  remove_tree(dir);
}

static void test_truncated(void **state) {
  (void)state;
  char dir[PATH_SIZE], path[PATH_SIZE + 100], what[128];
  copy_dir(sample, dir_of(dir, "truncated"));
  const struct listing l = list_dir(dir);
  uint32_t seen = 0;
  for (uint32_t i = 0; i < l.nr; i++) {
    const char *const name = l.files[i].name;
    const bool sst = ends_with(name, ".sst"), remix = ends_with(name, ".remix"), current = strcmp(name, "CURRENT") == 0;
    if (!sst && !remix && !current) continue;
    seen |= sst ? 1 : remix ? 2 : 4;
    char from[PATH_SIZE + 100];
    (void)snprintf(path, sizeof(path), "%s/%.63s", dir, name);
    (void)snprintf(from, sizeof(from), "%s/%.63s", sample, name);
    const uint64_t size = l.files[i].size, sizes[] = {0, 1, size / 2, size > 4096 ? size - 4096 : 7, size - 1};
    for (uint32_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
      CHECK(truncate(path, (off_t)sizes[k]) == 0);
      (void)snprintf(what, sizeof(what), "%s cut to %llu bytes", name, (unsigned long long)sizes[k]);
      check_refused(dir, REMIXDB_CORRUPT, REMIXDB_CORRUPT, name, what);
      copy_file(from, path);
    }
    CHECK(truncate(path, (off_t)size + 4096) == 0);
    (void)snprintf(what, sizeof(what), "%s with more at its end", name);
    check_refused(dir, REMIXDB_CORRUPT, REMIXDB_VERSION, name, what);
    copy_file(from, path);
    if (!current) {
      CHECK(unlink(path) == 0);
      (void)snprintf(what, sizeof(what), "%s missing", name);
      check_refused(dir, REMIXDB_CORRUPT, REMIXDB_IO, name, what);
      copy_file(from, path);
    }
  }
  CHECK(seen == 7);
  sample_check(dir);
  remove_tree(dir);
}

static void test_current_missing(void **state) {
  (void)state;
  char dir[PATH_SIZE], path[PATH_SIZE + 16];
  copy_dir(sample, dir_of(dir, "headless"));
  (void)snprintf(path, sizeof(path), "%s/CURRENT", dir);
  CHECK(unlink(path) == 0);
  const struct listing before = list_dir(dir);
  struct remixdb_opts o = small_opts();
  for (int i = 0; i < 4; i++) {
    o.create = i % 2 == 0;
    o.read_only = i / 2 == 1;
    CHECK(!remixdb_open_opts(dir, &o));
    FAILED(REMIXDB_CORRUPT, "CURRENT");
    FAILED(REMIXDB_CORRUPT, dir);
    SAME(before, dir, "opening a store without CURRENT");
  }
  CHECK(!remixdb_open(dir, 0, 0, true) && !remixdb_open_compact(dir, 0, 0));
  SAME(before, dir, "opening a store without CURRENT");
  // the log alone is a store that must not be overwritten, too; no lock file is left beside it
  const struct listing l = list_dir(dir);
  for (uint32_t i = 0; i < l.nr; i++) {
    char gone[PATH_SIZE + 100];
    (void)snprintf(gone, sizeof(gone), "%s/%s", dir, l.files[i].name);
    if (strncmp(l.files[i].name, "wal-", 4) != 0) CHECK(unlink(gone) == 0);
  }
  const struct listing logs = list_dir(dir);
  CHECK(!remixdb_open(dir, 0, 0, true));
  FAILED(REMIXDB_CORRUPT, "CURRENT");
  SAME(logs, dir, "opening a log without CURRENT");
  remove_tree(dir);
}

// Bytes flipped one at a time all over the files. Opened read-only, so that the same files serve for all of them.
static void flip_all_over(const char *from, const char *name_of_copy) {
  char dir[PATH_SIZE], what[128];
  copy_dir(from, dir_of(dir, name_of_copy));
  const struct listing l = list_dir(dir);
  struct remixdb_opts o = small_opts();
  o.read_only = true;
  uint64_t rng = 42;
  for (uint32_t i = 0; i < l.nr; i++) {
    const struct file *const f = &l.files[i];
    const bool sst = ends_with(f->name, ".sst"), wal = strncmp(f->name, "wal-", 4) == 0;
    const bool exact = ends_with(f->name, ".remix") || strcmp(f->name, "CURRENT") == 0;
    if (!sst && !wal && !exact) continue;
    const uint32_t times = exact ? 24 : 12;
    for (uint32_t k = 0; k < times; k++) {
      // a table's end and every file's beginning are what is looked at first
      uint64_t off = k < 4 ? k * 8 : rng_next(&rng) % f->size;
      if (sst && k >= 4 && k < 8) off = f->size - 1 - rng_next(&rng) % 512;
      if (wal && k >= 4) off = rng_next(&rng) % (f->size < 300000 ? f->size : 300000);
      (void)snprintf(what, sizeof(what), "a bit flipped in %s at %llu of %llu", f->name, (unsigned long long)off,
                     (unsigned long long)f->size);
      flip(dir, f->name, off);
      struct xdb *const x = remixdb_open_opts(dir, &o);
      if (!x) {
        const enum remixdb_status s = remixdb_errcode();
        if (s != REMIXDB_CORRUPT && s != REMIXDB_VERSION)
          fail_msg("%s: %s: %s", what, remixdb_strerror(s), remixdb_errmsg());
        // of the log it may be the place of the segment that is missed
        if (!strstr(remixdb_errmsg(), wal ? dir : f->name))
          fail_msg("%s: the message is \"%s\"", what, remixdb_errmsg());
      } else {
        if (exact) fail_msg("%s: the store opened", what);
        struct xdb_ref *const r = remixdb_ref(x);
        uint32_t end;
        const bool whole = sample_look(r, &end);
        // only the last thing synced before the close has nothing after it that says it was durable
        if (wal && !whole && end < SAMPLE_OLD) fail_msg("%s: keys from %u on are gone without a word", what, end);
        if (sst && end != SAMPLE_KEYS) fail_msg("%s: key %u is gone", what, end);
        remixdb_unref(r);
        remixdb_close(x);
      }
      flip(dir, f->name, off);
    }
  }
  SAME(l, dir, "opening with read_only");
  sample_check(dir);
  remove_tree(dir);
}

static void test_flips(void **state) {
  (void)state;
  flip_all_over(sample, "flips");
}

static void test_flips_compressed(void **state) {
  (void)state;
  flip_all_over(sample_zstd, "flips-zstd");
}

// A log that is broken in the middle is not the same as one that ends early.
static void test_damaged_log(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  struct remixdb_opts o = small_opts();
  dir_of(dir, "log");
  // a process that dies after its log has come to rest: the end of a store would leave none
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    o.sync = 10;
    struct xdb *const x = remixdb_open_opts(dir, &o);
    struct xdb_ref *const r = remixdb_ref(x);
    for (uint32_t i = 0; i < 200; i++) {
      sample_put(r, i);
      if (i % 50 == 49 && !remixdb_sync(r)) _exit(1);
    }
    (void)sleep(3);
    _exit(0);
  }
  int status;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const struct listing l = list_dir(dir);
  uint32_t refused = 0;
  for (uint32_t i = 0; i < l.nr; i++) {
    if (strncmp(l.files[i].name, "wal-", 4) != 0) continue;
    for (uint32_t off = 520; off < 10000; off += 3001) {  // within the first frames, which later ones call durable
      uint8_t b;
      peek(dir, l.files[i].name, off, &b, 1);
      if (b == 0) continue;
      flip(dir, l.files[i].name, off);
      check_refused(dir, REMIXDB_CORRUPT, REMIXDB_CORRUPT, l.files[i].name, "a log broken before its durable end");
      refused++;
      flip(dir, l.files[i].name, off);
    }
    // the file ends in the middle of the last frame; the log was marked, so that all of it had been durable
    char path[PATH_SIZE + 100];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, l.files[i].name);
    CHECK(truncate(path, 55000) == 0);
    check_refused(dir, REMIXDB_CORRUPT, REMIXDB_CORRUPT, l.files[i].name, "a log cut short");
    // without the watermark, as the death of the process leaves it, this is a torn tail
    flip(dir, l.files[i].name, 448);
  }
  CHECK(refused >= 3);
  struct xdb *const x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  struct xdb_ref *const r = remixdb_ref(x);
  uint32_t end;
  (void)sample_look(r, &end);
  CHECK(end >= 150 && end <= 200);
  remixdb_unref(r);
  remixdb_close(x);
  // the log gone altogether
  const struct listing l2 = list_dir(dir);
  for (uint32_t i = 0; i < l2.nr; i++) {
    char path[PATH_SIZE + 100];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, l2.files[i].name);
    if (strncmp(l2.files[i].name, "wal-", 4) == 0) CHECK(unlink(path) == 0);
  }
  check_refused(dir, REMIXDB_CORRUPT, REMIXDB_CORRUPT, dir, "a store whose log is gone");
  remove_tree(dir);
}

// ---- want of means

// The store at arg, with as many descriptors as it takes: until then every open says what it could not open and leaves
// the store readable.
static int descriptors_child(void *arg) {
  struct remixdb_opts o = small_opts();
  struct rlimit old;
  CHILD_CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
  // the lowest descriptor that is free, and none behind it
  const int low = open("/dev/null", O_RDONLY);
  CHILD_CHECK(low >= 0);
  (void)close(low);
  uint32_t refused = 0;
  struct xdb *x = NULL;
  const struct listing before = list_dir(arg);
  for (rlim_t n = (rlim_t)low; n < 64 && !x; n++) {
    const struct rlimit few = {n, old.rlim_max};
    CHILD_CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    x = remixdb_open_opts(arg, &o);
    CHILD_CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
    if (x) continue;
    refused++;
    CHILD_CHECK(remixdb_errcode() == REMIXDB_NOMEM && strstr(remixdb_errmsg(), arg) &&
                strstr(remixdb_errmsg(), strerror(EMFILE)));
    const struct listing after = list_dir(arg);
    CHILD_CHECK(after.nr == before.nr && memcmp(&before, &after, sizeof(before)) == 0);
  }
  CHILD_CHECK(x && refused >= 2);
  struct xdb_ref *const r = remixdb_ref(x);
  CHILD_CHECK(r);
  // none at all from here on: what is open is enough to read and to write on, or it is said
  const struct rlimit few = {(rlim_t)low, old.rlim_max};
  CHILD_CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  char key[24];
  uint8_t want[512], got[512];
  for (uint32_t i = 0; i < SAMPLE_KEYS; i++) {
    uint32_t len = 0;
    const uint32_t klen = sample_key(key, i), vlen = sample_value(want, i);
    if (!remixdb_getn(r, key, klen, got, sizeof(got), &len))
      CHILD_CHECK(remixdb_errcode() == REMIXDB_NOMEM && strstr(remixdb_errmsg(), strerror(EMFILE)));
    else CHILD_CHECK(len == vlen && memcmp(got, want, len) == 0);
  }
  CHILD_CHECK(remixdb_put(r, "zz", 2, "", 0));
  CHILD_CHECK(remixdb_sync(r));
  CHILD_CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
  for (uint32_t i = 0; i < SAMPLE_KEYS; i++) CHILD_CHECK(remixdb_probe(r, key, sample_key(key, i)));
  CHILD_CHECK(remixdb_del(r, "zz", 2));
  remixdb_unref(r);
  remixdb_close(x);
  CHILD_CHECK(remixdb_errcode() == REMIXDB_OK);
  return 0;
}

static void test_descriptors(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  copy_dir(sample, dir_of(dir, "descriptors"));
  CHECK(in_child(descriptors_child, dir) == 0);
  sample_check(dir);
  remove_tree(dir);
}

static _Atomic int64_t fault_at;  // allocations until one is refused; then all are, or none
static _Atomic bool fault_lasts;

static bool fault(size_t size) {
  (void)size;
  const int64_t n = atomic_fetch_sub(&fault_at, 1);
  return n > 1 || (n < 1 && !atomic_load(&fault_lasts));
}

static void fault_on(int64_t n, bool lasts) {
  atomic_store(&fault_at, n);
  atomic_store(&fault_lasts, lasts);
  atomic_store(&mem_fault, fault);
}

static bool fault_off(void) {
  atomic_store(&mem_fault, NULL);
  return atomic_load(&fault_at) < 1;  // whether one was refused
}

// A seek with the key that the iterator stands on, when the store has been compacted meanwhile: it gives up the memory
// that the key lies in, and reads other blocks into it.
static void test_own_key(void **state) {
  (void)state;
  char dir[PATH_SIZE], key[400], val[100];
  memset(val, 'v', sizeof(val));
  for (uint32_t klen = 16; klen <= 300; klen += 284) {
    struct xdb *const x = remixdb_open(dir_of(dir, "ownkey"), 0, 16, true);
    GOOD(x != NULL);
    struct xdb_ref *const r = remixdb_ref(x);
    memset(key, 'k', sizeof(key));
    for (uint32_t i = 0; i < 20000; i++) {
      (void)snprintf(key, sizeof(key), "%015u", i * 10);
      key[15] = '.';
      GOOD(remixdb_put(r, key, klen, val, sizeof(val)));
    }
    GOOD(remixdb_flush(r) && remixdb_compact(r));
    struct xdb_iter *const it = remixdb_iter_create(r);
    uint64_t seed = 5;
    for (uint32_t n = 0; n < 30; n++) {
      for (uint32_t k = 0; k < 20; k++) {
        (void)snprintf(key, sizeof(key), "%015u", (uint32_t)(rng_next(&seed) % 100000) + 1 + n % 9);
        key[15] = '.';
        GOOD(remixdb_put(r, key, klen, val, sizeof(val)));
      }
      (void)snprintf(key, sizeof(key), "%015u", 100000 + (uint32_t)(rng_next(&seed) % 9000) * 10);
      key[15] = '.';
      remixdb_iter_seek(it, key, klen);
      uint32_t len = 0;
      const void *own = remixdb_iter_key(it, &len);
      CHECK(own && len == klen && memcmp(own, key, klen) == 0);
      if (n % 3) GOOD(remixdb_compact(r));
      if (klen > 128 && n % 4 == 0) {  // no memory for a copy
        fault_on(1, true);
        remixdb_iter_seek(it, own, len);
        CHECK(fault_off());
        FAILED(REMIXDB_NOMEM, NULL);
        CHECK(!remixdb_iter_valid(it));
        remixdb_iter_seek(it, key, klen);
        own = remixdb_iter_key(it, &len);
      }
      if (n % 2) remixdb_iter_seek(it, own, len);
      else remixdb_iter_seek_for_prev(it, own, len);
      own = remixdb_iter_key(it, &len);
      CHECK(own && len == klen && memcmp(own, key, klen) == 0);
    }
    remixdb_iter_destroy(it);
    remixdb_unref(r);
    remixdb_close(x);
    remove_tree(dir);
  }
}

static uint64_t told(struct xdb *x, const char *field) {
  char name[32];
  (void)snprintf(name, sizeof(name), "\"%s\":", field);
  char *const json = remixdb_stats(x);
  CHECK(json != NULL);
  const char *const at = strstr(json, name);
  CHECK(at != NULL);
  const uint64_t n = strtoull(at + strlen(name), NULL, 10);
  remixdb_free(json);
  return n;
}

#define TOLD_KEYS 3000u

static void told_get(struct xdb_ref *r, uint32_t i) {
  char key[16];
  (void)snprintf(key, sizeof(key), "%08u", i);
  GOOD(remixdb_get(r, key, 8, NULL, NULL));
}

// A store of TOLD_KEYS records, all in tables.
static struct xdb_ref *told_open(char *dir, const char *name, size_t cache_mb, uint32_t vlen, struct xdb **x_out) {
  char key[16], val[1000];
  memset(val, 'v', sizeof(val));
  struct xdb *const x = *x_out = remixdb_open(dir_of(dir, name), cache_mb, 16, true);
  GOOD(x != NULL);
  struct xdb_ref *const r = remixdb_ref(x);
  for (uint32_t i = 0; i < TOLD_KEYS; i++) {
    (void)snprintf(key, sizeof(key), "%08u", i);
    GOOD(remixdb_put(r, key, 8, val, vlen));
  }
  GOOD(remixdb_flush(r));
  return r;
}

static void told_close(const char *dir, struct xdb_ref *r, struct xdb *x) {
  remixdb_unref(r);
  remixdb_close(x);
  remove_tree(dir);
}

// Without room in the cache a get reads one piece of a block, the next get beyond that piece reads the rest of it, and
// later gets read nothing.
static void test_get_neighbours(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  struct xdb *x;
  struct xdb_ref *const r = told_open(dir, "neighbours", 0, 100, &x);
  const uint64_t reads = told(x, "reads");
  for (uint32_t i = 0; i < TOLD_KEYS; i++) told_get(r, i);
  const uint64_t blocks = told(x, "reads") - reads;
  CHECK(blocks >= TOLD_KEYS / 40 && blocks <= 2 * TOLD_KEYS / 30);  // of 4 KiB, and 108 bytes a record
  CHECK(told(x, "declined") == 0);                                  // without a cache there is none to decline
  told_close(dir, r, x);
}

// A full cache declines a block that is read once, and the figures say so.
static void test_declined(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  struct xdb *x;
  struct xdb_ref *const r = told_open(dir, "declined", 1, 1000, &x);
  for (uint32_t i = 0; i < TOLD_KEYS; i += 4) told_get(r, i);  // a block holds four, or three
  CHECK(told(x, "bypasses") == 0);
  if (!LIB_SANITIZED) CHECK(told(x, "declined") > 0);  // where all is slow, loads may look like the disk's
  told_close(dir, r, x);
}

static void test_no_memory_open(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  const struct remixdb_opts o = small_opts();
  for (int lasts = 0; lasts < 2; lasts++) {
    copy_dir(sample, dir_of(dir, "nomem"));
    const struct listing before = list_dir(dir);
    int64_t n = 1;
    for (;; n += 1 + n / 12) {
      fault_on(n, lasts);
      struct xdb *const x = remixdb_open_opts(dir, &o);
      const bool refused = fault_off();
      if (x) {
        remixdb_close(x);
        if (!refused) break;
        remove_tree(dir);  // it did without
        copy_dir(sample, dir);
        continue;
      }
      FAILED(REMIXDB_NOMEM, "memory");
      SAME(before, dir, "opening without memory");
    }
    CHECK(n > 20);
    sample_check(dir);
    remove_tree(dir);
    // a new store
    uint32_t tries = 0;
    for (n = 1;; n += 1 + n / 12) {
      fault_on(n, lasts);
      struct xdb *const x = remixdb_open_opts(dir, &o);
      const bool refused = fault_off();
      if (x) remixdb_close(x);
      if (x && !refused) break;
      if (!x) FAILED(REMIXDB_NOMEM, "memory");
      if (tries++ % 2) remove_tree(dir);  // else the next try meets what this one left
    }
    remove_tree(dir);
  }
}

// Every call of a store in use: it works, or says NOMEM and has done nothing.
static void test_no_memory_use(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "nomem-use");
  struct remixdb_opts o = small_opts();
  o.cache_mb = 0;
  struct xdb *x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  struct xdb_ref *r = remixdb_ref(x);
  uint8_t val[512];
  char key[24];
  uint8_t *const there = calloc(SAMPLE_KEYS, 1);
  CHECK(there);
  uint64_t rng = 7;
  uint32_t refused = 0;
  for (uint32_t i = 0; i < SAMPLE_KEYS; i++) {
    const uint32_t klen = sample_key(key, i), vlen = sample_value(val, i);
    fault_on(1 + (int64_t)(rng_next(&rng) % 20), false);
    const bool put = remixdb_put(r, key, klen, val, vlen);
    (void)fault_off();
    if (!put) {
      FAILED(REMIXDB_NOMEM, "memory");
      CHECK(!remixdb_probe(r, key, klen));
      refused++;
    }
    there[i] = put;
    if (i % 500 == 0) {
      fault_on(1, false);
      struct xdb_ref *const r2 = remixdb_ref(x);
      (void)fault_off();
      CHECK(!r2);
      FAILED(REMIXDB_NOMEM, "memory");
      fault_on(1, false);
      char *const json = remixdb_stats(x);
      (void)fault_off();
      CHECK(!json);
      FAILED(REMIXDB_NOMEM, "memory");
      for (int64_t n = 1;; n++) {
        fault_on(n, false);
        struct xdb_iter *const it = remixdb_iter_create(r);
        if (it) remixdb_iter_seek(it, NULL, 0);
        if (it && remixdb_errcode() == REMIXDB_OK) remixdb_iter_skip(it, 300);
        if (it && remixdb_errcode() == REMIXDB_OK) (void)remixdb_iter_peek(it, NULL, NULL, val, NULL);
        const enum remixdb_status s = remixdb_errcode();
        const bool hit = fault_off();
        if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) {
          FAILED(REMIXDB_NOMEM, "memory");
          CHECK(!it || remixdb_iter_status(it) == REMIXDB_NOMEM || remixdb_iter_valid(it));
        }
        if (it) {  // it is as good as new with the next seek
          remixdb_iter_seek(it, NULL, 0);
          CHECK(remixdb_errcode() == REMIXDB_OK && remixdb_iter_status(it) == REMIXDB_OK);
        }
        remixdb_iter_destroy(it);
        if (!hit) break;
      }
    }
  }
  CHECK(refused > 0 && refused < SAMPLE_KEYS / 2);
  for (int round = 0; round < 2; round++) {
    for (uint32_t i = 0; i < SAMPLE_KEYS; i++) {
      const uint32_t klen = sample_key(key, i), vlen = sample_value(val, i);
      uint8_t got[512];
      uint32_t len = 0;
      if (i % 7 == 0) fault_on(1, false);
      bool found = remixdb_getn(r, key, klen, got, sizeof(got), &len);
      if (i % 7 == 0 && fault_off() && !found && remixdb_errcode() == REMIXDB_NOMEM)
        found = remixdb_getn(r, key, klen, got, sizeof(got), &len);
      CHECK(found ? there[i] && len == vlen && memcmp(got, val, len) == 0
                  : !there[i] && remixdb_errcode() == REMIXDB_NOTFOUND);
    }
    if (round == 1) break;
    remixdb_unref(r);
    remixdb_close(x);
    CHECK(remixdb_errcode() == REMIXDB_OK);
    x = remixdb_open_opts(dir, &o);
    GOOD(x != NULL);
    r = remixdb_ref(x);
  }
  remixdb_unref(r);
  remixdb_close(x);
  free(there);
  remove_tree(dir);
}

// ---- options

static void test_read_only(void **state) {
  (void)state;
  char dir[PATH_SIZE], path[PATH_SIZE + 16];
  copy_dir(sample, dir_of(dir, "readonly"));
  (void)snprintf(path, sizeof(path), "%s/999999.sst", dir);  // left over from a compaction, as it were
  FILE *const f = fopen(path, "w");
  CHECK(f && fputs("left over", f) >= 0 && fclose(f) == 0);
  const struct listing before = list_dir(dir);
  struct remixdb_opts o = small_opts();
  o.read_only = true;
  o.sync = REMIXDB_SYNC_EACH;
  for (int workers = -1; workers < 2; workers++) {
    o.workers = workers;
    struct xdb *const x = remixdb_open_opts(dir, &o);
    GOOD(x != NULL);
    struct xdb_ref *const r = remixdb_ref(x);
    CHECK(!remixdb_put(r, "k", 1, "v", 1));
    FAILED(REMIXDB_READONLY, dir);
    CHECK(!remixdb_set(r, "k", 1, "v", 1));
    FAILED(REMIXDB_READONLY, dir);
    CHECK(!remixdb_del(r, "key-000000", 10));
    FAILED(REMIXDB_READONLY, dir);
    GOOD(remixdb_sync(r));
    uint32_t end;
    CHECK(sample_look(r, &end));
    char *const json = remixdb_stats(x);
    GOOD(json != NULL);
    CHECK(strstr(json, "\"read_only\":true"));
    remixdb_free(json);
    remixdb_unref(r);
    remixdb_close(x);
    CHECK(remixdb_errcode() == REMIXDB_OK);
    SAME(before, dir, "a store opened with read_only");
  }
  sample_check(dir);
  CHECK(access(path, F_OK) != 0);  // what no version names goes when the store is opened to be written
  remove_tree(dir);
}

static void test_bad_options(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "options");
  // nothing is made of options that cannot be
  for (uint32_t i = 0; i < 18; i++) {
    struct remixdb_opts o = small_opts();
    switch (i) {
      case 0: o.io = "floppy"; break;
      case 1: o.io = ""; break;
      case 2:
        o.worker_cores = "x";
        o.workers = 1;
        break;
      case 3:
        o.worker_cores = "0,";
        o.workers = 1;
        break;
      case 4:
        o.worker_cores = "5-2";
        o.workers = 1;
        break;
      case 5:
        o.worker_cores = "";
        o.workers = 1;
        break;
      case 6: o.workers = 65; break;
      case 7: o.workers = INT_MAX; break;
      case 8: o.max_open_files = 15; break;
      case 9: o.max_open_files = 1; break;
      case 10: o.sync = -2; break;
      case 11: o.sync = INT_MIN; break;
      case 12: o.compression = (enum remixdb_compression)7; break;
      case 13: o.memtable_mb = SIZE_MAX; break;
      case 14: o.cache_mb = SIZE_MAX; break;
      case 15: o.wal_mb = SIZE_MAX; break;
      case 16: o.workers = -2; break;
      case 17:
        o.worker_cores = "99999999999";
        o.workers = 1;
        break;
    }
    struct xdb *const x = remixdb_open_opts(dir, &o);
    if (x) fail_msg("options %u were taken", i);
    FAILED(REMIXDB_INVALID, NULL);
    if (list_dir(dir).there) fail_msg("options %u: there is a directory now (%s)", i, remixdb_errmsg());
  }
  CHECK(setenv("REMIXDB_IO", "floppy", 1) == 0);
  struct remixdb_opts o = small_opts();
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_INVALID, "floppy");
  CHECK(unsetenv("REMIXDB_IO") == 0);
  CHECK(!list_dir(dir).there);
}

// Writes and reads back some, across a compaction and an opening. *io_out, when given, is the engine's name.
static void try_options(const struct remixdb_opts *o, char io_out[16]) {
  char dir[PATH_SIZE];
  dir_of(dir, "options");
  for (int round = 0; round < 2; round++) {
    struct xdb *const x = remixdb_open_opts(dir, o);
    GOOD(x != NULL);
    struct xdb_ref *const r = remixdb_ref(x);
    GOOD(r != NULL);
    for (uint32_t i = 0; i < SAMPLE_KEYS && round == 0; i++) sample_put(r, i);
    uint32_t end;
    CHECK(sample_look(r, &end));
    if (io_out) {
      char *const json = remixdb_stats(x);
      GOOD(json != NULL);
      const char *const at = strstr(json, "\"io\":\"");
      CHECK(at && sscanf(at, "\"io\":\"%15[a-z_]\"", io_out) == 1);
      remixdb_free(json);
    }
    remixdb_unref(r);
    remixdb_close(x);
    CHECK(remixdb_errcode() == REMIXDB_OK);
  }
  remove_tree(dir);
}

static void test_options(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts();
  static const char *const cores[] = {"auto", "none", "0", "0-1", "1,0", NULL};
  for (uint32_t i = 0; i < 6; i++) {
    o.worker_cores = cores[i];
    o.workers = (int)i % 3;
    try_options(&o, NULL);
  }
  o = small_opts();
  o.cache_mb = 0;
  o.max_open_files = 16;
  o.wal_mb = 1;
  try_options(&o, NULL);
  o = small_opts();
  o.memtable_mb = 0;  // the default
  o.max_open_files = 0;
  o.direct_io = true;
  try_options(&o, NULL);
  o = small_opts();
  o.direct_io = true;
  o.compression = REMIXDB_COMPRESSION_ZSTD;
  static const int levels[] = {0, 1, -5, 19};
  for (uint32_t i = 0; i < 4; i++) {
    o.compression_level = levels[i];
    try_options(&o, NULL);
  }
}

static void test_io(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts();
  char io[16];
  o.io = "sync";
  try_options(&o, io);
  CHECK(strcmp(io, "sync") == 0);
  static const char *const engines[] = {"auto", "uring", "aio", NULL};  // where one cannot be had the next one serves
  for (uint32_t i = 0; i < 4; i++) {
    o.io = engines[i];
    try_options(&o, io);
    CHECK(strcmp(io, "uring") == 0 || strcmp(io, "io_uring") == 0 || strcmp(io, "aio") == 0 || strcmp(io, "sync") == 0);
  }
  o.io = "floppy";  // the environment has the last word
  CHECK(setenv("REMIXDB_IO", "sync", 1) == 0);
  try_options(&o, io);
  CHECK(strcmp(io, "sync") == 0);
  o.io = "uring";
  try_options(&o, io);
  CHECK(strcmp(io, "sync") == 0);
  CHECK(setenv("REMIXDB_IO", "", 1) == 0);  // empty is not set
  try_options(&o, io);
  CHECK(unsetenv("REMIXDB_IO") == 0);
}

// The store as a crash of the process would leave it: the files as they are while it is open.
static bool in_copy(const char *dir, const char *key) {
  char copy[PATH_SIZE];
  copy_dir(dir, dir_of(copy, "copy"));
  const struct remixdb_opts o = small_opts();
  struct xdb *const x = remixdb_open_opts(copy, &o);
  CHECK(x);
  struct xdb_ref *const r = remixdb_ref(x);
  const bool found = remixdb_probe(r, key, (uint32_t)strlen(key));
  remixdb_unref(r);
  remixdb_close(x);
  remove_tree(copy);
  return found;
}

static void test_sync_modes(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "sync");
  struct remixdb_opts o = small_opts();
  o.sync = REMIXDB_SYNC_EACH;
  struct xdb *x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  struct xdb_ref *r = remixdb_ref(x);
  for (uint32_t i = 0; i < 20; i++) sample_put(r, i);
  GOOD(remixdb_del(r, "key-000003", 10));
  CHECK(in_copy(dir, "key-000019") && !in_copy(dir, "key-000003"));
  remixdb_unref(r);
  remixdb_close(x);

  o.sync = REMIXDB_SYNC_NONE;
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  r = remixdb_ref(x);
  sample_put(r, 20);
  GOOD(remixdb_sync(r));
  CHECK(in_copy(dir, "key-000020"));
  remixdb_unref(r);
  remixdb_close(x);

  // the longest wait is what the machine takes, not what the option says
  for (uint32_t round = 0; round < 15; round++) {
    o.sync = round % 3 == 0 ? 1 : round % 3 == 1 ? 20 : INT_MAX;
    x = remixdb_open_opts(dir, &o);
    GOOD(x != NULL);
    r = remixdb_ref(x);
    sample_put(r, 100 + round);
    if (round < 2) {
      char key[24];
      key[sample_key(key, 100 + round)] = '\0';
      int tries = 0;
      while (!in_copy(dir, key)) CHECK(++tries < 1000);
    }
    remixdb_unref(r);
    remixdb_close(x);  // while a sync may be under way
    CHECK(remixdb_errcode() == REMIXDB_OK);
  }
  remove_tree(dir);
}

// ---- figures

// A check of JSON's grammar (RFC 8259); returns where the value ends, NULL when it is none.
static const char *json_value(const char *p);

static const char *json_space(const char *p) { return p + strspn(p, " \t\r\n"); }

static const char *json_string(const char *p) {
  if (*p++ != '"') return NULL;
  for (; *p != '"'; p++) {
    if ((unsigned char)*p < 0x20) return NULL;
    if (*p == '\\' && !strchr("\"\\/bfnrtu", *++p)) return NULL;
  }
  return p + 1;
}

static const char *json_number(const char *p) {
  p += *p == '-';
  const size_t n = strspn(p, "0123456789");
  if (n == 0 || (n > 1 && *p == '0')) return NULL;
  p += n;
  if (*p == '.') {
    const size_t frac = strspn(p + 1, "0123456789");
    if (frac == 0) return NULL;
    p += 1 + frac;
  }
  return p;
}

static const char *json_list(const char *p, char end, bool members) {
  p = json_space(p + 1);
  if (*p == end) return p + 1;
  for (;;) {
    if (members) {
      p = json_string(p);
      if (!p || *(p = json_space(p)) != ':') return NULL;
      p = json_space(p + 1);
    }
    p = json_value(p);
    if (!p) return NULL;
    p = json_space(p);
    if (*p == end) return p + 1;
    if (*p != ',') return NULL;
    p = json_space(p + 1);
  }
}

static const char *json_value(const char *p) {
  if (*p == '{') return json_list(p, '}', true);
  if (*p == '[') return json_list(p, ']', false);
  if (*p == '"') return json_string(p);
  static const char *const words[] = {"true", "false", "null"};
  for (uint32_t i = 0; i < 3; i++)
    if (strncmp(p, words[i], strlen(words[i])) == 0) return p + strlen(words[i]);
  return json_number(p);
}

static _Atomic uint32_t log_lines;

static void count_line(void *priv, const char *line) {
  CHECK(priv == &log_lines && line && line[0] && !strchr(line, '\n'));
  (void)atomic_fetch_add(&log_lines, 1);
}

static void test_stats(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "stats");
  struct remixdb_opts o = small_opts();
  o.logger = count_line;
  o.logger_priv = &log_lines;
  for (int i = 0; i < 4; i++) {
    o.workers = i % 2;
    o.cache_mb = i / 2;
    struct xdb *const x = remixdb_open_opts(dir, &o);
    GOOD(x != NULL);
    struct xdb_ref *const r = remixdb_ref(x);
    for (uint32_t k = 0; k < 3000; k++) sample_put(r, k);
    struct xdb_iter *const it = remixdb_iter_create(r);
    char *const json = remixdb_stats(x);
    GOOD(json != NULL);
    const char *const end = json_value(json_space(json));
    CHECK(end && *json_space(end) == '\0');
    CHECK(strstr(json, "\"refs\":1,") && strstr(json, "\"iterators\":1,"));
    remixdb_free(json);
    remixdb_iter_destroy(it);
    remixdb_unref(r);
    remixdb_close(x);
  }
  CHECK(atomic_load(&log_lines) >= 4);
  remove_tree(dir);
}

// ---- all of it

static int setup(void **state) {
  (void)state;
  const char *const tmp = getenv("TMPDIR");
  (void)unsetenv("REMIXDB_IO");
  (void)snprintf(base, sizeof(base), "%.200s/remixdb-api-XXXXXX", tmp && *tmp ? tmp : "/tmp");
  if (!mkdtemp(base)) return -1;
  sample_make(dir_of(sample, "sample"), false);
  sample_make(dir_of(sample_zstd, "sample-zstd"), true);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  remove_tree(base);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      // those with children first: while there is one thread only
      cmocka_unit_test(test_rights),
      cmocka_unit_test(test_locked),
      cmocka_unit_test(test_lock_and_children),
      cmocka_unit_test(test_descriptors),
      cmocka_unit_test(test_words),
      cmocka_unit_test(test_opts_init),
      cmocka_unit_test(test_flush_and_compact),
      cmocka_unit_test(test_null_arguments),
      cmocka_unit_test(test_put_get),
      cmocka_unit_test(test_lengths),
      cmocka_unit_test(test_iterator),
      cmocka_unit_test(test_directories),
      cmocka_unit_test(test_newer_format),
      cmocka_unit_test(test_truncated),
      cmocka_unit_test(test_current_missing),
      cmocka_unit_test(test_flips),
      cmocka_unit_test(test_flips_compressed),
      cmocka_unit_test(test_damaged_log),
      cmocka_unit_test(test_no_memory_open),
      cmocka_unit_test(test_no_memory_use),
      cmocka_unit_test(test_read_only),
      cmocka_unit_test(test_bad_options),
      cmocka_unit_test(test_options),
      cmocka_unit_test(test_io),
      cmocka_unit_test(test_sync_modes),
      cmocka_unit_test(test_stats),
      cmocka_unit_test(test_own_key),
      cmocka_unit_test(test_get_neighbours),
      cmocka_unit_test(test_declined),
  };
  return cmocka_run_group_tests_name("remixdb", tests, setup, teardown);
}
