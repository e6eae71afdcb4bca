// SPDX-License-Identifier: Apache-2.0
#include "wh/guide.h"

enum remixdb_status guide_create(const struct kref *bounds, void *const *items, uint32_t nr, uint32_t cap_more,
                                 struct guide **out) {
  *out = NULL;
  uint64_t len = 0;
  for (uint32_t i = 0; i < nr; i++) len += bounds[i].len;
  if (len > UINT32_MAX) return err_set(REMIXDB_NOMEM, "bounds of %llu bytes", (unsigned long long)len);
  const size_t more = offsetof(struct guide, items) + nr * sizeof(((struct guide *)NULL)->items[0]),
               offs = more + cap_more * sizeof(((struct guide *)NULL)->more[0]), bytes = offs + 4 * ((size_t)nr + 1);
  struct guide *const g = mem_alloc(bytes + len);
  if (!g) return REMIXDB_NOMEM;
  uint8_t *const base = (uint8_t *)g;
  uint32_t at = 0;
  for (uint32_t i = 0; i < nr; i++) {
    atomic_init(&g->items[i], items[i]);
    store32le(base + offs + 4 * (size_t)i, at);
    if (bounds[i].len) memcpy(base + bytes + at, bounds[i].ptr, bounds[i].len);
    at += bounds[i].len;
  }
  store32le(base + offs + 4 * (size_t)nr, at);
  g->nr = nr;
  g->base = 0;
  g->cap_more = cap_more;
  g->more = g->items + nr;
  atomic_init(&g->nr_more, 0);
  for (uint32_t i = 0; i < cap_more; i++) atomic_init(&g->more[i], NULL);
  const enum remixdb_status s = anchors_init(&g->anchors, base + offs, base + bytes, nr);
  if (s != REMIXDB_OK) {
    mem_free(g);
    return s;
  }
  g->bytes = bytes + len + anchors_memory(&g->anchors);
  *out = g;
  return REMIXDB_OK;
}

void guide_destroy(struct guide *g) {
  if (!g) return;
  anchors_fini(&g->anchors);
  mem_free(g);
}

void guide_find_many(const struct guide *g, const struct kref *keys, const uint8_t *which, uint32_t nr,
                     void **items_out) {
  struct anchors_lookup wants[ANCHORS_MANY_MAX];
  uint32_t found[ANCHORS_MANY_MAX];
  if (nr == 0) return;
  for (uint32_t i = 0; i < nr; i++) wants[i] = (struct anchors_lookup){&g->anchors, keys[which[i]]};
  anchors_find_many(wants, nr, found);
  for (uint32_t i = 0; i < nr; i++) items_out[i] = atomic_load_explicit(&g->items[found[i]], memory_order_acquire);
}

void guide_replace(struct guide *g, struct kref bound, const void *old, void *item) {
  uint32_t i = anchors_find(&g->anchors, bound);
  if (!kv_eq(anchors_at(&g->anchors, i), bound)) i++;
  for (; i < g->nr && atomic_load_explicit(&g->items[i], memory_order_relaxed) == old; i++)
    atomic_store_explicit(&g->items[i], item, memory_order_release);
}

void guide_more(struct guide *g, uint32_t number, void *item) {
  const uint32_t i = number - g->base - 1;
  if (number <= g->base || i >= g->cap_more) return;
  atomic_store_explicit(&g->more[i], item, memory_order_release);
  if (i >= atomic_load_explicit(&g->nr_more, memory_order_relaxed))
    atomic_store_explicit(&g->nr_more, i + 1, memory_order_release);
}
