// SPDX-License-Identifier: Apache-2.0
//
// Value files: writing side by side, reading whole values and pieces, damage, wrong references, full disks, power cuts.
#include "tests/lib/check.h"

#include <errno.h>
#include <stdlib.h>

#include "tests/lib/bytes.h"
#include "tests/lib/fault.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/slow.h"
#include "value/read.h"
#include "value/write.h"

#define STORE_ID 0x1234567890abcdefull
#define MOST (9u << 20)

static uint64_t rng = 1;
static uint64_t below(uint64_t *r, uint64_t n) { return rng_next(r) % n; }
static bool chance(uint64_t *r, uint32_t n) { return below(r, n) == 0; }
static uint8_t *bytes;  // MOST bytes and some: values are parts of them

struct world {
  struct simdisk *disk;
  struct fdpool *fds;
  struct sst_ctx sst;
  struct value_ctx ctx;
  struct value_log log;
  _Atomic uint64_t next;
};

static uint64_t new_number(void *arg, void (*name_of)(char *buf, uint64_t number)) {
  (void)name_of;
  return atomic_fetch_add(&((struct world *)arg)->next, 1);
}

static struct world *world_on(struct simdisk *disk, enum remixdb_compression compression) {
  struct world *const w = calloc(1, sizeof(*w));
  assert_non_null(w);
  w->disk = disk;
  OK(fdpool_create(simdisk_env(disk), 16, &w->fds));
  w->sst = (struct sst_ctx){.env = simdisk_env(disk),
                            .dir = simdisk_dir(simdisk_env(disk), "/"),
                            .fds = w->fds,
                            .store_id = STORE_ID};
  w->ctx.sst = &w->sst;
  w->next = 1;
  value_log_init(&w->log, &w->ctx);
  value_log_compress(&w->log, compression, 1);
  w->log.new_number = new_number;
  w->log.arg = w;
  return w;
}

static struct world *world_new(enum remixdb_compression compression) {
  struct simdisk *const d = simdisk_create();
  assert_non_null(d);
  return world_on(d, compression);
}

static void world_end(struct world *w) {
  value_log_fini(&w->log);
  value_ctx_fini(&w->ctx);
  fdpool_destroy(w->fds);
  assert_int_equal(simdisk_open_files(w->disk), 0);
  simdisk_destroy(w->disk);
  free(w);
}

// A value that was written.
struct kept {
  struct kref key;
  const uint8_t *val;
  uint8_t ref[VALUE_REF];
  struct value_ref to;
  struct value_file *file;
};

static struct kept make(uint32_t klen, uint32_t vlen) {
  struct kept k = {.key = kref(bytes + below(&rng, 4096), klen), .val = bytes + below(&rng, 4096)};
  k.to.len = vlen;
  return k;
}

static enum remixdb_status put(struct world *w, struct kept *k) {
  const uint32_t len = k->to.len;
  const enum remixdb_status s = value_put(&w->log, k->key, k->val, len, k->ref, &k->file);
  if (s != REMIXDB_OK) return s;
  CHECK(value_ref_get(k->ref, VALUE_REF, &k->to) && k->to.len == len && k->to.file == k->file->number);
  return s;
}

static void put_good(struct world *w, struct kept *k) {
  OK(put(w, k));
  value_file_ref(k->file);
  value_put_end(&w->log, k->file);
}

// The whole value, then pieces at the edges of chunks and elsewhere.
static void read_good(const struct kept *k) {
  static uint8_t *got;
  if (!got) got = malloc(MOST);
  uint32_t n;
  OK(value_check(k->file, &k->to, k->key));
  OK(value_read(k->file, &k->to, k->key, 0, got, MOST, &n));
  CHECK(n == k->to.len && memcmp(got, k->val, n) == 0);
  for (uint32_t i = 0; i < 12; i++) {
    const uint32_t edge = VALUE_CHUNK * (uint32_t)below(&rng, k->to.len / VALUE_CHUNK + 1);
    uint32_t off = i & 1 ? (uint32_t)below(&rng, k->to.len + 2ull) : edge + (uint32_t)below(&rng, 3) - 1;
    if (off > k->to.len + 1) off = 0;
    const uint32_t cap = (uint32_t)below(&rng, i % 3 ? 300 : 400000), left = off < k->to.len ? k->to.len - off : 0;
    OK(value_read(k->file, &k->to, k->key, off, got, cap, &n));
    CHECK(n == (left < cap ? left : cap) && memcmp(got, k->val + off, n) == 0);
  }
}

static const uint32_t lens[] = {1, 2, 7, 4096, 65535, 65536, 65537, 131072, 131073, 700000, 1u << 20, 8u << 20, MOST};
#define LENS (sizeof(lens) / sizeof(lens[0]))

static void test_lengths(void **state) {
  (void)state;
  static const uint32_t klens[] = {0, 1, 8, 33, REMIXDB_KV_MAX};
  for (int zstd = 0; zstd < 2; zstd++) {
    struct world *const w = world_new(zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    struct kept k[LENS];
    for (uint32_t i = 0; i < LENS; i++) {
      k[i] = make(klens[i % 5], lens[i]);
      put_good(w, &k[i]);
      read_good(&k[i]);
    }
    OK(value_log_sync(&w->log));
    for (uint32_t i = 0; i < LENS; i++) {
      read_good(&k[i]);
      // Another key has no such value.
      uint8_t out[8];
      uint32_t n;
      FAILS(value_read(k[i].file, &k[i].to, kref("other key", 9), 0, out, 8, &n), REMIXDB_CORRUPT);
      struct value_file *again;
      OK(value_file_open(&w->ctx, k[i].file->number, &again));
      CHECK(again->print == k[i].file->print && again->key == k[i].file->key);
      value_file_unref(again);
      value_file_unref(k[i].file);
    }
    // Compressible bytes are stored smaller.
    const uint64_t file = atomic_load(&w->log.file_bytes), value = atomic_load(&w->log.value_bytes);
    CHECK(zstd ? file < value : file > value);
    world_end(w);
  }
}

static bool keep_any(void *arg, const struct value_file *f) {
  (void)arg, (void)f;
  return true;
}

// The files that a settling leaves in the log's list.
static uint32_t settle(struct world *w) {
  uint32_t nr = 0;
  value_log_turn(&w->log);
  value_log_drop(&w->log, value_log_settle(&w->log, keep_any, NULL));
  for (const struct value_file *f = w->log.files; f; f = f->next) nr++;
  return nr;
}

// A batch writes into extents that others write between.
static void test_batch(void **state) {
  (void)state;
  for (int zstd = 0; zstd < 2; zstd++) {
    struct world *const w = world_new(zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    w->log.full = 3u << 20;
    enum { NR = 2000 };
    struct kept *const k = calloc(NR, sizeof(*k));
    struct value_batch b[2] = {{.log = &w->log}, {.log = &w->log}};
    for (uint32_t i = 0; i < NR; i++) {
      k[i] = make((uint32_t)below(&rng, 40), 1 + (uint32_t)below(&rng, i % 100 ? 9000 : 400000));
      const uint32_t len = k[i].to.len;
      if (i % 7 == 0) {
        put_good(w, &k[i]);
        continue;
      }
      OK(value_batch_put(&b[i & 1], k[i].key, k[i].val, len, k[i].ref));
      CHECK(value_ref_get(k[i].ref, VALUE_REF, &k[i].to) && k[i].to.len == len);
      k[i].file = value_set_find(&b[i & 1].files, k[i].to.file);
      CHECK(k[i].file);
      value_file_ref(k[i].file);
    }
    OK(value_batch_end(&b[0]));
    OK(value_batch_end(&b[1]));
    CHECK(b[0].files.nr > 2);
    OK(value_log_sync(&w->log));
    // Its files are in use until it ends, and need no descriptors.
    CHECK(settle(w) >= b[0].files.nr && simdisk_open_files(w->disk) <= 1);
    for (uint32_t i = 0; i < b[0].files.nr; i++) CHECK(value_log_has(&w->log, b[0].files.files[i]));
    value_batch_fini(&b[0]);
    value_batch_fini(&b[1]);
    CHECK(settle(w) == 0);
    for (uint32_t i = 0; i < NR; i++) {
      read_good(&k[i]);
      value_file_unref(k[i].file);
    }
    free(k);
    world_end(w);
  }
}

// The bytes that a batch has written are on their way to the disk while it goes on, a few megabytes at a time.
static uint64_t outs, out_bytes, out_end;
static bool out_wrong;
static int note_out(struct env *e, int fd, uint64_t off, uint64_t len) {
  (void)e, (void)fd;
  outs++;
  out_bytes += len;
  out_wrong = out_wrong || (off != VALUE_HEAD && off != out_end);  // in order, from the beginning of a file
  out_end = off + len;
  return 0;
}

static void test_write_out(void **state) {
  (void)state;
  for (uint32_t vlen = 5000; vlen < 2000000; vlen = vlen * 5 + 7) {
    struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
    struct env env = *w->sst.env;
    struct env_ops ops = *env.ops;
    ops.write_out = note_out;
    env.ops = &ops;
    w->sst.env = &env;
    w->log.full = 24u << 20;
    struct value_batch b = {.log = &w->log};
    outs = out_bytes = out_end = 0;
    out_wrong = false;
    uint64_t all = 0;
    for (uint8_t ref[VALUE_REF]; all < 60u << 20; all += vlen) OK(value_batch_put(&b, kref("k", 1), bytes, vlen, ref));
    OK(value_batch_end(&b));
    value_batch_fini(&b);
    CHECK(!out_wrong && out_bytes > all / 4 * 3 && out_bytes < all + all / 8 && out_bytes / outs >= 4u << 20);
    CHECK(out_bytes / outs < 8u << 20);
    world_end(w);
  }
}

static bool keep_all(void *arg, const struct value_file *f) {
  (void)f;
  return *(bool *)arg;
}

static uint32_t in_list(struct world *w) {
  uint32_t nr = 0;
  for (const struct value_file *f = w->log.files; f; f = f->next) nr++;
  return nr;
}

// Full files leave the list when they are synced and not in use; those that nobody wants are removed.
static void test_files(void **state) {
  (void)state;
  struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
  w->log.full = 1u << 20;
  bool keep = true;
  struct kept used = make(3, 1000), big = make(3, 600000);
  OK(put(w, &used));
  put_good(w, &big);  // a file of its own
  CHECK(big.file != used.file && big.file->full && !used.file->full && big.to.at == VALUE_HEAD);
  for (uint32_t i = 0; i < 30; i++) {
    struct kept k = make(3, 100000);
    put_good(w, &k);
    value_file_unref(k.file);
  }
  const uint32_t all = in_list(w);
  CHECK(all >= 4 && used.file->full);
  value_log_drop(&w->log, value_log_settle(&w->log, keep_all, &keep));
  CHECK(in_list(w) == all);  // not synced
  OK(value_log_sync(&w->log));
  value_log_drop(&w->log, value_log_settle(&w->log, keep_all, &keep));
  CHECK(in_list(w) == 2);  // the one in use, and the active one
  read_good(&big);
  keep = false;
  value_log_drop(&w->log, value_log_settle(&w->log, keep_all, &keep));
  CHECK(in_list(w) == 2);
  value_file_ref(used.file);
  value_put_end(&w->log, used.file);
  value_log_turn(&w->log);
  value_log_drop(&w->log, value_log_settle(&w->log, keep_all, &keep));
  CHECK(in_list(w) == 0 && simdisk_size(w->disk, "/000001.val") > 0);
  read_good(&used);  // its holder still reads it
  value_file_unref(used.file);
  CHECK(simdisk_size(w->disk, "/000001.val") < 0 && simdisk_size(w->disk, "/000002.val") > 0);
  value_file_retire(big.file);
  value_file_unref(big.file);
  CHECK(simdisk_size(w->disk, "/000002.val") < 0);
  world_end(w);
}

// Every flipped bit of a record is found, or it is in the zeros between records.
static void test_flips(void **state) {
  (void)state;
  for (int zstd = 0; zstd < 2; zstd++) {
    struct world *const w = world_new(zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    struct kept first = make(5, 10), k = make(13, 66000);
    put_good(w, &first);
    put_good(w, &k);
    OK(value_log_sync(&w->log));
    const uint64_t size = (uint64_t)simdisk_size(w->disk, "/000001.val");
    const uint64_t head_end = k.to.at + value_data_at(13, 66000);
    uint64_t unseen = 0;
    for (uint64_t off = k.to.at; off < size; off += off < head_end + 64 ? 1 : 1 + below(&rng, 500 * SLOW)) {
      const uint8_t mask = (uint8_t)(1u << below(&rng, 8));
      CHECK(simdisk_flip(w->disk, "/000001.val", off, mask));
      const enum remixdb_status s = value_check(k.file, &k.to, k.key);
      if (s == REMIXDB_OK) unseen++;
      else FAILS(s, REMIXDB_CORRUPT);
      CHECK(simdisk_flip(w->disk, "/000001.val", off, mask));
    }
    CHECK(unseen == value_entries_at(13) - VALUE_REC_HEAD - 13);  // the zeros behind the key
    OK(value_check(k.file, &k.to, k.key));
    // A cut file.
    OK(env_truncate(simdisk_env(w->disk), k.file->fd, "x", size - 8));
    FAILS(value_check(k.file, &k.to, k.key), REMIXDB_CORRUPT);
    value_file_unref(first.file);
    value_file_unref(k.file);
    world_end(w);
  }
}

// The header.
static void test_header(void **state) {
  (void)state;
  struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
  struct kept k = make(5, 10);
  put_good(w, &k);
  OK(value_log_sync(&w->log));
  struct value_file *f;
  for (uint64_t off = 0; off < VALUE_HEAD; off++) {
    CHECK(simdisk_flip(w->disk, "/000001.val", off, 4));
    FAILS(value_file_open(&w->ctx, 1, &f), REMIXDB_CORRUPT);
    CHECK(simdisk_flip(w->disk, "/000001.val", off, 4));
  }
  FAILS(value_file_open(&w->ctx, 2, &f), REMIXDB_CORRUPT);
  w->sst.store_id++;
  FAILS(value_file_open(&w->ctx, 1, &f), REMIXDB_CORRUPT);
  w->sst.store_id--;
  uint8_t head[VALUE_HEAD];
  CHECK(simdisk_peek(w->disk, "/000001.val", 0, head, sizeof(head)));
  store32le(head + 8, VALUE_FORMAT + 1);
  store64le(head + 56, hash64(head, 56));
  CHECK(simdisk_poke(w->disk, "/000001.val", 0, head, sizeof(head)));
  FAILS(value_file_open(&w->ctx, 1, &f), REMIXDB_VERSION);
  value_file_unref(k.file);
  world_end(w);
}

// A reference that was changed never yields bytes.
static void test_wrong_references(void **state) {
  (void)state;
  struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
  struct kept k[3];
  for (uint32_t i = 0; i < 3; i++) {
    k[i] = make(8, 70000);
    k[i].key = k[0].key;  // the same key: only the reference tells them apart
    put_good(w, &k[i]);
  }
  uint8_t *const out = malloc(200000);
  uint32_t n;
  for (uint32_t i = 0; i < 3; i++) {
    for (uint32_t j = 0; j < 3; j++) {
      struct value_ref r = k[i].to;
      r.at = k[j].to.at;
      FAILS(value_read(k[i].file, &r, k[i].key, 0, out, 200000, &n), i == j ? REMIXDB_OK : REMIXDB_CORRUPT);
    }
  }
  for (uint32_t bit = 0; bit < 8 * VALUE_REF; bit++) {
    uint8_t ref[VALUE_REF];
    struct value_ref r;
    memcpy(ref, k[1].ref, VALUE_REF);
    ref[bit / 8] ^= (uint8_t)(1u << bit % 8);
    if (!value_ref_get(ref, VALUE_REF, &r) || r.file != 1) continue;
    CHECK(r.len == value_ref_len(ref));
    FAILS(value_read(k[1].file, &r, k[1].key, 0, out, 100, &n), REMIXDB_CORRUPT);
  }
  struct value_ref r;
  CHECK(!value_ref_get(k[0].ref, VALUE_REF - 1, &r) && !value_ref_get(k[0].ref, VALUE_REF + 1, &r));
  free(out);
  for (uint32_t i = 0; i < 3; i++) value_file_unref(k[i].file);
  world_end(w);
}

// A file whose numbers are changed together with their checksums is refused without harm.
static void test_crafted(void **state) {
  (void)state;
  struct world *const w = world_new(REMIXDB_COMPRESSION_ZSTD);
  struct kept k = make(4, 200000);
  put_good(w, &k);
  OK(value_log_sync(&w->log));
  const uint64_t at = k.to.at, entries = at + value_entries_at(4);
  uint8_t e[4 * VALUE_ENTRY], was[4 * VALUE_ENTRY], out[100];
  uint32_t n;
  CHECK(simdisk_peek(w->disk, "/000001.val", entries, was, sizeof(was)));
  for (uint32_t i = 0; i < 2000 / SLOW; i++) {
    memcpy(e, was, sizeof(e));
    const uint32_t c = (uint32_t)below(&rng, 4);
    const uint64_t to = chance(&rng, 3) ? below(&rng, UINT64_MAX) : below(&rng, 300000);
    if (to == load64le(e + c * VALUE_ENTRY)) continue;
    store64le(e + c * VALUE_ENTRY, to);
    CHECK(simdisk_poke(w->disk, "/000001.val", entries, e, sizeof(e)));
    FAILS(value_check(k.file, &k.to, k.key), REMIXDB_CORRUPT);
  }
  CHECK(simdisk_poke(w->disk, "/000001.val", entries, was, sizeof(was)));
  // A head that claims more than the file has.
  uint8_t head[VALUE_REC_HEAD + 8];
  CHECK(simdisk_peek(w->disk, "/000001.val", at, head, sizeof(head)));
  struct value_rec rec;
  CHECK(value_rec_get(head, sizeof(head), k.file->key, at, &rec));
  rec.vlen = UINT32_MAX;
  rec.stored = UINT32_MAX;
  uint8_t put_at[VALUE_REC_HEAD + 8];
  value_rec_put(put_at, k.file->key, at, k.key.ptr, &rec);
  CHECK(simdisk_poke(w->disk, "/000001.val", at, put_at, VALUE_REC_HEAD + 4));
  struct value_ref r = k.to;
  r.len = UINT32_MAX;
  r.check = (uint32_t)rec.sum;
  FAILS(value_read(k.file, &r, k.key, 0, out, 100, &n), REMIXDB_CORRUPT);
  FAILS(value_read(k.file, &r, k.key, UINT32_MAX - 100, out, 100, &n), REMIXDB_CORRUPT);
  value_file_unref(k.file);
  world_end(w);
}

// A full disk refuses the value and takes the next one that fits; the file has no hole then.
static void test_full_disk(void **state) {
  (void)state;
  for (int zstd = 0; zstd < 2; zstd++) {
    struct world *const w = world_new(zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    struct kept a = make(4, 5000), big = make(4, 300000), own = make(4, MOST), b = make(4, 6000);
    put_good(w, &a);
    simdisk_space(w->disk, simdisk_used(w->disk) + 8192);
    FAILS(put(w, &big), REMIXDB_NOSPACE);
    FAILS(put(w, &own), REMIXDB_NOSPACE);
    put_good(w, &b);
    // The place behind the first value: no more than a value takes.
    CHECK(b.file == a.file && b.to.at > a.to.at && b.to.at <= a.to.at + value_cost(4, 5000));
    OK(value_log_sync(&w->log));
    simdisk_space(w->disk, UINT64_MAX);
    put_good(w, &big);
    put_good(w, &own);
    OK(value_log_sync(&w->log));
    struct kept *const all[] = {&a, &b, &big, &own};
    for (uint32_t i = 0; i < 4; i++) {
      read_good(all[i]);
      value_file_unref(all[i]->file);
    }
    world_end(w);
  }
}

// Full files that wait for a sync keep a quarter of the pool's places at most. These end a file: a value that has a
// file for itself, the next value of the active file, a batch, and the end of a write beside a sync.
static void test_descriptors(void **state) {
  (void)state;
  struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
  struct kept all[40];
  w->log.full = 1u << 20;
  for (uint32_t i = 0; i < 18; i++) {
    all[i] = make(4, 300000);
    put_good(w, &all[i]);
    CHECK_SAYS(simdisk_open_files(w->disk) <= 4, "%u files", simdisk_open_files(w->disk));
  }
  CHECK(simdisk_open_files(w->disk) > 0 && in_list(w) == 18);
  CHECK(!fdpool_hold(w->fds, 4));  // they count
  for (uint32_t i = 18; i < 40; i++) {
    all[i] = make(4, 200000);
    put_good(w, &all[i]);
    CHECK(simdisk_open_files(w->disk) <= 5);  // with the active one
  }
  struct value_batch b = {.log = &w->log};
  for (uint32_t i = 0; i < 40; i++) {
    const struct kept k = make(4, i % 2 ? 300000 : 200000);
    uint8_t ref[VALUE_REF];
    OK(value_batch_put(&b, k.key, k.val, k.to.len, ref));
    CHECK(simdisk_open_files(w->disk) <= 5);
  }
  OK(value_batch_end(&b));
  value_batch_fini(&b);
  // the sync comes while the value is in use
  value_log_turn(&w->log);
  OK(value_log_sync(&w->log));
  CHECK(simdisk_open_files(w->disk) == 0 && fdpool_hold(w->fds, 4));
  struct kept last = make(4, 300000);
  OK(put(w, &last));
  OK(value_log_sync(&w->log));
  CHECK(simdisk_open_files(w->disk) == 1);
  value_file_ref(last.file);
  value_put_end(&w->log, last.file);
  CHECK(simdisk_open_files(w->disk) == 0);
  value_file_unref(last.file);
  // no place at all: each value is durable at once
  last = make(4, 300000);
  const uint64_t syncs = atomic_load(&w->log.syncs);
  put_good(w, &last);
  CHECK(simdisk_open_files(w->disk) == 0 && atomic_load(&w->log.syncs) == syncs + 1);
  read_good(&last);
  value_file_unref(last.file);
  // a sync that fails shows at the next call
  last = make(4, 300000);
  simdisk_fault(w->disk, SIMDISK_SYNC, 0, 1, EIO);
  put_good(w, &last);
  CHECK(simdisk_open_files(w->disk) <= 1);
  struct kept next = make(4, 300);
  FAILS(put(w, &next), REMIXDB_IO);
  FAILS(value_log_sync(&w->log), REMIXDB_IO);
  value_file_unref(last.file);
  fdpool_unhold(w->fds, 4);
  for (uint32_t i = 0; i < 40; i++) {
    read_good(&all[i]);
    value_file_unref(all[i].file);
  }
  value_log_drop(&w->log, value_log_settle(&w->log, keep_any, NULL));
  CHECK(fdpool_hold(w->fds, 4));
  fdpool_unhold(w->fds, 4);
  world_end(w);
}

// The values of one write wait for each other: their files stay in the list, and need no descriptors beyond the share.
static void test_kept(void **state) {
  (void)state;
  enum { NR = 40 };
  for (uint32_t held = 0; held <= 4; held += 4) {
    struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
    struct kept all[NR];
    uint32_t most = 0;
    bool keep = false;
    w->log.full = 1u << 20;
    if (held) CHECK(fdpool_hold(w->fds, held));
    for (uint32_t i = 0; i < NR; i++) {
      all[i] = make(4, i % 2 ? 300000 : 200000);  // those of 200,000 bytes share files
      OK(put(w, &all[i]));
      CHECK(simdisk_open_files(w->disk) <= 4 - held + 2);  // with the active one and that of the value
      OK(value_put_keep(&w->log, all[i].file));
      if (simdisk_open_files(w->disk) > most) most = simdisk_open_files(w->disk);
    }
    CHECK_SAYS(most == 4 - held + 1, "%u files", most);
    value_log_turn(&w->log);
    OK(value_log_sync(&w->log));
    CHECK(simdisk_open_files(w->disk) == 0);
    // nobody else wants the files
    const uint32_t nr = in_list(w);
    CHECK(nr == NR / 2 + NR / 2 / 5 && (held || fdpool_hold(w->fds, 4)));
    if (!held) fdpool_unhold(w->fds, 4);
    value_log_drop(&w->log, value_log_settle(&w->log, keep_all, &keep));
    CHECK(in_list(w) == nr);
    for (uint32_t i = 0; i < NR; i++) read_good(&all[i]);
    for (uint32_t i = 0; i < NR; i++) value_kept_end(&w->log, all[i].file);
    CHECK(in_list(w) == nr);
    value_log_drop(&w->log, value_log_settle(&w->log, keep_all, &keep));
    CHECK(in_list(w) == 0 && simdisk_used(w->disk) == 0);
    if (held) fdpool_unhold(w->fds, held);
    world_end(w);
  }
}

// A file that several values of a write share is in use until the last of them ends.
static void test_kept_shared(void **state) {
  (void)state;
  struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
  struct kept a = make(4, 5000), b = make(4, 6000);
  bool keep = false;
  OK(put(w, &a));
  OK(value_put_keep(&w->log, a.file));
  OK(put(w, &b));
  CHECK(a.file == b.file);
  value_log_turn(&w->log);
  OK(value_log_sync(&w->log));
  CHECK(simdisk_open_files(w->disk) == 1);  // b may still be written
  OK(value_put_keep(&w->log, b.file));
  CHECK(simdisk_open_files(w->disk) == 0);
  value_kept_end(&w->log, a.file);
  value_log_drop(&w->log, value_log_settle(&w->log, keep_all, &keep));
  CHECK(in_list(w) == 1);
  read_good(&b);
  value_kept_end(&w->log, b.file);
  value_log_drop(&w->log, value_log_settle(&w->log, keep_all, &keep));
  CHECK(in_list(w) == 0);
  world_end(w);
}

// Without a place of the pool a full file is synced at once. If that fails, so does a write of many values. A call that
// has succeeded, or has failed by itself, shows nothing of it.
static void test_sync_fails(void **state) {
  (void)state;
  enum { KEEPS, FAILED, GOOD, NO_FILE, NEXT, WAYS };
  for (int way = 0; way < WAYS; way++) {
    struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
    struct kept a = make(4, 5000), next = make(4, 1000);
    w->log.full = 1u << 20;
    CHECK(fdpool_hold(w->fds, 4));
    for (uint32_t i = 0; i < 4; i++) {
      if (i) value_file_unref(a.file);
      a = make(4, 240000);
      put_good(w, &a);
    }
    struct kept b = make(4, way == NO_FILE || way == NEXT ? 240000 : 300000);
    if (way != NO_FILE && way != NEXT) OK(put(w, &b));
    simdisk_fault(w->disk, SIMDISK_SYNC, 0, 1, EIO);
    if (way == KEEPS) {
      FAILS(value_put_keep(&w->log, b.file), REMIXDB_IO);
      CHECK(strstr(err_msg(), "sync"));
      value_kept_end(&w->log, b.file);
    } else if (way == NO_FILE) {  // the active file is full, and there is no other
      simdisk_fault(w->disk, SIMDISK_OPEN, 0, 1, EMFILE);
      FAILS(put(w, &b), REMIXDB_NOMEM);
      CHECK_SAYS(strstr(err_msg(), "raise the limit"), "\"%s\"", err_msg());
    } else if (way == NEXT) {  // no value comes after the file that could not be synced
      FAILS(put(w, &b), REMIXDB_IO);
      CHECK_SAYS(strstr(err_msg(), "sync"), "\"%s\"", err_msg());
      CHECK(atomic_load(&w->log.values) == 4 && w->log.active->writers == 0);
      CHECK(value_file_size(w->log.active) == VALUE_HEAD);
    } else {
      if (way == FAILED) FAILS(err_set(REMIXDB_INVALID, "other words"), REMIXDB_INVALID);
      else err_finish(REMIXDB_OK);
      value_put_end(&w->log, b.file);
      CHECK_SAYS(strcmp(err_msg(), way == FAILED ? "other words" : "") == 0, "\"%s\"", err_msg());
    }
    CHECK(simdisk_open_files(w->disk) <= 1);
    // the sync's error has its own message
    FAILS(put(w, &next), REMIXDB_IO);
    CHECK_SAYS(strstr(err_msg(), "sync"), "way %d: \"%s\"", way, err_msg());
    FAILS(value_log_sync(&w->log), REMIXDB_IO);
    read_good(&a);
    value_file_unref(a.file);
    fdpool_unhold(w->fds, 4);
    world_end(w);
  }
}

// A rewind after a sync that found the disk full closes the active file to further values. Its descriptor has a place
// until the next sync, or is closed at once if it needs none.
static void test_rewind_ends(void **state) {
  (void)state;
  for (int way = 0; way < 3; way++) {  // the active file needs no sync; needs one; and there is no place
    struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
    struct kept a = make(4, 5000), own = make(4, 300000), more = make(4, 6000);
    w->log.full = 1u << 20;
    put_good(w, &a);
    OK(value_log_sync(&w->log));
    const struct value_mark mark = value_log_mark(&w->log);
    if (way) put_good(w, &more);
    put_good(w, &own);
    simdisk_fault(w->disk, SIMDISK_SYNC, 0, 1, ENOSPC);  // the newest file's
    FAILS(value_log_sync(&w->log), REMIXDB_NOSPACE);
    if (way) value_file_unref(more.file);
    value_file_unref(own.file);
    if (way == 2) CHECK(fdpool_hold(w->fds, 4));
    value_log_rewind(&w->log, &mark);
    CHECK(in_list(w) == 1 && a.file->full && !value_log_takes(&w->log, a.file));
    CHECK_SAYS(simdisk_open_files(w->disk) == (way ? 1 : 0), "way %d: %u files", way, simdisk_open_files(w->disk));
    if (way == 1) CHECK(fdpool_hold(w->fds, 3) && !fdpool_hold(w->fds, 1));
    if (way == 1) fdpool_unhold(w->fds, 3);
    struct kept next = make(4, 7000);
    put_good(w, &next);
    CHECK(next.file != a.file);
    OK(value_log_sync(&w->log));
    CHECK(simdisk_open_files(w->disk) == 1);
    if (way == 2) fdpool_unhold(w->fds, 4);
    CHECK(fdpool_hold(w->fds, 4));
    fdpool_unhold(w->fds, 4);
    read_good(&a);
    value_file_unref(a.file);
    value_file_unref(next.file);
    world_end(w);
  }
}

// A sync that found the disk full may have been that of values before an inner mark, which stay. So the log has failed
// until the rewind to a mark before them.
static void test_rewind_inner(void **state) {
  (void)state;
  struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
  struct kept a = make(4, 5000), b = make(4, 6000), next = make(4, 7000);
  const struct value_mark outer = value_log_mark(&w->log);
  put_good(w, &a);
  struct value_mark inner = value_log_mark(&w->log);
  inner.inner = true;
  put_good(w, &b);
  simdisk_fault(w->disk, SIMDISK_SYNC, 0, 1, ENOSPC);
  FAILS(value_log_sync(&w->log), REMIXDB_NOSPACE);
  value_file_unref(b.file);
  value_log_rewind(&w->log, &inner);
  FAILS(value_log_sync(&w->log), REMIXDB_NOSPACE);
  value_file_unref(a.file);
  value_log_rewind(&w->log, &outer);
  OK(value_log_sync(&w->log));
  put_good(w, &next);
  OK(value_log_sync(&w->log));
  read_good(&next);
  value_file_unref(next.file);
  world_end(w);
}

// A thread that pauses keeps no descriptor beyond its share, and goes on with the same file.
static void test_pause(void **state) {
  (void)state;
  for (int full = 0; full < 2; full++) {
    struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
    struct kept all[30];
    struct value_batch b = {.log = &w->log};
    if (full) CHECK(fdpool_hold(w->fds, 4));
    for (uint32_t i = 0; i < 30; i++) {
      all[i] = make(4, i % 7 == 3 ? 300000 : 90000);
      OK(value_batch_put(&b, all[i].key, all[i].val, all[i].to.len, all[i].ref));
      OK(value_log_pause(&w->log));
      CHECK(simdisk_open_files(w->disk) == (full ? 0 : 1));
      CHECK(full || !fdpool_hold(w->fds, 4));
    }
    OK(value_batch_end(&b));
    CHECK(in_list(w) == 1);
    for (uint32_t i = 0; i < 30; i++) {
      CHECK(value_ref_get(all[i].ref, VALUE_REF, &all[i].to));
      all[i].file = w->log.files;
      read_good(&all[i]);
    }
    // the file cannot be opened again: the write fails, and so does all that follows
    OK(value_log_pause(&w->log));
    const uint32_t open = simdisk_open_files(w->disk);
    struct kept last = make(4, 300000);
    if (full) {
      simdisk_fault(w->disk, SIMDISK_OPEN, 0, 1, EIO);
      FAILS(value_batch_put(&b, last.key, last.val, last.to.len, last.ref), REMIXDB_IO);
      FAILS(value_log_sync(&w->log), REMIXDB_IO);
      CHECK(simdisk_open_files(w->disk) == open);
    }
    value_batch_fini(&b);
    if (full) fdpool_unhold(w->fds, 4);
    world_end(w);
  }
}

// A value that finds the disk full leaves no file of its own: no descriptor and no room.
static void test_own_files_go(void **state) {
  (void)state;
  for (int zstd = 0; zstd < 2; zstd++) {
    struct world *const w = world_new(zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    struct kept a = make(4, 5000), big = make(4, 600000), own = make(4, MOST);
    w->log.full = 1u << 20;
    put_good(w, &a);
    const uint32_t open = simdisk_open_files(w->disk);
    const uint64_t used = simdisk_used(w->disk);
    simdisk_space(w->disk, used + 8192);
    for (uint32_t i = 0; i < 20; i++) {
      FAILS(put(w, &big), REMIXDB_NOSPACE);
      FAILS(put(w, &own), REMIXDB_NOSPACE);
    }
    CHECK_SAYS(in_list(w) == 1 && simdisk_open_files(w->disk) == open, "%u files", in_list(w));
    CHECK(simdisk_used(w->disk) == used && simdisk_size(w->disk, "/000002.val") < 0);
    simdisk_space(w->disk, UINT64_MAX);
    put_good(w, &own);
    CHECK(in_list(w) == 2);
    OK(value_log_sync(&w->log));
    read_good(&a);
    read_good(&own);
    value_file_unref(a.file);
    value_file_unref(own.file);
    world_end(w);
  }
}

// A failed sync of a log that is never rewound is no passing want.
static void test_lasts(void **state) {
  (void)state;
  static const int errors[] = {EIO, ENOSPC, ENOMEM};
  static const enum remixdb_status passing[] = {REMIXDB_IO, REMIXDB_NOSPACE, REMIXDB_NOMEM};
  for (int i = 0; i < 6; i++) {
    struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
    struct kept a = make(4, 5000), b = make(4, 6000);
    char reason[80];
    w->log.lasts = i % 2;
    put_good(w, &a);
    OK(value_log_error(&w->log));
    simdisk_fault(w->disk, SIMDISK_SYNC, 0, 1, errors[i / 2]);
    const enum remixdb_status s = w->log.lasts ? REMIXDB_IO : passing[i / 2];
    FAILS(value_log_sync(&w->log), s);
    FAILS(value_log_sync(&w->log), s);
    FAILS(put(w, &b), s);
    FAILS(value_log_error(&w->log), s);
    CHECK(strstr(err_msg(), err_reason(errors[i / 2], reason, sizeof(reason))));
    value_file_unref(a.file);
    world_end(w);
  }
  struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);  // a write's want stays a passing one
  struct kept a = make(4, 5000);
  w->log.lasts = true;
  simdisk_fault(w->disk, SIMDISK_WRITE, 0, 1, ENOSPC);
  FAILS(put(w, &a), REMIXDB_NOSPACE);
  OK(value_log_error(&w->log));
  put_good(w, &a);
  OK(value_log_sync(&w->log));
  value_file_unref(a.file);
  world_end(w);
}

// Any other failure of a write or a sync is sticky.
static void test_sticky(void **state) {
  (void)state;
  for (int sync = 0; sync < 2; sync++) {
    struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
    struct kept a = make(4, 5000), b = make(4, 300000);
    put_good(w, &a);
    simdisk_fault(w->disk, sync ? SIMDISK_SYNC : SIMDISK_WRITE, 0, 1, EIO);
    FAILS(sync ? value_log_sync(&w->log) : put(w, &b), REMIXDB_IO);
    FAILS(put(w, &b), REMIXDB_IO);
    FAILS(value_log_sync(&w->log), REMIXDB_IO);
    read_good(&a);
    value_file_unref(a.file);
    world_end(w);
  }
}

static void test_memory(void **state) {
  (void)state;
  for (int64_t nth = 1, failed = 1; failed; nth++) {
    struct world *const w = world_new(nth & 1 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    struct kept a = make(4, 300000);
    struct value_batch b = {.log = &w->log};
    uint8_t ref[VALUE_REF];
    fault_mem_set(nth / 2 + 1);
    enum remixdb_status s = put(w, &a);
    if (s == REMIXDB_OK) {
      if ((s = value_check(a.file, &a.to, a.key)) == REMIXDB_OK) s = value_batch_put(&b, a.key, a.val, 3000, ref);
      if (s == REMIXDB_OK) s = value_batch_end(&b);
      value_put_end(&w->log, a.file);
    }
    value_batch_fini(&b);
    failed = fault_mem_end();
    FAILS(s, failed ? REMIXDB_NOMEM : REMIXDB_OK);
    put_good(w, &a);
    read_good(&a);
    value_file_unref(a.file);
    world_end(w);
  }
}

// Values that were synced are there after a power cut, and no value is ever taken for another one.
static void test_power_cuts(void **state) {
  (void)state;
  for (uint32_t seed = 1; seed <= 60 / SLOW + 2; seed++) {
    struct world *const w = world_new(seed & 1 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    w->log.full = 300000;
    enum { NR = 40 };
    struct kept k[NR];
    const uint32_t synced = (uint32_t)below(&rng, NR);
    for (uint32_t i = 0; i < NR; i++) {
      k[i] = make((uint32_t)below(&rng, 30), 1 + (uint32_t)below(&rng, chance(&rng, 4) ? 200000 : 9000));
      put_good(w, &k[i]);
      value_file_unref(k[i].file);
      if (i == synced) OK(value_log_sync(&w->log));
    }
    struct world *const c = world_on(simdisk_crash(w->disk, seed), REMIXDB_COMPRESSION_NONE);
    for (uint32_t i = 0; i < NR; i++) {
      struct value_file *f = NULL;
      enum remixdb_status s = value_file_open(&c->ctx, k[i].to.file, &f);
      if (s == REMIXDB_OK) s = value_check(f, &k[i].to, k[i].key);
      if (i > synced && s != REMIXDB_OK) {
        FAILS(s, REMIXDB_CORRUPT);
      } else {
        OK(s);
        k[i].file = f;
        read_good(&k[i]);
      }
      value_file_unref(f);
    }
    world_end(c);
    world_end(w);
  }
}

// ---- threads

enum { THREADS = 4, EACH = 300 };
struct worker_arg {
  struct world *w;
  uint64_t rng;
  uint32_t bad;
};

static void *write_and_read(void *arg) {
  struct worker_arg *const a = arg;
  uint8_t *const got = malloc(100000);
  for (uint32_t i = 0; i < EACH / SLOW + 20; i++) {
    uint8_t ref[VALUE_REF];
    struct value_file *f;
    struct value_ref to;
    const uint32_t len = 1 + (uint32_t)below(&a->rng, chance(&a->rng, 5) ? 99000 : 5000);
    const uint8_t *const val = bytes + below(&a->rng, 4096);
    const struct kref key = kref(bytes + below(&a->rng, 4096), (uint32_t)below(&a->rng, 20));
    if (value_put(&a->w->log, key, val, len, ref, &f) != REMIXDB_OK) {
      a->bad++;
      continue;
    }
    uint32_t n = 0;
    const bool good = value_ref_get(ref, VALUE_REF, &to) && value_read(f, &to, key, 0, got, 100000, &n) == REMIXDB_OK &&
                      n == len && memcmp(got, val, len) == 0;
    a->bad += !good;
    if (i % 50 == 0 && value_log_sync(&a->w->log) != REMIXDB_OK) a->bad++;
    value_put_end(&a->w->log, f);
  }
  free(got);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  struct world *const w = world_new(REMIXDB_COMPRESSION_NONE);
  w->log.full = 1u << 20;
  pthread_t t[THREADS];
  struct worker_arg a[THREADS];
  bool keep = true;
  for (uint32_t i = 0; i < THREADS; i++) {
    a[i] = (struct worker_arg){w, i + 1, 0};
    assert_int_equal(pthread_create(&t[i], NULL, write_and_read, &a[i]), 0);
  }
  for (uint32_t i = 0; i < 20; i++) {
    value_log_drop(&w->log, value_log_settle(&w->log, keep_all, &keep));
    time_sleep_ns(1000000);
  }
  for (uint32_t i = 0; i < THREADS; i++) {
    (void)pthread_join(t[i], NULL);
    CHECK(a[i].bad == 0);
  }
  world_end(w);
}

static int setup(void **state) {
  (void)state;
  bytes = malloc(MOST + 80000);
  uint64_t r = 7;
  // Half of each KiB is noise, so zstd makes it smaller, and the rest differs from place to place.
  for (size_t i = 0; i < MOST + 80000; i++) bytes[i] = i % 1024 < 512 ? (uint8_t)rng_next(&r) : (uint8_t)(i >> 12);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lengths),
      cmocka_unit_test(test_batch),
      cmocka_unit_test(test_files),
      cmocka_unit_test(test_write_out),
      cmocka_unit_test(test_flips),
      cmocka_unit_test(test_header),
      cmocka_unit_test(test_wrong_references),
      cmocka_unit_test(test_crafted),
      cmocka_unit_test(test_full_disk),
      cmocka_unit_test(test_own_files_go),
      cmocka_unit_test(test_descriptors),
      cmocka_unit_test(test_pause),
      cmocka_unit_test(test_lasts),
      cmocka_unit_test(test_sticky),
      cmocka_unit_test(test_memory),
      cmocka_unit_test(test_power_cuts),
      cmocka_unit_test(test_kept),
      cmocka_unit_test(test_kept_shared),
      cmocka_unit_test(test_sync_fails),
      cmocka_unit_test(test_rewind_ends),
      cmocka_unit_test(test_rewind_inner),
      cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
