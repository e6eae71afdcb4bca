// SPDX-License-Identifier: Apache-2.0
//
// The merge behind an iterator. It has at most four sorted streams, newest first: the active memtable, the frozen one,
// the partitions' young views (one after the other), the partitions (one REMIX after the other). It stops at the keys
// that exist at its moment: a key in a newer stream hides the same key in older ones. The selectors of a partition pass
// its own deleted keys. The merge visits a tombstone of a newer stream, because that may hide an older stream's key.
//
// Keys are compared only where the newer streams' next key may come before the partitions' next one. If the newer
// streams are at their end, or their key is known to belong to a later segment, a step is just a step of the REMIX, and
// reads and compares nothing. A search in all anchors tells the segment of a newer key. A skip makes that search at
// once; steps make it once per newer key, after they have passed a whole segment without meeting the key. The young
// views move from partition to partition by themselves, and may be ahead of the partitions: their key is then greater.
//
// Gaps. A run of tombstones, and of records that have expired, is walked once. The merge reports the range that it has
// passed to the memtable whose tombstones hid the keys (wh/gap.h). A later seek or step in that range leaps to the
// gap's end, and does not search the older streams first. A gap of the active memtable is true whatever lies below. A
// gap of the frozen memtable is true where the active one hides nothing.
//
// Trips. A seek leaves a stream alone if the result does not depend on it. It leaves the young views alone if their
// tags exclude the key and another stream has the key. While reads come from the disk, it also leaves all streams alone
// that are older than a stream with the key. Most seeks end there. The next step moves these streams, in one trip with
// the blocks that it needs itself (remix/gather.h).
//
// Threads and epochs. A merge belongs to one thread. From a seek until merge_set or merge_park the caller is inside the
// cursors' domain (wh_recycle), if there is one. Seeks, merge_set and merge_park need an epoch. Between calls none is
// needed: the blocks are pinned, and memtables live as long as their supers. So a step or a record needs an epoch only
// to look up a block or a memtable's end. With merge_use_epoch it enters one for just that; else the caller must be
// inside one.
#ifndef MERGE_H
#define MERGE_H

#include "remix/cursor.h"
#include "remix/lapsed.h"
#include "remix/value_debt.h"
#include "view/version.h"
#include "wh.h"

enum { MERGE_ACTIVE, MERGE_FROZEN, MERGE_YOUNG, MERGE_PARTS, MERGE_NONE };

#define MERGE_STEPS 256u  // most keys that are passed in one epoch

enum merge_near {
  MERGE_FAR,     // all streams
  MERGE_BESIDE,  // the current key is the partitions' alone; a newer stream's key may come before their next one
  MERGE_ALONE,   // the same, and no newer key comes before the end of the segment
  // The same backward:
  MERGE_BACK_BESIDE,
  MERGE_BACK_ALONE,  // no newer key comes before the beginning of the segment
};

// The state of the young views' stream.
enum merge_young {
  MERGE_YOUNG_KNOWN,  // young_rec is the record of the stream's entry, or the stream is at its end
  MERGE_YOUNG_AWAY,   // the entry is in a partition that the partitions' stream has not reached; it is not read yet
  MERGE_YOUNG_LATER,  // the seek left the stream alone; the next step moves it first
};

// The place of a cursor in a view that is paged (remix/paged.h).
struct merge_page {
  struct remix *paged, *in;  // the view, and the cursor's page with a reference; NULL: the cursor is in no such view
  uint32_t page;             // its number
};

struct merge {
  struct wh_cursor mem[2];  // [MERGE_ACTIVE], [MERGE_FROZEN]
  bool has[3];              // there is such a memtable with keys; [MERGE_YOUNG]: there is a young view
  const struct version *version;
  // Bounds (merge_bound). Without bounds part_low and part_high are the first and the last partition.
  bool bounded;
  struct kref low, high;           // ptr NULL: no bound on this side
  uint32_t part_low, part_high;    // the partitions that may hold keys within
  bool high_inside;                // part_high may hold keys beyond
  uint32_t young_low, young_high;  // the young views of these partitions: [young_low, young_high)
  uint32_t part;                   // the partition of the REMIX cursor
  struct remix_cursor remix;
  struct merge_page remix_page;  // its place
  struct kref remix_key;         // the key of the REMIX cursor's entry; ptr NULL: not read yet
  uint32_t at;                   // the stream that holds the current key; MERGE_NONE: not valid
  uint32_t same;                 // bit i: stream i stands on the same key
  enum merge_near near;          // the streams that a step in the merge's direction must look at
  bool backward;                 // streams that are not at the current key stand before it, else after it
  // The newer streams alone:
  uint32_t new_at, new_same;  // as at and same
  struct kref new_key;
  // The segments of the partition that come before new_key as a whole, in the direction. Forward these are all before
  // number `clear`, the segment that new_key belongs to. Backward these are all from number `clear` on, the segment
  // after new_key's. `clear` is UINT32_MAX if new_key belongs to a later page or partition, 0 if it belongs to an
  // earlier one. Until clear_found no segment is known to come before it: `clear` is 0, and backward UINT32_MAX.
  uint32_t clear;
  bool clear_found;
  uint32_t since;  // the REMIX's segment in which new_key was first compared; UINT32_MAX: not yet
  struct remix_cursor young;
  struct merge_page young_page;  // its place
  enum merge_young young_state;
  bool parts_later;         // the seek left the partitions' stream alone; the next step moves it first
  bool young_there;         // the partition of the last seek has a young view
  bool young_ended;         // there is no young view in that seek's direction: `young` was left where it was
  uint32_t young_at;        // the partition of `young`, or its last one, as an index of version->young
  struct kv_rec young_rec;  // the record of its entry, if that is valid
  // The caller's, or NULL:
  struct epoch *epoch;
  struct epoch_slot *slot;
  bool inside;  // in the epoch of a seek
  bool sought;  // in a seek: all keys from sought_key on were passed (ptr NULL: from the end of all)
  struct kref sought_key;
  uint64_t now_ms;  // the clock (merge_clock)
  uint32_t steps;   // keys passed in this epoch
  uint32_t *reach;  // the caller's: about how many keys the last scans came on; NULL: not learned
  bool learned;     // it knows of this scan
  bool values;      // this scan reads values apart from the disk (merge_reads_values)
};

// queue: for readahead; NULL: none.
void merge_init(struct merge *m, struct blkio_queue *queue);
void merge_fini(struct merge *m);
// Gives the merge the slot of the caller's epochs. The caller is outside when it calls merge_next, merge_prev,
// merge_skip or merge_record. A long seek (over deleted keys) leaves its epoch and enters a new one after every
// MERGE_STEPS keys, so it holds up no reclamation. Pointers that the caller found before the seek are lost then.
void merge_use_epoch(struct merge *m, struct epoch *epoch, struct epoch_slot *slot);
// expect: how many keys the caller is going to read after each seek. Their blocks are then asked for together. 0: as
// many as the last scans read; *reach tells how many. The merge updates *reach, and others may share it, in the same
// thread.
void merge_learn(struct merge *m, uint32_t expect, uint32_t *reach);
// The scan since the last seek reads values apart from the disk. So the merge learns how far it goes, as from a scan
// that reads blocks.
static inline void merge_reads_values(struct merge *m) { m->values = true; }
// From now on merge_record needs to give no values (remix_keys_only). Call it before merge_set.
static inline void merge_keys_only(struct merge *m) {
  remix_keys_only(&m->remix);
  remix_keys_only(&m->young);
}
// Bounds: from now on the merge stops at keys low <= key < high only; ptr NULL: no bound on this side. The keys are the
// caller's and outlive the merge. No block is read for a key beyond a bound, except for the key of each view that tells
// the bound's place (remix_bound). A seek below the bounds goes to the first key within, a seek back from above them to
// the last. Call it before merge_set.
void merge_bound(struct merge *m, struct kref low, struct kref high);
// Sets the sources; frozen may be NULL. The merge is not valid afterwards. The sources must stay alive until
// merge_park, or until a merge_set that does not name them. The earlier version must still exist during that merge_set,
// because blocks of its tables are pinned; the earlier memtables need not. A call with the same version keeps the pins,
// so that seeks near each other find their blocks. Inside an epoch.
void merge_set(struct merge *m, const struct wh *active, const struct wh *frozen, const struct version *version,
               uint64_t moment);
// From now on the merge passes the memtables' records that have expired by this clock (ms), as it passes tombstones.
// It stops at those of tables, and the caller passes them (merge_expires). 0: it passes none.
static inline void merge_clock(struct merge *m, uint64_t now_ms) { m->now_ms = now_ms; }
// Releases the blocks and forgets the sources, which need not live longer. Inside an epoch.
void merge_park(struct merge *m);

void merge_stop(struct merge *m);  // makes it invalid: the record of the position cannot be read
static inline bool merge_valid(const struct merge *m) { return m->at != MERGE_NONE; }
// After a failure of a move the merge is not valid.
MUST_CHECK enum remixdb_status merge_seek(struct merge *m, struct kref key);           // first key >= key
MUST_CHECK enum remixdb_status merge_seek_for_prev(struct merge *m, struct kref key);  // last key <= key
MUST_CHECK enum remixdb_status merge_seek_last(struct merge *m);
MUST_CHECK enum remixdb_status merge_next(struct merge *m);  // must be valid
MUST_CHECK enum remixdb_status merge_prev(struct merge *m);  // must be valid
bool merge_next_held(struct merge *m);                       // private to merge_next_fast
bool merge_prev_held(struct merge *m);                       // private to merge_prev_fast
// A merge_next that needs no epoch: a step of the REMIX within its segment. It requires that no newer key can come
// before the next one, or that the next one's block is held. Else it returns false and moves nothing.
static inline bool merge_next_fast(struct merge *m) {
  if (unlikely(m->near != MERGE_ALONE)) return m->near == MERGE_BESIDE && merge_next_held(m);
  if (unlikely(!remix_next_fast(&m->remix))) return false;
  m->remix_key.ptr = NULL;
  return true;
}
// The same for merge_prev.
static inline bool merge_prev_fast(struct merge *m) {
  if (unlikely(m->near != MERGE_BACK_ALONE)) return m->near == MERGE_BACK_BESIDE && merge_prev_held(m);
  if (unlikely(!remix_prev_fast(&m->remix))) return false;
  m->remix_key.ptr = NULL;
  return true;
}
// The same as nr times merge_next, until it is not valid. Keys between two newer keys are counted, not visited, except
// in the segment that the second one belongs to.
MUST_CHECK enum remixdb_status merge_skip(struct merge *m, uint32_t nr);
// The current record, one that the merge stops at, expired at this time (ms). Moves on as merge_next does, in the
// direction of the last move, and may leap over such records (remix/lapsed.h). lapse: zeroed at first; as long as the
// caller passes such records, one after the other.
MUST_CHECK enum remixdb_status merge_pass_expired(struct merge *m, struct remix_lapse *lapse, uint64_t expiry,
                                                  uint64_t now_ms);
// Whether the current record expires. Does not read it.
static inline bool merge_expires(const struct merge *m) {
  if (likely(m->at == MERGE_PARTS)) return (m->remix.sel[m->remix.at] & REMIX_EXPIRES) != 0;
  return ((m->at == MERGE_YOUNG ? m->young_rec.kind : m->mem[m->at].ver->kind) & KV_EXPIRES) != 0;
}
// The current record. It is never a tombstone, and never a memtable's record that has expired (merge_clock). It holds
// until the merge moves. A failure changes nothing: the position stays, and the caller may ask again or move on.
MUST_CHECK enum remixdb_status merge_record(struct merge *m, struct kv_rec *rec_out);
// The next records of the young views, or of the partitions' older views (remix_next_records). Some of them may be
// hidden by newer streams. Inside an epoch.
static inline uint32_t merge_next_records(const struct merge *m, bool young, struct kv_rec *out, uint32_t most) {
  if (young && (!m->has[MERGE_YOUNG] || m->young_state != MERGE_YOUNG_KNOWN)) return 0;
  if (!young && m->parts_later) return 0;
  const bool own = !(m->same & 1u << (young ? MERGE_YOUNG : MERGE_PARTS));
  return remix_next_records(young ? &m->young : &m->remix, own, out, most);
}
// The value of the partitions' record was read away from the one before it (remix/value_debt.h).
static inline void merge_add_value_debt(const struct merge *m, uint64_t bytes) {
  remix_add_value_debt(m->remix.x, m->remix_page.page, m->remix.seg, bytes);
}
// The same as merge_record if it needs no lookup and so no epoch; else false.
static inline bool merge_record_held(const struct merge *m, struct kv_rec *rec_out) {
  return likely(m->at == MERGE_PARTS) && remix_record_held(&m->remix, rec_out);
}
#endif
