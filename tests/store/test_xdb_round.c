// SPDX-License-Identifier: Apache-2.0
//
// Writers that come to a full memtable together: one of them freezes it, and then there is room for all. Rounds are
// held up where they make a file, so that whoever waits for one that is not his concern waits for ever: an alarm ends
// the program then.
//
// Rounds that scans have paid for: that they come, and what they do when a memtable is frozen, the store is closed or
// the disk fails just then.
#include "tests/lib/check.h"
#include "tests/lib/store.h"

#include <errno.h>

#include "base/files.h"
#include "tests/lib/simdisk.h"
#include "xdb.h"
#include "store/ref.h"
#include "store/snapshot.h"
#include "store/idle.h"
#include "store/syncer.h"
#include "store/scan_merge.h"

#define WRITERS 4u
#define MEMTABLE (64u << 10)

static struct xdb *x;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t allowed;  // rounds; guarded by lock
static uint64_t held;     // the round that is held up; guarded by lock

static uint64_t frozen(void) {
  pthread_mutex_lock(&x->lock);
  const uint64_t nr = x->rounds.nr_frozen;
  pthread_mutex_unlock(&x->lock);
  return nr;
}

// Where a round for scans is held up.
enum gate { GATE_NONE, GATE_TABLE, GATE_REMIX, GATE_CURRENT };
static enum gate hold_at, held_at;  // guarded by lock
static _Atomic enum gate fail_at;   // or fails, with
static _Atomic int fail_with;

static bool scan_merging(void) {
  if (!x) return false;
  pthread_mutex_lock(&x->lock);
  const bool now = x->rounds.at == XDB_AT_SCANS;
  pthread_mutex_unlock(&x->lock);
  return now;
}

// A round for scans comes to the gate. 0, or what it is to fail with there.
static int gate_pass(enum gate at) {
  pthread_mutex_lock(&lock);
  while (hold_at == at) {
    held_at = at;
    pthread_cond_broadcast(&changed);
    pthread_cond_wait(&changed, &lock);
  }
  pthread_mutex_unlock(&lock);
  return atomic_load(&fail_at) == at ? -atomic_load(&fail_with) : 0;
}

static bool ends_with(const char *path, const char *end) {
  const size_t len = strlen(path), n = strlen(end);
  return len >= n && strcmp(path + len - n, end) == 0;
}

static int gate_rename(struct env *e, int from_at, const char *from, int to_at, const char *to) {
  (void)e;
  const int bad = ends_with(to, FILES_CURRENT) && scan_merging() ? gate_pass(GATE_CURRENT) : 0;
  return bad ? bad : env_posix()->ops->rename(env_posix(), from_at, from, to_at, to);
}

static int gate_open(struct env *e, int at, const char *path, unsigned flags) {
  (void)e;
  const bool table = ends_with(path, ".sst");
  // a file of the log is made with the store's lock held, and is not asked about
  if (flags & ENV_CREATE && (table || ends_with(path, ".remix")) && scan_merging()) {
    const int bad = gate_pass(table ? GATE_TABLE : GATE_REMIX);
    if (bad) return bad;
  } else if (flags & ENV_CREATE && table) {
    const uint64_t nr = frozen();
    pthread_mutex_lock(&lock);
    while (nr > allowed) {
      held = nr;
      pthread_cond_broadcast(&changed);
      pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
  }
  return env_posix()->ops->open(env_posix(), at, path, flags);
}

static pthread_t remover;  // the last one to remove a table; guarded by lock
static _Atomic uint32_t removed;
static _Atomic bool hold_remover;

static int gate_unlink(struct env *e, int at, const char *path) {
  (void)e;
  if (ends_with(path, ".sst")) {
    pthread_mutex_lock(&lock);
    remover = pthread_self();
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&removed, 1);
    while (atomic_load(&hold_remover)) time_sleep_ns(100000);
  }
  return env_posix()->ops->unlink(env_posix(), at, path);
}

static bool i_removed(void) {
  pthread_mutex_lock(&lock);
  const bool mine = pthread_equal(remover, pthread_self());
  pthread_mutex_unlock(&lock);
  return mine;
}

static void allow(uint64_t rounds) {
  pthread_mutex_lock(&lock);
  allowed = rounds;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void wait_held(uint64_t nr) {
  pthread_mutex_lock(&lock);
  while (held < nr) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static void hold(enum gate at) {
  pthread_mutex_lock(&lock);
  hold_at = at;
  held_at = GATE_NONE;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void wait_held_at(enum gate at) {
  pthread_mutex_lock(&lock);
  while (held_at != at) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static _Atomic uint64_t
    hold_end;  // the round of this memtable is held up between its installation and what follows it; 0: none is
static _Atomic bool at_end;

static void see_line(void *arg, const char *line) {
  (void)arg;
  const uint64_t nr = atomic_load(&hold_end);
  if (nr == 0 || strstr(line, "compaction: ") == NULL) return;
  pthread_mutex_lock(&x->lock);
  const bool mine = x->rounds.nr_installed == nr;
  pthread_mutex_unlock(&x->lock);
  if (!mine) return;
  for (atomic_store(&at_end, true); atomic_load(&hold_end);) time_sleep_ns(100000);
}

static void begin_with(int workers, size_t memtable, uint32_t table_pages) {
  static struct env_ops ops;
  static struct env env;
  ops = *quick_env()->ops;
  ops.open = gate_open;
  ops.rename = gate_rename;
  ops.unlink = gate_unlink;
  env = (struct env){.ops = &ops};
  struct remixdb_opts o = small_opts(workers);
  o.logger = see_line;
  held = 0;
  hold(GATE_NONE);
  atomic_store(&fail_at, GATE_NONE);
  x = NULL;
  OK(xdb_open(dir, &o, &env, &x));
  shrink(x, memtable, table_pages);
  x->compact.young_from = 0;  // what is written here comes into the one view that scans wear
}

static void begin(void) {
  allow(0);
  begin_with(1, MEMTABLE, 4);
}

static void end(void) {
  allow(UINT64_MAX);
  OK(xdb_close(x));
}

static void put(struct xdb_ref *r, uint64_t i) {
  static const uint8_t val[100];
  OK(xdb_put(r, kref(&i, sizeof(i)), val, sizeof(val), false));
}

// Until the active memtable is full; the next put will find that.
static uint64_t fill(struct xdb_ref *r, uint64_t i) {
  while (!xdb_round_due(x, xdb_super(x)->active, 0)) put(r, i++);
  return i;
}

static void test_room_is_there(void **state) {
  (void)state;
  struct xdb_ref *r;
  begin();
  OK(xdb_ref(x, &r));
  uint64_t i = fill(r, 0);
  put(r, i++);
  wait_held(1);
  OK(xdb_wait_room(x, XDB_FREEZE_FULL, 0));  // another one has frozen it
  assert_int_equal(frozen(), 1);
  put(r, i);
  xdb_unref(r);
  end();
}

struct writer {
  pthread_t thread;
  uint32_t nr;
};
static _Atomic uint32_t coming;

static void *write_one(void *arg) {
  const struct writer *const w = arg;
  struct xdb_ref *r;
  const uint64_t key = UINT64_MAX - w->nr;
  THREAD_CHECK(xdb_ref(x, &r) == REMIXDB_OK);
  atomic_fetch_add(&coming, 1);
  THREAD_CHECK(xdb_put(r, kref(&key, sizeof(key)), "v", 1, false) == REMIXDB_OK);
  xdb_unref(r);
  return NULL;
}

static void test_one_round_for_all(void **state) {
  (void)state;
  struct xdb_ref *r;
  struct writer writers[WRITERS];
  begin();
  OK(xdb_ref(x, &r));
  uint64_t i = fill(r, 0);
  put(r, i++);
  wait_held(1);
  fill(r, i);  // a full one, and one that is frozen: all wait
  atomic_store(&coming, 0);
  for (uint32_t w = 0; w < WRITERS; w++) {
    writers[w].nr = w;
    CHECK(pthread_create(&writers[w].thread, NULL, write_one, &writers[w]) == 0);
  }
  while (atomic_load(&coming) < WRITERS) time_sleep_ns(1000000);
  time_sleep_ns(20000000);  // most of them have come to where they wait
  assert_int_equal(frozen(), 1);
  allow(1);
  wait_held(2);
  for (uint32_t w = 0; w < WRITERS; w++) pthread_join(writers[w].thread, NULL);  // while the second round is held up
  assert_int_equal(frozen(), 2);
  xdb_unref(r);
  end();
}

static void *flush_it(void *arg) {
  (void)arg;
  THREAD_CHECK(xdb_flush(x) == REMIXDB_OK);
  return NULL;
}

// A flush that was called while a memtable was frozen freezes the next one, however many writers wait for that, too: it
// never waits for a second round but its own.
static void test_flush_is_next(void **state) {
  (void)state;
  for (uint32_t n = 0; n < 8; n++) {
    struct xdb_ref *r;
    struct writer writers[WRITERS];
    pthread_t flusher;
    begin();
    OK(xdb_ref(x, &r));
    uint64_t i = fill(r, 0);
    put(r, i++);
    wait_held(1);
    fill(r, i);
    atomic_store(&coming, 0);
    for (uint32_t w = 0; w < WRITERS; w++) {
      writers[w].nr = w;
      CHECK(pthread_create(&writers[w].thread, NULL, write_one, &writers[w]) == 0);
    }
    while (atomic_load(&coming) < WRITERS) time_sleep_ns(1000000);
    time_sleep_ns(5000000);
    CHECK(pthread_create(&flusher, NULL, flush_it, NULL) == 0);
    for (uint32_t waits = 0; waits == 0; time_sleep_ns(100000)) {
      pthread_mutex_lock(&x->lock);
      waits = x->rounds.nr_flushers;
      pthread_mutex_unlock(&x->lock);
    }
    allow(1);
    wait_held(2);
    for (uint32_t w = 0; w < WRITERS; w++) pthread_join(writers[w].thread, NULL);
    allow(UINT64_MAX);
    pthread_join(flusher, NULL);
    assert_int_equal(frozen(), 2);
    xdb_unref(r);
    end();
  }
}

// ---- rounds that scans have paid for

#define KEYS 4000u
#define LEVELS 5u
#define SMALL 100u   // bytes of a value
#define LARGE 1000u  // of which the cache holds a quarter
#define ROOM (256u << 10)
#define PAGES 2048u  // of a table: one holds everything

static uint32_t now[KEYS];  // what each key has: the number of its value, or 0
static uint32_t next_what;
static uint32_t value_len;

static struct kref key_of(uint32_t key, uint8_t buf[8]) {
  for (uint32_t i = 0; i < 8; i++) buf[i] = (uint8_t)('0' + (key >> (3 * (7 - i)) & 7));
  return kref(buf, 8);
}

static void value_of(uint32_t key, uint32_t what, uint8_t *val) {
  memset(val, (int)(what % 251), value_len);
  store32le(val, key);
  store32le(val + 4, what);
}

static void write_key(struct xdb_ref *r, uint32_t key, bool del) {
  uint8_t kbuf[8], val[LARGE];
  now[key] = del ? 0 : ++next_what;
  if (!del) value_of(key, now[key], val);
  OK(xdb_put(r, key_of(key, kbuf), val, del ? 0 : value_len, del));
}

static void check_value(uint32_t key, uint32_t what, const void *val, uint32_t len) {
  uint8_t want[LARGE];
  CHECK(what != 0 && len == value_len);
  value_of(key, what, want);
  CHECK(memcmp(want, val, len) == 0);
}

// From where the iterator stands to the end.
static void check_rest(struct xdb_iter *it, uint32_t from, const uint32_t *want) {
  uint8_t kbuf[8];
  for (uint32_t k = from; k < KEYS; k++) {
    struct kv_rec rec;
    if (want[k] == 0) continue;
    OK(xdb_iter_record(it, &rec));
    CHECK(kv_eq(key_of(k, kbuf), kref(rec.key, rec.klen)));
    check_value(k, want[k], rec.val, rec.vlen);
    OK(xdb_iter_skip(it, 1));
  }
  CHECK(!xdb_iter_valid(it));
}

static void check_all(struct xdb_ref *r, const uint32_t *want) {
  uint8_t kbuf[8], val[LARGE];
  struct xdb_iter *it;
  OK(xdb_iter_create(r, &it));
  OK(xdb_iter_seek(it, kref("", 0)));
  check_rest(it, 0, want);
  xdb_iter_destroy(it);
  for (uint32_t k = 0; k < KEYS; k++) {
    uint32_t len;
    const enum remixdb_status s = xdb_get(r, key_of(k, kbuf), val, sizeof(val), &len);
    CHECK(s == (want[k] ? REMIXDB_OK : REMIXDB_NOTFOUND));
    if (want[k]) check_value(k, want[k], val, len);
  }
}

static uint32_t runs_of(const struct version *v) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) nr += v->parts[i]->remix ? v->parts[i]->remix->nr_runs : 0;
  return nr;
}

static uint32_t runs(struct xdb_ref *r) {
  epoch_enter(&x->epoch, &r->slot);
  const uint32_t nr = runs_of(xdb_super(x)->version);
  epoch_exit(&r->slot);
  return nr;
}

static bool names(const struct version *v, const char *name) {
  char buf[32];
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct remix *p = v->parts[i]->remix;
    if (!p) continue;
    remix_name(buf, p->number);
    if (strcmp(buf, name) == 0) return true;
    for (uint32_t t = 0; t < p->nr_runs; t++) {
      sst_name(buf, p->runs[t]->number);
      if (strcmp(buf, name) == 0) return true;
    }
  }
  return false;
}

// Files of a closed store: all tables that the version names, and no others.
static void check_files(const struct files_entry *list, size_t nr) {
  const struct version *v = xdb_super(x)->version;
  uint32_t tables = 0;
  for (size_t i = 0; i < nr; i++) {
    const bool table = ends_with(list[i].name, ".sst");
    tables += table;
    if ((table || ends_with(list[i].name, ".remix")) && !names(v, list[i].name)) fail_msg("%s is left", list[i].name);
  }
  CHECK(tables == runs_of(v));
}

static void idle(void) {
  for (bool busy = true; busy;) {
    OK(xdb_wait_idle(x));
    pthread_mutex_lock(&x->lock);
    busy = x->rounds.at != XDB_AT_REST || atomic_load(&x->scan_merges.due) ||
           x->rounds.nr_installed != x->rounds.nr_frozen;  // and the log is as it stays
    pthread_mutex_unlock(&x->lock);
    if (busy) time_sleep_ns(100000);
  }
}

static void limit(size_t memtable) {
  pthread_mutex_lock(&x->lock);
  x->memtable_limit = memtable;
  pthread_mutex_unlock(&x->lock);
}

// One partition of runs that overlap, and an empty memtable.
static struct xdb_ref *load(int workers, uint32_t len) {
  struct xdb_ref *r;
  allow(UINT64_MAX);
  value_len = len;
  next_what = 0;
  memset(now, 0, sizeof(now));
  begin_with(workers, 4 * ROOM, PAGES);
  OK(xdb_ref(x, &r));
  for (uint32_t l = 0; l < LEVELS; l++) {
    for (uint32_t k = l; k < KEYS; k += LEVELS) write_key(r, k, false);
    for (uint32_t k = l; l && k < KEYS; k += 97) write_key(r, k, k % 2);
    OK(xdb_flush(x));
  }
  idle();
  CHECK(runs(r) >= LEVELS);
  CHECK(stat_of(x, "scan_merges") == 0);
  limit(ROOM);
  x->compact.memtable_size = ROOM;
  return r;
}

// The store as it is found when it is opened next.
static void reopen(struct xdb_ref *r) {
  struct files_entry *list;
  size_t nr;
  xdb_unref(r);
  end();
  OK(paths_files(env_posix(), dir, &list, &nr));
  begin_with(0, ROOM, PAGES);
  check_files(list, nr);
  mem_free(list);
  OK(xdb_ref(x, &r));
  check_all(r, now);
  xdb_unref(r);
  OK(xdb_close(x));
}

// As if scans had.
static void wear(struct xdb_ref *r) {
  epoch_enter(&x->epoch, &r->slot);
  const struct version *v = xdb_super(x)->version;
  for (uint32_t i = 0; i < v->nr_parts; i++)
    if (v->parts[i]->remix) remix_add_debt(v->parts[i]->remix, UINT32_MAX);
  epoch_exit(&r->slot);
}

static void scan(struct xdb_iter *it, uint64_t *rng) {
  struct kv_rec rec;
  uint8_t kbuf[8];
  OK(xdb_iter_seek(it, key_of((uint32_t)below(rng, KEYS), kbuf)));
  for (uint32_t i = 0; i < 20 && xdb_iter_valid(it); i++) {
    OK(xdb_iter_record(it, &rec));
    OK(xdb_iter_skip(it, 1));
  }
}

static void test_scans_merge(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct xdb_ref *r = load(1, LARGE), *old;
  struct xdb_iter *it, *open_on, *open_at;
  struct xdb_snapshot *snap;
  uint32_t then[KEYS];
  const uint32_t before = runs(r);
  memcpy(then, now, sizeof(then));
  // what is open stays as it is
  OK(xdb_snapshot(r, &snap));
  OK(xdb_snapshot_ref(snap, &old));
  OK(xdb_iter_create(old, &open_on));
  OK(xdb_iter_create(r, &open_at));
  OK(xdb_iter_seek(open_at, kref("", 0)));
  OK(xdb_iter_create(r, &it));
  uint32_t scans = 0;
  for (; stat_of(x, "scan_merges") == 0; scans++) {
    CHECK(scans < 20000);
    scan(it, &rng);
  }
  CHECK(scans >= COMPACT_SCAN_DEBT_MIN / before / 2);  // not for less than was paid
  idle();
  CHECK(runs(r) < before);
  CHECK(stat_of(x, "failed") == 0);
  for (uint32_t k = 0; k < KEYS; k += 7) write_key(r, k, k % 3 == 0);
  check_all(r, now);
  check_all(old, then);
  check_rest(open_at, 0, then);
  OK(xdb_iter_seek(open_on, kref("", 0)));
  check_rest(open_on, 0, then);
  // it is enough now
  const uint64_t merged = stat_of(x, "scan_merges");
  for (uint32_t i = 0; i < scans / 2; i++) scan(it, &rng);
  idle();
  CHECK(stat_of(x, "scan_merges") == merged);
  xdb_iter_destroy(it);
  xdb_iter_destroy(open_on);
  xdb_iter_destroy(open_at);
  xdb_unref(old);
  xdb_snapshot_release(snap);
  reopen(r);
}

// Partitions that are merged together for scans leave them a processor, but one is merged at a time in any case.
static void test_scans_keep_a_processor(void **state) {
  (void)state;
  const uint32_t processors = thread_cores(NULL, 0);
  for (int workers = 0; workers <= 3; workers++) {
    struct xdb_ref *r = load(workers, SMALL);
    const uint32_t parts = x->compact.scan_merge_parts;
    CHECK(parts == 1 || (parts > 0 && parts <= (uint32_t)workers && parts < processors));
    CHECK(parts >= (uint32_t)workers || parts + 1 >= processors);
    reopen(r);
    setup_again();
  }
}

// Without workers a call's effect does not depend on the content of the cache.
static void test_no_workers(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct xdb_ref *r = load(0, LARGE);
  struct xdb_iter *it;
  const uint32_t before = runs(r);
  OK(xdb_iter_create(r, &it));
  for (uint32_t i = 0; i < 2000; i++) scan(it, &rng);
  xdb_iter_destroy(it);
  epoch_enter(&x->epoch, &r->slot);
  CHECK(compact_scan_debt_paid(xdb_super(x)->version->parts[0]->remix));  // there would be reason to
  epoch_exit(&r->slot);
  OK(xdb_flush(x));
  CHECK(runs(r) == before && stat_of(x, "scan_merges") == 0);
  reopen(r);
}

// Until a memtable is frozen.
static void freeze(struct xdb_ref *r) {
  const uint64_t nr = frozen();
  for (uint32_t i = 0; frozen() == nr; i++) write_key(r, i * 3 % KEYS, i % 5 == 0);
}

static void copy_file(const char *from_dir, const char *name, const char *to_dir) {
  char path[700];
  static uint8_t buf[1 << 16];
  (void)snprintf(path, sizeof(path), "%s/%s", from_dir, name);
  FILE *const in = fopen(path, "rb");
  (void)snprintf(path, sizeof(path), "%s/%s", to_dir, name);
  FILE *const out = fopen(path, "wb");
  CHECK(in && out);
  for (size_t n; (n = fread(buf, 1, sizeof(buf), in)) > 0;) CHECK(fwrite(buf, 1, n, out) == n);
  CHECK(fclose(in) == 0 && fclose(out) == 0);
}

// As if the process died now: what its files say is what is found. Everything is synced.
static void check_copy(struct xdb_ref *r) {
  char copy[600];
  struct files_entry *list;
  size_t nr;
  OK(xdb_sync(r));
  idle_destroy_wait(x);  // nothing is removed while it is copied
  (void)snprintf(copy, sizeof(copy), "%s/copy", dir);
  CHECK(mkdir(copy, 0700) == 0);
  OK(paths_files(env_posix(), dir, &list, &nr));
  for (size_t i = 0; i < nr; i++) copy_file(dir, list[i].name, copy);
  mem_free(list);
  struct remixdb_opts o = small_opts(0);
  o.read_only = true;
  struct xdb *other;
  struct xdb_ref *other_r;
  OK(xdb_open(copy, &o, quick_env(), &other));
  OK(xdb_ref(other, &other_r));
  check_all(other_r, now);
  xdb_unref(other_r);
  OK(xdb_close(other));
  CHECK(remove_tree(copy) == 0);
}

// A memtable is frozen while the round is at work, while it has written all that it does not give up any more, or
// between that and its installation.
static void frozen_meanwhile(enum gate at) {
  struct xdb_ref *r = load(1, SMALL), *snap_r;
  struct xdb_snapshot *snap;
  uint32_t then[KEYS];
  const uint32_t before = runs(r);
  const uint64_t rounds = frozen();
  allow(rounds);
  hold(at);
  wear(r);
  wait_held_at(at);
  for (uint32_t k = 1; k < 200; k += 2) write_key(r, k, k % 3 == 0);
  check_all(r, now);
  freeze(r);
  check_all(r, now);
  CHECK(frozen() == rounds + 1);
  OK(xdb_snapshot(r, &snap));
  OK(xdb_snapshot_ref(snap, &snap_r));
  memcpy(then, now, sizeof(then));
  hold(GATE_NONE);
  wait_held(rounds + 1);  // the memtable's round goes on
  const bool merged = at != GATE_TABLE;
  CHECK(stat_of(x, "scan_merges") == merged && stat_of(x, "failed") == 0);
  CHECK(merged ? runs(r) < before : runs(r) == before);
  epoch_enter(&x->epoch, &r->slot);
  CHECK(xdb_super(x)->frozen != NULL);
  epoch_exit(&r->slot);
  check_all(r, now);
  check_copy(r);
  for (uint32_t k = 0; k < 300; k += 2) write_key(r, k, k % 4 == 0);
  check_all(r, now);
  allow(UINT64_MAX);
  idle();
  check_all(r, now);
  check_all(snap_r, then);
  CHECK(stat_of(x, "scan_merges") == merged);
  xdb_unref(snap_r);
  xdb_snapshot_release(snap);
  check_copy(r);
  reopen(r);
}

static void test_frozen_at_work(void **state) {
  (void)state;
  frozen_meanwhile(GATE_TABLE);
}

static void test_frozen_when_done(void **state) {
  (void)state;
  frozen_meanwhile(GATE_REMIX);
}

static void test_frozen_before_it_is_installed(void **state) {
  (void)state;
  frozen_meanwhile(GATE_CURRENT);
}

// A flush does not wait for a round that has begun.
static void test_flush_meanwhile(void **state) {
  (void)state;
  struct xdb_ref *r = load(1, SMALL);
  const uint64_t rounds = frozen();
  allow(rounds);
  hold(GATE_CURRENT);
  wear(r);
  wait_held_at(GATE_CURRENT);
  freeze(r);
  hold(GATE_NONE);
  allow(UINT64_MAX);
  OK(xdb_flush(x));
  OK(xdb_compact(x));
  check_all(r, now);
  CHECK(stat_of(x, "scan_merges") == 1);
  reopen(r);
}

// A memtable that is frozen before such a round begins goes first.
static void test_frozen_first(void **state) {
  (void)state;
  struct xdb_ref *r = load(1, SMALL);
  const uint64_t rounds = frozen();
  allow(rounds + 1);
  atomic_store(&at_end, false);
  atomic_store(&hold_end, rounds + 1);
  freeze(r);
  while (!atomic_load(&at_end)) time_sleep_ns(100000);
  wear(r);
  freeze(r);
  atomic_store(&hold_end, 0);
  wait_held(rounds + 2);
  CHECK(stat_of(x, "scan_merges") == 0);
  allow(UINT64_MAX);
  idle();
  check_all(r, now);
  reopen(r);
}

// Readers of all kinds, while one view after another is replaced.
static _Atomic bool readers_stop;

static void *read_on(void *arg) {
  uint64_t rng = (uintptr_t)arg;
  struct xdb_ref *r;
  struct xdb_iter *it;
  uint8_t kbuf[8], val[LARGE], want[LARGE];
  THREAD_CHECK(xdb_ref(x, &r) == REMIXDB_OK);
  THREAD_CHECK(xdb_iter_create(r, &it) == REMIXDB_OK);
  while (!atomic_load(&readers_stop)) {
    const uint32_t key = (uint32_t)below(&rng, KEYS);
    uint32_t len;
    const enum remixdb_status s = xdb_get(r, key_of(key, kbuf), val, sizeof(val), &len);
    THREAD_CHECK(s == REMIXDB_OK || s == REMIXDB_NOTFOUND);
    if (s == REMIXDB_OK) {
      value_of(key, load32le(val + 4), want);
      THREAD_CHECK(len == value_len && memcmp(val, want, len) == 0);
    }
    THREAD_CHECK(xdb_iter_seek(it, key_of(key, kbuf)) == REMIXDB_OK);
    for (uint32_t i = 0; i < 30 && xdb_iter_valid(it); i++) {
      struct kv_rec rec;
      THREAD_CHECK(xdb_iter_record(it, &rec) == REMIXDB_OK);
      value_of(load32le(rec.val), load32le((const uint8_t *)rec.val + 4), want);
      THREAD_CHECK(kv_eq(key_of(load32le(rec.val), kbuf), kref(rec.key, rec.klen)) && rec.vlen == value_len &&
                   memcmp(rec.val, want, value_len) == 0);
      THREAD_CHECK(xdb_iter_skip(it, 1) == REMIXDB_OK);
    }
  }
  xdb_iter_destroy(it);
  xdb_unref(r);
  return NULL;
}

static void test_readers(void **state) {
  (void)state;
  struct xdb_ref *r = load(1, SMALL);
  pthread_t readers[2];
  atomic_store(&readers_stop, false);
  for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&readers[i], NULL, read_on, (void *)(i + 1)) == 0);
  for (uint32_t n = 0; n < 20; n++) {
    wear(r);
    for (uint32_t k = n; k < KEYS; k += 9) write_key(r, k, k % 5 == 0);
    if (n % 3 == 0) OK(xdb_flush(x));
    if (n % 2) idle();
  }
  idle();
  atomic_store(&readers_stop, true);
  for (uint32_t i = 0; i < 2; i++) CHECK(pthread_join(readers[i], NULL) == 0);
  CHECK(stat_of(x, "scan_merges") > 2);
  check_all(r, now);
  reopen(r);
}

// Memory that a reader has found stays until the reader leaves its epoch.
static void test_reader_inside(void **state) {
  (void)state;
  struct xdb_ref *r = load(1, SMALL);
  char path[ENV_PATH_MAX];
  hold(GATE_CURRENT);
  wear(r);
  wait_held_at(GATE_CURRENT);
  epoch_enter(&x->epoch, &r->slot);
  const struct super *const found = xdb_super(x);
  (void)snprintf(path, sizeof(path), "%s", found->version->parts[0]->remix->runs[0]->path);
  hold(GATE_NONE);
  while (xdb_super(x) == found) time_sleep_ns(100000);
  time_sleep_ns(20000000);  // for it to be dropped too early
  CHECK(access(path, F_OK) == 0);
  CHECK(runs_of(found->version) >= LEVELS);
  epoch_exit(&r->slot);
  idle();
  CHECK(access(path, F_OK) != 0);
  check_all(r, now);
  reopen(r);
}

static void *close_it(void *arg) {
  (void)arg;
  end();
  return NULL;
}

// It gives up what it is not about to install.
static void test_close_meanwhile(void **state) {
  (void)state;
  for (enum gate at = GATE_TABLE; at <= GATE_CURRENT; at++) {
    struct xdb_ref *r = load(1, SMALL);
    const uint32_t before = runs(r);
    for (uint32_t k = 1; k < 200; k += 2) write_key(r, k, k % 3 == 0);
    hold(at);
    wear(r);
    wait_held_at(at);
    xdb_unref(r);
    pthread_t closer;
    x->leave_log = true;
    CHECK(pthread_create(&closer, NULL, close_it, NULL) == 0);
    for (bool ending = false; !ending; time_sleep_ns(100000)) {  // it cannot go before the gate is open
      pthread_mutex_lock(&x->lock);
      ending = x->scan_merges.ending;
      pthread_mutex_unlock(&x->lock);
    }
    hold(GATE_NONE);
    CHECK(pthread_join(closer, NULL) == 0);
    struct files_entry *list;
    size_t nr;
    OK(paths_files(env_posix(), dir, &list, &nr));
    begin_with(1, ROOM, PAGES);
    OK(xdb_ref(x, &r));
    check_files(list, nr);
    mem_free(list);
    CHECK(at == GATE_TABLE ? runs(r) == before : runs(r) < before);
    check_all(r, now);
    reopen(r);
    setup_again();
  }
}

// A failing scan merge fails no call, unless it is unknown which CURRENT there is.
static void test_round_fails(void **state) {
  (void)state;
  static const enum gate gates[] = {GATE_TABLE, GATE_REMIX, GATE_CURRENT, GATE_CURRENT};
  for (uint32_t n = 0; n < 4; n++) {
    const bool unknown = n == 3;
    struct xdb_ref *r = load(1, SMALL);
    const uint32_t before = runs(r);
    atomic_store(&fail_with, unknown ? EIO : ENOSPC);
    atomic_store(&fail_at, gates[n]);
    wear(r);
    idle();
    CHECK(runs(r) == before && stat_of(x, "failed") == (gates[n] != GATE_CURRENT));
    check_all(r, now);
    atomic_store(&fail_at, GATE_NONE);
    if (unknown) {
      CHECK(xdb_put(r, kref("k", 1), "v", 1, false) == REMIXDB_IO);
      wear(r);
      time_sleep_ns(20000000);  // for a round to begin that should not
      CHECK(runs(r) == before);
      check_all(r, now);
      xdb_unref(r);
      CHECK(xdb_close(x) == REMIXDB_IO);
      begin_with(1, ROOM, PAGES);
      OK(xdb_ref(x, &r));
      check_all(r, now);
    } else {
      write_key(r, 5, false);
      CHECK(stat_of(x, "scan_merges") == (gates[n] == GATE_CURRENT));  // it was merged, but not installed
    }
    // there has to be as much reason again, and then it is done
    wear(r);
    idle();
    CHECK(runs(r) < before && stat_of(x, "scan_merges") == 1 + (n == 2));
    check_all(r, now);
    reopen(r);
    setup_again();
  }
}

// No descriptor is to be had, for one of the files that a flush makes, or for a directory that it syncs: that passes,
// and the store takes writes all the while.
static void test_no_descriptor(void **state) {
  (void)state;
  uint32_t failed = 0;
  bool hit = true;
  for (uint64_t skip = 0; hit; skip++) {
    struct simdisk *disk = simdisk_create();
    struct remixdb_opts o = small_opts(0);
    struct xdb_ref *r;
    char key[16];
    CHECK(disk);
    OK(xdb_open("/store", &o, simdisk_env(disk), &x));
    OK(xdb_ref(x, &r));
    for (uint32_t i = 0; i < 300; i++) {
      if (i % 100 == 99) OK(xdb_flush(x));
      OK(xdb_put(r, kref(key, (uint32_t)snprintf(key, sizeof(key), "%u", i)), "v", 1, false));
    }
    const uint64_t before = simdisk_calls(disk, SIMDISK_OPEN);
    simdisk_fault(disk, SIMDISK_OPEN, skip, 1, skip % 2 ? ENFILE : EMFILE);
    const enum remixdb_status s = xdb_flush(x);
    hit = simdisk_calls(disk, SIMDISK_OPEN) - before > skip;
    if (s != REMIXDB_OK) {
      CHECK(s == REMIXDB_NOMEM && strstr(err_msg(), "open files"));
      failed++;
    }
    simdisk_fault(disk, SIMDISK_OPEN, 0, 0, 0);
    OK(xdb_put(r, kref("more", 4), "v", 1, false));
    pthread_mutex_lock(&x->lock);
    x->rounds.failed_ns = 0;  // it may be tried again at once
    pthread_mutex_unlock(&x->lock);
    OK(xdb_flush(x));
    OK(xdb_put(r, kref("last", 4), "v", 1, false));
    xdb_unref(r);
    OK(xdb_close(x));
    OK(xdb_open("/store", &o, simdisk_env(disk), &x));
    OK(xdb_ref(x, &r));
    for (uint32_t i = 0; i < 300; i++)
      OK(xdb_get(r, kref(key, (uint32_t)snprintf(key, sizeof(key), "%u", i)), NULL, 0, NULL));
    OK(xdb_get(r, kref("more", 4), NULL, 0, NULL));
    OK(xdb_get(r, kref("last", 4), NULL, 0, NULL));
    xdb_unref(r);
    OK(xdb_close(x));
    x = NULL;
    simdisk_destroy(disk);
  }
  CHECK(failed >= 3);
}

// A version that cannot be installed takes its files with it; that these cannot be removed either is not what is told.
static void test_reason(void **state) {
  (void)state;
  struct simdisk *disk = simdisk_create();
  const struct remixdb_opts o = small_opts(0);
  struct xdb_ref *r;
  CHECK(disk);
  OK(xdb_open("/store", &o, simdisk_env(disk), &x));
  OK(xdb_ref(x, &r));
  OK(xdb_put(r, kref("k", 1), "v", 1, false));
  simdisk_fault(disk, SIMDISK_RENAME, 0, 1, ENOSPC);
  simdisk_fault(disk, SIMDISK_UNLINK, 0, UINT64_MAX, EIO);
  CHECK(xdb_flush(x) == REMIXDB_NOSPACE && strstr(err_msg(), "rename"));
  simdisk_fault(disk, SIMDISK_UNLINK, 0, 0, 0);
  xdb_unref(r);
  OK(xdb_close(x));
  x = NULL;
  simdisk_destroy(disk);
}

static uint32_t tried_again;

// As a worker may do before anybody has seen that the round failed.
static void try_again(void *arg, const char *line) {
  (void)arg;
  if (!strstr(line, "will be tried again")) return;
  tried_again++;
  workers_kick(x->workers);
}

// A compaction that could not be installed is not done, even where another round has brought the memtable into tables.
static void test_compact_not_installed(void **state) {
  (void)state;
  struct simdisk *disk = simdisk_create();
  struct remixdb_opts o = small_opts(0);
  struct xdb_ref *r;
  char key[16];
  o.logger = try_again;
  tried_again = 0;
  CHECK(disk);
  OK(xdb_open("/store", &o, simdisk_env(disk), &x));
  OK(xdb_ref(x, &r));
  for (uint32_t i = 0; i < 300; i++) {
    if (i % 100 == 99) OK(xdb_flush(x));
    OK(xdb_put(r, kref(key, (uint32_t)snprintf(key, sizeof(key), "%u", i % 150)), "v", 1, false));
  }
  CHECK(runs(r) > 1);
  simdisk_fault(disk, SIMDISK_RENAME, 0, 2, ENOSPC);  // the first is tried again at once, by the same round
  OK(xdb_compact(x));
  CHECK(tried_again == 1);
  CHECK(runs(r) == 1);
  for (uint32_t i = 0; i < 150; i++)
    OK(xdb_get(r, kref(key, (uint32_t)snprintf(key, sizeof(key), "%u", i)), NULL, 0, NULL));
  xdb_unref(r);
  OK(xdb_close(x));
  x = NULL;
  simdisk_destroy(disk);
}

// The work that a nearly full memtable is about to need comes first; then the work that was asked for.
static void test_nearly_full(void **state) {
  (void)state;
  struct xdb_ref *r = load(1, SMALL);
  const uint32_t before = runs(r);
  write_key(r, 1, false);
  const size_t used = wh_memory(xdb_super(x)->active->wh);
  limit(used + used / 4);
  wear(r);
  time_sleep_ns(20000000);  // for a round to begin that should not
  CHECK(runs(r) == before && stat_of(x, "scan_merges") == 0);
  limit(ROOM);
  OK(xdb_wait_room(x, XDB_FREEZE_ANY, 0));
  idle();
  CHECK(stat_of(x, "abort") == 1);  // so that the partition is the one that scans have paid for
  CHECK(stat_of(x, "scan_merges") == 1 && runs(r) < before);
  check_all(r, now);
  reopen(r);
}

// A memtable that is four fifths full, and a partition that scans have paid for, which has *runs_out runs.
static struct xdb_ref *load_nearly_full(uint32_t *runs_out) {
  struct xdb_ref *r = load(1, SMALL);
  *runs_out = runs(r);
  for (uint32_t i = 0; i < 100; i++) write_key(r, i, false);
  const size_t used = wh_memory(xdb_super(x)->active->wh);
  limit(used + used / 4);
  wear(r);
  return r;
}

// Then it has grown by about a tenth, and is asked for again.
static void grow_and_wear(struct xdb_ref *r) {
  const size_t used = wh_memory(xdb_super(x)->active->wh);
  for (uint32_t i = 0; wh_memory(xdb_super(x)->active->wh) < used + used / 8; i++) write_key(r, i % 100, false);
  wear(r);
}

// It is not made while a nearly full memtable grows so fast that it would soon be given up; it is when that is over,
// and it is asked for again.
static void test_nearly_full_for_long(void **state) {
  (void)state;
  uint32_t before;
  struct xdb_ref *r = load_nearly_full(&before);
  time_sleep_ns(150000000);
  grow_and_wear(r);
  time_sleep_ns(20000000);  // for a round to begin that should not
  CHECK(runs(r) == before && stat_of(x, "scan_merges") == 0);
  while (runs(r) == before) {  // or for ever: the alarm
    wear(r);
    time_sleep_ns(50000000);
  }
  idle();
  CHECK(stat_of(x, "scan_merges") == 1);
  check_all(r, now);
  reopen(r);
}

// As if the memtable had been looked at long ago.
static void look_long_ago(void) {
  pthread_mutex_lock(&x->lock);
  if (x->scan_merges.looked_ns) x->scan_merges.looked_ns -= 3000000000ull;
  atomic_store(&x->scan_merges.again_ns, 0);
  pthread_mutex_unlock(&x->lock);
}

// Asks every few seconds, as it seems, until the merge is made; the memtable seems to have grown by so many bytes each
// time.
static void ask_until_merged(struct xdb_ref *r, uint32_t before, size_t growth) {
  while (runs(r) == before) {  // or for ever: the alarm
    look_long_ago();
    pthread_mutex_lock(&x->lock);
    if (x->scan_merges.used) x->scan_merges.used = wh_memory(xdb_super(x)->active->wh) - growth;
    pthread_mutex_unlock(&x->lock);
    wear(r);
    time_sleep_ns(20000000);
  }
  idle();
  CHECK(stat_of(x, "scan_merges") == 1);
  check_all(r, now);
  reopen(r);
}

// It is made, too, when it is asked for every few seconds only: not when the memtable has grown much in that time,
// which may have been just now.
static void test_nearly_full_seldom(void **state) {
  (void)state;
  uint32_t before;
  struct xdb_ref *r = load_nearly_full(&before);
  time_sleep_ns(20000000);  // for a round to begin that should not
  look_long_ago();
  grow_and_wear(r);
  time_sleep_ns(20000000);
  CHECK(runs(r) == before && stat_of(x, "scan_merges") == 0);
  ask_until_merged(r, before, 0);
}

// It is made, too, while a memtable that is full, but is not written, grows a little with each look: readers put its
// leaves in order.
static void test_full_and_read(void **state) {
  (void)state;
  uint32_t before;
  struct xdb_ref *r = load_nearly_full(&before);
  limit(wh_memory(xdb_super(x)->active->wh) - 1);
  ask_until_merged(r, before, 8);
}

// Readers of what is no more the store's do not keep workers busy: a round can do nothing for them.
static void test_obsolete(void **state) {
  (void)state;
  struct xdb_ref *r = load(1, SMALL);
  epoch_enter(&x->epoch, &r->slot);
  struct super *old = xdb_super(x);
  super_ref(old);
  epoch_exit(&r->slot);
  struct remix *const obsolete = old->version->parts[0]->remix;
  wear(r);
  idle();
  CHECK(runs(r) == 1);
  write_key(r, 1, false);
  OK(xdb_flush(x));
  idle();
  scan_merge_stop(x);  // what is asked for now stays to be seen
  remix_add_debt(obsolete, UINT32_MAX);
  CHECK(compact_scan_debt_paid(obsolete));
  CHECK(!atomic_load(&x->scan_merges.due));
  wear(r);
  time_sleep_ns(20000000);  // for a round to begin that should not
  CHECK(atomic_load(&x->scan_merges.due));
  CHECK(stat_of(x, "scan_merges") == 1);
  super_unref(old);
  reopen(r);
}

// Round `rounds` + 1 ends while the next memtable is frozen already, and the round of that is held up.
static void freeze_behind(struct xdb_ref *r, uint64_t rounds) {
  allow(rounds + 1);
  while (!atomic_load(&at_end)) time_sleep_ns(100000);
  freeze(r);
  atomic_store(&hold_end, 0);
  wait_held(rounds + 2);
}

enum keeper { BY_SEEK, BY_END, BY_DESTROY, BY_SNAPSHOT, BY_VERIFY, KEEPERS };

// A reader is the last user of a version's files, but does not wait for their removal: workers remove them, or the next
// round's end does. Without workers they go at once.
static void test_readers_remove_nothing(void **state) {
  (void)state;
  for (enum keeper by = 0; by < KEEPERS; by++) {
    for (int workers = 0; workers < 2; workers++) {
      struct xdb_ref *r = load(workers, SMALL);
      struct xdb_iter *it = NULL;
      struct xdb_snapshot *snap = NULL;
      struct super *kept = NULL;
      struct files_entry *list;
      size_t nr;
      uint64_t moment;
      if (by == BY_SNAPSHOT) {
        OK(xdb_snapshot(r, &snap));
      } else if (by == BY_VERIFY) {
        kept = xdb_ref_hold(r, &moment);
      } else {
        OK(xdb_iter_create(r, &it));
        OK(by == BY_END ? xdb_iter_seek_last(it) : xdb_iter_seek(it, kref("", 0)));
      }
      OK(xdb_compact(x));
      idle();
      OK(paths_files(env_posix(), dir, &list, &nr));
      mem_free(list);
      const size_t before = nr;
      atomic_store(&removed, 0);
      atomic_store(&hold_remover, workers != 0);
      switch (by) {
        case BY_SEEK:
          OK(xdb_iter_seek(it, kref("", 0)));
          check_rest(it, 0, now);
          break;
        case BY_END:
          OK(xdb_iter_skip(it, 1));
          CHECK(!xdb_iter_valid(it));
          break;
        case BY_DESTROY:
          xdb_iter_destroy(it);
          it = NULL;
          break;
        case BY_SNAPSHOT: xdb_snapshot_release(snap); break;
        default: xdb_super_drop(x, kept); break;
      }
      if (workers) {  // it has come back from there: who removes them is held up
        while (atomic_load(&removed) == 0) time_sleep_ns(100000);
        CHECK(!i_removed());
        check_all(r, now);
        atomic_store(&hold_remover, false);
      } else {
        CHECK(atomic_load(&removed) >= LEVELS && i_removed());
      }
      idle();
      CHECK(atomic_load(&removed) >= LEVELS && atomic_load(&x->idle.nr_left) == 0);
      OK(paths_files(env_posix(), dir, &list, &nr));
      mem_free(list);
      CHECK(nr + LEVELS <= before);
      xdb_iter_destroy(it);
      reopen(r);
      setup_again();
    }
  }
}

// Where no worker is idle the end of a round removes them; and where the store is closed before, that does.
static void test_removed_in_the_end(void **state) {
  (void)state;
  for (uint32_t closing = 0; closing < 2; closing++) {
    struct xdb_ref *r = load(1, SMALL);
    struct xdb_iter *it;
    OK(xdb_iter_create(r, &it));
    OK(xdb_iter_seek(it, kref("", 0)));
    OK(xdb_compact(x));
    idle();
    const uint64_t rounds = frozen();
    allow(rounds);
    freeze(r);
    wait_held(rounds + 1);  // the one worker is at it
    atomic_store(&removed, 0);
    atomic_store(&hold_end, closing ? 0 : rounds + 1);
    atomic_store(&at_end, false);
    xdb_iter_destroy(it);
    CHECK(atomic_load(&removed) == 0 && atomic_load(&x->idle.nr_left) == 1);
    check_all(r, now);
    if (closing) {
      allow(UINT64_MAX);
    } else {
      freeze_behind(r, rounds);
      CHECK(atomic_load(&removed) >= LEVELS &&
            atomic_load(&x->idle.nr_left) == 0);  // while the second round is held up
      allow(UINT64_MAX);
      idle();
    }
    reopen(r);
    setup_again();
  }
}

int main(void) {
  check_seed = check_seed_or(1);
  alarm(100);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_room_is_there, setup, teardown),
      cmocka_unit_test_setup_teardown(test_one_round_for_all, setup, teardown),
      cmocka_unit_test_setup_teardown(test_flush_is_next, setup, teardown),
      cmocka_unit_test_setup_teardown(test_scans_merge, setup, teardown),
      cmocka_unit_test_setup_teardown(test_scans_keep_a_processor, setup, teardown),
      cmocka_unit_test_setup_teardown(test_no_workers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_frozen_at_work, setup, teardown),
      cmocka_unit_test_setup_teardown(test_frozen_when_done, setup, teardown),
      cmocka_unit_test_setup_teardown(test_frozen_before_it_is_installed, setup, teardown),
      cmocka_unit_test_setup_teardown(test_flush_meanwhile, setup, teardown),
      cmocka_unit_test_setup_teardown(test_frozen_first, setup, teardown),
      cmocka_unit_test_setup_teardown(test_readers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_reader_inside, setup, teardown),
      cmocka_unit_test_setup_teardown(test_close_meanwhile, setup, teardown),
      cmocka_unit_test_setup_teardown(test_round_fails, setup, teardown),
      cmocka_unit_test_setup_teardown(test_no_descriptor, setup, teardown),
      cmocka_unit_test_setup_teardown(test_reason, setup, teardown),
      cmocka_unit_test_setup_teardown(test_compact_not_installed, setup, teardown),
      cmocka_unit_test_setup_teardown(test_nearly_full, setup, teardown),
      cmocka_unit_test_setup_teardown(test_nearly_full_for_long, setup, teardown),
      cmocka_unit_test_setup_teardown(test_nearly_full_seldom, setup, teardown),
      cmocka_unit_test_setup_teardown(test_full_and_read, setup, teardown),
      cmocka_unit_test_setup_teardown(test_obsolete, setup, teardown),
      cmocka_unit_test_setup_teardown(test_readers_remove_nothing, setup, teardown),
      cmocka_unit_test_setup_teardown(test_removed_in_the_end, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
