// SPDX-License-Identifier: Apache-2.0
#include "store/collect.h"

#include <assert.h>
#include <stdlib.h>

#include "store/idle.h"
#include "store/install.h"
#include "store/reserve.h"
#include "store/value_pace.h"
#include "store/values.h"
#include "value/move.h"
#include "view/live.h"

#define SHARE 3u           // a file is collected if 1/3 of it is garbage,
#define SHARE_FULL 6u      // or 1/6 if all garbage is more than
#define FULL_PERCENT 30u   // so much of what lives; while a value merge waits for room,
#define WAIT_PERCENT 20u   // so much
#define LEAST_PART 64u     // all garbage together is worth a collection if it is 1/64 of a full file
#define WHOLE_PERCENT 10u  // the same for collect_all
#define WHOLE_SHARE 16u    // collect_all collects a file if 1/16 of it is garbage
#define LOOK_PART 4u       // after 1/4 of a file the collection goes on only if
#define LOOK_SHARE 8u      // 1/8 of that is garbage
#define PAID_TIMES 4u      // without workers: pieces for so many times the bytes that were written
#define WAIT_NS 1000000000ull
#define AGAIN_NS 500000000ull  // between a collection that could not be installed and the next

// COLLECT_GUESS: only to choose, and without a read; there may be less garbage than that tells.
enum collect_how { COLLECT_IDLE, COLLECT_WHOLE, COLLECT_GUESS };

// A live record that was copied, under one reference to it.
struct collected {
  uint64_t number;  // the reference's file
  struct value_moved moved;
  uint32_t len;  // bytes of the value
};

// A collection under way.
struct collecting {
  struct value_mover mover;
  struct value_set gone;   // the files that it collects; the last one that was added is under way
  struct value_pass pass;  // over that one; f NULL: none is under way
  struct sst_hold hold;    // for looking records up
  struct collected *list;
  uint32_t nr, cap;
  uint64_t synced;  // mover.written at the last sync
  uint64_t freed;   // bytes of values that were left out
  // For the file that is under way: the mover's state when it began, and bytes of values that were found in it.
  uint64_t at, bytes, expected;
  uint32_t first;
  uint64_t seen, live;
  struct value_moves made;  // when it is ready
};

static void collecting_free(struct xdb *x, bool remove) {
  struct collecting *const c = x->collect.now;
  if (!c) return;
  atomic_store_explicit(&x->collect.ready, false, memory_order_relaxed);
  atomic_store_explicit(&x->collect.busy, false, memory_order_relaxed);
  x->collect.now = NULL;
  value_pass_fini(&c->pass);
  value_moves_fini(&c->made);
  value_mover_fini(&c->mover, remove);
  value_set_fini(&c->gone);
  sst_hold_fini(&c->hold);
  mem_free(c->list);
  mem_free(c);
}

// ---- choosing

// The live bytes of a file: those that are expected now, in proportion to what a pass has found.
static uint64_t live_of(struct value_file *f, uint64_t expected) {
  if (f->measured == 0) return expected;
  if (f->expected == 0) f->expected = expected ? expected : 1;
  if (expected >= f->expected) return f->measured;
  return (uint64_t)((double)f->measured * (double)expected / (double)f->expected);
}

struct choice {
  struct value_file *file;  // referenced; NULL: none
  uint64_t bytes, live;     // the file's bytes, and the live ones
  uint64_t expected;        // the live bytes by the tables alone
  uint64_t all, all_live;   // the same for all files
};

// Sets the live bytes of the files as far as tables tell.
static enum remixdb_status live_tables(const struct version *v, enum collect_how how, uint64_t *live_out) {
  if (how != COLLECT_GUESS) return live_values(v, live_out);
  live_least(v, live_out);
  return REMIXDB_OK;
}

// Finds the settled file with the largest share of garbage. After a full compaction no record is hidden, and the tables
// tell the live bytes themselves.
static enum remixdb_status choose(struct xdb *x, const struct collecting *c, enum collect_how how, struct choice *out) {
  xdb_lock(x);
  struct super *const v = xdb_super(x);
  super_ref(v);
  xdb_unlock(x);
  const struct value_set *const files = &v->version->values;
  uint64_t *const live = mem_array(files->nr ? files->nr : 1, sizeof(*live), 0);
  *out = (struct choice){.file = NULL};
  enum remixdb_status s = live ? REMIXDB_OK : REMIXDB_NOMEM;
  if (s == REMIXDB_OK && files->nr) s = live_tables(v->version, how, live);
  for (uint32_t i = 0; s == REMIXDB_OK && i < files->nr; i++) {
    struct value_file *const f = files->files[i];
    const uint64_t bytes = atomic_load_explicit(&f->value_bytes, memory_order_relaxed);
    const bool settled = values_settled(x, f);
    const uint64_t lives = !settled ? bytes : how == COLLECT_IDLE ? live_of(f, live[i]) : live[i];
    out->all += bytes;
    out->all_live += lives < bytes ? lives : bytes;
    if (!settled || f->stuck || bytes == 0 || lives >= bytes || (c && value_set_find(&c->gone, f->number))) continue;
    if (out->file && (double)lives * (double)out->bytes >= (double)out->live * (double)bytes) continue;
    out->file = f;
    out->bytes = bytes;
    out->live = lives;
    out->expected = live[i];
  }
  const uint64_t young = s == REMIXDB_OK && how != COLLECT_WHOLE ? live_young(v->version) : 0;
  out->all_live -= young < out->all_live ? young : out->all_live;
  if (out->file) value_file_ref(out->file);
  mem_free(live);
  xdb_super_drop(x, v);
  return s;
}

static bool is_urgent(const struct xdb *x) { return atomic_load_explicit(&x->collect.urgent, memory_order_relaxed); }

// Tells whether little garbage is worth a collection, too.
static bool wants_all(const struct xdb *x, enum collect_how how) {
  return how == COLLECT_WHOLE || (how == COLLECT_IDLE && is_urgent(x));
}

// Tells whether so much of a file that takes further values is garbage that it had better be closed to them. The
// records of memtables, which hold `held` bytes, may refer to any of its values.
static bool wants_turn(struct xdb *x, const struct value_file *f, uint64_t live, uint64_t held) {
  const uint64_t bytes = atomic_load_explicit(&f->value_bytes, memory_order_relaxed), used = live + held;
  const uint64_t garbage = bytes > used ? bytes - used : 0;
  return garbage >= x->values.full / LEAST_PART && garbage >= bytes / SHARE &&
         (value_log_takes(&x->values, f) || value_log_takes(&x->compact.values, f));
}

// The part of the file's bytes that has these live bytes of values.
static uint64_t room_of(const struct value_file *f, uint64_t live) {
  const uint64_t bytes = atomic_load_explicit(&f->value_bytes, memory_order_relaxed), size = value_file_size(f);
  return live < bytes ? (uint64_t)((double)size * (double)live / (double)bytes) : size;
}

// Looks at the value files at the end of a round: sets the pace of writers. Returns whether the files in use are to be
// closed to further values.
static bool look(struct xdb *x) {
  bool turn = false;
  xdb_lock(x);
  struct super *const v = xdb_super(x);
  super_ref(v);
  xdb_unlock(x);
  const struct value_set *const files = &v->version->values;
  const uint64_t held = atomic_load_explicit(&v->active->apart_bytes, memory_order_relaxed) +
                        (v->frozen ? atomic_load_explicit(&v->frozen->apart_bytes, memory_order_relaxed) : 0);
  uint64_t *const live = mem_array(files->nr ? files->nr : 1, sizeof(*live), 0), room = 0, sum = 1;
  if (live && live_values(v->version, live) == REMIXDB_OK) {
    for (uint32_t i = 0; i < files->nr; i++) {
      turn = turn || wants_turn(x, files->files[i], live[i], held);
      room += room_of(files->files[i], live[i]);
      sum += live[i];
    }
    const double young = (double)live_young(v->version) / (double)sum;
    value_pace_set(x, young < 1 ? room - (uint64_t)((double)room * young) : 0);
  }
  mem_free(live);
  xdb_super_drop(x, v);
  return turn;
}

// Tells whether the chosen file is to be collected.
static bool is_due(const struct xdb *x, const struct choice *c, enum collect_how how) {
  const uint64_t garbage = c->file ? c->bytes - c->live : 0, all = c->all - c->all_live;
  if (wants_all(x, how)) return all > c->all_live / 100 * WHOLE_PERCENT && garbage > c->bytes / WHOLE_SHARE;
  if (all < x->values.full / LEAST_PART || garbage == 0) return false;
  const bool waits = atomic_load_explicit(&x->compact.values_wait, memory_order_relaxed);
  const uint64_t full = c->all_live / 100 * (waits ? WAIT_PERCENT : FULL_PERCENT);
  return garbage >= c->bytes / SHARE || (all > full && garbage >= c->bytes / SHARE_FULL);
}

// Begins with the next file. *any_out: there is one.
static enum remixdb_status next_file(struct xdb *x, struct collecting *c, enum collect_how how, bool *any_out) {
  struct choice next;
  *any_out = false;
  if (c->gone.nr == COLLECT_MOST) return REMIXDB_OK;
  enum remixdb_status s = choose(x, c, how, &next);
  const bool fits = c->gone.nr == 0 || c->mover.at + next.live < value_log_file(&x->values);
  if (s == REMIXDB_OK && is_due(x, &next, how) && fits) {
    s = value_set_add(&c->gone, next.file);
    if (s == REMIXDB_OK) s = value_pass_init(&c->pass, next.file);
    c->at = c->mover.at;
    c->bytes = c->mover.bytes;
    c->expected = next.expected;
    c->first = c->nr;
    c->seen = c->live = 0;
    *any_out = s == REMIXDB_OK;
  }
  value_file_unref(next.file);
  return s;
}

static void value_set_remove(struct value_set *set, struct value_file *f) {
  const uint32_t i = value_set_place(set, f->number);
  assert(i < set->nr && set->files[i] == f);
  set->nr--;
  memmove(set->files + i, set->files + i + 1, (set->nr - i) * sizeof(struct value_file *));
  value_file_unref(f);
}

// Leaves the file that is under way out.
static void leave_out(struct collecting *c) {
  value_mover_back(&c->mover, c->at, c->bytes);
  c->nr = c->first;
  value_set_remove(&c->gone, c->pass.f);
  value_pass_fini(&c->pass);
}

// *due_out: there is something to collect.
static enum remixdb_status any_due(struct xdb *x, enum collect_how how, bool *due_out) {
  struct choice look;
  const enum remixdb_status s = choose(x, NULL, how, &look);
  *due_out = s == REMIXDB_OK && is_due(x, &look, how);
  value_file_unref(look.file);
  return s;
}

// G4, G5.
static bool may_begin(struct xdb *x, enum collect_how how) {
  if (how == COLLECT_IDLE && x->collect.again_ns && time_ns() < x->collect.again_ns) return false;
  return !reserve_scarce(x) || reserve_keep(x) || reserve_bytes(x) != 0;
}

// Makes a collection. *any_out: there is something to collect.
static enum remixdb_status begin(struct xdb *x, enum collect_how how, bool *any_out) {
  bool due;
  *any_out = false;
  enum remixdb_status s = any_due(x, how, &due);
  if (!due || !may_begin(x, how)) return s;
  struct collecting *const c = mem_calloc(1, sizeof(*c));
  if (!c) return REMIXDB_NOMEM;
  c->mover.ctx = &x->value_ctx;
  x->collect.now = c;
  atomic_store_explicit(&x->collect.busy, true, memory_order_relaxed);
  s = value_mover_begin(&c->mover, compact_new_number(&x->compact, files_value_name));
  return s == REMIXDB_OK ? next_file(x, c, how, any_out) : s;
}

// ---- a record

// Looks the key's newest record in the tables of a tree up. *was_out: its reference, if that leads to the record at
// `at` of the file.
static enum remixdb_status look_up(const struct version *v, const struct version *tree, struct kref key,
                                   struct sst_hold *h, const struct value_file *f, uint64_t at, bool *live_out,
                                   struct value_ref *was_out) {
  struct kv_rec rec;
  const enum remixdb_status s = version_get(tree, key, h, &rec);
  if (s == REMIXDB_NOTFOUND || (s == REMIXDB_OK && !(rec.kind & KV_APART))) return REMIXDB_OK;
  if (s != REMIXDB_OK) return s;
  if (!value_ref_get(rec.val, rec.vlen, was_out))
    return err_set(REMIXDB_CORRUPT, "a record has a reference to a value that cannot be one");
  struct value_ref to = *was_out;
  *live_out = (to.file == f->number || value_moves_follow(&v->moves, &to) == f) && to.at == at;
  return s;
}

static enum remixdb_status is_live(struct xdb *x, struct collecting *c, struct epoch_slot *slot, uint64_t at,
                                   bool *live_out, struct value_ref *was_out) {
  enum remixdb_status s = REMIXDB_OK;
  *live_out = false;
  epoch_enter(&x->epoch, slot);
  const struct version *const v = xdb_super(x)->version;
  // The file does not tell to which tree a key belongs.
  for (const struct version *tree = v; tree && s == REMIXDB_OK && !*live_out; tree = tree->spaces)
    s = look_up(v, tree, c->pass.key, &c->hold, c->pass.f, at, live_out, was_out);
  epoch_exit(slot);
  return s;
}

static enum remixdb_status note(struct collecting *c, uint64_t number, uint64_t from, uint32_t was,
                                const struct value_ref *is) {
  if (c->nr == c->cap) {
    struct collected *const grown = mem_grow32(c->list, &c->cap, 256, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    c->list = grown;
  }
  c->list[c->nr++] = (struct collected){number, {from, is->at, was, is->check}, is->len};
  return REMIXDB_OK;
}

// Copies a live record. was: the reference that tables have to it (G2).
static enum remixdb_status copy(struct collecting *c, uint64_t at, const struct value_rec *rec,
                                const struct value_ref *was, bool *of_source_out) {
  const uint64_t number = c->pass.f->number;
  struct value_ref is;
  enum remixdb_status s = value_mover_copy(&c->mover, c->pass.f, at, rec, c->pass.key, &is, of_source_out);
  if (s == REMIXDB_OK) s = note(c, number, at, (uint32_t)rec->sum, &is);
  if (s == REMIXDB_OK && was->file != number) s = note(c, was->file, was->at, was->check, &is);
  if (s != REMIXDB_OK) return s;
  c->live += rec->vlen;
  value_pass_over(&c->pass, at, rec);
  return s;
}

// Passes over a piece of the file that is under way. *of_source_out: a failure is that of reading the file or a table.
static enum remixdb_status pass_piece(struct xdb *x, struct collecting *c, struct epoch_slot *slot,
                                      bool *of_source_out) {
  const uint64_t stop = c->pass.at + COLLECT_PIECE, before = c->mover.bytes;
  enum remixdb_status s = REMIXDB_OK;
  for (bool any = true; any && s == REMIXDB_OK && c->mover.bytes - before < COLLECT_PIECE;) {
    struct value_rec rec;
    struct value_ref was;
    uint64_t at;
    bool live;
    *of_source_out = true;
    s = value_pass_next(&c->pass, stop, &any, &at, &rec);
    if (s != REMIXDB_OK || !any || rec.index) continue;
    if ((s = is_live(x, c, slot, at, &live, &was)) != REMIXDB_OK) break;
    c->seen += rec.vlen;
    if (live) s = copy(c, at, &rec, &was, of_source_out);
  }
  return s;
}

// ---- the end

static int by_place(const void *a, const void *b) {
  const struct collected *const x = a, *const y = b;
  if (x->number != y->number) return x->number < y->number ? -1 : 1;
  return (x->moved.from > y->moved.from) - (x->moved.from < y->moved.from);
}

// Writes and makes the index of the references [from, to) of the list, which are to one file.
static enum remixdb_status make_index(struct collecting *c, uint32_t from, uint32_t to) {
  const uint64_t number = c->list[from].number;
  const uint64_t len = (uint64_t)(to - from) * VALUE_MOVED;
  if (len > UINT32_MAX)
    return err_set(REMIXDB_NOMEM, "the index of value file %llu is too large", (unsigned long long)number);
  uint8_t *const entries = mem_alloc((size_t)len);
  if (!entries) return REMIXDB_NOMEM;
  uint64_t bytes = 0;
  for (uint32_t i = from; i < to; i++) {
    value_moved_put(entries + (size_t)(i - from) * VALUE_MOVED, &c->list[i].moved);
    bytes += c->list[i].len;
  }
  struct value_ref ref;
  struct value_index *x;
  enum remixdb_status s = value_mover_index(&c->mover, number, entries, (uint32_t)len, &ref);
  if (s != REMIXDB_OK) {
    mem_free(entries);
    return s;
  }
  if ((s = value_index_make(c->mover.to, number, bytes, &ref, entries, &x)) != REMIXDB_OK) return s;
  s = value_moves_add(&c->made, x);
  value_index_unref(x);
  return s;
}

// All files are passed over: writes the rest. A round installs it.
static enum remixdb_status finish(struct xdb *x, struct collecting *c) {
  enum remixdb_status s = REMIXDB_OK;
  if (c->nr) qsort(c->list, c->nr, sizeof(*c->list), by_place);
  for (uint32_t i = 0, to; i < c->nr && s == REMIXDB_OK; i = to) {
    for (to = i + 1; to < c->nr && c->list[to].number == c->list[i].number;) to++;
    s = make_index(c, i, to);
  }
  if (c->nr == 0) value_mover_fini(&c->mover, true);
  else if (s == REMIXDB_OK) s = value_mover_end(&c->mover);
  if (s == REMIXDB_OK) atomic_store_explicit(&x->collect.ready, true, memory_order_relaxed);
  return s;
}

// Goes on with the next file, or with the end.
static enum remixdb_status next_or_finish(struct xdb *x, struct collecting *c, enum collect_how how) {
  bool any = false;
  const enum remixdb_status s = next_file(x, c, how, &any);
  if (s != REMIXDB_OK || any) return s;
  if (c->gone.nr) return finish(x, c);
  collecting_free(x, true);
  return s;
}

static enum remixdb_status skip_file(struct xdb *x, struct collecting *c, enum collect_how how) {
  leave_out(c);
  return next_or_finish(x, c, how);
}

// The disk is full. The files before the one that is under way make room if they go now. Where there is none, and the
// store needs room at once, it spends what it keeps for this, and begins with the file again (G4). Another failure is
// s.
static enum remixdb_status no_room(struct xdb *x, struct collecting *c, enum collect_how how, enum remixdb_status s) {
  if (c->gone.nr > 1) {
    leave_out(c);
    return finish(x, c);
  }
  struct err_saved why;
  err_save(&why, s);
  if (!wants_all(x, how) || !reserve_spend_work(x)) return err_raise(&why);
  return skip_file(x, c, how);
}

// The file that is under way is passed over, or is not worth it.
static enum remixdb_status end_file(struct xdb *x, struct collecting *c, enum collect_how how, bool worth) {
  struct value_file *const f = c->pass.f;
  const uint64_t all = atomic_load_explicit(&f->value_bytes, memory_order_relaxed);
  if (worth) {
    const enum remixdb_status s = value_mover_flush(&c->mover);  // now, while the file can still be left out
    if (s != REMIXDB_OK) return s == REMIXDB_NOSPACE ? no_room(x, c, how, s) : s;
    if (all > c->live) c->freed += all - c->live;
    value_pass_fini(&c->pass);
  } else {
    f->measured = (uint64_t)((double)all * (double)c->live / (double)c->seen);
    f->expected = c->expected;
    leave_out(c);
  }
  return next_or_finish(x, c, how);
}

// A pass does not see a record whose head is damaged. Tells whether there may be such a record that lives. Then the
// file has fewer bytes of values than were written to it, or nobody has counted those. And tables refer to more values
// than those that were found live.
static bool may_miss(struct xdb *x, const struct collecting *c) {
  const struct value_file *const f = c->pass.f;
  if (!f->uncounted && c->seen >= atomic_load_explicit(&f->value_bytes, memory_order_relaxed)) return false;
  xdb_lock(x);
  struct super *const v = xdb_super(x);
  super_ref(v);
  xdb_unlock(x);
  const uint64_t referred = live_referred(v->version, f);
  xdb_super_drop(x, v);
  return c->live < referred;
}

// The file cannot be collected: its garbage stays.
static enum remixdb_status stuck(struct xdb *x, struct collecting *c, enum collect_how how) {
  xdb_say(x, "%s: its garbage stays: %s", c->pass.f->path, err_msg());
  c->pass.f->stuck = true;
  return skip_file(x, c, how);
}

// The pass may have missed a live value. After a full compaction no record is hidden, so what is missing is damaged.
// Else hidden records may be what tables refer to besides, and a power cut may have taken bytes that were counted: the
// file is left out until less of it is expected to live.
static enum remixdb_status missed(struct xdb *x, struct collecting *c, enum collect_how how) {
  struct value_file *const f = c->pass.f;
  if (how == COLLECT_WHOLE || c->expected == 0) {
    (void)err_corrupt(f->path, 0, "the head of a value is damaged");
    return stuck(x, c, how);
  }
  f->measured = atomic_load_explicit(&f->value_bytes, memory_order_relaxed);
  f->expected = c->expected;
  return skip_file(x, c, how);
}

// A file whose live part is much larger than it seemed is left alone.
static bool is_worth(const struct xdb *x, const struct collecting *c, enum collect_how how) {
  if (wants_all(x, how) || c->seen == 0 || c->pass.at < c->pass.end / LOOK_PART) return true;
  return c->live < c->seen - c->seen / LOOK_SHARE;
}

// Goes on with the collection.
static enum remixdb_status go_on(struct xdb *x, struct epoch_slot *slot, enum collect_how how) {
  struct collecting *const c = x->collect.now;
  if (c->mover.written - c->synced >= COLLECT_SYNC) {
    c->synced = c->mover.written;
    return value_mover_sync(&c->mover);
  }
  // No table states the file any more: it goes without the collection.
  if (atomic_load_explicit(&c->pass.f->obsolete, memory_order_relaxed)) return skip_file(x, c, how);
  bool of_source = false;
  const enum remixdb_status s = pass_piece(x, c, slot, &of_source);
  if (s == REMIXDB_OK) {
    const bool worth = is_worth(x, c, how);
    if (worth && c->pass.at + VALUE_REC_HEAD <= c->pass.end) return s;
    return worth && may_miss(x, c) ? missed(x, c, how) : end_file(x, c, how, worth);
  }
  if (s == REMIXDB_NOSPACE) return no_room(x, c, how, s);
  if (!of_source || (s != REMIXDB_CORRUPT && s != REMIXDB_IO)) return s;
  return stuck(x, c, how);
}

// One piece of work, under the lock. Returns whether there is more before an install.
static bool step(struct xdb *x, struct epoch_slot *slot, enum collect_how how) {
  bool any = true;
  const bool ending = atomic_load_explicit(&x->collect.ending, memory_order_relaxed);
  if (ending || atomic_load_explicit(&x->failed, memory_order_relaxed) != 0) {
    err_cleanup_begin();
    collecting_free(x, true);
    err_cleanup_end();
    return false;
  }
  if (atomic_load_explicit(&x->collect.ready, memory_order_relaxed)) return false;
  const enum remixdb_status s = x->collect.now ? go_on(x, slot, how) : begin(x, how, &any);
  if (s != REMIXDB_OK) xdb_say(x, "a collection of garbage failed: %s", err_msg());
  if (s != REMIXDB_OK || (!any && x->collect.now)) {
    err_cleanup_begin();
    collecting_free(x, true);
    err_cleanup_end();
  }
  return s == REMIXDB_OK && any && x->collect.now && !atomic_load_explicit(&x->collect.ready, memory_order_relaxed);
}

// ---- installing

static void installed(struct xdb *x, const struct collecting *c) {
  struct value_file *const to = c->mover.to;
  if (to) to->measured = c->mover.bytes;  // all of it lives
  atomic_fetch_add_explicit(&x->collect.nr, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&x->collect.files, c->gone.nr, memory_order_relaxed);
  atomic_fetch_add_explicit(&x->collect.moved_bytes, c->mover.bytes, memory_order_relaxed);
  atomic_fetch_add_explicit(&x->collect.freed_bytes, c->freed, memory_order_relaxed);
}

// Tells whether the store's version has the new file. It has not if no table states a collected file any more.
static bool is_needed(struct xdb *x, const struct value_file *to) {
  xdb_lock(x);
  const bool needed = to && value_set_find(&xdb_super(x)->version->values, to->number) == to;
  xdb_unlock(x);
  return needed;
}

// In a round's thread, when no round is under way (G2).
static void install(struct xdb *x) {
  (void)pthread_mutex_lock(&x->collect.lock);
  struct collecting *const c = x->collect.now;
  if (c && atomic_load_explicit(&x->collect.ready, memory_order_relaxed)) {
    const struct values_moved moved = {&c->gone, &c->made};
    enum remixdb_status s = xdb_failure(x);
    const bool tried = s == REMIXDB_OK;
    if (tried) s = install_moved(x, &moved);
    if (s == REMIXDB_NOSPACE && reserve_spend(x)) s = install_moved(x, &moved);  // it frees more than CURRENT takes
    const bool again = s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM;
    if (s == REMIXDB_OK) installed(x, c);
    else if (tried) xdb_say(x, "a collection of garbage could not be installed: %s", err_msg());
    x->collect.again_ns = again ? time_ns() + AGAIN_NS : 0;
    if (tried && s != REMIXDB_OK && !again) {
      struct err_saved why;
      err_save(&why, s);
      xdb_fail(x, &why);
    }
    err_cleanup_begin();
    // After a failure that does not tell which CURRENT is on disk the new file stays.
    collecting_free(x, s == REMIXDB_OK ? !is_needed(x, c->mover.to) : again || !tried);
    err_cleanup_end();
  }
  (void)pthread_mutex_unlock(&x->collect.lock);
  xdb_lock(x);
  xdb_unlock_changed(x);
}

// ---- the threads that collect

static void ask(struct xdb *x) {
  atomic_store_explicit(&x->collect.asked, true, memory_order_relaxed);
  idle_ask(x);
}

// Bytes that were written to value files.
static uint64_t written(const struct xdb *x) {
  return atomic_load_explicit(&x->values.file_bytes, memory_order_relaxed) +
         atomic_load_explicit(&x->compact.values.file_bytes, memory_order_relaxed);
}

// Collects about as much as the writers have written since the last time, and installs it. If room is needed at once,
// at least one collection.
static void pay(struct xdb *x, struct epoch_slot *slot) {
  (void)pthread_mutex_lock(&x->collect.lock);
  const uint64_t now = written(x);
  uint64_t pieces = 1 + PAID_TIMES * (now - x->collect.paid) / COLLECT_PIECE;
  x->collect.paid = now;
  bool urgent = is_urgent(x);
  for (bool more = true; more && (pieces || urgent); pieces -= pieces != 0) {
    more = step(x, slot, COLLECT_IDLE);
    if (!atomic_load_explicit(&x->collect.ready, memory_order_relaxed)) continue;
    urgent = false;
    (void)pthread_mutex_unlock(&x->collect.lock);
    install(x);
    (void)pthread_mutex_lock(&x->collect.lock);
    more = true;
  }
  (void)pthread_mutex_unlock(&x->collect.lock);
}

void collect_urgently(struct xdb *x) {
  atomic_store_explicit(&x->collect.urgent, true, memory_order_relaxed);
  if (workers_count(x->workers)) ask(x);
  else workers_kick(x->workers);
}

void collect_round(struct xdb *x, struct worker *w) {
  const bool idle = workers_count(x->workers) != 0;  // idle workers collect
  if (atomic_load_explicit(&x->collect.ready, memory_order_relaxed)) install(x);
  if (look(x)) values_turn(x);
  if (!idle || value_pace_far(x)) pay(x, &w->slot);
  if (idle) ask(x);
}

bool collect_pending(const struct xdb *x) {
  return x->workers && workers_count(x->workers) &&
         // acquire: pairs with the release in collect_idle, which comes after `busy`
         (atomic_load_explicit(&x->collect.asked, memory_order_acquire) ||
          atomic_load_explicit(&x->collect.busy, memory_order_relaxed));
}

void collect_opened(struct xdb *x) {
  const uint64_t ns = atomic_load_explicit(&x->garbage_merges.rest_ns, memory_order_relaxed);
  if (!x->workers || workers_count(x->workers) == 0) return;
  atomic_store_explicit(&x->collect.look_ns, time_ns() + ns, memory_order_relaxed);
  idle_later(x, ns);
}

// Tells whether the time of the look has come that follows the opening. For idle work.
static bool look_due(struct xdb *x) {
  const uint64_t at = atomic_load_explicit(&x->collect.look_ns, memory_order_relaxed);
  if (likely(at == 0)) return false;
  const uint64_t now = time_ns();
  if (now < at) idle_later(x, at - now);  // other work had an earlier time
  return now >= at;
}

// The look after the opening: the step that follows does not read if there is nothing to collect. collect.lock is held.
static bool may_be_due(struct xdb *x) {
  bool due;
  return any_due(x, COLLECT_GUESS, &due) != REMIXDB_OK || due;  // the step tells why it fails
}

bool collect_idle(struct xdb *x, struct epoch_slot *slot) {
  const bool look = look_due(x), asked = atomic_load_explicit(&x->collect.asked, memory_order_relaxed);
  if (!look && !asked) return false;
  // Another thread that collects goes on until nothing is left.
  if (pthread_mutex_trylock(&x->collect.lock) != 0) return false;
  atomic_store_explicit(&x->collect.busy, true, memory_order_relaxed);
  atomic_store_explicit(&x->collect.asked, false, memory_order_release);  // a round may ask again meanwhile
  const bool wanted = asked || may_be_due(x);
  if (look) atomic_store_explicit(&x->collect.look_ns, 0, memory_order_release);  // with `busy`, for tests that wait
  const bool more = wanted && step(x, slot, COLLECT_IDLE),
             ready = atomic_load_explicit(&x->collect.ready, memory_order_relaxed);
  if (more) atomic_store_explicit(&x->collect.asked, true, memory_order_relaxed);
  atomic_store_explicit(&x->collect.busy, x->collect.now != NULL, memory_order_relaxed);
  (void)pthread_mutex_unlock(&x->collect.lock);
  if (ready) workers_kick(x->workers);
  if (!more) {
    xdb_lock(x);
    xdb_unlock_changed(x);
  }
  return more;
}

// Waits until a round has installed what is ready.
static void wait_installed(struct xdb *x) {
  workers_kick(x->workers);
  xdb_lock(x);
  while (atomic_load_explicit(&x->collect.ready, memory_order_relaxed)) xdb_lock_wait(x, WAIT_NS);
  xdb_unlock(x);
}

enum remixdb_status collect_all(struct xdb *x, const struct progress *p, const char *what, uint64_t done,
                                uint64_t total) {
  struct epoch_slot slot;
  enum remixdb_status s = REMIXDB_OK;
  uint64_t left = 0;
  xdb_lock(x);
  for (uint32_t i = 0; i < xdb_super(x)->version->values.nr; i++)
    left += 2 * value_file_size(xdb_super(x)->version->values.files[i]) + 8 * COLLECT_PIECE;
  xdb_unlock(x);
  epoch_join(&x->epoch, &slot);
  uint64_t pieces = 16 + left / COLLECT_PIECE;  // writers make garbage meanwhile: the call ends nevertheless
  for (bool more = true; more && s == REMIXDB_OK && pieces--;) {
    (void)pthread_mutex_lock(&x->collect.lock);
    more = step(x, &slot, COLLECT_WHOLE);
    const bool ready = atomic_load_explicit(&x->collect.ready, memory_order_relaxed);
    (void)pthread_mutex_unlock(&x->collect.lock);
    if (ready) wait_installed(x);
    more = more || ready;
    s = progress_report(p, what, done, total);
  }
  epoch_leave(&x->epoch, &slot);
  if (collect_pending(x)) ask(x);  // an idle worker that found the lock held has gone
  return s;
}

void collect_stop(struct xdb *x) { atomic_store_explicit(&x->collect.ending, true, memory_order_relaxed); }

void collect_fini(struct xdb *x) { collecting_free(x, true); }

bool collect_has(const struct xdb *x, uint64_t number) {
  const struct collecting *const c = x->collect.now;
  return c && ((c->mover.to && c->mover.to->number == number) || value_set_find(&c->gone, number));
}

// ---- figures

void collect_measure(struct xdb *x, struct collect_figures *out) {
  xdb_lock(x);
  struct super *const v = xdb_super(x);
  super_ref(v);
  xdb_unlock(x);
  const struct value_set *const files = &v->version->values;
  const struct value_moves *const moves = &v->version->moves;
  uint64_t *const live = mem_array(files->nr ? files->nr : 1, sizeof(*live), 0);
  *out = (struct collect_figures){.indexes = moves->nr, .index_memory = value_moves_memory(moves)};
  if (live && live_values(v->version, live) == REMIXDB_OK) {
    for (uint32_t i = 0; i < files->nr; i++) {
      const uint64_t bytes = atomic_load_explicit(&files->files[i]->value_bytes, memory_order_relaxed);
      out->files++;
      out->file_bytes += value_file_size(files->files[i]);
      out->value_bytes += bytes;
      if (values_settled(x, files->files[i]) && live[i] < bytes) out->garbage_bytes += bytes - live[i];
    }
  }
  mem_free(live);
  xdb_super_drop(x, v);
}
