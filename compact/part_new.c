// SPDX-License-Identifier: Apache-2.0
#include "compact/part_new.h"

// A view that stays needs no file of its own, so only a new one is made obsolete.
static void retire_new(struct remix *x, const struct remix *was, bool filed) {
  if (x && x != was && filed) remix_retire(x);
}

enum remixdb_status part_new(const struct part *p, enum remixdb_status s, struct remix *remix, struct remix *young,
                             bool filed, struct part **out) {
  if (s == REMIXDB_OK) {
    if (remix) remix_ref(remix);
    if (young) remix_ref(young);
    s = part_create(part_anchor(p), remix, young, out);
    if (s == REMIXDB_OK) part_inherit(*out, p);
  }
  err_cleanup_begin();
  if (s != REMIXDB_OK) {
    retire_new(remix, part_remix(p), filed);
    retire_new(young, part_young(p), filed);
  }
  remix_unref(remix);
  remix_unref(young);
  err_cleanup_end();
  return s;
}

void part_new_drop(struct part *made, const struct part *p, bool filed) {
  retire_new(part_remix(made), part_remix(p), filed);
  retire_new(part_young(made), part_young(p), filed);
  part_unref(made);
}
