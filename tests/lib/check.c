// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/check.h"

#include <stdio.h>

uint64_t check_seed;
const char *check_seed_name = "TEST_SEED";
char check_what[256];

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
