// SPDX-License-Identifier: Apache-2.0
//
// Seeks and scans through a REMIX, beside a merging iterator over the same tables of one partition.
//
//   bench_runs [runs[,runs...]] [records] [rounds] [anchors] [heap] [old]
//
//     runs      numbers of tables: 1,2,4,8,16
//     records   1000000. Keys are 16 hexadecimal digits of random numbers, values 120 bytes; each record goes to a
//               table drawn at random
//     rounds    21
//     anchors   searches the merging iterator's indices as a REMIX searches its anchors (see below)
//     heap      merges by a binary heap instead of a tree of losers
//     old       one key in eight has old versions in other tables, and one in twenty is deleted; all ways pass them
//
// All blocks are in the cache. A seek is of a random key that is there, and ends with its record. A scan is a seek and
// 50 steps, and copies 50 keys and values. A round makes as many through the one as through the other, and the first
// one changes from round to round. Times are the thread's processor time: only memory makes it wait, and other users of
// a shared machine do not count. A check compares both with the written records first. That fills the cache, too.
//
// The merging iterator is the one that LevelDB and RocksDB seek with, at its best:
//   - Each table has an index in memory with the last key of each block, so a seek looks into one block only. With
//     shorter separators, as theirs are, some seeks go on to the next block. The index is searched by halves and
//     compares keys 8 bytes at a time. With `anchors` it is a static B+-tree without branches (base/anchors.h), which
//     they do not have.
//   - A block is searched by halves over the offsets of all records. Theirs have one offset in 16 records, and put the
//     keys between two offsets together one by one.
//   - Blocks come from the same cache as those of the REMIX. A hit writes nothing, and pins are alike. A table that
//     stays in its block keeps its pin.
//   - A tree of losers merges the tables: a step compares log2(runs) keys in full. A binary heap (RocksDB; here `heap`)
//     compares up to twice as many, a search among all tables (LevelDB) runs - 1. Versions of a key meet in the tree,
//     and the newer one marks the older ones. Theirs compare each key with a copy of the one before.
//   - It has no sequence numbers to compare, no levels, no memtables, no virtual calls.
//
// It has no Bloom filters, because they tell nothing about a key's neighbours and leave no table out of a seek. It does
// not prefetch the memory of several tables at once, as neither of the two does. Tables of a level that do not overlap
// would need one iterator for all. Here all overlap, as runs of a partition, or of tiered compaction, do.
#include <inttypes.h>
#include <time.h>

#include "table/format.h"
#include "tests/lib/place.h"

#define KLEN 16u
#define VLEN 120u
#define STEPS 50u
#define SEEKS 20000u  // in a round
#define SCANS 2000u
#define CHECKS 20000u
#define ROUNDS_MAX 1000u

static void __attribute__((format(printf, 1, 2), noreturn)) die(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  (void)vfprintf(stderr, fmt, ap);
  va_end(ap);
  (void)fputc('\n', stderr);
  exit(1);
}

static void *need(void *p) {
  if (!p) die("no memory");
  return p;
}

static void must(enum remixdb_status s) {
  if (unlikely(s != REMIXDB_OK)) die("status %d: %s", s, err_msg());
}

// ---- the records

struct model {
  uint32_t nr;
  uint8_t (*keys)[KLEN];  // ascending
  uint32_t *in;           // per key: bit r: table r has it
  bool *dead;             // in its newest version
  uint32_t *live;         // numbers of those that are not
  uint32_t nr_live;
  uint64_t nr_entries;  // all versions
};

static int by_key(const void *a, const void *b) { return memcmp(a, b, KLEN); }
static struct kref model_key(const struct model *m, uint32_t i) { return kref(m->keys[i], KLEN); }
static uint32_t newest(uint32_t in) { return 31 - (uint32_t)__builtin_clz(in); }

static void model_init(struct model *m, uint32_t records, uint32_t runs, bool old) {
  uint64_t rng = 1;
  *m = (struct model){.nr = records};
  m->keys = need(malloc((size_t)records * KLEN + 1));
  m->in = need(calloc(records, sizeof(*m->in)));
  m->dead = need(calloc(records, sizeof(*m->dead)));
  m->live = need(calloc(records, sizeof(*m->live)));
  for (uint32_t i = 0; i < records; i++) {
    char text[KLEN + 1];
    (void)snprintf(text, sizeof(text), "%016" PRIx64, rng_next(&rng));
    memcpy(m->keys[i], text, KLEN);
  }
  qsort(m->keys, records, KLEN, by_key);
  for (uint32_t i = 0; i < records; i++) {
    if (i && memcmp(m->keys[i - 1], m->keys[i], KLEN) == 0)
      die("two keys are the same: another number of records, please");
    m->in[i] = 1u << rng_next(&rng) % runs;
    if (old && rng_next(&rng) % 8 == 0) m->in[i] |= (uint32_t)rng_next(&rng) & ((1u << runs) - 1);
    m->nr_entries += (uint32_t)__builtin_popcount(m->in[i]);
    m->dead[i] = old && rng_next(&rng) % 20 == 0;
    if (!m->dead[i]) m->live[m->nr_live++] = i;
  }
}

static void model_fini(struct model *m) {
  free(m->keys);
  free(m->in);
  free(m->dead);
  free(m->live);
}

static void value_fill(uint32_t key, uint32_t run, uint8_t *buf) {
  uint64_t rng = (uint64_t)run << 32 | key;
  for (uint32_t o = 0; o < VLEN; o += 8) store64le(buf + o, rng_next(&rng));
}

// The index into live of the first live key that is not less.
static uint32_t model_find(const struct model *m, struct kref key) {
  uint32_t lo = 0, hi = m->nr_live;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (kv_cmp(model_key(m, m->live[mid]), key) < 0) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

// ---- the merging iterator

// Index of a table. A key after the last key of a block is not less than that block's string; the first block has a
// string, too.
struct table_index {
  struct anchors anchors;
  uint8_t *offs, *bytes;
  uint32_t *blocks;  // their numbers
  uint32_t nr;
};

struct table_iter {
  struct kv_rec rec;    // where it stands
  bool end;             // or there
  bool old;             // a newer version of the key has been met
  const uint8_t *data;  // the block held
  uint32_t idx, nr;     // in the block
  uint32_t block;
  struct sst *t;
  struct sst_hold hold;
  struct table_index index;
};

struct merging {
  struct table_iter *tables;  // nr, oldest first
  uint32_t nr;
  // Numbers of tables; [0]: the one that is first. A heap, or a tree in which losers[i] lost between 2i and 2i + 1,
  // where nr + r stands for table r.
  uint32_t losers[REMIX_RUNS_MAX];
  bool by_anchors, heap;
};

struct manner {
  bool by_anchors, heap, old;
};

static void index_make(struct place *p, struct table_index *x, struct sst *t) {
  struct sst_hold h = {0};
  struct kv_rec r;
  size_t len = 0, cap = 0;
  x->offs = need(malloc(4 * ((size_t)t->nr_pages + 2)));
  x->blocks = need(malloc(4 * (size_t)t->nr_pages));
  store32le(x->offs, 0);
  for (uint32_t block = 0; block < t->nr_pages; block += sst_block_pages(t, block)) {
    enter(p);
    must(sst_read(t, sst_pos_make(block, t->nr_recs[block] - 1u), false, &h, &r));
    if (len + r.klen + 1 > cap) x->bytes = need(realloc(x->bytes, cap = 2 * cap + r.klen + 4096));
    store32le(x->offs + 4 * ((size_t)x->nr + 1), (uint32_t)len);
    memcpy(x->bytes + len, r.key, r.klen);
    x->bytes[len + r.klen] = 0;  // the least key after it
    len += r.klen + 1;
    x->blocks[x->nr++] = block;
    leave(p);
  }
  store32le(x->offs + 4 * ((size_t)x->nr + 1), (uint32_t)len);
  sst_hold_fini(&h);
  must(anchors_init(&x->anchors, x->offs, x->bytes, x->nr + 1));
}

// The number of blocks that have smaller keys only.
static inline uint32_t index_find(const struct table_index *x, struct kref key, bool by_anchors) {
  if (by_anchors) return anchors_find(&x->anchors, key);
  uint32_t lo = 1, hi = x->nr + 1;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (kv_cmp(anchors_at(&x->anchors, mid), key) <= 0) lo = mid + 1;
    else hi = mid;
  }
  return lo - 1;
}

static void merging_init(struct merging *m, struct place *p, struct remix *x, struct manner how) {
  *m = (struct merging){.nr = x->nr_runs, .by_anchors = how.by_anchors, .heap = how.heap};
  m->tables = need(calloc(m->nr, sizeof(*m->tables)));
  for (uint32_t r = 0; r < m->nr; r++) {
    m->tables[r].t = x->runs[r];
    m->tables[r].end = true;
    index_make(p, &m->tables[r].index, x->runs[r]);
  }
}

static void merging_fini(struct merging *m) {
  for (uint32_t r = 0; r < m->nr; r++) {
    struct table_index *const x = &m->tables[r].index;
    sst_hold_fini(&m->tables[r].hold);
    anchors_fini(&x->anchors);
    free(x->offs);
    free(x->bytes);
    free(x->blocks);
  }
  free(m->tables);
}

// The block's record idx, through the cache.
static inline void table_block(struct table_iter *i, uint32_t block, uint32_t idx) {
  must(sst_read(i->t, sst_pos_make(block, idx), true, &i->hold, &i->rec));
  i->data = i->hold.cb.data;
  i->block = block;
  i->nr = i->t->nr_recs[block];
}

static inline void table_seek(struct table_iter *i, struct kref key, bool by_anchors) {
  const uint32_t n = index_find(&i->index, key, by_anchors);
  i->old = false;
  i->end = n == i->index.nr;
  if (i->end) return;
  const uint32_t block = i->index.blocks[n];
  uint32_t lo = 0, hi = i->t->nr_recs[block] - 1u;  // the last one is not less
  table_block(i, block, (lo + hi) / 2);
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    struct kv_rec r;
    block_record(i->data, mid, &r);
    if (kv_cmp(kref(r.key, r.klen), key) < 0) lo = mid + 1;
    else hi = mid;
  }
  i->idx = lo;
  block_record(i->data, lo, &i->rec);
}

static inline void table_next(struct table_iter *i) {
  i->old = false;
  if (likely(++i->idx < i->nr)) {
    block_record(i->data, i->idx, &i->rec);
    return;
  }
  const uint32_t block = i->block + sst_block_pages(i->t, i->block);
  i->idx = 0;
  i->end = block == i->t->nr_pages;
  if (!i->end) table_block(i, block, 0);
}

// Returns which of two tables is first.
static inline uint32_t play(struct merging *m, uint32_t a, uint32_t b) {
  struct table_iter *const x = &m->tables[a], *const y = &m->tables[b];
  if (unlikely(x->end)) return b;
  if (unlikely(y->end)) return a;
  const int r = kv_cmp(kref(x->rec.key, x->rec.klen), kref(y->rec.key, y->rec.klen));
  if (likely(r != 0)) return r < 0 ? a : b;
  if (a < b) {
    x->old = true;
    return b;
  }
  y->old = true;
  return a;
}

static inline void heap_sink(struct merging *m, uint32_t at) {
  uint32_t *const heap = m->losers, t = heap[at];
  for (uint32_t c; (c = 2 * at + 1) < m->nr; at = c) {
    if (c + 1 < m->nr && play(m, heap[c], heap[c + 1]) == heap[c + 1]) c++;
    if (play(m, t, heap[c]) == t) break;
    heap[at] = heap[c];
  }
  heap[at] = t;
}

static inline void merging_step(struct merging *m) {
  uint32_t w = m->losers[0];
  table_next(&m->tables[w]);
  if (m->heap) {
    heap_sink(m, 0);
    return;
  }
  for (uint32_t i = (m->nr + w) / 2; i > 0; i /= 2) {
    const uint32_t other = m->losers[i], first = play(m, other, w);
    m->losers[i] = first == w ? other : w;
    w = first;
  }
  m->losers[0] = w;
}

static inline const struct table_iter *merging_at(const struct merging *m) { return &m->tables[m->losers[0]]; }
static inline bool merging_valid(const struct merging *m) { return !merging_at(m)->end; }

// All versions of a key but the newest are marked when that one is first: whoever is above one of them in the tree has
// a key that is neither greater than its own nor less than the winner's, so the same, and came there by a comparison
// that the older one lost to an equal.
static inline void merging_settle(struct merging *m) {
  while (merging_valid(m) && (merging_at(m)->old || merging_at(m)->rec.kind & KV_TOMB)) merging_step(m);
}

static inline void merging_next(struct merging *m) {
  merging_step(m);
  merging_settle(m);
}

static void merging_seek(struct merging *m, struct kref key) {
  uint32_t winners[2 * REMIX_RUNS_MAX];
  for (uint32_t r = 0; r < m->nr; r++) {
    table_seek(&m->tables[r], key, m->by_anchors);
    winners[m->nr + r] = m->losers[r] = r;
  }
  if (m->heap) {
    for (uint32_t i = m->nr / 2; i-- > 0;) heap_sink(m, i);
    merging_settle(m);
    return;
  }
  for (uint32_t i = m->nr - 1; i > 0; i--) {
    const uint32_t a = winners[2 * i], b = winners[2 * i + 1];
    winners[i] = play(m, a, b);
    m->losers[i] = winners[i] == a ? b : a;
  }
  m->losers[0] = winners[1];
  merging_settle(m);
}

// ---- the partition

struct world {
  struct place p;
  struct model m;
  struct remix *x;
  struct remix_cursor c;
  struct merging merging;
};

static void world_init(struct world *w, uint32_t runs, uint32_t records, struct manner how) {
  uint8_t val[VLEN];
  struct sst_build *b;
  uint64_t size;
  model_init(&w->m, records, runs, how.old);
  place_init(&w->p, ((size_t)64 << 20) + (size_t)w->m.nr_entries * (KLEN + VLEN) * 2);
  w->x = NULL;
  must(sst_build_create(&w->p.ctx,
                        &(struct sst_build_opts){.ckeys = true, .max_pages = FORMAT_SST_PAGES_MAX - BLOCK_PAGES_MAX},
                        w->p.queue, &b));
  for (uint32_t r = 0; r < runs; r++) {
    const uint64_t number = w->p.next++;
    struct sst *t;
    sst_build_start(b, number);
    for (uint32_t i = 0; i < records; i++) {
      if (!(w->m.in[i] >> r & 1)) continue;
      const bool tomb = w->m.dead[i] && newest(w->m.in[i]) == r;
      value_fill(i, r, val);
      if (sst_build_full(b)) die("%" PRIu32 " records are too many for %" PRIu32 " tables", records, runs);
      sst_build_add(b, &(struct kv_rec){.key = w->m.keys[i],
                                        .klen = KLEN,
                                        .val = val,
                                        .vlen = tomb ? 0 : VLEN,
                                        .kind = tomb ? KV_TOMB : 0});
    }
    must(sst_build_finish(b, &size));
    must(sst_open(&w->p.ctx, number, &t));
    w->x = remix_add(&w->p, w->x, t, true);
  }
  sst_build_destroy(b);
  if (w->x->nr_keys != w->m.nr_live || w->x->nr_entries != w->m.nr_entries)
    die("REMIX: not as many keys and versions as were written");
  remix_cursor_init(&w->c, w->p.queue);
  must(remix_cursor_set(&w->c, w->x));
  merging_init(&w->merging, &w->p, w->x, how);
}

static void world_fini(struct world *w) {
  remix_cursor_fini(&w->c);
  merging_fini(&w->merging);
  remix_unref(w->x);
  place_fini(&w->p);
  model_fini(&w->m);
}

static inline void remix_rec(struct remix_cursor *c, struct kv_rec *r) {
  if (unlikely(!remix_record_held(c, r))) must(remix_record(c, r));
}

// ---- both are right

static void check_record(const struct world *w, uint32_t at, const struct kv_rec *r, const char *who) {
  const uint32_t i = w->m.live[at];
  uint8_t val[VLEN];
  value_fill(i, newest(w->m.in[i]), val);
  if (r->kind & KV_TOMB || !kv_eq(kref(r->key, r->klen), model_key(&w->m, i)) || r->vlen != VLEN ||
      memcmp(r->val, val, VLEN) != 0)
    die("%s: not the record of key %.*s", who, (int)KLEN, (const char *)w->m.keys[i]);
}

// From the first key that is not less on, up to so many records.
static void check_from(struct world *w, struct kref key, uint32_t nr) {
  struct kv_rec r;
  enter(&w->p);
  must(remix_seek(&w->c, key));
  merging_seek(&w->merging, key);
  for (uint32_t n = 0, at = model_find(&w->m, key); n < nr; n++, at++) {
    if (remix_valid(&w->c) != (at < w->m.nr_live)) die("REMIX: it does not end where the records do");
    if (merging_valid(&w->merging) != (at < w->m.nr_live))
      die("merging iterator: it does not end where the records do");
    if (at == w->m.nr_live) break;
    remix_rec(&w->c, &r);
    check_record(w, at, &r, "REMIX");
    check_record(w, at, &merging_at(&w->merging)->rec, "merging iterator");
    remix_next(&w->c);
    merging_next(&w->merging);
  }
  leave(&w->p);
}

static void check(struct world *w) {
  char text[KLEN + 1];
  uint64_t rng = 3;
  check_from(w, kref(NULL, 0), UINT32_MAX);
  check_from(w, kref("g", 1), 1);
  for (uint32_t i = 0; i < CHECKS; i++) {
    (void)snprintf(text, sizeof(text), "%016" PRIx64, rng_next(&rng));
    check_from(w, model_key(&w->m, (uint32_t)(rng_next(&rng) % w->m.nr)), 2);
    check_from(w, kref(text, KLEN - (uint32_t)(rng_next(&rng) % 2)), 2);
    memcpy(text, w->m.keys[rng_next(&rng) % w->m.nr], KLEN);
    check_from(w, kref(text, KLEN + 1), 2);  // the least key after it
  }
}

// ---- time

static uint64_t cpu_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint8_t round_keys[SEEKS][KLEN];
static uint8_t copied[STEPS * (KLEN + VLEN)];
static uint64_t sum;  // 0: each operation waits for the one before, as in a program that uses its results

static inline void copy(uint32_t n, const struct kv_rec *r) {
  uint8_t *const to = copied + n * (KLEN + VLEN);
  memcpy(to, r->key, r->klen);
  memcpy(to + r->klen, r->val, r->vlen);
}

// 0, which the compiler does not know: digits are less than 128.
static inline uint64_t seen(const struct kv_rec *r) { return r->key[r->klen - 1] >> 7; }
static inline uint64_t seen_copy(void) { return copied[(STEPS - 1) * (KLEN + VLEN)] >> 7; }

static double run_remix(struct world *w, uint32_t nr, uint32_t steps) {
  struct remix_cursor *const c = &w->c;
  struct kv_rec r;
  const uint64_t began = cpu_ns();
  for (uint32_t i = 0; i < nr; i++) {
    enter(&w->p);
    must(remix_seek(c, kref(round_keys[i] + sum, KLEN)));
    if (steps == 0) {
      remix_rec(c, &r);
      sum += seen(&r);
    }
    for (uint32_t n = 0; n < steps && remix_valid(c); n++) {
      remix_rec(c, &r);
      copy(n, &r);
      remix_next(c);
    }
    if (steps) sum += seen_copy();
    leave(&w->p);
  }
  return (double)(cpu_ns() - began) / nr;
}

static double run_merging(struct world *w, uint32_t nr, uint32_t steps) {
  struct merging *const m = &w->merging;
  const uint64_t began = cpu_ns();
  for (uint32_t i = 0; i < nr; i++) {
    enter(&w->p);
    merging_seek(m, kref(round_keys[i] + sum, KLEN));
    if (steps == 0) sum += seen(&merging_at(m)->rec);
    for (uint32_t n = 0; n < steps && merging_valid(m); n++) {
      copy(n, &merging_at(m)->rec);
      merging_next(m);
    }
    if (steps) sum += seen_copy();
    leave(&w->p);
  }
  return (double)(cpu_ns() - began) / nr;
}

static int by_number(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *v, uint32_t nr) {
  qsort(v, nr, sizeof(*v), by_number);
  return nr % 2 ? v[nr / 2] : (v[nr / 2 - 1] + v[nr / 2]) / 2;
}

static void measure(struct world *w, uint32_t rounds, uint32_t nr, uint32_t steps, const char *what) {
  static double remix[ROUNDS_MAX], merging[ROUNDS_MAX], ratio[ROUNDS_MAX];
  uint64_t rng = 7 + steps;
  for (uint32_t n = 0; n < rounds; n++) {
    for (uint32_t turn = 0; turn < 2; turn++) {
      // other keys in each turn: the processor's cache still has those of the first turn
      for (uint32_t i = 0; i < nr; i++)
        memcpy(round_keys[i], w->m.keys[w->m.live[rng_next(&rng) % w->m.nr_live]], KLEN);
      if (turn == n % 2) remix[n] = run_remix(w, nr, steps);
      else merging[n] = run_merging(w, nr, steps);
    }
    ratio[n] = merging[n] / remix[n];
  }
  const double a = median(remix, rounds), b = median(merging, rounds), c = median(ratio, rounds);
  printf("  %s: REMIX %.0f ns, merging iterator %.0f ns; ratio of medians %.2f, of rounds %.2f to %.2f, median %.2f",
         what, a, b, b / a, ratio[0], ratio[rounds - 1], c);
  printf("; fastest rounds %.0f and %.0f ns, ratio %.2f\n", remix[0], merging[0], merging[0] / remix[0]);
}

static uint64_t misses(const struct world *w) {
  struct cache_stats s;
  cache_stats(w->p.cache, &s);
  return s.misses;
}

static void compare(uint32_t runs, uint32_t records, uint32_t rounds, struct manner how) {
  static struct world w;
  world_init(&w, runs, records, how);
  check(&w);
  const uint64_t before = misses(&w);
  printf("%" PRIu32 " runs, %" PRIu64 " records, %" PRIu32 " keys; merging iterator: %s, %s\n", runs, w.x->nr_entries,
         w.m.nr_live, how.by_anchors ? "anchors" : "search by halves", how.heap ? "heap" : "tree of losers");
  measure(&w, rounds, SEEKS, 0, "seek");
  measure(&w, rounds, SCANS, STEPS, "scan");
  (void)fflush(stdout);
  if (misses(&w) != before) die("not all blocks were in the cache");
  world_fini(&w);
}

int main(int argc, char **argv) {
  const char *at = argc > 1 ? argv[1] : "1,2,4,8,16";
  const unsigned long records = argc > 2 ? strtoul(argv[2], NULL, 10) : 1000000,
                      rounds = argc > 3 ? strtoul(argv[3], NULL, 10) : 21;
  struct manner how = {0};
  for (int i = 4; i < argc; i++) {
    if (strcmp(argv[i], "anchors") == 0) how.by_anchors = true;
    else if (strcmp(argv[i], "heap") == 0) how.heap = true;
    else if (strcmp(argv[i], "old") == 0) how.old = true;
    else die("%s: not an option", argv[i]);
  }
  if (records < 1000 || records > 10000000 || rounds == 0 || rounds > ROUNDS_MAX) die("an argument is out of range");
  while (*at) {
    char *end;
    const unsigned long runs = strtoul(at, &end, 10);
    if (end == at || runs == 0 || runs > REMIX_RUNS_MAX - 1 || (*end != 0 && *end != ','))
      die("%s: numbers of tables, with commas between", at);
    compare((uint32_t)runs, (uint32_t)records, (uint32_t)rounds, how);
    at = *end ? end + 1 : end;
  }
  return 0;
}
