// SPDX-License-Identifier: Apache-2.0
//
// The figures of remixdb_stats: JSON, and counts that follow from the calls.
#include "tests/lib/check.h"
#include "tests/lib/sample.h"

#include "blkio.h"

// ---- the form

// A check of JSON's grammar (RFC 8259); returns where the value ends, NULL when it is none.
static const char *json_value(const char *p);

static const char *json_space(const char *p) { return p + strspn(p, " \t\r\n"); }

static const char *json_string(const char *p) {
  if (*p++ != '"') return NULL;
  for (; *p != '"'; p++) {
    if ((unsigned char)*p < 0x20) return NULL;
    if (*p == '\\' && !strchr("\"\\/bfnrtu", *++p)) return NULL;
  }
  return p + 1;
}

static const char *json_number(const char *p) {
  p += *p == '-';
  const size_t n = strspn(p, "0123456789");
  if (n == 0 || (n > 1 && *p == '0')) return NULL;
  p += n;
  if (*p == '.') {
    const size_t frac = strspn(p + 1, "0123456789");
    if (frac == 0) return NULL;
    p += 1 + frac;
  }
  return p;
}

static const char *json_list(const char *p, char end, bool members) {
  p = json_space(p + 1);
  if (*p == end) return p + 1;
  for (;;) {
    if (members) {
      p = json_string(p);
      if (!p || *(p = json_space(p)) != ':') return NULL;
      p = json_space(p + 1);
    }
    p = json_value(p);
    if (!p) return NULL;
    p = json_space(p);
    if (*p == end) return p + 1;
    if (*p != ',') return NULL;
    p = json_space(p + 1);
  }
}

static const char *json_value(const char *p) {
  if (*p == '{') return json_list(p, '}', true);
  if (*p == '[') return json_list(p, ']', false);
  if (*p == '"') return json_string(p);
  static const char *const words[] = {"true", "false", "null"};
  for (uint32_t i = 0; i < 3; i++)
    if (strncmp(p, words[i], strlen(words[i])) == 0) return p + strlen(words[i]);
  return json_number(p);
}

static _Atomic uint32_t log_lines;

static void count_line(void *priv, const char *line) {
  CHECK(priv == &log_lines && line && line[0] && !strchr(line, '\n'));
  (void)atomic_fetch_add(&log_lines, 1);
}

static void test_stats(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "stats");
  struct remixdb_opts o = small_opts(0);
  o.logger = count_line;
  o.logger_priv = &log_lines;
  for (int i = 0; i < 4; i++) {
    o.workers = i % 2;
    o.cache_mb = i / 2;
    struct xdb *x;
    struct xdb_ref *const r = sample_open(dir, &o, &x);
    for (uint32_t k = 0; k < 3000; k++) sample_put(r, k);
    struct xdb_iter *const it = remixdb_iter_create(r);
    char *const json = remixdb_stats(x);
    GOOD(json != NULL);
    const char *const end = json_value(json_space(json));
    CHECK(end && *json_space(end) == '\0');
    CHECK(strstr(json, "\"refs\":1,") && strstr(json, "\"iterators\":1,"));
    remixdb_free(json);
    remixdb_iter_destroy(it);
    sample_close(x, r);
  }
  CHECK(atomic_load(&log_lines) >= 4);
  remove_tree(dir);
}

// ---- counts

#define KEYS 3000u

static void counted_get(struct xdb_ref *r, uint32_t i) {
  char key[16];
  (void)snprintf(key, sizeof(key), "%08u", i);
  GOOD(remixdb_get(r, key, 8, NULL, NULL));
}

// A store of KEYS records, all in tables.
static struct xdb_ref *counted_open(char *dir, const char *name, size_t cache_mb, uint32_t vlen, struct xdb **x_out) {
  char key[16], val[1000];
  memset(val, 'v', sizeof(val));
  struct xdb *const x = *x_out = remixdb_open(dir_of(dir, name), cache_mb, 16, true);
  GOOD(x != NULL);
  struct xdb_ref *const r = remixdb_ref(x);
  for (uint32_t i = 0; i < KEYS; i++) {
    (void)snprintf(key, sizeof(key), "%08u", i);
    GOOD(remixdb_put(r, key, 8, val, vlen));
  }
  GOOD(remixdb_flush(r));
  return r;
}

static void counted_close(const char *dir, struct xdb_ref *r, struct xdb *x) {
  sample_close(x, r);
  remove_tree(dir);
}

// Without room in the cache a get reads one piece of a block, the next get beyond that piece reads the rest of it, and
// later gets read nothing.
static void test_get_neighbours(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  struct xdb *x;
  struct xdb_ref *const r = counted_open(dir, "neighbours", 0, 100, &x);
  const uint64_t reads = stat_of(x, "reads");
  for (uint32_t i = 0; i < KEYS; i++) counted_get(r, i);
  const uint64_t blocks = stat_of(x, "reads") - reads;
  CHECK(blocks >= KEYS / 40 && blocks <= 2 * KEYS / 30);  // blocks take 4 KiB, and records 108 bytes
  CHECK(stat_of(x, "declined") == 0);                     // without a cache there is none to decline
  counted_close(dir, r, x);
}

// A full cache declines a block that is read once, and the figures say so.
static void test_declined(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  struct xdb *x;
  atomic_store(&blkio_test_cold, 1);  // where all is slow, loads may look like the disk's
  struct xdb_ref *const r = counted_open(dir, "declined", 1, 1000, &x);
  atomic_store(&blkio_test_cold, 0);
  for (uint32_t i = 0; i < KEYS; i += 4) counted_get(r, i);  // a block holds four, or three
  CHECK(stat_of(x, "bypasses") == 0 && stat_of(x, "declined") > 0);
  counted_close(dir, r, x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_stats),
      cmocka_unit_test(test_get_neighbours),
      cmocka_unit_test(test_declined),
  };
  return cmocka_run_group_tests_name("stats", tests, base_setup, base_teardown);
}
