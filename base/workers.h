// SPDX-License-Identifier: Apache-2.0
//
// The store's threads. They compact, and help to open a store. An idle worker sleeps. A tenth of a second after the
// last round one of them gives back the memory that rounds have freed (mem_trim).
//
// workers_kick asks for a round, and one worker runs it; at most one round runs at a time. The round gives its tasks to
// workers_run: this worker and all idle ones take them, the largest first. A task that runs may add others, which come
// after them.
//
// A thread that asks for a round or for idle work takes no lock, and waits for no worker, whether that runs or not.
// There is one exception: while the only thread that has started does idle work, a thread that asks for a round starts
// the missing ones. So no round waits for idle work.
//
// A store may have no workers. Then workers_kick and workers_run do everything in the calling thread. If a round runs
// there already, in this thread or another one, the call that runs it runs the next round, too.
#ifndef WORKERS_H
#define WORKERS_H

#include "blkio.h"
#include "base/epoch.h"

// The resources of one thread, for its tasks.
struct worker {
  struct blkio_queue *queue;
  struct epoch_slot slot;  // joined to the store's epoch domain
};

struct task {
  void (*run)(struct task *t, struct worker *w);  // reports its outcome in its own fields
  uint64_t size;                                  // any measure of the work. Larger tasks begin first: among a run's
                                                  // own ones, and then among those that are added
  struct task *next;                              // private: the next one that was added
};

struct workers;
#define WORKERS_MAX 64u
#define WORKERS_TRIM_NS 100000000ull      // without work after a round, until a worker gives memory back
extern _Atomic uint64_t workers_trim_ns;  // this, unless a test changes it; relaxed

// Does one piece of idle work. Returns false when nothing is left to do.
typedef bool (*workers_idle_fn)(void *arg, struct worker *w);

// There are to be nr threads (0: none). The first nr_cores of them are pinned, each to its core; the others may use the
// processors of the calling thread, whichever thread starts them. round(arg, w) runs one round. One thread starts now;
// the others start before the first round, when that is asked for beside idle work, before the first run of several
// tasks, and after the first piece of idle work that leaves more of it. If the system then gives none, there are fewer
// until a later round. Fails with REMIXDB_NOMEM or REMIXDB_IO.
MUST_CHECK enum remixdb_status workers_create(uint32_t nr, const uint32_t *cores, uint32_t nr_cores, struct blkio *io,
                                              struct epoch *epoch, void (*round)(void *arg, struct worker *w),
                                              void *arg, struct workers **out);
// Ends idle work: none begins from now on. Waits for the piece that is under way, and for the rounds that were asked
// for. Afterwards only the calling thread, and rounds that it asks for, may ask for a round.
void workers_settle(struct workers *ws);
// Waits until a running round ends, then ends the threads. No idle work begins any more. NULL is allowed.
void workers_destroy(struct workers *ws);
// How many threads there are to be, whether they have started or not.
uint32_t workers_count(const struct workers *ws);
// Changes the number of threads, and starts all of them, while others ask for rounds; both numbers are 1 to
// WORKERS_MAX. New threads are pinned as in workers_create. Threads that go end the round or the task that they run,
// and the call waits for that. One thread at a time, which is not a worker. Fails with REMIXDB_NOMEM or REMIXDB_IO: the
// number is the old one.
MUST_CHECK enum remixdb_status workers_resize(struct workers *ws, uint32_t nr, const uint32_t *cores,
                                              uint32_t nr_cores);
// Asks for a round and does not wait. All requests that come while a round runs lead to one more round. Without workers
// the call runs the round itself, unless another call is at it.
void workers_kick(struct workers *ws);
// Asks for idle work and does not wait. A worker without other work then calls idle(arg, w), with the arg of rounds,
// until the function returns false. Only one worker does so at a time. Every request must name the same function.
// Without workers the call does nothing.
void workers_idle(struct workers *ws, workers_idle_fn idle);
// The same at least once in ns nanoseconds from now on, without further requests.
void workers_tick(struct workers *ws, workers_idle_fn idle, uint64_t ns);
// The same once, ns nanoseconds from now on. The earliest of several such requests counts. Does nothing without
// workers.
void workers_later(struct workers *ws, workers_idle_fn idle, uint64_t ns);
// Runs all tasks and waits for them. Call it inside a round, or while no round was asked for. Tasks that run in the
// caller get `self`. Sorts the array.
void workers_run(struct workers *ws, struct worker *self, struct task **tasks, uint32_t nr);
// Adds a task to the workers_run in progress, which waits for it, too. Only a task of that run calls this. The run's
// own tasks begin first, then the added ones, the largest first.
void workers_add(struct workers *ws, struct task *t);

// Turns the options into a number of workers and their cores.
//   asked: how many workers; < 0: as many as suit the machine, or one for each core of the list.
//   cores: "none"; a list: the workers take its cores in turn; or "auto" (also NULL). "auto" takes the last cores
//          that the process may use, at most half of them, and does not pin further workers; with one core it pins
//          none.
// Fails with REMIXDB_INVALID.
MUST_CHECK enum remixdb_status workers_plan(int asked, const char *cores, uint32_t *nr_out, uint32_t *cores_out,
                                            uint32_t cap, uint32_t *nr_cores_out);
#endif
