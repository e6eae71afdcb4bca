// SPDX-License-Identifier: Apache-2.0
//
// The write-ahead log: appending, syncing, reopening, the format of a file, large batches, and threads that append.
#include "base/thread.h"
#include "tests/lib/check.h"
#include "tests/lib/temp.h"
#include "tests/lib/wal_model.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void test_round_trip(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  struct wal_stats st;
  uint64_t rng = 1;
  for (int round = 0; round < 4; round++) {
    OK(open_model(dir_of(d), m, &w));
    const uint64_t before = m->nr;
    if (round > 0) assert_int_equal(before, 1000 * (unsigned)round);
    for (int i = 0; i < 1000; i++) OK(append(w, m, &rng, 1));
    wal_stats(w, &st);
    assert_int_equal(st.records, 1000);
    assert_true(st.buffer_bytes >= 4 * WAL_BUF);
    assert_true(st.frames >= st.bytes / WAL_BUF);
    assert_true(wal_segment_bytes(w) >= HEAD + st.bytes);
    assert_true(wal_durable_seq(w) == before);
    if (round == 1) OK(sync_model(w, m));
    if (round == 2) OK(wal_flush(w));
    OK(wal_close(w));
  }
  OK(open_model(dir_of(d), m, &w));
  assert_int_equal(m->nr, 4000);
  OK(wal_close(w));
  log_end(d, m);
}

static uint64_t nonce(void) { return 4711; }

// The bytes of a file are as docs/FORMAT.md says.
static void test_format(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint8_t b[4096];
  uint64_t gen;
  m->oldest_gen = 7;
  m->oldest_seq = 41;
  static const uint64_t origins[] = {5, 6};
  const struct wal_opts o = {.dir = dir_of(d), .store_id = STORE, .origins = origins, .nr_origins = 2};
  atomic_store(&random_seed_source, nonce);
  OK(wal_open(&o, 7, 41, true, NULL, NULL, NULL, &w));
  atomic_store(&random_seed_source, NULL);
  uint64_t print;
  OK(wal_print(w, 7, &print));
  FAILS(wal_print(w, 8, &print), REMIXDB_CORRUPT);
  OK(wal_begin(w, 100, &gen));
  assert_int_equal(gen, 7);
  assert_int_equal(wal_put(w, KV_REC(kref("key", 3), "value", 5, false)), 42);
  assert_int_equal(wal_put(w, KV_REC(kref("gone", 4), NULL, 0, true)), 43);
  wal_end(w);
  OK(wal_sync(w));
  OK(wal_begin(w, 3, &gen));
  assert_int_equal(wal_put(w, KV_REC(kref("", 0), "", 0, false)), 44);
  wal_end(w);
  OK(wal_close(w));

  assert_true(simdisk_peek(d, DIR "/wal-0", 0, b, sizeof(b)));
  assert_memory_equal(b, "#REMXWAL", 8);
  assert_int_equal(load32le(b + 8), 4);
  assert_int_equal(load32le(b + 12), 0);
  assert_int_equal(load64le(b + 16), STORE);
  assert_int_equal(load64le(b + 24), 7);
  assert_int_equal(load64le(b + 32), 0);
  assert_int_equal(load64le(b + 40), 0);
  assert_int_equal(load64le(b + 48), 0);
  assert_int_equal(load64le(b + 56), 41);
  assert_int_equal(load64le(b + 64), 4711);
  assert_int_equal(load64le(b + 72), 0);
  assert_int_equal(load64le(b + 80), 0);
  assert_int_equal(load32le(b + 88), 2);
  assert_int_equal(load32le(b + 92), 0);
  assert_int_equal(load64le(b + 96), 5);
  assert_int_equal(load64le(b + 104), 6);
  for (int i = 112; i < 448; i++) assert_int_equal(b[i], 0);
  for (int i = 472; i < 504; i++) assert_int_equal(b[i], 0);
  assert_int_equal(load64le(b + 504), hash64(b, 448));
  assert_int_equal(load64le(b + 504), print);

  uint8_t id[16];
  store64le(id, STORE);
  store64le(id + 8, 7);
  const uint64_t seed = hash64(id, 16);
  static const uint8_t recs[] = {6, 5, 'k', 'e', 'y', 'v', 'a', 'l', 'u', 'e', 9, 1, 'g', 'o', 'n', 'e'};
  const uint8_t *f = b + 512;
  assert_int_equal(load64le(f), hash64_seed(f + 8, 32 + sizeof(recs), seed + 512));
  assert_int_equal(load32le(f + 8), (uint32_t)(seed >> 32) | 1);
  assert_int_equal(load32le(f + 12), sizeof(recs) | 1u << 31);
  assert_int_equal(load64le(f + 16), 42);
  assert_int_equal(load64le(f + 24), 512);
  assert_int_equal(load32le(f + 32), 2);
  assert_int_equal(load32le(f + 36), (uint32_t)hash64_seed(f + 8, 28, ~(seed + 512)));
  assert_memory_equal(f + 40, recs, sizeof(recs));
  const uint64_t at = 512 + 40 + sizeof(recs);
  f = b + at;
  assert_int_equal(load64le(f), hash64_seed(f + 8, 32 + 2, seed + at));
  assert_int_equal(load64le(f + 16), 44);
  assert_int_equal(load64le(f + 24), at);
  assert_int_equal(load32le(f + 32), 1);
  assert_int_equal(load64le(b + 456), 7);
  assert_int_equal(load64le(b + 464), at + 40 + 2);
  assert_int_equal(load64le(b + 448), hash64_seed(b + 456, 16, seed + 448));
  log_end(d, m);
}

static void test_large_batches(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 3, gen;
  OK(open_model(dir_of(d), m, &w));
  for (int i = 0; i < 3; i++) {
    OK(append(w, m, &rng, 10));
    OK(append(w, m, &rng, 4000));
  }
  struct wal_stats st;
  wal_stats(w, &st);
  assert_int_equal(st.buffer_bytes, 4 * WAL_BUF);  // the buffers of the large batches are gone
  FAILS(wal_begin(w, (size_t)2 << 30, &gen), REMIXDB_TOOBIG);
  // a batch without records
  OK(wal_begin(w, 1000, &gen));
  wal_end(w);
  OK(wal_begin(w, 1000000, &gen));
  wal_end(w);
  OK(wal_begin(w, 0, &gen));
  wal_end(w);
  OK(append(w, m, &rng, 4000));
  OK(wal_close(w));
  OK(open_model(dir_of(d), m, &w));
  assert_int_equal(m->nr, 3 * 4010 + 4000);
  OK(wal_close(w));
  log_end(d, m);
}

static enum remixdb_status replay_refuse(void *arg, uint64_t seq, const struct kv_rec *rec) {
  (void)arg, (void)rec;
  return seq == 3 ? REMIXDB_NOMEM : REMIXDB_OK;
}

static void test_replay_status(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 4;
  OK(open_model(dir_of(d), m, &w));
  for (int i = 0; i < 5; i++) OK(append(w, m, &rng, 1));
  OK(wal_close(w));
  const struct wal_opts o = {.dir = dir_of(d), .store_id = STORE};
  const uint64_t changes = simdisk_changes(d);
  FAILS(wal_open(&o, 1, 0, false, replay_refuse, NULL, NULL, &w), REMIXDB_NOMEM);
  assert_null(w);
  FAILS(wal_open(&o, 1, 1, false, NULL, NULL, NULL, &w), REMIXDB_CORRUPT);  // the numbers do not follow
  assert_int_equal(simdisk_changes(d), changes);
  log_end(d, m);
}

#define APPENDERS 4

#define PER_THREAD 1500

struct crowd {
  struct wal *w;
  uint64_t
      tags[APPENDERS * PER_THREAD + 1];  // by sequence number; guarded by the log's lock, as a memtable's stamps are
  _Atomic uint64_t gen_at_switch;
  _Atomic uint64_t published;
  _Atomic bool stop;
  _Atomic uint32_t bad;
  bool installs;  // each switch is followed by the release of the older segments, which nobody has synced
  struct model *m;
};

struct appender {
  struct crowd *c;
  uint64_t rng;
};

// rec_of writes to shared buffers; threads make their records here.
static size_t small_rec(uint64_t tag, uint8_t *b, uint32_t *klen_out) {
  *klen_out = 8;
  const size_t len = 8 + (size_t)(tag % 300);
  for (size_t i = 0; i < len; i += 8) store64le(b + i, tag + i);
  return len;
}

static void *appender_main(void *arg) {
  struct appender *const a = arg;
  struct crowd *const c = a->c;
  uint8_t b[512];
  for (uint32_t done = 0; done < PER_THREAD;) {
    const uint32_t nr = 1 + (uint32_t)pick(&a->rng, 3);
    uint64_t tags[3], gen, seq = 0;
    for (uint32_t i = 0; i < nr; i++) tags[i] = rng_next(&a->rng);
    if (done + nr > PER_THREAD) break;
    if (wal_begin(c->w, nr * 320, &gen) != REMIXDB_OK) {
      atomic_fetch_add(&c->bad, 1);
      break;
    }
    for (uint32_t i = 0; i < nr; i++) {
      uint32_t klen;
      const size_t len = small_rec(tags[i], b, &klen);
      seq = wal_put(c->w, KV_REC(kref(b, klen), b + klen, (uint32_t)(len - klen), false));
      c->tags[seq] = tags[i];
      // numbers are given under the lock, so they ascend here
      if (atomic_exchange(&c->published, seq) != seq - 1) atomic_fetch_add(&c->bad, 1);
    }
    if (gen != wal_gen(c->w)) atomic_fetch_add(&c->bad, 1);
    wal_end(c->w);
    done += nr;
    if (pick(&a->rng, 100) == 0) {
      if (wal_sync(c->w) != REMIXDB_OK || wal_durable_seq(c->w) < seq) atomic_fetch_add(&c->bad, 1);
    }
    if (pick(&a->rng, 200) == 0 && wal_flush(c->w) != REMIXDB_OK) atomic_fetch_add(&c->bad, 1);
  }
  return NULL;
}

static void *syncer_main(void *arg) {
  struct crowd *const c = arg;
  while (!atomic_load(&c->stop)) {
    const uint64_t seq = atomic_load(&c->published);
    if (wal_sync(c->w) != REMIXDB_OK || wal_durable_seq(c->w) < seq) atomic_fetch_add(&c->bad, 1);
    if (wal_mark(c->w) != REMIXDB_OK) atomic_fetch_add(&c->bad, 1);
    (void)wal_segment_bytes(c->w);
    struct wal_stats st;
    wal_stats(c->w, &st);
    time_sleep_ns(100000);
  }
  return NULL;
}

static void crowd_switched(void *arg, uint64_t gen) {
  struct crowd *const c = arg;
  c->m->gen = gen;
  c->m->gen_seq = atomic_load(&c->published);
}

static void *switcher_main(void *arg) {
  struct crowd *const c = arg;
  do {
    if (wal_prepare(c->w) != REMIXDB_OK) atomic_fetch_add(&c->bad, 1);
    if (wal_switch(c->w, crowd_switched, c) != REMIXDB_OK) atomic_fetch_add(&c->bad, 1);
    if (c->installs) {
      if (install_model(c->w, c->m) != REMIXDB_OK) atomic_fetch_add(&c->bad, 1);
    } else {
      if (wal_sync(c->w) != REMIXDB_OK) atomic_fetch_add(&c->bad, 1);
      // releases none, as all are replayed at the end
      if (wal_release(c->w, c->m->oldest_gen) != REMIXDB_OK) atomic_fetch_add(&c->bad, 1);
    }
    time_sleep_ns(2000000);
  } while (!atomic_load(&c->stop));  // once at least, on a busy machine, too
  return NULL;
}

static enum remixdb_status crowd_replay(void *arg, uint64_t seq, const struct kv_rec *rec) {
  struct crowd *const c = arg;
  uint8_t b[512];
  uint32_t klen;
  const size_t len = small_rec(c->tags[seq], b, &klen);
  assert_int_equal(rec->klen, klen);
  assert_int_equal(rec->vlen, len - klen);
  assert_memory_equal(rec->key, b, klen);
  assert_memory_equal(rec->val, b + klen, len - klen);
  return REMIXDB_OK;
}

static void run_crowd(const struct env_dir *dir, bool installs) {
  struct crowd *const c = calloc(1, sizeof(*c));
  struct appender a[APPENDERS];
  pthread_t threads[APPENDERS + 3];
  struct wal_recovery rec;
  assert_non_null(c);
  c->installs = installs;
  c->m = model_create();
  OK(open_model(dir, c->m, &c->w));
  for (int i = 0; i < APPENDERS; i++) {
    a[i] = (struct appender){c, (uint64_t)i + 1};
    OK(thread_start(&threads[i], appender_main, &a[i], "append"));
  }
  for (int i = 0; i < 2; i++) OK(thread_start(&threads[APPENDERS + i], syncer_main, c, "sync"));
  OK(thread_start(&threads[APPENDERS + 2], switcher_main, c, "switch"));
  for (int i = 0; i < APPENDERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
  atomic_store(&c->stop, true);
  for (int i = 0; i < 3; i++) assert_int_equal(pthread_join(threads[APPENDERS + i], NULL), 0);
  assert_int_equal(atomic_load(&c->bad), 0);
  const uint64_t nr = atomic_load(&c->published);
  assert_true(nr >= APPENDERS * (PER_THREAD - 3));
  struct wal_stats st;
  wal_stats(c->w, &st);
  assert_int_equal(st.records, nr);
  OK(wal_close(c->w));
  const struct wal_opts o = {.dir = dir, .store_id = STORE};
  assert_int_equal(c->m->oldest_gen > 1, installs);
  OK(wal_open(&o, c->m->oldest_gen, c->m->oldest_seq, false, crowd_replay, c, &rec, &c->w));
  assert_int_equal(rec.last_seq, nr);
  assert_int_equal(rec.nr_records, nr - c->m->oldest_seq);
  assert_int_equal(rec.cut_bytes, 0);
  OK(wal_close(c->w));
  free(c->m);
  free(c);
}

// ---- pages in which a write ends

#define PAGE 4096u

static struct env_ops ask_ops;
static uint64_t asked_at[64];  // pages that were asked for
static uint32_t nr_asked, nr_frames, nr_unasked;
static bool first_frame;
static uint32_t asked_after[8192];  // by the page: after how many full frames it was asked for, at first; 0: never
static uint32_t nr_full, nr_late, first_full;  // first_full: since a sync with a short frame

static int ask_advise(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice) {
  (void)e, (void)fd;
  if (advice != ENV_WILL_NEED) return 0;
  for (uint64_t p = off / PAGE; p < (off + len + PAGE - 1) / PAGE; p++) {
    asked_at[nr_asked++ % 64] = p;
    if (p < 8192 && asked_after[p] == 0) asked_after[p] = nr_full;
  }
  return 0;
}

static ssize_t ask_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  if (len > WAL_BUF / 2 && !first_frame) {
    bool asked = (off + len) % PAGE == 0;
    for (uint32_t i = 0; i < 64 && i < nr_asked; i++) asked = asked || asked_at[i] == (off + len) / PAGE;
    nr_frames++;
    nr_unasked += !asked;
  }
  if (len > WAL_BUF / 2) {
    const uint64_t end = (off + len) / PAGE;
    const uint32_t after = end < 8192 ? asked_after[end] : 0,
                   due = nr_full > first_full + 15 ? nr_full - 15 : first_full + 1;
    nr_late += nr_full > first_full && (after == 0 || after > due);
    nr_full++;
    first_frame = false;
  }
  return env_posix()->ops->pwrite(e, fd, buf, len, off);
}

// Full frames follow each other: each but the first ends in a page that was asked for. Small ones ask for nothing.
static void test_asks_ahead(void **state) {
  (void)state;
  char dir[TEMP_DIR];
  uint8_t value[500] = {0};
  uint64_t gen, seed = check_seed_or(1);
  struct wal *w;
  assert_true(temp_make(dir, "wal"));
  ask_ops = *env_posix()->ops;
  ask_ops.advise = ask_advise;
  ask_ops.pwrite = ask_pwrite;
  struct env mine = {.ops = &ask_ops};
  struct env_dir held;
  OK(env_dir_open(ENV_PATHS(&mine), dir, &held));
  const struct wal_opts o = {.dir = &held, .store_id = STORE};
  OK(wal_open(&o, 1, 0, true, NULL, NULL, NULL, &w));
  nr_asked = nr_frames = nr_unasked = 0;
  first_frame = true;
  for (uint32_t i = 0; i < 8; i++) {
    OK(wal_begin(w, 600, &gen));
    (void)wal_put(w, KV_REC(kref("key", 3), value, 100, false));
    wal_end(w);
    OK(wal_sync(w));
  }
  assert_int_equal(nr_asked, 0);
  for (uint32_t bytes = 0; bytes < 12 * WAL_BUF;) {
    const uint32_t len = (uint32_t)(rng_next(&seed) % sizeof(value));
    OK(wal_begin(w, 600, &gen));
    (void)wal_put(w, KV_REC(kref("key", 3), value, len, false));
    wal_end(w);
    bytes += len;
  }
  assert_true(nr_frames >= 10 && nr_asked >= 2 * nr_frames);
  assert_true(nr_unasked <= 2);  // near the end of the room
  // In a segment that has all of its room, records of one length: the page is asked for 16 frames earlier, or after the
  // first one since the segment began or a sync has cut a frame short.
  for (uint32_t seg = 0; seg < 2; seg++) {
    memset(asked_after, 0, sizeof(asked_after));
    nr_full = nr_late = first_full = 0;
    for (uint32_t left = 200; nr_full < 50;) {
      if (nr_full == 20 && left && --left == 0) {
        OK(wal_sync(w));
        first_full = nr_full;
      }
      OK(wal_begin(w, 600, &gen));
      (void)wal_put(w, KV_REC(kref("key", 3), value, 100, false));
      wal_end(w);
    }
    if (seg == 0) OK(wal_prepare(w));
    if (seg == 0) OK(wal_switch(w, NULL, NULL));
  }
  assert_int_equal(nr_late, 0);
  // Where long records make frames uneven, nobody can tell where later ones end: few pages are asked for.
  static const uint8_t large[60000];
  OK(wal_prepare(w));
  OK(wal_switch(w, NULL, NULL));
  for (nr_asked = nr_full = 0; nr_full < 50;) {
    const uint32_t len = 10000 + (uint32_t)(rng_next(&seed) % 50000);
    OK(wal_begin(w, len + 100, &gen));
    (void)wal_put(w, KV_REC(kref("key", 3), large, len, false));
    wal_end(w);
  }
  assert_true(nr_asked > 0 && nr_asked < 20 * nr_full);
  OK(wal_close(w));
  env_dir_close(&held);
  assert_int_equal(remove_tree(dir), 0);
}

static void test_threads(void **state) {
  struct simdisk *const d = disk_create();
  simdisk_no_allocate(d, true);
  simdisk_short_io(d, 99);
  run_crowd(dir_of(d), *(bool *)*state);
  simdisk_destroy(d);
}

static void test_threads_on_files(void **state) {
  char dir[TEMP_DIR];
  assert_true(temp_make(dir, "wal"));
  struct env_dir held;
  OK(env_dir_open(ENV_PATHS(env_posix()), dir, &held));
  run_crowd(&held, *(bool *)*state);
  env_dir_close(&held);
  assert_int_equal(remove_tree(dir), 0);
}

// Appends and syncs until a call fails. A failing fsync reaches every thread that waits for it.
static void *fail_main(void *arg) {
  struct crowd *const c = arg;
  uint64_t gen;
  for (;;) {
    if (wal_begin(c->w, 20, &gen) != REMIXDB_OK) return NULL;
    (void)wal_put(c->w, KV_REC(kref("k", 1), "v", 1, false));
    wal_end(c->w);
    const enum remixdb_status s = wal_sync(c->w);
    if (s == REMIXDB_OK) continue;
    if (s != REMIXDB_IO) atomic_fetch_add(&c->bad, 1);
    return NULL;
  }
}

static void test_threads_and_a_failing_sync(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct crowd *const c = calloc(1, sizeof(*c));
  struct model *const m = model_create();
  pthread_t threads[APPENDERS];
  assert_non_null(c);
  simdisk_no_allocate(d, true);
  OK(open_model(dir_of(d), m, &c->w));
  simdisk_fault(d, SIMDISK_SYNC, 50, 1, EIO);
  for (int i = 0; i < APPENDERS; i++) OK(thread_start(&threads[i], fail_main, c, "append"));
  for (int i = 0; i < APPENDERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
  assert_int_equal(atomic_load(&c->bad), 0);
  FAILS(wal_close(c->w), REMIXDB_IO);
  free(m);
  free(c);
  simdisk_destroy(d);
}

// ---- a thread that holds the log

struct holding {
  struct wal *w;
  _Atomic bool over;
  _Atomic uint64_t appended;
};

static uint64_t put_one(struct wal *w, enum remixdb_status (*begin)(struct wal *, size_t, uint64_t *)) {
  const struct kv_rec rec = {.key = (const uint8_t *)"key", .klen = 3, .val = (const uint8_t *)"value", .vlen = 5};
  uint64_t gen;
  if (begin(w, kv_rec_size(&rec), &gen) != REMIXDB_OK) return 0;
  const uint64_t seq = wal_put(w, &rec);
  wal_end(w);
  return seq;
}

static void *hold_main(void *arg) {
  struct holding *const h = arg;
  for (bool last = false; !atomic_load(&h->over); last = !last)
    if (put_one(h->w, last ? wal_begin_last : wal_begin)) atomic_fetch_add(&h->appended, 1);
  return NULL;
}

// No record of another thread gets a number meanwhile, whatever the holder does; afterwards they go on.
static void test_hold(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct holding h = {0};
  pthread_t threads[3];
  OK(open_model(dir_of(d), m, &h.w));
  for (int i = 0; i < 3; i++) OK(thread_start(&threads[i], hold_main, &h, "append"));
  for (int i = 0; i < 300; i++) {
    const uint64_t before = atomic_load(&h.appended);
    while (atomic_load(&h.appended) < before + 5) sched_yield();
    const struct kv_rec mark = {.key = (const uint8_t *)"mark", .klen = 4, .kind = KV_TOMB};
    uint64_t gen, turn;
    wal_hold(h.w);
    const uint64_t first = put_one(h.w, wal_begin_held);
    OK(wal_begin(h.w, 0, &gen));  // no bytes do not wait
    wal_end(h.w);
    for (int k = 0; k < 20; k++) sched_yield();
    if (i % 3 == 0) OK(wal_sync(h.w));
    assert_int_equal(put_one(h.w, wal_begin_held), first + 1);
    if (i % 3 != 1) {
      OK(wal_switch_after(h.w, &mark, &turn, NULL, NULL));
      assert_int_equal(turn, first + 2);
      assert_int_equal(put_one(h.w, wal_begin_held), first + 3);
    }
    wal_unhold(h.w);
  }
  atomic_store(&h.over, true);
  for (int i = 0; i < 3; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
  OK(wal_close(h.w));
  free(m);
  simdisk_destroy(d);
}

int main(void) {
  bool replays = false, installs = true;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trip),
      cmocka_unit_test(test_format),
      cmocka_unit_test(test_large_batches),
      cmocka_unit_test(test_replay_status),
      cmocka_unit_test(test_asks_ahead),
      cmocka_unit_test_prestate(test_threads, &replays),
      cmocka_unit_test_prestate(test_threads, &installs),
      cmocka_unit_test_prestate(test_threads_on_files, &replays),
      cmocka_unit_test_prestate(test_threads_on_files, &installs),
      cmocka_unit_test(test_hold),
      cmocka_unit_test(test_threads_and_a_failing_sync),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
