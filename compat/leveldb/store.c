// SPDX-License-Identifier: Apache-2.0
//
// LevelDB's store on a RemixDB store. Programs call it from any thread, so each call borrows a ref.
#include "compat/leveldb/internal.h"

#include <stdio.h>
#include <unistd.h>

// ---- opening and closing

#define CACHE_MB 256u
#define MEMTABLE_MB 256u
#define MEMTABLE_MOST ((size_t)1 << 30)  // bytes; LevelDB takes no larger ones

static size_t mib(uint64_t bytes) { return bytes ? (size_t)((bytes - 1) / (1 << 20) + 1) : 1; }

// For LevelDB a capacity is a bound that may be out of reach. RemixDB's cache has an address for each block.
static size_t cache_mib(const leveldb_cache_t *c) {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  const size_t half = pages > 0 && page > 0 ? mib((uint64_t)pages / 2 * (uint64_t)page) : CACHE_MB;
  return mib(c->capacity) < half ? mib(c->capacity) : half;
}

static void set_opts(struct remixdb_opts *opts, const leveldb_options_t *o) {
  remixdb_opts_init(opts, sizeof(*opts));
  opts->create = o->create_if_missing;
  opts->error_if_exists = o->error_if_exists;
  opts->compression = o->compressed ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  opts->cache_mb = o->cache ? cache_mib(o->cache) : CACHE_MB;
  const size_t size = o->write_buffer_size < MEMTABLE_MOST ? o->write_buffer_size : MEMTABLE_MOST;
  opts->memtable_mb = size ? mib(size) : MEMTABLE_MB;
  if (o->max_open_files > 0) opts->max_open_files = o->max_open_files < 16 ? 16 : (uint32_t)o->max_open_files;
}

// The failure of an opening, in the words that LevelDB's programs know.
static void open_failed(char **errptr, const char *name) {
  const enum remixdb_status s = remixdb_errcode();
  char text[512];
  if (s == REMIXDB_NOTFOUND || s == REMIXDB_EXISTS) {
    (void)snprintf(text, sizeof(text), "%s: %s", name,
                   s == REMIXDB_EXISTS ? "exists (error_if_exists is true)"
                                       : "does not exist (create_if_missing is false)");
    ldb_error(errptr, "Invalid argument", text);
  } else {
    ldb_failed(errptr, NULL);
  }
}

leveldb_t *leveldb_open(const leveldb_options_t *options, const char *name, char **errptr) {
  struct remixdb_opts opts;
  if (options->comparator && !ldb_order_of_bytes(options->comparator)) {
    char text[256];
    (void)snprintf(text, sizeof(text),
                   "the comparator %.100s does not order keys as their bytes do: no other order "
                   "is supported",
                   options->comparator->name(options->comparator->state));
    ldb_error(errptr, "Invalid argument", text);
    return NULL;
  }
  leveldb_t *const db = calloc(1, sizeof(*db));
  if (!db) {
    ldb_error(errptr, "IO error", "no memory");
    return NULL;
  }
  set_opts(&opts, options);
  if (!(db->xdb = remixdb_open_opts(name, &opts))) {
    open_failed(errptr, name);
    free(db);
    return NULL;
  }
  (void)pthread_mutex_init(&db->lock, NULL);
  db->comparator = options->comparator;
  return db;
}

void leveldb_close(leveldb_t *db) {
  if (!db) return;
  remixdb_close(db->xdb);
  (void)pthread_mutex_destroy(&db->lock);
  free(db);
}

void leveldb_destroy_db(const leveldb_options_t *options, const char *name, char **errptr) {
  (void)options;
  if (!remixdb_destroy(name) && remixdb_errcode() != REMIXDB_NOTFOUND) ldb_failed(errptr, NULL);
}

void leveldb_repair_db(const leveldb_options_t *options, const char *name, char **errptr) {
  (void)options;
  if (!remixdb_repair(name)) ldb_failed(errptr, NULL);
}

// ---- writing

static bool fits(size_t klen, size_t vlen, char **errptr) {
  if (klen <= UINT32_MAX && vlen <= UINT32_MAX) return true;
  ldb_error(errptr, "Invalid argument", "a key or a value is longer than 4 GiB");
  return false;
}

// Ends a write: syncs if the program wants that, and gives the ref back.
static void written(struct xdb_ref *ref, const leveldb_writeoptions_t *options, bool good, char **errptr) {
  if (good && options->sync) good = remixdb_sync(ref);
  if (!good) ldb_failed(errptr, ref);
  remixdb_ref_return(ref);
}

// A ref for one call. NULL: *errptr tells.
static struct xdb_ref *borrow(leveldb_t *db, char **errptr) {
  struct xdb_ref *const ref = remixdb_ref_borrow(db->xdb);
  if (!ref) ldb_failed(errptr, NULL);
  return ref;
}

void leveldb_put(leveldb_t *db, const leveldb_writeoptions_t *options, const char *key, size_t keylen, const char *val,
                 size_t vallen, char **errptr) {
  if (!fits(keylen, vallen, errptr) || !ldb_order_holds(db, key, keylen, errptr)) return;
  struct xdb_ref *const ref = borrow(db, errptr);
  if (ref) written(ref, options, remixdb_put(ref, key, (uint32_t)keylen, val, (uint32_t)vallen), errptr);
}

void leveldb_delete(leveldb_t *db, const leveldb_writeoptions_t *options, const char *key, size_t keylen,
                    char **errptr) {
  if (!fits(keylen, 0, errptr) || !ldb_order_holds(db, key, keylen, errptr)) return;
  struct xdb_ref *const ref = borrow(db, errptr);
  if (ref) written(ref, options, remixdb_del(ref, key, (uint32_t)keylen), errptr);
}

struct order_check {
  leveldb_t *db;
  char **errptr;
  bool holds;
};

static bool check_one(void *priv, const struct remixdb_batch_item *item) {
  struct order_check *const c = priv;
  return c->holds = ldb_order_holds(c->db, item->key.ptr, item->key.len, c->errptr);
}

void leveldb_write(leveldb_t *db, const leveldb_writeoptions_t *options, leveldb_writebatch_t *batch, char **errptr) {
  struct order_check check = {db, errptr, true};
  if (batch->error) {
    ldb_message_copy(errptr, batch->error);
    return;
  }
  if (db->comparator) (void)remixdb_batch_each(batch->batch, check_one, &check);
  struct xdb_ref *const ref = check.holds ? borrow(db, errptr) : NULL;
  if (ref) written(ref, options, remixdb_write(ref, batch->batch), errptr);
}

// ---- reading

// The value in memory from malloc. NULL: no such key, or *errptr tells.
static char *get(struct xdb_ref *ref, const char *key, size_t keylen, size_t *vallen, char **errptr) {
  const void *value;
  uint32_t len;
  struct xdb_pin *const pin = remixdb_get_pinned(ref, key, (uint32_t)keylen, &value, &len);
  if (!pin) {
    if (remixdb_ref_errcode(ref) != REMIXDB_NOTFOUND) ldb_failed(errptr, ref);
    return NULL;
  }
  char *const copy = ldb_malloc(len ? len : 1);
  if (copy && len) memcpy(copy, value, len);
  if (copy) *vallen = len;
  else ldb_error(errptr, "IO error", "no memory for the value");
  remixdb_pin_release(pin);
  return copy;
}

char *leveldb_get(leveldb_t *db, const leveldb_readoptions_t *options, const char *key, size_t keylen, size_t *vallen,
                  char **errptr) {
  const leveldb_snapshot_t *const snap = options->snapshot;
  *vallen = 0;
  if (keylen > REMIXDB_KV_MAX) return NULL;  // no key is that long
  struct xdb_ref *const ref = snap ? ldb_snapshot_reader(snap) : remixdb_ref_borrow(db->xdb);
  if (!ref) {
    ldb_failed(errptr, NULL);
    return NULL;
  }
  char *const value = get(ref, key, keylen, vallen, errptr);
  if (snap) ldb_snapshot_reader_end(snap, ref);
  else remixdb_ref_return(ref);
  return value;
}

// ---- properties, sizes, compaction

static uint64_t figure(leveldb_t *db, const char *name) {
  uint64_t value = 0;
  (void)remixdb_figure(db->xdb, name, &value);  // all names here are in the table
  return value;
}

static char *text_of(const char *format, uint64_t a, uint64_t b) {
  char text[128];
  (void)snprintf(text, sizeof(text), format, (unsigned long long)a, (unsigned long long)b);
  return strdup(text);
}

static char *stats_text(leveldb_t *db) {
  char *const json = remixdb_stats(db->xdb), *const copy = json ? strdup(json) : NULL;
  remixdb_free(json);
  return copy;
}

static char *memory_text(leveldb_t *db) {
  static const char *const parts[] = {"memory.memtable_active", "memory.memtable_frozen", "memory.cache_used",
                                      "memory.remix",           "memory.tables",          "memory.log_buffers"};
  uint64_t sum = 0;
  for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) sum += figure(db, parts[i]);
  return text_of("%llu", sum, 0);
}

char *leveldb_property_value(leveldb_t *db, const char *propname) {
  static const char prefix[] = "leveldb.", files[] = "num-files-at-level";
  if (strncmp(propname, prefix, strlen(prefix)) != 0) return NULL;
  const char *const name = propname + strlen(prefix);
  if (strcmp(name, "stats") == 0) return stats_text(db);
  if (strcmp(name, "sstables") == 0)
    return text_of("--- level 0 ---\n %llu tables: %llu bytes\n", figure(db, "tables"), figure(db, "disk.table_bytes"));
  if (strcmp(name, "approximate-memory-usage") == 0) return memory_text(db);
  if (strncmp(name, files, strlen(files)) != 0) return NULL;
  const char *const level = name + strlen(files);
  if (level[0] < '0' || level[0] > '6' || level[1] != '\0') return NULL;
  return text_of("%llu", level[0] == '0' ? figure(db, "tables") : 0, 0);
}
