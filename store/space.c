// SPDX-License-Identifier: Apache-2.0
#include "store/space.h"

#include <assert.h>

#include "store/dropped_ask.h"
#include "store/install.h"

// ---- names

struct names *space_names(struct xdb *x) {
  xdb_lock(x);
  struct names *const n = xdb_super(x)->version->names;
  names_ref(n);
  xdb_unlock(x);
  return n;
}

enum remixdb_status xdb_space_list(struct xdb *x, char **out) {
  struct names *const n = space_names(x);
  char *const text = mem_alloc(names_size(n) + 1), *p = text;
  for (uint32_t i = 0; text && n && i < n->nr; i++) {
    const struct names_entry *const e = &n->entries[i];
    if (e->len == 0) continue;
    memcpy(p, e->bytes, e->len);
    p += e->len;
    *p++ = '\n';
  }
  if (text) *p = 0;
  names_unref(n);
  *out = text;
  return text ? REMIXDB_OK : REMIXDB_NOMEM;
}

// ---- handles

#define LISTS_MIN 16u

static inline uint32_t hash_of(const char *name, size_t len) { return (uint32_t)hash64(name, len); }

// The list of the handles with this hash. There are lists. spaces.lock is held for all of these.
static struct xdb_space **list_of(struct xdb *x, uint32_t hash) {
  return &x->spaces.open[hash & (x->spaces.nr_lists - 1)];
}

// Makes the lists twice as many when there is a handle for each. Without memory the lists get longer; only the first
// ones are necessary. Returns whether there are lists.
static bool more_lists(struct xdb *x) {
  struct spaces *const all = &x->spaces;
  if (all->nr < all->nr_lists) return true;
  const uint32_t was = all->nr_lists, more = was ? 2 * was : LISTS_MIN;
  struct xdb_space **const before = all->open, **const open = mem_calloc(more, sizeof(struct xdb_space *));
  if (!open) return was != 0;
  all->open = open;
  all->nr_lists = more;
  for (uint32_t i = 0; i < was; i++) {
    for (struct xdb_space *sp = before[i], *next; sp; sp = next) {
      struct xdb_space **const to = list_of(x, sp->hash);
      next = sp->next;
      sp->next = *to;
      *to = sp;
    }
  }
  mem_free(before);
  return true;
}

// Finds an open space, and counts it. spaces.lock is held.
static struct xdb_space *find_open(struct xdb *x, const char *name, size_t len) {
  if (x->spaces.nr_lists == 0) return NULL;
  for (struct xdb_space *sp = *list_of(x, hash_of(name, len)); sp; sp = sp->next) {
    if (sp->len != len || memcmp(sp->name, name, len) || atomic_load_explicit(&sp->gone, memory_order_relaxed))
      continue;
    sp->refs++;
    return sp;
  }
  return NULL;
}

// Makes the handle of a space that is not open.
static struct xdb_space *make_handle(struct xdb *x, uint32_t id, const char *name, size_t len) {
  struct xdb_space *const sp = more_lists(x) ? mem_calloc(1, sizeof(*sp) + len) : NULL;
  if (!sp) return NULL;
  sp->xdb = x;
  sp->refs = 1;
  sp->id = id;
  sp->len = (uint32_t)len;
  memcpy(sp->name, name, len);
  sp->hash = hash_of(name, len);
  struct xdb_space **const list = list_of(x, sp->hash);
  sp->next = *list;
  *list = sp;
  x->spaces.nr++;
  return sp;
}

// Gives the active memtable the index of the spaces' tree. Later memtables get it when they are made (round_freeze).
static enum remixdb_status begin_index(struct xdb *x) {
  xdb_lock(x);
  const enum remixdb_status s = memtable_spaces(xdb_super(x)->active);
  xdb_unlock(x);
  return s;
}

static enum remixdb_status check_may_change(struct xdb *x) {
  return x->opts.read_only ? err_set(REMIXDB_READONLY, "%s: opened with read_only", x->dir) : xdb_failure(x);
}

// Finds the id of a space, or makes the space. spaces.changing is held.
static enum remixdb_status find_or_make(struct xdb *x, const char *name, size_t len, bool create, uint32_t *id_out) {
  struct names *const now = space_names(x), *next = NULL;
  const struct names_entry *const e = names_find(now, name, len);
  enum remixdb_status s = REMIXDB_OK;
  if (e) {
    *id_out = e->id;
  } else if (!create) {
    s = REMIXDB_NOTFOUND;
  } else {
    s = check_may_change(x);
    if (s == REMIXDB_OK) s = names_add(now, name, len, &next);
    if (s == REMIXDB_OK) *id_out = next->next_id - 1;
    if (s == REMIXDB_OK) s = install_names(x, next);
    names_unref(next);
  }
  names_unref(now);
  return s;
}

enum remixdb_status xdb_space_open(struct xdb *x, const char *name, size_t len, bool create, struct xdb_space **out) {
  pthread_mutex_lock(&x->spaces.lock);
  *out = find_open(x, name, len);
  pthread_mutex_unlock(&x->spaces.lock);
  if (*out) return REMIXDB_OK;
  enum remixdb_status s = xdb_may_wait(x);
  if (s == REMIXDB_OK) s = begin_index(x);
  if (s != REMIXDB_OK) return s;
  uint32_t id = 0;
  pthread_mutex_lock(&x->spaces.changing);
  s = find_or_make(x, name, len, create, &id);
  if (s == REMIXDB_OK) {
    pthread_mutex_lock(&x->spaces.lock);
    *out = find_open(x, name, len);  // another thread may have opened it meanwhile
    if (!*out) *out = make_handle(x, id, name, len);
    pthread_mutex_unlock(&x->spaces.lock);
    if (!*out) s = REMIXDB_NOMEM;
  }
  pthread_mutex_unlock(&x->spaces.changing);
  return s;
}

void xdb_space_close(struct xdb_space *sp) {
  if (!sp) return;
  struct xdb *const x = sp->xdb;
  pthread_mutex_lock(&x->spaces.lock);
  const bool last = --sp->refs == 0;
  if (last) {
    struct xdb_space **at = list_of(x, sp->hash);
    while (*at != sp) at = &(*at)->next;
    *at = sp->next;
    x->spaces.nr--;
  }
  pthread_mutex_unlock(&x->spaces.lock);
  if (last) mem_free(sp);
}

void space_count(struct xdb_space *sp) {
  pthread_mutex_lock(&sp->xdb->spaces.lock);
  sp->refs++;
  pthread_mutex_unlock(&sp->xdb->spaces.lock);
}

// ---- dropping

// The handles of a space that is dropped are gone.
static void tell_handles(struct xdb *x, const struct names_entry *e) {
  pthread_mutex_lock(&x->spaces.lock);
  struct xdb_space *sp = x->spaces.nr_lists ? *list_of(x, hash_of(e->bytes, e->len)) : NULL;
  for (; sp; sp = sp->next)
    if (sp->id == e->id) atomic_store_explicit(&sp->gone, true, memory_order_release);
  pthread_mutex_unlock(&x->spaces.lock);
}

enum remixdb_status xdb_space_drop(struct xdb *x, const char *name, size_t len) {
  enum remixdb_status s = xdb_may_wait(x);
  if (s != REMIXDB_OK) return s;
  pthread_mutex_lock(&x->spaces.changing);
  struct names *const now = space_names(x), *next = NULL;
  const struct names_entry *const e = names_find(now, name, len);
  s = check_may_change(x);
  if (s == REMIXDB_OK && !e) s = REMIXDB_NOTFOUND;
  if (s == REMIXDB_OK) s = names_drop(now, e->id, &next);
  if (s == REMIXDB_OK) s = install_names(x, next);
  if (s == REMIXDB_OK) tell_handles(x, e);
  names_unref(next);
  names_unref(now);
  pthread_mutex_unlock(&x->spaces.changing);
  if (s == REMIXDB_OK) dropped_ask(x);
  return s;
}
