// SPDX-License-Identifier: Apache-2.0
//
// Wormhole: an ordered index in memory (Wu, Ni, Jiang: "Wormhole: A Fast Ordered Index for In-memory Data Management",
// EuroSys 2019), here holding chains of versions: it is the memtable. A list of leaves of up to WH_LEAF_KEYS keys is
// found through a trie of the leaves' anchors that is encoded in a hash table of their prefixes: a search looks for the
// longest prefix of the key that is in the table by binary search over its length, O(log L) probes, and that node names
// the leaf. In a leaf the keys are found by hash (one probe sequence in a small table, one entry line), and in order
// through a permutation that is brought up to date only when somebody seeks; a key's place in it is counted among
// pieces of the keys that lie side by side.
//
// What differs from the paper, and why:
//   - Readers take no lock, in leaves either. A leaf only gains entries: pointer and piece first, then (release) its
//   place in the hash part,
//     then (release) the count. A leaf that must lose entries (split, merge, removal of a key) is replaced by new
//     leaves and marked dead; its content (but for the order, W9) is not touched while anybody can be on it, so a
//     reader or cursor on it still reads the truth of that moment.
//   - The trie is changed in place, one release store at a time, and only ever as a hint: a search checks the anchors
//   of the leaf
//     it reached and walks along the list when another is meant. So a split waits for no reader. Only the growth of the
//     hash table replaces it as a whole; the old table is retired through the epoch. Nodes, leaves, entries and
//     versions come from the arena and live as long as the index; the memory of a dead leaf serves the next one
//     (wh_recycle).
//   - Most searches do not go through the trie: a guide (wh/guide.h), a static tree over the leaves' anchors that is
//   made again when their number has grown
//     by an eighth, names the leaf, or one that it has been split off from. The trie answers where that is too far
//     away.
//   - What was written lately is in a small table by hash alone (`recent`): who finds his key there needs neither guide
//   nor leaf; who does
//     not knows that it was not written lately. What is written often is read often. It names the key's entry, or the
//     version itself where that has others before it: such a one has the key beside it (when it is short), so that the
//     entry need not be looked at on the way to it.
//   - A trie node may both end an anchor and be the prefix of others, so anchors need no terminating token.
//
// Invariants (tests/unit/test_wh.c checks them by wh_check)
//   W1  Live leaves form a list in order of anchor; the first anchor is empty; leaf l holds exactly the keys k with
//       l.anchor <= k < l.next.anchor. A leaf's range never changes.
//   W2  An anchor is the shortest prefix of its leaf's first key (at the time of the split) that is greater than every
//   key left of it. W3  Every prefix of every live anchor has a node, whose leftmost / rightmost leaves bound the
//   anchors below it. W4  A version's seq goes from WH_PENDING to its number once, and never changes again. A chain is
//   ordered by seq, newest first. Only
//       the holder of the leaf lock links or unlinks; at most one version of a chain is pending.
//   W5  A dead leaf's content, but for the order, and its next / prev pointers are frozen until it serves again; next
//   and prev were live leaves when it died. A cursor at moment S that
//       took a leaf's entries after S was fixed, and follows these pointers, sees every key with a version <= S exactly
//       once.
//   W6  When a change of the structure is over, no leaf that died in it is named by a live leaf, a node or the guide.
//   So a leaf that is reached was alive when
//       the epoch was entered (the cursors' for those that keep a position), and one that died before is reached by
//       nobody.
//   W7  Each item of the guide is the leaf in whose range its bound lies.
//   W8  All keys of a leaf's range begin with the same `skip` bytes, and a leaf's pieces are the four bytes that come
//   next in its entries' keys: what has another
//       piece is ordered by it, and only equal pieces make anybody look at keys. (Where the range has no end, or its
//       bounds differ early, that are many.)
//   W9  A leaf's order, when it is not being written, is that of the first so many entries: a cache, written by whoever
//   needed it and found it too short. W10 An entry without a version is in a leaf with `holes` alone, from when the
//   leaf is unlocked on. W11 A word of `recent` is that of an entry or of a version whose key's hash leads there. If
//   the entry has the key that is looked for, and a version, it is what
//       the key's leaf would have told: no key has two such entries, and who holds the leaf's lock knows that it stays
//       so. A version is what was linked last of its key, or what was taken back since: it is still pending then, and
//       what was newest is behind it. So who sees a moment's versions finds the one he wants.
//
// Locks: a leaf's lock, then the structure lock (of splits and merges; one per index), then that of the dead leaves.
// wh_lock holds one leaf; wh_many several, taken in ascending order of key, so a thread waits for a leaf only while all
// it holds are further left. Never two of these at once in one thread. Callers must be inside the epoch in wh_get*,
// wh_lock..wh_unlock, wh_many_link..wh_many_unlock, wh_seek_begin*, wh_seek* (guide and trie are reached); for wh_next
// and wh_prev that of the cursors is enough (wh_recycle).
#ifndef WH_H
#define WH_H

#include "wh/ver.h"

struct wh;
struct wh_leaf;

// epoch: the domain of all threads that use it. arena_chunk: bytes, pool: may be NULL; see lib.h. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wh_create(struct epoch *epoch, size_t arena_chunk, struct arena_pool *pool,
                                         struct wh **out);
void wh_destroy(struct wh *wh);  // nobody uses it any more
// Lets dead leaves serve again when no thread can be on them. That is known of those inside the epoch; and all that
// keep a cursor's position between calls must be inside `cursors`, a domain of their own, from before it is taken (by
// wh_seek_begin or a seek) until it is given up. Who comes when the index takes no new writers need not: those that are
// still at work entered the epoch before, so a leaf that dies from now on has a stamp that waits for them, and they
// alone could have it serve again. Before the index is shared; both domains outlive it. Without this call dead leaves
// stay as they are.
void wh_recycle(struct wh *wh, struct epoch *cursors);
// What a new key takes of its memory, about: entry, version and its share of leaf and table.
static inline size_t wh_record_memory(uint32_t klen, uint32_t vlen) {
  return sizeof(struct wh_entry) + sizeof(struct wh_ver) + klen + vlen + 28;
}
size_t wh_memory(const struct wh *wh);        // bytes it holds: arena and table. Any thread, relaxed.
size_t wh_memory_small(const struct wh *wh);  // what of it is in chunks of the size that wh_create was told
uint64_t wh_count(const struct wh *wh);       // keys in it, tombstones too. Any thread, relaxed.

// ---- writing one key: wh_lock, wh_link, (the log's lock: wh_stamp), wh_unlock.
struct wh_slot {
  struct wh *wh;
  struct wh_leaf *leaf;    // locked
  struct wh_entry *entry;  // of the key; NULL when it is not there (set by wh_link)
  struct wh_ver *ver;      // the pending version; NULL before wh_link
  struct kref key;         // the caller's, valid until wh_unlock
  uint64_t hash;
  struct wh_many *many;  // the slot is of one of many keys; NULL: alone
};
// Finds and locks the leaf of the key. hash = hash64(key). May wait for another writer in the same leaf.
void wh_lock(struct wh *wh, struct kref key, uint64_t hash, struct wh_slot *slot_out);
// The newest committed version of the slot's key in this index; NULL when none. The slot is locked, so it cannot
// change.
const struct wh_ver *wh_slot_newest(const struct wh_slot *slot);
// Links a pending version in front of the key's chain, making the entry (and splitting the leaf: slot->leaf changes)
// when needed. The key and value are copied. REMIXDB_NOMEM: nothing has changed, the slot is still locked and can be
// unlocked.
MUST_CHECK enum remixdb_status wh_link(struct wh_slot *slot, const void *val, uint32_t vlen, bool tomb);
// Commits the pending version under this number: release store of seq. Numbers given to one key must ascend.
static inline void wh_stamp(struct wh_slot *slot, uint64_t seq) {
  atomic_store_explicit(wh_ver_number(slot->ver), seq, memory_order_release);
}
// Takes the pending version back; a key left without versions is removed from the index (and small neighbours may
// merge, when there is memory for it). The slot stays locked.
void wh_unlink(struct wh_slot *slot);
void wh_unlock(struct wh_slot *slot);

// ---- writing many keys as one: wh_many_init, wh_many_link for each key, (the log's lock: stamp all), wh_many_unlock.
// The leaves of all keys stay locked from the first link on, so no other version of any of them is committed between,
// and the chains keep their order (W4).
struct wh_many {
  struct wh *wh;
  struct wh_leaf **leaves;  // locked, in order; the last one is the last key's
  uint32_t nr, cap;
  bool holes, back;  // keys of them may be without a version now; versions were taken back
};
struct wh_link {  // what one link made
  struct wh_entry *entry;
  struct wh_ver *ver;
};
void wh_many_init(struct wh_many *m, struct wh *wh);
// Links a pending version of the key, which must be greater than the last one's. REMIXDB_NOMEM: of this key nothing is
// linked; the others are, and all stay locked.
MUST_CHECK enum remixdb_status wh_many_link(struct wh_many *m, struct kref key, uint64_t hash, const void *val,
                                            uint32_t vlen, bool tomb, struct wh_link *out);
static inline void wh_link_stamp(const struct wh_link *l, uint64_t seq) {
  atomic_store_explicit(wh_ver_number(l->ver), seq, memory_order_release);
}
// Takes the pending version back. A key left without versions stays in its leaf, unseen, until the leaf is next
// rebuilt.
void wh_many_unlink(struct wh_many *m, const struct wh_link *l);
void wh_many_unlock(struct wh_many *m);  // gives all leaves back, and the memory of the list

// ---- reading. moment: versions with seq <= moment are seen.
// The newest version of the key seen at the moment (it may be a tombstone); NULL when this index has none. Valid while
// the index lives.
const struct wh_ver *wh_get(const struct wh *wh, struct kref key, uint64_t hash, uint64_t moment);
// The same in two steps, in one epoch: what the second one reads first is fetched while the caller does something else.
struct wh_begun {        // one of them
  struct wh_leaf *leaf;  // where the key's entry most likely is, when it is there
  const void *recent;    // the key's entry or version, most likely (wh/leaf.h: wh_recent_is_ver)
};
struct wh_begun wh_get_begin(const struct wh *wh, struct kref key, uint64_t hash);
const struct wh_ver *wh_get_end(const struct wh *wh, struct wh_begun wanted, struct kref key, uint64_t hash,
                                uint64_t moment);
// The same for many keys at once, all at one moment: versions[which[i]] for keys[which[i]] and its hash, i < nr <=
// WH_GROUP_MAX. The lookups go side by side, what one step of them reads being fetched in the step before, so that they
// wait for memory together.
void wh_get_many(const struct wh *wh, const struct kref *keys, const uint64_t *hashes, const uint8_t *which,
                 uint32_t nr, uint64_t moment, const struct wh_ver **versions_out);

// A position among the keys that have a version seen at the moment. Holds no lock and no epoch; the index must stay
// alive (and see wh_recycle). One thread.
struct wh_cursor {
  const struct wh *wh;
  struct wh_leaf *leaf;          // NULL: not valid (nor is it between wh_seek_begin_place and the seek)
  struct wh_leaf *hint;          // of wh_seek_begin; NULL: none
  const struct wh_entry *entry;  // the current one
  const struct wh_ver *ver;      // its version at the moment
  uint64_t moment;
  uint32_t at, nr;              // position in order
  uint32_t asked, ahead;        // as far as there entries have been asked for, and how many are kept
  bool placed, steps;           // by wh_seek_begin_place; of wh_seek_begin
  bool gapped;                  // the leaf had gaps when it was reached
  uint8_t order[WH_LEAF_KEYS];  // the leaf's entries in order of key, as they were when it was reached
};
void wh_cursor_init(struct wh_cursor *c, const struct wh *wh,
                    uint64_t moment);  // not valid yet; may be called again for a new moment
static inline bool wh_valid(const struct wh_cursor *c) { return c->leaf != NULL; }
// Before a seek of this key (and no other call of the cursor): what it is going to read is fetched while the caller
// does something else. It may leave its epoch between the two. steps: the caller is going to step on from there, as it
// did last time.
void wh_seek_begin(struct wh_cursor *c, struct kref key, bool steps);
// The same one step further, behind wh_seek_begin: what that has to wait for. backward: the seek will be
// wh_seek_for_prev.
void wh_seek_begin_place(struct wh_cursor *c, struct kref key, bool backward);
void wh_seek(struct wh_cursor *c, struct kref key);           // first key >= key
void wh_seek_for_prev(struct wh_cursor *c, struct kref key);  // last key <= key
void wh_seek_last(struct wh_cursor *c);
void wh_next(struct wh_cursor *c);  // must be valid
void wh_prev(struct wh_cursor *c);  // must be valid
static inline struct kref wh_key(const struct wh_cursor *c) { return kref(c->entry->key, c->entry->klen); }

// ---- gaps: where a merge of the memtable with all that lies below it has found nothing but what tombstones hide
// (wh/gap.h). Inside the epoch, but for wh_pass_tomb.

// From the key, which lies in the range of the cursor's leaf, in the direction: up to *to_out there is nothing at the
// cursor's moment, neither here nor below. (*to_out itself may be there.) The key lives as long as the index. False:
// that is not known.
bool wh_gap(const struct wh_cursor *c, struct kref key, bool backward, struct kref *to_out);
// Whether anything is known of the cursor's leaf. After wh_seek_begin_place, or when it is valid.
static inline bool wh_gapped(const struct wh_cursor *c) { return c->gapped; }

// A merge on its way over tombstones of a memtable: it tells where it has been, and that becomes gaps.
struct wh_pass {
  const struct wh_cursor *cursor;
  bool backward, known;  // in the direction; from_key is known
  struct kref from_key;  // from here on everything was passed; ptr NULL: from the first key of all (backward: the last)
  struct wh_leaf *leaf;  // the one it is in; NULL: none yet
  const struct wh_entry *from,
      *last;            // entries of it that were passed; from NULL: all since the leaf's end that it came over
  struct wh_leaf *run;  // leaves that were passed as a whole, from this one on; NULL: none
  uint32_t run_leaves;
  struct kref run_to;
  uint64_t run_since, place;  // see wh/gap.h
};
// The cursor is valid, and the merge passed all keys, of this memtable and what lies below it, from *from on (NULL:
// from the cursor's key) and found nothing but what this memtable and those before it hide.
void wh_pass_begin(struct wh_pass *p, const struct wh_cursor *c, bool backward, const struct kref *from);
void wh_pass_leaf(struct wh_pass *p);  // private to wh_pass_tomb
// The cursor stands at a tombstone, and all keys up to it were passed the same way.
static inline void wh_pass_tomb(struct wh_pass *p) {
  if (unlikely(p->leaf != p->cursor->leaf)) wh_pass_leaf(p);
  p->last = p->cursor->entry;
}
// What was passed is kept. Also where the cursor has moved on.
void wh_pass_end(struct wh_pass *p);

// For tests: checks W1, W3, W4 and W6 to W11 while nobody writes; false and a message in why (of cap bytes) when one is
// broken.
bool wh_check(const struct wh *wh, char *why, size_t cap);
// The same for G1 and G3 of wh/gap.h.
bool wh_gaps_check(const struct wh *wh, char *why, size_t cap);
#endif
