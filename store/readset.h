// SPDX-License-Identifier: Apache-2.0
//
// The reads of a transaction: keys, and ranges of keys. A key is a range of one.
//
// Reads are appended. Each time the number of ranges has doubled, the set sorts them, and ranges that touch become one.
// So a scan takes the memory of a range, and a key that is read again takes no memory for long.
//
// One thread.
#ifndef STORE_READSET_H
#define STORE_READSET_H

#include "kv.h"

struct read_range {
  struct kref from, to;  // from <= key, and key <= to, or key < to if `below` is set. to.ptr NULL: no end
  bool below;
};

struct readset {
  struct read_range *ranges;
  size_t nr, cap;
  size_t sort_at;               // so many ranges are sorted
  bool sorted;                  // they ascend, and no two of them touch
  struct readset_bytes *bytes;  // the keys, in chunks, the last one first
  size_t used;                  // bytes of the last chunk
};

void readset_fini(struct readset *set);  // a set of zeros is empty
// Forgets all ranges, and keeps a little memory.
void readset_clear(struct readset *set);
// Adds a key, or a range. Copies the keys. Fails with REMIXDB_NOMEM: the set may then lack what was to be added.
MUST_CHECK enum remixdb_status readset_key(struct readset *set, struct kref key);
MUST_CHECK enum remixdb_status readset_range(struct readset *set, const struct read_range *r);
// Sorts the ranges and joins those that touch.
void readset_sort(struct readset *set);
// Tells whether a range ends before the key.
static inline bool read_range_ends_before(const struct read_range *r, struct kref key) {
  if (!r->to.ptr) return false;
  const int c = kv_cmp(r->to, key);
  return r->below ? c <= 0 : c < 0;
}
static inline bool read_range_is_key(const struct read_range *r) {
  return r->to.ptr && r->to.ptr == r->from.ptr && r->to.len == r->from.len && !r->below;
}
#endif
