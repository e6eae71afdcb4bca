// SPDX-License-Identifier: Apache-2.0
//
// The public contract of what goes beyond putting, getting and iterating forward: merges, batches, many gets as one,
// iterators backward and without copying, snapshots, checkpoints and their like. Arguments, statuses, messages, and the
// outputs that a refused call leaves unchanged.
#include "tests/lib/check.h"
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
// For a call that returns nothing.
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
  remixdb_batch_clear(NULL);
  remixdb_batch_destroy(NULL);
  remixdb_progress(NULL, NULL, NULL);
  FAILED(REMIXDB_INVALID, "key");
}

static void test_lengths(void **state) {
  (void)state;
  static const uint8_t big[REMIXDB_KV_MAX + 1];
  struct xdb_batch *const b = remixdb_batch_create();
  uint32_t calls = 0;
  REFUSED(remixdb_merge(r, big, REMIXDB_KV_MAX + 1, keep, &calls), REMIXDB_TOOBIG, "65500");
  REFUSED(remixdb_merge(r, big, UINT32_MAX, keep, &calls), REMIXDB_TOOBIG, "65500");
  REFUSED(remixdb_merge_decide(r, big, REMIXDB_KV_MAX + 1,
                               &(struct remixdb_decision){.decide = decide_to_keep, .priv = &calls}),
          REMIXDB_TOOBIG, "65500");
  CHECK(calls == 0);
  GOOD(remixdb_merge(r, big, REMIXDB_KV_MAX, keep, &calls));
  REFUSED(remixdb_batch_put(b, big, REMIXDB_KV_MAX + 1, "v", 1), REMIXDB_TOOBIG, "65500");
  REFUSED(remixdb_batch_put(b, "k", 1, big, UINT32_MAX), REMIXDB_TOOBIG, "1342177280");
  REFUSED(remixdb_batch_del(b, big, REMIXDB_KV_MAX + 1), REMIXDB_TOOBIG, "65500");
  CHECK(remixdb_batch_count(b) == 0);
  GOOD(remixdb_batch_put(b, big, REMIXDB_KV_MAX, NULL, 0));
  GOOD(remixdb_batch_put(b, "k", 1, big, REMIXDB_KV_MAX + 1));
  GOOD(remixdb_batch_del(b, big, REMIXDB_KV_MAX));
  CHECK(remixdb_batch_count(b) == 3);
  GOOD(remixdb_write(r, b));
  uint32_t len = 0;
  GOOD(remixdb_get(r, "k", 1, NULL, &len));
  CHECK(len == REMIXDB_KV_MAX + 1 && !remixdb_probe(r, big, REMIXDB_KV_MAX));
  FAILED(REMIXDB_NOTFOUND, NULL);
  // larger than a memtable
  remixdb_batch_clear(b);
  char key[16];
  for (uint32_t i = 0; i < 40; i++)
    GOOD(remixdb_batch_put(b, key, (uint32_t)snprintf(key, sizeof(key), "%u", i), big, 60000));
  GOOD(remixdb_write(r, b));
  CHECK(remixdb_probe(r, "1", 1) && remixdb_probe(r, "39", 2) && remixdb_batch_count(b) == 40);
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
  const bool none = !remixdb_iter_key(it, &len) && remixdb_errcode() == REMIXDB_NOTFOUND &&
                    !remixdb_iter_value(it, &len) && remixdb_errcode() == REMIXDB_NOTFOUND &&
                    !remixdb_iter_peek(it, NULL, NULL, NULL, NULL);
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
    GOOD(remixdb_put(r, "", 0, "", 0) && remixdb_put(r, "b", 1, "B", 1) && remixdb_put(r, "d", 1, "", 0) &&
         remixdb_put(r, "dd", 2, "DD", 2));
    if (place) GOOD(remixdb_flush(r));
    remixdb_iter_seek_last(it);
    CHECK(at(it, "dd", "DD"));
    const void *const held = remixdb_iter_key(it, NULL);
    GOOD(remixdb_put(r, "dd", 2, "new", 3) && remixdb_put(r, "zz", 2, "", 0) && remixdb_flush(r));
    CHECK(remixdb_iter_key(it, NULL) == held && memcmp(held, "dd", 2) == 0 &&
          at(it, "dd", "DD"));  // it stays, and where it was
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
    } seeks[] = {{"", ""},   {"a", ""},   {"b", "b"},   {"b\x01", "b"}, {"c", "b"},
                 {"d", "d"}, {"dc", "d"}, {"dd", "dd"}, {"de", "dd"},   {"\xff", "zz"}};
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
  // a value that does not fit is cut, and reported
  memset(room, 'x', sizeof(room));
  values[0].cap = 4;
  CHECK(remixdb_multi_get(r, 3, keys, values, found) == 2);
  FAILED(REMIXDB_TOOBIG, NULL);
  CHECK(values[0].len == 10 && memcmp(room[0], "1234x", 5) == 0 && room[2][0] == 'e' && found[0] && !found[1] &&
        found[2]);
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

static void test_multi_get_packed(void **state) {
  (void)state;
  GOOD(remixdb_put(r, "a", 1, "1234567890", 10) && remixdb_put(r, "", 0, "e", 1) && remixdb_put(r, "none", 4, "", 0));
  uint8_t room[16];
  static const uint32_t klens[4] = {1, 1, 0, 4};
  uint32_t offs[4], lens[4] = {7, 7, 7, 7};
  bool found[4] = {false, true, false, false};
  struct remixdb_packed out = {.ptr = room, .cap = 11, .offs = offs, .lens = lens, .found = found};
  CHECK(remixdb_multi_get_packed(r, 4, klens, "abnone", 6, &out) == 3);
  check_good(true, "multi_get_packed", __LINE__);
  CHECK(found[0] && !found[1] && found[2] && found[3] && lens[0] == 10 && lens[1] == 0 && lens[2] == 1 &&
        lens[3] == 0 && out.len == 11);
  CHECK(offs[0] + 10 <= 11 && offs[2] < 11 && memcmp(room + offs[0], "1234567890", 10) == 0 && room[offs[2]] == 'e');
  // too small: all but the bytes is right, and nothing is written after the buffer
  for (uint32_t cap = 0; cap < 11; cap++) {
    memset(room, 'x', sizeof(room));
    memset(found, 0, sizeof(found));
    out.cap = cap;
    out.ptr = cap ? room : NULL;
    CHECK(remixdb_multi_get_packed(r, 4, klens, "abnone", 6, &out) == 3);
    FAILED(REMIXDB_TOOBIG, "11");
    CHECK(found[0] && !found[1] && found[2] && found[3] && lens[0] == 10 && lens[1] == 0 && lens[2] == 1 &&
          lens[3] == 0 && out.len == 11);
    for (uint32_t i = cap; i < sizeof(room); i++) CHECK(room[i] == 'x');
  }
  out.ptr = room;
  out.cap = sizeof(room);
  CHECK(remixdb_multi_get_packed(r, 0, NULL, NULL, 0, &out) == 0 && out.len == 0);
  check_good(true, "multi_get_packed of nothing", __LINE__);
  // arguments; nothing changes
  static const uint32_t longer[4] = {1, 1, 0, 5}, shorter[4] = {1, 1, 0, 3}, most[4] = {1, UINT32_MAX, UINT32_MAX, 6},
                        long_key[1] = {REMIXDB_KV_MAX + 1};
  static const uint8_t big[REMIXDB_KV_MAX + 1];
  found[0] = false;
  lens[0] = out.len = 77;
  INVALID(remixdb_multi_get_packed(NULL, 4, klens, "abnone", 6, &out), "ref");
  INVALID(remixdb_multi_get_packed(r, 4, klens, "abnone", 6, NULL), "out");
  INVALID(remixdb_multi_get_packed(r, 4, klens, NULL, 6, &out), "keys");
  INVALID(remixdb_multi_get_packed(r, 4, NULL, "abnone", 6, &out), "klens");
  INVALID(remixdb_multi_get_packed(r, 4, longer, "abnone", 6, &out), "key 3");
  INVALID(remixdb_multi_get_packed(r, 4, shorter, "abnone", 6, &out), "add up to 5");
  INVALID(remixdb_multi_get_packed(r, 4, most, "abnone", 6, &out), "key 1");
  INVALID(remixdb_multi_get_packed(r, 1, long_key, big, sizeof(big), &out), "65501");
  INVALID(remixdb_multi_get_packed(r, 0, klens, "abnone", 6, &out), "add up to 0");
  struct remixdb_packed bad = out;
  bad.offs = NULL;
  INVALID(remixdb_multi_get_packed(r, 4, klens, "abnone", 6, &bad), "offs");
  bad = out;
  bad.lens = NULL;
  INVALID(remixdb_multi_get_packed(r, 4, klens, "abnone", 6, &bad), "lens");
  bad = out;
  bad.found = NULL;
  INVALID(remixdb_multi_get_packed(r, 4, klens, "abnone", 6, &bad), "found");
  bad = out;
  bad.ptr = NULL;
  INVALID(remixdb_multi_get_packed(r, 4, klens, "abnone", 6, &bad), "ptr");
  CHECK(!found[0] && lens[0] == 77 && out.len == 77);
  GOOD(remixdb_multi_get_packed(r, 1, (const uint32_t[]){0}, NULL, 0, &out) == 1);
}

// ---- pages and loads

static bool page_is(const struct remixdb_page *p, const char *bytes) {
  const size_t len = strlen(bytes);
  return p->len == len && memcmp(p->ptr, bytes, len) == 0;
}

// Backward, keys only, in the room of one.
static void pages_backward(struct xdb_iter *it, struct remixdb_page *p) {
  p->back = true;
  p->vlens = NULL;
  p->cap = 1;
  remixdb_iter_seek_last(it);
  GOOD(remixdb_iter_page(it, p));
  CHECK(p->nr == 1 && page_is(p, "c"));
  CHECK(!remixdb_iter_page(it, p));
  FAILED(REMIXDB_TOOBIG, "2 and 3");
  CHECK(p->nr == 0 && p->klens[0] == 2);
  p->cap = 2;
  GOOD(remixdb_iter_page(it, p) && page_is(p, "bb"));
  GOOD(remixdb_iter_page(it, p) && page_is(p, "ba") && p->nr == 3);
  GOOD(remixdb_iter_unread(it, p, 3));
  uint32_t len;
  CHECK(*(const char *)remixdb_iter_key(it, &len) == 'b' && len == 1);
  // the iterator stands after the records of the page
  p->max = 1;
  GOOD(remixdb_iter_page(it, p) && page_is(p, "b"));
  GOOD(remixdb_iter_unread(it, p, 0));
  CHECK(*(const char *)remixdb_iter_key(it, &len) == 'a' && len == 1);
}

// Refused arguments move nothing.
static void pages_invalid(struct xdb_iter *it, struct remixdb_page *p) {
  uint32_t len;
  struct remixdb_page bad = *p;
  INVALID(remixdb_iter_page(NULL, p), "it");
  INVALID(remixdb_iter_page(it, NULL), "p");
  bad.klens = NULL;
  INVALID(remixdb_iter_page(it, &bad), "klens");
  bad = *p;
  bad.ptr = NULL;
  INVALID(remixdb_iter_page(it, &bad), "ptr");
  bad = *p;
  bad.max = 0;
  INVALID(remixdb_iter_page(it, &bad), "max");
  INVALID(remixdb_iter_unread(NULL, p, 0), "it");
  INVALID(remixdb_iter_unread(it, NULL, 0), "p");
  CHECK(*(const char *)remixdb_iter_key(it, &len) == 'a' && len == 1);
}

static void test_pages(void **state) {
  (void)state;
  GOOD(remixdb_put(r, "", 0, "", 0) && remixdb_put(r, "a", 1, "11", 2) && remixdb_put(r, "b", 1, "", 0) &&
       remixdb_put(r, "c", 1, "333", 3));
  uint8_t room[16];
  uint32_t klens[4], vlens[4];
  struct remixdb_page p = {.ptr = room, .cap = sizeof(room), .klens = klens, .vlens = vlens, .max = 4};
  struct xdb_iter *const it = remixdb_iter_create(r);
  GOOD(it != NULL);
  // not positioned
  CHECK(!remixdb_iter_page(it, &p) && remixdb_errcode() == REMIXDB_NOTFOUND && p.nr == 0 && p.len == 0);
  GOOD(remixdb_iter_unread(it, &p, 0));
  // all of it
  remixdb_iter_seek(it, NULL, 0);
  GOOD(remixdb_iter_page(it, &p));
  CHECK(p.nr == 4 && page_is(&p, "a11bc333") && klens[0] == 0 && vlens[0] == 0 && klens[1] == 1 && vlens[1] == 2 &&
        vlens[2] == 0 && vlens[3] == 3);
  // the last records can be unread, also after a write
  GOOD(remixdb_put(r, "bb", 2, "new", 3));
  GOOD(remixdb_iter_unread(it, &p, 2));
  CHECK(p.nr == 0 && p.len == 0 && !p.after);
  GOOD(remixdb_iter_page(it, &p));
  CHECK(p.nr == 2 && page_is(&p, "bc333"));
  CHECK(!remixdb_iter_page(it, &p) && remixdb_errcode() == REMIXDB_NOTFOUND && p.nr == 0 && !p.after &&
        !remixdb_iter_valid(it));
  GOOD(remixdb_iter_unread(it, &p, 0));
  CHECK(!remixdb_iter_valid(it));
  pages_backward(it, &p);
  pages_invalid(it, &p);
  p.cap = 0;
  p.ptr = NULL;
  CHECK(!remixdb_iter_page(it, &p) && remixdb_errcode() == REMIXDB_TOOBIG);
  remixdb_iter_seek(it, NULL, 0);
  GOOD(remixdb_iter_page(it, &p) && p.nr == 1 && klens[0] == 0);
  // unreading more than there was ends before the first: not valid
  GOOD(remixdb_iter_unread(it, &p, UINT32_MAX));
  remixdb_iter_destroy(it);
}

static void test_batch_load(void **state) {
  (void)state;
  static const uint8_t ops[3] = {REMIXDB_BATCH_PUT, REMIXDB_BATCH_DEL, REMIXDB_BATCH_PUT},
                       none[3] = {REMIXDB_BATCH_PUT, 2, REMIXDB_BATCH_PUT};
  static const uint32_t klens[3] = {1, 2, 0}, vlens[3] = {3, 0, 1}, zeros[3] = {0};
  static const char bytes[] = "k123k2v";
  static const uint8_t big[2 * REMIXDB_KV_MAX];
  struct xdb_batch *const b = remixdb_batch_create();
  GOOD(b && remixdb_put(r, "k2", 2, "old", 3) && remixdb_batch_put(b, "first", 5, "1", 1));
  GOOD(remixdb_batch_load(b, 3, ops, klens, vlens, bytes, 7));
  GOOD(remixdb_batch_load(b, 1, NULL, zeros, vlens, "987", 3));  // the last one counts
  GOOD(remixdb_batch_load(b, 0, NULL, NULL, NULL, NULL, 0));
  CHECK(remixdb_batch_count(b) == 5);
  GOOD(remixdb_write(r, b));
  char val[8];
  uint32_t len;
  GOOD(remixdb_get(r, "k", 1, val, &len) && len == 3 && memcmp(val, "123", 3) == 0 && remixdb_probe(r, "first", 5));
  GOOD(remixdb_get(r, "", 0, val, &len) && len == 3 && memcmp(val, "987", 3) == 0);
  CHECK(!remixdb_probe(r, "k2", 2) && remixdb_errcode() == REMIXDB_NOTFOUND);
  remixdb_batch_clear(b);
  INVALID(remixdb_batch_load(NULL, 3, ops, klens, vlens, bytes, 7), "b");
  INVALID(remixdb_batch_load(b, 3, ops, NULL, vlens, bytes, 7), "klens");
  INVALID(remixdb_batch_load(b, 3, ops, klens, NULL, bytes, 7), "vlens");
  INVALID(remixdb_batch_load(b, 3, ops, klens, vlens, NULL, 7), "bytes");
  INVALID(remixdb_batch_load(b, 3, ops, klens, vlens, bytes, 6), "operation 2");
  INVALID(remixdb_batch_load(b, 3, ops, klens, vlens, bytes, 8), "add up to 7");
  INVALID(remixdb_batch_load(b, 0, ops, klens, vlens, bytes, 7), "add up to 0");
  INVALID(remixdb_batch_load(b, 3, none, klens, vlens, bytes, 7), "operation 1");
  INVALID(remixdb_batch_load(b, 2, ops, zeros, (const uint32_t[]){3, 4}, bytes, 7), "operation 1");
  REFUSED(remixdb_batch_load(b, 1, NULL, (const uint32_t[]){UINT32_MAX}, (const uint32_t[]){UINT32_MAX}, big,
                             sizeof(big)),
          REMIXDB_TOOBIG, "65500");
  // a bad one after good ones: none is taken
  REFUSED(remixdb_batch_load(b, 2, NULL, (const uint32_t[]){1, UINT32_MAX}, (const uint32_t[]){3, 2}, bytes, 7),
          REMIXDB_TOOBIG, NULL);
  CHECK(remixdb_batch_count(b) == 0);
  GOOD(remixdb_batch_load(b, 1, NULL, (const uint32_t[]){1}, (const uint32_t[]){REMIXDB_KV_MAX - 1}, big,
                          REMIXDB_KV_MAX));
  remixdb_batch_destroy(b);
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
  REFUSED(remixdb_merge_decide(old, "k", 1, &(struct remixdb_decision){.decide = decide_to_keep, .priv = &calls}),
          REMIXDB_READONLY, "snapshot");
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
      cmocka_unit_test_setup_teardown(test_multi_get_packed, open_one, close_one),
      cmocka_unit_test_setup_teardown(test_pages, open_one, close_one),
      cmocka_unit_test_setup_teardown(test_batch_load, open_one, close_one),
      cmocka_unit_test_setup_teardown(test_snapshots, open_one, close_one),
      cmocka_unit_test_setup_teardown(test_read_only, open_one, close_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
