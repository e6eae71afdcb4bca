// SPDX-License-Identifier: Apache-2.0
//
// Files that a collection has written: the index of a collected file, and passes over the records of a file. A good
// file is changed as the input says. Without a change the index leads to each value. With one it is refused, or each
// reference that it gives can be read or is refused.
//
// Input: flags (bit 0: the checksums of the header and of the index are made right after the changes), a change of the
// reference to the index (which byte, by what; 0: none), an offset in the collected file to look for, then changes of
// the file (fuzz.h).
#include "tests/fuzz/fuzz.h"
#include "value/move.h"
#include "value/read.h"
#include "value/write.h"

#define VALUES 20u

static struct fuzz_place *place;
static struct value_ctx ctx;
static struct fuzz_image good;
static struct value_ref index_ref, olds[VALUES];
static uint8_t bytes[3000];

static uint64_t number(void *arg, void (*name_of)(char *to, uint64_t nr)) {
  (void)arg, (void)name_of;
  return 1;
}

static struct kref key_of(uint32_t i) { return kref(&"the keys of values that are moved"[i], 9); }
static uint32_t len_of(uint32_t i) { return 1 + i * 131; }

static void make_old(void) {
  struct value_log log = {0};
  value_log_init(&log, &ctx);
  log.new_number = number;
  for (uint32_t i = 0; i < VALUES; i++) {
    struct value_file *f;
    uint8_t ref[VALUE_REF];
    FUZZ_OK(value_put(&log, key_of(i), bytes, len_of(i), ref, &f));
    FUZZ_CHECK(value_ref_get(ref, VALUE_REF, &olds[i]));
    value_put_end(&log, f);
  }
  value_log_fini(&log);
}

static void setup(void) {
  place = fuzz_place_create();
  ctx.sst = &place->ctx;
  for (uint32_t i = 0; i < sizeof(bytes); i++) bytes[i] = (uint8_t)(i * 7 ^ i >> 4);
  make_old();
  uint8_t entries[VALUES * VALUE_MOVED];
  struct value_mover m = {.ctx = &ctx};
  struct value_pass p = {0};
  struct value_file *old;
  uint32_t nr = 0;
  FUZZ_OK(value_file_open(&ctx, 1, &old));
  FUZZ_OK(value_mover_begin(&m, 2));
  FUZZ_OK(value_pass_init(&p, old));
  for (bool any = true; any;) {
    struct value_rec rec;
    struct value_ref is;
    uint64_t at;
    bool of_source;
    FUZZ_OK(value_pass_next(&p, UINT64_MAX, &any, &at, &rec));
    if (!any) break;
    FUZZ_OK(value_mover_copy(&m, old, at, &rec, p.key, &is, &of_source));
    const struct value_moved moved = {at, is.at, (uint32_t)rec.sum, is.check};
    value_moved_put(entries + (size_t)nr++ * VALUE_MOVED, &moved);
    value_pass_over(&p, at, &rec);
  }
  FUZZ_CHECK(nr == VALUES);
  FUZZ_OK(value_mover_index(&m, 1, entries, sizeof(entries), &index_ref));
  FUZZ_OK(value_mover_end(&m));
  value_pass_fini(&p);
  value_file_unref(old);
  value_mover_fini(&m, false);
  good = fuzz_file_get(place->env, "000002.val");
  fuzz_file_remove(place->env, "000001.val");
  fuzz_file_remove(place->env, "000002.val");
}

// Makes the checksums of the header and of the record of the index right.
static void make_right(struct fuzz_image *file, struct value_ref *r) {
  if (file->len < VALUE_HEAD) return;
  store64le(file->p + 56, hash64(file->p, 56));
  const uint64_t key = hash64_seed(file->p + 16, 24, load64le(file->p + 56));
  if (r->at % 8 || r->at < VALUE_HEAD || r->at > file->len || file->len - r->at < VALUE_REC_HEAD + VALUE_INDEX_KEY)
    return;
  uint8_t *const p = file->p + r->at;
  const uint32_t vlen = load32le(p + 16);
  const uint64_t data = value_data_at(VALUE_INDEX_KEY, vlen);
  if (load32le(p + 12) != VALUE_INDEX_KEY) return;
  if (value_chunks(vlen) == 1 && data + vlen <= file->len - r->at)
    store64le(p + value_entries_at(VALUE_INDEX_KEY) + 8, hash64_seed(p + data, vlen, load64le(p + 32) + 1));
  store32le(p + 8, (uint32_t)(key >> 32) | 1);
  store64le(p, hash64_seed(p + 8, VALUE_REC_HEAD - 8 + VALUE_INDEX_KEY, key + r->at));
  r->check = load32le(p);
}

static void pass(struct value_file *f) {
  struct value_pass p = {0};
  uint64_t before = 0;
  FUZZ_OK(value_pass_init(&p, f));
  for (bool any = true; any;) {
    struct value_rec rec;
    uint64_t at;
    FUZZ_OK(value_pass_next(&p, UINT64_MAX, &any, &at, &rec));
    if (!any) break;
    FUZZ_CHECK(at > before && at % VALUE_ALIGN == 0 && rec.vlen > 0);
    fuzz_touch(p.key.ptr, p.key.len);
    before = at;
  }
  value_pass_fini(&p);
}

// Follows all references to the collected file, and one that nobody made.
static void follow(const struct value_index *x, struct value_file *f, uint64_t from, bool changed) {
  static uint8_t buf[sizeof(bytes)];
  FUZZ_CHECK(x->nr > 0 && value_moved_good(x->entries, (uint64_t)x->nr * VALUE_MOVED));
  for (uint32_t i = 0; i < VALUES; i++) {
    struct value_ref to = olds[i];
    uint32_t n;
    const bool there = value_index_find(x, &to);
    FUZZ_CHECK(there || changed);
    const enum remixdb_status s = there ? value_read(f, &to, key_of(i), 0, buf, sizeof(buf), &n) : REMIXDB_CORRUPT;
    FUZZ_CHECK(s == REMIXDB_OK || (changed && fuzz_refused(s)));
    if (s == REMIXDB_OK && !changed) FUZZ_CHECK(n == len_of(i) && memcmp(buf, bytes, n) == 0);
  }
  struct value_ref to = {1, from, 5, 0};
  if (value_index_find(x, &to)) FUZZ_CHECK(to.file == 2 && to.at >= VALUE_HEAD);
}

FUZZ(index) {
  if (!place) setup();
  struct fuzz_in in = {data, data + size};
  const uint32_t flags = fuzz_u8(&in), at = fuzz_u8(&in), by = fuzz_u8(&in);
  const uint64_t from = fuzz_u16(&in);
  uint8_t ref[VALUE_REF];
  struct value_ref to;
  value_ref_put(ref, &index_ref);
  ref[at % VALUE_REF] ^= (uint8_t)by;
  struct fuzz_image file = fuzz_image_copy(&good);
  const bool changed = by || fuzz_left(&in) > 0;
  for (uint32_t n = 0; n < 64 && fuzz_left(&in); n++) file.len = fuzz_change(&in, file.p, file.len);
  struct value_file *f;
  struct value_index *x;
  if (value_ref_get(ref, VALUE_REF, &to)) {
    if (flags & 1) make_right(&file, &to);
    fuzz_file_put(place->env, "000002.val", file.p, file.len);
    const enum remixdb_status s = value_file_open(&ctx, 2, &f);
    FUZZ_CHECK(s == REMIXDB_OK || (changed && fuzz_refused(s)));
    if (s == REMIXDB_OK) {
      pass(f);
      const enum remixdb_status opened = value_index_open(f, 1, 0, &to, &x);
      FUZZ_CHECK(opened == REMIXDB_OK || (changed && fuzz_refused(opened)));
      if (opened == REMIXDB_OK) {
        follow(x, f, from, changed);
        value_index_unref(x);
      }
      value_file_unref(f);
    }
    fuzz_file_remove(place->env, "000002.val");
  }
  FUZZ_CHECK(simdisk_open_files(place->disk) == 0);
  free(file.p);
  return 0;
}
