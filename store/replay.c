// SPDX-License-Identifier: Apache-2.0
#include "store/replay.h"

#include "compact/erase.h"
#include "store/values.h"

#define WAL_STEP_PART 32u        // the log grows on disk by at most 1/32 of its limit at a time
#define REPLAY_BYTES (1u << 20)  // bytes gathered before they are linked; more than any record has
#define REPLAY_RECORDS 8192u     // records gathered before they are linked
#define REPLAY_SHARES 2u         // shares per thread
#define REPLAY_FEW 512u          // so few records are not worth waking a worker

_Static_assert(REPLAY_BYTES >= 2 * KV_KEY_MAX, "a record fits");

struct replay_rec {
  struct kv_rec rec;
  uint64_t hash;
};

struct replay_share {
  struct task task;
  struct replaying *r;
  uint32_t number;
  struct err_saved error;  // status OK: none
};

struct replay_fill {
  struct task task;
  struct xdb *x;
};

// Ranges of one tree that were deleted, in the order of the log, whose edits the version does not have.
struct replay_ranges {
  struct compact_range *ranges;
  uint8_t **bytes;  // of each: its bounds
  uint32_t nr, cap;
};

struct replaying {
  struct xdb *x;
  struct replay_ranges erased[TREES];
  uint64_t last_erased;
  struct memtable *m;
  struct version *version;
  struct worker *self;
  struct replay_rec recs[REPLAY_RECORDS];
  uint32_t nr;
  size_t nbytes;
  uint32_t nr_shares;
  struct replay_share shares[REPLAY_SHARES * (WORKERS_MAX + 1)];
  struct replay_fill fill;
  struct task *tasks[REPLAY_SHARES * (WORKERS_MAX + 1) + 1];
  uint8_t bytes[REPLAY_BYTES];  // keys and values
};

static inline uint32_t tree_of(const struct replay_rec *rec) {
  return unlikely(rec->rec.kind & KV_SPACES) ? TREE_SPACES : TREE_UNNAMED;
}

// Links a group, whose records are all of one tree. Looking all keys up side by side first brings the memory for
// linking into the processor's cache.
static enum remixdb_status link_group(struct replaying *r, struct worker *w, const struct replay_rec *const *group,
                                      uint32_t nr) {
  struct wh *wh = memtable_tree(r->m, tree_of(group[0]));
  struct kref keys[WH_GROUP_MAX];
  uint64_t hashes[WH_GROUP_MAX];
  uint8_t which[WH_GROUP_MAX];
  const struct wh_ver *versions[WH_GROUP_MAX];
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < nr; i++) {
    keys[i] = kref(group[i]->rec.key, group[i]->rec.klen);
    hashes[i] = group[i]->hash;
    which[i] = (uint8_t)i;
  }
  epoch_enter(&r->x->epoch, &w->slot);
  wh_get_many(wh, keys, hashes, which, nr, WH_PENDING - 1, versions);
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    const struct kv_rec *rec = &group[i]->rec;
    struct wh_slot slot;
    wh_lock(wh, keys[i], hashes[i], &slot);
    // A record that a round handed back stands in the log once more, with the number that it has.
    const struct wh_ver *const newest = wh_slot_newest(&slot);
    if (likely(!newest || wh_ver_seq(newest) < rec->seq)) {
      s = wh_link(&slot, rec);
      if (s == REMIXDB_OK) wh_stamp(&slot, rec->seq);
    }
    wh_unlock(&slot);
  }
  epoch_exit(&w->slot);
  return s;
}

// Task: links the records of one share.
static void link_share(struct task *t, struct worker *w) {
  struct replay_share *share = (struct replay_share *)t;
  struct replaying *r = share->r;
  const struct replay_rec *group[WH_GROUP_MAX];
  uint32_t nr = 0;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < r->nr && s == REMIXDB_OK; i++) {
    if (r->recs[i].hash % r->nr_shares != share->number) continue;
    if (unlikely(nr && tree_of(group[0]) != tree_of(&r->recs[i]))) {
      s = link_group(r, w, group, nr);
      nr = 0;
      if (s != REMIXDB_OK) break;
    }
    group[nr++] = &r->recs[i];
    if (nr < WH_GROUP_MAX) continue;
    s = link_group(r, w, group, nr);
    nr = 0;
  }
  if (nr && s == REMIXDB_OK) s = link_group(r, w, group, nr);
  err_save(&share->error, s);
}

// Task: gets memory for the next records. Without this task, several threads that need a new page at the same time
// would each make the system clear a page.
static void fill_pool(struct task *t, struct worker *w) {
  (void)w;
  struct arena_pool *const pool = &((struct replay_fill *)t)->x->memtables.chunks;
  (void)arena_pool_fill(pool, pool->chunk_size);
}

// Links all gathered records.
static enum remixdb_status link_gathered(struct replaying *r) {
  struct workers *ws = r->x->workers;
  const uint32_t nr_threads = ws ? workers_count(ws) + 1 : 1;
  r->nr_shares = r->nr > REPLAY_FEW && nr_threads > 1 ? REPLAY_SHARES * nr_threads : 1;
  for (uint32_t i = 0; i < r->nr_shares; i++) {
    struct replay_share *share = &r->shares[i];
    share->task = (struct task){.run = link_share, .size = 1};
    share->r = r;
    share->number = i;
    r->tasks[i] = &share->task;
  }
  r->fill = (struct replay_fill){{.run = fill_pool, .size = 2}, r->x};
  r->tasks[r->nr_shares] = &r->fill.task;
  if (r->nr_shares > 1) workers_run(ws, r->self, r->tasks, r->nr_shares + 1);
  else link_share(r->tasks[0], r->self);
  r->nr = 0;
  r->nbytes = 0;
  for (uint32_t i = 0; i < r->nr_shares; i++)
    if (r->shares[i].error.status != REMIXDB_OK) return err_raise(&r->shares[i].error);
  return REMIXDB_OK;
}

// A record of the spaces' tree needs that tree's index, and an id before its key.
static enum remixdb_status check_spaces(struct replaying *r, const struct kv_rec *rec) {
  if (rec->klen < NAMES_ID)
    return err_set(REMIXDB_CORRUPT, "%s: the log has a key of a space without an id", r->x->dir);
  return memtable_spaces(r->m);
}

static void erased_fini(struct replaying *r) {
  for (uint32_t t = 0; t < TREES; t++) {
    for (uint32_t i = 0; i < r->erased[t].nr; i++) mem_free(r->erased[t].bytes[i]);
    mem_free(r->erased[t].ranges);
    mem_free(r->erased[t].bytes);
  }
}

// Notes a range whose edit the version does not have.
static enum remixdb_status erased_add(struct replaying *r, uint32_t tree, const struct kv_rec *rec) {
  struct replay_ranges *const e = &r->erased[tree];
  if (e->nr == e->cap) {
    const uint32_t cap = e->cap ? 2 * e->cap : 8;
    struct compact_range *const grown = mem_realloc(e->ranges, cap * sizeof(*grown));
    if (grown) e->ranges = grown;
    uint8_t **const bytes = grown ? mem_realloc(e->bytes, cap * sizeof(*bytes)) : NULL;
    if (!bytes) return REMIXDB_NOMEM;
    e->bytes = bytes;
    e->cap = cap;
  }
  uint8_t *const bytes = mem_alloc((size_t)rec->klen + rec->vlen + 1);
  if (!bytes) return REMIXDB_NOMEM;
  if (rec->klen) memcpy(bytes, rec->key, rec->klen);
  if (rec->vlen) memcpy(bytes + rec->klen, rec->val, rec->vlen);
  const struct kref to = rec->vlen ? kref(bytes + rec->klen, rec->vlen) : kref(NULL, 0);
  e->bytes[e->nr] = bytes;
  e->ranges[e->nr++] = (struct compact_range){kref(bytes, rec->klen), to};
  r->last_erased = rec->seq;
  return REMIXDB_OK;
}

static enum remixdb_status stamp_deleted(void *arg, const struct wh_link *l) {
  wh_link_stamp(l, *(const uint64_t *)arg);
  return REMIXDB_OK;
}

// A range was deleted here: the memtable's keys in it get tombstones, and the version is edited later (D3 of
// store/ranges.h). All records of the version are older than the log.
static enum remixdb_status replay_range(struct replaying *r, const struct kv_rec *rec) {
  const uint32_t tree = rec->kind & KV_SPACES ? TREE_SPACES : TREE_UNNAMED;
  enum remixdb_status s = r->nr ? link_gathered(r) : REMIXDB_OK;
  struct wh *const wh = memtable_tree(r->m, tree);
  if (s == REMIXDB_OK && wh) {
    struct wh_many many;
    uint64_t seq = rec->seq;
    epoch_enter(&r->x->epoch, &r->self->slot);
    wh_many_init(&many, wh);
    s = wh_many_delete(&many, kref(rec->key, rec->klen), kref(rec->vlen ? rec->val : NULL, rec->vlen), stamp_deleted,
                       &seq);
    wh_many_unlock(&many);
    epoch_exit(&r->self->slot);
  }
  return s == REMIXDB_OK && rec->seq > r->version->erased ? erased_add(r, tree, rec) : s;
}

// Gathers a record (wal_open).
static enum remixdb_status replay(void *arg, uint64_t seq, const struct kv_rec *rec) {
  struct replaying *r = arg;
  (void)seq;
  if (unlikely(rec->kind & KV_RANGE)) return replay_range(r, rec);
  const size_t nbytes = (size_t)rec->klen + rec->vlen;
  if (r->nr == REPLAY_RECORDS || nbytes > REPLAY_BYTES - r->nbytes) {
    const enum remixdb_status s = link_gathered(r);
    if (s != REMIXDB_OK) return s;
  }
  if (unlikely(rec->kind & KV_SPACES)) {
    const enum remixdb_status s = check_spaces(r, rec);
    if (s != REMIXDB_OK) return s;
  }
  uint8_t *const key = r->bytes + r->nbytes, *const val = key + rec->klen;
  if (rec->klen) memcpy(key, rec->key, rec->klen);
  if (rec->vlen) memcpy(val, rec->val, rec->vlen);
  r->nbytes += nbytes;
  struct replay_rec *const to = &r->recs[r->nr++];
  *to = (struct replay_rec){*rec, hash64(key, rec->klen)};
  to->rec.key = key;
  to->rec.val = val;
  return REMIXDB_OK;
}

// No file is left that the version does not name: the origins of the others need no place in CURRENT any more (V6).
// Without memory they stay.
static void keep_origins(struct xdb *x, const struct version *v) {
  uint32_t nr;
  if (x->nr_origins == 0 || version_origins(v, x->store_id, &x->origins_kept, &nr) != REMIXDB_OK) return;
  x->ctx.origins = x->origins_kept;
  x->ctx.nr_origins = nr;
}

// The log has no more records (wal_open).
static enum remixdb_status replayed(void *arg) {
  struct replaying *r = arg;
  enum remixdb_status s = r->nr ? link_gathered(r) : REMIXDB_OK;
  struct xdb *const x = r->x;
  if (s == REMIXDB_OK) s = values_replayed(x, r->version, r->m);
  if (s != REMIXDB_OK || x->opts.read_only) return s;
  // This comes before the log begins a segment, because there may be no other room for the segment.
  if (version_clean(&x->ctx, r->version, &x->nr_cleaned) != REMIXDB_OK)
    xdb_say(x, "files that no version names are left: %s", err_msg());
  else keep_origins(x, r->version);
  return s;
}

// Makes the version of all edits that were found.
static enum remixdb_status edits_make(struct replaying *r, struct blkio_queue *queue, struct version *v,
                                      struct version **out) {
  struct version *at = v, *next;
  enum remixdb_status s = REMIXDB_OK;
  version_ref(at);
  for (uint32_t t = 0; t < TREES && s == REMIXDB_OK; t++) {
    struct replay_ranges *const e = &r->erased[t];
    struct compact_erase erase = {.c = &r->x->compact,
                                  .slot = &r->self->slot,
                                  .queue = queue,
                                  .tree = t,
                                  .ranges = e->ranges,
                                  .nr = compact_ranges_join(e->ranges, e->nr)};
    s = compact_erase(&erase, at, &next);
    if (s != REMIXDB_OK || !next) continue;
    version_unref(at);
    at = next;
  }
  if (s == REMIXDB_OK && at == v) s = version_copy(v, out);
  else if (s == REMIXDB_OK) version_ref(*out = at);
  version_unref(at);  // after a failure the next opening removes the files that were made
  if (s == REMIXDB_OK) (*out)->erased = r->last_erased;
  return s;
}

static enum remixdb_status edits_save(struct xdb *x, struct version *base, struct version *v) {
  v->number++;
  v->next_file = atomic_load_explicit(&x->compact.next_file, memory_order_relaxed);
  v->printed = true;
  enum remixdb_status s = wal_print(x->wal, v->log_gen, &v->log_print);
  if (s == REMIXDB_OK) s = env_sync_dir(&x->home);
  if (s == REMIXDB_OK) s = version_save(&x->ctx, v);
  if (s == REMIXDB_OK) compact_retire(base, v);
  return s;
}

// The log is durable as far as it was replayed, so the edits can be made and saved (D4). With read_only they are made
// in memory.
static enum remixdb_status edit(struct replaying *r, struct version **v_io) {
  struct xdb *const x = r->x;
  struct version *const v = *v_io, *next;
  struct blkio_queue *queue = NULL;
  if (r->last_erased == 0) return REMIXDB_OK;
  enum remixdb_status s = x->opts.read_only ? REMIXDB_OK : blkio_queue_create(&x->io, &queue);
  if (s == REMIXDB_OK) s = edits_make(r, queue, v, &next);
  blkio_queue_destroy(queue);
  if (s != REMIXDB_OK) return s;
  s = values_of_next(x, next, v, &(struct values_new){0});
  if (s == REMIXDB_OK && !x->opts.read_only) s = edits_save(x, v, next);
  struct super *const super = s == REMIXDB_OK ? super_create(r->m, NULL, next) : NULL;
  if (!super) {
    version_unref(next);
    return s == REMIXDB_OK ? REMIXDB_NOMEM : s;
  }
  super_unref(xdb_super(x));
  atomic_store_explicit(&x->super, super, memory_order_release);
  *v_io = next;
  if (!x->opts.read_only) values_retire(x, v, next, NULL, false);  // the super has those of the replayed records
  version_unref(v);
  return s;
}

enum remixdb_status replay_log(struct xdb *x, struct worker *self, struct version **v_io, bool fresh,
                               struct memtable *m) {
  struct version *const v = *v_io;
  uint32_t step = WAL_PREALLOC;
  while (step > x->wal_limit / WAL_STEP_PART) step /= 2;
  const struct wal_opts wo = {.dir = &x->home,
                              .store_id = x->store_id,
                              .origins = x->origins,
                              .nr_origins = x->nr_origins,
                              .printed = !fresh && v->printed,
                              .print = v->log_print,
                              .values = &x->log_values,
                              .read_only = x->opts.read_only,
                              .step = step,
                              .limit = x->wal_limit,
                              .replayed = replayed};
  struct replaying *r = mem_alloc(sizeof(*r));
  if (!r) return REMIXDB_NOMEM;
  r->x = x;
  r->m = m;
  r->version = v;
  r->self = self;
  r->nr = 0;
  r->nbytes = 0;
  r->last_erased = 0;
  memset(r->erased, 0, sizeof(r->erased));
  x->replay_into = m;
  x->replay_from = v;
  enum remixdb_status s = wal_open(&wo, v->log_gen, v->log_seq, fresh, replay, r, &x->recovery, &x->wal);
  if (s == REMIXDB_OK) s = edit(r, v_io);
  erased_fini(r);
  mem_free(r);
  x->replay_into = NULL;
  x->replay_from = NULL;
  epoch_reclaim(&x->epoch);
  if (s != REMIXDB_OK) return s;
  if (fresh && (s = wal_print(x->wal, v->log_gen, &v->log_print)) != REMIXDB_OK) return s;
  m->gen = wal_gen(x->wal);
  m->base_seq = x->recovery.last_seq;
  atomic_store_explicit(&x->published, x->recovery.last_seq, memory_order_release);
  return REMIXDB_OK;
}
