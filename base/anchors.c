// SPDX-License-Identifier: Apache-2.0
#include "base/anchors.h"

#include <stddef.h>

#define NODE ANCHORS_NODE
#define LEVELS_MAX 11u  // 8^11 passes 2^32
#define PIECE ANCHORS_PIECE
#define REF_TREE 0x80000000u
#define PLACES_MAX 6u    // bytes of a number that choose its cell, at most
#define CELL_NUMBERS 4u  // numbers of a cell, on average
#define CELL_LINE 7u     // numbers in the cell's own line; those of a cell with more lie in the nodes
#define CELL_SCAN 32u    // a cell with more numbers is searched through the levels, which read as many lines
#define SCAN_STEP 4u     // numbers compared without a branch between them
#define BYTES 256u
#define CELLS_LEAST (8 * BYTES * sizeof(uint16_t) / sizeof(uint64_t))  // numbers of a tree with cells, at least

// The cells of a tree. At each of the first places of the numbers, the bytes that occur there are ranked, so that
// digits or letters fill the cells as evenly as random bytes. A number's ranks are the digits of one large number. Its
// distance from that of the tree's first number, scaled down, is the cell. Ranks ascend with bytes, so
//   A1  the cell of the smaller of two numbers is not after the cell of the other.
// So the lowest number not less than v lies in v's cell, or is the lowest number after that cell.
struct anchors_cells {
  uint32_t lines;      // where its lines begin
  uint32_t ranks;      // where its ranks begin: for each place and byte, how many smaller bytes occur there, and ABSENT
  uint16_t nr_places;  // bytes that choose the cell
  uint16_t shift;      // cell = (distance >> shift) * scale >> 32
  uint32_t scale;
  uint64_t low, range;          // the number made of the first number's ranks; the distance of the last number
  uint32_t weight[PLACES_MAX];  // the weight of each place's rank
  uint64_t unused;
};
_Static_assert(sizeof(struct anchors_cells) == CACHE_LINE, "choosing a cell reads one cache line");

struct anchors_line {
  uint32_t first;               // index of the tree's first number that lies in the cell or after it
  uint32_t nr;                  // how many lie in the cell
  uint64_t numbers[CELL_LINE];  // the cell's numbers, then all ones; or the place of the first number among all nodes
};
_Static_assert(sizeof(struct anchors_line) == CACHE_LINE, "a cell is one cache line");
#define ABSENT 1u  // flag of a rank: the byte does not occur at that place
#define RANK_SHIFT 1u

// A tree over the strings first .. last, which share at least `common` bytes. Its numbers are the distinct ones among
// those strings.
struct anchors_tree {
  uint32_t group;        // the first string with the number that led to this tree; shorter strings come before `first`
  uint32_t first, last;  // strings
  uint32_t common;       // bytes
  uint32_t shared;       // where a copy begins of the common bytes that no tree above has compared
  uint32_t nr;           // numbers
  uint32_t refs;   // where its nr + 1 refs begin; NO_REFS: each number belongs to one string, number i to first + i
  uint32_t cells;  // its cells; NO_CELLS: it is too small, or its numbers lie too unevenly
  // 0: the tree has cells, none with more than CELL_SCAN numbers, and no levels.
  uint32_t nr_levels;
  // Where each level begins, in nodes. Level 0 has all numbers in order. Each number of a higher level is the greatest
  // number in a node one level below. Every level ends in padding of all ones, so a search never leaves it.
  uint32_t level[LEVELS_MAX];
};
#define NO_REFS UINT32_MAX
#define NO_CELLS UINT32_MAX
// A ref is the first string with that number, or REF_TREE and the index of the tree over the strings with it.

// ---- searching

// Returns the piece of k from `from` (<= k.len) on, padded with zeros, as a number that sorts as the bytes do.
static inline uint64_t piece(struct kref k, uint32_t from) {
  const uint32_t rest = k.len - from;
  if (likely(rest >= 8)) return load64be(k.ptr + from);
  if (rest == 0) return 0;
  if (k.len >= 8) return load64be(k.ptr + k.len - 8) << 8 * (8 - rest);
  uint64_t v = 0;
  for (uint32_t i = from; i < k.len; i++) v = v << 8 | k.ptr[i];
  return v << 8 * (8 - rest);
}

// Returns the child of node `at` that has the first number not less than v.
static inline uint32_t tree_step(const struct anchors *a, const struct anchors_tree *t, uint32_t level, uint32_t at,
                                 uint64_t v) {
  const uint64_t *const node = a->nodes + ((size_t)t->level[level] + at) * NODE;
  uint32_t nr = 0;
  for (uint32_t i = 0; i < NODE; i++) nr += node[i] < v;
  return at * NODE + nr;
}

// sum: the number made of the ranks.
static inline uint64_t cell_of(const struct anchors_cells *c, uint64_t sum) {
  uint64_t distance = sum > c->low ? sum - c->low : 0;
  distance = distance < c->range ? distance : c->range;
  return (distance >> c->shift) * c->scale >> 32;
}

// Returns the number made of v's ranks if a byte of v does not occur at its place. The first such place ends the
// number: v lies between two groups of numbers that agree with v up to this place. One group has smaller bytes at this
// place, and the other has greater ones. If v is after all numbers, the cell of v is the last one.
static __attribute__((noinline)) uint64_t sum_absent(const struct anchors_cells *c, const uint16_t *ranks, uint64_t v) {
  uint64_t sum = 0;
  for (uint32_t p = 0; p < c->nr_places; p++) {
    const uint32_t rank = ranks[p * BYTES + (v >> (56 - 8 * p) & 255)];
    sum += (uint64_t)(rank >> RANK_SHIFT) * c->weight[p];
    if (rank & ABSENT) break;
  }
  return sum;
}

// Makes the number of v's ranks. Returns false if a byte of v does not occur at its place.
ALWAYS_INLINE bool sum_known(const struct anchors_cells *c, const uint16_t *ranks, uint64_t v, uint64_t *sum_out) {
  uint64_t sum = 0;
  uint32_t all = 0;
  for (uint32_t p = 0; p < c->nr_places; p++, ranks += BYTES) {
    v = v << 8 | v >> 56;  // its next byte is the lowest one now
    const uint32_t rank = ranks[(uint8_t)v];
    sum += (uint64_t)(rank >> RANK_SHIFT) * c->weight[p];
    all |= rank;
  }
  *sum_out = sum;
  return likely(!(all & ABSENT));
}

// Returns the line of v's cell.
static inline const struct anchors_line *cell_line(const struct anchors *a, const struct anchors_cells *c, uint64_t v) {
  const uint16_t *const ranks = a->ranks + c->ranks;
  uint64_t sum;
  if (!sum_known(c, ranks, v, &sum)) sum = sum_absent(c, ranks, v);
  return a->lines + c->lines + cell_of(c, sum);
}

// Returns the first string with number `at`; after the last number, the string after the tree.
static inline uint32_t tree_string(const struct anchors *a, const struct anchors_tree *t, uint32_t at) {
  if (t->refs == NO_REFS) return t->first + at;
  const uint32_t ref = a->refs[t->refs + at];
  return ref & REF_TREE ? a->trees[ref & ~REF_TREE].group : ref;
}

_Static_assert(sizeof(void *) != 8 || offsetof(struct anchors, shared) == CACHE_LINE, "a search reads one line first");

// The state of a search.
struct way {
  const struct anchors_tree *t;
  uint64_t v;      // the key's number in the tree
  uint32_t known;  // bytes in which the key agrees with all strings of the tree
  uint32_t at;     // how many numbers of the tree are less than v; at the end, the answer
  bool equal;      // number `at` is v
};

// Enters the tree w->t. Returns false if the answer is known without a search.
ALWAYS_INLINE bool tree_enter(const struct anchors *a, struct kref key, struct way *w) {
  const struct anchors_tree *const t = w->t;
  if (t->common > w->known) {
    const uint32_t n = (key.len < t->common ? key.len : t->common) - w->known;
    const int r = n ? memcmp(key.ptr + w->known, a->shared + t->shared, n) : 0;
    w->at = r > 0 ? t->last : t->first - 1;
    if (r != 0 || key.len < t->common) return false;
  }
  w->v = piece(key, t->common);
  w->at = 0;
  return true;
}

// Searches a line that has all numbers of its cell.
static inline void line_search(const struct anchors_line *line, struct way *w) {
  uint32_t less = 0;
  for (uint32_t i = 0; i < CELL_LINE; i++) less += line->numbers[i] < w->v;
  w->at = line->first + less;
  w->equal = less < line->nr && line->numbers[less] == w->v;
}

static inline const uint64_t *crowd(const struct anchors *a, const struct anchors_line *line) {
  return a->nodes + line->numbers[0];
}

// Searches the numbers of a cell whose line does not hold them. The call compares SCAN_STEP numbers at a time, so it
// may read beyond them. This is safe: numbers of later cells and padding are never less than v.
static inline void crowd_search(const struct anchors *a, const struct anchors_line *line, struct way *w) {
  const uint64_t *const numbers = crowd(a, line);
  uint32_t less = 0;
  for (uint32_t i = 0; i < line->nr; i += SCAN_STEP)
    for (uint32_t k = 0; k < SCAN_STEP; k++) less += numbers[i + k] < w->v;
  w->at = line->first + less;
  w->equal = less < line->nr && numbers[less] == w->v;
}

// Notes that the search has found `at` in level 0.
static inline void tree_found(const struct anchors *a, struct way *w, uint32_t at) {
  w->at = at;
  w->equal = at < w->t->nr && a->nodes[(size_t)w->t->level[0] * NODE + at] == w->v;
}

ALWAYS_INLINE void tree_search(const struct anchors *a, struct way *w) {
  const struct anchors_tree *const t = w->t;
  if (t->cells != NO_CELLS) {
    const struct anchors_line *const line = cell_line(a, &a->cells[t->cells], w->v);
    assert(line->first + line->nr <= t->nr);
    if (likely(line->nr <= CELL_LINE)) {
      line_search(line, w);
      return;
    }
    if (line->nr <= CELL_SCAN) {
      crowd_search(a, line, w);
      return;
    }
  }
  uint32_t at = 0;
  for (uint32_t l = t->nr_levels; l-- > 0;) at = tree_step(a, t, l, at, w->v);
  tree_found(a, w, at);
}

// Returns the first of the strings i .. end - 1 that is greater than the key, or `end`.
static inline uint32_t strings_pass(const struct anchors *a, uint32_t i, uint32_t end, struct kref key) {
  uint32_t from = anchors_begin(a, i);
  for (; i < end; i++) {
    const uint32_t to = anchors_begin(a, i + 1);
    if (kv_cmp(kref(a->bytes + from, to - from), key) > 0) break;
    from = to;
  }
  return i;
}

// Goes on after the search of a tree. Returns true if the search goes on in another tree, false if w->at is the answer.
ALWAYS_INLINE bool tree_leave(const struct anchors *a, struct kref key, struct way *w) {
  const struct anchors_tree *const t = w->t;
  const uint32_t at = w->at;
  uint32_t i = tree_string(a, t, at), end;
  if (likely(!w->equal)) {
    w->at = i - 1;
    return false;
  }
  const uint32_t ref = t->refs == NO_REFS ? 0 : a->refs[t->refs + at];
  if (ref & REF_TREE) {
    const struct anchors_tree *const sub = &a->trees[ref & ~REF_TREE];
    if (key.len >= t->common + PIECE) {
      w->known = t->common + PIECE;
      w->t = sub;
      return true;
    }
    end = sub->first;  // the strings of `sub` are longer than the key and begin with it
  } else {
    end = tree_string(a, t, at + 1);
  }
  w->at = strings_pass(a, i, end, key) - 1;
  return false;
}

// The key behind its first bytes, which it has. An empty key may have no address.
ALWAYS_INLINE struct kref behind(struct kref key, uint32_t bytes) {
  return kref(bytes ? key.ptr + bytes : key.ptr, key.len - bytes);
}

// Takes the head off the key. Returns false if *found_out is the answer.
ALWAYS_INLINE bool head_off(const struct anchors *a, struct kref *key, uint32_t *found_out) {
  const uint32_t n = key->len < a->cut ? key->len : a->cut;
  const int r = n ? memcmp(key->ptr, a->head, n) : 0;
  if (unlikely(r != 0 || n < a->cut)) {
    *found_out = r > 0 ? a->nr - 1 : 0;
    return false;
  }
  *key = kref(key->ptr + a->cut, key->len - a->cut);
  return true;
}

// Searches the line of a cell that v belongs to. Fails if v is the number of a string, or if the cell is crowded.
ALWAYS_INLINE uint32_t quick_line(const struct anchors_line *line, uint64_t v) {
  uint32_t less = 0;
  for (uint32_t i = 0; i < CELL_LINE; i++) less += line->numbers[i] < v;
  if (likely(line->nr <= CELL_LINE) && likely(less == line->nr || line->numbers[less] != v)) return line->first + less;
  return ANCHORS_UNKNOWN;
}

static __attribute__((noinline)) uint32_t quick_absent(const struct anchors_cells *cells,
                                                       const struct anchors_line *lines, const uint16_t *ranks,
                                                       uint64_t v) {
  return quick_line(lines + cell_of(cells, sum_absent(cells, ranks, v)), v);
}

// Searches the cell of v, the key's number behind the bytes that all strings share. Its calls are the last thing that
// anchors_quick_find does, so the way that most keys go there needs no stack.
ALWAYS_INLINE uint32_t quick_number(const struct anchors_cells *cells, const struct anchors_line *lines,
                                    const uint16_t *ranks, uint64_t v) {
  uint64_t sum;
  if (!sum_known(cells, ranks, v, &sum)) return quick_absent(cells, lines, ranks, v);
  return quick_line(lines + cell_of(cells, sum), v);
}

// The same for a key that has to be compared with these bytes first.
static __attribute__((noinline)) uint32_t quick_shared(const struct anchors_quick *q, struct kref key) {
  if (memcmp(key.ptr, q->shared, q->common) != 0) return ANCHORS_UNKNOWN;
  return quick_number(q->cells, q->lines, q->ranks, load64be(key.ptr + q->common));
}

uint32_t anchors_quick_find(const struct anchors_quick *q, struct kref key) {
  if (unlikely(!q->cells || key.len < q->common + PIECE)) return ANCHORS_UNKNOWN;
  if (unlikely(q->common != 0)) return quick_shared(q, key);
  return quick_number(q->cells, q->lines, q->ranks, load64be(key.ptr));
}

void anchors_quick_set(struct anchors_quick *q, const struct anchors *a) {
  *q = (struct anchors_quick){.owned = q->owned};
  if (!a->celled || (a->has_head && a->common)) return;  // the head and the common bytes lie apart
  q->cells = a->cells;
  q->lines = a->lines;
  q->ranks = a->ranks;
  q->shared = a->has_head ? a->head : a->shared;
  q->common = a->has_head ? a->cut : a->common;
}

uint32_t anchors_find(const struct anchors *a, struct kref key) {
  uint32_t found;
  if (unlikely(a->nr <= 1)) return 0;
  if (unlikely(a->has_head) && !head_off(a, &key, &found)) return found;
  // tree 0 is the first in each array
  if (likely(a->celled) && likely(key.len >= a->common + PIECE) &&
      (likely(a->common == 0) || memcmp(key.ptr, a->shared, a->common) == 0)) {
    found = quick_number(a->cells, a->lines, a->ranks, load64be(key.ptr + a->common));
    if (likely(found != ANCHORS_UNKNOWN)) return found;
  }
  struct way w = {.t = a->trees};
  while (tree_enter(a, key, &w)) {
    tree_search(a, &w);
    if (!tree_leave(a, key, &w)) break;
  }
  return w.at;
}

// The next step of one search among many. A step below LEVELS_MAX is a level: the search reads a node of that level.
#define STEP_LINE LEVELS_MAX         // the search reads the line of its cell
#define STEP_SCAN (LEVELS_MAX + 1u)  // the search scans the numbers of a crowded cell

// Returns the first step in a tree that was entered, and prefetches for it. *line_out: the line of STEP_LINE.
static inline uint32_t many_enter(const struct anchors *a, const struct way *w, const struct anchors_line **line_out) {
  const struct anchors_tree *const t = w->t;
  if (t->cells != NO_CELLS) {
    *line_out = cell_line(a, &a->cells[t->cells], w->v);
    prefetch(*line_out);
    return STEP_LINE;
  }
  prefetch(a->nodes + (size_t)t->level[t->nr_levels - 1] * NODE);
  return t->nr_levels - 1;
}

// Goes on from the cell's line. Returns true if the line has the answer for this tree; else chooses the next step.
static inline bool many_line(const struct anchors *a, struct way *w, const struct anchors_line *line, uint8_t *step) {
  if (line->nr <= CELL_LINE) {
    line_search(line, w);
    return true;
  }
  if (line->nr > CELL_SCAN) {
    *step = (uint8_t)(w->t->nr_levels - 1);
    return false;
  }
  const uint64_t *const numbers = crowd(a, line);
  for (uint32_t n = 0; n < line->nr; n += NODE) prefetch(numbers + n);
  prefetch(numbers + line->nr);
  *step = STEP_SCAN;
  return false;
}

// Does the next step of a search and prefetches for the one after. Returns true when the tree is searched.
static inline bool many_step(const struct anchors *a, struct way *w, const struct anchors_line *line, uint8_t *step) {
  if (*step == STEP_LINE) return many_line(a, w, line, step);
  if (*step == STEP_SCAN) {
    crowd_search(a, line, w);
    return true;
  }
  w->at = tree_step(a, w->t, *step, w->at, w->v);
  if (*step == 0) {
    tree_found(a, w, w->at);
    return true;
  }
  prefetch(a->nodes + ((size_t)w->t->level[--*step] + w->at) * NODE);
  return false;
}

void anchors_find_many(const struct anchors_lookup *wants, uint32_t nr, uint32_t *found_out) {
  struct way ways[ANCHORS_MANY_MAX];
  const struct anchors_line *lines[ANCHORS_MANY_MAX];
  uint8_t going[ANCHORS_MANY_MAX], step[ANCHORS_MANY_MAX];
  uint32_t left = 0;
  assert(nr <= ANCHORS_MANY_MAX);
  for (uint32_t i = 0; i < nr; i++) {
    const struct anchors *const a = wants[i].anchors;
    struct kref key = wants[i].key;
    ways[i] = (struct way){.t = a->trees};
    if (unlikely(a->nr <= 1) || (unlikely(a->has_head) && !head_off(a, &key, &ways[i].at))) continue;
    if (!tree_enter(a, key, &ways[i])) continue;
    step[i] = (uint8_t)many_enter(a, &ways[i], &lines[i]);
    going[left++] = (uint8_t)i;
  }
  while (left) {
    uint32_t stay = 0;
    for (uint32_t k = 0; k < left; k++) {
      const uint32_t i = going[k];
      const struct anchors *const a = wants[i].anchors;
      if (many_step(a, &ways[i], lines[i], &step[i])) {
        const struct kref key = behind(wants[i].key, a->cut);  // has the head
        if (likely(!tree_leave(a, key, &ways[i])) || !tree_enter(a, key, &ways[i])) continue;
        step[i] = (uint8_t)many_enter(a, &ways[i], &lines[i]);
      }
      going[stay++] = (uint8_t)i;
    }
    left = stay;
  }
  for (uint32_t i = 0; i < nr; i++) found_out[i] = ways[i].at;
}

// ---- building

// A growing array. Lengths in bytes.
struct buffer {
  uint8_t *p;
  size_t len, cap;
};

struct build {
  struct anchors *a;
  struct buffer trees, nodes, refs, cells, lines, ranks, shared;
};

// Returns `more` bytes at the end, or NULL. They are aligned if all elements have one type.
static void *extend(struct buffer *b, size_t more) {
  if (unlikely(more >= b->cap - b->len)) {
    const size_t cap = mem_sum(mem_sum(b->len, b->len), mem_sum(more, 64));
    uint8_t *const p = mem_realloc(b->p, cap);
    if (!p) return NULL;
    b->p = p;
    b->cap = cap;
  }
  void *const at = b->p + b->len;
  b->len += more;
  return at;
}

static inline struct anchors_tree *tree_at(struct build *b, size_t i) {
  return (struct anchors_tree *)(void *)b->trees.p + i;
}
static inline size_t nr_trees(const struct build *b) { return b->trees.len / sizeof(struct anchors_tree); }

// Adds a tree. known: bytes in which a key that comes to the tree agrees with it.
static enum remixdb_status tree_add(struct build *b, uint32_t group, uint32_t first, uint32_t last, uint32_t known) {
  const struct kref k = anchors_rest(b->a, first);
  const uint32_t common = kv_lcp_from(k, anchors_rest(b->a, last), known);
  const size_t at = b->shared.len;
  if (at + (common - known) > UINT32_MAX) return err_set(REMIXDB_NOMEM, "an index of anchors would pass 4 GiB");
  uint8_t *const shared = extend(&b->shared, common - known);
  struct anchors_tree *const t = shared ? extend(&b->trees, sizeof(*t)) : NULL;
  if (!t) return REMIXDB_NOMEM;
  if (common > known) memcpy(shared, k.ptr + known, common - known);
  *t = (struct anchors_tree){.group = group, .first = first, .last = last, .common = common, .shared = (uint32_t)at};
  return REMIXDB_OK;
}

// Adds the ref of the strings i .. end - 1, which share a number. Strings that end within the number come first
// (padding makes them equal to others), at most one of each length. If many are left, they get a separate tree.
static enum remixdb_status group_add(struct build *b, uint32_t common, uint32_t i, uint32_t end) {
  uint32_t first = i;
  uint32_t *const ref = extend(&b->refs, sizeof(*ref));
  if (!ref) return REMIXDB_NOMEM;
  *ref = i;
  while (first < end && anchors_rest(b->a, first).len < common + PIECE) first++;
  if (end - first <= ANCHORS_FEW) return REMIXDB_OK;
  *ref = REF_TREE | (uint32_t)nr_trees(b);
  return tree_add(b, i, first, end - 1, common + PIECE);
}

// The number made of the ranks of a number of the tree.
static inline uint64_t sum_of(const struct anchors_cells *c, uint16_t (*ranks)[BYTES], uint64_t number) {
  uint64_t sum = 0;
  for (uint32_t p = 0; p < c->nr_places; p++)
    sum += (uint64_t)(ranks[p][number >> (56 - 8 * p) & 255] >> RANK_SHIFT) * c->weight[p];
  return sum;
}

// Ranks the bytes at the first places of the numbers. Stops when the ranks can tell as many cells apart as there are
// numbers. Sets the weights, and the first and the last number made of ranks.
static void rank_bytes(const uint64_t *numbers, uint32_t nr, uint16_t (*ranks)[BYTES], struct anchors_cells *c) {
  bool there[PLACES_MAX][BYTES] = {0};
  uint32_t kinds[PLACES_MAX], places = 0;
  uint64_t product = 1;
  for (uint32_t i = 0; i < nr; i++)
    for (uint32_t p = 0; p < PLACES_MAX; p++) there[p][numbers[i] >> (56 - 8 * p) & 255] = true;
  for (; places < PLACES_MAX && product < nr && product <= UINT32_MAX / BYTES; places++) {
    kinds[places] = 0;
    for (uint32_t byte = 0; byte < BYTES; byte++) {
      ranks[places][byte] = (uint16_t)(kinds[places] << RANK_SHIFT | (there[places][byte] ? 0 : ABSENT));
      kinds[places] += there[places][byte];
    }
    product *= kinds[places];
  }
  uint32_t weight = (uint32_t)product;
  for (uint32_t p = 0; p < places; p++) c->weight[p] = weight /= kinds[p];
  c->nr_places = (uint16_t)places;
  c->low = sum_of(c, ranks, numbers[0]);
  c->range = sum_of(c, ranks, numbers[nr - 1]) - c->low;
}

// Fills the lines of the cells. Returns how many numbers lie in cells that are not too crowded to scan.
static uint32_t lines_fill(struct anchors_line *lines, uint64_t nr_lines, const uint64_t *numbers, uint32_t nr,
                           const struct anchors_cells *c, uint16_t (*ranks)[BYTES]) {
  for (uint64_t i = 0; i < nr_lines; i++) {
    lines[i].nr = 0;
    for (uint32_t k = 0; k < CELL_LINE; k++) lines[i].numbers[k] = UINT64_MAX;
  }
  for (uint32_t i = 0; i < nr; i++) {
    const uint64_t cell = cell_of(c, sum_of(c, ranks, numbers[i]));
    assert(cell < nr_lines);
    struct anchors_line *const line = &lines[cell];
    if (line->nr < CELL_LINE) line->numbers[line->nr] = numbers[i];
    line->nr++;
  }
  uint32_t first = 0, scanned = 0;
  for (uint64_t i = 0; i < nr_lines; i++) {
    lines[i].first = first;
    first += lines[i].nr;
    if (lines[i].nr <= CELL_SCAN) scanned += lines[i].nr;
  }
  return scanned;
}

// Makes the cells of a tree from its numbers, if they are worth their memory: the ranks take at most an eighth of the
// numbers' room, and at least three of four numbers lie in cells that are not too crowded to scan.
static enum remixdb_status cells_build(struct build *b, struct anchors_tree *t, const uint64_t *numbers) {
  uint16_t ranks[PLACES_MAX][BYTES];
  struct anchors_cells c = {.lines = (uint32_t)(b->lines.len / sizeof(struct anchors_line)),
                            .ranks = (uint32_t)(b->ranks.len / sizeof(uint16_t))};
  t->cells = NO_CELLS;
  if (t->nr < CELLS_LEAST) return REMIXDB_OK;
  rank_bytes(numbers, t->nr, ranks, &c);
  if ((size_t)t->nr * sizeof(*numbers) < 8 * c.nr_places * sizeof(ranks[0])) return REMIXDB_OK;
  // There are no more cells than the ranks can tell apart.
  const uint64_t nr = c.range + 1 < t->nr / CELL_NUMBERS ? c.range + 1 : t->nr / CELL_NUMBERS;
  while (c.range >> c.shift >= UINT32_MAX) c.shift++;
  c.scale = (uint32_t)(((nr << 32) - 1) / ((c.range >> c.shift) + 1));
  const size_t before = b->lines.len;
  struct anchors_line *const lines = extend(&b->lines, nr * sizeof(*lines));
  if (!lines) return REMIXDB_NOMEM;
  if (lines_fill(lines, nr, numbers, t->nr, &c, ranks) < t->nr / 4 * 3) {
    b->lines.len = before;
    return REMIXDB_OK;
  }
  uint16_t *const to = extend(&b->ranks, c.nr_places * sizeof(ranks[0]));
  struct anchors_cells *const cells = to ? extend(&b->cells, sizeof(*cells)) : NULL;
  if (!cells) return REMIXDB_NOMEM;
  memcpy(to, ranks, c.nr_places * sizeof(ranks[0]));
  *cells = c;
  t->cells = (uint32_t)(b->cells.len / sizeof(*cells)) - 1;
  return REMIXDB_OK;
}

// Tells the lines of crowded cells where their numbers are: in level 0, from node `begin` on. If the levels are not
// needed, only these numbers stay. Returns how many numbers of the nodes stay, padding included; all: that there are.
static size_t crowds_build(struct build *b, struct anchors_tree *t, uint64_t *level, size_t begin, size_t all) {
  const uint32_t from = ((struct anchors_cells *)(void *)b->cells.p)[t->cells].lines;
  struct anchors_line *const lines = (struct anchors_line *)(void *)b->lines.p;
  const size_t end = b->lines.len / sizeof(*lines);
  bool scanned = true;  // no search needs levels
  size_t kept = 0;
  for (size_t i = from; i < end; i++) scanned &= lines[i].nr <= CELL_SCAN;
  for (size_t i = from; i < end; i++) {
    if (lines[i].nr <= CELL_LINE) continue;
    lines[i].numbers[0] = begin + (scanned ? kept : lines[i].first);
    if (scanned) memmove(level + kept, level + lines[i].first, lines[i].nr * sizeof(*level));
    kept += lines[i].nr;
  }
  if (!scanned) return all;
  t->nr_levels = 0;
  const size_t nr = align_up(kept + SCAN_STEP, NODE);
  for (size_t i = kept; i < nr; i++) level[i] = UINT64_MAX;
  return nr;
}

// Counts the distinct numbers of the tree.
static uint32_t count_numbers(const struct anchors *a, const struct anchors_tree *t) {
  uint32_t nr = 0;
  uint64_t before = 0;
  for (uint32_t i = t->first; i <= t->last; i++) {
    const uint64_t v = piece(anchors_rest(a, i), t->common);
    nr += i == t->first || v != before;
    before = v;
  }
  return nr;
}

// Makes level 0 and the refs. room: how many numbers the level can hold. Padding fills the rest of the level.
static enum remixdb_status numbers_build(struct build *b, struct anchors_tree *t, uint64_t *level, size_t room) {
  const bool several = t->nr <= t->last - t->first;  // strings share a number
  uint32_t nr = 0, from = t->first;
  enum remixdb_status s = REMIXDB_OK;
  t->refs = several ? (uint32_t)(b->refs.len / sizeof(uint32_t)) : NO_REFS;
  for (uint32_t i = t->first; i <= t->last && s == REMIXDB_OK; i++) {
    const uint64_t v = piece(anchors_rest(b->a, i), t->common);
    if (nr && level[nr - 1] == v) continue;
    assert(!nr || level[nr - 1] < v);
    if (nr && several) s = group_add(b, t->common, from, i);
    from = i;
    level[nr++] = v;
  }
  if (s != REMIXDB_OK) return s;
  assert(nr == t->nr);
  for (size_t i = nr; i < room; i++) level[i] = UINT64_MAX;
  if (!several) return REMIXDB_OK;
  if ((s = group_add(b, t->common, from, t->last + 1)) != REMIXDB_OK) return s;
  uint32_t *const end = extend(&b->refs, sizeof(*end));
  if (!end) return REMIXDB_NOMEM;
  *end = t->last + 1;
  return REMIXDB_OK;
}

static enum remixdb_status tree_build(struct build *b, size_t number) {
  struct anchors_tree t = *tree_at(b, number);
  t.nr = count_numbers(b->a, &t);

  // Every level needs padding. In a tree that may get cells, level 0 has room for SCAN_STEP more numbers, because scans
  // read beyond the last number. So up to 7 numbers without cells are one node.
  const size_t begin = b->nodes.len / sizeof(uint64_t);
  size_t len[LEVELS_MAX], all = 0;
  for (size_t n = (size_t)t.nr + (t.nr >= CELLS_LEAST ? SCAN_STEP : 1);; n = len[t.nr_levels - 1] / NODE) {
    assert(t.nr_levels < LEVELS_MAX);
    t.level[t.nr_levels] = (uint32_t)((begin + all) / NODE);
    len[t.nr_levels] = align_up(n, NODE);
    all += len[t.nr_levels++];
    if (n <= NODE) break;
  }
  uint64_t *level = extend(&b->nodes, all * sizeof(*level));
  if (!level) return REMIXDB_NOMEM;
  enum remixdb_status s = numbers_build(b, &t, level, len[0]);
  if (s == REMIXDB_OK) s = cells_build(b, &t, level);
  if (s != REMIXDB_OK) return s;
  if (t.cells != NO_CELLS) b->nodes.len = (begin + crowds_build(b, &t, level, begin, all)) * sizeof(*level);
  for (uint32_t l = 1; l < t.nr_levels; l++) {
    const uint64_t *const below = level;
    const size_t nodes = len[l - 1] / NODE;
    level += len[l - 1];
    for (size_t i = 0; i < nodes; i++) level[i] = below[i * NODE + NODE - 1];
    for (size_t i = nodes; i < len[l]; i++) level[i] = UINT64_MAX;
  }
  *tree_at(b, number) = t;
  return REMIXDB_OK;
}

// Moves all parts into one piece of memory.
static enum remixdb_status gather(struct anchors *a, const struct build *b) {
  const struct buffer *const parts[] = {&b->nodes, &b->lines, &b->cells, &b->trees, &b->refs, &b->ranks, &b->shared};
  const uint32_t nr = sizeof(parts) / sizeof(parts[0]);
  const uint8_t *at[sizeof(parts) / sizeof(parts[0])];
  size_t size = 0;
  for (uint32_t i = 0; i < nr; i++) size += parts[i]->len;
  const enum remixdb_status s = mem_map_table(size, &a->map);
  if (s != REMIXDB_OK) return s;
  uint8_t *p = a->map.ptr;
  for (uint32_t i = 0; i < nr; i++) {
    if (parts[i]->len) memcpy(p, parts[i]->p, parts[i]->len);
    at[i] = p;
    p += parts[i]->len;
  }
  a->nodes = (const uint64_t *)(const void *)at[0];
  a->lines = (const struct anchors_line *)(const void *)at[1];
  a->cells = (const struct anchors_cells *)(const void *)at[2];
  a->trees = (const struct anchors_tree *)(const void *)at[3];
  a->refs = (const uint32_t *)(const void *)at[4];
  a->ranks = (const uint16_t *)(const void *)at[5];
  a->shared = at[6];
  return REMIXDB_OK;
}

// Notes what the quick ways of a search need.
static void quick_set(struct anchors *a) {
  const struct anchors_tree *const t = a->trees;
  if (t->refs != NO_REFS) return;
  a->common = t->common;
  a->celled = t->cells != NO_CELLS;
  assert(!a->celled || (t->cells == 0 && a->cells->lines == 0 && a->cells->ranks == 0));
  if (a->celled || a->has_head || t->common || t->nr_levels > ANCHORS_PLAIN) return;
  a->nr_plain = t->nr_levels;
  for (uint32_t l = 0; l < t->nr_levels; l++) a->plain[l] = a->nodes + (size_t)t->level[l] * NODE;
}

enum remixdb_status anchors_init(struct anchors *a, const uint8_t *offs, const uint8_t *bytes, uint32_t nr) {
  *a = (struct anchors){.offs = offs, .bytes = bytes, .nr = nr};
  return anchors_prepare(a);
}

enum remixdb_status anchors_prepare(struct anchors *a) {
  a->has_head = a->cut > 0;
  if (a->nr <= 1) return REMIXDB_OK;
  struct build b = {.a = a};
  enum remixdb_status s = tree_add(&b, 1, 1, a->nr - 1, 0);
  // building a tree may add others after it
  for (size_t i = 0; s == REMIXDB_OK && i < nr_trees(&b); i++) s = tree_build(&b, i);
  if (s == REMIXDB_OK) s = gather(a, &b);
  if (s == REMIXDB_OK) quick_set(a);
  mem_free(b.trees.p);
  mem_free(b.nodes.p);
  mem_free(b.refs.p);
  mem_free(b.cells.p);
  mem_free(b.lines.p);
  mem_free(b.ranks.p);
  mem_free(b.shared.p);
  return s;
}

void anchors_fini(struct anchors *a) {
  mem_unmap(&a->map);
  *a = (struct anchors){0};
}

void anchors_copy(const struct anchors *a, uint32_t i, uint32_t from, uint32_t len, uint8_t *to) {
  const uint32_t cut = i ? a->cut : 0, of_head = from < cut ? (len < cut - from ? len : cut - from) : 0;
  if (of_head) memcpy(to, a->head + from, of_head);
  if (len > of_head) memcpy(to + of_head, anchors_rest(a, i).ptr + (from + of_head - cut), len - of_head);
}

int anchors_cmp(const struct anchors *a, uint32_t i, struct kref key) {
  const uint32_t cut = i ? a->cut : 0, n = key.len < cut ? key.len : cut;
  const int r = n ? memcmp(a->head, key.ptr, n) : 0;
  if (r != 0) return r;
  return key.len < cut ? 1 : kv_cmp(anchors_rest(a, i), behind(key, cut));
}
