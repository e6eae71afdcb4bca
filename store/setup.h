// SPDX-License-Identifier: Apache-2.0
//
// The parts of a store besides its data: limits, I/O, caches, threads. Opening sets them up in the order of this
// header, in one thread, and ends them when a later step fails; closing ends them, too.
#ifndef STORE_SETUP_H
#define STORE_SETUP_H

#include "store/state.h"

// A store with its locks and epochs, and nothing else. From here on setup_end_threads and setup_destroy are safe at any
// step. NULL: REMIXDB_NOMEM.
struct xdb *setup_create(const struct remixdb_opts *o, struct env *env);
// Checks the options and derives the limits from them. Touches no file. Fails with REMIXDB_INVALID.
MUST_CHECK enum remixdb_status setup_limits(struct xdb *x, const struct env_dir *at, const char *name);
// I/O, table files, block cache. REMIXDB_INVALID: an unknown engine.
MUST_CHECK enum remixdb_status setup_services(struct xdb *x);
// Workers, and the thread that syncs. Not with read_only.
MUST_CHECK enum remixdb_status setup_threads(struct xdb *x);
// Ends the threads and waits for them. Before anything that they use, the log first of all, goes.
void setup_end_threads(struct xdb *x);
// Frees the store. The log is closed.
void setup_destroy(struct xdb *x);
#endif
