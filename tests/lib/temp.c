// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/temp.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
