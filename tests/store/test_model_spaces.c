// SPDX-License-Identifier: Apache-2.0
//
// Random calls in one thread on several key spaces, against a model of each: spaces that are made, dropped and made
// again under the same name; batches, range deletions, snapshots and transactions across spaces; borrowed refs, pins,
// and options that change in between. All spaces share one time, so a call that writes to several of them is one
// moment.
//
// Now and then the power goes, a call of the disk fails, or the process dies with its log. The next opening must show
// all spaces at one moment: that of a call between the last durable one and the last one of all. Names are durable when
// the call that changes them returns.
//
// TEST_SEED in the environment repeats the run of a failure. SOAK_SECONDS goes on with new seeds that long.
#include <errno.h>

#include "tests/lib/check.h"
#include "tests/lib/expect.h"
#include "tests/lib/past.h"
#include "tests/lib/simdisk.h"
#include "store/ranges.h"
#include "store/space_ref.h"
#include "store/txn_state.h"

#define NAMES 5u  // number 0 is the unnamed space
#define INCS 24u  // spaces with a model, those included that are dropped and still read
#define CURSORS 2u
#define SHOTS 3u
#define TXNS 2u
#define PINS 6u
#define BORROWED 2u
#define TXN_IDS 0x40000000u  // ids of transactions' values, from here on

static const char *const names[NAMES] = {"", "a", "b", "\xff\xfe long name with every byte but two", "ab"};

// A space from its making to its end. A dropped one stays as long as something may read it.
struct inc {
  bool used;
  uint32_t name;
  uint64_t dropped;  // the time; 0: it is there
  uint64_t made;
  struct past m;
  struct xdb_space *sp;
  struct xdb_ref *ref;
  struct past_cursor cursors[CURSORS];
};

struct shot {
  struct xdb_snapshot *s;  // NULL: none
  uint64_t time;
  struct xdb_ref *refs[INCS];
  struct past_cursor cursor;
  uint32_t cursor_of;
};

// A transaction, and what it shows of each space that it uses: the space at the beginning, with its own writes.
struct shown {
  bool used;
  struct past m;
  bool *wrote;  // by key
  struct past_cursor cursor;
};
struct txn {
  struct xdb_txn *t;  // NULL: none
  uint64_t began;
  struct shown shown[INCS];
  uint32_t nr_saved;
  struct saved {
    uint64_t times[INCS];
    bool *wrote[INCS];
  } saved[3];
};

struct pin {
  struct xdb_pin *p;  // NULL: none
  const void *bytes;
  uint32_t len;
  struct past_ver v;
};

struct world {
  uint64_t rng;
  uint64_t time;    // the last write's
  uint64_t synced;  // the last time that must survive
  struct simdisk *disk;
  struct env *env;
  struct remixdb_opts opts;
  size_t memtable;
  uint32_t pages;
  enum key_kind keys;
  struct xdb *x;
  struct inc incs[INCS];
  uint32_t live[NAMES];  // the space of the name; INCS: none
  struct xdb_batch *batch;
  struct shot shots[SHOTS];
  struct txn txns[TXNS];
  struct pin pins[PINS];
  struct xdb_ref *borrowed[BORROWED];  // borrowed
  struct past_cursor borrowed_cursors[BORROWED];
  uint32_t next_id, txn_id;
  uint32_t in_doubt;  // the name whose making or drop failed; NAMES: none
  uint8_t *buf;       // for values
  bool danger, each;  // calls may fail; each write is durable
};

static uint64_t nr_steps, nr_drops, nr_made, nr_cuts, nr_torn, nr_commits, nr_conflicts, nr_lost;

// ---- spaces and time

// The models of two spaces never give a value the same number.
static struct past *at_now(struct world *w, struct inc *n) {
  n->m.time = w->time;
  n->m.next_id = w->next_id;
  return &n->m;
}
static void took(struct world *w, const struct inc *n) {
  w->time = n->m.time;
  w->next_id = n->m.next_id;
}

static struct inc *pick_inc(struct world *w) {
  uint32_t name;
  do name = (uint32_t)below(&w->rng, NAMES);
  while (w->live[name] == INCS);
  return &w->incs[w->live[name]];
}

static uint32_t pick_key(struct world *w, const struct inc *n) {
  return (uint32_t)below(&w->rng, chance(&w->rng, 40) ? 1 + n->m.nr / 6 : n->m.nr);
}

static void inc_refs(struct world *w, struct inc *n) {
  if (n->name) CHECK(n->sp || (n->sp = remixdb_space_open(w->x, names[n->name], false)) != NULL);
  CHECK((n->ref = n->name ? remixdb_space_ref(n->sp) : remixdb_ref(w->x)) != NULL);
}

static void inc_make(struct world *w, uint32_t name) {
  uint32_t i = 0;
  while (i < INCS && w->incs[i].used) i++;
  CHECK(i < INCS);
  struct inc *const n = &w->incs[i];
  const uint64_t seed = check_seed;
  *n = (struct inc){.used = true, .name = name, .made = ++w->time};
  check_seed = seed * 7 + below(&w->rng, 3);  // the same keys as in other spaces, or others
  past_init(&n->m, w->keys, 2 + (uint32_t)below(&w->rng, 200), 300);
  check_seed = seed;
  n->m.rng = rng_next(&w->rng);
  w->live[name] = i;
}

// Forgets a space that nothing can read any more.
static void inc_end(struct world *w, struct inc *n) {
  for (uint32_t c = 0; c < CURSORS; c++) past_cursor_drop(&n->cursors[c]);
  remixdb_unref(n->ref);
  remixdb_space_close(n->sp);
  past_fini(&n->m);
  if (w->live[n->name] == (uint32_t)(n - w->incs)) w->live[n->name] = INCS;
  *n = (struct inc){0};
}

// Ends dropped spaces that no snapshot and no transaction is older than.
static void sweep(struct world *w) {
  for (uint32_t i = 0; i < INCS; i++) {
    struct inc *const n = &w->incs[i];
    bool read = !n->used || !n->dropped;
    for (uint32_t s = 0; s < SHOTS; s++) read |= w->shots[s].s && w->shots[s].time < n->dropped;
    for (uint32_t t = 0; t < TXNS; t++) read |= w->txns[t].t && w->txns[t].began < n->dropped;
    for (uint32_t c = 0; c < CURSORS; c++) read |= n->cursors[c].it != NULL;
    if (!read) inc_end(w, n);
  }
}

// ---- opening and closing

static void choose_opts(struct world *w) {
  static const size_t caches[] = {0, 1, 8};
  struct remixdb_opts *const o = &w->opts;
  *o = small_opts(0);
  o->tags = chance(&w->rng, 50);
  o->ckeys = chance(&w->rng, 50);
  o->cache_mb = caches[below(&w->rng, 3)];
  if (chance(&w->rng, 25)) {
    o->cache_mb = REMIXDB_AUTO;
    o->memory_mb = 1 + below(&w->rng, 4);
  }
  o->compression = chance(&w->rng, 30) ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  o->compression_level = 1;
  o->max_open_files = chance(&w->rng, 30) ? 16 : 0;
  o->sync = chance(&w->rng, 10) ? REMIXDB_SYNC_EACH : REMIXDB_SYNC_NONE;
  w->each = o->sync == REMIXDB_SYNC_EACH;
  w->memtable = (size_t)(80 + below(&w->rng, 150)) << 10;
  w->pages = 4 + (uint32_t)below(&w->rng, 20);
}

static void world_open(struct world *w) {
  choose_opts(w);
  expect_reads(rng_next(&w->rng));
  OK(xdb_open("/store", &w->opts, w->env, &w->x));
  shrink(w->x, w->memtable, w->pages);
  if (chance(&w->rng, 50)) expect_small_memory(w->x);
  static const uint8_t from[] = {0, 1, 2, COMPACT_YOUNG_FROM};
  static const uint64_t few[] = {0, 3, 50, RANGES_FEW};
  w->x->compact.young_from = from[below(&w->rng, 4)];
  w->x->compact.garbage_from = from[below(&w->rng, 4)];
  w->x->compact.cut_from = 0;
  w->x->compact.join = from[below(&w->rng, 3)];
  w->x->garbage_merges.rest_ns = 1000000;
  w->x->ranges.few = few[below(&w->rng, 4)];
  w->x->ranges.cut_few = few[below(&w->rng, 4)];
  w->x->ranges.most = 8 * w->x->ranges.few;
}

static void shot_drop(struct shot *t) {
  past_cursor_drop(&t->cursor);
  for (uint32_t i = 0; i < INCS; i++) remixdb_unref(t->refs[i]);
  remixdb_snapshot_release(t->s);
  *t = (struct shot){0};
}

static void pin_drop(struct pin *p) {
  if (p->p) {
    uint8_t *const want = malloc(p->len + 1);
    CHECK(want);
    past_value(p->v.id, p->len, want);
    CHECK(p->len == p->v.len && memcmp(want, p->bytes, p->len) == 0);
    free(want);
  }
  remixdb_pin_release(p->p);
  *p = (struct pin){0};
}

static void txn_forget(struct world *w, struct txn *t) {
  for (uint32_t i = 0; i < INCS; i++) {
    struct shown *const v = &t->shown[i];
    if (!v->used) continue;
    for (uint32_t k = 0; k < v->m.nr; k++) free(v->m.keys[k].vers);
    free(v->m.keys);
    free(v->m.buf);
    free(v->m.want);
    free(v->wrote);
  }
  while (t->nr_saved) {
    t->nr_saved--;
    for (uint32_t i = 0; i < INCS; i++) free(t->saved[t->nr_saved].wrote[i]);
  }
  *t = (struct txn){0};
  sweep(w);
}

static void txn_cursors_drop(struct txn *t) {
  for (uint32_t i = 0; i < INCS; i++) past_cursor_drop(&t->shown[i].cursor);
}

static void txn_abort(struct world *w, struct txn *t) {
  txn_cursors_drop(t);
  remixdb_txn_abort(t->t);
  txn_forget(w, t);
}

// Ends all that reads the store.
static void let_go(struct world *w) {
  for (uint32_t i = 0; i < PINS; i++) pin_drop(&w->pins[i]);
  for (uint32_t i = 0; i < TXNS; i++)
    if (w->txns[i].t) txn_abort(w, &w->txns[i]);
  for (uint32_t i = 0; i < SHOTS; i++)
    if (w->shots[i].s) shot_drop(&w->shots[i]);
  for (uint32_t i = 0; i < BORROWED; i++) {
    past_cursor_drop(&w->borrowed_cursors[i]);
    remixdb_ref_return(w->borrowed[i]);
    w->borrowed[i] = NULL;
  }
  for (uint32_t i = 0; i < INCS; i++) {
    struct inc *const n = &w->incs[i];
    for (uint32_t c = 0; c < CURSORS; c++) past_cursor_drop(&n->cursors[c]);
    remixdb_unref(n->ref);
    remixdb_space_close(n->sp);
    n->ref = NULL;
    n->sp = NULL;
  }
  sweep(w);
}

static void check_list(struct world *w) {
  char *const text = remixdb_space_list(w->x), line[300];
  uint32_t there = 0;
  size_t len = 0;
  CHECK(text);
  for (uint32_t i = 1; i < NAMES; i++) {
    if (w->live[i] == INCS) continue;
    len += (size_t)snprintf(line, sizeof(line), "%s\n", names[i]);
    const char *at = strstr(text, line);
    while (at && at != text && at[-1] != '\n') at = strstr(at + 1, line);
    CHECK_SAYS(at != NULL, "%s is missing in %s", names[i], text);
    there++;
  }
  CHECK_SAYS(strlen(text) == len, "%u spaces, not %s", there, text);
  remixdb_free(text);
}

// ---- after a cut: which moment is there

struct event {
  uint64_t time;
  int change;  // by how much the number of keys differs
};

static int event_order(const void *a, const void *b) {
  const struct event *const x = a, *const y = b;
  return x->time < y->time ? -1 : x->time > y->time;
}

// Whether the store's value (NULL: none) is that of the version.
static bool same_value(struct past *m, struct past_ver v, const uint8_t *val, uint32_t len) {
  return v.id == 0 || !val ? (v.id == 0) == !val : past_value_is(m, v, val, len);
}

struct events {
  struct event *at;
  size_t nr, cap;
  int differ;  // at the time `synced`
};

static void events_add(struct events *e, uint64_t time, int change) {
  if (e->nr == e->cap) {
    e->cap = e->cap ? 2 * e->cap : 256;
    CHECK((e->at = realloc(e->at, e->cap * sizeof(*e->at))) != NULL);
  }
  e->at[e->nr++] = (struct event){time, change};
}

// At which times after `synced` the key begins or ceases to be what the store has.
static void events_of_key(const struct world *w, struct past *m, uint32_t i, const uint8_t *val, uint32_t len,
                          struct events *e) {
  bool same = same_value(m, past_at(m, i, w->synced), val, len);
  e->differ += !same;
  for (uint32_t k = 0; k < m->keys[i].nr; k++) {
    const struct past_ver v = m->keys[i].vers[k];
    if (v.time <= w->synced) continue;
    const bool now = same_value(m, v, val, len);
    if (now != same) events_add(e, v.time, now ? -1 : 1);
    same = now;
  }
}

// Walks a space. Each of its keys is one of the model.
static void events_of(struct world *w, struct inc *n, struct events *e) {
  struct xdb_iter *const it = remixdb_iter_create(n->ref);
  uint32_t i = 0;
  CHECK(it);
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
    uint32_t klen, vlen;
    const uint8_t *const key = remixdb_iter_key(it, &klen), *const val = remixdb_iter_value(it, &vlen);
    CHECK(key && val);
    for (; i < n->m.nr && !kv_eq(kref(n->m.keys[i].ptr, n->m.keys[i].len), kref(key, klen)); i++)
      events_of_key(w, &n->m, i, NULL, 0, e);
    CHECK(i < n->m.nr);  // else it is out of order, there twice or never written
    events_of_key(w, &n->m, i++, val, vlen, e);
  }
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  for (; i < n->m.nr; i++) events_of_key(w, &n->m, i, NULL, 0, e);
  remixdb_iter_destroy(it);
}

// The last moment from `synced` on at which all keys are what they are in the store.
static uint64_t find_moment(struct world *w, struct events *e) {
  if (e->nr) qsort(e->at, e->nr, sizeof(*e->at), event_order);
  uint64_t found = e->differ == 0 ? w->synced : 0;
  for (size_t i = 0; i < e->nr;) {
    const uint64_t time = e->at[i].time;
    for (; i < e->nr && e->at[i].time == time; i++) e->differ += e->at[i].change;
    if (e->differ == 0) found = time;
  }
  CHECK_SAYS(found, "the spaces are of no moment from %llu to %llu", (unsigned long long)w->synced,
             (unsigned long long)w->time);
  return found;
}

static void forget_after(struct past *m, uint64_t time) {
  for (uint32_t i = 0; i < m->nr; i++) {
    struct past_key *const k = &m->keys[i];
    while (k->nr && k->vers[k->nr - 1].time > time) k->nr--;
    for (uint32_t v = 0; v < k->nr; v++) k->vers[v].version = 0;
  }
}

// A call that made or dropped a space failed: the space may be there or not.
static void settle_doubt(struct world *w) {
  const uint32_t name = w->in_doubt;
  w->in_doubt = NAMES;
  if (name == NAMES) return;
  struct xdb_space *const sp = remixdb_space_open(w->x, names[name], false);
  CHECK(sp || remixdb_errcode() == REMIXDB_NOTFOUND);
  const bool was = w->live[name] != INCS;
  if (sp && !was) {
    inc_make(w, name);
    w->incs[w->live[name]].sp = sp;
  } else {
    remixdb_space_close(sp);
    if (!sp && was) inc_end(w, &w->incs[w->live[name]]);
  }
}

static void recover(struct world *w) {
  struct events e = {0};
  world_open(w);
  settle_doubt(w);
  check_list(w);
  const uint64_t last = w->time;
  for (uint32_t i = 0; i < INCS; i++) {
    if (!w->incs[i].used) continue;
    inc_refs(w, &w->incs[i]);
    events_of(w, &w->incs[i], &e);
  }
  const uint64_t found = find_moment(w, &e);
  free(e.at);
  nr_lost += found < last;
  for (uint32_t i = 0; i < INCS; i++) {
    if (!w->incs[i].used) continue;
    forget_after(&w->incs[i].m, found);
    past_check_all(&w->incs[i].m, w->incs[i].ref, found);
  }
  w->synced = ++w->time;  // an opening makes durable what it has recovered
  CHECK(remixdb_verify(w->incs[w->live[0]].ref));
}

static void world_close(struct world *w) {
  let_go(w);
  remixdb_close(w->x);
  w->x = NULL;
}

// ---- writing. A write that fails in a danger may have taken place, and is the last one of its life.

// Returns whether the life goes on.
static bool ended(struct world *w, bool good) {
  if (good && w->each) w->synced = w->time;
  if (good) return true;
  const enum remixdb_status s = remixdb_errcode();
  CHECK_SAYS(w->danger && (s == REMIXDB_IO || s == REMIXDB_NOSPACE), "%s", remixdb_strerror(s));
  CHECK_SAYS(remixdb_errmsg()[0], "%s: %s", hang_step, remixdb_strerror(s));
  return false;
}

static bool do_put(struct world *w) {
  struct inc *const n = pick_inc(w);
  struct past *const m = at_now(w, n);
  const uint32_t i = pick_key(w, n), len = past_vlen(m, i), id = ++m->next_id;
  struct xdb_ref *const borrowed = n->name ? NULL : w->borrowed[below(&w->rng, BORROWED)], *const r = borrowed
                                                                                                          ? borrowed
                                                                                                          : n->ref;
  past_value(id, len, w->buf);
  const bool good = remixdb_put(r, m->keys[i].ptr, m->keys[i].len, w->buf, len);
  m->time++;
  past_set(m, i, id, len);
  took(w, n);
  return ended(w, good);
}

static bool do_del(struct world *w) {
  struct inc *const n = pick_inc(w);
  struct past *const m = at_now(w, n);
  const uint32_t i = pick_key(w, n);
  const bool good = remixdb_del(n->ref, m->keys[i].ptr, m->keys[i].len);
  m->time++;
  past_set(m, i, 0, 0);
  took(w, n);
  return ended(w, good);
}

// A range between two keys of the space, or with open ends. first, end: its keys.
static struct remixdb_range pick_range(struct world *w, const struct past *m, uint32_t *first, uint32_t *end) {
  const uint32_t a = (uint32_t)below(&w->rng, m->nr),
                 b = a + (uint32_t)below(&w->rng, 1 + m->nr / (chance(&w->rng, 80) ? 8 : 1));
  const bool from = chance(&w->rng, 85), to = b < m->nr;
  *first = from ? a : 0;
  *end = to ? b : m->nr;
  if (*end < *first) *end = *first;
  return (struct remixdb_range){{from ? m->keys[a].ptr : NULL, from ? m->keys[a].len : 0},
                                {to ? m->keys[b].ptr : NULL, to ? m->keys[b].len : 0}};
}

// Every key of the range goes, at the model's time.
static void range_gone(struct past *m, uint32_t first, uint32_t end) {
  for (uint32_t i = first; i < end; i++)
    if (m->keys[i].nr || m->unversioned)
      past_set(m, i, 0, 0);  // a transaction deletes what others put there later, too
}

static bool do_del_range(struct world *w) {
  struct inc *const n = pick_inc(w);
  struct past *const m = at_now(w, n);
  uint32_t first, end;
  const struct remixdb_range range = pick_range(w, m, &first, &end);
  const bool good = remixdb_del_range(n->ref, &range);
  m->time++;
  range_gone(m, first, end);
  took(w, n);
  return ended(w, good);
}

// The operations that batch_each must show.
struct listed {
  uint32_t nr, seen;
  struct listed_op {
    uint32_t name;  // NAMES: of the ref
    enum remixdb_batch_op op;
    struct remixdb_slice key;
    uint32_t id, len;
  } ops[200];
};

static bool see_item(void *priv, const struct remixdb_batch_item *item) {
  struct listed *const l = priv;
  CHECK(l->seen < l->nr && item->size == sizeof(*item));
  const struct listed_op *const op = &l->ops[l->seen++];
  CHECK(item->op == op->op && (item->space.ptr == NULL) == (op->name == NAMES));
  if (op->name < NAMES)
    CHECK(kv_eq(kref(item->space.ptr, item->space.len), kref(names[op->name], (uint32_t)strlen(names[op->name]))));
  if (op->op == REMIXDB_BATCH_DEL_RANGE) {
    CHECK(kv_eq(kref(item->range.from.ptr, item->range.from.len), kref(op->key.ptr, op->key.len)));
    return true;
  }
  CHECK(kv_eq(kref(item->key.ptr, item->key.len), kref(op->key.ptr, op->key.len)));
  if (op->op == REMIXDB_BATCH_DEL) return true;
  uint8_t want[300];
  past_value(op->id, op->len, want);
  CHECK(item->value.len == op->len && memcmp(item->value.ptr, want, op->len) == 0 && item->expires_ms == 0);
  return true;
}

// Adds one operation in the space n to the batch and to the model. The model's time is the batch's.
static void batch_op(struct world *w, struct xdb_batch *b, struct past *m, uint32_t name, struct listed *l) {
  const uint64_t dice = below(&w->rng, 100);
  struct listed_op *const op = &l->ops[l->nr];
  const uint32_t i = (uint32_t)below(&w->rng, m->nr);
  *op = (struct listed_op){.name = name, .key = {m->keys[i].ptr, m->keys[i].len}};
  if (dice < 4) {
    uint32_t first, end;
    const struct remixdb_range range = pick_range(w, m, &first, &end);
    const size_t was = remixdb_batch_count(b);
    CHECK(remixdb_batch_del_range(b, &range));
    range_gone(m, first, end);
    op->op = REMIXDB_BATCH_DEL_RANGE;
    op->key = range.from.ptr ? range.from : (struct remixdb_slice){"", 0};
    if (remixdb_batch_count(b) == was) return;  // an empty range adds nothing
  } else if (dice < 25) {
    op->op = REMIXDB_BATCH_DEL;
    CHECK(remixdb_batch_del(b, m->keys[i].ptr, m->keys[i].len));
    past_set(m, i, 0, 0);
  } else {
    op->op = REMIXDB_BATCH_PUT;
    op->id = ++m->next_id;
    op->len = past_vlen(m, i) % 300;
    past_value(op->id, op->len, w->buf);
    CHECK(remixdb_batch_put(b, m->keys[i].ptr, m->keys[i].len, w->buf, op->len));
    past_set(m, i, op->id, op->len);
  }
  l->nr++;
}

// A batch with operations in all spaces. Some are made in another batch, and appended.
static bool do_batch(struct world *w) {
  static struct listed l;
  struct xdb_batch *const other = remixdb_batch_create();
  struct inc *const of = pick_inc(w);
  struct inc *to = of;
  uint32_t name = NAMES;
  l.nr = l.seen = 0;
  CHECK(other);
  remixdb_batch_clear(w->batch);
  w->time++;
  for (uint64_t n = 1 + below(&w->rng, chance(&w->rng, 90) ? 20 : 190); n; n--) {
    const bool beside = chance(&w->rng, 20);
    if (!beside && chance(&w->rng, 25)) {
      to = pick_inc(w);
      name = to->name;
      remixdb_batch_space(w->batch, to->sp);
    }
    if (beside) {
      remixdb_batch_clear(other);
      if (name < NAMES) remixdb_batch_space(other, to->sp);
    }
    batch_op(w, beside ? other : w->batch, at_now(w, to), name, &l);
    took(w, to);
    if (beside) CHECK(remixdb_batch_append(w->batch, other));
  }
  remixdb_batch_destroy(other);
  CHECK(remixdb_batch_each(w->batch, see_item, &l) && l.seen == l.nr && remixdb_batch_count(w->batch) == l.nr);
  return ended(w, remixdb_write(of->ref, w->batch));
}

// ---- making and dropping

static bool do_make(struct world *w) {
  const uint32_t name = 1 + (uint32_t)below(&w->rng, NAMES - 1);
  uint32_t free_incs = 0;
  for (uint32_t i = 0; i < INCS; i++) free_incs += !w->incs[i].used;
  if (w->live[name] != INCS) {  // it is there: the same space once more
    struct xdb_space *const again = remixdb_space_open(w->x, names[name], chance(&w->rng, 50));
    CHECK(again && again->id == w->incs[w->live[name]].sp->id);
    remixdb_space_close(again);
    return true;
  }
  if (free_incs < 3) return true;
  CHECK(!remixdb_space_open(w->x, names[name], false) && remixdb_errcode() == REMIXDB_NOTFOUND);
  struct xdb_space *const sp = remixdb_space_open(w->x, names[name], true);
  if (!sp) {
    w->in_doubt = name;
    return ended(w, false);
  }
  nr_made++;
  inc_make(w, name);
  struct inc *const n = &w->incs[w->live[name]];
  n->sp = sp;
  if (!w->danger) check_list(w);
  inc_refs(w, n);
  return true;
}

#define GONE(call) CHECK(!(call) && remixdb_errcode() == REMIXDB_GONE)

static bool do_drop(struct world *w) {
  const uint32_t name = 1 + (uint32_t)below(&w->rng, NAMES - 1);
  if (w->live[name] == INCS) {
    CHECK(!remixdb_space_drop(w->x, names[name]));
    return remixdb_errcode() == REMIXDB_NOTFOUND || ended(w, false);
  }
  struct inc *const n = &w->incs[w->live[name]];
  if (!remixdb_space_drop(w->x, names[name])) {
    w->in_doubt = name;
    return ended(w, false);
  }
  nr_drops++;
  n->dropped = ++w->time;
  w->live[name] = INCS;
  GONE(remixdb_put(n->ref, "k", 1, "", 0));
  GONE(remixdb_probe(n->ref, "k", 1));
  GONE(remixdb_iter_create(n->ref));
  for (uint32_t c = 0; c < CURSORS; c++)  // one that stands on a key reads on
    if (n->cursors[c].it && !past_cursor_valid(&n->m, &n->cursors[c])) past_cursor_drop(&n->cursors[c]);
  if (!w->danger) check_list(w);
  sweep(w);
  return true;
}

// ---- reading

static void read_some(struct world *w, struct past *m, struct xdb_ref *ref, uint64_t time) {
  const uint64_t dice = below(&w->rng, 100);
  if (dice < 70) past_check_get(m, ref, (uint32_t)below(&w->rng, m->nr), time);
  else if (dice < 80) past_check_near(m, ref, time);
  else if (dice < 90) past_check_many(m, ref, time);
  else if (dice < 99) past_check_packed(m, ref, time);
  else past_check_all(m, ref, time);
}

static void cursor_step(struct world *w, struct past *m, struct past_cursor *c, struct xdb_ref *ref, uint64_t time) {
  const uint64_t dice = below(&w->rng, 1000);
  if (!c->it && chance(&w->rng, 50)) past_cursor_make(m, c, ref, time);
  if (!c->it || dice < 150 || !past_cursor_valid(m, c))
    past_cursor_seek(m, c, ref, time, (enum seek_kind)below(&w->rng, SEEK_KINDS));
  else if (dice < 450) past_cursor_skip(m, c, chance(&w->rng, 20) ? (uint32_t)below(&w->rng, 40) : 1);
  else if (dice < 750) past_cursor_prev(m, c);
  else if (dice < 850) past_cursor_pages(m, c);
  else if (dice < 970) past_cursor_check(m, c);
  else past_cursor_drop(c);
}

static bool do_read(struct world *w) {
  struct inc *const n = pick_inc(w);
  struct past *const m = at_now(w, n);
  struct xdb_ref *const borrowed = n->name ? NULL : w->borrowed[below(&w->rng, BORROWED)];
  read_some(w, m, borrowed ? borrowed : n->ref, w->time);
  return true;
}

static bool do_cursor(struct world *w) {
  struct inc *const n = pick_inc(w);
  cursor_step(w, at_now(w, n), &n->cursors[below(&w->rng, CURSORS)], n->ref, w->time);
  return true;
}

// Iterators of dropped spaces read on until they end.
static bool do_late_cursor(struct world *w) {
  for (uint32_t i = 0; i < INCS; i++) {
    struct inc *const n = &w->incs[i];
    if (!n->used || !n->dropped) continue;
    for (uint32_t c = 0; c < CURSORS; c++) {
      struct past_cursor *const k = &n->cursors[c];
      if (!k->it) continue;
      if (chance(&w->rng, 50)) past_cursor_skip(&n->m, k, 1);
      else past_cursor_prev(&n->m, k);
      if (!past_cursor_valid(&n->m, k) || chance(&w->rng, 5)) past_cursor_drop(k);
    }
  }
  sweep(w);
  return true;
}

static bool do_count(struct world *w) {
  struct inc *const n = pick_inc(w);
  struct past *const m = at_now(w, n);
  uint32_t first, end;
  uint64_t keys = 0, bytes = 0, want = 0;
  const struct remixdb_range range = pick_range(w, m, &first, &end);
  for (uint32_t i = first; i < end; i++) want += past_has(m, i, w->time);
  CHECK(remixdb_count(n->ref, &range, &keys, &bytes));
  const uint64_t off = keys > want ? keys - want : want - keys;
  CHECK_SAYS(off <= 4 + m->nr / 20, "%llu keys counted, %llu there", (unsigned long long)keys,
             (unsigned long long)want);
  CHECK(keys != 0 || bytes == 0);
  return true;
}

// Borrowed refs, with an iterator that stays over other calls.
static bool do_borrowed(struct world *w) {
  const uint32_t i = (uint32_t)below(&w->rng, BORROWED);
  struct past *const m = at_now(w, &w->incs[w->live[0]]);
  struct past_cursor *const c = &w->borrowed_cursors[i];
  if (!w->borrowed[i]) {
    CHECK((w->borrowed[i] = remixdb_ref_borrow(w->x)) != NULL);
    CHECK(remixdb_ref_errcode(w->borrowed[i]) == REMIXDB_OK && remixdb_ref_errmsg(w->borrowed[i])[0] == '\0');
  }
  if (chance(&w->rng, 80)) {
    cursor_step(w, m, c, w->borrowed[i], w->time);
    return true;
  }
  past_cursor_drop(c);
  remixdb_ref_return(w->borrowed[i]);
  w->borrowed[i] = NULL;
  return true;
}

// A pin holds its bytes whatever becomes of key and space.
static bool do_pin(struct world *w) {
  struct pin *const p = &w->pins[below(&w->rng, PINS)];
  struct inc *const n = pick_inc(w);
  const uint32_t i = pick_key(w, n);
  const struct past_ver v = past_at(&n->m, i, w->time);
  if (p->p) {
    if (chance(&w->rng, 20)) pin_drop(p);
    return true;
  }
  *p = (struct pin){.v = v};
  p->p = remixdb_get_pinned(n->ref, n->m.keys[i].ptr, n->m.keys[i].len, &p->bytes, &p->len);
  CHECK((p->p != NULL) == (v.id != 0) && (p->p || remixdb_errcode() == REMIXDB_NOTFOUND));
  return true;
}

// A snapshot holds all spaces, also those that go. A space that is made later is empty in it.
static bool do_shot(struct world *w) {
  struct shot *const t = &w->shots[below(&w->rng, SHOTS)];
  if (!t->s) {
    if (chance(&w->rng, 70)) return true;
    CHECK((t->s = remixdb_snapshot(pick_inc(w)->ref)) != NULL);
    t->time = w->time;
    return true;
  }
  uint32_t i;
  do i = (uint32_t)below(&w->rng, INCS);
  while (!w->incs[i].used);
  struct inc *const n = &w->incs[i];
  if (n->dropped && n->dropped <= t->time) return true;  // its model may go
  if (!t->refs[i]) CHECK((t->refs[i] = remixdb_snapshot_space_ref(t->s, n->sp)) != NULL);
  if (!t->cursor.it) t->cursor_of = i;
  const uint64_t dice = below(&w->rng, 100);
  if (dice < 60) read_some(w, &n->m, t->refs[i], t->time);
  else if (dice < 90 && t->cursor_of == i) cursor_step(w, &n->m, &t->cursor, t->refs[i], t->time);
  else if (dice == 95) CHECK(!remixdb_del(t->refs[i], "", 0) && remixdb_errcode() == REMIXDB_READONLY);
  if (dice < 97) return true;
  for (uint32_t k = 0; k < INCS && chance(&w->rng, 50); k++)
    if (t->refs[k] && w->incs[k].used) past_check_all(&w->incs[k].m, t->refs[k], t->time);
  shot_drop(t);
  sweep(w);
  return true;
}

static bool do_option(struct world *w) {
  static const char *const options[][2] = {{"cache_mb", "1"},        {"cache_mb", "3"},
                                           {"sync", "each"},         {"sync", "none"},
                                           {"compression", "none"},  {"compression", "zstd:1"},
                                           {"max_open_files", "16"}, {"max_open_files", "100"},
                                           {"workers", "0"},         {"memory_mb", "1"},
                                           {"memory_mb", "4"}};
  const uint32_t i = (uint32_t)below(&w->rng, sizeof(options) / sizeof(options[0]));
  const bool good = remixdb_set_option(w->x, options[i][0], options[i][1]);
  const bool may = i == 8 || (i < 2 && w->opts.cache_mb == 0);  // a store without workers, or cache, keeps none
  CHECK(good || (may && remixdb_errcode() == REMIXDB_INVALID));
  if (i == 2 || i == 3) w->each = i == 2;
  return true;
}

static bool do_maintenance(struct world *w) {
  struct inc *const n = pick_inc(w);
  const uint64_t time = w->time, dice = below(&w->rng, w->danger ? 4 : 7);
  uint32_t first, end;
  const struct remixdb_range range = pick_range(w, &n->m, &first, &end);
  const bool good = dice == 0   ? remixdb_compact(n->ref)
                    : dice == 1 ? remixdb_flush(n->ref)
                    : dice < 4  ? remixdb_sync(n->ref)
                    : dice == 4 ? remixdb_verify(n->ref)
                                : remixdb_compact_range(n->ref, &range);
  if (good && dice < 4) w->synced = time;
  return ended(w, good);
}

// ---- transactions across spaces

static struct shown *shown_of(struct world *w, struct txn *t, uint32_t i) {
  struct shown *const v = &t->shown[i];
  const struct past *const m = &w->incs[i].m;
  if (v->used) return v;
  *v = (struct shown){.used = true, .m = *m};
  v->m.time = 1;
  v->m.unversioned = true;
  v->m.rng = rng_next(&w->rng);
  CHECK((v->m.keys = calloc(m->nr, sizeof(*m->keys))) && (v->wrote = calloc(m->nr, sizeof(bool))));
  CHECK((v->m.buf = malloc(REMIXDB_KV_MAX + 1)) && (v->m.want = malloc(REMIXDB_KV_MAX + 1)));
  for (uint32_t k = 0; k < m->nr; k++) {
    v->m.keys[k] = (struct past_key){.ptr = m->keys[k].ptr, .len = m->keys[k].len};
    const struct past_ver is = past_at(m, k, t->began);
    if (is.id) past_set(&v->m, k, is.id, is.len);
  }
  return v;
}

// Whether the transaction's set of reads has the key of the space.
static bool has_read(const struct txn *t, const struct inc *n, uint32_t k) {
  uint8_t key[NAMES_ID + REMIXDB_KV_MAX];
  const struct readset *const set = &t->t->reads[n->name ? TREE_SPACES : TREE_UNNAMED];
  uint32_t len = 0;
  if (n->name) {
    names_id_put(key, n->sp->id);
    len = NAMES_ID;
  }
  memcpy(key + len, n->m.keys[k].ptr, n->m.keys[k].len);
  len += n->m.keys[k].len;
  for (size_t i = 0; i < set->nr; i++)
    if (kv_cmp(set->ranges[i].from, kref(key, len)) <= 0 && !read_range_ends_before(&set->ranges[i], kref(key, len)))
      return true;
  return false;
}

// How what the transaction has read has changed since its beginning: not at all; it has, and is again what it was; or
// it differs.
enum changed { CHANGED_NOT, CHANGED_BACK, CHANGED };
static enum changed txn_changed(const struct world *w, const struct txn *t) {
  enum changed how = CHANGED_NOT;
  for (uint32_t i = 0; i < INCS; i++) {
    const struct inc *const n = &w->incs[i];
    if (!n->used || !t->shown[i].used) continue;
    for (uint32_t k = 0; k < n->m.nr; k++) {
      const struct past_ver was = past_at(&n->m, k, t->began), is = past_at(&n->m, k, w->time);
      if (!n->m.keys[k].nr || is.time <= t->began || !has_read(t, n, k)) continue;
      if (was.id != is.id) return CHANGED;
      how = CHANGED_BACK;
    }
  }
  return how;
}

// Whether the transaction's set of reads has some key of the space.
static bool has_read_of(const struct txn *t, const struct inc *n) {
  const struct readset *const set = &t->t->reads[TREE_SPACES];
  uint8_t key[NAMES_ID];
  names_id_put(key, n->sp->id);
  const struct kref first = kref(key, NAMES_ID);
  for (size_t i = 0; i < set->nr; i++) {
    const struct read_range *const r = &set->ranges[i];
    if ((r->from.len >= NAMES_ID && memcmp(r->from.ptr, key, NAMES_ID) == 0) ||
        (kv_cmp(r->from, first) < 0 && !read_range_ends_before(r, first)))
      return true;
  }
  return false;
}

// Whether the transaction has used a space that is dropped: written to it, or read it with notes.
static void txn_gone(const struct world *w, const struct txn *t, bool *wrote, bool *wrote_gone, bool *read_gone) {
  for (uint32_t i = 0; i < INCS; i++) {
    const struct shown *const v = &t->shown[i];
    if (!v->used) continue;
    const struct inc *const n = &w->incs[i];
    *read_gone |= n->dropped && has_read_of(t, n);
    for (uint32_t k = 0; k < v->m.nr; k++) {
      *wrote |= v->wrote[k];
      *wrote_gone |= n->dropped && v->wrote[k];
    }
  }
}

// The same for ranges that it has deleted, which may have no key of the model.
static void txn_wrote_ranges(const struct world *w, const struct txn *t, bool *wrote, bool *wrote_gone) {
  for (uint32_t r = 0; r < t->t->nr_blind; r++) {
    const struct txn_blind *const b = &t->t->blind[r];
    *wrote = true;
    for (uint32_t i = 0; i < INCS && b->tree == TREE_SPACES; i++)
      *wrote_gone |= w->incs[i].used && w->incs[i].dropped && t->shown[i].used &&
                     w->incs[i].sp->id == names_id_get(b->from.ptr);
  }
}

static bool txn_commit(struct world *w, struct txn *t) {
  bool wrote = false, wrote_gone = false, read_gone = false;
  txn_cursors_drop(t);
  const enum changed how = txn_changed(w, t);
  txn_gone(w, t, &wrote, &wrote_gone, &read_gone);
  txn_wrote_ranges(w, t, &wrote, &wrote_gone);
  const bool done = remixdb_txn_commit(t->t), conflict = !done && remixdb_errcode() == REMIXDB_ABORTED,
             goes_on = conflict || ended(w, done);
  if (wrote && (how == CHANGED || wrote_gone || read_gone)) CHECK(!done);
  else if (!wrote || how == CHANGED_NOT) CHECK(!conflict);
  nr_commits += done;
  nr_conflicts += conflict;
  w->time += !conflict && wrote;
  for (uint32_t i = 0; i < INCS && !conflict && wrote; i++) {
    const struct shown *const v = &t->shown[i];
    if (!v->used || w->incs[i].dropped) continue;
    struct past *const m = at_now(w, &w->incs[i]);
    for (uint32_t k = 0; k < m->nr; k++) {
      const struct past_ver is = past_at(&v->m, k, v->m.time);
      if (v->wrote[k]) past_set(m, k, is.id, is.len);
    }
  }
  txn_forget(w, t);
  if (done && w->each) w->synced = w->time;
  return goes_on;
}

static void txn_savepoint(struct txn *t) {
  if (t->nr_saved == sizeof(t->saved) / sizeof(t->saved[0])) return;
  struct saved *const s = &t->saved[t->nr_saved++];
  *s = (struct saved){0};
  CHECK(remixdb_txn_savepoint(t->t));
  for (uint32_t i = 0; i < INCS; i++) {
    const struct shown *const v = &t->shown[i];
    if (!v->used) continue;
    s->times[i] = v->m.time;
    CHECK((s->wrote[i] = malloc(v->m.nr * sizeof(bool))) != NULL);
    memcpy(s->wrote[i], v->wrote, v->m.nr * sizeof(bool));
  }
}

static void txn_rollback(struct txn *t) {
  CHECK(remixdb_txn_rollback(t->t) == (t->nr_saved != 0));
  if (!t->nr_saved) return;
  struct saved *const s = &t->saved[--t->nr_saved];
  txn_cursors_drop(t);
  for (uint32_t i = 0; i < INCS; i++) {
    struct shown *const v = &t->shown[i];
    if (!v->used) continue;
    const uint64_t time = s->wrote[i] ? s->times[i] : 1;  // 1: as it began
    v->m.time++;
    for (uint32_t k = 0; k < v->m.nr; k++) {
      const struct past_ver was = past_at(&v->m, k, time);
      if (past_at(&v->m, k, v->m.time).time > time) past_set(&v->m, k, was.id, was.len);
    }
    if (s->wrote[i]) memcpy(v->wrote, s->wrote[i], v->m.nr * sizeof(bool));
    else memset(v->wrote, 0, v->m.nr * sizeof(bool));
    free(s->wrote[i]);
  }
}

// A batch in the transaction: puts, deletes and ranges, at once in its own space.
static void txn_batch(struct world *w, struct shown *v, struct xdb_ref *ref) {
  static struct listed l;
  struct past *const m = &v->m;
  l.nr = 0;
  remixdb_batch_clear(w->batch);
  m->time++;
  for (uint64_t n = 1 + below(&w->rng, 8); n; n--) {
    const uint64_t now = m->time;
    uint32_t first, end;
    if (chance(&w->rng, 80)) {
      batch_op(w, w->batch, m, NAMES, &l);
    } else {
      const struct remixdb_range range = pick_range(w, m, &first, &end);
      CHECK(remixdb_batch_del_range(w->batch, &range));
      for (uint32_t k = first; k < end; k++) v->wrote[k] = true;
      range_gone(m, first, end);
    }
    CHECK(m->time == now);
  }
  for (uint32_t k = 0; k < m->nr; k++) v->wrote[k] |= past_at(m, k, m->time).time == m->time;
  CHECK(remixdb_write(ref, w->batch));
}

static void txn_del_range(struct world *w, struct shown *v, struct xdb_ref *ref) {
  uint32_t first, end;
  const struct remixdb_range range = pick_range(w, &v->m, &first, &end);
  CHECK(remixdb_del_range(ref, &range));
  v->m.time++;
  range_gone(&v->m, first, end);
  for (uint32_t k = first; k < end; k++) v->wrote[k] = true;
}

static void txn_write(struct world *w, struct shown *v, struct xdb_ref *ref) {
  const uint32_t k = (uint32_t)below(&w->rng, v->m.nr);
  const uint64_t dice = below(&w->rng, 100);
  v->m.next_id = w->txn_id;
  if (dice < 5) txn_batch(w, v, ref);
  else if (dice < 10) txn_del_range(w, v, ref);
  else if (dice < 35) CHECK(past_del(&v->m, ref, k));
  else CHECK(past_put(&v->m, ref, k));
  if (dice >= 10) v->wrote[k] = true;
  w->txn_id = v->m.next_id;
}

static bool do_txn(struct world *w) {
  struct txn *const t = &w->txns[below(&w->rng, TXNS)];
  if (!t->t) {
    if (chance(&w->rng, 60)) return true;
    *t = (struct txn){.t = remixdb_txn_begin(w->x), .began = w->time};
    CHECK(t->t);
    return true;
  }
  uint32_t i;
  do i = (uint32_t)below(&w->rng, INCS);
  while (!w->incs[i].used);
  struct inc *const n = &w->incs[i];
  if (n->dropped && (n->dropped <= t->began || !t->shown[i].used)) return true;
  struct shown *const v = shown_of(w, t, i);
  struct xdb_ref *const ref = (chance(&w->rng, 70) ? remixdb_txn_untracked : remixdb_txn_ref)(t->t, n->sp);
  if (n->dropped && !ref) {
    CHECK(remixdb_errcode() == REMIXDB_GONE);
    return true;
  }
  CHECK(ref);
  const uint64_t dice = below(&w->rng, 1000);
  if (dice < 300) txn_write(w, v, ref);
  else if (dice < 600) read_some(w, &v->m, ref, v->m.time);
  else if (dice < 800) cursor_step(w, &v->m, &v->cursor, ref, v->m.time);
  else if (dice < 830) txn_savepoint(t);
  else if (dice < 850) txn_rollback(t);
  else if (dice < 940) return txn_commit(w, t);
  else if (dice < 970) txn_abort(w, t);
  return true;
}

// A transaction that only writes, in several spaces: it may run in a danger, where reads may fail.
static bool do_blind_txn(struct world *w) {
  struct txn *const t = &w->txns[0];
  if (t->t) txn_abort(w, t);
  *t = (struct txn){.t = remixdb_txn_begin(w->x), .began = w->time};
  CHECK(t->t);
  for (uint64_t n = 1 + below(&w->rng, 12); n; n--) {
    const uint32_t i = (uint32_t)(pick_inc(w) - w->incs);
    struct shown *const v = shown_of(w, t, i);
    const uint32_t k = (uint32_t)below(&w->rng, v->m.nr);
    struct xdb_ref *const ref = remixdb_txn_ref(t->t, w->incs[i].sp);
    CHECK(ref);
    v->m.next_id = w->txn_id;
    CHECK(chance(&w->rng, 30) ? past_del(&v->m, ref, k) : past_put(&v->m, ref, k));
    v->wrote[k] = true;
    w->txn_id = v->m.next_id;
  }
  return txn_commit(w, t);
}

// ---- lives

static bool check_all(struct world *w) {
  for (uint32_t i = 0; i < NAMES; i++) {
    if (w->live[i] == INCS) continue;
    struct inc *const n = &w->incs[w->live[i]];
    past_check_all(&n->m, n->ref, w->time);
  }
  return true;
}

static void reopen_refs(struct world *w) {
  for (uint32_t i = 0; i < INCS; i++)
    if (w->incs[i].used) inc_refs(w, &w->incs[i]);
}

static bool do_reopen(struct world *w) {
  const bool crash = chance(&w->rng, 50);  // the log stays, and the next opening replays it
  w->x->leave_log = crash;
  world_close(w);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  w->synced = w->time;
  world_open(w);
  check_list(w);
  reopen_refs(w);
  return check_all(w);
}

struct step {
  bool (*fn)(struct world *w);
  const char *name;
  uint32_t weight, in_danger;
};
static const struct step steps[] = {
    {do_put, "put", 2500, 600},
    {do_del, "delete", 500, 100},
    {do_del_range, "del_range", 25, 15},
    {do_batch, "batch", 200, 60},
    {do_blind_txn, "writing transaction", 30, 60},
    {do_make, "make", 16, 30},
    {do_drop, "drop", 8, 20},
    {do_maintenance, "maintenance", 20, 25},
    {do_read, "read", 1500, 0},
    {do_cursor, "iterator", 1500, 0},
    {do_late_cursor, "late iterator", 300, 0},
    {do_count, "count", 20, 0},
    {do_borrowed, "borrowed ref", 300, 0},
    {do_pin, "pin", 300, 0},
    {do_shot, "snapshot", 900, 0},
    {do_option, "option", 20, 0},
    {do_txn, "transaction", 2500, 0},
    {do_reopen, "reopen", 2, 0},
    {check_all, "check", 2, 0},
};
#define NR_STEPS (sizeof(steps) / sizeof(steps[0]))

// False: a call failed, as it may in a danger.
static bool step(struct world *w) {
  uint32_t total = 0, i = 0;
  for (uint32_t k = 0; k < NR_STEPS; k++) total += w->danger ? steps[k].in_danger : steps[k].weight;
  uint64_t dice = below(&w->rng, total);
  for (;; i++) {
    const uint32_t weight = w->danger ? steps[i].in_danger : steps[i].weight;
    if (dice < weight) break;
    dice -= weight;
  }
  hang_step = steps[i].name;
  nr_steps++;
  return steps[i].fn(w);
}

// The power goes, or calls of the disk fail, or the process dies: and the store is opened again.
static void danger(struct world *w) {
  static const enum simdisk_call calls[] = {SIMDISK_WRITE, SIMDISK_SYNC, SIMDISK_OPEN, SIMDISK_RENAME};
  const bool power = chance(&w->rng, 60);
  const enum simdisk_call call = calls[below(&w->rng, 4)];
  let_go(w);
  reopen_refs(w);
  w->danger = true;
  if (power) simdisk_power_off(w->disk, below(&w->rng, 1ull << below(&w->rng, 9)));
  else simdisk_fault(w->disk, call, below(&w->rng, 30), UINT64_MAX, chance(&w->rng, 50) ? EIO : ENOSPC);
  uint32_t left = 300;
  while (left && step(w)) left--;
  if (left == 0 && power) simdisk_power_off(w->disk, 0);
  nr_torn += left != 0;
  nr_cuts++;
  world_close(w);
  w->danger = false;
  simdisk_fault(w->disk, call, 0, 0, EIO);
  if (power && chance(&w->rng, 70)) {
    struct simdisk *const after = simdisk_crash(w->disk, rng_next(&w->rng));
    simdisk_destroy(w->disk);
    w->disk = after;
    w->env = simdisk_env(after);
    simdisk_no_allocate(after, true);
  } else if (power) {
    simdisk_power_on(w->disk);
  }
  recover(w);
}

static void run_world(uint64_t seed, uint32_t nr, bool dangers) {
  check_seed = seed;
  struct world *const w = calloc(1, sizeof(*w));
  CHECK(w && (w->buf = malloc(PAST_VLEN_MAX + 1)) && (w->batch = remixdb_batch_create()));
  w->rng = seed;
  w->keys = (enum key_kind)below(&w->rng, KEY_KINDS);
  w->txn_id = TXN_IDS;
  w->in_doubt = NAMES;
  w->time = 1;
  w->disk = simdisk_create();
  w->env = simdisk_env(w->disk);
  simdisk_no_allocate(w->disk, chance(&w->rng, 80));
  for (uint32_t i = 0; i < NAMES; i++) w->live[i] = INCS;
  world_open(w);
  inc_make(w, 0);
  inc_refs(w, &w->incs[w->live[0]]);
  w->synced = w->time;
  for (uint32_t n = 0; n < nr; n++) {
    CHECK(step(w));
    if (dangers && chance(&w->rng, 1) && chance(&w->rng, 30)) danger(w);
  }
  check_all(w);
  CHECK(remixdb_verify(w->incs[w->live[0]].ref) && remixdb_compact(w->incs[w->live[0]].ref));
  check_all(w);
  (void)do_reopen(w);
  world_close(w);
  CHECK(remixdb_errcode() == REMIXDB_OK && simdisk_open_files(w->disk) == 0);
  for (uint32_t i = 0; i < INCS; i++)
    if (w->incs[i].used) inc_end(w, &w->incs[i]);
  remixdb_batch_destroy(w->batch);
  simdisk_destroy(w->disk);
  free(w->buf);
  free(w);
}

static void report(void) {
  print_message("%llu operations, %llu spaces made and %llu dropped, %llu transactions committed and %llu not, "
                "%llu dangers of which %llu hit a call and %llu cost a write\n",
                (unsigned long long)nr_steps, (unsigned long long)nr_made, (unsigned long long)nr_drops,
                (unsigned long long)nr_commits, (unsigned long long)nr_conflicts, (unsigned long long)nr_cuts,
                (unsigned long long)nr_torn, (unsigned long long)nr_lost);
}

static void test_spaces(void **state) {
  (void)state;
  const char *const given = getenv("TEST_SEED"), *const soak = getenv("SOAK_SECONDS");
  if (soak && *soak) {
    const uint64_t until = time_ns() + strtoull(soak, NULL, 10) * 1000000000ull;
    for (uint64_t s = check_seed_or(time_ns() / 1000); time_ns() < until; s++) {
      (void)alarm(600);
      run_world(s, 8000, s % 4 != 0);
    }
    report();
    return;
  }
  for (uint64_t s = check_seed_or(1), n = 0; n < (given ? 1 : SLOW == 1 ? 40 : 4); s++, n++)
    run_world(s, 8000, s % 4 != 0);
  report();
  if (given || SLOW > 1) return;
  CHECK(nr_drops > 200 && nr_commits > 2000 && nr_conflicts > 200 && nr_torn > 100 && nr_lost > 50);
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_spaces)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
