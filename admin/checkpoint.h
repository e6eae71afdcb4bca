// SPDX-License-Identifier: Apache-2.0
//
// A second store, made from a store's files.
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "store/ref.h"

// Makes a separate store in the directory `path`, with the records that the ref reads at this moment. Tables and
// REMIXes become hard links, or copies if a link fails (on another file system, for example). The memtables' records go
// into a new log. Writers go on meanwhile. Not in an epoch.
//
// Fails with REMIXDB_EXISTS if the directory holds a file of a store. Fails with REMIXDB_ABORTED if the ref's progress
// function gives up. When the call returns REMIXDB_OK, the new store is durable. A call that fails removes the files
// that it made; a directory that existed stays.
//
// Crash safety: the call makes the mark CHECKPOINTING before any other file, and removes the mark after it has made
// CURRENT. Without CURRENT the directory is no store and cannot be opened. destroy_store may remove it, and another
// checkpoint may replace it.
MUST_CHECK enum remixdb_status checkpoint_make(struct xdb_ref *r, const char *path);
#endif
