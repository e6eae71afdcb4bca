// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/store.h"

#include <dirent.h>

char dir[2 * TEMP_DIR];

int setup(void **state) {
  (void)state;
  return temp_make(dir, "test") ? 0 : -1;
}

int teardown(void **state) {
  (void)state;
  return remove_tree(dir);
}

void setup_again(void) { CHECK(teardown(NULL) == 0 && setup(NULL) == 0); }

void store_share_logs(void) {
  static uint32_t nr;
  struct dirent *e;
  DIR *const d = opendir(dir);
  CHECK(d != NULL);
  while ((e = readdir(d)) != NULL) {
    char name[32];
    (void)snprintf(name, sizeof(name), "second-%u", nr++);
    if (strncmp(e->d_name, "wal-", 4) == 0) CHECK(linkat(dirfd(d), e->d_name, dirfd(d), name, 0) == 0);
  }
  CHECK(closedir(d) == 0);
}

static int quick_sync(struct env *e, int fd) {
  (void)e, (void)fd;
  return 0;
}

static int quick_sync_head(struct env *e, int fd, uint64_t len) {
  (void)e, (void)fd, (void)len;
  return 0;
}

struct env *quick_env(void) {
  static struct env_ops ops;
  static struct env env;
  ops = *env_posix()->ops;
  ops.sync_data = ops.sync_all = quick_sync;
  ops.sync_head = quick_sync_head;
  env = (struct env){.ops = &ops};
  return &env;
}

struct xdb *quick_open(const struct remixdb_opts *o) {
  struct xdb *x = NULL;
  OK(xdb_open(dir, o, quick_env(), &x));
  return x;
}

void shrink(struct xdb *x, size_t memtable, uint32_t table_pages) {
  OK(xdb_wait_idle(x));          // nothing works while its orders change
  pthread_mutex_lock(&x->lock);  // a worker may be looking whether there is more to do
  x->memtable_limit = memtable;
  pthread_mutex_unlock(&x->lock);
  x->compact.memtable_size = memtable;
  x->compact.build.max_pages = table_pages;
}
