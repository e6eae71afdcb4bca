// SPDX-License-Identifier: Apache-2.0
//
// The write-ahead log on a simulated disk: appending, syncing, switching and releasing segments, replay after power
// cuts and damage, the durability watermark, preparing ahead, threads, and failures of every call.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/simdisk.h"
#include "log/wal.h"

#define STORE 0x5eedf00dcafe1234ull
#define HEAD 512u
#define FRAME_HEAD 40u
#define LEVEL 448u      // of the watermark in the header
#define LEVEL_END 504u  // of what the header's checksum leaves out
#define DIR "/db"

static uint64_t seed_now;  // printed when a check of a random test fails

#define CHECK_SAYS(cond, ...)                                   \
  do {                                                          \
    if (!(cond)) {                                              \
      print_error("seed %llu: ", (unsigned long long)seed_now); \
      print_error(__VA_ARGS__);                                 \
      print_error(" (last message: %s)\n", err_msg());          \
      fail();                                                   \
    }                                                           \
  } while (0)

static uint64_t pick(uint64_t *rng, uint64_t below) { return rng_next(rng) % below; }

// ---- the model: what was appended. A record is made from a tag, so that a stale one is told from the one that should
// be there.

#define MODEL_MAX 60000u

struct model {
  uint64_t tags[MODEL_MAX];         // of record i, from 1 on
  bool ends[MODEL_MAX];             // whether a batch ends with it
  uint64_t nr;                      // appended
  uint64_t synced;                  // acknowledged as durable
  uint64_t oldest_gen, oldest_seq;  // what the version file would say
  uint64_t gen, gen_seq;            // the active segment and the number it began after
  bool fresh;
};

static uint8_t rec_key[256], rec_val[70000];

static struct kv_rec rec_of(uint64_t tag) {
  struct kv_rec r = {.key = rec_key,
                     .val = rec_val,
                     .klen = (uint32_t)(tag % 40),
                     .vlen = (uint32_t)((tag >> 8) % 160)};
  r.tomb = (tag >> 16) % 8 == 0;
  if ((tag >> 20) % 64 == 0) r.vlen = 20000 + (uint32_t)((tag >> 32) % 40000);
  if (r.tomb) r.vlen = 0;
  uint64_t rng = tag;
  for (uint32_t i = 0; i < r.klen; i += 8) store64le(rec_key + i, rng_next(&rng));
  for (uint32_t i = 0; i < r.vlen; i += 8) store64le(rec_val + i, rng_next(&rng));
  return r;
}

static struct model *model_create(void) {
  struct model *const m = calloc(1, sizeof(*m));
  assert_non_null(m);
  m->fresh = true;
  m->oldest_gen = 1;
  return m;
}

struct replay {
  const struct model *m;
  uint64_t next;
};

static enum remixdb_status replay_check(void *arg, uint64_t seq, const struct kv_rec *rec) {
  struct replay *const r = arg;
  CHECK_SAYS(seq == r->next, "record %llu where %llu should be", (unsigned long long)seq, (unsigned long long)r->next);
  CHECK_SAYS(seq <= r->m->nr, "record %llu was never appended", (unsigned long long)seq);
  const struct kv_rec want = rec_of(r->m->tags[seq]);
  const bool same = rec->klen == want.klen && rec->vlen == want.vlen && rec->tomb == want.tomb &&
                    memcmp(rec->key, want.key, want.klen) == 0 && memcmp(rec->val, want.val, want.vlen) == 0;
  CHECK_SAYS(same, "record %llu is not the one appended", (unsigned long long)seq);
  r->next++;
  return REMIXDB_OK;
}

static void check_recovered(const struct model *m, const struct wal_recovery *rec) {
  const unsigned long long synced = m->synced, found = rec->last_seq;
  CHECK_SAYS(found >= synced, "%llu were synced, %llu recovered", synced, found);
  CHECK_SAYS(found == m->oldest_seq || m->ends[found], "half a batch was recovered");
}

static enum remixdb_status open_as(const struct env_dir *dir, const struct model *m, bool read_only,
                                   struct wal_recovery *rec, struct wal **out) {
  const struct wal_opts o = {.dir = dir, .store_id = STORE, .read_only = read_only};
  struct replay r = {m, m->oldest_seq + 1};
  *out = NULL;
  const enum remixdb_status s = wal_open(&o, m->oldest_gen, m->oldest_seq, m->fresh, replay_check, &r, rec, out);
  assert_int_equal(s == REMIXDB_OK, *out != NULL);
  if (s == REMIXDB_OK) CHECK_SAYS(rec->last_seq + 1 == r.next, "last_seq is not of the last record");
  return s;
}

// Opens for writing; on success the model is cut to what was recovered.
static enum remixdb_status open_model(const struct env_dir *dir, struct model *m, struct wal **out) {
  struct wal_recovery rec;
  const enum remixdb_status s = open_as(dir, m, false, &rec, out);
  if (s != REMIXDB_OK) return s;
  check_recovered(m, &rec);
  m->nr = m->synced = m->gen_seq = rec.last_seq;
  m->gen = wal_gen(*out);
  m->fresh = false;
  assert_int_equal(wal_durable_seq(*out), m->nr);
  return s;
}

// One batch of nr records.
static enum remixdb_status append_by(struct wal *w, struct model *m, uint64_t *rng, uint32_t nr,
                                     enum remixdb_status (*begin)(struct wal *w, size_t nbytes, uint64_t *gen_out)) {
  size_t bytes = 0;
  uint64_t gen;
  if (m->nr + nr >= MODEL_MAX) return REMIXDB_OK;
  for (uint32_t i = 1; i <= nr; i++) {
    m->tags[m->nr + i] = rng_next(rng);
    m->ends[m->nr + i] = i == nr;
    const struct kv_rec r = rec_of(m->tags[m->nr + i]);
    bytes += kv_rec_size(r.klen, r.vlen, r.tomb);
  }
  const enum remixdb_status s = begin(w, bytes, &gen);
  if (s != REMIXDB_OK) return s;
  assert_int_equal(gen, m->gen);
  for (uint32_t i = 0; i < nr; i++) {
    const struct kv_rec r = rec_of(m->tags[m->nr + 1]);
    const uint64_t seq = wal_put(w, kref(r.key, r.klen), r.val, r.vlen, r.tomb);
    m->nr++;
    assert_int_equal(seq, m->nr);
  }
  wal_end(w);
  return REMIXDB_OK;
}

static enum remixdb_status append(struct wal *w, struct model *m, uint64_t *rng, uint32_t nr) {
  return append_by(w, m, rng, nr, wal_begin);
}

static enum remixdb_status sync_model(struct wal *w, struct model *m) {
  const enum remixdb_status s = wal_sync(w);
  if (s != REMIXDB_OK) return s;
  m->synced = m->nr;
  assert_int_equal(wal_durable_seq(w), m->nr);
  return s;
}

static void switched(void *arg, uint64_t gen) {
  struct model *const m = arg;
  assert_true(gen > m->gen);
  m->gen = gen;
  m->gen_seq = m->nr;
}

// Does the work of an installed version: everything before the active segment becomes unnecessary.
static enum remixdb_status release_model(struct wal *w, struct model *m) {
  const enum remixdb_status s = sync_model(w, m);
  if (s != REMIXDB_OK) return s;
  m->oldest_gen = m->gen;
  m->oldest_seq = m->gen_seq;
  return wal_release(w, m->gen);
}

static struct simdisk *disk_create(void) {
  struct simdisk *const d = simdisk_create();
  struct env *const e = simdisk_env(d);
  OK(env_mkdir(ENV_PATHS(e), DIR));
  OK(paths_sync_dir(e, "/"));
  return d;
}

// The image must open and hold a prefix with all that was synced; opening read-only must change nothing.
static void check_image(struct simdisk *d, const struct model *m) {
  struct wal *w;
  struct wal_recovery rec;
  const uint64_t changes = simdisk_changes(d);
  const enum remixdb_status s = open_as(simdisk_dir(simdisk_env(d), DIR), m, true, &rec, &w);
  CHECK_SAYS(s == REMIXDB_OK, "status %d after a crash", s);
  check_recovered(m, &rec);
  uint64_t gen;
  FAILS(wal_begin(w, 10, &gen), REMIXDB_READONLY);
  OK(wal_sync(w));
  OK(wal_flush(w));
  OK(wal_close(w));
  assert_int_equal(simdisk_changes(d), changes);
}

// The file that holds a generation; the path is static.
static const char *file_of(struct simdisk *d, uint64_t gen) {
  static char path[64];
  for (int i = 0; i < 20; i++) {
    uint8_t head[HEAD];
    (void)snprintf(path, sizeof(path), DIR "/wal-%d", i);
    if (simdisk_peek(d, path, 0, head, HEAD) && memcmp(head, "#REMXWAL", 8) == 0 && load64le(head + 24) == gen)
      return path;
  }
  return NULL;
}

static unsigned nr_files(struct simdisk *d) {
  unsigned nr = 0;
  for (int i = 0; i < 50; i++) {
    char path[64];
    (void)snprintf(path, sizeof(path), DIR "/wal-%d", i);
    nr += simdisk_size(d, path) >= 0;
  }
  return nr;
}

// ---- plain use

static void test_round_trip(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct env *const e = simdisk_env(d);
  struct model *const m = model_create();
  struct wal *w;
  struct wal_stats st;
  uint64_t rng = 1;
  for (int round = 0; round < 4; round++) {
    OK(open_model(simdisk_dir(e, DIR), m, &w));
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
  OK(open_model(simdisk_dir(e, DIR), m, &w));
  assert_int_equal(m->nr, 4000);
  OK(wal_close(w));
  free(m);
  simdisk_destroy(d);
}

// docs/FORMAT.md, read with nothing but its words.
static void test_format(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint8_t b[4096];
  uint64_t gen;
  m->oldest_gen = 7;
  m->oldest_seq = 41;
  const struct wal_opts o = {.dir = simdisk_dir(simdisk_env(d), DIR), .store_id = STORE};
  OK(wal_open(&o, 7, 41, true, NULL, NULL, NULL, &w));
  OK(wal_begin(w, 100, &gen));
  assert_int_equal(gen, 7);
  assert_int_equal(wal_put(w, kref("key", 3), "value", 5, false), 42);
  assert_int_equal(wal_put(w, kref("gone", 4), NULL, 0, true), 43);
  wal_end(w);
  OK(wal_sync(w));
  OK(wal_begin(w, 3, &gen));
  assert_int_equal(wal_put(w, kref("", 0), "", 0, false), 44);
  wal_end(w);
  OK(wal_close(w));

  assert_true(simdisk_peek(d, DIR "/wal-0", 0, b, sizeof(b)));
  assert_memory_equal(b, "#REMXWAL", 8);
  assert_int_equal(load32le(b + 8), 2);
  assert_int_equal(load32le(b + 12), 0);
  assert_int_equal(load64le(b + 16), STORE);
  assert_int_equal(load64le(b + 24), 7);
  assert_int_equal(load64le(b + 32), 0);
  assert_int_equal(load64le(b + 40), 0);
  assert_int_equal(load64le(b + 48), 0);
  assert_int_equal(load64le(b + 56), 41);
  for (int i = 64; i < 448; i++) assert_int_equal(b[i], 0);
  for (int i = 472; i < 504; i++) assert_int_equal(b[i], 0);
  assert_int_equal(load64le(b + 504), hash64(b, 448));

  uint8_t id[16];
  store64le(id, STORE);
  store64le(id + 8, 7);
  const uint64_t seed = hash64(id, 16);
  static const uint8_t recs[] = {6, 5, 'k', 'e', 'y', 'v', 'a', 'l', 'u', 'e', 9, 'g', 'o', 'n', 'e'};
  const uint8_t *f = b + 512;
  assert_int_equal(load64le(f), hash64_seed(f + 8, 32 + sizeof(recs), seed + 512));
  assert_int_equal(load32le(f + 8), (uint32_t)(seed >> 32) | 1);
  assert_int_equal(load32le(f + 12), sizeof(recs));
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
  free(m);
  simdisk_destroy(d);
}

// A new log whose segments grow by so much.
static struct wal *open_steps(struct simdisk *d, struct model *m, uint32_t step) {
  const struct wal_opts o = {.dir = simdisk_dir(simdisk_env(d), DIR), .store_id = STORE, .step = step};
  struct replay r = {m, m->oldest_seq + 1};
  struct wal_recovery rec;
  struct wal *w;
  OK(wal_open(&o, m->oldest_gen, m->oldest_seq, m->fresh, replay_check, &r, &rec, &w));
  m->gen = wal_gen(w);
  m->fresh = false;
  return w;
}

// Small steps, and nothing kept that is not needed.
static void test_small(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  const uint32_t step = 64u << 10;
  struct wal_stats st;
  uint64_t rng = 3;
  struct wal *w = open_steps(d, m, step);
  assert_int_equal(simdisk_size(d, DIR "/wal-0"), step);
  for (int round = 0; round < 3; round++) {
    while (wal_segment_bytes(w) < 3 * step) OK(append(w, m, &rng, 3));
    OK(sync_model(w, m));
    assert_true(simdisk_used(d) < (uint64_t)(nr_files(d) + 1) * 5 * step);
    OK(wal_switch(w, switched, m));
    OK(append(w, m, &rng, 1));
    OK(release_model(w, m));
    OK(wal_prepare(w));
    if (round) continue;
    assert_true(nr_files(d) > 1);
    OK(wal_shed(w));
    assert_int_equal(nr_files(d), 1);
    wal_stats(w, &st);
    assert_int_equal(st.segments, 1);
    assert_int_equal(st.pool_segments, 0);
    OK(wal_shed(w));
  }
  // a file that cannot be removed is kept, as a spare
  simdisk_fault(d, SIMDISK_UNLINK, 0, 1, EIO);
  FAILS(wal_shed(w), REMIXDB_IO);
  OK(wal_switch(w, switched, m));
  OK(append(w, m, &rng, 2));
  OK(wal_close(w));
  OK(open_model(simdisk_dir(simdisk_env(d), DIR), m, &w));
  OK(wal_close(w));
  free(m);
  simdisk_destroy(d);
}

// Calls that wait for the file system, but for writes.
static uint64_t waits(struct simdisk *d) {
  return simdisk_calls(d, SIMDISK_OPEN) + simdisk_calls(d, SIMDISK_ALLOCATE) + simdisk_calls(d, SIMDISK_SYNC);
}

// wal_ahead does its work when it is wanted, nothing unnecessary, and nobody else does that work.
static void test_ahead(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  const uint32_t step = 2u << 20;
  uint64_t rng = 31, before;
  struct wal *const w = open_steps(d, m, step);
  before = waits(d);
  wal_ahead(w);
  assert_int_equal(waits(d), before);
  assert_int_equal(simdisk_size(d, DIR "/wal-0"), WAL_FIRST);
  while (wal_segment_bytes(w) < WAL_FIRST / 2 - 4096) {
    assert_false(wal_ahead_pending(w));
    OK(append(w, m, &rng, 1));
  }
  assert_int_equal(nr_files(d), 1);
  for (int segment = 0; segment < 2; segment++) {
    uint32_t helped = 0;
    while (wal_segment_bytes(w) < 4 * step) {
      before = waits(d);
      OK(append(w, m, &rng, 1));
      assert_int_equal(waits(d), before);
      if (!wal_ahead_pending(w)) continue;
      wal_ahead(w);
      assert_false(wal_ahead_pending(w));
      assert_true(waits(d) > before);
      helped++;
    }
    // once in each step, and before each time that the room doubles; the second segment has its room from the beginning
    assert_in_range(helped, segment ? 0 : 7, segment ? 1 : 10);
    if (segment == 1) {
      // the header has not been synced: nothing is made ready before; nor while there is an older segment, which will
      // serve
      assert_int_equal(nr_files(d), 2);
      OK(sync_model(w, m));
      wal_ahead(w);
      assert_int_equal(nr_files(d), 2);
      OK(release_model(w, m));
      OK(wal_prepare(w));
    }
    assert_int_equal(nr_files(d), 2);
    // what was given up is made again
    OK(wal_shed(w));
    assert_int_equal(nr_files(d), 1);
    while (!wal_ahead_pending(w)) OK(append(w, m, &rng, 50));
    wal_ahead(w);
    assert_int_equal(nr_files(d), 2);
    const uint64_t room = (uint64_t)simdisk_size(d, segment ? DIR "/wal-1" : DIR "/wal-0");
    assert_in_range(room, 4 * step, 5 * step);
    assert_int_equal(simdisk_size(d, segment ? DIR "/wal-0" : DIR "/wal-1"), room);
    before = waits(d);
    OK(wal_switch(w, switched, m));
    assert_int_equal(waits(d), before);
  }
  // A segment that nobody made ready is no larger than it must be, nor one that is made ready when the active one is
  // small.
  OK(sync_model(w, m));
  OK(wal_switch(w, switched, m));
  assert_int_equal(simdisk_size(d, DIR "/wal-2"), WAL_FIRST);
  OK(wal_prepare(w));
  assert_int_equal(simdisk_size(d, DIR "/wal-3"), WAL_FIRST);
  OK(wal_close(w));
  free(m);
  simdisk_destroy(d);
}

// Without wal_ahead who appends makes room, before it is needed; and a disk that is full for what is made ahead takes
// all that is needed now.
static void test_ahead_alone(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  const uint32_t step = 4u << 20;
  uint64_t rng = 32;
  struct wal *const w = open_steps(d, m, step);
  while (wal_segment_bytes(w) < step) OK(append(w, m, &rng, 20));
  while (wal_segment_bytes(w) < 3 * step) {
    OK(append(w, m, &rng, 20));
    assert_true((uint64_t)simdisk_size(d, DIR "/wal-0") >= wal_segment_bytes(w) + step / 4 - WAL_BUF - 4096);
    assert_true((uint64_t)simdisk_size(d, DIR "/wal-0") <= wal_segment_bytes(w) + step + step / 4);
  }
  assert_int_equal(nr_files(d), 1);
  // room for one step, and not for as much as the active one has
  assert_true(wal_ahead_pending(w));
  simdisk_space(d, simdisk_used(d) + WAL_FIRST + WAL_FIRST / 2);
  const uint64_t room = (uint64_t)simdisk_size(d, DIR "/wal-0");
  wal_ahead(w);
  assert_int_equal(simdisk_size(d, DIR "/wal-0"), room);
  assert_int_equal(simdisk_size(d, DIR "/wal-1"), WAL_FIRST);
  // not tried again and again
  OK(append(w, m, &rng, 500));
  const uint64_t before = waits(d);
  if (wal_ahead_pending(w)) wal_ahead(w);
  assert_in_range(waits(d) - before, 0, 1);
  OK(sync_model(w, m));
  simdisk_space(d, UINT64_MAX);
  OK(wal_prepare(w));
  assert_true(simdisk_size(d, DIR "/wal-1") >= simdisk_size(d, DIR "/wal-0"));
  OK(wal_switch(w, switched, m));
  OK(append(w, m, &rng, 20));
  // after an error that stays nothing is done
  OK(sync_model(w, m));
  while ((uint64_t)simdisk_size(d, DIR "/wal-1") > wal_segment_bytes(w) + step / 2 - WAL_BUF)
    OK(append(w, m, &rng, 20));
  assert_true(wal_ahead_pending(w));
  simdisk_fault(d, SIMDISK_SYNC, 0, 1, EIO);
  FAILS(wal_sync(w), REMIXDB_IO);
  simdisk_fault(d, SIMDISK_SYNC, 0, 0, 0);
  const uint64_t changes = simdisk_changes(d);
  wal_ahead(w);
  assert_int_equal(simdisk_changes(d), changes);
  FAILS(wal_close(w), REMIXDB_IO);
  free(m);
  simdisk_destroy(d);
}

static void test_switch_and_recycle(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct env *const e = simdisk_env(d);
  struct model *const m = model_create();
  struct wal *w;
  struct wal_stats st;
  uint64_t rng = 2;
  simdisk_no_allocate(d, true);
  OK(open_model(simdisk_dir(e, DIR), m, &w));
  for (int i = 0; i < 5; i++) {  // nothing released: five more files
    for (int k = 0; k < 50; k++) OK(append(w, m, &rng, 1 + (uint32_t)pick(&rng, 3)));
    if (i & 1) OK(wal_prepare(w));
    const uint64_t gen = m->gen;
    OK(wal_switch(w, switched, m));
    assert_int_equal(m->gen, gen + 1);
    assert_int_equal(wal_gen(w), gen + 1);
    assert_int_equal(wal_segment_bytes(w), HEAD);
  }
  assert_int_equal(nr_files(d), 6);
  OK(append(w, m, &rng, 1));
  wal_stats(w, &st);
  assert_int_equal(st.segments, 6);
  OK(wal_close(w));
  OK(open_model(simdisk_dir(e, DIR), m, &w));
  assert_int_equal(nr_files(d), 7);
  OK(release_model(w, m));  // one active, two spares
  assert_int_equal(nr_files(d), 3);
  wal_stats(w, &st);
  assert_int_equal(st.segments, 1);
  assert_int_equal(st.pool_segments, 2);
  for (int i = 0; i < 8; i++) {  // the files go round
    for (int k = 0; k < 20; k++) OK(append(w, m, &rng, 2));
    OK(wal_switch(w, switched, m));
    for (int k = 0; k < 5; k++) OK(append(w, m, &rng, 2));
    OK(release_model(w, m));
    assert_int_equal(nr_files(d), 3);
  }
  OK(wal_release(w, UINT64_MAX));  // the active one stays whatever is asked
  OK(append(w, m, &rng, 2));
  OK(wal_close(w));
  const uint64_t nr = m->nr;
  check_image(d, m);
  OK(open_model(simdisk_dir(e, DIR), m, &w));
  assert_int_equal(m->nr, nr);
  assert_int_equal(nr_files(d), 2);  // those that were kept went with the end, and this is another one
  OK(wal_close(w));
  free(m);
  simdisk_destroy(d);
}

static void test_large_batches(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct env *const e = simdisk_env(d);
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 3, gen;
  OK(open_model(simdisk_dir(e, DIR), m, &w));
  for (int i = 0; i < 3; i++) {
    OK(append(w, m, &rng, 10));
    OK(append(w, m, &rng, 4000));
  }
  struct wal_stats st;
  wal_stats(w, &st);
  assert_int_equal(st.buffer_bytes, 4 * WAL_BUF);  // what the batches took was given back
  FAILS(wal_begin(w, (size_t)2 << 30, &gen), REMIXDB_TOOBIG);
  // a begin whose caller then has nothing to say
  OK(wal_begin(w, 1000, &gen));
  wal_end(w);
  OK(wal_begin(w, 1000000, &gen));
  wal_end(w);
  OK(wal_begin(w, 0, &gen));
  wal_end(w);
  OK(append(w, m, &rng, 4000));
  OK(wal_close(w));
  OK(open_model(simdisk_dir(e, DIR), m, &w));
  assert_int_equal(m->nr, 3 * 4010 + 4000);
  OK(wal_close(w));
  free(m);
  simdisk_destroy(d);
}

static enum remixdb_status replay_refuse(void *arg, uint64_t seq, const struct kv_rec *rec) {
  (void)arg, (void)rec;
  return seq == 3 ? REMIXDB_NOMEM : REMIXDB_OK;
}

static void test_replay_status(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct env *const e = simdisk_env(d);
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 4;
  OK(open_model(simdisk_dir(e, DIR), m, &w));
  for (int i = 0; i < 5; i++) OK(append(w, m, &rng, 1));
  OK(wal_close(w));
  const struct wal_opts o = {.dir = simdisk_dir(e, DIR), .store_id = STORE};
  const uint64_t changes = simdisk_changes(d);
  FAILS(wal_open(&o, 1, 0, false, replay_refuse, NULL, NULL, &w), REMIXDB_NOMEM);
  assert_null(w);
  FAILS(wal_open(&o, 1, 1, false, NULL, NULL, NULL, &w), REMIXDB_CORRUPT);  // the numbers do not follow
  assert_int_equal(simdisk_changes(d), changes);
  free(m);
  simdisk_destroy(d);
}

// ---- crashes

static void crash_round(struct simdisk **disk, struct model *m, uint64_t *rng) {
  struct simdisk *d = *disk;
  struct wal *w = NULL;
  simdisk_no_allocate(d, pick(rng, 16) != 0);  // large files are slow here
  if (pick(rng, 4) == 0) simdisk_short_io(d, rng_next(rng) | 1);
  if (pick(rng, 4) != 0) simdisk_power_off(d, pick(rng, pick(rng, 2) ? 12 : 60));
  enum remixdb_status s = open_model(simdisk_dir(simdisk_env(d), DIR), m, &w);
  CHECK_SAYS(s == REMIXDB_OK || (s == REMIXDB_IO && simdisk_is_off(d)), "open: status %d", s);
  const uint64_t nr_ops = s == REMIXDB_OK ? pick(rng, 40) : 0;
  for (uint64_t i = 0; i < nr_ops && s == REMIXDB_OK; i++) {
    const uint64_t dice = pick(rng, 100);
    if (dice < 55) s = append(w, m, rng, 1 + (uint32_t)pick(rng, 4));
    else if (dice < 58) s = append(w, m, rng, 60 + (uint32_t)pick(rng, 300));
    else if (dice < 72) s = wal_flush(w);
    else if (dice < 84) s = sync_model(w, m);
    else if (dice < 86) s = wal_prepare(w);
    else if (dice < 88) s = wal_mark(w);
    else if (dice < 96) s = wal_switch(w, switched, m);
    else s = release_model(w, m);
    CHECK_SAYS(s == REMIXDB_OK || (s == REMIXDB_IO && simdisk_is_off(d)), "op %llu: status %d",
               (unsigned long long)dice, s);
  }
  if (w) {
    if (!simdisk_is_off(d) && pick(rng, 4) != 0)
      simdisk_power_off(d, pick(rng, 2) * pick(rng, 8));  // no clean end, or half of one
    s = wal_close(w);
    if (s == REMIXDB_OK) m->synced = m->nr;
  }
  // Several disks that this cut could leave; the last one goes on.
  for (int i = 0; i < 3; i++) {
    struct simdisk *const c = simdisk_crash(*disk, rng_next(rng));
    if (!m->fresh) check_image(c, m);
    if (i < 2) {
      simdisk_destroy(c);
    } else {
      simdisk_destroy(*disk);
      *disk = c;
    }
  }
}

static void test_crashes(void **state) {
  (void)state;
  const char *const given = getenv("WAL_SEED");
  const char *const many = getenv("WAL_SEEDS");
  const uint64_t first = given ? strtoull(given, NULL, 0) : 1, nr = given ? 1 : many ? strtoull(many, NULL, 0) : 40;
  for (uint64_t seed = first; seed < first + nr; seed++) {
    seed_now = seed;
    uint64_t rng = seed;
    struct simdisk *d = disk_create();
    struct model *const m = model_create();
    for (int round = 0; round < 10; round++) crash_round(&d, m, &rng);
    free(m);
    simdisk_destroy(d);
  }
}

// A process that dies leaves all it wrote in the system's memory: only what was in its own buffers is lost.
static void test_process_death(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 9;
  OK(open_model(simdisk_dir(simdisk_env(d), DIR), m, &w));
  for (int i = 0; i < 100; i++) OK(append(w, m, &rng, 1));
  OK(wal_flush(w));
  const uint64_t flushed = m->nr;
  OK(append(w, m, &rng, 1));
  simdisk_fault(d, SIMDISK_WRITE, 0, UINT64_MAX, EIO);
  FAILS(wal_close(w), REMIXDB_IO);
  simdisk_fault(d, SIMDISK_WRITE, 0, 0, 0);
  OK(open_model(simdisk_dir(simdisk_env(d), DIR), m, &w));
  assert_int_equal(m->nr, flushed);
  // opening made it durable: a power cut now changes nothing
  simdisk_power_off(d, 0);
  for (uint64_t seed = 0; seed < 10; seed++) {
    struct simdisk *const c = simdisk_crash(d, seed);
    check_image(c, m);
    simdisk_destroy(c);
  }
  FAILS(wal_close(w), REMIXDB_IO);  // nothing was left to do, not even to mark, but to give room back
  free(m);
  simdisk_destroy(d);
}

// ---- damage

// The process dies: what it wrote is there, what it had in its buffers is not, and the log is not closed.
static void die(struct simdisk *d, struct wal *w) {
  simdisk_fault(d, SIMDISK_WRITE, 0, UINT64_MAX, EIO);
  simdisk_fault(d, SIMDISK_SYNC, 0, UINT64_MAX, EIO);
  (void)(wal_close(w) == REMIXDB_OK);
  simdisk_fault(d, SIMDISK_WRITE, 0, 0, 0);
  simdisk_fault(d, SIMDISK_SYNC, 0, 0, 0);
}

// Three live segments and a spare or two. *proven: the offset of the active one up to which damage must be found: all
// when the log is closed; else what the last sync made durable, which a frame behind it states.
static struct simdisk *damage_disk(struct model *m, uint64_t seed, bool closed, uint64_t *proven) {
  struct simdisk *const d = disk_create();
  struct wal *w;
  uint64_t rng = seed;
  simdisk_no_allocate(d, true);
  OK(open_model(simdisk_dir(simdisk_env(d), DIR), m, &w));
  for (int seg = 0; seg < 5; seg++) {
    for (int i = 0; i < 12; i++) {
      OK(append(w, m, &rng, 1 + (uint32_t)pick(&rng, 3)));
      if (i % 3 == 0) OK(wal_flush(w));
      if (i % 5 == 0) OK(sync_model(w, m));
    }
    if (seg < 4) OK(wal_switch(w, switched, m));
    if (seg == 1) OK(release_model(w, m));
  }
  OK(sync_model(w, m));
  *proven = wal_segment_bytes(w);
  OK(append(w, m, &rng, 2));
  if (closed) {
    OK(sync_model(w, m));
    *proven = wal_segment_bytes(w);
    OK(wal_close(w));
  } else {
    OK(wal_flush(w));
    die(d, w);
  }
  return d;
}

static void test_flips(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 6; seed++) {
    seed_now = seed;
    struct model *const m = model_create();
    uint64_t proven, rng = seed * 77;
    struct simdisk *const d = damage_disk(m, seed, seed & 1, &proven);
    for (int i = 0; i < 300; i++) {
      const uint64_t gen = m->oldest_gen + pick(&rng, m->gen - m->oldest_gen + 1);
      const char *const path = file_of(d, gen);
      assert_non_null(path);
      const uint64_t size = (uint64_t)simdisk_size(d, path);
      uint8_t next_head[HEAD];
      uint64_t durable = proven;
      char name[64];
      (void)snprintf(name, sizeof(name), "%s", path);
      if (gen < m->gen) {  // the next one knows its final length; what a recycled file has behind that does not matter
        assert_true(simdisk_peek(d, file_of(d, gen + 1), 0, next_head, HEAD));
        durable = load64le(next_head + 40);
      }
      const uint64_t off = pick(&rng, 3) == 0 ? pick(&rng, HEAD) : pick(&rng, size);
      const uint8_t mask = (uint8_t)(1u << pick(&rng, 8));
      assert_true(simdisk_flip(d, name, off, mask));
      struct wal *w;
      struct wal_recovery rec;
      const enum remixdb_status s = open_as(simdisk_dir(simdisk_env(d), DIR), m, true, &rec, &w);
      const bool watermark = off >= LEVEL && off < LEVEL_END;
      CHECK_SAYS(s == REMIXDB_CORRUPT || off >= durable || watermark,
                 "generation %llu, byte %llu before %llu flipped: status %d", (unsigned long long)gen,
                 (unsigned long long)off, (unsigned long long)durable, s);
      CHECK_SAYS(s == REMIXDB_OK || s == REMIXDB_CORRUPT, "status %d", s);
      CHECK_SAYS(s == REMIXDB_OK || !watermark, "a watermark damaged, and nothing else");
      if (s == REMIXDB_OK) {
        assert_true(rec.last_seq >= m->synced);
        if (gen < m->gen) assert_int_equal(rec.last_seq, m->nr);
        OK(wal_close(w));
      } else {
        CHECK_SAYS(strstr(err_msg(), DIR) != NULL, "a message without the place");
      }
      assert_true(simdisk_flip(d, name, off, mask));
    }
    check_image(d, m);
    free(m);
    simdisk_destroy(d);
  }
}

// Runs of rubbish, zeroes, and cut files, anywhere: never a crash, never a record that was not appended.
static void test_rubbish(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 150; seed++) {
    seed_now = seed;
    struct model *const m = model_create();
    uint64_t proven, rng = seed * 33;
    struct simdisk *const d = damage_disk(m, seed % 5, seed & 1, &proven);
    for (uint64_t k = 1 + pick(&rng, 3); k > 0; k--) {
      char path[64];
      uint8_t bytes[600];
      (void)snprintf(path, sizeof(path), DIR "/wal-%d", (int)pick(&rng, nr_files(d)));
      const uint64_t size = (uint64_t)simdisk_size(d, path);
      const size_t len = 1 + (size_t)pick(&rng, sizeof(bytes));
      const uint64_t off = pick(&rng, size > len ? size - len : 1);
      const uint64_t how = pick(&rng, 3);
      for (size_t i = 0; i < sizeof(bytes); i++) bytes[i] = how ? (uint8_t)rng_next(&rng) : 0;
      if (how < 2 && off + len <= size) assert_true(simdisk_poke(d, path, off, bytes, len));
      if (how == 2) {
        int fd;
        OK(env_open(ENV_PATHS(simdisk_env(d)), path, ENV_READ | ENV_WRITE, &fd));
        OK(env_truncate(simdisk_env(d), fd, path, off));
        OK(env_sync_all(simdisk_env(d), fd, path));
        OK(env_close(simdisk_env(d), fd, path));
      }
    }
    struct wal *w;
    struct wal_recovery rec;
    const enum remixdb_status s = open_as(simdisk_dir(simdisk_env(d), DIR), m, false, &rec, &w);
    CHECK_SAYS(s == REMIXDB_OK || s == REMIXDB_CORRUPT, "status %d", s);
    if (s == REMIXDB_OK) OK(wal_close(w));
    free(m);
    simdisk_destroy(d);
  }
}

static void copy_file(struct simdisk *d, const char *from, const char *to) {
  struct env *const e = simdisk_env(d);
  const size_t len = (size_t)simdisk_size(d, from);
  uint8_t *const b = malloc(len);
  int fd;
  assert_non_null(b);
  assert_true(simdisk_peek(d, from, 0, b, len));
  OK(env_open(ENV_PATHS(e), to, ENV_READ | ENV_WRITE | ENV_CREATE, &fd));
  OK(env_write(e, fd, to, b, len, 0));
  OK(env_close(e, fd, to));
  free(b);
}

static void test_wrong_files(void **state) {
  (void)state;
  uint64_t proven;
  for (int what = 0; what < 14; what++) {
    struct model *const m = model_create();
    struct simdisk *const d = damage_disk(m, 5, what & 1, &proven);
    struct env *const e = simdisk_env(d);
    const uint64_t gens[] = {m->oldest_gen, m->oldest_gen + 1, m->gen};
    enum remixdb_status want = REMIXDB_CORRUPT;
    char path[64], said[32] = "";
    uint8_t head[HEAD];
    (void)snprintf(path, sizeof(path), "%s", file_of(d, gens[what % 3]));
    assert_true(simdisk_peek(d, path, 0, head, HEAD));
    switch (what) {
      case 0:  // the oldest and a middle one are gone
      case 1:
        OK(env_unlink(ENV_PATHS(e), path));
        (void)snprintf(said, sizeof(said), "%llu is missing", (unsigned long long)gens[what]);
        break;
      case 2:  // a generation twice
        copy_file(d, path, DIR "/wal-17");
        (void)snprintf(said, sizeof(said), "wal-17");
        break;
      case 3:  // a later format, with a sound checksum
      case 4:
        store32le(head + 8, 3);
        store64le(head + 504, hash64(head, LEVEL));
        assert_true(simdisk_poke(d, path, 0, head, HEAD));
        want = REMIXDB_VERSION;
        break;
      case 7:  // the first layout there was: a checksum of all before it
      case 8:
        store32le(head + 8, 1);
        memset(head + LEVEL, 0, 504 - LEVEL);
        store64le(head + 504, hash64(head, 504));
        assert_true(simdisk_poke(d, path, 0, head, HEAD));
        (void)snprintf(said, sizeof(said), "older");
        want = REMIXDB_VERSION;
        break;
      case 9:  // which is no header in any other version, nor with a checksum that is wrong
        store32le(head + 8, 2);
        store64le(head + 504, hash64(head, 504));
        assert_true(simdisk_poke(d, path, 0, head, HEAD));
        break;
      case 10:
        store32le(head + 8, 1);
        store64le(head + 504, hash64(head, 504) ^ 1);
        assert_true(simdisk_poke(d, path, 0, head, HEAD));
        break;
      case 11:  // a number that no format has
        store32le(head + 8, 0);
        store64le(head + 504, hash64(head, LEVEL));
        assert_true(simdisk_poke(d, path, 0, head, HEAD));
        want = REMIXDB_VERSION;
        break;
      case 12:  // today's layout under the number 1
        store32le(head + 8, 1);
        store64le(head + 504, hash64(head, LEVEL));
        assert_true(simdisk_poke(d, path, 0, head, HEAD));
        want = REMIXDB_OK;
        break;
      case 5:  // another store's
        store64le(head + 16, STORE + 1);
        store64le(head + 504, hash64(head, LEVEL));
        assert_true(simdisk_poke(d, path, 0, head, HEAD));
        break;
      case 6:  // a header that leads to itself
        (void)snprintf(path, sizeof(path), "%s", file_of(d, gens[2]));
        assert_true(simdisk_peek(d, path, 0, head, HEAD));
        store64le(head + 32, gens[2]);
        store64le(head + 504, hash64(head, LEVEL));
        assert_true(simdisk_poke(d, path, 0, head, HEAD));
        break;
      default:  // names that are not the log's are left alone
        copy_file(d, path, DIR "/wal-017");
        copy_file(d, path, DIR "/wal-x");
        copy_file(d, path, DIR "/wal-1234567890");
        want = REMIXDB_OK;
        break;
    }
    struct wal *w;
    struct wal_recovery rec;
    const uint64_t changes = simdisk_changes(d);
    assert_int_equal(open_as(simdisk_dir(e, DIR), m, what < 12 && (what & 1), &rec, &w), want);
    if (w) {
      OK(wal_close(w));
    } else {
      assert_int_equal(simdisk_changes(d), changes);
      assert_non_null(strstr(err_msg(), DIR));
      assert_non_null(strstr(err_msg(), said));
    }
    free(m);
    simdisk_destroy(d);
  }
}

// Generations and sequence numbers count up from small ones: where they are about to wrap around nothing can be true.
static void test_numbers_at_their_end(void **state) {
  (void)state;
  for (uint64_t below = 0; below < 4; below++) {
    struct model *const m = model_create();
    uint64_t proven;
    struct simdisk *const d = damage_disk(m, 5, true, &proven);
    const uint64_t gen = m->oldest_gen, seq = m->oldest_seq, changes = simdisk_changes(d);
    struct wal_recovery rec;
    struct wal *w;
    uint8_t head[HEAD];
    m->oldest_seq = UINT64_MAX - below;
    FAILS(open_as(simdisk_dir(simdisk_env(d), DIR), m, false, &rec, &w), REMIXDB_CORRUPT);
    m->oldest_seq = seq;
    // the newest segment; the version file names it, or leads to the one before
    assert_true(simdisk_peek(d, file_of(d, m->gen), 0, head, HEAD));
    store64le(head + 24, UINT64_MAX - below);
    store64le(head + 504, hash64(head, 448));
    assert_true(simdisk_poke(d, file_of(d, m->gen), 0, head, HEAD));
    m->oldest_gen = UINT64_MAX - below;
    FAILS(open_as(simdisk_dir(simdisk_env(d), DIR), m, false, &rec, &w), REMIXDB_CORRUPT);
    assert_non_null(strstr(err_msg(), DIR));
    m->oldest_gen = gen;
    FAILS(open_as(simdisk_dir(simdisk_env(d), DIR), m, false, &rec, &w), REMIXDB_CORRUPT);
    assert_int_equal(simdisk_changes(d), changes);
    free(m);
    simdisk_destroy(d);
  }
}

// Frames behind a cut are of no segment that begins later, though they would fit there byte by byte.
static void test_lost_header(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct env *const e = simdisk_env(d);
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 6;
  simdisk_no_allocate(d, true);
  OK(open_model(simdisk_dir(e, DIR), m, &w));
  OK(append(w, m, &rng, 1));
  OK(sync_model(w, m));
  OK(wal_switch(w, switched, m));
  for (int i = 0; i < 4; i++) {
    OK(append(w, m, &rng, 1));
    OK(wal_flush(w));
  }
  const uint64_t lost = m->gen;
  simdisk_power_off(d, 0);
  FAILS(wal_close(w), REMIXDB_IO);
  struct simdisk *c = NULL;
  // keep what was written but for the new header
  for (uint64_t seed = 0; !c; seed++) {
    c = simdisk_crash(d, seed);
    if (!file_of(c, lost) && simdisk_size(c, DIR "/wal-1") > (int64_t)HEAD) break;
    if (file_of(c, lost) && simdisk_size(c, DIR "/wal-1") == simdisk_size(d, DIR "/wal-1")) {
      static const uint8_t zero[HEAD];
      assert_true(simdisk_poke(c, DIR "/wal-1", 0, zero, HEAD));
      break;
    }
    simdisk_destroy(c);
    c = NULL;
  }
  check_image(c, m);
  simdisk_no_allocate(c, true);
  OK(open_model(simdisk_dir(simdisk_env(c), DIR), m, &w));
  assert_int_equal(m->nr, 1);
  assert_true(m->gen > lost);
  OK(append(w, m, &rng, 1));
  OK(wal_close(w));
  m->synced = m->nr;
  check_image(c, m);
  free(m);
  simdisk_destroy(c);
  simdisk_destroy(d);
}

// Records of nbytes on disk together, in a frame of their own.
static void append_sized(struct wal *w, size_t nbytes) {
  static const uint8_t zero[REMIXDB_KV_MAX];
  uint64_t gen;
  OK(wal_begin(w, nbytes, &gen));
  while (nbytes > 0) {
    // 1 byte for the empty key, 1 to 3 for the length
    size_t vlen = nbytes < 60000 ? nbytes - 2 : 50000;
    while (kv_rec_size(0, (uint32_t)vlen, false) > nbytes) vlen--;
    nbytes -= kv_rec_size(0, (uint32_t)vlen, false);
    (void)wal_put(w, kref(NULL, 0), zero, (uint32_t)vlen, false);
  }
  wal_end(w);
  OK(wal_flush(w));
}

static enum remixdb_status open_any(struct simdisk *d, bool fresh, bool read_only, struct wal_recovery *rec,
                                    struct wal **out) {
  const struct wal_opts o = {.dir = simdisk_dir(simdisk_env(d), DIR), .store_id = STORE, .read_only = read_only};
  return wal_open(&o, 1, 0, fresh, NULL, NULL, rec, out);
}

static enum remixdb_status status_after_flip(struct simdisk *d, const char *path, uint64_t off) {
  struct wal *w;
  assert_true(simdisk_flip(d, path, off, 1));
  const enum remixdb_status s = open_any(d, false, true, NULL, &w);
  if (s == REMIXDB_OK) OK(wal_close(w));
  assert_true(simdisk_flip(d, path, off, 1));
  return s;
}

// Each thing that can prove a broken frame durable, alone.
static void test_witnesses(void **state) {
  (void)state;
  for (int what = 0; what < 7; what++) {
    struct simdisk *const d = disk_create();
    struct wal *w;
    simdisk_no_allocate(d, true);
    OK(open_any(d, true, false, NULL, &w));
    append_sized(w, 20);
    enum remixdb_status want = REMIXDB_CORRUPT;
    switch (what) {
      case 0:  // none: the frame was synced, and nothing behind it says so
        OK(wal_sync(w));
        want = REMIXDB_OK;
        break;
      case 1:  // the header of the next segment
        OK(wal_sync(w));
        OK(wal_switch(w, NULL, NULL));
        break;
      case 2:  // the first frame of the next segment
        OK(wal_switch(w, NULL, NULL));
        OK(wal_sync(w));
        append_sized(w, 20);
        break;
      case 3:  // the beginning of the segment after the next
        OK(wal_switch(w, NULL, NULL));
        OK(wal_switch(w, NULL, NULL));
        break;
      case 4:  // the watermark of its own segment
        OK(wal_sync(w));
        OK(wal_mark(w));
        break;
      case 5:  // the same, of a clean end; then without it
        OK(wal_close(w));
        assert_int_equal(status_after_flip(d, DIR "/wal-0", HEAD + FRAME_HEAD + 5), want);
        assert_true(simdisk_flip(d, DIR "/wal-0", LEVEL + 20, 1));
        OK(open_any(d, false, false, NULL, &w));
        assert_true(simdisk_flip(d, DIR "/wal-1", 0, 1));  // what this opening has begun would be a witness too
        want = REMIXDB_OK;
        break;
      default:  // the watermark of the next one
        OK(wal_switch(w, NULL, NULL));
        OK(wal_sync(w));
        OK(wal_mark(w));
        assert_true(simdisk_flip(d, DIR "/wal-0", LEVEL + 20, 1));
        break;
    }
    die(d, w);
    assert_int_equal(status_after_flip(d, DIR "/wal-0", HEAD + FRAME_HEAD + 5), want);
    assert_int_equal(status_after_flip(d, DIR "/wal-0", HEAD + 9), want);
    simdisk_destroy(d);
  }
}

// The newest segment cannot be lost unseen once it was marked: the one before it knows of it.
static void test_lost_segment(void **state) {
  (void)state;
  for (int what = 0; what < 12; what++) {
    struct simdisk *const d = disk_create();
    struct env *const e = simdisk_env(d);
    struct wal *w;
    struct wal_recovery rec;
    char path[64];
    simdisk_no_allocate(d, true);
    OK(open_any(d, true, false, NULL, &w));
    append_sized(w, 20);
    const bool second_life = what & 1, marked = what & 2;
    if (second_life) {
      OK(wal_close(w));
      OK(open_any(d, false, false, NULL, &w));
    } else {
      OK(wal_switch(w, NULL, NULL));
    }
    const uint64_t gen = wal_gen(w);
    append_sized(w, 20);
    if (marked) OK(wal_close(w));
    else die(d, w);
    (void)snprintf(path, sizeof(path), "%s", file_of(d, gen));
    int fd;
    switch (what / 4) {
      case 0: OK(env_unlink(ENV_PATHS(e), path)); break;
      case 1:
        OK(env_open(ENV_PATHS(e), path, ENV_READ | ENV_WRITE, &fd));
        OK(env_truncate(e, fd, path, HEAD - 1));
        OK(env_close(e, fd, path));
        break;
      default:
        // the frames of a second life say that their header is durable, those behind a switch do not
        assert_true(simdisk_flip(d, path, 30, 4));
        break;
    }
    const bool proven = marked || (what / 4 == 2 && second_life);
    assert_int_equal(open_any(d, false, true, &rec, &w), proven ? REMIXDB_CORRUPT : REMIXDB_OK);
    if (proven) {
      assert_non_null(strstr(err_msg(), DIR "/wal-"));
    } else {
      assert_int_equal(rec.nr_records, 1);
      OK(wal_close(w));
    }
    simdisk_destroy(d);
  }
}

// Cost of marking, and that it is done once.
static void test_mark(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct wal *w;
  struct wal_recovery rec;
  simdisk_no_allocate(d, true);
  OK(open_any(d, true, false, NULL, &w));
  uint64_t changes = simdisk_changes(d);
  OK(wal_mark(w));  // nothing to lose
  assert_int_equal(simdisk_changes(d), changes);
  append_sized(w, 20);
  changes = simdisk_changes(d);
  OK(wal_mark(w));  // nothing durable
  assert_int_equal(simdisk_changes(d), changes);
  OK(wal_sync(w));
  changes = simdisk_changes(d);
  OK(wal_mark(w));
  assert_int_equal(simdisk_changes(d), changes + 2);
  OK(wal_mark(w));
  assert_int_equal(simdisk_changes(d), changes + 2);
  OK(wal_switch(w, NULL, NULL));
  OK(wal_sync(w));
  changes = simdisk_changes(d);
  OK(wal_mark(w));  // the header says all of the segment before it
  assert_int_equal(simdisk_changes(d), changes);
  for (int i = 0; i < 2; i++) {
    append_sized(w, 20);
    OK(wal_sync(w));
    changes = simdisk_changes(d);
    OK(wal_mark(w));
    assert_int_equal(simdisk_changes(d), changes + (i == 0 ? 4 : 2));
  }
  changes = simdisk_changes(d);
  OK(wal_close(w));
  assert_int_equal(simdisk_changes(d), changes);
  OK(open_any(d, false, true, &rec, &w));
  assert_int_equal(rec.nr_records, 3);
  OK(wal_close(w));

  // one that fails stops the log, as a sync that fails does; but not for want of room, which only its own bytes need
  OK(open_any(d, false, false, &rec, &w));
  append_sized(w, 20);
  OK(wal_sync(w));
  simdisk_fault(d, SIMDISK_WRITE, 0, 1, ENOSPC);
  OK(wal_mark(w));
  append_sized(w, 20);
  OK(wal_sync(w));
  simdisk_fault(d, SIMDISK_SYNC, 0, 1, EIO);
  FAILS(wal_mark(w), REMIXDB_IO);
  uint64_t gen;
  FAILS(wal_begin(w, 20, &gen), REMIXDB_IO);
  FAILS(wal_close(w), REMIXDB_IO);
  OK(open_any(d, false, true, &rec, &w));
  assert_int_equal(rec.nr_records, 5);
  OK(wal_close(w));
  simdisk_destroy(d);
}

// A watermark's fsync may report the failure of frames that were written before it: whatever it reports, no later
// record is acknowledged.
static void test_mark_tells_of_frames(void **state) {
  (void)state;
  static const int errnums[] = {EIO, ENOSPC, EDQUOT, ENOMEM};
  for (size_t i = 0; i < 4; i++) {
    struct simdisk *const d = disk_create();
    struct wal *w;
    uint64_t gen;
    OK(open_any(d, true, false, NULL, &w));
    append_sized(w, 20);
    OK(wal_sync(w));
    append_sized(w, 20);  // written, not synced
    simdisk_fault(d, SIMDISK_SYNC, 0, 1, errnums[i]);
    FAILS(wal_mark(w), REMIXDB_IO);
    FAILS(wal_begin(w, 20, &gen), REMIXDB_IO);
    FAILS(wal_sync(w), REMIXDB_IO);
    assert_int_equal(wal_durable_seq(w), 1);
    FAILS(wal_close(w), REMIXDB_IO);
    simdisk_destroy(d);
  }
}

// The system tells of a failed write once for each open file: a sync beside the watermark's would not be told.
static struct {
  struct env env;
  struct env_ops ops;
  const struct env_ops *real;
  _Atomic bool armed, in, go;
  _Atomic uint32_t others;  // calls beside the one that is held up
} beside;

static int beside_sync(struct env *e, int fd) {
  if (!atomic_exchange(&beside.armed, false)) {
    atomic_fetch_add(&beside.others, 1);
    return beside.real->sync_data(e, fd);
  }
  atomic_store(&beside.in, true);
  while (!atomic_load(&beside.go)) time_sleep_ns(100000);
  return -EIO;
}

static void *beside_syncs(void *arg) { return (void *)(uintptr_t)wal_sync(arg); }
static void *beside_marks(void *arg) { return (void *)(uintptr_t)wal_mark(arg); }

static void beside_run(bool mark_first) {
  struct simdisk *const d = disk_create();
  struct wal *w;
  atomic_store(&beside.in, false);
  atomic_store(&beside.go, false);
  beside.env = *simdisk_env(d);
  beside.real = beside.env.ops;
  beside.ops = *beside.real;
  beside.ops.sync_data = beside_sync;
  beside.env.ops = &beside.ops;
  const struct wal_opts o = {.dir = simdisk_dir(&beside.env, DIR), .store_id = STORE};
  OK(wal_open(&o, 1, 0, true, NULL, NULL, NULL, &w));
  append_sized(w, 20);
  OK(wal_sync(w));
  append_sized(w, 20);
  pthread_t first, second;
  void *said[2];
  atomic_store(&beside.armed, true);
  assert_int_equal(pthread_create(&first, NULL, mark_first ? beside_marks : beside_syncs, w), 0);
  while (!atomic_load(&beside.in)) time_sleep_ns(100000);
  atomic_store(&beside.others, 0);
  assert_int_equal(pthread_create(&second, NULL, mark_first ? beside_syncs : beside_marks, w), 0);
  time_sleep_ns(20000000);  // it has come to its own fsync, or waits
  assert_int_equal(atomic_load(&beside.others), 0);
  atomic_store(&beside.go, true);
  assert_int_equal(pthread_join(first, &said[0]), 0);
  assert_int_equal(pthread_join(second, &said[1]), 0);
  FAILS((uintptr_t)said[0], REMIXDB_IO);
  FAILS((uintptr_t)said[1], REMIXDB_IO);
  assert_int_equal(wal_durable_seq(w), 1);
  FAILS(wal_close(w), REMIXDB_IO);
  simdisk_destroy(d);
}

static void test_mark_beside_sync(void **state) {
  (void)state;
  beside_run(true);
  beside_run(false);
}

// A file that could not be made ready, nor be removed, stays: the next segment is made of it.
static void test_left_file(void **state) {
  (void)state;
  for (int way = 0; way < 2; way++) {
    struct simdisk *const d = disk_create();
    struct wal *w;
    struct wal_recovery rec;
    OK(open_any(d, true, false, NULL, &w));
    append_sized(w, 20);
    OK(wal_sync(w));
    if (way == 0) {
      simdisk_fault(d, SIMDISK_ALLOCATE, 0, UINT64_MAX, ENOSPC);
      simdisk_fault(d, SIMDISK_UNLINK, 0, 1, ENOSPC);
    } else {
      simdisk_fault(d, SIMDISK_OPEN, 0, 1, SIMDISK_DONE);
    }
    assert_int_equal(wal_switch(w, NULL, NULL), way == 0 ? REMIXDB_NOSPACE : REMIXDB_IO);
    simdisk_fault(d, SIMDISK_ALLOCATE, 0, 0, 0);
    assert_int_equal(nr_files(d), 2);
    OK(wal_switch(w, NULL, NULL));
    assert_int_equal(nr_files(d), 2);
    append_sized(w, 20);
    OK(wal_sync(w));
    struct simdisk *const c = simdisk_crash(d, 1);
    OK(wal_close(w));
    OK(open_any(c, false, true, &rec, &w));
    assert_int_equal(rec.nr_records, 2);
    OK(wal_close(w));
    simdisk_destroy(c);
    simdisk_destroy(d);
  }
}

// A witness is found wherever it lies in the pieces that recovery reads.
static void test_distant_witness(void **state) {
  (void)state;
  static const size_t before[] = {0, 1, 8, 9, 31, 39, 40, 41};
  for (size_t i = 0; i < sizeof(before) / sizeof(before[0]); i++) {
    struct simdisk *const d = disk_create();
    struct wal *w;
    simdisk_no_allocate(d, true);
    OK(open_any(d, true, false, NULL, &w));
    append_sized(w, 20);
    append_sized(w, (1 << 20) - before[i] - 20 - 2 * FRAME_HEAD);
    assert_int_equal(wal_segment_bytes(w), HEAD + (1 << 20) - before[i]);
    OK(wal_sync(w));
    append_sized(w, 20);
    die(d, w);
    FAILS(status_after_flip(d, DIR "/wal-0", HEAD + FRAME_HEAD + 5), REMIXDB_CORRUPT);
    simdisk_destroy(d);
  }
}

// Frames with sound checksums that say what no log says are broken frames like others.
static void test_forged_frames(void **state) {
  (void)state;
  uint8_t id[16], f[FRAME_HEAD + 20], good[FRAME_HEAD + 20];
  store64le(id, STORE);
  store64le(id + 8, 1);
  const uint64_t seed = hash64(id, 16);
  for (int what = 0; what < 9; what++) {
    struct simdisk *const d = disk_create();
    struct wal *w;
    struct wal_recovery rec;
    simdisk_no_allocate(d, true);
    OK(open_any(d, true, false, NULL, &w));
    append_sized(w, 20);
    append_sized(w, 20);
    die(d, w);
    const uint64_t at = HEAD + FRAME_HEAD + 20;
    assert_true(simdisk_peek(d, DIR "/wal-0", at, good, sizeof(good)));
    memcpy(f, good, sizeof(f));
    if (what == 1) store64le(f + 16, 3);        // a gap in the numbers
    if (what == 2) store64le(f + 16, 1);        // a number twice
    if (what == 3) store32le(f + 32, 2);        // more records than there are
    if (what == 4) store32le(f + 32, 0);        // none
    if (what == 5) f[FRAME_HEAD + 1] = 5;       // bytes left over
    if (what == 6) f[FRAME_HEAD + 1] = 100;     // a value longer than the frame
    if (what == 7) store64le(f + 24, at + 1);   // durable beyond itself
    if (what == 8) store32le(f + 12, 1000000);  // longer than the file
    store32le(f + 36, (uint32_t)hash64_seed(f + 8, 28, ~(seed + at)));
    store64le(f, hash64_seed(f + 8, sizeof(f) - 8, seed + at));
    assert_int_equal(what == 0, memcmp(f, good, sizeof(f)) == 0);
    assert_true(simdisk_poke(d, DIR "/wal-0", at, f, sizeof(f)));
    OK(open_any(d, false, true, &rec, &w));
    assert_int_equal(rec.nr_records, what == 0 ? 2 : 1);
    OK(wal_close(w));
    simdisk_destroy(d);
  }
}

// The remains of a creation that did not end are not the new store's, though they have the same id and generation.
static void test_fresh_over_leftovers(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct wal *w;
  struct wal_recovery rec;
  OK(open_any(d, true, false, NULL, &w));
  for (int i = 0; i < 3; i++) append_sized(w, 20);
  OK(wal_switch(w, NULL, NULL));
  OK(wal_close(w));
  OK(open_any(d, true, false, &rec, &w));
  assert_int_equal(rec.nr_records, 0);
  append_sized(w, 20);
  OK(wal_close(w));
  OK(open_any(d, false, true, &rec, &w));
  assert_int_equal(rec.nr_records, 1);
  OK(wal_close(w));
  simdisk_destroy(d);
}

// ---- failing calls

static void test_failed_write_is_sticky(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 10, gen;
  char first[512];
  OK(open_model(simdisk_dir(simdisk_env(d), DIR), m, &w));
  OK(append(w, m, &rng, 5));
  OK(sync_model(w, m));
  OK(wal_prepare(w));
  OK(append(w, m, &rng, 5));
  simdisk_fault(d, SIMDISK_WRITE, 0, 1, EIO);
  FAILS(wal_flush(w), REMIXDB_IO);
  (void)snprintf(first, sizeof(first), "%s", err_msg());
  assert_non_null(strstr(first, "wal-0"));
  for (int i = 0; i < 3; i++) {
    err_finish(REMIXDB_OK);
    FAILS(wal_sync(w), REMIXDB_IO);
    assert_string_equal(err_msg(), first);
    FAILS(wal_begin(w, 10, &gen), REMIXDB_IO);
    FAILS(wal_begin(w, 1000000, &gen), REMIXDB_IO);
    FAILS(wal_flush(w), REMIXDB_IO);
    FAILS(wal_switch(w, switched, m), REMIXDB_IO);
    FAILS(wal_release(w, UINT64_MAX), REMIXDB_IO);
  }
  assert_int_equal(wal_durable_seq(w), 5);
  FAILS(wal_close(w), REMIXDB_IO);
  OK(open_model(simdisk_dir(simdisk_env(d), DIR), m, &w));
  assert_int_equal(m->nr, 5);
  OK(wal_close(w));
  free(m);
  simdisk_destroy(d);
}

static void test_failed_sync_is_sticky(void **state) {
  (void)state;
  static const int errnums[] = {EIO, ENOSPC, ENOMEM};
  for (size_t i = 0; i < 3; i++) {
    struct simdisk *const d = disk_create();
    struct model *const m = model_create();
    struct wal *w;
    uint64_t rng = 11, gen;
    OK(open_model(simdisk_dir(simdisk_env(d), DIR), m, &w));
    OK(append(w, m, &rng, 5));
    simdisk_fault(d, SIMDISK_SYNC, 0, 1, errnums[i]);
    FAILS(wal_sync(w), REMIXDB_IO);  // a full disk too: what the system dropped does not come back
    FAILS(wal_sync(w), REMIXDB_IO);
    FAILS(wal_begin(w, 10, &gen), REMIXDB_IO);
    assert_int_equal(wal_durable_seq(w), 0);
    FAILS(wal_close(w), REMIXDB_IO);
    OK(open_model(simdisk_dir(simdisk_env(d), DIR), m, &w));
    OK(wal_close(w));
    free(m);
    simdisk_destroy(d);
  }
}

// The disk has no room for more of the segment: a record is refused, nothing else happens, and it is accepted when
// there is room.
static void test_full_disk_at_allocate(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 12;
  enum remixdb_status s;
  simdisk_space(d, WAL_PREALLOC);
  OK(open_model(simdisk_dir(simdisk_env(d), DIR), m, &w));
  do s = append(w, m, &rng, 2000);
  while (s == REMIXDB_OK);
  FAILS(s, REMIXDB_NOSPACE);
  assert_true(wal_segment_bytes(w) > WAL_PREALLOC / 2);
  while (append(w, m, &rng, 1) == REMIXDB_OK) {}  // what is smaller may fit
  FAILS(append(w, m, &rng, 2000), REMIXDB_NOSPACE);
  // some room is kept, and used up in the end
  const uint64_t before = wal_segment_bytes(w);
  while ((s = append_by(w, m, &rng, 10, wal_begin_last)) == REMIXDB_OK) {
    if (m->nr % 7 == 0) FAILS(append(w, m, &rng, 2000), REMIXDB_NOSPACE);
  }
  FAILS(s, REMIXDB_NOSPACE);
  assert_in_range(wal_segment_bytes(w) - before, WAL_KEEP_MAX - 200000, WAL_KEEP_MAX + 200000);
  FAILS(wal_switch(w, switched, m), REMIXDB_NOSPACE);
  const uint64_t gen = m->gen;
  assert_int_equal(wal_gen(w), gen);
  OK(sync_model(w, m));  // what was accepted has its room
  simdisk_space(d, UINT64_MAX);
  OK(append(w, m, &rng, 2000));
  OK(wal_switch(w, switched, m));
  OK(append(w, m, &rng, 1));
  const uint64_t nr = m->nr;
  OK(wal_close(w));
  // a store opens on a disk that is full but for a few blocks
  simdisk_space(d, simdisk_used(d) + 4096);
  OK(open_model(simdisk_dir(simdisk_env(d), DIR), m, &w));
  assert_int_equal(m->nr, nr);
  FAILS(append(w, m, &rng, 1), REMIXDB_NOSPACE);
  simdisk_space(d, UINT64_MAX);
  OK(append(w, m, &rng, 1));
  OK(wal_close(w));
  free(m);
  simdisk_destroy(d);
}

// Without preallocation the write itself meets the full disk: what was accepted is kept and goes out later.
static void test_full_disk_at_write(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 13;
  simdisk_no_allocate(d, true);
  OK(open_model(simdisk_dir(simdisk_env(d), DIR), m, &w));
  OK(append(w, m, &rng, 10));
  OK(sync_model(w, m));
  simdisk_space(d, simdisk_used(d));
  enum remixdb_status s = REMIXDB_OK;
  uint64_t refused = 0;
  for (int i = 0; i < 3000; i++) {
    s = append(w, m, &rng, 1);
    if (s == REMIXDB_OK) continue;
    FAILS(s, REMIXDB_NOSPACE);
    refused++;
  }
  assert_true(refused > 0);
  FAILS(wal_flush(w), REMIXDB_NOSPACE);
  FAILS(wal_sync(w), REMIXDB_NOSPACE);
  assert_true(m->nr > 100);
  assert_int_equal(wal_durable_seq(w), 10);
  simdisk_space(d, UINT64_MAX);
  OK(append(w, m, &rng, 10));
  OK(sync_model(w, m));
  // the header of a new segment, too
  OK(wal_prepare(w));
  simdisk_space(d, simdisk_used(d));
  OK(append(w, m, &rng, 200));
  OK(wal_switch(w, switched, m));
  FAILS(wal_sync(w), REMIXDB_NOSPACE);
  simdisk_space(d, UINT64_MAX);
  OK(append(w, m, &rng, 10));
  OK(sync_model(w, m));
  simdisk_power_off(d, 0);
  for (uint64_t seed = 0; seed < 5; seed++) {
    struct simdisk *const c = simdisk_crash(d, seed);
    check_image(c, m);
    simdisk_destroy(c);
  }
  FAILS(wal_close(w), REMIXDB_IO);  // the mark, and nothing else
  simdisk_power_on(d);
  check_image(d, m);
  free(m);
  simdisk_destroy(d);
}

static _Atomic int64_t allocs_left;
static bool fault_after(size_t size) {
  (void)size;
  return atomic_fetch_sub(&allocs_left, 1) > 0;
}

static void test_no_memory(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 14;
  simdisk_no_allocate(d, true);
  // at the n-th allocation of an opening, for all n, with segments, a spare and something to replay
  for (int round = 0; round < 3; round++) {
    enum remixdb_status s = REMIXDB_NOMEM;
    for (int64_t n = 0; s != REMIXDB_OK; n++) {
      assert_true(n < 200);
      atomic_store(&allocs_left, n);
      atomic_store(&mem_fault, fault_after);
      s = open_model(simdisk_dir(simdisk_env(d), DIR), m, &w);
      atomic_store(&mem_fault, NULL);
      if (s != REMIXDB_OK) FAILS(s, REMIXDB_NOMEM);
    }
    OK(append(w, m, &rng, 5));
    atomic_store(&allocs_left, 0);
    atomic_store(&mem_fault, fault_after);
    const uint64_t nr = m->nr;
    FAILS(append(w, m, &rng, 4000), REMIXDB_NOMEM);  // needs a buffer of its own
    assert_int_equal(m->nr, nr);
    const enum remixdb_status s2 = wal_switch(w, switched, m);
    if (s2 != REMIXDB_OK) FAILS(s2, REMIXDB_NOMEM);
    OK(append(w, m, &rng, 5));  // needs none
    OK(sync_model(w, m));
    atomic_store(&mem_fault, NULL);
    OK(append(w, m, &rng, 4000));
    OK(wal_switch(w, switched, m));
    OK(append(w, m, &rng, 5));
    OK(wal_close(w));
    m->synced = m->nr;
  }
  free(m);
  simdisk_destroy(d);
}

// Each kind of call fails once, at every point of a whole life: nothing that was acknowledged is lost.
static void test_every_call_fails(void **state) {
  (void)state;
  static const enum simdisk_call calls[] = {SIMDISK_OPEN, SIMDISK_READ,   SIMDISK_WRITE, SIMDISK_SYNC, SIMDISK_ALLOCATE,
                                            SIMDISK_STAT, SIMDISK_UNLINK, SIMDISK_LIST,  SIMDISK_CLOSE};
  for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
    for (uint64_t skip = 0; skip < 14; skip++) {
      struct simdisk *const d = disk_create();
      struct model *const m = model_create();
      struct wal *w;
      uint64_t rng = skip;
      seed_now = skip * 100 + c;
      simdisk_no_allocate(d, calls[c] != SIMDISK_ALLOCATE);
      simdisk_fault(d, calls[c], skip, 1, EIO);
      for (int life = 0; life < 3; life++) {
        enum remixdb_status s = open_model(simdisk_dir(simdisk_env(d), DIR), m, &w);
        if (s != REMIXDB_OK) {
          CHECK_SAYS(s == REMIXDB_IO, "status %d", s);
          continue;
        }
        for (int i = 0; i < 4 && s == REMIXDB_OK; i++) {
          s = append(w, m, &rng, 2);
          if (s == REMIXDB_OK) s = sync_model(w, m);
          if (s == REMIXDB_OK) s = append(w, m, &rng, 2);
          if (s == REMIXDB_OK) s = wal_switch(w, switched, m);
          if (s == REMIXDB_OK && i > 1) s = release_model(w, m);
          CHECK_SAYS(s == REMIXDB_OK || s == REMIXDB_IO, "status %d", s);
        }
        if (wal_close(w) == REMIXDB_OK) m->synced = m->nr;
      }
      simdisk_fault(d, calls[c], 0, 0, 0);
      if (!m->fresh) check_image(d, m);
      free(m);
      simdisk_destroy(d);
    }
  }
}

// ---- threads

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
      seq = wal_put(c->w, kref(b, klen), b + klen, (uint32_t)(len - klen), false);
      c->tags[seq] = tags[i];
      // numbers are given under the lock, so this cannot go back
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
  while (!atomic_load(&c->stop)) {
    if (wal_prepare(c->w) != REMIXDB_OK) atomic_fetch_add(&c->bad, 1);
    if (wal_switch(c->w, crowd_switched, c) != REMIXDB_OK) atomic_fetch_add(&c->bad, 1);
    if (wal_sync(c->w) != REMIXDB_OK) atomic_fetch_add(&c->bad, 1);
    // releases none: all are replayed at the end
    if (wal_release(c->w, c->m->oldest_gen) != REMIXDB_OK) atomic_fetch_add(&c->bad, 1);
    time_sleep_ns(2000000);
  }
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

static void run_crowd(const struct env_dir *dir) {
  struct crowd *const c = calloc(1, sizeof(*c));
  struct appender a[APPENDERS];
  pthread_t threads[APPENDERS + 3];
  struct wal_recovery rec;
  assert_non_null(c);
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
  OK(wal_open(&o, 1, 0, false, crowd_replay, c, &rec, &c->w));
  assert_int_equal(rec.last_seq, nr);
  assert_int_equal(rec.nr_records, nr);
  assert_int_equal(rec.cut_bytes, 0);
  OK(wal_close(c->w));
  free(c->m);
  free(c);
}

static void test_threads(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  simdisk_no_allocate(d, true);
  simdisk_short_io(d, 99);
  run_crowd(simdisk_dir(simdisk_env(d), DIR));
  simdisk_destroy(d);
}

static bool remove_one(void *arg, const char *name) {
  char path[ENV_PATH_MAX];
  if (env_path(path, arg, name) == REMIXDB_OK) (void)unlink(path);
  return true;
}

static void test_threads_on_files(void **state) {
  (void)state;
  char dir[256];
  const char *const tmp = getenv("TMPDIR");
  (void)snprintf(dir, sizeof(dir), "%s/remixdb-wal-XXXXXX", tmp && *tmp ? tmp : "/tmp");
  assert_non_null(mkdtemp(dir));
  struct env_dir held;
  OK(env_dir_open(ENV_PATHS(env_posix()), dir, &held));
  run_crowd(&held);
  env_dir_close(&held);
  OK(paths_list(env_posix(), dir, remove_one, dir));
  assert_int_equal(rmdir(dir), 0);
}

// A failing fsync reaches every thread that waits for it.
static void *fail_main(void *arg) {
  struct crowd *const c = arg;
  uint64_t gen;
  for (;;) {
    if (wal_begin(c->w, 20, &gen) != REMIXDB_OK) return NULL;
    (void)wal_put(c->w, kref("k", 1), "v", 1, false);
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
  OK(open_model(simdisk_dir(simdisk_env(d), DIR), m, &c->w));
  simdisk_fault(d, SIMDISK_SYNC, 50, 1, EIO);
  for (int i = 0; i < APPENDERS; i++) OK(thread_start(&threads[i], fail_main, c, "append"));
  for (int i = 0; i < APPENDERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
  assert_int_equal(atomic_load(&c->bad), 0);
  FAILS(wal_close(c->w), REMIXDB_IO);
  free(m);
  free(c);
  simdisk_destroy(d);
}

// ---- the disk itself keeps its promises, or the rest proves nothing

static void test_simdisk(void **state) {
  (void)state;
  struct simdisk *const d = simdisk_create();
  struct env *const e = simdisk_env(d);
  int fd, fd2;
  char b[8];
  unsigned seen[2][2] = {{0, 0}, {0, 0}};
  OK(env_mkdir(ENV_PATHS(e), "/a"));
  OK(env_mkdir(ENV_PATHS(e), "/a/b"));
  OK(paths_sync_dir(e, "/"));
  OK(paths_sync_dir(e, "/a"));
  FAILS(env_open(ENV_PATHS(e), "/a/b/f", ENV_READ, &fd), REMIXDB_NOTFOUND);
  OK(env_open(ENV_PATHS(e), "/a/b/f", ENV_READ | ENV_WRITE | ENV_CREATE, &fd));
  OK(env_write(e, fd, "f", "old", 3, 0));
  OK(env_sync_data(e, fd, "f"));
  OK(paths_sync_dir(e, "/a/b"));
  OK(env_write(e, fd, "f", "new", 3, 0));
  OK(env_close(e, fd, "f"));
  OK(env_rename(ENV_PATHS(e), "/a/b/f", ENV_PATHS(e), "/a/b/g"));
  assert_int_equal(simdisk_size(d, "/a/b/f"), -1);
  for (uint64_t seed = 0; seed < 200; seed++) {
    struct simdisk *const c = simdisk_crash(d, seed);
    const bool f = simdisk_size(c, "/a/b/f") >= 0, g = simdisk_size(c, "/a/b/g") >= 0;
    assert_true(f != g);  // a rename is there or not
    assert_true(simdisk_peek(c, f ? "/a/b/f" : "/a/b/g", 0, b, 3));
    const bool is_new = memcmp(b, "new", 3) == 0;
    assert_true(is_new || memcmp(b, "old", 3) == 0);
    seen[g][is_new]++;
    simdisk_destroy(c);
  }
  for (int i = 0; i < 4; i++) assert_true(seen[i / 2][i % 2] > 0);
  OK(paths_sync_dir(e, "/a/b"));
  OK(env_link(ENV_PATHS(e), "/a/b/g", ENV_PATHS(e), "/a/h"));
  OK(env_unlink(ENV_PATHS(e), "/a/b/g"));
  for (uint64_t seed = 0; seed < 50; seed++) {
    struct simdisk *const c = simdisk_crash(d, seed);
    assert_true(simdisk_size(c, "/a/b/f") < 0);
    simdisk_destroy(c);
  }
  OK(paths_replace_file(e, "/a", "CURRENT", "12345", 5));
  for (uint64_t seed = 0; seed < 50; seed++) {
    struct simdisk *const c = simdisk_crash(d, seed);
    assert_true(simdisk_peek(c, "/a/CURRENT", 0, b, 5));
    assert_memory_equal(b, "12345", 5);
    simdisk_destroy(c);
  }
  OK(env_lock(ENV_PATHS(e), "/LOCK", true, &fd));
  FAILS(env_lock(ENV_PATHS(e), "/LOCK", true, &fd2), REMIXDB_LOCKED);
  FAILS(env_lock(ENV_PATHS(e), "/LOCK", false, &fd2), REMIXDB_LOCKED);
  OK(env_close(e, fd, "LOCK"));
  OK(env_lock(ENV_PATHS(e), "/LOCK", false, &fd));
  OK(env_lock(ENV_PATHS(e), "/LOCK", false, &fd2));
  env_close_quiet(e, fd);
  env_close_quiet(e, fd2);
  OK(env_open(ENV_PATHS(e), "/t", ENV_READ | ENV_WRITE | ENV_CREATE, &fd));
  OK(env_write(e, fd, "t", "abcdef", 6, 4094));
  OK(env_truncate(e, fd, "t", 4097));
  OK(env_truncate(e, fd, "t", 5000));
  OK(env_read(e, fd, "t", b, 6, 4094));
  assert_memory_equal(b, "abc\0\0\0", 6);
  simdisk_space(d, simdisk_used(d));
  FAILS(env_allocate(e, fd, "t", 0, 1 << 20), REMIXDB_NOSPACE);
  simdisk_power_off(d, 0);
  (void)e->ops->pwrite(e, fd, "x", 1, 0);
  FAILS(env_write(e, fd, "t", "x", 1, 0), REMIXDB_IO);
  assert_true(simdisk_is_off(d));
  env_close_quiet(e, fd);
  simdisk_destroy(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_simdisk),
      cmocka_unit_test(test_round_trip),
      cmocka_unit_test(test_format),
      cmocka_unit_test(test_small),
      cmocka_unit_test(test_ahead),
      cmocka_unit_test(test_ahead_alone),
      cmocka_unit_test(test_switch_and_recycle),
      cmocka_unit_test(test_large_batches),
      cmocka_unit_test(test_replay_status),
      cmocka_unit_test(test_crashes),
      cmocka_unit_test(test_process_death),
      cmocka_unit_test(test_flips),
      cmocka_unit_test(test_rubbish),
      cmocka_unit_test(test_wrong_files),
      cmocka_unit_test(test_numbers_at_their_end),
      cmocka_unit_test(test_lost_header),
      cmocka_unit_test(test_witnesses),
      cmocka_unit_test(test_lost_segment),
      cmocka_unit_test(test_mark),
      cmocka_unit_test(test_mark_tells_of_frames),
      cmocka_unit_test(test_mark_beside_sync),
      cmocka_unit_test(test_left_file),
      cmocka_unit_test(test_distant_witness),
      cmocka_unit_test(test_forged_frames),
      cmocka_unit_test(test_fresh_over_leftovers),
      cmocka_unit_test(test_failed_write_is_sticky),
      cmocka_unit_test(test_failed_sync_is_sticky),
      cmocka_unit_test(test_full_disk_at_allocate),
      cmocka_unit_test(test_full_disk_at_write),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_every_call_fails),
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_threads_on_files),
      cmocka_unit_test(test_threads_and_a_failing_sync),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
