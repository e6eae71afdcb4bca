// SPDX-License-Identifier: Apache-2.0
#ifndef TOOLS_METRICS_H
#define TOOLS_METRICS_H

#include <stdio.h>

#include "remixdb.h"

// Prints all figures of an open store as OpenMetrics text. dir is the store's, for messages. A failure ends the
// program.
void metrics_print(FILE *out, struct xdb *xdb, const char *dir);
#endif
