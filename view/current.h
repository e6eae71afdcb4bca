// SPDX-License-Identifier: Apache-2.0
//
// The file CURRENT, which names the files of a store: reading and writing its bytes. view/version.h opens the files it
// names. docs/FORMAT.md has the layout.
#ifndef VIEW_CURRENT_H
#define VIEW_CURRENT_H

#include "base/files.h"
#include "kv.h"

// Numbers count up and never reach these bounds.
#define CURRENT_NUMBER_MAX ((uint64_t)1 << 46)  // of files
#define CURRENT_COUNT_MAX ((uint64_t)1 << 62)   // of versions, log generations, sequence numbers (WAL_NUMBER_MAX)
#define CURRENT_LEFT ((uint64_t)1 << 32)        // fewer are used between an opening and its end

// The head, before the partitions.
struct current_head {
  uint32_t format;  // 1, or 2 if a partition has a young view
  uint32_t nr_parts;
  uint64_t store_id, number;
  uint64_t next_file;  // the next free file number
  uint64_t log_gen;    // the oldest log generation still needed
  uint64_t log_seq;    // the sequence number when that began
};

// A partition. Its pointers point into the file's bytes.
struct current_part {
  struct kref anchor;
  uint64_t remix, young;  // file numbers; 0: none
  uint32_t nr, nr_young;  // tables of both views; the last nr_young are the young view's
  const uint8_t *tables;  // nr numbers, u64
};
static inline uint64_t current_table(const struct current_part *p, uint32_t i) {
  return load64le(p->tables + 8 * (size_t)i);
}

// A file that has been read, and the position among its partitions.
struct current {
  char path[ENV_PATH_MAX];
  struct current_head head;
  uint8_t *buf;
  size_t len, at, end;  // end: of the partitions
};

// Reads the file and checks its size, checksum and format, and the bounds of the head's numbers. Takes memory for a
// large file only if it has no large hole and the directory's tables account for it. On success the caller closes it.
// REMIXDB_NOTFOUND: there is none. Fails with REMIXDB_CORRUPT, REMIXDB_VERSION, REMIXDB_IO or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status current_read(const struct env_dir *dir, struct current *out);
// Checks that the file has room for so many partitions. Fails with REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status current_check(const struct current *c);
// Checks, after the last partition, that nothing is left and the format fits the number of young views. Fails with
// REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status current_check_end(const struct current *c, uint32_t nr_young);
// Whether 8 bytes are the file's magic.
bool current_is_magic(const uint8_t *bytes);
void current_close(struct current *c);
static inline bool current_more(const struct current *c) { return c->at < c->end; }
// The next partition. Checks its counts, and that it names no file twice and none whose number is still free. May also
// be called without current_more: a damaged count leads there. Fails with REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status current_next(struct current *c, struct current_part *out);

// Replaces the file. parts: head->nr_parts of them; their `tables` are u64 little-endian. REMIXDB_NOSPACE,
// REMIXDB_NOMEM, REMIXDB_CORRUPT (a number of the head has run out): the file has not changed. After any other failure
// a crash may leave the old or the new one.
MUST_CHECK enum remixdb_status current_write(const struct env_dir *dir, const struct current_head *head,
                                             const struct current_part *parts);
#endif
