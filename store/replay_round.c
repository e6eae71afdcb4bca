// SPDX-License-Identifier: Apache-2.0
#include "store/replay_round.h"

#include "store/round.h"
#include "store/value_pace.h"
#include "store/values.h"

#define REPLAY_MEMTABLES 3u  // memtables of records that are replayed without a round

_Atomic size_t replay_most;

bool replay_is_much(const struct xdb *x, const struct memtable *m) {
  const size_t most = atomic_load_explicit(&replay_most, memory_order_relaxed);
  return memtable_memory(m) >= (most ? most : REPLAY_MEMTABLES * xdb_memtable_limit(x));
}

bool replay_round_due(const struct xdb *x, const struct memtable *m) {
  const size_t most = atomic_load_explicit(&replay_most, memory_order_relaxed);
  return memtable_memory(m) >= (most ? most : xdb_memtable_limit(x));
}

size_t replay_gather(void) {
  const size_t most = atomic_load_explicit(&replay_most, memory_order_relaxed);
  return most && most < REPLAY_BYTES ? most : REPLAY_BYTES;
}

// Gives the store a super of st->m and st->version.
static enum remixdb_status show(struct replay_state *st) {
  struct super *const super = super_create(st->m, NULL, st->version);
  if (!super) return REMIXDB_NOMEM;
  super_unref(xdb_super(st->x));
  atomic_store_explicit(&st->x->super, super, memory_order_release);
  st->x->replay_into = st->m;
  return REMIXDB_OK;
}

enum remixdb_status replay_place(struct replay_state *st, struct version *v) {
  struct version *const old = st->version;
  st->version = v;
  const enum remixdb_status s = show(st);
  version_unref(old);
  return s;
}

// Takes an empty memtable in place of st->m. *old_out: that one, with its reference. NULL: it goes.
static enum remixdb_status new_memtable(struct replay_state *st, struct memtable **old_out) {
  struct memtable *fresh;
  const enum remixdb_status s = memtable_create(&st->x->memtables, &fresh);
  if (s != REMIXDB_OK) return s;
  if (old_out) *old_out = st->m;
  else memtable_unref(st->m);
  st->m = fresh;
  return s;
}

enum remixdb_status replay_again(struct replay_state *st) {
  struct xdb *const x = st->x;
  enum remixdb_status s = new_memtable(st, NULL);
  if (s != REMIXDB_OK) return s;
  x->replay_rounds = 0;
  version_ref(st->first);
  s = replay_place(st, st->first);
  // The opening removes the files that no version names. So nothing more may be written to value files of the rounds.
  value_log_fini(&x->compact.values);
  memset(&x->compact.values, 0, sizeof(x->compact.values));
  values_log_init(x, &x->compact.values);
  value_pace_set(x, atomic_load_explicit(&x->value_ctx.room, memory_order_relaxed));
  epoch_reclaim(&x->epoch);
  return s;
}

// The next round's records may refer to the same value files, and the log has told of them once.
static enum remixdb_status keep_values(const struct memtable *from, struct memtable *to) {
  enum remixdb_status s = REMIXDB_OK;
  const struct value_node *n = atomic_load_explicit(&from->values.first, memory_order_relaxed);
  for (; n && s == REMIXDB_OK; n = n->next) s = value_list_add(&to->values, n->file);
  return s;
}

// Makes the version with the records of a memtable.
static enum remixdb_status make(struct replay_state *st, const struct memtable *m, struct version **out) {
  struct xdb *const x = st->x;
  struct version *next;
  enum remixdb_status s = compact_round(&x->compact, st->self, st->version, m->wh, memtable_tree(m, TREE_SPACES), false,
                                        NULL, NULL, &next);
  round_say_left_out(x);
  if (s != REMIXDB_OK) return s;
  next->store_id = x->store_id;
  next->number = st->version->number;
  next->log_gen = st->version->log_gen;
  next->log_seq = st->version->log_seq;
  next->log_print = st->version->log_print;
  next->printed = st->version->printed;
  if (!next->names) names_ref(next->names = st->version->names);
  s = values_of_next(x, next, st->version, &(struct values_new){.frozen = m});
  if (s == REMIXDB_OK) {
    compact_keep_values(&x->compact);
    compact_retire_but(st->version, next, st->first);
    *out = next;
    return s;
  }
  err_cleanup_begin();
  compact_undo_values(&x->compact);
  compact_retire(next, st->version);
  version_unref(next);
  err_cleanup_end();
  return s;
}

// last: no record follows.
static enum remixdb_status round_of(struct replay_state *st, bool last) {
  struct xdb *const x = st->x;
  struct memtable *old;
  struct version *next;
  enum remixdb_status s = new_memtable(st, &old);
  if (s != REMIXDB_OK) return s;
  if (!last) s = keep_values(old, st->m);
  if (s == REMIXDB_OK) s = make(st, old, &next);
  if (s == REMIXDB_OK) s = replay_place(st, next);
  x->replay_rounds += s == REMIXDB_OK;
  err_cleanup_begin();
  memtable_unref(old);
  epoch_reclaim(&x->epoch);
  packs_reclaim(x->packs);
  err_cleanup_end();
  return s;
}

enum remixdb_status replay_round(struct replay_state *st) { return round_of(st, false); }

// Writes CURRENT (B4).
static enum remixdb_status save(struct replay_state *st, bool *unknown_out) {
  struct xdb *const x = st->x;
  struct version *const v = st->version;
  enum remixdb_status s = value_log_sync(&x->compact.values);
  v->number = st->first->number + 1;
  v->next_file = atomic_load_explicit(&x->compact.next_file, memory_order_relaxed);
  v->log_gen = wal_gen(x->wal);
  v->log_seq = x->recovery.last_seq;
  v->printed = true;
  if (s == REMIXDB_OK) s = wal_print(x->wal, v->log_gen, &v->log_print);
  if (s == REMIXDB_OK) s = env_sync_dir(&x->home);
  if (s != REMIXDB_OK) return s;
  s = version_save(&x->ctx, v);
  *unknown_out = s != REMIXDB_OK && s != REMIXDB_NOSPACE && s != REMIXDB_NOMEM;
  return s;
}

enum remixdb_status replay_finish(struct replay_state *st, bool *unknown_out) {
  struct xdb *const x = st->x;
  *unknown_out = false;
  if (wal_segment_holds(x->wal))
    return err_set(REMIXDB_NOSPACE, "%s: the disk has no room for a new segment of the log", x->dir);
  enum remixdb_status s = round_of(st, true);
  if (s == REMIXDB_OK) s = save(st, unknown_out);
  if (s != REMIXDB_OK) return s;
  compact_retire(st->first, st->version);
  values_retire(x, st->first, st->version, NULL, false);
  version_unref(st->first);
  version_ref(st->first = st->version);
  // Each release of the log tries again.
  if (wal_release(x->wal, wal_gen(x->wal)) != REMIXDB_OK)
    xdb_say(x, "%s: an old log segment could not be recycled: %s", x->dir, err_msg());
  values_turn(x);
  packs_reclaim(x->packs);
  return s;
}
