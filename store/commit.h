// SPDX-License-Identifier: Apache-2.0
//
// The commit of one record, which puts, deletes and merges share.
#ifndef STORE_COMMIT_H
#define STORE_COMMIT_H

#include "store/state.h"
#include "store/values.h"

// Nothing was logged, because of s: the version goes. Returns s.
MUST_CHECK enum remixdb_status commit_take_back(struct wh_slot *slot, enum remixdb_status s);
// Step 5 of a commit whose leaf another thread waits for.
void commit_end_waited(struct xdb *x, struct epoch_slot *es, const struct wh_slot *slot);

// Commits one record. The caller has locked the key's leaf and is inside an epoch. The steps:
//   1. link    the new version stands first in its key's chain, pending: no reader sees it (wh_link)
//   2. log     the record goes into the log's buffer, which gives it its sequence number (wal_begin, wal_put)
//   3. stamp   the version gets that number (wh_stamp)
//   4. publish the number becomes the newest moment that readers take (X1)
//   5. unlock  the leaf, the epoch, then the log's buffer, which wal_end may write out. If a thread sleeps on the leaf,
//              it is woken when both are unlocked (commit_end_waited)
// On failure nothing is linked, and the caller still holds the leaf and the epoch. REMIXDB_ABORTED: the memtable was
// frozen between 1 and 2 (X3), or `on` is not the store's super any more; on NULL: any will do. last: on a full disk
// the log takes the record into the room that it keeps for deletes. kind: rec's, so that a caller who knows it pays for
// no other.
ALWAYS_INLINE enum remixdb_status commit_record(struct xdb *x, struct epoch_slot *es, struct memtable *m,
                                                struct wh_slot *slot, const struct kv_rec *rec, uint32_t kind,
                                                bool last, const struct super *on) {
  enum remixdb_status s = unlikely(kind & KV_APART) ? values_hold(x, m, rec) : REMIXDB_OK;
  if (likely(s == REMIXDB_OK)) s = wh_link(slot, rec);
  if (unlikely(s != REMIXDB_OK)) return s;
  uint64_t gen;
  const size_t nbytes = kv_rec_size(rec);
  if ((s = last ? wal_begin_last(x->wal, nbytes, &gen) : wal_begin(x->wal, nbytes, &gen)) == REMIXDB_OK) {
    if (likely(gen == m->gen && (!on || xdb_super(x) == on))) {
      const uint64_t seq = wal_put(x->wal, rec);
      wh_stamp(slot, unlikely(kind & KV_SEQ) ? rec->seq : seq);
      if (unlikely(kind & KV_APART)) values_count(m, rec);
      atomic_store_explicit(&x->published, seq, memory_order_release);
      if (unlikely(wh_release(slot))) {
        commit_end_waited(x, es, slot);
        return REMIXDB_OK;
      }
      epoch_exit(es);
      wal_end(x->wal);  // last, because it may write a buffer out: no thread waits for the leaf or this epoch meanwhile
      return REMIXDB_OK;
    }
    wal_end(x->wal);
    s = REMIXDB_ABORTED;
  }
  return commit_take_back(slot, s);
}
#endif
