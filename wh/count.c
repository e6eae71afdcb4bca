// SPDX-License-Identifier: Apache-2.0
#include "wh.h"
#include "wh/state.h"

#define AHEAD 8u  // leaves to prefetch

struct range {
  struct kref low, high;
  uint64_t low8, high8;  // wh_key8
};

enum place { OUTSIDE, INSIDE, PARTLY };

// Whether the leaf's range ends at the key or before it.
static bool ends_by(const struct wh_leaf *l, struct kref key, uint64_t k8) {
  if (l->end8 != k8) return l->end8 < k8;
  const struct wh_leaf *const next = wh_leaf_next(l);
  return next && wh_leaf_cmp(next, key, k8) <= 0;
}

static enum place place_of(const struct range *r, const struct wh_leaf *l) {
  if (r->high.ptr && wh_leaf_cmp(l, r->high, r->high8) >= 0) return OUTSIDE;
  if (ends_by(l, r->low, r->low8)) return OUTSIDE;
  return wh_leaf_cmp(l, r->low, r->low8) >= 0 && (!r->high.ptr || ends_by(l, r->high, r->high8)) ? INSIDE : PARTLY;
}

// A number below n, a power of two. The same numbers come in each sample.
static uint32_t any_below(struct wh_sample *s, uint32_t n) {
  s->random = s->random * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(s->random >> 33) & (n - 1);
}

// Takes an entry. One of each stride is taken, at any place in it: keys that have a period would otherwise be sampled
// at one point of it. When the sample is full, one of two entries goes, and the stride doubles.
static void take(struct wh_sample *s, const struct wh_entry *e) {
  if (s->nr_taken == WH_SAMPLE) {
    const uint32_t half = s->stride;
    for (uint32_t i = 0; i < WH_SAMPLE / 2; i++) s->taken[i] = s->taken[2 * i + any_below(s, 2)];
    s->nr_taken = WH_SAMPLE / 2;
    s->stride *= 2;
    if (any_below(s, 2)) {  // it lies in the first half of a stride: one of the second half comes in its place
      s->next = s->seen / s->stride * s->stride + half + any_below(s, half);
      return;
    }
  }
  s->taken[s->nr_taken++] = e;
  s->next = (s->seen / s->stride + 1) * s->stride + any_below(s, s->stride);
}

// Adds a leaf's entries.
static void look(struct wh_sample *s, const struct range *r, const struct wh_leaf *l, enum place place) {
  const uint32_t n = atomic_load_explicit(&l->count, memory_order_acquire), tombs = wh_leaf_tombs_counted(l);
  s->leaves++;
  if (place == INSIDE) {
    const uint64_t from = s->seen;
    while (s->next < from + n) {
      s->seen = s->next;
      take(s, wh_leaf_entry(l, (uint32_t)(s->next - from)));
    }
    s->seen = from + n;
    s->tombs += tombs < n ? tombs : n;
    return;
  }
  for (uint32_t i = 0; i < n; i++) {
    const struct wh_entry *const e = wh_leaf_entry(l, i);
    const struct kref key = wh_entry_key(e);
    if (kv_cmp(key, r->low) < 0 || (r->high.ptr && kv_cmp(key, r->high) >= 0)) continue;
    if (s->next == s->seen) take(s, e);
    s->seen++;
    s->tombs += wh_entry_tomb(e);
  }
}

// Looks at all leaves of the range. False: they are more than `most`.
static bool walk(const struct wh *wh, const struct range *r, uint32_t most, struct wh_sample *s) {
  *s = (struct wh_sample){.stride = 1, .whole = true};
  const struct wh_leaf *l = wh_locate(wh, wh_hint(wh, r->low, r->low8), r->low, r->low8);
  for (; l; l = wh_leaf_next(l)) {
    const enum place place = place_of(r, l);
    if (place == OUTSIDE && s->leaves) break;  // the first leaf may have been cut meanwhile
    if (s->leaves == most) return false;
    if (place != OUTSIDE) look(s, r, l, place);
    else if (r->high.ptr && wh_leaf_cmp(l, r->high, r->high8) >= 0) break;
  }
  s->nr = s->seen;
  return true;
}

// The i-th leaf of the guide: its items [first, last], then its further items. NULL: none of its own.
static const struct wh_leaf *guide_leaf(const struct guide *g, uint32_t first, uint32_t last, uint32_t i) {
  const uint32_t nr = last - first + 1;
  return atomic_load_explicit(i < nr ? &g->items[first + i] : &g->more[i - nr], memory_order_acquire);
}

// Looks at every step-th leaf that the guide has of the range (W13).
static void skim(const struct guide *g, const struct range *r, uint32_t first, uint32_t last, struct wh_sample *s) {
  const uint32_t items = last - first + 1, nr = items + atomic_load_explicit(&g->nr_more, memory_order_acquire),
                 step = (nr + WH_SAMPLE_LEAVES - 1) / WH_SAMPLE_LEAVES;
  *s = (struct wh_sample){.stride = 1};
  for (uint32_t i = step / 2; i < nr; i += step) {
    if (i + AHEAD * step < nr) prefetch(guide_leaf(g, first, last, i + AHEAD * step));
    const struct wh_leaf *const l = guide_leaf(g, first, last, i);
    if (!l || (i < items && !kv_eq(l->anchor, anchors_at(&g->anchors, first + i)))) continue;
    const enum place place = place_of(r, l);
    if (place != OUTSIDE) look(s, r, l, place);
  }
  s->nr = s->seen * step;
  s->tombs *= step;
}

void wh_sample(const struct wh *wh, struct kref low, struct kref high, struct wh_sample *out) {
  struct range r = {.low = low.ptr ? low : kref("", 0), .high = high};
  r.low8 = wh_key8(r.low, 0);
  r.high8 = high.ptr ? wh_key8(high, 0) : 0;
  const struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_acquire);
  if (!g) {
    (void)walk(wh, &r, UINT32_MAX, out);
    return;
  }
  const uint32_t first = anchors_find(&g->anchors, r.low),
                 last = high.ptr ? anchors_find(&g->anchors, high) : g->nr - 1;
  if (last - first < WH_SAMPLE_LEAVES && walk(wh, &r, WH_SAMPLE_LEAVES, out)) return;
  skim(g, &r, first, last, out);
  const uint64_t all = wh_count(wh);
  if (low.ptr || high.ptr || out->nr == 0) return;
  out->tombs = (uint64_t)((double)out->tombs * (double)all / (double)out->nr);
  out->nr = all;
}

bool wh_entry_tomb(const struct wh_entry *e) {
  const struct wh_ver *const v = wh_entry_newest(e);
  return !v || wh_ver_tomb(v);
}

bool wh_entry_record(const struct wh_entry *e, uint64_t moment, struct kv_rec *rec_out) {
  const struct wh_ver *const v = wh_ver_seen(wh_entry_newest(e), moment);
  if (!v) return false;
  wh_ver_value(v, rec_out);
  rec_out->key = e->key;
  rec_out->klen = e->klen;
  return true;
}
