// SPDX-License-Identifier: Apache-2.0
//
// A key and its versions in the memtable's index: what cursors and gets give out, and what leaves hold.
#ifndef WH_VER_H
#define WH_VER_H

#include "base/epoch.h"
#include "kv.h"

#define WH_LEAF_KEYS 128
#define WH_PENDING UINT64_MAX  // seq of a version that is not committed: greater than any moment, so nobody sees it

#define WH_GROUP_MAX 64u  // keys of one group of lookups side by side

struct wh_ver {  // one version of a key; immutable but for its number. Lies four bytes before a multiple of eight.
  uint32_t vlen : 30;
  uint32_t tomb : 1;
  uint32_t chained : 1;  // a pointer to the next older version stands before it, and a short key before that; most keys
                         // have one version, and no place for them
  uint32_t seq[2];       // the number: wh_ver_number
  uint8_t val[];
};
static inline _Atomic uint64_t *wh_ver_number(const struct wh_ver *v) {
  return (_Atomic uint64_t *)(uintptr_t)v->seq;
}  // stored with release when committed
static inline uint64_t wh_ver_seq(const struct wh_ver *v) {
  return atomic_load_explicit(wh_ver_number(v), memory_order_acquire);
}

struct wh_entry {  // a key; immutable but for newest. Its first version follows in the same allocation.
  _Atomic(struct wh_ver *) newest;  // release-published; NULL when its only version was taken back
  uint32_t klen;
  uint8_t key[];
};

// What was looked at, for tests: counted by what is compiled with WH_COUNTERS.
struct wh_counters {
  _Atomic uint64_t entries;   // that cursors came to
  _Atomic uint64_t hops;      // from gap to gap
  _Atomic uint64_t checked;   // entries looked at to make a gap
  _Atomic uint64_t compares;  // keys compared to find one by its hash
  _Atomic uint64_t buckets;   // of the trie's table
  _Atomic uint64_t pieces;    // of prefixes hashed
  _Atomic uint64_t prefixes;  // compared in full
};
extern struct wh_counters wh_counters;
#if defined(WH_COUNTERS)
#define WH_COUNT(field) ((void)atomic_fetch_add_explicit(&wh_counters.field, 1, memory_order_relaxed))
#else
#define WH_COUNT(field) ((void)0)
#endif
#endif
