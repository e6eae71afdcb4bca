// SPDX-License-Identifier: Apache-2.0
//
// Named key spaces: the same keys in several spaces stay apart, through memtables, rounds and reopenings; a batch is
// one moment in all of them; snapshots hold them all.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "tests/lib/check.h"
#include "tests/lib/past.h"
#include "tests/lib/simdisk.h"
#include "store/space_ref.h"

#define SPACES 4u  // number 0 is the unnamed one

static const char *const names[SPACES] = {"", "a", "b", "\xff\xfe long name with every byte but two"};

struct world {
  struct remixdb_opts o;
  struct xdb *x;
  struct xdb_space *spaces[SPACES];
  struct xdb_ref *refs[SPACES];
  struct past m[SPACES];
  uint64_t rng;
};

static struct remixdb_opts world_opts(int workers) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = workers;
  o.worker_cores = "none";
  o.memtable_mb = 1;
  o.cache_mb = 1;
  return o;
}

static void refs_make(struct world *w) {
  for (uint32_t i = 0; i < SPACES; i++) {
    if (i) CHECK(w->spaces[i] = remixdb_space_open(w->x, names[i], true));
    CHECK(w->refs[i] = i ? remixdb_space_ref(w->spaces[i]) : remixdb_ref(w->x));
  }
}

static void refs_drop(struct world *w) {
  for (uint32_t i = 0; i < SPACES; i++) {
    remixdb_space_close(w->spaces[i]);  // a ref goes on without the handle
    remixdb_unref(w->refs[i]);
  }
}

static void world_open(struct world *w) {
  w->x = quick_open(&w->o);
  shrink(w->x, (size_t)200 << 10, 8);
  refs_make(w);
}

static void world_close(struct world *w) {
  refs_drop(w);
  remixdb_close(w->x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

static void world_init(struct world *w, uint64_t seed, int workers, uint32_t keys, enum key_kind kind) {
  check_seed = seed;
  memset(w, 0, sizeof(*w));
  w->o = world_opts(workers);
  w->rng = seed;
  for (uint32_t i = 0; i < SPACES; i++) {
    past_init(&w->m[i], kind, keys, 300);  // the same keys in all
    w->m[i].rng = seed + i;
    w->m[i].next_id = 1 + i * 1000000;  // and other values
  }
  setup_again();
  world_open(w);
}

static void world_fini(struct world *w) {
  world_close(w);
  for (uint32_t i = 0; i < SPACES; i++) past_fini(&w->m[i]);
}

static void check_all(struct world *w) {
  for (uint32_t i = 0; i < SPACES; i++) past_check_all(&w->m[i], w->refs[i], w->m[i].time);
}

// ---- the calls that make and open

static void expect_list(struct xdb *x, const char *want) {
  char *const text = remixdb_space_list(x);
  CHECK(text && strcmp(text, want) == 0);
  remixdb_free(text);
}

static void test_calls(void **state) {
  (void)state;
  setup_again();
  struct remixdb_opts o = world_opts(0);
  struct xdb *x = quick_open(&o);
  expect_list(x, "");
  CHECK(!remixdb_space_open(x, "a", false) && remixdb_errcode() == REMIXDB_NOTFOUND);
  char name[NAMES_LEN_MAX + 2];
  memset(name, 'n', sizeof(name));
  name[NAMES_LEN_MAX + 1] = 0;
  static const char *const bad[] = {"", "\n", "a\nb", NULL};
  for (uint32_t i = 0; i < 4; i++) CHECK(!remixdb_space_open(x, bad[i], true) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_space_open(x, name, true) && remixdb_errcode() == REMIXDB_INVALID);
  name[NAMES_LEN_MAX] = 0;
  CHECK(!remixdb_space_open(NULL, "a", true) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_space_ref(NULL) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_space_drop(x, "a") && remixdb_errcode() == REMIXDB_NOTFOUND);
  CHECK(!remixdb_space_drop(x, "") && remixdb_errcode() == REMIXDB_INVALID);
  struct xdb_space *const longest = remixdb_space_open(x, name, true), *const a = remixdb_space_open(x, "a", true),
                          *const again = remixdb_space_open(x, "a", false);
  CHECK(longest && a && again);
  char want[NAMES_LEN_MAX + 8];
  (void)snprintf(want, sizeof(want), "%s\na\n", name);
  expect_list(x, want);
  remixdb_space_close(longest);
  remixdb_space_close(a);
  struct xdb_ref *const r = remixdb_space_ref(again), *const other = remixdb_ref(x);
  remixdb_space_close(again);
  remixdb_space_close(NULL);
  CHECK(remixdb_put(r, "k", 1, "v", 1) && remixdb_probe(r, "k", 1) && !remixdb_probe(other, "k", 1));
  remixdb_unref(r);
  remixdb_unref(other);
  remixdb_close(x);
  o.read_only = true;
  x = quick_open(&o);
  CHECK(!remixdb_space_open(x, "b", true) && remixdb_errcode() == REMIXDB_READONLY);
  CHECK(!remixdb_space_drop(x, "a") && remixdb_errcode() == REMIXDB_READONLY);
  struct xdb_space *const seen = remixdb_space_open(x, "a", true);
  CHECK(seen);
  struct xdb_ref *const reads = remixdb_space_ref(seen);
  CHECK(remixdb_probe(reads, "k", 1));
  CHECK(!remixdb_put(reads, "k", 1, "w", 1) && remixdb_errcode() == REMIXDB_READONLY);
  remixdb_unref(reads);
  remixdb_space_close(seen);
  expect_list(x, want);
  remixdb_close(x);
}

// ---- apart

// A snapshot with a ref for each space.
struct shot {
  struct xdb_snapshot *s;
  struct xdb_ref *refs[SPACES];
  uint64_t times[SPACES];
};

static void shot_take(struct world *w, struct shot *t) {
  CHECK(t->s = remixdb_snapshot(w->refs[below(&w->rng, SPACES)]));
  for (uint32_t i = 0; i < SPACES; i++) {
    CHECK(t->refs[i] = remixdb_snapshot_space_ref(t->s, i ? w->spaces[i] : NULL));
    t->times[i] = w->m[i].time;
  }
}

static void shot_drop(struct shot *t) {
  for (uint32_t i = 0; i < SPACES; i++) remixdb_unref(t->refs[i]);
  remixdb_snapshot_release(t->s);
  *t = (struct shot){0};
}

static void look(struct world *w, uint32_t i, struct xdb_ref *ref, uint64_t time) {
  struct past *const m = &w->m[i];
  for (uint32_t n = 0; n < 5; n++) past_check_get(m, ref, (uint32_t)below(&m->rng, m->nr), time);
  past_check_near(m, ref, time);
  past_check_many(m, ref, time);
  past_check_packed(m, ref, time);
  struct past_cursor c = {0};
  if (chance(&m->rng, 50)) past_cursor_make(m, &c, ref, time);
  for (uint32_t n = 0; n < 3; n++) {
    past_cursor_seek(m, &c, ref, time, (enum seek_kind)below(&m->rng, SEEK_KINDS));
    for (uint32_t k = 0; k < 10; k++) {
      if (chance(&m->rng, 40)) past_cursor_prev(m, &c);
      else past_cursor_skip(m, &c, chance(&m->rng, 10) ? (uint32_t)below(&m->rng, 30) : 1);
    }
    past_cursor_seek(m, &c, ref, time, (enum seek_kind)below(&m->rng, SEEK_KINDS));
    past_cursor_pages(m, &c);
  }
  past_cursor_drop(&c);
  struct past_gets gets = {0};
  for (uint32_t n = 0; n < 8; n++) past_gets_begin(m, &gets, ref, (uint32_t)below(&m->rng, m->nr), time);
  past_gets_take(m, &gets, true);
  past_gets_drop(&gets);
}

// crash: the log stays, and the next opening replays it.
static void reopen(struct world *w, bool crash) {
  w->x->leave_log = crash;
  world_close(w);
  world_open(w);
}

// Writes a batch through the ref of space `of`, with operations in all spaces.
static void write_batch(struct world *w, uint32_t of) {
  struct xdb_batch *const b = remixdb_batch_create(), *const half = remixdb_batch_create();
  CHECK(b && half);
  int where = -1;  // the space of the ref that writes
  for (uint32_t i = 0; i < SPACES; i++) w->m[i].time++;
  for (uint32_t n = 1 + (uint32_t)below(&w->rng, 30); n; n--) {
    struct xdb_batch *const to = where < 0 || chance(&w->rng, 80) ? b : half;
    if (to == half) {
      remixdb_batch_clear(half);
      remixdb_batch_space(half, where ? w->spaces[where] : NULL);
    } else if (chance(&w->rng, 30)) {
      where = (int)below(&w->rng, SPACES);
      remixdb_batch_space(b, where ? w->spaces[where] : NULL);
    }
    struct past *const m = &w->m[where < 0 ? (int)of : where];
    const uint32_t key = (uint32_t)below(&w->rng, m->nr);
    const struct past_key *const k = &m->keys[key];
    if (chance(&w->rng, 25)) {
      CHECK(remixdb_batch_del(to, k->ptr, k->len));
      past_set(m, key, 0, 0);
    } else {
      const uint32_t len = past_vlen(m, key), id = m->next_id++;
      past_value(id, len, m->buf);
      CHECK(remixdb_batch_put(to, k->ptr, k->len, m->buf, len));
      past_set(m, key, id, len);
    }
    if (to == half) CHECK(remixdb_batch_append(b, half));
  }
  CHECK(remixdb_write(w->refs[of], b));
  remixdb_batch_destroy(b);
  remixdb_batch_destroy(half);
}

static void run_apart(uint64_t seed, int workers, enum key_kind kind) {
  struct world w;
  world_init(&w, seed, workers, 300, kind);
  struct shot shots[3] = {{0}};
  for (uint32_t step = 0; step < 6000 / SLOW; step++) {
    const uint32_t i = (uint32_t)below(&w.rng, SPACES);
    struct past *const m = &w.m[i];
    const uint32_t key = (uint32_t)below(&w.rng, m->nr);
    const uint64_t dice = below(&w.rng, 1000);
    if (dice < 700) CHECK(past_put(m, w.refs[i], key));
    else if (dice < 900) CHECK(past_del(m, w.refs[i], key));
    else if (dice < 960) look(&w, i, w.refs[i], m->time);
    else if (dice < 966) write_batch(&w, i);
    else if (dice < 970) CHECK(remixdb_flush(w.refs[i]));
    else if (dice < 972) CHECK(remixdb_compact(w.refs[i]));
    struct shot *const t = &shots[below(&w.rng, 3)];
    if (dice == 980 && !t->s) shot_take(&w, t);
    if (dice >= 990 && t->s) look(&w, i, t->refs[i], t->times[i]);
    if (dice == 985 && t->s) shot_drop(t);
    if (dice >= 986 && dice < 988) {
      for (uint32_t k = 0; k < 3; k++)
        if (shots[k].s) shot_drop(&shots[k]);
      reopen(&w, chance(&w.rng, 60));
      check_all(&w);
    }
  }
  for (uint32_t k = 0; k < 3; k++) {
    if (!shots[k].s) continue;
    for (uint32_t i = 0; i < SPACES; i++) past_check_all(&w.m[i], shots[k].refs[i], shots[k].times[i]);
    shot_drop(&shots[k]);
  }
  check_all(&w);
  CHECK(remixdb_verify(w.refs[1]));
  const struct version *const v = xdb_super(w.x)->version;
  CHECK(v->spaces && !version_is_empty(v->spaces));
  world_fini(&w);
}

static void test_apart(void **state) {
  (void)state;
  const uint64_t seed = check_seed_or(11);
  run_apart(seed, 0, KEYS_MIXED);
  run_apart(seed + 1, 2, KEYS_MIXED);
  run_apart(seed + 2, 0, KEYS_TEXT);
  run_apart(seed + 3, 0, KEYS_FEW);
}

// ---- every call that takes a key

// An answer of each call for the key; the calls read `want`, or nothing for NULL.
static void check_calls(struct xdb_ref *r, const char *want, size_t len, uint64_t expiry) {
  char *const buf = malloc(len + 1);
  uint32_t vlen = 0, n = 0;
  uint64_t version = 0, expires = 1;
  const bool there = want != NULL;
  CHECK(remixdb_probe(r, "k", 1) == there);
  CHECK(remixdb_get(r, "k", 1, buf, &vlen) == there);
  if (there) CHECK(vlen == len && memcmp(buf, want, len) == 0);
  CHECK(remixdb_getv(r, "k", 1, buf, (uint32_t)len, &vlen, &version) == there && (version != 0) == there);
  CHECK(remixdb_get_part(r, "k", 1, 1, buf, (uint32_t)len, &n, &vlen) == there);
  if (there) CHECK(vlen == len && n == len - 1 && memcmp(buf, want + 1, n) == 0);
  CHECK(remixdb_expiry(r, "k", 1, &expires) == there);
  if (there) CHECK(expires == expiry);
  char *const own = remixdb_get_alloc(r, "k", 1, &vlen);
  CHECK((own != NULL) == there);
  if (there) CHECK(vlen == len && memcmp(own, want, len) == 0);
  remixdb_free(own);
  const void *v = NULL;
  struct xdb_pin *const pin = remixdb_get_pinned(r, "k", 1, &v, &vlen);
  CHECK((pin != NULL) == there);
  if (there) CHECK(vlen == len && memcmp(v, want, len) == 0);
  remixdb_pin_release(pin);
  CHECK(!remixdb_put_if(r, "k", 1, "x", 1, there ? version + 1000000 : 7) && remixdb_errcode() == REMIXDB_ABORTED);
  CHECK(!remixdb_del_if(r, "k", 1, there ? version + 1000000 : 7) && remixdb_errcode() == REMIXDB_ABORTED);
  free(buf);
}

static void test_keys(void **state) {
  (void)state;
  static const size_t lens[SPACES] = {3, 300, 3000, 300000};  // the last two are written apart
  const uint64_t far = 1ull << 50;
  struct world w;
  char *values[SPACES];
  world_init(&w, 8, 0, 5, KEYS_FEW);
  for (uint32_t i = 0; i < SPACES; i++) {
    values[i] = malloc(lens[i]);
    memset(values[i], (int)('a' + i), lens[i]);
    check_calls(w.refs[i], NULL, 4, 0);
    CHECK(remixdb_put_if(w.refs[i], "k", 1, values[i], (uint32_t)lens[i], 0));
    for (uint32_t k = 0; k < SPACES; k++) check_calls(w.refs[k], k <= i ? values[k] : NULL, lens[k], 0);
  }
  for (uint32_t round = 0; round < 4; round++) {
    for (uint32_t i = 0; i < SPACES; i++) check_calls(w.refs[i], values[i], lens[i], round ? far + i : 0);
    if (round == 0) {
      for (uint32_t i = 0; i < SPACES; i++)
        CHECK(remixdb_put_expire(w.refs[i], "k", 1, values[i], (uint32_t)lens[i], far + i));
    } else if (round == 1) {
      reopen(&w, true);
    } else {
      CHECK(remixdb_flush(w.refs[0]));
    }
  }
  uint64_t version = 0;
  char value[3000];
  CHECK(remixdb_getv(w.refs[2], "k", 1, value, sizeof(value), NULL, &version) &&
        remixdb_del_if(w.refs[2], "k", 1, version));
  for (uint32_t i = 0; i < SPACES; i++) check_calls(w.refs[i], i == 2 ? NULL : values[i], lens[i], far + i);
  for (uint32_t i = 0; i < SPACES; i++) free(values[i]);
  world_fini(&w);
}

// ---- administration

// The store in `at` has what the models have. prefix: of the spaces' names, before their ids; NULL: they have their
// own.
static void check_copy(struct world *w, const char *at, const char *prefix) {
  struct xdb *x;
  OK(xdb_open(at, &w->o, quick_env(), &x));
  for (uint32_t i = 0; i < SPACES; i++) {
    char name[64];
    (void)snprintf(name, sizeof(name), "%s%u", prefix ? prefix : "", i);
    struct xdb_space *const sp = i ? remixdb_space_open(x, prefix ? name : names[i], false) : NULL;
    CHECK(!i || sp);
    struct xdb_ref *const r = i ? remixdb_space_ref(sp) : remixdb_ref(x);
    past_check_all(&w->m[i], r, w->m[i].time);
    CHECK(i || remixdb_verify(r));
    remixdb_unref(r);
    remixdb_space_close(sp);
  }
  remixdb_close(x);
}

// Puts all keys, the second half after the last flush, and closes the store with its log.
static void fill(struct world *w) {
  for (uint32_t half = 0; half < 2; half++) {
    for (uint32_t i = 0; i < SPACES; i++)
      for (uint32_t k = half; k < w->m[i].nr; k += 2) CHECK(past_put(&w->m[i], w->refs[i], k));
    if (half == 0) CHECK(remixdb_flush(w->refs[0]));
  }
}

static void test_checkpoint(void **state) {
  (void)state;
  struct world w;
  char copy[2 * TEMP_DIR + 8];
  world_init(&w, 6, 0, 400, KEYS_MIXED);
  fill(&w);
  (void)snprintf(copy, sizeof(copy), "%s/copy", dir);
  CHECK(remixdb_checkpoint(w.refs[2], copy));
  check_copy(&w, copy, NULL);
  world_fini(&w);
}

// A repair keeps the spaces; without CURRENT it makes names from their ids.
static void test_repair(void **state) {
  (void)state;
  for (uint32_t lost = 0; lost < 2; lost++) {
    struct world w;
    char path[2 * TEMP_DIR + 16];
    world_init(&w, 7, 0, 400, KEYS_MIXED);
    fill(&w);
    w.x->leave_log = true;
    world_close(&w);
    (void)snprintf(path, sizeof(path), "%s/CURRENT", dir);
    if (lost) CHECK(unlink(path) == 0);
    CHECK(remixdb_repair(dir));
    check_copy(&w, dir, lost ? "recovered-" : NULL);
    for (uint32_t i = 0; i < SPACES; i++) past_fini(&w.m[i]);
  }
}

// ---- dropping

#define GONE(call) CHECK(!(call) && remixdb_errcode() == REMIXDB_GONE)

// Every call on a ref of a dropped space says so.
static void check_gone(struct xdb_ref *r, struct xdb_space *sp, struct xdb_ref *other) {
  char buf[8];
  uint32_t len;
  uint64_t n;
  bool found = true;
  const struct remixdb_slice key = {"k", 1};
  const struct remixdb_range all = {{NULL, 0}, {NULL, 0}};
  struct xdb_batch *const b = remixdb_batch_create();
  GONE(remixdb_put(r, "k", 1, "v", 1));
  GONE(remixdb_del(r, "k", 1));
  GONE(remixdb_getn(r, "k", 1, buf, sizeof(buf), &len));
  GONE(remixdb_probe(r, "k", 1));
  GONE(remixdb_getv(r, "k", 1, buf, sizeof(buf), &len, &n));
  GONE(remixdb_put_if(r, "k", 1, "v", 1, 0));
  GONE(remixdb_get_alloc(r, "k", 1, &len));
  GONE(remixdb_multi_get(r, 1, &key, NULL, &found));
  CHECK(!found);
  GONE(remixdb_iter_create(r));
  GONE(remixdb_count(r, &all, &n, NULL));
  GONE(remixdb_compact_range(r, &all));
  GONE(remixdb_del_range(r, &all));
  CHECK(remixdb_batch_put(b, "k", 1, "v", 1));
  GONE(remixdb_write(r, b));
  remixdb_batch_space(b, sp);
  CHECK(remixdb_batch_put(b, "k", 1, "v", 1));
  GONE(remixdb_write(other, b));
  GONE(remixdb_space_ref(sp));
  CHECK(!remixdb_probe(other, "k", 1) && remixdb_errcode() == REMIXDB_NOTFOUND);  // nothing of the batch
  remixdb_batch_destroy(b);
}

static uint64_t spaces_bytes(struct xdb *x) {
  uint64_t bytes = 0;
  xdb_lock(x);
  const struct version *const v = xdb_super(x)->version->spaces;
  for (uint32_t i = 0; i < v->nr_parts; i++)
    for (uint32_t t = 0; t < part_runs(v->parts[i]); t++) bytes += part_run(v->parts[i], t)->file_size;
  xdb_unlock(x);
  return bytes;
}

static void run_drop(int workers, bool crash) {
  struct world w;
  world_init(&w, 9, workers, 3000, KEYS_TEXT);
  for (uint32_t round = 0; round < 2; round++)
    for (uint32_t i = 0; i < SPACES; i++)
      for (uint32_t k = 0; k < w.m[i].nr; k++) CHECK(past_put(&w.m[i], w.refs[i], k));
  CHECK(remixdb_compact(w.refs[0]));
  for (uint32_t k = 0; k < 100; k++) CHECK(past_put(&w.m[2], w.refs[2], k * 7));  // some are in the memtable
  const uint64_t before = spaces_bytes(w.x);
  struct shot shot;
  shot_take(&w, &shot);
  struct past_cursor c = {0}, parked = {0};
  past_cursor_seek(&w.m[2], &c, w.refs[2], w.m[2].time, SEEK_TO_FIRST);
  past_cursor_seek(&w.m[2], &parked, w.refs[2], w.m[2].time, SEEK_TO_FIRST);
  remixdb_iter_park(parked.it);
  CHECK(remixdb_space_drop(w.x, names[2]));
  CHECK(!remixdb_space_drop(w.x, names[2]) && remixdb_errcode() == REMIXDB_NOTFOUND);
  CHECK(!remixdb_space_open(w.x, names[2], false) && remixdb_errcode() == REMIXDB_NOTFOUND);
  check_gone(w.refs[2], w.spaces[2], w.refs[0]);
  remixdb_iter_seek(parked.it, NULL, 0);
  CHECK(!remixdb_iter_valid(parked.it) && remixdb_iter_status(parked.it) == REMIXDB_GONE);
  // the cursor that began before goes on
  past_cursor_skip(&w.m[2], &c, 10);
  past_cursor_seek(&w.m[2], &c, w.refs[2], w.m[2].time, SEEK_AT_LEAST);
  past_cursor_rest(&w.m[2], &c, false);
  for (uint32_t i = 0; i < SPACES; i++) past_check_all(&w.m[i], shot.refs[i], shot.times[i]);
  past_cursor_drop(&c);
  past_cursor_drop(&parked);
  shot_drop(&shot);
  if (crash) w.x->leave_log = true;
  else CHECK(remixdb_flush(w.refs[0]));
  OK(xdb_wait_idle(w.x));
  CHECK(spaces_bytes(w.x) < before - before / 6);  // a third is gone, but for the ends of two partitions
  // the same name is a new space
  refs_drop(&w);
  refs_make(&w);
  CHECK(w.spaces[2]->id == SPACES);
  for (uint32_t i = 0; i < SPACES; i++)
    if (i != 2) past_check_all(&w.m[i], w.refs[i], w.m[i].time);
  struct xdb_iter *const it = remixdb_iter_create(w.refs[2]);
  remixdb_iter_seek(it, NULL, 0);
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
  past_fini(&w.m[2]);
  past_init(&w.m[2], KEYS_TEXT, 3000, 300);
  for (uint32_t k = 0; k < w.m[2].nr; k += 3) CHECK(past_put(&w.m[2], w.refs[2], k));
  reopen(&w, crash);
  check_all(&w);
  CHECK(remixdb_compact(w.refs[0]));
  check_all(&w);
  CHECK(remixdb_verify(w.refs[0]));
  // all go
  for (uint32_t i = 1; i < SPACES; i++) CHECK(remixdb_space_drop(w.x, names[i]));
  CHECK(remixdb_compact(w.refs[0]));
  CHECK(spaces_bytes(w.x) == 0);
  expect_list(w.x, "");
  past_check_all(&w.m[0], w.refs[0], w.m[0].time);
  refs_drop(&w);
  remixdb_close(w.x);
  w.x = quick_open(&w.o);
  refs_make(&w);
  CHECK(w.spaces[1]->id == SPACES + 1);  // no id is given twice
  world_fini(&w);
}

static void test_drop(void **state) {
  (void)state;
  run_drop(0, false);
  run_drop(2, false);
  run_drop(0, true);
}

// ---- power cuts

// Makes a space, writes to it durably, drops it, makes it again. Returns how many of these steps succeeded.
static uint32_t script(struct env *env, const struct remixdb_opts *o) {
  struct xdb *x;
  uint32_t done = 0;
  if (xdb_open("/store", o, env, &x) != REMIXDB_OK) return 0;
  struct xdb_space *const a = remixdb_space_open(x, "a", true);
  struct xdb_ref *const r = a ? remixdb_space_ref(a) : NULL;
  bool ok = r != NULL;
  done += ok;
  ok = ok && remixdb_put(r, "k", 1, "1", 1) && remixdb_flush(r);
  done += ok;
  ok = ok && remixdb_space_drop(x, "a");
  done += ok;
  struct xdb_space *const again = ok ? remixdb_space_open(x, "a", true) : NULL;
  struct xdb_ref *const second = again ? remixdb_space_ref(again) : NULL;
  done += second != NULL;
  done += second && remixdb_put(second, "k", 1, "2", 1) && remixdb_sync(second);
  remixdb_unref(r);
  remixdb_unref(second);
  remixdb_space_close(a);
  remixdb_space_close(again);
  remixdb_close(x);
  return done;
}

// A cut leaves the state after the steps that were done, or after the one that was under way.
static void check_after(struct env *env, const struct remixdb_opts *o, uint32_t done) {
  static const char *const states[] = {"none", "", "1",
                                       "none", "", "2"};  // the value of the key; "": the space is empty
  struct xdb *x;
  char is[8] = "none", buf[8];
  uint32_t len = 0;
  OK(xdb_open("/store", o, env, &x));
  struct xdb_space *const a = remixdb_space_open(x, "a", false);
  if (a) {
    struct xdb_ref *const r = remixdb_space_ref(a);
    (void)snprintf(is, sizeof(is), "%s", remixdb_get(r, "k", 1, buf, &len) ? (buf[len] = 0, buf) : "");
    CHECK(remixdb_verify(r));
    remixdb_unref(r);
    remixdb_space_close(a);
  }
  if (strcmp(is, states[done]) != 0 && (done == 5 || strcmp(is, states[done + 1]) != 0))
    fail_msg("after %u steps: %s", done, is);
  remixdb_close(x);
}

// The power goes before every call that changes the disk.
static void test_cuts(void **state) {
  (void)state;
  const struct remixdb_opts o = world_opts(0);
  uint32_t done = 0, cuts = 0;
  for (uint64_t at = 0; done < 5; at++) {
    for (uint64_t outcome = 0; outcome < 3; outcome++, cuts++) {
      struct simdisk *const d = simdisk_create();
      simdisk_no_allocate(d, true);
      simdisk_power_off(d, at);
      done = script(simdisk_env(d), &o);
      struct simdisk *const after = simdisk_crash(d, at * 3 + outcome);
      simdisk_no_allocate(after, true);
      check_after(simdisk_env(after), &o, done);
      simdisk_destroy(after);
      simdisk_destroy(d);
    }
  }
  CHECK(cuts > 100);
}

enum { ORDER_STEPS = 6, ORDER_CUTS = 600 };

static struct {
  struct simdisk *disk, *cuts[ORDER_CUTS];
  uint32_t steps[ORDER_CUTS];  // that had ended at the cut
  uint32_t step, nr;
} order;

static void order_cut(void *arg) {
  (void)arg;
  for (uint32_t i = 0; i < 4; i++, order.nr++) {
    CHECK(order.nr < ORDER_CUTS);
    order.cuts[order.nr] = simdisk_crash(order.disk, order.nr + 1);
    order.steps[order.nr] = order.step;
  }
}

// The steps, none with a sync of its own: a put in the unnamed space, the making of the space "b", a put there, a put
// in the unnamed space, the drop of "a", a put in "b".
static void order_steps(struct xdb *x, struct xdb_ref *r) {
  CHECK(remixdb_put(r, "1", 1, "v", 1));
  order.step = 1;
  struct xdb_space *const b = remixdb_space_open(x, "b", true);
  struct xdb_ref *const rb = remixdb_space_ref(b);
  CHECK(rb);
  order.step = 2;
  CHECK(remixdb_put(rb, "3", 1, "v", 1));
  order.step = 3;
  CHECK(remixdb_put(r, "4", 1, "v", 1));
  order.step = 4;
  CHECK(remixdb_space_drop(x, "a"));
  order.step = 5;
  CHECK(remixdb_put(rb, "6", 1, "v", 1));
  order.step = 6;
  remixdb_unref(rb);
  remixdb_space_close(b);
}

// A cut leaves a number of the first steps, and nothing of the others. No step may be missing that made names durable.
static void order_check(uint32_t cut) {
  const struct remixdb_opts o = world_opts(0);
  struct xdb *x;
  OK(xdb_open("/store", &o, simdisk_env(order.cuts[cut]), &x));
  struct xdb_ref *const r = remixdb_ref(x);
  struct xdb_space *const a = remixdb_space_open(x, "a", false), *const b = remixdb_space_open(x, "b", false);
  struct xdb_ref *const ra = a ? remixdb_space_ref(a) : NULL, *const rb = b ? remixdb_space_ref(b) : NULL;
  const bool is[ORDER_STEPS + 1] = {remixdb_probe(r, "1", 1), b,  rb && remixdb_probe(rb, "3", 1),
                                    remixdb_probe(r, "4", 1), !a, rb && remixdb_probe(rb, "6", 1)};
  CHECK(r && (!ra || remixdb_probe(ra, "k", 1)));
  uint32_t nr = 0;
  while (nr < ORDER_STEPS && is[nr]) nr++;
  for (uint32_t i = nr; i < ORDER_STEPS; i++)
    if (is[i])
      fail_msg("cut %u, after %u steps: step %u is there without step %u", cut, order.steps[cut], i + 1, nr + 1);
  const uint32_t durable = order.steps[cut] >= 5 ? 5 : order.steps[cut] >= 2 ? 2 : 0;
  if (nr < durable || nr > order.steps[cut] + 1) fail_msg("cut %u, after %u steps: %u", cut, order.steps[cut], nr);
  remixdb_unref(ra);
  remixdb_unref(rb);
  remixdb_unref(r);
  remixdb_space_close(a);
  remixdb_space_close(b);
  remixdb_close(x);
}

// The makings and drops of spaces have their place among the writes: the power goes at each change of the disk.
static void test_cut_order(void **state) {
  (void)state;
  const struct remixdb_opts o = world_opts(0);
  struct xdb *x;
  memset(&order, 0, sizeof(order));
  order.disk = simdisk_create();
  OK(xdb_open("/store", &o, simdisk_env(order.disk), &x));
  struct xdb_space *const a = remixdb_space_open(x, "a", true);
  struct xdb_ref *const r = remixdb_ref(x), *const ra = remixdb_space_ref(a);
  CHECK(r && ra && remixdb_put(ra, "k", 1, "v", 1) && remixdb_sync(r));
  simdisk_on_change(order.disk, order_cut, NULL);
  order_steps(x, r);
  order_cut(NULL);
  simdisk_on_change(order.disk, NULL, NULL);
  remixdb_unref(ra);
  remixdb_unref(r);
  remixdb_space_close(a);
  remixdb_close(x);
  CHECK(order.nr > 40);
  for (uint32_t i = 0; i < order.nr; i++) {
    order_check(i);
    simdisk_destroy(order.cuts[i]);
  }
  simdisk_destroy(order.disk);
}

// ---- counts

// Counts and compactions keep to the space, also with open ends.
static void test_ranges(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 5, 0, 500, KEYS_TEXT);
  for (uint32_t i = 0; i < SPACES; i++)
    for (uint32_t k = 0; k < w.m[i].nr / (i + 1); k++) CHECK(past_put(&w.m[i], w.refs[i], k));
  const struct remixdb_range all = {{NULL, 0}, {NULL, 0}};
  for (uint32_t round = 0; round < 2; round++) {
    for (uint32_t i = 0; i < SPACES; i++) {
      const struct past_key *const from = &w.m[i].keys[50];
      const struct remixdb_range part = {{from->ptr, from->len}, {NULL, 0}};
      uint64_t keys = 0, want = w.m[i].nr / (i + 1);
      CHECK(remixdb_count(w.refs[i], &all, &keys, NULL));
      CHECK(keys + 3 >= want && keys <= want + 3);  // an estimate: a little off, and not the keys of other spaces
      CHECK(remixdb_count(w.refs[i], &part, &keys, NULL));
      CHECK(keys + 3 >= want - 50 && keys <= want - 50 + 3);
      CHECK(remixdb_compact_range(w.refs[i], &part) && remixdb_compact_range(w.refs[i], &all));
    }
    check_all(&w);
  }
  world_fini(&w);
}

// ---- batches

struct seen {
  uint32_t nr;
  char text[256];
};

static bool see_item(void *priv, const struct remixdb_batch_item *item) {
  struct seen *const s = priv;
  char *const to = s->text + strlen(s->text);
  (void)snprintf(to, sizeof(s->text) - strlen(s->text), "%.*s:%.*s=%.*s ", item->space.ptr ? (int)item->space.len : 1,
                 item->space.ptr ? (const char *)item->space.ptr : "?", (int)item->key.len, (const char *)item->key.ptr,
                 (int)item->value.len, (const char *)item->value.ptr);
  s->nr++;
  return true;
}

static void expect_items(const struct xdb_batch *b, const char *want) {
  struct seen seen = {0};
  CHECK(remixdb_batch_each(b, see_item, &seen));
  CHECK(seen.nr == remixdb_batch_count(b));
  if (strcmp(seen.text, want) != 0) fail_msg("%s, not %s", seen.text, want);
}

static void value_is(struct xdb_ref *r, const char *key, const char *want) {
  char buf[64];
  uint32_t len = 0;
  const bool found = remixdb_get(r, key, (uint32_t)strlen(key), buf, &len);
  CHECK(found == (want != NULL));
  if (want) CHECK(len == strlen(want) && memcmp(buf, want, len) == 0);
}

static void test_batch(void **state) {
  (void)state;
  setup_again();
  struct remixdb_opts o = world_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_space *const a = remixdb_space_open(x, "a", true), *const b = remixdb_space_open(x, "b", true);
  struct xdb_ref *const ra = remixdb_space_ref(a), *const rb = remixdb_space_ref(b), *const r = remixdb_ref(x);
  struct xdb_batch *const batch = remixdb_batch_create(), *const more = remixdb_batch_create();
  CHECK(remixdb_batch_put(batch, "k", 1, "1", 1));
  remixdb_batch_space(batch, b);
  CHECK(remixdb_batch_put(batch, "k", 1, "2", 1) && remixdb_batch_put(batch, "", 0, "3", 1));
  remixdb_batch_space(batch, NULL);
  CHECK(remixdb_batch_put(batch, "k", 1, "4", 1) && remixdb_batch_del(batch, "gone", 4));
  remixdb_batch_space(more, a);
  CHECK(remixdb_batch_put(more, "k", 1, "5", 1));
  CHECK(remixdb_batch_append(batch, more));
  CHECK(remixdb_batch_append(batch, batch));
  expect_items(batch, "?:k=1 b:k=2 b:=3 :k=4 :gone= a:k=5 ?:k=1 b:k=2 b:=3 :k=4 :gone= a:k=5 ");
  // the last operation on a key counts, however its space was stated
  CHECK(remixdb_write(ra, batch));
  value_is(ra, "k", "5");
  value_is(rb, "k", "2");
  value_is(rb, "", "3");
  value_is(r, "k", "4");
  CHECK(remixdb_write(r, batch));  // the same batch through another ref: its own operations go elsewhere
  value_is(r, "k", "4");
  remixdb_batch_clear(batch);
  remixdb_batch_space(batch, a);
  CHECK(remixdb_batch_put(batch, "k", 1, "6", 1));
  remixdb_batch_clear(batch);
  CHECK(remixdb_batch_put(batch, "k", 1, "7", 1));  // the ref's space again
  expect_items(batch, "?:k=7 ");
  CHECK(remixdb_write(rb, batch));
  value_is(rb, "k", "7");
  value_is(ra, "k", "5");
  // the longest key there is
  char *const key = malloc(REMIXDB_KV_MAX);
  memset(key, 'k', REMIXDB_KV_MAX);
  remixdb_batch_space(batch, a);
  CHECK(remixdb_batch_put(batch, key, REMIXDB_KV_MAX, NULL, 0) && remixdb_write(r, batch));
  CHECK(remixdb_put(rb, key, REMIXDB_KV_MAX, NULL, 0) && !remixdb_probe(r, key, REMIXDB_KV_MAX));
  for (uint32_t round = 0; round < 2; round++) {
    CHECK(remixdb_probe(ra, key, REMIXDB_KV_MAX) && remixdb_probe(rb, key, REMIXDB_KV_MAX));
    struct xdb_iter *const it = remixdb_iter_create(ra);
    remixdb_iter_seek_last(it);
    uint32_t klen = 0;
    CHECK(remixdb_iter_valid(it) && memcmp(remixdb_iter_key(it, &klen), key, REMIXDB_KV_MAX) == 0);
    CHECK(klen == REMIXDB_KV_MAX);
    remixdb_iter_seek(it, key, REMIXDB_KV_MAX);
    CHECK(remixdb_iter_valid(it));
    remixdb_iter_destroy(it);
    CHECK(remixdb_flush(r));
  }
  free(key);
  remixdb_batch_destroy(batch);
  remixdb_batch_destroy(more);
  remixdb_space_close(a);
  remixdb_space_close(b);
  remixdb_unref(ra);
  remixdb_unref(rb);
  remixdb_unref(r);
  remixdb_close(x);
}

// Open handles lie in lists by their names, at most one a list on average. Each is found again, and closing all leaves
// none.
static void test_handles(void **state) {
  (void)state;
  enum { MANY = 200 };
  struct world w = {.o = world_opts(0)};
  static struct xdb_space *handles[MANY];
  char name[16];
  w.x = quick_open(&w.o);
  for (uint32_t i = 0; i < MANY; i++) {
    (void)snprintf(name, sizeof(name), "tenant-%05u", i);
    CHECK(handles[i] = remixdb_space_open(w.x, name, true));
    CHECK(w.x->spaces.nr == i + 1 && w.x->spaces.nr_lists >= w.x->spaces.nr);
  }
  for (uint32_t i = 0; i < MANY; i++) {
    (void)snprintf(name, sizeof(name), "tenant-%05u", i);
    CHECK(remixdb_space_open(w.x, name, false) == handles[i]);
    remixdb_space_close(handles[i]);
  }
  CHECK(remixdb_space_drop(w.x, "tenant-00077"));
  struct xdb_ref *const r = remixdb_space_ref(handles[77]);
  CHECK(!r || !remixdb_put(r, "k", 1, "v", 1));
  CHECK(remixdb_errcode() == REMIXDB_GONE);
  if (r) remixdb_unref(r);
  struct xdb_space *const anew = remixdb_space_open(w.x, "tenant-00077", true);
  CHECK(anew && anew != handles[77]);
  remixdb_space_close(anew);
  for (uint32_t i = 0; i < MANY; i++) remixdb_space_close(handles[i]);
  CHECK(w.x->spaces.nr == 0);
  remixdb_close(w.x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_handles), cmocka_unit_test(test_calls),      cmocka_unit_test(test_apart),
      cmocka_unit_test(test_batch),   cmocka_unit_test(test_drop),       cmocka_unit_test(test_cuts),
      cmocka_unit_test(test_keys),    cmocka_unit_test(test_checkpoint), cmocka_unit_test(test_repair),
      cmocka_unit_test(test_ranges),  cmocka_unit_test(test_cut_order),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
