// SPDX-License-Identifier: Apache-2.0
#include "table/pack_format.h"

// Offsets in the footer. Magic and format stay at the end in every later format.
enum {
  FOOT_SUM = 0,  // u64, XXH3 of the bytes after it
  FOOT_STORE_ID = 8,
  FOOT_NUMBER = 16,
  FOOT_SIZE = 24,
  FOOT_DIR_OFF = 32,
  FOOT_DIR_SUM = 40,
  FOOT_NR = 48,      // u32
  FOOT_FORMAT = 52,  // u32
  FOOT_MAGIC = 56,
};

static uint64_t footer_sum(const uint8_t *p) { return hash64(p + FOOT_STORE_ID, PACK_FOOTER - FOOT_STORE_ID); }

bool pack_is_magic(const uint8_t *last) { return load64le(last) == PACK_MAGIC; }

const char *pack_entry_get(const uint8_t *p, const struct pack_entry *before, uint64_t next_file,
                           struct pack_entry *out) {
  *out = (struct pack_entry){load64le(p), load64le(p + 8), load64le(p + 16)};
  const uint64_t number = pack_id_number(out->id);
  if (number == 0 || number >= next_file) return "the number of a part is 0, or free";
  if (out->off >= PACK_SIZE_MAX || out->len >= PACK_SIZE_MAX || out->off % PACK_ALIGN) return "place of a part";
  if (out->len == 0 || (pack_id_kind(out->id) == PACK_TABLE && out->len % PACK_ALIGN)) return "length of a part";
  if (before && out->off < before->off + pack_room(before)) return "a part lies in another one, or before it";
  return NULL;
}

void pack_footer_put(uint8_t *p, const struct pack_footer *f) {
  store64le(p + FOOT_STORE_ID, f->store_id);
  store64le(p + FOOT_NUMBER, f->number);
  store64le(p + FOOT_SIZE, f->size);
  store64le(p + FOOT_DIR_OFF, f->dir_off);
  store64le(p + FOOT_DIR_SUM, f->dir_sum);
  store32le(p + FOOT_NR, f->nr);
  store32le(p + FOOT_FORMAT, PACK_FORMAT_VERSION);
  store64le(p + FOOT_MAGIC, PACK_MAGIC);
  store64le(p + FOOT_SUM, footer_sum(p));
}

enum remixdb_status pack_footer_get(const uint8_t *p, uint64_t size, const char *path, struct pack_footer *out) {
  const uint64_t at = size - PACK_FOOTER;
  if (!pack_is_magic(p + FOOT_MAGIC)) return err_corrupt(path, at + FOOT_MAGIC, "not the end of a pack");
  if (load64le(p + FOOT_SUM) != footer_sum(p)) return err_corrupt(path, at, "checksum of footer");
  // after the checksum: a flipped bit is damage, not a later format
  const uint32_t format = load32le(p + FOOT_FORMAT);
  if (format > PACK_FORMAT_VERSION)
    return err_set(REMIXDB_VERSION, "%s: pack format %u; this library knows up to %u", path, format,
                   PACK_FORMAT_VERSION);
  *out = (struct pack_footer){.store_id = load64le(p + FOOT_STORE_ID),
                              .number = load64le(p + FOOT_NUMBER),
                              .size = load64le(p + FOOT_SIZE),
                              .dir_off = load64le(p + FOOT_DIR_OFF),
                              .dir_sum = load64le(p + FOOT_DIR_SUM),
                              .nr = load32le(p + FOOT_NR),
                              .print = load64le(p + FOOT_SUM)};
  const uint64_t dir = (uint64_t)PACK_ENTRY * out->nr;
  if (format == 0 || out->number == 0 || out->nr == 0 || out->nr > PACK_PARTS_MAX)
    return err_corrupt(path, at, "footer");
  if (out->size != size || size > PACK_SIZE_MAX || size % PACK_ALIGN)
    return err_corrupt(path, at, "the pack is truncated or of a wrong size");
  if (out->dir_off >= size || out->dir_off % PACK_ALIGN || pack_align(dir + PACK_FOOTER) != size - out->dir_off)
    return err_corrupt(path, at, "directory out of place");
  return REMIXDB_OK;
}

enum remixdb_status pack_dir_get(const uint8_t *dir, const struct pack_footer *f, const char *path,
                                 struct pack_entry *out) {
  if (pack_dir_sum(dir, f->size - PACK_FOOTER - f->dir_off, f->number) != f->dir_sum)
    return err_corrupt(path, f->dir_off, "checksum of the directory");
  for (uint32_t i = 0; i < f->nr; i++) {
    const uint64_t at = f->dir_off + (uint64_t)PACK_ENTRY * i;
    const char *const flaw = pack_entry_get(dir + (size_t)PACK_ENTRY * i, i ? &out[i - 1] : NULL, UINT64_MAX, &out[i]);
    if (flaw) return err_corrupt(path, at, "%s", flaw);
    if (out[i].off + pack_room(&out[i]) > f->dir_off) return err_corrupt(path, at, "a part reaches the directory");
  }
  return REMIXDB_OK;
}
