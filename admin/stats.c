// SPDX-License-Identifier: Apache-2.0
#include "admin/stats.h"

#include <inttypes.h>
#include <stdio.h>

#include "store/snapshot.h"

enum remixdb_status xdb_stats(struct xdb *x, char **json_out) {
  const size_t cap = 4096;
  char *buf = mem_alloc(cap);
  if (!buf) return REMIXDB_NOMEM;
  uint64_t tables = 0, entries = 0, keys = 0, table_bytes = 0, remix_bytes = 0, index_memory = 0, table_memory = 0;
  pthread_mutex_lock(&x->lock);  // holds the view where it is
  const struct super *v = xdb_super(x);
  const uint64_t active = wh_memory(v->active->wh), frozen = v->frozen ? wh_memory(v->frozen->wh) : 0;
  const uint64_t active_keys = wh_count(v->active->wh), frozen_keys = v->frozen ? wh_count(v->frozen->wh) : 0;
  const uint32_t parts = v->version->nr_parts;
  const uint64_t number = v->version->number;
  const uint32_t young_views = v->version->nr_young;
  for (uint32_t i = 0; i < parts; i++) {
    const struct part *const p = v->version->parts[i];
    const struct remix *const views[] = {p->remix, p->young};
    for (uint32_t k = 0; k < 2; k++) {
      if (!views[k]) continue;
      entries += views[k]->nr_entries;
      keys += views[k]->nr_keys;
      remix_bytes += views[k]->file_size;
      index_memory += remix_memory(views[k]);
    }
    tables += part_runs(p);
    for (uint32_t t = 0; t < part_runs(p); t++) {
      table_bytes += part_run(p, t)->file_size;
      table_memory += sst_memory(part_run(p, t));
    }
  }
  // what readers keep: every memtable that lives but the two of the view
  const uint64_t pinned = memtables_kept(&x->memtables, v->active, v->frozen);
  uint64_t oldest_ns = 0;
  pthread_mutex_lock(&x->snapshots.lock);
  const uint32_t snapshots = x->snapshots.nr;
  for (const struct xdb_snapshot *s = x->snapshots.first; s; s = s->next)
    if (oldest_ns == 0 || s->taken_ns < oldest_ns) oldest_ns = s->taken_ns;
  pthread_mutex_unlock(&x->snapshots.lock);
  const uint64_t oldest_ms = oldest_ns ? (time_ns() - oldest_ns) / 1000000 : 0;
  pthread_mutex_unlock(&x->lock);
  struct wal_stats wal = {0};
  if (x->wal) wal_stats(x->wal, &wal);
  struct cache_stats cache = {0};
  if (x->cache) cache_stats(x->cache, &cache);
  const struct compact_stats *c = &x->compact.stats;
#define GET(field) atomic_load_explicit(&(field), memory_order_relaxed)
  const int n = snprintf(
      buf, cap,
      "{\"version\":\"%s\",\"io\":\"%s\",\"read_only\":%s,\"workers\":%u,\"refs\":%u,\"iterators\":%u,\n"
      " \"sequence\":%" PRIu64 ",\"version_number\":%" PRIu64 ",\"partitions\":%u,\"tables\":%" PRIu64
      ",\"table_entries\":%" PRIu64 ",\"table_keys\":%" PRIu64 ",\"young_views\":%u,\n"
      " \"disk\":{\"table_bytes\":%" PRIu64 ",\"remix_bytes\":%" PRIu64 ",\"log_bytes\":%" PRIu64 "},\n"
      " \"memory\":{\"memtable_active\":%" PRIu64 ",\"memtable_frozen\":%" PRIu64 ",\"memtable_pool\":%" PRIu64
      ",\"cache_size\":%" PRIu64 ",\"cache_used\":%" PRIu64 ",\"remix\":%" PRIu64 ",\"tables\":%" PRIu64
      ",\"log_buffers\":%" PRIu64 "},\n"
      " \"snapshots\":{\"count\":%u,\"oldest_ms\":%" PRIu64 "},\n"
      " \"pinned\":{\"memory_bytes\":%" PRIu64 ",\"files\":%" PRIu64 ",\"file_bytes\":%" PRIu64 "},\n"
      " \"memtable\":{\"active_keys\":%" PRIu64 ",\"frozen_keys\":%" PRIu64 "},\n"
      " \"log\":{\"written_bytes\":%" PRIu64 ",\"records\":%" PRIu64 ",\"frames\":%" PRIu64 ",\"syncs\":%" PRIu64
      ",\"segments\":%" PRIu64 ",\"spare_segments\":%" PRIu64 ",\"durable_sequence\":%" PRIu64 "},\n"
      " \"cache\":{\"misses\":%" PRIu64 ",\"evictions\":%" PRIu64 ",\"declined\":%" PRIu64 ",\"bypasses\":%" PRIu64
      "},\n"
      " \"io_totals\":{\"reads\":%" PRIu64 ",\"read_bytes\":%" PRIu64 ",\"writes\":%" PRIu64 ",\"write_bytes\":%" PRIu64
      ",\"open_files\":%u,\"queues\":%u},\n"
      " \"compaction\":{\"rounds\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"keep\":%" PRIu64 ",\"abort\":%" PRIu64
      ",\"minor\":%" PRIu64 ",\"major\":%" PRIu64 ",\"split\":%" PRIu64 ",\"scan_merges\":%" PRIu64
      ",\"young\":%" PRIu64 ",\"table_bytes_written\":%" PRIu64 ",\"remix_bytes_written\":%" PRIu64
      ",\"table_bytes_merged\":%" PRIu64 ",\"handed_back_bytes\":%" PRIu64 ",\"remix_data_pages_read\":%" PRIu64 "},\n"
      " \"recovery\":{\"records\":%" PRIu64 ",\"frames\":%" PRIu64 ",\"segments\":%" PRIu64 ",\"bytes\":%" PRIu64
      ",\"cut_bytes\":%" PRIu64 "},\n"
      " \"stall\":{\"total_us\":%" PRIu64 ",\"longest_us\":%" PRIu64 "}}\n",
      REMIXDB_VERSION_STRING, blkio_engine(&x->io), x->opts.read_only ? "true" : "false",
      x->workers ? workers_count(x->workers) : 0, GET(x->nr_refs), GET(x->nr_iters), GET(x->published), number, parts,
      tables, entries, keys, young_views, table_bytes, remix_bytes, x->wal ? wal_segment_bytes(x->wal) : 0, active,
      frozen, (uint64_t)arena_pool_held(&x->memtables.chunks), cache.size, cache.used, index_memory, table_memory,
      wal.buffer_bytes, snapshots, oldest_ms, pinned, GET(x->retired.files), GET(x->retired.bytes), active_keys,
      frozen_keys, wal.bytes, wal.records, wal.frames, wal.syncs, wal.segments, wal.spare_segments,
      x->wal ? wal_durable_seq(x->wal) : 0, cache.misses, cache.evictions, cache.declined, cache.bypasses,
      GET(x->io.nr_reads), GET(x->io.read_bytes), GET(x->io.nr_writes), GET(x->io.write_bytes),
      fdpool_open_count(x->fds), blkio_lanes(&x->io), GET(c->rounds), GET(c->failed), GET(c->kinds[COMPACT_KEEP]),
      GET(c->kinds[COMPACT_ABORT]), GET(c->kinds[COMPACT_MINOR]), GET(c->kinds[COMPACT_MAJOR]),
      GET(c->kinds[COMPACT_SPLIT]), GET(c->scan_merges), GET(c->young), GET(c->table_bytes), GET(c->remix_bytes),
      GET(c->read_bytes), GET(c->handed_back), GET(c->remix_data_pages), x->recovery.nr_records, x->recovery.nr_frames,
      x->recovery.nr_segments, x->recovery.bytes, x->recovery.cut_bytes, GET(x->pace.stall_ns) / 1000,
      GET(x->pace.stall_max_ns) / 1000);
#undef GET
  if (n < 0 || (size_t)n >= cap) {
    mem_free(buf);
    return err_set(REMIXDB_TOOBIG, "the figures do not fit their buffer");
  }
  *json_out = buf;
  return REMIXDB_OK;
}
