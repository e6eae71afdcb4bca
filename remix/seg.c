// SPDX-License-Identifier: Apache-2.0
#include "remix/seg.h"

sst_pos seg_off_walk(const struct remix *x, const uint8_t *s, uint32_t run) {
  const struct remix_index *const ix = x->index;
  uint32_t passed = 0;
  do {
    s -= ix->lay.stride;
    passed += set32_count(sels_of(seg_sels(ix, s), run) & set32_below(seg_nr(ix, s)));
  } while (s[ix->lay.offs + run] == REMIX_WALK);
  return sst_advance(x->runs[run], seg_off(x, s, run), passed);
}

enum remixdb_status seg_search_binary(const struct remix *x, const uint8_t *p, struct kref key, seg_read_fn read,
                                      void *arg, struct seg_pos_found *out, struct kv_rec *rec_out) {
  const struct remix_index *const ix = x->index;
  uint8_t room[REMIX_SEG];
  const uint8_t *const sel = seg_bytes(ix, p, room);
  uint32_t lo = 0, hi = seg_nr(ix, p);
  out->equal = false;
  while (lo < hi) {
    uint32_t mid = (lo + hi) / 2;
    while (mid > lo && sel[mid] & REMIX_OLD) mid--;  // search for the newest version of a key only
    const enum remixdb_status s = read(arg, p, mid, rec_out);
    if (s != REMIXDB_OK) return s;
    REMIX_COUNT(key_compares);
    const int r = kv_cmp(kref(rec_out->key, rec_out->klen), key);
    if (r == 0) {
      out->at = mid;
      out->equal = true;
      return REMIXDB_OK;
    }
    if (r > 0) {
      hi = mid;
    } else {
      lo = mid + 1;
      while (lo < hi && sel[lo] & REMIX_OLD) lo++;
    }
  }
  out->at = lo;
  return REMIXDB_OK;
}
