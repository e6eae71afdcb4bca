// SPDX-License-Identifier: Apache-2.0
#include "admin/checkpoint.h"

#include "base/dirlock.h"
#include "admin/witness.h"
#include "store/idle.h"

#define COPY_CHUNK (1u << 20)
#define REPORT_BYTES (1u << 20)  // between two reports

// ---- the end of a store

// The directory is a store's, so what is only damaged is its, too.
static enum remixdb_status remove_own(const struct env_dir *dir, const struct files_entry *e, uint64_t store_id) {
  enum version_owner owner;
  const enum remixdb_status s = version_owner(dir, e, store_id, &owner);
  return s == REMIXDB_OK && owner != VERSION_FOREIGN ? env_unlink(dir, e->name) : s;
}

// All but LOCK, which is held, and the directories of repairs. `last` shows whose directory it is (witness_find): it
// goes when the others are gone for good, so that what is left can be destroyed again. CURRENT goes first, if there is
// another that shows it. What is not the store's stays.
static enum remixdb_status remove_files(const struct env_dir *dir, const struct files_entry *list, size_t nr,
                                        const char *last, uint64_t store_id) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t turn = 0; turn < 3 && s == REMIXDB_OK; turn++) {
    for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
      const bool is_last = strcmp(list[i].name, last) == 0;
      const uint32_t when = is_last ? 2 : list[i].kind == FILES_IS_CURRENT ? 0 : 1;
      if (when == turn && list[i].kind != FILES_IS_LOCK) s = remove_own(dir, &list[i], store_id);
    }
    if (s == REMIXDB_OK && turn < 2) s = env_sync_dir(dir);
  }
  return s;
}

static enum remixdb_status remove_store(const struct env_dir *dir, const struct files_entry *list, size_t nr,
                                        const char *witness) {
  static const char *const repairs[] = {FILES_REPAIR_NEW, FILES_REPAIR_DONE, FILES_REPAIR_IN};
  uint64_t store_id = 0;  // where CURRENT cannot be read, any of ours
  enum remixdb_status s = version_peek(dir, &store_id);
  if (s == REMIXDB_NOMEM) return s;
  s = remove_files(dir, list, nr, witness, store_id);
  for (size_t i = 0; i < sizeof(repairs) / sizeof(repairs[0]) && s == REMIXDB_OK; i++)
    s = files_remove_dir(dir, repairs[i]);
  if (s == REMIXDB_OK) s = env_unlink(dir, FILES_LOCK);
  return s == REMIXDB_OK ? env_sync_dir(dir) : s;
}

// The same of a directory that is held.
static enum remixdb_status destroy_in(const struct env_dir *dir) {
  struct files_entry *list;
  size_t nr;
  const char *witness;
  struct dirlock lock;
  enum remixdb_status s = files_list(dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  s = witness_find(dir, list, nr, &witness);
  mem_free(list);
  if (s != REMIXDB_OK) return s;  // of what is not a store's directory nothing is touched, and no LOCK made in it
  if ((s = dirlock_take(dir, true, &lock)) != REMIXDB_OK) return s;
  // what is there now cannot change any more
  if ((s = files_list(dir, &list, &nr)) == REMIXDB_OK) {
    s = witness_find(dir, list, nr, &witness);
    if (s == REMIXDB_OK) s = remove_store(dir, list, nr, witness);
    mem_free(list);
  }
  dirlock_give(&lock);
  return s;
}

enum remixdb_status checkpoint_destroy(struct env *env, const char *path) {
  struct env_stat st;
  struct env_dir dir;
  enum remixdb_status s = env_stat(ENV_PATHS(env), path, &st);
  if (s == REMIXDB_OK && !st.is_dir) s = REMIXDB_NOTFOUND;
  if (s != REMIXDB_OK) return s;
  s = env_dir_open(ENV_PATHS(env), path, &dir);
  if (s == REMIXDB_OK) s = destroy_in(&dir);
  if (s == REMIXDB_OK) s = env_dir_remove(ENV_PATHS(env), path, &dir);
  env_dir_close(&dir);
  return s;
}

// ---- a store of another one's files

// The directory that becomes a store.
struct target {
  struct env *env;
  const char *path;
  struct env_dir dir;
  bool made, made_lock;  // it, and LOCK, were not there before
  bool begun;            // what else is there of a store's files was made here
  struct dirlock lock;
  const struct progress *progress;
  uint64_t done, total;  // bytes of files, and of records in memory
  uint64_t told;         // at the last report
};

// Bytes have found their place. The end is told when it is reached.
static enum remixdb_status went_on(struct target *t, uint64_t bytes) {
  t->done += bytes;
  if (t->done - t->told < REPORT_BYTES) return REMIXDB_OK;
  t->told = t->done;
  return progress_report(t->progress, "checkpoint", t->done < t->total ? t->done : t->total - 1, t->total);
}

static enum remixdb_status copy_bytes(struct target *t, int in, const char *from, int out, const char *to) {
  struct env *const env = t->env;
  uint64_t size;
  enum remixdb_status s = env_size(env, in, from, &size);
  if (s != REMIXDB_OK) return s;
  uint8_t *buf = mem_alloc(COPY_CHUNK);
  if (!buf) return REMIXDB_NOMEM;
  for (uint64_t off = 0; off < size && s == REMIXDB_OK;) {
    const size_t n = size - off < COPY_CHUNK ? (size_t)(size - off) : COPY_CHUNK;
    s = env_read(env, in, from, buf, n, off);
    if (s == REMIXDB_OK) s = env_write(env, out, to, buf, n, off);
    if (s == REMIXDB_OK) s = went_on(t, n);
    off += n;
  }
  mem_free(buf);
  return s == REMIXDB_OK ? env_sync_all(env, out, to) : s;
}

static enum remixdb_status copy_file(const struct env_dir *from_dir, struct target *t, const char *name) {
  const struct env_dir *const dir = &t->dir;
  struct env *const env = t->env;
  char from[ENV_PATH_MAX], to[ENV_PATH_MAX];
  int in = -1, out = -1;
  enum remixdb_status s = env_path(from, from_dir->path, name);
  if (s == REMIXDB_OK) s = env_path(to, dir->path, name);
  if (s == REMIXDB_OK) s = env_open(from_dir, name, ENV_READ, &in);
  if (s == REMIXDB_NOTFOUND) s = err_corrupt(from, 0, "is missing");
  if (s == REMIXDB_OK) s = env_open(dir, name, ENV_WRITE | ENV_CREATE | ENV_EXCL, &out);
  if (s == REMIXDB_OK) s = copy_bytes(t, in, from, out, to);
  if (s == REMIXDB_OK) s = env_close(env, out, to);
  else env_close_quiet(env, out);
  env_close_quiet(env, in);
  return s;
}

static enum remixdb_status share_file(const struct env_dir *from, struct target *t, const char *name, uint64_t size) {
  if (env_link(from, name, &t->dir, name) == REMIXDB_OK) return went_on(t, size);
  return copy_file(from, t, name);  // whatever the link's failure was: if it was more than that, this fails too
}

static enum remixdb_status share_files(const struct xdb *x, const struct version *v, struct target *t) {
  char name[32];
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < v->nr_parts && s == REMIXDB_OK; i++) {
    const struct part *const p = v->parts[i];
    const struct remix *const views[] = {p->remix, p->young};
    for (uint32_t k = 0; k < 2 && s == REMIXDB_OK; k++) {
      if (!views[k]) continue;
      remix_name(name, views[k]->number);
      s = share_file(&x->home, t, name, views[k]->file_size);
    }
    for (uint32_t r = 0; r < part_runs(p) && s == REMIXDB_OK; r++) {
      sst_name(name, part_run(p, r)->number);
      s = share_file(&x->home, t, name, part_run(p, r)->file_size);
    }
  }
  return s;
}

// The bytes that a checkpoint of the view links, copies or writes, about; one more, so that there is always something
// to do.
static uint64_t bytes_of(const struct super *v) {
  uint64_t bytes = 1 + wh_memory(v->active->wh) + (v->frozen ? wh_memory(v->frozen->wh) : 0);
  for (uint32_t i = 0; i < v->version->nr_parts; i++) {
    const struct part *const p = v->version->parts[i];
    for (uint32_t r = 0; r < part_runs(p); r++) bytes += part_run(p, r)->file_size;
    bytes += (p->remix ? p->remix->file_size : 0) + (p->young ? p->young->file_size : 0);
  }
  return bytes;
}

// What the memtable holds at the moment goes into the log, in order of key: of each key there is one record.
static enum remixdb_status log_memtable(struct xdb_ref *r, struct wal *w, const struct wh *wh, uint64_t moment,
                                        struct target *t) {
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
    s = went_on(t, (uint64_t)key.len + c->ver->vlen);
  }
  xdb_ref_unstay(r);
  mem_free(c);
  return s;
}

// The log of the new store: what the older memtable holds first.
static enum remixdb_status make_log(struct xdb_ref *r, const struct super *v, uint64_t moment, struct target *t) {
  const struct wal_opts wo = {.dir = &t->dir, .store_id = r->xdb->store_id};
  struct wal *w;
  enum remixdb_status s = wal_open(&wo, 1, moment, true, NULL, NULL, NULL, &w);
  if (s != REMIXDB_OK) return s;
  if (v->frozen) s = log_memtable(r, w, v->frozen->wh, moment, t);
  if (s == REMIXDB_OK) s = log_memtable(r, w, v->active->wh, moment, t);
  struct err_saved why;
  err_save(&why, s);
  const enum remixdb_status closed = wal_close(w);
  return s == REMIXDB_OK ? closed : err_raise(&why);
}

static enum remixdb_status make_current(const struct xdb *x, const struct version *base, uint64_t moment,
                                        const struct env_dir *dir) {
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

static enum remixdb_status make_mark(const struct env_dir *dir) {
  int fd;
  enum remixdb_status s = env_open(dir, FILES_CHECKPOINTING, ENV_WRITE | ENV_CREATE, &fd);
  if (s == REMIXDB_OK) s = env_close(dir->env, fd, FILES_CHECKPOINTING);
  return s == REMIXDB_OK ? env_sync_dir(dir) : s;
}

// The directory is there and empty of any store; LOCK is held.
static enum remixdb_status fill(struct xdb_ref *r, const struct super *v, uint64_t moment, struct target *t) {
  struct xdb *x = r->xdb;
  t->begun = true;
  enum remixdb_status s = make_mark(&t->dir);
  if (s == REMIXDB_OK) s = share_files(x, v->version, t);
  if (s == REMIXDB_OK) s = make_log(r, v, moment, t);
  if (s == REMIXDB_OK) s = env_sync_dir(&t->dir);
  if (s == REMIXDB_OK) s = make_current(x, v->version, moment, &t->dir);
  if (s == REMIXDB_OK) s = env_unlink(&t->dir, FILES_CHECKPOINTING);
  if (s == REMIXDB_OK) s = env_sync_dir(&t->dir);
  return s == REMIXDB_OK ? files_sync_parent(t->env, t->path, t->made) : s;
}

// The directory, which may be a new one, is one's own: LOCK is held, and nothing of a store is there. What an
// interrupted checkpoint has left is removed.
static enum remixdb_status claim(struct target *t) {
  struct env_stat st;
  struct files_entry *list;
  size_t nr;
  enum remixdb_status s = env_dir_make(ENV_PATHS(t->env), t->path, true, &t->made, &t->dir);
  if (s != REMIXDB_OK) return s;
  s = env_stat(&t->dir, FILES_LOCK, &st);
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return s;
  t->made_lock = s == REMIXDB_NOTFOUND;
  if ((s = dirlock_take(&t->dir, true, &t->lock)) != REMIXDB_OK) return s;
  if ((s = files_list(&t->dir, &list, &nr)) != REMIXDB_OK) return s;
  bool holds = false, current = false, marked = false;
  for (size_t i = 0; i < nr; i++) {
    holds = holds || list[i].kind != FILES_IS_LOCK;
    current = current || list[i].kind == FILES_IS_CURRENT;
    marked = marked || list[i].kind == FILES_IS_CHECKPOINTING;
  }
  if (marked) s = files_has_mark(&t->dir, FILES_CHECKPOINTING, &marked);
  if (s == REMIXDB_OK && marked && !current) {  // another checkpoint was begun here, and LOCK is its
    t->begun = t->made_lock = true;
    s = remove_files(&t->dir, list, nr, FILES_CHECKPOINTING, 0);
  } else if (s == REMIXDB_OK && holds) {
    s = err_set(REMIXDB_EXISTS, "%s: holds files of a store already", t->path);
  }
  mem_free(list);
  return s;
}

static enum remixdb_status remove_begun(struct target *t) {
  struct files_entry *list;
  size_t nr;
  enum remixdb_status s = files_list(&t->dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  s = remove_files(&t->dir, list, nr, FILES_CHECKPOINTING, 0);
  mem_free(list);
  return s;
}

// The directory is not to be made into a store after all, for this reason: what was made goes again. What cannot be
// removed can be destroyed.
static enum remixdb_status give_up(struct target *t, enum remixdb_status s) {
  struct err_saved why;
  err_save(&why, s);
  const bool held = t->dir.path && t->dir.fd >= 0;
  enum remixdb_status gone = held ? REMIXDB_OK : REMIXDB_NOTFOUND;
  // without the lock its file may be another's by now
  if (held && !dirlock_held(&t->lock))
    gone = s != REMIXDB_LOCKED && t->made_lock ? dirlock_take(&t->dir, true, &t->lock) : REMIXDB_LOCKED;
  if (gone == REMIXDB_OK && t->begun) gone = remove_begun(t);
  if (gone == REMIXDB_OK && t->made_lock) gone = env_unlink(&t->dir, FILES_LOCK);
  if (gone == REMIXDB_OK && t->begun) gone = env_sync_dir(&t->dir);
  dirlock_give(&t->lock);
  // where another has made a store meanwhile it stays
  if (t->made && s != REMIXDB_LOCKED)
    gone = held ? env_dir_remove(ENV_PATHS(t->env), t->path, &t->dir) : env_rmdir(ENV_PATHS(t->env), t->path);
  env_dir_close(&t->dir);
  return err_raise(&why);
}

enum remixdb_status checkpoint_make(struct xdb_ref *r, const char *path) {
  struct target t = {.env = r->xdb->env, .path = path, .progress = &r->progress};
  enum remixdb_status s = progress_report(t.progress, "checkpoint", 0, 0);
  if (s != REMIXDB_OK) return s;
  if ((s = claim(&t)) != REMIXDB_OK) return give_up(&t, s);
  uint64_t moment;
  struct super *v = xdb_ref_hold(r, &moment);
  t.total = bytes_of(v);
  s = fill(r, v, moment, &t);
  struct err_saved why;
  err_save(&why, s);
  xdb_super_drop(r->xdb, v);
  if (s != REMIXDB_OK) return give_up(&t, err_raise(&why));
  dirlock_give(&t.lock);
  env_dir_close(&t.dir);
  return progress_report(t.progress, "checkpoint", t.total, t.total);
}
