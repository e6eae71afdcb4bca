// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#include <sys/sysmacros.h>
#endif

static uint64_t clock_ns(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t bench_time_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static uint64_t timeval_ns(const struct timeval *t) {
  return (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_usec * 1000u;
}

struct bench_thread_usage bench_thread_usage_get(void) {
  struct bench_thread_usage u = {.cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID)};
#ifdef RUSAGE_THREAD
  struct rusage r;
  if (getrusage(RUSAGE_THREAD, &r)) return u;
  u.user_ns = timeval_ns(&r.ru_utime);
  u.system_ns = timeval_ns(&r.ru_stime);
  u.waits = (uint64_t)r.ru_nvcsw;
#endif
  return u;
}

void bench_thread_usage_add(struct bench_thread_usage *to, const struct bench_thread_usage *since, int sign) {
  const struct bench_thread_usage now = bench_thread_usage_get();
  const uint64_t by = (uint64_t)(int64_t)sign;  // modulo 2^64: a subtraction is undone by a later addition
  to->cpu_ns += by * (now.cpu_ns - since->cpu_ns);
  to->user_ns += by * (now.user_ns - since->user_ns);
  to->system_ns += by * (now.system_ns - since->system_ns);
  to->waits += by * (now.waits - since->waits);
}

double bench_tick_ns(void) {
  static double length;
  if (length > 0) return length;
  const uint64_t n0 = bench_time_ns(), t0 = bench_tick();
  uint64_t n1;
  do n1 = bench_time_ns();
  while (n1 - n0 < 20000000);
  const uint64_t t1 = bench_tick();
  return length = t1 > t0 ? (double)(n1 - n0) / (double)(t1 - t0) : 1;
}

static bool field(const char *line, const char *name, uint64_t unit, uint64_t *out) {
  const size_t len = strlen(name);
  uint64_t v;
  if (strncmp(line, name, len) || sscanf(line + len, " %" SCNu64, &v) != 1) return false;
  *out = v * unit;
  return true;
}

const char *bench_disk_find(const char *dir) {
  static char path[64];
#ifdef __linux__
  struct stat st;
  if (stat(dir, &st)) return NULL;
  snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/stat", major(st.st_dev), minor(st.st_dev));
  return access(path, R_OK) ? NULL : path;
#else
  (void)dir, (void)path;
  return NULL;
#endif
}

// Reads, merged reads, sectors read, milliseconds; then the same of writes. A sector is 512 bytes on every disk.
bool bench_disk_parse(struct bench_usage *u, const char *line) {
  uint64_t reads, read_sectors, writes, write_sectors;
  if (sscanf(line, " %" SCNu64 " %*u %" SCNu64 " %*u %" SCNu64 " %*u %" SCNu64, &reads, &read_sectors, &writes,
             &write_sectors) != 4)
    return false;
  u->disk_known = true;
  u->disk_reads = reads;
  u->disk_writes = writes;
  u->disk_read_bytes = read_sectors * 512;
  u->disk_write_bytes = write_sectors * 512;
  return true;
}

static void disk_get(struct bench_usage *u, const char *disk) {
  char line[256];
  FILE *f = disk ? fopen(disk, "r") : NULL;
  if (!f) return;
  if (fgets(line, sizeof(line), f)) (void)bench_disk_parse(u, line);
  fclose(f);
}

void bench_usage_get(struct bench_usage *u, const char *disk) {
  *u = (struct bench_usage){0};
  struct rusage r;
  if (!getrusage(RUSAGE_SELF, &r)) {
    u->user_ns = timeval_ns(&r.ru_utime);
    u->system_ns = timeval_ns(&r.ru_stime);
    u->cpu_ns = u->user_ns + u->system_ns;
  }
  disk_get(u, disk);
  char line[256];
  FILE *f = fopen("/proc/self/io", "r");
  if (f) {
    while (fgets(line, sizeof(line), f)) {
      (void)(field(line, "rchar:", 1, &u->rchar) || field(line, "wchar:", 1, &u->wchar) ||
             field(line, "read_bytes:", 1, &u->read_bytes) ||
             field(line, "cancelled_write_bytes:", 1, &u->cancelled_bytes));
      if (field(line, "write_bytes:", 1, &u->write_bytes)) u->io_known = true;
    }
    fclose(f);
  }
  f = fopen("/proc/self/status", "r");
  if (f) {
    while (fgets(line, sizeof(line), f)) {
      if (field(line, "VmRSS:", 1024, &u->rss)) u->memory_known = true;
      (void)(field(line, "VmHWM:", 1024, &u->rss_peak) || field(line, "RssAnon:", 1024, &u->rss_anon));
    }
    fclose(f);
  }
}

void bench_usage_reset_peak(void) {
  FILE *f = fopen("/proc/self/clear_refs", "w");
  if (!f) return;
  fputs("5", f);
  fclose(f);
}

void bench_std_fds(void) {
  for (int fd = 0; fd <= 2; fd++)
    if (fcntl(fd, F_GETFD) < 0)
      (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);  // gets the lowest number that is free
}

uint64_t bench_memory(void) {
#ifdef _SC_PHYS_PAGES
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
#else
  return 0;
#endif
}

uint32_t bench_cores(void) {
#ifdef __linux__
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof(set), &set) && CPU_COUNT(&set) > 0) return (uint32_t)CPU_COUNT(&set);
#endif
  const long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (uint32_t)n : 1;
}

static uint64_t dir_bytes;  // nftw hands nothing on to the function it calls

static int add_file(const char *path, const struct stat *st, int type, struct FTW *ftw) {
  (void)path, (void)ftw;
  if (type == FTW_F && S_ISREG(st->st_mode)) dir_bytes += (uint64_t)st->st_blocks * 512;
  return 0;
}

// Files may go while it looks: a file that cannot be read counts nothing.
uint64_t bench_dir_bytes(const char *dir) {
  dir_bytes = 0;
  (void)nftw(dir, add_file, 8, FTW_PHYS);
  return dir_bytes;
}

bool bench_dir_make(const char *dir) {
  struct stat st;
  if (!mkdir(dir, 0777) || (errno == EEXIST && !stat(dir, &st) && S_ISDIR(st.st_mode))) return true;
  fprintf(stderr, "xdbbench: %s: %s\n", dir, strerror(errno));
  return false;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
  (void)st, (void)type, (void)ftw;
  if (!remove(path) || errno == ENOENT) return 0;
  fprintf(stderr, "xdbbench: %s: %s\n", path, strerror(errno));
  return 1;
}

bool bench_dir_remove(const char *dir) {
  const int rc = nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
  if (rc < 0) fprintf(stderr, "xdbbench: %s: %s\n", dir, strerror(errno));
  return rc == 0;
}

static int drop_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
  (void)ftw;
  if (type != FTW_F || !S_ISREG(st->st_mode)) return 0;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno != ENOENT;  // a file may go while it looks
  int rc = fsync(fd) ? errno : 0;      // pages that are dirty would stay
#ifdef POSIX_FADV_DONTNEED
  if (!rc) rc = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
#endif
  close(fd);
  if (rc) errno = rc;
  return rc != 0;
}

bool bench_dir_drop(const char *dir) {
  if (!nftw(dir, drop_one, 8, FTW_PHYS)) return true;
  fprintf(stderr, "xdbbench: %s: its files cannot be taken from the page cache: %s\n", dir, strerror(errno));
  return false;
}

bool bench_caches_drop(void) {
  sync();  // pages that are dirty would stay
  const int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
  const bool good = fd >= 0 && write(fd, "3", 1) == 1;
  if (!good) fprintf(stderr, "xdbbench: /proc/sys/vm/drop_caches: %s\n", strerror(errno));
  if (fd >= 0) close(fd);
  return good;
}
