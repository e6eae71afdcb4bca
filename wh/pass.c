// SPDX-License-Identifier: Apache-2.0
#include "wh.h"
#include "wh/gap.h"

#define HOPS 64u                   // most steps from gap to gap in one search
#define SINCE (UINT64_C(1) << 63)  // in a note's third word: the note is not empty
// Most leaves of a new run, so that the list of reopened ranges does not advance too far while the run grows.
#define RUN_LEAVES 32u
// If a run was checked against so many reopened ranges or more, the run's place in their list moves on. So no later
// call checks these ranges again.
#define STALE 16u

struct wh_counters wh_counters;

// ---- notes

// Reads the note. Returns false if the note is empty or a thread is writing it.
static bool note_read(const struct wh_note *n, uint64_t w[WH_NOTE_WORDS]) {
  const uint64_t turn = atomic_load_explicit(&n->turn, memory_order_acquire);
  for (uint32_t i = 0; i < WH_NOTE_WORDS; i++) w[i] = atomic_load_explicit(&n->word[i], memory_order_acquire);
  return !(turn & 1) && w[2] & SINCE && atomic_load_explicit(&n->turn, memory_order_relaxed) == turn;
}

// Writes the note, unless another thread is writing it.
static void note_write(struct wh_note *n, const uint64_t w[WH_NOTE_WORDS]) {
  uint64_t turn = atomic_load_explicit(&n->turn, memory_order_relaxed);
  if (turn & 1) return;
  if (!atomic_compare_exchange_strong_explicit(&n->turn, &turn, turn + 1, memory_order_relaxed, memory_order_relaxed))
    return;
  for (uint32_t i = 0; i < WH_NOTE_WORDS; i++)
    atomic_store_explicit(&n->word[i], w[i], memory_order_release);  // after the odd turn
  atomic_store_explicit(&n->turn, turn + 2, memory_order_release);
}

static uint64_t word_of(const void *p) { return (uint64_t)(uintptr_t)p; }
static const struct wh_entry *word_entry(uint64_t w) { return (const struct wh_entry *)(uintptr_t)w; }
static struct kref word_key(uint64_t ptr, uint64_t len) { return kref((const uint8_t *)(uintptr_t)ptr, (uint32_t)len); }

// Returns the leaf's gaps, and makes them if there are none. Returns NULL if memory is missing.
static struct wh_gaps *gaps_of(struct wh *wh, struct wh_leaf *l) {
  struct wh_gaps *g = atomic_load_explicit(&l->gaps, memory_order_acquire), *fresh;
  if (g) return g;
  if (!(fresh = arena_alloc(&wh->arena, sizeof(*fresh)))) return NULL;
  memset((void *)fresh, 0, sizeof(*fresh));
  if (!atomic_compare_exchange_strong_explicit(&l->gaps, &g, fresh, memory_order_acq_rel, memory_order_acquire))
    return g;
  atomic_store_explicit(&l->gapped, true, memory_order_release);
  return fresh;
}

void wh_gaps_inherit(struct wh *wh, const struct wh_leaf *old, struct wh_leaf *fresh, bool backward) {
  const struct wh_gaps *const g = atomic_load_explicit(&old->gaps, memory_order_acquire);
  uint64_t w[WH_NOTE_WORDS];
  for (uint32_t i = 0; g && i < 2; i++) {
    struct wh_gaps *const to = note_read(&g->run[backward][i], w) ? gaps_of(wh, fresh) : NULL;
    if (to) note_write(&to->run[backward][i], w);
  }
}

// ---- for writers

void wh_gap_keep(struct wh_leaf *l, struct kref key, uint32_t before) {
  struct wh_gaps *const g = atomic_load_explicit(&l->gaps, memory_order_acquire);
  uint64_t w[WH_NOTE_WORDS];
  if (!g || !note_read(&g->here, w) || w[3] != before) return;
  const struct wh_entry *const lo = word_entry(w[0]), *const hi = word_entry(w[1]);
  if (!(lo && kv_cmp(key, wh_entry_key(lo)) < 0) && !(hi && kv_cmp(key, wh_entry_key(hi)) > 0)) return;
  w[3] = (uint32_t)(before + 1);
  note_write(&g->here, w);
}

void wh_gap_reopened(struct wh *wh, const struct wh_leaf *l) {
  struct wh_reopened *const r = &wh->reopened;
  const struct wh_leaf *const next = wh_leaf_next(l);
  const struct kref lo = l->anchor, hi = next ? next->anchor : kref(NULL, 0);
  const uint64_t w[4] = {word_of(lo.ptr), lo.len, word_of(hi.ptr), hi.len};
  lib_lock(&r->lock);
  const uint64_t nr = atomic_load_explicit(&r->nr, memory_order_relaxed);
  atomic_store_explicit(&r->begun, nr + 1, memory_order_release);
  _Atomic uint64_t *const range = r->range[nr % WH_REOPENED];
  for (uint32_t i = 0; i < 4; i++) atomic_store_explicit(&range[i], w[i], memory_order_release);  // after begun
  atomic_store_explicit(&r->nr, nr + 1, memory_order_release);
  lib_unlock(&r->lock);
}

// ---- runs

static uint64_t reopened_nr(const struct wh *wh) {
  return atomic_load_explicit(&wh->reopened.nr, memory_order_acquire);
}

// A stretch of keys. hi.ptr NULL: it has no end.
struct range {
  struct kref lo, hi;
};

static bool before_end(struct kref key, struct kref end) { return !end.ptr || kv_cmp(key, end) < 0; }

static struct kref leaf_end(const struct wh_leaf *l) {
  const struct wh_leaf *const next = wh_leaf_next(l);
  return next ? next->anchor : kref(NULL, 0);
}

// A run, outside of its note.
struct run {
  struct kref to;  // the anchor at which the run ends
  uint64_t since, place, until;
};

static bool run_read(const struct wh_note *n, struct run *out) {
  uint64_t w[WH_NOTE_WORDS];
  if (!note_read(n, w)) return false;
  *out = (struct run){word_key(w[0], w[1]), w[2] & ~SINCE, w[3], w[4]};
  return true;
}

static void run_write(struct wh_note *n, const struct run *r) {
  const uint64_t w[WH_NOTE_WORDS] = {word_of(r->to.ptr), r->to.len, r->since | SINCE, r->place, r->until};
  note_write(n, w);
}

static void run_clear(struct wh_note *n) {
  static const uint64_t nothing[WH_NOTE_WORDS] = {0};
  note_write(n, nothing);
}

// A reader's moment and clock.
struct when {
  uint64_t moment, now_ms;
};

// Whether a gap holds for a reader (G5).
static bool holds(struct when when, uint64_t since, uint64_t until) {
  return since <= when.moment && until <= when.now_ms;
}

// Stores the run where a reader like this one looks for it, unless the run stored there reaches as far.
static void run_keep(struct wh *wh, struct wh_leaf *l, bool backward, struct when when, const struct run *r) {
  struct wh_gaps *const g = gaps_of(wh, l);
  struct run had;
  if (!g) return;
  struct wh_note *n = &g->run[backward][0];
  if (run_read(n, &had) && !holds(when, had.since, had.until)) n = &g->run[backward][1];
  if (run_read(n, &had) && holds(when, had.since, had.until)) {
    const int further = kv_cmp(had.to, r->to);
    if (backward ? further <= 0 : further >= 0) return;
  }
  run_write(n, r);
}

// Compares two ends of ranges; NULL comes last.
static int end_cmp(struct kref a, struct kref b) {
  return a.ptr && b.ptr ? kv_cmp(a, b) : (a.ptr == NULL) - (b.ptr == NULL);
}

// Tells whether range a begins before b in the direction, or begins at the same place and is longer.
static bool range_first(const struct range *a, const struct range *b, bool backward) {
  const int lo = kv_cmp(a->lo, b->lo), hi = end_cmp(a->hi, b->hi);
  return backward ? hi > 0 || (hi == 0 && lo < 0) : lo < 0 || (lo == 0 && hi > 0);
}

// Searches the reopened ranges of numbers [from, to) for those that overlap `in`. *out: the range that begins earliest
// in the direction; among ranges that begin at the same place, the longest one. Returns 1 if there is such a range, 0
// if there is none, and -1 if the answer is unknown, because the list has advanced too far.
static int reopened_first(const struct wh *wh, uint64_t from, uint64_t to, struct range in, bool backward,
                          struct range *out) {
  const struct wh_reopened *const r = &wh->reopened;
  int found = 0;
  for (uint64_t i = from; i < to && to - from <= WH_REOPENED; i++) {
    uint64_t w[4];
    for (uint32_t k = 0; k < 4; k++) w[k] = atomic_load_explicit(&r->range[i % WH_REOPENED][k], memory_order_acquire);
    // If the list has advanced, the words may belong to two ranges.
    if (atomic_load_explicit(&r->begun, memory_order_relaxed) - from > WH_REOPENED) return -1;
    const struct range at = {word_key(w[0], w[1]), word_key(w[2], w[3])};
    if (!before_end(at.lo, in.hi) || !before_end(in.lo, at.hi)) continue;
    if (found && !range_first(&at, out, backward)) continue;
    *out = at;
    found = 1;
  }
  if (to - from > WH_REOPENED) return -1;
  return atomic_load_explicit(&r->begun, memory_order_relaxed) - from > WH_REOPENED ? -1 : found;
}

// Returns the leaf that a run in this direction reaches at the anchor, or NULL.
static struct wh_leaf *leaf_at(const struct wh *wh, struct kref anchor, bool backward) {
  const uint64_t k8 = wh_key8(anchor, 0);
  struct wh_leaf *const l = wh_locate(wh, wh_hint(wh, anchor, k8), anchor, k8);
  return backward && kv_eq(l->anchor, anchor) ? wh_leaf_prev(l) : l;
}

// Finds the leaf's run for this reader, as far as the run is valid. If a leaf within the run was reopened, the call
// moves the part of the run after that leaf to the next leaf. Returns false if there is no run.
static bool run_find(struct wh *wh, struct wh_leaf *l, struct wh_note *n, bool backward, struct when when,
                     struct run *out) {
  struct range cut;
  if (!run_read(n, out) || !holds(when, out->since, out->until)) return false;
  const uint64_t nr = reopened_nr(wh);
  const struct range in = backward ? (struct range){out->to, leaf_end(l)} : (struct range){l->anchor, out->to};
  const int found = reopened_first(wh, out->place, nr, in, backward, &cut);
  if (found < 0) return run_clear(n), false;
  if (found == 0) {
    if (nr - out->place < STALE) return true;
    out->place = nr;
    run_write(n, out);
    return true;
  }
  const bool rest = backward ? kv_cmp(out->to, cut.lo) < 0 : cut.hi.ptr && kv_cmp(cut.hi, out->to) < 0;
  struct wh_leaf *const behind = rest ? leaf_at(wh, backward ? cut.lo : cut.hi, backward) : NULL;
  const bool meets = behind && (backward ? end_cmp(leaf_end(behind), cut.lo) : kv_cmp(behind->anchor, cut.hi)) == 0;
  if (meets) run_keep(wh, behind, backward, when, out);
  out->to = backward ? cut.hi : cut.lo;
  out->place = nr;
  const bool some = backward ? out->to.ptr && before_end(out->to, in.hi) : kv_cmp(in.lo, out->to) < 0;
  if (some) run_write(n, out);
  else run_clear(n);
  return some;
}

// ---- within a leaf

struct here {
  const struct wh_entry *lo, *hi;  // NULL: the leaf's end
  uint64_t since, until;
};

static struct here here_of(const uint64_t w[WH_NOTE_WORDS]) {
  return (struct here){word_entry(w[0]), word_entry(w[1]), w[2] & ~SINCE, w[4]};
}

// Finds the gap within the leaf. Returns false if there is no valid gap.
static bool here_find(const struct wh_leaf *l, const struct wh_gaps *g, struct here *out) {
  uint64_t w[WH_NOTE_WORDS];
  if (!note_read(&g->here, w) || w[3] != atomic_load_explicit(&l->puts, memory_order_acquire)) return false;
  *out = here_of(w);
  return true;
}

static bool here_has(const struct here *h, struct kref key) {
  return !(h->lo && kv_cmp(key, wh_entry_key(h->lo)) < 0) && !(h->hi && kv_cmp(key, wh_entry_key(h->hi)) > 0);
}

// Tells whether all entries from lo to hi (NULL: the leaf's ends) have committed tombstones as their newest versions,
// or records that have expired at now_ms. back: an entry whose only version was taken back counts as closed. Raises
// *since_io to the largest of their sequence numbers, and *until_io to the latest of their times.
static bool entries_closed(struct wh_leaf *l, const struct wh_entry *lo, const struct wh_entry *hi, bool back,
                           uint64_t now_ms, uint64_t *since_io, uint64_t *until_io) {
  uint8_t pos[WH_LEAF_KEYS];
  const uint32_t n = wh_leaf_order(l, pos);
  uint32_t i = 0;
  while (lo && i < n && wh_leaf_entry(l, pos[i]) != lo) i++;
  if (i == n) return false;
  for (; i < n; i++) {
    const struct wh_entry *const e = wh_leaf_entry(l, pos[i]);
    const struct wh_ver *const v = wh_entry_newest(e);
    const uint64_t seq = v && wh_ver_absent(v, now_ms) ? wh_ver_seq(v) : !v && back ? 0 : WH_PENDING;
    const uint64_t until = v ? wh_ver_expiry(v) : 0;
    WH_COUNT(checked);
    if (seq == WH_PENDING) return false;
    if (seq > *since_io) *since_io = seq;
    if (until > *until_io) *until_io = until;
    if (e == hi) return true;
  }
  return !hi;
}

// ---- steps over gaps

// One step over a gap.
struct step {
  struct kref to;
  uint64_t since, until;
  bool out, whole;  // the step leaves the leaf; the step passes the whole leaf
};

// Steps over a gap in the leaf. The step begins at the key or, with edge, at the end of the leaf where the direction
// enters the leaf. Returns false if no gap leads on from there.
static bool leaf_step(struct wh *wh, struct wh_leaf *l, struct kref key, bool edge, bool backward, struct when when,
                      struct step *out) {
  struct wh_gaps *const g = atomic_load_explicit(&l->gaps, memory_order_acquire);
  struct run run;
  struct here here;
  if (!g) return false;
  WH_COUNT(hops);
  for (uint32_t i = 0; i < 2; i++) {
    if (!run_find(wh, l, &g->run[backward][i], backward, when, &run)) continue;
    *out = (struct step){run.to, run.since, run.until, true, true};
    return true;
  }
  if (!here_find(l, g, &here) || !holds(when, here.since, here.until)) return false;
  if (edge ? (backward ? here.hi : here.lo) != NULL : !here_has(&here, key)) return false;
  const struct wh_entry *const end = backward ? here.lo : here.hi;
  *out = (struct step){.since = here.since, .until = here.until, .out = !end, .whole = !here.lo && !here.hi};
  if (end) {
    out->to = wh_entry_key(end);
    return edge || (backward ? kv_cmp(out->to, key) < 0 : kv_cmp(key, out->to) < 0);
  }
  out->to = backward ? l->anchor : leaf_end(l);
  return out->to.ptr != NULL && !wh_leaf_dead(l);
}

void wh_end_gaps(struct wh *wh) { atomic_store_explicit(&wh->no_gaps, true, memory_order_release); }

bool wh_gap(const struct wh_cursor *c, struct kref key, bool backward, uint64_t now_ms, struct kref *to_out,
            uint64_t *until_io) {
  const struct when when = {c->moment, now_ms};
  struct wh *const wh = (struct wh *)(uintptr_t)c->wh;
  // A reader that has found the super with the new keys sees the flag, too, because it was set first.
  if (unlikely(atomic_load_explicit(&wh->no_gaps, memory_order_acquire))) return false;
  struct wh_leaf *l = c->leaf, *first = NULL;  // from this one on, all leaves are whole
  struct run all = {.place = reopened_nr(wh)};
  struct step s;
  uint32_t joined = 0;
  bool found = false, edge = false;
  for (uint32_t i = 0; l && i < HOPS && leaf_step(wh, l, key, edge, backward, when, &s); i++) {
    found = true;
    *to_out = s.to;
    if (s.until > *until_io) *until_io = s.until;
    if (!s.out) break;
    if (s.whole) {
      if (!first) first = l;
      all.to = s.to;
      if (s.since > all.since) all.since = s.since;
      if (s.until > all.until) all.until = s.until;
      joined++;
    }
    l = leaf_at(wh, s.to, backward);
    edge = true;
  }
  if (joined > 1) run_keep(wh, first, backward, when, &all);
  return found;
}

// ---- making gaps

void wh_pass_begin(struct wh_pass *p, const struct wh_cursor *c, bool backward, const struct kref *from, uint64_t floor,
                   uint64_t now_ms) {
  *p = (struct wh_pass){.cursor = c,
                        .backward = backward,
                        .known = from != NULL,
                        .place = reopened_nr(c->wh),
                        .floor = floor,
                        .now_ms = now_ms};
  if (from) p->from_key = *from;
}

// Tells whether the pass began at or before the place where the direction enters the leaf.
static bool begins_before(const struct wh_pass *p, const struct wh_leaf *l) {
  if (!p->known) return false;
  if (!p->from_key.ptr) return true;  // at the first or last key of all
  const struct kref end = leaf_end(l);
  return p->backward ? end.ptr && kv_cmp(end, p->from_key) <= 0 : kv_cmp(p->from_key, l->anchor) <= 0;
}

// Returns the earliest entry of the cursor's leaf that was passed; NULL: all entries from the leaf's end on were
// passed.
static const struct wh_entry *passed_first(const struct wh_pass *p) {
  const struct wh_cursor *const c = p->cursor;
  if (!p->known) return c->entry;
  if (begins_before(p, c->leaf)) return NULL;
  const uint32_t rank = wh_leaf_rank(c->leaf, c->nr, wh_piece(p->from_key, c->leaf->skip));
  const uint32_t at = wh_leaf_place(c->leaf, c->order, c->nr, p->from_key, rank, p->backward);
  if (p->backward) return at > c->at ? wh_leaf_entry(c->leaf, c->order[at - 1]) : c->entry;
  return at <= c->at ? wh_leaf_entry(c->leaf, c->order[at]) : c->entry;
}

// Tells whether the place where the pass began is in the gap.
static bool here_joins(const struct wh_pass *p, const struct here *had) {
  return p->from ? here_has(had, wh_entry_key(p->from)) : (p->backward ? had->hi : had->lo) == NULL;
}

// Tells whether a gap that ends at `end` reaches as far as the pass, which came to `far`. NULL is the leaf's end, for
// both.
static bool reaches(const struct wh_pass *p, const struct wh_entry *far, const struct wh_entry *end) {
  if (!end) return true;
  if (!far) return false;
  const int beyond = kv_cmp(wh_entry_key(far), wh_entry_key(end));
  return p->backward ? beyond >= 0 : beyond <= 0;
}

// G7: before the entries of a leaf are looked at.
static void lapse(struct wh_leaf *l) {
  if (!atomic_load_explicit(&l->lapsed, memory_order_acquire))
    (void)atomic_exchange_explicit(&l->lapsed, true, memory_order_acq_rel);
}

// Stores the part of the leaf that was passed as the leaf's gap; all: the pass came to the leaf's end. Returns whether
// the whole leaf is a gap; then *out is that.
static bool leaf_keep(struct wh_pass *p, bool all, struct here *out) {
  struct wh_leaf *const l = p->leaf;
  struct wh_gaps *const g = gaps_of((struct wh *)(uintptr_t)p->cursor->wh, l);
  if (!g) return false;
  if (unlikely(p->now_ms != 0)) lapse(l);
  const uint32_t puts = atomic_load_explicit(&l->puts, memory_order_acquire);  // before the entries
  const struct wh_entry *const far = all ? NULL : p->last;
  struct here h = {.lo = p->backward ? far : p->from,
                   .hi = p->backward ? p->from : far,
                   .since = p->floor,
                   .until = p->until},
              had;
  const struct wh_entry *lo = h.lo, *hi = h.hi;  // the part to check
  uint64_t w[WH_NOTE_WORDS];
  // A part that a valid gap covers is not checked again.
  if (note_read(&g->here, w) && w[3] == puts) {
    had = here_of(w);
    const struct wh_entry *const end = p->backward ? had.lo : had.hi;
    const bool joins = here_joins(p, &had), covers = joins && reaches(p, far, end);
    *out = had;
    if (covers) return !had.lo && !had.hi;
    if (joins) {
      if (p->backward) h.hi = had.hi, hi = end;
      else h.lo = had.lo, lo = end;
      if (had.since > h.since) h.since = had.since;
      if (had.until > h.until) h.until = had.until;
    }
  }
  if (!entries_closed(l, lo, hi, false, p->now_ms, &h.since, &h.until)) return false;
  if (unlikely(p->now_ms != 0) && !atomic_load_explicit(&l->lapsed, memory_order_acquire)) return false;
  const uint64_t to[WH_NOTE_WORDS] = {word_of(h.lo), word_of(h.hi), h.since | SINCE, puts, h.until};
  note_write(&g->here, to);
  *out = h;
  return !h.lo && !h.hi;
}

static void run_end(struct wh_pass *p) {
  const struct run r = {p->run_to, p->run_since, p->place, p->run_until};
  const struct when when = {p->cursor->moment, p->now_ms};
  if (p->run) run_keep((struct wh *)(uintptr_t)p->cursor->wh, p->run, p->backward, when, &r);
  p->run = NULL;
  p->run_leaves = 0;
}

// Adds a leaf to the run. to: the anchor up to which the leaf is a gap. to.ptr NULL: the leaf is no gap, and the run
// ends. A run of RUN_LEAVES leaves also ends, and the call does not add the leaf, which was checked before the place of
// the next run is read (G4).
static void run_add(struct wh_pass *p, struct wh_leaf *l, struct kref to, const struct here *whole) {
  if (!to.ptr || p->run_leaves == RUN_LEAVES) {
    run_end(p);
    p->place = reopened_nr(p->cursor->wh);  // for leaves that are checked from here on (G4)
    return;
  }
  if (!p->run) {
    p->run = l;
    p->run_since = p->run_until = p->run_leaves = 0;
  }
  p->run_leaves++;
  p->run_to = to;
  if (whole->since > p->run_since) p->run_since = whole->since;
  if (whole->until > p->run_until) p->run_until = whole->until;
}

void wh_pass_leaf(struct wh_pass *p) {
  struct wh_leaf *const to = p->cursor->leaf, *const was = p->leaf;
  struct here here = {0};
  if (!was) {
    p->from = passed_first(p);
  } else {
    const bool beside = (p->backward ? wh_leaf_prev(was) : wh_leaf_next(was)) == to;
    const bool whole = leaf_keep(p, true, &here) && beside && !wh_leaf_dead(was);
    run_add(p, was, whole ? p->backward ? was->anchor : to->anchor : kref(NULL, 0), &here);
    p->from = NULL;  // the pass entered the leaf at its end, and passed all entries from there on
  }
  p->leaf = to;
}

void wh_pass_end(struct wh_pass *p) {
  struct here here;
  if (p->leaf) (void)leaf_keep(p, false, &here);
  run_end(p);
  p->leaf = NULL;
}

// ---- checking

static bool check_here(struct wh_leaf *l, const struct wh_gaps *g, char *why, size_t cap) {
  struct here h;
  uint64_t since = 0, until = 0;
  if (here_find(l, g, &h) && !entries_closed(l, h.lo, h.hi, true, h.until, &since, &until))
    WH_BROKEN("G1: a key within a gap");
  return true;
}

static bool check_run(struct wh *wh, struct wh_leaf *l, const struct wh_note *n, bool backward, char *why, size_t cap) {
  struct run r;
  struct range cut;
  if (!run_read(n, &r)) return true;
  const struct range in = backward ? (struct range){r.to, leaf_end(l)} : (struct range){l->anchor, r.to};
  const int found = reopened_first(wh, r.place, reopened_nr(wh), in, backward, &cut);
  if (found < 0 || (found && backward && !cut.hi.ptr)) return true;
  struct range good = in;
  if (found && backward) good.lo = cut.hi;
  if (found && !backward) good.hi = cut.lo;
  for (struct wh_leaf *at = atomic_load_explicit(&wh->head, memory_order_acquire); at; at = wh_leaf_next(at)) {
    uint64_t since = 0, until = 0;
    if (!before_end(at->anchor, good.hi) || kv_cmp(good.lo, at->anchor) > 0) continue;
    if (!entries_closed(at, NULL, NULL, true, r.until, &since, &until)) WH_BROKEN("G3: a leaf with keys within a run");
  }
  return true;
}

bool wh_gaps_check(const struct wh *cwh, char *why, size_t cap) {
  struct wh *const wh = (struct wh *)(uintptr_t)cwh;
  for (struct wh_leaf *l = atomic_load_explicit(&wh->head, memory_order_acquire); l; l = wh_leaf_next(l)) {
    const struct wh_gaps *const g = atomic_load_explicit(&l->gaps, memory_order_acquire);
    if (wh_leaf_tombs_counted(l) != wh_leaf_tombs(l))
      WH_BROKEN("G3: %u tombstones in a leaf, counted %u", wh_leaf_tombs(l), wh_leaf_tombs_counted(l));
    if (!g) continue;
    if (!check_here(l, g, why, cap)) return false;
    for (uint32_t i = 0; i < 4; i++)
      if (!check_run(wh, l, &g->run[i / 2][i % 2], i / 2, why, cap)) return false;
  }
  return true;
}
