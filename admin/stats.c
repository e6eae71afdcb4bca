// SPDX-License-Identifier: Apache-2.0
#include "admin/stats.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "store/snapshot.h"

#define JSON_MAX 4096u  // bytes of the text; all figures at their largest fit
#define LOAD(field) atomic_load_explicit(&(field), memory_order_relaxed)

// ---- figures that need the store's lock

// Sums over the partitions of the store's version.
struct parts_figures {
  uint64_t partitions, tables, entries, keys, young_views, version_number;
  uint64_t table_bytes, remix_bytes;    // on disk
  uint64_t table_memory, remix_memory;  // in memory
};

struct memtables_figures {
  uint64_t active_bytes, active_keys, frozen_bytes, frozen_keys;
  uint64_t pinned_bytes;  // of all others: only readers keep them
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
}

static void add_part(struct parts_figures *f, const struct part *p) {
  add_view(f, p->remix);
  add_view(f, p->young);
  f->tables += part_runs(p);
  for (uint32_t t = 0; t < part_runs(p); t++) {
    f->table_bytes += part_run(p, t)->file_size;
    f->table_memory += sst_memory(part_run(p, t));
  }
}

static void gather_parts(const struct version *v, struct parts_figures *f) {
  *f = (struct parts_figures){.version_number = v->number};
  for (const struct version *tree = v; tree; tree = tree->spaces) {
    if (tree == v || !version_is_empty(tree)) f->partitions += tree->nr_parts;
    f->young_views += tree->nr_young;
    for (uint32_t i = 0; i < tree->nr_parts; i++) add_part(f, tree->parts[i]);
  }
}

static void gather_memtables(struct xdb *x, const struct super *v, struct memtables_figures *f) {
  *f = (struct memtables_figures){.active_bytes = memtable_memory(v->active), .active_keys = memtable_count(v->active)};
  f->pinned_bytes = memtables_kept(&x->memtables, v->active, v->frozen);
  if (!v->frozen) return;
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

// ---- the text

struct json {
  char *text;
  size_t len;
  bool overflow;  // the rest is missing
};

static void json_add(struct json *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void json_add(struct json *j, const char *fmt, ...) {
  if (j->overflow) return;
  va_list ap;
  va_start(ap, fmt);
  const int n = vsnprintf(j->text + j->len, JSON_MAX - j->len, fmt, ap);
  va_end(ap);
  j->overflow = n < 0 || (size_t)n >= JSON_MAX - j->len;
  if (!j->overflow) j->len += (size_t)n;
}

struct figure {
  const char *name;
  uint64_t value;
};

static void json_figures(struct json *j, const struct figure *f, size_t nr) {
  for (size_t i = 0; i < nr; i++) json_add(j, "%s\"%s\":%" PRIu64, i ? "," : "", f[i].name, f[i].value);
}

// Makes the figures that follow members of the open object (no name), or of a new object with this name.
#define FIGURES(j, ...)                                    \
  do {                                                     \
    const struct figure list[] = {__VA_ARGS__};            \
    json_figures(j, list, sizeof(list) / sizeof(list[0])); \
  } while (0)
#define OBJECT(j, name, ...)           \
  do {                                 \
    json_add(j, ",\n \"%s\":{", name); \
    FIGURES(j, __VA_ARGS__);           \
    json_add(j, "}");                  \
  } while (0)

static void put_store(struct json *j, struct xdb *x, const struct parts_figures *parts) {
  json_add(j, "\"version\":\"%s\",\"io\":\"%s\",\"read_only\":%s,", REMIXDB_VERSION_STRING, blkio_engine(&x->io),
           x->opts.read_only ? "true" : "false");
  FIGURES(j, {"workers", x->workers ? workers_count(x->workers) : 0}, {"refs", LOAD(x->nr_refs)},
          {"iterators", LOAD(x->nr_iters)});
  json_add(j, ",\n ");
  FIGURES(j, {"sequence", LOAD(x->published)}, {"version_number", parts->version_number},
          {"partitions", parts->partitions}, {"tables", parts->tables}, {"table_entries", parts->entries},
          {"table_keys", parts->keys}, {"young_views", parts->young_views});
}

static void put_sizes(struct json *j, struct xdb *x, const struct parts_figures *parts,
                      const struct memtables_figures *mem, const struct wal_stats *wal,
                      const struct cache_stats *cache) {
  OBJECT(j, "disk", {"table_bytes", parts->table_bytes}, {"remix_bytes", parts->remix_bytes},
         {"log_bytes", x->wal ? wal_segment_bytes(x->wal) : 0});
  OBJECT(j, "memory", {"memtable_active", mem->active_bytes}, {"memtable_frozen", mem->frozen_bytes},
         {"memtable_pool", arena_pool_held(&x->memtables.chunks)}, {"cache_size", cache->size},
         {"cache_used", cache->used}, {"cache_touched", cache->touched}, {"remix", parts->remix_memory},
         {"tables", parts->table_memory}, {"log_buffers", wal->buffer_bytes});
  struct mem_stats all;
  mem_stats(&all);
  OBJECT(j, "process_memory", {"heap", all.heap}, {"large", all.large}, {"kept", all.kept}, {"mapped", all.mapped},
         {"large_blocks", all.nr_large}, {"large_mapped", all.nr_mapped}, {"large_reused", all.nr_reused});
}

static void put_readers(struct json *j, struct xdb *x, const struct memtables_figures *mem,
                        const struct snapshots_figures *snapshots) {
  OBJECT(j, "snapshots", {"count", snapshots->count}, {"oldest_ms", snapshots->oldest_ms});
  OBJECT(j, "pinned", {"memory_bytes", mem->pinned_bytes}, {"files", LOAD(x->retired.files)},
         {"file_bytes", LOAD(x->retired.bytes)});
  OBJECT(j, "memtable", {"active_keys", mem->active_keys}, {"frozen_keys", mem->frozen_keys});
}

static void put_traffic(struct json *j, struct xdb *x, const struct wal_stats *wal, const struct cache_stats *cache) {
  OBJECT(j, "log", {"written_bytes", wal->bytes}, {"records", wal->records}, {"frames", wal->frames},
         {"syncs", wal->syncs}, {"segments", wal->segments}, {"pool_segments", wal->pool_segments},
         {"durable_sequence", x->wal ? wal_durable_seq(x->wal) : 0});
  OBJECT(j, "cache", {"misses", cache->misses}, {"evictions", cache->evictions}, {"declined", cache->declined},
         {"bypasses", cache->bypasses});
  OBJECT(j, "io_totals", {"reads", LOAD(x->io.nr_reads)}, {"read_bytes", LOAD(x->io.read_bytes)},
         {"trips", LOAD(x->io.nr_trips)}, {"writes", LOAD(x->io.nr_writes)}, {"write_bytes", LOAD(x->io.write_bytes)},
         {"open_files", fdpool_open_count(x->fds)}, {"queues", blkio_lanes(&x->io)});
}

static void put_work(struct json *j, struct xdb *x) {
  const struct compact_stats *const c = &x->compact.stats;
  OBJECT(j, "compaction", {"rounds", LOAD(c->rounds)}, {"failed", LOAD(c->failed)},
         {"keep", LOAD(c->kinds[COMPACT_KEEP])}, {"abort", LOAD(c->kinds[COMPACT_ABORT])},
         {"minor", LOAD(c->kinds[COMPACT_MINOR])}, {"major", LOAD(c->kinds[COMPACT_MAJOR])},
         {"split", LOAD(c->kinds[COMPACT_SPLIT])}, {"scan_merges", LOAD(c->scan_merges)}, {"young", LOAD(c->young)},
         {"table_bytes_written", LOAD(c->table_bytes)}, {"remix_bytes_written", LOAD(c->remix_bytes)},
         {"table_bytes_merged", LOAD(c->read_bytes)}, {"handed_back_bytes", LOAD(c->handed_back)},
         {"remix_data_pages_read", LOAD(c->remix_data_pages)});
  OBJECT(j, "recovery", {"records", x->recovery.nr_records}, {"frames", x->recovery.nr_frames},
         {"segments", x->recovery.nr_segments}, {"bytes", x->recovery.bytes}, {"cut_bytes", x->recovery.cut_bytes});
  OBJECT(j, "stall", {"total_us", LOAD(x->pace.stall_ns) / 1000}, {"longest_us", LOAD(x->pace.stall_max_ns) / 1000});
}

enum remixdb_status xdb_stats(struct xdb *x, char **json_out) {
  struct json j = {.text = mem_alloc(JSON_MAX)};
  if (!j.text) return REMIXDB_NOMEM;
  struct parts_figures parts;
  struct memtables_figures mem;
  struct snapshots_figures snapshots;
  struct wal_stats wal = {0};
  struct cache_stats cache = {0};
  pthread_mutex_lock(&x->lock);  // keeps the super alive
  gather_parts(xdb_super(x)->version, &parts);
  gather_memtables(x, xdb_super(x), &mem);
  gather_snapshots(x, &snapshots);
  pthread_mutex_unlock(&x->lock);
  if (x->wal) wal_stats(x->wal, &wal);
  if (x->cache) cache_stats(x->cache, &cache);
  json_add(&j, "{");
  put_store(&j, x, &parts);
  put_sizes(&j, x, &parts, &mem, &wal, &cache);
  put_readers(&j, x, &mem, &snapshots);
  put_traffic(&j, x, &wal, &cache);
  put_work(&j, x);
  json_add(&j, "}\n");
  if (j.overflow) {
    mem_free(j.text);
    return err_set(REMIXDB_TOOBIG, "the figures do not fit their buffer");
  }
  *json_out = j.text;
  return REMIXDB_OK;
}
