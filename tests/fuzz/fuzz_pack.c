// SPDX-License-Identifier: Apache-2.0
//
// Packs: the directory and the footer of the file, and the section of CURRENT. A good one is changed as the input says.
// Parts that are accepted lie apart from each other and before the directory; what they are read as is right or
// refused; and written again they are the same.
//
// Input: flags (bit 0: checksums are made right after the changes, 1: the section is changed, and not the file, 2: the
// rest of the input is the section), then changes (fuzz.h).
#include "tests/fuzz/fuzz.h"
#include "table/packing.h"
#include "table/scan.h"

#define PACK 90u
#define NAME "000090.pack"
#define TABLES 5u
#define NEXT_FILE 100u

static struct fuzz_place *place;
static struct fuzz_image file, section;
static struct pack_footer foot;

static void build(struct sst_build *b, uint32_t t, struct packing *p) {
  uint64_t size;
  sst_build_start_in(b, 10 + t, p);
  for (uint32_t i = 0; i < 5 + 60 * t; i++) {
    char key[16];
    struct kv_rec rec;
    const uint32_t len = (uint32_t)snprintf(key, sizeof(key), "%06u", i);
    (void)kv_rec_set(&rec, kref(key, len), key, len, 0);
    sst_build_add(b, &rec);
  }
  FUZZ_OK(sst_build_finish(b, &size));
}

static void setup(void) {
  struct packs *packs;
  struct packing *p;
  struct sst_build *b;
  struct pack_part *parts[TABLES + 1];
  static const char noise[5000] = "not a REMIX";
  place = fuzz_place_create();
  FUZZ_OK(packs_create(place->ctx.dir, place->fds, false, false, &packs));
  FUZZ_OK(packing_begin(packs, FUZZ_STORE_ID, PACK, false, &p));
  FUZZ_OK(sst_build_create(&place->ctx, &(struct sst_build_opts){.ckeys = true}, place->queue, &b));
  for (uint32_t t = 0; t < TABLES; t++) build(b, t, p);
  sst_build_destroy(b);
  FUZZ_OK(packing_put(p, PACK_REMIX, 50, noise, sizeof(noise)));
  FUZZ_OK(packing_finish(p));
  packing_end(p, true);
  for (uint32_t t = 0; t < TABLES; t++) parts[t] = packs_find(packs, PACK_TABLE, 10 + t);
  parts[TABLES] = packs_find(packs, PACK_REMIX, 50);
  FUZZ_OK(packs_encode(packs, parts, TABLES + 1, &section.p, &section.len));
  packs_destroy(packs);
  file = fuzz_file_get(place->env, NAME);
  uint8_t last[PACK_FOOTER];
  memcpy(last, file.p + file.len - PACK_FOOTER, PACK_FOOTER);
  FUZZ_OK(pack_footer_get(last, file.len, NAME, &foot));
}

struct seen {
  struct pack_part *parts[64];
  size_t nr;
};

static void see(void *arg, const struct pack_part *part) {
  struct seen *const s = arg;
  const struct pack_entry *const before = s->nr ? &s->parts[s->nr - 1]->at : NULL;
  FUZZ_CHECK(part->at.off % PACK_ALIGN == 0 && part->at.off + part->at.len <= foot.dir_off);
  FUZZ_CHECK(!before || before->off + pack_room(before) <= part->at.off);
  FUZZ_CHECK(s->nr < 64);
  s->parts[s->nr++] = (struct pack_part *)(uintptr_t)part;
}

// Reads a table that the input says is there.
static void read_table(const struct sst_ctx *ctx, uint64_t number) {
  struct sst *t;
  struct sst_scan *scan;
  struct kv_rec rec;
  sst_pos pos;
  enum remixdb_status s = sst_open(ctx, number, &t);
  FUZZ_CHECK(s == REMIXDB_OK || fuzz_refused(s));
  if (s != REMIXDB_OK) return;
  FUZZ_OK(sst_scan_create(t, place->queue, &scan));
  uint32_t nr = 0;
  while ((s = sst_scan_next(scan, &rec, &pos)) == REMIXDB_OK) nr++;
  FUZZ_CHECK(s == REMIXDB_NOTFOUND && nr == t->nr_records && nr == 5 + 60 * (number - 10));
  sst_scan_destroy(scan);
  sst_unref(t);
}

static void check(struct packs *packs) {
  struct seen s = {.nr = 0};
  struct sst_ctx ctx = place->ctx;
  ctx.packs = packs;
  packs_each(packs, see, &s);
  for (size_t i = 0; i < s.nr; i++) {
    const uint64_t id = s.parts[i]->at.id;
    FUZZ_CHECK(packs_find(packs, pack_id_kind(id), pack_id_number(id)) == s.parts[i]);
    if (pack_id_kind(id) == PACK_TABLE) read_table(&ctx, pack_id_number(id));
  }
  uint8_t *again;
  size_t len;
  struct pack_list l;
  FUZZ_OK(packs_encode(packs, s.parts, s.nr, &again, &len));
  if (s.nr == 0) return;
  FUZZ_CHECK(!pack_list_begin(&l, again, len, UINT64_MAX) && !pack_list_next(&l));
  FUZZ_CHECK(l.nr == s.nr && l.number == PACK && !pack_list_next(&l) && l.nr == 0);
  mem_free(again);
}

static enum remixdb_status load_section(struct packs *packs, const uint8_t *p, size_t len) {
  const struct files_ids ids = {.own = FUZZ_STORE_ID};
  struct pack_list l;
  const char *flaw = pack_list_begin(&l, p, len, NEXT_FILE);
  enum remixdb_status s = REMIXDB_OK;
  while (s == REMIXDB_OK && !flaw && !(flaw = pack_list_next(&l)) && l.nr)
    s = packs_load(packs, &ids, l.number, &l.print, l.entries, l.nr);
  return flaw ? err_set(REMIXDB_CORRUPT, "%s", flaw) : s;
}

static void seal(uint8_t *p, size_t len) {
  if (len < PACK_FOOTER || len % PACK_ALIGN) return;
  uint8_t *const f = p + len - PACK_FOOTER;
  const uint64_t dir = load64le(f + 32);
  if (dir < len - PACK_FOOTER) store64le(f + 40, pack_dir_sum(p + dir, len - PACK_FOOTER - dir, load64le(f + 16)));
  store64le(f, hash64(f + 8, PACK_FOOTER - 8));
}

FUZZ(pack) {
  if (!place) setup();
  struct fuzz_in in = {data, data + size};
  const uint32_t flags = fuzz_u8(&in);
  struct packs *packs;
  struct fuzz_image bytes = fuzz_image_copy(flags & 2 ? &section : &file);
  FUZZ_OK(packs_create(place->ctx.dir, place->fds, false, false, &packs));
  if (flags & 2 && flags & 4) {
    free(bytes.p);
    bytes = (struct fuzz_image){fuzz_alloc(fuzz_left(&in)), fuzz_left(&in)};
    if (bytes.len) memcpy(bytes.p, in.p, bytes.len);
  } else if (flags & 2) {
    for (uint32_t n = 0; n < 64 && fuzz_left(&in); n++) bytes.len = fuzz_change(&in, bytes.p, bytes.len);
  } else {  // the parts' own targets change the bytes before the directory
    uint8_t *const dir = bytes.p + foot.dir_off;
    size_t len = bytes.len - foot.dir_off;
    for (uint32_t n = 0; n < 64 && fuzz_left(&in); n++) len = fuzz_change(&in, dir, len);
    bytes.len = foot.dir_off + len;
    if (flags & 1) seal(bytes.p, bytes.len);
    fuzz_file_put(place->env, NAME, bytes.p, bytes.len);
  }
  const enum remixdb_status s = flags & 2 ? load_section(packs, bytes.p, bytes.len)
                                          : packs_load(packs, NULL, PACK, NULL, NULL, 0);
  FUZZ_CHECK(s == REMIXDB_OK || fuzz_refused(s));
  if (s == REMIXDB_OK) check(packs);
  packs_destroy(packs);
  FUZZ_CHECK(simdisk_open_files(place->disk) == 0);
  if (!(flags & 2)) fuzz_file_put(place->env, NAME, file.p, file.len);
  free(bytes.p);
  return 0;
}
