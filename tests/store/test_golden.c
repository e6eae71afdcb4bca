// SPDX-License-Identifier: Apache-2.0
//
// The golden stores of tests/golden: this program makes them, and checks that the library of today reads them as the
// library that wrote them did. The calls below determine their content; expected.json beside the files states it for
// readers that are not this program (tests/py/test_format.py).
//   test_golden                  makes every store in memory and looks at it, then at the files
//   test_golden write DIR        writes the files anew (make golden): only when the formats change
//
// The same calls make the same files, but for what another version of libzstd compresses otherwise. Stores in a format
// that is read and not written any more are kept under another name; they hold what the calls put in that made them, so
// that these must stay as they are.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "admin/verify.h"
#include "store/flush.h"
#include "store/ranges.h"
#include "store/syncer.h"
#include "store/whole.h"
#include "tests/lib/check.h"
#include "tests/lib/paths.h"
#include "tests/lib/starve.h"
#include "tests/lib/tiny.h"

#define GOLDEN_DIR "tests/golden"

static struct kref key_u(uint8_t *buf, const char *fmt, uint32_t i) {
  return kref(buf, (uint32_t)snprintf((char *)buf, 64, fmt, i));
}
#define KEY(fmt, i) key_u((uint8_t[64]){0}, fmt, i)
#define TEXT(s) kref(s, sizeof(s) - 1)

static void flush(struct tiny *t) { OK(xdb_flush(t->x)); }

// Several partitions of several runs each: compressed keys, tags, old versions, tombstones; and a log of several
// frames, one of them a batch.
static struct tiny *make_plain(void) {
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_NONE);
  t->table_pages = 2;
  tiny_open(t);
  for (uint32_t i = 0; i < 170; i++) tiny_put(t, KEY("user/%04u", 2 * i), 40 + i * 37 % 60, false);
  flush(t);
  for (uint32_t i = 0; i < 170; i += 9) tiny_put(t, KEY("user/%04u", 2 * i), 20 + i % 100, false);
  for (uint32_t i = 0; i < 170; i += 11) tiny_put(t, KEY("user/%04u", 2 * i + 1), i % 40, false);
  for (uint32_t i = 3; i < 170; i += 13) tiny_del(t, KEY("user/%04u", 2 * i));
  flush(t);
  for (uint32_t i = 0; i < 170; i += 17) tiny_put(t, KEY("user/%04u", 2 * i), 10, true);
  for (uint32_t i = 0; i < 170; i += 18) tiny_del(t, KEY("user/%04u", 2 * i + 2));
  flush(t);
  for (uint32_t i = 0; i < 40; i++) tiny_put(t, KEY("user/%04u/x", i), 30, false);
  for (uint32_t i = 0; i < 60; i += 9) tiny_put(t, KEY("user/%04u", 2 * i), 5, false);
  flush(t);
  // records that stay in the log
  for (uint32_t i = 0; i < 6; i++) {
    tiny_put(t, KEY("user/%04u", 100 * i), 15 * i, false);
    tiny_del(t, KEY("user/%04u", 100 * i + 2));
    OK(xdb_sync(t->ref));
  }
  static uint8_t value[200];
  struct xdb_batch *b;
  OK(batch_create(&b));
  for (uint32_t i = 0; i < 5; i++) {
    const struct tiny_rec *const r = tiny_model(t, KEY("batch/%u", i), 200, i % 2, true);
    tiny_value(r, value);
    OK(batch_add(b, KV_REC(kref(r->key, r->klen), value, 200, false)));
  }
  OK(xdb_write(t->ref, b));
  batch_destroy(b);
  return t;
}

// Neither compressed keys nor tags; keys of all bytes, some the beginning of others, the empty one; over several runs.
static struct tiny *make_compact(void) {
  struct tiny *const t = tiny_create(false, false, REMIXDB_COMPRESSION_NONE);
  tiny_open(t);
  uint64_t rng = 7;
  tiny_put(t, TEXT(""), 3, false);
  for (uint32_t i = 0; i < 120; i++) {
    uint8_t key[8];
    const uint32_t len = 1 + i % 6;
    for (uint32_t k = 0; k < len; k++) key[k] = (uint8_t) "\0\1\177\200\377a"[rng_next(&rng) % 6];
    tiny_put(t, kref(key, len), i % 70, false);
    if (i == 60) flush(t);
  }
  flush(t);
  for (uint32_t i = 0; i < t->nr; i += 5) {
    uint8_t key[8];
    const struct kref k = kref(key, t->recs[i].klen);
    if (k.len) memcpy(key, t->recs[i].key, k.len);
    if (i % 2) tiny_del(t, k);
    else tiny_put(t, k, i, true);
  }
  flush(t);
  for (uint32_t i = 0; i < 12; i++) {
    uint8_t key[12];
    memset(key, 'a', sizeof(key));
    tiny_put(t, kref(key, i), 40, false);
  }
  tiny_del(t, TEXT("never there"));
  flush(t);
  tiny_del(t, TEXT(""));
  return t;
}

// Compressed blocks: with a dictionary, without one because the table is small, and stored raw because they do not
// shrink.
static struct tiny *make_zstd(void) {
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_ZSTD);
  tiny_open(t);
  for (uint32_t i = 0; i < 400; i++) tiny_put(t, KEY("article/%05u", 3 * i), 100 + i % 50, false);
  tiny_put(t, TEXT("article/00100/picture"), 8150, true);  // fills its two pages
  flush(t);
  for (uint32_t i = 0; i < 30; i++) tiny_put(t, KEY("article/%05u", 30 * i), 60, i % 3 == 0);
  for (uint32_t i = 0; i < 10; i++) tiny_del(t, KEY("article/%05u", 90 * i + 3));
  flush(t);
  return t;
}

// Blocks of several pages, of values and of keys; keys that differ so far after their first difference that the
// positions do not fit.
static struct tiny *make_large(void) {
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_NONE);
  static uint8_t key[4201];
  tiny_open(t);
  memset(key, 'k', sizeof(key));
  tiny_put(t, TEXT("a"), 8000, false);
  tiny_put(t, TEXT("b"), 4079 - 3, true);  // with its heads, 1 and 2 bytes, the key and the block's 14 this is a page
  tiny_put(t, TEXT("c"), 4079 - 2, true);  // and this one more byte
  tiny_put(t, TEXT("d"), 0, false);
  tiny_put(t, TEXT("e"), 5000, true);
  for (uint32_t i = 0; i < 40; i++) tiny_put(t, KEY("f%03u", i), 20, false);
  for (uint32_t i = 0; i < 2; i++) {
    key[4200] = (uint8_t)('0' + i);
    tiny_put(t, kref(key, sizeof(key)), 10, false);
  }
  tiny_put(t, TEXT("z"), 1, false);
  flush(t);
  tiny_put(t, TEXT("f007"), 11, false);
  tiny_del(t, TEXT("c"));
  flush(t);
  return t;
}

// A young view of two tables: versions and tombstones of what the other view has, and keys of its own, one of which is
// deleted again.
static struct tiny *make_young(void) {
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_NONE);
  tiny_open(t);
  for (uint32_t i = 0; i < 240; i++) tiny_put(t, KEY("entry/%03u", i), i % 20, false);
  flush(t);
  for (uint32_t n = 0; n < 2; n++) {
    for (uint32_t i = 1; i < 4; i++) tiny_put(t, KEY("entry/%03u", (40 + 20 * n) * i), 20 + i, n);
    tiny_put(t, KEY("entry/%03u/x", 25 * n), 10, false);
    tiny_del(t, KEY("entry/%03u", 7 + n));
    if (n) tiny_del(t, KEY("entry/%03u/x", 0));
    flush(t);
  }
  return t;
}

// Packs, with parts that are alive and places of dead ones; beside them files of one partition.
static struct tiny *make_packs(void) {
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_NONE);
  t->table_pages = 2;
  tiny_open(t);
  for (uint32_t i = 0; i < 160; i++) tiny_put(t, KEY("user/%04u", 2 * i), 30 + i * 37 % 60, false);
  flush(t);
  for (uint32_t n = 0; n < 3; n++) {
    for (uint32_t i = n; i < 160; i += 31 - 3 * n) tiny_put(t, KEY("user/%04u", 2 * i), 20 + i % 50, n % 2);
    for (uint32_t i = 5 * n; i < 160; i += 43) tiny_del(t, KEY("user/%04u", 2 * i));
    flush(t);
  }
  tiny_put(t, KEY("user/%04u", 100), 33, false);
  flush(t);
  tiny_put(t, KEY("user/%04u", 101), 12, false);
  return t;
}

static void log_put(struct tiny *t, struct wal *w, uint32_t i, bool model) {
  static uint8_t value[200];
  const struct kref key = KEY("log/%03u", i % 40);
  struct tiny_rec one = {
      .key = (uint8_t *)(uintptr_t)key.ptr, .klen = key.len, .number = i, .vlen = 20 + i, .there = i % 6 != 5};
  const struct tiny_rec *const r = model ? tiny_model(t, key, one.vlen, false, one.there) : &one;
  tiny_value(r, value);
  uint64_t gen;
  OK(wal_begin(w, kv_rec_size(KV_REC(kref(NULL, key.len), NULL, r->vlen, !r->there)), &gen));
  (void)wal_put(w, KV_REC(key, value, r->vlen, !r->there));
  wal_end(w);
}

static void save_log_start(struct tiny *t, struct wal *w, uint64_t gen, uint64_t seq) {
  const struct sst_ctx ctx = {.env = simdisk_env(t->disk),
                              .dir = simdisk_dir(simdisk_env(t->disk), TINY_DIR),
                              .store_id = TINY_STORE_ID};
  struct part *p;
  struct version *v;
  OK(part_create(kref("", 0), NULL, NULL, &p));
  OK(version_create(&p, 1, &v));
  v->store_id = TINY_STORE_ID;
  v->number = 2;
  v->next_file = 1;
  v->log_gen = gen;
  v->log_seq = seq;
  OK(wal_print(w, gen, &v->log_print));
  OK(version_save(&ctx, v));
  version_unref(v);
}

// A log of three segments; the newest is in a file that had a longer life before. The older frames lie after its own.
// torn: the machine stopped while the last frame was written, and half of it is there.
static struct tiny *make_log_of(bool torn) {
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_NONE);
  const struct wal_opts wo = {.dir = simdisk_dir(simdisk_env(t->disk), TINY_DIR), .store_id = TINY_STORE_ID};
  struct wal *w;
  OK(wal_open(&wo, 1, 0, false, NULL, NULL, NULL, &w));
  OK(wal_switch(w, NULL, NULL));
  for (uint32_t i = 0; i < 30; i++) {  // not needed any more in the end
    log_put(t, w, i, false);
    if (i % 7 == 0) OK(wal_flush(w));
  }
  OK(wal_switch(w, NULL, NULL));
  const uint64_t gen = wal_gen(w);
  for (uint32_t i = 30; i < 60; i++) {
    log_put(t, w, i, true);
    if (i % 5 == 0) OK(wal_flush(w));
    if (i % 10 == 0) OK(wal_sync(w));
  }
  save_log_start(t, w, gen, 30);
  OK(wal_release(w, gen));
  OK(wal_switch(w, NULL, NULL));
  log_put(t, w, 60, true);
  OK(wal_sync(w));
  OK(wal_switch(w, NULL, NULL));
  for (uint32_t i = 61; i < 67; i++) {
    log_put(t, w, i, true);
    if (i % 2) OK(wal_flush(w));
  }
  OK(wal_sync(w));
  if (!torn) {
    OK(wal_close(w));
    return t;
  }
  const uint64_t at = wal_segment_bytes(w);
  uint8_t old[64];
  size_t len;
  const char *const name = "wal-1";
  uint8_t *const before = tiny_read_file(t, name, &len);
  log_put(t, w, 67, false);
  OK(wal_flush(w));
  assert_true(wal_segment_bytes(w) - at > 60 && at + 60 + sizeof(old) < len);
  memcpy(old, before + at + 60, sizeof(old));
  free(before);
  simdisk_fault(t->disk, SIMDISK_WRITE, 0, UINT64_MAX, EIO);
  FAILS(wal_close(w), REMIXDB_IO);
  simdisk_fault(t->disk, SIMDISK_WRITE, 0, 0, 0);
  assert_true(simdisk_poke(t->disk, tiny_path(name), at + 60, old, sizeof(old)));
  return t;
}

static struct tiny *make_log(void) { return make_log_of(false); }
static struct tiny *make_torn(void) { return make_log_of(true); }

// Makes the store another one with the same files, as a checkpoint is made of its source.
static void link_as(struct tiny *t, uint64_t id, uint64_t origin) {
  enum { HEAD = 64, ORIGINS = 16 + 8 };
  struct tiny_files files;
  struct wal *w;
  size_t len;
  tiny_list(t, &files);
  for (uint32_t i = 0; i < files.nr; i++)
    if (strncmp(files.names[i], "wal-", 4) == 0)
      OK(env_unlink(ENV_PATHS(simdisk_env(t->disk)), tiny_path(files.names[i])));
  uint8_t *const was = tiny_read_file(t, "CURRENT", &len), *const now = calloc(1, len + ORIGINS);
  assert_true(now && load32le(was + 8) == 3 && load32le(was + 12) == 1);
  memcpy(now, was, HEAD);
  memcpy(now + HEAD + ORIGINS, was + HEAD, len - HEAD);
  const struct wal_opts wo = {.dir = simdisk_dir(simdisk_env(t->disk), TINY_DIR),
                              .store_id = id,
                              .origins = &origin,
                              .nr_origins = 1};
  uint64_t print;
  OK(wal_open(&wo, 1, load64le(was + 48), true, NULL, NULL, NULL, &w));
  OK(wal_print(w, 1, &print));
  OK(wal_close(w));
  store32le(now + 12, 2);
  store64le(now + 16, id);
  store64le(now + 40, 1);
  store64le(now + 56, print);
  store32le(now + HEAD, 1);
  store32le(now + HEAD + 4, 1);
  store64le(now + HEAD + 8, 8);
  store64le(now + HEAD + 16, origin);
  store64le(now + len + ORIGINS - 8, hash64(now, len + ORIGINS - 8));
  tiny_write_file(t, "CURRENT", now, len + ORIGINS);
  free(was);
  free(now);
}

// A checkpoint that has gone on: files of two ids.
static struct tiny *make_linked(void) {
  const uint64_t origin = TINY_STORE_ID + 1;
  struct tiny *const t = tiny_create_as(origin, true, true, REMIXDB_COMPRESSION_NONE);
  tiny_open(t);
  for (uint32_t i = 0; i < 90; i++) tiny_put(t, KEY("linked/%03u", i), 30 + i % 20, false);
  flush(t);
  OK(tiny_close(t));
  link_as(t, TINY_STORE_ID, origin);
  tiny_open(t);
  for (uint32_t i = 0; i < 90; i += 8) tiny_put(t, KEY("linked/%03u", i), 25, true);
  for (uint32_t i = 1; i < 90; i += 30) tiny_del(t, KEY("linked/%03u", i));
  flush(t);
  tiny_put(t, KEY("linked/%03u/log", 1), 20, false);
  return t;
}

#define YEAR_4000_MS 64060588800000ull

static void put_kind(struct tiny *t, struct kref key, uint32_t vlen, uint32_t kind, uint64_t expiry, uint64_t seq) {
  static uint8_t value[64];
  const struct tiny_rec *const r = tiny_model(t, key, vlen, false, !(kind & KV_TOMB));
  if (r->there) tiny_value(r, value);
  struct kv_rec *const rec = KV_REC(key, value, r->there ? vlen : 0, kind);
  rec->expiry = expiry;
  rec->seq = seq;
  OK(xdb_put(tiny_ref(t), rec));
}

// Records of all kinds: some expire, in the far future, and some that a round handed back state their numbers.
static struct tiny *make_kinds(void) {
  const uint64_t far = YEAR_4000_MS;
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_NONE);
  tiny_open(t);
  for (uint32_t i = 0; i < 60; i++)
    put_kind(t, KEY("kind/%03u", i), 20 + i % 9, i % 3 ? 0 : KV_EXPIRES, far + i * 86400000ull, 0);
  flush(t);
  for (uint32_t i = 0; i < 60; i += 4) put_kind(t, KEY("kind/%03u", i), 9, i % 8 ? KV_EXPIRES : KV_TOMB, far, 0);
  flush(t);
  for (uint32_t i = 100; i < 110; i++)
    put_kind(t, KEY("kind/%03u", i), 7, KV_SEQ | (i % 3 == 0 ? KV_EXPIRES : i % 3 == 1 ? KV_TOMB : 0), far + 1, i - 50);
  put_kind(t, KEY("kind/%03u", 110), 7, KV_EXPIRES, far + 2, 0);
  OK(xdb_sync(t->ref));
  return t;
}

// Deletes [from, to) as a range, by an edit of the version.
static void del_range(struct tiny *t, struct kref from, struct kref to) {
  t->x->ranges = (struct range_limits){0, 0, 0};
  OK(xdb_del_range(tiny_ref(t), from, to));
  for (uint32_t i = 0; i < t->nr; i++) {
    const struct kref key = kref(t->recs[i].key, t->recs[i].klen);
    if (t->recs[i].space == t->in && kv_cmp(key, from) >= 0 && kv_cmp(key, to) < 0) t->recs[i].there = false;
  }
}

// Ranges were deleted: partitions are gone and cut, the log has the last two deletions, and keys came back.
static struct tiny *make_ranges(void) {
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_NONE);
  t->table_pages = 2;
  tiny_open(t);
  for (uint32_t i = 0; i < 300; i++) tiny_put(t, KEY("range/%04u", i), 40 + i * 37 % 60, false);
  flush(t);
  for (uint32_t i = 0; i < 300; i += 7) tiny_put(t, KEY("range/%04u", i), 20 + i % 30, false);
  for (uint32_t i = 0; i < 300; i += 31) tiny_del(t, KEY("range/%04u", i));
  flush(t);
  del_range(t, KEY("range/0101", 0), KEY("range/0222", 0));
  for (uint32_t i = 90; i < 230; i += 9) tiny_put(t, KEY("range/%04u", i), 15, false);
  flush(t);
  for (uint32_t i = 0; i < 100; i += 8) tiny_put(t, KEY("range/%04u", i), 11, false);
  del_range(t, KEY("range/0030", 0), KEY("range/0050", 0));
  tiny_put(t, KEY("range/0040", 0), 12, false);
  del_range(t, KEY("range/0250", 0), KEY("range/0260", 0));
  tiny_put(t, KEY("range/0255", 0), 13, false);
  OK(xdb_sync(t->ref));
  return t;
}

// Values that a collection has moved: tables have references to the file that is gone, and to files that are there.
static struct tiny *make_moved(void) {
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_ZSTD);
  tiny_open(t);
  for (uint32_t i = 0; i < 12; i++) tiny_put(t, KEY("moved/%02u", i), i == 7 ? 40000 : 16500 + i, false);
  flush(t);
  for (uint32_t i = 0; i < 12; i += 3) tiny_put(t, KEY("moved/%02u", i), i % 2 ? 20 : 17000, false);
  tiny_del(t, KEY("moved/%02u", 1));
  OK(xdb_compact(t->x));
  tiny_put(t, KEY("moved/%02u", 2), 16600, false);  // hides a moved value
  tiny_put(t, KEY("moved/%02u", 12), 16700, false);
  flush(t);
  assert_true(xdb_super(t->x)->version->moves.nr == 1 && xdb_super(t->x)->version->values.nr > 1);
  tiny_put(t, KEY("moved/%02u", 4), 16800, false);
  OK(xdb_sync(t->ref));
  return t;
}

// Opens it anew: its log goes on in the next segment.
static void reopen(struct tiny *t) {
  OK(xdb_sync(t->ref));
  OK(tiny_close(t));
  tiny_open(t);
}

// A batch that writes to all spaces.
static void put_everywhere(struct tiny *t, const char *const *spaces, uint32_t nr) {
  static uint8_t value[64];
  struct xdb_batch *b;
  OK(batch_create(&b));
  for (uint32_t i = 0; i < nr; i++) {
    tiny_use(t, spaces[i]);
    const struct tiny_rec *const r = tiny_model(t, KEY("batch", 0), 30 + i, false, true);
    tiny_value(r, value);
    batch_space(b, t->in ? t->spaces[t->in - 1].handle : NULL);
    OK(batch_add(b, KV_REC(kref(r->key, r->klen), value, r->vlen, false)));
  }
  OK(xdb_write(t->ref, b));
  batch_destroy(b);
}

// Named key spaces with the same keys, one of them dropped: values apart, records that expire, deletions of ranges, in
// the tables and in a log of several segments.
static struct tiny *make_spaces(void) {
  static const char *const names[] = {NULL, "first", "second", "dropped"};
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_ZSTD);
  t->table_pages = 2;
  tiny_open(t);
  for (uint32_t n = 0; n < 4; n++) {
    tiny_use(t, names[n]);
    for (uint32_t i = 0; i < (n ? 50 : 20); i++) tiny_put(t, KEY("key/%03u", i), 30 + (i + n) * 37 % 60, i % 2);
    tiny_put(t, KEY("long/%u", n), 17000 + n, false);
    tiny_put(t, KEY("long", 0), 5000, false);
    for (uint32_t i = 0; i < 50; i += 9) put_kind(t, KEY("until/%03u", i), 20, KV_EXPIRES, YEAR_4000_MS + i, 0);
    tiny_put(t, TEXT(""), n, false);
  }
  flush(t);
  for (uint32_t n = 0; n < 4; n++) {
    tiny_use(t, names[n]);
    for (uint32_t i = n; i < 50; i += 7) tiny_put(t, KEY("key/%03u", i), 10, false);
    for (uint32_t i = n; i < 50; i += 11) tiny_del(t, KEY("key/%03u", i));
    put_kind(t, KEY("until/%03u", 9), 30, 0, 0, 0);  // does not expire any more
  }
  tiny_use(t, "first");
  tiny_put(t, KEY("long", 0), 18000, false);
  flush(t);
  tiny_use(t, "second");
  del_range(t, KEY("key/010", 0), KEY("key/031", 0));
  tiny_put(t, KEY("key/020", 0), 25, false);
  flush(t);
  for (uint32_t n = 0; n < 4; n++) {
    tiny_use(t, names[n]);
    tiny_put(t, KEY("log/%u", n), 40, false);
    tiny_put(t, KEY("long/log", 0), 17500, false);
    put_kind(t, KEY("until/log", 0), 9, KV_EXPIRES, YEAR_4000_MS + 1, 0);
    tiny_del(t, KEY("key/%03u", 3 * n));
    if (n == 1) reopen(t);
  }
  put_everywhere(t, names, 4);
  tiny_use(t, "first");
  del_range(t, KEY("key/040", 0), KEY("key/045", 0));
  tiny_put(t, KEY("key/042", 0), 11, false);
  reopen(t);
  tiny_use(t, "dropped");
  t->x->scan_merges.ending = true;  // its records stay, as in a store that is closed at once
  tiny_drop_space(t);
  tiny_use(t, "second");
  tiny_put(t, KEY("log/last", 0), 12, false);
  OK(xdb_sync(t->ref));
  tiny_use(t, NULL);
  return t;
}

// Views whose files have pages: over several runs, with old versions, tombstones and records that expire; and in a key
// space, without those that expire. A young view with a file without pages, and a log.
static struct tiny *make_paged(void) {
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_NONE);
  starve(true);
  tiny_open(t);
  for (uint32_t i = 0; i < 280; i++)
    put_kind(t, KEY("page/%04u", 3 * i), 6 + i % 7, i % 29 ? 0 : KV_EXPIRES, YEAR_4000_MS + i, 0);
  tiny_use(t, "plain");
  for (uint32_t i = 0; i < 120; i++) tiny_put(t, KEY("page/%04u", i), 5, false);
  flush(t);
  for (uint32_t i = 0; i < 120; i += 8) tiny_del(t, KEY("page/%04u", i));
  for (uint32_t i = 3; i < 120; i += 9) tiny_put(t, KEY("page/%04u", i), 7, false);
  tiny_use(t, NULL);
  for (uint32_t i = 0; i < 280; i += 9) put_kind(t, KEY("page/%04u", 3 * i), 9, i % 2 * KV_EXPIRES, YEAR_4000_MS, 0);
  for (uint32_t i = 4; i < 280; i += 11) tiny_del(t, KEY("page/%04u", 3 * i));
  for (uint32_t i = 1; i < 280; i += 12) tiny_put(t, KEY("page/%04u", 3 * i + 1), 8, true);
  flush(t);
  for (uint32_t n = 0; n < 2; n++) {
    for (uint32_t i = 0; i < 3; i++) tiny_put(t, KEY("page/%04u", 3 * (70 * i + 31 * n)), 11, false);
    tiny_del(t, KEY("page/%04u", 3 * (50 + n)));
    flush(t);
  }
  tiny_put(t, KEY("page/%04u", 600), 12, false);
  tiny_del(t, KEY("page/%04u", 603));
  OK(xdb_sync(t->ref));
  OK(tiny_close(t));
  starve(false);
  return t;
}

static const struct golden {
  const char *name;
  struct tiny *(*make)(void);
  bool keep_pool;  // unneeded log segments stay
  bool old;        // another format than is written today: read, never written
} goldens[] = {
    {"plain", make_plain, false, false},
    {"compact", make_compact, true, false},
    {"zstd", make_zstd, false, false},
    {"large", make_large, false, false},
    {"log", make_log, true, false},
    {"torn", make_torn, true, false},
    {"young", make_young, false, false},
    {"linked", make_linked, false, false},
    {"kinds", make_kinds, false, false},
    {"ranges", make_ranges, false, false},
    {"moved", make_moved, false, false},
    {"spaces", make_spaces, false, false},
    {"packs", make_packs, false, false},
    {"paged", make_paged, false, false},
    {"plain-sst2", make_plain, false, true},  // table format 2, log format 3: no kinds of records
    {"compact-sst2", make_compact, true, true},
    {"zstd-sst2", make_zstd, false, true},
    {"large-sst2", make_large, false, true},
    {"log-wal3", make_log, true, true},
    {"torn-wal3", make_torn, true, true},
    {"compact-remix1", make_compact, true, true},  // REMIX format 1, without tags
    {"zstd-remix1", make_zstd, false, true},       // and with them
    {"large-sst1", make_large, false, true},       // table format 1: compressed keys are not packed
    {"plain-sst1", make_plain, false, true},
    {"zstd-sst1", make_zstd, false, true},
    {"plain-current1", make_plain, false, true},  // CURRENT of format 1, log format 2
    {"young-current2", make_young, false, true},  // CURRENT of format 2
    {"log-wal2", make_log, true, true},           // log format 2, CURRENT of format 1
    {"torn-wal2", make_torn, true, true},
};
#define GOLDENS (sizeof(goldens) / sizeof(goldens[0]))

static struct tiny *make(const struct golden *g) {
  struct tiny *const t = g->make();
  OK(tiny_close(t));
  if (!g->keep_pool) tiny_drop_pool(t);
  return t;
}

// ---- writing

static FILE *create(const char *dir, const char *store, const char *name) {
  char path[1024];
  (void)snprintf(path, sizeof(path), "%s/%s/%s", dir, store, name);
  FILE *const f = fopen(path, "wb");
  if (!f) fail_msg("%s: %s", path, strerror(errno));
  return f;
}

// Everything of each key of the space, and by which rule (tiny.h) its value is made.
static void write_records(const struct tiny *t, uint32_t space, FILE *f) {
  const char *end = "";
  for (uint32_t i = 0; i < t->nr; i++) {
    const struct tiny_rec *const r = &t->recs[i];
    if (!r->there || r->space != space) continue;
    (void)fprintf(f, "%s\n  [\"", end);
    for (uint32_t k = 0; k < r->klen; k++) (void)fprintf(f, "%02x", r->key[k]);
    (void)fprintf(f, "\", %u, %u, \"%s\"]", r->number, r->vlen, r->noise ? "noise" : "text");
    end = ",";
  }
}

static void write_expected(const struct tiny *t, FILE *f) {
  (void)fprintf(f, "{\"store_id\": %llu,\n \"records\": [", (unsigned long long)TINY_STORE_ID);
  write_records(t, 0, f);
  for (uint32_t i = 0; i < t->nr_spaces; i++) {
    if (!*t->spaces[i].name) continue;
    (void)fprintf(f, "\n ],\n \"space %s\": [", t->spaces[i].name);
    write_records(t, i + 1, f);
  }
  (void)fprintf(f, "\n ]}\n");
}

static void write_golden(const struct golden *g, const char *dir) {
  struct tiny *const t = make(g);
  struct tiny_files files, old = {.nr = 0};
  char path[1024];
  (void)snprintf(path, sizeof(path), "%s/%s", dir, g->name);
  if (mkdir(path, 0777) != 0 && errno != EEXIST) fail_msg("%s: %s", path, strerror(errno));
  OK(paths_list(env_posix(), path, tiny_name, &old));
  for (uint32_t i = 0; i < old.nr; i++) {
    (void)snprintf(path, sizeof(path), "%s/%s/%s", dir, g->name, old.names[i]);
    OK(env_unlink(ENV_PATHS(env_posix()), path));
  }
  tiny_list(t, &files);
  for (uint32_t i = 0; i < files.nr; i++) {
    size_t len;
    uint8_t *const b = tiny_read_file(t, files.names[i], &len);
    FILE *const f = create(dir, g->name, files.names[i]);
    if (len > 64u << 10) fail_msg("%s/%s has %zu bytes", g->name, files.names[i], len);
    assert_int_equal(fwrite(b, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
    free(b);
  }
  FILE *const f = create(dir, g->name, "expected.json");
  write_expected(t, f);
  assert_int_equal(fclose(f), 0);
  tiny_destroy(t);
}

static const char *write_dir;

static void test_write(void **state) {
  (void)state;
  if (mkdir(write_dir, 0777) != 0 && errno != EEXIST) fail_msg("%s: %s", write_dir, strerror(errno));
  for (size_t i = 0; i < GOLDENS; i++)
    if (!goldens[i].old) write_golden(&goldens[i], write_dir);
}

// ---- reading

// Replaces the content of t's disk by the files.
static void load_golden(struct tiny *t, const char *name) {
  struct tiny_files files = {.nr = 0};
  char path[1024];
  simdisk_destroy(t->disk);
  t->disk = simdisk_create();
  simdisk_no_allocate(t->disk, true);
  OK(env_mkdir(ENV_PATHS(simdisk_env(t->disk)), TINY_DIR));
  (void)snprintf(path, sizeof(path), GOLDEN_DIR "/%s", name);
  OK(paths_list(env_posix(), path, tiny_name, &files));
  assert_true(files.nr > 2);
  for (uint32_t i = 0; i < files.nr; i++) {
    uint8_t *b;
    size_t len;
    if (strcmp(files.names[i], "expected.json") == 0) continue;
    (void)snprintf(path, sizeof(path), GOLDEN_DIR "/%s/%s", name, files.names[i]);
    OK(paths_read_file(ENV_PATHS(env_posix()), path, TINY_FILE_MAX, &b, &len));
    tiny_write_file(t, files.names[i], b, len);
    mem_free(b);
  }
}

static void check_verify(struct tiny *t, bool read_only) {
  struct verify_report report;
  OK(tiny_try_open(t, read_only));
  OK(verify_store(t->ref, &report));
  OK(tiny_close(t));
}

// Read-only, then by an opening that may write, then the files that this one left; all whole.
static void check_all_ways(struct tiny *t) {
  tiny_check(t, true);
  check_verify(t, true);
  check_verify(t, false);
  tiny_check(t, false);
  tiny_open(t);
  OK(xdb_flush(t->x));
  tiny_put(t, TEXT("one more"), 100, false);
  for (uint32_t i = 0; i < t->nr_spaces; i++) {
    if (!*t->spaces[i].name) continue;
    tiny_use(t, t->spaces[i].name);
    tiny_put(t, TEXT("one more"), 100 + i, false);
  }
  tiny_use(t, NULL);
  OK(tiny_close(t));
  tiny_check(t, true);
  check_verify(t, true);
}

static void test_made_today(void **state) {
  (void)state;
  for (size_t i = 0; i < GOLDENS; i++) {
    if (goldens[i].old) continue;
    struct tiny *const t = make(&goldens[i]);
    check_all_ways(t);
    tiny_destroy(t);
  }
}

// Also page by page, and by stores whose files all have pages.
static void test_golden(void **state) {
  (void)state;
  for (size_t i = 0; i < 2 * GOLDENS; i++) {
    const struct golden *const g = &goldens[i / 2];
    struct tiny *const t = make(g);
    load_golden(t, g->name);
    starve(i % 2);
    check_all_ways(t);
    starve(false);
    tiny_destroy(t);
  }
}

static uint32_t current_format(const struct tiny *t) {
  uint8_t word[4];
  assert_true(simdisk_peek(t->disk, tiny_path("CURRENT"), 8, word, sizeof(word)));
  return load32le(word);
}

// A life that replaces CURRENT and begins log segments, and changes nothing that the model knows.
static void live(struct tiny *t) {
  enum remixdb_status s = tiny_try_open(t, false);
  for (uint32_t i = 0; i < 2 && s == REMIXDB_OK; i++) {
    const struct kv_rec *const rec = KV_REC(TEXT("this key is not there"), NULL, 0, true);
    s = xdb_put(t->ref, rec);
    for (uint32_t n = 0; n < t->nr_spaces && s == REMIXDB_OK; n++)
      if (*t->spaces[n].name) s = xdb_put(t->spaces[n].ref, rec);
    if (s == REMIXDB_OK) s = xdb_sync(t->ref);
    if (s == REMIXDB_OK) s = xdb_flush(t->x);
  }
  IGNORED(tiny_close(t), "the power may be off");
}

// The first install after a store of older formats was opened writes CURRENT of today's format, and the log goes on in
// today's. Power goes at every call. The stores of today go through it, too: the next formats make them old ones.
static void upgrade(const struct golden *g) {
  struct tiny *const t = make(g);
  bool off = true;
  for (uint64_t cut = 0; off; cut++) {
    (void)snprintf(check_what, sizeof(check_what), "%s, power off after %llu calls", g->name, (unsigned long long)cut);
    load_golden(t, g->name);
    OK(paths_sync_dir(simdisk_env(t->disk), "/"));
    OK(paths_sync_dir(simdisk_env(t->disk), TINY_DIR));
    assert_in_range(current_format(t), 1, 3);
    simdisk_power_off(t->disk, cut);
    live(t);
    off = simdisk_is_off(t->disk);
    struct simdisk *const after = simdisk_crash(t->disk, cut * 31 + 7);
    simdisk_destroy(t->disk);
    t->disk = after;
    if (!off) assert_int_equal(current_format(t), 3);
    tiny_check(t, true);
    live(t);
    assert_int_equal(current_format(t), 3);
    tiny_check(t, true);
  }
  tiny_destroy(t);
  check_what[0] = 0;
}

static void test_upgrade(void **state) {
  (void)state;
  for (size_t i = 0; i < GOLDENS; i++) upgrade(&goldens[i]);
}

// The same of stores that read page by page, and whose new files all have pages.
static void test_upgrade_starved(void **state) {
  static const char *const names[] = {"paged", "ranges", "young-current2", "compact-remix1"};
  (void)state;
  for (size_t i = 0; i < GOLDENS; i++)
    for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
      if (strcmp(goldens[i].name, names[k]) != 0) continue;
      starve(true);
      upgrade(&goldens[i]);
      starve(false);
    }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_made_today), cmocka_unit_test(test_golden),
                                     cmocka_unit_test(test_upgrade), cmocka_unit_test(test_upgrade_starved)};
  const struct CMUnitTest writing[] = {cmocka_unit_test(test_write)};
  if (argc == 3 && strcmp(argv[1], "write") == 0) {
    write_dir = argv[2];
    return cmocka_run_group_tests(writing, NULL, NULL);
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
