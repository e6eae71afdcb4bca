// SPDX-License-Identifier: Apache-2.0
//
// Iterators. One shows the moment of its creation over all its seeks, so it keeps a snapshot.
#include "compat/leveldb/internal.h"

struct leveldb_iterator_t {
  leveldb_snapshot_t *snapshot;
  struct xdb_ref *ref;
  struct xdb_iter *it;  // NULL: the creation has failed, and `error` tells
  char *error;
};

static leveldb_snapshot_t *snapshot_of(leveldb_t *db, const leveldb_readoptions_t *options) {
  if (!options->snapshot) return ldb_snapshot_take(db);
  leveldb_snapshot_t *const snap = (leveldb_snapshot_t *)(uintptr_t)options->snapshot;
  ldb_snapshot_ref(snap);
  return snap;
}

leveldb_iterator_t *leveldb_create_iterator(leveldb_t *db, const leveldb_readoptions_t *options) {
  leveldb_iterator_t *const it = calloc(1, sizeof(*it));
  if (!it) return NULL;
  it->snapshot = snapshot_of(db, options);
  if (it->snapshot) it->ref = remixdb_snapshot_ref(it->snapshot->snapshot);
  if (it->ref) it->it = remixdb_iter_create(it->ref);
  if (!it->it) ldb_failed(&it->error, NULL);
  return it;
}

void leveldb_iter_destroy(leveldb_iterator_t *it) {
  if (!it) return;
  remixdb_iter_destroy(it->it);
  remixdb_unref(it->ref);
  ldb_snapshot_unref(it->snapshot);
  free(it->error);
  free(it);
}

uint8_t leveldb_iter_valid(const leveldb_iterator_t *it) { return it->it && remixdb_iter_valid(it->it); }

void leveldb_iter_seek_to_first(leveldb_iterator_t *it) {
  if (it->it) remixdb_iter_seek(it->it, NULL, 0);
}

void leveldb_iter_seek_to_last(leveldb_iterator_t *it) {
  if (it->it) remixdb_iter_seek_last(it->it);
}

// No key is longer than REMIXDB_KV_MAX. The first key that is not below a longer one is the first key above the longer
// one's beginning.
void leveldb_iter_seek(leveldb_iterator_t *it, const char *k, size_t klen) {
  if (!it->it) return;
  const bool cut = klen > REMIXDB_KV_MAX;
  const uint32_t len = cut ? REMIXDB_KV_MAX : (uint32_t)klen;
  remixdb_iter_seek(it->it, k, len);
  uint32_t found;
  const void *const key = cut && remixdb_iter_valid(it->it) ? remixdb_iter_key(it->it, &found) : NULL;
  if (key && found == len && memcmp(key, k, len) == 0) remixdb_iter_skip1(it->it);
}

void leveldb_iter_next(leveldb_iterator_t *it) {
  if (it->it) remixdb_iter_skip1(it->it);
}

void leveldb_iter_prev(leveldb_iterator_t *it) {
  if (it->it) remixdb_iter_prev(it->it);
}

const char *leveldb_iter_key(const leveldb_iterator_t *it, size_t *klen) {
  uint32_t len = 0;
  const char *const key = it->it ? remixdb_iter_key(it->it, &len) : NULL;
  *klen = key ? len : 0;
  return key;
}

const char *leveldb_iter_value(const leveldb_iterator_t *it, size_t *vlen) {
  uint32_t len = 0;
  const char *const value = it->it ? remixdb_iter_value(it->it, &len) : NULL;
  *vlen = value ? len : 0;
  return value;
}

void leveldb_iter_get_error(const leveldb_iterator_t *it, char **errptr) {
  if (!it->it) {
    char *const copy = strdup(it->error ? it->error : "IO error: no memory");
    if (!copy) return;
    free(*errptr);
    *errptr = copy;
  } else if (remixdb_iter_status(it->it) != REMIXDB_OK) {
    (void)remixdb_iter_key(it->it, NULL);  // fails, with the failure that took the position away
    ldb_failed(errptr, it->ref);
  }
}
