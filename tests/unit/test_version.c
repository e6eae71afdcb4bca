// SPDX-License-Identifier: Apache-2.0
//
// Versions: finding a partition against a search in an array, CURRENT written and read back, damaged in every bit, and
// the files that are cleaned away.
#include <fcntl.h>

#include "tests/lib/check.h"
#include "tests/lib/place.h"
#include "tests/lib/both.h"

#define VALUE 20u

// ---- finding a partition

static struct version *version_of(struct kref *anchors, uint32_t nr) {
  struct part **parts = calloc(nr, sizeof(*parts));
  struct version *v;
  for (uint32_t i = 0; i < nr; i++) OK(part_create(anchors[i], NULL, NULL, &parts[i]));
  OK(version_create(parts, nr, &v));
  free(parts);
  return v;
}

static uint32_t model_find(const struct kref *anchors, uint32_t nr, struct kref key) {
  uint32_t at = 0;
  for (uint32_t i = 1; i < nr; i++)
    if (kv_cmp(anchors[i], key) <= 0) at = i;
  return at;
}

struct shape {
  uint32_t common;   // bytes that all share
  uint32_t middle;   // after which so many bytes come from a few values only
  uint32_t tail;     // at most so many random ones
  uint32_t letters;  // from an alphabet of so many, 0 and 255 among them
};

static uint32_t shape_key(const struct shape *s, uint64_t *rng, uint8_t *buf) {
  static const uint8_t letters[] = {0, 0xff, 'a', 'b', 1, 0x80, 0x7f, 'z'};
  uint32_t len = 0;
  for (; len < s->common; len++) buf[len] = (uint8_t)('k' + len % 3);
  const uint8_t same = letters[rng_next(rng) % 2];
  for (uint32_t i = 0; i < s->middle; i++) buf[len++] = same;
  for (uint32_t n = (uint32_t)(rng_next(rng) % (s->tail + 1)); n > 0; n--)
    buf[len++] = letters[rng_next(rng) % s->letters];
  return len;
}

// Whether a search may compare the first bytes of a key only (V9).
static bool model_few(const struct kref *anchors, uint32_t nr) {
  bool few = nr <= VERSION_FEW;
  for (uint32_t i = 1; i < nr; i++) {
    bool zeros = true;
    for (uint32_t b = 0; b < anchors[i].len; b++) zeros = zeros && anchors[i].ptr[b] == 0;
    few = few && anchors[i].len <= 8 && !zeros;
  }
  return few;
}

// most: how many partitions the version may have. Returns whether there are several, and they are few (V9).
static bool find_once(const struct shape *s, uint32_t most, uint64_t seed) {
  uint64_t rng = seed;
  const uint32_t want = 1 + (uint32_t)(rng_next(&rng) % most);
  static uint8_t bytes[128][64];
  struct kref anchors[128];
  uint32_t nr = 1;
  anchors[0] = kref(bytes[0], 0);
  for (uint32_t i = 1; i < want; i++) {
    anchors[nr] = kref(bytes[i], shape_key(s, &rng, bytes[i]));
    if (anchors[nr].len) nr++;
  }
  qsort(anchors, nr, sizeof(anchors[0]), key_order);
  uint32_t distinct = 1;
  for (uint32_t i = 1; i < nr; i++)
    if (!kv_eq(anchors[i], anchors[distinct - 1])) anchors[distinct++] = anchors[i];
  nr = distinct;
  struct version *v = version_of(anchors, nr);
  assert_int_equal(v->nr_parts, nr);
  assert_int_equal(v->few, model_few(anchors, nr));
  for (uint32_t i = 0; i < 400; i++) {
    uint8_t key[80];
    uint32_t len;
    if (i < 2 * nr || rng_next(&rng) % 2) {  // an anchor, or near one
      const struct kref a = i < nr ? anchors[i] : anchors[rng_next(&rng) % nr];
      len = a.len;
      if (len) memcpy(key, a.ptr, len);
      switch (i < nr ? 0 : rng_next(&rng) % 5) {
        case 1: key[len++] = 0; break;
        case 2: key[len++] = 0xff; break;
        case 3: len = len ? (uint32_t)(rng_next(&rng) % len) : 0; break;
        case 4:
          if (len) key[rng_next(&rng) % len] ^= (uint8_t)(1u << rng_next(&rng) % 8);
          break;
        default: break;
      }
    } else {
      len = shape_key(s, &rng, key);
    }
    const uint32_t got = version_find(v, kref(key, len)), expected = model_find(anchors, nr, kref(key, len));
    if (got != expected)
      fail_msg("seed %llu: key %u: partition %u, %u expected of %u", (unsigned long long)seed, i, got, expected, nr);
  }
  assert_int_equal(version_find(v, kref(NULL, 0)), 0);
  const bool few = v->few && nr > 1;
  version_unref(v);
  return few;
}

static void test_find(void **state) {
  (void)state;
  static const struct shape shapes[] = {
      {0, 0, 12, 8}, {0, 0, 3, 3}, {0, 8, 6, 4}, {0, 9, 4, 2},   {1, 0, 10, 8}, {5, 0, 6, 8},
      {7, 0, 3, 8},  {8, 0, 8, 8}, {9, 8, 5, 4}, {20, 0, 20, 2}, {20, 8, 9, 8},
  };
  uint32_t nr_few = 0;
  for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
    for (uint64_t seed = 1; seed <= 25; seed++) (void)find_once(&shapes[i], 120, seed * 1000 + i);
    for (uint64_t seed = 1; seed <= 50; seed++) nr_few += find_once(&shapes[i], VERSION_FEW + 2, seed * 1000 + i);
  }
  assert_true(nr_few > 50);
}

// ---- versions with tables

struct store {
  struct place p;
  struct keyset k;
  struct version *v;
};

// Four partitions: nothing; three tables; one table, REMIX without tags; nothing. With young views two more tables for
// the second and one for the third.
static void store_init(struct store *s, uint64_t seed) {
  uint64_t rng = seed;
  place_init(&s->p, 0);
  keyset_make(&s->k, 400, &rng);
  const uint32_t n = s->k.nr, cut[5] = {0, n / 5, n / 2, n - n / 5, n};
  struct part *parts[4];
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t tables = i == 1 ? 3 : i == 2 ? 1 : 0, more = with_young && tables ? 3 - i : 0;
    struct remix *x = NULL, *young = NULL;
    for (uint32_t t = 0; t < tables + more; t++) {
      uint32_t *what = calloc(n, sizeof(*what));
      for (uint32_t a = cut[i]; a < cut[i + 1]; a++) what[a] = rng_next(&rng) % 3 ? NONE : 2 + t;
      what[cut[i] + t] = 2;
      if (t >= tables) what[cut[i] + 1] = TOMB;
      struct remix **const view = t < tables ? &x : &young;
      *view = remix_add(&s->p, *view, table_make(&s->p, &s->k, what, cut[i], cut[i + 1], VALUE, t % 2 == 0), i == 1);
      free(what);
    }
    if (young) remix_make_young(young);
    OK(part_create(i ? s->k.keys[cut[i]] : kref("", 0), x, young, &parts[i]));
  }
  OK(version_create(parts, 4, &s->v));
  s->v->store_id = PLACE_STORE_ID;
  s->v->number = 77;
  s->v->next_file = s->p.next;
  s->v->log_gen = 0x123456789aull;
  s->v->log_seq = 0xabcdef0123456ull;
  s->v->log_print = 0x5b5b5b0000000001ull;
  static const uint64_t origins[2] = {3, PLACE_STORE_ID + 9};
  s->p.ctx.origins = origins;
  s->p.ctx.nr_origins = 2;
}

static void store_fini(struct store *s) {
  version_unref(s->v);
  keyset_free(&s->k);
  place_fini(&s->p);
}

static void expect_same_view(const struct remix *x, const struct remix *y) {
  assert_int_equal(x != NULL, y != NULL);
  if (!x) return;
  assert_int_equal(x->number, y->number);
  assert_int_equal(x->tags, y->tags);
  assert_int_equal(remix_is_young(x), remix_is_young(y));
  assert_int_equal(x->nr_entries, y->nr_entries);
  assert_int_equal(x->nr_runs, y->nr_runs);
  for (uint32_t r = 0; r < x->nr_runs; r++) assert_int_equal(x->runs[r]->number, y->runs[r]->number);
}

static void expect_same(const struct version *a, const struct version *b) {
  assert_int_equal(a->store_id, b->store_id);
  assert_int_equal(a->number, b->number);
  assert_int_equal(a->next_file, b->next_file);
  assert_int_equal(a->log_gen, b->log_gen);
  assert_int_equal(a->log_seq, b->log_seq);
  assert_int_equal(a->nr_parts, b->nr_parts);
  for (uint32_t i = 0; i < a->nr_parts; i++) {
    const struct part *x = a->parts[i], *y = b->parts[i];
    assert_true(kv_eq(part_anchor(x), part_anchor(y)));
    expect_same_view(x->remix, y->remix);
    expect_same_view(x->young, y->young);
    assert_int_equal(part_runs(x), part_runs(y));
    for (uint32_t r = 0; r < part_runs(x); r++) assert_int_equal(part_run(x, r)->number, part_run(y, r)->number);
  }
  assert_int_equal(a->nr_young, b->nr_young);
  for (uint32_t i = 0; i < a->nr_young; i++) {
    assert_int_equal(a->young[i], b->young[i]);
    assert_non_null(a->parts[a->young[i]]->young);
  }
  for (uint32_t i = 0, nr = 0; i <= a->nr_parts; i++) {
    assert_int_equal(version_young_from(a, i), nr);
    nr += i < a->nr_parts && a->parts[i]->young != NULL;
  }
}

static enum remixdb_status list(struct store *s) {
  struct version_names names;
  const enum remixdb_status listed = version_list(&s->p.at, &names);
  if (listed == REMIXDB_OK) version_names_fini(&names);
  return listed;
}

static void path_of(struct store *s, const char *name, char *path) { OK(env_path(path, s->p.dir, name)); }

static void file_put(struct store *s, const char *name, const void *buf, size_t len) {
  char path[ENV_PATH_MAX];
  path_of(s, name, path);
  // in place: a file system may wait for the disk when a file is cut to nothing and written anew
  const int fd = open(path, O_RDWR | O_CREAT, 0644);
  assert_true(fd >= 0);
  if (lseek(fd, 0, SEEK_END) > (off_t)len) assert_int_equal(ftruncate(fd, (off_t)len), 0);
  assert_int_equal(pwrite(fd, buf, len, 0), len);
  assert_int_equal(close(fd), 0);
}

static uint8_t *current_get(struct store *s, size_t *len) {
  char path[ENV_PATH_MAX];
  uint8_t *buf;
  path_of(s, FILES_CURRENT, path);
  OK(paths_read_file(ENV_PATHS(env_posix()), path, 1 << 20, &buf, len));
  return buf;
}

// CURRENT in the older format: 2 with young views, else 1. It is not written any more.
static uint8_t *current_get_old(struct store *s, size_t *len) {
  const struct version *const v = s->v;
  mem_free(current_get(s, len));
  uint8_t *const buf = mem_calloc(1, *len), *p = buf + 56;
  memcpy(buf, "RMXDBVER", 8);
  store32le(buf + 8, with_young ? 2 : 1);
  store32le(buf + 12, v->nr_parts);
  store64le(buf + 16, v->store_id);
  store64le(buf + 24, v->number);
  store64le(buf + 32, v->next_file);
  store64le(buf + 40, v->log_gen);
  store64le(buf + 48, v->log_seq);
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct part *const part = v->parts[i];
    store32le(p, part->alen);
    store32le(p + 4, part_runs(part));
    store64le(p + 8, part->remix ? part->remix->number : 0);
    if (with_young) {
      store64le(p + 16, part->young ? part->young->number : 0);
      store64le(p + 24, part_young_runs(part));
    }
    p += with_young ? 32 : 16;
    memcpy(p, part->anchor, part->alen);
    p += part->alen;
    for (uint32_t r = 0; r < part_runs(part); r++, p += 8) store64le(p, part_run(part, r)->number);
  }
  *len = (size_t)(p - buf) + 8;
  store64le(p, hash64(buf, *len - 8));
  return buf;
}

static enum remixdb_status load(struct store *s) {
  struct version *v = NULL;
  const enum remixdb_status loaded = version_load(&s->p.ctx, NULL, NULL, &v);
  if (loaded == REMIXDB_OK) version_unref(v);
  else assert_null(v);
  return loaded;
}

// The same with threads that help: no other outcome, no other message.
static void load_helped(struct store *s) {
  const enum remixdb_status alone = load(s);
  char msg[ERR_MSG_MAX] = "";
  if (alone != REMIXDB_OK) (void)snprintf(msg, sizeof(msg), "%s", err_msg());
  for (uint32_t nr = 0; nr <= 3; nr++) {
    struct workers *ws;
    struct worker self = {0};
    struct version *v = NULL;
    OK(workers_create(nr, NULL, 0, &s->p.io, &s->p.epoch, NULL, NULL, &ws));
    assert_int_equal(version_load(&s->p.ctx, ws, &self, &v), alone);
    if (alone != REMIXDB_OK) assert_string_equal(err_msg(), msg);
    else expect_same(s->v, v);
    version_unref(v);
    workers_destroy(ws);
  }
}

static void test_round_trip(void **state) {
  (void)state;
  struct store s;
  store_init(&s, 1);
  uint64_t id = 0, *ids;
  uint32_t nr_ids;
  FAILS(version_peek(&s.p.at, &id), REMIXDB_NOTFOUND);
  FAILS(version_ids(&s.p.at, &id, &ids, &nr_ids), REMIXDB_NOTFOUND);
  FAILS(load(&s), REMIXDB_NOTFOUND);
  for (uint32_t i = 0; i < 3; i++) {
    struct version *v;
    s.v->number++;
    OK(version_save(&s.p.ctx, s.v));
    OK(version_peek(&s.p.at, &id));
    assert_int_equal(id, PLACE_STORE_ID);
    id = 0;
    OK(version_ids(&s.p.at, &id, &ids, &nr_ids));
    assert_true(id == PLACE_STORE_ID && nr_ids == 2 && ids[0] == 3 && ids[1] == PLACE_STORE_ID + 9);
    mem_free(ids);
    OK(version_load(&s.p.ctx, NULL, NULL, &v));
    assert_true(v->printed && v->log_print == s.v->log_print);
    expect_same(s.v, v);
    version_unref(v);
    load_helped(&s);
    size_t len;
    uint8_t *const buf = current_get(&s, &len);
    assert_int_equal(load32le(buf + 8), 3);
    mem_free(buf);
    assert_int_equal(s.v->nr_young, with_young ? 2 : 0);
  }
  // the tables' numbers, partition by partition, without opening any
  struct version_names names;
  OK(version_list(&s.p.at, &names));
  assert_int_equal(names.store_id, PLACE_STORE_ID);
  assert_int_equal(names.log_gen, s.v->log_gen);
  assert_int_equal(names.log_seq, s.v->log_seq);
  size_t at = 0;
  for (uint32_t i = 0; i < s.v->nr_parts; i++)
    for (uint32_t r = 0; r < part_runs(s.v->parts[i]); r++) {
      assert_true(at < names.nr_tables);
      assert_true(names.prints[at] == part_run(s.v->parts[i], r)->print);
      assert_int_equal(names.tables[at++], part_run(s.v->parts[i], r)->number);
    }
  assert_int_equal(at, names.nr_tables);
  assert_true(names.printed && names.log_print == s.v->log_print && names.nr_origins == 2);
  version_names_fini(&names);
  // the smallest there is
  struct part *only;
  struct version *v, *w;
  OK(part_create(kref("", 0), NULL, NULL, &only));
  OK(version_create(&only, 1, &v));
  v->number = v->next_file = v->log_gen = 1;
  OK(version_save(&s.p.ctx, v));
  OK(version_load(&s.p.ctx, NULL, NULL, &w));
  expect_same(v, w);
  size_t len;
  uint8_t *const bare = current_get(&s, &len);
  store64le(bare + 32, 0);  // it names no file that would be above the next number
  store64le(bare + len - 8, hash64(bare, len - 8));
  file_put(&s, FILES_CURRENT, bare, len);
  FAILS(load(&s), REMIXDB_CORRUPT);
  mem_free(bare);
  version_unref(v);
  version_unref(w);
  version_unref(NULL);
  part_unref(NULL);
  store_fini(&s);
}

// Partitions are shared by versions and go with the last of them.
static void test_shared(void **state) {
  (void)state;
  struct store s;
  store_init(&s, 2);
  struct part *both[2] = {s.v->parts[0], s.v->parts[1]};
  struct version *v;
  part_ref(both[0]);
  part_ref(both[1]);
  OK(version_create(both, 2, &v));
  atomic_store(&s.v->parts[1]->remix->obsolete, true);
  atomic_store(&s.v->parts[2]->remix->obsolete, true);
  char young[ENV_PATH_MAX] = "";
  if (with_young) {
    strcpy(young, s.v->parts[1]->young->path);
    atomic_store(&s.v->parts[1]->young->obsolete, true);
    assert_int_equal(v->nr_young, 1);
    assert_int_equal(v->young[0], 1);
  }
  char one[ENV_PATH_MAX], two[ENV_PATH_MAX];
  strcpy(one, s.v->parts[1]->remix->path);
  strcpy(two, s.v->parts[2]->remix->path);
  version_ref(v);
  version_unref(s.v);
  s.v = NULL;
  assert_int_equal(access(one, F_OK), 0);
  assert_int_not_equal(access(two, F_OK), 0);
  version_unref(v);
  assert_int_equal(access(one, F_OK), 0);
  if (with_young) assert_int_equal(access(young, F_OK), 0);
  version_unref(v);
  assert_int_not_equal(access(one, F_OK), 0);
  if (with_young) assert_int_not_equal(access(young, F_OK), 0);
  store_fini(&s);
}

static void test_damaged(void **state) {
  (void)state;
  struct store s;
  store_init(&s, 3);
  OK(version_save(&s.p.ctx, s.v));
  size_t len;
  uint8_t *buf = current_get(&s, &len);
  for (size_t bit = 0; bit < 8 * len; bit++) {
    uint64_t id;
    buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    file_put(&s, FILES_CURRENT, buf, len);
    if (load(&s) != REMIXDB_CORRUPT || version_peek(&s.p.at, &id) != REMIXDB_CORRUPT)
      fail_msg("bit %zu is not corruption", bit);
    buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
  for (size_t cut = 0; cut < len; cut++) {
    file_put(&s, FILES_CURRENT, buf, cut);
    if (load(&s) != REMIXDB_CORRUPT) fail_msg("cut to %zu of %zu bytes: not found out", cut, len);
  }
  uint8_t *more = calloc(1, len + 8);
  memcpy(more, buf, len);
  for (size_t n = 1; n <= 8; n++) {
    file_put(&s, FILES_CURRENT, more, len + n);
    FAILS(load(&s), REMIXDB_CORRUPT);
  }
  file_put(&s, FILES_CURRENT, buf, len);
  OK(load(&s));
  free(more);
  mem_free(buf);
  store_fini(&s);
}

static enum remixdb_status load_forged(struct store *s, uint8_t *buf, size_t len) {
  store64le(buf + len - 8, hash64(buf, len - 8));
  file_put(s, FILES_CURRENT, buf, len);
  return load(s);
}

// A good CURRENT and room for forgeries of it.
struct forge {
  struct store s;
  uint8_t *buf, *b;
  size_t len;
  size_t part1, part2, part3;  // where the partitions after the first begin
  size_t tables1;              // the tables of the second
};

// old: in format 1 or 2.
static void forge_init(struct forge *f, uint64_t seed, bool old) {
  store_init(&f->s, seed);
  OK(version_save(&f->s.p.ctx, f->s.v));
  f->buf = old ? current_get_old(&f->s, &f->len) : current_get(&f->s, &f->len);
  f->b = calloc(1, f->len + 64);
  assert_non_null(f->b);
}

static void forge_fini(struct forge *f) {
  free(f->b);
  mem_free(f->buf);
  store_fini(&f->s);
}

// Makes one change to a copy, corrects the checksum, and loads the copy.
#define FORGED(status, change, size)                                                        \
  do {                                                                                      \
    memcpy(f->b, f->buf, f->len);                                                           \
    change;                                                                                 \
    const enum remixdb_status got = load_forged(&f->s, f->b, (size));                       \
    if (got != (status)) fail_msg("%s: status %d: %s", #change, got, got ? err_msg() : ""); \
  } while (0)

// Up to three random bytes: it loads, or is corrupt, or has a section that is not known.
static void forge_bytes(struct forge *f) {
  for (uint64_t seed = 1; seed <= 3000; seed++) {
    uint64_t rng = seed;
    memcpy(f->b, f->buf, f->len);
    for (uint32_t n = 1 + (uint32_t)(rng_next(&rng) % 3); n > 0; n--) {
      const size_t at = 12 + rng_next(&rng) % (f->len - 20);
      const uint32_t shift = (uint32_t)(rng_next(&rng) % 64);
      f->b[at] = (uint8_t)(rng_next(&rng) >> shift);
    }
    const enum remixdb_status got = load_forged(&f->s, f->b, f->len);
    if (got != REMIXDB_OK && got != REMIXDB_CORRUPT && got != REMIXDB_VERSION)
      fail_msg("seed %llu: status %d: %s", (unsigned long long)seed, got, err_msg());
  }
}

static void forge_head(struct forge *f) {
  uint8_t *const b = f->b;
  const size_t len = f->len;
  FORGED(REMIXDB_OK, (void)0, len);
  FORGED(REMIXDB_VERSION, store32le(b + 8, 0), len);
  FORGED(REMIXDB_VERSION, store32le(b + 8, 4), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + 8, 2), len);  // this version has larger partitions
  FORGED(REMIXDB_VERSION, store32le(b + 8, UINT32_MAX), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + 12, 0), len);  // partitions
  FORGED(REMIXDB_CORRUPT, store32le(b + 12, 3), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + 12, 5), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + 12, UINT32_MAX), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + 32, f->s.p.next - 1), len);  // the next file's number
  FORGED(REMIXDB_CORRUPT, store64le(b + 32, 0), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + 32, UINT64_MAX), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + 32, ((uint64_t)1 << 46) + 1), len);
  FORGED(REMIXDB_OK, store64le(b + 32, (uint64_t)1 << 46), len);
  // numbers at their ends: the version's, the log's generation and its sequence number
  for (uint32_t at = 24; at <= 48; at += at == 24 ? 16 : 8) {
    FORGED(at == 48 ? REMIXDB_OK : REMIXDB_CORRUPT, store64le(b + at, 0), len);
    FORGED(REMIXDB_OK, store64le(b + at, 1), len);
    FORGED(REMIXDB_OK, store64le(b + at, (uint64_t)1 << 62), len);
    FORGED(REMIXDB_CORRUPT, store64le(b + at, ((uint64_t)1 << 62) + 1), len);
    FORGED(REMIXDB_CORRUPT, store64le(b + at, UINT64_MAX), len);
  }
}

static void forge_parts(struct forge *f) {
  uint8_t *const b = f->b;
  const size_t len = f->len, part1 = f->part1, part2 = f->part2, part3 = f->part3;
  FORGED(REMIXDB_CORRUPT, store64le(b + part2 - 8, 0), len);  // table 0
  assert_non_null(strstr(err_msg(), "table 0"));
  FORGED(REMIXDB_CORRUPT, store32le(b + part1, UINT32_MAX), len);  // an anchor's length
  FORGED(REMIXDB_CORRUPT, store32le(b + part1, load32le(b + part1) + 1), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + part1 + 4, 33), len);  // tables
  FORGED(REMIXDB_CORRUPT, store32le(b + part1 + 4, UINT32_MAX), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + part1 + 4, 2), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + part1 + 4, 0), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 8, 0), len);  // the REMIX
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 8, load64le(b + part2 + 8)), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part3 + 8, 1), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part2 - 8, 1000000), len);  // a table
  FORGED(REMIXDB_CORRUPT, store64le(b + part2 - 8, load64le(b + part2 - 16)), len);
  assert_non_null(strstr(err_msg(), "twice"));  // before its REMIX is looked at, which may have been made to fit
  FORGED(REMIXDB_CORRUPT, b[part1 + 16] ^= 0x80, len);  // an anchor
  FORGED(REMIXDB_CORRUPT, b[part3 + 16] = 0, len);
  FORGED(REMIXDB_CORRUPT, (void)0, len + 1);
  FORGED(REMIXDB_CORRUPT, (void)0, len + 16);
  FORGED(REMIXDB_CORRUPT, (void)0, len - 1);
}

// More tables than there is room for, or than there can be.
static void forge_tables(struct forge *f) {
  uint8_t *const b = f->b;
  const uint8_t *const buf = f->buf;
  const size_t len = f->len, part2 = f->part2, part3 = f->part3;
  FORGED(REMIXDB_CORRUPT, (store32le(b + part3 + 4, 32), store64le(b + part3 + 8, 1)), len);
  uint8_t *many = calloc(1, 56 + 16 + 40 * 8 + 8);
  memcpy(many, buf, 56);
  store32le(many + 12, 1);
  store32le(many + 56 + 4, 40);
  store64le(many + 56 + 8, load64le(buf + part2 + 8));
  for (uint32_t i = 0; i < 40; i++) store64le(many + 72 + 8 * i, load64le(buf + part2 - 8));
  FAILS(load_forged(&f->s, many, 56 + 16 + 40 * 8 + 8), REMIXDB_CORRUPT);
  free(many);
}

static void forge_anchors(struct forge *f) {
  uint8_t *const b = f->b;
  const uint8_t *const buf = f->buf;
  const size_t len = f->len, part1 = f->part1;
  // the first anchor is not empty
  memcpy(b, buf, 56 + 16);
  store32le(b + 56, 1);
  b[72] = 0;
  memcpy(b + 73, buf + 72, len - 72);
  FAILS(load_forged(&f->s, b, len + 1), REMIXDB_CORRUPT);
  // a table's keys lie outside of its partition
  const uint32_t alen = f->s.v->parts[1]->alen;
  memcpy(b, buf, part1 + 16 + alen);
  store32le(b + part1, alen + 1);
  b[part1 + 16 + alen] = 0;
  memcpy(b + part1 + 16 + alen + 1, buf + part1 + 16 + alen, len - (part1 + 16 + alen));
  FAILS(load_forged(&f->s, b, len + 1), REMIXDB_CORRUPT);
}

// A checksum that is right protects from chance, not from a program that wrote nonsense. Here in format 1.
static void test_forged(void **state) {
  (void)state;
  struct forge f;
  forge_init(&f, 4, true);
  struct part *const *const parts = f.s.v->parts;
  f.part1 = 56 + 16;
  f.part2 = f.part1 + 16 + parts[1]->alen + 3 * 8;
  f.part3 = f.part2 + 16 + parts[2]->alen + 8;
  forge_head(&f);
  forge_parts(&f);
  forge_tables(&f);
  forge_anchors(&f);
  forge_bytes(&f);
  forge_fini(&f);
}

// The number of the young view.
static void forge_young_remix(struct forge *f) {
  uint8_t *const b = f->b;
  const struct part *const p1 = f->s.v->parts[1], *const p2 = f->s.v->parts[2];
  const size_t len = f->len, part1 = f->part1;
  FORGED(REMIXDB_OK, (void)0, len);
  // formats without young views
  FORGED(REMIXDB_CORRUPT, store32le(b + 8, 1), len);
  FORGED(REMIXDB_VERSION, store32le(b + 8, 4), len);
  // no REMIX, another partition's, the older view's, a missing one, a free number
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 16, 0), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 16, p2->young->number), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 16, p2->remix->number), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 16, p1->remix->number), len);
  FAILS(list(&f->s), REMIXDB_CORRUPT);  // a list opens nothing
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 16, p1->young->runs[0]->number), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 16, f->s.v->next_file), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 16, UINT64_MAX), len);
  // the two views swapped
  FORGED(REMIXDB_CORRUPT, (store64le(b + part1 + 8, p1->young->number), store64le(b + part1 + 16, p1->remix->number)),
         len);
}

// How many tables are the young view's.
static void forge_young_count(struct forge *f) {
  uint8_t *const b = f->b;
  const size_t len = f->len, part1 = f->part1, part2 = f->part2, part3 = f->part3;
  // none, too few, too many, all, more than all, more than 32 bits
  for (uint64_t n = 0; n < 40; n++) FORGED(n == 2 ? REMIXDB_OK : REMIXDB_CORRUPT, store64le(b + part1 + 24, n), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 24, 5), len);
  FAILS(list(&f->s), REMIXDB_CORRUPT);
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 24, UINT64_MAX), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 24, 2ull + (1ull << 32)), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part2 + 24, 2), len);
  // no young view
  FORGED(REMIXDB_CORRUPT, (store64le(b + part1 + 16, 0), store64le(b + part1 + 24, 0)), len);
  // a young view without any tables, and without older ones
  FORGED(REMIXDB_CORRUPT, (store64le(b + part3 + 16, 1), store64le(b + part3 + 24, 1)), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part3 + 16, 1), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part3 + 24, 1), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 8, 0), len);
}

static void forge_young_tables(struct forge *f) {
  uint8_t *const b = f->b;
  const struct part *const p1 = f->s.v->parts[1], *const p2 = f->s.v->parts[2];
  const size_t len = f->len, part1 = f->part1, tables1 = f->tables1;
  // tables in another order, the same twice, of the other view, free, of another partition
  FORGED(REMIXDB_CORRUPT,
         (store64le(b + tables1 + 24, p1->young->runs[1]->number),
          store64le(b + tables1 + 32, p1->young->runs[0]->number)),
         len);
  FORGED(REMIXDB_CORRUPT, store64le(b + tables1 + 32, p1->young->runs[0]->number), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + tables1 + 24, p1->remix->runs[0]->number), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + tables1 + 24, p2->young->runs[0]->number), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + tables1 + 32, f->s.v->next_file), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + part1 + 4, 4), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + part1 + 4, 6), len);
}

static void forge_young_rest(struct forge *f) {
  uint8_t *const b = f->b;
  const uint8_t *const buf = f->buf;
  const struct part *const p1 = f->s.v->parts[1], *const p2 = f->s.v->parts[2];
  const size_t len = f->len;
  // a young REMIX, or the tables of a young view, have free numbers
  FORGED(REMIXDB_CORRUPT, store64le(b + 32, p1->young->number), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + 32, p2->young->number), len);
  FORGED(REMIXDB_OK, store64le(b + 32, p2->young->number + 1), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + 12, 3), len);
  FORGED(REMIXDB_CORRUPT, (void)0, len + 16);
  for (size_t cut = 56; cut < len; cut++) {
    memcpy(b, buf, len);
    if (load_forged(&f->s, b, cut) != REMIXDB_CORRUPT) fail_msg("cut to %zu of %zu bytes: not found out", cut, len);
    const enum remixdb_status s = list(&f->s);
    assert_true(s == REMIXDB_CORRUPT || s == REMIXDB_OK);  // a list does not count the partitions
  }
  // the format of versions with young views, and no young view
  uint8_t head[56 + 32 + 8] = {0};
  memcpy(head, buf, 56);
  store32le(head + 12, 1);
  FAILS(load_forged(&f->s, head, sizeof(head)), REMIXDB_CORRUPT);
}

// Every field of a young view, and the fields that must agree with it. Here in format 2.
static void test_forged_young(void **state) {
  (void)state;
  struct forge f;
  forge_init(&f, 10, true);
  struct part *const *const parts = f.s.v->parts;
  f.part1 = 56 + 32;
  f.tables1 = f.part1 + 32 + parts[1]->alen;
  f.part2 = f.tables1 + 5 * 8;
  f.part3 = f.part2 + 32 + parts[2]->alen + 2 * 8;
  assert_int_equal(f.part3 + 32 + parts[3]->alen + 8, f.len);
  forge_young_remix(&f);
  forge_young_count(&f);
  forge_young_tables(&f);
  forge_young_rest(&f);
  forge_bytes(&f);
  forge_fini(&f);
}

// The head of format 3, and the heads of its sections.
static void forge_sections(struct forge *f, size_t origins, size_t parts) {
  uint8_t *const b = f->b;
  const size_t len = f->len;
  FORGED(REMIXDB_OK, (void)0, len);
  FORGED(REMIXDB_CORRUPT, store32le(b + 8, 1), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + 8, 2), len);
  FORGED(REMIXDB_VERSION, store32le(b + 8, 4), len);
  FORGED(REMIXDB_OK, store64le(b + 56, 1), len);  // the log's: the log compares
  for (uint32_t nr = 0; nr < 5; nr++) FORGED(nr == 2 ? REMIXDB_OK : REMIXDB_CORRUPT, store32le(b + 12, nr), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + 12, UINT32_MAX), len);
  // kinds: out of order, twice, not known with and without the flag, and no partitions
  FORGED(REMIXDB_CORRUPT, store32le(b + origins, 0), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + origins, 2), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + parts, 1), len);
  FORGED(REMIXDB_VERSION, store32le(b + parts, 1000), len);
  FORGED(REMIXDB_CORRUPT, (store32le(b + parts, 1000), store32le(b + parts + 4, 0)), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + parts, 3), len);  // the spaces' tree alone
  // flags
  FORGED(REMIXDB_CORRUPT, store32le(b + origins + 4, 0), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + parts + 4, 0), len);
  FORGED(REMIXDB_VERSION, store32le(b + parts + 4, 3), len);
  FORGED(REMIXDB_VERSION, store32le(b + parts + 4, 2), len);
  // lengths
  for (uint64_t n = 0; n < 40; n++) FORGED(n == 16 ? REMIXDB_OK : REMIXDB_CORRUPT, store64le(b + origins + 8, n), len);
  const uint64_t whole = load64le(f->buf + parts + 8);
  static const int64_t off[] = {-1, 1, -8, 8, -16, 16, INT64_MIN, INT64_MAX};
  for (uint32_t i = 0; i < 8; i++) FORGED(REMIXDB_CORRUPT, store64le(b + parts + 8, whole + (uint64_t)off[i]), len);
  // origins: 0, not ascending, the store's own
  FORGED(REMIXDB_CORRUPT, store64le(b + origins + 16, 0), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + origins + 16, PLACE_STORE_ID + 9), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + origins + 24, PLACE_STORE_ID), len);
  FORGED(REMIXDB_CORRUPT, store64le(b + origins + 24, 2), len);
}

// The head of the partitions, the first one, which has no tables, and the fingerprints of the second.
static void forge_prints(struct forge *f, size_t parts) {
  uint8_t *const b = f->b;
  const struct part *const p1 = f->s.v->parts[1];
  const size_t len = f->len, part0 = parts + 24, part1 = f->part1;
  for (uint32_t nr = 0; nr < 6; nr++)
    FORGED(nr == 4 ? REMIXDB_OK : REMIXDB_CORRUPT, store32le(b + parts + 16, nr), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + parts + 16, UINT32_MAX), len);
  FORGED(REMIXDB_CORRUPT, store32le(b + parts + 20, 1), len);
  for (size_t at = 16; at <= 40; at += 8) FORGED(REMIXDB_CORRUPT, store64le(b + part0 + at, 1), len);
  for (size_t bit = 0; bit < 64; bit += 9) {
    FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 16, load64le(b + part1 + 16) ^ 1ull << bit), len);
    assert_non_null(strstr(err_msg(), p1->remix->path));
    assert_non_null(strstr(err_msg(), "another history"));
    for (size_t at = f->tables1; at < f->part2; at += 16) {
      FORGED(REMIXDB_CORRUPT, store64le(b + at + 8, load64le(b + at + 8) ^ 1ull << bit), len);
      assert_non_null(strstr(err_msg(), part_run(p1, (uint32_t)(at - f->tables1) / 16)->path));
      assert_non_null(strstr(err_msg(), "another history"));
    }
    FORGED(REMIXDB_CORRUPT, store64le(b + part1 + 32, load64le(b + part1 + 32) ^ 1ull << bit), len);
    if (with_young) assert_non_null(strstr(err_msg(), p1->young->path));
  }
}

// One section more. A reader that does not know it refuses the store only if the section says so.
static void forge_later(struct forge *f) {
  uint8_t *const b = f->b;
  const size_t len = f->len;
  memcpy(b, f->buf, len - 8);
  store32le(b + 12, 3);
  memset(b + len - 8, 0, 24);
  store32le(b + len - 8, 77);
  store64le(b + len - 8 + 8, 5);
  memcpy(b + len + 8, "later", 5);
  OK(load_forged(&f->s, b, len + 16 + 5));
  OK(list(&f->s));
  store32le(b + len - 4, 1);
  FAILS(load_forged(&f->s, b, len + 16 + 5), REMIXDB_VERSION);
}

// The head, the sections and the names of format 3.
static void test_forged_sections(void **state) {
  (void)state;
  struct forge f;
  forge_init(&f, 12, false);
  const struct part *const p1 = f.s.v->parts[1];
  const size_t origins = 64, parts = origins + 16 + 16;
  f.part1 = parts + 16 + 8 + 48;
  f.tables1 = f.part1 + 48 + p1->alen;
  f.part2 = f.tables1 + 16 * (size_t)part_runs(p1);
  assert_int_equal(load32le(f.buf + 12), 2);
  assert_int_equal(load32le(f.buf + origins), 1);
  assert_int_equal(load32le(f.buf + parts), 2);
  forge_sections(&f, origins, parts);
  forge_prints(&f, parts);
  forge_later(&f);
  forge_bytes(&f);
  forge_fini(&f);
}

// Files of another store count as the store's if its version lists the id, and no longer than a file has it.
static void test_origins(void **state) {
  (void)state;
  struct store s;
  store_init(&s, 13);
  const uint64_t other = PLACE_STORE_ID + 9;
  uint64_t *ids;
  uint32_t nr, cleaned;
  OK(version_origins(s.v, PLACE_STORE_ID, &ids, &nr));
  assert_true(nr == 0 && ids == NULL);
  OK(version_origins(s.v, other, &ids, &nr));
  assert_true(nr == 1 && ids[0] == PLACE_STORE_ID);
  mem_free(ids);
  // the same files, but the store itself is another one
  static const uint64_t origins[] = {PLACE_STORE_ID};
  OK(version_save(&s.p.ctx, s.v));
  s.p.ctx.store_id = s.v->store_id = other;
  s.p.ctx.nr_origins = 0;
  FAILS(load(&s), REMIXDB_CORRUPT);
  assert_non_null(strstr(err_msg(), "another store"));
  s.p.ctx.origins = origins;
  s.p.ctx.nr_origins = 1;
  OK(version_save(&s.p.ctx, s.v));
  OK(load(&s));
  // one that the version does not name goes if its id is listed
  char name[32];
  const struct sst *const t = part_run(s.v->parts[1], 0);
  size_t len;
  uint8_t *buf;
  OK(paths_read_file(ENV_PATHS(env_posix()), t->path, 1 << 20, &buf, &len));
  sst_name(name, 900);
  for (uint32_t listed = 0; listed < 2; listed++) {
    file_put(&s, name, buf, len);
    s.p.ctx.nr_origins = listed;
    OK(version_clean(&s.p.ctx, s.v, &cleaned));
    assert_int_equal(cleaned, listed);
  }
  mem_free(buf);
  store_fini(&s);
}

// A young view's keys are its partition's, too.
static void test_young_outside(void **state) {
  (void)state;
  struct store s;
  store_init(&s, 11);
  for (uint32_t where = 0; where < 3; where++) {  // within, below, above
    struct part *parts[3];
    struct version *v;
    struct remix *views[2];
    for (uint32_t k = 0; k < 2; k++) {
      uint32_t *what = calloc(s.k.nr, sizeof(*what));
      what[k && where == 1 ? 49 : 60 + k] = what[k && where == 2 ? 100 : 90 + k] = 2;
      views[k] = remix_add(&s.p, NULL, table_make(&s.p, &s.k, what, 0, s.k.nr, VALUE, true), true);
      free(what);
    }
    remix_make_young(views[1]);
    OK(part_create(kref("", 0), NULL, NULL, &parts[0]));
    OK(part_create(s.k.keys[50], views[0], views[1], &parts[1]));
    OK(part_create(s.k.keys[100], NULL, NULL, &parts[2]));
    OK(version_create(parts, 3, &v));
    v->store_id = PLACE_STORE_ID;
    v->number = v->log_gen = 1;
    v->next_file = s.p.next;
    OK(version_save(&s.p.ctx, v));
    assert_int_equal(load(&s), where ? REMIXDB_CORRUPT : REMIXDB_OK);
    if (where) assert_non_null(strstr(err_msg(), "outside of its partition"));
    version_unref(v);
  }
  store_fini(&s);
}

static void test_missing(void **state) {
  (void)state;
  struct store s;
  store_init(&s, 5);
  OK(version_save(&s.p.ctx, s.v));
  for (uint32_t i = 1; i <= 2; i++) {
    const struct part *const p = s.v->parts[i];
    const uint32_t runs = part_runs(p);
    for (uint32_t r = 0; r < runs + (p->young ? 2 : 1); r++) {
      const char *path = r < runs ? part_run(p, r)->path : r == runs ? p->remix->path : p->young->path;
      char away[ENV_PATH_MAX + 8];
      (void)snprintf(away, sizeof(away), "%s.away", path);
      assert_int_equal(rename(path, away), 0);
      FAILS(load(&s), REMIXDB_CORRUPT);
      assert_non_null(strstr(err_msg(), path));
      load_helped(&s);
      assert_int_equal(rename(away, path), 0);
    }
  }
  OK(load(&s));
  // many files are missing; the message names the first partition's
  const char *first = with_young ? s.v->parts[1]->young->path : s.v->parts[1]->remix->path,
             *second = s.v->parts[2]->remix->path;
  char away[2][ENV_PATH_MAX + 8];
  (void)snprintf(away[0], sizeof(away[0]), "%s.away", first);
  (void)snprintf(away[1], sizeof(away[1]), "%s.away", second);
  assert_int_equal(rename(first, away[0]), 0);
  assert_int_equal(rename(second, away[1]), 0);
  FAILS(load(&s), REMIXDB_CORRUPT);
  assert_non_null(strstr(err_msg(), first));
  for (int i = 0; i < 20; i++) load_helped(&s);
  assert_int_equal(rename(away[0], first), 0);
  assert_int_equal(rename(away[1], second), 0);
  s.p.ctx.store_id++;  // another store's
  FAILS(load(&s), REMIXDB_CORRUPT);
  s.p.ctx.store_id--;
  store_fini(&s);
}

// ---- failures

static void test_save_fails(void **state) {
  (void)state;
  struct store s;
  store_init(&s, 6);
  OK(version_save(&s.p.ctx, s.v));
  size_t old_len, len;
  uint8_t *old = current_get(&s, &old_len);
  s.v->number++;
  static const unsigned before[] = {FAULT_OPEN, FAULT_WRITE, FAULT_SYNC, FAULT_CLOSE, FAULT_RENAME};
  for (uint32_t i = 0; i < 2 * sizeof(before) / sizeof(before[0]); i++) {
    const bool full = i % 2 || before[i / 2] == FAULT_WRITE;
    fault_io_set(before[i / 2], 1, false);
    atomic_store(&fault_io_full, full);
    const enum remixdb_status saved = version_save(&s.p.ctx, s.v);
    assert_true(fault_io_end());
    assert_int_equal(saved, full ? REMIXDB_NOSPACE : REMIXDB_IO);
    uint8_t *now = current_get(&s, &len);
    assert_int_equal(len, old_len);
    assert_memory_equal(now, old, len);
    mem_free(now);
    char tmp[ENV_PATH_MAX];
    path_of(&s, FILES_CURRENT ".tmp", tmp);
    assert_int_not_equal(access(tmp, F_OK), 0);
  }
  // the directory's sync: the new one is there, but may be gone after a crash, also when it was for want of space
  for (uint32_t full = 0; full < 2; full++) {
    s.v->number++;
    fault_io_set(FAULT_SYNC, 2, false);
    atomic_store(&fault_io_full, full);
    FAILS(version_save(&s.p.ctx, s.v), REMIXDB_IO);
    assert_true(fault_io_end());
    OK(load(&s));
  }
  // the first one of a store
  char path[ENV_PATH_MAX];
  path_of(&s, FILES_CURRENT, path);
  assert_int_equal(unlink(path), 0);
  fault_io_set(FAULT_WRITE, 1, false);
  FAILS(version_save(&s.p.ctx, s.v), REMIXDB_NOSPACE);
  assert_true(fault_io_end());
  mem_free(old);
  store_fini(&s);
}

static void test_load_fails(void **state) {
  (void)state;
  struct store s;
  store_init(&s, 7);
  OK(version_save(&s.p.ctx, s.v));
  static const unsigned kinds[] = {FAULT_OPEN, FAULT_READ, FAULT_STAT};
  for (uint32_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
    for (int64_t n = 1;; n++) {
      fault_io_set(kinds[i], n, false);
      const enum remixdb_status loaded = load(&s);
      const bool failed = fault_io_end();
      if (!failed) {
        OK(loaded);
        assert_true(n > 2);
        break;
      }
      FAILS(loaded, REMIXDB_IO);
    }
  }
  uint64_t id;
  fault_io_set(FAULT_READ, 1, false);
  FAILS(version_peek(&s.p.at, &id), REMIXDB_IO);
  (void)fault_io_end();
  store_fini(&s);
}

static void test_no_memory(void **state) {
  (void)state;
  struct store s;
  store_init(&s, 8);
  OK(version_save(&s.p.ctx, s.v));
  file_put(&s, "999999.sst", "x", 1);
  for (uint32_t what = 0; what < 6; what++) {
    for (int64_t n = 1;; n++) {
      enum remixdb_status got;
      uint64_t id;
      uint32_t nr;
      if (what < 5) {
        fault_mem_set(n);
        got = what == 0   ? load(&s)
              : what == 1 ? version_save(&s.p.ctx, s.v)
              : what == 2 ? version_peek(&s.p.at, &id)
              : what == 3 ? list(&s)
                          : version_clean(&s.p.ctx, s.v, &nr);
      } else {
        // arguments that were handed over are released also when the call fails
        struct part *parts[2] = {NULL, s.v->parts[1]};
        struct version *v;
        part_ref(parts[1]);
        struct remix *const young = s.v->parts[2]->young;
        remix_ref(s.v->parts[2]->remix);
        if (young) remix_ref(young);
        fault_mem_set(n);
        got = part_create(kref("", 0), s.v->parts[2]->remix, young, &parts[0]);
        if (got == REMIXDB_OK) {
          got = version_create(parts, 2, &v);
          if (got == REMIXDB_OK) version_unref(v);
        } else {
          part_unref(parts[1]);
        }
      }
      const bool failed = fault_mem_end();
      if (!failed) {
        OK(got);
        assert_true(n > 1);
        break;
      }
      FAILS(got, REMIXDB_NOMEM);
      OK(load(&s));
    }
  }
  assert_int_equal(atomic_load(&s.v->parts[1]->refs), 1);
  assert_int_equal(atomic_load(&s.v->parts[2]->remix->refs), 1);
  if (with_young) assert_int_equal(atomic_load(&s.v->parts[2]->young->refs), 1);
  store_fini(&s);
}

// ---- cleaning

static void test_clean(void **state) {
  (void)state;
  struct store s;
  store_init(&s, 9);
  OK(version_save(&s.p.ctx, s.v));
  uint32_t nr;
  OK(version_clean(&s.p.ctx, s.v, &nr));
  assert_int_equal(nr, 0);
  static const char *const others[] = {
      "LOCK",
      "000001.wal",
      "1.sst",
      "0000001.sst",
      "000001.sst.bak",
      "000001",
      ".sst",
      "x000001.sst",
      "000001sst",
      "notes.txt",
      "CURRENT.tmp2",
      "000001.remix2",
      "-00001.sst",
      "000900.SST",
      "99999999999999999999999.sst",
      "18446744073709551615.sst",
      "9223372036854775809.sst",
      "this name is longer than thirty-two bytes.sst",
  };
  const uint32_t nr_others = sizeof(others) / sizeof(others[0]);
  for (uint32_t i = 0; i < nr_others; i++) file_put(&s, others[i], "x", 1);
  char *kept = place_files(&s.p);

  static const char *const gone[] = {"000900.sst",  "000900.remix",      "000000.sst",
                                     "1234567.sst", "12345678901.remix", "CURRENT.tmp"};
  for (uint32_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++) file_put(&s, gone[i], "x", 1);
  // a table with the number of a REMIX that is in use, and the other way round
  char name[32];
  sst_name(name, s.v->parts[2]->remix->number);
  file_put(&s, name, "x", 1);
  remix_name(name, s.v->parts[2]->remix->runs[0]->number);
  file_put(&s, name, "x", 1);
  // and more than fit the first memory for names
  for (uint32_t i = 0; i < 100; i++) {
    sst_name(name, 2000 + i);
    file_put(&s, name, "x", 1);
  }
  OK(version_clean(&s.p.ctx, s.v, &nr));
  assert_int_equal(nr, sizeof(gone) / sizeof(gone[0]) + 2 + 100);
  char *now = place_files(&s.p);
  assert_string_equal(now, kept);
  OK(load(&s));
  free(now);
  free(kept);

  // a failing call says so, and named files stay
  file_put(&s, "000900.sst", "x", 1);
  fault_io_set(FAULT_LIST, 1, false);
  FAILS(version_clean(&s.p.ctx, s.v, &nr), REMIXDB_IO);
  (void)fault_io_end();
  fault_io_set(FAULT_UNLINK, 1, false);
  FAILS(version_clean(&s.p.ctx, s.v, &nr), REMIXDB_IO);
  (void)fault_io_end();
  OK(version_clean(&s.p.ctx, s.v, &nr));
  assert_int_equal(nr, 1);
  OK(load(&s));
  store_fini(&s);
}

// A version that could not be read again is not written: the existing version stays.
static void test_too_large(void **state) {
  (void)state;
  enum { NR = 17000 };
  struct place p;
  place_init(&p, 0);
  static uint8_t bytes[65500];
  struct kref first = kref("", 0);
  struct version *const small = version_of(&first, 1);
  small->store_id = PLACE_STORE_ID;
  small->number = small->next_file = small->log_gen = 1;
  OK(version_save(&p.ctx, small));
  char *const before = place_files(&p);
  // its partitions are one and the same: all that is asked of them is how long they are
  struct version *const large = calloc(1, sizeof(*large) + NR * sizeof(large->parts[0]));
  struct part *part;
  assert_non_null(large);
  OK(part_create(kref(bytes, sizeof(bytes)), NULL, NULL, &part));
  large->nr_parts = NR;
  for (uint32_t i = 0; i < NR; i++) large->parts[i] = part;
  FAILS(version_save(&p.ctx, large), REMIXDB_NOMEM);
  assert_non_null(strstr(err_msg(), "too large"));
  char *const after = place_files(&p);
  assert_string_equal(before, after);
  // nor is one with a number that no opening would take
  uint64_t *const numbers[] = {&small->number, &small->next_file, &small->log_gen, &small->log_seq};
  for (uint32_t i = 0; i < 4; i++) {
    const uint64_t was = *numbers[i], most = (uint64_t)1 << (i == 1 ? 46 : 62);
    *numbers[i] = most + 1;
    FAILS(version_save(&p.ctx, small), REMIXDB_CORRUPT);
    *numbers[i] = most;
    OK(version_save(&p.ctx, small));
    *numbers[i] = was;
  }
  uint64_t id;
  OK(version_peek(&p.at, &id));
  assert_int_equal(id, PLACE_STORE_ID);
  part_unref(part);
  free(large);
  free(before);
  free(after);
  version_unref(small);
  place_fini(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OLD(test_find),
      BOTH(test_round_trip),
      BOTH(test_shared),
      BOTH(test_damaged),
      OLD(test_forged),
      YOUNG(test_forged_young),
      YOUNG(test_young_outside),
      BOTH(test_missing),
      BOTH(test_forged_sections),
      OLD(test_origins),
      BOTH(test_save_fails),
      BOTH(test_load_fails),
      BOTH(test_no_memory),
      BOTH(test_clean),
      OLD(test_too_large),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
