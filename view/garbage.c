// SPDX-License-Identifier: Apache-2.0
#include "view/garbage.h"

// The live records of a view, and the bytes of all.
struct sums {
  double bytes, live, keys;
  uint64_t files;
};

static void add_view(struct sums *sums, const struct remix *x) {
  double bytes = 0, records = 0, tombs = 0, tomb_bytes = 0;
  if (!x) return;
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    const struct sst *const t = x->runs[r];
    sums->files += t->file_size;
    bytes += (double)(t->key_bytes + t->value_bytes);
    records += (double)t->nr_records;
    tombs += (double)t->nr_tombs;
    tomb_bytes += (double)t->nr_tombs * (double)t->key_bytes / (double)t->nr_records;
  }
  const double puts = records - tombs, live = puts > 0 ? (bytes - tomb_bytes) / puts * (double)x->nr_keys : 0;
  sums->files += x->file_size;
  sums->bytes += bytes;
  sums->live += live < bytes ? live : bytes;
  sums->keys += (double)x->nr_keys;
}

// A file's bytes count as those of its records.
static void add_away(struct sums *sums, const struct part_away *a) {
  uint64_t tables = 0;
  for (uint32_t i = 0; i < a->files.nr; i++) tables += a->files.tables[i].size;
  sums->files += tables + a->files.remix.size + a->files.young.size;
  sums->bytes += (double)tables;
  sums->live += a->entries ? (double)tables * (double)a->keys / (double)a->entries : 0;
  sums->keys += (double)a->keys;
}

void garbage_of(const struct part *p, struct garbage *out) {
  struct sums sums = {0};
  if (part_is_away(p)) {
    add_away(&sums, p->away);
  } else {
    add_view(&sums, part_remix(p));
    const double mean = sums.keys > 0 ? sums.live / sums.keys : 0, hidden = (double)part_hides(p);
    add_view(&sums, part_young(p));
    sums.live = sums.live > hidden * mean ? sums.live - hidden * mean : 0;
    sums.keys = sums.keys > hidden ? sums.keys - hidden : 0;
  }
  // where records are compressed, each takes its share of the files
  const double files = (double)sums.files, stored = sums.bytes > files ? files / sums.bytes : 1;
  out->files = sums.files;
  out->live = (uint64_t)(sums.live * stored);
  out->garbage = sums.bytes > sums.live ? (uint64_t)((sums.bytes - sums.live) * stored) : 0;
  out->keys = (uint64_t)sums.keys;
}

void garbage_all(const struct version *v, struct garbage *out) {
  *out = (struct garbage){0};
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      struct garbage g;
      garbage_of(tree->parts[i], &g);
      out->files += g.files;
      out->live += g.live;
      out->garbage += g.garbage;
      out->keys += g.keys;
    }
}
