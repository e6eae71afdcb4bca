// SPDX-License-Identifier: Apache-2.0
//
// Versions: the partitions, and the files of each. In memory a version is immutable and has a count of references;
// supers share it. On disk a version is the file CURRENT. A new version replaces CURRENT as a whole: the store writes a
// file under a temporary name, syncs it, renames it and syncs the directory. A file that CURRENT does not name is not
// part of the store.
//
// Invariants
//   V1  Partitions ascend by anchor, and the first anchor is empty. So every key belongs to exactly one partition: the
//       last one with anchor <= key.
//   V2  All keys in a partition's tables lie in its range.
//   V3  CURRENT is replaced only when all files it names, and their directory entries, are durable. A file is removed
//       only when a CURRENT that does not name it is durable and no thread of this process can reach it.
//   V4  A partition much larger than its new data has a separate view for its newest tables, the young view. The young
//       view is small, and is built again whenever new tables come. The older view is built again only when the young
//       view's tables are merged into a table of the older view. All tables of the young view are newer than those of
//       the older view. A partition with a young view also has an older one.
//   V5  CURRENT names each file by its number and its fingerprint, and so the segment of the log at which a replay
//       begins. An opening compares. So a table, a REMIX file or a log segment that a copy of this store has written
//       after it went on by itself is REMIXDB_CORRUPT, although its number and its id are right. A CURRENT of format 1
//       or 2 has no fingerprints: the first install after it writes those of the files that are there.
//   V6  Files of the store state its own id, or an origin: the id of a store that a checkpoint has linked files from.
//       CURRENT lists the origins. A log segment always states the store's own id. A file is removed, cut or used again
//       only if the id that it states is one of these. An origin stays in the list while a file of it is named or may
//       lie around: an opening that has removed what no version names keeps the origins of the named files only. The
//       next install writes that list, after it has synced the directory.
//   V7  A store has two trees: the keys without a space, and the keys of all named spaces. Each tree has its own
//       partitions, for which V1 to V4 hold, and its own keys: a key of the spaces' tree begins with the id of its
//       space. The struct version of a store holds the unnamed tree; its `spaces` is a struct version, too; only its
//       partitions count. A store's version always has one, so readers need not ask. CURRENT names the partitions of
//       the spaces' tree only if one of them has a table.
//   V8  A version has the value files that its tables state, as far as they exist. A file that was collected does not
//       exist. If a record that readers find still refers to it, the version has an index (value/index.h) that tells
//       where the value is, and the file with the value. After a replay the version that was loaded also has the files
//       that the log's records refer to.
//   V9  `few` is set if there are at most VERSION_FEW partitions, and if their anchors have at most 8 bytes, and not
//       only zeros. An anchor's number is made of 8 bytes, big-endian, with zeros behind the anchor's end. before[i] is
//       the number of partition i + 1's anchor, less 1; UINT64_MAX: there is no such partition. The first 8 bytes of a
//       key are a number, too. A key of 8 bytes or more belongs to partition n if its number exceeds n of these. So a
//       search reads one cache line.
#ifndef VERSION_H
#define VERSION_H

#include <assert.h>

#include "base/anchors.h"
#include "base/files.h"
#include "base/workers.h"
#include "value/index.h"
#include "view/part.h"

#define VERSION_FEW 7u
struct version {
  // One cache line.
  _Atomic uint32_t refs;
  uint32_t nr_parts;
  uint32_t nr_young;                 // partitions with a young view
  bool expires;                      // some record of the tree expires
  bool few;                          // V9
  uint64_t before[VERSION_FEW - 1];  // V9
  uint64_t store_id;
  uint64_t number;     // grows by one with each install
  uint64_t next_file;  // file numbers from here on are free
  uint64_t log_gen;    // oldest log generation still needed
  uint64_t log_seq;    // sequence number reached when that generation began
  uint64_t log_print;  // fingerprint of that segment, if `printed` is set
  bool printed;        // false: the version was read from a format without fingerprints
  // The sequence number of the last range deletion whose edit the tree has (compact/erase.h); the struct of a store has
  // the larger one of its trees. 0: none, or it is before log_seq.
  uint64_t erased;
  struct anchors anchors;  // the partitions' anchors
  uint8_t *anchor_bytes;   // the bytes into which `anchors` points; own memory
  uint32_t *young;         // numbers of the partitions with a young view, ascending; own memory; NULL if there are none
  uint32_t *young_from;    // young_from[i]: how many partitions before i have a young view; nr_parts + 1 items, in the
                           // same memory. Only version_young_from reads it
  struct names *names;     // the spaces (view/names.h), counted; NULL: there never was a space
  // The value files that a record of the tables of both trees may refer to (V8). Empty in a spaces' tree.
  struct value_set values;
  struct value_moves moves;  // indexes of the collected files to which such a record may refer. Empty in a spaces' tree
  struct version *spaces;    // the spaces' tree (V7), referenced; NULL: there is none, or this is one
  struct version *next;      // in the list of versions without a reference (store/idle.h)
  struct part *parts[];      // each referenced
};
_Static_assert(offsetof(struct version, store_id) == CACHE_LINE, "a search among few partitions reads one line");

// Makes a version of these partitions, with one reference. Takes the caller's references to the partitions over, also
// if it fails. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status version_create(struct part **parts, uint32_t nr, struct version **out);
// Gives a version without a spaces' tree an empty one. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status version_begin_spaces(struct version *v);
// Returns one of the trees of a version (V7). A loop over both: for (t = v; t; t = t->spaces).
static inline const struct version *version_tree(const struct version *v, uint32_t tree) {
  return likely(tree == TREE_UNNAMED) ? v : v->spaces;
}
// Tells whether a tree has no table. NULL is such a tree.
static inline bool version_is_empty(const struct version *v) {
  return !v || (v->nr_parts == 1 && part_is_empty(v->parts[0]));
}
// Leaves out those partitions of the spaces' tree whose keys all belong to spaces that are not in v->names; v->names
// NULL: none is. *full_out: the tree with all partitions, with a reference; NULL: nothing was left out. Before others
// have v. Nothing is left out if version_trim_first is away. Fails with REMIXDB_NOMEM; v is then unchanged.
MUST_CHECK enum remixdb_status version_trim(struct version *v, struct version **full_out);
// Returns the partition that becomes the first one then; NULL: the first one stays, or none does.
const struct part *version_trim_first(const struct version *v);
// Tells whether some partition of the spaces' tree may have keys of dropped spaces (part_may_have_dropped).
bool version_may_have_dropped(const struct version *v);
// Tells whether the partition has keys of spaces that are not in n, as far as that is known (part_dropped). If it is
// not known, the smallest and the largest key of each table tell. True for a partition that is away.
bool part_has_dropped(const struct part *p, const struct names *n);
// Tells whether all keys of a table belong to spaces that are not in n.
bool table_is_dropped(const struct sst *t, const struct names *n);
// Tells whether the tree's partition i has tables, and all keys in them belong to spaces that are not in n. If it is
// away, that is only known of a damaged one, by the anchors: no space has keys between them.
bool part_is_dropped(const struct version *tree, uint32_t i, const struct names *n);
// Tells whether some key of the tree's partition i may belong to a space that is not in n, by the ids in the tables'
// smallest and largest keys; if the partition is away, by the anchors.
bool part_may_have_dropped(const struct version *tree, uint32_t i, const struct names *n);
// Knowledge about a partition's keys of spaces that are not in n. compact/dropped.h finds it out.
static inline enum part_dropped part_dropped(const struct part *p, const struct names *n) {
  const uint64_t known = atomic_load_explicit(&p->dropped, memory_order_relaxed);
  return (known ^ names_stamp(n)) <= PART_DROPPED ? (enum part_dropped)(known & PART_DROPPED) : PART_UNKNOWN;
}
static inline void part_set_dropped(struct part *p, const struct names *n, enum part_dropped what) {
  atomic_store_explicit(&p->dropped, names_stamp(n) | (uint64_t)what, memory_order_relaxed);
}
// Gives a new version all fields of v, except the count, the spaces' tree and the partitions. The new version has its
// partitions already.
void version_like(struct version *made, const struct version *v);
// Makes a version of the same trees with all fields of v but the count. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status version_copy(const struct version *v, struct version **out);
void version_ref(struct version *v);
void version_unref(struct version *v);  // NULL is allowed
// version_unref in two steps. version_drop returns whether the reference was the last one. version_destroy frees a
// version without a reference. That removes the obsolete files that no other version has, which takes some milliseconds
// per file.
MUST_CHECK bool version_drop(struct version *v);
void version_destroy(struct version *v);

// Finds the value file to which a record of the version's tables refers, and replaces the reference if the file was
// collected. NULL: the version has no such file.
struct value_file *version_value(const struct version *v, struct value_ref *r);

// Finds the newest record of the key in the tables of a tree. *rec_out may be a tombstone, may have expired, may lack
// its key, and is valid until the caller leaves the epoch or uses h again. Fails with REMIXDB_NOTFOUND, or as a read
// does.
MUST_CHECK enum remixdb_status version_get(const struct version *tree, struct kref key, struct sst_hold *h,
                                           struct kv_rec *rec_out);

// Returns the index of the partition to which a key belongs.
static inline uint32_t version_find(const struct version *v, struct kref key) {
  if (v->nr_parts == 1) return 0;
  if (unlikely(!v->few) || unlikely(key.len < sizeof(v->before[0]))) return anchors_find_plain(&v->anchors, key);
  const uint64_t first = load64be(key.ptr);
  uint32_t at = 0;
  for (uint32_t i = 0; i < VERSION_FEW - 1; i++) at += v->before[i] < first;
  return at;
}
// Returns the first young view of this partition or a later one, as an index of v->young; nr_young: there is none.
static inline uint32_t version_young_from(const struct version *v, uint32_t part) {
  return v->nr_young ? v->young_from[part] : 0;
}
// Reads the store's id from CURRENT before any table is opened. Fails with REMIXDB_NOTFOUND if there is no CURRENT, or
// with REMIXDB_VERSION or REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status version_peek(const struct env_dir *dir, uint64_t *store_id_out);
// Reads also the origins, which the caller frees with mem_free; NULL: none. Fails as the call above, or with
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status version_ids(const struct env_dir *dir, uint64_t *store_id_out, uint64_t **origins_out,
                                           uint32_t *nr_out);
// Reads the names in CURRENT and opens none of these files. The caller ends with version_names_fini. Fails as the call
// above.
struct version_view {  // the view of a table
  uint64_t remix;      // number of its REMIX file
  size_t first;        // the view's tables are tables[first, first + nr)
  uint32_t nr;
};
struct version_names {
  uint64_t store_id, log_gen, log_seq;
  bool printed;        // the fingerprints are known
  uint64_t log_print;  // the fingerprint of the log's oldest segment
  uint64_t *origins;   // ascending
  uint32_t nr_origins;
  uint64_t *tables;  // numbers, partition by partition, from the oldest to the newest; the unnamed tree's first
  uint64_t *prints;  // fingerprints of the tables
  struct version_view *views;  // the views of the tables
  size_t nr_tables;
  size_t nr_unnamed;    // so many of them are the unnamed tree's
  struct names *names;  // the spaces, counted; NULL: none
  uint64_t *values;     // numbers of the value files, ascending
  uint32_t nr_values, nr_moves;
  struct current_move *moves;  // the collected value files, ascending
  uint8_t *packs;              // packs_len bytes: the packs with their parts (struct pack_list)
  size_t packs_len;
  uint64_t next_file;
};
void version_names_fini(struct version_names *n);
MUST_CHECK enum remixdb_status version_list(const struct env_dir *dir, struct version_names *out);
// Reads CURRENT and looks at all files it names (V5). The partitions of *out are away (view/part.h), unless all of
// their REMIX files together have at most version_eager bytes: then the call opens them, too, which takes milliseconds.
// So an opening of a small store finds every damaged index. ctx has the store's ids (version_ids), and outlives the
// version. The workers and the caller look at one partition each at a time (ws NULL: the caller alone; else as for
// workers_run). Fails as the calls above, or as part_look does. If several partitions fail, the status is that of the
// failed partition with the lowest index.
#define VERSION_EAGER ((uint64_t)2 << 20)  // bytes: about a million keys
extern _Atomic uint64_t version_eager;     // VERSION_EAGER; tests set it. Relaxed
MUST_CHECK enum remixdb_status version_open(const struct sst_ctx *ctx, struct workers *ws, struct worker *self,
                                            struct version **out);
// Opens the files of the partitions of both trees that are away, in the same way. Fails as part_ready does; partitions
// that did not fail are then not away.
MUST_CHECK enum remixdb_status version_ready(const struct version *v, struct workers *ws, struct worker *self);
// The same for one tree.
MUST_CHECK enum remixdb_status version_tree_ready(const struct version *tree, struct workers *ws, struct worker *self);
// The same for a round: part_try opens the partitions, so damage is no failure. The partitions that are away after the
// call are damaged, and stay away until version_release. again: as for part_try. progress: gets the entries of each
// partition's views when it was opened; NULL is allowed.
MUST_CHECK enum remixdb_status version_tree_try(const struct version *tree, struct workers *ws, struct worker *self,
                                                bool again, _Atomic uint64_t *progress);
void version_release(const struct version *v);  // both trees
// Entries of the views of a tree's partitions that are away, about: a reader may bring some meanwhile. Those that are
// known to be damaged do not count.
uint64_t version_tree_away(const struct version *tree);
// Nanoseconds from `now` until a partition that merges leave out can be tried again (view/part.h, P4); 0: there is
// none.
uint64_t version_again_ns(const struct version *v, uint64_t now);
// Bytes of the tables' files, of both trees.
uint64_t version_table_bytes(const struct version *v);
// version_open and version_ready.
MUST_CHECK enum remixdb_status version_load(const struct sst_ctx *ctx, struct workers *ws, struct worker *self,
                                            struct version **out);
// Checks that enough numbers are left for versions and files, so that the store can be opened for writing. Fails with
// REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status version_may_grow(const struct sst_ctx *ctx, const struct version *v);
// Replaces CURRENT. ctx has the origins, and v->log_print is set. After REMIXDB_NOSPACE or REMIXDB_NOMEM nothing has
// changed. After any other failure a crash may leave the old or the new CURRENT, so the caller must not remove files of
// either.
MUST_CHECK enum remixdb_status version_save(const struct sst_ctx *ctx, const struct version *v);
// Collects the ids other than `own` that the version's files state, ascending. The caller frees *out with mem_free; it
// is NULL if there are none. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status version_origins(const struct version *v, uint64_t own, uint64_t **out, uint32_t *nr_out);
// Removes table, REMIX, value and temporary files that v does not name, except foreign ones (V6). The call also removes
// a file without a store's id, which a crash left unfinished. It does not touch other names. *nr_out: how many files it
// has removed.
MUST_CHECK enum remixdb_status version_clean(const struct sst_ctx *ctx, const struct version *v, uint32_t *nr_out);

// The owner of a file with a store's name, as the file's bytes tell. ids NULL: every store of this library counts as
// this store.
enum version_owner {
  VERSION_OWN,      // this store, or the file is blank
  VERSION_UNTOLD,   // the bytes do not tell: a crash left the file unfinished, or the file is damaged
  VERSION_FOREIGN,  // another store; or the name is a symbolic link, a pipe or a directory; or the file is gone
};
MUST_CHECK enum remixdb_status version_owner(const struct env_dir *dir, const struct files_entry *e,
                                             const struct files_ids *ids, enum version_owner *out);
#endif
