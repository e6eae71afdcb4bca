// SPDX-License-Identifier: Apache-2.0
#include "store/dir.h"

#include <time.h>
#include <unistd.h>

#define DIR_TRIES 100u  // tries; one try fails only if another process renames or removes the directory at that moment

uint64_t dir_new_id(const void *salt) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  const uint64_t seed[5] = {(uint64_t)t.tv_sec, (uint64_t)t.tv_nsec, (uint64_t)getpid(), (uint64_t)(uintptr_t)salt,
                            random_seed()};
  const uint64_t id = hash64(seed, sizeof(seed));
  return id ? id : 1;
}

// Looks at a directory without CURRENT. Files of a store in it are an error, unless the mark of an unfinished store is
// there.
static enum remixdb_status headless(struct xdb *x, bool *creating_out) {
  struct files_entry *list;
  size_t nr;
  enum remixdb_status s = files_list(&x->home, &list, &nr);
  if (s != REMIXDB_OK) return s;
  bool data = false, copying = false;
  *creating_out = false;
  for (size_t i = 0; i < nr; i++) {
    data = data || files_holds_data(list[i].kind);
    *creating_out = *creating_out || list[i].kind == FILES_IS_CREATING;
    copying = copying || list[i].kind == FILES_IS_CHECKPOINTING;
  }
  mem_free(list);
  if (copying && (s = files_has_mark(&x->home, FILES_CHECKPOINTING, &copying)) != REMIXDB_OK) return s;
  if (*creating_out && (s = files_has_mark(&x->home, FILES_CREATING, creating_out)) != REMIXDB_OK) return s;
  struct env_stat st;
  if (!copying && (!data || *creating_out)) return REMIXDB_OK;
  if (env_stat(&x->home, FILES_CURRENT, &st) == REMIXDB_OK)
    return REMIXDB_OK;  // another opening, or a checkpoint, has just made CURRENT
  if (copying)
    return err_set(REMIXDB_CORRUPT,
                   "%s: a checkpoint was interrupted here: this is no store; remixdb_destroy removes it, another "
                   "checkpoint replaces it",
                   x->dir);
  char current[ENV_PATH_MAX];
  s = env_path(current, x->dir, FILES_CURRENT);
  return s != REMIXDB_OK
             ? s
             : err_corrupt(current, 0,
                           "is missing, but the directory holds files of a store; no new store is made over them");
}

// Removes the log of a store that was never finished. If it has tables, they are removed when the new store has been
// opened.
static enum remixdb_status remove_half_made(struct xdb *x) {
  struct files_entry *list;
  size_t nr;
  enum remixdb_status s = files_list(&x->home, &list, &nr);
  if (s != REMIXDB_OK) return s;
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    if (list[i].kind != FILES_IS_LOG) continue;
    enum version_owner owner;
    s = version_owner(&x->home, &list[i], NULL, &owner);
    if (s == REMIXDB_OK && owner != VERSION_FOREIGN) s = env_unlink(&x->home, list[i].name);
  }
  mem_free(list);
  return s;
}

// Looks at the directory. Fails with REMIXDB_CORRUPT if it holds no store, and no new store may be made in it.
static enum remixdb_status look(struct xdb *x, bool *exists_out, bool *creating_out) {
  struct env_stat st;
  bool repairing;
  *exists_out = *creating_out = false;
  enum remixdb_status s = files_repair_pending(&x->home, &repairing);
  if (s != REMIXDB_OK) return s;
  if (repairing)
    return err_set(REMIXDB_CORRUPT, "%s: a repair was interrupted: call remixdb_repair again to end it", x->dir);
  s = env_stat(&x->home, FILES_CURRENT, &st);
  if (s == REMIXDB_OK && x->opts.error_if_exists) return err_set(REMIXDB_EXISTS, "%s: holds a store already", x->dir);
  mem_free(x->origins);  // the origins of an earlier look
  x->origins = NULL;
  if (s == REMIXDB_OK) s = version_ids(&x->home, &x->store_id, &x->origins, &x->nr_origins);
  *exists_out = s == REMIXDB_OK;
  return s == REMIXDB_NOTFOUND ? headless(x, creating_out) : s;
}

// The same without the directory's lock. Another process may hold the lock, and may be making, repairing or removing
// the store.
static enum remixdb_status look_first(struct xdb *x, bool *exists_out, bool *creating_out) {
  struct err_saved why;
  struct dirlock l;
  enum remixdb_status s = look(x, exists_out, creating_out);
  if (s != REMIXDB_CORRUPT) return s;
  err_save(&why, s);
  s = dirlock_take(&x->home, false, &l);
  if (s == REMIXDB_LOCKED) return s;
  if (s != REMIXDB_OK) return err_raise(&why);
  s = look(x, exists_out, creating_out);
  dirlock_give(&l);
  return s;
}

// Locks the directory and looks at it. *exists_out: it holds a store (CURRENT).
static enum remixdb_status lock_dir(struct xdb *x, bool *exists_out) {
  const bool may_make = x->opts.create && !x->opts.read_only;
  bool creating;
  // Fail before touching anything, for example because of an unknown format.
  enum remixdb_status s = look_first(x, exists_out, &creating);
  if (s != REMIXDB_OK) return s;
  if (!*exists_out && !may_make) return err_set(REMIXDB_NOTFOUND, "%s: holds no store", x->dir);
  if ((s = dirlock_take(&x->home, !x->opts.read_only, &x->dirlock)) != REMIXDB_OK) return s;
  // Another process may have made or destroyed the store between the look and the lock.
  if ((s = look(x, exists_out, &creating)) != REMIXDB_OK || *exists_out) return s;
  if (!may_make) return err_set(REMIXDB_NOTFOUND, "%s: holds no store", x->dir);
  return creating ? remove_half_made(x) : REMIXDB_OK;
}

enum remixdb_status dir_open(struct xdb *x, const struct env_dir *at, const char *name, bool *exists_out) {
  const bool may_make = x->opts.create && !x->opts.read_only;
  char longest[ENV_PATH_MAX];
  bool made = false, named = false;
  enum remixdb_status s = env_path(longest, x->dir, FILES_LONGEST);
  for (uint32_t i = 0; s == REMIXDB_OK && !named && i < DIR_TRIES; i++) {
    bool made_now;
    dirlock_give(&x->dirlock);
    env_dir_close(&x->home);
    s = env_dir_make(at, name, may_make, &made_now, &x->home);
    if (s == REMIXDB_NOTFOUND) return err_set(REMIXDB_NOTFOUND, "%s: there is no such directory", x->dir);
    if (s != REMIXDB_OK) return s;
    made = made || made_now;
    s = lock_dir(x, exists_out);
    struct err_saved why;
    err_save(&why, s);
    s = env_dir_is(at, name, &x->home, &named);
    if (named) s = err_raise(&why);
  }
  if (s == REMIXDB_OK && !named)
    s = err_set(REMIXDB_IO, "%s: the directory is renamed or removed again and again", x->dir);
  return s == REMIXDB_OK && !*exists_out ? files_sync_parent(x->env, x->dir, made) : s;
}

enum remixdb_status dir_make_store(struct xdb *x, struct version **out) {
  int fd;
  enum remixdb_status s = env_open(&x->home, FILES_CREATING, ENV_WRITE | ENV_CREATE, &fd);
  if (s != REMIXDB_OK) return s;
  if ((s = env_close(x->env, fd, FILES_CREATING)) != REMIXDB_OK) return s;
  if ((s = env_sync_dir(&x->home)) != REMIXDB_OK) return s;
  x->store_id = dir_new_id(x);
  struct part *p;
  if ((s = part_create(kref("", 0), NULL, NULL, &p)) != REMIXDB_OK) return s;
  if ((s = version_create(&p, 1, out)) != REMIXDB_OK) return s;
  (*out)->store_id = x->store_id;
  (*out)->number = 1;
  (*out)->next_file = 1;
  (*out)->log_gen = 1;  // replay_log makes that segment
  return version_begin_spaces(*out);
}

enum remixdb_status dir_finish_making(struct xdb *x) {
  static const char *const marks[] = {FILES_CREATING, FILES_CHECKPOINTING};
  enum remixdb_status s = REMIXDB_OK;
  bool any = false;
  for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]) && s == REMIXDB_OK; i++) {
    bool there;
    s = files_has_mark(&x->home, marks[i], &there);
    if (s != REMIXDB_OK || !there) continue;
    s = env_unlink(&x->home, marks[i]);
    any = true;
  }
  return s == REMIXDB_OK && any ? env_sync_dir(&x->home) : s;
}
