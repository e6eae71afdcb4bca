// SPDX-License-Identifier: Apache-2.0
//
// Leaks the named things on purpose: shows that a leak makes a test program fail (make check-leaks).
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static void *volatile kept;

int main(int argc, char **argv) {
  const char *const what = argc > 1 ? argv[1] : "";
  kept = malloc(100);
  if (!kept) return 2;
  memset(kept, 1, 100);
  if (strcmp(what, "memory") == 0) kept = NULL;
  if (strcmp(what, "descriptor") == 0 && open("/dev/null", O_RDONLY) < 0) return 2;
  free(kept);
  return 0;
}
