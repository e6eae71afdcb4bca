// SPDX-License-Identifier: Apache-2.0
//
// The merge behind an iterator: at most three sorted streams, newest first: the active memtable, the frozen one, the partitions (one REMIX after the
// other). It stops at keys that exist at its moment: a key in a newer stream hides the same key in older ones, tombstones are passed. While both memtables
// are at their end a step is a step of the REMIX: nothing is read or compared.
//
// One thread. Every call that moves it, merge_key and merge_value are made inside an epoch; between calls it stands outside: the memtables and the version must be
// held by the caller, the blocks under it are pinned.
#ifndef MERGE_H
#define MERGE_H

#include "version.h"
#include "wh.h"

enum { MERGE_ACTIVE, MERGE_FROZEN, MERGE_PARTS, MERGE_NONE };

struct merge {
  struct wh_cursor mem[2];        // [MERGE_ACTIVE], [MERGE_FROZEN]
  bool has[2];                    // whether there is such a memtable
  const struct version *version;
  uint32_t part;                  // the partition the REMIX cursor is in
  struct remix_cursor remix;
  struct kref remix_key;          // of the REMIX cursor's entry; ptr NULL: not read yet
  uint32_t at;                    // the stream that holds the current key; MERGE_NONE: not valid
  uint32_t same;                  // bit i: stream i stands on the same key
  bool backward;                  // the streams not at the current key stand before it, not behind it
  uint8_t *key;                   // copy of the current key for a change of direction
  uint32_t key_cap;
};

// queue: for read-ahead; NULL: none.
void merge_init(struct merge *m, struct blkio_queue *queue);
void merge_fini(struct merge *m);
// What it reads from now on; frozen may be NULL. Not valid afterwards.
void merge_set(struct merge *m, const struct wh *active, const struct wh *frozen, const struct version *version, uint64_t moment);
// Releases blocks and forgets its sources.
void merge_park(struct merge *m);

static inline bool merge_valid(const struct merge *m) { return m->at != MERGE_NONE; }
// After a failure it is not valid.
MUST_CHECK enum remixdb_status merge_seek(struct merge *m, struct kref key);           // first key >= key
MUST_CHECK enum remixdb_status merge_seek_for_prev(struct merge *m, struct kref key);  // last key <= key
MUST_CHECK enum remixdb_status merge_seek_last(struct merge *m);
MUST_CHECK enum remixdb_status merge_next(struct merge *m);                            // must be valid
MUST_CHECK enum remixdb_status merge_prev(struct merge *m);                            // must be valid
// The current record (never a tombstone); holds until it moves.
MUST_CHECK enum remixdb_status merge_record(struct merge *m, struct kv_rec *rec_out);
#endif
