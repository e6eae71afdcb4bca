// SPDX-License-Identifier: Apache-2.0
//
// LevelDB's C interface: every function of leveldb/c.h, with the meaning that LevelDB's programs expect.
#include <leveldb/c.h>

#include "compat/leveldb/internal.h"
#include "tests/lib/check.h"
#include "tests/lib/store.h"

static char name[600];
static leveldb_options_t *options;
static leveldb_readoptions_t *reads;
static leveldb_writeoptions_t *writes;
static char *err;

static int begin(void **state) {
  if (setup(state) != 0) return -1;
  (void)snprintf(name, sizeof(name), "%s/ldb", dir);
  options = leveldb_options_create();
  reads = leveldb_readoptions_create();
  writes = leveldb_writeoptions_create();
  err = NULL;
  if (!options || !reads || !writes) return -1;
  leveldb_options_set_create_if_missing(options, 1);
  leveldb_options_set_write_buffer_size(options, 1 << 20);
  return 0;
}

static int end(void **state) {
  leveldb_options_destroy(options);
  leveldb_readoptions_destroy(reads);
  leveldb_writeoptions_destroy(writes);
  return teardown(state);
}

#define FINE CHECK_SAYS(!err, "%s", err)
// The call before has failed with a message that begins so and has these words.
#define FAILED(beginning, words)                                                                             \
  do {                                                                                                       \
    CHECK_SAYS(err &&strncmp(err, beginning ": ", strlen(beginning) + 2) == 0 && strstr(err, (words)), "%s", \
               err ? err : "no error");                                                                      \
    leveldb_free(err);                                                                                       \
    err = NULL;                                                                                              \
  } while (0)

static leveldb_t *open_it(void) {
  leveldb_t *const db = leveldb_open(options, name, &err);
  FINE;
  CHECK(db);
  return db;
}

static void put(leveldb_t *db, const char *key, const char *value) {
  leveldb_put(db, writes, key, strlen(key), value, strlen(value), &err);
  FINE;
}

static void check_get(leveldb_t *db, const char *key, const char *value) {
  size_t len = 77;
  char *const got = leveldb_get(db, reads, key, strlen(key), &len, &err);
  FINE;
  if (value) CHECK_SAYS(got && len == strlen(value) && memcmp(got, value, len) == 0, "%s", key);
  else CHECK_SAYS(!got && len == 0, "%s", key);
  leveldb_free(got);
}

static bool text_is(const char *got, size_t len, const char *expected) {
  return got && len == strlen(expected) && memcmp(got, expected, len) == 0;
}

// The iterator stands on this record; key NULL: on none.
static void check_at(const leveldb_iterator_t *it, const char *key, const char *value) {
  size_t klen = 77, vlen = 77;
  const char *const k = leveldb_iter_key(it, &klen), *const v = leveldb_iter_value(it, &vlen);
  leveldb_iter_get_error(it, &err);
  FINE;
  CHECK(leveldb_iter_valid(it) == (key != NULL));
  if (key) CHECK_SAYS(text_is(k, klen, key) && text_is(v, vlen, value), "%s", key);
  else CHECK(!k && !v && klen == 0 && vlen == 0);
}

// ---- opening

static void test_open(void **state) {
  (void)state;
  leveldb_options_set_create_if_missing(options, 0);
  CHECK(!leveldb_open(options, name, &err));
  FAILED("Invalid argument", "create_if_missing");
  leveldb_options_set_create_if_missing(options, 1);
  leveldb_t *db = open_it();
  CHECK(!leveldb_open(options, name, &err));  // it is open
  CHECK(!leveldb_open(options, name, &err));  // and the old message is freed
  FAILED("IO error", name);
  put(db, "key", "value");
  leveldb_close(db);
  leveldb_options_set_error_if_exists(options, 1);
  CHECK(!leveldb_open(options, name, &err));
  FAILED("Invalid argument", "error_if_exists");
  leveldb_options_set_error_if_exists(options, 0);
  leveldb_options_set_create_if_missing(options, 0);
  db = open_it();
  check_get(db, "key", "value");
  leveldb_close(db);
  leveldb_close(NULL);
  leveldb_destroy_db(options, name, &err);
  FINE;
  leveldb_destroy_db(options, name, &err);  // nothing there is no error
  FINE;
  CHECK(!leveldb_open(options, name, &err));
  FAILED("Invalid argument", "create_if_missing");
  leveldb_repair_db(options, name, &err);
  FAILED("NotFound", name);
  CHECK(leveldb_major_version() == 1 && leveldb_minor_version() == 23);
}

static void test_options_are_accepted(void **state) {
  (void)state;
  leveldb_cache_t *const cache = leveldb_cache_create_lru(100000);
  leveldb_env_t *const env = leveldb_create_default_env();
  leveldb_filterpolicy_t *const bloom = leveldb_filterpolicy_create_bloom(10);
  CHECK(cache && env && bloom);
  leveldb_options_set_cache(options, cache);
  leveldb_options_set_env(options, env);
  leveldb_options_set_filter_policy(options, bloom);
  leveldb_options_set_info_log(options, NULL);
  leveldb_options_set_comparator(options, NULL);
  leveldb_options_set_paranoid_checks(options, 1);
  leveldb_options_set_max_open_files(options, 3);
  leveldb_options_set_block_size(options, 1024);
  leveldb_options_set_block_restart_interval(options, 8);
  leveldb_options_set_max_file_size(options, 3 << 20);
  leveldb_options_set_compression(options, leveldb_snappy_compression);
  leveldb_readoptions_set_verify_checksums(reads, 1);
  leveldb_readoptions_set_fill_cache(reads, 0);
  leveldb_t *const db = open_it();
  put(db, "key", "value");
  leveldb_compact_range(db, NULL, 0, NULL, 0);
  check_get(db, "key", "value");
  leveldb_close(db);
  leveldb_options_set_compression(options, leveldb_no_compression);
  leveldb_close(open_it());
  leveldb_cache_destroy(cache);
  leveldb_env_destroy(env);
  leveldb_filterpolicy_destroy(bloom);
  CHECK(setenv("TEST_TMPDIR", dir, 1) == 0);
  leveldb_env_t *const other = leveldb_create_default_env();
  char *const where = leveldb_env_get_test_directory(other);
  CHECK(where && strcmp(where, dir) == 0);
  leveldb_free(where);
  leveldb_env_destroy(other);
  CHECK(unsetenv("TEST_TMPDIR") == 0);
}

// The options that have an effect: new tables are compressed, the memtable has the size that was asked for.
static void test_options_have_an_effect(void **state) {
  (void)state;
  uint64_t bytes[2] = {0};
  static char value[1000];
  for (int compressed = 0; compressed < 2; compressed++) {
    leveldb_options_set_compression(options, compressed ? leveldb_snappy_compression : leveldb_no_compression);
    leveldb_t *const db = open_it();
    for (uint32_t i = 0; i < 5000; i++) {  // 5 MB: more than a memtable
      leveldb_put(db, writes, (const char *)&i, sizeof(i), value, sizeof(value), &err);
      FINE;
    }
    char *const files = leveldb_property_value(db, "leveldb.num-files-at-level0");
    CHECK(files && strtoul(files, NULL, 10) >= 1);
    leveldb_free(files);
    leveldb_compact_range(db, NULL, 0, NULL, 0);
    char *const tables = leveldb_property_value(db, "leveldb.sstables");
    CHECK(tables && strstr(tables, "tables: "));
    bytes[compressed] = strtoull(strstr(tables, "tables: ") + 8, NULL, 10);
    leveldb_free(tables);
    leveldb_close(db);
    leveldb_destroy_db(options, name, &err);
    FINE;
  }
  CHECK(bytes[0] > 5000000 && bytes[1] < bytes[0] / 4);
}

static uint64_t size_of_cache(leveldb_t *db) {
  char *const json = leveldb_property_value(db, "leveldb.stats");
  CHECK(json && strstr(json, "\"cache_size\":"));
  const uint64_t size = strtoull(strstr(json, "\"cache_size\":") + 13, NULL, 10);
  leveldb_free(json);
  return size;
}

static void test_cache(void **state) {
  (void)state;
  static const size_t capacity[] = {0, 1, 3 << 20, (3 << 20) + 1, SIZE_MAX}, mib[] = {1, 1, 3, 4, 0};
  leveldb_t *db = open_it();
  CHECK(size_of_cache(db) >> 20 == 256);
  leveldb_close(db);
  for (size_t i = 0; i < sizeof(capacity) / sizeof(capacity[0]); i++) {
    leveldb_cache_t *const cache = leveldb_cache_create_lru(capacity[i]);
    leveldb_options_set_cache(options, cache);
    db = open_it();
    leveldb_cache_destroy(cache);
    put(db, "key", "value");
    check_get(db, "key", "value");
    CHECK(mib[i] ? size_of_cache(db) >> 20 == mib[i] : size_of_cache(db) >> 20 > 256);
    leveldb_close(db);
  }
  leveldb_options_set_cache(options, NULL);
}

// LevelDB clips a size that is out of its range, so the store opens with any.
static void test_any_write_buffer(void **state) {
  (void)state;
  const size_t sizes[] = {1, (1u << 20) + 1, SIZE_MAX - 1, SIZE_MAX};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    leveldb_options_set_write_buffer_size(options, sizes[i]);
    leveldb_t *const db = open_it();
    put(db, "key", "value");
    check_get(db, "key", "value");
    leveldb_close(db);
  }
}

// ---- reading and writing

static void test_values(void **state) {
  (void)state;
  leveldb_t *const db = open_it();
  size_t len = 77;
  check_get(db, "none", NULL);
  leveldb_delete(db, writes, "none", 4, &err);  // no error
  FINE;
  put(db, "", "empty key");
  put(db, "empty value", "");
  char *const got = leveldb_get(db, reads, "empty value", 11, &len, &err);
  CHECK(got && len == 0);  // not NULL
  leveldb_free(got);
  check_get(db, "", "empty key");
  leveldb_writeoptions_set_sync(writes, 1);
  put(db, "synced", "1");
  leveldb_delete(db, writes, "", 0, &err);
  FINE;
  leveldb_writeoptions_set_sync(writes, 0);
  check_get(db, "", NULL);
  static char big[50000];
  memset(big, 'b', sizeof(big));
  leveldb_put(db, writes, "big", 3, big, sizeof(big), &err);
  FINE;
  char *const copy = leveldb_get(db, reads, "big", 3, &len, &err);
  CHECK(copy && len == sizeof(big) && memcmp(copy, big, len) == 0);
  free(copy);  // it is malloc's
  leveldb_close(db);
}

static void test_too_long(void **state) {
  (void)state;
  leveldb_t *const db = open_it();
  static char key[70000];
  size_t len = 77;
  memset(key, 'k', sizeof(key));
  leveldb_put(db, writes, key, sizeof(key), "v", 1, &err);
  FAILED("Invalid argument", "70000");
  leveldb_put(db, writes, "k", 1, key, (size_t)1 << 40, &err);
  FAILED("Invalid argument", "4 GiB");
  leveldb_delete(db, writes, key, (size_t)1 << 40, &err);
  FAILED("Invalid argument", "4 GiB");
  CHECK(!leveldb_get(db, reads, key, sizeof(key), &len, &err) && len == 0);  // no key is that long
  FINE;
  leveldb_writebatch_t *const b = leveldb_writebatch_create();
  leveldb_writebatch_put(b, "a", 1, "1", 1);
  leveldb_writebatch_put(b, key, sizeof(key), "v", 1);
  leveldb_write(db, writes, b, &err);
  FAILED("Invalid argument", "70000");
  check_get(db, "a", NULL);  // nothing of it is written
  leveldb_writebatch_clear(b);
  leveldb_writebatch_put(b, "a", 1, "1", 1);
  leveldb_write(db, writes, b, &err);
  FINE;
  check_get(db, "a", "1");
  leveldb_writebatch_t *const other = leveldb_writebatch_create();
  leveldb_writebatch_delete(other, key, (size_t)1 << 40);
  leveldb_writebatch_append(b, other);
  leveldb_write(db, writes, b, &err);
  FAILED("Invalid argument", "");
  leveldb_writebatch_destroy(other);
  leveldb_writebatch_destroy(b);
  // A seek with a key that is too long goes to the next key.
  put(db, "kkk", "below");
  put(db, "l", "above");
  leveldb_put(db, writes, key, REMIXDB_KV_MAX - 1, "x", 1, &err);
  FINE;
  leveldb_iterator_t *const it = leveldb_create_iterator(db, reads);
  leveldb_iter_seek(it, key, sizeof(key));
  check_at(it, "l", "above");
  leveldb_iter_destroy(it);
  leveldb_close(db);
}

// ---- batches

struct heard {
  char text[200];
};

static void hear_put(void *state, const char *k, size_t klen, const char *v, size_t vlen) {
  struct heard *const h = state;
  const size_t used = strlen(h->text);
  (void)snprintf(h->text + used, sizeof(h->text) - used, "%.*s=%.*s;", (int)klen, k, (int)vlen, v);
}

static void hear_deleted(void *state, const char *k, size_t klen) {
  struct heard *const h = state;
  const size_t used = strlen(h->text);
  (void)snprintf(h->text + used, sizeof(h->text) - used, "-%.*s;", (int)klen, k);
}

static void test_batches(void **state) {
  (void)state;
  leveldb_t *const db = open_it();
  leveldb_writebatch_t *const b = leveldb_writebatch_create(), *const c = leveldb_writebatch_create();
  struct heard h = {""};
  put(db, "z", "old");
  leveldb_writebatch_put(b, "gone", 4, "x", 1);
  leveldb_writebatch_clear(b);
  leveldb_writebatch_put(b, "a", 1, "1", 1);
  leveldb_writebatch_put(b, "b", 1, "", 0);
  leveldb_writebatch_delete(c, "a", 1);
  leveldb_writebatch_delete(c, "z", 1);
  leveldb_writebatch_append(b, c);
  leveldb_writebatch_iterate(b, &h, hear_put, hear_deleted);
  CHECK_SAYS(strcmp(h.text, "a=1;b=;-a;-z;") == 0, "%s", h.text);
  leveldb_write(db, writes, b, &err);
  FINE;
  check_get(db, "a", NULL);
  check_get(db, "b", "");
  check_get(db, "z", NULL);
  check_get(db, "gone", NULL);
  leveldb_writebatch_destroy(b);
  leveldb_writebatch_destroy(c);
  leveldb_writebatch_destroy(NULL);
  leveldb_close(db);
}

// ---- iterators and snapshots

static void test_iterators(void **state) {
  (void)state;
  leveldb_t *const db = open_it();
  leveldb_iterator_t *const empty = leveldb_create_iterator(db, reads);
  check_at(empty, NULL, NULL);
  leveldb_iter_seek_to_first(empty);
  check_at(empty, NULL, NULL);
  put(db, "a", "1");
  put(db, "b", "2");
  put(db, "d", "4");
  leveldb_iter_seek_to_last(empty);  // it still shows the moment of its creation
  check_at(empty, NULL, NULL);
  leveldb_iter_destroy(empty);
  leveldb_iterator_t *const it = leveldb_create_iterator(db, reads);
  check_at(it, NULL, NULL);
  leveldb_iter_seek_to_first(it);
  check_at(it, "a", "1");
  leveldb_iter_next(it);
  check_at(it, "b", "2");
  put(db, "c", "3");
  leveldb_delete(db, writes, "d", 1, &err);
  leveldb_compact_range(db, "a", 1, "z", 1);
  leveldb_iter_next(it);
  check_at(it, "d", "4");
  leveldb_iter_next(it);
  check_at(it, NULL, NULL);
  leveldb_iter_seek(it, "c", 1);
  check_at(it, "d", "4");
  leveldb_iter_prev(it);
  check_at(it, "b", "2");
  leveldb_iter_prev(it);
  leveldb_iter_prev(it);
  check_at(it, NULL, NULL);
  leveldb_iter_seek_to_last(it);
  check_at(it, "d", "4");
  leveldb_iter_seek(it, "e", 1);
  check_at(it, NULL, NULL);
  leveldb_iter_destroy(it);
  leveldb_iter_destroy(NULL);
  leveldb_close(db);
}

static void test_snapshots(void **state) {
  (void)state;
  leveldb_t *const db = open_it();
  put(db, "a", "1");
  const leveldb_snapshot_t *const one = leveldb_create_snapshot(db);
  put(db, "a", "2");
  put(db, "b", "2");
  const leveldb_snapshot_t *const two = leveldb_create_snapshot(db);
  leveldb_delete(db, writes, "a", 1, &err);
  CHECK(one && two);
  for (int round = 0; round < 2; round++) {
    leveldb_readoptions_set_snapshot(reads, one);
    check_get(db, "a", "1");
    check_get(db, "b", NULL);
    leveldb_readoptions_set_snapshot(reads, two);
    check_get(db, "a", "2");
    check_get(db, "b", "2");
    leveldb_readoptions_set_snapshot(reads, NULL);
    check_get(db, "a", NULL);
    leveldb_compact_range(db, NULL, 0, NULL, 0);
  }
  leveldb_readoptions_set_snapshot(reads, one);
  leveldb_iterator_t *const it = leveldb_create_iterator(db, reads);
  leveldb_readoptions_set_snapshot(reads, NULL);
  leveldb_release_snapshot(db, one);  // the iterator outlives it
  leveldb_release_snapshot(db, two);
  leveldb_compact_range(db, NULL, 0, NULL, 0);
  leveldb_iter_seek_to_first(it);
  check_at(it, "a", "1");
  leveldb_iter_next(it);
  check_at(it, NULL, NULL);
  leveldb_iter_destroy(it);
  leveldb_close(db);
}

// ---- properties and sizes

static void test_properties(void **state) {
  (void)state;
  static const char *const unknown[] = {"",
                                        "leveldb",
                                        "leveldb.",
                                        "leveldb.stat",
                                        "rocksdb.stats",
                                        "leveldb.num-files-at-level",
                                        "leveldb.num-files-at-level7",
                                        "leveldb.num-files-at-level00"};
  leveldb_t *const db = open_it();
  put(db, "a", "1");
  leveldb_compact_range(db, NULL, 0, NULL, 0);
  for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) CHECK(!leveldb_property_value(db, unknown[i]));
  char *text = leveldb_property_value(db, "leveldb.stats");
  CHECK(text && strstr(text, "\"tables\":1,"));
  leveldb_free(text);
  text = leveldb_property_value(db, "leveldb.approximate-memory-usage");
  CHECK(text && strtoull(text, NULL, 10) > 1000);
  leveldb_free(text);
  for (char level = '0'; level <= '6'; level++) {
    char prop[] = "leveldb.num-files-at-level0";
    prop[strlen(prop) - 1] = level;
    text = leveldb_property_value(db, prop);
    CHECK(text && strcmp(text, level == '0' ? "1" : "0") == 0);
    leveldb_free(text);
  }
  leveldb_close(db);
}

static void test_sizes(void **state) {
  (void)state;
  leveldb_t *const db = open_it();
  char key[16], value[500];
  memset(value, 'v', sizeof(value));
  for (uint32_t i = 0; i < 8000; i++) {
    const size_t klen = (size_t)snprintf(key, sizeof(key), "%06u", i);
    leveldb_put(db, writes, key, klen, value, sizeof(value), &err);
    FINE;
  }
  leveldb_compact_range(db, NULL, 0, NULL, 0);
  const char *const starts[] = {"000000", "000000", "004000", "a", "004000"};
  const char *const limits[] = {"999999", "004000", "008000", "b", "002000"};
  const size_t lens[] = {6, 6, 6, 1, 6};
  uint64_t sizes[5];
  leveldb_approximate_sizes(db, 5, starts, lens, limits, lens, sizes);
  CHECK_SAYS(sizes[0] > 3200000 && sizes[0] < 5200000, "%llu", (unsigned long long)sizes[0]);
  CHECK_SAYS(sizes[1] > 1500000 && sizes[1] < 2700000, "%llu", (unsigned long long)sizes[1]);
  CHECK_SAYS(sizes[2] > 1500000 && sizes[2] < 2700000, "%llu", (unsigned long long)sizes[2]);
  CHECK(sizes[3] < 100000 && sizes[4] < 100000);
  // NULL is the empty key: no key is below that limit, and all are behind that start
  const char *const empty[] = {NULL, NULL}, *const ends[] = {NULL, "999999"};
  const size_t no_lens[] = {0, 0}, end_lens[] = {0, 6};
  leveldb_approximate_sizes(db, 2, empty, no_lens, ends, end_lens, sizes);
  CHECK_SAYS(sizes[0] == 0 && sizes[1] > 3200000, "%llu", (unsigned long long)sizes[0]);
  leveldb_close(db);
}

// ---- comparators and filters

static uint32_t destroyed;
static void count_destroyed(void *state) { destroyed += state == &destroyed; }
static const char *some_name(void *state) {
  (void)state;
  return "some.order";
}

static int bytes_order(void *state, const char *a, size_t alen, const char *b, size_t blen) {
  (void)state;
  const int c = memcmp(a, b, alen < blen ? alen : blen);
  return c ? 5 * c : (int)alen - (int)blen;
}
static int reverse(void *state, const char *a, size_t alen, const char *b, size_t blen) {
  return -bytes_order(state, a, alen, b, blen);
}
static int signed_order(void *state, const char *a, size_t alen, const char *b, size_t blen) {
  (void)state;
  for (size_t i = 0; i < alen && i < blen; i++)
    if (a[i] != b[i]) return (signed char)a[i] < (signed char)b[i] ? -1 : 1;
  return (int)alen - (int)blen;
}
static int lower(char c) { return c >= 'A' && c <= 'Z' ? c + 32 : (unsigned char)c; }
static int no_case(void *state, const char *a, size_t alen, const char *b, size_t blen) {
  (void)state;
  for (size_t i = 0; i < alen && i < blen; i++)
    if (lower(a[i]) != lower(b[i])) return lower(a[i]) - lower(b[i]);
  return (int)alen - (int)blen;
}
static int length_first(void *state, const char *a, size_t alen, const char *b, size_t blen) {
  return alen != blen ? (alen < blen ? -1 : 1) : bytes_order(state, a, alen, b, blen);
}
static bool is_number(const char *a, size_t len) {
  for (size_t i = 0; i < len; i++)
    if (a[i] < '0' || a[i] > '9') return false;
  return len > 0 && len < 19;
}
static int digits_as_number(void *state, const char *a, size_t alen, const char *b, size_t blen) {
  return is_number(a, alen) && is_number(b, blen) ? length_first(state, a, alen, b, blen)
                                                  : bytes_order(state, a, alen, b, blen);
}
static int little_endian_32(void *state, const char *a, size_t alen, const char *b, size_t blen) {
  uint32_t x, y;
  if (alen != 4 || blen != 4) return bytes_order(state, a, alen, b, blen);
  memcpy(&x, a, 4);
  memcpy(&y, b, 4);
  return x < y ? -1 : x > y;
}
static int little_endian_64(void *state, const char *a, size_t alen, const char *b, size_t blen) {
  uint64_t x, y;
  if (alen != 8 || blen != 8) return bytes_order(state, a, alen, b, blen);
  memcpy(&x, a, 8);
  memcpy(&y, b, 8);
  return x < y ? -1 : x > y;
}
static int strings(void *state, const char *a, size_t alen, const char *b, size_t blen) {  // strings that end at a zero
  return bytes_order(state, a, strnlen(a, alen), b, strnlen(b, blen));
}
static int all_equal(void *state, const char *a, size_t alen, const char *b, size_t blen) {
  (void)state, (void)a, (void)alen, (void)b, (void)blen;
  return 0;
}
// The order of bytes, but for keys that begin with "secret", which no opening tries.
static int mostly(void *state, const char *a, size_t alen, const char *b, size_t blen) {
  const bool odd = alen > 6 && blen > 6 && memcmp(a, "secret", 6) == 0 && memcmp(b, "secret", 6) == 0;
  return odd ? reverse(state, a, alen, b, blen) : bytes_order(state, a, alen, b, blen);
}

typedef int (*compare_fn)(void *state, const char *a, size_t alen, const char *b, size_t blen);

static void test_comparators(void **state) {
  (void)state;
  static const compare_fn refused[] = {reverse,          signed_order,     no_case, length_first, digits_as_number,
                                       little_endian_32, little_endian_64, strings, all_equal};
  for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
    leveldb_comparator_t *const c = leveldb_comparator_create(&destroyed, count_destroyed, refused[i], some_name);
    leveldb_options_set_comparator(options, c);
    CHECK_SAYS(!leveldb_open(options, name, &err), "comparator %zu", i);
    FAILED("Invalid argument", "some.order");
    CHECK(access(name, F_OK) != 0);  // nothing was made
    destroyed = 0;
    leveldb_comparator_destroy(c);
    CHECK(destroyed == 1);
  }
  leveldb_comparator_t *const good = leveldb_comparator_create(&destroyed, count_destroyed, bytes_order, some_name);
  leveldb_options_set_comparator(options, good);
  leveldb_t *db = open_it();
  put(db, "secret 1", "");
  put(db, "secret 2", "");
  leveldb_close(db);
  leveldb_comparator_destroy(good);
  leveldb_comparator_t *const odd = leveldb_comparator_create(&destroyed, count_destroyed, mostly, some_name);
  leveldb_options_set_comparator(options, odd);
  db = open_it();
  put(db, "secret 1", "");
  leveldb_put(db, writes, "secret 2", 8, "new", 3, &err);
  FAILED("Invalid argument", "comparator");
  put(db, "b", "");         // both orders place it alike
  put(db, "secret 3", "");  // compared with "b"
  leveldb_delete(db, writes, "secret 1", 8, &err);
  FAILED("Invalid argument", "comparator");
  leveldb_writebatch_t *const b = leveldb_writebatch_create();
  leveldb_writebatch_put(b, "a", 1, "1", 1);
  leveldb_writebatch_put(b, "secret 4", 8, "1", 1);
  leveldb_writebatch_put(b, "secret 5", 8, "1", 1);
  leveldb_write(db, writes, b, &err);
  FAILED("Invalid argument", "comparator");
  check_get(db, "a", NULL);
  leveldb_writebatch_destroy(b);
  leveldb_close(db);
  leveldb_comparator_destroy(odd);
  leveldb_options_set_comparator(options, NULL);
}

static char *no_filter(void *state, const char *const *keys, const size_t *lens, int nr, size_t *len) {
  (void)state, (void)keys, (void)lens, (void)nr, (void)len;
  abort();  // the store has no use for filters
}
static uint8_t no_match(void *state, const char *key, size_t len, const char *filter, size_t filter_len) {
  (void)state, (void)key, (void)len, (void)filter, (void)filter_len;
  abort();
}

static void test_filters(void **state) {
  (void)state;
  leveldb_filterpolicy_t *const own = leveldb_filterpolicy_create(&destroyed, count_destroyed, no_filter, no_match,
                                                                  some_name);
  CHECK(own);
  leveldb_options_set_filter_policy(options, own);
  leveldb_t *const db = open_it();
  put(db, "a", "1");
  leveldb_compact_range(db, NULL, 0, NULL, 0);
  check_get(db, "a", "1");
  check_get(db, "b", NULL);
  leveldb_close(db);
  destroyed = 0;
  leveldb_filterpolicy_destroy(own);
  CHECK(destroyed == 1);
}

// ---- damage

static void test_repair(void **state) {
  (void)state;
  leveldb_t *db = open_it();
  char path[700] = {0};
  for (uint32_t i = 0; i < 2000; i++) {
    leveldb_put(db, writes, (const char *)&i, sizeof(i), path, 100, &err);
    FINE;
  }
  leveldb_compact_range(db, NULL, 0, NULL, 0);
  leveldb_close(db);
  (void)snprintf(path, sizeof(path), "%s/CURRENT", name);
  FILE *const out = fopen(path, "r+");
  CHECK(out && fwrite("MANIFEST-000002\n", 1, 16, out) == 16 && fclose(out) == 0);  // as LevelDB's own begins
  CHECK(!leveldb_open(options, name, &err));
  FAILED("Corruption", "CURRENT");
  leveldb_repair_db(options, name, &err);
  FINE;
  db = open_it();
  const uint32_t i = 1234;
  size_t len;
  char *const got = leveldb_get(db, reads, (const char *)&i, sizeof(i), &len, &err);
  CHECK(got && len == 100);
  leveldb_free(got);
  leveldb_close(db);
}

// ---- threads

#define THREADS 6u
#define ROUNDS (2000u / SLOW)

static void *use_it(void *arg) {
  leveldb_t *const db = arg;
  static _Atomic uint32_t numbers;
  const uint32_t number = atomic_fetch_add(&numbers, 1);
  leveldb_readoptions_t *const r = leveldb_readoptions_create();
  leveldb_writeoptions_t *const w = leveldb_writeoptions_create();
  char *e = NULL;
  for (uint32_t i = 0; i < ROUNDS; i++) {
    char key[32];
    size_t len;
    const size_t klen = (size_t)snprintf(key, sizeof(key), "%u %u", number, i % 50);
    leveldb_put(db, w, key, klen, key, klen, &e);
    char *const got = leveldb_get(db, r, key, klen, &len, &e);
    THREAD_CHECK(!e && got && len == klen && memcmp(got, key, klen) == 0);
    leveldb_free(got);
    if (i % 8) continue;
    const leveldb_snapshot_t *const snap = leveldb_create_snapshot(db);
    leveldb_delete(db, w, key, klen, &e);
    leveldb_readoptions_set_snapshot(r, snap);
    char *const old = leveldb_get(db, r, key, klen, &len, &e);
    leveldb_iterator_t *const it = leveldb_create_iterator(db, r);
    leveldb_readoptions_set_snapshot(r, NULL);
    leveldb_release_snapshot(db, snap);
    leveldb_iter_seek(it, key, klen);
    const char *const at = leveldb_iter_key(it, &len);
    THREAD_CHECK(!e && old && at && len == klen && memcmp(at, key, klen) == 0);
    leveldb_free(old);
    leveldb_iter_destroy(it);
    THREAD_CHECK(!leveldb_get(db, r, key, klen, &len, &e) && !e);
  }
  leveldb_readoptions_destroy(r);
  leveldb_writeoptions_destroy(w);
  return NULL;
}

static void *no_memory(size_t size) {
  (void)size;
  return NULL;
}

// Without memory for its message a call that fails has a message all the same, which leveldb_free takes.
static void test_no_memory(void **state) {
  (void)state;
  leveldb_t *const db = open_it();
  size_t len = 77;
  put(db, "key", "value");
  static char key[70000];
  ldb_malloc = no_memory;
  CHECK(!leveldb_get(db, reads, "key", 3, &len, &err) && len == 0);
  FAILED("IO error", "no memory");
  CHECK(!leveldb_get(db, reads, "none", 4, &len, &err));
  FINE;
  leveldb_put(db, writes, key, sizeof(key), "v", 1, &err);
  FAILED("IO error", "no memory");
  leveldb_delete(db, writes, key, sizeof(key), &err);
  CHECK(err);
  leveldb_delete(db, writes, key, sizeof(key), &err);  // the message of the failure before it goes
  FAILED("IO error", "no memory");
  CHECK(!leveldb_open(options, name, &err));
  FAILED("IO error", "no memory");
  leveldb_writebatch_t *const b = leveldb_writebatch_create(), *const c = leveldb_writebatch_create();
  leveldb_writebatch_put(b, key, sizeof(key), "v", 1);
  leveldb_writebatch_append(c, b);
  leveldb_write(db, writes, c, &err);
  FAILED("IO error", "no memory");
  leveldb_writebatch_clear(b);
  leveldb_writebatch_put(b, key, sizeof(key), "v", 1);
  ldb_malloc = malloc;
  leveldb_write(db, writes, b, &err);  // the batch kept the message that says so
  FAILED("IO error", "no memory");
  leveldb_writebatch_clear(b);
  leveldb_writebatch_put(b, key, sizeof(key), "v", 1);
  leveldb_write(db, writes, b, &err);
  FAILED("Invalid argument", "");
  leveldb_writebatch_destroy(b);
  leveldb_writebatch_destroy(c);
  leveldb_close(db);
}

static void test_threads(void **state) {
  (void)state;
  leveldb_t *const db = open_it();
  const leveldb_snapshot_t *const snap = leveldb_create_snapshot(db);
  pthread_t threads[THREADS];
  for (uint32_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, use_it, db) == 0);
  for (uint32_t i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  leveldb_readoptions_set_snapshot(reads, snap);
  check_get(db, "0 0", NULL);
  leveldb_readoptions_set_snapshot(reads, NULL);
  leveldb_release_snapshot(db, snap);
  leveldb_close(db);
}

int main(void) {
#define TEST(function) cmocka_unit_test_setup_teardown(function, begin, end)
  const struct CMUnitTest tests[] = {
      TEST(test_open),
      TEST(test_options_are_accepted),
      TEST(test_options_have_an_effect),
      TEST(test_cache),
      TEST(test_any_write_buffer),
      TEST(test_values),
      TEST(test_too_long),
      TEST(test_batches),
      TEST(test_iterators),
      TEST(test_snapshots),
      TEST(test_properties),
      TEST(test_sizes),
      TEST(test_comparators),
      TEST(test_filters),
      TEST(test_repair),
      TEST(test_no_memory),
      TEST(test_threads),
  };
  return cmocka_run_group_tests_name("leveldb", tests, NULL, NULL);
}
