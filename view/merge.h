// SPDX-License-Identifier: Apache-2.0
//
// The merge behind an iterator: at most four sorted streams, newest first: the active memtable, the frozen one, the
// partitions' young views (one after the other), the partitions (one REMIX after the other). It stops at keys that
// exist at its moment: a key in a newer stream hides the same key in older ones. What is deleted in the partitions is
// passed by their selectors; a tombstone of a newer stream is met, for it may hide a key of theirs.
//
// Keys are compared only where the next key of a newer stream may come before the partitions' next: while these are at
// their end, or the newer key is known to belong to a segment further on, a step is a step of the REMIX: nothing is
// read or compared. That is told by a search in all anchors, once for each newer key: for a skip at once, for steps
// when they have passed a whole segment and not met it. The young views are one stream of their own, which goes on from
// partition to partition by itself: it may be further than the partitions' is, for its key is greater then.
//
// A run of tombstones is walked over once. What the merge has passed it tells the memtable whose tombstones hid it, and
// who comes to the place later leaps over it (wh/gap.h): a seek to where the gap ends, before it has searched anything
// older. What the active memtable hides is its gap whatever lies below; what the frozen one hides is its gap where the
// active one had no part in it.
//
// One thread. From a seek until merge_set or merge_park the caller is inside the domain of the cursors (wh_recycle),
// where there is one. Seeks, merge_set and merge_park are made inside an epoch. Between calls it stands outside, for
// the blocks under it are pinned and memtables live as long as their views; so a step or a record needs an epoch only
// where a block has to be looked up, or a memtable's end, and enters it for just that when it was lent the means
// (merge_use_epoch), else it is the caller's to be inside.
#ifndef MERGE_H
#define MERGE_H

#include "remix/cursor.h"
#include "view/version.h"
#include "wh.h"

enum { MERGE_ACTIVE, MERGE_FROZEN, MERGE_YOUNG, MERGE_PARTS, MERGE_NONE };

#define MERGE_STEPS 256u  // so many keys are passed in one epoch at most

enum merge_near {
  MERGE_FAR,     // all streams
  MERGE_BESIDE,  // the current key is the partitions' alone, and a newer stream's key may come before their next one
  MERGE_ALONE,   // it cannot, up to the end of the segment
};

struct merge {
  struct wh_cursor mem[2];  // [MERGE_ACTIVE], [MERGE_FROZEN]
  bool has[3];              // whether there is such a memtable, or any young view
  const struct version *version;
  uint32_t part;  // the partition the REMIX cursor is in
  struct remix_cursor remix;
  struct kref remix_key;  // of the REMIX cursor's entry; ptr NULL: not read yet
  uint32_t at;            // the stream that holds the current key; MERGE_NONE: not valid
  uint32_t same;          // bit i: stream i stands on the same key
  enum merge_near near;   // what a step forward has to look at
  bool backward;          // the streams not at the current key stand before it, not behind it
  // the newer streams alone
  uint32_t new_at, new_same;  // as at and same
  struct kref new_key;
  // Where new_key belongs, when that was looked for: entries of segments before `clear`, of this partition, are less,
  // those of segments behind it are not. Else 0. Forward only.
  uint32_t clear;
  bool clear_found;
  uint32_t since;  // the segment of the REMIX in which new_key was first compared; UINT32_MAX: it was not
  struct remix_cursor young;
  uint32_t young_at;        // the partition that `young` is in, or was last, as an index of version->young
  struct kv_rec young_rec;  // of its entry, when it is valid
  // the caller's, or NULL
  struct epoch *epoch;
  struct epoch_slot *slot;
  bool inside;  // in the epoch of a seek
  bool sought;  // in a seek: from sought_key (ptr NULL: from the end of all) on everything has been passed
  struct kref sought_key;
  uint32_t steps;  // keys passed in it
};

// queue: for read-ahead; NULL: none.
void merge_init(struct merge *m, struct blkio_queue *queue);
void merge_fini(struct merge *m);
// Lends it the slot in which its callers enter their epochs, and which they have left when they call merge_next,
// merge_prev, merge_skip or merge_record. A seek with a long way (over keys that are deleted) leaves and enters again
// after every MERGE_STEPS keys, and holds up nobody's reclamation: pointers that the caller has got in the epoch of the
// call do not survive it.
void merge_use_epoch(struct merge *m, struct epoch *epoch, struct epoch_slot *slot);
// What it reads from now on; frozen may be NULL. Not valid afterwards. All of it must stay alive until the next
// merge_set that does not name it, or merge_park: the version that was set before must still be there when another is
// set (blocks of its tables are pinned), but the memtables need not be. A call with the same version keeps what is
// pinned, so that seeks near each other find it. Inside an epoch.
void merge_set(struct merge *m, const struct wh *active, const struct wh *frozen, const struct version *version,
               uint64_t moment);
// Releases blocks and forgets its sources, which may then go. Inside an epoch.
void merge_park(struct merge *m);

static inline bool merge_valid(const struct merge *m) { return m->at != MERGE_NONE; }
// After a failure it is not valid.
MUST_CHECK enum remixdb_status merge_seek(struct merge *m, struct kref key);           // first key >= key
MUST_CHECK enum remixdb_status merge_seek_for_prev(struct merge *m, struct kref key);  // last key <= key
MUST_CHECK enum remixdb_status merge_seek_last(struct merge *m);
MUST_CHECK enum remixdb_status merge_next(struct merge *m);  // must be valid
MUST_CHECK enum remixdb_status merge_prev(struct merge *m);  // must be valid
bool merge_next_held(struct merge *m);                       // private to merge_next_fast
// The same as merge_next when that is a step of the REMIX within its segment, and no newer key can come before the next
// one or that one's block is held; else false, and nothing has moved. Needs no epoch.
static inline bool merge_next_fast(struct merge *m) {
  if (unlikely(m->near != MERGE_ALONE)) return m->near == MERGE_BESIDE && merge_next_held(m);
  if (unlikely(!remix_next_fast(&m->remix))) return false;
  m->remix_key.ptr = NULL;
  return true;
}
// As so many merge_next, until it is not valid. What lies between two newer keys is counted, not visited, but for the
// segment that the second one belongs to.
MUST_CHECK enum remixdb_status merge_skip(struct merge *m, uint32_t nr);
// The current record (never a tombstone); holds until it moves. A failure changes nothing: it stands where it stood,
// may be asked again, and moves on from there.
MUST_CHECK enum remixdb_status merge_record(struct merge *m, struct kv_rec *rec_out);
// The same when nothing has to be looked up for it; else false. Needs no epoch.
static inline bool merge_record_held(const struct merge *m, struct kv_rec *rec_out) {
  return likely(m->at == MERGE_PARTS) && remix_record_held(&m->remix, rec_out);
}
#endif
