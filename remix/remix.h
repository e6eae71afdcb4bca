// SPDX-License-Identifier: Apache-2.0
//
// REMIX: the sorted view over the tables (runs) of one partition (Zhong, Chen, Wu, Jiang: "REMIX: Efficient Range Query
// for LSM-trees", FAST 2021), "%06llu.remix". The view is cut in segments of at most 32 entries; a segment has an
// anchor, a cursor offset per run, and per entry a selector, a hash tag (when tags are on) and a discriminating-bit
// position. Runs are in order of age, oldest first; among the versions of a key the newest comes first.
//
// Invariants
//   R1  Entries are in order of (key, age of the run: newest first). All versions of a key lie in one segment.
//   R2  An entry whose key is that of the entry before it carries REMIX_OLD; the newest version never does. REMIX_TOMB
//   is the
//       record's own flag.
//   R3  A segment's anchor is the shortest prefix of its first key that is greater than the key before the segment; the
//   first
//       one's is empty.
//   R4  The cursor offset of run r is the position of r's first entry at or after the segment; counting r's selectors
//   before
//       entry i from there gives the position of run r's next record at entry i.
//   R5  The discriminating bit of entry i (i > 0 in its segment) is the first bit at which its key differs from entry
//   i-1's, in
//       the bit order below; they form a blind trie over the segment's distinct keys.
//
// Bit order: a key is read as its bytes, each preceded by a 1 bit, and 0 bits after the end; so a prefix sorts before
// what it prefixes and no two keys are equal in all bits. A bit position is byte << 4 | b, b = 0 for the leading
// bit, 1..8 for the byte's bits from the highest. In a segment it is stored in 16 bits with the byte counted from the
// segment's base (bytes common to all its keys, stored once); 0xFFFF marks "same key as before", and 0xFFFE one too far
// away (more than 4,094 bytes behind the base): a segment that holds such a one is searched by binary search of its
// keys.
#ifndef REMIX_H
#define REMIX_H

#include "remix/state.h"

// Reads and checks the file: checksums, and that every count, offset, selector and position agrees with the tables
// (which it references). *out has one reference. REMIXDB_CORRUPT also when missing, REMIXDB_VERSION.
MUST_CHECK enum remixdb_status remix_open(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs,
                                          uint32_t nr_runs, struct remix **out);
// The same for a file that was just written and synced from this image (remix/build.h), which is copied: the file is
// not read. All that can be wrong with a view is looked for as if it had been. REMIXDB_NOMEM, REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status remix_open_built(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs,
                                                uint32_t nr_runs, const uint8_t *image, size_t image_size,
                                                uint64_t file_size, struct remix **out);
void remix_ref(struct remix *x);
// NULL is allowed; the last one also drops the tables' references, and removes the file when obsolete.
void remix_unref(struct remix *x);
void remix_retire(struct remix *x);           // makes it obsolete: no version will name it
void remix_name(char *buf, uint64_t number);  // "000001.remix"; buf of 32 bytes
// From now on it is a young view, which is read beside an older one: tombstones are live (a get or a cursor gives them
// like any record, for they hide what is in the older view), and a block that a seek reads of it, or a scan begins
// with, is a jump, too. Before anybody else has it.
void remix_make_young(struct remix *x);
bool remix_is_young(const struct remix *x);
size_t remix_memory(const struct remix *x);
// Who is told of its scan debt: w lives as long as it does, or is NULL, as after opening. Before another thread has it.
void remix_watch(struct remix *x, const struct remix_watch *w);
// Adds to its scan debt, and calls the watch when the debt is due.
void remix_add_debt(struct remix *x, uint64_t scan_debt);
struct kref remix_anchor(const struct remix *x, uint32_t seg);  // points into the image; seg < nr_segs

// The newest version of the key, when that is live (not a tombstone, or the view is a young one): REMIXDB_OK,
// REMIXDB_NOTFOUND, or an error. hash = hash64(key). Inside an epoch; the record holds until the epoch is left or h is
// used again. With tags the keys that are read are those of live entries of one segment with the key's tag; where there
// are several, or the view is a young one, of them that one which the blind search leaves. So for a key that is there
// it is its own; for another one 32/256 = 0.125 at most, a quarter of it where the block is not cached, and 1/256 in a
// young view. Without tags it is one, as in a seek. (With far bits there is no blind search: all that have the tag may
// be read.)
MUST_CHECK enum remixdb_status remix_get(struct remix *x, struct kref key, uint64_t hash, struct sst_hold *h,
                                         struct kv_rec *rec_out);
// The same in two steps, in one epoch: what the second one reads first is fetched while the caller does something else.
const uint8_t *remix_get_begin(const struct remix *x, struct kref key);
MUST_CHECK enum remixdb_status remix_get_end(struct remix *x, const uint8_t *wanted, struct kref key, uint64_t hash,
                                             struct sst_hold *h, struct kv_rec *rec_out);
// The segment that the key belongs to: all entries of segments before it are less than the key. Any key; reads no
// entry.
uint32_t remix_segment(const struct remix *x, struct kref key);

// ---- many keys at once: the steps of remix_get for all keys of a group side by side, what each step will read being
// fetched in the step before. Inside an epoch, all of it.
struct remix_probe {
  const struct remix *x;      // in, as are key and hash
  const struct remix *older;  // the caller's: another view to go to when the key is not in this one
  struct kref key;
  uint64_t hash;
  bool search;      // out: such a segment that remix_get has to search it
  uint32_t set;     // out: live entries that can be the key and have not been asked for; with search, none
  struct sst *sst;  // out: where the entry asked for last is
  sst_pos pos;
  const uint8_t *seg;  // private, as are the next
  uint32_t at, entry;
};
// Finds the candidates of the nr probes p[which[0]], p[which[1]], ... Reads no block.
void remix_probe_find(struct remix_probe *p, const uint8_t *which, uint32_t nr);
// Takes the first candidate out of each one's set, which is not empty: sst and pos. The slot of its block in the cache
// is fetched.
void remix_probe_next(struct remix_probe *p, const uint8_t *which, uint32_t nr);
// Whether the candidate asked for last can be the key for all that its segment says of it: worth to know before its
// block is read from disk.
bool remix_probe_fits(const struct remix_probe *p);

// ---- walking all entries in order, all versions, without holds: for compaction and building
struct remix_walk {
  const struct remix *x;
  uint32_t seg, at, nr;      // as in the cursor
  const uint8_t *sel, *tag;  // of the segment; tag NULL without tags
};
void remix_walk_init(struct remix_walk *w, const struct remix *x);  // at the first entry
static inline bool remix_walk_valid(const struct remix_walk *w) { return w->seg < w->x->nr_segs; }
void remix_walk_next(struct remix_walk *w);
// Byte length of the common prefix of the current entry's key and the entry before it in the view: from the
// discriminating bit (across segments from the anchor's length). Returns UINT32_MAX for the same key, 0 for the view's
// first entry. *known_out false when it is not recorded (a far one): the caller compares.
uint32_t remix_walk_lcp(const struct remix_walk *w, bool *known_out);
// Whether what the segment says of the current entry is what the two keys say: its discriminating bit to the bit, the
// base, and of a segment's first entry the anchor. NULL: it is; else what is wrong. `before`: the key of the entry before
// it in the view, which is not greater.
const char *remix_walk_wrong(const struct remix_walk *w, struct kref before, struct kref key);

#endif
