// SPDX-License-Identifier: Apache-2.0
#include "compat/leveldb/internal.h"

leveldb_writebatch_t *leveldb_writebatch_create(void) {
  leveldb_writebatch_t *const b = calloc(1, sizeof(*b));
  if (b && (b->batch = remixdb_batch_create()) != NULL) return b;
  free(b);
  return NULL;
}

void leveldb_writebatch_clear(leveldb_writebatch_t *b) {
  remixdb_batch_clear(b->batch);
  ldb_message_free(b->error);
  b->error = NULL;
}

void leveldb_writebatch_destroy(leveldb_writebatch_t *b) {
  if (!b) return;
  leveldb_writebatch_clear(b);
  remixdb_batch_destroy(b->batch);
  free(b);
}

// The first failure is kept for leveldb_write, because these calls cannot report it.
static void added(leveldb_writebatch_t *b, bool good) {
  if (!good && !b->error) ldb_failed(&b->error, NULL);
}

// A length for RemixDB. One that is too long for it becomes one that it refuses.
static uint32_t length(size_t len) { return len < UINT32_MAX ? (uint32_t)len : UINT32_MAX; }

void leveldb_writebatch_put(leveldb_writebatch_t *b, const char *key, size_t klen, const char *val, size_t vlen) {
  added(b, remixdb_batch_put(b->batch, key, length(klen), val, length(vlen)));
}

void leveldb_writebatch_delete(leveldb_writebatch_t *b, const char *key, size_t klen) {
  added(b, remixdb_batch_del(b->batch, key, length(klen)));
}

struct pass {
  void *state;
  void (*put)(void *state, const char *k, size_t klen, const char *v, size_t vlen);
  void (*deleted)(void *state, const char *k, size_t klen);
};

static bool pass_one(void *priv, const struct remixdb_batch_item *item) {
  const struct pass *const p = priv;
  if (item->op == REMIXDB_BATCH_PUT) p->put(p->state, item->key.ptr, item->key.len, item->value.ptr, item->value.len);
  else p->deleted(p->state, item->key.ptr, item->key.len);
  return true;
}

void leveldb_writebatch_iterate(const leveldb_writebatch_t *b, void *state,
                                void (*put)(void *state, const char *k, size_t klen, const char *v, size_t vlen),
                                void (*deleted)(void *state, const char *k, size_t klen)) {
  struct pass p = {state, put, deleted};
  (void)remixdb_batch_each(b->batch, pass_one, &p);
}

void leveldb_writebatch_append(leveldb_writebatch_t *destination, const leveldb_writebatch_t *source) {
  added(destination, remixdb_batch_append(destination->batch, source->batch));
  if (source->error && !destination->error) ldb_message_copy(&destination->error, source->error);
}
