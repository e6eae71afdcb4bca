// SPDX-License-Identifier: Apache-2.0
#include "remix/pack.h"

#include <assert.h>

#include "base/blind.h"

struct remix_counters remix_counters;

_Static_assert(REMIX_BIT_SAME == BLIND_SAME && REMIX_BIT_FAR == BLIND_FAR && REMIX_BYTE_MAX == BLIND_BYTE_MAX && REMIX_SEG == 32,
               "one set of marks");

// Entries whose memory is asked for at once: few at first, for many scans are short; then more, which costs less for each.
#define REMIX_GROUP_MIN 8u
#define REMIX_GROUP_MAX REMIX_SEG
#define USUAL_MAX 1024u   // entries: longer scans read whole blocks
#define USUAL_MORE 12u    // entries more than are thought to come: runs share segments unevenly, and to read twice costs as much as to copy two KiB more
#define REMIX_AHEAD_MIN 4u
#define REMIX_AHEAD_MAX BLKIO_BATCH_MAX
#define REMIX_AHEAD_ALL 256u  // pages read ahead into a cursor's own memory, all runs together, so that they stay in a processor's cache,
#define REMIX_AHEAD_OWN 16u   // but so many for each
#define READS_TIMED 8u       // so many reads of single blocks, one of them timed,
#define READ_DISK_NS 10000u  // (and a quarter for each that is read with it) to find out whether they come from the disk, and not from the system's page cache

// Where things are in the image, and what is known beside it.
struct remix_index {
  const uint8_t *segs;
  struct remix_layout lay;
  bool young;      // tombstones are live
  struct anchors anchors;
  // Per segment, and one more: live entries in all segments before it. A stretch without any, or any number of keys, is passed by a search in these.
  uint32_t *live;
};

// One allocation for all, so that the way from a REMIX to its segments is short.
struct remix_whole {
  struct remix x;
  struct remix_index ix;
  struct mem_map map;  // of the image
};

// ---- segments

static inline const uint8_t *seg_at(const struct remix_index *ix, uint32_t seg) {
  return ix->segs + (size_t)seg * ix->lay.stride;
}
static inline uint32_t seg_nr(const struct remix_index *ix, const uint8_t *s) { return s[ix->lay.head]; }
static inline uint32_t seg_base(const struct remix_index *ix, const uint8_t *s) { return load16le(s + ix->lay.head + 2); }
static inline sst_pos seg_off(const struct remix_index *ix, const uint8_t *s, uint32_t run) {
  return load32le(s + ix->lay.offs + 4 * run);
}
static inline uint32_t seg_live(const struct remix_index *ix, const uint8_t *s) {
  const uint8_t *const sel = s + ix->lay.sel;
  const uint32_t shown = likely(!ix->young) ? set32_eq8(sel, REMIX_OLD | REMIX_TOMB, 0) : set32_eq8(sel, REMIX_OLD, 0);
  return shown & set32_below(seg_nr(ix, s));
}

static inline void seg_prefetch(const struct remix_index *ix, const uint8_t *s) {
  for (uint32_t o = 0; o < ix->lay.stride; o += CACHE_LINE) prefetch(s + o);
}

// The position of the run's first record at or after entry i (R4).
static inline sst_pos seg_pos(const struct remix *x, const uint8_t *s, uint32_t run, uint32_t i) {
  const struct remix_index *ix = x->index;
  const uint32_t before = set32_count(set32_eq8(s + ix->lay.sel, REMIX_RUN, (uint8_t)run) & set32_below(i));
  return sst_advance(x->runs[run], seg_off(ix, s, run), before);
}

// ---- opening

void remix_name(char *buf, uint64_t number) { files_remix_name(buf, number); }

// Everything in the header against the file and the tables. Offsets are all determined by the counts, so that they need only be
// equal.
static enum remixdb_status check_header(struct remix *x) {
  struct remix_index *const ix = x->index;
  const uint8_t *const p = x->image;
  const uint32_t flags = load32le(p + 12);
  if (flags & ~REMIX_FLAG_TAGS) return err_corrupt(x->path, 12, "flags %#x that are not known", flags);
  x->tags = flags & REMIX_FLAG_TAGS;
  if (load64le(p + 16) != x->ctx->store_id) return err_corrupt(x->path, 16, "of another store");
  if (load64le(p + 24) != x->number) return err_corrupt(x->path, 24, "is file %llu", (unsigned long long)load64le(p + 24));
  if (load32le(p + 40) != x->nr_runs) return err_corrupt(x->path, 40, "%u runs, %u expected", load32le(p + 40), x->nr_runs);
  x->nr_segs = load32le(p + 44);
  x->nr_entries = load64le(p + 48);
  x->nr_keys = load64le(p + 56);
  ix->lay = remix_layout(x->nr_runs, x->tags);
  if (load32le(p + 64) != ix->lay.stride || load32le(p + 68) != 0)
    return err_corrupt(x->path, 64, "segment size %u", load32le(p + 64));
  const uint64_t segs = load64le(p + 72), offs = load64le(p + 80), anchors = load64le(p + 88), len = load64le(p + 96);
  if (segs != remix_segs_off(x->nr_runs) || offs != segs + (uint64_t)x->nr_segs * ix->lay.stride ||
      anchors != offs + 4 * ((uint64_t)x->nr_segs + 1) || len > x->image_size || anchors + len + 8 != x->image_size)
    return err_corrupt(x->path, 72, "sections do not fit the file");
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    const uint64_t number = load64le(p + REMIX_HEAD + 8 * r);
    if (number != x->runs[r]->number)
      return err_corrupt(x->path, REMIX_HEAD + 8 * r, "run %u is table %llu, %llu expected", r, (unsigned long long)number,
                         (unsigned long long)x->runs[r]->number);
  }
  ix->segs = p + segs;
  ix->anchors = (struct anchors){.offs = p + offs, .bytes = p + anchors, .nr = x->nr_segs};
  return REMIXDB_OK;
}

static enum remixdb_status check_anchors(const struct remix *x) {
  const struct anchors *const a = &x->index->anchors;
  const uint64_t at = (uint64_t)(a->offs - x->image), len = load64le(x->image + 96);
  const uint32_t nr = x->nr_segs;
  uint32_t prev = load32le(a->offs);
  if (prev != 0) return err_corrupt(x->path, at, "first anchor at %u", prev);
  for (uint32_t i = 1; i <= nr; i++) {
    const uint32_t off = load32le(a->offs + 4 * (size_t)i);
    if (off < prev || off > len) return err_corrupt(x->path, at + 4 * (uint64_t)i, "anchor ends at %u", off);
    prev = off;
  }
  if (prev != len) return err_corrupt(x->path, at + 4 * (uint64_t)nr, "anchors end at %u of %llu", prev, (unsigned long long)len);
  if (nr && anchors_at(a, 0).len != 0) return err_corrupt(x->path, at, "first anchor is not empty");
  for (uint32_t i = 1; i < nr; i++)
    if (kv_cmp(anchors_at(a, i - 1), anchors_at(a, i)) >= 0)
      return err_corrupt(x->path, at + 4 * (uint64_t)i, "anchors do not ascend");
  return REMIXDB_OK;
}

// What a segment says of its entries, without the tables. NULL when all is well, else what is wrong.
static const char *check_entries(const struct remix_index *ix, const uint8_t *s) {
  const uint8_t *const sel = s + ix->lay.sel, *const dbits = s + ix->lay.dbits;
  const uint32_t nr = seg_nr(ix, s), flags = s[ix->lay.head + 1];
  if (nr == 0 || nr > REMIX_SEG) return "count of entries out of range";
  if (flags & ~REMIX_SEG_FAR) return "unknown flags";
  const uint32_t in = set32_below(nr), old = set32_eq8(sel, REMIX_OLD, REMIX_OLD);
  if ((set32_eq8(sel, 0xFF, 0) | in) != UINT32_MAX || set32_eq8(sel, 0x20, 0) != UINT32_MAX) return "malformed selector";
  if (old & 1) return "begins with an old version";
  const uint32_t zero = set32_eq16(dbits, 0), same = set32_eq16(dbits, REMIX_BIT_SAME), far = set32_eq16(dbits, REMIX_BIT_FAR);
  if (!(zero & 1) || (zero | in) != UINT32_MAX) return "malformed discriminating bit";
  if (same != old) return "old versions and discriminating bits disagree";
  if ((far != 0) != (flags == REMIX_SEG_FAR)) return "flag of far bits is wrong";
  if (set32_lt16(dbits, (REMIX_BYTE_MAX + 1) << 4) != ~(same | far)) return "malformed discriminating bit";
  // A bit within a byte is at most 8: in each 16-bit lane, adding 7 to the low 4 bits must not carry, but for the two marks.
  uint32_t over = 0;
  for (uint32_t i = 0; i < REMIX_SEG; i += 4) {
    const uint64_t carry = ((load64le(dbits + 2 * i) & 0x000F000F000F000Full) + 0x0007000700070007ull) & 0x0010001000100010ull;
    over += (uint32_t)((carry >> 4) * 0x0001000100010001ull >> 48);
  }
  if (over != set32_count(same | far)) return "malformed discriminating bit";
  // Versions of one key come from ever older runs.
  for (uint32_t m = old; m; m &= m - 1) {
    const uint32_t i = set32_first(m);
    if ((sel[i] & REMIX_RUN) >= (sel[i - 1] & REMIX_RUN)) return "versions of a key out of order";
  }
  return NULL;
}

// Every segment, and, unless that is known, that its cursor offsets and selectors walk each table exactly from its beginning to its end. Counts what is live on
// the way.
static enum remixdb_status check_segments(struct remix *x, bool walked) {
  struct remix_index *const ix = x->index;
  ix->live = mem_alloc(((size_t)x->nr_segs + 1) * sizeof(ix->live[0]));
  if (!ix->live) return REMIXDB_NOMEM;
  sst_pos pos[REMIX_RUNS_MAX];
  uint64_t seen[REMIX_RUNS_MAX] = {0}, entries = 0, keys = 0;
  for (uint32_t r = 0; r < x->nr_runs; r++) pos[r] = sst_advance(x->runs[r], sst_pos_make(0, 0), 0);
  for (uint32_t i = 0; i < x->nr_segs; i++) {
    const uint8_t *const s = seg_at(ix, i), *const sel = s + ix->lay.sel;
    const uint64_t at = (uint64_t)(s - x->image);
    const char *const wrong = check_entries(ix, s);
    if (unlikely(wrong != NULL)) return err_corrupt(x->path, at, "segment %u: %s", i, wrong);
    const uint32_t nr = seg_nr(ix, s), in = set32_below(nr);
    uint32_t known = walked ? nr : 0;
    for (uint32_t r = 0; r < x->nr_runs && !walked; r++) {
      if (unlikely(seg_off(ix, s, r) != pos[r])) return err_corrupt(x->path, at, "segment %u: cursor offset of run %u", i, r);
      const uint32_t n = set32_count(set32_eq8(sel, REMIX_RUN, (uint8_t)r) & in);
      pos[r] = sst_advance(x->runs[r], pos[r], n);
      seen[r] += n;
      known += n;
    }
    if (unlikely(known != nr)) return err_corrupt(x->path, at, "segment %u: selector of a run that is not there", i);
    entries += nr;
    ix->live[i] = (uint32_t)keys;  // tables have fewer than 2^24 records each
    keys += set32_count(seg_live(ix, s));
  }
  ix->live[x->nr_segs] = (uint32_t)keys;
  for (uint32_t r = 0; r < x->nr_runs && !walked; r++)
    if (pos[r] != sst_end(x->runs[r]) || seen[r] != x->runs[r]->nr_records)
      return err_corrupt(x->path, 0, "%llu entries of run %u, whose table has %llu records", (unsigned long long)seen[r], r,
                         (unsigned long long)x->runs[r]->nr_records);
  if (entries != x->nr_entries) return err_corrupt(x->path, 48, "counts %llu entries", (unsigned long long)x->nr_entries);
  if (keys != x->nr_keys) return err_corrupt(x->path, 56, "counts %llu keys", (unsigned long long)x->nr_keys);
  return REMIXDB_OK;
}

// Reads the file and makes x->image of it; *walked_out is set when its cursor offsets are known to be right. What tells another format from a damaged file is looked
// at first.
static enum remixdb_status read_image(struct remix *x, bool *walked_out) {
  struct env *const env = x->ctx->env;
  int fd = -1;
  uint8_t head[40];
  struct mem_map file = {0}, *const map = &((struct remix_whole *)x)->map;
  enum remixdb_status s = env_open(env, x->path, ENV_READ, &fd);
  if (s == REMIXDB_NOTFOUND) return err_corrupt(x->path, 0, "file is missing");
  if (s != REMIXDB_OK) return s;
  s = env_size(env, fd, x->path, &x->file_size);
  if (s == REMIXDB_OK) s = env_read(env, fd, x->path, head, sizeof(head), 0);
  if (s != REMIXDB_OK) goto out;
  if (memcmp(head, REMIX_MAGIC, 8) != 0) {
    s = err_corrupt(x->path, 0, "not a REMIX file");
    goto out;
  }
  if (load64le(head + 32) != x->file_size || x->file_size < remix_segs_off(0) + 4 + 8) {
    s = err_corrupt(x->path, 0, "malformed header, or a file of %llu bytes cut from %llu", (unsigned long long)x->file_size,
                    (unsigned long long)load64le(head + 32));
    goto out;
  }
  s = mem_map_table(x->file_size, &file);
  if (s != REMIXDB_OK) goto out;
  s = env_read(env, fd, x->path, file.ptr, x->file_size, 0);
  if (s != REMIXDB_OK) goto out;
  const uint32_t format = load32le(file.ptr + 8);
  if (hash64_seed(file.ptr, x->file_size - 8, x->number) != load64le(file.ptr + x->file_size - 8)) {
    s = err_corrupt(x->path, x->file_size - 8, "checksum does not match");
  } else if (format > REMIX_FORMAT) {  // after the checksum: a flipped bit is damage, not a later format
    s = err_set(REMIXDB_VERSION, "%s: format %u is newer than this library's %u", x->path, format, REMIX_FORMAT);
  } else if (format == 0) {
    s = err_corrupt(x->path, 8, "format 0");
  } else if (format == 1) {
    *map = file;
    x->image_size = x->file_size;
    file = (struct mem_map){0};
  } else {
    s = remix_unpack(file.ptr, x->file_size, x->runs, x->nr_runs, x->path, map, &x->image_size);
    *walked_out = true;
  }
  x->image = map->ptr;
out:
  mem_unmap(&file);
  env_close_quiet(env, fd);
  return s;
}

static void remix_free(struct remix *x) {
  if (x->runs)
    for (uint32_t r = 0; r < x->nr_runs; r++) sst_unref(x->runs[r]);
  mem_free(x->runs);
  mem_unmap(&((struct remix_whole *)x)->map);
  mem_free(x->path);
  anchors_fini(&x->index->anchors);
  mem_free(x->index->live);
  mem_free(x);
}

// The image as it was built, copied to where tables are that are read at random.
static enum remixdb_status take_image(struct remix *x, const uint8_t *image, size_t size, uint64_t file_size) {
  struct mem_map *const map = &((struct remix_whole *)x)->map;
  const enum remixdb_status s = mem_map_table(size, map);
  if (s != REMIXDB_OK) return s;
  memcpy(map->ptr, image, size);
  x->image = map->ptr;
  x->image_size = size;
  x->file_size = file_size;
  return REMIXDB_OK;
}

// image NULL: from the file.
static enum remixdb_status open_from(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs, uint32_t nr_runs, const uint8_t *image,
                                     size_t image_size, uint64_t file_size, struct remix **out) {
  char name[32];
  enum remixdb_status s = REMIXDB_NOMEM;
  *out = NULL;
  assert(nr_runs <= REMIX_RUNS_MAX);
  struct remix_whole *const whole = mem_calloc(1, sizeof(*whole));
  if (!whole) return REMIXDB_NOMEM;
  struct remix *const x = &whole->x;
  x->index = &whole->ix;
  x->ctx = ctx;
  x->number = number;
  atomic_init(&x->refs, 1);
  atomic_init(&x->obsolete, false);
  atomic_init(&x->jumps, 0);
  atomic_init(&x->jumps_due, 0);

  x->runs = mem_alloc(nr_runs * sizeof(x->runs[0]));
  if (!x->runs) goto out;
  for (; x->nr_runs < nr_runs; x->nr_runs++) {
    x->runs[x->nr_runs] = runs[x->nr_runs];
    sst_ref(x->runs[x->nr_runs]);
  }
  x->path = mem_alloc(ENV_PATH_MAX);
  if (!x->path) goto out;
  remix_name(name, number);
  s = env_path(x->path, ctx->dir, name);
  if (s != REMIXDB_OK) goto out;
  char *const path = mem_realloc(x->path, strlen(x->path) + 1);
  if (!path) {
    s = REMIXDB_NOMEM;
    goto out;
  }
  x->path = path;

  bool walked = false;
  s = image ? take_image(x, image, image_size, file_size) : read_image(x, &walked);
  if (s == REMIXDB_OK && x->image_size < remix_segs_off(nr_runs)) s = err_corrupt(x->path, 32, "too short for %u runs", nr_runs);
  if (s == REMIXDB_OK) s = check_header(x);
  if (s == REMIXDB_OK) s = check_anchors(x);
  if (s == REMIXDB_OK) s = check_segments(x, walked);
  if (s == REMIXDB_OK) s = anchors_init(&x->index->anchors, x->index->anchors.offs, x->index->anchors.bytes, x->nr_segs);
out:
  if (s != REMIXDB_OK)
    remix_free(x);
  else
    *out = x;
  return s;
}

enum remixdb_status remix_open(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs, uint32_t nr_runs,
                               struct remix **out) {
  return open_from(ctx, number, runs, nr_runs, NULL, 0, 0, out);
}

enum remixdb_status remix_open_built(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs, uint32_t nr_runs, const uint8_t *image,
                                     size_t image_size, uint64_t file_size, struct remix **out) {
  return open_from(ctx, number, runs, nr_runs, image, image_size, file_size, out);
}

void remix_ref(struct remix *x) { atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed); }

void remix_unref(struct remix *x) {
  // acq_rel: what others did with it happened before it goes
  if (!x || atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) != 1) return;
  if (atomic_load_explicit(&x->obsolete, memory_order_relaxed)) {
    if (x->ctx->retired) sst_retired_add(x->ctx->retired, -1, x->file_size);
    // A file that cannot be removed now is removed when the store is opened next.
    const enum remixdb_status s = env_unlink(x->ctx->env, x->path);
    (void)s;
  }
  remix_free(x);
}

void remix_retire(struct remix *x) {
  if (!atomic_exchange_explicit(&x->obsolete, true, memory_order_relaxed) && x->ctx->retired) sst_retired_add(x->ctx->retired, 1, x->file_size);
}

void remix_make_young(struct remix *x) {
  struct remix_index *const ix = x->index;
  uint32_t live = 0;
  ix->young = true;
  for (uint32_t i = 0; i < x->nr_segs; i++) {
    ix->live[i] = live;
    live += set32_count(seg_live(ix, seg_at(ix, i)));
  }
  ix->live[x->nr_segs] = live;
}

bool remix_is_young(const struct remix *x) { return x->index->young; }

size_t remix_memory(const struct remix *x) {
  const struct remix_whole *const whole = (const struct remix_whole *)x;
  return sizeof(*whole) + x->nr_runs * sizeof(x->runs[0]) + whole->map.size + anchors_memory(&whole->ix.anchors) +
         ((size_t)x->nr_segs + 1) * sizeof(whole->ix.live[0]);
}

struct kref remix_anchor(const struct remix *x, uint32_t seg) { return anchors_at(&x->index->anchors, seg); }

// ---- searching within a segment

// Whether the block has to be read from disk for one who has the hold.
static inline bool missing(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return !cache_has(&t->cache, block) && !sst_holds(h, t, block) && !sst_holds_ahead(h, t, block) && !sst_holds_behind(h, t, block);
}

// The record of entry i, until the epoch is left: what a search looks at is not pinned. nr: records of the run that will be read from there on.
static enum remixdb_status entry_read(const struct remix *x, const uint8_t *s, uint32_t i, uint32_t nr, struct sst_hold *h, struct kv_rec *rec_out) {
  const uint32_t run = s[x->index->lay.sel + i] & REMIX_RUN;
  REMIX_COUNT(key_reads);
  sst_want_place(x->runs[run], seg_off(x->index, s, run));
  return sst_read_few(x->runs[run], seg_pos(x, s, run, i), nr, false, h, rec_out);
}

static inline uint32_t cursor_place(const struct remix_cursor *c) { return c->seg * REMIX_SEG + c->at; }

// How many entries it has stepped on by since the last seek, but those before it stepped back.
static inline uint32_t cursor_came(const struct remix_cursor *c) { return c->way == REMIX_ON ? c->came + cursor_place(c) - c->from : c->came; }

// How many records of the run of entry i a cursor is thought to read from that one on: as it steps, it will come to as many entries as after the last seeks, and who has gone farther
// goes as far again. A seek after which nobody has stepped reads one. Stepping back, it may need all of the block.
static uint32_t cursor_few(const struct remix_cursor *c, const uint8_t *s, uint32_t i) {
  if (c->way == REMIX_BACK) return SST_ALL;
  if (c->way == REMIX_SOUGHT && c->usual == 0) return 1;
  const uint32_t came = cursor_came(c), left = came < c->usual ? c->usual - came : came - c->usual;
  const uint8_t *const sel = s + c->x->index->lay.sel;
  const uint32_t share = set32_count(set32_eq8(sel, REMIX_RUN, sel[i] & REMIX_RUN));  // of the segment
  return 1 + share * ((left < USUAL_MAX ? left : USUAL_MAX) + USUAL_MORE) / REMIX_SEG;
}

// The same for a seek, with the cursor's hold of the run. In a young view what has to be read for it is a jump.
static enum remixdb_status entry_seek(struct remix_cursor *c, const uint8_t *s, uint32_t i, struct kv_rec *rec_out) {
  const struct remix *const x = c->x;
  const uint32_t run = s[x->index->lay.sel + i] & REMIX_RUN;
  if (x->index->young) c->jumps += missing(&c->holds[run], x->runs[run], sst_pos_block(seg_pos(x, s, run, i)));
  return entry_read(x, s, i, cursor_few(c, s, i), &c->holds[run], rec_out);
}

// Asks for the memory that reading entry i is going to look at.
static inline void entry_want(const struct remix *x, const uint8_t *s, uint32_t i) {
  const uint32_t run = s[x->index->lay.sel + i] & REMIX_RUN;
  sst_want(x->runs[run], seg_pos(x, s, run, i));
}

// Where a key is, or would be, in a segment.
struct spot {
  uint32_t at;  // first entry whose key is >= the key; the segment's count when there is none
  bool equal;
};

// For segments whose discriminating bits do not all fit 16 bits. c: whose holds are used; NULL: h is, for all runs.
static enum remixdb_status spot_binary(const struct remix *x, const uint8_t *s, struct kref key, struct remix_cursor *c,
                                       struct sst_hold *h, struct spot *out, struct kv_rec *rec_out) {
  const struct remix_index *const ix = x->index;
  const uint8_t *const sel = s + ix->lay.sel;
  uint32_t lo = 0, hi = seg_nr(ix, s);
  out->equal = false;
  while (lo < hi) {
    uint32_t mid = (lo + hi) / 2;
    while (mid > lo && sel[mid] & REMIX_OLD) mid--;  // the newest version stands for all
    const enum remixdb_status st = c ? entry_seek(c, s, mid, rec_out) : entry_read(x, s, mid, 1, h, rec_out);
    if (st != REMIXDB_OK) return st;
    REMIX_COUNT(key_compares);
    const int r = kv_cmp(kref(rec_out->key, rec_out->klen), key);
    if (r == 0) {
      out->at = mid;
      out->equal = true;
      return REMIXDB_OK;
    }
    if (r > 0) {
      hi = mid;
    } else {
      lo = mid + 1;
      while (lo < hi && sel[lo] & REMIX_OLD) lo++;
    }
  }
  out->at = lo;
  return REMIXDB_OK;
}

// The memory of nr entries of a segment, from entry `from` on: in each run a stretch. Where the blocks are is fetched for all of them before it is looked at.
static void group_want(const struct remix_cursor *c, const uint8_t *s, uint32_t from, uint32_t nr) {
  const struct remix *const x = c->x;
  const struct remix_index *const ix = x->index;
  const uint8_t *const sel = s + ix->lay.sel;
  struct {
    uint32_t run, before, nr;
  } parts[REMIX_SEG];
  uint32_t nr_parts = 0;
  for (uint32_t m = seg_live(ix, s) & ~set32_below(from) & set32_below(from + nr), mine; m; m &= ~mine) {
    const uint32_t i = set32_first(m), run = sel[i] & REMIX_RUN, all = set32_eq8(sel, REMIX_RUN, (uint8_t)run);
    mine = all & m;
    parts[nr_parts].run = run;
    parts[nr_parts].before = set32_count(all & set32_below(i));
    parts[nr_parts++].nr = set32_count(mine);
    sst_want_place(x->runs[run], seg_off(ix, s, run));
  }
  for (uint32_t i = 0; i < nr_parts; i++) {
    const struct sst *const t = x->runs[parts[i].run];
    sst_want_stretch(t, sst_advance(t, seg_off(ix, s, parts[i].run), parts[i].before), parts[i].nr, &c->holds[parts[i].run]);
  }
}

// In a segment of a cursor. The one key that is read is the candidate's (see remix/remix.h). Tags tell where to ask for memory early: an entry
// with the key's tag is the candidate most of the time, and is known before it; without one the key is not there, and the entry behind
// the candidate is where the cursor will stand as often as at the candidate. Who stepped on after the last seek will do so after this one: what it
// comes to then is asked for before the candidate is waited for.
static enum remixdb_status spot_find(struct remix_cursor *c, uint32_t seg, const uint8_t *s, struct kref key, uint32_t ahead, struct spot *out) {
  const struct remix *const x = c->x;
  const struct remix_index *const ix = x->index;
  struct kv_rec rec;
  c->front_seg = seg;
  c->front_at = 0;
  if (unlikely(s[ix->lay.head + 1] & REMIX_SEG_FAR)) return spot_binary(x, s, key, c, NULL, out, &rec);
  const uint8_t *const dbits = s + ix->lay.dbits;
  const uint32_t nr = seg_nr(ix, s), base = seg_base(ix, s);
  const uint32_t tagged = x->tags ? set32_eq8(s, 0xFF, remix_tag(hash64(key.ptr, key.len))) & set32_below(nr) : 0;
  if (ahead)  // where the blocks of all runs are: each group of entries would wait for those of its own
    for (uint32_t r = 0; r < x->nr_runs; r++) sst_want_place(x->runs[r], seg_off(ix, s, r));
  if (tagged) entry_want(x, s, set32_first(tagged));
  const uint32_t cand = blind_candidate(dbits, nr, base, key);
  if (ahead) {
    prefetch(&ix->live[seg + 1]);  // for the step to the next segment
    group_want(c, s, cand, ahead);
    c->front_at = cand + ahead < nr ? cand + ahead : nr;
  } else if (x->tags && !tagged && cand + 1 < nr) {
    entry_want(x, s, cand + 1);
  }
  const enum remixdb_status st = entry_seek(c, s, cand, &rec);
  if (st != REMIXDB_OK) return st;
  REMIX_COUNT(key_compares);
  out->at = blind_place(dbits, nr, base, key, cand, kref(rec.key, rec.klen), &out->equal);
  return REMIXDB_OK;
}

// Without tags. An entry that is the only one that can be the key, and is deleted, need not be read.
static enum remixdb_status get_blind(const struct remix *x, const uint8_t *s, struct kref key, struct sst_hold *h,
                                     struct kv_rec *rec_out) {
  const struct remix_index *const ix = x->index;
  enum remixdb_status st;
  if (unlikely(s[ix->lay.head + 1] & REMIX_SEG_FAR)) {
    struct spot spot;
    st = spot_binary(x, s, key, NULL, h, &spot, rec_out);
    return st == REMIXDB_OK && (!spot.equal || (rec_out->tomb && !ix->young)) ? REMIXDB_NOTFOUND : st;
  }
  const uint32_t cand = blind_candidate(s + ix->lay.dbits, seg_nr(ix, s), seg_base(ix, s), key);
  if (s[ix->lay.sel + cand] & REMIX_TOMB && !ix->young) return REMIXDB_NOTFOUND;
  st = entry_read(x, s, cand, 1, h, rec_out);
  if (st != REMIXDB_OK) return st;
  REMIX_COUNT(key_compares);
  return kv_eq(kref(rec_out->key, rec_out->klen), key) ? REMIXDB_OK : REMIXDB_NOTFOUND;
}

// Of entries with the key's tag the one that the blind search leaves: no other can be the key.
static __attribute__((noinline)) uint32_t only_candidate(const struct remix_index *ix, const uint8_t *s, struct kref key, uint32_t tagged) {
  if (unlikely(s[ix->lay.head + 1] & REMIX_SEG_FAR)) return tagged;
  return tagged & 1u << blind_candidate(s + ix->lay.dbits, seg_nr(ix, s), seg_base(ix, s), key);
}

static inline bool key_bit(struct kref key, uint32_t base, uint32_t dbit) {
  const uint32_t byte = base + (dbit >> 4), b = dbit & 15;
  return byte < key.len && (b == 0 || key.ptr[byte] >> (8 - b) & 1);
}

// Whether the key has the bits in which the newest version `i` of some key differs from its neighbours: three in four of other keys have not. For who has to read a
// block to find out more; the search would tell nearly all of them, but takes a good part of what a read from the page cache does.
static bool entry_fits(const struct remix_index *ix, const uint8_t *s, struct kref key, uint32_t i) {
  const uint8_t *const dbits = s + ix->lay.dbits;
  const uint32_t base = seg_base(ix, s), behind = ~set32_eq16(dbits, REMIX_BIT_SAME) & set32_above(i) & set32_below(seg_nr(ix, s));
  if (unlikely(s[ix->lay.head + 1] & REMIX_SEG_FAR)) return true;
  if (i > 0 && !key_bit(key, base, load16le(dbits + 2 * i))) return false;
  return behind == 0 || !key_bit(key, base, load16le(dbits + 2 * set32_first(behind)));
}

const uint8_t *remix_get_want(const struct remix *x, struct kref key) {
  const struct remix_index *const ix = x->index;
  if (unlikely(x->nr_segs == 0)) return NULL;
  const uint8_t *const s = seg_at(ix, anchors_find(&ix->anchors, key));
  seg_prefetch(ix, s);
  return s;
}

enum remixdb_status remix_get(struct remix *x, struct kref key, uint64_t hash, struct sst_hold *h, struct kv_rec *rec_out) {
  return remix_get_wanted(x, remix_get_want(x, key), key, hash, h, rec_out);
}

enum remixdb_status remix_get_wanted(struct remix *x, const uint8_t *s, struct kref key, uint64_t hash, struct sst_hold *h, struct kv_rec *rec_out) {
  const struct remix_index *const ix = x->index;
  if (unlikely(!s)) return REMIXDB_NOTFOUND;
  if (!x->tags) return get_blind(x, s, key, h, rec_out);
  uint32_t m = set32_eq8(s, 0xFF, remix_tag(hash)) & seg_live(ix, s);
  // where several have the tag one would be read in vain as often as not; and of a young view most keys are not there
  const bool sought = unlikely(m & (m - 1)) || (unlikely(ix->young) && m);
  if (unlikely(sought)) m = only_candidate(ix, s, key, m);
  while (m) {
    const uint32_t i = set32_first(m), run = s[ix->lay.sel + i] & REMIX_RUN;
    struct sst *const t = x->runs[run];
    sst_want_place(t, seg_off(ix, s, run));
    const sst_pos pos = seg_pos(x, s, run, i);
    if (!sought && unlikely(missing(h, t, sst_pos_block(pos))) && !entry_fits(ix, s, key, i)) break;  // it is the only one
    REMIX_COUNT(key_reads);
    const enum remixdb_status st = sst_read_few(t, pos, 1, false, h, rec_out);
    if (unlikely(st != REMIXDB_OK)) return st;
    REMIX_COUNT(key_compares);
    if (likely(kv_eq(kref(rec_out->key, rec_out->klen), key))) return REMIXDB_OK;
    m &= m - 1;
  }
  return REMIXDB_NOTFOUND;
}

// ---- many keys at once

// Group prefetching (see anchors_find_many), then line by line of the segment.
void remix_probe_find(struct remix_probe *p, const uint8_t *which, uint32_t nr) {
  struct anchors_want wants[ANCHORS_MANY_MAX];
  uint32_t found[ANCHORS_MANY_MAX];
  for (uint32_t from = 0; from < nr; from += ANCHORS_MANY_MAX) {
    const uint32_t n = nr - from < ANCHORS_MANY_MAX ? nr - from : ANCHORS_MANY_MAX;
    for (uint32_t i = 0; i < n; i++) {
      const struct remix_probe *const w = &p[which[from + i]];
      wants[i] = (struct anchors_want){&w->x->index->anchors, w->key};
    }
    anchors_find_many(wants, n, found);
    for (uint32_t i = 0; i < n; i++) {
      struct remix_probe *const w = &p[which[from + i]];
      w->search = false;
      w->set = 0;
      w->seg = w->x->nr_segs ? seg_at(w->x->index, found[i]) : NULL;
    }
  }
  for (uint32_t i = 0; i < nr; i++) {
    const struct remix_probe *const w = &p[which[i]];
    if (!w->seg) continue;
    const struct remix_layout *const lay = &w->x->index->lay;
    const uint32_t needed = w->x->tags && !w->x->index->young ? lay->dbits : lay->stride;
    for (uint32_t o = 0; o < needed; o += CACHE_LINE) prefetch(w->seg + o);
    prefetch(w->seg + needed - 1);  // a segment need not begin with a line
  }
  for (uint32_t i = 0; i < nr; i++) {
    struct remix_probe *const w = &p[which[i]];
    const uint8_t *const s = w->seg;
    if (!s) continue;
    const struct remix_index *const ix = w->x->index;
    if (likely(w->x->tags)) {
      w->set = set32_eq8(s, 0xFF, remix_tag(w->hash)) & seg_live(ix, s);
      if (unlikely(ix->young) && w->set) w->set = only_candidate(ix, s, w->key, w->set);
    } else if (unlikely(s[ix->lay.head + 1] & REMIX_SEG_FAR)) {
      w->search = true;
    } else {
      w->set = 1u << blind_candidate(s + ix->lay.dbits, seg_nr(ix, s), seg_base(ix, s), w->key) & seg_live(ix, s);
    }
  }
}

bool remix_probe_fits(const struct remix_probe *p) {
  const struct remix_index *const ix = p->x->index;
  return !p->x->tags || entry_fits(ix, p->seg, p->key, p->entry);
}

void remix_probe_next(struct remix_probe *p, const uint8_t *which, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) {
    struct remix_probe *const w = &p[which[i]];
    const struct remix_index *const ix = w->x->index;
    const uint32_t entry = set32_first(w->set), run = w->seg[ix->lay.sel + entry] & REMIX_RUN;
    w->set &= w->set - 1;
    w->entry = entry;
    w->sst = w->x->runs[run];
    w->pos = seg_off(ix, w->seg, run);
    w->at = set32_count(set32_eq8(w->seg + ix->lay.sel, REMIX_RUN, (uint8_t)run) & set32_below(entry));
    prefetch(&w->sst->nr_recs[sst_pos_block(w->pos)]);
  }
  for (uint32_t i = 0; i < nr; i++) {
    struct remix_probe *const w = &p[which[i]];
    REMIX_COUNT(key_reads);
    w->pos = sst_advance(w->sst, w->pos, w->at);
    if (w->sst->cache.cache) prefetch((const void *)&w->sst->cache.slots[sst_pos_block(w->pos)]);
  }
}

// ---- cursors

void remix_cursor_init(struct remix_cursor *c, struct blkio_queue *queue) {
  *c = (struct remix_cursor){0};
  c->queue = queue;
}

#define JUMPS_TOGETHER 64u  // are added to the REMIX's at once, so that scanning threads do not fight for the line

void remix_jumped(struct remix *x, uint64_t jumps) {
  const uint64_t sum = atomic_fetch_add_explicit(&x->jumps, jumps, memory_order_relaxed) + jumps;
  if (x->ctx->worn && sum >= atomic_load_explicit(&x->jumps_due, memory_order_relaxed)) x->ctx->worn(x->ctx->worn_arg, x);
}

static __attribute__((noinline)) void cursor_jumped(struct remix_cursor *c) {
  remix_jumped(c->x, c->jumps);
  c->jumps = 0;
}

// What is known of where the runs stand is forgotten: the cursor goes elsewhere, or a search uses its holds.
static inline void cursor_leave(struct remix_cursor *c) {
  for (uint32_t r = 0; r < c->x->nr_runs; r++) c->near[r].nr = c->near[r].ahead = 0;
  c->begun = c->x->index->young;
  if (unlikely(c->jumps >= JUMPS_TOGETHER)) cursor_jumped(c);
}

static void cursor_drop(struct remix_cursor *c) {
  if (!c->x) return;
  cursor_leave(c);
  if (unlikely(c->jumps)) cursor_jumped(c);
  for (uint32_t r = 0; r < c->x->nr_runs; r++) sst_hold_drop(&c->holds[r]);
}

static inline void cursor_end(struct remix_cursor *c) { c->seg = c->x ? c->x->nr_segs : 0; }

void remix_cursor_fini(struct remix_cursor *c) {
  cursor_drop(c);
  for (uint32_t r = 0; r < c->cap; r++) sst_hold_fini(&c->holds[r]);
  mem_free(c->holds);
  remix_cursor_init(c, NULL);
}

enum remixdb_status remix_cursor_set(struct remix_cursor *c, struct remix *x) {
  c->came = cursor_came(c);
  cursor_drop(c);
  c->x = NULL;
  cursor_end(c);
  c->from = cursor_place(c);
  c->s = NULL;
  c->no_room = c->wanted = false;
  for (uint32_t r = 0; !x && r < c->cap; r++) sst_hold_fini(&c->holds[r]);  // memory of their own, too
  if (x && x->nr_runs > c->cap) {
    struct sst_hold *const holds = mem_realloc(c->holds, x->nr_runs * (sizeof(*holds) + sizeof(*c->near)));
    if (!holds) return REMIXDB_NOMEM;
    memset(holds + c->cap, 0, (x->nr_runs - c->cap) * sizeof(*holds));
    c->holds = holds;
    c->cap = x->nr_runs;
    c->near = (struct remix_near *)(holds + c->cap);
    memset(c->near, 0, c->cap * sizeof(*c->near));
  }
  c->x = x;
  cursor_end(c);
  c->from = cursor_place(c);
  return REMIXDB_OK;
}

static inline void cursor_seg(struct remix_cursor *c, uint32_t seg) {
  const struct remix_index *const ix = c->x->index;
  REMIX_COUNT(segments);
  c->seg = seg;
  c->s = seg_at(ix, seg);
  c->sel = c->s + ix->lay.sel;
  c->live = seg_live(ix, c->s);
}

static inline void cursor_turn(struct remix_cursor *c, enum remix_way way) {
  c->way = way;
  c->warm = 0;
  c->from = cursor_place(c);
}

// Before it goes somewhere else.
static inline void cursor_sought(struct remix_cursor *c) {
  cursor_turn(c, REMIX_SOUGHT);
  c->group = REMIX_GROUP_MIN;
  c->usual = c->came = 0;
}

// The average length with one more scan in it: goes up sooner than down, since to read twice costs more than to read too much.
static inline uint32_t usual_length(uint32_t usual, uint32_t came) {
  if (came > USUAL_MAX) came = USUAL_MAX;
  return came > usual ? (usual + came + 1) / 2 : (usual * 3 + came) / 4;
}

// Before the first of several steps one way.
static void cursor_step_way(struct remix_cursor *c, enum remix_way way) {
  if (way == REMIX_BACK || c->way == REMIX_BACK) {
    c->front_seg = c->seg;
    c->front_at = c->at + (way == REMIX_BACK);
    c->group = REMIX_GROUP_MIN;
  }
  // a hold may have nothing of its block before the records that were read
  if (way == REMIX_BACK)
    for (uint32_t r = 0; r < c->x->nr_runs; r++) c->near[r].nr = 0;
  cursor_turn(c, way);
  c->cool = REMIX_SEG;
}

// By binary search.
static uint32_t live_between(const uint32_t *live, uint32_t lo, uint32_t hi, uint32_t rank) {
  while (hi - lo > 1) {
    const uint32_t mid = lo + (hi - lo) / 2;
    REMIX_COUNT(probes);
    if (live[mid] > rank) hi = mid;
    else lo = mid;
  }
  return lo;
}

// The segment that holds the live entry before which `rank` others come in the view. It is known to be at or behind `from`, which
// is not far from it most of the time.
static uint32_t live_after(const struct remix *x, uint32_t from, uint32_t rank) {
  const uint32_t *const live = x->index->live;
  uint32_t lo = from, hi = x->nr_segs;
  for (uint32_t step = 1; step < hi - lo; step *= 2) {
    REMIX_COUNT(probes);
    if (live[lo + step] > rank) hi = lo + step;
    else lo += step;
  }
  return live_between(live, lo, hi, rank);
}

// The same for one that is known to be before `to`.
static uint32_t live_before(const struct remix *x, uint32_t to, uint32_t rank) {
  const uint32_t *const live = x->index->live;
  uint32_t hi = to, lo = to - 1;
  for (uint32_t step = 1; live[lo] > rank; step *= 2) {
    REMIX_COUNT(probes);
    hi = lo;
    lo = lo > step ? lo - step : 0;
  }
  return live_between(live, lo, hi, rank);
}

// Asks for the memory of the records ahead of a cursor that steps on, group by group, so that it is there when they are read. Runs are
// read in turn, each of them in order: which records come next in which run is in the selectors, and the processor cannot know it.
static void warm_on(struct remix_cursor *c) {
  const struct remix_index *const ix = c->x->index;
  const uint32_t nr = seg_nr(ix, c->s);
  if (unlikely(c->front_seg - c->seg > 1 || (c->front_seg == c->seg && c->front_at < c->at))) {  // left behind
    c->front_seg = c->seg;
    c->front_at = c->at;
  }
  uint32_t ahead = c->front_seg == c->seg ? c->front_at - c->at : nr - c->at + c->front_at;
  if (ahead <= REMIX_GROUP_MIN && c->front_seg < c->x->nr_segs) {
    const uint8_t *const s = seg_at(ix, c->front_seg);
    const uint32_t left = seg_nr(ix, s) - c->front_at, n = c->group < left ? c->group : left;
    group_want(c, s, c->front_at, n);
    ahead += n;
    c->front_at += n;
    if (n == left) {
      c->front_at = 0;
      if (++c->front_seg < c->x->nr_segs) seg_prefetch(ix, seg_at(ix, c->front_seg));
    }
    if (c->group < REMIX_GROUP_MAX) c->group *= 2;
  }
  const uint32_t until = c->at + (ahead > REMIX_GROUP_MIN ? ahead - REMIX_GROUP_MIN : 1);
  c->warm = until < REMIX_SEG ? until : REMIX_SEG;
}

// The same for one that steps back. Its groups stay small: in large ones much of what was asked for was waited for all the same.
static void warm_back(struct remix_cursor *c) {
  const struct remix_index *const ix = c->x->index;
  if (unlikely(c->seg - c->front_seg > 1 || (c->front_seg == c->seg && c->front_at > c->at + 1))) {
    c->front_seg = c->seg;
    c->front_at = c->at + 1;
  }
  uint32_t ahead = c->at + 1 - c->front_at + (c->front_seg == c->seg ? 0 : seg_nr(ix, seg_at(ix, c->front_seg)));
  if (ahead <= REMIX_GROUP_MIN && (c->front_at || c->front_seg)) {
    if (c->front_at == 0) c->front_at = seg_nr(ix, seg_at(ix, --c->front_seg));
    const uint32_t n = REMIX_GROUP_MIN < c->front_at ? REMIX_GROUP_MIN : c->front_at;
    c->front_at -= n;
    group_want(c, seg_at(ix, c->front_seg), c->front_at, n);
    ahead += n;
  }
  const uint32_t more = ahead > REMIX_GROUP_MIN ? ahead - REMIX_GROUP_MIN : 1;
  c->cool = c->at >= more ? c->at - more + 1 : 0;
}

// The runs of so many entries of the cursor's segment go on by one record, or back.
static inline void near_pass(struct remix_cursor *c, uint32_t from, uint32_t to, uint32_t by) {
  for (uint32_t i = from; i < to; i++) c->near[c->sel[i] & REMIX_RUN].idx += by;
}

// To the first live entry behind segment c->seg.
static void cursor_next_segment(struct remix_cursor *c) {
  const struct remix *const x = c->x;
  const uint32_t rank = x->index->live[c->seg + 1];
  if (rank == x->index->live[x->nr_segs]) {
    cursor_end(c);
    return;
  }
  const uint32_t seg = live_after(x, c->seg + 1, rank);
  if (seg == c->seg + 1) near_pass(c, c->at, seg_nr(x->index, c->s), 1);
  else cursor_leave(c);
  cursor_seg(c, seg);
  c->at = set32_first(c->live);
  near_pass(c, 0, c->at, 1);
  if (c->way == REMIX_ON) warm_on(c);  // not when a seek ends behind its segment
}

void remix_next_far(struct remix_cursor *c) {
  const uint32_t m = c->live & set32_above(c->at);
  if (c->way != REMIX_ON) cursor_step_way(c, REMIX_ON);
  if (m == 0) {
    cursor_next_segment(c);
    return;
  }
  const uint32_t to = set32_first(m);
  near_pass(c, c->at, to, 1);
  c->at = to;
  if (to >= c->warm) warm_on(c);
}

// To the last one before it.
static void cursor_prev_segment(struct remix_cursor *c) {
  const struct remix *const x = c->x;
  const uint32_t rank = x->index->live[c->seg];
  if (rank == 0) {
    cursor_end(c);
    return;
  }
  const uint32_t seg = live_before(x, c->seg, rank - 1);
  if (seg == c->seg - 1) near_pass(c, 0, c->at, UINT32_MAX);
  else cursor_leave(c);
  cursor_seg(c, seg);
  c->at = set32_last(c->live);
  near_pass(c, c->at, seg_nr(x->index, c->s), UINT32_MAX);
  if (c->way == REMIX_BACK) warm_back(c);
}

// To the first live entry that is not before entry `at` of segment seg.
static void cursor_stand(struct remix_cursor *c, uint32_t seg, uint32_t at) {
  cursor_seg(c, seg);
  const uint32_t m = c->live & ~set32_below(at);
  if (likely(m != 0)) c->at = set32_first(m);
  else cursor_next_segment(c);
}

// To the last one before it.
static void cursor_stand_before(struct remix_cursor *c, uint32_t seg, uint32_t at) {
  cursor_leave(c);
  cursor_seg(c, seg);
  const uint32_t m = c->live & set32_below(at);
  if (likely(m != 0)) c->at = set32_last(m);
  else cursor_prev_segment(c);
}

void remix_want(struct remix_cursor *c, struct kref key) {
  if (!c->x || c->x->nr_segs == 0) return;
  c->want_seg = anchors_find(&c->x->index->anchors, key);
  c->wanted = true;
  seg_prefetch(c->x->index, seg_at(c->x->index, c->want_seg));
}

// ahead: entries whose memory is asked for at once; 0: none.
static enum remixdb_status cursor_find(struct remix_cursor *c, struct kref key, uint32_t ahead, uint32_t *seg_out, struct spot *spot_out) {
  const struct remix_index *const ix = c->x->index;
  if (!c->wanted) remix_want(c, key);
  c->wanted = false;
  const uint32_t seg = c->want_seg;
  const uint8_t *const s = seg_at(ix, seg);
  cursor_end(c);
  cursor_leave(c);
  *seg_out = seg;
  c->begun = true;
  return spot_find(c, seg, s, key, ahead, spot_out);
}

enum remixdb_status remix_seek(struct remix_cursor *c, struct kref key) {
  uint32_t seg;
  struct spot spot;
  if (!c->x || c->x->nr_segs == 0) return REMIXDB_OK;
  const uint32_t usual = c->way == REMIX_ON ? usual_length(c->usual, cursor_came(c)) : 0;
  // as far as a scan of that length goes without asking again
  const uint32_t want = usual == 0 ? 0 : usual + REMIX_GROUP_MIN + 1, ahead = want < REMIX_GROUP_MAX ? want : REMIX_GROUP_MAX;
  cursor_sought(c);
  c->usual = usual;
  if (ahead) c->group = ahead * 2 < REMIX_GROUP_MAX ? ahead * 2 : REMIX_GROUP_MAX;
  const enum remixdb_status st = cursor_find(c, key, ahead, &seg, &spot);
  if (st == REMIXDB_OK) cursor_stand(c, seg, spot.at);
  return st;
}

enum remixdb_status remix_seek_for_prev(struct remix_cursor *c, struct kref key) {
  uint32_t seg;
  struct spot spot;
  if (!c->x || c->x->nr_segs == 0) return REMIXDB_OK;
  cursor_sought(c);
  const enum remixdb_status st = cursor_find(c, key, 0, &seg, &spot);
  if (st == REMIXDB_OK) cursor_stand_before(c, seg, spot.at + spot.equal);
  return st;
}

void remix_seek_first(struct remix_cursor *c) {
  if (!c->x || c->x->nr_segs == 0) return;
  cursor_sought(c);
  cursor_leave(c);
  c->wanted = false;
  c->front_seg = c->front_at = 0;
  cursor_stand(c, 0, 0);
}

void remix_seek_last(struct remix_cursor *c) {
  if (!c->x || c->x->nr_segs == 0) return;
  cursor_sought(c);
  c->wanted = false;
  cursor_stand_before(c, c->x->nr_segs - 1, REMIX_SEG);
}

void remix_prev(struct remix_cursor *c) {
  if (unlikely(c->way != REMIX_BACK)) cursor_step_way(c, REMIX_BACK);
  const uint32_t m = c->live & set32_below(c->at);
  if (unlikely(m == 0)) {
    cursor_prev_segment(c);
    return;
  }
  const uint32_t to = set32_last(m);
  do c->near[c->sel[--c->at] & REMIX_RUN].idx--;
  while (unlikely(c->at != to));
  if (unlikely(to < c->cool)) warm_back(c);
}

uint32_t remix_skip(struct remix_cursor *c, uint32_t nr, uint32_t end) {
  const struct remix *const x = c->x;
  const uint32_t *const live = x->index->live;
  if (nr == 0 || c->seg >= end) return 0;
  const uint32_t here = c->live & set32_above(c->at), left = set32_count(here);
  if (nr == 1 && left) {
    remix_next(c);
    return 1;
  }
  if (nr <= left) {
    const uint32_t to = set32_nth(here, nr - 1);
    near_pass(c, c->at, to, 1);
    c->at = to;
    return nr;
  }
  const uint32_t rank = live[c->seg + 1] - left - 1, last = live[end < x->nr_segs ? end : x->nr_segs] - 1;
  const uint32_t moved = last - rank < nr ? last - rank : nr;
  if (moved == 0) return 0;
  const uint32_t seg = live_after(x, c->seg, rank + moved);
  c->came = cursor_came(c);
  if (seg != c->seg) cursor_seg(c, seg);
  cursor_leave(c);
  c->warm = 0;
  c->at = set32_nth(c->live, rank + moved - live[seg]);
  c->from = cursor_place(c);
  return moved;
}

uint32_t remix_segment(const struct remix *x, struct kref key) { return anchors_find(&x->index->anchors, key); }

// Reads ahead in a run when, stepping forward, the run's next block is not in the cache for the third time since the cursor was set; then more each time. Into the
// cache while that has room; else, or without one, into memory of the hold's own: a scan that is larger than the cache leaves that to others.
static void cursor_ahead(struct remix_cursor *c, struct sst *t, uint32_t block, struct sst_hold *h, struct remix_near *n) {
  if (!c->queue) return;
  n->ahead = n->ahead < REMIX_AHEAD_MIN / 2 ? n->ahead + 1 : n->ahead < REMIX_AHEAD_MAX ? n->ahead * 2 : REMIX_AHEAD_MAX;
  if (n->ahead < REMIX_AHEAD_MIN) return;
  const uint32_t left = t->nr_pages - block, nr = n->ahead < left ? n->ahead : left;
  if (!c->no_room && cache_room(&t->cache, block, sst_block_pages(t, block))) {
    sst_prefetch(t, c->queue, block, nr);
    if (cache_has(&t->cache, block)) return;
    c->no_room = true;
  }
  const uint32_t share = REMIX_AHEAD_ALL / c->x->nr_runs, most = share > REMIX_AHEAD_OWN ? share : REMIX_AHEAD_OWN;
  sst_read_ahead(t, block, nr < most ? nr : most, h);
}

// Whether the block is the one behind what a hold of the run has. Of what is not pinned it tells all the same where the run was read last.
static inline bool follows(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return h->sst == t && h->block + sst_block_pages(t, h->block) == block;
}

// Reads together the blocks that the cursor comes to in its next c->group entries, the current one first, where they are not cached: each run has its own,
// and a disk takes about as long for several as for one. Returns how many.
static __attribute__((noinline)) uint32_t cursor_gather(struct remix_cursor *c) {
  const struct remix *const x = c->x;
  const struct remix_index *const ix = x->index;
  struct sst_stretch found[BLKIO_BATCH_MAX];
  uint32_t end[REMIX_RUNS_MAX] = {0};  // pages of each run that have been looked at
  uint32_t nr = 0, left = c->group;
  for (uint32_t seg = c->seg, at = c->at; left > 0 && seg < x->nr_segs; seg++, at = 0) {
    const uint8_t *const s = seg_at(ix, seg), *const sel = s + ix->lay.sel;
    const uint32_t rest = seg_nr(ix, s) - at, n = rest < left ? rest : left;
    for (uint32_t m = seg_live(ix, s) & ~set32_below(at) & set32_below(at + n); m && nr < BLKIO_BATCH_MAX; m &= m - 1) {
      const uint32_t i = set32_first(m), run = sel[i] & REMIX_RUN;
      struct sst *const t = x->runs[run];
      const struct sst_hold *const h = &c->holds[run];
      const uint32_t block = sst_pos_block(seg_pos(x, s, run, i));
      if (block < end[run]) continue;
      const bool first = end[run] == 0;
      end[run] = block + sst_block_pages(t, block);
      if (!missing(h, t, block)) continue;
      if (nr && first && !follows(h, t, block)) c->jumps++;
      found[nr++] = (struct sst_stretch){t, block, end[run]};
    }
    left -= n;
  }
  if (nr > 1) sst_prefetch_all(c->queue, found, nr);
  return nr;
}

// The record is not held, or was not by the same way.
static __attribute__((noinline)) enum remixdb_status record_read(struct remix_cursor *c, struct sst *t, sst_pos pos,
                                                                 struct sst_hold *h, struct remix_near *n, struct kv_rec *rec_out) {
  const uint32_t block = sst_pos_block(pos), few = cursor_few(c, c->s, c->at);
  if (missing(h, t, block)) {
    if (follows(h, t, block)) cursor_ahead(c, t, block, h, n);
    else if (!(h->sst == t && block + sst_block_pages(t, block) == h->block)) c->jumps += c->begun;
  }
  c->begun = true;
  if (!missing(h, t, block) || (!c->disk && c->reads++ % READS_TIMED)) return sst_read_few(t, pos, few, true, h, rec_out);
  const uint64_t began = time_ns();
  uint32_t nr = 1;
  if (c->disk && c->way == REMIX_ON && c->queue && !c->no_room && t->cache.cache) {
    nr = cursor_gather(c);
    if (nr > 1 && !cache_has(&t->cache, block)) c->no_room = true;
  }
  const enum remixdb_status s = sst_read_few(t, pos, few, true, h, rec_out);
  c->disk = time_ns() - began > READ_DISK_NS + (uint64_t)nr * READ_DISK_NS / 4;
  return s;
}

enum remixdb_status remix_record(struct remix_cursor *c, struct kv_rec *rec_out) {
  const uint32_t run = remix_run(c);
  struct remix_near *const n = &c->near[run];
  struct sst *const t = c->x->runs[run];
  struct sst_hold *const h = &c->holds[run];
  REMIX_COUNT(records);
  if (n->idx < n->nr) {
    block_record(n->data, n->idx, rec_out);
    return REMIXDB_OK;
  }
  const sst_pos pos = seg_pos(c->x, c->s, run, c->at);
  n->nr = 0;
  const enum remixdb_status s = record_read(c, t, pos, h, n, rec_out);
  if (unlikely(s != REMIXDB_OK)) return s;
  n->data = h->cb.data;
  n->idx = sst_pos_idx(pos);
  n->nr = t->nr_recs[sst_pos_block(pos)];
  if (unlikely(h->to < n->nr)) n->nr = h->to;
  return s;
}

// ---- walking

static inline void walk_seg(struct remix_walk *w) {
  if (!remix_walk_valid(w)) return;
  const struct remix_index *const ix = w->x->index;
  const uint8_t *const s = seg_at(ix, w->seg);
  w->at = 0;
  w->nr = seg_nr(ix, s);
  w->sel = s + ix->lay.sel;
  w->tag = w->x->tags ? s : NULL;
}

void remix_walk_init(struct remix_walk *w, const struct remix *x) {
  *w = (struct remix_walk){.x = x};
  walk_seg(w);
}

void remix_walk_next(struct remix_walk *w) {
  if (++w->at < w->nr) return;
  w->seg++;
  walk_seg(w);
}

uint32_t remix_walk_lcp(const struct remix_walk *w, bool *known_out) {
  const struct remix_index *const ix = w->x->index;
  *known_out = true;
  // An anchor is one byte longer than what its key shares with the key before (R3).
  if (w->at == 0) return w->seg ? anchors_at(&ix->anchors, w->seg).len - 1 : 0;
  const uint8_t *const s = seg_at(ix, w->seg);
  const uint32_t d = load16le(s + ix->lay.dbits + 2 * w->at);
  if (d == REMIX_BIT_SAME) return UINT32_MAX;
  *known_out = d != REMIX_BIT_FAR;
  return seg_base(ix, s) + (d >> 4);
}
