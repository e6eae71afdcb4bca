// SPDX-License-Identifier: Apache-2.0
//
// The cost of building a REMIX: pages read, bytes compared, entries copied, and how full its segments stay.
#include "tests/lib/check.h"
#include "tests/lib/remix_world.h"

static uint64_t data_pages(const struct world *t, uint32_t runs) {
  uint64_t nr = 0;
  for (uint32_t r = 0; r < runs; r++)
    if (!t->sst[r]->ckb_len) nr += t->sst[r]->nr_pages;
  return nr;
}

static uint64_t ckb_bytes(const struct world *t) {
  uint64_t nr = 0;
  for (uint32_t r = 0; r < t->nr; r++) nr += t->sst[r]->ckb_len;
  return nr;
}

#define PREFIX "/usr/share/dictionaries/american-english/words/by-name/"  // 55 bytes

// The words of a dictionary below one path, each `times` times. False when there is no dictionary.
static bool keys_words(struct keyset *k, uint32_t times) {
  uint8_t *text;
  size_t len;
  if (paths_read_file(ENV_PATHS(env_posix()), "/usr/share/dict/american-english", SIZE_MAX, &text, &len) != REMIXDB_OK)
    return false;
  uint32_t lines = 0;
  for (size_t i = 0; i < len; i++) lines += text[i] == '\n';
  k->keys = calloc((size_t)lines * times, sizeof(*k->keys));
  uint32_t nr = 0;
  for (size_t i = 0, from = 0; i < len; i++) {
    if (text[i] != '\n') continue;
    for (uint32_t n = 0; n < times; n++) {
      char buf[256];
      int m = snprintf(buf, sizeof(buf), PREFIX "%.*s", (int)(i - from), (const char *)text + from);
      if (n) m += snprintf(buf + m, sizeof(buf) - (size_t)m, "/%u", n);
      uint8_t *const key = malloc((size_t)m + 1);
      memcpy(key, buf, (size_t)m);
      k->keys[nr++] = kref(key, (uint32_t)m);
    }
    from = i + 1;
  }
  mem_free(text);
  keyset_sort(k, nr);
  return true;
}

// With compressed keys in every table, a minor compaction reads these and the old REMIX, and no data. It compares few
// more bytes of the keys than it needs to tell them apart.
static void minor_with_ckb(struct keyset *k, const char *what) {
  static const uint32_t shares[] = {9, 1000, 2};  // one of so many is new
  for (uint32_t n = 0; n < (k->nr > 900000 ? 2 : 3); n++) {
    struct place p;
    struct world t;
    place_init(&p, 0);
    views_init(&t, &p, CKB_ALL, 100, true);
    t.k = *k;
    uint8_t *const has = calloc(k->nr, 1);
    for (uint32_t i = 0; i < k->nr; i++) has[i] = below(shares[n]) == 0;
    world_spread(&t, 8, 10, has);
    world_add(&t, has);
    // the bytes that tell a key from the one before, without those that this shares with its own predecessor
    uint64_t bytes = 0, lcp = 0;
    for (uint32_t i = 1; i < k->nr; i++) {
      const uint32_t next = kv_lcp_from(k->keys[i - 1], k->keys[i], 0);
      bytes += (next > lcp ? next - lcp : lcp - next) + 1;
      lcp = next;
    }
    const double differ = (double)bytes / k->nr;
    struct remix *const old = t.x;
    for (enum remix_build_way way = shares[n] == 1000 ? REMIX_BUILD_AUTO : REMIX_BUILD_MERGE; way <= REMIX_BUILD_SPLICE;
         way++) {
      remix_ref(old);
      world_build(&t, UINT32_MAX, 1, way);
      check_view(&t);
      const double compared = (double)t.b.key_bytes_compared / t.x->nr_entries;
      print_message("%s, 1 of %u new, %s: %.2f bytes compared per entry (keys differ in %.2f), %llu keys read, %llu "
                    "entries copied\n",
                    what, shares[n], t.b.way == REMIX_BUILD_SPLICE ? "splice" : "merge", compared, differ,
                    (unsigned long long)t.b.keys_read, (unsigned long long)t.b.entries_copied);
      assert_int_equal(t.b.data_pages_read, 0);
      assert_true(t.b.ckb_bytes_read > 0 && t.b.ckb_bytes_read <= ckb_bytes(&t));
      // a splice compares with anchors, too, and so is not the way of choice where every second key is new
      assert_true(compared <= differ + (shares[n] == 2 && way == REMIX_BUILD_SPLICE ? 3 : 1));
      if (t.b.way == REMIX_BUILD_MERGE) assert_int_equal(t.b.ckb_bytes_read, ckb_bytes(&t));
      if (shares[n] == 1000) {
        if (way == REMIX_BUILD_AUTO) assert_int_equal(t.b.way, REMIX_BUILD_SPLICE);
        if (t.b.way == REMIX_BUILD_SPLICE) assert_true(t.b.entries_copied > t.x->nr_entries * 9 / 10);
        assert_true(compared <= 1);
      }
      world_back(&t, old);
    }
    t.k = (struct keyset){0};
    views_fini(&t);
    place_fini(&p);
  }
}

static void test_minor_random(void **state) {
  (void)state;
  struct keyset k;
  keys_random16(&k, MILLION);
  minor_with_ckb(&k, "16 random bytes");
  keyset_free(&k);
}

static void test_minor_words(void **state) {
  (void)state;
  struct keyset k;
  if (!keys_words(&k, SLOW > 1 ? 1 : 5)) skip();
  minor_with_ckb(&k, "words below a path");
  keyset_free(&k);
}

// Without compressed keys, the number of pages read grows with the new keys, and not with the view.
static void sparse(uint32_t entries, uint32_t nr, uint32_t ckb, uint64_t *pages_out) {
  struct place p;
  struct world t;
  place_init(&p, 0);
  views_init(&t, &p, ckb, 100, true);
  keys_random16(&t.k, entries);
  static const char *const names[] = {"everywhere", "in four places", "in one place", "behind", "before"};
  uint8_t *has[LAYOUTS], *const out = calloc(t.k.nr, 1);
  for (uint32_t n = 0; n < LAYOUTS; n++) {
    has[n] = fresh_keys(&t, n, nr);
    for (uint32_t i = 0; i < t.k.nr; i++) out[i] |= has[n][i];
  }
  world_spread(&t, 8, 0, out);
  free(out);
  const uint64_t all = data_pages(&t, 8);
  struct remix *const old = t.x;
  for (uint32_t n = 0; n < LAYOUTS; n++) {
    world_add(&t, has[n]);
    remix_ref(old);
    world_build(&t, UINT32_MAX, 1, REMIX_BUILD_AUTO);
    check_view(&t);
    const uint64_t fresh_pages = t.sst[8]->ckb_len ? 0 : t.sst[8]->nr_pages, pages = t.b.data_pages_read - fresh_pages;
    const uint32_t fresh_nr = (uint32_t)t.sst[8]->nr_records;
    print_message("%u new keys %s, %u old ones: %llu data pages of %llu, %llu keys read, %llu entries copied\n",
                  fresh_nr, names[n], entries, (unsigned long long)pages, (unsigned long long)all,
                  (unsigned long long)t.b.keys_read, (unsigned long long)t.b.entries_copied);
    assert_int_equal(t.b.way, REMIX_BUILD_SPLICE);
    // one page to find a key's place, and one now and then to cut a segment
    assert_true(pages <= fresh_nr + fresh_nr / 4 + 8);
    if (ckb == CKB_NONE) assert_true(pages > 0);
    if (n != SPARSE) assert_true(pages <= fresh_nr / 4 + 100);
    assert_true(t.b.keys_read <= 3 * fresh_nr + 8);
    assert_true(t.b.entries_copied + 64ull * fresh_nr + 64 >= t.x->nr_entries - fresh_nr);
    if (n == SPARSE) *pages_out = pages;
    world_back(&t, old);
    world_drop(&t, 8);
  }
  views_fini(&t);
  place_fini(&p);
}

static void test_sparse(void **state) {
  (void)state;
  uint64_t small, large, mixed;
  const uint32_t nr = MILLION / 1000;
  sparse(MILLION / 4, nr, CKB_NONE, &small);
  sparse(MILLION, nr, CKB_NONE, &large);
  assert_true(large <= small + small / 4);
  sparse(MILLION / 4, nr, CKB_MIXED, &mixed);
  assert_true(mixed < small);
}

// The same again and again. When segments are as empty as they may be, a build reads more to fill the next ones, but no
// more for a larger view.
static void test_sparse_again(void **state) {
  (void)state;
  struct place p;
  struct world t;
  place_init(&p, 0);
  views_init(&t, &p, CKB_NONE, 100, true);
  keys_random16(&t.k, MILLION / 4);
  const uint32_t nr = MILLION / 1000;
  uint8_t *const out = calloc(t.k.nr, 1);
  for (uint32_t i = 0; i < t.k.nr; i++) out[i] = below(10) == 0;
  world_spread(&t, 4, 0, out);
  free(out);
  for (uint32_t step = 0; step < 20; step++) {
    uint64_t before = 0;
    for (uint32_t r = 0; r < t.nr; r++) before += t.sst[r]->nr_records;
    world_add(&t, fresh_keys(&t, SPARSE, nr));
    world_build(&t, UINT32_MAX, 1, REMIX_BUILD_AUTO);
    const uint32_t fresh_nr = (uint32_t)t.sst[t.nr - 1]->nr_records;
    const uint64_t pages = t.b.data_pages_read - t.sst[t.nr - 1]->nr_pages;
    print_message("step %u: %u new keys, %llu data pages of %llu, %llu keys read, %llu of %llu entries copied, %.2f in "
                  "a segment\n",
                  step + 1, fresh_nr, (unsigned long long)pages, (unsigned long long)data_pages(&t, t.nr - 1),
                  (unsigned long long)t.b.keys_read, (unsigned long long)t.b.entries_copied, (unsigned long long)before,
                  fill(t.x));
    assert_int_equal(t.b.way, REMIX_BUILD_SPLICE);
    assert_true(pages <= 3 * fresh_nr);
    assert_true(t.b.keys_read <= 8 * fresh_nr);
    assert_true(fill(t.x) >= 26);
  }
  check_view(&t);
  views_fini(&t);
  place_fini(&p);
}

// Where new keys come everywhere, a splice reads little more than all pages.
static void test_dense_data(void **state) {
  (void)state;
  struct place p;
  struct world t;
  place_init(&p, 0);
  views_init(&t, &p, CKB_NONE, 100, true);
  keys_random16(&t.k, MILLION / 10);
  for (uint32_t n = 4; n <= 256; n *= 4) {
    uint8_t *const has = calloc(t.k.nr, 1);
    for (uint32_t i = 0; i < t.k.nr; i++) has[i] = below(n) == 0;
    struct world u = {.p = &p, .k = t.k, .value = 100, .tags = true};
    world_spread(&u, 5, 0, has);
    const uint64_t all = data_pages(&u, 5);
    world_add(&u, has);
    world_build(&u, UINT32_MAX, 1, REMIX_BUILD_SPLICE);
    check_view(&u);
    const uint64_t pages = u.b.data_pages_read - u.sst[5]->nr_pages;
    print_message("one of %u new: %llu data pages of %llu\n", n, (unsigned long long)pages, (unsigned long long)all);
    assert_true(pages <= all + all / 16);
    u.k = (struct keyset){0};
    views_fini(&u);
  }
  views_fini(&t);
  place_fini(&p);
}

// Segments stay full when a few keys come anywhere, 50 times. When there are many runs the newest become one.
static void test_fill(void **state) {
  (void)state;
  for (uint32_t ckb = 0; ckb < 3; ckb++) {
    struct place p;
    struct world t;
    place_init(&p, 0);
    views_init(&t, &p, ckb, 30, true);
    keys_random16(&t.k, SLOW > 1 ? 40000 : 100000);
    // a third of the keys come later: each of the 50 steps brings one of 75
    uint8_t *const out = calloc(t.k.nr, 1);
    for (uint32_t i = 0; i < t.k.nr; i++) out[i] = below(3) == 0;
    world_spread(&t, 2, 0, out);
    free(out);
    double least = REMIX_SEG;
    uint64_t pages = 0, fresh = 0;
    for (uint32_t step = 0; step < 50; step++) {
      uint8_t *const has = calloc(t.k.nr, 1);
      uint32_t keep = UINT32_MAX;
      if (t.nr > 10) {
        for (uint32_t r = 2; r < t.nr; r++)
          for (uint32_t i = 0; i < t.k.nr; i++)
            if (t.has[r][i]) has[i] = HAS_PUT;
        while (t.nr > 2) world_drop(&t, t.nr - 1);
        keep = 3;
      }
      for (uint32_t i = 0; i < t.k.nr; i++)
        if (below(75) == 0) has[i] = HAS_PUT;
      world_add(&t, has);
      world_build(&t, keep, 1, REMIX_BUILD_SPLICE);
      if (step % 10 == 9) check_view(&t);
      if (fill(t.x) < least) least = fill(t.x);
      pages += t.b.data_pages_read;
      fresh += t.sst[t.nr - 1]->nr_records;
    }
    print_message(
        "50 steps: at least %.1f entries in a segment, %.1f at the end; %.2f data pages read for each new key\n", least,
        fill(t.x), (double)pages / fresh);
    assert_true(least >= 26);
    views_fini(&t);
    place_fini(&p);
  }
}

// Segments stay full when runs leave with their entries.
static void test_fill_leaving(void **state) {
  (void)state;
  struct place p;
  struct world t;
  place_init(&p, 0);
  views_init(&t, &p, CKB_ALL, 30, true);
  keys_random16(&t.k, 30000);
  world_spread(&t, 8, 0, NULL);
  while (t.nr > 1) {
    const uint32_t run = below(t.nr), keep = ~(1u << run);
    world_drop(&t, run);
    world_build(&t, keep, 0, REMIX_BUILD_SPLICE);
    check_view(&t);
    assert_true(fill(t.x) >= 27);
  }
  views_fini(&t);
  place_fini(&p);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_minor_random), cmocka_unit_test(test_minor_words), cmocka_unit_test(test_sparse),
      cmocka_unit_test(test_sparse_again), cmocka_unit_test(test_dense_data),  cmocka_unit_test(test_fill),
      cmocka_unit_test(test_fill_leaving),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
