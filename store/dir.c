// SPDX-License-Identifier: Apache-2.0
#include "store/dir.h"

#include <time.h>
#include <unistd.h>

static uint64_t new_store_id(const void *salt) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  const uint64_t seed[4] = {(uint64_t)t.tv_sec, (uint64_t)t.tv_nsec, (uint64_t)getpid(), (uint64_t)(uintptr_t)salt};
  const uint64_t id = hash64(seed, sizeof(seed));
  return id ? id : 1;
}

// A directory without CURRENT (whose path is given): an error when it holds files of a store, unless one is in the making.
static enum remixdb_status headless(struct xdb *x, const char *current, bool *creating_out) {
  struct files_entry *list;
  size_t nr;
  enum remixdb_status s = files_list(x->env, x->dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  bool data = false, copying = false;
  *creating_out = false;
  for (size_t i = 0; i < nr; i++) {
    data = data || files_holds_data(list[i].kind);
    *creating_out = *creating_out || list[i].kind == FILES_IS_CREATING;
    copying = copying || list[i].kind == FILES_IS_CHECKPOINTING;
  }
  mem_free(list);
  if (copying && (s = files_has_mark(x->env, x->dir, FILES_CHECKPOINTING, &copying)) != REMIXDB_OK) return s;
  if (*creating_out && (s = files_has_mark(x->env, x->dir, FILES_CREATING, creating_out)) != REMIXDB_OK) return s;
  struct env_stat st;
  if (!copying && (!data || *creating_out)) return REMIXDB_OK;
  if (env_stat(x->env, current, &st) == REMIXDB_OK) return REMIXDB_OK;  // another opening, or checkpoint, has just made it
  if (copying)
    return err_set(REMIXDB_CORRUPT, "%s: a checkpoint was interrupted here: this is no store; remixdb_destroy removes it, another checkpoint replaces it",
                   x->dir);
  return err_corrupt(current, 0, "is missing, but the directory holds files of a store; no new store is made over them");
}

// The log of a store that was never finished; tables that may lie beside it go when the new one has been opened.
static enum remixdb_status remove_half_made(struct xdb *x) {
  struct files_entry *list;
  size_t nr;
  char path[ENV_PATH_MAX];
  enum remixdb_status s = files_list(x->env, x->dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    if (list[i].kind != FILES_IS_LOG) continue;
    s = env_path(path, x->dir, list[i].name);
    if (s == REMIXDB_OK) s = env_unlink(x->env, path);
  }
  mem_free(list);
  return s;
}

// What is in the directory. REMIXDB_CORRUPT: no store, and none may be made there.
static enum remixdb_status look(struct xdb *x, bool *exists_out, bool *creating_out) {
  struct env_stat st;
  char path[ENV_PATH_MAX];
  bool repairing;
  *exists_out = *creating_out = false;
  enum remixdb_status s = files_repair_pending(x->env, x->dir, &repairing);
  if (s != REMIXDB_OK) return s;
  if (repairing) return err_set(REMIXDB_CORRUPT, "%s: a repair was interrupted: call remixdb_repair again to end it", x->dir);
  if ((s = env_path(path, x->dir, FILES_CURRENT)) != REMIXDB_OK) return s;
  s = env_stat(x->env, path, &st);
  if (s == REMIXDB_OK && x->opts.error_if_exists) return err_set(REMIXDB_EXISTS, "%s: holds a store already", x->dir);
  if (s == REMIXDB_OK) s = version_peek(x->env, x->dir, &x->store_id);
  *exists_out = s == REMIXDB_OK;
  return s == REMIXDB_NOTFOUND ? headless(x, path, creating_out) : s;
}

// The same while LOCK is not held: who holds it may just be making what is there, mending it, or removing it.
static enum remixdb_status look_first(struct xdb *x, bool *exists_out, bool *creating_out) {
  struct err_saved why;
  char path[ENV_PATH_MAX];
  int fd;
  enum remixdb_status s = look(x, exists_out, creating_out);
  if (s != REMIXDB_CORRUPT) return s;
  err_save(&why, s);
  if (env_path(path, x->dir, FILES_LOCK) != REMIXDB_OK) return err_raise(&why);
  s = env_lock(x->env, path, false, &fd);
  if (s == REMIXDB_LOCKED) return s;
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return err_raise(&why);
  s = look(x, exists_out, creating_out);
  env_unlock(x->env, fd);
  return s;
}

enum remixdb_status dir_open(struct xdb *x, bool *exists_out) {
  struct env_stat st;
  bool creating;
  char path[ENV_PATH_MAX];
  enum remixdb_status s = env_stat(x->env, x->dir, &st);
  const bool may_make = x->opts.create && !x->opts.read_only, made = s == REMIXDB_NOTFOUND;
  if (made) {
    if (!may_make) return err_set(REMIXDB_NOTFOUND, "%s: there is no such directory", x->dir);
    s = env_mkdir(x->env, x->dir);
    st.is_dir = true;
  }
  if (s != REMIXDB_OK) return s;
  if (!st.is_dir) return err_set(REMIXDB_IO, "%s: is a file, not a directory", x->dir);
  // what is refused, a format that is not known too, is told before anything is touched
  if ((s = look_first(x, exists_out, &creating)) != REMIXDB_OK) return s;
  if (!*exists_out && !may_make) return err_set(REMIXDB_NOTFOUND, "%s: holds no store", x->dir);
  if ((s = env_path(path, x->dir, FILES_LOCK)) != REMIXDB_OK) return s;
  s = env_lock(x->env, path, !x->opts.read_only, &x->lock_fd);
  if (s == REMIXDB_NOTFOUND && x->opts.read_only) s = REMIXDB_OK;  // nobody has locked what has no lock file
  if (s != REMIXDB_OK) return s;
  // somebody may have made it between the look and the lock, or destroyed it
  if ((s = look(x, exists_out, &creating)) != REMIXDB_OK || *exists_out) return s;
  if (!may_make) return err_set(REMIXDB_NOTFOUND, "%s: holds no store", x->dir);
  if (creating && (s = remove_half_made(x)) != REMIXDB_OK) return s;
  return files_sync_parent(x->env, x->dir, made);
}

enum remixdb_status dir_make_store(struct xdb *x, struct version **out) {
  char path[ENV_PATH_MAX];
  int fd;
  enum remixdb_status s = env_path(path, x->dir, FILES_CREATING);
  if (s == REMIXDB_OK) s = env_open(x->env, path, ENV_WRITE | ENV_CREATE, &fd);
  if (s != REMIXDB_OK) return s;
  if ((s = env_close(x->env, fd, path)) != REMIXDB_OK) return s;
  if ((s = env_sync_dir(x->env, x->dir)) != REMIXDB_OK) return s;
  x->store_id = new_store_id(x);
  struct part *p;
  if ((s = part_create(kref("", 0), NULL, NULL, &p)) != REMIXDB_OK) return s;
  if ((s = version_create(&p, 1, out)) != REMIXDB_OK) return s;
  (*out)->store_id = x->store_id;
  (*out)->number = 1;
  (*out)->next_file = 1;
  (*out)->log_gen = 1;
  return REMIXDB_OK;
}

enum remixdb_status dir_finish_making(struct xdb *x) {
  static const char *const marks[] = {FILES_CREATING, FILES_CHECKPOINTING};
  char path[ENV_PATH_MAX];
  enum remixdb_status s = REMIXDB_OK;
  bool any = false;
  for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]) && s == REMIXDB_OK; i++) {
    bool there;
    s = files_has_mark(x->env, x->dir, marks[i], &there);
    if (s != REMIXDB_OK || !there) continue;
    if ((s = env_path(path, x->dir, marks[i])) == REMIXDB_OK) s = env_unlink(x->env, path);
    any = true;
  }
  return s == REMIXDB_OK && any ? env_sync_dir(x->env, x->dir) : s;
}
