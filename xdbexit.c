// SPDX-License-Identifier: Apache-2.0
//
// Do synced writes survive a program that ends without closing the store, or is killed?
//
//   xdbexit.out DIR CACHE_MB MT_MB
//     Walks the store, checks that every key an earlier run synced is there, in order, with its value, and prints
//     "found N keys". Then it puts 100,000 new keys with values of 1,024 bytes, syncs, and ends by _exit without
//     closing anything. It also writes the number of synced keys to DIR/xdbexit.synced, so that the loss of a whole run
//     shows.
//
//   xdbexit.out DIR CACHE_MB MT_MB --kill [ROUNDS]
//     ROUNDS times, 1 when not given: a child process opens the store, and its threads put, delete, write batches,
//     count in counters they share, by merges, move amounts between accounts in two key spaces, by transactions, and
//     sync until it is killed by SIGKILL at a random moment. The child tells the parent, through a pipe, what each sync
//     that succeeded covers. The parent then opens the store and checks that all covered writes are there, that the
//     others are, thread by thread, a prefix of the writes, that no batch and no transaction is there in part, that the
//     counters agree with the writes that are there, and that no value is torn.
//     Some rounds also kill a second child while it recovers. A small MT_MB, such as 4, makes the kills fall into
//     compactions as well.
//
// Both may use the same directory, in any order. SEED in the environment repeats the random choices of --kill. The exit
// status is 0 when all is well, 1 when anything is missing or wrong, 2 for wrong arguments.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remixdb.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *dir;
static size_t cache_mb, mt_mb;
static uint64_t seed;  // the seed of --kill

static __attribute__((format(printf, 1, 2))) void complain(const char *fmt, ...) {
  va_list ap;
  fflush(stdout);
  fputs("xdbexit: ", stderr);
  va_start(ap, fmt);
  vfprintf(stderr, fmt, ap);
  va_end(ap);
  fputc('\n', stderr);
}

#define die(...)           \
  do {                     \
    complain(__VA_ARGS__); \
    exit(1);               \
  } while (0)

static _Noreturn void die_call(const char *what) {
  die("%s: %s: %s", what, remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
}

static void flush_stdout(void) {
  if (ferror(stdout)) die("standard output could not be written to");  // the reason is of an earlier call
  if (fflush(stdout) != 0) die("standard output: %s", strerror(errno));
}

// Opens the closed ones of the standard descriptors. A file of the store must not get such a number, because printed
// lines would go into it.
static void hold_std_fds(void) {
  for (int fd = 0; fd <= 2; fd++) {
    if (fcntl(fd, F_GETFD) < 0)
      (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);  // gets the lowest number that is free
  }
}

static struct xdb *store_open(void) {
  struct xdb *const xdb = remixdb_open(dir, cache_mb, mt_mb, true);
  if (xdb == NULL) die_call("open");
  return xdb;
}

static struct xdb_ref *store_ref(struct xdb *xdb) {
  struct xdb_ref *const ref = remixdb_ref(xdb);
  if (ref == NULL) die_call("ref");
  return ref;
}

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static uint64_t rng_next(uint64_t *state) {
  *state += UINT64_C(0x9e3779b97f4a7c15);
  return mix(*state);
}

// Fills len bytes that depend on x only.
static void fill(uint64_t x, uint8_t *out, uint32_t len) {
  for (uint32_t i = 0; i < len; i += 8) {
    const uint64_t word = rng_next(&x);
    memcpy(out + i, &word, len - i < 8 ? len - i : 8);
  }
}

// The number written in hex in the len characters at text; false when they are not hex digits.
static bool hex_parse(const char *text, uint32_t len, uint64_t *out) {
  uint64_t x = 0;
  for (uint32_t i = 0; i < len; i++) {
    const char c = text[i];
    if (c >= '0' && c <= '9') x = x << 4 | (uint64_t)(c - '0');
    else if (c >= 'a' && c <= 'f') x = x << 4 | (uint64_t)(c - 'a' + 10);
    else return false;
  }
  *out = x;
  return true;
}

// The keys of each mode begin with its own word; "exit" sorts before "kill".
#define PREFIX_LEN 4u

// ---- without --kill: keys "exit" + 12 hex digits, numbered from 0

#define EXIT_NEW 100000u
#define EXIT_KLEN 16u
#define EXIT_VLEN 1024u
#define SYNCED_FILE "xdbexit.synced"

static void exit_key(uint64_t nr, char out[EXIT_KLEN + 1]) {
  snprintf(out, EXIT_KLEN + 1, "exit%012llx", (unsigned long long)(nr & UINT64_C(0xffffffffffff)));
}

static void synced_path(const char *suffix, char *out, size_t cap) {
  if ((size_t)snprintf(out, cap, "%s/" SYNCED_FILE "%s", dir, suffix) >= cap) die("%s: the name is too long", dir);
}

// The number of keys that earlier runs have synced, 0 when it is unknown.
static uint64_t synced_read(void) {
  char path[4096];
  synced_path("", path, sizeof(path));
  FILE *const f = fopen(path, "r");
  if (f == NULL) {
    if (errno != ENOENT) die("%s: %s", path, strerror(errno));
    return 0;
  }
  unsigned long long nr = 0;
  if (fscanf(f, "%llu", &nr) != 1) die("%s: a number should be in it", path);
  fclose(f);
  return nr;
}

static void synced_write(uint64_t nr) {
  char path[4096], tmp[4096];
  synced_path("", path, sizeof(path));
  synced_path(".tmp", tmp, sizeof(tmp));
  FILE *const f = fopen(tmp, "w");
  if (f == NULL) die("%s: %s", tmp, strerror(errno));
  fprintf(f, "%llu\n", (unsigned long long)nr);
  if (fflush(f) != 0 || fsync(fileno(f)) != 0) die("%s: %s", tmp, strerror(errno));
  fclose(f);
  if (rename(tmp, path) != 0) die("%s: %s", path, strerror(errno));
}

static _Noreturn void die_foreign(const char *key, uint32_t klen) {
  die("%s holds key \"%.*s\", which is not of this program", dir, (int)klen, key);
}

// Walks the keys of this mode and returns their number; reports missing and wrong ones.
static uint64_t exit_walk(struct xdb_ref *ref, uint64_t synced, bool *ok_out) {
  static char key[REMIXDB_KV_MAX + 1];
  static uint8_t value[REMIXDB_KV_MAX];
  uint8_t expected[EXIT_VLEN];
  char name[EXIT_KLEN + 1], name1[EXIT_KLEN + 1];
  struct xdb_iter *const it = remixdb_iter_create(ref);
  if (it == NULL) die_call("iter_create");
  bool ok = true;
  uint64_t found = 0, next = 0;
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
    uint32_t klen = 0, vlen = 0;
    if (!remixdb_iter_peek(it, key, &klen, value, &vlen)) die_call("peek");
    if (klen > PREFIX_LEN && memcmp(key, "kill", PREFIX_LEN) == 0) break;
    uint64_t nr = 0;
    if (klen != EXIT_KLEN || memcmp(key, "exit", PREFIX_LEN) != 0 ||
        !hex_parse(key + PREFIX_LEN, klen - PREFIX_LEN, &nr)) {
      die_foreign(key, klen);
    }
    if (nr < next) die("key %.*s is out of order", (int)klen, key);
    if (nr > next) {
      exit_key(next, name);
      exit_key(nr - 1, name1);
      complain("missing: %llu keys, %s to %s", (unsigned long long)(nr - next), name, name1);
      ok = false;
    }
    fill(nr, expected, EXIT_VLEN);
    if (vlen != EXIT_VLEN || memcmp(value, expected, EXIT_VLEN) != 0) {
      complain("key %.*s: the value is not what was put", (int)klen, key);
      ok = false;
    }
    found++;
    next = nr + 1;
  }
  if (remixdb_iter_status(it) != REMIXDB_OK) die_call("walk");
  remixdb_iter_destroy(it);
  if (next < synced) {
    exit_key(next, name);
    exit_key(synced - 1, name1);
    complain("missing: %llu keys, %s to %s, which had been synced", (unsigned long long)(synced - next), name, name1);
    ok = false;
  }
  *ok_out = ok;
  return found;
}

static _Noreturn void exit_main(void) {
  struct xdb *const xdb = store_open();
  struct xdb_ref *const ref = store_ref(xdb);
  bool ok = false;
  const uint64_t found = exit_walk(ref, synced_read(), &ok);
  printf("found %llu keys\n", (unsigned long long)found);
  flush_stdout();
  if (!ok) exit(1);
  for (uint64_t nr = found; nr < found + EXIT_NEW; nr++) {
    char key[EXIT_KLEN + 1];
    uint8_t value[EXIT_VLEN];
    exit_key(nr, key);
    fill(nr, value, EXIT_VLEN);
    if (!remixdb_put(ref, key, EXIT_KLEN, value, EXIT_VLEN)) die_call("put");
  }
  if (!remixdb_sync(ref)) die_call("sync");
  synced_write(found + EXIT_NEW);
  _exit(0);
}

// ---- --kill
//
// Every thread of the child works on a lane of its own. The operations of a lane are numbered from 0 through all
// rounds. Operation n overwrites slot n % SLOTS of the lane, so that the store does not grow; a function of n decides
// whether it is a delete or a put. After a kill the content of a lane is right when the operations 0..m-1 make it, for
// one m that is not below the number of synced operations.
//
// Operations come in groups of GROUP. A function of a group's number decides whether the group is written as one batch:
// the part of it that a round writes is there whole or not at all. After each group its thread adds one to one of a few
// counters that all threads share. A lane is a prefix, so its length tells how often its thread has counted, except for
// the last time.
//
// Then the thread moves an amount from an account in one key space to an account in another, and writes the number of
// its operations beside it, all in one transaction. The sum of all accounts is 0 at every moment, and a number that is
// there tells that all operations before it are.

#define LANES 4u
#define SLOTS 16384u  // a power of two
#define GROUP 16u
#define COUNTERS 5u
#define ACCOUNTS 12u  // in each space
#define SIDES 2u      // spaces with accounts
#define KILL_KLEN 12u
#define KILL_HEAD 16u  // bytes of a value: operation, lane, salt
#define KILL_VMAX 20000u
#define DELAY_MS_MAX 1000u
#define RECOVERY_MS_MAX 50u

struct lane {
  uint64_t next;         // the first operation of the round to come
  uint64_t seen;         // one more than the newest operation whose value is there
  uint64_t op[SLOTS];    // operation of the slot's value, + 1; 0 is "no such key"
  uint32_t salt[SLOTS];  // the salt of the round that wrote it
};

static struct lane lanes[LANES];
static uint64_t counted;  // sum of the counters

// A message of the child. Its size is below PIPE_BUF, so a message is written whole or not at all.
struct message {
  uint64_t opened;       // 1: the store is open, nothing else yet
  uint64_t upto[LANES];  // operations of the lane below this number are synced
};

static const char *const side_names[SIDES] = {"xdbexit one", "xdbexit two"};

static bool op_is_del(unsigned lane, uint64_t op) { return mix(op * LANES + lane) % 8 == 0; }

static bool group_is_batch(unsigned lane, uint64_t group) { return mix((group * LANES + lane) ^ 0xba7c4) % 3 == 0; }

static void counter_key(uint64_t nr, char out[KILL_KLEN + 1]) {
  snprintf(out, KILL_KLEN + 1, "killsum%05u", (unsigned)(nr % COUNTERS));
}

// Slots that follow each other in time are spread over the lane's keys.
static void kill_key(unsigned lane, uint64_t op, char out[KILL_KLEN + 1]) {
  const uint64_t slot = op * UINT64_C(2654435761) % SLOTS;
  snprintf(out, KILL_KLEN + 1, "kill%02x%06llx", lane & 0xff, (unsigned long long)slot);
}

static uint32_t kill_value(unsigned lane, uint64_t op, uint32_t salt, uint8_t *out) {
  const uint64_t x = mix(mix(op * LANES + lane) + salt);
  uint32_t len = KILL_HEAD + (uint32_t)(x >> 32) % 600;
  if (x % 128 == 0) len = 4200 + (uint32_t)(x >> 32) % (KILL_VMAX - 4200 + 1);
  memcpy(out, &op, 8);
  memcpy(out + 8, &lane, 4);
  memcpy(out + 12, &salt, 4);
  fill(x, out + KILL_HEAD, len - KILL_HEAD);
  return len;
}

// ---- the child

static struct {
  struct xdb *xdb;
  struct xdb_space *sides[SIDES];
  uint32_t salt;
  int pipe;
  _Atomic uint64_t
      done[LANES];  // operations of the lane below this number have returned; release after each, acquire to tell
} child;

struct child_thread {
  unsigned lane;
  uint64_t rng;
};

static _Noreturn void child_fail(const char *what) {
  complain("child: %s: %s: %s", what, remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
  _exit(1);
}

static void tell(const struct message *m) {
  if (write(child.pipe, m, sizeof(*m)) != (ssize_t)sizeof(*m)) _exit(1);
}

// Does operation op of the lane, in the batch or, when that is NULL, in the store.
static void child_do(unsigned lane, uint64_t op, struct xdb_ref *ref, struct xdb_batch *batch) {
  uint8_t value[KILL_VMAX];
  char key[KILL_KLEN + 1];
  kill_key(lane, op, key);
  if (op_is_del(lane, op)) {
    if (!(batch ? remixdb_batch_del(batch, key, KILL_KLEN) : remixdb_del(ref, key, KILL_KLEN))) child_fail("del");
  } else {
    const uint32_t vlen = kill_value(lane, op, child.salt, value);
    if (!(batch ? remixdb_batch_put(batch, key, KILL_KLEN, value, vlen)
                : remixdb_put(ref, key, KILL_KLEN, value, vlen)))
      child_fail("put");
  }
}

static void mark_key(unsigned lane, char out[KILL_KLEN + 1]) { snprintf(out, KILL_KLEN + 1, "killtxn%05u", lane); }
static void account_key(uint64_t nr, char out[KILL_KLEN + 1]) {
  snprintf(out, KILL_KLEN + 1, "account%05u", (unsigned)(nr % ACCOUNTS));
}

// A number of 8 bytes. False: there is none.
static bool number_get(struct xdb_ref *ref, const char key[KILL_KLEN + 1], uint64_t *out) {
  uint32_t len = 0;
  *out = 0;
  if (remixdb_getn(ref, key, KILL_KLEN, out, sizeof(*out), &len) && len == sizeof(*out)) return true;
  if (remixdb_errcode() != REMIXDB_NOTFOUND) die_call(key);
  return false;
}

static void account_add(struct xdb_ref *ref, uint64_t nr, uint64_t amount) {
  char key[KILL_KLEN + 1];
  uint64_t now;
  account_key(nr, key);
  (void)number_get(ref, key, &now);
  now += amount;
  if (!remixdb_put(ref, key, KILL_KLEN, &now, sizeof(now))) child_fail("account");
}

// Moves an amount between the spaces; r: random. Again after each conflict.
static void move(unsigned lane, uint64_t op, uint64_t r) {
  char key[KILL_KLEN + 1];
  mark_key(lane, key);
  for (;;) {
    struct xdb_txn *const txn = remixdb_txn_begin(child.xdb);
    if (txn == NULL) child_fail("txn_begin");
    struct xdb_ref *const plain = remixdb_txn_ref(txn, NULL);
    struct xdb_ref *const from = remixdb_txn_ref(txn, child.sides[r % SIDES]);
    struct xdb_ref *const to = remixdb_txn_ref(txn, child.sides[(r + 1) % SIDES]);
    if (plain == NULL || from == NULL || to == NULL) child_fail("txn_ref");
    account_add(from, r >> 8, 0 - (r >> 32) % 1000);
    account_add(to, r >> 16, (r >> 32) % 1000);
    if (!remixdb_put(plain, key, KILL_KLEN, &op, sizeof(op))) child_fail("mark");
    if (remixdb_txn_commit(txn)) return;
    if (remixdb_errcode() != REMIXDB_ABORTED) child_fail("txn_commit");
  }
}

static enum remixdb_merge_op count_up(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  uint64_t *const n = priv;
  *n = 0;
  if (v0len == sizeof(*n)) memcpy(n, v0, sizeof(*n));
  ++*n;
  *v1 = n;
  *v1len = sizeof(*n);
  return REMIXDB_MERGE_PUT;
}

static void *child_thread_main(void *arg) {
  struct child_thread *const c = arg;
  char key[KILL_KLEN + 1];
  struct xdb_batch *const batch = remixdb_batch_create();
  if (batch == NULL) child_fail("batch_create");
  struct xdb_ref *const ref = remixdb_ref(child.xdb);
  if (ref == NULL) child_fail("ref");
  uint64_t op = lanes[c->lane].next;
  for (;;) {
    const uint64_t burst = UINT64_C(1) << rng_next(&c->rng) % 12;
    for (const uint64_t end = op + burst; op < end;) {
      if (group_is_batch(c->lane, op / GROUP)) {
        remixdb_batch_clear(batch);
        do child_do(c->lane, op++, ref, batch);
        while (op % GROUP != 0);
        if (!remixdb_write(ref, batch)) child_fail("write");
      } else {
        child_do(c->lane, op++, ref, NULL);
      }
      atomic_store_explicit(&child.done[c->lane], op, memory_order_release);
      uint64_t n;
      counter_key(op / GROUP + c->lane, key);
      if (op % GROUP != 0) continue;
      if (!remixdb_merge(ref, key, KILL_KLEN, count_up, &n)) child_fail("merge");
      move(c->lane, op, rng_next(&c->rng));
    }
    // A sync covers the earlier writes of all threads, so the message tells all of them.
    struct message m = {0};
    for (unsigned l = 0; l < LANES; l++) m.upto[l] = atomic_load_explicit(&child.done[l], memory_order_acquire);
    if (!remixdb_sync(ref)) child_fail("sync");
    tell(&m);
  }
  return NULL;
}

static _Noreturn void child_main(unsigned threads, uint32_t salt, uint64_t rng, int pipe_fd) {
  static struct child_thread c[LANES];
  child.salt = salt;
  child.pipe = pipe_fd;
  for (unsigned l = 0; l < LANES; l++) atomic_init(&child.done[l], lanes[l].next);
  child.xdb = remixdb_open(dir, cache_mb, mt_mb, true);
  if (child.xdb == NULL) child_fail("open");
  for (unsigned i = 0; i < SIDES; i++) {
    child.sides[i] = remixdb_space_open(child.xdb, side_names[i], true);
    if (child.sides[i] == NULL) child_fail("space_open");
  }
  const struct message m = {.opened = 1};
  tell(&m);
  for (unsigned i = 0; i < threads; i++) {
    c[i].lane = i;
    c[i].rng = mix(rng + i);
    pthread_t thread;
    if (pthread_create(&thread, NULL, child_thread_main, &c[i]) != 0) child_fail("pthread_create");
  }
  for (;;) pause();
}

// ---- the parent

static uint64_t now_ms(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

// Takes the next message; false when the child's death has closed the pipe. timeout_ms -1 waits without end; when the
// time has passed, *timed_out_out is true.
static bool listen(int fd, int timeout_ms, struct message *m_out, bool *timed_out_out) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  *timed_out_out = false;
  int nr;
  do {
    nr = poll(&p, 1, timeout_ms);
  } while (nr < 0 && errno == EINTR);
  if (nr < 0) die("poll: %s", strerror(errno));
  if (nr == 0) {
    *timed_out_out = true;
    return false;
  }
  ssize_t got;
  do {
    got = read(fd, m_out, sizeof(*m_out));
  } while (got < 0 && errno == EINTR);
  if (got < 0) die("read from the child: %s", strerror(errno));
  return got == (ssize_t)sizeof(*m_out);
}

// Runs a child and kills it after delay_ms, counted from its start or from its opening of the store. Raises synced[] to
// the numbers in its messages.
static void run_and_kill(unsigned threads, uint32_t salt, uint64_t rng, uint64_t delay_ms, bool from_open,
                         uint64_t synced[LANES]) {
  int fd[2];
  if (pipe(fd) != 0) die("pipe: %s", strerror(errno));
  fflush(stdout);
  const pid_t pid = fork();
  if (pid < 0) die("fork: %s", strerror(errno));
  if (pid == 0) {
    close(fd[0]);
    child_main(threads, salt, rng, fd[1]);
  }
  close(fd[1]);

  struct message m;
  bool timed_out = false, killed = false, counting = !from_open;
  uint64_t deadline = now_ms() + delay_ms;
  for (;;) {
    const uint64_t now = now_ms();
    if (counting && !killed && now >= deadline) {
      kill(pid, SIGKILL);
      killed = true;  // its earlier messages are still in the pipe
    }
    if (!listen(fd[0], counting && !killed ? (int)(deadline - now) : -1, &m, &timed_out)) {
      if (timed_out) continue;
      break;
    }
    if (m.opened) {
      if (!counting) deadline = now_ms() + delay_ms;
      counting = true;
    } else {
      for (unsigned l = 0; l < LANES; l++) {
        if (m.upto[l] > synced[l]) synced[l] = m.upto[l];
      }
    }
  }
  close(fd[0]);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) die("waitpid: %s", strerror(errno));
  }
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
    die("SEED=%llu: the child ended by itself, with status 0x%x", (unsigned long long)seed, (unsigned)status);
  }
}

// Reads a lane's slots from the store into *out and checks that every value is whole. Returns the number of torn ones.
static uint64_t lane_read(struct xdb_ref *ref, unsigned lane, struct lane *out) {
  static char key[REMIXDB_KV_MAX];
  static uint8_t value[REMIXDB_KV_MAX], expected[KILL_VMAX];
  char name[KILL_KLEN + 1];
  uint64_t wrong = 0;
  memset(out, 0, sizeof(*out));
  snprintf(name, sizeof(name), "kill%02x", lane);
  struct xdb_iter *const it = remixdb_iter_create(ref);
  if (it == NULL) die_call("iter_create");
  for (remixdb_iter_seek(it, name, PREFIX_LEN + 2); remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
    uint32_t klen = 0, vlen = 0;
    if (!remixdb_iter_peek(it, key, &klen, value, &vlen)) die_call("peek");
    if (klen < PREFIX_LEN + 2 || memcmp(key, name, PREFIX_LEN + 2) != 0) break;
    uint64_t op = 0;
    uint32_t lane1 = 0, salt = 0;
    bool whole = klen == KILL_KLEN && vlen >= KILL_HEAD;
    if (whole) {
      char name1[KILL_KLEN + 1];
      memcpy(&op, value, 8);
      memcpy(&lane1, value + 8, 4);
      memcpy(&salt, value + 12, 4);
      kill_key(lane1, op, name1);
      whole = lane1 == lane && memcmp(key, name1, KILL_KLEN) == 0 && vlen == kill_value(lane, op, salt, expected) &&
              memcmp(value, expected, vlen) == 0;
    }
    if (!whole) {
      complain("SEED=%llu: key %.*s: the value, %u bytes, is torn", (unsigned long long)seed, (int)klen, key, vlen);
      wrong++;
      continue;
    }
    out->op[op % SLOTS] = op + 1;
    out->salt[op % SLOTS] = salt;
  }
  if (remixdb_iter_status(it) != REMIXDB_OK) die_call("walk");
  remixdb_iter_destroy(it);
  return wrong;
}

// Finds the number m of operations that the lane has kept, and checks that they make exactly its content. old is the
// lane before the round, NULL when that is not known; operations from old->next on must have the round's salt. Returns
// the number of faults and sets now->next to m.
static uint64_t lane_check(unsigned lane, struct lane *now, const struct lane *old, uint64_t synced, uint32_t salt) {
  uint64_t m = 0, wrong = 0;
  char key[KILL_KLEN + 1];
  for (unsigned i = 0; i < SLOTS; i++) {
    if (now->op[i] > m) m = now->op[i];
  }
  now->seen = m;
  // A delete shows only by the absence of a value; the last ones may or may not have been kept.
  while (op_is_del(lane, m) && now->op[m % SLOTS] == 0) m++;
  now->next = m;
  // When the newest operation belongs to a batch of this round, the rest of that batch is there, too.
  const uint64_t end = (now->seen + GROUP - 1) / GROUP * GROUP;
  if (old != NULL && now->seen > old->next && group_is_batch(lane, end / GROUP - 1) && m < end) {
    complain("SEED=%llu: lane %u: of the batch of operations %llu to %llu the last %llu are missing",
             (unsigned long long)seed, lane, (unsigned long long)(end - GROUP), (unsigned long long)end - 1,
             (unsigned long long)(end - m));
    wrong++;
  }
  if (m < synced) {
    kill_key(lane, m, key);
    complain("SEED=%llu: lane %u: operation %llu (key %s) is missing; all below %llu had been synced",
             (unsigned long long)seed, lane, (unsigned long long)m, key, (unsigned long long)synced);
    wrong++;
  }
  for (uint64_t i = 0; i < SLOTS; i++) {
    // The last operation below m on this slot.
    uint64_t expected = 0;
    if (m > i) {
      const uint64_t op = m - 1 - (m - 1 - i) % SLOTS;
      if (!op_is_del(lane, op)) expected = op + 1;
    }
    kill_key(lane, i, key);
    if (now->op[i] != expected) {
      complain("SEED=%llu: lane %u: key %s: operation %lld expected, %lld found (-1 is none); the newest found is %lld",
               (unsigned long long)seed, lane, key, (long long)expected - 1, (long long)now->op[i] - 1,
               (long long)m - 1);
      wrong++;
    } else if (expected != 0 && old != NULL && now->salt[i] != (expected > old->next ? salt : old->salt[i])) {
      complain("SEED=%llu: lane %u: key %s: operation %lld is there as an earlier round had written it",
               (unsigned long long)seed, lane, key, (long long)expected - 1);
      wrong++;
    }
  }
  return wrong;
}

// The counters' sum. The lanes' lengths determine it, except for the last time that each thread counted.
static uint64_t counters_check(struct xdb_ref *ref, bool first, const struct lane *old, unsigned threads) {
  uint64_t sum = 0, most = counted, wrong = 0;
  for (unsigned i = 0; i < COUNTERS; i++) {
    char key[KILL_KLEN + 1];
    uint64_t n = 0;
    uint32_t len = 0;
    counter_key(i, key);
    if (remixdb_getn(ref, key, KILL_KLEN, &n, sizeof(n), &len) ? len != sizeof(n)
                                                               : remixdb_errcode() != REMIXDB_NOTFOUND)
      die_call("counter");
    sum += n;
  }
  for (unsigned l = 0; l < LANES; l++) most += lanes[l].next / GROUP - old[l].next / GROUP;
  if (!first && (sum > most || sum + threads < most)) {
    complain("SEED=%llu: the counters' sum is %llu; the operations that are there counted to %llu, the last of each of "
             "%u threads included",
             (unsigned long long)seed, (unsigned long long)sum, (unsigned long long)most, threads);
    wrong++;
  }
  counted = sum;
  return wrong;
}

// The sum of all accounts, and the number that each lane's last transaction has written.
static uint64_t transactions_check(struct xdb *xdb, struct xdb_ref *ref, bool first, const struct lane *old) {
  uint64_t sum = 0, wrong = 0, n;
  char key[KILL_KLEN + 1];
  for (unsigned s = 0; s < SIDES; s++) {
    struct xdb_space *const space = remixdb_space_open(xdb, side_names[s], true);
    struct xdb_ref *const side = space != NULL ? remixdb_space_ref(space) : NULL;
    if (side == NULL) die_call("space");
    for (unsigned i = 0; i < ACCOUNTS; i++) {
      account_key(i, key);
      (void)number_get(side, key, &n);
      sum += n;
    }
    remixdb_unref(side);
    remixdb_space_close(space);
  }
  if (sum != 0) {
    complain("SEED=%llu: a transaction is there in part: the sum of all accounts is %lld", (unsigned long long)seed,
             (long long)sum);
    wrong++;
  }
  for (unsigned l = 0; l < LANES; l++) {
    // All groups before the one of the newest operation have ended with a transaction.
    const uint64_t last = lanes[l].seen > 0 ? (lanes[l].seen - 1) / GROUP * GROUP : 0;
    mark_key(l, key);
    (void)number_get(ref, key, &n);
    if (n <= lanes[l].next && (first || last <= old[l].next || n >= last)) continue;
    complain(
        "SEED=%llu: lane %u: the last transaction is that after operation %llu; the operations up to %llu are there",
        (unsigned long long)seed, l, (unsigned long long)n, (unsigned long long)lanes[l].next);
    wrong++;
  }
  return wrong;
}

// Refuses to write to another program's store. All keys begin with "exit" or "kill", so three looks tell.
static void refuse_foreign(struct xdb_ref *ref) {
  static const char *const from[] = {"", "exiu", "kilm"};
  static char key[REMIXDB_KV_MAX];
  uint32_t klen = 0;
  struct xdb_iter *const it = remixdb_iter_create(ref);
  if (it == NULL) die_call("iter_create");
  for (unsigned i = 0; i < sizeof(from) / sizeof(from[0]); i++) {
    remixdb_iter_seek(it, from[i], (uint32_t)strlen(from[i]));
    if (remixdb_iter_status(it) != REMIXDB_OK) die_call("seek");
    if (!remixdb_iter_valid(it)) break;
    if (!remixdb_iter_peek(it, key, &klen, NULL, NULL)) die_call("peek");
    const bool mine = klen > PREFIX_LEN &&
                      (memcmp(key, "exit", PREFIX_LEN) == 0 || memcmp(key, "kill", PREFIX_LEN) == 0);
    if (!mine) die_foreign(key, klen);
  }
  remixdb_iter_destroy(it);
}

// Opens the store, checks all lanes against the known state and takes them over. Returns the number of their keys.
static uint64_t check_all(bool first, const uint64_t synced[LANES], uint32_t salt, unsigned threads) {
  static struct lane now, old[LANES];
  struct xdb *const xdb = store_open();
  struct xdb_ref *const ref = store_ref(xdb);
  if (first) refuse_foreign(ref);
  uint64_t wrong = 0, keys = 0;
  memcpy(old, lanes, sizeof(old));
  for (unsigned l = 0; l < LANES; l++) {
    wrong += lane_read(ref, l, &now);
    wrong += lane_check(l, &now, first ? NULL : &lanes[l], synced[l], salt);
    for (unsigned i = 0; i < SLOTS; i++) keys += now.op[i] != 0;
    lanes[l] = now;
  }
  wrong += counters_check(ref, first, old, threads);
  wrong += transactions_check(xdb, ref, first, old);
  remixdb_unref(ref);
  remixdb_close(xdb);
  if (wrong > 0) die("SEED=%llu: %llu faults", (unsigned long long)seed, (unsigned long long)wrong);
  if (remixdb_errcode() != REMIXDB_OK) die_call("close");
  return keys;
}

static uint64_t lanes_total(const uint64_t *upto) {
  uint64_t sum = 0;
  for (unsigned l = 0; l < LANES; l++) sum += upto != NULL ? upto[l] : lanes[l].next;
  return sum;
}

static int kill_main(unsigned rounds) {
  uint64_t synced[LANES] = {0};
  printf("SEED=%llu\n", (unsigned long long)seed);
  flush_stdout();
  check_all(true, synced, 0, 0);
  uint64_t rng = seed;
  for (unsigned r = 1; r <= rounds; r++) {
    const unsigned threads = 1 + (unsigned)(rng_next(&rng) % LANES);
    const uint32_t salt = (uint32_t)rng_next(&rng);
    const bool from_open = rng_next(&rng) % 4 != 0;
    const bool again = rng_next(&rng) % 4 == 0;
    // Half of the delays come from a logarithmic scale, because much happens in the first milliseconds.
    const uint64_t scale = rng_next(&rng);
    const uint64_t delay_ms = 1 + rng_next(&rng) % (scale % 2 == 0 ? DELAY_MS_MAX : UINT64_C(1) << (scale >> 8) % 10);
    const uint64_t again_ms = rng_next(&rng) % RECOVERY_MS_MAX;

    // The last check closed the store in order, so all records that it found count as synced.
    for (unsigned l = 0; l < LANES; l++) synced[l] = lanes[l].next;
    const uint64_t start = lanes_total(NULL);
    run_and_kill(threads, salt, rng_next(&rng), delay_ms, from_open, synced);
    const uint64_t told = lanes_total(synced) - start;
    if (again) run_and_kill(0, salt, 0, again_ms, false, synced);
    const uint64_t keys = check_all(false, synced, salt, threads);
    printf("[%4u] %u threads, killed %llu ms after %s%s: %llu operations synced, %llu kept, %llu keys\n", r, threads,
           (unsigned long long)delay_ms, from_open ? "opening" : "the start",
           again ? ", and once more in recovery" : "", (unsigned long long)told,
           (unsigned long long)(lanes_total(NULL) - start), (unsigned long long)keys);
    flush_stdout();
  }
  return 0;
}

// ---- arguments

// wrong: the complaint; NULL when the user asked for the help.
static _Noreturn void usage(const char *name, const char *wrong) {
  fprintf(wrong == NULL ? stdout : stderr,
          "usage: %s DIR CACHE_MB MT_MB                    check what earlier runs left in DIR, put 100,000 keys, "
          "sync, end without closing\n"
          "       %s DIR CACHE_MB MT_MB --kill [ROUNDS]    kill a writing process at random moments and check what it "
          "left; ROUNDS is 1\n"
          "                                                when not given\n"
          "  the store in DIR must be new, or of this program; SEED is taken from the environment\n",
          name, name);
  if (wrong != NULL) complain("%s", wrong);
  else flush_stdout();
  exit(wrong == NULL ? 0 : 2);
}

static uint64_t number(const char *name, const char *text, uint64_t max) {
  char *end = NULL;
  errno = 0;
  const unsigned long long x = strtoull(text, &end, 10);
  if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && x <= max) return x;
  complain("%s is \"%s\"; a number from 0 to %llu is needed", name, text, (unsigned long long)max);
  exit(2);
}

int main(int argc, char **argv) {
  hold_std_fds();
  // --kill may stand anywhere; the other arguments keep their order.
  const char *arg[3] = {NULL};
  int nr = 0;
  bool kill_mode = false;
  uint64_t rounds = 1;
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    printf("xdbexit %s\n", remixdb_version());
    flush_stdout();
    return 0;
  }
  if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) usage(argv[0], NULL);
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--kill") == 0 && !kill_mode) {
      kill_mode = true;
      // The argument after it is ROUNDS when the other three are there without it.
      if (i + 1 < argc && argc - 2 > 3) rounds = number("ROUNDS", argv[++i], 1000000000);
    } else if (argv[i][0] == '-' && (nr == 0 || argv[i][1] == '-')) {
      complain("there is no flag \"%s\"; a directory of that name is given as ./%s", argv[i], argv[i]);
      exit(2);
    } else if (nr < 3) {
      arg[nr++] = argv[i];
    } else {
      usage(argv[0], kill_mode ? "there are more arguments than DIR, CACHE_MB, MT_MB and ROUNDS"
                               : "there are more arguments than DIR, CACHE_MB and MT_MB");
    }
  }
  if (nr != 3) usage(argv[0], "DIR, CACHE_MB and MT_MB are needed");
  dir = arg[0];
  cache_mb = (size_t)number("CACHE_MB", arg[1], UINT64_C(1) << 24);
  mt_mb = (size_t)number("MT_MB", arg[2], UINT64_C(1) << 24);
  if (!kill_mode) exit_main();

  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  const char *const text = getenv("SEED");
  if (text != NULL && text[0] != '\0') {
    seed = number("SEED", text, UINT64_MAX);
  } else {
    seed = mix((uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec + (uint64_t)getpid()) >> 32;
  }
  return kill_main((unsigned)rounds);
}
