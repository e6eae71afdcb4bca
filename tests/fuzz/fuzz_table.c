// SPDX-License-Identifier: Apache-2.0
//
// Tables: a good one, changed as the input says, then opened and read in every way there is: by position with and
// without a cache, by scans, by keys, read ahead, and into a REMIX. Unchanged it must read as it was written.
//
// Input: which good table, flags (bit 0: the checksums of changed parts are right, 1: through the cache, 2: no good
// table, the rest of the input is the file), how far scans skip, then changes (fuzz.h).
#include "table/ckb.h"
#include "table/readahead.h"
#include "table/format.h"
#include "tests/fuzz/fuzz.h"
#include "remix/build.h"
#include "remix/cursor.h"
#include "table/scan.h"

#define NUMBER 5u
#define REMIX_NUMBER 6u

static const struct fuzz_table tables[] = {
    {NUMBER, FUZZ_KEYS_NUMBERS, 0, 1, 12, 0, 30, {.ckeys = true}},
    {NUMBER, FUZZ_KEYS_NUMBERS, 0, 1, 1, 0, 5, {.ckeys = false}},
    {NUMBER, FUZZ_KEYS_PATHS, 3, 2, 100, 5, 40, {.ckeys = true}},
    {NUMBER, FUZZ_KEYS_SHORT, 0, 1, 24, 3, 9000, {.ckeys = true}},
    {NUMBER, FUZZ_KEYS_FAR, 0, 1, 5, 0, 100, {.ckeys = true}},
    {NUMBER, FUZZ_KEYS_PATHS, 0, 1, 60, 7, 300, {.ckeys = true, .compression = REMIXDB_COMPRESSION_ZSTD}},
    {NUMBER, FUZZ_KEYS_NUMBERS, 0, 1, 12, 2, 9000, {.ckeys = false, .compression = REMIXDB_COMPRESSION_ZSTD}},
    {NUMBER,
     FUZZ_KEYS_NUMBERS,
     0,
     3,
     330,
     11,
     250,
     {.ckeys = true, .compression = REMIXDB_COMPRESSION_ZSTD}},  // has a dictionary
};
#define TABLES (sizeof(tables) / sizeof(tables[0]))

static struct fuzz_place *place;
static struct fuzz_image images[TABLES];
// A good table that is older, for a REMIX over both.
static const struct fuzz_table neighbour = {NUMBER - 1, FUZZ_KEYS_NUMBERS, 0, 2, 40, 3, 20, {.ckeys = true}};

static void setup(void) {
  char name[32];
  place = fuzz_place_create();
  sst_name(name, NUMBER);
  for (size_t i = 0; i < TABLES; i++) {
    fuzz_table_build(place, &tables[i]);
    images[i] = fuzz_file_get(place->env, name);
  }
  fuzz_table_build(place, &neighbour);
}

// ---- the checksums, from the footer outwards: as far as the numbers in it make sense

static void fix_block(uint8_t *p, size_t len, uint32_t block) {
  if (len > 8) store64le(p, hash64_seed(p + 8, len - 8, block_seed(NUMBER, block)));
}

static void fix(uint8_t *file, size_t size) {
  if (size < FORMAT_SST_FOOTER) return;
  uint8_t *const foot = file + size - FORMAT_SST_FOOTER;
  const uint64_t data_size = load64le(foot + 56), ckb_off = load64le(foot + 64), ckb_len = load64le(foot + 72);
  const uint64_t meta_off = load64le(foot + 80), meta_len = load64le(foot + 88);
  const uint32_t nr_pages = load32le(foot + 112), flags = load32le(foot + 116);
  const uint64_t min_len = load32le(foot + 120), max_len = load32le(foot + 124), dict_len = load32le(foot + 128);
  const uint64_t sizes_len = load32le(foot + 132);
  if (meta_off <= size && meta_len <= size - meta_off) {
    const uint8_t *const meta = file + meta_off;
    store64le(foot + 96, hash64_seed(meta, meta_len, format_sst_meta_seed(NUMBER)));
    const bool whole = nr_pages <= meta_len && min_len + max_len + dict_len + sizes_len <= meta_len - nr_pages;
    const uint8_t *sizes = whole ? meta + nr_pages + min_len + max_len + dict_len : NULL,
                  *const end = whole ? sizes + sizes_len : NULL;
    uint64_t at = 0;
    for (uint32_t block = 0; whole && block < nr_pages;) {
      uint32_t pages = 1, len;
      while (block + pages < nr_pages && meta[block + pages] == 0) pages++;
      len = pages * BLOCK_PAGE;
      if (flags & FORMAT_SST_FLAG_ZSTD) {
        sizes = kv_varint_get(sizes, end, &len);
        if (!sizes) break;
      }
      if (at > data_size || len > size - at) break;
      fix_block(file + at, len, block);
      at += len;
      block += pages;
    }
  }
  if (ckb_off <= size && ckb_len <= size - ckb_off) {
    for (uint64_t off = 0; ckb_len - off >= CKB_CHUNK_HEAD;) {
      uint8_t *const p = file + ckb_off + off;
      const uint32_t len = ckb_chunk_length(p, ckb_len - off);
      if (len == 0) break;
      store64le(p, hash64_seed(p + 8, len - 8, ~((uint64_t)NUMBER << 32) ^ off));
      off += len;
    }
  }
  store64le(foot, hash64(foot + 8, FORMAT_SST_FOOTER - 8));
}

// ---- reading

struct reading {
  struct sst *t;
  const struct fuzz_table *good;  // NULL: it was changed
  uint8_t *kbuf, *vbuf;
};

static bool went_well(const struct reading *r, enum remixdb_status s) {
  FUZZ_CHECK(s == REMIXDB_OK || (s == REMIXDB_CORRUPT && !r->good));
  return s == REMIXDB_OK;
}

static void look_at(const struct reading *r, uint64_t nr, const struct kv_rec *rec) {
  fuzz_touch(rec->key, rec->klen);
  fuzz_touch(rec->val, rec->vlen);
  FUZZ_CHECK(fuzz_fits_table(rec) && nr < r->t->nr_records);
  if (!r->good) return;
  struct kv_rec want;
  fuzz_record(r->good, (uint32_t)nr, r->kbuf, r->vbuf, &want);
  FUZZ_CHECK(fuzz_same_record(rec, &want));
}

// Every record by its position, or a few of each block (then it has been read before by whole blocks). The caller
// compares the records with those of another way.
static bool by_position(const struct reading *r, bool pin, uint32_t few) {
  struct sst_hold h = {0};
  bool all = true;
  uint64_t nr = 0;
  for (sst_pos pos = 0; pos != sst_end(r->t); pos = sst_advance(r->t, pos, 1), nr++) {
    struct kv_rec rec;
    epoch_enter(&place->epoch, &place->slot);
    const bool passed = few && sst_pos_idx(pos) % (4 * few) >= few,
               ok = passed || went_well(r, sst_read_some(r->t, pos, few ? few : SST_ALL, pin, &h, &rec));
    if (ok && !passed) look_at(r, nr, &rec);
    epoch_exit(&place->slot);
    all = all && ok;
    if (!ok) {  // the rest of a bad block is no better
      const uint32_t block = sst_pos_block(pos);
      const uint32_t left = r->t->nr_recs[block] - sst_pos_idx(pos) - 1;
      pos = sst_advance(r->t, pos, left);
      nr += left;
    }
  }
  FUZZ_CHECK(nr == r->t->nr_records);
  sst_hold_fini(&h);
  return all;
}

// Scans the table, skipping now and then. The records are those of sst_read.
static void by_scan(const struct reading *r, uint32_t skip) {
  struct sst_scan *s;
  struct sst_hold h = {0};
  struct kv_rec rec, again;
  sst_pos pos, want = 0;
  uint64_t nr = 0;
  FUZZ_OK(sst_scan_create(r->t, place->queue, &s));
  for (;;) {
    const enum remixdb_status got = sst_scan_next(s, &rec, &pos);
    if (got == REMIXDB_NOTFOUND) {
      FUZZ_CHECK(want == sst_end(r->t));
      break;
    }
    if (!went_well(r, got)) break;
    FUZZ_CHECK(pos == want);
    look_at(r, nr, &rec);
    epoch_enter(&place->epoch, &place->slot);
    FUZZ_OK(sst_read(r->t, pos, false, &h, &again));
    FUZZ_CHECK(fuzz_same_record(&rec, &again));
    epoch_exit(&place->slot);
    want = sst_advance(r->t, want, 1);
    nr++;
    if (skip && nr % 3 == 0) {
      sst_scan_skip(s, skip);
      want = sst_advance(r->t, want, skip);
      nr += skip;
    }
  }
  sst_hold_fini(&h);
  sst_scan_destroy(s);
}

static void by_keys(const struct reading *r) {
  struct sst_keys k;
  uint64_t nr = 0;
  sst_pos want = 0;
  uint8_t *last = NULL;
  uint32_t last_len = 0;
  FUZZ_OK(sst_keys_open(r->t, place->queue, &k));
  for (;; nr++) {
    const enum remixdb_status s = sst_keys_next(&k);
    if (s == REMIXDB_NOTFOUND) {
      FUZZ_CHECK(nr == r->t->nr_records);
      break;
    }
    if (!went_well(r, s)) break;
    FUZZ_CHECK(k.pos == want && k.key.len <= KV_KEY_MAX);
    const struct kref before = kref(last, last_len);
    if (nr) FUZZ_CHECK(kv_cmp(before, k.key) < 0 && k.shared == kv_lcp_from(before, k.key, 0));
    if (r->good) {
      struct kv_rec rec;
      fuzz_record(r->good, (uint32_t)nr, r->kbuf, r->vbuf, &rec);
      FUZZ_CHECK(kv_eq(k.key, kref(rec.key, rec.klen)) && k.kind == rec.kind);
    }
    last = realloc(last, k.key.len + 1);
    FUZZ_CHECK(last != NULL);
    memcpy(last, k.key.ptr, k.key.len);
    last_len = k.key.len;
    want = sst_advance(r->t, want, 1);
  }
  free(last);
  sst_keys_close(&k);
}

// A REMIX over the neighbour and this one: it cannot be built, or it can be walked from one end to the other.
static void by_remix(const struct reading *r) {
  struct sst *runs[2] = {NULL, r->t};
  struct remix *old, *x;
  FUZZ_OK(sst_open(r->t->ctx, neighbour.number, &runs[0]));
  struct remix_build b = {
      .ctx = r->t->ctx, .queue = place->queue, .number = REMIX_NUMBER, .fresh = runs, .nr_fresh = 1, .tags = true};
  FUZZ_OK(remix_build(&b));
  FUZZ_OK(remix_open(r->t->ctx, REMIX_NUMBER, runs, 1, &old));
  b.number++;
  b.old = old;
  b.keep = 1;
  b.fresh = &runs[1];
  if (went_well(r, remix_build(&b))) {
    FUZZ_OK(remix_open(r->t->ctx, b.number, runs, 2, &x));
    struct remix_cursor c;
    struct kv_rec rec;
    remix_cursor_init(&c, place->queue);
    FUZZ_OK(remix_cursor_set(&c, x));
    epoch_enter(&place->epoch, &place->slot);
    for (remix_seek_first(&c); remix_valid(&c); remix_next(&c))
      if (!went_well(r, remix_record(&c, &rec))) break;
    for (remix_seek_last(&c); remix_valid(&c); remix_prev(&c)) {
      if (!went_well(r, remix_record(&c, &rec))) break;
      struct sst_hold h = {0};
      struct kv_rec got;
      const enum remixdb_status s = remix_get(x, kref(rec.key, rec.klen), hash64(rec.key, rec.klen), &h, &got);
      if (r->good) FUZZ_CHECK(s == REMIXDB_OK && fuzz_same_record(&rec, &got));
      FUZZ_CHECK(s == REMIXDB_OK || s == REMIXDB_NOTFOUND || s == REMIXDB_CORRUPT);
      sst_hold_fini(&h);
    }
    remix_cursor_fini(&c);
    epoch_exit(&place->slot);
    atomic_store(&x->obsolete, true);
    remix_unref(x);
  }
  atomic_store(&old->obsolete, true);
  remix_unref(old);
  sst_unref(runs[0]);
}

FUZZ(table) {
  if (!place) setup();
  struct fuzz_in in = {data, data + size};
  const uint32_t which = fuzz_u8(&in) % TABLES, flags = fuzz_u8(&in), skip = fuzz_u8(&in);
  struct fuzz_image file;
  bool changed = false;
  if (flags & 4) {
    file = (struct fuzz_image){fuzz_alloc(align_up(fuzz_left(&in), BLOCK_PAGE)), align_up(fuzz_left(&in), BLOCK_PAGE)};
    uint32_t len;
    const uint8_t *const p = fuzz_bytes(&in, fuzz_left(&in), &len);
    if (len) memcpy(file.p + file.len - len, p, len);  // the footer comes last
    changed = true;
  } else {
    file = fuzz_image_copy(&images[which]);
    for (uint32_t n = 0; n < 64 && fuzz_left(&in); n++) {
      file.len = fuzz_change(&in, file.p, file.len);
      changed = true;
    }
  }
  if (flags & 1) fix(file.p, file.len);
  if (changed && !(flags & 4))
    changed = file.len != images[which].len || memcmp(file.p, images[which].p, file.len) != 0;

  char name[32];
  sst_name(name, NUMBER);
  fuzz_file_put(place->env, name, file.p, file.len);
  free(file.p);
  struct reading r = {.good = changed ? NULL : &tables[which],
                      .kbuf = fuzz_alloc(FUZZ_KEY_MAX),
                      .vbuf = fuzz_alloc(FUZZ_VALUE_MAX)};
  const enum remixdb_status s = sst_open(flags & 2 ? &place->cached : &place->ctx, NUMBER, &r.t);
  FUZZ_CHECK(s == REMIXDB_OK || (changed && fuzz_refused(s)));
  if (s == REMIXDB_OK) {
    if (flags & 2) sst_readahead(r.t, place->queue, skip % r.t->nr_pages, 1 + skip % BLKIO_BATCH_MAX);
    const bool all = by_position(&r, flags & 8, 0);
    for (uint32_t few = 1; few < 6; few += 4) FUZZ_CHECK(by_position(&r, flags & 8, few) == all);
    by_scan(&r, skip);
    by_keys(&r);
    if (all) by_remix(&r);
    sst_unref(r.t);
  }
  FUZZ_CHECK(simdisk_open_files(place->disk) == 0);
  fuzz_file_remove(place->env, name);
  free(r.kbuf);
  free(r.vbuf);
  return 0;
}
