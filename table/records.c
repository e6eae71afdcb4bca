// SPDX-License-Identifier: Apache-2.0
#include "table/records.h"

#include <assert.h>

#define BUCKET 8u          // entries of a bucket: one cache line
#define RECORD_GUESS 128u  // bytes of a record on average, at least: the index has an entry for so many
#define CHUNK_BYTES (RECORDS_CHUNK_PAGES * BLOCK_PAGE)
#define MOVE_MAX (CHUNK_BYTES / 4 * 3)  // bytes that move from an emptied chunk at most: so each one makes room
#define CHUNKS_MIN 8u                   // a cache with room for fewer keeps no records
#define IDLE_MAX 4u                     // emptied chunks that wait for their readers
#define IDLE_WANT 2u                    // so many are made ready: their readers need time to leave their epochs
#define PROBATION_PART 8u               // 1/8 of the chunks are on probation

// A record in a chunk. Its first bytes are those of a block's head with one offset, as far as block_record reads them.
struct kept {
  uint64_t table;
  uint16_t pad;
  uint8_t form, zero;
  uint16_t off;  // block_record_at: where rec begins
  uint16_t len;  // bytes of rec
  uint32_t pos;
  _Atomic uint32_t used;  // found since it was put here; relaxed
  uint8_t rec[];
};
_Static_assert(offsetof(struct kept, off) == BLOCK_HEAD && offsetof(struct kept, form) == BLOCK_OFF_FORM,
               "they stand where a block has its form and its first offset");
static inline uint32_t kept_size(uint32_t len) {
  return (uint32_t)align_up(offsetof(struct kept, rec) + len, sizeof(uint64_t));
}

struct chunk {
  uint32_t frame;  // its frame in the cache
  uint32_t used;   // bytes
  uint64_t stamp;  // the stamp of an emptied chunk
};

// An entry: in the low bits the record's place, in units of 8 bytes from the beginning of the cache's pages, plus 1;
// above them bits of the hash. Place 0: a record that left its probation. 0: none.
#define PLACE_BITS 40u
#define PLACE_MASK ((UINT64_C(1) << PLACE_BITS) - 1)

// Chunks in order of their age; the newest one is being filled.
struct ring {
  struct chunk *chunks;  // room for records.max
  uint32_t first, nr;
};

struct index {
  uint32_t nr_buckets;  // a power of two
  _Atomic uint64_t entries[];
};

struct records {
  struct records_room room;
  _Atomic(struct index *) index;  // release; a replaced one lives until its readers have left their epochs
  _Atomic uint64_t hits;          // relaxed
  // The lock guards all below, and the writing of the index.
  _Alignas(CACHE_LINE) pthread_mutex_t lock;
  uint32_t max;  // chunks at most
  struct ring probation, main;
  struct chunk idle[IDLE_MAX];  // emptied, in order of their stamps
  uint32_t nr_idle;
  _Atomic uint64_t kept;  // relaxed; readers need no lock
};

// Chunks for a cache of so many pages. 0: it is too small.
static uint32_t chunks_max(uint32_t nr_pages) {
  const uint64_t max = (uint64_t)nr_pages * RECORDS_PART_NUM / RECORDS_PART_DEN / RECORDS_CHUNK_PAGES;
  return max < CHUNKS_MIN ? 0 : (uint32_t)max;
}

// Makes the index and the rings for so many chunks. r has no chunk. On failure r stays as it is.
static enum remixdb_status records_shape(struct records *r, uint32_t max) {
  uint32_t nr_buckets = 1;
  while ((uint64_t)nr_buckets * BUCKET * RECORD_GUESS < (uint64_t)max * CHUNK_BYTES) nr_buckets *= 2;
  struct chunk *const a = mem_calloc(max + 1, sizeof(*a)), *const b = mem_calloc(max + 1, sizeof(*b));
  // the system gives memory as it is used
  struct index *const x = mem_calloc(1, sizeof(*x) + (size_t)nr_buckets * BUCKET * sizeof(x->entries[0]));
  if (!a || !b || !x) {
    mem_free(a);
    mem_free(b);
    mem_free(x);
    return REMIXDB_NOMEM;
  }
  x->nr_buckets = nr_buckets;
  r->max = max;
  r->probation = (struct ring){.chunks = a};
  r->main = (struct ring){.chunks = b};
  atomic_store_explicit(&r->index, x, memory_order_release);
  return REMIXDB_OK;
}

enum remixdb_status records_create(const struct records_room *room, struct records **out) {
  *out = NULL;
  if (chunks_max(room->nr_pages) == 0) return REMIXDB_OK;
  struct records *const r = mem_alloc_aligned(CACHE_LINE, sizeof(*r));
  if (!r) return REMIXDB_NOMEM;
  memset(r, 0, sizeof(*r));
  (void)pthread_mutex_init(&r->lock, NULL);
  r->room = *room;
  const enum remixdb_status s = records_shape(r, chunks_max(room->nr_pages));
  if (s == REMIXDB_OK) *out = r;
  else records_destroy(r);
  return s;
}

void records_destroy(struct records *r) {
  if (!r) return;
  (void)pthread_mutex_destroy(&r->lock);
  mem_free(atomic_load_explicit(&r->index, memory_order_relaxed));
  mem_free(r->main.chunks);
  mem_free(r->probation.chunks);
  mem_free(r);
}

enum remixdb_status records_resize(struct records *r, uint32_t nr_pages, uint32_t **frames_out, uint32_t *nr_out) {
  (void)pthread_mutex_lock(&r->lock);
  const struct ring rings[2] = {r->probation, r->main};
  const uint32_t max = r->max;
  struct index *const old = atomic_load_explicit(&r->index, memory_order_relaxed);
  uint32_t n = 0, *const frames = mem_array(rings[0].nr + rings[1].nr + r->nr_idle + 1, sizeof(*frames), 0);
  const enum remixdb_status s = frames ? records_shape(r, chunks_max(nr_pages)) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) {
    for (uint32_t g = 0; g < 2; g++)
      for (uint32_t i = 0; i < rings[g].nr; i++) frames[n++] = rings[g].chunks[(rings[g].first + i) % max].frame;
    for (uint32_t i = 0; i < r->nr_idle; i++) frames[n++] = r->idle[i].frame;
    r->nr_idle = 0;
  }
  (void)pthread_mutex_unlock(&r->lock);
  if (s != REMIXDB_OK) {
    mem_free(frames);
    return s;
  }
  epoch_wait(r->room.epoch, epoch_stamp(r->room.epoch));
  mem_free(old);
  mem_free(rings[0].chunks);
  mem_free(rings[1].chunks);
  *frames_out = frames;
  *nr_out = n;
  return s;
}

// ---- the index

static inline uint64_t kept_hash(uint64_t table, uint32_t pos) {
  // splitmix64's finalizer
  uint64_t h = table * 0x9E3779B97F4A7C15ull + pos;
  h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9ull;
  h = (h ^ h >> 27) * 0x94D049BB133111EBull;
  return h ^ h >> 31;
}
static inline _Atomic uint64_t *bucket_of(const struct records *r, uint64_t hash) {
  struct index *const x = atomic_load_explicit(&r->index, memory_order_acquire);
  return &x->entries[(hash & (x->nr_buckets - 1)) * BUCKET];
}
static inline uint64_t tag_of(uint64_t hash) { return hash >> PLACE_BITS << PLACE_BITS; }
static inline struct kept *kept_at(const struct records *r, uint64_t entry) {
  return (struct kept *)(void *)(r->room.pages + ((entry & PLACE_MASK) - 1) * 8);
}
static inline uint64_t entry_of(const struct records *r, const struct kept *k, uint64_t hash) {
  return tag_of(hash) | ((uint64_t)((const uint8_t *)k - r->room.pages) / 8 + 1);
}

// The entry of the record, or NULL.
static inline _Atomic uint64_t *entry_find(const struct records *r, uint64_t table, uint32_t pos, uint64_t hash,
                                           struct kept **kept_out) {
  _Atomic uint64_t *const bucket = bucket_of(r, hash);
  for (uint32_t i = 0; i < BUCKET; i++) {
    const uint64_t e = atomic_load_explicit(&bucket[i], memory_order_acquire);
    if (!(e & PLACE_MASK) || (e ^ tag_of(hash)) >> PLACE_BITS) continue;
    struct kept *const k = kept_at(r, e);
    if (k->table != table || k->pos != pos) continue;
    *kept_out = k;
    return &bucket[i];
  }
  return NULL;
}

// A place in the bucket for one more record: that of the record's own past, a free one, that of another record's past,
// one of a record that was not found since it was put here, or any. *known_out: the record left its probation lately.
static _Atomic uint64_t *entry_room(struct records *r, uint64_t hash, bool *known_out) {
  _Atomic uint64_t *const bucket = bucket_of(r, hash), *room = NULL;
  uint32_t best = 0;
  *known_out = false;
  for (uint32_t i = 0; i < BUCKET; i++) {
    const uint64_t e = atomic_load_explicit(&bucket[i], memory_order_relaxed);
    if (e != 0 && e == tag_of(hash)) {
      *known_out = true;
      return &bucket[i];
    }
    const uint32_t worth = e == 0                                                             ? 3
                           : !(e & PLACE_MASK)                                                ? 2
                           : atomic_load_explicit(&kept_at(r, e)->used, memory_order_relaxed) ? 0
                                                                                              : 1;
    if (worth > best) {
      best = worth;
      room = &bucket[i];
    }
  }
  return room ? room : &bucket[atomic_load_explicit(&r->kept, memory_order_relaxed) % BUCKET];
}

const uint8_t *records_find(struct records *r, uint64_t table, uint32_t pos) {
  struct kept *k;
  if (!entry_find(r, table, pos, kept_hash(table, pos), &k)) return NULL;
  if (!atomic_load_explicit(&k->used, memory_order_relaxed)) atomic_store_explicit(&k->used, 1, memory_order_relaxed);
  (void)atomic_fetch_add_explicit(&r->hits, 1, memory_order_relaxed);
  return (const uint8_t *)k;
}

// ---- chunks; the caller has the lock

static inline struct chunk *ring_at(const struct records *r, const struct ring *g, uint32_t i) {
  return &g->chunks[(g->first + i) % r->max];
}
static inline struct chunk *ring_newest(const struct records *r, const struct ring *g) {
  return g->nr ? ring_at(r, g, g->nr - 1) : NULL;
}
static inline uint8_t *chunk_bytes(const struct records *r, const struct chunk *c) {
  return r->room.pages + (size_t)(c->frame - 1) * BLOCK_PAGE;
}
static inline uint32_t chunks_live(const struct records *r) { return r->probation.nr + r->main.nr; }

// Whether the ring's newest chunk takes a record of so many bytes.
static inline bool ring_takes(const struct records *r, const struct ring *g, uint32_t len) {
  const struct chunk *const c = ring_newest(r, g);
  return c && c->used + kept_size(len) <= CHUNK_BYTES;
}

// Appends a record to the ring's newest chunk, which has room.
static void append(struct records *r, struct ring *g, const struct kept *from, const uint8_t *rec,
                   _Atomic uint64_t *entry, uint64_t hash) {
  struct chunk *const c = ring_newest(r, g);
  struct kept *const k = (struct kept *)(void *)(chunk_bytes(r, c) + c->used);
  assert(c->used + kept_size(from->len) <= CHUNK_BYTES);
  c->used += kept_size(from->len);
  k->table = from->table;
  k->pad = 0;
  k->form = from->form;
  k->zero = 0;
  k->off = offsetof(struct kept, rec);
  k->len = from->len;
  k->pos = from->pos;
  atomic_init(&k->used, 0);
  memcpy(k->rec, rec, from->len);
  atomic_store_explicit(entry, entry_of(r, k, hash), memory_order_release);
}

// Takes the emptied chunk that has waited longest, if no reader uses it. 0: none.
static uint32_t idle_take(struct records *r) {
  if (r->nr_idle == 0 || !epoch_passed(r->room.epoch, r->idle[0].stamp)) return 0;
  const uint32_t frame = r->idle[0].frame;
  memmove(&r->idle[0], &r->idle[1], --r->nr_idle * sizeof(r->idle[0]));
  return frame;
}

// Begins a new newest chunk of the ring. False: none is free at once.
static bool chunk_begin(struct records *r, struct ring *g) {
  uint32_t frame = idle_take(r);
  if (!frame && chunks_live(r) + r->nr_idle < r->max) frame = r->room.give(r->room.arg);
  if (!frame) return false;
  g->nr++;
  *ring_newest(r, g) = (struct chunk){.frame = frame};
  return true;
}

// A record of an emptied chunk moves to the main chunks, or goes. The index remembers one that was on probation.
// *moved: bytes of the chunk that moved so far; some room must be gained.
static void kept_leave(struct records *r, const struct kept *k, bool probation, uint32_t *moved) {
  const uint64_t hash = kept_hash(k->table, k->pos);
  struct kept *found;
  _Atomic uint64_t *const entry = entry_find(r, k->table, k->pos, hash, &found);
  if (!entry || found != k) return;
  if (atomic_load_explicit(&k->used, memory_order_relaxed) && *moved + kept_size(k->len) <= MOVE_MAX &&
      (ring_takes(r, &r->main, k->len) || chunk_begin(r, &r->main))) {
    *moved += kept_size(k->len);
    append(r, &r->main, k, k->rec, entry, hash);
  } else {
    atomic_store_explicit(entry, probation ? tag_of(hash) : 0, memory_order_relaxed);
  }
}

// Empties the oldest chunk of the ring. The newest one is another one.
static void ring_empty(struct records *r, struct ring *g) {
  const struct chunk old = *ring_at(r, g, 0);
  assert(g->nr > 1 && r->nr_idle < IDLE_MAX);
  g->first = (g->first + 1) % r->max;
  g->nr--;
  r->idle[r->nr_idle++] = (struct chunk){.frame = old.frame, .stamp = UINT64_MAX};  // not yet, but it counts
  for (uint32_t at = 0, moved = 0; at < old.used;) {
    const struct kept *const k = (struct kept *)(void *)(chunk_bytes(r, &old) + at);
    at += kept_size(k->len);
    kept_leave(r, k, g == &r->probation, &moved);
  }
  r->idle[r->nr_idle - 1].stamp = epoch_stamp(r->room.epoch);
}

// Empties a chunk, if there is one that may go.
static bool empty_one(struct records *r) {
  const bool much = r->probation.nr > r->max / PROBATION_PART;
  struct ring *const g = (much && r->probation.nr > 1) || r->main.nr < 2 ? &r->probation : &r->main;
  if (g->nr < 2 || r->nr_idle == IDLE_MAX) return false;
  ring_empty(r, g);
  return true;
}

// A chunk of the ring for one more record. False: none is free at once.
static bool ring_room(struct records *r, struct ring *g, uint32_t len) {
  if (likely(ring_takes(r, g, len))) return true;
  const bool begun = chunk_begin(r, g);
  while (chunks_live(r) + IDLE_WANT > r->max && r->nr_idle < IDLE_WANT && empty_one(r)) {}
  return begun && ring_takes(r, g, len);
}

void records_keep(struct records *r, uint64_t table, uint32_t pos, uint32_t form, const uint8_t *rec, uint32_t len) {
  if (len > RECORDS_LEN_MAX || pthread_mutex_trylock(&r->lock) != 0) return;
  const struct kept head = {.table = table, .form = (uint8_t)form, .len = (uint16_t)len, .pos = pos};
  const uint64_t hash = kept_hash(table, pos);
  struct kept *k;
  if (r->max && !entry_find(r, table, pos, hash, &k)) {
    bool known;
    (void)entry_room(r, hash, &known);
    struct ring *const g = known ? &r->main : &r->probation;
    if (ring_room(r, g, len)) {
      append(r, g, &head, rec, entry_room(r, hash, &known), hash);
      (void)atomic_fetch_add_explicit(&r->kept, 1, memory_order_relaxed);
    }
  }
  (void)pthread_mutex_unlock(&r->lock);
}

uint32_t records_yield(struct records *r) {
  if (pthread_mutex_trylock(&r->lock) != 0) return 0;
  const uint32_t frame = idle_take(r);
  if (!frame) (void)empty_one(r);
  (void)pthread_mutex_unlock(&r->lock);
  return frame;
}

uint64_t records_used(const struct records *r) {
  return atomic_load_explicit(&r->hits, memory_order_relaxed) + atomic_load_explicit(&r->kept, memory_order_relaxed);
}

void records_stats(struct records *r, struct records_stats *out) {
  (void)pthread_mutex_lock(&r->lock);
  *out = (struct records_stats){.bytes = (uint64_t)(chunks_live(r) + r->nr_idle) * CHUNK_BYTES};
  (void)pthread_mutex_unlock(&r->lock);
  out->kept = atomic_load_explicit(&r->kept, memory_order_relaxed);
  out->hits = atomic_load_explicit(&r->hits, memory_order_relaxed);
}
