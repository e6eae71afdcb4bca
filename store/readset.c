// SPDX-License-Identifier: Apache-2.0
#include "store/readset.h"

#include <stdlib.h>

#define RANGES_FIRST 16u   // room for ranges at first
#define SORT_FIRST 1024u   // so many ranges are sorted first
#define CHUNK (16u << 10)  // bytes of a chunk of keys; longer keys have their own
#define CHUNK_FIRST 1000u

struct readset_bytes {
  struct readset_bytes *next;
  size_t size;
  uint8_t bytes[];
};

static void chunks_free(struct readset_bytes *c) {
  while (c) {
    struct readset_bytes *const next = c->next;
    mem_free(c);
    c = next;
  }
}

void readset_fini(struct readset *set) {
  chunks_free(set->bytes);
  mem_free(set->ranges);
  memset(set, 0, sizeof(*set));
}

void readset_clear(struct readset *set) {
  struct readset_bytes *first = set->bytes;
  while (first && first->next) first = first->next;
  if (first != set->bytes || set->cap > RANGES_FIRST || (first && first->size > CHUNK_FIRST)) {
    readset_fini(set);
    return;
  }
  set->nr = set->used = 0;
}

// Copies a key. Returns NULL if memory is missing.
static const uint8_t *copy(struct readset *set, struct kref key) {
  if (!set->bytes || key.len > set->bytes->size - set->used) {
    size_t size = set->bytes ? CHUNK : CHUNK_FIRST;
    if (size < key.len) size = key.len;
    struct readset_bytes *const c = mem_alloc(sizeof(*c) + size);
    if (!c) return NULL;
    c->size = size;
    c->next = set->bytes;
    set->bytes = c;
    set->used = 0;
  }
  uint8_t *const p = set->bytes->bytes + set->used;
  if (key.len) memcpy(p, key.ptr, key.len);
  set->used += key.len;
  return p;
}

// Compares the ends of two ranges.
static int end_cmp(const struct read_range *a, const struct read_range *b) {
  if (!a->to.ptr || !b->to.ptr) return (a->to.ptr == NULL) - (b->to.ptr == NULL);
  const int c = kv_cmp(a->to, b->to);
  return c ? c : (int)b->below - (int)a->below;
}

// Tells whether no key lies between the end of a and the beginning of b, which does not begin before a.
static bool touches(const struct read_range *a, const struct read_range *b) {
  if (!a->to.ptr) return true;
  const int c = kv_cmp(b->from, a->to);
  if (c <= 0) return true;
  // The key after `to` is `to` with a byte of zero behind it.
  return !a->below && b->from.len == a->to.len + 1 && b->from.ptr[a->to.len] == 0 &&
         kv_eq(kref(b->from.ptr, a->to.len), a->to);
}

static int range_cmp(const void *a, const void *b) {
  const struct read_range *const x = a, *const y = b;
  const int c = kv_cmp(x->from, y->from);
  return c ? c : end_cmp(x, y);
}

// Copies the keys that are left, so that the other keys' memory is free. Without memory all stay.
static void compact(struct readset *set) {
  struct readset fresh = {0};
  for (size_t i = 0; i < set->nr; i++) {
    struct read_range *const r = &set->ranges[i];
    const bool key = read_range_is_key(r);
    // The old chunks stay until all copies are made, so a failure leaves ranges with keys in both.
    const uint8_t *const from = copy(&fresh, r->from), *const to = !from || key || !r->to.ptr ? from
                                                                                              : copy(&fresh, r->to);
    if (!to) {
      struct readset_bytes *last = fresh.bytes;
      while (last && last->next) last = last->next;
      if (last) {
        last->next = set->bytes->next;
        set->bytes->next = fresh.bytes;
      }
      return;
    }
    r->from.ptr = from;
    if (r->to.ptr) r->to.ptr = to;
  }
  chunks_free(set->bytes);
  set->bytes = fresh.bytes;
  set->used = fresh.used;
}

void readset_sort(struct readset *set) {
  if (set->sorted || set->nr == 0) return;
  qsort(set->ranges, set->nr, sizeof(set->ranges[0]), range_cmp);
  size_t nr = 1;
  for (size_t i = 1; i < set->nr; i++) {
    struct read_range *const last = &set->ranges[nr - 1];
    const struct read_range *const r = &set->ranges[i];
    if (!touches(last, r)) {
      set->ranges[nr++] = *r;
    } else if (end_cmp(last, r) < 0) {
      last->to = r->to;
      last->below = r->below;
    }
  }
  const bool much_less = nr <= set->nr / 2;
  set->nr = nr;
  set->sorted = true;
  if (much_less && set->bytes->next) compact(set);
}

// Makes room for one more range.
static enum remixdb_status reserve(struct readset *set) {
  if (set->sort_at == 0) set->sort_at = SORT_FIRST;
  if (set->nr == set->sort_at) {
    readset_sort(set);
    set->sort_at = set->nr * 2 > SORT_FIRST ? set->nr * 2 : SORT_FIRST;
  }
  if (set->nr < set->cap) return REMIXDB_OK;
  struct read_range *const grown = mem_grow(set->ranges, &set->cap, RANGES_FIRST, sizeof(*grown));
  if (!grown) return REMIXDB_NOMEM;
  set->ranges = grown;
  return REMIXDB_OK;
}

enum remixdb_status readset_key(struct readset *set, struct kref key) {
  if (set->nr) {  // the same key once more, or a key of the last scan
    const struct read_range *const last = &set->ranges[set->nr - 1];
    if (kv_cmp(last->from, key) <= 0 && !read_range_ends_before(last, key)) return REMIXDB_OK;
  }
  const enum remixdb_status s = reserve(set);
  if (s != REMIXDB_OK) return s;
  const struct kref mine = kref(copy(set, key), key.len);
  if (!mine.ptr) return REMIXDB_NOMEM;
  set->ranges[set->nr++] = (struct read_range){.from = mine, .to = mine};
  set->sorted = false;
  return REMIXDB_OK;
}

enum remixdb_status readset_range(struct readset *set, const struct read_range *r) {
  const enum remixdb_status s = reserve(set);
  if (s != REMIXDB_OK) return s;
  struct read_range mine = *r;
  if (!(mine.from.ptr = copy(set, r->from)) || (r->to.ptr && !(mine.to.ptr = copy(set, r->to)))) return REMIXDB_NOMEM;
  set->ranges[set->nr++] = mine;
  set->sorted = false;
  return REMIXDB_OK;
}
