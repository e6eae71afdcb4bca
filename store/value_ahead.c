// SPDX-License-Identifier: Apache-2.0
#include "store/value_ahead.h"

// The records that the merge comes to next, of the older views and of the young ones.
struct next {
  struct kv_rec recs[2][VALUE_AHEAD_NR];
  uint32_t at[2], nr[2];
};

// Takes the record that comes first. If two records have one key, the newer one hides the other, which goes, too.
static const struct kv_rec *next_take(struct next *n, bool back) {
  const struct kv_rec *const old = &n->recs[0][n->at[0]], *const young = &n->recs[1][n->at[1]];
  const bool olds = n->at[0] < n->nr[0], youngs = n->at[1] < n->nr[1];
  int order = olds ? -1 : 1;  // below 0: `old` comes first
  if (olds && youngs) {
    order = kv_cmp(kref(old->key, old->klen), kref(young->key, young->klen));
    if (back) order = -order;
    n->at[0] += order == 0;
  }
  n->at[order >= 0]++;
  return order < 0 ? old : young;
}

// Sets the values that the next records refer to. Returns how many there are.
static uint32_t next_values(struct xdb_ref *r, const struct super *super, const struct merge *m,
                            struct value_want wants[VALUE_AHEAD_NR]) {
  struct next n;
  uint64_t bytes = 0;
  uint32_t nr = 0;
  epoch_enter(&r->xdb->epoch, &r->slot);
  for (uint32_t young = 0; young < 2; young++) {
    n.at[young] = 0;
    n.nr[young] = merge_next_records(m, young, n.recs[young], VALUE_AHEAD_NR);
  }
  while (nr < VALUE_AHEAD_NR && (n.at[0] < n.nr[0] || n.at[1] < n.nr[1])) {
    const struct kv_rec *const rec = next_take(&n, m->backward);
    struct value_want *const w = &wants[nr];
    if (!(rec->kind & KV_APART)) continue;
    if (super_value(super, rec, &w->to, &w->file) != REMIXDB_OK) break;  // the step to this record reports it
    w->klen = rec->klen;
    bytes += w->to.len;
    if (nr && bytes > VALUES_AHEAD_BYTES) break;
    nr++;
  }
  epoch_exit(&r->slot);
  return nr;
}

void values_ahead(struct xdb_ref *r, const struct super *super, struct merge *merge, const struct value_ref *now,
                  struct values_told *told) {
  struct value_want wants[VALUE_AHEAD_NR];
  merge_reads_values(merge);
  if (merge->at != MERGE_PARTS && merge->at != MERGE_YOUNG) return;  // a memtable's record, between those of tables
  // The system may have dropped the values that were asked for before the seek.
  if (merge->remix.way == REMIX_SOUGHT) told->asked.nr = 0;
  if (value_readahead_due(&told->asked, now))
    value_readahead_ask(&told->asked, wants, next_values(r, super, merge, wants));
}

void values_came(const struct xdb_ref *r, const struct merge *merge, bool cold, const struct value_ref *to,
                 struct values_told *told) {
  const uint32_t least = r->xdb->compact.apart_from;
  if (merge->at != MERGE_PARTS || least == 0 || to->len < least || to->len > VALUE_CHUNK) return;
  const struct value_ref before = told->read;
  const uint32_t came = remix_came(&merge->remix), was = told->came;
  const uint64_t way = to->at > before.at ? to->at - before.at : before.at - to->at;
  const bool near = to->file == before.file && way <= VALUES_NEAR;
  // A scan begins somewhere; one that leaves values out reads elsewhere in any order; and where rounds write values in
  // stretches side by side, a scan goes from stretch to stretch.
  const bool free = came <= was || came - was > VALUES_STEPS || told->ordered >= VALUES_NEAR / 2;
  told->read = *to;
  told->came = came;
  told->ordered = near ? told->ordered + to->len : 0;
  if (cold && !near && !free) merge_add_value_debt(merge, to->len);
}
