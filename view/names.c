// SPDX-License-Identifier: Apache-2.0
#include "view/names.h"

#include <assert.h>
#include <stdlib.h>

// Offsets of the encoded list.
enum { HEAD_NEXT = 0, HEAD_COUNT = 4, ENTRY_ID = 0, ENTRY_LEN = 4 };

void names_ref(struct names *n) {
  if (n) atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed);
}

void names_unref(struct names *n) {
  // acq_rel: the thread that frees has seen all uses by the others.
  if (n && atomic_fetch_sub_explicit(&n->refs, 1, memory_order_acq_rel) == 1) mem_free(n);
}

// Makes a list with room for nr spaces and for so many bytes of names. *bytes_out: that room.
static struct names *names_make(uint32_t next_id, uint32_t nr, size_t nbytes, char **bytes_out) {
  uint32_t nr_slots = 1;
  while (nr_slots < 2 * nr) nr_slots *= 2;
  const size_t slots = nr_slots * sizeof(uint32_t);
  struct names *const n = mem_alloc(sizeof(*n) + nr * sizeof(n->entries[0]) + slots + nbytes);
  if (!n) return NULL;
  atomic_init(&n->refs, 1);
  n->next_id = next_id;
  n->nr = 0;
  n->mask = nr_slots - 1;
  n->slots = (uint32_t *)(void *)&n->entries[nr];
  memset(n->slots, 0, slots);
  *bytes_out = (char *)(n->slots + nr_slots);
  return n;
}

// Adds a space to a list that has the room. Returns the rest of the room for names.
static char *names_append(struct names *n, uint32_t id, const char *name, uint32_t len, char *room) {
  if (len) memcpy(room, name, len);
  n->entries[n->nr++] = (struct names_entry){id, len, room};
  uint32_t i = (uint32_t)hash64(name, len) & n->mask;
  while (n->slots[i]) i = (i + 1) & n->mask;
  n->slots[i] = n->nr;
  return room + len;
}

// ---- the encoded list

static int cmp_entries(const void *a, const void *b) {
  const struct names_entry *const *const x = a, *const *const y = b;
  return kv_cmp(kref((*x)->bytes, (*x)->len), kref((*y)->bytes, (*y)->len));
}

// *twice_out: whether two spaces have one name.
static enum remixdb_status look_for_twins(const struct names *n, bool *twice_out) {
  const struct names_entry **const sorted = mem_array(n->nr ? n->nr : 1, sizeof(struct names_entry *), 0);
  if (!sorted) return REMIXDB_NOMEM;
  *twice_out = false;
  for (uint32_t i = 0; i < n->nr; i++) sorted[i] = &n->entries[i];
  qsort(sorted, n->nr, sizeof(*sorted), cmp_entries);
  for (uint32_t i = 1; i < n->nr; i++) *twice_out = *twice_out || cmp_entries(&sorted[i - 1], &sorted[i]) == 0;
  mem_free(sorted);
  return REMIXDB_OK;
}

// Reads the spaces after the head into the list, which has the room. Returns whether they are sound and fill [p, end).
static bool read_entries(struct names *n, const uint8_t *p, const uint8_t *end, uint32_t nr, char *room) {
  uint32_t before = 0;
  for (uint32_t i = 0; i < nr; i++) {
    if ((size_t)(end - p) < NAMES_ENTRY) return false;
    const uint32_t id = load32le(p + ENTRY_ID), len = load32le(p + ENTRY_LEN);
    p += NAMES_ENTRY;
    if (id <= before || id >= n->next_id || len == 0 || len > NAMES_LEN_MAX || len > (size_t)(end - p)) return false;
    if ((memchr(p, 0, len) || memchr(p, '\n', len))) return false;
    room = names_append(n, id, (const char *)p, len, room);
    before = id;
    p += len;
  }
  return p == end;
}

enum remixdb_status names_decode(const uint8_t *p, size_t len, const char *path, size_t at, struct names **out) {
  const uint32_t next = len >= NAMES_HEAD ? load32le(p + HEAD_NEXT) : 0,
                 nr = len >= NAMES_HEAD ? load32le(p + HEAD_COUNT) : 0;
  if (next < 2 || next > NAMES_ID_MAX || nr > NAMES_MAX || (len - NAMES_HEAD) / NAMES_ENTRY < nr)
    return err_corrupt(path, at, "head of the names of spaces");
  char *room;
  struct names *const n = names_make(next, nr, len, &room);
  if (!n) return REMIXDB_NOMEM;
  bool twice = false;
  enum remixdb_status s = REMIXDB_OK;
  if (!read_entries(n, p + NAMES_HEAD, p + len, nr, room)) s = err_corrupt(path, at, "names of spaces");
  if (s == REMIXDB_OK) s = look_for_twins(n, &twice);
  if (s == REMIXDB_OK && twice) s = err_corrupt(path, at, "two spaces have one name");
  if (s == REMIXDB_OK) *out = n;
  else names_unref(n);
  return s;
}

size_t names_size(const struct names *n) {
  if (!n) return 0;
  size_t size = NAMES_HEAD + (size_t)n->nr * NAMES_ENTRY;
  for (uint32_t i = 0; i < n->nr; i++) size += n->entries[i].len;
  return size;
}

uint8_t *names_put(const struct names *n, uint8_t *p) {
  store32le(p + HEAD_NEXT, n->next_id);
  store32le(p + HEAD_COUNT, n->nr);
  p += NAMES_HEAD;
  for (uint32_t i = 0; i < n->nr; i++) {
    const struct names_entry *const e = &n->entries[i];
    store32le(p + ENTRY_ID, e->id);
    store32le(p + ENTRY_LEN, e->len);
    p += NAMES_ENTRY;
    if (e->len) memcpy(p, e->bytes, e->len);
    p += e->len;
  }
  return p;
}

// ---- finding

const struct names_entry *names_find(const struct names *n, const char *name, size_t len) {
  assert(len > 0);
  if (!n || n->nr == 0) return NULL;
  for (uint32_t i = (uint32_t)hash64(name, len) & n->mask; n->slots[i]; i = (i + 1) & n->mask) {
    const struct names_entry *const e = &n->entries[n->slots[i] - 1];
    if (e->len == len && memcmp(e->bytes, name, len) == 0) return e;
  }
  return NULL;
}

// Returns the index of the first space whose id is `id` or larger.
static uint32_t index_from(const struct names *n, uint32_t id) {
  uint32_t lo = 0, hi = names_count(n);
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (n->entries[mid].id < id) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

const struct names_entry *names_find_id(const struct names *n, uint32_t id) {
  const uint32_t i = index_from(n, id);
  return i < names_count(n) && n->entries[i].id == id ? &n->entries[i] : NULL;
}

bool names_have_ids(const struct names *n, uint32_t first, uint32_t last) {
  const uint32_t i = index_from(n, first);
  return i < names_count(n) && n->entries[i].id <= last;
}

bool names_may_have(const struct names *n, struct kref from, struct kref to) {
  if (to.ptr && kv_cmp(from, to) >= 0) return false;
  uint32_t last = to.ptr ? names_id_from(to) : UINT32_MAX;
  if (to.ptr && to.len <= NAMES_ID) {  // no key of that id is below
    if (last == 0) return false;
    last--;
  }
  return names_have_ids(n, names_id_from(from), last);
}

bool names_gap(const struct names *n, uint32_t from, uint32_t last, uint32_t *first_out, uint32_t *last_out) {
  uint32_t i = index_from(n, from);
  while (i < names_count(n) && n->entries[i].id == from) {
    if (from == UINT32_MAX) return false;
    from++;
    i++;
  }
  *first_out = from;
  *last_out = i < names_count(n) && n->entries[i].id <= last ? n->entries[i].id - 1 : last;
  return from <= last;
}

// ---- lists that differ by one space

// Makes a copy without the space `id` (0: with all), with room for another one with a name of `more` bytes.
static enum remixdb_status copy(const struct names *n, uint32_t id, size_t more, struct names **out, char **room_out) {
  const uint32_t nr = n ? n->nr : 0;
  struct names *const made = names_make(n ? n->next_id : 1, nr + (more != 0), names_size(n) + more, room_out);
  if (!made) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < nr; i++) {
    const struct names_entry *const e = &n->entries[i];
    if (e->id != id) *room_out = names_append(made, e->id, e->bytes, e->len, *room_out);
  }
  *out = made;
  return REMIXDB_OK;
}

enum remixdb_status names_add(const struct names *n, const char *name, size_t len, struct names **out) {
  assert(len > 0 && len <= NAMES_LEN_MAX && !names_find(n, name, len));
  if (n && (n->nr >= NAMES_MAX || n->next_id >= NAMES_ID_MAX))
    return err_set(REMIXDB_TOOBIG, "a store has at most %u spaces at a time", NAMES_MAX);
  char *room;
  const enum remixdb_status s = copy(n, 0, len, out, &room);
  if (s != REMIXDB_OK) return s;
  (void)names_append(*out, (*out)->next_id, name, (uint32_t)len, room);
  (*out)->next_id++;
  return s;
}

enum remixdb_status names_drop(const struct names *n, uint32_t id, struct names **out) {
  char *room;
  return copy(n, id, 0, out, &room);
}

enum remixdb_status names_insert(const struct names *n, uint32_t id, const char *name, size_t len, struct names **out) {
  const uint32_t nr = n ? n->nr : 0;
  assert(id > 0 && id < NAMES_ID_MAX && !names_find_id(n, id));
  char *room;
  struct names *const made = names_make(n && n->next_id > id ? n->next_id : id + 1, nr + 1, names_size(n) + len, &room);
  if (!made) return REMIXDB_NOMEM;
  uint32_t i = 0;
  for (; i < nr && n->entries[i].id < id; i++)
    room = names_append(made, n->entries[i].id, n->entries[i].bytes, n->entries[i].len, room);
  room = names_append(made, id, name, (uint32_t)len, room);
  for (; i < nr; i++) room = names_append(made, n->entries[i].id, n->entries[i].bytes, n->entries[i].len, room);
  *out = made;
  return REMIXDB_OK;
}
