// SPDX-License-Identifier: Apache-2.0
#include "value/readahead.h"

#include <assert.h>

// Tells values apart, mostly: if two have one mark, the second would not be asked for.
static uint32_t mark(const struct value_ref *r) {
  return (uint32_t)(r->at / VALUE_ALIGN) ^ (uint32_t)r->file * 0x9E3779B1u;
}

// Returns the index of the value among those that were asked for, or a->nr.
static uint32_t asked_find(const struct value_readahead *a, const struct value_ref *to) {
  const uint32_t m = mark(to);
  for (uint32_t n = 0, i = a->next; n < a->nr; n++, i++) {
    if (i >= a->nr) i = 0;
    if (a->asked[i] == m) return i;
  }
  return a->nr;
}

bool value_readahead_due(struct value_readahead *a, const struct value_ref *to) {
  const uint32_t i = asked_find(a, to);
  if (i == a->nr) return true;
  a->next = i + 1;
  return a->nr - a->next <= a->nr / 2;
}

// ---- neighbours

static bool want_before(const struct value_want *a, const struct value_want *b) {
  return a->to.file != b->to.file ? a->to.file < b->to.file : a->to.at < b->to.at;
}

// Sorts the indexes of wants by place. Neighbours mostly ascend, or descend, and then this takes one pass.
static void want_sort(const struct value_want *wants, uint8_t *order, uint32_t nr) {
  const bool falls = nr > 1 && want_before(&wants[order[nr - 1]], &wants[order[0]]);
  for (uint32_t i = 0; falls && i < nr / 2; i++) {
    const uint8_t x = order[i];
    order[i] = order[nr - 1 - i];
    order[nr - 1 - i] = x;
  }
  for (uint32_t i = 1; i < nr; i++) {
    const uint8_t x = order[i];
    uint32_t k = i;
    for (; k > 0 && want_before(&wants[x], &wants[order[k - 1]]); k--) order[k] = order[k - 1];
    order[k] = x;
  }
}

// Asks for the wants of order[0, nr), neighbours together.
static void ask(const struct value_want *wants, uint8_t *order, uint32_t nr) {
  want_sort(wants, order, nr);
  for (uint32_t i = 0, n; i < nr; i += n) {
    const struct value_want *const first = &wants[order[i]];
    uint64_t end = value_first_end(&first->to, first->klen);
    for (n = 1; i + n < nr; n++) {
      const struct value_want *const w = &wants[order[i + n]];
      if (w->to.file != first->to.file || w->to.at > end + VALUE_AHEAD_GAP) break;
      const uint64_t to = value_first_end(&w->to, w->klen);
      if (to > end) end = to;
    }
    value_will_need(first->file, first->to.at, end, n);
  }
}

void value_ask(const struct value_want *wants, uint32_t nr) {
  uint8_t order[VALUE_AHEAD_NR];
  assert(nr <= VALUE_AHEAD_NR);
  for (uint32_t i = 0; i < nr; i++) order[i] = (uint8_t)i;
  ask(wants, order, nr);
}

void value_readahead_ask(struct value_readahead *a, const struct value_want *wants, uint32_t nr) {
  uint8_t order[VALUE_AHEAD_NR];
  uint32_t n = 0;
  assert(nr <= VALUE_AHEAD_NR);
  for (uint32_t i = 0; i < nr; i++)
    if (asked_find(a, &wants[i].to) == a->nr) order[n++] = (uint8_t)i;
  ask(wants, order, n);
  for (uint32_t i = 0; i < nr; i++) a->asked[i] = mark(&wants[i].to);
  a->nr = nr;
  a->next = 0;
}
