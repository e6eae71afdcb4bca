// SPDX-License-Identifier: Apache-2.0
#include "remix/narrow.h"

#include <assert.h>

#include "remix/seg.h"

// The layout of a narrow image: cursor offsets have as many bytes as the longest run needs.
static struct remix_layout narrow_layout(const struct remix *x) {
  sst_pos most = 0;
  for (uint32_t r = 0; r < x->nr_runs; r++)
    if (sst_end(x->runs[r]) > most) most = sst_end(x->runs[r]);
  return remix_layout_of(x->nr_runs, x->tags, true, most <= 0xFFFF ? 2 : most <= 0xFFFFFF ? 3 : 4);
}

// Bytes of the ends of the anchors, and of the anchors.
static size_t anchors_size(const struct remix *x) {
  const struct anchors *const a = &x->index->anchors;
  return 4 * ((size_t)x->nr_segs + 1) + load32le(a->offs + 4 * (size_t)x->nr_segs);
}

static size_t wide_at(const struct remix *x, size_t head, uint32_t stride) {
  return align_up(head + (size_t)x->nr_segs * stride + anchors_size(x), BLIND_NARROW);
}

size_t remix_narrow_size(const struct remix *x, size_t head) {
  const struct remix_index *const ix = x->index;
  const struct remix_layout lay = narrow_layout(x);
  uint32_t wide = 0;
  assert(!ix->lay.narrow);
  for (uint32_t i = 0; i < x->nr_segs; i++) wide += !blind_near(seg_blind(ix, seg_at(ix, i)));
  if (wide > x->nr_segs / NARROW_SHARE) return 0;
  return wide_at(x, head, lay.stride) + (size_t)wide * BLIND_WIDE;
}

static void narrow_bits(uint8_t *restrict to, const uint8_t *restrict wide) {
  for (uint32_t i = 0; i < REMIX_SEG; i++) to[i] = wide[2 * i];
}

void remix_narrow(struct remix *x, size_t head, uint8_t *to) {
  struct remix_index *const ix = x->index;
  const struct remix_layout lay = narrow_layout(x);
  uint8_t *const segs = to + head, *const offs = segs + (size_t)x->nr_segs * lay.stride;
  uint8_t *const list = to + wide_at(x, head, lay.stride);
  uint32_t wide = 0;
  memcpy(to, x->image, head);
  for (uint32_t i = 0; i < x->nr_segs; i++) {
    const uint8_t *const q = seg_at(ix, i);
    const struct blind bits = seg_blind(ix, q);
    uint8_t *const p = segs + (size_t)i * lay.stride;
    // copies of fixed sizes: calls for a few bytes cost more
    if (x->tags) memcpy(p, q, REMIX_SEG);
    memcpy(p + lay.sel, q + lay.sel, REMIX_SEG);
    memcpy(p + lay.head, q + lay.head, REMIX_SEG_HEAD);
    // each offset overwrites what the one before has written too much, and the bits follow
    for (uint32_t r = 0; r < x->nr_runs; r++) store32le(p + lay.offs + lay.off_size * r, seg_off(ix, q, r));
    memset(p + lay.dbits + BLIND_NARROW, 0, lay.stride - lay.dbits - BLIND_NARROW);
    if (likely(blind_near(bits))) {
      narrow_bits(p + lay.dbits, bits.bits);
      continue;
    }
    memset(p + lay.dbits, 0, BLIND_NARROW);
    p[lay.head + REMIX_SEG_FLAGS] |= REMIX_SEG_WIDE;
    store32le(p + lay.dbits, wide);
    memcpy(list + (size_t)wide++ * BLIND_WIDE, bits.bits, BLIND_WIDE);
  }
  const size_t anchors = anchors_size(x);
  memcpy(offs, ix->anchors.offs, anchors);
  memset(offs + anchors, 0, (size_t)(list - offs) - anchors);
  x->image = to;
  x->image_size = (size_t)(list - to) + (size_t)wide * BLIND_WIDE;
  ix->lay = lay;
  ix->segs = segs;
  ix->wide = list;
  ix->anchors.offs = offs;
  ix->anchors.bytes = offs + 4 * ((size_t)x->nr_segs + 1);
}

void remix_widen(struct blind b, uint8_t *to) {
  if (unlikely(b.wide)) {
    memcpy(to, b.bits, BLIND_WIDE);
    return;
  }
  for (uint32_t i = 0; i < REMIX_SEG; i++) {
    to[2 * i] = b.bits[i];
    to[2 * i + 1] = b.bits[i] == BLIND_SAME_NARROW ? BLIND_SAME_NARROW : 0;
  }
}

size_t remix_plain_size(const struct remix *x) {
  const struct remix_layout lay = remix_layout(x->nr_runs, x->tags);
  return remix_segs_off(x->nr_runs) + (size_t)x->nr_segs * lay.stride + anchors_size(x) + REMIX_SUM;
}

void remix_plain(const struct remix *x, uint8_t *to) {
  const struct remix_index *const ix = x->index;
  const struct remix_layout lay = remix_layout(x->nr_runs, x->tags);
  const size_t head = remix_segs_off(x->nr_runs);
  assert(x->image && !x->of);
  memcpy(to, x->image, head);
  for (uint32_t i = 0; i < x->nr_segs; i++) {
    const uint8_t *const q = seg_at(ix, i);
    uint8_t *const p = to + head + (size_t)i * lay.stride;
    memcpy(p, q, lay.offs);
    for (uint32_t r = 0; r < x->nr_runs; r++) store32le(p + lay.offs + 4 * r, seg_off(ix, q, r));
    p[lay.head + REMIX_SEG_FLAGS] &= (uint8_t)~REMIX_SEG_WIDE;
    remix_widen(seg_blind(ix, q), p + lay.dbits);
    memset(p + lay.dbits + BLIND_WIDE, 0, lay.stride - lay.dbits - BLIND_WIDE);
  }
  uint8_t *const offs = to + head + (size_t)x->nr_segs * lay.stride;
  memcpy(offs, ix->anchors.offs, anchors_size(x));
  memset(offs + anchors_size(x), 0, REMIX_SUM);
}
