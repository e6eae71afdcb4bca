// SPDX-License-Identifier: Apache-2.0
//
// Building and reading a REMIX when something fails: damaged and wrong files, no memory, and a disk that fails.
#include "tests/lib/check.h"
#include "tests/lib/remix_model.h"

#include "remix/narrow.h"
#include "remix/pack.h"
#include "tests/lib/bytes.h"
#include "tests/lib/fault.h"
#include "tests/lib/longer.h"

// Uses a REMIX that may say anything. A call may fail or answer wrongly, and must do no other harm.
static void use_anyhow(struct tables *t, struct remix *x, bool build) {
  struct remix_cursor c;
  struct sst_hold hold = {0};
  struct kv_rec r;
  remix_cursor_init(&c, NULL);
  OK(remix_cursor_set(&c, x));
  enter(t->p);
  for (uint32_t i = 0; i < t->k.nr; i += 7) {
    const struct kref k = t->k.keys[i];
    enum remixdb_status s = remix_get(x, k, hash64(k.ptr, k.len), &hold, &r);
    assert_true(s == REMIXDB_OK || s == REMIXDB_NOTFOUND);
    if (s == REMIXDB_OK) assert_true(kv_eq(kref(r.key, r.klen), k));
    OK(remix_seek(&c, k));
    OK(remix_seek_for_prev(&c, k));
  }
  for (remix_seek_first(&c); remix_valid(&c); remix_next(&c)) OK(remix_record(&c, &r));
  for (remix_seek_last(&c); remix_valid(&c); remix_prev(&c)) OK(remix_record(&c, &r));
  leave(t->p);
  remix_cursor_fini(&c);
  sst_hold_fini(&hold);
  if (!build) return;
  struct remix_build b = place_build(t->p, 999, x, NULL, 0);
  const enum remixdb_status s = remix_build(&b);
  char path[ENV_PATH_MAX];
  remix_path(t->p, 999, path);
  assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
  assert_int_equal(access(path, F_OK) == 0, s == REMIXDB_OK);
  if (s == REMIXDB_OK) OK(env_unlink(ENV_PATHS(env_posix()), path));
}

// The file as format 1 has it: the image, with a checksum at its end.
static uint8_t *file_plain(const struct remix *x, size_t *len_out) {
  const size_t size = *len_out = remix_plain_size(x);
  uint8_t *p = malloc(size);
  assert_non_null(p);
  remix_plain(x, p);
  store32le(p + 8, 1);
  store64le(p + size - 8, hash64_seed(p, size - 8, x->number));
  return p;
}

static void test_damaged_file(void **state) {
  (void)state;
  uint64_t rng = check_seed_for("damaged file");
  struct place p;
  place_init(&p, 1 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_TINY, 80, 3, &rng);
  for (uint32_t form = 0; form < 4; form++) {
    const bool tags = form & 1, plain = form & 2;
    struct remix *x = part_build_all(&t, tags), *y;
    const uint64_t number = x->number;
    char path[ENV_PATH_MAX];
    size_t len;
    uint32_t opened = 0;
    remix_path(&p, number, path);
    uint8_t *image = plain ? file_plain(x, &len) : file_read(path, &len);
    for (size_t i = 0; i < len; i++) {
      for (uint32_t bit = 0; bit < 8; bit++) {
        image[i] ^= (uint8_t)(1u << bit);
        if ((i + bit) % 3 == 0) {
          file_write(path, image, len);
          const enum remixdb_status s = remix_open(&p.ctx, number, t.sst, t.nr, &y);
          FAILS(s, REMIXDB_CORRUPT);
        }
        // where the checksum is right, the structure itself must be checked
        if (i < len - 8) {
          uint8_t sum[8];
          memcpy(sum, image + len - 8, 8);
          store64le(image + len - 8, hash64_seed(image, len - 8, number));
          file_write(path, image, len);
          const enum remixdb_status s = remix_open(&p.ctx, number, t.sst, t.nr, &y);
          if (s == REMIXDB_OK) {
            use_anyhow(&t, y, opened++ % 16 == 0);
            remix_unref(y);
          } else {
            assert_true(s == REMIXDB_CORRUPT || (s == REMIXDB_VERSION && i >= 8 && i < 12));
          }
          memcpy(image + len - 8, sum, 8);
        }
        image[i] ^= (uint8_t)(1u << bit);
      }
    }
    for (size_t n = 0; n < len; n++) {
      file_write(path, image, n);
      FAILS(remix_open(&p.ctx, number, t.sst, t.nr, &y), REMIXDB_CORRUPT);
      assert_null(y);
    }
    file_write(path, image, len);
    OK(remix_open(&p.ctx, number, t.sst, t.nr, &y));
    remix_unref(y);
    free(image);
    done(x);
  }
  part_fini(&t);
  place_fini(&p);
}

static void test_open_refuses(void **state) {
  (void)state;
  uint64_t rng = 7;
  struct place p;
  place_init(&p, 1 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_NUMBERS, 200, 4, &rng);
  struct remix *x = part_build_all(&t, true), *y;
  const uint64_t number = x->number;
  // fresh tables may not overlap
  struct remix_build b = place_build(&p, 888, NULL, t.sst, 4);
  FAILS(remix_build(&b), REMIXDB_CORRUPT);
  struct sst *other[4] = {t.sst[1], t.sst[0], t.sst[2], t.sst[3]};
  FAILS(remix_open(&p.ctx, number, other, 4, &y), REMIXDB_CORRUPT);
  FAILS(remix_open(&p.ctx, number, t.sst, 3, &y), REMIXDB_CORRUPT);
  FAILS(remix_open(&p.ctx, number + 1, t.sst, 4, &y), REMIXDB_CORRUPT);
  assert_null(y);
  struct sst_ctx stranger = p.ctx;
  stranger.store_id++;
  FAILS(remix_open(&stranger, number, t.sst, 4, &y), REMIXDB_CORRUPT);
  // another file under this one's name
  char from[ENV_PATH_MAX], to[ENV_PATH_MAX];
  remix_path(&p, number, from);
  remix_path(&p, number + 5, to);
  OK(env_link(ENV_PATHS(env_posix()), from, ENV_PATHS(env_posix()), to));
  FAILS(remix_open(&p.ctx, number + 5, t.sst, 4, &y), REMIXDB_CORRUPT);

  // the file goes with the last reference when it is obsolete, and not before
  remix_ref(x);
  atomic_store(&x->obsolete, true);
  remix_unref(x);
  assert_int_equal(access(from, F_OK), 0);
  remix_unref(x);
  assert_int_not_equal(access(from, F_OK), 0);
  remix_unref(NULL);
  part_fini(&t);
  place_fini(&p);
}

// An anchor is not longer than a key can be, in a file of any format. Such a view can be built upon.
static void test_long_anchor(void **state) {
  (void)state;
  uint64_t rng = 11;
  struct place p;
  struct tables t;
  char path[ENV_PATH_MAX];
  place_init(&p, 1 << 20);
  part_small(&t, &p, KEYS_PATHS, 4000, 3, &rng);
  struct remix *const x = part_build_all(&t, true), *y;
  const size_t plain_size = remix_plain_size(x);
  uint8_t *const plain = malloc(plain_size);
  const uint32_t seg = x->nr_segs / 2, last = x->nr_segs - 1;
  remix_path(&p, x->number, path);
  remix_plain(x, plain);
  assert_true(last > REMIX_PAGE_SEGS && seg % REMIX_PAGE_SEGS && last % REMIX_PAGE_SEGS);
  for (uint32_t form = 0; form < 12; form++) {  // format 1, columns, or pages; one segment or another; too long or not
    const uint32_t format = form / 4, at = form & 1 ? last : seg, beyond = form >> 1 & 1;
    size_t size = plain_size, len;
    uint8_t *const image = anchor_longer(plain, &size, at, KV_KEY_MAX - anchors_len(&x->index->anchors, at) + beyond),
                   *file = image;
    assert_non_null(image);
    store32le(image + REMIX_HEAD_FORMAT, format == 0 ? 1 : REMIX_FORMAT_PLAIN);
    store64le(image + size - REMIX_SUM, hash64_seed(image, size - REMIX_SUM, x->number));
    len = size;
    atomic_store(&remix_paged_from, format == 2 ? 1 : UINT32_MAX);
    if (format > 0) OK(remix_pack(image, size, false, &file, &len));
    atomic_store(&remix_paged_from, REMIX_PAGED_FROM);
    assert_int_equal(load32le(file + REMIX_HEAD_FORMAT), format == 2 ? REMIX_FORMAT_PAGED : format + 1);
    file_write(path, file, len);
    if (beyond) {
      FAILS(remix_open(&p.ctx, x->number, t.sst, t.nr, &y), REMIXDB_CORRUPT);
      assert_non_null(strstr(err_msg(), "anchor of 65505 bytes"));
    } else {
      OK(remix_open(&p.ctx, x->number, t.sst, t.nr, &y));
      use_anyhow(&t, y, true);
      remix_unref(y);
    }
    if (file != image) mem_free(file);
    free(image);
  }
  free(plain);
  done(x);
  part_fini(&t);
  place_fini(&p);
}

// Each allocation fails in turn. The call gives a status, leaks nothing and leaves no file.
static void test_no_memory(void **state) {
  (void)state;
  uint64_t rng = 11;
  struct place p;
  place_init(&p, 1 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_PATHS, 400, 5, &rng);
  struct remix *old = NULL, *x;
  t.nr = 3;
  old = part_build_all(&t, true);
  t.nr = 5;
  struct remix_build b = place_build(&p, 500, old, t.sst + 3, 1);
  char path[ENV_PATH_MAX];
  remix_path(&p, 500, path);
  uint32_t failed = 0;
  for (int64_t n = 1;; n++) {
    fault_mem_set(n);
    const enum remixdb_status s = remix_build(&b);
    (void)fault_mem_end();
    if (s == REMIXDB_OK) break;
    FAILS(s, REMIXDB_NOMEM);
    assert_int_not_equal(access(path, F_OK), 0);
    failed++;
  }
  assert_true(failed > 5);
  t.nr = 4;
  for (int64_t n = 1;; n++) {
    fault_mem_set(n);
    const enum remixdb_status s = remix_open(&p.ctx, 500, t.sst, 4, &x);
    (void)fault_mem_end();
    if (s == REMIXDB_OK) break;
    FAILS(s, REMIXDB_NOMEM);
    assert_null(x);
  }
  for (int64_t n = 1;; n++) {
    struct remix_cursor c;
    struct kv_rec r;
    remix_cursor_init(&c, p.queue);
    fault_mem_set(n);
    enum remixdb_status s = remix_cursor_set(&c, x);
    enter(&p);
    if (s == REMIXDB_OK) s = remix_seek(&c, t.k.keys[t.k.nr / 2]);
    while (s == REMIXDB_OK && remix_valid(&c)) {
      s = remix_record(&c, &r);
      if (s == REMIXDB_OK) remix_next(&c);
    }
    leave(&p);
    const bool through = !fault_mem_end();
    remix_cursor_fini(&c);
    if (s == REMIXDB_OK && through) break;
    assert_true(s == REMIXDB_NOMEM || s == REMIXDB_OK);  // readahead does without memory
  }
  t.nr = 5;
  done(x);
  done(old);
  part_fini(&t);
  place_fini(&p);
}

// A cursor that lacks memory for a view with more runs is at no view, and holds nothing of the one before.
static void test_no_memory_to_move(void **state) {
  (void)state;
  uint64_t rng = 12;
  struct place p;
  place_init(&p, 1 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_PATHS, 400, 5, &rng);
  t.nr = 1;
  struct remix *const one = part_build_all(&t, true);
  const struct kref key = t.sst[0]->min;
  t.nr = 5;
  struct remix *const five = part_build_all(&t, true);
  for (uint32_t keys_only = 0; keys_only < 2; keys_only++) {
    struct remix_cursor c;
    struct kv_rec r;
    remix_cursor_init(&c, p.queue);
    if (keys_only) remix_keys_only(&c);
    for (int64_t n = 1;; n++) {
      OK(remix_cursor_set(&c, one));
      enter(&p);
      OK(remix_seek(&c, key));
      OK(remix_record(&c, &r));
      leave(&p);
      assert_int_equal(c.holds[0].kind, SST_HOLD_PINNED);
      fault_mem_set(n);
      const enum remixdb_status s = remix_cursor_set(&c, five);
      (void)fault_mem_end();
      if (s == REMIXDB_OK) break;
      FAILS(s, REMIXDB_NOMEM);
      assert_true(!c.x && !remix_valid(&c) && c.holds[0].kind == SST_HOLD_NONE);
      assert_int_equal(n, 1 + (c.cap == 5));  // the holds, and then the keys
    }
    assert_int_equal(c.holds[0].kind, SST_HOLD_PINNED);
    enter(&p);
    OK(remix_seek(&c, key));
    OK(remix_record(&c, &r));
    leave(&p);
    remix_cursor_fini(&c);
  }
  done(one);
  done(five);
  part_fini(&t);
  place_fini(&p);
}

// The disk fails at each call in turn. The call gives a status and leaves no file.
static void test_disk_fails(void **state) {
  (void)state;
  uint64_t rng = 19;
  struct place p;
  place_init(&p, 1 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_NUMBERS, 300, 1, &rng);
  struct remix_build b = place_build(&p, 600, NULL, t.sst, 1);
  char path[ENV_PATH_MAX];
  remix_path(&p, 600, path);
  int64_t n = 1;
  for (;; n++) {
    fault_io_set(FAULT_OPEN | FAULT_WRITE | FAULT_SYNC, n, false);
    const enum remixdb_status s = remix_build(&b);
    const bool met = fault_io_end();
    if (s == REMIXDB_OK) {
      assert_false(met);
      break;
    }
    assert_true(s == REMIXDB_IO || s == REMIXDB_NOSPACE);
    assert_true(err_msg()[0] != 0);
    assert_int_not_equal(access(path, F_OK), 0);
  }
  assert_true(n > 3);  // opening, writing, syncing
  part_fini(&t);
  place_fini(&p);
}

// A table is damaged after its REMIX was built. Reads give a status, and never wrong data.
static void test_damaged_table(void **state) {
  (void)state;
  uint64_t rng = 13;
  struct place p;
  place_init(&p, 0);
  struct tables t;
  part_small(&t, &p, KEYS_NUMBERS, 2000, 3, &rng);
  for (uint32_t tags = 0; tags < 2; tags++) {
    struct remix *x = part_build_all(&t, tags);
    uint32_t block = 0;
    while (t.sst[1]->nr_recs[block] < 20) block++;  // it has one page, and some of its records are the newest ones
    const long at = (long)block * 4096 + 2000;
    byte_flip(t.sst[1]->path, at);
    uint32_t nr, bad = 0, bad_seek = 0, bad_record = 0;
    struct entry *e = part_live(&t, &nr);
    struct remix_cursor c;
    struct sst_hold hold = {0};
    struct kv_rec r;
    remix_cursor_init(&c, NULL);
    OK(remix_cursor_set(&c, x));
    enter(&p);
    for (uint32_t i = 0; i < nr; i++) {
      const struct kref k = t.k.keys[e[i].key];
      enum remixdb_status s = remix_get(x, k, hash64(k.ptr, k.len), &hold, &r);
      assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
      if (s == REMIXDB_OK) check_record(&t, &e[i], &r);
      bad += s != REMIXDB_OK;
      s = i % 2 ? remix_seek(&c, k) : remix_seek_for_prev(&c, k);
      assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
      assert_int_equal(remix_valid(&c), s == REMIXDB_OK);
      bad_seek += s != REMIXDB_OK;
    }
    uint32_t i = 0;
    for (remix_seek_first(&c); remix_valid(&c); remix_next(&c), i++) {
      const enum remixdb_status s = remix_record(&c, &r);
      if (s == REMIXDB_OK) check_record(&t, &e[i], &r);
      bad_record += s == REMIXDB_CORRUPT;
    }
    assert_int_equal(i, nr);
    leave(&p);
    assert_true(bad > 0 && bad < nr && bad_seek > 0 && bad_record > 0);
    remix_cursor_fini(&c);
    sst_hold_fini(&hold);
    free(e);
    // keys come from the compressed-keys block, which is whole
    struct remix *y = part_build(&t, x, UINT32_MAX, 0, tags, NULL);
    done(y);
    byte_flip(t.sst[1]->path, at);
    byte_flip(t.sst[1]->path, (long)t.sst[1]->ckb_off + 100);
    struct remix_build b = place_build(&p, 777, x, NULL, 0);
    b.tags = tags;
    b.way = REMIX_BUILD_MERGE;
    char path[ENV_PATH_MAX];
    remix_path(&p, 777, path);
    FAILS(remix_build(&b), REMIXDB_CORRUPT);
    assert_int_not_equal(access(path, F_OK), 0);
    byte_flip(t.sst[1]->path, (long)t.sst[1]->ckb_off + 100);
    done(x);
  }
  part_fini(&t);
  place_fini(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_damaged_file),      cmocka_unit_test(test_open_refuses),
      cmocka_unit_test(test_long_anchor),       cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_no_memory_to_move), cmocka_unit_test(test_disk_fails),
      cmocka_unit_test(test_damaged_table),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
