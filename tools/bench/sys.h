// SPDX-License-Identifier: Apache-2.0
//
// What the system tells of this process: time, bytes, memory, directories.
#ifndef BENCH_SYS_H
#define BENCH_SYS_H

#include <stdbool.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#else
#include <time.h>
#endif

uint64_t bench_time_ns(void);        // monotonic
uint64_t bench_thread_cpu_ns(void);  // that the calling thread has used

// A counter of the processor's, a few nanoseconds to read; bench_tick_ns is the length of a tick.
static inline uint64_t bench_tick(void) {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t t;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t;
#else
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#endif
}
double bench_tick_ns(void);  // measured at the first call, which takes 20 ms

struct bench_usage {
  bool io_known, memory_known;
  uint64_t rchar, wchar;             // bytes that went through read and write calls
  uint64_t read_bytes, write_bytes;  // bytes fetched from storage; bytes of pages made dirty, or sent to it directly
  uint64_t cancelled_bytes;          // of write_bytes: removed before they were written back
  uint64_t rss, rss_anon, rss_peak;  // bytes; the peak is since bench_usage_reset_peak
  uint64_t cpu_ns;                   // of all threads
};
void bench_usage_get(struct bench_usage *u);
void bench_usage_reset_peak(void);  // where the system cannot, the peak is the process's

// Opens those of the descriptors 0 to 2 that are closed, or files of a store would get their numbers, and what is
// printed. They still cannot be used.
void bench_std_fds(void);

uint64_t bench_memory(void);                // of the machine, bytes; 0: not known
uint32_t bench_cores(void);                 // this process may run on
uint64_t bench_dir_bytes(const char *dir);  // allocated to the files in it; one thread at a time
bool bench_dir_make(const char *dir);       // true when it is there afterwards; false: told
bool bench_dir_remove(const char *dir);     // with all in it; false: told

#endif
