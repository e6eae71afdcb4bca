// SPDX-License-Identifier: Apache-2.0
//
// The version file. Its bytes are the input's, or a good one's changed as the input says; the tables and REMIX files
// that a good one names are there. One that is accepted finds a partition for every key as a walk over the anchors
// does, and written again it says the same.
//
// Input: flags (bit 0: the checksum is right, 1: magic, format and free numbers are right, 2: the rest of the input is
// the file), which good file (bit 7: one with young views), a key to look for, then changes (fuzz.h).
#include "tests/fuzz/fuzz.h"
#include "remix/build.h"
#include "view/version.h"

#define OLD_GOODS 3u
#define YOUNG_GOODS 2u
#define TABLES 6u
#define NEXT_FILE 40u

// Table t holds keys of its own range: partitions may be made of any that follow each other.
static struct fuzz_table table(uint32_t t) {
  return (struct fuzz_table){10 + t, FUZZ_KEYS_NUMBERS, 1 + t * 30, 1, 20, 4, 10, {.ckeys = true}};
}

static struct fuzz_place *place;
static struct fuzz_image goods[OLD_GOODS + YOUNG_GOODS];

// A REMIX over the tables first .. first + nr - 1.
static struct remix *make_remix(uint64_t number, uint32_t first, uint32_t nr) {
  struct sst *runs[TABLES];
  struct remix *x;
  for (uint32_t i = 0; i < nr; i++) FUZZ_OK(sst_open(&place->ctx, 10 + first + i, &runs[i]));
  struct remix_build b = {
      .ctx = &place->ctx, .queue = place->queue, .number = number, .fresh = runs, .nr_fresh = nr, .tags = true};
  FUZZ_OK(remix_build(&b));
  FUZZ_OK(remix_open(&place->ctx, b.number, runs, nr, &x));
  for (uint32_t i = 0; i < nr; i++) sst_unref(runs[i]);
  return x;
}

static struct part *make_part(const char *anchor, struct remix *x, struct remix *young) {
  struct part *p;
  if (x) remix_ref(x);
  if (young) remix_ref(young);
  FUZZ_OK(part_create(kref(anchor, (uint32_t)strlen(anchor)), x, young, &p));
  return p;
}

static void save_good(struct part **parts, uint32_t nr, struct fuzz_image *out) {
  struct version *v;
  FUZZ_OK(version_create(parts, nr, &v));
  v->store_id = FUZZ_STORE_ID;
  v->number = 7;
  v->next_file = NEXT_FILE;
  v->log_gen = 3;
  v->log_seq = 99;
  FUZZ_OK(version_save(&place->ctx, v));
  version_unref(v);
  *out = fuzz_file_get(place->env, FILES_CURRENT);
}

static void setup(void) {
  place = fuzz_place_create();
  for (uint32_t t = 0; t < TABLES; t++) {
    const struct fuzz_table make = table(t);
    fuzz_table_build(place, &make);
  }
  struct remix *const low = make_remix(20, 0, 1), *const mid = make_remix(21, 1, 3), *const high = make_remix(24, 4, 2);
  struct part *none[] = {make_part("", NULL, NULL)};
  struct part *one[] = {make_part("", mid, NULL)};
  // keys of tables 0, 1 to 3, 4 and 5: 00000 .. 00009, 00015 .. 00054, 00060 .. 00084
  struct part *five[] = {make_part("", low, NULL), make_part("00012", mid, NULL), make_part("0005700001", NULL, NULL),
                         make_part("00058", high, NULL), make_part("x", NULL, NULL)};
  save_good(none, 1, &goods[0]);
  save_good(one, 1, &goods[1]);
  save_good(five, 5, &goods[2]);
  // the same with the newest tables in young views
  struct remix *const two = make_remix(31, 1, 2), *const third = make_remix(33, 3, 1),
                      *const fourth = make_remix(34, 4, 1), *const fifth = make_remix(35, 5, 1);
  remix_make_young(third);
  remix_make_young(fifth);
  struct part *young[] = {make_part("", two, third)};
  struct part *some[] = {make_part("", low, NULL), make_part("00012", two, third), make_part("0005700001", NULL, NULL),
                         make_part("00058", fourth, fifth)};
  save_good(young, 1, &goods[3]);
  save_good(some, 4, &goods[4]);
  remix_unref(low);
  remix_unref(mid);
  remix_unref(high);
  remix_unref(two);
  remix_unref(third);
  remix_unref(fourth);
  remix_unref(fifth);
}

static uint32_t find_slowly(const struct version *v, struct kref key) {
  uint32_t at = 0;
  for (uint32_t i = 1; i < v->nr_parts; i++)
    if (kv_cmp(part_anchor(v->parts[i]), key) <= 0) at = i;
  return at;
}

static void find(const struct version *v, struct kref key) {
  FUZZ_CHECK(version_find(v, key) == find_slowly(v, key));
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct kref a = part_anchor(v->parts[i]);
    FUZZ_CHECK(version_find(v, a) == i);
    uint8_t *const near = fuzz_alloc(a.len + 1u);
    memcpy(near, a.ptr, a.len);
    FUZZ_CHECK(version_find(v, kref(near, a.len + 1)) == find_slowly(v, kref(near, a.len + 1)));
    if (a.len) {
      FUZZ_CHECK(version_find(v, kref(near, a.len - 1)) == find_slowly(v, kref(near, a.len - 1)));
      near[a.len - 1]--;
      FUZZ_CHECK(version_find(v, kref(near, a.len)) == find_slowly(v, kref(near, a.len)));
    }
    free(near);
  }
}

static void check(const struct version *v) {
  FUZZ_CHECK(v->nr_parts > 0 && v->parts[0]->alen == 0);
  uint32_t young = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct part *const p = v->parts[i];
    if (i) FUZZ_CHECK(kv_cmp(part_anchor(v->parts[i - 1]), part_anchor(p)) < 0);
    FUZZ_CHECK(version_young_from(v, i) == young);
    if (p->young) {  // V4
      FUZZ_CHECK(p->remix && p->young != p->remix && remix_is_young(p->young) && p->young->nr_runs > 0);
      FUZZ_CHECK(young < v->nr_young && v->young[young] == i);
      young++;
    }
    FUZZ_CHECK(!p->remix || (!remix_is_young(p->remix) && p->remix->nr_runs > 0));
    for (uint32_t r = 0; r < part_runs(p); r++) {  // V2
      const struct sst *const t = part_run(p, r);
      FUZZ_CHECK(kv_cmp(part_anchor(p), t->min) <= 0 && t->number < v->next_file);
      if (i + 1 < v->nr_parts) FUZZ_CHECK(kv_cmp(t->max, part_anchor(v->parts[i + 1])) < 0);
    }
  }
  FUZZ_CHECK(v->nr_young == young);
}

FUZZ(version) {
  if (!place) setup();
  struct fuzz_in in = {data, data + size};
  const uint32_t flags = fuzz_u8(&in), of = fuzz_u8(&in),
                 which = of & 0x80 ? OLD_GOODS + of % YOUNG_GOODS : of % OLD_GOODS;
  const struct kref key = fuzz_key(&in, fuzz_u8(&in) & 15);
  struct fuzz_image file;
  if (flags & 4) {
    file = (struct fuzz_image){fuzz_alloc(fuzz_left(&in) + 8), fuzz_left(&in) + 8};  // room for the checksum
    if (fuzz_left(&in)) memcpy(file.p, in.p, fuzz_left(&in));
  } else {
    file = fuzz_image_copy(&goods[which]);
    for (uint32_t n = 0; n < 64 && fuzz_left(&in); n++) file.len = fuzz_change(&in, file.p, file.len);
  }
  if (flags & 2 && file.len >= 64) {
    memcpy(file.p, goods[0].p, 8);
    store32le(file.p + 8, file.p[8] == 1 || file.p[8] == 2 ? file.p[8] : 3);
    if (flags & 4) memcpy(file.p + 16, goods[0].p + 16, 40);
  }
  if (flags & 1 && file.len >= 8) store64le(file.p + file.len - 8, hash64(file.p, file.len - 8));
  fuzz_file_put(place->env, FILES_CURRENT, file.p, file.len);

  const bool good = !(flags & 4) && file.len == goods[which].len && memcmp(file.p, goods[which].p, file.len) == 0;
  uint64_t store_id = 0;
  struct version *v;
  const enum remixdb_status peeked = version_peek(place->ctx.dir, &store_id),
                            s = version_load(&place->ctx, NULL, NULL, &v);
  FUZZ_CHECK(s == REMIXDB_OK || (!good && fuzz_refused(s)));
  FUZZ_CHECK(peeked == REMIXDB_OK || peeked == s);
  if (s == REMIXDB_OK) {
    FUZZ_CHECK(peeked == REMIXDB_OK && store_id == v->store_id);
    check(v);
    find(v, key);
    FUZZ_OK(version_save(&place->ctx, v));
    const uint64_t number = v->number;
    version_unref(v);
    const struct fuzz_image again = fuzz_file_get(place->env, FILES_CURRENT);
    // A version has one form on disk, and no other form is accepted. Exceptions are the older formats, and sections
    // that are not known or that list ids.
    if (load32le(file.p + 8) == 3 && load32le(file.p + 12) == 1)
      FUZZ_CHECK(again.len == file.len && memcmp(again.p, file.p, file.len) == 0);
    FUZZ_OK(version_load(&place->ctx, NULL, NULL, &v));
    FUZZ_CHECK(v->number == number && v->printed);
    version_unref(v);
    free(again.p);
  }
  FUZZ_CHECK(simdisk_open_files(place->disk) == 0);
  fuzz_file_remove(place->env, FILES_CURRENT);
  free(file.p);
  fuzz_key_free(key);
  return 0;
}
