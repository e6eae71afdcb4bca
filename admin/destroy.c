// SPDX-License-Identifier: Apache-2.0
#include "admin/destroy.h"

#include "admin/witness.h"
#include "base/dirlock.h"
#include "view/version.h"

// A damaged file in the store's directory is the store's, too.
static enum remixdb_status remove_own(const struct env_dir *dir, const struct files_entry *e,
                                      const struct files_ids *ids) {
  enum version_owner owner;
  const enum remixdb_status s = version_owner(dir, e, ids, &owner);
  return s == REMIXDB_OK && owner != VERSION_FOREIGN ? env_unlink(dir, e->name) : s;
}

enum remixdb_status destroy_files(const struct env_dir *dir, const struct files_entry *list, size_t nr,
                                  const char *last, const struct files_ids *ids) {
  enum { TURN_CURRENT, TURN_OTHERS, TURN_LAST, TURNS };
  enum remixdb_status s = REMIXDB_OK;
  for (int turn = 0; turn < TURNS && s == REMIXDB_OK; turn++) {
    for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
      int own = list[i].kind == FILES_IS_CURRENT ? TURN_CURRENT : TURN_OTHERS;
      if (strcmp(list[i].name, last) == 0) own = TURN_LAST;
      if (own == turn && list[i].kind != FILES_IS_LOCK) s = remove_own(dir, &list[i], ids);
    }
    if (s == REMIXDB_OK && turn != TURN_LAST) s = env_sync_dir(dir);
  }
  return s;
}

static enum remixdb_status remove_all(const struct env_dir *dir, const struct files_entry *list, size_t nr,
                                      const char *witness) {
  static const char *const repairs[] = {FILES_REPAIR_NEW, FILES_REPAIR_DONE, FILES_REPAIR_IN};
  uint64_t own = 0, *origins;
  uint32_t nr_origins;
  enum remixdb_status s = version_ids(dir, &own, &origins, &nr_origins);
  if (s == REMIXDB_NOMEM) return s;
  const struct files_ids ids = {.own = own, .origins = origins, .nr = nr_origins};
  // If CURRENT cannot be read, the files of any store go.
  s = destroy_files(dir, list, nr, witness, s == REMIXDB_OK ? &ids : NULL);
  mem_free(origins);
  for (size_t i = 0; i < sizeof(repairs) / sizeof(repairs[0]) && s == REMIXDB_OK; i++)
    s = files_remove_dir(dir, repairs[i]);
  if (s == REMIXDB_OK) s = env_unlink(dir, FILES_LOCK);
  return s == REMIXDB_OK ? env_sync_dir(dir) : s;
}

// Finds the witness in the directory. remove: also removes the store.
static enum remixdb_status look(const struct env_dir *dir, bool remove) {
  struct files_entry *list;
  size_t nr;
  const char *witness;
  enum remixdb_status s = files_list(dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  s = witness_find(dir, list, nr, &witness);
  if (s == REMIXDB_OK && remove) s = remove_all(dir, list, nr, witness);
  mem_free(list);
  return s;
}

static enum remixdb_status destroy_in(const struct env_dir *dir) {
  struct dirlock lock;
  enum remixdb_status s = look(dir, false);  // a directory that is no store's gets no LOCK
  if (s == REMIXDB_OK) s = dirlock_take(dir, true, &lock);
  if (s != REMIXDB_OK) return s;
  s = look(dir, true);  // no other opening can change it any more
  dirlock_give(&lock);
  return s;
}

static enum remixdb_status open_dir(struct env *env, const char *path, struct env_dir *dir) {
  struct env_stat st;
  *dir = (struct env_dir){.fd = -1};
  enum remixdb_status s = env_stat(ENV_PATHS(env), path, &st);
  if (s == REMIXDB_OK && !st.is_dir) s = REMIXDB_NOTFOUND;
  return s == REMIXDB_OK ? env_dir_open(ENV_PATHS(env), path, dir) : s;
}

bool destroy_finds_none(struct env *env, const char *path) {
  struct env_dir dir;
  enum remixdb_status s = open_dir(env, path, &dir);
  if (s == REMIXDB_OK) s = look(&dir, false);
  env_dir_close(&dir);
  return s == REMIXDB_NOTFOUND;
}

enum remixdb_status destroy_store(struct env *env, const char *path) {
  struct env_dir dir;
  enum remixdb_status s = open_dir(env, path, &dir);
  if (s == REMIXDB_OK) s = destroy_in(&dir);
  if (s == REMIXDB_OK) s = env_dir_remove(ENV_PATHS(env), path, &dir);
  env_dir_close(&dir);
  return s;
}
