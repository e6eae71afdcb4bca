// SPDX-License-Identifier: Apache-2.0
#include "remix/remix.h"

#include <assert.h>

#include "base/blind.h"
#include "remix/paged.h"
#include "remix/seg.h"

struct remix_counters remix_counters;

_Static_assert(REMIX_SEG == 32, "a set of entries has 32 bits");

// The function by which seg_search_binary reads keys in a get. One hold serves all runs.
struct get_reader {
  const struct remix *x;
  struct sst_hold *hold;
};

static enum remixdb_status get_entry(void *arg, const uint8_t *p, uint32_t i, struct kv_rec *rec_out) {
  const struct get_reader *const r = arg;
  return entry_read(r->x, p, i, 1, r->hold, rec_out);
}

// A get without tags. If the candidate is not live, the get need not read it, because no other entry can be the key.
static enum remixdb_status get_blind(const struct remix *x, const uint8_t *p, struct kref key, struct sst_hold *h,
                                     struct kv_rec *rec_out) {
  const struct remix_index *const ix = x->index;
  enum remixdb_status s;
  if (unlikely(seg_far(ix, p))) {
    struct seg_pos_found spot;
    struct get_reader reader = {x, h};
    s = seg_search_binary(x, p, key, get_entry, &reader, &spot, rec_out);
    return s == REMIXDB_OK && !(spot.equal && seg_live(ix, p) >> spot.at & 1) ? REMIXDB_NOTFOUND : s;
  }
  const uint32_t cand = blind_candidate(seg_blind(ix, p), seg_nr(ix, p), seg_base(ix, p), key);
  if (!(seg_live(ix, p) >> cand & 1)) return REMIXDB_NOTFOUND;
  s = entry_read(x, p, cand, 1, h, rec_out);
  if (s != REMIXDB_OK) return s;
  REMIX_COUNT(key_compares);
  return kv_eq(kref(rec_out->key, rec_out->klen), key) ? REMIXDB_OK : REMIXDB_NOTFOUND;
}

// The blind search leaves at most one of the entries with the key's tag; the other entries cannot be the key.
static __attribute__((noinline)) uint32_t only_candidate(const struct remix_index *ix, const uint8_t *s,
                                                         struct kref key, uint32_t tagged) {
  if (unlikely(seg_far(ix, s))) return tagged;
  return tagged & 1u << blind_candidate(seg_blind(ix, s), seg_nr(ix, s), seg_base(ix, s), key);
}

static inline bool key_bit(struct kref key, uint32_t base, uint32_t dbit) {
  const uint32_t byte = base + (dbit >> 4), b = dbit & 15;
  return byte < key.len && (b == 0 || key.ptr[byte] >> (8 - b) & 1);
}

// Tells whether the key has the bits in which entry i, a newest version, differs from its neighbours. Three of four
// other keys do not have these bits, so the check saves reading a block from disk. The blind search would exclude
// nearly all other keys, but it costs a large part of the time of a read from the page cache.
static bool entry_fits(const struct remix_index *ix, const uint8_t *s, struct kref key, uint32_t i) {
  const struct blind dbits = seg_blind(ix, s);
  const uint32_t base = seg_base(ix, s), behind = ~blind_same(dbits) & set32_above(i) & set32_below(seg_nr(ix, s));
  if (unlikely(seg_far(ix, s))) return true;
  if (i > 0 && !key_bit(key, base, blind_bit(dbits, i))) return false;
  return behind == 0 || !key_bit(key, base, blind_bit(dbits, set32_first(behind)));
}

const uint8_t *remix_get_begin(const struct remix *x, struct kref key) {
  const struct remix_index *const ix = x->index;
  if (unlikely(x->nr_segs == 0)) return NULL;
  return seg_prefetch(ix, anchors_find(&ix->anchors, key));
}

void remix_quick_set(struct remix_quick *q, const struct remix *x) {
  *q = (struct remix_quick){0};
  if (!x || x->nr_segs == 0) return;
  anchors_quick_set(&q->anchors, &x->index->anchors);
  assert(x->index->lay.stride <= REMIX_QUICK_STRIDE);
  q->anchors.owned = x->index->lay.stride | (uint32_t)x->index->lay.row << REMIX_QUICK_ROW;
  q->segs = x->index->segs;
}

enum remixdb_status remix_get(struct remix *x, struct kref key, uint64_t hash, struct sst_hold *h,
                              struct kv_rec *rec_out) {
  return remix_get_end(x, remix_get_begin(x, key), key, hash, h, rec_out);
}

static __attribute__((noinline)) enum remixdb_status get_paged(const struct remix *x, struct kref key, uint64_t hash,
                                                               struct sst_hold *h, struct kv_rec *rec_out) {
  struct remix *page;
  const enum remixdb_status s = remix_page_get(x, key, hash, true, &page);
  if (s != REMIXDB_OK) return s;
  return page ? remix_get(page, key, hash, h, rec_out) : REMIXDB_NOTFOUND;
}

enum remixdb_status remix_get_end(struct remix *x, const uint8_t *p, struct kref key, uint64_t hash, struct sst_hold *h,
                                  struct kv_rec *rec_out) {
  const struct remix_index *const ix = x->index;
  if (unlikely(!p)) return x->paged ? get_paged(x, key, hash, h, rec_out) : REMIXDB_NOTFOUND;
  if (!x->tags) return get_blind(x, p, key, h, rec_out);
  uint32_t m = set32_eq8(p, 0xFF, remix_tag(hash));
  if (m == 0) return REMIXDB_NOTFOUND;
  const struct seg_sels sels = seg_sels(ix, p);
  m &= seg_live(ix, p);
  // if several have the tag, half of the first reads would be in vain; and a young view lacks most keys
  const bool sought = unlikely(m & (m - 1)) || (unlikely(ix->young) && m);
  if (unlikely(sought)) m = only_candidate(ix, p, key, m);
  while (m) {
    const uint32_t i = set32_first(m), run = sels_run(sels, i);
    struct sst *const t = x->runs[run];
    const sst_pos pos = sels_place(x, p, sels, run, i);
    if (!sought && unlikely(missing(h, t, sst_pos_block(pos))) && !entry_fits(ix, p, key, i))
      break;  // the only candidate
    REMIX_COUNT(key_reads);
    const enum remixdb_status s = sst_read_lone(t, pos, h, rec_out);
    if (unlikely(s != REMIXDB_OK)) return s;
    REMIX_COUNT(key_compares);
    if (likely(kv_eq(kref(rec_out->key, rec_out->klen), key))) return REMIXDB_OK;
    m &= m - 1;
  }
  return REMIXDB_NOTFOUND;
}

// ---- many keys at once

// Reads the pages of these keys together if the first one's is missing.
static void probe_pages(const struct remix_probe *p, const uint8_t *which, uint32_t nr) {
  struct remix_need needs[REMIX_NEEDS_MAX];
  if (nr > REMIX_NEEDS_MAX) nr = REMIX_NEEDS_MAX;
  for (uint32_t i = 0; i < nr; i++) {
    const struct remix_probe *const w = &p[which[i]];
    needs[i] = (struct remix_need){w->x, w->key, w->hash};
    if (i == 0 && !remix_page_lacks(needs)) return;
  }
  remix_pages_together(needs, nr);
}

// Goes on in the page of key p[which[at]], of nr keys. Returns the segment, or NULL: the key is in no page, or the page
// cannot be read now, and remix_get will read it or find the failure again.
static __attribute__((noinline)) const uint8_t *probe_page(struct remix_probe *p, const uint8_t *which, uint32_t at,
                                                           uint32_t nr, bool wait) {
  struct remix_probe *const w = &p[which[at]];
  struct remix *page;
  if (!w->x->paged) return NULL;
  if (nr - at > 1) probe_pages(p, which + at, nr - at);
  w->search = remix_page_get(w->x, w->key, w->hash, wait, &page) != REMIXDB_OK;
  if (w->search || !page) return NULL;
  w->x = page;
  return seg_at(page->index, anchors_find(&page->index->anchors, w->key));
}

// Group prefetching: the anchors of all keys (anchors_find_many), then the lines of all segments.
void remix_probe_find(struct remix_probe *p, const uint8_t *which, uint32_t nr, bool wait) {
  struct anchors_lookup wants[ANCHORS_MANY_MAX];
  uint32_t found[ANCHORS_MANY_MAX];
  for (uint32_t from = 0; from < nr; from += ANCHORS_MANY_MAX) {
    const uint32_t n = nr - from < ANCHORS_MANY_MAX ? nr - from : ANCHORS_MANY_MAX;
    for (uint32_t i = 0; i < n; i++) {
      const struct remix_probe *const w = &p[which[from + i]];
      wants[i] = (struct anchors_lookup){&w->x->index->anchors, w->key};
    }
    anchors_find_many(wants, n, found);
    for (uint32_t i = 0; i < n; i++) {
      struct remix_probe *const w = &p[which[from + i]];
      w->search = w->several = false;
      w->set = 0;
      if (likely(w->x->nr_segs != 0)) {
        w->seg = seg_at(w->x->index, found[i]);
        if (w->x->index->lay.row) seg_row_prefetch(w->x->index, found[i]);
      } else {
        w->seg = probe_page(p, which, from + i, nr, wait);
      }
    }
  }
  for (uint32_t i = 0; i < nr; i++) {
    const struct remix_probe *const w = &p[which[i]];
    if (!w->seg) continue;
    const struct remix_layout *const lay = &w->x->index->lay;
    const uint32_t needed = w->x->tags && !w->x->index->young ? lay->dbits : lay->stride;
    for (uint32_t o = 0; o < needed; o += CACHE_LINE) prefetch(w->seg + o);
    prefetch(w->seg + needed - 1);  // a segment need not begin at a cache line
  }
  for (uint32_t i = 0; i < nr; i++) {
    struct remix_probe *const w = &p[which[i]];
    const uint8_t *const s = w->seg;
    if (!s) continue;
    const struct remix_index *const ix = w->x->index;
    if (likely(w->x->tags)) {
      w->set = set32_eq8(s, 0xFF, remix_tag(w->hash)) & seg_live(ix, s);
      w->several = w->set & (w->set - 1);
      if (unlikely(ix->young) && w->set) w->set = only_candidate(ix, s, w->key, w->set);
    } else if (unlikely(seg_far(ix, s))) {
      w->search = true;
    } else {
      w->set = 1u << blind_candidate(seg_blind(ix, s), seg_nr(ix, s), seg_base(ix, s), w->key) & seg_live(ix, s);
    }
  }
}

bool remix_probe_fits(const struct remix_probe *p) {
  const struct remix_index *const ix = p->x->index;
  if (!p->x->tags) return true;
  if (unlikely(p->several)) return only_candidate(ix, p->seg, p->key, 1u << p->entry) != 0;
  return entry_fits(ix, p->seg, p->key, p->entry);
}

void remix_probe_next(struct remix_probe *p, const uint8_t *which, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) {
    struct remix_probe *const w = &p[which[i]];
    const struct remix_index *const ix = w->x->index;
    const struct seg_sels sels = seg_sels(ix, w->seg);
    const uint32_t entry = set32_first(w->set), run = sels_run(sels, entry);
    w->set &= w->set - 1;
    w->entry = entry;
    w->sst = w->x->runs[run];
    w->pos = seg_off(w->x, w->seg, run);
    w->at = set32_count(sels_of(sels, run) & set32_below(entry));
    prefetch(&w->sst->nr_recs[sst_pos_block(w->pos)]);
  }
  for (uint32_t i = 0; i < nr; i++) {
    struct remix_probe *const w = &p[which[i]];
    REMIX_COUNT(key_reads);
    w->pos = sst_advance(w->sst, w->pos, w->at);
    if (w->sst->cache.slots) prefetch((const void *)&w->sst->cache.slots[sst_pos_block(w->pos)]);
  }
}

void remix_watch(struct remix *x, const struct remix_watch *w) { x->watch = w; }

void remix_add_debt(struct remix *x, uint64_t scan_debt) {
  if (unlikely(x->of != NULL)) x = x->of;
  const uint64_t sum = atomic_fetch_add_explicit(&x->scan_debt, scan_debt, memory_order_relaxed) + scan_debt;
  if (x->watch && sum >= atomic_load_explicit(&x->scan_debt_due, memory_order_relaxed)) x->watch->due(x->watch->arg, x);
}

// ---- walking

static inline void walk_seg(struct remix_walk *w) {
  if (!remix_walk_valid(w)) return;
  const struct remix_index *const ix = w->x->index;
  const uint8_t *const s = seg_at(ix, w->seg);
  w->at = 0;
  w->nr = seg_nr(ix, s);
  w->sel = seg_bytes(ix, s, w->room);
  w->tag = w->x->tags ? s : NULL;
}

void remix_walk_init(struct remix_walk *w, const struct remix *x) {
  *w = (struct remix_walk){.x = x};
  walk_seg(w);
}

void remix_walk_next(struct remix_walk *w) {
  if (++w->at < w->nr) return;
  w->seg++;
  walk_seg(w);
}

// The base is the lowest byte of the segment's discriminating bits; without any, it is 0.
static bool base_is_right(const struct remix_index *ix, const uint8_t *s, uint32_t nr) {
  bool any = false, lowest = false;
  for (uint32_t i = 1; i < nr; i++) {
    const uint32_t d = blind_bit(seg_blind(ix, s), i);
    any = any || d != BLIND_SAME;
    lowest = lowest || d >> 4 == 0;
  }
  return any ? lowest : seg_base(ix, s) == 0;
}

const char *remix_walk_wrong(const struct remix_walk *w, struct kref before, struct kref key) {
  const struct remix_index *const ix = w->x->index;
  const uint8_t *const s = seg_at(ix, w->seg);
  const uint32_t lcp = kv_lcp_from(before, key, 0);
  if (w->at == 0) {
    const uint32_t len = anchors_len(&ix->anchors, w->seg);
    if (!base_is_right(ix, s, w->nr)) return "wrong base";
    if (w->seg == 0) return NULL;
    const bool begins = len == lcp + 1 && len <= key.len && anchors_cmp(&ix->anchors, w->seg, kref(key.ptr, len)) == 0;
    return begins ? NULL : "wrong anchor";
  }
  const uint32_t d = blind_bit(seg_blind(ix, s), w->at), base = seg_base(ix, s);
  static const char wrong[] = "wrong discriminating bit";
  if (kv_eq(before, key)) return d == BLIND_SAME ? NULL : wrong;
  if (lcp < base || lcp >= key.len) return wrong;
  if (lcp - base > BLIND_BYTE_MAX) return d == BLIND_FAR ? NULL : wrong;
  // after the end of the key before it is the leading bit; else the highest bit that differs
  const uint32_t bit = lcp == before.len ? 0 : (uint32_t)__builtin_clz((uint32_t)(before.ptr[lcp] ^ key.ptr[lcp])) - 23;
  return d == ((lcp - base) << 4 | bit) ? NULL : wrong;
}

uint32_t remix_walk_lcp(const struct remix_walk *w, bool *known_out) {
  const struct remix_index *const ix = w->x->index;
  *known_out = true;
  // An anchor is one byte longer than the prefix that its key shares with the key before (R3).
  if (w->at == 0) return w->seg ? anchors_len(&ix->anchors, w->seg) - 1 : 0;
  const uint8_t *const s = seg_at(ix, w->seg);
  const uint32_t d = blind_bit(seg_blind(ix, s), w->at);
  if (d == BLIND_SAME) return REMIX_SAME;
  *known_out = d != BLIND_FAR;
  return seg_base(ix, s) + (d >> 4);
}
