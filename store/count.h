// SPDX-License-Identifier: Apache-2.0
//
// How many keys a range has, about.
#ifndef STORE_COUNT_H
#define STORE_COUNT_H

#include "store/ref.h"

// Counts what the ref reads, in its tree: low <= key < high, ptr NULL: open. The contract of remixdb_count. A
// transaction's own writes are left out.
MUST_CHECK enum remixdb_status xdb_count(struct xdb_ref *r, struct kref low, struct kref high, uint64_t *keys_out,
                                         uint64_t *bytes_out);
#endif
