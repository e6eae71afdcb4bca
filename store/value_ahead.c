// SPDX-License-Identifier: Apache-2.0
#include "store/value_ahead.h"

// A record whose value is apart.
struct referring {
  uint8_t ref[VALUE_REF];
  uint32_t klen;
};

// Copies what the next records refer to. Returns how many there are.
static uint32_t references(struct xdb_ref *r, const struct merge *m, bool young, struct referring out[VALUES_AHEAD]) {
  struct kv_rec recs[VALUES_AHEAD];
  uint32_t nr = 0;
  epoch_enter(&r->xdb->epoch, &r->slot);
  const uint32_t found = merge_next_records(m, young, recs, VALUES_AHEAD);
  for (uint32_t i = 0; i < found; i++) {
    if (!(recs[i].kind & KV_APART) || recs[i].vlen != VALUE_REF) continue;
    memcpy(out[nr].ref, recs[i].val, VALUE_REF);
    out[nr++].klen = recs[i].klen;
  }
  epoch_exit(&r->slot);
  return nr;
}

// How many of them were asked for, if `last` was asked for last.
static uint32_t known(const struct value_ref *last, const struct referring *refs, uint32_t nr) {
  for (uint32_t i = nr; i > 0; i--) {
    struct value_ref to;
    if (value_ref_get(refs[i - 1].ref, VALUE_REF, &to) && to.file == last->file && to.at == last->at) return i;
  }
  return 0;
}

void values_ahead(struct xdb_ref *r, const struct super *super, const struct merge *merge, struct values_told *told) {
  for (uint32_t young = 0; young < 2; young++) {
    struct referring refs[VALUES_AHEAD];
    struct value_ref *const last = &told->last[young];
    uint64_t bytes = 0;
    const uint32_t nr = references(r, merge, young, refs), from = known(last, refs, nr);
    for (uint32_t i = 0; i < nr && bytes < VALUES_AHEAD_BYTES; i++) {
      const struct kv_rec rec = {.val = refs[i].ref, .vlen = VALUE_REF, .kind = KV_APART};
      struct value_ref to;
      struct value_file *f;
      if (super_value(super, &rec, &to, &f) != REMIXDB_OK) return;  // the step to this record reports it
      bytes += to.len;
      if (i < from) continue;
      value_will_need(f, &to, refs[i].klen);
      *last = to;
    }
  }
}

void values_jumped(const struct merge *merge, const struct value_ref *to, struct values_told *told) {
  const struct value_ref before = told->read;
  if (merge->at != MERGE_PARTS) return;
  told->read = *to;
  // Where a scan begins, and how long values lie apart, is of no account.
  if (to->len > VALUE_CHUNK || remix_came(&merge->remix) == 0) return;
  const uint64_t way = to->at > before.at ? to->at - before.at : before.at - to->at;
  if (to->file != before.file || way > VALUES_NEAR) merge_add_value_debt(merge, to->len);
}
