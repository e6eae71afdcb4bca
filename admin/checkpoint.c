// SPDX-License-Identifier: Apache-2.0
#include "admin/checkpoint.h"

#include "store/idle.h"

#define COPY_CHUNK (1u << 20)

// ---- the end of a store

static enum remixdb_status remove_file(struct env *env, const char *dir, const char *name) {
  char path[ENV_PATH_MAX];
  const enum remixdb_status s = env_path(path, dir, name);
  return s == REMIXDB_OK ? env_unlink(env, path) : s;
}

// All but LOCK, which is held, and the directories of repairs. `last` shows whose directory it is (version_witness): it goes when the others are gone for good, so
// that what is left can be destroyed again. CURRENT goes first, if there is another that shows it.
static enum remixdb_status remove_files(struct env *env, const char *dir, const struct files_entry *list, size_t nr, const char *last) {
  enum remixdb_status s = REMIXDB_OK;
  if (strcmp(last, FILES_CURRENT) != 0) s = remove_file(env, dir, FILES_CURRENT);
  if (s == REMIXDB_OK) s = env_sync_dir(env, dir);
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++)
    if (list[i].kind != FILES_IS_LOCK && strcmp(list[i].name, last) != 0) s = remove_file(env, dir, list[i].name);
  if (s == REMIXDB_OK) s = env_sync_dir(env, dir);
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++)
    if (list[i].kind != FILES_IS_LOCK && strcmp(list[i].name, last) == 0) s = remove_file(env, dir, last);
  return s;
}

static enum remixdb_status remove_store(struct env *env, const char *dir, const struct files_entry *list, size_t nr, const char *witness) {
  static const char *const repairs[] = {FILES_REPAIR_NEW, FILES_REPAIR_DONE, FILES_REPAIR_IN};
  enum remixdb_status s = remove_files(env, dir, list, nr, witness);
  for (size_t i = 0; i < sizeof(repairs) / sizeof(repairs[0]) && s == REMIXDB_OK; i++) s = files_remove_dir(env, dir, repairs[i]);
  if (s == REMIXDB_OK) s = remove_file(env, dir, FILES_LOCK);
  return s == REMIXDB_OK ? env_sync_dir(env, dir) : s;
}

enum remixdb_status checkpoint_destroy(struct env *env, const char *dir) {
  struct env_stat st;
  struct files_entry *list;
  size_t nr;
  const char *witness;
  char path[ENV_PATH_MAX];
  int lock_fd;
  enum remixdb_status s = env_stat(env, dir, &st);
  if (s == REMIXDB_OK && !st.is_dir) s = REMIXDB_NOTFOUND;
  if (s != REMIXDB_OK) return s;
  if ((s = files_list(env, dir, &list, &nr)) != REMIXDB_OK) return s;
  s = version_witness(env, dir, list, nr, &witness);
  mem_free(list);
  if (s != REMIXDB_OK) return s;  // of what is not a store's directory nothing is touched, and no LOCK made in it
  if ((s = env_path(path, dir, FILES_LOCK)) != REMIXDB_OK) return s;
  if ((s = env_lock(env, path, true, &lock_fd)) != REMIXDB_OK) return s;
  // what is there now cannot change any more
  if ((s = files_list(env, dir, &list, &nr)) == REMIXDB_OK) {
    s = version_witness(env, dir, list, nr, &witness);
    if (s == REMIXDB_OK) s = remove_store(env, dir, list, nr, witness);
    mem_free(list);
  }
  env_unlock(env, lock_fd);
  return s == REMIXDB_OK ? env_rmdir(env, dir) : s;
}

// ---- a store of another one's files

static enum remixdb_status copy_file(struct env *env, const char *from, const char *to) {
  int in, out;
  uint64_t size;
  enum remixdb_status s = env_open(env, from, ENV_READ, &in);
  if (s == REMIXDB_NOTFOUND) s = err_corrupt(from, 0, "is missing");
  if (s != REMIXDB_OK) return s;
  uint8_t *buf = mem_alloc(COPY_CHUNK);
  s = buf ? env_size(env, in, from, &size) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = env_open(env, to, ENV_WRITE | ENV_CREATE | ENV_EXCL, &out);
  if (s == REMIXDB_OK) {
    for (uint64_t off = 0; off < size && s == REMIXDB_OK;) {
      const size_t n = size - off < COPY_CHUNK ? (size_t)(size - off) : COPY_CHUNK;
      s = env_read(env, in, from, buf, n, off);
      if (s == REMIXDB_OK) s = env_write(env, out, to, buf, n, off);
      off += n;
    }
    if (s == REMIXDB_OK) s = env_sync_all(env, out, to);
    if (s != REMIXDB_OK) env_close_quiet(env, out);
    else s = env_close(env, out, to);
  }
  mem_free(buf);
  env_close_quiet(env, in);
  return s;
}

static enum remixdb_status share_file(struct env *env, const char *from_dir, const char *dir, const char *name) {
  char from[ENV_PATH_MAX], to[ENV_PATH_MAX];
  enum remixdb_status s = env_path(from, from_dir, name);
  if (s == REMIXDB_OK) s = env_path(to, dir, name);
  if (s != REMIXDB_OK || env_link(env, from, to) == REMIXDB_OK) return s;
  return copy_file(env, from, to);  // whatever the link's failure was: if it was more than that, this fails too
}

static enum remixdb_status share_files(const struct xdb *x, const struct version *v, const char *dir) {
  char name[32];
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < v->nr_parts && s == REMIXDB_OK; i++) {
    const struct part *const p = v->parts[i];
    const struct remix *const views[] = {p->remix, p->young};
    for (uint32_t k = 0; k < 2 && s == REMIXDB_OK; k++) {
      if (!views[k]) continue;
      remix_name(name, views[k]->number);
      s = share_file(x->env, x->dir, dir, name);
    }
    for (uint32_t r = 0; r < part_runs(p) && s == REMIXDB_OK; r++) {
      sst_name(name, part_run(p, r)->number);
      s = share_file(x->env, x->dir, dir, name);
    }
  }
  return s;
}

// What the memtable holds at the moment goes into the log, in order of key: of each key there is one record.
static enum remixdb_status log_memtable(struct xdb_ref *r, struct wal *w, const struct wh *wh, uint64_t moment) {
  struct wh_cursor *c = mem_alloc(sizeof(*c));
  if (!c) return REMIXDB_NOMEM;
  xdb_ref_stay(r, false);
  wh_cursor_init(c, wh, moment);
  epoch_enter(&r->xdb->epoch, &r->slot);
  wh_seek(c, kref("", 0));
  epoch_exit(&r->slot);
  enum remixdb_status s = REMIXDB_OK;
  for (; wh_valid(c) && s == REMIXDB_OK; wh_next(c)) {
    const struct kref key = wh_key(c);
    uint64_t gen;
    if ((s = wal_begin(w, kv_rec_size(key.len, c->ver->vlen, c->ver->tomb), &gen)) != REMIXDB_OK) break;
    (void)wal_put(w, key, c->ver->val, c->ver->vlen, c->ver->tomb);
    wal_end(w);
  }
  xdb_ref_unstay(r);
  mem_free(c);
  return s;
}

// The log of the new store: what the older memtable holds first.
static enum remixdb_status make_log(struct xdb_ref *r, const struct view *v, uint64_t moment, const char *dir) {
  const struct wal_opts wo = {.env = r->xdb->env, .dir = dir, .store_id = r->xdb->store_id};
  struct wal *w;
  enum remixdb_status s = wal_open(&wo, 1, moment, true, NULL, NULL, NULL, &w);
  if (s != REMIXDB_OK) return s;
  if (v->frozen) s = log_memtable(r, w, v->frozen->wh, moment);
  if (s == REMIXDB_OK) s = log_memtable(r, w, v->active->wh, moment);
  struct err_saved why;
  err_save(&why, s);
  const enum remixdb_status closed = wal_close(w);
  return s == REMIXDB_OK ? closed : err_raise(&why);
}

static enum remixdb_status make_current(const struct xdb *x, const struct version *base, uint64_t moment, const char *dir) {
  struct part **parts = mem_alloc(base->nr_parts * sizeof(*parts));
  if (!parts) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < base->nr_parts; i++) part_ref(parts[i] = base->parts[i]);
  struct version *v;
  enum remixdb_status s = version_create(parts, base->nr_parts, &v);
  mem_free(parts);
  if (s != REMIXDB_OK) return s;
  v->store_id = base->store_id;
  v->number = base->number;
  v->next_file = base->next_file;
  v->log_gen = 1;
  v->log_seq = moment;
  struct sst_ctx ctx = x->ctx;
  ctx.dir = dir;
  s = version_save(&ctx, v);
  version_unref(v);
  return s;
}

static enum remixdb_status make_mark(struct env *env, const char *dir) {
  char path[ENV_PATH_MAX];
  int fd;
  enum remixdb_status s = env_path(path, dir, FILES_CHECKPOINTING);
  if (s == REMIXDB_OK) s = env_open(env, path, ENV_WRITE | ENV_CREATE, &fd);
  if (s == REMIXDB_OK) s = env_close(env, fd, path);
  return s == REMIXDB_OK ? env_sync_dir(env, dir) : s;
}

// The directory that becomes a store.
struct target {
  struct env *env;
  const char *dir;
  bool made, made_lock;  // it, and LOCK, were not there before
  bool begun;            // what else is there of a store's files was made here
  int lock_fd;           // -1: LOCK is not held
};

// The directory is there and empty of any store; LOCK is held.
static enum remixdb_status fill(struct xdb_ref *r, const struct view *v, uint64_t moment, struct target *t) {
  struct xdb *x = r->xdb;
  t->begun = true;
  enum remixdb_status s = make_mark(t->env, t->dir);
  if (s == REMIXDB_OK) s = share_files(x, v->version, t->dir);
  if (s == REMIXDB_OK) s = make_log(r, v, moment, t->dir);
  if (s == REMIXDB_OK) s = env_sync_dir(t->env, t->dir);
  if (s == REMIXDB_OK) s = make_current(x, v->version, moment, t->dir);
  if (s == REMIXDB_OK) s = remove_file(t->env, t->dir, FILES_CHECKPOINTING);
  if (s == REMIXDB_OK) s = env_sync_dir(t->env, t->dir);
  return s == REMIXDB_OK ? files_sync_parent(t->env, t->dir, t->made) : s;
}

// The directory, which may be a new one, is one's own: LOCK is held, and nothing of a store is there. What an interrupted checkpoint has left is removed.
static enum remixdb_status claim(struct target *t) {
  struct env_stat st;
  struct files_entry *list;
  size_t nr;
  char path[ENV_PATH_MAX];
  enum remixdb_status s = env_stat(t->env, t->dir, &st);
  if (s == REMIXDB_NOTFOUND) {
    t->made = true;
    s = env_mkdir(t->env, t->dir);
  } else if (s == REMIXDB_OK && !st.is_dir) {
    s = err_set(REMIXDB_IO, "%s: is a file, not a directory", t->dir);
  }
  if (s == REMIXDB_OK) s = env_path(path, t->dir, FILES_LOCK);
  if (s != REMIXDB_OK) return s;
  s = env_stat(t->env, path, &st);
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return s;
  t->made_lock = s == REMIXDB_NOTFOUND;
  if ((s = env_lock(t->env, path, true, &t->lock_fd)) != REMIXDB_OK) return s;
  if ((s = files_list(t->env, t->dir, &list, &nr)) != REMIXDB_OK) return s;
  bool holds = false, current = false, marked = false;
  for (size_t i = 0; i < nr; i++) {
    holds = holds || list[i].kind != FILES_IS_LOCK;
    current = current || list[i].kind == FILES_IS_CURRENT;
    marked = marked || list[i].kind == FILES_IS_CHECKPOINTING;
  }
  if (marked) s = files_has_mark(t->env, t->dir, FILES_CHECKPOINTING, &marked);
  if (s == REMIXDB_OK && marked && !current) {  // another checkpoint was begun here, and LOCK is its
    t->begun = t->made_lock = true;
    s = remove_files(t->env, t->dir, list, nr, FILES_CHECKPOINTING);
  } else if (s == REMIXDB_OK && holds) {
    s = err_set(REMIXDB_EXISTS, "%s: holds files of a store already", t->dir);
  }
  mem_free(list);
  return s;
}

static enum remixdb_status remove_begun(struct target *t) {
  struct files_entry *list;
  size_t nr;
  enum remixdb_status s = files_list(t->env, t->dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  s = remove_files(t->env, t->dir, list, nr, FILES_CHECKPOINTING);
  mem_free(list);
  return s;
}

// The directory is not to be made into a store after all, for this reason: what was made goes again. What cannot be removed can be destroyed.
static enum remixdb_status give_up(struct target *t, enum remixdb_status s) {
  struct err_saved why;
  char path[ENV_PATH_MAX];
  err_save(&why, s);
  enum remixdb_status gone = env_path(path, t->dir, FILES_LOCK);
  // without the lock its file may be another's by now
  if (gone == REMIXDB_OK && t->lock_fd < 0) gone = s != REMIXDB_LOCKED && t->made_lock ? env_lock(t->env, path, true, &t->lock_fd) : REMIXDB_LOCKED;
  if (gone == REMIXDB_OK && t->begun) gone = remove_begun(t);
  if (gone == REMIXDB_OK && t->made_lock) gone = env_unlink(t->env, path);
  if (gone == REMIXDB_OK && t->begun) gone = env_sync_dir(t->env, t->dir);
  env_unlock(t->env, t->lock_fd);
  if (t->made && s != REMIXDB_LOCKED) gone = env_rmdir(t->env, t->dir);  // where another has made a store meanwhile it stays
  return err_raise(&why);
}

enum remixdb_status checkpoint_make(struct xdb_ref *r, const char *dir) {
  struct target t = {.env = r->xdb->env, .dir = dir, .lock_fd = -1};
  enum remixdb_status s = claim(&t);
  if (s != REMIXDB_OK) return give_up(&t, s);
  uint64_t moment;
  struct view *v = xdb_ref_hold(r, &moment);
  s = fill(r, v, moment, &t);
  struct err_saved why;
  err_save(&why, s);
  xdb_view_drop(r->xdb, v);
  if (s != REMIXDB_OK) return give_up(&t, err_raise(&why));
  env_unlock(t.env, t.lock_fd);
  return s;
}
