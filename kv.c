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

uint8_t *kv_varint64_put(uint8_t *p, uint64_t v) {
  while (v >= 0x80) {
    *p++ = (uint8_t)(v | 0x80);
    v >>= 7;
  }
  *p++ = (uint8_t)v;
  return p;
}

const uint8_t *kv_varint64_get(const uint8_t *p, const uint8_t *end, uint64_t *v_out) {
  uint64_t v = 0;
  for (uint32_t shift = 0; p < end && shift <= 63; shift += 7) {
    const uint64_t b = *p++;
    if (shift == 63 && b > 1) return NULL;  // bits above the 64th, or an eleventh byte
    v |= (b & 0x7f) << shift;
    if (b < 0x80) {
      *v_out = v;
      return p;
    }
  }
  return NULL;
}

static inline uint32_t varint64_size(uint64_t v) { return (63u - (uint32_t)__builtin_clzll(v | 1)) / 7 + 1; }

size_t kv_rec_size_special(const struct kv_rec *r) {
  size_t size = kv_varint_size(r->klen << 1) + 1 + (size_t)r->klen;
  if (r->kind & KV_SEQ) size += varint64_size(r->seq);
  if (r->kind & KV_EXPIRES) size += varint64_size(r->expiry);
  return r->kind & KV_TOMB ? size : size + kv_varint_size(r->vlen) + r->vlen;
}

uint8_t *kv_head_put(uint8_t *p, const struct kv_rec *r) {
  p = kv_varint_put(p, r->klen << 1 | (r->kind ? 1u : 0u));
  if (unlikely(r->kind)) {
    *p++ = (uint8_t)r->kind;
    if (r->kind & KV_SEQ) p = kv_varint64_put(p, r->seq);
    if (r->kind & KV_EXPIRES) p = kv_varint64_put(p, r->expiry);
    if (r->kind & KV_TOMB) return p;
  }
  return kv_varint_put(p, r->vlen);
}

uint8_t *kv_rec_put(uint8_t *p, const struct kv_rec *r) {
  p = kv_head_put(p, r);
  if (r->klen) memcpy(p, r->key, r->klen);
  p += r->klen;
  if (!(r->kind & KV_TOMB) && r->vlen) {
    memcpy(p, r->val, r->vlen);
    p += r->vlen;
  }
  return p;
}

bool kv_lengths_fit(uint32_t kind, uint32_t klen, uint32_t vlen) {
  if (klen > KV_KEY_MAX) return false;
  if (kind & KV_RANGE) return vlen <= KV_KEY_MAX;
  if (kind & KV_APART) return vlen <= KV_REF_MAX;
  return vlen <= KV_KEY_MAX - klen;
}

bool kv_kind_fits(uint32_t kind, uint32_t kinds) {
  if (kind == 0 || kind & ~kinds) return false;
  if (kind & KV_TOMB) return (kind & (KV_EXPIRES | KV_APART | KV_RANGE)) == 0;
  return !(kind & KV_RANGE) || (kind & (KV_EXPIRES | KV_APART)) == 0;
}

// Decodes what follows the first varint of a special record, up to the value's length. A sequence number is not 0, and
// an expiry neither: it would mean that the record has none.
static const uint8_t *special_get(const uint8_t *p, const uint8_t *end, uint32_t kinds, struct kv_rec *r) {
  if (p == end) return NULL;
  r->kind = *p++;
  if (!kv_kind_fits(r->kind, kinds)) return NULL;
  if (r->kind & KV_SEQ && (!(p = kv_varint64_get(p, end, &r->seq)) || r->seq == 0)) return NULL;
  if (r->kind & KV_EXPIRES && (!(p = kv_varint64_get(p, end, &r->expiry)) || r->expiry == 0)) return NULL;
  return p;
}

const uint8_t *kv_rec_get(const uint8_t *p, const uint8_t *end, uint32_t kinds, struct kv_rec *r_out) {
  uint32_t head, vlen = 0;
  p = kv_varint_get(p, end, &head);
  if (unlikely(!p)) return NULL;
  const uint32_t klen = head >> 1;
  r_out->kind = 0;
  if (unlikely(head & 1)) {
    if (kinds == KV_BARE) r_out->kind = KV_TOMB;
    else if (!(p = special_get(p, end, kinds, r_out))) return NULL;
  }
  if (!(r_out->kind & KV_TOMB)) {
    p = kv_varint_get(p, end, &vlen);
    if (unlikely(!p)) return NULL;
  }
  if (unlikely(!kv_lengths_fit(r_out->kind, klen, vlen)) && (!(kinds & KV_LONG) || klen > KV_KEY_MAX)) return NULL;
  if (unlikely(kinds == KV_BARE && klen + vlen > REMIXDB_KV_MAX)) return NULL;
  if (unlikely((size_t)(end - p) < (uint64_t)klen + vlen)) return NULL;
  r_out->key = p;
  r_out->val = p + klen;
  r_out->klen = klen;
  r_out->vlen = vlen;
  return p + klen + vlen;
}
