// SPDX-License-Identifier: Apache-2.0
//
// A key and its versions in the memtable's index. Leaves hold them; cursors and gets return them.
#ifndef WH_VER_H
#define WH_VER_H

#include "base/epoch.h"
#include "kv.h"

#define WH_LEAF_KEYS 128
#define WH_PENDING UINT64_MAX  // seq of an uncommitted version: greater than any moment, so no reader sees it

#define WH_GROUP_MAX 64u  // keys that one group of lookups has at most

// One version of a key. Only its number changes. Its address is four bytes below a multiple of eight.
struct wh_ver {
  uint32_t vlen : 24;    // the value's length, without an expiry
  uint32_t kind : 3;     // bits of KV_IN_TABLE. With KV_EXPIRES the expiry is the first 8 bytes of val
  uint32_t chained : 1;  // a pointer to the next older version stands before it. Most keys have one version and spend
                         // no memory on it
  uint32_t keyed : 1;    // chained; a copy of its short key stands before that pointer
  uint32_t turn : 3;     // the place in its chain, modulo WH_VER_STRIDE. A chained version with 0 is a milestone
  uint32_t seq[2];       // the number: wh_ver_number
  uint8_t val[];
};
static inline bool wh_ver_tomb(const struct wh_ver *v) { return v->kind & KV_TOMB; }
// The time at which the version expires; 0: never.
static inline uint64_t wh_ver_expiry(const struct wh_ver *v) {
  uint64_t expiry = 0;
  if (unlikely(v->kind & KV_EXPIRES)) memcpy(&expiry, v->val, sizeof(expiry));
  return expiry;
}
// Whether a reader whose clock shows now_ms finds a tombstone or an expired record.
static inline bool wh_ver_absent(const struct wh_ver *v, uint64_t now_ms) {
  if (likely(!(v->kind & (KV_TOMB | KV_EXPIRES)))) return false;
  return v->kind & KV_TOMB || wh_ver_expiry(v) <= now_ms;
}
// Sets value, kind and expiry; leaves key, klen and seq alone.
static inline void wh_ver_value(const struct wh_ver *v, struct kv_rec *r) {
  r->val = v->val;
  r->vlen = v->vlen;
  r->kind = v->kind;
  if (unlikely(v->kind & KV_EXPIRES)) {
    memcpy(&r->expiry, v->val, sizeof(r->expiry));
    r->val += sizeof(r->expiry);
  }
}
static inline _Atomic uint64_t *wh_ver_number(const struct wh_ver *v) {
  return (_Atomic uint64_t *)(uintptr_t)v->seq;
}  // the commit stores it with release
static inline uint64_t wh_ver_seq(const struct wh_ver *v) {
  return atomic_load_explicit(wh_ver_number(v), memory_order_acquire);
}

// A key. Only newest changes. Its first version follows in the same allocation.
struct wh_entry {
  // The newest version's address. Its lowest three bits hold the version's turn instead. So a put knows the next
  // version's turn without a look at the older version. Published with release. 0: its only version was taken back
  _Atomic uintptr_t newest;
  uint32_t klen;
  uint8_t key[];
};

// Counts of the work done, for tests. Only code compiled with WH_COUNTERS counts.
struct wh_counters {
  _Atomic uint64_t entries;   // entries that cursors came to
  _Atomic uint64_t hops;      // steps from gap to gap
  _Atomic uint64_t checked;   // entries checked to make a gap
  _Atomic uint64_t compares;  // keys compared to find one by its hash
  _Atomic uint64_t buckets;   // buckets of the trie's table that were read
  _Atomic uint64_t pieces;    // pieces of prefixes that were hashed
  _Atomic uint64_t prefixes;  // prefixes compared in full
  _Atomic uint64_t hidden;    // entries that wh_many_delete looked at
  _Atomic uint64_t versions;  // versions of a chain that were newer than the moment
};
extern struct wh_counters wh_counters;
#if defined(WH_COUNTERS)
#define WH_COUNT(field) ((void)atomic_fetch_add_explicit(&wh_counters.field, 1, memory_order_relaxed))
#else
#define WH_COUNT(field) ((void)0)
#endif
#endif
