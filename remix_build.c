// SPDX-License-Identifier: Apache-2.0
#include "remix_build.h"

#include <assert.h>

#include "remix_pack.h"

#define BUILD_SAME UINT32_MAX   // common prefix with the key before: it is that key
#define BUILD_PROGRESS 1024u    // entries between two reports

// One of the two sorted streams. Its head is the next entry that it has to give.
struct build_head {
  bool any;
  struct kref key;   // in the sst_keys of its run
  uint32_t lcp;      // bytes that it shares with the last key put out; BUILD_SAME for the same key
  uint32_t run;      // in the new view
  bool tomb;
  const uint8_t *tag;  // as the old view has it, or NULL
};

// The segment being filled. Where a key's versions do not all fit, they go to the next one together.
struct build_seg {
  uint32_t nr;
  uint32_t group;       // first version of the last key
  uint32_t group_lcp;   // bytes that key shares with the one before it
  uint8_t tag[REMIX_SEG], sel[REMIX_SEG];
  uint32_t dbit[REMIX_SEG];  // absolute: byte << 4 | b; BUILD_SAME
};

struct build_bytes {
  uint8_t *p;
  size_t len, cap;
};

struct build {
  struct remix_build *b;
  uint32_t nr_runs, nr_kept;
  struct sst *runs[REMIX_RUNS_MAX];        // of the new view
  struct remix_layout lay;

  // the old view, less the runs that leave
  struct build_head old;
  struct remix_walk walk;
  bool walking;                            // stands on an entry that has been taken
  struct sst_keys keys[REMIX_RUNS_MAX];    // per old run that stays
  uint8_t run_map[REMIX_RUNS_MAX];         // old run to new
  // the fresh tables
  struct build_head fresh;
  struct sst_keys fresh_keys;
  uint32_t fresh_at;                       // the one being read
  bool fresh_open;

  uint8_t *last;                           // last key put out, REMIXDB_KV_MAX bytes
  uint32_t last_len;
  bool any;                                // there is one
  struct build_seg seg;
  sst_pos pos[REMIX_RUNS_MAX];             // at the beginning of seg
  struct build_bytes image;                // of the file
  struct build_bytes anchors, anchor_offs;
  uint32_t nr_segs;
  uint64_t nr_entries, nr_keys;
  uint32_t unreported;
};

static enum remixdb_status bytes_reserve(struct build_bytes *a, size_t more) {
  if (likely(more <= a->cap - a->len)) return REMIXDB_OK;
  size_t cap = a->cap ? a->cap : 4096;
  while (cap - a->len < more) cap *= 2;
  uint8_t *const p = mem_realloc(a->p, cap);
  if (!p) return REMIXDB_NOMEM;
  a->p = p;
  a->cap = cap;
  return REMIXDB_OK;
}

static enum remixdb_status bytes_put(struct build_bytes *a, const void *p, size_t len) {
  const enum remixdb_status s = bytes_reserve(a, len);
  if (s == REMIXDB_OK && len) {
    memcpy(a->p + a->len, p, len);
    a->len += len;
  }
  return s;
}

// ---- segments out

// An anchor: the first len bytes of the last key put out.
static enum remixdb_status build_anchor(struct build *x, uint32_t len) {
  uint8_t off[4];
  if (x->anchors.len + len > UINT32_MAX)
    return err_set(REMIXDB_NOMEM, "REMIX %llu: anchors pass 4 GiB", (unsigned long long)x->b->number);
  store32le(off, (uint32_t)x->anchors.len);
  const enum remixdb_status s = bytes_put(&x->anchor_offs, off, sizeof(off));
  return s == REMIXDB_OK ? bytes_put(&x->anchors, x->last, len) : s;
}

// Writes the first nr entries as a segment; what is behind them begins the next one.
static enum remixdb_status build_flush(struct build *x, uint32_t nr) {
  struct build_seg *const g = &x->seg;
  const struct remix_layout *const l = &x->lay;
  if (x->nr_segs == UINT32_MAX) return err_set(REMIXDB_NOMEM, "REMIX %llu: too many segments", (unsigned long long)x->b->number);
  const enum remixdb_status s = bytes_reserve(&x->image, l->stride);
  if (s != REMIXDB_OK) return s;
  uint8_t *const p = x->image.p + x->image.len;
  x->image.len += l->stride;
  x->nr_segs++;
  memset(p, 0, l->stride);

  uint32_t base = UINT32_MAX;
  for (uint32_t i = 1; i < nr; i++)
    if (g->dbit[i] >> 4 < base) base = g->dbit[i] >> 4;
  if (base > REMIXDB_KV_MAX) base = 0;  // one key only
  uint8_t flags = 0;
  for (uint32_t i = 1; i < nr; i++) {
    uint32_t d = REMIX_BIT_SAME;
    if (g->dbit[i] != BUILD_SAME) {
      d = g->dbit[i] - (base << 4);
      if (d >> 4 > REMIX_BYTE_MAX) {
        d = REMIX_BIT_FAR;
        flags = REMIX_SEG_FAR;
      }
    }
    store16le(p + l->dbits + 2 * i, d);
  }
  if (x->b->tags) memcpy(p, g->tag, nr);
  memcpy(p + l->sel, g->sel, nr);
  p[l->head] = (uint8_t)nr;
  p[l->head + 1] = flags;
  store16le(p + l->head + 2, base);
  for (uint32_t r = 0; r < x->nr_runs; r++) store32le(p + l->offs + 4 * r, x->pos[r]);

  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t run = g->sel[i] & REMIX_RUN;
    x->pos[run] = sst_advance(x->runs[run], x->pos[run], 1);
    x->nr_keys += (g->sel[i] & (REMIX_OLD | REMIX_TOMB)) == 0;
  }
  x->nr_entries += nr;
  const uint32_t left = g->nr - nr;
  memmove(g->tag, g->tag + nr, left);
  memmove(g->sel, g->sel + nr, left);
  memmove(g->dbit, g->dbit + nr, left * sizeof(g->dbit[0]));
  g->nr = left;
  g->group = 0;
  return REMIXDB_OK;
}

static void build_report(struct build *x, uint32_t least) {
  if (x->unreported < least) return;
  if (x->b->progress) atomic_fetch_add_explicit(x->b->progress, x->unreported, memory_order_relaxed);
  x->unreported = 0;
}

// Where the key differs from the last one put out. That it is greater there shows that the tables are what the view was made of.
static enum remixdb_status build_dbit(const struct build *x, const struct build_head *h, uint32_t *dbit_out) {
  const uint32_t lcp = h->lcp;
  if (!x->any) {
    *dbit_out = 0;
    return REMIXDB_OK;
  }
  if (lcp < x->last_len && lcp < h->key.len && x->last[lcp] < h->key.ptr[lcp]) {
    *dbit_out = lcp << 4 | ((uint32_t)__builtin_clz((uint32_t)(x->last[lcp] ^ h->key.ptr[lcp])) - 23);
    return REMIXDB_OK;
  }
  if (lcp == x->last_len && lcp < h->key.len) {
    *dbit_out = lcp << 4;
    return REMIXDB_OK;
  }
  const struct sst *const t = x->runs[h->run];
  return err_corrupt(t->path, 0, "keys are not in the order of the view");
}

static enum remixdb_status build_put(struct build *x, const struct build_head *h) {
  struct build_seg *const g = &x->seg;
  enum remixdb_status s = REMIXDB_OK;
  uint8_t sel = (uint8_t)(h->run | (h->tomb ? REMIX_TOMB : 0)), tag = 0;
  uint32_t dbit = BUILD_SAME;
  if (h->lcp != BUILD_SAME) {
    s = build_dbit(x, h, &dbit);
    if (s == REMIXDB_OK && g->nr == REMIX_SEG) s = build_flush(x, REMIX_SEG);
    if (s != REMIXDB_OK) return s;
    if (h->key.len > h->lcp) memcpy(x->last + h->lcp, h->key.ptr + h->lcp, h->key.len - h->lcp);
    x->last_len = h->key.len;
    if (g->nr == 0) s = build_anchor(x, x->any ? h->lcp + 1 : 0);
    x->any = true;
    g->group = g->nr;
    g->group_lcp = h->lcp;
    if (x->b->tags) tag = h->tag ? *h->tag : remix_tag(hash64(h->key.ptr, h->key.len));
  } else {
    sel |= REMIX_OLD;
    if (g->nr == REMIX_SEG) {
      if (g->group == 0) return err_corrupt(x->runs[h->run]->path, 0, "more versions of a key than runs");
      s = build_flush(x, g->group);
      if (s == REMIXDB_OK) s = build_anchor(x, g->group_lcp + 1);
    }
    tag = g->tag[g->nr - 1];
  }
  if (s != REMIXDB_OK) return s;
  g->tag[g->nr] = tag;
  g->sel[g->nr] = sel;
  g->dbit[g->nr] = dbit;
  g->nr++;
  x->unreported++;
  build_report(x, BUILD_PROGRESS);
  return REMIXDB_OK;
}

// ---- the streams

// Compares two keys that are equal in their first `from` bytes.
static uint32_t build_lcp(struct build *x, struct kref a, struct kref b, uint32_t from) {
  const uint32_t lcp = kv_lcp_from(a, b, from);
  x->b->key_bytes_compared += lcp - from + 1;
  return lcp;
}

// The head of a stream follows the key that was put out last: this is lcp, unless it is not known.
static enum remixdb_status build_head_lcp(struct build *x, struct build_head *h, uint32_t lcp, bool known) {
  const struct kref last = kref(x->last, x->last_len);
  if (!x->any) {
    h->lcp = 0;
  } else if (!known) {
    h->lcp = build_lcp(x, last, h->key, 0);
    if (h->lcp == last.len && h->lcp == h->key.len) h->lcp = BUILD_SAME;
  } else {
    h->lcp = lcp;
    // what comes from a file must not lead beyond a key
    if (unlikely(lcp == BUILD_SAME ? last.len != h->key.len : lcp > last.len || lcp > h->key.len))
      return err_corrupt(x->runs[h->run]->path, 0, "keys are not in the order of the view");
  }
  return REMIXDB_OK;
}

// The next entry of the old view whose run stays.
static enum remixdb_status build_next_old(struct build *x) {
  struct build_head *const h = &x->old;
  struct remix_walk *const w = &x->walk;
  uint32_t lcp = BUILD_SAME;
  bool known = true;
  h->any = false;
  if (!x->b->old) return REMIXDB_OK;
  for (;; remix_walk_next(w)) {
    if (x->walking) {
      x->walking = false;
      continue;
    }
    if (!remix_walk_valid(w)) return REMIXDB_OK;
    bool here;
    const uint32_t l = remix_walk_lcp(w, &here);
    if (l < lcp) lcp = l;
    known &= here;
    if (x->b->keep >> (w->sel[w->at] & REMIX_RUN) & 1) break;
  }
  x->walking = true;

  const uint32_t run = w->sel[w->at] & REMIX_RUN;
  struct sst_keys *const k = &x->keys[run];
  const enum remixdb_status s = sst_keys_next(k);
  if (s == REMIXDB_NOTFOUND) return err_corrupt(x->b->old->runs[run]->path, 0, "has fewer keys than its REMIX says");
  if (s != REMIXDB_OK) return s;
  if (unlikely(k->tomb != ((w->sel[w->at] & REMIX_TOMB) != 0)))
    return err_corrupt(x->b->old->runs[run]->path, 0, "its REMIX does not agree about what is deleted");
  h->any = true;
  h->key = k->key;
  h->run = x->run_map[run];
  h->tomb = k->tomb;
  h->tag = w->tag ? w->tag + w->at : NULL;
  return build_head_lcp(x, h, lcp, known);
}

static enum remixdb_status build_next_fresh(struct build *x) {
  struct build_head *const h = &x->fresh;
  bool first = false;
  h->any = false;
  for (;;) {
    if (!x->fresh_open) {
      if (x->fresh_at == x->b->nr_fresh) return REMIXDB_OK;
      const enum remixdb_status s = sst_keys_open(x->b->fresh[x->fresh_at], x->b->queue, &x->fresh_keys);
      if (s != REMIXDB_OK) return s;
      x->fresh_open = true;
      first = true;
    }
    const enum remixdb_status s = sst_keys_next(&x->fresh_keys);
    if (s == REMIXDB_OK) break;
    if (s != REMIXDB_NOTFOUND) return s;
    x->b->data_pages_read += sst_keys_blocks_read(&x->fresh_keys);
    sst_keys_close(&x->fresh_keys);
    x->fresh_open = false;
    x->fresh_at++;
  }
  h->any = true;
  h->key = x->fresh_keys.key;
  h->run = x->nr_kept + x->fresh_at;
  h->tomb = x->fresh_keys.tomb;
  h->tag = NULL;
  return build_head_lcp(x, h, x->fresh_keys.shared, !first);
}

// Merging by longest common prefixes: of two heads the one that shares more with the last key put out comes first; only when they
// share the same are they compared, and only from there on.
static enum remixdb_status build_merge(struct build *x) {
  struct build_head *const a = &x->old, *const b = &x->fresh;
  enum remixdb_status s = build_next_old(x);
  if (s == REMIXDB_OK) s = build_next_fresh(x);
  while (s == REMIXDB_OK && (a->any || b->any)) {
    bool old;
    if (!a->any || !b->any) {
      old = a->any;
    } else if (a->lcp != b->lcp) {
      old = a->lcp > b->lcp;
    } else if (unlikely(a->lcp == BUILD_SAME)) {
      s = err_corrupt(x->runs[b->run]->path, 0, "two versions of a key");
      break;
    } else {
      const uint32_t lcp = build_lcp(x, a->key, b->key, a->lcp);
      const bool same = lcp == a->key.len && lcp == b->key.len;
      // the fresh version of a key comes before the old ones
      old = !same && (lcp == a->key.len || (lcp < b->key.len && a->key.ptr[lcp] < b->key.ptr[lcp]));
      s = build_put(x, old ? a : b);
      if (s != REMIXDB_OK) break;
      (old ? b : a)->lcp = same ? BUILD_SAME : lcp;
      s = old ? build_next_old(x) : build_next_fresh(x);
      continue;
    }
    s = build_put(x, old ? a : b);
    if (s == REMIXDB_OK) s = old ? build_next_old(x) : build_next_fresh(x);
  }
  if (s == REMIXDB_OK && x->seg.nr) s = build_flush(x, x->seg.nr);
  for (uint32_t r = 0; s == REMIXDB_OK && r < x->nr_runs; r++)
    if (x->pos[r] != sst_end(x->runs[r])) s = err_corrupt(x->runs[r]->path, 0, "has more keys than its REMIX says");
  return s;
}

// ---- the file

static enum remixdb_status build_start(struct build *x) {
  struct remix_build *const b = x->b;
  uint64_t entries = 0;
  for (uint32_t r = 0; b->old && r < b->old->nr_runs; r++) {
    if (!(b->keep >> r & 1)) continue;
    assert(x->nr_runs < REMIX_RUNS_MAX);
    x->run_map[r] = (uint8_t)x->nr_runs;
    x->runs[x->nr_runs++] = b->old->runs[r];
    const enum remixdb_status s = sst_keys_open(b->old->runs[r], b->queue, &x->keys[r]);
    if (s != REMIXDB_OK) return s;
  }
  x->nr_kept = x->nr_runs;
  assert(x->nr_kept + b->nr_fresh <= REMIX_RUNS_MAX);
  for (uint32_t i = 0; i < b->nr_fresh; i++) x->runs[x->nr_runs++] = b->fresh[i];
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    x->pos[r] = sst_advance(x->runs[r], sst_pos_make(0, 0), 0);
    entries += x->runs[r]->nr_records;
  }
  if (b->old) remix_walk_init(&x->walk, b->old);
  x->lay = remix_layout(x->nr_runs, b->tags);
  x->last = mem_alloc(REMIXDB_KV_MAX);
  if (!x->last) return REMIXDB_NOMEM;
  // Most segments are full, for few keys have several versions: room for them, and a little more, which is only touched when
  // used.
  const uint64_t segs = remix_segs_off(x->nr_runs);
  const uint64_t room = entries / REMIX_SEG + entries / (8 * REMIX_SEG) + 2;
  const enum remixdb_status s = bytes_reserve(&x->image, segs + room * x->lay.stride);
  if (s != REMIXDB_OK) return s;
  memset(x->image.p, 0, segs);
  x->image.len = segs;
  return REMIXDB_OK;
}

// Puts the anchors behind the segments and fills in the header. The image's last 8 bytes, a checksum where it is the file, stay 0.
static enum remixdb_status build_finish(struct build *x) {
  const struct remix_build *const b = x->b;
  uint8_t word[8];
  store32le(word, (uint32_t)x->anchors.len);
  enum remixdb_status s = bytes_put(&x->anchor_offs, word, 4);
  const uint64_t offs = x->image.len;
  if (s == REMIXDB_OK) s = bytes_put(&x->image, x->anchor_offs.p, x->anchor_offs.len);
  const uint64_t anchors = x->image.len;
  if (s == REMIXDB_OK) s = bytes_put(&x->image, x->anchors.p, x->anchors.len);
  if (s == REMIXDB_OK) s = bytes_reserve(&x->image, 8);
  if (s != REMIXDB_OK) return s;

  uint8_t *const p = x->image.p;
  memcpy(p, REMIX_MAGIC, 8);
  store32le(p + 8, REMIX_FORMAT);
  store32le(p + 12, b->tags ? REMIX_FLAG_TAGS : 0);
  store64le(p + 16, b->ctx->store_id);
  store64le(p + 24, b->number);
  store64le(p + 32, x->image.len + 8);
  store32le(p + 40, x->nr_runs);
  store32le(p + 44, x->nr_segs);
  store64le(p + 48, x->nr_entries);
  store64le(p + 56, x->nr_keys);
  store32le(p + 64, x->lay.stride);
  store64le(p + 72, remix_segs_off(x->nr_runs));
  store64le(p + 80, offs);
  store64le(p + 88, anchors);
  store64le(p + 96, x->anchors.len);
  for (uint32_t r = 0; r < x->nr_runs; r++) store64le(p + REMIX_HEAD + 8 * r, x->runs[r]->number);
  store64le(p + x->image.len, 0);
  x->image.len += 8;
  return REMIXDB_OK;
}

static enum remixdb_status build_write(struct build *x) {
  struct env *const env = x->b->ctx->env;
  struct blkio_writer *w = NULL;
  char path[ENV_PATH_MAX], name[32];
  int fd = -1;
  uint8_t *file = NULL;
  size_t len = 0;
  remix_name(name, x->b->number);
  enum remixdb_status s = env_path(path, x->b->ctx->dir, name);
  if (s == REMIXDB_OK) s = remix_pack(x->image.p, x->image.len, &file, &len);
  if (s != REMIXDB_OK) return s;
  s = env_open(env, path, ENV_WRITE | ENV_CREATE | ENV_TRUNC, &fd);
  if (s != REMIXDB_OK) {
    mem_free(file);
    return s;
  }
  s = blkio_writer_create(x->b->queue, &w);
  if (s == REMIXDB_OK) {
    blkio_writer_start(w, fd, path, false);
    blkio_writer_put(w, file, len);
    s = blkio_writer_finish(w, true);
  }
  blkio_writer_destroy(w);
  mem_free(file);
  if (s == REMIXDB_OK)
    s = env_close(env, fd, path);
  else
    env_close_quiet(env, fd);
  if (s != REMIXDB_OK) {
    struct err_saved saved;
    err_save(&saved, s);
    if (env_unlink(env, path) != REMIXDB_OK) {
      // what is left over is removed when the store is opened next
    }
    s = err_raise(&saved);
  }
  x->b->file_size = len;
  return s;
}

enum remixdb_status remix_build(struct remix_build *b) {
  b->file_size = 0;
  b->data_pages_read = 0;
  b->key_bytes_compared = 0;
  struct build *const x = mem_calloc(1, sizeof(*x));
  if (!x) return REMIXDB_NOMEM;
  x->b = b;
  enum remixdb_status s = build_start(x);
  if (s == REMIXDB_OK) s = build_merge(x);
  for (uint32_t r = 0; r < REMIX_RUNS_MAX; r++) {
    if (!x->keys[r].state) continue;
    b->data_pages_read += sst_keys_blocks_read(&x->keys[r]);
    sst_keys_close(&x->keys[r]);
  }
  if (x->fresh_open) sst_keys_close(&x->fresh_keys);
  if (s == REMIXDB_OK) s = build_finish(x);
  if (s == REMIXDB_OK) s = build_write(x);
  build_report(x, 0);
  mem_free(x->last);
  mem_free(x->image.p);
  mem_free(x->anchors.p);
  mem_free(x->anchor_offs.p);
  mem_free(x);
  return s;
}
