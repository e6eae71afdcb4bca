// SPDX-License-Identifier: Apache-2.0
//
// Reading the files of a log: bytes through a window, the heads of frames, the list of files; and the words for what a
// log has lost. For recovery, verification and salvage alone. One thread uses a reader at a time.
#ifndef WAL_READER_H
#define WAL_READER_H

#include "log/state.h"

#if !defined(WAL_WINDOW)       // a build that fuzzes makes it small
#define WAL_WINDOW (1u << 20)  // files are read in pieces of this size
#endif
#define WAL_HOLE (128u << 10)  // of zeros there are never so many in a frame: a record has fewer bytes

#define WAL_PAGE 4096u  // what a disk reads or does not

// A window over a file. The caller frees buf with mem_free.
struct wal_reader {
  struct env *env;
  const struct wal_seg *seg;
  uint8_t *buf;
  size_t cap, len;
  uint64_t off;
  uint64_t nr_unread;        // pages that could not be read
  struct err_saved *unread;  // NULL, or gets the first failure to read, and what could not be read is taken for zeros,
                             // of which no frame is made
};

void wal_reader_aim(struct wal_reader *r, const struct wal_seg *seg);
// Makes n bytes from off on readable, fewer (*nr_out) when the file ends first. They hold until the next call.
// REMIXDB_IO, REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wal_reader_get(struct wal_reader *r, uint64_t off, size_t n, const uint8_t **out,
                                              size_t *nr_out);

// Whether the payload is exactly f->count records. A batch is replayed whole or not at all, so this is asked before the
// first is.
bool wal_frame_decodes(const struct wal_frame *f, const uint8_t *p);

// What the heads of frames in a part of a file say. Their records may be broken.
struct wal_heads {
  uint64_t durable;    // the largest durable offset that one of them states
  uint64_t end;        // where the last one's frame ends, at most the limit; where the search began when there is none
  uint64_t frame_end;  // the same without a limit; 0 when there is none
  uint64_t first_seq,
      last_seq;  // the smallest and the largest sequence number that one of them states; 0 when there is none
};
// Where to look from, at or after off: nothing can be in a hole of the file, which may be much larger than what it has.
// A head may begin a little before data.
uint64_t wal_pass_hole(const struct wal_reader *r, uint64_t off, uint64_t limit);
// Looks at every byte of [off, limit) of the reader's file for the head of a frame of the segment k. Heads suffice as
// witnesses: their own check is as good as the frame's. REMIXDB_IO, REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wal_scan(struct wal_reader *r, const struct wal_key *k, uint64_t off, uint64_t limit,
                                        struct wal_heads *out);

// A break in the reader's segment.
struct wal_break {
  uint64_t off, limit;  // where it is, and where the segment ends
  uint64_t seq;         // the last sequence number before it
  uint64_t upto;        // the last one before the next segment; UINT64_MAX: there is none
  uint64_t level_end;   // up to where a watermark says that the segment was durable; 0: none does
  bool durable;         // one of a later segment says that all of it was
};
// What is lost between the break and the next whole frame, at *whole_out, or the limit when there is none. REMIXDB_IO,
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wal_hole(struct wal_reader *r, const struct wal_break *b, struct wal_loss *out,
                                        uint64_t *whole_out);

// All files of the log into *all_out (an array for mem_free), ordered by generation, those without a header first.
// unread: NULL, or gets the first failure to read one of them, which then counts as one without a header. REMIXDB_IO,
// REMIXDB_NOMEM, REMIXDB_VERSION.
MUST_CHECK enum remixdb_status wal_list(struct wal *w, struct err_saved *unread, struct wal_seg ***all_out,
                                        size_t *nr_out);
// Reads a file's header into s; a file that is gone, or has none, has no header. The same statuses.
MUST_CHECK enum remixdb_status wal_head_read(struct wal *w, struct wal_seg *s);
int wal_seg_cmp(const void *a, const void *b);  // of that array

// REMIXDB_CORRUPT, with the message "FILE: offset N: WHY; what is lost"; without an offset where no file has the
// segment.
enum remixdb_status wal_lost(const struct wal_loss *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
