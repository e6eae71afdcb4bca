// SPDX-License-Identifier: Apache-2.0
//
// Building a REMIX when something fails: no memory, failing calls, damaged tables and views, and tables that overlap.
#include "tests/lib/check.h"
#include "tests/lib/remix_world.h"

#include "remix/narrow.h"
#include "tests/lib/bytes.h"
#include "tests/lib/fault.h"

// A small partition with a new table; `old` gets the view before, and t->x is NULL.
static void fault_world(struct world *t, struct place *p, uint32_t ckb, bool zstd, struct remix **old) {
  place_init(p, 0);
  views_init(t, p, ckb, 60, true);
  t->zstd = zstd;
  keyset_of_kind(&t->k, KEYS_MIXED, 3000, &check_seed);
  world_spread(t, 4, 3, NULL);
  world_add(t, fresh_keys(t, SPARSE, 30));
  *old = t->x;
  t->x = NULL;
}

// Each allocation, and each call to the file system, fails in turn. The build gives a status with a message, and leaves
// no file.
static void test_failures(void **state) {
  (void)state;
  static const unsigned kinds[] = {0, FAULT_OPEN, FAULT_READ, FAULT_WRITE, FAULT_SYNC, FAULT_CLOSE};
  for (uint32_t round = 0; round < 12; round++) {
    struct place p;
    struct world t;
    struct remix *old;
    fault_world(&t, &p, round % 3, round >= 6, &old);
    const enum remix_build_way way = round / 3 % 2 ? REMIX_BUILD_MERGE : REMIX_BUILD_SPLICE;
    // in every third round runs leave, so that keys are read where segments are joined
    const uint32_t keep = round % 3 == 2 ? 0xB : UINT32_MAX;
    char path[ENV_PATH_MAX];
    remix_path(&p, 900, path);
    for (uint32_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
      uint32_t failed = 0;
      for (int64_t n = 1;; n++) {
        struct remix_build b = place_build(&p, 900, old, t.sst + 4, 1);
        b.keep = keep;
        b.way = way;
        if (kinds[k]) fault_io_set(kinds[k], n, false);
        else fault_mem_set(n);
        const enum remixdb_status s = remix_build(&b);
        const bool met = kinds[k] ? fault_io_end() : fault_mem_end();
        if (!met) {
          OK(s);
          break;
        }
        if (kinds[k]) assert_true(s == REMIXDB_IO || s == REMIXDB_NOSPACE);
        else FAILS(s, REMIXDB_NOMEM);
        assert_true(err_msg()[0] != 0);
        assert_int_not_equal(access(path, F_OK), 0);
        failed++;
      }
      assert_int_equal(access(path, F_OK), 0);
      OK(env_unlink(ENV_PATHS(env_posix()), path));
      assert_true(failed > 0);
    }
    t.x = old;
    views_fini(&t);
    place_fini(&p);
  }
}

// A splice finds damage in all that it reads, including compressed keys that it only skips.
static void test_damaged_tables(void **state) {
  (void)state;
  for (uint32_t ckb = 0; ckb < 2; ckb++) {
    struct place p;
    struct world t;
    struct remix *old;
    place_init(&p, 0);
    views_init(&t, &p, ckb ? CKB_ALL : CKB_NONE, 60, true);
    keys_random16(&t.k, 60000);
    world_spread(&t, 2, 0, NULL);
    uint8_t *const has = calloc(t.k.nr, 1);
    for (uint32_t i = 0; i < 40; i++) has[t.k.nr / 2 + below(t.k.nr / 2)] = HAS_TOMB;
    uint32_t last = t.k.nr - 1;
    while (!t.has[0][last]) last--;
    has[last] = HAS_PUT;
    world_add(&t, has);
    old = t.x;
    t.x = NULL;
    char path[ENV_PATH_MAX];
    remix_path(&p, 900, path);
    size_t len;
    uint8_t *const image = file_read(t.sst[0]->path, &len);
    const uint64_t from = ckb ? t.sst[0]->ckb_off : 0,
                   to = ckb ? t.sst[0]->ckb_off + t.sst[0]->ckb_len : t.sst[0]->data_size;
    uint32_t found = 0, times = 0;
    for (uint64_t at = from + 1000; at < to; at += 4096, times++) {
      image[at] ^= 0x10;
      file_write(t.sst[0]->path, image, len);
      struct remix_build b = place_build(&p, 900, old, t.sst + 2, 1);
      b.way = REMIX_BUILD_SPLICE;
      const enum remixdb_status s = remix_build(&b);
      image[at] ^= 0x10;
      assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
      assert_int_equal(access(path, F_OK) == 0, s == REMIXDB_OK);
      if (s == REMIXDB_OK) OK(env_unlink(ENV_PATHS(env_posix()), path));
      found += s == REMIXDB_CORRUPT;
      if (s == REMIXDB_CORRUPT) assert_non_null(strstr(err_msg(), t.sst[0]->path));
    }
    file_write(t.sst[0]->path, image, len);
    free(image);
    if (ckb) assert_int_equal(found, times);  // its last key comes again, so that the splice passes all chunks
    else assert_true(found > 0 && found <= 90 && found < times);
    t.x = old;
    views_fini(&t);
    place_fini(&p);
  }
}

// A REMIX has a right checksum and wrong contents. The splice ends with a view or with an error.
static void test_damaged_view(void **state) {
  (void)state;
  struct place p;
  struct world t;
  place_init(&p, 0);
  views_init(&t, &p, CKB_MIXED, 20, true);
  keyset_of_kind(&t.k, KEYS_TINY, 250, &check_seed);
  world_spread(&t, 3, 3, NULL);
  world_add(&t, fresh_keys(&t, SPARSE, t.k.nr / 4));
  uint8_t *const again = calloc(t.k.nr, 1);
  memcpy(again, t.has[2], t.k.nr);
  world_add(&t, again);
  struct remix *const old = t.x, *bad;
  t.x = NULL;
  char path[ENV_PATH_MAX], made[ENV_PATH_MAX];
  remix_path(&p, old->number, path);
  remix_path(&p, 900, made);
  // a file of format 1 is the image itself, with a checksum at its end
  const size_t len = remix_plain_size(old);
  uint8_t *const image = malloc(len);
  remix_plain(old, image);
  store32le(image + 8, 1);
  OK(env_unlink(ENV_PATHS(env_posix()), path));
  uint32_t opened = 0, refused = 0;
  for (size_t i = 104; i < len - 8; i++) {
    for (uint32_t bit = 0; bit < 8; bit++) {
      image[i] ^= (uint8_t)(1u << bit);
      store64le(image + len - 8, hash64_seed(image, len - 8, old->number));
      file_write(path, image, len);
      if (remix_open(&p.ctx, old->number, t.sst, 3, &bad) == REMIXDB_OK) {
        // new keys come; or another table is the newest run, and no key is read
        for (uint32_t moves = 0; moves < 2; moves++) {
          struct remix_build b = place_build(&p, 900, bad, t.sst + 3 + moves, 1);
          b.moved = moves;
          b.keep = moves ? first_runs(2) : below(3) ? UINT32_MAX : (uint32_t)rng_next(&check_seed);
          b.way = moves ? REMIX_BUILD_MOVED : REMIX_BUILD_SPLICE;
          const enum remixdb_status s = remix_build(&b);
          assert_true(s == REMIXDB_OK || (s == REMIXDB_CORRUPT && !moves));
          assert_true(!moves || b.way == REMIX_BUILD_MOVED);
          assert_int_equal(access(made, F_OK) == 0, s == REMIXDB_OK);
          if (s == REMIXDB_OK) OK(env_unlink(ENV_PATHS(env_posix()), made));
          refused += s == REMIXDB_CORRUPT;
        }
        opened++;
        remix_unref(bad);
      }
      image[i] ^= (uint8_t)(1u << bit);
    }
  }
  assert_true(opened > 100 && refused > 100);
  free(image);
  t.x = old;
  views_fini(&t);
  place_fini(&p);
}

// New tables may not overlap.
static void test_overlap(void **state) {
  (void)state;
  for (enum remix_build_way way = REMIX_BUILD_AUTO; way <= REMIX_BUILD_SPLICE; way++) {
    struct place p;
    struct world t;
    small_world(&t, &p, KEYS_PATHS, CKB_ALL);
    world_spread(&t, 2, 0, NULL);
    uint8_t *const all = calloc(t.k.nr, 1), *const last = calloc(t.k.nr, 1);
    memset(all, HAS_PUT, t.k.nr);
    last[t.k.nr - 1] = HAS_PUT;  // the largest key, in both
    world_add(&t, all);
    world_add(&t, last);
    struct remix_build b = place_build(&p, 900, t.x, t.sst + 2, 2);
    b.tags = t.tags;
    b.way = way;
    char path[ENV_PATH_MAX];
    FAILS(remix_build(&b), REMIXDB_CORRUPT);
    assert_int_not_equal(access(remix_path(&p, 900, path), F_OK), 0);
    views_fini(&t);
    place_fini(&p);
  }
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_failures),
      cmocka_unit_test(test_damaged_tables),
      cmocka_unit_test(test_damaged_view),
      cmocka_unit_test(test_overlap),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
