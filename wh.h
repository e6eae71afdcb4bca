// SPDX-License-Identifier: Apache-2.0
//
// The memtable's index: a wormhole (Wu, Ni, Jiang: "Wormhole: A Fast Ordered Index for In-memory Data Management",
// EuroSys 2019) that holds chains of versions.
//
// Keys live in a list of leaves, up to WH_LEAF_KEYS in each. A trie over the leaves' anchors finds the leaf; a hash
// table of the anchors' prefixes encodes the trie. A search finds the longest prefix of its key in that table by binary
// search over the length, with O(log L) probes. The node of this prefix names the leaf. Inside a leaf, a small table
// finds a key by hash: one probe sequence, then the cache line of one entry. A permutation keeps the order of the keys.
// Only a seek updates the permutation. A seek ranks its key among *pieces*, four bytes of each key, which lie side by
// side.
//
// Differences from the paper
//   - Readers take no lock, not even in leaves. A leaf only gains entries. The writer stores pointer and piece first,
//     then (release) the place in the hash part, then (release) the count. A leaf that must lose entries, by a split, a
//     merge or the removal of a key, is replaced by new leaves and marked dead. Only the order (W9) of a dead leaf
//     changes while a thread can be on that leaf. So a reader or cursor on a dead leaf still reads the content that the
//     leaf had when it died.
//   - The trie changes in place, one release store at a time, and is only a hint. A search checks the anchors of the
//     leaf that it reaches, and walks along the list to the right one. So a split waits for no reader. The index
//     replaces the hash table as a whole only when the table grows. The epoch retires the old table. Nodes, leaves,
//     entries and versions come from the arena and live as long as the index. The memory of a dead leaf serves again
//     (wh_recycle).
//   - Most searches use a guide (wh/guide.h) in place of the trie: a static tree over the leaves' anchors. It names the
//     leaf, or another leaf from which that leaf was split off. The index makes it again when the number of leaves has
//     grown by an eighth. The trie answers where the guide's leaf is too far away.
//   - A small table by hash, `recent`, names the entries and versions that were written last, because keys that are
//     written often are read often. A hit needs neither guide nor leaf. A miss shows only that the key was not written
//     lately. A word of `recent` names the key's entry. If the newest version has older versions, the word names that
//     version. A copy of a short key is beside such a version, so a reader need not read the entry.
//   - A trie node may both end an anchor and be the prefix of others, so anchors need no terminating token.
//
// Invariants (tests/unit/test_wh.c checks them by wh_check)
//   W1  Live leaves form a list in order of anchor. The first anchor is empty. Leaf l holds exactly the keys k with
//       l.anchor <= k < l.next.anchor. A leaf's range never changes.
//   W2  An anchor is the shortest prefix of its leaf's first key (at the time of the split) that is greater than every
//       key left of it.
//   W3  Every prefix of every live anchor has a node. The node's leftmost and rightmost leaves bound the anchors below
//       it.
//   W4  A version's seq goes from WH_PENDING to its number once, and never changes again. A chain is ordered by seq,
//       newest first. Only the holder of the leaf lock links or unlinks. A chain has at most one pending version.
//   W5  The content of a dead leaf, except its order, does not change until the leaf's memory serves again. The same
//       holds for its next and prev pointers, which point to leaves that were live when this leaf died. A cursor that
//       took a leaf's entries after its moment S was fixed, and follows these pointers, sees every key with a version
//       <= S exactly once.
//   W6  When a structure change is over, no live leaf, node or guide names a leaf that died in it. So a thread reaches
//       only leaves that were alive when it entered the epoch (the cursors' domain, if it keeps a position). No thread
//       reaches a leaf that died earlier.
//   W7  Each item of the guide is the leaf whose range has the item's bound.
//   W8  All keys of a leaf's range begin with the same `skip` bytes. A leaf's pieces are the four bytes that come next
//       in its entries' keys. Different pieces order their keys. Only for equal pieces must a search compare the keys.
//       (A range without an end, or with bounds that differ early, has many equal pieces.)
//   W9  While no thread writes a leaf's order, the order covers the first (ordered & WH_ORDER_N) entries. The order is
//       a cache: a reader that finds it too short extends it.
//   W10 Only a leaf with `holes` has entries without a version, from the time the leaf is unlocked.
//   W11 A word of `recent` names an entry or a version whose key's hash leads to its place. If an entry there has the
//       searched key and a version, it is the entry in the key's leaf. No key has two such entries, and the holder of
//       the leaf's lock knows that this stays so. A version in `recent` is the version that was linked last for its
//       key, or a version that was taken back later. A version that was taken back stays pending, and the key's newest
//       version follows it in the chain. So a reader finds the version of its moment.
//   W12 Every WH_VER_STRIDE-th version of a chain is a milestone. It has ways to two older milestones, so a reader at
//       an old moment passes a number of versions that grows with the logarithm of the chain's length.
//   W13 The guide has each live leaf once: at the item whose bound is the leaf's anchor, or among the further items. If
//       memory for a new guide was missing, it may lack leaves.
//
// Locks: a leaf's lock, then the structure lock (splits and merges; one per index), then the dead leaves' lock. wh_lock
// holds one leaf. wh_many holds several and takes them in ascending order of key, so a thread waits for a leaf only
// while it holds leaves further left. One thread never uses two of these at once.
//
// Epochs: callers must be inside the epoch in wh_get*, wh_lock..wh_unlock, wh_many_link..wh_many_unlock, wh_seek_begin*
// and wh_seek*, because these reach guide and trie. For wh_next and wh_prev the cursors' domain is enough (wh_recycle).
#ifndef WH_H
#define WH_H

#include "wh/ver.h"

struct arena_pool;
struct wh;
struct wh_leaf;

// Makes an empty index. epoch: the domain of all threads that use it. arena_chunk (bytes) and pool (may be NULL): as in
// lib.h. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wh_create(struct epoch *epoch, size_t arena_chunk, struct arena_pool *pool,
                                         struct wh **out);
void wh_destroy(struct wh *wh);  // no thread uses it any more
// Lets the memory of dead leaves serve again when no thread can be on them. Call it before other threads have the
// index. Without this call the memory of dead leaves does not serve again. Both domains outlive the index.
// The epoch covers threads inside a call. A thread that keeps a cursor's position between calls must be inside the
// separate domain `cursors`: it enters before wh_seek_begin or a seek takes the position, and leaves after it has given
// the position up. A thread that begins to use the index when the index takes no new writers need not be inside. The
// reason: only writers let leaves serve again. Writers that are still at work entered the epoch earlier, so the
// stamp of a leaf that dies now does not pass before they leave.
void wh_recycle(struct wh *wh, struct epoch *cursors);
// Memory that a new key takes, approximately: entry, version and its share of leaf and table. In bytes.
static inline size_t wh_record_memory(uint32_t klen, uint32_t vlen) {
  return sizeof(struct wh_entry) + sizeof(struct wh_ver) + klen + vlen + 28;
}
size_t wh_memory(const struct wh *wh);        // bytes of arena, table and guide. Any thread, relaxed.
size_t wh_held(const struct wh *wh);          // the same with the unused rest of the arena's last chunk
void wh_give_back(struct wh *wh);             // arena_give_back, for an index that nobody writes to any more
size_t wh_memory_small(const struct wh *wh);  // bytes of the arena in chunks of wh_create's size
bool wh_expires(const struct wh *wh);         // some version that was linked expires. Any thread, relaxed.
uint64_t wh_count(const struct wh *wh);       // keys in the index, those with tombstones included. Any thread, relaxed.

// ---- writing one key: wh_lock, wh_link, (the log's lock: wh_stamp), wh_unlock.
struct wh_slot {
  struct wh *wh;
  struct wh_leaf *leaf;    // locked
  struct wh_entry *entry;  // the key's entry; NULL: there is none yet (wh_link makes it)
  struct wh_ver *ver;      // the pending version; NULL before wh_link
  struct kref key;         // the caller owns the bytes; they stay until wh_unlock
  uint64_t hash;
  struct wh_many *many;  // the group that the slot belongs to; NULL: a single key
};
// Finds and locks the key's leaf. hash = hash64(key). May wait for another writer in the same leaf.
void wh_lock(struct wh *wh, struct kref key, uint64_t hash, struct wh_slot *slot_out);
// Returns the newest committed version of the slot's key in this index, or NULL. The result stays the newest version
// while the slot is locked.
const struct wh_ver *wh_slot_newest(const struct wh_slot *slot);
// Links a pending version in front of the key's chain. If the key has no entry, the call makes one, and splits a full
// leaf (slot->leaf changes). Copies the slot's key, and rec's value, expiry and kind; from the kind, the bits of
// KV_IN_TABLE only. Does not read rec's key. Fails with REMIXDB_NOMEM; nothing has changed then, and the slot is still
// locked.
MUST_CHECK enum remixdb_status wh_link(struct wh_slot *slot, const struct kv_rec *rec);
// Commits the pending version under this number: a release store of seq. The numbers of one key must ascend.
static inline void wh_stamp(struct wh_slot *slot, uint64_t seq) {
  atomic_store_explicit(wh_ver_number(slot->ver), seq, memory_order_release);
}
// Takes the pending version back. If the key then has no version, the call removes the key from the index; small
// neighbouring leaves may merge. Both need memory. If memory is missing, the entry stays, and no reader sees it. The
// slot stays locked.
void wh_unlink(struct wh_slot *slot);
void wh_unlock(struct wh_slot *slot);
// The same in two steps, for a thread that releases the log's lock in between. wh_release releases the leaf, and
// returns whether wh_wake must follow.
MUST_CHECK bool wh_release(struct wh_slot *slot);
void wh_wake(const struct wh_slot *slot);

// ---- writing many keys as one: wh_many_init, wh_many_link for each key, (the log's lock: stamp all), wh_many_unlock.
// The leaves of all keys stay locked from the first link on. So no other version of any of these keys is committed in
// between, and the chains keep their order (W4).
#define WH_MANY_FEW 16u
struct wh_many {  // stays in its place, because `leaves` points into it
  struct wh *wh;
  struct wh_leaf **leaves;  // locked, in order; the last one is the last key's. `few`, or own memory
  uint32_t nr, cap;
  bool holes, back;  // some keys may have no version now; versions were taken back
  struct wh_leaf *few[WH_MANY_FEW];
};
struct wh_link {  // the result of one link
  struct wh_entry *entry;
  struct wh_ver *ver;
};
void wh_many_init(struct wh_many *m, struct wh *wh);
// Links a pending version of the key, which must be greater than the previous call's key. Fails with REMIXDB_NOMEM:
// this key is not linked, the other keys stay linked, and all leaves stay locked.
MUST_CHECK enum remixdb_status wh_many_link(struct wh_many *m, const struct kv_rec *rec, uint64_t hash,
                                            struct wh_link *out);
// Locks the leaves of all keys from `from` to *to (NULL: to the end of all keys), as a link of each would. `from` is
// not smaller than the keys of earlier calls. Fails with REMIXDB_NOMEM; leaves that are locked stay locked.
MUST_CHECK enum remixdb_status wh_many_lock(struct wh_many *m, struct kref from, const struct kref *to);
// Locks the leaf of one key in the same way. *newest_out: the key's newest committed version, or NULL. No other thread
// commits a version of the key until wh_many_unlock.
MUST_CHECK enum remixdb_status wh_many_get(struct wh_many *m, struct kref key, uint64_t hash,
                                           const struct wh_ver **newest_out);
static inline void wh_link_stamp(const struct wh_link *l, uint64_t seq) {
  atomic_store_explicit(wh_ver_number(l->ver), seq, memory_order_release);
}
// Deletes the index's keys in [from, to): links a pending tombstone for each key there that has a put as its newest
// version. `from` is not before the keys and ranges of the calls before. to.ptr NULL: no end. The leaves of the whole
// range stay locked, so no other key comes into it either. A key whose newest version is pending is one that this group
// has linked, and stays as it is. Each tombstone goes to fn, in order of the keys. Fails with REMIXDB_NOMEM, or as fn
// does: fn's tombstone is taken back, the other versions stay linked, and all leaves stay locked. Not after a failure,
// or after wh_many_unlink, in the same group.
typedef enum remixdb_status (*wh_link_fn)(void *arg, const struct wh_link *l);
MUST_CHECK enum remixdb_status wh_many_delete(struct wh_many *m, struct kref from, struct kref to, wh_link_fn fn,
                                              void *arg);
// Takes the pending version back. A key that then has no version stays in its leaf, without being seen, until the
// leaf's next rebuild.
void wh_many_unlink(struct wh_many *m, const struct wh_link *l);
void wh_many_unlock(struct wh_many *m);  // unlocks all leaves and frees the list
// The same in two steps, for a thread that releases the log's lock in between.
void wh_many_release(struct wh_many *m);
void wh_many_wake(struct wh_many *m);

// ---- reading. A reader at a moment sees the versions with seq <= moment.
// Returns the newest version of the key at the moment, which may be a tombstone. Returns NULL if this index has none.
// The version is valid while the index lives.
const struct wh_ver *wh_get(const struct wh *wh, struct kref key, uint64_t hash, uint64_t moment);
// wh_get in two steps, inside one epoch. The first step prefetches the memory that the second step reads first, so the
// caller can do something else between them.
struct wh_begun {        // at most one of the two is set; none: the moment shows nothing
  struct wh_leaf *leaf;  // most likely the key's leaf
  const void *recent;    // most likely the key's entry or version (wh/leaf.h: wh_recent_is_ver)
};
struct wh_begun wh_get_begin(const struct wh *wh, struct kref key, uint64_t hash);
const struct wh_ver *wh_get_rest(const struct wh *wh, struct wh_begun wanted, struct kref key, uint64_t hash,
                                 uint64_t moment);  // private to wh_get_end
static inline const struct wh_ver *wh_get_end(const struct wh *wh, struct wh_begun wanted, struct kref key,
                                              uint64_t hash, uint64_t moment) {
  return wanted.leaf || wanted.recent ? wh_get_rest(wh, wanted, key, hash, moment) : NULL;
}
// wh_get for many keys at one moment: versions_out[which[i]] for keys[which[i]] and hashes[which[i]], i < nr <=
// WH_GROUP_MAX. The lookups go side by side. Each step prefetches the memory that the next step reads, so that all
// lookups wait for memory together.
void wh_get_many(const struct wh *wh, const struct kref *keys, const uint64_t *hashes, const uint8_t *which,
                 uint32_t nr, uint64_t moment, const struct wh_ver **versions_out);

// A position among the keys that have a version at the moment. Holds no lock and no epoch. The index must stay alive;
// see also wh_recycle. One thread.
struct wh_cursor {
  const struct wh *wh;
  struct wh_leaf *leaf;          // NULL: not valid. Between wh_seek_begin_place and the seek it is not valid either
  struct wh_leaf *hint;          // found by wh_seek_begin; NULL: no hint
  const struct wh_entry *entry;  // the current entry
  const struct wh_ver *ver;      // the current entry's version at the moment
  uint64_t moment;
  uint32_t at, nr;        // position in order, and its length
  uint32_t asked, ahead;  // entries are prefetched up to position `asked`, and `ahead` entries ahead of the current one
  bool placed, steps;     // wh_seek_begin_place was called; the flag of wh_seek_begin
  bool gapped;            // the leaf had gaps when the cursor reached it
  uint8_t order[WH_LEAF_KEYS];  // the leaf's entries in order of key when the cursor reached it
};
// Makes a cursor that is not valid yet. May be called again, for a new moment.
void wh_cursor_init(struct wh_cursor *c, const struct wh *wh, uint64_t moment);
static inline bool wh_valid(const struct wh_cursor *c) { return c->leaf != NULL; }
// Prefetches the memory that a seek of this key reads, so that the caller can do something else before the seek. The
// seek must be the cursor's next call; only wh_seek_begin_place may come between. The caller may leave its epoch before
// the seek. steps: the caller will probably step on after the seek, as it did last time.
void wh_seek_begin(struct wh_cursor *c, struct kref key, bool steps);
// The next step after wh_seek_begin: finds the key's place in the leaf and prefetches its entries. backward: the seek
// will be wh_seek_for_prev.
void wh_seek_begin_place(struct wh_cursor *c, struct kref key, bool backward);
void wh_seek(struct wh_cursor *c, struct kref key);           // the smallest key >= key
void wh_seek_for_prev(struct wh_cursor *c, struct kref key);  // the largest key <= key
void wh_seek_last(struct wh_cursor *c);
void wh_next(struct wh_cursor *c);  // must be valid
void wh_prev(struct wh_cursor *c);  // must be valid
static inline struct kref wh_key(const struct wh_cursor *c) { return kref(c->entry->key, c->entry->klen); }
// Sets all fields but seq.
static inline void wh_record(const struct wh_cursor *c, struct kv_rec *r) {
  r->key = c->entry->key;
  r->klen = c->entry->klen;
  wh_ver_value(c->ver, r);
}

// ---- samples, for estimates (wh/count.c)

#define WH_SAMPLE 4096u         // entries of a sample, at most
#define WH_SAMPLE_LEAVES 2048u  // leaves of a range that are all looked at
struct wh_sample {
  // nr: the entries in the range, whatever their versions are. tombs: those with a tombstone as their newest version,
  // or with no version. Exact if `whole`; else estimates from a part of the leaves.
  uint64_t nr, tombs;
  bool whole;
  uint32_t leaves;                          // leaves that were looked at
  uint32_t nr_taken;                        // entries in `taken`: in the order of their keys, except in new leaves
  const struct wh_entry *taken[WH_SAMPLE];  // one of each stride; all entries if `whole` and at most WH_SAMPLE
  // private
  uint64_t seen, next, random;
  uint32_t stride;
};
// Takes a sample of the entries with keys low <= key < high (ptr NULL: open). The entries stay as long as the index.
// Looks at about 2 * WH_SAMPLE_LEAVES leaves at most, unless memory for the guide was missing. Inside an epoch.
void wh_sample(const struct wh *wh, struct kref low, struct kref high, struct wh_sample *out);
// Whether the entry's newest version is a tombstone, or it has none.
bool wh_entry_tomb(const struct wh_entry *e);
// The entry's record at the moment, all fields but seq. False: it has none.
bool wh_entry_record(const struct wh_entry *e, uint64_t moment, struct kv_rec *rec_out);

// ---- gaps: key ranges in which a merge of the memtable and all older data found only tombstones, expired records, and
// the records that these hide (wh/gap.h). Call these inside the epoch, except wh_pass_tomb.

// Finds the end of a gap that begins at the key, in the given direction. Between the key and *to_out no key exists at
// the cursor's moment, neither in this index nor in older data. The key *to_out itself may exist; its bytes live as
// long as the index. The key lies in the range of the cursor's leaf. now_ms: the reader's clock. *until_io: raised to
// the time from which on all this is so. Returns false if no gap is known.
bool wh_gap(const struct wh_cursor *c, struct kref key, bool backward, uint64_t now_ms, struct kref *to_out,
            uint64_t *until_io);
// Tells whether the cursor's leaf has gaps. Call it after wh_seek_begin_place, or when the cursor is valid.
static inline bool wh_gapped(const struct wh_cursor *c) { return c->gapped; }

// From now on no gap of this index is used: older data has got keys that its gaps do not know. Any thread.
void wh_end_gaps(struct wh *wh);

// A pass records which tombstones and expired records of a memtable a merge has stepped over, and makes gaps from them.
struct wh_pass {
  const struct wh_cursor *cursor;
  bool backward, known;  // the direction; whether from_key is known
  struct kref from_key;  // the pass began at this key; ptr NULL: at the smallest key of all (backward: the largest)
  struct wh_leaf *leaf;  // the current leaf; NULL: none yet
  // The first and the last entry of the current leaf that the merge passed, in the direction of the pass. from NULL:
  // the merge passed all entries from the leaf's end where it entered the leaf.
  const struct wh_entry *from, *last;
  struct wh_leaf *run;  // the earliest of the leaves that were passed as a whole; NULL: none
  uint32_t run_leaves;
  struct kref run_to;
  uint64_t run_since, run_until, place;  // see wh/gap.h
  uint64_t floor;                        // gaps do not hold at earlier moments
  uint64_t now_ms;                       // the reader's clock
  uint64_t until;  // the latest time at which a record expired that the merge has passed; the merge raises it
};
// Begins a pass at a valid cursor. From *from on (NULL: from the cursor's key) the merge passed all keys of this
// memtable and of all older data. Tombstones and expired records of this memtable, or of older data, hide all of these
// keys. floor: readers at earlier moments may find keys in the older data that the pass does not know of.
void wh_pass_begin(struct wh_pass *p, const struct wh_cursor *c, bool backward, const struct kref *from, uint64_t floor,
                   uint64_t now_ms);
void wh_pass_leaf(struct wh_pass *p);  // private to wh_pass_tomb
// Adds the tombstone, or the expired record, at which the cursor stands. The merge passed all keys up to it in the same
// way.
static inline void wh_pass_tomb(struct wh_pass *p) {
  if (unlikely(p->leaf != p->cursor->leaf)) wh_pass_leaf(p);
  p->last = p->cursor->entry;
}
// Ends the pass and stores the gaps that were found. The cursor may have moved on.
void wh_pass_end(struct wh_pass *p);

// For tests: checks W1, W3, W4 and W6 to W11 while no thread writes. Returns false, with a message in why (cap bytes),
// if an invariant is broken.
bool wh_check(const struct wh *wh, char *why, size_t cap);
// For tests: checks G1 and G3 of wh/gap.h in the same way.
bool wh_gaps_check(const struct wh *wh, char *why, size_t cap);
#endif
