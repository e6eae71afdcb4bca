// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/wal_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static uint8_t rec_key[256], rec_val[70000];

// The record of a tag, in static buffers.
static struct kv_rec rec_of(uint64_t tag) {
  struct kv_rec r = {.key = rec_key,
                     .val = rec_val,
                     .klen = (uint32_t)(tag % 40),
                     .vlen = (uint32_t)((tag >> 8) % 160)};
  r.kind = (tag >> 16) % 8 == 0;
  if ((tag >> 20) % 64 == 0) r.vlen = 20000 + (uint32_t)((tag >> 32) % 40000);
  if (r.kind) r.vlen = 0;
  uint64_t rng = tag;
  for (uint32_t i = 0; i < r.klen; i += 8) store64le(rec_key + i, rng_next(&rng));
  for (uint32_t i = 0; i < r.vlen; i += 8) store64le(rec_val + i, rng_next(&rng));
  return r;
}

struct model *model_create(void) {
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
  const bool same = rec->klen == want.klen && rec->vlen == want.vlen && rec->kind == want.kind &&
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

enum remixdb_status open_as(const struct env_dir *dir, const struct model *m, bool read_only, struct wal_recovery *rec,
                            struct wal **out) {
  const struct wal_opts o = {.dir = dir, .store_id = STORE, .read_only = read_only};
  struct replay r = {m, m->oldest_seq + 1};
  *out = NULL;
  const enum remixdb_status s = wal_open(&o, m->oldest_gen, m->oldest_seq, m->fresh, replay_check, &r, rec, out);
  assert_int_equal(s == REMIXDB_OK, *out != NULL);
  if (s == REMIXDB_OK) CHECK_SAYS(rec->last_seq + 1 == r.next, "last_seq is not of the last record");
  return s;
}

enum remixdb_status open_model(const struct env_dir *dir, struct model *m, struct wal **out) {
  struct wal_recovery rec;
  const enum remixdb_status s = open_as(dir, m, false, &rec, out);
  if (s != REMIXDB_OK) return s;
  check_recovered(m, &rec);
  m->nr = m->synced = m->gen_seq = rec.last_seq;
  m->secured_gen = 0;
  m->gen = wal_gen(*out);
  if (wal_segment_holds(*out)) {  // the only segment goes on
    CHECK_SAYS(m->gen == m->oldest_gen, "generation %llu goes on", (unsigned long long)m->gen);
    m->gen_seq = m->oldest_seq;
    m->nr_continued++;
  }
  m->fresh = false;
  assert_int_equal(wal_durable_seq(*out), m->nr);
  return s;
}

enum remixdb_status append_by(struct wal *w, struct model *m, uint64_t *rng, uint32_t nr,
                              enum remixdb_status (*begin)(struct wal *w, size_t nbytes, uint64_t *gen_out)) {
  size_t bytes = 0;
  uint64_t gen;
  if (m->nr + nr >= MODEL_MAX) return REMIXDB_OK;
  for (uint32_t i = 1; i <= nr; i++) {
    m->tags[m->nr + i] = rng_next(rng);
    m->ends[m->nr + i] = i == nr;
    const struct kv_rec r = rec_of(m->tags[m->nr + i]);
    bytes += kv_rec_size(&r);
  }
  const enum remixdb_status s = begin(w, bytes, &gen);
  if (s != REMIXDB_OK) return s;
  assert_int_equal(gen, m->gen);
  for (uint32_t i = 0; i < nr; i++) {
    const struct kv_rec r = rec_of(m->tags[m->nr + 1]);
    const uint64_t seq = wal_put(w, KV_REC(kref(r.key, r.klen), r.val, r.vlen, r.kind));
    m->nr++;
    assert_int_equal(seq, m->nr);
  }
  wal_end(w);
  return REMIXDB_OK;
}

enum remixdb_status append(struct wal *w, struct model *m, uint64_t *rng, uint32_t nr) {
  return append_by(w, m, rng, nr, wal_begin);
}

enum remixdb_status sync_model(struct wal *w, struct model *m) {
  const enum remixdb_status s = wal_sync(w);
  if (s != REMIXDB_OK) return s;
  m->synced = m->nr;
  assert_int_equal(wal_durable_seq(w), m->nr);
  return s;
}

enum remixdb_status secure_model(struct wal *w, struct model *m) {
  const enum remixdb_status s = wal_sync_active(w);
  if (s != REMIXDB_OK) return s;
  m->secured = m->nr;
  m->secured_gen = m->gen;
  return s;
}

void switched(void *arg, uint64_t gen) {
  struct model *const m = arg;
  assert_true(gen > m->gen);
  m->gen = gen;
  m->gen_seq = m->nr;
}

enum remixdb_status release_model(struct wal *w, struct model *m) {
  const enum remixdb_status s = sync_model(w, m);
  if (s != REMIXDB_OK) return s;
  m->oldest_gen = m->gen;
  m->oldest_seq = m->gen_seq;
  return wal_release(w, m->gen);
}

enum remixdb_status install_model(struct wal *w, struct model *m) {
  enum remixdb_status s = m->secured_gen == m->gen ? REMIXDB_OK : secure_model(w, m);
  if (s != REMIXDB_OK) return s;
  m->oldest_gen = m->gen;
  m->oldest_seq = m->gen_seq;
  if (m->synced < m->secured) m->synced = m->secured;
  s = wal_release(w, m->gen);
  if (s == REMIXDB_OK) CHECK_SAYS(wal_durable_seq(w) >= m->secured, "what was secured is not known to be durable");
  return s;
}

struct simdisk *disk_create(void) {
  struct simdisk *const d = simdisk_create();
  struct env *const e = simdisk_env(d);
  OK(env_mkdir(ENV_PATHS(e), DIR));
  OK(paths_sync_dir(e, "/"));
  return d;
}

void check_image(struct simdisk *d, const struct model *m) {
  struct wal *w;
  struct wal_recovery rec;
  const uint64_t changes = simdisk_changes(d);
  const enum remixdb_status s = open_as(dir_of(d), m, true, &rec, &w);
  CHECK_SAYS(s == REMIXDB_OK, "status %d after a crash", s);
  check_recovered(m, &rec);
  uint64_t gen;
  FAILS(wal_begin(w, 10, &gen), REMIXDB_READONLY);
  OK(wal_sync(w));
  OK(wal_flush(w));
  OK(wal_close(w));
  assert_int_equal(simdisk_changes(d), changes);
}

const char *file_of(struct simdisk *d, uint64_t gen) {
  static char path[64];
  for (int i = 0; i < 20; i++) {
    uint8_t head[HEAD];
    (void)snprintf(path, sizeof(path), DIR "/wal-%d", i);
    if (simdisk_peek(d, path, 0, head, HEAD) && memcmp(head, "#REMXWAL", 8) == 0 && load64le(head + 24) == gen)
      return path;
  }
  return NULL;
}

unsigned nr_files(struct simdisk *d) {
  unsigned nr = 0;
  for (int i = 0; i < 50; i++) {
    char path[64];
    (void)snprintf(path, sizeof(path), DIR "/wal-%d", i);
    nr += simdisk_size(d, path) >= 0;
  }
  return nr;
}

struct wal *open_steps(struct simdisk *d, struct model *m, uint32_t step) {
  const struct wal_opts o = {.dir = dir_of(d), .store_id = STORE, .step = step};
  struct replay r = {m, m->oldest_seq + 1};
  struct wal_recovery rec;
  struct wal *w;
  OK(wal_open(&o, m->oldest_gen, m->oldest_seq, m->fresh, replay_check, &r, &rec, &w));
  m->gen = wal_gen(w);
  m->fresh = false;
  return w;
}

void die(struct simdisk *d, struct wal *w) {
  simdisk_fault(d, SIMDISK_WRITE, 0, UINT64_MAX, EIO);
  simdisk_fault(d, SIMDISK_SYNC, 0, UINT64_MAX, EIO);
  (void)(wal_close(w) == REMIXDB_OK);
  simdisk_fault(d, SIMDISK_WRITE, 0, 0, 0);
  simdisk_fault(d, SIMDISK_SYNC, 0, 0, 0);
}

void append_sized(struct wal *w, size_t nbytes) {
  static const uint8_t zero[REMIXDB_KV_MAX];
  uint64_t gen;
  OK(wal_begin(w, nbytes, &gen));
  while (nbytes > 0) {
    // 1 byte for the empty key, 1 to 3 for the length
    size_t vlen = nbytes < 60000 ? nbytes - 2 : 50000;
    while (kv_rec_size(KV_REC(kref(NULL, 0), NULL, (uint32_t)vlen, false)) > nbytes) vlen--;
    nbytes -= kv_rec_size(KV_REC(kref(NULL, 0), NULL, (uint32_t)vlen, false));
    (void)wal_put(w, KV_REC(kref(NULL, 0), zero, (uint32_t)vlen, false));
  }
  wal_end(w);
  OK(wal_flush(w));
}

enum remixdb_status open_any(struct simdisk *d, bool fresh, bool read_only, struct wal_recovery *rec,
                             struct wal **out) {
  const struct wal_opts o = {.dir = dir_of(d), .store_id = STORE, .read_only = read_only};
  return wal_open(&o, 1, 0, fresh, NULL, NULL, rec, out);
}

void log_end(struct simdisk *d, struct model *m) {
  free(m);
  simdisk_destroy(d);
}

void check_cuts(struct simdisk *d, const struct model *m, uint64_t nr) {
  for (uint64_t seed = 0; seed < nr; seed++) {
    struct simdisk *const c = simdisk_crash(d, seed);
    check_image(c, m);
    simdisk_destroy(c);
  }
}
