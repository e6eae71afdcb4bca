// SPDX-License-Identifier: Apache-2.0
#include "remix/cursor.h"

#include <assert.h>

#include "base/blind.h"
#include "remix/edge.h"
#include "remix/gather.h"
#include "remix/paged.h"
#include "remix/seg.h"
#include "table/readahead.h"

// Entries to prefetch at once: few at first, because many scans are short; then more, which costs less for each.
#define REMIX_GROUP_MIN 8u
#define REMIX_GROUP_MAX REMIX_SEG
#define USUAL_MAX 1024u  // entries; longer scans read whole blocks
// Entries to read more than expected: runs share segments unevenly, and a second read costs as much as a copy of 2 KiB.
#define USUAL_MORE 12u
#define REMIX_AHEAD_MIN 4u               // pages of a run's readahead, at first
#define REMIX_AHEAD_MAX BLKIO_BATCH_MAX  // and at most
// Pages of readahead in a cursor's own memory, for all runs together, so that they stay in the processor's cache; but
// for each run at least REMIX_AHEAD_OWN.
#define REMIX_AHEAD_ALL 256u
#define REMIX_AHEAD_OWN 16u
// Blocks of a run that a cursor for keys only reads after a seek, before it turns to the compressed keys: a chunk of
// these is mostly larger than a block. Where it is not, the cursor turns to them at once (entry_key_cheap).
#define KEYS_BLOCKS 2u
#define DEBT_TOGETHER 64u  // jumps added to the REMIX's at once, so that scanning threads do not fight for the line

// ---- searching within a segment

static inline uint32_t cursor_ordinal(const struct remix_cursor *c) { return c->seg * REMIX_SEG + c->at; }

// The entries stepped on (or back) by since the last seek or turn.
static inline uint32_t cursor_came(const struct remix_cursor *c) {
  if (c->way == REMIX_ON) return c->came + cursor_ordinal(c) - c->from;
  return c->way == REMIX_BACK && remix_valid(c) ? c->came + c->from - cursor_ordinal(c) : c->came;
}

// Takes the selectors of a segment.
static inline void cursor_sels_take(struct remix_cursor *c, const uint8_t *s) {
  if (s == c->s) return;
  c->s = s;
  c->sel = seg_bytes(c->x->index, s, c->room);
}
static inline struct seg_sels cursor_sels(const struct remix_cursor *c) { return (struct seg_sels){c->sel, false}; }
// The run of entry i of the cursor's segment.
static inline uint32_t cursor_run(const struct remix_cursor *c, uint32_t i) { return c->sel[i] & REMIX_RUN; }

// At most so many records of the entry's run, as far as the bounds go.
static __attribute__((noinline)) uint32_t expect_within(const struct remix_cursor *c, uint32_t i, uint32_t most) {
  const uint32_t run = c->sel[i] & REMIX_RUN;
  return edge_records(c, run, sels_pos(c->x, c->s, cursor_sels(c), run, i), most);
}

// Estimates the records of the run of entry i, of the cursor's segment, that the cursor reads from that one on. It
// takes as many steps as after the last seeks; if it has taken more, it takes as many again. A seek that follows a seek
// without steps reads one record. Stepping back may need the whole block.
static inline uint32_t cursor_expect(const struct remix_cursor *c, uint32_t i) {
  if (c->way == REMIX_BACK) return SST_ALL;
  if (c->way == REMIX_SOUGHT && c->usual == 0) return 1;
  const uint32_t came = cursor_came(c), left = came < c->usual ? c->usual - came : came - c->usual;
  const uint32_t share = set32_count(sels_of(cursor_sels(c), c->sel[i] & REMIX_RUN));  // the run's in the segment
  const uint32_t most = 1 + share * ((left < USUAL_MAX ? left : USUAL_MAX) + USUAL_MORE) / REMIX_SEG;
  return likely(!c->bounded) ? most : expect_within(c, i, most);
}

static bool entry_missing(const struct remix_cursor *c, const uint8_t *s, uint32_t i) {
  const uint32_t run = seg_run(c->x->index, s, i);
  return missing(&c->holds[run], c->x->runs[run], sst_pos_block(seg_pos(c->x, s, run, i)));
}

// Reads a run's record for a seek, with the cursor's hold of the run. In a young view a block from disk is a jump.
static inline enum remixdb_status entry_seek(struct remix_cursor *c, uint32_t run, sst_pos pos, uint32_t expect,
                                             struct kv_rec *rec_out) {
  struct sst *const t = c->x->runs[run];
  REMIX_COUNT(key_reads);
  if (c->x->index->young) c->scan_debt += missing(&c->holds[run], t, sst_pos_block(pos));
  return sst_read_some(t, pos, expect, false, &c->holds[run], rec_out);
}

// The position of entry i of the cursor's segment.
static inline sst_pos entry_place(const struct remix_cursor *c, uint32_t i) {
  return sels_place(c->x, c->s, cursor_sels(c), cursor_run(c, i), i);
}

// A seek's reader for seg_search_binary: arg is the cursor, which has taken the segment.
static enum remixdb_status seek_entry(void *arg, const uint8_t *s, uint32_t i, struct kv_rec *rec_out) {
  struct remix_cursor *const c = arg;
  (void)s;
  return entry_seek(c, cursor_run(c, i), entry_place(c, i), cursor_expect(c, i), rec_out);
}

// Prefetches the nr records that follow so many others behind off, if the cursor holds their block and the record
// behind them is in it, too. The block then tells where they are.
static inline bool near_prefetch(const struct remix_run_pos *n, sst_pos off, uint32_t before, uint32_t nr) {
  const uint32_t idx = sst_pos_idx(off) + before;
  if (sst_pos_block(off) != n->block || idx + nr >= n->nr) return false;
  prefetch_bytes(n->data + block_record_at(n->data, idx), n->data + block_record_at(n->data, idx + nr));
  return true;
}

// Prefetches the records of nr entries of a segment, from entry `from` on: a stretch in each run. First asks for the
// places of blocks that the cursor does not hold, then reads them.
static void group_prefetch(const struct remix_cursor *c, const uint8_t *s, uint32_t from, uint32_t nr) {
  const struct remix *const x = c->x;
  const struct remix_index *const ix = x->index;
  uint8_t room[REMIX_SEG];
  const struct seg_sels sels = {seg_bytes(ix, s, room), false};
  const uint8_t *const row = seg_row(ix, s);
  struct {
    uint32_t run, before, nr;
    sst_pos off;
  } parts[REMIX_SEG];
  uint32_t nr_parts = 0;
  for (uint32_t m = seg_live(ix, s) & ~set32_below(from) & set32_below(from + nr), mine; m; m &= ~mine) {
    const uint32_t i = set32_first(m), run = sels_run(sels, i), all = sels_of(sels, run);
    mine = all & m;
    const uint32_t passed = all & set32_below(i), before = passed ? set32_count(passed) : 0, mines = set32_count(mine);
    const sst_pos off = seg_off_by(x, s, row, run);
    if (likely(near_prefetch(&c->near[run], off, before, mines))) continue;
    parts[nr_parts].run = run;
    parts[nr_parts].off = off;
    parts[nr_parts].before = before;
    parts[nr_parts++].nr = mines;
    sst_prefetch_place(x->runs[run], off);
  }
  for (uint32_t i = 0; i < nr_parts; i++) {
    const struct sst *const t = x->runs[parts[i].run];
    sst_prefetch_stretch(t, sst_advance(t, parts[i].off, parts[i].before), parts[i].nr, &c->holds[parts[i].run]);
  }
}

// Whether the key of entry i is to be read from the compressed keys although a seek has just begun: reads come from the
// disk, its block is not at hand, and its key costs no more than its block. Later keys then come with it. A record that
// expires is always read, because it has the time.
static bool entry_key_cheap(const struct remix_cursor *c, const uint8_t *s, uint32_t i) {
  const uint8_t sel = seg_sel(c->x->index, s, i);
  struct sst *const t = c->x->runs[sel & REMIX_RUN];
  return sst_has_keys(t) && !(sel & REMIX_EXPIRES) &&
         sst_key_cheap(t, seg_pos(c->x, s, sel & REMIX_RUN, i), &c->keys[sel & REMIX_RUN].hold);
}

// Prefetches the memory that entry_seek of entry i of the cursor's segment reads. Returns the position.
static inline sst_pos entry_prefetch(const struct remix_cursor *c, uint32_t i) {
  const uint32_t run = cursor_run(c, i);
  const sst_pos pos = sels_pos(c->x, c->s, cursor_sels(c), run, i);
  sst_prefetch(c->x->runs[run], pos);
  return pos;
}

// The rest of seg_search, if the candidate's key is read from the compressed keys.
static enum remixdb_status seg_search_keys(struct remix_cursor *c, const uint8_t *p, struct kref key, uint32_t cand,
                                           struct seg_pos_found *out) {
  const struct remix *const x = c->x;
  const uint32_t run = seg_run(x->index, p, cand);
  struct kref found;
  enum remixdb_status s = c->bounded ? edge_find_near(c, c->front_seg) : REMIXDB_OK;
  if (s == REMIXDB_OK) s = sst_key_at(x->runs[run], seg_pos(x, p, run, cand), &c->keys[run].hold, &found);
  if (s != REMIXDB_OK) return s;
  out->at = blind_place(seg_blind(x->index, p), seg_nr(x->index, p), seg_base(x->index, p), key, cand, found,
                        &out->equal);
  return s;
}

// The part of seg_search for reads from the disk: gathers blocks. Or finds the place by the compressed keys, and
// returns REMIXDB_OK or an error. REMIXDB_NOTFOUND: the search goes on. absent: the tags tell that the key is not
// there.
static __attribute__((noinline)) enum remixdb_status seg_search_cold(struct remix_cursor *c, const uint8_t *p,
                                                                     struct kref key, uint32_t cand, bool absent,
                                                                     struct seg_pos_found *out) {
  c->reads = atomic_load_explicit(&c->queue->io->nr_reads, memory_order_relaxed);
  const bool miss = entry_missing(c, p, cand);
  if (!miss && !c->onward) return REMIXDB_NOTFOUND;
  if (miss && c->keys_only && entry_key_cheap(c, p, cand)) return seg_search_keys(c, p, key, cand, out);
  gather_seek(c, key, p, cand, absent);
  return REMIXDB_NOTFOUND;
}

// Finds the key's place in a segment. Reads one key, the candidate's (remix_seek). Tags tell what to prefetch before
// the candidate is known. An entry with the key's tag mostly is the candidate. Without such an entry the key is not
// there, and the cursor will stand at the candidate or, as often, at the entry behind it. If steps followed the last
// seek, they will follow this one: the entries that they come to are prefetched before the wait for the candidate.
static enum remixdb_status seg_search(struct remix_cursor *c, uint32_t seg, const uint8_t *p, struct kref key,
                                      uint32_t ahead, struct seg_pos_found *out) {
  const struct remix *const x = c->x;
  const struct remix_index *const ix = x->index;
  struct kv_rec rec;
  c->front_seg = seg;
  c->front_at = 0;
  cursor_sels_take(c, p);
  if (unlikely(seg_far(ix, p))) return seg_search_binary(x, p, key, seek_entry, c, out, &rec);
  const struct blind dbits = seg_blind(ix, p);
  const uint32_t nr = seg_nr(ix, p), base = seg_base(ix, p);
  const uint32_t tagged = x->tags ? set32_eq8(p, 0xFF, remix_tag(hash64(key.ptr, key.len))) & set32_below(nr) : 0;
  if (ahead) {  // for all runs at once: else each group of entries would wait for its own
    sst_pos offs[REMIX_RUNS_MAX];
    seg_offs(x, p, offs);
    for (uint32_t r = 0; r < x->nr_runs; r++) sst_prefetch_place(x->runs[r], offs[r]);
  }
  uint32_t first = REMIX_SEG;
  sst_pos pos = 0;  // the position of entry `first`
  if (tagged) {
    first = set32_first(tagged);
    pos = entry_prefetch(c, first);
  }
  const uint32_t cand = blind_candidate(dbits, nr, base, key);
  if (ahead) {
    group_prefetch(c, p, cand, ahead);
    c->front_at = cand + ahead < nr ? cand + ahead : nr;
  } else if (x->tags && !tagged && cand + 1 < nr) {
    entry_prefetch(c, cand + 1);
  }
  if (unlikely(remix_stirred(c))) {
    const enum remixdb_status cold = seg_search_cold(c, p, key, cand, x->tags && !(tagged >> cand & 1), out);
    if (cold != REMIXDB_NOTFOUND) return cold;
  }
  if (unlikely(c->bounded)) {
    const enum remixdb_status near = edge_find_near(c, seg);
    if (near != REMIXDB_OK) return near;
  }
  if (cand != first) pos = entry_place(c, cand);
  const enum remixdb_status s = entry_seek(c, cursor_run(c, cand), pos, cursor_expect(c, cand), &rec);
  if (s != REMIXDB_OK) return s;
  REMIX_COUNT(key_compares);
  out->at = blind_place(dbits, nr, base, key, cand, kref(rec.key, rec.klen), &out->equal);
  return REMIXDB_OK;
}

// ---- cursors

void remix_cursor_init(struct remix_cursor *c, struct blkio_queue *queue) {
  *c = (struct remix_cursor){0};
  c->queue = queue;
}

static __attribute__((noinline)) void cursor_add_debt(struct remix_cursor *c) {
  remix_add_debt(c->x, c->scan_debt);
  c->scan_debt = 0;
}

static void keys_forget(struct remix_cursor *c) {
  for (uint32_t r = 0; r < c->keys_cap; r++) c->keys[r].blocks = 0;
}

static void keys_fini(struct remix_cursor *c) {
  for (uint32_t r = 0; r < c->keys_cap; r++) sst_key_hold_fini(&c->keys[r].hold);
  mem_free(c->keys);
  c->keys = NULL;
  c->keys_cap = 0;
}

static enum remixdb_status keys_reserve(struct remix_cursor *c, uint32_t nr) {
  if (nr <= c->keys_cap) return REMIXDB_OK;
  struct remix_keys *const more = mem_realloc(c->keys, nr * sizeof(*more));
  if (!more) return REMIXDB_NOMEM;
  memset(more + c->keys_cap, 0, (nr - c->keys_cap) * sizeof(*more));
  c->keys = more;
  c->keys_cap = nr;
  return REMIXDB_OK;
}

// Forgets the places of the runs: the cursor goes elsewhere, or a search uses its holds.
static inline void cursor_leave(struct remix_cursor *c) {
  for (uint32_t m = c->placed; m; m &= m - 1) c->near[set32_first(m)].nr = c->near[set32_first(m)].ahead = 0;
  c->placed = 0;
  if (unlikely(c->keys_only)) keys_forget(c);
  c->begun = c->x->index->young;
  if (unlikely(c->scan_debt >= DEBT_TOGETHER)) cursor_add_debt(c);
}

// The cursor goes to another page of its view, which has the same runs.
static void cursor_turn_page(struct remix_cursor *c) {
  for (uint32_t m = c->placed; m; m &= m - 1) c->near[set32_first(m)].nr = 0;
}

static inline void cursor_end(struct remix_cursor *c) { c->seg = c->x ? c->x->nr_segs : 0; }

// Drops the holds, and gives back what the runs have.
static __attribute__((noinline)) void runs_free(struct remix_cursor *c) {
  for (uint32_t r = 0; r < c->cap; r++) sst_hold_fini(&c->holds[r]);  // with their own memory
  if (unlikely(c->keys_only)) keys_fini(c);
}

void remix_cursor_fini(struct remix_cursor *c) {
  if (c->scan_debt) cursor_add_debt(c);
  runs_free(c);
  mem_free(c->holds);
  remix_cursor_init(c, NULL);
}

// Makes room for the runs of a view.
static __attribute__((noinline)) enum remixdb_status runs_reserve(struct remix_cursor *c, uint32_t nr) {
  struct sst_hold *const holds = mem_realloc(c->holds, nr * (sizeof(*holds) + sizeof(*c->near)));
  if (!holds) return REMIXDB_NOMEM;
  memset(holds + c->cap, 0, (nr - c->cap) * sizeof(*holds));
  c->holds = holds;
  c->cap = nr;
  c->near = (struct remix_run_pos *)(holds + c->cap);
  memset(c->near, 0, c->cap * sizeof(*c->near));
  return REMIXDB_OK;
}

// The places of the runs stay until the seek that comes next forgets them (cursor_leave).
enum remixdb_status remix_cursor_set_slow(struct remix_cursor *c, struct remix *x) {
  enum remixdb_status s = REMIXDB_OK;
  const bool turned = x && unlikely(x->of != NULL) && c->x && x->of == c->x->of;
  c->came = cursor_came(c);
  if (unlikely(turned)) cursor_turn_page(c);
  else if (unlikely(c->scan_debt)) cursor_add_debt(c);
  if (x && unlikely(x->nr_runs > c->cap)) s = runs_reserve(c, x->nr_runs);
  if (unlikely(c->keys_only) && x && s == REMIXDB_OK) s = keys_reserve(c, x->nr_runs);
  if (unlikely(s != REMIXDB_OK)) x = NULL;
  if (unlikely(!x)) runs_free(c);
  remix_cursor_come(c, x);
  c->turned = turned;
  c->from = cursor_ordinal(c);
  return s;
}

static inline void set_plain(struct remix_cursor *c) {
  c->plain = likely(c->x->index->plain) ? c->live : c->live & set32_eq8(c->sel, REMIX_EXPIRES, 0);
}

static inline void cursor_seg(struct remix_cursor *c, uint32_t seg) {
  const struct remix_index *const ix = c->x->index;
  REMIX_COUNT(segments);
  c->seg = seg;
  cursor_sels_take(c, seg_at(ix, seg));
  c->live = seg_live(ix, c->s);
  if (unlikely(c->bounded)) c->live &= edge_within(c, seg);
  set_plain(c);
}

static inline void cursor_turn(struct remix_cursor *c, enum remix_way way) {
  if (c->way != REMIX_SOUGHT) c->came = 0;
  c->way = way;
  c->warm = 0;
  c->cool = REMIX_SEG;
  c->from = cursor_ordinal(c);
}

// Before a seek.
static inline void cursor_sought(struct remix_cursor *c) {
  cursor_turn(c, REMIX_SOUGHT);
  c->group = REMIX_GROUP_MIN;
  c->usual = c->came = 0;
}

// The average length with one more scan. It rises sooner than it falls: a second read costs more than a read of too
// much.
static inline uint32_t usual_length(uint32_t usual, uint32_t came) {
  if (came > USUAL_MAX) came = USUAL_MAX;
  return came > usual ? (usual + came + 1) / 2 : (usual * 3 + came) / 4;
}

// Before the first of several steps in one direction.
static void cursor_step_way(struct remix_cursor *c, enum remix_way way) {
  if (way == REMIX_BACK || c->way == REMIX_BACK) {
    c->front_seg = c->seg;
    c->front_at = c->at + (way == REMIX_BACK);
    c->group = REMIX_GROUP_MIN;
    for (uint32_t m = c->placed; m; m &= m - 1) c->near[set32_first(m)].ahead = 0;
  }
  // a hold may lack its block's records before those that were read
  if (way == REMIX_BACK)
    for (uint32_t m = c->placed; m; m &= m - 1) c->near[set32_first(m)].nr = 0;
  cursor_turn(c, way);
}

// Prefetches the records ahead of a cursor that steps on, group by group. The selectors tell the runs of the records
// that come next; the processor's own prefetcher cannot know them.
static void warm_on(struct remix_cursor *c) {
  const struct remix_index *const ix = c->x->index;
  const uint32_t nr = seg_nr(ix, c->s);
  if (unlikely(c->front_seg - c->seg > 1 || (c->front_seg == c->seg && c->front_at < c->at))) {  // left behind
    c->front_seg = c->seg;
    c->front_at = c->at;
  }
  uint32_t ahead = c->front_seg == c->seg ? c->front_at - c->at : nr - c->at + c->front_at;
  if (ahead <= REMIX_GROUP_MIN && c->front_seg < c->x->nr_segs) {
    const uint8_t *const s = seg_at(ix, c->front_seg);
    const uint32_t left = seg_nr(ix, s) - c->front_at, n = c->group < left ? c->group : left;
    group_prefetch(c, s, c->front_at, n);
    ahead += n;
    c->front_at += n;
    if (n == left) {
      c->front_at = 0;
      if (++c->front_seg < c->x->nr_segs) seg_prefetch(ix, c->front_seg);
    }
    if (c->group < REMIX_GROUP_MAX) c->group *= 2;
  }
  const uint32_t until = c->at + (ahead > REMIX_GROUP_MIN ? ahead - REMIX_GROUP_MIN : 1);
  c->warm = until < REMIX_SEG ? until : REMIX_SEG;
}

// The same for a cursor that steps back. Its groups stay small: much of a large group would be late.
static void warm_back(struct remix_cursor *c) {
  const struct remix_index *const ix = c->x->index;
  if (unlikely(c->seg - c->front_seg > 1 || (c->front_seg == c->seg && c->front_at > c->at + 1))) {
    c->front_seg = c->seg;
    c->front_at = c->at + 1;
  }
  uint32_t ahead = c->at + 1 - c->front_at + (c->front_seg == c->seg ? 0 : seg_nr(ix, seg_at(ix, c->front_seg)));
  if (ahead <= REMIX_GROUP_MIN && (c->front_at || c->front_seg)) {
    if (c->front_at == 0) c->front_at = seg_nr(ix, seg_at(ix, --c->front_seg));
    const uint32_t n = c->group < c->front_at ? c->group : c->front_at;
    c->front_at -= n;
    group_prefetch(c, seg_at(ix, c->front_seg), c->front_at, n);
    ahead += n;
    if (c->group < REMIX_GROUP_MAX) c->group *= 2;
  }
  const uint32_t more = ahead > REMIX_GROUP_MIN ? ahead - REMIX_GROUP_MIN : 1;
  c->cool = c->at >= more ? c->at - more + 1 : 0;
}

// Moves the runs of entries [from, to) of the cursor's segment by one record: on (1) or back (UINT32_MAX).
static inline void run_pos_pass(struct remix_cursor *c, uint32_t from, uint32_t to, uint32_t by) {
  for (uint32_t i = from; i < to; i++) c->near[c->sel[i] & REMIX_RUN].idx += by;
}

// Goes to the first live entry behind segment c->seg.
static void cursor_next_segment(struct remix_cursor *c) {
  const struct remix *const x = c->x;
  const uint32_t seg = seg_live_next(x, c->seg + 1);
  if (seg == x->nr_segs) {
    cursor_end(c);
    return;
  }
  if (unlikely(c->bounded) && edge_beyond(c, seg, false)) {
    remix_stop(c);
    return;
  }
  if (seg == c->seg + 1) run_pos_pass(c, c->at, seg_nr(x->index, c->s), 1);
  else cursor_leave(c);
  cursor_seg(c, seg);
  c->at = set32_first(c->live);
  run_pos_pass(c, 0, c->at, 1);
  if (c->way == REMIX_ON) warm_on(c);  // not when a seek ends behind its segment
}

void remix_next_slow(struct remix_cursor *c) {
  const uint32_t m = c->live & set32_above(c->at);
  if (c->way != REMIX_ON) cursor_step_way(c, REMIX_ON);
  if (m == 0) {
    cursor_next_segment(c);
    return;
  }
  const uint32_t to = set32_first(m);
  run_pos_pass(c, c->at, to, 1);
  c->at = to;
  if (to >= c->warm) warm_on(c);
}

// Goes to the last live entry before segment c->seg.
static void cursor_prev_segment(struct remix_cursor *c) {
  const struct remix *const x = c->x;
  const uint32_t seg = seg_live_prev(x, c->seg);
  if (seg == x->nr_segs) {
    cursor_end(c);
    return;
  }
  if (unlikely(c->bounded) && edge_beyond(c, seg, true)) {
    remix_stop(c);
    return;
  }
  if (seg == c->seg - 1) run_pos_pass(c, 0, c->at, UINT32_MAX);
  else cursor_leave(c);
  cursor_seg(c, seg);
  c->at = set32_last(c->live);
  run_pos_pass(c, c->at, seg_nr(x->index, c->s), UINT32_MAX);
  if (c->way == REMIX_BACK) warm_back(c);
}

// Goes to the first live entry at or behind entry `at` of segment seg.
static void cursor_stand(struct remix_cursor *c, uint32_t seg, uint32_t at) {
  cursor_seg(c, seg);
  const uint32_t m = c->live & ~set32_below(at);
  if (likely(m != 0)) c->at = set32_first(m);
  else cursor_next_segment(c);
}

// Goes to the last live entry before entry `at` of segment seg.
static void cursor_stand_before(struct remix_cursor *c, uint32_t seg, uint32_t at) {
  if (likely(!c->turned)) cursor_leave(c);
  cursor_seg(c, seg);
  const uint32_t m = c->live & set32_below(at);
  if (likely(m != 0)) c->at = set32_last(m);
  else cursor_prev_segment(c);
}

void remix_seek_begun(struct remix_cursor *c, uint32_t seg) {
  c->begun_seg = seg;
  c->wanted = true;
}

void remix_seek_begin(struct remix_cursor *c, struct kref key) {
  if (!c->x || c->x->nr_segs == 0) return;
  remix_seek_begun(c, anchors_find(&c->x->index->anchors, key));
  seg_prefetch(c->x->index, c->begun_seg);
}

// ahead: entries to prefetch at once; 0: none.
static enum remixdb_status cursor_find(struct remix_cursor *c, struct kref key, bool back, uint32_t ahead,
                                       uint32_t *seg_out, struct seg_pos_found *found_out) {
  const struct remix_index *const ix = c->x->index;
  if (!c->wanted) remix_seek_begin(c, key);
  c->wanted = false;
  const uint32_t seg = c->begun_seg;
  const uint8_t *const p = seg_at(ix, seg);
  cursor_end(c);
  cursor_leave(c);
  *seg_out = seg;
  c->begun = true;
  c->back = back;
  return seg_search(c, seg, p, key, ahead, found_out);
}

enum remixdb_status remix_seek(struct remix_cursor *c, struct kref key) {
  uint32_t seg;
  struct seg_pos_found spot;
  c->equal = false;
  if (!c->x || c->x->nr_segs == 0) return REMIXDB_OK;
  const uint32_t usual = c->way == REMIX_ON ? usual_length(c->usual, cursor_came(c)) : 0;
  // as far as a scan of the usual length goes without another group
  const uint32_t want = usual == 0 ? 0 : usual + REMIX_GROUP_MIN + 1,
                 ahead = want < REMIX_GROUP_MAX ? want : REMIX_GROUP_MAX;
  cursor_sought(c);
  c->usual = usual;
  if (ahead) c->group = ahead * 2 < REMIX_GROUP_MAX ? ahead * 2 : REMIX_GROUP_MAX;
  const enum remixdb_status s = cursor_find(c, key, false, ahead, &seg, &spot);
  if (s != REMIXDB_OK) return s;
  if (unlikely(c->bounded) && !c->low.known && kv_eq(key, c->low.key)) {
    c->low.at = spot.at;
    c->low.known = true;
  }
  cursor_stand(c, seg, spot.at);
  if (unlikely(c->beside || c->onward)) c->equal = spot.equal && c->at == spot.at && c->seg == seg;
  return s;
}

enum remixdb_status remix_seek_for_prev(struct remix_cursor *c, struct kref key) {
  uint32_t seg;
  struct seg_pos_found spot;
  c->equal = false;
  if (!c->x || c->x->nr_segs == 0) return REMIXDB_OK;
  cursor_sought(c);
  const enum remixdb_status s = cursor_find(c, key, true, 0, &seg, &spot);
  if (s != REMIXDB_OK) return s;
  cursor_stand_before(c, seg, spot.at + spot.equal);
  if (unlikely(c->beside || c->onward)) c->equal = spot.equal && c->at == spot.at && c->seg == seg;
  return s;
}

// Counts the leading bits that two different keys share. A byte counts as 9 bits, the first of which is 1; the end of a
// key is a 0.
static uint64_t bits_shared(struct kref a, struct kref b) {
  const uint32_t lcp = kv_lcp_from(a, b, 0);
  if (lcp == a.len || lcp == b.len) return (uint64_t)lcp * 9;
  return (uint64_t)lcp * 9 + (uint32_t)__builtin_clz((uint32_t)(a.ptr[lcp] ^ b.ptr[lcp])) - 23;
}

enum remixdb_status remix_none_between(struct remix_cursor *c, struct kref key, struct kref to, bool back,
                                       bool *none_out) {
  const struct remix *const x = c->x;
  *none_out = false;
  if (!x || x->nr_segs == 0) return REMIXDB_OK;
  assert(c->wanted);
  const uint32_t seg = c->begun_seg;
  const uint8_t *const p = seg_at(x->index, seg);
  const struct blind dbits = seg_blind(x->index, p);
  const uint32_t nr = seg_nr(x->index, p), base = seg_base(x->index, p);
  if (seg_far(x->index, p)) return REMIXDB_OK;
  cursor_leave(c);
  const struct seg_sels sels = seg_sels(x->index, p);
  const uint32_t cand = blind_candidate(dbits, nr, base, key), run = sels_run(sels, cand);
  struct kv_rec rec;
  bool equal;
  const enum remixdb_status s = entry_seek(c, run, sels_place(x, p, sels, run, cand), 1, &rec);
  if (s != REMIXDB_OK) return s;
  const struct kref found = kref(rec.key, rec.klen);
  const uint32_t at = blind_place(dbits, nr, base, key, cand, found, &equal);
  // the view's next entry in the direction may be in another segment, or in another page
  const bool page = x->of != NULL;
  if (equal || (back ? at == 0 && (seg > 0 || page) : at == nr && (seg + 1 < x->nr_segs || page))) return REMIXDB_OK;
  if (cand == (back ? at - 1 : at)) *none_out = (back ? kv_cmp(to, found) : kv_cmp(found, to)) > 0;
  else *none_out = bits_shared(key, found) < bits_shared(key, to);
  return s;
}

void remix_seek_first(struct remix_cursor *c) {
  c->equal = false;
  if (!c->x || c->x->nr_segs == 0) return;
  cursor_sought(c);
  if (likely(!c->turned)) cursor_leave(c);
  c->wanted = false;
  c->turned = false;
  c->front_seg = c->front_at = 0;
  cursor_stand(c, 0, 0);
}

void remix_seek_last(struct remix_cursor *c) {
  c->equal = false;
  if (!c->x || c->x->nr_segs == 0) return;
  cursor_sought(c);
  c->wanted = false;
  cursor_stand_before(c, c->x->nr_segs - 1, REMIX_SEG);
  c->turned = false;
}

void remix_bound(struct remix_cursor *c, struct kref low, struct kref high) { edge_set(c, low, high); }

enum remixdb_status remix_seek_edge(struct remix_cursor *c, bool back) {
  struct remix_edge *const e = back ? &c->high : &c->low;
  c->equal = false;
  if (!c->x || c->x->nr_segs == 0) return REMIXDB_OK;
  cursor_sought(c);
  c->wanted = c->turned = false;
  cursor_end(c);
  cursor_leave(c);
  const enum remixdb_status s = e->known ? REMIXDB_OK : edge_find(c, e, true);
  if (s != REMIXDB_OK) return s;
  if (!back) {
    c->front_seg = e->seg;
    c->front_at = e->at;
    cursor_stand(c, e->seg, e->at);
  } else if (e->seg == c->x->nr_segs) {
    cursor_stand_before(c, e->seg - 1, REMIX_SEG);
  } else {
    cursor_stand_before(c, e->seg, e->at);
  }
  return s;
}

enum remixdb_status remix_settle(struct remix_cursor *c, bool back) {
  if (remix_settled(c, back)) return REMIXDB_OK;
  const enum remixdb_status s = edge_find(c, edge_ahead(c, back), false);
  if (s != REMIXDB_OK) return s;
  c->live &= edge_within(c, c->seg);
  set_plain(c);
  if (!(c->live >> c->at & 1)) remix_stop(c);
  return s;
}

void remix_stop(struct remix_cursor *c) {
  c->came = cursor_came(c);
  cursor_end(c);
  c->from = cursor_ordinal(c);
}

void remix_enter(struct remix_cursor *c, enum remix_way way) {
  const uint32_t came = cursor_came(c), usual = c->usual;
  if (way == REMIX_BACK) remix_seek_last(c);
  else remix_seek_first(c);
  if (!remix_valid(c)) return;
  cursor_step_way(c, way);
  c->came = came;
  c->usual = usual;
}

void remix_prev_slow(struct remix_cursor *c) {
  if (unlikely(c->way != REMIX_BACK)) cursor_step_way(c, REMIX_BACK);
  const uint32_t m = c->live & set32_below(c->at);
  if (unlikely(m == 0)) {
    cursor_prev_segment(c);
    return;
  }
  const uint32_t to = set32_last(m);
  do c->near[c->sel[--c->at] & REMIX_RUN].idx--;
  while (unlikely(c->at != to));
  if (unlikely(to < c->cool)) warm_back(c);
}

uint32_t remix_skip(struct remix_cursor *c, uint32_t nr, uint32_t end) {
  const struct remix *const x = c->x;
  const struct remix_index *const ix = x->index;
  if (nr == 0 || c->seg >= end) return 0;
  const uint32_t here = c->live & set32_above(c->at), left = set32_count(here);
  if (nr == 1 && left) {
    remix_next(c);
    return 1;
  }
  if (nr <= left) {
    const uint32_t to = set32_nth(here, nr - 1);
    run_pos_pass(c, c->at, to, 1);
    c->at = to;
    return nr;
  }
  const uint32_t rank = seg_rank(ix, c->seg + 1) - left - 1,
                 last = seg_rank(ix, end < x->nr_segs ? end : x->nr_segs) - 1;
  const uint32_t moved = last - rank < nr ? last - rank : nr;
  if (moved == 0) return 0;
  const uint32_t seg = seg_live_after(x, c->seg, rank + moved);
  c->came = c->way == REMIX_BACK ? 0 : cursor_came(c);
  if (seg != c->seg) cursor_seg(c, seg);
  cursor_leave(c);
  c->warm = 0;
  const uint32_t set = likely(!c->bounded) ? c->live : seg_live(ix, c->s);  // ranks know no bounds
  c->at = set32_nth(set, rank + moved - seg_rank(ix, seg));
  c->from = cursor_ordinal(c);
  return moved;
}

void remix_leap(struct remix_cursor *c, uint32_t seg, bool back) {
  c->came = (c->way == REMIX_BACK) == back ? cursor_came(c) : 0;
  cursor_leave(c);
  cursor_seg(c, seg);
  assert(c->live);
  c->warm = 0;
  c->cool = REMIX_SEG;
  c->at = back ? set32_first(c->live) : set32_last(c->live);
  c->from = cursor_ordinal(c);
}

uint32_t remix_segment(const struct remix *x, struct kref key) {
  if (unlikely(x->paged != NULL)) return remix_page_segment(x, remix_page_of(x, key));
  return anchors_find(&x->index->anchors, key);
}

uint32_t remix_segments(const struct remix *x) { return x->paged ? remix_page_segment(x, remix_pages(x)) : x->nr_segs; }

// Readahead in a run, on or back. It begins when the run's next block is not in the cache for the third time since the
// cursor was set or turned, and doubles each time. It goes into the cache while that has room. Else, or without a
// cache, it goes into the hold's own memory, so a scan larger than the cache leaves the cache to others.
static void cursor_ahead(struct remix_cursor *c, struct sst *t, uint32_t block, bool back, struct sst_hold *h,
                         struct remix_run_pos *n) {
  if (!c->queue) return;
  if (n->ahead < REMIX_AHEAD_MIN && cursor_came(c) >= GATHER_ENTRIES) n->ahead = REMIX_AHEAD_MIN;
  n->ahead = n->ahead < REMIX_AHEAD_MIN / 2 ? n->ahead + 1
             : n->ahead < REMIX_AHEAD_MAX   ? n->ahead * 2
                                            : REMIX_AHEAD_MAX;
  if (n->ahead < REMIX_AHEAD_MIN) return;
  const uint32_t pages = sst_block_pages(t, block);
  const uint32_t edge = likely(!c->bounded) ? back ? 0 : t->nr_pages
                                            : edge_page(c, (uint32_t)(n - c->near), block, back);
  const uint32_t left = back ? block + pages - edge : edge - block, nr = n->ahead < left ? n->ahead : left;
  if (!c->no_room && cache_room(&t->cache, block, pages)) {
    const uint32_t first = back ? sst_block_back(t, block, nr) : block;
    sst_readahead(t, c->queue, first, back ? block + pages - first : nr);
    if (cache_has(&t->cache, block)) return;
    c->no_room = true;
  }
  const uint32_t share = REMIX_AHEAD_ALL / c->x->nr_runs, most = share > REMIX_AHEAD_OWN ? share : REMIX_AHEAD_OWN;
  if (back) sst_hold_readahead_back(t, block, nr < most ? nr : most, edge, h);
  else sst_hold_readahead(t, block, nr < most ? nr : most, edge, h);
}

// Whether the block follows the hold's block. A hold that is not pinned still tells the run's last block.
static inline bool follows(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return h->sst == t && h->block + sst_block_pages(t, h->block) == block;
}

// Reads the record's block: the cursor does not hold it, or has forgotten it.
static __attribute__((noinline)) enum remixdb_status record_read(struct remix_cursor *c, struct sst *t, sst_pos pos,
                                                                 struct sst_hold *h, struct remix_run_pos *n,
                                                                 struct kv_rec *rec_out) {
  const uint32_t block = sst_pos_block(pos), few = cursor_expect(c, c->at);
  if (missing(h, t, block)) {
    const bool on = follows(h, t, block), back = h->sst == t && block + sst_block_pages(t, block) == h->block;
    if (!on && !back) c->scan_debt += c->begun;
    // a long scan reads each run ahead; backward from a disk gathers do it
    if (remix_cold(c) && (c->way == REMIX_BACK || cursor_came(c) < GATHER_ENTRIES)) gather_steps(c);
    else if (on || (back && c->way == REMIX_BACK)) cursor_ahead(c, t, block, back, h, n);
  }
  c->begun = true;
  return sst_read_some(t, pos, few, true, h, rec_out);
}

// Whether the record's key is to be read from the compressed keys: its block is not at hand, and its key is cheap, or
// some blocks of the run were read already. Counts this block. A record that expires is always read, because it has the
// time.
static bool keys_suit(struct remix_cursor *c, uint32_t run, const struct sst *t, uint32_t block) {
  if (!sst_has_keys(t) || c->sel[c->at] & REMIX_EXPIRES || !missing(&c->holds[run], t, block)) return false;
  if (remix_cold(c) && entry_key_cheap(c, c->s, c->at)) return true;
  return c->keys[run].blocks++ >= KEYS_BLOCKS;
}

static __attribute__((noinline)) enum remixdb_status record_key(struct remix_cursor *c, uint32_t run, sst_pos pos,
                                                                struct kv_rec *rec_out) {
  struct kref key;
  const enum remixdb_status s = sst_key_at(c->x->runs[run], pos, &c->keys[run].hold, &key);
  if (s == REMIXDB_OK) kv_rec_set(rec_out, key, NULL, 0, c->sel[c->at] & REMIX_TOMB ? KV_TOMB : 0);
  return s;
}

enum remixdb_status remix_record(struct remix_cursor *c, struct kv_rec *rec_out) {
  const uint32_t run = remix_run(c);
  struct remix_run_pos *const n = &c->near[run];
  struct sst *const t = c->x->runs[run];
  REMIX_COUNT(records);
  if (n->idx < n->nr) {
    block_record(n->data, n->idx, rec_out);
    return REMIXDB_OK;
  }
  const sst_pos pos = sels_pos(c->x, c->s, cursor_sels(c), run, c->at);
  n->nr = 0;
  c->placed |= 1u << run;
  struct sst_hold *const h = &c->holds[run];
  if (unlikely(c->keys_only) && keys_suit(c, run, t, sst_pos_block(pos))) return record_key(c, run, pos, rec_out);
  const enum remixdb_status s = record_read(c, t, pos, h, n, rec_out);
  if (unlikely(s != REMIXDB_OK)) return s;
  n->data = h->cb.data;
  n->block = sst_pos_block(pos);
  n->idx = sst_pos_idx(pos);
  n->nr = t->nr_recs[sst_pos_block(pos)];
  if (unlikely(h->to < n->nr)) n->nr = h->to;
  return s;
}
