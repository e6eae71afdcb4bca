// SPDX-License-Identifier: Apache-2.0
#include "remix/write.h"

#include <assert.h>

#include "base/blind.h"
#include "remix/narrow.h"
#include "remix/pack.h"
#include "remix/seg.h"

_Static_assert(BLIND_FAR + 1 == BLIND_SAME, "remix_write_segment makes one of the other");

enum remixdb_status remix_bytes_reserve(struct remix_bytes *a, size_t more) {
  if (likely(more <= a->cap - a->len)) return REMIXDB_OK;
  const size_t cap = mem_doubled(a->cap ? a->cap : 4096, mem_sum(a->len, more));
  uint8_t *const p = mem_realloc(a->p, cap);
  if (!p) return REMIXDB_NOMEM;
  a->p = p;
  a->cap = cap;
  return REMIXDB_OK;
}

enum remixdb_status remix_bytes_put(struct remix_bytes *a, const void *p, size_t len) {
  const enum remixdb_status s = remix_bytes_reserve(a, len);
  if (s == REMIXDB_OK && len) {
    memcpy(a->p + a->len, p, len);
    a->len += len;
  }
  return s;
}

enum remixdb_status remix_write_start(struct remix_write *w, const struct sst_ctx *ctx, struct blkio_queue *q,
                                      uint64_t number, struct sst *const *runs, uint32_t nr_runs, bool tags) {
  assert(nr_runs <= REMIX_RUNS_MAX);
  w->ctx = ctx;
  w->queue = q;
  w->number = number;
  w->runs = runs;
  w->nr_runs = nr_runs;
  w->tags = tags;
  w->lay = remix_layout(nr_runs, tags);
  uint64_t entries = 0;
  for (uint32_t r = 0; r < nr_runs; r++) {
    w->pos[r] = sst_advance(runs[r], sst_pos_make(0, 0), 0);
    entries += runs[r]->nr_records;
  }
  // Room for nearly full segments. Memory after the last segment is never touched.
  const uint64_t segs = remix_segs_off(nr_runs);
  const uint64_t room = entries / REMIX_SEG + entries / (4 * REMIX_SEG) + 2;
  const enum remixdb_status s = remix_bytes_reserve(&w->image, segs + room * w->lay.stride);
  if (s != REMIXDB_OK) return s;
  memset(w->image.p, 0, segs);
  w->image.len = segs;
  return REMIXDB_OK;
}

void remix_write_fini(struct remix_write *w) {
  mem_free(w->image.p);
  mem_free(w->anchors.p);
  mem_free(w->anchor_offs.p);
  *w = (struct remix_write){0};
}

// ---- segments

// Writes the anchor that consists of two parts.
static enum remixdb_status write_parts(struct remix_write *w, struct kref head, struct kref rest) {
  uint8_t off[4];
  if (w->nr_segs == 0) head.len = rest.len = 0;
  if (unlikely(w->anchors.len + head.len + rest.len > UINT32_MAX))
    return err_set(REMIXDB_NOMEM, "REMIX %llu: anchors pass 4 GiB", (unsigned long long)w->number);
  store32le(off, (uint32_t)w->anchors.len);
  enum remixdb_status s = remix_bytes_put(&w->anchor_offs, off, sizeof(off));
  if (s == REMIXDB_OK && head.len) s = remix_bytes_put(&w->anchors, head.ptr, head.len);
  return s == REMIXDB_OK ? remix_bytes_put(&w->anchors, rest.ptr, rest.len) : s;
}

static enum remixdb_status write_anchor(struct remix_write *w, struct kref anchor) {
  return write_parts(w, kref(NULL, 0), anchor);
}

// Writes the anchor of segment seg of another view.
static enum remixdb_status write_anchor_of(struct remix_write *w, const struct remix *x, uint32_t seg) {
  const struct anchors *const a = &x->index->anchors;
  return write_parts(w, kref(a->head, seg ? a->cut : 0), anchors_rest(a, seg));
}

static enum remixdb_status write_room(struct remix_write *w, uint32_t nr_segs) {
  if (unlikely(nr_segs > UINT32_MAX - w->nr_segs))
    return err_set(REMIXDB_NOMEM, "REMIX %llu: too many segments", (unsigned long long)w->number);
  return remix_bytes_reserve(&w->image, (size_t)nr_segs * w->lay.stride);
}

// Counts newest versions that are not tombstones among nr selectors. Zeros follow these up to REMIX_SEG selectors.
static uint32_t write_count_keys(const uint8_t *sel, uint32_t nr) {
  uint32_t keys = 0;
  for (uint32_t i = 0; i < REMIX_SEG; i++) keys += (sel[i] & (REMIX_OLD | REMIX_TOMB)) == 0;
  return keys - (REMIX_SEG - nr);
}

// Tells whether some of the 32 selectors has one of these bits.
static bool write_has(const uint8_t *sel, uint8_t bits) {
  uint64_t all = 0;
  for (uint32_t i = 0; i < REMIX_SEG; i += 8) all |= load64le(sel + i);
  return (all & bits * 0x0101010101010101ull) != 0;
}

enum remixdb_status remix_write_segment(struct remix_write *w, const struct remix_entries *e, uint32_t nr,
                                        struct kref anchor) {
  const struct remix_layout *const l = &w->lay;
  assert(nr >= 1 && nr <= REMIX_SEG);
  enum remixdb_status s = write_room(w, 1);
  if (s == REMIXDB_OK) s = write_anchor(w, anchor);
  if (s != REMIXDB_OK) return s;
  uint8_t *const p = w->image.p + w->image.len;
  w->image.len += l->stride;
  w->nr_segs++;
  memset(p, 0, l->stride);

  // Loops of a fixed length, without branches and over signed numbers, become vector code on all machines.
  int32_t bits[REMIX_SEG];
  uint16_t stored[REMIX_SEG];
  memset(bits, 0xFF, sizeof(bits));
  memcpy(bits + 1, e->dbit + 1, (nr - 1) * sizeof(bits[0]));
  const int32_t same = (int32_t)(REMIX_SAME & INT32_MAX);  // greater than all bits
  int32_t least = same, far = 0;
  for (uint32_t i = 0; i < REMIX_SEG; i++) {
    bits[i] &= INT32_MAX;
    least = bits[i] < least ? bits[i] : least;
  }
  const int32_t base = least == same ? 0 : least >> 4;
  const int32_t end = base * 16 + (int32_t)((BLIND_BYTE_MAX + 1) << 4);
  for (uint32_t i = 0; i < REMIX_SEG; i++) {
    const int32_t over = bits[i] >= end, none = bits[i] == same;
    far |= over & ~none;
    stored[i] = (uint16_t)(over ? (int32_t)BLIND_FAR + none : bits[i] - base * 16);
  }
  memcpy(p + l->dbits + 2, stored + 1, (nr - 1) * sizeof(stored[0]));
  if (w->tags) memcpy(p, e->tag, nr);
  memcpy(p + l->sel, e->sel, nr);
  p[l->head + REMIX_SEG_NR] = (uint8_t)nr;
  p[l->head + REMIX_SEG_FLAGS] = far ? REMIX_SEG_FAR : 0;
  store16le(p + l->head + REMIX_SEG_BASE, (uint32_t)base);
  memcpy(p + l->offs, w->pos, 4 * w->nr_runs);
  uint8_t count[REMIX_RUNS_MAX] = {0};
  for (uint32_t i = 0; i < nr; i++) count[e->sel[i] & REMIX_RUN]++;
  for (uint32_t r = 0; r < w->nr_runs; r++)
    if (count[r]) w->pos[r] = sst_advance(w->runs[r], w->pos[r], count[r]);
  w->nr_keys += write_count_keys(p + l->sel, nr);
  w->expires |= write_has(p + l->sel, REMIX_EXPIRES);
  w->nr_entries += nr;
  return REMIXDB_OK;
}

// Counts a segment's entries.
static void write_count(struct remix_write *w, const uint8_t *p) {
  const struct remix_layout *const l = &w->lay;
  const uint32_t nr = remix_seg_nr(l, p);
  w->nr_keys += write_count_keys(p + l->sel, nr);
  w->expires |= write_has(p + l->sel, REMIX_EXPIRES);
  w->nr_entries += nr;
}

// Copies a segment of another view without its cursor offsets, and returns the copy. Discriminating bits do not depend
// on runs. The caller counts the entries, fills in the cursor offsets, and changes the numbers of runs in the
// selectors. There must be room.
static uint8_t *write_same(struct remix_write *w, const struct remix_index *ix, const uint8_t *q) {
  const struct remix_layout *const l = &w->lay, *const k = &ix->lay;
  uint8_t *const p = w->image.p + w->image.len;
  w->image.len += l->stride;
  w->nr_segs++;
  if (w->tags) memcpy(p, q, REMIX_SEG);
  remix_sels(ix, q, p + l->sel);
  memcpy(p + l->head, q + k->head, REMIX_SEG_HEAD);
  p[l->head + REMIX_SEG_FLAGS] &= REMIX_SEG_FAR;
  remix_widen(seg_blind(ix, q), remix_seg_nr(k, q), p + l->dbits);
  memset(p + l->dbits + 2 * REMIX_SEG, 0, l->stride - l->dbits - 2 * REMIX_SEG);
  return p;
}

// Writes a segment's cursor offsets. A kept run has the same offset as in segment q of the other view, any other run
// has its offset in w->pos.
static void write_offs(struct remix_write *w, uint8_t *p, const struct remix *x, const uint8_t *q,
                       const uint8_t *run_map) {
  const struct remix_layout *const l = &w->lay;
  sst_pos offs[REMIX_RUNS_MAX];
  seg_offs(x, q, offs);
  memcpy(p + l->offs, w->pos, 4 * w->nr_runs);
  for (uint32_t r = 0; r < x->nr_runs; r++)
    if (run_map[r] < w->nr_runs) store32le(p + l->offs + 4 * run_map[r], offs[r]);
}

enum remixdb_status remix_write_copy(struct remix_write *w, const struct remix *x, uint32_t from, uint32_t to,
                                     const uint8_t *run_map, struct kref anchor) {
  const struct remix_layout *const l = &w->lay;
  assert(from < to && (x->tags || !w->tags));
  enum remixdb_status s = write_room(w, to - from);
  if (s != REMIXDB_OK) return s;
  bool renamed = false;
  for (uint32_t r = 0; r < x->nr_runs; r++) renamed |= run_map[r] < w->nr_runs && run_map[r] != r;

  for (uint32_t seg = from; seg < to; seg++) {
    const uint8_t *const q = seg_at(x->index, seg);
    s = seg == from ? write_anchor(w, anchor) : write_anchor_of(w, x, seg);
    if (s != REMIXDB_OK) return s;
    uint8_t *const p = write_same(w, x->index, q);
    const uint32_t nr = remix_seg_nr(l, p);
    write_count(w, p);
    if (renamed)
      for (uint32_t i = 0; i < nr; i++)
        p[l->sel + i] = (uint8_t)((p[l->sel + i] & ~REMIX_RUN) | run_map[p[l->sel + i] & REMIX_RUN]);
    write_offs(w, p, x, q, run_map);
  }
  // a kept run goes on at its cursor offset in the other view's next segment
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    if (run_map[r] >= w->nr_runs) continue;
    w->pos[run_map[r]] = to < x->nr_segs ? seg_off(x, seg_at(x->index, to), r) : sst_end(x->runs[r]);
  }
  return REMIXDB_OK;
}

// Sets names to the new numbers of the other view's runs: a kept run has its number in run_map, and the entries of all
// other runs are in `table`.
static void moved_to(uint8_t *names, const struct remix *x, const uint8_t *run_map, uint32_t nr_runs, uint32_t table) {
  for (uint32_t r = 0; r < x->nr_runs; r++) names[r] = run_map[r] < nr_runs ? run_map[r] : (uint8_t)table;
}

// Leaves out the old entries of the runs with a bit in `leaving`. The first version of each key stays. So the segment
// keeps its keys, its base and its anchor, and each entry that stays keeps its discriminating bit.
static void write_without(const struct remix_write *w, uint8_t *p, uint32_t leaving) {
  const struct remix_layout *const l = &w->lay;
  uint8_t *const sel = p + l->sel, *const dbits = p + l->dbits;
  const uint32_t nr = remix_seg_nr(l, p), old = set32_eq8(sel, REMIX_OLD, REMIX_OLD);
  uint32_t out = 0;
  for (uint32_t m = old; m; m &= m - 1) {
    const uint32_t i = set32_first(m);
    out |= (leaving >> (sel[i] & REMIX_RUN) & 1) << i;
  }
  if (out == 0) return;
  uint32_t to = set32_first(out);
  for (uint32_t m = ~out & set32_below(nr) & ~set32_below(to); m; m &= m - 1, to++) {
    const uint32_t i = set32_first(m);
    if (w->tags) p[to] = p[i];
    sel[to] = sel[i];
    memcpy(dbits + 2 * to, dbits + 2 * i, 2);
  }
  if (w->tags) memset(p + to, 0, nr - to);
  memset(sel + to, 0, nr - to);
  memset(dbits + 2 * to, 0, 2 * (nr - to));
  p[l->head + REMIX_SEG_NR] = (uint8_t)to;
}

enum remixdb_status remix_write_moved(struct remix_write *w, const struct remix *x, const uint8_t *run_map,
                                      uint32_t first, uint32_t nr_tables) {
  const struct remix_layout *const l = &w->lay;
  assert(first + nr_tables <= w->nr_runs && (x->tags || !w->tags));
  bool over = nr_tables == 0;                                      // the last table has been passed
  uint32_t table = over ? w->nr_runs : first, leaving = 0;         // without tables a number that no run has
  uint64_t left = over ? UINT64_MAX : w->runs[table]->nr_records;  // records of the table without an entry yet
  for (uint32_t r = 0; r < x->nr_runs; r++) leaving |= (uint32_t)(run_map[r] >= w->nr_runs) << r;
  uint8_t names[REMIX_RUN + 1] = {0};
  moved_to(names, x, run_map, w->nr_runs, table);
  enum remixdb_status s = write_room(w, x->nr_segs);
  for (uint32_t seg = 0; seg < x->nr_segs && s == REMIXDB_OK; seg++) {
    const uint8_t *const q = seg_at(x->index, seg);
    if ((s = write_anchor_of(w, x, seg)) != REMIXDB_OK) break;
    uint8_t *const p = write_same(w, x->index, q), *const sel = p + l->sel;
    write_without(w, p, leaving);
    write_count(w, p);
    write_offs(w, p, x, q, run_map);
    const uint32_t nr = remix_seg_nr(l, p);
    for (uint32_t at = 0;;) {
      const uint32_t end = left < nr - at ? at + (uint32_t)left : nr;  // the table has all moved entries of [at, end)
      for (uint32_t i = at; i < end; i++) sel[i] = (uint8_t)((sel[i] & ~REMIX_RUN) | names[sel[i] & REMIX_RUN]);
      const uint32_t passed = set32_count(set32_eq8(sel, REMIX_RUN, (uint8_t)table) & set32_below(end) &
                                          ~set32_below(at));
      if (unlikely(over && passed))
        return err_corrupt(x->path, 0, "has more entries than the tables have records that its runs were merged to");
      if (passed) w->pos[table] = sst_advance(w->runs[table], w->pos[table], passed);
      left -= passed;
      at = end;
      if (likely(at == nr)) break;
      if (left > 0) continue;
      over = table + 1 == first + nr_tables;
      left = over ? UINT64_MAX : w->runs[++table]->nr_records;
      moved_to(names, x, run_map, w->nr_runs, table);
    }
  }
  for (uint32_t r = 0; r < x->nr_runs; r++)
    if (run_map[r] < w->nr_runs) w->pos[run_map[r]] = sst_end(x->runs[r]);
  return s;
}

// ---- the file

// Puts the anchors after the segments and fills in the header. The image ends in zeros in place of a checksum.
static enum remixdb_status write_head(struct remix_write *w) {
  uint8_t word[4];
  store32le(word, (uint32_t)w->anchors.len);
  enum remixdb_status s = remix_bytes_put(&w->anchor_offs, word, sizeof(word));
  const uint64_t offs = w->image.len, anchors = offs + w->anchor_offs.len;
  if (s == REMIXDB_OK) s = remix_bytes_reserve(&w->image, w->anchor_offs.len + w->anchors.len + REMIX_SUM);
  if (s == REMIXDB_OK) s = remix_bytes_put(&w->image, w->anchor_offs.p, w->anchor_offs.len);
  if (s == REMIXDB_OK) s = remix_bytes_put(&w->image, w->anchors.p, w->anchors.len);
  if (s != REMIXDB_OK) return s;

  uint8_t *const p = w->image.p;
  memcpy(p + REMIX_HEAD_MAGIC, REMIX_MAGIC, 8);
  store32le(p + REMIX_HEAD_FORMAT, w->expires ? REMIX_FORMAT_KINDS : REMIX_FORMAT_PLAIN);
  store32le(p + REMIX_HEAD_FLAGS, w->tags ? REMIX_FLAG_TAGS : 0);
  store64le(p + REMIX_HEAD_STORE_ID, w->ctx->store_id);
  store64le(p + REMIX_HEAD_NUMBER, w->number);
  store64le(p + REMIX_HEAD_SIZE, w->image.len + REMIX_SUM);
  store32le(p + REMIX_HEAD_RUNS, w->nr_runs);
  store32le(p + REMIX_HEAD_SEGS, w->nr_segs);
  store64le(p + REMIX_HEAD_ENTRIES, w->nr_entries);
  store64le(p + REMIX_HEAD_KEYS, w->nr_keys);
  store32le(p + REMIX_HEAD_STRIDE, w->lay.stride);
  store64le(p + REMIX_HEAD_SEGS_AT, remix_segs_off(w->nr_runs));
  store64le(p + REMIX_HEAD_OFFS_AT, offs);
  store64le(p + REMIX_HEAD_ANCHORS_AT, anchors);
  store64le(p + REMIX_HEAD_ANCHORS_LEN, w->anchors.len);
  for (uint32_t r = 0; r < w->nr_runs; r++) store64le(p + REMIX_HEAD_TABLES + 8 * r, w->runs[r]->number);
  store64le(p + w->image.len, 0);
  w->image.len += REMIX_SUM;
  return REMIXDB_OK;
}

// Writes and syncs a file of its own.
static enum remixdb_status write_file(const struct sst_ctx *ctx, struct blkio_queue *q, uint64_t number,
                                      const uint8_t *file, size_t len) {
  struct env *const env = ctx->env;
  struct blkio_writer *out = NULL;
  char path[ENV_PATH_MAX], name[32];
  const bool direct = blkio_past(q->io);
  int fd = -1;
  remix_name(name, number);
  enum remixdb_status s = env_path(path, ctx->dir->path, name);
  if (s == REMIXDB_OK) s = env_create(ctx->dir, name, ENV_WRITE | (direct ? ENV_DIRECT : 0), &fd);
  if (s != REMIXDB_OK) return s;
  s = blkio_writer_create(q, &out);
  if (s == REMIXDB_OK) {
    blkio_writer_start(out, fd, path, direct);
    blkio_writer_put(out, file, len);
    s = blkio_writer_finish(out, true);
  }
  blkio_writer_destroy(out);
  if (s == REMIXDB_OK) s = env_close(env, fd, path);
  else env_close_quiet(env, fd);
  if (s != REMIXDB_OK) IGNORED(env_unlink(ctx->dir, name), "the next opening of the store removes the file");
  return s;
}

enum remixdb_status remix_write_image(const struct sst_ctx *ctx, struct blkio_queue *q, uint64_t number,
                                      struct packing *pack, const uint8_t *image, size_t image_size, bool large_pages,
                                      uint64_t *size_out, uint64_t *print_out) {
  uint8_t *file = NULL;
  size_t len = 0;
  enum remixdb_status s = remix_pack(image, image_size, large_pages, &file, &len);
  if (s != REMIXDB_OK) return s;
  *size_out = len;
  *print_out = load64le(file + len - REMIX_SUM);
  if (pack) {
    atomic_fetch_add_explicit(&q->io->nr_writes, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&q->io->write_bytes, len, memory_order_relaxed);
    if (packing_direct(pack)) atomic_fetch_add_explicit(&q->io->past_bytes, len, memory_order_relaxed);
  }
  s = pack ? packing_put(pack, PACK_REMIX, number, file, len) : write_file(ctx, q, number, file, len);
  mem_free(file);
  return s;
}

enum remixdb_status remix_write_finish(struct remix_write *w, uint64_t *size_out, uint64_t *print_out) {
  const enum remixdb_status s = write_head(w);
  return s != REMIXDB_OK ? s
                         : remix_write_image(w->ctx, w->queue, w->number, w->pack, w->image.p, w->image.len,
                                             w->large_pages, size_out, print_out);
}
