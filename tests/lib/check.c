// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib.h"

uint64_t check_seed;
const char *check_seed_name = "TEST_SEED";
char check_what[256];
static uint64_t started;  // check_seed at the start

void check_failed_at(const char *file, int line, const char *what, const char *reason) {
  char seed[64] = "";
  if (check_seed) (void)snprintf(seed, sizeof(seed), "%s=%llu, ", check_seed_name, (unsigned long long)check_seed);
  fail_msg("%s%s%s%s:%d: %s%s%s (last message: %s)", seed, check_what, check_what[0] ? ", " : "", file, line, what,
           reason ? ": " : "", reason ? reason : "", err_msg());
}

void check_status_at(enum remixdb_status s, enum remixdb_status expected, const char *call, const char *file,
                     int line) {
  if (s == expected) return;
  char reason[160];
  (void)snprintf(reason, sizeof(reason), "%s, expected %s", remixdb_strerror(s), remixdb_strerror(expected));
  check_failed_at(file, line, call, reason);
}

void check_says_at(const char *file, int line, const char *what, const char *format, ...) {
  char reason[256];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(reason, sizeof(reason), format, args);
  va_end(args);
  check_failed_at(file, line, what, reason);
}

uint64_t check_seed_or(uint64_t standard) {
  const char *const given = getenv(check_seed_name);
  return given && *given ? strtoull(given, NULL, 0) : standard;
}

uint64_t check_seed_start(void) { return check_seed = started = check_seed_or(time_ns()); }

int check_seed_end(int rc) {
  if (rc) (void)fprintf(stderr, "repeat with %s=%llu\n", check_seed_name, (unsigned long long)started);
  return rc;
}

uint64_t check_seed_for(const char *test) {
  const uint64_t seed = check_seed_or(time_ns());
  print_message("%s: %s=%llu\n", test, check_seed_name, (unsigned long long)seed);
  return seed;
}
