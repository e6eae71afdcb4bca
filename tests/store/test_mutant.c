// SPDX-License-Identifier: Apache-2.0
//
// A REMIX with a changed byte and a right checksum: it is refused when it is opened, or found by verify, or it makes no
// difference to what is read. MUTANTS=N makes so many.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "admin/verify.h"
#include "remix/format.h"

#define KEYS 300u

static struct remixdb_opts opts;

// Keys with long and short parts in common, and some that begin others.
static uint32_t key_of(uint32_t i, char *buf) {
  static const char *const middles[] = {"", "a", "aa", "abc", "zzzzzzzzzzzzzzzzzzzz", "\x01\x02", "\xf0\xf7"};
  return (uint32_t)snprintf(buf, 64, "%s%s%03u", i % 3 ? "k" : "key/", middles[i % 7], i * 7 % 1000);
}

static struct simdisk *make_store(uint64_t *number_out, uint8_t **image_out, uint64_t *len_out, uint64_t *segs_out) {
  struct simdisk *const d = simdisk_create();
  struct xdb *x;
  struct xdb_ref *r;
  char key[64];
  opts = small_opts(0);
  OK(xdb_open("/m", &opts, simdisk_env(d), &x));
  OK(xdb_ref(x, &r));
  for (uint32_t round = 0; round < 3; round++) {
    for (uint32_t i = round; i < KEYS; i += 1 + round)
      OK(xdb_put(r, kref(key, key_of(i, key)), &round, 4, round == 2 && i % 5 == 0));
    OK(xdb_flush(x));
  }
  const struct remix *const m = atomic_load(&x->super)->version->parts[0]->remix;
  *number_out = m->number;
  *len_out = m->image_size;
  *segs_out = remix_segs_off(m->nr_runs);
  *image_out = malloc(m->image_size);
  assert_non_null(*image_out);
  memcpy(*image_out, m->image, m->image_size);
  xdb_unref(r);
  OK(xdb_close(x));
  return d;
}

// Whether get, seek and scan are of one opinion.
static void check_reads(struct xdb_ref *r, const char *what) {
  struct xdb_iter *it;
  struct kv_rec rec;
  char key[64];
  bool there[KEYS] = {false};
  OK(xdb_iter_create(r, &it));
  OK(xdb_iter_seek(it, kref("", 0)));
  while (xdb_iter_record(it, &rec) == REMIXDB_OK) {
    for (uint32_t i = 0; i < KEYS; i++)
      if (kv_eq(kref(rec.key, rec.klen), kref(key, key_of(i, key)))) there[i] = true;
    OK(xdb_iter_skip(it, 1));
  }
  for (uint32_t i = 0; i < KEYS; i++) {
    const struct kref k = kref(key, key_of(i, key));
    if ((xdb_get(r, k, NULL, 0, NULL) == REMIXDB_OK) != there[i])
      fail_msg("%s: get and scan differ about key %u", what, i);
    OK(xdb_iter_seek(it, k));
    const bool found = xdb_iter_record(it, &rec) == REMIXDB_OK && kv_eq(kref(rec.key, rec.klen), k);
    if (found != there[i]) fail_msg("%s: seek and scan differ about key %u", what, i);
  }
  xdb_iter_destroy(it);
}

static void test_mutants(void **state) {
  (void)state;
  const char *const n = getenv("MUTANTS");
  const uint32_t nr = n && *n ? (uint32_t)strtoul(n, NULL, 10) : 600;
  uint64_t number, len, segs, rng = seed_from(1);
  uint8_t *image;
  struct simdisk *const d = make_store(&number, &image, &len, &segs);
  struct env *const e = simdisk_env(d);
  char name[32], path[64], what[100];
  uint32_t refused = 0, seen = 0, same = 0;
  remix_name(name, number);
  (void)snprintf(path, sizeof(path), "/m/%s", name);
  uint8_t *const file = malloc(len);
  assert_non_null(file);
  for (uint32_t i = 0; i < nr; i++) {
    memcpy(file, image, len);
    store32le(file + 8, 1);  // the image as it is
    const uint64_t from = i % 8 ? segs : 0, at = from + rng_next(&rng) % (len - 8 - from);
    const uint8_t was = file[at];
    if (i % 2) file[at] ^= (uint8_t)(1u << rng_next(&rng) % 8);
    else file[at] = (uint8_t)(was + 1 + rng_next(&rng) % 254);
    if (at >= 8 && at < 12) store32le(file + 8, 1);
    store64le(file + len - 8, hash64_seed(file, len - 8, number));
    (void)snprintf(what, sizeof(what), "TEST_SEED=%llu mutant %u, byte %llu, %02x to %02x",
                   (unsigned long long)seed_from(1), i, (unsigned long long)at, was, file[at]);
    int fd;
    OK(env_open(ENV_PATHS(e), path, ENV_WRITE | ENV_CREATE | ENV_TRUNC, &fd));
    OK(env_write(e, fd, path, file, len, 0));
    OK(env_sync_all(e, fd, path));
    OK(env_close(e, fd, path));
    struct remixdb_opts o = opts;
    o.read_only = true;
    struct xdb *x;
    struct xdb_ref *r;
    if (xdb_open("/m", &o, e, &x) != REMIXDB_OK) {
      refused++;
      continue;
    }
    OK(xdb_ref(x, &r));
    struct verify_report report;
    if (verify_store(r, &report) == REMIXDB_OK) {
      check_reads(r, what);
      same++;
    } else {
      seen++;
    }
    xdb_unref(r);
    OK(xdb_close(x));
  }
  print_message("%u mutants: %u refused, %u seen by verify, %u that read the same\n", nr, refused, seen, same);
  CHECK(refused > nr / 20 && seen > nr / 20);
  free(file);
  free(image);
  simdisk_destroy(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_mutants)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
