// SPDX-License-Identifier: Apache-2.0
//
// Moving values: passing over a file's records, also over bytes that look like some; copies, which read as the
// originals did; indexes, and damage in each of them.
#include "tests/lib/check.h"

#include <errno.h>
#include <stdlib.h>

#include "tests/lib/bytes.h"
#include "tests/lib/simdisk.h"
#include "value/move.h"
#include "value/read.h"
#include "value/write.h"

#define STORE_ID 0x1234567890abcdefull
#define NR 40u
#define MOST (3u << 20)

static uint64_t rng = 7;
static uint64_t below(uint64_t n) { return rng_next(&rng) % n; }
static uint8_t *bytes, *got;  // MOST bytes

struct world {
  struct simdisk *disk;
  struct fdpool *fds;
  struct sst_ctx sst;
  struct value_ctx ctx;
  struct value_file *file;  // has all values
  uint8_t keys[NR][16];
  struct value_ref refs[NR];
};

static uint64_t number_one(void *arg, void (*name_of)(char *buf, uint64_t number)) {
  (void)arg, (void)name_of;
  return 1;
}

static struct kref key_of(const struct world *w, uint32_t i) { return kref(w->keys[i], 5 + i % 11); }
static const uint8_t *val_of(uint32_t i) { return bytes + i * 100; }

static struct world *world_new(enum remixdb_compression compression) {
  struct world *const w = calloc(1, sizeof(*w));
  w->disk = simdisk_create();
  assert_true(w && w->disk);
  OK(fdpool_create(simdisk_env(w->disk), 16, &w->fds));
  w->sst = (struct sst_ctx){.env = simdisk_env(w->disk),
                            .dir = simdisk_dir(simdisk_env(w->disk), "/"),
                            .fds = w->fds,
                            .store_id = STORE_ID};
  w->ctx.sst = &w->sst;
  struct value_log log = {0};
  value_log_init(&log, &w->ctx);
  value_log_compress(&log, compression, 1);
  log.new_number = number_one;
  static const uint32_t lens[] = {1, 8, 500, 17000, 65535, 65536, 65537, 131072, 300000, 700000};
  for (uint32_t i = 0; i < NR; i++) {
    uint8_t ref[VALUE_REF];
    struct value_file *f;
    for (uint32_t k = 0; k < 16; k++) w->keys[i][k] = (uint8_t)rng_next(&rng);
    OK(value_put(&log, key_of(w, i), val_of(i), lens[i % 10], ref, &f));
    CHECK(value_ref_get(ref, VALUE_REF, &w->refs[i]));
    value_put_end(&log, f);
  }
  value_log_fini(&log);
  OK(value_file_open(&w->ctx, 1, &w->file));
  return w;
}

static void world_end(struct world *w) {
  value_file_unref(w->file);
  value_ctx_fini(&w->ctx);
  fdpool_destroy(w->fds);
  CHECK(simdisk_open_files(w->disk) == 0);
  simdisk_destroy(w->disk);
  free(w);
}

// A place in the disk's copy of a file: flips bits, or reads.
static void poke(struct world *w, const char *name, uint64_t at, uint8_t flip) {
  struct env *const e = simdisk_env(w->disk);
  int fd;
  uint8_t b;
  OK(env_open(w->sst.dir, name, ENV_READ | ENV_WRITE, &fd));
  OK(env_read(e, fd, name, &b, 1, at));
  b ^= flip;
  OK(env_write(e, fd, name, &b, 1, at));
  OK(env_close(e, fd, name));
}

static uint32_t find(const struct world *w, uint64_t at) {
  uint32_t i = 0;
  while (i < NR && w->refs[i].at != at) i++;
  return i;
}

// Copies the values for which `want` says so, and returns how many.
static uint32_t move(struct world *w, struct value_mover *m, uint32_t every, struct value_ref *is, uint8_t *entries) {
  struct value_pass p = {0};
  uint32_t nr = 0, seen = 0;
  OK(value_pass_init(&p, w->file));
  for (bool any = true; any;) {
    struct value_rec rec;
    uint64_t at;
    bool of_source;
    OK(value_pass_next(&p, p.at + 1 + below(200000), &any, &at, &rec));
    if (!any && p.at + VALUE_REC_HEAD <= p.end) any = true;
    else if (any) {
      const uint32_t i = find(w, at);
      CHECK(i < NR && kv_eq(p.key, key_of(w, i)) && rec.vlen == w->refs[i].len && !rec.index);
      seen++;
      if (i % every == 0) {
        OK(value_mover_copy(m, w->file, at, &rec, p.key, &is[i], &of_source));
        const struct value_moved moved = {at, is[i].at, w->refs[i].check, is[i].check};
        value_moved_put(entries + (size_t)nr * VALUE_MOVED, &moved);
        nr++;
        if (below(2)) value_pass_over(&p, at, &rec);
      }
    }
  }
  CHECK(seen == NR);
  value_pass_fini(&p);
  return nr;
}

static void test_copies(void **state) {
  (void)state;
  for (int zstd = 0; zstd < 2; zstd++) {
    struct world *const w = world_new(zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    struct value_mover m = {.ctx = &w->ctx};
    struct value_ref is[NR] = {{0}}, ref;
    uint8_t entries[NR * VALUE_MOVED];
    OK(value_mover_begin(&m, 2));
    // A part that is taken back leaves nothing.
    (void)move(w, &m, 3, is, entries);
    if (zstd) OK(value_mover_sync(&m));
    value_mover_back(&m, VALUE_HEAD, 0);
    const uint32_t nr = move(w, &m, 2, is, entries);
    CHECK(nr == NR / 2);
    OK(value_mover_index(&m, 1, entries, nr * VALUE_MOVED, &ref));
    OK(value_mover_end(&m));
    // As an opening reads them
    struct value_file *f;
    struct value_index *x;
    OK(value_file_open(&w->ctx, 2, &f));
    CHECK(value_file_size(f) == value_file_size(m.to) && f->print == m.to->print);
    struct budget accounts;
    budget_init(&accounts);
    w->sst.budget = &accounts;
    OK(value_index_open(f, 1, m.bytes, &ref, &x));
    CHECK(x->nr == nr && budget_used(&accounts, BUDGET_INDEXES) == value_index_memory(x));
    for (uint32_t i = 0; i < NR; i++) {
      struct value_ref to = w->refs[i], other = to;
      uint32_t n;
      CHECK(value_index_find(x, &to) == (i % 2 == 0));
      other.check ^= 1;
      CHECK(!value_index_find(x, &other) && other.at == w->refs[i].at);
      if (i % 2) continue;
      CHECK(to.file == 2 && to.at == is[i].at && to.check == is[i].check && to.len == w->refs[i].len);
      OK(value_read(f, &to, key_of(w, i), 0, got, MOST, &n));
      CHECK(n == to.len && memcmp(got, val_of(i), n) == 0);
      // A value's reference names no index, and an index's no value.
      CHECK(value_read_index(f, &to, key_of(w, i), NULL) == REMIXDB_CORRUPT);
    }
    uint8_t key[VALUE_INDEX_KEY];
    CHECK(value_check(f, &ref, value_index_key(1, key)) == REMIXDB_CORRUPT);
    struct value_index *none;
    CHECK(value_index_open(f, 3, 0, &ref, &none) == REMIXDB_CORRUPT);  // another file's
    // Each bit of the index
    const uint64_t end = ref.at + value_rec_len(VALUE_INDEX_KEY, ref.len, ref.len);
    for (uint64_t at = ref.at; at < end - 8; at++) {
      const uint8_t flip = (uint8_t)(1u << below(8));
      if (at >= ref.at + VALUE_REC_HEAD + VALUE_INDEX_KEY && at < ref.at + value_entries_at(VALUE_INDEX_KEY)) continue;
      poke(w, "000002.val", at, flip);
      CHECK_SAYS(value_index_open(f, 1, 0, &ref, &none) == REMIXDB_CORRUPT, "byte %llu", (unsigned long long)at);
      poke(w, "000002.val", at, flip);
    }
    value_index_unref(x);
    CHECK(budget_used(&accounts, BUDGET_INDEXES) == 0);
    value_file_unref(f);
    value_mover_fini(&m, false);
    world_end(w);
    budget_fini(&accounts);
  }
}

// The file's bytes have a head that fits, in the midst of a record, and it says that it reaches over the next one. The
// pass comes to that next one all the same, if it has not been told that the first one is real.
static void test_look_alike(void **state) {
  (void)state;
  struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
  struct env *const e = simdisk_env(w->disk);
  int fd;
  uint8_t head[VALUE_REC_HEAD + 16];
  const uint64_t at = align_up(w->refs[3].at + 9000, VALUE_ALIGN);
  struct value_rec fake = {.klen = 3, .vlen = 900000, .stored = 900000, .nonce = 5};
  value_rec_put(head, w->file->key, at, (const uint8_t *)"abc", &fake);
  OK(env_open(w->sst.dir, "000001.val", ENV_WRITE, &fd));
  OK(env_write(e, fd, "000001.val", head, (size_t)value_entries_at(3), at));
  OK(env_close(e, fd, "000001.val"));
  struct value_pass p = {0};
  uint32_t seen = 0, fakes = 0;
  OK(value_pass_init(&p, w->file));
  for (bool any = true; any;) {
    struct value_rec rec;
    uint64_t found;
    OK(value_pass_next(&p, UINT64_MAX, &any, &found, &rec));
    if (!any) break;
    const bool known = find(w, found) < NR;
    CHECK(known || found == at);
    seen += known;
    fakes += !known;
  }
  CHECK(seen == NR && fakes == 1);
  value_pass_fini(&p);
  world_end(w);
}

// A damaged record is not copied, and the failure says that its source has it. A full disk is no failure of the source.
static void test_failures(void **state) {
  (void)state;
  struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
  for (uint32_t i = 0; i < NR; i++) {
    const uint32_t len = w->refs[i].len, klen = key_of(w, i).len;
    const uint64_t data = w->refs[i].at + value_data_at(klen, len);
    const uint64_t places[] = {data, data + below(len), data + len - 1,
                               w->refs[i].at + value_entries_at(klen) + below(16)};
    struct value_mover m = {.ctx = &w->ctx};
    struct value_pass p = {0};
    struct value_rec rec;
    struct value_ref is;
    uint64_t at;
    bool any, of_source;
    OK(value_mover_begin(&m, 2));
    OK(value_pass_init(&p, w->file));
    p.at = w->refs[i].at;
    OK(value_pass_next(&p, UINT64_MAX, &any, &at, &rec));
    CHECK(any && at == w->refs[i].at);
    for (uint32_t k = 0; k < 4; k++) {
      const uint64_t before = m.at;
      poke(w, "000001.val", places[k], 4);
      CHECK(value_mover_copy(&m, w->file, at, &rec, p.key, &is, &of_source) == REMIXDB_CORRUPT && of_source);
      value_mover_back(&m, before, 0);
      poke(w, "000001.val", places[k], 4);
    }
    OK(value_mover_copy(&m, w->file, at, &rec, p.key, &is, &of_source));
    simdisk_fault(w->disk, SIMDISK_WRITE, 0, UINT64_MAX, ENOSPC);
    CHECK(value_mover_end(&m) == REMIXDB_NOSPACE);
    simdisk_fault(w->disk, SIMDISK_WRITE, 0, 0, ENOSPC);
    value_mover_fini(&m, true);
    value_pass_fini(&p);
  }
  struct env_stat st;
  CHECK(env_stat(w->sst.dir, "000002.val", &st) == REMIXDB_NOTFOUND);
  world_end(w);
}

// Entries that cannot be make no index.
static void test_entries(void **state) {
  (void)state;
  uint8_t p[3 * VALUE_MOVED];
  const struct value_moved good[] = {{64, 72, 1, 2}, {72, 64, 3, 4}, {800, 1ull << 45, 5, 6}};
  for (uint32_t i = 0; i < 3; i++) value_moved_put(p + i * VALUE_MOVED, &good[i]);
  CHECK(value_moved_good(p, sizeof(p)));
  CHECK(!value_moved_good(p, 0) && !value_moved_good(p, sizeof(p) - 1) && !value_moved_good(p, sizeof(p) - 8));
  static const struct value_moved bad[] = {{64, 72, 1, 2}, {60, 72, 1, 2},         {0, 72, 1, 2},
                                           {76, 72, 1, 2}, {1ull << 46, 72, 1, 2}, {80, 1ull << 46, 1, 2},
                                           {80, 63, 1, 2}, {80, 0, 1, 2},          {800, 72, 0, 0}};
  for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    value_moved_put(p + VALUE_MOVED, &bad[i]);
    CHECK_SAYS(!value_moved_good(p, sizeof(p)), "entry %u", i);
  }
}

int main(void) {
  bytes = malloc(MOST);
  got = malloc(MOST);
  for (uint32_t i = 0; i < MOST; i++) bytes[i] = i % 600 < 200 ? (uint8_t)rng_next(&rng) : (uint8_t)(i >> 9);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_copies),
      cmocka_unit_test(test_look_alike),
      cmocka_unit_test(test_failures),
      cmocka_unit_test(test_entries),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  free(bytes);
  free(got);
  return failed;
}
