// SPDX-License-Identifier: Apache-2.0
#include "base/budget.h"

#include <assert.h>

_Atomic bool budget_starved;

void budget_init(struct budget *b) {
  for (uint32_t i = 0; i < BUDGET_KINDS; i++) atomic_init(&b->used[i], 0);
  atomic_init(&b->pieces_most, UINT64_MAX);
  atomic_init(&b->dicts_most, UINT64_MAX);
  atomic_init(&b->work_most, UINT64_MAX);
  atomic_init(&b->scans_most, UINT64_MAX);
  atomic_init(&b->indexes_most, UINT64_MAX);
  atomic_init(&b->away, 0);
  b->lacks = NULL;
  b->arg = NULL;
  b->scans_changed = NULL;
  b->scans_arg = NULL;
  b->working = 0;
  (void)pthread_mutex_init(&b->lock, NULL);
  eventcount_init(&b->ended);
}

void budget_fini(struct budget *b) {
  assert(b->working == 0);
  eventcount_fini(&b->ended);
  (void)pthread_mutex_destroy(&b->lock);
}

void budget_work_begin(struct budget *b, uint64_t bytes) {
  if (!b) return;
  uint64_t most;
  (void)pthread_mutex_lock(&b->lock);
  for (;;) {
    most = atomic_load_explicit(&b->work_most, memory_order_relaxed);
    const uint64_t used = budget_used(b, BUDGET_WORK);
    if (b->working == 0 || (used <= most && bytes <= most - used)) break;
    (void)eventcount_wait(&b->ended, &b->lock, EVENTCOUNT_NEVER);
  }
  b->working++;
  budget_take(b, BUDGET_WORK, bytes);
  (void)pthread_mutex_unlock(&b->lock);
  if (bytes > most && b->lacks) b->lacks(b->arg);
}

void budget_work_end(struct budget *b, uint64_t bytes) {
  if (!b) return;
  (void)pthread_mutex_lock(&b->lock);
  assert(b->working > 0);
  b->working--;
  budget_give(b, BUDGET_WORK, bytes);
  (void)pthread_mutex_unlock(&b->lock);
  eventcount_wake_all(&b->ended);
}

void budget_scans(struct budget *b, uint64_t was, uint64_t is) {
  if (!b || was == is) return;
  const uint64_t before = atomic_fetch_add_explicit(&b->used[BUDGET_SCANS], is - was, memory_order_relaxed);
  if (before / BUDGET_SCANS_STEP != (before + is - was) / BUDGET_SCANS_STEP && b->scans_changed)
    b->scans_changed(b->scans_arg);
}
