// SPDX-License-Identifier: Apache-2.0
#include "store/hiding.h"

#include "store/hidden_values.h"
#include "view/count.h"
#include "view/garbage.h"

void hiding_init(struct xdb *x) {
  atomic_init(&x->hiding.rest_ns, HIDING_REST_NS);
  atomic_init(&x->hiding.least, HIDING_LEAST);
}

void hiding_after(struct xdb *x, uint64_t ns) {
  atomic_store_explicit(&x->hiding.at_ns, time_ns() + ns, memory_order_relaxed);
}

// The keys of a tree, about.
static enum remixdb_status count_tree(struct xdb *x, struct epoch_slot *slot, const struct super *v, uint64_t moment,
                                      uint32_t tree, uint64_t *keys_out) {
  struct count c = {.mem = {memtable_tree(v->active, tree), super_frozen(v, tree)},
                    .version = version_tree(v->version, tree),
                    .moment = moment,
                    .low = kref("", 0),
                    .epoch = &x->epoch,
                    .slot = slot,
                    .keys_only = true,
                    .stop = &x->hiding.ending};
  const enum remixdb_status s = c.version ? count_range(&c) : REMIXDB_OK;
  *keys_out = c.keys;
  return s;
}

// Returns how many tombstones a memtable has, about; 0 without memory for the sample.
static uint64_t count_tombs(struct xdb *x, struct epoch_slot *slot, const struct memtable *m) {
  struct wh_sample *const sample = mem_alloc(sizeof(*sample));
  uint64_t nr = 0;
  for (uint32_t tree = 0; sample && tree < TREES; tree++) {
    const struct wh *const wh = memtable_tree(m, tree);
    if (!wh) continue;
    epoch_enter(&x->epoch, slot);
    wh_sample(wh, kref(NULL, 0), kref(NULL, 0), sample);
    epoch_exit(slot);
    nr += sample->tombs;
  }
  mem_free(sample);
  return nr;
}

// Tells whether so many keys of the tables are gone that the room of their records is worth a round (H3). A failed read
// is no reason to freeze.
static bool hides_much(struct xdb *x, struct epoch_slot *slot, const struct super *v, uint64_t moment) {
  const uint64_t least = atomic_load_explicit(&x->hiding.least, memory_order_relaxed);
  struct garbage all;
  uint64_t live = 0, bytes;
  garbage_all(v->version, &all);
  bytes = all.files;
  for (uint32_t i = 0; i < v->version->values.nr; i++) bytes += value_file_size(v->version->values.files[i]);
  if (memtable_count(v->active) == 0 || all.keys == 0 || bytes < least) return false;
  if (count_tombs(x, slot, v->active) < all.keys / HIDING_PART) return false;  // H3
  for (uint32_t tree = 0; tree < TREES; tree++) {
    uint64_t keys;
    if (count_tree(x, slot, v, moment, tree, &keys) != REMIXDB_OK) return false;
    live += keys;
  }
  const uint64_t gone = all.keys > live ? all.keys - live : 0;
  return gone >= all.keys / HIDING_PART && (double)bytes / (double)all.keys * (double)gone >= (double)least;
}

bool hiding_is_due(struct xdb *x, uint64_t *ns_out) {
  struct hiding *const h = &x->hiding;
  const uint64_t now = time_ns(), at = atomic_load_explicit(&h->at_ns, memory_order_relaxed);
  *ns_out = at > now ? at - now : 0;
  if (at == 0 || now < at) return false;
  const uint64_t written = atomic_load_explicit(&x->published, memory_order_acquire);  // X2
  const bool rests = written == h->written;
  if (!rests) h->wait_ns = atomic_load_explicit(&h->rest_ns, memory_order_relaxed);
  else h->wait_ns = h->wait_ns < HIDING_WAIT_NS / 2 ? 2 * h->wait_ns : HIDING_WAIT_NS;
  h->written = written;
  hiding_after(x, *ns_out = h->wait_ns);
  return rests && written != atomic_load_explicit(&h->judged, memory_order_relaxed) &&
         now >= atomic_load_explicit(&h->again_ns, memory_order_relaxed);
}

void hiding_judge(struct xdb *x, struct epoch_slot *slot, const struct super *v) {
  struct hiding *const h = &x->hiding;
  atomic_fetch_add_explicit(&h->nr, 1, memory_order_relaxed);
  const bool values = hidden_values_due(x, slot, v, h->written),
             much = values || hides_much(x, slot, v, h->written > v->least ? h->written : v->least);
  if (much) atomic_store_explicit(&h->due, true, memory_order_relaxed);  // workers_kick orders it before the round
  if (much) workers_kick(x->workers);
  atomic_store_explicit(&h->judged, h->written, memory_order_release);  // for tests: after the request
}

void hiding_stop(struct xdb *x) { atomic_store_explicit(&x->hiding.ending, true, memory_order_relaxed); }

bool hiding_take(struct xdb *x) {
  return atomic_load_explicit(&x->hiding.due, memory_order_relaxed) &&
         atomic_exchange_explicit(&x->hiding.due, false, memory_order_relaxed);
}
