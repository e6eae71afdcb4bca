// SPDX-License-Identifier: Apache-2.0
#include "store/collect.h"

#include "store/idle.h"
#include "store/values.h"
#include "view/live.h"

void collect_measure(struct xdb *x, struct collect_figures *out) {
  xdb_lock(x);
  struct super *const v = xdb_super(x);
  super_ref(v);
  xdb_unlock(x);
  const struct value_set *const files = &v->version->values;
  uint64_t *const live = mem_alloc((files->nr ? files->nr : 1) * sizeof(*live));
  *out = (struct collect_figures){0};
  if (live && live_values(v->version, live) == REMIXDB_OK) {
    for (uint32_t i = 0; i < files->nr; i++) {
      const uint64_t bytes = atomic_load_explicit(&files->files[i]->value_bytes, memory_order_relaxed);
      out->files++;
      out->file_bytes += value_file_size(files->files[i]);
      out->value_bytes += bytes;
      if (values_settled(x, v, files->files[i])) out->garbage_bytes += bytes - live[i];
    }
  }
  mem_free(live);
  xdb_super_drop(x, v);
}
