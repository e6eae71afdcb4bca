// SPDX-License-Identifier: Apache-2.0
//
// The report of a benchmark: lines of text for people, a line of CSV for programs.
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
  struct bench_result r;             // ops 0: a step; its report has only the time
  struct bench_usage base, fresh;    // before the store was opened for the first time; when the store was last made
  struct bench_usage before, after;  // before and after the benchmark
  struct bench_counters counted_before, counted_after;
  uint64_t user_written;  // keys and values since the store was made, bytes
  uint64_t space, live;   // bytes allocated to the store's files; bytes of the existing keys and values
  uint64_t failures;
};

void bench_report_print(FILE *f, const struct bench_report *t);
// Writes the names of the columns if `names` is set, else the line of the report.
void bench_report_csv(FILE *f, const struct bench_report *t, bool names);

#endif
