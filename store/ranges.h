// SPDX-License-Identifier: Apache-2.0
//
// Range deletion, alone or in a batch: all keys of a range are gone at one moment.
//
// A range with few keys, or with few beside those of the partitions that it cuts, is deleted key by key: a tombstone
// for each, as one group of writes. That needs no round and no new CURRENT. Otherwise a round edits the version
// (compact/erase.h), and the group has the record KV_RANGE besides.
//
// Invariants
//   D1  One moment. The leaves of all ranges are locked in the active memtable. Each key there that is not deleted gets
//       a tombstone. So does each key of the ranges that the frozen memtable has, or that an edit leaves in tables.
//       Then, under the log's lock, the group is logged, its versions are stamped, the super is replaced if there is an
//       edit, and the group's last number is published. The super's `since` is that number (X2).
//   D2  Nothing else changes below. The group is committed only on top of the super from whose frozen memtable and
//       version the tombstones were gathered. Otherwise it begins again. A merge that has read its key below the active
//       memtable commits only on top of the super that it has read.
//   D3  After a crash. KV_RANGE stands in the log before the other records of its group, in the segment of the active
//       memtable. A replay gives a tombstone to each key of the range that the memtable has then. Keys of the frozen
//       memtable and of tables have records of their own in the group: the frozen memtable may be in tables when the
//       segment is replayed. `erased` of the version is the number of the last KV_RANGE whose edit it has. The replay
//       makes the edits of all later ones.
//   D4  CURRENT gets an edit only when the log is durable up to its number. If CURRENT cannot be written for lack of
//       room, the edit stays in memory, and each later install contains it. Until then no file goes that the older
//       CURRENT names (rounds.unsaved).
//   D5  Nothing comes back. Rounds begin with the edited version, because edits and rounds exclude each other. A round
//       hands a record back only if the active memtable has nothing of its key, and there D1 has put a tombstone. A
//       merge of tables drops erased entries (remix/remix.h, R6).
//   D6  Gaps (wh/gap.h). A memtable is older than an edit of the data below it. So a gap that a reader of the edited
//       version finds does not hold for a reader before the edit: its `since` is at least `erased`.
//
// Waiting. A group with an edit waits until the round that runs has ended; scan merges end early for it. Writers go on,
// except those of the ranges' keys while the group is linked.
#ifndef STORE_RANGES_H
#define STORE_RANGES_H

#include "store/batch.h"
#include "store/range_group.h"
#include "store/ref.h"

#define RANGES_FEW 4096u  // xdb.ranges
#define RANGES_MOST 32768u
#define RANGES_CUT_FEW 1024u
#define RANGES_ENTRIES 64u  // entries of an index that are written again in half the time of one tombstone

// Deletes the keys of a tree in [from, to); to.ptr NULL: no end. An empty range is no error. On a full disk it works as
// a delete does. Fails as xdb_put does, or as the reads of its borders do.
// named: in the spaces' tree, fails with REMIXDB_GONE if the space of `from` has no name.
MUST_CHECK enum remixdb_status ranges_delete(struct xdb_ref *r, uint32_t tree, struct kref from, struct kref to,
                                             bool named);
// The same for all keys that begin with the prefix, whether their space has a name or not.
MUST_CHECK enum remixdb_status ranges_delete_prefix(struct xdb_ref *r, uint32_t tree, struct kref prefix);
// Commits a group that is complete, and ends it, also on failure. Fails as xdb_write does, or with REMIXDB_ABORTED if
// g->check found a conflict. r has no super of its own.
MUST_CHECK enum remixdb_status ranges_commit(struct xdb_ref *r, struct range_group *g);
// xdb_write of a batch with ranges, for a ref that takes writes.
MUST_CHECK enum remixdb_status ranges_write(struct xdb_ref *r, const struct xdb_batch *b);
#endif
