// SPDX-License-Identifier: Apache-2.0
//
// Rising numbers: an array of u32 that never descend, and ascend slowly, in about two bytes each. A line of the array,
// 64 bytes, has RISING_LINE of them: the first one, and by how much each one is more.
#ifndef RISING_H
#define RISING_H

#include <assert.h>

#include "lib.h"

#define RISING_LINE 30u
#define RISING_MOST 0xFFFFu  // the largest difference of two numbers of a line

struct rising_line {
  uint32_t first;
  uint16_t more[RISING_LINE];
};
_Static_assert(sizeof(struct rising_line) == CACHE_LINE, "a line is one cache line, where it is aligned");

// Lines of nr numbers.
static inline size_t rising_lines(size_t nr) { return (nr + RISING_LINE - 1) / RISING_LINE; }
static inline uint32_t rising_at(const struct rising_line *lines, uint32_t i) {
  const struct rising_line *const line = &lines[i / RISING_LINE];
  return line->first + line->more[i % RISING_LINE];
}
// Sets number i. The number with which its line begins is set, or is this one; v is at most RISING_MOST more.
static inline void rising_set(struct rising_line *lines, uint32_t i, uint32_t v) {
  struct rising_line *const line = &lines[i / RISING_LINE];
  if (i % RISING_LINE == 0) line->first = v;
  assert(v >= line->first && v - line->first <= RISING_MOST);
  line->more[i % RISING_LINE] = (uint16_t)(v - line->first);
}
#endif
