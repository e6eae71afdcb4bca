// SPDX-License-Identifier: Apache-2.0
//
// REMIX: the sorted view over the tables (runs) of one partition (Zhong, Chen, Wu, Jiang: "REMIX: Efficient Range Query for
// LSM-trees", FAST 2021), "%06llu.remix". The view is cut in segments of at most 32 entries; a segment has an anchor, a cursor
// offset per run, and per entry a selector, a hash tag (when tags are on) and a discriminating-bit position. Runs are in order of
// age, oldest first; among the versions of a key the newest comes first.
//
// Invariants
//   R1  Entries are in order of (key, age of the run: newest first). All versions of a key lie in one segment.
//   R2  An entry whose key is that of the entry before it carries REMIX_OLD; the newest version never does. REMIX_TOMB is the
//       record's own flag.
//   R3  A segment's anchor is the shortest prefix of its first key that is greater than the key before the segment; the first
//       one's is empty.
//   R4  The cursor offset of run r is the position of r's first entry at or after the segment; counting r's selectors before
//       entry i from there gives the position of run r's next record at entry i.
//   R5  The discriminating bit of entry i (i > 0 in its segment) is the first bit at which its key differs from entry i-1's, in
//       the bit order below; they form a blind trie over the segment's distinct keys.
//
// Bit order: a key is read as its bytes, each preceded by a 1 bit, and 0 bits after the end; so a prefix sorts before what it
// prefixes and no two keys are equal in all bits. A bit position is byte << 4 | b, b = 0 for the leading bit, 1..8 for the byte's
// bits from the highest. In a segment it is stored in 16 bits with the byte counted from the segment's base (bytes common to all
// its keys, stored once); 0xFFFF marks "same key as before", and 0xFFFE one too far away (more than 4,094 bytes behind the base):
// a segment that holds such a one is searched by binary search of its keys.
#ifndef REMIX_H
#define REMIX_H

#include "base/anchors.h"
#include "base/set32.h"
#include "sst.h"

#define REMIX_SEG 32u
#define REMIX_RUNS_MAX 32u
#define REMIX_RUN 0x1Fu    // selector: the run,
#define REMIX_TOMB 0x40u   // a tombstone,
#define REMIX_OLD 0x80u    // not the newest version of its key

#define REMIX_BIT_SAME 0xFFFFu
#define REMIX_BIT_FAR 0xFFFEu
#define REMIX_BYTE_MAX 4094u  // the farthest byte behind the base that is stored (base/blind.h searches by these)

// What was looked at, for tests: counted by what is compiled with REMIX_COUNTERS.
struct remix_counters {
  _Atomic uint64_t key_reads;     // keys of entries read by a get or a seek,
  _Atomic uint64_t key_compares;  // and compared in full
  _Atomic uint64_t records;       // records given by remix_record
  _Atomic uint64_t segments;      // segments cursors came to
  _Atomic uint64_t probes;        // looks at a count of live entries, to pass segments
};
extern struct remix_counters remix_counters;
#if defined(REMIX_COUNTERS)
#define REMIX_COUNT(field) ((void)atomic_fetch_add_explicit(&remix_counters.field, 1, memory_order_relaxed))
#else
#define REMIX_COUNT(field) ((void)0)
#endif

struct remix {
  const struct sst_ctx *ctx;
  uint64_t number;
  char *path;
  struct sst **runs;        // nr_runs, oldest first; each referenced
  uint32_t nr_runs;
  uint32_t nr_segs;
  uint64_t nr_entries;      // all versions
  uint64_t nr_keys;         // newest versions that are not tombstones
  bool tags;
  uint64_t file_size;
  uint8_t *image;           // the view as docs/FORMAT.md has it, unpacked and checked
  size_t image_size;
  // private below: where things are in the image, and what is known beside it
  struct remix_index *index;
  _Atomic uint32_t refs;
  _Atomic bool obsolete;
  // Jumps: blocks that scans have read from disk only because there are several runs. A scan reads a block where it begins, and then what follows it in the
  // same run; when it comes to a block of another run, that is a jump. In a young view, which is read beside another, where it begins is one, too. Both relaxed; jumps_due is set by what ctx->worn calls, 0 at first.
  _Atomic uint64_t jumps, jumps_due;
};

// Reads and checks the file: checksums, and that every count, offset, selector and position agrees with the tables (which it
// references). *out has one reference. REMIXDB_CORRUPT also when missing, REMIXDB_VERSION.
MUST_CHECK enum remixdb_status remix_open(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs, uint32_t nr_runs,
                                          struct remix **out);
// The same for a file that was just written and synced from this image (remix/build.h), which is copied: the file is not read. All that can be wrong with a view
// is looked for as if it had been. REMIXDB_NOMEM, REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status remix_open_built(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs, uint32_t nr_runs,
                                                const uint8_t *image, size_t image_size, uint64_t file_size, struct remix **out);
void remix_ref(struct remix *x);
// NULL is allowed; the last one also drops the tables' references, and removes the file when obsolete.
void remix_unref(struct remix *x);
void remix_retire(struct remix *x);  // makes it obsolete: no version will name it
void remix_name(char *buf, uint64_t number);  // "000001.remix"; buf of 32 bytes
// From now on it is a young view, which is read beside an older one: tombstones are live (a get or a cursor gives them like any record, for they hide what is in the
// older view), and a block that a seek reads of it, or a scan begins with, is a jump, too. Before anybody else has it.
void remix_make_young(struct remix *x);
bool remix_is_young(const struct remix *x);
size_t remix_memory(const struct remix *x);
// Adds to its jumps, and tells ctx->worn when there are enough of them.
void remix_jumped(struct remix *x, uint64_t jumps);
struct kref remix_anchor(const struct remix *x, uint32_t seg);  // points into the image; seg < nr_segs

// The newest version of the key, when that is live (not a tombstone, or the view is a young one): REMIXDB_OK, REMIXDB_NOTFOUND, or an error. hash = hash64(key). Inside
// an epoch; the record holds until the epoch is left or h is used again.
// With tags the keys that are read are those of live entries of one segment with the key's tag; where there are several, or the view is a young one, of them that one which
// the blind search leaves. So for a key that is there it is its own; for another one 32/256 = 0.125 at most, a quarter of it where the block is not cached, and 1/256 in a young view. Without tags
// it is one, as in a seek. (With far bits there is no blind search: all that have the tag may be read.)
MUST_CHECK enum remixdb_status remix_get(struct remix *x, struct kref key, uint64_t hash, struct sst_hold *h,
                                         struct kv_rec *rec_out);
// The same in two steps, in one epoch: what the second one reads first is fetched while the caller does something else.
const uint8_t *remix_get_want(const struct remix *x, struct kref key);
MUST_CHECK enum remixdb_status remix_get_wanted(struct remix *x, const uint8_t *wanted, struct kref key, uint64_t hash, struct sst_hold *h, struct kv_rec *rec_out);
// The segment that the key belongs to: all entries of segments before it are less than the key. Any key; reads no entry.
uint32_t remix_segment(const struct remix *x, struct kref key);

// ---- many keys at once: the steps of remix_get for all keys of a group side by side, what each step will read being fetched in the
// step before. Inside an epoch, all of it.
struct remix_probe {
  const struct remix *x;  // in, as are key and hash
  const struct remix *older;  // the caller's: another view to go to when the key is not in this one
  struct kref key;
  uint64_t hash;
  bool search;            // out: such a segment that remix_get has to search it
  uint32_t set;           // out: live entries that can be the key and have not been asked for; with search, none
  struct sst *sst;        // out: where the entry asked for last is
  sst_pos pos;
  const uint8_t *seg;     // private, as are the next
  uint32_t at, entry;
};
// Finds the candidates of the nr probes p[which[0]], p[which[1]], ... Reads no block.
void remix_probe_find(struct remix_probe *p, const uint8_t *which, uint32_t nr);
// Takes the first candidate out of each one's set, which is not empty: sst and pos. The slot of its block in the cache is fetched.
void remix_probe_next(struct remix_probe *p, const uint8_t *which, uint32_t nr);
// Whether the candidate asked for last can be the key for all that its segment says of it: worth to know before its block is read from disk.
bool remix_probe_fits(const struct remix_probe *p);

// A position in the view, at a live entry: the newest version of a key, and not a tombstone (but in a young view); all others are passed by the bits of
// their selectors. It holds (pinned, or in memory of its own) the block it reads in each run, or what it needs of it, so it may stand still outside of any epoch; the remix must stay
// alive. One thread. Seeks and remix_record must be made inside an epoch; what only steps needs none.
enum remix_way { REMIX_SOUGHT, REMIX_ON, REMIX_BACK };

// The block that a cursor holds for a run, and where the run stands in it: the index of the run's first record at or after the
// cursor's entry, when that is less than nr. Kept up step by step, so that a step needs no counting of selectors. Of a block that was read in pieces there may be nothing before the record that was read first: what
// is known is forgotten when the cursor turns back.
struct remix_near {
  const uint8_t *data;
  uint32_t idx, nr;          // nr: end of the block's records that are there; 0: nothing is known
  uint32_t ahead;            // pages to read ahead of the run, grows while it is read on and on
};

struct remix_cursor {
  struct remix *x;
  uint32_t seg, at;          // entry `at` of segment `seg`; seg == nr_segs: not valid
  uint32_t live;             // the segment's live entries, a bit for each
  uint32_t cap;              // runs there is room for
  const uint8_t *s, *sel;    // the segment, and its selectors
  struct sst_hold *holds;    // per run
  struct remix_near *near;   // per run
  struct blkio_queue *queue; // for read-ahead; NULL: none
  bool no_room;              // what was read into the cache for it was not there: not tried again on this REMIX
  bool disk;                 // the last read that was timed was the disk's: blocks that will be needed soon are read together
  uint8_t reads;             // which of them are timed
  bool begun;                // a block has been read since it was moved other than by steps (or need not have been): the next one elsewhere is a jump
  uint32_t jumps;            // not yet added to the REMIX's
  enum remix_way way;        // how it was moved last: where memory is asked for before it is read
  // Up to this entry (stepping back: down to it) memory has been asked for.
  uint32_t front_seg, front_at;
  uint32_t warm;             // stepping on: at this entry of the segment there is more to do than to step, REMIX_SEG at most; else 0
  uint32_t cool;             // the same stepping back: before this entry
  uint32_t group;            // entries to ask for at once; grows
  // What it will need of a block (sst.h: sst_read_few) is told by how far it went after the last seeks; in entries, as if all segments were full.
  uint32_t from, came;       // where it was when it had stepped on by `came` since the last seek
  uint32_t usual;            // about as far as it went; 0: nobody stepped on after the last seek
  uint32_t want_seg;         // of remix_want
  bool wanted;
};
// A cursor without a REMIX; zeroed. queue may be NULL.
void remix_cursor_init(struct remix_cursor *c, struct blkio_queue *queue);
void remix_cursor_fini(struct remix_cursor *c);
// Drops its holds and moves it to another REMIX, or NULL, which gives back the holds' memory: not valid afterwards. REMIXDB_NOMEM, but not with NULL.
MUST_CHECK enum remixdb_status remix_cursor_set(struct remix_cursor *c, struct remix *x);
static inline bool remix_valid(const struct remix_cursor *c) { return c->x && c->seg < c->x->nr_segs; }
// First entry >= key, last entry <= key. After an error the cursor is not valid.
//
// A seek reads the key of exactly one entry (and of it alone a block), for keys that are there and for others: the candidate of the
// blind search, of which no other entry shares a longer prefix with the key, and which is the key itself, in its newest version, when
// the key is there. What it shares with the key then gives the place. (But where discriminating bits are FAR.)
// Tags can therefore not save a read here. They could only save the search among the bits when an entry with the key's tag turns out to
// be the key; where it does not (one in 256 for every other entry of the segment: in 12% of the seeks to keys that are not there), its
// key says nothing of where the others lie, and a second one would have to be read. So a seek trusts the candidate, and asks the tags
// only where memory should be on its way before the candidate is known.
MUST_CHECK enum remixdb_status remix_seek(struct remix_cursor *c, struct kref key);
MUST_CHECK enum remixdb_status remix_seek_for_prev(struct remix_cursor *c, struct kref key);
void remix_seek_first(struct remix_cursor *c);
void remix_seek_last(struct remix_cursor *c);
// Before a seek of this key, and no other call of the cursor: what it is going to read first is fetched while the caller does something else. In the same epoch.
void remix_want(struct remix_cursor *c, struct kref key);
// The same as remix_next when that comes to the entry right behind and nothing else has to be done; else false, and nothing has moved. Needs no
// epoch: what is looked at are the view and what lives as long as its tables.
static inline bool remix_next_near(struct remix_cursor *c) {
  const uint32_t to = c->at + 1;
  if (unlikely(to >= c->warm || !(c->live >> to & 1))) return false;
  c->near[c->sel[c->at] & REMIX_RUN].idx++;
  c->at = to;
  return true;
}
// The key that remix_next_near would come to, when it is right behind the cursor's entry and its block is held; else false, which says nothing.
MUST_CHECK static inline bool remix_key_ahead(const struct remix_cursor *c, struct kref *out) {
  const uint32_t to = c->at + 1;
  if (unlikely(to >= c->warm || !(c->live >> to & 1))) return false;
  const uint32_t run = c->sel[to] & REMIX_RUN;
  const struct remix_near *const n = &c->near[run];
  const uint32_t idx = n->idx + (run == (c->sel[c->at] & REMIX_RUN));  // where the runs stand is known for the cursor's entry
  struct kv_rec r;
  if (unlikely(idx >= n->nr || !block_record_short(n->data, idx, &r))) return false;
  REMIX_COUNT(records);
  *out = kref(r.key, r.klen);
  return true;
}
void remix_next_far(struct remix_cursor *c);  // private to remix_next
// One entry on, or back; must be valid. Reads nothing, compares nothing. A stretch without a live entry takes O(log of its segments).
static inline void remix_next(struct remix_cursor *c) {
  if (unlikely(!remix_next_near(c))) remix_next_far(c);
}
void remix_prev(struct remix_cursor *c);
// As many entries on as there are, up to nr, but not into segment `end` (UINT32_MAX: there is no such limit); must be valid and stays
// so. Returns how many. O(log of the segments passed).
uint32_t remix_skip(struct remix_cursor *c, uint32_t nr, uint32_t end);
static inline uint32_t remix_run(const struct remix_cursor *c) { return c->sel[c->at] & REMIX_RUN; }
// The current entry's record; holds until the cursor moves to another block of the same run (a key stays readable while the
// cursor stands). Reads a block when it is not held. When it fails the cursor stays where it is.
MUST_CHECK enum remixdb_status remix_record(struct remix_cursor *c, struct kv_rec *rec_out);
// The same when the block is held already and the record a short one; else false. Needs no epoch: what a cursor holds is pinned.
MUST_CHECK static inline bool remix_record_held(const struct remix_cursor *c, struct kv_rec *rec_out) {
  const struct remix_near *const n = &c->near[remix_run(c)];
  if (unlikely(n->idx >= n->nr || !block_record_short(n->data, n->idx, rec_out))) return false;
  REMIX_COUNT(records);
  return true;
}

// ---- walking all entries in order, all versions, without holds: for compaction and building
struct remix_walk {
  const struct remix *x;
  uint32_t seg, at, nr;      // as in the cursor
  const uint8_t *sel, *tag;  // of the segment; tag NULL without tags
};
void remix_walk_init(struct remix_walk *w, const struct remix *x);  // at the first entry
static inline bool remix_walk_valid(const struct remix_walk *w) { return w->seg < w->x->nr_segs; }
void remix_walk_next(struct remix_walk *w);
// Byte length of the common prefix of the current entry's key and the entry before it in the view: from the discriminating bit
// (across segments from the anchor's length). Returns UINT32_MAX for the same key, 0 for the view's first entry. *known_out false
// when it is not recorded (a far one): the caller compares.
uint32_t remix_walk_lcp(const struct remix_walk *w, bool *known_out);

// ---- the file, shared by remix/remix.c, remix_pack, remix_write and remix_splice; layout in docs/FORMAT.md
#define REMIX_MAGIC "RDBREMIX"
#define REMIX_FORMAT 2u       // 1: the file is the image itself
#define REMIX_HEAD 104u       // fixed part of the header; the runs' table numbers (u64) follow, then zeros up to REMIX_ALIGN
#define REMIX_ALIGN 64u
#define REMIX_SEG_ALIGN 16u   // of a segment's size: whole lines would cost up to a third more memory and save little
#define REMIX_FLAG_TAGS 1u    // of the file
#define REMIX_SEG_FAR 1u      // of a segment: some entry is REMIX_BIT_FAR

// Where things are in a segment: tags, selectors, head (u8 count, u8 flags, u16 base), cursor offsets, discriminating bits. What
// get needs comes first.
struct remix_layout {
  uint32_t sel, head, offs, dbits, stride;
};
static inline struct remix_layout remix_layout(uint32_t nr_runs, bool tags) {
  struct remix_layout l;
  l.sel = tags ? REMIX_SEG : 0;
  l.head = l.sel + REMIX_SEG;
  l.offs = l.head + 4;
  l.dbits = l.offs + 4 * nr_runs;
  l.stride = (uint32_t)align_up(l.dbits + 2 * REMIX_SEG, REMIX_SEG_ALIGN);
  return l;
}
static inline uint64_t remix_segs_off(uint32_t nr_runs) { return align_up(REMIX_HEAD + 8ull * nr_runs, REMIX_ALIGN); }
static inline const uint8_t *remix_segs(const struct remix *x) { return x->image + remix_segs_off(x->nr_runs); }  // each of stride bytes
// The tag of a key: the 8 highest bits of its hash64.
static inline uint8_t remix_tag(uint64_t hash) { return (uint8_t)(hash >> 56); }
#endif
