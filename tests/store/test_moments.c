// SPDX-License-Identifier: Apache-2.0
//
// Moments (X2 of store/state.h): a version and writes to the memtable become visible as one, and what a round hands
// back stays visible while its memtable leaves.
//
// TEST_SEED in the environment repeats a run.
#include "tests/lib/store.h"
#include "store/idle.h"
#include "store/install.h"
#include "store/txn.h"
#include "store/txn_state.h"

#define READERS 3u
#define EDITS 400000u

struct team {
  struct xdb *x;
  _Atomic bool stop;
  _Atomic uint32_t torn, back;  // reads of a half; moments that went back
  uint32_t edits;
};

static struct remixdb_opts some_opts(void) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = 1;
  o.memtable_mb = 1;
  return o;
}

// A version without records, which otherwise is like `like`.
static struct version *empty_like(const struct version *like) {
  struct part *p;
  struct version *v;
  OK(part_create(kref("", 0), NULL, NULL, &p));
  OK(version_create(&p, 1, &v));
  v->store_id = like->store_id;
  v->number = like->number;
  v->next_file = like->next_file;
  v->log_gen = like->log_gen;
  v->log_seq = like->log_seq;
  v->log_print = like->log_print;
  v->printed = like->printed;
  return v;
}

// Replaces the version and puts "mark" as one.
static void edit(struct xdb *x, struct epoch_slot *slot, struct version *next, uint8_t mark) {
  const struct kref key = kref("mark", 4);
  struct wh_slot ws;
  uint64_t gen;
  xdb_lock(x);
  struct super *const old = xdb_super(x), *const fresh = super_create(old->active, old->frozen, next);
  CHECK(fresh);
  epoch_enter(&x->epoch, slot);
  wh_lock(old->active->wh, key, hash64(key.ptr, key.len), &ws);
  const struct kv_rec *const rec = KV_REC(key, &mark, 1, 0);
  OK(wh_link(&ws, rec));
  OK(wal_begin(x->wal, kv_rec_size(rec), &gen));
  const uint64_t seq = wal_put(x->wal, rec);
  wh_stamp(&ws, seq);
  fresh->since = fresh->least = seq;
  atomic_store_explicit(&x->super, fresh, memory_order_release);
  atomic_store_explicit(&x->published, seq, memory_order_release);
  wh_unlock(&ws);
  epoch_exit(slot);
  wal_end(x->wal);
  super_retire(&x->epoch, old);
  xdb_unlock(x);
}

static void *get_on(void *arg) {
  struct team *const t = arg;
  struct xdb_ref *const r = remixdb_ref(t->x);
  THREAD_CHECK(r);
  const struct remixdb_slice keys[2] = {{"data", 4}, {"mark", 4}};
  while (!atomic_load(&t->stop)) {
    char data[8];
    uint8_t mark = 0;
    struct remixdb_buf values[2] = {{data, sizeof(data), 0}, {&mark, 1, 0}};
    bool found[2];
    (void)remixdb_multi_get(r, 2, keys, values, found);
    if (!found[1] || found[0] != (mark == 1)) atomic_fetch_add(&t->torn, 1);
  }
  remixdb_unref(r);
  return NULL;
}

// The same without the search, so that a thread stops more often between its two loads.
static void *hold_on(void *arg) {
  struct team *const t = arg;
  struct xdb_ref *const r = remixdb_ref(t->x);
  THREAD_CHECK(r);
  uint64_t last = 0;
  while (!atomic_load(&t->stop)) {
    uint64_t moment;
    struct super *const v = xdb_ref_hold(r, &moment);
    const struct wh_ver *const ver = wh_get(v->active->wh, kref("mark", 4), hash64("mark", 4), moment);
    const bool full = v->version->parts[0]->remix != NULL;
    if (!ver || full != (ver->val[0] == 1)) atomic_fetch_add(&t->torn, 1);
    if (moment < last) atomic_fetch_add(&t->back, 1);
    last = moment;
    xdb_super_drop(t->x, v);
  }
  remixdb_unref(r);
  return NULL;
}

// A thread edits on and on: with "data" in the version "mark" is 1, without it "mark" is 0. Readers see no other pair.
static void test_as_one(void **state) {
  (void)state;
  const struct remixdb_opts o = some_opts();
  struct team t = {.x = quick_open(&o)};
  struct xdb_ref *const r = remixdb_ref(t.x);
  CHECK(r && remixdb_put(r, "data", 4, "x", 1) && remixdb_flush(r));
  CHECK(remixdb_put(r, "mark", 4, "\1", 1));
  OK(xdb_wait_idle(t.x));
  struct version *const full = xdb_super(t.x)->version, *const empty = empty_like(full);
  version_ref(full);
  pthread_t threads[READERS];
  for (uint32_t i = 0; i < READERS; i++) CHECK(pthread_create(&threads[i], NULL, i ? hold_on : get_on, &t) == 0);
  for (uint32_t i = 0; i < EDITS; i++) edit(t.x, &r->slot, i % 2 ? full : empty, (uint8_t)(i % 2));
  atomic_store(&t.stop, true);
  for (uint32_t i = 0; i < READERS; i++) (void)pthread_join(threads[i], NULL);
  if (atomic_load(&t.torn) || atomic_load(&t.back))
    fail_msg("%u reads of a half, %u moments that went back", atomic_load(&t.torn), atomic_load(&t.back));
  version_unref(empty);
  version_unref(full);
  remixdb_unref(r);
  remixdb_close(t.x);
}

// A reader may take its moment before a memtable is frozen, and its super after that. It reads at the freezing then.
static void reads_frozen(struct xdb_ref *r, uint64_t frozen) {
  struct xdb *const x = r->xdb;
  uint64_t moment;
  atomic_store(&x->published, frozen - 1);
  epoch_enter(&x->epoch, &r->slot);
  CHECK(xdb_ref_super(r, &moment)->frozen && moment == frozen);
  epoch_exit(&r->slot);
  for (uint32_t i = 0; i < 2; i++) {  // the second one has the super of the first
    struct xdb_txn *t;
    OK(xdb_txn_begin(x, &t));
    CHECK(t->super->frozen && t->moment == frozen);
    xdb_txn_abort(t);
  }
  atomic_store(&x->published, frozen);
}

// The super of a round's version is read at no moment before the round's end; a freeze keeps that.
static void test_since(void **state) {
  (void)state;
  const struct remixdb_opts o = some_opts();
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r && xdb_super(x)->since == 0);
  for (uint64_t i = 1; i <= 5; i++) {
    CHECK(remixdb_put(r, "a", 1, "x", 1) && remixdb_flush(r));
    CHECK(xdb_super(x)->since == atomic_load(&x->published));
    const uint64_t since = xdb_super(x)->since;
    CHECK(remixdb_put(r, "b", 1, "x", 1) && xdb_super(x)->since == since);
    xdb_lock(x);
    while (xdb_super(x)->frozen || x->rounds.at != XDB_AT_REST) xdb_lock_wait(x, 1000000);
    OK(round_freeze(x));
    CHECK(xdb_super(x)->since == since && since + 1 == atomic_load(&x->published));
    xdb_unlock(x);
    reads_frozen(r, since + 1);
    workers_kick(x->workers);
    OK(xdb_wait_idle(x));
  }
  remixdb_unref(r);
  remixdb_close(x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_as_one, setup, teardown),
      cmocka_unit_test_setup_teardown(test_since, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
