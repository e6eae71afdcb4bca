// SPDX-License-Identifier: Apache-2.0
//
// The list of the spaces' names: finding, changes, and the encoded form with every field out of its bounds.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/check.h"

#include "tests/lib/fault.h"
#include "view/names.h"

// Encodes a list and decodes the bytes again.
static struct names *through_bytes(const struct names *n) {
  const size_t size = names_size(n);
  uint8_t *const bytes = malloc(size);
  struct names *out;
  assert_ptr_equal(names_put(n, bytes), bytes + size);
  OK(names_decode(bytes, size, "CURRENT", 0, &out));
  free(bytes);
  return out;
}

static void name_of(uint32_t i, char *name, size_t *len) {
  *len = (size_t)snprintf(name, 32, "space %u", i * 37 % 101);
}

// Replaces *n by next.
static void replace(struct names **n, struct names *next) {
  names_unref(*n);
  *n = next;
}

// Makes a bound near some id: cut short, the id itself, or longer. Returns its length.
static uint32_t some_bound(uint64_t *rng, uint32_t next_id, uint8_t *buf) {
  names_id_put(buf, (uint32_t)(rng_next(rng) % (next_id + 2)));
  memset(buf + NAMES_ID, (int)(rng_next(rng) % 3), 2);
  return (uint32_t)(rng_next(rng) % (NAMES_ID + 3));
}

// A key of a space is in a range if the range and that of the space overlap.
static void expect_may_have(const struct names *n, uint64_t *rng, uint32_t next_id) {
  uint8_t a[sizeof(uint64_t)], b[sizeof(uint64_t)], id[NAMES_ID], end[NAMES_ID];
  const struct kref from = kref(a, some_bound(rng, next_id, a));
  const uint32_t len = some_bound(rng, next_id, b);
  const struct kref to = rng_next(rng) % 4 ? kref(b, len) : kref(NULL, 0);
  bool any = false;
  for (uint32_t i = 0; i < names_count(n); i++) {
    names_id_put(id, n->entries[i].id);
    names_id_put(end, n->entries[i].id + 1);
    const struct kref low = kref(id, NAMES_ID), high = kref(end, NAMES_ID);
    const struct kref least = kv_cmp(from, low) > 0 ? from : low;
    any = any || (kv_cmp(least, high) < 0 && (!to.ptr || kv_cmp(least, to) < 0));
  }
  assert_int_equal(names_may_have(n, from, to), any);
}

// Random changes beside a model: an id for each name, 0: none.
static void test_changes(void **state) {
  (void)state;
  enum { NAMES = 40, STEPS = 3000 };
  uint32_t ids[NAMES] = {0}, next_id = 1;
  uint64_t rng = 7;
  struct names *n = NULL, *next;
  for (uint32_t step = 0; step < STEPS; step++) {
    const uint32_t i = (uint32_t)(rng_next(&rng) % NAMES);
    char name[32];
    size_t len;
    name_of(i, name, &len);
    const struct names_entry *const e = names_find(n, name, len);
    assert_int_equal(e ? e->id : 0, ids[i]);
    if (ids[i]) {
      OK(names_drop(n, ids[i], &next));
      ids[i] = 0;
    } else {
      OK(names_add(n, name, len, &next));
      ids[i] = next_id++;
    }
    replace(&n, next);
    if (step % 7 == 0) replace(&n, through_bytes(n));
    assert_int_equal(n->next_id, next_id);
    uint32_t nr = 0;
    for (uint32_t k = 0; k < NAMES; k++) {
      uint8_t key[NAMES_ID + 1] = {0};
      names_id_put(key, ids[k] ? ids[k] : next_id);
      assert_int_equal(names_have_key(n, kref(key, NAMES_ID + k % 2)), ids[k] != 0);
      nr += ids[k] != 0;
    }
    assert_int_equal(names_count(n), nr);
    for (uint32_t k = 1; k < n->nr; k++) assert_true(n->entries[k - 1].id < n->entries[k].id);
    const uint32_t first = (uint32_t)(rng_next(&rng) % (next_id + 2)), last = first + (uint32_t)(rng_next(&rng) % 9);
    bool any = false;
    for (uint32_t k = 0; k < NAMES; k++) any = any || (ids[k] >= first && ids[k] <= last && ids[k]);
    assert_int_equal(names_have_ids(n, first, last), any);
    expect_may_have(n, &rng, next_id);
    // the stretches without a space, one after the other
    bool in_gap[9] = {false};
    uint32_t lo, hi, end = first;
    while (end <= last && names_gap(n, end, last, &lo, &hi)) {
      assert_true(lo >= end && hi >= lo && hi <= last);
      for (uint32_t id = lo; id <= hi; id++) in_gap[id - first] = true;
      end = hi + 1;
    }
    for (uint32_t id = first; id <= last; id++) assert_int_equal(in_gap[id - first], !names_find_id(n, id));
    assert_int_equal(names_dropped(n), names_count(n) + 1 < next_id);
  }
  names_unref(n);
}

static enum remixdb_status decode(const uint8_t *bytes, size_t len) {
  struct names *n = NULL;
  // exactly so much memory, so that a sanitizer notices a read behind it
  uint8_t *const copy = malloc(len ? len : 1);
  if (len) memcpy(copy, bytes, len);
  const enum remixdb_status s = names_decode(copy, len, "CURRENT", 0, &n);
  if (s == REMIXDB_OK) {
    assert_int_equal(names_size(n), len);
    names_unref(n);
  }
  free(copy);
  return s;
}

// Three spaces, "one", "two" and "six", with the ids 1, 3 and 4.
static size_t three(uint8_t *bytes) {
  static const char *const names[] = {"one", "mid", "two", "six"};
  struct names *n = NULL, *next;
  for (uint32_t i = 0; i < 4; i++) {
    OK(names_add(n, names[i], 3, &next));
    replace(&n, next);
  }
  OK(names_drop(n, 2, &next));
  replace(&n, next);
  const size_t size = names_size(n);
  names_put(n, bytes);
  names_unref(n);
  assert_int_equal(size, 8 + 3 * (8 + 3));
  return size;
}

#define FORGED(status, change)                \
  do {                                        \
    memcpy(b, sound, len);                    \
    change;                                   \
    assert_int_equal(decode(b, len), status); \
  } while (0)

static void test_forged(void **state) {
  (void)state;
  uint8_t sound[64], b[64];
  const size_t len = three(sound), first = 8, mid = first + 8 + 3, last = mid + 8 + 3;
  FORGED(REMIXDB_OK, (void)0);
  for (size_t cut = 0; cut < len; cut++) assert_int_equal(decode(sound, cut), REMIXDB_CORRUPT);
  // the next id: above all others, at least 2, within its bound
  FORGED(REMIXDB_CORRUPT, store32le(b, 0));
  FORGED(REMIXDB_CORRUPT, store32le(b, 4));
  FORGED(REMIXDB_OK, store32le(b, NAMES_ID_MAX));
  FORGED(REMIXDB_CORRUPT, store32le(b, NAMES_ID_MAX + 1));
  // the count
  for (uint32_t nr = 0; nr < 9; nr++) FORGED(nr == 3 ? REMIXDB_OK : REMIXDB_CORRUPT, store32le(b + 4, nr));
  FORGED(REMIXDB_CORRUPT, store32le(b + 4, UINT32_MAX));
  // ids: 0, not ascending
  FORGED(REMIXDB_CORRUPT, store32le(b + first, 0));
  FORGED(REMIXDB_CORRUPT, store32le(b + mid, 1));
  FORGED(REMIXDB_CORRUPT, store32le(b + mid, 4));
  FORGED(REMIXDB_CORRUPT, store32le(b + last, 5));
  // lengths
  for (uint32_t n = 0; n < 9; n++) FORGED(n == 3 ? REMIXDB_OK : REMIXDB_CORRUPT, store32le(b + last + 4, n));
  FORGED(REMIXDB_CORRUPT, store32le(b + first + 4, UINT32_MAX));
  // names: with a zero byte, with a newline, twice
  FORGED(REMIXDB_CORRUPT, b[first + 9] = 0);
  FORGED(REMIXDB_CORRUPT, b[first + 9] = '\n');
  FORGED(REMIXDB_CORRUPT, memcpy(b + last + 8, "one", 3));
  FORGED(REMIXDB_OK, memcpy(b + last + 8, "onf", 3));
  FORGED(REMIXDB_OK, store32le(b + mid, 2));
  // a store whose spaces are all dropped keeps the next id
  uint8_t none[8];
  store32le(none, 2);
  store32le(none + 4, 0);
  assert_int_equal(decode(none, sizeof(none)), REMIXDB_OK);
}

// The longest name, the last id, and no memory.
static void test_limits(void **state) {
  (void)state;
  char name[NAMES_LEN_MAX];
  struct names *n, *next = NULL;
  memset(name, 0xff, sizeof(name));
  OK(names_add(NULL, name, sizeof(name), &n));
  replace(&n, through_bytes(n));
  assert_int_equal(names_find(n, name, sizeof(name))->id, 1);
  assert_null(names_find(n, name, sizeof(name) - 1));
  n->next_id = NAMES_ID_MAX - 1;
  OK(names_add(n, "x", 1, &next));
  assert_int_equal(names_find(next, "x", 1)->id, NAMES_ID_MAX - 1);
  replace(&n, next);
  FAILS(names_add(n, "y", 1, &next), REMIXDB_TOOBIG);
  fault_mem_set(1);
  FAILS(names_drop(n, 1, &next), REMIXDB_NOMEM);
  assert_true(fault_mem_end());
  names_unref(n);
}

// Slots that a search for a name looks at.
static uint32_t looks(const struct names *n, const char *name, size_t len) {
  uint32_t i = (uint32_t)hash64(name, len) & n->mask, nr = 1;
  for (; n->slots[i] && names_find(n, name, len) != &n->entries[n->slots[i] - 1]; nr++) i = (i + 1) & n->mask;
  return nr;
}

// A name is found in a few steps among many, also behind drops and in a list that was read, and one that is not there
// is not.
static void test_many(void **state) {
  (void)state;
  enum { MANY = 3000 };
  struct names *n = NULL, *next;
  char name[32];
  for (uint32_t i = 0; i < MANY; i++) {
    OK(names_add(n, name, (size_t)snprintf(name, sizeof(name), "tenant-%05u", i), &next));
    replace(&n, next);
    if (i % 7 != 6) continue;
    OK(names_drop(n, n->entries[n->nr / 2].id, &next));
    replace(&n, next);
  }
  replace(&n, through_bytes(n));
  uint32_t there = 0, most = 0;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < 2 * MANY; i++) {
    const size_t len = (size_t)snprintf(name, sizeof(name), "tenant-%05u", i);
    const struct names_entry *const e = names_find(n, name, len);
    const uint32_t nr = looks(n, name, len);
    assert_true(!e || (e->len == len && memcmp(e->bytes, name, len) == 0));
    there += e != NULL;
    sum += nr;
    if (nr > most) most = nr;
  }
  assert_int_equal(there, n->nr);
  assert_true(n->nr > MANY * 4 / 5 && n->nr < MANY && sum < 8 * MANY && most < 100);
  names_unref(n);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_many),
      cmocka_unit_test(test_changes),
      cmocka_unit_test(test_forged),
      cmocka_unit_test(test_limits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
