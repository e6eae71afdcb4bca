// SPDX-License-Identifier: Apache-2.0
//
// The named spaces of a version: a name and an id for each. The keys of a space are in the spaces' tree
// (view/version.h, V7) and begin with the id. A list of names is immutable and counted; versions share it.
//
// Invariants
//   N1  No id is given twice in the life of a store: the next id is part of the list, and only grows.
//   N2  A space is in the list of a durable CURRENT before a record of it can be written.
//   N3  A space is dropped when a CURRENT without it is durable. No reader or writer meets its keys from then on,
//       because nobody has its id. Its keys leave the version by themselves (compact/dropped.h). Keys in the log and in
//       memtables go the same way, after their rounds.
#ifndef VIEW_NAMES_H
#define VIEW_NAMES_H

#include "kv.h"

#define NAMES_ID 4u               // bytes of an id before each key, big-endian
#define NAMES_LEN_MAX 255u        // bytes of a name
#define NAMES_MAX 65536u          // names of a store
#define NAMES_ID_MAX 0xfffffff0u  // ids end before this, so that an id plus 1 is one, too
#define NAMES_HEAD 8u             // encoded: the next id, u32; how many spaces, u32; then the spaces
#define NAMES_ENTRY 8u            // the id, u32; bytes of the name, u32; then the name
#define NAMES_SIZE_MAX (NAMES_HEAD + (size_t)NAMES_MAX * (NAMES_ENTRY + NAMES_LEN_MAX))

struct names_entry {
  uint32_t id;        // at least 1
  uint32_t len;       // bytes of the name, at least 1
  const char *bytes;  // the name; in the list's own memory
};

struct names {
  _Atomic uint32_t refs;
  uint32_t next_id, nr;
  uint32_t mask;    // the number of slots, a power of two, less 1
  uint32_t *slots;  // open addressing by the hash of the name: the index of an entry plus 1; 0: free. Half full at most
  struct names_entry entries[];  // ascending by id; the slots and their names follow
};

void names_ref(struct names *n);    // NULL is allowed
void names_unref(struct names *n);  // NULL is allowed
// Decodes a list; path and at are for messages. Checks all bounds, and that no two spaces have one name. The list has
// one reference. Fails with REMIXDB_CORRUPT or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status names_decode(const uint8_t *p, size_t len, const char *path, size_t at,
                                            struct names **out);
// Returns the encoded bytes; NULL: 0.
size_t names_size(const struct names *n);
// Encodes the list: names_size bytes. Returns the end.
uint8_t *names_put(const struct names *n, uint8_t *p);

// Returns how many spaces there are; n may be NULL.
static inline uint32_t names_count(const struct names *n) { return n ? n->nr : 0; }
// Finds a space. NULL: there is none; n may be NULL.
const struct names_entry *names_find(const struct names *n, const char *name, size_t len);
const struct names_entry *names_find_id(const struct names *n, uint32_t id);
// Tells whether some space has an id from `first` to `last`.
bool names_have_ids(const struct names *n, uint32_t first, uint32_t last);
// Tells whether a key of some space may be in from <= key < to, bounds of the spaces' tree. to.ptr NULL: no upper
// bound.
bool names_may_have(const struct names *n, struct kref from, struct kref to);
// Finds the first stretch of ids from `from` on that no space has, up to `last`: [*first_out, *last_out]. Returns false
// if there is none.
bool names_gap(const struct names *n, uint32_t from, uint32_t last, uint32_t *first_out, uint32_t *last_out);
// Tells lists of one store apart: lists with the same stamp have the same spaces. The lowest three bits are 0.
static inline uint64_t names_stamp(const struct names *n) { return (uint64_t)n->next_id << 32 | (uint64_t)n->nr << 3; }
// Tells whether some space was ever dropped; NULL: none was.
static inline bool names_dropped(const struct names *n) { return n && n->nr + 1 < n->next_id; }

// Makes a list that also has this space. n has no space with this id, and may be NULL. For a repair. Fails with
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status names_insert(const struct names *n, uint32_t id, const char *name, size_t len,
                                            struct names **out);
// Make a list that differs from n by one space; n may be NULL. names_add adds a space with the next id. names_drop
// leaves out one that n has. Fail with REMIXDB_NOMEM, and with REMIXDB_TOOBIG if there are too many spaces.
MUST_CHECK enum remixdb_status names_add(const struct names *n, const char *name, size_t len, struct names **out);
MUST_CHECK enum remixdb_status names_drop(const struct names *n, uint32_t id, struct names **out);

// The id before a key.
static inline void names_id_put(uint8_t *key, uint32_t id) { store32le(key, __builtin_bswap32(id)); }
static inline uint32_t names_id_get(const uint8_t *key) { return __builtin_bswap32(load32le(key)); }
// The least id that a key from this bound on can have. A bound may end within an id.
static inline uint32_t names_id_from(struct kref bound) {
  uint8_t id[NAMES_ID] = {0};
  if (bound.len) memcpy(id, bound.ptr, bound.len < NAMES_ID ? bound.len : NAMES_ID);
  return names_id_get(id);
}
// Tells whether a key of the spaces' tree belongs to a space that is there. A damaged file may have a key without an
// id.
static inline bool names_have_key(const struct names *n, struct kref key) {
  return key.len >= NAMES_ID && names_find_id(n, names_id_get(key.ptr));
}
#endif
