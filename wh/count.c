// SPDX-License-Identifier: Apache-2.0
#include "wh.h"
#include "wh/state.h"

// Takes every stride-th entry. When the sample is full, every other one goes, and the stride doubles.
static void take(struct wh_sample *s, const struct wh_entry *e) {
  if (s->nr++ % s->stride) return;
  if (s->nr_taken == WH_SAMPLE) {
    for (uint32_t i = 0; i < WH_SAMPLE / 2; i++) s->taken[i] = s->taken[2 * i];
    s->nr_taken = WH_SAMPLE / 2;
    s->stride *= 2;
    if ((s->nr - 1) % s->stride) return;
  }
  s->taken[s->nr_taken++] = e;
}

void wh_sample(const struct wh *wh, struct kref low, struct kref high, struct wh_sample *out) {
  const struct kref from = low.ptr ? low : kref("", 0);
  const uint64_t k8 = wh_key8(from, 0);
  *out = (struct wh_sample){.stride = 1};
  for (const struct wh_leaf *l = wh_locate(wh, wh_hint(wh, from, k8), from, k8), *next; l; l = next) {
    next = wh_leaf_next(l);
    if (high.ptr && kv_cmp(l->anchor, high) >= 0) return;
    const bool inside = kv_cmp(l->anchor, from) >= 0 && (!high.ptr || (next && kv_cmp(next->anchor, high) <= 0));
    const uint32_t n = atomic_load_explicit(&l->count, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) {
      const struct wh_entry *const e = wh_leaf_entry(l, i);
      const struct kref key = inside ? kref(NULL, 0) : wh_entry_key(e);
      if (inside || (kv_cmp(key, from) >= 0 && (!high.ptr || kv_cmp(key, high) < 0))) take(out, e);
    }
  }
}

bool wh_entry_record(const struct wh_entry *e, uint64_t moment, struct kv_rec *rec_out) {
  const struct wh_ver *const v = wh_ver_seen(wh_entry_newest(e), moment);
  if (!v) return false;
  wh_ver_value(v, rec_out);
  rec_out->key = e->key;
  rec_out->klen = e->klen;
  return true;
}
