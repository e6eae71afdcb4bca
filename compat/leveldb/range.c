// SPDX-License-Identifier: Apache-2.0
//
// Ranges of keys: their sizes, and their compaction.
#include "compat/leveldb/internal.h"

static bool is_below(const char *key, uint32_t klen, const char *limit, size_t limit_len) {
  const int c = memcmp(key, limit, klen < limit_len ? klen : limit_len);
  return c < 0 || (c == 0 && klen < limit_len);
}

// Bytes of the records from start to limit.
static uint64_t size_of(struct xdb_iter *it, const char *start, size_t start_len, const char *limit, size_t limit_len) {
  uint64_t sum = 0;
  if (start_len > REMIXDB_KV_MAX) return 0;
  for (remixdb_iter_seek(it, start, (uint32_t)start_len); remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
    uint32_t klen = 0, vlen = 0;
    const char *const key = remixdb_iter_key(it, &klen);
    if (!key || !remixdb_iter_value(it, &vlen) || !is_below(key, klen, limit, limit_len)) break;
    sum += klen + vlen;
  }
  return sum;
}

void leveldb_approximate_sizes(leveldb_t *db, int num_ranges, const char *const *range_start_key,
                               const size_t *range_start_key_len, const char *const *range_limit_key,
                               const size_t *range_limit_key_len, uint64_t *sizes) {
  struct xdb_ref *const ref = remixdb_ref_borrow(db->xdb);
  struct xdb_iter *const it = ref ? remixdb_iter_create(ref) : NULL;
  for (int i = 0; i < num_ranges; i++)
    sizes[i] = it ? size_of(it, range_start_key[i], range_start_key_len[i], range_limit_key[i], range_limit_key_len[i])
                  : 0;
  remixdb_iter_destroy(it);
  remixdb_ref_return(ref);
}

void leveldb_compact_range(leveldb_t *db, const char *start_key, size_t start_key_len, const char *limit_key,
                           size_t limit_key_len) {
  (void)start_key, (void)start_key_len, (void)limit_key, (void)limit_key_len;
  struct xdb_ref *const ref = remixdb_ref_borrow(db->xdb);
  if (ref) (void)remixdb_compact(ref);  // the caller has no way to learn of a failure
  remixdb_ref_return(ref);
}
