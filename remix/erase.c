// SPDX-License-Identifier: Apache-2.0
#include "remix/erase.h"

#include <assert.h>

#include "remix/narrow.h"
#include "remix/seg.h"
#include "remix/write.h"

// ---- spans

// Goes to the first live entry >= key. ptr NULL: to the view's end.
static enum remixdb_status place(struct remix_cursor *c, const struct remix *x, struct kref key, uint32_t *seg_out,
                                 uint32_t *at_out) {
  const enum remixdb_status s = key.ptr ? remix_seek(c, key) : REMIXDB_OK;
  const bool there = key.ptr && s == REMIXDB_OK && remix_valid(c);
  *seg_out = there ? c->seg : x->nr_segs;
  *at_out = there ? c->at : 0;
  return s;
}

// How many live entries come before entry `at` of the segment.
static uint64_t rank_of(const struct remix *x, uint32_t seg, uint32_t at) {
  const struct remix_index *const ix = x->index;
  if (seg == x->nr_segs) return seg_rank(ix, seg);
  return seg_rank(ix, seg) + set32_count(seg_live(ix, seg_at(ix, seg)) & set32_below(at));
}

enum remixdb_status remix_span_find(struct remix_cursor *c, struct remix *x, struct kref from, struct kref to,
                                    struct remix_span *out) {
  *out = (struct remix_span){.seg = 0};
  enum remixdb_status s = remix_cursor_set(c, x);
  if (s == REMIXDB_OK && from.ptr && from.len) s = place(c, x, from, &out->seg, &out->at);
  if (s == REMIXDB_OK) s = place(c, x, to, &out->to_seg, &out->to_at);
  if (s != REMIXDB_OK) return s;
  const uint64_t first = rank_of(x, out->seg, out->at), end = rank_of(x, out->to_seg, out->to_at);
  out->live = end > first ? end - first : 0;
  return s;
}

// ---- erasing

// A copy of the view's plain image, in which entries are erased.
struct erased {
  const struct remix *x;
  struct remix_layout lay;
  size_t size;
  uint8_t *image;
};

static uint8_t *segment(const struct erased *e, uint32_t seg) {
  return e->image + remix_segs_off(e->x->nr_runs) + (size_t)seg * e->lay.stride;
}

static void erase_entries(const struct erased *e, uint32_t seg, uint32_t from, uint32_t to) {
  uint8_t *const sel = segment(e, seg) + e->lay.sel;
  for (uint32_t i = from; i < to; i++) sel[i] |= REMIX_ERASED;
}

static void erase_span(const struct erased *e, const struct remix_span *span) {
  const struct remix_index *const ix = e->x->index;
  if (span->live == 0) return;
  for (uint32_t seg = span->seg; seg <= span->to_seg && seg < e->x->nr_segs; seg++) {
    const uint32_t from = seg == span->seg ? span->at : 0;
    erase_entries(e, seg, from, seg == span->to_seg ? span->to_at : seg_nr(ix, seg_at(ix, seg)));
  }
}

static uint64_t count_keys(const struct erased *e) {
  uint64_t keys = 0;
  for (uint32_t seg = 0; seg < e->x->nr_segs; seg++) {
    const uint8_t *const s = segment(e, seg);
    const uint32_t in = set32_below(remix_seg_nr(&e->lay, s));
    keys += set32_count(set32_eq8(s + e->lay.sel, REMIX_OLD | REMIX_TOMB, 0) & in);
  }
  return keys;
}

static void set_head(const struct erased *e, const struct sst_ctx *ctx, uint64_t number) {
  uint8_t *const p = e->image;
  store32le(p + REMIX_HEAD_FORMAT, REMIX_FORMAT_KINDS);
  store64le(p + REMIX_HEAD_STORE_ID, ctx->store_id);
  store64le(p + REMIX_HEAD_NUMBER, number);
  store64le(p + REMIX_HEAD_SIZE, e->size);
  store64le(p + REMIX_HEAD_KEYS, count_keys(e));
}

// queue NULL: no file is written, and number is x's.
static enum remixdb_status erase_in(const struct sst_ctx *ctx, const struct remix *x, const struct remix_span *spans,
                                    uint32_t nr, struct blkio_queue *queue, uint64_t number, struct remix **out,
                                    uint64_t *bytes_out) {
  *out = NULL;
  *bytes_out = 0;
  const size_t size = remix_plain_size(x);
  const struct erased e = {x, remix_layout(x->nr_runs, x->tags), size, mem_alloc(size)};
  if (!e.image) return REMIXDB_NOMEM;
  remix_plain(x, e.image);
  for (uint32_t i = 0; i < nr; i++) erase_span(&e, &spans[i]);
  set_head(&e, ctx, number);
  struct remix_built built = {.image = e.image, .image_size = size, .file_size = x->file_size, .print = x->print};
  enum remixdb_status s = REMIXDB_OK;
  if (queue) {
    s = remix_write_image(ctx, queue, number, NULL, e.image, size, false, &built.file_size, &built.print);
    *bytes_out = built.file_size;
  }
  if (s == REMIXDB_OK && (s = remix_open_built(ctx, number, x->runs, x->nr_runs, &built, out)) == REMIXDB_OK) {
    if (remix_is_young(x)) remix_make_young(*out);
  } else if (s != REMIXDB_OK && *bytes_out) {
    char name[32];
    remix_name(name, number);
    IGNORED(env_unlink(ctx->dir, name), "the next opening of the store removes the file");
  }
  mem_free(e.image);
  return s;
}

enum remixdb_status remix_erase(const struct remix *x, const struct remix_span *spans, uint32_t nr,
                                struct blkio_queue *queue, uint64_t number, struct remix **out, uint64_t *bytes_out) {
  const enum remixdb_status s = erase_in(x->ctx, x, spans, nr, queue, queue ? number : x->number, out, bytes_out);
  if (s != REMIXDB_OK || queue) return s;
  (*out)->origin = x->origin;
  (*out)->unfiled = true;
  return s;
}

enum remixdb_status remix_file_again(const struct remix *x, const struct sst_ctx *ctx, struct blkio_queue *queue,
                                     uint64_t number, struct remix **out, uint64_t *bytes_out) {
  return erase_in(ctx, x, NULL, 0, queue, number, out, bytes_out);
}
