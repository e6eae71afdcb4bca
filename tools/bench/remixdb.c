// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/engine.h"
#include "remixdb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct session {
  struct xdb_ref *ref;
  struct xdb_iter *it;       // made at the first scan
  struct xdb_batch *gather;  // NULL: every write alone
  uint32_t batch;
  bool sync;
};

static enum bench_status failed(const char *what) {
  char text[600];
  snprintf(text, sizeof(text), "%s: %s", remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
  return bench_error(&bench_remixdb, what, text);
}

static void *store_open(const struct bench_config *c) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.cache_mb = c->cache_mb;
  o.memtable_mb = c->memtable_mb;
  o.direct_io = c->direct_io;
  o.io = c->io;
  if (!strcmp(c->compression, "zstd")) {
    o.compression = REMIXDB_COMPRESSION_ZSTD;
  } else if (strcmp(c->compression, "none")) {
    bench_error(&bench_remixdb, "open", "compression is none or zstd");
    return NULL;
  }
  struct xdb *x = remixdb_open_opts(c->dir, &o);
  if (!x) failed("open");
  return x;
}

static bool store_close(void *store) {
  remixdb_close(store);
  return remixdb_errcode() == REMIXDB_OK || failed("close") == BENCH_OK;
}

static void *session_begin(void *store, unsigned flags, uint32_t batch) {
  struct session *s = calloc(1, sizeof(*s));
  if (!s) return NULL;
  s->sync = flags & BENCH_SYNC;
  s->batch = batch;
  s->ref = remixdb_ref(store);
  if (s->ref && (batch <= 1 || (s->gather = remixdb_batch_create()))) return s;
  failed("begin");
  remixdb_unref(s->ref);
  free(s);
  return NULL;
}

static enum bench_status written(struct session *s, bool good) {
  if (!good) return failed("write");
  if (s->gather && remixdb_batch_count(s->gather) >= s->batch) {
    if (!remixdb_write(s->ref, s->gather)) return failed("write");
    remixdb_batch_clear(s->gather);
  }
  return !s->sync || remixdb_sync(s->ref) ? BENCH_OK : failed("sync");
}

static bool session_finish(void *session) {
  struct session *s = session;
  if (remixdb_batch_count(s->gather) && !remixdb_write(s->ref, s->gather)) return failed("write") == BENCH_OK;
  return true;
}

static void session_end(void *session) {
  struct session *s = session;
  remixdb_batch_destroy(s->gather);
  remixdb_iter_destroy(s->it);
  remixdb_unref(s->ref);
  free(s);
}

static enum bench_status put(void *session, const void *key, uint32_t klen, const void *value, uint32_t vlen) {
  struct session *s = session;
  return written(s, s->gather ? remixdb_batch_put(s->gather, key, klen, value, vlen)
                              : remixdb_put(s->ref, key, klen, value, vlen));
}

static enum bench_status del(void *session, const void *key, uint32_t klen) {
  struct session *s = session;
  return written(s, s->gather ? remixdb_batch_del(s->gather, key, klen) : remixdb_del(s->ref, key, klen));
}

struct modify {
  bench_modify_fn fn;
  void *arg;
};

static enum remixdb_merge_op merge(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  const struct modify *m = priv;
  return m->fn(m->arg, v0, v0len, v1, v1len) ? REMIXDB_MERGE_PUT : REMIXDB_MERGE_KEEP;
}

static enum bench_status rmw(void *session, const void *key, uint32_t klen, bench_modify_fn fn, void *arg) {
  struct session *s = session;
  struct modify m = {fn, arg};
  return written(s, remixdb_merge(s->ref, key, klen, merge, &m));
}

static enum bench_status get(void *session, const void *key, uint32_t klen, struct bench_record *r) {
  struct session *s = session;
  if (remixdb_get(s->ref, key, klen, r->value, &r->vlen)) return BENCH_OK;
  return remixdb_errcode() == REMIXDB_NOTFOUND ? BENCH_NONE : failed("get");
}

static enum bench_status multi_get(void *session, uint32_t nr, const struct bench_slice *keys, struct bench_record *r) {
  struct session *s = session;
  struct remixdb_slice ks[BENCH_MULTI_MAX];
  struct remixdb_buf values[BENCH_MULTI_MAX];
  bool found[BENCH_MULTI_MAX];
  uint32_t k = 0;
  do {
    ks[k] = (struct remixdb_slice){.ptr = keys[k].ptr, .len = keys[k].len};
    values[k] = (struct remixdb_buf){.ptr = r[k].value, .cap = r[k].vcap};
  } while (++k < nr);
  (void)remixdb_multi_get(s->ref, nr, ks, values, found);
  const enum remixdb_status e = remixdb_errcode();
  if (e != REMIXDB_OK && e != REMIXDB_TOOBIG)
    return failed("multi_get");  // a value that is too long is seen by its length
  for (uint32_t i = 0; i < nr; i++) r[i].vlen = found[i] ? values[i].len : BENCH_ABSENT;
  return BENCH_OK;
}

// The buffers hold any record that the benchmark has written.
static enum bench_status peek(struct session *s, struct bench_record *r) {
  if (remixdb_iter_peek(s->it, r->key, &r->klen, r->value, &r->vlen)) return BENCH_OK;
  return remixdb_iter_status(s->it) == REMIXDB_OK ? BENCH_NONE : failed("scan");
}

static bool scan_begin(struct session *s) { return s->it || (s->it = remixdb_iter_create(s->ref)); }

static enum bench_status seek(void *session, const void *key, uint32_t klen, struct bench_record *r) {
  struct session *s = session;
  if (!scan_begin(s)) return failed("iterator");
  remixdb_iter_seek(s->it, key, klen);
  return peek(s, r);
}

static enum bench_status seek_for_prev(void *session, const void *key, uint32_t klen, struct bench_record *r) {
  struct session *s = session;
  if (!scan_begin(s)) return failed("iterator");
  remixdb_iter_seek_for_prev(s->it, key, klen);
  return peek(s, r);
}

static enum bench_status seek_last(void *session, struct bench_record *r) {
  struct session *s = session;
  if (!scan_begin(s)) return failed("iterator");
  remixdb_iter_seek_last(s->it);
  return peek(s, r);
}

static enum bench_status next(void *session, struct bench_record *r) {
  struct session *s = session;
  remixdb_iter_skip1(s->it);
  return peek(s, r);
}

static enum bench_status prev(void *session, struct bench_record *r) {
  struct session *s = session;
  remixdb_iter_prev(s->it);
  return peek(s, r);
}

// The next seek takes a new view of the store, so the iterator may stand where it is.
static void done(void *session) { (void)session; }

static bool administer(void *store, const char *what, bool (*fn)(struct xdb_ref *)) {
  struct xdb_ref *ref = remixdb_ref(store);
  const bool good = ref && fn(ref);
  if (!good) failed(what);
  remixdb_unref(ref);
  return good;
}

static bool flush(void *store) { return administer(store, "flush", remixdb_flush); }
static bool compact(void *store) { return administer(store, "compact", remixdb_compact); }

// The figure `name` of the object `object`. BENCH_UNKNOWN: there is none.
static uint64_t figure(const char *text, const char *object, const char *name) {
  char what[64];
  snprintf(what, sizeof(what), "\"%s\":{", object);
  const char *const begin = strstr(text, what), *const end = begin ? strchr(begin, '}') : NULL;
  snprintf(what, sizeof(what), "\"%s\":", name);
  const char *const at = begin ? strstr(begin, what) : NULL;
  return at && end && at < end ? strtoull(at + strlen(what), NULL, 10) : BENCH_UNKNOWN;
}

// Rounds and scan merges until now, and their writes.
struct progress {
  uint64_t frozen, rounds, scan_merges, garbage_merges, writes, pending;
};

static bool progress_get(void *store, struct progress *p) {
  char *text = remixdb_stats(store);
  if (!text) return failed("stats") == BENCH_OK;
  p->frozen = figure(text, "memory", "memtable_frozen");
  p->rounds = figure(text, "compaction", "rounds");
  p->scan_merges = figure(text, "compaction", "scan_merges");
  p->garbage_merges = figure(text, "compaction", "garbage_merges");
  p->writes = figure(text, "io_totals", "writes");
  remixdb_free(text);
  if (!remixdb_figure(store, "compaction.garbage_pending", &p->pending)) p->pending = 0;  // an older library
  return p->frozen != BENCH_UNKNOWN ||
         bench_error(&bench_remixdb, "settle", "the figures do not tell of the frozen memtable") == BENCH_OK;
}

#define CALM_LOOKS 30
#define LOOK_NS 10000000

// A frozen memtable is there until its round has ended. The figures do not tell whether a scan merge is due or runs,
// but it writes all the time. So the store has settled when nothing has changed at many looks in a row.
static bool settle(void *store) {
  struct progress last = {0}, now;
  for (int calm = 0; calm < CALM_LOOKS; calm++) {
    if (!progress_get(store, &now)) return false;
    if (now.frozen || now.pending || memcmp(&now, &last, sizeof(now)) != 0) calm = 0;
    last = now;
    nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
  }
  return true;
}

static void counters(void *store, struct bench_counters *out) {
  char *text = remixdb_stats(store);
  if (!text) return;
  out->reads = figure(text, "io_totals", "reads");
  out->read_bytes = figure(text, "io_totals", "read_bytes");
  out->trips = figure(text, "io_totals", "trips");
  remixdb_free(text);
}

static char *stats(void *store) {
  char *text = remixdb_stats(store), *copy = text ? strdup(text) : NULL;
  remixdb_free(text);
  return copy;
}

const struct bench_engine bench_remixdb = {
    .name = "remixdb",
    .settings = "defaults (compressed keys, tags, workers and I/O chosen by the store), with the cache and the "
                "memtable given; an iterator per thread, whose seek takes a new view of the store each time",
    .fill_batch = 1,
    .version = remixdb_version,
    BENCH_FUNCTIONS,
    .rmw = rmw,
    .multi_get = multi_get,
    .seek_for_prev = seek_for_prev,
    .flush = flush,
    .compact = compact,
    .settle = settle,
    .stats = stats,
    .counters = counters,
};
