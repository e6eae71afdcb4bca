// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/slow.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/check.h"

const char *hang_step = "";

uint32_t usual_or_long(uint32_t usual, uint32_t most) {
  const char *const given = getenv("TEST_LONG");
  return given && *given ? most : usual;
}

static void on_hang(int sig) {
  (void)sig;
  char line[480], seed[64] = "";
  struct timespec cpu = {0};
  // the time of the whole program, which tells a test that waits from one that gets no processor
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  if (check_seed) (void)snprintf(seed, sizeof(seed), "%s=%llu: ", check_seed_name, (unsigned long long)check_seed);
  const int n = snprintf(line, sizeof(line), "%s%s%s%s hangs (%lld s of processor time)\n", seed, check_what,
                         check_what[0] ? ", " : "", hang_step[0] ? hang_step : "this program", (long long)cpu.tv_sec);
  if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0) _exit(2);
  _exit(1);
}

void hang_says(void) { (void)signal(SIGALRM, on_hang); }

void hang_alarm(void) {
  hang_says();
  (void)alarm(SLOW_HANG_S);
}
