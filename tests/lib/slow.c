// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/slow.h"

#include <signal.h>
#include <unistd.h>

static void on_hang(int sig) {
  (void)sig;
  static const char line[] = "this program hangs\n";
  if (write(STDERR_FILENO, line, sizeof(line) - 1) < 0) _exit(2);
  _exit(1);
}

void hang_alarm(void) {
  (void)signal(SIGALRM, on_hang);
  (void)alarm(SLOW_HANG_S);
}
