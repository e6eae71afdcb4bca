// SPDX-License-Identifier: Apache-2.0
//
// Reading the files of a log: bytes through a window, heads of frames, the list of files, the loss at a break; and the
// words for losses. For recovery, verification and salvage. Private to the log. One thread uses a reader at a time.
#ifndef WAL_READER_H
#define WAL_READER_H

#include "log/state.h"

#if !defined(WAL_WINDOW)       // a fuzzing build makes it small
#define WAL_WINDOW (1u << 20)  // bytes that are read at once
#endif
#define WAL_HOLE (128u << 10)  // no frame has so many zeros in a row, because a record has fewer bytes
#define WAL_PAGE 4096u         // a disk reads a page or fails to

// A window over a file. The caller frees buf with mem_free.
struct wal_reader {
  struct env *env;
  const struct wal_seg *seg;
  uint8_t *buf;
  size_t cap, len;
  uint64_t off;
  const struct wal_values *values;  // a replay checks the values of records; NULL: it does not
  uint64_t nr_unread;               // pages that could not be read
  // NULL, or receives the first failure to read. With it, unreadable bytes count as zeros, which make no frame.
  struct err_saved *unread;
};

// Goes to a segment. The segment's descriptor is open; the call advises it for sequential reads.
void wal_reader_aim(struct wal_reader *r, const struct wal_seg *seg);
// Makes n bytes from off on readable. *nr_out is n, or less if the file ends earlier. The bytes are valid until the
// next call. Fails with REMIXDB_IO or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wal_reader_get(struct wal_reader *r, uint64_t off, size_t n, const uint8_t **out,
                                              size_t *nr_out);

// Gives a decoded record to the caller's function, as wal_replay_fn says. seq: the record's place.
static inline enum remixdb_status wal_give(wal_replay_fn fn, void *arg, uint64_t seq, struct kv_rec *rec) {
  if (likely(!(rec->kind & KV_SEQ))) rec->seq = seq;
  rec->kind &= ~(uint32_t)KV_SEQ;
  return fn(arg, seq, rec);
}
// Tells whether the payload consists of exactly f->count records, and each number that a record states is smaller than
// the record's place. Recovery replays a batch whole or not at all, so it checks this before it uses a record.
bool wal_frame_decodes(const struct wal_frame *f, const uint8_t *p);

// Summary of the frame heads in a part of a file. The records may be broken.
struct wal_heads {
  uint64_t durable;    // the largest durable offset that a head states
  uint64_t end;        // end of the last frame, at most the limit; without a frame, the offset where the search began
  uint64_t frame_end;  // end of the last frame, also beyond the limit; 0: no frame
  uint64_t first_seq, last_seq;  // the smallest and the largest sequence number that a head states; 0: no frame
};
// Returns the offset from which to search, at or after off. It skips a hole of the file, which may be much larger than
// the file's data. A head may begin a little before the data.
uint64_t wal_pass_hole(const struct wal_reader *r, uint64_t off, uint64_t limit);
// Searches every byte of [off, limit) of the reader's file for heads of frames of segment k. A head is enough, because
// the check of the head is as good as the frame's checksum. Fails with REMIXDB_IO or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wal_scan(struct wal_reader *r, const struct wal_key *k, uint64_t off, uint64_t limit,
                                        struct wal_heads *out);

// A break in the reader's segment.
struct wal_break {
  uint64_t off, limit;  // the offset of the break, and the segment's end
  uint64_t seq;         // the last sequence number before it
  uint64_t upto;        // the last sequence number before the next segment; UINT64_MAX: there is no next segment
  uint64_t level_end;   // a watermark states that the segment was durable up to here; 0: there is no such watermark
  bool durable;         // a later segment's watermark states that the whole segment was durable
};
// Finds what is lost between the break and the next whole frame. *whole_out: the offset of that frame, or the limit if
// there is no such frame. Fails with REMIXDB_IO or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wal_hole(struct wal_reader *r, const struct wal_break *b, struct wal_loss *out,
                                        uint64_t *whole_out);

// Lists all files of the log in *all_out, an array that the caller frees with mem_free. Files without a header come
// first, then the others in order of their generations. unread: NULL, or receives the earliest failure to read a file.
// Such a file then counts as a file without a header. Fails with REMIXDB_IO, REMIXDB_NOMEM or REMIXDB_VERSION.
MUST_CHECK enum remixdb_status wal_list(struct wal *w, struct err_saved *unread, struct wal_seg ***all_out,
                                        size_t *nr_out);
// Reads a file's header into seg. A missing file counts as a file without a header. Fails as wal_list does.
MUST_CHECK enum remixdb_status wal_head_read(struct wal *w, struct wal_seg *seg);
int wal_seg_cmp(const void *a, const void *b);  // the order of that array

// Returns REMIXDB_CORRUPT with the message "FILE: offset N: WHY; WHAT IS LOST", or without an offset if no file has the
// segment.
enum remixdb_status wal_lost(const struct wal_loss *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
