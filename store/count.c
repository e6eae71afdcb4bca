// SPDX-License-Identifier: Apache-2.0
#include "store/count.h"

#include "store/idle.h"
#include "view/count.h"

enum remixdb_status xdb_count(struct xdb_ref *r, struct kref low, struct kref high, uint64_t *keys_out,
                              uint64_t *bytes_out) {
  struct count c = {.low = low, .high = high, .epoch = &r->xdb->epoch, .slot = &r->slot, .keys_only = !bytes_out};
  struct super *const v = xdb_ref_hold(r, &c.moment);
  c.mem[0] = memtable_tree(v->active, r->tree);
  c.mem[1] = super_frozen(v, r->tree);
  c.version = version_tree(v->version, r->tree);
  enum remixdb_status s = c.version ? count_range(&c) : REMIXDB_OK;
  const uint64_t ids = r->space ? c.keys * NAMES_ID : 0;  // the space's id before each key
  c.bytes -= ids < c.bytes ? ids : c.bytes;
  struct err_saved error;
  err_save(&error, s);
  xdb_super_drop(r->xdb, v);
  if (keys_out) *keys_out = c.keys;
  if (bytes_out) *bytes_out = c.bytes;
  return s == REMIXDB_OK ? s : err_raise(&error);  // dropping the super may have left another message
}
