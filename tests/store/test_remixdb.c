// SPDX-License-Identifier: Apache-2.0
//
// The public contract of the first calls: arguments, statuses, messages and limits of putting, getting and iterating
// forward. test_remixdb_calls.c has the other calls.
#include "tests/lib/check.h"

#include <pthread.h>
#include <strings.h>

#include "tests/lib/sample.h"

static void *fresh_thread(void *arg) {
  (void)arg;
  return remixdb_errcode() == REMIXDB_OK && remixdb_errmsg() && remixdb_errmsg()[0] == '\0' ? NULL : (void *)1;
}

static void test_words(void **state) {
  (void)state;
  CHECK(strcmp(remixdb_version(), REMIXDB_VERSION_STRING) == 0);
  unsigned major, minor, patch;
  CHECK(sscanf(remixdb_version(), "%u.%u.%u", &major, &minor, &patch) == 3);
  for (int s = 0; s <= REMIXDB_ABORTED; s++) {
    const char *const text = remixdb_strerror((enum remixdb_status)s);
    CHECK(text && text[0]);
    for (int t = 0; t < s; t++) CHECK(strcmp(text, remixdb_strerror((enum remixdb_status)t)) != 0);
  }
  CHECK(strcasecmp(remixdb_strerror(REMIXDB_IO), strerror(EIO)) != 0);  // it is every reason's status, not EIO's alone
  CHECK(remixdb_strerror((enum remixdb_status)12345) && remixdb_strerror((enum remixdb_status) - 1));
  // the status is each thread's own
  CHECK(!remixdb_open(NULL, 0, 0, true));
  FAILED(REMIXDB_INVALID, "dir");
  pthread_t t;
  void *bad;
  CHECK(pthread_create(&t, NULL, fresh_thread, NULL) == 0 && pthread_join(t, &bad) == 0 && !bad);
  FAILED(REMIXDB_INVALID, "dir");
}

static void test_flush_and_compact(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "flush");
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  struct xdb_ref *const r = sample_open(dir, &o, &x);
  GOOD(remixdb_flush(r));
  GOOD(remixdb_compact(r));
  GOOD(remixdb_put(r, "a", 1, "1", 1) && remixdb_put(r, "b", 1, "2", 1));
  GOOD(remixdb_flush(r));
  struct xdb_snapshot *const s = remixdb_snapshot(r);
  GOOD(s != NULL);
  struct xdb_ref *const old = remixdb_snapshot_ref(s);
  GOOD(old != NULL);
  GOOD(remixdb_put(r, "a", 1, "3", 1) && remixdb_del(r, "b", 1));
  GOOD(remixdb_compact(r));
  char *const json = remixdb_stats(x);
  CHECK(strstr(json, "\"table_entries\":1,\"table_keys\":1") != NULL);
  remixdb_free(json);
  uint8_t v;
  uint32_t len;
  GOOD(remixdb_get(r, "a", 1, &v, &len));
  CHECK(v == '3' && !remixdb_probe(r, "b", 1));
  // a snapshot keeps its content, and cannot be compacted
  GOOD(remixdb_get(old, "a", 1, &v, &len));
  CHECK(v == '1');
  GOOD(remixdb_probe(old, "b", 1));
  CHECK(!remixdb_flush(old));
  FAILED(REMIXDB_READONLY, "snapshot");
  CHECK(!remixdb_compact(old));
  FAILED(REMIXDB_READONLY, "snapshot");
  remixdb_unref(old);
  remixdb_snapshot_release(s);
  sample_close(x, r);
  remove_tree(dir);
}

// The call cannot be. It comes after one that has set the status to OK.
#define INVALID(call, part)                 \
  do {                                      \
    GOOD(remixdb_put(r, "good", 4, "", 0)); \
    CHECK(!(call));                         \
    FAILED(REMIXDB_INVALID, part);          \
  } while (0)

static void test_null_store(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  CHECK(!remixdb_open(NULL, 1, 1, true));
  FAILED(REMIXDB_INVALID, "dir");
  CHECK(!remixdb_open_compact(NULL, 1, 1));
  FAILED(REMIXDB_INVALID, "dir");
  CHECK(!remixdb_open_opts(NULL, &o));
  FAILED(REMIXDB_INVALID, "dir");
  CHECK(!remixdb_ref(NULL));
  FAILED(REMIXDB_INVALID, "xdb");
  CHECK(!remixdb_stats(NULL));
  FAILED(REMIXDB_INVALID, "xdb");
  // nothing to end, nothing to free: the status stays
  remixdb_iter_destroy(NULL);
  remixdb_unref(NULL);
  remixdb_close(NULL);
  remixdb_free(NULL);
  FAILED(REMIXDB_INVALID, "xdb");
}

static void test_null_arguments(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  struct xdb_ref *const r = sample_open(dir_of(dir, "null"), &o, &x);
  uint32_t len = 77;
  uint8_t buf[8] = {9};
  INVALID(remixdb_put(NULL, "k", 1, "v", 1), "ref");
  INVALID(remixdb_put(r, NULL, 1, "v", 1), "key");
  INVALID(remixdb_put(r, "k", 1, NULL, 1), "value");
  INVALID(remixdb_set(NULL, "k", 1, "v", 1), "ref");
  INVALID(remixdb_set(r, NULL, 1, "v", 1), "key");
  INVALID(remixdb_set(r, "k", 1, NULL, 1), "value");
  INVALID(remixdb_del(NULL, "k", 1), "ref");
  INVALID(remixdb_del(r, NULL, 1), "key");
  INVALID(remixdb_probe(NULL, "k", 1), "ref");
  INVALID(remixdb_probe(r, NULL, 1), "key");
  INVALID(remixdb_get(NULL, "k", 1, buf, &len), "ref");
  INVALID(remixdb_get(r, NULL, 1, buf, &len), "key");
  INVALID(remixdb_getn(NULL, "k", 1, buf, 8, &len), "ref");
  INVALID(remixdb_getn(r, NULL, 1, buf, 8, &len), "key");
  INVALID(remixdb_getn(r, "k", 1, NULL, 8, &len), "buf");
  INVALID(remixdb_sync(NULL), "ref");
  INVALID(remixdb_flush(NULL), "ref");
  INVALID(remixdb_compact(NULL), "ref");
  INVALID(remixdb_iter_create(NULL), "ref");
  INVALID(remixdb_iter_create_opts(NULL, NULL), "ref");
  INVALID((remixdb_iter_seek(NULL, "k", 1), remixdb_errcode() == REMIXDB_OK), "it");
  INVALID(remixdb_iter_valid(NULL), "it");
  INVALID(remixdb_iter_peek(NULL, buf, &len, buf, &len), "it");
  INVALID((remixdb_iter_skip1(NULL), remixdb_errcode() == REMIXDB_OK), "it");
  INVALID((remixdb_iter_skip(NULL, 3), remixdb_errcode() == REMIXDB_OK), "it");
  INVALID((remixdb_iter_park(NULL), remixdb_errcode() == REMIXDB_OK), "it");
  CHECK(remixdb_iter_status(NULL) == REMIXDB_INVALID);
  CHECK(len == 77 && buf[0] == 9);
  sample_close(x, r);
  remove_tree(dir);
}

// A seek that cannot be leaves the iterator on nothing, and it says why.
static void test_null_seek(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  struct xdb_ref *const r = sample_open(dir_of(dir, "null"), &o, &x);
  GOOD(remixdb_put(r, "good", 4, "", 0));
  struct xdb_iter *const it = remixdb_iter_create(r);
  GOOD(it != NULL);
  remixdb_iter_seek(it, NULL, 0);
  GOOD(remixdb_iter_valid(it));
  remixdb_iter_seek(it, NULL, 1);
  FAILED(REMIXDB_INVALID, "key");
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_INVALID);
  CHECK(!remixdb_iter_peek(it, NULL, NULL, NULL, NULL));
  FAILED(REMIXDB_INVALID, "key");
  remixdb_iter_skip1(it);
  FAILED(REMIXDB_INVALID, "key");
  remixdb_iter_seek(it, "", 0);
  GOOD(remixdb_iter_valid(it));
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
  sample_close(x, r);
  remove_tree(dir);
}

// NULL with a length of 0 is the empty string.
static void test_null_is_empty(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  struct xdb_ref *const r = sample_open(dir_of(dir, "null"), &o, &x);
  uint32_t len = 77;
  GOOD(remixdb_put(r, NULL, 0, NULL, 0));
  GOOD(remixdb_probe(r, NULL, 0));
  GOOD(remixdb_probe(r, "", 0));
  GOOD(remixdb_get(r, NULL, 0, NULL, &len));
  CHECK(len == 0);
  GOOD(remixdb_getn(r, NULL, 0, NULL, 0, NULL));
  GOOD(remixdb_del(r, NULL, 0));
  CHECK(!remixdb_probe(r, "", 0));
  FAILED(REMIXDB_NOTFOUND, NULL);
  sample_close(x, r);
  remove_tree(dir);
}

// ---- reading and writing

static void test_put_get(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "putget");
  struct xdb *const x = remixdb_open(dir, 1, 1, true);
  GOOD(x != NULL);
  struct xdb_ref *const r = remixdb_ref(x);
  char buf[16] = "unchanged";
  uint32_t len = 99;
  CHECK(!remixdb_get(r, "a", 1, buf, &len));
  FAILED(REMIXDB_NOTFOUND, NULL);
  CHECK(remixdb_errmsg()[0] == '\0' && strcmp(buf, "unchanged") == 0 && len == 99);
  CHECK(!remixdb_getn(r, "a", 1, buf, sizeof(buf), &len));
  FAILED(REMIXDB_NOTFOUND, NULL);
  CHECK(strcmp(buf, "unchanged") == 0 && len == 99);
  CHECK(!remixdb_probe(r, "a", 1));
  FAILED(REMIXDB_NOTFOUND, NULL);
  GOOD(remixdb_del(r, "a", 1));  // there or not

  GOOD(remixdb_put(r, "a", 1, "one", 3));
  GOOD(remixdb_set(r, "b", 1, "two", 3));
  GOOD(remixdb_probe(r, "a", 1));
  GOOD(remixdb_get(r, "a", 1, buf, &len));
  CHECK(len == 3 && memcmp(buf, "onehanged", 9) == 0);
  GOOD(remixdb_get(r, "b", 1, NULL, &len));
  GOOD(remixdb_get(r, "b", 1, buf, NULL));
  CHECK(memcmp(buf, "two", 3) == 0);
  GOOD(remixdb_get(r, "b", 1, NULL, NULL));
  GOOD(remixdb_put(r, "a", 1, "", 0));
  GOOD(remixdb_get(r, "a", 1, buf, &len));
  CHECK(len == 0 && memcmp(buf, "two", 3) == 0);
  GOOD(remixdb_del(r, "a", 1));
  CHECK(!remixdb_get(r, "a", 1, buf, &len));
  FAILED(REMIXDB_NOTFOUND, NULL);
  GOOD(remixdb_sync(r));

  // getn
  GOOD(remixdb_put(r, "n", 1, "0123456789", 10));
  memset(buf, '.', sizeof(buf));
  CHECK(!remixdb_getn(r, "n", 1, buf, 4, &len));
  FAILED(REMIXDB_TOOBIG, "10");
  CHECK(len == 10 && memcmp(buf, "0123....", 8) == 0);
  GOOD(remixdb_getn(r, "n", 1, buf, 10, &len));
  CHECK(len == 10 && memcmp(buf, "0123456789..", 12) == 0);
  len = 0;
  CHECK(!remixdb_getn(r, "n", 1, NULL, 0, &len));
  FAILED(REMIXDB_TOOBIG, "10");
  CHECK(len == 10);
  CHECK(!remixdb_getn(r, "n", 1, buf, 9, NULL));
  FAILED(REMIXDB_TOOBIG, "10");
  GOOD(remixdb_getn(r, "n", 1, buf, 11, NULL));

  // keys are told apart byte for byte
  static const char odd[][3] = {{0}, {0, 0}, {0, 1}, {1}, {(char)0xff}, {(char)0xff, 0}, {(char)0xff, (char)0xff}};
  static const uint32_t odd_len[] = {1, 2, 2, 1, 1, 2, 2};
  for (uint32_t i = 0; i < 7; i++) GOOD(remixdb_put(r, odd[i], odd_len[i], &i, sizeof(i)));
  for (uint32_t i = 0, v; i < 7; i++) {
    GOOD(remixdb_get(r, odd[i], odd_len[i], &v, &len));
    CHECK(len == 4 && v == i);
  }
  sample_close(x, r);
  remove_tree(dir);
}

static void test_lengths(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "lengths");
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  struct xdb_ref *r = sample_open(dir, &o, &x);
  uint8_t *const big = malloc(REMIXDB_KV_MAX + 1), *const out = malloc(REMIXDB_KV_MAX);
  CHECK(big && out);
  memset(big, 'x', REMIXDB_KV_MAX + 1);
  static const uint32_t lens[][2] = {
      {REMIXDB_KV_MAX + 1, 0}, {UINT32_MAX, 0}, {UINT32_MAX, 1}, {UINT32_MAX, UINT32_MAX}, {REMIXDB_KV_MAX + 1, 1}};
  for (uint32_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
    CHECK(!remixdb_put(r, big, lens[i][0], big, lens[i][1]));
    FAILED(REMIXDB_TOOBIG, "65500");
    CHECK(!remixdb_set(r, big, lens[i][0], big, lens[i][1]));
    FAILED(REMIXDB_TOOBIG, "65500");
    CHECK(!remixdb_del(r, big, lens[i][0]));
    FAILED(REMIXDB_TOOBIG, NULL);
    CHECK(!remixdb_probe(r, big, lens[i][0]));
    FAILED(REMIXDB_TOOBIG, NULL);
    CHECK(!remixdb_get(r, big, lens[i][0], NULL, NULL));
    FAILED(REMIXDB_TOOBIG, NULL);
    CHECK(!remixdb_getn(r, big, lens[i][0], out, 1, NULL));
    FAILED(REMIXDB_TOOBIG, NULL);
    struct xdb_iter *const it = remixdb_iter_create(r);
    remixdb_iter_seek(it, big, lens[i][0]);
    FAILED(REMIXDB_TOOBIG, NULL);
    CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_TOOBIG);
    remixdb_iter_destroy(it);
  }
  // the largest there may be, in the memtable, then in a table, then from the log
  static const uint32_t most[][2] = {{REMIXDB_KV_MAX, REMIXDB_KV_MAX},
                                     {REMIXDB_KV_MAX - 1, 1},
                                     {1, REMIXDB_KV_MAX},
                                     {0, REMIXDB_KV_MAX},
                                     {32750, 32751}};
  for (int round = 0; round < 3; round++) {
    for (uint32_t i = 0; i < 5; i++) {
      if (round == 0) GOOD(remixdb_put(r, big, most[i][0], big, most[i][1]));
      uint32_t len = 0;
      GOOD(remixdb_get(r, big, most[i][0], out, &len));
      CHECK(len == most[i][1] && memcmp(out, big, len) == 0);
    }
    for (uint32_t i = 0; i < 40 && round == 0; i++) {
      char key[8];
      GOOD(remixdb_put(r, key, (uint32_t)snprintf(key, sizeof(key), "%u", i), big, 60000));
    }
    sample_close(x, r);
    r = sample_open(dir, &o, &x);
  }
  sample_close(x, r);
  free(big);
  free(out);
  remove_tree(dir);
}

// An iterator that was never put anywhere, or is parked, or has nothing to stand on.
static void iterate_over_nothing(struct xdb_iter *it) {
  char key[16], val[16];
  uint32_t klen = 99, vlen = 99;
  // not positioned
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  CHECK(!remixdb_iter_peek(it, key, &klen, val, &vlen));
  FAILED(REMIXDB_NOTFOUND, NULL);
  CHECK(klen == 99 && vlen == 99);
  remixdb_iter_skip1(it);
  remixdb_iter_skip(it, 5);
  remixdb_iter_park(it);
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  // an empty store
  remixdb_iter_seek(it, NULL, 0);
  GOOD(!remixdb_iter_valid(it));
  remixdb_iter_seek(it, "x", 1);
  GOOD(!remixdb_iter_valid(it));
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
}

// Every second letter is there; all are met in order, and after the last one nothing.
static void iterate_over_all(struct xdb_iter *it) {
  char key[16], val[16];
  uint32_t klen, vlen;
  CHECK(!remixdb_iter_valid(it));  // it shows the store at its last seek
  remixdb_iter_seek(it, NULL, 0);
  GOOD(remixdb_iter_valid(it));
  for (char c = 'b'; c <= 'z'; c += 2) {
    CHECK(remixdb_iter_valid(it));
    GOOD(remixdb_iter_peek(it, key, &klen, val, &vlen));
    CHECK(klen == 1 && key[0] == c && vlen == 1 && val[0] == c);
    klen = vlen = 99;
    GOOD(remixdb_iter_peek(it, NULL, &klen, NULL, &vlen));
    CHECK(klen == 1 && vlen == 1);
    GOOD(remixdb_iter_peek(it, key, NULL, val, NULL));
    GOOD(remixdb_iter_peek(it, NULL, NULL, NULL, NULL));
    remixdb_iter_skip1(it);
    CHECK(remixdb_errcode() == REMIXDB_OK);
  }
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  CHECK(!remixdb_iter_peek(it, key, &klen, val, &vlen));
  FAILED(REMIXDB_NOTFOUND, NULL);
  remixdb_iter_skip1(it);
  CHECK(remixdb_errcode() == REMIXDB_OK && !remixdb_iter_valid(it));
}

// The iterator stands on this letter.
static void check_at(struct xdb_iter *it, char letter) {
  char key[16];
  GOOD(remixdb_iter_peek(it, key, NULL, NULL, NULL));
  CHECK(key[0] == letter);
}

// Seeks between keys, skips, past the end.
static void seek_and_skip(struct xdb_iter *it) {
  remixdb_iter_seek(it, "c", 1);
  check_at(it, 'd');
  remixdb_iter_skip(it, 0);
  check_at(it, 'd');
  remixdb_iter_skip(it, 3);
  check_at(it, 'j');
  remixdb_iter_seek(it, "c", 1);
  remixdb_iter_skip(it, 1);
  check_at(it, 'f');
  remixdb_iter_seek(it, "j", 1);
  check_at(it, 'j');
  remixdb_iter_skip(it, UINT32_MAX);
  CHECK(!remixdb_iter_valid(it));
  remixdb_iter_seek(it, "zz", 2);
  CHECK(!remixdb_iter_valid(it));
}

static void test_iterator(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  struct xdb_ref *const r = sample_open(dir_of(dir, "iter"), &o, &x);
  struct xdb_iter *const it = remixdb_iter_create(r);
  GOOD(it != NULL);
  iterate_over_nothing(it);
  for (char c = 'b'; c <= 'z'; c += 2) GOOD(remixdb_put(r, &c, 1, &c, 1));
  iterate_over_all(it);
  seek_and_skip(it);
  // parked: nothing before the next seek
  remixdb_iter_seek(it, "d", 1);
  remixdb_iter_park(it);
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_skip1(it);
  CHECK(!remixdb_iter_valid(it));
  remixdb_iter_park(it);
  GOOD(remixdb_del(r, "d", 1));
  remixdb_iter_seek(it, "d", 1);
  check_at(it, 'f');
  remixdb_iter_destroy(it);
  sample_close(x, r);
  remove_tree(dir);
}

// ---- options of an iterator

// Bounds longer than a key, and a snapshot of another store.
static void options_refused(struct xdb_ref *r, struct xdb_snapshot *other) {
  struct remixdb_iter_opts o;
  static uint8_t bytes[REMIXDB_KV_MAX + 1];
  const struct remixdb_slice key = {bytes, sizeof(bytes)};
  for (uint32_t i = 0; i < 4; i++) {
    remixdb_iter_opts_init(&o, sizeof(o));
    if (i == 0) o.bounds.from = key;
    if (i == 1) o.bounds.to = key;
    if (i == 2) o.prefix = key;
    if (i == 3) o.snapshot = other;
    CHECK(!remixdb_iter_create_opts(r, &o));
    if (i < 3) FAILED(REMIXDB_TOOBIG, "too long");
    else FAILED(REMIXDB_INVALID, "another store");
  }
}

// The iterator works.
static void iterator_sees(struct xdb_iter *it, char key) {
  GOOD(it != NULL);
  remixdb_iter_seek(it, NULL, 0);
  check_at(it, key);
  remixdb_iter_destroy(it);
}

// Structs of programs that were built with another version's header.
static void options_of_other_sizes(struct xdb_ref *r) {
  struct remixdb_iter_opts o;
  struct {
    struct remixdb_iter_opts o;
    uint8_t more[64];
  } big;
  memset(&big, 0xA5, sizeof(big));
  remixdb_iter_opts_init(&big.o, sizeof(big));
  CHECK(big.o.size == sizeof(big) && big.o.expect == 0 && !big.o.hold && !big.o.snapshot);
  for (size_t i = 0; i < sizeof(big.more); i++) CHECK(big.more[i] == 0);
  big.o.expect = 7;
  iterator_sees(remixdb_iter_create_opts(r, &big.o), 'b');
  big.o.hold = true;
  iterator_sees(remixdb_iter_create_opts(r, &big.o), 'b');
  // a smaller one: nothing behind its end is touched or read
  const size_t small = offsetof(struct remixdb_iter_opts, expect);
  memset(&o, 0xA5, sizeof(o));
  remixdb_iter_opts_init(&o, small);
  CHECK(o.size == small && !o.keys_only && !o.prefix.ptr && !o.bounds.to.ptr);
  for (size_t i = small; i < sizeof(o); i++) CHECK(((uint8_t *)&o)[i] == 0xA5);
  void *const old = malloc(small);  // its end is the end of the allocation
  CHECK(old);
  remixdb_iter_opts_init(old, small);
  iterator_sees(remixdb_iter_create_opts(r, old), 'b');
  free(old);
  for (size_t size = 0; size < sizeof(o.size); size += sizeof(o.size) - 1) {
    remixdb_iter_opts_init(&o, sizeof(o));
    o.size = size;
    CHECK(!remixdb_iter_create_opts(r, &o));
    FAILED(REMIXDB_INVALID, "remixdb_iter_opts_init");
    memset(&o, 0xA5, sizeof(o));
    remixdb_iter_opts_init(&o, size);  // has no room even for the size
    for (size_t i = 0; i < sizeof(o); i++) CHECK(((uint8_t *)&o)[i] == 0xA5);
  }
  remixdb_iter_opts_init(NULL, sizeof(o));
}

static void test_iterator_options(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  struct xdb_ref *const r = sample_open(dir_of(dir, "iter-opts"), &o, &x);
  GOOD(remixdb_put(r, "b", 1, "b", 1));
  struct xdb_snapshot *const snap = remixdb_snapshot(r);
  GOOD(remixdb_put(r, "a", 1, "a", 1) && remixdb_flush(r));
  struct xdb_ref *const of_snap = remixdb_snapshot_ref(snap);
  GOOD(of_snap != NULL);
  char other_dir[PATH_SIZE];
  struct xdb *y;
  struct xdb_ref *const other = sample_open(dir_of(other_dir, "iter-opts-other"), &o, &y);
  struct xdb_snapshot *const foreign = remixdb_snapshot(other);
  options_refused(r, foreign);
  remixdb_snapshot_release(foreign);
  sample_close(y, other);
  remove_tree(other_dir);
  options_of_other_sizes(of_snap);
  static const uint32_t expects[] = {0, 1, 7, UINT32_MAX};
  for (uint32_t i = 0; i < 4; i++) {
    struct remixdb_iter_opts mine;
    remixdb_iter_opts_init(&mine, sizeof(mine));
    mine.expect = expects[i];
    struct xdb_iter *const it = remixdb_iter_create_opts(r, &mine);
    memset(&mine, 0xA5, sizeof(mine));  // the call has copied it
    iterator_sees(it, 'a');
    iterator_sees(remixdb_iter_create_opts(i % 2 ? r : of_snap, NULL), i % 2 ? 'a' : 'b');
  }
  remixdb_snapshot_release(snap);  // it goes with the ref
  iterator_sees(remixdb_iter_create(of_snap), 'b');
  remixdb_unref(of_snap);
  sample_close(x, r);
  remove_tree(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_words),      cmocka_unit_test(test_flush_and_compact),
      cmocka_unit_test(test_null_store), cmocka_unit_test(test_null_arguments),
      cmocka_unit_test(test_null_seek),  cmocka_unit_test(test_null_is_empty),
      cmocka_unit_test(test_put_get),    cmocka_unit_test(test_lengths),
      cmocka_unit_test(test_iterator),   cmocka_unit_test(test_iterator_options),
  };
  return cmocka_run_group_tests_name("remixdb", tests, base_setup, base_teardown);
}
