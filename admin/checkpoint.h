// SPDX-License-Identifier: Apache-2.0
//
// A store made of another store's files.
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "store/ref.h"

// Makes the directory `path` a store of its own, with the records that the ref reads at this moment. Tables and REMIXes
// become hard links, or copies where a link fails (on another file system, for example). The memtables' records go into
// a log of its own. Writers go on meanwhile. Not in an epoch.
//
// The directory must be absent, or hold no file of a store (REMIXDB_EXISTS). REMIXDB_OK: the store is durable. After a
// failure (REMIXDB_ABORTED: the ref's progress function gave up) the call removes its files again; a directory that
// existed stays.
//
// Crash safety: the mark CHECKPOINTING comes before the first file and goes after CURRENT. Without CURRENT the
// directory is no store and cannot be opened. It may be destroyed, or replaced by another checkpoint.
MUST_CHECK enum remixdb_status checkpoint_make(struct xdb_ref *r, const char *path);
#endif
