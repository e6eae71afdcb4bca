// SPDX-License-Identifier: Apache-2.0
//
// Ten thousand refs, each with an iterator: their cost for a store with all records in memory, and the number of
// descriptors that they take of a store with records on disk.
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/thread.h"
#include "tests/lib/check.h"
#include "tests/lib/store.h"

#if defined(__linux__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#define REFS 10000u
#define LIMIT 1024u  // descriptors that the process may have
#define KEYS 20000u
#define VALUE 400u   // bytes: the store is several times as large as its cache
#define THREADS 12u  // more than there are queues

static uint32_t open_descriptors(void) {
  uint32_t nr = 0;
  for (int fd = 0; fd < (int)LIMIT; fd++) nr += fcntl(fd, F_GETFD) != -1;
  return nr;
}

static struct remixdb_slice key_of(char *buf, uint32_t n) {
  return (struct remixdb_slice){buf, (uint32_t)sprintf(buf, "key%08u", n)};
}

static void fill(struct xdb_ref *r, uint32_t nr) {
  char key[16], value[VALUE];
  memset(value, 'v', sizeof(value));
  for (uint32_t i = 0; i < nr; i++) {
    const struct remixdb_slice k = key_of(key, i);
    CHECK(remixdb_put(r, k.ptr, k.len, value, sizeof(value)));
  }
}

static struct xdb *open_here(uint32_t cache_mb) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.cache_mb = cache_mb;
  o.memtable_mb = 16;
  o.workers = 0;  // no files are made ahead while descriptors are counted
  struct xdb *const x = remixdb_open_opts(dir, &o);
  CHECK(x != NULL);
  return x;
}

// A user's scan of a snapshot: a snapshot, a ref of it, an iterator, a seek, a few steps.
struct scan {
  struct xdb_snapshot *s;
  struct xdb_ref *r;
  struct xdb_iter *it;
};

static struct scan scan_begin(struct xdb_ref *store, uint32_t n) {
  struct scan c;
  char key[16];
  const struct remixdb_slice k = key_of(key, n);
  c.s = remixdb_snapshot(store);
  c.r = remixdb_snapshot_ref(c.s);
  c.it = remixdb_iter_create(c.r);
  remixdb_iter_seek(c.it, k.ptr, k.len);
  return c;
}

static void scan_end(struct scan *c) {
  remixdb_iter_destroy(c->it);
  remixdb_unref(c->r);
  remixdb_snapshot_release(c->s);
}

// The number of the key that it stands on.
static uint32_t scan_at(struct scan *c) {
  char key[16] = "";
  uint32_t len;
  CHECK(remixdb_iter_valid(c->it) && remixdb_iter_peek(c->it, key, &len, NULL, NULL) && len == 11);
  return (uint32_t)strtoul(key + 3, NULL, 10);
}

static void many_scans(struct xdb_ref *store) {
  struct scan *const all = calloc(REFS, sizeof(*all));
  CHECK(all);
  for (uint32_t i = 0; i < REFS; i++) {
    all[i] = scan_begin(store, i % KEYS);
    CHECK(scan_at(&all[i]) == i % KEYS);
    remixdb_iter_skip1(all[i].it);
    CHECK(scan_at(&all[i]) == (i + 1) % KEYS);
  }
  for (uint32_t i = 0; i < REFS; i++) scan_end(&all[i]);
  free(all);
}

// In the memtable, then in tables whose blocks are cached.
static void test_in_memory(void **state) {
  (void)state;
  struct xdb *const x = open_here(64);
  struct xdb_ref *const r = remixdb_ref(x);
  fill(r, KEYS);
  const uint32_t before = open_descriptors();
  many_scans(r);
  CHECK(open_descriptors() == before);
  CHECK(stat_of(x, "queues") == 0);

  CHECK(remixdb_flush(r));
  struct scan all = scan_begin(r, 0);
  for (uint32_t i = 0; i < KEYS; i++) {
    CHECK(scan_at(&all) == i);
    remixdb_iter_skip1(all.it);
  }
  scan_end(&all);
  const uint32_t queues = (uint32_t)stat_of(x, "queues"), cached = open_descriptors();
  CHECK(queues <= 1);
  many_scans(r);
  CHECK(open_descriptors() == cached && stat_of(x, "queues") == queues);
  remixdb_unref(r);
  remixdb_close(x);
}

// ---- system calls

#if defined(__linux__) && !LIB_SANITIZED
static volatile sig_atomic_t calls, last_call;
static void on_call(int sig, siginfo_t *info, void *context) {
  (void)sig, (void)context;
  calls++;
  last_call = info->si_syscall;
}

// From here on each system call of this thread is counted and does nothing, but for those that end it. False when the
// system does not do that.
static bool count_calls(void) {
  static const uint32_t leave[] = {__NR_exit_group, __NR_rt_sigreturn};
  struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, nr)),
                               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, leave[0], 1, 0),
                               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, leave[1], 0, 1),
                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)};
  const struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
  const struct sigaction act = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
  return sigaction(SIGSYS, &act, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

#define UNCOUNTED 77

// In a child, which ends with the filter: how many calls, as its exit status.
static int child_counts(void) {
  struct xdb *const x = open_here(64);
  struct xdb_ref *const r = remixdb_ref(x);
  fill(r, 1000);
  for (uint32_t i = 0; i < 100; i++) {  // the allocator gets its memory
    struct scan c = scan_begin(r, i);
    scan_end(&c);
  }
  if (!count_calls()) return UNCOUNTED;
  for (uint32_t i = 0; i < 1000 && !calls; i++) {
    struct scan c = scan_begin(r, i);
    scan_end(&c);
  }
  return calls == 0 ? 0 : 100 + last_call % 100;
}

static void test_no_system_calls(void **state) {
  (void)state;
  int st;
  (void)fflush(NULL);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) _exit(child_counts());
  while (waitpid(pid, &st, 0) < 0) CHECK(errno == EINTR);
  CHECK(WIFEXITED(st));
  if (WEXITSTATUS(st) == UNCOUNTED) skip();
  if (WEXITSTATUS(st) != 0) fail_msg("a scan made a system call whose number ends in %d", WEXITSTATUS(st) - 100);
}
#endif

// ---- records that are not in memory

struct cold {
  struct xdb *x;
  uint32_t from, to;
  _Atomic uint32_t *queues_most;
};

// Many refs, which live side by side: each scans through blocks that are not cached, so that they are read ahead, and
// looks up many keys at once.
static void *cold_reader(void *arg) {
  struct cold *const c = arg;
  struct scan *const all = calloc(c->to - c->from, sizeof(*all));
  struct xdb_ref *const store = remixdb_ref(c->x);
  THREAD_CHECK(all && store);
  for (uint32_t i = c->from; i < c->to; i++) {
    struct scan *const s = &all[i - c->from];
    char keys[16][16];
    struct remixdb_slice slices[16];
    bool found[16];
    *s = scan_begin(store, i * 7919 % (KEYS - 200));
    if (i % 8 == 0) remixdb_iter_skip(s->it, 200);
    THREAD_CHECK(remixdb_iter_valid(s->it));
    for (uint32_t k = 0; k < 16; k++) slices[k] = key_of(keys[k], (i * 16 + k) * 7919 % KEYS);
    THREAD_CHECK(remixdb_multi_get(s->r, 16, slices, NULL, found) == 16);
    const uint32_t now = blkio_lanes(&c->x->io);
    uint32_t most = atomic_load(c->queues_most);
    while (now > most && !atomic_compare_exchange_weak(c->queues_most, &most, now)) {}
  }
  for (uint32_t i = 0; i < c->to - c->from; i++) scan_end(&all[i]);
  remixdb_unref(store);
  free(all);
  return NULL;
}

static void test_cold(void **state) {
  (void)state;
  struct xdb *const x = open_here(1);
  struct xdb_ref *const r = remixdb_ref(x);
  fill(r, KEYS);
  CHECK(remixdb_compact(r));
  CHECK(x->io.lanes_max == (x->io.kind == BLKIO_URING ? LIMIT / BLKIO_DESCRIPTORS : BLKIO_LANES_MAX));
  const uint32_t before = open_descriptors();
  const uint32_t nr = LIB_TSAN ? REFS / 8 : REFS;
  _Atomic uint32_t most = 0;
  struct cold cold[THREADS];
  pthread_t threads[THREADS];
  for (uint32_t i = 0; i < THREADS; i++) {
    cold[i] = (struct cold){x, nr / THREADS * i, i + 1 == THREADS ? nr : nr / THREADS * (i + 1), &most};
    CHECK(thread_start(&threads[i], cold_reader, &cold[i], "cold") == REMIXDB_OK);
  }
  for (uint32_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  print_message("engine %s: %u queues at most, of %u\n", blkio_engine(&x->io), atomic_load(&most), x->io.lanes_max);
  CHECK(atomic_load(&most) <= x->io.lanes_max);
  CHECK((atomic_load(&most) > 0) == (x->io.kind == BLKIO_URING));  // AIO reads nothing through the page cache (B4)
  const uint32_t tables = (uint32_t)stat_of(x, "open_files");
  CHECK(open_descriptors() <= before + tables + (x->io.kind == BLKIO_URING ? x->io.lanes_max : 0));
  // there are descriptors left for the other work of the store
  fill(r, 1000);
  CHECK(remixdb_flush(r));
  remixdb_unref(r);
  remixdb_close(x);
}

// Rings that cannot be had when they are needed: the reads go on, and the logger hears of it once.
static uint32_t lines;
static void on_line(void *priv, const char *line) {
  (void)priv;
  lines += strstr(line, "io_uring") && strstr(line, "Too many open files");
}

static void test_no_rings(void **state) {
  (void)state;
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.cache_mb = 1;
  o.workers = 0;
  o.logger = on_line;
  struct xdb *const x = remixdb_open_opts(dir, &o);
  CHECK(x != NULL);
  struct xdb_ref *const r = remixdb_ref(x);
  fill(r, KEYS);
  CHECK(remixdb_flush(r));
  const bool rings = x->io.kind == BLKIO_URING;
  atomic_store(&blkio_test_ring_errno, EMFILE);
  lines = 0;
  _Atomic uint32_t most = 0;
  for (uint32_t i = 0; i < 3; i++) {
    atomic_store(&x->io.retry_ns, 0);
    struct cold c = {x, i * 100, i * 100 + 100, &most};
    (void)cold_reader(&c);
  }
  atomic_store(&blkio_test_ring_errno, 0);
  CHECK(lines == rings);
  CHECK(!rings || most == 0);
  remixdb_unref(r);
  remixdb_close(x);
}

int main(void) {
  const struct rlimit few = {LIMIT, LIMIT};
  if (setrlimit(RLIMIT_NOFILE, &few) != 0) return 1;
  const struct CMUnitTest tests[] = {
#if defined(__linux__) && !LIB_SANITIZED
    cmocka_unit_test_setup_teardown(test_no_system_calls, setup,
                                    teardown),  // first: a process with threads must not fork
#endif
    cmocka_unit_test_setup_teardown(test_in_memory, setup, teardown),
    cmocka_unit_test_setup_teardown(test_cold, setup, teardown),
    cmocka_unit_test_setup_teardown(test_no_rings, setup, teardown),
  };
  return cmocka_run_group_tests_name("many refs", tests, NULL, NULL);
}
