// SPDX-License-Identifier: Apache-2.0
#include "store/replay_link.h"

#include <assert.h>

#define REPLAY_FEW 512u  // so few records are not worth waking a worker

static inline uint32_t tree_of(const struct replay_rec *rec) {
  return unlikely(rec->rec.kind & KV_SPACES) ? TREE_SPACES : TREE_UNNAMED;
}

// Links a group. Its records are all of one tree. Looking all keys up side by side first brings the memory for linking
// into the processor's cache.
static enum remixdb_status link_group(struct replay_link *l, struct worker *w, const struct replay_rec *const *group,
                                      uint32_t nr) {
  struct wh *wh = memtable_tree(l->m, tree_of(group[0]));
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
  epoch_enter(&l->x->epoch, &w->slot);
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
  struct replay_link *const l = share->l;
  const struct replay_rec *group[WH_GROUP_MAX];
  uint32_t nr = 0;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < l->nr && s == REMIXDB_OK; i++) {
    if (l->recs[i].hash % l->nr_shares != share->number) continue;
    if (unlikely(nr && tree_of(group[0]) != tree_of(&l->recs[i]))) {
      s = link_group(l, w, group, nr);
      nr = 0;
      if (s != REMIXDB_OK) break;
    }
    group[nr++] = &l->recs[i];
    if (nr < WH_GROUP_MAX) continue;
    s = link_group(l, w, group, nr);
    nr = 0;
  }
  if (nr && s == REMIXDB_OK) s = link_group(l, w, group, nr);
  err_save(&share->error, s);
}

// Task: gets memory for the next records. Without this task, several threads that need a new page at the same time
// would each make the system clear a page.
static void fill_pool(struct task *t, struct worker *w) {
  (void)w;
  struct arena_pool *const pool = &((struct replay_fill *)t)->x->memtables.chunks;
  (void)arena_pool_fill(pool, pool->chunk_size);
}

void replay_link_init(struct replay_link *l, struct xdb *x, struct worker *self, size_t most) {
  l->x = x;
  l->self = self;
  l->m = NULL;
  l->nr = 0;
  l->nbytes = 0;
  l->most = most;
}

bool replay_link_fits(const struct replay_link *l, const struct kv_rec *rec) {
  return l->nr < REPLAY_RECORDS && l->nbytes < l->most && (size_t)rec->klen + rec->vlen <= REPLAY_BYTES - l->nbytes;
}

void replay_link_add(struct replay_link *l, const struct kv_rec *rec) {
  assert(replay_link_fits(l, rec));
  uint8_t *const key = l->bytes + l->nbytes, *const val = key + rec->klen;
  if (rec->klen) memcpy(key, rec->key, rec->klen);
  if (rec->vlen) memcpy(val, rec->val, rec->vlen);
  l->nbytes += (size_t)rec->klen + rec->vlen;
  struct replay_rec *const to = &l->recs[l->nr++];
  *to = (struct replay_rec){*rec, hash64(key, rec->klen)};
  to->rec.key = key;
  to->rec.val = val;
}

enum remixdb_status replay_link_all(struct replay_link *l, struct memtable *m) {
  struct workers *ws = l->x->workers;
  const uint32_t nr_threads = ws ? workers_count(ws) + 1 : 1;
  if (l->nr == 0) return REMIXDB_OK;
  l->m = m;
  l->nr_shares = l->nr > REPLAY_FEW && nr_threads > 1 ? REPLAY_SHARES * nr_threads : 1;
  for (uint32_t i = 0; i < l->nr_shares; i++) {
    struct replay_share *share = &l->shares[i];
    share->task = (struct task){.run = link_share, .size = 1};
    share->l = l;
    share->number = i;
    l->tasks[i] = &share->task;
  }
  l->fill = (struct replay_fill){{.run = fill_pool, .size = 2}, l->x};
  l->tasks[l->nr_shares] = &l->fill.task;
  if (l->nr_shares > 1) workers_run(ws, l->self, l->tasks, l->nr_shares + 1);
  else link_share(l->tasks[0], l->self);
  l->nr = 0;
  l->nbytes = 0;
  for (uint32_t i = 0; i < l->nr_shares; i++)
    if (l->shares[i].error.status != REMIXDB_OK) return err_raise(&l->shares[i].error);
  return REMIXDB_OK;
}
