// SPDX-License-Identifier: Apache-2.0
#include "store/replay.h"

#include "store/memory.h"
#include "store/replay_link.h"
#include "store/replay_ranges.h"
#include "store/replay_round.h"
#include "store/values.h"

#define WAL_STEP_PART 32u  // the log grows on disk by at most 1/32 of its limit at a time

// How a pass over the log treats the records.
enum replay_how {
  REPLAY_ALL,     // all go into one memtable
  REPLAY_RANGES,  // there are too many for that: only the range deletions are noted
  REPLAY_ROUNDS   // a memtable at a time goes into tables
};

struct replaying {
  struct replay_state st;
  enum replay_how how;
  bool bounded;  // REPLAY_ALL may end as REPLAY_RANGES
  struct replay_ranges ranges;
  struct replay_link link;
};

// ---- a pass

// A record of the spaces' tree needs that tree's index, and an id before its key.
static enum remixdb_status check_spaces(struct replaying *r, const struct kv_rec *rec) {
  if (rec->klen < NAMES_ID)
    return err_set(REMIXDB_CORRUPT, "%s: the log has a key of a space without an id", r->st.x->dir);
  return memtable_spaces(r->st.m);
}

static enum remixdb_status stamp_deleted(void *arg, const struct wh_link *l) {
  wh_link_stamp(l, *(const uint64_t *)arg);
  return REMIXDB_OK;
}

// A range was deleted here: the memtable's keys in it get tombstones, and the version is edited later (D3 of
// store/ranges.h). All records of the version are older than the log.
static enum remixdb_status range_in_memtable(struct replaying *r, const struct kv_rec *rec) {
  struct replay_state *const st = &r->st;
  const uint32_t tree = rec->kind & KV_SPACES ? TREE_SPACES : TREE_UNNAMED;
  enum remixdb_status s = replay_link_all(&r->link, st->m);
  struct wh *const wh = memtable_tree(st->m, tree);
  if (s != REMIXDB_OK || !wh) return s;
  struct wh_many many;
  uint64_t seq = rec->seq;
  epoch_enter(&st->x->epoch, &st->self->slot);
  wh_many_init(&many, wh);
  s = wh_many_delete(&many, kref(rec->key, rec->klen), kref(rec->vlen ? rec->val : NULL, rec->vlen), stamp_deleted,
                     &seq);
  wh_many_unlock(&many);
  epoch_exit(&st->self->slot);
  return s;
}

static enum remixdb_status replay_range(struct replaying *r, const struct kv_rec *rec) {
  if (r->how == REPLAY_ROUNDS) return REMIXDB_OK;  // an earlier pass has noted it
  const enum remixdb_status s = r->how == REPLAY_ALL ? range_in_memtable(r, rec) : REMIXDB_OK;
  return s == REMIXDB_OK ? replay_ranges_add(&r->ranges, rec) : s;
}

// Links what is gathered. The memtable may have enough then.
static enum remixdb_status link_some(struct replaying *r) {
  struct replay_state *const st = &r->st;
  const enum remixdb_status s = replay_link_all(&r->link, st->m);
  if (s != REMIXDB_OK) return s;
  if (r->how == REPLAY_ROUNDS) return replay_round_due(st->x, st->m) ? replay_round(st) : s;
  if (r->bounded && replay_is_much(st->x, st->m)) r->how = REPLAY_RANGES;
  return s;
}

// Takes a record (wal_open).
static enum remixdb_status replay(void *arg, uint64_t seq, const struct kv_rec *rec) {
  struct replaying *r = arg;
  if (unlikely(rec->kind & KV_RANGE)) return replay_range(r, rec);
  if (r->how == REPLAY_RANGES || (r->how == REPLAY_ROUNDS && replay_ranges_take(&r->ranges, rec, seq)))
    return REMIXDB_OK;
  if (!replay_link_fits(&r->link, rec)) {
    const enum remixdb_status s = link_some(r);
    if (s != REMIXDB_OK || r->how == REPLAY_RANGES) return s;
  }
  if (unlikely(rec->kind & KV_SPACES)) {
    const enum remixdb_status s = check_spaces(r, rec);
    if (s != REMIXDB_OK) return s;
  }
  replay_link_add(&r->link, rec);
  return REMIXDB_OK;
}

// Removes the files that the version does not name. Then the origins of the others need no place in CURRENT any more
// (V6). Without memory they stay.
static void clean(struct xdb *x, const struct version *v) {
  uint32_t nr;
  if (version_clean(&x->ctx, v, &x->nr_cleaned) != REMIXDB_OK) {
    xdb_say(x, "files that no version names are left: %s", err_msg());
    return;
  }
  if (x->nr_origins == 0 || version_origins(v, x->store_id, &x->origins_kept, &nr) != REMIXDB_OK) return;
  x->ctx.origins = x->origins_kept;
  x->ctx.nr_origins = nr;
}

// The log has no more records (wal_open).
static enum remixdb_status replayed(void *arg) {
  struct replaying *r = arg;
  struct replay_state *const st = &r->st;
  if (r->how == REPLAY_RANGES) return REMIXDB_ABORTED;
  enum remixdb_status s = replay_link_all(&r->link, st->m);
  if (s == REMIXDB_OK) s = values_replayed(st->x, st->version, st->m);
  // This comes before the log begins a segment, because there may be no other room for the segment. But the files of
  // the first version stay while CURRENT names it.
  if (s == REMIXDB_OK && r->how == REPLAY_ALL && !st->x->opts.read_only) clean(st->x, st->version);
  return s;
}

static enum remixdb_status pass(struct replaying *r, enum replay_how how, bool fresh) {
  struct replay_state *const st = &r->st;
  struct xdb *const x = st->x;
  const struct version *const v = st->first;
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
  r->how = how;
  replay_link_init(&r->link, x, st->self, replay_gather());
  x->replay_into = st->m;
  x->replay_from = st->first;
  const enum remixdb_status s = wal_open(&wo, v->log_gen, v->log_seq, fresh, replay, r, &x->recovery, &x->wal);
  epoch_reclaim(&x->epoch);
  return s;
}

// ---- edits

// Makes the edits of st->version, which has all records before the log. With read_only they are made in memory.
static enum remixdb_status edit(struct replaying *r, struct version **out) {
  struct replay_state *const st = &r->st;
  struct xdb *const x = st->x;
  struct blkio_queue *queue = NULL;
  struct version *next;
  enum remixdb_status s = x->opts.read_only ? REMIXDB_OK : blkio_queue_create(&x->io, &queue);
  if (s == REMIXDB_OK) s = replay_ranges_edit(&r->ranges, x, st->self, queue, st->version, &next);
  blkio_queue_destroy(queue);
  if (s != REMIXDB_OK) return s;
  s = values_of_next(x, next, st->version, &(struct values_new){0});
  if (s == REMIXDB_OK) *out = next;
  else version_unref(next);
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

// ---- the whole log in one memtable

// The log is durable as far as it was replayed, so the edits can be saved (D4).
static enum remixdb_status in_memtable(struct replaying *r, bool bounded, bool fresh) {
  struct replay_state *const st = &r->st;
  struct xdb *const x = st->x;
  struct version *next;
  r->bounded = bounded;
  enum remixdb_status s = pass(r, REPLAY_ALL, fresh);
  if (s != REMIXDB_OK || r->ranges.last <= st->first->erased) return s;
  s = edit(r, &next);
  if (s == REMIXDB_OK && !x->opts.read_only && (s = edits_save(x, st->first, next)) != REMIXDB_OK) version_unref(next);
  if (s == REMIXDB_OK) s = replay_place(st, next);
  if (s != REMIXDB_OK) return s;
  if (!x->opts.read_only) values_retire(x, st->first, next, NULL, false);  // the super has those of the records
  version_unref(st->first);
  version_ref(st->first = next);
  return s;
}

// ---- in rounds

// The steps. The opening thread has a queue, as a worker has.
static enum remixdb_status round_steps(struct replaying *r, bool *unknown_out) {
  struct replay_state *const st = &r->st;
  struct version *next;
  enum remixdb_status s = REMIXDB_OK;
  if (r->ranges.last > st->first->erased) {
    s = edit(r, &next);
    if (s == REMIXDB_OK) s = replay_place(st, next);
  }
  if (s == REMIXDB_OK) s = pass(r, REPLAY_ROUNDS, false);
  if (s == REMIXDB_OK) s = replay_finish(st, unknown_out);
  if (s == REMIXDB_OK) clean(st->x, st->version);
  return s;
}

static enum remixdb_status in_rounds(struct replaying *r, bool *unknown_out) {
  struct replay_state *const st = &r->st;
  *unknown_out = false;
  enum remixdb_status s = replay_again(st);
  if (s == REMIXDB_OK) s = replay_ranges_cut(&r->ranges);
  if (s == REMIXDB_OK) s = blkio_queue_create(&st->x->io, &st->self->queue);
  if (s != REMIXDB_OK) return s;
  memory_begin(st->x, 0);
  s = round_steps(r, unknown_out);
  err_cleanup_begin();
  blkio_queue_destroy(st->self->queue);
  err_cleanup_end();
  st->self->queue = NULL;
  return s;
}

// The log has too many records for a memtable. If they cannot be brought into tables, they go into one all the same.
static enum remixdb_status beyond_memory(struct replaying *r) {
  struct xdb *const x = r->st.x;
  bool unknown;
  xdb_say(x, "%s: the log holds more than memtables may take, so it is brought into tables", x->dir);
  enum remixdb_status s = in_rounds(r, &unknown);
  if (s == REMIXDB_OK || unknown) return s;
  xdb_say(x, "%s: the log could not be brought into tables, so all of it comes into memory: %s", x->dir, err_msg());
  err_cleanup_begin();
  if (x->wal) IGNORED(wal_close(x->wal), "the next pass reads the log anew");
  x->wal = NULL;
  err_cleanup_end();
  s = replay_again(&r->st);
  replay_ranges_fini(&r->ranges);
  memset(&r->ranges, 0, sizeof(r->ranges));
  return s == REMIXDB_OK ? in_memtable(r, false, false) : s;
}

enum remixdb_status replay_log(struct xdb *x, struct worker *self, struct version **v_io, bool fresh,
                               struct memtable **m_io) {
  struct replaying *r = mem_alloc(sizeof(*r));
  if (!r) return REMIXDB_NOMEM;
  r->st = (struct replay_state){x, self, *m_io, *v_io, *v_io};
  version_ref(*v_io);
  memset(&r->ranges, 0, sizeof(r->ranges));
  enum remixdb_status s = in_memtable(r, !x->opts.read_only, fresh);
  if (s == REMIXDB_ABORTED && r->how == REPLAY_RANGES) s = beyond_memory(r);
  replay_ranges_fini(&r->ranges);
  struct memtable *const m = *m_io = r->st.m;
  *v_io = r->st.first;
  version_unref(r->st.version);
  mem_free(r);
  x->replay_into = NULL;
  x->replay_from = NULL;
  epoch_reclaim(&x->epoch);
  if (s != REMIXDB_OK) return s;
  struct version *const v = *v_io;
  if (fresh && (s = wal_print(x->wal, v->log_gen, &v->log_print)) != REMIXDB_OK) return s;
  m->gen = wal_gen(x->wal);
  m->base_seq = x->recovery.last_seq;
  atomic_store_explicit(&x->published, x->recovery.last_seq, memory_order_release);
  return REMIXDB_OK;
}
