// SPDX-License-Identifier: Apache-2.0
#include "log/reader.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "log/segments.h"

// ---- bytes

void wal_reader_aim(struct wal_reader *r, const struct wal_seg *seg) {
  r->seg = seg;
  r->len = 0;
  env_advise(r->env, seg->fd, 0, 0, ENV_SEQUENTIAL);
}

// Reads up to `want` bytes into the window, page by page. A page that cannot be read counts as zeros.
static enum remixdb_status wal_read_around(struct wal_reader *r, size_t want, uint64_t off) {
  const uint64_t left = off < r->seg->size ? r->seg->size - off : 0;
  const size_t all = want < left ? want : (size_t)left;
  for (size_t at = 0, n; at < all; at += n) {
    size_t nr = 0;
    n = WAL_PAGE - (size_t)((off + at) % WAL_PAGE);
    if (n > all - at) n = all - at;
    const enum remixdb_status s = env_read_upto(r->env, r->seg->fd, r->seg->path, r->buf + at, n, off + at, &nr);
    if (s != REMIXDB_OK && s != REMIXDB_IO) return s;
    r->nr_unread += s == REMIXDB_IO;
    if (s == REMIXDB_IO && r->unread->status == REMIXDB_OK) err_save(r->unread, s);
    memset(r->buf + at + nr, 0, n - nr);
  }
  r->len = all;
  return REMIXDB_OK;
}

// Makes the window begin at `off`. Bytes that the window already has from `off` on stay in the window. The buffer gets
// room for at least `want` bytes.
static enum remixdb_status wal_reader_move(struct wal_reader *r, size_t want, uint64_t off) {
  const size_t keep = off >= r->off && off < r->off + r->len ? (size_t)(r->off + r->len - off) : 0;
  uint8_t *buf = r->buf;
  if (want > r->cap) {
    buf = mem_alloc(want);
    if (!buf) return REMIXDB_NOMEM;
    r->cap = want;
  }
  if (keep) memmove(buf, r->buf + r->len - keep, keep);
  if (buf != r->buf) mem_free(r->buf);
  r->buf = buf;
  r->off = off;
  r->len = keep;
  return REMIXDB_OK;
}

enum remixdb_status wal_reader_get(struct wal_reader *r, uint64_t off, size_t n, const uint8_t **out, size_t *nr_out) {
  if (off < r->off || off + n > r->off + r->len) {
    const size_t want = n > WAL_WINDOW ? n : WAL_WINDOW;
    size_t nr;
    enum remixdb_status s = wal_reader_move(r, want, off);
    if (s != REMIXDB_OK) return s;
    const size_t keep = r->len;
    s = env_read_upto(r->env, r->seg->fd, r->seg->path, r->buf + keep, want - keep, off + keep, &nr);
    r->len = s == REMIXDB_OK ? keep + nr : 0;
    if (s == REMIXDB_IO && r->unread) s = wal_read_around(r, want, off);
    if (s != REMIXDB_OK) return s;
  }
  const uint64_t left = r->off + r->len - off;
  *out = r->buf + (off - r->off);
  *nr_out = left < n ? (size_t)left : n;
  return REMIXDB_OK;
}

// ---- frames

bool wal_frame_decodes(const struct wal_frame *f, const uint8_t *p) {
  const uint8_t *const end = p + f->len;
  struct kv_rec rec;
  for (uint32_t i = 0; i < f->count; i++) {
    p = kv_rec_get(p, end, f->kinds, &rec);
    if (!p || (unlikely(rec.kind & KV_SEQ) && rec.seq >= f->first_seq + i)) return false;
  }
  return p == end;
}

static void wal_heads_add(struct wal_heads *h, const struct wal_frame *f, uint64_t at, uint64_t limit) {
  const uint64_t end = at + WAL_FRAME_HEAD + f->len, last = f->first_seq + f->count - 1;
  if (f->durable > h->durable) h->durable = f->durable;
  if (end > h->frame_end) h->frame_end = end;
  if (end > h->end) h->end = end < limit ? end : limit;
  if (h->first_seq == 0 || f->first_seq < h->first_seq) h->first_seq = f->first_seq;
  if (last > h->last_seq) h->last_seq = last;
}

uint64_t wal_pass_hole(const struct wal_reader *r, uint64_t off, uint64_t limit) {
  if (off >= r->off && off + WAL_FRAME_HEAD <= r->off + r->len) return off;
  const uint64_t data = env_next_data(r->env, r->seg->fd, off, limit);
  return data - off < WAL_FRAME_HEAD ? off : data - (WAL_FRAME_HEAD - 1);
}

enum remixdb_status wal_scan(struct wal_reader *r, const struct wal_key *k, uint64_t off, uint64_t limit,
                             struct wal_heads *out) {
  *out = (struct wal_heads){.end = off};
  while ((off = wal_pass_hole(r, off, limit)) < limit && limit - off >= WAL_FRAME_HEAD) {
    const uint8_t *p;
    size_t nr;
    const enum remixdb_status s = wal_reader_get(r, off, limit - off < WAL_WINDOW ? (size_t)(limit - off) : WAL_WINDOW,
                                                 &p, &nr);
    if (s != REMIXDB_OK) return s;
    if (nr < WAL_FRAME_HEAD) break;
    const size_t last = nr - WAL_FRAME_HEAD;  // the last place for a head
    for (size_t i = 0; i <= last; i++) {
      const uint8_t *const hit = memchr(p + i + WAL_FRAME_MAGIC, (int)(k->magic & 0xff), last - i + 1);
      if (!hit) break;
      i = (size_t)(hit - p) - WAL_FRAME_MAGIC;
      struct wal_frame f;
      if (!wal_frame_get(p + i, k, off + i, &f)) continue;
      wal_heads_add(out, &f, off + i, limit);
    }
    off += last + 1;
  }
  return REMIXDB_OK;
}

// ---- the list of files

struct wal_names {
  const struct env_dir *dir;
  struct wal_seg *segs;
  bool nomem;
};

static bool wal_name(void *arg, const char *name) {
  struct wal_names *const n = arg;
  if (strncmp(name, "wal-", 4) != 0) return true;
  name += 4;
  uint32_t nr = 0;
  const size_t len = strlen(name);
  if (len == 0 || len > 9 || (name[0] == '0' && len > 1)) return true;
  for (size_t i = 0; i < len; i++) {
    if (name[i] < '0' || name[i] > '9') return true;
    nr = nr * 10 + (uint32_t)(name[i] - '0');
  }
  struct wal_seg *const seg = wal_seg_create(n->dir, nr);
  if (!seg) {
    n->nomem = true;
    return false;
  }
  seg->next = n->segs;
  n->segs = seg;
  return true;
}

enum remixdb_status wal_head_read(struct wal *w, struct wal_seg *seg) {
  uint8_t head[WAL_HEAD];
  size_t nr = 0;
  struct env_stat info;
  enum remixdb_status s = env_stat(w->dir, wal_seg_name(seg), &info);
  seg->foreign = s == REMIXDB_OK && !info.is_file;
  seg->shared = s == REMIXDB_OK && info.links > 1;
  if (seg->foreign) return REMIXDB_OK;
  if (s == REMIXDB_OK) s = env_open(w->dir, wal_seg_name(seg), ENV_READ, &seg->fd);
  if (s == REMIXDB_NOTFOUND)
    return REMIXDB_OK;  // removed since the listing; recovery notices that if the file was needed
  if (s != REMIXDB_OK) return s;
  s = env_size(w->env, seg->fd, seg->path, &seg->size);
  if (s == REMIXDB_OK) s = env_read_upto(w->env, seg->fd, seg->path, head, sizeof(head), 0, &nr);
  if (s == REMIXDB_OK && nr == sizeof(head)) {
    s = wal_head_get(head, seg->path, w->store_id, &seg->h);
    seg->headed = s == REMIXDB_OK;
    if (s == REMIXDB_NOTFOUND) s = REMIXDB_OK;
  }
  if (s == REMIXDB_OK) seg->foreign = !seg->headed && !wal_is_own(w, head, nr);
  env_close_quiet(w->env, seg->fd);
  seg->fd = -1;
  seg->key = wal_key(w->store_id, seg->h.gen);
  if (seg->headed) seg->level = wal_level_get(head + WAL_LEVEL, &seg->key, seg->h.gen);
  return s;
}

int wal_seg_cmp(const void *a, const void *b) {
  const struct wal_seg *const x = *(struct wal_seg *const *)a, *const y = *(struct wal_seg *const *)b;
  if (x->headed != y->headed) return x->headed ? 1 : -1;
  if (x->h.gen != y->h.gen) return x->h.gen < y->h.gen ? -1 : 1;
  return (x->nr > y->nr) - (x->nr < y->nr);
}

enum remixdb_status wal_list(struct wal *w, struct err_saved *unread, struct wal_seg ***all_out, size_t *nr_out) {
  struct wal_names names = {.dir = w->dir};
  struct wal_seg **all = NULL;
  size_t nr = 0;
  enum remixdb_status s = env_list(w->dir, wal_name, &names);
  if (names.nomem) s = REMIXDB_NOMEM;
  for (struct wal_seg *seg = names.segs; seg && s == REMIXDB_OK; seg = seg->next) {
    s = wal_head_read(w, seg);
    if (s == REMIXDB_IO && unread) {
      seg->unread = true;
      if (unread->status == REMIXDB_OK) err_save(unread, s);
      s = REMIXDB_OK;
    }
    nr++;
  }
  if (s == REMIXDB_OK) {
    all = mem_calloc(nr, sizeof(*all));
    if (!all) s = REMIXDB_NOMEM;
  }
  if (s != REMIXDB_OK) {
    wal_segs_destroy(w, names.segs);
    return s;
  }
  nr = 0;
  for (struct wal_seg *seg = names.segs, *next; seg; seg = next) {
    next = seg->next;
    seg->next = NULL;
    // A directory or a link cannot be a damaged segment.
    if (seg->foreign && seg->size == 0) wal_foreign_add(w, seg);
    else all[nr++] = seg;
  }
  qsort(all, nr, sizeof(all[0]), wal_seg_cmp);
  *all_out = all;
  *nr_out = nr;
  return REMIXDB_OK;
}

// ---- where a segment is broken

// Finds the next whole frame at or after `off` with numbers above seq. *at_out: its offset; limit: there is none.
static enum remixdb_status wal_next_whole(struct wal_reader *r, const struct wal_key *k, uint64_t off, uint64_t limit,
                                          uint64_t seq, uint64_t *at_out) {
  *at_out = limit;
  for (; (off = wal_pass_hole(r, off, limit)) < limit && limit - off >= WAL_FRAME_HEAD; off++) {
    const uint8_t *p;
    size_t nr;
    struct wal_frame f;
    enum remixdb_status s = wal_reader_get(r, off, WAL_FRAME_HEAD, &p, &nr);
    if (s != REMIXDB_OK) return s;
    if (nr < WAL_FRAME_HEAD) return REMIXDB_OK;
    if (load32le(p + WAL_FRAME_MAGIC) != k->magic || !wal_frame_get(p, k, off, &f) || f.first_seq <= seq ||
        WAL_FRAME_HEAD + (uint64_t)f.len > limit - off)
      continue;
    if (f.len > WAL_WINDOW && env_is_hollow(r->env, r->seg->fd, off, off + f.len, WAL_HOLE)) continue;
    const size_t size = WAL_FRAME_HEAD + (size_t)f.len;
    if ((s = wal_reader_get(r, off, size, &p, &nr)) != REMIXDB_OK) return s;
    if (nr < size || wal_frame_sum(k, off, p, f.len) != f.sum || !wal_frame_decodes(&f, p + WAL_FRAME_HEAD)) continue;
    *at_out = off;
    return REMIXDB_OK;
  }
  return REMIXDB_OK;
}

// Finds the loss after a break in the newest segment that no whole frame follows. The heads of frames and the watermark
// tell which records were there.
static enum remixdb_status wal_tail_loss(struct wal_reader *r, const struct wal_break *b, struct wal_loss *l) {
  const struct wal_seg *const seg = r->seg;
  const uint64_t level_end = b->level_end;
  struct wal_heads heads;
  const enum remixdb_status s = wal_scan(r, &seg->key, l->off, b->limit, &heads);
  if (s != REMIXDB_OK) return s;
  const uint64_t end = heads.frame_end > level_end ? heads.frame_end : level_end;
  const bool durable = b->durable || level_end > l->off || heads.durable > l->off ||
                       (seg->guessed && heads.durable > 0);
  if (end > l->off) l->bytes = end - l->off;
  if (heads.last_seq >= l->first_seq) l->last_seq = heads.last_seq;
  else if (level_end > l->off) l->last_seq = l->first_seq;  // at least one record
  l->more = heads.frame_end == 0 || heads.frame_end != level_end;
  l->torn = !durable;
  return s;
}

enum remixdb_status wal_hole(struct wal_reader *r, const struct wal_break *b, struct wal_loss *out,
                             uint64_t *whole_out) {
  const struct wal_seg *const seg = r->seg;
  *out = (struct wal_loss){
      .path = seg->path, .gen = seg->h.gen, .off = b->off, .first_seq = b->seq + 1, .last_seq = b->seq};
  *whole_out = b->limit;
  if (b->seq >= b->upto) return REMIXDB_OK;
  uint64_t at;
  enum remixdb_status s = wal_next_whole(r, &seg->key, b->off, b->limit, b->seq, &at);
  if (s != REMIXDB_OK) return s;
  if (at < b->limit) {
    const uint8_t *p;
    size_t nr;
    struct wal_frame f;
    if ((s = wal_reader_get(r, at, WAL_FRAME_HEAD, &p, &nr)) != REMIXDB_OK) return s;
    if (nr == WAL_FRAME_HEAD && wal_frame_get(p, &seg->key, at, &f) &&
        f.first_seq <= b->upto) {  // else a recovery cut the frame, and gave its sequence numbers again
      out->last_seq = f.first_seq - 1;
      out->bytes = at - b->off;
      *whole_out = at;
      return REMIXDB_OK;
    }
  }
  if (b->upto == UINT64_MAX) return wal_tail_loss(r, b, out);
  out->last_seq = b->upto;
  out->bytes = b->limit > b->off ? b->limit - b->off : 0;
  return REMIXDB_OK;
}

// ---- what is lost

const char *wal_loss_text(const struct wal_loss *l, char *buf, size_t cap) {
  if (l->first_seq == 0) (void)snprintf(buf, cap, "how many records are lost is not known");
  else if (l->last_seq < l->first_seq)
    (void)snprintf(buf, cap, "records from sequence number %" PRIu64 " on are lost, as far as there were any",
                   l->first_seq);
  else
    (void)snprintf(buf, cap, "%s%" PRIu64 " records are lost, sequence numbers %" PRIu64 " to %s%" PRIu64,
                   l->more ? "at least " : "", l->last_seq - l->first_seq + 1, l->first_seq, l->more ? "at least " : "",
                   l->last_seq);
  return buf;
}

enum remixdb_status wal_lost(const struct wal_loss *l, const char *fmt, ...) {
  char why[ERR_MSG_MAX], text[WAL_LOSS_TEXT];
  va_list ap;
  va_start(ap, fmt);
  if (vsnprintf(why, sizeof(why), fmt, ap) < 0) why[0] = '\0';
  va_end(ap);
  (void)wal_loss_text(l, text, sizeof(text));
  if (!l->missing) return err_corrupt(l->path, l->off, "%s; %s", why, text);
  const char *dots, *const end = err_path(l->path, &dots);
  return err_set(REMIXDB_CORRUPT, "%s%s: %s; %s", dots, end, why, text);
}
