// SPDX-License-Identifier: Apache-2.0
//
// Snapshots and iterators show one moment as long as they live, also when writes, compactions and splits go on
// meanwhile. They hold the memtables and tables that they need, and no longer than they need them.
//
// TEST_SEED in the environment repeats a run's random choices.
#include <dirent.h>

#include "base/thread.h"
#include "tests/lib/check.h"
#include "tests/lib/fault.h"
#include "tests/lib/past.h"

struct shot {
  struct xdb_snapshot *s;
  struct xdb_ref *ref;
  struct past_cursor c;  // an iterator on it
  uint64_t time;         // the model's
};

static void shot_take(struct shot *t, struct xdb_ref *ref, uint64_t time) {
  t->s = remixdb_snapshot(ref);
  CHECK(t->s);
  t->ref = remixdb_snapshot_ref(t->s);
  CHECK(t->ref);
  t->time = time;
}

static void shot_drop(struct shot *t) {
  past_cursor_drop(&t->c);
  remixdb_unref(t->ref);
  remixdb_snapshot_release(t->s);
  *t = (struct shot){0};
}

// A look at a part of it.
static void shot_look(struct past *m, struct shot *t) {
  for (uint32_t n = 0; n < 10; n++) past_check_get(m, t->ref, (uint32_t)below(&m->rng, m->nr), t->time);
  past_check_near(m, t->ref, t->time);
  if (chance(&m->rng, 30)) past_check_many(m, t->ref, t->time);
  if (!t->c.it || chance(&m->rng, 20))
    past_cursor_seek(m, &t->c, t->ref, t->time, (enum seek_kind)below(&m->rng, SEEK_KINDS));
  bool back = chance(&m->rng, 50);
  for (uint32_t n = 0; n < 20; n++) {
    if (chance(&m->rng, 10)) back = !back;
    if (back) past_cursor_prev(m, &t->c);
    else past_cursor_skip(m, &t->c, chance(&m->rng, 10) ? (uint32_t)below(&m->rng, 30) : 1);
  }
}

// ---- the same answers, always

#define SHOTS 16u
#define CURSORS 4u

static uint64_t kinds[COMPACT_KINDS];  // the compactions that the partitions had

static void run_same(uint64_t s, int workers, uint32_t keys, uint32_t steps, uint32_t vlen_max) {
  check_seed = s;
  struct past m;
  past_init(&m, KEYS_MIXED, keys, vlen_max);
  struct remixdb_opts o = small_opts(workers);
  o.tags = chance(&m.rng, 50);
  o.ckeys = chance(&m.rng, 50);
  o.cache_mb = chance(&m.rng, 70);
  o.compression = chance(&m.rng, 30) ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  struct xdb *const x = quick_open(&o);
  shrink(x, (size_t)(150 + below(&m.rng, 300)) << 10, 4 + (uint32_t)below(&m.rng, 12));
  struct xdb_ref *const ref = remixdb_ref(x);
  CHECK(ref);
  struct shot shots[SHOTS] = {{0}};
  struct past_cursor cursors[CURSORS] = {{0}};
  for (uint32_t step = 0; step < steps; step++) {
    // most writes go to one place for a while: other partitions get too little for a table, and it is handed back
    const uint32_t place = step / 2500 * 311 % m.nr;
    const uint32_t i = (place + (uint32_t)below(&m.rng, 200)) % m.nr;
    if (below(&m.rng, 200) == 0) CHECK(past_del(&m, ref, (uint32_t)below(&m.rng, m.nr)));
    const uint64_t dice = below(&m.rng, 1000);
    if (dice < 700) {
      CHECK(past_put(&m, ref, i));
    } else if (dice < 850) {
      CHECK(past_del(&m, ref, i));
    } else if (dice < 852) {  // a neighbourhood goes
      for (uint32_t k = i; k < m.nr && k < i + 200; k++) CHECK(past_del(&m, ref, k));
    } else if (dice < 856) {
      CHECK(chance(&m.rng, 85) ? remixdb_flush(ref) : remixdb_compact(ref));
    } else if (dice < 870) {
      struct shot *const t = &shots[below(&m.rng, SHOTS)];
      if (t->s && !chance(&m.rng, 20)) continue;  // most of them live long
      if (t->s) {
        past_check_all(&m, t->ref, t->time);
        shot_drop(t);
      }
      shot_take(t, ref, m.time);
    } else if (dice < 900) {
      struct shot *const t = &shots[below(&m.rng, SHOTS)];
      if (t->s) shot_look(&m, t);
    } else {
      struct past_cursor *const c = &cursors[below(&m.rng, CURSORS)];
      if (!c->it || chance(&m.rng, 3)) past_cursor_seek(&m, c, ref, m.time, (enum seek_kind)below(&m.rng, SEEK_KINDS));
      else if (chance(&m.rng, 50)) past_cursor_prev(&m, c);
      else past_cursor_skip(&m, c, (uint32_t)below(&m.rng, 4));
    }
  }
  const struct compact_stats *const st = &x->compact.stats;
  print_message("%llu rounds: %llu handed back, %llu minor, %llu major, %llu split\n", (unsigned long long)st->rounds,
                (unsigned long long)st->kinds[COMPACT_ABORT], (unsigned long long)st->kinds[COMPACT_MINOR],
                (unsigned long long)st->kinds[COMPACT_MAJOR], (unsigned long long)st->kinds[COMPACT_SPLIT]);
  for (uint32_t k = 0; k < COMPACT_KINDS; k++) kinds[k] += st->kinds[k];
  for (uint32_t i = 0; i < SHOTS; i++) {
    if (!shots[i].s) continue;
    past_check_all(&m, shots[i].ref, shots[i].time);
    shot_drop(&shots[i]);
  }
  for (uint32_t i = 0; i < CURSORS; i++) {
    if (cursors[i].it) past_cursor_rest(&m, &cursors[i], i % 2);
    past_cursor_drop(&cursors[i]);
  }
  past_check_all(&m, ref, m.time);
  remixdb_unref(ref);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  past_fini(&m);
  setup_again();
}

static void test_same(void **state) {
  (void)state;
  for (int workers = 0; workers < 3; workers++)
    run_same(check_seed_or(1) + (uint64_t)workers, workers, 1500, 20000 / SLOW, 5000);
  for (uint32_t k = COMPACT_MINOR; k < COMPACT_KINDS && SLOW == 1; k++) CHECK(kinds[k] > 0);
}

// A round's hand-back of a key, before which another thread might have written it again.
static struct {
  struct past *m;
  struct xdb_ref *ref;
  enum remixdb_status (*real)(void *arg, struct worker *w, uint32_t tree, const struct kv_rec *rec);
} handing;

static enum remixdb_status hand_back_late(void *arg, struct worker *w, uint32_t tree, const struct kv_rec *rec) {
  struct past *const m = handing.m;
  const uint32_t i = past_rank(m, rec->key, rec->klen);
  uint8_t *const buf = m->buf, other[512];
  m->buf = other;  // a put that has met the round has its value in the model's
  CHECK(rec->kind ? past_put(m, handing.ref, i) : past_del(m, handing.ref, i));
  m->buf = buf;
  return handing.real(arg, w, tree, rec);
}

// A round hands a key back to the next memtable, with a number that is greater than every snapshot's: snapshots from
// before and after its write see the same values, and a write of the key that came meanwhile is not undone.
static void test_handed_back(void **state) {
  (void)state;
  for (uint32_t newer = 0; newer < 3; newer++) {  // not written again; after the round; during it
    check_seed = check_seed_or(5);
    struct past m;
    past_init(&m, KEYS_TEXT, 6000, 150);
    const struct remixdb_opts o = small_opts(0);
    struct xdb *const x = quick_open(&o);
    shrink(x, 1u << 20, 32);
    x->compact.young_from = 0;  // with a young view it would be too cheap to be handed back
    struct xdb_ref *const ref = remixdb_ref(x);
    for (uint32_t i = 0; i < m.nr; i++) CHECK(past_put(&m, ref, i));
    OK(xdb_flush(x));
    CHECK(stat_of(x, "partitions") > 1);
    struct shot before = {0}, after = {0};
    shot_take(&before, ref, m.time);
    CHECK(past_del(&m, ref, 10) && past_put(&m, ref, 20));
    shot_take(&after, ref, m.time);
    const _Atomic uint64_t *const aborts = &x->compact.stats.kinds[COMPACT_ABORT], *const rounds = &x->compact.stats
                                                                                                        .rounds;
    const uint64_t nr_rounds = *rounds;
    handing.m = &m;
    handing.ref = remixdb_ref(x);
    handing.real = x->compact.hand_back;
    if (newer == 2) x->compact.hand_back = hand_back_late;
    while (*rounds == nr_rounds) {  // far away, until the memtable is full
      CHECK(*aborts == 0);
      CHECK(past_put(&m, ref, m.nr - 1 - (uint32_t)below(&m.rng, 1000)));
    }
    CHECK(*aborts == 1);
    x->compact.hand_back = handing.real;
    remixdb_unref(handing.ref);
    if (newer == 1) CHECK(past_put(&m, ref, 10) && past_del(&m, ref, 20));
    struct shot last = {0};
    shot_take(&last, ref, m.time);
    for (int again = 0; again < 2; again++) {
      past_check_all(&m, before.ref, before.time);
      past_check_all(&m, after.ref, after.time);
      past_check_all(&m, last.ref, last.time);
      past_check_all(&m, ref, m.time);
      OK(xdb_flush(x));
    }
    shot_drop(&before);
    shot_drop(&after);
    shot_drop(&last);
    remixdb_unref(ref);
    remixdb_close(x);
    past_fini(&m);
    setup_again();
  }
}

// Nothing is held, or soon will not be: a worker releases replaced files shortly after the end of its round.
static void wait_unpinned(struct xdb *x) {
  OK(xdb_flush(x));
  for (uint32_t n = 0; stat_of(x, "memory_bytes") || stat_of(x, "files"); n++) {
    CHECK(n < 20000);
    time_sleep_ns(1000000);
  }
}

// ---- many at once

static void test_many(void **state) {
  (void)state;
  enum { NR = 600 };
  check_seed = check_seed_or(10);
  struct past m;
  past_init(&m, KEYS_TEXT, 400, 2000);
  const struct remixdb_opts o = small_opts(1);
  struct xdb *const x = quick_open(&o);
  shrink(x, 200u << 10, 16);
  struct xdb_ref *const ref = remixdb_ref(x);
  struct shot *const shots = calloc(NR, sizeof(*shots));
  CHECK(ref && shots);
  for (uint32_t n = 0; n < NR; n++) {
    for (uint32_t w = 0; w < 8; w++) {
      const uint32_t i = (uint32_t)below(&m.rng, m.nr);
      CHECK(chance(&m.rng, 25) ? past_del(&m, ref, i) : past_put(&m, ref, i));
    }
    shot_take(&shots[n], ref, m.time);
    if (n % 50 == 0) OK(xdb_flush(x));
    CHECK(stat_of(x, "count") == n + 1);
  }
  CHECK(stat_of(x, "memory_bytes") > 0 && stat_of(x, "files") > 0);
  for (uint32_t n = 0; n < NR; n++) shot_look(&m, &shots[n]);
  for (uint32_t left = NR; left; left--) {  // in any order
    const uint32_t n = (uint32_t)below(&m.rng, left);
    if (n % 8 == 0) shot_look(&m, &shots[n]);
    shot_drop(&shots[n]);
    shots[n] = shots[left - 1];
    CHECK(stat_of(x, "count") == left - 1);
  }
  wait_unpinned(x);
  CHECK(stat_of(x, "oldest_ms") == 0);
  past_check_all(&m, ref, m.time);
  free(shots);
  remixdb_unref(ref);
  remixdb_close(x);
  past_fini(&m);
}

// ---- pinned files, and their release

struct files {
  uint32_t nr;
  uint64_t bytes;
};

// Tables and REMIXes in the directory.
static struct files files_now(void) {
  struct files f = {0};
  DIR *const d = opendir(dir);
  CHECK(d);
  for (const struct dirent *e; (e = readdir(d)) != NULL;) {
    const char *const dot = strrchr(e->d_name, '.');
    if (!dot || (strcmp(dot, ".sst") != 0 && strcmp(dot, ".remix") != 0)) continue;
    char path[sizeof(dir) + 300];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
    CHECK(stat(path, &st) == 0);
    f.nr++;
    f.bytes += (uint64_t)st.st_size;
  }
  (void)closedir(d);
  return f;
}

struct pins {
  uint64_t memory, files, bytes;
};

// The figures, which are checked against the directory: it has the files of the version, and the pinned ones.
static struct pins pins_now(struct xdb *x) {
  const struct pins p = {stat_of(x, "memory_bytes"), stat_of(x, "files"), stat_of(x, "file_bytes")};
  const struct files f = files_now();
  const struct version *const v = atomic_load(&x->super)->version;
  uint64_t remixes = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) remixes += (v->parts[i]->remix != NULL) + (v->parts[i]->young != NULL);
  CHECK(f.nr == stat_of(x, "tables") + remixes + p.files);
  CHECK(f.bytes == stat_of(x, "table_bytes") + stat_of(x, "remix_bytes") + p.bytes);
  return p;
}

// All keys anew, in tables; old versions make the merge of everything worth while.
static void rewrite(struct past *m, struct xdb *x, struct xdb_ref *ref) {
  for (uint32_t round = 0; round < 3; round++) {
    for (uint32_t i = 0; i < m->nr; i++) CHECK(past_put(m, ref, i));
    OK(xdb_flush(x));
  }
}

static void test_held(void **state) {
  (void)state;
  for (uint32_t holder = 0; holder < 3; holder++) {  // a snapshot; an iterator; an iterator on a snapshot
    check_seed = check_seed_or(20) + holder;
    struct past m;
    past_init(&m, KEYS_TEXT, 1000, 1000);
    struct remixdb_opts o = small_opts(0);
    struct xdb *const x = quick_open(&o);
    shrink(x, 8u << 20, 64);
    struct xdb_ref *const ref = remixdb_ref(x);
    rewrite(&m, x, ref);
    for (uint32_t i = 0; i < 100; i++) CHECK(past_put(&m, ref, i));  // something in the memtable
    struct pins p = pins_now(x);
    CHECK(p.memory == 0 && p.files == 0 && p.bytes == 0);
    struct shot a = {0}, b = {0};
    const uint64_t a_time = m.time;
    if (holder == 1) {
      past_cursor_seek(&m, &a.c, ref, a_time, SEEK_TO_FIRST);
    } else {
      shot_take(&a, ref, a_time);
      if (holder == 2) past_cursor_seek(&m, &a.c, a.ref, a_time, SEEK_TO_FIRST);
    }
    p = pins_now(x);
    CHECK(p.memory == 0 && p.files == 0);  // it is the store's own as well
    OK(xdb_flush(x));
    const struct pins of_memory = pins_now(x);
    CHECK(of_memory.memory > 0);
    rewrite(&m, x, ref);
    const struct pins of_a = pins_now(x);
    CHECK(of_a.files > 1 && of_a.bytes > 100000 && of_a.memory == of_memory.memory);
    shot_take(&b, ref, m.time);
    for (uint32_t i = 0; i < 50; i++) CHECK(past_put(&m, ref, i));
    rewrite(&m, x, ref);
    const struct pins of_both = pins_now(x);
    CHECK(of_both.files > of_a.files && of_both.memory > of_a.memory);
    if (a.s) past_check_all(&m, a.ref, a.time);
    else past_cursor_rest(&m, &a.c, false);  // this ends its holding
    past_check_all(&m, b.ref, b.time);
    if (a.s) shot_drop(&a);
    const struct pins of_b = pins_now(x);
    CHECK(of_b.files < of_both.files && of_b.bytes < of_both.bytes && of_b.memory < of_both.memory && of_b.files > 0 &&
          of_b.memory > 0);
    past_check_all(&m, b.ref, b.time);
    shot_drop(&b);
    p = pins_now(x);
    CHECK(p.memory == 0 && p.files == 0 && p.bytes == 0);
    // parked and destroyed iterators hold nothing
    for (uint32_t n = 0; n < 3; n++) {
      past_cursor_seek(&m, &a.c, ref, m.time, SEEK_TO_LAST);
      CHECK(past_put(&m, ref, 1));
      OK(xdb_flush(x));
      CHECK(pins_now(x).memory > 0);
      if (n == 0) remixdb_iter_park(a.c.it);
      else if (n == 1) past_cursor_drop(&a.c);
      else past_cursor_rest(&m, &a.c, true);
      CHECK(pins_now(x).memory == 0 && pins_now(x).files == 0);
    }
    past_cursor_drop(&a.c);
    past_check_all(&m, ref, m.time);
    remixdb_unref(ref);
    remixdb_close(x);
    CHECK(remixdb_errcode() == REMIXDB_OK);
    past_fini(&m);
    setup_again();
  }
}

// ---- calls

static enum remixdb_merge_op never(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  (void)v0, (void)v0len, (void)v1, (void)v1len;
  *(bool *)priv = true;
  return REMIXDB_MERGE_DEL;
}

// A snapshot refuses writes, and nothing changes.
static void refused(struct xdb *x, struct past *m, struct xdb_ref *snapshot) {
  struct xdb_batch *const batch = remixdb_batch_create();
  CHECK(batch && remixdb_batch_put(batch, "k", 1, "v", 1));
  bool called = false;
  const uint64_t seq = stat_of(x, "sequence");
  CHECK(!remixdb_put(snapshot, "k", 1, "v", 1) && remixdb_errcode() == REMIXDB_READONLY &&
        strstr(remixdb_errmsg(), "snapshot"));
  CHECK(!remixdb_set(snapshot, "k", 1, "v", 1) && remixdb_errcode() == REMIXDB_READONLY);
  CHECK(!remixdb_del(snapshot, m->keys[0].ptr, m->keys[0].len) && remixdb_errcode() == REMIXDB_READONLY);
  CHECK(!remixdb_write(snapshot, batch) && remixdb_errcode() == REMIXDB_READONLY);
  CHECK(!remixdb_merge(snapshot, m->keys[0].ptr, m->keys[0].len, never, &called) &&
        remixdb_errcode() == REMIXDB_READONLY && !called);
  CHECK(remixdb_sync(snapshot));
  CHECK(!remixdb_flush(snapshot) && remixdb_errcode() == REMIXDB_READONLY);
  CHECK(!remixdb_compact(snapshot) && remixdb_errcode() == REMIXDB_READONLY);
  CHECK(stat_of(x, "sequence") == seq);
  remixdb_batch_destroy(batch);
}

static void test_calls(void **state) {
  (void)state;
  check_seed = check_seed_or(30);
  struct past m;
  past_init(&m, KEYS_TEXT, 200, 500);
  struct remixdb_opts o = small_opts(0);
  struct xdb *x = quick_open(&o);
  struct xdb_ref *ref = remixdb_ref(x);
  struct shot empty = {0}, a = {0}, b = {0};
  shot_take(&empty, ref, 0);
  for (uint32_t i = 0; i < m.nr; i += 2) CHECK(past_put(&m, ref, i));
  shot_take(&a, ref, m.time);
  for (uint32_t i = 0; i < m.nr; i++) CHECK(i % 4 ? past_put(&m, ref, i) : past_del(&m, ref, i));
  // a snapshot of a snapshot is of the same moment, and needs the first no more
  shot_take(&b, a.ref, a.time);
  CHECK(stat_of(x, "count") == 3);
  past_check_all(&m, a.ref, a.time);
  // several refs of one
  struct xdb_ref *const again = remixdb_snapshot_ref(a.s);
  CHECK(again);
  past_check_all(&m, again, a.time);
  remixdb_unref(again);
  shot_drop(&a);
  OK(xdb_flush(x));
  past_check_all(&m, b.ref, b.time);
  // the empty store
  past_check_all(&m, empty.ref, 0);
  refused(x, &m, b.ref);
  past_check_all(&m, b.ref, b.time);
  past_check_all(&m, ref, m.time);
  shot_drop(&b);
  shot_drop(&empty);
  // the ref that a snapshot was taken through may go first
  struct xdb_ref *const other = remixdb_ref(x);
  shot_take(&a, other, m.time);
  remixdb_unref(other);
  const uint64_t time = m.time;
  for (uint32_t i = 0; i < m.nr; i++) CHECK(past_put(&m, ref, i));
  OK(xdb_flush(x));
  past_check_all(&m, a.ref, time);
  shot_drop(&a);
  remixdb_unref(ref);
  remixdb_close(x);
  // a store that nothing is written to
  o.read_only = true;
  x = quick_open(&o);
  ref = remixdb_ref(x);
  shot_take(&a, ref, m.time);
  past_check_all(&m, a.ref, a.time);
  CHECK(!remixdb_put(a.ref, "k", 1, "v", 1) && remixdb_errcode() == REMIXDB_READONLY);
  shot_drop(&a);
  remixdb_unref(ref);
  remixdb_close(x);
  remixdb_snapshot_release(NULL);
  past_fini(&m);
}

static void test_no_memory(void **state) {
  (void)state;
  check_seed = check_seed_or(31);
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const ref = remixdb_ref(x);
  CHECK(remixdb_put(ref, "k", 1, "v", 1));
  fault_mem_set(1);
  CHECK(!remixdb_snapshot(ref) && remixdb_errcode() == REMIXDB_NOMEM);
  CHECK(fault_mem_end() && stat_of(x, "count") == 0);
  struct xdb_snapshot *const s = remixdb_snapshot(ref);
  CHECK(s && stat_of(x, "refs") == 1);
  fault_mem_set(1);
  CHECK(!remixdb_snapshot_ref(s) && remixdb_errcode() == REMIXDB_NOMEM);
  CHECK(fault_mem_end() && stat_of(x, "refs") == 1);
  struct xdb_ref *const old = remixdb_snapshot_ref(s);
  CHECK(old && stat_of(x, "refs") == 2 && remixdb_probe(old, "k", 1));
  remixdb_unref(old);
  remixdb_snapshot_release(s);
  remixdb_unref(ref);
  remixdb_close(x);
}

// ---- threads take them, read them and let go of them while others write

struct crowd {
  struct xdb *x;
  _Atomic bool *stop;
  _Atomic uint64_t *done;
  uint64_t rng;
};

// Writes the same number to all keys, one after the other, and then the next.
#define CROWD_KEYS 64u

static void *crowd_write(void *arg) {
  struct crowd *const c = arg;
  struct xdb_ref *const r = remixdb_ref(c->x);
  THREAD_CHECK(r);
  uint8_t val[1000] = {0};
  for (uint32_t n = 1; !atomic_load(c->stop); n++) {
    store32le(val, n);
    for (uint32_t k = 0; k < CROWD_KEYS; k++)
      THREAD_CHECK(remixdb_put(r, &k, 4, val, 4 + (uint32_t)below(&c->rng, 900)));
  }
  remixdb_unref(r);
  return NULL;
}

// The numbers of a moment: n up to some key, n - 1 after it.
static uint32_t crowd_sees(struct crowd *c, struct xdb_ref *r, uint32_t key) {
  uint8_t val[1000];
  uint32_t len;
  if (!remixdb_getn(r, &key, 4, val, sizeof(val), &len)) {
    THREAD_CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
    return 0;
  }
  (void)c;
  return load32le(val);
}

static void *crowd_read(void *arg) {
  struct crowd *const c = arg;
  enum { NR = 6 };
  struct {
    struct xdb_snapshot *s;
    struct xdb_ref *ref;
    uint32_t first, at;  // the first key's number; how many keys have it
  } held[NR];
  memset(held, 0, sizeof(held));
  struct xdb_ref *const r = remixdb_ref(c->x);
  THREAD_CHECK(r);
  while (!atomic_load(c->stop)) {
    const uint32_t i = (uint32_t)below(&c->rng, NR);
    if (held[i].s && chance(&c->rng, 40)) {
      remixdb_unref(held[i].ref);
      remixdb_snapshot_release(held[i].s);
      held[i].s = NULL;
    }
    if (!held[i].s) {
      held[i].s = remixdb_snapshot(r);
      THREAD_CHECK(held[i].s);
      held[i].ref = remixdb_snapshot_ref(held[i].s);
      THREAD_CHECK(held[i].ref);
      held[i].first = crowd_sees(c, held[i].ref, 0);
      held[i].at = 0;
      while (held[i].at < CROWD_KEYS && crowd_sees(c, held[i].ref, held[i].at) == held[i].first) held[i].at++;
    }
    for (uint32_t n = 0; n < 20; n++) {
      const uint32_t k = (uint32_t)below(&c->rng, CROWD_KEYS);
      THREAD_CHECK(crowd_sees(c, held[i].ref, k) == held[i].first - (k >= held[i].at));
    }
    atomic_fetch_add(c->done, 1);
  }
  for (uint32_t i = 0; i < NR; i++) {
    if (!held[i].s) continue;
    remixdb_unref(held[i].ref);
    remixdb_snapshot_release(held[i].s);
  }
  remixdb_unref(r);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  for (int workers = 0; workers < 2; workers++) {
    check_seed = check_seed_or(40) + (uint64_t)workers;
    const struct remixdb_opts o = small_opts(workers);
    struct xdb *const x = quick_open(&o);
    shrink(x, 150u << 10, 16);
    _Atomic bool stop = false;
    _Atomic uint64_t done = 0;
    struct crowd c[4];
    pthread_t t[4];
    for (uint32_t i = 0; i < 4; i++) {
      c[i] = (struct crowd){x, &stop, &done, check_seed * 10 + i};
      OK(thread_start(&t[i], i ? crowd_read : crowd_write, &c[i], "snapshot"));
    }
    const uint64_t until = time_ns() + 500000000;
    while (time_ns() < until || atomic_load(&done) < 300 || stat_of(x, "rounds") < 5) {
      (void)stat_of(x, "oldest_ms");
      time_sleep_ns(2000000);
    }
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
    OK(xdb_wait_idle(x));
    CHECK(stat_of(x, "count") == 0);
    wait_unpinned(x);
    remixdb_close(x);
    CHECK(remixdb_errcode() == REMIXDB_OK);
    setup_again();
  }
}

// An argument names the tests to run, as in "test_h*".
int main(int argc, char **argv) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_same, setup, teardown),
      cmocka_unit_test_setup_teardown(test_handed_back, setup, teardown),
      cmocka_unit_test_setup_teardown(test_many, setup, teardown),
      cmocka_unit_test_setup_teardown(test_held, setup, teardown),
      cmocka_unit_test_setup_teardown(test_calls, setup, teardown),
      cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
      cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
