// SPDX-License-Identifier: Apache-2.0
//
// Large sizes of values: places beyond 4 GiB in a file; a store whose accounts state 100 GiB, of values that were never
// written; and, if VALUE_LONG is set, a value of 1 GiB (`make soak-long`).
#include "tests/lib/store.h"

#include <sys/mman.h>

#include "store/collect.h"
#include "store/value_pace.h"
#include "store/values.h"
#include "xdb.h"

#define GIB ((uint64_t)1 << 30)

static struct xdb *x;
static struct xdb_ref *r;
static uint64_t rng;

#define GOOD(call) CHECK_SAYS((call), "%s: %s", remixdb_strerror(remixdb_errcode()), remixdb_errmsg())

static uint64_t figure(const char *name) {
  uint64_t n;
  GOOD(remixdb_figure(x, name, &n));
  return n;
}

static void open_it(int workers) {
  struct remixdb_opts o = small_opts(workers);
  x = quick_open(&o);
  GOOD((r = remixdb_ref(x)) != NULL);
}

static void close_it(void) {
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

// The active file ends at `at` now; what is before is a hole.
static struct value_file *skip_to(struct value_log *l, uint64_t at) {
  struct value_file *const f = l->active;
  CHECK(f && value_file_size(f) <= at);
  value_file_set_size(f, at);
  return f;
}

// ---- places beyond 4 GiB

static void test_places(void **state) {
  (void)state;
  static const uint64_t places[] = {4 * GIB - 8, 4 * GIB + 200000, 5 * GIB + 8, 200 * GIB};
  enum { LEN = 100000, NR = sizeof(places) / sizeof(places[0]) };
  static uint8_t val[NR + 1][LEN], got[LEN];
  open_it(0);
  x->values.full = 1024 * GIB;
  value_log_size(&x->values, 1024 * GIB);
  for (uint32_t i = 0; i <= NR; i++)
    for (uint32_t at = 0; at + 8 <= LEN; at += 8) store64le(val[i] + at, rng_next(&rng));
  GOOD(remixdb_put(r, "key-4", 5, val[NR], LEN));
  for (uint32_t i = 0; i < NR; i++) {
    char k[8];
    const struct value_file *const f = skip_to(&x->values, places[i]);
    GOOD(remixdb_put(r, k, (uint32_t)snprintf(k, sizeof(k), "key-%u", i), val[i], LEN));
    CHECK(value_file_size(f) > places[i] + LEN && value_file_size(f) < places[i] + LEN + 200);
  }
  CHECK(figure("values.room") > 200 * GIB);
  for (uint32_t round = 0; round < 3; round++) {  // from the memtable, from a table, and after a replay of the log
    for (uint32_t i = 0; i <= NR; i++) {
      char k[8];
      uint32_t n, len;
      const uint32_t klen = (uint32_t)snprintf(k, sizeof(k), "key-%u", i);
      GOOD(remixdb_get(r, k, klen, got, &len));
      CHECK(len == LEN && memcmp(got, val[i], LEN) == 0);
      GOOD(remixdb_get_part(r, k, klen, LEN - 1000, got, LEN, &n, &len));
      CHECK(n == 1000 && len == LEN && memcmp(got, val[i] + LEN - 1000, n) == 0);
    }
    GOOD(remixdb_verify(r));
    if (round == 1) GOOD(remixdb_flush(r));
    if (round != 0) continue;
    close_it();
    open_it(0);
  }
  close_it();
}

// ---- accounts of 100 GiB

#define LEN_MOST 0xfffffff0u
#define NR 32u  // values: 128 GiB

// Puts a record that refers to a value which is not there.
static void plant(uint32_t i) {
  char k[16];
  uint8_t bytes[VALUE_REF];
  struct value_file *const f = x->values.active;
  const struct value_ref ref = {f->number, value_file_size(f), LEN_MOST, i};
  value_ref_put(bytes, &ref);
  value_file_set_size(f, align_up(ref.at + LEN_MOST, VALUE_ALIGN));
  atomic_fetch_add(&f->value_bytes, LEN_MOST);
  const struct kv_rec rec = {.key = (const uint8_t *)k,
                             .klen = (uint32_t)snprintf(k, sizeof(k), "planted-%03u", i),
                             .val = bytes,
                             .vlen = VALUE_REF,
                             .kind = KV_APART};
  CHECK(xdb_put(r, &rec) == REMIXDB_OK);
}

// Deletes such records.
static void uproot(uint32_t from, uint32_t to) {
  for (uint32_t i = from; i < to; i++) {
    char k[16];
    GOOD(remixdb_del(r, k, (uint32_t)snprintf(k, sizeof(k), "planted-%03u", i)));
  }
}

static void test_accounts(void **state) {
  (void)state;
  static uint8_t val[20000];
  const uint64_t all = (uint64_t)NR * LEN_MOST;
  open_it(0);
  x->values.full = 1024 * GIB;
  x->values_least = 1024 * GIB;  // one memtable takes all
  value_pace_init(x);
  GOOD(remixdb_put(r, "first", 5, val, sizeof(val)));
  for (uint32_t i = 0; i < NR; i++) plant(i);
  CHECK(atomic_load(&xdb_super(x)->active->apart_bytes) == all + sizeof(val));
  GOOD(remixdb_flush(r));
  x->values_least = VALUES_PER_MIN;
  CHECK(figure("values.value_bytes") == all + sizeof(val));
  CHECK(figure("values.file_bytes") > all && figure("values.room") == figure("values.file_bytes"));
  CHECK(figure("values.garbage_bytes") == 0);
  uint64_t keys, bytes;
  const struct remixdb_range range = {0};
  GOOD(remixdb_count(r, &range, &keys, &bytes));
  CHECK(keys == NR + 1);
  CHECK(bytes > all && bytes < all + 100000);
  // A round that writes nothing sets what the files may have: 21/16 of it, and two memtables.
  GOOD(remixdb_put(r, "second", 6, "x", 1));
  GOOD(remixdb_flush(r));
  const uint64_t allowed = atomic_load(&x->collect.allowed), room = figure("values.room");
  CHECK_SAYS(allowed >= room / 16 * 21 && allowed <= room / 16 * 21 + 2 * values_most(x) + 4096, "%llu for %llu",
             (unsigned long long)allowed, (unsigned long long)room);
  CHECK(value_log_file(&x->values) == room / 16 && value_pace_over(x) == 0 && !value_pace_far(x));
  CHECK(figure("values.collections") == 0);
  // Three quarters go: the file is closed and chosen, and its garbage is counted.
  uproot(0, NR / 4 * 3);
  GOOD(remixdb_flush(r));
  for (uint32_t i = 0; i < 4 && figure("values.garbage_bytes") == 0; i++) {
    GOOD(remixdb_put(r, "second", 6, "y", 1));
    GOOD(remixdb_flush(r));
  }
  const uint64_t garbage = figure("values.garbage_bytes");
  CHECK_SAYS(garbage > all / 100 * 72 && garbage < all / 100 * 77, "%llu of %llu", (unsigned long long)garbage,
             (unsigned long long)all);
  CHECK(value_pace_over(x) > all / 2 && value_pace_far(x));
  // The rest goes, too: a file whose live values are not found is not collected.
  uproot(NR / 4 * 3, NR);
  GOOD(remixdb_compact(r));
  CHECK(figure("values.collections") == 1 && figure("values.collected_files") == 1);
  // The planted values are not there to be copied; the first value is.
  CHECK_SAYS(figure("values.freed_bytes") == all, "%llu", (unsigned long long)figure("values.freed_bytes"));
  CHECK(figure("values.moved_bytes") == sizeof(val) && figure("values.room") < 100000);
  uint32_t len;
  GOOD(remixdb_get(r, "first", 5, val, &len));
  CHECK(len == sizeof(val));
  close_it();
}

// ---- one value of 1 GiB

static uint64_t status_kib(const char *name) {
  char line[256];
  uint64_t kib = 0;
  FILE *const f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof(line), f))
    if (strncmp(line, name, strlen(name)) == 0) kib = strtoull(line + strlen(name) + 1, NULL, 10);
  if (f) (void)fclose(f);
  return kib;
}

// The most memory so far, in KiB, less what the source of the value has mapped.
static uint64_t most_kib(void) { return status_kib("VmHWM:") - status_kib("RssFile:") - status_kib("RssShmem:"); }

// A GiB of memory, made of one MiB: read only, so that it counts as shared memory.
static uint8_t *repeated(size_t len, uint8_t *once, size_t n) {
  char path[2 * TEMP_DIR + 16];
  (void)snprintf(path, sizeof(path), "%s-source", dir);
  FILE *const f = fopen(path, "w+b");
  CHECK(f && fwrite(once, 1, n, f) == n && fflush(f) == 0);
  uint8_t *const p = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(p != MAP_FAILED);
  for (size_t at = 0; at < len; at += n)
    CHECK(mmap(p + at, n, PROT_READ, MAP_SHARED | MAP_FIXED, fileno(f), 0) == p + at);
  (void)fclose(f);
  (void)unlink(path);
  return p;
}

static void read_pieces(const uint8_t *val, uint32_t len) {
  static uint8_t piece[64u << 10];
  for (uint32_t at = 0; at < len; at += sizeof(piece)) {
    uint32_t n, all;
    GOOD(remixdb_get_part(r, "film", 4, at, piece, sizeof(piece), &n, &all));
    CHECK(n == (len - at < sizeof(piece) ? len - at : sizeof(piece)) && all == len && memcmp(piece, val + at, n) == 0);
  }
}

static void test_one_gib(void **state) {
  (void)state;
  if (!getenv("VALUE_LONG")) skip();
  static uint8_t once[1u << 20];
  const uint32_t len = (uint32_t)GIB - 4093;
  for (uint32_t at = 0; at < sizeof(once); at += 8) store64le(once + at, rng_next(&rng));
  uint8_t *const val = repeated(GIB, once, sizeof(once));
  open_it(1);
  GOOD(remixdb_put(r, "film", 4, val, len));
  GOOD(remixdb_sync(r));
  const uint64_t value_bytes = figure("values.written_bytes"), log_bytes = figure("log.written_bytes");
  CHECK(value_bytes < len + len / 1000 && log_bytes < 100000);
  const uint64_t put_kib = most_kib();
  read_pieces(val, len);
  close_it();
  open_it(1);
  read_pieces(val, len);
  GOOD(remixdb_flush(r));
  GOOD(remixdb_verify(r));
  char copy[2 * TEMP_DIR + 16];
  (void)snprintf(copy, sizeof(copy), "%s/copy", dir);
  GOOD(remixdb_checkpoint(r, copy));
  CHECK(figure("values.written_bytes") == 0);
  GOOD(remixdb_del(r, "film", 4));
  GOOD(remixdb_compact(r));
  OK(xdb_wait_idle(x));
  CHECK(figure("values.room") == 0);
  close_it();
  struct remixdb_opts o = small_opts(0);
  GOOD((x = remixdb_open_opts(copy, &o)) != NULL);
  r = remixdb_ref(x);
  read_pieces(val, len);
  close_it();
  const uint64_t kib = most_kib();
  print_message("a value of 1 GiB: %llu bytes to value files, %llu to the log; %llu KiB of memory besides the value to "
                "put it, %llu KiB at most\n",
                (unsigned long long)value_bytes, (unsigned long long)log_bytes, (unsigned long long)put_kib,
                (unsigned long long)kib);
  CHECK(kib < 64u << 10);
  (void)munmap(val, GIB);
}

static int sizes_setup(void **state) {
  rng = check_seed;
  return setup(state);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_places, sizes_setup, teardown),
      cmocka_unit_test_setup_teardown(test_accounts, sizes_setup, teardown),
      cmocka_unit_test_setup_teardown(test_one_gib, sizes_setup, teardown),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
