// SPDX-License-Identifier: Apache-2.0
#include "view/version.h"

#include <assert.h>
#include <stdlib.h>

#include "table/format.h"
#include "log/format.h"

// CURRENT, little-endian:
//   0   u8[8]  magic "RMXDBVER"
//   8   u32    format: 1, or 2 where some partition has a young view
//   12  u32    number of partitions, at least 1
//   16  u64    store id
//   24  u64    version number
//   32  u64    next file number
//   40  u64    oldest log generation needed
//   48  u64    sequence number when that generation began
//   56  ...    per partition: u32 anchor length, u32 number of tables, u64 REMIX number (0 without tables), in format 2 u64 number of the young REMIX (0: none)
//              and u64 how many of the tables, the last ones, are its, then anchor bytes, u64 per table
//   end u64    XXH3-64 of all before
static const char version_magic[8] = {'R', 'M', 'X', 'D', 'B', 'V', 'E', 'R'};
#define VERSION_FORMAT 2u
#define VERSION_HEAD 56u
#define VERSION_NEXT 32u
#define VERSION_PART 16u
#define VERSION_YOUNG 16u  // more for each partition in format 2
#define VERSION_SIZE_MAX (1u << 30)  // of the file: what is larger is neither written nor read
#define VERSION_NUMBER_MAX ((uint64_t)1 << 46)  // of files; they count up, so that this is never reached

// ---- partitions

enum remixdb_status part_create(struct kref anchor, struct remix *remix, struct remix *young, struct part **out) {
  struct part *p = mem_alloc(sizeof(*p) + anchor.len);
  assert(remix || !young);
  if (!p) {
    remix_unref(remix);
    remix_unref(young);
    return REMIXDB_NOMEM;
  }
  atomic_init(&p->refs, 1);
  p->remix = remix;
  p->young = young;
  p->alen = anchor.len;
  if (anchor.len) memcpy(p->anchor, anchor.ptr, anchor.len);
  *out = p;
  return REMIXDB_OK;
}

void part_ref(struct part *p) { atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed); }

void part_unref(struct part *p) {
  // acq_rel: whoever frees has seen all that others did before they let go
  if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
  remix_unref(p->remix);
  remix_unref(p->young);
  mem_free(p);
}

// ---- versions in memory

// The anchors once more, one behind the other, as `anchors` wants them: offsets, then bytes.
static enum remixdb_status index_anchors(struct version *v) {
  size_t len = 0, at = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) len += v->parts[i]->alen;
  if (len > UINT32_MAX) return err_set(REMIXDB_NOMEM, "the anchors of all partitions pass 4 GiB");
  const size_t offs = 4 * ((size_t)v->nr_parts + 1);
  uint8_t *const p = mem_alloc(offs + len);
  if (!p) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct kref a = part_anchor(v->parts[i]);
    store32le(p + 4 * (size_t)i, (uint32_t)at);
    if (a.len) memcpy(p + offs + at, a.ptr, a.len);
    at += a.len;
  }
  store32le(p + offs - 4, (uint32_t)at);
  v->anchor_bytes = p;
  return anchors_init(&v->anchors, p, p + offs, v->nr_parts);
}

static enum remixdb_status index_young(struct version *v) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) nr += v->parts[i]->young != NULL;
  if (nr == 0) return REMIXDB_OK;
  if (!(v->young = mem_alloc(nr * sizeof(v->young[0])))) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < v->nr_parts; i++)
    if (v->parts[i]->young) v->young[v->nr_young++] = i;
  return REMIXDB_OK;
}

enum remixdb_status version_create(struct part **parts, uint32_t nr, struct version **out) {
  struct version *v = mem_calloc(1, sizeof(*v) + nr * sizeof(v->parts[0]));
  if (!v) {
    for (uint32_t i = 0; i < nr; i++) part_unref(parts[i]);
    return REMIXDB_NOMEM;
  }
  atomic_init(&v->refs, 1);
  v->nr_parts = nr;
  memcpy(v->parts, parts, nr * sizeof(v->parts[0]));
  enum remixdb_status s = index_anchors(v);
  if (s == REMIXDB_OK) s = index_young(v);
  if (s != REMIXDB_OK) {
    version_unref(v);
    return s;
  }
  *out = v;
  return REMIXDB_OK;
}

void version_ref(struct version *v) { atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed); }

bool version_drop(struct version *v) {
  // acq_rel: what others did with it happened before it goes
  return atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) == 1;
}

void version_unref(struct version *v) {
  if (v && version_drop(v)) version_destroy(v);
}

void version_destroy(struct version *v) {
  for (uint32_t i = 0; i < v->nr_parts; i++) part_unref(v->parts[i]);
  anchors_fini(&v->anchors);
  mem_free(v->anchor_bytes);
  mem_free(v->young);
  mem_free(v);
}

uint32_t version_find(const struct version *v, struct kref key) { return anchors_find(&v->anchors, key); }

// ---- versions on disk

static enum remixdb_status read_current(const struct env_dir *dir, char *path, uint8_t **buf_out, size_t *len_out) {
  enum remixdb_status s = env_path(path, dir->path, VERSION_FILE);
  if (s != REMIXDB_OK) return s;
  uint8_t *buf = NULL;
  size_t len = 0;
  if ((s = env_read_file(dir, VERSION_FILE, VERSION_SIZE_MAX, &buf, &len)) != REMIXDB_OK) return s;
  if (len < VERSION_HEAD + 8 || memcmp(buf, version_magic, 8) != 0) s = err_corrupt(path, 0, "not a version file");
  else if (hash64(buf, len - 8) != load64le(buf + len - 8)) s = err_corrupt(path, len - 8, "checksum does not match");
  else if (load32le(buf + 8) == 0 || load32le(buf + 8) > VERSION_FORMAT)  // after the checksum: a flipped bit is damage, not a later format
    s = err_set(REMIXDB_VERSION, "%s: format %u is not known to this library (it knows up to %u)", path, load32le(buf + 8), VERSION_FORMAT);
  if (s != REMIXDB_OK) {
    mem_free(buf);
    return s;
  }
  *buf_out = buf;
  *len_out = len;
  return REMIXDB_OK;
}

enum remixdb_status version_peek(const struct env_dir *dir, uint64_t *store_id_out) {
  char path[ENV_PATH_MAX];
  uint8_t *buf;
  size_t len;
  const enum remixdb_status s = read_current(dir, path, &buf, &len);
  if (s != REMIXDB_OK) return s;
  *store_id_out = load64le(buf + 16);
  mem_free(buf);
  return REMIXDB_OK;
}

// A partition as CURRENT has it; points into the file's bytes.
struct part_names {
  struct kref anchor;
  uint64_t remix, young;
  uint32_t nr, nr_young;  // tables of both; the last of them are the young view's
  const uint8_t *tables;  // nr numbers, u64
};

static uint32_t part_head(uint32_t format) { return format == 1 ? VERSION_PART : VERSION_PART + VERSION_YOUNG; }

static enum remixdb_status decode_part(const char *path, const uint8_t *buf, size_t end, size_t *at, struct part_names *out) {
  const uint64_t next_file = load64le(buf + VERSION_NEXT);
  const uint32_t head = part_head(load32le(buf + 8));
  if (end - *at < head) return err_corrupt(path, *at, "a partition is cut short");
  const uint8_t *p = buf + *at;
  const uint32_t alen = load32le(p), nr = load32le(p + 4);
  const uint64_t remix = load64le(p + 8), young = head > VERSION_PART ? load64le(p + 16) : 0, nr_young = head > VERSION_PART ? load64le(p + 24) : 0;
  const size_t left = end - *at - head;
  if (alen > REMIXDB_KV_MAX || nr > REMIX_RUNS_MAX || left < alen || (left - alen) / 8 < nr || (nr == 0) != (remix == 0))
    return err_corrupt(path, *at, "a partition of %u tables and an anchor of %u bytes cannot be", nr, alen);
  // each view has tables of its own
  if ((young == 0) != (nr_young == 0) || nr_young > nr || (young && (nr_young == nr || young == remix)))
    return err_corrupt(path, *at, "a young view of %llu of %u tables cannot be", (unsigned long long)nr_young, nr);
  *out = (struct part_names){.anchor = kref(p + head, alen), .remix = remix, .young = young, .nr = nr, .nr_young = (uint32_t)nr_young, .tables = p + head + alen};
  // a file written later would take the place of one with a number that is said to be free
  bool used = (nr == 0 || remix < next_file) && (young == 0 || young < next_file);
  for (uint32_t i = 0; i < nr; i++) used = used && load64le(out->tables + 8 * (size_t)i) < next_file;
  if (!used) return err_corrupt(path, *at, "names a file that number %llu and up are free for", (unsigned long long)next_file);
  // a merge of one of two that are the same file would remove what the version goes on naming
  for (uint32_t i = 0; i < nr; i++)
    for (uint32_t k = 0; k < i; k++)
      if (load64le(out->tables + 8 * (size_t)i) == load64le(out->tables + 8 * (size_t)k)) return err_corrupt(path, *at, "names a table twice");
  *at += head + alen + (size_t)nr * 8;
  return REMIXDB_OK;
}

// Partitions that are opened, some at the same time.
struct loading {
  const struct sst_ctx *ctx;
  pthread_mutex_t lock;
  _Atomic uint32_t failed;  // the first that could not be opened; UINT32_MAX: none. Written under the lock
  struct err_saved error;   // of that one; guarded by the lock
};

struct load {
  struct task task;
  struct loading *all;
  uint32_t nr;
  struct part_names names;
  struct part *part;
};

static enum remixdb_status load_part(const struct sst_ctx *ctx, const struct part_names *n, struct part **out) {
  struct sst *runs[REMIX_RUNS_MAX] = {NULL};
  struct remix *remix = NULL, *young = NULL;
  const uint32_t nr_old = n->nr - n->nr_young;
  uint32_t opened = 0;
  enum remixdb_status s = REMIXDB_OK;
  for (; opened < n->nr && s == REMIXDB_OK; opened += s == REMIXDB_OK) s = sst_open(ctx, load64le(n->tables + 8 * (size_t)opened), &runs[opened]);
  if (s == REMIXDB_OK && n->nr) s = remix_open(ctx, n->remix, runs, nr_old, &remix);
  if (s == REMIXDB_OK && n->young) s = remix_open(ctx, n->young, runs + nr_old, n->nr_young, &young);
  for (uint32_t i = 0; i < opened; i++) sst_unref(runs[i]);
  if (young) remix_make_young(young);
  if (s == REMIXDB_OK) return part_create(n->anchor, remix, young, out);
  remix_unref(remix);
  return s;
}

// Of several that fail the first is told of, whatever the order: what lies before a failed one is opened all the same.
static void load_task(struct task *t, struct worker *w) {
  struct load *l = (struct load *)t;
  struct loading *all = l->all;
  (void)w;
  if (l->nr > atomic_load_explicit(&all->failed, memory_order_relaxed)) return;
  const enum remixdb_status s = load_part(all->ctx, &l->names, &l->part);
  if (s == REMIXDB_OK) return;
  pthread_mutex_lock(&all->lock);
  if (l->nr < atomic_load_explicit(&all->failed, memory_order_relaxed)) {
    atomic_store_explicit(&all->failed, l->nr, memory_order_relaxed);
    err_save(&all->error, s);
  }
  pthread_mutex_unlock(&all->lock);
}

// Opens the partitions that were decoded. On failure none is left.
static enum remixdb_status load_parts(struct loading *all, struct workers *ws, struct worker *self, struct load *loads, uint32_t nr, struct part **parts) {
  struct task **tasks = mem_alloc(nr * sizeof(*tasks));
  if (!tasks) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < nr; i++) {
    loads[i].task.run = load_task;
    loads[i].task.size = loads[i].names.nr;
    loads[i].all = all;
    loads[i].nr = i;
    tasks[i] = &loads[i].task;
  }
  if (ws) workers_run(ws, self, tasks, nr);
  else
    for (uint32_t i = 0; i < nr; i++) load_task(tasks[i], NULL);
  mem_free(tasks);
  const bool failed = all->failed != UINT32_MAX;
  for (uint32_t i = 0; i < nr; i++) {
    if (failed) part_unref(loads[i].part);
    else parts[i] = loads[i].part;
  }
  return failed ? err_raise(&all->error) : REMIXDB_OK;
}

// V2
static enum remixdb_status check_ranges(const char *path, struct part *const *parts, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) {
    for (uint32_t r = 0; r < part_runs(parts[i]); r++) {
      const struct sst *t = part_run(parts[i], r);
      if (kv_cmp(t->min, part_anchor(parts[i])) < 0 || (i + 1 < nr && kv_cmp(t->max, part_anchor(parts[i + 1])) >= 0))
        return err_corrupt(path, VERSION_HEAD, "table %llu has keys outside of its partition", (unsigned long long)t->number);
    }
  }
  return REMIXDB_OK;
}

enum remixdb_status version_list(const struct env_dir *dir, struct version_names *out) {
  char path[ENV_PATH_MAX];
  uint8_t *buf;
  size_t len;
  enum remixdb_status s = read_current(dir, path, &buf, &len);
  if (s != REMIXDB_OK) return s;
  *out = (struct version_names){.store_id = load64le(buf + 16), .log_gen = load64le(buf + 40), .log_seq = load64le(buf + 48)};
  const size_t end = len - 8;
  if (!(out->tables = mem_alloc(len))) s = REMIXDB_NOMEM;  // more than there can be
  for (size_t at = VERSION_HEAD; s == REMIXDB_OK && at < end;) {
    struct part_names n;
    s = decode_part(path, buf, end, &at, &n);
    for (uint32_t i = 0; s == REMIXDB_OK && i < n.nr; i++) out->tables[out->nr_tables++] = load64le(n.tables + 8 * (size_t)i);
  }
  mem_free(buf);
  if (s != REMIXDB_OK) {
    mem_free(out->tables);
    *out = (struct version_names){0};
  }
  return s;
}

enum remixdb_status version_load(const struct sst_ctx *ctx, struct workers *ws, struct worker *self, struct version **out) {
  char path[ENV_PATH_MAX];
  uint8_t *buf;
  size_t len;
  enum remixdb_status s = read_current(ctx->dir, path, &buf, &len);
  if (s != REMIXDB_OK) return s;
  const size_t end = len - 8;
  const uint32_t nr = load32le(buf + 12);
  struct part **parts = NULL;
  struct load *loads = NULL;
  struct loading all = {.ctx = ctx, .lock = PTHREAD_MUTEX_INITIALIZER, .failed = UINT32_MAX};
  if (nr == 0 || nr > (end - VERSION_HEAD) / VERSION_PART) s = err_corrupt(path, 12, "%u partitions cannot be", nr);
  else if (load64le(buf + VERSION_NEXT) > VERSION_NUMBER_MAX) s = err_corrupt(path, VERSION_NEXT, "file numbers have run out");
  else if (!(parts = mem_calloc(nr, sizeof(*parts))) || !(loads = mem_calloc(nr, sizeof(*loads)))) s = REMIXDB_NOMEM;
  size_t at = VERSION_HEAD;
  uint32_t nr_young = 0;
  for (uint32_t i = 0; s == REMIXDB_OK && i < nr; i++) {
    const size_t from = at;
    if ((s = decode_part(path, buf, end, &at, &loads[i].names)) != REMIXDB_OK) break;
    const struct kref anchor = loads[i].names.anchor;
    const bool in_order = i == 0 ? anchor.len == 0 : kv_cmp(loads[i - 1].names.anchor, anchor) < 0;
    if (!in_order) s = err_corrupt(path, from, "anchors do not ascend");
    nr_young += loads[i].names.young != 0;
  }
  if (s == REMIXDB_OK && nr_young == 0 && load32le(buf + 8) > 1) s = err_corrupt(path, 8, "the format of a version with young views, and it has none");
  if (s == REMIXDB_OK && at != end) s = err_corrupt(path, at, "%zu bytes too many", end - at);
  if (s == REMIXDB_OK) s = load_parts(&all, ws, self, loads, nr, parts);
  if (s != REMIXDB_OK) goto out;
  if ((s = check_ranges(path, parts, nr)) != REMIXDB_OK) {
    for (uint32_t i = 0; i < nr; i++) part_unref(parts[i]);
    goto out;
  }
  struct version *v;
  if ((s = version_create(parts, nr, &v)) != REMIXDB_OK) goto out;
  v->store_id = load64le(buf + 16);
  v->number = load64le(buf + 24);
  v->next_file = load64le(buf + VERSION_NEXT);
  v->log_gen = load64le(buf + 40);
  v->log_seq = load64le(buf + 48);
  *out = v;
out:
  pthread_mutex_destroy(&all.lock);
  mem_free(loads);
  mem_free(parts);
  mem_free(buf);
  return s;
}

enum remixdb_status version_save(const struct sst_ctx *ctx, const struct version *v) {
  // what has no young views is written so that libraries that know of none can read it
  const uint32_t format = v->nr_young ? 2 : 1, head = part_head(format);
  size_t len = VERSION_HEAD + 8;
  for (uint32_t i = 0; i < v->nr_parts; i++) len += head + v->parts[i]->alen + (size_t)part_runs(v->parts[i]) * 8;
  if (len > VERSION_SIZE_MAX) {
    const char *dots, *const end = err_path(ctx->dir->path, &dots);
    return err_set(REMIXDB_NOMEM, "%s%s: a version of %zu bytes is too large", dots, end, len);
  }
  uint8_t *buf = mem_alloc(len);
  if (!buf) return REMIXDB_NOMEM;
  memcpy(buf, version_magic, 8);
  store32le(buf + 8, format);
  store32le(buf + 12, v->nr_parts);
  store64le(buf + 16, v->store_id);
  store64le(buf + 24, v->number);
  store64le(buf + VERSION_NEXT, v->next_file);
  store64le(buf + 40, v->log_gen);
  store64le(buf + 48, v->log_seq);
  uint8_t *p = buf + VERSION_HEAD;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct part *part = v->parts[i];
    const uint32_t nr = part_runs(part);
    store32le(p, part->alen);
    store32le(p + 4, nr);
    store64le(p + 8, part->remix ? part->remix->number : 0);
    if (format > 1) {
      store64le(p + 16, part->young ? part->young->number : 0);
      store64le(p + 24, part_young_runs(part));
    }
    if (part->alen) memcpy(p + head, part->anchor, part->alen);
    p += head + part->alen;
    for (uint32_t r = 0; r < nr; r++, p += 8) store64le(p, part_run(part, r)->number);
  }
  store64le(p, hash64(buf, len - 8));
  const enum remixdb_status s = env_replace_file(ctx->dir, VERSION_FILE, buf, len);
  mem_free(buf);
  return s;
}

// ---- whose directory it is

// The first 8 bytes of a file, or the last. *size_out: how large it is, 0 when it is gone since it was listed, 1 when it is a directory, which is nobody's file.
// Less than 8: nothing was read.
static enum remixdb_status peek(const struct env_dir *dir, const char *name, bool last, uint8_t bytes[8], uint64_t *size_out) {
  struct env_stat st;
  int fd;
  *size_out = 0;
  enum remixdb_status s = env_stat(dir, name, &st);
  const uint64_t size = s != REMIXDB_OK ? 0 : st.is_dir ? 1 : st.size;
  if (s == REMIXDB_OK && size >= 8) s = env_open(dir, name, ENV_READ, &fd);
  if (s == REMIXDB_OK && size >= 8) {
    size_t nr;
    s = env_read_upto(dir->env, fd, name, bytes, 8, last ? size - 8 : 0, &nr);
    env_close_quiet(dir->env, fd);
    if (s == REMIXDB_OK && nr < 8) return s;  // cut meanwhile
  }
  if (s == REMIXDB_OK) *size_out = size;
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
}

// Whether the file is one that this library, or a newer one, has written under such a name. Only the magic is looked at: the rest may be damaged.
static enum remixdb_status is_ours(const struct env_dir *dir, const struct files_entry *e, bool *out) {
  uint8_t magic[8];
  uint64_t size;
  if (files_is_mark(e->kind)) return files_has_mark(dir, e->name, out);
  const enum remixdb_status s = peek(dir, e->name, e->kind == FILES_IS_TABLE, magic, &size);
  *out = false;
  if (s != REMIXDB_OK || size < sizeof(magic)) return s;
  if (e->kind == FILES_IS_CURRENT) *out = memcmp(magic, version_magic, sizeof(magic)) == 0;
  else if (e->kind == FILES_IS_REMIX) *out = memcmp(magic, REMIX_MAGIC, sizeof(magic)) == 0;
  else *out = load64le(magic) == (e->kind == FILES_IS_LOG ? WAL_MAGIC : FORMAT_SST_MAGIC);
  return REMIXDB_OK;
}

static bool see_other(void *arg, const char *name) {
  bool *other = arg;
  *other = *other || files_kind_of(name, NULL) == FILES_OTHER;
  return !*other;
}

// LOCK is there and empty, and beside it nothing but files with a store's names and nothing in them, or room that was taken for it: what a destroyed store, or a
// power cut, may leave of one.
static enum remixdb_status only_blank(const struct env_dir *dir, const struct files_entry *list, size_t nr, bool *out) {
  bool other = false;
  enum remixdb_status s = files_has_mark(dir, FILES_LOCK, out);
  if (s == REMIXDB_OK && *out) s = env_list(dir, see_other, &other);
  *out = *out && !other;
  for (size_t i = 0; i < nr && s == REMIXDB_OK && *out; i++) {
    uint8_t first[8] = {0};
    uint64_t size;
    s = peek(dir, list[i].name, false, first, &size);
    *out = size == 0 || (size >= sizeof(first) && load64le(first) == 0);
  }
  *out = *out && s == REMIXDB_OK;
  return s;
}

// In which order files are asked; 1 is for the directories of repairs.
static uint32_t witness_rank(enum files_kind k) { return files_holds_data(k) ? 0 : k == FILES_IS_CURRENT ? 2 : files_is_mark(k) ? 3 : 4; }

enum remixdb_status version_witness(const struct env_dir *dir, const struct files_entry *list, size_t nr, const char **name_out) {
  static const char *const repairs[] = {FILES_REPAIR_DONE, FILES_REPAIR_IN, FILES_REPAIR_NEW};
  struct err_saved unread = {.status = REMIXDB_NOTFOUND};
  enum remixdb_status s;
  bool found = false;
  for (uint32_t rank = 0; rank < 4; rank++) {
    for (size_t i = 0; i < (rank == 1 ? sizeof(repairs) / sizeof(repairs[0]) : nr); i++) {
      if (rank != 1 && witness_rank(list[i].kind) != rank) continue;
      *name_out = rank == 1 ? repairs[i] : list[i].name;
      s = rank == 1 ? files_has_dir(dir, repairs[i], &found) : is_ours(dir, &list[i], &found);
      if (s == REMIXDB_OK && found) return REMIXDB_OK;
      if (s != REMIXDB_OK) err_save(&unread, s);
    }
  }
  *name_out = FILES_LOCK;
  s = only_blank(dir, list, nr, &found);
  if (s != REMIXDB_OK || found) return s;
  return unread.status == REMIXDB_NOTFOUND ? REMIXDB_NOTFOUND : err_raise(&unread);
}

// ---- what no version names

static int cmp_u64(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

// What tells a table's or REMIX's file from all others in one number.
static uint64_t file_key(uint64_t number, bool remix) { return number << 1 | remix; }

enum remixdb_status version_clean(const struct sst_ctx *ctx, const struct version *v, uint32_t *nr_out) {
  struct files_entry *list = NULL;
  size_t nr_list = 0, nr = 0, nr_named = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) nr += 2 + part_runs(v->parts[i]);
  uint64_t *named = mem_alloc((nr ? nr : 1) * sizeof(*named));
  if (!named) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct part *p = v->parts[i];
    if (p->remix) named[nr_named++] = file_key(p->remix->number, true);
    if (p->young) named[nr_named++] = file_key(p->young->number, true);
    for (uint32_t r = 0; r < part_runs(p); r++) named[nr_named++] = file_key(part_run(p, r)->number, false);
  }
  qsort(named, nr_named, sizeof(*named), cmp_u64);
  *nr_out = 0;
  enum remixdb_status s = files_list(ctx->dir, &list, &nr_list);
  for (size_t i = 0; s == REMIXDB_OK && i < nr_list; i++) {
    const struct files_entry *e = &list[i];
    const uint64_t key = file_key(e->number, e->kind == FILES_IS_REMIX);
    if (e->kind != FILES_IS_CURRENT_TMP && e->kind != FILES_IS_TABLE && e->kind != FILES_IS_REMIX) continue;
    if (e->kind != FILES_IS_CURRENT_TMP && bsearch(&key, named, nr_named, sizeof(key), cmp_u64)) continue;
    s = env_unlink(ctx->dir, e->name);
    *nr_out += s == REMIXDB_OK;
  }
  mem_free(list);
  mem_free(named);
  return s;
}
