// SPDX-License-Identifier: Apache-2.0
//
// Readahead of values: a reader that comes to several values has the system bring them into its page cache together, so
// that it waits for the disk once. Values that are neighbours in a file are one request. The next request follows when
// the reader has used half of what it has asked for, so that requests stay large and are under way early.
#ifndef VALUE_READAHEAD_H
#define VALUE_READAHEAD_H

#include "value/read.h"

#define VALUE_AHEAD_NR 64u     // values that are on their way at once, at most
#define VALUE_AHEAD_GAP 8192u  // bytes between two values of a request, at most: they cost less than a second one

// A value that a reader comes to.
struct value_want {
  struct value_file *file;
  struct value_ref to;
  uint32_t klen;  // bytes of the record's key
};

// Asks for values, at most VALUE_AHEAD_NR, neighbours together. For callers that have asked value_cold. Cannot fail:
// the reader reads all the same when it comes there. Takes no descriptor that others need.
void value_ask(const struct value_want *wants, uint32_t nr);

// The values that a reader has asked for, in the order of its reading. All zero: none. One thread at a time uses it.
struct value_readahead {
  uint32_t nr, next;               // next: the one behind the last that was read
  uint32_t asked[VALUE_AHEAD_NR];  // marks of the values
};

// The reader is about to read this value. Returns whether it should look now at what it comes to, and call
// value_readahead_ask.
MUST_CHECK bool value_readahead_due(struct value_readahead *a, const struct value_ref *to);
// The reader comes to these values next, in this order. Asks for those that it has not asked for, as value_ask does.
void value_readahead_ask(struct value_readahead *a, const struct value_want *wants, uint32_t nr);
#endif
