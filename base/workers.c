// SPDX-License-Identifier: Apache-2.0
#include "base/workers.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cores.h"
#include "base/eventcount.h"
#include "base/thread.h"
#include "base/zmem.h"

// A round seldom has more partitions that are worth a thread.
#define WORKERS_AUTO_MAX 4u
// Also on two cores: a writer that outruns compaction sleeps half of its time.
#define WORKERS_AUTO_MIN 2u

struct worker_thread {
  struct worker w;
  struct workers *ws;
  pthread_t thread;
  uint32_t index;
  int core;  // -1: not pinned
};

_Atomic uint64_t workers_trim_ns = WORKERS_TRIM_NS;

struct workers {
  struct blkio *io;
  struct epoch *epoch;
  void (*round)(void *arg, struct worker *w);
  void *arg;
  struct eventcount work;  // somebody asked for a round or idle work, gave tasks, or told the threads to stop
  struct eventcount done;  // the last running task has ended, or one was added; a round has ended, or idle work
  // Requests. They are written without the lock, by exchanges that release, and taken by exchanges that acquire, with
  // the lock. So a thread that takes a request sees what all threads did before they made it.
  _Atomic bool round_asked;
  _Atomic(workers_idle_fn) idle;  // the idle work that was asked for; NULL: none
  // Written with the lock. In one order with the accesses to `idle`, all of them seq_cst: a thread that asks for idle
  // work and finds it under way knows that the worker at it looks again. The same holds for requests for a round: the
  // thread that asks sees that idle work is under way, or the worker that begins it sees the request.
  _Atomic bool in_idle;
  pthread_mutex_t lock;  // guards all below
  bool in_round, stop;
  bool settled;           // no idle work begins any more
  bool used;              // a round has run, or tasks have, and the memory that they freed is still kept (mem_trim)
  workers_idle_fn tick;   // idle work that begins by itself; NULL: none
  uint64_t tick_ns;       // the time between two beginnings of `tick`
  uint64_t tick_at;       // the time of the next one
  workers_idle_fn later;  // idle work that begins once; NULL: none
  uint64_t later_at;      // the time at which it begins
  struct task **tasks;    // the tasks of the workers_run in progress, largest first; NULL: none
  uint32_t nr_tasks;
  uint32_t next;        // tasks[next] is the first that nobody has taken
  struct task *added;   // tasks that others have added and nobody has taken, largest first
  uint32_t running;     // tasks that have begun and not ended
  struct worker self;   // the caller's, when there are no threads
  _Atomic uint32_t nr;  // threads that there may be; relaxed. Stays 0 if it was 0 at first
  uint32_t wanted;      // a thread with a number from here on ends when it has nothing to do
  // Threads that there are, which grows only while `stop` is not set. Read without the lock, too, relaxed: it is less
  // than `nr` only until all have started for the first time, so an old value only costs a look with the lock.
  _Atomic uint32_t started;
  uint32_t nr_cores;            // the first so many threads are pinned,
  uint32_t cores[WORKERS_MAX];  // each to its core
  struct cores all;             // for the others: the processors of the thread that has made the workers
  struct worker_thread threads[WORKERS_MAX];
};

// Returns a task to run, or NULL. The caller holds the lock.
static struct task *next_task(struct workers *ws) {
  if (!ws->tasks) return NULL;
  if (ws->next < ws->nr_tasks) return ws->tasks[ws->next++];
  struct task *const t = ws->added;
  if (t) ws->added = t->next;
  return t;
}

// Runs one task, if there is one to take. The caller holds the lock, and it is free during the task.
static bool take_task(struct workers *ws, struct worker *w) {
  struct task *const t = next_task(ws);
  if (!t) return false;
  ws->running++;
  pthread_mutex_unlock(&ws->lock);
  t->run(t, w);
  pthread_mutex_lock(&ws->lock);
  if (--ws->running == 0) eventcount_wake_all(&ws->done);
  return true;
}

// Whether there is a round to take. The caller holds the lock; so in idle_due.
static bool round_due(const struct workers *ws) {
  return atomic_load_explicit(&ws->round_asked, memory_order_relaxed) && !ws->in_round && !ws->stop;
}

static bool idle_due(const struct workers *ws) {
  return atomic_load_explicit(&ws->idle, memory_order_seq_cst) &&
         !atomic_load_explicit(&ws->in_idle, memory_order_relaxed) && !ws->settled && !ws->stop;
}

static void *worker_main(void *arg);

static enum remixdb_status worker_init(struct workers *ws, struct worker *w) {
  const enum remixdb_status s = blkio_queue_create(ws->io, &w->queue);
  if (s == REMIXDB_OK) epoch_join(ws->epoch, &w->slot);
  return s;
}

static void worker_fini(struct workers *ws, struct worker *w) {
  if (!w->queue) return;
  blkio_queue_destroy(w->queue);
  epoch_leave(ws->epoch, &w->slot);
}

// Starts threads until there are `nr`. On failure those that have started stay. The caller holds the lock; so in
// start_others.
static enum remixdb_status workers_start(struct workers *ws, uint32_t nr) {
  for (uint32_t i = ws->started; i < nr && !ws->stop; i++) {
    struct worker_thread *t = &ws->threads[i];
    *t = (struct worker_thread){.ws = ws, .index = i, .core = i < ws->nr_cores ? (int)ws->cores[i] : -1};
    char name[16];
    snprintf(name, sizeof(name), "remixdb-%u", i & 0xFF);
    enum remixdb_status s = worker_init(ws, &t->w);
    if (s == REMIXDB_OK && (s = thread_start(&t->thread, worker_main, t, name)) != REMIXDB_OK) worker_fini(ws, &t->w);
    if (s != REMIXDB_OK) return s;
    ws->started = i + 1;
  }
  return REMIXDB_OK;
}

// Starts the threads that are missing. If the system gives none, there are fewer workers until it does.
static void start_others(struct workers *ws) {
  if (likely(ws->started >= ws->wanted)) return;
  err_cleanup_begin();
  const enum remixdb_status ignored = workers_start(ws, ws->wanted);
  (void)ignored;
  err_cleanup_end();
}

// Runs a round, if one was asked for and none runs. The lock as in take_task; so in take_idle.
static bool take_round(struct workers *ws, struct worker *w) {
  if (!round_due(ws)) return false;
  start_others(ws);  // for its tasks, and for idle work beside it
  (void)atomic_exchange_explicit(&ws->round_asked, false, memory_order_acquire);
  ws->in_round = true;
  pthread_mutex_unlock(&ws->lock);
  ws->round(ws->arg, w);
  pthread_mutex_lock(&ws->lock);
  ws->in_round = false;
  ws->used = true;
  eventcount_wake_all(&ws->work);
  eventcount_wake_all(&ws->done);
  return true;
}

// Runs one piece of idle work, if it was asked for and nobody is at it.
static bool take_idle(struct workers *ws, struct worker *w) {
  if (!idle_due(ws)) return false;
  // a request that comes meanwhile is a new one
  const workers_idle_fn idle = atomic_exchange_explicit(&ws->idle, NULL, memory_order_seq_cst);
  atomic_store_explicit(&ws->in_idle, true, memory_order_seq_cst);
  if (unlikely(atomic_load_explicit(&ws->round_asked, memory_order_seq_cst))) start_others(ws);
  pthread_mutex_unlock(&ws->lock);
  const bool more = idle(ws->arg, w);
  pthread_mutex_lock(&ws->lock);
  atomic_store_explicit(&ws->in_idle, false, memory_order_seq_cst);
  eventcount_wake_all(&ws->done);
  if (!more) return true;
  start_others(ws);  // a round may be asked for beside the rest
  (void)atomic_exchange_explicit(&ws->idle, idle, memory_order_seq_cst);
  return true;
}

// Asks for the idle work whose time has come. Returns whether there is any, and else in how many ns the next one comes.
static bool ask_timed(struct workers *ws, uint64_t *ns_out) {
  const uint64_t now = ws->tick || ws->later ? time_ns() : 0;
  bool any = false;
  *ns_out = UINT64_MAX;
  if (ws->tick && now >= ws->tick_at) {
    ws->tick_at = now + ws->tick_ns;
    (void)atomic_exchange_explicit(&ws->idle, ws->tick, memory_order_seq_cst);
    any = true;
  } else if (ws->tick) {
    *ns_out = ws->tick_at - now;
  }
  if (ws->later && now >= ws->later_at) {
    (void)atomic_exchange_explicit(&ws->idle, ws->later, memory_order_seq_cst);
    ws->later = NULL;
    any = true;
  } else if (ws->later && ws->later_at - now < *ns_out) {
    *ns_out = ws->later_at - now;
  }
  return any;
}

// Waits for something to do. If nothing comes for a while, the memory that rounds have freed goes back to the system.
// Rounds that follow each other closely would have to get it again.
static void wait_work(struct workers *ws) {
  uint64_t timed;
  const uint32_t begun = eventcount_begin(&ws->work);
  if (ask_timed(ws, &timed) || round_due(ws) || idle_due(ws)) {
    eventcount_end(&ws->work);
    return;
  }
  const bool trims = ws->used && !ws->in_round;
  const uint64_t trim = atomic_load_explicit(&workers_trim_ns, memory_order_relaxed);
  const bool first = timed < trim || !trims;  // timed work comes before the end of the wait for the trim
  const bool woken = eventcount_sleep_unlocked(&ws->work, begun, &ws->lock, first ? timed : trim);
  if (!woken && !first && !ws->in_round && ws->used) {
    ws->used = false;
    pthread_mutex_unlock(&ws->lock);
    zmem_trim();
    mem_trim();
    pthread_mutex_lock(&ws->lock);
  }
}

static void *worker_main(void *arg) {
  struct worker_thread *t = arg;
  struct workers *ws = t->ws;
  // A thread gets the core of the one that starts it, and that may be a worker with a core of its own. If the system
  // refuses, the thread is only slower.
  (void)(t->core >= 0 ? cores_pin((uint32_t)t->core) : cores_set(&ws->all));
  pthread_mutex_lock(&ws->lock);
  while (t->index < ws->wanted && (!ws->stop || ws->in_round))
    if (!take_task(ws, &t->w) && !take_round(ws, &t->w) && !take_idle(ws, &t->w)) wait_work(ws);
  eventcount_wake_all(&ws->work);  // a thread that ends early may have been woken in place of another one (E3)
  pthread_mutex_unlock(&ws->lock);
  return NULL;
}

// Waits for the threads from number nr on, which have been told to end.
static void workers_end(struct workers *ws, uint32_t nr) {
  pthread_mutex_lock(&ws->lock);
  for (uint32_t i = ws->started; i-- > nr;) {
    pthread_mutex_unlock(&ws->lock);
    thread_join(ws->threads[i].thread);
    worker_fini(ws, &ws->threads[i].w);
    pthread_mutex_lock(&ws->lock);
    ws->started = i;
  }
  pthread_mutex_unlock(&ws->lock);
}

static void set_cores(struct workers *ws, const uint32_t *cores, uint32_t nr_cores) {
  ws->nr_cores = nr_cores < WORKERS_MAX ? nr_cores : WORKERS_MAX;
  if (ws->nr_cores) memcpy(ws->cores, cores, ws->nr_cores * sizeof(*cores));
}

enum remixdb_status workers_create(uint32_t nr, const uint32_t *cores, uint32_t nr_cores, struct blkio *io,
                                   struct epoch *epoch, void (*round)(void *arg, struct worker *w), void *arg,
                                   struct workers **out) {
  const size_t size = align_up(sizeof(struct workers), CACHE_LINE);
  struct workers *ws = mem_alloc_aligned(CACHE_LINE, size);
  if (!ws) return REMIXDB_NOMEM;
  memset(ws, 0, size);
  ws->io = io;
  ws->epoch = epoch;
  ws->round = round;
  ws->arg = arg;
  ws->wanted = nr;
  atomic_init(&ws->nr, nr);
  set_cores(ws, cores, nr_cores);
  cores_get(&ws->all);
  pthread_mutex_init(&ws->lock, NULL);
  eventcount_init(&ws->work);
  eventcount_init(&ws->done);
  pthread_mutex_lock(&ws->lock);
  const enum remixdb_status s = nr == 0 ? worker_init(ws, &ws->self) : workers_start(ws, 1);
  pthread_mutex_unlock(&ws->lock);
  if (s != REMIXDB_OK) {
    workers_destroy(ws);
    return s;
  }
  *out = ws;
  return REMIXDB_OK;
}

enum remixdb_status workers_resize(struct workers *ws, uint32_t nr, const uint32_t *cores, uint32_t nr_cores) {
  const uint32_t before = workers_count(ws);
  assert(before > 0 && nr > 0 && nr <= WORKERS_MAX);
  pthread_mutex_lock(&ws->lock);
  ws->wanted = nr;
  set_cores(ws, cores, nr_cores);
  eventcount_wake_all(&ws->work);
  pthread_mutex_unlock(&ws->lock);
  workers_end(ws, nr);
  pthread_mutex_lock(&ws->lock);
  const enum remixdb_status s = workers_start(ws, nr);
  if (s == REMIXDB_OK) atomic_store_explicit(&ws->nr, nr, memory_order_relaxed);
  else ws->wanted = before;
  eventcount_wake_all(&ws->work);
  pthread_mutex_unlock(&ws->lock);
  if (s == REMIXDB_OK) return s;
  err_cleanup_begin();
  workers_end(ws, before);
  err_cleanup_end();
  return s;
}

void workers_settle(struct workers *ws) {
  pthread_mutex_lock(&ws->lock);
  ws->settled = true;
  while (atomic_load_explicit(&ws->in_idle, memory_order_relaxed) || ws->in_round ||
         atomic_load_explicit(&ws->round_asked, memory_order_relaxed))
    (void)eventcount_wait(&ws->done, &ws->lock, EVENTCOUNT_NEVER);
  pthread_mutex_unlock(&ws->lock);
}

void workers_destroy(struct workers *ws) {
  if (!ws) return;
  pthread_mutex_lock(&ws->lock);
  ws->stop = true;
  eventcount_wake_all(&ws->work);
  pthread_mutex_unlock(&ws->lock);
  workers_end(ws, 0);
  worker_fini(ws, &ws->self);
  eventcount_fini(&ws->work);
  eventcount_fini(&ws->done);
  pthread_mutex_destroy(&ws->lock);
  mem_free(ws);
}

uint32_t workers_count(const struct workers *ws) { return atomic_load_explicit(&ws->nr, memory_order_relaxed); }

// Runs the rounds that were asked for, in this thread. While another thread is at it, or this one, that call goes on
// with one more round.
static void run_here(struct workers *ws) {
  pthread_mutex_lock(&ws->lock);
  atomic_store_explicit(&ws->round_asked, true, memory_order_relaxed);
  const bool busy = ws->in_round;
  ws->in_round = true;
  while (!busy && atomic_exchange_explicit(&ws->round_asked, false, memory_order_relaxed)) {
    pthread_mutex_unlock(&ws->lock);
    ws->round(ws->arg, &ws->self);
    pthread_mutex_lock(&ws->lock);
  }
  if (!busy) ws->in_round = false;
  pthread_mutex_unlock(&ws->lock);
  if (busy) return;
  zmem_trim();
  mem_trim();
}

void workers_kick(struct workers *ws) {
  if (workers_count(ws) == 0) {
    run_here(ws);
    return;
  }
  (void)atomic_exchange_explicit(&ws->round_asked, true, memory_order_seq_cst);
  const bool in_idle = atomic_load_explicit(&ws->in_idle, memory_order_seq_cst);
  if (in_idle && unlikely(atomic_load_explicit(&ws->started, memory_order_relaxed) < workers_count(ws))) {
    // the only thread that has started may be at the idle work, for long
    pthread_mutex_lock(&ws->lock);
    start_others(ws);
    pthread_mutex_unlock(&ws->lock);
  }
  eventcount_wake(&ws->work);
}

void workers_idle(struct workers *ws, workers_idle_fn idle) {
  if (workers_count(ws) == 0) return;
  const workers_idle_fn asked = atomic_exchange_explicit(&ws->idle, idle, memory_order_seq_cst);
  // The worker that is at it looks again at its end, and another request has woken a worker.
  if (!asked && !atomic_load_explicit(&ws->in_idle, memory_order_seq_cst)) eventcount_wake(&ws->work);
}

void workers_tick(struct workers *ws, workers_idle_fn idle, uint64_t ns) {
  if (ws->nr == 0) return;
  pthread_mutex_lock(&ws->lock);
  if (!ws->tick) {
    ws->tick = idle;
    ws->tick_ns = ns;
    ws->tick_at = time_ns() + ns;
    eventcount_wake_all(&ws->work);
  }
  pthread_mutex_unlock(&ws->lock);
}

void workers_later(struct workers *ws, workers_idle_fn idle, uint64_t ns) {
  if (workers_count(ws) == 0) return;
  pthread_mutex_lock(&ws->lock);
  const uint64_t at = time_ns() + ns;
  if (!ws->later || at < ws->later_at) {
    ws->later = idle;
    ws->later_at = at;
    eventcount_wake(&ws->work);
  }
  pthread_mutex_unlock(&ws->lock);
}

static int larger_first(const void *a, const void *b) {
  const struct task *x = *(struct task *const *)a, *y = *(struct task *const *)b;
  return (x->size < y->size) - (x->size > y->size);
}

void workers_run(struct workers *ws, struct worker *self, struct task **tasks, uint32_t nr) {
  if (nr == 0) return;
  qsort(tasks, nr, sizeof(*tasks), larger_first);
  pthread_mutex_lock(&ws->lock);
  assert(!ws->tasks && ws->running == 0);
  if (nr > 1 && workers_count(ws)) start_others(ws);
  ws->tasks = tasks;
  ws->nr_tasks = nr;
  ws->next = 0;
  ws->added = NULL;
  eventcount_wake_all(&ws->work);
  for (;;) {
    if (take_task(ws, self)) continue;
    if (ws->running == 0) break;
    (void)eventcount_wait(&ws->done, &ws->lock, EVENTCOUNT_NEVER);
  }
  ws->used = true;
  ws->tasks = NULL;
  pthread_mutex_unlock(&ws->lock);
}

void workers_add(struct workers *ws, struct task *t) {
  pthread_mutex_lock(&ws->lock);
  assert(ws->tasks && ws->running > 0);
  struct task **at = &ws->added;
  while (*at && (*at)->size >= t->size) at = &(*at)->next;
  t->next = *at;
  *at = t;
  // Some thread has to take it. The one that waits for the end of the run may be the only idle one.
  eventcount_wake(&ws->work);
  eventcount_wake_all(&ws->done);
  pthread_mutex_unlock(&ws->lock);
}

// How many workers suit a machine of so many cores: half of them, within the limits.
static uint32_t plan_count(uint32_t nr_cores) {
  const uint32_t half = nr_cores / 2 < WORKERS_AUTO_MAX ? nr_cores / 2 : WORKERS_AUTO_MAX;
  if (half >= WORKERS_AUTO_MIN) return half;
  return nr_cores < WORKERS_AUTO_MIN ? nr_cores : WORKERS_AUTO_MIN;
}

enum remixdb_status workers_plan(int asked, const char *cores, uint32_t *nr_out, uint32_t *cores_out, uint32_t cap,
                                 uint32_t *nr_cores_out) {
  uint32_t list[1024];
  uint32_t nr_list = cores_list(list, 1024);
  if (nr_list > 1024) nr_list = 1024;  // the machine has more, and the list ends here
  const bool automatic = !cores || strcmp(cores, "auto") == 0, none = cores && strcmp(cores, "none") == 0;
  uint32_t named = 0;
  if (!automatic && !none) {
    const enum remixdb_status s = cores_parse(cores, cores_out, cap, &named);
    if (s != REMIXDB_OK) return s;
  }
  const uint32_t nr = asked >= 0 ? (uint32_t)asked : named ? named : plan_count(nr_list);
  if (nr > WORKERS_MAX) return err_set(REMIXDB_INVALID, "%u workers are more than the maximum of %u", nr, WORKERS_MAX);
  if (automatic && nr_list > 1) {
    named = nr < nr_list / 2 ? nr : nr_list / 2;
    if (named > cap) named = cap;
    for (uint32_t i = 0; i < named; i++) cores_out[i] = list[nr_list - 1 - i];
  } else {
    for (const uint32_t of = named; of > 0 && named < nr && named < cap; named++)
      cores_out[named] = cores_out[named % of];
  }
  *nr_out = nr;
  *nr_cores_out = nr ? named : 0;
  return REMIXDB_OK;
}
