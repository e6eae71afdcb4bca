// SPDX-License-Identifier: Apache-2.0
#include "store/range_group.h"

#include <assert.h>
#include <stdlib.h>

#include "log/format.h"
#include "remix/paged.h"
#include "store/space_ref.h"
#include "store/values.h"
#include "store/write.h"

// ---- the group

static void tries_fini(struct range_group *g) {
  for (uint32_t t = 0; t < TREES; t++) {
    struct range_tree *const a = &g->trees[t];
    mem_free(a->all);
    mem_free(a->links);
    a->all = NULL;
    a->links = NULL;
    a->nr = a->nr_linked = a->nr_gone = 0;
  }
  mem_free(g->keys);
  g->keys = NULL;
}

void range_group_fini(struct range_group *g) {
  tries_fini(g);
  for (uint32_t t = 0; t < TREES; t++) {
    mem_free(g->trees[t].ranges);
    mem_free(g->trees[t].ops);
    mem_free(g->trees[t].gone);
    mem_free(g->trees[t].gone_from);
  }
  mem_free(g->bounds);
}

static struct kref op_key(const struct batch_op *op) { return kref(op->rec.key, op->rec.klen); }

// Makes room for the results of the tries.
enum remixdb_status range_group_ready(struct range_group *g) {
  for (uint32_t t = 0; t < TREES; t++) {
    struct range_tree *const a = &g->trees[t];
    a->nr_ranges = compact_ranges_join(a->ranges, a->nr_ranges);
    a->gone_from = mem_array(a->nr_ranges + 1, sizeof(*a->gone_from), 0);
    if (!a->gone_from) return REMIXDB_NOMEM;
  }
  return REMIXDB_OK;
}

// ---- gathering

// Keys of one tree, in any order, some of them more than once.
struct gathered {
  uint64_t few;  // most keys
  struct batch_op *ops;
  size_t nr, cap;
  uint8_t *bytes;  // the keys; the operations have offsets into it until the end
  size_t len, room;
  const struct wh *active;  // NULL: the tree has none
  uint64_t left_out;
};

// Tells whether the active memtable deletes the key, so that it needs no other tombstone (D7). Inside an epoch.
static bool is_deleted(struct gathered *to, struct kref key) {
  const struct wh_ver *const v = to->active ? wh_get(to->active, key, hash64(key.ptr, key.len), WH_PENDING - 1) : NULL;
  const bool deleted = v && wh_ver_tomb(v);
  to->left_out += deleted;
  return deleted;
}

static enum remixdb_status gathered_add(struct gathered *to, struct kref key) {
  if (to->nr >= to->few) return err_set(REMIXDB_TOOBIG, "more keys than get tombstones");
  if (to->nr == to->cap) {
    struct batch_op *const grown = mem_grow(to->ops, &to->cap, 64, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    to->ops = grown;
  }
  if (key.len > to->room - to->len) {
    const size_t room = mem_doubled(to->room ? to->room : 4096, mem_sum(to->len, key.len));
    uint8_t *const grown = mem_realloc(to->bytes, room);
    if (!grown) return REMIXDB_NOMEM;
    to->bytes = grown;
    to->room = room;
  }
  if (key.len) memcpy(to->bytes + to->len, key.ptr, key.len);
  to->ops[to->nr] = (struct batch_op){.hash = to->len};
  to->ops[to->nr].rec.klen = key.len;
  to->nr++;
  to->len += key.len;
  return REMIXDB_OK;
}

static bool before(struct kref key, struct kref to) { return !to.ptr || kv_cmp(key, to) < 0; }

// A frozen memtable takes no new writers, so its cursor needs no stay (wh_recycle).
static enum remixdb_status gather_memtable(struct gathered *to, struct xdb *x, struct epoch_slot *slot,
                                           const struct wh *wh, const struct compact_range *r) {
  struct wh_cursor *const c = mem_alloc(sizeof(*c));
  if (!c) return REMIXDB_NOMEM;
  wh_cursor_init(c, wh, WH_PENDING - 1);
  epoch_enter(&x->epoch, slot);
  wh_seek(c, r->from);
  epoch_exit(slot);
  enum remixdb_status s = REMIXDB_OK;
  for (; s == REMIXDB_OK && wh_valid(c) && before(wh_key(c), r->to); wh_next(c)) {
    if (wh_ver_tomb(c->ver)) continue;
    epoch_enter(&x->epoch, slot);
    const bool deleted = is_deleted(to, wh_key(c));
    epoch_exit(slot);
    if (!deleted) s = gathered_add(to, wh_key(c));
  }
  mem_free(c);
  return s;
}

// Adds the keys of a whole view, or of a page. *end_out: it has a key behind the range. Inside an epoch.
static enum remixdb_status gather_keys(struct gathered *to, struct remix *v, const struct compact_range *r,
                                       bool *end_out) {
  struct remix_cursor c;
  remix_cursor_init(&c, NULL);
  enum remixdb_status s = remix_cursor_set(&c, v);
  if (s == REMIXDB_OK) s = remix_seek(&c, r->from);
  while (s == REMIXDB_OK && remix_valid(&c)) {
    struct kv_rec rec;
    if ((s = remix_record(&c, &rec)) != REMIXDB_OK) break;
    *end_out = !before(kref(rec.key, rec.klen), r->to);
    if (*end_out) break;
    const struct kref key = kref(rec.key, rec.klen);
    if (!(rec.kind & KV_TOMB) && !is_deleted(to, key)) s = gathered_add(to, key);
    remix_next(&c);
  }
  remix_cursor_fini(&c);
  return s;
}

static enum remixdb_status gather_view(struct gathered *to, struct xdb *x, struct epoch_slot *slot, struct remix *v,
                                       const struct compact_range *r) {
  if (!v) return REMIXDB_OK;
  const bool paged = remix_is_paged(v);
  const uint32_t nr = paged ? remix_pages(v) : 1;
  enum remixdb_status s = REMIXDB_OK;
  bool end = false;
  for (uint32_t i = paged ? remix_page_of(v, r->from) : 0; i < nr && !end && s == REMIXDB_OK; i++) {
    struct remix *page = v;
    epoch_enter(&x->epoch, slot);
    if (paged) s = remix_page(v, i, &page);
    if (s == REMIXDB_OK) s = gather_keys(to, page, r, &end);
    epoch_exit(slot);
  }
  return s;
}

static enum remixdb_status gather_tables(struct gathered *to, struct xdb *x, struct epoch_slot *slot,
                                         const struct version *tree, const struct compact_range *r) {
  const uint32_t end = r->to.ptr ? version_find(tree, r->to) + 1 : tree->nr_parts;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = version_find(tree, r->from); i < end && s == REMIXDB_OK; i++) {
    s = part_ready(tree->parts[i]);
    if (s == REMIXDB_OK) s = gather_view(to, x, slot, part_remix(tree->parts[i]), r);
    if (s == REMIXDB_OK) s = gather_view(to, x, slot, part_young(tree->parts[i]), r);
  }
  return s;
}

static int op_order(const void *a, const void *b) { return kv_cmp(op_key(a), op_key(b)); }

// Makes `all` of the operations and the gathered keys. An operation goes before a tombstone for the same key.
static enum remixdb_status gathered_merge(struct range_group *g, struct range_tree *t, uint32_t tree,
                                          struct gathered *from, const uint8_t *bytes) {
  for (size_t i = 0; i < from->nr; i++) {
    struct batch_op *const op = &from->ops[i];
    op->rec = (struct kv_rec){.key = bytes + op->hash,
                              .klen = op->rec.klen,
                              .kind = KV_TOMB | (tree == TREE_SPACES ? KV_SPACES : 0)};
    op->hash = hash64(op->rec.key, op->rec.klen);
  }
  if (from->nr) qsort(from->ops, from->nr, sizeof(*from->ops), op_order);
  const size_t most = t->nr_ops + from->nr + 1;
  t->all = mem_array(most, sizeof(*t->all), 0);
  t->links = mem_array(most, sizeof(*t->links), 0);
  if (!t->all || !t->links) return REMIXDB_NOMEM;
  for (size_t i = 0, k = 0; i < t->nr_ops || k < from->nr;) {
    const int c = i == t->nr_ops ? 1 : k == from->nr ? -1 : kv_cmp(op_key(&t->ops[i]), op_key(&from->ops[k]));
    const struct batch_op *const op = c <= 0 ? &t->ops[i++] : &from->ops[k++];
    if (t->nr && kv_eq(op_key(&t->all[t->nr - 1]), op_key(op))) continue;
    t->all[t->nr++] = *op;
    g->log_bytes += kv_rec_size(&op->rec);
    g->memory += wh_record_memory(op->rec.klen, op->rec.vlen);
  }
  return REMIXDB_OK;
}

static struct kv_rec range_record(const struct compact_range *r, uint32_t tree) {
  return (struct kv_rec){.key = r->from.ptr,
                         .klen = r->from.len,
                         .val = r->to.ptr,
                         .vlen = r->to.ptr ? r->to.len : 0,
                         .kind = KV_RANGE | (tree == TREE_SPACES ? KV_SPACES : 0)};
}

enum remixdb_status range_group_gather(struct range_group *g, struct xdb *x, struct epoch_slot *slot,
                                       const struct super *v, const struct version *version) {
  tries_fini(g);
  g->log_bytes = g->memory = 0;
  g->left_out = 0;
  g->active = v->active;
  struct gathered to[TREES] = {{.few = g->few}, {.few = g->few}};
  enum remixdb_status s = REMIXDB_OK;
  size_t len = 0;
  for (uint32_t t = 0; t < TREES && s == REMIXDB_OK; t++) {
    const struct range_tree *const a = &g->trees[t];
    const struct version *const tree = version_tree(version, t);
    const struct wh *const frozen = v->frozen ? memtable_tree(v->frozen, t) : NULL;
    to[t].active = memtable_tree(v->active, t);
    for (uint32_t i = 0; i < a->nr_ranges && s == REMIXDB_OK; i++) {
      if (frozen) s = gather_memtable(&to[t], x, slot, frozen, &a->ranges[i]);
      if (s == REMIXDB_OK && tree) s = gather_tables(&to[t], x, slot, tree, &a->ranges[i]);
      const struct kv_rec rec = range_record(&a->ranges[i], t);
      g->log_bytes += kv_rec_size(&rec);
    }
    len += to[t].len;
    g->left_out += to[t].left_out;
  }
  if (s == REMIXDB_OK && !(g->keys = mem_alloc(len + 1))) s = REMIXDB_NOMEM;
  size_t at = 0;
  for (uint32_t t = 0; t < TREES; t++) {
    if (s == REMIXDB_OK) {
      if (to[t].len) memcpy(g->keys + at, to[t].bytes, to[t].len);
      s = gathered_merge(g, &g->trees[t], t, &to[t], g->keys + at);
      at += to[t].len;
    }
    mem_free(to[t].ops);
    mem_free(to[t].bytes);
  }
  return s;
}

// ---- committing

// A try to commit, for one tree.
struct attempt {
  struct xdb *xdb;
  uint32_t nr;  // the tree's number
  struct memtable *memtable;
  struct range_group *group;
  struct range_tree *tree;
  size_t log_bytes;  // bytes of tombstones for keys of the memtable, if they have records of their own
  uint32_t kind;     // the kind of these records
};

static enum remixdb_status note_gone(void *arg, const struct wh_link *l) {
  struct attempt *const a = arg;
  struct range_tree *const t = a->tree;
  if (t->nr_gone >= a->group->few) return err_set(REMIXDB_TOOBIG, "more keys than get tombstones");
  if (t->nr_gone == t->cap_gone) {
    struct wh_link *const grown = mem_grow(t->gone, &t->cap_gone, 64, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    t->gone = grown;
  }
  t->gone[t->nr_gone++] = *l;
  const struct kv_rec rec = {.key = l->entry->key, .klen = l->entry->klen, .kind = a->kind};
  a->log_bytes += kv_rec_size(&rec);
  return REMIXDB_OK;
}

// Locks the leaves of all that the transaction has read in the tree up to the key; NULL: those of all that is left.
static enum remixdb_status lock_reads(struct wh_many *many, const struct attempt *a, const struct kref *key) {
  struct many_check *const check = a->group->check;
  return check ? check->lock(check, a->nr, many, key) : REMIXDB_OK;
}

static enum remixdb_status link_op(struct wh_many *many, struct attempt *a) {
  struct range_tree *const t = a->tree;
  const struct batch_op *const op = &t->all[t->nr_linked];
  const struct kref key = op_key(op);
  enum remixdb_status s = lock_reads(many, a, &key);
  if (s == REMIXDB_OK && unlikely(op->rec.kind & KV_APART)) s = values_hold(a->xdb, a->memtable, &op->rec);
  if (s == REMIXDB_OK) s = wh_many_link(many, &op->rec, op->hash, &t->links[t->nr_linked]);
  t->nr_linked += s == REMIXDB_OK;
  return s;
}

// Deletes the keys of a part of a range. All its leaves are locked then.
static enum remixdb_status link_part(struct wh_many *many, struct attempt *a, struct kref from, struct kref to) {
  struct many_check *const check = a->group->check;
  if (to.ptr && kv_cmp(from, to) >= 0) return REMIXDB_OK;
  enum remixdb_status s = lock_reads(many, a, &from);
  if (s == REMIXDB_OK) s = wh_many_delete(many, from, to, note_gone, a);
  if (s == REMIXDB_OK && check) check->locked(check, a->nr, to);
  return s;
}

// Links a range, and the operations on its keys.
static enum remixdb_status link_range(struct wh_many *many, struct attempt *a, const struct compact_range *r) {
  struct range_tree *const t = a->tree;
  for (struct kref from = r->from;;) {
    const bool in = t->nr_linked < t->nr && before(op_key(&t->all[t->nr_linked]), r->to);
    const struct kref to = in ? op_key(&t->all[t->nr_linked]) : r->to;
    enum remixdb_status s = link_part(many, a, from, to);
    if (s == REMIXDB_OK && in) s = link_op(many, a);
    if (s != REMIXDB_OK || !in) return s;
    from = to;
  }
}

// Links all of a tree, from left to right.
static enum remixdb_status link_tree(struct wh_many *many, struct attempt *a) {
  struct range_tree *const t = a->tree;
  enum remixdb_status s = REMIXDB_OK;
  t->nr_linked = t->nr_gone = 0;
  for (uint32_t i = 0; i < t->nr_ranges && s == REMIXDB_OK; i++) {
    while (s == REMIXDB_OK && t->nr_linked < t->nr && before(op_key(&t->all[t->nr_linked]), t->ranges[i].from))
      s = link_op(many, a);
    t->gone_from[i] = t->nr_gone;
    if (s == REMIXDB_OK) s = link_range(many, a, &t->ranges[i]);
  }
  t->gone_from[t->nr_ranges] = t->nr_gone;
  while (s == REMIXDB_OK && t->nr_linked < t->nr) s = link_op(many, a);
  return s == REMIXDB_OK ? lock_reads(many, a, NULL) : s;
}

static void unlink_tree(struct wh_many *many, struct range_tree *t) {
  while (t->nr_gone > 0) wh_many_unlink(many, &t->gone[--t->nr_gone]);
  while (t->nr_linked > 0) wh_many_unlink(many, &t->links[--t->nr_linked]);
}

// Logs and stamps the range: as a record of its own, or a record for each of its keys.
static uint64_t log_range(struct xdb *x, const struct range_tree *t, uint32_t i, uint32_t tree, bool edit,
                          uint64_t seq) {
  const struct kv_rec rec = range_record(&t->ranges[i], tree);
  if (edit) seq = wal_put(x->wal, &rec);
  for (size_t k = t->gone_from[i]; k < t->gone_from[i + 1]; k++) {
    const struct wh_entry *const e = t->gone[k].entry;
    const struct kv_rec gone = {.key = e->key,
                                .klen = e->klen,
                                .kind = KV_TOMB | (tree == TREE_SPACES ? KV_SPACES : 0)};
    if (!edit) seq = wal_put(x->wal, &gone);
    wh_link_stamp(&t->gone[k], seq);
  }
  return seq;
}

// Logs, stamps and publishes the group, which is linked in the memtable. The log's lock is held.
static void log_group(struct xdb *x, const struct range_group *g, struct memtable *m, struct super *next) {
  uint64_t seq = 0, erased = 0;
  for (uint32_t t = 0; t < TREES; t++)
    for (uint32_t i = 0; i < g->trees[t].nr_ranges; i++)
      erased = seq = log_range(x, &g->trees[t], i, t, next != NULL, seq);
  for (uint32_t t = 0; t < TREES; t++) {
    for (size_t i = 0; i < g->trees[t].nr; i++) {
      const struct kv_rec *const rec = &g->trees[t].all[i].rec;
      seq = wal_put(x->wal, rec);
      wh_link_stamp(&g->trees[t].links[i], seq);
      if (unlikely(rec->kind & KV_APART)) values_count(m, rec);
    }
  }
  if (seq == 0) return;  // there was nothing to delete
  if (next) {
    next->version->erased = erased;
    if (g->trees[TREE_SPACES].edited) next->version->spaces->erased = erased;
    next->since = next->least = seq;
    atomic_store_explicit(&x->super, next, memory_order_release);
  }
  atomic_store_explicit(&x->published, seq, memory_order_release);
}

static enum remixdb_status commit_linked(struct range_group *g, struct xdb *x, struct super *v, struct super *next,
                                         size_t nbytes) {
  uint64_t gen;
  const enum remixdb_status s = g->puts ? wal_begin(x->wal, nbytes, &gen) : wal_begin_last(x->wal, nbytes, &gen);
  if (s != REMIXDB_OK) return s;
  if (likely(gen == v->active->gen && xdb_super(x) == v)) {  // X3, D2
    log_group(x, g, v->active, next);
    return s;
  }
  wal_end(x->wal);
  return REMIXDB_ABORTED;
}

// Checks that the spaces of all ranges and operations have names.
static enum remixdb_status check_names(const struct range_group *g, const struct super *v) {
  const struct range_tree *const t = &g->trees[TREE_SPACES];
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < t->nr_ranges && s == REMIXDB_OK; i++) s = space_check_write(v, t->ranges[i].from);
  for (size_t i = 0; i < t->nr_ops && s == REMIXDB_OK; i++) s = space_check_write(v, op_key(&t->ops[i]));
  return s;
}

enum remixdb_status range_group_commit(struct range_group *g, struct xdb *x, struct epoch_slot *slot, struct super *v,
                                       struct super *next) {
  struct wh_many many[TREES];
  enum remixdb_status s = REMIXDB_OK;
  size_t nbytes = g->log_bytes;
  epoch_enter(&x->epoch, slot);
  if (xdb_super(x) != v || v->active != g->active) s = REMIXDB_ABORTED;  // D2, D7
  else if (g->check && !g->check->begin(g->check, v)) s = REMIXDB_ABORTED;
  else if (g->named) s = check_names(g, v);
  if (s != REMIXDB_OK) {
    epoch_exit(slot);
    return s;
  }
  for (uint32_t t = 0; t < TREES; t++) {
    struct range_tree *const tree = &g->trees[t];
    struct wh *const wh = memtable_tree(v->active, t);
    wh_many_init(&many[t], wh);
    struct attempt a = {.xdb = x,
                        .nr = t,
                        .memtable = v->active,
                        .group = g,
                        .tree = tree,
                        .kind = KV_TOMB | (t == TREE_SPACES ? KV_SPACES : 0)};
    tree->nr_linked = tree->nr_gone = 0;
    assert(wh || tree->nr == 0);
    for (uint32_t i = 0; i <= tree->nr_ranges; i++) tree->gone_from[i] = 0;
    if (s == REMIXDB_OK && wh) s = link_tree(&many[t], &a);
    if (!next) nbytes += a.log_bytes;
  }
  if (s == REMIXDB_OK && nbytes > WAL_FRAME_MAX)
    s = err_set(REMIXDB_TOOBIG, "a batch takes %zu bytes in the log; at most %u go into it at once", nbytes,
                WAL_FRAME_MAX);
  if (s == REMIXDB_OK && g->check && !g->check->passes(g->check, v->active)) s = REMIXDB_ABORTED;
  if (s == REMIXDB_OK) s = commit_linked(g, x, v, next, nbytes);
  for (uint32_t t = TREES; t-- > 0;) {
    if (s != REMIXDB_OK) unlink_tree(&many[t], &g->trees[t]);
    wh_many_release(&many[t]);
  }
  const bool write = s == REMIXDB_OK && wal_end_unlock(x->wal);
  for (uint32_t t = 0; t < TREES; t++) wh_many_wake(&many[t]);
  epoch_exit(slot);
  if (write) wal_end_write(x->wal);
  return s;
}
