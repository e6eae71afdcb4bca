// SPDX-License-Identifier: Apache-2.0
//
// Fetches: blocks that are read over many calls of the user. A thread asks for blocks one by one and takes them as
// their reads end. Each block is in flight once, and may have several readers.
//
// Invariants
//   L1  A fetch reads into its own memory, and nothing in the cache says that it does. So no thread ever waits for a
//       fetch, whose owner may be away for long. A thread that wants the block meanwhile reads it itself. The block is
//       offered to the cache when it is taken, by the rules for a missed block (C7).
//   L2  Between two calls of the user fetches hold no descriptor of the pool, for which another thread might wait.
//       Under io_uring a descriptor goes back as soon as its reads are handed over (B8). With another engine the owner
//       takes all fetches before it returns (sst_fetcher_lasts).
//   L3  Its readers keep the fetch's table open until the fetch is given back, or all fetches are destroyed.
//   L4  A fetch's memory is the kernel's until the fetch is taken. The destruction waits for that.
//   L5  While the owner uses a fetch that was taken, no fetch has a descriptor, so the owner may wait for one. Under
//   AIO
//       all reads that are under way end first.
#ifndef TABLE_FETCH_H
#define TABLE_FETCH_H

#include "table/state.h"

struct sst_fetch {
  struct blkio_read read;  // private; the first member, because blkio hands it back
  struct sst *sst;
  struct fdpool_file *file;  // of the table's: the one that is read
  uint32_t block;
  void *readers;               // the caller's: NULL when sst_fetcher_ask has made the fetch
  enum remixdb_status status;  // of a fetch that was taken; the thread's message is of this status
  const uint8_t *data;         // of a fetch that was taken, with REMIXDB_OK: the whole block, verified, until it is
                               // given back
  // private below
  struct sst_fetch *next;   // in one of the lists of sst_fetcher
  struct sst_fetch *chain;  // in its bucket
  uint8_t *buf;             // aligned to BLKIO_ALIGN; kept for the next block
  uint32_t size;            // of buf
  uint32_t pages;
  bool opened;  // it has a descriptor
  bool good;    // its read has ended well; of the list `ended`
};

struct sst_fetcher;  // one thread at a time

// depth: the most readers that wait for fetches. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_fetcher_create(struct blkio *io, uint32_t depth, struct sst_fetcher **out);
void sst_fetcher_destroy(struct sst_fetcher *fr);  // waits for the reads in flight; NULL is allowed
// The fetch for this block: the one that is under way, or a new one. It exists, because at most `depth` readers wait.
// Not for the block of a fetch that was taken and not given back. Reads nothing yet.
struct sst_fetch *sst_fetcher_ask(struct sst_fetcher *fr, struct sst *t, uint32_t block);
// Blocks that were asked for and wait for sst_fetcher_submit.
uint32_t sst_fetcher_waiting(const struct sst_fetcher *fr);
// Starts the reads of the blocks that were asked for, as many as the engine takes. Outside of any epoch.
void sst_fetcher_submit(struct sst_fetcher *fr);
// The next fetch that has ended, well or not; NULL: none. wait: sleeps until there is one, if there are any. Without
// an engine that takes reads it reads one block itself. The caller gives the fetch back before it takes the next one.
// Outside of any epoch.
struct sst_fetch *sst_fetcher_take(struct sst_fetcher *fr, bool wait);
void sst_fetcher_give(struct sst_fetcher *fr, struct sst_fetch *f);
// Whether fetches may stay under way between two calls of the user (L2).
bool sst_fetcher_lasts(const struct sst_fetcher *fr);
// Fetches that were asked for and not given back.
uint32_t sst_fetcher_count(const struct sst_fetcher *fr);
struct blkio_flow *sst_fetcher_flow(struct sst_fetcher *fr);  // for its bell
#endif
