// SPDX-License-Identifier: Apache-2.0
#include "store/overlay.h"

#include <assert.h>

#define CHUNK_FIRST (8u << 10)  // bytes of the chunk that stays
#define CHUNK_MAX (1u << 20)

struct overlay_chunk {
  struct overlay_chunk *next;
  size_t size;  // of `bytes`
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

// Finds the last node whose key is less than the given key (or_equal: or equal); NULL: none. path (or NULL): for each
// level in use, the link behind that node.
static struct overlay_node *find_before(const struct overlay *o, struct kref key, bool or_equal,
                                        struct overlay_node **path[]) {
  struct overlay_node *at = NULL;
  for (uint32_t l = o->height; l-- > 0;) {
    struct overlay_node *const *link = at ? &at->next[l] : &o->head[l];
    for (struct overlay_node *n; (n = *link) != NULL; link = &n->next[l]) {
      const int c = kv_cmp(overlay_key(n), key);
      if (or_equal ? c > 0 : c >= 0) break;
      at = n;
    }
    if (path) path[l] = (struct overlay_node **)(uintptr_t)link;
  }
  return at;
}

static struct overlay_node *first_behind(const struct overlay *o, const struct overlay_node *before) {
  return before ? before->next[0] : o->head[0];
}

// Makes a node without a version at the place that path names. NULL: REMIXDB_NOMEM.
static struct overlay_node *node_add(struct overlay *o, struct kref key, struct overlay_node **path[]) {
  const uint32_t height = random_height(o);
  struct overlay_node *const n = take(o, sizeof(*n) + height * sizeof(n->next[0]) + key.len);
  if (!n) return NULL;
  uint8_t *const copy = (uint8_t *)&n->next[height];
  if (key.len) memcpy(copy, key.ptr, key.len);
  *n = (struct overlay_node){.hash = hash64(copy, key.len), .key = copy, .klen = key.len, .height = height};
  for (; o->height < height; o->height++) path[o->height] = &o->head[o->height];
  for (uint32_t l = 0; l < height; l++) {
    n->next[l] = *path[l];
    *path[l] = n;
  }
  return n;
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
  struct overlay_node **path[OVERLAY_HEIGHT];
  struct overlay_node *n = first_behind(o, find_before(o, key, false, path));
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
  return REMIXDB_OK;
}

const struct overlay_ver *overlay_get(const struct overlay *o, struct kref key) {
  if (overlay_empty(o)) return NULL;
  const struct overlay_node *const n = first_behind(o, find_before(o, key, false, NULL));
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
    o->keys -= n->newest == NULL;
  }
}

// ---- cursors

static bool see(struct overlay_cursor *c, const struct overlay_node *n) {
  const struct overlay_ver *v = n->newest;
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
  forward(c, first_behind(c->o, find_before(c->o, key, false, NULL)));
}
void overlay_seek_le(struct overlay_cursor *c, struct kref key) { backward(c, find_before(c->o, key, true, NULL)); }
void overlay_seek_lt(struct overlay_cursor *c, struct kref key) { backward(c, find_before(c->o, key, false, NULL)); }

void overlay_seek_last(struct overlay_cursor *c) {
  const struct overlay_node *at = NULL;
  for (uint32_t l = c->o->height; l-- > 0;)
    for (const struct overlay_node *n = at ? at->next[l] : c->o->head[l]; n; n = n->next[l]) at = n;
  backward(c, at);
}

void overlay_next(struct overlay_cursor *c) { forward(c, c->node->next[0]); }
void overlay_prev(struct overlay_cursor *c) { overlay_seek_lt(c, overlay_key(c->node)); }
