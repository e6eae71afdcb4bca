// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/sample.h"

#include <dirent.h>

bool reason_is(int errnum) {
  return remixdb_errcode() == REMIXDB_IO && strncmp(remixdb_errmsg(), strerror(errnum), strlen(strerror(errnum))) == 0;
}

char base[TEMP_DIR];
char sample[PATH_SIZE], sample_zstd[PATH_SIZE];

// ---- directories

const char *dir_of(char buf[PATH_SIZE], const char *name) {
  (void)snprintf(buf, PATH_SIZE, "%s/%s", base, name);
  return buf;
}

static int by_name(const void *a, const void *b) {
  const struct file *const x = a, *const y = b;
  return strcmp(x->name, y->name);
}

struct listing list_dir(const char *dir) {
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

void check_same(const struct listing *a, const struct listing *b, const char *what, int line) {
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

void copy_dir(const char *from, const char *to) {
  const struct listing l = list_dir(from);
  CHECK(l.there && mkdir(to, 0755) == 0);
  for (uint32_t i = 0; i < l.nr; i++) {
    char a[PATH_SIZE + 100], b[PATH_SIZE + 100];
    (void)snprintf(a, sizeof(a), "%s/%s", from, l.files[i].name);
    (void)snprintf(b, sizeof(b), "%s/%s", to, l.files[i].name);
    copy_file(a, b);
  }
}

void peek(const char *dir, const char *name, uint64_t off, void *buf, size_t len) {
  char path[PATH_SIZE + 100];
  (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
  const int fd = open(path, O_RDONLY);
  CHECK(fd >= 0 && pread(fd, buf, len, (off_t)off) == (ssize_t)len);
  (void)close(fd);
}

void poke(const char *dir, const char *name, uint64_t off, const void *buf, size_t len) {
  char path[PATH_SIZE + 100];
  (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
  const int fd = open(path, O_WRONLY);
  CHECK(fd >= 0 && pwrite(fd, buf, len, (off_t)off) == (ssize_t)len);
  (void)close(fd);
}

void flip(const char *dir, const char *name, uint64_t off) {
  uint8_t b;
  peek(dir, name, off, &b, 1);
  b ^= 0x10;
  poke(dir, name, off, &b, 1);
}

// ---- the sample store

uint32_t sample_key(char *buf, uint32_t i) { return (uint32_t)snprintf(buf, 24, "key-%06u", i); }

uint32_t sample_value(uint8_t *buf, uint32_t i) {
  uint64_t rng = i;
  const uint32_t len = 200 + (uint32_t)(rng_next(&rng) % 200);
  for (uint32_t at = 0; at < len; at++) buf[at] = (uint8_t)((i * 31 + at * 7) ^ (at >> 3));
  return len;
}

void sample_put(struct xdb_ref *r, uint32_t i) {
  char key[24];
  uint8_t val[512];
  const uint32_t klen = sample_key(key, i), vlen = sample_value(val, i);
  GOOD(remixdb_put(r, key, klen, val, vlen));
}

struct xdb_ref *sample_open(const char *dir, const struct remixdb_opts *o, struct xdb **x_out) {
  *x_out = remixdb_open_opts(dir, o);
  GOOD(*x_out != NULL);
  struct xdb_ref *const r = remixdb_ref(*x_out);
  GOOD(r != NULL);
  return r;
}

void sample_close(struct xdb *x, struct xdb_ref *r) {
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

static void sample_make(const char *dir, bool compress) {
  struct remixdb_opts o = small_opts(0);
  if (compress) o.compression = REMIXDB_COMPRESSION_ZSTD;
  struct xdb *x;
  struct xdb_ref *const r = sample_open(dir, &o, &x);
  for (uint32_t i = 0; i < SAMPLE_KEYS; i++) sample_put(r, i);
  GOOD(remixdb_sync(r));
  sample_close(x, r);
}

bool sample_look(struct xdb_ref *r, uint32_t *end_out) {
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

void sample_check(const char *dir) {
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  struct xdb_ref *const r = sample_open(dir, &o, &x);
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
  sample_close(x, r);
}

// ---- children

int in_child(int (*fn)(void *arg), void *arg) {
  (void)fflush(NULL);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) _exit(fn(arg));
  int st;
  while (waitpid(pid, &st, 0) < 0) CHECK(errno == EINTR);
  return WIFEXITED(st) ? WEXITSTATUS(st) : 1000 + WTERMSIG(st);
}

// ---- the directory of all

int base_setup(void **state) {
  (void)state;
  (void)unsetenv("REMIXDB_IO");
  return temp_make(base, "api") ? 0 : -1;
}

int samples_setup(void **state) {
  if (base_setup(state) != 0) return -1;
  sample_make(dir_of(sample, "sample"), false);
  sample_make(dir_of(sample_zstd, "sample-zstd"), true);
  return 0;
}

int base_teardown(void **state) {
  (void)state;
  return remove_tree(base);
}
