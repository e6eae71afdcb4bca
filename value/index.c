// SPDX-License-Identifier: Apache-2.0
#include "value/index.h"

#include "value/read.h"

static struct budget *budget_of(const struct value_index *x) { return x->file->ctx->sst->budget; }

enum remixdb_status value_index_make(struct value_file *f, uint64_t number, uint64_t bytes, const struct value_ref *ref,
                                     uint8_t *entries, struct value_index **out) {
  struct value_index *const x = mem_calloc(1, sizeof(*x));
  if (!x) {
    mem_free(entries);
    return REMIXDB_NOMEM;
  }
  value_file_ref(x->file = f);
  x->number = number;
  x->bytes = bytes;
  x->ref = *ref;
  x->nr = ref->len / VALUE_MOVED;
  x->entries = entries;
  atomic_init(&x->refs, 1);
  budget_take(budget_of(x), BUDGET_INDEXES, value_index_memory(x));
  *out = x;
  return REMIXDB_OK;
}

enum remixdb_status value_index_open(struct value_file *f, uint64_t number, uint64_t bytes, const struct value_ref *ref,
                                     struct value_index **out) {
  uint8_t buf[VALUE_INDEX_KEY], *entries = NULL;
  const struct kref key = value_index_key(number, buf);
  // A broken reference must not ask for 4 GiB.
  enum remixdb_status s = ref->len > value_file_size(f) ? value_read_index(f, ref, key, NULL) : REMIXDB_OK;
  if (s == REMIXDB_OK && !(entries = mem_alloc(ref->len))) s = REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = value_read_index(f, ref, key, entries);
  if (s == REMIXDB_OK && !value_moved_good(entries, ref->len))
    s = err_corrupt(f->path, ref->at, "the index of value file %llu has entries that cannot be",
                    (unsigned long long)number);
  if (s == REMIXDB_OK) return value_index_make(f, number, bytes, ref, entries, out);
  mem_free(entries);
  return s;
}

void value_index_unref(struct value_index *x) {
  // acq_rel: the thread that frees has seen all uses by the others
  if (!x || atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) != 1) return;
  budget_give(budget_of(x), BUDGET_INDEXES, value_index_memory(x));
  value_file_unref(x->file);
  mem_free(x->entries);
  mem_free(x);
}

bool value_index_find(const struct value_index *x, struct value_ref *r) {
  uint32_t lo = 0, hi = x->nr;
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (value_moved_get(x->entries + (size_t)mid * VALUE_MOVED).from < r->at) lo = mid + 1;
    else hi = mid;
  }
  if (lo == x->nr) return false;
  const struct value_moved m = value_moved_get(x->entries + (size_t)lo * VALUE_MOVED);
  if (m.from != r->at || m.was != r->check) return false;
  r->file = x->file->number;
  r->at = m.to;
  r->check = m.is;
  return true;
}

// ---- many of them

// Returns the place of the first index whose number is not smaller.
static uint32_t place(const struct value_moves *m, uint64_t number) {
  uint32_t lo = 0, hi = m->nr;
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (m->all[mid]->number < number) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

struct value_index *value_moves_find(const struct value_moves *m, uint64_t number) {
  const uint32_t i = place(m, number);
  return i < m->nr && m->all[i]->number == number ? m->all[i] : NULL;
}

enum remixdb_status value_moves_add(struct value_moves *m, struct value_index *x) {
  const uint32_t i = place(m, x->number);
  if (i < m->nr && m->all[i]->number == x->number) return REMIXDB_OK;
  if (m->nr == m->cap) {
    struct value_index **const grown = mem_grow32(m->all, &m->cap, 8, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    m->all = grown;
  }
  memmove(m->all + i + 1, m->all + i, (m->nr - i) * sizeof(*m->all));
  m->all[i] = x;
  m->nr++;
  atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed);
  return REMIXDB_OK;
}

void value_moves_fini(struct value_moves *m) {
  for (uint32_t i = 0; i < m->nr; i++) value_index_unref(m->all[i]);
  mem_free(m->all);
  *m = (struct value_moves){0};
}

uint64_t value_moves_memory(const struct value_moves *m) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < m->nr; i++) bytes += value_index_memory(m->all[i]);
  return bytes;
}

struct value_file *value_moves_follow(const struct value_moves *m, struct value_ref *r) {
  const struct value_index *const x = value_moves_find(m, r->file);
  return x && value_index_find(x, r) ? x->file : NULL;
}
