// SPDX-License-Identifier: Apache-2.0
#include "store/txn_check.h"

#include <stdio.h>

#include "store/below.h"
#include "store/idle.h"
#include "xdb.h"

static void forget(struct txn_check *c) {
  if (!c->compared) return;
  xdb_super_drop(c->txn->xdb, c->compared);
  c->compared = NULL;
}

void txn_check_fini(struct txn_check *c) { forget(c); }

// Notes a conflict at a key of the tree. The message shows the user's key, and not the id of its space.
static void note(struct txn_check *c, uint32_t tree, struct kref key) {
  char text[3 * 16 + 4] = "";
  size_t n = 0;
  if (tree == TREE_SPACES && key.len >= NAMES_ID) key = kref(key.ptr + NAMES_ID, key.len - NAMES_ID);
  for (uint32_t i = 0; i < key.len && i < 16; i++) {
    const uint8_t b = key.ptr[i];
    const bool plain = b > ' ' && b < 127 && b != '\\';
    n += (size_t)snprintf(text + n, sizeof(text) - n, plain ? "%c" : "\\%02x", b);
  }
  c->many.conflict = true;
  (void)err_set(REMIXDB_ABORTED, "another write to what the transaction has read, at %s%s%s",
                key.len ? "key " : "the empty key", text, key.len > 16 ? "..." : "");
}

static enum remixdb_status conflict(struct txn_check *c, uint32_t tree, struct kref key) {
  note(c, tree, key);
  return REMIXDB_ABORTED;
}

// ---- memtables

// Tells whether a version was committed after the moment. v NULL: there is none.
static bool is_later(const struct txn_check *c, const struct wh_ver *v) { return v && wh_ver_seq(v) > c->moment; }

// Leaps over a gap that begins at the cursor, up to its end at most. The gap was there at the moment already, so the
// transaction has read no key in it, and there has been none since (G1 and G5 of wh/gap.h). For a queue's reader these
// are the tombstones of all that was taken before. Returns false if there is no such gap.
static bool leap(const struct txn_check *c, struct wh_cursor *at) {
  const uint64_t newest = at->moment;
  struct kref to;
  uint64_t until = 0;
  at->moment = c->moment;
  const bool there = wh_gap(at, wh_key(at), false, c->txn->now_ms, &to, &until) && kv_cmp(wh_key(at), to) < 0;
  at->moment = newest;
  if (!there) return false;
  wh_seek(at, to);
  return true;
}

// Tells whether the memtable's tree has a version of the range that was committed after the moment.
static bool range_changed(struct txn_check *c, uint32_t tree, const struct wh *wh, const struct read_range *r) {
  if (read_range_is_key(r)) {
    if (!is_later(c, wh_get(wh, r->from, hash64(r->from.ptr, r->from.len), WH_PENDING - 1))) return false;
    note(c, tree, r->from);
    return true;
  }
  struct wh_cursor at;
  const void *tried = NULL;  // the leaf in which a gap was looked for last
  wh_cursor_init(&at, wh, WH_PENDING - 1);
  wh_seek(&at, r->from);
  while (wh_valid(&at) && !read_range_ends_before(r, wh_key(&at))) {
    if (unlikely(wh_gapped(&at)) && at.leaf != tried) {
      tried = at.leaf;
      if (leap(c, &at)) continue;
    }
    if (is_later(c, at.ver)) {
      note(c, tree, wh_key(&at));
      return true;
    }
    wh_next(&at);
  }
  return false;
}

// keys: whether to check the keys, too, and not ranges alone.
static bool memtable_changed(struct txn_check *c, const struct memtable *m, bool keys) {
  for (uint32_t tree = 0; tree < TREES; tree++) {
    const struct readset *const reads = &c->txn->reads[tree];
    const struct wh *const wh = memtable_tree(m, tree);
    for (size_t i = 0; i < reads->nr && wh; i++)
      if ((keys || !read_range_is_key(&reads->ranges[i])) && range_changed(c, tree, wh, &reads->ranges[i])) return true;
  }
  return false;
}

// Whether the super's version may hold writes after the moment that were not compared.
static bool compare_due(const struct txn_check *c, const struct super *v) {
  return v->since > c->moment && !(c->compared && c->compared->version == v->version);
}

// Tells whether a space that was read has been dropped. Its keys may be there for a while. A range may go over several
// spaces if each of them was read up to its end.
static bool space_dropped(struct txn_check *c, const struct version *v) {
  const struct readset *const reads = &c->txn->reads[TREE_SPACES];
  for (size_t i = 0; i < reads->nr; i++) {
    const struct read_range *const r = &reads->ranges[i];
    const uint32_t first = names_id_get(r->from.ptr);
    const bool whole = r->to.len == NAMES_ID && r->below;  // up to the beginning of the next space
    const uint32_t last = names_id_get(r->to.ptr) - whole;
    for (uint32_t id = first; id <= last; id++) {
      if (names_find_id(v->names, id)) continue;
      c->many.conflict = true;
      (void)err_set(REMIXDB_ABORTED, "a space that the transaction has read is dropped");
      return true;
    }
  }
  return false;
}

static bool check_begin(struct many_check *many, const struct super *v) {
  struct txn_check *const c = (struct txn_check *)many;
  if (space_dropped(c, v->version)) return false;
  if (unlikely(c->due = compare_due(c, v))) return false;
  memset(c->locked, 0, sizeof(c->locked));
  return !v->frozen || v->active->base_seq <= c->moment || !memtable_changed(c, v->frozen, true);
}

// Keys whose leaves a deletion of a range has locked were not checked then.
static bool check_passes(struct many_check *many, const struct memtable *active) {
  struct txn_check *const c = (struct txn_check *)many;
  return !memtable_changed(c, active, c->txn->nr_blind != 0);
}

static void check_locked(struct many_check *many, uint32_t tree, struct kref to) {
  struct txn_check *const c = (struct txn_check *)many;
  c->locked[tree].passed = to;
  c->locked[tree].all = !to.ptr;
}

// Locks the leaf of a key that was read, and checks the key: its newest version stays what it is.
static enum remixdb_status lock_key(struct txn_check *c, uint32_t tree, struct wh_many *leaves, struct kref key) {
  const struct wh_ver *newest;
  const enum remixdb_status s = wh_many_get(leaves, key, hash64(key.ptr, key.len), &newest);
  return s == REMIXDB_OK && unlikely(is_later(c, newest)) ? conflict(c, tree, key) : s;
}

static enum remixdb_status check_lock(struct many_check *many, uint32_t tree, struct wh_many *leaves,
                                      const struct kref *key) {
  struct txn_check *const c = (struct txn_check *)many;
  const struct readset *const reads = &c->txn->reads[tree];
  size_t *const at = &c->locked[tree].at;
  struct kref *const done = &c->locked[tree].from;
  const struct kref passed = c->locked[tree].passed;
  for (; *at < reads->nr && leaves->wh && !c->locked[tree].all; ++*at, *done = kref(NULL, 0)) {
    const struct read_range *const r = &reads->ranges[*at];
    if (unlikely(passed.ptr != NULL) && read_range_ends_before(r, passed)) continue;
    struct kref from = done->ptr ? *done : r->from;
    if (unlikely(passed.ptr != NULL) && kv_cmp(from, passed) < 0) from = passed;
    if (key && kv_cmp(from, *key) > 0) return REMIXDB_OK;
    const bool one = read_range_is_key(r);
    const bool part = !one && key && !read_range_ends_before(r, *key);  // it goes on behind the key
    const enum remixdb_status s = one ? lock_key(c, tree, leaves, r->from)
                                      : wh_many_lock(leaves, from,
                                                     part        ? key
                                                     : r->to.ptr ? &r->to
                                                                 : NULL);
    if (s != REMIXDB_OK) return s;
    if (!part) continue;
    *done = *key;
    return REMIXDB_OK;
  }
  return REMIXDB_OK;
}

// ---- tables

// Finds the newest record of the key that a ref with a super reads, as xdb_find_numbered does. Only its kind, expiry
// and seq count.
static enum remixdb_status look_up(struct xdb_ref *r, struct kref key, struct kv_rec *rec_out) {
  epoch_enter(&r->xdb->epoch, &r->slot);
  const enum remixdb_status s = xdb_find_numbered(r->super, r->tree, key, hash64(key.ptr, key.len), r->moment, &r->hold,
                                                  rec_out);
  epoch_exit(&r->slot);
  return s;
}

// The transaction's snapshot and the store as it is, side by side. A record that is there tells by its number. If there
// is none any more, not even a tombstone, the key was deleted, or it was absent all the time.
static enum remixdb_status compare_key(struct txn_check *c, uint32_t tree, struct kref key) {
  struct kv_rec is, was;
  enum remixdb_status s = look_up(c->txn->now, key, &is);
  if (s == REMIXDB_OK) return is.seq > c->moment ? conflict(c, tree, key) : REMIXDB_OK;
  if (s == REMIXDB_NOTFOUND) s = look_up(c->txn->base[tree], key, &was);
  if (s == REMIXDB_OK && !xdb_ref_absent(c->txn->base[tree], &was)) return conflict(c, tree, key);
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
}

// Compares a range, which lies in one partition. Both iterators judge by the clock of the beginning.
static enum remixdb_status compare_range(struct txn_check *c, uint32_t tree, struct xdb_iter *was, struct xdb_iter *is,
                                         const struct read_range *r) {
  enum remixdb_status s = xdb_iter_seek(was, r->from);
  if (s == REMIXDB_OK) s = xdb_iter_seek(is, r->from);
  while (s == REMIXDB_OK) {
    struct kv_rec a = {0}, b = {0}, newest;
    if (xdb_iter_valid(was)) s = xdb_iter_record(was, &a);
    if (s == REMIXDB_OK && xdb_iter_valid(is)) s = xdb_iter_record(is, &b);
    if (s != REMIXDB_OK) return s;
    const struct kref ka = kref(a.key, a.klen), kb = kref(b.key, b.klen);
    const bool has_a = xdb_iter_valid(was) && !read_range_ends_before(r, ka);
    const bool has_b = xdb_iter_valid(is) && !read_range_ends_before(r, kb);
    if (!has_a && !has_b) return REMIXDB_OK;
    if (has_a != has_b || !kv_eq(ka, kb)) return conflict(c, tree, has_a ? ka : kb);
    s = look_up(c->txn->now, kb, &newest);
    if (s == REMIXDB_OK && newest.seq > c->moment) return conflict(c, tree, kb);
    if (s == REMIXDB_OK) s = xdb_iter_skip(was, 1);
    if (s == REMIXDB_OK) s = xdb_iter_skip(is, 1);
  }
  return s;
}

// Whether partition i of v is a partition of `old`, too, with the same range: it has taken over the range of no
// partition that has gone.
static bool part_is_old(const struct version *old, const struct version *v, uint32_t i) {
  const uint32_t k = version_find(old, part_anchor(v->parts[i]));
  if (old->parts[k] != v->parts[i]) return false;
  if (k + 1 == old->nr_parts || i + 1 == v->nr_parts) return k + 1 == old->nr_parts && i + 1 == v->nr_parts;
  return kv_eq(part_anchor(old->parts[k + 1]), part_anchor(v->parts[i + 1]));
}

// Compares a range partition by partition. A partition that both versions share has no new data in its tables.
static enum remixdb_status compare_parts(struct txn_check *c, uint32_t tree, struct xdb_iter *was, struct xdb_iter *is,
                                         const struct read_range *r) {
  const struct version *const old = version_tree(c->txn->super->version, tree), *const v = version_tree(
                                                                                    c->compared->version, tree);
  if (!old || !v) return compare_range(c, tree, was, is, r);
  for (uint32_t i = version_find(v, r->from); i < v->nr_parts; i++) {
    struct read_range in = *r;
    const struct kref anchor = part_anchor(v->parts[i]);
    if (read_range_ends_before(r, anchor)) return REMIXDB_OK;
    if (kv_cmp(in.from, anchor) < 0) in.from = anchor;
    if (i + 1 < v->nr_parts && !read_range_ends_before(r, part_anchor(v->parts[i + 1]))) {
      in.to = part_anchor(v->parts[i + 1]);
      in.below = true;
    }
    if (part_is_old(old, v, i)) continue;
    const enum remixdb_status s = compare_range(c, tree, was, is, &in);
    if (s != REMIXDB_OK) return s;
  }
  return REMIXDB_OK;
}

// Compares all that was read in the tree.
static enum remixdb_status compare_tree(struct txn_check *c, uint32_t tree) {
  static const struct xdb_iter_opts opts = {.keys_only = true};
  struct xdb_iter *was = NULL, *is = NULL;
  const struct readset *const reads = &c->txn->reads[tree];
  if (reads->nr == 0) return REMIXDB_OK;
  c->txn->now->tree = tree;
  enum remixdb_status s = xdb_iter_create_opts(c->txn->base[tree], &opts, &was);
  if (s == REMIXDB_OK) s = xdb_iter_create_opts(c->txn->now, &opts, &is);
  for (size_t i = 0; i < reads->nr && s == REMIXDB_OK; i++) {
    const struct read_range *const r = &reads->ranges[i];
    s = read_range_is_key(r) ? compare_key(c, tree, r->from) : compare_parts(c, tree, was, is, r);
  }
  struct err_saved why;
  err_save(&why, s);
  xdb_iter_destroy(is);
  xdb_iter_destroy(was);
  c->txn->now->tree = TREE_UNNAMED;
  return err_raise(&why);
}

static enum remixdb_status compare(struct txn_check *c) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t tree = 0; tree < TREES && s == REMIXDB_OK; tree++) s = compare_tree(c, tree);
  return s;
}

static enum remixdb_status check_tables(struct many_check *many) {
  struct txn_check *const c = (struct txn_check *)many;
  struct xdb_ref *const now = c->txn->now;
  if (likely(!c->due)) return REMIXDB_OK;
  c->due = false;
  forget(c);
  c->compared = xdb_ref_hold(now, &now->moment);
  now->super = c->compared;
  now->now_ms = c->txn->now_ms;  // that time goes by is no conflict
  const enum remixdb_status s = compare(c);
  now->super = NULL;
  return s;
}

void txn_check_init(struct txn_check *c, struct xdb_txn *t) {
  *c = (struct txn_check){.many = {check_tables, check_begin, check_lock, check_locked, check_passes, false},
                          .txn = t,
                          .moment = t->moment};
}
