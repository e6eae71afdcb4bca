// SPDX-License-Identifier: Apache-2.0
#include "table/packing.h"

#include <assert.h>
#include <stdlib.h>

#include "blkio.h"

struct place {
  uint64_t off, len;
};

struct packing {
  struct packs *packs;
  struct env *env;
  struct fdpool *fds;
  struct pack *pack;
  uint64_t store_id;
  int fd;
  bool done, direct;
  pthread_mutex_t lock;  // guards the rest
  uint64_t end;          // places were taken up to here
  struct place *left;    // places that were given back
  uint32_t nr_left, cap_left;
  struct pack_entry *parts;
  uint32_t nr_parts, cap_parts;
};

int packing_fd(const struct packing *w) { return w->fd; }
bool packing_direct(const struct packing *w) { return w->direct; }
const char *packing_path(const struct packing *w) { return w->pack->path; }

// Tells whether the system makes holes in this file, which is empty.
static enum remixdb_status probe(struct packing *w, bool *can_out) {
  const enum remixdb_status s = env_punch(w->env, w->fd, w->pack->path, 0, PACK_ALIGN, can_out);
  if (s == REMIXDB_OK && !*can_out) packs_cannot(w->packs);
  return s;
}

enum remixdb_status packing_begin(struct packs *packs, uint64_t store_id, uint64_t number, bool direct,
                                  struct packing **out) {
  *out = NULL;
  struct packing *const w = mem_calloc(1, sizeof(*w));
  if (!w) return REMIXDB_NOMEM;
  w->packs = packs;
  w->store_id = store_id;
  w->fd = -1;
  w->direct = direct;
  (void)pthread_mutex_init(&w->lock, NULL);
  enum remixdb_status s = packs_add(packs, number, &w->pack);
  bool can = false;
  if (s == REMIXDB_OK) {
    w->fds = w->pack->file.pool;
    w->env = w->pack->file.dir->env;
    fdpool_reserve(w->fds);
    s = env_create(w->pack->file.dir, env_name(w->pack->path), ENV_WRITE | (direct ? ENV_DIRECT : 0), &w->fd);
    if (s != REMIXDB_OK) fdpool_unreserve(w->fds);
  }
  if (s == REMIXDB_OK) s = probe(w, &can);
  if (s == REMIXDB_OK && can) {
    *out = w;
    return s;
  }
  err_cleanup_begin();
  packing_end(w, false);
  err_cleanup_end();
  return s;
}

// ---- places

uint64_t packing_take(struct packing *w, uint64_t len) {
  const uint64_t room = pack_align(len);
  uint64_t off;
  pthread_mutex_lock(&w->lock);
  uint32_t i = 0;
  while (i < w->nr_left && w->left[i].len < room) i++;
  if (i < w->nr_left) {
    off = w->left[i].off;
    w->left[i].off += room;
    w->left[i].len -= room;
    if (w->left[i].len == 0) w->left[i] = w->left[--w->nr_left];
  } else {
    off = w->end;
    w->end += room;
  }
  pthread_mutex_unlock(&w->lock);
  return off;
}

// Without memory for it a place stays unused.
static void give_back(struct packing *w, uint64_t off, uint64_t len) {
  if (len == 0) return;
  if (off + len == w->end) {
    w->end = off;
    return;
  }
  if (w->nr_left == w->cap_left) {
    const uint32_t cap = w->cap_left ? 2 * w->cap_left : 8;
    err_cleanup_begin();
    struct place *const grown = mem_realloc(w->left, cap * sizeof(*grown));
    err_cleanup_end();
    if (!grown) return;
    w->left = grown;
    w->cap_left = cap;
  }
  w->left[w->nr_left++] = (struct place){off, len};
}

static enum remixdb_status note_part(struct packing *w, const struct pack_entry *e, uint64_t taken) {
  if (w->nr_parts == w->cap_parts) {
    struct pack_entry *const grown = mem_grow32(w->parts, &w->cap_parts, 64, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    w->parts = grown;
  }
  w->parts[w->nr_parts++] = *e;
  give_back(w, e->off + pack_room(e), pack_align(taken) - pack_room(e));
  return REMIXDB_OK;
}

enum remixdb_status packing_add(struct packing *w, enum pack_kind kind, uint64_t number, uint64_t off, uint64_t len,
                                uint64_t taken) {
  const struct pack_entry e = {pack_id(kind, number), off, len};
  assert(len <= taken && off % PACK_ALIGN == 0);
  pthread_mutex_lock(&w->lock);
  const enum remixdb_status s = note_part(w, &e, taken);
  pthread_mutex_unlock(&w->lock);
  return s == REMIXDB_OK ? pack_add_part(w->pack, &e) : s;
}

// Writes whole pages past the page cache, a piece at a time: the last one gets zeros at its end. A disk has no more of
// it in flight than that.
static enum remixdb_status put_direct(struct packing *w, const uint8_t *bytes, size_t len, uint64_t off) {
  const size_t most = pack_align(len) < BLKIO_DIRECT_BUF ? pack_align(len) : BLKIO_DIRECT_BUF;
  uint8_t *const piece = mem_alloc_aligned(BLKIO_ALIGN, most);
  if (!piece) return REMIXDB_NOMEM;
  enum remixdb_status s = REMIXDB_OK;
  for (size_t at = 0; at < len && s == REMIXDB_OK; at += most) {
    const size_t n = len - at < most ? len - at : most, all = (size_t)pack_align(n);
    memcpy(piece, bytes + at, n);
    memset(piece + n, 0, all - n);
    s = env_write(w->env, w->fd, w->pack->path, piece, all, off + at);
  }
  mem_free(piece);
  return s;
}

enum remixdb_status packing_put(struct packing *w, enum pack_kind kind, uint64_t number, const void *bytes,
                                size_t len) {
  const uint64_t off = packing_take(w, len);
  const enum remixdb_status s = w->direct ? put_direct(w, bytes, len, off)
                                          : env_write(w->env, w->fd, w->pack->path, bytes, len, off);
  return s == REMIXDB_OK ? packing_add(w, kind, number, off, len, len) : s;
}

// ---- the end

static int by_place(const void *a, const void *b) {
  const struct pack_entry *const x = a, *const y = b;
  return (x->off > y->off) - (x->off < y->off);
}

// Makes the directory and the footer, which the caller frees.
static uint8_t *make_dir(struct packing *w, size_t *len_out, uint64_t *print_out) {
  const size_t entries = (size_t)PACK_ENTRY * w->nr_parts, len = (size_t)pack_align(entries + PACK_FOOTER);
  uint8_t *const dir = mem_alloc_aligned(BLKIO_ALIGN, len);
  if (!dir) return NULL;
  memset(dir, 0, len);
  qsort(w->parts, w->nr_parts, sizeof(*w->parts), by_place);
  for (uint32_t i = 0; i < w->nr_parts; i++) pack_entry_put(dir + (size_t)PACK_ENTRY * i, &w->parts[i]);
  const struct pack_footer f = {.store_id = w->store_id,
                                .number = w->pack->number,
                                .size = w->end + len,
                                .dir_off = w->end,
                                .nr = w->nr_parts,
                                .dir_sum = pack_dir_sum(dir, len - PACK_FOOTER, w->pack->number)};
  uint8_t *const foot = dir + len - PACK_FOOTER;
  pack_footer_put(foot, &f);
  *print_out = load64le(foot);
  *len_out = len;
  return dir;
}

enum remixdb_status packing_finish(struct packing *w) {
  const char *const path = w->pack->path;
  struct env_stat st;
  size_t len;
  uint64_t print;
  if (w->nr_parts > PACK_PARTS_MAX) return err_set(REMIXDB_INVALID, "%s: too many parts", path);
  if (w->nr_parts == 0) return err_set(REMIXDB_INVALID, "%s: a pack without parts", path);
  uint8_t *const dir = make_dir(w, &len, &print);
  if (!dir) return REMIXDB_NOMEM;
  enum remixdb_status s = env_write(w->env, w->fd, path, dir, len, w->end);
  mem_free(dir);
  if (s == REMIXDB_OK) s = env_sync_all(w->env, w->fd, path);
  if (s == REMIXDB_OK) s = env_stat(w->pack->file.dir, env_name(path), &st);
  if (s == REMIXDB_NOTFOUND) s = err_set(REMIXDB_IO, "%s: was removed meanwhile", path);
  // readers bypass the page cache
  if (!w->direct && w->pack->file.flags & ENV_DIRECT) env_advise(w->env, w->fd, 0, 0, ENV_DONT_NEED);
  if (s == REMIXDB_OK) pack_written(w->pack, print, w->store_id, &st);
  if (s == REMIXDB_OK) {
    const int fd = w->fd;
    w->fd = -1;
    s = env_close(w->env, fd, path);
    fdpool_unreserve(w->fds);
  }
  w->done = s == REMIXDB_OK;
  return s;
}

void packing_end(struct packing *w, bool keep) {
  if (!w) return;
  if (w->fd >= 0) {
    env_close_quiet(w->env, w->fd);
    fdpool_unreserve(w->fds);
  }
  if (w->pack) pack_unpin(w->pack, !keep || !w->done);
  mem_free(w->left);
  mem_free(w->parts);
  (void)pthread_mutex_destroy(&w->lock);
  mem_free(w);
}
