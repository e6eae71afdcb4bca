// SPDX-License-Identifier: Apache-2.0
//
// The sequence numbers that tables have for keys. A table has no index of its own, so a search halves the blocks by
// their first keys. Those keys stay in memory, up to a bound.
#include "admin/repair_numbers.h"

#include <stdlib.h>

#include "table/format.h"

#define FIRSTS_MAX ((size_t)64 << 20)  // bytes of first keys in memory

// The first key of a block. key NULL: it was not read yet.
struct first {
  uint32_t block, len;
  uint8_t *key;
};

struct numbered {
  struct sst *t;
  size_t reach;  // among the tables of this tree up to this one, the one with the greatest largest key
  struct first *firsts;
  uint32_t nr;  // blocks; 0: `firsts` was not made yet
};

struct repair_numbers {
  struct repair *p;
  struct numbered *list;  // by tree and smallest key
  size_t nr;
  bool partial;
  size_t first_bytes;
};

// ---- the tables

// Tells whether the numbers of the table's records are those of writes. An ingest's are not until its commit.
static bool has_numbers(const struct sst *t) { return t->form != BLOCK_FORM_BARE && t->seq_min != FORMAT_SST_SEQ_MAX; }

static bool in_spaces(const struct numbered *n) { return n->t->flags & FORMAT_SST_FLAG_SPACES; }

static int by_place(const void *one, const void *other) {
  const struct numbered *const a = one, *const b = other;
  const int trees = in_spaces(a) - in_spaces(b);
  return trees ? trees : kv_cmp(a->t->min, b->t->min);
}

static void sort(struct repair_numbers *n) {
  qsort(n->list, n->nr, sizeof(*n->list), by_place);
  for (size_t i = 0; i < n->nr; i++) {
    struct numbered *const at = &n->list[i];
    at->reach = i;
    if (i == 0 || in_spaces(at - 1) != in_spaces(at)) continue;
    if (kv_cmp(n->list[at[-1].reach].t->max, at->t->max) > 0) at->reach = at[-1].reach;
  }
}

enum remixdb_status repair_numbers_open(struct repair *p, const uint64_t *tables, size_t nr, uint64_t above,
                                        struct repair_numbers **out) {
  struct repair_numbers *const n = *out = mem_calloc(1, sizeof(*n));
  if (!n || !(n->list = mem_calloc(nr + 1, sizeof(*n->list)))) return REMIXDB_NOMEM;
  n->p = p;
  for (size_t i = 0; i < nr; i++) {
    struct sst *t;
    const enum remixdb_status s = sst_open(&p->ctx, tables[i], &t);
    if (s == REMIXDB_NOMEM) return s;
    if (s != REMIXDB_OK || t->form == BLOCK_FORM_BARE) n->partial = true;
    if (s != REMIXDB_OK) continue;
    if (has_numbers(t) && t->seq_max > above) n->list[n->nr++].t = t;
    else sst_unref(t);
  }
  sort(n);
  return REMIXDB_OK;
}

void repair_numbers_close(struct repair_numbers *n) {
  if (!n) return;
  for (size_t i = 0; i < n->nr; i++) {
    for (uint32_t b = 0; b < n->list[i].nr; b++) mem_free(n->list[i].firsts[b].key);
    mem_free(n->list[i].firsts);
    sst_unref(n->list[i].t);
  }
  mem_free(n->list);
  mem_free(n);
}

bool repair_numbers_partial(const struct repair_numbers *n) { return n->partial; }

// ---- one key

static enum remixdb_status list_blocks(struct numbered *of) {
  const struct sst *const t = of->t;
  if (of->nr) return REMIXDB_OK;
  if (!(of->firsts = mem_calloc(t->nr_pages, sizeof(*of->firsts)))) return REMIXDB_NOMEM;
  for (uint32_t block = 0; block < t->nr_pages; block += sst_block_pages(t, block)) of->firsts[of->nr++].block = block;
  return REMIXDB_OK;
}

// Compares the first key of a block with a key.
static enum remixdb_status compare_first(struct repair_numbers *n, struct numbered *of, uint32_t at, struct kref key,
                                         struct sst_hold *h, int *out) {
  struct first *const f = &of->firsts[at];
  struct kv_rec rec;
  if (f->key) {
    *out = kv_cmp(kref(f->key, f->len), key);
    return REMIXDB_OK;
  }
  const enum remixdb_status s = sst_read(of->t, sst_pos_make(f->block, 0), false, h, &rec);
  if (s != REMIXDB_OK) return s;
  *out = kv_cmp(kref(rec.key, rec.klen), key);
  if (n->first_bytes + rec.klen > FIRSTS_MAX) return REMIXDB_OK;
  if (!(f->key = mem_alloc(rec.klen + 1u))) return REMIXDB_NOMEM;
  memcpy(f->key, rec.key, f->len = rec.klen);
  n->first_bytes += rec.klen;
  return REMIXDB_OK;
}

// Finds the key in the block. *seq_out: the number of its record; unchanged if there is none.
static enum remixdb_status find_in_block(struct sst *t, uint32_t block, struct kref key, struct sst_hold *h,
                                         uint64_t *seq_out) {
  uint32_t lo = 0, hi = t->nr_recs[block];
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    struct kv_rec rec;
    const enum remixdb_status s = sst_read(t, sst_pos_make(block, mid), false, h, &rec);
    if (s != REMIXDB_OK) return s;
    const int c = kv_cmp(kref(rec.key, rec.klen), key);
    if (c == 0) {
      *seq_out = sst_seq(t, &rec);
      return REMIXDB_OK;
    }
    if (c < 0) lo = mid + 1;
    else hi = mid;
  }
  return REMIXDB_OK;
}

static enum remixdb_status find_in_table(struct repair_numbers *n, struct numbered *of, struct kref key,
                                         struct sst_hold *h, uint64_t *seq_out) {
  enum remixdb_status s = list_blocks(of);
  uint32_t lo = 0, hi = of->nr;  // the key is in no block from hi on
  while (s == REMIXDB_OK && hi - lo > 1) {
    const uint32_t mid = lo + (hi - lo) / 2;
    int c = 0;
    if ((s = compare_first(n, of, mid, key, h, &c)) != REMIXDB_OK) break;
    if (c <= 0) lo = mid;
    else hi = mid;
  }
  return s == REMIXDB_OK ? find_in_block(of->t, of->firsts[lo].block, key, h, seq_out) : s;
}

// Returns how many tables stand before the key's place in the list.
static size_t place_of(const struct repair_numbers *n, bool spaces, struct kref key) {
  size_t lo = 0, hi = n->nr;
  while (lo < hi) {
    const size_t mid = lo + (hi - lo) / 2;
    const int trees = in_spaces(&n->list[mid]) - spaces;
    if (trees < 0 || (trees == 0 && kv_cmp(n->list[mid].t->min, key) <= 0)) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

enum remixdb_status repair_numbers_find(struct repair_numbers *n, const struct kv_rec *rec, uint64_t *seq_out) {
  const struct kref key = kref(rec->key, rec->klen);
  const bool spaces = rec->kind & KV_SPACES;
  *seq_out = 0;
  for (size_t i = place_of(n, spaces, key); i-- > 0;) {
    struct numbered *const of = &n->list[i];
    if (in_spaces(of) != spaces || kv_cmp(n->list[of->reach].t->max, key) < 0) break;
    if (of->t->seq_max <= *seq_out || kv_cmp(of->t->max, key) < 0) continue;
    struct sst_hold h = {0};
    uint64_t seq = 0;
    epoch_enter(&n->p->epoch, &n->p->slot);
    const enum remixdb_status s = find_in_table(n, of, key, &h, &seq);
    sst_hold_fini(&h);
    epoch_exit(&n->p->slot);
    if (s == REMIXDB_NOMEM) return s;
    if (seq > *seq_out) *seq_out = seq;  // a block that cannot be read has no record that was kept
  }
  return REMIXDB_OK;
}

bool repair_numbers_newer(const struct repair_numbers *n, const struct kv_rec *range) {
  const struct kref from = kref(range->key, range->klen), to = kref(range->val, range->vlen);
  for (size_t i = 0; i < n->nr; i++) {
    const struct sst *const t = n->list[i].t;
    if (t->seq_max <= range->seq || in_spaces(&n->list[i]) != !!(range->kind & KV_SPACES)) continue;
    if (kv_cmp(t->max, from) >= 0 && (to.len == 0 || kv_cmp(t->min, to) < 0)) return true;
  }
  return false;
}
