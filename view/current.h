// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes the bytes of the file CURRENT, which names the files of a store. view/version.h opens the files that
// CURRENT names. docs/FORMAT.md has the layout.
//
// A name is a number and a fingerprint. The fingerprint is a checksum that the file has anyway: that of a table's
// footer, of a whole REMIX file, of a log segment's header. A file can have the right number although another store, or
// a copy of this store that went on by itself, has written it. The fingerprint distinguishes it from the file that is
// meant (invariants V5 and V6).
//
// The file is a head and sections. A later library can add a section, and says in it whether a reader that does not
// know the section must refuse the store. Formats 1 and 2 have neither sections nor fingerprints. They are read, not
// written.
#ifndef VIEW_CURRENT_H
#define VIEW_CURRENT_H

#include "base/files.h"
#include "table/pack.h"
#include "value/format.h"
#include "view/names.h"

// Numbers count up and never reach these bounds.
#define CURRENT_NUMBER_MAX ((uint64_t)1 << 46)  // bound of files' numbers
#define CURRENT_COUNT_MAX ((uint64_t)1 << 62)   // bound of versions, log generations, sequence numbers (WAL_NUMBER_MAX)
#define CURRENT_LEFT ((uint64_t)1 << 32)        // an open store uses fewer numbers than this before it closes

#define CURRENT_FORMAT 3u  // written; 1 and 2 are read

// The trees of a store: the one of the keys without a space, and the one of all named spaces (view/version.h, V7).
enum { TREE_UNNAMED, TREE_SPACES, TREES };

// The fields that concern the whole store.
struct current_head {
  uint32_t format;           // ignored by current_write
  uint32_t nr_parts[TREES];  // each tree's; the spaces' tree may have none
  uint64_t store_id, number;
  uint64_t next_file;     // the next free file number
  uint64_t log_gen;       // the oldest log generation still needed
  uint64_t log_seq;       // the last sequence number before that generation
  uint64_t erased;        // the last range deletion whose edit the version has, above log_seq; 0: none
  uint64_t log_print;     // the fingerprint of that segment (log/wal.h, L7); 0 in formats 1 and 2
  uint32_t nr_values;     // value files
  const uint8_t *values;  // CURRENT_VALUE bytes for each, ascending by number: its number, its fingerprint, and the
                          // bytes of all its values, about; u64 each. A reader's point into the file
  uint32_t nr_moves;      // collected value files
  const uint8_t *moves;   // CURRENT_MOVE bytes for each, ascending by number: current_move_get
  size_t packs_len;       // bytes of `packs`; 0: none
  const uint8_t *packs;   // the packs with the places of their parts (struct pack_list in table/pack.h)
};
// Whether the file states fingerprints.
static inline bool current_prints(const struct current_head *h) { return h->format >= 3; }

// A partition. Its pointers point into the file's bytes.
struct current_part {
  struct kref anchor;
  uint64_t remix, young;              // numbers of the REMIX files; 0: there is none
  uint64_t remix_print, young_print;  // their fingerprints; 0: none, or a format without fingerprints
  uint32_t nr, nr_young;              // tables of both views; the last nr_young are the young view's
  uint32_t stride;                    // bytes of each table's name
  const uint8_t *tables;              // nr names: number, u64; fingerprint, u64, if the format has them
};
#define CURRENT_NAME_OLD 8u  // bytes of a table's name, at least
#define CURRENT_NAME 16u     // bytes of a name with a fingerprint
#define CURRENT_VALUE 24u    // bytes for a value file
#define CURRENT_MOVE 40u     // bytes for a collected value file

// A collected value file to which records still refer.
struct current_move {
  uint64_t number, bytes;  // its number; bytes of the values that were moved
  struct value_ref ref;    // to the index (value/index.h)
};
static inline void current_move_put(uint8_t *p, const struct current_move *m) {
  store64le(p, m->number);
  store64le(p + 8, m->bytes);
  value_ref_put(p + 16, &m->ref);
}
// After current_read, which has checked the reference.
void current_move_get(const struct current_head *h, uint32_t i, struct current_move *out);
static inline uint64_t current_table(const struct current_part *p, uint32_t i) {
  return load64le(p->tables + p->stride * (size_t)i);
}
// Only in a format with fingerprints.
static inline uint64_t current_table_print(const struct current_part *p, uint32_t i) {
  return load64le(p->tables + p->stride * (size_t)i + 8);
}
static inline void current_name_put(uint8_t *to, uint64_t number, uint64_t print) {
  store64le(to, number);
  store64le(to + 8, print);
}

// A file that has been read, and the position among its partitions.
struct current {
  char path[ENV_PATH_MAX];
  struct current_head head;
  uint8_t *buf;
  size_t len, at, end;  // end: the end of the partitions of the tree that current_tree has set
  struct {
    size_t at, end;
  } trees[TREES];          // where the partitions are; 0, 0: none
  const uint8_t *origins;  // nr_origins ids, u64, ascending; NULL: none
  const uint8_t *names;    // names_len encoded bytes of the spaces' names; NULL: none
  size_t names_len;
  uint32_t nr_origins;
};

// Reads the file and checks its size, checksum and format, the bounds of the head's numbers, and the sections.
// Allocates memory for a large file only if the file has no large hole and is not larger than the number of tables in
// the directory explains. On success the caller ends with current_close. Fails with REMIXDB_NOTFOUND if there is no
// CURRENT, or with REMIXDB_CORRUPT, REMIXDB_VERSION, REMIXDB_IO or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status current_read(const struct env_dir *dir, struct current *out);
// Goes to the first partition of a tree. After current_read that is the unnamed tree's.
void current_tree(struct current *c, uint32_t tree);
// Checks that the file has room for so many partitions. Fails with REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status current_check(const struct current *c);
// Checks, after the last partition of a tree, that no byte is left, and that format 1 or 2 fits the number of young
// views. Fails with REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status current_check_end(const struct current *c, uint32_t nr_young);
// The error of a file whose fingerprint is not the one that CURRENT has: REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status current_other_history(const char *path);
// Tells whether these 8 bytes are the file's magic.
bool current_is_magic(const uint8_t *bytes);
void current_close(struct current *c);
static inline bool current_more(const struct current *c) { return c->at < c->end; }
// Reads the next partition. Checks the partition's counts, and that it names no file twice and no file whose number is
// still free. The call is safe also if current_more is false, because a damaged count can cause such a call. Fails with
// REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status current_next(struct current *c, struct current_part *out);

// Replaces the file. ids: the store's own id is the one of the head. parts: the partitions of each tree, one tree after
// the other; their `tables` have fingerprints. names: those of the spaces, or NULL. After REMIXDB_NOSPACE,
// REMIXDB_NOMEM or REMIXDB_CORRUPT (a number of the head has reached its bound) the file has not changed. After any
// other failure a crash may leave the old or the new file.
MUST_CHECK enum remixdb_status current_write(const struct env_dir *dir, const struct current_head *head,
                                             const struct files_ids *ids, const struct current_part *parts,
                                             const struct names *names);
#endif
