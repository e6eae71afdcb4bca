// SPDX-License-Identifier: Apache-2.0
//
// Threads, and condition variables.
#ifndef THREAD_H
#define THREAD_H

#include "lib.h"

// Starts fn(arg) with all signals blocked. The system shows at most 15 characters of name. Fails with REMIXDB_NOMEM or
// REMIXDB_IO.
MUST_CHECK enum remixdb_status thread_start(pthread_t *out, void *(*fn)(void *), void *arg, const char *name);
// For tests: if a test sets this function, every start calls it first. If the function returns false, the start fails
// as if the system had no threads left.
extern bool (*_Atomic thread_fault)(void);
void thread_join(pthread_t t);
// Condition variables on the monotonic clock. cond_wait_ns waits at most ns nanoseconds. It returns false if this time
// has passed.
void cond_init(pthread_cond_t *c);
void cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
bool cond_wait_ns(pthread_cond_t *c, pthread_mutex_t *m, uint64_t ns);
#endif
