// SPDX-License-Identifier: Apache-2.0
//
// Progress of long work on standard error. On a terminal it rewrites one line; elsewhere, on request, it writes a line
// now and then. Other lines for standard error go through progress_say, so that lines do not mix.
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

// Progress shows from now on when standard error is a terminal, or `verbose`. name: the program's, static.
void progress_begin(const char *name, bool verbose);
// A remixdb_progress_fn; priv is not used. total 0: unknown. Any thread. Always true.
bool progress_show(void *priv, const char *what, uint64_t done, uint64_t total);
// Clears the line on the terminal. The next work begins anew.
void progress_end(void);
// Writes "NAME: LINE". Any thread.
void progress_say(const char *line);
#endif
