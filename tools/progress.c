// SPDX-License-Identifier: Apache-2.0
#include "tools/progress.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define TERMINAL_FIRST_MS 300u  // work that ends sooner shows nothing on a terminal
#define TERMINAL_MS 100u        // between two writings of the line
#define LINE_MS 1000u           // between two lines elsewhere

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // guards all below
static const char *program = "";
static bool terminal, lines;
static bool drawn;        // the line on the terminal has something
static uint64_t next_ms;  // nothing is shown before; 0: nothing was reported yet

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void progress_begin(const char *name, bool verbose) {
  pthread_mutex_lock(&lock);
  program = name;
  terminal = isatty(STDERR_FILENO) == 1;
  lines = verbose && !terminal;
  drawn = false;
  next_ms = 0;
  pthread_mutex_unlock(&lock);
}

static void clear(void) {
  if (drawn) fputs("\r\033[K", stderr);
  drawn = false;
}

static void draw(const char *what, uint64_t done, uint64_t total) {
  clear();
  fprintf(stderr, "%s: %s: ", program, what);
  if (total > 0) fprintf(stderr, "%u %%", (unsigned)(done < total ? (double)done * 100.0 / (double)total : 100.0));
  else fprintf(stderr, "%" PRIu64, done);
  if (terminal) fflush(stderr);
  else putc('\n', stderr);
  drawn = terminal;
}

bool progress_show(void *priv, const char *what, uint64_t done, uint64_t total) {
  (void)priv;
  pthread_mutex_lock(&lock);
  const uint64_t now = terminal || lines ? now_ms() : 0;
  const bool first = next_ms == 0, end = total > 0 && done >= total;
  if (terminal || lines) {
    if (first) next_ms = now + (terminal ? TERMINAL_FIRST_MS : LINE_MS);
    if ((!first && now >= next_ms) || (lines && end)) {
      draw(what, done, total);
      next_ms = now + (terminal ? TERMINAL_MS : LINE_MS);
    }
  }
  pthread_mutex_unlock(&lock);
  return true;
}

void progress_end(void) {
  pthread_mutex_lock(&lock);
  clear();
  next_ms = 0;
  pthread_mutex_unlock(&lock);
}

void progress_say(const char *line) {
  pthread_mutex_lock(&lock);
  clear();
  fprintf(stderr, "%s: %s\n", program, line);
  pthread_mutex_unlock(&lock);
}
