// SPDX-License-Identifier: Apache-2.0
#include "remix/fresh.h"

void remix_fresh_init(struct remix_fresh *f, struct sst *const *tables, uint32_t nr, struct blkio_queue *q) {
  *f = (struct remix_fresh){.tables = tables, .nr = nr, .queue = q};
}

static void fresh_close(struct remix_fresh *f) {
  f->data_pages_read += sst_keys_blocks_read(&f->keys);
  f->ckb_bytes_read += sst_keys_ckb_read(&f->keys);
  sst_keys_close(&f->keys);
}

void remix_fresh_fini(struct remix_fresh *f) { fresh_close(f); }

// Compares the first key of a table with the last key of the table in front of it.
static enum remixdb_status fresh_order(struct remix_fresh *f) {
  const struct kref last = f->tables[f->table - 1]->max, key = f->keys.key;
  f->shared = kv_lcp_from(last, key, 0);
  if (f->shared == key.len || (f->shared < last.len && key.ptr[f->shared] < last.ptr[f->shared]))
    return err_corrupt(f->tables[f->table]->path, 0, "begins before the table in front of it ends");
  return REMIXDB_OK;
}

static enum remixdb_status fresh_fail(struct remix_fresh *f, enum remixdb_status s) {
  f->failed = s != REMIXDB_OK;
  return s;
}

enum remixdb_status remix_fresh_next(struct remix_fresh *f) {
  bool first = false;
  for (;;) {
    if (unlikely(!f->keys.state)) {
      if (f->table == f->nr) return REMIXDB_NOTFOUND;
      const enum remixdb_status s = sst_keys_open(f->tables[f->table], f->queue, &f->keys);
      if (s != REMIXDB_OK) return fresh_fail(f, s);
      first = true;
    }
    const enum remixdb_status s = sst_keys_next(&f->keys);
    if (likely(s == REMIXDB_OK)) break;
    if (s != REMIXDB_NOTFOUND) return fresh_fail(f, s);
    fresh_close(f);
    f->table++;
  }
  f->key = f->keys.key;
  f->kind = f->keys.kind;
  f->shared = f->keys.shared;
  return first && f->table > 0 ? fresh_fail(f, fresh_order(f)) : REMIXDB_OK;
}
