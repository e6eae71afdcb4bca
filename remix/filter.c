// SPDX-License-Identifier: Apache-2.0
#include "remix/filter.h"

#include <assert.h>

#include "remix/pack.h"
#include "remix/seg.h"

#define SETS_ASKED 3u      // sets that are asked for one key, at most
#define TAGS 256u          // how many tags there are
#define WORDS (TAGS / 64)  // words in a set of tags
#define BOUND_MORE 8u
#define BOUNDS_MAX (16 * REMIX_PAGE_MOST)  // bytes of all bounds; numbers take half of it, at most
#define SLACK 8u                           // bytes that may be read after the data
// The longest lists: all entries of a page with tags of their own. k bits and one more for each of them, and one for
// each 1 << k tags of all sets.
#define LISTS_MAX (REMIX_PAGE_MOST * TAGS / 8 / 8 + REMIX_PAGE_MOST * REMIX_SEG * 4 / 8)
#define LISTS_NR_MAX (REMIX_PAGE_MOST / FILTER_STRETCH)

_Static_assert(REMIX_PAGE_MOST <= 128, "nr_sets has 8 bits, and a list begins within the first 65,536 bits");
_Static_assert(1u << (FILTER_LEVELS - 1) <= FILTER_STRETCH, "a list has whole sets");

// The piece of a key from `from` (<= key.len) on, padded with zeros, as a number that sorts as the bytes do.
static uint64_t number_of(struct kref key, uint32_t from) {
  uint64_t v = 0;
  for (uint32_t i = 0; i < 8; i++) v = v << 8 | (from + i < key.len ? key.ptr[from + i] : 0);
  return v;
}

// ---- making one

// The segments of a page: `nr` of them, from the index's segment `first` on.
struct page_segs {
  const struct remix_index *ix;
  uint32_t first, nr;
};

struct sets {
  uint32_t nr;
  uint64_t tags[REMIX_PAGE_MOST][WORDS];
};

static void sets_fill(const struct page_segs *page, uint32_t level, struct sets *out) {
  const struct remix_index *const ix = page->ix;
  out->nr = (page->nr + (1u << level) - 1) >> level;
  memset(out->tags, 0, out->nr * sizeof(out->tags[0]));
  for (uint32_t i = 0; i < page->nr; i++) {
    const uint8_t *const s = seg_at(ix, page->first + i);
    uint64_t *const tags = out->tags[i >> level];
    for (uint32_t live = seg_live(ix, s); live; live &= live - 1) {
      const uint8_t tag = s[set32_first(live)];
      tags[tag / 64] |= 1ull << tag % 64;
    }
  }
}

// Rice's k for lists with so many tags: the mean gap's part that half of the gaps do not reach, as a power of two.
static uint8_t sets_k(const struct sets *sets) {
  uint32_t nr = 1;
  uint8_t k = 0;
  for (uint32_t i = 0; i < sets->nr; i++)
    for (uint32_t w = 0; w < WORDS; w++) nr += (uint32_t)__builtin_popcountll(sets->tags[i][w]);
  while ((uint64_t)nr << k < (uint64_t)sets->nr * TAGS * 7 / 10) k++;
  return k;
}

struct bits {
  uint8_t *p;
  uint32_t at;  // bits
};

static void bits_put(struct bits *b, uint32_t nr, uint64_t v) {
  const uint64_t there = b->at % 8 ? b->p[b->at / 8] : 0;
  store64le(b->p + b->at / 8, there | v << b->at % 8);
  b->at += nr;
}

static void gap_put(struct bits *b, uint32_t gap, uint32_t k) {
  for (uint32_t q = gap >> k; q >= 32; q -= 32, gap -= 32u << k) bits_put(b, 32, 0);
  bits_put(b, (gap >> k) + 1, 1ull << (gap >> k));
  bits_put(b, k, gap & ((1u << k) - 1));
}

// Writes the list of the sets [from, to).
static void list_put(struct bits *b, const struct sets *sets, uint32_t from, uint32_t to, uint32_t k) {
  uint32_t next = 0;  // the lowest number that may follow
  for (uint32_t i = from; i < to; i++)
    for (uint32_t w = 0; w < WORDS; w++)
      for (uint64_t left = sets->tags[i][w]; left; left &= left - 1) {
        const uint32_t v = (i - from) * TAGS + w * 64 + (uint32_t)__builtin_ctzll(left);
        gap_put(b, v - next, k);
        next = v + 1;
      }
}

// The first anchor of a set, without the head.
static struct kref bound_anchor(const struct page_segs *page, uint32_t level, uint32_t set) {
  return anchors_rest(&page->ix->anchors, page->first + (set << level));
}

static uint64_t bound_at(const struct remix_filter *f, uint32_t i) {  // the bound of set i + 1
  const uint64_t v = load64le(f->data + f->more + f->width * (size_t)i);
  return f->width == 8 ? v : v & ((1ull << 8 * f->width) - 1);
}

static uint8_t shift_for(uint64_t range, uint32_t width) {
  const uint32_t bits = range ? 64 - (uint32_t)__builtin_clzll(range) : 0;
  return (uint8_t)(bits > 8 * width ? bits - 8 * width : 0);
}

// Writes the bounds as numbers of f->width bytes. Returns how many equal the one before.
static uint32_t numbers_put(const struct page_segs *page, uint32_t level, struct remix_filter *f, uint8_t *to) {
  const uint32_t common = f->shared + f->more - page->ix->anchors.cut;
  uint32_t equal = 0;
  uint64_t before = 0;
  f->shift = shift_for(f->high - f->low, f->width);
  for (uint32_t i = 1; i < f->nr_sets; i++, to += f->width) {
    const uint64_t v = (number_of(bound_anchor(page, level, i), common) - f->low) >> f->shift;
    store64le(to, v);
    equal += i > 1 && v == before;
    before = v;
  }
  f->bounds = (uint16_t)(f->width * (f->nr_sets - 1u));
  return equal;
}

// Writes the bounds as strings; to: as a buffer of `room` bytes. Returns how many bytes they take, or 0: there is no
// room.
static size_t strings_put(const struct page_segs *page, uint32_t level, const struct remix_filter *f, uint8_t *to,
                          size_t room) {
  const uint32_t common = f->shared + f->more - page->ix->anchors.cut;
  uint8_t *p = to;
  uint32_t shared = common, next = common;  // with the anchor before, and with the next one
  for (uint32_t i = 1; i < f->nr_sets; i++, shared = next) {
    const struct kref a = bound_anchor(page, level, i);
    next = i + 1u < f->nr_sets ? kv_lcp_from(a, bound_anchor(page, level, i + 1), common) : common;
    const uint64_t end = (uint64_t)(shared > next ? shared : next) + BOUND_MORE;
    const uint32_t len = (a.len < end ? a.len : (uint32_t)end) - shared;
    if (len > room || (size_t)(p - to) + len + 10 > room) return 0;
    p = kv_varint_put(p, shared - common);
    p = kv_varint_put(p, len << 1 | (shared + len < a.len));
    memcpy(p, a.ptr + shared, len);
    p += len;
  }
  return (size_t)(p - to);
}

// Finds the bytes that all bounds begin with, and writes the bounds in the form that is shorter: numbers of which few
// are equal, or strings. f->nr_sets is set, and at least 2. to: room for BOUNDS_MAX bytes. False: no filter can be
// made.
static bool bounds_put(const struct page_segs *page, uint32_t level, struct remix_filter *f, uint8_t *to) {
  const struct kref first = bound_anchor(page, level, 1), last = bound_anchor(page, level, f->nr_sets - 1u);
  const uint32_t common = kv_lcp_from(first, last, 0), all = common + page->ix->anchors.cut;
  if (all < f->shared || all - f->shared > UINT8_MAX) return false;
  f->more = (uint8_t)(all - f->shared);
  f->low = number_of(first, common);
  f->high = number_of(last, common);
  for (f->width = 2; f->width < 4; f->width++)
    if (numbers_put(page, level, f, to) <= f->nr_sets / 16u) return true;
  const size_t len = strings_put(page, level, f, to, BOUNDS_MAX);
  if (len == 0 || len >= 8 * (f->nr_sets - 1u)) {
    f->width = 8;
    if (numbers_put(page, level, f, to) <= f->nr_sets / 16u || len == 0) return true;
    (void)strings_put(page, level, f, to, BOUNDS_MAX);
  }
  f->width = 0;
  f->bounds = (uint16_t)len;
  return true;
}

static uint32_t lists_of(const struct remix_filter *f) { return (f->nr_sets + f->per_list - 1u) / f->per_list; }

struct remix_filter *remix_filter_make(const struct remix *x, uint32_t first, uint32_t nr_segs, uint32_t shared,
                                       uint32_t level) {
  const struct page_segs page = {x->index, first, nr_segs};
  struct sets sets;
  uint8_t lists[LISTS_MAX + 2 * SLACK], bounds[BOUNDS_MAX + SLACK];
  uint16_t starts[LISTS_NR_MAX + 1];
  struct bits b = {lists, 0};
  assert(x->tags && nr_segs <= REMIX_PAGE_MOST && level < FILTER_LEVELS);
  sets_fill(&page, level, &sets);
  struct remix_filter head = {.k = sets_k(&sets), .nr_sets = (uint8_t)sets.nr, .shared = shared};
  head.per_list = (uint8_t)(FILTER_STRETCH >> level);
  if (sets.nr > 1 && !bounds_put(&page, level, &head, bounds)) return NULL;
  const uint32_t nr = lists_of(&head);
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t from = i * head.per_list, to = from + head.per_list;
    starts[i] = (uint16_t)b.at;
    list_put(&b, &sets, from, to < sets.nr ? to : sets.nr, head.k);
  }
  starts[nr] = (uint16_t)b.at;
  const size_t len = (b.at + 7) / 8, before = (size_t)head.more + head.bounds;
  head.size = (uint32_t)(sizeof(head) + before + 2 * (size_t)(nr + 1) + len + SLACK);
  struct remix_filter *const f = mem_alloc(head.size);
  if (!f) return NULL;
  memcpy(f, &head, sizeof(head));
  if (f->more) anchors_copy(&page.ix->anchors, first + (1u << level), f->shared, f->more, f->data);
  if (f->bounds) memcpy(f->data + f->more, bounds, f->bounds);
  for (uint32_t i = 0; i <= nr; i++) store16le(f->data + before + 2 * (size_t)i, starts[i]);
  memcpy(f->data + before + 2 * (size_t)(nr + 1), lists, len);
  memset(f->data + before + 2 * (size_t)(nr + 1) + len, 0, SLACK);
  return f;
}

void remix_filter_free(struct remix_filter *f) { mem_free(f); }

uint32_t remix_filter_level(const struct remix_filter *f) {
  return (uint32_t)__builtin_ctz(FILTER_STRETCH / f->per_list);
}

// ---- asking

// Whether the list from bit `at` to `end` has the number.
static bool list_has(const uint8_t *lists, uint32_t at, uint32_t end, uint32_t k, uint32_t number) {
  for (uint32_t next = 0; at < end;) {
    uint64_t v;
    while (!(v = load64le(lists + at / 8) >> at % 8 & 0xFFFFFFFFu)) {
      next += 32u << k;
      at += 32;
    }
    const uint32_t q = (uint32_t)__builtin_ctzll(v);
    at += q + 1;
    next += (q << k) + (uint32_t)(load64le(lists + at / 8) >> at % 8 & ((1u << k) - 1));
    at += k;
    if (next >= number) return next == number;
    next++;
  }
  return false;
}

static bool set_has(const struct remix_filter *f, uint32_t set, uint8_t tag) {
  const uint8_t *const starts = f->data + f->more + f->bounds;
  const uint8_t *const lists = starts + 2 * (size_t)(lists_of(f) + 1);
  const uint32_t list = set / f->per_list;
  return list_has(lists, load16le(starts + 2 * (size_t)list), load16le(starts + 2 * (size_t)list + 2), f->k,
                  set % f->per_list * TAGS + tag);
}

// The sets to which a key may belong: *first_out to *last_out. The key has the bytes that all bounds begin with; `rest`
// is what follows.
static void sets_by_strings(const struct remix_filter *f, struct kref rest, uint32_t *first_out, uint32_t *last_out) {
  const uint8_t *p = f->data + f->more, *const end = p + f->bounds;
  uint32_t set = 0, same = 0;  // how many bytes the bound of the set and the key share
  bool either = false;         // that bound is cut, and the key begins with it
  while (p < end) {
    uint32_t shared, len;
    p = kv_varint_get(p, end, &shared);
    p = kv_varint_get(p, end, &len);
    const bool cut = len & 1;
    len >>= 1;
    if (shared < same) break;  // above the key, as are those that follow
    if (shared == same) {
      uint32_t n = 0;
      while (n < len && same + n < rest.len && p[n] == rest.ptr[same + n]) n++;
      if (n < len && (same + n == rest.len || p[n] > rest.ptr[same + n])) break;
      same += n;
      either = cut && n == len;
    } else {
      either = false;  // it differs from the key where the one before does
    }
    set++;
    p += len;
  }
  *last_out = set;
  *first_out = set - either;
}

// The same by the number of the key's rest. A bound below the number's upper part is below the key, and one above is
// above it. An equal one may be either.
static void sets_by_numbers(const struct remix_filter *f, uint64_t number, uint32_t *first_out, uint32_t *last_out) {
  uint32_t lo = 0, hi = f->nr_sets - 1u;
  const uint64_t v = number < f->low ? 0 : (number - f->low) >> f->shift;
  if (number < f->low) hi = 0;
  if (number > f->high) lo = hi;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (bound_at(f, mid) < v) lo = mid + 1;
    else hi = mid;
  }
  *first_out = lo;
  if (number >= f->low && number <= f->high)
    while (hi + 1u < f->nr_sets && hi - lo < SETS_ASKED && bound_at(f, hi) == v) hi++;
  *last_out = hi;
}

// Compares the key with the bytes that all bounds begin with: 0, or the key is below or above all bounds.
static int compare_more(const struct remix_filter *f, struct kref key) {
  const uint32_t len = key.len - f->shared, nr = len < f->more ? len : f->more;
  const int r = nr ? memcmp(key.ptr + f->shared, f->data, nr) : 0;
  return r ? r : len < f->more ? -1 : 0;
}

bool remix_filter_asks(const struct remix_filter *f, struct kref key, uint8_t tag) {
  uint32_t first = 0, last = f->nr_sets - 1u;
  const uint32_t common = f->shared + f->more;
  if (key.len < f->shared) return true;
  const int side = compare_more(f, key);
  if (side < 0) last = 0;
  else if (side > 0) first = last;
  else if (last && f->width) sets_by_numbers(f, number_of(key, common), &first, &last);
  else if (last) sets_by_strings(f, kref(key.ptr + common, key.len - common), &first, &last);
  if (last - first >= SETS_ASKED) return true;
  for (uint32_t i = first; i <= last; i++)
    if (set_has(f, i, tag)) return true;
  return false;
}
