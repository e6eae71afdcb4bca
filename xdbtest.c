// SPDX-License-Identifier: Apache-2.0
//
// The store against a model in memory: random puts and deletes by many threads, then a check of every key by get and of
// the whole store by a scan, epoch after epoch, with the store closed and opened again every four epochs.
//
//   xdbtest.out DIR CACHE_MB MT_MB DATA_POWER UPDATE_POWER [EPOCHS]
//
// There are 2^DATA_POWER keys; each thread makes 2^UPDATE_POWER updates per epoch. A line per epoch goes to the
// standard output, everything else to standard error. A mismatch is reported with the seed and the key, and the exit
// status is 1.
//
// Environment: SEED repeats a run's random choices (with one thread, the whole run). THREADS and WORKERS set the
// numbers of updater threads and of the store's compaction threads. SPACES spreads the keys over so many named key
// spaces beside the unnamed one. TXNS is the percentage of updates that are transactions of two keys; other updates are
// single puts and deletes.
//
// The model is one word a key: the number of the key's last update, and whether that was a put. The key, that number
// and a salt kept in every value give all bytes of a value, so the program checks whole values without keeping them.
// When the directory already holds a store of this program, the program reads it first and makes the model from its
// values.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // for sched_getaffinity
#endif
#include "remixdb.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif

#define KEY_LEN 16u     // hex digits
#define VALUE_HEAD 24u  // key number, salt, update number, length
#define VALUE_MAX 20000u
#define STRIPES 4096u  // a power of two
#define EPOCHS_DEFAULT 100u
#define EPOCHS_PER_OPEN 4u
#define THREADS_MAX 1024u
#define REPORTS_MAX 20u  // mismatches told in words; all are counted
#define CHECK_EVERY 64u  // one update in so many first reads what it is about to change
#define DELETE_ONE_IN 4u
#define SPACES_MAX 64u

static struct {
  const char *dir;
  struct remixdb_opts opts;
  struct xdb *xdb;
  uint64_t keyrange;
  uint64_t updates;  // per thread and epoch
  unsigned threads;
  unsigned nr_spaces;  // the unnamed one included; key i is in space i % nr_spaces
  struct xdb_space *spaces[SPACES_MAX + 1];
  unsigned txns;  // percent
  uint64_t seed;
  uint64_t salt;  // the salt of every value in the store
  // Word i belongs to key i: (number of its last update) * 2 + (1 if it was a put). During the updates it is guarded by
  // the stripe of the key, which is held over the update of the store too, so that both see the same order. During the
  // checks nothing is written.
  uint32_t *model;
  pthread_mutex_t stripe[STRIPES];
  uint64_t *seen;          // one bit a key; the scan's own
  _Atomic uint64_t stale;  // mismatches so far (relaxed: threads are joined before it is read)
} t;

static __attribute__((format(printf, 1, 2))) _Noreturn void die(const char *fmt, ...) {
  va_list ap;
  fflush(stdout);
  fprintf(stderr, "xdbtest: SEED=%llu: ", (unsigned long long)t.seed);
  va_start(ap, fmt);
  vfprintf(stderr, fmt, ap);
  va_end(ap);
  fputc('\n', stderr);
  exit(1);
}

static _Noreturn void die_call(const char *what) {
  die("%s: %s: %s", what, remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
}

static void flush_stdout(void) {
  const bool lost = ferror(stdout) != 0;  // by an earlier call, which had the reason
  if (fflush(stdout) == 0 && !lost) return;
  fprintf(stderr, "xdbtest: standard output: %s\n", lost ? "could not be written to" : strerror(errno));
  exit(1);
}

static double now_s(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

// ---- numbers. The finalizer is that of SplitMix64 (Steele, Lea and Flood, 2014).

static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static uint64_t rng_next(uint64_t *state) {
  *state += UINT64_C(0x9e3779b97f4a7c15);
  return mix(*state);
}

// ---- keys: a bijection of 64-bit numbers scatters neighbouring key numbers over the whole key space. A scan inverts
// it to get the key's number.

#define SCATTER_A UINT64_C(0x9e3779b97f4a7c15)
#define SCATTER_B UINT64_C(0xd6e8feb86659fd93)

// The inverse of an odd number modulo 2^64, by Newton's iteration: each step doubles the bits that are right.
static uint64_t inverse(uint64_t a) {
  uint64_t x = a;  // right in the lowest three bits
  for (int i = 0; i < 5; i++) x *= 2 - a * x;
  return x;
}

static uint64_t scatter(uint64_t x) {
  x *= SCATTER_A;
  x ^= x >> 32;
  return x * SCATTER_B;
}

static uint64_t gather(uint64_t x) {
  x *= inverse(SCATTER_B);
  x ^= x >> 32;
  return x * inverse(SCATTER_A);
}

static void key_make(uint64_t nr, char key_out[KEY_LEN]) {
  static const char digit[] = "0123456789abcdef";
  uint64_t x = scatter(nr);
  for (unsigned i = KEY_LEN; i > 0; i--, x >>= 4) key_out[i - 1] = digit[x & 15];
}

// False: not a key of this program.
static bool key_parse(const char *key, uint32_t klen, uint64_t *nr_out) {
  if (klen != KEY_LEN) return false;
  uint64_t x = 0;
  for (unsigned i = 0; i < KEY_LEN; i++) {
    const char c = key[i];
    if (c >= '0' && c <= '9') x = x << 4 | (uint64_t)(c - '0');
    else if (c >= 'a' && c <= 'f') x = x << 4 | (uint64_t)(c - 'a' + 10);
    else return false;
  }
  *nr_out = gather(x);
  return true;
}

// ---- values

// Writes the value that key `nr` has after its update number `version`; returns its length, at most VALUE_MAX.
static uint32_t value_make(uint64_t nr, uint32_t version, uint64_t salt, uint8_t *out) {
  uint64_t x = mix(mix(nr ^ salt) + version);
  uint32_t len = 100 + (uint32_t)(x >> 32) % 241;
  if ((x & 255) == 0) len = 4200 + (uint32_t)(x >> 32) % ((x & 0xf00) == 0 ? VALUE_MAX - 4200 + 1 : 4000);
  memcpy(out, &nr, 8);
  memcpy(out + 8, &salt, 8);
  memcpy(out + 16, &version, 4);
  memcpy(out + 20, &len, 4);
  for (uint32_t i = VALUE_HEAD; i < len; i += 8) {
    x = x * UINT64_C(0xd1342543de82ef95) + 1;
    const uint64_t word = x ^ (x >> 29);
    memcpy(out + i, &word, len - i < 8 ? len - i : 8);
  }
  return len;
}

// The claims of a value about itself; only the comparison with value_make's bytes proves them.
static bool value_parse(const uint8_t *value, uint32_t vlen, uint64_t *nr_out, uint64_t *salt_out,
                        uint32_t *version_out) {
  if (vlen < VALUE_HEAD) return false;
  memcpy(nr_out, value, 8);
  memcpy(salt_out, value + 8, 8);
  memcpy(version_out, value + 16, 4);
  return true;
}

// ---- mismatches

static __attribute__((format(printf, 3, 4))) void mismatch(const char *how, uint64_t nr, const char *fmt, ...) {
  if (atomic_fetch_add_explicit(&t.stale, 1, memory_order_relaxed) >= REPORTS_MAX) return;
  char key[KEY_LEN], text[200];
  key_make(nr, key);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof(text), fmt, ap);
  va_end(ap);
  fprintf(stderr, "xdbtest: SEED=%llu: %s: key %.*s (number %llu): %s\n", (unsigned long long)t.seed, how, (int)KEY_LEN,
          key, (unsigned long long)nr, text);
}

struct check_bufs {
  uint8_t found[REMIXDB_KV_MAX];
  uint8_t expected[VALUE_MAX];
};

// Compares what the store returned for a key that the model has.
static void compare_value(const char *how, uint64_t nr, uint32_t vlen, struct check_bufs *b) {
  const uint32_t version = t.model[nr] >> 1;
  const uint32_t len = value_make(nr, version, t.salt, b->expected);
  if (vlen == len && memcmp(b->found, b->expected, len) == 0) return;
  uint64_t nr1 = 0, salt1 = 0;
  uint32_t version1 = 0;
  if (!value_parse(b->found, vlen, &nr1, &salt1, &version1)) {
    mismatch(how, nr, "update %u, %u bytes, expected; found %u bytes", version, len, vlen);
  } else if (nr1 != nr || salt1 != t.salt) {
    mismatch(how, nr, "update %u expected; found a value of key number %llu, update %u", version,
             (unsigned long long)nr1, version1);
  } else if (version1 != version) {
    mismatch(how, nr, "update %u expected; found update %u", version, version1);
  } else {
    uint32_t at = 0;
    while (at < vlen && at < len && b->found[at] == b->expected[at]) at++;
    mismatch(how, nr, "update %u, %u bytes, expected; found %u bytes that differ from byte %u on", version, len, vlen,
             at);
  }
}

static void check_key(const char *how, struct xdb_ref *ref, uint64_t nr, struct check_bufs *b) {
  char key[KEY_LEN];
  key_make(nr, key);
  uint32_t vlen = 0;
  const bool present = (t.model[nr] & 1) != 0;
  if (remixdb_get(ref, key, KEY_LEN, b->found, &vlen)) {
    if (present) compare_value(how, nr, vlen, b);
    else mismatch(how, nr, "update %u deleted it; found %u bytes", t.model[nr] >> 1, vlen);
  } else if (remixdb_errcode() != REMIXDB_NOTFOUND) {
    mismatch(how, nr, "%s: %s", remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
  } else if (present) {
    mismatch(how, nr, "update %u expected; not found", t.model[nr] >> 1);
  }
}

// ---- threads

struct worker {
  pthread_t thread;
  unsigned id;
  uint64_t rng;
  struct xdb_ref *refs[SPACES_MAX + 1];
  struct check_bufs *bufs;
};

static struct xdb_ref *space_ref(unsigned space) {
  struct xdb_ref *const ref = space > 0 ? remixdb_space_ref(t.spaces[space]) : remixdb_ref(t.xdb);
  if (ref == NULL) die_call("ref");
  return ref;
}

static void worker_begin(struct worker *w) {
  for (unsigned s = 0; s < t.nr_spaces; s++) w->refs[s] = space_ref(s);
}
static void worker_end(struct worker *w) {
  for (unsigned s = 0; s < t.nr_spaces; s++) remixdb_unref(w->refs[s]);
}

// Threads come and go with every phase, each with a ref of its own: the store must bear that, too.
static void run_threads(void *(*fn)(void *), uint64_t phase_seed) {
  static struct worker w[THREADS_MAX];
  for (unsigned i = 0; i < t.threads; i++) {
    w[i].id = i;
    w[i].rng = mix(mix(t.seed + phase_seed) + i);
    w[i].bufs = malloc(sizeof(*w[i].bufs));
    if (w[i].bufs == NULL) die("out of memory");
    const int err = pthread_create(&w[i].thread, NULL, fn, &w[i]);
    if (err != 0) die("a thread could not be made: %s", strerror(err));
  }
  for (unsigned i = 0; i < t.threads; i++) {
    pthread_join(w[i].thread, NULL);
    free(w[i].bufs);
  }
}

// Writes the next update of a key. The key's stripe is held. r: random.
static void update_key(struct xdb_ref *ref, uint64_t nr, uint64_t r, uint8_t *value) {
  char key[KEY_LEN];
  key_make(nr, key);
  const uint32_t version = (t.model[nr] >> 1) + 1;
  if (r % DELETE_ONE_IN == 0) {
    if (!remixdb_del(ref, key, KEY_LEN)) die_call("del");
    t.model[nr] = version << 1;
  } else {
    const uint32_t vlen = value_make(nr, version, t.salt, value);
    if (!remixdb_put(ref, key, KEY_LEN, value, vlen)) die_call("put");
    t.model[nr] = version << 1 | 1;
  }
}

static struct xdb_ref *txn_ref(struct xdb_txn *txn, uint64_t nr) {
  struct xdb_ref *const ref = remixdb_txn_ref(txn, t.spaces[nr % t.nr_spaces]);
  if (ref == NULL) die_call("txn_ref");
  return ref;
}

// Updates two keys, which may be in two spaces. Their stripes are held, so nobody else writes what the transaction
// reads, and the commit succeeds.
static void update_two(struct worker *w, uint64_t nr, uint64_t nr1, uint64_t r) {
  struct xdb_txn *const txn = remixdb_txn_begin(t.xdb);
  if (txn == NULL) die_call("txn_begin");
  check_key("get in a transaction", txn_ref(txn, nr), nr, w->bufs);
  update_key(txn_ref(txn, nr), nr, r, w->bufs->expected);
  update_key(txn_ref(txn, nr1), nr1, r >> 8, w->bufs->expected);
  check_key("get of an own write", txn_ref(txn, nr), nr, w->bufs);
  if (!remixdb_txn_commit(txn)) die_call("txn_commit");
}

static void *update_main(void *arg) {
  struct worker *const w = arg;
  worker_begin(w);
  for (uint64_t i = 0; i < t.updates; i++) {
    const uint64_t r = rng_next(&w->rng);
    const uint64_t nr = r & (t.keyrange - 1);
    const bool two = t.txns > 0 && rng_next(&w->rng) % 100 < t.txns;
    const uint64_t nr1 = two ? rng_next(&w->rng) & (t.keyrange - 1) : nr;
    const uint64_t s0 = nr % STRIPES, s1 = nr1 % STRIPES, low = s0 < s1 ? s0 : s1, high = s0 < s1 ? s1 : s0;
    pthread_mutex_lock(&t.stripe[low]);
    if (high != low) pthread_mutex_lock(&t.stripe[high]);
    if (two) {
      update_two(w, nr, nr1, r >> 40);
    } else {
      struct xdb_ref *const ref = w->refs[nr % t.nr_spaces];
      if (i % CHECK_EVERY == 0) check_key("get between updates", ref, nr, w->bufs);
      update_key(ref, nr, r >> 40, w->bufs->expected);
    }
    if (high != low) pthread_mutex_unlock(&t.stripe[high]);
    pthread_mutex_unlock(&t.stripe[low]);
  }
  worker_end(w);
  return NULL;
}

static void *check_main(void *arg) {
  struct worker *const w = arg;
  worker_begin(w);
  // Every thread takes a share of the key numbers; the keys are scattered, so each visits the whole store.
  for (uint64_t nr = w->id; nr < t.keyrange; nr += t.threads) check_key("get", w->refs[nr % t.nr_spaces], nr, w->bufs);
  worker_end(w);
  return NULL;
}

// ---- scans

struct scan {
  struct xdb_ref *ref;
  struct xdb_iter *it;
  char key[REMIXDB_KV_MAX];
  char last[REMIXDB_KV_MAX];
  uint32_t klen, last_len;
  uint32_t vlen;
  uint64_t nr;  // records so far
  struct check_bufs bufs;
};

static struct scan *scan_open(unsigned space) {
  struct scan *const s = malloc(sizeof(*s));
  if (s == NULL) die("out of memory");
  s->klen = s->last_len = s->vlen = 0;
  s->nr = 0;
  s->ref = space_ref(space);
  s->it = remixdb_iter_create(s->ref);
  if (s->it == NULL) die_call("iter_create");
  remixdb_iter_seek(s->it, NULL, 0);
  return s;
}

// Reads the next record into s; false at the end. Keys that do not ascend end the program, because the rest of such a
// scan proves nothing.
static bool scan_next(struct scan *s) {
  if (s->nr > 0) remixdb_iter_skip1(s->it);
  if (!remixdb_iter_valid(s->it)) {
    if (remixdb_iter_status(s->it) != REMIXDB_OK) die_call("scan");
    return false;
  }
  memcpy(s->last, s->key, s->klen);
  s->last_len = s->klen;
  if (!remixdb_iter_peek(s->it, s->key, &s->klen, s->bufs.found, &s->vlen)) die_call("peek");
  if (s->nr > 0) {
    const int cmp = memcmp(s->last, s->key, s->last_len < s->klen ? s->last_len : s->klen);
    if (cmp > 0 || (cmp == 0 && s->last_len >= s->klen)) {
      die("scan: key %.*s comes after key %.*s", (int)s->klen, s->key, (int)s->last_len, s->last);
    }
  }
  s->nr++;
  return true;
}

static void scan_close(struct scan *s) {
  remixdb_iter_destroy(s->it);
  remixdb_unref(s->ref);
  free(s);
}

// Compares a space with the model in order and returns the number of records. The keys must ascend, be in the model,
// and have the model's values.
static uint64_t scan_space(const char *how, unsigned space) {
  struct scan *const s = scan_open(space);
  while (scan_next(s)) {
    uint64_t nr = 0;
    if (!key_parse(s->key, s->klen, &nr) || nr >= t.keyrange || nr % t.nr_spaces != space) {
      atomic_fetch_add_explicit(&t.stale, 1, memory_order_relaxed);
      fprintf(stderr, "xdbtest: SEED=%llu: %s: key %.*s was never put\n", (unsigned long long)t.seed, how, (int)s->klen,
              s->key);
      continue;
    }
    t.seen[nr / 64] |= UINT64_C(1) << nr % 64;
    if ((t.model[nr] & 1) == 0) mismatch(how, nr, "update %u deleted it; found %u bytes", t.model[nr] >> 1, s->vlen);
    else compare_value(how, nr, s->vlen, &s->bufs);
  }
  const uint64_t met = s->nr;
  scan_close(s);
  return met;
}

// The same with all spaces. The bits left unset show keys of the model that the scans did not find.
static uint64_t scan_check(const char *how) {
  uint64_t met = 0;
  memset(t.seen, 0, (size_t)((t.keyrange + 63) / 64 * 8));
  for (unsigned space = 0; space < t.nr_spaces; space++) met += scan_space(how, space);
  for (uint64_t nr = 0; nr < t.keyrange; nr++) {
    if ((t.model[nr] & 1) != 0 && (t.seen[nr / 64] >> nr % 64 & 1) == 0) {
      mismatch(how, nr, "update %u expected; not met", t.model[nr] >> 1);
    }
  }
  return met;
}

static void space_open(unsigned s) {
  char name[32];
  snprintf(name, sizeof(name), "xdbtest %u", s);
  t.spaces[s] = remixdb_space_open(t.xdb, name, true);
  if (t.spaces[s] == NULL) die_call("space_open");
}

// Takes the records of a space into the model. *found: the store's records so far.
static void adopt_space(unsigned space, uint32_t *newest, uint64_t *found) {
  struct scan *const s = scan_open(space);
  while (scan_next(s)) {
    uint64_t nr = 0, nr1 = 0, salt = 0;
    uint32_t version = 0;
    if (!key_parse(s->key, s->klen, &nr))
      die("%s holds key \"%.*s\", which is not of this program", t.dir, (int)s->klen, s->key);
    if (nr >= t.keyrange) die("%s holds key \"%.*s\", which needs a larger DATA_POWER", t.dir, (int)s->klen, s->key);
    if (nr % t.nr_spaces != space) die("%s was made with another number of SPACES", t.dir);
    const bool parsed = value_parse(s->bufs.found, s->vlen, &nr1, &salt, &version);
    if ((*found)++ == 0) t.salt = salt;
    if (parsed && version > UINT32_MAX >> 1) version = 0;
    t.model[nr] = version << 1 | 1;
    compare_value("the store as it was", nr, s->vlen, &s->bufs);
    if (version > *newest) *newest = version;
  }
  scan_close(s);
}

// Makes the model from the store's records. Nothing has been written yet, so another program's store stays as it is.
static void adopt(void) {
  uint32_t newest = 0;
  uint64_t found = 0;
  for (unsigned space = 0; space < t.nr_spaces; space++) {
    if (space > 0) space_open(space);
    adopt_space(space, &newest, &found);
  }
  // Absent keys may have been deleted. Their updates start after the newest one, so that an old value never passes for
  // a new one.
  for (uint64_t nr = 0; nr < t.keyrange; nr++) {
    if ((t.model[nr] & 1) == 0) t.model[nr] = newest << 1;
  }
  if (found > 0) fprintf(stderr, "xdbtest: %s held %llu keys\n", t.dir, (unsigned long long)found);
}

static void stop_if_stale(void) {
  const uint64_t stale = atomic_load_explicit(&t.stale, memory_order_relaxed);
  if (stale > 0) die("%llu mismatches", (unsigned long long)stale);
}

// ---- the run

// Opening number n; compressed keys and tags are on and off in turn, in all four combinations.
static void store_open(unsigned n) {
  t.opts.ckeys = (n & 1) == 0;
  t.opts.tags = (n & 2) == 0;
  t.xdb = remixdb_open_opts(t.dir, &t.opts);
  if (t.xdb == NULL) die_call("open");
  for (unsigned s = 1; s < t.nr_spaces && n > 0; s++) space_open(s);  // the first time adopt does it
}

static void store_close(void) {
  for (unsigned s = 1; s < t.nr_spaces; s++) remixdb_space_close(t.spaces[s]);
  remixdb_close(t.xdb);
  if (remixdb_errcode() != REMIXDB_OK) die_call("close");
  t.xdb = NULL;
}

static void run(unsigned epochs) {
  const double start = now_s();
  store_open(0);
  adopt();
  stop_if_stale();
  for (unsigned e = 1; e <= epochs; e++) {
    const double t0 = now_s();
    run_threads(update_main, e);
    const double t1 = now_s();
    const uint64_t nr = t.updates * t.threads;
    run_threads(check_main, 0);
    const uint64_t count = scan_check("scan");
    printf("[%4u] %.3f put/del nr %llu mops %.3f keyrange %llu keycount %llu stale %llu\n", e, now_s() - start,
           (unsigned long long)nr, (double)nr / (t1 > t0 ? t1 - t0 : 1e-9) * 1e-6, (unsigned long long)t.keyrange,
           (unsigned long long)count, (unsigned long long)atomic_load_explicit(&t.stale, memory_order_relaxed));
    flush_stdout();
    stop_if_stale();
    if (e % EPOCHS_PER_OPEN == 0) {
      store_close();
      store_open(e / EPOCHS_PER_OPEN);
      // Updates would blur what recovery did, so the store is compared before there are any.
      scan_check("scan after opening");
      stop_if_stale();
    }
  }
  store_close();
}

// ---- arguments

static unsigned processors(void) {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return (unsigned)CPU_COUNT(&set);
#endif
  const long nr = sysconf(_SC_NPROCESSORS_ONLN);
  return nr > 0 ? (unsigned)nr : 1;
}

static uint64_t number(const char *name, const char *text, uint64_t min, uint64_t max) {
  char *end = NULL;
  errno = 0;
  const unsigned long long x = strtoull(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || x < min || x > max) {
    fprintf(stderr, "xdbtest: %s is \"%s\"; a number from %llu to %llu is needed\n", name, text,
            (unsigned long long)min, (unsigned long long)max);
    exit(2);
  }
  return x;
}

static uint64_t number_env(const char *name, uint64_t otherwise, uint64_t min, uint64_t max) {
  const char *const text = getenv(name);
  return text != NULL && text[0] != '\0' ? number(name, text, min, max) : otherwise;
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    printf("xdbtest %s\n", remixdb_version());
    flush_stdout();
    return 0;
  }
  const bool help = argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
  if (help || argc < 6 || argc > 7) {
    fprintf(help ? stdout : stderr,
            "usage: %s DIR CACHE_MB MT_MB DATA_POWER UPDATE_POWER [EPOCHS]\n"
            "  random updates of the store in DIR, checked against a model; the store must be new, or of this program\n"
            "  2^DATA_POWER keys; 2^UPDATE_POWER updates per thread and epoch; EPOCHS is %u when not given\n"
            "  SEED, THREADS and WORKERS are taken from the environment; so are SPACES, the number of named key "
            "spaces, and\n"
            "  TXNS, the percentage of updates that are transactions\n",
            argv[0], EPOCHS_DEFAULT);
    if (help) flush_stdout();
    else fprintf(stderr, "xdbtest: 5 or 6 arguments are needed, and %d were given\n", argc - 1);
    return help ? 0 : 2;
  }
  if (argv[1][0] == '-') {
    fprintf(stderr, "xdbtest: there is no flag \"%s\"; a directory of that name is given as ./%s\n", argv[1], argv[1]);
    return 2;
  }
  remixdb_opts_init(&t.opts, sizeof(t.opts));
  t.dir = argv[1];
  t.opts.cache_mb = (size_t)number("CACHE_MB", argv[2], 0, UINT64_C(1) << 24);
  t.opts.memtable_mb = (size_t)number("MT_MB", argv[3], 0, UINT64_C(1) << 24);
  t.keyrange = UINT64_C(1) << number("DATA_POWER", argv[4], 0, 31);
  t.updates = UINT64_C(1) << number("UPDATE_POWER", argv[5], 0, 40);
  const unsigned epochs = argc > 6 ? (unsigned)number("EPOCHS", argv[6], 1, 1000000000) : EPOCHS_DEFAULT;

  // The store's threads take up to half of the processors, the updaters take the rest.
  const unsigned cpus = processors();
  const unsigned half = cpus / 2 < 4 ? cpus / 2 : 4;
  const unsigned workers = (unsigned)number_env("WORKERS", half > 1 ? half : 1, 0, 64);
  const unsigned left = cpus > workers ? cpus - workers : 1;
  t.threads = (unsigned)number_env("THREADS", left < THREADS_MAX ? left : THREADS_MAX, 1, THREADS_MAX);
  t.opts.workers = (int)workers;
  t.nr_spaces = 1 + (unsigned)number_env("SPACES", 0, 0, SPACES_MAX);
  t.txns = (unsigned)number_env("TXNS", 0, 0, 100);

  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  t.seed = number_env("SEED", mix((uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec + (uint64_t)getpid()), 0,
                      UINT64_MAX);
  t.salt = mix(t.seed);
  fprintf(stderr, "xdbtest: SEED=%llu THREADS=%u WORKERS=%u\n", (unsigned long long)t.seed, t.threads, workers);

  t.model = calloc((size_t)t.keyrange, sizeof(t.model[0]));
  t.seen = calloc((size_t)((t.keyrange + 63) / 64), sizeof(t.seen[0]));
  if (t.model == NULL || t.seen == NULL) die("out of memory");
  for (unsigned i = 0; i < STRIPES; i++) pthread_mutex_init(&t.stripe[i], NULL);
  run(epochs);
  free(t.model);
  free(t.seen);
  return 0;
}
