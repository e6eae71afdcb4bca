// SPDX-License-Identifier: Apache-2.0
//
// Blocks read in pieces: the known checksums, the bytes read, and that no damaged byte is accepted.
#include "tests/lib/check.h"
#include "tests/lib/place.h"

#include <pthread.h>

#include "sst.h"
#include "table/pieces.h"

#define KEYS 3000u
#define KNOWN 2u
#define PART (BLOCK_PAGE / SST_PIECES)

// ---- a table whose records are known

struct made {
  struct place *p;
  struct keyset k;
  uint32_t *what;
  uint32_t base;
  struct sst *t;
  sst_pos *pos;               // the position of record i
  struct sst_pieces *pieces;  // from the builder; NULL: none
};

static void made_build(struct made *m, const struct sst_build_opts *o) {
  static uint8_t buf[VALUE_MAX];
  struct sst_build *b;
  uint64_t size;
  OK(sst_build_create(&m->p->ctx, o, m->p->queue, &b));
  const uint64_t number = m->p->next++;
  // another table first; nothing of it may be left
  for (uint32_t time = 0; time < 2; time++) {
    sst_build_start(b, number);
    for (uint32_t i = time ? 0 : KEYS / 2; i < m->k.nr; i++) {
      struct kv_rec r = {.key = m->k.keys[i].ptr, .klen = m->k.keys[i].len, .val = buf, .kind = m->what[i] == TOMB};
      r.vlen = r.kind ? 0 : value_make(m->k.keys[i], m->what[i], m->base, buf);
      sst_build_add(b, &r);
    }
  }
  OK(sst_build_finish(b, &size));
  m->pieces = sst_build_pieces(b);
  assert_null(sst_build_pieces(b));
  sst_build_destroy(b);
  OK(sst_open(&m->p->ctx, number, &m->t));
}

static void made_init(struct made *m, struct place *p, uint32_t base, const struct sst_build_opts *o, uint64_t seed) {
  *m = (struct made){.p = p, .base = base};
  keyset_make(&m->k, KEYS, &seed);
  m->what = malloc(m->k.nr * sizeof(*m->what));
  for (uint32_t i = 0; i < m->k.nr; i++)
    m->what[i] = rng_next(&seed) % 8 == 0 ? TOMB : 2 + (uint32_t)(rng_next(&seed) % 100);
  made_build(m, o);
  m->pos = malloc(m->k.nr * sizeof(*m->pos));
  for (uint32_t i = 0; i < m->k.nr; i++) m->pos[i] = sst_advance(m->t, 0, i);
}

static void made_fini(struct made *m) {
  sst_retire(m->t);
  sst_unref(m->t);
  mem_free(m->pieces);
  free(m->pos);
  free(m->what);
  keyset_free(&m->k);
}

static void made_give(struct made *m) {
  sst_give_pieces(m->t, m->pieces);
  m->pieces = NULL;
}

// A table whose blocks are known, and their checksums.
static const struct sst_pieces *made_known(struct made *m, struct place *p, size_t cache_size, uint32_t base,
                                           uint64_t seed) {
  place_init(p, cache_size);
  made_init(m, p, base, &(struct sst_build_opts){.pieces = true}, seed);
  made_give(m);
  return atomic_load(&m->t->pieces);
}

static bool is_record(const struct made *m, uint32_t i, const struct kv_rec *r) {
  return kv_eq(kref(r->key, r->klen), m->k.keys[i]) && value_is(r, m->k.keys[i], m->what[i], m->base);
}

// The number of the record at the beginning of a record's block.
static uint32_t first_of(const struct made *m, uint32_t i) { return i - sst_pos_idx(m->pos[i]); }

static uint64_t bytes_read(const struct made *m) { return atomic_load(&m->p->io.read_bytes); }

// All that the hold says it has.
static void check_hold(const struct made *m, const struct sst_hold *h, uint32_t i) {
  const uint32_t block = sst_pos_block(m->pos[i]), nr = m->t->nr_recs[block];
  assert_true(sst_holds_some(h, m->t, block, sst_pos_idx(m->pos[i]), 1));
  for (uint32_t k = h->from; k < h->to && k < nr; k++) {
    struct kv_rec r;
    block_record(h->cb.data, k, &r);
    assert_true(is_record(m, first_of(m, i) + k, &r));
  }
}

static enum remixdb_status read_at(struct made *m, uint32_t i, uint32_t nr, struct sst_hold *h) {
  struct kv_rec r;
  enter(m->p);
  const enum remixdb_status s = sst_read_some(m->t, m->pos[i], nr, true, h, &r);
  if (s == REMIXDB_OK) {
    assert_true(is_record(m, i, &r));
    check_hold(m, h, i);
    if (nr == SST_ALL) assert_true(h->from == 0 && h->to == SST_ALL);
  } else {
    assert_null(h->sst);
    assert_null(h->cb.data);
  }
  leave(m->p);
  return s;
}

static enum remixdb_status read_once(struct made *m, uint32_t i, uint32_t nr) {
  struct sst_hold h = {0};
  const enum remixdb_status s = read_at(m, i, nr, &h);
  sst_hold_fini(&h);
  return s;
}

// Reads one record of each block.
static void learn_all(struct made *m) {
  for (uint32_t i = 0; i < m->k.nr; i++)
    if (sst_pos_idx(m->pos[i]) == 0) OK(read_once(m, i, 1));
}

// ---- known pieces

// Each record is in the piece of the eighth of a page where it begins; a sum is of its piece's bytes, and depends on
// the table and the block.
static void test_cut(void **state) {
  (void)state;
  static const uint32_t bases[] = {0, 3, 40, 200, 900};
  static uint8_t value[VALUE_MAX];
  struct block_build b;
  struct keyset k;
  uint64_t rng = 7;
  OK(block_build_init(&b));
  keyset_make(&k, KEYS, &rng);
  for (uint32_t turn = 0, at = 0; turn < 100; turn++) {
    const uint32_t base = bases[turn % (sizeof(bases) / sizeof(bases[0]))];
    struct sst_pieces p[BLOCK_GROW_PAGES], other[BLOCK_GROW_PAGES];
    for (;; at = (at + 1) % k.nr) {
      struct kv_rec r = {.key = k.keys[at].ptr, .klen = k.keys[at].len, .val = value};
      r.vlen = value_make(k.keys[at], turn, base, value) % 1000;
      if (!block_build_fits(&b, kv_rec_size(KV_REC(kref(NULL, r.klen), NULL, r.vlen, false)))) break;
      block_build_add(&b, &r, 0);
    }
    const uint32_t pages = block_build_finish(&b, 5, turn), nr = block_count(b.buf), size = pages * BLOCK_PAGE;
    assert_true(pages <= BLOCK_GROW_PAGES);
    memset(p, 0, sizeof(p));
    sst_pieces_cut(p, b.buf, 5, turn);
    assert_int_equal(atomic_load(&p->known), KNOWN);
    const uint32_t begin = load16le(b.buf + BLOCK_HEAD);
    for (uint32_t q = 0; q < pages * SST_PIECES; q++) {
      uint32_t before = 0;
      for (uint32_t i = 0; i < nr; i++) before += load16le(b.buf + BLOCK_HEAD + 2 * i) / PART < q;
      assert_int_equal(p[q / SST_PIECES].first[q % SST_PIECES], before);
      assert_int_equal(p[q / SST_PIECES].offs[q % SST_PIECES],
                       before < nr ? load16le(b.buf + BLOCK_HEAD + 2 * before) : size);
    }
    // a byte that changes changes its piece's sum, and no other
    for (uint32_t i = 0; i < 40; i++) {
      const uint32_t byte = begin + (uint32_t)(rng_next(&rng) % (size - begin));
      memset(other, 0, sizeof(other));
      b.buf[byte] ^= (uint8_t)(1u << i % 8);
      sst_pieces_cut(other, b.buf, 5, turn);
      for (uint32_t q = 0; q < pages * SST_PIECES; q++) {
        const uint32_t from = p[q / SST_PIECES].offs[q % SST_PIECES],
                       to = q + 1 < pages * SST_PIECES ? p[(q + 1) / SST_PIECES].offs[(q + 1) % SST_PIECES] : size;
        assert_int_equal(other[q / SST_PIECES].sums[q % SST_PIECES] != p[q / SST_PIECES].sums[q % SST_PIECES],
                         byte >= from && byte < to);
      }
      b.buf[byte] ^= (uint8_t)(1u << i % 8);
    }
    for (uint32_t i = 0; i < 2; i++) {
      sst_pieces_cut(other, b.buf, 5 + i, turn + !i);
      for (uint32_t q = 0; q < pages * SST_PIECES; q++)
        assert_int_not_equal(other[q / SST_PIECES].sums[q % SST_PIECES], p[q / SST_PIECES].sums[q % SST_PIECES]);
    }
  }
  keyset_free(&k);
  block_build_fini(&b);
}

// A reader finds the pieces that the builder gave. Blocks of one large record have none.
static void test_given(void **state) {
  (void)state;
  struct place p;
  struct made m;
  place_init(&p, 0);
  made_init(&m, &p, 60, &(struct sst_build_opts){.pieces = true}, 1);
  const size_t memory = sst_memory(m.t);
  learn_all(&m);
  assert_int_equal(sst_memory(m.t), memory + m.t->nr_pages * sizeof(struct sst_pieces));
  const struct sst_pieces *const learnt = atomic_load(&m.t->pieces);
  uint32_t large = 0;
  for (uint32_t b = 0; b < m.t->nr_pages; b += sst_block_pages(m.t, b)) {
    const uint32_t pages = sst_block_pages(m.t, b);
    const bool known = pages <= BLOCK_GROW_PAGES;
    assert_int_equal(atomic_load(&learnt[b].known), known ? KNOWN : 0);
    large += pages > 1;
    for (uint32_t i = 0; i < pages; i++) assert_memory_equal(&learnt[b + i], &m.pieces[b + i], sizeof(*learnt));
  }
  assert_true(large > 0);
  made_fini(&m);
  // not asked for
  made_init(&m, &p, 60, &(struct sst_build_opts){.ckeys = true}, 1);
  assert_null(m.pieces);
  made_fini(&m);
  place_fini(&p);
}

// Compressed blocks, and those of large records, are read whole each time; so are blocks by direct I/O.
static void test_unsuited(void **state) {
  (void)state;
  struct place p;
  struct made m;
  place_init(&p, 0);
  for (uint32_t way = 0; way < 2; way++) {
    const struct sst_build_opts o = {.pieces = true,
                                     .compression = way ? REMIXDB_COMPRESSION_NONE : REMIXDB_COMPRESSION_ZSTD};
    made_init(&m, &p, way ? 900 : 60, &o, 2);
    assert_false(sst_pieces_suit(m.t));
    assert_null(m.pieces);
    made_give(&m);
    assert_null(atomic_load(&m.t->pieces));
    learn_all(&m);
    assert_null(atomic_load(&m.t->pieces));
    made_fini(&m);
  }
  made_init(&m, &p, 60, &(struct sst_build_opts){.pieces = true}, 2);
  assert_true(sst_pieces_suit(m.t));
  assert_non_null(m.pieces);
  p.ctx.direct_io = true;
  assert_false(sst_pieces_suit(m.t));
  made_give(&m);
  assert_null(atomic_load(&m.t->pieces));
  p.ctx.direct_io = false;
  made_fini(&m);
  place_fini(&p);
}

// ---- the bytes read

// The first reader of one record reads its block whole, and later ones read a piece. A reader of the whole block reads
// all, and makes no pieces known.
static void test_learn(void **state) {
  (void)state;
  struct place p;
  struct made m;
  place_init(&p, 0);
  made_init(&m, &p, 60, &(struct sst_build_opts){0}, 3);
  for (uint32_t i = 0; i < m.k.nr; i += 200) {
    const uint32_t pages = sst_block_pages(m.t, sst_pos_block(m.pos[i]));
    for (uint32_t time = 0; time < 4; time++) {
      const uint64_t before = bytes_read(&m);
      OK(read_once(&m, i, time == 0 ? SST_ALL : 1));
      const uint64_t bytes = bytes_read(&m) - before;
      if (time < 2 || pages > 1) assert_true(time < 2 ? bytes == pages * BLOCK_PAGE : bytes <= pages * BLOCK_PAGE);
      else assert_true(bytes > 0 && bytes < BLOCK_PAGE / 2);
    }
  }
  made_fini(&m);
  place_fini(&p);
}

// Any records of any blocks, one after the other and at random, as many as are wanted, by holds that have been
// elsewhere: right each time, and everything that a hold says it has. Much less is read than whole blocks.
static void test_few(void **state) {
  (void)state;
  static const uint32_t bases[] = {2, 20, 60, 150};
  for (uint32_t turn = 0; turn < 24; turn++) {
    struct place p;
    struct made m;
    struct sst_hold h[3];
    uint64_t rng = 100 + turn, whole = 0;
    const bool cached = turn % 3 == 2;
    place_init(&p, cached ? 16 * BLOCK_PAGE : 0);
    made_init(&m, &p, bases[turn % 4], &(struct sst_build_opts){.pieces = true}, turn);
    if (turn % 2) made_give(&m);
    else learn_all(&m);
    memset(h, 0, sizeof(h));
    const uint64_t before = bytes_read(&m);
    uint32_t i = 0;
    for (uint32_t n = 0; n < 4000; n++) {
      const uint64_t how = rng_next(&rng);
      if (how % 4 == 0) i = (uint32_t)(rng_next(&rng) % m.k.nr);
      else if (how % 4 == 1) i = i > 0 ? i - 1 : 0;
      else if (i + 1 < m.k.nr) i++;
      const uint32_t nr = how >> 8 & 15 ? 1 + (uint32_t)(how >> 16) % 12 : how >> 12 & 1 ? SST_ALL : BLOCK_RECORDS_MAX;
      struct sst_hold *const x = &h[how >> 32 & 1];
      if (!sst_holds(x, m.t, sst_pos_block(m.pos[i])))
        whole += sst_block_pages(m.t, sst_pos_block(m.pos[i])) * BLOCK_PAGE;
      OK(read_at(&m, i, nr, x));
      if (how >> 40 & 1) check_hold(&m, x, i);
      if ((how >> 48) % 32 == 0) sst_hold_drop(x);
    }
    if (!cached) assert_true(bytes_read(&m) - before < whole * 3 / 4);
    for (uint32_t k = 0; k < 3; k++) sst_hold_fini(&h[k]);
    made_fini(&m);
    place_fini(&p);
  }
}

// A block of one page begins here, and each of its pieces has records.
static bool has_all(const struct made *m, const struct sst_pieces *all, uint32_t block) {
  const uint8_t *const first = all[block].first;
  if (!m->t->nr_recs[block] || sst_block_pages(m->t, block) != 1 || first[SST_PIECES - 1] >= m->t->nr_recs[block])
    return false;
  for (uint32_t q = 1; q < SST_PIECES; q++)
    if (first[q] <= first[q - 1]) return false;
  return true;
}

// Records in a hold are not read again, whether they are to the left or to the right.
static void test_more(void **state) {
  (void)state;
  struct place p;
  struct made m;
  const struct sst_pieces *const all = made_known(&m, &p, 0, 20, 5);
  uint32_t seen = 0;
  for (uint32_t b = 0; b < m.t->nr_pages; b++) {
    if (!has_all(&m, all, b)) continue;
    const uint8_t *const first = all[b].first;
    const uint16_t *const offs = all[b].offs;
    uint32_t begin = 0;
    while (m.pos[begin] != sst_pos_make(b, 0)) begin++;
    for (uint32_t o = 0; o < 3; o++) {
      struct sst_hold h = {0};
      const uint64_t before = bytes_read(&m);
      uint64_t sum = 0;
      for (uint32_t n = 0; n < SST_PIECES; n++) {
        // from the middle down and then the last; from the second up and then the first; from the last on all others
        const uint32_t q = o == 0 ? n + 1 < SST_PIECES ? SST_PIECES - 2 - n : n
                                  : (n + (o == 1 ? 1 : SST_PIECES - 1)) % SST_PIECES;
        OK(read_at(&m, begin + first[q], 1, &h));
        sum = bytes_read(&m) - before;
        assert_true(h.from <= first[q] && h.to > first[q]);
      }
      assert_int_equal(sum, BLOCK_PAGE - offs[0]);  // each byte of the records once
      assert_true(h.from == 0 && h.to == SST_ALL);
      OK(read_at(&m, begin, SST_ALL, &h));
      assert_int_equal(bytes_read(&m) - before, sum);
      sst_hold_fini(&h);
    }
    // a reader of the whole block gets it by the block's own checksum
    const uint64_t before = bytes_read(&m);
    OK(read_once(&m, begin, BLOCK_RECORDS_MAX));
    assert_int_equal(bytes_read(&m) - before, BLOCK_PAGE);
    seen++;
  }
  assert_true(seen > 3);
  made_fini(&m);
  place_fini(&p);
}

// ---- the bytes after the block

static uint64_t reads_of(const struct made *m) { return atomic_load(&m->p->io.nr_reads); }

// A reader that wants more records than the block has gets those of the following blocks by the same read: as many as
// it wants, or as there is room for. A reader that goes on farther reads on where they end.
static void test_behind(void **state) {
  (void)state;
  static const uint32_t bases[] = {20, 60, 150};
  uint32_t spans[4] = {0};  // by how many more blocks were read with the first, the last: three or more
  for (uint32_t turn = 0; turn < 3; turn++) {
    struct place p;
    struct made m;
    struct sst_hold h = {0};
    uint64_t rng = 7 + turn;
    (void)made_known(&m, &p, 0, bases[turn], turn);
    for (uint32_t n = 0; n < 1500; n++) {
      const uint32_t nr = 1 + (uint32_t)(rng_next(&rng) % (n % 4 ? 30 : 250)),
                     i = (uint32_t)(rng_next(&rng) % (m.k.nr - nr)), end = i + nr;
      const uint32_t first = sst_pos_block(m.pos[i]), last = sst_pos_block(m.pos[end - 1]);
      const uint64_t reads = reads_of(&m), bytes = bytes_read(&m);
      sst_hold_drop(&h);
      OK(read_at(&m, i, nr, &h));
      assert_int_equal(reads_of(&m), reads + 1);
      if (last == first || (h.from == 0 && h.to == SST_ALL)) {  // one that is read whole comes alone
        assert_int_equal(h.own_bytes, 0);
        continue;
      }
      const uint32_t pages = last + sst_block_pages(m.t, last) - first;
      assert_true(pages > SST_PIECES_SPAN ? h.own_bytes > 0 && h.own_bytes <= SST_PIECES_SPAN * BLOCK_PAGE
                                          : h.own_bytes > (last - first) * BLOCK_PAGE);
      assert_true(bytes_read(&m) - bytes <= h.own_bytes);
      const struct sst_hold before = h;
      for (uint32_t k = i + 1; k < end; k++) {
        const uint32_t b = sst_pos_block(m.pos[k]);
        const bool there = (b - first + sst_block_pages(m.t, b)) * BLOCK_PAGE <= before.own_bytes ||
                           pages <= SST_PIECES_SPAN;
        if (!there) break;
        assert_true(b == h.block ? sst_holds(&h, m.t, b) : sst_holds_behind(&h, m.t, b));
        OK(read_at(&m, k, end - k, &h));
        assert_int_equal(reads_of(&m), reads + 1);
      }
      uint32_t more = 0;
      for (uint32_t b = first + sst_block_pages(m.t, first); b <= last && (b - first) * BLOCK_PAGE < before.own_bytes;
           b += sst_block_pages(m.t, b))
        more++;
      spans[more < 3 ? more : 3]++;
      // on from there, and back again
      if (pages <= SST_PIECES_SPAN) OK(read_at(&m, end, 3, &h));
      OK(read_at(&m, i, 2, &h));
    }
    sst_hold_fini(&h);
    made_fini(&m);
    place_fini(&p);
  }
  assert_true(spans[0] == 0 && spans[1] > 100 && spans[2] > 50 && spans[3] > 50);
}

// It is not read where it is of no use: cached, or not known.
static void test_behind_not(void **state) {
  (void)state;
  struct place p;
  struct made m;
  struct sst_hold h = {0};
  const struct sst_pieces *const all = made_known(&m, &p, 64 * BLOCK_PAGE, 60, 4);
  uint32_t i = 0;
  while (!has_all(&m, all, sst_pos_block(m.pos[i])) ||
         sst_pos_idx(m.pos[i]) != m.t->nr_recs[sst_pos_block(m.pos[i])] - 1u)
    i++;
  const uint32_t next = sst_pos_block(m.pos[i + 1]);
  assert_false(cache_has(&m.t->cache, next));
  assert_true(sst_pieces_span(m.t, sst_pos_block(m.pos[i]), sst_pos_idx(m.pos[i]), 5) > BLOCK_PAGE);
  struct sst_pieces *const known = (struct sst_pieces *)(uintptr_t)&all[next];
  atomic_store(&known->known, 0);
  assert_int_equal(sst_pieces_span(m.t, sst_pos_block(m.pos[i]), sst_pos_idx(m.pos[i]), 5), 0);
  atomic_store(&known->known, KNOWN);
  OK(read_at(&m, i + 1, SST_ALL, &h));
  assert_true(cache_has(&m.t->cache, next));
  assert_int_equal(sst_pieces_span(m.t, sst_pos_block(m.pos[i]), sst_pos_idx(m.pos[i]), 5), 0);
  // after the last block there is nothing
  const uint32_t end = m.k.nr - 1;
  assert_int_equal(sst_pieces_span(m.t, sst_pos_block(m.pos[end]), sst_pos_idx(m.pos[end]), 5), 0);
  sst_hold_fini(&h);
  made_fini(&m);
  place_fini(&p);
}

// Blocks of several pages among others: there is room for all of the last block, some of which came with the first,
// when more of it is wanted.
static void test_behind_large(void **state) {
  (void)state;
  struct place p;
  struct sst *t;
  struct sst_build *b;
  uint64_t size, rng = 3;
  uint8_t key[4], value[1500] = {0};
  const uint32_t nr = 3000;
  place_init(&p, 0);
  OK(sst_build_create(&p.ctx, &(struct sst_build_opts){.pieces = true}, p.queue, &b));
  sst_build_start(b, p.next);
  for (uint32_t i = 0; i < nr; i++) {
    store32le(key, __builtin_bswap32(i));
    store32le(value, i);
    sst_build_add(b, &(struct kv_rec){.key = key, .klen = 4, .val = value, .vlen = i % 100 < 20 ? sizeof(value) : 20});
  }
  OK(sst_build_finish(b, &size));
  struct sst_pieces *const pieces = sst_build_pieces(b);
  sst_build_destroy(b);
  OK(sst_open(&p.ctx, p.next++, &t));
  assert_true(sst_pieces_suit(t));
  sst_give_pieces(t, pieces);
  uint32_t ends = 0;  // scans whose first read ended in the first page of a block of several
  for (uint32_t n = 0; n < 2000; n++) {
    struct sst_hold h = {0};
    struct kv_rec r;
    const uint32_t i = (uint32_t)(rng_next(&rng) % (nr - 60)), want = 1 + (uint32_t)(rng_next(&rng) % 30);
    enter(&p);
    for (uint32_t k = i; k < i + 60; k++) {
      OK(sst_read_some(t, sst_advance(t, 0, k), k < i + want ? i + want - k : 1, true, &h, &r));
      assert_int_equal(load32le(r.val), k);
      if (k > i || h.own_bytes == 0) continue;
      const uint32_t last = h.own_first + h.own_bytes / BLOCK_PAGE;
      ends += t->nr_recs[last] && sst_block_pages(t, last) > 1;
    }
    leave(&p);
    sst_hold_fini(&h);
  }
  assert_true(ends > 20);
  sst_retire(t);
  sst_unref(t);
  place_fini(&p);
}

// An error after a block is told to the reader that reaches it, and to nobody before.
static void test_behind_wrong(void **state) {
  (void)state;
  struct place p;
  struct made m;
  const struct sst_pieces *const all = made_known(&m, &p, 0, 60, 6);
  uint32_t seen = 0;
  for (uint32_t i = 1; i + 40 < m.k.nr; i++) {
    const uint32_t b = sst_pos_block(m.pos[i]), next = sst_pos_block(m.pos[i + 1]);
    if (b == next || !has_all(&m, all, b) || !has_all(&m, all, next)) continue;
    struct sst_hold h = {0};
    const uint32_t off = all[next].offs[0] + i % (all[next].offs[1] - all[next].offs[0]);
    byte_flip(m.t->path, (long)next * BLOCK_PAGE + off);
    OK(read_at(&m, i, 4, &h));
    assert_true(sst_holds_behind(&h, m.t, next));
    FAILS(read_at(&m, i + 1, 3, &h), REMIXDB_CORRUPT);
    byte_flip(m.t->path, (long)next * BLOCK_PAGE + off);
    OK(read_at(&m, i + 1, 3, &h));
    // in memory the same: it is read again
    sst_hold_drop(&h);
    OK(read_at(&m, i, 4, &h));
    h.cb.own[(next - h.own_first) * BLOCK_PAGE + off] ^= 1;
    const uint64_t reads = reads_of(&m);
    OK(read_at(&m, i + 1, 3, &h));
    assert_int_equal(reads_of(&m), reads + 1);
    // a read that fails is made once more without it
    sst_hold_drop(&h);
    fault_io_set(FAULT_READ, 1, false);
    OK(read_at(&m, i, 4, &h));
    assert_true(fault_io_end());
    assert_int_equal(h.own_bytes, 0);
    OK(read_at(&m, i + 1, 3, &h));
    // and without the memory for it
    sst_hold_fini(&h);
    memset(&h, 0, sizeof(h));
    fault_mem_set(1);
    OK(read_at(&m, i, 4, &h));
    assert_true(fault_mem_end());
    assert_int_equal(h.own_bytes, 0);
    sst_hold_fini(&h);
    seen++;
  }
  assert_true(seen > 10);
  made_fini(&m);
  place_fini(&p);
}

// A block as large as there are lies between small ones: nothing is known of it, and it is read whole.
static void test_large(void **state) {
  (void)state;
  struct place p;
  struct sst *t;
  struct sst_build *b;
  uint64_t size;
  uint8_t key[4];
  uint8_t *const value = calloc(1, REMIXDB_KV_MAX);
  place_init(&p, 0);
  OK(sst_build_create(&p.ctx, &(struct sst_build_opts){.pieces = true}, p.queue, &b));
  sst_build_start(b, p.next);
  for (uint32_t i = 0; i < 2000; i++) {
    const uint32_t vlen = i == 1000 ? REMIXDB_KV_MAX - 4 : 20;
    (void)snprintf((char *)value, 20, "%u", i);
    sst_build_add(
        b, &(struct kv_rec){.key = (store32le(key, __builtin_bswap32(i)), key), .klen = 4, .val = value, .vlen = vlen});
  }
  OK(sst_build_finish(b, &size));
  struct sst_pieces *const pieces = sst_build_pieces(b);
  sst_build_destroy(b);
  OK(sst_open(&p.ctx, p.next++, &t));
  assert_true(sst_pieces_suit(t));
  for (uint32_t given = 0; given < 2; given++) {
    struct sst_hold h = {0};
    for (uint32_t i = 0; i < 4000; i++) {
      struct kv_rec r;
      char want[20];
      const sst_pos pos = sst_advance(t, 0, i % 2000);
      (void)snprintf(want, sizeof(want), "%u", i % 2000);
      enter(&p);
      OK(sst_read_some(t, pos, 1, false, &h, &r));
      leave(&p);
      assert_string_equal((const char *)r.val, want);
      assert_int_equal(r.vlen, i % 2000 == 1000 ? REMIXDB_KV_MAX - 4 : 20);
      const struct sst_pieces *const all = atomic_load(&t->pieces);
      const uint32_t pages = sst_block_pages(t, sst_pos_block(pos));
      if (i % 2000 == 1000) assert_int_equal(pages, BLOCK_PAGES_MAX - 1);
      assert_int_equal(atomic_load(&all[sst_pos_block(pos)].known), pages > 1 ? 0 : KNOWN);
    }
    sst_hold_fini(&h);
    if (given) break;
    mem_free(atomic_load(&t->pieces));  // the known checksums
    sst_give_pieces(t, pieces);
  }
  sst_retire(t);
  sst_unref(t);
  free(value);
  place_fini(&p);
}

// ---- damage

// A piece that is damaged is not read, by nobody; the others of its block are.
static void test_damage(void **state) {
  (void)state;
  struct place p;
  struct made m;
  const struct sst_pieces *const all = made_known(&m, &p, 0, 60, 6);
  uint32_t seen = 0;
  for (uint32_t i = 0; i < m.k.nr; i++) {
    const uint32_t b = sst_pos_block(m.pos[i]);
    if (sst_pos_idx(m.pos[i]) || !has_all(&m, all, b)) continue;
    const uint8_t *const first = all[b].first;
    const uint32_t off = all[b].offs[1] + (uint32_t)(i % (all[b].offs[2] - all[b].offs[1]));
    byte_flip(m.t->path, (long)b * BLOCK_PAGE + off);
    struct sst_hold h = {0};
    OK(read_at(&m, i, 1, &h));
    OK(read_at(&m, i + first[1] - 1, 1, &h));
    FAILS(read_at(&m, i + first[1], 1, &h), REMIXDB_CORRUPT);
    assert_non_null(strstr(err_msg(), "checksum of block"));
    OK(read_at(&m, i + first[3], 1, &h));
    OK(read_at(&m, i, 1, &h));  // the pieces between are not needed
    assert_int_equal(h.to, first[1]);
    FAILS(read_once(&m, i, SST_ALL), REMIXDB_CORRUPT);
    FAILS(read_once(&m, i + first[2] - 1, 1), REMIXDB_CORRUPT);
    OK(read_once(&m, i + first[2], 1));
    byte_flip(m.t->path, (long)b * BLOCK_PAGE + off);
    OK(read_at(&m, i + first[1], 1, &h));
    sst_hold_fini(&h);
    seen++;
  }
  assert_true(seen > 10);
  made_fini(&m);
  place_fini(&p);
}

// Sums that are wrong in memory are no damage: the block's own checksum decides.
static void test_wrong_sums(void **state) {
  (void)state;
  struct place p;
  struct made m;
  place_init(&p, 0);
  made_init(&m, &p, 60, &(struct sst_build_opts){.pieces = true}, 8);
  for (uint32_t b = 0; b < m.t->nr_pages; b++)
    for (uint32_t q = 0; q < SST_PIECES; q++) m.pieces[b].sums[q] ^= 1u << b % 32;
  made_give(&m);
  struct sst_hold h = {0};
  for (uint32_t i = 0; i < m.k.nr; i += 3) {
    OK(read_once(&m, i, 1));
    OK(read_at(&m, i, 2, &h));
    assert_int_equal(h.to, SST_ALL);
  }
  sst_hold_fini(&h);
  made_fini(&m);
  place_fini(&p);
}

// Reads and allocations that fail, at every place: they are reported, or done without, and the next one finds all as it
// was.
static void test_faults(void **state) {
  (void)state;
  struct place p;
  struct made m;
  place_init(&p, 0);
  for (uint32_t given = 0; given < 2; given++) {
    made_init(&m, &p, 60, &(struct sst_build_opts){.pieces = true}, 9);
    if (given) made_give(&m);
    uint64_t rng = 3;
    uint32_t failed = 0, had = 0;
    for (uint32_t turn = 0; turn < 600; turn++) {
      struct sst_hold h = {0};
      const bool memory = turn % 2;
      const uint32_t i = (uint32_t)(rng_next(&rng) % (m.k.nr - 40));
      if (memory) fault_mem_set(1 + (int64_t)(rng_next(&rng) % 4));
      else fault_io_set(FAULT_READ, 1 + (int64_t)(rng_next(&rng) % 3), turn % 4 == 0);
      uint32_t bad = 0;
      for (uint32_t n = 0; n < 3; n++) {
        const enum remixdb_status s = read_at(&m, i + 17 * n, 1 + n, &h);
        assert_true(s == REMIXDB_OK || s == (memory ? REMIXDB_NOMEM : REMIXDB_IO));
        bad += s != REMIXDB_OK;
      }
      failed += bad;
      had += 3 - bad;
      if (memory) (void)fault_mem_end();
      else assert_int_equal(fault_io_end(), bad > 0);  // no read fails without being told
      for (uint32_t n = 0; n < 3; n++) OK(read_at(&m, i + 17 * n, 1, &h));
      sst_hold_fini(&h);
    }
    assert_true(failed > 100 && had > 100);
    made_fini(&m);
  }
  place_fini(&p);
}

// A builder that cannot have the memory for them now and then: the checksums that it gives are right, and it gives none
// where it ended without memory.
static void test_builder_faults(void **state) {
  (void)state;
  struct place p;
  struct made m;
  place_init(&p, 0);
  made_init(&m, &p, 60, &(struct sst_build_opts){.pieces = true}, 10);
  const uint32_t nr_pages = m.t->nr_pages;
  // three pages, the last of which makes the builder's memory grow, and all
  uint32_t none = 0, some = 0, ended = 0, three = 0;
  while (sst_pos_block(m.pos[three]) < 3) three++;
  for (int64_t nth = 1; ended < 2; nth++) {
    struct sst_build *b;
    uint64_t size;
    uint8_t value[VALUE_MAX];
    OK(sst_build_create(&p.ctx, &(struct sst_build_opts){.pieces = true}, p.queue, &b));
    sst_build_start(b, p.next++);
    fault_mem_set(nth);
    for (uint32_t i = 0; i < (ended ? m.k.nr : three); i++) {
      struct kv_rec r = {.key = m.k.keys[i].ptr, .klen = m.k.keys[i].len, .val = value, .kind = m.what[i] == TOMB};
      r.vlen = r.kind ? 0 : value_make(m.k.keys[i], m.what[i], m.base, value);
      sst_build_add(b, &r);
    }
    const enum remixdb_status s = sst_build_finish(b, &size);
    struct sst_pieces *const pieces = s == REMIXDB_OK ? sst_build_pieces(b) : NULL;
    const bool all = !fault_mem_end();
    assert_true(s == REMIXDB_OK || s == REMIXDB_NOMEM);
    if (all) assert_non_null(pieces);
    none += s == REMIXDB_OK && !pieces;
    uint32_t unknown = 0;
    for (uint32_t i = 0; pieces && i < (ended ? nr_pages : 3); i += sst_block_pages(m.t, i)) {
      if (sst_block_pages(m.t, i) > BLOCK_GROW_PAGES) continue;
      if (atomic_load(&pieces[i].known) == 0) unknown++;
      // the table's number is in its sums
      else
        assert_true(pieces[i].first[1] == m.pieces[i].first[1] && pieces[i].offs[3] == m.pieces[i].offs[3] &&
                    pieces[i].sums[0] != m.pieces[i].sums[0]);
    }
    some += unknown > 0;
    mem_free(pieces);
    sst_build_destroy(b);
    if (!all) continue;
    ended++;
    nth = 0;
  }
  assert_true(none > 0 && some > 0);
  made_fini(&m);
  place_fini(&p);
}

// ---- threads

struct reader {
  struct made *m;
  pthread_t thread;
  uint64_t seed;
  bool good;
};

static void *reader_main(void *arg) {
  struct reader *const x = arg;
  struct made *const m = x->m;
  struct epoch_slot slot = {0};
  struct sst_hold h = {0};
  epoch_join(&m->p->epoch, &slot);
  x->good = true;
  for (uint32_t n = 0; n < 6000 && x->good; n++) {
    const uint32_t i = (uint32_t)(rng_next(&x->seed) % m->k.nr);
    struct kv_rec r;
    epoch_enter(&m->p->epoch, &slot);
    x->good = sst_read_some(m->t, m->pos[i], 1 + n % 3, false, &h, &r) == REMIXDB_OK && is_record(m, i, &r);
    epoch_exit(&slot);
  }
  epoch_leave(&m->p->epoch, &slot);
  sst_hold_fini(&h);
  return NULL;
}

// Threads find out about the same blocks at the same time; with a cache some of them come to frames.
static void test_threads(void **state) {
  (void)state;
  for (uint32_t turn = 0; turn < 4; turn++) {
    struct place p;
    struct made m;
    struct reader readers[4];
    place_init(&p, turn % 2 ? 32 * BLOCK_PAGE : 0);
    made_init(&m, &p, 60, &(struct sst_build_opts){.pieces = turn > 1}, turn);
    for (uint32_t i = 0; i < 4; i++) {
      readers[i] = (struct reader){.m = &m, .seed = turn * 10 + i};
      assert_int_equal(pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
      assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
      assert_true(readers[i].good);
    }
    assert_non_null(atomic_load(&m.t->pieces));
    made_fini(&m);
    place_fini(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cut),          cmocka_unit_test(test_given),
      cmocka_unit_test(test_unsuited),     cmocka_unit_test(test_learn),
      cmocka_unit_test(test_few),          cmocka_unit_test(test_more),
      cmocka_unit_test(test_damage),       cmocka_unit_test(test_wrong_sums),
      cmocka_unit_test(test_faults),       cmocka_unit_test(test_builder_faults),
      cmocka_unit_test(test_large),        cmocka_unit_test(test_threads),
      cmocka_unit_test(test_behind),       cmocka_unit_test(test_behind_not),
      cmocka_unit_test(test_behind_wrong), cmocka_unit_test(test_behind_large),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
