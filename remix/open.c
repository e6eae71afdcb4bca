// SPDX-License-Identifier: Apache-2.0
#include "remix/open.h"

#include <assert.h>
#include <stdio.h>

#include "base/blind.h"
#include "remix/narrow.h"
#include "remix/pack.h"
#include "remix/seg.h"

// One allocation, so that x, ix and map are near each other in memory.
struct remix_whole {
  struct remix x;
  _Alignas(CACHE_LINE) struct remix_index ix;
  struct mem_map map;  // the image's memory
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

enum remixdb_status remix_check_head(struct remix *x, const uint8_t *p) {
  struct remix_index *const ix = x->index;
  const bool paged = remix_file_is_paged(p);
  const uint32_t flags = load32le(p + REMIX_HEAD_FLAGS), nr_runs = load32le(p + REMIX_HEAD_RUNS),
                 known = REMIX_FLAG_TAGS | (paged ? REMIX_FLAG_KINDS : 0u);
  if (flags & ~known) return err_corrupt(x->path, REMIX_HEAD_FLAGS, "flags %#x that are not known", flags);
  x->tags = flags & REMIX_FLAG_TAGS;
  ix->plain = paged ? !(flags & REMIX_FLAG_KINDS) : load32le(p + REMIX_HEAD_FORMAT) <= REMIX_FORMAT_PLAIN;
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
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    const uint32_t at = REMIX_HEAD_TABLES + 8 * r;
    const uint64_t table = load64le(p + at);
    if (table != x->runs[r]->number)
      return err_corrupt(x->path, at, "run %u is table %llu, %llu expected", r, (unsigned long long)table,
                         (unsigned long long)x->runs[r]->number);
  }
  return REMIXDB_OK;
}

// Compares the image's header with the image and the tables. The header's counts determine all offsets.
static enum remixdb_status check_header(struct remix *x) {
  struct remix_index *const ix = x->index;
  const uint8_t *const p = x->image;
  const enum remixdb_status s = remix_check_head(x, p);
  if (s != REMIXDB_OK) return s;
  const uint64_t segs = load64le(p + REMIX_HEAD_SEGS_AT), offs = load64le(p + REMIX_HEAD_OFFS_AT),
                 anchors = load64le(p + REMIX_HEAD_ANCHORS_AT), len = load64le(p + REMIX_HEAD_ANCHORS_LEN);
  if (segs != remix_segs_off(x->nr_runs) || offs != segs + (uint64_t)x->nr_segs * ix->lay.stride ||
      anchors != offs + 4 * ((uint64_t)x->nr_segs + 1) || len > x->image_size ||
      anchors + len + REMIX_SUM != x->image_size)
    return err_corrupt(x->path, REMIX_HEAD_SEGS_AT, "sections do not fit the file");
  ix->segs = p + segs;
  ix->anchors = (struct anchors){.offs = p + offs, .bytes = p + anchors, .nr = x->nr_segs};
  return REMIXDB_OK;
}

static enum remixdb_status check_anchors(const struct remix *x, uint64_t len) {
  const struct anchors *const a = &x->index->anchors;
  const uint64_t at = (uint64_t)(a->offs - x->image);
  const uint32_t nr = x->nr_segs;
  uint32_t prev = load32le(a->offs);
  if (prev != 0) return err_corrupt(x->path, at, "first anchor at %u", prev);
  for (uint32_t i = 1; i <= nr; i++) {
    const uint32_t off = load32le(a->offs + 4 * (size_t)i);
    if (off < prev || off > len) return err_corrupt(x->path, at + 4 * (uint64_t)i, "anchor ends at %u", off);
    // code that copies an anchor has room for a key
    if (off - prev > KV_KEY_MAX) return err_corrupt(x->path, at + 4 * (uint64_t)i, "anchor of %u bytes", off - prev);
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
  ix->live = mem_alloc(remix_live_size(x));
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
      if (unlikely(remix_seg_off(&ix->lay, s, r) != pos[r]))
        return err_corrupt(x->path, at, "segment %u: cursor offset of run %u", i, r);
      const uint32_t n = set32_count(set32_eq8(sel, REMIX_RUN, (uint8_t)r) & in);
      pos[r] = sst_advance(x->runs[r], pos[r], n);
      seen[r] += n;
      known += n;
    }
    if (unlikely(known != nr)) return err_corrupt(x->path, at, "segment %u: selector of a run that is not there", i);
    entries += nr;
    rising_set(ix->live, i, (uint32_t)keys);  // tables have fewer than 2^24 records each
    keys += set32_count(seg_live(ix, s));
  }
  rising_set(ix->live, x->nr_segs, (uint32_t)keys);
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

// This check comes before the checksum, so that the message distinguishes another kind of file, or a short file, from a
// damaged file.
enum remixdb_status remix_check_start(const char *path, uint64_t file_size, const uint8_t *head) {
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
  if (s == REMIXDB_OK) s = remix_check_start(path, out->size, head);
  if (s == REMIXDB_OK) s = env_read(ctx->env, fd, path, sum, sizeof(sum), out->size - sizeof(sum));
  env_close_quiet(ctx->env, fd);
  if (s == REMIXDB_OK) out->print = load64le(sum);
  return s;
}

enum remixdb_status remix_check_image(struct remix *x, uint64_t anchors_len, bool walked) {
  const enum remixdb_status s = check_anchors(x, anchors_len);
  return s == REMIXDB_OK ? check_segments(x, walked) : s;
}

enum remixdb_status remix_take_anchors(struct remix *x) { return anchors_prepare(&x->index->anchors); }

// The same of a REMIX in a pack.
static enum remixdb_status read_part_ends(const struct pack_part *part, const char *path, uint8_t *head,
                                          struct sst_peek *out) {
  uint8_t sum[REMIX_SUM];
  out->size = part->at.len;
  if (out->size < REMIX_HEAD_STRIDE + REMIX_SUM)
    return err_corrupt(path, 0, "a REMIX of %llu bytes", (unsigned long long)out->size);
  enum remixdb_status s = pack_part_read(part, head, REMIX_HEAD_STRIDE, 0);
  if (s == REMIXDB_OK) s = remix_check_start(path, out->size, head);
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
  out->expires = format == REMIX_FORMAT_PAGED ? (load32le(head + REMIX_HEAD_FLAGS) & REMIX_FLAG_KINDS) != 0
                                              : format > REMIX_FORMAT_PLAIN;
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
  if (s == REMIXDB_OK) s = remix_check_start(x->path, x->file_size, head);
  if (s != REMIXDB_OK) return s;
  if (env_is_hollow(env, fd, base, base + x->file_size, REMIX_HOLE))
    return err_corrupt(x->path, 0, "has a hole where there should be an index");
  env_advise(env, fd, base, x->file_size, ENV_WILL_NEED);
  s = remix_map(x->file_size, file_out);
  if (s != REMIXDB_OK) return s;
  memcpy(file_out->ptr, head, sizeof(head));
  return env_read(env, fd, x->path, file_out->ptr + sizeof(head), x->file_size - sizeof(head), base + sizeof(head));
}

// Makes the plain image from the file's bytes. If *file is the image, takes *file over. *walked_out: unpacking has
// computed the cursor offsets by counting records of the tables.
static enum remixdb_status unpack_file(struct remix *x, struct mem_map *file, struct mem_map *plain_out,
                                       bool *walked_out) {
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
    *plain_out = *file;
    *file = (struct mem_map){0};
    x->image_size = x->file_size;
  } else {
    s = remix_unpack(file->ptr, x->file_size, x->runs, x->nr_runs, x->path, plain_out, &x->image_size);
    *walked_out = true;
  }
  x->image = plain_out->ptr;
  return s;
}

static enum remixdb_status read_image(struct remix *x, struct mem_map *plain_out, bool *walked_out) {
  struct mem_map file = {0};
  int fd = -1;
  const char *const name = env_name(x->part ? x->part->pack->path : x->path);
  enum remixdb_status s = env_open(x->ctx->dir, name, ENV_READ, &fd);
  if (s == REMIXDB_NOTFOUND) return err_corrupt(x->path, 0, "file is missing");
  if (s != REMIXDB_OK) return s;
  s = read_file(x, fd, &file);
  if (s == REMIXDB_OK) s = unpack_file(x, &file, plain_out, walked_out);
  mem_unmap(&file);
  env_close_quiet(x->ctx->env, fd);
  return s;
}

void remix_drop_image(struct remix *x) {
  struct remix_whole *const whole = (struct remix_whole *)x;
  budget_give(x->ctx->budget, BUDGET_INDEXES, whole->counted);
  whole->counted = 0;
  mem_unmap(&whole->map);
  whole->map = (struct mem_map){0};
  anchors_fini(&x->index->anchors);
  x->index->anchors = (struct anchors){0};
  mem_free(x->index->live);
  x->index->live = NULL;
  x->index->list = NULL;
  x->image = NULL;
  x->image_size = 0;
  x->nr_segs = 0;
}

void remix_free(struct remix *x) {
  const bool page = x->of != NULL;
  if (x->fini) x->fini(x);
  if (page) return;  // x is freed
  remix_drop_image(x);
  if (x->runs)
    for (uint32_t r = 0; r < x->nr_runs; r++) sst_unref(x->runs[r]);
  mem_free(x->runs);
  mem_free(x->path);
  mem_free(atomic_load_explicit(&x->hidden, memory_order_relaxed));
  mem_free(atomic_load_explicit(&x->lapsed, memory_order_relaxed));
  mem_free(atomic_load_explicit(&x->values, memory_order_relaxed));
  mem_free(x);
}

// Takes the image that a build has made; it is the builder's.
static void take_image(struct remix *x, const struct remix_built *built) {
  x->image = (uint8_t *)(uintptr_t)built->image;
  x->image_size = built->image_size;
  x->file_size = built->file_size;
  x->print = built->print;
}

// Copies a view's plain image, which is checked, into memory that suits random reads, in its narrow form.
static enum remixdb_status keep_image(struct remix *x) {
  struct mem_map *const map = &((struct remix_whole *)x)->map;
  const size_t head = remix_segs_off(x->nr_runs);
  struct narrow_form narrow;
  enum remixdb_status s = remix_narrow_form(x, head, &narrow);
  if (s != REMIXDB_OK) return s;
  s = mem_map_table(narrow.size, map);
  if (s == REMIXDB_OK) remix_narrow(x, head, &narrow, map->ptr);
  remix_narrow_end(&narrow);
  return s;
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

enum remixdb_status remix_create(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs, uint32_t nr_runs,
                                 struct remix **out) {
  assert(nr_runs <= REMIX_RUNS_MAX);
  struct remix_whole *const whole = mem_alloc_aligned(CACHE_LINE, sizeof(*whole));
  if (!whole) return REMIXDB_NOMEM;
  memset(whole, 0, sizeof(*whole));
  struct remix *const x = &whole->x;
  x->index = &whole->ix;
  x->ctx = ctx;
  x->number = number;
  x->part = packs_find(ctx->packs, PACK_REMIX, number);
  atomic_init(&x->refs, 1);
  atomic_init(&x->obsolete, false);
  atomic_init(&x->scan_debt, 0);
  atomic_init(&x->scan_debt_due, 0);
  x->runs = mem_array(nr_runs, sizeof(x->runs[0]), 0);
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
  struct mem_map plain = {0};
  bool walked = false;
  *out = NULL;
  enum remixdb_status s = remix_create(ctx, number, runs, nr_runs, &x);
  if (s != REMIXDB_OK) return s;
  if (built) take_image(x, built);
  else s = read_image(x, &plain, &walked);
  if (s == REMIXDB_OK && x->image_size < remix_segs_off(nr_runs))
    s = err_corrupt(x->path, REMIX_HEAD_SIZE, "too short for %u runs", nr_runs);
  if (s == REMIXDB_OK) s = check_header(x);
  if (s == REMIXDB_OK) s = remix_check_image(x, load64le(x->image + REMIX_HEAD_ANCHORS_LEN), walked);
  if (s == REMIXDB_OK) s = keep_image(x);
  if (s == REMIXDB_OK) s = remix_take_anchors(x);
  mem_unmap(&plain);
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
  assert(!x->paged);
  ix->young = true;
  for (uint32_t i = 0; i < x->nr_segs; i++) {
    rising_set(ix->live, i, live);
    live += set32_count(seg_live(ix, seg_at(ix, i)));
  }
  rising_set(ix->live, x->nr_segs, live);
}

bool remix_is_young(const struct remix *x) { return x->index->young; }

size_t remix_memory(const struct remix *x) {
  const struct remix_whole *const whole = (const struct remix_whole *)x;
  return sizeof(*whole) + x->nr_runs * sizeof(x->runs[0]) + whole->map.size + anchors_memory(&whole->ix.anchors) +
         (x->paged ? x->paged_memory : remix_live_size(x));
}

struct kref remix_anchor(const struct remix *x, uint32_t seg, uint8_t *room) {
  const struct anchors *const a = &x->index->anchors;
  if (a->cut == 0) return anchors_at(a, seg);
  const uint32_t len = anchors_len(a, seg);
  anchors_copy(a, seg, 0, len, room);
  return kref(room, len);
}

int remix_anchor_cmp(const struct remix *x, uint32_t seg, struct kref key) {
  return anchors_cmp(&x->index->anchors, seg, key);
}
