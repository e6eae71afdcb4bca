// SPDX-License-Identifier: Apache-2.0
#include "admin/witness.h"

#include "log/format.h"
#include "remix/format.h"
#include "table/format.h"
#include "value/format.h"
#include "view/current.h"

// Reads the first 8 bytes of a file, or the last 8 bytes. *size_out: the file's size. It is also 0 if the file has been
// removed or truncated since it was listed, and also 1 for a directory. If *size_out is below 8, the call has read
// nothing.
static enum remixdb_status peek(const struct env_dir *dir, const char *name, bool last, uint8_t bytes[8],
                                uint64_t *size_out) {
  struct env_stat st;
  int fd;
  *size_out = 0;
  enum remixdb_status s = env_stat(dir, name, &st);
  const uint64_t size = s != REMIXDB_OK ? 0 : st.is_dir ? 1 : st.size;
  if (s == REMIXDB_OK && size >= 8) s = env_open(dir, name, ENV_READ, &fd);
  if (s == REMIXDB_OK && size >= 8) {
    size_t nr;
    s = env_read_upto(dir->env, fd, name, bytes, 8, last ? size - 8 : 0, &nr);
    env_close_quiet(dir->env, fd);
    if (s == REMIXDB_OK && nr < 8) return s;  // the file was truncated meanwhile
  }
  if (s == REMIXDB_OK) *size_out = size;
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
}

// Tells whether this library, or a newer one, has written the file. A mark counts if it is empty. For every other file
// only the magic number counts, because the rest may be damaged.
static enum remixdb_status is_ours(const struct env_dir *dir, const struct files_entry *e, bool *out) {
  uint8_t magic[8];
  uint64_t size;
  if (files_is_mark(e->kind)) return files_has_mark(dir, e->name, out);
  const enum remixdb_status s = peek(dir, e->name, e->kind == FILES_IS_TABLE || e->kind == FILES_IS_PACK, magic, &size);
  *out = false;
  if (s != REMIXDB_OK || size < sizeof(magic)) return s;
  if (e->kind == FILES_IS_CURRENT) *out = current_is_magic(magic);
  else if (e->kind == FILES_IS_PACK) *out = pack_is_magic(magic);
  else if (e->kind == FILES_IS_VALUE) *out = value_is_magic(magic);
  else if (e->kind == FILES_IS_REMIX) *out = memcmp(magic, REMIX_MAGIC, sizeof(magic)) == 0;
  else *out = load64le(magic) == (e->kind == FILES_IS_LOG ? WAL_MAGIC : FORMAT_SST_MAGIC);
  return REMIXDB_OK;
}

static bool see_other(void *arg, const char *name) {
  bool *other = arg;
  *other = *other || files_kind_of(name, NULL) == FILES_OTHER;
  return !*other;
}

// Tells whether LOCK exists and is empty, and all other files have a store's names and are empty or begin with 8 zeros
// (room that was allocated and not written). Such a directory is the rest of a destroyed store, or of a new store after
// a power cut.
static enum remixdb_status only_blank(const struct env_dir *dir, const struct files_entry *list, size_t nr, bool *out) {
  bool other = false;
  enum remixdb_status s = files_has_mark(dir, FILES_LOCK, out);
  if (s == REMIXDB_OK && *out) s = env_list(dir, see_other, &other);
  *out = *out && !other;
  for (size_t i = 0; i < nr && s == REMIXDB_OK && *out; i++) {
    uint8_t first[8] = {0};
    uint64_t size;
    s = peek(dir, list[i].name, false, first, &size);
    *out = size == 0 || (size >= sizeof(first) && load64le(first) == 0);
  }
  *out = *out && s == REMIXDB_OK;
  return s;
}

// Returns the rank of a kind of file. witness_find looks at ranks 0, 1, 2, ... in this order. Rank 1 has no files: it
// stands for the directories of repairs.
static uint32_t witness_rank(enum files_kind k) {
  return files_holds_data(k) ? 0 : k == FILES_IS_CURRENT ? 2 : files_is_mark(k) ? 3 : 4;
}

enum remixdb_status witness_find(const struct env_dir *dir, const struct files_entry *list, size_t nr,
                                 const char **name_out) {
  static const char *const repairs[] = {FILES_REPAIR_DONE, FILES_REPAIR_IN, FILES_REPAIR_NEW};
  struct err_saved unread = {.status = REMIXDB_NOTFOUND};
  enum remixdb_status s;
  bool found = false;
  for (uint32_t rank = 0; rank < 4; rank++) {
    for (size_t i = 0; i < (rank == 1 ? sizeof(repairs) / sizeof(repairs[0]) : nr); i++) {
      if (rank != 1 && witness_rank(list[i].kind) != rank) continue;
      *name_out = rank == 1 ? repairs[i] : list[i].name;
      s = rank == 1 ? files_has_dir(dir, repairs[i], &found) : is_ours(dir, &list[i], &found);
      if (s == REMIXDB_OK && found) return REMIXDB_OK;
      if (s != REMIXDB_OK) err_save(&unread, s);
    }
  }
  *name_out = FILES_LOCK;
  s = only_blank(dir, list, nr, &found);
  if (s != REMIXDB_OK || found) return s;
  return unread.status == REMIXDB_NOTFOUND ? REMIXDB_NOTFOUND : err_raise(&unread);
}
