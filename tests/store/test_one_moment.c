// SPDX-License-Identifier: Apache-2.0
//
// The commit of an ingest is one moment, and so is that of a batch that deletes a range of whole tables: another thread
// writes at every change of the disk on the way there, and each of its writes is either below, and visible before, or
// above. The same after a power cut at each change.
#include "tests/lib/check.h"

#include <pthread.h>
#include <stdio.h>

#include "log/state.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "store/flush.h"
#include "xdb.h"

#define KEYS 300u
#define STEPS 150u
#define CUTS 400u
#define SPACES 2u
#define LONG 0x80u  // a bit of a value's byte: the value is long, and lies apart
#define LONG_LEN 20000u
#define SHORT_LEN 60u
#define FAR_MS 4102444800000u  // an expiry that does not come

static struct simdisk *disk;
static struct env_ops ops;
static struct env env;
static struct xdb *x;
static struct xdb_space *space;
static struct xdb_ref *refs[SPACES];  // the refs of the test's thread

// ---- what the store has

struct state {
  uint8_t is[SPACES][KEYS];  // the value's byte; 0: absent
};

static uint32_t key_of(uint32_t i, char buf[16]) { return (uint32_t)snprintf(buf, 16, "%06u", i); }

static const char *value_of(uint8_t what, uint32_t *len_out) {
  static _Thread_local char value[LONG_LEN];
  *len_out = what & LONG ? LONG_LEN : SHORT_LEN;
  memset(value, what, *len_out);
  return value;
}

static uint8_t get(struct xdb_ref *r, uint32_t i) {
  static char value[LONG_LEN];
  char key[16];
  uint32_t len = 0;
  if (!remixdb_getn(r, key, key_of(i, key), value, sizeof(value), &len)) {
    CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
    return 0;
  }
  const uint8_t is = (uint8_t)value[0];
  CHECK(len == (is & LONG ? LONG_LEN : SHORT_LEN) && (uint8_t)value[len - 1] == is);
  return is;
}

// The change that is committed: its keys, and their values then.
static bool ranged;  // the batch; else the ingest
static bool parted;  // no step has a key of the ingest: the memtable stays
#define FROM 20u
#define TO 280u
#define HOLES 24u  // keys that each step deletes then,
#define HOLE 8u    // with one of the ingest's behind so many
static bool in_change(uint32_t i) { return i >= FROM && i < TO && (ranged || (parted ? i % 5 == 4 : i % 3 != 1)); }
static uint8_t change_what(uint32_t i) { return ranged ? 0 : i % 10 ? 'n' : 'n' | LONG; }

// Step i of the other thread: one batch.
static void step_ops(uint32_t i, uint32_t sp, uint32_t *key_out, uint8_t *what_out) {
  *key_out = (sp ? 13 * i + 1 : 7 * i + 3) % KEYS;
  *key_out -= parted && *key_out % 5 == 4;
  *what_out = i % 3 == 0 ? 0 : i % 5 == 4 ? ('A' + i % 26) | LONG : 'A' + i % 26;
}

static struct state before(void) {
  struct state s = {0};
  for (uint32_t sp = 0; sp < SPACES; sp++)
    for (uint32_t i = 0; i < KEYS; i += 2) s.is[sp][i] = i % 18 == 0 ? 'b' : 'a';
  return s;
}

// After `nr` steps; the change of the space `sp` came before step `at`; at STEPS: it did not.
static struct state after(uint32_t nr, uint32_t sp, uint32_t at) {
  struct state s = before();
  for (uint32_t i = 0; i <= nr; i++) {
    for (uint32_t k = 0; i == at && k < KEYS; k++)
      if (in_change(k)) s.is[sp][k] = change_what(k);
    for (uint32_t q = 0; i < nr && q < SPACES; q++) {
      uint32_t key;
      uint8_t what;
      step_ops(i, q, &key, &what);
      s.is[q][key] = what;
    }
  }
  return s;
}

static void is_state(struct xdb_ref *const *r, const struct state *s, uint32_t cut) {
  for (uint32_t sp = 0; sp < SPACES; sp++) {
    for (uint32_t i = 0; i < KEYS; i++) {
      const uint8_t is = get(r[sp], i);
      if (is != s->is[sp][i]) fail_msg("cut %u: space %u key %u is %02x, not %02x", cut, sp, i, is, s->is[sp][i]);
    }
  }
}

// ---- the other thread, which makes a step when a gate lets it

static struct {
  pthread_mutex_t mu;
  pthread_cond_t changed;
  uint32_t asked, done;
  bool ending;
  uint32_t into;               // the space of the ingest
  uint64_t number[STEPS];      // each step's
  uint64_t seen[STEPS];        // the version of the change's marker that the thread saw after the step; 0: none
  struct xdb_txn *txn[STEPS];  // has read the marker then
  struct xdb_snapshot *snap;   // at a moment before the change
  uint32_t snap_steps;
} other = {.mu = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static uint64_t version_of(struct xdb_ref *r, const char *key) {
  uint64_t version = 0;
  uint32_t len;
  char value[16];
  if (remixdb_getv(r, key, (uint32_t)strlen(key), value, sizeof(value), &len, &version)) return version;
  THREAD_CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
  return 0;
}

// Counts the keys that begin with "g", both ways: those of the ingest. Makes and uses gaps.
static uint32_t count_holes(struct xdb_ref *r) {
  struct xdb_iter *const it = remixdb_iter_create(r);
  uint32_t nr[2] = {0}, len;
  THREAD_CHECK(it);
  for (uint32_t back = 0; back < 2; back++) {
    if (back) remixdb_iter_seek_for_prev(it, "h", 1);
    else remixdb_iter_seek(it, "g", 1);
    for (const char *k; (k = remixdb_iter_key(it, &len)) != NULL && k[0] == 'g'; nr[back]++) {
      if (back) remixdb_iter_prev(it);
      else remixdb_iter_skip1(it);
    }
  }
  THREAD_CHECK(nr[0] == nr[1] && remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
  return nr[0];
}

static void step(struct xdb_ref *const *r, uint32_t i) {
  struct xdb_batch *const b = remixdb_batch_create();
  char name[16];
  for (uint32_t sp = 0; sp < SPACES; sp++) {
    char key[16];
    uint32_t k, len;
    uint8_t what;
    step_ops(i, sp, &k, &what);
    const uint32_t klen = key_of(k, key);
    if (sp) THREAD_CHECK((remixdb_batch_space(b, space), true));
    const char *const value = value_of(what, &len);
    THREAD_CHECK(what == 0    ? remixdb_batch_del(b, key, klen)
                 : i % 4 == 1 ? remixdb_batch_put_expire(b, key, klen, value, len, FAR_MS)
                              : remixdb_batch_put(b, key, klen, value, len));
    for (uint32_t h = 0; parted && sp == other.into && h < HOLES; h++)
      THREAD_CHECK(remixdb_batch_del(b, key, (uint32_t)snprintf(key, sizeof(key), "g%02u", h)));
    if (!sp)
      THREAD_CHECK(remixdb_batch_put(b, name, (uint32_t)snprintf(name, sizeof(name), "s%03u", i), &i, sizeof(i)));
  }
  THREAD_CHECK(remixdb_write(r[0], b));
  remixdb_batch_destroy(b);
  value_log_turn(&x->values);  // the next long value lies in another file
  other.number[i] = version_of(r[0], name);
  other.seen[i] = version_of(r[other.into], "marker");
  if (parted) THREAD_CHECK(count_holes(r[other.into]) == (other.seen[i] ? HOLES / HOLE : 0));
  if (i % 6 == 2) {
    struct xdb_txn *const t = other.txn[i] = remixdb_txn_begin(x);
    struct xdb_ref *const tr = remixdb_txn_ref(t, other.into ? space : NULL);
    THREAD_CHECK(t && tr && remixdb_probe(tr, "marker", 6) == (other.seen[i] != 0));
  }
  if (i == 4) {
    other.snap = remixdb_snapshot(r[0]);
    other.snap_steps = i + 1;
  }
}

static _Thread_local bool is_other;

static void *run_other(void *arg) {
  (void)arg;
  is_other = true;
  struct xdb_ref *const r[SPACES] = {remixdb_ref(x), remixdb_space_ref(space)};
  pthread_mutex_lock(&other.mu);
  for (;;) {
    while (other.done == other.asked && !other.ending) pthread_cond_wait(&other.changed, &other.mu);
    if (other.done == other.asked) break;
    const uint32_t i = other.done;
    pthread_mutex_unlock(&other.mu);
    step(r, i);
    pthread_mutex_lock(&other.mu);
    other.done++;
    pthread_cond_broadcast(&other.changed);
  }
  pthread_mutex_unlock(&other.mu);
  remixdb_unref(r[0]);
  remixdb_unref(r[1]);
  return NULL;
}

static void ask_step(bool wait) {
  pthread_mutex_lock(&other.mu);
  other.asked += other.asked < STEPS;
  pthread_cond_broadcast(&other.changed);
  while (wait && other.done != other.asked) pthread_cond_wait(&other.changed, &other.mu);
  pthread_mutex_unlock(&other.mu);
}

// ---- the gate, at each change of the disk that the commit makes

static bool armed, cutting;
static bool renamed;  // the commit has renamed a file last, and no sync has made that last
static struct simdisk *cuts[CUTS];
static uint32_t nr_cuts, nr_held;
static const struct memtable *before_hold;  // the active memtable when the log is first held

static bool is_held(void) {
  lib_lock(&x->wal->lock);
  const bool held = x->wal->held;
  lib_unlock(&x->wal->lock);
  return held;
}

// Keeps what power cuts at this moment could leave.
static void cut_power(uint32_t nr) {
  for (; nr > 0 && nr_cuts < CUTS; nr--, nr_cuts++) cuts[nr_cuts] = simdisk_crash(disk, check_seed + nr_cuts);
}

// Tells whether a power cut has kept the name that CURRENT has now.
static bool has_current(struct simdisk *cut) {
  static const char path[] = "/store/CURRENT";
  static uint8_t is[1 << 16], was[1 << 16];
  const int64_t size = simdisk_size(disk, path);
  CHECK(size > 0 && size <= (int64_t)sizeof(is));
  return simdisk_size(cut, path) == size && simdisk_peek(disk, path, 0, is, (size_t)size) &&
         simdisk_peek(cut, path, 0, was, (size_t)size) && memcmp(is, was, (size_t)size) == 0;
}

static void gate(void) {
  if (!armed || is_other) return;
  const bool held = is_held();
  nr_held += held;
  if (held && nr_held == 1) before_hold = xdb_super(x)->active;
  const uint32_t from = nr_cuts;
  if (cutting) cut_power(held ? 4 : 1);
  // One of the cuts before the sync keeps the new name, whatever the seed is.
  for (bool kept = !cutting || !renamed; !kept && nr_cuts < CUTS;) {
    for (uint32_t i = from; i < nr_cuts; i++) kept = kept || has_current(cuts[i]);
    if (!kept) cut_power(1);
  }
  renamed = false;
  // While the log is held, the step waits for the end of the hold. A power cut needs a disk that is alone.
  if (!held) ask_step(true);
  else if (!cutting && nr_held == 1) ask_step(false);
}

static ssize_t gate_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  gate();
  return simdisk_env(disk)->ops->pwrite(e, fd, buf, len, off);
}
static int gate_sync_data(struct env *e, int fd) {
  gate();
  return simdisk_env(disk)->ops->sync_data(e, fd);
}
static int gate_sync_all(struct env *e, int fd) {
  gate();
  return simdisk_env(disk)->ops->sync_all(e, fd);
}
static int gate_rename(struct env *e, int from_at, const char *from, int to_at, const char *to) {
  gate();
  renamed = armed && !is_other;
  return simdisk_env(disk)->ops->rename(e, from_at, from, to_at, to);
}

// ---- the test

static void open_on(struct env *e) {
  struct remixdb_opts o = small_opts(0);
  o.io = "sync";
  OK(xdb_open("/store", &o, e, &x));
  space = remixdb_space_open(x, "sp", true);
  refs[0] = remixdb_ref(x);
  refs[1] = remixdb_space_ref(space);
  CHECK(space && refs[0] && refs[1]);
}

static void close_it(void) {
  for (uint32_t i = 0; i < SPACES; i++) remixdb_unref(refs[i]);
  remixdb_space_close(space);
  remixdb_close(x);
}

static void store_make(void) {
  disk = simdisk_create();
  env = *simdisk_env(disk);
  ops = *env.ops;
  ops.pwrite = gate_pwrite;
  ops.sync_data = gate_sync_data;
  ops.sync_all = gate_sync_all;
  ops.rename = gate_rename;
  env.ops = &ops;
  open_on(&env);
  shrink(x, 256 << 10, 2);
  const struct state s = before();
  for (uint32_t part = 0; part < 2; part++) {
    for (uint32_t sp = 0; sp < SPACES; sp++) {
      for (uint32_t i = 0; i < KEYS; i++) {
        char key[16];
        uint32_t len;
        const char *const value = value_of(s.is[sp][i], &len);
        if (s.is[sp][i] && (part == 0 || s.is[sp][i] == 'b'))
          CHECK(remixdb_put(refs[sp], key, key_of(i, key), value, len));
      }
    }
    if (part == 0) CHECK(remixdb_compact(refs[0]));
  }
  CHECK(remixdb_sync(refs[0]));
}

static bool del_range(uint32_t sp) {
  struct xdb_batch *const b = remixdb_batch_create();
  char from[16], to[16];
  const struct remixdb_range r = {{from, key_of(FROM, from)}, {to, key_of(TO, to)}};
  CHECK(remixdb_batch_del_range(b, &r) && remixdb_batch_put(b, "marker", 6, "m", 1));
  armed = true;
  const bool good = remixdb_write(refs[sp], b);
  armed = false;
  remixdb_batch_destroy(b);
  return good;
}

static bool ingest(uint32_t sp) {
  struct xdb_ingest *const g = remixdb_ingest_begin(refs[sp]);
  for (uint32_t i = 0; i < KEYS; i++) {
    char key[16];
    uint32_t len;
    if (!in_change(i)) continue;
    const char *const value = value_of(change_what(i), &len);
    CHECK(remixdb_ingest_put(g, key, key_of(i, key), value, len));
  }
  for (uint32_t h = HOLE - 1; parted && h < HOLES; h += HOLE) {
    char key[16];
    CHECK(remixdb_ingest_put(g, key, (uint32_t)snprintf(key, sizeof(key), "g%02u+", h), "", 0));
  }
  CHECK(remixdb_ingest_put(g, "marker", 6, "m", 1));
  armed = true;
  const bool good = remixdb_ingest_commit(g);
  armed = false;
  CHECK((xdb_super(x)->active == before_hold) == parted);
  return good;
}

// Each write is on one side of the change's number, in what was seen, too. *at_out: the steps before it.
static uint64_t check_order(uint32_t sp, uint32_t *at_out) {
  const uint64_t number = version_of(refs[sp], "marker");
  CHECK(number != 0);
  *at_out = other.done;
  for (uint32_t i = other.done; i-- > 0;) {
    if (other.number[i] > number) *at_out = i;
    CHECK(other.number[i] != number && (other.seen[i] == 0 || other.seen[i] == number));
    if (other.number[i] > number && !other.seen[i])
      fail_msg("step %u has number %llu, above the change's %llu, and was seen before it", i,
               (unsigned long long)other.number[i], (unsigned long long)number);
  }
  return number;
}

// The records that were handed over keep their versions.
static void check_versions(void) {
  for (uint32_t i = 0; i < other.done; i++) {
    char name[16];
    (void)snprintf(name, sizeof(name), "s%03u", i);
    CHECK(version_of(refs[0], name) == other.number[i]);
  }
}

static void check_txns(uint32_t sp) {
  for (uint32_t i = 0; i < other.done; i++) {
    if (!other.txn[i]) continue;
    struct xdb_ref *const r = remixdb_txn_ref(other.txn[i], sp ? space : NULL);
    CHECK(remixdb_put(r, "of a transaction", 16, "t", 1));
    const bool good = remixdb_txn_commit(other.txn[i]);
    CHECK(good == (other.seen[i] != 0) && (good || remixdb_errcode() == REMIXDB_ABORTED));
    other.txn[i] = NULL;
  }
}

// Returns whether the change is there.
static bool check_cut(uint32_t cut, uint32_t sp, uint32_t at) {
  open_on(simdisk_env(cuts[cut]));
  uint32_t nr = 0;
  for (uint32_t i = 0; i < STEPS; i++) {
    char name[16];
    (void)snprintf(name, sizeof(name), "s%03u", i);
    if (!version_of(refs[0], name)) continue;
    if (nr++ != i) fail_msg("cut %u: step %u is there, and one before it is not", cut, i);
  }
  const bool with = version_of(refs[sp], "marker") != 0;
  if (with && nr < at) fail_msg("cut %u: the change is there, and %u of %u steps below it", cut, nr, at);
  if (!with && nr > at) fail_msg("cut %u: step %u is there, and the change below it is not", cut, nr);
  const struct state s = after(nr, sp, with ? at : STEPS);
  is_state(refs, &s, cut);
  CHECK(count_holes(refs[sp]) == (with && parted ? HOLES / HOLE : 0));
  CHECK(remixdb_verify(refs[0]));
  close_it();
  simdisk_destroy(cuts[cut]);
  return with;
}

static void check_cuts(uint32_t sp, uint32_t at, uint32_t durable_from) {
  uint32_t with = 0;
  for (uint32_t i = 0; i < nr_cuts; i++) {
    const bool is = check_cut(i, sp, at);
    with += is;
    CHECK(is || i < durable_from);
  }
  CHECK(nr_cuts < CUTS && with > nr_cuts - durable_from && with < nr_cuts);
}

static void moment(bool range, uint32_t sp, bool cut) {
  pthread_t id;
  uint32_t at;
  check_seed = check_seed_or(1);
  ranged = range;
  store_make();
  if (range) x->ranges = (struct range_limits){20, 20, 0};
  other.asked = other.done = nr_cuts = nr_held = 0;
  other.ending = false;
  other.into = sp;
  cutting = cut;
  CHECK(pthread_create(&id, NULL, run_other, NULL) == 0);
  for (uint32_t i = 0; i < 5; i++) ask_step(true);
  CHECK(range ? del_range(sp) : ingest(sp));
  CHECK(version_of(refs[sp], "marker") != 0);
  const uint32_t durable_from = nr_cuts;
  if (cut) cut_power(5);
  for (uint32_t i = 0; i < 4; i++) ask_step(true);
  const uint64_t number = check_order(sp, &at);
  CHECK_SAYS(at > 5 && at + 4 <= other.done && (range || nr_held > 3), "%u of %u steps, %u changes", at, other.done,
             nr_held);
  struct state s = after(other.done, sp, at);
  is_state(refs, &s, CUTS);
  CHECK(count_holes(refs[sp]) == (parted ? HOLES / HOLE : 0));
  check_versions();
  struct xdb_ref *const old[SPACES] = {remixdb_snapshot_ref(other.snap), remixdb_snapshot_space_ref(other.snap, space)};
  const struct state was = after(other.snap_steps, sp, STEPS);
  is_state(old, &was, CUTS);
  for (uint32_t i = 0; i < SPACES; i++) remixdb_unref(old[i]);
  remixdb_snapshot_release(other.snap);
  check_txns(sp);
  pthread_mutex_lock(&other.mu);
  other.ending = true;
  pthread_cond_broadcast(&other.changed);
  pthread_mutex_unlock(&other.mu);
  CHECK(pthread_join(id, NULL) == 0);
  CHECK(remixdb_compact(refs[0]) && remixdb_verify(refs[0]));
  is_state(refs, &s, CUTS);
  check_versions();
  close_it();
  open_on(&env);
  is_state(refs, &s, CUTS);
  check_versions();
  CHECK(version_of(refs[sp], "marker") == number);
  close_it();
  if (cut) check_cuts(sp, at, durable_from);
  simdisk_destroy(disk);
}

static void test_ingest(void **state) {
  (void)state;
  for (uint32_t sp = 0; sp < SPACES; sp++) moment(false, sp, false);
}
static void test_ingest_cuts(void **state) {
  (void)state;
  for (uint32_t sp = 0; sp < SPACES; sp++) moment(false, sp, true);
}
static void test_ingest_parted(void **state) {
  (void)state;
  parted = true;
  for (uint32_t sp = 0; sp < SPACES; sp++) moment(false, sp, false);
  for (uint32_t sp = 0; sp < SPACES; sp++) moment(false, sp, true);
  parted = false;
}
static void test_range(void **state) {
  (void)state;
  for (uint32_t sp = 0; sp < SPACES; sp++) moment(true, sp, false);
}
static void test_range_cuts(void **state) {
  (void)state;
  for (uint32_t sp = 0; sp < SPACES; sp++) moment(true, sp, true);
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ingest), cmocka_unit_test(test_ingest_cuts),
                                     cmocka_unit_test(test_ingest_parted), cmocka_unit_test(test_range),
                                     cmocka_unit_test(test_range_cuts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
