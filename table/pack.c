// SPDX-License-Identifier: Apache-2.0
#include "table/pack.h"

#include <assert.h>

#include "blkio.h"

_Static_assert(PACK_ALIGN % BLKIO_ALIGN == 0, "parts can be read aligned");

#define BUCKETS_FIRST 64u

struct packs {
  const struct env_dir *dir;  // may be opened later
  struct fdpool *fds;
  bool direct_io, writable;
  _Atomic bool cannot;        // K6. Relaxed
  _Atomic uint32_t nr_dirty;  // packs with dead places. Relaxed: a reclaim that comes too early has nothing to do
  pthread_mutex_t lock;       // guards the rest
  bool reclaiming;
  struct pack *first;  // ascending by number
  struct pack_part **buckets;
  uint32_t nr_buckets, nr_parts;
  uint64_t mark;
};

enum remixdb_status packs_create(const struct env_dir *dir, struct fdpool *fds, bool direct_io, bool writable,
                                 struct packs **out) {
  struct packs *const p = *out = mem_calloc(1, sizeof(*p));
  if (!p) return REMIXDB_NOMEM;
  p->dir = dir;
  p->fds = fds;
  p->direct_io = direct_io;
  p->writable = writable;
  (void)pthread_mutex_init(&p->lock, NULL);
  return REMIXDB_OK;
}

static void pack_free(struct pack *k) {
  if (!k) return;
  if (k->file.pool) fdpool_remove(&k->file);
  if (k->scans.pool) fdpool_remove(&k->scans);
  if (k->past.pool) fdpool_remove(&k->past);
  for (uint32_t i = 0; i < k->nr_parts; i++) mem_free(k->parts[i]);
  mem_free(k->parts);
  mem_free(k->dead);
  mem_free(k->path);
  mem_free(k);
}

void packs_destroy(struct packs *p) {
  if (!p) return;
  for (struct pack *k = p->first, *next; k; k = next) {
    next = k->next;
    pack_free(k);
  }
  mem_free(p->buckets);
  (void)pthread_mutex_destroy(&p->lock);
  mem_free(p);
}

bool packs_can(struct packs *p) { return p && p->writable && !atomic_load_explicit(&p->cannot, memory_order_relaxed); }

void packs_cannot(struct packs *p) { atomic_store_explicit(&p->cannot, true, memory_order_relaxed); }

// ---- under the lock: the table of parts

static inline uint32_t bucket_of(const struct packs *p, uint64_t id) {
  return (uint32_t)((id * 0x9E3779B97F4A7C15ull) >> 32) & (p->nr_buckets - 1);
}

static struct pack_part **place_of(const struct packs *p, uint64_t id) {
  struct pack_part **at = &p->buckets[bucket_of(p, id)];
  while (*at && (*at)->at.id != id) at = &(*at)->next;
  return at;
}

static bool buckets_grow(struct packs *p) {
  if (p->nr_parts < p->nr_buckets) return true;
  struct pack_part **const old = p->buckets;
  const uint32_t nr = p->nr_buckets, more = nr ? 2 * nr : BUCKETS_FIRST;
  struct pack_part **const fresh = mem_calloc(more, sizeof(struct pack_part *));
  if (!fresh) return false;
  p->buckets = fresh;
  p->nr_buckets = more;
  for (uint32_t i = 0; i < nr; i++) {
    for (struct pack_part *x = old[i], *next; x; x = next) {
      next = x->next;
      struct pack_part **const at = &fresh[bucket_of(p, x->at.id)];
      x->next = *at;
      *at = x;
    }
  }
  mem_free(old);
  return true;
}

// Returns the index of the first part at or after the offset.
static uint32_t part_at(struct pack *k, uint64_t off) {
  uint32_t lo = 0, hi = k->nr_parts;
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (k->parts[mid]->at.off < off) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

// Frees the dead parts.
static void parts_sweep(struct pack *k) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < k->nr_parts; i++) {
    if (k->parts[i]->dead) mem_free(k->parts[i]);
    else k->parts[nr++] = k->parts[i];
  }
  k->nr_parts = nr;
}

static enum remixdb_status add_part(struct pack *k, const struct pack_entry *e) {
  struct packs *const p = k->all;
  if (!buckets_grow(p)) return REMIXDB_NOMEM;
  if (*place_of(p, e->id))
    return err_corrupt(k->path, e->off, "file %llu is in a pack already", (unsigned long long)pack_id_number(e->id));
  if (k->nr_parts == k->cap_parts) {
    struct pack_part **const grown = mem_grow32(k->parts, &k->cap_parts, 16, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    k->parts = grown;
  }
  struct pack_part *const x = mem_alloc(sizeof(*x));
  if (!x) return REMIXDB_NOMEM;
  struct pack_part **const bucket = &p->buckets[bucket_of(p, e->id)];
  *x = (struct pack_part){.pack = k, .at = *e, .next = *bucket};
  *bucket = x;
  p->nr_parts++;
  const uint32_t i = part_at(k, e->off);
  memmove(k->parts + i + 1, k->parts + i, (k->nr_parts - i) * sizeof(struct pack_part *));
  k->parts[i] = x;
  k->nr_parts++;
  k->nr_live++;
  return REMIXDB_OK;
}

// Adds a dead place. Without memory for it the place is forgotten, and goes back after the next opening.
static void add_dead(struct pack *k, uint64_t off, uint64_t len) {
  uint32_t i = k->nr_dead;
  if (len == 0) return;
  while (i > 0 && k->dead[i - 1].off > off) i--;
  struct pack_entry *const before = i > 0 ? &k->dead[i - 1] : NULL, *const after = i < k->nr_dead ? &k->dead[i] : NULL;
  const bool joins = before && before->off + before->len == off, joined = after && off + len == after->off;
  if (joins) {
    before->len += len;
    if (!joined) return;
    before->len += after->len;
    memmove(after, after + 1, (--k->nr_dead - i) * sizeof(*after));
    return;
  }
  if (joined) {
    after->off = off;
    after->len += len;
    return;
  }
  if (k->nr_dead == k->cap_dead) {
    const uint32_t cap = k->cap_dead ? 2 * k->cap_dead : 8;
    err_cleanup_begin();
    struct pack_entry *const grown = mem_realloc(k->dead, cap * sizeof(*grown));
    err_cleanup_end();
    if (!grown) return;
    k->dead = grown;
    k->cap_dead = cap;
  }
  if (k->nr_dead++ == 0) atomic_fetch_add_explicit(&k->all->nr_dirty, 1, memory_order_relaxed);
  memmove(k->dead + i + 1, k->dead + i, (k->nr_dead - 1 - i) * sizeof(*k->dead));
  k->dead[i] = (struct pack_entry){.off = off, .len = len};
}

static void link_pack(struct packs *p, struct pack *k) {
  struct pack **at = &p->first;
  while (*at && (*at)->number < k->number) at = &(*at)->next;
  k->next = *at;
  *at = k;
}

// If the pack has no use any more, takes it out of the list and returns it: the caller removes it without the lock.
static struct pack *unlink_pack(struct pack *k) {
  struct packs *const p = k->all;
  if (k->pins || k->nr_live) return NULL;
  struct pack **at = &p->first;
  while (*at != k) at = &(*at)->next;
  *at = k->next;
  if (k->nr_dead) atomic_fetch_sub_explicit(&p->nr_dirty, 1, memory_order_relaxed);
  return k;
}

static void kill_part(struct pack_part *x) {
  struct pack *const k = x->pack;
  struct packs *const p = k->all;
  struct pack_part **const at = place_of(p, x->at.id);
  assert(*at == x);
  *at = x->next;
  p->nr_parts--;
  k->nr_live--;
  x->dead = true;
  add_dead(k, x->at.off, pack_room(&x->at));
}

// ---- adding packs

static enum remixdb_status pack_make(struct packs *p, uint64_t number, struct pack **out) {
  char name[32];
  files_pack_name(name, number);
  struct pack *const k = mem_calloc(1, sizeof(*k));
  *out = NULL;
  if (!k) return REMIXDB_NOMEM;
  k->all = p;
  k->number = number;
  if (!(k->path = env_path_new(p->dir, name))) {
    mem_free(k);
    return REMIXDB_NOMEM;
  }
  fdpool_add(p->fds, &k->file, p->dir, k->path, ENV_READ | (p->direct_io ? ENV_DIRECT : 0));
  fdpool_add(p->fds, &k->scans, p->dir, k->path, k->file.flags);
  k->scans.advice = ENV_SEQUENTIAL;
  fdpool_add(p->fds, &k->past, p->dir, k->path, ENV_READ | ENV_DIRECT);
  *out = k;
  return REMIXDB_OK;
}

static enum remixdb_status pack_read(const struct pack *k, void *buf, size_t len, uint64_t off) {
  struct pack *const open = (struct pack *)(uintptr_t)k;  // its descriptor changes
  const bool direct = k->all->direct_io;
  const uint64_t from = direct ? off & ~(uint64_t)(BLKIO_ALIGN - 1) : off,
                 to = direct ? align_up(off + len, BLKIO_ALIGN) : off + len;
  uint8_t *const to_buf = direct ? mem_alloc_aligned(BLKIO_ALIGN, to - from) : buf;
  int fd;
  if (!to_buf) return REMIXDB_NOMEM;
  enum remixdb_status s = fdpool_acquire(&open->file, &fd);
  if (s == REMIXDB_OK) {
    s = env_read(k->all->dir->env, fd, k->path, to_buf, to - from, from);
    fdpool_release(&open->file);
  }
  if (s == REMIXDB_OK && direct) memcpy(buf, to_buf + (off - from), len);
  if (direct) mem_free(to_buf);
  return s;
}

enum remixdb_status pack_part_read(const struct pack_part *part, void *buf, size_t len, uint64_t off) {
  return pack_read(part->pack, buf, len, part->at.off + off);
}

static enum remixdb_status read_footer(struct pack *k, const struct files_ids *ids, struct pack_footer *out) {
  uint8_t foot[PACK_FOOTER];
  struct env_stat st = {.size = 0};
  enum remixdb_status s = env_stat(k->all->dir, env_name(k->path), &st);
  if (s == REMIXDB_NOTFOUND) return err_corrupt(k->path, 0, "pack is missing");
  if (s != REMIXDB_OK) return s;
  k->dev = st.dev;
  k->ino = st.ino;
  if (st.size < PACK_ALIGN || st.size % PACK_ALIGN)
    return err_corrupt(k->path, st.size, "pack is truncated or of a wrong size");
  if ((s = pack_read(k, foot, sizeof(foot), st.size - PACK_FOOTER)) != REMIXDB_OK) return s;
  if ((s = pack_footer_get(foot, st.size, k->path, out)) != REMIXDB_OK) return s;
  k->print = out->print;
  k->origin = out->store_id;
  if (out->number != k->number)
    return err_corrupt(k->path, st.size - PACK_FOOTER, "this is pack %llu", (unsigned long long)out->number);
  if (!ids || files_ids_have(ids, out->store_id)) return REMIXDB_OK;
  return err_corrupt(k->path, st.size - PACK_FOOTER, "pack of another store (%016llx)",
                     (unsigned long long)out->store_id);
}

// Reads the pack's directory. The caller frees *out, of f->nr entries.
static enum remixdb_status read_dir(const struct pack *k, const struct pack_footer *f, struct pack_entry **out) {
  const size_t bytes = (size_t)(f->size - PACK_FOOTER - f->dir_off);
  uint8_t *const dir = mem_alloc(bytes);
  *out = mem_array(f->nr, sizeof(**out), 0);
  enum remixdb_status s = dir && *out ? pack_read(k, dir, bytes, f->dir_off) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = pack_dir_get(dir, f, k->path, *out);
  mem_free(dir);
  return s;
}

// Decodes entries that were checked one by one.
static enum remixdb_status take_entries(const struct pack *k, const struct pack_footer *f, const uint8_t *entries,
                                        uint32_t nr, struct pack_entry **out) {
  struct pack_entry *const e = *out = mem_array(nr, sizeof(*e), 0);
  if (!e) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < nr; i++) {
    const char *const flaw = pack_entry_get(entries + (size_t)PACK_ENTRY * i, i ? &e[i - 1] : NULL, UINT64_MAX, &e[i]);
    if (flaw) return err_corrupt(k->path, 0, "%s", flaw);
    if (e[i].off + pack_room(&e[i]) > f->dir_off) return err_corrupt(k->path, e[i].off, "a part reaches the directory");
  }
  return REMIXDB_OK;
}

static enum remixdb_status load_parts(struct pack *k, const struct pack_entry *e, uint32_t nr, uint64_t dir_off) {
  enum remixdb_status s = REMIXDB_OK;
  uint64_t at = 0;
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    s = add_part(k, &e[i]);
    if (s == REMIXDB_OK && dir_off) add_dead(k, at, e[i].off - at);
    at = e[i].off + pack_room(&e[i]);
  }
  if (s == REMIXDB_OK && dir_off) add_dead(k, at, dir_off - at);
  return s;
}

// Adds the pack with its parts to the list. dir_off: where the parts end; 0: not known. On failure frees the pack.
static enum remixdb_status enlist(struct pack *k, const struct pack_entry *e, uint32_t nr, uint64_t dir_off) {
  struct packs *const p = k->all;
  pthread_mutex_lock(&p->lock);
  const enum remixdb_status s = load_parts(k, e, nr, dir_off);
  if (s == REMIXDB_OK) {
    link_pack(p, k);
  } else {
    for (uint32_t i = 0; i < k->nr_parts; i++) kill_part(k->parts[i]);
    if (k->nr_dead) atomic_fetch_sub_explicit(&p->nr_dirty, 1, memory_order_relaxed);
  }
  pthread_mutex_unlock(&p->lock);
  if (s == REMIXDB_OK) return s;
  err_cleanup_begin();
  pack_free(k);
  err_cleanup_end();
  return s;
}

enum remixdb_status packs_load(struct packs *p, const struct files_ids *ids, uint64_t number, const uint64_t *print,
                               const uint8_t *entries, uint32_t nr) {
  struct pack *k;
  struct pack_footer f;
  struct pack_entry *e = NULL;
  enum remixdb_status s = pack_make(p, number, &k);
  if (s != REMIXDB_OK) return s;
  s = read_footer(k, ids, &f);
  if (s == REMIXDB_OK && print && f.print != *print)
    s = err_corrupt(k->path, 0,
                    "the store needs another pack of this number: this one is of another history of the store");
  if (s == REMIXDB_OK) s = entries ? take_entries(k, &f, entries, nr, &e) : read_dir(k, &f, &e);
  if (s == REMIXDB_OK) {
    s = enlist(k, e, entries ? nr : f.nr, f.dir_off);
  } else {
    err_cleanup_begin();
    pack_free(k);
    err_cleanup_end();
  }
  mem_free(e);
  return s;
}

enum remixdb_status packs_claim(struct packs *p, uint64_t number, const struct pack_entry *parts, uint32_t nr) {
  struct pack *k;
  const enum remixdb_status s = pack_make(p, number, &k);
  return s == REMIXDB_OK ? enlist(k, parts, nr, 0) : s;
}

void packs_each(struct packs *p, void (*fn)(void *arg, const struct pack_part *part), void *arg) {
  for (const struct pack *k = p->first; k; k = k->next)
    for (uint32_t i = 0; i < k->nr_parts; i++)
      if (!k->parts[i]->dead) fn(arg, k->parts[i]);
}

enum remixdb_status packs_add(struct packs *p, uint64_t number, struct pack **out) {
  const enum remixdb_status s = pack_make(p, number, out);
  if (s != REMIXDB_OK) return s;
  (*out)->pins = 1;
  pthread_mutex_lock(&p->lock);
  link_pack(p, *out);
  pthread_mutex_unlock(&p->lock);
  return s;
}

enum remixdb_status pack_add_part(struct pack *k, const struct pack_entry *at) {
  pthread_mutex_lock(&k->all->lock);
  const enum remixdb_status s = add_part(k, at);
  pthread_mutex_unlock(&k->all->lock);
  return s;
}

// ---- parts and packs that go

// Removes a pack that is in no list any more; NULL is allowed.
static void pack_remove(struct pack *k) {
  if (!k) return;
  if (k->all->writable)
    IGNORED(env_unlink(k->all->dir, env_name(k->path)), "a file left over costs room until the store is opened again");
  pack_free(k);
}

void pack_written(struct pack *k, uint64_t print, uint64_t origin, const struct env_stat *st) {
  pthread_mutex_lock(&k->all->lock);
  k->print = print;
  k->origin = origin;
  k->dev = st->dev;
  k->ino = st->ino;
  pthread_mutex_unlock(&k->all->lock);
}

void pack_unpin(struct pack *k, bool abandon) {
  struct packs *const p = k->all;
  pthread_mutex_lock(&p->lock);
  for (uint32_t i = 0; i < k->nr_parts && abandon; i++)
    if (!k->parts[i]->dead) kill_part(k->parts[i]);
  k->pins--;
  struct pack *const gone = unlink_pack(k);
  pthread_mutex_unlock(&p->lock);
  pack_remove(gone);
}

struct pack_part *packs_find(struct packs *p, enum pack_kind kind, uint64_t number) {
  struct pack_part *found = NULL;
  if (!p) return NULL;
  pthread_mutex_lock(&p->lock);
  if (p->nr_parts) found = *place_of(p, pack_id(kind, number));
  pthread_mutex_unlock(&p->lock);
  return found;
}

void pack_part_drop(struct pack_part *x) {
  if (!x) return;
  struct pack *const k = x->pack;
  struct packs *const p = k->all;
  pthread_mutex_lock(&p->lock);
  kill_part(x);
  if (k->nr_live < k->nr_parts / 2) parts_sweep(k);
  struct pack *const gone = unlink_pack(k);
  pthread_mutex_unlock(&p->lock);
  pack_remove(gone);
}

// Makes the holes. Takes the places that are settled out of the list, and leaves the others in it.
static void punch_dead(const struct pack *k, struct pack_entry *dead, uint32_t *nr_io) {
  struct packs *const p = k->all;
  struct env_stat st;
  int fd = -1;
  bool can = true;
  uint32_t left = *nr_io;
  // Another name of the file may have come or gone. A file of another process may have the name.
  enum remixdb_status s = env_stat(p->dir, env_name(k->path), &st);
  if (s != REMIXDB_OK || st.links != 1 || st.dev != k->dev || st.ino != k->ino) return;
  s = env_open(p->dir, env_name(k->path), ENV_WRITE, &fd);
  for (; left > 0 && s == REMIXDB_OK && can; left -= s == REMIXDB_OK) {
    const struct pack_entry *const e = &dead[left - 1];
    // an opening does not know which holes are there
    if (env_next_data(p->dir->env, fd, e->off, e->off + e->len) == e->off + e->len) continue;
    s = env_punch(p->dir->env, fd, k->path, e->off, e->len, &can);
  }
  env_close_quiet(p->dir->env, fd);
  if (!can) packs_cannot(p);
  *nr_io = can ? left : 0;
}

void packs_reclaim(struct packs *p) {
  if (!p || !p->writable || atomic_load_explicit(&p->nr_dirty, memory_order_relaxed) == 0) return;
  err_cleanup_begin();
  pthread_mutex_lock(&p->lock);
  const bool mine = !p->reclaiming;
  p->reclaiming = true;
  for (struct pack *k = p->first, *next; k && mine; k = next) {
    next = k->next;
    if (k->nr_dead == 0 || k->pins) continue;
    struct pack_entry *const dead = k->dead;
    uint32_t nr = k->nr_dead;
    k->dead = NULL;
    k->nr_dead = k->cap_dead = 0;
    k->pins = 1;
    atomic_fetch_sub_explicit(&p->nr_dirty, 1, memory_order_relaxed);
    pthread_mutex_unlock(&p->lock);
    punch_dead(k, dead, &nr);
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < nr; i++) add_dead(k, dead[i].off, dead[i].len);
    mem_free(dead);
    k->pins = 0;
    next = k->next;
    struct pack *const gone = unlink_pack(k);
    if (!gone) continue;
    pthread_mutex_unlock(&p->lock);
    pack_remove(gone);
    pthread_mutex_lock(&p->lock);
    next = p->first;  // the list may have changed: those that are done have nothing left
  }
  if (mine) p->reclaiming = false;
  pthread_mutex_unlock(&p->lock);
  err_cleanup_end();
}

// ---- CURRENT

enum remixdb_status packs_encode(struct packs *p, struct pack_part *const *parts, size_t nr, uint8_t **out,
                                 size_t *len_out) {
  uint8_t *at = NULL;
  uint32_t nr_packs = 0;
  *out = NULL;
  *len_out = 0;
  if (nr == 0) return REMIXDB_OK;
  pthread_mutex_lock(&p->lock);
  const uint64_t mark = ++p->mark;
  for (size_t i = 0; i < nr; i++) parts[i]->mark = mark;
  for (const struct pack *k = p->first; k; k = k->next) nr_packs++;
  uint8_t *const buf = mem_alloc(PACK_SECTION_HEAD + (size_t)PACK_LIST_HEAD * nr_packs + (size_t)PACK_ENTRY * nr);
  if (buf) at = buf + PACK_SECTION_HEAD;
  nr_packs = 0;
  for (const struct pack *k = p->first; k && buf; k = k->next) {
    uint8_t *const head = at;
    uint64_t named = 0;
    at += PACK_LIST_HEAD;
    for (uint32_t i = 0; i < k->nr_parts; i++) {
      if (k->parts[i]->mark != mark) continue;
      pack_entry_put(at, &k->parts[i]->at);
      at += PACK_ENTRY;
      named++;
    }
    store64le(head, k->number);
    store64le(head + 8, k->print);
    store64le(head + 16, named);
    if (named) nr_packs++;
    else at = head;
  }
  pthread_mutex_unlock(&p->lock);
  if (!buf) return REMIXDB_NOMEM;
  store32le(buf, nr_packs);
  store32le(buf + 4, 0);
  *out = buf;
  *len_out = (size_t)(at - buf);
  return REMIXDB_OK;
}

const char *pack_list_begin(struct pack_list *l, const uint8_t *section, size_t len, uint64_t next_file) {
  *l = (struct pack_list){.p = section, .end = section + len, .next_file = next_file};
  if (len < PACK_SECTION_HEAD || load32le(section) == 0 || load32le(section + 4) != 0) return "head of the packs";
  l->left = load32le(section);
  l->p += PACK_SECTION_HEAD;
  return NULL;
}

const char *pack_list_next(struct pack_list *l) {
  const uint64_t before = l->number;
  const size_t left = (size_t)(l->end - l->p);
  l->nr = 0;
  if (l->left == 0) return left == 0 ? NULL : "bytes behind the packs";
  if (left < PACK_LIST_HEAD) return "a pack is cut short";
  l->number = load64le(l->p);
  l->print = load64le(l->p + 8);
  const uint64_t nr = load64le(l->p + 16);
  if (l->number <= before || l->number >= l->next_file) return "packs do not ascend, or the number is free";
  if (nr == 0 || nr > PACK_PARTS_MAX || nr > (left - PACK_LIST_HEAD) / PACK_ENTRY) return "number of a pack's parts";
  l->entries = l->p + PACK_LIST_HEAD;
  struct pack_entry e[2];
  for (uint32_t i = 0; i < nr; i++) {
    const char *const flaw = pack_entry_get(l->entries + (size_t)PACK_ENTRY * i, i ? &e[(i + 1) % 2] : NULL,
                                            l->next_file, &e[i % 2]);
    if (flaw) return flaw;
  }
  l->nr = (uint32_t)nr;
  l->p = l->entries + (size_t)PACK_ENTRY * nr;
  l->left--;
  return NULL;
}

bool packs_have(struct packs *p, uint64_t number) {
  bool have = false;
  if (!p) return false;
  pthread_mutex_lock(&p->lock);
  for (const struct pack *k = p->first; k && !have; k = k->next) have = k->number == number;
  pthread_mutex_unlock(&p->lock);
  return have;
}

void packs_measure(struct packs *p, struct packs_stats *out) {
  *out = (struct packs_stats){0};
  if (!p) return;
  pthread_mutex_lock(&p->lock);
  for (const struct pack *k = p->first; k; k = k->next) {
    out->nr++;
    out->parts += k->nr_live;
    for (uint32_t i = 0; i < k->nr_dead; i++) out->dead_bytes += k->dead[i].len;
  }
  pthread_mutex_unlock(&p->lock);
}
