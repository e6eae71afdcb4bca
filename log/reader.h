// SPDX-License-Identifier: Apache-2.0
//
// Reading the files of a log: bytes through a window, heads of frames, the list of files; and the words for losses. For
// recovery, verification and salvage. Private to the log. One thread uses a reader at a time.
#ifndef WAL_READER_H
#define WAL_READER_H

#include "log/state.h"

#if !defined(WAL_WINDOW)       // a fuzzing build makes it small
#define WAL_WINDOW (1u << 20)  // bytes that are read at once
#endif
#define WAL_HOLE (128u << 10)  // no frame has so many zeros in a row: a record has fewer bytes
#define WAL_PAGE 4096u         // a disk reads a page or fails to

// A window over a file. The caller frees buf with mem_free.
struct wal_reader {
  struct env *env;
  const struct wal_seg *seg;
  uint8_t *buf;
  size_t cap, len;
  uint64_t off;
  uint64_t nr_unread;  // pages that could not be read
  // NULL, or receives the first failure to read. With it, unreadable bytes count as zeros, which make no frame.
  struct err_saved *unread;
};

// Goes to a segment, whose descriptor is open, and advises it for sequential reads.
void wal_reader_aim(struct wal_reader *r, const struct wal_seg *seg);
// Makes n bytes from off on readable; *nr_out: fewer if the file ends first. They hold until the next call. Fails with
// REMIXDB_IO or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wal_reader_get(struct wal_reader *r, uint64_t off, size_t n, const uint8_t **out,
                                              size_t *nr_out);

// Whether the payload is exactly f->count records. A batch is replayed whole or not at all, so this is checked before
// the first record is used.
bool wal_frame_decodes(const struct wal_frame *f, const uint8_t *p);

// Summary of the frame heads in a part of a file. The records may be broken.
struct wal_heads {
  uint64_t durable;              // the largest durable offset that a head states
  uint64_t end;                  // of the last frame, at most the limit; without a frame, where the search began
  uint64_t frame_end;            // of the last frame, without a limit; 0: no frame
  uint64_t first_seq, last_seq;  // the smallest and the largest sequence number that a head states; 0: no frame
};
// The offset to search from, at or after off. It skips a hole of the file, which may be much larger than its data. A
// head may begin a little before the data.
uint64_t wal_pass_hole(const struct wal_reader *r, uint64_t off, uint64_t limit);
// Searches every byte of [off, limit) of the reader's file for heads of frames of segment k. A head is enough: its own
// check is as good as the frame's checksum. Fails with REMIXDB_IO or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wal_scan(struct wal_reader *r, const struct wal_key *k, uint64_t off, uint64_t limit,
                                        struct wal_heads *out);

// A break in the reader's segment.
struct wal_break {
  uint64_t off, limit;  // its offset, and the segment's end
  uint64_t seq;         // the last sequence number before it
  uint64_t upto;        // the last one before the next segment; UINT64_MAX: there is none
  uint64_t level_end;   // a watermark says that the segment was durable up to here; 0: none does
  bool durable;         // a later segment's watermark says that all of it was durable
};
// Finds what is lost between the break and the next whole frame. *whole_out: that frame's offset, or the limit if there
// is none. Fails with REMIXDB_IO or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wal_hole(struct wal_reader *r, const struct wal_break *b, struct wal_loss *out,
                                        uint64_t *whole_out);

// Lists all files of the log in *all_out (an array for mem_free): those without a header first, then by generation.
// unread: NULL, or receives the first failure to read a file, which then counts as one without a header. Fails with
// REMIXDB_IO, REMIXDB_NOMEM or REMIXDB_VERSION.
MUST_CHECK enum remixdb_status wal_list(struct wal *w, struct err_saved *unread, struct wal_seg ***all_out,
                                        size_t *nr_out);
// Reads a file's header into seg. A missing file counts as one without a header. The same statuses.
MUST_CHECK enum remixdb_status wal_head_read(struct wal *w, struct wal_seg *seg);
int wal_seg_cmp(const void *a, const void *b);  // the order of that array

// REMIXDB_CORRUPT with the message "FILE: offset N: WHY; what is lost", or without an offset if no file has the
// segment.
enum remixdb_status wal_lost(const struct wal_loss *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
