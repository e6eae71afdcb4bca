// SPDX-License-Identifier: Apache-2.0
//
// The order of tables without CURRENT. Mostly newer tables have larger numbers. There are two exceptions: a slice of a
// cut (compact/cut.h) comes behind newer runs, and an ingest numbers its tables before its place among the writes is
// known. The sequence numbers tell these (C5 there). They do not tell the age of all tables: records that a round hands
// back keep theirs, and if partitions are joined meanwhile, a table may have larger ones than a newer table.
//
// So of two tables with keys in common one is older if its sequence numbers are all smaller; else if its number is. The
// order keeps to that for all pairs. Where it leaves a choice, the smaller number comes first.
#include "admin/repair_state.h"

struct aged {
  uint64_t number, seq_min, seq_max;
  uint32_t min_len, max_len;
  uint8_t *keys;  // the least key and the greatest one
  size_t older;   // how many of those that are not placed yet are older
  bool placed;
};

static bool have_common_keys(const struct aged *a, const struct aged *b) {
  return kv_cmp(kref(a->keys, a->min_len), kref(b->keys + b->min_len, b->max_len)) <= 0 &&
         kv_cmp(kref(b->keys, b->min_len), kref(a->keys + a->min_len, a->max_len)) <= 0;
}

// a has to come before b.
static bool is_older(const struct aged *a, const struct aged *b) {
  if (!have_common_keys(a, b)) return false;
  if (a->seq_max < b->seq_min) return true;
  return b->seq_max >= a->seq_min && a->number < b->number;
}

// *there_out: the table can be opened.
static enum remixdb_status look(struct repair *p, uint64_t number, struct aged *out, bool *there_out) {
  struct sst *t;
  *out = (struct aged){.number = number};
  const enum remixdb_status s = sst_open(&p->ctx, number, &t);
  *there_out = s == REMIXDB_OK;
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

// The first table that may come next. Wrong sequence numbers may leave none; then the smallest number counts.
static struct aged *next_of(struct aged *list, size_t nr) {
  struct aged *first = NULL;
  for (size_t i = 0; i < nr; i++) {
    if (list[i].placed) continue;
    if (list[i].older == 0) return &list[i];
    if (!first) first = &list[i];
  }
  return first;
}

// Writes the numbers in order to `to`.
static void sort(struct aged *list, size_t nr, uint64_t *to) {
  for (size_t b = 0; b < nr; b++)
    for (size_t a = 0; a < nr; a++) list[b].older += a != b && is_older(&list[a], &list[b]);
  for (size_t n = 0; n < nr; n++) {
    struct aged *const t = next_of(list, nr);
    t->placed = true;
    to[n] = t->number;
    for (size_t b = 0; b < nr; b++)
      if (!list[b].placed && is_older(t, &list[b])) list[b].older--;
  }
}

// Puts a table that cannot be opened behind the last one with a smaller number.
static void insert(uint64_t *tables, size_t nr, uint64_t number) {
  size_t at = nr;
  while (at > 0 && tables[at - 1] > number) at--;
  memmove(tables + at + 1, tables + at, (nr - at) * sizeof(*tables));
  tables[at] = number;
}

enum remixdb_status repair_order(struct repair *p, uint64_t *tables, size_t nr) {
  struct aged *const list = mem_array(nr + 1, sizeof(*list), 0);
  uint64_t *const bad = mem_array(nr + 1, sizeof(*bad), 0);
  enum remixdb_status s = list && bad ? REMIXDB_OK : REMIXDB_NOMEM;
  size_t good = 0, nr_bad = 0;
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    bool there;
    if ((s = look(p, tables[i], &list[good], &there)) != REMIXDB_OK) break;
    if (there) good++;
    else bad[nr_bad++] = tables[i];
  }
  if (s == REMIXDB_OK) {
    sort(list, good, tables);
    for (size_t i = 0; i < nr_bad; i++) insert(tables, good + i, bad[i]);
  }
  for (size_t i = 0; list && i < good; i++) mem_free(list[i].keys);
  mem_free(list);
  mem_free(bad);
  return s;
}
