// SPDX-License-Identifier: Apache-2.0
//
// A checker of large histories of transactions: is there an order of all of them, one after the other, that explains
// each read and agrees with time? tests/lib/history.h searches such an order; this checker is told the order of the
// writes of each key, and so takes time that is linear in the length of the history.
//
// A history is a set of operations on numbered keys. An operation is a transaction, or a single read or write. It has
// the times of its call and of its return, takes place at one moment between them, and has items in the order in which
// they happened: reads, writes, savepoints and rollbacks. Each write gives its key a value with a number of its own; a
// delete is a write, and a reader that finds no key can tell which delete that was. So each read names the write that
// it saw. `order` of an operation places its writes among the writes of all operations: for a store it is the sequence
// number of one of them.
//
// The checker builds the graph of Adya ("Weak consistency: a generalized theory and optimistic implementations for
// distributed transactions", 1999). Its nodes are the operations. Its edges say "before":
//   ww    the writers of a value of a key and of the next value
//   wr    the writer of a value and its reader
//   rw    the reader of a value and the writer of the next value of the key
//   time  an operation returned before the other was called. n operations need about n such edges, because returns go
//         into a chain of nodes, and calls come out of it.
// A cycle proves that there is no order (tarjan's strongly connected components find it); without a cycle any
// topological order of the graph is one. Reads of values that no order explains are found without the graph: a value of
// an operation that was aborted or of a write that was rolled back, and a value that its own transaction had replaced.
//
// An operation without a place among the writes (order 0) takes it from the version that a reader of its value saw. If
// there is none, its writes have wr edges only.
#ifndef SERIAL_H
#define SERIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum serial_what {
  SERIAL_READ,   // a key by its name
  SERIAL_SCAN,   // a key of a range, whether it is there or not
  SERIAL_WRITE,  // also a delete
  SERIAL_SAVE,   // a savepoint
  SERIAL_BACK    // a rollback to the last savepoint
};

struct serial_item {
  uint8_t what;  // enum serial_what
  bool gap;      // a read that found no key
  uint16_t key;
  uint32_t value;    // its number, not 0 for a write; 0: a read found that the key was never written
  uint64_t version;  // a read's: the version that the store told; 0: not told
};

enum serial_end { SERIAL_ABORTED, SERIAL_COMMITTED, SERIAL_MAYBE };  // maybe: it counts if a value of it was read

// Values that an operation reads after it has written their keys are not among its items.
struct serial_op {
  const char *what;
  const struct serial_item *items;
  uint32_t nr_items, thread;
  uint64_t call, ret;  // ret UINT64_MAX: it did not return
  uint64_t order;      // 0: not known, or without writes
  enum serial_end end;
  bool conflict;  // it was aborted because of another; for the caller's figures
};

enum serial_verdict {
  SERIAL_GOOD,
  SERIAL_CYCLE,
  SERIAL_DIRTY,         // a read of a value that was taken back
  SERIAL_INTERMEDIATE,  // a read of a value that its transaction replaced
  SERIAL_FOREIGN,       // a read of a value that nobody wrote to this key
  SERIAL_ORDER          // the versions that were read contradict the operations' order
};

struct serial_result {
  enum serial_verdict verdict;
  uint32_t ops, ww, wr, rw, time;  // operations and edges of the cycle
  uint32_t gaps;                   // its rw edges from a scan that did not meet the key
  uint64_t nodes, edges;           // the graph's
  uint32_t unplaced;               // operations with writes that have no place
  char text[6000];                 // the cycle, or the read
};

struct serial;

// initial: the values of the keys before the history, nr_keys of them; 0: not there. ops and initial stay as they are,
// and there, until serial_free. Ends the program if memory is missing.
struct serial *serial_make(const struct serial_op *ops, uint32_t nr, const uint32_t *initial, uint32_t nr_keys);
void serial_free(struct serial *s);
// The store had this value, with this version, after the history. Before serial_check. False: nobody wrote it, or it
// was taken back.
bool serial_found(struct serial *s, uint32_t key, uint32_t value, uint64_t version);
enum serial_verdict serial_check(struct serial *s, struct serial_result *out);
// Sets values_out[key] for all keys to what the operations with a place up to `last` make of them. After serial_check.
void serial_state(const struct serial *s, uint64_t last, uint32_t *values_out);
// The place of an operation; 0: none.
uint64_t serial_order(const struct serial *s, uint32_t op);
#endif
