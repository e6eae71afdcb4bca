// SPDX-License-Identifier: Apache-2.0
#include "view/version.h"

#include <assert.h>
#include <stdlib.h>

#include "log/format.h"
#include "remix/format.h"
#include "table/format.h"
#include "value/format.h"
#include "view/current.h"

// ---- versions in memory

// Copies the anchors into one piece of memory, in the form of `anchors`: offsets, then bytes.
static enum remixdb_status index_anchors(struct version *v) {
  size_t len = 0, at = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) len += v->parts[i]->alen;
  if (len > UINT32_MAX) return err_set(REMIXDB_NOMEM, "the anchors of all partitions pass 4 GiB");
  const size_t offs = 4 * ((size_t)v->nr_parts + 1);
  uint8_t *const p = mem_alloc(offs + len);
  if (!p) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct kref a = part_anchor(v->parts[i]);
    assert(i == 0 ? a.len == 0 : kv_cmp(part_anchor(v->parts[i - 1]), a) < 0);  // V1
    store32le(p + 4 * (size_t)i, (uint32_t)at);
    if (a.len) memcpy(p + offs + at, a.ptr, a.len);
    at += a.len;
  }
  store32le(p + offs - 4, (uint32_t)at);
  v->anchor_bytes = p;
  return anchors_init(&v->anchors, p, p + offs, v->nr_parts);
}

// Sets `few` and `before` (V9).
static void index_few(struct version *v) {
  v->few = v->nr_parts <= VERSION_FEW;
  memset(v->before, 0xFF, sizeof(v->before));
  for (uint32_t i = 1; i < v->nr_parts && v->few; i++) {
    const struct kref a = part_anchor(v->parts[i]);
    uint8_t first[8] = {0};
    memcpy(first, a.ptr, a.len < sizeof(first) ? a.len : sizeof(first));
    v->few = a.len <= sizeof(first) && load64be(first) != 0;
    v->before[i - 1] = load64be(first) - 1;
  }
}

static enum remixdb_status index_young(struct version *v) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) nr += part_has_young(v->parts[i]);
  if (nr == 0) return REMIXDB_OK;
  if (!(v->young = mem_array(nr + v->nr_parts + 1, sizeof(v->young[0]), 0))) return REMIXDB_NOMEM;
  v->young_from = v->young + nr;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    v->young_from[i] = v->nr_young;
    if (part_has_young(v->parts[i])) v->young[v->nr_young++] = i;
  }
  v->young_from[v->nr_parts] = nr;
  return REMIXDB_OK;
}

enum remixdb_status version_create(struct part **parts, uint32_t nr, struct version **out) {
  const size_t size = sizeof(struct version) + nr * sizeof(parts[0]);
  struct version *const v = mem_alloc_aligned(CACHE_LINE, size);
  if (!v) {
    for (uint32_t i = 0; i < nr; i++) part_unref(parts[i]);
    return REMIXDB_NOMEM;
  }
  memset(v, 0, size);
  atomic_init(&v->refs, 1);
  v->nr_parts = nr;
  memcpy(v->parts, parts, nr * sizeof(v->parts[0]));
  for (uint32_t i = 0; i < nr && !v->expires; i++) v->expires = part_expires(parts[i]);
  index_few(v);
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
  // acq_rel: as in part_unref
  return atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) == 1;
}

void version_unref(struct version *v) {
  if (v && version_drop(v)) version_destroy(v);
}

void version_like(struct version *made, const struct version *v) {
  made->store_id = v->store_id;
  made->number = v->number;
  made->next_file = v->next_file;
  made->log_gen = v->log_gen;
  made->log_seq = v->log_seq;
  made->log_print = v->log_print;
  made->printed = v->printed;
  made->erased = v->erased;
  names_ref(made->names = v->names);
}

enum remixdb_status version_copy(const struct version *v, struct version **out) {
  struct part **const parts = mem_array(v->nr_parts, sizeof(*parts), 0);
  if (!parts) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < v->nr_parts; i++) part_ref(parts[i] = v->parts[i]);
  struct version *made;
  const enum remixdb_status s = version_create(parts, v->nr_parts, &made);
  mem_free(parts);
  if (s != REMIXDB_OK) return s;
  version_like(made, v);
  made->spaces = v->spaces;
  if (made->spaces) version_ref(made->spaces);
  *out = made;
  return REMIXDB_OK;
}

struct value_file *version_value(const struct version *v, struct value_ref *r) {
  struct value_file *const f = value_set_find(&v->values, r->file);
  return likely(f != NULL) ? f : value_moves_follow(&v->moves, r);
}

enum remixdb_status version_get(const struct version *tree, struct kref key, struct sst_hold *h,
                                struct kv_rec *rec_out) {
  const uint64_t hash = hash64(key.ptr, key.len);
  const struct part *const p = tree->parts[version_find(tree, key)];
  enum remixdb_status s = part_ready(p);
  if (s != REMIXDB_OK) return s;
  struct remix *const remix = part_remix(p), *const young = part_young(p);
  if (!remix) return REMIXDB_NOTFOUND;
  if (young && (s = remix_get(young, key, hash, h, rec_out)) != REMIXDB_NOTFOUND) return s;
  return remix_get(remix, key, hash, h, rec_out);
}

// ---- dropped spaces

static uint32_t id_of(struct kref key) { return key.len >= NAMES_ID ? names_id_get(key.ptr) : 0; }

bool table_is_dropped(const struct sst *t, const struct names *n) {
  return !names_have_ids(n, id_of(t->min), id_of(t->max));
}

bool part_has_dropped(const struct part *p, const struct names *n) {
  const enum part_dropped known = part_dropped(p, n);
  if (known != PART_UNKNOWN) return known != PART_CLEAN;
  if (part_is_away(p)) return true;
  for (uint32_t r = 0; r < part_runs(p); r++) {
    const struct sst *const t = part_run(p, r);
    if (!names_have_key(n, t->min) || !names_have_key(n, t->max)) return true;
  }
  return false;
}

bool part_is_dropped(const struct version *tree, uint32_t i, const struct names *n) {
  const struct part *const p = tree->parts[i];
  const struct kref end = i + 1 < tree->nr_parts ? part_anchor(tree->parts[i + 1]) : kref(NULL, 0);
  if (part_is_away(p)) return part_unread_ns(p) == PART_DAMAGED && !names_may_have(n, part_anchor(p), end);
  bool dropped = part_remix(p) != NULL;
  for (uint32_t r = 0; r < part_runs(p) && dropped; r++) dropped = table_is_dropped(part_run(p, r), n);
  return dropped;
}

bool part_may_have_dropped(const struct version *tree, uint32_t i, const struct names *n) {
  const struct part *const p = tree->parts[i];
  uint32_t first, last, none;
  if (part_is_away(p)) {
    first = names_id_from(part_anchor(p));
    last = i + 1 < tree->nr_parts ? names_id_from(part_anchor(tree->parts[i + 1])) : UINT32_MAX;
    if (last >= n->next_id) last = n->next_id - 1;
    return names_gap(n, first ? first : 1, last, &none, &none);
  }
  bool may = false;
  for (uint32_t r = 0; r < part_runs(p) && !may; r++) {
    const struct sst *const t = part_run(p, r);
    may = names_gap(n, id_of(t->min), id_of(t->max), &none, &none);
  }
  return may;
}

// Makes the first partition of a tree: its anchor is empty. p: not away, or NULL.
static enum remixdb_status make_first(const struct part *p, struct part **out) {
  struct remix *const remix = p ? part_remix(p) : NULL, *const young = p ? part_young(p) : NULL;
  if (remix) remix_ref(remix);
  if (young) remix_ref(young);
  return part_create(kref("", 0), remix, young, out);
}

bool version_may_have_dropped(const struct version *v) {
  bool any = false;
  for (uint32_t i = 0; names_dropped(v->names) && v->spaces && i < v->spaces->nr_parts && !any; i++)
    any = part_may_have_dropped(v->spaces, i, v->names);
  return any;
}

const struct part *version_trim_first(const struct version *v) {
  for (uint32_t i = 0; names_dropped(v->names) && v->spaces && i < v->spaces->nr_parts; i++)
    if (!part_is_dropped(v->spaces, i, v->names)) return i ? v->spaces->parts[i] : NULL;
  return NULL;
}

// Tells whether version_trim leaves something out.
static bool has_dropped_parts(const struct version *v) {
  const struct part *const first = version_trim_first(v);
  bool any = false;
  if (first && part_is_away(first)) return false;
  for (uint32_t i = 0; names_dropped(v->names) && v->spaces && i < v->spaces->nr_parts && !any; i++)
    any = part_is_dropped(v->spaces, i, v->names);
  return any;
}

enum remixdb_status version_trim(struct version *v, struct version **full_out) {
  struct version *const full = v->spaces, *made;
  uint32_t nr = 0;
  *full_out = NULL;
  if (!has_dropped_parts(v)) return REMIXDB_OK;
  struct part **const parts = mem_array(full->nr_parts, sizeof(*parts), 0);
  if (!parts) return REMIXDB_NOMEM;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < full->nr_parts && s == REMIXDB_OK; i++) {
    struct part *const p = full->parts[i];
    const bool dropped = part_is_dropped(full, i, v->names);
    if (dropped && (nr == 0 || part_takes_over(parts[nr - 1]))) continue;
    if (dropped) s = part_create(part_anchor(p), NULL, NULL, &parts[nr]);
    else if (nr == 0 && p->alen) s = make_first(p, &parts[0]);
    else part_ref(parts[nr] = p);
    nr += s == REMIXDB_OK;
  }
  if (s == REMIXDB_OK && nr == 0) {
    s = make_first(NULL, &parts[0]);
    nr += s == REMIXDB_OK;
  }
  if (s == REMIXDB_OK) s = version_create(parts, nr, &made);
  else
    for (uint32_t i = 0; i < nr; i++) part_unref(parts[i]);
  mem_free(parts);
  if (s != REMIXDB_OK) return s;
  v->spaces = made;
  *full_out = full;
  return s;
}

enum remixdb_status version_begin_spaces(struct version *v) {
  struct part *p;
  if (v->spaces) return REMIXDB_OK;
  const enum remixdb_status s = part_create(kref("", 0), NULL, NULL, &p);
  return s == REMIXDB_OK ? version_create(&p, 1, &v->spaces) : s;
}

void version_destroy(struct version *v) {
  version_unref(v->spaces);
  names_unref(v->names);
  for (uint32_t i = 0; i < v->nr_parts; i++) part_unref(v->parts[i]);
  anchors_fini(&v->anchors);
  mem_free(v->anchor_bytes);
  mem_free(v->young);
  value_set_fini(&v->values);
  value_moves_fini(&v->moves);
  mem_free(v);
}

// ---- versions on disk

enum remixdb_status version_peek(const struct env_dir *dir, uint64_t *store_id_out) {
  struct current c;
  const enum remixdb_status s = current_read(dir, &c);
  if (s != REMIXDB_OK) return s;
  *store_id_out = c.head.store_id;
  current_close(&c);
  return REMIXDB_OK;
}

// Copies the ids of the section. *out NULL: there are none.
static enum remixdb_status copy_origins(const struct current *c, uint64_t **out, uint32_t *nr_out) {
  *out = NULL;
  *nr_out = c->nr_origins;
  if (c->nr_origins == 0) return REMIXDB_OK;
  if (!(*out = mem_array(c->nr_origins, 8, 0))) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < c->nr_origins; i++) (*out)[i] = load64le(c->origins + 8 * (size_t)i);
  return REMIXDB_OK;
}

enum remixdb_status version_ids(const struct env_dir *dir, uint64_t *store_id_out, uint64_t **origins_out,
                                uint32_t *nr_out) {
  struct current c;
  *origins_out = NULL;
  *nr_out = 0;
  enum remixdb_status s = current_read(dir, &c);
  if (s != REMIXDB_OK) return s;
  *store_id_out = c.head.store_id;
  s = copy_origins(&c, origins_out, nr_out);
  current_close(&c);
  return s;
}

static int cmp_u64(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

// One number for a file: the numbers of tables, REMIXes and value files overlap.
static uint64_t file_key(uint64_t number, enum files_kind kind) {
  return number << 2 | (kind == FILES_IS_REMIX ? 1 : kind == FILES_IS_VALUE ? 2 : kind == FILES_IS_PACK ? 3 : 0);
}

// ---- opening

// Partitions that several threads look at, or open.
struct loading {
  pthread_mutex_t lock;
  _Atomic uint32_t failed;  // the lowest number of a partition that failed; UINT32_MAX: none. Written under the lock
  struct err_saved error;   // its error; guarded by the lock
};

struct load {
  struct task task;
  struct loading *all;
  uint32_t nr;
  // To look at:
  const struct sst_ctx *ctx;
  struct current_part names;
  struct kref end;
  bool spaces;
  struct part *part;           // out; or the partition to open
  _Atomic uint64_t *progress;  // progress of opening; NULL: nobody wants to know
  bool again;                  // as for part_try
};

// If several partitions fail, the call reports the error of the one with the lowest number, whatever the order of the
// threads. So a thread still does the partitions before a failed one.
static bool load_wanted(const struct load *l) {
  return l->nr <= atomic_load_explicit(&l->all->failed, memory_order_relaxed);
}

static void load_ended(const struct load *l, enum remixdb_status s) {
  struct loading *const all = l->all;
  if (s == REMIXDB_OK) return;
  pthread_mutex_lock(&all->lock);
  if (l->nr < atomic_load_explicit(&all->failed, memory_order_relaxed)) {
    atomic_store_explicit(&all->failed, l->nr, memory_order_relaxed);
    err_save(&all->error, s);
  }
  pthread_mutex_unlock(&all->lock);
}

static void look_task(struct task *t, struct worker *w) {
  struct load *const l = (struct load *)t;
  (void)w;
  if (load_wanted(l)) load_ended(l, part_look(l->ctx, &l->names, l->end, l->spaces, &l->part));
}

static void ready_task(struct task *t, struct worker *w) {
  struct load *const l = (struct load *)t;
  (void)w;
  if (load_wanted(l)) load_ended(l, part_ready(l->part));
  if (l->progress) atomic_fetch_add_explicit(l->progress, l->task.size, memory_order_relaxed);
}

static void try_task(struct task *t, struct worker *w) {
  struct load *const l = (struct load *)t;
  bool held;
  (void)w;
  if (load_wanted(l)) load_ended(l, part_try(l->part, l->again, &held));
  if (l->progress) atomic_fetch_add_explicit(l->progress, l->task.size, memory_order_relaxed);
}

// Runs the tasks of all loads.
static enum remixdb_status load_all(struct workers *ws, struct worker *self, struct load *loads, uint32_t nr,
                                    void (*run)(struct task *t, struct worker *w)) {
  struct loading all = {.lock = PTHREAD_MUTEX_INITIALIZER, .failed = UINT32_MAX};
  struct task **const tasks = mem_array(nr, sizeof(*tasks), 0);
  if (!tasks) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < nr; i++) {
    loads[i].task.run = run;
    loads[i].all = &all;
    loads[i].nr = i;
    tasks[i] = &loads[i].task;
  }
  if (ws) workers_run(ws, self, tasks, nr);
  else
    for (uint32_t i = 0; i < nr; i++) run(tasks[i], NULL);
  mem_free(tasks);
  pthread_mutex_destroy(&all.lock);
  return all.failed == UINT32_MAX ? REMIXDB_OK : err_raise(&all.error);
}

// Looks at the files of the decoded partitions. On failure there is no partition.
static enum remixdb_status look_at_parts(struct workers *ws, struct worker *self, struct load *loads, uint32_t nr,
                                         struct part **parts) {
  for (uint32_t i = 0; i < nr; i++) loads[i].task.size = loads[i].names.nr;
  const enum remixdb_status s = load_all(ws, self, loads, nr, look_task);
  for (uint32_t i = 0; i < nr; i++) {
    if (s != REMIXDB_OK) part_unref(loads[i].part);
    else parts[i] = loads[i].part;
  }
  return s;
}

uint64_t version_tree_away(const struct version *tree) {
  uint64_t entries = 0;
  for (uint32_t i = 0; i < tree->nr_parts; i++) {
    const struct part *const p = tree->parts[i];
    if (part_is_away(p) && part_unread_ns(p) != PART_DAMAGED) entries += p->away->entries;
  }
  return entries;
}

uint64_t version_again_ns(const struct version *v, uint64_t now) {
  uint64_t least = 0;
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) part_add_again(tree->parts[i], now, &least);
  return least;
}

uint64_t version_table_bytes(const struct version *v) {
  uint64_t bytes = 0;
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) bytes += part_table_bytes(tree->parts[i]);
  return bytes;
}

// Runs a task for each partition of the tree that is away.
static enum remixdb_status open_parts(const struct version *tree, struct workers *ws, struct worker *self,
                                      void (*run)(struct task *t, struct worker *w), bool again,
                                      _Atomic uint64_t *progress) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < tree->nr_parts; i++) nr += part_is_away(tree->parts[i]);
  if (likely(nr == 0)) return REMIXDB_OK;
  struct load *const loads = mem_calloc(tree->nr_parts, sizeof(*loads));
  if (!loads) return REMIXDB_NOMEM;
  nr = 0;  // readers may bring some meanwhile
  for (uint32_t i = 0; i < tree->nr_parts; i++) {
    if (!part_is_away(tree->parts[i])) continue;
    loads[nr].part = tree->parts[i];
    loads[nr].again = again;
    loads[nr].progress = part_unread_ns(tree->parts[i]) != PART_DAMAGED ? progress : NULL;
    loads[nr++].task.size = tree->parts[i]->away->entries;
  }
  const enum remixdb_status s = nr ? load_all(ws, self, loads, nr, run) : REMIXDB_OK;
  mem_free(loads);
  return s;
}

enum remixdb_status version_tree_ready(const struct version *tree, struct workers *ws, struct worker *self) {
  return open_parts(tree, ws, self, ready_task, false, NULL);
}

enum remixdb_status version_tree_try(const struct version *tree, struct workers *ws, struct worker *self, bool again,
                                     _Atomic uint64_t *progress) {
  return open_parts(tree, ws, self, try_task, again, progress);
}

void version_release(const struct version *v) {
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) part_release(tree->parts[i]);
}

enum remixdb_status version_ready(const struct version *v, struct workers *ws, struct worker *self) {
  const enum remixdb_status s = version_tree_ready(v, ws, self);
  return s == REMIXDB_OK && v->spaces ? version_tree_ready(v->spaces, ws, self) : s;
}

// Every part of a pack that CURRENT lists is a file of a partition. named: keys of their files, ascending.
static enum remixdb_status check_parts(const struct current *c, const uint64_t *named, size_t nr) {
  struct pack_list l;
  if (c->head.packs_len == 0) return REMIXDB_OK;
  const char *flaw = pack_list_begin(&l, c->head.packs, c->head.packs_len, c->head.next_file);
  while (!flaw && !(flaw = pack_list_next(&l)) && l.nr) {
    for (uint32_t i = 0; i < l.nr; i++) {
      const uint64_t id = load64le(l.entries + (size_t)PACK_ENTRY * i);
      const enum files_kind kind = pack_id_kind(id) == PACK_TABLE ? FILES_IS_TABLE : FILES_IS_REMIX;
      const uint64_t key = file_key(pack_id_number(id), kind);
      if (!bsearch(&key, named, nr, sizeof(key), cmp_u64))
        return err_corrupt(c->path, 0, "a part of pack %llu is file %llu of no partition", (unsigned long long)l.number,
                           (unsigned long long)pack_id_number(id));
    }
  }
  return flaw ? err_corrupt(c->path, 0, "packs: %s", flaw) : REMIXDB_OK;
}

// A file belongs to one partition. If a damaged CURRENT named it in many, each would open it and unpack its index.
static enum remixdb_status check_names(const struct current *c, const struct load *loads, uint32_t nr) {
  size_t all = 0, at = 0;
  for (uint32_t i = 0; i < nr; i++) all += 2 + (size_t)loads[i].names.nr;
  uint64_t *const keys = mem_array(all, sizeof(*keys), 0);
  if (!keys) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < nr; i++) {
    const struct current_part *const n = &loads[i].names;
    if (n->nr) keys[at++] = file_key(n->remix, FILES_IS_REMIX);
    if (n->young) keys[at++] = file_key(n->young, FILES_IS_REMIX);
    for (uint32_t t = 0; t < n->nr; t++) keys[at++] = file_key(current_table(n, t), FILES_IS_TABLE);
  }
  qsort(keys, at, sizeof(*keys), cmp_u64);
  uint64_t twice = 0;
  for (size_t i = 1; i < at; i++)
    if (keys[i] == keys[i - 1]) twice = keys[i] >> 2;
  const enum remixdb_status s = twice ? err_corrupt(c->path, 0, "names file %llu for two partitions",
                                                    (unsigned long long)twice)
                                      : check_parts(c, keys, at);
  mem_free(keys);
  return s;
}

// Copies the numbers of value files.
static enum remixdb_status list_values(const struct current *c, struct version_names *out) {
  out->values = mem_array(c->head.nr_values, sizeof(*out->values), 1);
  out->moves = mem_array(c->head.nr_moves, sizeof(*out->moves), 1);
  if (!out->values || !out->moves) return REMIXDB_NOMEM;
  for (; out->nr_values < c->head.nr_values; out->nr_values++)
    out->values[out->nr_values] = load64le(c->head.values + CURRENT_VALUE * (size_t)out->nr_values);
  for (; out->nr_moves < c->head.nr_moves; out->nr_moves++)
    current_move_get(&c->head, out->nr_moves, &out->moves[out->nr_moves]);
  return REMIXDB_OK;
}

enum remixdb_status version_list(const struct env_dir *dir, struct version_names *out) {
  struct current c;
  enum remixdb_status s = current_read(dir, &c);
  if (s != REMIXDB_OK) return s;
  *out = (struct version_names){.store_id = c.head.store_id,
                                .log_gen = c.head.log_gen,
                                .log_seq = c.head.log_seq,
                                .printed = current_prints(&c.head),
                                .log_print = c.head.log_print};
  // more than enough
  out->views = mem_array(c.len / CURRENT_NAME_OLD, sizeof(*out->views), 1);
  if (!out->views || !(out->tables = mem_alloc(c.len)) || !(out->prints = mem_alloc(c.len))) s = REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = copy_origins(&c, &out->origins, &out->nr_origins);
  if (s == REMIXDB_OK) s = list_values(&c, out);
  out->next_file = c.head.next_file;
  out->packs_len = c.head.packs_len;
  if (s == REMIXDB_OK && !(out->packs = mem_alloc(c.head.packs_len + 1))) s = REMIXDB_NOMEM;
  if (s == REMIXDB_OK && c.head.packs_len) memcpy(out->packs, c.head.packs, c.head.packs_len);
  for (uint32_t tree = 0; s == REMIXDB_OK && tree < TREES; tree++) {
    current_tree(&c, tree);
    while (s == REMIXDB_OK && current_more(&c)) {
      struct current_part n;
      s = current_next(&c, &n);
      const size_t first = out->nr_tables;
      for (uint32_t i = 0; s == REMIXDB_OK && i < n.nr; i++) {
        const uint32_t old = n.nr - n.nr_young;
        out->views[out->nr_tables] = i < old ? (struct version_view){n.remix, first, old}
                                             : (struct version_view){n.young, first + old, n.nr_young};
        out->prints[out->nr_tables] = out->printed ? current_table_print(&n, i) : 0;
        out->tables[out->nr_tables++] = current_table(&n, i);
      }
    }
    if (tree == TREE_UNNAMED) out->nr_unnamed = out->nr_tables;
  }
  if (s == REMIXDB_OK && c.names)
    s = names_decode(c.names, c.names_len, c.path, (size_t)(c.names - c.buf), &out->names);
  current_close(&c);
  if (s != REMIXDB_OK) version_names_fini(out);
  return s;
}

void version_names_fini(struct version_names *n) {
  names_unref(n->names);
  mem_free(n->origins);
  mem_free(n->tables);
  mem_free(n->prints);
  mem_free(n->views);
  mem_free(n->values);
  mem_free(n->moves);
  mem_free(n->packs);
  *n = (struct version_names){0};
}

// Decodes all partitions of a tree, and checks V1.
static enum remixdb_status decode_parts(struct current *c, uint32_t tree, struct load *loads) {
  uint32_t nr_young = 0;
  if (c->head.nr_parts[tree] == 0) return REMIXDB_OK;
  current_tree(c, tree);
  for (uint32_t i = 0; i < c->head.nr_parts[tree]; i++) {
    const size_t from = c->at;
    const enum remixdb_status s = current_next(c, &loads[i].names);
    if (s != REMIXDB_OK) return s;
    const struct kref anchor = loads[i].names.anchor;
    const bool in_order = i == 0 ? anchor.len == 0 : kv_cmp(loads[i - 1].names.anchor, anchor) < 0;
    if (!in_order) return err_corrupt(c->path, from, "anchors do not ascend");
    nr_young += loads[i].names.young != 0;
    loads[i].spaces = tree == TREE_SPACES;
    if (i) loads[i - 1].end = anchor;
  }
  return current_check_end(c, nr_young);
}

// Makes a version of these partitions. Takes the references to them over, also if it fails.
static enum remixdb_status make_loaded(const struct current *c, struct part **parts, struct version **out) {
  const uint32_t nr = c->head.nr_parts[TREE_UNNAMED], nr_spaces = c->head.nr_parts[TREE_SPACES];
  struct version *v = NULL, *spaces = NULL;
  enum remixdb_status s = version_create(parts, nr, &v);
  const enum remixdb_status other = nr_spaces ? version_create(parts + nr, nr_spaces, &spaces) : REMIXDB_OK;
  if (s == REMIXDB_OK) s = other;
  if (s == REMIXDB_OK) {
    v->spaces = spaces;
    spaces = NULL;
    s = version_begin_spaces(v);
  }
  if (s == REMIXDB_OK && c->names)
    s = names_decode(c->names, c->names_len, c->path, (size_t)(c->names - c->buf), &v->names);
  if (s != REMIXDB_OK) {
    version_unref(v);
    version_unref(spaces);
    return s;
  }
  v->store_id = c->head.store_id;
  v->number = c->head.number;
  v->next_file = c->head.next_file;
  v->log_gen = c->head.log_gen;
  v->log_seq = c->head.log_seq;
  v->erased = c->head.erased;
  v->log_print = c->head.log_print;
  v->printed = current_prints(&c->head);
  *out = v;
  return REMIXDB_OK;
}

// Adds the packs that CURRENT names to the store's.
static enum remixdb_status load_packs(const struct sst_ctx *ctx, const struct current *c) {
  const struct files_ids ids = sst_ctx_ids(ctx);
  struct pack_list l;
  if (c->head.packs_len == 0) return REMIXDB_OK;
  if (!ctx->packs) return err_set(REMIXDB_INVALID, "%s: has packs, and they are not wanted", c->path);
  const char *flaw = pack_list_begin(&l, c->head.packs, c->head.packs_len, c->head.next_file);
  while (!flaw && !(flaw = pack_list_next(&l)) && l.nr) {
    const enum remixdb_status s = packs_load(ctx->packs, &ids, l.number, &l.print, l.entries, l.nr);
    if (s != REMIXDB_OK) return s;
  }
  return flaw ? err_corrupt(c->path, 0, "packs: %s", flaw) : REMIXDB_OK;
}

// Opens the value files that CURRENT names, and compares their fingerprints (V5).
static enum remixdb_status load_values(const struct sst_ctx *ctx, const struct current *c, struct version *v) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < c->head.nr_values && s == REMIXDB_OK; i++) {
    const uint8_t *const name = c->head.values + CURRENT_VALUE * (size_t)i;
    struct value_file *f;
    if ((s = value_file_open(ctx->values, load64le(name), &f)) != REMIXDB_OK) return s;
    atomic_store_explicit(&f->value_bytes, load64le(name + 16), memory_order_relaxed);
    s = f->print == load64le(name + 8) ? value_set_add(&v->values, f) : current_other_history(f->path);
    value_file_unref(f);
  }
  return s;
}

// Reads the indexes of the collected files that CURRENT names.
static enum remixdb_status load_moves(const struct current *c, struct version *v) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < c->head.nr_moves && s == REMIXDB_OK; i++) {
    struct current_move m;
    struct value_index *x;
    current_move_get(&c->head, i, &m);
    struct value_file *const f = value_set_find(&v->values, m.ref.file);
    if (!f)
      return err_corrupt(c->path, 0, "the index of value file %llu is in file %llu, which is not named",
                         (unsigned long long)m.number, (unsigned long long)m.ref.file);
    if ((s = value_index_open(f, m.number, m.bytes, &m.ref, &x)) != REMIXDB_OK) return s;
    s = value_moves_add(&v->moves, x);
    value_index_unref(x);
  }
  return s;
}

_Atomic uint64_t version_eager = VERSION_EAGER;

// Tells whether the indexes of all partitions are small.
static bool is_small(const struct version *v) {
  uint64_t bytes = 0;
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      struct part_files f;
      part_files(tree->parts[i], &f);
      bytes += f.remix.size + f.young.size;
    }
  return bytes <= atomic_load_explicit(&version_eager, memory_order_relaxed);
}

enum remixdb_status version_open(const struct sst_ctx *ctx, struct workers *ws, struct worker *self,
                                 struct version **out) {
  struct current c;
  enum remixdb_status s = current_read(ctx->dir, &c);
  if (s != REMIXDB_OK) return s;
  const uint32_t nr_unnamed = c.head.nr_parts[TREE_UNNAMED];
  uint32_t nr = 0;
  struct part **parts = NULL;
  struct load *loads = NULL;
  s = current_check(&c);
  if (s == REMIXDB_OK) nr = nr_unnamed + c.head.nr_parts[TREE_SPACES];
  if (s == REMIXDB_OK && (!(parts = mem_calloc(nr, sizeof(*parts))) || !(loads = mem_calloc(nr, sizeof(*loads)))))
    s = REMIXDB_NOMEM;
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) loads[i].ctx = ctx;
  if (s == REMIXDB_OK) s = decode_parts(&c, TREE_UNNAMED, loads);
  if (s == REMIXDB_OK) s = decode_parts(&c, TREE_SPACES, loads + nr_unnamed);
  if (s == REMIXDB_OK) s = check_names(&c, loads, nr);
  if (s == REMIXDB_OK) s = load_packs(ctx, &c);
  if (s == REMIXDB_OK) s = look_at_parts(ws, self, loads, nr, parts);
  if (s == REMIXDB_OK) s = make_loaded(&c, parts, out);
  if (s == REMIXDB_OK) {
    s = load_values(ctx, &c, *out);
    if (s == REMIXDB_OK) s = load_moves(&c, *out);
    if (s == REMIXDB_OK && is_small(*out)) s = version_ready(*out, ws, self);
    if (s != REMIXDB_OK) {
      version_unref(*out);
      *out = NULL;
    }
  }
  mem_free(loads);
  mem_free(parts);
  current_close(&c);
  return s;
}

enum remixdb_status version_load(const struct sst_ctx *ctx, struct workers *ws, struct worker *self,
                                 struct version **out) {
  enum remixdb_status s = version_open(ctx, ws, self, out);
  if (s == REMIXDB_OK && (s = version_ready(*out, ws, self)) != REMIXDB_OK) {
    version_unref(*out);
    *out = NULL;
  }
  return s;
}

enum remixdb_status version_may_grow(const struct sst_ctx *ctx, const struct version *v) {
  if (v->number <= CURRENT_COUNT_MAX - CURRENT_LEFT && v->next_file <= CURRENT_NUMBER_MAX - CURRENT_LEFT)
    return REMIXDB_OK;
  return err_set(REMIXDB_CORRUPT, "%s: the numbers of versions or files have run out; it can be opened with read_only",
                 ctx->dir->path);
}

// The parts of CURRENT.
struct saving {
  struct current_part *parts;
  uint8_t *tables;            // names of tables, then of value files
  uint8_t *moves;             // the collected value files
  struct pack_part **packed;  // parts of packs
  size_t nr_packed;
};

static void add_packed(struct saving *w, const struct part_file *f) {
  if (f->part) w->packed[w->nr_packed++] = f->part;
}

// Describes a tree's partitions for CURRENT, from parts[at] on. The names of their tables go to `tables`. Returns the
// end of these.
static uint8_t *name_parts(const struct version *tree, struct saving *w, uint32_t at, uint8_t *tables) {
  for (uint32_t i = 0; i < tree->nr_parts; i++) {
    struct part_files f;
    part_files(tree->parts[i], &f);
    w->parts[at + i] = (struct current_part){.anchor = part_anchor(tree->parts[i]),
                                             .remix = f.remix.number,
                                             .remix_print = f.remix.print,
                                             .young = f.young.number,
                                             .young_print = f.young.print,
                                             .nr = f.nr,
                                             .nr_young = f.nr_young,
                                             .stride = CURRENT_NAME,
                                             .tables = tables};
    add_packed(w, &f.remix);
    add_packed(w, &f.young);
    for (uint32_t r = 0; r < f.nr; r++, tables += CURRENT_NAME) {
      current_name_put(tables, f.tables[r].number, f.tables[r].print);
      add_packed(w, &f.tables[r]);
    }
  }
  return tables;
}

// Returns the number of a version's files, and adds the number of its partitions to *nr_parts_out, if that is not NULL.
static size_t count_files(const struct version *v, uint32_t *nr_parts_out) {
  size_t nr = 0;
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) nr += part_nr_files(tree->parts[i]);
  if (nr_parts_out) *nr_parts_out = v->nr_parts + (v->spaces ? v->spaces->nr_parts : 0);
  return nr + v->values.nr;
}

// Describes the value files, at `at`, and the collected ones, at `moves`.
static void name_values(const struct version *v, struct current_head *head, uint8_t *at, uint8_t *moves) {
  head->values = at;
  for (uint32_t i = 0; i < v->values.nr; i++, at += CURRENT_VALUE) {
    const struct value_file *const f = v->values.files[i];
    current_name_put(at, f->number, f->print);
    store64le(at + CURRENT_NAME, atomic_load_explicit(&f->value_bytes, memory_order_relaxed));
  }
  head->moves = moves;
  for (uint32_t i = 0; i < v->moves.nr; i++) {
    const struct value_index *const x = v->moves.all[i];
    current_move_put(moves + CURRENT_MOVE * (size_t)i, &(struct current_move){x->number, x->bytes, x->ref});
  }
}

enum remixdb_status version_save(const struct sst_ctx *ctx, const struct version *v) {
  const struct files_ids ids = {.own = v->store_id, .origins = ctx->origins, .nr = ctx->nr_origins};
  const uint32_t nr_spaces = version_is_empty(v->spaces) ? 0 : v->spaces->nr_parts;
  struct current_head head = {.nr_parts = {v->nr_parts, nr_spaces},
                              .store_id = v->store_id,
                              .number = v->number,
                              .next_file = v->next_file,
                              .log_gen = v->log_gen,
                              .log_seq = v->log_seq,
                              .erased = v->erased > v->log_seq ? v->erased : 0,
                              .log_print = v->log_print,
                              .nr_values = v->values.nr,
                              .nr_moves = v->moves.nr};
  uint32_t nr_parts;
  const size_t nr_files = count_files(v, &nr_parts);
  struct saving w = {.parts = mem_array(nr_parts, sizeof(*w.parts), 0),
                     .tables = mem_array(nr_files, CURRENT_VALUE, 0),
                     .moves = mem_array(v->moves.nr, CURRENT_MOVE, 0),
                     .packed = mem_array(nr_files, sizeof(struct pack_part *), 0)};
  uint8_t *packs = NULL;
  enum remixdb_status s = w.parts && w.tables && w.moves && w.packed ? REMIXDB_OK : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) {
    uint8_t *at = name_parts(v, &w, 0, w.tables);
    if (nr_spaces) at = name_parts(v->spaces, &w, v->nr_parts, at);
    name_values(v, &head, at, w.moves);
    s = packs_encode(ctx->packs, w.packed, w.nr_packed, &packs, &head.packs_len);
    head.packs = packs;
  }
  if (s == REMIXDB_OK) s = current_write(ctx->dir, &head, &ids, w.parts, v->names);
  mem_free(packs);
  mem_free(w.parts);
  mem_free(w.tables);
  mem_free(w.moves);
  mem_free(w.packed);
  return s;
}

// ---- the owner of a file

// Tells whether the bytes of a log segment, a table or a REMIX state a store's id. bytes: the last nr bytes of a table
// or a pack, or the first nr bytes of another file; nr is at most WAL_HEAD.
static bool states_id(const struct files_entry *e, const uint8_t *bytes, size_t nr, uint64_t size, uint64_t *id_out) {
  struct format_sst_footer f;
  struct wal_head h;
  struct value_head v;
  struct pack_footer k;
  switch (e->kind) {
    case FILES_IS_VALUE:
      if (nr < VALUE_HEAD || value_head_get(bytes, e->name, &v) != REMIXDB_OK) return false;
      *id_out = v.store_id;
      return true;
    case FILES_IS_PACK:
      if (nr < PACK_FOOTER || pack_footer_get(bytes, size, e->name, &k) != REMIXDB_OK) return false;
      *id_out = k.store_id;
      return true;
    case FILES_IS_TABLE:
      if (format_sst_footer_get(bytes, size, e->name, &f) != REMIXDB_OK) return false;
      *id_out = f.store_id;
      return true;
    case FILES_IS_LOG:
      if (nr < WAL_HEAD || wal_head_get(bytes, e->name, wal_head_store_id(bytes), &h) != REMIXDB_OK) return false;
      *id_out = h.store_id;
      return true;
    default:
      *id_out = load64le(bytes + REMIX_HEAD_STORE_ID);
      // A crash may leave only the beginning of the file.
      return memcmp(bytes + REMIX_HEAD_MAGIC, REMIX_MAGIC, 8) == 0 && load64le(bytes + REMIX_HEAD_SIZE) == size;
  }
}

// Tells whether a file that states this id is the store's. The log has no origins: a checkpoint writes its own.
static bool is_own(const struct files_ids *ids, const struct files_entry *e, uint64_t id) {
  return !ids || (e->kind == FILES_IS_LOG ? id == ids->own : files_ids_have(ids, id));
}

// Finds the owner of a log segment, a table or a REMIX.
static enum remixdb_status data_owner(const struct env_dir *dir, const struct files_entry *e, uint64_t size,
                                      const struct files_ids *ids, enum version_owner *out) {
  uint8_t bytes[WAL_HEAD] = {0};
  _Static_assert(FORMAT_SST_FOOTER <= sizeof(bytes), "a footer fits");
  _Static_assert(REMIX_HEAD_SIZE + 8 <= sizeof(bytes), "states_id reads the head of a REMIX");
  const bool last = e->kind == FILES_IS_TABLE || e->kind == FILES_IS_PACK;
  const size_t want = e->kind == FILES_IS_TABLE ? FORMAT_SST_FOOTER : last ? PACK_FOOTER : sizeof(bytes);
  size_t nr = 0;
  int fd;
  enum remixdb_status s = env_open(dir, e->name, ENV_READ, &fd);
  if (s != REMIXDB_OK) return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
  s = env_read_upto(dir->env, fd, e->name, bytes, want, last && size >= want ? size - want : 0, &nr);
  env_close_quiet(dir->env, fd);
  if (s != REMIXDB_OK) return s;
  uint64_t id;
  bool blank = true;
  for (size_t i = 0; i < nr; i++) blank = blank && bytes[i] == 0;
  if (states_id(e, bytes, nr, size, &id)) *out = is_own(ids, e, id) ? VERSION_OWN : VERSION_FOREIGN;
  else *out = blank ? VERSION_OWN : VERSION_UNTOLD;
  return REMIXDB_OK;
}

enum remixdb_status version_owner(const struct env_dir *dir, const struct files_entry *e, const struct files_ids *ids,
                                  enum version_owner *out) {
  struct env_stat info = {.size = 0};
  const enum remixdb_status s = env_stat(dir, e->name, &info);
  *out = VERSION_FOREIGN;
  if (s != REMIXDB_OK || !info.is_file) return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
  if (files_holds_data(e->kind)) return data_owner(dir, e, info.size, ids, out);
  *out = !files_is_mark(e->kind) || info.size == 0 ? VERSION_OWN : VERSION_UNTOLD;
  return REMIXDB_OK;
}

// ---- all files of a version

// Calls fn for each file of the version's partitions, and for each value file. For a value file f has only the number
// and the origin.
static void each_file(const struct version *v, void (*fn)(void *arg, enum files_kind kind, const struct part_file *f),
                      void *arg) {
  for (const struct version *tree = v; tree; tree = tree->spaces) {
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      struct part_files f;
      part_files(tree->parts[i], &f);
      if (f.remix.number) fn(arg, FILES_IS_REMIX, &f.remix);
      if (f.young.number) fn(arg, FILES_IS_REMIX, &f.young);
      for (uint32_t r = 0; r < f.nr; r++) fn(arg, FILES_IS_TABLE, &f.tables[r]);
    }
  }
  for (uint32_t i = 0; i < v->values.nr; i++) {
    const struct value_file *const f = v->values.files[i];
    fn(arg, FILES_IS_VALUE, &(struct part_file){.number = f->number, .origin = f->origin});
  }
}

struct origins {
  uint64_t own, *ids;
  size_t nr;
};

static void add_origin(void *arg, enum files_kind kind, const struct part_file *f) {
  struct origins *const o = arg;
  (void)kind;
  if (f->origin != o->own) o->ids[o->nr++] = f->origin;
}

enum remixdb_status version_origins(const struct version *v, uint64_t own, uint64_t **out, uint32_t *nr_out) {
  const size_t most = count_files(v, NULL);
  *out = NULL;
  *nr_out = 0;
  uint64_t *const ids = mem_array(most ? most : 1, sizeof(*ids), 0);
  if (!ids) return REMIXDB_NOMEM;
  struct origins found = {own, ids, 0};
  each_file(v, add_origin, &found);
  const size_t nr = found.nr;
  qsort(ids, nr, sizeof(*ids), cmp_u64);
  uint32_t kept = 0;
  for (size_t i = 0; i < nr; i++)
    if (i == 0 || ids[i] != ids[i - 1]) ids[kept++] = ids[i];
  *nr_out = kept;
  if (kept) *out = ids;
  else mem_free(ids);
  return REMIXDB_OK;
}

// ---- files that no version names

struct named {
  uint64_t *keys;
  size_t nr;
};

static void add_key(void *arg, enum files_kind kind, const struct part_file *f) {
  struct named *const n = arg;
  if (!f->part) n->keys[n->nr++] = file_key(f->number, kind);
}

enum remixdb_status version_clean(const struct sst_ctx *ctx, const struct version *v, uint32_t *nr_out) {
  struct files_entry *list = NULL;
  const size_t nr = count_files(v, NULL);
  size_t nr_list = 0;
  struct named named = {mem_array(nr ? nr : 1, sizeof(*named.keys), 0), 0};
  if (!named.keys) return REMIXDB_NOMEM;
  each_file(v, add_key, &named);
  qsort(named.keys, named.nr, sizeof(*named.keys), cmp_u64);
  *nr_out = 0;
  const struct files_ids ids = sst_ctx_ids(ctx);
  enum remixdb_status s = files_list(ctx->dir, &list, &nr_list);
  for (size_t i = 0; s == REMIXDB_OK && i < nr_list; i++) {
    const struct files_entry *e = &list[i];
    const uint64_t key = file_key(e->number, e->kind);
    if (e->kind != FILES_IS_CURRENT_TMP && !files_is_numbered(e->kind)) continue;
    if (e->kind == FILES_IS_PACK && packs_have(ctx->packs, e->number)) continue;
    if (e->kind != FILES_IS_CURRENT_TMP && bsearch(&key, named.keys, named.nr, sizeof(key), cmp_u64)) continue;
    enum version_owner owner;
    s = version_owner(ctx->dir, e, &ids, &owner);
    if (s != REMIXDB_OK || owner == VERSION_FOREIGN) continue;
    s = env_unlink(ctx->dir, e->name);
    *nr_out += s == REMIXDB_OK;
  }
  mem_free(list);
  mem_free(named.keys);
  if (s == REMIXDB_OK) packs_reclaim(ctx->packs);
  return s;
}
