// SPDX-License-Identifier: Apache-2.0
//
// The report of a benchmark: lines for a reader, a line of CSV for a program.
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdint.h>
#include <stdio.h>

#include "tools/bench/work.h"

struct bench_report {
  const struct bench_engine *engine;
  const struct bench_config *config;
  const char *label;  // as given: name and parameters
  uint32_t threads;
  struct bench_result r;             // ops 0: a step, of which only the time is told
  struct bench_usage base, fresh;    // before the store was opened first; when it was last made
  struct bench_usage before, after;  // of the benchmark
  struct bench_counters counted_before, counted_after;
  uint64_t user_written;  // keys and values since the store was made, bytes
  uint64_t space, live;   // allocated to its files; keys and values that are there
  uint64_t failures;
};

void bench_report_print(FILE *f, const struct bench_report *t);
// The names of the columns, or the line.
void bench_report_csv(FILE *f, const struct bench_report *t, bool names);

#endif
