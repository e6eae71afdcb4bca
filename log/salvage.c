// SPDX-License-Identifier: Apache-2.0
//
// Salvage: reads all whole frames of a damaged log and reports the losses.
#include "log/reader.h"

#include <stdio.h>
#include <stdlib.h>

#include "log/segments.h"

#define SALVAGE_GENS 4096u  // most generations that salvage tries for a file's first frame

// ---- which segments there are

// Returns the offset up to which salvage reads segment i of `all`. A recovery may have cut the segment, or left it out.
// The newest header whose prev_gen is this segment's generation or an older one tells which. If prev_gen is older, the
// segment was left out, and the limit is 0. Otherwise prev_len is the limit. Salvage skips the cut records, because the
// log gave their sequence numbers to later records.
static uint64_t wal_salvage_limit(struct wal_seg *const *all, size_t nr, size_t i) {
  const struct wal_seg *const seg = all[i];
  for (size_t k = nr; --k > i;) {
    const struct wal_head *const h = &all[k]->h;
    if (h->prev_len == 0 || h->prev_gen > seg->h.gen) continue;
    return h->prev_gen < seg->h.gen ? 0 : h->prev_len < seg->size ? h->prev_len : seg->size;
  }
  return seg->size;
}

// Returns the oldest generation of the chain that ends with the newest header. The segment of that generation may have
// lost its header.
static uint64_t wal_salvage_oldest(struct wal_seg *const *all, size_t nr) {
  uint64_t gen = nr && all[nr - 1]->headed ? all[nr - 1]->h.gen : 0, oldest = 1;
  for (size_t i = nr; gen && i-- > 0 && all[i]->headed && all[i]->h.gen >= gen;) {
    oldest = gen;
    if (all[i]->h.gen == gen) gen = all[i]->h.prev_len ? all[i]->h.prev_gen : 0;
  }
  return gen ? gen : oldest;
}

static bool wal_has_gen(struct wal_seg *const *all, size_t nr, uint64_t gen) {
  for (size_t i = 0; i < nr; i++)
    if (all[i]->headed && all[i]->h.gen == gen) return true;
  return false;
}

// Makes a file without a header the segment of this generation. The segment's frames follow sequence number base.
static void wal_guess(struct wal *w, struct wal_seg *seg, uint64_t gen, uint64_t base) {
  seg->h = (struct wal_head){.store_id = w->store_id, .gen = gen, .last_seq = base};
  seg->key = wal_key(w->store_id, gen);
  seg->headed = seg->guessed = true;
}

// Guesses the generation, among [from, to], from the head of the first frame in the open file.
static enum remixdb_status wal_guess_first(struct wal *w, struct wal_seg *const *all, size_t nr, struct wal_seg *seg,
                                           uint64_t from, uint64_t to) {
  uint8_t head[WAL_FRAME_HEAD];
  size_t len = 0;
  const enum remixdb_status s = env_read_upto(w->env, seg->fd, seg->path, head, sizeof(head), WAL_HEAD, &len);
  if (s != REMIXDB_OK || len < sizeof(head)) return s;
  for (uint64_t gen = from; gen <= to; gen++) {
    const struct wal_key k = wal_key(w->store_id, gen);
    struct wal_frame f;
    if (!wal_frame_get(head, &k, WAL_HEAD, &f)) continue;
    if (!wal_has_gen(all, nr, gen)) wal_guess(w, seg, gen, f.first_seq - 1);
    break;
  }
  return REMIXDB_OK;
}

// Makes the open file the segment of this generation if the file has a frame of this generation anywhere. The segment
// is then beheaded, because wal_guess_first could not use the first frame.
static enum remixdb_status wal_guess_any(struct wal *w, struct wal_reader *r, struct wal_seg *seg, uint64_t gen) {
  const struct wal_key k = wal_key(w->store_id, gen);
  struct wal_heads heads;
  wal_reader_aim(r, seg);
  const enum remixdb_status s = wal_scan(r, &k, WAL_HEAD, seg->size, &heads);
  if (s == REMIXDB_OK && heads.first_seq) wal_guess(w, seg, gen, heads.first_seq - 1);
  seg->beheaded = seg->headed;
  return s;
}

// The generations that a file without a header may have.
struct wal_wanted {
  uint64_t oldest;    // the oldest generation that is needed
  uint64_t newest;    // the newest generation in a header
  uint64_t level;     // the generation of the highest watermark
  uint64_t from, to;  // generations that are tried with the first frame of each file
};

// Tries generations that no header has: those that must exist, and the two after the newest header.
static enum remixdb_status wal_guess_wanted(struct wal *w, struct wal_reader *r, struct wal_seg *const *all, size_t nr,
                                            struct wal_seg *seg, const struct wal_wanted *g) {
  const uint64_t known[] = {g->oldest, g->level, g->newest + 1, g->newest + 2};
  enum remixdb_status s = REMIXDB_OK;
  for (size_t i = 0; i < sizeof(known) / sizeof(known[0]) && s == REMIXDB_OK && !seg->headed; i++)
    if (known[i] >= g->oldest && !wal_has_gen(all, nr, known[i])) s = wal_guess_any(w, r, seg, known[i]);
  for (size_t i = 0; i < nr && s == REMIXDB_OK && !seg->headed; i++) {
    const struct wal_head *const h = &all[i]->h;
    if (all[i]->headed && h->prev_len && h->prev_gen >= g->oldest && !wal_has_gen(all, nr, h->prev_gen))
      s = wal_guess_any(w, r, seg, h->prev_gen);
  }
  return s;
}

// Gives a file without a header the generation that its frames tell, if no other file has this generation.
static enum remixdb_status wal_salvage_head(struct wal *w, struct wal_reader *r, struct wal_seg *const *all, size_t nr,
                                            struct wal_seg *seg, const struct wal_wanted *g) {
  enum remixdb_status s = env_open(w->dir, wal_seg_name(seg), ENV_READ, &seg->fd);
  if (s != REMIXDB_OK) return s;
  s = wal_guess_first(w, all, nr, seg, g->from, g->to);
  if ((s == REMIXDB_OK || s == REMIXDB_IO) && !seg->headed) {  // unreadable bytes count as zeros from here on
    const enum remixdb_status any = wal_guess_wanted(w, r, all, nr, seg, g);
    if (any != REMIXDB_OK) s = any;
  }
  env_close_quiet(w->env, seg->fd);
  seg->fd = -1;
  return s;
}

// Guesses for each file without a header which segment the file is. Generations before `oldest` are not needed. Each
// opening of the log skips one generation, so nr files may have generations up to 2 * nr above the newest header.
static enum remixdb_status wal_salvage_heads(struct wal *w, struct wal_reader *r, struct wal_seg **all, size_t nr,
                                             uint64_t oldest, uint64_t level) {
  const uint64_t newest = nr && all[nr - 1]->headed ? all[nr - 1]->h.gen : 0;
  const uint64_t last = newest > oldest ? newest : oldest, more = newest ? 2 * nr : SALVAGE_GENS - 1;
  // A caller may ask for a generation that no segment can have. Then `to` is below `oldest`, and none is tried.
  const uint64_t to = last < WAL_NUMBER_MAX - more ? last + more : WAL_NUMBER_MAX;
  const struct wal_wanted g = {.oldest = oldest,
                               .newest = newest,
                               .level = level,
                               .from = to < oldest || to - oldest < SALVAGE_GENS ? oldest : to - SALVAGE_GENS + 1,
                               .to = to};
  enum remixdb_status s = REMIXDB_OK;
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    if (all[i]->headed) continue;
    s = wal_salvage_head(w, r, all, nr, all[i], &g);
    if (s == REMIXDB_NOTFOUND) s = REMIXDB_OK;
    if (s != REMIXDB_IO) continue;
    all[i]->unread = true;
    if (r->unread->status == REMIXDB_OK) err_save(r->unread, s);
    s = REMIXDB_OK;
  }
  qsort(all, nr, sizeof(all[0]), wal_seg_cmp);
  return s;
}

// ---- segments of another history

// Whether header i does not fit those before it. before: the last one that fits; NULL: none. out: bit of each that was
// found not to fit.
static bool wal_is_parted(struct wal_seg *const *all, size_t i, const struct wal_seg *before, const bool *out) {
  const struct wal_head *const h = &all[i]->h;
  if (h->version < WAL_VERSION_CHAIN || h->prev_len == 0) return false;
  if (before && before->h.gen == h->prev_gen) return h->prev_print != before->h.print;
  for (size_t k = 0; k < i; k++)  // it follows one that does not fit
    if (out[k] && all[k]->h.print == h->prev_print) return true;
  return false;
}

static void wal_tell_parted(const struct wal_salvage_to *to, const struct wal_seg *seg) {
  const struct wal_loss l = {.path = seg->path, .parted = true, .gen = seg->h.gen, .more = true};
  if (to->lost) to->lost(to->arg, &l);
}

// Takes the segments out of `all` that another history has written. print: the fingerprint of generation `oldest`;
// NULL: not known, and the oldest segment counts as the store's.
static enum remixdb_status wal_salvage_part(struct wal *w, struct wal_seg **all, size_t *nr, uint64_t oldest,
                                            const uint64_t *print, const struct wal_salvage_to *to) {
  bool *const out = mem_calloc(*nr + 1, sizeof(*out));
  if (!out) return REMIXDB_NOMEM;
  const struct wal_seg *before = NULL;
  for (size_t i = 0; i < *nr; i++) {
    if (!all[i]->headed || all[i]->h.gen < oldest) continue;
    out[i] = print && all[i]->h.gen == oldest ? all[i]->h.print != *print : wal_is_parted(all, i, before, out);
    if (out[i]) wal_tell_parted(to, all[i]);
    else before = all[i];
  }
  size_t kept = 0;
  for (size_t i = 0; i < *nr; i++) {
    if (out[i]) wal_seg_destroy(w, all[i]);
    else all[kept++] = all[i];
  }
  *nr = kept;
  mem_free(out);
  return REMIXDB_OK;
}

// ---- reading them

// The segments to read, from the oldest to the newest, and the progress.
struct salvage {
  struct wal_seg **all;
  size_t nr;
  uint64_t oldest;
  struct wal_level level;  // the highest watermark
  const struct wal_salvage_to *to;
  struct wal_salvage *out;
  uint64_t seq;
  uint64_t frames;  // the sum of the checksums of the segment's frames so far
  bool printed;     // the version names the oldest segment by its fingerprint
  bool placed;      // seq is known: from the version, or from a segment that was read
};

static bool wal_is_read(const struct salvage *v, size_t i) {
  return v->all[i]->headed && v->all[i]->h.gen >= v->oldest && wal_salvage_limit(v->all, v->nr, i) > 0;
}

// Returns the segment to read after the i-th, or NULL.
static const struct wal_seg *wal_salvage_next(const struct salvage *v, size_t i) {
  for (size_t k = i + 1; k < v->nr; k++)
    if (wal_is_read(v, k)) return v->all[k];
  return NULL;
}

static void wal_tell(struct salvage *v, const struct wal_loss *l) {
  if (!l->torn) v->out->lost_bytes += l->bytes;
  if (v->to->lost) v->to->lost(v->to->arg, l);
}

// Reports the loss of the records after v->seq that were in frames before the segment's first frame.
static void wal_tell_beheaded(struct salvage *v, const struct wal_seg *seg) {
  const struct wal_loss l = {
      .path = seg->path, .gen = seg->h.gen, .off = WAL_HEAD, .first_seq = v->seq + 1, .last_seq = seg->h.last_seq};
  wal_tell(v, &l);
}

// Reports the loss of the records after v->seq that no file has. The last lost record is last_seq, or (`more`) a later
// one.
static void wal_tell_missing(struct salvage *v, const struct wal *w, uint64_t gen, uint64_t last_seq, bool more) {
  const struct wal_loss l = {.path = w->dir->path,
                             .missing = true,
                             .gen = gen,
                             .first_seq = v->placed ? v->seq + 1 : 0,
                             .last_seq = v->placed ? last_seq : 0,
                             .more = more};
  wal_tell(v, &l);
}

// Passes the records of the frame at `off` to the caller's function. The frame is whole. *size_out: the frame's length.
static enum remixdb_status wal_salvage_frame(struct wal_reader *r, struct salvage *v, uint64_t off, size_t *size_out) {
  const uint8_t *p;
  size_t nr;
  struct wal_frame f;
  enum remixdb_status s = wal_reader_get(r, off, WAL_FRAME_HEAD, &p, &nr);
  if (s != REMIXDB_OK) return s;
  if (nr < WAL_FRAME_HEAD || !wal_frame_get(p, &r->seg->key, off, &f))
    return err_corrupt(r->seg->path, off, "the file changes while it is read");
  *size_out = WAL_FRAME_HEAD + (size_t)f.len;
  if ((s = wal_reader_get(r, off, *size_out, &p, &nr)) != REMIXDB_OK) return s;
  const uint8_t *const end = p + nr;
  p += WAL_FRAME_HEAD;
  v->frames += f.sum;
  v->seq = f.first_seq - 1;
  for (uint32_t i = 0; i < f.count && p; i++) {
    struct kv_rec kv;
    p = kv_rec_get(p, end, f.kinds, &kv);
    if (p && (s = wal_give(v->to->record, v->to->arg, ++v->seq, &kv)) != REMIXDB_OK) return s;
  }
  v->out->nr_records += f.count;
  return s;
}

// Reports a hole in a segment, if records are lost there or may be. at_end: the hole is at the segment's end; `next` is
// the segment after it, or NULL. unread: some bytes of the segment could not be read.
static void wal_tell_hole(struct salvage *v, struct wal *w, const struct wal_seg *seg, const struct wal_seg *next,
                          bool at_end, bool unread, struct wal_loss *l) {
  const bool lost = l->last_seq >= l->first_seq;
  if (next && lost && next->beheaded) {
    wal_tell_beheaded(v, next);
  } else if (next && lost && next->h.prev_len && next->h.prev_gen != seg->h.gen) {
    wal_tell_missing(v, w, next->h.prev_gen, l->last_seq, false);
  } else if (lost || (at_end && !next && (l->bytes || unread))) {
    if (unread) l->torn = false;  // a frame may be after the zeros
    wal_tell(v, l);
  }
}

// Reads segment i. Reports losses in this segment, and between this segment and the next one.
static enum remixdb_status wal_seg_salvage(struct wal *w, struct wal_reader *r, struct salvage *v, size_t i) {
  const struct wal_seg *const seg = v->all[i], *const next = wal_salvage_next(v, i);
  struct wal_break b = {.off = WAL_HEAD,
                        .limit = wal_salvage_limit(v->all, v->nr, i),
                        .upto = next ? next->h.last_seq : UINT64_MAX,
                        .level_end = v->level.gen == seg->h.gen ? v->level.end : 0,
                        .durable = v->level.gen > seg->h.gen};
  const uint64_t unread = r->nr_unread;
  bool whole_so_far = true;
  v->frames = 0;
  wal_reader_aim(r, seg);
  for (;;) {
    struct wal_loss l;
    uint64_t whole;
    size_t size = 0;
    b.seq = v->seq;
    enum remixdb_status s = wal_hole(r, &b, &l, &whole);
    if (s != REMIXDB_OK) return s;
    const bool at_end = whole >= b.limit;
    whole_so_far = whole_so_far && whole == b.off;
    wal_tell_hole(v, w, seg, at_end ? next : NULL, at_end, unread != r->nr_unread, &l);
    if (at_end) {
      // Both have the same header before, and one of them went on in another history. Nothing tells which.
      const bool follows = whole_so_far && next && next->h.version >= WAL_VERSION_CHAIN &&
                           next->h.prev_gen == seg->h.gen && next->h.prev_len == b.off;
      if (follows && next->h.prev_frames != v->frames) wal_tell_parted(v->to, next);
      if (l.last_seq >= l.first_seq) v->seq = l.last_seq;
      return REMIXDB_OK;
    }
    if ((s = wal_salvage_frame(r, v, whole, &size)) != REMIXDB_OK) return s;
    b.off = whole + size;
  }
}

// Reports the segments that are missing before the first one.
static void wal_salvage_begin(struct wal *w, struct salvage *v, const struct wal_seg *first) {
  const bool lost = v->placed && first->h.last_seq > v->seq;
  if (lost && first->beheaded) wal_tell_beheaded(v, first);
  else if (lost) wal_tell_missing(v, w, v->oldest, first->h.last_seq, false);
  // Nothing shows that the segments that are there are those that followed it.
  else if (v->printed && first->h.gen != v->oldest) wal_tell_missing(v, w, v->oldest, v->seq, true);
  if (!v->placed || first->h.last_seq > v->seq) v->seq = first->h.last_seq;
  v->placed = true;
}

// Reports the segments that are missing after `last`, the last segment that was read. last NULL: no segment was read,
// although every store has one.
static void wal_salvage_end(struct wal *w, struct salvage *v, const struct wal_seg *last) {
  const struct wal_level *const l = &v->level;
  const bool later = l->gen > 0 && l->gen >= v->oldest && (!last || l->gen > last->h.gen),
             filled = later && l->end > WAL_HEAD;
  if (last && !filled) return;
  wal_tell_missing(v, w, later ? l->gen : v->placed ? v->oldest : 0, filled ? v->seq + 1 : v->seq, true);
}

// Reports unreadable files that may be needed.
static void wal_tell_unread(struct salvage *v, const struct wal_seg *last) {
  for (size_t i = 0; i < v->nr; i++) {
    const struct wal_seg *const seg = v->all[i];
    const struct wal_loss l = {.path = seg->path, .gen = seg->h.gen, .more = true};
    if (seg->unread && (!seg->headed || seg == last)) wal_tell(v, &l);
  }
}

static enum remixdb_status wal_salvage_all(struct wal *w, struct wal_reader *r, struct salvage *v) {
  const struct wal_seg *last = NULL;
  enum remixdb_status s = REMIXDB_OK;
  for (size_t i = 0; i < v->nr && s == REMIXDB_OK; i++) {
    struct wal_seg *const seg = v->all[i];
    if (!wal_is_read(v, i)) continue;
    if (!last) wal_salvage_begin(w, v, seg);
    if (seg->h.last_seq > v->seq) v->seq = seg->h.last_seq;
    last = seg;
    v->out->gen = seg->h.gen;
    v->out->base_seq = seg->h.last_seq;
    v->out->nr_segments++;
    s = env_open(w->dir, wal_seg_name(seg), ENV_READ, &seg->fd);
    if (s == REMIXDB_IO) {  // the file counts as zeros; later segments may be whole
      if (r->unread->status == REMIXDB_OK) err_save(r->unread, s);
      seg->unread = true;
      seg->size = 0;
      s = REMIXDB_OK;
    }
    if (s == REMIXDB_OK) s = wal_seg_salvage(w, r, v, i);
    env_close_quiet(w->env, seg->fd);
    seg->fd = -1;
  }
  if (s == REMIXDB_NOTFOUND) s = err_set(REMIXDB_IO, "%s: a segment was removed meanwhile", w->dir->path);
  if (s != REMIXDB_OK) return s;
  wal_salvage_end(w, v, last);
  wal_tell_unread(v, last);
  return s;
}

static struct wal_level wal_highest_level(struct wal_seg *const *all, size_t nr) {
  struct wal_level top = {0};
  for (size_t i = 0; i < nr; i++) {
    const struct wal_level *const l = &all[i]->level;
    if (l->gen > top.gen || (l->gen == top.gen && l->end > top.end)) top = *l;
  }
  return top;
}

enum remixdb_status wal_read_damaged(const struct wal_opts *o, uint64_t oldest_gen, uint64_t last_seq,
                                     const struct wal_salvage_to *to, struct wal_salvage *out) {
  struct wal_opts mine = *o;
  struct salvage v = {
      .to = to, .out = out, .oldest = oldest_gen, .seq = last_seq, .placed = oldest_gen != 0, .printed = o->printed};
  struct err_saved unread = {.status = REMIXDB_OK};
  mine.read_only = true;
  *out = (struct wal_salvage){0};
  struct wal *const w = wal_create(&mine);
  if (!w) return REMIXDB_NOMEM;
  struct wal_reader r = {.env = w->env, .unread = &unread};
  enum remixdb_status s = wal_list(w, &unread, &v.all, &v.nr);
  if (s == REMIXDB_OK)
    s = wal_salvage_part(w, v.all, &v.nr, oldest_gen, o->printed && oldest_gen ? &o->print : NULL, to);
  if (s == REMIXDB_OK) {
    if (oldest_gen == 0) v.oldest = wal_salvage_oldest(v.all, v.nr);
    v.level = wal_highest_level(v.all, v.nr);
    s = wal_salvage_heads(w, &r, v.all, v.nr, v.oldest, v.level.gen);
  }
  if (s == REMIXDB_OK) s = wal_salvage_all(w, &r, &v);
  for (size_t i = 0; i < v.nr; i++) wal_seg_destroy(w, v.all[i]);
  mem_free(v.all);
  mem_free(r.buf);
  wal_destroy(w);
  return s == REMIXDB_OK && unread.status != REMIXDB_OK ? err_raise(&unread) : s;
}

// ---- the store's ids

struct wal_id_search {
  const struct env_dir *dir;
  struct wal_ids *ids;
  bool nomem;  // memory or descriptors were missing, so the file may be sound
};

static bool wal_id_look(void *arg, const char *name) {
  struct wal_id_search *const f = arg;
  uint8_t head[WAL_HEAD];
  size_t nr = 0;
  int fd;
  if (strncmp(name, "wal-", 4) != 0) return true;
  enum remixdb_status s = env_open(f->dir, name, ENV_READ, &fd);
  f->nomem = s == REMIXDB_NOMEM;
  if (s != REMIXDB_OK) return !f->nomem;
  s = env_read_upto(f->dir->env, fd, name, head, sizeof(head), 0, &nr);
  env_close_quiet(f->dir->env, fd);
  struct wal_head h;
  if (s == REMIXDB_OK && nr == sizeof(head) && wal_head_get(head, name, wal_head_store_id(head), &h) == REMIXDB_OK) {
    f->ids->own = h.store_id;
    f->ids->nr_origins = h.nr_origins < WAL_ORIGINS ? h.nr_origins : WAL_ORIGINS;
    for (uint32_t i = 0; i < f->ids->nr_origins; i++) f->ids->origins[i] = wal_head_origin(head, i);
  }
  return f->ids->own == 0;
}

enum remixdb_status wal_read_ids(const struct env_dir *dir, struct wal_ids *out) {
  _Static_assert(sizeof(out->origins) / sizeof(out->origins[0]) == WAL_ORIGINS, "all that a header lists");
  struct wal_id_search f = {.dir = dir, .ids = out};
  *out = (struct wal_ids){0};
  const enum remixdb_status s = env_list(dir, wal_id_look, &f);
  if (s != REMIXDB_OK || f.nomem) return s != REMIXDB_OK ? s : REMIXDB_NOMEM;
  return out->own ? REMIXDB_OK : REMIXDB_NOTFOUND;
}
