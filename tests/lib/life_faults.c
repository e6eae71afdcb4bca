// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/life_faults.h"

#include <errno.h>
#include <stdio.h>

#include "store/flush.h"
#include "store/page.h"
#include "store/syncer.h"

static _Atomic uint64_t allocations;
static uint64_t allocations_fail_at, allocations_fail_nr;

uint64_t allocations_seen(void) { return atomic_load(&allocations); }

static bool allocate(size_t size) {
  (void)size;
  const uint64_t n = atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
  return n < allocations_fail_at || n - allocations_fail_at >= allocations_fail_nr;
}

void heal(struct run *r, bool reopen) {
  for (int c = 0; c < SIMDISK_CALLS; c++) simdisk_fault(r->disk, (enum simdisk_call)c, 0, 0, EIO);
  simdisk_space(r->disk, UINT64_MAX);
  atomic_store(&mem_fault, NULL);
  r->faulty = r->no_memory = r->may_nospace = r->may_nomem = false;
  if (r->x) {
    check_content(r, false);
    pthread_mutex_lock(&r->x->lock);
    r->x->rounds.failed_ns = 0;  // a failed round may be tried again at once
    pthread_mutex_unlock(&r->x->lock);
    // a worker's round may just be failing, and the wait for the next one counts from then on
    for (uint32_t tries = 0; r->plan.opts.workers && !reopen && xdb_wait_idle(r->x) != REMIXDB_OK; tries++) {
      CHECK(tries < 500);
      time_sleep_ns(10000000);
    }
  }
  if (reopen) {
    if (r->x) {
      const size_t nr = life_accepted(&r->model);
      if (run_close(r) == REMIXDB_OK) r->model.synced = nr;
    }
    OK(run_open(r));
    CHECK(check_prefix(r));
    check_names(r, true);
  }
}

const char *const call_names[] = {"open",   "read",   "write", "sync",  "truncate", "allocate", "punch", "stat",
                                  "rename", "unlink", "link",  "mkdir", "rmdir",    "list",     "lock",  "close"};

bool reads_use(enum simdisk_call c) { return c == SIMDISK_OPEN || c == SIMDISK_READ || c == SIMDISK_STAT; }

void inject(struct run *r, const struct fault *f) {
  r->faulty = true;
  r->may_nospace = f->full || f->errnum == ENOSPC;
  if (f->full) {
    (void)snprintf(check_what, sizeof(check_what), "room for %llu bytes", (unsigned long long)f->nth);
    simdisk_space(r->disk, simdisk_used(r->disk) + f->nth);
    return;
  }
  if (f->memory) {
    (void)snprintf(check_what, sizeof(check_what), "allocation %llu %s", (unsigned long long)f->nth,
                   f->once ? "once" : "from then on");
    r->no_memory = true;
    allocations = 0;
    allocations_fail_at = f->nth;
    allocations_fail_nr = f->once ? 1 : UINT64_MAX;
    atomic_store(&mem_fault, allocate);
    return;
  }
  (void)snprintf(check_what, sizeof(check_what), "%s %llu of \"%s\" %s %s", call_names[f->call],
                 (unsigned long long)f->nth, f->name, f->errnum == EIO ? "EIO" : "ENOSPC",
                 f->once ? "once" : "from then on");
  simdisk_fault_name(r->disk, f->name);
  simdisk_fault(r->disk, f->call, f->nth, f->once ? 1 : UINT64_MAX, f->errnum);
}

bool passes(const struct fault *f) {
  if (f->full || f->memory) return true;
  const bool syncs = f->call == SIMDISK_SYNC ||
                     (f->call == SIMDISK_OPEN && (!f->name[0] || strcmp(f->name, "store") == 0));
  return (f->errnum == ENOSPC || f->errnum == EDQUOT) && !syncs;
}

bool is_full(int errnum) { return errnum == ENOSPC || errnum == EDQUOT; }
