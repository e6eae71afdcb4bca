// SPDX-License-Identifier: Apache-2.0
//
// Transactions: what they read, what conflicts and what does not, savepoints; before and after rounds.
#include "tests/lib/store.h"
#include "store/txn_state.h"
#include "tests/lib/fault.h"

#include <dirent.h>
#include <unistd.h>

static struct xdb *x;
static struct xdb_ref *ref;
static struct xdb_space *space;  // the space of `ref`

static int begin(void **state) {
  if (setup(state) != 0) return -1;
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.memtable_mb = 1;
  o.cache_mb = 1;
  o.workers = 0;
  x = quick_open(&o);
  shrink(x, 256 << 10, 32);
  ref = remixdb_ref(x);
  return ref ? 0 : -1;
}

static int end(void **state) {
  remixdb_unref(ref);
  remixdb_close(x);
  return remixdb_errcode() == REMIXDB_OK ? teardown(state) : -1;
}

static void put(struct xdb_ref *r, const char *key, const char *val) {
  CHECK(remixdb_put(r, key, (uint32_t)strlen(key), val, (uint32_t)strlen(val)));
}
static void del(struct xdb_ref *r, const char *key) { CHECK(remixdb_del(r, key, (uint32_t)strlen(key))); }

static void del_range_of(struct xdb_ref *r, const char *from, const char *to) {
  const struct remixdb_range range = {{from, (uint32_t)strlen(from)}, {to, (uint32_t)strlen(to)}};
  CHECK(remixdb_del_range(r, &range));
}

// The value, or "-".
static const char *get(struct xdb_ref *r, const char *key) {
  static char buf[64];
  uint32_t len = 0;
  if (!remixdb_getn(r, key, (uint32_t)strlen(key), buf, sizeof(buf) - 1, &len)) {
    CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
    return "-";
  }
  buf[len] = '\0';
  return buf;
}
#define IS(r, key, val) assert_string_equal(get(r, key), val)

// Keys and values that an iterator passes from its position on, as "a=1 b=2".
static const char *walk(struct xdb_iter *it, bool back) {
  static char buf[4096];
  size_t n = 0;
  buf[0] = '\0';
  while (remixdb_iter_valid(it)) {
    uint32_t klen, vlen;
    const char *const key = remixdb_iter_key(it, &klen), *const val = remixdb_iter_value(it, &vlen);
    CHECK(key && val);
    n += (size_t)snprintf(buf + n, sizeof(buf) - n, "%s%.*s=%.*s", n ? " " : "", (int)klen, key, (int)vlen, val);
    if (back) remixdb_iter_prev(it);
    else remixdb_iter_skip1(it);
  }
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  return buf;
}

static struct xdb_txn *begin_txn(struct xdb_ref **r_out) {
  struct xdb_txn *const t = remixdb_txn_begin(x);
  CHECK(t && (*r_out = remixdb_txn_ref(t, space)) != NULL);
  return t;
}

// ---- reading

static void test_own_writes(void **state) {
  (void)state;
  put(ref, "a", "1");
  put(ref, "b", "2");
  put(ref, "c", "3");
  put(ref, "d", "4");
  struct xdb_ref *r;
  struct xdb_txn *const t = begin_txn(&r);
  struct xdb_ref *const u = remixdb_txn_untracked(t, space);
  put(r, "b", "two");
  del(r, "c");
  put(r, "bb", "new");
  put(ref, "a", "later");  // after the beginning
  put(ref, "z", "later");
  for (struct xdb_ref *i = r;; i = u) {
    IS(i, "a", "1");
    IS(i, "b", "two");
    IS(i, "c", "-");
    IS(i, "bb", "new");
    IS(i, "z", "-");
    struct xdb_iter *const it = remixdb_iter_create(i);
    remixdb_iter_seek(it, NULL, 0);
    assert_string_equal(walk(it, false), "a=1 b=two bb=new d=4");
    remixdb_iter_seek_last(it);
    assert_string_equal(walk(it, true), "d=4 bb=new b=two a=1");
    remixdb_iter_seek_for_prev(it, "c", 1);
    assert_string_equal(walk(it, true), "bb=new b=two a=1");
    remixdb_iter_seek(it, "bb", 2);  // turning round, on a key of each kind
    remixdb_iter_prev(it);
    remixdb_iter_skip1(it);
    assert_string_equal(walk(it, false), "bb=new d=4");
    remixdb_iter_seek(it, "c", 1);
    remixdb_iter_prev(it);
    remixdb_iter_prev(it);
    remixdb_iter_skip(it, 2);
    assert_string_equal(walk(it, true), "d=4 bb=new b=two a=1");
    remixdb_iter_destroy(it);
    uint32_t len;
    const void *val;
    char *const copy = remixdb_get_alloc(i, "b", 1, &len);
    CHECK(copy && len == 3 && memcmp(copy, "two", 3) == 0 && !remixdb_get_alloc(i, "c", 1, &len));
    remixdb_free(copy);
    struct xdb_pin *const pin = remixdb_get_pinned(i, "b", 1, &val, &len);
    CHECK(pin && len == 3 && memcmp(val, "two", 3) == 0 && !remixdb_get_pinned(i, "c", 1, &val, &len));
    remixdb_pin_release(pin);
    struct remixdb_slice keys[] = {{"a", 1}, {"b", 1}, {"bb", 2}, {"c", 1}, {"z", 1}};
    char vals[5][8];
    struct remixdb_buf bufs[5];
    bool found[5];
    for (uint32_t k = 0; k < 5; k++) bufs[k] = (struct remixdb_buf){vals[k], k == 1 ? 2 : 8, 0};
    CHECK(remixdb_multi_get(i, 5, keys, bufs, found) == 3 && remixdb_errcode() == REMIXDB_TOOBIG);
    CHECK(found[0] && found[1] && found[2] && !found[3] && !found[4]);
    CHECK(bufs[0].len == 1 && bufs[1].len == 3 && bufs[2].len == 3 && memcmp(vals[2], "new", 3) == 0);
    CHECK(remixdb_multi_get(i, 1, keys, bufs, found) == 1 && vals[0][0] == '1');
    const uint32_t klens[] = {1, 1, 2, 1, 1};
    uint32_t offs[5], lens[5];
    struct remixdb_packed packed = {.ptr = vals, .cap = sizeof(vals), .offs = offs, .lens = lens, .found = found};
    CHECK(remixdb_multi_get_packed(i, 5, klens, "abbbcz", 6, &packed) == 3 && packed.len == 7);
    CHECK(memcmp((char *)vals + offs[1], "two", 3) == 0 && lens[2] == 3);
    CHECK(remixdb_errcode() == REMIXDB_OK);
    if (i == u) break;
  }
  IS(ref, "b", "2");  // others see nothing of it
  remixdb_txn_abort(t);
  IS(ref, "b", "2");
  IS(ref, "bb", "-");
}

static void test_own_ranges(void **state) {
  (void)state;
  put(ref, "a", "1");
  put(ref, "b", "2");
  put(ref, "c", "3");
  struct xdb_ref *r;
  struct xdb_txn *const t = begin_txn(&r);
  put(r, "bb", "new");
  del_range_of(r, "b", "c");
  struct xdb_iter *const it = remixdb_iter_create(r);
  remixdb_iter_seek(it, NULL, 0);
  assert_string_equal(walk(it, false), "a=1 c=3");
  struct xdb_batch *const b = remixdb_batch_create();
  const struct remixdb_range all = {{NULL, 0}, {NULL, 0}};
  CHECK(remixdb_batch_put(b, "gone", 4, "x", 1) && remixdb_batch_del_range(b, &all));
  CHECK(remixdb_batch_put(b, "d", 1, "4", 1) && remixdb_txn_savepoint(t) && remixdb_write(r, b));
  IS(r, "a", "-");
  IS(r, "gone", "-");
  IS(r, "d", "4");
  CHECK(remixdb_txn_rollback(t));
  remixdb_iter_seek(it, NULL, 0);
  assert_string_equal(walk(it, false), "a=1 c=3");
  remixdb_iter_destroy(it);
  CHECK(remixdb_write(r, b) && remixdb_txn_commit(t));
  remixdb_batch_destroy(b);
  IS(ref, "a", "-");
  IS(ref, "c", "-");
  IS(ref, "d", "4");
}

// An iterator sees the writes up to its seek.
static void test_iter_moment(void **state) {
  (void)state;
  put(ref, "a", "1");
  put(ref, "c", "3");
  struct xdb_ref *r;
  struct xdb_txn *const t = begin_txn(&r);
  put(r, "b", "2");
  struct xdb_iter *const it = remixdb_iter_create(r);
  remixdb_iter_seek(it, NULL, 0);
  put(r, "b", "changed, and longer");
  put(r, "bb", "new");
  del(r, "c");
  assert_string_equal(walk(it, false), "a=1 b=2 c=3");
  remixdb_iter_seek(it, NULL, 0);
  assert_string_equal(walk(it, false), "a=1 b=changed, and longer bb=new");
  remixdb_iter_seek(it, NULL, 0);
  CHECK(remixdb_txn_commit(t));
  CHECK(!remixdb_iter_valid(it) && !remixdb_iter_key(it, NULL));  // open over the end: of no use any more
  remixdb_iter_seek(it, NULL, 0);
  CHECK(!remixdb_iter_valid(it) && remixdb_errcode() == REMIXDB_INVALID);
  remixdb_iter_destroy(it);
  IS(ref, "b", "changed, and longer");
}

static enum remixdb_merge_op append(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  static char buf[64];
  if (v0len) memcpy(buf, v0, v0len);
  memcpy(buf + v0len, priv, strlen(priv));
  *v1 = buf;
  *v1len = v0len + (uint32_t)strlen(priv);
  return v0 || *(char *)priv == '+' ? REMIXDB_MERGE_PUT : REMIXDB_MERGE_KEEP;
}

static void test_calls(void **state) {
  (void)state;
  put(ref, "a", "1");
  struct xdb_ref *r;
  struct xdb_txn *t = begin_txn(&r);
  CHECK(remixdb_merge(r, "a", 1, append, "+2") && remixdb_merge(r, "a", 1, append, "+3"));
  CHECK(remixdb_merge(r, "b", 1, append, "+x") && remixdb_merge(r, "c", 1, append, "x"));
  struct xdb_batch *const b = remixdb_batch_create();
  CHECK(remixdb_batch_put(b, "d", 1, "4", 1) && remixdb_batch_del(b, "b", 1) && remixdb_write(r, b));
  IS(r, "a", "1+2+3");
  IS(r, "c", "-");
  CHECK(remixdb_sync(r));
  CHECK(!remixdb_flush(r) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_compact(r) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_checkpoint(r, "/x") && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_verify(r) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_snapshot(r) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_gets_create(r, 4) && remixdb_errcode() == REMIXDB_INVALID);
  remixdb_unref(r);
  CHECK(remixdb_errcode() == REMIXDB_INVALID);
  CHECK(remixdb_sync(r));
  remixdb_ref_return(r);
  CHECK(remixdb_errcode() == REMIXDB_INVALID);
  CHECK(remixdb_txn_commit(t));
  IS(ref, "a", "1+2+3");
  IS(ref, "b", "-");
  IS(ref, "d", "4");
  remixdb_batch_destroy(b);
  CHECK(!remixdb_txn_begin(NULL) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_txn_commit(NULL) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_txn_ref(NULL, NULL) && !remixdb_txn_savepoint(NULL) && !remixdb_txn_rollback(NULL));
  remixdb_txn_abort(NULL);
  struct xdb_txn *many[40];  // more than wait for the next ones
  for (uint32_t i = 0; i < 40; i++) CHECK((many[i] = remixdb_txn_begin(x)) != NULL);
  for (uint32_t i = 0; i < 40; i++) remixdb_txn_abort(many[i]);
}

static void test_savepoints(void **state) {
  (void)state;
  put(ref, "a", "1");
  put(ref, "b", "2");
  struct xdb_ref *r;
  struct xdb_txn *const t = begin_txn(&r);
  CHECK(!remixdb_txn_rollback(t) && remixdb_errcode() == REMIXDB_INVALID);
  put(r, "a", "one");
  CHECK(remixdb_txn_savepoint(t));
  put(r, "a", "uno");
  put(r, "c", "3");
  del(r, "b");
  CHECK(remixdb_txn_savepoint(t));
  put(r, "a", "eins");
  put(r, "b", "zwei");
  CHECK(remixdb_txn_rollback(t));
  IS(r, "a", "uno");
  IS(r, "b", "-");
  put(r, "c", "III");
  CHECK(remixdb_txn_rollback(t));
  IS(r, "a", "one");
  IS(r, "b", "2");
  IS(r, "c", "-");
  struct xdb_iter *const it = remixdb_iter_create(r);
  remixdb_iter_seek(it, NULL, 0);
  assert_string_equal(walk(it, false), "a=one b=2");
  remixdb_iter_destroy(it);
  CHECK(remixdb_txn_commit(t));
  IS(ref, "a", "one");
  IS(ref, "c", "-");
}

// ---- conflicts

// A transaction's reads, and the writes of others meanwhile. The transaction writes the key "own", too.
struct scene {
  const char *what;
  void (*reads)(struct xdb_ref *r);
  void (*others)(void);
  bool conflict;
};

static void get_b(struct xdb_ref *r) { IS(r, "b", "2"); }
static void get_absent(struct xdb_ref *r) { IS(r, "bb", "-"); }
static void get_own(struct xdb_ref *r) {
  put(r, "b", "mine");
  IS(r, "b", "mine");
}
static void probe_b(struct xdb_ref *r) { CHECK(remixdb_probe(r, "b", 1)); }
static void alloc_b(struct xdb_ref *r) {
  uint32_t len;
  void *const v = remixdb_get_alloc(r, "b", 1, &len);
  CHECK(v && len == 1);
  remixdb_free(v);
}
static void pinned_b(struct xdb_ref *r) {
  const void *v;
  struct xdb_pin *const pin = remixdb_get_pinned(r, "b", 1, &v, NULL);
  CHECK(pin && memcmp(v, "2", 1) == 0);
  remixdb_pin_release(pin);
}
static void merge_b(struct xdb_ref *r) { CHECK(remixdb_merge(r, "b", 1, append, "+")); }
static void multi_ab(struct xdb_ref *r) {
  struct remixdb_slice keys[] = {{"a", 1}, {"b", 1}};
  bool found[2];
  CHECK(remixdb_multi_get(r, 2, keys, NULL, found) == 2);
}
static void write_b(struct xdb_ref *r) { put(r, "b", "mine"); }
static void untracked(struct xdb_ref *r) { IS(remixdb_txn_untracked(r->txn, space), "b", "2"); }

static struct xdb_iter *sought(struct xdb_ref *r, const char *key) {
  struct xdb_iter *const it = remixdb_iter_create(r);
  remixdb_iter_seek(it, key, (uint32_t)strlen(key));
  return it;
}
static void scan_a_to_c(struct xdb_ref *r) {
  struct xdb_iter *const it = sought(r, "a");
  remixdb_iter_skip(it, 2);
  remixdb_iter_destroy(it);
}
static struct xdb_iter *left_open;
static void scan_open(struct xdb_ref *r) {  // to c, and the iterator is open at the commit
  struct xdb_iter *const it = left_open = sought(r, "a");
  remixdb_iter_skip1(it);
  remixdb_iter_skip1(it);
}
static void seek_bb(struct xdb_ref *r) { remixdb_iter_destroy(sought(r, "bb")); }  // lands on c
static void scan_to_end(struct xdb_ref *r) {
  struct xdb_iter *const it = sought(r, "c");
  (void)walk(it, false);
  remixdb_iter_destroy(it);
}
static void scan_back(struct xdb_ref *r) {  // from d down to b
  struct xdb_iter *const it = remixdb_iter_create(r);
  remixdb_iter_seek_for_prev(it, "d", 1);
  remixdb_iter_prev(it);
  remixdb_iter_prev(it);
  remixdb_iter_destroy(it);
}
static void scan_back_to_end(struct xdb_ref *r) {
  struct xdb_iter *const it = remixdb_iter_create(r);
  remixdb_iter_seek_for_prev(it, "a", 1);
  (void)walk(it, true);
  remixdb_iter_destroy(it);
}
static void seek_last(struct xdb_ref *r) {
  struct xdb_iter *const it = remixdb_iter_create(r);
  remixdb_iter_seek_last(it);
  remixdb_iter_destroy(it);
}
static void turned(struct xdb_ref *r) {  // c, d, then back to b
  struct xdb_iter *const it = sought(r, "c");
  remixdb_iter_skip1(it);
  for (uint32_t i = 0; i < 2; i++) remixdb_iter_prev(it);
  remixdb_iter_destroy(it);
}
static void page(struct xdb_ref *r) {  // a to d; the record that is not read was passed
  struct xdb_iter *const it = sought(r, "a");
  char buf[64];
  uint32_t klens[2], vlens[2];
  struct remixdb_page p = {.ptr = buf, .cap = sizeof(buf), .max = 2, .klens = klens, .vlens = vlens};
  CHECK(remixdb_iter_page(it, &p) && p.nr == 2);
  CHECK(remixdb_iter_page(it, &p) && p.nr == 2);
  CHECK(remixdb_iter_unread(it, &p, 1));
  remixdb_iter_destroy(it);
}
static void untracked_scan(struct xdb_ref *r) { scan_a_to_c(remixdb_txn_untracked(r->txn, space)); }

static void put_b(void) { put(ref, "b", "other"); }
static void put_bb(void) { put(ref, "bb", "other"); }
static void put_same(void) { put(ref, "a", "1"); }
static void del_b(void) { del(ref, "b"); }
static void put_c(void) { put(ref, "c", "other"); }
static void put_cc(void) { put(ref, "cc", "other"); }
static void put_z(void) { put(ref, "z", "other"); }
static void put_0(void) { put(ref, "0", "other"); }
static void put_aa(void) { put(ref, "aa", "other"); }
static void put_dd(void) { put(ref, "dd", "other"); }
static void nothing(void) {}
static void batch_b(void) {
  struct xdb_batch *const b = remixdb_batch_create();
  CHECK(remixdb_batch_put(b, "b", 1, "o", 1) && remixdb_write(ref, b));
  remixdb_batch_destroy(b);
}
static void merge_other(void) { CHECK(remixdb_merge(ref, "b", 1, append, "+")); }
static void txn_b(void) {
  struct xdb_ref *r;
  struct xdb_txn *const t = begin_txn(&r);
  put(r, "b", "other");
  CHECK(remixdb_txn_commit(t));
}
static void txn_gone(void) {
  struct xdb_ref *r;
  struct xdb_txn *const t = begin_txn(&r);
  put(r, "b", "other");
  remixdb_txn_abort(t);
}

static void del_b_to_cc(void) { del_range_of(ref, "b", "cc"); }
static void del_from_cc(void) { del_range_of(ref, "cc", "zz"); }
static void del_nothing(void) { del_range_of(ref, "ba", "bz"); }
static void ingest_bb(void) {
  struct xdb_ingest *const g = remixdb_ingest_begin(ref);
  CHECK(g && remixdb_ingest_put(g, "bb", 2, "other", 5) && remixdb_ingest_commit(g));
}
static void own_range(struct xdb_ref *r) { del_range_of(r, "bb", "cc"); }
static void read_own_range(struct xdb_ref *r) {
  IS(r, "c", "3");
  own_range(r);
}
static void absent_own_range(struct xdb_ref *r) {
  IS(r, "bb", "-");
  del_range_of(r, "ba", "d");
}
static void scan_own_range(struct xdb_ref *r) {
  scan_a_to_c(r);
  own_range(r);
}
static void own_range_read(struct xdb_ref *r) {
  own_range(r);
  IS(r, "bb", "-");
  IS(r, "c", "-");
}
static void own_range_scan(struct xdb_ref *r) {
  own_range(r);
  struct xdb_iter *const it = sought(r, "a");
  assert_string_equal(walk(it, false), "a=1 b=2 d=4");
  remixdb_iter_destroy(it);
}
static void own_range_back(struct xdb_ref *r) {
  CHECK(remixdb_txn_savepoint(r->txn));
  own_range(r);
  IS(r, "bb", "-");
  CHECK(remixdb_txn_rollback(r->txn));
  IS(r, "c", "3");
}
static void scan_open_own_range(struct xdb_ref *r) {
  scan_open(r);
  own_range(r);
}

static const struct scene scenes[] = {
    {"no write", get_b, nothing, false},
    {"a put to a key", get_b, put_b, true},
    {"a delete", get_b, del_b, true},
    {"a batch", get_b, batch_b, true},
    {"a merge", get_b, merge_other, true},
    {"a transaction", get_b, txn_b, true},
    {"an aborted transaction", get_b, txn_gone, false},
    {"a put to another key", get_b, put_c, false},
    {"a put to an absent key", get_absent, put_bb, true},
    {"a neighbour of an absent key", get_absent, put_b, false},
    {"its own write read", get_own, put_b, false},
    {"a probe", probe_b, put_b, true},
    {"an allocated get", alloc_b, put_b, true},
    {"a pinned get", pinned_b, put_b, true},
    {"its merge", merge_b, put_b, true},
    {"a multi-get", multi_ab, put_b, true},
    {"a multi-get of others", multi_ab, put_c, false},
    {"writes to one key", write_b, put_b, false},
    {"a deletion of a range", get_b, del_b_to_cc, true},
    {"a deletion of a range in a scan", scan_a_to_c, del_b_to_cc, true},
    {"a deletion of a range behind a scan", scan_a_to_c, del_from_cc, false},
    {"a deletion of a range without keys", scan_a_to_c, del_nothing, false},
    {"a key in its own deletion of a range", own_range, put_bb, false},
    {"a deleted key in its own deletion of a range", own_range, put_c, false},
    {"a key read before its deletion of a range", read_own_range, put_c, true},
    {"a key that was not there before its deletion of a range", absent_own_range, put_bb, true},
    {"a phantom of a scan before its deletion of a range", scan_own_range, put_bb, true},
    {"a key read in its own deletion of a range", own_range_read, put_c, false},
    {"a key that is not there in its own deletion of a range", own_range_read, put_bb, false},
    {"a scan over its own deletion of a range", own_range_scan, put_bb, false},
    {"a key before it in such a scan", own_range_scan, put_b, true},
    {"a key behind it in such a scan", own_range_scan, put_cc, true},
    {"its own deletion of a range that was taken back", own_range_back, put_bb, false},
    {"a read after that", own_range_back, put_c, true},
    {"an open scan, and its own deletion of a range", scan_open_own_range, put_bb, true},
    {"an ingested key", get_absent, ingest_bb, true},
    {"an ingested phantom", scan_a_to_c, ingest_bb, true},
    {"an ingested key beside a read one", get_b, ingest_bb, false},
    {"an untracked get", untracked, put_b, false},
    {"an untracked scan", untracked_scan, put_b, false},
    {"a scanned key", scan_a_to_c, put_b, true},
    {"the last scanned key", scan_a_to_c, put_c, true},
    {"a phantom", scan_a_to_c, put_bb, true},
    {"a key behind a scan", scan_a_to_c, put_cc, false},
    {"a key before a scan", scan_a_to_c, put_0, false},
    {"an open scan", scan_open, put_bb, true},
    {"a key behind an open scan", scan_open, put_cc, false},
    {"the gap that a seek passed", seek_bb, put_bb, true},
    {"a key before a seek", seek_bb, put_b, false},
    {"a phantom at the end", scan_to_end, put_z, true},
    {"a key before the scan to the end", scan_to_end, put_bb, false},
    {"a key of a scan back", scan_back, put_c, true},
    {"a phantom of a scan back", scan_back, put_bb, true},
    {"a key before a scan back", scan_back, put_aa, false},
    {"a key behind a scan back", scan_back, put_dd, false},
    {"a phantom at the beginning", scan_back_to_end, put_0, true},
    {"a key behind the beginning", scan_back_to_end, put_aa, false},
    {"a new last key", seek_last, put_z, true},
    {"a key before the last one", seek_last, put_bb, false},
    {"a key of an iterator that turned", turned, put_cc, true},
    {"a key before it", turned, put_aa, false},
    {"a key that it turned back to", turned, put_bb, true},
    {"a key behind it", turned, put_dd, false},
    {"a key of a page", page, put_b, true},
    {"a key behind a page", page, put_dd, false},
    {"a key before a page", page, put_0, false},
};

// Rounds before the others' writes, and after them.
enum when { NONE, FLUSH_BEFORE, FLUSH_AFTER, FLUSH_BOTH, COMPACT_AFTER, ROUNDS };
static void round_at(enum when how, bool after) {
  if (how == FLUSH_BOTH || how == (after ? FLUSH_AFTER : FLUSH_BEFORE)) CHECK(remixdb_flush(ref));
  if (how == COMPACT_AFTER && after) CHECK(remixdb_compact(ref));
}

static void test_conflicts(void **state) {
  (void)state;
  for (uint32_t how = 0; how < ROUNDS; how++) {
    for (uint32_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
      const struct scene *const s = &scenes[i];
      static const char *const extra[] = {"0", "aa", "bb", "cc", "dd", "z", "own"};
      for (uint32_t k = 0; k < 7; k++) del(ref, extra[k]);
      put(ref, "a", "1");
      put(ref, "b", "2");
      put(ref, "c", "3");
      put(ref, "d", "4");
      if (i % 2) CHECK(remixdb_flush(ref));
      (void)snprintf(check_what, sizeof(check_what), "%s, rounds %u", s->what, how);
      struct xdb_ref *r;
      struct xdb_txn *const t = begin_txn(&r);
      s->reads(r);
      put(r, "own", "yes");
      round_at(how, false);
      s->others();
      round_at(how, true);
      CHECK(remixdb_txn_commit(t) == !s->conflict);
      CHECK(remixdb_errcode() == (s->conflict ? REMIXDB_ABORTED : REMIXDB_OK));
      IS(ref, "own", s->conflict ? "-" : "yes");
      remixdb_iter_destroy(left_open);
      left_open = NULL;
    }
  }
  check_what[0] = '\0';
}

// The deletion of a range deletes what is there at the commit, and no write that comes after it in the transaction.
static void test_blind_range(void **state) {
  (void)state;
  struct xdb_space *const sp = remixdb_space_open(x, "blind", true);
  struct xdb_ref *const rs = remixdb_space_ref(sp);
  CHECK(sp && rs);
  for (uint32_t how = 0; how < ROUNDS; how++) {
    const struct remixdb_range all = {{NULL, 0}, {NULL, 0}};
    (void)snprintf(check_what, sizeof(check_what), "rounds %u", how);
    CHECK(remixdb_del_range(ref, &all) && remixdb_del_range(rs, &all));
    put(ref, "b", "old");
    put(rs, "b", "old");
    struct xdb_ref *r;
    struct xdb_txn *const t = begin_txn(&r);
    struct xdb_ref *const ts = remixdb_txn_ref(t, sp);
    put(r, "bb", "before");
    del_range_of(r, "b", "d");
    CHECK(remixdb_del_range(ts, &all));
    put(r, "c", "after");
    put(ts, "x", "after");
    CHECK(remixdb_txn_savepoint(t));
    del_range_of(r, "d", "f");
    CHECK(remixdb_txn_rollback(t));
    round_at(how, false);
    static const char *const keys[] = {"a", "b", "ba", "bb", "c", "cc", "d", "e", "x"};
    for (uint32_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
      put(ref, keys[i], "other");
      put(rs, keys[i], "other");
    }
    round_at(how, true);
    put(ref, "bc", "later");  // in the active memtable, also after a round
    CHECK(remixdb_txn_commit(t));
    struct xdb_iter *const it = remixdb_iter_create(ref), *const its = remixdb_iter_create(rs);
    remixdb_iter_seek(it, NULL, 0);
    assert_string_equal(walk(it, false), "a=other c=after d=other e=other x=other");
    remixdb_iter_seek(its, NULL, 0);
    assert_string_equal(walk(its, false), "x=after");
    remixdb_iter_destroy(it);
    remixdb_iter_destroy(its);
  }
  check_what[0] = '\0';
  struct xdb_ref *r;
  struct xdb_txn *const t = begin_txn(&r);  // one that finds nothing when it begins
  del_range_of(r, "m", "n");
  put(ref, "m", "other");
  CHECK(remixdb_txn_commit(t));
  IS(ref, "m", "-");
  remixdb_unref(rs);
  remixdb_space_close(sp);
}

// A transaction that only read commits, whatever the others wrote.
// A range that the transaction has deleted once is deleted again: nothing is written again, also behind a savepoint,
// and a rollback leaves it deleted.
static void test_range_again(void **state) {
  (void)state;
  char key[16];
  for (uint32_t i = 0; i < 100; i++) {
    (void)snprintf(key, sizeof(key), "again%03u", i);
    put(ref, key, "x");
  }
  struct xdb_txn *const t = remixdb_txn_begin(x);
  struct xdb_ref *const r = remixdb_txn_ref(t, NULL);
  del_range_of(r, "again", "agaio");
  const uint64_t number = t->own[TREE_UNNAMED].number;
  CHECK(number >= 100);
  CHECK(remixdb_txn_savepoint(t));
  for (uint32_t i = 0; i < 10; i++) del_range_of(r, "again0", "agaio");
  CHECK(t->own[TREE_UNNAMED].number == number);
  CHECK(remixdb_txn_rollback(t));
  CHECK(!remixdb_probe(r, "again050", 8));
  CHECK(remixdb_txn_commit(t));
  for (uint32_t i = 0; i < 100; i++) {
    const int len = snprintf(key, sizeof(key), "again%03u", i);
    CHECK(!remixdb_probe(ref, key, (uint32_t)len));
  }
}

static void test_read_only(void **state) {
  (void)state;
  put(ref, "b", "2");
  struct xdb_ref *r;
  struct xdb_txn *const t = begin_txn(&r);
  get_b(r);
  scan_to_end(r);
  put_b();
  CHECK(remixdb_compact(ref));
  get_b(r);
  CHECK(remixdb_txn_commit(t));
}

// The same value once more is a write.
static void same_value(bool flush) {
  put(ref, "a", "1");
  put(ref, "d", "1");
  struct xdb_ref *r;
  struct xdb_txn *const t = begin_txn(&r);
  IS(r, "a", "1");
  put(r, "own", "yes");
  put_same();
  if (flush) CHECK(remixdb_flush(ref));
  CHECK(!remixdb_txn_commit(t) && remixdb_errcode() == REMIXDB_ABORTED);
}

static void test_same_value(void **state) {
  (void)state;
  same_value(false);
  same_value(true);
  struct xdb_ref *r;
  struct xdb_txn *const t = begin_txn(&r);
  scan_to_end(r);
  put(ref, "d", "1");
  CHECK(remixdb_flush(ref));
  put(r, "own", "yes");
  CHECK(!remixdb_txn_commit(t) && remixdb_errcode() == REMIXDB_ABORTED);
}

// Each of two transactions reads what the other writes: one of them commits.
static void test_write_skew(void **state) {
  (void)state;
  put(ref, "x", "1");
  put(ref, "y", "1");
  struct xdb_ref *r1, *r2;
  struct xdb_txn *const t1 = begin_txn(&r1), *const t2 = begin_txn(&r2);
  IS(r1, "x", "1");
  IS(r2, "y", "1");
  put(r1, "y", "0");
  put(r2, "x", "0");
  CHECK(remixdb_txn_commit(t2));
  CHECK(!remixdb_txn_commit(t1) && remixdb_errcode() == REMIXDB_ABORTED);
  IS(ref, "y", "1");
}

// A transaction that is taken back leaves keys without a version. Among tombstones that readers leap over they hide
// nothing that comes later.
static void test_among_tombstones(void **state) {
  (void)state;
  char key[16];
  enum { KEYS = 900 };
  for (uint32_t i = 0; i < KEYS; i++) {
    const uint32_t len = (uint32_t)snprintf(key, sizeof(key), "k%05u", i);
    CHECK(remixdb_put(ref, key, len, "v", 1) && remixdb_del(ref, key, len));
  }
  put(ref, "x", "1");
  for (uint32_t back = 0; back < 2; back++) {
    struct xdb_iter *const it = remixdb_iter_create(ref);
    for (uint32_t i = 0; i < 3; i++) {  // the first time it walks, then it leaps
      if (back) remixdb_iter_seek_for_prev(it, "k9", 2);
      else remixdb_iter_seek(it, "k", 1);
      if (!back) assert_string_equal(walk(it, false), "x=1");
      else CHECK(!remixdb_iter_valid(it));
    }
    struct xdb_ref *r;
    struct xdb_txn *const t = begin_txn(&r);
    IS(r, "x", "1");
    for (uint32_t i = 350; i < KEYS; i += 100) {  // not in the first leaf, from which readers leap
      (void)snprintf(key, sizeof(key), "k%05u.%u", i, back);
      del(r, key);
    }
    put(ref, "x", "1");
    CHECK(!remixdb_txn_commit(t) && remixdb_errcode() == REMIXDB_ABORTED);
    put(ref, "k00455", "new");
    if (back) remixdb_iter_seek_for_prev(it, "k9", 2);
    else remixdb_iter_seek(it, "k", 1);
    assert_string_equal(walk(it, back), back ? "k00455=new" : "k00455=new x=1");
    del(ref, "k00455");
    remixdb_iter_destroy(it);
  }
}

// ---- named spaces

// Goes on in a space, beside one with the same keys.
static void enter_space(void) {
  static const char *const keys[] = {"0", "a", "aa", "b", "bb", "c", "cc", "d", "z"};
  struct xdb_space *const beside = remixdb_space_open(x, "beside", true);
  struct xdb_ref *const r = remixdb_space_ref(beside);
  for (uint32_t i = 0; i < 9; i++) {
    put(ref, keys[i], "unnamed");
    put(r, keys[i], "beside");
  }
  remixdb_unref(r);
  remixdb_space_close(beside);
  CHECK((space = remixdb_space_open(x, "mine", true)) != NULL);
  remixdb_unref(ref);
  CHECK((ref = remixdb_space_ref(space)) != NULL);
}

static void leave_space(void) {
  remixdb_unref(ref);
  remixdb_space_close(space);
  space = NULL;
  CHECK((ref = remixdb_ref(x)) != NULL);
}

// All of the above in a named space.
static void test_in_space(void **state) {
  enter_space();
  test_own_ranges(state);
  test_own_writes(state);
  CHECK(remixdb_del(ref, "a", 1) && remixdb_del(ref, "z", 1));
  test_conflicts(state);
  test_read_only(state);
  leave_space();
  IS(ref, "a", "unnamed");
  IS(ref, "z", "unnamed");
}

// A transaction that wrote to a space that is dropped fails, and so does one that read it. Both read it on.
static void test_dropped_space(void **state) {
  (void)state;
  for (uint32_t writes = 0; writes < 2; writes++) {
    struct xdb_space *const sp = remixdb_space_open(x, "dropped", true);
    struct xdb_ref *const plain = remixdb_space_ref(sp);
    CHECK(sp && plain);
    put(plain, "k", "there");
    remixdb_unref(plain);
    struct xdb_ref *r;
    struct xdb_txn *const t = begin_txn(&r);
    struct xdb_ref *const ts = remixdb_txn_ref(t, sp);
    CHECK(ts);
    if (writes) put(ts, "k", "mine");
    put(r, "own", "yes");
    CHECK(remixdb_space_drop(x, "dropped"));
    IS(remixdb_txn_untracked(t, NULL), "own", "yes");
    IS(ts, "k", writes ? "mine" : "there");
    CHECK(!remixdb_txn_commit(t) && remixdb_errcode() == REMIXDB_ABORTED);  // the key that was read is gone, too
    IS(ref, "own", "-");
    remixdb_space_close(sp);
  }
}

// Spaces whose ranges lie side by side, each read up to its end: the drop of any of them is a conflict.
static void test_dropped_of_several(void **state) {
  (void)state;
  static const char *const spaces[] = {"s0", "s1", "s2"};
  for (uint32_t dropped = 0; dropped <= 3; dropped++) {
    struct xdb_space *sp[3];
    for (uint32_t i = 0; i < 3; i++) CHECK((sp[i] = remixdb_space_open(x, spaces[i], true)) != NULL);
    struct xdb_ref *r;
    struct xdb_txn *const t = begin_txn(&r);
    for (uint32_t i = 0; i < 3; i++) {
      struct xdb_iter *const it = remixdb_iter_create(remixdb_txn_ref(t, sp[i]));
      CHECK(it);
      remixdb_iter_seek(it, NULL, 0);
      assert_string_equal(walk(it, false), "");
      remixdb_iter_destroy(it);
    }
    put(r, "own", "yes");
    if (dropped < 3) CHECK(remixdb_space_drop(x, spaces[dropped]));
    CHECK(remixdb_txn_commit(t) == (dropped == 3));
    for (uint32_t i = 0; i < 3; i++) {
      remixdb_space_close(sp[i]);
      CHECK(remixdb_space_drop(x, spaces[i]) == (i != dropped));
    }
  }
}

// The message of a commit that fails tells the key: without its space's id, and the empty key in words. The same for
// read ranges with changes in the memtable or in tables. A dropped space has a message of its own.
static void test_conflict_says(void **state) {
  (void)state;
  static const char changed[] = "another write to what the transaction has read, at ";
  struct xdb_space *const sp = remixdb_space_open(x, "says", true);
  struct xdb_ref *const own = remixdb_space_ref(sp);
  CHECK(sp && own);
  for (uint32_t i = 0; i < 17; i++) {
    const bool range = i & 1, empty = i & 2, in_space = i & 4, tables = i & 8, dropped = i == 16;
    struct xdb_ref *const to = in_space || dropped ? own : ref;
    struct xdb_txn *const t = remixdb_txn_begin(x);
    struct xdb_ref *const r = remixdb_txn_ref(t, to == own ? sp : NULL);
    const char *const key = empty ? "" : "a key";
    char want[128];
    CHECK(t && r);
    if (range) {
      struct xdb_iter *const it = remixdb_iter_create(r);
      for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) {}
      remixdb_iter_destroy(it);
    } else {
      (void)get(r, key);
    }
    put(remixdb_txn_ref(t, NULL), "own", "yes");
    if (dropped) CHECK(remixdb_space_drop(x, "says"));
    else put(to, key, "later");
    if (tables) CHECK(remixdb_flush(ref));
    CHECK(!remixdb_txn_commit(t) && remixdb_errcode() == REMIXDB_ABORTED);
    (void)snprintf(want, sizeof(want), "%s%s", changed, empty ? "the empty key" : "key a\\20key");
    assert_string_equal(remixdb_errmsg(), dropped ? "a space that the transaction has read is dropped" : want);
    if (!dropped) del(to, key);
  }
  remixdb_unref(own);
  remixdb_space_close(sp);
}

static void test_mixed_spaces(void **state) {
  (void)state;
  struct xdb_space *const one = remixdb_space_open(x, "one", true), *const two = remixdb_space_open(x, "two", true);
  struct xdb_ref *const r1 = remixdb_space_ref(one);
  CHECK(one && two && r1);
  for (uint32_t conflict = 0; conflict < 2; conflict++) {
    struct xdb_ref *r;
    struct xdb_txn *const t = begin_txn(&r);
    struct xdb_ref *const t1 = remixdb_txn_ref(t, one), *const t2 = remixdb_txn_ref(t, two);
    CHECK(t1 && t2 && remixdb_txn_ref(t, one) == t1 && remixdb_txn_untracked(t, one) != t1);
    IS(t1, "read", "-");
    put(r, "k", "unnamed");
    put(t1, "k", "in one");
    CHECK(remixdb_txn_savepoint(t));
    put(t2, "k", "undone");
    put(r, "k", "undone");
    CHECK(remixdb_txn_rollback(t));
    struct xdb_batch *const b = remixdb_batch_create();
    remixdb_batch_space(b, two);
    CHECK(remixdb_batch_put(b, "k", 1, "in two", 6));
    remixdb_batch_space(b, NULL);
    CHECK(remixdb_batch_put(b, "l", 1, "unnamed", 7) && remixdb_write(t1, b));
    remixdb_batch_destroy(b);
    IS(t2, "k", "in two");
    IS(r, "k", "unnamed");
    IS(r, "l", "unnamed");
    IS(t1, "k", "in one");
    put(ref, "read", "in another space");
    if (conflict) put(r1, "read", "in the same space");
    CHECK(remixdb_txn_commit(t) == !conflict);
    IS(r1, "k", "in one");  // by the first of the two, at least
    IS(ref, "k", conflict ? "-" : "unnamed");
    CHECK(remixdb_del(ref, "k", 1));
  }
  // A space that is younger than the transaction. Its tree is younger, too.
  struct xdb_ref *r;
  struct xdb_txn *const t = begin_txn(&r);
  CHECK(remixdb_flush(ref));
  struct xdb_space *const three = remixdb_space_open(x, "three", true);
  struct xdb_ref *const t3 = remixdb_txn_ref(t, three);
  CHECK(three && t3);
  IS(t3, "k", "-");
  put(t3, "k", "in three");
  CHECK(remixdb_txn_commit(t));
  remixdb_unref(r1);
  struct xdb_ref *const r3 = remixdb_space_ref(three);
  IS(r3, "k", "in three");
  remixdb_unref(r3);
  remixdb_space_close(one);
  remixdb_space_close(two);
  remixdb_space_close(three);
}

// ---- size

// A transaction that is much larger than a memtable, and has read and written all over it.
static void test_large(void **state) {
  (void)state;
  enum { KEYS = 8000 / SLOW };
  char key[16], val[400];
  memset(val, 'v', sizeof(val));
  for (uint32_t i = 0; i < KEYS; i += 2)
    CHECK(remixdb_put(ref, key, (uint32_t)snprintf(key, sizeof(key), "k%07u", i), "old", 3));
  for (uint32_t conflict = 0; conflict < 3; conflict++) {
    struct xdb_ref *r;
    struct xdb_txn *const t = begin_txn(&r);
    struct xdb_iter *const it = sought(r, "");
    for (uint32_t i = 0; i < KEYS; i++) {
      const uint32_t len = (uint32_t)snprintf(key, sizeof(key), "k%07u", i);
      CHECK(remixdb_iter_valid(it));
      if (i % 3 == 0) CHECK(remixdb_del(r, key, len));
      else CHECK(remixdb_put(r, key, len, val, sizeof(val)));
      if (i % 2 == 0) remixdb_iter_skip1(it);
      if (i == KEYS / 2 && conflict == 1) put(ref, "k0000001x", "phantom");
      if (i == KEYS - 3) break;
    }
    remixdb_iter_destroy(it);
    if (conflict == 2) put(ref, "z", "no phantom: the scan did not come here");
    CHECK(remixdb_txn_commit(t) == (conflict != 1));
    if (conflict == 0) {
      for (uint32_t i = 0; i < KEYS; i += 2)  // the state that the scan above expects, once more
        CHECK(remixdb_put(ref, key, (uint32_t)snprintf(key, sizeof(key), "k%07u", i), "old", 3));
    }
  }
}

// ---- the pool

static uint64_t figure(const char *name) {
  uint64_t value;
  CHECK(remixdb_figure(x, name, &value));
  return value;
}

static void test_figures(void **state) {
  (void)state;
  struct xdb_ref *r, *r2;
  CHECK(figure("transactions.open") == 0 && figure("transactions.committed") == 0);
  struct xdb_txn *const t = begin_txn(&r), *const t2 = begin_txn(&r2);
  CHECK(figure("transactions.open") == 2);
  put(r, "a", "1");
  IS(r2, "a", "-");
  put(r2, "b", "1");
  CHECK(remixdb_txn_commit(t) && figure("transactions.open") == 1 && figure("transactions.committed") == 1);
  CHECK(!remixdb_txn_commit(t2) && remixdb_errcode() == REMIXDB_ABORTED);
  CHECK(figure("transactions.open") == 0 && figure("transactions.committed") == 1);
  CHECK(figure("transactions.conflicts") == 1);
  remixdb_txn_abort(begin_txn(&r));
  CHECK(figure("transactions.open") == 0 && figure("transactions.conflicts") == 1);
}

// A transaction that waits for the next one keeps no memtable and no version that the store has given up; the next one
// reads the store as it is.
static void test_pool(void **state) {
  (void)state;
  struct xdb_ref *r = NULL;
  for (uint32_t i = 0; i < 4; i++) {
    char val[2] = {(char)('0' + i)};
    put(ref, "a", val);
    struct xdb_txn *t = begin_txn(&r);
    IS(r, "a", val);
    put(r, "b", val);
    CHECK(remixdb_txn_commit(t));
    if (i % 2) CHECK(remixdb_compact(ref));
    else if (i) del_range_of(ref, "c", "d");
    else CHECK(remixdb_flush(ref));
    CHECK(figure("pinned.memory_bytes") == 0 && figure("pinned.files") == 0);
    t = begin_txn(&r);
    IS(r, "b", val);
    if (i == 3) CHECK(remixdb_flush(ref));  // it ends when the store has another super
    remixdb_txn_abort(t);
    CHECK(figure("pinned.memory_bytes") == 0 && figure("pinned.files") == 0);
  }
}

// The same beside threads that begin and end transactions all the time.
static _Atomic bool ending;

static void *begin_and_end(void *arg) {
  (void)arg;
  while (!atomic_load(&ending)) {
    struct xdb_txn *const t = remixdb_txn_begin(x);
    struct xdb_ref *const r = t ? remixdb_txn_ref(t, NULL) : NULL;
    CHECK(r && remixdb_probe(r, "a", 1));
    remixdb_txn_abort(t);
  }
  return NULL;
}

static void test_pool_threads(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 40; i++) {
    pthread_t ids[3];
    put(ref, "a", "1");
    atomic_store(&ending, false);
    for (uint32_t k = 0; k < 3; k++) CHECK(pthread_create(&ids[k], NULL, begin_and_end, NULL) == 0);
    for (uint32_t k = 0; k < 3; k++) {
      put(ref, "b", "1");
      CHECK(remixdb_flush(ref));
    }
    atomic_store(&ending, true);
    for (uint32_t k = 0; k < 3; k++) CHECK(pthread_join(ids[k], NULL) == 0);
    CHECK(figure("pinned.memory_bytes") == 0 && figure("pinned.files") == 0 && figure("transactions.open") == 0);
  }
}

// A broken reference takes no memory of the length that it states.
static _Atomic size_t largest;

static bool note_largest(size_t size) {
  if (size > atomic_load(&largest)) atomic_store(&largest, size);
  return true;
}

static enum remixdb_merge_op keep(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  (void)v0, (void)v1, (void)v1len;
  *(uint32_t *)priv = v0len;
  return REMIXDB_MERGE_KEEP;
}

#define APART 64u            // records whose values lie apart,
#define APART_VALUE 100000u  // bytes of such a value

// Passes all nr keys of an iterator, on and back, and turns at each eighth. values: reads the value of every 16th
// record whose value lies apart.
static void scan_apart(struct xdb_iter *it, bool values, uint32_t nr) {
  char key[32];
  uint32_t klen, vlen, at = 0;
  for (remixdb_iter_seek(it, "", 0); remixdb_iter_valid(it); remixdb_iter_skip1(it), at++) {
    const void *const k = remixdb_iter_key(it, &klen);
    CHECK(k && klen == (uint32_t)sprintf(key, "%04u", at) && memcmp(k, key, klen) == 0);
    if (at % 8 == 0 && at) {
      remixdb_iter_prev(it);
      remixdb_iter_skip1(it);
    }
    if (!values || at % 16 || at == APART) continue;
    const uint8_t *const v = remixdb_iter_value(it, &vlen);
    CHECK(v && vlen == APART_VALUE && v[0] == (uint8_t)at && v[vlen - 1] == (uint8_t)at);
  }
  CHECK(at == nr && remixdb_iter_status(it) == REMIXDB_OK);
  for (remixdb_iter_seek_last(it); remixdb_iter_valid(it); remixdb_iter_prev(it)) at--;
  CHECK(at == 0 && remixdb_iter_status(it) == REMIXDB_OK);
}

// Cuts all value files, so that each read of a value fails.
static void cut_values(void) {
  char path[2 * TEMP_DIR + 300];
  uint32_t nr = 0;
  DIR *const d = opendir(dir);
  for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
    const size_t len = strlen(e->d_name);
    if (len < 4 || strcmp(e->d_name + len - 4, ".val") != 0) continue;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
    CHECK(truncate(path, 0) == 0);
    nr++;
  }
  if (d) (void)closedir(d);
  CHECK(nr > 0);
}

// A transaction's scan of keys reads no value that lies apart, and any other scan only those that it is asked for.
static void test_apart(void **state) {
  (void)state;
  static uint8_t value[APART_VALUE];
  char key[32];
  struct xdb_ref *r = NULL;
  uint32_t len;
  for (uint32_t i = 0; i < APART; i++) {
    memset(value, (int)i, sizeof(value));
    CHECK(remixdb_put(ref, key, (uint32_t)sprintf(key, "%04u", i), value, sizeof(value)));
  }
  CHECK(remixdb_flush(ref));
  for (uint32_t way = 0; way < 6; way++) {
    const bool own = way & 1;
    if (way == 2) cut_values();
    struct xdb_txn *const t = begin_txn(&r);
    if (own) put(r, "0064", "mine");
    struct remixdb_iter_opts o;
    remixdb_iter_opts_init(&o, sizeof(o));
    o.keys_only = way >= 4;
    struct xdb_iter *const it = remixdb_iter_create_opts(r, &o);
    CHECK(it);
    scan_apart(it, way < 2, APART + own);
    remixdb_iter_seek(it, "0001", 4);
    CHECK(!remixdb_iter_value(it, &len) == (way >= 2) && remixdb_iter_valid(it) == (way < 2 || way >= 4));
    remixdb_iter_destroy(it);
    remixdb_txn_abort(t);
  }
}

static void test_apart_in_space(void **state) {
  enter_space();
  test_apart(state);
  leave_space();
}

static void test_broken_reference(void **state) {
  (void)state;
  static uint8_t value[200000];
  uint32_t len = 0;
  CHECK(remixdb_put(ref, "long", 4, value, sizeof(value)));
  struct xdb_txn *const t = remixdb_txn_begin(x);
  struct xdb_ref *const r = remixdb_txn_ref(t, NULL);
  CHECK(remixdb_merge(r, "long", 4, keep, &len) && len == sizeof(value));
  // The reference is in the memtable: its length becomes the largest there is.
  epoch_enter(&x->epoch, &ref->slot);
  const struct wh_ver *const ver = wh_get(xdb_super(x)->active->wh, kref("long", 4), hash64("long", 4), WH_PENDING - 1);
  struct kv_rec rec;
  wh_ver_value(ver, &rec);
  epoch_exit(&ref->slot);
  CHECK(rec.kind & KV_APART && rec.vlen == VALUE_REF);
  uint8_t was[VALUE_REF];
  memcpy(was, rec.val, sizeof(was));
  store32le((uint8_t *)(uintptr_t)rec.val + 16, UINT32_MAX);
  atomic_store(&largest, 0);
  atomic_store(&mem_fault, note_largest);
  CHECK(!remixdb_merge(r, "long", 4, keep, &len) && remixdb_errcode() == REMIXDB_CORRUPT);
  atomic_store(&mem_fault, NULL);
  CHECK(atomic_load(&largest) < 4u << 20);
  memcpy((uint8_t *)(uintptr_t)rec.val, was, sizeof(was));
  CHECK(remixdb_merge(r, "long", 4, keep, &len) && len == sizeof(value));
  CHECK(remixdb_merge(r, "none", 4, keep, &len) && len == 0);
  remixdb_txn_abort(t);
}

// A seek that gets no memory forgets what was read before it, perhaps, and works when it is made again. Then another
// write to what was read still stops the commit.
static void test_no_memory_to_note(void **state) {
  (void)state;
  uint32_t failed = 0;
  bool hit = true;
  put(ref, "a", "1");
  put(ref, "c", "1");
  for (int64_t n = 2; n % 2 || hit; n++) {
    struct xdb_ref *r;
    struct xdb_txn *const t = begin_txn(&r);
    struct xdb_iter *const it = remixdb_iter_create(r);
    remixdb_iter_seek(it, "a", 1);
    CHECK(remixdb_iter_valid(it));
    fault_mem_set(n / 2);
    remixdb_iter_seek(it, "c", 1);
    hit = fault_mem_end();
    if (!remixdb_iter_valid(it)) {
      CHECK(hit && remixdb_errcode() == REMIXDB_NOMEM);
      failed++;
      remixdb_iter_seek(it, "c", 1);
    }
    CHECK(remixdb_iter_valid(it));
    remixdb_iter_destroy(it);
    put(r, "z", "1");
    put(ref, n % 2 ? "c" : "a", "2");
    CHECK(!remixdb_txn_commit(t));
    CHECK(remixdb_errcode() == REMIXDB_ABORTED || (hit && remixdb_errcode() == REMIXDB_NOMEM));
    IS(ref, "z", "-");
  }
  assert_true(failed > 0);
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_own_writes, begin, end),
      cmocka_unit_test_setup_teardown(test_own_ranges, begin, end),
      cmocka_unit_test_setup_teardown(test_iter_moment, begin, end),
      cmocka_unit_test_setup_teardown(test_calls, begin, end),
      cmocka_unit_test_setup_teardown(test_savepoints, begin, end),
      cmocka_unit_test_setup_teardown(test_conflict_says, begin, end),
      cmocka_unit_test_setup_teardown(test_conflicts, begin, end),
      cmocka_unit_test_setup_teardown(test_blind_range, begin, end),
      cmocka_unit_test_setup_teardown(test_range_again, begin, end),
      cmocka_unit_test_setup_teardown(test_read_only, begin, end),
      cmocka_unit_test_setup_teardown(test_same_value, begin, end),
      cmocka_unit_test_setup_teardown(test_apart, begin, end),
      cmocka_unit_test_setup_teardown(test_apart_in_space, begin, end),
      cmocka_unit_test_setup_teardown(test_write_skew, begin, end),
      cmocka_unit_test_setup_teardown(test_among_tombstones, begin, end),
      cmocka_unit_test_setup_teardown(test_in_space, begin, end),
      cmocka_unit_test_setup_teardown(test_dropped_space, begin, end),
      cmocka_unit_test_setup_teardown(test_dropped_of_several, begin, end),
      cmocka_unit_test_setup_teardown(test_mixed_spaces, begin, end),
      cmocka_unit_test_setup_teardown(test_large, begin, end),
      cmocka_unit_test_setup_teardown(test_figures, begin, end),
      cmocka_unit_test_setup_teardown(test_pool, begin, end),
      cmocka_unit_test_setup_teardown(test_pool_threads, begin, end),
      cmocka_unit_test_setup_teardown(test_broken_reference, begin, end),
      cmocka_unit_test_setup_teardown(test_no_memory_to_note, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
