// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/report.h"

#include <inttypes.h>

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }
static double mb(uint64_t bytes) { return (double)bytes / 1e6; }
static double us(const struct bench_hist *h, double part) {
  return (double)bench_hist_percentile(h, part) * bench_tick_ns() / 1e3;
}

static uint64_t written(const struct bench_report *t) { return t->after.write_bytes - t->before.write_bytes; }
static uint64_t read_in(const struct bench_report *t) { return t->after.read_bytes - t->before.read_bytes; }
static double cpu_seconds(const struct bench_report *t) { return (double)(t->after.cpu_ns - t->before.cpu_ns) / 1e9; }
static uint64_t counted(uint64_t before, uint64_t after) {
  return before == BENCH_UNKNOWN || after == BENCH_UNKNOWN ? BENCH_UNKNOWN : after - before;
}
static double write_amp(const struct bench_report *t) { return ratio((double)written(t), (double)t->r.bytes_written); }
static double read_amp(const struct bench_report *t) { return ratio((double)read_in(t), (double)t->r.bytes_read); }
static double space_amp(const struct bench_report *t) { return ratio((double)t->space, (double)t->live); }
static double write_amp_total(const struct bench_report *t) {
  return ratio((double)(t->after.write_bytes - t->fresh.write_bytes), (double)t->user_written);
}

// ---- text for people

static void print_rate(FILE *f, const struct bench_report *t) {
  const struct bench_result *r = &t->r;
  if (!r->ops) {
    fprintf(f, "%-24s: %.3f seconds\n", t->label, r->seconds);
    return;
  }
  fprintf(f, "%-24s: %8.3f micros/op %9.0f ops/sec %.3f seconds %" PRIu64 " operations; %.1f MB/s", t->label,
          r->seconds * 1e6 * t->threads / (double)r->ops, ratio((double)r->ops, r->seconds), r->seconds, r->ops,
          ratio(mb(r->bytes_read + r->bytes_written), r->seconds));
  if (r->missed) fprintf(f, " (%" PRIu64 " of %" PRIu64 " found)", r->reads - r->missed, r->reads);
  if (r->side_ops) fprintf(f, "; beside it %.0f ops/sec", ratio((double)r->side_ops, r->side_seconds));
  fprintf(f, "\n");
}

static void print_latency(FILE *f, const char *what, const struct bench_hist *h) {
  if (!h->count) return;
  fprintf(f, "  %-8s latency us: p50 %.2f, p99 %.2f, p99.9 %.2f, max %.2f (%" PRIu64 " timed)\n", what, us(h, .5),
          us(h, .99), us(h, .999), us(h, 1), h->count);
}

static void print_storage(FILE *f, const struct bench_report *t) {
  if (!t->after.io_known) return;
  fprintf(f, "storage: written %.1f MB (amplification", mb(written(t)));
  if (t->r.bytes_written) fprintf(f, " %.2f,", write_amp(t));
  fprintf(f, " %.2f since the store was made), read %.1f MB", write_amp_total(t), mb(read_in(t)));
  if (t->r.bytes_read) fprintf(f, " (amplification %.2f)", read_amp(t));
  fprintf(f, "; ");
}

void bench_report_print(FILE *f, const struct bench_report *t) {
  print_rate(f, t);
  print_latency(f, "read", &t->r.read);
  print_latency(f, "write", &t->r.write);
  fprintf(f, "  ");
  print_storage(f, t);
  fprintf(f, "space %.1f MB", mb(t->space));
  if (t->live) fprintf(f, " (amplification %.2f)", space_amp(t));
  if (t->r.room_most > 0) fprintf(f, ", at most %.2f of what was put", t->r.room_most);
  if (t->after.memory_known)
    fprintf(f, "; memory %.1f MB at its peak, %.1f after (%.1f of its own)", mb(t->after.rss_peak), mb(t->after.rss),
            mb(t->after.rss_anon));
  fprintf(f, "; cpu %.2f s", cpu_seconds(t));
  if (t->r.ops) fprintf(f, " (%.3f micros/op in its threads)", (double)t->r.used.cpu_ns / 1e3 / (double)t->r.ops);
  fprintf(f, "\n");
  fflush(f);
}

// ---- CSV for programs

struct out {
  FILE *f;
  bool names;
  bool any;  // a column was written
};

static void name_of(struct out *o, const char *name) {
  fprintf(o->f, "%s%s", o->any ? "," : "", o->names ? name : ""), o->any = true;
}
static void text(struct out *o, const char *name, const char *v) {
  name_of(o, name);
  if (!o->names) fputs(v, o->f);
}
static void count(struct out *o, const char *name, uint64_t v) {
  name_of(o, name);
  if (!o->names) fprintf(o->f, "%" PRIu64, v);
}
static void real(struct out *o, const char *name, double v) {
  name_of(o, name);
  if (!o->names) fprintf(o->f, "%.6g", v);
}

static void csv_latencies(struct out *o, const struct bench_hist *read, const struct bench_hist *write) {
  real(o, "read_p50_us", us(read, .5));
  real(o, "read_p99_us", us(read, .99));
  real(o, "read_p999_us", us(read, .999));
  real(o, "read_max_us", us(read, 1));
  real(o, "write_p50_us", us(write, .5));
  real(o, "write_p99_us", us(write, .99));
  real(o, "write_p999_us", us(write, .999));
  real(o, "write_max_us", us(write, 1));
}

static void csv_bytes(struct out *o, const struct bench_report *t) {
  count(o, "user_read_bytes", t->r.bytes_read);
  count(o, "user_written_bytes", t->r.bytes_written);
  count(o, "rchar", t->after.rchar - t->before.rchar);
  count(o, "wchar", t->after.wchar - t->before.wchar);
  count(o, "read_bytes", read_in(t));
  count(o, "write_bytes", written(t));
  count(o, "cancelled_bytes", t->after.cancelled_bytes - t->before.cancelled_bytes);
  real(o, "write_amp", write_amp(t));
  real(o, "write_amp_total", write_amp_total(t));
  real(o, "read_amp", read_amp(t));
  count(o, "space_bytes", t->space);
  real(o, "space_amp", space_amp(t));
  real(o, "room_most", t->r.room_most);
}

static void known_count(struct out *o, const char *name,
                        uint64_t v) {  // an empty cell means that the value is not known
  if (v != BENCH_UNKNOWN) count(o, name, v);
  else text(o, name, "");
}

static void csv_processor(struct out *o, const struct bench_report *t) {
  const struct bench_thread_usage *u = &t->r.used;
  real(o, "cpu_s", cpu_seconds(t));
  real(o, "user_s", (double)(t->after.user_ns - t->before.user_ns) / 1e9);
  real(o, "system_s", (double)(t->after.system_ns - t->before.system_ns) / 1e9);
  real(o, "thread_cpu_s", (double)u->cpu_ns / 1e9);
  real(o, "thread_user_s", (double)u->user_ns / 1e9);
  real(o, "thread_system_s", (double)u->system_ns / 1e9);
  count(o, "waits", u->waits);
}

static void csv_transfers(struct out *o, const struct bench_report *t) {
  const struct bench_usage *a = &t->before, *b = &t->after;
  const bool disk = a->disk_known && b->disk_known;
  known_count(o, "disk_reads", disk ? b->disk_reads - a->disk_reads : BENCH_UNKNOWN);
  known_count(o, "disk_read_bytes", disk ? b->disk_read_bytes - a->disk_read_bytes : BENCH_UNKNOWN);
  known_count(o, "disk_writes", disk ? b->disk_writes - a->disk_writes : BENCH_UNKNOWN);
  known_count(o, "disk_write_bytes", disk ? b->disk_write_bytes - a->disk_write_bytes : BENCH_UNKNOWN);
  known_count(o, "own_reads", counted(t->counted_before.reads, t->counted_after.reads));
  known_count(o, "own_read_bytes", counted(t->counted_before.read_bytes, t->counted_after.read_bytes));
  known_count(o, "own_trips", counted(t->counted_before.trips, t->counted_after.trips));
}

void bench_report_csv(FILE *f, const struct bench_report *t, bool names) {
  struct out o = {.f = f, .names = names};
  const struct bench_result *r = &t->r;
  text(&o, "engine", t->engine->name);
  text(&o, "version", t->engine->version());
  text(&o, "benchmark", t->label);
  count(&o, "num", t->config->num);
  count(&o, "key_size", t->config->key_size);
  count(&o, "value_size", t->config->value_size);
  count(&o, "cache_mb", t->config->cache_mb);
  count(&o, "memtable_mb", t->config->memtable_mb);
  count(&o, "threads", t->threads);
  count(&o, "ops", r->ops);
  real(&o, "seconds", r->seconds);
  real(&o, "ops_per_s", ratio((double)r->ops, r->seconds));
  count(&o, "reads", r->reads);
  count(&o, "writes", r->writes);
  count(&o, "missed", r->missed);
  count(&o, "records", r->records);
  real(&o, "side_ops_per_s", ratio((double)r->side_ops, r->side_seconds));
  csv_latencies(&o, &r->read, &r->write);
  csv_bytes(&o, t);
  count(&o, "rss_base", t->base.rss);
  count(&o, "rss_peak", t->after.rss_peak);
  count(&o, "rss", t->after.rss);
  count(&o, "rss_anon", t->after.rss_anon);
  count(&o, "trace_bytes", r->trace_bytes);
  csv_processor(&o, t);
  csv_transfers(&o, t);
  count(&o, "failures", t->failures);
  fputs("\n", f);
  fflush(f);
}
