// SPDX-License-Identifier: Apache-2.0
//
// Finding among anchors against a search in an array: strings of all shapes, so that the numbers they are cut in agree
// by a little, by much, and all the way down.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include "base/anchors.h"

static uint64_t seed_start(const char *what) {
  const char *s = getenv("TEST_SEED");
  const uint64_t seed = s ? strtoull(s, NULL, 0) : time_ns();
  print_message("%s: TEST_SEED=%llu\n", what, (unsigned long long)seed);
  return seed;
}

// ---- strings

struct strings {
  struct kref *at;  // at[0] is empty; ascending
  uint32_t nr;
  uint8_t *offs, *bytes;
};

static int by_key(const void *a, const void *b) { return kv_cmp(*(const struct kref *)a, *(const struct kref *)b); }

// Takes over the keys in s->at[1 .. nr - 1], of memory of their own, in any order.
static void strings_close(struct strings *s) {
  size_t all = 0;
  uint32_t nr = 1;
  s->at[0] = kref(NULL, 0);
  qsort(s->at + 1, s->nr - 1, sizeof(s->at[0]), by_key);
  for (uint32_t i = 1; i < s->nr; i++) {
    if (kv_eq(s->at[nr - 1], s->at[i])) free((void *)(uintptr_t)s->at[i].ptr);
    else s->at[nr++] = s->at[i];
  }
  s->nr = nr;
  for (uint32_t i = 1; i < nr; i++) all += s->at[i].len;
  s->offs = malloc(4 * ((size_t)nr + 1));
  s->bytes = malloc(all + 1);
  all = 0;
  for (uint32_t i = 0; i < nr; i++) {
    store32le(s->offs + 4 * (size_t)i, (uint32_t)all);
    if (s->at[i].len) memcpy(s->bytes + all, s->at[i].ptr, s->at[i].len);
    all += s->at[i].len;
  }
  store32le(s->offs + 4 * (size_t)nr, (uint32_t)all);
}

static void strings_free(struct strings *s) {
  for (uint32_t i = 1; i < s->nr; i++) free((void *)(uintptr_t)s->at[i].ptr);
  free(s->at);
  free(s->offs);
  free(s->bytes);
}

static uint32_t model(const struct strings *s, struct kref key) {
  uint32_t lo = 0, hi = s->nr - 1;
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo + 1) / 2;
    if (kv_cmp(s->at[mid], key) <= 0) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

static struct kref copy(const uint8_t *p, uint32_t len) {
  uint8_t *q = malloc(len + 1);
  if (len) memcpy(q, p, len);
  return kref(q, len);
}

struct shape {
  uint32_t common;   // bytes that all share
  uint32_t groups;   // then one of so many stretches,
  uint32_t stretch;  // bytes of each; one of them tells it from the others
  uint32_t layers;   // and so on, so often
  uint32_t tail;     // then at most so many random ones
  uint32_t letters;  // the first so many letters below
};

#define KEY_MAX 2048u

static uint32_t shape_key(const struct shape *s, uint64_t *rng, uint8_t *buf) {
  static const uint8_t letters[] = {0, 0xff, 'a', 'b', 1, 0x80, 0x7f, 'z'};
  uint32_t len = 0;
  for (; len < s->common; len++) buf[len] = (uint8_t)('k' + len % 3);
  for (uint32_t l = 0; l < s->layers; l++) {
    const uint32_t which = (uint32_t)(rng_next(rng) % s->groups);
    for (uint32_t i = 0; i < s->stretch; i++, len++)
      buf[len] = (uint8_t)(i == which % s->stretch ? which : s->letters == 1 ? 0 : 's');
    if (rng_next(rng) % 8 == 0) return len;
  }
  for (uint32_t n = (uint32_t)(rng_next(rng) % (s->tail + 1)); n > 0; n--)
    buf[len++] = letters[rng_next(rng) % s->letters];
  return len;
}

// A key at or near a string, or one of the shape.
static struct kref probe(const struct strings *s, const struct shape *shape, uint64_t *rng, uint8_t *buf) {
  if (rng_next(rng) % 4 == 0) return kref(buf, shape_key(shape, rng, buf));
  const struct kref k = s->at[rng_next(rng) % s->nr];
  uint32_t len = k.len;
  if (len) memcpy(buf, k.ptr, len);
  switch (rng_next(rng) % 7) {
    case 0: buf[len++] = 0; break;
    case 1: buf[len++] = 0xff; break;
    case 2: len = len ? (uint32_t)(rng_next(rng) % len) : 0; break;
    case 3:
      if (len) buf[rng_next(rng) % len] ^= (uint8_t)(1u << rng_next(rng) % 8);
      break;
    case 4:
      if (len) buf[len - 1]--;
      break;
    case 5:
      for (uint32_t n = (uint32_t)(rng_next(rng) % 12); n > 0; n--) buf[len++] = 0;
      break;
    default: break;
  }
  return kref(buf, len);
}

static uint32_t cuts;   // strings that had some
static uint32_t rises;  // and those whose ends were rising numbers
static uint32_t quick;  // quick searches that found the string

static void quick_check(const struct anchors_quick *q, struct kref key, uint32_t expected) {
  const uint32_t found = anchors_quick_find(q, key);
  if (found != ANCHORS_UNKNOWN) assert_int_equal(found, expected);
  quick += found != ANCHORS_UNKNOWN;
}

// Many keys side by side, among all strings, among the first half of them, and among none.
static void many_check(const struct strings *s, const struct anchors *a, const struct shape *shape, uint32_t times,
                       uint64_t *rng) {
  static uint8_t buf[ANCHORS_MANY_MAX][KEY_MAX + 64];
  struct anchors half, none = {0};
  struct anchors_lookup wants[ANCHORS_MANY_MAX];
  uint32_t found[ANCHORS_MANY_MAX], expected[ANCHORS_MANY_MAX];
  OK(anchors_init(&half, s->offs, s->bytes, (s->nr + 1) / 2));
  for (uint32_t t = 0; t < times; t++) {
    const uint32_t nr = (uint32_t)(rng_next(rng) % (ANCHORS_MANY_MAX + 1));
    for (uint32_t i = 0; i < nr; i++) {
      const uint32_t of = (uint32_t)(rng_next(rng) % 8);
      wants[i].key = probe(s, shape, rng, buf[i]);
      wants[i].anchors = of == 0 ? &none : of < 3 ? &half : a;
      expected[i] = of == 0 ? 0 : model(s, wants[i].key);
      if (of < 3 && of && expected[i] >= half.nr) expected[i] = half.nr - 1;
    }
    anchors_find_many(wants, nr, found);
    for (uint32_t i = 0; i < nr; i++)
      if (found[i] != expected[i])
        fail_msg("key of %u bytes: string %u, %u expected of %u", wants[i].key.len, found[i], expected[i],
                 wants[i].anchors->nr);
  }
  anchors_fini(&half);
}

// The same numbers in their short form; NULL: a line cannot have them.
static struct rising_line *rising_of(const uint8_t *numbers, uint32_t nr) {
  struct rising_line *const lines = malloc(rising_lines(nr) * sizeof(*lines));
  assert_non_null(lines);
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t v = load32le(numbers + 4 * (size_t)i);
    if (v - load32le(numbers + 4 * (size_t)(i - i % RISING_LINE)) > RISING_MOST) {
      free(lines);
      return NULL;
    }
    rising_set(lines, i, v);
    assert_int_equal(rising_at(lines, i), v);
  }
  for (uint32_t i = 0; i < nr; i++) assert_int_equal(rising_at(lines, i), load32le(numbers + 4 * (size_t)i));
  return lines;
}

// The same strings with a cut, and with ends that are rising numbers or not.
static void cut_check(const struct strings *s, const struct shape *shape, uint32_t times, uint64_t *rng) {
  const uint32_t common = s->nr > 2 ? kv_lcp_from(s->at[1], s->at[s->nr - 1], 0) : s->nr > 1 ? s->at[1].len : 0;
  const uint32_t most = s->nr > 1 && common == s->at[1].len ? common - 1 : common;
  const uint32_t cut = rng_next(rng) % 2 ? most : (uint32_t)(rng_next(rng) % (most + 1));
  uint8_t *const offs = malloc(4 * ((size_t)s->nr + 1)), *const bytes = malloc(load32le(s->offs + 4 * (size_t)s->nr) +
                                                                               1);
  static uint8_t buf[ANCHORS_MANY_MAX][KEY_MAX + 64];
  struct anchors_lookup wants[ANCHORS_MANY_MAX];
  uint32_t found[ANCHORS_MANY_MAX], at = 0;
  struct anchors a;
  for (uint32_t i = 0; i < s->nr; i++) {
    store32le(offs + 4 * (size_t)i, at);
    if (i == 0) continue;
    memcpy(bytes + at, s->at[i].ptr + cut, s->at[i].len - cut);
    at += s->at[i].len - cut;
  }
  store32le(offs + 4 * (size_t)s->nr, at);
  a = (struct anchors){.nr = s->nr, .bytes = bytes, .cut = cut, .head = s->nr > 1 ? s->at[1].ptr : NULL};
  struct rising_line *const rising = rng_next(rng) % 2 ? rising_of(offs, s->nr + 1) : NULL;
  a.offs = rising ? NULL : offs;
  a.rising = rising;
  OK(anchors_prepare(&a));
  struct anchors_quick q = {.owned = 77};
  anchors_quick_set(&q, &a);
  for (uint32_t t = 0; t < times; t += ANCHORS_MANY_MAX) {
    for (uint32_t i = 0; i < ANCHORS_MANY_MAX; i++) {
      wants[i] = (struct anchors_lookup){&a, probe(s, shape, rng, buf[i])};
      if (t + i < s->nr) wants[i].key = s->at[t + i];
    }
    anchors_find_many(wants, ANCHORS_MANY_MAX, found);
    for (uint32_t i = 0; i < ANCHORS_MANY_MAX; i++) {
      const uint32_t expected = model(s, wants[i].key);
      assert_int_equal(found[i], expected);
      assert_int_equal(anchors_find(&a, wants[i].key), expected);
      quick_check(&q, wants[i].key, expected);
      assert_true(anchors_cmp(&a, expected, wants[i].key) <= 0);
      if (expected + 1 < s->nr) assert_true(anchors_cmp(&a, expected + 1, wants[i].key) > 0);
    }
  }
  cuts += cut > 0;
  rises += rising != NULL;
  assert_int_equal(q.owned, 77);
  anchors_fini(&a);
  free(rising);
  free(offs);
  free(bytes);
}

static void strings_check(const struct strings *s, const struct shape *shape, uint32_t times, uint64_t *rng) {
  struct anchors a;
  OK(anchors_init(&a, s->offs, s->bytes, s->nr));
  uint8_t buf[KEY_MAX + 64];
  for (uint32_t i = 0; i < s->nr + times; i++) {
    const struct kref key = i < s->nr ? s->at[i] : probe(s, shape, rng, buf);
    const uint32_t got = anchors_find(&a, key), plain = anchors_find_plain(&a, key), expected = model(s, key);
    if (got != expected) fail_msg("key of %u bytes: string %u, %u expected of %u", key.len, got, expected, s->nr);
    if (plain != expected) fail_msg("key of %u bytes: plain string %u, %u expected", key.len, plain, expected);
  }
  assert_int_equal(anchors_find(&a, kref(NULL, 0)), 0);
  for (uint32_t i = 0; i < s->nr; i++) assert_true(kv_eq(anchors_at(&a, i), s->at[i]));
  many_check(s, &a, shape, 1 + times / 50, rng);
  cut_check(s, shape, times, rng);
  anchors_fini(&a);
}

static void test_shapes(void **state) {
  (void)state;
  uint64_t rng = seed_start("shapes");
  static const struct shape shapes[] = {
      {0, 1, 1, 0, 12, 8},  {0, 1, 1, 0, 3, 3},   {1, 1, 1, 0, 10, 8},   {7, 1, 1, 0, 3, 8},
      {8, 1, 1, 0, 8, 8},   {20, 1, 1, 0, 20, 2}, {0, 3, 9, 1, 6, 8},    {5, 20, 8, 2, 4, 4},
      {9, 4, 30, 3, 6, 8},  {0, 2, 16, 12, 3, 2}, {40, 50, 7, 3, 20, 8}, {3, 2, 100, 12, 2, 8},
      {0, 4, 10, 4, 10, 1}, {0, 1, 1, 0, 40, 1},  {6, 7, 5, 6, 12, 1},   {0, 200, 4, 4, 0, 1},
  };
  for (uint32_t n = 0; n < sizeof(shapes) / sizeof(shapes[0]); n++)
    for (uint32_t round = 0; round < 12; round++) {
      static const uint32_t sizes[] = {1, 2, 5, 9, 30, 300, 3000};
      const uint32_t nr = 1 + (uint32_t)(rng_next(&rng) % sizes[round % 7]);
      struct strings s = {.at = malloc((nr + 1) * sizeof(*s.at)), .nr = 1};
      uint8_t buf[KEY_MAX];
      for (uint32_t i = 0; i < nr; i++) {
        const uint32_t len = shape_key(&shapes[n], &rng, buf);
        if (len) s.at[s.nr++] = copy(buf, len);
      }
      strings_close(&s);
      strings_check(&s, &shapes[n], 1500, &rng);
      strings_free(&s);
    }
  print_message("  %u cuts, %u of rising ends\n", cuts, rises);
  assert_true(cuts > 30 && rises > 30);
}

// A probe as above, or with bytes at the first places that no string has there: also after all others, and before them.
static struct kref cell_probe(const struct strings *s, uint64_t *rng, uint8_t *buf) {
  const struct kref k = s->at[rng_next(rng) % s->nr];
  uint32_t len = k.len;
  if (len) memcpy(buf, k.ptr, len);
  for (uint32_t n = (uint32_t)(rng_next(rng) % 4); n > 0 && len > 0; n--) {
    uint8_t *const byte = &buf[rng_next(rng) % (len < 12 ? len : 12)];
    const uint64_t kind = rng_next(rng) % 5;
    *byte = kind == 0   ? 0
            : kind == 1 ? 0xff
            : kind == 2 ? (uint8_t)rng_next(rng)
                        : (uint8_t)(*byte + (kind == 3 ? 1 : -1));
  }
  if (rng_next(rng) % 4 == 0) len = (uint32_t)(rng_next(rng) % (len + 1));
  if (rng_next(rng) % 4 == 0) buf[len++] = (uint8_t)rng_next(rng);
  return kref(buf, len);
}

// Sets the first two letters: the first one of the `part` lowest, the second one of the upper half, if the first is the
// lowest, and of the lower half, if it is the highest. So the strings are a stretch of all.
static void stretch_put(uint8_t *to, const uint8_t *letters, uint32_t nr, uint32_t part, uint64_t *rng) {
  uint8_t sorted[256];
  for (uint32_t i = 0; i < nr; i++) {
    uint32_t at = i;
    for (; at > 0 && sorted[at - 1] > letters[i]; at--) sorted[at] = sorted[at - 1];
    sorted[at] = letters[i];
  }
  const uint32_t first = (uint32_t)(rng_next(rng) % part);
  to[0] = sorted[first];
  if (first == 0 || first + 1 == part) to[1] = sorted[rng_next(rng) % (nr / 2) + (first == 0 ? nr / 2 : 0)];
}

// Thousands of strings of one alphabet, which are cut in cells: evenly, some of them crowded, and so unevenly that
// there are no cells.
static void test_cells(void **state) {
  (void)state;
  uint64_t rng = seed_start("cells");
  static const struct {
    const char *what;
    uint32_t common, letters, len,
        crowded;       // letters: so many of all bytes; crowded: of 100 strings, those that share their first bytes
    bool cells, even;  // even: few cells are crowded, and the tree has no levels
    uint32_t part;     // the first letter is one of so many; 0: of all
  } sets[] = {
      {"bytes", 0, 256, 16, 0, true, true, 0},
      {"bytes behind a prefix", 11, 256, 6, 0, true, true, 0},
      {"hexadecimal", 3, 16, 12, 0, true, true, 0},
      {"digits", 4, 10, 16, 0, true, true, 0},
      {"bits", 0, 2, 64, 0, false, false, 0},
      {"crowded", 0, 256, 8, 20, true, false, 0},
      {"too crowded", 0, 64, 8, 60, false, false, 0},
      {"few letters", 2, 5, 20, 0, true, false, 0},
      {"short", 0, 40, 3, 0, true, false, 0},
      {"a part of hexadecimal", 0, 16, 12, 0, true, true, 2},
      {"a stretch of digits", 2, 10, 16, 0, true, true, 1},
  };
  for (uint32_t n = 0; n < sizeof(sets) / sizeof(sets[0]); n++)
    for (uint32_t round = 0; round < 3; round++) {
      const uint32_t nr = 4000 + (uint32_t)(rng_next(&rng) % 12000);
      struct strings s = {.at = malloc((nr + 1) * sizeof(*s.at)), .nr = 1};
      uint8_t letters[256], buf[128], crowd[8];
      for (uint32_t i = 0; i < 256; i++) letters[i] = (uint8_t)i;
      for (uint32_t i = 0; i < 255; i++) {
        const uint32_t with = i + (uint32_t)(rng_next(&rng) % (256 - i));
        const uint8_t was = letters[i];
        letters[i] = letters[with];
        letters[with] = was;
      }
      for (uint32_t i = 0; i < sizeof(crowd); i++) crowd[i] = letters[rng_next(&rng) % sets[n].letters];
      for (uint32_t i = 0; i < nr; i++) {
        memset(buf, 'p', sets[n].common);
        uint32_t len = sets[n].common;
        const bool in = rng_next(&rng) % 100 < sets[n].crowded;
        for (uint32_t k = 0; k < sets[n].len; k++)
          buf[len++] = in && k < 4 ? crowd[k] : letters[rng_next(&rng) % sets[n].letters];
        if (sets[n].part) stretch_put(buf + sets[n].common, letters, sets[n].letters, sets[n].part, &rng);
        if (rng_next(&rng) % 8 == 0 && !sets[n].part) len -= (uint32_t)(rng_next(&rng) % sets[n].len);
        s.at[s.nr++] = copy(buf, len);
      }
      strings_close(&s);
      struct anchors a;
      OK(anchors_init(&a, s.offs, s.bytes, s.nr));
      if (sets[n].cells != ((const uint8_t *)a.cells > (const uint8_t *)a.lines))
        fail_msg("%s: %s cells", sets[n].what, sets[n].cells ? "no" : "has");
      if (sets[n].cells && anchors_memory(&a) > 32ull * s.nr)
        fail_msg("%s: %zu bytes for %u", sets[n].what, anchors_memory(&a), s.nr);
      // few letters with a zero among them: many strings share a number, because shorter ones end in zeros
      const bool zeros = sets[n].letters < 256 && memchr(letters, 0, sets[n].letters);
      if (sets[n].even && !zeros && anchors_memory(&a) > 24ull * s.nr)
        fail_msg("%s: %zu bytes for %u, so there are levels", sets[n].what, anchors_memory(&a), s.nr);
      for (uint32_t i = 0; i < s.nr; i++) assert_int_equal(anchors_find(&a, s.at[i]), i);
      struct anchors_quick q;
      anchors_quick_set(&q, &a);
      quick = 0;
      for (uint32_t i = 0; i < 40000; i++) {
        const struct kref key = cell_probe(&s, &rng, buf);
        const uint32_t got = anchors_find(&a, key), expected = model(&s, key);
        quick_check(&q, key, expected);
        if (got != expected)
          fail_msg("%s: key of %u bytes: string %u, %u expected of %u", sets[n].what, key.len, got, expected, s.nr);
      }
      if (a.celled && sets[n].len >= 12 && quick < 8000) fail_msg("%s: %u quick searches", sets[n].what, quick);
      cut_check(&s, &(struct shape){sets[n].common, 1, 1, 0, sets[n].len, 8}, 1000, &rng);
      // after all strings, and the greatest number of all, which is what a cell's line is filled up with
      memset(buf, 'p', sets[n].common);
      memset(buf + sets[n].common, 0xFF, 20);
      for (uint32_t len = sets[n].common; len <= sets[n].common + 20; len++)
        assert_int_equal(anchors_find(&a, kref(buf, len)), model(&s, kref(buf, len)));
      for (uint32_t i = 0; i < 500; i++) {
        static uint8_t bufs[ANCHORS_MANY_MAX][128];
        struct anchors_lookup wants[ANCHORS_MANY_MAX];
        uint32_t found[ANCHORS_MANY_MAX];
        for (uint32_t k = 0; k < ANCHORS_MANY_MAX; k++)
          wants[k] = (struct anchors_lookup){&a, cell_probe(&s, &rng, bufs[k])};
        anchors_find_many(wants, ANCHORS_MANY_MAX, found);
        for (uint32_t k = 0; k < ANCHORS_MANY_MAX; k++) assert_int_equal(found[k], model(&s, wants[k].key));
      }
      anchors_fini(&a);
      strings_free(&s);
    }
}

// Every length of zeros, alone and before others: numbers that are equal of strings that are not.
static void test_zeros(void **state) {
  (void)state;
  uint64_t rng = 3;
  static const struct shape shape = {0, 1, 1, 0, 30, 2};
  for (uint32_t common = 0; common < 20; common++) {
    struct strings s = {.at = malloc(2000 * sizeof(*s.at)), .nr = 1};
    uint8_t buf[KEY_MAX];
    memset(buf, 'c', common);
    for (uint32_t zeros = common == 0; zeros < 40; zeros++) {
      memset(buf + common, 0, zeros);
      s.at[s.nr++] = copy(buf, common + zeros);
      for (uint32_t i = 1; i < 40; i++) {
        buf[common + zeros] = (uint8_t)i;
        s.at[s.nr++] = copy(buf, common + zeros + 1);
      }
    }
    strings_close(&s);
    strings_check(&s, &shape, 3000, &rng);
    strings_free(&s);
  }
}

// Few strings, with numbers of all ones among them: nodes that are full but for their padding. Up to 7 numbers are one
// node.
static void test_few(void **state) {
  (void)state;
  uint64_t rng = 4;
  static const struct shape shape = {0, 1, 1, 0, 12, 3};
  for (uint32_t nr = 2; nr <= 80; nr++) {
    struct strings s = {.at = malloc((nr + 1) * sizeof(*s.at)), .nr = 1};
    for (uint32_t i = 0; i < nr; i++) {
      uint8_t buf[10] = {(uint8_t)(i + 1), 1, 2, 3, 4, 5, 6, 7, 8, 9};
      if (i + 1 == nr) memset(buf, 0xFF, 8);
      s.at[s.nr++] = copy(buf, 8 + i % 3);
    }
    strings_close(&s);
    struct anchors a;
    OK(anchors_init(&a, s.offs, s.bytes, s.nr));
    assert_int_equal(a.nr_plain, nr < 8 ? 1 : nr < 64 ? 2 : 3);
    for (uint32_t i = 0; i < 300; i++) {
      uint8_t buf[9];
      for (uint32_t b = 0; b < 9; b++)
        buf[b] = i < 100 ? 0xFF : (uint8_t)(b ? rng_next(&rng) : rng_next(&rng) % (nr + 3));
      const struct kref key = kref(buf, 8 + i % 2);
      assert_int_equal(anchors_find_plain(&a, key), model(&s, key));
    }
    anchors_fini(&a);
    strings_check(&s, &shape, 1000, &rng);
    strings_free(&s);
  }
}

static void test_none(void **state) {
  (void)state;
  struct anchors a;
  uint8_t offs[8] = {0};
  for (uint32_t nr = 0; nr < 2; nr++) {
    OK(anchors_init(&a, offs, offs, nr));
    assert_int_equal(anchors_find(&a, kref("key", 3)), 0);
    assert_int_equal(anchors_find(&a, kref(NULL, 0)), 0);
    anchors_fini(&a);
  }
  a = (struct anchors){0};
  anchors_fini(&a);
}

static _Atomic uint64_t fault_left;

static bool fault(size_t size) {
  (void)size;
  return atomic_fetch_sub(&fault_left, 1) != 1;
}

static void no_memory(const struct shape *shape) {
  uint64_t rng = 5;
  struct strings s = {.at = malloc(3000 * sizeof(*s.at)), .nr = 1};
  uint8_t buf[KEY_MAX];
  for (uint32_t i = 0; i < 2900; i++) s.at[s.nr++] = copy(buf, shape_key(shape, &rng, buf));
  strings_close(&s);
  uint64_t n = 1;
  for (;; n++) {
    struct anchors a;
    atomic_store(&fault_left, n);
    atomic_store(&mem_fault, fault);
    const enum remixdb_status made = anchors_init(&a, s.offs, s.bytes, s.nr);
    atomic_store(&mem_fault, NULL);
    if (made == REMIXDB_OK) {
      anchors_fini(&a);
      break;
    }
    FAILS(made, REMIXDB_NOMEM);
  }
  assert_true(n > 10);
  strings_free(&s);
}

static void test_no_memory(void **state) {
  (void)state;
  no_memory(&(struct shape){4, 9, 20, 3, 3, 8});
  no_memory(&(struct shape){0, 1, 1, 0, 12, 8});  // with cells
}

// Strings in groups that agree in far more than 8 bytes cost little more memory than others.
static void test_memory(void **state) {
  (void)state;
  struct strings s = {.at = malloc(60001 * sizeof(*s.at)), .nr = 1};
  for (uint32_t i = 0; i < 60000; i++) {
    char buf[128];
    const int len = sprintf(buf, "https://www.site-%04u.example/library/section/item-%05u", i / 300, i * 7);
    s.at[s.nr++] = copy((const uint8_t *)buf, (uint32_t)len);
  }
  strings_close(&s);
  struct anchors a;
  OK(anchors_init(&a, s.offs, s.bytes, s.nr));
  assert_true(anchors_memory(&a) < 16ull * s.nr);
  anchors_fini(&a);
  strings_free(&s);
}

// Rising numbers at the borders of lines, and with the largest difference that a line can have.
static void test_rising(void **state) {
  (void)state;
  static const uint32_t sizes[] = {1, 2, 29, 30, 31, 60, 61};
  for (uint32_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
    const uint32_t nr = sizes[k];
    struct rising_line lines[3];
    assert_int_equal(rising_lines(nr), nr <= 30 ? 1 : nr <= 60 ? 2 : 3);
    for (uint32_t most = 0; most <= RISING_MOST; most += RISING_MOST) {
      // each line ascends by `most` at its last number, and by as much again at the first of the next line
      for (uint32_t i = 0; i < nr; i++) rising_set(lines, i, 7 + most * (2 * (i / 30) + (i % 30 == 29)));
      for (uint32_t i = 0; i < nr; i++)
        assert_int_equal(rising_at(lines, i), 7 + most * (2 * (i / 30) + (i % 30 == 29)));
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shapes), cmocka_unit_test(test_cells),  cmocka_unit_test(test_zeros),
      cmocka_unit_test(test_few),    cmocka_unit_test(test_none),   cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_memory), cmocka_unit_test(test_rising),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
