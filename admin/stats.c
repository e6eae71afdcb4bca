// SPDX-License-Identifier: Apache-2.0
#include "admin/stats.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "compact/dropped.h"
#include "store/collect.h"
#include "store/garbage_look.h"
#include "store/refpool.h"
#include "store/snapshot.h"
#include "store/txn_pool.h"
#include "view/garbage.h"

#define LOAD(field) atomic_load_explicit(&(field), memory_order_relaxed)

// ---- figures that need the store's lock

// Sums over the partitions of the store's version.
struct parts_figures {
  bool expires;  // also of the memtables
  uint64_t partitions, tables, entries, keys, young_views, version_number, spaces, dropped_bytes;
  uint64_t tables_without_keys;
  uint64_t table_bytes, ckb_bytes, remix_bytes;  // on disk
  uint64_t table_memory, remix_memory;           // in memory
  uint64_t paged;                                // views
  struct garbage garbage;
};

struct memtables_figures {
  uint64_t active_bytes, active_keys, frozen_bytes, frozen_keys;
  uint64_t pinned_bytes;  // bytes of all others: only readers keep them
  uint64_t value_bytes;   // values apart that the active one and the frozen one have
};

struct snapshots_figures {
  uint64_t count, oldest_ms;
};

static void add_view(struct parts_figures *f, const struct remix *x) {
  if (!x) return;
  f->entries += x->nr_entries;
  f->keys += x->nr_keys;
  f->remix_bytes += x->file_size;
  f->remix_memory += remix_memory(x);
  f->paged += remix_is_paged(x);
}

static void add_away(struct parts_figures *f, const struct part_away *a) {
  f->entries += a->entries;
  f->keys += a->keys;
  f->remix_bytes += a->files.remix.size + a->files.young.size;
  f->tables += a->files.nr;
  for (uint32_t i = 0; i < a->files.nr; i++) f->table_bytes += a->files.tables[i].size;
}

static void add_part(struct parts_figures *f, const struct part *p) {
  if (part_is_away(p)) {
    add_away(f, p->away);
    return;
  }
  add_view(f, part_remix(p));
  add_view(f, part_young(p));
  f->tables += part_runs(p);
  for (uint32_t t = 0; t < part_runs(p); t++) {
    const struct sst *const run = part_run(p, t);
    f->table_bytes += run->file_size;
    f->ckb_bytes += run->ckb_len;
    f->tables_without_keys += run->ckb_len == 0;
    f->table_memory += sst_memory(run);
  }
}

static void gather_parts(const struct version *v, struct parts_figures *f) {
  *f = (struct parts_figures){.version_number = v->number, .spaces = names_count(v->names)};
  f->dropped_bytes = compact_dropped_bytes(v);
  garbage_all(v, &f->garbage);
  for (const struct version *tree = v; tree; tree = tree->spaces) {
    if (tree == v || !version_is_empty(tree)) f->partitions += tree->nr_parts;
    f->young_views += tree->nr_young;
    for (uint32_t i = 0; i < tree->nr_parts; i++) add_part(f, tree->parts[i]);
  }
}

static void gather_memtables(struct xdb *x, const struct super *v, struct memtables_figures *f) {
  *f = (struct memtables_figures){.active_bytes = memtable_memory(v->active), .active_keys = memtable_count(v->active)};
  f->value_bytes = atomic_load_explicit(&v->active->apart_bytes, memory_order_relaxed);
  f->pinned_bytes = memtables_kept(&x->memtables, v->active, v->frozen);
  if (!v->frozen) return;
  f->value_bytes += atomic_load_explicit(&v->frozen->apart_bytes, memory_order_relaxed);
  f->frozen_bytes = memtable_memory(v->frozen);
  f->frozen_keys = memtable_count(v->frozen);
}

static void gather_snapshots(struct xdb *x, struct snapshots_figures *f) {
  uint64_t oldest_ns = 0;
  pthread_mutex_lock(&x->snapshots.lock);
  f->count = x->snapshots.nr;
  for (const struct xdb_snapshot *s = x->snapshots.first; s; s = s->next)
    if (oldest_ns == 0 || s->taken_ns < oldest_ns) oldest_ns = s->taken_ns;
  pthread_mutex_unlock(&x->snapshots.lock);
  f->oldest_ms = oldest_ns ? (time_ns() - oldest_ns) / 1000000 : 0;
}

// ---- all figures

struct gathered {
  struct parts_figures parts;
  struct memtables_figures memtables;
  struct snapshots_figures snapshots;
  struct collect_figures values;
  struct txn_figures txns;
  struct wal_stats wal;
  struct cache_stats cache;
  struct packs_stats packs;
  struct mem_stats process;
};

union measured {
  uint64_t number;
  const char *text;
};

const struct figure_def figure_defs[] = {
#define FIGURE(type, name, unit, value, help) {name, unit, FIGURE_##type, help},
#define FIGURE_TEXT(name, value, help) {name, "", FIGURE_STRING, help},
#include "admin/figures.inc"
#undef FIGURE
#undef FIGURE_TEXT
};
#define NR_FIGURES (sizeof(figure_defs) / sizeof(figure_defs[0]))
const uint32_t figure_nr = NR_FIGURES;

static void gather(struct xdb *x, struct gathered *f) {
  *f = (struct gathered){0};
  pthread_mutex_lock(&x->lock);  // keeps the super alive
  const struct super *const super = xdb_super(x);
  gather_parts(super->version, &f->parts);
  f->parts.expires = super_expires(super, TREE_UNNAMED) ||
                     (super->version->spaces && super_expires(super, TREE_SPACES));
  gather_memtables(x, xdb_super(x), &f->memtables);
  gather_snapshots(x, &f->snapshots);
  pthread_mutex_unlock(&x->lock);
  collect_measure(x, &f->values);
  txn_figures(x, &f->txns);
  if (x->wal) wal_stats(x->wal, &f->wal);
  if (x->cache) cache_stats(x->cache, &f->cache);
  packs_measure(x->packs, &f->packs);
  mem_stats(&f->process);
}

// Sets NR_FIGURES values, in the order of the table.
static void measure(struct xdb *x, union measured *v) {
  struct gathered all;
  const struct gathered *const f = &all;
  const struct compact_stats *const c = &x->compact.stats;
  gather(x, &all);
#define FIGURE(type, name, unit, value, help) *v++ = (union measured){.number = (value)};
#define FIGURE_TEXT(name, value, help) *v++ = (union measured){.text = (value)};
#include "admin/figures.inc"
#undef FIGURE
#undef FIGURE_TEXT
}

enum remixdb_status xdb_figure(struct xdb *x, const char *name, uint64_t *value_out) {
  union measured values[NR_FIGURES];
  uint32_t i = 0;
  while (i < NR_FIGURES && strcmp(figure_defs[i].name, name) != 0) i++;
  if (i == NR_FIGURES) return REMIXDB_NOTFOUND;
  if (figure_defs[i].type == FIGURE_STRING) return err_set(REMIXDB_INVALID, "the figure `%s` is a text", name);
  measure(x, values);
  *value_out = values[i].number;
  return REMIXDB_OK;
}

// ---- the text

#define JSON_FIGURE 64u  // bytes of a figure in the text at most: name, largest value or text, object's name

struct json {
  char *text;
  size_t len, cap;
};

static void json_add(struct json *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void json_add(struct json *j, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  const int n = vsnprintf(j->text + j->len, j->cap - j->len, fmt, ap);
  va_end(ap);
  j->len = n < 0 || (size_t)n >= j->cap - j->len ? j->cap - 1 : j->len + (size_t)n;
}

static void json_value(struct json *j, enum figure_type type, union measured v) {
  if (type == FIGURE_STRING) json_add(j, "\"%s\"", v.text);
  else if (type == FIGURE_FLAG) json_add(j, "%s", v.number ? "true" : "false");
  else json_add(j, "%" PRIu64, v.number);
}

// The length of the name of the object that has the figure; 0: the outermost one.
static size_t object_len(const char *name) {
  const char *const dot = strchr(name, '.');
  return dot ? (size_t)(dot - name) : 0;
}

enum remixdb_status xdb_stats(struct xdb *x, char **json_out) {
  struct json j = {.cap = NR_FIGURES * JSON_FIGURE};
  if (!(j.text = mem_alloc(j.cap))) return REMIXDB_NOMEM;
  union measured values[NR_FIGURES];
  measure(x, values);
  size_t open = 0;  // length of the open object's name
  json_add(&j, "{");
  for (uint32_t i = 0; i < NR_FIGURES; i++) {
    const char *const name = figure_defs[i].name;
    const size_t len = object_len(name);
    const bool same = i > 0 && len == open && strncmp(name, figure_defs[i - 1].name, len) == 0;
    if (!same) json_add(&j, "%s%s", open ? "}" : "", i ? ",\n " : "");
    if (!same && len) json_add(&j, "\"%.*s\":{", (int)len, name);
    json_add(&j, "%s\"%s\":", same ? "," : "", name + (len ? len + 1 : 0));
    json_value(&j, figure_defs[i].type, values[i]);
    open = len;
  }
  json_add(&j, "%s}\n", open ? "}" : "");
  if (j.len == j.cap - 1) {
    mem_free(j.text);
    return err_set(REMIXDB_TOOBIG, "the figures do not fit their buffer");
  }
  *json_out = j.text;
  return REMIXDB_OK;
}
