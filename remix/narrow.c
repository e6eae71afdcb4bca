// SPDX-License-Identifier: Apache-2.0
#include "remix/narrow.h"

#include <assert.h>

#include "remix/seg.h"

// A cursor offset's distance from the block of its group's row (N4); REMIX_WALK: it does not fit.
static uint32_t offset_distance(uint32_t block, sst_pos off, uint32_t radix) {
  const uint32_t blocks = sst_pos_block(off) - block;
  const uint64_t distance = (uint64_t)blocks * radix + sst_pos_idx(off);
  return distance < REMIX_WALK ? (uint32_t)distance : REMIX_WALK;
}

// The radix of a view's distances, from 2 on.
static uint32_t offsets_radix(const struct remix *x) {
  const struct remix_index *const ix = x->index;
  uint32_t most = 1;
  for (uint32_t i = 0; i < x->nr_segs; i++) {
    const uint8_t *const s = seg_at(ix, i);
    for (uint32_t r = 0; r < x->nr_runs; r++) {
      const uint32_t idx = sst_pos_idx(remix_seg_off(&ix->lay, s, r));
      most = idx > most ? idx : most;
    }
  }
  return most + 1;
}

// How many offsets of the view do not fit.
static uint64_t offsets_walked(const struct remix *x, uint32_t radix) {
  const struct remix_index *const ix = x->index;
  uint64_t nr = 0;
  for (uint32_t i = 0; i < x->nr_segs; i++) {
    const uint8_t *const s = seg_at(ix, i), *const first = seg_at(ix, i - i % REMIX_GROUP);
    for (uint32_t r = 0; r < x->nr_runs; r++)
      nr += offset_distance(sst_pos_block(remix_seg_off(&ix->lay, first, r)), remix_seg_off(&ix->lay, s, r), radix) ==
            REMIX_WALK;
  }
  return nr;
}

// The widths of the cursor offsets (N1, N2).
static struct remix_offs narrow_offs(const struct remix *x) {
  sst_pos most = 0;
  for (uint32_t r = 0; r < x->nr_runs; r++)
    if (sst_end(x->runs[r]) > most) most = sst_end(x->runs[r]);
  struct remix_offs offs = {.size = most <= 0xFFFF ? 2 : most <= 0xFFFFFF ? 3 : 4};
  if (x->nr_runs < NARROW_GROUPED || sst_pos_block(most) > NARROW_BLOCKS) return offs;
  const uint32_t radix = offsets_radix(x);
  if (radix <= REMIX_WALK && offsets_walked(x, radix) <= (uint64_t)x->nr_segs * x->nr_runs / NARROW_WALKED)
    offs.radix = radix;
  return offs;
}

// Makes the cursor offsets of segment p, number i. Its head is there. first: the first segment of its group in the
// plain image.
static void narrow_seg_offs(const struct remix *x, const struct remix_layout *lay, uint32_t i, const uint8_t *q,
                            const uint8_t *first, uint8_t *p) {
  const struct remix_layout *const from = &x->index->lay;
  const uint32_t in = i % REMIX_GROUP;
  if (!lay->row) {
    // each offset overwrites what the one before has written too much, and the bits follow
    for (uint32_t r = 0; r < x->nr_runs; r++) store32le(p + lay->offs + lay->off_size * r, remix_seg_off(from, q, r));
    return;
  }
  p[lay->head + REMIX_SEG_FLAGS] |= (uint8_t)(in << REMIX_SEG_GROUP);
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    const uint32_t block = sst_pos_block(remix_seg_off(from, first, r));
    if (in == 0) store16le(p - lay->row + REMIX_BASE * r, block);
    p[lay->offs + r] = (uint8_t)offset_distance(block, remix_seg_off(from, q, r), 256u - lay->beyond);
  }
}

// How often the head of anchors with a cut is left out.
static uint32_t cut_times(const struct remix *x) { return x->nr_segs > 1 ? x->nr_segs - 1 : 0; }

// Bytes of the whole anchors, and of their ends in a plain image.
static size_t anchors_size(const struct remix *x) {
  const struct anchors *const a = &x->index->anchors;
  return 4 * ((size_t)x->nr_segs + 1) + anchors_begin(a, x->nr_segs) + (size_t)a->cut * cut_times(x);
}

// The cut of a plain image's anchors: each one keeps a byte.
static uint32_t anchors_cut(const struct remix *x) {
  const struct anchors *const a = &x->index->anchors;
  if (x->nr_segs <= 2) return 0;
  const uint32_t common = kv_lcp_from(anchors_at(a, 1), anchors_at(a, x->nr_segs - 1), 0), len = anchors_len(a, 1);
  return common < len ? common : len - 1;
}

// Where an anchor of a plain image, which has no cut yet, begins when all are cut; nr_segs: where the last one ends.
static uint32_t cut_begin(const struct remix *x, uint32_t cut, uint32_t i) {
  return anchors_begin(&x->index->anchors, i) - (i ? cut * (i - 1) : 0);
}

// Whether the ends of the anchors can be rising numbers.
static bool anchors_rise(const struct remix *x, uint32_t cut) {
  for (uint32_t i = 0; i <= x->nr_segs; i++)
    if (cut_begin(x, cut, i) - cut_begin(x, cut, i - i % RISING_LINE) > RISING_MOST) return false;
  return true;
}

// Where the parts behind the segments are in an image.
struct behind {
  size_t begin, ends, anchors, head, list;
};
static struct behind behind_segs(const struct remix *x, size_t before, const struct narrow_form *form) {
  const size_t nr = (size_t)x->nr_segs + 1;
  struct behind at;
  at.begin = before + remix_segs_size(&form->lay, x->nr_segs);
  at.ends = align_up(at.begin, _Alignof(struct rising_line));
  at.anchors = at.ends + (form->rising ? rising_lines(nr) * sizeof(struct rising_line) : 4 * nr);
  at.head = at.anchors + cut_begin(x, form->cut, x->nr_segs);
  at.list = align_up(at.head + form->cut, REMIX_LISTED);
  return at;
}

// Makes the ends of the anchors, the anchors without the head, and the head. Returns them.
static struct anchors cut_anchors(const struct remix *x, const struct narrow_form *form, uint8_t *to,
                                  const struct behind *at) {
  const struct anchors *const a = &x->index->anchors;
  struct rising_line *const rising = (struct rising_line *)(void *)(to + at->ends);
  memset(to + at->begin, 0, at->list - at->begin);
  for (uint32_t i = 0; i <= x->nr_segs; i++) {
    const uint32_t begin = cut_begin(x, form->cut, i);
    if (form->rising) rising_set(rising, i, begin);
    else store32le(to + at->ends + 4 * (size_t)i, begin);
    if (i == 0 || i == x->nr_segs) continue;  // anchor 0 is empty
    const struct kref anchor = anchors_at(a, i);
    memcpy(to + at->anchors + begin, anchor.ptr + form->cut, anchor.len - form->cut);
  }
  if (form->cut) memcpy(to + at->head, anchors_at(a, 1).ptr, form->cut);
  return (struct anchors){.nr = x->nr_segs,
                          .offs = form->rising ? NULL : to + at->ends,
                          .rising = form->rising ? rising : NULL,
                          .bytes = to + at->anchors,
                          .cut = form->cut,
                          .head = to + at->head};
}

// Makes the ends of the anchors, and the whole anchors.
static void whole_anchors(const struct remix *x, uint8_t *to) {
  const struct anchors *const a = &x->index->anchors;
  uint8_t *const p = to + 4 * ((size_t)x->nr_segs + 1);
  uint32_t at = 0;
  for (uint32_t i = 0; i < x->nr_segs; i++) {
    const uint32_t len = anchors_len(a, i);
    store32le(to + 4 * (size_t)i, at);
    anchors_copy(a, i, 0, len, p + at);
    at += len;
  }
  store32le(to + 4 * (size_t)x->nr_segs, at);
}

// Whether the selectors of a plain segment have bits that nibbles lack. Those beyond the last entry are 0.
static bool sels_marked(const uint8_t *sel) { return set32_eq8(sel, REMIX_TOMB | REMIX_EXPIRES, 0) != UINT32_MAX; }

static void narrow_bits(uint8_t *restrict to, const uint8_t *restrict wide) {
  for (uint32_t i = 0; i < REMIX_SEG; i++) to[i] = wide[2 * i];
}

// The discriminating bits of a segment as nibbles.
struct narrow_bits {
  uint16_t table;  // 0: no table has them
  uint8_t nibbles[BLIND_NIBBLES];
};

enum remixdb_status remix_narrow_form(const struct remix *x, size_t head, struct narrow_form *out) {
  const struct remix_index *const ix = x->index;
  uint8_t bits[BLIND_NARROW];
  uint32_t wide = 0, bytes = 0, marked = 0;  // segments with wide bits, with other bits that are no nibbles, with marks
  assert(!ix->lay.narrow);
  *out = (struct narrow_form){.bits = mem_array(x->nr_segs, sizeof(*out->bits), 1)};
  if (!out->bits) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < x->nr_segs; i++) {
    const uint8_t *const s = seg_at(ix, i);
    struct narrow_bits *const b = &out->bits[i];
    b->table = 0;
    marked += sels_marked(s + ix->lay.sel);
    if (unlikely(!blind_near(seg_blind(ix, s)))) {
      const bool dense = blind_densify(s + ix->lay.dbits, bits);
      bytes += dense;
      wide += !dense;
      continue;
    }
    narrow_bits(bits, s + ix->lay.dbits);
    b->table = (uint16_t)blind_nibbles(bits, seg_nr(ix, s), b->nibbles);
    bytes += b->table == 0;
  }
  const uint32_t few = x->nr_segs / NARROW_SHARE;
  const bool sels = x->nr_runs <= NARROW_RUNS && marked <= few;
  const enum remix_room room = wide + bytes <= few ? REMIX_ROOM_NIBBLES
                               : wide <= few       ? REMIX_ROOM_BYTES
                                                   : REMIX_ROOM_WIDE;
  const size_t listed = (room != REMIX_ROOM_WIDE ? (size_t)wide * BLIND_WIDE : 0) +
                        (room == REMIX_ROOM_NIBBLES ? (size_t)bytes * BLIND_NARROW : 0) +
                        (sels ? (size_t)marked * REMIX_SEG : 0);
  out->lay = remix_layout_of(x->nr_runs, x->tags, true, sels, room, narrow_offs(x));
  out->cut = anchors_cut(x);
  out->rising = anchors_rise(x, out->cut);
  out->size = behind_segs(x, head, out).list + listed;
  return REMIXDB_OK;
}

void remix_narrow_end(struct narrow_form *form) { mem_free(form->bits); }

// The list while it is made.
struct listing {
  uint8_t *list;
  uint32_t nr;
};

// Puts the bytes into the list, and their number to `place`, which has `room` bytes.
static void list_put(struct listing *l, const uint8_t *from, size_t len, uint8_t *place, size_t room) {
  memset(place, 0, room);
  store32le(place, l->nr);
  memcpy(l->list + (size_t)l->nr * REMIX_LISTED, from, len);
  l->nr += (uint32_t)(len / REMIX_LISTED);
}

// Makes the discriminating bits of segment p. Its head is there.
static void narrow_dbits(const struct remix_layout *lay, struct blind wide, const struct narrow_bits *b, uint8_t *p,
                         struct listing *l) {
  uint8_t bits[BLIND_NARROW], *const to = p + lay->dbits;
  if (lay->wide) {
    memcpy(to, wide.bits, BLIND_WIDE);
    return;
  }
  if (lay->tables) store16le(p + lay->head + REMIX_SEG_TABLE, b->table);
  if (likely(lay->tables && b->table)) {
    memcpy(to, b->nibbles, BLIND_NIBBLES);
    return;
  }
  if (likely(blind_near(wide))) {
    narrow_bits(bits, wide.bits);
  } else if (blind_densify(wide.bits, bits)) {
    p[lay->head + REMIX_SEG_FLAGS] |= REMIX_SEG_DENSE;
  } else {
    p[lay->head + REMIX_SEG_FLAGS] |= REMIX_SEG_WIDE;
    list_put(l, wide.bits, BLIND_WIDE, to, lay->tables ? BLIND_NIBBLES : BLIND_NARROW);
    return;
  }
  if (lay->tables) list_put(l, bits, BLIND_NARROW, to, BLIND_NIBBLES);
  else memcpy(to, bits, BLIND_NARROW);
}

// Makes the selectors of a segment. Returns flags.
static uint8_t narrow_sels(const struct remix_layout *lay, const uint8_t *sel, uint8_t *to, struct listing *l) {
  if (!lay->nibbles) {
    memcpy(to, sel, REMIX_SEG);
    return 0;
  }
  if (unlikely(sels_marked(sel))) {
    list_put(l, sel, REMIX_SEG, to, REMIX_NIBBLES);
    return 0;
  }
  set32_join(sel, to);
  return set32_eq8(sel, REMIX_OLD, 0) == UINT32_MAX ? REMIX_SEG_NIBBLES : REMIX_SEG_NIBBLES | REMIX_SEG_OLD;
}

void remix_narrow(struct remix *x, size_t head, const struct narrow_form *form, uint8_t *to) {
  struct remix_index *const ix = x->index;
  const struct remix_layout lay = form->lay;
  const struct behind at = behind_segs(x, head, form);
  uint8_t *const segs = to + head + lay.row;
  struct listing l = {.list = to + at.list};
  memcpy(to, x->image, head);
  for (uint32_t i = 0; i < x->nr_segs; i++) {
    const uint8_t *const q = seg_at(ix, i);
    uint8_t *const p = segs + (remix_seg_at(&lay, segs, i) - segs);
    // copies of fixed sizes: calls for a few bytes cost more
    if (x->tags) memcpy(p, q, REMIX_SEG);
    memcpy(p + lay.head, q + ix->lay.head, REMIX_SEG_HEAD);
    p[lay.head + REMIX_SEG_FLAGS] |= narrow_sels(&lay, q + ix->lay.sel, p + lay.sel, &l);
    narrow_seg_offs(x, &lay, i, q, seg_at(ix, i - i % REMIX_GROUP), p);
    narrow_dbits(&lay, seg_blind(ix, q), &form->bits[i], p, &l);
  }
  ix->anchors = cut_anchors(x, form, to, &at);
  assert((size_t)(l.list - to) + (size_t)l.nr * REMIX_LISTED == form->size);
  x->image = to;
  x->image_size = form->size;
  ix->lay = lay;
  ix->segs = segs;
  ix->list = l.list;
}

void remix_sels(const struct remix_index *ix, const uint8_t *s, uint8_t *to) {
  const uint8_t *const sel = seg_bytes(ix, s, to);
  if (sel != to) memcpy(to, sel, REMIX_SEG);
}

void remix_widen(struct blind b, uint32_t nr, uint8_t *to) {
  blind_widen(b, to);
  store16le(to, 0);
  memset(to + 2 * (size_t)nr, 0, BLIND_WIDE - 2 * (size_t)nr);
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
    if (x->tags) memcpy(p, q, REMIX_SEG);
    remix_sels(ix, q, p + lay.sel);
    memcpy(p + lay.head, q + ix->lay.head, REMIX_SEG_HEAD);
    sst_pos pos[REMIX_RUNS_MAX];
    seg_offs(x, q, pos);
    for (uint32_t r = 0; r < x->nr_runs; r++) store32le(p + lay.offs + 4 * r, pos[r]);
    p[lay.head + REMIX_SEG_FLAGS] &= REMIX_SEG_FAR;
    remix_widen(seg_blind(ix, q), seg_nr(ix, q), p + lay.dbits);
    memset(p + lay.dbits + BLIND_WIDE, 0, lay.stride - lay.dbits - BLIND_WIDE);
  }
  uint8_t *const offs = to + head + (size_t)x->nr_segs * lay.stride;
  whole_anchors(x, offs);
  memset(offs + anchors_size(x), 0, REMIX_SUM);
}
