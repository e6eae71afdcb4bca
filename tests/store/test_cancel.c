// SPDX-License-Identifier: Apache-2.0
//
// Threads that are cancelled (pthread_cancel) in a call of the library: the call ends first, the thread then, and the
// store goes on.
#include <errno.h>

#include "tests/lib/check.h"
#include "tests/lib/store.h"

#define KEYS 6000u
#define VALUE 400u

static struct remixdb_slice key_of(char *buf, uint32_t n) {
  return (struct remixdb_slice){buf, (uint32_t)sprintf(buf, "key%08u", n)};
}

static bool put(struct xdb_ref *r, uint32_t n) {
  char key[16], value[VALUE];
  const struct remixdb_slice k = key_of(key, n);
  memset(value, 'v', sizeof(value));
  return remixdb_put(r, k.ptr, k.len, value, sizeof(value));
}

// A logger, a function that hears of progress and one of a merge, in which a thread may be cancelled: what it is in
// then is a call.
static void logs(void *priv, const char *line) {
  (void)priv, (void)line;
  pthread_testcancel();
}

static bool hears(void *priv, const char *what, uint64_t done, uint64_t total) {
  (void)priv, (void)what, (void)done, (void)total;
  pthread_testcancel();
  return true;
}

static enum remixdb_merge_op merges(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  (void)v0, (void)v0len, (void)priv;
  pthread_testcancel();
  *v1 = "merged";
  *v1len = 6;
  return REMIXDB_MERGE_PUT;
}

// ---- the calls

struct scene {
  struct xdb *x;
  struct xdb_ref *r;
  char other[600];  // a directory
  struct remixdb_opts o;
};

static bool do_sync(struct scene *s) { return put(s->r, 1) && remixdb_sync(s->r); }
static bool do_merge(struct scene *s) { return remixdb_merge(s->r, "merge", 5, merges, NULL); }
static bool do_flush(struct scene *s) { return put(s->r, 2) && remixdb_flush(s->r); }
static bool do_compact(struct scene *s) { return put(s->r, 3) && remixdb_compact(s->r); }
static bool do_verify(struct scene *s) { return remixdb_verify(s->r); }

// More than a memtable holds: the writer waits for a round, or makes it.
static bool do_fill(struct scene *s) {
  bool good = true;
  for (uint32_t i = 0; i < KEYS; i++) good = good && put(s->r, i);
  return good;
}

static bool do_write(struct scene *s) {
  struct xdb_batch *const b = remixdb_batch_create();
  bool good = remixdb_batch_put(b, "batch", 5, "b", 1) && remixdb_write(s->r, b) && remixdb_sync(s->r);
  remixdb_batch_destroy(b);
  return good;
}

static bool do_gets(struct scene *s) {
  char keys[64][16];
  struct remixdb_slice slices[64];
  bool found[64], good = true;
  uint64_t rng = 7;
  for (uint32_t n = 0; n < 50; n++) {
    for (uint32_t i = 0; i < 64; i++) slices[i] = key_of(keys[i], (uint32_t)(rng_next(&rng) % KEYS));
    good = good && remixdb_multi_get(s->r, 64, slices, NULL, found) == 64;
    for (uint32_t i = 0; i < 64; i++) good = good && remixdb_probe(s->r, slices[i].ptr, slices[i].len);
  }
  return good;
}

static bool do_async_gets(struct scene *s) {
  struct xdb_gets *const g = remixdb_gets_create(s->r, 64);
  bool good = g != NULL;
  if (good) (void)remixdb_gets_fd(g);  // not every system has one
  uint64_t rng = 7;
  for (uint32_t n = 0; good && n < 50; n++) {
    struct remixdb_got got[64];
    for (uint32_t i = 0; i < 64; i++) {
      char buf[16];
      const struct remixdb_slice k = key_of(buf, (uint32_t)(rng_next(&rng) % KEYS));
      good = good && remixdb_get_begin(g, k.ptr, k.len, NULL, 0, NULL);
    }
    good = good && remixdb_get_poll(g, got, 64, 64) == 64;
    for (uint32_t i = 0; good && i < 64; i++) good = got[i].status == REMIXDB_OK;
  }
  remixdb_gets_destroy(g);
  return good;
}

static bool do_scans(struct scene *s) {
  struct xdb_snapshot *const snap = remixdb_snapshot(s->r);
  struct xdb_ref *const r = remixdb_snapshot_ref(snap);
  struct xdb_iter *const it = remixdb_iter_create(r);
  uint32_t nr = 0;
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) nr++;
  for (remixdb_iter_seek_last(it); remixdb_iter_valid(it); remixdb_iter_prev(it)) nr++;
  remixdb_iter_destroy(it);
  remixdb_unref(r);
  remixdb_snapshot_release(snap);
  return nr >= 2 * KEYS;
}

static bool do_figures(struct scene *s) {
  char *const json = remixdb_stats(s->x);
  remixdb_free(json);
  return json != NULL;
}

static bool do_checkpoint(struct scene *s) { return remixdb_checkpoint(s->r, s->other); }

// The checkpoint's store, from its opening to its end. A message with the system's reason is made, too.
static bool do_another(struct scene *s) {
  struct xdb *const x = remixdb_open_opts(s->other, &s->o);
  struct xdb_ref *const r = remixdb_ref(x);
  const bool wrote = put(r, 1), locked = remixdb_open_opts(s->other, &s->o) == NULL;
  remixdb_unref(r);
  remixdb_close(x);
  const bool closed = remixdb_errcode() == REMIXDB_OK, none = remixdb_open("/dev/null/none", 1, 1, true) == NULL;
  return x && wrote && locked && closed && none && remixdb_repair(s->other) && remixdb_destroy(s->other);
}

static bool do_reopen(struct scene *s) {
  remixdb_unref(s->r);
  remixdb_close(s->x);
  const bool closed = remixdb_errcode() == REMIXDB_OK;
  s->x = remixdb_open_opts(dir, &s->o);
  s->r = remixdb_ref(s->x);
  remixdb_progress(s->r, hears, NULL);
  return closed && s->r;
}

static const struct {
  const char *name;
  bool (*fn)(struct scene *s);
} calls[] = {{"sync", do_sync},       {"merge", do_merge},
             {"fill", do_fill},       {"flush", do_flush},
             {"compact", do_compact}, {"write", do_write},
             {"gets", do_gets},       {"asynchronous gets", do_async_gets},
             {"scans", do_scans},     {"verify", do_verify},
             {"figures", do_figures}, {"checkpoint", do_checkpoint},
             {"another", do_another}, {"reopen", do_reopen}};
#define CALLS (sizeof(calls) / sizeof(calls[0]))

// ---- a cancellation that has come already: the first place where the thread can end ends it

struct cancelled {
  struct scene *s;
  bool (*fn)(struct scene *s);
  _Atomic bool returned, good, restored;
};

static void *cancelled_main(void *arg) {
  struct cancelled *const c = arg;
  int state, changed;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  pthread_cancel(pthread_self());
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  const bool good = c->fn(c->s);
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  atomic_store(&c->good, good);
  atomic_store(&c->restored, state == PTHREAD_CANCEL_ENABLE);
  atomic_store(&c->returned, true);
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &changed);
  pthread_testcancel();
  return NULL;
}

static void all_calls(const char *io, int workers) {
  struct scene s;
  setup_again();
  (void)snprintf(s.other, sizeof(s.other), "%s/other", dir);
  s.o = small_opts(workers);
  s.o.io = io;
  s.o.logger = logs;
  s.o.sync = REMIXDB_SYNC_NONE;
  s.x = remixdb_open_opts(dir, &s.o);
  s.r = remixdb_ref(s.x);
  remixdb_progress(s.r, hears, NULL);
  CHECK(s.r && do_fill(&s));
  for (size_t i = 0; i < CALLS; i++) {
    struct cancelled c = {.s = &s, .fn = calls[i].fn};
    pthread_t t;
    void *end = NULL;
    CHECK(pthread_create(&t, NULL, cancelled_main, &c) == 0);
    CHECK(pthread_join(t, &end) == 0);
    if (!atomic_load(&c.returned))
      fail_msg("%s with %s and %d workers: the thread ended in the call", calls[i].name, io, workers);
    if (!atomic_load(&c.good)) fail_msg("%s with %s and %d workers failed", calls[i].name, io, workers);
    CHECK(atomic_load(&c.restored) && end == PTHREAD_CANCELED);
  }
  CHECK(do_sync(&s));
  remixdb_unref(s.r);
  remixdb_close(s.x);
}

static void test_pending(void **state) {
  (void)state;
  static const char *const engines[] = {"uring", "aio", "sync"};
  for (size_t i = 0; i < sizeof(engines) / sizeof(engines[0]); i++)
    for (int workers = 0; workers <= 2; workers += 2) all_calls(engines[i], workers);
}

// ---- a cancellation that comes at any moment

struct victim {
  struct xdb *x;
  uint32_t number;
  _Atomic(struct xdb_ref *) r;
};

// Between two calls the thread may end where it asks for it; the thread that cancelled it gives its objects back.
static void *victim_main(void *arg) {
  struct victim *const v = arg;
  struct xdb_ref *const r = remixdb_ref(v->x);
  atomic_store(&v->r, r);
  struct scene s = {.x = v->x, .r = r};
  for (uint32_t i = 0;; i++) {
    THREAD_CHECK(put(r, (v->number * 997 + i) % KEYS));
    if (i % 16 == 0) THREAD_CHECK(do_sync(&s));
    if (i % 64 == 0) THREAD_CHECK(do_merge(&s));
    if (i % 128 == 5) THREAD_CHECK(do_flush(&s));
    char key[16];
    const struct remixdb_slice k = key_of(key, i * 31 % KEYS);
    (void)remixdb_probe(r, k.ptr, k.len);
    pthread_testcancel();
  }
  return NULL;
}

static void test_at_any_moment(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(2);
  o.logger = logs;
  o.sync = 1;
  struct xdb *const x = remixdb_open_opts(dir, &o);
  CHECK(x != NULL);
  uint64_t rng = check_seed_or(5);
  for (uint32_t n = 0; n < (LIB_SANITIZED ? 30u : 100u); n++) {
    struct victim v[3] = {{.x = x, .number = n}, {.x = x, .number = n + 1}, {.x = x, .number = n + 2}};
    pthread_t t[3];
    for (uint32_t i = 0; i < 3; i++) CHECK(pthread_create(&t[i], NULL, victim_main, &v[i]) == 0);
    time_sleep_ns(below(&rng, 4000000));
    for (uint32_t i = 0; i < 3; i++) CHECK(pthread_cancel(t[i]) == 0);
    for (uint32_t i = 0; i < 3; i++) {
      void *end = NULL;
      CHECK(pthread_join(t[i], &end) == 0 && end == PTHREAD_CANCELED);
      remixdb_unref(atomic_load(&v[i].r));
    }
  }
  struct scene s = {.x = x, .r = remixdb_ref(x)};
  CHECK(s.r && do_fill(&s) && do_scans(&s) && do_flush(&s) && do_sync(&s));
  remixdb_unref(s.r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_pending, setup, teardown),
      cmocka_unit_test_setup_teardown(test_at_any_moment, setup, teardown),
  };
  return cmocka_run_group_tests_name("cancel", tests, NULL, NULL);
}
