// SPDX-License-Identifier: Apache-2.0
//
// Refs: the status that a ref keeps, refs that move between threads, and the pool of refs to borrow.
#include "tests/lib/check.h"
#include "tests/lib/store.h"
#include "store/refpool.h"

// ---- the status of a ref

static bool has(const struct xdb_ref *r, enum remixdb_status s, const char *text) {
  return remixdb_ref_errcode(r) == s &&
         (text[0] ? strstr(remixdb_ref_errmsg(r), text) != NULL : remixdb_ref_errmsg(r)[0] == '\0');
}

static void test_status_of_a_ref(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const a = remixdb_ref(x), *const b = remixdb_ref(x);
  uint32_t len;
  CHECK(has(a, REMIXDB_OK, ""));
  CHECK(remixdb_put(a, "key", 3, "value", 5) && has(a, REMIXDB_OK, ""));
  CHECK(!remixdb_getn(a, "key", 3, NULL, 0, &len) && has(a, REMIXDB_TOOBIG, "5 bytes"));
  CHECK(has(b, REMIXDB_OK, ""));
  CHECK(!remixdb_get(b, "none", 4, NULL, NULL) && has(b, REMIXDB_NOTFOUND, "") && has(a, REMIXDB_TOOBIG, "5 bytes"));
  CHECK(!remixdb_put(b, NULL, 3, "", 0) && has(b, REMIXDB_INVALID, "NULL") && has(a, REMIXDB_TOOBIG, "5 bytes"));
  CHECK(remixdb_errcode() == REMIXDB_INVALID);
  CHECK(remixdb_probe(a, "key", 3) && has(a, REMIXDB_OK, ""));
  CHECK(remixdb_ref_errcode(NULL) == REMIXDB_INVALID && remixdb_ref_errmsg(NULL)[0]);
  remixdb_unref(a);
  remixdb_unref(b);
  remixdb_close(x);
}

// Each call that can fail leaves its status in the ref: a success replaces a failure, and a failure a success.
static void test_every_call_keeps_it(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(remixdb_put(r, "a", 1, "1", 1) && remixdb_put(r, "b", 1, "2", 1));
  struct xdb_iter *const it = remixdb_iter_create(r);
#define SUCCEEDS(call) \
  (!remixdb_put(r, NULL, 1, "", 0) && has(r, REMIXDB_INVALID, "NULL") && (call, has(r, REMIXDB_OK, "")))
#define KEEPS(call, status) \
  (remixdb_probe(r, "a", 1) && has(r, REMIXDB_OK, "") && (call, remixdb_ref_errcode(r) == (status)))
  CHECK(SUCCEEDS(remixdb_iter_seek(it, "a", 1)));
  CHECK(SUCCEEDS(remixdb_iter_peek(it, NULL, NULL, NULL, NULL)));
  CHECK(SUCCEEDS((void)remixdb_iter_key(it, NULL)) && SUCCEEDS((void)remixdb_iter_value(it, NULL)));
  CHECK(SUCCEEDS(remixdb_iter_skip1(it)) && SUCCEEDS(remixdb_iter_prev(it)) && SUCCEEDS(remixdb_iter_skip(it, 1)));
  CHECK(SUCCEEDS(remixdb_iter_seek_for_prev(it, "b", 1)) && SUCCEEDS(remixdb_iter_seek_last(it)));
  CHECK(KEEPS(remixdb_iter_seek(it, NULL, 1), REMIXDB_INVALID));
  CHECK(KEEPS(remixdb_iter_peek(it, NULL, NULL, NULL, NULL), REMIXDB_INVALID));
  remixdb_iter_park(it);
  CHECK(KEEPS((void)remixdb_iter_key(it, NULL), REMIXDB_NOTFOUND));
  CHECK(KEEPS(remixdb_iter_page(it, NULL), REMIXDB_INVALID));
  CHECK(KEEPS(remixdb_get(r, "c", 1, NULL, NULL), REMIXDB_NOTFOUND));
  CHECK(KEEPS(remixdb_write(r, NULL), REMIXDB_INVALID) && KEEPS(remixdb_merge(r, "a", 1, NULL, NULL), REMIXDB_INVALID));
  CHECK(KEEPS((void)remixdb_multi_get(r, 1, NULL, NULL, NULL), REMIXDB_INVALID));
  CHECK(KEEPS(remixdb_checkpoint(r, NULL), REMIXDB_INVALID));
  CHECK(SUCCEEDS(remixdb_sync(r)) && SUCCEEDS(remixdb_flush(r)) && SUCCEEDS(remixdb_verify(r)));
  CHECK(SUCCEEDS(remixdb_del(r, "b", 1)) && SUCCEEDS(remixdb_compact(r)));
  struct xdb_gets *const gets = remixdb_gets_create(r, 1);
  struct remixdb_got got;
  CHECK(KEEPS((void)remixdb_get_poll(gets, &got, 1, 0), REMIXDB_NOTFOUND));
  CHECK(SUCCEEDS(remixdb_get_begin(gets, "a", 1, NULL, 0, NULL)));
  CHECK(KEEPS(remixdb_get_begin(gets, "a", 1, NULL, 0, NULL), REMIXDB_ABORTED));
  CHECK(SUCCEEDS((void)remixdb_get_poll(gets, &got, 1, 1)));
  remixdb_gets_destroy(gets);
  remixdb_iter_destroy(it);
  remixdb_unref(r);
  remixdb_close(x);
}

// ---- refs that move

#define TASKS (SLOW > 1 ? 2000u : 10000u)
#define THREADS 8u
#define ALIVE 300u  // tasks that have begun and not ended
#define STEPS 8u

// A task goes from thread to thread, one step at a time. Each has calls that fail in its own way: the message of a
// value that does not fit has the value's length, which is the task's number.
struct chore {
  struct chore *next;
  struct xdb_ref *ref;
  struct xdb_iter *it;
  uint32_t number, step;
  enum remixdb_status status;  // the last step's
};

static struct tasks {
  struct xdb *x;
  pthread_mutex_t lock;
  struct chore *first, **end;
  uint32_t begun, alive, ended, moves;
  struct chore all[10000];
} tasks;

static void check_last(const struct chore *t) {
  char text[64];
  (void)snprintf(text, sizeof(text), "the value has %u bytes, the buffer 0", t->number);
  THREAD_CHECK(has(t->ref, t->status, t->status == REMIXDB_TOOBIG ? text : t->status == REMIXDB_INVALID ? "NULL" : ""));
}

static void task_step(struct chore *t) {
  char key[32], value[20000];
  const uint32_t klen = (uint32_t)snprintf(key, sizeof(key), "task %u", t->number);
  uint32_t len = 0;
  if (t->step > 0) check_last(t);
  switch (t->step++) {
    case 0:
      THREAD_CHECK((t->ref = t->number % 3 ? remixdb_ref_borrow(tasks.x) : remixdb_ref(tasks.x)) != NULL);
      memset(value, 't', t->number);
      THREAD_CHECK(remixdb_put(t->ref, key, klen, value, t->number));
      t->status = REMIXDB_OK;
      break;
    case 1:
      THREAD_CHECK(!remixdb_getn(t->ref, key, klen, NULL, 0, &len) && len == t->number);
      t->status = REMIXDB_TOOBIG;
      break;
    case 2:
      THREAD_CHECK((t->it = remixdb_iter_create(t->ref)) != NULL);
      remixdb_iter_seek(t->it, key, klen);
      THREAD_CHECK(remixdb_iter_valid(t->it));
      t->status = REMIXDB_OK;
      break;
    case 3:
      THREAD_CHECK(remixdb_iter_peek(t->it, value, &len, NULL, NULL) && len == klen && !memcmp(value, key, klen));
      THREAD_CHECK(!remixdb_put(t->ref, NULL, 1, "", 0));
      t->status = REMIXDB_INVALID;
      break;
    case 4:
      remixdb_iter_skip1(t->it);
      remixdb_iter_destroy(t->it);
      THREAD_CHECK(!remixdb_probe(t->ref, "nobody", 6));
      t->status = REMIXDB_NOTFOUND;
      break;
    case 5:
      THREAD_CHECK(!remixdb_getn(t->ref, key, klen, NULL, 0, &len) && len == t->number);
      t->status = REMIXDB_TOOBIG;
      break;
    case 6:
      THREAD_CHECK(remixdb_del(t->ref, key, klen));
      t->status = REMIXDB_OK;
      break;
    default: remixdb_ref_return(t->ref); break;
  }
}

// The next task for this thread; NULL: all have ended.
static struct chore *task_take(void) {
  struct chore *t = NULL;
  (void)pthread_mutex_lock(&tasks.lock);
  while (!t && tasks.ended < TASKS) {
    if (tasks.begun < TASKS && (tasks.alive < ALIVE || !tasks.first)) {
      t = &tasks.all[tasks.begun++];
      *t = (struct chore){.number = tasks.begun};
      tasks.alive++;
    } else if (tasks.first) {
      t = tasks.first;
      if (!(tasks.first = t->next)) tasks.end = &tasks.first;
    } else {
      (void)pthread_mutex_unlock(&tasks.lock);
      (void)sched_yield();
      (void)pthread_mutex_lock(&tasks.lock);
    }
  }
  (void)pthread_mutex_unlock(&tasks.lock);
  return t;
}

static void task_give(struct chore *t) {
  (void)pthread_mutex_lock(&tasks.lock);
  if (t->step == STEPS) {
    tasks.alive--;
    tasks.ended++;
  } else {
    t->next = NULL;
    *tasks.end = t;
    tasks.end = &t->next;
    tasks.moves++;
  }
  (void)pthread_mutex_unlock(&tasks.lock);
}

static void *run_tasks(void *arg) {
  (void)arg;
  struct chore *t;
  while ((t = task_take()) != NULL) {
    task_step(t);
    task_give(t);
  }
  return NULL;
}

static void test_tasks_over_threads(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(2);
  pthread_t threads[THREADS];
  tasks = (struct tasks){.x = quick_open(&o), .lock = PTHREAD_MUTEX_INITIALIZER};
  tasks.end = &tasks.first;
  for (uint32_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, run_tasks, NULL) == 0);
  for (uint32_t i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(tasks.ended == TASKS && tasks.moves == TASKS * (STEPS - 1));
  CHECK(refpool_count(tasks.x) <= POOL_PLACES && atomic_load(&tasks.x->nr_refs) == refpool_count(tasks.x));
  CHECK(atomic_load(&tasks.x->nr_iters) == 0);
  remixdb_close(tasks.x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

// ---- the pool

static bool give_up(void *priv, const char *what, uint64_t done, uint64_t total) {
  (void)priv, (void)what, (void)done, (void)total;
  return false;
}

static void test_pool(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *r = remixdb_ref_borrow(x), *many[3 * POOL_PLACES];
  CHECK(r && refpool_count(x) == 0);
  CHECK(remixdb_put(r, "k", 1, "v", 1) && !remixdb_probe(r, "none", 4));
  remixdb_progress(r, give_up, NULL);
  remixdb_ref_return(r);
  CHECK(refpool_count(x) == 1);
  CHECK(remixdb_ref_borrow(x) == r && refpool_count(x) == 0);  // the same one, without what its last user left
  CHECK(has(r, REMIXDB_OK, "") && remixdb_flush(r));
  remixdb_unref(r);  // this ends it, too
  CHECK(atomic_load(&x->nr_refs) == 0);
  for (uint32_t i = 0; i < 3 * POOL_PLACES; i++) {
    CHECK((many[i] = remixdb_ref_borrow(x)) != NULL);
    for (uint32_t k = 0; k < i; k++) CHECK(many[k] != many[i]);
  }
  CHECK(atomic_load(&x->nr_refs) == 3 * POOL_PLACES);
  for (uint32_t i = 0; i < 3 * POOL_PLACES; i++) remixdb_ref_return(many[i]);
  CHECK(refpool_count(x) == POOL_PLACES && atomic_load(&x->nr_refs) == POOL_PLACES);
  // Refs that were made otherwise end, and do not come into the pool.
  struct xdb_ref *const own = remixdb_ref(x);
  struct xdb_snapshot *const snap = remixdb_snapshot(own);
  for (uint32_t i = 0; i < POOL_PLACES; i++) many[i] = remixdb_ref_borrow(x);
  remixdb_ref_return(remixdb_snapshot_ref(snap));
  CHECK(refpool_count(x) == 0);
  for (uint32_t i = 0; i < POOL_PLACES; i++) remixdb_ref_return(many[i]);
  remixdb_snapshot_release(snap);
  remixdb_ref_return(own);
  CHECK(refpool_count(x) == POOL_PLACES);
  remixdb_ref_return(NULL);
  CHECK(!remixdb_ref_borrow(NULL) && remixdb_errcode() == REMIXDB_INVALID);
  remixdb_close(x);  // frees those that wait
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_status_of_a_ref, setup, teardown),
      cmocka_unit_test_setup_teardown(test_every_call_keeps_it, setup, teardown),
      cmocka_unit_test_setup_teardown(test_tasks_over_threads, setup, teardown),
      cmocka_unit_test_setup_teardown(test_pool, setup, teardown),
  };
  return cmocka_run_group_tests_name("refs", tests, NULL, NULL);
}
