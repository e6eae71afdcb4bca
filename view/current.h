// SPDX-License-Identifier: Apache-2.0
//
// The file CURRENT: which files a store is made of. Reading and writing its bytes; view/version.h opens what it names.
// docs/FORMAT.md has the layout.
#ifndef VIEW_CURRENT_H
#define VIEW_CURRENT_H

#include "base/files.h"
#include "kv.h"

#define CURRENT_NUMBER_MAX ((uint64_t)1 << 46)  // of files; they count up, so that this is never reached

#define CURRENT_COUNT_MAX \
  ((uint64_t)1 << 62)  // of versions, and of the log's generations and sequence numbers (WAL_NUMBER_MAX)

// What stands before the partitions.
struct current_head {
  uint32_t format;  // 1, or 2 where some partition has a young view
  uint32_t nr_parts;
  uint64_t store_id, number;
  uint64_t next_file;  // the next free file number
  uint64_t log_gen;    // the oldest log generation that is needed,
  uint64_t log_seq;    // and the sequence number when it began
};

// A partition. Its pointers are into the file's bytes.
struct current_part {
  struct kref anchor;
  uint64_t remix, young;  // file numbers; 0: none
  uint32_t nr, nr_young;  // tables of both views; the last nr_young are the young view's
  const uint8_t *tables;  // nr numbers, u64
};
static inline uint64_t current_table(const struct current_part *p, uint32_t i) {
  return load64le(p->tables + 8 * (size_t)i);
}

// A file that has been read, and how far its partitions have been taken.
struct current {
  char path[ENV_PATH_MAX];
  struct current_head head;
  uint8_t *buf;
  size_t len, at, end;  // end: of the partitions
};

// Reads the file and checks its checksum, its format, and the bounds of the head's other numbers. REMIXDB_NOTFOUND:
// there is none. REMIXDB_CORRUPT, REMIXDB_VERSION. On success the caller closes it.
MUST_CHECK enum remixdb_status current_read(const struct env_dir *dir, struct current *out);
// Whether the number of partitions can be right. REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status current_check(const struct current *c);
// After the last partition: nothing is left, and the format fits the number of young views. REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status current_check_end(const struct current *c, uint32_t nr_young);
// Whether the bytes, 8 of them, are the file's magic.
bool current_is_magic(const uint8_t *bytes);
void current_close(struct current *c);
static inline bool current_more(const struct current *c) { return c->at < c->end; }
// The next partition, checked: its counts, and that it names no file twice and none whose number is free. current_more
// must hold, or be false by damage. REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status current_next(struct current *c, struct current_part *out);

// Replaces the file. parts: head->nr_parts of them, whose `tables` are u64 little-endian. REMIXDB_NOSPACE,
// REMIXDB_NOMEM: the file is what it was. After any other failure either one may be there after a crash.
MUST_CHECK enum remixdb_status current_write(const struct env_dir *dir, const struct current_head *head,
                                             const struct current_part *parts);
#endif
