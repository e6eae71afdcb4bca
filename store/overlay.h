// SPDX-License-Identifier: Apache-2.0
//
// The writes of a transaction that is not committed: an ordered set of keys, each with its versions. Reads of the
// transaction look here first.
//
// A skip list (Pugh, "Skip Lists: A Probabilistic Alternative to Balanced Trees", 1990) in memory of its own. Each
// write has a number, 1 for the first. A cursor sees the writes up to the number at which it was set, so it never sees
// a later write. A savepoint is a number. Rolling back takes the versions after it out of their chains, and keys
// without a version out of the list. Memory is freed only when the transaction ends, so pointers to keys and values
// hold until then.
//
// Gaps. A link of the list can be a gap: iterators of the transaction (store/txn_iter.h) found no visible key behind
// the link's beginning up to its end, the end included: neither among the writes nor in the store. So iterators leap
// over many deleted keys at once. The store below a transaction does not change, and nor does the time by which records
// expire. So only the transaction's own writes end a gap.
//   O1  A gap has a number, `since`. The keys within are absent for all cursors of this number or a later one.
//   O2  While a link is a gap, the newest version of each key within is absent, and the store has no key within that
//       has no version here. So `since` is the greatest number of these versions.
//   O3  A put ends the gaps of all links that its key lies within. A rollback does so for each key from which it takes
//       a version that may be absent.
//   O4  A link of a higher level is a gap if all links under it are. It becomes one when a leap goes over these.
// By O2 and O3 an old cursor that finds a key absent tells nothing about the key's newest version. So that version is
// looked at.
//
// One thread.
#ifndef STORE_OVERLAY_H
#define STORE_OVERLAY_H

#include "kv.h"

// Counts of the work done, for tests. Only code compiled with OVERLAY_COUNTERS counts.
struct overlay_counters {
  _Atomic uint64_t nodes;  // nodes that cursors came to
  _Atomic uint64_t links;  // links that a leap looked at
};
extern struct overlay_counters overlay_counters;
#if defined(OVERLAY_COUNTERS)
#define OVERLAY_COUNT(field) ((void)atomic_fetch_add_explicit(&overlay_counters.field, 1, memory_order_relaxed))
#else
#define OVERLAY_COUNT(field) ((void)0)
#endif

#define OVERLAY_HEIGHT 14u  // levels of the list: enough for some hundred million keys

struct overlay_chunk;

// A write of a key. Only `older` of a version that was rolled back, and the value of a version that nobody else can
// see, change.
struct overlay_ver {
  struct overlay_ver *older;   // the key's
  struct overlay_ver *before;  // the write before it, of any key
  struct overlay_node *node;
  uint64_t number;
  uint32_t vlen, room;  // bytes of the value, and of the room for it
  uint32_t kind;        // bits KV_...
  uint64_t expiry;      // with KV_EXPIRES
  uint8_t val[];
};

struct overlay_node {
  struct overlay_ver *newest;  // NULL: all versions were rolled back, and the node is not in the list any more
  uint64_t hash;               // hash64 of the key
  const uint8_t *key;
  uint32_t klen, height;
  struct overlay_node *next[];  // then, by level, a uint32_t: `since` of the gap, 0 if the link is none; then the key
};

struct overlay {
  struct overlay_node *head[OVERLAY_HEIGHT];
  struct overlay_chunk *chunks;  // the last one first; the first one stays over overlay_clear
  uint8_t *at, *end;             // free memory of the last chunk
  struct overlay_ver *last;      // the last write
  uint64_t number;               // the last write's; numbers are never used again
  uint64_t kept;                 // versions up to this number must stay, because a savepoint may return to them
  size_t keys;                   // keys with a version
  size_t log_bytes;              // bytes of the newest versions' records
  uint32_t height;               // the highest node's so far
  uint32_t random;
  bool gaps;  // a link has been a gap
};

void overlay_init(struct overlay *o);
void overlay_fini(struct overlay *o);
// Forgets all writes, and keeps a little memory for the next transaction.
void overlay_clear(struct overlay *o);
static inline bool overlay_empty(const struct overlay *o) { return o->keys == 0; }

// Writes a key; copies key and value. shared: a cursor may be looking at the key's newest version, so it stays. Fails
// with REMIXDB_NOMEM, or with REMIXDB_TOOBIG if the writes would take more than `most` bytes in the log. Nothing has
// changed then.
MUST_CHECK enum remixdb_status overlay_put(struct overlay *o, const struct kv_rec *rec, bool shared, size_t most);
// The key's newest version, or NULL.
const struct overlay_ver *overlay_get(const struct overlay *o, struct kref key);
// Takes back all writes after this number, which is not below `kept`.
void overlay_rollback(struct overlay *o, uint64_t number);

// A position among the keys that have a version at `number`, tombstones included. node NULL: at an end.
struct overlay_cursor {
  const struct overlay *o;
  const struct overlay_node *node;
  const struct overlay_ver *ver;
  uint64_t number;
};
// Sets the cursor to the writes up to now. It is at an end.
static inline void overlay_cursor_init(struct overlay_cursor *c, const struct overlay *o) {
  *c = (struct overlay_cursor){.o = o, .number = o->number};
}
void overlay_seek(struct overlay_cursor *c, struct kref key);     // the smallest key >= key
void overlay_seek_le(struct overlay_cursor *c, struct kref key);  // the largest key <= key
void overlay_seek_lt(struct overlay_cursor *c, struct kref key);  // the largest key < key
void overlay_seek_last(struct overlay_cursor *c);
void overlay_next(struct overlay_cursor *c);  // node is not NULL
void overlay_prev(struct overlay_cursor *c);  // the same
// The link from a node to the next one becomes a gap, `since` this number.
void overlay_gap(struct overlay *o, const struct overlay_node *from, uint64_t since);
// Moves the cursor over gaps; its node has no visible key. Forward it goes to the last node of the stretch without a
// visible key, backward to the node before this stretch. Returns that node; the cursor is there, or behind it in its
// direction if it does not see it. Returns NULL and does not move if the stretch is short, so that steps cost less.
const struct overlay_node *overlay_leap(struct overlay_cursor *c, bool backwards);
// Sets all fields but seq.
static inline void overlay_record(const struct overlay_ver *v, struct kv_rec *r) {
  r->key = v->node->key;
  r->klen = v->node->klen;
  r->val = v->val;
  r->vlen = v->vlen;
  r->kind = v->kind;
  r->expiry = v->expiry;
}
static inline struct kref overlay_key(const struct overlay_node *n) { return kref(n->key, n->klen); }
#endif
