// SPDX-License-Identifier: Apache-2.0
#include "kv.h"

uint32_t kv_lcp_from(struct kref a, struct kref b, uint32_t from) {
  const uint32_t n = a.len < b.len ? a.len : b.len;
  uint32_t i = from;
  while (n - i >= 8) {
    const uint64_t diff = load64le(a.ptr + i) ^ load64le(b.ptr + i);
    if (diff) return i + ((uint32_t)__builtin_ctzll(diff) >> 3);
    i += 8;
  }
  while (i < n && a.ptr[i] == b.ptr[i]) i++;
  return i;
}

uint8_t *kv_varint_put(uint8_t *p, uint32_t v) {
  while (v >= 0x80) {
    *p++ = (uint8_t)(v | 0x80);
    v >>= 7;
  }
  *p++ = (uint8_t)v;
  return p;
}

const uint8_t *kv_varint_get(const uint8_t *p, const uint8_t *end, uint32_t *v_out) {
  if (likely(p < end && *p < 0x80)) {
    *v_out = *p;
    return p + 1;
  }
  uint32_t v = 0;
  for (uint32_t shift = 0; p < end && shift <= 28; shift += 7) {
    const uint32_t b = *p++;
    if (shift == 28 && b > 0x0f) return NULL;  // bits above the 32nd, or a sixth byte
    v |= (b & 0x7f) << shift;
    if (b < 0x80) {
      *v_out = v;
      return p;
    }
  }
  return NULL;
}

uint8_t *kv_head_put(uint8_t *p, uint32_t klen, uint32_t vlen, bool tomb) {
  p = kv_varint_put(p, klen << 1 | (tomb ? 1u : 0u));
  return tomb ? p : kv_varint_put(p, vlen);
}

uint8_t *kv_rec_put(uint8_t *p, const struct kv_rec *r) {
  p = kv_head_put(p, r->klen, r->vlen, r->tomb);
  if (r->klen) memcpy(p, r->key, r->klen);
  p += r->klen;
  if (!r->tomb && r->vlen) {
    memcpy(p, r->val, r->vlen);
    p += r->vlen;
  }
  return p;
}

const uint8_t *kv_rec_get(const uint8_t *p, const uint8_t *end, struct kv_rec *r_out) {
  uint32_t head, vlen = 0;
  p = kv_varint_get(p, end, &head);
  if (unlikely(!p)) return NULL;
  const bool tomb = head & 1;
  const uint32_t klen = head >> 1;
  if (!tomb) {
    p = kv_varint_get(p, end, &vlen);
    if (unlikely(!p)) return NULL;
  }
  // each is checked first, so the sum cannot wrap
  if (unlikely(klen > REMIXDB_KV_MAX || vlen > REMIXDB_KV_MAX || klen + vlen > REMIXDB_KV_MAX)) return NULL;
  if (unlikely((size_t)(end - p) < (size_t)klen + vlen)) return NULL;
  *r_out = (struct kv_rec){.key = p, .val = p + klen, .klen = klen, .vlen = vlen, .tomb = tomb};
  return p + klen + vlen;
}
