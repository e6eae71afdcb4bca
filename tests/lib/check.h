// SPDX-License-Identifier: Apache-2.0
//
// The checks of all tests. A failing check ends the running test and reports the place, the check, the seed, and the
// thread's error message. In the thread of the test only, because cmocka raises failures there.
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"

// Every failure message begins with these. A test without random choices leaves them alone.
extern uint64_t check_seed;          // the running test's; 0: not told
extern const char *check_seed_name;  // the variable of the environment that repeats it; TEST_SEED unless set
extern char check_what[256];         // where in a long test it is; empty: not told

void check_failed_at(const char *file, int line, const char *what, const char *reason);
void check_status_at(enum remixdb_status s, enum remixdb_status expected, const char *call, const char *file, int line);

void check_says_at(const char *file, int line, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Seeds of random tests. A program that draws all its choices from check_seed begins with check_seed_start, which takes
// the seed of the environment, or else a new one, and ends with check_seed_end, which tells a failure's seed and
// returns rc. check_seed_for is for a test that draws from a seed of its own: it prints the seed.
uint64_t check_seed_start(void);
int check_seed_end(int rc);
uint64_t check_seed_for(const char *test);
// The seed of the environment, or else this one.
uint64_t check_seed_or(uint64_t standard);

// The condition holds.
#define CHECK(cond)                                                \
  do {                                                             \
    if (!(cond)) check_failed_at(__FILE__, __LINE__, #cond, NULL); \
  } while (0)
// The same; a failure says more, as printf does.
#define CHECK_SAYS(cond, ...)                                           \
  do {                                                                  \
    if (!(cond)) check_says_at(__FILE__, __LINE__, #cond, __VA_ARGS__); \
  } while (0)
// The call returns this status.
#define FAILS(call, expected) check_status_at((call), (expected), #call, __FILE__, __LINE__)
// The call returns REMIXDB_OK.
#define OK(call) FAILS(call, REMIXDB_OK)
#endif
