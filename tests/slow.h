// SPDX-License-Identifier: Apache-2.0
//
// Sanitizers make everything slower, and valgrind more so (O=v gives TEST_SLOW): tests do that much less.
#ifndef SLOW_H
#define SLOW_H

#include "lib.h"

#if defined(TEST_SLOW)
#define SLOW TEST_SLOW
#elif LIB_SANITIZED
#define SLOW 8u
#else
#define SLOW 1u
#endif
#endif
