// SPDX-License-Identifier: Apache-2.0
//
// A store made of another one's files, and the end of a store.
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "store/ref.h"

// Makes the directory `path` a store of its own that holds what the ref reads at this moment. Tables and REMIXes are
// hard links (copies where links cannot be made, on another file system for one); what the memtables hold is written to
// a log of its own. It must not exist, or hold no file of a store (REMIXDB_EXISTS). All is durable when it returns
// REMIXDB_OK; on failure (REMIXDB_ABORTED: the progress function of the ref gave it up) nothing is left, but a
// directory that was there stays. Writers go on meanwhile. Not in an epoch.
//
// Crash safety: CHECKPOINTING is there before the first file and goes after CURRENT. Without CURRENT what is beside it
// is no store, and is not opened; it may be destroyed, or replaced by another checkpoint.
MUST_CHECK enum remixdb_status checkpoint_make(struct xdb_ref *r, const char *path);

// Removes the files of the store in the directory `path`, and the directory when nothing else is in it.
// REMIXDB_NOTFOUND: nothing in it shows that it is a store's (witness_find), and nothing was touched; REMIXDB_LOCKED.
// CURRENT goes first, unless nothing else shows whose the directory is: what a crash leaves is no store, is never taken
// for an empty one, and can be destroyed again.
MUST_CHECK enum remixdb_status checkpoint_destroy(struct env *env, const char *path);
#endif
