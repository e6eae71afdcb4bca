// SPDX-License-Identifier: Apache-2.0
//
// Sanitizers make everything slower, valgrind even more (O=v gives TEST_SLOW). Tests do that much less.
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

// The extent of a long campaign: `most` if TEST_LONG is set in the environment, as `make soak` sets it, else `usual`.
uint32_t usual_or_long(uint32_t usual, uint32_t most);

// Seconds after which a program that hangs ends itself, before the Makefile's limit ends it without a word. Much more
// than any program takes on a slow machine that has other work, too.
#define SLOW_HANG_S (SLOW > 8 ? 1700u : 1100u)
// After these the program says that it hangs, and ends.
void hang_alarm(void);
// The same without a time: the caller sets the alarm.
void hang_says(void);
// The step that a long test is in, for the line that a program prints if it hangs; a string that stays.
extern const char *hang_step;
#endif
