// SPDX-License-Identifier: Apache-2.0
//
// The parts of a store besides its data: limits, I/O, caches, threads. The opening sets them up in the order of this
// header, in one thread, and ends them if a later step fails. The closing ends them, too.
//
// Invariant
//   U1  Until the log is replayed, nobody asks for idle work or for a round. Both use the super and the log. Before the
//       replay there is neither; the replay frees a super as soon as it has another one. Workers only run the tasks of
//       the opening. So the block cache, the account of scans and the REMIXes call nobody before setup_asks.
#ifndef STORE_SETUP_H
#define STORE_SETUP_H

#include "store/state.h"

// Makes a store with its locks and epochs, and nothing else. After this call, setup_end_threads and setup_destroy may
// be called after any step. Returns NULL on failure (REMIXDB_NOMEM).
struct xdb *setup_create(const struct remixdb_opts *o, struct env *env);
#define SIZE_MB_MOST ((SIZE_MAX >> 20) / 4 < REMIXDB_SIZE_MB_MAX ? (SIZE_MAX >> 20) / 4 : REMIXDB_SIZE_MB_MAX)
// Checks the options and derives the limits from them. Touches no file. Fails with REMIXDB_INVALID.
MUST_CHECK enum remixdb_status setup_limits(struct xdb *x, const struct env_dir *at, const char *name);
// Sets up I/O, table files and block cache. Fails with REMIXDB_INVALID if the engine is unknown.
MUST_CHECK enum remixdb_status setup_services(struct xdb *x);
// Starts the workers and the thread that syncs. With read_only it starts none.
MUST_CHECK enum remixdb_status setup_threads(struct xdb *x);
// The log is replayed, and the super is the store's first: from now on the cache and readers may ask workers for
// something (U1). The opening thread calls it; no other one uses the store. Does nothing without workers.
void setup_asks(struct xdb *x);
// Derives the number of partitions that a scan merge takes from the number of workers.
void setup_scan_merges(struct xdb *x, uint32_t nr_workers);
// Returns how many table files may be open if the user wants so many: fewer if the process may not have that many
// descriptors. Tells the logger then.
uint32_t setup_table_files(struct xdb *x, uint32_t asked);
#define OPEN_FILES_MIN 16u
// Ends the threads and waits for them. The caller does so before it frees anything that they use, for example the log.
void setup_end_threads(struct xdb *x);
// Frees the store. The log is closed.
void setup_destroy(struct xdb *x);
#endif
