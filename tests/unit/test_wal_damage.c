// SPDX-License-Identifier: Apache-2.0
//
// Damaged files of the write-ahead log: recovery finds every damage before the end of the durable part, and never
// replays a record that was not appended.
#include "tests/lib/check.h"
#include "tests/lib/wal_model.h"

#include <stdio.h>
#include <stdlib.h>

// A disk with three live segments and a spare or two. Damage before offset *proven of the active one must be found:
// that is the end of a closed log; otherwise the end of the last sync, which a later frame states.
static struct simdisk *damage_disk(struct model *m, uint64_t seed, bool closed, uint64_t *proven) {
  struct simdisk *const d = disk_create();
  struct wal *w;
  uint64_t rng = seed;
  simdisk_no_allocate(d, true);
  OK(open_model(dir_of(d), m, &w));
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
    check_seed = seed;
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
      if (gen < m->gen) {  // the next one knows its final length; a recycled file may have anything after that
        assert_true(simdisk_peek(d, file_of(d, gen + 1), 0, next_head, HEAD));
        durable = load64le(next_head + 40);
      }
      const uint64_t off = pick(&rng, 3) == 0 ? pick(&rng, HEAD) : pick(&rng, size);
      const uint8_t mask = (uint8_t)(1u << pick(&rng, 8));
      assert_true(simdisk_flip(d, name, off, mask));
      struct wal *w;
      struct wal_recovery rec;
      const enum remixdb_status s = open_as(dir_of(d), m, true, &rec, &w);
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
    log_end(d, m);
  }
}

// Runs of rubbish or zeroes, and cut files, anywhere: opening never crashes, and never replays a record that was not
// appended.
static void test_rubbish(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 150; seed++) {
    check_seed = seed;
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
    const enum remixdb_status s = open_as(dir_of(d), m, false, &rec, &w);
    CHECK_SAYS(s == REMIXDB_OK || s == REMIXDB_CORRUPT, "status %d", s);
    if (s == REMIXDB_OK) OK(wal_close(w));
    log_end(d, m);
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

// Opens a log of which one file is wrong. A refusal changes nothing, and its message has the directory and `said`.
static void expect_open(struct simdisk *d, struct model *m, bool read_only, enum remixdb_status want,
                        const char *said) {
  struct wal *w;
  struct wal_recovery rec;
  const uint64_t changes = simdisk_changes(d);
  FAILS(open_as(dir_of(d), m, read_only, &rec, &w), want);
  if (w) {
    OK(wal_close(w));
  } else {
    assert_int_equal(simdisk_changes(d), changes);
    assert_non_null(strstr(err_msg(), DIR));
    assert_non_null(strstr(err_msg(), said));
  }
  log_end(d, m);
}

// The file of the oldest, the middle or the newest generation (0 to 2) of a damage_disk.
static const char *damage_file(struct simdisk *d, const struct model *m, uint32_t which) {
  return file_of(d, which == 2 ? m->gen : m->oldest_gen + which);
}

static void test_missing_segment(void **state) {
  (void)state;
  for (uint32_t which = 0; which < 2; which++) {
    uint64_t proven;
    char said[40];
    struct model *const m = model_create();
    struct simdisk *const d = damage_disk(m, 5, which, &proven);
    OK(env_unlink(ENV_PATHS(simdisk_env(d)), damage_file(d, m, which)));
    (void)snprintf(said, sizeof(said), "%llu is missing", (unsigned long long)m->oldest_gen + which);
    expect_open(d, m, which, REMIXDB_CORRUPT, said);
  }
}

static void test_segment_twice(void **state) {
  (void)state;
  uint64_t proven;
  struct model *const m = model_create();
  struct simdisk *const d = damage_disk(m, 5, false, &proven);
  copy_file(d, damage_file(d, m, 2), DIR "/wal-17");
  expect_open(d, m, false, REMIXDB_CORRUPT, "wal-17");
}

// The log leaves files alone whose names are not its own.
static void test_foreign_names(void **state) {
  (void)state;
  uint64_t proven;
  struct model *const m = model_create();
  struct simdisk *const d = damage_disk(m, 5, true, &proven);
  copy_file(d, damage_file(d, m, 1), DIR "/wal-017");
  copy_file(d, damage_file(d, m, 1), DIR "/wal-x");
  copy_file(d, damage_file(d, m, 1), DIR "/wal-1234567890");
  expect_open(d, m, false, REMIXDB_OK, "");
}

// A header of another format, another store, or another place in the chain, with a checksum that is right or wrong.
static const struct wrong_head {
  uint32_t which;      // an index of the files of damage_file
  uint32_t at, bytes;  // where the field is, and its bytes
  uint64_t value;      // the field's
  uint32_t summed;     // the checksum is that of so many bytes
  bool no_level;       // there is no watermark
  bool bad_sum;        // the checksum is wrong
  bool closed;         // the log was closed, and is opened read-only
  enum remixdb_status want;
  const char *said;
} wrong_heads[] = {
    // a later format
    {0, 8, 4, 5, LEVEL, false, false, true, REMIXDB_VERSION, ""},
    {1, 8, 4, 5, LEVEL, false, false, false, REMIXDB_VERSION, ""},
    // another store's
    {2, 16, 8, STORE + 1, LEVEL, false, false, true, REMIXDB_CORRUPT, ""},
    // the first layout there was: its checksum is that of all bytes before it
    {1, 8, 4, 1, LEVEL_END, true, false, true, REMIXDB_VERSION, "older"},
    {2, 8, 4, 1, LEVEL_END, true, false, false, REMIXDB_VERSION, "older"},
    // that layout with another version, or with a wrong checksum, is no header
    {0, 8, 4, 2, LEVEL_END, false, false, true, REMIXDB_CORRUPT, ""},
    {1, 8, 4, 1, LEVEL_END, false, true, false, REMIXDB_CORRUPT, ""},
    // a number that no format has
    {2, 8, 4, 0, LEVEL, false, false, true, REMIXDB_VERSION, ""},
    // a layout without fingerprints under the numbers 1 and 2: nothing names the newest segment
    {2, 8, 4, 1, LEVEL, false, false, false, REMIXDB_OK, ""},
    {2, 8, 4, 2, LEVEL, false, false, false, REMIXDB_OK, ""},
    // a header that the one after it does not name, of another random number
    {0, 64, 8, 1, LEVEL, false, false, false, REMIXDB_CORRUPT, "another history"},
    {1, 64, 8, 1, LEVEL, false, false, true, REMIXDB_CORRUPT, "another history"},
    // the fingerprint of the segment before, and the sum of its frames
    {1, 72, 8, 1, LEVEL, false, false, true, REMIXDB_CORRUPT, "another history"},
    {2, 72, 8, 1, LEVEL, false, false, false, REMIXDB_CORRUPT, "another history"},
    {2, 80, 8, 1, LEVEL, false, false, false, REMIXDB_CORRUPT, "another history"},
};

static void wrong_head_put(struct simdisk *d, const char *path, const struct wrong_head *h) {
  uint8_t head[HEAD];
  assert_true(simdisk_peek(d, path, 0, head, HEAD));
  if (h->bytes == 4) store32le(head + h->at, (uint32_t)h->value);
  else store64le(head + h->at, h->value);
  if (h->no_level) memset(head + LEVEL, 0, LEVEL_END - LEVEL);
  store64le(head + LEVEL_END, hash64(head, h->summed) ^ h->bad_sum);
  assert_true(simdisk_poke(d, path, 0, head, HEAD));
}

static void test_wrong_heads(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof(wrong_heads) / sizeof(wrong_heads[0]); i++) {
    const struct wrong_head *const h = &wrong_heads[i];
    uint64_t proven;
    struct model *const m = model_create();
    struct simdisk *const d = damage_disk(m, 5, h->closed, &proven);
    (void)snprintf(check_what, sizeof(check_what), "header %zu", i);
    wrong_head_put(d, damage_file(d, m, h->which), h);
    expect_open(d, m, h->closed, h->want, h->said);
  }
  check_what[0] = '\0';
}

static void test_head_of_itself(void **state) {
  (void)state;
  uint64_t proven;
  struct model *const m = model_create();
  struct simdisk *const d = damage_disk(m, 5, false, &proven);
  const struct wrong_head h = {.at = 32, .bytes = 8, .value = m->gen, .summed = LEVEL};
  wrong_head_put(d, damage_file(d, m, 2), &h);
  expect_open(d, m, false, REMIXDB_CORRUPT, "");
}

// Generations and sequence numbers count up from small ones. Numbers that are about to wrap around are damage.
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
    FAILS(open_as(dir_of(d), m, false, &rec, &w), REMIXDB_CORRUPT);
    m->oldest_seq = seq;
    // the newest segment, which the version file names, or whose predecessor it names
    assert_true(simdisk_peek(d, file_of(d, m->gen), 0, head, HEAD));
    store64le(head + 24, UINT64_MAX - below);
    store64le(head + 504, hash64(head, 448));
    assert_true(simdisk_poke(d, file_of(d, m->gen), 0, head, HEAD));
    m->oldest_gen = UINT64_MAX - below;
    FAILS(open_as(dir_of(d), m, false, &rec, &w), REMIXDB_CORRUPT);
    assert_non_null(strstr(err_msg(), DIR));
    m->oldest_gen = gen;
    FAILS(open_as(dir_of(d), m, false, &rec, &w), REMIXDB_CORRUPT);
    assert_int_equal(simdisk_changes(d), changes);
    log_end(d, m);
  }
}

static enum remixdb_status status_after_flip(struct simdisk *d, const char *path, uint64_t off) {
  struct wal *w;
  assert_true(simdisk_flip(d, path, off, 1));
  const enum remixdb_status s = open_any(d, false, true, NULL, &w);
  if (s == REMIXDB_OK) OK(wal_close(w));
  assert_true(simdisk_flip(d, path, off, 1));
  return s;
}

// The things that can prove a broken frame durable, each alone.
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
      case 0:  // none: the frame was synced, but nothing after it says so
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
        assert_true(
            simdisk_flip(d, DIR "/wal-1", 0, 1));  // the segment that this opening began would be a witness, too
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

// A marked newest segment cannot be lost unseen, as its predecessor names it.
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
      assert_true(simdisk_flip(d, DIR "/wal-0", LEVEL + 20, 1));  // else it goes on in the same segment
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
        // the frames of a second life say that their header is durable, those after a switch do not
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

// Frames with sound checksums and impossible contents count as broken.
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_flips),           cmocka_unit_test(test_rubbish),
      cmocka_unit_test(test_missing_segment), cmocka_unit_test(test_segment_twice),
      cmocka_unit_test(test_foreign_names),   cmocka_unit_test(test_wrong_heads),
      cmocka_unit_test(test_head_of_itself),  cmocka_unit_test(test_numbers_at_their_end),
      cmocka_unit_test(test_witnesses),       cmocka_unit_test(test_lost_segment),
      cmocka_unit_test(test_distant_witness), cmocka_unit_test(test_forged_frames),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
