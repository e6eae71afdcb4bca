// SPDX-License-Identifier: Apache-2.0
//
// The threads that compact, and help to open a store. Each sleeps until there is something to do. A round (one at a
// time) is started by workers_kick and run by one worker; the round hands its tasks to workers_run, where it and all
// idle workers take them, largest first. With no workers workers_run does them all in the caller. Rounds then run in
// whoever asks for them: what a round does once it has let others ask for the next one (store/round.c: install) uses
// nothing of its worker.
#ifndef WORKERS_H
#define WORKERS_H

#include "blkio.h"
#include "base/epoch.h"

struct worker {  // what a task may use: its thread's own
  struct blkio_queue *queue;
  struct epoch_slot slot;  // joined to the store's epoch domain
};

struct task {
  void (*run)(struct task *t, struct worker *w);  // reports its outcome in its own fields
  uint64_t size;                                  // any measure of the work: larger ones are begun first
};

struct workers;

// Something useful that nobody waits for; false: nothing was left to do.
typedef bool (*workers_idle_fn)(void *arg, struct worker *w);

// nr threads (0: none), the first nr_cores of them each pinned to a core. round(arg, w) is what workers_kick runs.
// REMIXDB_NOMEM, REMIXDB_IO.
MUST_CHECK enum remixdb_status workers_create(uint32_t nr, const uint32_t *cores, uint32_t nr_cores, struct blkio *io,
                                              struct epoch *epoch, void (*round)(void *arg, struct worker *w),
                                              void *arg, struct workers **out);
// Lets the round that runs end, then ends the threads. NULL is allowed.
void workers_destroy(struct workers *ws);
uint32_t workers_count(const struct workers *ws);
// Asks for a round; several asked for while one runs make one more. Does not wait. With no workers it runs in the
// caller, before return.
void workers_kick(struct workers *ws);
// Asks for spare(arg, w), with the arg of rounds: a worker that has nothing else to do runs it again and again until it
// returns false; one at a time. Does not wait. With no workers nothing happens. The same function each time.
void workers_idle(struct workers *ws, workers_idle_fn spare);
// Runs all tasks and waits for them. Called from within a round, or while none was asked for. self: what tasks get that
// the caller runs. Sorts the array.
void workers_run(struct workers *ws, struct worker *self, struct task **tasks, uint32_t nr);

// What "auto" / "none" / a list mean for this process: how many workers (asked < 0: as many as suit the machine, or as
// the list has cores) and on which cores. "auto" takes the last of the affinity list, never more than half of it, and
// leaves further workers where they are; on one core nobody is pinned. Workers take the cores of a list in turn.
// REMIXDB_INVALID.
MUST_CHECK enum remixdb_status workers_plan(int asked, const char *cores, uint32_t *nr_out, uint32_t *cores_out,
                                            uint32_t cap, uint32_t *nr_cores_out);
#define WORKERS_MAX 64u
#endif
