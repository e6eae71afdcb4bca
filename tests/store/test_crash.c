// SPDX-License-Identifier: Apache-2.0
//
// The whole store, one thread and no workers, on a disk that loses power, fails and fills up, and with memory that runs
// out.
//
// After every power cut: what the last successful sync covered is there; what is there is what the first so many writes
// made, a batch being one write; no crash is taken for damage; no file is left that the version does not name; and the
// store goes on from there, also when the power goes again during the recovery. After every failed call: a status and a
// message, no loss, and the store goes on.
//
// CRASH_SEED in the environment repeats what a failure printed; CRASH_SEEDS runs so many seeds in each test. CRASH_NTH
// repeats the life with one failing call that was printed; CRASH_NTH=all runs them all.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <dirent.h>
#include <errno.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "admin/checkpoint.h"
#include "admin/destroy.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/slow.h"
#include "admin/verify.h"
#include "xdb.h"
#include "store/flush.h"
#include "store/page.h"
#include "store/syncer.h"

#define DIR_NAME "/store"
#define KEYS_MAX 512u
#define VALUE_MIN 16u
#define VALUE_MAX 24000u
#define HANG_S 250  // seconds for one seed; far more than any takes, also on a machine that has little time for it

static uint64_t nr_cuts, nr_calls, nr_recoveries, nr_torn_openings, nr_faults, nr_hit;
static uint64_t kinds[COMPACT_KINDS], scan_merges, young;

static void on_hang(int sig) {
  (void)sig;
  char line[384];
  struct timespec cpu = {0};
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID,
                      &cpu);  // of all seeds: one that did not get on for want of it can be told from one that waits
  const int n = snprintf(line, sizeof(line), "CRASH_SEED=%llu, %s: hangs (%lld s of processor time)\n",
                         (unsigned long long)check_seed, check_what, (long long)cpu.tv_sec);
  if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0) _exit(2);
  _exit(1);
}

static uint64_t below(uint64_t *rng, uint64_t n) { return rng_next(rng) % n; }
static bool chance(uint64_t *rng, uint32_t percent) { return rng_next(rng) % 100 < percent; }

// ---- what was written

struct op {
  uint64_t id;  // of the write, never used again; the value follows from it
  uint32_t key;
  uint32_t vlen;
  bool del;
  bool more;  // the next one is of the same batch
};

struct model {
  struct op *ops;
  size_t nr, cap;
  size_t synced;  // so many of them must survive
  uint64_t next_id;
  uint64_t now[KEYS_MAX];  // id of the write that each key has its value from; 0: none
  uint32_t nr_keys;
};

static void model_fini(struct model *m) { free(m->ops); }

// Adds an operation of a write that begins: from here on the store may hold it.
static void model_add(struct model *m, const struct op *op) {
  if (m->nr == m->cap) {
    m->cap = m->cap ? m->cap * 2 : 256;
    m->ops = realloc(m->ops, m->cap * sizeof(*m->ops));
    assert_non_null(m->ops);
  }
  m->ops[m->nr++] = *op;
}

static const struct op *model_op(const struct model *m, uint64_t id) {
  size_t lo = 0, hi = m->nr;
  while (lo < hi) {
    const size_t mid = (lo + hi) / 2;
    if (m->ops[mid].id < id) lo = mid + 1;
    else hi = mid;
  }
  return lo < m->nr && m->ops[lo].id == id ? &m->ops[lo] : NULL;
}

// Keys ascend with their number. Some are longer than the eight bytes that the indexes compare first.
static struct kref key_of(uint32_t i, uint8_t buf[32]) {
  if (i == 0) return kref("", 0);
  for (uint32_t at = 5, left = i; at-- > 0; left /= 10) buf[at] = (uint8_t)('0' + left % 10);
  if (i % 3) return kref(buf, 5);
  memcpy(buf + 5, "-a-longer-key", 13);
  return kref(buf, 18);
}

static void value_of(const struct op *op, uint8_t *buf) {
  store64le(buf, op->id);
  store32le(buf + 8, op->key);
  store32le(buf + 12, op->vlen);
  // half of it is compressible
  uint64_t r = op->id;
  uint32_t at = VALUE_MIN;
  for (; at + 16 <= op->vlen; at += 16) {
    store64le(buf + at, rng_next(&r));
    memset(buf + at + 8, 'x', 8);
  }
  for (; at < op->vlen; at++) buf[at] = (uint8_t)(rng_next(&r) >> 32);
}

// ---- how a run is set up

struct plan {
  uint32_t nr_keys, vlen_max;
  size_t memtable_limit;  // under the least that the options allow, so that little data makes many rounds
  uint32_t table_pages;
  uint32_t young_from;                      // of struct compact
  uint32_t flush, sync, reopen, del, wear;  // in 1000 steps
  uint32_t focus;                           // percent of writes that go to few keys
  bool no_allocate, short_io;
  struct remixdb_opts opts;
};

static void make_plan(struct plan *p, uint64_t *rng) {
  memset(p, 0, sizeof(*p));
  p->nr_keys = 20 + (uint32_t)below(rng, KEYS_MAX - 20);
  static const uint32_t lens[] = {100, 600, 600, 2500, 9000, VALUE_MAX};
  p->vlen_max = lens[below(rng, sizeof(lens) / sizeof(lens[0]))];
  p->memtable_limit = (size_t)(70 + below(rng, 60)) << 10;
  p->table_pages = 4 + (uint32_t)below(rng, 24);
  p->flush = (uint32_t)below(rng, 25);
  p->sync = (uint32_t)below(rng, 60);
  p->reopen = (uint32_t)below(rng, 12);
  p->del = (uint32_t)below(rng, 250);
  p->focus = (uint32_t)below(rng, 100);
  p->no_allocate = chance(rng, 85);
  p->short_io = chance(rng, 25);
  remixdb_opts_init(&p->opts, sizeof(p->opts));
  p->opts.workers = 0;
  p->opts.memtable_mb = 1;
  p->opts.cache_mb = chance(rng, 50);
  p->opts.ckeys = chance(rng, 50);
  p->opts.tags = chance(rng, 50);
  p->opts.compression = chance(rng, 25) ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  p->opts.max_open_files = chance(rng, 30) ? 16 : 0;
  p->opts.direct_io = chance(rng, 10);
  if (chance(rng, 10)) p->opts.sync = REMIXDB_SYNC_EACH;
}

struct run {
  struct plan plan;
  struct model model;
  struct simdisk *disk;
  struct xdb *x;
  struct xdb_ref *ref;
  uint64_t rng;
  uint64_t wear_rng;    // of its own: what a seed does besides stays what it was
  uint32_t front;       // keys that come one after the other
  bool faulty;          // calls may fail
  bool no_memory;       // and only for this
  bool may_nospace;     // the disk is full, or says so
  bool may_nomem;       // descriptors may be refused
  uint32_t look_apart;  // of the keys that are looked up after an opening, beside the iterator that reads them all: so
                        // many are left out after each
  uint8_t value[VALUE_MAX], got[VALUE_MAX];
};

static struct run *run_create(uint64_t s) {
  struct run *r = calloc(1, sizeof(*r));
  assert_non_null(r);
  check_seed = s;
  (void)snprintf(check_what, sizeof(check_what), "at the start");
  (void)alarm(HANG_S);
  r->rng = s * 0x9E3779B97F4A7C15ull + 1;
  make_plan(&r->plan, &r->rng);
  r->wear_rng = s;
  r->plan.wear = (uint32_t)below(&r->wear_rng, 7);
  static const uint8_t from[] = {0, 1, 2, 8, COMPACT_YOUNG_FROM};
  r->plan.young_from = from[below(&r->wear_rng, sizeof(from))];
  r->model.nr_keys = r->plan.nr_keys;
  r->model.next_id = 1;
  return r;
}

static void run_disk(struct run *r, struct simdisk *d) {
  simdisk_destroy(r->disk);
  r->disk = d;
  simdisk_no_allocate(d, r->plan.no_allocate);
  if (r->plan.short_io) simdisk_short_io(d, rng_next(&r->rng) | 1);
}

static enum remixdb_status run_close(struct run *r) {
  if (!r->x) return REMIXDB_OK;
  for (uint32_t k = 0; k < COMPACT_KINDS; k++) kinds[k] += atomic_load(&r->x->compact.stats.kinds[k]);
  scan_merges += atomic_load(&r->x->compact.stats.scan_merges);
  young += atomic_load(&r->x->compact.stats.young);
  xdb_unref(r->ref);
  r->ref = NULL;
  const enum remixdb_status s = xdb_close(r->x);
  r->x = NULL;
  CHECK(simdisk_open_files(r->disk) == 0);
  return s;
}

static bool hear(void *priv, const char *call, uint64_t done, uint64_t total) {
  (void)priv;
  CHECK(call[0] && (total == 0 || done <= total));
  return true;
}

static enum remixdb_status run_open(struct run *r) {
  r->ref = NULL;
  enum remixdb_status s = xdb_open(DIR_NAME, &r->plan.opts, simdisk_env(r->disk), &r->x);
  if (s != REMIXDB_OK) {
    CHECK(simdisk_open_files(r->disk) == 0);
    r->x = NULL;
    return s;
  }
  if (r->plan.opts.workers) {  // which is not to be at work while its orders change
    s = xdb_wait_idle(r->x);
    if (s != REMIXDB_OK) {
      struct err_saved why;
      err_save(&why, s);
      (void)run_close(r);
      return err_raise(&why);
    }
  }
  pthread_mutex_lock(&r->x->lock);  // a worker may be looking whether there is more to do
  r->x->memtable_limit = r->plan.memtable_limit;
  pthread_mutex_unlock(&r->x->lock);
  r->x->compact.memtable_size = r->plan.memtable_limit;
  r->x->compact.build.max_pages = r->plan.table_pages;
  r->x->compact.young_from = r->plan.young_from;
  s = xdb_ref(r->x, &r->ref);
  if (s != REMIXDB_OK) {
    struct err_saved why;
    err_save(&why, s);
    (void)run_close(r);
    return err_raise(&why);
  }
  r->ref->progress = (struct progress){hear, r};
  return s;
}

static void run_destroy(struct run *r) {
  (void)alarm(0);
  (void)run_close(r);
  simdisk_destroy(r->disk);
  model_fini(&r->model);
  free(r);
}

// ---- looking

// A failed call says what happened.
static void check_failure(struct run *r, enum remixdb_status s) {
  CHECK(r->faulty || simdisk_is_off(r->disk));
  CHECK(s == REMIXDB_IO || s == REMIXDB_NOSPACE || (s == REMIXDB_NOMEM && (r->no_memory || r->may_nomem)));
  CHECK(s == REMIXDB_NOMEM || !r->no_memory);
  CHECK(s != REMIXDB_NOSPACE || r->may_nospace);
  CHECK(err_msg()[0] != '\0');
}

// The value is the one that some write of this key gave it. Returns the id of the write.
static uint64_t check_value(struct run *r, uint32_t key, const uint8_t *val, uint32_t vlen) {
  CHECK(vlen >= VALUE_MIN);
  const struct op *op = model_op(&r->model, load64le(val));
  CHECK(op != NULL);  // else it was lost before and has come back
  CHECK(!op->del && op->key == key && op->vlen == vlen);
  value_of(op, r->value);
  CHECK(memcmp(r->value, val, vlen) == 0);
  return op->id;
}

// *ok_out: the store could tell.
static uint64_t look_up(struct run *r, uint32_t key, bool *ok_out) {
  uint8_t kbuf[32];
  uint32_t vlen = 0;
  const enum remixdb_status s = xdb_get(r->ref, key_of(key, kbuf), r->got, VALUE_MAX, &vlen);
  *ok_out = s == REMIXDB_OK || s == REMIXDB_NOTFOUND;
  if (!*ok_out) check_failure(r, s);
  return s == REMIXDB_OK ? check_value(r, key, r->got, vlen) : 0;
}

// All there is, through an iterator. False: the store could not tell.
static bool read_all(struct run *r, uint64_t *ids) {
  memset(ids, 0, KEYS_MAX * sizeof(*ids));
  struct xdb_iter *it;
  enum remixdb_status s = xdb_iter_create(r->ref, &it);
  if (s != REMIXDB_OK) {
    check_failure(r, s);
    return false;
  }
  uint32_t key = 0;
  s = xdb_iter_seek(it, kref("", 0));
  while (s == REMIXDB_OK && xdb_iter_valid(it)) {
    struct kv_rec rec;
    if ((s = xdb_iter_record(it, &rec)) != REMIXDB_OK) break;
    uint8_t kbuf[32];
    for (; key < r->plan.nr_keys; key++) {
      const struct kref k = key_of(key, kbuf);
      if (k.len == rec.klen && memcmp(k.ptr, rec.key, k.len) == 0) break;
    }
    CHECK(key < r->plan.nr_keys);  // else it is out of order, twice there or never written
    ids[key] = check_value(r, key, rec.val, rec.vlen);
    key++;
    s = xdb_iter_skip(it, 1);
  }
  xdb_iter_destroy(it);
  if (s != REMIXDB_OK) check_failure(r, s);
  return s == REMIXDB_OK;
}

// The store holds all accepted operations and nothing else. may_fail: reads may fail, but not lie.
static void check_content(struct run *r, bool may_fail) {
  uint64_t ids[KEYS_MAX];
  const bool all = read_all(r, ids);
  CHECK(all || may_fail);
  for (uint32_t k = 0; k < r->plan.nr_keys; k++) {
    if (all) CHECK(ids[k] == r->model.now[k]);
    bool ok;
    const uint64_t id = look_up(r, k, &ok);
    CHECK(ok || may_fail);
    if (ok) CHECK(id == r->model.now[k]);
  }
}

// The store holds what the first so many writes made, and no fewer than were synced: the others are taken out of the
// model. False: it could not be read, because something was made to fail.
static bool check_prefix(struct run *r) {
  struct model *m = &r->model;
  uint64_t ids[KEYS_MAX];
  if (!read_all(r, ids)) return false;
  uint64_t now[KEYS_MAX] = {0};
  uint32_t differ = 0;
  for (uint32_t k = 0; k < m->nr_keys; k++) differ += ids[k] != 0;
  size_t n = 0, found = SIZE_MAX, any = SIZE_MAX;
  for (;; n++) {
    const bool whole = n == 0 || !m->ops[n - 1].more;
    if (differ == 0 && whole) any = n;
    if (differ == 0 && whole && n >= m->synced && found == SIZE_MAX) found = n;
    if (n == m->nr) break;
    const struct op *op = &m->ops[n];
    differ -= now[op->key] != ids[op->key];
    now[op->key] = op->del ? 0 : op->id;
    differ += now[op->key] != ids[op->key];
  }
  if (found == SIZE_MAX)
    fail_msg("CRASH_SEED=%llu, %s: %s; %zu writes, %zu of them synced, and the store holds %s%zd",
             (unsigned long long)check_seed, check_what,
             any == SIZE_MAX ? "what is there is of no moment" : "synced writes are lost", m->nr, m->synced,
             any == SIZE_MAX ? "none of their states " : "the first ", any == SIZE_MAX ? (ssize_t)-1 : (ssize_t)any);
  m->nr = found;
  memcpy(m->now, ids, sizeof(m->now));
  m->synced = found;  // what was recovered has been made durable before anything else
  for (uint32_t k = (uint32_t)below(&r->rng, 1 + r->look_apart); k < m->nr_keys; k += 1 + r->look_apart) {
    bool ok;
    const uint64_t id = look_up(r, k, &ok);
    CHECK(ok ? id == m->now[k] : r->faulty || simdisk_is_off(r->disk));
  }
  return true;
}

struct names {
  const struct version *v;
  uint32_t nr_tables, nr_remixes, nr_logs, nr_strange;
};

static bool see_name(void *arg, const char *name) {
  struct names *n = arg;
  if (strcmp(name, "CURRENT") == 0 || strcmp(name, "LOCK") == 0) return true;
  if (strncmp(name, "wal-", 4) == 0) {
    n->nr_logs++;
    return true;
  }
  if (strcmp(name, FILES_RESERVE) == 0) return true;
  for (uint32_t i = 0; i < n->v->nr_parts; i++) {
    const struct part *const p = n->v->parts[i];
    const struct remix *const views[] = {p->remix, p->young};
    char buf[32];
    for (uint32_t k = 0; k < 2; k++) {
      if (!views[k]) continue;
      remix_name(buf, views[k]->number);
      if (strcmp(buf, name) != 0) continue;
      n->nr_remixes++;
      return true;
    }
    for (uint32_t t = 0; t < part_runs(p); t++) {
      sst_name(buf, part_run(p, t)->number);
      if (strcmp(buf, name) == 0) {
        n->nr_tables++;
        return true;
      }
    }
  }
  (void)snprintf(check_what + strlen(check_what), sizeof(check_what) - strlen(check_what), ", file %s", name);
  n->nr_strange++;
  return false;
}

// The directory holds what the version names and nothing else.
static void check_files(struct run *r, bool log_too) {
  if (r->plan.opts.workers) return;  // files go some time after the round that made them superfluous
  const struct super *v = atomic_load(&r->x->super);
  struct names n = {.v = v->version};
  uint32_t tables = 0, remixes = 0;
  for (uint32_t i = 0; i < v->version->nr_parts; i++) {
    const struct part *const p = v->version->parts[i];
    remixes += (p->remix != NULL) + (p->young != NULL);
    tables += part_runs(p);
  }
  OK(paths_list(simdisk_env(r->disk), DIR_NAME, see_name, &n));
  CHECK(n.nr_strange == 0);
  CHECK(n.nr_tables == tables && n.nr_remixes == remixes);
  // the segments that are replayed, the new one, one that is prepared and the spares
  struct wal_stats ws;
  wal_stats(r->x->wal, &ws);
  CHECK(n.nr_logs >= 1);
  if (log_too && (ws.segments > 6 || n.nr_logs > ws.segments + 4))
    fail_msg("CRASH_SEED=%llu, %s: %u log files, %llu segments", (unsigned long long)check_seed, check_what, n.nr_logs,
             (unsigned long long)ws.segments);
}

// ---- doing

// Whether the write is the newest of its key in the active memtable (for a delete: whether the newest there is one).
static bool in_memtable(struct run *r, const struct op *op) {
  uint8_t kbuf[32];
  const struct kref k = key_of(op->key, kbuf);
  epoch_enter(&r->x->epoch, &r->ref->slot);  // a worker may replace the view
  const struct super *v = atomic_load(&r->x->super);
  const struct wh_ver *ver = wh_get(v->active->wh, k, hash64(k.ptr, k.len), atomic_load(&r->x->published));
  const bool in = ver && ver->tomb == op->del && (op->del || (ver->vlen >= 8 && load64le(ver->val) == op->id));
  epoch_exit(&r->ref->slot);
  return in;
}

// Whether all of the operations of a write that failed are in the memtable; a part of them never is.
static bool all_in_memtable(struct run *r, const struct op *ops, uint32_t nr) {
  uint32_t puts = 0, puts_in = 0, dels_in = 0;
  for (uint32_t i = 0; i < nr; i++) {
    const bool in = in_memtable(r, &ops[i]);
    puts += !ops[i].del;
    puts_in += in && !ops[i].del;
    dels_in += in && ops[i].del;  // perhaps by an older one
  }
  CHECK(puts_in == 0 || (puts_in == puts && puts_in + dels_in == nr));
  return nr && puts_in + dels_in == nr;
}

// A write of nr operations, on different keys, begins: what a cut leaves from here on may have it.
static void begins(struct run *r, struct op *ops, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) {
    ops[i].more = i + 1 < nr;
    model_add(&r->model, &ops[i]);
  }
}

// It ended with s. False: it failed.
static bool written(struct run *r, const struct op *ops, uint32_t nr, enum remixdb_status s) {
  struct model *m = &r->model;
  const bool each = r->plan.opts.sync == REMIXDB_SYNC_EACH;
  // of a write that failed the sync may be what failed, and it took place all the same
  const bool there = s == REMIXDB_OK || (each && all_in_memtable(r, ops, nr));
  if (!there) m->nr -= nr;
  for (uint32_t i = 0; i < nr && there; i++) m->now[ops[i].key] = ops[i].del ? 0 : ops[i].id;
  if (s == REMIXDB_OK && each && nr) m->synced = m->nr;  // of what writes nothing no sync follows
  if (s != REMIXDB_OK) check_failure(r, s);
  return s == REMIXDB_OK;
}

static struct op make_op(struct run *r, uint32_t key, bool del) {
  const uint32_t vlen = VALUE_MIN + (uint32_t)below(&r->rng, r->plan.vlen_max - VALUE_MIN);
  return (struct op){.id = r->model.next_id++, .key = key, .vlen = del ? 0 : vlen, .del = del};
}

static bool write_key(struct run *r, uint32_t key, bool del) {
  struct op op = make_op(r, key, del);
  uint8_t kbuf[32];
  if (!del) value_of(&op, r->value);
  begins(r, &op, 1);
  return written(r, &op, 1, xdb_put(r->ref, key_of(key, kbuf), del ? NULL : r->value, op.vlen, del));
}

static uint32_t pick_key(struct run *r) {
  const uint32_t nr = r->plan.nr_keys;
  const struct model *m = &r->model;
  if (m->nr && chance(&r->rng, 15)) return m->ops[m->nr - 1 - below(&r->rng, m->nr < 4 ? m->nr : 4)].key;
  if (chance(&r->rng, r->plan.focus)) return (uint32_t)below(&r->rng, 1 + nr / 16);
  if (chance(&r->rng, 30)) return r->front = (r->front + 1) % nr;
  return (uint32_t)below(&r->rng, nr);
}

#define BATCH_MAX 40u

static bool write_batch(struct run *r) {
  struct op ops[BATCH_MAX];
  uint32_t nr = 0;
  uint8_t kbuf[32];
  struct xdb_batch *b;
  enum remixdb_status s = batch_create(&b);
  if (s != REMIXDB_OK) return written(r, NULL, 0, s);
  size_t room = r->plan.memtable_limit / 2;  // of memory: what is larger than a memtable is refused
  for (uint32_t left = 1 + (uint32_t)below(&r->rng, BATCH_MAX); left && s == REMIXDB_OK; left--) {
    const struct op op = make_op(r, pick_key(r), chance(&r->rng, 20));
    if (op.vlen + 200 > room) break;
    room -= op.vlen + 200;
    if (!op.del) value_of(&op, r->value);
    s = batch_add(b, key_of(op.key, kbuf), op.del ? NULL : r->value, op.vlen, op.del);
    if (s != REMIXDB_OK) break;
    uint32_t i = 0;  // of a key the last one counts
    while (i < nr && ops[i].key != op.key) i++;
    ops[i] = op;
    nr += i == nr;
  }
  for (uint32_t i = 1; i < nr; i++) {  // the model finds writes by their ids, which ascend
    const struct op op = ops[i];
    uint32_t at = i;
    for (; at > 0 && ops[at - 1].id > op.id; at--) ops[at] = ops[at - 1];
    ops[at] = op;
  }
  begins(r, ops, nr);
  if (s == REMIXDB_OK) s = xdb_write(r->ref, b);
  batch_destroy(b);
  return written(r, ops, nr, s);
}

struct merging {
  struct run *r;
  struct op op;
};

// The function of a merge gets the model's value.
static enum remixdb_merge_op merge_fn(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  struct merging *m = priv;
  struct run *r = m->r;
  CHECK((v0 ? check_value(r, m->op.key, v0, v0len) : 0) == r->model.now[m->op.key]);
  if (m->op.del) return REMIXDB_MERGE_DEL;
  value_of(&m->op, r->value);
  *v1 = r->value;
  *v1len = m->op.vlen;
  return REMIXDB_MERGE_PUT;
}

static bool merge_key(struct run *r, uint32_t key) {
  struct merging m = {.r = r, .op = make_op(r, key, chance(&r->rng, 20))};
  const bool nothing = m.op.del && r->model.now[key] == 0;  // to delete: then nothing is written
  uint8_t kbuf[32];
  begins(r, &m.op, !nothing);
  return written(r, &m.op, !nothing, xdb_merge(r->ref, key_of(key, kbuf), merge_fn, &m));
}

static bool do_sync(struct run *r) {
  const size_t nr = r->model.nr;
  const enum remixdb_status s = xdb_sync(r->ref);
  if (s != REMIXDB_OK) check_failure(r, s);
  else r->model.synced = nr;
  return s == REMIXDB_OK;
}

static bool do_flush(struct run *r) {
  const size_t nr = r->model.nr;
  const enum remixdb_status s = xdb_flush_told(r->x, &r->ref->progress);
  if (s != REMIXDB_OK) check_failure(r, s);
  else r->model.synced = nr;
  return s == REMIXDB_OK;
}

// False: one of the two failed; the store may be closed then.
static bool do_reopen(struct run *r) {
  const size_t nr = r->model.nr;
  enum remixdb_status s = run_close(r);
  if (s != REMIXDB_OK) {
    check_failure(r, s);
    return false;
  }
  r->model.synced = nr;
  if ((s = run_open(r)) != REMIXDB_OK) {
    check_failure(r, s);
    return false;
  }
  return true;
}

// A round with so little new data that some of it is not worth a table.
static bool do_small_round(struct run *r) {
  bool ok = true;
  for (uint32_t nr = 1 + (uint32_t)below(&r->rng, 3); nr; nr--) ok &= write_key(r, pick_key(r), chance(&r->rng, 30));
  return do_flush(r) && ok;
}

// Pretends that scans have paid for a merge of so many of the partitions that can be merged. Failures of that merge
// fail nothing that was asked for.
static void do_wear(struct run *r, uint32_t most) {
  uint32_t nr = 0;
  epoch_enter(&r->x->epoch, &r->ref->slot);
  const struct version *v = atomic_load(&r->x->super)->version;
  for (uint32_t i = 0; i < v->nr_parts && nr < most; i++) {
    struct remix *const x = v->parts[i]->remix;
    if (!x) continue;
    remix_add_debt(x, UINT32_MAX);
    nr += compact_scan_debt_paid(x);
  }
  epoch_exit(&r->ref->slot);
  if (nr == 0 || r->plan.opts.workers) return;  // a worker has been told
  atomic_store(&r->x->scan_merges.due, true);
  workers_kick(r->x->workers);
}

// False: a call failed.
static bool step(struct run *r) {
  const struct plan *p = &r->plan;
  if (below(&r->wear_rng, 1000) < p->wear) do_wear(r, 2);
  uint32_t dice = (uint32_t)below(&r->rng, 1000);
  if (dice < p->flush) return do_flush(r) && (chance(&r->rng, 50) || do_small_round(r));
  dice -= p->flush;
  if (dice < p->sync) return do_sync(r);
  dice -= p->sync;
  if (dice < p->reopen) return do_reopen(r);
  dice -= p->reopen;
  if (dice < p->del) return write_key(r, pick_key(r), true);
  if (chance(&r->rng, 5)) {
    bool ok;
    const uint32_t key = pick_key(r);
    const uint64_t id = look_up(r, key, &ok);
    if (ok) CHECK(id == r->model.now[key]);
    return ok;
  }
  if (chance(&r->rng, 3)) return write_batch(r);
  if (chance(&r->rng, 10)) return merge_key(r, pick_key(r));
  return write_key(r, pick_key(r), false);
}

static bool steps(struct run *r, uint64_t nr) {
  for (; nr; nr--)
    if (!step(r)) return false;
  return true;
}

// So many steps that there is enough for a few rounds.
static uint64_t enough(struct run *r, uint64_t rounds) {
  const uint64_t bytes = rounds * r->plan.memtable_limit / (80 + r->plan.vlen_max / 2);
  return 20 + below(&r->rng, bytes + 1);
}

// ---- power cuts

// Opens what a cut left for reading only. True: there is a store, whose content is in ids.
static bool look_only(struct run *r, uint64_t *ids) {
  const uint64_t changes = simdisk_changes(r->disk);
  r->plan.opts.read_only = true;
  const enum remixdb_status s = run_open(r);
  r->plan.opts.read_only = false;
  if (s == REMIXDB_OK) {
    CHECK(read_all(r, ids));
    OK(run_close(r));
  } else {
    CHECK(s == REMIXDB_NOTFOUND && r->model.synced == 0);  // the cut came before there was one
  }
  CHECK(simdisk_changes(r->disk) == changes);
  return s == REMIXDB_OK;
}

// Opens what a cut left. Power may go again on the way (so many times at most), or only the process dies; then on with
// what that leaves.
static void recover(struct run *r, uint32_t again) {
  nr_recoveries++;
  for (; again && chance(&r->rng, 60); again--) {
    simdisk_power_off(r->disk, below(&r->rng, 1ull << below(&r->rng, 7)));
    const enum remixdb_status s = run_open(r);
    CHECK(s != REMIXDB_CORRUPT && s != REMIXDB_VERSION && s != REMIXDB_NOTFOUND);
    if (s == REMIXDB_OK) {
      if (!simdisk_is_off(r->disk)) {
        // it was open before the power went: then what is there stays there. It may go during the check, in what a
        // worker does after a round
        if (check_prefix(r)) (void)steps(r, below(&r->rng, 30));
        else CHECK(r->plan.opts.workers && simdisk_is_off(r->disk));
      }
      (void)run_close(r);
    } else {
      CHECK(simdisk_is_off(r->disk));
      nr_torn_openings++;
    }
    nr_cuts++;
    if (chance(&r->rng, 30)) simdisk_power_on(r->disk);
    else run_disk(r, simdisk_crash(r->disk, rng_next(&r->rng)));
  }
  uint64_t ids[KEYS_MAX];
  const bool looked = chance(&r->rng, 20) && look_only(r, ids);
  OK(run_open(r));
  check_files(r, true);
  CHECK(check_prefix(r));
  if (looked) CHECK(memcmp(ids, r->model.now, sizeof(ids)) == 0);
}

// A copy of a run for one of the futures that a cut may have. Its disk is what the cut leaves.
static struct run *fork_run(const struct run *r, uint64_t outcome) {
  struct run *f = malloc(sizeof(*f));
  assert_non_null(f);
  *f = *r;
  f->model.ops = malloc((r->model.nr + 1) * sizeof(struct op));
  assert_non_null(f->model.ops);
  if (r->model.nr) memcpy(f->model.ops, r->model.ops, r->model.nr * sizeof(struct op));
  f->model.cap = r->model.nr + 1;
  f->x = NULL;
  f->ref = NULL;
  f->disk = NULL;
  f->rng = outcome;
  run_disk(f, simdisk_crash(r->disk, outcome));
  return f;
}

static void drop_fork(struct run *f) {
  (void)run_close(f);
  simdisk_destroy(f->disk);
  model_fini(&f->model);
  free(f);
}

// The power is off: what is in memory may still be read, and nothing lies or hangs.
static void after_cut(struct run *r) {
  if (!r->x) return;
  if (chance(&r->rng, 20)) check_content(r, true);
  (void)run_close(r);
}

// Rounds fail for want of room, and the log does not: it has several segments then, and writes are refused in the end.
static void stuck_life(struct run *r) {
  r->faulty = r->may_nospace = true;
  simdisk_fault_name(r->disk, "0");
  simdisk_fault(r->disk, SIMDISK_WRITE, 0, UINT64_MAX, ENOSPC);
  for (uint64_t nr = enough(r, 3); nr && r->x && !simdisk_is_off(r->disk); nr--) {
    if (nr == 30) simdisk_power_off(r->disk, below(&r->rng, 30));
    (void)step(r);
  }
  if (r->x) simdisk_power_off(r->disk, 0);
  after_cut(r);
  simdisk_fault(r->disk, SIMDISK_WRITE, 0, 0, ENOSPC);
  r->faulty = r->may_nospace = false;
}

static void cut_seed(uint64_t s, int workers) {
  struct run *r = run_create(s);
  r->plan.opts.workers = workers;
  run_disk(r, simdisk_create());
  OK(run_open(r));
  for (uint32_t life = 0; life < 3; life++) {
    (void)snprintf(check_what, sizeof(check_what), "life %u", life);
    CHECK(steps(r, enough(r, 6)));
    check_files(r, false);
    if (chance(&r->rng, 25)) {
      stuck_life(r);
    } else {
      simdisk_power_off(r->disk, below(&r->rng, 1ull << below(&r->rng, 9)));
      if (chance(&r->rng, 30)) (void)do_flush(r);
      while (!simdisk_is_off(r->disk) && steps(r, 8) && !chance(&r->rng, 2)) {}
    }
    after_cut(r);
    nr_cuts++;
    for (uint32_t outcome = 0; outcome < 3; outcome++) {
      (void)snprintf(check_what, sizeof(check_what), "life %u, outcome %u", life, outcome);
      struct run *f = fork_run(r, rng_next(&r->rng));
      recover(f, 0);
      if (chance(&f->rng, 40)) {
        (void)steps(f, 50);
        check_content(f, false);
      }
      drop_fork(f);
    }
    (void)snprintf(check_what, sizeof(check_what), "life %u, going on", life);
    if (chance(&r->rng, 30)) simdisk_power_on(r->disk);
    else run_disk(r, simdisk_crash(r->disk, rng_next(&r->rng)));
    recover(r, 3);
  }
  OK(run_close(r));
  run_destroy(r);
}

// A small store from its creation on; the power goes at each call in turn.
static bool small_life(struct run *r, uint32_t nr) {
  enum remixdb_status s = run_open(r);
  if (s != REMIXDB_OK) {
    check_failure(r, s);
    return false;
  }
  return steps(r, nr) && do_flush(r) && steps(r, nr / 4) && do_reopen(r) && steps(r, nr / 4);
}

// Power cuts before every call that changes the disk, without running anything twice: each state is taken as it comes.
struct watch {
  struct run *r;
  uint64_t rng;
  uint32_t outcomes;  // for each call
  uint64_t calls;
};

static void cut_here(void *arg) {
  struct watch *w = arg;
  (void)alarm(HANG_S);
  w->calls++;
  for (uint32_t outcome = 0; outcome < w->outcomes; outcome++) {
    nr_cuts++;
    (void)snprintf(check_what, sizeof(check_what), "call %llu, outcome %u", (unsigned long long)w->calls, outcome);
    struct run *f = fork_run(w->r, rng_next(&w->rng));
    f->look_apart = 6;
    recover(f, outcome == 0 ? 0 : 2);
    if (chance(&w->rng, 5)) {  // and it goes on from there
      (void)steps(f, 20);
      check_content(f, false);
    }
    drop_fork(f);
  }
}

static void each_call_seed(uint64_t s, uint32_t outcomes) {
  struct run *r = run_create(s);
  if (r->plan.vlen_max > 2500) r->plan.vlen_max = 2500;
  r->plan.memtable_limit = 70u << 10;
  struct watch w = {.r = r, .rng = s * 31 + 7, .outcomes = outcomes};
  run_disk(r, simdisk_create());
  simdisk_on_change(r->disk, cut_here, &w);
  CHECK(small_life(r, 120));
  CHECK(run_close(r) == REMIXDB_OK);
  CHECK(w.calls == simdisk_changes(r->disk));
  nr_calls += w.calls;
  run_destroy(r);
}

// ---- failing calls

static _Atomic uint64_t allocations;
static uint64_t allocations_fail_at, allocations_fail_nr;

static bool allocate(size_t size) {
  (void)size;
  const uint64_t n = atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
  return n < allocations_fail_at || n - allocations_fail_at >= allocations_fail_nr;
}

// Ends all faults. The store is open or opens now, and takes writes; one that may not, because a call failed for good,
// is opened again.
static void heal(struct run *r, bool reopen) {
  for (int c = 0; c < SIMDISK_CALLS; c++) simdisk_fault(r->disk, (enum simdisk_call)c, 0, 0, EIO);
  simdisk_space(r->disk, UINT64_MAX);
  atomic_store(&mem_fault, NULL);
  r->faulty = r->no_memory = r->may_nospace = r->may_nomem = false;
  if (r->x) {
    check_content(r, false);
    pthread_mutex_lock(&r->x->lock);
    r->x->rounds.failed_ns = 0;  // no waiting until a failed round may be tried again
    pthread_mutex_unlock(&r->x->lock);
    // a worker's round may be failing just now, and counts from then on
    for (uint32_t tries = 0; r->plan.opts.workers && !reopen && xdb_wait_idle(r->x) != REMIXDB_OK; tries++) {
      CHECK(tries < 500);
      time_sleep_ns(10000000);
    }
  }
  if (reopen) {
    if (r->x) {
      const size_t nr = r->model.nr;
      if (run_close(r) == REMIXDB_OK) r->model.synced = nr;
    }
    OK(run_open(r));
    CHECK(check_prefix(r));
    check_files(r, true);
  }
}

static const char *const call_names[] = {"open",   "read", "write", "sync",  "truncate", "allocate", "stat", "rename",
                                         "unlink", "link", "mkdir", "rmdir", "list",     "lock",     "close"};
static const int fault_calls[] = {SIMDISK_OPEN,     SIMDISK_READ, SIMDISK_WRITE,  SIMDISK_SYNC,
                                  SIMDISK_ALLOCATE, SIMDISK_STAT, SIMDISK_RENAME, SIMDISK_UNLINK,
                                  SIMDISK_MKDIR,    SIMDISK_LIST, SIMDISK_LOCK,   SIMDISK_CLOSE};
#define NR_FAULT_CALLS (sizeof(fault_calls) / sizeof(fault_calls[0]))

// Reads touch these.
static bool reads_use(enum simdisk_call c) { return c == SIMDISK_OPEN || c == SIMDISK_READ || c == SIMDISK_STAT; }

struct fault {
  bool full;    // not a call fails, but the disk is full
  bool memory;  // not a call fails, but an allocation
  enum simdisk_call call;
  const char *name;  // of files
  uint64_t nth;      // call or allocation; or bytes of room
  int errnum;
  bool once;
};

static void inject(struct run *r, const struct fault *f) {
  r->faulty = true;
  r->may_nospace = f->full || f->errnum == ENOSPC;
  if (f->full) {
    (void)snprintf(check_what, sizeof(check_what), "room for %llu bytes", (unsigned long long)f->nth);
    simdisk_space(r->disk, simdisk_used(r->disk) + f->nth);
    return;
  }
  if (f->memory) {
    (void)snprintf(check_what, sizeof(check_what), "allocation %llu %s", (unsigned long long)f->nth,
                   f->once ? "once" : "from then on");
    r->no_memory = true;
    allocations = 0;
    allocations_fail_at = f->nth;
    allocations_fail_nr = f->once ? 1 : UINT64_MAX;
    atomic_store(&mem_fault, allocate);
    return;
  }
  (void)snprintf(check_what, sizeof(check_what), "%s %llu of \"%s\" %s %s", call_names[f->call],
                 (unsigned long long)f->nth, f->name, f->errnum == EIO ? "EIO" : "ENOSPC",
                 f->once ? "once" : "from then on");
  simdisk_fault_name(r->disk, f->name);
  simdisk_fault(r->disk, f->call, f->nth, f->once ? 1 : UINT64_MAX, f->errnum);
}

// Whether the store goes on by itself when there is room again. A sync that failed tells of data that may be gone, and
// only what is read again can be trusted.
static bool passes(const struct fault *f) {
  if (f->full || f->memory) return true;
  const bool syncs = f->call == SIMDISK_SYNC ||
                     (f->call == SIMDISK_OPEN && (!f->name[0] || strcmp(f->name, "store") == 0));
  return (f->errnum == ENOSPC || f->errnum == EDQUOT) && !syncs;
}

// A store in whose life something fails, from its creation on or later.
static void fault_life(uint64_t s, const struct fault *f) {
  struct run *r = run_create(s);
  if (r->plan.vlen_max > 2500) r->plan.vlen_max = 2500;
  r->plan.memtable_limit = 70u << 10;
  const bool late = f->full || chance(&r->rng, 50), stay = passes(f) && chance(&r->rng, 70);
  if (stay) r->plan.reopen = 0;
  run_disk(r, simdisk_create());
  if (late) CHECK(small_life(r, 60));
  else inject(r, f);
  uint32_t failures = 0;
  for (uint32_t part = 0; part < 4; part++) {
    if (late && part == 1) inject(r, f);
    if (!r->x) {
      const enum remixdb_status st = run_open(r);
      if (st != REMIXDB_OK) {
        check_failure(r, st);
        failures++;
        continue;
      }
      if (!check_prefix(r)) {
        failures++;
        (void)run_close(r);
        continue;
      }
    }
    for (size_t i = 80 + r->plan.memtable_limit / (100 + r->plan.vlen_max / 2); i && r->x; i--) failures += !step(r);
    if (r->x) failures += !do_flush(r);
    if (r->x) check_content(r, !f->full && (f->memory || reads_use(f->call)));
    if (r->x && part % 2 && !stay) failures += !do_reopen(r);
  }
  nr_faults++;
  nr_hit += failures != 0;
  if (!stay && chance(&r->rng, 30)) {  // or the power goes while all is not well
    (void)run_close(r);
    run_disk(r, simdisk_crash(r->disk, rng_next(&r->rng)));
  }
  heal(r, !(r->x && passes(f)));
  // the first of these calls may meet what the failed ones have left, also in a power cut
  CHECK(steps(r, below(&r->rng, 100)));
  if (chance(&r->rng, 50)) {
    check_content(r, false);
    CHECK(do_flush(r));
    // where only writing failed what it left has been removed
    if (!f->memory && passes(f) && (f->full || f->call == SIMDISK_WRITE)) check_files(r, false);
    CHECK(do_reopen(r) && check_prefix(r));
    check_files(r, true);
  } else {
    simdisk_power_off(r->disk, below(&r->rng, 1ull << below(&r->rng, 6)));
    while (!simdisk_is_off(r->disk) && steps(r, 1)) {}
    after_cut(r);
    run_disk(r, simdisk_crash(r->disk, rng_next(&r->rng)));
    recover(r, 1);
  }
  run_destroy(r);
}

static void memory_seed(uint64_t s) {
  uint64_t rng = s;
  const struct fault f = {.memory = true, .once = chance(&rng, 70), .nth = below(&rng, 1ull << below(&rng, 13))};
  fault_life(s, &f);
}

static void fault_seed(uint64_t s) {
  static const char *const names[] = {"", "", "CURRENT", "wal", "0", "store", "CREATING"};
  uint64_t rng = s;
  struct fault f = {.full = chance(&rng, 10),
                    .errnum = s / NR_FAULT_CALLS % 2 ? EIO : ENOSPC,
                    .once = chance(&rng, 50)};
  f.call = (enum simdisk_call)fault_calls[s % NR_FAULT_CALLS];
  f.name = names[below(&rng, sizeof(names) / sizeof(names[0]))];
  f.nth = f.full ? below(&rng, 400u << 10) : below(&rng, 1ull << below(&rng, f.name[0] ? 6 : 8));
  fault_life(s, &f);
}

// ---- the n-th call of each kind, for every n

// Forward, backward, and many keys at once: what is read is what was written, or an error where one may be.
static void read_back(struct run *r, bool may_fail) {
  struct xdb_iter *it;
  enum remixdb_status s = xdb_iter_create(r->ref, &it);
  uint32_t key = r->plan.nr_keys;
  bool ended = false;
  if (s == REMIXDB_OK) {
    for (s = xdb_iter_seek_last(it); s == REMIXDB_OK && xdb_iter_valid(it); s = xdb_iter_prev(it)) {
      struct kv_rec rec;
      uint8_t kbuf[32];
      if ((s = xdb_iter_record(it, &rec)) != REMIXDB_OK) break;
      while (key-- > 0 && r->model.now[key] == 0) {}
      CHECK(key != UINT32_MAX && kv_eq(key_of(key, kbuf), kref(rec.key, rec.klen)));
      CHECK(check_value(r, key, rec.val, rec.vlen) == r->model.now[key]);
    }
    ended = s == REMIXDB_OK;
    if (!ended) check_failure(r, s);
    xdb_iter_destroy(it);
  } else {
    check_failure(r, s);
  }
  CHECK(ended || may_fail);
  while (ended && key-- > 0) CHECK(r->model.now[key] == 0);
}

// The same forward, by pages, with some of what each gives given back.
static void read_pages(struct run *r, bool may_fail) {
  static uint8_t room[VALUE_MAX + 1000];
  uint32_t klens[9], vlens[9], key = 0;
  struct remixdb_page p = {.ptr = room, .cap = sizeof(room), .klens = klens, .vlens = vlens, .max = 9};
  struct xdb_iter *it;
  enum remixdb_status s = xdb_iter_create(r->ref, &it);
  if (s == REMIXDB_OK) {
    for (s = xdb_iter_seek(it, kref("", 0)); s == REMIXDB_OK && (s = xdb_iter_page(it, &p)) == REMIXDB_OK;) {
      const uint8_t *at = room;
      const uint32_t nr = p.nr, keep = nr > 4 ? nr - nr % 3 : nr;
      for (uint32_t i = 0; i < keep; at += klens[i] + vlens[i], i++, key++) {
        uint8_t kbuf[32];
        while (key < r->plan.nr_keys && r->model.now[key] == 0) key++;
        CHECK(key < r->plan.nr_keys && kv_eq(key_of(key, kbuf), kref(at, klens[i])));
        CHECK(check_value(r, key, at + klens[i], vlens[i]) == r->model.now[key]);
      }
      if (keep < nr) s = xdb_iter_unread(it, &p, nr - keep);
    }
    xdb_iter_destroy(it);
  }
  if (s != REMIXDB_NOTFOUND) check_failure(r, s);
  CHECK(s == REMIXDB_NOTFOUND || may_fail);
  while (s == REMIXDB_NOTFOUND && key < r->plan.nr_keys) CHECK(r->model.now[key++] == 0);
}

#define MANY 24u

static void read_many(struct run *r, bool may_fail) {
  struct remixdb_slice keys[MANY];
  struct remixdb_buf values[MANY];
  static uint8_t kbufs[MANY][32], vbufs[MANY][2500];
  bool found[MANY];
  size_t nr;
  for (uint32_t i = 0; i < MANY; i++) {
    const struct kref k = key_of(i * 7 % r->plan.nr_keys, kbufs[i]);
    keys[i] = (struct remixdb_slice){.ptr = k.ptr, .len = k.len};
    values[i] = (struct remixdb_buf){.ptr = vbufs[i], .cap = sizeof(vbufs[i])};
  }
  const enum remixdb_status s = xdb_multi_get(r->ref, MANY, keys, values, found, NULL, &nr);
  if (s != REMIXDB_OK) {
    check_failure(r, s);
    CHECK(may_fail);
  }
  for (uint32_t i = 0; i < MANY; i++) {
    const uint32_t key = i * 7 % r->plan.nr_keys;
    if (found[i]) CHECK(check_value(r, key, vbufs[i], values[i].len) == r->model.now[key]);
    else if (s == REMIXDB_OK) CHECK(r->model.now[key] == 0);
  }
}

struct script {
  struct run *r;
  bool may_fail;  // reads may
  bool once;      // one call fails, and no more
  uint32_t failures;
  bool died;  // opening it failed again
};

static void told(struct script *c, bool ok) { c->failures += !ok; }

// Open and right, or one more failure. False: it is not open.
static bool script_open(struct script *c) {
  struct run *r = c->r;
  for (uint32_t tries = 0; !r->x && !c->died; tries++) {
    const enum remixdb_status s = run_open(r);
    if (s != REMIXDB_OK) check_failure(r, s);
    else if (check_prefix(r)) return true;
    else (void)run_close(r);
    c->failures++;
    c->died = tries == 1;
    CHECK(!c->once || !c->died);
  }
  return r->x != NULL;
}

static void script_close(struct script *c) {
  struct run *r = c->r;
  if (!r->x) return;
  const size_t nr = r->model.nr;
  const enum remixdb_status s = run_close(r);
  if (s == REMIXDB_OK) r->model.synced = nr;
  else check_failure(r, s);
  told(c, s == REMIXDB_OK);
}

static void script_puts(struct script *c, uint32_t first, uint32_t step, uint32_t nr) {
  for (uint32_t i = 0; i < nr && c->r->x; i++)
    told(c, write_key(c->r, (first + i * step) % c->r->plan.nr_keys, i % 9 == 8));
}

static void script_look(struct script *c) {
  struct run *r = c->r;
  if (!r->x) return;
  check_content(r, c->may_fail);
  read_back(r, c->may_fail);
  read_pages(r, c->may_fail);
  read_many(r, c->may_fail);
}

static bool see_any(void *arg, const char *name) {
  (void)name;
  *(bool *)arg = true;
  return false;
}

// A copy that was made is the store; of one that failed nothing is left.
static void script_copy(struct script *c) {
  struct run *r = c->r;
  struct env *env = simdisk_env(r->disk);
  enum remixdb_status s = checkpoint_make(r->ref, "/copy");
  told(c, s == REMIXDB_OK);
  if (s != REMIXDB_OK) {
    check_failure(r, s);
    struct env_stat st;
    if (c->once) CHECK(env_stat(ENV_PATHS(env), "/copy", &st) == REMIXDB_NOTFOUND);
  } else {
    for (uint32_t tries = 0; tries < 2 && (s = destroy_store(env, "/copy")) != REMIXDB_OK; tries++) {
      if (s != REMIXDB_NOTFOUND) check_failure(r, s);
      told(c, false);
    }
    CHECK(!c->once || s == REMIXDB_OK || s == REMIXDB_NOTFOUND);
  }
}

// All that a store does, in little.
static void script(struct script *c) {
  struct run *r = c->r;
  const struct plan *p = &r->plan;
  if (!script_open(c)) return;
  script_puts(c, 0, 1, 30);
  told(c, write_batch(r));
  told(c, do_sync(r));
  script_puts(c, 3, 5, 20);
  for (uint32_t i = 0; i < 4; i++) told(c, merge_key(r, i * 11 % p->nr_keys));
  told(c, do_flush(r));
  script_look(c);
  // rounds that come by themselves, with much for one partition and little for others
  script_puts(c, 0, 1, 60);
  script_puts(c, p->nr_keys / 2, 17, 6);
  script_puts(c, 7, 1, 60);
  told(c, write_batch(r));
  script_copy(c);
  script_look(c);
  script_close(c);
  if (!script_open(c)) return;
  script_puts(c, 1, 7, 20);
  const size_t nr = r->model.nr;
  const enum remixdb_status s = xdb_compact_told(r->x, &r->ref->progress);
  if (s == REMIXDB_OK) r->model.synced = nr;
  else check_failure(r, s);
  told(c, s == REMIXDB_OK);
  script_look(c);
  // so little for some that it is handed back
  told(c, write_key(r, 2, true));
  for (uint32_t i = 0; i < 8; i++) script_puts(c, 85, 1, 15);
  struct verify_report report;
  const enum remixdb_status v = verify_store(r->ref, &report);
  if (v != REMIXDB_OK) check_failure(r, v);  // never that it is damaged
  told(c, v == REMIXDB_OK);
  do_wear(r, 1);
  script_puts(c, 5, 3, 20);
  told(c, do_sync(r));
  script_puts(c, 6, 2, 5);
  script_close(c);
  if (script_open(c)) script_look(c);
}

// The two stores that it is done with.
static struct run *nth_run(uint32_t plan) {
  struct run *r = run_create(plan + 1);
  struct plan *p = &r->plan;
  memset(p, 0, sizeof(*p));
  p->nr_keys = 100;
  p->vlen_max = 1800;
  p->memtable_limit = 70u << 10;
  p->table_pages = 6;
  p->young_from = plan;
  p->no_allocate = plan == 1;
  remixdb_opts_init(&p->opts, sizeof(p->opts));
  p->opts.workers = 0;
  p->opts.memtable_mb = 1;
  p->opts.cache_mb = plan == 0;
  p->opts.ckeys = p->opts.tags = plan == 1;
  p->opts.max_open_files = 16;
  if (plan == 1) p->opts.compression = REMIXDB_COMPRESSION_ZSTD;
  if (plan == 1) p->opts.sync = REMIXDB_SYNC_EACH;
  p->opts.direct_io = plan == 1;
  r->model.nr_keys = p->nr_keys;
  run_disk(r, simdisk_create());
  return r;
}

#define NTH_PLANS 2u

struct error_of {
  const char *name;
  int errnum;
  bool hidden;  // the caller is not to notice
};

static const struct error_of errors_of[] = {
    {"EIO", EIO, false},
    {"ENOSPC", ENOSPC, false},
    {"EDQUOT", EDQUOT, false},
    {"EMFILE", EMFILE, false},
    {"ENFILE", ENFILE, false},
    {"EACCES", EACCES, false},
    {"EMLINK", EMLINK, false},
    {"ENOLCK", ENOLCK, false},
    {"EINTR", EINTR, true},
    {"short", SIMDISK_SHORT, true},
    {"nothing", SIMDISK_NOTHING, false},
    {"done all the same", SIMDISK_DONE, false},
};

// Whether a call of the kind can fail with the error.
static bool can_be(enum simdisk_call c, int errnum) {
  const bool changes = c == SIMDISK_OPEN || c == SIMDISK_WRITE || c == SIMDISK_SYNC || c == SIMDISK_TRUNCATE ||
                       c == SIMDISK_ALLOCATE || c == SIMDISK_RENAME || c == SIMDISK_UNLINK || c == SIMDISK_LINK ||
                       c == SIMDISK_MKDIR || c == SIMDISK_RMDIR;
  switch (errnum) {
    case EIO: return true;
    case ENOSPC:
    case EDQUOT:
      return (changes && c != SIMDISK_UNLINK && c != SIMDISK_RMDIR && c != SIMDISK_TRUNCATE) || c == SIMDISK_CLOSE;
    case EMFILE:
    case ENFILE: return c == SIMDISK_OPEN || c == SIMDISK_LIST;
    case EACCES:
      return c == SIMDISK_OPEN || c == SIMDISK_STAT || c == SIMDISK_RENAME || c == SIMDISK_UNLINK || c == SIMDISK_MKDIR;
    case EMLINK: return c == SIMDISK_LINK;
    case ENOLCK: return c == SIMDISK_LOCK;
    case EINTR:
      return c == SIMDISK_OPEN || c == SIMDISK_READ || c == SIMDISK_WRITE || c == SIMDISK_SYNC ||
             c == SIMDISK_TRUNCATE || c == SIMDISK_ALLOCATE || c == SIMDISK_LOCK || c == SIMDISK_CLOSE;
    case SIMDISK_SHORT: return c == SIMDISK_READ || c == SIMDISK_WRITE;
    case SIMDISK_NOTHING: return c == SIMDISK_WRITE;
    default: return changes;
  }
}

static bool is_full(int errnum) { return errnum == ENOSPC || errnum == EDQUOT; }

// A name as in `what`.
static void nth_name(char *buf, size_t cap, uint32_t plan, const struct fault *f, const struct error_of *e) {
  (void)snprintf(buf, cap, "%u,%s,%s,%s,%llu", plan, f->memory ? "allocation" : call_names[f->call], e->name,
                 f->once ? "once" : "on", (unsigned long long)f->nth);
}

// One life with the fault; then it heals, is opened again and goes on.
static void nth_life(uint32_t plan, int workers, const struct fault *f, const struct error_of *e) {
  struct run *r = nth_run(plan);
  r->plan.opts.workers = workers;
  inject(r, f);
  (void)snprintf(check_what, sizeof(check_what), "CRASH_NTH=");
  nth_name(check_what + strlen(check_what), sizeof(check_what) - strlen(check_what), plan, f, e);
  if (e->hidden) r->faulty = false;
  r->may_nospace = is_full(e->errnum);
  r->may_nomem = e->errnum == EMFILE || e->errnum == ENFILE;
  struct script c = {.r = r, .may_fail = f->memory || reads_use(f->call), .once = f->once};
  script(&c);
  nr_faults++;
  nr_hit += c.failures != 0;
  if (e->hidden) CHECK(c.failures == 0);
  bool crashed = false;
  if (f->nth % 3 == 1) {  // the power goes while all is not well
    (void)run_close(r);
    run_disk(r, simdisk_crash(r->disk, f->nth * 77 + f->errnum));
    crashed = true;
  }
  heal(r, crashed || !(r->x && passes(f)));
  CHECK(steps(r, 10));
  if (r->x && !crashed) read_many(r, false);
  CHECK(do_flush(r) && do_reopen(r) && check_prefix(r));
  check_files(r, true);
  CHECK(run_close(r) == REMIXDB_OK);
  bool any = false;
  struct env_stat st;
  const enum remixdb_status s = env_stat(ENV_PATHS(simdisk_env(r->disk)), "/copy", &st);
  if (s == REMIXDB_OK) OK(paths_list(simdisk_env(r->disk), "/copy", see_any, &any));
  if (f->once && !crashed) CHECK(!any);
  run_destroy(r);
}

// How many calls of each kind, and allocations, a life without a failure makes.
static void nth_count(uint32_t plan, uint64_t *calls, uint64_t *mem_out) {
  struct run *r = nth_run(plan);
  const struct fault none = {.memory = true, .nth = UINT64_MAX};
  inject(r, &none);
  (void)snprintf(check_what, sizeof(check_what), "plan %u without a failure", plan);
  r->faulty = r->no_memory = false;
  struct script c = {.r = r};
  script(&c);
  CHECK(c.failures == 0);
  for (uint32_t i = 0; i < SIMDISK_CALLS; i++) calls[i] = simdisk_calls(r->disk, (enum simdisk_call)i);
  *mem_out = allocations;
  atomic_store(&mem_fault, NULL);
  OK(run_close(r));
  run_destroy(r);
}

// ---- tests

static uint64_t first_seed(void) {
  const char *const given = getenv("CRASH_SEED");
  return given && *given ? strtoull(given, NULL, 0) : 1;
}

static uint64_t nr_seeds(uint64_t standard) {
  const char *const many = getenv("CRASH_SEEDS"), *const given = getenv("CRASH_SEED");
  if (many && *many) return strtoull(many, NULL, 0);
  return given && *given ? 1 : standard / SLOW ? standard / SLOW : 1;
}

static void test_power_cuts(void **state) {
  (void)state;
  const uint64_t first = first_seed(), nr = nr_seeds(80);
  for (uint64_t s = first; s < first + nr; s++) cut_seed(s, 0);
  print_message("%llu power cuts, %llu recoveries, %llu of them cut themselves\n", (unsigned long long)nr_cuts,
                (unsigned long long)nr_recoveries, (unsigned long long)nr_torn_openings);
  print_message("partitions:");
  for (uint32_t k = 0; k < COMPACT_KINDS; k++) {
    static const char *const names[COMPACT_KINDS] = {"kept", "handed back", "minor", "major", "split"};
    print_message(" %llu %s", (unsigned long long)kinds[k], names[k]);
    if (nr >= 40) assert_true(kinds[k] > 0);  // else the cuts are not where they should be
  }
  print_message("; %llu merged for scans, %llu young views made\n", (unsigned long long)scan_merges,
                (unsigned long long)young);
  if (nr >= 40) assert_true(scan_merges > 0 && young > 0);
}

// There is but one writer, so that the model holds; but a seed does not make the same run twice.
static void test_power_cuts_with_a_worker(void **state) {
  (void)state;
  const uint64_t first = first_seed(), nr = nr_seeds(20);
  nr_cuts = 0;
  for (uint64_t s = first; s < first + nr; s++) cut_seed(s, 1);
  print_message("%llu power cuts\n", (unsigned long long)nr_cuts);
}

static void test_each_call(void **state) {
  (void)state;
  const uint64_t first = first_seed(), nr = nr_seeds(24);
  nr_cuts = nr_calls = scan_merges = 0;
  for (uint64_t s = first; s < first + nr; s++) each_call_seed(s, 3);
  print_message("before each of %llu calls, and in the recoveries: %llu power cuts; %llu merged for scans\n",
                (unsigned long long)nr_calls, (unsigned long long)nr_cuts, (unsigned long long)scan_merges);
  if (nr >= 20) assert_true(scan_merges > 0);
}

static void test_faults(void **state) {
  (void)state;
  const uint64_t first = first_seed(), nr = nr_seeds(150);
  scan_merges = 0;
  for (uint64_t s = first; s < first + nr; s++) fault_seed(s);
  print_message("%llu faults, %llu of them made calls fail; %llu merged for scans\n", (unsigned long long)nr_faults,
                (unsigned long long)nr_hit, (unsigned long long)scan_merges);
  if (nr >= 40) assert_true(scan_merges > 0);
}

static const struct error_of no_memory = {"refused", ENOMEM, false};

static struct fault nth_fault(uint32_t call, uint64_t nth, const struct error_of *e, bool once) {
  const bool memory = call == SIMDISK_CALLS;
  return (struct fault){.memory = memory,
                        .call = memory ? SIMDISK_OPEN : (enum simdisk_call)call,
                        .name = "",
                        .nth = nth,
                        .errnum = e->errnum,
                        .once = once};
}

// The lives of one kind of call (SIMDISK_CALLS: allocations), of which there are nr, and one error.
static uint64_t nth_of(uint32_t plan, uint32_t call, uint64_t nr, const struct error_of *e, uint64_t stride,
                       uint64_t *rng) {
  const char *const given = getenv("CRASH_NTH");
  nr_faults = nr_hit = 0;
  for (int once = 1; once >= 0; once--) {
    if (!once && e->errnum == EINTR) break;  // for ever would be for ever
    for (uint64_t n = stride > 1 ? below(rng, stride) : 0; n < nr; n += stride) {
      const struct fault f = nth_fault(call, n, e, once);
      char name[128];
      nth_name(name, sizeof(name), plan, &f, e);
      if (!given || !*given || strcmp(given, "all") == 0 || strcmp(given, name) == 0) nth_life(plan, 0, &f, e);
    }
  }
  print_message(" %s %llu (%llu)", e->name, (unsigned long long)nr_faults, (unsigned long long)nr_hit);
  return nr_faults;
}

// Every so many, from another start each time; all of them with CRASH_NTH=all.
static void test_nth(void **state) {
  (void)state;
  const char *const given = getenv("CRASH_NTH");
  const uint64_t stride = given && *given ? 1 : 25 * SLOW;
  uint64_t all = 0, rng = time_ns();
  for (uint32_t plan = 0; plan < NTH_PLANS; plan++) {
    uint64_t calls[SIMDISK_CALLS + 1];
    memset(kinds, 0, sizeof(kinds));
    scan_merges = young = 0;
    nth_count(plan, calls, &calls[SIMDISK_CALLS]);
    // every kind of compaction is among what may fail (when a memtable is full is another moment under a sanitizer)
    for (uint32_t k = 0; k < COMPACT_KINDS && plan == 0 && !LIB_SANITIZED; k++) {
      if (kinds[k] == 0) fail_msg("no partition was of kind %u", k);
    }
    if (scan_merges == 0 && !LIB_SANITIZED) fail_msg("no partition was merged for scans");
    if (young == 0 && plan == 1 && !LIB_SANITIZED) fail_msg("no young view was made");
    for (uint32_t c = 0; c <= SIMDISK_CALLS; c++) {
      if (calls[c] == 0) continue;
      const bool memory = c == SIMDISK_CALLS;
      print_message("plan %u, %llu calls of %s; lives with one that fails (in so many it showed):", plan,
                    (unsigned long long)calls[c], memory ? "memory" : call_names[c]);
      for (uint32_t i = 0; i < (memory ? 1 : sizeof(errors_of) / sizeof(errors_of[0])); i++) {
        const struct error_of *e = memory ? &no_memory : &errors_of[i];
        if (memory || can_be((enum simdisk_call)c, e->errnum)) all += nth_of(plan, c, calls[c], e, stride, &rng);
      }
      print_message("\n");
    }
  }
  print_message("%llu lives in all, for one call in %llu\n", (unsigned long long)all, (unsigned long long)stride);
}

// The same with a worker: then no n is the same call twice, and any may be hit.
static void test_nth_with_a_worker(void **state) {
  (void)state;
  const uint64_t first = first_seed(), nr = nr_seeds(60);
  uint64_t calls[NTH_PLANS][SIMDISK_CALLS + 1], rng = first;
  for (uint32_t plan = 0; plan < NTH_PLANS; plan++) nth_count(plan, calls[plan], &calls[plan][SIMDISK_CALLS]);
  nr_faults = nr_hit = 0;
  for (uint64_t s = first; s < first + nr;) {
    const uint32_t plan = (uint32_t)below(&rng, NTH_PLANS), c = (uint32_t)below(&rng, SIMDISK_CALLS + 1);
    const struct error_of *e = c == SIMDISK_CALLS ? &no_memory
                                                  : &errors_of[below(&rng, sizeof(errors_of) / sizeof(errors_of[0]))];
    if (calls[plan][c] == 0 || (c < SIMDISK_CALLS && !can_be((enum simdisk_call)c, e->errnum))) continue;
    const struct fault f = nth_fault(c, below(&rng, calls[plan][c]), e, e->errnum == EINTR || chance(&rng, 50));
    nth_life(plan, 1, &f, e);
    s++;
  }
  print_message("%llu lives, in %llu it showed\n", (unsigned long long)nr_faults, (unsigned long long)nr_hit);
}

// ---- threads that do not start

static uint64_t threads, threads_fail_at, threads_fail_nr;

static bool thread_denied(void) {
  const uint64_t n = threads++;
  return n < threads_fail_at || n - threads_fail_at >= threads_fail_nr;
}

// The threads of this process; 0 where the system does not tell.
static uint32_t nr_threads(void) {
  DIR *const d = opendir("/proc/self/task");
  if (!d) return 0;
  uint32_t nr = 0;
  for (const struct dirent *e; (e = readdir(d)) != NULL;) nr += e->d_name[0] != '.';
  (void)closedir(d);
  return nr;
}

// One that was joined may be seen for a moment.
static void check_threads(uint32_t nr) {
  for (uint32_t tries = 0; nr_threads() > nr && tries < 500; tries++) time_sleep_ns(10000000);
  CHECK(nr_threads() <= nr);
}

// Opening with the n-th thread lacking is refused, with nothing left running or changed.
static void test_threads(void **state) {
  (void)state;
  for (uint32_t fresh = 0; fresh < 2; fresh++) {
    struct run *r = nth_run(0);
    if (!fresh) CHECK(small_life(r, 40));
    OK(run_close(r));
    const size_t written_nr = r->model.nr;
    r->model.synced = written_nr;
    r->plan.opts.workers = 3;
    r->plan.opts.sync = 5;
    const uint32_t before = nr_threads();
    for (int once = 0; once < 2; once++) {
      uint64_t n = 0;
      for (;; n++) {
        (void)snprintf(check_what, sizeof(check_what), "%s store, thread %llu %s", fresh ? "new" : "old",
                       (unsigned long long)n, once ? "once" : "from then on");
        threads = 0;
        threads_fail_at = n;
        threads_fail_nr = once ? 1 : UINT64_MAX;
        atomic_store(&thread_fault, thread_denied);
        const uint64_t changes = simdisk_changes(r->disk);
        struct xdb *x = NULL;
        const enum remixdb_status s = xdb_open(DIR_NAME, &r->plan.opts, simdisk_env(r->disk), &x);
        atomic_store(&thread_fault, NULL);
        if (s == REMIXDB_OK) {  // there were no more
          CHECK(n == threads && n == 4);
          OK(xdb_close(x));
          check_threads(before);
          break;
        }
        CHECK(s == REMIXDB_NOMEM && err_msg()[0] != '\0' && x == NULL);
        CHECK(threads == n + 1);  // the first that fails is the last that is tried
        CHECK(simdisk_open_files(r->disk) == 0 && simdisk_changes(r->disk) == changes);
        check_threads(before);
      }
      if (fresh) run_disk(r, simdisk_create());
    }
    r->plan.opts.sync = REMIXDB_SYNC_NONE;
    OK(run_open(r));
    CHECK(check_prefix(r) && r->model.nr == written_nr);
    CHECK(steps(r, 20));
    OK(run_close(r));
    check_threads(before);
    run_destroy(r);
  }
}

static void test_memory(void **state) {
  (void)state;
  const uint64_t first = first_seed(), nr = nr_seeds(150);
  nr_faults = nr_hit = scan_merges = 0;
  for (uint64_t s = first; s < first + nr; s++) memory_seed(s);
  print_message("%llu faults, %llu of them made calls fail; %llu merged for scans\n", (unsigned long long)nr_faults,
                (unsigned long long)nr_hit, (unsigned long long)scan_merges);
  if (nr >= 40) assert_true(scan_merges > 0);
}

// Once a store has been opened no power cut brings back the mark of its making, which would let a later opening throw
// its files away when CURRENT is lost.
static void test_mark(void **state) {
  (void)state;
  const struct remixdb_opts o = {.size = sizeof(o), .memtable_mb = 1, .create = true};
  for (check_seed = 0; check_seed < 32; check_seed++) {
    struct simdisk *disk = simdisk_create();
    struct xdb *x;
    struct xdb_ref *r;
    (void)snprintf(check_what, sizeof(check_what), "the mark of a new store");
    OK(xdb_open(DIR_NAME, &o, simdisk_env(disk), &x));
    OK(xdb_ref(x, &r));
    OK(xdb_put(r, kref("key", 3), "value", 5, false));
    OK(xdb_sync(r));
    struct simdisk *const after = simdisk_crash(disk, check_seed);
    xdb_unref(r);
    OK(xdb_close(x));
    simdisk_destroy(disk);
    CHECK(simdisk_size(after, DIR_NAME "/CREATING") < 0);
    OK(env_unlink(ENV_PATHS(simdisk_env(after)), DIR_NAME "/CURRENT"));
    CHECK(xdb_open(DIR_NAME, &o, simdisk_env(after), &x) == REMIXDB_CORRUPT);
    simdisk_destroy(after);
  }
}

// An argument names the tests to run, as in "test_f*".
int main(int argc, char **argv) {
  check_seed_name = "CRASH_SEED";
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  (void)signal(SIGALRM, on_hang);
#if defined(__GLIBC__)
  // a store is opened and closed a thousand times a second: what one gave back need not go to the system and be zeroed
  // for the next
  (void)mallopt(M_MMAP_THRESHOLD, 1 << 30);
  (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_power_cuts),
      cmocka_unit_test(test_power_cuts_with_a_worker),
      cmocka_unit_test(test_each_call),
      cmocka_unit_test(test_faults),
      cmocka_unit_test(test_memory),
      cmocka_unit_test(test_nth),
      cmocka_unit_test(test_nth_with_a_worker),
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_mark),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
