// SPDX-License-Identifier: Apache-2.0
//
// What workers do when they have nothing else to do: what those who write and read are not to wait for.
//
// Writers are held up by memory that the system has to clear first, up to a fifth of the time of a write, and by the
// log's files, room for which may take the system 30 milliseconds: both are fetched and made ahead.
//
// Readers keep a view, and with it a version, for as long as they need it. Whose reference is the last one, of a
// version that has been replaced, would have to wait until its tables are gone: 5 to 20 milliseconds for each of 46 MB,
// since the system takes its pages and blocks back when it is closed. So the version is left to a worker that is idle,
// or to the end of the next round. Without workers it goes at once.
#ifndef STORE_IDLE_H
#define STORE_IDLE_H

#include "store/state.h"

// There may be something to fetch or make ahead. Any thread; does not wait.
void idle_ask(struct xdb *x);
// Bytes of the active memtable, and what should be kept for the next ones. slot: the caller's, outside.
size_t idle_memory(struct xdb *x, struct epoch_slot *slot, size_t *wanted_out);
// super_unref for whoever reads: does not wait for files. With the last reference of a version that was replaced it
// takes the workers' lock for a moment, to wake one. Any thread, outside of any epoch; NULL is allowed.
void xdb_super_drop(struct xdb *x, struct super *v);
// Ends the versions that are left to workers. Any thread, outside of any epoch.
void idle_destroy(struct xdb *x);
// The same, and waits for those that workers are at.
void idle_destroy_wait(struct xdb *x);
#endif
