// SPDX-License-Identifier: Apache-2.0
#include "store/replay.h"

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

struct replaying {
  struct xdb *x;
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

// Gathers a record (wal_open).
static enum remixdb_status replay(void *arg, uint64_t seq, const struct kv_rec *rec) {
  struct replaying *r = arg;
  (void)seq;
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

enum remixdb_status replay_log(struct xdb *x, struct worker *self, struct version *v, bool fresh, struct memtable *m) {
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
  x->replay_into = m;
  x->replay_from = v;
  enum remixdb_status s = wal_open(&wo, v->log_gen, v->log_seq, fresh, replay, r, &x->recovery, &x->wal);
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
