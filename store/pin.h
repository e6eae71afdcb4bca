// SPDX-License-Identifier: Apache-2.0
//
// Gets that return memory: a copy, or a pin, which keeps the value where it is (remixdb_get_pinned).
//
// A pin holds only the part of the store that has the value: a count on the memtable, or a count on the table and a pin
// on the block's frame in the cache. So a pin that is held for long stops neither epochs nor the removal of other
// files.
#ifndef STORE_PIN_H
#define STORE_PIN_H

#include "store/ref.h"

struct xdb_pin;

// *val_out: a copy of the value, which the caller frees with mem_free; not NULL, also for an empty value. vlen_out may
// be NULL. Fails with REMIXDB_NOTFOUND or REMIXDB_NOMEM, or as reading does.
MUST_CHECK enum remixdb_status pin_get_alloc(struct xdb_ref *r, struct kref key, void **val_out, uint32_t *vlen_out);
// The same for a record of v whose value is apart. The ref is in the epoch of v; the call leaves that first, because
// reading the value may take long.
MUST_CHECK enum remixdb_status pin_alloc_apart(struct xdb_ref *r, const struct super *v, struct kref key,
                                               const struct kv_rec *rec, void **val_out, uint32_t *vlen_out);
// *v_out is valid until pin_release, and not NULL. Fails like pin_get_alloc.
MUST_CHECK enum remixdb_status pin_get(struct xdb_ref *r, struct kref key, struct xdb_pin **out, const void **v_out,
                                       uint32_t *vlen_out);
struct xdb *pin_store(const struct xdb_pin *pin);
// Any thread, outside of any epoch: freeing a memtable or removing a file may take long.
void pin_release(struct xdb_pin *pin);
#endif
