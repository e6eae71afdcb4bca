// SPDX-License-Identifier: Apache-2.0
//
// Room for writers in the memtable. Outside of any epoch and lock.
#ifndef STORE_WAIT_ROOM_H
#define STORE_WAIT_ROOM_H

#include "store/freeze.h"

// Makes room for a writer: waits until no memtable is frozen, then freezes the active memtable, if it still is as
// `when` demands (batch: see xdb_round_due). Does not wait for the round. Fails with REMIXDB_NOSPACE, REMIXDB_NOMEM,
// REMIXDB_IO or REMIXDB_CORRUPT if there is no room now, or with the failure that stopped the store.
MUST_CHECK enum remixdb_status xdb_wait_room(struct xdb *x, enum xdb_freeze when, size_t batch);
// The same for one record and a full memtable, but waits for a round or a flush no longer than ROOM_WAIT_NS. *late_out:
// the time has passed, and there is still no room. The full memtable then takes the record all the same, up to
// memory_late (store/memory.h). So writers wait for the end of a round in small steps, hundreds in a second, and a
// memtable of 64 MiB takes some ten thousand small records in that way. The log's segment must have room, too: it is
// full before a memtable of records of more than about 1.6 KB, so these wait for the round.
#define ROOM_WAIT_NS 5000000u
MUST_CHECK enum remixdb_status xdb_wait_room_a_while(struct xdb *x, bool *late_out);
#endif
