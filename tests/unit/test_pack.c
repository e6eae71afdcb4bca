// SPDX-License-Identifier: Apache-2.0
//
// Packs: parts are the files that they would be alone; dead ones give their room back, and nothing else changes; what
// CURRENT and the directory say of them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remix/build.h"
#include "table/build.h"
#include "table/scan.h"
#include "tests/lib/check.h"
#include "tests/lib/simdisk.h"

#define STORE_ID 0x5566778899ull
#define PACK 90u
#define TABLES 9u
#define PACK_PATH "/000090.pack"

static uint64_t rng;
static uint64_t below(uint64_t n) { return rng_next(&rng) % n; }

struct world {
  struct simdisk *disk;
  struct env *env;
  const struct env_dir *dir;
  struct fdpool *fds;
  struct blkio io;
  struct blkio_queue *queue;
  struct packs *packs;
  struct sst_ctx ctx;    // with the packs
  struct sst_ctx alone;  // without
};

static void services(struct world *w, bool direct) {
  w->env = simdisk_env(w->disk);
  w->dir = simdisk_dir(w->env, "/");
  OK(fdpool_create(w->env, 16, &w->fds));
  blkio_init(&w->io, w->env, BLKIO_SYNC);
  w->io.direct = direct;
  OK(blkio_queue_create(&w->io, &w->queue));
  OK(packs_create(w->dir, w->fds, direct, true, &w->packs));
  w->alone = w->ctx = (struct sst_ctx){
      .env = w->env, .dir = w->dir, .io = &w->io, .fds = w->fds, .store_id = STORE_ID, .direct_io = direct};
  w->ctx.packs = w->packs;
}

static struct world *world_new(bool direct) {
  struct world *const w = calloc(1, sizeof(*w));
  assert_non_null(w);
  w->disk = simdisk_create();
  services(w, direct);
  return w;
}

static void services_end(struct world *w) {
  packs_destroy(w->packs);
  blkio_queue_destroy(w->queue);
  blkio_fini(&w->io);
  fdpool_destroy(w->fds);
  CHECK(simdisk_open_files(w->disk) == 0);
}

static void world_end(struct world *w) {
  services_end(w);
  simdisk_destroy(w->disk);
  free(w);
}

// Tables of 3 to 4,000 records: some are longer than the writer's buffer.
static uint32_t records_of(uint32_t t) { return t % 3 == 2 ? 2500 + 100 * t : 3 + 40 * t; }

static struct kref key_of(uint32_t t, uint32_t i) {
  static char buf[32];
  return kref(buf, (uint32_t)snprintf(buf, sizeof(buf), "t%02u/%06u", t, i));
}

static struct sst_build_opts opts_of(uint32_t t) {
  return (struct sst_build_opts){.ckeys = t % 2 == 0,
                                 .compression = t % 4 == 3 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE,
                                 .max_pages = 400};
}

// pack NULL: in a file of its own.
static enum remixdb_status build(struct world *w, uint32_t t, struct packing *pack, uint64_t *size_out) {
  static uint8_t val[400];
  const struct sst_build_opts opts = opts_of(t);
  struct sst_build *b;
  enum remixdb_status s = sst_build_create(pack ? &w->ctx : &w->alone, &opts, w->queue, &b);
  if (s != REMIXDB_OK) return s;
  if (pack) sst_build_start_in(b, 10 + t, pack);
  else sst_build_start(b, 10 + t);
  for (uint32_t i = 0; i < records_of(t); i++) {
    const struct kref k = key_of(t, i);
    for (uint32_t n = 0; n < sizeof(val); n++) val[n] = (uint8_t)(i * 7 + n * n + t);
    struct kv_rec rec;
    (void)kv_rec_set(&rec, k, val, 100 + (i * 31 + t) % 300, 0);
    sst_build_add(b, &rec);
  }
  s = sst_build_finish(b, size_out);
  sst_build_destroy(b);
  return s;
}

static enum remixdb_status build_view(struct world *w, uint32_t t, struct packing *pack) {
  struct sst *run;
  enum remixdb_status s = sst_open(pack ? &w->ctx : &w->alone, 10 + t, &run);
  if (s != REMIXDB_OK) return s;
  struct remix_build b = {.ctx = pack ? &w->ctx : &w->alone,
                          .queue = w->queue,
                          .number = 50 + t,
                          .pack = pack,
                          .fresh = &run,
                          .nr_fresh = 1,
                          .tags = true};
  s = remix_build(&b);
  sst_unref(run);
  return s;
}

static enum remixdb_status fill(struct world *w, struct packing *p) {
  uint64_t size;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t t = 0; t < TABLES && s == REMIXDB_OK; t++) s = build(w, t, p, &size);
  for (uint32_t t = 0; t < TABLES && s == REMIXDB_OK; t++) s = build_view(w, t, p);
  return s;
}

// Writes a pack of all tables and views. Fails as its parts do; then nothing is left.
static enum remixdb_status make(struct world *w) {
  struct packing *p;
  enum remixdb_status s = packing_begin(w->packs, STORE_ID, PACK, w->io.direct, &p);
  if (s != REMIXDB_OK) return s;
  assert_non_null(p);
  s = fill(w, p);
  if (s == REMIXDB_OK) s = packing_finish(p);
  err_cleanup_begin();
  packing_end(p, true);
  err_cleanup_end();
  return s;
}

static struct pack_part *part_of(const struct world *w, uint32_t t, enum pack_kind kind) {
  return packs_find(w->packs, kind, (kind == PACK_TABLE ? 10 : 50) + t);
}

// The part has the bytes that the file has.
static void is_the_file(struct world *w, const struct pack_part *part) {
  char name[32], path[40];
  const uint64_t number = pack_id_number(part->at.id);
  if (pack_id_kind(part->at.id) == PACK_TABLE) files_table_name(name, number);
  else files_remix_name(name, number);
  (void)snprintf(path, sizeof(path), "/%s", name);
  assert_int_equal(simdisk_size(w->disk, path), (int64_t)part->at.len);
  uint8_t *const a = malloc(part->at.len), *const b = malloc(part->at.len);
  assert_true(a && b);
  CHECK(simdisk_peek(w->disk, PACK_PATH, part->at.off, a, part->at.len));
  CHECK(simdisk_peek(w->disk, path, 0, b, part->at.len));
  assert_memory_equal(a, b, part->at.len);
  free(a);
  free(b);
}

// Writes the same tables and views as files of their own.
static void make_alone(struct world *w) {
  uint64_t size;
  for (uint32_t t = 0; t < TABLES; t++) {
    OK(build(w, t, NULL, &size));
    OK(build_view(w, t, NULL));
  }
}

// Reads all records of a table in every way.
static void read_all(struct world *w, uint32_t t) {
  struct sst *run;
  struct sst_scan *scan;
  struct sst_keys keys;
  struct remix *x;
  struct kv_rec rec;
  sst_pos pos;
  OK(sst_open(&w->ctx, 10 + t, &run));
  OK(sst_scan_create(run, w->queue, &scan));
  OK(sst_keys_open(run, w->queue, &keys));
  for (uint32_t i = 0; i < records_of(t); i++) {
    OK(sst_scan_next(scan, &rec, &pos));
    CHECK(kv_eq(kref(rec.key, rec.klen), key_of(t, i)));
    assert_int_equal(rec.vlen, 100 + (i * 31 + t) % 300);
    for (uint32_t n = 0; n < rec.vlen; n++) CHECK(rec.val[n] == (uint8_t)(i * 7 + n * n + t));
    OK(sst_keys_next(&keys));
    CHECK(kv_eq(keys.key, key_of(t, i)));
  }
  CHECK(sst_scan_next(scan, &rec, &pos) == REMIXDB_NOTFOUND);
  sst_keys_close(&keys);
  sst_scan_destroy(scan);
  OK(remix_open(&w->ctx, 50 + t, &run, 1, &x));
  struct sst_hold h = {0};
  for (uint32_t i = 0; i < records_of(t); i += 1 + (uint32_t)below(20)) {
    const struct kref k = key_of(t, i);
    OK(remix_get(x, k, hash64(k.ptr, k.len), &h, &rec));
    assert_int_equal(rec.vlen, 100 + (i * 31 + t) % 300);
  }
  sst_hold_fini(&h);
  struct sst_peek seen;
  struct remix_peek view;
  OK(sst_look(&w->ctx, 10 + t, &seen));
  CHECK(seen.print == run->print && seen.origin == STORE_ID && seen.size == run->file_size);
  OK(remix_look(&w->ctx, 50 + t, &view));
  CHECK(view.file.print == x->print && view.entries == records_of(t) && view.file.size == x->file_size);
  remix_unref(x);
  sst_unref(run);
}

static void test_parts(void **state) {
  (void)state;
  for (int direct = 0; direct < 2; direct++) {
    struct world *const w = world_new(direct);
    OK(make(w));
    make_alone(w);
    for (uint32_t t = 0; t < TABLES; t++) {
      is_the_file(w, part_of(w, t, PACK_TABLE));
      is_the_file(w, part_of(w, t, PACK_REMIX));
      read_all(w, t);
    }
    CHECK(!packs_find(w->packs, PACK_TABLE, 50) && !packs_find(w->packs, PACK_REMIX, 10));
    struct packs_stats st;
    packs_measure(w->packs, &st);
    CHECK(st.nr == 1 && st.parts == 2 * TABLES && st.dead_bytes == 0);
    world_end(w);
  }
}

// The rest of a part's last page is zeros.
static void ends_in_zeros(struct world *w, const struct pack_part *part) {
  uint8_t rest[PACK_ALIGN];
  const uint64_t end = part->at.off + part->at.len;
  const size_t n = (size_t)(pack_align(end) - end);
  assert_true(simdisk_peek(w->disk, PACK_PATH, end, rest, n));
  for (size_t i = 0; i < n; i++) assert_int_equal(rest[i], 0);
}

// A pack that is written past the page cache has whole pages only, and the same bytes. So has one on a file system that
// takes the flag and refuses the transfers.
static void test_direct(void **state) {
  (void)state;
  for (int refused = 0; refused < 2; refused++) {
    struct world *const w = world_new(true);
    simdisk_no_direct(w->disk, refused);
    simdisk_short_io(w->disk, refused ? 0 : 1 + below(1000));
    OK(make(w));
    simdisk_short_io(w->disk, 0);
    const int64_t size = simdisk_size(w->disk, PACK_PATH);
    CHECK(size > 0 && size % PACK_ALIGN == 0);
    if (refused) CHECK(simdisk_refused(w->disk) > 0 && simdisk_direct(w->disk) == 0);
    else CHECK(simdisk_refused(w->disk) == 0 && simdisk_direct(w->disk) == (uint64_t)size);
    make_alone(w);
    for (uint32_t t = 0; t < TABLES; t++) {
      is_the_file(w, part_of(w, t, PACK_TABLE));
      is_the_file(w, part_of(w, t, PACK_REMIX));
      ends_in_zeros(w, part_of(w, t, PACK_TABLE));
      ends_in_zeros(w, part_of(w, t, PACK_REMIX));
      read_all(w, t);
    }
    CHECK(refused || simdisk_refused(w->disk) == 0);
    world_end(w);
  }
}

// ---- parts that die

static void test_drop(void **state) {
  (void)state;
  struct world *const w = world_new(false);
  OK(make(w));
  make_alone(w);
  struct pack_part *parts[2 * TABLES];
  uint32_t nr = 0;
  for (uint32_t t = 0; t < TABLES; t++) {
    parts[nr++] = part_of(w, t, PACK_TABLE);
    parts[nr++] = part_of(w, t, PACK_REMIX);
  }
  int64_t room = simdisk_room(w->disk, PACK_PATH);
  const int64_t size = simdisk_size(w->disk, PACK_PATH);
  while (nr > 1) {
    uint64_t given = 0;
    for (uint64_t n = 1 + below(3); n > 0 && nr > 1; n--) {
      const uint32_t i = (uint32_t)below(nr);
      given += pack_room(&parts[i]->at);
      pack_part_drop(parts[i]);
      parts[i] = parts[--nr];
    }
    assert_int_equal(simdisk_room(w->disk, PACK_PATH), room);  // K4: by the reclaim
    packs_reclaim(w->packs);
    room -= (int64_t)given;
    assert_int_equal(simdisk_room(w->disk, PACK_PATH), room);
    assert_int_equal(simdisk_size(w->disk, PACK_PATH), size);
    for (uint32_t i = 0; i < nr; i++) is_the_file(w, parts[i]);  // K2
  }
  pack_part_drop(parts[0]);
  assert_int_equal(simdisk_size(w->disk, PACK_PATH), -1);
  struct packs_stats st;
  packs_measure(w->packs, &st);
  CHECK(st.nr == 0 && st.parts == 0);
  world_end(w);
}

// An obsolete table drops its part with its last reference.
static void test_owners(void **state) {
  (void)state;
  struct world *const w = world_new(false);
  struct sst *run, *again;
  struct remix *x;
  OK(make(w));
  OK(sst_open(&w->ctx, 12, &run));
  OK(remix_open(&w->ctx, 52, &run, 1, &x));
  OK(sst_open(&w->ctx, 12, &again));
  sst_unref(again);  // not obsolete
  CHECK(part_of(w, 2, PACK_TABLE) == run->part && part_of(w, 2, PACK_REMIX) == x->part);
  sst_retire(run);
  remix_retire(x);
  remix_unref(x);
  CHECK(!part_of(w, 2, PACK_REMIX) && part_of(w, 2, PACK_TABLE));
  sst_unref(run);
  CHECK(!part_of(w, 2, PACK_TABLE));
  world_end(w);
}

static void test_second_name(void **state) {
  (void)state;
  struct world *const w = world_new(false);
  OK(make(w));
  const int64_t room = simdisk_room(w->disk, PACK_PATH);
  OK(env_link(w->dir, "000090.pack", w->dir, "other"));
  const int64_t one = (int64_t)pack_room(&part_of(w, 2, PACK_TABLE)->at);
  pack_part_drop(part_of(w, 2, PACK_TABLE));
  packs_reclaim(w->packs);
  assert_int_equal(simdisk_room(w->disk, PACK_PATH), room);
  struct packs_stats st;
  packs_measure(w->packs, &st);
  assert_int_equal(st.dead_bytes, one);
  OK(env_unlink(w->dir, "other"));
  packs_reclaim(w->packs);
  assert_int_equal(simdisk_room(w->disk, PACK_PATH), room - one);
  packs_measure(w->packs, &st);
  assert_int_equal(st.dead_bytes, 0);
  // a failing call leaves the rest for the next reclaim
  const int64_t more = (int64_t)pack_room(&part_of(w, 5, PACK_TABLE)->at);
  pack_part_drop(part_of(w, 5, PACK_TABLE));
  simdisk_fault(w->disk, SIMDISK_PUNCH, 0, 1, EIO);
  packs_reclaim(w->packs);
  assert_int_equal(simdisk_room(w->disk, PACK_PATH), room - one);
  packs_reclaim(w->packs);
  assert_int_equal(simdisk_room(w->disk, PACK_PATH), room - one - more);
  world_end(w);
}

static void test_no_holes(void **state) {
  (void)state;
  struct world *const w = world_new(false);
  struct packing *p;
  CHECK(packs_can(w->packs));
  simdisk_no_punch(w->disk, true);
  OK(packing_begin(w->packs, STORE_ID, PACK, w->io.direct, &p));
  CHECK(!p && !packs_can(w->packs));
  assert_int_equal(simdisk_size(w->disk, PACK_PATH), -1);
  world_end(w);
}

// Places that were given back serve other parts, and none overlap.
static void test_places(void **state) {
  (void)state;
  struct world *const w = world_new(false);
  struct packing *p;
  OK(packing_begin(w->packs, STORE_ID, PACK, w->io.direct, &p));
  struct {
    uint64_t off, len;
  } parts[200];
  uint8_t *const buf = calloc(1, 1 << 20);
  assert_non_null(buf);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < 200; i++) {
    const uint64_t len = 1 + below(9 * PACK_ALIGN), taken = below(3) ? len : len + below(20 * PACK_ALIGN);
    parts[i].off = packing_take(p, taken);
    parts[i].len = len;
    sum += pack_align(len);
    OK(env_write(w->env, packing_fd(p), "pack", buf, len, parts[i].off));
    OK(packing_add(p, PACK_REMIX, 1 + i, parts[i].off, len, taken));
    for (uint32_t k = 0; k < i; k++)
      CHECK(parts[k].off >= parts[i].off + pack_align(len) || parts[i].off >= parts[k].off + pack_align(parts[k].len));
  }
  OK(packing_finish(p));
  packing_end(p, true);
  // little stays unused
  CHECK((uint64_t)simdisk_size(w->disk, PACK_PATH) < sum + sum / 2 + 40 * PACK_ALIGN);
  free(buf);
  world_end(w);
}

// ---- what CURRENT says

// Loads the pack into new packs, with the parts of a section.
static enum remixdb_status load(struct world *w, const uint8_t *section, size_t len) {
  const struct files_ids ids = {.own = STORE_ID};
  struct pack_list l;
  const char *flaw = pack_list_begin(&l, section, len, 1000);
  enum remixdb_status s = REMIXDB_OK;
  while (!flaw && s == REMIXDB_OK && !(flaw = pack_list_next(&l)) && l.nr)
    s = packs_load(w->packs, &ids, l.number, &l.print, l.entries, l.nr);
  return flaw ? err_set(REMIXDB_CORRUPT, "%s", flaw) : s;
}

static void test_section(void **state) {
  (void)state;
  struct world *const w = world_new(false);
  OK(make(w));
  make_alone(w);
  struct pack_part *parts[2 * TABLES];
  struct pack_entry named[2 * TABLES];
  uint32_t nr = 0;
  for (uint32_t t = 0; t < TABLES; t++) {
    if (t % 4 != 1) parts[nr++] = part_of(w, TABLES - 1 - t, PACK_TABLE);
    if (t % 3) parts[nr++] = part_of(w, t, PACK_REMIX);
  }
  for (uint32_t i = 0; i < nr; i++) named[i] = parts[i]->at;
  uint8_t *section;
  size_t len;
  OK(packs_encode(w->packs, parts, nr, &section, &len));
  assert_int_equal(len, PACK_SECTION_HEAD + PACK_LIST_HEAD + PACK_ENTRY * nr);
  const int64_t room = simdisk_room(w->disk, PACK_PATH);
  uint64_t dead = 0;
  for (uint32_t t = 0; t < TABLES; t++)
    dead += pack_room(&part_of(w, t, PACK_TABLE)->at) + pack_room(&part_of(w, t, PACK_REMIX)->at);
  for (uint32_t i = 0; i < nr; i++) dead -= pack_room(&named[i]);
  services_end(w);
  services(w, false);
  OK(load(w, section, len));
  for (uint32_t i = 0; i < nr; i++) {
    const struct pack_part *const x = packs_find(w->packs, pack_id_kind(named[i].id), pack_id_number(named[i].id));
    CHECK(x && x->at.off == named[i].off && x->at.len == named[i].len);
  }
  CHECK(packs_have(w->packs, PACK) && !packs_have(w->packs, PACK + 1));
  packs_reclaim(w->packs);  // K5
  CHECK(simdisk_room(w->disk, PACK_PATH) <= room - (int64_t)dead);
  for (uint32_t i = 0; i < nr; i++)
    is_the_file(w, packs_find(w->packs, pack_id_kind(named[i].id), pack_id_number(named[i].id)));
  // by the directory all are there, also the dead ones
  services_end(w);
  services(w, false);
  OK(packs_load(w->packs, NULL, PACK, NULL, NULL, 0));
  for (uint32_t t = 0; t < TABLES; t++) CHECK(part_of(w, t, PACK_TABLE) && part_of(w, t, PACK_REMIX));
  FAILS(packs_load(w->packs, NULL, PACK, NULL, NULL, 0), REMIXDB_CORRUPT);  // twice
  // every cut and every changed number of the section is refused, or means the same parts
  for (size_t cut = 0; cut < len; cut++) {
    services_end(w);
    services(w, false);
    FAILS(load(w, section, cut), REMIXDB_CORRUPT);
  }
  for (size_t i = 0; i < len; i++) {
    const uint8_t bit = (uint8_t)(1u << below(8));
    section[i] ^= bit;
    services_end(w);
    services(w, false);
    const enum remixdb_status s = load(w, section, len);
    CHECK(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
    section[i] ^= bit;
  }
  mem_free(section);
  world_end(w);
}

// Every bit of the directory and the footer.
static void test_flips(void **state) {
  (void)state;
  struct world *const w = world_new(false);
  struct pack_footer f;
  uint8_t foot[PACK_FOOTER];
  OK(make(w));
  const uint64_t size = (uint64_t)simdisk_size(w->disk, PACK_PATH);
  CHECK(simdisk_peek(w->disk, PACK_PATH, size - PACK_FOOTER, foot, PACK_FOOTER));
  OK(pack_footer_get(foot, size, "pack", &f));
  CHECK(f.store_id == STORE_ID && f.number == PACK && f.nr == 2 * TABLES);
  const uint64_t ends = f.dir_off + (uint64_t)PACK_ENTRY * f.nr;
  for (uint64_t at = f.dir_off; at < size; at++) {
    if (at > ends && at < size - PACK_FOOTER && at % 97) continue;  // zeros
    const uint8_t bit = (uint8_t)(1u << below(8));
    CHECK(simdisk_flip(w->disk, PACK_PATH, at, bit));
    services_end(w);
    services(w, false);
    FAILS(packs_load(w->packs, NULL, PACK, NULL, NULL, 0), REMIXDB_CORRUPT);
    CHECK(strstr(err_msg(), "000090.pack") != NULL);
    CHECK(simdisk_flip(w->disk, PACK_PATH, at, bit));
  }
  const struct files_ids other = {.own = STORE_ID + 1};
  const uint64_t wrong = f.print + 1;
  FAILS(packs_load(w->packs, &other, PACK, NULL, NULL, 0), REMIXDB_CORRUPT);
  FAILS(packs_load(w->packs, NULL, PACK, &wrong, NULL, 0), REMIXDB_CORRUPT);
  FAILS(packs_load(w->packs, NULL, PACK + 1, NULL, NULL, 0), REMIXDB_CORRUPT);
  const struct files_ids own = {.own = STORE_ID};
  OK(packs_load(w->packs, &own, PACK, &f.print, NULL, 0));
  world_end(w);
}

// ---- failing calls and memory

static void test_faults(void **state) {
  (void)state;
  static const enum simdisk_call kinds[] = {SIMDISK_OPEN, SIMDISK_READ,  SIMDISK_WRITE, SIMDISK_SYNC,
                                            SIMDISK_STAT, SIMDISK_PUNCH, SIMDISK_CLOSE};
  for (uint32_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
    uint32_t failed = 0;
    for (uint64_t n = 0;; n += 1 + n / 8) {
      struct world *const w = world_new(n % 2);
      simdisk_fault(w->disk, kinds[k], n, 1, EIO);
      const enum remixdb_status s = make(w);
      const bool hit = simdisk_calls(w->disk, kinds[k]) > n;
      simdisk_fault(w->disk, kinds[k], 0, 0, 0);
      if (s != REMIXDB_OK) {
        assert_int_equal(s, REMIXDB_IO);
        assert_int_equal(simdisk_size(w->disk, PACK_PATH), -1);
        CHECK(!packs_have(w->packs, PACK));
        OK(make(w));
        failed++;
      }
      for (uint32_t t = 0; t < TABLES; t++) CHECK(part_of(w, t, PACK_TABLE) && part_of(w, t, PACK_REMIX));
      world_end(w);
      if (!hit) break;
    }
    CHECK(failed > 0 || kinds[k] == SIMDISK_CLOSE);
  }
}

// A power cut at any call leaves a pack that is whole, or none that an opening takes for whole.
static void test_power_cuts(void **state) {
  (void)state;
  for (uint64_t n = 0;; n += 1 + n / 16) {
    struct world *w = world_new(n % 2);
    simdisk_power_off(w->disk, n);
    const enum remixdb_status s = make(w);
    const bool off = simdisk_is_off(w->disk);
    simdisk_power_on(w->disk);
    struct simdisk *const after = simdisk_crash(w->disk, rng_next(&rng));
    services_end(w);
    simdisk_destroy(w->disk);
    w->disk = after;
    services(w, false);
    if (!off) OK(s);
    if (simdisk_size(w->disk, PACK_PATH) >= 0 && packs_load(w->packs, NULL, PACK, NULL, NULL, 0) == REMIXDB_OK) {
      for (uint32_t t = 0; t < TABLES && !off; t++) read_all(w, t);
    }
    world_end(w);
    if (!off) break;
  }
}

int main(void) {
  rng = check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_parts),       cmocka_unit_test(test_drop),     cmocka_unit_test(test_owners),
      cmocka_unit_test(test_second_name), cmocka_unit_test(test_no_holes), cmocka_unit_test(test_places),
      cmocka_unit_test(test_section),     cmocka_unit_test(test_flips),    cmocka_unit_test(test_faults),
      cmocka_unit_test(test_power_cuts),  cmocka_unit_test(test_direct),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
