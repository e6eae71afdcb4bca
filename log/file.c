// SPDX-License-Identifier: Apache-2.0
#include "log/file.h"

#include <assert.h>
#include <stdio.h>

struct wal_seg *wal_seg_create(const struct env_dir *dir, uint32_t nr) {
  const size_t len = strlen(dir->path) + sizeof("/wal-4294967295");
  struct wal_seg *const seg = mem_calloc(1, sizeof(*seg) + len);
  if (!seg) return NULL;
  seg->fd = -1;
  seg->nr = nr;
  (void)snprintf(seg->path, len, "%s/wal-%u", dir->path, nr);
  return seg;
}

void wal_seg_close(struct wal *w, struct wal_seg *seg) {
  env_close_quiet(w->env, seg->fd);
  seg->fd = -1;
}

enum remixdb_status wal_file_sync(struct wal *w, const struct wal_seg *seg, int fd, uint64_t end) {
  return end < seg->stale ? env_sync_head(w->env, fd, seg->path, end) : env_sync_data(w->env, fd, seg->path);
}

void wal_seg_destroy(struct wal *w, struct wal_seg *seg) {
  if (!seg) return;
  wal_seg_close(w, seg);
  mem_free(seg);
}

void wal_segs_destroy(struct wal *w, struct wal_seg *seg) {
  while (seg) {
    struct wal_seg *const next = seg->next;
    wal_seg_destroy(w, seg);
    seg = next;
  }
}

void wal_seg_begin(const struct wal *w, struct wal_seg *seg, const struct wal_head *h) {
  seg->h = *h;
  seg->h.version = WAL_VERSION;
  seg->h.nonce = random_seed();
  seg->h.origins = w->origins;
  seg->h.nr_origins = w->nr_origins;
  seg->key = wal_key(h->store_id, h->gen);
  seg->end = WAL_HEAD;
  seg->frames = 0;
  seg->durable = 0;
  seg->level = (struct wal_level){0};
  seg->h.print = wal_head_put(seg->head, &seg->h);
}

bool wal_is_own(const struct wal *w, const uint8_t *head, size_t nr) {
  struct wal_head h;
  assert(nr <= WAL_HEAD);
  if (nr == WAL_HEAD && wal_head_get(head, "", w->store_id, &h) == REMIXDB_OK) return true;
  for (size_t i = 0; i < nr; i++)
    if (head[i]) return false;
  return true;
}
