// SPDX-License-Identifier: Apache-2.0
//
// Packs: files "%06llu.pack", each of which holds many tables and REMIX files, its parts. A round that writes to many
// partitions writes one pack in place of many files, so it makes one file and syncs one file (table/packing.h). A part
// has the number that its file would have, so all above sst.h and remix/remix.h takes no notice of packs.
//
// Invariants
//   K1  A part is durable when its pack is synced with its directory and footer, the names of the store's directory are
//       synced, and CURRENT names the part. The writer does it in this order. CURRENT names the parts in use, each with
//       its place in a pack (section 10), so an opening reads no pack's directory. A pack without a part that CURRENT
//       names is no part of the store, and the next opening for writing removes it.
//   K2  Parts begin at multiples of PACK_ALIGN, and no two have a byte of one page in common. So a hole in the place of
//       one part leaves its neighbours, and the directory, as they are.
//   K3  A part is dead when its owner drops it (pack_part_drop): the last reference to an obsolete table or REMIX is
//       gone. The part is obsolete only when a CURRENT that does not name it is durable (view/version.h, V3). So no
//       version, snapshot, iterator, checkpoint under way, or opening after a crash reads a dead part. A pack is
//       removed when all its parts are dead.
//   K4  The room of dead parts goes back by holes (packs_reclaim), and only if the pack has no second name: a
//       checkpoint, or a copy by links, reads the same file, and may read the part. While the pack has a second name,
//       the dead parts stay. Each reclaim looks again, so the room comes back when the other name has gone.
//   K5  A crash between a drop and its hole leaves bytes that nobody reads. For an opening all places are dead that
//       CURRENT does not name, and the first reclaim after it makes the missing holes.
//   K6  Packs are written only where the system makes holes.
//   K7  A part also can be found without CURRENT: by the pack's directory, which has a checksum. A table states its own
//       size, so without a directory tables can be found by their footers (admin/repair.h).
//
// All parts of a pack share its three descriptors in the pool. `lock` guards the list of packs, the parts' table and
// the dead places. A thread that holds it takes no other lock and does no I/O.
#ifndef TABLE_PACK_H
#define TABLE_PACK_H

#include "base/files.h"
#include "table/fdpool.h"
#include "table/pack_format.h"

struct packs;  // those of a store

// A pack. Fields before `private` do not change while a part of it is alive.
struct pack {
  struct packs *all;
  uint64_t number;
  uint64_t print, origin;  // its fingerprint and the id of the store that wrote it; not known while it is written
  char *path;
  struct fdpool_file file;   // for single reads; advised for random reads
  struct fdpool_file scans;  // the same file, for long scans
  struct fdpool_file past;   // the same file, for reads past the page cache beside others
  // private to table/pack.c, under the lock
  struct pack *next;         // with a larger number
  uint64_t dev, ino;         // the file's; 0, 0: not known
  struct pack_part **parts;  // ascending by offset; nr_live of them are alive
  uint32_t nr_parts, cap_parts, nr_live;
  uint32_t pins;            // while it has some it is not removed
  struct pack_entry *dead;  // places to give back, ascending; neighbours are one
  uint32_t nr_dead, cap_dead;
};

struct pack_part {
  struct pack *pack;
  struct pack_entry at;    // its place; does not change
  struct pack_part *next;  // the next one in its bucket
  uint64_t mark;           // for packs_encode
  bool dead;
};

// dir and fds outlive the packs. writable: rooms may be given back and packs removed. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status packs_create(const struct env_dir *dir, struct fdpool *fds, bool direct_io,
                                            bool writable, struct packs **out);
// NULL is allowed. No table and no REMIX of them is open. Removes no file.
void packs_destroy(struct packs *p);

// Adds a pack that exists. Reads its footer, and checks that it is the footer of this file, of this store, and that it
// has the fingerprint; print NULL: any. entries: nr encoded parts, which must be good (pack_entry_get); NULL: the call
// reads them from the pack's directory. Fails with REMIXDB_CORRUPT (also if the file is missing, or a part is in
// another pack already), REMIXDB_VERSION, REMIXDB_IO or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status packs_load(struct packs *p, const struct files_ids *ids, uint64_t number,
                                          const uint64_t *print, const uint8_t *entries, uint32_t nr);
// Adds a pack and these parts, and reads nothing of it: the file may be damaged, or missing. Fails as above.
MUST_CHECK enum remixdb_status packs_claim(struct packs *p, uint64_t number, const struct pack_entry *parts,
                                           uint32_t nr);
// Calls fn for each part, pack by pack. fn does not use the packs. For packs that nobody else uses.
void packs_each(struct packs *p, void (*fn)(void *arg, const struct pack_part *part), void *arg);
// Adds a pack that is being written, with a pin and without parts. Fails with REMIXDB_NOMEM or REMIXDB_INVALID.
MUST_CHECK enum remixdb_status packs_add(struct packs *p, uint64_t number, struct pack **out);
// Adds a part to a pack. Parts come in any order. Fails with REMIXDB_NOMEM, or REMIXDB_CORRUPT if there is such a part.
MUST_CHECK enum remixdb_status pack_add_part(struct pack *k, const struct pack_entry *at);
// The pack is whole and synced.
void pack_written(struct pack *k, uint64_t print, uint64_t origin, const struct env_stat *st);
// Takes the pin of packs_add away. If no part is alive, the pack is removed. abandon: drops all parts first.
void pack_unpin(struct pack *k, bool abandon);

// Returns the part, or NULL: the file is not in a pack. p NULL: there are no packs. The part is alive as long as its
// owner does not drop it. Any thread.
struct pack_part *packs_find(struct packs *p, enum pack_kind kind, uint64_t number);
// The part is dead: its owner has no more use for it, and no thread reads it. Its place goes back with the next
// reclaim, or at once with the pack, if it was the last part. NULL is allowed. Any thread.
void pack_part_drop(struct pack_part *part);
// Gives back the places of dead parts (K4). Any thread, outside of an epoch. A failure leaves the rest for the next
// call. NULL is allowed.
void packs_reclaim(struct packs *p);

// Reads len bytes of a part. Fails as env_read does.
MUST_CHECK enum remixdb_status pack_part_read(const struct pack_part *part, void *buf, size_t len, uint64_t off);

// Encodes these parts, pack by pack, as the section of CURRENT has them. *out is NULL if there are none; the caller
// frees it with mem_free. Fails with REMIXDB_NOMEM. Any thread.
MUST_CHECK enum remixdb_status packs_encode(struct packs *p, struct pack_part *const *parts, size_t nr, uint8_t **out,
                                            size_t *len_out);
bool packs_have(struct packs *p, uint64_t number);  // whether there is a pack of this number
// Whether packs may be written (K6): as far as is known.
bool packs_can(struct packs *p);
void packs_cannot(struct packs *p);  // the system makes no holes

struct packs_stats {
  uint64_t nr, parts;   // packs, parts that are alive
  uint64_t dead_bytes;  // places of dead parts that were not given back
};
void packs_measure(struct packs *p, struct packs_stats *out);

// The section of CURRENT: PACK_SECTION_HEAD bytes, the number of packs as u32 and a zero; then for each pack, ascending
// by number, PACK_LIST_HEAD bytes: its number, its fingerprint and the number of its parts, u64 each; and its parts,
// PACK_ENTRY bytes each.
#define PACK_SECTION_HEAD 8u
#define PACK_LIST_HEAD 24u
// A position in such a section.
struct pack_list {
  const uint8_t *p, *end;
  uint64_t next_file;
  uint32_t left;  // packs
  // the pack
  uint64_t number, print;
  const uint8_t *entries;
  uint32_t nr;
};
// Begins with a section of len bytes. Returns words for what is wrong with it, or NULL.
const char *pack_list_begin(struct pack_list *l, const uint8_t *section, size_t len, uint64_t next_file);
// Goes to the next pack and checks it and its parts, each by itself. At the end `nr` is 0. Returns words for what is
// wrong, or NULL.
const char *pack_list_next(struct pack_list *l);
#endif
