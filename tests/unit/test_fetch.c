// SPDX-License-Identifier: Apache-2.0
//
// Fetches of blocks, with each engine and few descriptors: each block comes, and while its owner uses one that it has
// taken, all descriptors are to be had.
#include "table/fetch.h"
#include "tests/lib/place.h"

#define TABLES 7u
#define DESCRIPTORS 3u
#define BLOCKS 4u  // that are asked for, of each table, at most

struct made {
  struct place p;
  struct keyset k;
  struct sst *t[TABLES];
};

static void make(struct made *m) {
  uint64_t rng = check_seed;
  uint32_t *const what = calloc(4000, sizeof(*what));
  place_native = true;
  place_max_open = DESCRIPTORS;
  place_init(&m->p, 0);
  keyset_make(&m->k, 4000, &rng);
  for (uint32_t i = 0; i < m->k.nr; i++) what[i] = 2 + i;
  for (uint32_t t = 0; t < TABLES; t++) m->t[t] = table_make(&m->p, &m->k, what, 0, m->k.nr - t, 40, t % 2);
  free(what);
}

static void end(struct made *m) {
  for (uint32_t t = 0; t < TABLES; t++) sst_unref(m->t[t]);
  keyset_free(&m->k);
  place_fini(&m->p);
}

// Nobody has a descriptor: this thread can have all of them at once.
static void all_free(const struct made *m) {
  int fd;
  for (uint32_t i = 0; i < DESCRIPTORS; i++) CHECK(fdpool_try_acquire(m->t[i]->file, &fd));
  for (uint32_t i = 0; i < DESCRIPTORS; i++) fdpool_release(m->t[i]->file);
}

static bool block_is(const struct fetch *f) {
  struct kv_rec a, b;
  struct sst_hold h = {0};
  block_record(f->data, 0, &a);
  OK(sst_read(f->sst, sst_pos_make(f->block, 0), false, &h, &b));
  const bool same = kv_eq(kref(a.key, a.klen), kref(b.key, b.klen));
  sst_hold_fini(&h);
  return same;
}

// Asks for some blocks of all tables, and takes them.
static uint32_t fetch_some(struct made *m, struct blkio *io, uint32_t depth, uint64_t *rng) {
  struct fetcher *fr;
  struct fetch *f;
  uint32_t asked = 0, taken = 0;
  OK(fetcher_create(io, depth, &fr));
  for (uint32_t t = 0; t < TABLES; t++) {
    uint32_t block = 0;
    for (uint32_t n = 0; n < BLOCKS && asked < depth && block < m->t[t]->nr_pages; n++, asked++) {
      (void)fetcher_ask(fr, m->t[t], block);
      block += sst_block_pages(m->t[t], block);
      if (rng_next(rng) % 4 == 0) fetcher_submit(fr);
    }
  }
  do {
    fetcher_submit(fr);
    while ((f = fetcher_take(fr, true)) != NULL) {
      all_free(m);
      CHECK(f->status == REMIXDB_OK && block_is(f));
      fetcher_give(fr, f);
      taken++;
    }
  } while (taken < asked);
  CHECK(fetcher_count(fr) == 0);
  fetcher_destroy(fr);
  return taken;
}

static void test_descriptors(void **state) {
  (void)state;
  static const enum blkio_kind kinds[] = {BLKIO_URING, BLKIO_AIO, BLKIO_SYNC};
  struct made m;
  uint64_t rng = check_seed;
  make(&m);
  for (uint32_t i = 0; i < 3; i++) {
    struct blkio io;
    blkio_init(&io, env_posix(), kinds[i]);
    for (uint32_t depth = 1; depth <= TABLES * BLOCKS; depth += 9)
      for (uint32_t n = 0; n < 5; n++) CHECK(fetch_some(&m, &io, depth, &rng) == depth);
    blkio_fini(&io);
  }
  end(&m);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_descriptors),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
