// SPDX-License-Identifier: Apache-2.0
//
// The life of a log: opening, closing, statistics. log/append.c takes records, log/segments.c has the files,
// log/recover.c reads the files that an earlier opening has left.
#include "log/reader.h"
#include "log/recover.h"
#include "log/segments.h"

// ---- opening

// Removes the files that an unfinished creation of the store has left. Their frames may have the generation and the id
// with which the new store begins, so the log must not recycle these files. Foreign files stay.
static enum remixdb_status wal_remove_all(struct wal *w, struct wal_seg **all, size_t nr) {
  for (size_t i = 0; i < nr; i++) {
    if (all[i]->foreign) {
      wal_foreign_add(w, all[i]);
    } else {
      const enum remixdb_status s = env_unlink(w->dir, wal_seg_name(all[i]));
      if (s != REMIXDB_OK) return s;
      wal_seg_destroy(w, all[i]);
    }
    all[i] = NULL;
  }
  return nr == 0 ? REMIXDB_OK : env_sync_dir(w->dir);
}

// Replays the segments that the store needs. *gen_out: the generation of the segment that may begin next.
static enum remixdb_status wal_replay_all(struct wal *w, const struct wal_opts *o, struct wal_seg **all, size_t nr,
                                          uint64_t oldest_gen, wal_replay_fn replay, void *arg,
                                          struct wal_recovery *rec, uint64_t *gen_out) {
  const uint64_t newest = nr > 0 && all[nr - 1]->headed ? all[nr - 1]->h.gen : 0;
  if (!w->read_only && newest > WAL_NUMBER_MAX - 2)
    return err_set(REMIXDB_CORRUPT, "%s: the log's generations have run out at %llu; it can be opened with read_only",
                   w->dir->path, (unsigned long long)newest);
  *gen_out = newest + 2;  // L4: frames of the generation between may exist without their header
  return wal_recover(w, all, nr, oldest_gen, o->printed ? &o->print : NULL, replay, arg, rec);
}

// Adds the files that the replay did not need to the pool, or to the foreign files.
static void wal_keep_rest(struct wal *w, struct wal_seg **all, size_t nr) {
  for (size_t i = 0; i < nr; i++) {
    if (!all[i]) continue;
    all[i]->alloc = all[i]->size;
    if (all[i]->foreign) wal_foreign_add(w, all[i]);
    else wal_pool_add(w, all[i]);
    all[i] = NULL;
  }
}

static enum remixdb_status wal_start(struct wal *w, uint64_t oldest_gen, uint64_t gen, const struct wal_recovery *rec) {
  w->seq = rec->last_seq;
  w->st.records = rec->last_seq;
  w->st.segments = rec->nr_segments;
  atomic_store_explicit(&w->durable_seq, rec->last_seq, memory_order_relaxed);
  if (!w->read_only) return wal_begin_after(w, gen, rec);
  atomic_store_explicit(&w->gen, w->active ? w->active->h.gen : oldest_gen, memory_order_relaxed);
  return REMIXDB_OK;
}

enum remixdb_status wal_open(const struct wal_opts *o, uint64_t oldest_gen, uint64_t last_seq, bool fresh,
                             wal_replay_fn replay, void *arg, struct wal_recovery *rec_out, struct wal **out) {
  struct wal_recovery rec = {.last_seq = last_seq};
  struct wal_seg **all = NULL;
  size_t nr = 0;
  uint64_t gen = oldest_gen;
  *out = NULL;
  if (rec_out) *rec_out = rec;
  if (oldest_gen == 0 || oldest_gen > WAL_NUMBER_MAX || last_seq > WAL_NUMBER_MAX) {
    return err_set(REMIXDB_CORRUPT, "%s: the log cannot begin with generation %llu after sequence number %llu",
                   o->dir->path, (unsigned long long)oldest_gen, (unsigned long long)last_seq);
  }
  struct wal *const w = wal_create(o);
  if (!w) return REMIXDB_NOMEM;
  enum remixdb_status s = wal_list(w, NULL, &all, &nr);
  if (s == REMIXDB_OK && !fresh) {
    s = wal_replay_all(w, o, all, nr, oldest_gen, replay, arg, &rec, &gen);
    if (s == REMIXDB_OK && o->replayed) s = o->replayed(arg);
  } else if (s == REMIXDB_OK && !o->read_only) {
    s = wal_remove_all(w, all, nr);
  }
  if (s == REMIXDB_OK) {
    wal_keep_rest(w, all, nr);
    s = wal_start(w, oldest_gen, gen, &rec);
  }
  for (size_t i = 0; i < nr; i++) wal_seg_destroy(w, all[i]);
  mem_free(all);
  if (rec_out) *rec_out = rec;
  if (s == REMIXDB_OK) *out = w;
  else wal_destroy(w);
  return s;
}

// ---- closing

// Returns the size that a closed log keeps for a segment. The next opening may continue the active one. If that has
// records, it keeps so much room that few more of them cost neither an allocation nor a cut: wal_begin leaves a part.
static uint64_t wal_rest(const struct wal *w, const struct wal_seg *seg) {
  const uint64_t end = align_up(seg->end, WAL_REST);
  if (seg != w->active) return end;
  return end + WAL_REST + (seg->end > WAL_HEAD ? align_up(wal_step(w, 0) / WAL_KEEP_PART, WAL_REST) : 0);
}

// Removes the pool's files and cuts off unused room, except for a small rest. If the disk is full at the next opening,
// the log can use this rest. A failure loses nothing; the log is then larger than necessary. A crash during these calls
// does not change the log's content.
static enum remixdb_status wal_shrink(struct wal *w) {
  const bool any = w->next || w->pool;
  enum remixdb_status s = wal_shed(w);
  if (s == REMIXDB_OK && any) s = env_sync_dir(w->dir);
  for (struct wal_seg *i = w->segs; i && s == REMIXDB_OK; i = i->next) {
    const uint64_t size = wal_rest(w, i);
    uint64_t was = 0;
    if (i->fd >= 0) s = env_size(w->env, i->fd, i->path, &was);
    if (s != REMIXDB_OK || was <= size) continue;
    s = env_truncate(w->env, i->fd, i->path, size);
    if (s == REMIXDB_OK) s = env_sync_all(w->env, i->fd, i->path);
  }
  return s;
}

enum remixdb_status wal_close(struct wal *w) {
  enum remixdb_status s = wal_sync(w);
  if (s == REMIXDB_OK) s = wal_mark(w);
  if (s == REMIXDB_OK && !w->read_only) s = wal_shrink(w);
  for (struct wal_seg *i = w->segs; i; i = i->next) {
    if (i->fd < 0) continue;
    if (s == REMIXDB_OK && !w->read_only) s = env_close(w->env, i->fd, i->path);
    else env_close_quiet(w->env, i->fd);
    i->fd = -1;
  }
  wal_destroy(w);
  return s;
}

void wal_stats(struct wal *w, struct wal_stats *out) {
  wal_lock(w);
  *out = w->st;
  out->records = w->seq - w->st.records;  // st.records: the last sequence number before the first append
  if (w->cur) out->bytes += (uint64_t)(w->pos - w->cur->mem);
  wal_unlock(w);
  out->pool_segments = atomic_load_explicit(&w->nr_pooled, memory_order_relaxed);
}
