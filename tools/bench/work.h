// SPDX-License-Identifier: Apache-2.0
//
// The benchmarks themselves: which operations on which records, by how many threads, checked and timed. Operations are
// drawn before the clock starts, so that drawing them costs no engine anything.
#ifndef BENCH_WORK_H
#define BENCH_WORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tools/bench/engine.h"
#include "tools/bench/hist.h"
#include "tools/bench/key.h"
#include "tools/bench/sys.h"

enum bench_distribution { BENCH_UNIFORM = 0, BENCH_ZIPFIAN };

// Parameters that may differ between the benchmarks of one run.
struct bench_params {
  uint64_t ops;  // per thread, unless the benchmark fills the store; 0: num
  uint32_t threads;
  uint32_t seek_nexts;
  uint32_t batch_size;        // 0: see bench_engine.begin; multireadrandom: 32
  uint32_t readwritepercent;  // reads of readrandomwriterandom
  uint32_t scan_max;          // records of a scan in ycsbe: 1 to this
  uint64_t write_rate;        // per second, of the writer beside readers; 0: as fast as it goes
  uint64_t read_rate;         // per second, of the reader beside a filling; 0: as fast as it goes
  uint32_t drawn_ahead;       // operations that are drawn before the clock starts; more are drawn with it stopped
  uint32_t depth;             // reads in flight: bench_disk
  uint32_t room_from;         // MiB that a filling has put when its room begins to be watched; 0: it is not
  double zipf_theta;
  enum bench_distribution distribution;
  bool unique;  // fillrandom: every record once, in random order
  bool sync;
  bool histogram;     // time every operation, not one of 16 where there are reads
  bool seek_missing;  // seekrandom: to keys that are not there
  bool backwards;     // seekrandom: to the last key at or before the one sought, and steps back
};

// A store, and the known part of its content.
struct bench_run {
  const struct bench_engine *engine;
  void *store;
  const char *dir;  // the directory of its files
  struct bench_keys keys;
  uint64_t seed;
  bool full;                  // verify whole values, the order of records and that no write was lost
  bool may_miss;              // the store may hold less than expected: misses are counted, and are no failures
  bool empty;                 // nothing was written to it yet
  bool sparse;                // not all records are there: `present` tells which
  _Atomic uint64_t *present;  // bit i: record i
  uint64_t *versions;         // with `full`: for each record, a version it cannot be older than
  uint64_t inserted;          // records of the second band: the first so many in their order
  uint32_t phase;             // benchmarks run so far
  _Atomic uint64_t failures;
};

struct bench_result {
  uint64_t ops;  // reads and writes, deletes and seeks, or the records of a whole scan
  uint64_t reads, writes, missed;
  uint64_t records;   // copied out, scans included
  uint64_t side_ops;  // those of the writer beside the readers, or of the reader beside a filling
  double seconds, side_seconds;
  struct bench_thread_usage used;      // by the threads that made `ops`
  uint64_t bytes_read, bytes_written;  // keys and values, of the caller's
  uint64_t trace_bytes;                // memory the drawn operations take
  double room_most;                    // a filling's: the most room of the files by the bytes put so far; 0: not known
  struct bench_hist read, write, all;  // ticks
};

// Whether there is such a benchmark; whether it starts with an empty store.
bool bench_work_known(const char *name);
bool bench_work_fresh(const char *name);
// The largest batch_size that the benchmark takes.
uint32_t bench_work_batch_max(const char *name);
// Name and description of a benchmark, for the help. i from 0; NULL after the last one.
const char *bench_work_name(uint32_t i, const char **what_out);

// Expects everything (`whole`) or nothing in the store.
bool bench_run_init(struct bench_run *run, bool whole);
void bench_run_reset(struct bench_run *run, bool whole);
uint64_t bench_run_records(const struct bench_run *run);  // that are there
void bench_run_fini(struct bench_run *run);

// Runs a known benchmark. False: it could not be run, or the engine failed, and why was told; wrong and missing values
// are counted in run->failures. Sets *result. Its `ops` is 0 when the engine cannot do it.
bool bench_work(struct bench_run *run, const char *name, const struct bench_params *p, struct bench_result *result);

#endif
