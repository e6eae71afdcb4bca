// SPDX-License-Identifier: Apache-2.0
//
// Partitions: the views of a key range, and their files.
//
// An opening of a store does not read the keys of its partitions. It looks at the end of each table and at both ends of
// each REMIX file (part_look), so a missing file, a file of another store and one of another history are found at once.
// The partition is then *away*: its files are opened and checked when it is first used (part_ready). A partition that a
// round has made never is away.
//
// Invariants
//   P1  `remix` of a partition that is away is NULL. part_ready stores `young` first and then, with release, `remix`.
//       They never change after that. So a reader that loads `remix` with acquire, and finds it, has both. A reader
//       that does not find `remix` uses nothing of `young`. Only a partition without files has no `remix` for ever.
//   P2  A partition that cannot be opened stays away. Each use tries again, and fails with the error. A round is an
//       exception: it holds a damaged partition (part_try). Until the end of the round each use fails at once with the
//       error that the round has found. So the partition stays away for all of the round.
//   P3  `quick` is a copy of fields of `remix`, or empty: the partition is empty, away or paged, or the anchors of its
//       view have no quick search (anchors_quick_set). It is written before `remix`, so a reader who has found `remix`
//       (P1) has it, too. It has no reference of its own, because a view that a partition has never changes, and lives
//       as long as the partition.
//   P4  `unread_ns` tells that a merge could not read the partition's tables (part_set_unread). Merges that can be left
//       undone do not take such a partition, because other work in their round would fail with them. They never take a
//       damaged one. Where a read has failed, they take none for a time that doubles with each failure. A compaction
//       that a caller asked for is an exception: each call tries such partitions until it has met one that it cannot
//       read. A partition that is made with tables of this one inherits the mark (part_inherit).
//   P5  A partition that a round makes of a damaged one that is away is *shut* (part_above): its older view stays as it
//       is, unopened, and its young view, which is open, has the new tables. Readers get nothing of it: they fail with
//       its error, and do not try to open it. It is not among the young views of its version, so readers of other
//       partitions do not meet it. A shut partition stays away. A compaction that a caller asked for tries to open the
//       older view. If that succeeds, the next version has an ordinary partition in its place.
//   P6  Partitions that have the same older view share it (struct part_older), so a process opens its files once. Its
//       files are made obsolete only when they were opened: by a round that has merged them.
//   P7  The plan of a round must not take a partition that is away for an empty one: it has no `remix`, and part_runs
//       counts only the tables of its open young view. part_is_empty tells the difference, part_older_tables counts the
//       tables of the older view. Only the young view of such a partition may be merged or built. The partition stays
//       in each next version, with all the files that it had, until it is opened.
//   P8  A partition that is away never gets a larger range: damage would spread to keys that it never had. So an empty
//       partition behind one that is away stays there. If another partition behind one that is away leaves, an empty
//       one stays in its place (part_takes_over).
#ifndef PART_H
#define PART_H

#include <assert.h>

#include "remix/remix.h"
#include "view/current.h"

// A file as CURRENT names it.
struct part_file {
  uint64_t number;         // 0: there is no such file
  uint64_t print, origin;  // its fingerprint, and the id of the store that wrote it
  uint64_t size;           // bytes
  struct pack_part *part;  // the file is this part of a pack; NULL: it is a file of its own
};
struct part_files {
  struct part_file remix, young;
  uint32_t nr, nr_young;                    // tables of both views; the last nr_young are the young view's
  struct part_file tables[REMIX_RUNS_MAX];  // from the oldest to the newest
};

// An older view that may be unopened, shared by partitions (P6).
struct part_older {
  _Atomic uint32_t refs;
  pthread_mutex_t lock;  // held while the files are opened: at most one thread does that
  struct remix *remix;   // referenced; NULL: not opened. Under the lock
};

// More fields of a partition that was made away. All but `watch`, `counted`, `held` and `error` is set when it is made.
struct part_away {
  const struct sst_ctx *ctx;
  const struct remix_watch *watch;  // for its REMIXes (compact_watch); NULL: none
  struct part_older *older;         // referenced
  struct part_files files;
  bool printed;                    // CURRENT has fingerprints
  bool expires;                    // some record expires
  bool counted;                    // in the accounts (budget_away). Under the lock once others have the partition
  bool odd;                        // the opening brings the partition, to find out what is wrong
  bool shut;                       // P5
  bool held;                       // P2. Under the lock
  struct err_saved *error;         // the error that a round has found; own memory; NULL: none. Under the lock
  uint64_t entries, keys;          // both views', as their files say
  uint64_t old_keys, old_entries;  // the older view's
  bool old_expires;
  pthread_mutex_t lock;  // held while the partition is opened: at most one thread does that. Before that of `older`
  bool bounded;          // `end` is the next partition's anchor; else there is none
  uint32_t end_len;
  uint8_t end[];
};

struct part {  // counted, shared between versions; immutable but for P1 and P3
  // One cache line has what a reader needs to find the segment of a key.
  _Atomic(struct remix *) remix;  // referenced; NULL: the partition is empty, or away
  _Atomic(struct remix *) young;  // referenced; NULL: no young view. Its tombstones hide keys of `remix`
                                  // (remix_make_young)
  struct remix_quick quick;       // P3
  _Atomic uint32_t refs;
  _Atomic uint32_t failed_reads;  // P4: how often a read has failed. Relaxed
  _Atomic uint64_t unread_ns;     // P4: 0: nothing has failed; PART_DAMAGED; else the time of the next try. Relaxed
  struct part_away *away;         // NULL: it was not made away
  _Atomic uint64_t dropped;       // part_dropped (view/version.h); 0: not known. Relaxed
  uint64_t hides;                 // part_hides; set before another thread has the partition
  uint32_t more_runs;             // so many more runs it may have, because a cut made it (C6 in compact/cut.h). Set
                                  // before another thread has the partition; not saved
  uint32_t alen;
  uint8_t anchor[];
};

_Static_assert(sizeof(void *) != 8 || offsetof(struct part, refs) == CACHE_LINE, "a search reads one line first");

// Makes a partition with one reference. Takes the caller's references to remix and young over, also if it fails. Fails
// with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status part_create(struct kref anchor, struct remix *remix, struct remix *young,
                                           struct part **out);
// Makes a partition of CURRENT that is away. end: the anchor of the next partition; ptr NULL: none. spaces: it is of
// that tree. Looks at the files, and fails if one is missing, has not the size that it states, or is of another tree,
// store or history: REMIXDB_CORRUPT, REMIXDB_VERSION, REMIXDB_NOMEM or REMIXDB_IO.
MUST_CHECK enum remixdb_status part_look(const struct sst_ctx *ctx, const struct current_part *names, struct kref end,
                                         bool spaces, struct part **out);
// Makes the partition that a round puts in the place of `old`. That one was away when the round began. The new one has
// this young view in place of the old one's; NULL: it has none. The older view stays. The partition is shut, or an
// ordinary one if the older view has been opened meanwhile. Takes the caller's reference to young over, also if it
// fails. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status part_above(struct part *old, struct remix *young, struct part **out);
void part_ref(struct part *p);
void part_unref(struct part *p);  // NULL is allowed

// The views; NULL as above.
static inline struct remix *part_remix(const struct part *p) {
  return atomic_load_explicit(&p->remix, memory_order_acquire);  // P1
}
static inline struct remix *part_young(const struct part *p) {
  return atomic_load_explicit(&p->young, memory_order_acquire);
}
// Prefetches the segment to which the key belongs, in the newest view. The segment is for remix_get_end of that view.
// NULL: the partition is empty or away, or that view is paged. Inside an epoch.
static inline const uint8_t *part_get_begin(const struct part *p, struct kref key) {
  const struct remix *const remix = part_remix(p), *const young = part_young(p);  // in this order (P1)
  if (unlikely(!remix)) return NULL;
  const uint32_t seg = likely(!young) ? remix_quick_find(&p->quick, key) : ANCHORS_UNKNOWN;
  if (likely(seg != ANCHORS_UNKNOWN)) return remix_quick_seg(&p->quick, seg);
  return remix_get_begin(unlikely(young != NULL) ? young : remix, key);
}
// The same for a seek in the older view: its segment. ANCHORS_UNKNOWN: the cursor searches for it (remix_seek_begin).
static inline uint32_t part_seek_begin(const struct part *p, struct kref key) {
  const uint32_t seg = likely(part_remix(p) != NULL) ? remix_quick_find(&p->quick, key) : ANCHORS_UNKNOWN;
  if (likely(seg != ANCHORS_UNKNOWN)) (void)remix_quick_seg(&p->quick, seg);
  return seg;
}
static inline bool part_is_away(const struct part *p) { return !part_remix(p) && p->away; }
static inline bool part_is_shut(const struct part *p) { return p->away && p->away->shut; }  // P5
// P4
#define PART_DAMAGED UINT64_MAX
#define PART_PAUSE_NS 4000000000ull  // after the first failed read
#define PART_PAUSES 8u               // so often that time doubles
static inline uint64_t part_unread_ns(const struct part *p) {
  return atomic_load_explicit(&p->unread_ns, memory_order_relaxed);
}
// Tells whether some merge could not read the partition's tables, now or earlier.
static inline bool part_is_unread(const struct part *p) { return unlikely(part_unread_ns(p) != 0); }
// Tells whether a merge that can be left undone is to leave the partition out. now: when the call began to plan merges:
// a partition that the call itself has marked stays out of it, however long it takes.
static inline bool part_is_left(const struct part *p, uint64_t now) {
  const uint64_t at = part_unread_ns(p);
  return unlikely(at != 0) && (at == PART_DAMAGED || now < at);
}
// Adds the nanoseconds from `now` until the partition can be tried again to their least value in *least; 0: none.
static inline void part_add_again(const struct part *p, uint64_t now, uint64_t *least) {
  const uint64_t at = part_unread_ns(p);
  if (likely(at == 0) || at == PART_DAMAGED || at <= now) return;
  if (*least == 0 || at - now < *least) *least = at - now;
}
// A merge could not read the partition: s is REMIXDB_CORRUPT or REMIXDB_IO. Returns whether to tell that: damage only
// once.
bool part_set_unread(struct part *p, enum remixdb_status s);
// Knowledge about a partition's keys of dropped spaces (part_dropped in view/version.h).
enum part_dropped {
  PART_UNKNOWN,
  PART_CLEAN,  // there is none
  PART_FEW,    // they are too few for a merge
  PART_DUE,    // they are worth a merge
  PART_STUCK,  // the partition is damaged: they can only leave with all of it
};
#define PART_DROPPED 7u  // the bits of `dropped` that have it
// p was made, and may keep tables of `from` (P4). Before another thread has p.
static inline void part_inherit(struct part *p, const struct part *from) {
  if (likely(!part_is_unread(from))) return;
  atomic_store_explicit(&p->unread_ns, part_unread_ns(from), memory_order_relaxed);
  const uint32_t failed = atomic_load_explicit(&from->failed_reads, memory_order_relaxed);
  atomic_store_explicit(&p->failed_reads, failed, memory_order_relaxed);
  const uint64_t dropped = atomic_load_explicit(&from->dropped, memory_order_relaxed);
  if ((dropped & PART_DROPPED) == PART_STUCK) atomic_store_explicit(&p->dropped, dropped, memory_order_relaxed);
}
static inline bool part_is_empty(const struct part *p) { return !part_remix(p) && !p->away; }
// Tells whether the partition has a young view for readers, also if it is away.
static inline bool part_has_young(const struct part *p) {
  return !part_is_shut(p) && (part_young(p) || (p->away && p->away->files.young.number));
}
bool part_expires(const struct part *p);  // some record expires; also if it is away
// part_ready for a partition that is away.
MUST_CHECK enum remixdb_status part_bring(const struct part *p);
// Opens the files of a partition that is away. Reads them from disk, inside an epoch or not. Any thread. Fails as the
// opening of a file does, and with REMIXDB_CORRUPT if a table has keys outside of the partition.
MUST_CHECK static inline enum remixdb_status part_ready(const struct part *p) {
  return likely(part_remix(p) != NULL) || !p->away ? REMIXDB_OK : part_bring(p);
}

// Rounds alone call these. part_try opens a partition that is away, as part_ready does. If it is damaged, the call
// holds it (P2), and opens its young view alone, if it has one. *held_out tells that; the status is then REMIXDB_OK.
// The call does not try to open a shut partition, unless `again` is set: then it tries to open the older view, and the
// next version gets an ordinary partition (part_above). Other failures as for part_ready; the partition is not held
// then. part_release ends the hold.
MUST_CHECK enum remixdb_status part_try(struct part *p, bool again, bool *held_out);
void part_release(struct part *p);
// Raises the error of a partition that is held or shut.
enum remixdb_status part_why(const struct part *p);
// Tells whether new tables can go into the young view of a partition that is held or shut: it has none, or it is open.
static inline bool part_takes_tables(const struct part *p) { return part_young(p) || p->away->files.nr_young == 0; }
// Tells whether the partition that a round makes of this one would differ, without new data: it is shut, and its older
// view has been opened.
bool part_opens(const struct part *p);
// Tells whether this partition may take over the range of an empty one behind it (P8). p NULL: there is none.
static inline bool part_takes_over(const struct part *p) { return p && !part_is_away(p); }

static inline struct kref part_anchor(const struct part *p) { return kref(p->anchor, p->alen); }

// Return the number of a partition's runs in both views, and the r-th oldest run, counted from 0. A partition that is
// away has only the runs of its open young view here (P7).
static inline uint32_t part_old_runs(const struct part *p) {
  const struct remix *const x = part_remix(p);
  return x ? x->nr_runs : 0;
}
static inline uint32_t part_young_runs(const struct part *p) {
  const struct remix *const x = part_young(p);
  return x ? x->nr_runs : 0;
}
static inline uint32_t part_runs(const struct part *p) { return part_old_runs(p) + part_young_runs(p); }
static inline struct sst *part_run(const struct part *p, uint32_t r) {
  const uint32_t old = part_old_runs(p);
  assert(r < part_runs(p));
  return r < old ? part_remix(p)->runs[r] : part_young(p)->runs[r - old];
}

// The number of tables of the older view, also if the partition is away.
static inline uint32_t part_older_tables(const struct part *p) {
  return part_is_away(p) ? p->away->files.nr - p->away->files.nr_young : part_old_runs(p);
}
// Tells whether a view or a table is one of the partition's. Also finds an opened older view of a partition that is
// away, and its tables.
bool part_has(const struct part *p, const void *object);

// How many keys of the older view the young view hides, about. The round that made the partition may know; else it is
// half of the young view's entries. The partition is not away.
#define PART_HIDES_UNKNOWN UINT64_MAX
uint64_t part_hides(const struct part *p);

// The partition's files, also if it is away.
void part_files(const struct part *p, struct part_files *out);
uint32_t part_nr_files(const struct part *p);
uint64_t part_table_bytes(const struct part *p);  // bytes of the tables' files
#endif
