// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/engine.h"

#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct store {
  MDB_env *env;
  MDB_dbi dbi;
};

struct session {
  struct store *store;
  MDB_txn *read;       // kept for the session; between reads it is reset unless nobody writes
  MDB_txn *write;      // open while writes are gathered
  MDB_cursor *cursor;  // the read transaction's
  uint32_t batch, gathered;
  unsigned put_flags;
  bool stays;  // the read transaction is never reset
  bool sync;
};

static enum bench_status failed(const char *what, int rc) { return bench_error(&bench_lmdb, what, mdb_strerror(rc)); }

static const char *version(void) {
  static char text[32];
  int major, minor, patch;
  mdb_version(&major, &minor, &patch);
  snprintf(text, sizeof(text), "%d.%d.%d", major, minor, patch);
  return text;
}

static void *store_open(const struct bench_config *c) {
  if (strcmp(c->compression, "none") || c->direct_io) {
    bench_error(&bench_lmdb, "open", "there is no compression and no direct I/O");
    return NULL;
  }
  struct store *s = calloc(1, sizeof(*s));
  if (!s) return NULL;
  // the map is address space, not memory; pages are half full after random inserts, and inserts may double the records
  const uint64_t data = c->num * (c->key_size + c->value_size + 16);
  const unsigned flags = MDB_NOSYNC | MDB_NOMETASYNC | MDB_WRITEMAP | MDB_MAPASYNC | MDB_NOTLS | MDB_NOMEMINIT |
                         (c->larger_than_memory ? MDB_NORDAHEAD : 0);
  MDB_txn *txn = NULL;
  int rc = mdb_env_create(&s->env);
  if (!rc) rc = mdb_env_set_mapsize(s->env, (size_t)(data * 6 + (1u << 30)) & ~(size_t)0xfffff);
  if (!rc) rc = mdb_env_set_maxreaders(s->env, 2 * c->threads + 16);
  if (!rc) rc = mdb_env_open(s->env, c->dir, flags, 0644);
  if (!rc) rc = mdb_txn_begin(s->env, NULL, 0, &txn);
  if (!rc) rc = mdb_dbi_open(txn, NULL, MDB_CREATE, &s->dbi);
  if (!rc) rc = mdb_txn_commit(txn);
  else if (txn) mdb_txn_abort(txn);
  if (!rc) return s;
  failed("open", rc);
  if (s->env) mdb_env_close(s->env);
  free(s);
  return NULL;
}

static bool store_close(void *store) {
  struct store *s = store;
  mdb_env_close(s->env);
  free(s);
  return true;
}

static void *session_begin(void *store, unsigned flags, uint32_t batch) {
  struct session *s = calloc(1, sizeof(*s));
  if (!s) return NULL;
  s->store = store;
  s->stays = flags & BENCH_READS_ONLY;
  s->sync = flags & BENCH_SYNC;
  s->batch = batch;
  s->put_flags = flags & BENCH_ASCENDING ? MDB_APPEND : 0;
  if (flags & BENCH_WRITES_ONLY) return s;
  int rc = mdb_txn_begin(s->store->env, NULL, MDB_RDONLY, &s->read);
  if (!rc) rc = mdb_cursor_open(s->read, s->store->dbi, &s->cursor);
  if (rc) {
    failed("begin", rc);
    if (s->read) mdb_txn_abort(s->read);
    free(s);
    return NULL;
  }
  if (!s->stays) mdb_txn_reset(s->read);
  return s;
}

static int commit(struct session *s) {
  if (!s->write) return 0;
  int rc = mdb_txn_commit(s->write);
  s->write = NULL;
  s->gathered = 0;
  if (!rc && s->sync) rc = mdb_env_sync(s->store->env, 1);
  return rc;
}

static bool session_finish(void *session) {
  const int rc = commit(session);
  return !rc || failed("commit", rc) == BENCH_OK;
}

static void session_end(void *session) {
  struct session *s = session;
  if (s->cursor) mdb_cursor_close(s->cursor);
  if (s->read) mdb_txn_abort(s->read);
  if (s->write) mdb_txn_abort(s->write);
  free(s);
}

static MDB_val val(const void *p, uint32_t len) { return (MDB_val){.mv_size = len, .mv_data = (void *)(uintptr_t)p}; }

static int write_begin(struct session *s) { return s->write ? 0 : mdb_txn_begin(s->store->env, NULL, 0, &s->write); }
static int written(struct session *s) { return ++s->gathered < s->batch ? 0 : commit(s); }

static enum bench_status put(void *session, const void *key, uint32_t klen, const void *value, uint32_t vlen) {
  struct session *s = session;
  MDB_val k = val(key, klen), v = val(value, vlen);
  int rc = write_begin(s);
  if (!rc) rc = mdb_put(s->write, s->store->dbi, &k, &v, s->put_flags);
  if (!rc) rc = written(s);
  return rc ? failed("put", rc) : BENCH_OK;
}

static enum bench_status del(void *session, const void *key, uint32_t klen) {
  struct session *s = session;
  MDB_val k = val(key, klen);
  int rc = write_begin(s);
  if (!rc) rc = mdb_del(s->write, s->store->dbi, &k, NULL);
  if (!rc || rc == MDB_NOTFOUND) rc = written(s);
  return rc ? failed("del", rc) : BENCH_OK;
}

static enum bench_status get(void *session, const void *key, uint32_t klen, struct bench_record *r) {
  struct session *s = session;
  MDB_val k = val(key, klen), v;
  int rc = s->stays ? 0 : mdb_txn_renew(s->read);
  if (rc) return failed("renew", rc);
  rc = mdb_get(s->read, s->store->dbi, &k, &v);
  if (!rc) bench_take_value(r, v.mv_data, v.mv_size);
  if (!s->stays) mdb_txn_reset(s->read);
  return !rc ? BENCH_OK : rc == MDB_NOTFOUND ? BENCH_NONE : failed("get", rc);
}

static enum bench_status rmw(void *session, const void *key, uint32_t klen, bench_modify_fn fn, void *arg) {
  struct session *s = session;
  MDB_val k = val(key, klen), v0, v;
  int rc = write_begin(s);
  if (rc) return failed("rmw", rc);
  rc = mdb_get(s->write, s->store->dbi, &k, &v0);
  if (rc && rc != MDB_NOTFOUND) return failed("rmw", rc);
  const void *v1;
  uint32_t v1len;
  if (!fn(arg, rc ? NULL : v0.mv_data, rc ? 0 : (uint32_t)v0.mv_size, &v1, &v1len)) return BENCH_OK;
  v = val(v1, v1len);
  rc = mdb_put(s->write, s->store->dbi, &k, &v, 0);
  if (!rc) rc = written(s);
  return rc ? failed("rmw", rc) : BENCH_OK;
}

static enum bench_status move(struct session *s, MDB_val *k, MDB_cursor_op op, struct bench_record *r) {
  MDB_val v;
  const int rc = mdb_cursor_get(s->cursor, k, &v, op);
  if (rc) return rc == MDB_NOTFOUND ? BENCH_NONE : failed("scan", rc);
  bench_take(r, k->mv_data, k->mv_size, v.mv_data, v.mv_size);
  return BENCH_OK;
}

static int scan_begin(struct session *s) {
  if (s->stays) return 0;
  const int rc = mdb_txn_renew(s->read);
  return rc ? rc : mdb_cursor_renew(s->read, s->cursor);
}

static enum bench_status seek(void *session, const void *key, uint32_t klen, struct bench_record *r) {
  struct session *s = session;
  MDB_val k = val(key, klen);
  const int rc = scan_begin(s);
  return rc ? failed("renew", rc) : move(s, &k, klen ? MDB_SET_RANGE : MDB_FIRST, r);
}

static enum bench_status seek_last(void *session, struct bench_record *r) {
  struct session *s = session;
  MDB_val k;
  const int rc = scan_begin(s);
  return rc ? failed("renew", rc) : move(s, &k, MDB_LAST, r);
}

static enum bench_status next(void *session, struct bench_record *r) {
  MDB_val k;
  return move(session, &k, MDB_NEXT, r);
}

static enum bench_status prev(void *session, struct bench_record *r) {
  MDB_val k;
  return move(session, &k, MDB_PREV, r);
}

static void done(void *session) {
  struct session *s = session;
  if (!s->stays) mdb_txn_reset(s->read);
}

static char *stats(void *store) {
  struct store *s = store;
  MDB_stat st;
  MDB_envinfo info;
  char *text = malloc(512);
  if (!text || mdb_env_stat(s->env, &st) || mdb_env_info(s->env, &info)) return text;
  snprintf(text, 512,
           "depth %u, branch pages %zu, leaf pages %zu, overflow pages %zu, entries %zu, page size %u, last page %zu, "
           "map %zu MiB\n",
           st.ms_depth, st.ms_branch_pages, st.ms_leaf_pages, st.ms_overflow_pages, st.ms_entries, st.ms_psize,
           info.me_last_pgno, info.me_mapsize >> 20);
  return text;
}

const struct bench_engine bench_lmdb = {
    .name = "lmdb",
    .settings = "MDB_NOSYNC|NOMETASYNC|WRITEMAP|MAPASYNC|NOTLS|NOMEMINIT (and NORDAHEAD when twice the data exceeds "
                "memory), a map of six times the data; no cache of its own, the page cache is all; 1000 writes a "
                "transaction in benchmarks that only write, else 1; MDB_APPEND in fillseq; a read transaction per "
                "thread, kept in benchmarks that only read, else renewed for every read",
    .maps_files = true,
    .fill_batch = 1000,
    .version = version,
    BENCH_FUNCTIONS,
    .rmw = rmw,
    .stats = stats,
};
