// SPDX-License-Identifier: Apache-2.0
//
// Reading values.
//
// A reading is a small state machine that does no I/O. It says which bytes of the file it needs, its owner brings them,
// and so on, until it has the value. value_read and its kin bring them by plain reads. An asynchronous get brings them
// by reads that end later (store/async.c).
//
// Invariants
//   R1  A byte of the file is used only after its checksum was compared: the head's, or that of its chunk. Sizes and
//       offsets come from the head and the entries, and stay within the record (F3 of value/format.h).
//   R2  A reading asks for at most VALUE_RUN bytes at a time, and keeps none of the bytes that it was given. So even a
//       long value takes little memory.
//   R3  A value of more than VALUE_ONCE bytes goes straight to the caller's memory, as far as its chunks are wanted
//       whole and lie in the file as they are.
#ifndef VALUE_READ_H
#define VALUE_READ_H

#include "value/file.h"

#define VALUE_ONCE (128u << 10)  // a value of so many bytes is read by one call, with its head
#define VALUE_RUN (1u << 20)     // bytes of whole chunks that one call reads
#define VALUE_FEW 2u             // chunks of a value of VALUE_ONCE bytes

// ---- readings

struct value_reading {
  // The bytes of the file that the reading needs next. len 0: none, it has ended. into: where they go; NULL: to the
  // owner's memory.
  uint64_t off;
  uint32_t len;
  uint8_t *into;
  struct value_file *f;
  struct value_ref ref;
  // private below
  struct kref key;
  uint64_t from, to;  // the bytes of the value that are still to be read
  uint8_t *buf;       // where byte `from` goes; NULL: bytes are only checked
  bool index;         // the record is to be an index
  bool headed;        // it has the head, which sets the next three
  struct value_rec rec;
  uint64_t entries, data;  // offsets in the file
  uint64_t first, prev;    // entries [first, first + nr) are at hand; prev: where chunk `first` begins
  uint32_t nr;
  uint8_t *many;                  // own memory for these entries; NULL: they are in `few`
  struct value_scratch *scratch;  // the owner's; NULL: the reading takes a set when it needs one
  uint8_t few[VALUE_FEW * VALUE_ENTRY];
};

// Begins to read the bytes [off, off + n) of the value that `r` names into buf; NULL: only checks them. The value has
// these bytes, and n is not 0. key: that of the record that has the reference; the value file's record has the same.
// The file, the key and the buffer stay until the reading has ended. Takes no memory.
void value_reading_begin(struct value_reading *v, struct value_file *f, const struct value_ref *r, struct kref key,
                         uint32_t off, void *buf, uint32_t n);
// Takes the bytes that the reading needs: `n` of them, which are fewer than v->len if the file ends there. bytes:
// v->into, or the owner's memory, which is the owner's again after the call. Fails with REMIXDB_CORRUPT or
// REMIXDB_NOMEM; then the reading has ended.
MUST_CHECK enum remixdb_status value_reading_take(struct value_reading *v, const uint8_t *bytes, size_t n);
// Frees what the reading has. Call it once for each reading that was begun.
void value_reading_end(struct value_reading *v);

// ---- reading at once

// Reads the bytes [off, off + cap) of the value that `r` names, as many as there are, into buf. *n_out: how many.
// Memory for a few chunks, whatever the value's length. key: that of the record that has the reference; the value
// file's record has the same. Fails with REMIXDB_CORRUPT, REMIXDB_IO or REMIXDB_NOMEM; buf then holds anything.
MUST_CHECK enum remixdb_status value_read(struct value_file *f, const struct value_ref *r, struct kref key,
                                          uint32_t off, void *buf, uint32_t cap, uint32_t *n_out);
// Whether values come from the disk: a guess from the time that one of them took. If they do, a reader of several
// values asks for all of them first.
static inline bool value_cold(const struct value_ctx *c) {
  return unlikely(atomic_load_explicit(&c->cold, memory_order_relaxed) != 0);
}
// The end of what value_read reads at once of the value, in the file. klen: the length of the record's key.
uint64_t value_first_end(const struct value_ref *r, uint32_t klen);
// Asks the system to bring [from, to) of the file into its page cache, where nr values begin, and does not wait. For
// callers that have asked value_cold. Takes no descriptor that others need.
void value_will_need(struct value_file *f, uint64_t from, uint64_t to, uint32_t nr);
// Call it before taking memory for a whole value: a broken reference must not ask for 4 GiB. If the value is long,
// reads its head and its last chunk. Fails as value_read does.
MUST_CHECK enum remixdb_status value_expect(struct value_file *f, const struct value_ref *r, struct kref key);
// Reads the index (value/index.h) that `r` names into buf, of r->len bytes; NULL: only checks it. key: the index's.
// Fails as value_read does.
MUST_CHECK enum remixdb_status value_read_index(struct value_file *f, const struct value_ref *r, struct kref key,
                                                void *buf);
// Reads the whole value and checks it. Fails as value_read does.
MUST_CHECK enum remixdb_status value_check(struct value_file *f, const struct value_ref *r, struct kref key);
#endif
