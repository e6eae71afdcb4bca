// SPDX-License-Identifier: Apache-2.0
//
// Values of any size through every call: puts, batches, merges, gets, pieces, iterators both ways, pages, many keys,
// asynchronous gets, snapshots, reopening with and without a clean close, checkpoint, verify, repair, destroy; and the
// life of value files: which of them stay, and which go.
#include "tests/lib/store.h"

#include "store/values.h"

#include <dirent.h>
#include <errno.h>

#include "table/fdpool.h"
#include "tests/lib/simdisk.h"
#include "value/format.h"

#define KEYS 40u
#define MOST (8u << 20)

static uint64_t rng;
static uint8_t *noise;  // MOST bytes and some: values are parts of them
static uint8_t *got;    // MOST + 1 bytes
static struct xdb *x;
static struct xdb_ref *r;

// The lengths around all borders.
static const uint32_t lens[] = {0,     1,     24,    900,   1023,  1024,  4096,   16383,  16384,    16385,
                                40000, 65400, 65500, 65501, 65536, 65537, 131072, 300000, 1u << 20, MOST};
#define LENS (sizeof(lens) / sizeof(lens[0]))

struct item {
  bool there;
  uint32_t off, len;
};
static struct item now[KEYS];

static uint32_t key_of(uint32_t i, char buf[16]) { return (uint32_t)snprintf(buf, 16, "key-%05u", i * 7); }
static const uint8_t *value_of(const struct item *v) { return noise + v->off; }

static struct item any_value(void) {
  const uint32_t len = chance(&rng, 30) ? lens[below(&rng, LENS)]
                                        : (uint32_t)below(&rng, chance(&rng, 10) ? 400000 : 30000);
  return (struct item){true, (uint32_t)below(&rng, 5000), len};
}

#define GOOD(call) CHECK_SAYS((call), "%s: %s", remixdb_strerror(remixdb_errcode()), remixdb_errmsg())

static void open_it(const struct remixdb_opts *o) {
  x = quick_open(o);
  shrink(x, 1u << 20, 64);
  GOOD((r = remixdb_ref(x)) != NULL);
}
static void close_it(void) {
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

static void put(uint32_t i, struct item v) {
  char k[16];
  const uint32_t klen = key_of(i, k);
  if (v.there) GOOD(remixdb_put(r, k, klen, value_of(&v), v.len));
  else GOOD(remixdb_del(r, k, klen));
  now[i] = v;
}

// ---- every way to read a value

static void get_is(struct xdb_ref *ref, uint32_t i, const struct item *v) {
  char k[16];
  const uint32_t klen = key_of(i, k);
  uint32_t len = 77, n;
  CHECK(remixdb_probe(ref, k, klen) == v->there);
  if (!v->there) {
    CHECK(!remixdb_get(ref, k, klen, got, &len) && remixdb_errcode() == REMIXDB_NOTFOUND);
    return;
  }
  GOOD(remixdb_get(ref, k, klen, got, &len));
  CHECK(len == v->len && memcmp(got, value_of(v), len) == 0);
  const uint32_t cap = (uint32_t)below(&rng, v->len + 2ull);
  memset(got, 1, cap + 1ull);
  CHECK(remixdb_getn(ref, k, klen, got, cap, &len) == (cap >= v->len));
  CHECK(len == v->len && memcmp(got, value_of(v), cap < len ? cap : len) == 0);
  CHECK(cap >= len || (remixdb_errcode() == REMIXDB_TOOBIG && got[cap] == 1));
  GOOD(remixdb_get(ref, k, klen, NULL, &len));
  CHECK(len == v->len);
  for (uint32_t t = 0; t < 4; t++) {
    const uint32_t off = (uint32_t)below(&rng, v->len + 3ull), most = (uint32_t)below(&rng, t & 1 ? 200 : 200000);
    const uint32_t left = off < v->len ? v->len - off : 0, want = left < most ? left : most;
    GOOD(remixdb_get_part(ref, k, klen, off, got, most, &n, &len));
    CHECK(n == want && len == v->len && memcmp(got, value_of(v) + off, n) == 0);
  }
  GOOD(remixdb_get_part(ref, k, klen, UINT32_MAX, got, 10, &n, &len));
  CHECK(n == 0 && len == v->len);
}

static void iterate(struct xdb_ref *ref, const struct item *all, bool back) {
  struct xdb_iter *const it = remixdb_iter_create(ref);
  CHECK(it);
  if (back) remixdb_iter_seek_last(it);
  else remixdb_iter_seek(it, NULL, 0);
  for (uint32_t at = 0; at < KEYS; at++) {
    const uint32_t i = back ? KEYS - 1 - at : at;
    if (!all[i].there) continue;
    char k[16], key[16];
    const uint32_t klen = key_of(i, k);
    uint32_t n, len;
    CHECK(remixdb_iter_valid(it));
    const void *p = remixdb_iter_key(it, &n);
    CHECK(p && n == klen && memcmp(p, k, n) == 0);
    if (chance(&rng, 70)) {
      GOOD((p = remixdb_iter_value(it, &len)) != NULL || all[i].len == 0);
      CHECK(len == all[i].len && (len == 0 || memcmp(p, value_of(&all[i]), len) == 0));
    }
    GOOD(remixdb_iter_peek(it, key, &n, got, &len));
    CHECK(n == klen && memcmp(key, k, n) == 0 && len == all[i].len && memcmp(got, value_of(&all[i]), len) == 0);
    GOOD(remixdb_iter_peek(it, NULL, NULL, NULL, &len));
    CHECK(len == all[i].len);
    if (back) remixdb_iter_prev(it);
    else remixdb_iter_skip1(it);
  }
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
}

static void page_through(struct xdb_ref *ref, const struct item *all) {
  uint32_t klens[8], vlens[8], i = 0;
  struct remixdb_page p = {.ptr = got, .cap = 40000, .klens = klens, .vlens = vlens, .max = 8};
  struct xdb_iter *const it = remixdb_iter_create(ref);
  remixdb_iter_seek(it, NULL, 0);
  for (;;) {
    if (!remixdb_iter_page(it, &p)) {
      if (remixdb_errcode() == REMIXDB_NOTFOUND) break;
      CHECK(remixdb_errcode() == REMIXDB_TOOBIG && p.cap < MOST);
      p.cap = MOST + 100;
      continue;
    }
    const uint8_t *at = got;
    for (uint32_t n = 0; n < p.nr; n++, i++) {
      char k[16];
      while (i < KEYS && !all[i].there) i++;
      CHECK(i < KEYS && klens[n] == key_of(i, k) && memcmp(at, k, klens[n]) == 0);
      CHECK(vlens[n] == all[i].len && memcmp(at + klens[n], value_of(&all[i]), vlens[n]) == 0);
      at += klens[n] + vlens[n];
    }
    p.cap = chance(&rng, 50) ? 100000 : MOST + 100;
  }
  while (i < KEYS && !all[i].there) i++;
  CHECK(i == KEYS);
  remixdb_iter_destroy(it);
}

static void many(struct xdb_ref *ref, const struct item *all) {
  char k[KEYS][16];
  struct remixdb_slice keys[KEYS];
  struct remixdb_buf bufs[KEYS];
  bool found[KEYS];
  bool small = false;
  size_t nr = 0;
  for (uint32_t i = 0; i < KEYS; i++) {
    keys[i] = (struct remixdb_slice){k[i], key_of(i, k[i])};
    const uint32_t cap = chance(&rng, 80) ? all[i].len : all[i].len / 2;
    bufs[i] = (struct remixdb_buf){malloc(cap + 1ull), cap, 0};
    nr += all[i].there;
    small = small || (all[i].there && cap < all[i].len);
  }
  CHECK(remixdb_multi_get(ref, KEYS, keys, bufs, found) == nr);
  CHECK(remixdb_errcode() == (small ? REMIXDB_TOOBIG : REMIXDB_OK));
  for (uint32_t i = 0; i < KEYS; i++) {
    CHECK(found[i] == all[i].there);
    if (found[i]) {
      const uint32_t n = bufs[i].cap < all[i].len ? bufs[i].cap : all[i].len;
      CHECK(bufs[i].len == all[i].len && memcmp(bufs[i].ptr, value_of(&all[i]), n) == 0);
    }
    free(bufs[i].ptr);
  }
}

static void many_at_once(struct xdb_ref *ref, const struct item *all) {
  struct xdb_gets *const g = remixdb_gets_create(ref, KEYS);
  uint8_t *bufs[KEYS];
  CHECK(g);
  for (uint32_t i = 0; i < KEYS; i++) {
    char k[16];
    const uint32_t klen = key_of(i, k);
    bufs[i] = malloc(all[i].len + 1ull);
    GOOD(remixdb_get_begin(g, k, klen, bufs[i], all[i].len, (void *)(uintptr_t)i));
  }
  uint32_t nr = 0;
  while (nr < KEYS) {
    struct remixdb_got out[KEYS];
    const size_t n = remixdb_get_poll(g, out, KEYS, 1);
    CHECK(n > 0);
    for (size_t k = 0; k < n; k++, nr++) {
      const uint32_t i = (uint32_t)(uintptr_t)out[k].priv;
      CHECK(out[k].status == (all[i].there ? REMIXDB_OK : REMIXDB_NOTFOUND));
      if (all[i].there) CHECK(out[k].len == all[i].len && memcmp(bufs[i], value_of(&all[i]), all[i].len) == 0);
    }
  }
  for (uint32_t i = 0; i < KEYS; i++) free(bufs[i]);
  remixdb_gets_destroy(g);
}

static void all_is(struct xdb_ref *ref, const struct item *all) {
  for (uint32_t i = 0; i < KEYS; i++) get_is(ref, i, &all[i]);
  iterate(ref, all, false);
  iterate(ref, all, true);
  page_through(ref, all);
  many(ref, all);
  many_at_once(ref, all);
}

// ---- writes

static void put_batch(void) {
  struct xdb_batch *const b = remixdb_batch_create();
  for (uint32_t n = 0; n < 8; n++) {
    char k[16];
    const uint32_t i = (uint32_t)below(&rng, KEYS), klen = key_of(i, k);
    const struct item v = chance(&rng, 20) ? (struct item){0} : any_value();
    if (v.there) GOOD(remixdb_batch_put(b, k, klen, value_of(&v), v.len));
    else GOOD(remixdb_batch_del(b, k, klen));
    now[i] = v;
  }
  GOOD(remixdb_write(r, b));
  remixdb_batch_destroy(b);
}

struct merging {
  struct item was, to;
  enum remixdb_merge_op op;
  bool bad;
};
static enum remixdb_merge_op merge_fn(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  struct merging *const m = priv;
  m->bad = (v0 != NULL) != m->was.there || v0len != m->was.len || (v0 && memcmp(v0, value_of(&m->was), v0len) != 0);
  *v1 = value_of(&m->to);
  *v1len = m->to.len;
  return m->op;
}

static void merge(void) {
  char k[16];
  const uint32_t i = (uint32_t)below(&rng, KEYS), klen = key_of(i, k);
  struct merging m = {now[i], any_value(), (enum remixdb_merge_op)below(&rng, 3), false};
  if (!m.was.there) m.was.len = 0;
  GOOD(remixdb_merge(r, k, klen, merge_fn, &m));
  CHECK(!m.bad);
  if (m.op == REMIXDB_MERGE_PUT) now[i] = m.to;
  if (m.op == REMIXDB_MERGE_DEL) now[i] = (struct item){0};
}

static void write_some(uint32_t nr) {
  for (uint32_t n = 0; n < nr; n++) {
    const uint64_t what = below(&rng, 100);
    const uint32_t i = (uint32_t)below(&rng, KEYS);
    if (what < 60) put(i, any_value());
    else if (what < 75) put(i, (struct item){0});
    else if (what < 85) put_batch();
    else merge();
  }
}

// ---- files

static uint32_t value_files(const char *in, uint64_t *bytes_out) {
  DIR *const d = opendir(in);
  uint32_t nr = 0;
  if (bytes_out) *bytes_out = 0;
  for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
    if (!ends_with(e->d_name, ".val")) continue;
    char path[1024];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/%s", in, e->d_name);
    nr++;
    if (bytes_out && stat(path, &st) == 0) *bytes_out += (uint64_t)st.st_size;
  }
  if (d) (void)closedir(d);
  return nr;
}

// ---- tests

static void model(int workers, enum remixdb_compression compression) {
  struct remixdb_opts o = small_opts(workers);
  o.compression = compression;
  o.compression_level = 1;
  memset(now, 0, sizeof(now));
  open_it(&o);
  for (uint32_t round = 0; round < 12 / (SLOW > 1 ? 3 : 1); round++) {
    write_some(25);
    struct item then[KEYS];
    memcpy(then, now, sizeof(now));
    struct xdb_snapshot *const snap = remixdb_snapshot(r);
    struct xdb_ref *const old = remixdb_snapshot_ref(snap);
    CHECK(old);
    all_is(r, now);
    write_some(15);
    if (chance(&rng, 50)) GOOD(remixdb_flush(r));
    write_some(5);
    if (chance(&rng, 30)) GOOD(remixdb_compact(r));
    all_is(r, now);
    all_is(old, then);
    remixdb_unref(old);
    remixdb_snapshot_release(snap);
    GOOD(remixdb_verify(r));
    if (chance(&rng, 60)) {
      x->leave_log = chance(&rng, 50);
      close_it();
      open_it(&o);
      all_is(r, now);
    }
  }
  close_it();
}

static void test_model(void **state) {
  (void)state;
  for (int workers = 0; workers < 2; workers++) {
    model(workers, REMIXDB_COMPRESSION_NONE);
    setup_again();
    model(workers, REMIXDB_COMPRESSION_ZSTD);
    setup_again();
  }
}

// Values that were overwritten or deleted give their room back; those that live stay.
static void test_room(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  memset(now, 0, sizeof(now));
  open_it(&o);
  for (uint32_t i = 0; i < KEYS; i++) put(i, (struct item){true, i, 300000});
  GOOD(remixdb_flush(r));
  uint64_t bytes;
  CHECK(value_files(dir, &bytes) > 0 && bytes > KEYS * 300000ull);
  for (uint32_t t = 0; t < 3; t++)
    for (uint32_t i = 0; i < KEYS; i++) put(i, (struct item){true, i + t, 300000});
  for (uint32_t i = 0; i < KEYS; i++) put(i, (struct item){true, i, 10});
  put(3, (struct item){true, 9, 200000});
  close_it();
  open_it(&o);
  GOOD(remixdb_compact(r));
  close_it();  // the file that took the last values is not full
  open_it(&o);
  GOOD(remixdb_compact(r));
  all_is(r, now);
  CHECK(value_files(dir, &bytes) == 1);
  put(3, (struct item){0});
  GOOD(remixdb_compact(r));
  CHECK(value_files(dir, NULL) == 0);
  all_is(r, now);
  close_it();
}

static uint64_t figure(const char *name) {
  uint64_t n;
  GOOD(remixdb_figure(x, name, &n));
  return n;
}

// The figures tell how many bytes are garbage: those of records that a newer one hides, in runs that are not merged,
// and those that no table has any more. After a crash, too.
static void test_figures(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  memset(now, 0, sizeof(now));
  open_it(&o);
  CHECK(figure("values.files") == 0 && figure("values.garbage_bytes") == 0);
  for (uint32_t i = 0; i < KEYS; i++) put(i, (struct item){true, i, 100000});
  GOOD(remixdb_sync(r));
  x->leave_log = true;  // as after a crash
  close_it();
  open_it(&o);
  GOOD(remixdb_flush(r));
  const uint64_t bytes = KEYS * 100000ull;
  CHECK(figure("values.files") == 1 && figure("values.value_bytes") == bytes);
  CHECK(figure("values.file_bytes") > bytes && figure("values.garbage_bytes") == 0);
  for (uint32_t i = 0; i < KEYS / 2; i++) put(i, (struct item){true, i + 1, 100000});
  GOOD(remixdb_flush(r));
  CHECK(figure("values.files") == 2 && figure("values.value_bytes") == bytes + bytes / 2);
  CHECK(figure("values.garbage_bytes") == bytes / 2);
  CHECK(figure("values.written") == KEYS / 2 && figure("values.written_bytes") > bytes / 2);
  GOOD(remixdb_compact(r));
  CHECK(figure("values.garbage_bytes") == 0 && figure("values.value_bytes") == bytes);
  CHECK(figure("values.collections") == 1 && figure("values.moved_bytes") == bytes / 2);
  all_is(r, now);
  close_it();
}

// A snapshot keeps the files of its values, and only as long as it lives.
static void test_snapshot(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  memset(now, 0, sizeof(now));
  open_it(&o);
  for (uint32_t i = 0; i < 5; i++) put(i, (struct item){true, i, 100000});
  close_it();
  open_it(&o);
  struct item then[KEYS];
  memcpy(then, now, sizeof(now));
  struct xdb_snapshot *const snap = remixdb_snapshot(r);
  struct xdb_ref *const old = remixdb_snapshot_ref(snap);
  for (uint32_t i = 0; i < 5; i++) put(i, (struct item){0});
  GOOD(remixdb_compact(r));
  CHECK(value_files(dir, NULL) == 1);
  all_is(old, then);
  all_is(r, now);
  remixdb_unref(old);
  remixdb_snapshot_release(snap);
  CHECK(value_files(dir, NULL) == 0);
  close_it();
}

// A checkpoint has all values, at its moment, and does not change with its source.
static void test_checkpoint(void **state) {
  (void)state;
  for (int flush = 0; flush < 2; flush++) {
    struct remixdb_opts o = small_opts(0);
    memset(now, 0, sizeof(now));
    open_it(&o);
    write_some(30);
    if (flush) GOOD(remixdb_flush(r));
    write_some(10);
    char copy[2 * TEMP_DIR + 16];
    (void)snprintf(copy, sizeof(copy), "%s/copy", dir);
    GOOD(remixdb_checkpoint(r, copy));
    struct item then[KEYS];
    memcpy(then, now, sizeof(now));
    uint64_t before, after;
    const uint32_t nr = value_files(copy, &before);
    for (uint32_t i = 0; i < KEYS; i++) put(i, (struct item){true, i, 20000 + i});
    GOOD(remixdb_sync(r));
    CHECK(value_files(copy, &after) == nr && before == after);
    GOOD(remixdb_compact(r));
    all_is(r, now);
    close_it();
    struct remixdb_opts co = small_opts(0);
    struct xdb *const c = remixdb_open_opts(copy, &co);
    GOOD(c != NULL);
    struct xdb_ref *const cr = remixdb_ref(c);
    GOOD(remixdb_verify(cr));
    all_is(cr, then);
    GOOD(remixdb_compact(cr));
    all_is(cr, then);
    remixdb_unref(cr);
    remixdb_close(c);
    GOOD(remixdb_destroy(copy));
    CHECK(access(copy, F_OK) != 0);
    setup_again();
  }
}

// ---- checkpoints beside writers

#define WRITERS 3u
#define THEIR_KEYS 6u

struct writer {
  pthread_t thread;
  uint32_t which;
  _Atomic uint32_t written;  // number of the last write that has returned
  _Atomic bool stop;
};

// The n-th value of a writer: its number, then noise. Most are apart from the log on, some by a round, some never.
static uint32_t nth_len(uint32_t n) { return 8 + (n % 3 ? 17000 + n * 7919 % 30000 : n % 2 ? 5000 : 50); }
static uint32_t nth_off(const struct writer *w, uint32_t n) { return (n * 131 + w->which * 17) % 5000; }

static void *write_on(void *arg) {
  struct writer *const w = arg;
  struct xdb_ref *const ref = remixdb_ref(x);
  uint8_t *const value = malloc(64 << 10);
  THREAD_CHECK(ref && value);
  for (uint32_t n = 1; !atomic_load_explicit(&w->stop, memory_order_relaxed); n++) {
    const uint8_t key[2] = {(uint8_t)w->which, (uint8_t)(n % THEIR_KEYS)};
    store64le(value, n);
    memcpy(value + 8, noise + nth_off(w, n), nth_len(n) - 8);
    THREAD_CHECK(remixdb_put(ref, key, sizeof(key), value, nth_len(n)));
    atomic_store_explicit(&w->written, n, memory_order_release);
  }
  free(value);
  remixdb_unref(ref);
  return NULL;
}

// The writer's values in the copy are those of one moment, after `least` writes and before write `most` + 2 began.
static void moment_is(struct xdb_ref *copy, const struct writer *w, uint32_t least, uint32_t most) {
  uint32_t last = 0, len, n;
  for (uint32_t pass = 0; pass < 2; pass++) {
    for (uint32_t i = 0; i < THEIR_KEYS; i++) {
      const uint8_t key[2] = {(uint8_t)w->which, (uint8_t)i};
      if (!remixdb_get(copy, key, sizeof(key), got, &len)) {
        CHECK(remixdb_errcode() == REMIXDB_NOTFOUND && least < THEIR_KEYS);
        continue;
      }
      n = (uint32_t)load64le(got);
      CHECK(n % THEIR_KEYS == i && len == nth_len(n) && memcmp(got + 8, noise + nth_off(w, n), len - 8) == 0);
      if (pass == 0 && n > last) last = n;
      CHECK(pass == 0 || n + THEIR_KEYS > last);
    }
  }
  CHECK(last >= least && last <= most + 1);
}

static void test_checkpoint_beside(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  struct writer w[WRITERS] = {0};
  uint32_t least[WRITERS];
  char copy[2 * TEMP_DIR + 16];
  o.workers = 2;
  open_it(&o);
  (void)snprintf(copy, sizeof(copy), "%s/copy", dir);
  for (uint32_t i = 0; i < WRITERS; i++) {
    w[i].which = i;
    CHECK(pthread_create(&w[i].thread, NULL, write_on, &w[i]) == 0);
  }
  for (uint32_t round = 0; round < 8; round++) {
    for (uint32_t i = 0; i < WRITERS; i++) {
      while ((least[i] = atomic_load_explicit(&w[i].written, memory_order_acquire)) < 20 * (round + 1)) usleep(1000);
    }
    GOOD(remixdb_checkpoint(r, copy));
    struct remixdb_opts co = small_opts(0);
    uint32_t most[WRITERS];
    for (uint32_t i = 0; i < WRITERS; i++) most[i] = atomic_load_explicit(&w[i].written, memory_order_acquire);
    struct xdb *const c = remixdb_open_opts(copy, &co);
    GOOD(c != NULL);
    struct xdb_ref *const cr = remixdb_ref(c);
    GOOD(remixdb_verify(cr));
    for (uint32_t i = 0; i < WRITERS; i++) moment_is(cr, &w[i], least[i], most[i]);
    remixdb_unref(cr);
    remixdb_close(c);
    GOOD(remixdb_destroy(copy));
  }
  for (uint32_t i = 0; i < WRITERS; i++) atomic_store_explicit(&w[i].stop, true, memory_order_relaxed);
  for (uint32_t i = 0; i < WRITERS; i++) (void)pthread_join(w[i].thread, NULL);
  GOOD(remixdb_verify(r));
  close_it();
}

// A flipped bit in a value file: reads of that value and verify say so and name the file, other values are read, and a
// repair keeps them.
static void test_damage(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  memset(now, 0, sizeof(now));
  open_it(&o);
  for (uint32_t i = 0; i < KEYS; i++) put(i, (struct item){true, i, i % 4 == 3 ? 2000 + i : 70000 + i});
  close_it();
  char path[2 * TEMP_DIR + 300] = "";  // a name has 255 bytes at most
  DIR *const d = opendir(dir);
  for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
    if (ends_with(e->d_name, ".val") && !path[0]) (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
  if (d) (void)closedir(d);
  FILE *const f = fopen(path, "r+b");
  CHECK(f && fseek(f, -30000, SEEK_END) == 0);
  const int c = fgetc(f);
  CHECK(fseek(f, -30000, SEEK_END) == 0 && fputc(c ^ 16, f) != EOF && fclose(f) == 0);
  open_it(&o);
  CHECK(!remixdb_verify(r) && remixdb_errcode() == REMIXDB_CORRUPT && strstr(remixdb_errmsg(), ".val"));
  uint32_t bad = KEYS;
  for (uint32_t i = 0; i < KEYS; i++) {
    char k[16];
    uint32_t len;
    if (remixdb_get(r, k, key_of(i, k), got, &len)) {
      get_is(r, i, &now[i]);
      continue;
    }
    CHECK(bad == KEYS && remixdb_errcode() == REMIXDB_CORRUPT && strstr(remixdb_errmsg(), ".val"));
    bad = i;
    uint32_t n;
    GOOD(remixdb_get_part(r, k, key_of(i, k), 66000, got, 100, &n, &len));  // another chunk is whole
    CHECK(n == 100 && memcmp(got, value_of(&now[i]) + 66000, n) == 0);
  }
  CHECK(bad < KEYS);
  close_it();
  GOOD(remixdb_repair(dir));
  CHECK(strstr(remixdb_errmsg(), "LOST"));
  open_it(&o);
  now[bad] = (struct item){0};
  all_is(r, now);
  GOOD(remixdb_verify(r));
  close_it();
}

// Durable records of the log refer to a value file with a damaged header. The opening names the file.
static void test_damaged_header(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  memset(now, 0, sizeof(now));
  open_it(&o);
  for (uint32_t i = 0; i < 5; i++) put(i, (struct item){true, i, 70000});
  GOOD(remixdb_sync(r));
  x->leave_log = true;
  close_it();
  char path[2 * TEMP_DIR + 300] = "";
  DIR *const d = opendir(dir);
  for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
    if (ends_with(e->d_name, ".val")) (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
  if (d) (void)closedir(d);
  for (long off = 0; off < (long)VALUE_HEAD; off += 9) {
    for (uint32_t turn = 0; turn < 2; turn++) {
      FILE *const f = fopen(path, "r+b");
      CHECK(f && fseek(f, off, SEEK_SET) == 0);
      const int c = fgetc(f);
      CHECK(fseek(f, off, SEEK_SET) == 0 && fputc(c ^ 16, f) != EOF && fclose(f) == 0);
      if (turn) continue;
      struct xdb *none;
      CHECK(xdb_open(dir, &o, quick_env(), &none) == REMIXDB_CORRUPT);
      CHECK_SAYS(strstr(err_msg(), path) && strstr(err_msg(), "wal-"), "%s", err_msg());
    }
  }
  open_it(&o);
  all_is(r, now);
  close_it();
}

// A value that is too large for the memory of a memtable and for the log needs neither.
static void test_large(void **state) {
  (void)state;
  const size_t size = (size_t)(SLOW > 1 ? 40 : 200) << 20;
  struct remixdb_opts o = small_opts(1);
  o.wal_mb = 1;
  open_it(&o);
  uint8_t *const big = malloc(size), *const back = malloc(size);
  for (size_t i = 0; i < size; i += 8) store64le(big + i, i * 0x9e3779b97f4a7c15u);
  for (uint32_t i = 0; i < 3; i++) {
    big[0] = (uint8_t)i;
    GOOD(remixdb_put(r, "big", 3, big, (uint32_t)size));
  }
  uint32_t len;
  GOOD(remixdb_get(r, "big", 3, back, &len));
  CHECK(len == size && memcmp(back, big, size) == 0);
  CHECK(stat_of(x, "memtable_active") < 1u << 20);
  GOOD(remixdb_compact(r));
  GOOD(remixdb_get(r, "big", 3, back, &len));
  CHECK(len == size && memcmp(back, big, size) == 0);
  close_it();
  open_it(&o);
  GOOD(remixdb_compact(r));
  uint64_t bytes;
  CHECK(value_files(dir, &bytes) == 1 && bytes < size + (1u << 20));
  free(big);
  free(back);
  close_it();
}

// Bytes written to the log, tables, REMIXes and value files since the store was opened.
static uint64_t written_bytes(void) {
  struct wal_stats log;
  struct compact *const c = &x->compact;
  wal_stats(x->wal, &log);
  return log.bytes + atomic_load(&c->stats.table_bytes) + atomic_load(&c->stats.remix_bytes) +
         atomic_load(&c->values.file_bytes) + atomic_load(&x->values.file_bytes);
}

// A random load writes each value once to the log and once apart, from 4 KiB on, and longer values once, apart.
static void test_amplification(void **state) {
  (void)state;
  static const struct {
    uint32_t len;
    double most;
  } loads[] = {{4096, 2.15}, {8192, 2.1}, {65536, 1.02}};
  for (uint32_t i = 0; i < sizeof(loads) / sizeof(loads[0]); i++) {
    const uint32_t len = loads[i].len, nr = (24u << 20) / len / SLOW;
    struct remixdb_opts o = small_opts((int)(i & 1));
    open_it(&o);
    const uint64_t before = written_bytes();
    uint64_t user = 0;
    for (uint32_t n = 0; n < nr; n++) {
      char k[16];
      const uint32_t klen = (uint32_t)snprintf(k, sizeof(k), "%015llu",
                                               (unsigned long long)(n * 2654435761u % (1u << 30)));
      GOOD(remixdb_put(r, k, klen, noise + below(&rng, 100000), len));
      user += klen + len;
    }
    GOOD(remixdb_flush(r));
    const double amplification = (double)(written_bytes() - before) / (double)user;
    print_message("values of %u bytes: %.3f bytes written per byte; %llu rounds, %llu values apart by them\n", len,
                  amplification, (unsigned long long)atomic_load(&x->compact.stats.rounds),
                  (unsigned long long)atomic_load(&x->compact.stats.apart));
    if (SLOW == 1) CHECK(amplification < loads[i].most);
    CHECK(atomic_load(&x->compact.stats.apart) == (len < VALUES_DIRECT ? nr : 0));
    // a round does not begin a file of its own
    CHECK(value_files(dir, NULL) <= 5);
    const uint64_t values = atomic_load(&x->compact.values.file_bytes);
    GOOD(remixdb_compact(r));
    CHECK(atomic_load(&x->compact.values.file_bytes) == values);
    close_it();
    setup_again();
  }
}

// Names of spaces are installed beside a round: the files that the round has written stay. The next round takes out the
// files that no version has.
static void test_beside_a_round(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  open_it(&o);
  put(1, (struct item){true, 0, 5000});
  GOOD(remixdb_flush(r));
  // as far as a round has come when its jobs have ended
  struct value_batch b = {.log = &x->compact.values};
  uint8_t ref[VALUE_REF];
  CHECK(value_batch_put(&b, kref("k", 1), noise, 5000, ref) == REMIXDB_OK && value_batch_end(&b) == REMIXDB_OK);
  value_log_turn(&x->compact.values);
  value_batch_fini(&b);
  const uint64_t number = load64le(ref);
  struct xdb_space *const s = remixdb_space_open(x, "beside", true);
  GOOD(s != NULL);
  CHECK(value_log_find(&x->compact.values, number));
  remixdb_space_close(s);
  put(1, (struct item){0});
  GOOD(remixdb_compact(r));
  CHECK(!value_log_find(&x->compact.values, number) && value_files(dir, NULL) == 0);
  close_it();
}

// Commits a transaction with a long value, which conflicts.
static void commit_in_vain(bool deletes) {
  struct xdb_txn *const t = remixdb_txn_begin(x);
  uint32_t len;
  CHECK(t);
  struct xdb_ref *const mine = remixdb_txn_ref(t, NULL);
  CHECK(mine);
  (void)remixdb_get(mine, "a", 1, NULL, &len);
  GOOD(remixdb_put(mine, "key", 3, noise, 300000));
  if (deletes) GOOD(remixdb_del_range(mine, &(struct remixdb_range){{"x", 1}, {"y", 1}}));
  GOOD(remixdb_put(r, "a", 1, "b", 1));
  CHECK(!remixdb_txn_commit(t) && remixdb_errcode() == REMIXDB_ABORTED);
}

// A value that its write gives up after it was written, with no record.
static void give_up(void) {
  struct value_apart apart = {0};
  struct kv_rec rec = {.key = (const uint8_t *)"key", .klen = 3, .val = noise, .vlen = 300000};
  OK(values_put(x, &rec, &apart));
  CHECK(values_end(x, &apart, REMIXDB_ABORTED) == REMIXDB_ABORTED);
}

// Values that are given up take no more room and descriptors than those of a few memtables, although no record of them
// comes to be.
static void test_given_up(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  open_it(&o);
  x->values.full = 1u << 20;  // each value has a file of its own
  x->values_least = 4u << 20;
  for (uint32_t way = 0; way < 3; way++) {
    const uint64_t rounds = figure("compaction.rounds");
    uint32_t most = 0;
    for (uint32_t i = 0; i < 120; i++) {
      if (way < 2) commit_in_vain(way == 1);
      else give_up();
      // 20 of them make the memtable full, which has no record then
      if (way == 2 && i % 20 == 19) GOOD(remixdb_put(r, "b", 1, noise, 20000));
      const uint32_t nr = value_files(dir, NULL);
      if (nr > most) most = nr;
    }
    CHECK_SAYS(most <= 40 && figure("compaction.rounds") > rounds, "way %u: %u files", way, most);
  }
  close_it();
}

// A value counts once: as the memtable's when the log has its record, or as lost.
static void test_counts(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  enum { LEN = 300000, VAIN = 5 };
  open_it(&o);
  uint64_t held = 0;
  for (uint32_t way = 0; way < 5; way++) {
    struct xdb_batch *const b = remixdb_batch_create();
    CHECK(b);
    for (uint32_t i = 0; i < 2; i++) GOOD(remixdb_batch_put(b, i ? "p" : "q", 1, noise, LEN));
    if (way == 0) GOOD(remixdb_put(r, "k", 1, noise, LEN));
    if (way == 1) GOOD(remixdb_put_if(r, "n", 1, noise, LEN, 0));  // as a merge
    if (way == 3) GOOD(remixdb_batch_del_range(b, &(struct remixdb_range){{"x", 1}, {"y", 1}}));
    if (way == 2 || way == 3) GOOD(remixdb_write(r, b));
    held += way < 2 ? LEN : way < 4 ? 2 * LEN : 0;
    CHECK_SAYS(figure("values.memtable_bytes") == held && atomic_load(&x->values_lost) == 0, "way %u", way);
    remixdb_batch_destroy(b);
  }
  for (uint32_t i = 1; i <= 2 * VAIN; i++) {
    commit_in_vain(i > VAIN);
    CHECK_SAYS(figure("values.memtable_bytes") == held && atomic_load(&x->values_lost) == (uint64_t)i * LEN, "%u", i);
  }
  give_up();
  CHECK(figure("values.memtable_bytes") == held && atomic_load(&x->values_lost) == (2 * VAIN + 1) * (uint64_t)LEN);
  GOOD(remixdb_flush(r));
  CHECK(figure("values.memtable_bytes") == 0 && atomic_load(&x->values_lost) == 0);
  close_it();
}

// ---- a failed sync of a value file

enum sync_way { SYNC_PUT, SYNC_NEXT, SYNC_MERGE, SYNC_BATCH, SYNC_GROUP, SYNC_VAIN, SYNC_WAYS };

// Makes the write of which a sync fails. It fails, too.
static void fail_write(enum sync_way way) {
  struct value_apart apart = {0};
  struct kv_rec rec = {.key = (const uint8_t *)"key", .klen = 3, .val = noise, .vlen = 70000};
  struct xdb_batch *const b = remixdb_batch_create();
  CHECK(b);
  for (uint32_t i = 0; i < 24; i++) GOOD(remixdb_batch_put(b, &"abcdefghijklmnopqrstuvwx"[i], 1, noise, 70000));
  if (way == SYNC_PUT) CHECK(!remixdb_put(r, "key", 3, noise, 70000));
  if (way == SYNC_NEXT) CHECK(!remixdb_put(r, "key", 3, noise, 60000));
  if (way == SYNC_MERGE) CHECK(!remixdb_put_if(r, "key", 3, noise, 70000, 0));
  if (way == SYNC_GROUP) GOOD(remixdb_batch_del_range(b, &(struct remixdb_range){{"x", 1}, {"y", 1}}));
  if (way == SYNC_BATCH || way == SYNC_GROUP) CHECK(!remixdb_write(r, b));
  if (way == SYNC_VAIN) {
    OK(values_put(x, &rec, &apart));
    CHECK(values_end(x, &apart, err_set(REMIXDB_INVALID, "other words")) == REMIXDB_INVALID);
    CHECK(strcmp(err_msg(), "other words") == 0);
  } else {
    CHECK(remixdb_errcode() == REMIXDB_IO);
    CHECK_SAYS(strstr(remixdb_errmsg(), "sync /store/"), "%s", remixdb_errmsg());
  }
  remixdb_batch_destroy(b);
}

static bool refused(bool done) {
  return !done && remixdb_errcode() == REMIXDB_IO && strstr(remixdb_errmsg(), "sync /store/");
}

static void fail_sync(enum sync_way way, int error) {
  struct simdisk *const d = simdisk_create();
  struct remixdb_opts o = small_opts(0);
  CHECK(d);
  o.max_open_files = 16;
  o.io = "sync";
  OK(xdb_open("/store", &o, simdisk_env(d), &x));
  x->values.full = 256 << 10;
  GOOD((r = remixdb_ref(x)) != NULL);
  CHECK(fdpool_hold(x->fds, 4));  // so a full file is synced at once
  GOOD(remixdb_put(r, "short", 5, "v", 1) && remixdb_put(r, "long", 4, noise, 60000));
  GOOD(remixdb_sync(r));
  for (uint32_t i = 0; i < (way == SYNC_NEXT ? 3u : 0u); i++) GOOD(remixdb_put(r, "more", 4, noise, 60000));
  simdisk_fault(d, SIMDISK_SYNC, 0, 1, error);
  fail_write(way);
  simdisk_fault(d, SIMDISK_SYNC, 0, 0, 0);
  // A put that has met the failure behind its record may have left it there.
  if (way != SYNC_PUT && way != SYNC_MERGE) CHECK(!remixdb_probe(r, "key", 3) && !remixdb_probe(r, "a", 1));
  // nothing is taken any more, and reads go on
  struct xdb_txn *const t = remixdb_txn_begin(x);
  CHECK(t && remixdb_put(remixdb_txn_ref(t, NULL), "s", 1, "v", 1));
  CHECK(refused(remixdb_put(r, "s", 1, "v", 1)) && refused(remixdb_del(r, "short", 5)));
  CHECK(refused(remixdb_put(r, "l", 1, noise, 70000)) && refused(remixdb_txn_commit(t)));
  CHECK(refused(remixdb_flush(r)));
  uint32_t len;
  CHECK(remixdb_getn(r, "long", 4, got, 60000, &len) && len == 60000 && memcmp(got, noise, len) == 0);
  fdpool_unhold(x->fds, 4);
  struct simdisk *const left = simdisk_crash(d, (uint64_t)way);
  remixdb_unref(r);
  CHECK(xdb_close(x) == REMIXDB_IO);
  // all that was synced is there, with the power cut and without
  for (uint32_t cut = 0; cut < 2; cut++) {
    OK(xdb_open("/store", &o, simdisk_env(cut ? left : d), &x));
    GOOD((r = remixdb_ref(x)) != NULL);
    CHECK(remixdb_getn(r, "long", 4, got, 60000, &len) && len == 60000 && memcmp(got, noise, len) == 0);
    CHECK(remixdb_probe(r, "short", 5) && !remixdb_probe(r, "s", 1));
    GOOD(remixdb_put(r, "l", 1, noise, 70000) && remixdb_sync(r));
    close_it();
  }
  simdisk_destroy(left);
  simdisk_destroy(d);
}

static void test_sync_fails(void **state) {
  (void)state;
  static const int errors[] = {EIO, ENOSPC, ENOMEM};
  for (enum sync_way way = 0; way < SYNC_WAYS; way++)
    for (uint32_t e = 0; e < 3; e++) fail_sync(way, errors[e]);
}

static int values_setup(void **state) {
  if (!noise) {
    noise = malloc(MOST + 8192);
    got = malloc(MOST + 100);
    uint64_t n = 5;
    for (size_t i = 0; i < MOST + 8192; i++) noise[i] = i % 512 < 300 ? (uint8_t)rng_next(&n) : (uint8_t)(i >> 10);
  }
  rng = check_seed;
  return setup(state);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_model, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_room, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_figures, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_snapshot, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_checkpoint, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_checkpoint_beside, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_damage, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_damaged_header, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_large, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_amplification, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_beside_a_round, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_given_up, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_counts, values_setup, teardown),
      cmocka_unit_test_setup_teardown(test_sync_fails, values_setup, teardown),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
