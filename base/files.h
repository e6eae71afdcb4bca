// SPDX-License-Identifier: Apache-2.0
//
// The names of the files in a store's directory. The store never touches a file with any other name.
#ifndef FILES_H
#define FILES_H

#include "base/env.h"

#define FILES_CURRENT "CURRENT"  // names the files that make up the store
#define FILES_CURRENT_TMP "CURRENT.tmp"
#define FILES_LOCK "LOCK"        // locked while the store is open
#define FILES_RESERVE "RESERVE"  // keeps room for the time when the disk is full
// A mark: a new store is being made. Files beside it may be thrown away.
#define FILES_CREATING "CREATING"
// A mark: a checkpoint is being made. Without CURRENT the directory is no store, and no place for a new one.
#define FILES_CHECKPOINTING "CHECKPOINTING"

#define FILES_LONGEST "18446744073709551615.remix"  // no file of a store has a longer name

// Directories of a repair, inside the store's directory. FILES_REPAIR_NEW is the new store while the repair builds it.
// FILES_REPAIR_DONE is the complete new store while the repair moves the old files aside. FILES_REPAIR_IN is the same
// store while the repair moves its files into the store's directory. While one of the last two exists, the store cannot
// be opened.
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
  FILES_IS_VALUE,
  FILES_IS_PACK,
  FILES_IS_RESERVE
};

// number_out (may be NULL): the number in the name of a log segment, table, REMIX, value file or pack.
enum files_kind files_kind_of(const char *name, uint64_t *number_out);
static inline bool files_is_mark(enum files_kind k) { return k == FILES_IS_CREATING || k == FILES_IS_CHECKPOINTING; }
// Whether the name begins with a file number of CURRENT.
static inline bool files_is_numbered(enum files_kind k) {
  return k == FILES_IS_TABLE || k == FILES_IS_REMIX || k == FILES_IS_VALUE || k == FILES_IS_PACK;
}
static inline bool files_holds_data(enum files_kind k) { return k == FILES_IS_LOG || files_is_numbered(k); }
void files_table_name(char *buf, uint64_t number);  // "000001.sst"; buf of 32 bytes
void files_remix_name(char *buf, uint64_t number);  // "000001.remix"
void files_value_name(char *buf, uint64_t number);  // "000001.val"
void files_pack_name(char *buf, uint64_t number);   // "000001.pack"

// The ids that the files of a store state: its own one, and the origins. A checkpoint links files of its source, and
// the source's id is an origin of the checkpoint. origins: ascending, without `own`.
struct files_ids {
  uint64_t own;
  const uint64_t *origins;
  uint32_t nr;
};
// Tells whether `id` is among them.
bool files_ids_have(const struct files_ids *ids, uint64_t id);

// A store's file in a directory.
struct files_entry {
  enum files_kind kind;
  uint64_t number;
  char name[40];
};
// Lists the store's files in no order. The caller frees *list_out with mem_free; it is NULL when there are none.
MUST_CHECK enum remixdb_status files_list(const struct env_dir *dir, struct files_entry **list_out, size_t *nr_out);
// Tells whether dir/name is a directory.
MUST_CHECK enum remixdb_status files_has_dir(const struct env_dir *dir, const char *name, bool *out);
// Tells whether dir/name is an empty file, as a mark or LOCK is. A file of another program may have the same name.
MUST_CHECK enum remixdb_status files_has_mark(const struct env_dir *dir, const char *name, bool *out);
// Tells whether an unfinished repair must end before the store can be opened.
MUST_CHECK enum remixdb_status files_repair_pending(const struct env_dir *dir, bool *out);
// Removes the regular files with a store's names from the directory dir/name, then the directory if it is empty. Absent
// is success; a file of that name stays.
MUST_CHECK enum remixdb_status files_remove_dir(const struct env_dir *dir, const char *name);
// Makes the name of the directory durable by a sync of its parent. made: the name is new, so every failure counts. If
// the name is not new, the call succeeds also if this user cannot open the parent.
MUST_CHECK enum remixdb_status files_sync_parent(struct env *env, const char *dir, bool made);
#endif
