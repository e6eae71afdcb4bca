// SPDX-License-Identifier: Apache-2.0
//
// Iterators. Each has a ref of its own until it is destroyed.
#include "compat/leveldb/internal.h"

struct leveldb_iterator_t {
  struct xdb_ref *ref;
  struct xdb_iter *it;  // NULL: the creation has failed, and `error` tells
  char *error;
};

leveldb_iterator_t *leveldb_create_iterator(leveldb_t *db, const leveldb_readoptions_t *options) {
  leveldb_iterator_t *const it = calloc(1, sizeof(*it));
  if (!it) return NULL;
  struct remixdb_iter_opts opts;
  remixdb_iter_opts_init(&opts, sizeof(opts));
  opts.hold = true;  // an iterator shows the moment of its creation over all its seeks
  if (options->snapshot) opts.snapshot = options->snapshot->snapshot;
  it->ref = remixdb_ref_borrow(db->xdb);
  if (it->ref) it->it = remixdb_iter_create_opts(it->ref, &opts);
  if (!it->it) ldb_failed(&it->error, NULL);
  return it;
}

void leveldb_iter_destroy(leveldb_iterator_t *it) {
  if (!it) return;
  remixdb_iter_destroy(it->it);
  remixdb_ref_return(it->ref);
  ldb_message_free(it->error);
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
    ldb_message_copy(errptr, it->error);
  } else if (remixdb_iter_status(it->it) != REMIXDB_OK) {
    (void)remixdb_iter_key(it->it, NULL);  // fails, with the failure that took the position away
    ldb_failed(errptr, it->ref);
  }
}
