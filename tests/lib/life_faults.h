// SPDX-License-Identifier: Apache-2.0
//
// Failing calls in the lives of life.h.
#ifndef TESTS_LIFE_FAULTS_H
#define TESTS_LIFE_FAULTS_H

#include "tests/lib/life.h"

struct fault {
  bool full;    // the disk is full, and no call fails otherwise
  bool memory;  // an allocation fails, and no call does
  enum simdisk_call call;
  const char *name;  // the name for files
  uint64_t nth;      // call or allocation; or bytes of room
  int errnum;
  bool once;
};

extern const char *const call_names[];  // by enum simdisk_call

// Makes the fault happen from now on.
void inject(struct run *r, const struct fault *f);
// Ends all faults. Afterwards the store is open and takes writes. reopen: it is opened again, as it must be after a
// call that failed for good.
void heal(struct run *r, bool reopen);
// The store goes on by itself when the fault is over. After a failed sync data may be gone, and only a new opening
// reads the files as they are.
bool passes(const struct fault *f);
// Reads make such calls.
bool reads_use(enum simdisk_call c);
bool is_full(int errnum);  // ENOSPC or EDQUOT
// The number of allocations since inject of a fault of memory.
uint64_t allocations_seen(void);
#endif
