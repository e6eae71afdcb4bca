// SPDX-License-Identifier: Apache-2.0
#include "view/live.h"

// A file that was collected counts for the one that has its values.
static void add_file(const struct version *v, uint64_t number, uint64_t bytes, uint64_t *live_out) {
  uint32_t i = value_set_place(&v->values, number);
  if (i == v->values.nr || v->values.files[i]->number != number) {
    const struct value_index *const x = value_moves_find(&v->moves, number);
    if (!x) return;
    i = value_set_place(&v->values, x->file->number);
  }
  live_out[i] += bytes;
}

// Adds what the records of a table refer to; so many of them are hidden.
static void add_table(const struct version *v, const struct sst *t, uint64_t hidden, uint64_t *live_out) {
  const double share = hidden < t->nr_records ? 1.0 - (double)hidden / (double)t->nr_records : 0;
  for (uint32_t k = 0; k < t->nr_apart; k++)
    add_file(v, t->apart[k].file, (uint64_t)((double)t->apart[k].bytes * share), live_out);
}

// Adds what the records of a view refer to.
static enum remixdb_status add_view(const struct version *v, struct remix *x, uint64_t *live_out) {
  const uint32_t *hidden = NULL;
  for (uint32_t r = 0; x && r < x->nr_runs; r++) {
    if (x->runs[r]->nr_apart == 0) continue;
    const enum remixdb_status s = hidden ? REMIXDB_OK : remix_hidden(x, &hidden);
    if (s != REMIXDB_OK) return s;
    add_table(v, x->runs[r], hidden[r], live_out);
  }
  return REMIXDB_OK;
}

// The same, as if each table had all the hidden records.
static void add_least(const struct version *v, const struct remix *x, uint64_t *live_out) {
  for (uint32_t r = 0; x && r < x->nr_runs; r++) add_table(v, x->runs[r], x->nr_entries - x->nr_keys, live_out);
}

// A partition that is away may refer to any value.
static enum remixdb_status all_live(const struct version *v, uint64_t *live_out) {
  for (uint32_t i = 0; i < v->values.nr; i++)
    live_out[i] = atomic_load_explicit(&v->values.files[i]->value_bytes, memory_order_relaxed);
  return REMIXDB_OK;
}

// Bytes apart of all records of a view; NULL: none.
static uint64_t view_apart(const struct remix *x) {
  uint64_t bytes = 0;
  for (uint32_t r = 0; x && r < x->nr_runs; r++)
    for (uint32_t k = 0; k < x->runs[r]->nr_apart; k++) bytes += x->runs[r]->apart[k].bytes;
  return bytes;
}

uint64_t live_young(const struct version *v) {
  uint64_t bytes = 0;
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      const struct part *const p = tree->parts[i];
      if (part_is_away(p)) continue;
      const uint64_t hiding = view_apart(part_young(p)), hidden = view_apart(part_remix(p));
      bytes += hiding < hidden ? hiding : hidden;
    }
  return bytes;
}

// The bytes of a table's values that are in the file now.
static uint64_t table_refers(const struct version *v, const struct sst *t, const struct value_file *f) {
  uint64_t bytes = 0;
  for (uint32_t k = 0; k < t->nr_apart; k++) {
    const struct value_index *const moved = value_moves_find(&v->moves, t->apart[k].file);
    if (t->apart[k].file == f->number || (moved && moved->file == f)) bytes += t->apart[k].bytes;
  }
  return bytes;
}

uint64_t live_referred(const struct version *v, const struct value_file *f) {
  uint64_t bytes = 0;
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      const struct part *const p = tree->parts[i];
      if (part_is_away(p)) return UINT64_MAX;
      for (uint32_t r = 0; r < part_runs(p); r++) bytes += table_refers(v, part_run(p, r), f);
    }
  return bytes;
}

// The bytes of a file are counted by its writer, and those of its records by tables: a crash may have lost some.
static void at_most_all(const struct version *v, uint64_t *live_out) {
  for (uint32_t i = 0; i < v->values.nr; i++) {
    const uint64_t all = atomic_load_explicit(&v->values.files[i]->value_bytes, memory_order_relaxed);
    if (live_out[i] > all) live_out[i] = all;
  }
}

void live_least(const struct version *v, uint64_t *live_out) {
  for (uint32_t i = 0; i < v->values.nr; i++) live_out[i] = 0;
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      const struct part *const p = tree->parts[i];
      if (part_is_away(p)) {
        (void)all_live(v, live_out);
        return;
      }
      add_least(v, part_remix(p), live_out);
      add_least(v, part_young(p), live_out);
    }
  at_most_all(v, live_out);
}

enum remixdb_status live_values(const struct version *v, uint64_t *live_out) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < v->values.nr; i++) live_out[i] = 0;
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts && s == REMIXDB_OK; i++) {
      const struct part *const p = tree->parts[i];
      if (part_is_away(p)) return all_live(v, live_out);
      s = add_view(v, part_remix(p), live_out);
      if (s == REMIXDB_OK) s = add_view(v, part_young(p), live_out);
    }
  at_most_all(v, live_out);
  return s;
}
