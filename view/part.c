// SPDX-License-Identifier: Apache-2.0
#include "view/part.h"

#include <assert.h>

#include "remix/paged.h"
#include "table/format.h"

// Takes the references over.
static enum remixdb_status create(struct kref anchor, struct remix *remix, struct remix *young, struct part **out) {
  struct part *const p = mem_alloc_aligned(CACHE_LINE, sizeof(*p) + anchor.len);
  if (!p) {
    remix_unref(remix);
    remix_unref(young);
    return REMIXDB_NOMEM;
  }
  atomic_init(&p->refs, 1);
  atomic_init(&p->remix, remix);
  atomic_init(&p->young, young);
  atomic_init(&p->failed_reads, 0);
  atomic_init(&p->unread_ns, 0);
  remix_quick_set(&p->quick, remix);
  p->away = NULL;
  atomic_init(&p->dropped, 0);
  p->hides = PART_HIDES_UNKNOWN;
  p->more_runs = 0;
  p->alen = anchor.len;
  if (anchor.len) memcpy(p->anchor, anchor.ptr, anchor.len);
  *out = p;
  return REMIXDB_OK;
}

enum remixdb_status part_create(struct kref anchor, struct remix *remix, struct remix *young, struct part **out) {
  assert(remix || !young);
  return create(anchor, remix, young, out);
}

void part_ref(struct part *p) { atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed); }

// Counts the partition's entries while it is not open.
static void away_count(struct part_away *a, bool away) {
  if (a->counted == away) return;
  a->counted = away;
  budget_away(a->ctx->budget, a->entries, away);
}

static void older_unref(struct part_older *o) {
  // acq_rel: as in part_unref
  if (!o || atomic_fetch_sub_explicit(&o->refs, 1, memory_order_acq_rel) != 1) return;
  remix_unref(o->remix);
  pthread_mutex_destroy(&o->lock);
  mem_free(o);
}

// older: its reference is taken over, also if the call fails. NULL: the partition is the first one with that view.
// Returns NULL without memory.
static struct part_away *away_new(const struct sst_ctx *ctx, struct part_older *older, struct kref end) {
  struct part_away *const a = mem_calloc(1, sizeof(*a) + end.len);
  if (a && !older && (older = mem_calloc(1, sizeof(*older)))) {
    atomic_init(&older->refs, 1);
    (void)pthread_mutex_init(&older->lock, NULL);
  }
  if (!a || !older) {
    older_unref(older);
    mem_free(a);
    return NULL;
  }
  a->ctx = ctx;
  a->older = older;
  a->bounded = end.ptr != NULL;
  a->end_len = end.len;
  if (end.len) memcpy(a->end, end.ptr, end.len);
  (void)pthread_mutex_init(&a->lock, NULL);
  return a;
}

static void away_free(struct part_away *a) {
  if (!a) return;
  away_count(a, false);
  older_unref(a->older);
  mem_free(a->error);
  pthread_mutex_destroy(&a->lock);
  mem_free(a);
}

void part_unref(struct part *p) {
  // acq_rel: the thread that frees has seen all uses by the others.
  if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
  remix_unref(part_remix(p));
  remix_unref(part_young(p));
  away_free(p->away);
  mem_free(p);
}

bool part_set_unread(struct part *p, enum remixdb_status s) {
  if (s == REMIXDB_CORRUPT)
    return atomic_exchange_explicit(&p->unread_ns, PART_DAMAGED, memory_order_relaxed) != PART_DAMAGED;
  if (part_unread_ns(p) == PART_DAMAGED) return false;
  const uint32_t failed = atomic_fetch_add_explicit(&p->failed_reads, 1, memory_order_relaxed);
  const uint64_t pause = PART_PAUSE_NS << (failed < PART_PAUSES ? failed : PART_PAUSES);
  atomic_store_explicit(&p->unread_ns, time_ns() + pause, memory_order_relaxed);
  return true;
}

// ---- a partition that is away

static enum remixdb_status out_of_place(const struct sst *t, const char *what) {
  return err_corrupt(t->ctx->dir->path, 0, "table %llu %s", (unsigned long long)t->number, what);
}

// Compares the file of this name with what CURRENT says of it, and takes what it says of itself.
static enum remixdb_status take_file(const struct part_away *a, enum pack_kind kind, const struct sst_peek *seen,
                                     struct part_file *f) {
  char name[32];
  f->part = packs_find(a->ctx->packs, kind, f->number);
  if (f->part) files_pack_name(name, f->part->pack->number);
  else if (kind == PACK_TABLE) sst_name(name, f->number);
  else remix_name(name, f->number);
  if (a->printed && seen->print != f->print) {
    char *const path = env_path_new(a->ctx->dir, name);
    const enum remixdb_status s = path ? current_other_history(path) : REMIXDB_NOMEM;
    mem_free(path);
    return s;
  }
  f->print = seen->print;
  f->origin = seen->origin;
  f->size = seen->size;
  return REMIXDB_OK;
}

static enum remixdb_status look_at_table(struct part_away *a, bool spaces, struct part_file *f) {
  struct sst_peek seen;
  const enum remixdb_status s = sst_look(a->ctx, f->number, &seen);
  if (s != REMIXDB_OK) return s;
  if (seen.spaces != spaces)
    return err_corrupt(a->ctx->dir->path, 0, "table %llu is of the other tree", (unsigned long long)f->number);
  return take_file(a, PACK_TABLE, &seen, f);
}

static enum remixdb_status look_at_view(struct part_away *a, struct part_file *f) {
  struct remix_peek seen;
  if (f->number == 0) return REMIXDB_OK;
  const enum remixdb_status s = remix_look(a->ctx, f->number, &seen);
  if (s != REMIXDB_OK) return s;
  if (f == &a->files.remix) {
    a->old_expires = seen.expires;
    a->old_entries = seen.entries;
    a->old_keys = seen.keys;
  }
  a->odd = a->odd || seen.odd;
  a->expires = a->expires || seen.expires;
  a->entries += seen.entries;
  a->keys += seen.keys;
  return take_file(a, PACK_REMIX, &seen.file, f);
}

static enum remixdb_status look_at_files(struct part_away *a, bool spaces) {
  struct part_files *const f = &a->files;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < f->nr && s == REMIXDB_OK; i++) s = look_at_table(a, spaces, &f->tables[i]);
  if (s == REMIXDB_OK) s = look_at_view(a, &f->remix);
  return s == REMIXDB_OK ? look_at_view(a, &f->young) : s;
}

static void take_names(struct part_away *a, const struct current_part *n) {
  struct part_files *const f = &a->files;
  a->printed = n->stride == CURRENT_NAME;
  *f = (struct part_files){.nr = n->nr, .nr_young = n->nr_young};
  f->remix = (struct part_file){.number = n->remix, .print = n->remix_print};
  f->young = (struct part_file){.number = n->young, .print = n->young_print};
  for (uint32_t i = 0; i < n->nr; i++)
    f->tables[i] = (struct part_file){.number = current_table(n, i),
                                      .print = a->printed ? current_table_print(n, i) : 0};
}

enum remixdb_status part_look(const struct sst_ctx *ctx, const struct current_part *names, struct kref end, bool spaces,
                              struct part **out) {
  struct part *p;
  enum remixdb_status s = part_create(names->anchor, NULL, NULL, &p);
  if (s != REMIXDB_OK) return s;
  if (names->nr && !(p->away = away_new(ctx, NULL, end))) s = REMIXDB_NOMEM;
  if (s == REMIXDB_OK && p->away) {
    struct part_away *const a = p->away;
    take_names(a, names);
    s = look_at_files(a, spaces);
    away_count(a, true);
    if (s == REMIXDB_OK && a->odd) s = part_bring(p);
  }
  if (s == REMIXDB_OK) *out = p;
  else part_unref(p);
  return s;
}

// Opens the tables [from, to). On failure closes them. A file may have been exchanged since part_look, so the call
// compares again.
static enum remixdb_status open_tables(const struct part *p, uint32_t from, uint32_t to, struct sst **runs) {
  const struct part_away *const a = p->away;
  const struct kref end = kref(a->end, a->end_len);
  enum remixdb_status s = REMIXDB_OK;
  uint32_t opened = 0;
  while (from + opened < to && s == REMIXDB_OK) {
    const struct part_file *const f = &a->files.tables[from + opened];
    struct sst **const t = &runs[opened];
    if ((s = sst_open(a->ctx, f->number, t)) != REMIXDB_OK) break;
    opened++;
    if ((*t)->print != f->print) s = current_other_history((*t)->path);
    else if (kv_cmp((*t)->min, part_anchor(p)) < 0 || (a->bounded && kv_cmp((*t)->max, end) >= 0))
      s = out_of_place(*t, "has keys outside of its partition");
  }
  for (uint32_t i = 0; i < opened && s != REMIXDB_OK; i++) sst_unref(runs[i]);
  return s;
}

// Opens a view. It is paged if indexes have no room for it; a young one is opened whole first, and counted.
static enum remixdb_status open_view(const struct part_away *a, const struct part_file *f, struct sst *const *runs,
                                     uint32_t nr, bool young, struct remix **out) {
  *out = NULL;
  if (f->number == 0) return REMIXDB_OK;
  const bool whole = !a->ctx->pages || budget_index_fits(a->ctx->budget, remix_whole_memory(runs, nr));
  enum remixdb_status s = whole || young ? remix_open(a->ctx, f->number, runs, nr, out)
                                         : remix_open_paged(a->ctx, f->number, runs, nr, out);
  if (s != REMIXDB_OK) return s;
  if (young) remix_make_young(*out);
  if (young && !whole && (s = remix_page_out(*out, NULL)) != REMIXDB_OK) return s;
  remix_watch(*out, a->watch);
  return (*out)->print == f->print ? REMIXDB_OK : current_other_history((*out)->path);
}

// Opens a view with its tables [from, to). *out: one reference, or NULL: the partition has no such view.
static enum remixdb_status open_with_tables(const struct part *p, const struct part_file *f, uint32_t from, uint32_t to,
                                            bool young, struct remix **out) {
  struct sst *runs[REMIX_RUNS_MAX];
  *out = NULL;
  enum remixdb_status s = open_tables(p, from, to, runs);
  if (s != REMIXDB_OK) return s;
  s = open_view(p->away, f, runs, to - from, young, out);
  err_cleanup_begin();
  for (uint32_t i = 0; i < to - from; i++) sst_unref(runs[i]);
  if (s != REMIXDB_OK) {
    remix_unref(*out);
    *out = NULL;
  }
  err_cleanup_end();
  return s;
}

// The opened older view, with a reference; NULL: it is not open.
static struct remix *older_get(struct part_older *o) {
  pthread_mutex_lock(&o->lock);
  struct remix *const x = o->remix;
  if (x) remix_ref(x);
  pthread_mutex_unlock(&o->lock);
  return x;
}

// Opens the older view. *out: as of older_get.
static enum remixdb_status older_open(const struct part *p, struct remix **out) {
  const struct part_files *const f = &p->away->files;
  struct part_older *const o = p->away->older;
  enum remixdb_status s = REMIXDB_OK;
  pthread_mutex_lock(&o->lock);
  if (!o->remix) s = open_with_tables(p, &f->remix, 0, f->nr - f->nr_young, false, &o->remix);
  *out = o->remix;
  if (*out) remix_ref(*out);
  pthread_mutex_unlock(&o->lock);
  return s;
}

// Opens the young view, if it is not open. Under away->lock.
static enum remixdb_status young_open(struct part *p) {
  const struct part_files *const f = &p->away->files;
  struct remix *young;
  if (part_young(p) || f->nr_young == 0) return REMIXDB_OK;
  const enum remixdb_status s = open_with_tables(p, &f->young, f->nr - f->nr_young, f->nr, true, &young);
  if (s == REMIXDB_OK) atomic_store_explicit(&p->young, young, memory_order_release);  // a round may look at it
  return s;
}

// Under away->lock. The files are whole, so a mark by an earlier try goes.
static enum remixdb_status bring(struct part *p) {
  struct remix *remix;
  away_count(p->away, false);
  enum remixdb_status s = older_open(p, &remix);
  if (s == REMIXDB_OK && (s = young_open(p)) != REMIXDB_OK) {
    err_cleanup_begin();
    remix_unref(remix);
    err_cleanup_end();
  }
  if (s != REMIXDB_OK) {
    away_count(p->away, true);
    return s;
  }
  remix_quick_set(&p->quick, remix);
  atomic_store_explicit(&p->unread_ns, 0, memory_order_relaxed);
  atomic_store_explicit(&p->remix, remix, memory_order_release);  // P1, P3
  return REMIXDB_OK;
}

enum remixdb_status part_bring(const struct part *p) {
  struct part *const mine = (struct part *)(uintptr_t)p;  // immutable to its users; this is the one change (P1, P3)
  struct part_away *const a = p->away;
  pthread_mutex_lock(&a->lock);
  const enum remixdb_status s = part_remix(p) ? REMIXDB_OK : a->shut || a->held ? err_raise(a->error) : bring(mine);
  pthread_mutex_unlock(&a->lock);
  return s;
}

// ---- a partition that is away and damaged

// Keeps what is wrong with the partition, as the thread has it. Returns NULL without memory.
static struct err_saved *error_new(enum remixdb_status s) {
  struct err_saved *const e = mem_alloc(sizeof(*e));
  if (e) err_save(e, s);
  return e;
}

// The partition is damaged, because of s. Under away->lock.
static enum remixdb_status hold(struct part *p, enum remixdb_status s) {
  struct err_saved *const why = error_new(s);
  if (!why) return REMIXDB_NOMEM;
  if ((s = young_open(p)) != REMIXDB_OK && s != REMIXDB_CORRUPT) {
    mem_free(why);
    return s;
  }
  mem_free(p->away->error);
  p->away->error = why;
  p->away->held = true;
  return REMIXDB_OK;
}

enum remixdb_status part_try(struct part *p, bool again, bool *held_out) {
  struct part_away *const a = p->away;
  enum remixdb_status s = REMIXDB_OK;
  *held_out = false;
  if (!part_is_away(p)) return s;
  if (a->shut) {
    struct remix *remix = NULL;
    if (again) s = older_open(p, &remix);
    remix_unref(remix);
    if (s == REMIXDB_CORRUPT) s = REMIXDB_OK;
    *held_out = s == REMIXDB_OK;
    return s;
  }
  pthread_mutex_lock(&a->lock);
  if (!part_remix(p)) s = bring(p);
  if (s == REMIXDB_CORRUPT) {
    s = hold(p, s);
    *held_out = s == REMIXDB_OK;
  }
  pthread_mutex_unlock(&a->lock);
  return s;
}

void part_release(struct part *p) {
  if (!part_is_away(p)) return;  // it was not held
  pthread_mutex_lock(&p->away->lock);
  p->away->held = false;
  pthread_mutex_unlock(&p->away->lock);
}

enum remixdb_status part_why(const struct part *p) {
  assert(p->away && (p->away->held || p->away->shut));
  return err_raise(p->away->error);
}

bool part_opens(const struct part *p) {
  if (!part_is_shut(p)) return false;
  struct remix *const x = older_get(p->away->older);
  remix_unref(x);
  return x != NULL;
}

static struct part_file file_of_view(const struct remix *x) {
  return x ? (struct part_file){x->number, x->print, x->origin, x->file_size, x->part} : (struct part_file){0};
}

static struct part_file file_of_table(const struct sst *t) {
  return (struct part_file){t->number, t->print, t->origin, t->file_size, t->part};
}

// Makes the fields of a shut partition. young NULL: there is no young view. Returns NULL without memory.
static struct part_away *away_above(const struct part_away *old, const struct remix *young) {
  const struct part_files *const was = &old->files;
  atomic_fetch_add_explicit(&old->older->refs, 1, memory_order_relaxed);
  struct part_away *const a = away_new(old->ctx, old->older,
                                       old->bounded ? kref(old->end, old->end_len) : kref(NULL, 0));
  if (!a) return NULL;
  if (!(a->error = mem_alloc(sizeof(*a->error)))) {
    away_free(a);
    return NULL;
  }
  *a->error = *old->error;
  a->shut = true;
  a->watch = old->watch;
  a->printed = old->printed;
  a->files = (struct part_files){.remix = was->remix, .young = file_of_view(young), .nr = was->nr - was->nr_young};
  memcpy(a->files.tables, was->tables, a->files.nr * sizeof(was->tables[0]));
  for (uint32_t r = 0; young && r < young->nr_runs; r++) {
    assert(a->files.nr < REMIX_RUNS_MAX);
    a->files.tables[a->files.nr++] = file_of_table(young->runs[r]);
    a->files.nr_young++;
  }
  a->old_expires = old->old_expires;
  a->old_entries = old->old_entries;
  a->old_keys = old->old_keys;
  a->expires = old->old_expires || (young && remix_expires(young));
  a->entries = old->old_entries + (young ? young->nr_entries : 0);
  a->keys = old->old_keys + (young ? young->nr_keys : 0);
  away_count(a, true);
  return a;
}

enum remixdb_status part_above(struct part *old, struct remix *young, struct part **out) {
  struct remix *const remix = older_get(old->away->older);
  if (remix) return part_create(part_anchor(old), remix, young, out);
  struct part_away *const a = away_above(old->away, young);
  if (!a) {
    remix_unref(young);
    return REMIXDB_NOMEM;
  }
  const enum remixdb_status s = create(part_anchor(old), NULL, young, out);
  if (s == REMIXDB_OK) {
    (*out)->away = a;
    part_inherit(*out, old);
  } else {
    away_free(a);
  }
  return s;
}

bool part_expires(const struct part *p) {
  if (part_is_away(p)) return p->away->expires;
  const struct remix *const remix = part_remix(p), *const young = part_young(p);
  return (remix && remix_expires(remix)) || (young && remix_expires(young));
}

uint64_t part_hides(const struct part *p) {
  const struct remix *const young = part_young(p);
  if (!young) return 0;
  return p->hides != PART_HIDES_UNKNOWN ? p->hides : remix_live(young) / 2;
}

// ---- its files

void part_files(const struct part *p, struct part_files *out) {
  if (part_is_away(p)) {
    *out = p->away->files;
    return;
  }
  *out = (struct part_files){.nr = part_runs(p), .nr_young = part_young_runs(p)};
  out->remix = file_of_view(part_remix(p));
  out->young = file_of_view(part_young(p));
  for (uint32_t r = 0; r < out->nr; r++) out->tables[r] = file_of_table(part_run(p, r));
}

uint32_t part_nr_files(const struct part *p) {
  if (part_is_away(p)) return p->away->files.nr + 1 + (p->away->files.young.number != 0);
  return part_runs(p) + (part_remix(p) != NULL) + (part_young(p) != NULL);
}

uint64_t part_table_bytes(const struct part *p) {
  struct part_files f;
  uint64_t bytes = 0;
  part_files(p, &f);
  for (uint32_t i = 0; i < f.nr; i++) bytes += f.tables[i].size;
  return bytes;
}

static bool view_has(const struct remix *x, const void *object) {
  bool has = x == object;
  for (uint32_t r = 0; r < x->nr_runs && !has; r++) has = x->runs[r] == object;
  return has;
}

bool part_has(const struct part *p, const void *object) {
  const struct remix *const old = part_remix(p), *const young = part_young(p);
  if ((old && view_has(old, object)) || (young && view_has(young, object))) return true;
  if (old || !p->away) return false;
  struct remix *const x = older_get(p->away->older);
  const bool has = x && view_has(x, object);
  remix_unref(x);
  return has;
}
