// SPDX-License-Identifier: Apache-2.0
#include "store/batch.h"

#include <assert.h>
#include <stdlib.h>

enum remixdb_status batch_create(struct xdb_batch **out) {
  *out = mem_calloc(1, sizeof(**out));
  return *out ? REMIXDB_OK : REMIXDB_NOMEM;
}

void batch_destroy(struct xdb_batch *b) {
  if (!b) return;
  mem_free(b->data);
  mem_free(b);
}

void batch_clear(struct xdb_batch *b) { b->len = b->nr = 0; }

// Makes room for `more` bytes.
static enum remixdb_status reserve(struct xdb_batch *b, size_t more) {
  if (more <= b->cap - b->len) return REMIXDB_OK;
  size_t cap = b->cap ? b->cap : 2048;
  do {
    if (cap > SIZE_MAX / 2) return REMIXDB_NOMEM;
    cap *= 2;
  } while (more > cap - b->len);
  uint8_t *grown = mem_realloc(b->data, cap);
  if (!grown) return REMIXDB_NOMEM;
  b->data = grown;
  b->cap = cap;
  return REMIXDB_OK;
}

static inline void add(struct xdb_batch *b, const struct kv_rec *rec) {
  b->len = (size_t)(kv_rec_put(b->data + b->len, rec) - b->data);
  b->nr++;
}

enum remixdb_status batch_add(struct xdb_batch *b, const struct kv_rec *rec) {
  const enum remixdb_status s = reserve(b, kv_rec_size(rec));
  if (s == REMIXDB_OK) add(b, rec);
  return s;
}

// Operation i of remixdb_batch_load, whose key and value are at `bytes`.
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
    more += kv_rec_size(&rec);
  }
  const enum remixdb_status s = reserve(b, more);
  if (s != REMIXDB_OK) return s;
  for (size_t i = 0; i < nr; i++) {
    const struct kv_rec rec = loaded(i, ops, klens, vlens, bytes);
    add(b, &rec);
    bytes += (size_t)klens[i] + vlens[i];
  }
  return REMIXDB_OK;
}

enum remixdb_status batch_append(struct xdb_batch *b, const struct xdb_batch *from) {
  const size_t len = from->len, nr = from->nr;
  if (len == 0) return REMIXDB_OK;
  const enum remixdb_status s = reserve(b, len);
  if (s != REMIXDB_OK) return s;
  memcpy(b->data + b->len, from->data, len);
  b->len += len;
  b->nr += nr;
  return REMIXDB_OK;
}

void batch_each(const struct xdb_batch *b, remixdb_batch_fn fn, void *priv) {
  const uint8_t *p = b->data;
  bool on = true;
  CANCEL_LATER;
  for (size_t i = 0; i < b->nr && on; i++) {
    struct kv_rec r;
    p = kv_rec_get(p, b->data + b->len, KV_IN_LOG, &r);
    assert(p);  // `add` has written it
    const bool del = r.kind & KV_TOMB;
    struct remixdb_batch_item item = {.size = sizeof(item), .op = del ? REMIXDB_BATCH_DEL : REMIXDB_BATCH_PUT};
    item.key = (struct remixdb_slice){r.key, r.klen};
    if (!del) item.value = (struct remixdb_slice){r.val, r.vlen};
    if (r.kind & KV_EXPIRES) item.expires_ms = r.expiry;
    on = fn(priv, &item);
  }
}

static inline struct kref op_key(const struct batch_op *op) { return kref(op->rec.key, op->rec.klen); }

// Orders by key. If keys are equal, the later operation, which has the higher address, comes first.
static int op_cmp(const void *a, const void *b) {
  const struct batch_op *x = a, *y = b;
  const int c = kv_cmp(op_key(x), op_key(y));
  return c ? c : (x->rec.key < y->rec.key) - (x->rec.key > y->rec.key);
}

enum remixdb_status batch_sorted(const struct xdb_batch *b, struct batch_op **ops_out, size_t *nr_out) {
  struct batch_op *ops = mem_alloc((b->nr ? b->nr : 1) * sizeof(*ops));
  if (!ops) return REMIXDB_NOMEM;
  const uint8_t *p = b->data;
  bool sorted = true;
  for (size_t i = 0; i < b->nr; i++) {
    p = kv_rec_get(p, b->data + b->len, KV_IN_LOG, &ops[i].rec);
    assert(p);  // `add` has written it
    ops[i].hash = hash64(ops[i].rec.key, ops[i].rec.klen);
    if (i && kv_cmp(op_key(&ops[i - 1]), op_key(&ops[i])) >= 0) sorted = false;
  }
  size_t nr = b->nr;
  if (!sorted) {
    qsort(ops, nr, sizeof(*ops), op_cmp);
    nr = 1;
    for (size_t i = 1; i < b->nr; i++)
      if (!kv_eq(op_key(&ops[nr - 1]), op_key(&ops[i]))) ops[nr++] = ops[i];
  }
  *ops_out = ops;
  *nr_out = nr;
  return REMIXDB_OK;
}
