// SPDX-License-Identifier: Apache-2.0
#include "store/handover.h"

#include "store/below.h"

#define PASSES 4u  // the most passes of step 1
#define FEW 1024u  // the last pass is the one during which so few keys have come

// ---- what the ingest replaces

static bool within(const struct handover *h, struct kref key) {
  return kv_cmp(key, h->low) >= 0 && kv_cmp(key, h->high) <= 0;
}

// Tells whether the ingest has the key. Its tables are the newest of the version.
static enum remixdb_status look_up(struct handover *h, struct kref key, bool *replaced_out) {
  const uint64_t hash = hash64(key.ptr, key.len);
  struct xdb_below place;
  struct kv_rec rec;
  epoch_enter(&h->x->epoch, &h->w->slot);
  xdb_below_begin(h->above, h->tree, key, hash, &place);
  const enum remixdb_status s = xdb_below_numbered(&place, key, hash, WH_PENDING - 1, &h->hold, &rec);
  epoch_exit(&h->w->slot);
  *replaced_out = s == REMIXDB_OK && rec.seq == h->unnumbered;
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
}

static enum remixdb_status note(struct handover_keys *to, const struct wh_entry *entry, bool replaced) {
  if (to->nr == to->cap) {
    struct handover_key *const grown = mem_grow(to->keys, &to->cap, 256, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    to->keys = grown;
  }
  to->keys[to->nr++] = (struct handover_key){entry, replaced};
  return REMIXDB_OK;
}

// Finds the cursor's key, from known.at on. An entry stays in the memtable, so one that is not the next is new, or
// replaces the entry that was known.
static const struct handover_key *find(struct handover_keys *known, const struct wh_cursor *c) {
  const struct kref key = wh_key(c);
  for (; known->at < known->nr; known->at++) {
    const struct handover_key *const k = &known->keys[known->at];
    if (k->entry == c->entry) return k;
    if (kv_cmp(kref(k->entry->key, k->entry->klen), key) >= 0) return NULL;
  }
  return NULL;
}

// The same by what step 1 has found out. The key is not outside of the ingest's. Keys ascend from call to call.
static enum remixdb_status is_replaced(struct handover *h, const struct wh_cursor *c, bool *replaced_out) {
  const struct handover_key *const k = find(&h->known, c);
  if (!k) return look_up(h, wh_key(c), replaced_out);
  *replaced_out = k->replaced;
  return REMIXDB_OK;
}

// ---- the steps

static void seek(struct handover *h, struct wh_cursor *c, const struct wh *wh, struct kref key) {
  wh_cursor_init(c, wh, WH_PENDING - 1);
  epoch_enter(&h->x->epoch, &h->w->slot);
  wh_seek(c, key);
  epoch_exit(&h->w->slot);
}

// Looks up the keys that are not known yet. *new_out: how many.
static enum remixdb_status learn(struct handover *h, const struct wh *wh, struct wh_cursor *c, size_t *new_out) {
  struct handover_keys all = {0};
  enum remixdb_status s = REMIXDB_OK;
  h->known.at = 0;
  *new_out = 0;
  for (seek(h, c, wh, h->low); s == REMIXDB_OK && wh_valid(c) && kv_cmp(wh_key(c), h->high) <= 0; wh_next(c)) {
    const struct handover_key *const k = find(&h->known, c);
    bool replaced = k && k->replaced;
    if (!k) s = look_up(h, wh_key(c), &replaced);
    if (s == REMIXDB_OK) s = note(&all, c->entry, replaced);
    *new_out += !k;
    h->replaces |= replaced;
  }
  mem_free(h->known.keys);
  h->known = all;
  h->known.at = 0;
  return s;
}

enum remixdb_status handover_begin(struct handover *h) {
  const struct wh *const wh = memtable_tree(h->from->active, h->tree);
  epoch_join(&h->x->cursors, &h->stay);
  epoch_enter(&h->x->cursors, &h->stay);
  h->to = h->above->active;
  // Once a memtable has the index of the spaces' tree, each later one has it, too.
  enum remixdb_status s = memtable_tree(h->from->active, TREE_SPACES) ? memtable_spaces(h->to) : REMIXDB_OK;
  struct wh_cursor *const c = mem_alloc(sizeof(*c));
  if (!c) return REMIXDB_NOMEM;
  // Writers go on. A pass looks up the keys that came during the one before, which are fewer each time.
  size_t fresh = FEW;
  for (uint32_t i = 0; i < PASSES && wh && s == REMIXDB_OK && fresh >= FEW; i++) s = learn(h, wh, c, &fresh);
  mem_free(c);
  return s;
}

enum remixdb_status handover_stays(struct handover *h, bool *out) {
  const struct wh *const wh = memtable_tree(h->from->active, h->tree);
  enum remixdb_status s = REMIXDB_OK;
  bool replaced = h->replaces;
  struct wh_cursor *const c = mem_alloc(sizeof(*c));
  if (!c) return REMIXDB_NOMEM;
  h->known.at = 0;
  if (wh && !replaced) seek(h, c, wh, h->low);
  for (; wh && !replaced && s == REMIXDB_OK && wh_valid(c) && kv_cmp(wh_key(c), h->high) <= 0; wh_next(c))
    s = is_replaced(h, c, &replaced);
  h->known.at = 0;
  *out = !replaced;
  mem_free(c);
  return s;
}

enum remixdb_status handover_mark(struct handover *h) {
  struct wal *const wal = h->x->wal;
  struct wh *const wh = memtable_tree(h->from->active, h->tree);
  uint64_t gen;
  const enum remixdb_status s = wal_begin_held(wal, kv_rec_size(&h->mark), &gen);
  if (s != REMIXDB_OK) return s;
  h->seq = h->last = wal_put(wal, &h->mark);
  wal_end(wal);
  h->marked = true;
  if (wh) wh_end_gaps(wh);
  return REMIXDB_OK;
}

// The new memtable holds the file of a value that is apart, as the older one does.
static enum remixdb_status hold_value(struct handover *h, const struct kv_rec *rec) {
  struct value_ref to;
  if (!value_ref_get(rec->val, rec->vlen, &to))
    return err_set(REMIXDB_CORRUPT, "%s: a record has a reference to a value that cannot be one", h->x->dir);
  struct value_file *const f = value_list_find(&h->from->active->values, to.file);
  if (!f)
    return err_set(REMIXDB_CORRUPT, "%s: the memtable does not have value file %llu", h->x->dir,
                   (unsigned long long)to.file);
  atomic_fetch_add_explicit(&h->to->apart_bytes, to.len, memory_order_relaxed);
  return value_list_add(&h->to->values, f);
}

// Puts the cursor's record into the new memtable, with its number.
static enum remixdb_status take_one(struct handover *h, const struct wh_cursor *c, uint32_t tree) {
  struct kv_rec rec;
  struct wh_slot slot;
  wh_record(c, &rec);
  enum remixdb_status s = unlikely(rec.kind & KV_APART) ? hold_value(h, &rec) : REMIXDB_OK;
  if (s != REMIXDB_OK) return s;
  epoch_enter(&h->x->epoch, &h->w->slot);
  wh_lock(memtable_tree(h->to, tree), wh_key(c), hash64(rec.key, rec.klen), &slot);
  s = wh_link(&slot, &rec);
  if (s == REMIXDB_OK) wh_stamp(&slot, wh_ver_seq(c->ver));
  wh_unlock(&slot);
  epoch_exit(&h->w->slot);
  h->records += s == REMIXDB_OK;
  return s;
}

enum remixdb_status handover_take(struct handover *h) {
  enum remixdb_status s = REMIXDB_OK;
  struct wh_cursor *const c = mem_alloc(sizeof(*c));
  if (!c) return REMIXDB_NOMEM;
  for (uint32_t tree = 0; tree < TREES; tree++) {
    const struct wh *const wh = memtable_tree(h->from->active, tree);
    if (!wh) continue;
    // The index of the spaces' tree may have come after step 1.
    if (s == REMIXDB_OK && tree == TREE_SPACES) s = memtable_spaces(h->to);
    for (seek(h, c, wh, kref("", 0)); s == REMIXDB_OK && wh_valid(c); wh_next(c)) {
      bool replaced = false;
      if (tree == h->tree && within(h, wh_key(c))) s = is_replaced(h, c, &replaced);
      if (s == REMIXDB_OK && !replaced) s = take_one(h, c, tree);
    }
  }
  mem_free(c);
  return s;
}

static void note_switch(void *arg, uint64_t gen) {
  struct handover *const h = arg;
  h->to->gen = gen;
  h->to->base_seq = h->last = h->seq;
  h->switched = true;
}

static enum remixdb_status log_tree(struct handover *h, struct wh_cursor *c, uint32_t tree) {
  struct wal *const wal = h->x->wal;
  enum remixdb_status s = REMIXDB_OK;
  for (seek(h, c, memtable_tree(h->to, tree), kref("", 0)); s == REMIXDB_OK && wh_valid(c); wh_next(c)) {
    struct kv_rec rec;
    uint64_t gen;
    wh_record(c, &rec);
    rec.seq = wh_ver_seq(c->ver);
    rec.kind |= KV_SEQ | (tree == TREE_SPACES ? KV_SPACES : 0u);
    if ((s = wal_begin_held(wal, kv_rec_size(&rec), &gen)) != REMIXDB_OK) return s;
    h->last = wal_put(wal, &rec);
    wal_end(wal);
  }
  return s;
}

enum remixdb_status handover_switch(struct handover *h) {
  struct wh_cursor *const c = mem_alloc(sizeof(*c));
  enum remixdb_status s = c ? wal_switch_after(h->x->wal, &h->mark, &h->seq, note_switch, h) : REMIXDB_NOMEM;
  for (uint32_t tree = 0; tree < TREES && s == REMIXDB_OK; tree++)
    if (memtable_tree(h->to, tree)) s = log_tree(h, c, tree);
  mem_free(c);
  return s;
}

void handover_end(struct handover *h) {
  sst_hold_fini(&h->hold);
  epoch_exit(&h->stay);
  epoch_leave(&h->x->cursors, &h->stay);
  mem_free(h->known.keys);
}
