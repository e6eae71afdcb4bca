// SPDX-License-Identifier: Apache-2.0
//
// Paged REMIXes: views whose image is not in memory. Their file has pages (format 4, remix/pack.h), and memory has the
// directory of the pages and those pages that readers use. So a store's indexes may be larger than its memory.
//
// A page in memory is a REMIX of its own: the view over the records of its segments, with the same runs. Readers treat
// it as they treat a whole one. A paged REMIX itself has no segments (nr_segs is 0), so the ways of readers that go
// through its segments meet the case of an empty view, and ask there whether it is paged. A reader of a view that is
// whole pays nothing for this.
//
// Invariants
//   G1  A REMIX is whole or paged for all its life after another thread has it. It is paged only if its file has its
//       entries: a view that was erased in memory alone (remix/erase.h) stays whole. So does one of 4 GiB or more.
//   G2  `live` of a page is the number of live entries before it. The directory tells it, except for a young view,
//       because its tombstones are live: such a view is opened whole, and counted, before it is paged.
//   G3  A page's slot has one reference to it. The pool takes it out of the slot, and gives the reference back when all
//       threads that were inside an epoch then have left. So a page that a reader has found stays until the reader
//       leaves its epoch; to keep it longer, the reader takes a reference.
//   G4  A page is unpacked only if its checksum is right, its anchors ascend, and its selectors go from its cursor
//       offsets exactly to those of the next page. The directory's positions are of records that the tables have. So a
//       page is as safe to follow as a whole view.
//   G5  The pool drops pages while indexes and metadata of tables take more than the budget gives them
//       (budget_indexes_over). The pages that nobody has used for a while go first (CLOCK). It keeps REMIX_POOL_LEAST
//       bytes of pages, or an eighth of that share if this is less.
//   G6  A page that leaves memory leaves a filter (remix/filter.h) if a get has read it in vain since it came in. The
//       filter stays when the page comes in again. It goes by CLOCK, too: one is looked at whenever REMIX_FILTERS_STEP
//       pages have left, and when filters take more than their part. So filters stay where absent keys are asked for.
//       Without memory for a filter there is none.
//       A view that is made anew takes filters over: where at least half of the pages before it have filters, or were
//       read in vain, its pages get filters of the same levels (remix_page_out). These are in the same ring, within the
//       same bounds.
//   G7  Between the time when a page is taken out of the ring and when it is out of its slot, the thread that drops it
//       has no lock, and uses the page alone: its REMIX may go meanwhile.
//
// Threads: any. A page that is in memory costs a reader one load more, and no lock. A thread that unpacks a page takes
// the pool's lock for a short time.
#ifndef REMIX_PAGED_H
#define REMIX_PAGED_H

#include "base/epoch.h"
#include "remix/open.h"

#define REMIX_POOL_LEAST ((uint64_t)1 << 20)          // bytes
#define REMIX_POOL_LEAST_STARVED ((uint64_t)8 << 10)  // the same if budget_starved is set

// Directories and metadata leave a part of that share. Filters take at most this many eighths of that part.
#define REMIX_FILTERS_PART 7u
#define REMIX_FILTERS_STARVED ((uint64_t)2 << 10)  // bytes, at most, if budget_starved is set
#define REMIX_FILTERS_STEP 8u  // the hand of filters passes one of them when so many pages have left

struct remix_in;      // a page in memory
struct remix_filter;  // remix/filter.h

// The pages of a store that are in memory.
struct remix_pool {
  struct epoch *epoch;
  struct budget *budget;
  pthread_mutex_t lock;    // guards the rings and `bytes`; except for the epoch's, no lock is taken under it
  struct remix_in *hand;   // in the ring of all pages; NULL: there is none
  _Atomic uint64_t bytes;  // the bytes of all pages. Written under the lock, relaxed
  _Atomic(struct ZSTD_DCtx_s *) unpacker;     // for the next thread; NULL: it makes one
  _Atomic uint64_t nr, loads, loaded, drops;  // pages in memory; pages and bytes read, pages dropped, so far. Relaxed
  _Atomic uint64_t keys;                      // the keys of all paged REMIXes. Relaxed
  struct {
    struct remix_filter *hand;   // in the ring of all filters; NULL: there is none
    _Atomic uint64_t nr, bytes;  // all filters, and their bytes. Written under the lock, relaxed
    _Atomic uint64_t made;       // so far. Relaxed
    _Atomic uint64_t denied;     // keys that filters have excluded. Relaxed
    uint32_t steps;              // pages that have left
  } filters;
};

void remix_pool_init(struct remix_pool *p, struct epoch *epoch, struct budget *budget);
void remix_pool_fini(struct remix_pool *p);  // after the last REMIX

// Opens a REMIX whose file has pages, without reading these; another one is opened whole. ctx->pages is set. Reads the
// header and the directory, and checks all that can be checked without the pages. Fails as remix_open does.
MUST_CHECK enum remixdb_status remix_open_paged(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs,
                                                uint32_t nr_runs, struct remix **out);
// Makes a whole REMIX paged. No other thread has it, and its file has its entries (G1). It may be a young view. Nothing
// changes if the file has no pages. before: a REMIX of x's keys, or of some of them; or NULL. If it is paged, x takes
// its filters over (G6). The caller has a reference to it. After a failure x is whole. Fails as remix_open does.
// Outside of any lock.
MUST_CHECK enum remixdb_status remix_page_out(struct remix *x, const struct remix *before);
// Opens the whole REMIX: x itself, or another one with the same entries, which must not be retired. It is young if x
// is. *out has a reference. Fails as remix_open does.
MUST_CHECK enum remixdb_status remix_whole(struct remix *x, struct remix **out);

// ---- pages of a paged REMIX

static inline bool remix_is_paged(const struct remix *x) { return x->paged != NULL; }
uint32_t remix_pages(const struct remix *x);                        // how many it has
uint32_t remix_page_of(const struct remix *x, struct kref key);     // the page to which the key belongs
uint32_t remix_page_at(const struct remix *x, uint64_t rank);       // the page of the live entry of this rank
uint64_t remix_page_rank(const struct remix *x, uint32_t page);     // live entries before the page (G2)
uint32_t remix_page_segment(const struct remix *x, uint32_t page);  // segments before the page
// Finds a page, and reads it if it is not in memory. Then it may wait for a descriptor (fdpool_acquire). Inside an
// epoch; *out is valid until the epoch ends (G3). Fails as the reading of a file does.
MUST_CHECK enum remixdb_status remix_page(const struct remix *x, uint32_t page, struct remix **out);
// Finds the page in which a key may be live, as remix_page does. *out NULL: the key is live in none. That is certain.
// Filters are asked before a page is read. wait: waits for a descriptor, so that the caller holds none. Otherwise fails
// with REMIXDB_ABORTED if a page has to be read and no descriptor is free.
MUST_CHECK enum remixdb_status remix_page_get(const struct remix *x, struct kref key, uint64_t hash, bool wait,
                                              struct remix **out);
// Keys that are to be looked up.
#define REMIX_NEEDS_MAX 64u
struct remix_need {
  const struct remix *x;
  struct kref key;
  uint64_t hash;
};
// Whether remix_page_get would read a page.
bool remix_page_lacks(const struct remix_need *w);
// Reads the pages together that remix_page_get would read for these keys one by one, as far as they take no more than
// half of what memory has for pages. Nothing fails: remix_page_get reads what is not there then. The REMIXes have the
// same context; whole ones are passed over. Waits for no descriptor. Inside an epoch.
void remix_pages_together(const struct remix_need *needs, uint32_t nr);
// The page of a key.
MUST_CHECK static inline enum remixdb_status remix_page_for(const struct remix *x, struct kref key,
                                                            struct remix **out) {
  return remix_page(x, remix_page_of(x, key), out);
}
// The position of a run's first record behind a page.
sst_pos remix_page_end(const struct remix *page, uint32_t run);
// Bytes that a whole REMIX over these runs takes in memory, about.
uint64_t remix_whole_memory(struct sst *const *runs, uint32_t nr_runs);
#endif
