// SPDX-License-Identifier: Apache-2.0
//
// The public contract of what goes beyond putting, getting and iterating forward: merges, batches, many gets as one, iterators backward and without copying,
// snapshots, checkpoints and their like. Arguments, statuses, messages, and what a refused call leaves as it was.
#include "tests/lib/contract.h"
#include "tests/lib/store.h"

static struct xdb *x;
static struct xdb_ref *r;

static int open_one(void **state) {
  if (setup(state) != 0) return -1;
  const struct remixdb_opts o = small_opts(0);
  x = remixdb_open_opts(dir, &o);
  r = remixdb_ref(x);
  return r ? 0 : -1;
}

static int close_one(void **state) {
  remixdb_unref(r);
  remixdb_close(x);
  return remixdb_errcode() == REMIXDB_OK ? teardown(state) : -1;
}

// Calls that cannot be: each comes after one that has set the status to OK.
#define REFUSED(call, status, part)         \
  do {                                      \
    GOOD(remixdb_put(r, "good", 4, "", 0)); \
    CHECK(!(call));                         \
    FAILED(status, part);                   \
  } while (0)
#define INVALID(call, part) REFUSED(call, REMIXDB_INVALID, part)
// Of a call that gives nothing back.
#define NOTHING(call) ((call), remixdb_errcode() == REMIXDB_OK)

static enum remixdb_merge_op keep(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  (void)v0, (void)v0len, (void)v1, (void)v1len;
  if (priv) *(uint32_t *)priv += 1;
  return REMIXDB_MERGE_KEEP;
}

static void decide_to_keep(struct remixdb_decision *d) { *(uint32_t *)d->priv += 1; }

static void test_null_arguments(void **state) {
  (void)state;
  uint32_t calls = 0, len = 77;
  struct xdb_batch *const b = remixdb_batch_create();
  GOOD(b != NULL);
  INVALID(remixdb_merge(NULL, "k", 1, keep, &calls), "ref");
  INVALID(remixdb_merge(r, NULL, 1, keep, &calls), "key");
  INVALID(remixdb_merge(r, "k", 1, NULL, &calls), "fn");
  CHECK(calls == 0);
  GOOD(remixdb_merge(r, NULL, 0, keep, &calls));
  GOOD(remixdb_merge(r, "k", 1, keep, NULL));
  CHECK(calls == 1);
  struct remixdb_decision d = {.priv = &calls};
  INVALID(remixdb_merge_decide(r, "k", 1, &d), "decide");
  d.decide = decide_to_keep;
  INVALID(remixdb_merge_decide(NULL, "k", 1, &d), "ref");
  INVALID(remixdb_merge_decide(r, NULL, 1, &d), "key");
  INVALID(remixdb_merge_decide(r, "k", 1, NULL), "d");
  CHECK(calls == 1);
  GOOD(remixdb_merge_decide(r, NULL, 0, &d));
  CHECK(calls == 2);

  INVALID(remixdb_batch_put(NULL, "k", 1, "v", 1), "b");
  INVALID(remixdb_batch_put(b, NULL, 1, "v", 1), "key");
  INVALID(remixdb_batch_put(b, "k", 1, NULL, 1), "value");
  INVALID(remixdb_batch_del(NULL, "k", 1), "b");
  INVALID(remixdb_batch_del(b, NULL, 1), "key");
  CHECK(remixdb_batch_count(b) == 0 && remixdb_batch_count(NULL) == 0);
  INVALID(remixdb_write(NULL, b), "ref");
  INVALID(remixdb_write(r, NULL), "b");
  GOOD(remixdb_batch_put(b, NULL, 0, NULL, 0));
  GOOD(remixdb_write(r, b));
  GOOD(remixdb_probe(r, "", 0));

  INVALID(NOTHING(remixdb_iter_prev(NULL)), "it");
  INVALID(NOTHING(remixdb_iter_seek_last(NULL)), "it");
  INVALID(NOTHING(remixdb_iter_seek_for_prev(NULL, "k", 1)), "it");
  INVALID(remixdb_iter_key(NULL, &len), "it");
  INVALID(remixdb_iter_value(NULL, &len), "it");
  CHECK(len == 77);

  INVALID(remixdb_snapshot(NULL), "ref");
  INVALID(remixdb_snapshot_ref(NULL), "s");
  INVALID(remixdb_checkpoint(NULL, dir), "ref");
  INVALID(remixdb_checkpoint(r, NULL), "dir");
  INVALID(remixdb_verify(NULL), "ref");
  INVALID(remixdb_repair(NULL), "dir");
  INVALID(remixdb_destroy(NULL), "dir");
  INVALID(remixdb_open("", 1, 1, true), "dir");
  INVALID(remixdb_checkpoint(r, ""), "dir");
  INVALID(remixdb_repair(""), "dir");
  INVALID(remixdb_destroy(""), "dir");
  INVALID(remixdb_flush(NULL), "ref");
  INVALID(remixdb_compact(NULL), "ref");

  // nothing to end
  remixdb_batch_clear(NULL);
  remixdb_batch_destroy(NULL);
  remixdb_snapshot_release(NULL);
  remixdb_batch_destroy(b);
}

// Calls that can neither fail nor miss leave the status alone.
static void test_status_stays(void **state) {
  (void)state;
  struct xdb_batch *const b = remixdb_batch_create();
  struct xdb_snapshot *const s = remixdb_snapshot(r);
  struct xdb_ref *const old = remixdb_snapshot_ref(s);
  struct xdb_iter *const it = remixdb_iter_create(old);
  CHECK(b && s && old && it);
  CHECK(!remixdb_put(r, NULL, 1, NULL, 0));
  (void)remixdb_batch_count(b);
  remixdb_batch_clear(b);
  remixdb_batch_destroy(b);
  (void)remixdb_iter_status(it);
  (void)remixdb_iter_valid(it);
  remixdb_iter_destroy(it);
  remixdb_unref(old);
  remixdb_snapshot_release(s);
  remixdb_free(NULL);
  FAILED(REMIXDB_INVALID, "key");
}

static void test_lengths(void **state) {
  (void)state;
  static const uint8_t big[REMIXDB_KV_MAX + 1];
  struct xdb_batch *const b = remixdb_batch_create();
  uint32_t calls = 0;
  REFUSED(remixdb_merge(r, big, REMIXDB_KV_MAX + 1, keep, &calls), REMIXDB_TOOBIG, "65500");
  REFUSED(remixdb_merge(r, big, UINT32_MAX, keep, &calls), REMIXDB_TOOBIG, "65500");
  REFUSED(remixdb_merge_decide(r, big, REMIXDB_KV_MAX + 1, &(struct remixdb_decision){.decide = decide_to_keep, .priv = &calls}), REMIXDB_TOOBIG, "65500");
  CHECK(calls == 0);
  GOOD(remixdb_merge(r, big, REMIXDB_KV_MAX, keep, &calls));
  REFUSED(remixdb_batch_put(b, big, REMIXDB_KV_MAX, "v", 1), REMIXDB_TOOBIG, "65500");
  REFUSED(remixdb_batch_put(b, "k", 1, big, REMIXDB_KV_MAX), REMIXDB_TOOBIG, "65500");
  REFUSED(remixdb_batch_put(b, "k", 1, big, UINT32_MAX), REMIXDB_TOOBIG, "65500");
  REFUSED(remixdb_batch_del(b, big, REMIXDB_KV_MAX + 1), REMIXDB_TOOBIG, "65500");
  CHECK(remixdb_batch_count(b) == 0);
  GOOD(remixdb_batch_put(b, big, REMIXDB_KV_MAX, NULL, 0));
  GOOD(remixdb_batch_put(b, "k", 1, big, REMIXDB_KV_MAX - 1));
  GOOD(remixdb_batch_del(b, big, REMIXDB_KV_MAX));
  CHECK(remixdb_batch_count(b) == 3);
  GOOD(remixdb_write(r, b));
  uint32_t len = 0;
  GOOD(remixdb_get(r, "k", 1, NULL, &len));
  CHECK(len == REMIXDB_KV_MAX - 1 && !remixdb_probe(r, big, REMIXDB_KV_MAX));
  FAILED(REMIXDB_NOTFOUND, NULL);
  // larger than a memtable: nothing is written
  remixdb_batch_clear(b);
  char key[16];
  for (uint32_t i = 0; i < 40; i++) GOOD(remixdb_batch_put(b, key, (uint32_t)snprintf(key, sizeof(key), "%u", i), big, 60000));
  REFUSED(remixdb_write(r, b), REMIXDB_TOOBIG, "memtable");
  CHECK(!remixdb_probe(r, "1", 1) && remixdb_batch_count(b) == 40);
  remixdb_batch_clear(b);
  GOOD(remixdb_write(r, b));
  remixdb_batch_destroy(b);
  // an iterator whose seek was refused says why, until the next one
  struct xdb_iter *const it = remixdb_iter_create(r);
  GOOD(it != NULL);
  remixdb_iter_seek_for_prev(it, big, REMIXDB_KV_MAX + 1);
  FAILED(REMIXDB_TOOBIG, "65500");
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_TOOBIG);
  CHECK(!remixdb_iter_key(it, NULL));
  FAILED(REMIXDB_TOOBIG, "65500");
  CHECK(!remixdb_iter_value(it, NULL));
  FAILED(REMIXDB_TOOBIG, "65500");
  remixdb_iter_prev(it);
  FAILED(REMIXDB_TOOBIG, "65500");
  remixdb_iter_seek_for_prev(it, NULL, 1);
  FAILED(REMIXDB_INVALID, "key");
  CHECK(remixdb_iter_status(it) == REMIXDB_INVALID);
  remixdb_iter_seek_for_prev(it, big, REMIXDB_KV_MAX);
  check_good(true, "seek_for_prev", __LINE__);
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);  // zeros are before all that is there
  remixdb_iter_seek_last(it);
  CHECK(remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
}

// ---- iterators

static bool at(struct xdb_iter *it, const char *key, const char *value) {
  uint32_t klen = 0, vlen = 0;
  const void *const k = remixdb_iter_key(it, &klen), *const v = remixdb_iter_value(it, &vlen);
  if (!k || !v) return false;
  check_good(true, "iter_value", __LINE__);
  return klen == strlen(key) && memcmp(k, key, klen) == 0 && vlen == strlen(value) && memcmp(v, value, vlen) == 0;
}

static bool nowhere(struct xdb_iter *it) {
  uint32_t len = 55;
  if (remixdb_iter_valid(it) || remixdb_iter_status(it) != REMIXDB_OK) return false;
  const bool none = !remixdb_iter_key(it, &len) && remixdb_errcode() == REMIXDB_NOTFOUND && !remixdb_iter_value(it, &len) &&
                    remixdb_errcode() == REMIXDB_NOTFOUND && !remixdb_iter_peek(it, NULL, NULL, NULL, NULL);
  return none && remixdb_errcode() == REMIXDB_NOTFOUND && len == 55;
}

static void test_iterators(void **state) {
  (void)state;
  struct xdb_iter *const it = remixdb_iter_create(r);
  GOOD(it != NULL);
  CHECK(nowhere(it));
  // steps of one that stands nowhere do nothing, and are no failure
  remixdb_iter_prev(it);
  check_good(true, "prev", __LINE__);
  remixdb_iter_skip1(it);
  CHECK(nowhere(it));
  // an empty store
  remixdb_iter_seek_last(it);
  check_good(true, "seek_last", __LINE__);
  CHECK(nowhere(it));
  remixdb_iter_seek_for_prev(it, "x", 1);
  CHECK(nowhere(it));
  remixdb_iter_seek_for_prev(it, NULL, 0);
  CHECK(nowhere(it));
  for (int place = 0; place < 2; place++) {  // in the memtable, in tables
    GOOD(remixdb_put(r, "", 0, "", 0) && remixdb_put(r, "b", 1, "B", 1) && remixdb_put(r, "d", 1, "", 0) && remixdb_put(r, "dd", 2, "DD", 2));
    if (place) GOOD(remixdb_flush(r));
    remixdb_iter_seek_last(it);
    CHECK(at(it, "dd", "DD"));
    const void *const held = remixdb_iter_key(it, NULL);
    GOOD(remixdb_put(r, "dd", 2, "new", 3) && remixdb_put(r, "zz", 2, "", 0) && remixdb_flush(r));
    CHECK(remixdb_iter_key(it, NULL) == held && memcmp(held, "dd", 2) == 0 && at(it, "dd", "DD"));  // it stays, and where it was
    remixdb_iter_prev(it);
    CHECK(at(it, "d", ""));
    remixdb_iter_prev(it);
    CHECK(at(it, "b", "B"));
    remixdb_iter_skip1(it);
    CHECK(at(it, "d", ""));
    remixdb_iter_prev(it);
    remixdb_iter_prev(it);
    CHECK(at(it, "", ""));  // the empty key, the empty value: not NULL
    remixdb_iter_prev(it);
    check_good(true, "prev", __LINE__);
    CHECK(nowhere(it));
    remixdb_iter_skip1(it);  // it has left the store at its beginning, and does not come back by itself
    CHECK(nowhere(it));
    static const struct {
      const char *key, *found;
    } seeks[] = {{"", ""}, {"a", ""}, {"b", "b"}, {"b\x01", "b"}, {"c", "b"}, {"d", "d"}, {"dc", "d"}, {"dd", "dd"}, {"de", "dd"}, {"\xff", "zz"}};
    for (uint32_t i = 0; i < sizeof(seeks) / sizeof(seeks[0]); i++) {
      uint32_t len = 0;
      remixdb_iter_seek_for_prev(it, seeks[i].key, (uint32_t)strlen(seeks[i].key));
      const void *const k = remixdb_iter_key(it, &len);
      CHECK(k && len == strlen(seeks[i].found) && memcmp(k, seeks[i].found, len) == 0);
    }
    remixdb_iter_park(it);
    CHECK(nowhere(it));
    remixdb_iter_prev(it);
    CHECK(nowhere(it));
    GOOD(remixdb_del(r, "zz", 2));
  }
  remixdb_iter_destroy(it);
}

// ---- many gets

static void test_multi_get(void **state) {
  (void)state;
  GOOD(remixdb_put(r, "a", 1, "1234567890", 10) && remixdb_put(r, "", 0, "e", 1) && remixdb_put(r, "none", 4, "", 0));
  uint8_t room[3][16];
  const struct remixdb_slice keys[3] = {{"a", 1}, {"b", 1}, {NULL, 0}};
  struct remixdb_buf values[3] = {{room[0], 16, 5}, {room[1], 16, 5}, {room[2], 16, 5}};
  bool found[3] = {false, true, false};
  CHECK(remixdb_multi_get(r, 3, keys, values, found) == 2);
  check_good(true, "multi_get", __LINE__);
  CHECK(found[0] && !found[1] && found[2] && values[0].len == 10 && values[1].len == 0 && values[2].len == 1);
  CHECK(memcmp(room[0], "1234567890", 10) == 0 && room[2][0] == 'e');
  // what does not fit is cut, and said
  memset(room, 'x', sizeof(room));
  values[0].cap = 4;
  CHECK(remixdb_multi_get(r, 3, keys, values, found) == 2);
  FAILED(REMIXDB_TOOBIG, NULL);
  CHECK(values[0].len == 10 && memcmp(room[0], "1234x", 5) == 0 && room[2][0] == 'e' && found[0] && !found[1] && found[2]);
  // only the length, or only whether it is there
  values[0] = (struct remixdb_buf){NULL, 0, 5};
  CHECK(remixdb_multi_get(r, 3, keys, values, found) == 2 && values[0].len == 10);
  check_good(true, "multi_get", __LINE__);
  found[1] = true;
  CHECK(remixdb_multi_get(r, 3, keys, NULL, found) == 2 && found[0] && !found[1] && found[2]);
  check_good(true, "multi_get", __LINE__);
  CHECK(remixdb_multi_get(r, 0, NULL, NULL, NULL) == 0);
  check_good(true, "multi_get of nothing", __LINE__);
  // arguments
  static const uint8_t big[REMIXDB_KV_MAX + 1];
  const struct remixdb_slice null_key[2] = {{"a", 1}, {NULL, 1}}, long_key[2] = {{"a", 1}, {big, REMIXDB_KV_MAX + 1}};
  values[1] = (struct remixdb_buf){NULL, 5, 6};
  found[0] = found[1] = true;
  values[0] = (struct remixdb_buf){room[0], 16, 5};
  memset(room, 'x', sizeof(room));
  INVALID(remixdb_multi_get(NULL, 3, keys, NULL, found), "ref");
  INVALID(remixdb_multi_get(r, 3, NULL, NULL, found), "keys");
  INVALID(remixdb_multi_get(r, 3, keys, NULL, NULL), "found");
  INVALID(remixdb_multi_get(r, 2, null_key, NULL, found), "key");
  INVALID(remixdb_multi_get(r, 2, long_key, NULL, found), "key");
  INVALID(remixdb_multi_get(r, 2, keys, values, found), "value");
  CHECK(found[0] && found[1] && values[0].len == 5 && values[1].len == 6 && room[0][0] == 'x');  // as they were
}

// ---- snapshots, and stores beside this one

static void test_snapshots(void **state) {
  (void)state;
  GOOD(remixdb_put(r, "k", 1, "then", 4));
  struct xdb_snapshot *const s = remixdb_snapshot(r);
  GOOD(s != NULL);
  struct xdb_ref *const old = remixdb_snapshot_ref(s);
  GOOD(old != NULL);
  GOOD(remixdb_put(r, "k", 1, "now", 3));
  struct xdb_batch *const b = remixdb_batch_create();
  GOOD(remixdb_batch_put(b, "k", 1, "later", 5));
  uint32_t calls = 0;
  // arguments come first
  INVALID(remixdb_put(old, NULL, 1, "v", 1), "key");
  INVALID(remixdb_merge(old, "k", 1, NULL, NULL), "fn");
  REFUSED(remixdb_put(old, "k", 1, "v", 1), REMIXDB_READONLY, "snapshot");
  REFUSED(remixdb_set(old, "k", 1, "v", 1), REMIXDB_READONLY, "snapshot");
  REFUSED(remixdb_del(old, "k", 1), REMIXDB_READONLY, "snapshot");
  REFUSED(remixdb_write(old, b), REMIXDB_READONLY, "snapshot");
  REFUSED(remixdb_merge(old, "k", 1, keep, &calls), REMIXDB_READONLY, "snapshot");
  REFUSED(remixdb_merge_decide(old, "k", 1, &(struct remixdb_decision){.decide = decide_to_keep, .priv = &calls}), REMIXDB_READONLY, "snapshot");
  REFUSED(remixdb_flush(old), REMIXDB_READONLY, "snapshot");
  REFUSED(remixdb_compact(old), REMIXDB_READONLY, "snapshot");
  CHECK(calls == 0);
  GOOD(remixdb_sync(old));
  char val[8];
  uint32_t len;
  GOOD(remixdb_getn(old, "k", 1, val, sizeof(val), &len));
  CHECK(len == 4 && memcmp(val, "then", 4) == 0);
  CHECK(!remixdb_probe(old, "good", 4));  // put after it
  FAILED(REMIXDB_NOTFOUND, NULL);
  GOOD(remixdb_verify(old));
  // a checkpoint of it is of its moment
  char copy[sizeof(dir) + 16];
  (void)snprintf(copy, sizeof(copy), "%s/copy", dir);
  GOOD(remixdb_checkpoint(old, copy));
  REFUSED(remixdb_checkpoint(old, copy), REMIXDB_EXISTS, "copy");
  struct xdb *const y = remixdb_open(copy, 1, 1, true);
  GOOD(y != NULL);
  struct xdb_ref *const yr = remixdb_ref(y);
  GOOD(remixdb_getn(yr, "k", 1, val, sizeof(val), &len));
  CHECK(len == 4 && memcmp(val, "then", 4) == 0);
  REFUSED(remixdb_destroy(copy), REMIXDB_LOCKED, "copy");
  REFUSED(remixdb_repair(copy), REMIXDB_LOCKED, "copy");
  remixdb_unref(yr);
  remixdb_close(y);
  GOOD(remixdb_destroy(copy));
  REFUSED(remixdb_destroy(copy), REMIXDB_NOTFOUND, "copy");
  // by another name: the directory stays, as the name does
  char name[sizeof(dir) + 16];
  struct stat st;
  (void)snprintf(name, sizeof(name), "%s/name", dir);
  CHECK(mkdir(copy, 0755) == 0 && symlink(copy, name) == 0);
  GOOD(remixdb_checkpoint(r, name));
  GOOD(remixdb_destroy(name));
  CHECK(lstat(name, &st) == 0 && S_ISLNK(st.st_mode) && unlink(name) == 0);
  CHECK(rmdir(copy) == 0);  // it is empty
  REFUSED(remixdb_repair(copy), REMIXDB_NOTFOUND, "copy");
  REFUSED(remixdb_checkpoint(r, "/no/such/place/at/all"), REMIXDB_IO, "/no/such/place");
  REFUSED(remixdb_checkpoint(r, dir), REMIXDB_LOCKED, "held by another open");
  remixdb_batch_destroy(b);
  remixdb_unref(old);
  remixdb_snapshot_release(s);
}

static void test_read_only(void **state) {
  (void)state;
  GOOD(remixdb_put(r, "k", 1, "v", 1));
  remixdb_unref(r);
  remixdb_close(x);
  struct remixdb_opts o = small_opts(0);
  o.read_only = true;
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  r = remixdb_ref(x);
  struct xdb_batch *const b = remixdb_batch_create();
  uint32_t calls = 0;
  CHECK(!remixdb_write(r, b));  // also an empty one
  FAILED(REMIXDB_READONLY, "read_only");
  GOOD(remixdb_batch_put(b, "k", 1, "w", 1));
  CHECK(!remixdb_write(r, b));
  FAILED(REMIXDB_READONLY, "read_only");
  CHECK(!remixdb_merge(r, "k", 1, keep, &calls) && calls == 0);
  FAILED(REMIXDB_READONLY, "read_only");
  CHECK(!remixdb_flush(r));
  FAILED(REMIXDB_READONLY, "read_only");
  CHECK(!remixdb_compact(r));
  FAILED(REMIXDB_READONLY, "read_only");
  GOOD(remixdb_verify(r));
  struct xdb_snapshot *const s = remixdb_snapshot(r);
  GOOD(s != NULL);
  struct xdb_ref *const old = remixdb_snapshot_ref(s);
  GOOD(remixdb_probe(old, "k", 1));
  remixdb_unref(old);
  remixdb_snapshot_release(s);
  remixdb_batch_destroy(b);
}

int main(int argc, char **argv) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_null_arguments, open_one, close_one),
      cmocka_unit_test_setup_teardown(test_status_stays, open_one, close_one),
      cmocka_unit_test_setup_teardown(test_lengths, open_one, close_one),
      cmocka_unit_test_setup_teardown(test_iterators, open_one, close_one),
      cmocka_unit_test_setup_teardown(test_multi_get, open_one, close_one),
      cmocka_unit_test_setup_teardown(test_snapshots, open_one, close_one),
      cmocka_unit_test_setup_teardown(test_read_only, open_one, close_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
