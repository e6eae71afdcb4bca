// SPDX-License-Identifier: Apache-2.0
//
// Data blocks, records and varints from any bytes. The target reads an accepted block record by record and writes it
// again with the builder.
//
// Input: flags (bit 0: the head is as expected, 1: the checksum is right, 2: the offsets and the count fit the
// records), pages, count, then the block from its byte 12 on.
#include "table/block.h"
#include "tests/fuzz/fuzz.h"

#define TABLE 7u
#define BLOCK 3u
#define PATH "block"

static void try_records(const uint8_t *data, size_t size) {
  uint8_t *const own = malloc(size ? size : 1);  // a buffer of exactly its size
  FUZZ_CHECK(own != NULL);
  if (size) memcpy(own, data, size);
  const uint8_t *p = own, *const end = own + size;
  struct kv_rec r;
  for (const uint8_t *next; (next = kv_rec_get(p, end, KV_IN_TABLE, &r)) != NULL; p = next) {
    FUZZ_CHECK(fuzz_fits_table(&r));
    FUZZ_CHECK(r.key > p && r.val == r.key + r.klen && r.val + r.vlen == next && next <= end);
    fuzz_touch(p, (size_t)(next - p));
    uint8_t *const again = fuzz_alloc(kv_rec_size(&r));
    struct kv_rec r2;
    const uint8_t *const stop = kv_rec_put(again, &r);
    FUZZ_CHECK((size_t)(stop - again) == kv_rec_size(&r) && stop - again <= next - p);
    FUZZ_CHECK(kv_rec_get(again, stop, KV_IN_TABLE, &r2) == stop && fuzz_same_record(&r, &r2));
    free(again);
    if (next == end) break;
  }
  uint32_t v;
  const uint8_t *const after = kv_varint_get(own, end, &v);
  if (after) {
    uint8_t buf[5];
    uint32_t v2;
    const uint8_t *const stop = kv_varint_put(buf, v);
    FUZZ_CHECK(after <= end && stop - buf == (ptrdiff_t)kv_varint_size(v) && kv_varint_get(buf, stop, &v2) == stop &&
               v2 == v);
  }
  free(own);
}

// Makes count and offsets fit the records, as far as there are any.
static void repair(uint8_t *buf, uint32_t pages, uint32_t *count, const uint8_t *body, size_t len) {
  const uint8_t *p = body, *const end = body + len;
  struct kv_rec r;
  uint32_t lens[BLOCK_RECORDS_MAX], nr = 0, used = 0;
  while (nr < BLOCK_RECORDS_MAX) {
    const uint8_t *const next = kv_rec_get(p, end, KV_IN_TABLE, &r);
    if (!next || BLOCK_HEAD + 2 * (nr + 1) + used + (uint32_t)(next - p) > pages * BLOCK_PAGE) break;
    lens[nr++] = (uint32_t)(next - p);
    used += (uint32_t)(next - p);
    p = next;
  }
  if (nr == 0) return;
  memset(buf + BLOCK_HEAD, 0, pages * BLOCK_PAGE - BLOCK_HEAD);
  uint32_t at = BLOCK_HEAD + 2 * nr;
  memcpy(buf + at, body, used);
  for (uint32_t i = 0; i < nr; i++) {
    store16le(buf + BLOCK_HEAD + 2 * i, at);
    at += lens[i];
  }
  *count = nr;
}

static void read_all(const uint8_t *buf, uint32_t pages, uint32_t count) {
  const uint8_t *at = buf + BLOCK_HEAD + 2 * count, *const end = buf + pages * BLOCK_PAGE;
  struct block_build b;
  FUZZ_OK(block_build_init(&b));
  FUZZ_CHECK(block_count(buf) == count);
  uint32_t added = 0;
  for (uint32_t i = 0; i < count; i++) {
    struct kv_rec r, whole;
    block_record(buf, i, &r);
    const uint8_t *const next = kv_rec_get(at, end, KV_IN_TABLE, &whole);
    FUZZ_CHECK(next && fuzz_same_record(&r, &whole) && r.key == whole.key && r.val == whole.val);
    fuzz_touch(r.key, r.klen);
    fuzz_touch(r.val, r.vlen);
    at = next;
    if (added == i && block_build_fits(&b, kv_rec_size(&r))) {
      block_build_add(&b, &r, 0);
      added++;
    }
  }
  const uint32_t again = block_build_finish(&b, TABLE, BLOCK);
  FUZZ_OK(block_verify(b.buf, again, added, BLOCK_FORM_KINDS, TABLE, BLOCK, PATH, 0));
  for (uint32_t i = 0; i < added; i++) {
    struct kv_rec r, r2;
    block_record(buf, i, &r);
    block_record(b.buf, i, &r2);
    FUZZ_CHECK(fuzz_same_record(&r, &r2));
  }
  block_build_fini(&b);
}

FUZZ(block) {
  struct fuzz_in in = {data, data + size};
  const uint32_t flags = fuzz_u8(&in), pages = 1 + fuzz_u8(&in) % BLOCK_PAGES_MAX;
  uint32_t count = fuzz_u8(&in), len;
  try_records(in.p, fuzz_left(&in));

  uint8_t *const buf = fuzz_alloc(pages * BLOCK_PAGE);
  const uint8_t *const body = fuzz_bytes(&in, pages * BLOCK_PAGE - BLOCK_HEAD, &len);
  if (len) memcpy(buf + BLOCK_HEAD, body, len);
  if (flags & 4) repair(buf, pages, &count, body, len);
  if (flags & 1) {
    buf[8] = (uint8_t)pages;
    buf[9] = (uint8_t)count;
  } else {
    if (len) memcpy(buf + 8, body, len < 4 ? len : 4);
  }
  if (flags & 2) store64le(buf, hash64_seed(buf + 8, pages * BLOCK_PAGE - 8, block_seed(TABLE, BLOCK)));

  const enum remixdb_status body_status = block_verify_body(buf, pages, count, BLOCK_FORM_KINDS, PATH, 0);
  const enum remixdb_status s = block_verify(buf, pages, count, BLOCK_FORM_KINDS, TABLE, BLOCK, PATH, 0);
  FUZZ_CHECK(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
  FUZZ_CHECK(body_status == REMIXDB_OK || body_status == REMIXDB_CORRUPT);
  if (flags & 2) FUZZ_CHECK(s == body_status);
  if (s == REMIXDB_OK) FUZZ_CHECK(body_status == REMIXDB_OK);
  if (body_status == REMIXDB_OK) read_all(buf, pages, count);
  free(buf);
  return 0;
}
