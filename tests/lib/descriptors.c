// SPDX-License-Identifier: Apache-2.0
//
// Linked into every test program: at its end no descriptor may be open that was not open at its start, else the program
// fails.
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define DESCRIPTORS 4096

static bool before[DESCRIPTORS];
static pid_t started;  // forked children keep their descriptors

// The system is asked for each of them: a list of the directory /proc/self/fd is not there everywhere, and shows
// valgrind's own.
static bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

__attribute__((constructor)) static void descriptors_note(void) {
  started = getpid();
  for (int fd = 0; fd < DESCRIPTORS; fd++) before[fd] = is_open(fd);
}

__attribute__((destructor)) static void descriptors_check(void) {
  bool left = false;
  if (getpid() != started) return;
  for (int fd = 3; fd < DESCRIPTORS; fd++) {
    if (before[fd] || !is_open(fd)) continue;
    char link[64], name[512];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, name, sizeof(name) - 1);
    name[n > 0 ? n : 0] = '\0';
    fprintf(stderr, "descriptor %d was left open: %s\n", fd, name);
    left = true;
  }
  if (!left) return;
  (void)fflush(stdout);
  _exit(98);
}
