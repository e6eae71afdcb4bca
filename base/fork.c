// SPDX-License-Identifier: Apache-2.0
#include "base/fork.h"

#include <assert.h>

#include "base/env.h"

uint32_t fork_count;

static struct lib_lock lock;  // guards the two below; held during a fork
static bool watched;
static struct fork_closes *closes;  // the list

static void before_fork(void) {
  lib_lock(&lock);
  mem_fork_hold();
}

static void in_parent(void) {
  mem_fork_release();
  lib_unlock(&lock);
}

static void in_child(void) {
  mem_fork_release();
  struct env *const e = env_posix();
  for (struct fork_closes *f = closes; f; f = f->next) {
    env_close_quiet(e, f->fd[0]);
    env_close_quiet(e, f->fd[1]);
  }
  closes = NULL;
  fork_count++;
  lib_unlock(&lock);
}

enum remixdb_status fork_watch(void) {
  lib_lock(&lock);
  const int errnum = watched ? 0 : pthread_atfork(before_fork, in_parent, in_child);
  watched = watched || errnum == 0;
  lib_unlock(&lock);
  return errnum ? err_set(REMIXDB_NOMEM, "no memory for the handlers of fork") : REMIXDB_OK;
}

void fork_hold(void) { lib_lock(&lock); }
void fork_release(void) { lib_unlock(&lock); }

void fork_add(struct fork_closes *f) {
  f->prev = NULL;
  f->next = closes;
  assert(!closes || !closes->prev);
  if (closes) closes->prev = f;
  closes = f;
}

void fork_remove(struct fork_closes *f) {
  if (f->next) f->next->prev = f->prev;
  if (f->prev) f->prev->next = f->next;
  else closes = f->next;
}
