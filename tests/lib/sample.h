// SPDX-License-Identifier: Apache-2.0
//
// Fixture of the tests of the public contract: directories below one that comes and goes, their files, damage to their
// files, a sample store, and children. In the thread of the test, because everything here checks.
#ifndef TESTS_SAMPLE_H
#define TESTS_SAMPLE_H

#include "tests/lib/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/contract.h"
#include "tests/lib/temp.h"
#include "lib.h"

#define PATH_SIZE 512

// The message begins with the system's own words.
bool reason_is(int errnum);

// ---- directories

extern char base[TEMP_DIR];  // everything happens below it

// Make `base` below TMPDIR, the second one with both sample stores, and remove it.
int base_setup(void **state);
int samples_setup(void **state);
int base_teardown(void **state);

// base/name, in buf.
const char *dir_of(char buf[PATH_SIZE], const char *name);

struct file {
  char name[64];
  uint64_t size, sum;
};

// The files of a directory, sorted by name.
struct listing {
  bool there;
  uint32_t nr;
  struct file files[64];
};

struct listing list_dir(const char *dir);
void check_same(const struct listing *a, const struct listing *b, const char *what, int line);
// The directory is as it was listed.
#define SAME(before, dir, what)                   \
  do {                                            \
    const struct listing now_ = list_dir(dir);    \
    check_same(&(before), &now_, what, __LINE__); \
  } while (0)

void copy_dir(const char *from, const char *to);

// Read, write, or change one bit of a file from outside.
void peek(const char *dir, const char *name, uint64_t off, void *buf, size_t len);
void poke(const char *dir, const char *name, uint64_t off, const void *buf, size_t len);
void flip(const char *dir, const char *name, uint64_t off);

// ---- a sample store: some records in tables, some in the log only

#define SAMPLE_KEYS 6000u
#define SAMPLE_OLD 5000u  // the first ones that are written: most of them are in tables

extern char sample[PATH_SIZE], sample_zstd[PATH_SIZE];  // directories of two such stores; the second is compressed

uint32_t sample_key(char *buf, uint32_t i);
uint32_t sample_value(uint8_t *buf, uint32_t i);
void sample_put(struct xdb_ref *r, uint32_t i);
// Reads a store that may be damaged: each key is as it was, or CORRUPT. Keys of the log's torn tail, from *end_out on,
// may be gone, and then all after them are. Returns whether everything is there.
bool sample_look(struct xdb_ref *r, uint32_t *end_out);
// Opens the store and finds everything, by get and by iterator.
void sample_check(const char *dir);
// Opens; closes both. Both succeed.
struct xdb_ref *sample_open(const char *dir, const struct remixdb_opts *o, struct xdb **x_out);
void sample_close(struct xdb *x, struct xdb_ref *r);

// ---- children: for work that must happen in another process, or with fewer rights or means

// fn runs in a child. Returns the result of fn (0: good), or 1000 + the signal that ended it.
int in_child(int (*fn)(void *arg), void *arg);

#define CHILD_CHECK(cond)                                                                                \
  do {                                                                                                   \
    if (!(cond)) {                                                                                       \
      fprintf(stderr, "child, line %d: %s (%s: %s)\n", __LINE__, #cond, status_now(), remixdb_errmsg()); \
      return 1;                                                                                          \
    }                                                                                                    \
  } while (0)
#endif
