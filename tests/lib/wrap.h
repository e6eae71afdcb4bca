// SPDX-License-Identifier: Apache-2.0
//
// Functions that stand before those of other libraries; the linker puts them there (--wrap, for every WRAP that the
// Makefile finds in the files of the mode). They tell the tool that the test runs under what it does not see of them.
#ifndef WRAP_H
#define WRAP_H

#include "lib.h"

#define WRAP(type, name, args) \
  type __real_##name args;     \
  type __wrap_##name args;     \
  type __wrap_##name args

// Memory that is read must have been written; and what was written.
#if LIB_MSAN
#include <sanitizer/msan_interface.h>
#define WRAP_READ(p, n) __msan_check_mem_is_initialized(p, n)
#define WRAP_WRITTEN(p, n) __msan_unpoison(p, n)
#else
#include <valgrind/memcheck.h>
#define WRAP_READ(p, n) (void)VALGRIND_CHECK_MEM_IS_DEFINED(p, n)
#define WRAP_WRITTEN(p, n) (void)VALGRIND_MAKE_MEM_DEFINED(p, n)
#endif
#endif
