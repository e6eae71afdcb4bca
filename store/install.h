// SPDX-License-Identifier: Apache-2.0
//
// The two ends of a round: the active memtable is frozen, and the version that the round made becomes the store's.
#ifndef STORE_INSTALL_H
#define STORE_INSTALL_H

#include "store/state.h"
#include "store/values.h"

// Freezes the active memtable: a new memtable and a new log segment take all later writes. The caller holds xdb.lock,
// and no memtable is frozen yet. After a failure nothing has changed. Fails with REMIXDB_NOMEM, REMIXDB_NOSPACE, or the
// log's failure.
MUST_CHECK enum remixdb_status round_freeze(struct xdb *x);

// Makes `next` the store's version and gives up the caller's reference to it, also on failure. had_frozen: the round
// compacted the frozen memtable, so `next` has the memtable's content, and the memtable leaves the super. If had_frozen
// is false, the log stays as it is, and a memtable may have been frozen meanwhile. The names of spaces stay as they
// are. *when_out: the time at which the new super was published. Waits for the disk and for epochs; outside of any lock
// and epoch. After REMIXDB_NOSPACE or REMIXDB_NOMEM the new files have been removed, and another round may be tried.
// After any other failure it is unknown which CURRENT is on disk, so the store refuses writes.
MUST_CHECK enum remixdb_status round_install(struct xdb *x, struct version *next, bool had_frozen, uint64_t *when_out);
// The same for a version with the tables of an ingest, which are above the active memtable (store/ingest.h): the
// memtable stays, or is handed over (store/handover.h). No memtable is frozen, nor can one be (rounds.ingesting). If it
// fails, a memtable may be frozen then, and a round was asked for.
struct round_ingest {
  uint32_t tree;
  struct kref low, high;     // no key of the ingest is smaller, or larger
  uint64_t unnumbered;       // the number of its records so far
  struct kv_rec mark;        // the record that gives the ingest its sequence number
  struct value_log *values;  // where its values are apart
  // Gives the tables their number, and makes it durable.
  enum remixdb_status (*number)(void *arg, struct worker *w, uint64_t seq);
  void *arg;
  bool unknown;  // out: after a failure CURRENT may have the version, so all files must stay
};
MUST_CHECK enum remixdb_status round_install_ingest(struct xdb *x, struct worker *w, struct version *next,
                                                    struct round_ingest *in, uint64_t *when_out);
// Replaces the names of the spaces: makes a version that has nothing else new, durable and the store's. Before that it
// makes all writes durable that were there when it was called, so a crash cannot leave the names and lose these. May
// run beside a round; spaces.changing is held. When it returns, all epochs that could see the older names have ended.
// Fails as round_install does.
MUST_CHECK enum remixdb_status install_names(struct xdb *x, struct names *names);
// Makes the result of a collection durable and the store's: a version that has nothing else new. In place of a round,
// as the call below. Fails as round_install does.
MUST_CHECK enum remixdb_status install_moved(struct xdb *x, const struct values_moved *moved);
// Makes the partitions of dropped spaces leave the version (version_trim), as the install of each round does. In
// place of a round: no round runs, and the caller is a worker. Fails as round_install does.
MUST_CHECK enum remixdb_status install_trim(struct xdb *x);

// Makes `next` the store's version and writes to the active memtable, as one (store/ranges.h). A range deletion has
// left keys out of `next`. commit(arg, old, fresh) is called under xdb.lock: it logs and stamps the writes, puts
// `fresh` in the place of the super `old`, and publishes; after a failure nothing has changed. frozen: the frozen
// memtable that the caller has looked at, or NULL. Then CURRENT is written. If there is no room for it, that is no
// failure, and `next` stays in memory until a later install (rounds.unsaved). In a round's thread, outside of any lock
// and epoch. Fails with REMIXDB_ABORTED if the store has another frozen memtable, or as commit does, and nothing has
// changed; any other failure is that of writing CURRENT, and the store refuses writes. *there_out: `next` is the
// store's version, and perhaps that of CURRENT: its files stay.
typedef enum remixdb_status (*round_commit_fn)(void *arg, struct super *old, struct super *fresh);
MUST_CHECK enum remixdb_status round_edit(struct xdb *x, struct version *next, const struct memtable *frozen,
                                          round_commit_fn commit, void *arg, bool *there_out);
// Writes CURRENT if the store's version is in memory only. Fails with REMIXDB_NOSPACE or REMIXDB_NOMEM, and may be
// tried again; after any other failure the store refuses writes.
MUST_CHECK enum remixdb_status round_edit_save(struct xdb *x);
#endif
