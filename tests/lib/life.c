// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/life.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "remix/paged.h"
#include "store/txn.h"
#include "store/async.h"
#include "store/collect.h"
#include "store/flush.h"
#include "store/page.h"
#include "store/replay_round.h"
#include "store/space_ref.h"
#include "store/syncer.h"
#include "store/values.h"
#include "tests/lib/expect.h"
#include "tests/lib/often.h"
#include "tests/lib/slow.h"
#include "tests/lib/starve.h"

struct life_counts counts;

// ---- the model

static void model_fini(struct model *m) { free(m->ops); }

// Adds an operation of a write that begins. From here on the store may hold it.
static void model_add(struct model *m, const struct op *op) {
  if (m->nr == m->cap) {
    m->cap = m->cap ? m->cap * 2 : 256;
    m->ops = realloc(m->ops, m->cap * sizeof(*m->ops));
    assert_non_null(m->ops);
  }
  m->ops[m->nr++] = *op;
}

const struct op *life_find(const struct model *m, uint64_t id) {
  size_t lo = 0, hi = m->nr;
  while (lo < hi) {
    const size_t mid = (lo + hi) / 2;
    if (m->ops[mid].id < id) lo = mid + 1;
    else hi = mid;
  }
  return lo < m->nr && m->ops[lo].id == id ? &m->ops[lo] : NULL;
}

struct kref life_key(uint32_t i, uint8_t buf[32]) {
  if (i == 0) return kref("", 0);
  for (uint32_t at = 5, left = i; at-- > 0; left /= 10) buf[at] = (uint8_t)('0' + left % 10);
  if (i % 3) return kref(buf, 5);
  memcpy(buf + 5, "-a-longer-key", 13);
  return kref(buf, 18);
}

void life_value(const struct op *op, uint8_t *buf) {
  store64le(buf, op->id);
  store32le(buf + 8, op->key);
  store32le(buf + 12, op->vlen);
  // half of it is compressible
  uint64_t r = op->id;
  uint32_t at = VALUE_MIN;
  for (; at + 16 <= op->vlen; at += 16) {
    store64le(buf + at, rng_next(&r));
    memset(buf + at + 8, 'x', 8);
  }
  for (; at < op->vlen; at++) buf[at] = (uint8_t)(rng_next(&r) >> 32);
}

// ---- a run

static void make_plan(struct plan *p, uint64_t *rng) {
  memset(p, 0, sizeof(*p));
  p->nr_keys = 20 + (uint32_t)below(rng, KEYS_MAX - 20);
  static const uint32_t lens[] = {100, 600, 600, 2500, 9000, 24000};
  p->vlen_max = lens[below(rng, sizeof(lens) / sizeof(lens[0]))];
  p->memtable_limit = (size_t)(70 + below(rng, 60)) << 10;
  p->table_pages = 4 + (uint32_t)below(rng, 24);
  p->flush = (uint32_t)below(rng, 25);
  p->sync = (uint32_t)below(rng, 60);
  p->reopen = (uint32_t)below(rng, 12);
  p->del = (uint32_t)below(rng, 250);
  p->focus = (uint32_t)below(rng, 100);
  p->no_allocate = chance(rng, 85);
  p->large_max = 40000;
  p->short_io = chance(rng, 25);
  remixdb_opts_init(&p->opts, sizeof(p->opts));
  p->opts.workers = 0;
  p->opts.memtable_mb = 1;
  p->opts.cache_mb = chance(rng, 50);
  p->opts.ckeys = chance(rng, 50);
  p->opts.tags = chance(rng, 50);
  p->opts.compression = chance(rng, 25) ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  p->opts.max_open_files = chance(rng, 30) ? 16 : 0;
  p->opts.direct_io = chance(rng, 10);
  if (chance(rng, 10)) p->opts.sync = REMIXDB_SYNC_EACH;
}

// Gives the run its own memory.
static void run_buffers(struct run *r) {
  r->value = malloc(VALUE_MAX);
  r->got = malloc(VALUE_MAX);
  assert_non_null(r->value);
  assert_non_null(r->got);
}

static void run_free(struct run *r) {
  starve(false);
  model_fini(&r->model);
  free(r->value);
  free(r->got);
  free(r);
}

static uint64_t wall_ms(void *arg) { return atomic_load(&((struct run *)arg)->wall); }
static uint64_t steady_ms(void *arg) { return atomic_load(&((struct run *)arg)->steady); }

struct run *run_create(uint64_t s) {
  struct run *r = calloc(1, sizeof(*r));
  assert_non_null(r);
  run_buffers(r);
  atomic_init(&r->wall, 1700000000000);
  check_seed = s;
  (void)snprintf(check_what, sizeof(check_what), "at the start");
  (void)alarm(HANG_S);
  often_large(s);
  r->rng = s * 0x9E3779B97F4A7C15ull + 1;
  make_plan(&r->plan, &r->rng);
  r->wear_rng = s;
  r->plan.wear = (uint32_t)below(&r->wear_rng, 7);
  static const uint8_t from[] = {0, 1, 2, 8, COMPACT_YOUNG_FROM};
  r->plan.young_from = from[below(&r->wear_rng, sizeof(from))];
  static const uint32_t garbage_from[] = {0, 1, 100000};
  r->plan.garbage_from = garbage_from[below(&r->wear_rng, 3)];
  r->plan.garbage = (uint32_t)below(&r->wear_rng, 7);
  r->plan.cut_from = s % 8 ? 0 : COMPACT_CUT_FROM;
  r->plan.join = s % 4 ? 1 + (uint32_t)(s % 2) : 0;
  starve(below(&r->wear_rng, 3) == 0);
  if (below(&r->wear_rng, 4) == 0) {  // next to no memory: the least cache, and workers wait for each other
    r->plan.opts.cache_mb = REMIXDB_AUTO;
    r->plan.opts.memory_mb = 1;
  }
  static const uint32_t long_from[] = {KV_REF_MAX + 1, 100, 600, COMPACT_APART};
  uint64_t apart_rng = s + 1000;
  r->plan.apart_from = long_from[below(&apart_rng, sizeof(long_from) / sizeof(long_from[0]))];
  r->plan.values_full = chance(&apart_rng, 50) ? 50000 : VALUE_FILE;
  r->plan.moved_from = chance(&apart_rng, 50) ? 1 + below(&apart_rng, 400) : 0;
  r->plan.spaces = s % 3 == 1 ? 1 + (uint32_t)(s / 3 % SPACES_MAX) : 0;
  r->iter_rng = s;
  r->plan.cold = (uint32_t)below(&r->iter_rng, 3);
  r->plan.away = s / 2 % 2;
  r->plan.replay = s % 5 < 2 ? 20000 + s % 7 * 10000 : 0;
  static const uint32_t few[] = {0, 0, 12, 4096};
  r->plan.range_few = few[below(&r->iter_rng, 4)];
  if (s % 5 == 3) {  // the next opening needs many tables for what one has here
    r->plan.other_pages = 40 + (uint32_t)below(&r->iter_rng, 60);
    r->plan.table_pages = 1 + (uint32_t)below(&r->iter_rng, 2);
  }
  r->plan.large = s % 4 == 0 ? 20 : s % 4 == 2 ? 3 : 0;
  if (s % 8 == 2) r->plan.large_max = VALUE_MAX;
  r->model.nr_keys = r->plan.nr_keys;
  r->model.next_id = 1;
  return r;
}

void run_apart(struct run *r) {
  r->plan.nr_keys = r->model.nr_keys = 6 + (uint32_t)below(&r->rng, 12);
  r->plan.vlen_max = 600;
  r->plan.apart = 30 + (uint32_t)below(&r->rng, 60);
  r->plan.values_full = (uint32_t)(40 + below(&r->rng, 100)) << 10;
  r->plan.flush = 80 + (uint32_t)below(&r->rng, 100);
}

void run_sparse(struct run *r) {
  r->plan.nr_keys = r->model.nr_keys = KEYS_MAX;
  r->plan.vlen_max = 2500;
  r->plan.table_pages = 32;
  r->plan.other_pages = 4;
  r->plan.spaces = 0;
  r->plan.join = 1;
  r->plan.focus = 0;
  r->plan.del = 100 + (uint32_t)below(&r->rng, 400);
  r->plan.flush = 25 + (uint32_t)below(&r->rng, 25);
  r->plan.reopen = 20;
  r->plan.garbage = 50;
}

void run_disk(struct run *r, struct simdisk *d) {
  simdisk_destroy(r->disk);
  r->disk = d;
  r->clock = (struct env_clock){wall_ms, steady_ms, r};
  simdisk_env(d)->clock = &r->clock;
  simdisk_no_allocate(d, r->plan.no_allocate);
  if (r->plan.short_io) simdisk_short_io(d, rng_next(&r->rng) | 1);
}

enum remixdb_status run_close(struct run *r) {
  if (!r->x) return REMIXDB_OK;
  for (uint32_t k = 0; k < COMPACT_KINDS; k++) counts.kinds[k] += atomic_load(&r->x->compact.stats.kinds[k]);
  counts.scan_merges += atomic_load(&r->x->compact.stats.scan_merges);
  counts.young += atomic_load(&r->x->compact.stats.young);
  counts.part_cuts += atomic_load(&r->x->compact.stats.cuts);
  counts.joined += atomic_load(&r->x->compact.stats.joined);
  counts.emptied += atomic_load(&r->x->compact.stats.emptied);
  counts.apart += atomic_load(&r->x->compact.stats.apart);
  counts.again += atomic_load(&r->x->compact.stats.again);
  counts.collections += atomic_load(&r->x->collect.nr);
  counts.moved += atomic_load(&r->x->collect.moved_bytes);
  counts.moved_merges += atomic_load(&r->x->compact.stats.moved_merges);
  counts.replay_rounds += r->x->replay_rounds;
  for (uint32_t i = 0; i <= SPACES_MAX; i++) {
    xdb_unref(r->refs[i]);
    xdb_space_close(r->spaces[i]);
    r->refs[i] = NULL;
    r->spaces[i] = NULL;
  }
  r->ref = NULL;
  const enum remixdb_status s = xdb_close(r->x);
  r->x = NULL;
  CHECK(simdisk_open_files(r->disk) == 0);
  return s;
}

static bool hear(void *priv, const char *call, uint64_t done, uint64_t total) {
  (void)priv;
  CHECK(call[0] && (total == 0 || done <= total));
  return true;
}

// Makes the refs of all spaces, and spaces that are not there.
static enum remixdb_status make_refs(struct run *r) {
  enum remixdb_status s = xdb_ref(r->x, &r->refs[0]);
  r->ref = r->refs[0];
  for (uint32_t i = 1; i <= r->plan.spaces && s == REMIXDB_OK; i++) {
    const char name[2] = {(char)('a' + i), 0};
    s = xdb_space_open(r->x, name, 1, !r->plan.opts.read_only, &r->spaces[i]);
    if (s == REMIXDB_NOTFOUND && r->plan.opts.read_only) s = REMIXDB_OK;
    else if (s == REMIXDB_OK) s = xdb_space_ref(r->spaces[i], &r->refs[i]);
  }
  return s;
}

enum remixdb_status run_open(struct run *r) {
  r->ref = NULL;
  if (r->plan.other_pages) {
    const uint32_t pages = r->plan.table_pages;
    r->plan.table_pages = r->plan.other_pages;
    r->plan.other_pages = pages;
  }
  expect_reads(r->plan.cold);
  atomic_store(&version_eager, r->plan.away ? 0 : VERSION_EAGER);
  atomic_store(&replay_most, r->plan.replay);
  enum remixdb_status s = xdb_open(DIR_NAME, &r->plan.opts, simdisk_env(r->disk), &r->x);
  if (s != REMIXDB_OK) {
    CHECK(simdisk_open_files(r->disk) == 0);
    r->x = NULL;
    return s;
  }
  if (r->plan.opts.workers) {  // no worker may be at work while the settings change
    s = xdb_wait_idle(r->x);
    if (s != REMIXDB_OK) {
      struct err_saved why;
      err_save(&why, s);
      (void)run_close(r);
      return err_raise(&why);
    }
  }
  pthread_mutex_lock(&r->x->lock);  // a worker may be looking whether there is more to do
  r->x->memtable_limit = r->plan.memtable_limit;
  pthread_mutex_unlock(&r->x->lock);
  r->x->compact.memtable_size = r->plan.memtable_limit;
  expect_small_memory(r->x);
  r->x->compact.build.max_pages = r->plan.table_pages;
  r->x->compact.young_from = r->plan.young_from;
  r->x->compact.garbage_from = r->plan.garbage_from;
  r->x->compact.cut_from = r->plan.cut_from;
  r->x->compact.join = r->plan.join;
  r->x->garbage_merges.rest_ns = 1000000;
  r->x->compact.apart_from = r->plan.apart_from;
  r->x->values.full = r->x->compact.values.full = r->plan.values_full;
  r->x->compact.moved_from = r->plan.moved_from;
  r->x->ranges = (struct range_limits){r->plan.range_few, r->plan.range_few / 4, 8 * (uint64_t)r->plan.range_few};
  s = make_refs(r);
  if (s != REMIXDB_OK) {
    struct err_saved why;
    err_save(&why, s);
    (void)run_close(r);
    return err_raise(&why);
  }
  r->ref->progress = (struct progress){hear, r};
  return s;
}

void run_destroy(struct run *r) {
  (void)alarm(0);
  (void)run_close(r);
  CHECK(simdisk_refused(r->disk) == 0);
  simdisk_destroy(r->disk);
  run_free(r);
}

struct run *run_small(uint32_t small) {
  const uint32_t plan = small % 2;
  static uint64_t nr;
  struct run *r = run_create(small + 1);
  often_large(nr++);
  struct plan *p = &r->plan;
  r->wears = plan;
  memset(p, 0, sizeof(*p));
  p->nr_keys = 100;
  p->vlen_max = 1800;
  p->large_max = 30000;
  p->memtable_limit = 64u << 10;
  p->table_pages = 4;
  p->young_from = plan;
  p->join = 1;
  starve(plan == 1);
  p->apart_from = 1500;  // a sixth of the values
  p->values_full = 50000;
  p->cold = small < 2 ? 1 : 2;
  p->away = plan == 1;
  p->no_allocate = plan == 1;
  remixdb_opts_init(&p->opts, sizeof(p->opts));
  p->opts.workers = 0;
  p->opts.memtable_mb = 1;
  p->opts.cache_mb = plan == 0;
  p->opts.ckeys = p->opts.tags = plan == 1;
  p->opts.max_open_files = 16;
  if (plan == 1) p->opts.compression = REMIXDB_COMPRESSION_ZSTD;
  if (plan == 1) p->opts.sync = REMIXDB_SYNC_EACH;
  p->opts.direct_io = plan == 1;
  r->model.nr_keys = p->nr_keys;
  run_disk(r, simdisk_create());
  return r;
}

// ---- checks

void check_failure(struct run *r, enum remixdb_status s) {
  CHECK(r->faulty || simdisk_is_off(r->disk));
  CHECK(s == REMIXDB_IO || s == REMIXDB_NOSPACE || (s == REMIXDB_NOMEM && (r->no_memory || r->may_nomem)));
  CHECK(s == REMIXDB_NOMEM || !r->no_memory);
  CHECK(s != REMIXDB_NOSPACE || r->may_nospace);
  CHECK(err_msg()[0] != '\0');
}

uint64_t check_value(struct run *r, uint32_t key, const uint8_t *val, uint32_t vlen) {
  CHECK(vlen >= VALUE_MIN);
  const struct op *op = life_find(&r->model, load64le(val));
  CHECK(op != NULL);  // otherwise a lost write has come back
  CHECK(!op->del && op->key == key && op->vlen == vlen);
  life_value(op, r->value);
  CHECK(memcmp(r->value, val, vlen) == 0);
  return op->id;
}

// A get that begins in one call and ends in another.
static enum remixdb_status get_async(struct run *r, struct xdb_ref *ref, struct kref key, uint32_t *vlen_out) {
  struct xdb_gets *g;
  struct remixdb_got got;
  size_t nr;
  enum remixdb_status s = xdb_gets_create(ref, 1, &g);
  if (s != REMIXDB_OK) return s;
  s = xdb_get_begin(g, key, r->got, VALUE_MAX, r);
  if (s == REMIXDB_OK) {
    OK(xdb_get_poll(g, &got, 1, 1, &nr));
    CHECK(nr == 1 && got.priv == r);
    *vlen_out = got.len;
    s = got.status;
    if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) (void)err_set(s, "%s", got.msg);
  }
  xdb_gets_destroy(g);
  return s;
}

// A get of the value's beginning, and of the rest.
static enum remixdb_status get_pieces(struct run *r, struct xdb_ref *ref, struct kref key, uint32_t *vlen_out) {
  const uint32_t first = r->looks % 5 * 4100;
  uint32_t n = 0, rest = 0, again = 0;
  enum remixdb_status s = xdb_get_part(ref, key, 0, r->got, first, &n, vlen_out);
  if (s != REMIXDB_OK) return s;
  CHECK(n == (first < *vlen_out ? first : *vlen_out) && *vlen_out <= VALUE_MAX);
  s = xdb_get_part(ref, key, n, r->got + n, VALUE_MAX - n, &rest, &again);
  if (s == REMIXDB_OK) CHECK(n + rest == *vlen_out && again == *vlen_out);
  else CHECK(s != REMIXDB_NOTFOUND);
  counts.pieces += s == REMIXDB_OK;
  return s;
}

uint64_t look_up(struct run *r, uint32_t key, bool *ok_out) {
  uint8_t kbuf[32];
  uint32_t vlen = 0;
  const struct kref k = life_key(key, kbuf);
  struct xdb_ref *const ref = life_ref(r, key);
  if (!ref) {
    *ok_out = true;
    return 0;
  }
  const uint32_t how = r->looks++ % 3;
  const enum remixdb_status s = how == 0   ? xdb_get(ref, k, r->got, VALUE_MAX, &vlen)
                                : how == 1 ? get_async(r, ref, k, &vlen)
                                           : get_pieces(r, ref, k, &vlen);
  *ok_out = s == REMIXDB_OK || s == REMIXDB_NOTFOUND;
  if (!*ok_out) check_failure(r, s);
  return s == REMIXDB_OK ? check_value(r, key, r->got, vlen) : 0;
}

// Reads one space.
static bool read_space(struct run *r, uint32_t space, uint64_t *ids) {
  struct xdb_iter *it;
  if (!r->refs[space]) return true;
  enum remixdb_status s = expect_iter_below(r->refs[space], rng_next(&r->iter_rng), &it);
  if (s != REMIXDB_OK) {
    check_failure(r, s);
    return false;
  }
  uint32_t key = space;
  const uint32_t stride = r->plan.spaces + 1;
  s = xdb_iter_seek(it, kref("", 0));
  while (s == REMIXDB_OK && xdb_iter_valid(it)) {
    struct kv_rec rec;
    if ((s = xdb_iter_record(it, &rec)) != REMIXDB_OK) break;
    uint8_t kbuf[32];
    for (; key < r->plan.nr_keys; key += stride) {
      const struct kref k = life_key(key, kbuf);
      if (k.len == rec.klen && memcmp(k.ptr, rec.key, k.len) == 0) break;
    }
    CHECK(key < r->plan.nr_keys);  // otherwise it is out of order, there twice or never written
    ids[key] = check_value(r, key, rec.val, rec.vlen);
    key += stride;
    s = xdb_iter_skip(it, 1);
  }
  xdb_iter_destroy(it);
  if (s != REMIXDB_OK) check_failure(r, s);
  return s == REMIXDB_OK;
}

bool read_all(struct run *r, uint64_t *ids) {
  memset(ids, 0, KEYS_MAX * sizeof(*ids));
  bool all = true;
  for (uint32_t i = 0; i <= r->plan.spaces && all; i++) all = read_space(r, i, ids);
  return all;
}

void check_content(struct run *r, bool may_fail) {
  uint64_t ids[KEYS_MAX];
  const bool all = read_all(r, ids);
  CHECK(all || may_fail);
  for (uint32_t k = 0; k < r->plan.nr_keys; k++) {
    if (all) CHECK(ids[k] == r->model.now[k]);
    bool ok;
    const uint64_t id = look_up(r, k, &ok);
    CHECK(ok || may_fail);
    if (ok) CHECK(id == r->model.now[k]);
  }
}

bool check_prefix(struct run *r) {
  struct model *m = &r->model;
  uint64_t ids[KEYS_MAX];
  if (!read_all(r, ids)) return false;
  uint64_t now[KEYS_MAX] = {0};
  uint32_t differ = 0;
  for (uint32_t k = 0; k < m->nr_keys; k++) differ += ids[k] != 0;
  size_t n = 0, found = SIZE_MAX, any = SIZE_MAX;
  for (;; n++) {
    const bool whole = n == 0 || !m->ops[n - 1].more;
    if (differ == 0 && whole) any = n;
    if (differ == 0 && whole && n >= m->synced && found == SIZE_MAX) found = n;
    if (n == m->nr) break;
    const struct op *op = &m->ops[n];
    differ -= now[op->key] != ids[op->key];
    now[op->key] = op->del || (op->expires && op->expires <= atomic_load(&r->wall)) ? 0 : op->id;
    differ += now[op->key] != ids[op->key];
  }
  if (found == SIZE_MAX)
    fail_msg("CRASH_SEED=%llu, %s: %s; %zu writes, %zu of them synced, and the store holds %s%zd",
             (unsigned long long)check_seed, check_what,
             any == SIZE_MAX ? "what is there is of no moment" : "synced writes are lost", m->nr, m->synced,
             any == SIZE_MAX ? "none of their states " : "the first ", any == SIZE_MAX ? (ssize_t)-1 : (ssize_t)any);
  m->nr = found;
  m->maybe = 0;
  memcpy(m->now, ids, sizeof(m->now));
  m->synced = found;  // an opening makes the recovered writes durable first
  for (uint32_t k = (uint32_t)below(&r->rng, 1 + r->look_apart); k < m->nr_keys; k += 1 + r->look_apart) {
    bool ok;
    const uint64_t id = look_up(r, k, &ok);
    CHECK(ok ? id == m->now[k] : r->faulty || simdisk_is_off(r->disk));
  }
  return true;
}

struct seen_files {
  struct xdb *x;
  const struct super *super;
  const struct version *v;
  uint32_t nr_tables, nr_remixes, nr_logs, nr_strange;
};

// Counts the partition's files in a pack.
static bool see_packed(struct seen_files *n, const struct part *p, uint64_t pack) {
  struct part_files f;
  part_files(p, &f);
  const uint32_t before = n->nr_remixes + n->nr_tables;
  n->nr_remixes += f.remix.part && f.remix.part->pack->number == pack;
  n->nr_remixes += f.young.part && f.young.part->pack->number == pack;
  for (uint32_t t = 0; t < f.nr; t++) n->nr_tables += f.tables[t].part && f.tables[t].part->pack->number == pack;
  return n->nr_remixes + n->nr_tables > before;
}

// Tells whether the partition has the file.
static bool see_part(struct seen_files *n, const struct part *p, enum files_kind kind, uint64_t number) {
  struct part_files f;
  part_files(p, &f);
  const bool view = !f.remix.part && f.remix.number == number, young = !f.young.part && f.young.number == number;
  if (kind == FILES_IS_REMIX) {
    n->nr_remixes += view || young;
    return view || young;
  }
  for (uint32_t t = 0; kind == FILES_IS_TABLE && t < f.nr; t++) {
    if (f.tables[t].part || f.tables[t].number != number) continue;
    n->nr_tables++;
    return true;
  }
  return false;
}

// Tells whether the name is that of a value file that a record may refer to, or that takes the next values.
static bool see_value(const struct seen_files *n, const char *name) {
  uint64_t number;
  if (files_kind_of(name, &number) != FILES_IS_VALUE) return false;
  return value_set_find(&n->v->values, number) || value_list_find(&n->super->active->values, number) ||
         (n->super->frozen && value_list_find(&n->super->frozen->values, number)) ||
         value_log_find(&n->x->values, number) || value_log_find(&n->x->compact.values, number) ||
         collect_has(n->x, number);
}

static bool see_name(void *arg, const char *name) {
  struct seen_files *n = arg;
  if (strcmp(name, "CURRENT") == 0 || strcmp(name, "LOCK") == 0) return true;
  if (strncmp(name, "wal-", 4) == 0) {
    n->nr_logs++;
    return true;
  }
  if (strcmp(name, FILES_RESERVE) == 0 || see_value(n, name)) return true;
  uint64_t number;
  const enum files_kind kind = files_kind_of(name, &number);
  const bool pack = kind == FILES_IS_PACK;
  bool seen = false;
  for (const struct version *tree = n->v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts && !(seen && !pack); i++)
      seen |= pack ? see_packed(n, tree->parts[i], number) : see_part(n, tree->parts[i], kind, number);
  if (seen) return true;
  (void)snprintf(check_what + strlen(check_what), sizeof(check_what) - strlen(check_what), ", file %s", name);
  n->nr_strange++;
  return false;
}

void check_names(struct run *r, bool log_too) {
  if (r->plan.opts.workers) return;  // a worker removes files some time after the round
  const struct super *v = atomic_load(&r->x->super);
  struct seen_files n = {.x = r->x, .super = v, .v = v->version};
  uint32_t tables = 0, remixes = 0;
  for (const struct version *tree = v->version; tree; tree = tree->spaces) {
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      struct part_files f;
      part_files(tree->parts[i], &f);
      remixes += (f.remix.number != 0) + (f.young.number != 0);
      tables += f.nr;
    }
  }
  OK(paths_list(simdisk_env(r->disk), DIR_NAME, see_name, &n));
  CHECK(n.nr_strange == 0);
  CHECK(n.nr_tables == tables && n.nr_remixes == remixes);
  // the replayed segments, the new one, a prepared one and the spares
  struct wal_stats ws;
  wal_stats(r->x->wal, &ws);
  CHECK(n.nr_logs >= 1);
  if (log_too && (ws.segments > 6 || n.nr_logs > ws.segments + 4))
    fail_msg("CRASH_SEED=%llu, %s: %u log files, %llu segments", (unsigned long long)check_seed, check_what, n.nr_logs,
             (unsigned long long)ws.segments);
}

// ---- steps

// The write is the newest of its key in the active memtable (for a delete: the newest is a delete).
static bool in_memtable(struct run *r, const struct op *op) {
  uint8_t kbuf[32], in_space[NAMES_ID + 32];
  struct kref k = life_key(op->key, kbuf);
  const struct xdb_ref *const ref = life_ref(r, op->key);
  if (ref->space) {
    names_id_put(in_space, ref->space->id);
    if (k.len) memcpy(in_space + NAMES_ID, k.ptr, k.len);
    k = kref(in_space, NAMES_ID + k.len);
  }
  epoch_enter(&r->x->epoch, &r->ref->slot);  // a worker may replace the view
  const struct super *v = atomic_load(&r->x->super);
  const struct wh_ver *ver = wh_get(memtable_tree(v->active, ref->tree), k, hash64(k.ptr, k.len),
                                    atomic_load(&r->x->published));
  bool in = ver && wh_ver_tomb(ver) == op->del;
  struct kv_rec rec = {0};
  if (ver) wh_ver_value(ver, &rec);
  // No call reads a file any more. No two writes of a key have long values of the same length, as good as ever.
  if (in && ver->kind & KV_APART) in = value_ref_len(rec.val) == op->vlen;
  else if (in && !op->del) in = ver->vlen >= 8 && load64le(rec.val) == op->id;
  epoch_exit(&r->ref->slot);
  return in;
}

// All operations of a failed write are in the memtable. Either all are, or none.
static bool all_in_memtable(struct run *r, const struct op *ops, uint32_t nr) {
  uint32_t puts = 0, puts_in = 0, dels_in = 0;
  for (uint32_t i = 0; i < nr; i++) {
    const bool in = in_memtable(r, &ops[i]);
    puts += !ops[i].del;
    puts_in += in && !ops[i].del;
    dels_in += in && ops[i].del;  // perhaps by an older one
  }
  CHECK(puts_in == 0 || (puts_in == puts && puts_in + dels_in == nr));
  return nr && puts_in + dels_in == nr;
}

void life_begins(struct run *r, struct op *ops, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) {
    ops[i].more = i + 1 < nr;
    model_add(&r->model, &ops[i]);
  }
}

bool life_written(struct run *r, const struct op *ops, uint32_t nr, enum remixdb_status s) {
  struct model *m = &r->model;
  const bool each = r->plan.opts.sync == REMIXDB_SYNC_EACH;
  // where only the sync failed, the write took place all the same
  const bool there = s == REMIXDB_OK || (each && all_in_memtable(r, ops, nr));
  if (!there) m->nr -= nr;
  for (uint32_t i = 0; i < nr && there; i++) m->now[ops[i].key] = ops[i].del ? 0 : ops[i].id;
  if (s == REMIXDB_OK && each && nr) m->synced = m->nr;  // an empty write is not synced
  if (s != REMIXDB_OK) check_failure(r, s);
  return s == REMIXDB_OK;
}

struct op life_op(struct run *r, uint32_t key, bool del) {
  uint32_t vlen = VALUE_MIN + (uint32_t)below(&r->rng, r->plan.vlen_max - VALUE_MIN);
  if (r->plan.apart && chance(&r->rng, r->plan.apart)) vlen = VALUES_DIRECT + (uint32_t)below(&r->rng, 8000);
  struct op op = {.id = r->model.next_id++, .key = key, .del = del};
  if (below(&r->iter_rng, 1000) < r->plan.large)
    vlen = VALUE_LARGE + (uint32_t)below(&r->iter_rng, r->plan.large_max - VALUE_LARGE);
  if (!del) op.vlen = vlen;
  if (!del && op.id % 5 != 1 && chance(&r->iter_rng, 10))  // a put by version clears it
    op.expires = atomic_load(&r->wall) + 1 + below(&r->iter_rng, 2000);
  return op;
}

#define FAR_MS 64060588800000u  // a time in the year 4000

// The record of an operation; the key's bytes are in kbuf. Some records expire: soon, or in the far future.
static void op_record(const struct op *op, const uint8_t *value, uint8_t kbuf[32], struct kv_rec *rec) {
  kv_rec_set(rec, life_key(op->key, kbuf), op->del ? NULL : value, op->vlen, op->del);
  if (op->del || (!op->expires && op->id % 7)) return;
  rec->kind = KV_EXPIRES;
  rec->expiry = op->expires ? op->expires : FAR_MS + op->id;
}

// Writes one record: plain, with an expiry, or by its version. The operation's number decides.
static enum remixdb_status put_one(struct run *r, const struct op *op) {
  uint8_t kbuf[32];
  struct kv_rec own = {0}, *const rec = &own;
  struct xdb_ref *const ref = life_ref(r, op->key);
  op_record(op, r->value, kbuf, rec);
  if (op->id % 5 != 1) return xdb_put(ref, rec);
  struct kv_rec is;
  const enum remixdb_status s = xdb_getv(ref, life_key(op->key, kbuf), NULL, 0, NULL, &is);
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return xdb_put(ref, rec);  // a failure was due; its message is lost
  return xdb_put_if(ref, rec, s == REMIXDB_OK ? is.seq : 0);
}

static bool put_op(struct run *r, struct op op) {
  const bool del = op.del;
  if (!del) life_value(&op, r->value);
  life_begins(r, &op, 1);
  const bool ok = life_written(r, &op, 1, put_one(r, &op));
  counts.large += ok && op.vlen >= VALUE_LARGE;
  return ok;
}

bool life_put(struct run *r, uint32_t key, bool del) { return put_op(r, life_op(r, key, del)); }

bool life_put_large(struct run *r, uint32_t key) {
  struct op op = life_op(r, key, false);
  op.vlen = VALUE_LARGE + (uint32_t)below(&r->iter_rng, r->plan.large_max - VALUE_LARGE);
  return put_op(r, op);
}

uint32_t life_pick_key(struct run *r) {
  const uint32_t nr = r->plan.nr_keys;
  const struct model *m = &r->model;
  if (m->nr && chance(&r->rng, 15)) return m->ops[m->nr - 1 - below(&r->rng, m->nr < 4 ? m->nr : 4)].key;
  if (chance(&r->rng, r->plan.focus)) return (uint32_t)below(&r->rng, 1 + nr / 16);
  if (chance(&r->rng, 30)) return r->front = (r->front + 1) % nr;
  return (uint32_t)below(&r->rng, nr);
}

#define BATCH_MAX 40u

// Reads a key of the store, and a few keys from there on, as the transaction sees them.
static enum remixdb_status txn_read(struct run *r, struct xdb_ref *ref, uint32_t key) {
  uint8_t kbuf[32];
  uint32_t vlen = 0;
  struct xdb_iter *it = NULL;
  enum remixdb_status s = xdb_get(ref, life_key(key, kbuf), r->got, VALUE_MAX, &vlen);
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return s;
  CHECK((s == REMIXDB_OK ? check_value(r, key, r->got, vlen) : 0) == r->model.now[key]);
  if (chance(&r->iter_rng, 50)) return REMIXDB_OK;
  s = xdb_iter_create(ref, &it);
  if (s == REMIXDB_OK) s = xdb_iter_seek(it, life_key(key, kbuf));
  for (uint32_t n = 0; n < 5 && s == REMIXDB_OK && xdb_iter_valid(it); n++) s = xdb_iter_skip(it, 1);
  xdb_iter_destroy(it);
  return s;
}

// Writes the operations as a transaction that has read some keys. No other thread writes, so there is no conflict.
static enum remixdb_status write_txn(struct run *r, const struct op *ops, uint32_t nr) {
  struct xdb_txn *t = NULL;
  uint8_t kbuf[32];
  enum remixdb_status s = xdb_txn_begin(r->x, &t);
  if (s != REMIXDB_OK) return s;
  for (uint64_t n = below(&r->iter_rng, 4); n && s == REMIXDB_OK; n--)
    s = txn_read(r, t->tracked, (uint32_t)below(&r->iter_rng, r->plan.nr_keys));
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    if (!ops[i].del) life_value(&ops[i], r->value);
    struct kv_rec rec = {0};
    op_record(&ops[i], r->value, kbuf, &rec);
    s = xdb_put(t->tracked, &rec);
  }
  if (s == REMIXDB_OK) s = xdb_txn_commit(t);
  else xdb_txn_abort(t);
  CHECK(s != REMIXDB_ABORTED);
  return s;
}

// Ends a write that deletes a range, perhaps by an edit of the version. The version's `erased` was this.
static bool range_written(struct run *r, const struct op *ops, uint32_t nr, enum remixdb_status s, uint64_t erased) {
  // an edit took place, but CURRENT could not be written, or the sync failed
  if (s == REMIXDB_OK || xdb_super(r->x)->version->erased == erased) return life_written(r, ops, nr, s);
  check_failure(r, s);
  for (uint32_t i = 0; i < nr; i++) r->model.now[ops[i].key] = ops[i].del ? 0 : ops[i].id;
  return false;
}

// The deletes of the keys [first, end) that are in the space of `first`.
static uint32_t range_ops(struct run *r, uint32_t first, uint32_t end, struct op *ops) {
  uint32_t nr = 0;
  for (uint32_t k = first; k < end; k += r->plan.spaces + 1)
    if (r->model.now[k]) ops[nr++] = (struct op){.id = r->model.next_id++, .key = k, .del = true};
  return nr;
}

// Begins a batch with the deletion of a range.
static enum remixdb_status batch_range(struct run *r, struct xdb_batch *b, struct op *ops, uint32_t *nr_out) {
  uint8_t from[32], to[32];
  const uint32_t nr = r->plan.nr_keys, first = (uint32_t)below(&r->iter_rng, nr);
  const uint32_t end = first + 1 + (uint32_t)below(&r->iter_rng, 1 + nr / 8);
  if (r->plan.spaces) batch_space(b, r->spaces[first % (r->plan.spaces + 1)]);
  const enum remixdb_status s = batch_add_range(b, life_key(first, from), end < nr ? life_key(end, to) : kref(NULL, 0));
  if (s == REMIXDB_OK) *nr_out = range_ops(r, first, end < nr ? end : nr, ops);
  return s;
}

bool write_batch(struct run *r) {
  struct op ops[BATCH_MAX + KEYS_MAX];
  uint32_t nr = 0;
  uint8_t kbuf[32];
  struct xdb_batch *b;
  enum remixdb_status s = batch_create(&b);
  if (s != REMIXDB_OK) return life_written(r, NULL, 0, s);
  const bool range = chance(&r->iter_rng, 10);
  const uint64_t erased = xdb_super(r->x)->version->erased;
  if (range) s = batch_range(r, b, ops, &nr);
  size_t room = r->plan.memtable_limit / 2;
  for (uint32_t left = 1 + (uint32_t)below(&r->rng, BATCH_MAX); left && s == REMIXDB_OK; left--) {
    const struct op op = life_op(r, life_pick_key(r), chance(&r->rng, 20));
    if (op.vlen < VALUE_LARGE && op.vlen + 200 > room) break;
    if (op.vlen < VALUE_LARGE) room -= op.vlen + 200;
    if (!op.del) life_value(&op, r->value);
    if (r->plan.spaces) batch_space(b, r->spaces[op.key % (r->plan.spaces + 1)]);
    struct kv_rec rec = {0};
    op_record(&op, r->value, kbuf, &rec);
    s = batch_add(b, &rec);
    if (s != REMIXDB_OK) break;
    uint32_t i = 0;  // the last operation on a key counts
    while (i < nr && ops[i].key != op.key) i++;
    ops[i] = op;
    nr += i == nr;
  }
  for (uint32_t i = 1; i < nr; i++) {  // sorts by id, as the model finds writes by it
    const struct op op = ops[i];
    uint32_t at = i;
    for (; at > 0 && ops[at - 1].id > op.id; at--) ops[at] = ops[at - 1];
    ops[at] = op;
  }
  life_begins(r, ops, nr);
  const bool txn = !range && !r->plan.spaces && chance(&r->iter_rng, 50);
  if (s == REMIXDB_OK) s = txn ? write_txn(r, ops, nr) : xdb_write(r->ref, b);
  batch_destroy(b);
  counts.batch_ranges += range && s == REMIXDB_OK;
  return range_written(r, ops, nr, s, erased);
}

bool life_del_range(struct run *r, uint32_t first, uint32_t end) {
  struct op ops[KEYS_MAX];
  uint8_t from[32], to[32];
  const uint32_t nr = range_ops(r, first, end, ops);
  const uint64_t erased = xdb_super(r->x)->version->erased;
  life_begins(r, ops, nr);
  const enum remixdb_status s = xdb_del_range(life_ref(r, first), life_key(first, from),
                                              end < r->plan.nr_keys ? life_key(end, to) : kref(NULL, 0));
  return range_written(r, ops, nr, s, erased);
}

struct merging {
  struct run *r;
  struct op op;
};

// The function of a merge gets the model's value.
static enum remixdb_merge_op merge_fn(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  struct merging *m = priv;
  struct run *r = m->r;
  CHECK((v0 ? check_value(r, m->op.key, v0, v0len) : 0) == r->model.now[m->op.key]);
  if (m->op.del) return REMIXDB_MERGE_DEL;
  life_value(&m->op, r->value);
  *v1 = r->value;
  *v1len = m->op.vlen;
  return REMIXDB_MERGE_PUT;
}

bool merge_key(struct run *r, uint32_t key) {
  struct merging m = {.r = r, .op = life_op(r, key, chance(&r->rng, 20))};
  const struct op *const was = life_find(&r->model, r->model.now[key]);
  m.op.expires = was && !m.op.del ? was->expires : 0;       // a merge keeps it
  const bool nothing = m.op.del && r->model.now[key] == 0;  // a delete of an absent key writes nothing
  uint8_t kbuf[32];
  life_begins(r, &m.op, !nothing);
  return life_written(r, &m.op, !nothing, xdb_merge(life_ref(r, key), life_key(key, kbuf), merge_fn, &m));
}

bool do_sync(struct run *r) {
  const size_t nr = life_accepted(&r->model);
  const enum remixdb_status s = xdb_sync(r->ref);
  if (s != REMIXDB_OK) check_failure(r, s);
  else r->model.synced = nr;
  return s == REMIXDB_OK;
}

bool do_flush(struct run *r) {
  const size_t nr = life_accepted(&r->model);
  const enum remixdb_status s = xdb_flush_told(r->x, &r->ref->progress);
  if (s != REMIXDB_OK) check_failure(r, s);
  else r->model.synced = nr;
  return s == REMIXDB_OK;
}

bool do_reopen(struct run *r) {
  const size_t nr = life_accepted(&r->model);
  enum remixdb_status s = run_close(r);
  if (s != REMIXDB_OK) {
    check_failure(r, s);
    return false;
  }
  r->model.synced = nr;
  if ((s = run_open(r)) != REMIXDB_OK) {
    check_failure(r, s);
    return false;
  }
  return true;
}

// A round with so little new data that some of it is not worth a table.
static bool do_small_round(struct run *r) {
  bool ok = true;
  for (uint32_t nr = 1 + (uint32_t)below(&r->rng, 3); nr; nr--)
    ok &= life_put(r, life_pick_key(r), chance(&r->rng, 30));
  return do_flush(r) && ok;
}

// As scans of all keys do that read values in disorder. Inside an epoch.
static void wear_values(struct remix *x) {
  for (uint32_t seg = 0; seg < x->nr_segs; seg++) remix_add_value_debt(x, 0, seg, UINT32_MAX);
  for (uint32_t page = 0; remix_is_paged(x) && page < remix_pages(x); page++) {
    struct remix *in;
    if (remix_page(x, page, &in) != REMIXDB_OK) continue;
    for (uint32_t seg = 0; seg < in->nr_segs; seg++) remix_add_value_debt(in, page, seg, UINT32_MAX);
  }
}

void do_wear(struct run *r, uint32_t most) {
  uint32_t nr = 0;
  epoch_enter(&r->x->epoch, &r->ref->slot);
  const struct version *v = atomic_load(&r->x->super)->version;
  for (; v; v = v->spaces) {
    for (uint32_t i = 0; i < v->nr_parts && nr < most; i++) {
      struct remix *const x = v->parts[i]->remix;
      if (!x) continue;
      if (r->wears++ % 2) {
        wear_values(x);
        nr += compact_value_debt_paid(&r->x->compact, x);
      } else {
        remix_add_debt(x, UINT32_MAX);
        nr += compact_scan_debt_paid(x);
      }
    }
  }
  epoch_exit(&r->ref->slot);
  if (nr == 0 || r->plan.opts.workers) return;  // a worker has been told
  atomic_store(&r->x->scan_merges.due, true);
  workers_kick(r->x->workers);
}

void do_garbage(struct run *r) {
  // Idle work might look at the same moment, with workers.
  if (r->plan.opts.workers == 0) r->x->garbage_merges.written = atomic_load(&r->x->published);
  atomic_store(&r->x->garbage_merges.due, true);
  workers_kick(r->x->workers);
}

bool step(struct run *r) {
  const struct plan *p = &r->plan;
  if (below(&r->wear_rng, 1000) < p->wear) do_wear(r, 2);
  if (below(&r->wear_rng, 1000) < p->garbage) do_garbage(r);
  uint32_t dice = (uint32_t)below(&r->rng, 1000);
  if (dice < p->flush) return do_flush(r) && (chance(&r->rng, 50) || do_small_round(r));
  dice -= p->flush;
  if (dice < p->sync) return do_sync(r);
  dice -= p->sync;
  if (dice < p->reopen) return do_reopen(r);
  dice -= p->reopen;
  if (dice < p->del) return life_put(r, life_pick_key(r), true);
  if (chance(&r->rng, 5)) {
    bool ok;
    const uint32_t key = life_pick_key(r);
    const uint64_t id = look_up(r, key, &ok);
    if (ok) CHECK(id == r->model.now[key]);
    return ok;
  }
  bool ok;
  if (life_call(r, &ok)) return ok;
  if (below(&r->iter_rng, 1000) < 8) {
    const uint32_t first = life_pick_key(r);
    const uint32_t end = first + 1 + (uint32_t)below(&r->iter_rng, 1 + r->plan.nr_keys / 6);
    return life_del_range(r, first, end < r->plan.nr_keys ? end : r->plan.nr_keys);
  }
  if (chance(&r->rng, 3)) return write_batch(r);
  if (chance(&r->rng, 10)) return merge_key(r, life_pick_key(r));
  return life_put(r, life_pick_key(r), false);
}

bool steps(struct run *r, uint64_t nr) {
  for (; nr; nr--)
    if (!step(r)) return false;
  return true;
}

uint64_t enough(struct run *r, uint64_t rounds) {
  const uint64_t bytes = r->plan.apart ? 10 * rounds : rounds * r->plan.memtable_limit / (80 + r->plan.vlen_max / 2);
  return 20 + below(&r->rng, bytes + 1);
}

// ---- power cuts

// Opens the disk after a cut for reading only. True: there is a store, and ids has its content.
static bool look_only(struct run *r, uint64_t *ids) {
  const uint64_t changes = simdisk_changes(r->disk);
  r->plan.opts.read_only = true;
  const enum remixdb_status s = run_open(r);
  r->plan.opts.read_only = false;
  if (s == REMIXDB_OK) {
    CHECK(read_all(r, ids));
    OK(run_close(r));
  } else {
    CHECK(s == REMIXDB_NOTFOUND && r->model.synced == 0);  // the cut came before there was one
  }
  CHECK(simdisk_changes(r->disk) == changes);
  return s == REMIXDB_OK;
}

void recover(struct run *r, uint32_t again) {
  counts.recoveries++;
  for (; again && chance(&r->rng, 60); again--) {
    simdisk_power_off(r->disk, below(&r->rng, 1ull << below(&r->rng, 7)));
    const enum remixdb_status s = run_open(r);
    CHECK(s != REMIXDB_CORRUPT && s != REMIXDB_VERSION && s != REMIXDB_NOTFOUND);
    if (s == REMIXDB_OK) {
      if (!simdisk_is_off(r->disk)) {
        // it opened before the power went, and its content stays. The power may go during the check, in the work of a
        // worker after a round
        if (check_prefix(r)) (void)steps(r, below(&r->rng, 30));
        else CHECK(r->plan.opts.workers && simdisk_is_off(r->disk));
      }
      (void)run_close(r);
    } else {
      CHECK(simdisk_is_off(r->disk));
      counts.torn_openings++;
    }
    counts.cuts++;
    if (chance(&r->rng, 30)) simdisk_power_on(r->disk);
    else run_disk(r, simdisk_crash(r->disk, rng_next(&r->rng)));
  }
  uint64_t ids[KEYS_MAX];
  const bool looked = chance(&r->rng, 20) && look_only(r, ids);
  OK(run_open(r));
  check_names(r, true);
  CHECK(check_prefix(r));
  if (looked) CHECK(memcmp(ids, r->model.now, sizeof(ids)) == 0);
}

struct run *fork_run(const struct run *r, uint64_t outcome) {
  struct run *f = malloc(sizeof(*f));
  assert_non_null(f);
  *f = *r;
  run_buffers(f);
  f->model.ops = malloc((r->model.nr + 1) * sizeof(struct op));
  assert_non_null(f->model.ops);
  if (r->model.nr) memcpy(f->model.ops, r->model.ops, r->model.nr * sizeof(struct op));
  f->model.cap = r->model.nr + 1;
  f->x = NULL;
  f->ref = NULL;
  memset(f->refs, 0, sizeof(f->refs));
  memset(f->spaces, 0, sizeof(f->spaces));
  f->disk = NULL;
  f->rng = outcome;
  run_disk(f, simdisk_crash(r->disk, outcome));
  return f;
}

void drop_fork(struct run *f) {
  (void)run_close(f);
  simdisk_destroy(f->disk);
  run_free(f);
}

void after_cut(struct run *r) {
  if (!r->x) return;
  if (chance(&r->rng, 20)) check_content(r, true);
  (void)run_close(r);
}

bool small_life(struct run *r, uint32_t nr) {
  enum remixdb_status s = run_open(r);
  if (s != REMIXDB_OK) {
    check_failure(r, s);
    return false;
  }
  return steps(r, nr) && do_flush(r) && steps(r, nr / 4) && do_reopen(r) && steps(r, nr / 4);
}

bool sparse_life(struct run *r) {
  const uint32_t nr = r->plan.nr_keys / 3;
  bool ok = run_open(r) == REMIXDB_OK;
  for (uint32_t k = 0; k < nr && ok; k++) ok = life_put(r, k, false);
  if (r->x) r->x->compact.build.max_pages = 1;
  ok = ok && life_compact_range(r, 0, nr) && do_reopen(r);
  for (uint32_t k = 0; k < nr && ok; k++) ok = k % 5 == 0 || life_put(r, k, true);
  if (!ok || !do_flush(r)) return false;
  do_garbage(r);
  return steps(r, 5) && do_flush(r);
}

uint64_t first_seed(void) {
  const char *const given = getenv("CRASH_SEED");
  return given && *given ? strtoull(given, NULL, 0) : 1;
}

uint64_t nr_seeds(uint64_t standard) {
  const char *const many = getenv("CRASH_SEEDS"), *const given = getenv("CRASH_SEED");
  if (many && *many) return strtoull(many, NULL, 0);
  return given && *given ? 1 : standard / SLOW ? standard / SLOW : 1;
}

void life_start(int argc, char **argv) {
  check_seed_name = "CRASH_SEED";
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  hang_says();
  often();
}
