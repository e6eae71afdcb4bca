// SPDX-License-Identifier: Apache-2.0
#include "admin/checkpoint.h"

#include "admin/destroy.h"
#include "base/dirlock.h"
#include "compact/erase.h"
#include "store/dir.h"
#include "store/idle.h"

#define COPY_CHUNK (1u << 20)
#define REPORT_BYTES (1u << 20)  // between two reports of progress

// The directory that becomes a store.
struct target {
  struct env *env;
  const char *path;
  struct env_dir dir;
  bool made;       // this call made the directory
  bool made_lock;  // this call, or an interrupted checkpoint, made LOCK
  bool begun;      // the same for all other files of a store
  struct dirlock lock;
  uint64_t *packs;  // numbers of the packs that it has so far, nr_packs of them; own memory
  uint32_t nr_packs, cap_packs;
  uint64_t store_id;  // its own, so that a file of its source is told from one of it once the two have gone on
  uint64_t *origins;  // the ids of the files that it links; own memory
  uint32_t nr_origins;
  struct sst_ctx ctx;       // for the new store's files
  struct version *version;  // the source's, but all its views have files; those that this call has made are of `ctx`
  uint64_t next_file;       // the number of the next file
  struct value_set values;  // value files that the tables and the log refer to
  uint64_t log_print;       // the fingerprint of its log's first segment
  const struct progress *progress;
  uint64_t done, total;  // bytes of files, and of records in memory
  uint64_t told;         // bytes done at the last report
};

// Counts bytes that are linked, copied or written. Reports less than the total: only checkpoint_make reports the end.
static enum remixdb_status went_on(struct target *t, uint64_t bytes) {
  t->done += bytes;
  if (t->done - t->told < REPORT_BYTES) return REMIXDB_OK;
  t->told = t->done;
  return progress_report(t->progress, "checkpoint", t->done < t->total ? t->done : t->total - 1, t->total);
}

// Holes stay holes: a pack has some.
static enum remixdb_status copy_bytes(struct target *t, int in, const char *from, int out, const char *to) {
  struct env *const env = t->env;
  uint64_t size, end = 0;
  size_t n = 1;
  enum remixdb_status s = env_size(env, in, from, &size);
  if (s != REMIXDB_OK) return s;
  uint8_t *buf = mem_alloc(COPY_CHUNK);
  if (!buf) return REMIXDB_NOMEM;
  for (uint64_t off = env_next_data(env, in, 0, size); off < size && s == REMIXDB_OK;) {
    const uint64_t stop = off + COPY_CHUNK - off % COPY_CHUNK;
    n = (size_t)((stop < size ? stop : size) - off);
    s = env_read_upto(env, in, from, buf, n, off, &n);
    if (s != REMIXDB_OK || n == 0) break;  // a value file gets shorter when a round gives its values back
    s = env_write(env, out, to, buf, n, off);
    if (s == REMIXDB_OK) s = went_on(t, n);
    end = off + n;
    off = env_next_data(env, in, end, size);
  }
  mem_free(buf);
  if (s == REMIXDB_OK && n && end < size) s = env_truncate(env, out, to, size);
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
  return copy_file(from, t, name);  // if more than linking is impossible, this fails, too
}

// A pack comes once, whole: also with parts that this version does not have. The source leaves a pack with two names as
// it is (table/pack.h, K4), and so does the checkpoint.
static enum remixdb_status share_pack(const struct xdb *x, struct target *t, const struct pack *k) {
  char name[32];
  for (uint32_t i = t->nr_packs; i-- > 0;)
    if (t->packs[i] == k->number) return REMIXDB_OK;
  if (t->nr_packs == t->cap_packs) {
    uint64_t *const grown = mem_grow32(t->packs, &t->cap_packs, 16, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    t->packs = grown;
  }
  t->packs[t->nr_packs++] = k->number;
  files_pack_name(name, k->number);
  return share_file(&x->home, t, name, 0);
}

// A view that no file of the source has: range deletions that an opening with read_only has found in the log.
static enum remixdb_status file_views(struct xdb *x, struct version *v, struct target *t) {
  if (!compact_unfiled(v)) {
    version_ref(t->version = v);
    return REMIXDB_OK;
  }
  struct compact_filing f = {.ctx = &t->ctx, .next_file = t->next_file};
  enum remixdb_status s = blkio_queue_create(&x->io, &f.queue);
  if (s == REMIXDB_OK) s = compact_file_views(&f, v, &t->version);
  blkio_queue_destroy(f.queue);
  t->next_file = f.next_file;
  return s;
}

static enum remixdb_status share_one(const struct xdb *x, struct target *t, const struct part_file *f,
                                     void (*name_of)(char *buf, uint64_t number)) {
  char name[32];
  if (f->number == 0) return REMIXDB_OK;
  if (f->part) {
    const enum remixdb_status s = share_pack(x, t, f->part->pack);
    return s == REMIXDB_OK ? went_on(t, f->size) : s;
  }
  name_of(name, f->number);
  return share_file(&x->home, t, name, f->size);
}

static enum remixdb_status share_view(const struct xdb *x, struct target *t, const struct part_file *f,
                                      const struct remix *view) {
  return view && view->ctx == &t->ctx ? went_on(t, f->size) : share_one(x, t, f, remix_name);
}

// The files of a tree.
static enum remixdb_status share_files(const struct xdb *x, const struct version *v, struct target *t) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < v->nr_parts && s == REMIXDB_OK; i++) {
    struct part *const p = v->parts[i];
    struct part_files f;
    part_files(p, &f);
    s = share_view(x, t, &f.remix, part_remix(p));
    if (s == REMIXDB_OK) s = share_view(x, t, &f.young, part_young(p));
    for (uint32_t r = 0; r < f.nr && s == REMIXDB_OK; r++) s = share_one(x, t, &f.tables[r], sst_name);
  }
  return s;
}

// Collects the value files to which records of the super refer.
static enum remixdb_status find_values(const struct super *v, struct value_set *out) {
  const struct memtable *const mems[] = {v->active, v->frozen};
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < v->version->values.nr && s == REMIXDB_OK; i++)
    s = value_set_add(out, v->version->values.files[i]);
  for (uint32_t i = 0; i < 2 && mems[i]; i++) {
    const struct value_node *n = atomic_load_explicit(&mems[i]->values.first, memory_order_acquire);
    // A number that the version has names the version's file: it may be another one than a memtable's (super_value).
    for (; n && s == REMIXDB_OK; n = n->next) s = value_set_add(out, n->file);
  }
  return s;
}

// Tells whether a value file is copied even where links are possible. A file that may still be written to is, because a
// file with a second name is never written to; the values of the super's records are in it already. An opening with
// read_only does not secure the values that the log refers to (values_replayed), and the writer may have ended before
// it synced them. A sync now would not do: an earlier one may have failed (value_file_secure).
static bool copies_values(struct xdb *x, const struct super *v, const struct value_file *f) {
  if (x->opts.read_only) return value_list_find(&v->active->values, f->number) != NULL;
  return value_log_has(&x->values, f) || value_log_has(&x->compact.values, f);
}

static enum remixdb_status share_values(struct xdb *x, const struct super *v, struct target *t) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < t->values.nr && s == REMIXDB_OK; i++) {
    const struct value_file *const f = t->values.files[i];
    s = copies_values(x, v, f) ? copy_file(&x->home, t, env_name(f->path))
                               : share_file(&x->home, t, env_name(f->path), value_file_size(f));
  }
  return s;
}

// Adds the ids of value files that only memtables have to the origins.
static enum remixdb_status add_origins(struct target *t) {
  for (uint32_t i = 0; i < t->values.nr; i++) {
    const uint64_t id = t->values.files[i]->origin;
    const struct files_ids ids = {.own = t->store_id, .origins = t->origins, .nr = t->nr_origins};
    if (files_ids_have(&ids, id)) continue;
    uint64_t *const grown = mem_realloc(t->origins, (t->nr_origins + 1) * sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    uint32_t at = t->nr_origins++;
    for (; at > 0 && grown[at - 1] > id; at--) grown[at] = grown[at - 1];
    grown[at] = id;
    t->origins = grown;
  }
  return REMIXDB_OK;
}

// Estimates the bytes that a checkpoint of the super links, copies and writes. Adds one, so the total is never 0.
static uint64_t bytes_of(const struct super *v) {
  uint64_t bytes = 1 + memtable_memory(v->active) + (v->frozen ? memtable_memory(v->frozen) : 0);
  for (const struct version *tree = v->version; tree; tree = tree->spaces) {
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      struct part_files f;
      part_files(tree->parts[i], &f);
      bytes += part_table_bytes(tree->parts[i]) + f.remix.size + f.young.size;
    }
  }
  for (uint32_t i = 0; i < v->version->values.nr; i++) bytes += value_file_size(v->version->values.files[i]);
  return bytes;
}

// Writes the content of a memtable's tree at the moment into the log: one record for each key, in the order of keys.
static enum remixdb_status log_tree(struct xdb_ref *r, struct wal *w, const struct memtable *m, uint32_t tree,
                                    uint64_t moment, struct target *t) {
  const struct wh *const wh = memtable_tree(m, tree);
  if (!wh) return REMIXDB_OK;
  struct wh_cursor *c = mem_alloc(sizeof(*c));
  if (!c) return REMIXDB_NOMEM;
  xdb_ref_stay(r, false);
  wh_cursor_init(c, wh, moment);
  epoch_enter(&r->xdb->epoch, &r->slot);
  wh_seek(c, kref("", 0));
  epoch_exit(&r->slot);
  enum remixdb_status s = REMIXDB_OK;
  for (; wh_valid(c) && s == REMIXDB_OK; wh_next(c)) {
    struct kv_rec rec;
    uint64_t gen;
    wh_record(c, &rec);
    if (tree == TREE_SPACES) rec.kind |= KV_SPACES;
    rec.kind |= KV_SEQ;  // its number stays, although it gets a place behind the moment
    rec.seq = wh_ver_seq(c->ver);
    if ((s = wal_begin(w, kv_rec_size(&rec), &gen)) != REMIXDB_OK) break;
    (void)wal_put(w, &rec);
    wal_end(w);
    s = went_on(t, (uint64_t)rec.klen + rec.vlen);
  }
  xdb_ref_unstay(r);
  mem_free(c);
  return s;
}

static enum remixdb_status log_memtable(struct xdb_ref *r, struct wal *w, const struct memtable *m, uint64_t moment,
                                        struct target *t) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t tree = 0; tree < TREES && s == REMIXDB_OK; tree++) s = log_tree(r, w, m, tree, moment, t);
  return s;
}

// Makes the log of the new store. The frozen memtable is older and comes first.
static enum remixdb_status make_log(struct xdb_ref *r, const struct super *v, uint64_t moment, struct target *t) {
  const struct wal_opts wo = {.dir = &t->dir,
                              .store_id = t->store_id,
                              .origins = t->origins,
                              .nr_origins = t->nr_origins};
  struct wal *w;
  enum remixdb_status s = wal_open(&wo, 1, moment, true, NULL, NULL, NULL, &w);
  if (s != REMIXDB_OK) return s;
  s = wal_print(w, 1, &t->log_print);
  if (s == REMIXDB_OK && v->frozen) s = log_memtable(r, w, v->frozen, moment, t);
  if (s == REMIXDB_OK) s = log_memtable(r, w, v->active, moment, t);
  if (s == REMIXDB_OK) return wal_close(w);
  IGNORED(wal_close(w), "the log goes with the rest of the checkpoint");
  return s;
}

static enum remixdb_status make_current(const struct version *base, uint64_t moment, const struct target *t) {
  struct version *v;
  enum remixdb_status s = version_copy(t->version, &v);
  if (s != REMIXDB_OK) return s;
  v->next_file = t->next_file;
  v->store_id = t->store_id;
  v->log_gen = 1;
  v->log_seq = moment;
  v->log_print = t->log_print;
  v->printed = true;
  for (uint32_t i = 0; i < t->values.nr && s == REMIXDB_OK; i++) s = value_set_add(&v->values, t->values.files[i]);
  for (uint32_t i = 0; i < base->moves.nr && s == REMIXDB_OK; i++) s = value_moves_add(&v->moves, base->moves.all[i]);
  if (s == REMIXDB_OK) s = version_save(&t->ctx, v);
  version_unref(v);
  return s;
}

static enum remixdb_status make_mark(const struct env_dir *dir) {
  int fd;
  enum remixdb_status s = env_open(dir, FILES_CHECKPOINTING, ENV_WRITE | ENV_CREATE, &fd);
  if (s == REMIXDB_OK) s = env_close(dir->env, fd, FILES_CHECKPOINTING);
  return s == REMIXDB_OK ? env_sync_dir(dir) : s;
}

// Sets what the new store's files are made by. No file of the new store has the next number, or a larger one.
static void target_files(const struct xdb *x, const struct version *v, struct target *t) {
  t->ctx = x->ctx;
  t->ctx.dir = &t->dir;
  t->ctx.store_id = t->store_id;
  t->ctx.origins = t->origins;
  t->ctx.nr_origins = t->nr_origins;
  t->next_file = v->next_file;
  for (uint32_t i = 0; i < t->values.nr; i++)
    if (t->next_file <= t->values.files[i]->number) t->next_file = t->values.files[i]->number + 1;
}

// Makes the store in the directory, which holds no store and is locked.
static enum remixdb_status fill(struct xdb_ref *r, const struct super *v, uint64_t moment, struct target *t) {
  struct xdb *x = r->xdb;
  t->begun = true;
  t->store_id = dir_new_id(t);
  enum remixdb_status s = find_values(v, &t->values);
  if (s == REMIXDB_OK) s = version_origins(v->version, t->store_id, &t->origins, &t->nr_origins);
  if (s == REMIXDB_OK) s = add_origins(t);
  if (s == REMIXDB_OK) s = make_mark(&t->dir);
  target_files(x, v->version, t);
  if (s == REMIXDB_OK) s = file_views(x, v->version, t);
  for (const struct version *tree = t->version; tree && s == REMIXDB_OK; tree = tree->spaces)
    s = share_files(x, tree, t);
  if (s == REMIXDB_OK) s = share_values(x, v, t);
  if (s == REMIXDB_OK) s = make_log(r, v, moment, t);
  if (s == REMIXDB_OK) s = env_sync_dir(&t->dir);
  // From CURRENT on the directory is a store. The steps behind it need no descriptor.
  if (s == REMIXDB_OK) s = files_sync_parent(t->env, t->path, t->made);
  if (s == REMIXDB_OK) s = make_current(v->version, moment, t);
  if (s == REMIXDB_OK) s = env_unlink(&t->dir, FILES_CHECKPOINTING);
  return s == REMIXDB_OK ? env_sync_dir(&t->dir) : s;
}

// Makes the directory if it is absent, and locks it. Removes what an interrupted checkpoint has left. REMIXDB_EXISTS:
// it holds other files of a store.
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
  if (s == REMIXDB_OK && marked && !current) {  // all here is an interrupted checkpoint's, LOCK too
    t->begun = t->made_lock = true;
    s = destroy_files(&t->dir, list, nr, FILES_CHECKPOINTING, NULL);
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
  s = destroy_files(&t->dir, list, nr, FILES_CHECKPOINTING, NULL);
  mem_free(list);
  return s;
}

// Removes the files that were made in the directory, which is open. `why`: the failure of making the store.
static enum remixdb_status undo_files(struct target *t, enum remixdb_status why) {
  enum remixdb_status s = REMIXDB_OK;
  if (!dirlock_held(&t->lock)) {  // LOCK may be another opening's by now
    if (why == REMIXDB_LOCKED || !t->made_lock) return REMIXDB_OK;
    s = dirlock_take(&t->dir, true, &t->lock);
  }
  if (s == REMIXDB_OK && t->begun) s = remove_begun(t);
  if (s == REMIXDB_OK && t->made_lock) s = env_unlink(&t->dir, FILES_LOCK);
  return s == REMIXDB_OK && t->begun ? env_sync_dir(&t->dir) : s;
}

// Removes the directory if it was made, unless another opening makes a store in it.
static enum remixdb_status undo_dir(struct target *t, enum remixdb_status why) {
  if (!t->made || why == REMIXDB_LOCKED) return REMIXDB_OK;
  const struct env_dir *const at = ENV_PATHS(t->env);
  return t->dir.fd >= 0 ? env_dir_remove(at, t->path, &t->dir) : env_rmdir(at, t->path);
}

// Removes all that was made, after the failure s. Returns s.
static enum remixdb_status give_up(struct target *t, enum remixdb_status s) {
  if (t->dir.fd >= 0) IGNORED(undo_files(t, s), "the user can destroy the rest");
  dirlock_give(&t->lock);
  IGNORED(undo_dir(t, s), "an empty directory does no harm");
  env_dir_close(&t->dir);
  return s;
}

enum remixdb_status checkpoint_make(struct xdb_ref *r, const char *path) {
  struct target t = {.env = r->xdb->env, .path = path, .dir = {.fd = -1}, .progress = &r->progress};
  enum remixdb_status s = progress_report(t.progress, "checkpoint", 0, 0);
  if (s != REMIXDB_OK) return s;
  if ((s = claim(&t)) != REMIXDB_OK) return give_up(&t, s);
  uint64_t moment;
  struct super *v = xdb_ref_hold(r, &moment);
  t.total = bytes_of(v);
  s = fill(r, v, moment, &t);
  err_cleanup_begin();
  version_unref(t.version);
  xdb_super_drop(r->xdb, v);
  mem_free(t.origins);
  mem_free(t.packs);
  value_set_fini(&t.values);
  err_cleanup_end();
  if (s != REMIXDB_OK) return give_up(&t, s);
  dirlock_give(&t.lock);
  env_dir_close(&t.dir);
  return progress_report(t.progress, "checkpoint", t.total, t.total);
}
