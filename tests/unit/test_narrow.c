// SPDX-License-Identifier: Apache-2.0
//
// Narrow images against the plain ones that they are made of: segments of all shapes, in views of all layouts. A table
// has nothing but the numbers of records of its blocks.
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include "remix/narrow.h"
#include "remix/seg.h"

// ---- plain images

// The marks that the selectors of a segment have.
enum marks { MARKS_NONE, MARKS_OLD, MARKS_TOMB, MARKS_EXPIRES, MARKS_ERASED, MARKS_ALL, MARKS };
// The places of a segment's discriminating bits.
enum bits { BITS_NONE, BITS_RANDOM, BITS_DIGITS, BITS_TEXT, BITS_NEAR, BITS_DENSE, BITS_WIDE, BITS_FAR, BITS };

#define SEGS_MAX 60u
#define COMMON_MAX 40u
#define LONGER_MAX 5000u     // so that two bytes hold the ends of 30 anchors or do not
#define PAGES_MAX 0xFFFFFFu  // pages of a table
#define PATTERN 4096u

// ---- tables

// How many records the blocks of a table have.
enum fill { FILL_FEW, FILL_USUAL, FILL_MANY, FILL_MIXED, FILL_LARGE, FILLS };
static uint8_t *fills[FILLS];  // records of the block at each page, for the largest table. Others have its first pages

static uint8_t fill_records(enum fill fill) {
  switch (fill) {
    case FILL_FEW: return (uint8_t)(1 + rng_next(&check_seed) % 3);
    case FILL_USUAL: return (uint8_t)(28 + rng_next(&check_seed) % 8);
    case FILL_MANY: return (uint8_t)(200 + rng_next(&check_seed) % 56);
    case FILL_LARGE: return 1;
    default: return (uint8_t)(1 + rng_next(&check_seed) % 255);
  }
}

// A block of `fill` has up to so many pages.
static uint32_t fill_pages(enum fill fill) { return fill == FILL_LARGE ? 40 : fill == FILL_FEW ? 3 : 1; }

static int fills_make(void **state) {
  (void)state;
  check_seed = check_seed_for("tables");
  for (uint32_t f = 0; f < FILLS; f++) {
    uint8_t *const to = fills[f] = calloc(1, PAGES_MAX + 2);
    assert_non_null(to);
    for (uint32_t p = 0; p < PATTERN;) {
      to[p] = fill_records((enum fill)f);
      p += 1 + (uint32_t)(rng_next(&check_seed) % fill_pages((enum fill)f));
    }
    for (uint32_t p = PATTERN; p < PAGES_MAX; p += PATTERN)
      memcpy(to + p, to, PAGES_MAX - p < PATTERN ? PAGES_MAX - p : PATTERN);
    const uint32_t ends[] = {0xFF, 0x100, 0xFFFF, 0x10000, PAGES_MAX};
    for (uint32_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) to[ends[i]] = 1;
  }
  return 0;
}

static int fills_free(void **state) {
  (void)state;
  for (uint32_t f = 0; f < FILLS; f++) free(fills[f]);
  return 0;
}

static void table_make(struct sst *t, enum fill fill, uint32_t pages) {
  static const uint32_t least[FILLS] = {1, 28, 200, 1, 1};
  t->nr_recs = fills[fill];
  while (pages && t->nr_recs[pages] == 0) pages--;
  t->nr_pages = pages;
  t->least = pages > 0xFF ? 1 : least[fill];  // blocks that end a table have one record
  t->last = pages ? pages - 1 : 0;
  while (t->last && t->nr_recs[t->last] == 0) t->last--;
}

// A view. nr segments: one in `odd` has any marks and any bits; the others have those of the view.
struct shape {
  uint32_t nr, runs, odd;
  uint32_t common;  // bytes that all anchors but the first share
  bool steep;       // and no more
  uint32_t longer;  // how many bytes anchors have more than these and a few
  bool tags, young;
  enum fill fill;  // how the tables are filled
  bool lone;       // nearly all entries are of one run
  sst_pos end;     // the end of the longest run
  enum marks marks;
  enum bits bits;
};

struct made_view {
  struct remix x;
  struct remix_index ix;
  struct sst *runs[REMIX_RUNS_MAX], tables[REMIX_RUNS_MAX];
  size_t size;
  uint8_t *plain, *narrow;
  struct remix plain_x;  // the view with the plain image
  struct remix_index plain_ix;
};

static uint32_t below(uint32_t n) { return (uint32_t)(rng_next(&check_seed) % n); }

static uint8_t mark_of(enum marks marks) {
  switch (marks == MARKS_ALL ? 1 + below(MARKS_ALL - 1) : marks) {
    case MARKS_TOMB: return below(3) ? 0 : REMIX_TOMB;
    case MARKS_EXPIRES: return below(3) ? 0 : REMIX_EXPIRES;
    case MARKS_ERASED: return below(3) ? 0 : REMIX_ERASED;
    default: return 0;
  }
}

// A bit after the segment's lowest one, which is in byte 0.
static uint32_t bit_of(enum bits bits, uint32_t lowest) {
  const uint32_t byte = below(below(3) ? 2 : 3);
  switch (bits) {
    case BITS_RANDOM: return byte << 4 | (1 + below(8));
    case BITS_DIGITS: return below(4) << 4 | (5 + below(4));
    case BITS_TEXT: return byte << 4 | (below(8) ? 2 + below(7) : 0);
    case BITS_NEAR: return below(16) << 4 | below(9);
    case BITS_DENSE: return below(BLIND_DENSE_BYTES) << 4 | below(9);
    case BITS_WIDE: return below(BLIND_BYTE_MAX) << 4 | below(9);
    case BITS_FAR: return below(4) ? below(40) << 4 | below(9) : BLIND_FAR;
    default: return lowest;
  }
}

// The run of an entry, one of nr.
static uint32_t run_of(const struct shape *shape, uint32_t nr) { return shape->lone && below(16) ? nr - 1 : below(nr); }

// Writes the cursor offsets, and moves the runs on by the selectors.
static void make_offs(const struct remix_layout *lay, struct sst *const *runs, uint32_t nr_runs, sst_pos *pos,
                      uint8_t *s) {
  for (uint32_t r = 0; r < nr_runs; r++) store32le(s + lay->offs + 4 * r, pos[r]);
  for (uint32_t i = 0; i < s[lay->head + REMIX_SEG_NR]; i++) {
    const uint32_t r = s[lay->sel + i] & REMIX_RUN;
    pos[r] = sst_advance(runs[r], pos[r], 1);
  }
}

static void make_segment(const struct shape *shape, const struct remix_layout *lay, uint8_t *s) {
  const bool odd = below(shape->odd) == 0;
  const enum marks marks = odd ? (enum marks)below(MARKS) : shape->marks;
  const enum bits bits = odd ? (enum bits)below(BITS) : shape->bits;
  const uint32_t nr = below(4) ? REMIX_SEG - below(4) : 1 + below(REMIX_SEG);
  const bool versions = (marks == MARKS_OLD || marks == MARKS_ALL) && shape->runs > 1;
  const uint32_t lowest = bits == BITS_DIGITS ? 5 + below(4) : bits == BITS_RANDOM ? 1 + below(8) : below(9);
  bool far = false;
  memset(s, 0, lay->stride);
  for (uint32_t i = 0; i < nr; i++) {
    uint32_t run = run_of(shape, shape->runs), d = bit_of(bits, lowest);
    const uint32_t before = i ? s[lay->sel + i - 1] & REMIX_RUN : 0;
    const bool old = i && versions && before && below(3) == 0;
    if (old) run = run_of(shape, before);
    if (d < lowest || (i == 1 && !old)) d = lowest;
    if (i && old) d = BLIND_SAME;
    far |= i && d == BLIND_FAR;
    if (lay->sel) s[i] = (uint8_t)rng_next(&check_seed);
    s[lay->sel + i] = (uint8_t)(run | mark_of(marks) | (old ? REMIX_OLD : 0));
    store16le(s + lay->dbits + 2 * i, i ? d : 0);
  }
  s[lay->head + REMIX_SEG_NR] = (uint8_t)nr;
  s[lay->head + REMIX_SEG_FLAGS] = far ? REMIX_SEG_FAR : 0;
  store16le(s + lay->head + REMIX_SEG_BASE, below(3) ? below(20) : below(65535));
}

// The ends of anchors that begin with the same bytes. The first one is empty, and the second one may have only these.
static uint32_t anchor_ends(const struct shape *shape, uint32_t *ends) {
  uint32_t at = 0;
  ends[0] = 0;
  for (uint32_t i = 0; i < shape->nr; i++) {
    if (i)
      at += shape->common +
            (i == 1 && shape->common && below(2) ? 0 : 2 + below(4) + (shape->longer ? below(shape->longer) : 0));
    ends[i + 1] = at;
  }
  return at;
}

static void make_anchor(const struct shape *shape, uint32_t i, uint32_t len, uint8_t *to) {
  for (uint32_t k = 0; k < len; k++) to[k] = k < shape->common ? (uint8_t)(k * 7) : (uint8_t)rng_next(&check_seed);
  if (len == shape->common) return;
  to[shape->common] = (uint8_t)(shape->steep ? 4 * i : 0);
  to[shape->common + 1] = (uint8_t)(4 * i);
}

static void view_make(const struct shape *shape, struct made_view *v) {
  *v = (struct made_view){.size = 0};
  struct remix *const x = &v->x;
  sst_pos pos[REMIX_RUNS_MAX];
  for (uint32_t r = 0; r < shape->runs; r++) {
    struct sst *const t = v->runs[r] = &v->tables[r];
    table_make(t, shape->fill, (r + 1 == shape->runs ? shape->end : below(shape->end + 1)) >> 8);
    // somewhere, or near the end
    const uint32_t from = below(2) ? t->nr_pages - below(t->nr_pages < 8 ? t->nr_pages + 1 : 8)
                                   : below(t->nr_pages + 1);
    pos[r] = sst_pos_make(from, 0);
    while (pos[r] && from < t->nr_pages && t->nr_recs[sst_pos_block(pos[r])] == 0) pos[r] -= 1u << 8;
    if (from < t->nr_pages) pos[r] = sst_advance(t, pos[r], below(300));
  }
  x->runs = v->runs;
  x->nr_runs = shape->runs;
  x->nr_segs = shape->nr;
  x->tags = shape->tags;
  x->index = &v->ix;
  v->ix.lay = remix_layout(shape->runs, shape->tags);
  v->ix.young = shape->young;
  const size_t head = remix_segs_off(shape->runs), stride = v->ix.lay.stride;
  uint32_t ends[SEGS_MAX + 1];
  const uint32_t anchors = anchor_ends(shape, ends);
  const size_t offs = head + shape->nr * stride;
  v->size = offs + 4 * (shape->nr + 1u) + anchors + REMIX_SUM;
  v->plain = calloc(1, v->size);
  assert_non_null(v->plain);
  for (uint32_t i = 0; i < head; i++) v->plain[i] = (uint8_t)rng_next(&check_seed);
  for (uint32_t i = 0; i < shape->nr; i++) {
    uint8_t *const s = v->plain + head + i * stride;
    make_segment(shape, &v->ix.lay, s);
    make_offs(&v->ix.lay, v->runs, shape->runs, pos, s);
  }
  for (uint32_t i = 0; i <= shape->nr; i++) store32le(v->plain + offs + 4 * i, ends[i]);
  for (uint32_t i = 1; i < shape->nr; i++)
    make_anchor(shape, i, ends[i + 1] - ends[i], v->plain + offs + 4 * (shape->nr + 1u) + ends[i]);
  x->image = v->plain;
  x->image_size = v->size;
  v->ix.segs = v->plain + head;
  v->ix.anchors = (struct anchors){.offs = v->plain + offs, .nr = shape->nr};
  v->ix.anchors.bytes = v->ix.anchors.offs + 4 * (shape->nr + 1u);
  v->plain_ix = v->ix;
  v->plain_x = *x;
  v->plain_x.index = &v->plain_ix;
}

static void view_fini(struct made_view *v) {
  free(v->plain);
  free(v->narrow);
}

// ---- comparing

struct seen {
  uint32_t cuts, uncut, rising, steeper, rooms[REMIX_ROOM_NIBBLES + 1];  // views
  uint32_t nibbles, old, listed, bytes;                                  // segments by their selectors
  uint32_t wide, listed_wide, dense, tables, near;                       // and by their bits
  uint32_t unlike, unlike_dense;       // those that are listed because no table has them
  uint32_t grouped, strewn;            // views of three runs and more that have groups, or have none
  uint32_t close, walked, walked_far;  // offsets of groups; walked over several segments
};

static void check_sels(const struct made_view *v, const uint8_t *s, const uint8_t *p) {
  const struct remix_index *const ix = &v->ix, *const pix = &v->plain_ix;
  const uint8_t *const want = p + pix->lay.sel;
  const uint32_t in = set32_below(seg_nr(pix, p));
  uint8_t room[REMIX_SEG], copy[REMIX_SEG];
  assert_memory_equal(seg_bytes(ix, s, room), want, REMIX_SEG);
  remix_sels(ix, s, copy);
  assert_memory_equal(copy, want, REMIX_SEG);
  for (uint32_t i = 0; i < REMIX_SEG; i++) {
    assert_int_equal(seg_run(ix, s, i), want[i] & REMIX_RUN);
    assert_int_equal(seg_sel(ix, s, i), want[i] & ~REMIX_OLD);
  }
  for (uint32_t r = 0; r < v->x.nr_runs; r++)
    assert_int_equal(sels_of(seg_sels(ix, s), r) & in, sels_of(seg_sels(pix, p), r) & in);
}

static void check_offs(const struct made_view *v, uint32_t seg, struct seen *seen) {
  const struct remix_layout *const lay = &v->ix.lay;
  const uint8_t *const s = seg_at(&v->ix, seg), *const p = seg_at(&v->plain_ix, seg);
  sst_pos all[REMIX_RUNS_MAX];
  seg_offs(&v->x, s, all);
  for (uint32_t r = 0; r < v->x.nr_runs; r++) {
    const sst_pos want = load32le(p + v->plain_ix.lay.offs + 4 * r);
    assert_int_equal(seg_off(&v->x, s, r), want);
    assert_int_equal(all[r], want);
    assert_int_equal(seg_off(&v->plain_x, p, r), want);
    if (!lay->row) continue;
    const bool walk = s[lay->offs + r] == REMIX_WALK;
    if (walk) assert_true(seg % REMIX_GROUP > 0);
    seen->walked += walk;
    seen->walked_far += walk && (s - lay->stride)[lay->offs + r] == REMIX_WALK;
    seen->close += !walk;
  }
}

static void check_bits(struct blind a, struct blind b, uint32_t nr) {
  uint8_t wide[BLIND_WIDE];
  assert_int_equal(blind_same(a) & set32_below(nr), blind_same(b) & set32_below(nr));
  for (uint32_t i = 1; i < nr; i++) {
    const uint32_t bit = blind_bit(b, i), in = set32_below(nr) & ~1u;
    assert_int_equal(blind_bit(a, i), bit);
    assert_int_equal(blind_less(a, bit) & in, blind_less(b, bit) & in);
    assert_int_equal(blind_below(a, i) & in, blind_less(b, bit) & in);
    if (bit < BLIND_SAME) assert_int_equal(blind_less(a, bit + 1) & in, blind_less(b, bit + 1) & in);
  }
  remix_widen(a, nr, wide);
  assert_memory_equal(wide, b.bits, BLIND_WIDE);
}

static void count_segment(struct seen *seen, const struct remix_index *ix, const uint8_t *s) {
  const uint32_t flags = remix_seg_flags(&ix->lay, s);
  if (!(flags & REMIX_SEG_NIBBLES)) (*(ix->lay.nibbles ? &seen->listed : &seen->bytes))++;
  else if (flags & REMIX_SEG_OLD) seen->old++;
  else seen->nibbles++;
  if (ix->lay.wide) seen->wide++;
  else if (flags & REMIX_SEG_WIDE) seen->listed_wide++;
  else if (!ix->lay.tables) (*(flags & REMIX_SEG_DENSE ? &seen->dense : &seen->near))++;
  else if (seg_blind(ix, s).table) seen->tables++;
  else (*(flags & REMIX_SEG_DENSE ? &seen->unlike_dense : &seen->unlike))++;
}

static void check_segments(const struct made_view *v, struct seen *seen) {
  const struct remix_index *const ix = &v->ix, *const pix = &v->plain_ix;
  for (uint32_t i = 0; i < v->x.nr_segs; i++) {
    const uint8_t *const s = seg_at(ix, i), *const p = seg_at(pix, i);
    count_segment(seen, ix, s);
    if (v->x.tags) assert_memory_equal(s, p, REMIX_SEG);
    assert_int_equal(seg_nr(ix, s), seg_nr(pix, p));
    assert_int_equal(seg_base(ix, s), seg_base(pix, p));
    assert_int_equal(seg_far(ix, s), seg_far(pix, p));
    assert_int_equal(seg_live(ix, s), seg_live(pix, p));
    check_sels(v, s, p);
    check_offs(v, i, seen);
    check_bits(seg_blind(ix, s), seg_blind(pix, p), seg_nr(pix, p));
  }
}

// Whether the view gets groups (N2). The distances are counted here without a radix: blocks apart and records.
static bool groups_pay(const struct made_view *v) {
  const struct remix_index *const pix = &v->plain_ix;
  uint32_t most = 0, walked = 0;
  if (v->x.nr_runs < NARROW_GROUPED) return false;
  for (uint32_t r = 0; r < v->x.nr_runs; r++) {
    if (v->runs[r]->nr_pages > NARROW_BLOCKS) return false;
    for (uint32_t i = 0; i < v->x.nr_segs; i++) {
      const uint32_t idx = load32le(seg_at(pix, i) + pix->lay.offs + 4 * r) & 255;
      most = idx > most ? idx : most;
    }
  }
  for (uint32_t r = 0; r < v->x.nr_runs; r++)
    for (uint32_t i = 0; i < v->x.nr_segs; i++) {
      const sst_pos here = load32le(seg_at(pix, i) + pix->lay.offs + 4 * r),
                    first = load32le(seg_at(pix, i / REMIX_GROUP * REMIX_GROUP) + pix->lay.offs + 4 * r);
      walked += ((here >> 8) - (first >> 8)) * (most > 1 ? most + 1 : 2) + (here & 255) > 254;
    }
  return walked <= v->x.nr_segs * v->x.nr_runs / NARROW_WALKED;
}

// The form is the one that N2 tells.
static void check_form(const struct made_view *v, const struct narrow_form *form) {
  const struct remix_index *const pix = &v->plain_ix;
  const uint32_t few = v->x.nr_segs / NARROW_SHARE;
  uint32_t wide = 0, bytes = 0, marked = 0;
  for (uint32_t i = 0; i < v->x.nr_segs; i++) {
    const uint8_t *const p = seg_at(pix, i);
    bool is_marked = false;
    for (uint32_t e = 0; e < REMIX_SEG; e++) is_marked |= (p[pix->lay.sel + e] & (REMIX_TOMB | REMIX_EXPIRES)) != 0;
    marked += is_marked;
    uint32_t last = 0;
    uint8_t narrow[BLIND_NARROW], nibbles[BLIND_NIBBLES];
    for (uint32_t e = 0; e < REMIX_SEG; e++) {
      const uint32_t bit = load16le(p + pix->lay.dbits + 2 * e);
      narrow[e] = (uint8_t)bit;
      if (bit != BLIND_SAME && bit >> 4 > last) last = bit >> 4;
    }
    wide += last >= BLIND_DENSE_BYTES;
    bytes += last < BLIND_DENSE_BYTES && (last >= 16 || !blind_nibbles(narrow, seg_nr(pix, p), nibbles));
  }
  assert_true(form->lay.narrow);
  assert_int_equal(form->lay.wide, wide > few);
  assert_int_equal(form->lay.tables, wide + bytes <= few);
  assert_int_equal(form->lay.nibbles, v->x.nr_runs <= NARROW_RUNS && marked <= few);
  assert_int_equal(form->lay.row != 0, groups_pay(v));
}

static void check_anchor(const struct anchors *a, uint32_t i, struct kref want) {
  static uint8_t copy[COMMON_MAX + LONGER_MAX + 8];
  assert_int_equal(anchors_len(a, i), want.len);
  if (i) assert_true(anchors_rest(a, i).len > 0);
  for (uint32_t from = 0, step = 1 + want.len / 64; from <= want.len; from += step) {
    anchors_copy(a, i, from, want.len - from, copy);
    assert_memory_equal(copy, want.ptr + from, want.len - from);
    assert_true(anchors_cmp(a, i, kref(want.ptr, from)) == 0 ? from == want.len
                                                             : anchors_cmp(a, i, kref(want.ptr, from)) > 0);
    if (from == want.len) continue;
    memcpy(copy, want.ptr, want.len);
    copy[from] ^= 1;
    assert_int_equal(anchors_cmp(a, i, kref(copy, want.len)) > 0, copy[from] < want.ptr[from]);
  }
  memcpy(copy, want.ptr, want.len);
  assert_int_equal(anchors_cmp(a, i, kref(copy, want.len)), 0);
  copy[want.len] = 0;
  assert_true(anchors_cmp(a, i, kref(copy, want.len + 1)) < 0);
}

// Whether two bytes tell where each anchor begins behind the first one of its line (N1).
static bool ends_rise(const struct made_view *v, uint32_t cut) {
  const struct anchors *const a = &v->plain_ix.anchors;
  uint32_t sum = 0;
  bool rise = true;
  for (uint32_t i = 0; i < a->nr; i++) {
    if (i % RISING_LINE == 0) sum = 0;
    rise &= sum <= 0xFFFF;
    sum += anchors_at(a, i).len - (i ? cut : 0);
  }
  return rise && (a->nr % RISING_LINE == 0 || sum <= 0xFFFF);
}

static void check_view(const struct shape *shape, struct seen *seen) {
  struct made_view v;
  view_make(shape, &v);
  const size_t head = remix_segs_off(shape->runs);
  struct narrow_form form;
  assert_int_equal(remix_narrow_form(&v.x, head, &form), REMIXDB_OK);
  check_form(&v, &form);
  (*(form.cut ? &seen->cuts : &seen->uncut))++;
  assert_int_equal(form.rising, ends_rise(&v, form.cut));
  (*(form.rising ? &seen->rising : &seen->steeper))++;
  if (shape->runs >= NARROW_GROUPED) (*(form.lay.row ? &seen->grouped : &seen->strewn))++;
  seen->rooms[form.lay.tables ? REMIX_ROOM_NIBBLES : form.lay.wide ? REMIX_ROOM_WIDE : REMIX_ROOM_BYTES]++;
  v.narrow = malloc(form.size);
  assert_non_null(v.narrow);
  remix_narrow(&v.x, head, &form, v.narrow);
  assert_int_equal(v.x.image_size, form.size);
  assert_memory_equal(v.narrow, v.plain, head);
  assert_true(form.rising == !v.ix.anchors.offs);
  for (uint32_t i = 0; i < shape->nr; i++) check_anchor(&v.ix.anchors, i, anchors_at(&v.plain_ix.anchors, i));
  check_segments(&v, seen);
  assert_int_equal(remix_plain_size(&v.x), v.size);
  uint8_t *const again = malloc(v.size);
  assert_non_null(again);
  remix_plain(&v.x, again);
  assert_memory_equal(again, v.plain, v.size);
  free(again);
  remix_narrow_end(&form);
  view_fini(&v);
}

static void test_forms(void **state) {
  (void)state;
  check_seed = check_seed_for("forms");
  struct seen seen = {0};
  for (uint32_t round = 0; round < 600; round++) {
    const sst_pos ends[] = {0x100, 0xFF00, 0x10000, 0xFFFF00, 0x1000000, 0xFFFFFF00};
    struct shape shape = {.nr = below(8) ? 1 + below(SEGS_MAX) : below(3), .tags = below(2), .young = below(2)};
    shape.common = below(3) ? 0 : below(COMMON_MAX + 1);
    shape.steep = below(2);
    shape.longer = below(4) ? 0 : LONGER_MAX;
    shape.runs = below(2) ? 1 + below(NARROW_RUNS) : 1 + below(REMIX_RUNS_MAX);
    shape.odd = below(2) ? 12 : 1 + below(4);
    shape.end = ends[below(6)];
    shape.fill = (enum fill)below(FILLS);
    shape.lone = below(2);
    shape.marks = below(2) ? (enum marks)below(MARKS) : below(2) ? MARKS_NONE : MARKS_OLD;
    shape.bits = (enum bits)below(BITS);
    check_view(&shape, &seen);
  }
  print_message("  views: %u wide, %u bytes, %u nibbles; selectors: %u nibbles, %u with old, %u listed, %u bytes; "
                "bits: %u tables, "
                "%u unlike, %u unlike and dense, %u near, %u dense, %u wide, %u listed wide\n",
                seen.rooms[REMIX_ROOM_WIDE], seen.rooms[REMIX_ROOM_BYTES], seen.rooms[REMIX_ROOM_NIBBLES], seen.nibbles,
                seen.old, seen.listed, seen.bytes, seen.tables, seen.unlike, seen.unlike_dense, seen.near, seen.dense,
                seen.wide, seen.listed_wide);
  assert_true(seen.cuts > 50 && seen.uncut > 50 && seen.rising > 50 && seen.steeper > 20);
  for (uint32_t i = 0; i <= REMIX_ROOM_NIBBLES; i++) assert_true(seen.rooms[i] > 20);
  print_message("  cursor offsets: %u views with groups, %u without; %u near, %u walked, %u of them far\n",
                seen.grouped, seen.strewn, seen.close, seen.walked, seen.walked_far);
  const uint32_t segments[] = {seen.grouped, seen.strewn, seen.close,  seen.walked,      seen.walked_far,  seen.nibbles,
                               seen.old,     seen.listed, seen.bytes,  seen.wide,        seen.listed_wide, seen.dense,
                               seen.tables,  seen.near,   seen.unlike, seen.unlike_dense};
  for (uint32_t i = 0; i < sizeof(segments) / sizeof(segments[0]); i++) assert_true(segments[i] > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms)};
  return cmocka_run_group_tests(tests, fills_make, fills_free);
}
