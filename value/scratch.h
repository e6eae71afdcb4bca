// SPDX-License-Identifier: Apache-2.0
//
// Memory that reading a value takes for a while. A store keeps a few sets of it.
#ifndef VALUE_SCRATCH_H
#define VALUE_SCRATCH_H

#include "lib.h"

#define VALUE_SCRATCH 8u  // sets that are kept

// Only the thread that has taken a set uses it.
struct value_scratch {
  uint8_t *win;  // bytes of the file; the first win_cap are there
  size_t win_cap;
  uint8_t *chunk;            // VALUE_CHUNK bytes; NULL until needed
  struct ZSTD_DCtx_s *zstd;  // NULL until needed
};

// The sets that no thread has. All zero: none.
struct value_scratches {
  _Atomic(struct value_scratch *) all[VALUE_SCRATCH];  // an exchange takes what is there; NULL: nothing
};
void value_scratches_fini(struct value_scratches *s);
struct value_scratch *value_scratch_take(struct value_scratches *s);  // NULL: REMIXDB_NOMEM
void value_scratch_give(struct value_scratches *s, struct value_scratch *x);
// Makes room for n bytes in x->win. The contents are lost then. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status value_scratch_reserve(struct value_scratch *x, size_t n);
#endif
