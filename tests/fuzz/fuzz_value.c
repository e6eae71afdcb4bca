// SPDX-License-Identifier: Apache-2.0
//
// Value files. A good file is changed as the input says, and references to its values, good ones and changed ones, are
// read. A reference as it was made yields the value as it was written, or nothing.
//
// Input: flags (bit 0: the checksums of header and heads are made right after the changes, 1: compressed), which value,
// a change of the reference (bytes 4, which byte and by what; 0: none), an offset and a length to read, then changes of
// the file (fuzz.h).
#include "tests/fuzz/fuzz.h"
#include "value/read.h"
#include "value/write.h"

#define VALUES 6u

static const uint32_t lens[VALUES] = {1, 700, 65536, 66000, 200000, 3000};

struct good {
  struct fuzz_image file;
  struct value_head head;
  uint8_t refs[VALUES][VALUE_REF];
};

static struct fuzz_place *place;
static struct value_ctx ctx;
static struct good goods[2];
static uint8_t *bytes, *buf;  // 200000 bytes each: the values' bytes, and room

static uint64_t number(void *arg, void (*name_of)(char *to, uint64_t nr)) {
  (void)arg, (void)name_of;
  return 1;
}

static struct kref key_of(uint32_t i) { return kref(&"a key of a value"[i], 10); }

static void setup(void) {
  place = fuzz_place_create();
  ctx.sst = &place->ctx;
  bytes = fuzz_alloc(200000);
  buf = fuzz_alloc(200000);
  for (uint32_t i = 0; i < 200000; i++) bytes[i] = (uint8_t)(i % 7 ? 'v' : i * 31 >> 5);
  for (int zstd = 0; zstd < 2; zstd++) {
    struct good *const g = &goods[zstd];
    struct value_log log = {0};
    uint8_t head[VALUE_HEAD];
    value_log_init(&log, &ctx);
    log.new_number = number;
    value_log_compress(&log, zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE, 0);
    for (uint32_t i = 0; i < VALUES; i++) {
      struct value_file *f;
      FUZZ_OK(value_put(&log, key_of(i), bytes, lens[i], g->refs[i], &f));
      value_put_end(&log, f);
    }
    value_log_fini(&log);
    g->file = fuzz_file_get(place->env, "000001.val");
    memcpy(head, g->file.p, sizeof(head));
    FUZZ_OK(value_head_get(head, "good", &g->head));
    fuzz_file_remove(place->env, "000001.val");
  }
}

// Makes the checksums of the header, and of the record that the reference names, right.
static void make_right(struct fuzz_image *file, uint8_t *ref) {
  struct value_ref to;
  if (file->len < VALUE_HEAD) return;
  store64le(file->p + 56, hash64(file->p, 56));
  const uint64_t key = hash64_seed(file->p + 16, 24, load64le(file->p + 56));
  if (!value_ref_get(ref, VALUE_REF, &to) || to.at + VALUE_REC_HEAD > file->len) return;
  uint8_t *const p = file->p + to.at;
  const uint32_t klen = load32le(p + 12);
  if (klen > file->len - to.at - VALUE_REC_HEAD) return;
  store32le(p + 8, (uint32_t)(key >> 32) | 1);
  store64le(p, hash64_seed(p + 8, VALUE_REC_HEAD - 8 + klen, key + to.at));
  store32le(ref + 20, load32le(p));
}

static void read_all(struct value_file *f, const uint8_t *ref, struct kref key, uint32_t off, uint32_t cap,
                     const uint8_t *want) {
  struct value_ref to;
  uint32_t n;
  if (!value_ref_get(ref, VALUE_REF, &to)) return;
  FUZZ_CHECK(value_ref_len(ref) == to.len);
  const enum remixdb_status s = value_read(f, &to, key, off, buf, cap, &n);
  FUZZ_CHECK(s == REMIXDB_OK || fuzz_refused(s));
  FUZZ_CHECK(n <= cap && (off < to.len || n == 0));
  if (s == REMIXDB_OK) {
    fuzz_touch(buf, n);
    if (want) FUZZ_CHECK(memcmp(buf, want + off, n) == 0);
  }
  const enum remixdb_status all = value_check(f, &to, key);
  FUZZ_CHECK(all == REMIXDB_OK || fuzz_refused(all));
  FUZZ_CHECK(all != REMIXDB_OK || s == REMIXDB_OK);
}

FUZZ(value) {
  if (!place) setup();
  struct fuzz_in in = {data, data + size};
  const uint32_t flags = fuzz_u8(&in), which = fuzz_u8(&in) % VALUES, at = fuzz_u8(&in), by = fuzz_u8(&in);
  const struct good *const g = &goods[flags >> 1 & 1];
  uint8_t ref[VALUE_REF];
  memcpy(ref, g->refs[which], VALUE_REF);
  ref[at % VALUE_REF] ^= (uint8_t)by;
  const uint32_t off = fuzz_u16(&in) * 4, cap = fuzz_u16(&in) * 3;
  struct fuzz_image file = fuzz_image_copy(&g->file);
  const bool changed = by || fuzz_left(&in) > 0;
  for (uint32_t n = 0; n < 64 && fuzz_left(&in); n++) file.len = fuzz_change(&in, file.p, file.len);
  if (flags & 1) make_right(&file, ref);
  fuzz_file_put(place->env, "000001.val", file.p, file.len);
  struct value_file *f;
  const enum remixdb_status s = value_file_open(&ctx, 1, &f);
  FUZZ_CHECK(s == REMIXDB_OK || (changed && fuzz_refused(s)));
  if (s == REMIXDB_OK) {
    // With the checksums as they were written, a reference that was made yields the value.
    const uint8_t *const want = (flags & 1) && changed ? NULL : by ? NULL : bytes;
    read_all(f, ref, key_of(which), off, cap, want);
    read_all(f, g->refs[which], key_of((which + 1) % VALUES), off, cap, NULL);
    if (!changed) {
      struct value_ref to;
      FUZZ_CHECK(value_ref_get(g->refs[which], VALUE_REF, &to));
      FUZZ_OK(value_check(f, &to, key_of(which)));
    }
    value_file_unref(f);
  }
  FUZZ_CHECK(simdisk_open_files(place->disk) == 0);
  fuzz_file_remove(place->env, "000001.val");
  free(file.p);
  return 0;
}
