// SPDX-License-Identifier: Apache-2.0
//
// Values that lie apart from their records (value/): writing them for a put, the order of syncs, which files a version
// needs. The thread that puts a long value writes it to a value file before the log gets the record, which has a
// reference in place of the value. Shorter values go through the log and the memtable, and a round writes the longer
// ones of them apart (compact/apart.h).
//
// Invariants
//   A1  A memtable has a file (memtable.values) before a record in it refers to the file. So whoever holds a super
//       holds all files that its records refer to: the version has the files of the tables' records (V8).
//   A2  A file is removed when no version, memtable or writer has it. CURRENT does not name it then, and no segment of
//       the log that a replay needs refers to it, because such a segment's memtable is there.
//   A3  The log syncs the values before the records (log/wal.h, L8), and a round syncs its values before CURRENT names
//       the tables that refer to them.
//   A4  A failed sync of xdb.values stops the store (xdb_fail) before the call that has met it returns: the system may
//       have dropped values to which acknowledged records refer. That call fails, also if its record is there. The log
//       meets the error at its next sync (A3), and so does a round before it writes tables. Nothing refers yet to the
//       values of a round or an ingest whose sync fails: they are given back or removed (value/write.h, W3).
#ifndef STORE_VALUES_H
#define STORE_VALUES_H

#include "store/state.h"

#define VALUES_DIRECT (16u << 10)  // a value of so many bytes is written apart by the thread that puts it
// A memtable is frozen when the values apart of its records have so many times the bytes of its limit, and at least
// VALUES_PER_MIN (xdb.values_least). A crash makes the next opening read them all.
#define VALUES_PER_MEMTABLE 4u
#define VALUES_MANY_PART 4u  // values_many
#define VALUES_PER_MIN ((uint64_t)64 << 20)

// A log of values with the store's options, for a writer that has one of its own.
void values_log_init(struct xdb *x, struct value_log *l);
void values_init(struct xdb *x);  // setup has set the limits, the options and the context of tables
void values_fini(struct xdb *x);

// A value that was written apart for a record. All zero: none was.
struct value_apart {
  struct value_file *file;  // in use (value/write.h, W4)
  bool kept;                // values_keep was called
  uint8_t ref[VALUE_REF];
};
// Tells whether the value of a put is written apart at once: it is long, or key and value are too long for a record.
static inline bool values_direct(uint32_t klen, uint32_t vlen) {
  return unlikely(vlen >= VALUES_DIRECT || (uint64_t)klen + vlen > KV_KEY_MAX);
}
// Tells whether the value of a put goes apart, at once or by a round.
static inline bool values_apart(uint32_t klen, uint32_t vlen) {
  return unlikely(vlen >= COMPACT_APART || (uint64_t)klen + vlen > KV_KEY_MAX);
}
// Writes the record's value apart. *rec then has the reference in *out as its value. After a failure nothing has
// changed. Fails with REMIXDB_NOSPACE or REMIXDB_NOMEM; after any other failure the store refuses writes (A4).
MUST_CHECK enum remixdb_status values_put(struct xdb *x, struct kv_rec *rec, struct value_apart *out);
// The write puts more values before values_end: this one needs no descriptor meanwhile. May sync, so the caller holds
// no lock that others need. Fails as values_put does, and then for the write; values_end follows in any case.
MUST_CHECK enum remixdb_status values_keep(struct xdb *x, struct value_apart *a);
// Makes the memtable hold the file of a record whose value is apart, before the memtable gets the record (A1). The file
// is one that values_put has in use, or that the frozen memtable has. Inside an epoch. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status values_hold(struct xdb *x, struct memtable *m, const struct kv_rec *rec);
// The log has the record: its value counts as the memtable's from now on. Until then it may be given up.
static inline void values_count(struct memtable *m, const struct kv_rec *rec) {
  atomic_fetch_add_explicit(&m->apart_bytes, value_ref_len(rec->val), memory_order_relaxed);
}
// Call it when the record is in a memtable that holds the file, or is given up. s: REMIXDB_OK, or why it may be given
// up. A value that is given up stays until a round settles its file, so it counts beside those of the active memtable
// (values_full). May sync, unless values_keep was called. Returns s, or the error of that sync if s is REMIXDB_OK; the
// store is stopped then in any case (A4).
MUST_CHECK enum remixdb_status values_end(struct xdb *x, struct value_apart *a, enum remixdb_status s);
// That many bytes.
uint64_t values_most(const struct xdb *x);
// Tells whether the active memtable is to be frozen, because its records have so many bytes apart, with those that were
// given up meanwhile. Relaxed.
bool values_full(const struct xdb *x, const struct memtable *m);
// Tells whether the values apart of its records are so large a part of values_most that a round hands no record back:
// the records are few bytes, and their values would make the next memtable full at once.
bool values_many(const struct xdb *x, const struct memtable *m);

// The log has been replayed into the memtable: makes the values durable to which its records refer, lets the version
// have their files, and the version's next file number be above theirs. Fails with REMIXDB_IO or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status values_replayed(struct xdb *x, struct version *v, const struct memtable *m);

// The result of a collection (store/collect.h).
struct values_moved {
  const struct value_set *gone;    // the files that it collected
  const struct value_moves *made;  // the indexes of those, and of earlier ones, that have live values
};
// The value files that a version may have beside those of its base. NULL: none.
struct values_new {
  const struct memtable *frozen;     // the round's
  const struct values_moved *moved;  // by a collection
  struct value_log *ingest;          // an ingest's
};
// Gives `next` the value files that its tables state: those of `base`, of the round (compact.values) and the new ones;
// and the indexes of those that were collected, by the version base or by new->moved, with their files. Fails with
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status values_of_next(struct xdb *x, struct version *next, const struct version *base,
                                              const struct values_new *new);
// `next` has replaced `base`, and the memtable (NULL: none) is in its tables: the last user of a file that neither
// `next` nor a memtable of the store's super has removes it. The caller still has a reference to the memtable. beside:
// a round may be in progress, and its version may refer to the files of compact.values, so these stay. Takes xdb.lock.
void values_retire(struct xdb *x, const struct version *base, const struct version *next, const struct memtable *frozen,
                   bool beside);
// Closes the files in use to further values, and settles all files that are not needed for writing. In a round's
// thread, when no round is under way.
void values_turn(struct xdb *x);
// Tells whether only tables refer to the file: no value is written to it any more, and no memtable of the store's super
// has it. A file that is settled stays so. Takes xdb.lock.
bool values_settled(struct xdb *x, const struct value_file *f);
#endif
