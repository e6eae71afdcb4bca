// SPDX-License-Identifier: Apache-2.0
#include "view/part.h"

#include <assert.h>

#include "remix/paged.h"
#include "table/format.h"

enum remixdb_status part_create(struct kref anchor, struct remix *remix, struct remix *young, struct part **out) {
  struct part *const p = mem_alloc_aligned(CACHE_LINE, sizeof(*p) + anchor.len);
  assert(remix || !young);
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

void part_ref(struct part *p) { atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed); }

// Counts the partition's entries while it is not open.
static void away_count(struct part_away *a, bool away) {
  if (a->counted == away) return;
  a->counted = away;
  budget_away(a->ctx->budget, a->entries, away);
}

static void away_free(struct part_away *a) {
  if (!a) return;
  away_count(a, false);
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
  if (names->nr) {
    p->away = mem_calloc(1, sizeof(*p->away) + end.len);
    s = p->away ? REMIXDB_OK : REMIXDB_NOMEM;
  }
  if (s == REMIXDB_OK && p->away) {
    struct part_away *const a = p->away;
    (void)pthread_mutex_init(&a->lock, NULL);
    a->ctx = ctx;
    a->bounded = end.ptr != NULL;
    a->end_len = end.len;
    if (end.len) memcpy(a->end, end.ptr, end.len);
    take_names(a, names);
    s = look_at_files(a, spaces);
    away_count(a, true);
    if (s == REMIXDB_OK && a->odd) s = part_bring(p);
  }
  if (s == REMIXDB_OK) *out = p;
  else part_unref(p);
  return s;
}

// Opens the tables. On failure closes them. A file may have been exchanged since part_look, so the call compares again.
static enum remixdb_status open_tables(const struct part *p, struct sst **runs) {
  const struct part_away *const a = p->away;
  const struct kref end = kref(a->end, a->end_len);
  enum remixdb_status s = REMIXDB_OK;
  uint32_t opened = 0;
  while (opened < a->files.nr && s == REMIXDB_OK) {
    const struct part_file *const f = &a->files.tables[opened];
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

static enum remixdb_status bring(struct part *p) {
  const struct part_files *const f = &p->away->files;
  const uint32_t nr_old = f->nr - f->nr_young;
  struct sst *runs[REMIX_RUNS_MAX];
  struct remix *remix = NULL, *young = NULL;
  enum remixdb_status s = open_tables(p, runs);
  if (s != REMIXDB_OK) return s;
  away_count(p->away, false);
  s = open_view(p->away, &f->remix, runs, nr_old, false, &remix);
  if (s == REMIXDB_OK) s = open_view(p->away, &f->young, runs + nr_old, f->nr_young, true, &young);
  err_cleanup_begin();
  for (uint32_t i = 0; i < f->nr; i++) sst_unref(runs[i]);
  if (s != REMIXDB_OK) {
    remix_unref(remix);
    remix_unref(young);
    away_count(p->away, true);
  }
  err_cleanup_end();
  if (s != REMIXDB_OK) return s;
  remix_quick_set(&p->quick, remix);
  atomic_store_explicit(&p->young, young, memory_order_relaxed);
  atomic_store_explicit(&p->remix, remix, memory_order_release);  // P1, P3
  return REMIXDB_OK;
}

enum remixdb_status part_bring(const struct part *p) {
  struct part *const mine = (struct part *)(uintptr_t)p;  // immutable to its users; this is the one change (P1, P3)
  pthread_mutex_lock(&p->away->lock);
  const enum remixdb_status s = part_remix(p) ? REMIXDB_OK : bring(mine);
  pthread_mutex_unlock(&p->away->lock);
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

static struct part_file file_of_view(const struct remix *x) {
  return x ? (struct part_file){x->number, x->print, x->origin, x->file_size, x->part} : (struct part_file){0};
}

void part_files(const struct part *p, struct part_files *out) {
  if (part_is_away(p)) {
    *out = p->away->files;
    return;
  }
  *out = (struct part_files){.nr = part_runs(p), .nr_young = part_young_runs(p)};
  out->remix = file_of_view(part_remix(p));
  out->young = file_of_view(part_young(p));
  for (uint32_t r = 0; r < out->nr; r++) {
    const struct sst *const t = part_run(p, r);
    out->tables[r] = (struct part_file){t->number, t->print, t->origin, t->file_size, t->part};
  }
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
