// SPDX-License-Identifier: Apache-2.0
//
// The limit of the disk itself: bare loops over io_uring, past the page cache, on a file of the size of the records. No
// store is faster than these for the pages that it has to read.
#ifndef BENCH_DISK_H
#define BENCH_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/bench/work.h"

#define BENCH_DISK_DEPTH_MAX 256u

bool bench_disk_known(const char *name);
// Name and description of a benchmark, for the help. i from 0; NULL after the last one.
const char *bench_disk_name(uint32_t i, const char **what_out);

// Writes the file, past the page cache, unless it is there with that size. False: told.
bool bench_disk_prepare(const char *path, uint64_t bytes);
bool bench_disk_remove(const char *path);  // true when it is not there afterwards; false: told

// Runs a known benchmark on that file. An operation is a read, of a page of 4 KiB or of 1 MiB; for diskbatch the
// latency is that of a whole batch. False: told. result->ops is 0 where there is no io_uring.
bool bench_disk(const char *path, const char *name, const struct bench_params *p, uint64_t seed,
                struct bench_result *result);

#endif
