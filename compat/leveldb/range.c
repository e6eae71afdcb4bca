// SPDX-License-Identifier: Apache-2.0
//
// Ranges of keys: their sizes, and their compaction.
#include "compat/leveldb/internal.h"

// A bound. No key is longer than REMIXDB_KV_MAX, so a longer bound divides the keys as its beginning does. NULL is the
// empty key, as in all of LevelDB but leveldb_compact_range.
static struct remixdb_slice bound(const char *key, size_t len) {
  return (struct remixdb_slice){key ? key : "", len < REMIXDB_KV_MAX ? (uint32_t)len : REMIXDB_KV_MAX};
}

void leveldb_approximate_sizes(leveldb_t *db, int num_ranges, const char *const *range_start_key,
                               const size_t *range_start_key_len, const char *const *range_limit_key,
                               const size_t *range_limit_key_len, uint64_t *sizes) {
  struct xdb_ref *const ref = remixdb_ref_borrow(db->xdb);
  for (int i = 0; i < num_ranges; i++) {
    const struct remixdb_range range = {bound(range_start_key[i], range_start_key_len[i]),
                                        bound(range_limit_key[i], range_limit_key_len[i])};
    if (!ref || !remixdb_count(ref, &range, NULL, &sizes[i])) sizes[i] = 0;  // the caller cannot learn of a failure
  }
  remixdb_ref_return(ref);
}

// The limit belongs to the range that is compacted. The store's parts are larger than one key, so it matters only where
// the limit is the first key of a part; the parts up to the key behind it are compacted.
void leveldb_compact_range(leveldb_t *db, const char *start_key, size_t start_key_len, const char *limit_key,
                           size_t limit_key_len) {
  struct remixdb_range range = {{NULL, 0}, {NULL, 0}};
  char *behind = NULL;
  if (start_key) range.from = bound(start_key, start_key_len);
  if (limit_key && limit_key_len < REMIXDB_KV_MAX && (behind = malloc(limit_key_len + 1)) != NULL) {
    if (limit_key_len) memcpy(behind, limit_key, limit_key_len);
    behind[limit_key_len] = '\0';
    range.to = bound(behind, limit_key_len + 1);
  }
  struct xdb_ref *const ref = remixdb_ref_borrow(db->xdb);
  if (ref) (void)remixdb_compact_range(ref, &range);  // the caller has no way to learn of a failure
  remixdb_ref_return(ref);
  free(behind);
}
