// SPDX-License-Identifier: Apache-2.0
//
// A store whose rounds of compaction are held up, or fail, where they make or remove a file. One store at a time, in
// `dir` (store.h). A test that waits for a round that never comes hangs, so its program sets an alarm.
//
// A round of a memtable is held up where it makes its first table, until it is allowed. A scan merge is held up at a
// gate; there are three.
#ifndef TESTS_GATES_H
#define TESTS_GATES_H

#include "tests/lib/check.h"
#include "tests/lib/store.h"

#include "base/files.h"
#include "tests/lib/paths.h"
#include "xdb.h"
#include "store/ref.h"
#include "store/snapshot.h"
#include "store/idle.h"
#include "store/syncer.h"
#include "store/scan_merge.h"

extern struct xdb *x;  // the store; NULL: none is open

// ---- rounds of memtables

// Memtables that were frozen until now: also the number of the newest one's round.
uint64_t frozen(void);
// Rounds up to this number are not held up.
void allow(uint64_t rounds);
// Waits until the round, or a later one, is held up.
void wait_held(uint64_t round);
// Holds the round up after its installation; 0 lets the round go on. `at_end` is set when the round has come there.
extern _Atomic uint64_t hold_end;
extern _Atomic bool at_end;

// ---- scan merges

enum gate {
  GATE_NONE,
  GATE_TABLE,    // before its first table
  GATE_REMIX,    // before its REMIX: the tables are written, and the round does not give up any more
  GATE_CURRENT,  // before its version is installed
};

// Tells whether a scan merge was asked for, is being made, or has been made.
bool scan_merge_begun(void);
// Scan merges stop at the gate; at none from then on.
void hold(enum gate at);
void wait_held_at(enum gate at);
// Scan merges fail at the gate with this system error.
extern _Atomic enum gate fail_at;
extern _Atomic int fail_with;

// ---- removal of tables

extern _Atomic uint32_t removed;   // tables, so far
extern _Atomic bool hold_remover;  // holds up the thread that removes one
// This thread removed the last one.
bool i_removed(void);

// ---- the store

// Opens the store with these sizes, in bytes and pages. Nothing is held up but rounds that are not allowed.
void begin_with(int workers, size_t memtable, uint32_t table_pages);
// Allows all rounds, and closes the store.
void end(void);
// Waits until there is no round, and none to come.
void idle(void);
// Another size of a full memtable, in bytes.
void limit(size_t memtable);

// ---- a store for scan merges: one partition of runs that overlap, against a model

#define KEYS 4000u
#define LEVELS 5u
#define SMALL 100u   // bytes of a value
#define LARGE 1000u  // records; the cache holds a quarter of them
#define ROOM (256u << 10)
#define PAGES 2048u  // pages of a table: one holds everything

extern uint32_t newest[KEYS];  // the number of each key's value, or 0
extern uint32_t value_len;     // bytes of all values

// Opens it, with an empty memtable.
struct xdb_ref *load(int workers, uint32_t len);
// Closes it, and checks its files and its content when it is opened again. Ends with a closed store.
void reopen(struct xdb_ref *r);

struct kref key_of(uint32_t key, uint8_t buf[8]);
void value_of(uint32_t key, uint32_t number, uint8_t *val);
void write_key(struct xdb_ref *r, uint32_t key, bool del);
// Writes until another memtable is frozen.
void freeze(struct xdb_ref *r);
// Adds the debt of many scans to all partitions.
void wear(struct xdb_ref *r);

// Checks that the iterator has the wanted records, from the key `from` to the end.
void check_rest(struct xdb_iter *it, uint32_t from, const uint32_t *want);
// Checks that the ref reads the wanted records, by iterator and by get.
void check_all(struct xdb_ref *r, const uint32_t *want);

uint32_t runs_of(const struct version *v);
// Runs of the newest version.
uint32_t runs(struct xdb_ref *r);
// The files of a closed store, before x was opened on it: all tables that its version names, and no others.
void check_files(const struct files_entry *list, size_t nr);
#endif
