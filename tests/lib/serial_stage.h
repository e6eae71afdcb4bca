// SPDX-License-Identifier: Apache-2.0
//
// Threads that use a store in many ways and record what they did, as a history for tests/lib/serial.h: transactions
// with reads, scans, writes, savepoints and rollbacks; batches, plain writes, merges, compare-and-set; reads of many
// keys at once, scans and snapshots. All of it over keys of three spaces.
//
// Each value has a number of its own. So that absent keys tell which delete they are of, a delete also puts a record
// next to the key, its grave, with the number of the delete. So that each commit has an order, a transaction or batch
// that writes also puts its number into the marker of its thread: the marker's version is the order.
//
// The history is in memory that a child shares with its parent: the parent reads it when the child was killed.
#ifndef SERIAL_STAGE_H
#define SERIAL_STAGE_H

#include <stdatomic.h>

#include "tests/lib/serial.h"
#include "tests/lib/store.h"

#define STAGE_THREADS 8u
#define STAGE_SPACES 3u
#define STAGE_PER 60u  // keys of a space
#define STAGE_KEYS (STAGE_SPACES * STAGE_PER)
#define STAGE_OPS 40000u  // a thread's, at most
#define STAGE_ITEMS (24u * STAGE_OPS)
#define STAGE_VALUE_MAX 3000u

// The operations of one thread. The thread writes it, and the parent reads it after the thread's end.
struct stage_log {
  struct serial_op ops[STAGE_OPS];
  struct serial_item items[STAGE_ITEMS];
  bool marked[STAGE_OPS];  // the operation has put its number into the marker
  _Atomic uint32_t nr;     // operations that have begun; the last one may lack its end
  uint32_t nr_items;
  uint32_t next_value;
  uint64_t synced;  // the call of the last sync that returned
};

struct stage_shared {
  _Atomic uint64_t clock, done;  // done: operations
  struct stage_log logs[STAGE_THREADS];
};

struct stage {
  struct stage_shared *shared;
  struct xdb *x;
  struct xdb_space *spaces[STAGE_SPACES];  // NULL for the first
  uint64_t seed;
  uint32_t life;
  bool untracked;   // transactions read through refs that cause no conflicts
  uint64_t nr_ops;  // operations of all threads, after which they end
};

struct actor {
  struct stage *w;
  struct stage_log *log;
  struct serial_op *op;  // under way
  uint32_t id;
  uint64_t rng;
  struct xdb_ref *refs[STAGE_SPACES];
  struct xdb_batch *batch;
  // The transaction, or NULL, and what it has written so far.
  struct xdb_txn *txn;
  struct xdb_ref *txn_refs[STAGE_SPACES], *read_refs[STAGE_SPACES];
  struct own {
    uint32_t value;  // 0: not written
    bool gone;
  } own[STAGE_KEYS];
  uint64_t began, began_ret;  // the interval of its beginning
  uint8_t value[STAGE_VALUE_MAX], got[STAGE_VALUE_MAX], want[STAGE_VALUE_MAX];
};

struct stage_shared *stage_share(void);  // memory that children share; stage_unshare gives it back
void stage_unshare(struct stage_shared *s);
void stage_forget(struct stage_shared *s);  // all operations; the numbers of values go on

// Opens or makes the store in `dir`, with its spaces.
void stage_open(struct stage *w, int workers, int sync);
void stage_fill(struct stage *w);  // with records between the keys
void stage_close(struct stage *w);
// Runs STAGE_THREADS actors until nr_ops operations are done.
void stage_run(struct stage *w);

struct actor *actor_create(struct stage *w, uint32_t id);
void actor_destroy(struct actor *a);
// Parts of transactions, for the caller to interleave.
void actor_begin(struct actor *a);
void actor_read(struct actor *a, uint32_t key);
void actor_scan(struct actor *a, uint32_t from, uint32_t to, bool backward);  // all of these keys, of one space
void actor_put(struct actor *a, uint32_t key);
void actor_del(struct actor *a, uint32_t key);
void actor_del_range(struct actor *a, uint32_t from, uint32_t to);
bool actor_commit(struct actor *a);

// The store's value of each key, with its version; values 0 and versions 0: never written.
void stage_read(struct stage *w, uint32_t values_out[STAGE_KEYS], uint64_t versions_out[STAGE_KEYS]);
// The number of the last operation of this life whose marker is there, or UINT32_MAX. Sets the marker's version.
uint32_t stage_marker(struct stage *w, uint32_t thread, uint64_t *version_out);
#endif
