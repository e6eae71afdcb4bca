// SPDX-License-Identifier: Apache-2.0
//
// Dropped spaces in a version. Its partitions still have keys of them. These keys go in three ways, and all three leave
// other spaces' keys as they are:
//   - A partition that has keys of dropped spaces only leaves the version (version_trim). Nothing is read or written.
//   - A table that has keys of dropped spaces only leaves its partition. The partition's views are built again over the
//     tables that stay, and no record is read.
//   - A partition that has other tables with such keys is merged (compact_dropped_round), if that is worth it.
//
// The tables' smallest and largest keys tell which spaces a table may have. If a dropped space lies between them, a
// seek tells whether it has keys. The result is kept with the partition (part_dropped), so a partition is looked at
// once for each list of names.
#ifndef COMPACT_DROPPED_H
#define COMPACT_DROPPED_H

#include "compact/compact.h"

// A merge is worth it if dropped spaces have 1/COMPACT_DROPPED_SHARE of the bytes of the partition's tables. Their
// values apart count, but those of other spaces do not: the merge writes references to these only.
#define COMPACT_DROPPED_SHARE 32u

struct compact_dropped {
  bool parts;         // there are partitions for version_trim
  bool tables;        // there are tables for compact_dropped_tables
  uint32_t due;       // partitions for compact_dropped_round
  bool apart;         // some value of all these partitions is apart
  uint64_t again_ns;  // nanoseconds until a partition can be tried again that is left out meanwhile, by merges or by
                      // the look; 0: there is none
};
// Looks at all partitions of the version's spaces. Opens those that are away, unless their anchors tell that they have
// no such keys; and the one that version_trim_first returns, if there are partitions for version_trim. Reads one block
// for each dropped space that lies between the keys of a table, and some hundred records at most where values are
// apart, unless the partition is known. A partition that cannot be read is marked (view/part.h, P4), and the look goes
// on with the next one. slot: the caller's, outside of any epoch. Fails with REMIXDB_NOMEM, and as part_ready does for
// the partition of version_trim_first. One thread at a time.
MUST_CHECK enum remixdb_status compact_dropped_find(struct compact *c, struct epoch_slot *slot,
                                                    const struct version *base, struct compact_dropped *out);
// Estimates how many bytes of tables and of values apart dropped spaces have in the version. Reads no block.
uint64_t compact_dropped_bytes(const struct version *base);
// Makes the version without the tables that have keys of dropped spaces only, in partitions that have other tables. It
// has one reference, and no names. Its REMIX files are synced, and the caller syncs their directory entries. A
// partition that cannot be read is marked (view/part.h, P4) and stays as it is: a damaged one for these names, another
// one until its time has come. *out NULL: no table has left. On failure no new file is left. Fails with REMIXDB_NOMEM,
// REMIXDB_IO or REMIXDB_NOSPACE.
MUST_CHECK enum remixdb_status compact_dropped_tables(struct compact *c, struct worker *self,
                                                      const struct version *base, struct version **out);
#endif
