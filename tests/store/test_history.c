// SPDX-License-Identifier: Apache-2.0
//
// Threads use the store in every way there is, on few keys, and write down their calls, the answers and the times. Then
// the history is checked: could it have happened one call after the other (tests/lib/history.h)? So no write is lost or
// comes late, no read is stale or from the future, no batch, deletion of a range or ingest is seen in part, a merge or
// a put by version loses nothing, versions ascend, records expire when the clock says so and not before, transactions
// are serializable, and all that is read of one snapshot, or of an iterator between two seeks, is of one moment within
// the call that fixed it. The actors move the clocks of the store.
//
// The checker is checked first: by one small history for each fault; against trying all orders, on small histories,
// both good and bad ones; then by spoiling good recorded ones in ways that it must find.
//
// TEST_SEED in the environment gives the random choices (not the threads' interleaving); SOAK_SECONDS goes on with new
// seeds that long.
#include <sched.h>

#include "base/thread.h"
#include "tests/lib/starve.h"
#include "tests/lib/check.h"
#include "tests/lib/expect.h"
#include "tests/lib/history.h"
#include "tests/lib/store.h"
#include "store/ranges.h"

// ---- the checker on one history for each fault, beside one without it

#define V(n) (HIST_FIRST + (n))  // a value
#define PLANTED 5u               // operations

struct planted {
  const char *name;
  struct hist_op ops[PLANTED];
  uint64_t versions[HIST_FIRST + 4], expires[HIST_FIRST + 4];  // values V(n): their versions and their times
  bool bad;
};

#define AT(from, to) .call = (from), .ret = (to), .what = ""
#define BOTH(a, b) \
  { [0] = (a), [1] = (b) }  // keys 0 and 1
#define PUT_BOTH \
  { AT(1, 2), .writes = BOTH(V(0), V(1)) }
#define DEL_BOTH \
  { AT(3, 4), .writes = BOTH(HIST_NONE, HIST_NONE) }
#define INGEST \
  { AT(3, 20), .ingest = true, .writes = BOTH(V(2), V(3)) }
#define VERSIONS(...) \
  { [HIST_FIRST] = __VA_ARGS__ }

static const struct planted planted[] = {
    {.name = "a range that is gone", .ops = {PUT_BOTH, DEL_BOTH, {AT(5, 6), .reads = BOTH(HIST_NONE, HIST_NONE)}}},
    {.name = "half a range is gone",
     .ops = {PUT_BOTH, DEL_BOTH, {AT(5, 6), .reads = BOTH(HIST_NONE, V(1))}},
     .bad = true},
    {.name = "half a range, seen meanwhile",
     .ops = {PUT_BOTH, {AT(3, 9), .writes = BOTH(HIST_NONE, HIST_NONE)}, {AT(5, 6), .reads = BOTH(V(0), HIST_NONE)}},
     .bad = true},
    {.name = "an ingest", .ops = {PUT_BOTH, INGEST, {AT(21, 22), .reads = BOTH(V(2), V(3))}}},
    {.name = "half an ingest", .ops = {PUT_BOTH, INGEST, {AT(21, 22), .reads = BOTH(V(2), V(1))}}, .bad = true},
    {.name = "half an ingest, seen meanwhile",
     .ops = {PUT_BOTH, INGEST, {AT(8, 9), .reads = BOTH(V(0), V(3))}},
     .bad = true},
    {.name = "a put before an ingest",
     .ops = {{AT(1, 2), .writes = BOTH(HIST_ANY, V(1))},
             INGEST,
             {AT(5, 6), .writes = {V(0)}},
             {AT(8, 9), .reads = BOTH(V(0), V(1))}}},
    {.name = "a put that an ingest passes by",
     .ops = {{AT(1, 2), .writes = BOTH(HIST_ANY, V(1))},
             INGEST,
             {AT(5, 6), .writes = {V(0)}},
             {AT(8, 9), .reads = BOTH(V(0), V(1))},
             {AT(21, 22), .reads = BOTH(V(0), V(3))}},
     .bad = true},
    {.name = "an ingest that gives way to what came before it",
     .ops = {PUT_BOTH, INGEST, {AT(21, 22), .reads = BOTH(V(0), V(3))}},
     .bad = true},
    {.name = "an ingest in the midst of a merge",
     .ops = {{AT(1, 2), .writes = {V(0)}},
             INGEST,
             {AT(5, 6), .reads = {V(0)}, .writes = {V(1)}},
             {AT(21, 22), .reads = BOTH(V(1), V(3))}},
     .bad = true},
    {.name = "versions that ascend",
     .ops = {{AT(1, 2), .writes = {V(0)}}, {AT(3, 4), .writes = {V(1)}}},
     .versions = VERSIONS(7, 9)},
    {.name = "versions that descend",
     .ops = {{AT(1, 2), .writes = {V(0)}}, {AT(3, 4), .writes = {V(1)}}},
     .versions = VERSIONS(9, 7),
     .bad = true},
    {.name = "one version after a delete",
     .ops = {{AT(1, 2), .writes = {V(0)}}, {AT(3, 4), .writes = {HIST_NONE}}, {AT(5, 6), .writes = {V(1)}}},
     .versions = VERSIONS(7, 7),
     .bad = true},
    {.name = "two puts by version, one refused",
     .ops = {{AT(1, 2), .writes = {V(0)}},
             {AT(3, 9), .reads = {V(0)}, .writes = {V(1)}},
             {AT(4, 8), .reads = {HIST_NOT | V(0)}}}},
    {.name = "two puts by one version",
     .ops = {{AT(1, 2), .writes = {V(0)}},
             {AT(3, 9), .reads = {V(0)}, .writes = {V(1)}},
             {AT(4, 8), .reads = {V(0)}, .writes = {V(2)}}},
     .bad = true},
    {.name = "a put by the right version that is refused",
     .ops = {{AT(1, 2), .writes = {V(0)}}, {AT(3, 4), .reads = {HIST_NOT | V(0)}}, {AT(5, 6), .reads = {V(0)}}},
     .bad = true},
    {.name = "a put of what is absent that is refused", .ops = {{AT(3, 4), .reads = {HIST_SOME}}}, .bad = true},
    {.name = "a value before and after it expires",
     .ops = {{AT(1, 2), .writes = {V(0)}},
             {AT(3, 4), .clock = {98, 99}, .reads = {V(0)}},
             {AT(5, 6), .clock = {100, 100}, .reads = {HIST_NONE}}},
     .expires = VERSIONS(100)},
    {.name = "an expired value",
     .ops = {{AT(1, 2), .writes = {V(0)}}, {AT(3, 4), .clock = {100, 101}, .reads = {HIST_SOME}}},
     .expires = VERSIONS(100),
     .bad = true},
    {.name = "a value that goes too early",
     .ops = {{AT(1, 2), .writes = {V(0)}}, {AT(3, 4), .clock = {98, 99}, .reads = {HIST_NONE}}},
     .expires = VERSIONS(100),
     .bad = true},
    {.name = "two times in one read",
     .ops = {PUT_BOTH, {AT(3, 4), .clock = {90, 110}, .reads = BOTH(HIST_NONE, V(1))}},
     .expires = VERSIONS(100, 95),
     .bad = true},
    {.name = "a snapshot that goes by the clock of later",
     .ops = {PUT_BOTH, {AT(3, 4), .clock = {90, 91}, .reads = BOTH(HIST_NONE, V(1))}},
     .expires = VERSIONS(100),
     .bad = true},
    {.name = "a put by version of an expired value",
     .ops = {{AT(1, 2), .writes = {V(0)}}, {AT(3, 4), .clock = {100, 101}, .reads = {V(0)}, .writes = {V(1)}}},
     .expires = VERSIONS(100),
     .bad = true},
};

static void test_checker_planted(void **state) {
  (void)state;
  for (uint32_t i = 0; i < sizeof(planted) / sizeof(planted[0]); i++) {
    const struct planted *const t = &planted[i];
    const struct hist_values values = {t->versions, t->expires};
    char why[2000] = "";
    uint32_t nr = 0;
    while (nr < PLANTED && t->ops[nr].call) nr++;
    const enum hist_verdict v = hist_check(t->ops, nr, &values, why, sizeof(why), NULL);
    if (v != (t->bad ? HIST_BAD : HIST_GOOD)) fail_msg("%s: the checker says %d%s", t->name, (int)v, why);
  }
}

// ---- the checker against trying all orders

#define TINY 6u

struct tiny {
  struct hist_op ops[TINY];
  uint32_t nr;
  uint64_t versions[64], expires[64];
};

// The values now, and the newest of each key.
struct tiny_state {
  uint32_t now[HIST_KEYS], newest[HIST_KEYS];
};

static bool tiny_holds(const struct tiny *t, const struct hist_op *o, const struct tiny_state *s) {
  for (uint64_t time = o->clock[0]; time <= o->clock[1]; time++) {
    bool all = true;
    for (uint32_t k = 0; k < 2; k++) {
      const uint32_t r = o->reads[k], raw = s->now[k];
      const uint32_t now = raw >= HIST_FIRST && t->expires[raw] && time >= t->expires[raw] ? (uint32_t)HIST_NONE : raw;
      all &= r == HIST_ANY || (r & HIST_NOT ? now != (r & ~HIST_NOT) : r == HIST_SOME ? now != HIST_NONE : now == r);
    }
    if (all) return true;
  }
  return false;
}

// Any operation that no other must come before may be the next (Wing and Gong).
static bool tiny_orders(const struct tiny *t, uint32_t placed, const struct tiny_state *now) {
  if (placed == (1u << t->nr) - 1) return true;
  for (uint32_t i = 0; i < t->nr; i++) {
    const struct hist_op *const o = &t->ops[i];
    bool first = !(placed >> i & 1);
    for (uint32_t j = 0; j < t->nr && first; j++) first = (placed >> j & 1) || t->ops[j].ret >= o->call;
    if (!first) continue;
    struct tiny_state next = *now;
    bool can = tiny_holds(t, o, now);
    for (uint32_t k = 0; k < 2; k++) {
      if (o->writes[k] == HIST_ANY) continue;
      next.now[k] = o->writes[k];
      if (o->writes[k] == HIST_NONE || !t->versions[o->writes[k]]) continue;
      can &= now->newest[k] == 0 || t->versions[now->newest[k]] < t->versions[o->writes[k]];
      next.newest[k] = o->writes[k];
    }
    if (can && tiny_orders(t, placed | 1u << i, &next)) return true;
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
    o->clock[0] = o->call / 4;
    o->clock[1] = o->ret / 4;
    const uint32_t kind = (uint32_t)below(rng, 6);
    o->ingest = kind == 2 && chance(rng, 40);
    for (uint32_t k = 0; k < 2; k++) {
      if (kind == k || kind == 2) o->writes[k] = !o->ingest && chance(rng, 20) ? (uint32_t)HIST_NONE : value++;
      if (o->writes[k] >= HIST_FIRST) {
        t->versions[o->writes[k]] = chance(rng, 30) ? 1 + o->call + below(rng, 4) : 0;
        t->expires[o->writes[k]] = chance(rng, 20) ? o->clock[0] + 1 + below(rng, 3) : 0;
      }
      if ((kind == 3 + k || kind == 5) && value > HIST_FIRST)
        o->reads[k] = chance(rng, 30)
                          ? (chance(rng, 50) ? HIST_NONE : HIST_SOME)
                          : (HIST_FIRST + (uint32_t)below(rng, value - HIST_FIRST)) | (chance(rng, 15) ? HIST_NOT : 0);
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
  struct tiny_state start = {0};
  for (uint32_t k = 0; k < HIST_KEYS; k++) start.now[k] = HIST_NONE;
  for (uint32_t i = 0; i < usual_or_long(20000, 60000) / SLOW; i++) {
    struct tiny t;
    tiny_make(&t, &rng);
    char why[2000] = "";
    const bool can = tiny_orders(&t, 0, &start);
    const struct hist_values values = {t.versions, t.expires};
    const enum hist_verdict v = hist_check(t.ops, t.nr, &values, why, sizeof(why), NULL);
    if (v != (can ? HIST_GOOD : HIST_BAD)) {
      for (uint32_t o = 0; o < t.nr; o++) hist_print_op(why, sizeof(why), &t.ops[o]);
      fail_msg("TEST_SEED=%llu, history %u: %s order explains it, the checker says %d%s",
               (unsigned long long)check_seed, i, can ? "an" : "no", (int)v, why);
    }
    *(can ? &good : &bad) += 1;
  }
  print_message("%u histories with an order, %u without\n", good, bad);
  CHECK(good > 300 / SLOW && bad > 300 / SLOW);
}

// ---- recording. Key i lies between other keys, so that batches and scans cross leaves, blocks and partitions.

#define ACTORS 5u
#define FILLERS 120u  // between two keys
#define VALUE_MIN 16u
#define VALUE_MAX 40000u  // longer than what stays with its key
#define HELD 3u
#define CURSORS 2u

struct run {
  struct xdb *x;
  struct env *env;
  struct remixdb_opts opts;
  _Atomic uint64_t clock;
  _Atomic uint32_t busy;                  // actors that have not ended
  _Atomic uint32_t committed, conflicts;  // transactions that wrote
  _Atomic uint32_t compared, refused;     // writes by version
  _Atomic uint32_t ingests;
  uint32_t nr_ops;             // operations of each actor
  _Atomic uint64_t *versions;  // the values' versions, by number; 0: no call has told it. All tell the same
  uint64_t *expires;           // set by the actor that writes the value
  uint32_t nr_values;
  bool sweeps;  // the records between the keys are deleted most of the time
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

// The clocks of the store. Relaxed, as the ticks are.
static _Atomic uint64_t wall = 1700000000000, steady;
static uint64_t wall_ms(void *arg) { return (void)arg, atomic_load_explicit(&wall, memory_order_relaxed); }
static uint64_t steady_ms(void *arg) { return (void)arg, atomic_load_explicit(&steady, memory_order_relaxed); }
static const struct env_clock test_clock = {wall_ms, steady_ms, NULL};

struct held {  // a snapshot, and the operation that its reads belong to
  struct xdb_snapshot *s;
  struct xdb_ref *ref;
  uint32_t op;
};

struct cursor {  // an iterator and the operation of its last seek
  struct xdb_iter *it;
  uint32_t op;
  int at;                        // its place: 2 i on key i, 2 i + 1 on a filler after it; not on a key: out
  int low, high;                 // the keys within its bounds and its prefix have places low <= place < high
  struct kref from, to, prefix;  // those; ptr NULL: none
  char from_buf[16], to_buf[16], prefix_buf[16];
  bool keys_only, fixed;  // fixed: all its seeks are of `op`
  char key[16];           // where it stands; klen 0: nowhere
  uint32_t klen;
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
  struct known {  // the last getv of each key told this; value 0: no such call yet; version 0: absent
    uint32_t value;
    uint64_t version;
  } known[HIST_KEYS];
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

// Values follow from their numbers and their expiry; a few are of several blocks, or lie apart from their keys.
static uint32_t value_of(uint32_t id, uint32_t key, uint64_t expires, uint8_t *buf) {
  uint64_t rng = (uint64_t)id << 8 | key;
  const uint64_t r = rng_next(&rng);
  const uint32_t most = r % 32 ? 200 : r % 256 ? 6000 : VALUE_MAX - VALUE_MIN;
  const uint32_t len = VALUE_MIN + (uint32_t)(r >> 8) % most;
  memset(buf, (int)(r >> 40), len);
  store32le(buf, id);
  store32le(buf + 4, key);
  store64le(buf + 8, expires);
  return len;
}

static uint32_t parse_value(struct actor *a, uint32_t key, const void *val, uint32_t len) {
  THREAD_CHECK(len >= VALUE_MIN);
  const uint32_t id = load32le(val);
  THREAD_CHECK(id >= HIST_FIRST && value_of(id, key, load64le((const uint8_t *)val + 8), a->want) == len &&
               memcmp(a->want, val, len) == 0);
  return id;
}

// Numbers that no other actor gives. The value is in a->value.
static uint32_t new_expiring(struct actor *a, uint32_t key, uint64_t expires, uint32_t *len_out) {
  const uint32_t id = HIST_FIRST + a->next_value++ * ACTORS + a->id;
  THREAD_CHECK(id < a->run->nr_values);
  *len_out = value_of(id, key, expires, a->value);
  a->run->expires[id] = expires;
  return id;
}

static uint32_t new_value(struct actor *a, uint32_t key, uint32_t *len_out) { return new_expiring(a, key, 0, len_out); }

static struct hist_op *begin(struct actor *a, const char *what) {
  THREAD_CHECK(a->nr < a->cap);
  struct hist_op *const o = &a->ops[a->nr++];
  o->what = what;
  o->thread = a->id;
  o->clock[0] = wall_ms(NULL);
  o->call = tick(a->run);
  return o;
}

static void end(struct actor *a, struct hist_op *o) {
  o->ret = tick(a->run);
  o->clock[1] = wall_ms(NULL);
}

// The operation wrote the value. If the clock came past its expiry meanwhile, that may have been a delete.
static void written(struct actor *a, struct hist_op *o, uint32_t key, uint32_t id) {
  const uint64_t expires = a->run->expires[id];
  o->writes[key] = expires && expires <= o->clock[0] ? (uint32_t)HIST_NONE : id;
  if (expires && expires <= o->clock[1]) a->run->expires[id] = expires | HIST_LATE;
}

// The store told the version of a value, perhaps once more.
static void versioned(struct actor *a, uint32_t id, uint64_t version) {
  uint64_t was = 0;
  THREAD_CHECK(version != 0);
  if (!atomic_compare_exchange_strong_explicit(&a->run->versions[id], &was, version, memory_order_relaxed,
                                               memory_order_relaxed))
    THREAD_CHECK(was == version);
}

// A time at which a record that is put now may expire, in the past now and then; mostly 0.
static uint64_t new_expiry(struct actor *a) {
  if (!chance(&a->rng, 25)) return 0;
  return wall_ms(NULL) + below(&a->rng, 300) - (chance(&a->rng, 5) ? 300 : 0);
}

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
  switch (below(&a->rng, ref->txn ? 6 : 7)) {  // its own writes have no versions
    case 3: {
      uint32_t n = 0;
      if (remixdb_get_part(ref, kbuf, klen, 0, a->got, sizeof(a->got), &n, &len)) {
        THREAD_CHECK(n == len);
        see(o, key, parse_value(a, key, a->got, len));
        return;
      }
      break;
    }
    case 6: {
      uint64_t version;
      if (remixdb_getv(ref, kbuf, klen, a->got, sizeof(a->got), &len, &version)) {
        const uint32_t id = parse_value(a, key, a->got, len);
        versioned(a, id, version);
        see(o, key, id);
        return;
      }
      break;
    }
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
  const uint64_t expires = new_expiry(a);
  const uint32_t klen = key_of(key, kbuf), id = new_expiring(a, key, expires, &len);
  struct hist_op *const o = begin(a, "put");
  THREAD_CHECK(expires ? remixdb_put_expire(a->ref, kbuf, klen, a->value, len, expires)
                       : remixdb_put(a->ref, kbuf, klen, a->value, len));
  end(a, o);
  written(a, o, key, id);
}

// Reads a version, now or before, and writes by it: another write may have come between.
static void act_compare(struct actor *a) {
  const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS);
  char kbuf[16];
  uint32_t len;
  const uint32_t klen = key_of(key, kbuf);
  struct known *const k = &a->known[key];
  if (!k->value || chance(&a->rng, 70)) {
    struct hist_op *const o = begin(a, "getv");
    *k = (struct known){HIST_NONE, 0};
    if (remixdb_getv(a->ref, kbuf, klen, a->got, sizeof(a->got), &len, &k->version)) {
      k->value = parse_value(a, key, a->got, len);
      versioned(a, k->value, k->version);
    } else {
      THREAD_CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
    }
    end(a, o);
    o->reads[key] = k->value;
  }
  if (chance(&a->rng, 20)) (void)sched_yield();
  const bool del = k->version && chance(&a->rng, 30);
  const uint32_t id = new_value(a, key, &len);
  struct hist_op *const o = begin(a, del ? "del_if" : "put_if");
  const bool done = del ? remixdb_del_if(a->ref, kbuf, klen, k->version)
                        : remixdb_put_if(a->ref, kbuf, klen, a->value, len, k->version);
  THREAD_CHECK(done || remixdb_errcode() == REMIXDB_ABORTED);
  end(a, o);
  o->reads[key] = done ? k->value : k->version ? HIST_NOT | k->value : (uint32_t)HIST_SOME;
  if (done) o->writes[key] = del ? (uint32_t)HIST_NONE : id;
  atomic_fetch_add(done ? &a->run->compared : &a->run->refused, 1);
}

// A range with few of the keys, mostly; writes[k] becomes HIST_NONE for each of them. Its bounds lie in bufs.
static struct remixdb_range new_range(struct actor *a, uint32_t *writes, char bufs[2][16]) {
  const uint32_t nr = chance(&a->rng, 98) ? (uint32_t)below(&a->rng, 4) : (uint32_t)below(&a->rng, HIST_KEYS);
  const uint32_t first = (uint32_t)below(&a->rng, HIST_KEYS), end = first + nr < HIST_KEYS ? first + nr : HIST_KEYS;
  const bool behind = chance(&a->rng, 30), open = end == HIST_KEYS, ahead = !open && chance(&a->rng, 30);
  const struct remixdb_slice from = {bufs[0], behind ? filler_of(first, 7, bufs[0]) : key_of(first, bufs[0])};
  const struct remixdb_slice to = {bufs[1], ahead ? filler_of(end, 7, bufs[1]) : key_of(end, bufs[1])};
  for (uint32_t k = first + behind; k < end + ahead; k++) writes[k] = HIST_NONE;
  return (struct remixdb_range){from, open ? (struct remixdb_slice){NULL, 0} : to};
}

static void act_del_range(struct actor *a) {
  uint32_t writes[HIST_KEYS] = {HIST_ANY};
  char bufs[2][16];
  const struct remixdb_range range = new_range(a, writes, bufs);
  struct hist_op *const o = begin(a, "del_range");
  THREAD_CHECK(remixdb_del_range(a->ref, &range));
  end(a, o);
  memcpy(o->writes, writes, sizeof(writes));
}

// Sorted records straight into tables.
static void act_ingest(struct actor *a) {
  uint32_t writes[HIST_KEYS] = {HIST_ANY}, len;
  char kbuf[16];
  struct xdb_ingest *const g = remixdb_ingest_begin(a->ref);
  THREAD_CHECK(g);
  const uint32_t percent = 20 + (uint32_t)below(&a->rng, 80), fillers = (uint32_t)below(&a->rng, 40);
  for (uint32_t k = 0; k < HIST_KEYS; k++) {
    if (chance(&a->rng, percent)) {
      writes[k] = new_value(a, k, &len);
      THREAD_CHECK(remixdb_ingest_put(g, kbuf, key_of(k, kbuf), a->value, len));
    }
    for (uint32_t i = 0; i < fillers; i++)
      THREAD_CHECK(remixdb_ingest_put(g, kbuf, filler_of(k, 3 * i, kbuf), "ingest", 6));
  }
  if (chance(&a->rng, 10)) {
    remixdb_ingest_abort(g);
    return;
  }
  struct hist_op *const o = begin(a, "ingest");
  THREAD_CHECK(remixdb_ingest_commit(g));
  end(a, o);
  o->ingest = true;
  memcpy(o->writes, writes, sizeof(writes));
  atomic_fetch_add(&a->run->ingests, 1);
}

// Time goes by; now and then so much that compaction may remove what has expired.
static void act_clock(struct actor *a) {
  atomic_fetch_add_explicit(&wall, 1 + below(&a->rng, 20), memory_order_relaxed);
  atomic_fetch_add_explicit(&steady, below(&a->rng, chance(&a->rng, 30) ? 2 * REMIXDB_EXPIRY_SETTLES_MS : 10),
                            memory_order_relaxed);
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
    if (chance(&a->rng, 3)) {
      char bufs[2][16];
      const struct remixdb_range range = new_range(a, writes, bufs);
      THREAD_CHECK(remixdb_batch_del_range(b, &range));
      continue;
    }
    if (chance(&a->rng, 20)) {
      THREAD_CHECK(remixdb_batch_del(b, kbuf, key_of(key, kbuf)));
      writes[key] = HIST_NONE;
      continue;
    }
    const uint64_t expires = new_expiry(a);
    writes[key] = new_expiring(a, key, expires, &len);
    THREAD_CHECK(remixdb_batch_put_expire(b, kbuf, key_of(key, kbuf), a->value, len, expires));
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
  for (uint32_t k = 0; k < HIST_KEYS; k++)
    if (writes[k] >= HIST_FIRST) written(a, o, k, writes[k]);
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
    const uint64_t expires = v0 ? load64le((const uint8_t *)v0 + 8) : 0;  // the new value keeps it
    m->a->run->expires[m->id] = expires;
    m->len = value_of(m->id, m->key, expires, m->a->value);
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
  if (m.op == REMIXDB_MERGE_PUT) {
    o->writes[m.key] = m.id;
    if (a->run->expires[m.id] && a->run->expires[m.id] <= o->clock[1]) a->run->expires[m.id] |= HIST_LATE;
  }
  if (m.op == REMIXDB_MERGE_DEL) o->writes[m.key] = HIST_NONE;
}

// ---- iterators

// Keys of its bounds at places from..to (without that one) are not there.
static void see_none(struct actor *a, const struct cursor *c, int from, int to) {
  if (from < c->low) from = c->low;
  if (to > c->high) to = c->high;
  for (int k = 0; k < (int)HIST_KEYS; k++)
    if (2 * k >= from && 2 * k < to) see(&a->ops[c->op], (uint32_t)k, HIST_NONE);
}

static void cursor_within(const struct cursor *c, struct kref key) {
  THREAD_CHECK(!c->from.ptr || kv_cmp(key, c->from) >= 0);
  THREAD_CHECK(!c->to.ptr || kv_cmp(key, c->to) < 0);
  THREAD_CHECK(!c->prefix.ptr || (key.len >= c->prefix.len && memcmp(key.ptr, c->prefix.ptr, c->prefix.len) == 0));
}

// Where it stands; a key is seen.
static bool cursor_look(struct actor *a, struct cursor *c) {
  c->klen = 0;
  if (!remixdb_iter_valid(c->it)) {
    THREAD_CHECK(remixdb_iter_status(c->it) == REMIXDB_OK);
    return false;
  }
  uint32_t klen, vlen;
  const char *const k = remixdb_iter_key(c->it, &klen);
  const void *const v = remixdb_iter_value(c->it, &vlen);
  THREAD_CHECK(k && klen >= 4 && memcmp(k, "key", 3) == 0 && k[3] >= '0' && k[3] < '0' + (int)HIST_KEYS);
  THREAD_CHECK(klen <= sizeof(c->key));
  memcpy(c->key, k, klen);
  c->klen = klen;
  THREAD_CHECK((v == NULL) == c->keys_only && (v || vlen == 0));
  cursor_within(c, kref(k, klen));
  const uint32_t key = (uint32_t)(k[3] - '0');
  c->at = 2 * (int)key + (klen > 4);
  if (klen == 4) see(&a->ops[c->op], key, v ? parse_value(a, key, v, vlen) : (uint32_t)HIST_SOME);
  return true;
}

// A bound at a key or at a filler. Gives its place.
static int new_bound(struct actor *a, char buf[16], struct kref *out) {
  const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS);
  const bool behind = chance(&a->rng, 40);
  *out = kref(buf, behind ? filler_of(key, (uint32_t)below(&a->rng, FILLERS), buf) : key_of(key, buf));
  return 2 * (int)key + behind;
}

static struct remixdb_slice slice(struct kref k) { return (struct remixdb_slice){k.ptr, k.len}; }

// Makes the iterator. One with `hold` is of a moment in this call, one of a snapshot of the snapshot's.
static void cursor_make(struct actor *a, struct cursor *c, struct xdb_ref *ref, bool may_fix) {
  c->low = 0;
  c->high = PLACE_END;
  c->keys_only = c->fixed = false;
  c->from = c->to = c->prefix = kref(NULL, 0);
  if (chance(&a->rng, 40)) {
    c->it = expect_iter(ref, rng_next(&a->rng));
    THREAD_CHECK(c->it);
    return;
  }
  struct remixdb_iter_opts o;
  remixdb_iter_opts_init(&o, sizeof(o));
  o.expect = expect_length(rng_next(&a->rng));
  o.keys_only = c->keys_only = chance(&a->rng, 30);
  if (chance(&a->rng, 50)) c->low = new_bound(a, c->from_buf, &c->from);
  if (chance(&a->rng, 50)) c->high = new_bound(a, c->to_buf, &c->to);
  if (chance(&a->rng, 20)) {
    const int key = (int)below(&a->rng, HIST_KEYS);
    c->prefix = kref(c->prefix_buf, key_of((uint32_t)key, c->prefix_buf));
    if (c->low < 2 * key) c->low = 2 * key;
    if (c->high > 2 * key + 2) c->high = 2 * key + 2;
  }
  o.bounds = (struct remixdb_range){slice(c->from), slice(c->to)};
  o.prefix = slice(c->prefix);
  struct held *const h = &a->held[below(&a->rng, HELD)];
  c->fixed = may_fix && chance(&a->rng, 40);
  if (c->fixed && h->s && chance(&a->rng, 50)) {
    o.snapshot = h->s;
    c->op = h->op;
    c->it = remixdb_iter_create_opts(ref, &o);
  } else if (c->fixed) {
    o.hold = true;
    c->op = a->nr;
    struct hist_op *const made = begin(a, "iterator of one moment");
    c->it = remixdb_iter_create_opts(ref, &o);
    end(a, made);
  } else {
    c->it = remixdb_iter_create_opts(ref, &o);
  }
  THREAD_CHECK(c->it);
}

// A seek. o: its operation, which ends; NULL: the moment was fixed before.
static void cursor_seek(struct actor *a, struct cursor *c, struct hist_op *o) {
  char kbuf[16];
  const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS), how = (uint32_t)below(&a->rng, 4);
  uint32_t klen = key_of(key, kbuf);
  int place = 2 * (int)key;
  if (chance(&a->rng, 30)) {
    klen = filler_of(key, (uint32_t)below(&a->rng, FILLERS), kbuf);
    place++;
  }
  if (how == 0) remixdb_iter_seek(c->it, NULL, 0);
  else if (how == 1) remixdb_iter_seek_last(c->it);
  else if (how == 2) remixdb_iter_seek_for_prev(c->it, kbuf, klen);
  else remixdb_iter_seek(c->it, kbuf, klen);
  if (o) end(a, o);
  const bool there = cursor_look(a, c);
  if (how == 0) see_none(a, c, 0, there ? c->at : PLACE_END);
  else if (how == 1) see_none(a, c, there ? c->at + 1 : 0, PLACE_END);
  else if (how == 2) see_none(a, c, there ? c->at + 1 : 0, place + 1);
  else see_none(a, c, place, there ? c->at : PLACE_END);
}

// A step, which leads to a key on the right side of the one before.
static bool cursor_moved(struct actor *a, struct cursor *c, int way) {
  const struct cursor was = *c;
  const bool there = cursor_look(a, c);
  const int order = kv_cmp(kref(c->key, c->klen), kref(was.key, was.klen));
  THREAD_CHECK(!there || (way > 0 ? order > 0 : order < 0));
  return there;
}

static void cursor_next(struct actor *a, struct cursor *c) {
  const int from = c->at;
  remixdb_iter_skip1(c->it);
  see_none(a, c, from + 1, cursor_moved(a, c, 1) ? c->at : PLACE_END);
}

static void cursor_prev(struct actor *a, struct cursor *c) {
  const int from = c->at;
  remixdb_iter_prev(c->it);
  const bool there = cursor_moved(a, c, -1);
  see_none(a, c, there ? c->at + 1 : 0, from);
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
    struct hist_op *o = NULL;
    if (!c->it) cursor_make(a, c, a->ref, true);
    if (!c->fixed) c->op = a->nr;
    if (!c->fixed) o = begin(a, "seek");
    cursor_seek(a, c, o);
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

// The value in two pieces, and its expiry, as the snapshot has them.
static void see_pieces(struct actor *a, struct xdb_ref *ref, struct hist_op *o, uint32_t key) {
  char kbuf[16];
  const uint32_t klen = key_of(key, kbuf), first = (uint32_t)below(&a->rng, 50);
  uint32_t n = 0, rest = 0, len = 0;
  uint64_t expires = 1;
  const bool there = remixdb_get_part(ref, kbuf, klen, 0, a->got, first, &n, &len);
  THREAD_CHECK(remixdb_get_part(ref, kbuf, klen, n, a->got + n, sizeof(a->got) - n, &rest, NULL) == there);
  THREAD_CHECK(remixdb_expiry(ref, kbuf, klen, &expires) == there);
  THREAD_CHECK(n + rest == len && (!there || n == (first < len ? first : len)));
  see(o, key, there ? parse_value(a, key, a->got, len) : (uint32_t)HIST_NONE);
  THREAD_CHECK(!there || expires == load64le(a->got + 8));
}

static void held_read(struct actor *a, struct held *h) {
  for (uint64_t n = 1 + below(&a->rng, HIST_KEYS); n; n--) {
    const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS);
    see_get(a, h->ref, &a->ops[h->op], key);
    if (chance(&a->rng, 20)) see_pieces(a, h->ref, &a->ops[h->op], key);
  }
  if (chance(&a->rng, 20)) see_many(a, h->ref, &a->ops[h->op]);
  if (!chance(&a->rng, 30)) return;
  struct cursor c = {.op = h->op};
  cursor_make(a, &c, h->ref, false);
  cursor_seek(a, &c, NULL);  // it fixes nothing
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

// Deletes a range: the keys of it that the transaction sees. With none it writes nothing.
static void txn_del_range(struct actor *a, struct xdb_ref *ref, struct hist_op *o, uint32_t *writes) {
  uint32_t gone[HIST_KEYS] = {HIST_ANY};
  char bufs[2][16];
  const struct remixdb_range range = new_range(a, gone, bufs);
  for (uint32_t k = 0; k < HIST_KEYS; k++) {
    if (gone[k] == HIST_ANY) continue;
    if (writes[k] == HIST_ANY) see_get(a, ref, o, k);
    if (writes[k] != HIST_ANY || o->reads[k] != HIST_NONE) writes[k] = HIST_NONE;
  }
  THREAD_CHECK(remixdb_del_range(ref, &range));
}

static void txn_write(struct actor *a, struct xdb_ref *ref, struct hist_op *o, uint32_t *writes) {
  const uint32_t key = (uint32_t)below(&a->rng, HIST_KEYS);
  char kbuf[16];
  uint32_t len;
  const uint32_t klen = key_of(key, kbuf);
  if (chance(&a->rng, 8)) {
    txn_del_range(a, ref, o, writes);
    return;
  }
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
  cursor_make(a, &c, ref, false);
  cursor_seek(a, &c, NULL);
  if (chance(&a->rng, 50)) cursor_walk(a, &c);
  remixdb_iter_destroy(c.it);
}

static void act_txn(struct actor *a) {
  uint32_t writes[HIST_KEYS] = {HIST_ANY}, before[HIST_KEYS];
  bool wrote = false, may_conflict = false;
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
    else txn_write(a, ref, o, writes), may_conflict = true;  // it may have deleted records between the keys only
    for (uint32_t k = 0; k < HIST_KEYS; k++) wrote |= writes[k] != HIST_ANY;
    if (!chance(&a->rng, 10)) continue;
    memcpy(before, writes, sizeof(before));
    THREAD_CHECK(remixdb_txn_savepoint(t));
    txn_write(a, ref, o, writes);
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
  THREAD_CHECK(done || (may_conflict && remixdb_errcode() == REMIXDB_ABORTED));
  atomic_fetch_add(done ? &a->run->committed : &a->run->conflicts, wrote);
  if (!done || !wrote) {
    memset(c, 0, sizeof(*c));
    a->nr--;
    return;
  }
  memcpy(c->reads, o->reads, sizeof(c->reads));
  memcpy(c->clock, o->clock, sizeof(c->clock));  // it judges by it to the end
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
    if (dice < 16) act_put(a);
    else if (dice < 20) act_del(a);
    else if (dice < 22) act_del_range(a);
    else if (dice < 29) act_get(a);
    else if (dice < 35) act_gets(a);
    else if (dice < 40) act_many(a);
    else if (dice < 49) act_batch(a);
    else if (dice < 55) act_merge(a);
    else if (dice < 61) act_compare(a);
    else if (dice < 63) act_clock(a);
    else if (dice < 64) (chance(&a->rng, 60) ? act_ingest : act_many)(a);
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
  uint64_t *versions, *expires;  // its values' versions and times
  uint32_t nr_values;
};

static struct hist_values values_of(const struct history *h) { return (struct hist_values){h->versions, h->expires}; }

static void history_free(struct history *h) {
  free(h->ops);
  free(h->versions);
  free(h->expires);
}

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
  r->env->clock = &test_clock;
  OK(xdb_open(dir, &r->opts, r->env, &r->x));
  shrink(r->x, memtable, pages);
  if (check_seed & 2) expect_small_memory(r->x);
  if (check_seed & 1) expect_value_merges(r->x, 1);
  static const uint64_t few[] = {0, 50, RANGES_FEW};  // so that some ranges are deleted by edits
  r->x->ranges = (struct range_limits){few[check_seed % 3], few[check_seed % 3] / 4, 8 * few[check_seed % 3]};
  r->x->compact.young_from = (uint32_t)(check_seed % 4) * 2;  // none, or as soon as may be
  r->x->compact.garbage_from = check_seed % 3 ? 1 : 0;
  r->x->compact.cut_from = 0;
  r->x->compact.join = (uint32_t)(check_seed / 2 % 3);
  r->x->garbage_merges.rest_ns = 1000000;
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
  r.nr_values = HIST_FIRST + (nr_ops + 1) * 2 * HIST_KEYS * ACTORS;
  r.versions = hist_alloc(r.nr_values, sizeof(*r.versions));
  r.expires = hist_alloc(r.nr_values, sizeof(*r.expires));
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
  struct history h = {.ops = hist_alloc(2 * ACTORS * (size_t)nr_ops + 4 * HIST_KEYS, sizeof(*h.ops)),
                      .versions = hist_alloc(r.nr_values, sizeof(*h.versions)),
                      .expires = r.expires,
                      .nr_values = r.nr_values};
  for (uint32_t i = 0; i < h.nr_values; i++) h.versions[i] = atomic_load_explicit(&r.versions[i], memory_order_relaxed);
  free(r.versions);
  for (uint32_t i = 0; i < ACTORS + 2; i++) {
    memcpy(h.ops + h.nr, actors[i]->ops, actors[i]->nr * sizeof(*h.ops));
    h.nr += actors[i]->nr;
    free(actors[i]->ops);
    free(actors[i]);
  }
  if (print)
    print_message("%u operations, %llu rounds, %llu partitions, %u transactions committed and %u not, %u writes by "
                  "version and %u refused, %u ingests",
                  h.nr, (unsigned long long)rounds, (unsigned long long)partitions, atomic_load(&r.committed),
                  atomic_load(&r.conflicts), atomic_load(&r.compared), atomic_load(&r.refused),
                  atomic_load(&r.ingests));
  return h;
}

static void check_history(const struct history *h) {
  static char why[8000];
  uint32_t peak;
  const struct hist_values values = values_of(h);
  why[0] = '\0';
  if (hist_check(h->ops, h->nr, &values, why, sizeof(why), &peak) != HIST_GOOD)
    fail_msg("TEST_SEED=%llu: %s", (unsigned long long)check_seed, why);
  print_message(", at most %u configurations at a time\n", peak);
}

static uint32_t run_history(uint64_t s, uint32_t nr_ops, int workers) {
  check_seed = s;
  starve(s % 2 != 0);
  struct history h = record(nr_ops, workers, true);
  starve(false);
  check_history(&h);
  history_free(&h);
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

enum spoil {
  STALE,
  FUTURE,
  SPLIT_BATCH,
  SPLIT_INGEST,
  BEFORE_RANGE,
  SWAP,
  LOST_UPDATE,
  LOST_COMPARE,
  REFUSED,
  VERSIONS_SWAP,
  EXPIRED,
  HOLE,
  SPOILS
};

// The facts that spoiling may change.
struct spoilt {
  struct hist_op *ops;
  uint32_t nr;
  uint64_t *versions;
  const uint64_t *expires;
};

// Lets the operation read a value of the key from before `before`, if there was one.
static bool read_older(const struct book *b, struct hist_op *r, uint32_t key, const struct hist_op *before,
                       uint64_t *rng) {
  const uint32_t v = older_value(b, key, before, rng);
  if (v != HIST_ANY) r->reads[key] = v;
  return v != HIST_ANY;
}

// The value that r read is still there after r.
static bool stays(const struct spoilt *s, const struct hist_op *r, uint32_t key) {
  for (uint32_t i = 0; i < s->nr; i++)
    if (s->ops[i].reads[key] == r->reads[key] && s->ops[i].call > r->ret) return true;
  return false;
}

// Changes what the calls told about a value. w has written v, which r has read.
static bool spoil_value(const struct spoilt *s, struct hist_op *r, uint32_t k, const struct hist_op *w,
                        enum spoil how) {
  const uint32_t v = r->reads[k];
  const bool before = w->ret < r->call && r->writes[k] == HIST_ANY;
  const uint64_t expires = s->expires[v] & ~HIST_LATE;
  switch (how) {
    case REFUSED:  // another value was said to be there
      if (!before || (expires && r->clock[1] >= expires) || !stays(s, r, k)) return false;
      r->reads[k] = HIST_NOT | v;
      return true;
    case HOLE:  // the key is missing though it is there before and after
      if (!before || (expires && r->clock[1] >= expires) || !stays(s, r, k)) return false;
      r->reads[k] = HIST_NONE;
      return true;
    case EXPIRED:  // it was there though it had expired
      if (!expires) return false;
      r->clock[0] = expires;
      r->clock[1] = expires + 5;
      return true;
    default:  // two versions that descend
      for (uint32_t i = 0; s->versions[v] && i < s->nr; i++) {
        const uint32_t x = s->ops[i].writes[k];
        if (x < HIST_FIRST || !s->versions[x] || s->ops[i].ret >= w->call) continue;
        const uint64_t swap = s->versions[x];
        s->versions[x] = s->versions[v];
        s->versions[v] = swap;
        return true;
      }
      return false;
  }
}

// Changes the values that one operation read (in two cases another's too), or what is known of them, so that no order
// can explain them. False: there is no place here, and nothing has changed.
static bool spoil_one(const struct book *b, const struct spoilt *s, enum spoil how, uint64_t *rng) {
  struct hist_op *const ops = s->ops, *const r = &ops[below(rng, s->nr)];
  const uint32_t k = (uint32_t)below(rng, HIST_KEYS), v = r->reads[k];
  const struct hist_op *const w = v >= HIST_FIRST && !(v & HIST_NOT) ? b->by[v].op : NULL;
  struct hist_op *const other = &ops[below(rng, s->nr)];
  switch (how) {
    case STALE:  // the value before a write that had returned
      return w && w->ret < r->call && r->writes[k] == HIST_ANY && read_older(b, r, k, w, rng);
    case FUTURE:  // a value that was written after it returned
      if (v == HIST_ANY || other->writes[k] < HIST_FIRST || other->call <= r->ret) return false;
      r->reads[k] = other->writes[k];
      return true;
    case SPLIT_BATCH:  // one key with the batch, another as it was before
    case SPLIT_INGEST:
      for (uint32_t j = 0; w && (how == SPLIT_BATCH || w->ingest) && j < HIST_KEYS; j++)
        if (j != k && w->writes[j] >= HIST_FIRST && r->reads[j] == w->writes[j]) return read_older(b, r, j, w, rng);
      return false;
    case BEFORE_RANGE:  // a value from before the deletion of a range that had returned
      return strcmp(other->what, "del_range") == 0 && other->writes[k] == HIST_NONE && other->ret < r->call &&
             v != HIST_ANY && read_older(b, r, k, other, rng);
    case SWAP: {  // two reads; one came after the other
      const uint32_t u = other->reads[k];
      const struct hist_op *const x = u >= HIST_FIRST && !(u & HIST_NOT) ? b->by[u].op : NULL;
      if (!w || !x || r->ret >= other->call || w->ret >= x->call) return false;
      r->reads[k] = u;
      other->reads[k] = v;
      return true;
    }
    case LOST_UPDATE:  // a write that did not see the write before it
    case LOST_COMPARE:
      if (strcmp(r->what, how == LOST_UPDATE ? "merge" : "put_if") != 0) return false;
      return w && w->ret < r->call && r->writes[k] >= HIST_FIRST && read_older(b, r, k, w, rng);
    default: return w && spoil_value(s, r, k, w, how);
  }
}

static void test_checker_spoilt(void **state) {
  (void)state;
  check_seed = check_seed_or(300);
  struct history h = record(600, 1, true);
  check_history(&h);
  const struct book b = book_make(&h);
  const struct spoilt s = {hist_alloc(h.nr, sizeof(*s.ops)), h.nr, hist_alloc(h.nr_values, sizeof(*s.versions)),
                           h.expires};
  const struct hist_values values = {s.versions, s.expires};
  memcpy(s.ops, h.ops, h.nr * sizeof(*s.ops));
  memcpy(s.versions, h.versions, h.nr_values * sizeof(*s.versions));
  uint64_t rng = check_seed;
  for (enum spoil how = 0; how < SPOILS; how++) {
    uint32_t done = 0;
    for (uint32_t tries = 0; done < 25 && tries < 2000000; tries++) {
      if (!spoil_one(&b, &s, how, &rng)) continue;
      if (hist_check(s.ops, h.nr, &values, NULL, 0, NULL) != HIST_BAD)
        fail_msg("TEST_SEED=%llu: a history that was spoilt (%d, try %u) is taken for good",
                 (unsigned long long)check_seed, (int)how, tries);
      memcpy(s.ops, h.ops, h.nr * sizeof(*s.ops));
      memcpy(s.versions, h.versions, h.nr_values * sizeof(*s.versions));
      done++;
    }
    if (done < 25)
      fail_msg("TEST_SEED=%llu: only %u places to spoil (%d)", (unsigned long long)check_seed, done, (int)how);
  }
  free(s.ops);
  free(s.versions);
  free(b.by);
  history_free(&h);
}

// An argument names the tests to run, as in "test_w*".
int main(int argc, char **argv) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_checker_planted),
      cmocka_unit_test(test_checker_all_orders),
      cmocka_unit_test_setup_teardown(test_checker_spoilt, setup, teardown),
      cmocka_unit_test_setup_teardown(test_alone, setup, teardown),
      cmocka_unit_test_setup_teardown(test_workers, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
