// SPDX-License-Identifier: Apache-2.0
#include "store/below.h"

enum remixdb_status xdb_below_away(const struct part *part, struct kref key, uint64_t hash, struct sst_hold *h,
                                   struct kv_rec *rec_out) {
  enum remixdb_status s = part_ready(part);
  if (s != REMIXDB_OK) return s;
  struct remix *const remix = part_remix(part), *const young = part_young(part);
  if (!remix) return REMIXDB_NOTFOUND;
  if (young && (s = remix_get(young, key, hash, h, rec_out)) != REMIXDB_NOTFOUND) return s;
  return remix_get(remix, key, hash, h, rec_out);
}
