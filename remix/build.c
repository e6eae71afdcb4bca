// SPDX-License-Identifier: Apache-2.0
#include "remix/build.h"

#include <assert.h>

#include "remix/splice.h"

#define BUILD_REPORT 1024u  // entries between two reports of progress
// Entries in a segment on average. A view with fewer entries per segment is merged instead of moved. A splice keeps the
// average near SPLICE_FILL.
#define BUILD_MOVE_FILL 24u
#define BUILD_PASSING_FILL 12u  // the same for a view that is replaced soon

// The head of one of the two sorted streams: its next entry.
struct build_head {
  bool any;
  struct kref key;  // in the sst_keys of its run, or in fresh_keys
  uint32_t lcp;     // bytes that the key shares with the last key written; REMIX_SAME for the same key
  uint32_t run;     // in the new view
  uint32_t kind;
  bool erased;         // REMIX_ERASED in the old view
  const uint8_t *tag;  // in the old view, or NULL
};

// The segment that is being filled. If the versions of a key do not all fit, all of them go to the next segment.
struct build_seg {
  uint32_t nr;
  uint32_t group;      // first version of the last key
  uint32_t group_lcp;  // bytes that this key shares with the key before it
  uint8_t tag[REMIX_SEG], sel[REMIX_SEG];
  uint32_t dbit[REMIX_SEG];
  uint8_t *anchor;  // KV_KEY_MAX bytes
  uint32_t anchor_len;
};

struct build {
  struct remix_build *b;
  uint32_t nr_runs, nr_kept;
  uint32_t fresh_at;                 // the first new table's number in the new view
  struct sst *runs[REMIX_RUNS_MAX];  // the new view's runs
  uint8_t run_map[REMIX_RUNS_MAX];   // each old run's number in the new view; UINT8_MAX: the run leaves
  struct remix_fresh fresh_keys;
  struct remix_write write;

  // Only a merge uses the rest, except `unreported`. The old head comes from the old view, without the runs that leave.
  struct build_head old;
  struct remix_walk walk;
  bool walking;                          // the walk still stands at the entry that `old` has
  struct sst_keys keys[REMIX_RUNS_MAX];  // per old run that stays
  struct build_head fresh;
  uint8_t *last;  // last key written, KV_KEY_MAX bytes
  uint32_t last_len;
  bool any;  // there is a last key
  struct build_seg seg;
  uint32_t unreported;
};

// ---- a merge: segments out

static void build_report(struct build *x, uint32_t least) {
  if (x->unreported < least) return;
  if (x->b->progress) atomic_fetch_add_explicit(x->b->progress, x->unreported, memory_order_relaxed);
  x->unreported = 0;
}

// Begins a segment. Its anchor is the first len bytes of the last key written.
static void build_anchor(struct build *x, uint32_t len) {
  memcpy(x->seg.anchor, x->last, len);
  x->seg.anchor_len = len;
}

// Writes the first nr entries as a segment; the others begin the next one.
static enum remixdb_status build_flush(struct build *x, uint32_t nr) {
  struct build_seg *const g = &x->seg;
  const struct remix_entries e = {.sel = g->sel, .tag = g->tag, .dbit = g->dbit};
  const enum remixdb_status s = remix_write_segment(&x->write, &e, nr, kref(g->anchor, g->anchor_len));
  if (s != REMIXDB_OK) return s;
  const uint32_t left = g->nr - nr;
  memmove(g->tag, g->tag + nr, left);
  memmove(g->sel, g->sel + nr, left);
  memmove(g->dbit, g->dbit + nr, left * sizeof(g->dbit[0]));
  g->nr = left;
  g->group = 0;
  return REMIXDB_OK;
}

// Returns the discriminating bit from the last key written. If the key is not greater than that key, the tables are not
// those of the view.
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
  uint8_t sel = (uint8_t)(h->run | (h->erased ? REMIX_ERASED : remix_sel_kind(h->kind))), tag = 0;
  uint32_t dbit = REMIX_SAME;
  if (h->lcp != REMIX_SAME) {
    s = build_dbit(x, h, &dbit);
    if (s == REMIXDB_OK && g->nr == REMIX_SEG) s = build_flush(x, REMIX_SEG);
    if (s != REMIXDB_OK) return s;
    if (h->key.len > h->lcp) memcpy(x->last + h->lcp, h->key.ptr + h->lcp, h->key.len - h->lcp);
    x->last_len = h->key.len;
    if (g->nr == 0) build_anchor(x, x->any ? h->lcp + 1 : 0);
    x->any = true;
    g->group = g->nr;
    g->group_lcp = h->lcp;
    if (x->b->tags) tag = h->tag ? *h->tag : remix_tag(hash64(h->key.ptr, h->key.len));
  } else {
    sel |= REMIX_OLD;
    if (g->nr == REMIX_SEG) {
      if (g->group == 0) return err_corrupt(x->runs[h->run]->path, 0, "more versions of a key than runs");
      s = build_flush(x, g->group);
      if (s == REMIXDB_OK) build_anchor(x, g->group_lcp + 1);
    }
    tag = g->tag[g->nr - 1];
  }
  if (s != REMIXDB_OK) return s;
  g->tag[g->nr] = tag;
  g->sel[g->nr] = sel;
  g->dbit[g->nr] = dbit;
  g->nr++;
  x->unreported++;
  build_report(x, BUILD_REPORT);
  return REMIXDB_OK;
}

// ---- a merge: the streams

// Returns how many bytes two keys share. They are equal in their first `from` bytes.
static uint32_t build_lcp(struct build *x, struct kref a, struct kref b, uint32_t from) {
  const uint32_t lcp = kv_lcp_from(a, b, from);
  x->b->key_bytes_compared += lcp - from + 1;
  return lcp;
}

// Sets the head's lcp. If `known`, that is `lcp`; else the call compares the head's key with the last key written.
static enum remixdb_status build_head_lcp(struct build *x, struct build_head *h, uint32_t lcp, bool known) {
  const struct kref last = kref(x->last, x->last_len);
  if (!x->any) {
    h->lcp = 0;
  } else if (!known) {
    h->lcp = build_lcp(x, last, h->key, 0);
    if (h->lcp == last.len && h->lcp == h->key.len) h->lcp = REMIX_SAME;
  } else {
    h->lcp = lcp;
    // a wrong length in a file must not cause a read beyond a key
    if (unlikely(lcp == REMIX_SAME ? last.len != h->key.len : lcp > last.len || lcp > h->key.len))
      return err_corrupt(x->runs[h->run]->path, 0, "keys are not in the order of the view");
  }
  return REMIXDB_OK;
}

// Goes to the next entry of the old view, past the runs that leave.
static enum remixdb_status build_next_old(struct build *x) {
  struct build_head *const h = &x->old;
  struct remix_walk *const w = &x->walk;
  uint32_t lcp = REMIX_SAME;
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
  h->erased = (w->sel[w->at] & REMIX_ERASED) == REMIX_ERASED;
  if (unlikely(!h->erased && remix_sel_kind(k->kind) != (w->sel[w->at] & (REMIX_TOMB | REMIX_EXPIRES))))
    return err_corrupt(x->b->old->runs[run]->path, 0, "its REMIX does not agree about what is deleted or expires");
  h->any = true;
  h->key = k->key;
  h->run = x->run_map[run];
  h->kind = k->kind;
  h->tag = w->tag ? w->tag + w->at : NULL;
  return build_head_lcp(x, h, lcp, known);
}

static enum remixdb_status build_next_fresh(struct build *x) {
  struct build_head *const h = &x->fresh;
  struct remix_fresh *const f = &x->fresh_keys;
  const enum remixdb_status s = remix_fresh_next(f);
  h->any = s == REMIXDB_OK;
  if (s != REMIXDB_OK) return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
  h->key = f->key;
  h->run = x->fresh_at + f->table;
  h->kind = f->kind;
  h->tag = NULL;
  const enum remixdb_status order = build_head_lcp(x, h, f->shared, true);
  f->failed = order != REMIXDB_OK;
  return order;
}

// Decides which head is written next. It is the head that shares the longer prefix with the last key written. If both
// prefixes have the same length, the call compares the two keys from there on; the lcp of the other head then becomes
// the length of the prefix that the two heads share. The newer version of a key comes first.
static inline enum remixdb_status build_order(struct build *x, bool *old_out) {
  struct build_head *const a = &x->old, *const b = &x->fresh;
  *old_out = a->any;
  if (!a->any || !b->any) return REMIXDB_OK;
  *old_out = a->lcp > b->lcp;
  if (a->lcp != b->lcp) return REMIXDB_OK;
  if (unlikely(a->lcp == REMIX_SAME)) {
    if (x->b->newer == 0) return err_corrupt(x->runs[b->run]->path, 0, "two versions of a key");
    *old_out = a->run > b->run;
    return REMIXDB_OK;
  }
  const uint32_t lcp = build_lcp(x, a->key, b->key, a->lcp);
  const bool same = lcp == a->key.len && lcp == b->key.len;
  *old_out = same ? a->run > b->run : lcp == a->key.len || (lcp < b->key.len && a->key.ptr[lcp] < b->key.ptr[lcp]);
  // the lcp of the head that is written first stays: build_put needs it
  (*old_out ? b : a)->lcp = same ? REMIX_SAME : lcp;
  return REMIXDB_OK;
}

static enum remixdb_status build_merge(struct build *x) {
  enum remixdb_status s = build_next_old(x);
  if (s == REMIXDB_OK) s = build_next_fresh(x);
  while (s == REMIXDB_OK && (x->old.any || x->fresh.any)) {
    bool old = false;
    s = build_order(x, &old);
    if (s == REMIXDB_OK) s = build_put(x, old ? &x->old : &x->fresh);
    if (s == REMIXDB_OK) s = old ? build_next_old(x) : build_next_fresh(x);
  }
  if (s == REMIXDB_OK && x->seg.nr) s = build_flush(x, x->seg.nr);
  return s;
}

static enum remixdb_status build_by_merge(struct build *x) {
  const struct remix *const old = x->b->old;
  enum remixdb_status s = REMIXDB_OK;
  x->last = mem_alloc(KV_KEY_MAX);
  x->seg.anchor = mem_alloc(KV_KEY_MAX);
  if (!x->last || !x->seg.anchor) return REMIXDB_NOMEM;
  if (old) remix_walk_init(&x->walk, old);
  for (uint32_t r = 0; old && r < old->nr_runs && s == REMIXDB_OK; r++) {
    if (x->run_map[r] >= REMIX_RUNS_MAX) continue;
    s = sst_keys_open(old->runs[r], x->b->queue, &x->keys[r]);
    if (s == REMIXDB_OK) sst_keys_limit(&x->keys[r], sst_scan_share(x->b->ctx, old->nr_runs + 1));
  }
  if (s == REMIXDB_OK) s = build_merge(x);
  build_report(x, 0);
  for (uint32_t r = 0; r < REMIX_RUNS_MAX; r++) {
    x->b->data_pages_read += sst_keys_blocks_read(&x->keys[r]);
    x->b->ckb_bytes_read += sst_keys_ckb_read(&x->keys[r]);
    sst_keys_close(&x->keys[r]);
  }
  return s;
}

// ---- a splice

static enum remixdb_status build_by_splice(struct build *x, bool dense, bool probe) {
  struct remix_build *const b = x->b;
  struct remix_splice in = {
      .old = b->old,
      .keep = b->keep,
      .run_map = x->run_map,
      .nr_kept = x->nr_kept,
      .fresh = &x->fresh_keys,
      .write = &x->write,
      .queue = b->queue,
      .dense = dense,
      .probe = probe,
      .progress = b->progress,
  };
  const enum remixdb_status s = remix_splice(&in);
  b->data_pages_read += in.data_pages_read;
  b->ckb_bytes_read += in.ckb_bytes_read;
  b->key_bytes_compared += in.key_bytes_compared;
  b->keys_read += in.keys_read;
  b->entries_copied += in.entries_copied;
  return s;
}

// ---- which way

static bool build_is_fresh(const struct build *x, uint32_t run) {
  return run >= x->fresh_at && run - x->fresh_at < x->b->nr_fresh;
}

// Tells whether the new tables have exactly the records of the leaving runs that are not hidden. (Where a range
// deletion has erased records, they have one more or fewer.) The leaving runs must lie together in age, where the new
// tables come to lie. A view with thin segments is moved only if the caller asks for that way. *can_out is set on
// success. Fails with REMIXDB_NOMEM.
static enum remixdb_status build_can_move(const struct build *x, uint64_t fresh, bool *can_out) {
  const struct remix_build *const b = x->b;
  const struct remix *const old = b->old;
  const uint32_t behind = old->nr_runs - b->newer;
  const uint32_t *hidden;
  uint64_t leaving = 0, left_out = 0;
  *can_out = false;
  if (!b->moved) return REMIXDB_OK;
  for (uint32_t r = 0; r < old->nr_runs; r++) {
    const bool stays = b->keep >> r & 1;
    if (stays != (r < x->fresh_at || r >= behind)) return REMIXDB_OK;
    if (!stays) leaving += old->runs[r]->nr_records;
  }
  if (leaving != fresh) {
    const enum remixdb_status s = remix_hidden((struct remix *)(uintptr_t)old, &hidden);
    if (s != REMIXDB_OK) return s;
    for (uint32_t r = x->fresh_at; r < behind; r++) left_out += hidden[r];
  }
  const uint64_t fill = b->passing ? BUILD_PASSING_FILL : BUILD_MOVE_FILL;
  *can_out = leaving - left_out == fresh &&
             (b->way == REMIX_BUILD_MOVED || old->nr_entries - left_out >= old->nr_segs * fill);
  return REMIXDB_OK;
}

static enum remixdb_status build_by_moving(struct build *x) {
  const enum remixdb_status s = remix_write_moved(&x->write, x->b->old, x->run_map, x->fresh_at, x->b->nr_fresh);
  x->b->entries_copied += x->write.nr_entries;
  x->unreported = (uint32_t)x->write.nr_entries;
  build_report(x, 0);
  return s;
}

static enum remixdb_status build_choose(struct build *x) {
  struct remix_build *const b = x->b;
  const struct remix *const old = b->old;
  uint64_t fresh = 0, kept = 0, pages = 0;
  for (uint32_t i = 0; i < b->nr_fresh; i++) fresh += b->fresh[i]->nr_records;
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    if (build_is_fresh(x, r)) continue;
    kept += x->runs[r]->nr_records;
    if (!x->runs[r]->ckb_len) pages += x->runs[r]->nr_pages;
  }
  const bool usable = old && old->nr_segs && (old->tags || !b->tags);
  if (usable && (b->way == REMIX_BUILD_AUTO || b->way == REMIX_BUILD_MOVED)) {
    bool can;
    const enum remixdb_status s = build_can_move(x, fresh, &can);
    if (s != REMIXDB_OK) return s;
    if (can) {
      b->way = REMIX_BUILD_MOVED;
      return build_by_moving(x);
    }
  }
  const bool splice = usable && b->newer == 0 &&
                      (b->way == REMIX_BUILD_SPLICE || (b->way == REMIX_BUILD_AUTO && kept > 2 * fresh));
  b->way = splice ? REMIX_BUILD_SPLICE : REMIX_BUILD_MERGE;
  return splice ? build_by_splice(x, 2 * fresh >= old->nr_segs, 4 * fresh < pages) : build_by_merge(x);
}

static void build_fresh_runs(struct build *x) {
  x->fresh_at = x->nr_runs;
  for (uint32_t i = 0; i < x->b->nr_fresh; i++) x->runs[x->nr_runs++] = x->b->fresh[i];
}

// Lists the runs of the new view: the old runs that stay, and the new tables at their place among them.
static void build_runs(struct build *x) {
  const struct remix_build *const b = x->b;
  memset(x->run_map, UINT8_MAX, sizeof(x->run_map));
  for (uint32_t r = 0; b->old && r < b->old->nr_runs; r++) x->nr_kept += b->keep >> r & 1;
  assert(b->newer <= x->nr_kept && x->nr_kept + b->nr_fresh <= REMIX_RUNS_MAX);
  const uint32_t older = x->nr_kept - b->newer;
  for (uint32_t r = 0; x->nr_kept && r < b->old->nr_runs; r++) {
    if (!(b->keep >> r & 1)) continue;
    if (b->newer && x->nr_runs == older) build_fresh_runs(x);
    x->run_map[r] = (uint8_t)x->nr_runs;
    x->runs[x->nr_runs++] = b->old->runs[r];
  }
  if (b->newer == 0) build_fresh_runs(x);
}

// Checks that the view has all records of its tables. A REMIX that leaves out a record would not open.
static enum remixdb_status build_check(struct build *x) {
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    if (x->write.pos[r] == sst_end(x->runs[r])) continue;
    x->fresh_keys.failed = build_is_fresh(x, r);
    return err_corrupt(x->runs[r]->path, 0, "has more keys than its REMIX says");
  }
  return REMIXDB_OK;
}

enum remixdb_status remix_build(struct remix_build *b) {
  b->file_size = b->data_pages_read = b->ckb_bytes_read = b->key_bytes_compared = b->keys_read = b->entries_copied = 0;
  b->print = 0;
  b->old_unread = b->fresh_unread = false;
  b->image = NULL;
  b->image_size = 0;
  struct build *const x = mem_calloc(1, sizeof(*x));
  if (!x) return REMIXDB_NOMEM;
  x->b = b;
  build_runs(x);
  remix_fresh_init(&x->fresh_keys, b->fresh, b->nr_fresh, b->queue);
  enum remixdb_status s = remix_write_start(&x->write, b->ctx, b->queue, b->number, x->runs, x->nr_runs, b->tags);
  x->write.pack = b->pack;
  x->write.large_pages = b->large_pages;
  if (s == REMIXDB_OK) s = build_choose(x);
  if (s == REMIXDB_OK) s = build_check(x);
  // nothing is written before remix_write_finish, so a failure of I/O is that of a read
  const bool unread = s == REMIXDB_CORRUPT || s == REMIXDB_IO;
  b->old_unread = unread && x->nr_kept && !x->fresh_keys.failed;
  b->fresh_unread = unread && x->fresh_keys.failed;
  remix_fresh_fini(&x->fresh_keys);
  b->data_pages_read += x->fresh_keys.data_pages_read;
  b->ckb_bytes_read += x->fresh_keys.ckb_bytes_read;
  if (s == REMIXDB_OK) s = remix_write_finish(&x->write, &b->file_size, &b->print);
  if (s == REMIXDB_OK && b->keep_image) {
    b->image = x->write.image.p;
    b->image_size = x->write.image.len;
    x->write.image.p = NULL;
  }
  remix_write_fini(&x->write);
  mem_free(x->last);
  mem_free(x->seg.anchor);
  mem_free(x);
  return s;
}
