// SPDX-License-Identifier: Apache-2.0
//
// The order of tables without CURRENT. Newer tables have larger numbers, with one exception: the tables of a slice of a
// cut (compact/cut.h) may have come behind tables with newer records. The sequence numbers tell that (C5 there).
#include "admin/repair_state.h"

struct aged {
  uint64_t number, seq_min, seq_max;
  uint32_t min_len, max_len;
  uint8_t *keys;  // the least key and the greatest one; NULL: the table cannot be opened, so its number counts
};

static bool have_common_keys(const struct aged *a, const struct aged *b) {
  return kv_cmp(kref(a->keys, a->min_len), kref(b->keys + b->min_len, b->max_len)) <= 0 &&
         kv_cmp(kref(b->keys, b->min_len), kref(a->keys + a->min_len, a->max_len)) <= 0;
}

static enum remixdb_status look(struct repair *p, uint64_t number, struct aged *out) {
  struct sst *t;
  *out = (struct aged){.number = number};
  const enum remixdb_status s = sst_open(&p->ctx, number, &t);
  if (s != REMIXDB_OK) return s == REMIXDB_NOMEM ? s : REMIXDB_OK;  // repair_table tells what is wrong
  out->keys = mem_alloc((size_t)t->min.len + t->max.len + 1);
  if (out->keys) {
    memcpy(out->keys, t->min.ptr, out->min_len = t->min.len);
    memcpy(out->keys + out->min_len, t->max.ptr, out->max_len = t->max.len);
  }
  out->seq_min = t->seq_min;
  out->seq_max = t->seq_max;
  sst_unref(t);
  return out->keys ? REMIXDB_OK : REMIXDB_NOMEM;
}

// The place of a table behind `nr` that are in order: before the first one of those that must be newer. Tables behind
// that have no keys in common with it, or are newer, too.
static size_t place_of(const struct aged *list, size_t nr, const struct aged *t) {
  size_t place = nr;
  for (size_t i = nr; t->keys && i-- > 0;) {
    if (!list[i].keys) break;
    if (!have_common_keys(&list[i], t)) continue;
    if (list[i].seq_min <= t->seq_max) break;
    place = i;
  }
  return place;
}

enum remixdb_status repair_order(struct repair *p, uint64_t *tables, size_t nr) {
  struct aged *const list = mem_alloc((nr + 1) * sizeof(*list));
  enum remixdb_status s = list ? REMIXDB_OK : REMIXDB_NOMEM;
  size_t done = 0;
  while (done < nr && s == REMIXDB_OK) {
    struct aged t;
    if ((s = look(p, tables[done], &t)) != REMIXDB_OK) break;
    const size_t place = place_of(list, done, &t);
    memmove(list + place + 1, list + place, (done - place) * sizeof(*list));
    list[place] = t;
    done++;
  }
  for (size_t i = 0; i < done; i++) {
    if (s == REMIXDB_OK) tables[i] = list[i].number;
    mem_free(list[i].keys);
  }
  mem_free(list);
  return s;
}
