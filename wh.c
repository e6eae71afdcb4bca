// SPDX-License-Identifier: Apache-2.0
//
// The wormhole has three parts: leaves (wh/leaf.h), the trie (wh/trie.h), and the list that ties them together. The
// list is the truth. Trie and guide are hints.
//
// Proof that a reader needs no locks. A structure change holds the structure lock and the locks of the leaves that die
// in it. It makes new leaves locked and puts them into the list. Then it marks the old leaves dead, updates the trie,
// and gives the structure lock back: the change is over. Only then does it unlock the new leaves. Call a leaf *fresh
// for S* unless the change in which it died was over before the moment S was taken ("before" is C11's happens-before).
//   (a) A fresh leaf holds every key of its range that has a version <= S. Keys with a committed version never leave
//       the index; they are only copied to successors. A commit into a successor comes after the change. So if S
//       includes such a commit, the change was over before S.
//   (b) A leaf that a reader sees alive after it took S is fresh. If the change had been over before S, coherence would
//       show the leaf dead. (Epochs ensure that its memory is no other leaf by now: W6.)
//   (c) If X is fresh, then so is a leaf Y read from X.next or X.prev. Suppose the change that killed Y was over before
//       S. If X outlived it, the change stored Y's successor in X, and the reader would see that. If X died in it or in
//       an earlier one (the structure lock orders changes), X's change was over before S too, and X is not fresh. A
//       dead leaf's own pointers are frozen, because a change finds its neighbours through a living leaf and writes
//       only to living leaves.
//   (d) A leaf's range is fixed. A split of its right neighbour keeps that neighbour's anchor. A merge with it kills
//       the leaf.
// From (a) to (d): the ranges of the leaves that a cursor visits along next (or prev) abut. A leaf holds only keys of
// its range, and all of those for S. So the cursor misses no key and sees none twice, whatever splits and merges go on
// meanwhile. It does not matter whether it reads a leaf's neighbour before or after the leaf's entries. The same holds
// for a single get: a leaf of the key's range that is seen alive has the key, or the key does not exist for S.
#include "wh.h"

#include "wh/gap.h"

#include <assert.h>
#include <inttypes.h>

#define MERGE_KEYS (WH_LEAF_KEYS / 2)
#define GUIDE_STEPS 3u    // steps along the list from the guide's leaf, before the trie is asked
#define GUIDE_LEAVES 32u  // with fewer leaves there is no guide
#define HINT_STEPS 8u     // after so many steps along the list, the hint counts as the effect of a hash collision
#define ROOM_LINES 4u     // lines to prefetch for a record; the processor continues a longer one by itself

// The epochs are looked at when DEAD_LEAVES leaves have died, and a leaf for each DEAD_SLOTS slots that the look passes
// over. But it is enough if one of DEAD_PART leaves has died, so that dead leaves take little memory.
#define DEAD_LEAVES 32u
#define DEAD_SLOTS 16u
#define DEAD_PART 4u

static bool lock_try(struct lib_lock *l) {
  uint32_t free_word = 0;
  return atomic_compare_exchange_strong_explicit(&l->word, &free_word, 1, memory_order_acquire, memory_order_relaxed);
}

// ---- the guide

static void guide_free(struct epoch_item *item, void *arg) {
  (void)arg;
  guide_destroy((struct guide *)(void *)item);
}

// Makes the guide again from the list. If memory is missing, the old guide stays and its hints get worse. Under the
// structure lock.
static void guide_make(struct wh *wh) {
  struct guide *const old = atomic_load_explicit(&wh->guide, memory_order_relaxed), *fresh = NULL;
  const uint32_t nr = wh->nr_leaves;
  const uint32_t more = nr / 8 + GUIDE_LEAVES;
  wh->guide_due = nr + more;
  wh->cuts_due = wh->cuts + more;
  struct kref *const bounds = mem_array(nr, sizeof(*bounds) + sizeof(void *), 0);
  if (!bounds) return;
  void **const items = (void **)(void *)(bounds + nr);
  uint32_t n = 0;
  for (struct wh_leaf *l = atomic_load_explicit(&wh->head, memory_order_relaxed); l && n < nr;
       l = atomic_load_explicit(&l->next, memory_order_relaxed)) {
    if (old && n + 8 < old->nr)
      prefetch(atomic_load_explicit(&old->items[n + 8], memory_order_relaxed));  // near the leaf eight steps on
    bounds[n] = l->anchor;
    items[n++] = l;
  }
  if (guide_create(bounds, items, n, more, &fresh) == REMIXDB_OK) {
    fresh->base = wh->cuts;
    atomic_store_explicit(&wh->guide_bytes, fresh->bytes, memory_order_relaxed);
    atomic_store_explicit(&wh->guide, fresh, memory_order_release);
    if (old) epoch_retire(wh->epoch, &old->retired, guide_free, NULL);
  }
  mem_free(bounds);
}

static void guide_renew(struct wh *wh) {
  mem_hurry(true);
  guide_make(wh);
  mem_hurry(false);
}

// Makes the guide name the new leaf in place of the old leaf, from this bound on (W7). Under the structure lock.
static void guide_hand_over(struct wh *wh, struct kref bound, const struct wh_leaf *old, struct wh_leaf *l) {
  struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_relaxed);
  if (g) guide_replace(g, bound, old, l);
}

// Gives a new leaf the number of the leaf that it replaces, or the next one, and tells the guide (W13). Under the
// structure lock.
static void leaf_number(struct wh *wh, struct wh_leaf *l, uint32_t cut) {
  struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_relaxed);
  l->cut = cut;
  if (g) guide_more(g, cut, l);
}

// Whether the guide has an item with this bound: a leaf with that anchor was there before, and merged with another.
static bool guide_knows(const struct wh *wh, struct kref bound) {
  const struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_relaxed);
  return g && kv_eq(anchors_at(&g->anchors, anchors_find(&g->anchors, bound)), bound);
}

// The leaf with this number is no more.
static void number_gone(struct wh *wh, uint32_t cut) {
  struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_relaxed);
  if (g) guide_more(g, cut, NULL);
}

// Adds to the number of leaves. Under the structure lock, when the list is whole.
static void leaves_count(struct wh *wh, int32_t more) {
  wh->nr_leaves += (uint32_t)more;
  if (unlikely(wh->nr_leaves >= wh->guide_due || wh->cuts == wh->cuts_due)) guide_renew(wh);
}

// ---- leaves that serve again

static void leaves_push(struct wh_leaf_list *list, struct wh_leaf *l) {
  l->after = list->first;
  if (list->first == NULL) list->last = l;
  list->first = l;
  list->nr++;
}

// Gives back a leaf that was never shared.
static void leaf_give(struct wh *wh, struct wh_leaf *l) {
  lib_lock(&wh->dead_lock);
  l->after = wh->free_leaves;
  wh->free_leaves = l;
  lib_unlock(&wh->dead_lock);
}

// Takes a leaf whose memory may serve again; returns NULL if there is none.
static struct wh_leaf *leaf_free(struct wh *wh) {
  lib_lock(&wh->dead_lock);
  struct wh_leaf *const l = wh->free_leaves;
  if (l) wh->free_leaves = l->after;
  lib_unlock(&wh->dead_lock);
  return l;
}

// How many leaves die between two looks at the epochs. Under the structure lock.
static uint32_t leaves_pace(const struct wh *wh) {
  const uint32_t slots = (epoch_slots(wh->epoch) + epoch_slots(wh->cursors)) / DEAD_SLOTS,
                 most = wh->nr_leaves / DEAD_PART, pace = slots < most ? slots : most;
  return pace > DEAD_LEAVES ? pace : DEAD_LEAVES;
}

// Dead leaves wait in two lists: `dead` grows, and `waiting` got its stamps when `dead` was begun. When the stamps have
// passed, the leaves in `waiting` become free, and the leaves in `dead` begin to wait. Under dead_lock.
static void leaves_turn(struct wh *wh) {
  wh->dead_due = wh->dead.nr + leaves_pace(wh);
  if (wh->waiting.nr) {
    if (!epoch_passed(wh->epoch, wh->stamp) || !epoch_passed(wh->cursors, wh->cursors_stamp)) return;
    // shows a sanitizer when a thread is on one all the same
    for (struct wh_leaf *l = wh->waiting.first; LIB_SANITIZED && l; l = l->after)
      memset(l, 0xa5, offsetof(struct wh_leaf, after));
    wh->waiting.last->after = wh->free_leaves;
    wh->free_leaves = wh->waiting.first;
  }
  wh->waiting = wh->dead;
  wh->dead = (struct wh_leaf_list){NULL, NULL, 0};
  wh->dead_due = leaves_pace(wh);
  wh->stamp = epoch_stamp(wh->epoch);
  wh->cursors_stamp = epoch_stamp(wh->cursors);
}

// Adds a leaf to the dead leaves. Under the structure lock, at the end of the change in which the leaf died, when the
// list, the trie and the guide no longer name it.
static void leaf_died(struct wh *wh, struct wh_leaf *l) {
  if (unlikely(wh_expires(wh)) && wh_gap_lapsed(l)) wh_gap_reopened(wh, l);
  if (wh->cursors == NULL) return;
  lib_lock(&wh->dead_lock);
  leaves_push(&wh->dead, l);
  if (wh->dead.nr >= wh->dead_due) leaves_turn(wh);
  lib_unlock(&wh->dead_lock);
}

// Makes a locked leaf by wh_leaf_init. Returns NULL if memory is missing.
static struct wh_leaf *leaf_create(struct wh *wh, struct kref anchor, const struct kref *end,
                                   const struct wh_content *content, uint32_t from, uint32_t to) {
  struct wh_leaf *l = leaf_free(wh);
  if (l == NULL) l = wh_line_alloc(&wh->arena, sizeof(*l));
  if (l) wh_leaf_init(l, anchor, end, content, from, to);
  return l;
}

// Returns the end of a locked leaf's range; NULL: the range has no end.
static const struct kref *leaf_end(const struct wh_leaf *l) {
  const struct wh_leaf *const next = wh_leaf_next(l);
  return next ? &next->anchor : NULL;
}

// ---- the list

// From a dead leaf the search goes left. Anchors get smaller to the left, down to the head, which is replaced before it
// dies. From a living leaf the search goes right, over living leaves. So the search ends unless the structure changes
// all the time.
struct wh_leaf *wh_locate(const struct wh *wh, struct wh_leaf *l, struct kref key, uint64_t k8) {
  for (uint32_t steps = 1;; steps++) {
    if (wh_leaf_dead(l) || wh_leaf_cmp(l, key, k8) > 0) {
      struct wh_leaf *prev = wh_leaf_prev(l);
      l = prev ? prev : atomic_load_explicit(&wh->head, memory_order_acquire);
    } else {
      if (wh_leaf_ends_behind(l, key, k8)) return l;
      l = wh_leaf_next(l);
    }
    if (unlikely(steps == GUIDE_STEPS)) l = wh_trie_hint(&wh->trie, key, k8, false);
    if (unlikely(steps == HINT_STEPS)) l = wh_trie_hint(&wh->trie, key, k8, true);
  }
}

// ---- changes of the structure

// Replaces the old leaves from..to by the new leaves first..last. The old leaves die. The new leaves are linked to each
// other and locked. Under the structure lock and the locks of from and to.
static void list_replace(struct wh *wh, struct wh_leaf *from, struct wh_leaf *to, struct wh_leaf *first,
                         struct wh_leaf *last) {
  struct wh_leaf *prev = wh_leaf_prev(from), *next = wh_leaf_next(to);
  assert(wh_leaf_locked(from) && wh_leaf_locked(to) && wh_leaf_locked(first) && wh_leaf_locked(last));
  assert(!wh_leaf_dead(from) && !wh_leaf_dead(to));
  atomic_store_explicit(&first->prev, prev, memory_order_relaxed);
  atomic_store_explicit(&last->next, next, memory_order_relaxed);
  atomic_store_explicit(prev ? &prev->next : &wh->head, first, memory_order_release);
  if (next) atomic_store_explicit(&next->prev, last, memory_order_release);
  atomic_store_explicit(&from->dead, true, memory_order_release);
  atomic_store_explicit(&to->dead, true, memory_order_release);
}

static void struct_lock(struct wh *wh) { (void)pthread_mutex_lock(&wh->lock); }
static void struct_unlock(struct wh *wh) { (void)pthread_mutex_unlock(&wh->lock); }

// Moves the slot to the new leaf of its key, which is locked. behind: the new left leaf, locked, if a split made two;
// NULL: there is none, or no key of the slot's group is in it. A slot of many keeps `behind` locked, because other keys
// may be in it. A single slot unlocks it.
static void slot_move(struct wh_slot *slot, struct wh_leaf *behind, struct wh_leaf *leaf) {
  struct wh_many *m = slot->many;
  slot->leaf = leaf;
  if (m) {
    m->leaves[m->nr - 1] = behind ? behind : leaf;
    if (behind) m->leaves[m->nr++] = leaf;  // wh_many_link made room
  } else if (behind) {
    lib_unlock(&behind->lock);
  }
}

// Hands the old leaf's runs to its successors l and r, or to one leaf that is both. Runs forward begin at the old
// leaf's anchor, runs backward at its end.
static inline void leaf_inherit(struct wh *wh, const struct wh_leaf *old, struct wh_leaf *l, struct wh_leaf *r) {
  if (likely(!atomic_load_explicit(&old->gapped, memory_order_relaxed))) return;
  wh_gaps_inherit(wh, old, l, false);
  wh_gaps_inherit(wh, old, r, true);
}

// Replaces the slot's leaf by a leaf with this content.
static enum remixdb_status leaf_rebuild(struct wh_slot *slot, const struct wh_content *content) {
  struct wh *wh = slot->wh;
  struct wh_leaf *old = slot->leaf, *l = leaf_create(wh, old->anchor, leaf_end(old), content, 0, content->nr);
  if (l == NULL) return REMIXDB_NOMEM;
  leaf_inherit(wh, old, l, l);
  struct_lock(wh);
  list_replace(wh, old, old, l, l);
  wh_trie_replace(&wh->trie, old, l);
  guide_hand_over(wh, l->anchor, old, l);
  leaf_number(wh, l, old->cut);
  leaf_died(wh, old);
  struct_unlock(wh);
  lib_unlock(&old->lock);
  slot_move(slot, NULL, l);
  return REMIXDB_OK;
}

// Returns the length of the shortest prefix of content[cut] that is greater than the key before it. If the pieces of
// the two keys differ, they give the length. The result may be too long if a key ends inside its piece, because missing
// bytes count as zeros.
static uint32_t cut_len(const struct wh_content *c, uint32_t cut) {
  const uint32_t differ = (uint32_t)(c->pieces[cut - 1] ^ c->pieces[cut]);
  if (likely(differ)) return c->skip + (uint32_t)__builtin_clz(differ) / 8 + 1;
  return kv_lcp_from(wh_entry_key(wh_word_entry(c->words[cut - 1])), wh_entry_key(wh_word_entry(c->words[cut])),
                     c->skip) +
         1;
}

// Chooses the cut with the shortest separator near the middle.
static uint32_t split_point(const struct wh_content *c) {
  uint32_t best = 0, best_len = UINT32_MAX;
  for (uint32_t i = 0; i <= c->nr / 4; i++) {  // the middle, 1 right of the middle, 1 left of it, 2 right, ...
    const uint32_t cut = i % 2 ? c->nr / 2 + (i + 1) / 2 : c->nr / 2 - i / 2;
    const uint32_t len = cut_len(c, cut);
    if (len < best_len) {
      best = cut;
      best_len = len;
    }
  }
  return best;
}

// Cuts the slot's leaf in two. first: the smallest key of the right leaf, in memory that lives as long as the index.
static enum remixdb_status leaf_cut(struct wh_slot *slot, const struct wh_content *content, uint32_t cut,
                                    struct kref first) {
  struct wh *wh = slot->wh;
  struct wh_leaf *old = slot->leaf;
  const struct kref sep = kref(first.ptr,
                               kv_lcp_from(wh_entry_key(wh_word_entry(content->words[cut - 1])), first, 0) + 1);
  struct wh_leaf *l = leaf_create(wh, old->anchor, &sep, content, 0, cut);
  if (l == NULL) return REMIXDB_NOMEM;
  struct wh_leaf *r = leaf_create(wh, sep, leaf_end(old), content, cut, content->nr);
  if (r == NULL) {
    leaf_give(wh, l);
    return REMIXDB_NOMEM;
  }
  atomic_init(&l->next, r);
  atomic_init(&r->prev, l);
  leaf_inherit(wh, old, l, l);
  struct_lock(wh);
  const enum remixdb_status s = wh_trie_reserve(&wh->trie, r);
  if (s == REMIXDB_OK) {
    list_replace(wh, old, old, l, r);
    wh_trie_replace(&wh->trie, old, l);
    wh_trie_add(&wh->trie, r, l, wh_leaf_next(r));
    guide_hand_over(wh, l->anchor, old, l);
    guide_hand_over(wh, r->anchor, l, r);
    leaf_number(wh, l, old->cut);
    leaf_number(wh, r, guide_knows(wh, r->anchor) ? 0 : ++wh->cuts);
    leaves_count(wh, 1);
    leaf_died(wh, old);
  }
  struct_unlock(wh);
  if (s != REMIXDB_OK) {
    leaf_give(wh, l);
    leaf_give(wh, r);
    return s;
  }
  lib_unlock(&old->lock);
  if (kv_cmp(r->anchor, slot->key) <= 0) {
    slot_move(slot, l, r);
  } else {  // keys of many ascend, so no earlier one is in r
    lib_unlock(&r->lock);
    slot_move(slot, NULL, l);
  }
  return REMIXDB_OK;
}

// Makes room for the slot's key. key: a copy that lives as long as the index. On success slot->leaf is the key's leaf,
// locked. Fails with REMIXDB_NOMEM; nothing has changed then.
static __attribute__((noinline)) enum remixdb_status leaf_make_room(struct wh_slot *slot, struct kref key) {
  struct wh_content c;
  const uint32_t n = wh_leaf_content(slot->leaf, &c);
  if (c.nr < n) return leaf_rebuild(slot, &c);  // leftovers of wh_unlink without memory
  // A key after all other keys begins a new leaf, so that keys in ascending order fill the leaves.
  if (kv_cmp(wh_entry_key(wh_word_entry(c.words[n - 1])), key) < 0) return leaf_cut(slot, &c, n, key);
  const uint32_t cut = split_point(&c);
  return leaf_cut(slot, &c, cut, wh_entry_key(wh_word_entry(c.words[cut])));
}

// Removes the entries without versions from the slot's leaf. A new leaf replaces the leaf, or replaces the leaf and its
// left neighbour if both are small. Returns false if memory is missing; the entries then stay.
static bool leaf_shrink(struct wh_slot *slot) {
  struct wh *wh = slot->wh;
  struct wh_leaf *old = slot->leaf;
  struct wh_content c, both;
  old->holes = true;
  (void)wh_leaf_content(old, &c);
  struct wh_leaf *l = NULL;
  struct_lock(wh);
  struct wh_leaf *left = wh_leaf_prev(old);
  // The holder of the left leaf's lock may wait for this leaf's lock, so only try to take it.
  if (left && atomic_load_explicit(&left->count, memory_order_relaxed) + c.nr <= MERGE_KEYS && lock_try(&left->lock)) {
    if (wh_leaf_content(left, &both) + c.nr <= MERGE_KEYS) {
      memcpy(both.words + both.nr, c.words, c.nr * sizeof(c.words[0]));
      both.nr += c.nr;
      both.skip = UINT32_MAX;  // the pieces of two leaves differ in their place
      both.tombs |= c.tombs;
      l = leaf_create(wh, left->anchor, leaf_end(old), &both, 0, both.nr);
    }
    if (l) {
      struct wh_leaf *right = wh_leaf_next(old);
      list_replace(wh, left, old, l, l);
      wh_trie_remove(&wh->trie, old, l, right);
      wh_trie_replace(&wh->trie, left, l);
      guide_hand_over(wh, l->anchor, left, l);
      guide_hand_over(wh, old->anchor, old, l);
      leaf_number(wh, l, left->cut);
      number_gone(wh, old->cut);
      leaves_count(wh, -1);
      leaf_died(wh, left);
      leaf_died(wh, old);
      // One of the two may have had only tombstones. From here on, puts to its range are not added to the list.
      if (both.tombs && wh_leaf_tombs_counted(l) != both.nr) wh_gap_reopened(wh, l);
    }
    lib_unlock(&left->lock);
  }
  struct_unlock(wh);
  if (l == NULL) return leaf_rebuild(slot, &c) == REMIXDB_OK;
  lib_unlock(&old->lock);
  slot->leaf = l;
  return true;
}

// ---- recent: the entries and versions that were written last

// The table takes an eighth of the first chunk. A larger table would displace more from the processor's caches than it
// gains.
static bool recent_init(struct wh *wh, size_t arena_chunk) {
  const size_t bytes = arena_chunk / 8;
  wh->nr_recent = (uint32_t)(bytes / sizeof(wh->recent[0]));
  wh->recent = wh_line_alloc(&wh->arena, bytes);
  for (uint32_t i = 0; wh->recent && i < wh->nr_recent; i++) atomic_init(&wh->recent[i], 0);
  return wh->recent != NULL;
}

static inline _Atomic uint64_t *recent_place(const struct wh *wh, uint64_t hash) {
  return &wh->recent[(uint64_t)(uint32_t)hash * wh->nr_recent >> 32];
}

// Returns most likely the key's entry or version; NULL: not known.
static inline void *recent_find(const struct wh *wh, uint64_t hash) {
  const uint64_t w = atomic_load_explicit(recent_place(wh, hash), memory_order_acquire);
  return (w ^ wh_entry_tag((uint32_t)(hash >> 32))) >> WH_PTR_BITS ? NULL : wh_word_entry(w);
}

// Stores the word of the entry or version at its place in `recent`. The key's leaf is locked.
static inline void recent_put(struct wh *wh, const void *entry_or_ver, uint64_t hash) {
  _Atomic uint64_t *const at = recent_place(wh, hash);
  const uint64_t w = wh_entry_word(entry_or_ver, hash);
  if (atomic_load_explicit(at, memory_order_relaxed) != w) atomic_store_explicit(at, w, memory_order_release);
}

// ---- the index

enum remixdb_status wh_create(struct epoch *epoch, size_t arena_chunk, struct arena_pool *pool, struct wh **out) {
  struct wh *wh = mem_alloc_aligned(CACHE_LINE, sizeof(*wh));
  if (wh == NULL) return REMIXDB_NOMEM;
  memset(wh, 0, sizeof(*wh));
  wh->epoch = epoch;
  wh->nr_leaves = 1;
  wh->dead_due = DEAD_LEAVES;
  wh->guide_due = wh->cuts_due = GUIDE_LEAVES;
  arena_init(&wh->arena, arena_chunk, pool);
  (void)pthread_mutex_init(&wh->lock, NULL);
  struct wh_leaf *l = recent_init(wh, arena_chunk) ? leaf_create(wh, kref("", 0), NULL, NULL, 0, 0) : NULL;
  if (l == NULL || wh_trie_init(&wh->trie, epoch, &wh->arena, l) != REMIXDB_OK) goto fail;
  atomic_init(&l->lock.word, 0);
  l->cut = 0;
  atomic_init(&wh->head, l);
  *out = wh;
  return REMIXDB_OK;
fail:
  wh_destroy(wh);
  return REMIXDB_NOMEM;
}

void wh_recycle(struct wh *wh, struct epoch *cursors) { wh->cursors = cursors; }

void wh_destroy(struct wh *wh) {
  if (wh == NULL) return;
  wh_trie_fini(&wh->trie);
  guide_destroy(atomic_load_explicit(&wh->guide, memory_order_relaxed));
  arena_fini(&wh->arena);
  (void)pthread_mutex_destroy(&wh->lock);
  mem_free(wh);
}

size_t wh_memory(const struct wh *wh) {
  return arena_used(&wh->arena) + atomic_load_explicit(&wh->trie.table_bytes, memory_order_relaxed) +
         atomic_load_explicit(&wh->guide_bytes, memory_order_relaxed);
}

size_t wh_held(const struct wh *wh) {
  return arena_held(&wh->arena) + atomic_load_explicit(&wh->trie.table_bytes, memory_order_relaxed) +
         atomic_load_explicit(&wh->guide_bytes, memory_order_relaxed);
}

void wh_give_back(struct wh *wh) { arena_give_back(&wh->arena); }

size_t wh_memory_small(const struct wh *wh) { return arena_used_small(&wh->arena); }

bool wh_expires(const struct wh *wh) { return atomic_load_explicit(&wh->expires, memory_order_relaxed); }

// False: nothing is linked up to the moment that the reader has taken. A writer may have linked since.
static inline bool wh_used(const struct wh *wh) { return atomic_load_explicit(&wh->used, memory_order_relaxed); }

uint64_t wh_count(const struct wh *wh) { return atomic_load_explicit(&wh->count, memory_order_relaxed); }

// ---- writing

// Returns the key's entry in a locked leaf of the key's range, or NULL. recent: the result of recent_find.
static inline struct wh_entry *entry_find(const struct wh_leaf *l, void *recent, struct kref key, uint64_t hash) {
  if (recent && wh_recent_is_ver(recent)) {
    if (kv_eq(wh_ver_key(recent), key)) return wh_ver_entry(recent);
  } else if (recent && wh_entry_is(recent, key) && wh_entry_newest(recent)) {
    return recent;
  }
  return wh_leaf_find(l, key, hash);
}

void wh_lock(struct wh *wh, struct kref key, uint64_t hash, struct wh_slot *slot) {
  const uint64_t k8 = wh_key8(key, 0);
  void *const recent = recent_find(wh, hash);
  const bool is_ver = recent && wh_recent_is_ver(recent);
  prefetch(is_ver ? (const uint8_t *)recent - WH_VER_HEAD : recent);
  struct wh_leaf *l = wh_hint(wh, key, k8);
  wh_leaf_prefetch(l, hash);
  if (is_ver) prefetch(wh_ver_entry(recent));
  // Wait only for a leaf of the key's range: that keeps the order of locks for threads that hold leaves further left.
  for (;;) {
    l = wh_locate(wh, l, key, k8);
    lib_lock(&l->lock);
    if (likely(!wh_leaf_dead(l) && wh_leaf_ends_behind(l, key, k8))) break;
    lib_unlock(&l->lock);
  }
  *slot = (struct wh_slot){.wh = wh, .leaf = l, .entry = entry_find(l, recent, key, hash), .key = key, .hash = hash};
}

void wh_unlock(struct wh_slot *slot) { lib_unlock(&slot->leaf->lock); }
bool wh_release(struct wh_slot *slot) { return lib_lock_release(&slot->leaf->lock); }
void wh_wake(const struct wh_slot *slot) { lib_lock_wake(&slot->leaf->lock); }

const struct wh_ver *wh_slot_newest(const struct wh_slot *slot) {
  const struct wh_ver *v = slot->entry ? wh_entry_newest(slot->entry) : NULL;
  while (v && wh_ver_seq(v) == WH_PENDING) v = wh_ver_older(v);
  return v;
}

_Static_assert(KV_KEY_MAX < 1u << 24, "a length fits wh_ver.vlen");
_Static_assert(KV_IN_TABLE < 1u << 3, "a kind fits wh_ver.kind");

_Static_assert(sizeof(struct wh_ver) == 12 && offsetof(struct wh_ver, seq) == 4 && WH_VER_BEFORE % 8 == 4 &&
                   WH_VER_BEFORE >= sizeof(struct wh_ver *) && WH_VER_HEAD % 8 == 4 &&
                   WH_VER_HEAD >= WH_VER_BEFORE + sizeof(uint64_t),
               "a version's number, pointer and head word lie at multiples of eight, as the arena's memory does");

// Returns the lowest place for a version at or after `from`, in memory that begins at a multiple of eight.
static inline size_t ver_place(size_t from) { return align_up(from + 4, 8) - 4; }

// Prefetches the memory two records ahead, which will soon be allocated and written. A writer waits if a cache line is
// missing.
static inline void prefetch_room(const uint8_t *p, size_t size) {
  for (size_t o = 0; o < size && o < ROOM_LINES * CACHE_LINE; o += CACHE_LINE) prefetch_write(p + 2 * size + o);
}

// REMIXDB_NOMEM, with a message: a word (wh_entry_word) cannot hold the address.
static enum remixdb_status addr_fits(const void *p) {
  return likely((uint64_t)(uintptr_t)p >> WH_PTR_BITS == 0)
             ? REMIXDB_OK
             : err_set(REMIXDB_NOMEM, "an address of more than %d bits", WH_PTR_BITS);
}

// older: the next older version; the memory before v already has a pointer to it. NULL: v has no room for such a
// pointer.
static inline void ver_init(struct wh_ver *v, const struct wh_ver *older, uint32_t turn, bool keyed,
                            const struct kv_rec *rec) {
  const struct wh_ver head = {
      .vlen = rec->vlen & ((1u << 24) - 1),
      .kind = rec->kind & KV_IN_TABLE,
      .chained = older != NULL,
      .keyed = keyed,
      .turn = turn & (WH_VER_STRIDE - 1),
  };
  memcpy(v, &head, offsetof(struct wh_ver, seq));  // one store: the bits of fresh memory are not read
  atomic_init(wh_ver_number(v), WH_PENDING);
  uint8_t *to = v->val;
  if (unlikely(rec->kind & KV_EXPIRES)) {
    memcpy(to, &rec->expiry, sizeof(rec->expiry));
    to += sizeof(rec->expiry);
  }
  if (rec->vlen) memcpy(to, rec->val, rec->vlen);
}

// Counts a version that was linked and is not committed yet, in the order that gaps need (G2, G3). older: the entry's
// newest version before it; NULL: none. fresh: the entry is new.
static inline void leaf_note(struct wh_slot *slot, const struct wh_ver *older, bool tomb, bool fresh) {
  struct wh_leaf *const l = slot->leaf;
  if (likely(!tomb)) {
    const uint32_t puts = atomic_load_explicit(&l->puts, memory_order_relaxed);
    atomic_store_explicit(&l->puts, puts + 1, memory_order_release);
    if (unlikely(atomic_load_explicit(&l->gapped, memory_order_relaxed))) wh_gap_keep(l, slot->key, puts);
    const uint32_t others = atomic_load_explicit(&l->count, memory_order_relaxed) - fresh;
    const uint32_t tombs = wh_leaf_tombs_counted(l);
    const bool lapsed = unlikely(wh_expires(slot->wh)) && wh_gap_lapsed(l);
    if (unlikely(tombs == others || lapsed)) wh_gap_reopened(slot->wh, l);
    if (likely(!tombs)) return;
  }
  const bool was_tomb = !fresh && (!older || wh_ver_tomb(older));
  if (tomb != was_tomb) wh_leaf_set_tombs(l, tomb ? wh_leaf_tombs_counted(l) + 1 : wh_leaf_tombs_counted(l) - 1);
}

enum remixdb_status wh_link(struct wh_slot *slot, const struct kv_rec *rec) {
  struct wh *wh = slot->wh;
  const bool tomb = rec->kind & KV_TOMB;
  if (unlikely(!wh_used(wh))) atomic_store_explicit(&wh->used, true, memory_order_relaxed);
  if (unlikely(rec->kind & KV_EXPIRES)) atomic_store_explicit(&wh->expires, true, memory_order_relaxed);
  const size_t size = sizeof(struct wh_ver) + rec->vlen + (rec->kind & KV_EXPIRES ? sizeof(rec->expiry) : 0);
  struct wh_entry *e = slot->entry;
  assert(wh_leaf_locked(slot->leaf) && !wh_leaf_dead(slot->leaf));
  if (e) {
    const uintptr_t was = atomic_load_explicit(&e->newest, memory_order_relaxed);
    struct wh_ver *const older = wh_newest_ver(was);
    const uint32_t turn = older ? (wh_newest_turn(was) + 1) % WH_VER_STRIDE : 0;
    const bool with_key = older && slot->key.len <= WH_VER_KEY_MAX;
    const bool mile = older && turn == 0;
    const size_t back = (with_key ? WH_VER_HEAD + slot->key.len
                         : older  ? WH_VER_BEFORE
                                  : 0) +
                        (mile ? sizeof(struct wh_mile) : 0),
                 before = ver_place(back);
    uint8_t *const p = arena_alloc(&wh->arena, before + size);
    if (p == NULL) return REMIXDB_NOMEM;
    const enum remixdb_status s = addr_fits(p);
    if (s != REMIXDB_OK) return s;
    prefetch_room(p, before + size);
    struct wh_ver *const v = (struct wh_ver *)(void *)(p + before);
    if (older) memcpy((uint8_t *)v - WH_VER_BEFORE, &older, sizeof(older));
    if (with_key) {
      const uint64_t head = (uint64_t)(uintptr_t)e | (uint64_t)slot->key.len << WH_PTR_BITS;
      memcpy((uint8_t *)v - WH_VER_HEAD, &head, sizeof(head));
      if (slot->key.len) memcpy((uint8_t *)v - WH_VER_HEAD - slot->key.len, slot->key.ptr, slot->key.len);
    }
    ver_init(v, older, turn, with_key, rec);
    if (unlikely(mile)) {
      const struct wh_mile m = wh_mile_after(older);
      memcpy((uint8_t *)v - back, &m, sizeof(m));
    }
    atomic_store_explicit(&e->newest, wh_newest_word(v, turn), memory_order_release);
    recent_put(wh, with_key ? (const void *)v : e, slot->hash);
    if (older == NULL) atomic_fetch_add_explicit(&wh->count, 1, memory_order_relaxed);
    leaf_note(slot, older, tomb, false);
    slot->ver = v;
    return REMIXDB_OK;
  }
  const struct kref key = slot->key;
  const size_t ver_at = ver_place(offsetof(struct wh_entry, key) + (size_t)key.len);
  e = arena_alloc(&wh->arena, ver_at + size);
  if (e == NULL) return REMIXDB_NOMEM;
  enum remixdb_status s = addr_fits(e);
  if (s != REMIXDB_OK) return s;
  prefetch_room((const uint8_t *)e, ver_at + size);
  struct wh_ver *v = (struct wh_ver *)(void *)((uint8_t *)e + ver_at);
  ver_init(v, NULL, 0, false, rec);
  atomic_init(&e->newest, wh_newest_word(v, 0));
  e->klen = key.len;
  if (key.len) memcpy(e->key, key.ptr, key.len);
  if (atomic_load_explicit(&slot->leaf->count, memory_order_relaxed) == WH_LEAF_KEYS) {
    s = leaf_make_room(slot, wh_entry_key(e));
    if (s != REMIXDB_OK) return s;
  }
  wh_leaf_append(slot->leaf, wh_entry_word(e, slot->hash), wh_piece(key, slot->leaf->skip));
  recent_put(wh, e, slot->hash);
  atomic_fetch_add_explicit(&wh->count, 1, memory_order_relaxed);
  leaf_note(slot, NULL, tomb, true);
  slot->entry = e;
  slot->ver = v;
  return REMIXDB_OK;
}

// Counts the tombstones again after versions were taken back.
static void leaf_recount(struct wh_leaf *l) { wh_leaf_set_tombs(l, wh_leaf_tombs(l)); }

void wh_unlink(struct wh_slot *slot) {
  assert(wh_leaf_locked(slot->leaf) && wh_ver_seq(slot->ver) == WH_PENDING);
  struct wh_ver *const older = wh_ver_older(slot->ver);
  atomic_store_explicit(&slot->entry->newest, wh_newest_word(older, older ? older->turn : 0), memory_order_release);
  slot->ver = NULL;
  leaf_recount(slot->leaf);
  if (older) return;
  atomic_fetch_sub_explicit(&slot->wh->count, 1, memory_order_relaxed);
  if (leaf_shrink(slot)) slot->entry = NULL;
}

void wh_many_init(struct wh_many *m, struct wh *wh) {
  m->wh = wh;
  m->leaves = m->few;
  m->nr = 0;
  m->cap = WH_MANY_FEW;
  m->holes = m->back = false;
}

// Makes room for more leaves.
static enum remixdb_status many_grow(struct wh_many *m) {
  struct wh_leaf **const mine = m->leaves == m->few ? NULL : m->leaves;
  struct wh_leaf **const grown = mem_realloc(mine, (size_t)m->cap * 2 * sizeof(*grown));
  if (grown == NULL) return REMIXDB_NOMEM;
  if (!mine) memcpy(grown, m->few, m->nr * sizeof(*grown));
  m->leaves = grown;
  m->cap *= 2;
  return REMIXDB_OK;
}

// Locks the key's leaf, if it is not the leaf that was locked last.
static enum remixdb_status many_reach(struct wh_many *m, struct kref key, uint64_t hash, struct wh_slot *slot) {
  if (unlikely(m->nr + 2 > m->cap)) {  // room for the key's leaf, and for one more that a split makes
    const enum remixdb_status s = many_grow(m);
    if (s != REMIXDB_OK) return s;
  }
  struct wh_leaf *last = m->nr ? m->leaves[m->nr - 1] : NULL;
  assert(last == NULL || wh_leaf_cmp(last, key, wh_key8(key, 0)) <= 0);
  if (last && wh_leaf_ends_behind(last, key, wh_key8(key, 0))) {
    *slot = (struct wh_slot){
        .wh = m->wh, .leaf = last, .entry = wh_leaf_find(last, key, hash), .key = key, .hash = hash};
  } else {
    wh_lock(m->wh, key, hash, slot);
    m->leaves[m->nr++] = slot->leaf;
  }
  slot->many = m;
  return REMIXDB_OK;
}

enum remixdb_status wh_many_lock(struct wh_many *m, struct kref from, const struct kref *to) {
  for (struct kref key = from;;) {
    struct wh_slot slot;
    const enum remixdb_status s = many_reach(m, key, hash64(key.ptr, key.len), &slot);
    if (s != REMIXDB_OK) return s;
    // A locked leaf's range stays, so the next leaf's anchor is where it ends, whatever leaf that is now.
    const struct kref *const end = leaf_end(slot.leaf);
    if (end == NULL || (to && wh_leaf_ends_behind(slot.leaf, *to, wh_key8(*to, 0)))) return REMIXDB_OK;
    key = *end;
  }
}

enum remixdb_status wh_many_get(struct wh_many *m, struct kref key, uint64_t hash, const struct wh_ver **newest_out) {
  struct wh_slot slot;
  const enum remixdb_status s = many_reach(m, key, hash, &slot);
  *newest_out = s == REMIXDB_OK ? wh_slot_newest(&slot) : NULL;
  return s;
}

enum remixdb_status wh_many_link(struct wh_many *m, const struct kv_rec *rec, uint64_t hash, struct wh_link *out) {
  struct wh_slot slot;
  enum remixdb_status s = many_reach(m, kref(rec->key, rec->klen), hash, &slot);
  if (s == REMIXDB_OK) s = wh_link(&slot, rec);
  if (s == REMIXDB_OK) *out = (struct wh_link){slot.entry, slot.ver};
  return s;
}

// Links a tombstone in front of an entry of the slot's leaf, and tells fn.
static enum remixdb_status many_hide(struct wh_slot *slot, struct wh_entry *e, wh_link_fn fn, void *arg) {
  const struct wh_ver *const newest = wh_entry_newest(e);
  if (!newest || wh_ver_tomb(newest) || wh_ver_seq(newest) == WH_PENDING) return REMIXDB_OK;
  slot->entry = e;
  slot->key = wh_entry_key(e);
  slot->hash = hash64(slot->key.ptr, slot->key.len);
  enum remixdb_status s = wh_link(slot, KV_REC(slot->key, NULL, 0, KV_TOMB));
  if (s != REMIXDB_OK) return s;
  const struct wh_link link = {e, slot->ver};
  if ((s = fn(arg, &link)) != REMIXDB_OK) wh_many_unlink(slot->many, &link);
  return s;
}

// Does wh_many_delete's work in the slot's leaf. The group has taken nothing back before, so the count of tombstones is
// right.
static enum remixdb_status leaf_hide(struct wh_slot *slot, struct kref from, struct kref to, wh_link_fn fn, void *arg) {
  const struct wh_leaf *const l = slot->leaf;
  if (wh_leaf_tombs_counted(l) == atomic_load_explicit(&l->count, memory_order_relaxed)) return REMIXDB_OK;
  uint8_t pos[WH_LEAF_KEYS];
  const uint32_t nr = wh_leaf_order(slot->leaf, pos);
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    struct wh_entry *const e = wh_leaf_entry(l, pos[i]);
    WH_COUNT(hidden);
    if (to.ptr && kv_cmp(wh_entry_key(e), to) >= 0) break;
    if (kv_cmp(wh_entry_key(e), from) >= 0) s = many_hide(slot, e, fn, arg);
  }
  return s;
}

enum remixdb_status wh_many_delete(struct wh_many *m, struct kref from, struct kref to, wh_link_fn fn, void *arg) {
  for (struct kref at = from;;) {
    struct wh_slot slot;
    enum remixdb_status s = many_reach(m, at, hash64(at.ptr, at.len), &slot);
    if (s != REMIXDB_OK) return s;
    s = leaf_hide(&slot, from, to, fn, arg);
    // The leaf is locked, so the next leaf's anchor stays the same, although that leaf may be replaced.
    const struct kref *const end = leaf_end(slot.leaf);
    if (s != REMIXDB_OK || !end || (to.ptr && kv_cmp(*end, to) >= 0)) return s;
    at = *end;
  }
}

void wh_many_unlink(struct wh_many *m, const struct wh_link *l) {
  struct wh_ver *const older = wh_ver_older(l->ver);
  assert(wh_ver_seq(l->ver) == WH_PENDING);
  atomic_store_explicit(&l->entry->newest, wh_newest_word(older, older ? older->turn : 0), memory_order_release);
  m->back = true;
  if (older) return;
  atomic_fetch_sub_explicit(&m->wh->count, 1, memory_order_relaxed);
  m->holes = true;
}

void wh_many_release(struct wh_many *m) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < m->nr; i++) {
    struct wh_leaf *const l = m->leaves[i];
    if (unlikely(m->holes)) l->holes = true;  // any of the leaves may have entries without a version
    if (unlikely(m->back)) leaf_recount(l);
    if (unlikely(lib_lock_release(&l->lock))) m->leaves[nr++] = l;
  }
  m->nr = nr;
}

void wh_many_wake(struct wh_many *m) {
  for (uint32_t i = 0; i < m->nr; i++) lib_lock_wake(&m->leaves[i]->lock);
  if (unlikely(m->leaves != m->few)) mem_free(m->leaves);
  wh_many_init(m, m->wh);
}

void wh_many_unlock(struct wh_many *m) {
  wh_many_release(m);
  wh_many_wake(m);
}

// ---- reading

// Prefetches the value after the version's first line.
static inline void ver_prefetch(const struct wh_ver *v) {
  prefetch((const uint8_t *)v + CACHE_LINE);
  prefetch((const uint8_t *)v + 2 * CACHE_LINE);
}

// Returns the key's newest version at the moment, from a hint l.
static inline const struct wh_ver *leaf_get(const struct wh *wh, struct wh_leaf *l, struct kref key, uint64_t k8,
                                            uint64_t hash, uint64_t moment) {
  // An entry with a version is the key's only entry, even if it is in a dead leaf. Successors of the leaf share the
  // entry, and an entry that another one replaced had lost its version before.
  const struct wh_entry *e = wh_leaf_find(l, key, hash);
  const struct wh_ver *v = e ? wh_entry_newest(e) : NULL;
  if (v) {
    ver_prefetch(v);
    return wh_ver_seen(v, moment);
  }
  struct wh_leaf *right = wh_locate(wh, l, key, k8);
  if (likely(right == l)) return NULL;  // l is the key's leaf and alive now, so it was alive during the search
  e = wh_leaf_find(right, key, hash);
  return e ? wh_ver_seen(wh_entry_newest(e), moment) : NULL;
}

struct wh_begun wh_get_begin(const struct wh *wh, struct kref key, uint64_t hash) {
  if (!wh_used(wh)) return (struct wh_begun){NULL, NULL};
  // In a nearly empty index, `recent` is not worth reading a cache line.
  const bool few = atomic_load_explicit(&wh->guide, memory_order_relaxed) == NULL;
  const void *const recent = few ? NULL : recent_find(wh, hash);
  if (recent) {
    const uint8_t *const from = (const uint8_t *)recent - (wh_recent_is_ver(recent) ? WH_VER_HEAD + key.len : 0);
    prefetch(from);
    prefetch(from + CACHE_LINE);  // an entry's first version lies after the key
    return (struct wh_begun){NULL, recent};
  }
  struct wh_leaf *const l = wh_hint(wh, key, wh_key8(key, 0));
  wh_leaf_prefetch(l, hash);
  return (struct wh_begun){l, NULL};
}

const struct wh_ver *wh_get_rest(const struct wh *wh, struct wh_begun w, struct kref key, uint64_t hash,
                                 uint64_t moment) {
  if (w.recent) {
    const struct wh_ver *v = NULL;
    if (wh_recent_is_ver(w.recent)) v = kv_eq(wh_ver_key(w.recent), key) ? w.recent : NULL;
    else if (wh_entry_is(w.recent, key)) v = wh_entry_newest(w.recent);
    if (likely(v != NULL)) {
      ver_prefetch(v);
      return wh_ver_seen(v, moment);
    }
  }
  const uint64_t k8 = wh_key8(key, 0);
  return leaf_get(wh, w.leaf ? w.leaf : wh_hint(wh, key, k8), key, k8, hash, moment);
}

const struct wh_ver *wh_get(const struct wh *wh, struct kref key, uint64_t hash, uint64_t moment) {
  return wh_get_end(wh, wh_get_begin(wh, key, hash), key, hash, moment);
}

// ---- reading many keys at once
//
// Group prefetching (Chen, Ailamaki, Gibbons, Mowry: "Improving Hash Join Performance through Prefetching", ICDE 2004):
// each step reads one cache line per key, which the step before has prefetched. The steps only find the memory that the
// last step reads. The last step is wh_get's search of the leaf.

// Prefetches the words of the entries that wh_leaf_find will look at.
static inline void leaf_prefetch_words(const struct wh_leaf *l, uint64_t hash) {
  const uint32_t h32 = (uint32_t)(hash >> 32);
  uint32_t nr = 0;
  for (uint32_t i = wh_idx_start(h32); nr < WH_SAME_HASH; i = wh_idx_behind(i)) {
    const uint32_t at = wh_idx_load(&l->idx[i]);
    if (at == WH_IDX_FREE) return;
    if (!wh_idx_fits(at, h32)) continue;
    prefetch((const void *)&l->entries[wh_idx_pos(at)]);
    nr++;
  }
}

// Prefetches the entry that most likely has the key. If there is none, prefetches the next leaf, which shows where this
// leaf ends.
static inline void leaf_prefetch_entry(const struct wh_leaf *l, uint64_t hash) {
  const uint32_t h32 = (uint32_t)(hash >> 32);
  for (uint32_t i = wh_idx_start(h32);; i = wh_idx_behind(i)) {
    const uint32_t at = wh_idx_load(&l->idx[i]);
    if (at == WH_IDX_FREE) break;
    if (!wh_idx_fits(at, h32)) continue;
    const uint64_t w = wh_leaf_word(l, wh_idx_pos(at));
    if ((w ^ wh_entry_tag(h32)) >> WH_PTR_BITS) continue;
    const uint8_t *const e = (const uint8_t *)wh_word_entry(w);
    prefetch(e);
    prefetch(e + CACHE_LINE);  // the first version lies after the key
    return;
  }
  prefetch(wh_leaf_next(l));
}

void wh_get_many(const struct wh *wh, const struct kref *keys, const uint64_t *hashes, const uint8_t *which,
                 uint32_t nr, uint64_t moment, const struct wh_ver **versions_out) {
  struct wh_way ways[WH_GROUP_MAX];
  assert(nr <= WH_GROUP_MAX);
  for (uint32_t i = 0; i < nr; i++) {
    ways[i].key = keys[which[i]];
    ways[i].k8 = wh_key8(ways[i].key, 0);
  }
  const struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_acquire);
  if (likely(g != NULL)) {
    void *leaves[WH_GROUP_MAX];
    guide_find_many(g, keys, which, nr, leaves);
    for (uint32_t i = 0; i < nr; i++) ways[i].leaf = leaves[i];
  } else {
    wh_trie_hint_many(&wh->trie, ways, nr);
  }
  for (uint32_t i = 0; i < nr; i++) wh_leaf_prefetch(ways[i].leaf, hashes[which[i]]);
  for (uint32_t i = 0; i < nr; i++) leaf_prefetch_words(ways[i].leaf, hashes[which[i]]);
  for (uint32_t i = 0; i < nr; i++) leaf_prefetch_entry(ways[i].leaf, hashes[which[i]]);
  for (uint32_t i = 0; i < nr; i++)
    versions_out[which[i]] = leaf_get(wh, ways[i].leaf, ways[i].key, ways[i].k8, hashes[which[i]], moment);
}

// ---- checking

static bool check_chain(const struct wh_entry *e, char *why, size_t cap) {
  uint64_t above = 0;
  bool first = true;
  const uintptr_t newest = atomic_load_explicit(&e->newest, memory_order_relaxed);
  if (newest && wh_newest_ver(newest)->turn != wh_newest_turn(newest)) WH_BROKEN("W12: the turn of a newest version");
  for (const struct wh_ver *v = wh_newest_ver(newest); v; v = wh_ver_older(v)) {
    const uint64_t seq = wh_ver_seq(v);
    if (!first && seq >= above) WH_BROKEN("W4: number %" PRIu64 " after %" PRIu64 " in a chain", seq, above);
    above = seq;
    first = false;
    if (v->turn != (v->chained ? (wh_ver_older(v)->turn + 1u) % WH_VER_STRIDE : 0))
      WH_BROKEN("W12: a version's place in its chain");
    if (!wh_ver_is_mile(v)) continue;
    const struct wh_mile is = wh_ver_mile(v), want = wh_mile_after(wh_ver_older(v));
    if (is.prev != want.prev || is.jump != want.jump || is.prev_seq != want.prev_seq || is.jump_seq != want.jump_seq ||
        is.span != want.span)
      WH_BROKEN("W12: a milestone's ways");
  }
  return true;
}

// The hash part of a leaf names each of its n entries once, with the right hash and tag.
static bool check_hashes(const struct wh_leaf *l, uint32_t n, char *why, size_t cap) {
  uint32_t taken = 0;
  for (uint32_t i = 0; i < WH_IDX_SIZE; i++) {
    const uint32_t at = wh_idx_load(&l->idx[i]);
    if (at == WH_IDX_FREE) continue;
    if (wh_idx_pos(at) >= n) WH_BROKEN("W1: the hash part names entry %u of %u", wh_idx_pos(at), n);
    const struct kref key = wh_entry_key(wh_leaf_entry(l, wh_idx_pos(at)));
    const uint32_t hash = (uint32_t)(hash64(key.ptr, key.len) >> 32);
    if (!wh_idx_fits(at, hash)) WH_BROKEN("W1: entry %u has another hash in the hash part", wh_idx_pos(at));
    if ((wh_leaf_word(l, wh_idx_pos(at)) ^ wh_entry_tag(hash)) >> WH_PTR_BITS)
      WH_BROKEN("W1: an entry's tag is not its key's");
    taken++;
  }
  if (taken != n) WH_BROKEN("W1: the hash part has %u of %u entries", taken, n);
  return true;
}

static bool check_leaf(const struct wh *wh, const struct wh_leaf *l, uint64_t *keys, char *why, size_t cap) {
  const struct wh_leaf *next = wh_leaf_next(l);
  const uint32_t n = atomic_load_explicit(&l->count, memory_order_acquire);
  if (wh_leaf_dead(l)) WH_BROKEN("W1: a dead leaf in the list");
  if (n > WH_LEAF_KEYS) WH_BROKEN("W1: %u keys in a leaf", n);
  if (!check_hashes(l, n, why, cap)) return false;
  uint8_t pos[WH_LEAF_KEYS];
  (void)wh_leaf_order((struct wh_leaf *)(uintptr_t)l, pos);
  for (uint32_t i = 0; i < n; i++) {
    const struct wh_entry *e = wh_leaf_entry(l, pos[i]);
    const struct kref key = wh_entry_key(e);
    const uint64_t hash = hash64(key.ptr, key.len);
    if (l->anchor.len < l->skip || key.len < l->skip || (l->skip && memcmp(key.ptr, l->anchor.ptr, l->skip) != 0))
      WH_BROKEN("W8: keys without their leaf's first bytes");
    if (l->pieces[pos[i]] != wh_piece(key, l->skip)) WH_BROKEN("W8: another piece than the key's");
    if (!wh_entry_newest(e) && !l->holes) WH_BROKEN("W10: an entry without a version, and the leaf does not know");
    if (wh_leaf_find(l, key, hash) != e) WH_BROKEN("W1: an entry is not found by its key");
    if (kv_cmp(l->anchor, key) > 0 || (next && kv_cmp(key, next->anchor) >= 0))
      WH_BROKEN("W1: a key outside of its leaf's range");
    if (i && kv_cmp(wh_entry_key(wh_leaf_entry(l, pos[i - 1])), key) >= 0) WH_BROKEN("W1: keys out of order");
    const uint64_t k8 = wh_key8(key, 0);
    if (wh_trie_hint(&wh->trie, key, k8, true) != l) WH_BROKEN("W3: the trie leads to another leaf");
    if (!check_chain(e, why, cap)) return false;
    *keys += wh_entry_newest(e) != NULL;
  }
  return true;
}

static bool check_recent(const struct wh *wh, char *why, size_t cap) {
  for (uint32_t i = 0; i < wh->nr_recent; i++) {
    const uint64_t w = atomic_load_explicit(&wh->recent[i], memory_order_acquire);
    if (w == 0) continue;
    const void *const recent = wh_word_entry(w);
    const struct wh_ver *const v = wh_recent_is_ver(recent) ? recent : NULL;
    const struct kref key = v ? wh_ver_key(v) : wh_entry_key(recent);
    const uint64_t hash = hash64(key.ptr, key.len), k8 = wh_key8(key, 0);
    if (recent_place(wh, hash) != &wh->recent[i] || w != wh_entry_word(recent, hash))
      WH_BROKEN("W11: an entry or version at another hash's place");
    const struct wh_entry *const e = wh_leaf_find(wh_locate(wh, wh_hint(wh, key, k8), key, k8), key, hash);
    if (v) {
      const struct wh_ver *const newest = e ? wh_entry_newest(e) : NULL, *back = v;
      while (back && back != newest && wh_ver_seq(back) == WH_PENDING) back = wh_ver_older(back);
      if (back != newest || wh_ver_entry(v) != e) WH_BROKEN("W11: a version of a key that has a newer one");
    } else if (wh_entry_newest(recent) && e != recent) {
      WH_BROKEN("W11: an entry with a version that its key's leaf does not have");
    }
  }
  return true;
}

static bool check_guide(const struct wh *wh, char *why, size_t cap) {
  const struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_acquire);
  for (uint32_t i = 0; g && i < g->nr; i++) {
    const struct wh_leaf *const l = atomic_load_explicit(&g->items[i], memory_order_acquire),
                                *const next = wh_leaf_next(l);
    const struct kref bound = anchors_at(&g->anchors, i);
    if (wh_leaf_dead(l)) WH_BROKEN("W6: the guide names a dead leaf");
    if (kv_cmp(l->anchor, bound) > 0 || (next && kv_cmp(bound, next->anchor) >= 0))
      WH_BROKEN("W7: the guide names a leaf of another range");
  }
  return true;
}

// Counts the leaves that the guide has, each at its place.
static bool check_guide_leaves(const struct wh *wh, uint32_t nr_leaves, char *why, size_t cap) {
  const struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_acquire);
  uint32_t nr = 0;
  if (!g || wh->cuts - g->base > g->cap_more) return true;
  for (uint32_t i = 0; i < g->nr; i++) {
    const struct wh_leaf *const l = atomic_load_explicit(&g->items[i], memory_order_acquire);
    nr += kv_eq(l->anchor, anchors_at(&g->anchors, i));
  }
  for (uint32_t i = 0; i < atomic_load_explicit(&g->nr_more, memory_order_acquire); i++) {
    const struct wh_leaf *const l = atomic_load_explicit(&g->more[i], memory_order_acquire);
    if (l && (wh_leaf_dead(l) || l->cut != g->base + 1 + i)) WH_BROKEN("W13: a dead leaf, or another one");
    nr += l != NULL;
  }
  if (nr != nr_leaves) WH_BROKEN("W13: %u leaves, the guide has %u", nr_leaves, nr);
  return true;
}

static bool check_dead(const struct wh_leaf_list *list, char *why, size_t cap) {
  uint32_t nr = 0;
  for (const struct wh_leaf *l = list->first; l; l = l->after, nr++)
    if (!wh_leaf_dead(l)) WH_BROKEN("W6: a living leaf among the dead ones");
  if (nr != list->nr) WH_BROKEN("%u dead leaves, counted %u", nr, list->nr);
  return true;
}

bool wh_check(const struct wh *wh, char *why, size_t cap) {
  const struct wh_leaf *prev = NULL;
  uint64_t keys = 0;
  uint32_t leaves = 0;
  for (const struct wh_leaf *l = atomic_load_explicit(&wh->head, memory_order_acquire); l;
       prev = l, l = wh_leaf_next(l), leaves++) {
    if (wh_leaf_prev(l) != prev) WH_BROKEN("W1: next and prev differ");
    if (prev ? kv_cmp(prev->anchor, l->anchor) >= 0 : l->anchor.len != 0) WH_BROKEN("W1: anchors out of order");
    const struct wh_leaf *const behind = wh_leaf_next(l);
    if (l->end8 != (behind ? behind->lo8 : UINT64_MAX)) WH_BROKEN("W1: a leaf's end differs");
    if (l->lo8 != wh_key8(l->anchor, 0)) WH_BROKEN("W1: an anchor's first bytes differ");
    if (!check_leaf(wh, l, &keys, why, cap) || !wh_trie_check_leaf(&wh->trie, l, why, cap)) return false;
  }
  if (!check_recent(wh, why, cap) || !check_guide(wh, why, cap) || !check_guide_leaves(wh, leaves, why, cap) ||
      !check_dead(&wh->dead, why, cap) || !check_dead(&wh->waiting, why, cap))
    return false;
  if (keys != wh_count(wh)) WH_BROKEN("%" PRIu64 " keys, counted %" PRIu64, keys, wh_count(wh));
  return wh_trie_check(&wh->trie, why, cap);
}
