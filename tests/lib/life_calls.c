// SPDX-License-Identifier: Apache-2.0
//
// Steps of lives: ingest, counts, compaction of ranges, iterators with options, time that goes by.
#include "tests/lib/life.h"

#include "store/flush.h"
#include "store/ingest.h"
#include "store/whole.h"
#include "tests/lib/expect.h"

// ---- ingest

// Gives the records of the operations to the ingest.
static enum remixdb_status ingest_all(struct run *r, struct xdb_ingest *g, const struct op *ops, uint32_t nr) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    uint8_t kbuf[32];
    life_value(&ops[i], r->value);
    s = ingest_put(g, life_key(ops[i].key, kbuf), r->value, ops[i].vlen);
  }
  return s;
}

bool life_ingest(struct run *r, uint32_t first, uint32_t nr) {
  struct op ops[KEYS_MAX];
  struct xdb_ingest *g;
  uint32_t n = 0;
  enum remixdb_status s = ingest_begin(life_ref(r, first), &g);
  if (s != REMIXDB_OK) return life_written(r, NULL, 0, s);
  const uint32_t stride = (r->plan.spaces + 1) * (1 + (uint32_t)below(&r->iter_rng, 4));
  for (uint32_t k = first; k < r->plan.nr_keys && n < nr; k += stride) {
    ops[n] = life_op(r, k, false);
    ops[n].expires = 0;
    n++;
  }
  s = ingest_all(r, g, ops, n);
  if (s != REMIXDB_OK || chance(&r->iter_rng, 5)) {
    ingest_abort(g);
    return life_written(r, NULL, 0, s);
  }
  life_begins(r, ops, n);
  s = ingest_commit(g);
  if (s != REMIXDB_OK) {
    check_failure(r, s);
    // if the store has stopped, the next opening decides, and until then the records are not there
    if (xdb_failure(r->x) == REMIXDB_OK) r->model.nr -= n;
    else r->model.maybe = n;
    return false;
  }
  for (uint32_t i = 0; i < n; i++) r->model.now[ops[i].key] = ops[i].id;
  r->model.synced = r->model.nr;
  counts.ingests += n != 0;
  return true;
}

static struct remixdb_slice slice(struct kref k) { return (struct remixdb_slice){k.ptr, k.len}; }

// ---- counts, and the compaction of ranges

bool life_count(struct run *r, uint32_t first, uint32_t end) {
  uint8_t from[32], to[32];
  uint64_t keys = 0, bytes = 0, want = 0, want_bytes = 0, gone = 0;  // gone: expired, and may still be counted
  struct xdb_ref *const ref = life_ref(r, first);
  const struct remixdb_range range = {slice(life_key(first, from)),
                                      slice(end < r->plan.nr_keys ? life_key(end, to) : kref(NULL, 0))};
  if (!remixdb_count(ref, &range, &keys, &bytes)) {
    check_failure(r, remixdb_errcode());
    return false;
  }
  for (uint32_t k = first; k < end; k += r->plan.spaces + 1) {
    uint8_t kbuf[32];
    const struct op *const op = life_find(&r->model, r->model.now[k]);
    want += op != NULL;
    if (op) want_bytes += life_key(k, kbuf).len + op->vlen;
  }
  for (size_t i = 0; i < r->model.nr; i++)
    gone += r->model.ops[i].expires && r->model.ops[i].expires <= atomic_load(&r->wall);
  const uint64_t off = keys > want ? keys - want : want - keys;
  if (off > 4 + gone + (end - first) / 20)
    fail_msg("CRASH_SEED=%llu, %s: %llu keys counted, %llu there", (unsigned long long)check_seed, check_what,
             (unsigned long long)keys, (unsigned long long)want);
  CHECK((keys != 0 || bytes == 0) && (want_bytes != 0 || keys <= 4 + gone));
  counts.counted++;
  return true;
}

bool life_compact_range(struct run *r, uint32_t first, uint32_t end) {
  uint8_t from[32], to[32];
  const size_t nr = life_accepted(&r->model);
  const struct kref high = end < r->plan.nr_keys ? life_key(end, to) : kref(NULL, 0);
  const enum remixdb_status s = xdb_compact_range(r->x, TREE_UNNAMED, life_key(first, from), high, &r->ref->progress);
  if (s != REMIXDB_OK) check_failure(r, s);
  else if (first < end) r->model.synced = nr;  // an empty range does nothing
  counts.range_compacts += s == REMIXDB_OK;
  return s == REMIXDB_OK;
}

// ---- iterators with options

struct bounded {
  struct xdb_iter_opts o;
  uint8_t from[32], to[32], prefix[32];
  uint32_t space, low, high;  // the keys of the space in [low, high) are within the bounds
  uint64_t ids[KEYS_MAX];     // the content that it shows
};

// Whether key k is in the space, within the bounds, and there.
static bool shows(const struct run *r, const struct bounded *b, uint32_t k) {
  uint8_t kbuf[32];
  const struct kref key = life_key(k, kbuf);
  const struct remixdb_slice p = b->o.prefix;
  return k % (r->plan.spaces + 1) == b->space && k >= b->low && k < b->high && b->ids[k] &&
         (!p.ptr || (key.len >= p.len && memcmp(key.ptr, p.ptr, p.len) == 0));
}

static void choose(struct run *r, struct bounded *b) {
  uint64_t *const rng = &r->iter_rng;
  const uint32_t nr = r->plan.nr_keys;
  *b = (struct bounded){.space = (uint32_t)below(rng, r->plan.spaces + 1), .high = nr};
  b->o.expect = expect_length(rng_next(rng));
  b->o.keys_only = chance(rng, 30);
  b->o.hold = chance(rng, 30);
  if (chance(rng, 60)) b->o.bounds.from = slice(life_key(b->low = (uint32_t)below(rng, nr), b->from));
  if (chance(rng, 60)) b->o.bounds.to = slice(life_key(b->high = (uint32_t)below(rng, nr), b->to));
  if (!chance(rng, 30)) return;
  const struct kref k = life_key(1 + (uint32_t)below(rng, nr - 1), b->prefix);
  b->o.prefix = slice(kref(k.ptr, 1 + (uint32_t)below(rng, k.len < 5 ? k.len : 5)));
}

// Reads the records forward or backward.
static enum remixdb_status read_shown(struct run *r, const struct bounded *b, struct xdb_iter *it, bool back) {
  const int64_t nr = r->plan.nr_keys, step = back ? -1 : 1;
  int64_t k = back ? nr - 1 : 0;
  enum remixdb_status s = back ? xdb_iter_seek_last(it) : xdb_iter_seek(it, kref("", 0));
  for (; s == REMIXDB_OK && xdb_iter_valid(it); k += step) {
    struct kv_rec rec;
    uint8_t kbuf[32];
    while (k >= 0 && k < nr && !shows(r, b, (uint32_t)k)) k += step;
    if ((s = xdb_iter_record(it, &rec)) != REMIXDB_OK) break;
    CHECK(k >= 0 && k < nr && kv_eq(life_key((uint32_t)k, kbuf), kref(rec.key, rec.klen)));
    if (b->o.keys_only) CHECK(rec.vlen == 0);
    else CHECK(check_value(r, (uint32_t)k, rec.val, rec.vlen) == b->ids[k]);
    s = back ? xdb_iter_prev(it) : xdb_iter_skip(it, 1);
  }
  for (; s == REMIXDB_OK && k >= 0 && k < nr; k += step) CHECK(!shows(r, b, (uint32_t)k));
  return s;
}

bool life_read_bounded(struct run *r) {
  struct bounded b;
  struct xdb_iter *it;
  choose(r, &b);
  memcpy(b.ids, r->model.now, sizeof(b.ids));
  enum remixdb_status s = xdb_iter_create_opts(r->refs[b.space], &b.o, &it);
  if (s == REMIXDB_OK) {
    // an iterator of one moment does not see this write
    bool ok = true;
    if (b.o.hold) ok = life_put(r, life_pick_key(r), chance(&r->iter_rng, 50));
    s = read_shown(r, &b, it, chance(&r->iter_rng, 50));
    xdb_iter_destroy(it);
    counts.bounded += s == REMIXDB_OK;
    if (s == REMIXDB_OK) return ok;
  }
  check_failure(r, s);
  return false;
}

// ---- time

void life_clock(struct run *r) {
  struct model *const m = &r->model;
  const uint64_t wall = atomic_load(&r->wall) + 1 + below(&r->iter_rng, 600);
  atomic_store(&r->wall, wall);
  atomic_fetch_add(&r->steady, below(&r->iter_rng, chance(&r->iter_rng, 40) ? 2 * REMIXDB_EXPIRY_SETTLES_MS : 100));
  for (uint32_t k = 0; k < r->plan.nr_keys; k++) {
    const struct op *const op = life_find(m, m->now[k]);
    if (!op || !op->expires || op->expires > wall) continue;
    m->now[k] = 0;
    counts.expired++;
  }
}

bool life_call(struct run *r, bool *ok_out) {
  const uint64_t dice = below(&r->iter_rng, 1000);
  const uint32_t nr = r->plan.nr_keys, first = (uint32_t)below(&r->iter_rng, nr);
  const uint32_t end = first + (uint32_t)below(&r->iter_rng, nr - first + 1);
  *ok_out = true;
  if (dice < 4) *ok_out = life_ingest(r, first, 1 + (uint32_t)below(&r->iter_rng, 60));
  else if (dice < 7) *ok_out = life_compact_range(r, first, end);
  else if (dice < 15) *ok_out = life_count(r, first, end);
  else if (dice < 25) *ok_out = life_read_bounded(r);
  else if (dice < 32) life_clock(r);
  return dice < 32;
}
