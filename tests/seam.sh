#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# seam.sh MODE OBJECT...: what each object of the library may ask of the system. Nothing touches a file behind env's
# back, nothing takes memory but base/mem, nothing starts threads but base/thread, nothing prints, exits or changes the
# process. Every name that an object leaves undefined is one of the library's own or is allowed below; all others fail.
# Calls that compiler and sanitizers insert are left out.
mode=$1
shift
{
  nm -g --defined-only "$@" | awk 'NF == 3 { print "own", $3 }'
  nm -A -u "$@" | awk '$(NF - 1) ~ /^[Uvw]$/ { sub(/:.*/, "", $1); print "use", $1, $NF }'
} | awk -v mode="$mode" '
function allow(object, names,   n, i, list) {
  n = split(names, list, " ")
  for (i = 1; i <= n; i++) may[object, list[i]] = 1
}
BEGIN {
  # pure, or of the thread that calls
  allow("any", "memchr memcmp bcmp memcpy memmove memset strchr strcmp strlen strncmp strnlen strrchr strspn")
  allow("any", "strtol strtoull")
  allow("any", "snprintf vsnprintf qsort bsearch errno_location error")
  allow("any", "pthread_mutex_init pthread_mutex_destroy pthread_mutex_lock pthread_mutex_trylock")
  allow("any", "pthread_mutex_unlock")
  allow("any", "pthread_setcancelstate")
  allow("any", "pthread_cond_init pthread_cond_destroy pthread_cond_signal pthread_cond_broadcast")
  if (mode != "release") allow("any", "assert_fail assert")
  allow("base/err", "strerror_r")
  allow("base/mem", "malloc calloc realloc free posix_memalign malloc_usable_size malloc_size malloc_trim")
  allow("base/mem", "mmap munmap mremap madvise sysconf")
  allow("base/cores", "sysconf pthread_self")
  allow("base/cores", "pthread_setaffinity_np sched_getaffinity cpuset_getaffinity sched_cpucount")
  allow("base/thread", "pthread_create pthread_self pthread_sigmask sigfillset pthread_setname_np pthread_set_name_np")
  allow("base/thread", "pthread_condattr_init pthread_condattr_destroy pthread_condattr_setclock")
  allow("base/thread", "pthread_cond_timedwait pthread_cond_wait pthread_join")
  allow("lib", "getrlimit")
  allow("lib", "clock_gettime nanosleep sched_yield syscall getentropy")  # syscall: futex
  allow("base/env", "openat close pread pwrite fsync fdatasync ftruncate fallocate posix_fallocate sync_file_range")
  allow("base/env", "mmap msync munmap")
  allow("base/env", "posix_fadvise clock_gettime")
  allow("base/env", "lseek fstat fstatat fcntl flock renameat unlinkat linkat mkdirat fdopendir readdir closedir")
  allow("base/epoch", "sched_yield")
  allow("base/eventcount", "syscall")  # futex
  allow("base/fork", "pthread_atfork dso_handle")
  # on descriptors of a native env only: tests/unit/test_blkio.c holds that against an env that is not
  allow("blkio", "aio_error aio_read aio_return aio_suspend aio_write lio_listio")
  allow("blkio", "io_uring_get_cqe io_uring_free_probe io_uring_get_probe_ring io_uring_queue_exit io_uring_queue_init")
  allow("blkio", "io_uring_submit io_uring_submit_and_wait io_uring_register_eventfd")
  allow("blkio", "eventfd eventfd_read eventfd_write close")  # the bell of a flow
  allow("base/zmem", "ZSTD_*")
  allow("table/dict", "ZSTD_*")
  allow("table/stored", "ZSTD_*")
  allow("table/scan", "ZSTD_freeDCtx")
  allow("table/ckb", "ZSTD_*")
  allow("table/build", "ZSTD_* ZDICT_*")
  allow("remix/pack", "ZSTD_*")
  allow("value/scratch", "ZSTD_*")
  allow("value/read", "ZSTD_*")
  allow("value/write", "ZSTD_*")
  allow("store/setup", "getenv")              # REMIXDB_IO
  allow("store/dir", "getpid clock_gettime")  # the id of a new store
}
$1 == "own" { own[$2] = 1 }
$1 == "use" { uses[++nr] = $2; names[nr] = $3 }
END {
  for (i = 1; i <= nr; i++) {
    name = names[i]
    if (own[name] || name ~ /^_GLOBAL_OFFSET_TABLE_$|^__tls_get_addr$|^__cpu_(model|indicator_init)$/) continue
    if (name ~ /^__stack_chk_(fail|guard)/) continue
    if (name ~ /^__(start|stop)___sanc|^__(asan|lsan|msan|tsan|ubsan|sanitizer|sancov|gcov|llvm|aarch64)_/) continue
    if (name ~ /^__[a-z]+[ds]i[234]$/) continue  # arithmetic of libgcc
    object = uses[i]
    sub(/^build\/[^\/]*\/(seam\/)?/, "", object)
    sub(/\.o$/, "", object)
    # one name for the forms that a C library has of a function
    sub(/@.*/, "", name)
    sub(/^__isoc[0-9]+_/, "", name)
    sub(/^__/, "", name)
    sub(/(_chk|_2)$/, "", name)
    sub(/64$/, "", name)
    group = name
    sub(/_.*/, "_*", group)
    if (may["any", name] || may[object, name] || may[object, group]) continue
    print object ".o must not use " names[i]
    bad = 1
  }
  exit bad
}'
