// SPDX-License-Identifier: Apache-2.0
//
// Threads use the store in every way there is, on few keys, and write down their calls, the answers and the times. Then
// the history is checked: could it have happened one call after the other (tests/lib/history.h)? So no write is lost or
// comes late, no read is stale or from the future, no batch is seen in part, a merge loses nothing, transactions are
// serializable, and all that is
// read of one snapshot, or of an iterator between two seeks, is of one moment within the call that fixed it.
//
// The checker is checked first: against trying all orders, on small histories of which some are good and some are not;
// then by spoiling good recorded ones in ways that it must find.
//
// TEST_SEED in the environment gives the random choices (not the threads' interleaving); SOAK_SECONDS goes on with new
// seeds that long.
#include <sched.h>

#include "tests/lib/check.h"
#include "tests/lib/expect.h"
#include "tests/lib/history.h"
#include "tests/lib/store.h"

// ---- the checker against trying all orders

#define TINY 6u

struct tiny {
  struct hist_op ops[TINY];
  uint32_t nr;
};

// Any operation that no other must come before may be the next (Wing and Gong).
static bool tiny_orders(const struct tiny *t, uint32_t placed, const struct hist_config *now) {
  if (placed == (1u << t->nr) - 1) return true;
  for (uint32_t i = 0; i < t->nr; i++) {
    bool first = !(placed >> i & 1);
    for (uint32_t j = 0; j < t->nr && first; j++) first = (placed >> j & 1) || t->ops[j].ret >= t->ops[i].call;
    if (!first || !hist_reads_hold(&t->ops[i], now)) continue;
    struct hist_config next = *now;
    for (uint32_t k = 0; k < HIST_KEYS; k++)
      if (t->ops[i].writes[k] != HIST_ANY) next.now[k] = t->ops[i].writes[k];
    if (tiny_orders(t, placed | 1u << i, &next)) return true;
  }
  return false;
}

// Two keys, three threads, reads that are guessed.
static void tiny_make(struct tiny *t, uint64_t *rng) {
  uint32_t value = HIST_FIRST;
  uint64_t free_at[3] = {0, 0, 0};
  memset(t, 0, sizeof(*t));
  t->nr = 2 + (uint32_t)below(rng, TINY - 1);
  for (uint32_t i = 0; i < t->nr; i++) {
    struct hist_op *const o = &t->ops[i];
    o->what = "";
    o->thread = (uint32_t)below(rng, 3);
    o->call = free_at[o->thread] + 1 + below(rng, 4);
    o->ret = o->call + 1 + below(rng, 8);
    free_at[o->thread] = o->ret;
    const uint32_t kind = (uint32_t)below(rng, 6);
    for (uint32_t k = 0; k < 2; k++) {
      if (kind == k || kind == 2) o->writes[k] = chance(rng, 20) ? (uint32_t)HIST_NONE : value++;
      if ((kind == 3 + k || kind == 5) && value > HIST_FIRST)
        o->reads[k] = chance(rng, 30) ? (chance(rng, 50) ? HIST_NONE : HIST_SOME)
                                      : HIST_FIRST + (uint32_t)below(rng, value - HIST_FIRST);
    }
    if (kind < 2 && chance(rng, 50))
      o->reads[kind] = chance(rng, 50) || value < HIST_FIRST + 2 ? (uint32_t)HIST_NONE : HIST_FIRST;  // a merge
  }
}

static void test_checker_all_orders(void **state) {
  (void)state;
  uint64_t rng = check_seed_or(1);
  check_seed = rng;
  uint32_t good = 0, bad = 0;
  struct hist_config start = {.done = 0};
  for (uint32_t k = 0; k < HIST_KEYS; k++) start.now[k] = HIST_NONE;
  for (uint32_t i = 0; i < 60000 / SLOW; i++) {
    struct tiny t;
    tiny_make(&t, &rng);
    char why[2000] = "";
    const bool can = tiny_orders(&t, 0, &start);
    const enum hist_verdict v = hist_check(t.ops, t.nr, why, sizeof(why), NULL);
    if (v != (can ? HIST_GOOD : HIST_BAD)) {
      for (uint32_t o = 0; o < t.nr; o++) hist_print_op(why, sizeof(why), &t.ops[o]);
      fail_msg("TEST_SEED=%llu, history %u: %s order explains it, the checker says %d%s",
               (unsigned long long)check_seed, i, can ? "an" : "no", (int)v, why);
    }
    *(can ? &good : &bad) += 1;
  }
  print_message("%u histories with an order, %u without\n", good, bad);
  CHECK(good > 1000 / SLOW && bad > 1000 / SLOW);
}

// ---- recording. Key i lies between other keys, so that batches and scans cross leaves, blocks and partitions.

#define ACTORS 5u
#define FILLERS 120u  // between two keys
#define VALUE_MAX 6000u
#define HELD 3u
#define CURSORS 2u

struct run {
  struct xdb *x;
  struct env *env;
  struct remixdb_opts opts;
  _Atomic uint64_t clock;
  _Atomic uint32_t busy;                  // actors that have not ended
  _Atomic uint32_t committed, conflicts;  // transactions that wrote
  uint32_t nr_ops;                        // of each actor
  bool sweeps;                            // the records between the keys are deleted most of the time
};

// Called in the same order by all: on x86-64 the addition is a barrier; elsewhere the fences make it one. Relaxed and
// with fences (which the thread sanitizer does not know), so that it hides no missing order between the threads from
// the sanitizer.
static uint64_t tick(struct run *r) {
  atomic_thread_fence(memory_order_seq_cst);
  const uint64_t t = atomic_fetch_add_explicit(&r->clock, 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
  return t;
}

struct held {  // a snapshot, and the operation that its reads belong to
  struct xdb_snapshot *s;
  struct xdb_ref *ref;
  uint32_t op;
};

struct cursor {  // an iterator and the operation of its last seek
  struct xdb_iter *it;
  uint32_t op;
  int at;  // its place: 2 i on key i, 2 i + 1 on a filler after it; not on a key: out
};

#define GETS 4u

struct getting {  // an asynchronous get under way, and its operation
  uint32_t op, key;
  bool busy;
  uint8_t value[VALUE_MAX];
};

struct actor {
  struct run *run;
  struct xdb_ref *ref;
  struct hist_op *ops;
  uint32_t nr, cap, id;
  uint32_t next_value;
  uint64_t rng;
  struct held held[HELD];
  struct cursor cursors[CURSORS];
  struct xdb_gets *gets;
  struct getting getting[GETS];
  uint8_t value[VALUE_MAX], want[VALUE_MAX], got[VALUE_MAX];
};

#define PLACE_END (2 * (int)HIST_KEYS)

static uint32_t key_of(uint32_t i, char buf[16]) { return (uint32_t)snprintf(buf, 16, "key%u", i); }
static uint32_t filler_of(uint32_t i, uint32_t nr, char buf[16]) {
  return (uint32_t)snprintf(buf, 16, "key%u.%05u", i, nr);
}

// Values follow from their numbers; a few are of several blocks.
static uint32_t value_of(uint32_t id, uint32_t key, uint8_t *buf) {
  uint64_t rng = (uint64_t)id << 8 | key;
  const uint64_t r = rng_next(&rng);
  const uint32_t len = 8 + (uint32_t)(r >> 8) % (r % 32 == 0 ? VALUE_MAX - 8 : 200);
  memset(buf, (int)(r >> 40), len);
  store32le(buf, id);
  store32le(buf + 4, key);
  return len;
}

static uint32_t parse_value(struct actor *a, uint32_t key, const void *val, uint32_t len) {
  THREAD_CHECK(len >= 8);
  const uint32_t id = load32le(val);
  THREAD_CHECK(id >= HIST_FIRST && value_of(id, key, a->want) == len && memcmp(a->want, val, len) == 0);
  return id;
}

// Numbers that no other actor gives.
static uint32_t new_value(struct actor *a, uint32_t key, uint32_t *len_out) {
  const uint32_t id = HIST_FIRST + a->next_value++ * ACTORS + a->id;
  *len_out = value_of(id, key, a->value);
  return id;
}

static struct hist_op *begin(struct actor *a, const char *what) {
  THREAD_CHECK(a->nr < a->cap);
  struct hist_op *const o = &a->ops[a->nr++];
  o->what = what;
  o->thread = a->id;
  o->call = tick(a->run);
  return o;
}

static void end(struct actor *a, struct hist_op *o) { o->ret = tick(a->run); }

// Two looks at one moment see the same.
static void see(struct hist_op *o, uint32_t key, uint32_t what) {
  uint32_t *const r = &o->reads[key];
  if (*r == HIST_ANY || (*r == HIST_SOME && what >= HIST_FIRST)) *r = what;
  else if (what == HIST_SOME) THREAD_CHECK(*r != HIST_NONE);
  else THREAD_CHECK(*r == what);
}

static void see_get(struct actor *a, struct xdb_ref *ref, struct hist_op *o, uint32_t key) {
  char kbuf[16];
  const uint32_t klen = key_of(key, kbuf);
  uint32_t len = 0;
  switch (below(&a->rng, 5)) {
    case 2: {
      const void *v;
      struct xdb_pin *const pin = remixdb_get_pinned(ref, kbuf, klen, &v, &len);
      if (pin) {
        memcpy(a->got, v, len);
        remixdb_pin_release(pin);
        see(o, key, parse_value(a, key, a->got, len));
        return;
      }
      break;
    }
    case 0:
      if (remixdb_probe(ref, kbuf, klen)) {
        see(o, key, HIST_SOME);
        return;
      }
      break;
    case 1:
      if (remixdb_getn(ref, kbuf, klen, a->got, sizeof(a->got), &len)) {
        see(o, key, parse_value(a, key, a->got, len));
        return;
      }
      break;
    default:
      if (remixdb_get(ref, kbuf, klen, a->got, &len)) {
        see(o, key, parse_value(a, key, a->got, len));
        return;
      }
  }
  THREAD_CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
  see(o, key, HIST_NONE);
}

static void act_put(struct actor *a) {
  const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS);
  char kbuf[16];
  uint32_t len;
  const uint32_t klen = key_of(key, kbuf), id = new_value(a, key, &len);
  struct hist_op *const o = begin(a, "put");
  THREAD_CHECK(remixdb_put(a->ref, kbuf, klen, a->value, len));
  end(a, o);
  o->writes[key] = id;
}

static void act_del(struct actor *a) {
  const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS);
  char kbuf[16];
  const uint32_t klen = key_of(key, kbuf);
  struct hist_op *const o = begin(a, "delete");
  THREAD_CHECK(remixdb_del(a->ref, kbuf, klen));
  end(a, o);
  o->writes[key] = HIST_NONE;
}

static void act_get(struct actor *a) {
  const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS);
  struct hist_op *const o = begin(a, "get");
  see_get(a, a->ref, o, key);
  end(a, o);
}

// Many keys are read at one moment.
static void see_many(struct actor *a, struct xdb_ref *ref, struct hist_op *o) {
  struct remixdb_slice keys[HIST_KEYS];
  struct remixdb_buf values[HIST_KEYS];
  bool found[HIST_KEYS];
  char kbuf[HIST_KEYS][16];
  static _Thread_local uint8_t room[HIST_KEYS][VALUE_MAX];
  uint32_t key[HIST_KEYS], nr = 0;
  for (uint32_t k = 0; k < HIST_KEYS; k++) {
    if (chance(&a->rng, 30)) continue;
    key[nr] = k;
    keys[nr] = (struct remixdb_slice){kbuf[nr], key_of(k, kbuf[nr])};
    values[nr] = (struct remixdb_buf){.ptr = room[nr], .cap = VALUE_MAX};
    nr++;
  }
  const size_t got = remixdb_multi_get(ref, nr, keys, values, found);
  THREAD_CHECK(remixdb_errcode() == REMIXDB_OK);
  size_t there = 0;
  for (uint32_t i = 0; i < nr; i++) {
    there += found[i];
    see(o, key[i], found[i] ? parse_value(a, key[i], values[i].ptr, values[i].len) : (uint32_t)HIST_NONE);
  }
  THREAD_CHECK(got == there);
}

static void act_many(struct actor *a) {
  struct hist_op *const o = begin(a, "multi_get");
  see_many(a, a->ref, o);
  end(a, o);
}

static void act_batch(struct actor *a) {
  struct xdb_batch *const b = remixdb_batch_create();
  THREAD_CHECK(b);
  char kbuf[16];
  uint32_t writes[HIST_KEYS] = {HIST_ANY}, len;
  for (uint64_t n = 1 + below(&a->rng, 2 * HIST_KEYS); n; n--) {  // some keys twice: the last time counts
    const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS);
    if (chance(&a->rng, 20)) {
      THREAD_CHECK(remixdb_batch_del(b, kbuf, key_of(key, kbuf)));
      writes[key] = HIST_NONE;
      continue;
    }
    writes[key] = new_value(a, key, &len);
    THREAD_CHECK(remixdb_batch_put(b, kbuf, key_of(key, kbuf), a->value, len));
  }
  // now and then with as much else as makes new leaves on the way
  for (uint64_t n = chance(&a->rng, 10) ? below(&a->rng, 300) : 0; n; n--)
    THREAD_CHECK(
        remixdb_batch_put(b, kbuf,
                          filler_of((uint32_t)below(&a->rng, HIST_KEYS), 1000 + (uint32_t)below(&a->rng, 1000), kbuf),
                          "batch", 5));
  struct hist_op *const o = begin(a, "batch");
  THREAD_CHECK(remixdb_write(a->ref, b));
  end(a, o);
  memcpy(o->writes, writes, sizeof(writes));
  remixdb_batch_destroy(b);
}

struct merging {
  struct actor *a;
  uint32_t key, id, len;
  enum remixdb_merge_op op;
  uint32_t seen;
};

static enum remixdb_merge_op merge_fn(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  struct merging *const m = priv;
  m->seen = v0 ? parse_value(m->a, m->key, v0, v0len) : (uint32_t)HIST_NONE;
  if (m->op == REMIXDB_MERGE_PUT) {
    *v1 = m->a->value;
    *v1len = m->len;
  }
  return m->op;
}

static void act_merge(struct actor *a) {
  static const enum remixdb_merge_op ops[] = {REMIXDB_MERGE_PUT, REMIXDB_MERGE_PUT, REMIXDB_MERGE_PUT,
                                              REMIXDB_MERGE_DEL, REMIXDB_MERGE_KEEP};
  struct merging m = {.a = a, .key = (uint32_t)below(&a->rng, HIST_KEYS), .op = ops[below(&a->rng, 5)]};
  m.id = new_value(a, m.key, &m.len);
  char kbuf[16];
  const uint32_t klen = key_of(m.key, kbuf);
  struct hist_op *const o = begin(a, "merge");
  THREAD_CHECK(remixdb_merge(a->ref, kbuf, klen, merge_fn, &m));
  end(a, o);
  o->reads[m.key] = m.seen;
  if (m.op == REMIXDB_MERGE_PUT) o->writes[m.key] = m.id;
  if (m.op == REMIXDB_MERGE_DEL) o->writes[m.key] = HIST_NONE;
}

// ---- iterators

// Keys at places from..to (without that one) are not there.
static void see_none(struct hist_op *o, int from, int to) {
  for (int k = 0; k < (int)HIST_KEYS; k++)
    if (2 * k >= from && 2 * k < to) see(o, (uint32_t)k, HIST_NONE);
}

// Where it stands; a key is seen.
static bool cursor_look(struct actor *a, struct cursor *c) {
  if (!remixdb_iter_valid(c->it)) {
    THREAD_CHECK(remixdb_iter_status(c->it) == REMIXDB_OK);
    return false;
  }
  uint32_t klen, vlen;
  const char *const k = remixdb_iter_key(c->it, &klen);
  const void *const v = remixdb_iter_value(c->it, &vlen);
  THREAD_CHECK(k && v && klen >= 4 && memcmp(k, "key", 3) == 0 && k[3] >= '0' && k[3] < '0' + (int)HIST_KEYS);
  const uint32_t key = (uint32_t)(k[3] - '0');
  c->at = 2 * (int)key + (klen > 4);
  if (klen == 4) see(&a->ops[c->op], key, parse_value(a, key, v, vlen));
  return true;
}

static void cursor_seek(struct actor *a, struct cursor *c, struct xdb_ref *ref, struct hist_op *o) {
  if (!c->it) c->it = expect_iter(ref, rng_next(&a->rng));
  THREAD_CHECK(c->it);
  char kbuf[16];
  const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS);
  uint32_t klen = key_of(key, kbuf);
  int place = 2 * (int)key;
  if (chance(&a->rng, 30)) {
    klen = filler_of(key, (uint32_t)below(&a->rng, FILLERS), kbuf);
    place++;
  }
  switch (below(&a->rng, 4)) {
    case 0:
      remixdb_iter_seek(c->it, NULL, 0);
      end(a, o);
      see_none(o, 0, cursor_look(a, c) ? c->at : PLACE_END);
      break;
    case 1:
      remixdb_iter_seek_last(c->it);
      end(a, o);
      if (cursor_look(a, c)) see_none(o, c->at + 1, PLACE_END);
      else see_none(o, 0, PLACE_END);
      break;
    case 2:
      remixdb_iter_seek_for_prev(c->it, kbuf, klen);
      end(a, o);
      if (cursor_look(a, c)) see_none(o, c->at + 1, place + 1);
      else see_none(o, 0, place + 1);
      break;
    default:
      remixdb_iter_seek(c->it, kbuf, klen);
      end(a, o);
      see_none(o, place, cursor_look(a, c) ? c->at : PLACE_END);
      break;
  }
}

static void cursor_next(struct actor *a, struct cursor *c) {
  const int from = c->at;
  remixdb_iter_skip1(c->it);
  see_none(&a->ops[c->op], from + 1, cursor_look(a, c) ? c->at : PLACE_END);
}

static void cursor_prev(struct actor *a, struct cursor *c) {
  const int from = c->at;
  remixdb_iter_prev(c->it);
  if (cursor_look(a, c)) see_none(&a->ops[c->op], c->at + 1, from);
  else see_none(&a->ops[c->op], 0, from);
}

// Some steps, now one way and now the other; or all the way.
static void cursor_walk(struct actor *a, struct cursor *c) {
  bool forward = chance(&a->rng, 50);
  const bool all = chance(&a->rng, 20);
  for (uint64_t n = below(&a->rng, 60); (n || all) && remixdb_iter_valid(c->it); n -= n != 0) {
    if (!all && chance(&a->rng, 5)) forward = !forward;
    if (forward && !all && chance(&a->rng, 5)) {
      remixdb_iter_skip(c->it, (uint32_t)below(&a->rng, 50));
      (void)cursor_look(a, c);
    } else if (forward) {
      cursor_next(a, c);
    } else {
      cursor_prev(a, c);
    }
  }
}

static void act_iter(struct actor *a) {
  struct cursor *const c = &a->cursors[below(&a->rng, CURSORS)];
  const bool fresh = !c->it || !remixdb_iter_valid(c->it) || chance(&a->rng, 50);
  if (fresh) {
    c->op = a->nr;
    cursor_seek(a, c, a->ref, begin(a, "seek"));
  }
  if (chance(&a->rng, 70)) cursor_walk(a, c);
  if (chance(&a->rng, 5)) remixdb_iter_park(c->it);
  if (chance(&a->rng, 5)) {
    remixdb_iter_destroy(c->it);
    c->it = NULL;
  }
}

// ---- asynchronous gets: a get is of the moment of its beginning, however late its result is taken

static void gets_take(struct actor *a, size_t max, size_t min) {
  struct remixdb_got got[GETS];
  const size_t nr = remixdb_get_poll(a->gets, got, max, min);
  for (size_t i = 0; i < nr; i++) {
    struct getting *const g = got[i].priv;
    THREAD_CHECK(g->busy && (got[i].status == REMIXDB_OK || got[i].status == REMIXDB_NOTFOUND));
    g->busy = false;
    see(&a->ops[g->op], g->key,
        got[i].status == REMIXDB_OK ? parse_value(a, g->key, g->value, got[i].len) : (uint32_t)HIST_NONE);
  }
}

static void act_gets(struct actor *a) {
  struct getting *const g = &a->getting[below(&a->rng, GETS)];
  char kbuf[16];
  if (g->busy) {
    gets_take(a, 1 + below(&a->rng, GETS), below(&a->rng, 2));
    return;
  }
  *g = (struct getting){.op = a->nr, .key = (uint32_t)below(&a->rng, HIST_KEYS), .busy = true};
  struct hist_op *const o = begin(a, "asynchronous get");
  THREAD_CHECK(remixdb_get_begin(a->gets, kbuf, key_of(g->key, kbuf), g->value, VALUE_MAX, g));
  end(a, o);
}

// ---- snapshots

static void held_drop(struct held *h) {
  remixdb_unref(h->ref);
  remixdb_snapshot_release(h->s);
  *h = (struct held){0};
}

static void held_read(struct actor *a, struct held *h) {
  for (uint64_t n = 1 + below(&a->rng, HIST_KEYS); n; n--) {
    const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS);
    see_get(a, h->ref, &a->ops[h->op], key);
  }
  if (chance(&a->rng, 20)) see_many(a, h->ref, &a->ops[h->op]);
  if (!chance(&a->rng, 30)) return;
  struct cursor c = {.op = h->op};
  struct hist_op *const o = &a->ops[h->op];
  const uint64_t ret = o->ret;
  cursor_seek(a, &c, h->ref, o);
  o->ret = ret;  // a seek in a snapshot fixes nothing
  cursor_walk(a, &c);
  remixdb_iter_destroy(c.it);
}

static void act_snapshot(struct actor *a) {
  struct held *const h = &a->held[below(&a->rng, HELD)];
  if (h->s && chance(&a->rng, 30)) held_drop(h);
  if (!h->s) {
    h->op = a->nr;
    struct hist_op *const o = begin(a, "snapshot");
    h->s = remixdb_snapshot(a->ref);
    THREAD_CHECK(h->s);
    end(a, o);
    h->ref = remixdb_snapshot_ref(h->s);
    THREAD_CHECK(h->ref);
    if (chance(&a->rng, 20)) {  // a snapshot of it is of the same moment
      struct xdb_snapshot *const second = remixdb_snapshot(h->ref);
      THREAD_CHECK(second);
      held_drop(h);
      h->op = a->nr - 1;
      h->s = second;
      h->ref = remixdb_snapshot_ref(second);
      THREAD_CHECK(h->ref);
    }
  }
  held_read(a, h);
}

// ---- transactions: all reads are of the moment of the beginning. If the transaction has written and is committed,
// they are of the moment of the commit, too.

static void txn_read(struct actor *a, struct xdb_ref *ref, struct hist_op *o, const uint32_t *writes) {
  const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS);
  if (writes[key] == HIST_ANY) {
    see_get(a, ref, o, key);
    return;
  }
  struct hist_op own = {.what = ""};
  see_get(a, ref, &own, key);  // its own write
  THREAD_CHECK(own.reads[key] == writes[key] || (own.reads[key] == HIST_SOME && writes[key] >= HIST_FIRST));
}

static void txn_write(struct actor *a, struct xdb_ref *ref, uint32_t *writes) {
  const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS);
  char kbuf[16];
  uint32_t len;
  const uint32_t klen = key_of(key, kbuf);
  if (chance(&a->rng, 25)) {
    THREAD_CHECK(remixdb_del(ref, kbuf, klen));
    writes[key] = HIST_NONE;
    return;
  }
  writes[key] = new_value(a, key, &len);
  THREAD_CHECK(remixdb_put(ref, kbuf, klen, a->value, len));
}

static void txn_scan(struct actor *a, struct xdb_ref *ref, struct hist_op *o) {
  struct cursor c = {.op = (uint32_t)(o - a->ops)};
  const uint64_t ret = o->ret;
  cursor_seek(a, &c, ref, o);
  o->ret = ret;
  if (chance(&a->rng, 50)) cursor_walk(a, &c);
  remixdb_iter_destroy(c.it);
}

static void act_txn(struct actor *a) {
  uint32_t writes[HIST_KEYS] = {HIST_ANY}, before[HIST_KEYS];
  bool wrote = false;
  struct hist_op *const o = begin(a, "transaction's reads");
  struct xdb_txn *const t = remixdb_txn_begin(a->run->x);
  THREAD_CHECK(t);
  end(a, o);
  struct xdb_ref *const ref = remixdb_txn_ref(t, NULL);
  THREAD_CHECK(ref);
  for (uint64_t n = 1 + below(&a->rng, 6); n; n--) {
    const uint64_t dice = below(&a->rng, 100);
    if (dice < 50) txn_read(a, ref, o, writes);
    else if (dice < 58 && !wrote) txn_scan(a, ref, o);
    else if (dice < 62 && !wrote) see_many(a, ref, o);
    else txn_write(a, ref, writes);
    for (uint32_t k = 0; k < HIST_KEYS; k++) wrote |= writes[k] != HIST_ANY;
    if (!chance(&a->rng, 10)) continue;
    memcpy(before, writes, sizeof(before));
    THREAD_CHECK(remixdb_txn_savepoint(t));
    txn_write(a, ref, writes);
    THREAD_CHECK(remixdb_txn_rollback(t));
    memcpy(writes, before, sizeof(before));
  }
  if (chance(&a->rng, 20)) (void)sched_yield();
  if (chance(&a->rng, 5)) {
    remixdb_txn_abort(t);
    return;
  }
  struct hist_op *const c = begin(a, "transaction");
  const bool done = remixdb_txn_commit(t);
  end(a, c);
  THREAD_CHECK(done || (wrote && remixdb_errcode() == REMIXDB_ABORTED));
  atomic_fetch_add(done ? &a->run->committed : &a->run->conflicts, wrote);
  if (!done || !wrote) {
    memset(c, 0, sizeof(*c));
    a->nr--;
    return;
  }
  memcpy(c->reads, o->reads, sizeof(c->reads));
  memcpy(c->writes, writes, sizeof(c->writes));
}

static void *actor_main(void *arg) {
  struct actor *const a = arg;
  a->ref = remixdb_ref(a->run->x);
  THREAD_CHECK(a->ref);
  a->gets = remixdb_gets_create(a->ref, GETS);
  THREAD_CHECK(a->gets);
  for (uint32_t n = 0; n < a->run->nr_ops; n++) {
    const uint64_t dice = below(&a->rng, 100);
    if (dice < 20) act_put(a);
    else if (dice < 27) act_del(a);
    else if (dice < 35) act_get(a);
    else if (dice < 42) act_gets(a);
    else if (dice < 47) act_many(a);
    else if (dice < 57) act_batch(a);
    else if (dice < 64) act_merge(a);
    else if (dice < 75) act_txn(a);
    else if (dice < 87) act_iter(a);
    else if (dice < 99) act_snapshot(a);
    else if (chance(&a->rng, 80)) THREAD_CHECK(remixdb_sync(a->ref));
    else
      THREAD_CHECK(chance(&a->rng, 70)   ? remixdb_flush(a->ref)
                   : chance(&a->rng, 50) ? remixdb_compact(a->ref)
                                         : remixdb_compact_range(a->ref, &(struct remixdb_range){{"k", 1}, {NULL, 0}}));
    if (chance(&a->rng, 5)) (void)sched_yield();
  }
  gets_take(a, GETS, GETS);
  remixdb_gets_destroy(a->gets);
  for (uint32_t i = 0; i < HELD; i++)
    if (a->held[i].s) held_drop(&a->held[i]);
  for (uint32_t i = 0; i < CURSORS; i++) remixdb_iter_destroy(a->cursors[i].it);
  remixdb_unref(a->ref);
  atomic_fetch_sub(&a->run->busy, 1);
  return NULL;
}

// Deletes the records between the keys, one after the other, for a while, so that the keys stand among many tombstones.
static void sweep(struct actor *a) {
  const bool back = chance(&a->rng, 50);
  const uint32_t all = HIST_KEYS * FILLERS;
  char kbuf[16];
  uint32_t at = chance(&a->rng, 50) ? (back ? all - 1 : 0) : (uint32_t)below(&a->rng, all);
  for (uint64_t n = below(&a->rng, all); n && at < all; n--, at += back ? UINT32_MAX : 1)
    THREAD_CHECK(remixdb_del(a->ref, kbuf, filler_of(at / FILLERS, at % FILLERS, kbuf)));
}

// Writes records between the keys, and so fills memtables. In every second history most of them are tombstones.
static void *filler_main(void *arg) {
  struct actor *const a = arg;
  a->ref = remixdb_ref(a->run->x);
  THREAD_CHECK(a->ref);
  char kbuf[16];
  memset(a->value, 'f', sizeof(a->value));
  while (atomic_load(&a->run->busy)) {
    const uint32_t klen = filler_of((uint32_t)below(&a->rng, HIST_KEYS), (uint32_t)below(&a->rng, FILLERS), kbuf);
    if (a->run->sweeps && chance(&a->rng, 4)) sweep(a);
    else if (chance(&a->rng, a->run->sweeps ? 97 : 25)) THREAD_CHECK(remixdb_del(a->ref, kbuf, klen));
    else THREAD_CHECK(remixdb_put(a->ref, kbuf, klen, a->value, (uint32_t)below(&a->rng, 1500)));
    if (chance(&a->rng, 20)) time_sleep_ns(20000);
  }
  remixdb_unref(a->ref);
  return NULL;
}

struct history {
  struct hist_op *ops;
  uint32_t nr;
};

static struct actor *actor_create(struct run *r, uint32_t id, uint32_t cap) {
  struct actor *const a = calloc(1, sizeof(*a));
  CHECK(a);
  a->run = r;
  a->id = id;
  a->cap = cap;
  a->ops = calloc(cap ? cap : 1, sizeof(*a->ops));
  CHECK(a->ops);
  a->rng = check_seed * 1000 + id;
  return a;
}

static void run_open(struct run *r, size_t memtable, uint32_t pages) {
  r->x = NULL;
  expect_reads(check_seed / 4);
  OK(xdb_open(dir, &r->opts, r->env, &r->x));
  shrink(r->x, memtable, pages);
  r->x->compact.young_from = (uint32_t)(check_seed % 4) * 2;  // none, or as soon as may be
}

// Gives the actors' operations, and a look at everything after all of them, after closing and opening once more too.
static struct history record(uint32_t nr_ops, int workers, bool print) {
  uint64_t rng = check_seed;
  struct run r = {.nr_ops = nr_ops, .sweeps = check_seed % 2 != 0, .opts = small_opts(workers)};
  // most histories do not wait for the disk, so that more happens at once; the real one has the engines that read ahead
  r.env = chance(&rng, 20) ? env_posix() : quick_env();
  r.opts.tags = chance(&rng, 50);
  r.opts.ckeys = chance(&rng, 50);
  r.opts.cache_mb = chance(&rng, 50);
  r.opts.compression = chance(&rng, 25) ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  atomic_init(&r.clock, 1);
  atomic_init(&r.busy, ACTORS);
  const size_t memtable = (size_t)(100 + below(&rng, 500)) << 10;
  const uint32_t pages = 4 + (uint32_t)below(&rng, 40);
  run_open(&r, memtable, pages);
  struct actor *actors[ACTORS + 2];
  pthread_t threads[ACTORS + 1];
  for (uint32_t i = 0; i <= ACTORS; i++) {
    actors[i] = actor_create(&r, i, i < ACTORS ? 2 * nr_ops : 0);
    OK(thread_start(&threads[i], i < ACTORS ? actor_main : filler_main, actors[i], "history"));
  }
  for (uint32_t i = 0; i <= ACTORS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  struct actor *const last = actors[ACTORS + 1] = actor_create(&r, ACTORS + 1, 4 * HIST_KEYS);
  const uint64_t rounds = stat_of(r.x, "rounds"), partitions = stat_of(r.x, "partitions");
  for (uint32_t round = 0; round < 4; round++) {
    last->ref = remixdb_ref(r.x);
    CHECK(last->ref);
    for (uint32_t k = 0; k < HIST_KEYS; k++) {
      struct hist_op *const o = begin(last, "get");
      see_get(last, last->ref, o, k);
      end(last, o);
    }
    CHECK(stat_of(r.x, "count") == 0 && stat_of(r.x, "iterators") == 0);
    remixdb_unref(last->ref);
    if (round == 1) OK(xdb_flush(r.x));
    if (round != 2) continue;
    remixdb_close(r.x);
    CHECK(remixdb_errcode() == REMIXDB_OK);
    run_open(&r, memtable, pages);
  }
  remixdb_close(r.x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  struct history h = {hist_alloc(2 * ACTORS * (size_t)nr_ops + 4 * HIST_KEYS, sizeof(*h.ops)), 0};
  for (uint32_t i = 0; i < ACTORS + 2; i++) {
    memcpy(h.ops + h.nr, actors[i]->ops, actors[i]->nr * sizeof(*h.ops));
    h.nr += actors[i]->nr;
    free(actors[i]->ops);
    free(actors[i]);
  }
  if (print)
    print_message("%u operations, %llu rounds, %llu partitions, %u transactions committed and %u not", h.nr,
                  (unsigned long long)rounds, (unsigned long long)partitions, atomic_load(&r.committed),
                  atomic_load(&r.conflicts));
  return h;
}

static void check_history(const struct history *h) {
  static char why[8000];
  uint32_t peak;
  why[0] = '\0';
  if (hist_check(h->ops, h->nr, why, sizeof(why), &peak) != HIST_GOOD)
    fail_msg("TEST_SEED=%llu: %s", (unsigned long long)check_seed, why);
  print_message(", at most %u configurations at a time\n", peak);
}

static uint32_t run_history(uint64_t s, uint32_t nr_ops, int workers) {
  check_seed = s;
  struct history h = record(nr_ops, workers, true);
  check_history(&h);
  free(h.ops);
  setup_again();
  return h.nr;
}

static void test_alone(void **state) {
  (void)state;
  (void)run_history(check_seed_or(100), 1500 / SLOW, 0);
}

static void test_workers(void **state) {
  (void)state;
  const char *const soak = getenv("SOAK_SECONDS");
  if (soak && *soak) {
    const uint64_t until = time_ns() + strtoull(soak, NULL, 10) * 1000000000ull,
                   first = check_seed_or(time_ns() / 1000);
    uint64_t nr = 0, s = first;
    for (; time_ns() < until; s++) nr += run_history(s, 6000 / SLOW, (int)(s % 3));
    print_message("%llu operations in %llu histories\n", (unsigned long long)nr, (unsigned long long)(s - first));
    return;
  }
  for (uint32_t i = 0; i < 4; i++) (void)run_history(check_seed_or(200) + i, 2500 / SLOW, 1 + (int)(i % 2));
}

// ---- spoiling

struct written {  // by whom a value was written
  const struct hist_op *op;
  uint32_t key;
};

struct book {
  struct written *by;  // by value
  uint32_t nr;
};

static struct book book_make(const struct history *h) {
  struct book b = {NULL, 0};
  for (uint32_t i = 0; i < h->nr; i++)
    for (uint32_t k = 0; k < HIST_KEYS; k++)
      if (h->ops[i].writes[k] >= b.nr) b.nr = h->ops[i].writes[k] + 1;
  b.by = hist_alloc(b.nr, sizeof(*b.by));
  for (uint32_t i = 0; i < h->nr; i++)
    for (uint32_t k = 0; k < HIST_KEYS; k++)
      if (h->ops[i].writes[k] >= HIST_FIRST) b.by[h->ops[i].writes[k]] = (struct written){&h->ops[i], k};
  return b;
}

// A value of the key whose writer had returned before `before` was called; HIST_ANY: none was found.
static uint32_t older_value(const struct book *b, uint32_t key, const struct hist_op *before, uint64_t *rng) {
  for (uint32_t tries = 0; tries < 2000; tries++) {
    const uint32_t v = (uint32_t)below(rng, b->nr);
    if (b->by[v].op && b->by[v].key == key && b->by[v].op->ret < before->call) return v;
  }
  return HIST_ANY;
}

enum spoil { STALE, FUTURE, SPLIT_BATCH, SWAP, LOST_UPDATE, HOLE, SPOILS };

// Changes the values that one operation read (in two cases another's too) so that no order can explain them. False:
// there is no place here.
static bool spoil_one(const struct book *b, struct hist_op *ops, uint32_t nr, enum spoil how, uint64_t *rng) {
  struct hist_op *const r = &ops[below(rng, nr)];
  const uint32_t k = (uint32_t)below(rng, HIST_KEYS), v = r->reads[k];
  const struct hist_op *const w = v >= HIST_FIRST ? b->by[v].op : NULL;
  switch (how) {
    case STALE:  // the value before a write that had returned
      if (!w || w->ret >= r->call || r->writes[k] != HIST_ANY) return false;
      r->reads[k] = older_value(b, k, w, rng);
      return r->reads[k] != HIST_ANY;
    case FUTURE: {  // a value that was written after it returned
      const struct hist_op *const x = &ops[below(rng, nr)];
      if (v == HIST_ANY || x->writes[k] < HIST_FIRST || x->call <= r->ret) return false;
      r->reads[k] = x->writes[k];
      return true;
    }
    case SPLIT_BATCH:  // one key with the batch, another as it was before
      for (uint32_t j = 0; w && j < HIST_KEYS; j++) {
        if (j == k || w->writes[j] < HIST_FIRST || r->reads[j] != w->writes[j]) continue;
        r->reads[j] = older_value(b, j, w, rng);
        return r->reads[j] != HIST_ANY;
      }
      return false;
    case SWAP: {  // two reads, of which one came after the other
      struct hist_op *const q = &ops[below(rng, nr)];
      const struct hist_op *const x = q->reads[k] >= HIST_FIRST ? b->by[q->reads[k]].op : NULL;
      if (!w || !x || r->ret >= q->call || w->ret >= x->call) return false;
      r->reads[k] = q->reads[k];
      q->reads[k] = v;
      return true;
    }
    case LOST_UPDATE:  // a merge that did not see the write before it
      if (!w || w->ret >= r->call || r->writes[k] < HIST_FIRST) return false;
      r->reads[k] = older_value(b, k, w, rng);
      return r->reads[k] != HIST_ANY;
    case HOLE:  // the key is missing though it is there before and after
      for (uint32_t i = 0; w && w->ret < r->call && r->writes[k] == HIST_ANY && i < nr; i++)
        if (ops[i].reads[k] == v && ops[i].call > r->ret) {
          r->reads[k] = HIST_NONE;
          return true;
        }
      return false;
    default: return false;
  }
}

static void test_checker_spoilt(void **state) {
  (void)state;
  check_seed = check_seed_or(300);
  struct history h = record(400, 1, true);
  check_history(&h);
  const struct book b = book_make(&h);
  struct hist_op *const ops = hist_alloc(h.nr, sizeof(*ops));
  uint64_t rng = check_seed;
  for (enum spoil how = 0; how < SPOILS; how++) {
    uint32_t done = 0;
    for (uint32_t tries = 0; done < 40 && tries < 1000000; tries++) {
      memcpy(ops, h.ops, h.nr * sizeof(*ops));
      if (!spoil_one(&b, ops, h.nr, how, &rng)) continue;
      if (hist_check(ops, h.nr, NULL, 0, NULL) != HIST_BAD)
        fail_msg("TEST_SEED=%llu: a history that was spoilt (%d, try %u) is taken for good",
                 (unsigned long long)check_seed, (int)how, tries);
      done++;
    }
    if (done < 40)
      fail_msg("TEST_SEED=%llu: only %u places to spoil (%d)", (unsigned long long)check_seed, done, (int)how);
  }
  free(ops);
  free(b.by);
  free(h.ops);
}

// An argument names the tests to run, as in "test_w*".
int main(int argc, char **argv) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_checker_all_orders),
      cmocka_unit_test_setup_teardown(test_checker_spoilt, setup, teardown),
      cmocka_unit_test_setup_teardown(test_alone, setup, teardown),
      cmocka_unit_test_setup_teardown(test_workers, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
