// SPDX-License-Identifier: Apache-2.0
#include "store/batch.h"

#include <assert.h>
#include <stdlib.h>

#include "store/space.h"

enum remixdb_status batch_create(struct xdb_batch **out) {
  *out = mem_calloc(1, sizeof(**out));
  if (!*out) return REMIXDB_NOMEM;
  (*out)->space = BATCH_OF_REF;
  return REMIXDB_OK;
}

static void forget_names(struct xdb_batch *b) {
  for (uint32_t i = 0; i < b->nr_names; i++) mem_free(b->names[i].bytes);
  b->nr_names = 0;
}

void batch_destroy(struct xdb_batch *b) {
  if (!b) return;
  forget_names(b);
  mem_free(b->names);
  mem_free(b->data);
  mem_free(b);
}

void batch_clear(struct xdb_batch *b) {
  forget_names(b);
  b->len = b->nr = b->of_ref = 0;
  b->space = BATCH_OF_REF;
  b->spaces = b->ranges = false;
  b->failed = REMIXDB_OK;
}

// Makes room for `more` bytes.
static enum remixdb_status reserve(struct xdb_batch *b, size_t more) {
  if (unlikely(more > BATCH_BYTES_MAX - b->len))
    return err_set(REMIXDB_TOOBIG, "a batch of %zu bytes gets %zu more; it may have %u", b->len, more, BATCH_BYTES_MAX);
  if (more <= b->cap - b->len) return REMIXDB_OK;
  const size_t cap = mem_doubled(b->cap ? b->cap : 4096, b->len + more);
  uint8_t *grown = mem_realloc(b->data, cap);
  if (!grown) return REMIXDB_NOMEM;
  b->data = grown;
  b->cap = cap;
  return REMIXDB_OK;
}

// ---- spaces

// Returns where the space is among the names, or where it would be.
static uint32_t name_place(const struct xdb_batch *b, uint32_t id) {
  uint32_t lo = 0, hi = b->nr_names;
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (b->names[mid].id < id) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

// Takes a space into the names.
static enum remixdb_status add_name(struct xdb_batch *b, uint64_t store_id, uint32_t id, const char *name,
                                    uint32_t len) {
  const uint32_t at = name_place(b, id);
  if (b->nr_names && b->store_id != store_id)
    return err_set(REMIXDB_INVALID, "a batch cannot have spaces of two stores");
  if (at < b->nr_names && b->names[at].id == id) return REMIXDB_OK;
  if (b->nr_names == b->cap_names) {
    struct batch_name *const grown = mem_grow32(b->names, &b->cap_names, 4, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    b->names = grown;
  }
  char *const bytes = mem_alloc(len);
  if (!bytes) return REMIXDB_NOMEM;
  memcpy(bytes, name, len);
  memmove(&b->names[at + 1], &b->names[at], (b->nr_names - at) * sizeof(b->names[0]));
  b->names[at] = (struct batch_name){id, len, bytes};
  b->nr_names++;
  b->store_id = store_id;
  return REMIXDB_OK;
}

void batch_space(struct xdb_batch *b, const struct xdb_space *sp) {
  b->space = 0;
  if (!sp) return;
  const enum remixdb_status s = add_name(b, sp->xdb->store_id, sp->id, sp->name, sp->len);
  if (s == REMIXDB_OK) b->space = sp->id;
  else b->failed = s;
}

static enum remixdb_status check_spaces(const struct xdb_batch *b) {
  return likely(b->failed == REMIXDB_OK) ? REMIXDB_OK : err_set(b->failed, "the batch could not take a space");
}

// ---- adding

// Returns the bytes that the operation takes.
static inline size_t add_size(const struct xdb_batch *b, const struct kv_rec *rec) {
  if (likely(b->space == BATCH_OF_REF)) return kv_rec_size(rec);
  struct kv_rec own = *rec;
  own.kind |= KV_SPACES;
  own.klen += NAMES_ID;
  return kv_rec_size(&own);
}

// Puts the operation with the id of its space before the key.
static uint8_t *put_in_space(uint8_t *p, uint32_t id, const struct kv_rec *rec) {
  struct kv_rec own = *rec;
  own.kind |= KV_SPACES;
  own.klen += NAMES_ID;
  p = kv_head_put(p, &own);
  names_id_put(p, id);
  p += NAMES_ID;
  if (rec->klen) memcpy(p, rec->key, rec->klen);
  p += rec->klen;
  if (!(rec->kind & KV_TOMB) && rec->vlen) {
    memcpy(p, rec->val, rec->vlen);
    p += rec->vlen;
  }
  return p;
}

static inline void add(struct xdb_batch *b, const struct kv_rec *rec) {
  uint8_t *const p = b->data + b->len;
  b->ranges = b->ranges || rec->kind & KV_RANGE;
  if (likely(b->space == BATCH_OF_REF)) {
    b->len += (size_t)(kv_rec_put(p, rec) - p);
    b->of_ref += NAMES_ID + (size_t)rec->klen;
  } else {
    b->len += (size_t)(put_in_space(p, b->space, rec) - p);
    b->spaces = true;
  }
  b->nr++;
}

enum remixdb_status batch_add(struct xdb_batch *b, const struct kv_rec *rec) {
  enum remixdb_status s = check_spaces(b);
  if (likely(s == REMIXDB_OK)) s = reserve(b, add_size(b, rec));
  if (likely(s == REMIXDB_OK)) add(b, rec);
  return s;
}

enum remixdb_status batch_add_range(struct xdb_batch *b, struct kref from, struct kref to) {
  if (!from.ptr) from = kref("", 0);
  if (to.ptr && kv_cmp(from, to) >= 0) return REMIXDB_OK;
  return batch_add(b, KV_REC(from, to.ptr, to.ptr ? to.len : 0, KV_RANGE));
}

// Operation i of remixdb_batch_load. Its key and value are at `bytes`.
static inline struct kv_rec loaded(size_t i, const uint8_t *ops, const uint32_t *klens, const uint32_t *vlens,
                                   const uint8_t *bytes) {
  const bool del = ops && ops[i] == REMIXDB_BATCH_DEL;
  return (struct kv_rec){
      .key = bytes, .val = bytes + klens[i], .klen = klens[i], .vlen = del ? 0 : vlens[i], .kind = del ? KV_TOMB : 0};
}

enum remixdb_status batch_load(struct xdb_batch *b, size_t nr, const uint8_t *ops, const uint32_t *klens,
                               const uint32_t *vlens, const uint8_t *bytes) {
  size_t more = 0;
  for (size_t i = 0; i < nr; i++) {
    const struct kv_rec rec = loaded(i, ops, klens, vlens, bytes);
    more += add_size(b, &rec);
  }
  enum remixdb_status s = check_spaces(b);
  if (s == REMIXDB_OK) s = reserve(b, more);
  if (s != REMIXDB_OK) return s;
  for (size_t i = 0; i < nr; i++) {
    const struct kv_rec rec = loaded(i, ops, klens, vlens, bytes);
    add(b, &rec);
    bytes += (size_t)klens[i] + vlens[i];
  }
  return REMIXDB_OK;
}

enum remixdb_status batch_append(struct xdb_batch *b, const struct xdb_batch *from) {
  const size_t len = from->len, nr = from->nr, of_ref = from->of_ref;
  if (len == 0) return REMIXDB_OK;
  enum remixdb_status s = check_spaces(b);
  if (s == REMIXDB_OK) s = check_spaces(from);
  for (uint32_t i = 0; i < from->nr_names && s == REMIXDB_OK; i++)
    s = add_name(b, from->store_id, from->names[i].id, from->names[i].bytes, from->names[i].len);
  if (s == REMIXDB_OK) s = reserve(b, len);
  if (s != REMIXDB_OK) return s;
  memcpy(b->data + b->len, from->data, len);
  b->len += len;
  b->nr += nr;
  b->of_ref += of_ref;
  b->spaces = b->spaces || from->spaces;
  b->ranges = b->ranges || from->ranges;
  return REMIXDB_OK;
}

// Takes the id off the key of an item, and fills in its space.
static void split_key(const struct xdb_batch *b, struct remixdb_batch_item *item) {
  const uint32_t id = names_id_get(item->key.ptr);
  item->key = (struct remixdb_slice){(const uint8_t *)item->key.ptr + NAMES_ID, item->key.len - NAMES_ID};
  item->space = (struct remixdb_slice){"", 0};
  if (id == 0) return;
  const struct batch_name *const n = &b->names[name_place(b, id)];
  item->space = (struct remixdb_slice){n->bytes, n->len};
}

static void item_range(struct remixdb_batch_item *item, const struct kv_rec *r) {
  item->op = REMIXDB_BATCH_DEL_RANGE;
  item->range.from = item->key;
  if (r->vlen) item->range.to = item->value;
  item->key = item->value = (struct remixdb_slice){NULL, 0};
}

void batch_each(const struct xdb_batch *b, remixdb_batch_fn fn, void *priv) {
  const uint8_t *p = b->data;
  bool on = true;
  CANCEL_LATER;
  for (size_t i = 0; i < b->nr && on; i++) {
    struct kv_rec r;
    p = kv_rec_get(p, b->data + b->len, KV_IN_BATCH, &r);
    assert(p);  // `add` has written it
    const bool del = r.kind & KV_TOMB;
    struct remixdb_batch_item item = {.size = sizeof(item), .op = del ? REMIXDB_BATCH_DEL : REMIXDB_BATCH_PUT};
    item.key = (struct remixdb_slice){r.key, r.klen};
    if (r.kind & KV_SPACES) split_key(b, &item);
    if (!del) item.value = (struct remixdb_slice){r.val, r.vlen};
    if (r.kind & KV_EXPIRES) item.expires_ms = r.expiry;
    if (r.kind & KV_RANGE) item_range(&item, &r);
    on = fn(priv, &item);
  }
}

static inline struct kref op_key(const struct batch_op *op) { return kref(op->rec.key, op->rec.klen); }

static inline bool op_in_space(const struct batch_op *op) { return op->rec.kind & KV_SPACES; }

// Compares tree and key.
static inline int op_cmp_keys(const struct batch_op *x, const struct batch_op *y) {
  const int c = (int)op_in_space(x) - (int)op_in_space(y);
  return c ? c : kv_cmp(op_key(x), op_key(y));
}

// Orders by tree and key. If both are equal, the later operation comes first.
static int op_cmp(const void *a, const void *b) {
  const struct batch_op *x = a, *y = b;
  const int c = op_cmp_keys(x, y);
  return c ? c : (x->at < y->at) - (x->at > y->at);
}

// Gives an operation the key that it has in its tree. space: as for batch_sorted; *room: memory for a key with an id.
static void op_settle(struct batch_op *op, uint32_t space, uint8_t **room) {
  struct kv_rec *const r = &op->rec;
  if (op_in_space(op)) {
    if (names_id_get(r->key) != 0) return;
    r->kind &= ~(uint32_t)KV_SPACES;
    r->key += NAMES_ID;
    r->klen -= NAMES_ID;
  } else if (space) {
    names_id_put(*room, space);
    if (r->klen) memcpy(*room + NAMES_ID, r->key, r->klen);
    r->key = *room;
    r->klen += NAMES_ID;
    r->kind |= KV_SPACES;
    *room += r->klen;
  }
}

// The operations as batch_listed returns them. *sorted_out: they are in order, and no two have the same key.
static enum remixdb_status list(const struct xdb_batch *b, uint32_t space, struct batch_op **ops_out,
                                bool *sorted_out) {
  struct batch_op *ops = mem_array(b->nr ? b->nr : 1, sizeof(*ops), space ? b->of_ref : 0);
  if (!ops) return REMIXDB_NOMEM;
  const uint8_t *p = b->data;
  uint8_t *room = (uint8_t *)&ops[b->nr];
  bool sorted = true;
  for (size_t i = 0; i < b->nr; i++) {
    p = kv_rec_get(p, b->data + b->len, KV_IN_BATCH, &ops[i].rec);
    assert(p);  // `add` has written it
    op_settle(&ops[i], space, &room);
    ops[i].hash = hash64(ops[i].rec.key, ops[i].rec.klen);
    ops[i].at = i;
    if (i && op_cmp_keys(&ops[i - 1], &ops[i]) >= 0) sorted = false;
  }
  *ops_out = ops;
  *sorted_out = sorted;
  return REMIXDB_OK;
}

enum remixdb_status batch_listed(const struct xdb_batch *b, uint32_t space, struct batch_op **ops_out) {
  bool sorted;
  return list(b, space, ops_out, &sorted);
}

enum remixdb_status batch_sorted(const struct xdb_batch *b, uint32_t space, struct batch_op **ops_out, size_t *nr_out) {
  struct batch_op *ops;
  bool sorted;
  const enum remixdb_status s = list(b, space, &ops, &sorted);
  if (s != REMIXDB_OK) return s;
  size_t nr = b->nr;
  if (!sorted) {
    qsort(ops, nr, sizeof(*ops), op_cmp);
    nr = 1;
    for (size_t i = 1; i < b->nr; i++)
      if (op_cmp_keys(&ops[nr - 1], &ops[i]) != 0) ops[nr++] = ops[i];
  }
  *ops_out = ops;
  *nr_out = nr;
  return REMIXDB_OK;
}
