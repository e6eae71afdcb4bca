// SPDX-License-Identifier: Apache-2.0
#include "value/set.h"

uint32_t value_set_place(const struct value_set *s, uint64_t number) {
  uint32_t lo = 0, hi = s->nr;
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (s->files[mid]->number < number) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

struct value_file *value_set_find(const struct value_set *s, uint64_t number) {
  const uint32_t i = value_set_place(s, number);
  return i < s->nr && s->files[i]->number == number ? s->files[i] : NULL;
}

enum remixdb_status value_set_add(struct value_set *s, struct value_file *f) {
  const uint32_t i = value_set_place(s, f->number);
  if (i < s->nr && s->files[i]->number == f->number) return REMIXDB_OK;
  if (s->nr == s->cap) {
    struct value_file **const grown = mem_grow32(s->files, &s->cap, 8, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    s->files = grown;
  }
  memmove(s->files + i + 1, s->files + i, (s->nr - i) * sizeof(*s->files));
  s->files[i] = f;
  s->nr++;
  value_file_ref(f);
  return REMIXDB_OK;
}

void value_set_fini(struct value_set *s) {
  for (uint32_t i = 0; i < s->nr; i++) value_file_unref(s->files[i]);
  mem_free(s->files);
  *s = (struct value_set){0};
}

struct value_file *value_list_find(const struct value_list *l, uint64_t number) {
  const struct value_node *n = atomic_load_explicit(&l->first, memory_order_acquire);
  while (n && n->file->number != number) n = n->next;
  return n ? n->file : NULL;
}

enum remixdb_status value_list_add(struct value_list *l, struct value_file *f) {
  if (value_list_find(l, f->number)) return REMIXDB_OK;
  struct value_node *const n = mem_alloc(sizeof(*n));
  if (!n) return REMIXDB_NOMEM;
  value_file_ref(f);
  n->file = f;
  n->next = atomic_load_explicit(&l->first, memory_order_relaxed);
  // release: a thread that finds the node sees the file. Two threads may add the same file: it is there twice then.
  while (!atomic_compare_exchange_weak_explicit(&l->first, &n->next, n, memory_order_release, memory_order_relaxed))
    continue;
  return REMIXDB_OK;
}

void value_list_fini(struct value_list *l) {
  struct value_node *n = atomic_exchange_explicit(&l->first, NULL, memory_order_acquire), *next;
  for (; n; n = next) {
    next = n->next;
    value_file_unref(n->file);
    mem_free(n);
  }
}
