// SPDX-License-Identifier: Apache-2.0
#include "remix/divide.h"

#include <assert.h>

#include "remix/paged.h"
#include "remix/seg.h"

// The pages of each table before a segment.
static void pages_of_each(const struct remix *x, uint32_t seg, uint32_t *out) {
  sst_pos offs[REMIX_RUNS_MAX];
  seg_offs(x, seg_at(x->index, seg), offs);
  for (uint32_t r = 0; r < x->nr_runs; r++) out[r] = sst_pos_block(offs[r]);
}

// The pages of all tables before a segment.
static uint64_t pages_before(const struct remix *x, uint32_t seg) {
  uint32_t each[REMIX_RUNS_MAX];
  uint64_t sum = 0;
  pages_of_each(x, seg, each);
  for (uint32_t r = 0; r < x->nr_runs; r++) sum += each[r];
  return sum;
}

void remix_pages_before(const struct remix *x, struct kref key, uint32_t *out) {
  assert(!remix_is_paged(x));
  pages_of_each(x, remix_segment(x, key), out);
}

// The first segment from `from` on with so many pages before it; nr_segs: there is none.
static uint32_t segment_behind(const struct remix *x, uint32_t from, uint64_t pages) {
  uint32_t end = x->nr_segs;
  while (from < end) {
    const uint32_t mid = from + (end - from) / 2;
    if (pages_before(x, mid) < pages) from = mid + 1;
    else end = mid;
  }
  return from;
}

// Adds the anchor of the segment to the keys; the keys' memory follows them.
static void add_anchor(const struct remix *x, uint32_t seg, uint8_t *room, struct remix_keys *out, uint8_t **at) {
  const struct kref anchor = remix_anchor(x, seg, room);
  memcpy(*at, anchor.ptr, anchor.len);
  out->keys[out->nr++] = kref(*at, anchor.len);
  *at += anchor.len;
}

static enum remixdb_status divide(const struct remix *x, uint32_t parts, uint8_t *room, struct remix_keys *out) {
  uint32_t segs[REMIX_DIVIDE_MAX], nr = 0;
  uint64_t all = 0;
  size_t bytes = 0;
  for (uint32_t r = 0; r < x->nr_runs; r++) all += x->runs[r]->nr_pages;
  for (uint32_t i = 1; i < parts; i++) {
    const uint32_t seg = segment_behind(x, nr ? segs[nr - 1] + 1 : 1, all * i / parts);
    if (seg >= x->nr_segs) break;
    bytes += remix_anchor(x, seg, room).len;
    segs[nr++] = seg;
  }
  out->keys = mem_array(nr, sizeof(*out->keys), bytes + 1);
  if (!out->keys) return REMIXDB_NOMEM;
  uint8_t *at = (uint8_t *)(out->keys + nr);
  for (uint32_t i = 0; i < nr; i++) add_anchor(x, segs[i], room, out, &at);
  return REMIXDB_OK;
}

enum remixdb_status remix_divide(struct remix *x, uint32_t parts, struct remix_keys *out) {
  struct remix *whole;
  *out = (struct remix_keys){0};
  assert(parts > 0 && parts <= REMIX_DIVIDE_MAX);
  enum remixdb_status s = remix_whole(x, &whole);
  if (s != REMIXDB_OK) return s;
  uint8_t *const room = mem_alloc(KV_KEY_MAX);
  s = room ? divide(whole, parts, room, out) : REMIXDB_NOMEM;
  mem_free(room);
  remix_unref(whole);
  return s;
}
