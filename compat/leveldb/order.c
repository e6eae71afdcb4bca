// SPDX-License-Identifier: Apache-2.0
//
// Whether a comparator orders keys as memcmp does, which is the only order that the store has. No finite number of
// pairs proves that. The pairs here are chosen so that the orders which programs do use differ from it at some pair:
// reversed order, numbers in text or in either byte order, letters without case, signed bytes, lengths first, parts of
// keys ignored. A comparator that passes is compared again with each write.
#include "compat/leveldb/internal.h"

#define PAIRS 4000u
#define KEY_MAX 24u

struct key {
  char bytes[KEY_MAX];
  size_t len;
};

static int sign(int n) { return (n > 0) - (n < 0); }

static int bytes_order(const char *a, size_t alen, const char *b, size_t blen) {
  const int c = memcmp(a, b, alen < blen ? alen : blen);
  return c ? sign(c) : (alen > blen) - (alen < blen);
}

static bool agrees(const leveldb_comparator_t *c, const char *a, size_t alen, const char *b, size_t blen) {
  return sign(c->compare(c->state, a, alen, b, blen)) == bytes_order(a, alen, b, blen);
}

// The next number of a fixed sequence (xorshift64*): an opening must not succeed one time and fail the next.
static uint32_t next(uint64_t *rng, uint32_t below) {
  *rng ^= *rng >> 12;
  *rng ^= *rng << 25;
  *rng ^= *rng >> 27;
  return (uint32_t)((*rng * 0x2545F4914F6CDD1Dull) >> 33) % below;
}

static const char *const alphabets[] = {"0123456789", "aAbBzZ", "\x01\x7f\x80\xff", "/.-_:", "ab0", " \t\n"};
#define NR_ALPHABETS (sizeof(alphabets) / sizeof(alphabets[0]))

// A key of one alphabet, or of any bytes.
static void some_key(uint64_t *rng, struct key *k) {
  const uint32_t which = next(rng, NR_ALPHABETS + 2);
  k->len = next(rng, 4) ? next(rng, KEY_MAX + 1) : 4u << next(rng, 2);
  for (size_t i = 0; i < k->len; i++)
    k->bytes[i] = which < NR_ALPHABETS ? alphabets[which][next(rng, (uint32_t)strlen(alphabets[which]))]
                                       : (char)next(rng, 256);
}

// A key that differs little from another: in one byte, or in its length.
static void similar_key(uint64_t *rng, const struct key *of, struct key *k) {
  *k = *of;
  if (k->len && next(rng, 2)) k->bytes[next(rng, (uint32_t)k->len)] = (char)next(rng, 256);
  else if (k->len && next(rng, 2)) k->len--;
  else if (k->len < KEY_MAX) k->bytes[k->len++] = (char)(next(rng, 2) ? 0 : next(rng, 256));
}

bool ldb_order_of_bytes(const leveldb_comparator_t *c) {
  uint64_t rng = 0x9E3779B97F4A7C15ull;
  for (uint32_t a = 0; a < 256; a++) {  // all single bytes beside their neighbours
    const char one = (char)a, two = (char)(a + 1);
    if (!agrees(c, &one, 1, &two, 1) || !agrees(c, &two, 1, &one, 1) || !agrees(c, &one, 1, &one, 1)) return false;
  }
  for (uint32_t i = 0; i < PAIRS; i++) {
    struct key a, b;
    some_key(&rng, &a);
    if (i % 2) similar_key(&rng, &a, &b);
    else some_key(&rng, &b);
    if (!agrees(c, a.bytes, a.len, b.bytes, b.len) || !agrees(c, b.bytes, b.len, a.bytes, a.len)) return false;
  }
  return true;
}

bool ldb_order_holds(leveldb_t *db, const char *key, size_t klen, char **errptr) {
  if (!db->comparator) return true;
  (void)pthread_mutex_lock(&db->lock);
  const bool holds = !db->has_earlier || agrees(db->comparator, key, klen, db->earlier, db->earlier_len);
  if (klen <= LDB_KEY_KEPT) {
    if (klen) memcpy(db->earlier, key, klen);
    db->earlier_len = klen;
    db->has_earlier = true;
  }
  (void)pthread_mutex_unlock(&db->lock);
  if (!holds) ldb_error(errptr, "Invalid argument", "the comparator does not order this key as its bytes do");
  return holds;
}
