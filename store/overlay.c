// SPDX-License-Identifier: Apache-2.0
#include "store/overlay.h"

#include <assert.h>

#define CHUNK_FIRST (8u << 10)  // bytes of the chunk that stays
#define CHUNK_MAX (1u << 20)
#define LEAP_LEVEL 2u  // a leap goes over a link of this level, and so over some ten keys at least

struct overlay_counters overlay_counters;

struct overlay_chunk {
  struct overlay_chunk *next;
  size_t size;  // bytes of `bytes`
  _Alignas(8) uint8_t bytes[];
};

// ---- memory

// Makes a chunk with room for at least `size` bytes.
static bool chunk_add(struct overlay *o, size_t size) {
  size_t want = CHUNK_FIRST;
  if (o->chunks && (want = o->chunks->size * 2) > CHUNK_MAX) want = CHUNK_MAX;
  if (want < size) want = size;
  struct overlay_chunk *const c = mem_alloc(sizeof(*c) + want);
  if (!c) return false;
  c->size = want;
  c->next = o->chunks;
  o->chunks = c;
  o->at = c->bytes;
  o->end = c->bytes + want;
  return true;
}

static void *take(struct overlay *o, size_t size) {
  size = align_up(size, 8);
  if (unlikely(size > (size_t)(o->end - o->at)) && !chunk_add(o, size)) return NULL;
  void *const p = o->at;
  o->at += size;
  return p;
}

static void forget(struct overlay *o) {
  memset(o->head, 0, sizeof(o->head));
  o->last = NULL;
  o->number = o->kept = 0;
  o->keys = o->log_bytes = 0;
  o->height = 1;
  o->gaps = false;
}

void overlay_init(struct overlay *o) {
  memset(o, 0, sizeof(*o));
  o->random = 2463534242u;
  forget(o);
}

static void chunks_free(struct overlay *o, const struct overlay_chunk *until) {
  while (o->chunks != until) {
    struct overlay_chunk *const c = o->chunks;
    o->chunks = c->next;
    mem_free(c);
  }
}

void overlay_fini(struct overlay *o) { chunks_free(o, NULL); }

void overlay_clear(struct overlay *o) {
  struct overlay_chunk *first = o->chunks;
  while (first && first->next) first = first->next;
  if (first && first->size > CHUNK_FIRST) first = NULL;
  chunks_free(o, first);
  o->at = first ? first->bytes : NULL;
  o->end = first ? first->bytes + first->size : NULL;
  forget(o);
}

// ---- the list

// A quarter of the nodes of a level are in the next one.
static uint32_t random_height(struct overlay *o) {
  o->random ^= o->random << 13;
  o->random ^= o->random >> 17;
  o->random ^= o->random << 5;
  uint32_t h = 1;
  for (uint32_t r = o->random; h < OVERLAY_HEIGHT && (r & 3) == 0; r >>= 2) h++;
  return h;
}

// node NULL: the beginning of the list.
static struct overlay_node *behind(const struct overlay *o, const struct overlay_node *node, uint32_t level) {
  return node ? node->next[level] : o->head[level];
}

// The gaps of a node's links, by level.
static uint32_t *gaps_of(const struct overlay_node *n) { return (uint32_t *)(uintptr_t)&n->next[n->height]; }

// Finds the last node whose key is less than the given key (or_equal: or equal); NULL: none. path (or NULL): for each
// level in use, the last such node of that level, or NULL.
static struct overlay_node *find_before(const struct overlay *o, struct kref key, bool or_equal,
                                        struct overlay_node *path[]) {
  struct overlay_node *at = NULL;
  for (uint32_t l = o->height; l-- > 0;) {
    for (struct overlay_node *n; (n = behind(o, at, l)) != NULL; at = n) {
      const int c = kv_cmp(overlay_key(n), key);
      if (or_equal ? c > 0 : c >= 0) break;
    }
    if (path) path[l] = at;
  }
  return at;
}

// Makes a node without a version behind the nodes of the path. NULL: REMIXDB_NOMEM. Both parts of a gap are gaps (O2).
static struct overlay_node *node_add(struct overlay *o, struct kref key, struct overlay_node *path[]) {
  const uint32_t height = random_height(o);
  struct overlay_node *const n = take(o, sizeof(*n) + height * (sizeof(n->next[0]) + sizeof(uint32_t)) + key.len);
  if (!n) return NULL;
  n->height = height;
  uint32_t *const gaps = gaps_of(n);
  uint8_t *const copy = (uint8_t *)&gaps[height];
  if (key.len) memcpy(copy, key.ptr, key.len);
  *n = (struct overlay_node){.hash = hash64(copy, key.len), .key = copy, .klen = key.len, .height = height};
  while (o->height < height) path[o->height++] = NULL;
  for (uint32_t l = 0; l < height; l++) {
    gaps[l] = path[l] ? gaps_of(path[l])[l] : 0;
    n->next[l] = behind(o, path[l], l);
    *(path[l] ? &path[l]->next[l] : &o->head[l]) = n;
  }
  return n;
}

// Takes a node out of the list; path: to its key. Its own links stay, for cursors that stand on it.
static void node_drop(struct overlay *o, const struct overlay_node *n, struct overlay_node *const path[]) {
  for (uint32_t l = 0; l < n->height; l++) *(path[l] ? &path[l]->next[l] : &o->head[l]) = n->next[l];
}

// Ends the gaps that the key of the path lies within (O3).
static void gaps_end(const struct overlay *o, struct overlay_node *const path[]) {
  for (uint32_t l = 0; l < o->height; l++)
    if (path[l]) gaps_of(path[l])[l] = 0;
}

// ---- writing

static size_t record_size(const struct overlay_ver *v) {
  struct kv_rec rec;
  if (!v) return 0;
  overlay_record(v, &rec);
  return kv_rec_size(&rec);
}

static void ver_set(struct overlay_ver *v, const struct kv_rec *rec) {
  v->vlen = rec->vlen;
  v->kind = rec->kind;
  v->expiry = rec->kind & KV_EXPIRES ? rec->expiry : 0;
  if (rec->vlen) memmove(v->val, rec->val, rec->vlen);  // it may be a part of the value that it replaces
}

enum remixdb_status overlay_put(struct overlay *o, const struct kv_rec *rec, bool shared, size_t most) {
  const struct kref key = kref(rec->key, rec->klen);
  struct overlay_node *path[OVERLAY_HEIGHT];
  struct overlay_node *n = behind(o, find_before(o, key, false, path), 0);
  if (n && !kv_eq(overlay_key(n), key)) n = NULL;
  struct overlay_ver *const was = n ? n->newest : NULL;
  const size_t bytes = o->log_bytes - record_size(was) + kv_rec_size(rec);
  if (bytes > most)
    return err_set(REMIXDB_TOOBIG, "the transaction's writes would take %zu bytes in the log; at most %zu go into it",
                   bytes, most);
  if (was && !shared && was->number > o->kept && rec->vlen <= was->room) {
    ver_set(was, rec);
  } else {
    struct overlay_ver *const v = take(o, sizeof(*v) + rec->vlen);
    if (!v || (!n && !(n = node_add(o, key, path)))) return REMIXDB_NOMEM;
    *v = (struct overlay_ver){.older = was, .before = o->last, .node = n, .number = o->number + 1, .room = rec->vlen};
    ver_set(v, rec);
    n->newest = o->last = v;
    o->number++;
    o->keys += was == NULL;
  }
  o->log_bytes = bytes;
  if (unlikely(o->gaps) && !(rec->kind & KV_TOMB)) gaps_end(o, path);
  return REMIXDB_OK;
}

const struct overlay_ver *overlay_get(const struct overlay *o, struct kref key) {
  if (overlay_empty(o)) return NULL;
  const struct overlay_node *const n = behind(o, find_before(o, key, false, NULL), 0);
  return n && kv_eq(overlay_key(n), key) ? n->newest : NULL;
}

void overlay_rollback(struct overlay *o, uint64_t number) {
  assert(number >= o->kept);
  for (; o->last && o->last->number > number; o->last = o->last->before) {
    struct overlay_ver *const v = o->last;
    struct overlay_node *const n = v->node;
    assert(n->newest == v);
    o->log_bytes = o->log_bytes - record_size(v) + record_size(v->older);
    n->newest = v->older;
    if (n->newest && (likely(!o->gaps) || !(v->kind & (KV_TOMB | KV_EXPIRES)))) continue;
    struct overlay_node *path[OVERLAY_HEIGHT];
    find_before(o, overlay_key(n), false, path);
    gaps_end(o, path);
    if (n->newest) continue;
    node_drop(o, n, path);
    o->keys--;
  }
}

// ---- cursors

static bool see(struct overlay_cursor *c, const struct overlay_node *n) {
  const struct overlay_ver *v = n->newest;
  OVERLAY_COUNT(nodes);
  while (v && v->number > c->number) v = v->older;
  c->node = v ? n : NULL;
  c->ver = v;
  return v != NULL;
}

// Goes forward from n, which may be NULL, to the nearest node that the cursor sees.
static void forward(struct overlay_cursor *c, const struct overlay_node *n) {
  for (c->node = NULL; n && !see(c, n); n = n->next[0]) {}
}

// The same backward.
static void backward(struct overlay_cursor *c, const struct overlay_node *n) {
  for (c->node = NULL; n && !see(c, n); n = find_before(c->o, overlay_key(n), false, NULL)) {}
}

void overlay_seek(struct overlay_cursor *c, struct kref key) {
  forward(c, behind(c->o, find_before(c->o, key, false, NULL), 0));
}
void overlay_seek_le(struct overlay_cursor *c, struct kref key) { backward(c, find_before(c->o, key, true, NULL)); }
void overlay_seek_lt(struct overlay_cursor *c, struct kref key) { backward(c, find_before(c->o, key, false, NULL)); }

void overlay_seek_last(struct overlay_cursor *c) {
  const struct overlay_node *at = NULL;
  for (uint32_t l = c->o->height; l-- > 0;)
    for (const struct overlay_node *n; (n = behind(c->o, at, l)) != NULL;) at = n;
  backward(c, at);
}

void overlay_next(struct overlay_cursor *c) { forward(c, c->node->next[0]); }
void overlay_prev(struct overlay_cursor *c) { overlay_seek_lt(c, overlay_key(c->node)); }

// ---- gaps

void overlay_gap(struct overlay *o, const struct overlay_node *from, uint64_t since) {
  if (since > UINT32_MAX) return;  // after so many writes there are no new gaps
  gaps_of(from)[0] = (uint32_t)since;
  o->gaps = true;
}

// A leap that is under way.
struct leap {
  const struct overlay *o;
  uint64_t number;                // the cursor's
  const struct overlay_node *to;  // the end of the gaps that follow each other
  bool far;                       // a gap of level LEAP_LEVEL or higher is among them
};

// Tells whether a link is a gap for the cursor, and moves `to` to the end of the gaps with which the link begins. node
// NULL: the beginning of the list, where no link is a gap.
static bool is_gap(struct leap *leap, const struct overlay_node *node, uint32_t level) {
  OVERLAY_COUNT(links);
  if (!node) return false;
  uint32_t *const since = &gaps_of(node)[level], latest = 0;
  const struct overlay_node *const end = node->next[level];
  if (*since == 0 || *since > leap->number) {
    if (level == 0) return false;
    for (const struct overlay_node *n = node; n != end; n = n->next[level - 1]) {
      if (!is_gap(leap, n, level - 1)) return false;
      if (gaps_of(n)[level - 1] > latest) latest = gaps_of(n)[level - 1];
    }
    *since = latest;
  }
  leap->to = end;
  leap->far |= level >= LEAP_LEVEL;
  return true;
}

// Forward from a node: the last node of the gaps that follow it.
static const struct overlay_node *gaps_last(struct leap *leap, const struct overlay_node *n) {
  leap->to = n;
  while (is_gap(leap, n, n->height - 1)) n = leap->to;
  return leap->far ? leap->to : NULL;
}

// Finds the last link of a level that is no gap, between a node and another one. False: all are gaps.
static bool last_other(struct leap *leap, const struct overlay_node **n, const struct overlay_node *end,
                       uint32_t level) {
  const struct overlay_node *const first = *n;
  bool found = false;
  for (const struct overlay_node *i = first; i != end; i = behind(leap->o, i, level)) {
    if (is_gap(leap, i, level)) continue;
    *n = i;
    found = true;
  }
  return found;
}

// Backward from a node: the node at which the gaps that lead to it begin.
static const struct overlay_node *gaps_first(struct leap *leap, const struct overlay_node *node) {
  const struct overlay *const o = leap->o;
  struct overlay_node *path[OVERLAY_HEIGHT];
  find_before(o, overlay_key(node), false, path);
  uint32_t l = 0;
  const struct overlay_node *n;
  do n = l + 1 < o->height ? path[l + 1] : NULL;
  while (!last_other(leap, &n, l ? path[l] : node, l) && ++l < o->height);
  if (l < LEAP_LEVEL || l == o->height) return NULL;
  for (; l > 0; l--)
    if (!last_other(leap, &n, behind(o, n, l), l - 1)) return NULL;  // this cannot be: the link would be a gap
  return behind(o, n, 0);
}

const struct overlay_node *overlay_leap(struct overlay_cursor *c, bool backwards) {
  struct leap leap = {.o = c->o, .number = c->number};
  assert(c->node->newest);
  if (likely(!c->o->gaps)) return NULL;
  const struct overlay_node *const to = backwards ? gaps_first(&leap, c->node) : gaps_last(&leap, c->node);
  if (to && backwards) backward(c, to);
  else if (to) forward(c, to);
  return to;
}
