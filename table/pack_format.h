// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a pack that are not those of its parts: the directory behind the parts, and the footer, which ends the
// file. docs/FORMAT.md describes the file. CURRENT lists the parts that are in use, in the same form (view/current.h).
#ifndef PACK_FORMAT_H
#define PACK_FORMAT_H

#include "base/err.h"
#include "lib.h"

#define PACK_MAGIC 0x4B4341504D585223ull  // "#RXMPACK"
#define PACK_FORMAT_VERSION 1u            // written
#define PACK_ALIGN 4096u           // parts begin at its multiples, and so does the directory; so does the file end
#define PACK_FOOTER 64u            // bytes
#define PACK_ENTRY 24u             // bytes of a part in the directory, and in CURRENT
#define PACK_PARTS_MAX (1u << 24)  // in a pack
#define PACK_SIZE_MAX ((uint64_t)1 << 46)

enum pack_kind { PACK_TABLE = 0, PACK_REMIX = 1 };

// A table or a REMIX file in a pack.
struct pack_entry {
  uint64_t id;        // pack_id of it
  uint64_t off, len;  // in the pack
};
// Tables and REMIX files count their numbers together, but an old store may have both with one number.
static inline uint64_t pack_id(enum pack_kind kind, uint64_t number) { return number << 1 | (uint64_t)kind; }
static inline uint64_t pack_id_number(uint64_t id) { return id >> 1; }
static inline enum pack_kind pack_id_kind(uint64_t id) { return (enum pack_kind)(id & 1); }
static inline uint64_t pack_align(uint64_t n) { return (n + PACK_ALIGN - 1) & ~(uint64_t)(PACK_ALIGN - 1); }
// The bytes that a part takes: no other part has any of them.
static inline uint64_t pack_room(const struct pack_entry *e) { return pack_align(e->len); }

static inline void pack_entry_put(uint8_t *p, const struct pack_entry *e) {
  store64le(p, e->id);
  store64le(p + 8, e->off);
  store64le(p + 16, e->len);
}
// Decodes the entry that follows the part `before` in the pack; NULL: it is the first one. Returns words for what is
// wrong with it, or NULL. next_file: no part has this number or a larger one.
const char *pack_entry_get(const uint8_t *p, const struct pack_entry *before, uint64_t next_file,
                           struct pack_entry *out);

struct pack_footer {
  uint64_t store_id, number;
  uint64_t size;     // the file's size
  uint64_t dir_off;  // the directory's offset; the directory goes up to the footer, with zeros at its end
  uint32_t nr;       // parts, at least 1
  uint64_t dir_sum;  // XXH3-64 of all bytes from the directory's beginning up to the footer, seeded with ~number
  uint64_t print;    // out only: the pack's fingerprint, which is the footer's checksum
};
void pack_footer_put(uint8_t *p, const struct pack_footer *f);  // PACK_FOOTER bytes
// Decodes the footer of a file of so many bytes. Fails with REMIXDB_CORRUPT, or with REMIXDB_VERSION if the format is
// newer.
MUST_CHECK enum remixdb_status pack_footer_get(const uint8_t *p, uint64_t size, const char *path,
                                               struct pack_footer *out);
bool pack_is_magic(const uint8_t *last);  // the last 8 bytes of a file
// The directory's checksum; bytes: the directory's, with its zeros.
static inline uint64_t pack_dir_sum(const uint8_t *dir, size_t bytes, uint64_t number) {
  return hash64_seed(dir, bytes, ~number);
}
// Decodes the directory: f->nr entries into `out`. dir: the bytes from dir_off up to the footer. Checks the checksum
// and that the parts ascend and lie before the directory. Fails with REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status pack_dir_get(const uint8_t *dir, const struct pack_footer *f, const char *path,
                                            struct pack_entry *out);
#endif
