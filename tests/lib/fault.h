// SPDX-License-Identifier: Apache-2.0
//
// Allocations that fail, in any thread.
#ifndef FAULT_H
#define FAULT_H

#include "lib.h"

// The nth allocation from now on fails (1: the next one), once or as all after it do.
void fault_mem_set(int64_t nth);
void fault_mem_set_lasting(int64_t nth);
// Ends it. Returns whether one has failed.
bool fault_mem_end(void);
#endif
