// SPDX-License-Identifier: Apache-2.0
//
// Every call there is, at random, in one thread, against a model: keys of several kinds, values up to the largest,
// snapshots and iterators that are held for long, the store closed and opened with other options, checkpoints opened
// beside it. With workers = 0 all of a run follows from its seed.
//
// TEST_SEED in the environment repeats the run of a failure. SOAK_SECONDS goes on with new seeds that long; MODEL_OPS
// until so many operations are done.

#include "tests/lib/check.h"
#include "admin/checkpoint.h"
#include "admin/destroy.h"
#include "tests/lib/expect.h"
#include "tests/lib/past.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/starve.h"
#include "store/ranges.h"
#include "store/txn_state.h"

#define SHOTS 6u
#define CURSORS 4u
#define COPY_DIR_LEN 560

struct shot {
  uint64_t wall;  // the clock of its making
  struct xdb_snapshot *s;
  struct xdb_ref *ref;
  struct past_cursor c;
  uint64_t time;
};

// A transaction with the model that it shows: the store's at its beginning, and its own writes.
#define TXNS 2u
#define TXN_IDS 0x40000000u  // ids of its values, from here on

struct txn {
  struct xdb_txn *t;  // NULL: none
  uint64_t began;     // the store's time then
  struct past view;
  struct past_cursor cursors[2];
  bool *wrote;        // by key
  uint32_t nr_saved;  // savepoints
  struct saved {
    uint64_t time;
    bool *wrote;
  } saved[4];
};

struct run {
  struct past m;
  struct simdisk *disk;  // NULL: real files
  struct env *env;
  struct remixdb_opts opts;
  size_t memtable;  // bytes, in this opening
  struct xdb *x;
  struct xdb_ref *ref;
  struct xdb_batch *batch;
  struct shot shots[SHOTS];
  struct past_cursor cursors[CURSORS];
  struct past_gets gets;
  struct txn txns[TXNS];
  uint32_t txn_id;               // the last id of a transaction's value
  uint32_t place;                // where most writes go
  uint32_t reports, give_up_at;  // reports of a long call, and at which of them it is given up; 0: at none
};

// The clocks of the store.
static uint64_t wall = 1700000000000, steady;
static uint64_t wall_ms(void *arg) { return (void)arg, wall; }
static uint64_t steady_ms(void *arg) { return (void)arg, steady; }
static const struct env_clock test_clock = {wall_ms, steady_ms, NULL};

static uint64_t nr_ops, nr_opened, kinds[COMPACT_KINDS], young, joined, collections;

// ---- opening and closing

static void choose_opts(struct run *r) {
  static const size_t caches[] = {0, 1, 8};
  static const char *const engines[] = {"auto", "sync", "aio", "uring"};
  uint64_t *const rng = &r->m.rng;
  struct remixdb_opts *const o = &r->opts;
  *o = small_opts(0);
  o->tags = chance(rng, 50);
  o->ckeys = chance(rng, 50);
  o->cache_mb = caches[below(rng, 3)];
  if (chance(rng, 25)) {
    o->cache_mb = REMIXDB_AUTO;
    o->memory_mb = 1 + below(rng, 4);
  }
  o->compression = chance(rng, 30) ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  o->compression_level = 1;
  o->max_open_files = chance(rng, 30) ? 16 : 0;
  o->io = engines[below(rng, 4)];
  o->direct_io = chance(rng, 20);
  o->sync = chance(rng, 10) ? REMIXDB_SYNC_EACH : REMIXDB_SYNC_NONE;
  r->memtable = (size_t)(80 + below(rng, chance(rng, 50) ? 100 : 900)) << 10;
}

static bool hear(void *priv, const char *what, uint64_t done, uint64_t total) {
  struct run *const r = priv;
  if (total && done > total) fail_msg("%s: %llu of %llu", what, (unsigned long long)done, (unsigned long long)total);
  return ++r->reports != r->give_up_at;
}

static void run_open(struct run *r) {
  choose_opts(r);
  expect_reads(rng_next(&r->m.rng));
  atomic_store(&version_eager, chance(&r->m.rng, 50) ? 0 : VERSION_EAGER);
  r->env->clock = &test_clock;
  OK(xdb_open(dir, &r->opts, r->env, &r->x));
  shrink(r->x, r->memtable, 4 + (uint32_t)below(&r->m.rng, chance(&r->m.rng, 50) ? 20 : 300));
  if (chance(&r->m.rng, 50)) expect_small_memory(r->x);
  static const uint64_t full[] = {VALUE_FILE, 2u << 20, 300u << 10};
  r->x->values.full = r->x->compact.values.full = full[below(&r->m.rng, 3)];
  static const uint8_t from[] = {0, 1, 2, 8, COMPACT_YOUNG_FROM};
  r->x->compact.young_from = from[below(&r->m.rng, sizeof(from))];
  static const uint32_t garbage[] = {0, 1, 50000, COMPACT_GARBAGE};
  r->x->compact.garbage_from = garbage[below(&r->m.rng, 4)];
  r->x->compact.cut_from = 0;
  r->x->compact.join = (uint32_t)below(&r->m.rng, 1 + COMPACT_JOIN);
  r->x->garbage_merges.rest_ns = 1000000 << below(&r->m.rng, 8);
  static const uint64_t few[] = {0, 3, 50, RANGES_FEW};
  r->x->ranges.few = few[below(&r->m.rng, 4)];
  r->x->ranges.cut_few = few[below(&r->m.rng, 4)];
  r->x->ranges.most = 8 * r->x->ranges.few;
  r->ref = remixdb_ref(r->x);
  CHECK(r->ref);
  remixdb_progress(r->ref, hear, r);
  nr_opened++;
}

static void shot_drop(struct shot *t) {
  past_cursor_drop(&t->c);
  remixdb_unref(t->ref);
  remixdb_snapshot_release(t->s);
  *t = (struct shot){0};
}

static void txn_drop(struct run *r, struct txn *t);

static void run_close(struct run *r) {
  for (uint32_t i = 0; i < TXNS; i++) {
    if (!r->txns[i].t) continue;
    for (uint32_t c = 0; c < 2; c++) past_cursor_drop(&r->txns[i].cursors[c]);
    remixdb_txn_abort(r->txns[i].t);
    txn_drop(r, &r->txns[i]);
  }
  for (uint32_t i = 0; i < SHOTS; i++)
    if (r->shots[i].s) shot_drop(&r->shots[i]);
  for (uint32_t i = 0; i < CURSORS; i++) past_cursor_drop(&r->cursors[i]);
  past_gets_drop(&r->gets);
  for (uint32_t k = 0; k < COMPACT_KINDS; k++) kinds[k] += atomic_load(&r->x->compact.stats.kinds[k]);
  young += atomic_load(&r->x->compact.stats.young);
  joined += atomic_load(&r->x->compact.stats.joined);
  collections += atomic_load(&r->x->collect.nr);
  remixdb_unref(r->ref);
  remixdb_close(r->x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  r->x = NULL;
}

// ---- writing

static uint32_t pick_key(struct run *r) {
  struct past *const m = &r->m;
  if (chance(&m->rng, 1)) r->place = (uint32_t)below(&m->rng, m->nr);
  if (chance(&m->rng, 60)) return (r->place + (uint32_t)below(&m->rng, 1 + m->nr / 8)) % m->nr;
  return (uint32_t)below(&m->rng, m->nr);
}

static void do_compare(struct run *r) { past_compare(&r->m, r->ref, pick_key(r)); }

// Time goes by; now and then so much that compaction may remove what has expired.
static void do_clock(struct run *r) {
  wall += 1 + below(&r->m.rng, 300);
  steady += below(&r->m.rng, chance(&r->m.rng, 30) ? 2 * REMIXDB_EXPIRY_SETTLES_MS : 100);
  past_clock(&r->m, wall);
}

static void do_put(struct run *r) { CHECK(past_put(&r->m, r->ref, pick_key(r))); }
static void do_del(struct run *r) { CHECK(past_del(&r->m, r->ref, pick_key(r))); }

// A range of keys, or of bounds beside them. first, end: the model's keys in it. Both bounds lie in memory of
// *bytes_out, which the caller frees.
static struct remixdb_range pick_range(struct run *r, uint32_t *first, uint32_t *end, uint8_t **bytes_out) {
  struct past *const m = &r->m;
  uint8_t *const bytes = *bytes_out = malloc(2 * (REMIXDB_KV_MAX + 1));
  struct remixdb_slice bounds[2];
  uint32_t at[2] = {pick_key(r), 0};
  at[1] = (uint32_t)(at[0] + below(&m->rng, 1 + m->nr / (chance(&m->rng, 90) ? 32 : chance(&m->rng, 95) ? 4 : 1)));
  if (chance(&m->rng, 10)) at[1] = at[0] - at[0] % 7;  // not after the beginning
  if (at[1] >= m->nr) at[1] = m->nr - 1;
  for (uint32_t i = 0; i < 2; i++) {
    const struct past_key *const k = &m->keys[at[i]];
    uint8_t *const p = bytes + i * (REMIXDB_KV_MAX + 1);
    uint32_t len = k->len;
    memcpy(p, k->ptr, len);
    if (chance(&m->rng, 30)) p[len++] = 0;
    else if (len && chance(&m->rng, 20)) len--;
    bounds[i] = (struct remixdb_slice){p, len};
    at[i] = past_rank(m, p, len);
    if (!chance(&m->rng, i ? 4 : 8)) continue;
    bounds[i] = (struct remixdb_slice){NULL, 0};
    at[i] = i ? m->nr : 0;
  }
  *first = at[0];
  *end = at[1] > at[0] ? at[1] : at[0];
  return (struct remixdb_range){bounds[0], bounds[1]};
}

static void do_del_range(struct run *r) {
  uint32_t first, end;
  uint8_t *bytes;
  struct past *const m = &r->m;
  const struct remixdb_range range = pick_range(r, &first, &end, &bytes);
  CHECK(remixdb_del_range(r->ref, &range));
  free(bytes);
  m->time++;
  for (uint32_t i = first; i < end; i++)
    if (m->keys[i].nr) past_set(m, i, 0, 0);
}

// Invalid calls are refused and change nothing.
static void do_refused(struct run *r) {
  struct past *const m = &r->m;
  const uint32_t klen = REMIXDB_KV_MAX + 1 + (uint32_t)below(&m->rng, 100), vlen = (uint32_t)below(&m->rng, 100);
  memset(m->buf, 0, klen);
  CHECK(!remixdb_put(r->ref, m->buf, klen, m->buf, vlen) && remixdb_errcode() == REMIXDB_TOOBIG);
  remixdb_batch_clear(r->batch);
  CHECK(!remixdb_batch_put(r->batch, m->buf, klen, m->buf, vlen) && remixdb_errcode() == REMIXDB_TOOBIG);
}

// Operations in the form of remixdb_batch_load.
struct load {
  uint32_t nr, klens[400], vlens[400];
  uint8_t ops[400];
  size_t len;
  uint8_t *bytes;
};

static void load_add(struct load *l, const struct past_key *k, const void *val, uint32_t vlen,
                     enum remixdb_batch_op op) {
  CHECK((l->bytes = realloc(l->bytes, l->len + k->len + vlen + 1)) != NULL);
  memcpy(l->bytes + l->len, k->ptr, k->len);
  if (vlen) memcpy(l->bytes + l->len + k->len, val, vlen);
  l->len += k->len + vlen;
  l->ops[l->nr] = (uint8_t)op;
  l->klens[l->nr] = k->len;
  l->vlens[l->nr++] = vlen;
}

static bool add(struct run *r, struct load *l, const struct past_key *k, uint32_t vlen, enum remixdb_batch_op op) {
  if (l) {
    load_add(l, k, r->m.buf, vlen, op);
    return true;
  }
  return op == REMIXDB_BATCH_DEL ? remixdb_batch_del(r->batch, k->ptr, k->len)
                                 : remixdb_batch_put(r->batch, k->ptr, k->len, r->m.buf, vlen);
}

// Loads the gathered records, the first of them by hand. A refused load changes nothing.
static void load_all(struct run *r, struct load *l) {
  struct past *const m = &r->m;
  const uint32_t one = l->nr > 0 && l->ops[0] == REMIXDB_BATCH_PUT && chance(&m->rng, 50);
  if (one) CHECK(remixdb_batch_put(r->batch, l->bytes, l->klens[0], l->bytes + l->klens[0], l->vlens[0]));
  const size_t skip = one ? (size_t)l->klens[0] + l->vlens[0] : 0;
  const uint32_t nr = l->nr - one;
  if (nr && chance(&m->rng, 20)) {
    const uint32_t bad = one + (uint32_t)below(&m->rng, nr), was = l->klens[bad];
    l->klens[bad] += 1 + (uint32_t)below(&m->rng, UINT32_MAX - was);
    CHECK(!remixdb_batch_load(r->batch, nr, l->ops + one, l->klens + one, l->vlens + one, l->bytes + skip,
                              l->len - skip));
    CHECK(remixdb_errcode() == REMIXDB_INVALID || remixdb_errcode() == REMIXDB_TOOBIG);
    CHECK(remixdb_batch_count(r->batch) == one);
    l->klens[bad] = was;
  }
  CHECK(remixdb_batch_load(r->batch, nr, l->ops + one, l->klens + one, l->vlens + one,
                           l->bytes ? l->bytes + skip : NULL, l->len - skip));
}

// Returns how many operations it has added.
static uint32_t batch_range(struct run *r) {
  uint32_t first, end;
  uint8_t *bytes;
  const size_t was = remixdb_batch_count(r->batch);
  const struct remixdb_range range = pick_range(r, &first, &end, &bytes);
  CHECK(remixdb_batch_del_range(r->batch, &range));
  free(bytes);
  for (uint32_t i = first; i < end; i++)
    if (r->m.keys[i].nr) past_set(&r->m, i, 0, 0);
  return (uint32_t)(remixdb_batch_count(r->batch) - was);
}

static void do_batch(struct run *r) {
  struct past *const m = &r->m;
  struct load gathered = {0}, *const l = chance(&m->rng, 40) ? &gathered : NULL;
  remixdb_batch_clear(r->batch);
  const uint64_t time = m->time;
  m->time++;  // all of it is of one moment
  uint32_t count = 0;
  for (uint64_t n = below(&m->rng, chance(&m->rng, 90) ? 20 : 400); n; n--) {  // now and then more than a memtable
    const uint32_t i = pick_key(r), len = past_vlen(m, i);
    const struct past_key *const k = &m->keys[i];
    if (!l && chance(&m->rng, 1)) {
      count += batch_range(r);
      continue;
    }
    count++;
    if (chance(&m->rng, 20)) {
      CHECK(add(r, l, k, 0, REMIXDB_BATCH_DEL));
      past_set(m, i, 0, 0);
      continue;
    }
    const uint32_t id = ++m->next_id;
    const uint64_t expires = l ? 0 : past_expires(m);
    past_value(id, len, m->buf);
    CHECK(expires ? remixdb_batch_put_expire(r->batch, k->ptr, k->len, m->buf, len, expires)
                  : add(r, l, k, len, REMIXDB_BATCH_PUT));
    past_set_expiring(m, i, id, len, expires);
  }
  if (l) load_all(r, l);
  free(gathered.bytes);
  CHECK(remixdb_batch_count(r->batch) == count);
  CHECK(remixdb_write(r->ref, r->batch));
  if (count == 0) m->time = time;
  if (chance(&m->rng, 5)) {  // the same once more changes nothing but the versions
    CHECK(remixdb_write(r->ref, r->batch));
    past_written_again(m);
  }
}

struct merging {
  struct run *r;
  uint32_t key, id, len;
  enum { MERGE_KEEPS, MERGE_PUTS, MERGE_CUTS, MERGE_DELS, MERGE_NO_VALUE, MERGES } how;
};

static enum remixdb_merge_op merge_fn(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  struct merging *const g = priv;
  struct past *const m = &g->r->m;
  const struct past_ver v = past_at(m, g->key, m->time);
  CHECK((v0 != NULL) == (v.id != 0));
  if (v0) CHECK(past_value_is(m, v, v0, v0len));
  switch (g->how) {
    case MERGE_CUTS:  // the beginning of the old value; the bytes are the store's own
      if (!v0) return REMIXDB_MERGE_KEEP;
      g->id = v.id;
      g->len = v0len / 2;
      *v1 = v0;
      *v1len = g->len;
      return REMIXDB_MERGE_PUT;
    case MERGE_NO_VALUE:
      *v1 = NULL;
      *v1len = 1;
      return REMIXDB_MERGE_PUT;
    case MERGE_PUTS:
      *v1 = g->len ? m->buf : chance(&m->rng, 50) ? NULL : m->buf;
      *v1len = g->len;
      return REMIXDB_MERGE_PUT;
    case MERGE_DELS: return REMIXDB_MERGE_DEL;
    default:
      *v1 = m->buf;  // it counts for nothing
      *v1len = 77;
      return REMIXDB_MERGE_KEEP;
  }
}

static void decide_fn(struct remixdb_decision *d) { d->op = merge_fn(d->v0, d->v0len, &d->v1, &d->v1len, d->priv); }

static void do_merge(struct run *r) {
  struct past *const m = &r->m;
  struct merging g = {.r = r, .key = pick_key(r), .how = (int)below(&m->rng, MERGES)};
  const struct past_key *const k = &m->keys[g.key];
  const bool there = past_has(m, g.key, m->time);
  const uint64_t expires = there ? past_at(m, g.key, m->time).expires : 0;  // a merge keeps it
  g.id = ++m->next_id;
  g.len = past_vlen(m, g.key);
  if (g.how == MERGE_PUTS) past_value(g.id, g.len, m->buf);
  struct remixdb_decision d = {.decide = decide_fn, .priv = &g, .op = REMIXDB_MERGE_DEL};
  const bool good = chance(&m->rng, 30) ? remixdb_merge_decide(r->ref, k->ptr, k->len, &d)
                                        : remixdb_merge(r->ref, k->ptr, k->len, merge_fn, &g);
  CHECK(good == (g.how != MERGE_NO_VALUE) && remixdb_errcode() == (good ? REMIXDB_OK : REMIXDB_INVALID));
  if (g.how == MERGE_PUTS || (g.how == MERGE_CUTS && there)) {
    m->time++;
    past_set_expiring(m, g.key, g.id, g.len, expires);
  } else if (g.how == MERGE_DELS) {
    m->time++;
    past_set(m, g.key, 0, 0);
  }
}

// A long call, which is given up now and then: that changes nothing that can be read.
static void maintain(struct run *r, bool (*call)(struct xdb_ref *ref)) {
  r->reports = 0;
  r->give_up_at = chance(&r->m.rng, 20) ? 1 + (uint32_t)below(&r->m.rng, 4) : 0;
  const bool good = call(r->ref);
  CHECK(good || (remixdb_errcode() == REMIXDB_ABORTED && r->give_up_at && r->reports == r->give_up_at));
  r->give_up_at = 0;
}

// The part of the store with the keys from the first of two keys on, before the second one.
static bool compact_range(struct xdb_ref *ref) {
  struct run *const r = ref->progress.priv;
  struct past *const m = &r->m;
  struct remixdb_range range = {{NULL, 0}, {NULL, 0}};
  const struct past_key *const from = &m->keys[below(&m->rng, m->nr)], *const to = &m->keys[below(&m->rng, m->nr)];
  if (chance(&m->rng, 80)) range.from = (struct remixdb_slice){from->ptr, from->len};
  if (chance(&m->rng, 80)) range.to = (struct remixdb_slice){to->ptr, to->len};
  return remixdb_compact_range(ref, &range);
}

// Estimates of a range, which no sample of a small store gets far wrong.
static void do_count(struct run *r) {
  struct past *const m = &r->m;
  const uint32_t a = (uint32_t)below(&m->rng, m->nr), b = (uint32_t)below(&m->rng, m->nr);
  const bool open = chance(&m->rng, 20);
  const struct remixdb_range range = {{m->keys[a].ptr, m->keys[a].len},
                                      {open ? NULL : (void *)m->keys[b].ptr, m->keys[b].len}};
  uint64_t keys, bytes, want = 0, want_bytes = 0, gone = 0;  // gone: expired, and may still be counted
  for (uint32_t i = a; i < (open ? m->nr : b); i++) {
    const struct past_ver v = past_at(m, i, m->time);
    want += v.id != 0;
    gone += v.expired;
    want_bytes += v.id ? m->keys[i].len + v.len : 0;
  }
  CHECK(remixdb_count(r->ref, &range, &keys, &bytes));
  const uint64_t off = keys > want ? keys - want : want - keys;
  if (off > 4 + gone + (a < b ? b - a : a - b) / 20 + (open ? m->nr / 20 : 0))
    fail_msg("TEST_SEED=%llu: %llu keys counted, %llu there", (unsigned long long)check_seed, (unsigned long long)keys,
             (unsigned long long)want);
  CHECK((keys != 0 || bytes == 0) && (want_bytes != 0 || keys <= 4 + gone));
}

static void do_maintenance(struct run *r) {
  switch (below(&r->m.rng, 9)) {
    case 8: maintain(r, compact_range); break;
    case 0: maintain(r, remixdb_compact); break;
    case 1: maintain(r, remixdb_verify); break;
    case 2:
    case 3: maintain(r, remixdb_flush); break;
    default: CHECK(remixdb_sync(r->ref)); break;
  }
}

// ---- reading

static void do_get(struct run *r) { past_check_get(&r->m, r->ref, pick_key(r), r->m.time); }
static void do_near(struct run *r) { past_check_near(&r->m, r->ref, r->m.time); }
static void check_many(struct past *m, struct xdb_ref *ref, uint64_t time) {
  (chance(&m->rng, 60) ? past_check_many : past_check_packed)(m, ref, time);
}
static void do_many(struct run *r) { check_many(&r->m, r->ref, r->m.time); }

// Gets that stay under way while other calls change the records.
static void do_gets(struct run *r) {
  if (chance(&r->m.rng, 70)) past_gets_begin(&r->m, &r->gets, r->ref, pick_key(r), r->m.time);
  else past_gets_take(&r->m, &r->gets, chance(&r->m.rng, 20));
  if (chance(&r->m.rng, 1)) past_gets_drop(&r->gets);
}

// A step of an iterator of the ref.
static void cursor_step(struct past *m, struct past_cursor *c, struct xdb_ref *ref, uint64_t time) {
  const uint64_t dice = below(&m->rng, 1000);
  if (!c->it && chance(&m->rng, 50)) past_cursor_make(m, c, ref, time);
  if (!c->it || dice < 80 || (!past_cursor_valid(m, c) && chance(&m->rng, 80))) {
    past_cursor_seek(m, c, ref, time, (enum seek_kind)below(&m->rng, SEEK_KINDS));
  } else if (dice < 400) {
    past_cursor_skip(m, c, 1);
  } else if (dice < 460) {
    past_cursor_skip(m, c, (uint32_t)below(&m->rng, 100));
  } else if (dice < 520) {
    past_cursor_pages(m, c);
  } else if (dice < 780) {
    past_cursor_prev(m, c);
  } else if (dice < 978) {
    past_cursor_check(m, c);
  } else if (dice < 980) {
    past_cursor_rest(m, c, chance(&m->rng, 50));
  } else if (dice < 990) {
    remixdb_iter_park(c->it);
    c->at = -1;
    past_cursor_check(m, c);
  } else {
    past_cursor_drop(c);
  }
}

static void do_cursor(struct run *r) { cursor_step(&r->m, &r->cursors[below(&r->m.rng, CURSORS)], r->ref, r->m.time); }

static void do_shot(struct run *r) {
  struct past *const m = &r->m;
  struct shot *const t = &r->shots[below(&m->rng, SHOTS)];
  if (!t->s) {
    if (chance(&m->rng, 80)) return;
    const struct shot *const of = &r->shots[below(&m->rng, SHOTS)];  // the store, or another snapshot
    const bool second = of->s && chance(&m->rng, 30);
    t->s = remixdb_snapshot(second ? of->ref : r->ref);
    CHECK(t->s);
    t->ref = remixdb_snapshot_ref(t->s);
    CHECK(t->ref);
    t->time = second ? of->time : m->time;
    t->wall = second ? of->wall : wall;
    return;
  }
  const uint64_t dice = below(&m->rng, 1000);
  if (dice < 500) cursor_step(&r->m, &t->c, t->ref, t->time);
  else if (dice < 850) past_check_get(m, t->ref, (uint32_t)below(&m->rng, m->nr), t->time);
  else if (dice < 900) past_check_near(m, t->ref, t->time);
  else if (dice < 980) check_many(m, t->ref, t->time);
  else if (dice < 985) CHECK(!past_put(m, t->ref, 0) && remixdb_errcode() == REMIXDB_READONLY);
  else if (dice < 988) past_check_all(m, t->ref, t->time);
  else if (dice < 998) shot_drop(t);
}

// ---- transactions

static uint64_t txns[3];  // committed, refused by a conflict, given up

static void txn_begin(struct run *r, struct txn *t) {
  const struct past *const m = &r->m;
  *t = (struct txn){.t = remixdb_txn_begin(r->x), .began = m->time, .view = *m};
  CHECK(t->t);
  struct past *const v = &t->view;
  v->time = 1;
  v->unversioned = true;
  v->next_id = r->txn_id;
  v->rng = rng_next(&r->m.rng);
  CHECK((v->keys = calloc(v->nr, sizeof(*v->keys))) && (t->wrote = calloc(v->nr, sizeof(*t->wrote))));
  CHECK((v->buf = malloc(PAST_VLEN_MAX + 1)) && (v->want = malloc(PAST_VLEN_MAX + 1)));
  for (uint32_t i = 0; i < v->nr; i++) {
    v->keys[i] = (struct past_key){.ptr = m->keys[i].ptr, .len = m->keys[i].len};
    const struct past_ver now = past_at(m, i, m->time);
    if (now.id) past_set_expiring(v, i, now.id, now.len, now.expires);
  }
}

// Forgets a transaction that has ended.
static void txn_drop(struct run *r, struct txn *t) {
  for (uint32_t i = 0; i < t->view.nr; i++) free(t->view.keys[i].vers);
  free(t->view.keys);
  free(t->view.buf);
  free(t->view.want);
  free(t->wrote);
  while (t->nr_saved) free(t->saved[--t->nr_saved].wrote);
  r->txn_id = t->view.next_id;
  t->t = NULL;
}

// How the keys that the transaction has read have changed since its beginning: not at all; at the end, they are what
// they were; or they differ.
enum changed { CHANGED_NOT, CHANGED_BACK, CHANGED };
static enum changed txn_changed(const struct run *r, const struct txn *t) {
  enum changed how = CHANGED_NOT;
  for (uint32_t i = 0; i < r->m.nr; i++) {
    const struct past_key *const k = &r->m.keys[i];
    const struct past_ver was = past_at(&r->m, i, t->began), is = past_at(&r->m, i, r->m.time);
    if (!k->nr || is.time <= t->began) continue;
    bool expired = false;  // that is no write, and compaction may have removed the record
    for (uint32_t n = 0; n < k->nr; n++) expired |= k->vers[n].time > t->began && k->vers[n].expired;
    for (size_t n = 0; n < t->t->reads[TREE_UNNAMED].nr; n++) {
      const struct read_range *const range = &t->t->reads[TREE_UNNAMED].ranges[n];
      if (kv_cmp(range->from, kref(k->ptr, k->len)) > 0 || read_range_ends_before(range, kref(k->ptr, k->len)))
        continue;
      if (!expired && was.id != is.id) return CHANGED;
      how = CHANGED_BACK;
    }
  }
  return how;
}

static void txn_commit(struct run *r, struct txn *t) {
  for (uint32_t c = 0; c < 2; c++) past_cursor_drop(&t->cursors[c]);
  const enum changed how = txn_changed(r, t);
  bool wrote = false;
  for (uint32_t i = 0; i < t->view.nr; i++) wrote |= t->wrote[i];
  const bool done = remixdb_txn_commit(t->t);
  CHECK(done || remixdb_errcode() == REMIXDB_ABORTED);
  if (!wrote || how == CHANGED_NOT) CHECK(done);
  else if (how == CHANGED) CHECK(!done);
  txns[!done]++;
  if (done && wrote) r->m.time++;
  for (uint32_t i = 0; i < t->view.nr && done; i++) {
    const struct past_ver v = past_at(&t->view, i, t->view.time);
    if (!t->wrote[i]) continue;
    const bool late = v.expires && v.expires <= wall;  // expired meanwhile
    past_set_expiring(&r->m, i, late ? 0 : v.id, late ? 0 : v.len, late ? 0 : v.expires);
  }
  txn_drop(r, t);
}

static void txn_savepoint(struct txn *t) {
  if (t->nr_saved == sizeof(t->saved) / sizeof(t->saved[0])) return;
  struct saved *const s = &t->saved[t->nr_saved++];
  s->time = t->view.time;
  CHECK(remixdb_txn_savepoint(t->t) && (s->wrote = malloc(t->view.nr * sizeof(bool))));
  memcpy(s->wrote, t->wrote, t->view.nr * sizeof(bool));
}

static void txn_rollback(struct txn *t) {
  CHECK(remixdb_txn_rollback(t->t) == (t->nr_saved != 0));
  if (!t->nr_saved) return;
  struct past *const v = &t->view;
  const struct saved s = t->saved[--t->nr_saved];
  for (uint32_t c = 0; c < 2; c++) past_cursor_drop(&t->cursors[c]);  // open iterators must seek anew
  v->time++;
  for (uint32_t i = 0; i < v->nr; i++) {
    const struct past_ver was = past_at(v, i, s.time);
    if (past_at(v, i, v->time).time > s.time) past_set_expiring(v, i, was.id, was.len, was.expires);
  }
  memcpy(t->wrote, s.wrote, v->nr * sizeof(bool));
  free(s.wrote);
}

static void txn_write(struct txn *t, struct xdb_ref *ref, uint32_t i) {
  if (chance(&t->view.rng, 30)) CHECK(past_del(&t->view, ref, i));
  else CHECK(past_put(&t->view, ref, i));
  t->wrote[i] = true;
}

// Deletes neighbours, from either end of the keys or from key i on.
static void txn_sweep(struct txn *t, struct xdb_ref *ref, uint32_t i) {
  const uint32_t nr = t->view.nr, keys = 1 + (uint32_t)below(&t->view.rng, nr < 64 ? nr : 64);
  const uint64_t way = below(&t->view.rng, 3);
  for (uint32_t k = 0; k < keys; k++) {
    const uint32_t key = way == 0 ? k : way == 1 ? nr - 1 - k : (i + k) % nr;
    CHECK(past_del(&t->view, ref, key));
    t->wrote[key] = true;
  }
}

static void do_txn(struct run *r) {
  struct txn *const t = &r->txns[below(&r->m.rng, TXNS)];
  if (!t->t) {
    if (chance(&r->m.rng, 60)) txn_begin(r, t);
    return;
  }
  struct past *const m = &t->view;
  struct xdb_ref *const ref = (chance(&m->rng, 70) ? remixdb_txn_untracked : remixdb_txn_ref)(t->t, NULL);
  const uint64_t dice = below(&m->rng, 1000);
  const uint32_t i = chance(&m->rng, 50) ? pick_key(r) : (uint32_t)below(&m->rng, m->nr);
  if (dice < 300) txn_write(t, ref, i);
  else if (dice < 500) past_check_get(m, ref, i, m->time);
  else if (dice < 540) past_check_near(m, ref, m->time);
  else if (dice < 580) check_many(m, ref, m->time);
  else if (dice < 800) cursor_step(m, &t->cursors[below(&m->rng, 2)], ref, m->time);
  else if (dice < 805) past_check_all(m, ref, m->time);
  else if (dice < 830) txn_savepoint(t);
  else if (dice < 860) txn_rollback(t);
  else if (dice < 920) txn_commit(r, t);
  else if (dice < 930) txn_sweep(t, ref, i);
  if (dice < 960 || !t->t) return;
  for (uint32_t c = 0; c < 2; c++) past_cursor_drop(&t->cursors[c]);
  remixdb_txn_abort(t->t);
  txns[2]++;
  txn_drop(r, t);
}

// ---- the rest

// A checkpoint of the store, or of a snapshot, is a store with the same content.
static void do_checkpoint(struct run *r) {
  struct past *const m = &r->m;
  const struct shot *const t = &r->shots[below(&m->rng, SHOTS)];
  const uint64_t time = t->s ? t->time : m->time, now = wall;
  char copy[COPY_DIR_LEN];
  (void)snprintf(copy, sizeof(copy), "%s-copy", dir);
  OK(checkpoint_make(t->s ? t->ref : r->ref, copy));
  struct xdb *x;
  if (t->s) wall = t->wall;  // the copy has no clock of its own: later, more of it has expired
  OK(xdb_open(copy, &r->opts, r->env, &x));
  struct xdb_ref *const ref = remixdb_ref(x);
  CHECK(ref);
  past_check_all(m, ref, time);
  CHECK(remixdb_put(ref, "only here", 9, "x", 1) && remixdb_verify(ref));
  remixdb_unref(ref);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  OK(destroy_store(r->env, copy));
  wall = now;
}

static void do_reopen(struct run *r) {
  run_close(r);
  run_open(r);
  if (chance(&r->m.rng, 20)) past_check_all(&r->m, r->ref, r->m.time);
}

static void do_check(struct run *r) { past_check_all(&r->m, r->ref, r->m.time); }

// Sorted records straight into tables. Calls between change nothing that the ingest does not replace.
static void do_ingest(struct run *r) {
  struct past *const m = &r->m;
  struct xdb_ingest *const g = remixdb_ingest_begin(r->ref);
  uint32_t at = chance(&m->rng, 50) ? 0 : pick_key(r),
           nr = 0, *const ids = calloc(m->nr, sizeof(*ids)), *const lens = calloc(m->nr, sizeof(*lens));
  CHECK(g && ids && lens);
  const uint64_t step = 1 + below(&m->rng, chance(&m->rng, 50) ? 3 : 60);
  r->give_up_at = 0;
  for (uint64_t n = below(&m->rng, 500); n && at < m->nr; n--, at += 1 + (uint32_t)below(&m->rng, step), nr++) {
    const struct past_key *const k = &m->keys[at];
    ids[at] = ++m->next_id;
    lens[at] = past_vlen(m, at);
    past_value(ids[at], lens[at], m->buf);
    CHECK(remixdb_ingest_put(g, k->ptr, k->len, m->buf, lens[at]));
    if (chance(&m->rng, 2))
      CHECK(!remixdb_ingest_put(g, k->ptr, k->len, "", 0) && remixdb_errcode() == REMIXDB_INVALID);
    if (chance(&m->rng, 3)) do_put(r);
    if (chance(&m->rng, 1)) do_maintenance(r);
    if (chance(&m->rng, 1)) do_check(r);
  }
  if (chance(&m->rng, 20)) {
    remixdb_ingest_abort(g);
  } else {
    CHECK(remixdb_ingest_commit(g));
    m->time++;
    for (uint32_t i = 0; i < m->nr; i++)
      if (ids[i]) past_set(m, i, ids[i], lens[i]);
  }
  free(ids);
  free(lens);
  if (chance(&m->rng, 10)) do_check(r);
}

// A neighbourhood goes: whole segments, blocks and tables of tombstones.
static void do_clear(struct run *r) {
  const uint32_t from = (uint32_t)below(&r->m.rng, r->m.nr);
  for (uint32_t i = from; i < r->m.nr && i < from + 400; i++) CHECK(past_del(&r->m, r->ref, i));
}

static void check_gaps(const struct wh *wh) {
  char why[200];
  if (!wh_gaps_check(wh, why, sizeof(why))) fail_msg("TEST_SEED=%llu: %s", (unsigned long long)check_seed, why);
}

// The store as a queue: the first (or last) key goes, again and again, and now and then a key comes to where all has
// gone.
static void do_drain(struct run *r) {
  struct past *const m = &r->m;
  struct past_cursor c = {0};
  const bool back = chance(&m->rng, 40);
  const uint32_t comes = (uint32_t)below(&m->rng, 40);  // percent
  for (uint64_t n = below(&m->rng, 700); n; n--) {
    past_cursor_seek(m, &c, r->ref, m->time, back ? SEEK_TO_LAST : SEEK_TO_FIRST);
    if (!past_cursor_valid(m, &c)) break;
    const uint32_t at = (uint32_t)c.at, gone = back ? m->nr - 1 - at : at;
    CHECK(past_del(m, r->ref, at));
    if (gone && chance(&m->rng, comes)) {
      const uint32_t to = (uint32_t)below(&m->rng, gone);
      CHECK(past_put(m, r->ref, back ? m->nr - 1 - to : to));
    }
    struct shot *const t = &r->shots[below(&m->rng, SHOTS)];
    if (t->s && chance(&m->rng, 10))
      past_cursor_seek(m, &t->c, t->ref, t->time, (enum seek_kind)below(&m->rng, SEEK_KINDS));
    if (chance(&m->rng, 10)) cursor_step(&r->m, &r->cursors[below(&m->rng, CURSORS)], r->ref, m->time);
    if (chance(&m->rng, 1) && chance(&m->rng, 10)) CHECK(remixdb_flush(r->ref));
  }
  past_cursor_drop(&c);
  const struct super *const v = xdb_super(r->x);
  check_gaps(v->active->wh);
  if (v->frozen) check_gaps(v->frozen->wh);
}

static const struct {
  void (*fn)(struct run *r);
  const char *name;
  uint32_t weight;
} steps[] = {
    {do_put, "put", 2600},
    {do_del, "delete", 600},
    {do_del_range, "del_range", 12},
    {do_batch, "batch", 250},
    {do_merge, "merge", 700},
    {do_compare, "compare", 300},
    {do_clock, "clock", 30},
    {do_get, "get", 1800},
    {do_near, "near", 200},
    {do_many, "multi_get", 200},
    {do_gets, "gets", 600},
    {do_cursor, "iterator", 2200},
    {do_shot, "snapshot", 1400},
    {do_txn, "transaction", 2000},
    {do_refused, "refused", 10},
    {do_maintenance, "maintenance", 16},
    {do_checkpoint, "checkpoint", 1},
    {do_reopen, "reopen", 2},
    {do_count, "count", 20},
    {do_ingest, "ingest", 12},
    {do_check, "check", 1},
    {do_clear, "clear", 1},
    {do_drain, "drain", 8},
};
#define NR_STEPS (sizeof(steps) / sizeof(steps[0]))

static void step(struct run *r) {
  uint32_t total = 0;
  for (uint32_t i = 0; i < NR_STEPS; i++) total += steps[i].weight;
  uint64_t dice = below(&r->m.rng, total);
  uint32_t i = 0;
  for (; dice >= steps[i].weight; i++) dice -= steps[i].weight;
  hang_step = steps[i].name;
  steps[i].fn(r);
  nr_ops++;
}

static uint64_t oldest_time(const struct run *r) {
  uint64_t oldest = r->m.time;
  for (uint32_t i = 0; i < SHOTS; i++) {
    if (r->shots[i].s && r->shots[i].time < oldest) oldest = r->shots[i].time;
    if (r->shots[i].c.it && r->shots[i].c.time < oldest) oldest = r->shots[i].c.time;
  }
  for (uint32_t i = 0; i < CURSORS; i++)
    if (r->cursors[i].it && r->cursors[i].time < oldest) oldest = r->cursors[i].time;
  for (uint32_t i = 0; i < TXNS; i++)
    if (r->txns[i].t && r->txns[i].began < oldest) oldest = r->txns[i].began;
  return past_gets_oldest(&r->gets, oldest);
}

// A run until so many operations are done has the longest values, too.
static bool long_values(void) {
  const char *const ops = getenv("MODEL_OPS");
  return ops && *ops;
}

static void run_model(uint64_t s, uint32_t nr, bool starved) {
  static const uint32_t vlens[] = {40, 300, 300, 2000, 6000, REMIXDB_KV_MAX, PAST_VLEN_MAX};
  static const uint32_t keys[KEY_KINDS] = {12, 3000, 500, 2500};
  check_seed = s;
  uint64_t rng = s;
  struct run *const r = calloc(1, sizeof(*r));
  CHECK(r);
  starve(starved);
  const enum key_kind kind = (enum key_kind)below(&rng, KEY_KINDS);
  past_init(&r->m, kind, 2 + keys[kind] / (1 + (uint32_t)below(&rng, 4)), vlens[below(&rng, long_values() ? 7 : 6)]);
  r->m.wall = wall;
  const bool real = chance(&rng, 15);
  if (real) {
    CHECK(setup(NULL) == 0);
    r->env = chance(&rng, 30) ? env_posix() : quick_env();
  } else {
    (void)snprintf(dir, sizeof(dir), "/store");
    r->disk = simdisk_create();
    r->env = simdisk_env(r->disk);
    simdisk_no_allocate(r->disk, chance(&rng, 80));
    if (chance(&rng, 20)) simdisk_short_io(r->disk, rng_next(&rng) | 1);
  }
  r->batch = remixdb_batch_create();
  CHECK(r->batch);
  r->txn_id = TXN_IDS;
  run_open(r);
  for (uint32_t n = 0; n < nr; n++) {
    step(r);
    if (n % 5000 == 4999) past_forget(&r->m, oldest_time(r));
  }
  for (uint32_t i = 0; i < SHOTS; i++)
    if (r->shots[i].s) past_check_all(&r->m, r->shots[i].ref, r->shots[i].time);
  do_check(r);
  run_close(r);
  run_open(r);
  do_check(r);
  CHECK(remixdb_verify(r->ref));
  run_close(r);
  remixdb_batch_destroy(r->batch);
  if (real) {
    CHECK(teardown(NULL) == 0);
  } else {
    simdisk_destroy(r->disk);
  }
  past_fini(&r->m);
  free(r);
  starve(false);
}

static void report(void) {
  static const char *const names[COMPACT_KINDS] = {"kept", "handed back", "minor", "major", "split"};
  print_message("%llu operations, %llu openings; partitions:", (unsigned long long)nr_ops,
                (unsigned long long)nr_opened);
  for (uint32_t k = 0; k < COMPACT_KINDS; k++) print_message(" %llu %s", (unsigned long long)kinds[k], names[k]);
  print_message("; %llu joined; %llu young views made; %llu collections of garbage; transactions: %llu committed, %llu "
                "conflicts, "
                "%llu given up\n",
                (unsigned long long)joined, (unsigned long long)young, (unsigned long long)collections,
                (unsigned long long)txns[0], (unsigned long long)txns[1], (unsigned long long)txns[2]);
}

static void test_model(void **state) {
  (void)state;
  const char *const given = getenv("TEST_SEED"), *const soak = getenv("SOAK_SECONDS"), *const ops = getenv("MODEL_OPS");
  if ((soak && *soak) || (ops && *ops)) {
    const uint64_t until = soak && *soak ? time_ns() + strtoull(soak, NULL, 10) * 1000000000ull : UINT64_MAX;
    const uint64_t most = ops && *ops ? strtoull(ops, NULL, 10) : UINT64_MAX;
    for (uint64_t s = check_seed_or(time_ns() / 1000); time_ns() < until && nr_ops < most; s++) {
      (void)alarm(600);
      run_model(s, 30000, s % 3 == 0);
      if (s % 20 == 0) report();
    }
    report();
    return;
  }
  for (uint64_t s = check_seed_or(1), n = 0; n < (given ? 1 : SLOW == 1 ? 16 : 6); s++, n++) {
    run_model(s, 30000, s % 2 == 0);
    if (given) run_model(s, 30000, s % 2 != 0);
  }
  report();
  for (uint32_t k = 0; k < COMPACT_KINDS && SLOW == 1 && !given; k++) CHECK(kinds[k] > 0);
  CHECK((young > 0 && collections > 0) || SLOW > 1 || given);
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_model)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
