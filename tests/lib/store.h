// SPDX-License-Identifier: Apache-2.0
//
// Fixture of the tests of the whole store: a directory that comes and goes, small options, a quick disk, figures. One
// store at a time; the functions check their calls, so only the thread of the test calls them.
#ifndef STORE_H
#define STORE_H

#include "tests/lib/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/whole.h"
#include "tests/lib/slow.h"
#include "tests/lib/temp.h"
#include "xdb.h"
#include "store/flush.h"

extern char dir[2 * TEMP_DIR];  // the test's

#define SAY "TEST_SEED=%llu line %d: %s (%s: %s)"
#define SAID(cond) (unsigned long long)check_seed, __LINE__, cond, remixdb_strerror(remixdb_errcode()), remixdb_errmsg()
// For other threads: cmocka's failures may be raised in the thread of the test only.
#define THREAD_CHECK(cond)                    \
  do {                                        \
    if (!(cond)) {                            \
      fprintf(stderr, SAY "\n", SAID(#cond)); \
      abort();                                \
    }                                         \
  } while (0)

static inline uint64_t below(uint64_t *rng, uint64_t n) { return rng_next(rng) % n; }
static inline bool chance(uint64_t *rng, uint32_t percent) { return rng_next(rng) % 100 < percent; }

// Makes `dir`, below TMPDIR; removes it with all that is in it.
int setup(void **state);
int teardown(void **state);
// Puts an empty directory in the place of the one that was used.
void setup_again(void);

// Gives each file of the log in `dir` a second name in that directory. The next opening then begins a new segment.
void store_share_logs(void);

// The real files, without waiting for the disk.
struct env *quick_env(void);
// Opens the store in `dir` on quick_env().
struct xdb *quick_open(const struct remixdb_opts *o);

// Makes memtables and tables smaller than the options can, so that little data makes many rounds. Before anything is
// written.
void shrink(struct xdb *x, size_t memtable, uint32_t table_pages);
#endif
