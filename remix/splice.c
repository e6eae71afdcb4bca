// SPDX-License-Identifier: Apache-2.0
#include "remix/splice.h"

#include <assert.h>

#include "remix/narrow.h"
#include "remix/seg.h"

#define SPLICE_BATCH 64u                 // new keys whose blocks are read together
#define SPLICE_BATCH_BYTES (256u << 10)  // bytes of a batch's keys, about
#define SPLICE_WINDOW 512u               // entries
#define SPLICE_TRIM 64u                  // a window with at least so many entries writes full segments
#define SPLICE_BLOCKS 128u               // blocks kept
#define SPLICE_LEAN 6u                   // entries that a cut may move to save reading a key
#define SPLICE_REPORT 1024u              // entries between two reports of progress

_Static_assert(SPLICE_BATCH <= SST_BLOCKS_MAX, "a batch is read at once");
_Static_assert(SPLICE_BLOCKS >= 2 * SST_BLOCKS_MAX, "a batch's blocks stay while a window's are read");
_Static_assert(SPLICE_WINDOW >= 2 * SPLICE_TRIM + REMIX_SEG * (SPLICE_ABSORB + 2),
               "a window holds what it may take in");

// ---- rels
//
// An entry's rel tells how its key differs from the key of the entry before it. A rel is exact if it is the absolute
// discriminating bit, or REMIX_SAME for the same key. Any other rel tells the byte, not the bit. Exact rels compare as
// numbers: the smaller rel is nearer to the key's beginning. Other rels compare by rel_byte.

// | byte << 8 | value: the keys differ in this byte, which has this value in the entry's key; the bit is not known.
#define REL_JOIN 0x40000000u
#define REL_BOTH 0x80000000u  // | byte: the keys differ in this byte; its values and the bit are not known
#define REL_EXACT_MAX (REL_JOIN - 1)

_Static_assert(KV_KEY_MAX <= UINT16_MAX, "a byte's number has 16 bits");

static inline bool rel_exact(uint32_t rel) { return rel <= REL_EXACT_MAX || rel == REMIX_SAME; }

static inline uint32_t rel_join(uint32_t byte, uint8_t value) { return REL_JOIN | byte << 8 | value; }

static inline uint32_t rel_byte(uint32_t rel) {
  if (rel <= REL_EXACT_MAX) return rel >> 4;
  if (rel == REMIX_SAME) return rel;
  return rel & REL_BOTH ? rel & UINT16_MAX : rel >> 8 & UINT16_MAX;
}

// Returns the rel of entry c to the entry before b. a: the rel of b. b_to_c: the rel of c to b. The result is the rel
// that is nearer to the key's beginning. If both rels have the same byte and only one of them is exact, the result is
// not exact.
static uint32_t rel_over(uint32_t a, uint32_t b_to_c) {
  const uint32_t la = rel_byte(a), lb = rel_byte(b_to_c);
  if (la != lb) return la < lb ? a : b_to_c;
  if (rel_exact(a) && rel_exact(b_to_c)) return a < b_to_c ? a : b_to_c;
  if (!(b_to_c & REL_BOTH) && b_to_c & REL_JOIN) return b_to_c;
  return REL_BOTH | lb;
}

// Returns the exact rel of two keys that differ first in this byte. a < b: the byte's values; -1 stands for the end of
// a key.
static inline uint32_t rel_bit(uint32_t byte, int a, int b) {
  return a < 0 ? byte << 4 : byte << 4 | ((uint32_t)__builtin_clz((uint32_t)(a ^ b)) - 23);
}

static inline int key_byte(struct kref k, uint32_t i) { return i < k.len ? k.ptr[i] : -1; }

// ---- state

// Where entries of the window come from: a stretch of an old segment, or one new key.
struct piece {
  uint32_t first;  // its first entry in the window
  uint32_t seg;    // the old segment; PIECE_FRESH for a new key
  uint32_t at;     // the first entry's number in the segment; for a new key, its anchor's offset in window.bytes
};
#define PIECE_FRESH UINT32_MAX

// Entries that are not written yet: [from, nr).
struct window {
  uint32_t from, nr;
  uint32_t absorbed;  // how many old segments without new keys the window has taken in, in a row
  // Copies have a fixed size, so they may write up to REMIX_SEG entries after nr.
  uint8_t sel[SPLICE_WINDOW + REMIX_SEG];  // with the new runs
  uint8_t tag[SPLICE_WINDOW + REMIX_SEG];
  uint32_t rel[SPLICE_WINDOW + REMIX_SEG];
  uint32_t nr_pieces;  // in order
  struct piece pieces[SPLICE_WINDOW];
  struct remix_bytes bytes;  // the first rel_byte + 1 bytes of each new key
};

struct batch_key {
  uint32_t off, len;  // in bytes
  uint32_t shared, table;
  uint32_t seg;
  uint32_t kind;
};

struct batch {
  uint32_t nr;
  struct batch_key keys[SPLICE_BATCH];
  struct remix_bytes bytes;
};

// Blocks read singly. The next one takes the place of the oldest.
struct blocks {
  uint64_t id[SPLICE_BLOCKS];  // run << 32 | block; UINT64_MAX: none
  uint8_t *buf[SPLICE_BLOCKS];
  size_t cap[SPLICE_BLOCKS];
  const uint8_t *data[SPLICE_BLOCKS];
  uint32_t next;
  uint64_t wanted[SST_BLOCKS_MAX];
  uint32_t nr_wanted;
};

// A segment of the old view.
struct here {
  uint32_t seg, nr;
  uint32_t base;
  bool far;
  const uint8_t *sel, *tag;  // tag NULL without tags
  struct blind dbits;
};

// The keys of a segment with far bits.
struct far_seg {
  size_t off[REMIX_SEG + 1];
  struct remix_bytes bytes;
};

struct splice {
  struct remix_splice *in;
  struct remix_write *w;
  bool dropping;                         // some run leaves
  bool renamed;                          // some run that stays has another number in the new view
  struct sst_keys keys[REMIX_RUNS_MAX];  // the keys of the old view's runs, opened when needed
  uint32_t find_at;                      // segment of the last key that was found
  uint32_t find_common;                  // bytes of that key that are equal to the anchors' common bytes

  struct remix_layout lay;  // the layout of the old view's segments
  const uint8_t *segs;
  // Bytes that all anchors except the first one share. This and find_common count the anchors' head (anchors.cut);
  // anchors_rest leaves it out.
  uint32_t common;
  uint8_t *begins;  // these bytes
  uint8_t *anchor;  // room for the last anchor of an old segment (old_anchor)

  struct here here;             // the segment being spliced into
  uint8_t sels[2 * REMIX_SEG];  // its selectors, and room behind them
  bool open;                    // there is such a segment
  bool entered;                 // a new key has been put into it, right before entry `at`
  uint32_t at;                  // its first entry that has not been passed
  uint32_t rel[2 * REMIX_SEG];  // from the old view; if `entered`, entry `at` has its rel to the new key
  uint32_t floor;               // bytes that all keys that belong in the segment share
  uint32_t next;                // first old segment that has not been touched
  uint64_t passed;              // entries of the old view that have been passed

  uint32_t pending;        // rel_over of the entries left out since the last kept entry; REMIX_SAME: none
  bool any;                // an entry has been kept
  bool after_fresh;        // the last entry kept is a new key
  struct kref last_fresh;  // the last new key, in the batch or in `last`
  uint8_t *last;           // KV_KEY_MAX bytes
  uint64_t reported;
  struct window win;
  struct batch batch;
  struct blocks blocks;
  struct far_seg far;
};

static enum remixdb_status bad_order(const struct sst *t) {
  return err_corrupt(t->path, 0, "keys are not in the order of the view");
}

static const struct sst *fresh_table(const struct splice *x, const struct batch_key *k) {
  return x->w->runs[x->in->nr_kept + k->table];
}

static void report(struct splice *x, uint64_t least) {
  const uint64_t nr = x->w->nr_entries - x->reported;
  if (nr < least) return;
  if (x->in->progress) atomic_fetch_add_explicit(x->in->progress, nr, memory_order_relaxed);
  x->reported += nr;
}

// ---- keys of the old view

static uint32_t blocks_find(const struct blocks *b, uint64_t id) {
  for (uint32_t i = 0; i < SPLICE_BLOCKS; i++)
    if (b->id[i] == id) return i;
  return UINT32_MAX;
}

static inline uint64_t block_id(uint32_t run, sst_pos pos) { return (uint64_t)run << 32 | sst_pos_block(pos); }

// Reads the wanted blocks.
static enum remixdb_status blocks_fetch(struct splice *x) {
  struct blocks *const b = &x->blocks;
  struct sst_block_read reads[SST_BLOCKS_MAX];
  uint32_t slots[SST_BLOCKS_MAX];
  const uint32_t nr = b->nr_wanted;
  b->nr_wanted = 0;
  for (uint32_t i = 0; i < nr; i++) {
    struct sst *const t = x->in->old->runs[b->wanted[i] >> 32];
    const uint32_t block = (uint32_t)b->wanted[i], slot = slots[i] = b->next;
    const size_t room = sst_block_room(t, block);
    b->next = (b->next + 1) % SPLICE_BLOCKS;
    b->id[slot] = UINT64_MAX;
    if (b->cap[slot] < room) {
      mem_free(b->buf[slot]);
      b->cap[slot] = 0;
      b->buf[slot] = mem_alloc_aligned(BLKIO_ALIGN, room);
      if (!b->buf[slot]) return REMIXDB_NOMEM;
      b->cap[slot] = room;
    }
    reads[i] = (struct sst_block_read){.t = t, .block = block, .buf = b->buf[slot]};
    x->in->data_pages_read += sst_block_pages(t, block);
  }
  const enum remixdb_status s = sst_blocks_read(x->in->queue, reads, nr);
  if (s != REMIXDB_OK) return s;
  for (uint32_t i = 0; i < nr; i++) {
    b->id[slots[i]] = b->wanted[i];
    b->data[slots[i]] = reads[i].data;
  }
  return REMIXDB_OK;
}

// The anchor of an old segment, until the next call.
static struct kref old_anchor(const struct splice *x, uint32_t seg) { return remix_anchor(x->in->old, seg, x->anchor); }

static inline const uint8_t *old_seg(const struct splice *x, uint32_t seg) {
  return remix_seg_at(&x->lay, x->segs, seg);
}

static inline struct here old_here(const struct splice *x, uint32_t seg) {
  const struct remix_layout *const l = &x->lay;
  const uint8_t *const s = old_seg(x, seg);
  return (struct here){.seg = seg,
                       .nr = remix_seg_nr(l, s),
                       .base = remix_seg_base(l, s),
                       .far = remix_seg_flags(l, s) & REMIX_SEG_FAR,
                       .tag = x->in->old->tags ? s : NULL,
                       .dbits = seg_blind(x->in->old->index, s)};
}

static inline uint32_t old_run(const struct splice *x, uint32_t seg, uint32_t at) {
  return seg_run(x->in->old->index, old_seg(x, seg), at);
}

// Returns the position of an entry in its run (R4).
static inline sst_pos old_pos(const struct splice *x, uint32_t seg, uint32_t at, uint32_t run) {
  const uint8_t *const s = old_seg(x, seg);
  return seg_pos(x->in->old, s, run, at);
}

// Puts an entry's block on the list of wanted blocks if the entry's run is read in single blocks. Does nothing if the
// block is on the list or has been read, or if the list is full.
static void key_prefetch(struct splice *x, uint32_t seg, uint32_t at) {
  struct blocks *const b = &x->blocks;
  const uint32_t run = old_run(x, seg, at);
  if (!x->in->probe || x->in->old->runs[run]->ckb_len || b->nr_wanted == SST_BLOCKS_MAX) return;
  const uint64_t id = block_id(run, old_pos(x, seg, at, run));
  for (uint32_t i = b->nr_wanted; i-- > 0;)
    if (b->wanted[i] == id) return;
  if (blocks_find(b, id) == UINT32_MAX) b->wanted[b->nr_wanted++] = id;
}

// Tells whether key_get needs no read of a single block.
static bool key_ready(const struct splice *x, uint32_t seg, uint32_t at) {
  const uint32_t run = old_run(x, seg, at);
  if (!x->in->probe || x->in->old->runs[run]->ckb_len) return true;
  return blocks_find(&x->blocks, block_id(run, old_pos(x, seg, at, run))) != UINT32_MAX;
}

// Reads the key of an entry of the old view. It holds until the next call.
static enum remixdb_status key_get(struct splice *x, uint32_t seg, uint32_t at, struct kref *out) {
  struct blocks *const b = &x->blocks;
  const uint32_t run = old_run(x, seg, at);
  struct sst *const t = x->in->old->runs[run];
  const sst_pos pos = old_pos(x, seg, at, run);
  enum remixdb_status s = REMIXDB_OK;
  x->in->keys_read++;
  if (x->in->probe && !t->ckb_len) {
    const uint64_t id = block_id(run, pos);
    uint32_t slot = blocks_find(b, id);
    if (slot == UINT32_MAX) {
      slot = b->next;
      b->wanted[0] = id;
      b->nr_wanted = 1;
      s = blocks_fetch(x);
      if (s != REMIXDB_OK) return s;
    }
    struct kv_rec rec;
    block_record(b->data[slot], sst_pos_idx(pos), &rec);
    *out = kref(rec.key, rec.klen);
    return s;
  }
  struct sst_keys *const k = &x->keys[run];
  if (unlikely(!k->state)) {
    s = sst_keys_open(t, x->in->queue, k);
    if (s == REMIXDB_OK) sst_keys_limit(k, sst_scan_share(t->ctx, x->in->old->nr_runs + 1));
  }
  if (s == REMIXDB_OK) s = sst_keys_at(k, pos);
  *out = k->key;
  return s;
}

// ---- segments with far bits: a splice reads all of their keys

static enum remixdb_status far_load(struct splice *x) {
  struct far_seg *const f = &x->far;
  const struct here *const w = &x->here;
  f->bytes.len = 0;
  for (uint32_t i = 0; i < w->nr; i++) {
    struct kref key;
    enum remixdb_status s = key_get(x, w->seg, i, &key);
    if (s != REMIXDB_OK) return s;
    f->off[i] = f->bytes.len;
    s = remix_bytes_put(&f->bytes, key.ptr, key.len);
    if (s != REMIXDB_OK) return s;
    f->off[i + 1] = f->bytes.len;
    if (i == 0) continue;
    if (x->rel[i] == REMIX_SAME) continue;
    const struct kref before = kref(f->bytes.p + f->off[i - 1], (uint32_t)(f->off[i] - f->off[i - 1]));
    key.ptr = f->bytes.p + f->off[i];
    const uint32_t lcp = kv_lcp_from(before, key, 0);
    x->in->key_bytes_compared += lcp + 1;
    if (key_byte(before, lcp) >= key_byte(key, lcp)) return bad_order(x->in->old->runs[old_run(x, w->seg, i)]);
    x->rel[i] = rel_bit(lcp, key_byte(before, lcp), key_byte(key, lcp));
  }
  return REMIXDB_OK;
}

static struct kref far_key(const struct far_seg *f, uint32_t i) {
  return kref(f->bytes.p + f->off[i], (uint32_t)(f->off[i + 1] - f->off[i]));
}

// ---- the window, out

// Returns the piece that has entry i.
static const struct piece *window_piece(const struct window *win, uint32_t i) {
  uint32_t lo = 0, hi = win->nr_pieces;
  while (hi - lo > 1) {
    const uint32_t mid = (lo + hi) / 2;
    if (win->pieces[mid].first <= i) lo = mid;
    else hi = mid;
  }
  return &win->pieces[lo];
}

static inline uint32_t piece_at(const struct piece *p, uint32_t i) { return p->at + (i - p->first); }

static enum remixdb_status window_key(struct splice *x, uint32_t i, struct kref *out) {
  const struct piece *const p = window_piece(&x->win, i);
  assert(p->seg != PIECE_FRESH);
  return key_get(x, p->seg, piece_at(p, i), out);
}

static enum remixdb_status window_bad_order(const struct splice *x, uint32_t i) {
  const struct piece *const p = window_piece(&x->win, i);
  return bad_order(x->in->old->runs[old_run(x, p->seg, piece_at(p, i))]);
}

// Finds an anchor for entry i without a read. Returns false if there is none. The anchor comes from a new key, or from
// an old segment if its anchor still separates entry i from the entry before.
static bool window_anchor_known(const struct splice *x, uint32_t i, struct kref *out) {
  const struct window *const win = &x->win;
  const struct piece *const p = window_piece(win, i);
  *out = kref(NULL, 0);
  if (x->w->nr_segs == 0 && i == win->from) return true;
  const uint32_t len = rel_byte(win->rel[i]) + 1;
  if (p->seg == PIECE_FRESH) {
    *out = kref(win->bytes.p + p->at, len);
    return true;
  }
  if (piece_at(p, i) > 0) return false;
  const struct kref a = old_anchor(x, p->seg);
  *out = kref(a.ptr, len);
  return len <= a.len;
}

// Gets an anchor for entry i: the first bytes of its key, up to the byte that differs from the key before. The anchor
// is valid until the next key_get.
static enum remixdb_status window_anchor(struct splice *x, uint32_t i, struct kref *out) {
  if (window_anchor_known(x, i, out)) return REMIXDB_OK;
  const enum remixdb_status s = window_key(x, i, out);
  if (s != REMIXDB_OK) return s;
  const uint32_t len = rel_byte(x->win.rel[i]) + 1;
  if (unlikely(out->len < len)) return window_bad_order(x, i);
  out->len = len;
  return s;
}

// Makes the rel of entry i exact. Entry i - 1 is an old entry: the rel of an entry after a new key is always exact.
static enum remixdb_status window_resolve(struct splice *x, uint32_t i) {
  struct window *const win = &x->win;
  const uint32_t rel = win->rel[i], byte = rel_byte(rel);
  struct kref key;
  enum remixdb_status s = window_key(x, i - 1, &key);
  if (s != REMIXDB_OK) return s;
  const int a = key_byte(key, byte);
  int b = rel & 0xFF;
  if (rel & REL_BOTH) {
    s = window_key(x, i, &key);
    if (s != REMIXDB_OK) return s;
    b = key_byte(key, byte);
  }
  x->in->key_bytes_compared++;
  if (unlikely(a >= b)) return window_bad_order(x, i - 1);
  win->rel[i] = rel_bit(byte, a, b);
  return REMIXDB_OK;
}

// Writes the window's entries before `to` as a segment.
static enum remixdb_status window_write(struct splice *x, uint32_t to) {
  struct window *const win = &x->win;
  const uint32_t from = win->from;
  struct kref anchor;
  enum remixdb_status s = REMIXDB_OK;
  uint32_t open = 0;
  for (uint32_t i = from + 1; i < to; i++) open |= win->rel[i] - REL_JOIN < REMIX_SAME - REL_JOIN;
  for (uint32_t i = from + 1; open && i < to && s == REMIXDB_OK; i++)
    if (!rel_exact(win->rel[i])) s = window_resolve(x, i);
  if (s == REMIXDB_OK) s = window_anchor(x, from, &anchor);
  if (s != REMIXDB_OK) return s;
  const struct remix_entries e = {.sel = win->sel + from, .tag = win->tag + from, .dbit = win->rel + from};
  s = remix_write_segment(x->w, &e, to - from, anchor);
  if (s != REMIXDB_OK) return s;
  win->from = to;
  report(x, SPLICE_REPORT);
  return s;
}

// Moves the window's entries to the front of its arrays.
static void window_pack(struct window *win) {
  const uint32_t from = win->from, left = win->nr - from;
  if (left == 0) {
    win->from = win->nr = win->nr_pieces = 0;
    win->bytes.len = 0;
    return;
  }
  memmove(win->sel, win->sel + from, left);
  memmove(win->tag, win->tag + from, left);
  memmove(win->rel, win->rel + from, left * sizeof(win->rel[0]));
  const uint32_t first = (uint32_t)(window_piece(win, from) - win->pieces);
  size_t len = 0;
  win->nr_pieces -= first;
  for (uint32_t i = 0; i < win->nr_pieces; i++) {
    struct piece p = win->pieces[first + i];
    if (p.first < from) {  // only the first piece, which is a stretch
      p.at += from - p.first;
      p.first = from;
    }
    p.first -= from;
    if (p.seg == PIECE_FRESH) {
      const uint32_t n = rel_byte(win->rel[p.first]) + 1;
      memmove(win->bytes.p + len, win->bytes.p + p.at, n);
      p.at = (uint32_t)len;
      len += n;
    }
    win->pieces[i] = p;
  }
  win->bytes.len = len;
  win->from = 0;
  win->nr = left;
}

// Finds the end of a segment that begins at `from` and should have `size` entries. A key's versions stay together.
// *cut_out: the end, after `from`.
static enum remixdb_status window_cut(const struct splice *x, uint32_t from, uint32_t size, uint32_t *cut_out) {
  const struct window *const win = &x->win;
  uint32_t cut = from + size;
  while (cut < win->nr && cut > from && win->rel[cut] == REMIX_SAME) cut--;
  if (cut == from)
    for (cut = from + size; cut < win->nr && win->rel[cut] == REMIX_SAME;) cut++;
  *cut_out = cut;
  if (likely(cut - from <= REMIX_SEG)) return REMIXDB_OK;
  return err_corrupt(x->in->old->path, 0, "more versions of a key than runs");
}

// Tells whether a segment can begin with entry i without a read.
static bool window_cut_free(const struct splice *x, uint32_t i) {
  struct kref anchor;
  if (x->win.rel[i] == REMIX_SAME) return false;
  if (window_anchor_known(x, i, &anchor)) return true;
  const struct piece *const p = window_piece(&x->win, i);
  return key_ready(x, p->seg, piece_at(p, i));
}

// Returns a cut near `cut` that needs no read, or `cut` if there is none.
static uint32_t window_cut_lean(const struct splice *x, uint32_t from, uint32_t cut) {
  for (uint32_t n = 0; n <= SPLICE_LEAN; n++) {
    if (cut + n < x->win.nr && cut + n - from <= REMIX_SEG && window_cut_free(x, cut + n)) return cut + n;
    if (cut > from + n + 1 && window_cut_free(x, cut - n)) return cut - n;
  }
  return cut;
}

// Writes full segments. If new keys are not dense, the window keeps the entries of at least one full segment. The next
// old segment may then stay as it is, and fewer entries would become a small segment.
static enum remixdb_status window_trim(struct splice *x) {
  struct window *const win = &x->win;
  const uint32_t least = x->in->dense ? REMIX_SEG + 1 : SPLICE_TRIM;
  while (win->nr - win->from >= least) {
    uint32_t cut;
    enum remixdb_status s = window_cut(x, win->from, REMIX_SEG, &cut);
    if (s == REMIXDB_OK) s = window_write(x, cut);
    if (s != REMIXDB_OK) return s;
  }
  if (win->from == win->nr || win->from >= SPLICE_WINDOW / 3) window_pack(win);
  return REMIXDB_OK;
}

// Reads all blocks together that are needed to write the segments that end at these cuts.
static enum remixdb_status window_fetch(struct splice *x, const uint32_t *cuts) {
  const struct window *const win = &x->win;
  struct kref anchor;
  for (uint32_t i = win->from, c = 0; i < win->nr; i++) {
    const bool first = i == win->from || i == cuts[c];
    if (i > win->from && first) c++;
    if (first ? window_anchor_known(x, i, &anchor) : rel_exact(win->rel[i])) continue;
    const uint32_t need = first ? i : i - 1;
    const struct piece *const p = window_piece(win, need);
    key_prefetch(x, p->seg, piece_at(p, need));
  }
  return x->blocks.nr_wanted ? blocks_fetch(x) : REMIXDB_OK;
}

// Writes the whole window in as few segments as possible, of about the same size.
static enum remixdb_status window_flush(struct splice *x) {
  struct window *const win = &x->win;
  uint32_t cuts[SPLICE_WINDOW], nr = 0;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t from = win->from; from < win->nr; from = cuts[nr++]) {
    const uint32_t left = win->nr - from, segs = (left + REMIX_SEG - 1) / REMIX_SEG;
    s = window_cut(x, from, (left + segs - 1) / segs, &cuts[nr]);
    if (s != REMIXDB_OK) return s;
    if (x->in->probe && cuts[nr] < win->nr) cuts[nr] = window_cut_lean(x, from, cuts[nr]);
  }
  if (x->in->probe) s = window_fetch(x, cuts);
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) s = window_write(x, cuts[i]);
  window_pack(win);
  win->absorbed = 0;
  return s;
}

// Tells whether to write the window before old segment x->next. comes: new keys come into that segment, or a run leaves
// it.
static bool window_good(const struct splice *x, bool comes) {
  const uint32_t nr = x->win.nr - x->win.from, segs = (nr + REMIX_SEG - 1) / REMIX_SEG;
  if (comes) return nr >= segs * (x->in->dense ? REMIX_SEG : SPLICE_FILL);
  if (x->win.absorbed >= SPLICE_ABSORB || nr >= segs * SPLICE_FILL) return true;
  // the new view's counts if all old segments from x->next on are copied
  const struct remix *const old = x->in->old;
  const uint64_t all_segs = (uint64_t)x->w->nr_segs + segs + (old->nr_segs - x->next);
  const uint64_t all = x->w->nr_entries + nr + (old->nr_entries - x->passed);
  return nr >= segs * (REMIX_SEG / 2) && all >= all_segs * SPLICE_FILL;
}

// ---- the window, in

static void window_add(struct window *win, uint32_t seg, uint32_t at) {
  win->pieces[win->nr_pieces++] = (struct piece){.first = win->nr, .seg = seg, .at = at};
}

static void window_put(struct splice *x, uint8_t sel, uint8_t tag, uint32_t rel) {
  struct window *const win = &x->win;
  const uint32_t i = win->nr++;
  win->sel[i] = (uint8_t)((sel & ~REMIX_OLD) | (rel == REMIX_SAME ? REMIX_OLD : 0));
  win->tag[i] = tag;
  win->rel[i] = rel;
}

// Makes the rel of entry i of the open segment exact. The last new key is right before it.
static enum remixdb_status rel_after_fresh(struct splice *x, uint32_t i, uint32_t *rel) {
  const uint32_t byte = rel_byte(*rel);
  int b = *rel & 0xFF;
  if (*rel & REL_BOTH) {
    struct kref key;
    const enum remixdb_status s = key_get(x, x->here.seg, i, &key);
    if (s != REMIXDB_OK) return s;
    b = key_byte(key, byte);
  }
  const int a = key_byte(x->last_fresh, byte);
  x->in->key_bytes_compared++;
  if (unlikely(a >= b)) return bad_order(x->in->old->runs[old_run(x, x->here.seg, i)]);
  *rel = rel_bit(byte, a, b);
  return REMIXDB_OK;
}

// Passes one entry of the open segment. The entry stays, or it leaves with its run.
static enum remixdb_status pass_one(struct splice *x, uint32_t i) {
  const struct here *const w = &x->here;
  const uint8_t sel = w->sel[i];
  uint32_t rel = rel_over(x->pending, x->rel[i]);
  if (!(x->in->keep >> (sel & REMIX_RUN) & 1)) {
    x->pending = rel;
    return REMIXDB_OK;
  }
  x->pending = REMIX_SAME;
  if (unlikely(!x->any)) rel = 0;
  if (unlikely(!rel_exact(rel) && x->after_fresh)) {
    const enum remixdb_status s = rel_after_fresh(x, i, &rel);
    if (s != REMIXDB_OK) return s;
  }
  window_add(&x->win, w->seg, i);
  window_put(x, (uint8_t)((sel & ~REMIX_RUN) | x->in->run_map[sel & REMIX_RUN]), w->tag ? w->tag[i] : 0, rel);
  x->any = true;
  x->after_fresh = false;
  return REMIXDB_OK;
}

// Returns the first entry of a leaving run in the open segment, from `from` on and before `to`; to: there is none.
static uint32_t stays_until(const struct splice *x, uint32_t from, uint32_t to) {
  if (!x->dropping) return to;
  while (from < to && x->in->keep >> (x->here.sel[from] & REMIX_RUN) & 1) from++;
  return from;
}

// Passes entries [from, to) of the open segment. All of them stay, and their runs keep their numbers. The entry before
// them is in the window and begins their piece.
static void pass_many(struct splice *x, uint32_t from, uint32_t to) {
  const struct here *const w = &x->here;
  struct window *const win = &x->win;
  // Copies of a fixed size cost less than calls for a few bytes. They may read past the tags and the selectors: other
  // bytes of the segment follow there.
  memcpy(win->rel + win->nr, x->rel + from, REMIX_SEG * sizeof(x->rel[0]));
  memcpy(win->sel + win->nr, w->sel + from, REMIX_SEG);
  if (w->tag) memcpy(win->tag + win->nr, w->tag + from, REMIX_SEG);
  win->nr += to - from;
}

// Passes the entries before `to` of the open segment.
static enum remixdb_status pass(struct splice *x, uint32_t to) {
  enum remixdb_status s = REMIXDB_OK;
  if (x->at == to) return s;
  x->passed += to - x->at;
  x->entered = false;
  if (x->win.nr + REMIX_SEG > SPLICE_WINDOW) window_pack(&x->win);
  assert(x->win.nr + REMIX_SEG <= SPLICE_WINDOW);
  while (x->at < to && s == REMIXDB_OK) {
    const uint32_t nr = x->win.nr;
    s = pass_one(x, x->at++);
    if (x->renamed || x->win.nr == nr || s != REMIXDB_OK) continue;
    const uint32_t end = stays_until(x, x->at, to);
    if (x->at < end) pass_many(x, x->at, end);
    x->at = end;
  }
  return s;
}

// ---- segments

// Tells whether the segment has an entry of a run that leaves.
static bool leaves(const struct splice *x, uint32_t seg) {
  if (!x->dropping) return false;
  const uint8_t *const p = old_seg(x, seg);
  bool all = true;
  const struct seg_sels sels = seg_sels(x->in->old->index, p);
  for (uint32_t i = 0; i < remix_seg_nr(&x->lay, p); i++) all &= x->in->keep >> sels_run(sels, i) & 1;
  return !all;
}

static enum remixdb_status open_seg(struct splice *x, uint32_t seg) {
  const struct remix *const old = x->in->old;
  struct here *const w = &x->here;
  *w = old_here(x, seg);
  remix_sels(old->index, old_seg(x, seg), x->sels);
  w->sel = x->sels;
  x->open = true;
  x->entered = false;
  x->at = 0;
  x->next = seg + 1;
  const uint32_t base = w->base << 4;
  uint8_t wide[BLIND_WIDE];
  blind_widen(w->dbits, wide);
  for (uint32_t i = 0; i < REMIX_SEG; i++) {
    const uint32_t d = load16le(wide + 2 * i);
    x->rel[i] = d == BLIND_SAME ? REMIX_SAME : base + d;
  }
  x->rel[0] = 0;
  x->floor = 0;
  if (seg > 0) {
    // An anchor is one byte longer than the prefix that its key shares with the key before (R3).
    const struct anchors *const anchors = &old->index->anchors;
    const struct kref a = old_anchor(x, seg);
    x->rel[0] = rel_join(a.len - 1, a.ptr[a.len - 1]);
    // Two keys of the segment, or a key and the anchor before or after it, do not differ earlier.
    const uint32_t behind = x->next < old->nr_segs ? anchors_len(anchors, x->next) - 1 : 0;
    x->floor = a.len < behind ? a.len : behind;
    if (w->nr > 1 && w->base < x->floor) x->floor = w->base;
  }
  return unlikely(w->far) ? far_load(x) : REMIXDB_OK;
}

static enum remixdb_status close_seg(struct splice *x) {
  if (!x->open) return REMIXDB_OK;
  x->open = false;
  return pass(x, x->here.nr);
}

// Copies segments [x->next, to). No run leaves them, and the window is empty.
static enum remixdb_status copy_segs(struct splice *x, uint32_t to) {
  const uint32_t from = x->next;
  const struct remix *const old = x->in->old;
  struct kref anchor = old_anchor(x, from);
  // if the entry before segment `from` was left out, the segment's anchor may get shorter
  if (from > 0 && rel_byte(x->pending) < anchor.len) anchor.len = rel_byte(x->pending) + 1;
  x->pending = REMIX_SAME;
  const uint64_t before = x->w->nr_entries;
  const enum remixdb_status s = remix_write_copy(x->w, old, from, to, x->in->run_map, anchor);
  if (s != REMIXDB_OK) return s;
  x->in->entries_copied += x->w->nr_entries - before;
  x->passed += x->w->nr_entries - before;
  x->any = true;
  x->after_fresh = false;
  x->next = to;
  report(x, SPLICE_REPORT);
  return s;
}

// Passes segments [x->next, to). They get no new key.
static enum remixdb_status skip_to(struct splice *x, uint32_t to) {
  enum remixdb_status s = REMIXDB_OK;
  while (s == REMIXDB_OK && x->next < to) {
    const bool leaving = leaves(x, x->next);
    if (x->win.nr && window_good(x, leaving)) {
      s = window_flush(x);
      continue;
    }
    if (x->win.nr == 0 && !leaving) {
      uint32_t end = x->next + 1;
      while (end < to && !leaves(x, end)) end++;
      s = copy_segs(x, end);
      continue;
    }
    x->win.absorbed = leaving ? 0 : x->win.absorbed + 1;
    if (leaving) s = window_trim(x);
    if (s == REMIXDB_OK) s = open_seg(x, x->next);
    if (s == REMIXDB_OK) s = close_seg(x);
  }
  return s;
}

// Opens the segment of a new key.
static enum remixdb_status go_to(struct splice *x, uint32_t seg) {
  if (likely(x->open && x->here.seg == seg)) return REMIXDB_OK;
  enum remixdb_status s = close_seg(x);
  if (s == REMIXDB_OK) s = skip_to(x, seg);
  if (s == REMIXDB_OK && x->win.nr && window_good(x, true)) s = window_flush(x);
  if (s == REMIXDB_OK) s = window_trim(x);
  x->win.absorbed = 0;
  if (s == REMIXDB_OK) s = open_seg(x, seg);
  if (s != REMIXDB_OK || !x->in->dense || x->win.nr == 0 || x->after_fresh || x->pending != REMIX_SAME ||
      rel_exact(x->rel[0]))
    return s;
  // The window's entries and this segment will be in one segment, which needs an exact rel. The window's last key is
  // near in its run, so the call reads that key at once.
  struct kref key;
  s = window_key(x, x->win.nr - 1, &key);
  if (s != REMIXDB_OK) return s;
  const uint32_t byte = rel_byte(x->rel[0]);
  const int a = key_byte(key, byte), b = x->rel[0] & 0xFF;
  x->in->key_bytes_compared++;
  if (unlikely(a >= b)) return window_bad_order(x, x->win.nr - 1);
  x->rel[0] = rel_bit(byte, a, b);
  return s;
}

// ---- new keys

struct place {
  uint32_t at;      // the first entry not less than the key
  uint32_t before;  // the key's rel to the entry before it
  uint32_t behind;  // the rel of entry `at` to the key, if there is such an entry
};

static enum remixdb_status place_far(struct splice *x, struct kref key, struct place *out) {
  uint32_t lo = 0, hi = x->here.nr;  // entries below lo are less
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    const struct kref old = far_key(&x->far, mid);
    x->in->key_bytes_compared += kv_lcp_from(old, key, 0) + 1;
    if (kv_cmp(old, key) < 0) lo = mid + 1;
    else hi = mid;
  }
  *out = (struct place){.at = lo, .before = x->rel[0]};
  if (lo < x->here.nr) {
    const struct kref old = far_key(&x->far, lo);
    const uint32_t lcp = kv_lcp_from(old, key, 0);
    out->behind = kv_eq(old, key) ? REMIX_SAME : rel_bit(lcp, key_byte(key, lcp), key_byte(old, lcp));
  }
  if (lo > 0) {
    const struct kref old = far_key(&x->far, lo - 1);
    const uint32_t lcp = kv_lcp_from(old, key, 0);
    out->before = rel_bit(lcp, key_byte(old, lcp), key_byte(key, lcp));
  }
  return REMIXDB_OK;
}

// Returns the set of entries whose discriminating bit is less than dbit.
static uint32_t place_less(const struct here *w, uint32_t dbit) {
  if (dbit >> 4 < w->base) return 0;  // all keys share this byte
  const uint32_t bit = dbit - (w->base << 4);
  return blind_less(w->dbits, bit < (BLIND_BYTE_MAX + 1) << 4 ? bit : BLIND_FAR);
}

// Returns the first entry greater than a key, or nr. The key and the candidate's key differ first at dbit. greater: the
// key is the greater one.
static uint32_t place_of(const struct here *w, uint32_t cand, uint32_t dbit, bool greater) {
  const uint32_t less = place_less(w, dbit);
  const uint32_t m = less & (greater ? set32_above(cand) & set32_below(w->nr) : ~set32_above(cand));
  return greater ? (m ? set32_first(m) : w->nr) : m ? set32_last(m) : 0;
}

// Returns the first entry at or after `from` (> 0) whose discriminating bit is dbit or less; nr: there is none.
static uint32_t place_not_behind(const struct here *w, uint32_t from, uint32_t dbit) {
  if (from >= w->nr) return w->nr;
  const uint32_t m = place_less(w, dbit + 1) & set32_above(from - 1) & set32_below(w->nr);
  return m ? set32_first(m) : w->nr;
}

// Finds the key's place with a blind search among entries [from, to). These entries share `known` bytes with the key.
// Any other entry differs from them before they differ from the key.
static enum remixdb_status place_blind(struct splice *x, struct kref key, uint32_t from, uint32_t to, uint32_t known,
                                       struct place *out) {
  const struct here *const w = &x->here;
  const uint32_t cand = to - from > 1 ? blind_candidate_in(w->dbits, from, to, w->base, key) : from;
  struct kref old;
  const enum remixdb_status s = key_get(x, w->seg, cand, &old);
  if (s != REMIXDB_OK) return s;
  if (unlikely(known > key.len)) known = key.len;
  if (unlikely(known > old.len)) known = old.len;
  const uint32_t lcp = kv_lcp_from(key, old, known);
  x->in->key_bytes_compared += lcp - known + 1;
  const int a = key_byte(old, lcp), b = key_byte(key, lcp);
  if (a < b) {
    const uint32_t bit = rel_bit(lcp, a, b), at = place_of(w, cand, bit, true);
    *out = (struct place){.at = at, .before = bit, .behind = at < w->nr ? x->rel[at] : 0};
    return s;
  }
  const bool equal = a < 0 && b < 0;
  const uint32_t bit = equal ? REMIX_SAME : rel_bit(lcp, b, a), at = equal ? cand : place_of(w, cand, bit, false);
  *out = (struct place){.at = at, .before = x->rel[at], .behind = bit};
  return unlikely(out->before == REMIX_SAME) ? bad_order(x->in->old->runs[old_run(x, w->seg, at)]) : REMIXDB_OK;
}

// Finds the place of a key after the previous new key, which is right before entry x->at. bit: the first bit at which
// these two keys differ. The rel of entry x->at to the previous new key tells how much old entries share with this key.
static enum remixdb_status place_near(struct splice *x, struct kref key, uint32_t bit, struct place *out) {
  const struct here *const w = &x->here;
  uint32_t from = x->at;
  *out = (struct place){.at = from, .before = bit};
  if (from == w->nr) return REMIXDB_OK;
  out->behind = x->rel[from];
  if (bit > x->rel[from])
    return REMIXDB_OK;  // at the entry's bit this key equals the previous new key, so this key is less than the entry
  if (bit < x->rel[from]) {
    // The entries up to the next entry with a discriminating bit of `bit` or less equal the previous new key at `bit`.
    // So they are less than this key.
    from = place_not_behind(w, from + 1, bit);
    *out = (struct place){.at = from, .before = bit, .behind = from < w->nr ? x->rel[from] : 0};
    if (from == w->nr || x->rel[from] < bit) return REMIXDB_OK;
  }
  // The old entries from here on equal this key at `bit`, up to the next entry that differs at `bit` or earlier.
  return place_blind(x, key, from, place_not_behind(w, from + 1, bit), bit >> 4, out);
}

static enum remixdb_status put_fresh(struct splice *x, const struct batch_key *k, struct kref key, uint32_t rel) {
  struct window *const win = &x->win;
  enum remixdb_status s = REMIXDB_OK;
  if (unlikely(win->nr - win->from >= SPLICE_TRIM + REMIX_SEG)) s = window_trim(x);
  if (unlikely(win->nr == SPLICE_WINDOW)) window_pack(win);
  if (!x->any) rel = 0;
  const uint32_t len = rel_byte(rel) + 1;
  if (unlikely(len > key.len && x->any)) return bad_order(fresh_table(x, k));
  window_add(win, PIECE_FRESH, (uint32_t)win->bytes.len);
  // the view's first key may be empty, and the anchor of the first segment is always empty
  if (s == REMIXDB_OK) s = remix_bytes_put(&win->bytes, len <= key.len ? (const char *)key.ptr : "", len);
  if (s != REMIXDB_OK) return s;
  const uint8_t sel = (uint8_t)((x->in->nr_kept + k->table) | remix_sel_kind(k->kind));
  window_put(x, sel, x->w->tags ? remix_tag(hash64(key.ptr, key.len)) : 0, rel);
  x->any = true;
  x->after_fresh = true;
  x->entered = true;
  x->pending = REMIX_SAME;
  x->last_fresh = key;
  return s;
}

static enum remixdb_status put_key(struct splice *x, const struct batch_key *k) {
  const struct kref key = kref(x->batch.bytes.p + k->off, k->len);
  enum remixdb_status s = go_to(x, k->seg);
  if (s != REMIXDB_OK) return s;

  uint32_t fresh_rel = 0;  // the key's rel to the previous new key
  if (x->entered || x->after_fresh) {
    const int a = key_byte(x->last_fresh, k->shared), b = key_byte(key, k->shared);
    x->in->key_bytes_compared++;
    if (unlikely(a >= b)) return bad_order(fresh_table(x, k));
    fresh_rel = rel_bit(k->shared, a, b);
  }
  struct place p;
  if (unlikely(x->here.far)) s = place_far(x, key, &p);
  else if (x->entered) s = place_near(x, key, fresh_rel, &p);
  else s = place_blind(x, key, 0, x->here.nr, x->floor, &p);
  if (s != REMIXDB_OK) return s;
  if (unlikely(p.at < x->at)) return bad_order(fresh_table(x, k));
  s = pass(x, p.at);
  if (s != REMIXDB_OK) return s;

  uint32_t rel = fresh_rel;
  if (!x->after_fresh) {
    rel = rel_over(x->pending, p.before);
    if (unlikely(!rel_exact(rel) && x->any)) {
      // the key shares this byte with the segment's first entry
      const uint32_t byte = rel_byte(rel);
      if (byte >= key.len) return bad_order(fresh_table(x, k));
      rel = rel_join(byte, key.ptr[byte]);
    }
  }
  s = put_fresh(x, k, key, rel);
  if (p.at < x->here.nr) x->rel[p.at] = p.behind;
  return s;
}

// Returns the last segment whose anchor is not greater than the key. Keys come in ascending order, so an exponential
// search from the last segment found takes steps in the logarithm of the distance.
static uint32_t find_seg(struct splice *x, struct kref key, uint32_t shared) {
  const struct remix *const old = x->in->old;
  const uint32_t last = old->nr_segs - 1;
  uint32_t lo = x->find_at, hi = last + 1,
           step = 1;  // anchor lo is not greater than the key; anchor hi is, or hi is last + 1
  if (shared < x->find_common) x->find_common = shared;
  if (lo == last) return lo;
  if (x->find_common < x->common) {
    const struct kref a = kref(x->begins, x->common);
    const uint32_t lcp = kv_lcp_from(key, a, x->find_common);
    x->in->key_bytes_compared += lcp - x->find_common + 1;
    x->find_common = lcp;
    if (lcp < x->common) return lcp < key.len && key.ptr[lcp] > a.ptr[lcp] ? last : lo;
  }
  const uint32_t cut = old->index->anchors.cut;  // at most `common`
  const struct kref rest = kref(key.ptr + cut, key.len - cut);
  bool near = true;
  while (hi - lo > 1) {
    uint32_t mid = lo + (hi - lo) / 2;
    if (near) mid = hi - lo > step ? lo + step : hi - 1;
    const struct kref a = anchors_rest(&old->index->anchors, mid);
    const uint32_t lcp = kv_lcp_from(rest, a, x->common - cut);
    x->in->key_bytes_compared += lcp + cut - x->common + 1;
    if (lcp == a.len || (lcp < rest.len && a.ptr[lcp] < rest.ptr[lcp])) {
      lo = mid;
      step *= 2;
    } else {
      hi = mid;
      near = false;
    }
  }
  return lo;
}

// Gets the next new keys and finds their segments. REMIXDB_NOTFOUND: there are none.
static enum remixdb_status batch_fill(struct splice *x) {
  struct batch *const b = &x->batch;
  struct remix_fresh *const f = x->in->fresh;
  if (b->nr && x->after_fresh) {
    memcpy(x->last, x->last_fresh.ptr, x->last_fresh.len);
    x->last_fresh.ptr = x->last;
  }
  b->nr = 0;
  b->bytes.len = 0;
  while (b->nr < SPLICE_BATCH && b->bytes.len < SPLICE_BATCH_BYTES) {
    enum remixdb_status s = remix_fresh_next(f);
    if (s == REMIXDB_NOTFOUND) break;
    if (s != REMIXDB_OK) return s;
    struct batch_key *const k = &b->keys[b->nr];
    *k = (struct batch_key){
        .off = (uint32_t)b->bytes.len, .len = f->key.len, .shared = f->shared, .table = f->table, .kind = f->kind};
    s = remix_bytes_reserve(&b->bytes, f->key.len + 1);  // one byte more: an empty key needs memory, too
    if (s == REMIXDB_OK) s = remix_bytes_put(&b->bytes, f->key.ptr, f->key.len);
    if (s != REMIXDB_OK) return s;
    x->find_at = k->seg = find_seg(x, f->key, f->shared);
    prefetch(old_seg(x, k->seg));
    b->nr++;
  }
  if (b->nr == 0) return REMIXDB_NOTFOUND;
  if (!x->in->probe) return REMIXDB_OK;
  for (uint32_t i = 0; i < b->nr; i++) {
    const struct batch_key *const k = &b->keys[i];
    const struct here w = old_here(x, k->seg);
    if (!w.far) key_prefetch(x, k->seg, blind_candidate(w.dbits, w.nr, w.base, kref(b->bytes.p + k->off, k->len)));
  }
  return x->blocks.nr_wanted ? blocks_fetch(x) : REMIXDB_OK;
}

static enum remixdb_status splice_all(struct splice *x) {
  enum remixdb_status s;
  while ((s = batch_fill(x)) == REMIXDB_OK) {
    for (uint32_t i = 0; i < x->batch.nr && s == REMIXDB_OK; i++) s = put_key(x, &x->batch.keys[i]);
    if (s != REMIXDB_OK) return s;
  }
  if (s != REMIXDB_NOTFOUND) return s;
  s = close_seg(x);
  if (s == REMIXDB_OK) s = skip_to(x, x->in->old->nr_segs);
  if (s == REMIXDB_OK && x->win.nr) s = window_flush(x);
  return s;
}

enum remixdb_status remix_splice(struct remix_splice *in) {
  const struct remix *const old = in->old;
  assert(old->nr_segs > 0);
  struct splice *const x = mem_calloc(1, sizeof(*x));
  if (!x) return REMIXDB_NOMEM;
  x->in = in;
  x->w = in->write;
  x->pending = REMIX_SAME;
  x->lay = old->index->lay;
  x->segs = old->index->segs;
  const struct anchors *const anchors = &old->index->anchors;
  if (old->nr_segs > 1)
    x->common = anchors->cut + kv_lcp_from(anchors_rest(anchors, 1), anchors_rest(anchors, old->nr_segs - 1), 0);
  for (uint32_t i = 0; i < SPLICE_BLOCKS; i++) x->blocks.id[i] = UINT64_MAX;
  for (uint32_t r = 0; r < old->nr_runs; r++) {
    const bool stays = in->keep >> r & 1;
    x->dropping |= !stays;
    x->renamed |= stays && in->run_map[r] != r;
  }
  x->last = mem_alloc(KV_KEY_MAX);
  x->begins = mem_alloc(x->common + 1);
  x->anchor = mem_alloc(anchors->cut ? KV_KEY_MAX : 1);
  enum remixdb_status s = x->last && x->begins && x->anchor ? REMIXDB_OK : REMIXDB_NOMEM;
  if (s == REMIXDB_OK && x->common) anchors_copy(anchors, 1, 0, x->common, x->begins);
  if (s == REMIXDB_OK) s = splice_all(x);
  report(x, 0);
  for (uint32_t r = 0; r < old->nr_runs; r++) {
    in->data_pages_read += sst_keys_blocks_read(&x->keys[r]);
    in->ckb_bytes_read += sst_keys_ckb_read(&x->keys[r]);
    sst_keys_close(&x->keys[r]);
  }
  for (uint32_t i = 0; i < SPLICE_BLOCKS; i++) mem_free(x->blocks.buf[i]);
  mem_free(x->last);
  mem_free(x->begins);
  mem_free(x->anchor);
  mem_free(x->win.bytes.p);
  mem_free(x->batch.bytes.p);
  mem_free(x->far.bytes.p);
  mem_free(x);
  return s;
}
