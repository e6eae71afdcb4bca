// SPDX-License-Identifier: Apache-2.0
//
// Transactions: optimistic and serializable.
//
// A transaction reads the store at the moment at which it began, S, through a super that it keeps, as a snapshot does.
// Its writes stay in its own memory (store/overlay.h), and its reads see them. It notes the keys that it gets and the
// ranges that its iterators pass (store/readset.h). The commit finds out whether another write, with a number above S,
// has come to one of these. If none has, the commit writes all of the transaction as one batch.
//
// The commit (store/txn_check.h has the checks; xdb.c, write_many_once, the steps)
//   1. Load the super: the active memtable A, the frozen one F, the version V. If V may hold writes after S, compare
//      the reads in V with the snapshot, outside of any epoch and lock: this may read the disk. Then begin again.
//   2. Check that the spaces that were read have names in V. Check F for versions after S, if it may hold any. Nothing
//   is committed in a frozen memtable (X3).
//   3. Walk over the reads and the writes in ascending order of key. In A, lock the leaf of each key and of each
//      part of a range that was read, and link each write as pending. All locked leaves stay locked (wh_many). Check
//      each key that was read for a committed version in A after S as soon as its leaf is locked.
//   4. Check A for committed versions after S in the ranges that were read.
//   5. Take the log's lock. If the log no longer belongs to A, or the store's super has another `since`, take all back
//      and begin again. Else log, stamp and publish, as for a batch.
// A transaction that has deleted ranges commits as a group with ranges (store/ranges.h), which has the same steps. In
// step 3 it also locks all leaves of its ranges, and links tombstones for all keys there. It gathers those that are
// below A before, and step 5 begins again if the super is another one than then.
// After a conflict in 1 to 4 the pending versions are taken back, and nothing was written.
//
// Why this is serializable: each transaction that commits writes, and each other write, takes effect at its number C,
// under the log's lock. It is enough that whatever the transaction has read at S is the same at C - 1.
//   T1  A write of a number in (S, C) to a key that was read was committed before step 5. At that time it was in A, F
//       or V.
//       - In V: then the super's `since` is not below the write's number (X2, X4), so it is above S, and step 1 has
//         compared this V. A version that became the store's later has another `since`, which step 5 notices; or a
//         round installs it after step 5 has looked, and a round changes no record.
//       - In F: F was frozen when A became the active memtable, and A still is in step 5. So F was complete in step 2.
//       - In A: its writer held the leaf's lock from the link to the stamp. Either it ended before step 3 took this
//         lock, so step 3 or 4 sees it. Or it links after the transaction has given the lock back, so its number is
//         above C. No pending version of another writer is in a leaf whose lock the transaction holds.
//   T2  Phantoms: a leaf covers a range of keys, those that do not exist included. Step 3 locks all leaves that a
//       range reaches into. A new key in the range needs one of these leaves. A leaf's range never changes, and a leaf
//       that is locked does not die (W1). A split in step 3 may leave its right half unlocked; the walk goes on from
//       the key that it has linked, and locks that half in turn.
//   T3  Write skew: two transactions each read a key that the other writes. The second one to lock the leaf of such a
//       key sees the other's stamped version in step 3 or 4, or finds it linked nowhere because the other has gone
//       back.
//   T4  No deadlock: leaves are locked in ascending order, as by batches; the log's lock comes last.
//   T5  A transaction that wrote nothing takes effect at S, which is the moment of a snapshot.
//   T6  Lost updates and dirty reads: an update that was based on a read is T1; pending versions are seen by nobody.
//   T7  The deletion of a range replaces the super under the log's lock, with a `since` that is its number; an ingest
//       does, too. So both are noticed in step 1 or in step 5.
//       The deletion of a range in a transaction reads nothing. It takes effect at C, as a whole: D1 and D2 of
//       store/ranges.h hold for its group. A read in the range before the deletion is checked as all reads are. In step
//       3, leaves that the deletion has locked are not locked again for a read; step 4 then checks the keys that were
//       read in A, too.
//   T8  A commit that fails or is cut off by a crash is absent as a whole: its records are one frame of the log.
//   T9  Steps 2 and 4 leap over gaps (wh/gap.h) that hold for the transaction's moment and clock. In such a gap no key
//       was there at S, and no put has come since: it would have ended the gap before its commit (G2, G3), in A under
//       a leaf's lock that the transaction holds now. Deletions in the gap have changed nothing.
// Rounds write no number of their own: a record that a round hands back to A keeps its number, and one that it drops
// (an old version, a tombstone with nothing below it) was hidden. A key that was deleted after S and whose tombstone a
// round has dropped is absent in V and there in the snapshot: step 1 compares both. One that was put and deleted after
// S, and is gone without a trace, was absent at S, too.
//
// V may hold writes after S if the super's `since` is above S.
//
// Threads: one thread at a time uses a transaction, its refs and their iterators. Transactions that read and write
// different leaves commit side by side. A plain put or get does nothing for transactions.
#ifndef STORE_TXN_H
#define STORE_TXN_H

#include "store/txn_state.h"

// Begins a transaction at this moment. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status xdb_txn_begin(struct xdb *x, struct xdb_txn **out);
// Returns the transaction's ref of a space, which it makes when it is first needed. sp NULL: the unnamed space. Fails
// with REMIXDB_NOMEM, or with REMIXDB_GONE if the space was dropped.
MUST_CHECK enum remixdb_status xdb_txn_ref(struct xdb_txn *t, struct xdb_space *sp, bool untracked,
                                           struct xdb_ref **out);
// Ends the transaction, also on failure. Fails with REMIXDB_ABORTED (a conflict), REMIXDB_NOMEM, or as xdb_write does.
MUST_CHECK enum remixdb_status xdb_txn_commit(struct xdb_txn *t);
void xdb_txn_abort(struct xdb_txn *t);
MUST_CHECK enum remixdb_status xdb_txn_savepoint(struct xdb_txn *t);
// Fails with REMIXDB_INVALID if there is no savepoint.
MUST_CHECK enum remixdb_status xdb_txn_rollback(struct xdb_txn *t);
#endif
