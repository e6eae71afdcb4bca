// SPDX-License-Identifier: Apache-2.0
#include "store/hidden_values.h"

struct pass {
  struct xdb *x;
  struct epoch_slot *slot;
  const struct super *v;
  uint64_t written;  // nothing was written after this number
  uint64_t live;     // bytes of values to which newest records refer, so far
};

// Inside an epoch.
static bool disturbed(const struct pass *p) {
  return atomic_load_explicit(&p->x->published, memory_order_relaxed) != p->written || xdb_super(p->x) != p->v ||
         atomic_load_explicit(&p->x->collect.ending, memory_order_relaxed);
}

// Passes over the next records of an index, from *from_io on, which then is the next key. *end_out: there is none.
// Returns false if the pass is to be given up.
static bool pass_piece(struct pass *p, const struct wh *wh, struct kref *from_io, bool *end_out) {
  struct wh_cursor c;
  uint32_t left = HIDDEN_VALUES_PIECE;
  epoch_enter(&p->x->epoch, p->slot);
  const bool goes = !disturbed(p);
  wh_cursor_init(&c, wh, WH_PENDING - 1);
  if (goes) wh_seek(&c, *from_io);
  for (; wh_valid(&c) && left; left--, wh_next(&c)) {
    struct kv_rec rec;
    wh_record(&c, &rec);
    if (rec.kind & KV_APART) p->live += value_ref_len(rec.val);
  }
  *end_out = !wh_valid(&c);
  if (!*end_out) *from_io = wh_key(&c);  // its bytes live as long as the index
  epoch_exit(p->slot);
  return goes;
}

static bool pass_all(struct pass *p) {
  for (uint32_t tree = 0; tree < TREES; tree++) {
    const struct wh *const wh = memtable_tree(p->v->active, tree);
    struct kref from = kref("", 0);
    bool end = wh == NULL;
    while (!end)
      if (!pass_piece(p, wh, &from, &end)) return false;
  }
  return true;
}

bool hidden_values_due(struct xdb *x, struct epoch_slot *slot, const struct super *v, uint64_t written) {
  const uint64_t least = atomic_load_explicit(&x->hiding.least, memory_order_relaxed), began = time_ns(),
                 held = atomic_load_explicit(&v->active->apart_bytes, memory_order_relaxed) +
                        atomic_load_explicit(&x->values_lost, memory_order_relaxed);
  struct pass p = {x, slot, v, written, 0};
  if (held < least) return false;
  const bool all = pass_all(&p);
  const uint64_t now = time_ns(), hidden = all && held > p.live ? held - p.live : 0;
  atomic_store_explicit(&x->hiding.again_ns, now + HIDDEN_VALUES_REST * (now - began), memory_order_relaxed);
  if (all) atomic_store_explicit(&x->hiding.value_bytes, hidden, memory_order_relaxed);
  return hidden >= least && hidden > held / HIDDEN_VALUES_PART;
}
