// SPDX-License-Identifier: Apache-2.0
//
// The garbage in value files: values that no record refers to any more.
#ifndef STORE_COLLECT_H
#define STORE_COLLECT_H

#include "store/state.h"

struct collect_figures {
  uint64_t files, file_bytes;  // that the version has
  uint64_t value_bytes;        // of all values in them, as they are read
  uint64_t garbage_bytes;      // of the values in files that take no further ones, those that no record refers to
};
// Measures the value files of the store's version. All zero without memory. Takes xdb.lock.
void collect_measure(struct xdb *x, struct collect_figures *out);
#endif
