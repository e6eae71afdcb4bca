// SPDX-License-Identifier: Apache-2.0
//
// Reading a log: recovery and verification.
#include "log/reader.h"

#include "base/files.h"

#include <stdio.h>
#include <stdlib.h>

// ---- recovery

// Replays frames up to `limit` (the segment's final length, or its file's size). *end_out: where the first broken frame
// begins, or limit. *durable_out: the largest durable offset that one of them states.
static enum remixdb_status wal_replay(struct wal_reader *r, uint64_t limit, wal_replay_fn fn, void *arg, uint64_t *seq,
                                      struct wal_recovery *rec, uint64_t *end_out, uint64_t *durable_out) {
  const struct wal_seg *const seg = r->seg;
  uint64_t off = WAL_HEAD;
  enum remixdb_status s = REMIXDB_OK;
  *durable_out = 0;
  while (limit - off >= WAL_FRAME_HEAD) {
    const uint8_t *p;
    size_t nr;
    struct wal_frame f;
    s = wal_reader_get(r, off, WAL_FRAME_HEAD, &p, &nr);
    if (s != REMIXDB_OK) return s;
    if (nr < WAL_FRAME_HEAD || !wal_frame_get(p, &seg->key, off, &f) || f.first_seq != *seq + 1) break;
    const size_t size = WAL_FRAME_HEAD + (size_t)f.len;
    if (size > limit - off || size > seg->size - off) break;
    // memory is not taken for what was never written: of no record so much is zero
    if (size > WAL_WINDOW && env_is_hollow(r->env, seg->fd, off, off + size, WAL_HOLE)) break;
    s = wal_reader_get(r, off, size, &p, &nr);
    if (s != REMIXDB_OK) return s;
    if (nr < size || wal_frame_sum(&seg->key, off, p, f.len) != f.sum) break;
    p += WAL_FRAME_HEAD;
    if (!wal_frame_decodes(&f, p)) break;
    const uint8_t *const end = p + f.len;
    for (uint32_t i = 0; i < f.count; i++) {
      struct kv_rec kv;
      p = kv_rec_get(p, end, &kv);
      s = fn ? fn(arg, *seq + 1, &kv) : REMIXDB_OK;
      if (s != REMIXDB_OK) return s;
      ++*seq;
    }
    off += size;
    if (f.durable > *durable_out) *durable_out = f.durable;
    rec->nr_frames++;
    rec->nr_records += f.count;
    rec->bytes += size;
  }
  *end_out = off;
  return REMIXDB_OK;
}

// What is lost where the segment broke at `at`, behind sequence number seq. next: the segment after it, or NULL;
// level_end: as in struct wal_break.
static enum remixdb_status wal_broken(struct wal_reader *r, const struct wal_seg *seg, uint64_t at, uint64_t limit,
                                      uint64_t seq, const struct wal_seg *next, uint64_t level_end,
                                      struct wal_loss *out) {
  const struct wal_break b = {.off = at,
                              .limit = limit < seg->size ? limit : seg->size,
                              .seq = seq,
                              .upto = next ? next->h.last_seq : UINT64_MAX,
                              .level_end = level_end};
  uint64_t whole;
  wal_reader_aim(r, seg);
  return wal_hole(r, &b, out, &whole);
}

// The segment broke at `at`, behind sequence number seq. REMIXDB_OK: nothing says that this was durable, it is a torn
// tail. `top`: the segment after it, or NULL.
static enum remixdb_status wal_judge(struct wal_reader *r, const struct wal_seg *seg, uint64_t at, uint64_t limit,
                                     uint64_t seq, const struct wal_seg *top, struct wal_recovery *rec) {
  struct wal_heads heads, after;
  struct wal_loss lost;
  wal_reader_aim(r, seg);
  enum remixdb_status s = wal_scan(r, &seg->key, at, limit < seg->size ? limit : seg->size, &heads);
  if (s != REMIXDB_OK) return s;
  const uint64_t durable = top && top->h.prev_durable > heads.durable ? top->h.prev_durable : heads.durable;
  if (durable > at) {
    if ((s = wal_broken(r, seg, at, limit, seq, top, 0, &lost)) != REMIXDB_OK) return s;
    return wal_lost(&lost, "broken frame; the log says later on that all before %llu was durable",
                    (unsigned long long)durable);
  }
  rec->cut_bytes += top ? limit - at : heads.end - at;
  if (!top) return REMIXDB_OK;
  wal_reader_aim(r, top);
  if ((s = wal_scan(r, &top->key, WAL_HEAD, top->size, &after)) != REMIXDB_OK) return s;
  if (after.durable > 0) {
    if ((s = wal_broken(r, seg, at, limit, seq, top, 0, &lost)) != REMIXDB_OK) return s;
    return wal_lost(&lost, "broken frame; the next segment, %s, was synced after this one", top->path);
  }
  rec->cut_bytes += after.end - WAL_HEAD;
  return REMIXDB_OK;
}

// Looks in a file without a header for frames of the generation. *out: as of wal_scan from WAL_HEAD on.
static enum remixdb_status wal_scan_headless(struct wal *w, struct wal_seg *seg, uint64_t gen, struct wal_heads *out) {
  struct wal_reader r = {.env = w->env};
  const struct wal_key k = wal_key(w->store_id, gen);
  *out = (struct wal_heads){.end = WAL_HEAD};
  enum remixdb_status s = env_open(w->dir, wal_seg_name(seg), ENV_READ, &seg->fd);
  if (s == REMIXDB_NOTFOUND) return REMIXDB_OK;
  if (s != REMIXDB_OK) return s;
  wal_reader_aim(&r, seg);
  s = wal_scan(&r, &k, WAL_HEAD, seg->size, out);
  env_close_quiet(w->env, seg->fd);
  seg->fd = -1;
  mem_free(r.buf);
  return s;
}

// The newest segment's header may be what is damaged; then nothing leads to it. A crash can lose a header too, but not
// one that a frame behind it calls durable. `newest`: the largest generation a header has; the next one to begin has at
// most two more.
static enum remixdb_status wal_judge_headless(struct wal *w, struct wal_seg *seg, uint64_t newest) {
  for (uint64_t gen = newest + 1; gen <= newest + 2; gen++) {
    struct wal_heads heads;
    const enum remixdb_status s = wal_scan_headless(w, seg, gen, &heads);
    if (s != REMIXDB_OK) return s;
    if (heads.durable > 0) {
      return err_corrupt(seg->path, 0,
                         "broken header of a segment; its frames, of generation %llu, say that it was durable",
                         (unsigned long long)gen);
    }
  }
  return REMIXDB_OK;
}

// A segment that must be there has no header in any file: tells which file it is, if its frames do. `why`: who needs
// it.
static enum remixdb_status wal_missing(struct wal *w, struct wal_seg **all, size_t nr, uint64_t gen, const char *why) {
  const struct wal_seg *headless = NULL;
  for (size_t i = 0; i < nr; i++) {
    struct wal_heads heads;
    if (!all[i] || all[i]->headed) continue;
    headless = all[i];
    const enum remixdb_status s = wal_scan_headless(w, all[i], gen, &heads);
    if (s != REMIXDB_OK) return s;
    if (heads.end > WAL_HEAD) {
      return err_corrupt(headless->path, 0, "broken header of a segment; its frames are of generation %llu (%s)",
                         (unsigned long long)gen, why);
    }
  }
  return err_set(REMIXDB_CORRUPT, "%s: the log's generation %llu is missing (%s)%s%s", w->dir->path,
                 (unsigned long long)gen, why, headless ? "; without a header is " : "",
                 headless ? headless->path : "");
}

// Puts the chain of segments that must be replayed, oldest first, into w->segs and their entries in `all` to NULL. The
// chain is what the newest header leads back to; a segment that an earlier recovery cut is not in it, because the one
// begun then names the one before.
static enum remixdb_status wal_chain(struct wal *w, struct wal_seg **all, size_t nr, uint64_t oldest) {
  for (size_t i = 1; i < nr; i++) {
    if (all[i - 1]->headed && all[i]->h.gen >= oldest && all[i]->h.gen == all[i - 1]->h.gen)
      return err_corrupt(all[i]->path, 24, "generation %llu is in %s too", (unsigned long long)all[i]->h.gen,
                         all[i - 1]->path);
  }
  uint64_t gen = nr > 0 && all[nr - 1]->headed && all[nr - 1]->h.gen > oldest ? all[nr - 1]->h.gen : oldest;
  for (size_t i = nr;;) {
    while (i > 0 && all[i - 1]->headed && all[i - 1]->h.gen > gen) i--;
    if (i == 0 || !all[i - 1]->headed || all[i - 1]->h.gen != gen) {
      char why[64];
      (void)snprintf(why, sizeof(why), "from %llu on they are needed", (unsigned long long)oldest);
      return wal_missing(w, all, nr, gen, why);
    }
    struct wal_seg *const seg = all[--i];
    all[i] = NULL;
    seg->next = w->segs;
    w->segs = seg;
    if (gen == oldest) return REMIXDB_OK;
    if (seg->h.prev_len == 0 || seg->h.prev_gen < oldest) {
      return err_set(REMIXDB_CORRUPT, "%s: the log's generation %llu is missing (%s does not lead to it)", w->dir->path,
                     (unsigned long long)oldest, seg->path);
    }
    gen = seg->h.prev_gen;
  }
}

// Not all at once: there may be more than a process may have open.
static enum remixdb_status wal_seg_open(struct wal *w, struct wal_seg *seg) {
  if (seg->fd >= 0) return REMIXDB_OK;
  const enum remixdb_status s = env_open(w->dir, wal_seg_name(seg), w->read_only ? ENV_READ : ENV_READ | ENV_WRITE,
                                          &seg->fd);
  return s == REMIXDB_NOTFOUND ? err_set(REMIXDB_IO, "%s: removed while it was being recovered", seg->path) : s;
}

static void wal_seg_close(struct wal *w, struct wal_seg *seg) {
  env_close_quiet(w->env, seg->fd);
  seg->fd = -1;
}

// Replays w->segs and cuts it to what was replayed. *seq: in, the number before; out, the last.
static enum remixdb_status wal_recover(struct wal *w, wal_replay_fn fn, void *arg, uint64_t *seq,
                                       struct wal_recovery *rec) {
  struct wal_reader r = {.env = w->env};
  enum remixdb_status s = REMIXDB_OK;
  // The highest watermark: the watermarks of one log are of one truth, and what the highest says of older segments is
  // all of it.
  const struct wal_seg *top = NULL, *last = NULL;
  for (const struct wal_seg *seg = w->segs; seg; seg = seg->next) {
    const bool higher = seg->level.gen && (!top || seg->level.gen > top->level.gen ||
                                         (seg->level.gen == top->level.gen && seg->level.end > top->level.end));
    if (higher) top = seg;
    last = seg;
  }
  const struct wal_level level = top ? top->level : (struct wal_level){0};
  if (level.gen > last->h.gen) {
    const struct wal_loss lost = {.path = top->path, .off = WAL_LEVEL, .gen = level.gen};
    s = wal_lost(&lost, "the log's generation %llu is missing; it was durable up to %llu",
                  (unsigned long long)level.gen, (unsigned long long)level.end);
    goto out;
  }
  for (struct wal_seg *seg = w->segs; seg; seg = seg->next) {
    struct wal_loss lost;
    if (seg->h.last_seq != *seq) {
      lost = (struct wal_loss){
          .path = seg->path, .off = 56, .gen = seg->h.gen, .first_seq = *seq + 1, .last_seq = seg->h.last_seq};
      s = wal_lost(&lost, "the segment follows sequence number %llu, the store is at %llu",
                    (unsigned long long)seg->h.last_seq, (unsigned long long)*seq);
      goto out;
    }
    struct wal_seg *const next = seg->next;
    const uint64_t limit = next ? next->h.prev_len : seg->size;
    wal_reader_aim(&r, seg);
    s = wal_seg_open(w, seg);
    if (s == REMIXDB_OK) s = wal_replay(&r, limit, fn, arg, seq, rec, &seg->end, &seg->durable);
    if (s != REMIXDB_OK) goto out;
    rec->nr_segments++;
    w->active = seg;
    if (level.gen == seg->h.gen && level.end > seg->durable) seg->durable = level.end;
    if (next && next->h.prev_durable > seg->durable) seg->durable = next->h.prev_durable;
    const bool whole = next && seg->end == limit;
    if (level.gen == seg->h.gen ? seg->end < level.end : level.gen > seg->h.gen && !whole) {
      s = wal_broken(&r, seg, seg->end, limit, *seq, next, level.gen == seg->h.gen ? level.end : 0, &lost);
      if (s == REMIXDB_OK) s = wal_lost(&lost, "broken frame; by the watermark in %s this was durable", top->path);
      goto out;
    }
    if (whole) {
      wal_seg_close(w, seg);
      continue;
    }
    if (next && next->next) {  // the one after next began when the header of next was durable, and so all of this one
      s = wal_broken(&r, seg, seg->end, limit, *seq, next, 0, &lost);
      if (s == REMIXDB_OK) s = wal_lost(&lost, "broken frame; the log goes on for more than one segment after it");
      goto out;
    }
    if (next) s = wal_seg_open(w, next);
    if (s == REMIXDB_OK) s = wal_judge(&r, seg, seg->end, limit, *seq, next, rec);
    if (s != REMIXDB_OK) goto out;
    seg->next = NULL;
    if (next) {
      env_close_quiet(w->env, next->fd);
      next->fd = -1;
      next->alloc = next->size;
      wal_pool_add(w, next);
    }
    break;
  }
out:
  mem_free(r.buf);
  return s;
}

// Writes bytes [from, seg->end) of the segment once more, as they are.
static enum remixdb_status wal_write_again(struct wal *w, const struct wal_seg *seg, uint64_t from) {
  if (from >= seg->end) return REMIXDB_OK;
  uint8_t *const buf = mem_alloc(WAL_WINDOW);
  enum remixdb_status s = buf ? REMIXDB_OK : REMIXDB_NOMEM;
  for (uint64_t off = from; off < seg->end && s == REMIXDB_OK; off += WAL_WINDOW) {
    const size_t n = seg->end - off < WAL_WINDOW ? (size_t)(seg->end - off) : WAL_WINDOW;
    s = env_read(w->env, seg->fd, seg->path, buf, n, off);
    if (s == REMIXDB_OK) s = env_write(w->env, seg->fd, seg->path, buf, n, off);
  }
  mem_free(buf);
  return s;
}

// The segment's file ends where what was replayed of it does.
static enum remixdb_status wal_cut(struct wal *w, struct wal_seg *seg) {
  if (seg->shared) return REMIXDB_OK;
  const enum remixdb_status s = env_truncate(w->env, seg->fd, seg->path, seg->end);
  if (s == REMIXDB_OK) seg->size = seg->end;
  return s;
}

// Gives the segment a file of its own where the one it is in has another name as well: what is there under that name is
// never written to. As much of it as was replayed.
static enum remixdb_status wal_seg_unshare(struct wal *w, struct wal_seg *seg) {
  int fd = -1;
  if (!seg->shared) return REMIXDB_OK;
  enum remixdb_status s = env_create(w->dir, FILES_CURRENT_TMP, ENV_READ | ENV_WRITE,
                                      &fd);  // a name that the next opening removes
  if (s == REMIXDB_OK) s = env_copy(w->env, seg->fd, seg->path, fd, seg->path, seg->end);
  if (s == REMIXDB_OK) s = env_sync_all(w->env, fd, seg->path);
  if (s == REMIXDB_OK) s = env_rename(w->dir, FILES_CURRENT_TMP, w->dir, wal_seg_name(seg));
  if (s == REMIXDB_OK) s = env_sync_dir(w->dir);
  if (s != REMIXDB_OK) {
    env_close_quiet(w->env, fd);
    return s;
  }
  wal_seg_close(w, seg);
  seg->fd = fd;
  seg->shared = false;
  seg->size = seg->end;
  return REMIXDB_OK;
}

// What was replayed may be in the system's memory only (after the death of a process alone): it is made durable before
// anything is put behind it. A sync does not do that for pages whose writing has failed before: the system calls them
// clean. So what nothing proves to be on disk is written again. A segment of which anything is durable proves it of all
// before it (L5). `keep`, when it is not NULL, stays as it is, and open.
static enum remixdb_status wal_sync_replayed(struct wal *w, const struct wal_seg *keep) {
  const struct wal_seg *proven = NULL;
  for (const struct wal_seg *seg = w->segs; seg; seg = seg->next)
    if (seg->durable) proven = seg;
  for (struct wal_seg *seg = w->segs; seg; seg = seg->next) {
    const bool all = proven && seg->h.gen < proven->h.gen;
    enum remixdb_status s = wal_seg_open(w, seg);
    if (s == REMIXDB_OK && !all && seg->durable < seg->end) s = wal_seg_unshare(w, seg);
    if (s == REMIXDB_OK && !all && !seg->shared) s = wal_write_again(w, seg, seg->durable);
    if (s == REMIXDB_NOSPACE)
      s = REMIXDB_OK;  // of a file system that never writes in place, as in wal_mark; a full disk must not keep the
                        // store closed
    // room that nothing is appended to any more
    if (s == REMIXDB_OK && seg != keep && seg->size > align_up(seg->end, WAL_PAGE)) s = wal_cut(w, seg);
    if (s == REMIXDB_OK) s = env_sync_all(w->env, seg->fd, seg->path);
    if (s != REMIXDB_OK) return s;
    seg->alloc = seg->size;
    seg->durable = seg->end;
    if (seg != keep) wal_seg_close(w, seg);
  }
  return REMIXDB_OK;
}

// The segment that appends can go to as it is, or NULL. It is empty, no frame of its generation lies behind its header,
// and there is no file but the chain's: so nothing that was cut, and no segment whose header a crash took, can ever be
// taken for what is appended now, or for the segment after it.
static struct wal_seg *wal_reusable(struct wal *w, const struct wal_recovery *rec) {
  struct wal_seg *const seg = w->active;
  const bool alone = atomic_load_explicit(&w->nr_pooled, memory_order_relaxed) == 0 && rec->cut_bytes == 0;
  return seg && alone && !seg->shared && seg->end == WAL_HEAD && seg->size <= w->limit / 2 && seg->size <= WAL_PREALLOC ? seg
                                                                                                              : NULL;
}

// The disk has no room for another segment: appends go to the last one, with what was behind its end cut off, and with
// all files gone that could have what would follow it. So the same holds as above.
static enum remixdb_status wal_go_on(struct wal *w) {
  struct wal_seg *const seg = w->active;
  if (seg->shared)
    return err_set(REMIXDB_NOSPACE, "%s: the last segment has another name as well, and there is no room for one more",
                   seg->path);
  enum remixdb_status s = wal_trim(w, 0);
  if (s == REMIXDB_OK) s = env_sync_dir(w->dir);
  if (s == REMIXDB_OK) s = wal_seg_open(w, seg);
  if (s == REMIXDB_OK && seg->size > seg->end) s = wal_cut(w, seg);
  if (s == REMIXDB_OK) s = env_sync_all(w->env, seg->fd, seg->path);
  if (s != REMIXDB_OK) return s;
  // as much as there is, for deletes; what comes later asks for its own
  for (uint64_t room = WAL_FIRST; room >= WAL_PAGE; room /= 2) {
    const uint64_t to = align_up(seg->end + room, WAL_PAGE);
    if (env_allocate(w->env, seg->fd, seg->path, seg->size, to - seg->size) != REMIXDB_OK) continue;
    seg->size = to;
    break;
  }
  wal_adopt(w, seg);
  return REMIXDB_OK;
}

// Where appends go after what was replayed.
static enum remixdb_status wal_begin_after(struct wal *w, uint64_t gen, const struct wal_recovery *rec) {
  struct wal_seg *const last = w->active, *const keep = wal_reusable(w, rec);
  enum remixdb_status s = wal_sync_replayed(w, keep);
  if (s != REMIXDB_OK) return s;
  if (keep) {
    wal_adopt(w, keep);
    return REMIXDB_OK;
  }
  const uint64_t len = last ? last->end : 0;
  const struct wal_head h = {.store_id = w->store_id,
                             .gen = gen,
                             .prev_gen = last ? last->h.gen : 0,
                             .prev_len = len,
                             .prev_durable = len,
                             .last_seq = rec->last_seq};
  s = wal_begin_segment(w, &h);
  if (s == REMIXDB_NOSPACE && last) s = wal_go_on(w);
  if (s != REMIXDB_OK) return s;
  if (wal_trim(w, WAL_POOL) != REMIXDB_OK) {
    // what cannot be removed now is tried again with each release
  }
  return REMIXDB_OK;
}

// Files that are there before the store is were left by a creation that did not end. Their frames may bear the
// generation and the id that this one begins with, so they are not recycled.
static enum remixdb_status wal_remove_all(struct wal *w, struct wal_seg **all, size_t nr) {
  enum remixdb_status s = REMIXDB_OK;
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    if (!all[i]->foreign && (s = env_unlink(w->dir, wal_seg_name(all[i]))) != REMIXDB_OK) break;
    if (all[i]->foreign) wal_foreign_add(w, all[i]);
    else wal_seg_destroy(w, all[i]);
    all[i] = NULL;
  }
  return s != REMIXDB_OK || nr == 0 ? s : env_sync_dir(w->dir);
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
  if (s != REMIXDB_OK) goto out;
  if (!fresh) {
    const uint64_t newest = nr > 0 && all[nr - 1]->headed ? all[nr - 1]->h.gen : 0;
    if (!o->read_only && newest > WAL_NUMBER_MAX - 2) {
      s = err_set(REMIXDB_CORRUPT, "%s: the log's generations have run out at %llu; it can be opened with read_only",
                   o->dir->path, (unsigned long long)newest);
      goto out;
    }
    gen = newest + 2;  // frames of the generation between may be there, their header lost; they must not become valid
    s = wal_chain(w, all, nr, oldest_gen);
    for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
      if (all[i] && !all[i]->headed) s = wal_judge_headless(w, all[i], newest);
    }
    if (s == REMIXDB_OK) s = wal_recover(w, replay, arg, &rec.last_seq, &rec);
    if (s == REMIXDB_OK && o->replayed) s = o->replayed(arg);
    if (s != REMIXDB_OK) goto out;
  } else if (!o->read_only) {
    s = wal_remove_all(w, all, nr);
    if (s != REMIXDB_OK) goto out;
  }
  for (size_t i = 0; i < nr; i++) {
    if (all[i]) all[i]->alloc = all[i]->size;
    if (all[i] && all[i]->foreign) wal_foreign_add(w, all[i]);
    else if (all[i]) wal_pool_add(w, all[i]);
    all[i] = NULL;
  }
  w->seq = rec.last_seq;
  w->st.records = rec.last_seq;
  w->st.segments = rec.nr_segments;
  atomic_store_explicit(&w->durable_seq, rec.last_seq, memory_order_relaxed);
  if (o->read_only) {
    atomic_store_explicit(&w->gen, w->active ? w->active->h.gen : oldest_gen, memory_order_relaxed);
  } else {
    s = wal_begin_after(w, gen, &rec);
  }
out:
  for (size_t i = 0; i < nr; i++) wal_seg_destroy(w, all[i]);
  mem_free(all);
  if (rec_out) *rec_out = rec;
  if (s == REMIXDB_OK) *out = w;
  else wal_destroy(w);
  return s;
}

// ---- verifying

// The oldest segment of a generation >= gen, as a copy to read from: its number, its generation and how far it is
// durable. NULL: there is none.
static enum remixdb_status wal_seg_copy(struct wal *w, uint64_t gen, struct wal_seg **out) {
  struct wal_seg *const c = wal_seg_create(w->dir, UINT32_MAX);  // room for any number
  *out = NULL;
  if (!c) return REMIXDB_NOMEM;
  lib_lock(&w->lock);
  const struct wal_seg *i = w->segs;
  while (i && i->h.gen < gen) i = i->next;
  if (i) {
    c->nr = i->nr;
    c->h = i->h;
    c->durable = i->durable;
    memcpy(c->path, i->path, strlen(i->path) + 1);
  }
  lib_unlock(&w->lock);
  if (i) *out = c;
  else wal_seg_destroy(w, c);
  return REMIXDB_OK;
}

static enum remixdb_status wal_seg_verify(struct wal *w, struct wal_seg *seg, wal_replay_fn fn, void *arg,
                                          struct wal_recovery *seen) {
  struct wal_reader r = {.env = w->env};
  struct wal_recovery rec = {0};
  const uint64_t durable = seg->durable, gen = seg->h.gen;
  uint64_t seq = seg->h.last_seq, end = 0, said;
  enum remixdb_status s = wal_head_read(w, seg);
  if (s == REMIXDB_OK && (!seg->headed || seg->h.gen != gen))
    s = err_corrupt(seg->path, 0, "broken header of a segment that is in use");
  if (s == REMIXDB_OK) s = env_open(w->dir, wal_seg_name(seg), ENV_READ, &seg->fd);
  if (s == REMIXDB_NOTFOUND) s = err_corrupt(seg->path, 0, "is missing");
  if (s == REMIXDB_OK) {
    wal_reader_aim(&r, seg);
    s = wal_replay(&r, durable, fn, arg, &seq, &rec, &end, &said);
  }
  if (s == REMIXDB_OK && end != durable)
    s = err_corrupt(seg->path, end, "broken frame; all before %llu was durable", (unsigned long long)durable);
  if (seen) {
    seen->nr_records += rec.nr_records;
    seen->nr_frames += rec.nr_frames;
    seen->nr_segments++;
    seen->bytes += end;
  }
  mem_free(r.buf);
  return s;
}

enum remixdb_status wal_verify(struct wal *w, wal_replay_fn fn, void *arg, struct wal_recovery *seen) {
  for (uint64_t gen = 0;;) {
    struct wal_seg *seg, *again;
    enum remixdb_status s = wal_seg_copy(w, gen, &seg);
    if (s != REMIXDB_OK || !seg) return s;
    const uint64_t mine = seg->h.gen;
    struct err_saved why = {.status = REMIXDB_OK};
    if (seg->durable) {
      s = wal_seg_verify(w, seg, fn, arg, seen);
      err_save(&why, s);
    }
    wal_seg_destroy(w, seg);
    if (s != REMIXDB_OK) {  // was it still the same segment at the end?
      const enum remixdb_status copied = wal_seg_copy(w, mine, &again);
      if (copied != REMIXDB_OK) return copied;
      const bool there = again && again->h.gen == mine;
      wal_seg_destroy(w, again);
      if (there) return err_raise(&why);
    }
    gen = mine + 1;
  }
}
