// SPDX-License-Identifier: Apache-2.0
//
// Holds up each thread that wakes another one, at the place where it does so, as if it had lost its processor there.
// Meanwhile a probe in a thread of its own takes the locks that the first one must not hold. One watch at a time.
#ifndef TESTS_WAKES_H
#define TESTS_WAKES_H

#include "tests/lib/check.h"

#include "lib.h"

// Begins to watch. The probe holds no lock when it returns, and waits for no thread that wakes others.
void wakes_begin(void (*probe)(void *arg), void *arg);
// Ends the watch. Returns how many wake-ups there were. Fails if a probe had to wait for the thread that woke another,
// or if there were more than 64: then the later ones have no probe.
// All threads that wake others have ended.
uint32_t wakes_end(void);

// Starts a thread that runs fn(arg), and returns when that thread sleeps, as far as the system tells, or has ended.
// False: there is no new thread. Any thread may call this.
bool wakes_asleep(pthread_t *thread, void *(*fn)(void *arg), void *arg);
#endif
