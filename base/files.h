// SPDX-License-Identifier: Apache-2.0
//
// The files of a store's directory, by their names. What has another name is not the store's, and is never touched.
#ifndef FILES_H
#define FILES_H

#include "base/env.h"

#define FILES_CURRENT "CURRENT"  // the version: what the store is made of
#define FILES_CURRENT_TMP "CURRENT.tmp"
#define FILES_LOCK "LOCK"          // held while the store is open
#define FILES_RESERVE "RESERVE"    // room on disk, with nothing in it
#define FILES_CREATING "CREATING"  // there while a new store is being made: what is found beside it may be thrown away
#define FILES_CHECKPOINTING \
  "CHECKPOINTING"  // there while a checkpoint is being made: without CURRENT this is no store, and no place for a new
                   // one

#define FILES_LONGEST "18446744073709551615.remix"  // no name of a store's file is longer

// A repair's directories within the store's: being built; complete, and what it replaces being moved aside; being moved
// in. While one of the last two is there the store is not opened.
#define FILES_REPAIR_NEW "repair.new"
#define FILES_REPAIR_DONE "repair.done"
#define FILES_REPAIR_IN "repair.in"

enum files_kind {
  FILES_OTHER,
  FILES_IS_CURRENT,
  FILES_IS_CURRENT_TMP,
  FILES_IS_LOCK,
  FILES_IS_CREATING,
  FILES_IS_CHECKPOINTING,
  FILES_IS_LOG,
  FILES_IS_TABLE,
  FILES_IS_REMIX,
  FILES_IS_RESERVE
};

// number_out (may be NULL): of a log segment's, table's or REMIX's name.
enum files_kind files_kind_of(const char *name, uint64_t *number_out);
static inline bool files_is_mark(enum files_kind k) { return k == FILES_IS_CREATING || k == FILES_IS_CHECKPOINTING; }
static inline bool files_holds_data(enum files_kind k) {
  return k == FILES_IS_LOG || k == FILES_IS_TABLE || k == FILES_IS_REMIX;
}
void files_table_name(char *buf, uint64_t number);  // "000001.sst"; buf of 32 bytes
void files_remix_name(char *buf, uint64_t number);  // "000001.remix"

// The store's files in a directory, in no order.
struct files_entry {
  enum files_kind kind;
  uint64_t number;
  char name[40];
};
// *list_out is the caller's to mem_free (NULL when there is none).
MUST_CHECK enum remixdb_status files_list(const struct env_dir *dir, struct files_entry **list_out, size_t *nr_out);
// Whether there is a directory dir/name.
MUST_CHECK enum remixdb_status files_has_dir(const struct env_dir *dir, const char *name, bool *out);
// Whether there is an empty file dir/name: a mark, or LOCK. Other programs' files may have such a name.
MUST_CHECK enum remixdb_status files_has_mark(const struct env_dir *dir, const char *name, bool *out);
// Whether a repair has to be ended before the store is opened.
MUST_CHECK enum remixdb_status files_repair_pending(const struct env_dir *dir, bool *out);
// Removes the regular files with a store's names in dir/name, and that directory when nothing else is in it; what is no
// directory stays, absent is success.
MUST_CHECK enum remixdb_status files_remove_dir(const struct env_dir *dir, const char *name);
// Makes the directory's own name durable: a sync of a directory is of the names in it. `made`: the name is new, and
// must be made durable; otherwise its parent may also be a directory that only others can open.
MUST_CHECK enum remixdb_status files_sync_parent(struct env *env, const char *dir, bool made);
#endif
