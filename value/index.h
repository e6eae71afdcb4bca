// SPDX-License-Identifier: Apache-2.0
//
// Where the values of a collected file are. A collection copies the live values of some files into a new one
// (value/move.h) and removes those files. Tables keep the old references until a merge writes them again. So the new
// file has an index for each removed file, which a version holds in memory: old offset, new offset. A reader searches
// it when the version has no file of the reference's number.
//
// Invariants
//   I1  All values of a collected file that are live are in one file. If that one is collected, the indexes that led to
//       it are made anew, so one step is always enough.
//   I2  An index entry states the checksums of both heads. So an old reference leads to the copy of its own record only
//       (F3 of value/format.h).
#ifndef VALUE_INDEX_H
#define VALUE_INDEX_H

#include "value/set.h"

struct value_index {  // counted, immutable
  _Atomic uint32_t refs;
  uint64_t number;          // the collected file's
  uint64_t bytes;           // bytes of the values that have an entry
  struct value_file *file;  // where they are, referenced
  struct value_ref ref;     // to the index itself
  uint32_t nr;              // entries
  uint8_t *entries;         // as in the file, own memory
};
// Makes an index with one reference. entries: ref->len bytes that value_moved_good accepts, from mem_alloc; taken over,
// also if the call fails. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status value_index_make(struct value_file *f, uint64_t number, uint64_t bytes,
                                                const struct value_ref *ref, uint8_t *entries,
                                                struct value_index **out);
// Reads an index from its file. Takes memory for it only if the file has it. Fails with REMIXDB_CORRUPT, REMIXDB_IO or
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status value_index_open(struct value_file *f, uint64_t number, uint64_t bytes,
                                                const struct value_ref *ref, struct value_index **out);
void value_index_unref(struct value_index *x);  // NULL is allowed
// Replaces a reference to the collected file by the one to the new file. Returns false if the index has no such record;
// *r is unchanged then.
MUST_CHECK bool value_index_find(const struct value_index *x, struct value_ref *r);
static inline uint64_t value_index_memory(const struct value_index *x) {
  return sizeof(*x) + (uint64_t)x->nr * VALUE_MOVED;
}
// Writes the index's key.
static inline struct kref value_index_key(uint64_t number, uint8_t buf[VALUE_INDEX_KEY]) {
  store64le(buf, number);
  return kref(buf, VALUE_INDEX_KEY);
}

// The indexes of a version, ascending by number, each with a reference. All zero: none. One thread changes it; others
// may read it when it does not change any more.
struct value_moves {
  struct value_index **all;
  uint32_t nr, cap;
};
struct value_index *value_moves_find(const struct value_moves *m, uint64_t number);  // NULL: it is not there
// Adds an index and takes a reference, unless one of its number is there. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status value_moves_add(struct value_moves *m, struct value_index *x);
// Bytes that the indexes take in memory.
uint64_t value_moves_memory(const struct value_moves *m);
void value_moves_fini(struct value_moves *m);  // drops the references
// Replaces a reference to a collected file by the one to the file where the value is. Returns that file, or NULL.
MUST_CHECK struct value_file *value_moves_follow(const struct value_moves *m, struct value_ref *r);
#endif
