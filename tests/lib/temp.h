// SPDX-License-Identifier: Apache-2.0
//
// A small store for a while: a directory below TMPDIR (or /tmp), options, and figures.
#ifndef TESTS_TEMP_H
#define TESTS_TEMP_H

#include <stdbool.h>
#include <stdint.h>

#include "remixdb.h"

#define TEMP_DIR 256u  // bytes that suffice for a directory's path

// Makes a new directory. `use` is a part of its name. False: errno says why.
bool temp_make(char path[TEMP_DIR], const char *use);
// Removes the path and all below it. 0, or -1 with errno.
int remove_tree(const char *path);
// Copies a file. Holes stay holes.
void copy_file(const char *from, const char *to);
bool ends_with(const char *name, const char *end);

// A cache and a memtable of 1 MB, and so many workers.
struct remixdb_opts small_opts(int workers);

// A figure of remixdb_stats. The names that tests ask for occur once each.
uint64_t stat_of(struct xdb *x, const char *name);
#endif
