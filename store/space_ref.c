// SPDX-License-Identifier: Apache-2.0
#include "store/space_ref.h"

#include <assert.h>

#include "store/install.h"

// ---- refs

enum remixdb_status space_say_gone(void) { return err_set(REMIXDB_GONE, "the space is dropped"); }

// Makes a ref a ref of the space.
static void ref_set_space(struct xdb_ref *r, struct xdb_space *sp) {
  space_count(sp);
  r->space = sp;
  r->tree = TREE_SPACES;
}

enum remixdb_status xdb_space_ref(struct xdb_space *sp, struct xdb_ref **out) {
  if (space_is_gone(sp)) return space_say_gone();
  const enum remixdb_status s = xdb_ref(sp->xdb, out);
  if (s == REMIXDB_OK) ref_set_space(*out, sp);
  return s;
}

enum remixdb_status xdb_snapshot_space_ref(struct xdb_snapshot *snap, struct xdb_space *sp, struct xdb_ref **out) {
  enum remixdb_status s = sp ? memtable_spaces(snap->super->active) : REMIXDB_OK;
  if (s == REMIXDB_OK) s = xdb_snapshot_ref(snap, out);
  if (s == REMIXDB_OK && sp) ref_set_space(*out, sp);
  return s;
}

enum remixdb_status space_check(const struct xdb_ref *r) {
  return r->space && !r->super && unlikely(space_is_gone(r->space)) ? space_say_gone() : REMIXDB_OK;
}

enum remixdb_status space_key_make(struct xdb_ref *r, struct kref *key) {
  const enum remixdb_status s = space_check(r);
  if (unlikely(s != REMIXDB_OK)) return s;
  const size_t len = NAMES_ID + (size_t)key->len;
  if (unlikely(len > r->key_cap)) {
    const size_t cap = mem_doubled(r->key_cap ? r->key_cap : 64, len);
    uint8_t *const grown = mem_realloc(r->key, cap);
    if (!grown) return REMIXDB_NOMEM;
    r->key = grown;
    r->key_cap = cap;
    names_id_put(grown, r->space->id);
  }
  if (key->len) memcpy(r->key + NAMES_ID, key->ptr, key->len);
  *key = kref(r->key, (uint32_t)len);
  return REMIXDB_OK;
}

enum remixdb_status space_keys(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys,
                               struct remixdb_slice **own_out) {
  const enum remixdb_status s = space_check(r);
  if (s != REMIXDB_OK) return s;
  size_t bytes = 0;
  for (size_t i = 0; i < nr; i++) bytes = mem_sum(bytes, NAMES_ID + (size_t)keys[i].len);
  struct remixdb_slice *const own = mem_array(nr, sizeof(*own), bytes);
  if (!own) return REMIXDB_NOMEM;
  uint8_t *p = (uint8_t *)&own[nr];
  for (size_t i = 0; i < nr; i++) {
    own[i] = (struct remixdb_slice){p, NAMES_ID + keys[i].len};
    names_id_put(p, r->space->id);
    if (keys[i].len) memcpy(p + NAMES_ID, keys[i].ptr, keys[i].len);
    p += own[i].len;
  }
  *own_out = own;
  return s;
}

enum remixdb_status space_bounds(const struct xdb_ref *r, const struct remixdb_range *range,
                                 struct xdb_iter_bounds *out) {
  uint8_t id[NAMES_ID];
  struct xdb_iter_opts opts = {.bounds = *range};
  const enum remixdb_status s = space_check(r);
  if (s != REMIXDB_OK) return s;
  if (r->space) {
    names_id_put(id, r->space->id);
    opts.space = kref(id, NAMES_ID);
  }
  return iter_bounds(&opts, out);
}

enum remixdb_status space_check_write(const struct super *v, struct kref key) {
  return likely(names_have_key(v->version->names, key)) ? REMIXDB_OK : space_say_gone();
}
