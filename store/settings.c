// SPDX-License-Identifier: Apache-2.0
#include "store/settings.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "store/freeze.h"
#include "store/memory.h"
#include "store/setup.h"
#include "store/syncer.h"

static enum remixdb_status wrong(const char *name, const char *value, const char *right) {
  return err_set(REMIXDB_INVALID, "the option `%s` cannot be \"%.64s\": it is %s", name, value, right);
}

// A decimal number from low to high, and nothing else.
static bool parse(const char *text, long low, long high, long *out) {
  char *end;
  const size_t digits = text[0] == '-' ? 1 : 0;
  if (text[digits] < '0' || text[digits] > '9') return false;
  errno = 0;
  *out = strtol(text, &end, 10);
  return errno == 0 && *end == '\0' && *out >= low && *out <= high;
}

static enum remixdb_status set_workers(struct xdb *x, const char *name, const char *value) {
  long asked;
  uint32_t nr, nr_cores, cores[WORKERS_MAX];
  if (!parse(value, -1, WORKERS_MAX, &asked) || asked == 0)
    return wrong(name, value, "1 to 64 threads, or -1 for as many as suit the machine");
  if (workers_count(x->workers) == 0)
    return err_set(REMIXDB_INVALID, "%s: opened with workers = 0, which stays", x->dir);
  enum remixdb_status s = workers_plan((int)asked, x->settings.worker_cores, &nr, cores, WORKERS_MAX, &nr_cores);
  if (s == REMIXDB_OK) s = workers_resize(x->workers, nr, cores, nr_cores);
  if (s == REMIXDB_OK) setup_scan_merges(x, nr);
  return s;
}

static enum remixdb_status set_sync(struct xdb *x, const char *name, const char *value) {
  long how;
  if (strcmp(value, "none") == 0) how = REMIXDB_SYNC_NONE;
  else if (strcmp(value, "each") == 0) how = REMIXDB_SYNC_EACH;
  else if (!parse(value, REMIXDB_SYNC_EACH, INT_MAX, &how)) return wrong(name, value, "none, each, or milliseconds");
  return xdb_sync_change(x, (int)how);
}

static enum remixdb_status set_compression(struct xdb *x, const char *name, const char *value) {
  long level = 0;
  const bool zstd = strncmp(value, "zstd", 4) == 0;
  if (zstd ? value[4] != '\0' && (value[4] != ':' || !parse(value + 5, COMPACT_LEVEL_MIN, COMPACT_LEVEL_MAX, &level))
           : strcmp(value, "none") != 0)
    return wrong(name, value, "none, zstd, or zstd:LEVEL with a level up to 22");
  const enum remixdb_compression how = zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  compact_set_compression(&x->compact, how, (int)level);
  value_log_compress(&x->compact.values, how, (int)level);
  value_log_compress(&x->values, how, (int)level);
  return REMIXDB_OK;
}

static enum remixdb_status set_max_open_files(struct xdb *x, const char *name, const char *value) {
  long nr;
  if (!parse(value, OPEN_FILES_MIN, INT_MAX, &nr)) return wrong(name, value, "a number of descriptors, at least 16");
  fdpool_set_max(x->fds, setup_table_files(x, (uint32_t)nr));
  return REMIXDB_OK;
}

static enum remixdb_status set_cache(struct xdb *x, const char *name, const char *value) {
  long mb;
  if (!parse(value, 1, LONG_MAX >> 20, &mb)) return wrong(name, value, "a number of MB, at least 1");
  if (!x->cache) return err_set(REMIXDB_INVALID, "%s: opened with cache_mb = 0, which stays", x->dir);
  const size_t most = cache_most(x->cache) >> 20;
  if ((size_t)mb > most)
    return err_set(REMIXDB_INVALID, "the option `%s` cannot be %ld: the cache can have %zu MB at most", name, mb, most);
  return memory_cache_set(x, (size_t)mb << 20);
}

static enum remixdb_status set_memory(struct xdb *x, const char *name, const char *value) {
  long mb;
  if (!parse(value, 1, (long)SIZE_MB_MOST, &mb)) return wrong(name, value, "a number of MB, at least 1");
  memory_set(x, (size_t)mb << 20);
  xdb_freeze_full(x);  // by the new limit of memtables
  return REMIXDB_OK;
}

static const struct setting {
  const char *name;
  bool writes;  // only of a store that is open for writing
  enum remixdb_status (*set)(struct xdb *x, const char *name, const char *value);
} all[] = {
    {"memory_mb", false, set_memory},       {"cache_mb", false, set_cache},
    {"workers", true, set_workers},         {"sync", true, set_sync},
    {"compression", true, set_compression}, {"max_open_files", false, set_max_open_files},
};

enum remixdb_status settings_set(struct xdb *x, const char *name, const char *value) {
  const enum remixdb_status may = xdb_may_wait(x);
  if (may != REMIXDB_OK) return may;
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
    if (strcmp(all[i].name, name) != 0) continue;
    if (all[i].writes && x->opts.read_only)
      return err_set(REMIXDB_READONLY, "%s: opened with read_only, where `%s` has no effect", x->dir, name);
    pthread_mutex_lock(&x->settings.lock);
    const enum remixdb_status s = all[i].set(x, name, value);
    pthread_mutex_unlock(&x->settings.lock);
    return s;
  }
  return err_set(REMIXDB_INVALID, "the option `%.64s` cannot be changed while the store is open", name);
}
