// SPDX-License-Identifier: Apache-2.0
#include "store/txn_iter.h"

#include <assert.h>

#include "store/txn_blind.h"
#include "store/txn_pool.h"
#include "xdb.h"

#define LEAP_AFTER 8u  // deleted keys that are passed one by one before a leap: a leap seeks in the store

struct key_buf {
  uint8_t *ptr;
  uint32_t len, cap;
};

struct txn_iter {
  struct xdb_own_iter face;  // the first member
  struct xdb_txn *txn;
  uint32_t tree;
  struct txn_iter *next, **link;  // in the transaction's list
  struct xdb_iter *below;         // over the transaction's moment
  struct kref from, to;           // bounds: from <= key < to; ptr NULL: none
  struct overlay_cursor own;
  uint64_t blind;  // the last deletion of a range that `own` sees (xdb_txn.blind_number)
  bool held;       // every seek sees the transaction's writes up to the making of the iterator
  enum { TXN_NOWHERE, TXN_BELOW, TXN_OWN } at;  // where the current key is
  bool same;                                    // at TXN_OWN: `below` stands on the same key, which is hidden
  bool backward;                                // both stand at the current key or before it; else at it or behind it
  bool tracked;
  bool noting;               // the ref is tracked, and a seek has set the range:
  struct key_buf low, high;  // keys from low to high were passed, and those to the current key
  bool ended;                // TXN_NOWHERE, because the last move came to an end of the keys
  bool to_end;               // and all behind low
};

static enum remixdb_status key_set(struct key_buf *b, struct kref key) {
  if (key.len > b->cap || !b->ptr) {
    uint8_t *const grown = mem_realloc(b->ptr, key.len + 32);
    if (!grown) return REMIXDB_NOMEM;
    b->ptr = grown;
    b->cap = key.len + 32;
  }
  if (key.len) memmove(b->ptr, key.ptr, key.len);
  b->len = key.len;
  return REMIXDB_OK;
}
static inline struct kref key_of(const struct key_buf *b) { return kref(b->ptr, b->len); }

struct txn_iter *txn_iter_after(const struct txn_iter *t) {
  return t->next;
}

// Sees the writes up to now.
static void own_begin(struct txn_iter *t) {
  overlay_cursor_init(&t->own, &t->txn->own[t->tree]);
  t->blind = t->txn->blind_number;
}

enum remixdb_status txn_iter_create(struct xdb_ref *r, const struct xdb_iter_opts *o,
                                    const struct xdb_iter_bounds *bounds, struct xdb_own_iter **out) {
  struct xdb_txn *const txn = r->txn;
  if (o && o->snapshot) return err_set(REMIXDB_INVALID, "an iterator of a transaction does not read a snapshot");
  struct txn_iter *const t = mem_calloc(1, sizeof(*t));
  if (!t) return REMIXDB_NOMEM;
  struct xdb_iter_opts below = {.expect = o ? o->expect : 0, .keys_only = o && o->keys_only};
  if (bounds) {
    t->from = bounds->low;
    t->to = bounds->high;
    below.bounds.from = (struct remixdb_slice){t->from.ptr, t->from.len};
    below.bounds.to = (struct remixdb_slice){t->to.ptr, t->to.len};
  }
  const enum remixdb_status s = xdb_iter_create_opts(txn->base[r->tree], &below, &t->below);
  if (s != REMIXDB_OK) {
    mem_free(t);
    return s;
  }
  t->txn = txn;
  t->tracked = !r->untracked;
  t->held = o && o->hold;
  t->tree = r->tree;
  own_begin(t);
  t->next = txn->iters;
  t->link = &txn->iters;
  if (t->next) t->next->link = &t->next;
  txn->iters = t;
  *out = &t->face;
  return s;
}

static inline struct txn_iter *iter_of(struct xdb_own_iter *it) { return (struct txn_iter *)(void *)it; }

// ---- what was read

static enum remixdb_status record(struct txn_iter *t, struct kv_rec *rec_out) {
  if (t->at == TXN_BELOW) return xdb_iter_refer(t->below, rec_out);
  const struct overlay_ver *const v = t->own.ver;
  overlay_record(v, rec_out);
  return REMIXDB_OK;
}

// The current key, in memory that holds until the iterator moves. May read the disk.
static enum remixdb_status current(struct txn_iter *t, struct kref *out) {
  struct kv_rec rec;
  const enum remixdb_status s = record(t, &rec);
  if (s == REMIXDB_OK) *out = kref(rec.key, rec.klen);
  return s;
}

// Makes the range reach the current key.
static enum remixdb_status reach(struct txn_iter *t) {
  struct kref key;
  if (!t->noting || t->at == TXN_NOWHERE) return REMIXDB_OK;
  enum remixdb_status s = current(t, &key);
  if (s == REMIXDB_OK && kv_cmp(key, key_of(&t->low)) < 0) s = key_set(&t->low, key);
  if (s == REMIXDB_OK && !t->to_end && kv_cmp(key, key_of(&t->high)) > 0) s = key_set(&t->high, key);
  return s;
}

// The iterator came to an end of the keys, or failed and nobody knows how far it came.
static void reach_end(struct txn_iter *t) {
  if (!t->backward) t->to_end = true;
  else if (!t->from.ptr || key_set(&t->low, t->from) != REMIXDB_OK) t->low.len = 0;
}

enum remixdb_status txn_iter_note(struct txn_iter *t) {
  if (!t->noting) return REMIXDB_OK;
  err_cleanup_begin();
  if (reach(t) != REMIXDB_OK) reach_end(t);  // the record cannot be read: the range is taken as larger than it was
  err_cleanup_end();
  const struct read_range r = {.from = key_of(&t->low), .to = t->to_end ? t->to : key_of(&t->high), .below = t->to_end};
  t->noting = false;
  if (read_range_ends_before(&r, r.from)) return REMIXDB_OK;
  const enum remixdb_status s = txn_note_range(t->txn, t->tree, &r, t->blind);
  if (s != REMIXDB_OK) t->txn->lost = true;
  return s;
}

// Begins a range at the key of a seek.
static enum remixdb_status note_begin(struct txn_iter *t, struct kref key) {
  if (t->txn->ended) return err_set(REMIXDB_INVALID, "the transaction of the iterator has ended");
  enum remixdb_status s = txn_iter_note(t);
  if (s == REMIXDB_OK) s = key_set(&t->low, key);
  if (s == REMIXDB_OK && t->tracked) s = key_set(&t->high, key);
  if (s != REMIXDB_OK) return s;
  t->noting = t->tracked;
  t->to_end = false;
  return s;
}

// ---- moves

static enum remixdb_status fail_at(struct txn_iter *t, enum remixdb_status s) {
  if (t->noting) reach_end(t);
  t->at = TXN_NOWHERE;
  t->face.valid = t->ended = false;
  return s;
}

static enum remixdb_status step_below(struct txn_iter *t) {
  return t->backward ? xdb_iter_prev(t->below) : xdb_iter_skip(t->below, 1);
}
static void step_own(struct txn_iter *t) {
  if (t->backward) overlay_prev(&t->own);
  else overlay_next(&t->own);
}

// Tells whether the position among the own writes is a key within the bounds.
static bool own_inside(const struct txn_iter *t) {
  if (!t->own.node) return false;
  const struct kref key = overlay_key(t->own.node);
  return t->backward ? !t->from.ptr || kv_cmp(key, t->from) >= 0 : !t->to.ptr || kv_cmp(key, t->to) < 0;
}

// Tells whether the transaction has deleted its current key, or whether that has expired.
static bool own_absent(const struct txn_iter *t) {
  struct kv_rec rec;
  overlay_record(t->own.ver, &rec);
  return xdb_ref_absent(t->txn->base[t->tree], &rec);
}

// No key is visible between two nodes, `from` and `to` not counted: the links between them become gaps, as far as the
// newest versions of their ends are absent (O2).
static void note_gap(struct txn_iter *t, const struct overlay_node *from, const struct overlay_node *to) {
  const struct xdb_ref *const base = t->txn->base[t->tree];
  if (!from->newest || !to->newest) return;  // the iterator goes on after a rollback, from a node that is gone
  for (const struct overlay_node *n; from != to; from = n) {
    struct kv_rec rec;
    n = from->next[0];
    overlay_record(n->newest, &rec);
    if (xdb_ref_absent(base, &rec)) overlay_gap(&t->txn->own[t->tree], from, n->newest->number);
  }
}

// The current key among the own writes is absent, and the store has no key before it. Moves both positions over the
// gaps behind it. *last_out: the node that they are at then. It stays as it is if there is nothing to leap over.
static enum remixdb_status leap(struct txn_iter *t, const struct overlay_node **last_out) {
  struct kv_rec rec;
  const struct overlay_node *const to = overlay_leap(&t->own, t->backward);
  if (!to) return REMIXDB_OK;
  *last_out = to;
  if (!xdb_iter_valid(t->below)) return REMIXDB_OK;
  const enum remixdb_status s = xdb_iter_refer(t->below, &rec);
  if (s != REMIXDB_OK) return s;
  const int c = kv_cmp(kref(rec.key, rec.klen), overlay_key(to));
  if (t->backward) return c > 0 ? xdb_iter_seek_for_prev(t->below, overlay_key(to)) : s;
  return c < 0 ? xdb_iter_seek(t->below, overlay_key(to)) : s;
}

// Finds the current key among the two positions, and passes keys that the transaction has deleted.
static enum remixdb_status find(struct txn_iter *t) {
  const struct overlay_node *last = NULL;  // the last one that was passed
  for (uint32_t passed = 0;;) {
    const bool below = xdb_iter_valid(t->below);
    t->same = false;
    if (!own_inside(t)) {
      t->at = below ? TXN_BELOW : TXN_NOWHERE;
      t->ended = !below;
      if (!below && t->noting) reach_end(t);
      return REMIXDB_OK;
    }
    int c = -1;  // the transaction's key compared with the other, in the direction
    if (below) {
      struct kv_rec rec;
      const enum remixdb_status s = xdb_iter_refer(t->below, &rec);
      if (s != REMIXDB_OK) return fail_at(t, s);
      c = kv_cmp(overlay_key(t->own.node), kref(rec.key, rec.klen));
      if (t->backward) c = -c;
    }
    t->at = c > 0 ? TXN_BELOW : TXN_OWN;
    t->same = c == 0;
    if (t->at == TXN_BELOW || !own_absent(t)) return REMIXDB_OK;
    const struct overlay_node *const node = t->own.node;
    if (last) note_gap(t, t->backward ? node : last, t->backward ? last : node);
    last = node;
    enum remixdb_status s = REMIXDB_OK;
    if (++passed % LEAP_AFTER == 0) s = leap(t, &last);
    if (last == node) {
      step_own(t);
      if (t->same) s = step_below(t);
    }
    if (s != REMIXDB_OK) return fail_at(t, s);
  }
}

static enum remixdb_status settle(struct txn_iter *t) {
  const enum remixdb_status s = find(t);
  t->face.valid = t->at != TXN_NOWHERE;
  return s;
}

// After `below` was moved by a seek.
static enum remixdb_status sought(struct txn_iter *t, enum remixdb_status s) {
  return s == REMIXDB_OK ? settle(t) : fail_at(t, s);
}

static void own_renew(struct txn_iter *t) {
  if (!t->held) own_begin(t);
}

static enum remixdb_status seek(struct txn_iter *t, struct kref key) {
  if (!key.ptr) key = kref("", 0);
  if (t->from.ptr && kv_cmp(key, t->from) < 0) key = t->from;
  const enum remixdb_status s = note_begin(t, key);
  if (s != REMIXDB_OK) return fail_at(t, s);
  key = key_of(&t->low);
  t->backward = false;
  own_renew(t);
  overlay_seek(&t->own, key);
  return sought(t, xdb_iter_seek(t->below, key));
}

// To the last key below the upper bound, or of all.
static enum remixdb_status seek_last(struct txn_iter *t) {
  enum remixdb_status s = note_begin(t, t->to.ptr ? t->to : kref("", 0));
  if (s != REMIXDB_OK) return fail_at(t, s);
  t->to_end = true;
  t->backward = true;
  own_renew(t);
  if (t->to.ptr) overlay_seek_lt(&t->own, t->to);
  else overlay_seek_last(&t->own);
  s = xdb_iter_seek_last(t->below);
  if ((s = sought(t, s)) != REMIXDB_OK || t->at == TXN_NOWHERE || !t->noting) return s;
  // All behind the current key was read: without a bound the range begins there, and not at the empty key.
  struct kref key;
  if ((s = current(t, &key)) == REMIXDB_OK) s = key_set(&t->low, key);
  return s == REMIXDB_OK ? s : fail_at(t, s);
}

static enum remixdb_status seek_for_prev(struct txn_iter *t, struct kref key) {
  if (!key.ptr) key = kref("", 0);
  if (t->to.ptr && kv_cmp(key, t->to) >= 0) return seek_last(t);
  const enum remixdb_status s = note_begin(t, key);
  if (s != REMIXDB_OK) return fail_at(t, s);
  key = key_of(&t->low);
  t->backward = true;
  own_renew(t);
  overlay_seek_le(&t->own, key);
  return sought(t, xdb_iter_seek_for_prev(t->below, key));
}

enum remixdb_status txn_iter_seek(struct xdb_own_iter *it, enum seek_how how, struct kref key) {
  struct txn_iter *const t = iter_of(it);
  return how == SEEK_GE ? seek(t, key) : how == SEEK_LE ? seek_for_prev(t, key) : seek_last(t);
}

// Turns round at the current key: both positions go to the other side of it, or to it.
static enum remixdb_status turn(struct txn_iter *t, bool backward) {
  struct kref key;
  struct key_buf here = {0};
  enum remixdb_status s = reach(t);
  if (s == REMIXDB_OK) s = current(t, &key);
  if (s == REMIXDB_OK) s = key_set(&here, key);
  if (s == REMIXDB_OK) {
    key = key_of(&here);
    t->backward = backward;
    if (backward) overlay_seek_le(&t->own, key);
    else overlay_seek(&t->own, key);
    s = backward ? xdb_iter_seek_for_prev(t->below, key) : xdb_iter_seek(t->below, key);
  }
  mem_free(here.ptr);
  return s == REMIXDB_OK ? settle(t) : fail_at(t, s);
}

static enum remixdb_status step(struct txn_iter *t, bool backward) {
  assert(t->at != TXN_NOWHERE);
  if (unlikely(t->backward != backward)) {
    const enum remixdb_status s = turn(t, backward);
    if (s != REMIXDB_OK || t->at == TXN_NOWHERE) return s;
  }
  if (t->at == TXN_OWN) step_own(t);
  if (t->at == TXN_BELOW || t->same) {
    const enum remixdb_status s = step_below(t);
    if (s != REMIXDB_OK) return fail_at(t, s);
  }
  return settle(t);
}

enum remixdb_status txn_iter_prev(struct xdb_own_iter *it) { return step(iter_of(it), true); }

enum remixdb_status txn_iter_skip(struct xdb_own_iter *it, uint32_t nr) {
  enum remixdb_status s = REMIXDB_OK;
  for (; nr > 0 && s == REMIXDB_OK && it->valid; nr--) s = step(iter_of(it), false);
  return s;
}

enum remixdb_status txn_iter_unend(struct xdb_own_iter *it, bool first) {
  struct txn_iter *const t = iter_of(it);
  if (!t->ended) return REMIXDB_OK;
  t->backward = !first;
  if (first) overlay_seek(&t->own, t->from.ptr ? t->from : kref("", 0));
  else if (t->to.ptr) overlay_seek_lt(&t->own, t->to);
  else overlay_seek_last(&t->own);
  return sought(t, first ? xdb_iter_seek(t->below, kref("", 0)) : xdb_iter_seek_last(t->below));
}

enum remixdb_status txn_iter_record(struct xdb_own_iter *it, struct kv_rec *rec_out) {
  return record(iter_of(it), rec_out);
}

enum remixdb_status txn_iter_load(struct xdb_own_iter *it, struct kv_rec *rec, void *buf) {
  return xdb_iter_load(iter_of(it)->below, rec, buf);  // the transaction's own values are never apart
}

// ---- the end

void txn_iter_park(struct xdb_own_iter *it) {
  struct txn_iter *const t = iter_of(it);
  IGNORED(txn_iter_note(t), "the commit fails");
  t->at = TXN_NOWHERE;
  t->face.valid = t->ended = false;
  t->own.node = NULL;
  xdb_iter_park(t->below);
}

void txn_iter_end(struct txn_iter *t) {
  t->noting = false;
  txn_iter_park(&t->face);
}

void txn_iter_destroy(struct xdb_own_iter *it) {
  struct txn_iter *const t = iter_of(it);
  struct xdb_txn *const txn = t->txn;
  txn_iter_park(it);
  *t->link = t->next;
  if (t->next) t->next->link = t->link;
  xdb_iter_destroy(t->below);
  mem_free(t->low.ptr);
  mem_free(t->high.ptr);
  mem_free(t);
  if (txn->ended && !txn->iters) txn_pool_put(txn);
}
