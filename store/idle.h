// SPDX-License-Identifier: Apache-2.0
//
// Idle work is done by workers when no round needs them, so that no writer or reader has to wait for it.
//
// Writers would wait while the system clears new memory, and while it reserves room on disk for the log's files.
// Readers that fill the block cache would wait for memory, too. Workers get memory and room ahead of time.
//
// Dropping the last reference to a replaced version deletes its tables, which takes the system milliseconds per file.
// Readers must not pay that, so an idle worker, or the end of the next round, destroys the version. Without workers the
// reader destroys it at once.
#ifndef STORE_IDLE_H
#define STORE_IDLE_H

#include "store/state.h"

// Wakes a worker for idle work. Any thread; does not wait.
void idle_ask(struct xdb *x);
// The same after so many nanoseconds.
void idle_later(struct xdb *x, uint64_t ns);
// The store is busy (store/memory.h); idle work lets it come to rest later. A round's thread, or a writer without
// workers: outside of any epoch, without locks. May wait for epochs.
void idle_busy(struct xdb *x);
// After memory_grows: a worker makes the store busy, or, without workers, the caller does so. The same callers.
void idle_grow(struct xdb *x);
// A version is about to be the store's: if it has records that expire, a worker looks at it from time to time.
void idle_expiry(struct xdb *x, const struct version *v);
// A version was installed, or an edit: a worker looks for garbage to merge when the store may be at rest
// (store/garbage_look.h). Any thread; does not wait.
void idle_garbage(struct xdb *x);
// The store is open and takes writes: a worker looks for deletions in the memtable that hide much, when the store is at
// rest (store/hiding.h). Does nothing without workers.
void idle_hiding(struct xdb *x);
// Returns the bytes that the active memtable takes. *wanted_out: how many bytes should be ready for the memtable's
// growth and for the next memtable. slot: the caller's slot, outside of any epoch.
size_t idle_memory(struct xdb *x, struct epoch_slot *slot, size_t *wanted_out);
// The round of a full memtable begins: gets chunks ready that the active memtable may take meanwhile. While workers are
// busy, writers would have to get it. slot: as for idle_memory.
void idle_fill(struct xdb *x, struct epoch_slot *slot);
// super_unref for readers: does not wait for the removal of files. If it drops the last reference to a replaced
// version, it wakes a worker. Any thread, outside of any epoch; NULL is allowed.
void xdb_super_drop(struct xdb *x, struct super *v);
// Does the same for a version to which the caller holds a reference.
void xdb_version_drop(struct xdb *x, struct version *v);
// Destroys the versions that readers left. Any thread, outside of any epoch.
void idle_destroy(struct xdb *x);
// Like idle_destroy, and waits for the versions that other threads are destroying.
void idle_destroy_wait(struct xdb *x);
#endif
