// SPDX-License-Identifier: Apache-2.0
#include "view/merge.h"

#include <assert.h>

#include "remix/paged.h"

#define FEW_TOMBS 4u  // tombstones to pass before the merge asks for gaps, or makes them

void merge_init(struct merge *m, struct blkio_queue *queue) {
  memset(m, 0, sizeof(*m));
  m->at = m->new_at = MERGE_NONE;
  m->near = MERGE_FAR;
  remix_cursor_init(&m->remix, queue);
  remix_cursor_init(&m->young, queue);
  m->young.lead = &m->remix;
}

void merge_fini(struct merge *m) {
  remix_cursor_fini(&m->remix);
  remix_cursor_fini(&m->young);
}

void merge_use_epoch(struct merge *m, struct epoch *epoch, struct epoch_slot *slot) {
  m->epoch = epoch;
  m->slot = slot;
}

void merge_learn(struct merge *m, uint32_t expect, uint32_t *reach) {
  m->reach = reach;
  m->remix.expect = m->young.expect = expect;
  m->remix.reach = m->young.reach = reach;
}

static __attribute__((noinline)) void reach_note(struct merge *m) {
  const uint32_t came = remix_came(&m->remix), was = *m->reach;
  m->learned = true;
  if (came) *m->reach = came > was ? came : (uint32_t)(((uint64_t)was * 3 + came) / 4);
}

// A scan has ended: learns how far it came. The estimate rises at once, because a second trip costs more than a few
// pages.
static inline void reach_learn(struct merge *m) {
  if (likely(m->remix.way == REMIX_SOUGHT)) return;
  if (unlikely(m->values || remix_stirred(&m->remix)) && m->reach && !m->learned) reach_note(m);
}

void merge_bound(struct merge *m, struct kref low, struct kref high) {
  m->low = low;
  m->high = high;
  m->bounded = low.ptr || high.ptr;
}

// Finds the partitions and the young views that may hold keys within the bounds.
static void bounds_find(struct merge *m) {
  const struct version *const v = m->version;
  m->part_low = m->young_low = 0;
  m->part_high = v->nr_parts - 1;
  m->young_high = v->nr_young;
  if (likely(!m->bounded)) return;
  if (m->low.ptr) m->part_low = version_find(v, m->low);
  if (m->high.ptr) m->part_high = version_find(v, m->high);
  m->high_inside = m->high.ptr != NULL;
  if (m->high.ptr && m->part_high > m->part_low && kv_eq(part_anchor(v->parts[m->part_high]), m->high)) {
    m->part_high--;
    m->high_inside = false;
  }
  m->young_low = version_young_from(v, m->part_low);
  m->young_high = version_young_from(v, m->part_high + 1);
}

// Whether a key that a seek is to go to lies beyond the bound in the direction: no key within can follow.
static inline bool beyond(const struct merge *m, struct kref key) {
  if (m->backward) return m->low.ptr && kv_cmp(key, m->low) < 0;
  return m->high.ptr && kv_cmp(key, m->high) >= 0;
}

// Gives a view's cursor the bounds that lie in the view's partition. A bound in another page of a paged view is none.
static __attribute__((noinline)) void bound_cursor(const struct merge *m, struct remix_cursor *c,
                                                   const struct merge_page *g, uint32_t part) {
  if (!c->x) return;
  const struct kref open = kref(NULL, 0);
  struct kref low = part == m->part_low ? m->low : open, high = part == m->part_high && m->high_inside ? m->high : open;
  const bool bounded = low.ptr || high.ptr;
  if (c->x->of && low.ptr && remix_page_of(c->x->of, low) != g->page) low = open;
  if (c->x->of && high.ptr && remix_page_of(c->x->of, high) != g->page) high = open;
  remix_bound(c, low, high);
  c->bounded = bounded;  // so that blocks are read ahead within the page only
}

// The cursor is not in a page any more.
static __attribute__((noinline)) void page_leave(struct merge_page *g) {
  remix_unref(g->in);
  g->in = g->paged = NULL;
}

static void parts_leave(struct merge *m) {
  reach_learn(m);
  m->remix.beside = m->young.beside = NULL;
  m->young_state = MERGE_YOUNG_KNOWN;
  m->parts_later = false;
  IGNORED(remix_cursor_set(&m->remix, NULL), "setting no REMIX allocates nothing, so it cannot fail");
  if (unlikely(m->remix_page.in != NULL)) page_leave(&m->remix_page);
  if (m->young.x) IGNORED(remix_cursor_set(&m->young, NULL), "the same");
  if (unlikely(m->young_page.in != NULL)) page_leave(&m->young_page);
}

void merge_set(struct merge *m, const struct wh *active, const struct wh *frozen, const struct version *version,
               uint64_t moment) {
  const struct wh *const mem[2] = {active, frozen};
  for (uint32_t i = 0; i < 2; i++) {
    m->has[i] = mem[i] != NULL && wh_count(mem[i]) != 0;
    if (m->has[i]) wh_cursor_init(&m->mem[i], mem[i], moment);
  }
  if (m->version != version) {
    parts_leave(m);
    m->version = version;
    if (version) bounds_find(m);
  }
  m->has[MERGE_YOUNG] = version && m->young_low != m->young_high;
  m->at = m->new_at = MERGE_NONE;
  m->near = MERGE_FAR;
}

void merge_park(struct merge *m) {
  parts_leave(m);
  m->has[MERGE_ACTIVE] = m->has[MERGE_FROZEN] = m->has[MERGE_YOUNG] = false;
  m->version = NULL;
  m->at = m->new_at = MERGE_NONE;
  m->near = MERGE_FAR;
}

// Counts a key that was passed; every MERGE_STEPS keys of a seek it starts a new epoch. All that the merge keeps is
// pinned, or lives as long as the sources or the caller's stay in the cursors' domain.
static void passed(struct merge *m) {
  if (likely(++m->steps < MERGE_STEPS)) return;
  m->steps = 0;
  if (!m->slot || !m->inside) return;
  epoch_exit(m->slot);
  epoch_enter(m->epoch, m->slot);
}

// ---- the stream of partitions

static inline bool parts_valid(const struct merge *m) { return remix_valid(&m->remix) && likely(!m->parts_later); }

// Whether some stream was not moved to the current key.
static inline bool some_later(const struct merge *m) { return m->young_state == MERGE_YOUNG_LATER || m->parts_later; }

static void clear_forget(struct merge *m) {
  m->clear = m->backward ? UINT32_MAX : 0;
  m->clear_found = false;
  m->since = UINT32_MAX;
}

// Around a lookup outside of a seek: enters an epoch if the caller gave its slot, else the caller is inside one.
static void look_up_begin(struct merge *m) {
  if (m->slot && !m->inside) epoch_enter(m->epoch, m->slot);
}
static void look_up_end(struct merge *m) {
  if (m->slot && !m->inside) epoch_exit(m->slot);
}

// Looks the record's block up if it is not held.
static enum remixdb_status stream_record(struct merge *m, struct remix_cursor *c, struct kv_rec *rec_out) {
  if (likely(remix_record_held(c, rec_out))) return REMIXDB_OK;
  look_up_begin(m);
  const enum remixdb_status s = remix_record(c, rec_out);
  look_up_end(m);
  return s;
}
static enum remixdb_status parts_record(struct merge *m, struct kv_rec *rec_out) {
  return stream_record(m, &m->remix, rec_out);
}

// Cursors gather for each other while they are in the same partition.
static void besides(struct merge *m) {
  const bool both = m->young.x && m->version->young[m->young_at] == m->part;
  m->remix.beside = both ? &m->young : NULL;
  m->young.beside = both ? &m->remix : NULL;
}

// Sets the cursor to a page of a paged view of this partition. *g is the cursor's place. It keeps the page until it
// leaves.
static enum remixdb_status page_enter(struct merge *m, struct remix_cursor *c, struct merge_page *g, uint32_t part,
                                      struct remix *x, uint32_t page) {
  struct remix *in;
  look_up_begin(m);
  enum remixdb_status s = remix_page(x, page, &in);
  if (s == REMIXDB_OK) remix_ref(in);
  look_up_end(m);
  if (s != REMIXDB_OK) return s;
  struct remix *const was = g->in;
  *g = (struct merge_page){x, in, page};
  if (c->x != in) {
    s = remix_cursor_set(c, in);
    if (unlikely(m->bounded) && s == REMIXDB_OK) bound_cursor(m, c, g, part);
  }
  remix_unref(was);
  return s;
}

// Where a stream begins in a partition: at its first entry within the bounds, at the last one, or at a key.
enum entry { ENTER_FIRST, ENTER_LAST, ENTER_KEY };

static uint32_t page_first(const struct merge *m, const struct remix *x, uint32_t part) {
  return part == m->part_low && m->low.ptr ? remix_page_of(x, m->low) : 0;
}
static uint32_t page_last(const struct merge *m, const struct remix *x, uint32_t part) {
  return part == m->part_high && m->high_inside ? remix_page_of(x, m->high) : remix_pages(x) - 1;
}

static __attribute__((noinline)) enum remixdb_status paged_enter(struct merge *m, struct remix_cursor *c,
                                                                 struct merge_page *g, uint32_t part, struct remix *x,
                                                                 enum entry at, struct kref key) {
  const enum remixdb_status s = page_enter(m, c, g, part, x,
                                           at == ENTER_FIRST  ? page_first(m, x, part)
                                           : at == ENTER_LAST ? page_last(m, x, part)
                                                              : remix_page_of(x, key));
  if (at == ENTER_KEY) c->turned = false;  // the seek forgets the runs' positions
  return s;
}

// Whether the cursor's view, of this partition, has another page within the bounds in this direction.
static bool page_follows(const struct merge *m, const struct merge_page *g, uint32_t part, bool backward) {
  return backward ? g->page > page_first(m, g->paged, part) : g->page < page_last(m, g->paged, part);
}

static inline enum remixdb_status parts_enter(struct merge *m, uint32_t part, enum entry at, struct kref key) {
  const struct part *const p = m->version->parts[part];
  const enum remixdb_status ready = part_ready(p);
  struct remix *const x = part_remix(p);
  if (unlikely(ready != REMIXDB_OK)) return ready;
  m->part = part;
  if (unlikely(m->has[MERGE_YOUNG])) besides(m);
  if (m->remix.x == x) return REMIXDB_OK;
  if (unlikely(x && x->paged)) return paged_enter(m, &m->remix, &m->remix_page, part, x, at, key);
  const enum remixdb_status s = remix_cursor_set(&m->remix, x);
  if (unlikely(m->remix_page.in != NULL)) page_leave(&m->remix_page);
  if (unlikely(m->bounded) && s == REMIXDB_OK) bound_cursor(m, &m->remix, &m->remix_page, part);
  return s;
}

// Ends the move of a view's cursor: it may have come to a bound.
static __attribute__((noinline)) enum remixdb_status bound_settle(struct merge *m, struct remix_cursor *c,
                                                                  bool backward) {
  if (remix_settled(c, backward)) return REMIXDB_OK;
  look_up_begin(m);
  const enum remixdb_status s = remix_settle(c, backward);
  look_up_end(m);
  return s;
}

// At the end of a REMIX, moves on to the next (backward: the previous) page or partition that is not empty.
static enum remixdb_status parts_settle(struct merge *m, bool backward) {
  enum remixdb_status s = REMIXDB_OK;
  m->remix_key.ptr = NULL;
  if (unlikely(m->bounded)) s = bound_settle(m, &m->remix, backward);
  if (likely(parts_valid(m)) || s != REMIXDB_OK) return s;
  while (!parts_valid(m) && s == REMIXDB_OK) {
    struct merge_page *const g = &m->remix_page;
    if (unlikely(g->paged != NULL) && page_follows(m, g, m->part, backward)) {
      s = page_enter(m, &m->remix, g, m->part, g->paged, backward ? g->page - 1 : g->page + 1);
    } else {
      if (m->part == (backward ? m->part_low : m->part_high)) break;
      s = parts_enter(m, backward ? m->part - 1 : m->part + 1, backward ? ENTER_LAST : ENTER_FIRST, kref(NULL, 0));
    }
    if (s != REMIXDB_OK) return s;
    passed(m);
    if (!m->sought) remix_enter(&m->remix, backward ? REMIX_BACK : REMIX_ON);
    else if (backward) remix_seek_last(&m->remix);
    else remix_seek_first(&m->remix);
    if (unlikely(m->bounded)) s = bound_settle(m, &m->remix, backward);
  }
  clear_forget(m);
  return s;
}

static inline enum remixdb_status parts_seek_begin(struct merge *m, struct kref key) {
  const uint32_t part = version_find(m->version, key), seg = part_seek_begin(m->version->parts[part], key);
  const enum remixdb_status s = parts_enter(m, part, ENTER_KEY, key);
  if (unlikely(s != REMIXDB_OK)) return s;
  if (likely(seg != ANCHORS_UNKNOWN)) remix_seek_begun(&m->remix, seg);
  else remix_seek_begin(&m->remix, key);
  return s;
}

// After parts_seek_begin.
static enum remixdb_status parts_seek(struct merge *m, struct kref key, bool backward) {
  const enum remixdb_status s = backward ? remix_seek_for_prev(&m->remix, key) : remix_seek(&m->remix, key);
  return s == REMIXDB_OK ? parts_settle(m, backward) : s;
}

// Moves a view's cursor to its last key within the bounds; backward false: to the first one.
static enum remixdb_status bound_seek(struct merge *m, struct remix_cursor *c, bool backward) {
  look_up_begin(m);
  const enum remixdb_status s = remix_seek_edge(c, backward);
  look_up_end(m);
  return s;
}

// Moves to the last key of all; backward false: to the first.
static enum remixdb_status parts_seek_end(struct merge *m, bool backward) {
  enum remixdb_status s = parts_enter(m, backward ? m->part_high : m->part_low, backward ? ENTER_LAST : ENTER_FIRST,
                                      kref(NULL, 0));
  if (s != REMIXDB_OK) return s;
  if (unlikely(m->bounded)) s = bound_seek(m, &m->remix, backward);
  else if (backward) remix_seek_last(&m->remix);
  else remix_seek_first(&m->remix);
  return s == REMIXDB_OK ? parts_settle(m, backward) : s;
}

static enum remixdb_status parts_step(struct merge *m, bool backward) {
  if (backward) remix_prev(&m->remix);
  else remix_next(&m->remix);
  return parts_settle(m, backward);
}

static enum remixdb_status parts_key(struct merge *m, struct kref *out) {
  if (!m->remix_key.ptr) {
    struct kv_rec r;
    const enum remixdb_status s = parts_record(m, &r);
    if (s != REMIXDB_OK) return s;
    m->remix_key = kref(r.key, r.klen);
  }
  *out = m->remix_key;
  return REMIXDB_OK;
}

// ---- the young views, one after the other

static enum remixdb_status young_enter(struct merge *m, uint32_t at, enum entry where, struct kref key) {
  const uint32_t part = m->version->young[at];
  const struct part *const p = m->version->parts[part];
  enum remixdb_status s = part_ready(p);
  struct remix *const x = part_young(p);
  if (unlikely(s != REMIXDB_OK)) return s;
  m->young_at = at;
  if (unlikely(x->paged != NULL)) {
    s = paged_enter(m, &m->young, &m->young_page, part, x, where, key);
  } else if (m->young.x != x) {
    s = remix_cursor_set(&m->young, x);
    if (unlikely(m->young_page.in != NULL)) page_leave(&m->young_page);
    if (unlikely(m->bounded) && s == REMIXDB_OK) bound_cursor(m, &m->young, &m->young_page, part);
  }
  besides(m);
  return s;
}

static enum remixdb_status young_to_end(struct merge *m, bool backward) {
  if (unlikely(m->young.bounded) && (backward ? m->young.high : m->young.low).key.ptr)
    return bound_seek(m, &m->young, backward);
  if (!m->sought) remix_enter(&m->young, backward ? REMIX_BACK : REMIX_ON);
  else if (backward) remix_seek_last(&m->young);
  else remix_seek_first(&m->young);
  return REMIXDB_OK;
}

// Whether the young views' entry belongs to a partition behind (backward: before) that of the partitions' stream.
static bool young_away(const struct merge *m) {
  const uint32_t part = m->version->young[m->young_at];
  return parts_valid(m) && (m->backward ? part < m->part : part > m->part);
}

// Reads the record of the young views' entry, if it may be the next one.
static enum remixdb_status young_arrive(struct merge *m) {
  m->young_state = young_away(m) ? MERGE_YOUNG_AWAY : MERGE_YOUNG_KNOWN;
  return m->young_state == MERGE_YOUNG_AWAY ? REMIXDB_OK : stream_record(m, &m->young, &m->young_rec);
}

// At the end of a young view, moves on to the next (backward: the previous) page or young view.
static enum remixdb_status young_settle(struct merge *m, bool backward) {
  enum remixdb_status s = REMIXDB_OK;
  m->young_state = MERGE_YOUNG_KNOWN;
  if (unlikely(m->bounded)) s = bound_settle(m, &m->young, backward);
  while (!remix_valid(&m->young) && s == REMIXDB_OK) {
    struct merge_page *const g = &m->young_page;
    const uint32_t part = m->version->young[m->young_at];
    if (unlikely(g->paged != NULL) && page_follows(m, g, part, backward)) {
      s = page_enter(m, &m->young, g, part, g->paged, backward ? g->page - 1 : g->page + 1);
    } else {
      if (m->young_at == (backward ? m->young_low : m->young_high - 1)) return REMIXDB_OK;
      s = young_enter(m, backward ? m->young_at - 1 : m->young_at + 1, backward ? ENTER_LAST : ENTER_FIRST,
                      kref(NULL, 0));
    }
    if (s == REMIXDB_OK) s = young_to_end(m, backward);
    if (s == REMIXDB_OK && unlikely(m->bounded)) s = bound_settle(m, &m->young, backward);
  }
  return s == REMIXDB_OK ? young_arrive(m) : s;
}

// Chooses the young view that a seek of the key goes to, and prefetches what it reads first. young_there: the key's
// partition has one. Otherwise it is the next (backward: the previous) one, or none.
static enum remixdb_status young_seek_begin(struct merge *m, uint32_t part, struct kref key, bool backward) {
  const uint32_t at = version_young_from(m->version, part);
  m->young_there = at < m->young_high && m->version->young[at] == part;
  m->young_ended = !m->young_there && at == (backward ? m->young_low : m->young_high);
  if (unlikely(m->young_ended)) {
    remix_stop(&m->young);
    m->young.wanted = false;
    return REMIXDB_OK;
  }
  const enum remixdb_status s = young_enter(m, m->young_there || !backward ? at : at - 1,
                                            m->young_there ? ENTER_KEY
                                            : backward     ? ENTER_LAST
                                                           : ENTER_FIRST,
                                            key);
  if (s == REMIXDB_OK && m->young_there) remix_seek_begin(&m->young, key);
  return s;
}

// After young_seek_begin.
static enum remixdb_status young_seek_do(struct merge *m, struct kref key, bool backward) {
  enum remixdb_status s = REMIXDB_OK;
  m->young_state = MERGE_YOUNG_KNOWN;
  if (unlikely(m->young_ended)) return s;
  if (!m->young_there) s = young_to_end(m, backward);
  else s = backward ? remix_seek_for_prev(&m->young, key) : remix_seek(&m->young, key);
  return s == REMIXDB_OK ? young_settle(m, backward) : s;
}

static enum remixdb_status young_seek(struct merge *m, struct kref key, bool backward) {
  const enum remixdb_status s = young_seek_begin(m, version_find(m->version, key), key, backward);
  return s == REMIXDB_OK ? young_seek_do(m, key, backward) : s;
}

// Moves to the last key of all; backward false: to the first.
static enum remixdb_status young_seek_end(struct merge *m, bool backward) {
  enum remixdb_status s = young_enter(m, backward ? m->young_high - 1 : m->young_low,
                                      backward ? ENTER_LAST : ENTER_FIRST, kref(NULL, 0));
  if (s == REMIXDB_OK) s = young_to_end(m, backward);
  return s == REMIXDB_OK ? young_settle(m, backward) : s;
}

// ---- the newer streams: memtables and young views

static inline bool new_valid(const struct merge *m, uint32_t i) {
  if (i == MERGE_YOUNG) return m->has[i] && m->young_state == MERGE_YOUNG_KNOWN && remix_valid(&m->young);
  return m->has[i] && wh_valid(&m->mem[i]);
}

static inline struct kref new_key(const struct merge *m, uint32_t i) {
  return i == MERGE_YOUNG ? kref(m->young_rec.key, m->young_rec.klen) : wh_key(&m->mem[i]);
}

static enum remixdb_status new_step(struct merge *m, uint32_t i, bool backward) {
  if (unlikely(i == MERGE_YOUNG)) {
    if (backward) remix_prev(&m->young);
    else remix_next(&m->young);
    return young_settle(m, backward);
  }
  if (backward) wh_prev(&m->mem[i]);
  else wh_next(&m->mem[i]);
  return REMIXDB_OK;
}

static enum remixdb_status new_seek_end(struct merge *m, uint32_t i, bool backward) {
  if (i == MERGE_YOUNG) return young_seek_end(m, backward);
  look_up_begin(m);
  if (backward) wh_seek_last(&m->mem[i]);
  else wh_seek(&m->mem[i], kref("", 0));
  look_up_end(m);
  return REMIXDB_OK;
}

// Compares two keys in the direction of the merge.
static inline int order(const struct merge *m, struct kref a, struct kref b) {
  const int c = kv_cmp(a, b);
  return m->backward ? -c : c;
}

// Lets the young views' key compete with the memtables'.
static __attribute__((noinline)) void young_pick(struct merge *m) {
  const struct kref key = new_key(m, MERGE_YOUNG);
  const int c = m->new_at == MERGE_NONE ? -1 : order(m, key, m->new_key);
  if (c == 0) m->new_same |= 1u << MERGE_YOUNG;
  if (c >= 0) return;
  m->new_at = MERGE_YOUNG;
  m->new_same = 1u << MERGE_YOUNG;
  m->new_key = key;
}

// Picks the first key of the newer streams (backward: the last), after one of them was moved. If keys are equal, it
// picks the newest stream's.
static void new_pick(struct merge *m) {
  const bool a = new_valid(m, MERGE_ACTIVE), f = new_valid(m, MERGE_FROZEN);
  clear_forget(m);
  m->new_at = MERGE_NONE;
  m->new_same = 0;
  if (a || f) {
    const int c = a && f ? order(m, new_key(m, MERGE_ACTIVE), new_key(m, MERGE_FROZEN)) : a ? -1 : 1;
    m->new_at = c <= 0 ? MERGE_ACTIVE : MERGE_FROZEN;
    m->new_same = c < 0 ? 1u << MERGE_ACTIVE : c > 0 ? 1u << MERGE_FROZEN : 1u << MERGE_ACTIVE | 1u << MERGE_FROZEN;
    m->new_key = new_key(m, m->new_at);
  }
  if (unlikely(new_valid(m, MERGE_YOUNG))) young_pick(m);
  if (unlikely(m->bounded) && m->new_at != MERGE_NONE && beyond(m, m->new_key)) {
    m->new_at = MERGE_NONE;
    m->new_same = 0;
  }
}

// Whether the newer key is a tombstone's, or a memtable's record that has expired. Not read earlier than needed: its
// memory may still be on its way to the cache.
static inline bool new_absent(const struct merge *m) {
  return m->new_at == MERGE_YOUNG ? (m->young_rec.kind & KV_TOMB) != 0
                                  : wh_ver_absent(m->mem[m->new_at].ver, m->now_ms);
}

// Whether the newer record is a tombstone, or expires.
static inline bool new_special(const struct merge *m) {
  return ((m->new_at == MERGE_YOUNG ? m->young_rec.kind : m->mem[m->new_at].ver->kind) & (KV_TOMB | KV_EXPIRES)) != 0;
}

// Finds the partition's segment that the next newer key belongs to.
static void clear_find(struct merge *m) {
  const uint32_t part = version_find(m->version, m->new_key), at = m->remix_page.page,
                 page = m->remix_page.paged && part == m->part ? remix_page_of(m->remix_page.paged, m->new_key) : at;
  const bool here = part == m->part && page == at, behind = part > m->part || (part == m->part && page > at);
  m->clear = here ? remix_segment(m->remix.x, m->new_key) + m->backward : behind ? UINT32_MAX : 0;
  m->clear_found = true;
}

// Whether the partitions' entries in this segment come before the newer one, in the direction.
static inline bool segment_clear(const struct merge *m, uint32_t seg) {
  return m->backward ? seg >= m->clear : seg < m->clear;
}

// Whether the partitions' entry is known to come before the newer one, without a look at its key.
static inline bool parts_clear(struct merge *m) {
  const uint32_t seg = m->remix.seg;
  if (m->since == UINT32_MAX) m->since = seg;
  const bool passed_one = m->backward ? seg + 1 < m->since : seg > m->since + 1;
  if (unlikely(passed_one) && !m->clear_found) clear_find(m);
  return segment_clear(m, seg);
}

// ---- all together

// Picks the smallest (backward: the largest) key among the streams. If keys are equal, it picks the newest stream's.
static enum remixdb_status pick(struct merge *m) {
  const bool parts = parts_valid(m);
  if (unlikely(m->young_state == MERGE_YOUNG_AWAY) && !young_away(m)) {
    const enum remixdb_status s = young_arrive(m);
    if (s != REMIXDB_OK) return s;
    clear_forget(m);
    young_pick(m);
  }
  if (m->new_at == MERGE_NONE) {
    m->at = parts ? MERGE_PARTS : MERGE_NONE;
    m->same = 1u << MERGE_PARTS;
    return REMIXDB_OK;
  }
  int c = -1;  // the newer key compared with the partitions', in the direction
  if (parts && parts_clear(m)) {
    c = 1;
  } else if (parts) {
    struct kref k;
    const enum remixdb_status s = parts_key(m, &k);
    if (s != REMIXDB_OK) return s;
    c = kv_cmp(m->new_key, k);
    if (m->backward) c = -c;
  }
  m->at = c <= 0 ? m->new_at : MERGE_PARTS;
  m->same = (c <= 0 ? m->new_same : 0) | (c >= 0 ? 1u << MERGE_PARTS : 0);
  return REMIXDB_OK;
}

// Moves all streams that stand on the current key past it.
static enum remixdb_status step_same(struct merge *m) {
  for (uint32_t i = 0; i < MERGE_PARTS; i++) {
    if (!(m->same & 1u << i)) continue;
    const enum remixdb_status s = new_step(m, i, m->backward);
    if (s != REMIXDB_OK) return s;
  }
  if (m->same & 1u << MERGE_PARTS) {
    const enum remixdb_status s = parts_step(m, m->backward);
    if (s != REMIXDB_OK) return s;
  }
  if (m->same & ~(1u << MERGE_PARTS)) new_pick(m);
  passed(m);
  return REMIXDB_OK;
}

static enum remixdb_status fail(struct merge *m, enum remixdb_status s) {
  m->at = MERGE_NONE;
  m->near = MERGE_FAR;
  return s;
}

void merge_stop(struct merge *m) { (void)fail(m, REMIXDB_OK); }

static inline bool at_absent(const struct merge *m) { return m->at < MERGE_PARTS && new_absent(m); }

// The time at which the memtable's record expired that the merge passes; 0: a tombstone, or of a young view.
static inline uint64_t passed_until(const struct merge *m) {
  return m->at < MERGE_YOUNG ? wh_ver_expiry(m->mem[m->at].ver) : 0;
}

// The merge stands at a tombstone of this memtable. Whether that has a gap here. *to_out: its end, or the first key of
// a newer stream in it. *until_io: as in wh_gap.
static bool gap_find(struct merge *m, uint32_t mem, struct kref *to_out, uint64_t *until_io) {
  assert(mem <= MERGE_FROZEN);
  if (!wh_gap(&m->mem[mem], m->new_key, m->backward, m->now_ms, to_out, until_io)) return false;
  for (uint32_t i = 0; i < mem; i++)
    if (new_valid(m, i) && order(m, new_key(m, i), *to_out) < 0) *to_out = new_key(m, i);
  if (unlikely(m->bounded) && beyond(m, *to_out)) *to_out = m->backward ? m->low : m->high;
  return order(m, m->new_key, *to_out) < 0;
}

static enum remixdb_status gap_leap_parts(struct merge *m, struct kref to) {
  struct kref k;
  if (!parts_valid(m)) return REMIXDB_OK;
  enum remixdb_status s = parts_key(m, &k);
  if (s != REMIXDB_OK || order(m, k, to) >= 0) return s;
  if (unlikely(m->bounded) && beyond(m, to)) {
    remix_stop(&m->remix);
    m->remix_key.ptr = NULL;
    return s;
  }
  s = parts_seek_begin(m, to);
  return s == REMIXDB_OK ? parts_seek(m, to, m->backward) : s;
}

static void young_stop(struct merge *m) {
  remix_stop(&m->young);
  m->young_state = MERGE_YOUNG_KNOWN;
}

// Moves the memtable and all older streams up to the key, if they stand before it.
static enum remixdb_status gap_leap(struct merge *m, uint32_t mem, struct kref to) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = mem; i < MERGE_PARTS && s == REMIXDB_OK; i++) {
    const bool away = i == MERGE_YOUNG && m->has[i] && m->young_state == MERGE_YOUNG_AWAY;
    if (!away && (!new_valid(m, i) || order(m, new_key(m, i), to) >= 0)) continue;
    if (i == MERGE_YOUNG && unlikely(m->bounded) && beyond(m, to)) young_stop(m);
    else if (i == MERGE_YOUNG) s = young_seek(m, to, m->backward);
    else if (m->backward) wh_seek_for_prev(&m->mem[i], to);
    else wh_seek(&m->mem[i], to);
  }
  if (s == REMIXDB_OK) s = gap_leap_parts(m, to);
  new_pick(m);
  return s;
}

// A way over tombstones.
struct way {
  struct wh_pass pass;  // for the memtable whose gap is being made
  uint32_t of;          // that memtable; MERGE_NONE: none yet
  uint32_t tops;        // bit i: a tombstone of stream i was passed since `from`
  bool known;           // all keys from `from` on were passed
  struct kref from;
  uint64_t until;                  // the latest time of the expired records that were passed since `from`
  const struct wh_leaf *asked[2];  // each memtable's leaf that was asked last for a gap
};

// The merge stands at a memtable's tombstone. Keys that the active memtable hides are no gap of the frozen one.
static void way_pass(struct way *w, const struct merge *m) {
  assert(m->at <= MERGE_FROZEN);
  if (m->at < w->of) {
    if (w->of != MERGE_NONE) wh_pass_end(&w->pass);
    const bool all = w->known && (m->at == MERGE_ACTIVE || !(w->tops & 1u << MERGE_ACTIVE));
    wh_pass_begin(&w->pass, &m->mem[m->at], m->backward, all ? &w->from : NULL, m->version ? m->version->erased : 0,
                  m->now_ms);
    w->of = m->at;
  }
  w->pass.until = w->until;
  if (m->at == w->of) wh_pass_tomb(&w->pass);
}

// Leaps over a gap of the tombstone's memtable. Asks once per leaf.
static enum remixdb_status way_leap(struct way *w, struct merge *m, bool *leapt_out) {
  const uint32_t at = m->at;
  struct kref to;
  *leapt_out = false;
  if (m->mem[at].leaf == w->asked[at]) return REMIXDB_OK;
  uint64_t until = w->until;
  const bool found = gap_find(m, at, &to, &until);
  if (found) {
    if (at == w->of) {
      wh_pass_end(&w->pass);
      w->of = MERGE_NONE;
      w->tops = 0;
      w->known = true;
      w->from = to;
      until = 0;
    }
    w->until = until;
    if (w->of != MERGE_NONE) w->pass.until = until;
    const enum remixdb_status s = gap_leap(m, at, to);
    if (s != REMIXDB_OK) return s;
    *leapt_out = true;
  }
  w->asked[at] = m->mem[at].leaf;
  return REMIXDB_OK;
}

// The part of settle for more than a few tombstones in a row: leaps over gaps, and makes them. tops: the streams with a
// tombstone that was passed since the seek began, bit i for stream i. until: the latest time at which a record expired
// that was passed then.
static __attribute__((noinline)) enum remixdb_status settle_far(struct merge *m, uint32_t tops, uint64_t until) {
  struct way w = {.of = MERGE_NONE, .tops = tops, .known = m->sought, .from = m->sought_key, .until = until};
  enum remixdb_status s = REMIXDB_OK;
  const bool inside = m->inside;
  look_up_begin(m);
  m->inside = true;
  while (s == REMIXDB_OK && at_absent(m)) {
    bool leapt = false;
    w.tops |= 1u << m->at;
    if (passed_until(m) > w.until) w.until = passed_until(m);
    if (m->at < MERGE_YOUNG) {
      way_pass(&w, m);
      s = way_leap(&w, m, &leapt);
    }
    if (s == REMIXDB_OK && !leapt) s = step_same(m);
    else passed(m);
    if (s == REMIXDB_OK) s = pick(m);
  }
  if (w.of != MERGE_NONE) wh_pass_end(&w.pass);
  m->inside = inside;
  look_up_end(m);
  return s;
}

// Moves on to the first live key, from where the streams stand.
static enum remixdb_status settle(struct merge *m) {
  enum remixdb_status s = pick(m);
  uint64_t until = 0;
  uint32_t tops = 0;
  for (uint32_t few = FEW_TOMBS; s == REMIXDB_OK && at_absent(m); few--) {
    if (unlikely(few == 0)) {
      s = settle_far(m, tops, until);
      break;
    }
    tops |= 1u << m->at;
    if (passed_until(m) > until) until = passed_until(m);
    s = step_same(m);
    if (s == REMIXDB_OK) s = pick(m);
  }
  if (s != REMIXDB_OK) return fail(m, s);
  if (m->same != 1u << MERGE_PARTS || m->at != MERGE_PARTS || some_later(m)) m->near = MERGE_FAR;
  else if (m->new_at == MERGE_NONE || segment_clear(m, m->remix.seg))
    m->near = m->backward ? MERGE_BACK_ALONE : MERGE_ALONE;
  else m->near = m->backward ? MERGE_BACK_BESIDE : MERGE_BESIDE;
  return s;
}

// A seek runs in its caller's epoch.
static void seek_begin(struct merge *m, bool backward, struct kref key) {
  reach_learn(m);
  m->learned = m->values = false;
  m->young_state = MERGE_YOUNG_KNOWN;
  m->parts_later = false;
  m->backward = backward;
  m->sought = true;
  m->sought_key = key;
  m->inside = true;
  m->steps = 0;
}

// Moves the young views to their first key at or behind (backward: before) this one.
static enum remixdb_status young_follow(struct merge *m, struct kref key) {
  const enum remixdb_status s = young_seek(m, key, m->backward);
  if (s == REMIXDB_OK) new_pick(m);
  return s;
}

// While reads come from the disk: whether the young view of the sought key's partition has no key up to the one that
// the other streams have found. One key of the young view may tell it: the candidate's. The candidate's block was
// gathered with those of the older view (gather_seek).
static enum remixdb_status young_beyond(struct merge *m, bool *beyond_out) {
  *beyond_out = false;
  if (!remix_cold(&m->young) || m->young.keys_only) return REMIXDB_OK;
  // no young view of another partition may come before the key
  if (!parts_valid(m) || m->part != m->version->young[m->young_at]) return REMIXDB_OK;
  if (m->at != MERGE_PARTS && (m->at == MERGE_NONE || new_absent(m))) return REMIXDB_OK;
  struct kref key = m->new_key;
  const enum remixdb_status s = m->at == MERGE_PARTS ? parts_key(m, &key) : REMIXDB_OK;
  return s == REMIXDB_OK ? remix_none_between(&m->young, m->sought_key, key, m->backward, beyond_out) : s;
}

// The young views do not have the sought key. If another stream has it, or has a key that comes before all of theirs,
// they need not be moved until a step.
static enum remixdb_status young_put_off(struct merge *m) {
  enum remixdb_status s = pick(m);
  if (s != REMIXDB_OK) return s;
  const bool found = m->at == MERGE_PARTS ? m->remix.equal
                                          : m->at != MERGE_NONE && !new_absent(m) && kv_eq(m->new_key, m->sought_key);
  if (found) return REMIXDB_OK;
  bool beyond_it;
  s = young_beyond(m, &beyond_it);
  return s != REMIXDB_OK || beyond_it ? s : young_follow(m, m->sought_key);
}

// Moves the streams that a seek has left alone to the current key, which newer streams have.
static enum remixdb_status parts_catch_up(struct merge *m) {
  const struct kref key = m->new_key;
  m->parts_later = false;
  enum remixdb_status s = parts_seek_begin(m, key);
  if (s == REMIXDB_OK && m->young_state == MERGE_YOUNG_LATER) s = young_seek_begin(m, m->part, key, m->backward);
  if (s == REMIXDB_OK) s = parts_seek(m, key, m->backward);
  return s;
}

// Before a step: moves the streams that the seek has left alone.
static __attribute__((noinline)) enum remixdb_status catch_up(struct merge *m) {
  struct kref key = m->new_key;
  enum remixdb_status s = m->at == MERGE_PARTS ? parts_key(m, &key) : REMIXDB_OK;
  const bool inside = m->inside, later = m->parts_later;
  look_up_begin(m);
  m->inside = m->young.onward = m->remix.onward = true;
  if (later && s == REMIXDB_OK) s = parts_catch_up(m);
  if (m->young_state == MERGE_YOUNG_LATER && s == REMIXDB_OK) s = young_follow(m, key);
  if (later && s == REMIXDB_OK) {
    m->at = m->new_at;
    m->same = m->new_same | (m->remix.equal ? 1u << MERGE_PARTS : 0);
  }
  m->young.onward = m->remix.onward = false;
  m->inside = inside;
  look_up_end(m);
  return s;
}

static enum remixdb_status seek_end(struct merge *m, enum remixdb_status s) {
  if (s == REMIXDB_OK) {
    new_pick(m);
    if (unlikely(m->young_state == MERGE_YOUNG_LATER)) s = young_put_off(m);
  }
  if (s == REMIXDB_OK) {
    s = settle(m);
  } else {
    s = fail(m, s);
  }
  m->inside = m->sought = false;
  return s;
}

// Prefetches what a search for the key reads first, in the partitions and in the memtables.
static enum remixdb_status seek_want(struct merge *m, struct kref key, bool backward) {
  for (uint32_t i = 0; i <= MERGE_FROZEN; i++)
    if (m->has[i]) wh_seek_begin(&m->mem[i], key, !backward && m->remix.way == REMIX_ON);
  enum remixdb_status s = parts_seek_begin(m, key);
  if (s == REMIXDB_OK && unlikely(m->has[MERGE_YOUNG])) s = young_seek_begin(m, m->part, key, backward);
  for (uint32_t i = 0; i <= MERGE_FROZEN; i++)
    if (m->has[i]) wh_seek_begin_place(&m->mem[i], key, backward);
  return s;
}

// Whether the newest memtable has a gap at the key. *to_out: its end.
static bool seek_gap(const struct merge *m, struct kref key, struct kref *to_out) {
  const uint32_t i = m->has[MERGE_ACTIVE] ? MERGE_ACTIVE : MERGE_FROZEN;
  if (!m->has[i] || likely(!wh_gapped(&m->mem[i]))) return false;
  uint64_t until = 0;
  return wh_gap(&m->mem[i], key, m->backward, m->now_ms, to_out, &until) && order(m, key, *to_out) < 0;
}

// Seeks in the partitions and in the young views. The young views wait if their tags exclude the key.
static __attribute__((noinline)) enum remixdb_status seek_both(struct merge *m, struct kref key, bool backward) {
  if (m->young_there) m->young.due = m->young.expect || remix_may_have(&m->young, key, hash64(key.ptr, key.len));
  const enum remixdb_status s = parts_seek(m, key, backward);
  if (s != REMIXDB_OK) return s;
  if (!m->young_there || m->young.due) return young_seek_do(m, key, backward);
  m->young_state = MERGE_YOUNG_LATER;
  return s;
}

static void seek_mem(struct merge *m, struct kref key, bool backward) {
  for (uint32_t i = 0; i <= MERGE_FROZEN; i++) {
    if (!m->has[i]) continue;
    if (backward) wh_seek_for_prev(&m->mem[i], key);
    else wh_seek(&m->mem[i], key);
  }
}

// Whether the newer streams, as far as they were moved, have the sought key, and it is not deleted.
static bool seek_found(struct merge *m) {
  new_pick(m);
  return m->new_at != MERGE_NONE && !new_absent(m) && kv_eq(m->new_key, m->sought_key);
}

// The same as the seek of all streams, one after the other, while reads come from the disk: an older stream waits if a
// newer one has the key. Most seeks are not followed by a step, so they cost no trip for a key in a memtable, and one
// read for a key in a young view.
static __attribute__((noinline)) enum remixdb_status seek_sparing(struct merge *m, struct kref key, bool backward) {
  if (m->has[MERGE_YOUNG]) m->young_state = MERGE_YOUNG_LATER;
  m->parts_later = true;
  seek_mem(m, key, backward);
  if (seek_found(m)) return REMIXDB_OK;
  if (m->has[MERGE_YOUNG] && m->young_there && !m->young.expect &&
      remix_may_have(&m->young, key, hash64(key.ptr, key.len))) {
    const enum remixdb_status s = young_seek_do(m, key, backward);
    if (s != REMIXDB_OK || seek_found(m)) return s;
    m->parts_later = false;
    return parts_seek(m, key, backward);
  }
  m->parts_later = false;
  m->young_state = MERGE_YOUNG_KNOWN;
  return m->has[MERGE_YOUNG] ? seek_both(m, key, backward) : parts_seek(m, key, backward);
}

// A seek that finds nothing, because its key lies beyond the bounds.
static enum remixdb_status seek_nothing(struct merge *m) {
  m->at = MERGE_NONE;
  m->near = MERGE_FAR;
  m->remix.wanted = m->young.wanted = false;
  m->inside = m->sought = false;
  return REMIXDB_OK;
}

// Takes a seek's key to the bounds. False: no key within is in the direction.
static bool seek_within(struct merge *m, struct kref *key) {
  if (m->low.ptr && m->high.ptr && kv_cmp(m->low, m->high) >= 0) return false;
  if (beyond(m, *key)) return false;
  if (!m->backward && m->low.ptr && kv_cmp(*key, m->low) < 0) m->sought_key = *key = m->low;
  return true;
}

static enum remixdb_status seek(struct merge *m, struct kref key, bool backward) {
  if (!key.ptr) key = kref("", 0);
  struct kref to;
  if (unlikely(m->bounded) && backward && m->high.ptr && kv_cmp(key, m->high) >= 0) return merge_seek_last(m);
  seek_begin(m, backward, key);
  if (unlikely(m->bounded) && !seek_within(m, &key)) return seek_nothing(m);
  enum remixdb_status s = seek_want(m, key, backward);
  if (s == REMIXDB_OK && seek_gap(m, key, &to)) {
    if (unlikely(m->bounded) && beyond(m, to)) {
      seek_mem(m, key, backward);  // ends what seek_want has begun
      return seek_nothing(m);
    }
    key = m->sought_key = to;
    s = seek_want(m, key, backward);
  }
  if (s != REMIXDB_OK) return seek_end(m, s);
  if (unlikely(remix_stirred(&m->remix)) && (m->has[MERGE_ACTIVE] || m->has[MERGE_FROZEN] || m->has[MERGE_YOUNG]))
    return seek_end(m, seek_sparing(m, key, backward));
  s = likely(!m->has[MERGE_YOUNG]) ? parts_seek(m, key, backward) : seek_both(m, key, backward);
  if (s == REMIXDB_OK) seek_mem(m, key, backward);
  return seek_end(m, s);
}

enum remixdb_status merge_seek(struct merge *m, struct kref key) { return seek(m, key, false); }
enum remixdb_status merge_seek_for_prev(struct merge *m, struct kref key) { return seek(m, key, true); }

// Moves a newer stream to its last key within the bounds.
static enum remixdb_status new_seek_last(struct merge *m, uint32_t i) {
  if (likely(!m->high.ptr) || i == MERGE_YOUNG) return new_seek_end(m, i, true);
  wh_seek_for_prev(&m->mem[i], m->high);
  if (wh_valid(&m->mem[i]) && kv_eq(wh_key(&m->mem[i]), m->high)) wh_prev(&m->mem[i]);
  return REMIXDB_OK;
}

enum remixdb_status merge_seek_last(struct merge *m) {
  struct kref key = m->high;
  seek_begin(m, true, key);
  if (unlikely(m->bounded) && key.ptr && !seek_within(m, &key)) return seek_nothing(m);
  enum remixdb_status s = parts_seek_end(m, true);
  for (uint32_t i = 0; i < MERGE_PARTS && s == REMIXDB_OK; i++)
    if (m->has[i]) s = new_seek_last(m, i);
  return seek_end(m, s);
}

// Turns the active memtable's stream, which is not at the current key. While a round works on the frozen memtable, that
// stream may get keys on either side of the current one: records that the round hands back keep their numbers, so the
// merge's moment has them. So the stream is sought anew.
static enum remixdb_status turn_active(struct merge *m, bool backward) {
  struct wh_cursor *const c = &m->mem[MERGE_ACTIVE];
  struct kref key = m->new_key;
  const enum remixdb_status s = m->at == MERGE_PARTS ? parts_key(m, &key) : REMIXDB_OK;
  if (s != REMIXDB_OK) return s;
  look_up_begin(m);
  if (backward) wh_seek_for_prev(c, key);
  else wh_seek(c, key);
  look_up_end(m);
  return wh_valid(c) && kv_eq(wh_key(c), key) ? new_step(m, MERGE_ACTIVE, backward) : s;
}

static enum remixdb_status turn_new(struct merge *m, uint32_t i, bool backward) {
  const bool valid = i == MERGE_YOUNG ? remix_valid(&m->young) : new_valid(m, i);
  return valid ? new_step(m, i, backward) : new_seek_end(m, i, backward);
}

// Turns the merge round. A stream that is not at the current key stands at the first of its keys behind that; its key
// before is the first on the other side. If the stream is at its end, its last key is that.
static enum remixdb_status turn(struct merge *m, bool backward) {
  assert(m->backward != backward);
  m->backward = backward;
  for (uint32_t i = 0; i < MERGE_PARTS; i++) {
    if (!m->has[i] || m->same & 1u << i) continue;
    const bool grows = i == MERGE_ACTIVE && m->has[MERGE_FROZEN];
    const enum remixdb_status s = unlikely(grows) ? turn_active(m, backward) : turn_new(m, i, backward);
    if (s != REMIXDB_OK) return s;
  }
  if (!(m->same & 1u << MERGE_PARTS)) {
    const enum remixdb_status s = parts_valid(m) ? parts_step(m, backward) : parts_seek_end(m, backward);
    if (s != REMIXDB_OK) return s;
  }
  new_pick(m);
  return REMIXDB_OK;
}

static enum remixdb_status step(struct merge *m, bool backward) {
  assert(merge_valid(m) && (m->same & 1u << m->at));
  enum remixdb_status s = REMIXDB_OK;
  if (unlikely(some_later(m))) s = catch_up(m);
  if (unlikely(m->backward != backward) && s == REMIXDB_OK) s = turn(m, backward);
  if (s == REMIXDB_OK) s = step_same(m);
  return s == REMIXDB_OK ? settle(m) : fail(m, s);
}

// A step of the REMIX within its segment, if the key that it comes to is held: that decides between the streams.
ALWAYS_INLINE bool step_held(struct merge *m, bool backward) {
  struct kref key;
  if (!(backward ? remix_key_behind(&m->remix, &key) : remix_key_ahead(&m->remix, &key))) return false;
  const int c = backward ? kv_cmp(key, m->new_key) : kv_cmp(m->new_key, key);
  if (c <= 0 && new_special(m)) return false;  // a longer way
  if (!(backward ? remix_prev_fast(&m->remix) : remix_next_fast(&m->remix))) return false;
  m->remix_key = key;
  if (c <= 0) {
    m->near = MERGE_FAR;
    m->at = m->new_at;
    m->same = m->new_same | (c == 0 ? 1u << MERGE_PARTS : 0);
  }
  return true;
}
bool merge_next_held(struct merge *m) { return step_held(m, false); }
bool merge_prev_held(struct merge *m) { return step_held(m, true); }

enum remixdb_status merge_next(struct merge *m) { return step(m, false); }
enum remixdb_status merge_prev(struct merge *m) { return step(m, true); }

enum remixdb_status merge_pass_expired(struct merge *m, struct remix_lapse *lapse, uint64_t expiry, uint64_t now_ms) {
  if (m->at == MERGE_PARTS && !some_later(m)) {
    remix_lapse_note(lapse, &m->remix, expiry);
    // the newer streams' keys that it passes come next, one by one
    remix_lapse_leap(&m->remix, m->backward, now_ms);
  }
  return step(m, m->backward);
}

// A skip goes up to the segment of the high bound; steps do the rest.
static uint32_t bound_skip(const struct merge *m, uint32_t end) {
  return m->remix.bounded && m->remix.high.seg < end ? m->remix.high.seg : end;
}

enum remixdb_status merge_skip(struct merge *m, uint32_t nr) {
  enum remixdb_status s = REMIXDB_OK;
  if (unlikely(some_later(m)) && nr > 0 && merge_valid(m)) {
    s = catch_up(m);
    if (s != REMIXDB_OK) return fail(m, s);
  }
  while (nr > 0 && s == REMIXDB_OK && merge_valid(m)) {
    if (m->same == 1u << MERGE_PARTS && !m->backward) {
      if (m->new_at != MERGE_NONE && nr > 1 && !m->clear_found) clear_find(m);
      const uint32_t end = m->new_at == MERGE_NONE ? UINT32_MAX : m->clear;
      const uint32_t moved = remix_skip(&m->remix, nr, unlikely(m->bounded) ? bound_skip(m, end) : end);
      if (moved) m->remix_key.ptr = NULL;
      nr -= moved;
      if (nr == 0) break;
    }
    s = step(m, false);
    nr--;
  }
  return s;
}

enum remixdb_status merge_record(struct merge *m, struct kv_rec *rec_out) {
  assert(merge_valid(m));
  if (m->at == MERGE_PARTS) return parts_record(m, rec_out);
  if (m->at == MERGE_YOUNG) {
    *rec_out = m->young_rec;
    return REMIXDB_OK;
  }
  wh_record(&m->mem[m->at], rec_out);
  return REMIXDB_OK;
}
