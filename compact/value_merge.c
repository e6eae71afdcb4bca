// SPDX-License-Identifier: Apache-2.0
#include "compact/value_merge.h"

#include "compact/apart.h"
#include "remix/value_debt.h"
#include "value/readahead.h"
#include "view/live.h"

#define MEMTABLES 4u                     // the values of a memtable take so many times its bytes, at most
#define ROOM_LEAST ((uint64_t)16 << 20)  // bytes of garbage that value files may have in any case
#define AGAIN_NS 1000000000ull           // without room scans ask again after this time
#define HELD 256u                        // records that are held back at most,
#define HELD_VALUES 32u                  // with so many values to come,
#define HELD_BYTES (256u << 10)          // and so many bytes

// ---- debt

// A span is paid for by its share of the values, and by the tables, which a merge writes as a whole.
static uint64_t debt_due(const struct compact *c, const struct remix *x, uint64_t *share_out) {
  uint64_t values = 0, tables = 0;
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    const struct sst *const t = x->runs[r];
    tables += run_bytes(t);
    for (uint32_t k = 0; k < t->nr_apart; k++) values += t->apart[k].bytes;
  }
  *share_out = values / REMIX_SPANS;
  const uint64_t due = *share_out + tables, given = atomic_load_explicit(&c->value_debt, memory_order_relaxed);
  if (unlikely(given != 0)) return given;
  return due < COMPACT_VALUE_DEBT_MIN ? COMPACT_VALUE_DEBT_MIN : due;
}

bool compact_value_debt_paid(const struct compact *c, const struct remix *x) {
  struct remix_value_debt *const d = remix_value_debt(x);
  bool paid = false;
  if (!d) return false;
  uint64_t share, due = atomic_load_explicit(&d->due, memory_order_relaxed);
  if (due == 0) atomic_store_explicit(&d->due, due = debt_due(c, x, &share), memory_order_relaxed);
  for (uint32_t i = 0; i < REMIX_SPANS; i++)
    paid = paid || atomic_load_explicit(&d->spans[i], memory_order_relaxed) >= due;
  const uint64_t again_ns = paid ? atomic_load_explicit(&d->again_ns, memory_order_relaxed) : 0;
  return paid && (again_ns == 0 || time_ns() >= again_ns);
}

// Bytes that may be written before value files take too much (O3). Passes over all tables.
static uint64_t room_left(const struct compact *c, const struct version *store) {
  uint64_t *const lives = mem_array(store->values.nr ? store->values.nr : 1, sizeof(*lives), 0), live = 0;
  if (lives && live_values(store, lives) == REMIXDB_OK)
    for (uint32_t i = 0; i < store->values.nr; i++) live += lives[i];
  mem_free(lives);
  const uint64_t room = atomic_load_explicit(&c->values.ctx->room, memory_order_relaxed);
  const uint64_t writers = MEMTABLES * (uint64_t)c->memtable_size;
  uint64_t garbage = live / 16 * 5 + (writers > COMPACT_VALUES_MOST ? writers : COMPACT_VALUES_MOST);
  if (garbage > live / 2) garbage = live / 2;
  if (garbage < ROOM_LEAST) garbage = ROOM_LEAST;
  const uint64_t given = atomic_load_explicit(&c->values_room, memory_order_relaxed);
  if (unlikely(given != 0)) garbage = given;
  return live + garbage > room ? live + garbage - room : 0;
}

uint64_t value_merge_spans(struct compact *c, const struct version *store, const struct remix *x, uint64_t *room) {
  struct remix_value_debt *const d = remix_value_debt(x);
  if (!d || !compact_value_debt_paid(c, x)) return 0;
  uint64_t set = 0, share, bytes = 0;
  const uint64_t due = debt_due(c, x, &share);
  if (*room == VALUE_ROOM_UNKNOWN) *room = room_left(c, store);
  for (uint32_t i = 0; i < REMIX_SPANS; i++) {
    if (atomic_load_explicit(&d->spans[i], memory_order_relaxed) < due || bytes + share > *room) continue;
    if (set && bytes + share > COMPACT_VALUES_MOST) break;
    bytes += share;
    set |= (uint64_t)1 << i;
    atomic_store_explicit(&d->spans[i], 0, memory_order_relaxed);
  }
  *room -= bytes;
  // Without room each further jump would ask for the merge again.
  atomic_store_explicit(&c->values_wait, set == 0, memory_order_relaxed);
  if (set == 0) atomic_store_explicit(&d->again_ns, time_ns() + AGAIN_NS, memory_order_relaxed);
  return set;
}

// ---- the merge

struct held {
  struct kv_rec rec;  // key and value lie in `bytes`
  struct value_ref to;
  struct value_file *file;  // the file of the value that goes apart again; NULL: the record stays as it is
};

struct value_merge {
  struct job *j;
  enum remixdb_status (*add)(void *arg, const struct kv_rec *rec);
  void *arg;
  uint32_t nr, values, least;  // least: shorter values have gone apart because of their keys
  size_t len;                  // bytes in use
  struct held held[HELD];
  uint8_t value[VALUE_CHUNK];
  uint8_t bytes[HELD_BYTES];
};
_Static_assert(sizeof(struct value_merge) <= VALUE_MERGE_MEMORY, "the budget has what a job takes");

enum remixdb_status value_merge_create(struct job *j, enum remixdb_status (*add)(void *arg, const struct kv_rec *rec),
                                       void *arg, struct value_merge **out) {
  struct value_merge *const m = *out = mem_alloc(sizeof(*m));
  if (!m) return REMIXDB_NOMEM;
  m->j = j;
  m->add = add;
  m->arg = arg;
  m->nr = m->values = 0;
  m->len = 0;
  m->least = apart_from(j->c);
  return REMIXDB_OK;
}

void value_merge_destroy(struct value_merge *m) { mem_free(m); }

// Gives the record to `add`, with its value if that can be read.
static enum remixdb_status give(struct value_merge *m, const struct held *h) {
  if (!h->file) return m->add(m->arg, &h->rec);
  uint32_t n = 0;
  const enum remixdb_status s = value_read(h->file, &h->to, kref(h->rec.key, h->rec.klen), 0, m->value, h->to.len, &n);
  if (s == REMIXDB_NOMEM) return s;
  if (s != REMIXDB_OK || n != h->to.len) return m->add(m->arg, &h->rec);  // O1
  struct kv_rec whole = h->rec;
  whole.val = m->value;
  whole.vlen = n;
  whole.kind &= ~(uint32_t)KV_APART;
  atomic_fetch_add_explicit(&m->j->c->stats.again, 1, memory_order_relaxed);
  return m->add(m->arg, &whole);
}

// While values come from the disk: asks for those that are held back.
static void ask(const struct value_merge *m) {
  struct value_want wants[HELD_VALUES];
  _Static_assert(HELD_VALUES <= VALUE_AHEAD_NR, "all are asked for together");
  uint32_t nr = 0;
  for (uint32_t i = 0; i < m->nr; i++) {
    const struct held *const h = &m->held[i];
    if (h->file && value_cold(h->file->ctx)) wants[nr++] = (struct value_want){h->file, h->to, h->rec.klen};
  }
  value_ask(wants, nr);
}

enum remixdb_status value_merge_end(struct value_merge *m) {
  enum remixdb_status s = REMIXDB_OK;
  ask(m);
  for (uint32_t i = 0; i < m->nr && s == REMIXDB_OK; i++) s = give(m, &m->held[i]);
  m->nr = m->values = 0;
  m->len = 0;
  return s;
}

// Finds the value that is to go apart again.
static void find(const struct value_merge *m, struct held *h) {
  h->file = NULL;
  if (!(h->rec.kind & KV_APART) || !value_ref_get(h->rec.val, h->rec.vlen, &h->to)) return;
  if (h->to.len < m->least || h->to.len > VALUE_CHUNK) return;
  h->file = version_value(m->j->store, &h->to);
}

// Tells whether the record has a reference that cannot be one. The table does not take it.
static bool is_bad(const struct kv_rec *rec) {
  struct value_ref to;
  return unlikely(rec->kind & KV_APART) && !value_ref_get(rec->val, rec->vlen, &to);
}

enum remixdb_status value_merge_add(struct value_merge *m, const struct kv_rec *rec, bool again) {
  const size_t need = (size_t)rec->klen + rec->vlen;
  const bool at_once = need > HELD_BYTES || is_bad(rec);
  enum remixdb_status s = REMIXDB_OK;
  if (m->nr == HELD || m->values == HELD_VALUES || at_once || need > HELD_BYTES - m->len) s = value_merge_end(m);
  if (s != REMIXDB_OK) return s;
  if (at_once || (m->nr == 0 && !again)) return m->add(m->arg, rec);
  struct held *const h = &m->held[m->nr++];
  h->rec = *rec;
  h->file = NULL;
  uint8_t *const key = m->bytes + m->len, *const val = key + rec->klen;
  if (rec->klen) memcpy(key, rec->key, rec->klen);
  if (rec->vlen) memcpy(val, rec->val, rec->vlen);
  m->len += need;
  h->rec.key = key;
  h->rec.val = val;
  if (again) find(m, h);
  m->values += h->file != NULL;
  return REMIXDB_OK;
}
