// SPDX-License-Identifier: Apache-2.0
#include "value/file.h"

enum remixdb_status value_file_make(struct value_ctx *c, const struct value_head *h, struct value_file **out) {
  char name[32];
  files_value_name(name, h->number);
  struct value_file *const f = mem_calloc(1, sizeof(*f));
  if (!f) return REMIXDB_NOMEM;
  if (!(f->path = env_path_new(c->sst->dir, name))) {
    mem_free(f);
    return REMIXDB_NOMEM;
  }
  f->ctx = c;
  f->number = h->number;
  f->origin = h->store_id;
  f->print = h->print;
  f->key = h->key;
  f->fd = -1;
  atomic_init(&f->refs, 1);
  fdpool_add(c->sst->fds, &f->file, c->sst->dir, f->path, ENV_READ);
  *out = f;
  return REMIXDB_OK;
}

enum remixdb_status value_file_open(struct value_ctx *c, uint64_t number, struct value_file **out) {
  char name[32];
  uint8_t bytes[VALUE_HEAD];
  struct value_head h;
  int fd;
  uint64_t size = 0;
  const struct sst_ctx *const x = c->sst;
  const struct files_ids ids = sst_ctx_ids(x);
  files_value_name(name, number);
  char path[ENV_PATH_MAX];
  enum remixdb_status s = env_path(path, x->dir->path, name);
  if (s == REMIXDB_OK) s = env_open(x->dir, name, ENV_READ, &fd);
  if (s == REMIXDB_NOTFOUND) return err_corrupt(path, 0, "is missing");
  if (s != REMIXDB_OK) return s;
  s = env_read(x->env, fd, path, bytes, sizeof(bytes), 0);
  if (s == REMIXDB_OK) s = env_size(x->env, fd, path, &size);
  env_close_quiet(x->env, fd);
  if (s == REMIXDB_OK) s = value_head_get(bytes, path, &h);
  if (s == REMIXDB_OK && (h.number != number || !files_ids_have(&ids, h.store_id)))
    s = err_corrupt(path, 0, "is value file %llu of store %016llx", (unsigned long long)h.number,
                    (unsigned long long)h.store_id);
  if (s == REMIXDB_OK) s = value_file_make(c, &h, out);
  if (s != REMIXDB_OK) return s;
  value_file_set_size(*out, size);
  (*out)->full = (*out)->named = true;
  return s;
}

// An obsolete file that has users still.
static void add_retired(const struct value_file *f, int64_t files, uint64_t bytes) {
  struct sst_retired *const r = f->ctx->sst->retired;
  if (r) sst_retired_add(r, files, bytes);
}

void value_file_set_size(struct value_file *f, uint64_t size) {
  const uint64_t was = value_file_size(f);
  atomic_store_explicit(&f->tail, size, memory_order_relaxed);
  if (!atomic_load_explicit(&f->obsolete, memory_order_relaxed))
    atomic_fetch_add_explicit(&f->ctx->room, size - was, memory_order_relaxed);
  else add_retired(f, 0, size - was);
}

static void give_room(struct value_file *f) {
  atomic_fetch_sub_explicit(&f->ctx->room, value_file_size(f), memory_order_relaxed);
}

void value_file_retire(struct value_file *f) {
  if (atomic_exchange_explicit(&f->obsolete, true, memory_order_relaxed)) return;
  give_room(f);
  add_retired(f, 1, value_file_size(f));
}

void value_file_unref(struct value_file *f) {
  // acq_rel: the thread that frees has seen all uses by the others, and `obsolete`
  if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
  const struct sst_ctx *const x = f->ctx->sst;
  fdpool_remove(&f->file);
  env_close_quiet(x->env, f->fd);
  if (f->held) fdpool_unhold(x->fds, 1);
  if (atomic_load_explicit(&f->obsolete, memory_order_relaxed)) {
    add_retired(f, -1, value_file_size(f));
    IGNORED(env_unlink(x->dir, env_name(f->path)), "the next opening removes it");
  } else {
    give_room(f);
  }
  mem_free(f->path);
  mem_free(f);
}

#define SECURE_BYTES (1u << 20)  // written again at a time

static enum remixdb_status write_again(struct value_file *f, int fd) {
  struct env *const env = f->ctx->sst->env;
  uint8_t *const buf = mem_alloc(SECURE_BYTES);
  enum remixdb_status s = buf ? REMIXDB_OK : REMIXDB_NOMEM;
  for (uint64_t off = f->low; off < f->high && s == REMIXDB_OK;) {
    size_t n = f->high - off < SECURE_BYTES ? (size_t)(f->high - off) : SECURE_BYTES;
    s = env_read_upto(env, fd, f->path, buf, n, off, &n);  // a record may end in zeros that were never written
    if (s != REMIXDB_OK || n == 0) break;
    s = env_write(env, fd, f->path, buf, n, off);
    off += n;
  }
  mem_free(buf);
  return s == REMIXDB_NOSPACE ? REMIXDB_OK : s;  // a file system that never writes in place
}

enum remixdb_status value_file_secure(struct value_file *f) {
  struct env *const env = f->ctx->sst->env;
  struct env_stat st;
  int fd;
  enum remixdb_status s = env_open(f->ctx->sst->dir, env_name(f->path), ENV_READ | ENV_WRITE, &fd);
  if (s == REMIXDB_NOTFOUND) return err_set(REMIXDB_IO, "%s: removed while it was being recovered", f->path);
  if (s != REMIXDB_OK) return s;
  s = env_fstat(env, fd, f->path, &st);
  if (s == REMIXDB_OK && st.links == 1) s = write_again(f, fd);
  if (s == REMIXDB_OK) s = env_sync_all(env, fd, f->path);
  env_close_quiet(env, fd);
  return s;
}
