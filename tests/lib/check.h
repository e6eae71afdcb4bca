// SPDX-License-Identifier: Apache-2.0
//
// The words in which all tests check: a failing check ends the running test and says where, what, with which seed, and
// the thread's error message. In the thread of the test only, because cmocka raises failures there.
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"

// Every failure message begins with these. A test without random choices leaves them alone.
extern uint64_t check_seed;          // of what runs; 0: not told
extern const char *check_seed_name;  // the variable of the environment that repeats it; TEST_SEED unless set
extern char check_what[256];         // where in a long test it is; empty: not told

void check_failed_at(const char *file, int line, const char *what, const char *reason);
void check_status_at(enum remixdb_status s, enum remixdb_status expected, const char *call, const char *file, int line);

// The condition holds.
#define CHECK(cond)                                                \
  do {                                                             \
    if (!(cond)) check_failed_at(__FILE__, __LINE__, #cond, NULL); \
  } while (0)
// The call returns this status.
#define FAILS(call, expected) check_status_at((call), (expected), #call, __FILE__, __LINE__)
// The call returns REMIXDB_OK.
#define OK(call) FAILS(call, REMIXDB_OK)
#endif
