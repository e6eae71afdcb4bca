// SPDX-License-Identifier: Apache-2.0
//
// Fetches: blocks of tables, and other bytes of files, that are read over many calls of the user. A thread asks for
// them one by one and takes them as their reads end. Each block is in flight once, and may have several readers.
//
// Invariants
//   L1  A fetch reads into its own memory, or into memory that its owner names, and nothing in the cache says that it
//       does. So no thread ever waits for a fetch: its owner may be away for long. A thread that wants the block
//       meanwhile reads it itself. The block is offered to the cache when it is taken, by the rules for a missed block
//       (C7).
//   L2  Between two calls of the user fetches hold no descriptor of the pool: another thread might wait for it. Under
//       io_uring a descriptor goes back as soon as its reads are handed over (B8). With another engine the owner takes
//       all fetches before it returns (fetcher_lasts).
//   L3  Its readers keep the fetch's file open until the fetch is given back, or all fetches are destroyed.
//   L4  A fetch's memory is the kernel's until the fetch is taken. The destruction waits for that.
//   L5  While the owner uses a fetch that was taken, no fetch has a descriptor, so the owner may wait for one. Under
//       AIO all reads that are under way end first.
#ifndef TABLE_FETCH_H
#define TABLE_FETCH_H

#include "table/state.h"

struct fetch {
  struct blkio_read read;    // private; the first member, because blkio hands it back
  struct sst *sst;           // the block's table; NULL: the fetch is of bytes
  struct fdpool_file *file;  // the one that is read
  uint32_t block;
  void *readers;               // the caller's: NULL when a call of asking has made the fetch
  enum remixdb_status status;  // set when the fetch is taken; the thread's message belongs to this status
  // These two are set once the fetch was taken with REMIXDB_OK, until it is given back.
  const uint8_t *data;  // the whole block, verified, or the bytes
  uint32_t len;         // how many bytes there are, fewer than were asked for if the file ends
  // private below
  struct fetch *next;   // in one of the lists of fetcher
  struct fetch *chain;  // in its bucket
  const char *path;     // the file's path
  uint64_t off;         // where the bytes begin in the file
  uint8_t *into;        // the owner's memory for them; NULL: buf
  uint8_t *buf;         // aligned to BLKIO_ALIGN; kept for the next use
  uint32_t size;        // bytes of buf
  uint32_t pages;       // the block's pages
  bool opened;          // it has a descriptor
  bool good;            // its read has ended well; for the list `ended`
};

struct fetcher;  // one thread at a time

// depth: the most readers that wait for fetches. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status fetcher_create(struct blkio *io, uint32_t depth, struct fetcher **out);
void fetcher_destroy(struct fetcher *fr);  // waits for the reads in flight; NULL is allowed
// The fetch for this block: the one that is under way, or a new one. It exists, because at most `depth` readers wait.
// Not for the block of a fetch that was taken and not given back. Reads nothing yet.
struct fetch *fetcher_ask(struct fetcher *fr, struct sst *t, uint32_t block);
// A fetch of the bytes [off, off + len) of a file that does not bypass the page cache, with one reader. into: memory
// for them; NULL: the fetch's own. The file, its path and the memory stay as L3 and L4 say. It exists, as above.
struct fetch *fetcher_ask_bytes(struct fetcher *fr, struct fdpool_file *file, const char *path, uint64_t off,
                                uint32_t len, void *into);
// Fetches that were asked for and wait for fetcher_submit.
uint32_t fetcher_waiting(const struct fetcher *fr);
// Starts the reads that were asked for, as many as the engine takes. Outside of any epoch.
void fetcher_submit(struct fetcher *fr);
// The next fetch that has ended, well or not; NULL: none. wait: sleeps until there is one, if there are any. If no
// engine takes reads, the call does one of them itself. The caller gives the fetch back before it takes the next one.
// Outside of any epoch.
struct fetch *fetcher_take(struct fetcher *fr, bool wait);
void fetcher_give(struct fetcher *fr, struct fetch *f);
// Whether fetches may stay under way between two calls of the user (L2).
bool fetcher_lasts(const struct fetcher *fr);
// Fetches that were asked for and not given back.
uint32_t fetcher_count(const struct fetcher *fr);
struct blkio_flow *fetcher_flow(struct fetcher *fr);  // for its bell
#endif
