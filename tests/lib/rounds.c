// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/rounds.h"

#include "compact/join.h"
#include "value/read.h"

// In a worker's thread: nothing is asserted here.
static enum remixdb_status hand_back(void *arg, struct worker *wk, uint32_t tree, const struct kv_rec *rec) {
  struct world *w = arg;
  if (tree != TREE_UNNAMED) w->back_wrong = true;  // worlds with both trees hand nothing back
  epoch_enter(&w->p.epoch, &wk->slot);             // fails when the worker is inside already: a writer must be outside
  epoch_exit(&wk->slot);
  const struct kref key = kref(rec->key, rec->klen);
  const uint32_t at = keyset_rank(&w->k, key);
  if (at == w->k.nr || !kv_eq(w->k.keys[at], key) || w->fresh[at] == NONE ||
      !value_is(rec, key, w->fresh[at], w->value))
    w->back_wrong = true;
  else w->back[at]++;
  w->nr_back++;
  w->back_bytes += rec->klen + rec->vlen;
  return w->back_status == REMIXDB_OK ? REMIXDB_OK : err_set(w->back_status, "hand_back was told to fail");
}

static void tell(void *arg, const struct err_saved *why) {
  struct world *const w = arg;
  w->tell = *why;
  atomic_fetch_add(&w->told, 1);
}

static void round_fn(void *arg, struct worker *wk) {
  struct world *w = arg;
  struct version *next = NULL;
  const enum remixdb_status s = w->step      ? compact_room_step(&w->c, wk, w->base, &w->room, &next)
                                : w->garbage ? compact_garbage_round(&w->c, wk, w->base, &next)
                                : w->scan_merges
                                    ? compact_scan_round(&w->c, wk, w->base, &next)
                                    : compact_round(&w->c, wk, w->base, w->frozen, w->both ? w->frozen : NULL,
                                                    w->allow_abort, w->whole, w->bounded ? &w->room : NULL, &next);
  pthread_mutex_lock(&w->lock);
  w->status = s;
  err_save(&w->error, s);
  w->next = next;
  w->done = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

static uint64_t new_value_number(void *arg, void (*name_of)(char *buf, uint64_t number)) {
  return compact_new_number(arg, name_of);
}

void world_apart(struct world *w, uint32_t bytes) { w->c.apart_from = bytes; }

// The value file of this number. NULL: there is none.
static struct value_file *file_of(struct world *w, const struct version *v, uint64_t number) {
  struct value_file *f = value_set_find(&v->values, number);
  if (!f) f = value_set_find(&w->base->values, number);
  return f ? f : value_log_find(&w->c.values, number);
}

void world_values(struct world *w, struct version *v) {
  for (const struct version *tree = v; tree; tree = tree->spaces) {
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      for (uint32_t r = 0; r < part_runs(tree->parts[i]); r++) {
        const struct sst *const t = part_run(tree->parts[i], r);
        for (uint32_t k = 0; k < t->nr_apart; k++) {
          struct value_file *const f = file_of(w, v, t->apart[k].file);
          assert_non_null(f);
          OK(value_set_add(&v->values, f));
        }
      }
    }
  }
}

static bool in_base(void *arg, const struct value_file *f) {
  return value_set_find(&((struct world *)arg)->base->values, f->number) == f;
}

void world_settle(struct world *w) {
  OK(value_log_sync(&w->c.values));
  value_log_turn(&w->c.values);
  value_log_drop(&w->c.values, value_log_settle(&w->c.values, in_base, w));
}

// The record is a tombstone, or has that value, in the table or apart.
static bool record_is(struct world *w, const struct version *v, const struct kv_rec *r, struct kref key,
                      uint32_t what) {
  static _Thread_local uint8_t buf[VALUE_MAX];
  struct value_ref to;
  uint32_t n;
  if (!(r->kind & KV_APART)) return value_is(r, key, what, w->value);
  if (!value_ref_get(r->val, r->vlen, &to) || to.len > VALUE_MAX || to.len < w->c.apart_from) return false;
  struct value_file *const f = file_of(w, v, to.file);
  if (!f) return false;
  OK(value_read(f, &to, key, 0, buf, sizeof(buf), &n));
  return value_is(KV_REC(key, buf, n, false), key, what, w->value);
}

void world_init(struct world *w, uint32_t keys, uint32_t threads, uint64_t seed) {
  uint64_t rng = seed;
  memset(w, 0, sizeof(*w));
  place_init(&w->p, 256 << 10);
  keyset_make(&w->k, keys, &rng);
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->changed, NULL);
  w->c.ctx = &w->p.ctx;
  OK(packs_create(&w->p.at, w->p.fds, false, true, &w->p.ctx.packs));
  w->c.epoch = &w->p.epoch;
  w->c.build = (struct sst_build_opts){.ckeys = true, .max_pages = TABLE};
  w->c.tags = true;
  w->c.memtable_size = 1 << 20;
  w->c.scan_merge_parts = threads ? threads : 1;
  w->c.hand_back = hand_back;
  w->c.tell = tell;
  w->c.arg = w;
  atomic_store(&w->c.next_file, 1);
  w->values.sst = &w->p.ctx;
  w->p.ctx.values = &w->values;
  value_log_init(&w->c.values, &w->values);
  w->c.values.new_number = new_value_number;
  w->c.values.arg = &w->c;
  OK(workers_create(threads, NULL, 0, &w->p.io, &w->p.epoch, round_fn, w, &w->c.workers));
  struct part *only;
  OK(part_create(kref("", 0), NULL, NULL, &only));
  OK(version_create(&only, 1, &w->base));
  w->disk = calloc(w->k.nr, sizeof(*w->disk));
  w->fresh = calloc(w->k.nr, sizeof(*w->fresh));
  w->back = calloc(w->k.nr, 1);
  w->next_what = 2;
  w->value = VALUE;
  OK(wh_create(&w->p.epoch, 64 << 10, NULL, &w->frozen));
}

void world_fini(struct world *w) {
  workers_destroy(w->c.workers);
  version_unref(w->base);
  value_log_fini(&w->c.values);
  value_ctx_fini(&w->values);
  wh_destroy(w->frozen);
  free(w->disk);
  free(w->fresh);
  free(w->back);
  keyset_free(&w->k);
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  packs_destroy(w->p.ctx.packs);
  place_fini(&w->p);
}

void world_save(struct world *w) {
  w->base->store_id = PLACE_STORE_ID;
  w->base->number = w->base->log_gen = 1;
  w->base->next_file = atomic_load(&w->c.next_file);
  OK(version_save(&w->p.ctx, w->base));
}

void world_reload(struct world *w) {
  version_unref(w->base);
  packs_destroy(w->p.ctx.packs);
  OK(packs_create(&w->p.at, w->p.fds, false, true, &w->p.ctx.packs));
  OK(version_load(&w->p.ctx, NULL, NULL, &w->base));
}

void world_again(struct world *w) {
  char path[ENV_PATH_MAX];
  uint32_t cleaned;
  world_settle(w);
  world_save(w);
  world_reload(w);
  OK(version_clean(&w->p.ctx, w->base, &cleaned));
  assert_int_equal(cleaned, 0);
  OK(env_path(path, w->p.dir, FILES_CURRENT));
  assert_int_equal(unlink(path), 0);
}

uint64_t world_bytes(const struct world *w) {
  static uint8_t buf[VALUE_MAX];
  uint64_t sum = 0;
  for (uint32_t a = 0; a < w->k.nr; a++)
    if (w->disk[a] > TOMB) sum += w->k.keys[a].len + value_make(w->k.keys[a], w->disk[a], w->value, buf);
  return sum;
}

void put(struct world *w, uint32_t at, bool tomb) {
  w->fresh[at] = tomb ? TOMB : w->next_what++;
  mem_put(&w->p, w->frozen, w->k.keys[at], w->fresh[at], w->value, ++w->seq);
}

void put_range(struct world *w, uint32_t from, uint32_t to, uint32_t every, bool tomb) {
  for (uint32_t a = from; a < to; a += every) put(w, a, tomb);
}

void thaw(struct world *w) {
  wh_destroy(w->frozen);
  OK(wh_create(&w->p.epoch, 64 << 10, NULL, &w->frozen));
  memset(w->fresh, 0, w->k.nr * sizeof(*w->fresh));
}

// The numbers of tables tell their age, but for slices of cuts: then the sequence numbers do.
static void expect_older(const struct sst *a, const struct sst *b) {
  if (a->number < b->number || kv_cmp(a->max, b->min) < 0 || kv_cmp(b->max, a->min) < 0) return;
  assert_true(a->seq_max < b->seq_min);
}

static void expect_tree(struct world *w, const struct version *v, const uint32_t *what) {
  struct merge m;
  struct wh *empty;
  OK(wh_create(&w->p.epoch, 64 << 10, NULL, &empty));
  merge_init(&m, NULL);
  merge_set(&m, empty, NULL, v, 0);
  uint32_t at = 0;
  enter(&w->p);
  for (OK(merge_seek(&m, kref(NULL, 0)));; OK(merge_next(&m)), at++) {
    while (at < w->k.nr && what[at] <= TOMB) at++;
    if (!merge_valid(&m)) break;
    struct kv_rec r;
    OK(merge_record(&m, &r));
    if (at == w->k.nr) fail_msg("a key too many, number %u", keyset_rank(&w->k, kref(r.key, r.klen)));
    if (!kv_eq(kref(r.key, r.klen), w->k.keys[at]))
      fail_msg("key %u where %u should be", keyset_rank(&w->k, kref(r.key, r.klen)), at);
    if (!record_is(w, v, &r, w->k.keys[at], what[at])) fail_msg("value of key %u", at);
  }
  assert_int_equal(at, w->k.nr);
  leave(&w->p);
  merge_park(&m);
  merge_fini(&m);
  wh_destroy(empty);

  assert_int_equal(v->parts[0]->alen, 0);
  uint32_t young = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    if (i) assert_true(kv_cmp(part_anchor(v->parts[i - 1]), part_anchor(v->parts[i])) < 0);
    const struct part *const p = v->parts[i];
    for (uint32_t r = 0; r < part_runs(p); r++) {
      const struct sst *const t = part_run(p, r);
      assert_true(kv_cmp(part_anchor(p), t->min) <= 0);
      if (i + 1 < v->nr_parts) assert_true(kv_cmp(t->max, part_anchor(v->parts[i + 1])) < 0);
      assert_true(w->large || t->nr_pages < w->c.build.max_pages + BLOCK_PAGES_MAX);
      for (uint32_t q = 0; q < r; q++) expect_older(part_run(p, q), t);  // through both views
    }
    assert_true(part_runs(p) <= 2 * COMPACT_RUNS);
    if (p->remix) assert_false(remix_is_young(p->remix));
    if (!p->young) continue;
    assert_non_null(p->remix);
    assert_true(remix_is_young(p->young) && p->young->nr_runs > 0);
    // slices of a cut make the older view smaller
    if (!part_is_unread(p)) assert_true(p->young->nr_entries * COMPACT_YOUNG_SHARE / 2 <= p->remix->nr_entries);
    young++;
  }
  assert_int_equal(v->nr_young, young);
}

void expect_contents(struct world *w, const struct version *v, const uint32_t *what) {
  expect_tree(w, v, what);
  assert_int_equal(version_is_empty(v->spaces), !w->both || version_is_empty(v));
  if (w->both) expect_tree(w, v->spaces, what);
}

static uint32_t add_name(char **names, uint32_t nr, const struct pack_part *part, uint64_t number,
                         void (*name_of)(char *buf, uint64_t number)) {
  char name[32];
  if (part) files_pack_name(name, part->pack->number);
  else name_of(name, number);
  for (uint32_t i = 0; part && i < nr; i++)
    if (strcmp(names[i], name) == 0) return nr;
  assert_true(nr < 900);
  names[nr] = strdup(name);
  return nr + 1;
}

// Adds the names of a tree's files. Returns how many names there are then.
static uint32_t files_of_tree(const struct version *v, char **names, uint32_t nr) {
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct part *const p = v->parts[i];
    const struct remix *const views[] = {p->remix, p->young};
    for (uint32_t k = 0; k < 2; k++) {
      if (views[k]) nr = add_name(names, nr, views[k]->part, views[k]->number, remix_name);
    }
    for (uint32_t r = 0; r < part_runs(p); r++)
      nr = add_name(names, nr, part_run(p, r)->part, part_run(p, r)->number, sst_name);
  }
  return nr;
}

// The same for value files: those of the version, and others in the rounds' log.
static uint32_t value_files_of(struct world *w, const struct version *v, char **names, uint32_t nr) {
  for (uint32_t i = 0; i < v->values.nr; i++) {
    names[nr] = malloc(32);
    files_value_name(names[nr++], v->values.files[i]->number);
  }
  for (const struct value_file *f = w->c.values.files; f; f = f->next) {
    if (value_set_find(&v->values, f->number)) continue;
    names[nr] = malloc(32);
    files_value_name(names[nr++], f->number);
  }
  assert_true(nr < 900);
  return nr;
}

static char *files_of(struct world *w, const struct version *v) {
  char *names[1024];
  uint32_t nr = 0;
  for (const struct version *tree = v; tree; tree = tree->spaces) nr = files_of_tree(tree, names, nr);
  nr = value_files_of(w, v, names, nr);
  qsort(names, nr, sizeof(names[0]), place_name_cmp);
  char *all = calloc(nr + 1, 64);
  for (uint32_t i = 0; i < nr; i++) {
    strcat(strcat(all, names[i]), "\n");
    free(names[i]);
  }
  return all;
}

void expect_files(struct world *w, const struct version *v) {
  char *there = place_files(&w->p), *named = files_of(w, v);
  assert_string_equal(there, named);
  free(there);
  free(named);
}

static void kinds_get(struct world *w, uint64_t *kinds) {
  for (uint32_t i = 0; i < COMPACT_KINDS; i++) kinds[i] = atomic_load(&w->c.stats.kinds[i]);
}

void round_begin(struct world *w) {
  memset(w->back, 0, w->k.nr);
  w->nr_back = 0;
  w->back_bytes = 0;
  w->back_wrong = false;
  w->done = false;
  w->next = NULL;
  workers_kick(w->c.workers);
}

enum remixdb_status round_end(struct world *w) {
  pthread_mutex_lock(&w->lock);
  while (!w->done) pthread_cond_wait(&w->changed, &w->lock);
  pthread_mutex_unlock(&w->lock);
  return w->status;
}

enum remixdb_status round_try(struct world *w) {
  const struct value_mark before = value_log_mark(&w->c.values);
  round_begin(w);
  const enum remixdb_status s = round_end(w);
  if (s == REMIXDB_OK) return s;
  // the values that it has written apart are given back
  const struct value_mark after = value_log_mark(&w->c.values);
  assert_true(after.newest == before.newest && (after.active == 0 || after.active == before.active));
  if (after.active) assert_true(after.tail == before.tail && after.value_bytes == before.value_bytes);
  return s;
}

// Gives the version of a successful round up.
static void round_drop(struct world *w) {
  compact_retire(w->next, w->base);
  version_unref(w->next);
  compact_undo_values(&w->c);
  w->next = NULL;
  expect_files(w, w->base);
}

// The records handed back are all new keys of some partitions, once each, and these are as many as the stats say.
static void expect_back(struct world *w, uint64_t aborted) {
  assert_false(w->back_wrong);
  uint64_t parts = 0;
  uint32_t nr = 0;
  for (uint32_t i = 0; i < w->base->nr_parts; i++) {
    uint32_t all = 0, back = 0;
    for (uint32_t a = 0; a < w->k.nr; a++) {
      if (w->fresh[a] == NONE || version_find(w->base, w->k.keys[a]) != i) continue;
      if (w->back[a]) assert_int_equal(back, all);  // all or none, but for keys after the partition
      all++;
      back += w->back[a];
      assert_true(w->back[a] <= 1);
    }
    parts += back != 0;
    nr += back;
  }
  assert_int_equal(nr, w->nr_back);
  assert_int_equal(parts, aborted);
  assert_true(w->back_bytes <= w->c.memtable_size / COMPACT_ABORT_SHARE);
}

// The version takes the place of the base: files that only the base has go.
static void base_replace(struct world *w, struct version *next) {
  const uint64_t room = place_bytes(&w->p);
  if (room > w->most_room) w->most_room = room;
  compact_retire(w->base, next);
  for (uint32_t i = 0; i < w->base->values.nr; i++) {
    struct value_file *const f = w->base->values.files[i];
    if (!value_set_find(&next->values, f->number) && !value_log_has(&w->c.values, f)) value_file_retire(f);
  }
  version_unref(w->base);
  w->base = next;
  packs_reclaim(w->p.ctx.packs);
  value_log_drop(&w->c.values, value_log_settle(&w->c.values, in_base, w));
}

static void room_end(struct world *w) {
  const uint64_t beside = w->room.beside;
  const bool steps = w->room.steps;
  compact_room_fini(&w->room);
  w->room.beside = beside;
  w->room.steps = steps;
}

void world_install_step(struct world *w) {
  expect_contents(w, w->next, w->disk);
  world_values(w, w->next);
  base_replace(w, w->next);
  w->next = NULL;
  expect_files(w, w->base);
}

// Partitions that were merged.
static uint64_t merges_of(struct world *w) {
  return atomic_load(&w->c.stats.kinds[COMPACT_MAJOR]) + atomic_load(&w->c.stats.kinds[COMPACT_SPLIT]);
}

// Takes the steps for room that the round asks for.
static void make_room(struct world *w) {
  if (!w->bounded || !w->room.steps) return;
  OK(round_try(w));
  if (w->next) {  // none is asked for: the round comes again, as planned
    round_drop(w);
    return;
  }
  assert_true(w->room.nr > 0);
  for (w->step = true;;) {
    const uint64_t merges = merges_of(w);
    OK(round_try(w));
    if (!w->next) break;
    assert_true(merges_of(w) > merges);
    world_install_step(w);
  }
  w->step = false;
}

void round_ok(struct world *w, uint64_t *kinds_out) {
  uint64_t before[COMPACT_KINDS], after[COMPACT_KINDS];
  make_room(w);
  const uint64_t rounds = atomic_load(&w->c.stats.rounds), joined = atomic_load(&w->c.stats.joined);
  kinds_get(w, before);
  const enum remixdb_status s = round_try(w);
  if (s != REMIXDB_OK) fail_msg("status %d: %s", s, w->error.msg);
  if (w->bounded) room_end(w);
  kinds_get(w, after);
  uint64_t all = 0;
  for (uint32_t i = 0; i < COMPACT_KINDS; i++) all += after[i] -= before[i];
  // Each partition counts once, or twice when new data came after it and into it. A join counts once. The spaces' tree
  // takes part if it has new data, and may take part without.
  const uint64_t did = atomic_load(&w->c.stats.joined) - joined, spaces = w->both ? w->base->spaces->nr_parts : 0;
  const uint64_t least = w->base->nr_parts + (wh_count(w->frozen) ? spaces : 0), most = w->base->nr_parts + spaces;
  assert_true(did == 0 || (did >= JOIN_LEAST && did <= most && !w->whole));
  assert_true(w->whole ? all > 0 : all + did >= least + (did != 0));
  assert_true(all <= 2 * (most - did) + did / JOIN_LEAST);
  assert_int_equal(atomic_load(&w->c.stats.rounds), rounds + 1);
  expect_back(w, after[COMPACT_ABORT]);
  if (kinds_out) memcpy(kinds_out, after, sizeof(after));
  world_install(w);
}

// The number of first runs of the partition that are still in the view.
static uint32_t runs_kept(const struct part *was, const struct remix *x) {
  uint32_t nr = 0;
  while (nr < part_runs(was) && nr < x->nr_runs && part_run(was, nr) == x->runs[nr]) nr++;
  return nr;
}

// Classifies the fate of one partition's views.
static void went_one(struct world *w, const struct part *was, const struct part *is) {
  if (was == is) return;
  if (is && is->young) {
    assert_ptr_equal(was->remix, is->remix);
    uint32_t kept = 0;
    while (kept < part_young_runs(was) && kept < is->young->nr_runs && was->young->runs[kept] == is->young->runs[kept])
      kept++;
    assert_true(is->young->nr_runs > kept);
    w->went[!was->young ? BEGUN : kept == was->young->nr_runs ? WENT_ON : MERGED]++;
    return;
  }
  if (!was->remix) return;
  const uint32_t kept = is && is->remix ? runs_kept(was, is->remix) : 0;
  if (was->young) {
    assert_true(kept <= was->remix->nr_runs);  // never a part of the young ones
    w->went[kept == was->remix->nr_runs ? JOINED : kept ? DEEPER : ALL_TAKEN]++;
  }
  for (uint32_t r = 0; kept == 0 && is && r < part_old_runs(is); r++) assert_int_equal(is->remix->runs[r]->nr_tombs, 0);
}

static void round_went(struct world *w) {
  for (uint32_t i = 0; i < w->base->nr_parts; i++) {
    const struct part *const was = w->base->parts[i];
    const struct part *const is = w->next->parts[version_find(w->next, part_anchor(was))];
    went_one(w, was, kv_eq(part_anchor(was), part_anchor(is)) ? is : NULL);
  }
}

void world_install(struct world *w) {
  round_went(w);
  // the old version has not changed
  expect_contents(w, w->base, w->disk);
  for (uint32_t a = 0; a < w->k.nr; a++)
    if (w->fresh[a] != NONE && !w->back[a]) w->disk[a] = w->fresh[a];
  expect_contents(w, w->next, w->disk);
  world_values(w, w->next);
  OK(value_log_sync(&w->c.values));
  compact_keep_values(&w->c);
  base_replace(w, w->next);
  w->next = NULL;
  expect_files(w, w->base);
  // records that were handed back are in the next memtable
  uint32_t *again = calloc(w->k.nr, sizeof(*again));
  for (uint32_t a = 0; a < w->k.nr; a++) again[a] = w->back[a] ? w->fresh[a] : NONE;
  thaw(w);
  for (uint32_t a = 0; a < w->k.nr; a++) {
    if (!again[a]) continue;
    w->fresh[a] = again[a];
    mem_put(&w->p, w->frozen, w->k.keys[a], again[a], w->value, ++w->seq);
  }
  free(again);
}

void expect_kind_at(int line, const uint64_t *kinds, enum compact_kind kind, uint64_t nr) {
  if (kinds[kind] == nr) return;
  fail_msg("line %d: keep %d, abort %d, minor %d, major %d, split %d: kind %d is not %d", line, (int)kinds[0],
           (int)kinds[1], (int)kinds[2], (int)kinds[3], (int)kinds[4], kind, (int)nr);
}

uint64_t tombs_of(struct world *w, uint32_t part) {
  uint64_t n = 0;
  for (uint32_t r = 0; r < part_runs(w->base->parts[part]); r++) n += part_run(w->base->parts[part], r)->nr_tombs;
  return n;
}

void damage(const struct version *tree, uint32_t part) {
  const struct sst *const t = part_run(tree->parts[part], 0);
  for (uint32_t page = 0; page < t->nr_pages; page++)
    byte_flip(t->path, (long)(t->base + (uint64_t)page * BLOCK_PAGE) + 40);
}

void forgive(struct part *p) {
  atomic_store(&p->unread_ns, 0);
  atomic_store(&p->failed_reads, 0);
}

uint32_t keys_for(struct world *w, double tables) {
  uint64_t bytes = 0;
  uint32_t a = 0;
  static uint8_t buf[VALUE_MAX];
  for (; a < w->k.nr && (double)bytes < tables * w->c.build.max_pages * BLOCK_PAGE; a++)
    bytes += kv_rec_size(
                 KV_REC(kref(NULL, w->k.keys[a].len), NULL, value_make(w->k.keys[a], 2, w->value, buf), false)) +
             2;
  assert_true(a < w->k.nr);
  return a;
}

uint32_t first_key_of(struct world *w, uint32_t part) { return keyset_rank(&w->k, part_anchor(w->base->parts[part])); }

void three_parts(struct world *w) {
  put_range(w, 0, keys_for(w, 5.4), 2, false);
  put_range(w, 1, keys_for(w, 5.4), 2, false);
  round_ok(w, NULL);
  assert_true(w->base->nr_parts >= 3);
}

void wear_all(struct world *w) {
  for (uint32_t i = 0; i < w->base->nr_parts; i++)
    if (remix_of(w, i)) wear(w, i);
}

uint32_t due_of(struct world *w) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < w->base->nr_parts; i++) nr += remix_of(w, i) && compact_scan_debt_paid(remix_of(w, i));
  return nr;
}

// The number of views with scan debt.
static uint64_t paid_of(const struct version *v) {
  uint64_t nr = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct part *const p = v->parts[i];
    nr += (p->remix && atomic_load(&p->remix->scan_debt)) + (p->young && atomic_load(&p->young->scan_debt));
  }
  return nr;
}

uint64_t pages_of(struct world *w, uint32_t part) {
  uint64_t pages = 0;
  for (uint32_t r = 0; r < remix_of(w, part)->nr_runs; r++) pages += remix_of(w, part)->runs[r]->nr_pages;
  return pages;
}

void scan_merge_ok(struct world *w, uint64_t nr, uint64_t *kinds_out) {
  uint64_t before[COMPACT_KINDS], after[COMPACT_KINDS], all = 0;
  struct compact_stats *const stats = &w->c.stats;
  const uint64_t rounds = atomic_load(&stats->rounds), scan_merges = atomic_load(&stats->scan_merges),
                 read = atomic_load(&stats->read_bytes);
  const uint64_t work = atomic_load(&w->c.work);
  const uint64_t paid = paid_of(w->base);
  kinds_get(w, before);
  w->scan_merges = true;
  OK(round_try(w));
  w->scan_merges = false;
  kinds_get(w, after);
  for (uint32_t i = 0; i < COMPACT_KINDS; i++) all += after[i] -= before[i];
  assert_int_equal(all, nr);
  assert_int_equal(after[COMPACT_MAJOR] + after[COMPACT_SPLIT], nr);
  assert_int_equal(atomic_load(&stats->scan_merges), scan_merges + nr);
  assert_int_equal(atomic_load(&stats->rounds), rounds + (nr != 0));
  assert_int_equal(atomic_load(&w->c.work), work);  // writers do not wait for it
  assert_int_equal(w->nr_back, 0);
  if (kinds_out) memcpy(kinds_out, after, sizeof(after));
  if (nr == 0) {
    assert_null(w->next);
    assert_int_equal(atomic_load(&stats->read_bytes), read);
    expect_files(w, w->base);
    return;
  }
  assert_non_null(w->next);
  assert_int_equal(paid - paid_of(w->base), nr);
  world_install(w);
}

// ---- range deletion

static bool in_ranges(const struct compact_range *ranges, uint32_t nr, struct kref key) {
  for (uint32_t i = 0; i < nr; i++)
    if ((!ranges[i].from.ptr || kv_cmp(key, ranges[i].from) >= 0) &&
        (!ranges[i].to.ptr || kv_cmp(key, ranges[i].to) < 0))
      return true;
  return false;
}

// Each key is found, or not found, by its own.
static void expect_gets(struct world *w, const struct version *v, const uint32_t *what) {
  struct sst_hold hold = {0};
  for (uint32_t a = 0; a < w->k.nr; a++) {
    const struct kref key = w->k.keys[a];
    const struct part *const p = v->parts[version_find(v, key)];
    const uint64_t hash = hash64(key.ptr, key.len);
    struct kv_rec r;
    enter(&w->p);
    enum remixdb_status s = p->young ? remix_get(p->young, key, hash, &hold, &r) : REMIXDB_NOTFOUND;
    if (s == REMIXDB_NOTFOUND && p->remix) s = remix_get(p->remix, key, hash, &hold, &r);
    if (s == REMIXDB_OK && r.kind & KV_TOMB) s = REMIXDB_NOTFOUND;
    if (s != (what[a] > TOMB ? REMIXDB_OK : REMIXDB_NOTFOUND) ||
        (s == REMIXDB_OK && !record_is(w, v, &r, key, what[a])))
      fail_msg("get of key %u: %d", a, (int)s);
    leave(&w->p);
  }
  sst_hold_fini(&hold);
}

// How many keys of the ranges the model has in a tree of the version, or in one of its partitions.
static uint64_t keys_in(struct world *w, const struct version *v, int64_t part, const struct compact_range *ranges,
                        uint32_t nr) {
  uint64_t sum = 0;
  for (uint32_t a = 0; a < w->k.nr; a++) {
    const bool here = part < 0 || version_find(v, w->k.keys[a]) == part;
    sum += here && w->disk[a] > TOMB && in_ranges(ranges, nr, w->k.keys[a]);
  }
  return sum;
}

static void erase_tree(struct world *w, uint32_t tree, struct compact_erase *e, uint32_t *left) {
  struct version *next;
  uint64_t counted;
  const uint64_t keys = keys_in(w, w->base, -1, e->ranges, e->nr), tables = atomic_load(&w->c.stats.table_bytes);
  e->tree = tree;
  OK(compact_range_keys(e, w->base, UINT64_MAX, &counted));
  assert_true(counted >= keys);
  if (w->base->nr_young == 0 && version_is_empty(w->base->spaces)) assert_int_equal(counted, keys);
  OK(compact_erase(e, w->base, &next));
  assert_true(e->keys + e->left == counted && (e->few || e->left == 0));
  assert_int_equal(atomic_load(&w->c.stats.table_bytes), tables);
  assert_int_equal(next != NULL, e->dropped + e->erased != 0);
  if (!next) return;
  const struct version *const was = version_tree(w->base, tree), *const is = version_tree(next, tree);
  if (tree == TREE_UNNAMED) assert_ptr_equal(next->spaces, w->base->spaces);
  else
    for (uint32_t i = 0; i < next->nr_parts; i++) assert_ptr_equal(next->parts[i], w->base->parts[i]);
  // the rest is in partitions that stay as they are
  for (uint32_t a = 0; a < w->k.nr; a++) {
    if (w->disk[a] <= TOMB || !in_ranges(e->ranges, e->nr, w->k.keys[a])) continue;
    const struct part *const p = was->parts[version_find(was, w->k.keys[a])];
    left[a] = is->parts[version_find(is, w->k.keys[a])] == p ? w->disk[a] : NONE;
  }
  expect_tree(w, was, w->disk);  // the old version has not changed
  expect_tree(w, is, left);
  expect_gets(w, is, left);
  world_values(w, next);
  base_replace(w, next);
}

void erase_ok(struct world *w, const struct compact_range *ranges, uint32_t nr, uint64_t few,
              struct compact_erase *sum) {
  struct compact_erase e = {
      .c = &w->c, .slot = &w->p.slot, .queue = w->p.queue, .ranges = ranges, .nr = nr, .few = few};
  uint32_t *const left = malloc(w->k.nr * sizeof(*left));
  for (uint32_t tree = 0; tree < (w->both ? 2u : 1u); tree++) {
    if (w->both) e.few = 0;  // the trees stay alike
    memcpy(left, w->disk, w->k.nr * sizeof(*left));
    erase_tree(w, tree, &e, left);
    if (sum) {
      sum->keys += e.keys;
      sum->left += e.left;
      sum->dropped += e.dropped;
      sum->erased += e.erased;
    }
  }
  memcpy(w->disk, left, w->k.nr * sizeof(*left));
  free(left);
  expect_contents(w, w->base, w->disk);
  expect_files(w, w->base);
}

void erase_keys(struct world *w, const uint32_t (*at)[2], uint32_t nr, uint64_t few, struct compact_erase *sum) {
  struct compact_range ranges[ERASE_MAX];
  assert_true(nr <= ERASE_MAX);
  for (uint32_t i = 0; i < nr; i++) {
    ranges[i].from = at[i][0] ? w->k.keys[at[i][0]] : kref(NULL, 0);
    ranges[i].to = at[i][1] < w->k.nr ? w->k.keys[at[i][1]] : kref(NULL, 0);
  }
  erase_ok(w, ranges, nr, few, sum);
}

void erase_some(struct world *w, uint64_t *rng, struct compact_erase *sum) {
  uint32_t at[ERASE_MAX][2], nr = 0;
  const uint32_t most = 1 + (uint32_t)(rng_next(rng) % ERASE_MAX), span = w->k.nr >> rng_next(rng) % 5;
  for (uint32_t from = (uint32_t)(rng_next(rng) % w->k.nr); nr < most && from < w->k.nr; nr++) {
    at[nr][0] = from;
    at[nr][1] = from + 1 + (uint32_t)(rng_next(rng) % (span / most + 1));
    from = at[nr][1] + (uint32_t)(rng_next(rng) % (w->k.nr / 4));
  }
  if (rng_next(rng) % 8 == 0) at[0][0] = 0;
  if (rng_next(rng) % 8 == 0) at[nr - 1][1] = w->k.nr;
  erase_keys(w, (const uint32_t(*)[2])at, nr, rng_next(rng) % 3 ? 0 : rng_next(rng) % 60, sum);
}

void ready_to_fail_scan_merge(struct world *w, uint64_t seed) {
  world_init(w, 2500, 2, seed);
  w->value = VALUE + 10;
  w->c.build.max_pages = 4;
  three_parts(w);
  for (uint32_t r = 0; r < 4; r++) {
    put_range(w, first_key_of(w, 1) + r, first_key_of(w, 2), 30, r % 2);
    if (r == 0) put_range(w, 0, first_key_of(w, 1), 3, true);
    round_ok(w, NULL);
  }
  w->scan_merges = true;
}

enum remixdb_status round_again(struct world *w) {
  atomic_store(&w->c.extras_ns, 0);  // also after one that failed for want of room
  if (w->step) w->room.at = w->step_at;
  for (const struct version *tree = w->base; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) forgive(tree->parts[i]);
  for (uint32_t i = 0; i < 2 && w->scan_merges; i++) {
    wear(w, i);
    if (young_of(w, i)) remix_add_debt(young_of(w, i), UINT32_MAX);
  }
  return round_try(w);
}

void expect_failed(struct world *w, enum remixdb_status s, bool contents) {
  if (w->status != s) fail_msg("status %d: %s", w->status, w->error.msg);
  assert_null(w->next);
  assert_true(w->error.msg[0] != 0);
  assert_false(w->back_wrong);
  expect_files(w, w->base);
  if (contents) expect_contents(w, w->base, w->disk);
}

// The end of a round in which one call may have failed, with status s if the round did. Returns how often it has
// failed: one with joins is made once more without them.
static uint32_t ended(struct world *w, enum remixdb_status s, enum remixdb_status want, uint64_t before, bool any,
                      bool contents) {
  const uint64_t failed = atomic_load(&w->c.stats.failed) - before;
  assert_true(failed <= any && (s == REMIXDB_OK || failed == 1));
  if (s != REMIXDB_OK) expect_failed(w, want, contents);
  else if (w->next) round_drop(w);  // a failed call can be done without
  else expect_files(w, w->base);    // and so can the merge that needed it
  return (uint32_t)failed;
}

void no_memory(struct world *w, int64_t step) {
  uint32_t failed = 0;
  for (int64_t n = 1;; n += step) {
    const uint64_t before = atomic_load(&w->c.stats.failed);
    fault_mem_set(n);
    const enum remixdb_status s = round_again(w);
    const bool any = fault_mem_end();
    failed += ended(w, s, REMIXDB_NOMEM, before, any, n % 16 == 0);
    if (!any) break;
  }
  assert_true(failed > 30);
}

// Lets each call of a kind fail once, one round each. Returns how many rounds have failed.
static uint32_t each_fails(struct world *w, unsigned kind) {
  uint32_t failed = 0;
  for (int64_t n = 1;; n++) {
    const uint64_t before = atomic_load(&w->c.stats.failed);
    fault_io_set(kind, n, false);
    const enum remixdb_status s = round_again(w);
    const bool any = fault_io_end();
    failed += ended(w, s, kind == FAULT_WRITE ? REMIXDB_NOSPACE : REMIXDB_IO, before, any, n % 8 == 0);
    if (!any) return failed;
  }
}

void io_fails(struct world *w) {
  uint32_t writes = 0;
  static const unsigned kinds[] = {FAULT_OPEN, FAULT_READ, FAULT_WRITE, FAULT_SYNC, FAULT_CLOSE, FAULT_STAT};
  for (uint32_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
    // a pack's sync, close and stat: one of each
    const bool once = kinds[i] == FAULT_SYNC || kinds[i] == FAULT_CLOSE || kinds[i] == FAULT_STAT;
    // Two threads may open a file at once, and one of them closes its descriptor again. A round can do without both
    // calls. Each such call may take the place of one that matters, so the kind has some tries.
    uint32_t failed = 0;
    for (uint32_t tries = 0; failed <= (once ? 0 : 1) && tries < 20; tries++) failed = each_fails(w, kinds[i]);
    assert_true(failed > (once ? 0 : 1));
    if (kinds[i] == FAULT_WRITE) writes = failed;
  }
  // the disk is full for a time
  for (uint32_t n = 1; n <= writes; n += 2) {
    fault_io_set(FAULT_WRITE, n, true);
    const enum remixdb_status s = round_again(w);
    (void)fault_io_end();
    assert_int_not_equal(s, REMIXDB_OK);
    expect_failed(w, REMIXDB_NOSPACE, true);
  }
}
