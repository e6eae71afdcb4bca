// SPDX-License-Identifier: Apache-2.0
//
// Moving values: passing over the records of a value file, and copying some of them into a new file, with indexes
// (value/index.h). Values are copied as they lie in the file, and only after their checksums fit. One thread at a time
// uses a pass or a mover.
#ifndef VALUE_MOVE_H
#define VALUE_MOVE_H

#include "value/index.h"

// ---- the records of a file, in order
//
// A file has bytes of any kind between records, and a crash may have left heads there that fit their checksums. So only
// a record to which a reference leads tells where the next one can begin (value_pass_over); after any other head the
// pass goes on with the next eight bytes.
struct value_pass {
  struct value_file *f;  // referenced
  uint64_t at, end;      // the next place to look at, and the end of the file
  uint8_t *win;          // bytes [win_at, win_at + win_len)
  uint64_t win_at;
  size_t win_len;
  struct kref key;  // the last record's; points into `win`
};
// Begins a pass over a file to which nobody writes. Fails with REMIXDB_NOMEM. p is all zero to begin with, also for
// value_pass_fini.
MUST_CHECK enum remixdb_status value_pass_init(struct value_pass *p, struct value_file *f);
void value_pass_fini(struct value_pass *p);
// Goes to the next head. *at_out, *rec_out, p->key: the record. *any_out false: there is none before `stop`, and p->at
// is `stop` or the file's end. Fails with REMIXDB_IO or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status value_pass_next(struct value_pass *p, uint64_t stop, bool *any_out, uint64_t *at_out,
                                               struct value_rec *rec_out);
// The last record is one to which a reference leads: goes on behind it.
void value_pass_over(struct value_pass *p, uint64_t at, const struct value_rec *rec);

// ---- the new file

struct value_mover {
  struct value_ctx *ctx;
  struct value_file *to;  // the new file, with one reference; NULL: none
  uint64_t at;            // where the next record begins
  uint64_t flushed;       // bytes of the file that are written
  uint64_t highest;       // the largest `flushed` so far
  uint8_t *buf, *in;      // the bytes after `flushed`; bytes of the record that is copied
  size_t len, in_room;
  uint64_t bytes;    // bytes of the values that were copied
  uint64_t written;  // bytes, in sum
};
// Makes the file. On failure there is none. m: all zero but for ctx. Fails with REMIXDB_NOMEM, REMIXDB_IO or
// REMIXDB_NOSPACE, like the calls below.
MUST_CHECK enum remixdb_status value_mover_begin(struct value_mover *m, uint64_t number);
// Copies a record. *is_out: the reference to the copy. Fails also with REMIXDB_CORRUPT if the record is damaged: go
// back then. *of_source_out: the failure is that of reading `from`.
MUST_CHECK enum remixdb_status value_mover_copy(struct value_mover *m, struct value_file *from, uint64_t at,
                                                const struct value_rec *rec, struct kref key, struct value_ref *is_out,
                                                bool *of_source_out);
// Takes back all that was written since m->at and m->bytes were these.
void value_mover_back(struct value_mover *m, uint64_t at, uint64_t bytes);
// Writes an index: `len` bytes of entries. *ref_out: the reference to it.
MUST_CHECK enum remixdb_status value_mover_index(struct value_mover *m, uint64_t number, const uint8_t *entries,
                                                 uint32_t len, struct value_ref *ref_out);
// Writes what is copied so far.
MUST_CHECK enum remixdb_status value_mover_flush(struct value_mover *m);
// Makes what is written so far durable, so that the end takes less time.
MUST_CHECK enum remixdb_status value_mover_sync(struct value_mover *m);
// Writes the rest and makes it durable. The file takes no further bytes, and its name is not durable yet. The mover
// keeps its reference.
MUST_CHECK enum remixdb_status value_mover_end(struct value_mover *m);
// Drops the mover's reference. remove: the file goes.
void value_mover_fini(struct value_mover *m, bool remove);
#endif
