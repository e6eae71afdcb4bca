// SPDX-License-Identifier: Apache-2.0
#include "store/iter_opts.h"

// Copies the space and a key to *at_io, which moves on.
static struct kref join(uint8_t **at_io, struct kref space, struct kref key) {
  uint8_t *const p = *at_io;
  if (space.len) memcpy(p, space.ptr, space.len);
  if (key.len) memcpy(p + space.len, key.ptr, key.len);
  *at_io = p + space.len + key.len;
  return kref(p, space.len + key.len);
}

// Makes the lowest key above all keys that begin with `key`, in place. ptr NULL: there is none.
static struct kref behind(struct kref key) {
  uint8_t *const p = (uint8_t *)(uintptr_t)key.ptr;
  uint32_t n = key.len;
  while (n > 0 && p[n - 1] == 0xff) n--;
  if (n == 0) return kref(NULL, 0);
  p[n - 1]++;
  return kref(p, n);
}

enum remixdb_status iter_bounds(const struct xdb_iter_opts *o, struct xdb_iter_bounds *out) {
  const struct kref from = kref(o->bounds.from.ptr, o->bounds.from.len), to = kref(o->bounds.to.ptr, o->bounds.to.len),
                    prefix = kref(o->prefix.ptr, o->prefix.ptr ? o->prefix.len : 0), space = o->space;
  *out = (struct xdb_iter_bounds){.bytes = NULL};
  if (!from.ptr && !to.ptr && !prefix.len && !space.len) return REMIXDB_OK;
  uint8_t *p = mem_alloc((size_t)3 * space.len + (from.ptr ? from.len : 0) + (to.ptr ? to.len : 0) + 2 * prefix.len +
                         1);
  if (!p) return REMIXDB_NOMEM;
  out->bytes = p;
  out->low = join(&p, space, from.ptr && kv_cmp(from, prefix) > 0 ? from : prefix);
  const struct kref end = behind(join(&p, space, prefix));
  out->high = end;
  if (to.ptr) {
    const struct kref key = join(&p, space, to);
    if (!end.ptr || kv_cmp(key, end) < 0) out->high = key;
  }
  return REMIXDB_OK;
}
