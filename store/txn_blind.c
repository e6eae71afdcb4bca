// SPDX-License-Identifier: Apache-2.0
#include "store/txn_blind.h"

#define FEW 64u  // so many ranges are looked at when a read is noted; more reads than necessary are noted with more

enum remixdb_status txn_blind_add(struct xdb_txn *t, uint32_t tree, struct kref from, struct kref to) {
  if (t->nr_blind == t->cap_blind) {
    struct txn_blind *const grown = mem_grow32(t->blind, &t->cap_blind, 8, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    t->blind = grown;
  }
  uint8_t *const bytes = mem_alloc((size_t)from.len + to.len + 1);
  if (!bytes) return REMIXDB_NOMEM;
  if (from.len) memcpy(bytes, from.ptr, from.len);
  if (to.len) memcpy(bytes + from.len, to.ptr, to.len);
  t->blind[t->nr_blind++] = (struct txn_blind){.bytes = bytes,
                                               .from = kref(bytes, from.len),
                                               .to = kref(to.ptr ? bytes + from.len : NULL, to.len),
                                               .tree = tree,
                                               .number = ++t->blind_number};
  return REMIXDB_OK;
}

void txn_blind_cut(struct xdb_txn *t, uint32_t nr) {
  while (t->nr_blind > nr) mem_free(t->blind[--t->nr_blind].bytes);
}

static bool ends_before(const struct txn_blind *b, struct kref key) { return b->to.ptr && kv_cmp(b->to, key) <= 0; }

static bool is_deleted(const struct xdb_txn *t, uint32_t tree, struct kref key) {
  for (uint32_t i = 0; i < t->nr_blind && i < FEW; i++) {
    const struct txn_blind *const b = &t->blind[i];
    if (b->tree == tree && kv_cmp(b->from, key) <= 0 && !ends_before(b, key)) return true;
  }
  return false;
}

enum remixdb_status txn_note_key(struct xdb_txn *t, uint32_t tree, struct kref key) {
  if (unlikely(t->nr_blind) && is_deleted(t, tree, key)) return REMIXDB_OK;
  return readset_key(&t->reads[tree], key);
}

// Notes what of the range none of the deleted ranges from number i on has.
static enum remixdb_status note_rest(struct xdb_txn *t, uint32_t tree, struct read_range r, uint32_t i,
                                     uint64_t number) {
  for (; i < t->nr_blind && i < FEW; i++) {
    const struct txn_blind *const b = &t->blind[i];
    if (b->tree != tree || b->number > number || ends_before(b, r.from) || read_range_ends_before(&r, b->from))
      continue;
    if (kv_cmp(r.from, b->from) < 0) {
      const struct read_range left = {.from = r.from, .to = b->from, .below = true};
      const enum remixdb_status s = note_rest(t, tree, left, i + 1, number);
      if (s != REMIXDB_OK) return s;
    }
    if (!b->to.ptr || read_range_ends_before(&r, b->to)) return REMIXDB_OK;
    r.from = b->to;
  }
  return readset_range(&t->reads[tree], &r);
}

enum remixdb_status txn_note_range(struct xdb_txn *t, uint32_t tree, const struct read_range *r, uint64_t number) {
  return note_rest(t, tree, *r, 0, number);
}
