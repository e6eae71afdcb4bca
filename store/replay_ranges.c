// SPDX-License-Identifier: Apache-2.0
#include "store/replay_ranges.h"

#include <assert.h>
#include <stdlib.h>

void replay_ranges_fini(struct replay_ranges *r) {
  for (uint32_t t = 0; t < TREES; t++) {
    struct replay_ranges_tree *const tree = &r->trees[t];
    for (uint32_t i = 0; i < tree->nr; i++) mem_free((void *)(uintptr_t)tree->all[i].range.from.ptr);
    mem_free(tree->all);
    mem_free(tree->cuts);
  }
}

enum remixdb_status replay_ranges_add(struct replay_ranges *r, const struct kv_rec *rec) {
  struct replay_ranges_tree *const tree = &r->trees[rec->kind & KV_SPACES ? TREE_SPACES : TREE_UNNAMED];
  if (tree->nr == tree->cap) {
    struct replay_range *const grown = mem_grow32(tree->all, &tree->cap, 8, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    tree->all = grown;
  }
  uint8_t *const bytes = mem_alloc((size_t)rec->klen + rec->vlen + 1);
  if (!bytes) return REMIXDB_NOMEM;
  if (rec->klen) memcpy(bytes, rec->key, rec->klen);
  if (rec->vlen) memcpy(bytes + rec->klen, rec->val, rec->vlen);
  const struct kref to = rec->vlen ? kref(bytes + rec->klen, rec->vlen) : kref(NULL, 0);
  tree->all[tree->nr++] = (struct replay_range){{kref(bytes, rec->klen), to}, rec->seq};
  r->last = rec->seq;
  return REMIXDB_OK;
}

// ---- edits

// The ranges of a tree behind `erased`, joined. *nr_out: how many. The caller frees them.
static enum remixdb_status later_ones(const struct replay_ranges_tree *tree, uint64_t erased,
                                      struct compact_range **out, uint32_t *nr_out) {
  uint32_t nr = 0;
  struct compact_range *const ranges = mem_array(tree->nr + 1, sizeof(*ranges), 0);
  if (!ranges) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < tree->nr; i++)
    if (tree->all[i].seq > erased) ranges[nr++] = tree->all[i].range;
  *nr_out = compact_ranges_join(ranges, nr);
  *out = ranges;
  return REMIXDB_OK;
}

enum remixdb_status replay_ranges_edit(const struct replay_ranges *r, struct xdb *x, struct worker *self,
                                       struct blkio_queue *queue, struct version *v, struct version **out) {
  struct version *at = v, *next;
  enum remixdb_status s = REMIXDB_OK;
  version_ref(at);
  for (uint32_t t = 0; t < TREES && s == REMIXDB_OK; t++) {
    struct compact_erase erase = {.c = &x->compact, .slot = &self->slot, .queue = queue, .tree = t};
    struct compact_range *ranges = NULL;
    s = later_ones(&r->trees[t], v->erased, &ranges, &erase.nr);
    erase.ranges = ranges;
    if (s == REMIXDB_OK) s = compact_erase(&erase, at, &next);
    mem_free(ranges);
    if (s != REMIXDB_OK || !next) continue;
    version_unref(at);
    at = next;
  }
  if (s == REMIXDB_OK && at == v) s = version_copy(v, out);
  else if (s == REMIXDB_OK) version_ref(*out = at);
  version_unref(at);
  if (s == REMIXDB_OK && r->last > (*out)->erased) (*out)->erased = r->last;
  return s;
}

// ---- what is taken away

static int by_key(const void *a, const void *b) {
  return kv_cmp(((const struct replay_cut *)a)->from, ((const struct replay_cut *)b)->from);
}

// The cut in which a key lies; nr_cuts: it comes before all.
static uint32_t cut_of(const struct replay_ranges_tree *tree, struct kref key) {
  uint32_t low = 0, high = tree->nr_cuts;  // the first cut behind the key
  while (low < high) {
    const uint32_t mid = low + (high - low) / 2;
    if (kv_cmp(tree->cuts[mid].from, key) <= 0) low = mid + 1;
    else high = mid;
  }
  return low ? low - 1 : tree->nr_cuts;
}

// Gives each cut its place: the ranges come from the last to the first, and each takes the cuts that none has taken.
// free_from[i]: cut i if it is not taken, else one behind it; so a chain of taken cuts is walked once.
static void take_cuts(struct replay_ranges_tree *tree, uint32_t *free_from) {
  for (uint32_t i = 0; i <= tree->nr_cuts; i++) free_from[i] = i;
  for (uint32_t n = tree->nr; n-- > 0;) {
    const struct replay_range *const r = &tree->all[n];
    const uint32_t end = r->range.to.ptr ? cut_of(tree, r->range.to) : tree->nr_cuts;
    for (uint32_t i = cut_of(tree, r->range.from); i < end;) {
      if (free_from[i] == i) {
        tree->cuts[i].seq = r->seq;
        free_from[i] = i + 1;
      }
      const uint32_t next = free_from[i];
      if (next < tree->nr_cuts) free_from[i] = free_from[next];
      i = next;
    }
  }
}

static enum remixdb_status make_cuts(struct replay_ranges_tree *tree) {
  if (tree->nr == 0) return REMIXDB_OK;
  uint32_t *const free_from = mem_array(2 * (size_t)tree->nr + 1, sizeof(*free_from), 0);
  tree->cuts = free_from ? mem_array(2 * (size_t)tree->nr, sizeof(*tree->cuts), 0) : NULL;
  if (!tree->cuts) {
    mem_free(free_from);
    return REMIXDB_NOMEM;
  }
  uint32_t nr = 0;
  for (uint32_t i = 0; i < tree->nr; i++) {
    const struct compact_range *const r = &tree->all[i].range;
    tree->cuts[nr++] = (struct replay_cut){r->from, 0};
    if (r->to.ptr) tree->cuts[nr++] = (struct replay_cut){r->to, 0};
  }
  qsort(tree->cuts, nr, sizeof(*tree->cuts), by_key);
  uint32_t last = 0;
  for (uint32_t i = 1; i < nr; i++)
    if (!kv_eq(tree->cuts[last].from, tree->cuts[i].from)) tree->cuts[++last] = tree->cuts[i];
  tree->nr_cuts = last + 1;
  take_cuts(tree, free_from);
  mem_free(free_from);
  return REMIXDB_OK;
}

enum remixdb_status replay_ranges_cut(struct replay_ranges *r) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t t = 0; t < TREES && s == REMIXDB_OK; t++) s = make_cuts(&r->trees[t]);
  return s;
}

bool replay_ranges_take(const struct replay_ranges *r, const struct kv_rec *rec, uint64_t place) {
  const struct replay_ranges_tree *const tree = &r->trees[rec->kind & KV_SPACES ? TREE_SPACES : TREE_UNNAMED];
  if (likely(tree->nr_cuts == 0)) return false;
  const uint32_t i = cut_of(tree, kref(rec->key, rec->klen));
  return i < tree->nr_cuts && tree->cuts[i].seq > place;
}
