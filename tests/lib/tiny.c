// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/tiny.h"

#include <stdio.h>
#include <stdlib.h>

#include "store/async.h"
#include "store/space_ref.h"
#include "tests/lib/check.h"
#include "tests/lib/expect.h"
#include "tests/lib/often.h"

void tiny_value(const struct tiny_rec *r, uint8_t *buf) {
  if (r->noise) {
    uint64_t rng = (uint64_t)r->number << 32 | r->vlen;
    for (uint32_t at = 0; at < r->vlen; at += 8) {
      uint8_t b[8];
      store64le(b, rng_next(&rng));
      memcpy(buf + at, b, r->vlen - at < 8 ? r->vlen - at : 8);
    }
    return;
  }
  uint8_t unit[48];
  const uint32_t klen = r->klen < 16 ? r->klen : 16;
  if (klen) memcpy(unit, r->key, klen);
  const uint32_t len = klen + (uint32_t)snprintf((char *)unit + klen, sizeof(unit) - klen, "/%u;", r->number);
  for (uint32_t at = 0; at < r->vlen; at += len) memcpy(buf + at, unit, r->vlen - at < len ? r->vlen - at : len);
}

// ---- the model

static bool tiny_before(const struct tiny_rec *r, uint32_t space, struct kref key) {
  return r->space == space ? kv_cmp(kref(r->key, r->klen), key) < 0 : r->space < space;
}

// Where the key of the space is, or would be.
static uint32_t tiny_find(const struct tiny *t, uint32_t space, struct kref key) {
  uint32_t lo = 0, hi = t->nr;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (tiny_before(&t->recs[mid], space, key)) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

struct tiny_rec *tiny_model(struct tiny *t, struct kref key, uint32_t vlen, bool noise, bool there) {
  const uint32_t at = tiny_find(t, t->in, key);
  struct tiny_rec *const r = &t->recs[at];
  if (at == t->nr || r->space != t->in || !kv_eq(kref(r->key, r->klen), key)) {
    assert_true(t->nr < TINY_RECS);
    memmove(r + 1, r, (t->nr - at) * sizeof(*r));
    t->nr++;
    r->key = malloc(key.len + 1);
    assert_non_null(r->key);
    if (key.len) memcpy(r->key, key.ptr, key.len);
    r->klen = key.len;
    r->space = t->in;
  }
  r->number = ++t->number;
  r->vlen = there ? vlen : 0;
  r->noise = noise;
  r->there = there;
  return r;
}

struct tiny *tiny_keep(const struct tiny *t) {
  struct tiny *const k = calloc(1, sizeof(*k));
  CHECK(k && t->nr_spaces == 0);
  for (uint32_t i = 0; i < t->nr; i++) {
    const struct tiny_rec *const r = &t->recs[i];
    k->recs[i] = *r;
    k->recs[i].key = malloc(r->klen + 1);
    assert_non_null(k->recs[i].key);
    if (r->klen) memcpy(k->recs[i].key, r->key, r->klen);
  }
  k->nr = t->nr;
  k->number = t->number;
  k->opts = t->opts;
  return k;
}

// ---- the store

// Seeds, and the random numbers of log segments.
static uint64_t tiny_random;
static uint64_t tiny_seed(void) { return rng_next(&tiny_random); }

struct tiny *tiny_create_as(uint64_t id, bool ckeys, bool tags, enum remixdb_compression compression) {
  struct tiny *const t = calloc(1, sizeof(*t));
  assert_non_null(t);
  often();
  remixdb_opts_init(&t->opts, sizeof(t->opts));
  t->opts.workers = 0;
  t->opts.cache_mb = 0;
  t->opts.memtable_mb = 1;
  t->opts.ckeys = ckeys;
  t->opts.tags = tags;
  t->opts.compression = compression;
  t->disk = simdisk_create();
  simdisk_no_allocate(t->disk, true);
  struct env *const e = simdisk_env(t->disk);
  OK(env_mkdir(ENV_PATHS(e), TINY_DIR));
  const struct wal_opts wo = {.dir = simdisk_dir(e, TINY_DIR), .store_id = id};
  struct wal *w;
  uint64_t print;
  tiny_random = 0;
  atomic_store(&random_seed_source, tiny_seed);
  OK(wal_open(&wo, 1, 0, true, NULL, NULL, NULL, &w));
  OK(wal_print(w, 1, &print));
  OK(wal_close(w));
  struct part *p;
  struct version *v;
  OK(part_create(kref("", 0), NULL, NULL, &p));
  OK(version_create(&p, 1, &v));
  v->store_id = id;
  v->number = v->next_file = v->log_gen = 1;
  v->log_print = print;
  const struct sst_ctx ctx = {.env = e, .dir = simdisk_dir(e, TINY_DIR), .store_id = id};
  OK(version_save(&ctx, v));
  version_unref(v);
  return t;
}

struct tiny *tiny_create(bool ckeys, bool tags, enum remixdb_compression compression) {
  return tiny_create_as(TINY_STORE_ID, ckeys, tags, compression);
}

enum remixdb_status tiny_try_open(struct tiny *t, bool read_only) {
  struct remixdb_opts o = t->opts;
  o.read_only = read_only;
  expect_reads(++t->opened);
  often_large(t->opened / 8);
  const enum remixdb_status s = xdb_open(TINY_DIR, &o, simdisk_env(t->disk), &t->x);
  if (s != REMIXDB_OK) {
    t->x = NULL;
    return s;
  }
  if (t->opened & 4) expect_small_memory(t->x);
  if (t->opened & 2) expect_value_merges(t->x, 1);
  t->x->compact.memtable_size = 0;  // nothing is handed back: each flush makes a run
  if (t->table_pages) t->x->compact.build.max_pages = t->table_pages;
  OK(xdb_ref(t->x, &t->ref));
  for (uint32_t i = 0; i < t->nr_spaces; i++) {
    struct tiny_space *const sp = &t->spaces[i];
    if (!*sp->name) continue;
    OK(xdb_space_open(t->x, sp->name, strlen(sp->name), false, &sp->handle));
    OK(xdb_space_ref(sp->handle, &sp->ref));
  }
  return s;
}

void tiny_open(struct tiny *t) { OK(tiny_try_open(t, false)); }

static void tiny_leave_space(struct tiny_space *sp) {
  xdb_unref(sp->ref);
  xdb_space_close(sp->handle);
  sp->ref = NULL;
  sp->handle = NULL;
}

enum remixdb_status tiny_close(struct tiny *t) {
  if (!t->x) return REMIXDB_OK;
  for (uint32_t i = 0; i < t->nr_spaces; i++)
    if (*t->spaces[i].name) tiny_leave_space(&t->spaces[i]);
  xdb_unref(t->ref);
  t->x->leave_log = true;  // tests look at the log, too
  const enum remixdb_status s = xdb_close(t->x);
  t->x = NULL;
  t->ref = NULL;
  return s;
}

void tiny_destroy(struct tiny *t) {
  if (!t) return;
  (void)(tiny_close(t) == REMIXDB_OK);
  simdisk_destroy(t->disk);
  for (uint32_t i = 0; i < t->nr; i++) free(t->recs[i].key);
  free(t);
}

void tiny_use(struct tiny *t, const char *space) {
  t->in = 0;
  if (!space) return;
  for (uint32_t i = 0; i < t->nr_spaces; i++)
    if (strcmp(t->spaces[i].name, space) == 0) {
      t->in = i + 1;
      return;
    }
  CHECK(t->nr_spaces < TINY_SPACES && strlen(space) < sizeof(t->spaces[0].name));
  struct tiny_space *const sp = &t->spaces[t->nr_spaces++];
  (void)snprintf(sp->name, sizeof(sp->name), "%s", space);
  OK(xdb_space_open(t->x, space, strlen(space), true, &sp->handle));
  OK(xdb_space_ref(sp->handle, &sp->ref));
  t->in = t->nr_spaces;
}

void tiny_drop_space(struct tiny *t) {
  CHECK(t->in);
  struct tiny_space *const sp = &t->spaces[t->in - 1];
  OK(xdb_space_drop(t->x, sp->name, strlen(sp->name)));
  tiny_leave_space(sp);
  *sp->name = 0;
  uint32_t nr = 0;
  for (uint32_t i = 0; i < t->nr; i++)
    if (t->recs[i].space == t->in) free(t->recs[i].key);
    else t->recs[nr++] = t->recs[i];
  t->nr = nr;
  t->in = 0;
}

struct xdb_ref *tiny_ref(const struct tiny *t) {
  return t->in ? t->spaces[t->in - 1].ref : t->ref;
}

void tiny_put(struct tiny *t, struct kref key, uint32_t vlen, bool noise) {
  static uint8_t value[REMIXDB_KV_MAX];
  const struct tiny_rec *const r = tiny_model(t, key, vlen, noise, true);
  tiny_value(r, value);
  OK(xdb_put(tiny_ref(t), KV_REC(key, value, vlen, false)));
}

void tiny_del(struct tiny *t, struct kref key) {
  (void)tiny_model(t, key, 0, false, false);
  OK(xdb_put(tiny_ref(t), KV_REC(key, NULL, 0, true)));
}

// ---- looking

static bool tiny_is(const struct tiny_rec *r, const void *val, uint32_t vlen) {
  static uint8_t value[REMIXDB_KV_MAX];
  if (!r->there || r->vlen != vlen) return false;
  tiny_value(r, value);
  return vlen == 0 || memcmp(value, val, vlen) == 0;
}

static void tiny_error(struct tiny_errors *e, enum remixdb_status s) {
  if (e->nr++) return;
  e->status = s;
  (void)snprintf(e->msg, sizeof(e->msg), "%s", err_msg());
}

// The records of one space, and a ref that reads them.
struct tiny_part {
  const struct tiny_rec *recs;
  uint32_t nr;
  struct xdb_ref *ref;
};

// One direction. False: a wrong answer.
static bool tiny_walk(const struct tiny *t, const struct tiny_part *p, bool forward, struct tiny_errors *e) {
  struct xdb_iter *it;
  OK(expect_iter_below(p->ref, t->opened / 3 + forward, &it));
  uint32_t at = forward ? 0 : p->nr;
  bool right = true;
  enum remixdb_status s = forward ? xdb_iter_seek(it, kref("", 0)) : xdb_iter_seek_last(it);
  for (;;) {
    const struct tiny_rec *want = NULL;
    while (!want && (forward ? at < p->nr : at > 0)) {
      const struct tiny_rec *const r = &p->recs[forward ? at++ : --at];
      if (r->there) want = r;
    }
    struct kv_rec rec;
    if (s == REMIXDB_OK && xdb_iter_valid(it)) s = xdb_iter_record(it, &rec);
    else if (s == REMIXDB_OK) s = REMIXDB_NOTFOUND;
    if (s != REMIXDB_OK) {
      if (s == REMIXDB_NOTFOUND) right = !want;
      else tiny_error(e, s);
      break;
    }
    right = want && kv_eq(kref(rec.key, rec.klen), kref(want->key, want->klen)) && tiny_is(want, rec.val, rec.vlen);
    if (!right) break;
    s = forward ? xdb_iter_skip(it, 1) : xdb_iter_prev(it);
  }
  xdb_iter_destroy(it);
  return right;
}

// Everything by asynchronous gets, all under way together. False: a wrong answer.
static bool tiny_gets(const struct tiny_part *p, struct tiny_errors *e) {
  struct xdb_gets *g;
  struct remixdb_got *const got = calloc(p->nr + 1, sizeof(*got));
  uint8_t **const bufs = calloc(p->nr + 1, sizeof(*bufs));
  bool right = true;
  size_t nr = 0;
  CHECK(got && bufs);
  OK(xdb_gets_create(p->ref, p->nr ? p->nr : 1, &g));
  for (uint32_t i = 0; i < p->nr; i++) {
    const struct tiny_rec *const r = &p->recs[i];
    CHECK((bufs[i] = malloc(r->vlen + 1u)) != NULL);
    OK(xdb_get_begin(g, kref(r->key, r->klen), bufs[i], r->vlen, (void *)(uintptr_t)i));
  }
  FAILS(xdb_get_poll(g, got, p->nr, p->nr, &nr), p->nr ? REMIXDB_OK : REMIXDB_NOTFOUND);
  CHECK(nr == p->nr);
  for (size_t k = 0; k < nr; k++) {
    const uint32_t i = (uint32_t)(uintptr_t)got[k].priv;
    const struct tiny_rec *const r = &p->recs[i];
    const enum remixdb_status s = got[k].status;
    if (s == REMIXDB_OK) right = right && tiny_is(r, bufs[i], got[k].len);
    else if (s == REMIXDB_NOTFOUND) right = right && !r->there;
    else if (s == REMIXDB_TOOBIG) right = false;
    else tiny_error(e, err_set(s, "%s", got[k].msg));
  }
  xdb_gets_destroy(g);
  for (uint32_t i = 0; i < p->nr; i++) free(bufs[i]);
  free(bufs);
  free(got);
  return right;
}

static bool tiny_look_at(const struct tiny *t, const struct tiny_part *p, struct tiny_errors *e) {
  static uint8_t got[REMIXDB_KV_MAX];
  for (uint32_t i = 0; i < p->nr; i++) {
    const struct tiny_rec *const r = &p->recs[i];
    uint32_t vlen;
    const enum remixdb_status s = xdb_get(p->ref, kref(r->key, r->klen), got, sizeof(got), &vlen);
    if (s == REMIXDB_OK ? !tiny_is(r, got, vlen) : s == REMIXDB_NOTFOUND && r->there) return false;
    if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) tiny_error(e, s);
  }
  return tiny_gets(p, e) && tiny_walk(t, p, true, e) && tiny_walk(t, p, false, e);
}

// The store has the names of the model's spaces, and no others.
static bool tiny_names_are(const struct tiny *t, struct tiny_errors *e) {
  char want[TINY_SPACES * sizeof(t->spaces[0].name) + 1] = "", *names;
  for (uint32_t i = 0; i < t->nr_spaces; i++) {
    if (!*t->spaces[i].name) continue;
    strcat(want, t->spaces[i].name);
    strcat(want, "\n");
  }
  const enum remixdb_status s = xdb_space_list(t->x, &names);
  if (s != REMIXDB_OK) {
    tiny_error(e, s);
    return true;
  }
  const bool right = strcmp(names, want) == 0;
  mem_free(names);
  return right;
}

bool tiny_look(const struct tiny *t, struct xdb_ref *ref, struct tiny_errors *e) {
  memset(e, 0, sizeof(*e));
  for (uint32_t space = 0, at = 0; space <= t->nr_spaces; space++) {
    const uint32_t from = at;
    while (at < t->nr && t->recs[at].space == space) at++;
    if (space && !*t->spaces[space - 1].name) continue;
    const struct tiny_part part = {&t->recs[from], at - from, space ? t->spaces[space - 1].ref : ref};
    if (!tiny_look_at(t, &part, e)) return false;
  }
  return t->nr_spaces == 0 || tiny_names_are(t, e);
}

void tiny_check(struct tiny *t, bool read_only) {
  struct tiny_errors e;
  OK(tiny_try_open(t, read_only));
  if (!tiny_look(t, t->ref, &e)) fail_msg("a wrong answer");
  if (e.nr) fail_msg("status %d: %s", e.status, e.msg);
  OK(tiny_close(t));
}

// ---- files

bool tiny_name(void *arg, const char *name) {
  struct tiny_files *const f = arg;
  if (strcmp(name, "LOCK") == 0) return true;  // empty, and anybody's
  if (f->nr == 32) return false;
  (void)snprintf(f->names[f->nr++], sizeof(f->names[0]), "%s", name);
  return true;
}

static int tiny_name_cmp(const void *a, const void *b) { return strcmp(a, b); }

void tiny_list(const struct tiny *t, struct tiny_files *out) {
  out->nr = 0;
  OK(paths_list(simdisk_env(t->disk), TINY_DIR, tiny_name, out));
  assert_true(out->nr < 32);
  qsort(out->names, out->nr, sizeof(out->names[0]), tiny_name_cmp);
}

const char *tiny_path(const char *name) {
  static char path[128];
  (void)snprintf(path, sizeof(path), TINY_DIR "/%s", name);
  return path;
}

uint8_t *tiny_read_file(const struct tiny *t, const char *name, size_t *len_out) {
  const int64_t size = simdisk_size(t->disk, tiny_path(name));
  assert_true(size >= 0 && size <= TINY_FILE_MAX);
  uint8_t *const b = malloc((size_t)size + 1);
  assert_non_null(b);
  assert_true(simdisk_peek(t->disk, tiny_path(name), 0, b, (size_t)size));
  *len_out = (size_t)size;
  return b;
}

void tiny_drop_pool(struct tiny *t) {
  struct tiny_files files;
  uint8_t oldest[8], gen[8];
  assert_true(simdisk_peek(t->disk, tiny_path("CURRENT"), 40, oldest, 8));
  tiny_list(t, &files);
  for (uint32_t i = 0; i < files.nr; i++) {
    if (strncmp(files.names[i], "wal-", 4) != 0) continue;
    assert_true(simdisk_peek(t->disk, tiny_path(files.names[i]), 24, gen, 8));
    if (load64le(gen) < load64le(oldest)) OK(env_unlink(ENV_PATHS(simdisk_env(t->disk)), tiny_path(files.names[i])));
  }
  OK(paths_sync_dir(simdisk_env(t->disk), TINY_DIR));
}

void tiny_write_file(struct tiny *t, const char *name, const void *p, size_t len) {
  struct env *const e = simdisk_env(t->disk);
  int fd;
  OK(env_open(ENV_PATHS(e), tiny_path(name), ENV_READ | ENV_WRITE | ENV_CREATE | ENV_TRUNC, &fd));
  if (len) OK(env_write(e, fd, tiny_path(name), p, len, 0));
  OK(env_sync_all(e, fd, tiny_path(name)));
  OK(env_close(e, fd, tiny_path(name)));
}
