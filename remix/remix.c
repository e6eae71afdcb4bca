// SPDX-License-Identifier: Apache-2.0
#include "remix/remix.h"

#include <assert.h>
#include <stdio.h>

#include "base/blind.h"
#include "remix/pack.h"
#include "remix/seg.h"

struct remix_counters remix_counters;

_Static_assert(REMIX_SEG == 32, "a set of entries has 32 bits");

// One allocation, so that x, ix and map are near each other in memory.
struct remix_whole {
  struct remix x;
  struct remix_index ix;
  struct mem_map map;  // of the image
  size_t counted;      // bytes in the account of indexes (base/budget.h)
};

#define REMIX_HOLE (128u << 10)  // bytes; a packed file has no hole of this size

// ---- opening

bool remix_expires(const struct remix *x) { return !x->index->plain; }

void remix_name(char *buf, uint64_t number) { files_remix_name(buf, number); }

// Tells whether the header is that of REMIX `number`, of this store.
static enum remixdb_status check_owner(const struct sst_ctx *ctx, uint64_t number, const char *path,
                                       const uint8_t *head) {
  const struct files_ids ids = sst_ctx_ids(ctx);
  const uint64_t is = load64le(head + REMIX_HEAD_NUMBER);
  if (!files_ids_have(&ids, load64le(head + REMIX_HEAD_STORE_ID)))
    return err_corrupt(path, REMIX_HEAD_STORE_ID, "of another store");
  return is == number ? REMIXDB_OK : err_corrupt(path, REMIX_HEAD_NUMBER, "is file %llu", (unsigned long long)is);
}

// Compares the header with the file and the tables. The header's counts determine all offsets.
static enum remixdb_status check_header(struct remix *x) {
  struct remix_index *const ix = x->index;
  const uint8_t *const p = x->image;
  const uint32_t flags = load32le(p + REMIX_HEAD_FLAGS), nr_runs = load32le(p + REMIX_HEAD_RUNS);
  if (flags & ~REMIX_FLAG_TAGS) return err_corrupt(x->path, REMIX_HEAD_FLAGS, "flags %#x that are not known", flags);
  x->tags = flags & REMIX_FLAG_TAGS;
  ix->plain = load32le(p + REMIX_HEAD_FORMAT) <= REMIX_FORMAT_PLAIN;
  x->origin = load64le(p + REMIX_HEAD_STORE_ID);
  const enum remixdb_status s = check_owner(x->ctx, x->number, x->path, p);
  if (s != REMIXDB_OK) return s;
  if (nr_runs != x->nr_runs) return err_corrupt(x->path, REMIX_HEAD_RUNS, "%u runs, %u expected", nr_runs, x->nr_runs);
  x->nr_segs = load32le(p + REMIX_HEAD_SEGS);
  x->nr_entries = load64le(p + REMIX_HEAD_ENTRIES);
  x->nr_keys = load64le(p + REMIX_HEAD_KEYS);
  ix->lay = remix_layout(x->nr_runs, x->tags);
  if (load32le(p + REMIX_HEAD_STRIDE) != ix->lay.stride || load32le(p + REMIX_HEAD_ZERO) != 0)
    return err_corrupt(x->path, REMIX_HEAD_STRIDE, "segment size %u", load32le(p + REMIX_HEAD_STRIDE));
  const uint64_t segs = load64le(p + REMIX_HEAD_SEGS_AT), offs = load64le(p + REMIX_HEAD_OFFS_AT),
                 anchors = load64le(p + REMIX_HEAD_ANCHORS_AT), len = load64le(p + REMIX_HEAD_ANCHORS_LEN);
  if (segs != remix_segs_off(x->nr_runs) || offs != segs + (uint64_t)x->nr_segs * ix->lay.stride ||
      anchors != offs + 4 * ((uint64_t)x->nr_segs + 1) || len > x->image_size ||
      anchors + len + REMIX_SUM != x->image_size)
    return err_corrupt(x->path, REMIX_HEAD_SEGS_AT, "sections do not fit the file");
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    const uint32_t at = REMIX_HEAD_TABLES + 8 * r;
    const uint64_t table = load64le(p + at);
    if (table != x->runs[r]->number)
      return err_corrupt(x->path, at, "run %u is table %llu, %llu expected", r, (unsigned long long)table,
                         (unsigned long long)x->runs[r]->number);
  }
  ix->segs = p + segs;
  ix->anchors = (struct anchors){.offs = p + offs, .bytes = p + anchors, .nr = x->nr_segs};
  return REMIXDB_OK;
}

static enum remixdb_status check_anchors(const struct remix *x) {
  const struct anchors *const a = &x->index->anchors;
  const uint64_t at = (uint64_t)(a->offs - x->image), len = load64le(x->image + REMIX_HEAD_ANCHORS_LEN);
  const uint32_t nr = x->nr_segs;
  uint32_t prev = load32le(a->offs);
  if (prev != 0) return err_corrupt(x->path, at, "first anchor at %u", prev);
  for (uint32_t i = 1; i <= nr; i++) {
    const uint32_t off = load32le(a->offs + 4 * (size_t)i);
    if (off < prev || off > len) return err_corrupt(x->path, at + 4 * (uint64_t)i, "anchor ends at %u", off);
    prev = off;
  }
  if (prev != len)
    return err_corrupt(x->path, at + 4 * (uint64_t)nr, "anchors end at %u of %llu", prev, (unsigned long long)len);
  if (nr && anchors_at(a, 0).len != 0) return err_corrupt(x->path, at, "first anchor is not empty");
  for (uint32_t i = 1; i < nr; i++)
    if (kv_cmp(anchors_at(a, i - 1), anchors_at(a, i)) >= 0)
      return err_corrupt(x->path, at + 4 * (uint64_t)i, "anchors do not ascend");
  return REMIXDB_OK;
}

// Checks a segment without the tables. Returns NULL if the segment is well formed, else the name of the error.
static const char *check_entries(const struct remix_index *ix, const uint8_t *s) {
  const uint8_t zero_bits = ix->plain ? REMIX_EXPIRES : 0;
  const uint8_t *const sel = s + ix->lay.sel, *const dbits = s + ix->lay.dbits;
  const uint32_t nr = seg_nr(ix, s), flags = remix_seg_flags(&ix->lay, s);
  if (nr == 0 || nr > REMIX_SEG) return "count of entries out of range";
  if (flags & ~REMIX_SEG_FAR) return "unknown flags";
  const uint32_t in = set32_below(nr), old = set32_eq8(sel, REMIX_OLD, REMIX_OLD);
  if ((set32_eq8(sel, 0xFF, 0) | in) != UINT32_MAX || set32_eq8(sel, zero_bits, 0) != UINT32_MAX)
    return "malformed selector";
  if (old & 1) return "begins with an old version";
  const uint32_t zero = set32_eq16(dbits, 0), same = set32_eq16(dbits, BLIND_SAME), far = set32_eq16(dbits, BLIND_FAR);
  if (!(zero & 1) || (zero | in) != UINT32_MAX) return "malformed discriminating bit";
  if (same != old) return "old versions and discriminating bits disagree";
  if ((far != 0) != (flags == REMIX_SEG_FAR)) return "flag of far bits is wrong";
  if (set32_lt16(dbits, (BLIND_BYTE_MAX + 1) << 4) != ~(same | far)) return "malformed discriminating bit";
  // A bit within a byte is at most 8: in each 16-bit lane, adding 7 to the low 4 bits carries for the two marks only.
  uint32_t over = 0;
  for (uint32_t i = 0; i < REMIX_SEG; i += 4) {
    const uint64_t carry = ((load64le(dbits + 2 * i) & 0x000F000F000F000Full) + 0x0007000700070007ull) &
                           0x0010001000100010ull;
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

// Checks every segment and counts live entries. If `walked` is not set, also checks that cursor offsets and selectors
// go through each table exactly from its beginning to its end.
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
      if (unlikely(seg_off(ix, s, r) != pos[r]))
        return err_corrupt(x->path, at, "segment %u: cursor offset of run %u", i, r);
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
      return err_corrupt(x->path, 0, "%llu entries of run %u, whose table has %llu records",
                         (unsigned long long)seen[r], r, (unsigned long long)x->runs[r]->nr_records);
  if (entries != x->nr_entries)
    return err_corrupt(x->path, REMIX_HEAD_ENTRIES, "counts %llu entries", (unsigned long long)x->nr_entries);
  if (keys != x->nr_keys)
    return err_corrupt(x->path, REMIX_HEAD_KEYS, "counts %llu keys", (unsigned long long)x->nr_keys);
  return REMIXDB_OK;
}

// Checks the fields that every format has in the same place. This check comes before the checksum, so that the message
// distinguishes another kind of file, or a short file, from a damaged file.
static enum remixdb_status check_start(const char *path, uint64_t file_size, const uint8_t *head) {
  const uint64_t size = load64le(head + REMIX_HEAD_SIZE), least = remix_segs_off(0) + sizeof(uint32_t) + REMIX_SUM;
  if (memcmp(head + REMIX_HEAD_MAGIC, REMIX_MAGIC, sizeof(REMIX_MAGIC) - 1) != 0)
    return err_corrupt(path, REMIX_HEAD_MAGIC, "not a REMIX file");
  if (size == file_size && size >= least) return REMIXDB_OK;
  return err_corrupt(path, 0, "malformed header, or a file of %llu bytes cut from %llu", (unsigned long long)file_size,
                     (unsigned long long)size);
}

// Reads the header up to the counts, and the checksum at the file's end.
static enum remixdb_status read_ends(const struct sst_ctx *ctx, const char *path, uint8_t *head, struct sst_peek *out) {
  uint8_t sum[REMIX_SUM];
  int fd;
  enum remixdb_status s = env_open(ctx->dir, env_name(path), ENV_READ, &fd);
  if (s == REMIXDB_NOTFOUND) return err_corrupt(path, 0, "file is missing");
  if (s != REMIXDB_OK) return s;
  env_advise(ctx->env, fd, 0, 0, ENV_RANDOM);
  s = env_size(ctx->env, fd, path, &out->size);
  if (s == REMIXDB_OK) s = env_read(ctx->env, fd, path, head, REMIX_HEAD_STRIDE, 0);
  if (s == REMIXDB_OK) s = check_start(path, out->size, head);
  if (s == REMIXDB_OK) s = env_read(ctx->env, fd, path, sum, sizeof(sum), out->size - sizeof(sum));
  env_close_quiet(ctx->env, fd);
  if (s == REMIXDB_OK) out->print = load64le(sum);
  return s;
}

// The same of a REMIX in a pack.
static enum remixdb_status read_part_ends(const struct pack_part *part, const char *path, uint8_t *head,
                                          struct sst_peek *out) {
  uint8_t sum[REMIX_SUM];
  out->size = part->at.len;
  if (out->size < REMIX_HEAD_STRIDE + REMIX_SUM)
    return err_corrupt(path, 0, "a REMIX of %llu bytes", (unsigned long long)out->size);
  enum remixdb_status s = pack_part_read(part, head, REMIX_HEAD_STRIDE, 0);
  if (s == REMIXDB_OK) s = check_start(path, out->size, head);
  if (s == REMIXDB_OK) s = pack_part_read(part, sum, sizeof(sum), out->size - sizeof(sum));
  if (s == REMIXDB_OK) out->print = load64le(sum);
  return s;
}

// Writes the path of a REMIX for messages: that of its file, or of its pack with the name that the file would have.
static enum remixdb_status path_of(const struct sst_ctx *ctx, uint64_t number, const struct pack_part *part,
                                   char path[ENV_PATH_MAX]) {
  char name[32], both[80], pack[32];
  remix_name(name, number);
  if (!part) return env_path(path, ctx->dir->path, name);
  files_pack_name(pack, part->pack->number);
  (void)snprintf(both, sizeof(both), "%s (%s)", pack, name);
  return env_path(path, ctx->dir->path, both);
}

enum remixdb_status remix_look(const struct sst_ctx *ctx, uint64_t number, struct remix_peek *out) {
  char path[ENV_PATH_MAX];
  uint8_t head[REMIX_HEAD_STRIDE];
  const struct pack_part *const part = packs_find(ctx->packs, PACK_REMIX, number);
  enum remixdb_status s = path_of(ctx, number, part, path);
  if (s == REMIXDB_OK) s = part ? read_part_ends(part, path, head, &out->file) : read_ends(ctx, path, head, &out->file);
  if (s == REMIXDB_OK) s = check_owner(ctx, number, path, head);
  if (s != REMIXDB_OK) return s;
  const uint32_t format = load32le(head + REMIX_HEAD_FORMAT);
  out->file.origin = load64le(head + REMIX_HEAD_STORE_ID);
  out->entries = load64le(head + REMIX_HEAD_ENTRIES);
  out->keys = load64le(head + REMIX_HEAD_KEYS);
  out->expires = format > REMIX_FORMAT_PLAIN;
  out->odd = format == 0 || format > REMIX_FORMAT;
  return REMIXDB_OK;
}

// Reads the whole file into *file_out, which the caller frees, also after a failure.
static enum remixdb_status read_file(struct remix *x, int fd, struct mem_map *file_out) {
  struct env *const env = x->ctx->env;
  const uint64_t base = x->part ? x->part->at.off : 0;
  uint8_t head[REMIX_HEAD_RUNS];
  enum remixdb_status s = REMIXDB_OK;
  if (x->part) x->file_size = x->part->at.len;
  else s = env_size(env, fd, x->path, &x->file_size);
  if (s == REMIXDB_OK && x->part && x->file_size < sizeof(head)) s = err_corrupt(x->path, 0, "is cut short");
  if (s == REMIXDB_OK) s = env_read(env, fd, x->path, head, sizeof(head), base);
  if (s == REMIXDB_OK) s = check_start(x->path, x->file_size, head);
  if (s != REMIXDB_OK) return s;
  if (env_is_hollow(env, fd, base, base + x->file_size, REMIX_HOLE))
    return err_corrupt(x->path, 0, "has a hole where there should be an index");
  env_advise(env, fd, base, x->file_size, ENV_WILL_NEED);
  s = mem_map_table(x->file_size, file_out);
  if (s != REMIXDB_OK) return s;
  memcpy(file_out->ptr, head, sizeof(head));
  return env_read(env, fd, x->path, file_out->ptr + sizeof(head), x->file_size - sizeof(head), base + sizeof(head));
}

// Makes x->image from the file's bytes. If *file is the image, takes *file over. *walked_out: unpacking has computed
// the cursor offsets by counting records of the tables.
static enum remixdb_status unpack_file(struct remix *x, struct mem_map *file, bool *walked_out) {
  struct mem_map *const map = &((struct remix_whole *)x)->map;
  const uint64_t sum_at = x->file_size - REMIX_SUM;
  const uint32_t format = load32le(file->ptr + REMIX_HEAD_FORMAT);
  enum remixdb_status s = REMIXDB_OK;
  x->print = load64le(file->ptr + sum_at);
  if (hash64_seed(file->ptr, sum_at, x->number) != x->print)
    return err_corrupt(x->path, sum_at, "checksum does not match");
  // after the checksum: a flipped bit is damage, not a later format
  if (format > REMIX_FORMAT)
    return err_set(REMIXDB_VERSION, "%s: format %u is newer than this library's %u", x->path, format, REMIX_FORMAT);
  if (format == 0) return err_corrupt(x->path, REMIX_HEAD_FORMAT, "format 0");
  if (format == 1) {
    *map = *file;
    *file = (struct mem_map){0};
    x->image_size = x->file_size;
  } else {
    s = remix_unpack(file->ptr, x->file_size, x->runs, x->nr_runs, x->path, map, &x->image_size);
    *walked_out = true;
  }
  x->image = map->ptr;
  return s;
}

static enum remixdb_status read_image(struct remix *x, bool *walked_out) {
  struct mem_map file = {0};
  int fd = -1;
  const char *const name = env_name(x->part ? x->part->pack->path : x->path);
  enum remixdb_status s = env_open(x->ctx->dir, name, ENV_READ, &fd);
  if (s == REMIXDB_NOTFOUND) return err_corrupt(x->path, 0, "file is missing");
  if (s != REMIXDB_OK) return s;
  s = read_file(x, fd, &file);
  if (s == REMIXDB_OK) s = unpack_file(x, &file, walked_out);
  mem_unmap(&file);
  env_close_quiet(x->ctx->env, fd);
  return s;
}

static void remix_free(struct remix *x) {
  budget_give(x->ctx->budget, BUDGET_INDEXES, ((struct remix_whole *)x)->counted);
  if (x->runs)
    for (uint32_t r = 0; r < x->nr_runs; r++) sst_unref(x->runs[r]);
  mem_free(x->runs);
  mem_unmap(&((struct remix_whole *)x)->map);
  mem_free(x->path);
  anchors_fini(&x->index->anchors);
  mem_free(x->index->live);
  mem_free(atomic_load_explicit(&x->hidden, memory_order_relaxed));
  mem_free(x);
}

// Copies the image, which a build has made, into memory that suits random reads.
static enum remixdb_status take_image(struct remix *x, const struct remix_built *built) {
  struct mem_map *const map = &((struct remix_whole *)x)->map;
  const enum remixdb_status s = mem_map_table(built->image_size, map);
  if (s != REMIXDB_OK) return s;
  memcpy(map->ptr, built->image, built->image_size);
  x->image = map->ptr;
  x->image_size = built->image_size;
  x->file_size = built->file_size;
  x->print = built->print;
  return REMIXDB_OK;
}

static enum remixdb_status make_path(struct remix *x) {
  char path[ENV_PATH_MAX];
  const enum remixdb_status s = path_of(x->ctx, x->number, x->part, path);
  if (s != REMIXDB_OK) return s;
  const size_t size = strlen(path) + 1;
  if (!(x->path = mem_alloc(size))) return REMIXDB_NOMEM;
  memcpy(x->path, path, size);
  return REMIXDB_OK;
}

// Makes a REMIX with its path and its tables, and without an image.
static enum remixdb_status remix_create(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs,
                                        uint32_t nr_runs, struct remix **out) {
  assert(nr_runs <= REMIX_RUNS_MAX);
  struct remix_whole *const whole = mem_calloc(1, sizeof(*whole));
  if (!whole) return REMIXDB_NOMEM;
  struct remix *const x = &whole->x;
  x->index = &whole->ix;
  x->ctx = ctx;
  x->number = number;
  x->part = packs_find(ctx->packs, PACK_REMIX, number);
  atomic_init(&x->refs, 1);
  atomic_init(&x->obsolete, false);
  atomic_init(&x->scan_debt, 0);
  atomic_init(&x->scan_debt_due, 0);
  x->runs = mem_alloc(nr_runs * sizeof(x->runs[0]));
  for (; x->runs && x->nr_runs < nr_runs; x->nr_runs++) {
    x->runs[x->nr_runs] = runs[x->nr_runs];
    sst_ref(x->runs[x->nr_runs]);
  }
  const enum remixdb_status s = x->runs ? make_path(x) : REMIXDB_NOMEM;
  if (s != REMIXDB_OK) remix_free(x);
  else *out = x;
  return s;
}

// built NULL: reads the file.
static enum remixdb_status open_from(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs,
                                     uint32_t nr_runs, const struct remix_built *built, struct remix **out) {
  struct remix *x = NULL;
  bool walked = false;
  *out = NULL;
  enum remixdb_status s = remix_create(ctx, number, runs, nr_runs, &x);
  if (s != REMIXDB_OK) return s;
  s = built ? take_image(x, built) : read_image(x, &walked);
  if (s == REMIXDB_OK && x->image_size < remix_segs_off(nr_runs))
    s = err_corrupt(x->path, REMIX_HEAD_SIZE, "too short for %u runs", nr_runs);
  if (s == REMIXDB_OK) s = check_header(x);
  if (s == REMIXDB_OK) s = check_anchors(x);
  if (s == REMIXDB_OK) s = check_segments(x, walked);
  if (s == REMIXDB_OK)
    s = anchors_init(&x->index->anchors, x->index->anchors.offs, x->index->anchors.bytes, x->nr_segs);
  if (s != REMIXDB_OK) {
    remix_free(x);
    return s;
  }
  struct remix_whole *const whole = (struct remix_whole *)x;
  whole->counted = remix_memory(x);
  budget_take(ctx->budget, BUDGET_INDEXES, whole->counted);
  *out = x;
  return s;
}

enum remixdb_status remix_open(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs, uint32_t nr_runs,
                               struct remix **out) {
  return open_from(ctx, number, runs, nr_runs, NULL, out);
}

enum remixdb_status remix_open_built(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs,
                                     uint32_t nr_runs, const struct remix_built *built, struct remix **out) {
  return open_from(ctx, number, runs, nr_runs, built, out);
}

void remix_ref(struct remix *x) { atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed); }

void remix_unref(struct remix *x) {
  // acq_rel: the uses by other threads happened before the REMIX goes
  if (!x || atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) != 1) return;
  struct pack_part *part = NULL;
  if (atomic_load_explicit(&x->obsolete, memory_order_relaxed)) {
    if (x->ctx->retired) sst_retired_add(x->ctx->retired, -1, x->file_size);
    part = x->part;
    if (!part) IGNORED(env_unlink(x->ctx->dir, env_name(x->path)), "the next opening removes the file");
  }
  remix_free(x);
  pack_part_drop(part);
}

void remix_retire(struct remix *x) {
  if (!atomic_exchange_explicit(&x->obsolete, true, memory_order_relaxed) && x->ctx->retired)
    sst_retired_add(x->ctx->retired, 1, x->file_size);
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

struct kref remix_anchor(const struct remix *x, uint32_t seg) {
  return anchors_at(&x->index->anchors, seg);
}

// ---- searching within a segment

enum remixdb_status seg_search_binary(const struct remix *x, const uint8_t *p, struct kref key, seg_read_fn read,
                                      void *arg, struct seg_pos_found *out, struct kv_rec *rec_out) {
  const struct remix_index *const ix = x->index;
  const uint8_t *const sel = p + ix->lay.sel;
  uint32_t lo = 0, hi = seg_nr(ix, p);
  out->equal = false;
  while (lo < hi) {
    uint32_t mid = (lo + hi) / 2;
    while (mid > lo && sel[mid] & REMIX_OLD) mid--;  // search for the newest version of a key only
    const enum remixdb_status s = read(arg, p, mid, rec_out);
    if (s != REMIXDB_OK) return s;
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

// The function by which seg_search_binary reads keys in a get. One hold serves all runs.
struct get_reader {
  const struct remix *x;
  struct sst_hold *hold;
};

static enum remixdb_status get_entry(void *arg, const uint8_t *p, uint32_t i, struct kv_rec *rec_out) {
  const struct get_reader *const r = arg;
  return entry_read(r->x, p, i, 1, r->hold, rec_out);
}

// A get without tags. If the candidate is not live, the get need not read it, because no other entry can be the key.
static enum remixdb_status get_blind(const struct remix *x, const uint8_t *p, struct kref key, struct sst_hold *h,
                                     struct kv_rec *rec_out) {
  const struct remix_index *const ix = x->index;
  enum remixdb_status s;
  if (unlikely(seg_far(ix, p))) {
    struct seg_pos_found spot;
    struct get_reader reader = {x, h};
    s = seg_search_binary(x, p, key, get_entry, &reader, &spot, rec_out);
    return s == REMIXDB_OK && !(spot.equal && seg_live(ix, p) >> spot.at & 1) ? REMIXDB_NOTFOUND : s;
  }
  const uint32_t cand = blind_candidate(p + ix->lay.dbits, seg_nr(ix, p), seg_base(ix, p), key);
  if (!(seg_live(ix, p) >> cand & 1)) return REMIXDB_NOTFOUND;
  s = entry_read(x, p, cand, 1, h, rec_out);
  if (s != REMIXDB_OK) return s;
  REMIX_COUNT(key_compares);
  return kv_eq(kref(rec_out->key, rec_out->klen), key) ? REMIXDB_OK : REMIXDB_NOTFOUND;
}

// The blind search leaves at most one of the entries with the key's tag; the other entries cannot be the key.
static __attribute__((noinline)) uint32_t only_candidate(const struct remix_index *ix, const uint8_t *s,
                                                         struct kref key, uint32_t tagged) {
  if (unlikely(seg_far(ix, s))) return tagged;
  return tagged & 1u << blind_candidate(s + ix->lay.dbits, seg_nr(ix, s), seg_base(ix, s), key);
}

static inline bool key_bit(struct kref key, uint32_t base, uint32_t dbit) {
  const uint32_t byte = base + (dbit >> 4), b = dbit & 15;
  return byte < key.len && (b == 0 || key.ptr[byte] >> (8 - b) & 1);
}

// Tells whether the key has the bits in which entry i, a newest version, differs from its neighbours. Three of four
// other keys do not have these bits, so the check saves reading a block from disk. The blind search would exclude
// nearly all other keys, but it costs a large part of the time of a read from the page cache.
static bool entry_fits(const struct remix_index *ix, const uint8_t *s, struct kref key, uint32_t i) {
  const uint8_t *const dbits = s + ix->lay.dbits;
  const uint32_t base = seg_base(ix, s),
                 behind = ~set32_eq16(dbits, BLIND_SAME) & set32_above(i) & set32_below(seg_nr(ix, s));
  if (unlikely(seg_far(ix, s))) return true;
  if (i > 0 && !key_bit(key, base, load16le(dbits + 2 * i))) return false;
  return behind == 0 || !key_bit(key, base, load16le(dbits + 2 * set32_first(behind)));
}

const uint8_t *remix_get_begin(const struct remix *x, struct kref key) {
  const struct remix_index *const ix = x->index;
  if (unlikely(x->nr_segs == 0)) return NULL;
  const uint8_t *const s = seg_at(ix, anchors_find(&ix->anchors, key));
  seg_prefetch(ix, s);
  return s;
}

enum remixdb_status remix_get(struct remix *x, struct kref key, uint64_t hash, struct sst_hold *h,
                              struct kv_rec *rec_out) {
  return remix_get_end(x, remix_get_begin(x, key), key, hash, h, rec_out);
}

enum remixdb_status remix_get_end(struct remix *x, const uint8_t *p, struct kref key, uint64_t hash, struct sst_hold *h,
                                  struct kv_rec *rec_out) {
  const struct remix_index *const ix = x->index;
  if (unlikely(!p)) return REMIXDB_NOTFOUND;
  if (!x->tags) return get_blind(x, p, key, h, rec_out);
  uint32_t m = set32_eq8(p, 0xFF, remix_tag(hash)) & seg_live(ix, p);
  // if several have the tag, half of the first reads would be in vain; and a young view lacks most keys
  const bool sought = unlikely(m & (m - 1)) || (unlikely(ix->young) && m);
  if (unlikely(sought)) m = only_candidate(ix, p, key, m);
  while (m) {
    const uint32_t i = set32_first(m), run = p[ix->lay.sel + i] & REMIX_RUN;
    struct sst *const t = x->runs[run];
    sst_prefetch_place(t, seg_off(ix, p, run));
    const sst_pos pos = seg_pos(x, p, run, i);
    if (!sought && unlikely(missing(h, t, sst_pos_block(pos))) && !entry_fits(ix, p, key, i))
      break;  // the only candidate
    REMIX_COUNT(key_reads);
    const enum remixdb_status s = sst_read_lone(t, pos, h, rec_out);
    if (unlikely(s != REMIXDB_OK)) return s;
    REMIX_COUNT(key_compares);
    if (likely(kv_eq(kref(rec_out->key, rec_out->klen), key))) return REMIXDB_OK;
    m &= m - 1;
  }
  return REMIXDB_NOTFOUND;
}

// ---- many keys at once

// Group prefetching: the anchors of all keys (anchors_find_many), then the lines of all segments.
void remix_probe_find(struct remix_probe *p, const uint8_t *which, uint32_t nr) {
  struct anchors_lookup wants[ANCHORS_MANY_MAX];
  uint32_t found[ANCHORS_MANY_MAX];
  for (uint32_t from = 0; from < nr; from += ANCHORS_MANY_MAX) {
    const uint32_t n = nr - from < ANCHORS_MANY_MAX ? nr - from : ANCHORS_MANY_MAX;
    for (uint32_t i = 0; i < n; i++) {
      const struct remix_probe *const w = &p[which[from + i]];
      wants[i] = (struct anchors_lookup){&w->x->index->anchors, w->key};
    }
    anchors_find_many(wants, n, found);
    for (uint32_t i = 0; i < n; i++) {
      struct remix_probe *const w = &p[which[from + i]];
      w->search = w->several = false;
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
    prefetch(w->seg + needed - 1);  // a segment need not begin at a cache line
  }
  for (uint32_t i = 0; i < nr; i++) {
    struct remix_probe *const w = &p[which[i]];
    const uint8_t *const s = w->seg;
    if (!s) continue;
    const struct remix_index *const ix = w->x->index;
    if (likely(w->x->tags)) {
      w->set = set32_eq8(s, 0xFF, remix_tag(w->hash)) & seg_live(ix, s);
      w->several = w->set & (w->set - 1);
      if (unlikely(ix->young) && w->set) w->set = only_candidate(ix, s, w->key, w->set);
    } else if (unlikely(seg_far(ix, s))) {
      w->search = true;
    } else {
      w->set = 1u << blind_candidate(s + ix->lay.dbits, seg_nr(ix, s), seg_base(ix, s), w->key) & seg_live(ix, s);
    }
  }
}

bool remix_probe_fits(const struct remix_probe *p) {
  const struct remix_index *const ix = p->x->index;
  if (!p->x->tags) return true;
  if (unlikely(p->several)) return only_candidate(ix, p->seg, p->key, 1u << p->entry) != 0;
  return entry_fits(ix, p->seg, p->key, p->entry);
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

void remix_watch(struct remix *x, const struct remix_watch *w) { x->watch = w; }

void remix_add_debt(struct remix *x, uint64_t scan_debt) {
  const uint64_t sum = atomic_fetch_add_explicit(&x->scan_debt, scan_debt, memory_order_relaxed) + scan_debt;
  if (x->watch && sum >= atomic_load_explicit(&x->scan_debt_due, memory_order_relaxed)) x->watch->due(x->watch->arg, x);
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

// The base is the lowest byte of the segment's discriminating bits; without any, it is 0.
static bool base_is_right(const struct remix_index *ix, const uint8_t *s, uint32_t nr) {
  bool any = false, lowest = false;
  for (uint32_t i = 1; i < nr; i++) {
    const uint32_t d = remix_seg_dbit(&ix->lay, s, i);
    any = any || d != BLIND_SAME;
    lowest = lowest || d >> 4 == 0;
  }
  return any ? lowest : seg_base(ix, s) == 0;
}

const char *remix_walk_wrong(const struct remix_walk *w, struct kref before, struct kref key) {
  const struct remix_index *const ix = w->x->index;
  const uint8_t *const s = seg_at(ix, w->seg);
  const uint32_t lcp = kv_lcp_from(before, key, 0);
  if (w->at == 0) {
    const struct kref anchor = anchors_at(&ix->anchors, w->seg);
    if (!base_is_right(ix, s, w->nr)) return "wrong base";
    if (w->seg == 0) return NULL;
    const bool begins = anchor.len == lcp + 1 && anchor.len <= key.len && memcmp(anchor.ptr, key.ptr, anchor.len) == 0;
    return begins ? NULL : "wrong anchor";
  }
  const uint32_t d = remix_seg_dbit(&ix->lay, s, w->at), base = seg_base(ix, s);
  static const char wrong[] = "wrong discriminating bit";
  if (kv_eq(before, key)) return d == BLIND_SAME ? NULL : wrong;
  if (lcp < base || lcp >= key.len) return wrong;
  if (lcp - base > BLIND_BYTE_MAX) return d == BLIND_FAR ? NULL : wrong;
  // after the end of the key before it is the leading bit; else the highest bit that differs
  const uint32_t bit = lcp == before.len ? 0 : (uint32_t)__builtin_clz((uint32_t)(before.ptr[lcp] ^ key.ptr[lcp])) - 23;
  return d == ((lcp - base) << 4 | bit) ? NULL : wrong;
}

uint32_t remix_walk_lcp(const struct remix_walk *w, bool *known_out) {
  const struct remix_index *const ix = w->x->index;
  *known_out = true;
  // An anchor is one byte longer than the prefix that its key shares with the key before (R3).
  if (w->at == 0) return w->seg ? anchors_at(&ix->anchors, w->seg).len - 1 : 0;
  const uint8_t *const s = seg_at(ix, w->seg);
  const uint32_t d = remix_seg_dbit(&ix->lay, s, w->at);
  if (d == BLIND_SAME) return REMIX_SAME;
  *known_out = d != BLIND_FAR;
  return seg_base(ix, s) + (d >> 4);
}
