// SPDX-License-Identifier: Apache-2.0
//
// Damaged and forged tables: every flipped bit and every cut is found, and a right checksum over wrong contents does no
// harm.
#include "tests/lib/check.h"
#include "tests/lib/bytes.h"
#include "tests/lib/tables.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "table/ckb.h"
#include "table/format.h"
#include "table/readahead.h"
#include "table/scan.h"
#include "table/stored.h"

// Every bit of a small table.
static void test_flips(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 12);
  for (uint32_t v = 0; v < 4; v++) {
    struct world *const w = world_open(env_posix(), v & 1 ? 1u << 20 : 0, false);
    uint64_t size;
    OK(build(w, 1, &m, opts(v & 1, v & 2), &size));
    char path[ENV_PATH_MAX];
    table_path(w, 1, path);
    OK(read_whole(w, 1, &m));
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    size_t len;
    uint8_t *const buf = file_read(path, &len);
    // one checksum covers all padding, so that a sample of it is enough
    for (size_t i = 0; i < len; i++) {
      const bool dull = buf[i] == 0 && i > 0 && buf[i - 1] == 0 && i + 1 < len && buf[i + 1] == 0;
      for (uint32_t bit = 0; bit < 8; bit++) {
        if (dull && below(64)) continue;
        const uint8_t b = buf[i] ^ (uint8_t)(1u << bit);
        assert_int_equal(pwrite(fd, &b, 1, (off_t)i), 1);
        const enum remixdb_status s = read_whole(w, 1, &m);
        if (s != REMIXDB_CORRUPT && s != REMIXDB_VERSION) fail_msg("byte %zu bit %u passed: %d", i, bit, (int)s);
        assert_non_null(strstr(err_msg(), "000001.sst"));
      }
      assert_int_equal(pwrite(fd, &buf[i], 1, (off_t)i), 1);
    }
    OK(read_whole(w, 1, &m));
    assert_int_equal(close(fd), 0);
    free(buf);
    world_close(w);
  }
  model_free(&m);
}

static void test_cuts(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 12);
  struct world *const w = world_open(env_posix(), 1u << 20, false);
  uint64_t size;
  OK(build(w, 1, &m, opts(true, true), &size));
  char path[ENV_PATH_MAX];
  table_path(w, 1, path);
  while (size-- > 0) {
    assert_int_equal(truncate(path, (off_t)size), 0);
    FAILS(read_whole(w, 1, &m), REMIXDB_CORRUPT);
    assert_non_null(strstr(err_msg(), "000001.sst"));
  }
  OK(build(w, 1, &m, opts(true, true), &size));
  assert_int_equal(truncate(path, (off_t)size + 4096), 0);
  FAILS(read_whole(w, 1, &m), REMIXDB_CORRUPT);
  // cut after it was opened
  assert_int_equal(truncate(path, (off_t)size), 0);
  OK(build(w, 1, &m, opts(true, false), &size));
  struct sst *t;
  OK(sst_open(&w->ctx, 1, &t));
  assert_int_equal(truncate(path, 100), 0);
  struct sst_hold h = {0};
  struct kv_rec r;
  epoch_enter(&w->epoch, &w->slot);
  sst_readahead(t, w->q, 0, 10);
  FAILS(sst_read(t, 0, true, &h, &r), REMIXDB_CORRUPT);
  FAILS(sst_read(t, 0, true, &h, &r), REMIXDB_CORRUPT);
  epoch_exit(&w->slot);
  sst_hold_fini(&h);
  struct sst_keys k;
  OK(sst_keys_open(t, w->q, &k));
  FAILS(sst_keys_next(&k), REMIXDB_CORRUPT);
  sst_keys_close(&k);
  sst_unref(t);
  // the file is gone
  assert_int_equal(unlink(path), 0);
  FAILS(sst_open(&w->ctx, 1, &t), REMIXDB_CORRUPT);
  assert_null(t);
  assert_non_null(strstr(err_msg(), "000001.sst"));
  world_close(w);
  model_free(&m);
}

static void reseal_footer(uint8_t *f) { store64le(f, hash64(f + 8, FORMAT_SST_FOOTER - 8)); }

static void test_identity(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 100);
  struct world *const w = world_open(env_posix(), 0, false);
  uint64_t size;
  OK(build(w, 1, &m, opts(true, false), &size));
  char from[ENV_PATH_MAX], to[ENV_PATH_MAX];
  table_path(w, 1, from);
  table_path(w, 2, to);
  size_t len;
  uint8_t *const buf = file_read(from, &len);
  file_write(to, buf, len);
  FAILS(read_whole(w, 2, &m), REMIXDB_CORRUPT);
  assert_non_null(strstr(err_msg(), "000002.sst"));
  w->ctx.store_id++;
  FAILS(read_whole(w, 1, &m), REMIXDB_CORRUPT);
  w->ctx.store_id--;
  OK(read_whole(w, 1, &m));

  // a flipped version number is damage; a newer format has a right checksum, with any contents
  uint8_t *const foot = buf + len - FORMAT_SST_FOOTER;
  store32le(foot + 244, FORMAT_SST_VERSION + 1);
  file_write(from, buf, len);
  FAILS(read_whole(w, 1, &m), REMIXDB_CORRUPT);
  reseal_footer(foot);
  file_write(from, buf, len);
  FAILS(read_whole(w, 1, &m), REMIXDB_VERSION);
  assert_non_null(strstr(err_msg(), "000001.sst"));
  store32le(foot + 244, 0);
  reseal_footer(foot);
  file_write(from, buf, len);
  FAILS(read_whole(w, 1, &m), REMIXDB_CORRUPT);
  // the blocks of older versions have another form
  for (uint32_t version = FORMAT_SST_VERSION; version > 0; version--) {
    store32le(foot + 244, version);
    reseal_footer(foot);
    file_write(from, buf, len);
    FAILS(read_whole(w, 1, &m), version == FORMAT_SST_VERSION ? REMIXDB_OK : REMIXDB_CORRUPT);
  }
  free(buf);
  model_free(&m);
  world_close(w);
}

// ---- right checksums over wrong contents: an error or some answer, and no read outside of the data

struct forge {
  struct world *w;
  char path[ENV_PATH_MAX];
  uint8_t *orig, *buf;  // the file, and its forgery
  size_t len;
  struct format_sst_footer f;  // the original's
};

// Makes the checksums of the metadata and of the footer right, and writes the file.
static void forge_write(struct forge *x) {
  uint8_t *const foot = x->buf + x->len - FORMAT_SST_FOOTER;
  store64le(foot + 96, hash64_seed(x->buf + x->f.meta_off, x->f.meta_len, format_sst_meta_seed(1)));
  reseal_footer(foot);
  file_write(x->path, x->buf, x->len);
}

// A field of the footer becomes a little larger or smaller, or anything. False: the field is a checksum.
static bool forge_field(struct forge *x) {
  uint8_t *const field = x->buf + x->len - FORMAT_SST_FOOTER + 24 + 8 * below(14);
  if (field == x->buf + x->len - FORMAT_SST_FOOTER + 96) return false;
  uint64_t n = load64le(field);
  n = below(3) == 0 ? rng_next(&check_seed) >> below(64)
      : below(2)    ? n + below(3) - 1
                    : n + ((uint64_t)(below(3) - 1) << 32);
  store64le(field, n);
  return true;
}

// Random changes of the footer and of the metadata. Most are refused.
static void forge_at_random(struct forge *x) {
  const struct format_sst_footer *const f = &x->f;
  uint8_t *const meta = x->buf + f->meta_off;
  uint32_t refused = 0;
  for (uint32_t round = 0; round < 400; round++) {
    memcpy(x->buf, x->orig, x->len);
    switch (below(3)) {
      case 0:
        if (!forge_field(x)) continue;
        break;
      case 1:  // counts, keys and sizes
        meta[below((uint32_t)(f->nr_pages + f->min_len + f->max_len + f->dict_len + f->sizes_len))] ^=
            (uint8_t)(1u << below(8));
        break;
      default:  // counts that still add up
        meta[below(f->nr_pages)]++;
        meta[below(f->nr_pages)]--;
        break;
    }
    forge_write(x);
    const enum remixdb_status s = read_whole(x->w, 1, NULL);
    assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
    refused += s != REMIXDB_OK;
  }
  assert_true(refused > 100);
}

// A dictionary that zstd does not accept.
static void forge_dictionary(struct forge *x) {
  memcpy(x->buf, x->orig, x->len);
  assert_true(x->f.dict_len > 64);
  memset(x->buf + x->f.meta_off + x->f.nr_pages + x->f.min_len + x->f.max_len + 8, 0xff, 56);
  forge_write(x);
  FAILS(read_whole(x->w, 1, NULL), REMIXDB_CORRUPT);
  assert_non_null(strstr(err_msg(), "dictionary"));
}

static uint64_t sizes_at(const struct format_sst_footer *f) {
  return f->meta_off + f->nr_pages + f->min_len + f->max_len + f->dict_len;
}

// Sizes that are not those of the blocks.
static void forge_sizes(struct forge *x) {
  struct sst *t;
  for (uint32_t bit = 0; bit < x->f.sizes_len * 8; bit++) {
    memcpy(x->buf, x->orig, x->len);
    x->buf[sizes_at(&x->f) + bit / 8] ^= (uint8_t)(1u << bit % 8);
    forge_write(x);
    FAILS(sst_open(&x->w->ctx, 1, &t), REMIXDB_CORRUPT);
  }
}

// Other bytes in the first compressed block.
static void forge_block(struct forge *x) {
  for (uint32_t round = 0; round < 400; round++) {
    memcpy(x->buf, x->orig, x->len);
    uint32_t n;
    assert_non_null(kv_varint_get(x->buf + sizes_at(&x->f), x->buf + x->len, &n));
    for (uint32_t i = 0; i <= below(3); i++) x->buf[8 + below(round % 2 ? 30 : n - 8)] ^= (uint8_t)(1u << below(8));
    store64le(x->buf, hash64_seed(x->buf + 8, n - 8, block_seed(1, 0)));
    file_write(x->path, x->buf, x->len);
    const enum remixdb_status s = read_whole(x->w, 1, NULL);
    assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
  }
}

static void test_forged(void **state) {
  (void)state;
  struct model m = model_make(MIXED, 10);
  while (m.used < 48 << 10) {  // fewer bytes may be too few for a dictionary
    model_free(&m);
    m = model_make(MIXED, 10);
  }
  for (uint32_t v = 0; v < 4; v++) {
    const bool zstd = v & 2;
    struct forge x = {.w = world_open(env_posix(), v & 1 ? 1u << 20 : 0, false)};
    uint64_t size;
    OK(build(x.w, 1, &m, opts(v & 1, zstd), &size));
    table_path(x.w, 1, x.path);
    x.buf = file_read(x.path, &x.len);
    x.orig = file_read(x.path, &x.len);
    OK(format_sst_footer_get(x.orig + x.len - FORMAT_SST_FOOTER, x.len, x.path, &x.f));
    forge_at_random(&x);
    if (zstd) {
      forge_dictionary(&x);
      forge_sizes(&x);
      forge_block(&x);
    }
    free(x.buf);
    free(x.orig);
    world_close(x.w);
  }
  model_free(&m);
}

// Writes the table with other compressed keys and right checksums, and reads it.
static enum remixdb_status with_keys(struct world *w, const char *path, const uint8_t *orig, size_t len,
                                     const struct model *m, uint32_t leave_out, const struct kref *more) {
  struct format_sst_footer f;
  OK(format_sst_footer_get(orig + len - FORMAT_SST_FOOTER, len, path, &f));
  struct ckb_build c = {0};
  ckb_build_init(&c, 1);
  for (uint32_t i = 0; i < m->nr; i++)
    if (i != leave_out) OK(ckb_build_add(&c, kref(m->r[i].key, m->r[i].klen), m->r[i].kind));
  if (more) OK(ckb_build_add(&c, *more, false));
  OK(ckb_build_finish(&c));
  const size_t used = f.nr_pages + f.min_len + f.max_len;
  const size_t to = align_up(f.data_size + c.len + used + FORMAT_SST_FOOTER, FORMAT_SST_ALIGN);
  uint8_t *const buf = calloc(1, to);
  memcpy(buf, orig, f.data_size);
  memcpy(buf + f.data_size, c.buf, c.len);
  uint8_t *const meta = buf + f.data_size + c.len;
  memcpy(meta, orig + f.meta_off, used);
  f.ckb_len = c.len;
  f.meta_off = f.data_size + c.len;
  f.meta_len = to - FORMAT_SST_FOOTER - f.meta_off;
  f.file_size = to;
  f.meta_sum = hash64_seed(meta, f.meta_len, format_sst_meta_seed(1));
  format_sst_footer_put(buf + to - FORMAT_SST_FOOTER, &f);
  (void)unlink(path);
  file_write(path, buf, to);
  free(buf);
  ckb_build_fini(&c);
  return read_whole(w, 1, NULL);
}

// A block is stored as one frame, as docs/FORMAT.md says; zstd itself accepts several.
static void test_one_frame(void **state) {
  (void)state;
  static const uint8_t value[2000] = {1, 2, 3}, skippable[] = "\x50\x2a\x4d\x18\x03\0\0\0abc";
  const struct kv_rec rec = {.key = value, .klen = 3, .val = value, .vlen = sizeof(value)};
  struct block_build b;
  OK(block_build_init(&b));
  block_build_add(&b, &rec, 0);
  assert_int_equal(block_build_finish(&b, 1, 0), 1);
  const uint8_t *const body = b.buf + FORMAT_SST_STORED_SKIP;
  const size_t len = BLOCK_PAGE - FORMAT_SST_STORED_SKIP;
  for (uint32_t way = 0; way < 4; way++) {
    uint8_t stored[2 * BLOCK_PAGE], block[BLOCK_PAGE], counts[] = {1, 1};
    size_t end = FORMAT_SST_STORED_HEAD;
    const size_t first = way == 1 ? 2000 : len;
    if (way == 3) memcpy(stored + end, skippable, sizeof(skippable) - 1);
    if (way == 3) end += sizeof(skippable) - 1;
    end += ZSTD_compress(stored + end, sizeof(stored) - end, body, first, 3);
    if (way == 1) end += ZSTD_compress(stored + end, sizeof(stored) - end, body + first, len - first, 3);
    if (way == 2) memcpy(stored + end, skippable, sizeof(skippable) - 1);
    if (way == 2) end += sizeof(skippable) - 1;
    stored[8] = FORMAT_SST_STORED_ZSTD;
    store64le(stored, hash64_seed(stored + 8, end - 8, block_seed(1, 0)));
    uint64_t offs[] = {0, end};
    const struct sst t = {
        .number = 1, .path = (char[]){"t"}, .form = BLOCK_FORM_KINDS, .nr_pages = 1, .nr_recs = counts, .offs = offs};
    ZSTD_DCtx *zstd = NULL;
    assert_int_equal(sst_unpack(&t, 0, 1, stored, (uint32_t)end, &zstd, block),
                     way == 0 ? REMIXDB_OK : REMIXDB_CORRUPT);
    if (way == 0) assert_memory_equal(block + FORMAT_SST_STORED_SKIP, body, len);
    (void)ZSTD_freeDCtx(zstd);
  }
  block_build_fini(&b);
}

static void test_wrong_keys(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 9000);
  struct world *const w = world_open(env_posix(), 0, false);
  uint64_t size;
  OK(build(w, 1, &m, opts(true, false), &size));
  char path[ENV_PATH_MAX];
  table_path(w, 1, path);
  size_t len;
  uint8_t *const orig = file_read(path, &len);
  const struct kref more = kref("\xff\xff", 2);
  OK(with_keys(w, path, orig, len, &m, m.nr, NULL));
  FAILS(with_keys(w, path, orig, len, &m, 0, NULL), REMIXDB_CORRUPT);  // fewer keys, at each end and in between
  FAILS(with_keys(w, path, orig, len, &m, m.nr / 2, NULL), REMIXDB_CORRUPT);
  FAILS(with_keys(w, path, orig, len, &m, m.nr - 1, NULL), REMIXDB_CORRUPT);
  FAILS(with_keys(w, path, orig, len, &m, m.nr, &more), REMIXDB_CORRUPT);  // more keys
  FAILS(with_keys(w, path, orig, len, &m, 0, &more), REMIXDB_CORRUPT);     // other keys
  FAILS(with_keys(w, path, orig, len, &m, m.nr - 1, &more), REMIXDB_CORRUPT);
  free(orig);
  world_close(w);
  model_free(&m);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_flips),  cmocka_unit_test(test_cuts),      cmocka_unit_test(test_identity),
      cmocka_unit_test(test_forged), cmocka_unit_test(test_one_frame), cmocka_unit_test(test_wrong_keys),
  };
  return check_seed_end(cmocka_run_group_tests(tests, root_setup, root_teardown));
}
