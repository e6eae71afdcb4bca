// SPDX-License-Identifier: Apache-2.0
//
// Linking many records of the log into a memtable. The opening thread gathers records. Then it and the workers link
// them at the same time. Each thread takes the keys with hashes in its share, so the versions of a key keep their
// order.
#ifndef STORE_REPLAY_LINK_H
#define STORE_REPLAY_LINK_H

#include "store/state.h"

#define REPLAY_BYTES (1u << 20)  // bytes gathered before they are linked; more than any record has
#define REPLAY_RECORDS 8192u     // records gathered before they are linked
#define REPLAY_SHARES 2u         // shares per thread

_Static_assert(REPLAY_BYTES >= 2 * KV_KEY_MAX, "a record fits");

struct replay_rec {
  struct kv_rec rec;
  uint64_t hash;
};
struct replay_share {
  struct task task;
  struct replay_link *l;
  uint32_t number;
  struct err_saved error;  // status OK: none
};
struct replay_fill {
  struct task task;
  struct xdb *x;
};

// Gathered records. The fields are private.
struct replay_link {
  struct xdb *x;
  struct worker *self;
  struct memtable *m;  // while records are linked
  struct replay_rec recs[REPLAY_RECORDS];
  uint32_t nr;
  size_t nbytes, most;
  uint32_t nr_shares;
  struct replay_share shares[REPLAY_SHARES * (WORKERS_MAX + 1)];
  struct replay_fill fill;
  struct task *tasks[REPLAY_SHARES * (WORKERS_MAX + 1) + 1];
  uint8_t bytes[REPLAY_BYTES];  // keys and values
};

// Begins with no record. self: the opening thread as a worker. most: no more is gathered when it has so many bytes.
void replay_link_init(struct replay_link *l, struct xdb *x, struct worker *self, size_t most);
// Tells whether one more record has room.
bool replay_link_fits(const struct replay_link *l, const struct kv_rec *rec);
// Gathers a record, which has room; copies it. rec->seq: its number.
void replay_link_add(struct replay_link *l, const struct kv_rec *rec);
// Links what is gathered into m, which has the index of the spaces' tree if a record needs it. Fails with
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status replay_link_all(struct replay_link *l, struct memtable *m);
#endif
