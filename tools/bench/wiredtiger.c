// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wiredtiger.h>

#define TABLE "table:bench"

struct store {
  WT_CONNECTION *conn;
};

struct session {
  struct store *store;
  WT_SESSION *session;
  WT_CURSOR *cursor;
  uint32_t gathered;
  uint32_t batch;  // above 1: transactions of so many writes
  bool in_txn;
  bool stays;  // one transaction for all reads
  bool sync;
};

static enum bench_status failed(const char *what, int rc) {
  return bench_error(&bench_wiredtiger, what, wiredtiger_strerror(rc));
}

static const char *version(void) {
  static char text[32];
  int major, minor, patch;
  (void)wiredtiger_version(&major, &minor, &patch);
  snprintf(text, sizeof(text), "%d.%d.%d", major, minor, patch);
  return text;
}

static void *store_open(const struct bench_config *c) {
  if (strcmp(c->compression, "none")) {
    bench_error(&bench_wiredtiger, "open", "this program uses it without compression only");
    return NULL;
  }
  struct store *s = calloc(1, sizeof(*s));
  if (!s) return NULL;
  char config[400];
  // its cache is as large as the cache and two memtables of the others
  snprintf(config, sizeof(config),
           "create,cache_size=%zuM,session_max=%u,log=(enabled=true,file_max=100M),transaction_sync=(enabled=false),"
           "checkpoint=(wait=60,log_size=2GB),eviction=(threads_min=1,threads_max=%u),statistics=(none)%s",
           c->cache_mb + 2 * c->memtable_mb, 2 * c->threads + 50, c->cores > 4 ? 4 : c->cores,
           c->direct_io ? ",direct_io=[data]" : "");
  WT_SESSION *session = NULL;
  int rc = wiredtiger_open(c->dir, NULL, config, &s->conn);
  if (!rc) rc = s->conn->open_session(s->conn, NULL, NULL, &session);
  if (!rc) rc = session->create(session, TABLE, "key_format=u,value_format=u,block_compressor=none");
  if (session) session->close(session, NULL);
  if (!rc) return s;
  failed("open", rc);
  if (s->conn) s->conn->close(s->conn, NULL);
  free(s);
  return NULL;
}

static bool store_close(void *store) {
  struct store *s = store;
  const int rc = s->conn->close(s->conn, NULL);
  free(s);
  return !rc || failed("close", rc) == BENCH_OK;
}

static void session_end(void *session) {
  struct session *s = session;
  if (s->session) s->session->close(s->session, NULL);  // cursors and an open transaction end with it
  free(s);
}

static void *session_begin(void *store, unsigned flags, uint32_t batch) {
  struct session *s = calloc(1, sizeof(*s));
  if (!s) return NULL;
  s->store = store;
  s->stays = flags & BENCH_READS_ONLY;
  s->sync = flags & BENCH_SYNC;
  s->batch = batch;
  int rc = s->store->conn->open_session(s->store->conn, NULL, NULL, &s->session);
  if (!rc) rc = s->session->open_cursor(s->session, TABLE, NULL, NULL, &s->cursor);
  if (!rc && s->stays) rc = s->session->begin_transaction(s->session, "isolation=snapshot");
  if (!rc) return s;
  failed("begin", rc);
  session_end(s);
  return NULL;
}

static int commit(struct session *s) {
  if (!s->in_txn) return 0;
  s->in_txn = false;
  s->gathered = 0;
  return s->session->commit_transaction(s->session, s->sync ? "sync=on" : NULL);
}

static bool session_finish(void *session) {
  const int rc = commit(session);
  return !rc || failed("commit", rc) == BENCH_OK;
}

// A single write needs no transaction of its own making unless it is to be synced.
static int write_begin(struct session *s) {
  if (s->in_txn || (s->batch <= 1 && !s->sync)) return 0;
  const int rc = s->session->begin_transaction(s->session, NULL);
  s->in_txn = !rc;
  return rc;
}
static int written(struct session *s) { return ++s->gathered < s->batch ? 0 : commit(s); }

static WT_ITEM item(const void *p, uint32_t len) { return (WT_ITEM){.data = p, .size = len}; }

static enum bench_status put(void *session, const void *key, uint32_t klen, const void *value, uint32_t vlen) {
  struct session *s = session;
  const WT_ITEM k = item(key, klen), v = item(value, vlen);
  int rc;
  do {
    rc = write_begin(s);
    s->cursor->set_key(s->cursor, &k);
    s->cursor->set_value(s->cursor, &v);
    if (!rc) rc = s->cursor->insert(s->cursor);
  } while (rc == WT_ROLLBACK && !s->in_txn);  // another thread wrote the key at the same time
  if (!rc) rc = written(s);
  return rc ? failed("put", rc) : BENCH_OK;
}

static enum bench_status del(void *session, const void *key, uint32_t klen) {
  struct session *s = session;
  const WT_ITEM k = item(key, klen);
  int rc;
  do {
    rc = write_begin(s);
    s->cursor->set_key(s->cursor, &k);
    if (!rc) rc = s->cursor->remove(s->cursor);
  } while (rc == WT_ROLLBACK && !s->in_txn);
  if (!rc || rc == WT_NOTFOUND) rc = written(s);
  return rc ? failed("del", rc) : BENCH_OK;
}

static enum bench_status get(void *session, const void *key, uint32_t klen, struct bench_record *r) {
  struct session *s = session;
  const WT_ITEM k = item(key, klen);
  WT_ITEM v;
  s->cursor->set_key(s->cursor, &k);
  int rc = s->cursor->search(s->cursor);
  if (rc == WT_NOTFOUND) return BENCH_NONE;
  if (!rc) rc = s->cursor->get_value(s->cursor, &v);
  if (rc) return failed("get", rc);
  bench_take_value(r, v.data, v.size);
  return BENCH_OK;
}

static enum bench_status copy(struct session *s, int rc, struct bench_record *r) {
  WT_ITEM k, v;
  if (rc == WT_NOTFOUND) return BENCH_NONE;
  if (!rc) rc = s->cursor->get_key(s->cursor, &k);
  if (!rc) rc = s->cursor->get_value(s->cursor, &v);
  if (rc) return failed("scan", rc);
  bench_take(r, k.data, k.size, v.data, v.size);
  return BENCH_OK;
}

static enum bench_status next(void *session, struct bench_record *r) {
  struct session *s = session;
  return copy(s, s->cursor->next(s->cursor), r);
}

static enum bench_status prev(void *session, struct bench_record *r) {
  struct session *s = session;
  return copy(s, s->cursor->prev(s->cursor), r);
}

static enum bench_status seek(void *session, const void *key, uint32_t klen, struct bench_record *r) {
  struct session *s = session;
  if (!klen) {
    s->cursor->reset(s->cursor);
    return next(s, r);
  }
  const WT_ITEM k = item(key, klen);
  int exact = 0;
  s->cursor->set_key(s->cursor, &k);
  const int rc = s->cursor->search_near(s->cursor, &exact);
  return !rc && exact < 0 ? next(s, r) : copy(s, rc, r);
}

static enum bench_status seek_last(void *session, struct bench_record *r) {
  struct session *s = session;
  s->cursor->reset(s->cursor);
  return prev(s, r);
}

// Releases the snapshot that a standing cursor holds, so that the next seek sees later writes.
static void done(void *session) {
  struct session *s = session;
  if (!s->stays) s->cursor->reset(s->cursor);
}

static bool settle(void *store) {
  struct store *s = store;
  WT_SESSION *session = NULL;
  int rc = s->conn->open_session(s->conn, NULL, NULL, &session);
  if (!rc) rc = session->checkpoint(session, NULL);
  if (session) session->close(session, NULL);
  return !rc || failed("checkpoint", rc) == BENCH_OK;
}

const struct bench_engine bench_wiredtiger = {
    .name = "wiredtiger",
    .settings = "B-tree, cache_size = cache + two memtables, log without sync, a checkpoint a minute, up to 4 "
                "eviction threads; a session and a cursor per thread; benchmarks that only read in one snapshot "
                "transaction, else each call its own; settled is a checkpoint",
    .fill_batch = 1,
    .version = version,
    BENCH_FUNCTIONS,
    .flush = settle,
    .settle = settle,
};
