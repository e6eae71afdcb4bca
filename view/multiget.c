// SPDX-License-Identifier: Apache-2.0
#include "view/multiget.h"

#include <assert.h>

#include "remix/paged.h"
#include "table/batch.h"
#include "value/readahead.h"
#include "view/candidate.h"
#include "view/super.h"

#define KEYS_AHEAD 8u   // the call prefetches so many of the caller's keys ahead
#define VALUE_LINES 3u  // lines of a record or a value to prefetch; the processor itself fetches the rest of a long one
#define PART_KEYS 1024u  // most keys in one epoch: bounds its time when all blocks are in memory
#define ADD_MIN 32u      // blocks that are handed over together, as long as more may come
// The same where reads come from the disk, and the keys of a group: the disk works on the first blocks while the search
// goes on. The first blocks are handed over at once.
#define COLD_GROUP 16u
#define COLD_ADD_MIN 16u
_Static_assert(1 + (SST_BATCH_MAX - 1) / COLD_ADD_MIN <= SST_BATCH_PARTS, "the reads of each part begin at once");
#define BATCH_PAGES 1024u  // most pages of the blocks of a batch: bounds its memory and its time

// A waiting key. It waits for the batch that reads the block of its candidate, which is not in the cache. Or it waits
// for the end of the batch, to be looked up alone, or to begin when its partition is not away any more. A thread that
// has reads in flight holds descriptors, so it must not wait for other threads' reads or descriptors.
struct waiting {
  uint64_t id;              // id of the block, from table and number; NO_BLOCK: the key waits for the batch's end
  size_t key;               // its index in the call
  const struct part *away;  // NO_BLOCK: the partition with which it begins; NULL: it is looked up alone
  struct remix_probe probe;
};

// A value that is apart, of a key of the call.
struct apart {
  size_t key;
  struct value_ref to;
  struct value_file *file;
};

struct multiget {
  struct blkio_queue *queue;
  // The call:
  const struct remixdb_slice *keys;
  struct remixdb_buf *values;
  bool *found;
  struct multiget_room *room;  // or NULL
  size_t nr, next, nr_found;   // next: the first key of the next group
  struct err_saved error;      // the error that occurred earliest
  const struct env *env;       // for the wall clock
  uint64_t now_ms;             // by which the call judges what has expired; 0: not asked yet
  size_t small;                // the lowest index of a key whose value did not fit, or nr
  const struct super *super;   // in which values apart are found; NULL: none is read
  struct apart *apart;         // nr_apart values to read, each with a reference to its file; room for cap_apart
  size_t nr_apart, cap_apart;
  // A group of keys on their way through the stages:
  size_t at[MULTIGET_GROUP];  // their indexes among the keys of the call
  struct kref key[MULTIGET_GROUP];
  uint64_t hash[MULTIGET_GROUP];
  const struct wh_ver *ver[MULTIGET_GROUP];
  struct remix_probe probe[MULTIGET_GROUP];
  const uint8_t *data[MULTIGET_GROUP];  // the candidate's block
  // The blocks that are not cached:
  uint32_t nr_waiting, pages_waiting;
  uint32_t nr_added;  // how many of the waiting keys have their blocks in flight
  bool begun;         // a batch has begun
  bool missed;        // the part before, of this call or the last one, waited for blocks
  struct waiting waiting[SST_BATCH_MAX];
  uint16_t want[SST_BATCH_MAX];  // the request in the batch of each waiting key
  struct sst_hold holds[SST_BATCH_MAX];
  struct sst_hold alone;
  struct sst_batch batch;
  struct sst_room block_room;  // has the blocks of the batch that get no frame
};

enum remixdb_status multiget_create(struct blkio_queue *queue, struct multiget **out) {
  struct multiget *const m = mem_calloc(1, sizeof(*m));
  *out = m;
  if (!m) return REMIXDB_NOMEM;
  m->queue = queue;
  return REMIXDB_OK;
}

void multiget_destroy(struct multiget *m) {
  if (!m) return;
  sst_hold_fini(&m->alone);
  sst_room_fini(&m->block_room);
  mem_free(m->apart);
  mem_free(m);
}

// ---- results

static void failed(struct multiget *m, enum remixdb_status s) {
  if (m->error.status == REMIXDB_OK) err_save(&m->error, s);
}

// Gives a value its place in the room. Returns false if the value does not fit.
static bool take_room(struct multiget_room *room, struct remixdb_buf *b, uint32_t len) {
  room->wanted += len;
  *b = (struct remixdb_buf){NULL, 0, len};
  if (len == 0 || len > room->cap - room->len) return len == 0;
  b->ptr = room->ptr + room->len;
  b->cap = len;
  room->len += len;
  return true;
}

static __attribute__((noinline)) bool expired(struct multiget *m, const struct kv_rec *rec) {
  if (m->now_ms == 0) m->now_ms = env_wall_ms(m->env);
  return rec->expiry <= m->now_ms;
}

// The key is found: gives its value its place. Returns how many bytes of it fit.
static inline uint32_t found_len(struct multiget *m, size_t i, uint32_t len) {
  m->found[i] = true;
  m->nr_found++;
  if (!m->values) return 0;
  struct remixdb_buf *const b = &m->values[i];
  b->len = len;
  if (m->room && !take_room(m->room, b, len) && m->small == m->nr) m->small = i;
  const uint32_t n = len < b->cap ? len : b->cap;
  if (unlikely(n < len) && b->ptr && m->small == m->nr) m->small = i;
  return n;
}

// The same for a value that is apart. It is read at the end of the call: now reads of blocks may be under way, and the
// thread is in an epoch.
static __attribute__((noinline)) void found_apart(struct multiget *m, size_t i, const struct kv_rec *rec) {
  struct apart a = {.key = i};
  enum remixdb_status s = m->super ? super_value(m->super, rec, &a.to, &a.file)
                                   : err_set(REMIXDB_INVALID, "a value is apart, and no super has it");
  if (s == REMIXDB_OK && m->nr_apart == m->cap_apart) {
    struct apart *const grown = mem_grow(m->apart, &m->cap_apart, MULTIGET_GROUP, sizeof(*grown));
    if (grown) m->apart = grown;
    else s = REMIXDB_NOMEM;
  }
  if (s != REMIXDB_OK) {
    failed(m, s);
    return;
  }
  if (found_len(m, i, a.to.len) == 0) return;
  value_file_ref(a.file);
  m->apart[m->nr_apart++] = a;
}

#define APART_AHEAD_BYTES (8ull << 20)  // bytes of values that are asked for before the first of them is read

// Asks for the values behind `i`.
static void ask_apart(const struct multiget *m, struct value_readahead *ahead, size_t i) {
  struct value_want wants[VALUE_AHEAD_NR];
  uint64_t bytes = 0;
  uint32_t nr = 0;
  while (++i < m->nr_apart && nr < VALUE_AHEAD_NR) {
    const struct apart *const a = &m->apart[i];
    bytes += a->to.len;
    if (nr && bytes > APART_AHEAD_BYTES) break;
    wants[nr++] = (struct value_want){a->file, a->to, (uint32_t)m->keys[a->key].len};
  }
  value_readahead_ask(ahead, wants, nr);
}

// Reads the values that are apart. While values come from the disk, it asks for many of them first.
static void read_apart(struct multiget *m) {
  struct value_readahead ahead = {.nr = 0};
  for (size_t i = 0; i < m->nr_apart; i++) {
    struct apart *const a = &m->apart[i];
    const struct remixdb_slice *const key = &m->keys[a->key];
    struct remixdb_buf *const b = &m->values[a->key];
    uint32_t n;
    if (value_cold(a->file->ctx) && value_readahead_due(&ahead, &a->to)) ask_apart(m, &ahead, i);
    const enum remixdb_status s = value_read(a->file, &a->to, kref(key->ptr, key->len), 0, b->ptr, b->cap, &n);
    if (s == REMIXDB_OK) continue;
    failed(m, s);
    m->found[a->key] = false;
    m->nr_found--;
    b->len = 0;
  }
  for (size_t i = 0; i < m->nr_apart; i++) value_file_unref(m->apart[i].file);
  m->nr_apart = 0;
}

// i: the key's index in the call.
ALWAYS_INLINE void found(struct multiget *m, size_t i, const struct kv_rec *rec) {
  if (unlikely(rec->kind)) {
    if (rec->kind & KV_TOMB || (rec->kind & KV_EXPIRES && expired(m, rec))) return;
    if (rec->kind & KV_APART) {
      found_apart(m, i, rec);
      return;
    }
  }
  const uint32_t n = found_len(m, i, rec->vlen);
  if (n) memcpy(m->values[i].ptr, rec->val, n);
}

// ---- memtables

// Looks for the keys which[0, nr) in the memtable. Keeps those in `which` that are not in it; returns how many.
static uint32_t look_in_memtable(struct multiget *m, const struct wh *wh, uint64_t moment, uint8_t *which,
                                 uint32_t nr) {
  // If the count is 0, no key of the memtable is visible at the moment: a key was counted before the moment was
  // published, and no key is ever removed.
  if (!wh || nr == 0 || wh_count(wh) == 0) return nr;
  wh_get_many(wh, m->key, m->hash, which, nr, moment, m->ver);
  for (uint32_t i = 0; i < nr; i++) {
    const struct wh_ver *const v = m->ver[which[i]];
    for (uint32_t l = 0; v && l < VALUE_LINES; l++) prefetch(v->val + l * CACHE_LINE);
  }
  uint32_t left = 0;
  for (uint32_t i = 0; i < nr; i++) {
    const struct wh_ver *const v = m->ver[which[i]];
    struct kv_rec rec;
    if (!v) {
      which[left++] = which[i];
      continue;
    }
    wh_ver_value(v, &rec);
    found(m, m->at[which[i]], &rec);
  }
  return left;
}

// ---- tables

#define NO_BLOCK UINT64_MAX  // sorts last

// away: as in struct waiting.
static void wait_for_end(struct multiget *m, uint32_t k, const struct part *away) {
  assert(m->nr_waiting < SST_BATCH_MAX);
  m->waiting[m->nr_waiting++] = (struct waiting){.id = NO_BLOCK, .key = m->at[k], .away = away, .probe = m->probe[k]};
}

static void wait_for_block(struct multiget *m, uint32_t k) {
  const struct remix_probe *const p = &m->probe[k];
  const uint32_t block = sst_pos_block(p->pos);
  assert(m->nr_waiting < SST_BATCH_MAX);
  m->waiting[m->nr_waiting++] = (struct waiting){.id = p->sst->number << 16 | block, .key = m->at[k], .probe = *p};
  m->pages_waiting += sst_block_pages(p->sst, block);
}

// Compares the keys with their candidates. The candidates' blocks are in data[]. Keeps those in `which` whose candidate
// is another key; returns how many.
static uint32_t compare_candidates(struct multiget *m, uint8_t *which, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) {
    const uint8_t *const data = m->data[which[i]];
    const uint8_t *const rec = data + block_record_at(data, sst_pos_idx(m->probe[which[i]].pos));
    for (uint32_t l = 0; l < VALUE_LINES; l++) prefetch(rec + l * CACHE_LINE);
  }
  uint32_t left = 0;
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t k = which[i];
    struct kv_rec rec;
    if (likely(candidate_record(&m->probe[k], m->data[k], &rec))) found(m, m->at[k], &rec);
    else which[left++] = (uint8_t)k;
  }
  return left;
}

// Sorts which[0, nr): keys with a candidate go to `with`; keys that are not in their view but may be in an older one go
// to `older`.
static void sort_out(struct multiget *m, const uint8_t *which, uint32_t nr, uint8_t *with, uint32_t *nr_with,
                     uint8_t *older, uint32_t *nr_older) {
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t k = which[i];
    if (m->probe[k].set) with[(*nr_with)++] = (uint8_t)k;
    else if (unlikely(m->probe[k].search)) wait_for_end(m, k, NULL);
    else if (unlikely(m->probe[k].older != NULL)) older[(*nr_older)++] = (uint8_t)k;
  }
}

// Probes the keys until each one is found, has no more candidates, or waits for a block.
static void probe_candidates(struct multiget *m, uint8_t *which, uint32_t nr) {
  for (;;) {
    uint8_t older[MULTIGET_GROUP];
    uint32_t left = 0, nr_older = 0;
    sort_out(m, which, nr, which, &left, older, &nr_older);
    for (uint32_t i = 0; i < nr_older; i++) candidate_older(&m->probe[older[i]]);
    if (unlikely(nr_older)) {
      remix_probe_find(m->probe, older, nr_older, !m->begun);
      sort_out(m, older, nr_older, which, &left, older, &(uint32_t){0});
    }
    if (left == 0) return;
    remix_probe_next(m->probe, which, left);
    nr = left;
    left = 0;
    uint8_t others[MULTIGET_GROUP];  // keys whose candidate cannot be the key, so that its block is not read
    uint32_t nr_others = 0;
    for (uint32_t i = 0; i < nr; i++) {
      const uint32_t k = which[i];
      struct remix_probe *const p = &m->probe[k];
      struct kv_rec rec;
      m->data[k] = candidate_cached(p);
      if (likely(m->data[k] != NULL)) {
        prefetch(m->data[k] + block_offset_at(sst_pos_idx(p->pos)));
        which[left++] = (uint8_t)k;
      } else if (unlikely(candidate_alone(p, &rec))) {
        if (kv_eq(kref(rec.key, rec.klen), p->key)) found(m, m->at[k], &rec);
        else others[nr_others++] = (uint8_t)k;
      } else if (likely(remix_probe_fits(p))) {
        wait_for_block(m, k);
      } else {
        others[nr_others++] = (uint8_t)k;
      }
    }
    nr = compare_candidates(m, which, left);
    for (uint32_t i = 0; i < nr_others; i++) which[nr++] = others[i];
  }
}

// The same as candidate_begin for a partition that may be away. If it cannot be opened, the key counts as failed.
static bool begin_away(struct multiget *m, const struct part *part, struct kref key, uint64_t hash, uint32_t k) {
  if (!part_is_away(part)) return candidate_begin(&m->probe[k], part, key, hash);
  if (m->begun) {
    m->probe[k].key = key;
    m->probe[k].hash = hash;
    wait_for_end(m, k, part);
    return false;
  }
  const enum remixdb_status s = part_ready(part);
  if (s != REMIXDB_OK) failed(m, s);
  return s == REMIXDB_OK && candidate_begin(&m->probe[k], part, key, hash);
}

static void look_in_tables(struct multiget *m, const struct version *version, uint8_t *which, uint32_t nr) {
  uint32_t left = 0;
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t k = which[i];
    const struct part *const part = version->parts[version_find(version, m->key[k])];
    if (likely(candidate_begin(&m->probe[k], part, m->key[k], m->hash[k])) ||
        begin_away(m, part, m->key[k], m->hash[k], k))
      which[left++] = (uint8_t)k;
  }
  remix_probe_find(m->probe, which, left, !m->begun);
  probe_candidates(m, which, left);
}

// ---- blocks that are not cached

// Shell's sort with the gaps of Ciura (2001): the entries are few, and it needs no memory.
static void sort_by_block(const struct waiting *w, uint16_t *order, uint32_t nr) {
  static const uint8_t gaps[] = {132, 57, 23, 10, 4, 1};
  for (uint32_t g = 0; g < sizeof(gaps); g++) {
    const uint32_t gap = gaps[g];
    for (uint32_t i = gap; i < nr; i++) {
      const uint16_t x = order[i];
      uint32_t k = i;
      for (; k >= gap && w[order[k - gap]].id > w[x].id; k -= gap) order[k] = order[k - gap];
      order[k] = x;
    }
  }
}

// Adds the blocks of waiting keys that are not in the batch yet to the batch, each block once.
static void add_waiting(struct multiget *m) {
  uint16_t order[SST_BATCH_MAX];
  const uint32_t from = m->nr_added, nr = m->nr_waiting - from;
  for (uint32_t i = 0; i < nr; i++) order[i] = (uint16_t)(from + i);
  sort_by_block(m->waiting, order, nr);
  m->nr_added = m->nr_waiting;
  if (nr == 0 || m->waiting[order[0]].id == NO_BLOCK) return;
  if (!m->begun) sst_batch_begin(&m->batch, m->queue, &m->block_room);
  m->begun = true;
  uint32_t added = 0;
  for (uint32_t i = 0; i < nr && m->waiting[order[i]].id != NO_BLOCK; i++) {
    const struct waiting *const w = &m->waiting[order[i]];
    if (i == 0 || w->id != m->waiting[order[i - 1]].id) {
      const uint32_t n = m->batch.nr + added++;
      m->batch.requests[n] = (struct sst_request){.sst = w->probe.sst,
                                                  .block = sst_pos_block(w->probe.pos),
                                                  .hold = &m->holds[n]};
    }
    m->want[order[i]] = (uint16_t)(m->batch.nr + added - 1);
  }
  sst_batch_add(&m->batch, added);
}

static void look_up_alone(struct multiget *m, const struct waiting *w) {
  struct kv_rec rec;
  const enum remixdb_status s = candidate_search(&w->probe, &m->alone, &rec);
  if (s == REMIXDB_OK) found(m, w->key, &rec);
  else if (s != REMIXDB_NOTFOUND) failed(m, s);
}

// Waits for the blocks and continues with all waiting keys. A key that then needs another block waits again, in the
// place of a key that has continued.
static void end_waiting(struct multiget *m) {
  add_waiting(m);
  const uint32_t nr = m->nr_waiting;
  const bool batch = m->begun;
  if (batch) {
    const enum remixdb_status s = sst_batch_end(&m->batch);
    if (unlikely(s != REMIXDB_OK)) failed(m, s);
  }
  m->nr_waiting = m->pages_waiting = m->nr_added = 0;
  m->begun = false;
  for (uint32_t from = 0; from < nr; from += MULTIGET_GROUP) {
    uint8_t which[MULTIGET_GROUP], begun[MULTIGET_GROUP];
    uint32_t had = 0, nr_begun = 0, used = 0;
    for (uint32_t i = from; i < nr && i < from + MULTIGET_GROUP; i++) {
      const struct waiting *const w = &m->waiting[i];
      if (unlikely(w->id == NO_BLOCK)) {
        m->at[used] = w->key;
        if (!w->away) look_up_alone(m, w);
        else if (begin_away(m, w->away, w->probe.key, w->probe.hash, used)) begun[nr_begun++] = (uint8_t)used++;
        continue;
      }
      const struct sst_request *const r = &m->batch.requests[m->want[i]];
      if (unlikely(r->status != REMIXDB_OK)) continue;  // sst_batch_end reports it
      m->at[used] = w->key;
      m->probe[used] = w->probe;
      m->data[used] = r->hold->cb.data;
      which[had++] = (uint8_t)used++;
    }
    had = compare_candidates(m, which, had);
    if (unlikely(nr_begun)) remix_probe_find(m->probe, begun, nr_begun, true);
    for (uint32_t i = 0; i < nr_begun; i++) which[had++] = begun[i];
    probe_candidates(m, which, had);
  }
  for (uint32_t i = 0; batch && i < m->batch.nr; i++) sst_hold_fini(&m->holds[i]);
}

// ---- a call

void multiget_begin(struct multiget *m, size_t nr, const struct remixdb_slice *keys, struct remixdb_buf *values,
                    bool *found_out, struct multiget_room *room) {
  m->keys = keys;
  m->values = values;
  m->found = found_out;
  m->room = room;
  m->nr = m->small = nr;
  m->next = m->nr_found = 0;
  m->nr_waiting = m->pages_waiting = m->nr_added = 0;
  m->begun = false;
  m->super = NULL;
  m->nr_apart = 0;
  m->error.status = REMIXDB_OK;
  m->env = NULL;
  m->now_ms = 0;
  memset(found_out, 0, nr * sizeof(*found_out));
}

void multiget_clock(struct multiget *m, const struct env *env, uint64_t now_ms) {
  m->env = env;
  m->now_ms = now_ms;
}
void multiget_super(struct multiget *m, const struct super *v) { m->super = v; }

// most: keys of the group, at most MULTIGET_GROUP.
static void look_up_group(struct multiget *m, const struct wh *active, const struct wh *frozen,
                          const struct version *version, uint64_t moment, uint32_t most) {
  const size_t left = m->nr - m->next;
  uint8_t which[MULTIGET_GROUP];
  uint32_t nr = left < most ? (uint32_t)left : most;
  const struct remixdb_slice *const keys = m->keys + m->next;
  for (uint32_t k = 0; k < nr && k < KEYS_AHEAD; k++) prefetch(keys[k].ptr);
  for (uint32_t k = 0; k < nr; k++) {
    if (k + KEYS_AHEAD < nr) prefetch(keys[k + KEYS_AHEAD].ptr);
    m->at[k] = m->next + k;
    m->key[k] = kref(keys[k].ptr, keys[k].len);
    m->hash[k] = hash64(keys[k].ptr, keys[k].len);
    which[k] = (uint8_t)k;
    if (m->values) m->values[m->next + k].len = 0;
  }
  m->next += nr;
  nr = look_in_memtable(m, active, moment, which, nr);
  nr = look_in_memtable(m, frozen, moment, which, nr);
  look_in_tables(m, version, which, nr);
}

// Pages of a group are read together (remix_pages_together), so groups are large then.
static uint32_t cold_group(const struct version *version) {
  const struct remix *const x = part_remix(version->parts[0]);
  return x && remix_is_paged(x) ? MULTIGET_GROUP : COLD_GROUP;
}

bool multiget_part(struct multiget *m, const struct wh *active, const struct wh *frozen, const struct version *version,
                   uint64_t moment) {
  const size_t from = m->next;
  const bool cold = m->missed && blkio_cold(m->queue->io);
  const uint32_t most = cold ? cold_group(version) : MULTIGET_GROUP;
  // Reads start as soon as there are some, and run while the search finds more.
  while (m->next < m->nr && m->next - from < PART_KEYS && m->nr_waiting + MULTIGET_GROUP <= SST_BATCH_MAX &&
         m->pages_waiting < BATCH_PAGES) {
    look_up_group(m, active, frozen, version, moment, most);
    if (m->nr_waiting - m->nr_added >= (!cold ? ADD_MIN : m->nr_added ? COLD_ADD_MIN : 1)) add_waiting(m);
  }
  m->missed = m->nr_waiting != 0;
  while (m->nr_waiting) end_waiting(m);
  return m->next < m->nr;
}

enum remixdb_status multiget_end(struct multiget *m, size_t *nr_out) {
  sst_hold_drop(&m->alone);
  if (unlikely(m->nr_apart)) read_apart(m);
  *nr_out = m->nr_found;
  if (m->error.status != REMIXDB_OK) return err_raise(&m->error);
  if (m->small < m->nr && m->room)
    return err_set(REMIXDB_TOOBIG, "the values have %zu bytes, the buffer %zu", m->room->wanted, m->room->cap);
  if (m->small < m->nr)
    return err_set(REMIXDB_TOOBIG, "the value of key %zu has %u bytes, its buffer %u", m->small,
                   m->values[m->small].len, m->values[m->small].cap);
  return REMIXDB_OK;
}
