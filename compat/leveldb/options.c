// SPDX-License-Identifier: Apache-2.0
//
// The objects that hold a program's wishes, and those that are accepted without effect.
#include "compat/leveldb/internal.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

leveldb_options_t *leveldb_options_create(void) { return calloc(1, sizeof(leveldb_options_t)); }
void leveldb_options_destroy(leveldb_options_t *o) { free(o); }
void leveldb_options_set_comparator(leveldb_options_t *o, leveldb_comparator_t *c) { o->comparator = c; }
void leveldb_options_set_filter_policy(leveldb_options_t *o, leveldb_filterpolicy_t *p) { (void)o, (void)p; }
void leveldb_options_set_create_if_missing(leveldb_options_t *o, uint8_t v) { o->create_if_missing = v; }
void leveldb_options_set_error_if_exists(leveldb_options_t *o, uint8_t v) { o->error_if_exists = v; }
void leveldb_options_set_paranoid_checks(leveldb_options_t *o, uint8_t v) { (void)o, (void)v; }
void leveldb_options_set_env(leveldb_options_t *o, leveldb_env_t *env) { (void)o, (void)env; }
void leveldb_options_set_info_log(leveldb_options_t *o, leveldb_logger_t *log) { (void)o, (void)log; }
void leveldb_options_set_write_buffer_size(leveldb_options_t *o, size_t bytes) { o->write_buffer_size = bytes; }
void leveldb_options_set_max_open_files(leveldb_options_t *o, int nr) { o->max_open_files = nr; }
void leveldb_options_set_cache(leveldb_options_t *o, leveldb_cache_t *c) { o->cache = c; }
void leveldb_options_set_block_size(leveldb_options_t *o, size_t bytes) { (void)o, (void)bytes; }
void leveldb_options_set_block_restart_interval(leveldb_options_t *o, int nr) { (void)o, (void)nr; }
void leveldb_options_set_max_file_size(leveldb_options_t *o, size_t bytes) { (void)o, (void)bytes; }
void leveldb_options_set_compression(leveldb_options_t *o, int c) { o->compressed = c != leveldb_no_compression; }

leveldb_readoptions_t *leveldb_readoptions_create(void) { return calloc(1, sizeof(leveldb_readoptions_t)); }
void leveldb_readoptions_destroy(leveldb_readoptions_t *o) { free(o); }
void leveldb_readoptions_set_verify_checksums(leveldb_readoptions_t *o, uint8_t v) { (void)o, (void)v; }
void leveldb_readoptions_set_fill_cache(leveldb_readoptions_t *o, uint8_t v) { (void)o, (void)v; }
void leveldb_readoptions_set_snapshot(leveldb_readoptions_t *o, const leveldb_snapshot_t *s) { o->snapshot = s; }

leveldb_writeoptions_t *leveldb_writeoptions_create(void) { return calloc(1, sizeof(leveldb_writeoptions_t)); }
void leveldb_writeoptions_destroy(leveldb_writeoptions_t *o) { free(o); }
void leveldb_writeoptions_set_sync(leveldb_writeoptions_t *o, uint8_t v) { o->sync = v; }

leveldb_comparator_t *leveldb_comparator_create(void *state, void (*destructor)(void *),
                                                int (*compare)(void *, const char *, size_t, const char *, size_t),
                                                const char *(*name)(void *)) {
  leveldb_comparator_t *const c = malloc(sizeof(*c));
  if (c) *c = (leveldb_comparator_t){state, destructor, compare, name};
  return c;
}
void leveldb_comparator_destroy(leveldb_comparator_t *c) {
  if (!c) return;
  c->destructor(c->state);
  free(c);
}

struct leveldb_filterpolicy_t {
  void *state;
  void (*destructor)(void *state);  // NULL: a Bloom filter
};

leveldb_filterpolicy_t *leveldb_filterpolicy_create(
    void *state, void (*destructor)(void *),
    char *(*create_filter)(void *, const char *const *, const size_t *, int, size_t *),
    uint8_t (*key_may_match)(void *, const char *, size_t, const char *, size_t), const char *(*name)(void *)) {
  (void)create_filter, (void)key_may_match, (void)name;
  leveldb_filterpolicy_t *const p = malloc(sizeof(*p));
  if (p) *p = (leveldb_filterpolicy_t){state, destructor};
  return p;
}
leveldb_filterpolicy_t *leveldb_filterpolicy_create_bloom(int bits_per_key) {
  (void)bits_per_key;
  return calloc(1, sizeof(leveldb_filterpolicy_t));
}
void leveldb_filterpolicy_destroy(leveldb_filterpolicy_t *p) {
  if (p && p->destructor) p->destructor(p->state);
  free(p);
}

// An object that has nothing in it.
struct leveldb_env_t {
  char none;
};

leveldb_cache_t *leveldb_cache_create_lru(size_t capacity) {
  leveldb_cache_t *const c = malloc(sizeof(*c));
  if (c) c->capacity = capacity;
  return c;
}
void leveldb_cache_destroy(leveldb_cache_t *c) { free(c); }
leveldb_env_t *leveldb_create_default_env(void) { return calloc(1, sizeof(leveldb_env_t)); }
void leveldb_env_destroy(leveldb_env_t *env) { free(env); }

char *leveldb_env_get_test_directory(leveldb_env_t *env) {
  (void)env;
  const char *const set = getenv("TEST_TMPDIR");
  char standard[64];
  (void)snprintf(standard, sizeof(standard), "/tmp/leveldbtest-%lu", (unsigned long)geteuid());
  char *const name = strdup(set && set[0] ? set : standard);
  if (name) (void)mkdir(name, 0755);  // a failure shows when the directory is used
  return name;
}
