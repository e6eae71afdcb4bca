// SPDX-License-Identifier: Apache-2.0
//
// The processors that the process may use.
#ifndef CORES_H
#define CORES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define CORES_MAX 65536u

// Writes the processors that this process may run on, ascending, at most cap of them. Returns how many there are, at
// least 1.
uint32_t cores_list(uint32_t *cores_out, uint32_t cap);
// Binds the calling thread to one processor. Returns false when the system refuses.
bool cores_pin(uint32_t core);
// The processors that a thread may run on, as the system has them.
struct cores {
  bool known;  // false: the system does not tell
  uint64_t words[CORES_MAX / 64];
};
// Those of the calling thread.
void cores_get(struct cores *out);
// Lets the calling thread run on these again, whatever the thread that has made it was bound to. Returns false when the
// system refuses, or they are not known.
bool cores_set(const struct cores *c);
// Parses a list like "0,2,4-7" into at most cap cores. Fails with REMIXDB_INVALID.
MUST_CHECK enum remixdb_status cores_parse(const char *list, uint32_t *cores_out, uint32_t cap, uint32_t *nr_out);
#endif
