// SPDX-License-Identifier: Apache-2.0
//
// Worker threads: every task runs once, rounds follow each other as they are asked for, and the end waits for the round
// that runs.
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/cores.h"
#include "base/thread.h"
#include "tests/lib/check.h"

#include "base/eventcount.h"
#include "base/workers.h"
#include "tests/lib/slow.h"

// ---- plans

static void test_plan(void **state) {
  (void)state;
  static uint32_t mine[65536];
  const uint32_t nr_mine = cores_list(mine, 65536);
  uint32_t nr, nr_cores, cores[WORKERS_MAX];
  static const char *const automatic[] = {NULL, "auto"};
  for (uint32_t a = 0; a < 2; a++) {
    for (int asked = -1; asked <= (int)WORKERS_MAX; asked++) {
      OK(workers_plan(asked, automatic[a], &nr, cores, WORKERS_MAX, &nr_cores));
      if (asked >= 0) assert_int_equal(nr, asked);
      else assert_true(nr >= 1 && nr <= nr_mine && (nr <= 2 || nr <= nr_mine / 2) && (nr_mine == 1 || nr >= 2));
      assert_true(nr_cores <= nr && nr_cores <= nr_mine / 2);
      if (nr_mine > 1 && nr > 0) assert_true(nr_cores > 0);
      for (uint32_t i = 0; i < nr_cores; i++) assert_int_equal(cores[i], mine[nr_mine - 1 - i]);
    }
    cores[0] = 4711;
    OK(workers_plan(5, automatic[a], &nr, cores, 0, &nr_cores));
    assert_int_equal(nr_cores, 0);
    assert_int_equal(cores[0], 4711);
    cores[2] = 4711;
    OK(workers_plan(5, automatic[a], &nr, cores, 2, &nr_cores));
    assert_int_equal(nr, 5);
    assert_true(nr_cores <= 2);
    assert_int_equal(cores[2], 4711);
    FAILS(workers_plan((int)WORKERS_MAX + 1, automatic[a], &nr, cores, WORKERS_MAX, &nr_cores), REMIXDB_INVALID);
  }
  OK(workers_plan(-1, "none", &nr, cores, WORKERS_MAX, &nr_cores));
  assert_true(nr >= 1);
  assert_int_equal(nr_cores, 0);
  OK(workers_plan(0, "none", &nr, cores, WORKERS_MAX, &nr_cores));
  assert_int_equal(nr, 0);

  OK(workers_plan(-1, "3,0-1", &nr, cores, WORKERS_MAX, &nr_cores));
  assert_int_equal(nr, 3);
  assert_int_equal(nr_cores, 3);
  assert_int_equal(cores[0], 3);
  assert_int_equal(cores[1], 0);
  assert_int_equal(cores[2], 1);
  OK(workers_plan(2, "5-8", &nr, cores, WORKERS_MAX, &nr_cores));
  assert_int_equal(nr, 2);
  assert_int_equal(nr_cores, 4);
  OK(workers_plan(7, "5-7", &nr, cores, WORKERS_MAX, &nr_cores));  // in turn
  assert_int_equal(nr, 7);
  assert_int_equal(nr_cores, 7);
  for (uint32_t i = 0; i < 7; i++) assert_int_equal(cores[i], 5 + i % 3);
  OK(workers_plan(7, "5-7", &nr, cores, 5, &nr_cores));
  assert_int_equal(nr_cores, 5);
  OK(workers_plan(0, "5-8", &nr, cores, WORKERS_MAX, &nr_cores));
  assert_int_equal(nr, 0);
  assert_int_equal(nr_cores, 0);
  static const char *const bad[] = {"", "x", "1-", "1,", ",1", "2-1", "auto,1", "None", "0-64", "-1", "1 2"};
  for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
    if (workers_plan(-1, bad[i], &nr, cores, WORKERS_MAX, &nr_cores) != REMIXDB_INVALID)
      fail_msg("\"%s\" was taken for a list", bad[i]);
}

// ---- requests at any time

#define LOST_NS 300000000000ull  // a request that is not served by then is lost, however slow the machine is
#define LONG_NS 20000000000ull   // a slow machine makes fewer requests

// Waits without sleep.
static void wait_quick(const _Atomic uint32_t *count, uint32_t nr) {
  const uint64_t began = time_ns();
  while (atomic_load(count) < nr)
    if (time_ns() - began > LOST_NS) fail_msg("request %u is lost", nr);
}

// ---- tasks and rounds

struct group {
  struct epoch epoch;
  struct blkio io;
  struct workers *ws;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  uint32_t begun, ended;  // rounds; under the lock
  bool hold;              // rounds wait while it is set; under the lock
  bool overlap;
  uint32_t idle_calls, pool_max;  // under the lock
  bool in_idle;
  uint32_t nr_tasks, batches;
  _Atomic uint32_t bad;
  bool kick_inside;
};

struct counted {
  struct task task;
  struct group *g;
  _Atomic uint32_t runs;
  uint64_t
      work;  // the thread that runs it writes it, the round reads it: without order between them it would be a race
  struct worker *worker;
};

static void counted_run(struct task *t, struct worker *w) {
  struct counted *c = (struct counted *)t;
  atomic_fetch_add(&c->runs, 1);
  c->worker = w;
  if (!w->queue) atomic_fetch_add(&c->g->bad, 1);
  epoch_enter(&c->g->epoch, &w->slot);
  uint64_t rng = t->size;
  for (uint32_t i = 0; i < 200; i++) c->work += rng_next(&rng);
  epoch_exit(&w->slot);
}

static void round_fn(void *arg, struct worker *w) {
  struct group *g = arg;
  pthread_mutex_lock(&g->lock);
  if (g->begun != g->ended) g->overlap = true;
  g->begun++;
  pthread_cond_broadcast(&g->changed);
  while (g->hold) pthread_cond_wait(&g->changed, &g->lock);
  const bool kick = g->kick_inside;
  g->kick_inside = false;
  pthread_mutex_unlock(&g->lock);
  if (kick) workers_kick(g->ws);

  for (uint32_t b = 0; b < g->batches; b++) {
    const uint32_t nr = g->nr_tasks + b;
    struct counted *all = calloc(nr + 1, sizeof(*all));
    struct task **list = calloc(nr + 1, sizeof(*list));
    uint64_t rng = b + 1;
    for (uint32_t i = 0; i < nr; i++) {
      all[i].g = g;
      all[i].task = (struct task){.run = counted_run, .size = rng_next(&rng) % 50};
      list[i] = &all[i].task;
    }
    workers_run(g->ws, w, list, nr);
    for (uint32_t i = 0; i < nr; i++)
      if (atomic_load(&all[i].runs) != 1 || all[i].work == 0) atomic_fetch_add(&g->bad, 1);
    for (uint32_t i = 1; i < nr; i++)
      if (list[i - 1]->size < list[i]->size) atomic_fetch_add(&g->bad, 1);
    free(all);
    free(list);
  }
  pthread_mutex_lock(&g->lock);
  g->ended++;
  pthread_cond_broadcast(&g->changed);
  pthread_mutex_unlock(&g->lock);
}

static void group_init(struct group *g, uint32_t threads, const uint32_t *cores, uint32_t nr_cores) {
  memset(g, 0, sizeof(*g));
  epoch_init(&g->epoch);
  blkio_init(&g->io, env_posix(), BLKIO_SYNC);
  pthread_mutex_init(&g->lock, NULL);
  pthread_cond_init(&g->changed, NULL);
  g->nr_tasks = 20;
  g->batches = 5;
  OK(workers_create(threads, cores, nr_cores, &g->io, &g->epoch, round_fn, g, &g->ws));
  assert_int_equal(workers_count(g->ws), threads);
}

static void group_fini(struct group *g) {
  workers_destroy(g->ws);
  assert_int_equal(g->begun, g->ended);
  assert_int_equal(atomic_load(&g->bad), 0);
  assert_false(g->overlap);
  pthread_cond_destroy(&g->changed);
  pthread_mutex_destroy(&g->lock);
  epoch_fini(&g->epoch);
}

static void wait_begun(struct group *g, uint32_t nr) {
  pthread_mutex_lock(&g->lock);
  while (g->begun < nr) pthread_cond_wait(&g->changed, &g->lock);
  pthread_mutex_unlock(&g->lock);
}

static void wait_ended(struct group *g, uint32_t nr) {
  pthread_mutex_lock(&g->lock);
  while (g->ended < nr) pthread_cond_wait(&g->changed, &g->lock);
  pthread_mutex_unlock(&g->lock);
}

static void set_hold(struct group *g, bool hold) {
  pthread_mutex_lock(&g->lock);
  g->hold = hold;
  pthread_cond_broadcast(&g->changed);
  pthread_mutex_unlock(&g->lock);
}

static void test_tasks(void **state) {
  (void)state;
  const uint32_t nowhere[] = {0, 60000};  // a core that is not there costs speed only
  for (uint32_t threads = 0; threads <= 3; threads++) {
    for (uint32_t tasks = 0; tasks <= 40; tasks += tasks < 4 ? 1 : 12) {
      struct group g;
      group_init(&g, threads, nowhere, tasks % 3);
      g.nr_tasks = tasks;
      for (uint32_t r = 1; r <= 3; r++) {
        workers_kick(g.ws);
        wait_ended(&g, r);
      }
      assert_int_equal(g.ended, 3);
      group_fini(&g);
    }
  }
}

// Work that is asked for right when the work before has ended: the worker is about to sleep, and sees the request in
// its last look, or is woken.
static _Atomic uint32_t look_calls;
static void look_round(void *arg, struct worker *w) {
  (void)arg;
  (void)w;
  atomic_fetch_add(&look_calls, 1);
}
static bool look_idle(void *arg, struct worker *w) {
  look_round(arg, w);
  return false;
}
static void test_last_look(void **state) {
  (void)state;
  struct epoch epoch;
  struct blkio io;
  struct workers *ws;
  uint64_t rng = 7;
  epoch_init(&epoch);
  blkio_init(&io, env_posix(), BLKIO_SYNC);
  atomic_store(&workers_trim_ns, EVENTCOUNT_NEVER);  // a worker would look again then, also if it has missed a round
  OK(workers_create(1, NULL, 0, &io, &epoch, look_round, NULL, &ws));
  for (uint32_t rounds = 0; rounds < 2; rounds++) {
    const uint64_t until = time_ns() + LONG_NS;
    for (uint32_t i = 0; i < 150000 / SLOW && time_ns() < until; i++) {
      const uint32_t before = atomic_load(&look_calls);
      if (rounds) workers_kick(ws);
      else workers_idle(ws, look_idle);
      wait_quick(&look_calls, before + 1);
      for (uint64_t spin = rng_next(&rng) % 1000; spin; spin--) (void)atomic_load(&look_calls);
    }
  }
  workers_destroy(ws);
  atomic_store(&workers_trim_ns, WORKERS_TRIM_NS);
  epoch_fini(&epoch);
}

// Without threads all happens in the caller, in the order of size: nothing depends on chance.
static struct task *order_seen[8];
static uint32_t order_nr;
static void order_run(struct task *t, struct worker *w) {
  (void)w;
  order_seen[order_nr++] = t;
}
static void order_round(void *arg, struct worker *w) {
  static const uint64_t sizes[] = {5, 90, 1, 90, 7, UINT64_MAX, 0, 6};
  struct workers **ws = arg;
  struct task tasks[8], *list[8];
  for (uint32_t i = 0; i < 8; i++) {
    tasks[i] = (struct task){.run = order_run, .size = sizes[i]};
    list[i] = &tasks[i];
  }
  order_nr = 0;
  workers_run(*ws, w, list, 8);
  assert_int_equal(order_nr, 8);
  for (uint32_t i = 1; i < 8; i++) assert_true(order_seen[i - 1]->size >= order_seen[i]->size);
}
static void test_order(void **state) {
  (void)state;
  struct epoch epoch;
  struct blkio io;
  struct workers *ws;
  epoch_init(&epoch);
  blkio_init(&io, env_posix(), BLKIO_SYNC);
  OK(workers_create(0, NULL, 0, &io, &epoch, order_round, &ws, &ws));
  workers_kick(ws);
  assert_int_equal(order_nr, 8);
  workers_destroy(ws);
  epoch_fini(&epoch);
}

// Idle workers take part: tasks that wait for each other would never end otherwise.
static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  uint32_t there, left;
  bool done, early;
  const struct worker *host;
  struct workers *ws;
  const struct worker *who[3];
} meeting = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

// Ends the round of a meeting. early: the run ended before its tasks. The lock is held; the call releases it.
static void meeting_end(bool early) {
  meeting.early = early;
  meeting.done = true;
  pthread_cond_broadcast(&meeting.changed);
  pthread_mutex_unlock(&meeting.lock);
}

// Lets so many workers run one round, which ends with meeting_end.
static void meeting_hold(uint32_t nr, void (*round)(void *arg, struct worker *w)) {
  struct epoch epoch;
  struct blkio io;
  epoch_init(&epoch);
  blkio_init(&io, env_posix(), BLKIO_SYNC);
  meeting.done = false;
  OK(workers_create(nr, NULL, 0, &io, &epoch, round, NULL, &meeting.ws));
  workers_kick(meeting.ws);
  pthread_mutex_lock(&meeting.lock);
  while (!meeting.done) pthread_cond_wait(&meeting.changed, &meeting.lock);
  pthread_mutex_unlock(&meeting.lock);
  workers_destroy(meeting.ws);
  assert_false(meeting.early);
  epoch_fini(&epoch);
}

static void meet_run(struct task *t, struct worker *w) {
  (void)t;
  pthread_mutex_lock(&meeting.lock);
  meeting.who[meeting.there++] = w;
  pthread_cond_broadcast(&meeting.changed);
  while (meeting.there < 3) pthread_cond_wait(&meeting.changed, &meeting.lock);
  pthread_mutex_unlock(&meeting.lock);
  if (w != meeting.host) time_sleep_ns(3000000);  // so that the round has to wait for the guests
  pthread_mutex_lock(&meeting.lock);
  meeting.left++;
  pthread_mutex_unlock(&meeting.lock);
}
static void meet_round(void *arg, struct worker *w) {
  (void)arg;
  struct task tasks[3], *list[3];
  for (uint32_t i = 0; i < 3; i++) {
    tasks[i] = (struct task){.run = meet_run, .size = i};
    list[i] = &tasks[i];
  }
  meeting.host = w;
  workers_run(meeting.ws, w, list, 3);
  pthread_mutex_lock(&meeting.lock);
  meeting_end(meeting.left != 3);
}
static void test_parallel(void **state) {
  (void)state;
  meeting_hold(3, meet_round);
  assert_ptr_not_equal(meeting.who[0], meeting.who[1]);
  assert_ptr_not_equal(meeting.who[0], meeting.who[2]);
  assert_ptr_not_equal(meeting.who[1], meeting.who[2]);
}

// Added tasks come after the run's own ones, the largest first, and may add tasks themselves.
struct adding {
  struct task task;
  struct adding *adds;
  uint32_t nr;
};
static struct workers *adding_ws;
static void adding_run(struct task *t, struct worker *w) {
  const struct adding *const a = (const struct adding *)t;
  (void)w;
  order_seen[order_nr++] = t;
  for (uint32_t i = 0; i < a->nr; i++) workers_add(adding_ws, &a->adds[i].task);
}
static void adding_round(void *arg, struct worker *w) {
  (void)arg;
  struct adding last = {.task = {.run = adding_run, .size = 60}};
  struct adding mid[] = {{.task = {.run = adding_run, .size = 10}},
                         {.task = {.run = adding_run, .size = 70}, .adds = &last, .nr = 1},
                         {.task = {.run = adding_run, .size = 50}}};
  struct adding own[] = {{.task = {.run = adding_run, .size = 9}, .adds = mid, .nr = 3},
                         {.task = {.run = adding_run, .size = 5}}};
  struct task *list[] = {&own[1].task, &own[0].task};
  const struct task *const want[] = {&own[0].task, &own[1].task, &mid[1].task, &last.task, &mid[2].task, &mid[0].task};
  order_nr = 0;
  workers_run(adding_ws, w, list, 2);
  assert_int_equal(order_nr, 6);
  for (uint32_t i = 0; i < 6; i++) assert_ptr_equal(order_seen[i], want[i]);
  workers_run(adding_ws, w, list, 0);  // nothing is left of them
  assert_int_equal(order_nr, 6);
}
static void test_added(void **state) {
  (void)state;
  struct epoch epoch;
  struct blkio io;
  epoch_init(&epoch);
  blkio_init(&io, env_posix(), BLKIO_SYNC);
  OK(workers_create(0, NULL, 0, &io, &epoch, adding_round, NULL, &adding_ws));
  workers_kick(adding_ws);
  assert_int_equal(order_nr, 6);
  workers_destroy(adding_ws);
  epoch_fini(&epoch);
}

// An added task begins while the task that added it runs: in an idle worker, and in the thread that waits for the run's
// end. Two tasks meet, so that each has a thread of its own; then the host's one, or the guest's, adds a task and waits
// for it.
static struct {
  struct task added;
  const struct worker *by;
  uint32_t met;
  bool from_host, begun, over;
} helped;
static void helped_run(struct task *t, struct worker *w) {
  (void)t;
  pthread_mutex_lock(&meeting.lock);
  helped.by = w;
  helped.begun = true;
  pthread_cond_broadcast(&meeting.changed);
  pthread_mutex_unlock(&meeting.lock);
  time_sleep_ns(3000000);  // so that the round has to wait for it
  pthread_mutex_lock(&meeting.lock);
  helped.over = true;
  pthread_mutex_unlock(&meeting.lock);
}
static void helping_run(struct task *t, struct worker *w) {
  (void)t;
  pthread_mutex_lock(&meeting.lock);
  helped.met++;
  pthread_cond_broadcast(&meeting.changed);
  while (helped.met < 2) pthread_cond_wait(&meeting.changed, &meeting.lock);
  pthread_mutex_unlock(&meeting.lock);
  if ((w == meeting.host) != helped.from_host) return;
  time_sleep_ns(1000000);  // the other one waits by now, mostly
  workers_add(meeting.ws, &helped.added);
  pthread_mutex_lock(&meeting.lock);
  while (!helped.begun) pthread_cond_wait(&meeting.changed, &meeting.lock);
  pthread_mutex_unlock(&meeting.lock);
}
static void helping_round(void *arg, struct worker *w) {
  (void)arg;
  struct task tasks[2], *list[2];
  for (uint32_t i = 0; i < 2; i++) {
    tasks[i] = (struct task){.run = helping_run};
    list[i] = &tasks[i];
  }
  meeting.host = w;
  workers_run(meeting.ws, w, list, 2);
  pthread_mutex_lock(&meeting.lock);
  meeting_end(!helped.over);
}
static void test_added_beside(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 20; i++) {
    memset(&helped, 0, sizeof(helped));
    helped.added.run = helped_run;
    helped.from_host = i % 2;
    meeting_hold(2, helping_round);
    assert_int_equal(helped.by == meeting.host, !helped.from_host);
  }
}

// However often a round is asked for while one runs, one more follows.
static void test_kick_while_running(void **state) {
  (void)state;
  for (uint32_t threads = 1; threads <= 3; threads++) {
    struct group g;
    group_init(&g, threads, NULL, 0);
    g.hold = true;
    workers_kick(g.ws);
    wait_begun(&g, 1);
    for (uint32_t i = 0; i < 5; i++) workers_kick(g.ws);
    set_hold(&g, false);
    wait_ended(&g, 2);
    // had there been a third it would come before this one, which is then the fourth
    set_hold(&g, true);
    workers_kick(g.ws);
    wait_begun(&g, 3);
    set_hold(&g, false);
    wait_ended(&g, 3);
    // a round may ask for the next one itself
    pthread_mutex_lock(&g.lock);
    g.kick_inside = true;
    pthread_mutex_unlock(&g.lock);
    workers_kick(g.ws);
    wait_ended(&g, 5);
    group_fini(&g);
    assert_int_equal(g.ended, 5);
  }
}

// ---- idle work

static bool idle_fn(void *arg, struct worker *w) {
  struct group *g = arg;
  pthread_mutex_lock(&g->lock);
  if (g->in_idle || !w->queue) atomic_fetch_add(&g->bad, 1);
  g->in_idle = true;
  g->idle_calls++;
  pthread_cond_broadcast(&g->changed);
  while (g->hold) pthread_cond_wait(&g->changed, &g->lock);
  g->in_idle = false;
  const bool more = g->idle_calls < g->pool_max;
  pthread_mutex_unlock(&g->lock);
  return more;
}

static void wait_pooled(struct group *g, uint32_t n) {
  pthread_mutex_lock(&g->lock);
  while (g->idle_calls < n) pthread_cond_wait(&g->changed, &g->lock);
  pthread_mutex_unlock(&g->lock);
}

static void test_idle(void **state) {
  (void)state;
  for (uint32_t threads = 0; threads <= 3; threads++) {
    struct group g;
    group_init(&g, threads, NULL, 0);
    // until there is none left; asked for again it begins again
    g.pool_max = 10;
    workers_idle(g.ws, idle_fn);
    if (threads == 0) {
      assert_int_equal(g.idle_calls, 0);
      group_fini(&g);
      continue;
    }
    wait_pooled(&g, 10);
    workers_idle(g.ws, idle_fn);  // the last one may be ending now
    wait_pooled(&g, 11);
    for (uint32_t i = 1; i <= 3; i++) {
      workers_kick(g.ws);
      wait_ended(&g, i);
    }
    pthread_mutex_lock(&g.lock);
    assert_int_equal(g.idle_calls, 11);
    pthread_mutex_unlock(&g.lock);
    // however often it is asked for, it is one at a time, and a round comes between two of them
    set_hold(&g, true);
    pthread_mutex_lock(&g.lock);
    const uint32_t from = g.idle_calls;
    g.pool_max = UINT32_MAX;
    pthread_mutex_unlock(&g.lock);
    for (uint32_t i = 0; i < 5; i++) workers_idle(g.ws, idle_fn);
    wait_pooled(&g, from + 1);
    workers_kick(g.ws);
    set_hold(&g, false);
    wait_ended(&g, 4);
    for (uint32_t i = 5; i < 30; i++) {
      workers_kick(g.ws);
      wait_ended(&g, i);
    }
    group_fini(&g);  // in the midst of it
  }
}

// ---- threads that start late

static uint32_t nr_started(const struct group *g) {
  return atomic_load(&g->epoch.nr_slots);  // each thread joins
}

static bool no_memory(size_t size) {
  (void)size;
  return false;
}

// One thread starts with the workers. The others start when a round is to run, when several tasks are, or when idle
// work goes on after its first piece. Without memory for them the round runs all the same, and a later one starts them.
static void test_start_late(void **state) {
  (void)state;
  enum { ROUND, IDLE, TASKS, RESIZE, NO_MEMORY, WAYS };
  for (int way = ROUND; way < WAYS; way++) {
    struct group g;
    group_init(&g, 3, NULL, 0);
    assert_int_equal(nr_started(&g), 1);
    g.pool_max = 1;
    workers_idle(g.ws, idle_fn);
    wait_pooled(&g, 1);
    struct worker w = {0};
    OK(blkio_queue_create(&g.io, &w.queue));
    epoch_join(&g.epoch, &w.slot);
    struct counted all[2] = {{.g = &g, .task.run = counted_run}, {.g = &g, .task.run = counted_run}};
    struct task *list[2] = {&all[0].task, &all[1].task};
    workers_run(g.ws, &w, list, 1);
    assert_int_equal(nr_started(&g), 2);  // with this one
    g.pool_max = 3;
    if (way == NO_MEMORY) atomic_store(&mem_fault, no_memory);
    if (way == ROUND || way == NO_MEMORY) workers_kick(g.ws);
    if (way == ROUND || way == NO_MEMORY) wait_ended(&g, 1);
    if (way == IDLE) workers_idle(g.ws, idle_fn);
    if (way == IDLE) wait_pooled(&g, 3);
    if (way == TASKS) workers_run(g.ws, &w, list, 2);
    if (way == RESIZE) OK(workers_resize(g.ws, 3, NULL, 0));
    assert_int_equal(nr_started(&g), way == NO_MEMORY ? 2 : 4);
    if (way == NO_MEMORY) {
      atomic_store(&mem_fault, NULL);
      workers_kick(g.ws);
      wait_ended(&g, 2);
      assert_int_equal(nr_started(&g), 4);
    }
    assert_int_equal(workers_count(g.ws), 3);
    epoch_leave(&g.epoch, &w.slot);
    blkio_queue_destroy(w.queue);
    group_fini(&g);
  }
}

// Two tasks that wait for each other, so they have a thread each. Each notes how many processors its thread may use.
static _Atomic uint32_t nr_met, nr_cores_met[2];
static void cores_meet(struct task *t, struct worker *w) {
  (void)w;
  atomic_store(&nr_cores_met[t->size], cores_list(NULL, 0));
  atomic_fetch_add(&nr_met, 1);
  wait_quick(&nr_met, 2);
}
static void cores_round(void *arg, struct worker *w) {
  struct task a = {.run = cores_meet, .size = 0}, b = {.run = cores_meet, .size = 1};
  struct task *list[2] = {&a, &b};
  workers_run(((struct group *)arg)->ws, w, list, 2);
  atomic_fetch_add(&nr_met, 1);
}

// A worker without a core of its own may use all processors, although one that has a core has started it.
static void test_cores_of_late(void **state) {
  (void)state;
  uint32_t mine[CORES_MAX];
  const uint32_t nr = cores_list(mine, CORES_MAX);
  struct group g;
  group_init(&g, 2, mine, 1);
  workers_destroy(g.ws);
  OK(workers_create(2, mine, 1, &g.io, &g.epoch, cores_round, &g, &g.ws));
  atomic_store(&nr_met, 0);
  workers_kick(g.ws);
  wait_quick(&nr_met, 3);
  const uint32_t a = nr_cores_met[0], b = nr_cores_met[1];
  assert_int_equal(a < b ? a : b, 1);
  assert_int_equal(a < b ? b : a, nr);
  group_fini(&g);
}

// ---- idle work that waits for its turn

static struct {
  _Atomic uint32_t rounds, idles;  // that have begun
  _Atomic bool idle_on, round_on;  // they end
  struct workers *ws;
} turn;

static bool turn_idle(void *arg, struct worker *w) {
  (void)arg, (void)w;
  atomic_fetch_add(&turn.idles, 1);
  while (!atomic_load(&turn.idle_on)) time_sleep_ns(100000);
  return false;
}

static void turn_round(void *arg, struct worker *w) {
  (void)arg, (void)w;
  atomic_fetch_add(&turn.rounds, 1);
  while (!atomic_load(&turn.round_on)) time_sleep_ns(100000);
}

static void turn_init(struct epoch *epoch, struct blkio *io) {
  atomic_store(&turn.rounds, 0);
  atomic_store(&turn.idles, 0);
  atomic_store(&turn.idle_on, false);
  atomic_store(&turn.round_on, false);
  epoch_init(epoch);
  blkio_init(io, env_posix(), BLKIO_SYNC);
  OK(workers_create(2, NULL, 0, io, epoch, turn_round, NULL, &turn.ws));
}

static void wait_for(_Atomic uint32_t *count, uint32_t nr) {
  while (atomic_load(count) < nr) time_sleep_ns(100000);
}

// Idle work that is asked for while a worker is at it waits for that one, although another worker has nothing to do.
static void test_idle_in_turn(void **state) {
  (void)state;
  struct epoch epoch;
  struct blkio io;
  turn_init(&epoch, &io);
  atomic_store(&turn.round_on, true);
  workers_kick(turn.ws);  // both workers run from now on
  wait_for(&turn.rounds, 1);
  workers_idle(turn.ws, turn_idle);
  wait_for(&turn.idles, 1);
  workers_idle(turn.ws, turn_idle);
  for (uint32_t i = 2; i <= 11; i++) {
    workers_kick(turn.ws);
    wait_for(&turn.rounds, i);
    time_sleep_ns(2000000);  // the worker looks for more
    assert_int_equal(atomic_load(&turn.idles), 1);
  }
  atomic_store(&turn.idle_on, true);
  wait_for(&turn.idles, 2);
  workers_destroy(turn.ws);
  assert_int_equal(atomic_load(&turn.idles), 2);
  epoch_fini(&epoch);
}

// ---- rounds beside idle work

static struct { _Atomic uint32_t idles, rounds; } beside;

static bool beside_idle(void *arg, struct worker *w) {
  (void)arg, (void)w;
  atomic_fetch_add(&beside.idles, 1);
  while (atomic_load(&beside.rounds) == 0) time_sleep_ns(20000);
  return false;
}

static void beside_round(void *arg, struct worker *w) {
  (void)arg, (void)w;
  atomic_fetch_add(&beside.rounds, 1);
}

// A round does not wait for idle work, also if the only thread that has started is at it: here the work waits for the
// round. The first request comes when the thread is there for sure, and the others at any time.
static void test_round_beside_idle(void **state) {
  (void)state;
  struct epoch epoch;
  struct blkio io;
  uint64_t rng = check_seed_for("test_round_beside_idle");
  epoch_init(&epoch);
  blkio_init(&io, env_posix(), BLKIO_SYNC);
  for (uint32_t i = 0; i < (LIB_SANITIZED ? 300 : 3000); i++) {
    struct workers *ws;
    atomic_store(&beside.idles, 0);
    atomic_store(&beside.rounds, 0);
    OK(workers_create(2, NULL, 0, &io, &epoch, beside_round, NULL, &ws));
    workers_idle(ws, beside_idle);
    if (i == 0) wait_for(&beside.idles, 1);
    for (volatile uint64_t spin = rng_next(&rng) % 20000; i && spin > 0 && !atomic_load(&beside.idles); spin--) {}
    workers_kick(ws);
    wait_for(&beside.rounds, 1);
    workers_destroy(ws);
  }
  epoch_fini(&epoch);
}

// ---- the end of idle work

static struct {
  _Atomic uint32_t idles, idles_ended, rounds, rounds_ended;
  bool kicks;  // idle work asks for a round
  struct workers *ws;
} settle;

static bool settle_idle(void *arg, struct worker *w) {
  (void)arg, (void)w;
  if (atomic_fetch_add(&settle.idles, 1) == 0) {
    time_sleep_ns(3000000);
    if (settle.kicks) workers_kick(settle.ws);
  }
  atomic_fetch_add(&settle.idles_ended, 1);
  return true;
}

static void settle_round(void *arg, struct worker *w) {
  (void)arg, (void)w;
  atomic_fetch_add(&settle.rounds, 1);
  time_sleep_ns(2000000);
  atomic_fetch_add(&settle.rounds_ended, 1);
}

static void check_settled(uint32_t rounds) {
  assert_int_equal(atomic_load(&settle.rounds), rounds);
  assert_int_equal(atomic_load(&settle.rounds_ended), rounds);
  assert_int_equal(atomic_load(&settle.idles), atomic_load(&settle.idles_ended));
}

// After workers_settle nothing runs. Idle work does not begin again; rounds do when they are asked for.
static void test_settle(void **state) {
  (void)state;
  for (uint32_t threads = 0; threads <= 3; threads++) {
    struct epoch epoch;
    struct blkio io;
    epoch_init(&epoch);
    blkio_init(&io, env_posix(), BLKIO_SYNC);
    memset(&settle, 0, sizeof(settle));
    settle.kicks = threads == 1 || threads == 3;
    OK(workers_create(threads, NULL, 0, &io, &epoch, settle_round, NULL, &settle.ws));
    workers_idle(settle.ws, settle_idle);
    if (threads) wait_for(&settle.idles, 1);
    workers_settle(settle.ws);
    check_settled(settle.kicks);
    const uint32_t idles = atomic_load(&settle.idles), rounds = atomic_load(&settle.rounds);
    workers_idle(settle.ws, settle_idle);
    for (uint32_t i = 1; i <= 10; i++) {
      workers_kick(settle.ws);
      if (i % 2) wait_for(&settle.rounds, rounds + i);  // it runs, or nobody has begun it
      workers_settle(settle.ws);
      check_settled(rounds + i);
    }
    assert_int_equal(atomic_load(&settle.idles), idles);
    workers_destroy(settle.ws);
    epoch_fini(&epoch);
  }
}

// ---- idle work that comes too late

static struct {
  _Atomic uint32_t begun, idles;
  _Atomic bool slept, told;  // the other worker has slept; the threads have been told to end
  struct workers *ws;
} at_end;

static bool at_end_idle(void *arg, struct worker *w) {
  (void)arg, (void)w;
  atomic_fetch_add(&at_end.idles, 1);
  return false;
}

// Both tasks of a run have to begin before one of them ends, so each of two workers has one.
static void at_end_task(struct task *t, struct worker *w) {
  (void)t, (void)w;
  atomic_fetch_add(&at_end.begun, 1);
  while (atomic_load(&at_end.begun) < 2) time_sleep_ns(100000);
}

// Both workers take a task. The other one looks for idle work after its task, and goes to sleep before the call
// returns, or does the work.
static void at_end_meet(struct worker *w) {
  struct task tasks[2] = {{.run = at_end_task}, {.run = at_end_task}}, *both[2] = {&tasks[0], &tasks[1]};
  atomic_store(&at_end.begun, 0);
  workers_run(at_end.ws, w, both, 2);
}

static void at_end_round(void *arg, struct worker *w) {
  (void)arg;
  at_end_meet(w);
  atomic_store(&at_end.slept, true);
  while (!atomic_load(&at_end.told)) time_sleep_ns(100000);
  workers_idle(at_end.ws, at_end_idle);
  at_end_meet(w);
}

// For wake_watch: the next thread that wakes the other worker has told it to end.
static void at_end_wake(const void *what) {
  (void)what;
  atomic_store(&at_end.told, true);
}

// Idle work that a round asks for does not begin when the threads have been told to end.
static void test_idle_at_end(void **state) {
  (void)state;
  struct epoch epoch;
  struct blkio io;
  epoch_init(&epoch);
  blkio_init(&io, env_posix(), BLKIO_SYNC);
  OK(workers_create(2, NULL, 0, &io, &epoch, at_end_round, NULL, &at_end.ws));
  workers_kick(at_end.ws);
  while (!atomic_load(&at_end.slept)) time_sleep_ns(100000);
  atomic_store(&wake_watch, at_end_wake);
  workers_destroy(at_end.ws);
  atomic_store(&wake_watch, NULL);
  assert_true(atomic_load(&at_end.told));
  assert_int_equal(atomic_load(&at_end.idles), 0);
  epoch_fini(&epoch);
}

// Later idle work comes by itself, once; ticks go on beside it.
static void test_later(void **state) {
  (void)state;
  for (uint32_t threads = 0; threads <= 2; threads++) {
    struct group g;
    group_init(&g, threads, NULL, 0);
    workers_later(g.ws, idle_fn, 1000000);  // without threads it is nothing
    if (threads) {
      wait_pooled(&g, 1);
      workers_later(g.ws, idle_fn, UINT64_MAX / 4);
      workers_later(g.ws, idle_fn, 1000000);  // the earlier one counts
      wait_pooled(&g, 2);
      workers_tick(g.ws, idle_fn, 2000000);
      wait_pooled(&g, 5);
      workers_later(g.ws, idle_fn, 1000000);
      wait_pooled(&g, 9);
    }
    group_fini(&g);
  }
}

// Requests that come while a worker falls asleep, or ends what it was at, are seen.
static struct { _Atomic uint32_t rounds, idles; } quick;

static void quick_round(void *arg, struct worker *w) {
  (void)arg, (void)w;
  atomic_fetch_add(&quick.rounds, 1);
}

static bool quick_idle(void *arg, struct worker *w) {
  (void)arg, (void)w;
  atomic_fetch_add(&quick.idles, 1);
  return false;
}

static void test_asked_at_any_time(void **state) {
  (void)state;
  struct epoch epoch;
  struct blkio io;
  const uint32_t nr = LIB_SANITIZED ? 5000 : 50000;
  uint64_t rng = check_seed_for("test_asked_at_any_time");
  epoch_init(&epoch);
  blkio_init(&io, env_posix(), BLKIO_SYNC);
  atomic_store(&workers_trim_ns, EVENTCOUNT_NEVER);
  for (uint32_t threads = 1; threads <= 2; threads++) {
    struct workers *ws;
    OK(workers_create(threads, NULL, 0, &io, &epoch, quick_round, NULL, &ws));
    atomic_store(&quick.rounds, 0);
    atomic_store(&quick.idles, 0);
    for (uint32_t rounds = 0; rounds < 2; rounds++) {
      const uint64_t until = time_ns() + LONG_NS;
      for (uint32_t i = 1; i <= nr && time_ns() < until; i++) {
        if (rounds) workers_kick(ws);
        else workers_idle(ws, quick_idle);
        wait_quick(rounds ? &quick.rounds : &quick.idles, i);
        for (volatile uint64_t spin = rng_next(&rng) % 256; spin > 0; spin--) {}
      }
    }
    workers_destroy(ws);
  }
  atomic_store(&workers_trim_ns, WORKERS_TRIM_NS);
  epoch_fini(&epoch);
}

static void *kicker(void *arg) {
  struct group *g = arg;
  for (uint32_t i = 0; i < 50; i++) workers_kick(g->ws);
  return NULL;
}

static void test_kick_from_many(void **state) {
  (void)state;
  struct group g;
  group_init(&g, 2, NULL, 0);
  pthread_t t[3];
  for (uint32_t i = 0; i < 3; i++) OK(thread_start(&t[i], kicker, &g, "kicker"));
  for (uint32_t i = 0; i < 3; i++) pthread_join(t[i], NULL);
  // one that is asked for after all others have ended must come
  pthread_mutex_lock(&g.lock);
  const uint32_t begun = g.begun;
  pthread_mutex_unlock(&g.lock);
  assert_true(begun <= 150);
  workers_kick(g.ws);
  wait_ended(&g, begun + 1);
  group_fini(&g);
}

// Without threads: rounds that several threads ask for follow each other, and so do those that a round asks for.
static struct alone {
  struct workers *ws;
  _Atomic uint32_t inside, rounds, kicks, overlap;
  _Atomic uint32_t asked, seen;  // calls of workers_kick that have begun, and those of them that a round has seen
} alone;

static void alone_kick(void) {
  atomic_fetch_add(&alone.asked, 1);
  workers_kick(alone.ws);
}

static void alone_round(void *arg, struct worker *w) {
  (void)arg, (void)w;
  atomic_store(&alone.seen, atomic_load(&alone.asked));
  atomic_fetch_or(&alone.overlap, atomic_fetch_add(&alone.inside, 1) != 0);
  if (atomic_fetch_add(&alone.rounds, 1) % 16 == 3) {
    atomic_fetch_add(&alone.kicks, 1);
    alone_kick();
  }
  time_sleep_ns(100000);
  atomic_fetch_sub(&alone.inside, 1);
}

static void *alone_kicker(void *arg) {
  (void)arg;
  for (uint32_t i = 0; i < 50; i++, atomic_fetch_add(&alone.kicks, 1)) alone_kick();
  return NULL;
}

static void test_kick_alone(void **state) {
  (void)state;
  struct epoch epoch;
  struct blkio io;
  pthread_t t[3];
  epoch_init(&epoch);
  blkio_init(&io, env_posix(), BLKIO_SYNC);
  OK(workers_create(0, NULL, 0, &io, &epoch, alone_round, NULL, &alone.ws));
  for (uint32_t i = 0; i < 3; i++) OK(thread_start(&t[i], alone_kicker, NULL, "kicker"));
  for (uint32_t i = 0; i < 3; i++) pthread_join(t[i], NULL);
  const uint32_t rounds = atomic_load(&alone.rounds);
  assert_true(rounds > 0 && rounds <= atomic_load(&alone.kicks) && !atomic_load(&alone.overlap));
  assert_int_equal(atomic_load(&alone.seen), atomic_load(&alone.asked));  // a round has followed each
  workers_kick(alone.ws);  // alone it has taken place when the call returns
  assert_true(atomic_load(&alone.rounds) > rounds);
  workers_destroy(alone.ws);
  epoch_fini(&epoch);
}

static void test_destroy(void **state) {
  (void)state;
  for (uint32_t threads = 0; threads <= 3; threads++) {
    struct group g;
    group_init(&g, threads, NULL, 0);  // at once
    group_fini(&g);
    assert_int_equal(g.begun, 0);
    group_init(&g, threads, NULL, 0);  // after a round
    workers_kick(g.ws);
    wait_ended(&g, 1);
    group_fini(&g);
    group_init(&g, threads, NULL, 0);  // while one runs, which is waited for
    g.batches = 50;
    workers_kick(g.ws);
    wait_begun(&g, 1);
    group_fini(&g);
    assert_int_equal(g.ended, 1);
  }
  workers_destroy(NULL);
}

// ---- failures

static _Atomic int64_t fault_left;
static bool fault(size_t size) {
  (void)size;
  return atomic_fetch_sub(&fault_left, 1) != 1;
}

static void test_no_memory(void **state) {
  (void)state;
  for (uint32_t threads = 0; threads <= 3; threads += 3) {
    struct group g;
    group_init(&g, 0, NULL, 0);
    for (int64_t n = 1;; n++) {
      struct workers *ws = NULL;
      atomic_store(&fault_left, n);
      atomic_store(&mem_fault, fault);
      const enum remixdb_status s = workers_create(threads, NULL, 0, &g.io, &g.epoch, round_fn, &g, &ws);
      atomic_store(&mem_fault, NULL);
      if (atomic_load(&fault_left) > 0) {
        OK(s);
        workers_destroy(ws);
        assert_true(n > 2);
        break;
      }
      FAILS(s, REMIXDB_NOMEM);
      assert_null(ws);
    }
    group_fini(&g);
  }
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_plan),
      cmocka_unit_test(test_tasks),
      cmocka_unit_test(test_last_look),
      cmocka_unit_test(test_order),
      cmocka_unit_test(test_parallel),
      cmocka_unit_test(test_destroy),
      cmocka_unit_test(test_kick_while_running),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_kick_from_many),
      cmocka_unit_test(test_idle),
      cmocka_unit_test(test_start_late),
      cmocka_unit_test(test_cores_of_late),
      cmocka_unit_test(test_idle_in_turn),
      cmocka_unit_test(test_round_beside_idle),
      cmocka_unit_test(test_settle),
      cmocka_unit_test(test_idle_at_end),
      cmocka_unit_test(test_kick_alone),
      cmocka_unit_test(test_later),
      cmocka_unit_test(test_added),
      cmocka_unit_test(test_added_beside),
      cmocka_unit_test(test_asked_at_any_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
