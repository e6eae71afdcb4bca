// SPDX-License-Identifier: Apache-2.0
#include "store/scan_merge.h"

#include <assert.h>

#include "store/collect.h"
#include "store/expiry.h"
#include "store/install.h"

#define ROOM 4u                 // a merge begins while at least 1/4 of the active memtable is free,
#define AHEAD_NS 2000000000ull  // or while the memtable will not be full within this time.
#define LOOK_NS 100000000ull    // Its growth is measured over at least this time. A longer time
#define SPAN_NS 1000000000ull   // than this counts as this.
#define CREEP 1024u             // Growth of 1/1024 of the limit does not count: readers that sort leaves cause it, too

// Tells whether the active memtable, which has `used` bytes, is likely to stay active until a merge ends: it is not
// nearly full, or it grows slowly. xdb.lock is held.
static bool freeze_is_far(struct xdb *x, size_t used) {
  const size_t limit = xdb_memtable_limit(x);
  assert(xdb_lock_is_mine(x));
  if (used <= limit - limit / ROOM) return true;
  const uint64_t now = time_ns(), since = now - x->scan_merges.looked_ns;
  if (used >= x->scan_merges.used) {
    if (since < LOOK_NS) return false;
    const size_t creep = limit / CREEP, left = used < limit ? limit - used : 0;
    const double room = (double)(left > creep ? left : creep), span = (double)(since < SPAN_NS ? since : SPAN_NS);
    if ((double)(used - x->scan_merges.used) * (double)AHEAD_NS <= room * span) return true;
  }
  x->scan_merges.used = used;
  x->scan_merges.looked_ns = now;
  atomic_store_explicit(&x->scan_merges.again_ns, now + LOOK_NS, memory_order_relaxed);
  return false;
}

// The merge begins. xdb.lock is held.
static void note_begun(struct xdb *x) {
  x->rounds.at = XDB_AT_SCANS;
  atomic_store_explicit(&x->compact.yield, false, memory_order_relaxed);
}

// Tells whether nothing is more urgent than a merge. xdb.lock is held.
static bool may_merge(struct xdb *x, const struct super *v) {
  return !x->scan_merges.ending && !v->frozen && !x->rounds.edits &&
         atomic_load_explicit(&x->failed, memory_order_relaxed) == 0;
}

bool scan_merge_may_begin(struct xdb *x) {
  xdb_lock(x);
  const struct super *const v = xdb_super(x);
  // Without workers no other time is better.
  const bool may = may_merge(x, v) && (workers_count(x->workers) == 0 || freeze_is_far(x, memtable_memory(v->active)));
  if (may) note_begun(x);
  xdb_unlock(x);
  return may;
}

// Tells whether to begin a merge: a merge is due, and nothing is more urgent. again: partitions may be left from the
// last merge. *base_out: the version whose partitions are merged, with a reference.
static bool begin(struct xdb *x, bool again, struct version **base_out) {
  xdb_lock(x);
  const struct super *v = xdb_super(x);
  const bool wanted = again || x->scan_merges.put_off ||
                      atomic_load_explicit(&x->scan_merges.due, memory_order_relaxed);
  const bool able = may_merge(x, v);
  const bool begun = wanted && able && freeze_is_far(x, memtable_memory(v->active));
  // If a merge is put off, readers ask for it again, as long as there is enough debt. If a merge waits because a
  // memtable is frozen, it stays due for that memtable's round.
  atomic_store_explicit(&x->scan_merges.due, wanted && !able, memory_order_relaxed);
  x->scan_merges.put_off = wanted && able && !begun;
  if (begun) {
    note_begun(x);
    version_ref(*base_out = v->version);
  }
  xdb_unlock(x);
  return begun;
}

void scan_merge_run(struct xdb *x, struct worker *w) {
  struct version *base, *next;
  for (bool again = false; begin(x, again, &base);) {
    const uint64_t began = time_ns();
    uint64_t installed = began;
    (void)expiry_settle(x);
    enum remixdb_status s = compact_scan_round(&x->compact, w, base, &next);
    err_cleanup_begin();
    version_unref(base);
    err_cleanup_end();
    const bool any = s == REMIXDB_OK && next;
    if (any) s = round_install(x, next, false, &installed);
    if (s != REMIXDB_OK) xdb_say(x, "a scan merge failed: %s", err_msg());
    else if (any) xdb_say(x, "scan merge: %.3f s", (double)(installed - began) * 1e-9);
    again = any && s == REMIXDB_OK;
    // Values that were written again leave garbage, and further merges may wait for its room.
    if (again || atomic_load_explicit(&x->compact.values_wait, memory_order_relaxed)) collect_round(x, w);
  }
}

void scan_merge_ask(void *arg, struct remix *r) {
  struct xdb *const x = arg;
  // An obsolete REMIX may have readers, but no round can merge its runs.
  if (atomic_load_explicit(&x->scan_merges.due, memory_order_relaxed) ||
      atomic_load_explicit(&r->obsolete, memory_order_relaxed) ||
      !(compact_scan_debt_paid(r) || compact_value_debt_paid(&x->compact, r)))
    return;
  const uint64_t again = atomic_load_explicit(&x->scan_merges.again_ns, memory_order_relaxed);
  if (again && time_ns() < again) return;
  if (!atomic_exchange_explicit(&x->scan_merges.due, true, memory_order_relaxed)) workers_kick(x->workers);
}

void scan_merge_stop(struct xdb *x) {
  xdb_lock(x);
  x->scan_merges.ending = true;
  atomic_store_explicit(&x->compact.yield, true, memory_order_relaxed);
  xdb_unlock(x);
}
