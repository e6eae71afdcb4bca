// SPDX-License-Identifier: Apache-2.0
#include "compact/apart.h"

enum remixdb_status apart_put(struct job *j, const struct kv_rec *rec, uint8_t *ref, struct kv_rec *out) {
  struct compact *const c = j->c;
  j->values.log = &c->values;
  const enum remixdb_status s = value_batch_put(&j->values, kref(rec->key, rec->klen), rec->val, rec->vlen, ref);
  if (s != REMIXDB_OK) return s;
  *out = *rec;
  out->val = ref;
  out->vlen = VALUE_REF;
  out->kind |= KV_APART;
  atomic_fetch_add_explicit(&c->stats.apart, 1, memory_order_relaxed);
  return s;
}

enum remixdb_status apart_end(struct job *j) { return j->values.log ? value_batch_end(&j->values) : REMIXDB_OK; }

void compact_undo_values(struct compact *c) {
  if (c->marked) value_log_rewind(&c->values, &c->mark);
  c->marked = false;
}
