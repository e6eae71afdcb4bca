// SPDX-License-Identifier: Apache-2.0
//
// A REMIX with an anchor that is longer than it was, for the tests of files whose anchors no key could have.
#ifndef TESTS_LONGER_H
#define TESTS_LONGER_H

#include <stdlib.h>

#include "remix/format.h"

// Puts `more` zeros behind the anchor of segment seg in a plain image. Its checksum is not made anew. Returns the new
// image, for free, and its size; NULL: there is no such anchor.
static inline uint8_t *anchor_longer(const uint8_t *image, size_t *size_io, uint32_t seg, uint32_t more) {
  const size_t size = *size_io;
  if (size < REMIX_HEAD_TABLES + REMIX_SUM) return NULL;
  const uint64_t nr = load32le(image + REMIX_HEAD_SEGS), ends = load64le(image + REMIX_HEAD_OFFS_AT),
                 len = load64le(image + REMIX_HEAD_ANCHORS_LEN), room = size - REMIX_SUM;
  if (seg >= nr || ends > room || 4 * (nr + 1) > room - ends || len != room - ends - 4 * (nr + 1)) return NULL;
  const uint64_t anchors = ends + 4 * (nr + 1), end = load32le(image + ends + 4 * ((uint64_t)seg + 1));
  if (end > len) return NULL;
  uint8_t *const p = malloc(size + more);
  if (!p) return NULL;
  memcpy(p, image, anchors + end);
  memset(p + anchors + end, 0, more);
  memcpy(p + anchors + end + more, image + anchors + end, size - anchors - end);
  for (uint64_t i = (uint64_t)seg + 1; i <= nr; i++) store32le(p + ends + 4 * i, load32le(image + ends + 4 * i) + more);
  store64le(p + REMIX_HEAD_SIZE, load64le(image + REMIX_HEAD_SIZE) + more);
  store64le(p + REMIX_HEAD_ANCHORS_LEN, len + more);
  *size_io = size + more;
  return p;
}
#endif
