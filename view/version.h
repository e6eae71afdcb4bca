// SPDX-License-Identifier: Apache-2.0
//
// Versions: which partitions there are, and of which files each is made. In memory a version is immutable and counted;
// views share it. On disk it is the file CURRENT, replaced as a whole (written under a temporary name, synced, renamed,
// directory synced). What CURRENT does not name is not part of the store.
//
// Invariants
//   V1  Partitions ascend by anchor; the first anchor is empty: every key belongs to exactly one partition, the last
//   one with anchor <= key. V2  All keys in a partition's tables lie in its range. V3  CURRENT is replaced only when
//   all files it names, and their directory entries, are durable. Files are removed only after the CURRENT that no
//   longer
//       names them is durable and nobody in this process can reach them.
//   V4  A partition that is much larger than what comes into it has its newest tables in a view of their own, the young
//   one: it is small, and made anew as tables
//       come; the other one is made anew only when the young one's tables are merged into a table of it. All of the
//       young one's tables are newer than all of the other one's. There is no young one without the other.
#ifndef VERSION_H
#define VERSION_H

#include "base/anchors.h"
#include "base/files.h"
#include "remix/remix.h"
#include "base/workers.h"

struct part {  // a partition; counted, immutable, shared between versions
  _Atomic uint32_t refs;
  struct remix *remix;  // referenced; NULL: the partition holds nothing
  struct remix *young;  // referenced; NULL: there is none. Made young: its tombstones hide what is in remix
  uint32_t alen;
  uint8_t anchor[];
};

struct version {
  _Atomic uint32_t refs;
  uint32_t nr_parts;
  uint32_t nr_young;  // of them with a young view:
  uint64_t store_id;
  uint64_t number;         // grows by one with each install
  uint64_t next_file;      // numbers from here on are free
  uint64_t log_gen;        // oldest log generation still needed
  uint64_t log_seq;        // sequence number reached when that generation began
  struct anchors anchors;  // of the partitions
  uint8_t *anchor_bytes;   // what it is over; own memory
  uint32_t *young;         // these partitions, ascending; own memory, NULL without any
  struct version *next;    // of those that nobody has a reference to any more (store/idle.h)
  struct part *parts[];    // each referenced
};

// A partition with one reference; takes over the caller's references to remix and young also when it fails.
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status part_create(struct kref anchor, struct remix *remix, struct remix *young,
                                           struct part **out);
void part_ref(struct part *p);
void part_unref(struct part *p);  // NULL is allowed

// A version of these partitions (their references are taken over, also on failure), with one reference. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status version_create(struct part **parts, uint32_t nr, struct version **out);
void version_ref(struct version *v);
void version_unref(struct version *v);  // NULL is allowed
// The same in two steps: whether the reference was the last one, and the end of a version that has none. With it go
// files that no other version has, if they are obsolete, which takes some milliseconds each.
MUST_CHECK bool version_drop(struct version *v);
void version_destroy(struct version *v);

// The partition that a key belongs to.
uint32_t version_find(const struct version *v, struct kref key);
static inline struct kref part_anchor(const struct part *p) { return kref(p->anchor, p->alen); }

// A partition's tables through both views: how many, and the one that is r-th oldest.
static inline uint32_t part_old_runs(const struct part *p) { return p->remix ? p->remix->nr_runs : 0; }
static inline uint32_t part_young_runs(const struct part *p) { return p->young ? p->young->nr_runs : 0; }
static inline uint32_t part_runs(const struct part *p) { return part_old_runs(p) + part_young_runs(p); }
static inline struct sst *part_run(const struct part *p, uint32_t r) {
  const uint32_t old = part_old_runs(p);
  return r < old ? p->remix->runs[r] : p->young->runs[r - old];
}

// Reads what CURRENT says before any table is opened: the store's id. REMIXDB_NOTFOUND when there is no CURRENT,
// REMIXDB_VERSION, REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status version_peek(const struct env_dir *dir, uint64_t *store_id_out);
// What CURRENT names, without opening any of it.
struct version_names {
  uint64_t store_id, log_gen, log_seq;
  uint64_t *tables;  // numbers, partition by partition, in each the oldest first; the caller's to mem_free
  size_t nr_tables;
};
MUST_CHECK enum remixdb_status version_list(const struct env_dir *dir, struct version_names *out);
// Reads CURRENT and opens all it names, with as many partitions at a time as there are workers and the caller (ws NULL:
// the caller alone; else as for workers_run). The same statuses; where several partitions cannot be opened, the first
// one's.
MUST_CHECK enum remixdb_status version_load(const struct sst_ctx *ctx, struct workers *ws, struct worker *self,
                                            struct version **out);
// Replaces CURRENT. REMIXDB_NOSPACE, REMIXDB_NOMEM: it is what it was. After any other failure it is unknown whether
// the old or the new one is there after a crash: files of neither may be removed.
MUST_CHECK enum remixdb_status version_save(const struct sst_ctx *ctx, const struct version *v);
// Removes table, REMIX and temporary files that v does not name and that are not foreign. One that says nothing goes,
// too: a crash kept it from being finished. nr_out: how many. Other names are not touched.
MUST_CHECK enum remixdb_status version_clean(const struct sst_ctx *ctx, const struct version *v, uint32_t *nr_out);

// Whose a file with a store's name is, by its own bytes. store_id 0: any store's of ours will do.
enum version_owner {
  VERSION_OWN,      // this store's, or blank
  VERSION_UNTOLD,   // its bytes do not say: a crash kept it from being finished, or it is damaged
  VERSION_FOREIGN,  // another store's; or a symbolic link, a pipe, a directory; or gone
};
MUST_CHECK enum remixdb_status version_owner(const struct env_dir *dir, const struct files_entry *e, uint64_t store_id,
                                             enum version_owner *out);
#endif
