// SPDX-License-Identifier: Apache-2.0
//
// Admission to the system's page cache: whether a reader reads a block through it or past it.
//
// To read a page that the page cache has takes a microsecond. A page that is brought in takes the place of another one.
// Where many reads are under way at once, a read through the page cache also takes twice the processor time of a read
// past it. That pays if the page is read again while it is there. Where the store is larger than memory, most pages
// that readers miss are not. So a reader of many blocks reads a block past the page cache if nobody has missed it
// before. It reads a block that was missed lately through the page cache: the block is there, or is worth its place
// there. A table of bytes remembers the missed blocks (a doorkeeper: Einziger, Friedman, Manes: TinyLFU, ACM
// Transactions on Storage 13, 2017). A single read goes through the page cache, where it costs next to nothing more,
// and the table remembers it.
//
// Invariants
//   A1  A block's hash tells its byte of the table. The byte holds further bits of the hash of the last block that was
//       missed there. So a block is remembered until another one takes its byte, and the table forgets by itself: with
//       N bytes a block is still known after k other misses with a probability of exp(-k / N).
//   A2  A block goes through the page cache if nobody has taken its byte: the page cache, too, has room at that time.
//   A3  An answer is a guess. A wrong one costs time, and never changes what is read.
//   A4  The table is made once and stays as large as it is. Threads read and write its bytes without order (relaxed).
//       One thread may overwrite the note of another, which is then forgotten.
#ifndef ADMISSION_H
#define ADMISSION_H

#include "blkio.h"

// The table has two to four bytes for each page of the memory, or one where it may not have more. So it remembers a
// missed block for longer than the page cache would keep all that was read (docs/DECISIONS.md). A smaller table forgets
// blocks that are in the page cache.
#define ADMISSION_LEAST 4096u  // bytes of the table, which are a power of two
// Where the data take no more than this, most blocks that readers miss are in the page cache.
#define ADMISSION_DATA(memory) ((memory) + (memory) / 2)

struct admission {
  _Atomic bool on;                    // some reads go past the page cache. Relaxed
  _Atomic(_Atomic uint8_t *) missed;  // the table; NULL until it is needed. A byte of 0 is free
  uint32_t mask;                      // its size - 1; written before `missed` is published
  _Atomic uint64_t nr_past;           // blocks that went past the page cache; relaxed, for figures
  pthread_mutex_t lock;               // for admission_set; no lock is taken within it
};

void admission_init(struct admission *a);  // all reads go through the page cache
void admission_fini(struct admission *a);
// Decides whether there is a choice. data: bytes of all tables; memory: bytes that the process may use with its page
// cache, 0: not known; most: bytes that the table may take. Without room for the table all reads go through the page
// cache. Values apart do not count. They are read through the page cache, whatever the choice is, and take room in it
// from blocks. But where they are most of a store, a block has the references to about a hundred values. So the block
// is read a hundred times as often as one value, and belongs in the page cache before the values do. Any thread.
void admission_set(struct admission *a, uint64_t data, uint64_t memory, size_t most);
size_t admission_memory(const struct admission *a);  // bytes of the table
// Notes that a reader misses the block with these 64 bits. Returns whether the block was missed lately, or has a
// byte of its own (A2). Any thread.
bool admission_knows(struct admission *a, uint64_t block);

// Whether there is a choice. a NULL: never.
static inline bool admission_chooses(const struct admission *a, const struct blkio *io) {
  return a && atomic_load_explicit(&a->on, memory_order_relaxed) && blkio_cold(io);
}
// A reader misses a block and reads it through the page cache. Any thread.
static inline void admission_note(struct admission *a, const struct blkio *io, uint64_t block) {
  if (admission_chooses(a, io)) (void)admission_knows(a, block);
}
// Reads past the page cache are for `nr` blocks. Any thread.
static inline void admission_count(struct admission *a, uint32_t nr) {
  (void)atomic_fetch_add_explicit(&a->nr_past, nr, memory_order_relaxed);
}
// Whether a reader that misses a block should read it past the page cache, beside others. Any thread.
static inline bool admission_past(struct admission *a, const struct blkio *io, uint64_t block) {
  if (!admission_chooses(a, io) || admission_knows(a, block)) return false;
  admission_count(a, 1);
  return true;
}
#endif
