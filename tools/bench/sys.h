// SPDX-License-Identifier: Apache-2.0
//
// Figures of this process from the system: time, bytes, memory, directories.
#ifndef BENCH_SYS_H
#define BENCH_SYS_H

#include <stdbool.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#else
#include <time.h>
#endif

uint64_t bench_time_ns(void);  // monotonic

// Use of the calling thread so far. A wait is a voluntary context switch: the thread slept until a disk, a lock or a
// clock woke it. 0 where the system does not count them for a thread.
struct bench_thread_usage {
  uint64_t cpu_ns;
  uint64_t user_ns, system_ns;  // about: the system samples which of the two it is
  uint64_t waits;
};
struct bench_thread_usage bench_thread_usage_get(void);
// *to += sign * (now - since).
void bench_thread_usage_add(struct bench_thread_usage *to, const struct bench_thread_usage *since, int sign);

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
  uint64_t cancelled_bytes;          // those of write_bytes that were removed before they were written back
  uint64_t rss, rss_anon, rss_peak;  // bytes; the peak is since bench_usage_reset_peak
  uint64_t cpu_ns;                   // all threads' time
  uint64_t user_ns, system_ns;       // the parts of cpu_ns
  bool disk_known;                   // the four below are of the disk, and count every process's transfers
  uint64_t disk_reads, disk_writes;  // completed
  uint64_t disk_read_bytes, disk_write_bytes;
};
// disk: from bench_disk_find; NULL: not known.
void bench_usage_get(struct bench_usage *u, const char *disk);
// The file that counts the transfers of the disk below `dir`. NULL: the system has none, as for a file system in memory
// or on several disks. The text is static.
const char *bench_disk_find(const char *dir);
// Takes the line of such a file. False: it is none, and nothing is set.
bool bench_disk_parse(struct bench_usage *u, const char *line);
void bench_usage_reset_peak(void);  // where the system cannot, the peak is the process's

// Opens those of the descriptors 0 to 2 that are closed, so that no file of a store gets their number and the output.
// They still cannot be used.
void bench_std_fds(void);

uint64_t bench_memory(void);                // the machine's, bytes; 0: not known
uint32_t bench_cores(void);                 // this process may run on
uint64_t bench_dir_bytes(const char *dir);  // allocated to the files in it; one thread at a time
bool bench_dir_make(const char *dir);       // true when it is there afterwards; false: told
bool bench_dir_remove(const char *dir);     // with all in it; false: told
// Writes the files in it back and takes them from the page cache; pages that are mapped stay. False: told.
bool bench_dir_drop(const char *dir);
// Empties the page cache of the whole machine. False: told.
bool bench_caches_drop(void);

#endif
