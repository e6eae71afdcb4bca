// SPDX-License-Identifier: Apache-2.0
//
// Reading a log's segments: recovery, and verification while the log is in use.
#include "log/recover.h"

#include <assert.h>
#include <stdio.h>

#include "base/files.h"
#include "log/reader.h"
#include "log/segments.h"

// ---- replaying one segment

// The results of a replay.
struct wal_replayed {
  uint64_t end;      // the offset of the earliest broken frame, or the limit
  uint64_t durable;  // the largest durable offset that a frame states
  uint64_t frames;   // the sum of the frames' checksums
  bool over;         // a whole frame goes on after the limit: no crash leaves that
  // Why the frame at `end` is broken, if a value to which it refers is not whole; else status REMIXDB_OK.
  struct err_saved value;
};

// Tells whether the values of all records of a frame are whole (L8). p: its records.
static enum remixdb_status wal_values_whole(const struct wal_values *values, const struct wal_frame *f,
                                            const uint8_t *p, bool *whole_out) {
  const uint8_t *const end = p + f->len;
  enum remixdb_status s = REMIXDB_OK;
  *whole_out = true;
  for (uint32_t i = 0; values && i < f->count && s == REMIXDB_OK && *whole_out; i++) {
    struct kv_rec rec;
    p = kv_rec_get(p, end, f->kinds, &rec);
    if (unlikely(rec.kind & KV_APART)) s = values->check(values->arg, &rec, whole_out);
  }
  return s;
}

// Replays frames up to `limit`, which is the segment's final length, the file's size, or a durable offset.
// rec->last_seq: in, the sequence number before the first record; out, the last sequence number.
static enum remixdb_status wal_replay(struct wal_reader *r, uint64_t limit, wal_replay_fn fn, void *arg,
                                      struct wal_recovery *rec, struct wal_replayed *out) {
  const struct wal_seg *const seg = r->seg;
  uint64_t off = WAL_HEAD;
  enum remixdb_status s = REMIXDB_OK;
  *out = (struct wal_replayed){0};
  while (off < limit && off < seg->size && seg->size - off >= WAL_FRAME_HEAD) {
    const uint8_t *p;
    size_t nr;
    struct wal_frame f;
    s = wal_reader_get(r, off, WAL_FRAME_HEAD, &p, &nr);
    if (s != REMIXDB_OK) return s;
    if (nr < WAL_FRAME_HEAD || !wal_frame_get(p, &seg->key, off, &f) || f.first_seq != rec->last_seq + 1) break;
    const size_t size = WAL_FRAME_HEAD + (size_t)f.len;
    if (size > seg->size - off) break;
    // No record has so many zeros, so a frame with such a hole was never completely written. The check comes before the
    // call that allocates memory for the frame.
    if (size > WAL_WINDOW && env_is_hollow(r->env, seg->fd, off, off + size, WAL_HOLE)) break;
    s = wal_reader_get(r, off, size, &p, &nr);
    if (s != REMIXDB_OK) return s;
    if (nr < size || wal_frame_sum(&seg->key, off, p, f.len) != f.sum) break;
    if ((out->over = size > limit - off)) break;
    p += WAL_FRAME_HEAD;
    if (!wal_frame_decodes(&f, p)) break;
    bool whole;
    if ((s = wal_values_whole(r->values, &f, p, &whole)) != REMIXDB_OK) return s;
    if (!whole) {
      err_save(&out->value, REMIXDB_CORRUPT);
      break;
    }
    const uint8_t *const end = p + f.len;
    for (uint32_t i = 0; i < f.count; i++) {
      struct kv_rec kv;
      p = kv_rec_get(p, end, f.kinds, &kv);
      s = fn ? wal_give(fn, arg, rec->last_seq + 1, &kv) : REMIXDB_OK;
      if (s != REMIXDB_OK) return s;
      rec->last_seq++;
    }
    off += size;
    if (f.durable > out->durable) out->durable = f.durable;
    out->frames += f.sum;
    rec->nr_frames++;
    rec->nr_records += f.count;
    rec->bytes += size;
  }
  out->end = off;
  return REMIXDB_OK;
}

// The segment does not follow the one before it: two histories meet (L7). off: the place of the difference, in the
// header.
static enum remixdb_status wal_parted(const struct wal_seg *seg, uint64_t off, const struct wal_seg *before) {
  return err_corrupt(seg->path, off,
                     "generation %llu of the log does not follow generation %llu, in %s: one of them is of another "
                     "history of the store, such as a copy that went on by itself",
                     (unsigned long long)seg->h.gen, (unsigned long long)before->h.gen, wal_seg_name(before));
}

// ---- files without a header, and the chain of those with one

// Looks in a file without a header for frames of the generation. *out: wal_scan's answer from WAL_HEAD on.
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

// Returns REMIXDB_CORRUPT if the frames of a file without a header prove that the header was durable. The file may be
// the newest segment, which no other header names. A crash can lose a header, too. But if a frame of the segment states
// a durable offset, the header was durable, and damage has destroyed the header. newest: the largest generation in a
// header. The segment that began next has a generation of at most newest + 2.
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

// Reports that no header has the generation of a needed segment. If the frames of a file show that it was this segment,
// the message names the file. why: for the message, the reason why the segment is needed.
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

// Moves the segments that recovery must replay from `all` to w->segs, from the oldest to the newest. Their entries in
// `all` become NULL. These segments are the chain that ends with the newest header. If an earlier recovery left a
// segment out, the header of the next segment names the segment before the omitted one. So the omitted segment is not
// in the chain.
static enum remixdb_status wal_chain(struct wal *w, struct wal_seg **all, size_t nr, uint64_t oldest,
                                     const uint64_t *print) {
  for (size_t i = 1; i < nr; i++) {
    if (all[i - 1]->headed && all[i]->h.gen >= oldest && all[i]->h.gen == all[i - 1]->h.gen)
      return err_corrupt(all[i]->path, WAL_HEAD_GEN, "generation %llu is in %s too", (unsigned long long)all[i]->h.gen,
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
    if (seg->next && seg->next->h.version >= WAL_VERSION_CHAIN && seg->next->h.prev_print != seg->h.print)
      return wal_parted(seg->next, WAL_HEAD_PREV_PRINT, seg);
    if (gen == oldest && print && *print != seg->h.print)
      return err_corrupt(seg->path, WAL_HEAD_SUM,
                         "the store needs another segment of generation %llu: this one is of another history of the "
                         "store, such as a copy that went on by itself",
                         (unsigned long long)gen);
    if (gen == oldest) return REMIXDB_OK;
    if (seg->h.prev_len == 0 || seg->h.prev_gen < oldest) {
      return err_set(REMIXDB_CORRUPT, "%s: the log's generation %llu is missing (%s does not lead to it)", w->dir->path,
                     (unsigned long long)oldest, seg->path);
    }
    gen = seg->h.prev_gen;
  }
}

// ---- recovery

struct recovering {
  struct wal *w;
  struct wal_reader r;
  const struct wal_seg *top;      // the segment with the highest watermark, or NULL
  struct wal_level level;         // that watermark
  char broken[ERR_MSG_MAX + 40];  // the error at the end of the segment that was replayed last
  wal_replay_fn fn;
  void *arg;
  struct wal_recovery *rec;
};

// Opens the file of a segment, unless it is open. At most two segments are open at a time, because there may be more
// segments than a process may have open files.
static enum remixdb_status wal_seg_open(struct wal *w, struct wal_seg *seg) {
  if (seg->fd >= 0) return REMIXDB_OK;
  const enum remixdb_status s = env_open(w->dir, wal_seg_name(seg), w->read_only ? ENV_READ : ENV_READ | ENV_WRITE,
                                         &seg->fd);
  return s == REMIXDB_NOTFOUND ? err_set(REMIXDB_IO, "%s: removed while it was being recovered", seg->path) : s;
}

// Returns where a segment ends: at the length that the next segment's header states; without a next segment, at the
// file's end.
static uint64_t wal_seg_limit(const struct wal_seg *seg) { return seg->next ? seg->next->h.prev_len : seg->size; }

static uint64_t wal_scan_limit(const struct wal_seg *seg) {
  const uint64_t limit = wal_seg_limit(seg);
  return limit < seg->size ? limit : seg->size;
}

// Finds the loss in a segment that is broken at seg->end. level_end: as in struct wal_break.
static enum remixdb_status wal_broken(struct recovering *v, const struct wal_seg *seg, uint64_t level_end,
                                      struct wal_loss *out) {
  const struct wal_break b = {.off = seg->end,
                              .limit = wal_scan_limit(seg),
                              .seq = v->rec->last_seq,
                              .upto = seg->next ? seg->next->h.last_seq : UINT64_MAX,
                              .level_end = level_end};
  uint64_t whole;
  wal_reader_aim(&v->r, seg);
  return wal_hole(&v->r, &b, out, &whole);
}

// Judges a segment that is broken at seg->end. At most one segment follows. Returns REMIXDB_OK if the break is a torn
// tail, because nothing proves that the bytes at the break were durable.
static enum remixdb_status wal_judge(struct recovering *v, const struct wal_seg *seg) {
  const struct wal_seg *const next = seg->next;
  struct wal_heads heads, after;
  struct wal_loss lost;
  wal_reader_aim(&v->r, seg);
  enum remixdb_status s = wal_scan(&v->r, &seg->key, seg->end, wal_scan_limit(seg), &heads);
  if (s != REMIXDB_OK) return s;
  const uint64_t durable = next && next->h.prev_durable > heads.durable ? next->h.prev_durable : heads.durable;
  if (durable > seg->end) {
    if ((s = wal_broken(v, seg, 0, &lost)) != REMIXDB_OK) return s;
    return wal_lost(&lost, "%s; the log says later on that all before %llu was durable", v->broken,
                    (unsigned long long)durable);
  }
  v->rec->cut_bytes += next ? wal_seg_limit(seg) - seg->end : heads.end - seg->end;
  if (!next) return REMIXDB_OK;
  wal_reader_aim(&v->r, next);
  if ((s = wal_scan(&v->r, &next->key, WAL_HEAD, next->size, &after)) != REMIXDB_OK) return s;
  if (after.durable > 0) {
    if ((s = wal_broken(v, seg, 0, &lost)) != REMIXDB_OK) return s;
    return wal_lost(&lost, "%s; the next segment, %s, was synced after this one", v->broken, next->path);
  }
  v->rec->cut_bytes += after.end - WAL_HEAD;
  return REMIXDB_OK;
}

// Finds the highest watermark. All watermarks of a log agree, so the highest watermark covers all that the others state
// about older segments. Returns REMIXDB_CORRUPT if the watermark's generation is above the generation of every segment.
static enum remixdb_status wal_find_level(struct recovering *v) {
  const struct wal_seg *top = NULL, *last = NULL;
  for (const struct wal_seg *seg = v->w->segs; seg; seg = seg->next) {
    const bool higher = seg->level.gen && (!top || seg->level.gen > top->level.gen ||
                                           (seg->level.gen == top->level.gen && seg->level.end > top->level.end));
    if (higher) top = seg;
    last = seg;
  }
  if (!top) return REMIXDB_OK;
  v->top = top;
  v->level = top->level;
  if (top->level.gen <= last->h.gen) return REMIXDB_OK;
  const struct wal_loss lost = {.path = top->path, .off = WAL_LEVEL, .gen = top->level.gen};
  return wal_lost(&lost, "the log's generation %llu is missing; it was durable up to %llu",
                  (unsigned long long)top->level.gen, (unsigned long long)top->level.end);
}

// Says what is wrong where a replay has ended.
static void wal_say_broken(struct recovering *v, const struct wal_replayed *found) {
  const bool value = found->value.status != REMIXDB_OK;
  (void)snprintf(v->broken, sizeof(v->broken), value ? "broken frame, by a value apart: %s" : "broken frame%s",
                 value ? found->value.msg : "");
}

// Replays one segment. Sets seg->durable to the largest durable offset that a frame, a watermark or the next header
// states.
static enum remixdb_status wal_replay_seg(struct recovering *v, struct wal_seg *seg) {
  const struct wal_seg *const next = seg->next;
  const uint64_t before = v->rec->last_seq;
  struct wal_replayed found;
  if (seg->h.last_seq != before) {
    const struct wal_loss lost = {.path = seg->path,
                                  .off = WAL_HEAD_LAST_SEQ,
                                  .gen = seg->h.gen,
                                  .first_seq = before + 1,
                                  .last_seq = seg->h.last_seq};
    return wal_lost(&lost, "the segment follows sequence number %llu, the store is at %llu",
                    (unsigned long long)seg->h.last_seq, (unsigned long long)before);
  }
  enum remixdb_status s = wal_seg_open(v->w, seg);
  if (s != REMIXDB_OK) return s;
  wal_reader_aim(&v->r, seg);
  s = wal_replay(&v->r, wal_seg_limit(seg), v->fn, v->arg, v->rec, &found);
  if (s != REMIXDB_OK) return s;
  wal_say_broken(v, &found);
  seg->end = found.end;
  seg->durable = found.durable;
  seg->frames = found.frames;
  // The next header tells where this segment ended, and its frames.
  const bool parted = next && next->h.version >= WAL_VERSION_CHAIN &&
                      (found.over || (seg->end == next->h.prev_len && seg->frames != next->h.prev_frames));
  if (parted) return wal_parted(next, WAL_HEAD_PREV_FRAMES, seg);
  v->rec->nr_segments++;
  v->w->active = seg;
  if (v->level.gen == seg->h.gen && v->level.end > seg->durable) seg->durable = v->level.end;
  if (next && next->h.prev_durable > seg->durable) seg->durable = next->h.prev_durable;
  return REMIXDB_OK;
}

// Judges a segment after its replay. whole: the replay reached the length that the next segment's header states.
// Returns REMIXDB_OK if no durable byte is missing, so that L3 allows recovery to cut what follows the replayed frames.
static enum remixdb_status wal_judge_seg(struct recovering *v, struct wal_seg *seg, bool whole) {
  struct wal_seg *const next = seg->next;
  const bool marked = v->level.gen == seg->h.gen;
  struct wal_loss lost;
  enum remixdb_status s;
  if (marked ? seg->end < v->level.end : v->level.gen > seg->h.gen && !whole) {
    s = wal_broken(v, seg, marked ? v->level.end : 0, &lost);
    if (s != REMIXDB_OK) return s;
    return wal_lost(&lost, "%s; by the watermark in %s this was durable", v->broken, v->top->path);
  }
  if (whole) return REMIXDB_OK;
  // The segment after `next` began only after the header of `next` was durable, and this whole segment, too (L4).
  if (next && next->next) {
    if ((s = wal_broken(v, seg, 0, &lost)) != REMIXDB_OK) return s;
    return wal_lost(&lost, "%s; the log goes on for more than one segment after it", v->broken);
  }
  s = next ? wal_seg_open(v->w, next) : REMIXDB_OK;
  return s == REMIXDB_OK ? wal_judge(v, seg) : s;
}

// Replays w->segs, and cuts the list after a torn tail.
static enum remixdb_status wal_replay_segs(struct recovering *v) {
  struct wal *const w = v->w;
  enum remixdb_status s = wal_find_level(v);
  for (struct wal_seg *seg = w->segs; seg && s == REMIXDB_OK; seg = seg->next) {
    s = wal_replay_seg(v, seg);
    if (s != REMIXDB_OK) break;
    struct wal_seg *const next = seg->next;
    const bool whole = next && seg->end == wal_seg_limit(seg);
    s = wal_judge_seg(v, seg, whole);
    if (s != REMIXDB_OK) break;
    if (whole) {
      wal_seg_close(w, seg);
      continue;
    }
    seg->next = NULL;
    if (!next) break;
    assert(!next->next);
    wal_seg_close(w, next);
    next->alloc = next->size;
    wal_pool_add(w, next);
  }
  return s;
}

enum remixdb_status wal_recover(struct wal *w, struct wal_seg **all, size_t nr, uint64_t oldest, const uint64_t *print,
                                wal_replay_fn replay, void *arg, struct wal_recovery *rec) {
  const uint64_t newest = nr > 0 && all[nr - 1]->headed ? all[nr - 1]->h.gen : 0;
  enum remixdb_status s = wal_chain(w, all, nr, oldest, print);
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    if (all[i] && !all[i]->headed) s = wal_judge_headless(w, all[i], newest);
  }
  if (s != REMIXDB_OK) return s;
  struct recovering v = {.w = w, .r = {.env = w->env, .values = w->values}, .fn = replay, .arg = arg, .rec = rec};
  s = wal_replay_segs(&v);
  mem_free(v.r.buf);
  return s;
}

// ---- the segment for appends

// Writes bytes [from, seg->end) of the segment again, unchanged.
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

// Cuts the file at the end of the replayed bytes. Does nothing if the file has a second name.
static enum remixdb_status wal_cut(struct wal *w, struct wal_seg *seg) {
  if (seg->shared) return REMIXDB_OK;
  const enum remixdb_status s = env_truncate(w->env, seg->fd, seg->path, seg->end);
  if (s == REMIXDB_OK) seg->size = seg->end;
  return s;
}

// Gives the segment a new file with the replayed bytes if the file has a second name. The log never writes to such a
// file.
static enum remixdb_status wal_seg_unshare(struct wal *w, struct wal_seg *seg) {
  int fd = -1;
  if (!seg->shared) return REMIXDB_OK;
  // If the process dies meanwhile, the next opening removes the file of this name.
  enum remixdb_status s = env_create(w->dir, FILES_CURRENT_TMP, ENV_READ | ENV_WRITE, &fd);
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

// A watermark states that all replayed bytes of the segment are durable.
static bool wal_is_marked(const struct wal_seg *seg) {
  return seg->level.gen == seg->h.gen && seg->level.end == seg->end;
}

// Makes the replayed records durable before a record is appended after them. If only the process died, the records may
// be in the system's memory only. A sync does not suffice, because the system treats a page whose write has failed as
// clean. So the call writes bytes again unless a durable offset proves that they are on disk. If any byte of a segment
// is known to be durable, all older segments are durable (L5). keep: a segment that stays open and keeps its size; may
// be NULL.
static enum remixdb_status wal_sync_replayed(struct wal *w, const struct wal_seg *keep) {
  const struct wal_seg *proven = NULL;
  for (const struct wal_seg *seg = w->segs; seg; seg = seg->next)
    if (seg->durable) proven = seg;
  for (struct wal_seg *seg = w->segs; seg; seg = seg->next) {
    const bool all = proven && seg->h.gen < proven->h.gen;
    enum remixdb_status s = wal_seg_open(w, seg);
    if (s == REMIXDB_OK && !all && seg->durable < seg->end) s = wal_seg_unshare(w, seg);
    if (s == REMIXDB_OK && !all && !seg->shared) s = wal_write_again(w, seg, seg->durable);
    // A file system that never writes in place may need room, as in wal_mark. A full disk must not keep the store
    // closed.
    if (s == REMIXDB_NOSPACE) s = REMIXDB_OK;
    // No record will be appended after the segment's end, so its room is cut off.
    if (s == REMIXDB_OK && seg != keep && seg->size > align_up(seg->end, WAL_PAGE)) s = wal_cut(w, seg);
    // A watermark is written after the sync that it states, so it is true even where it is not durable itself.
    if (s == REMIXDB_OK && !(seg == keep && wal_is_marked(seg))) s = env_sync_all(w->env, seg->fd, seg->path);
    if (s != REMIXDB_OK) return s;
    seg->alloc = seg->size;
    seg->durable = seg->end;
    if (seg != keep) wal_seg_close(w, seg);
  }
  return REMIXDB_OK;
}

// Makes a file that looks foreign durable as it is. Other names than those of regular files are no segment's.
static enum remixdb_status wal_settle_file(struct wal *w, const struct wal_seg *seg) {
  struct env_stat info;
  int fd = -1;
  enum remixdb_status s = env_stat(w->dir, wal_seg_name(seg), &info);
  if (s == REMIXDB_OK && !info.is_file) return s;
  if (s == REMIXDB_OK) s = env_open(w->dir, wal_seg_name(seg), ENV_READ, &fd);
  if (s == REMIXDB_NOTFOUND) return REMIXDB_OK;
  if (s != REMIXDB_OK) return s;
  s = env_sync_all(w->env, fd, seg->path);
  env_close_quiet(w->env, fd);
  return s;
}

// One of the files that look foreign may be a segment's whose header was torn when the process died that wrote a new
// one. After a power cut it could have the old header again, with the generation that the next segment gets when the
// last one goes on.
static enum remixdb_status wal_settle_foreign(struct wal *w) {
  enum remixdb_status s = REMIXDB_OK;
  for (const struct wal_seg *i = w->foreign; i && s == REMIXDB_OK; i = i->next) s = wal_settle_file(w, i);
  return s;
}

// Returns the segment that appends can continue as it is, or NULL. Such a segment is empty, or it is the only one, is
// small, and a watermark covers its frames. No frame of its generation lies after its end, and the log has no files
// outside the chain. So a later recovery cannot take a cut frame for a frame that is appended now, and cannot take a
// segment that lost its header for the next segment. Records of a large segment should leave the log soon, and they
// cannot while appends go to their segment.
static struct wal_seg *wal_reusable(struct wal *w, const struct wal_recovery *rec) {
  struct wal_seg *const seg = w->active;
  const bool alone = atomic_load_explicit(&w->nr_pooled, memory_order_relaxed) == 0 && rec->cut_bytes == 0;
  const bool fits = seg && !seg->shared && seg->size <= w->limit / 2 && seg->size <= WAL_PREALLOC;
  if (!alone || !fits) return NULL;
  return seg->end == WAL_HEAD || (seg == w->segs && seg->end <= WAL_FIRST && wal_is_marked(seg)) ? seg : NULL;
}

// Makes appends continue the last segment, because the disk has no room for another segment. Cuts the bytes after the
// segment's end, and removes the files of the pool. A later recovery could take the frames in these bytes or files for
// frames that follow the segment, as wal_reusable explains.
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
  // Take as much room as there is, for deletes. Later records reserve their own room.
  for (uint64_t room = WAL_FIRST; room >= WAL_PAGE; room /= 2) {
    const uint64_t to = align_up(seg->end + room, WAL_PAGE);
    if (env_allocate(w->env, seg->fd, seg->path, seg->size, to - seg->size) != REMIXDB_OK) continue;
    seg->size = to;
    break;
  }
  wal_adopt(w, seg);
  return REMIXDB_OK;
}

enum remixdb_status wal_begin_after(struct wal *w, uint64_t gen, const struct wal_recovery *rec) {
  struct wal_seg *const last = w->active, *const keep = wal_reusable(w, rec);
  enum remixdb_status s = wal_sync_replayed(w, keep);
  if (s == REMIXDB_OK) s = wal_settle_foreign(w);
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
                             .last_seq = rec->last_seq,
                             .prev_print = last ? last->h.print : 0,
                             .prev_frames = last ? last->frames : 0};
  s = wal_begin_segment(w, &h);
  if (s == REMIXDB_NOSPACE && last) s = wal_go_on(w);
  if (s != REMIXDB_OK) return s;
  IGNORED(wal_trim(w, WAL_POOL), "each release tries again");
  return REMIXDB_OK;
}

// ---- verifying

// Finds the oldest segment with a generation >= gen. *out: a copy of the data that a reader needs (name, header and
// durable offset), or NULL if there is no such segment. The caller destroys the copy. Fails with REMIXDB_NOMEM.
static enum remixdb_status wal_seg_copy(struct wal *w, uint64_t gen, struct wal_seg **out) {
  struct wal_seg *const c = wal_seg_create(w->dir, UINT32_MAX);  // its path has room for any number
  *out = NULL;
  if (!c) return REMIXDB_NOMEM;
  wal_lock(w);
  const struct wal_seg *i = w->segs;
  while (i && i->h.gen < gen) i = i->next;
  if (i) {
    c->nr = i->nr;
    c->h = i->h;
    c->durable = i->durable;
    memcpy(c->path, i->path, strlen(i->path) + 1);
  }
  wal_unlock(w);
  if (i) *out = c;
  else wal_seg_destroy(w, c);
  return REMIXDB_OK;
}

static enum remixdb_status wal_seg_verify(struct wal *w, struct wal_seg *seg, wal_replay_fn fn, void *arg,
                                          struct wal_recovery *seen) {
  struct wal_reader r = {.env = w->env};
  const uint64_t durable = seg->durable, print = seg->h.print;
  struct wal_recovery rec = {.last_seq = seg->h.last_seq};
  struct wal_replayed found = {0};
  enum remixdb_status s = wal_head_read(w, seg);
  if (s == REMIXDB_OK && (!seg->headed || seg->h.print != print))
    s = err_corrupt(seg->path, 0, "broken header of a segment that is in use");
  if (s == REMIXDB_OK) s = env_open(w->dir, wal_seg_name(seg), ENV_READ, &seg->fd);
  if (s == REMIXDB_NOTFOUND) s = err_corrupt(seg->path, 0, "is missing");
  if (s == REMIXDB_OK) {
    wal_reader_aim(&r, seg);
    s = wal_replay(&r, durable, fn, arg, &rec, &found);
  }
  if (s == REMIXDB_OK && found.end != durable)
    s = err_corrupt(seg->path, found.end, "broken frame; all before %llu was durable", (unsigned long long)durable);
  if (seen) {
    seen->nr_records += rec.nr_records;
    seen->nr_frames += rec.nr_frames;
    seen->nr_segments++;
    seen->bytes += found.end;
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
    if (s != REMIXDB_OK) {  // an error counts only if the file has not been recycled meanwhile
      const enum remixdb_status copied = wal_seg_copy(w, mine, &again);
      if (copied != REMIXDB_OK) return copied;
      const bool there = again && again->h.gen == mine;
      wal_seg_destroy(w, again);
      if (there) return err_raise(&why);
    }
    gen = mine + 1;
  }
}
