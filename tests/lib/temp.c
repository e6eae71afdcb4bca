// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/temp.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check.h"

bool temp_make(char path[TEMP_DIR], const char *use) {
  const char *const tmp = getenv("TMPDIR");
  (void)snprintf(path, TEMP_DIR, "%.200s/remixdb-%.20s-XXXXXX", tmp && *tmp ? tmp : "/tmp", use);
  return mkdtemp(path) != NULL;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
  (void)st, (void)kind, (void)ftw;
  return remove(path);
}

int remove_tree(const char *path) { return nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

void copy_file(const char *from, const char *to) {
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

bool ends_with(const char *name, const char *end) {
  const size_t n = strlen(name), m = strlen(end);
  return n >= m && strcmp(name + n - m, end) == 0;
}

struct remixdb_opts small_opts(int workers) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.cache_mb = 1;
  o.memtable_mb = 1;
  o.workers = workers;
  return o;
}

uint64_t stat_of(struct xdb *x, const char *name) {
  char *const json = remixdb_stats(x);
  CHECK(json);
  char word[64];
  (void)snprintf(word, sizeof(word), "\"%s\":", name);
  const char *const at = strstr(json, word);
  if (!at) fail_msg("no figure %s in %s", name, json);
  const uint64_t n = strtoull(at + strlen(word), NULL, 10);
  remixdb_free(json);
  return n;
}
