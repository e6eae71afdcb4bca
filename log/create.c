// SPDX-License-Identifier: Apache-2.0
#include "log/file.h"
#include "log/room.h"

struct wal *wal_create(const struct wal_opts *o) {
  struct wal *const w = mem_alloc_aligned(CACHE_LINE, align_up(sizeof(*w), CACHE_LINE));
  if (!w) return NULL;
  memset(w, 0, sizeof(*w));
  w->env = o->dir->env;
  w->dir = o->dir;
  w->store_id = o->store_id;
  w->origins = o->origins;
  w->nr_origins = o->nr_origins;
  w->values = o->values;
  w->step = o->step ? o->step : WAL_PREALLOC;
  w->limit = o->limit ? o->limit : UINT64_MAX;
  w->read_only = o->read_only;
  wal_bound(w);
  (void)pthread_mutex_init(&w->admin, NULL);
  if (wal_buffers_init(w)) return w;
  wal_destroy(w);
  return NULL;
}

void wal_destroy(struct wal *w) {
  wal_buffers_fini(w);
  wal_segs_destroy(w, w->segs);
  wal_segs_destroy(w, w->pool);
  wal_segs_destroy(w, w->foreign);
  wal_seg_destroy(w, w->next);
  (void)pthread_mutex_destroy(&w->admin);
  mem_free(w);
}
