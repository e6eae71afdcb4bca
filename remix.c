// SPDX-License-Identifier: Apache-2.0
#include "remix_pack.h"

#include <assert.h>
#include <stdio.h>

// REMIX_PORTABLE forces the code without vector instructions, so that tests can hold it against the other.
#if defined(__SSE2__) && !defined(REMIX_PORTABLE)
#define REMIX_SSE2 1
#include <emmintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON) && !defined(REMIX_PORTABLE)
#define REMIX_NEON 1
#include <arm_neon.h>
#endif

struct remix_counters remix_counters;
#if defined(REMIX_COUNTERS)
#define REMIX_COUNT(field) ((void)atomic_fetch_add_explicit(&remix_counters.field, 1, memory_order_relaxed))
#else
#define REMIX_COUNT(field) ((void)0)
#endif

#define REMIX_NODE 8u        // keys of a node of the prefix tree: one cache line
#define REMIX_LEVELS_MAX 12u  // 8^11 nodes pass 2^32
#define REMIX_AHEAD_MIN 4u
#define REMIX_AHEAD_MAX BLKIO_BATCH_MAX
#define REMIX_AHEAD_OFF UINT32_MAX  // read-ahead left nothing in the cache: not tried again on this REMIX

// Finding a segment: 8-byte prefixes of the anchors (but the first, which is empty), taken after what all of them share, in a
// static B+-tree of implicit children (after Khuong and Morin, "Array Layouts for Comparison-Based Searching", 2017, and the
// S-tree of Slotin's "Algorithms for Modern Hardware"). Level 0 is the sorted array itself; an entry of a level above is the
// greatest of the node below it. Each level ends in padding of all ones, so that a search never leaves the array.
struct remix_index {
  const uint8_t *segs;
  struct remix_layout lay;
  uint32_t nr_prefixes;  // nr_segs - 1
  uint32_t nr_levels;    // 0: at most one segment
  uint32_t common;       // bytes that all anchors but the first share
  const uint8_t *anchor_offs, *anchors;
  const uint64_t *level[REMIX_LEVELS_MAX];
  uint64_t *tree;
  size_t tree_size;
};

// One allocation for both, so that the way from a REMIX to its segments is short.
struct remix_whole {
  struct remix x;
  struct remix_index ix;
};

// ---- sets of entries of a segment: bit i is entry i

static inline uint32_t set_below(uint32_t i) { return i < 32 ? (1u << i) - 1 : UINT32_MAX; }
static inline uint32_t set_above(uint32_t i) { return 0u - (2u << i); }  // i < 32; for 31 it is empty
static inline uint32_t set_first(uint32_t m) { return (uint32_t)__builtin_ctz(m); }
static inline uint32_t set_last(uint32_t m) { return 31u - (uint32_t)__builtin_clz(m); }

// The baseline has no instruction for it, and the compiler's own would be a call.
static inline uint32_t set_count(uint32_t m) {
#if defined(__POPCNT__) || defined(__aarch64__)
  return (uint32_t)__builtin_popcount(m);
#else
  m -= m >> 1 & 0x55555555u;
  m = (m & 0x33333333u) + (m >> 2 & 0x33333333u);
  return (((m + (m >> 4)) & 0x0F0F0F0Fu) * 0x01010101u) >> 24;
#endif
}

#if defined(REMIX_NEON)
static inline uint32_t neon_bits(uint8x16_t lanes) {  // lanes are 0 or 0xFF
  static const uint8_t weights[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t w = vandq_u8(lanes, vld1q_u8(weights));
  return (uint32_t)vaddv_u8(vget_low_u8(w)) | (uint32_t)vaddv_u8(vget_high_u8(w)) << 8;
}
#endif

// Entries whose byte, of the bits in `keep`, is v.
static inline uint32_t set_eq8(const uint8_t *p, uint8_t keep, uint8_t v) {
#if defined(REMIX_SSE2)
  const __m128i k = _mm_set1_epi8((char)keep), w = _mm_set1_epi8((char)v);
  const __m128i lo = _mm_cmpeq_epi8(_mm_and_si128(_mm_loadu_si128((const __m128i *)p), k), w);
  const __m128i hi = _mm_cmpeq_epi8(_mm_and_si128(_mm_loadu_si128((const __m128i *)(p + 16)), k), w);
  return (uint32_t)_mm_movemask_epi8(lo) | (uint32_t)_mm_movemask_epi8(hi) << 16;
#elif defined(REMIX_NEON)
  const uint8x16_t k = vdupq_n_u8(keep), w = vdupq_n_u8(v);
  return neon_bits(vceqq_u8(vandq_u8(vld1q_u8(p), k), w)) | neon_bits(vceqq_u8(vandq_u8(vld1q_u8(p + 16), k), w)) << 16;
#else
  const uint64_t ones = 0x0101010101010101ull, low7 = 0x7F7F7F7F7F7F7F7Full;
  uint32_t m = 0;
  for (uint32_t i = 0; i < REMIX_SEG; i += 8) {
    const uint64_t x = (load64le(p + i) & keep * ones) ^ v * ones;
    const uint64_t zero = ~(((x & low7) + low7) | x | low7);  // the high bit of each byte that is 0
    m |= (uint32_t)((zero >> 7) * 0x0102040810204080ull >> 56) << i;
  }
  return m;
#endif
}

// Entries whose 16-bit number is less than v.
static inline uint32_t set_lt16(const uint8_t *p, uint32_t v) {
#if defined(REMIX_SSE2)
  // There is only a signed comparison: both sides are shifted by half the range.
  const __m128i half = _mm_set1_epi16((short)0x8000), w = _mm_set1_epi16((short)(v ^ 0x8000));
  __m128i q[4];
  for (int i = 0; i < 4; i++) q[i] = _mm_cmplt_epi16(_mm_xor_si128(_mm_loadu_si128((const __m128i *)(p + 16 * i)), half), w);
  const __m128i lo = _mm_packs_epi16(q[0], q[1]), hi = _mm_packs_epi16(q[2], q[3]);
  return (uint32_t)_mm_movemask_epi8(lo) | (uint32_t)_mm_movemask_epi8(hi) << 16;
#elif defined(REMIX_NEON)
  const uint16x8_t w = vdupq_n_u16((uint16_t)v);
  uint8x8_t q[4];
  for (int i = 0; i < 4; i++) q[i] = vmovn_u16(vcltq_u16(vreinterpretq_u16_u8(vld1q_u8(p + 16 * i)), w));
  return neon_bits(vcombine_u8(q[0], q[1])) | neon_bits(vcombine_u8(q[2], q[3])) << 16;
#else
  uint32_t m = 0;
  for (uint32_t i = 0; i < REMIX_SEG; i++) m |= (uint32_t)(load16le(p + 2 * i) < v) << i;
  return m;
#endif
}

static inline uint32_t set_eq16(const uint8_t *p, uint32_t v) {
  const uint32_t below = set_lt16(p, v);
  return (v == 0xFFFF ? UINT32_MAX : set_lt16(p, v + 1)) & ~below;
}

// ---- segments

static inline const uint8_t *seg_at(const struct remix_index *ix, uint32_t seg) {
  return ix->segs + (size_t)seg * ix->lay.stride;
}
static inline uint32_t seg_nr(const struct remix_index *ix, const uint8_t *s) { return s[ix->lay.head]; }
static inline uint32_t seg_base(const struct remix_index *ix, const uint8_t *s) { return load16le(s + ix->lay.head + 2); }
static inline sst_pos seg_off(const struct remix_index *ix, const uint8_t *s, uint32_t run) {
  return load32le(s + ix->lay.offs + 4 * run);
}
static inline uint32_t seg_old(const uint8_t *sel) { return set_eq8(sel, REMIX_OLD, REMIX_OLD); }

static inline void seg_prefetch(const struct remix_index *ix, const uint8_t *s) {
  for (uint32_t o = 0; o < ix->lay.stride; o += CACHE_LINE) __builtin_prefetch(s + o);
}

// The position of the run's first record at or after entry i (R4).
static inline sst_pos seg_pos(const struct remix *x, const uint8_t *s, uint32_t run, uint32_t i) {
  const struct remix_index *ix = x->index;
  const uint32_t before = set_count(set_eq8(s + ix->lay.sel, REMIX_RUN, (uint8_t)run) & set_below(i));
  return sst_advance(x->runs[run], seg_off(ix, s, run), before);
}

// ---- finding the segment

static inline struct kref anchor_at(const struct remix_index *ix, uint32_t seg) {
  const uint32_t off = load32le(ix->anchor_offs + 4 * (size_t)seg);
  return kref(ix->anchors + off, load32le(ix->anchor_offs + 4 * (size_t)seg + 4) - off);
}

// 8 bytes from `from` on (from <= len), zeros after the end, as a number that orders as they do.
static inline uint64_t key_prefix(struct kref k, uint32_t from) {
  const uint32_t rest = k.len - from;
  if (likely(rest >= 8)) return load64be(k.ptr + from);
  if (rest == 0) return 0;
  if (k.len >= 8) return load64be(k.ptr + k.len - 8) << 8 * (8 - rest);
  uint64_t v = 0;
  for (uint32_t i = from; i < k.len; i++) v = v << 8 | k.ptr[i];
  return v << 8 * (8 - rest);
}

// The child below node `at` of the level that has the first prefix not less than v.
static inline uint32_t prefix_step(const struct remix_index *ix, uint32_t level, uint32_t at, uint64_t v) {
  const uint64_t *const node = ix->level[level] + (size_t)at * REMIX_NODE;
  uint32_t nr = 0;
  for (uint32_t i = 0; i < REMIX_NODE; i++) nr += node[i] < v;
  return at * REMIX_NODE + nr;
}

// The number of prefixes less than v.
static inline uint32_t prefix_rank(const struct remix_index *ix, uint64_t v) {
  uint32_t at = 0;
  for (uint32_t l = ix->nr_levels; l-- > 0;) at = prefix_step(ix, l, at, v);
  return at;
}

// Whether the prefixes decide: *v_out is then the key's. Else *seg_out is its segment.
static inline bool seg_prefixed(const struct remix_index *ix, struct kref key, uint64_t *v_out, uint32_t *seg_out) {
  *seg_out = 0;
  if (ix->nr_levels == 0) return false;
  if (ix->common) {
    const uint32_t n = key.len < ix->common ? key.len : ix->common;
    const int r = n ? memcmp(key.ptr, ix->anchors, n) : 0;  // the second anchor's bytes come first, for the first has none
    if (r > 0) *seg_out = ix->nr_prefixes;
    if (r != 0 || key.len < ix->common) return false;
  }
  *v_out = key_prefix(key, ix->common);
  return true;
}

// The key's segment, of whose prefix v `lo` are less.
static inline uint32_t seg_ranked(const struct remix_index *ix, struct kref key, uint64_t v, uint32_t lo) {
  const uint64_t *const all = ix->level[0];
  if (likely(lo == ix->nr_prefixes || all[lo] != v)) return lo;
  // Segments lo + 1 .. hi have this prefix: among those the anchors decide.
  uint32_t hi = lo + 1;
  if (hi < ix->nr_prefixes && all[hi] == v) hi = v == UINT64_MAX ? ix->nr_prefixes : prefix_rank(ix, v + 1);
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo + 1) / 2;
    if (kv_cmp(anchor_at(ix, mid), key) <= 0)
      lo = mid;
    else
      hi = mid - 1;
  }
  return lo;
}

// The last segment whose anchor is <= key.
static inline uint32_t seg_find(const struct remix_index *ix, struct kref key) {
  uint64_t v;
  uint32_t seg;
  return seg_prefixed(ix, key, &v, &seg) ? seg_ranked(ix, key, v, prefix_rank(ix, v)) : seg;
}

static enum remixdb_status index_build(struct remix *x) {
  struct remix_index *const ix = x->index;
  ix->nr_prefixes = x->nr_segs ? x->nr_segs - 1 : 0;
  if (ix->nr_prefixes == 0) return REMIXDB_OK;
  const struct kref first = anchor_at(ix, 1), last = anchor_at(ix, x->nr_segs - 1);
  ix->common = kv_lcp_from(first, last, 0);

  // Level 0 has room for one more, so that there is padding in every level.
  size_t len[REMIX_LEVELS_MAX], all = 0;
  uint32_t nr = 0;
  for (size_t n = (size_t)ix->nr_prefixes + 1;; n = len[nr - 1] / REMIX_NODE) {
    len[nr] = align_up(n, REMIX_NODE);
    all += len[nr++];
    if (n <= REMIX_NODE) break;
  }
  ix->tree_size = all * sizeof(uint64_t);
  ix->tree = mem_alloc_aligned(CACHE_LINE, ix->tree_size);
  if (!ix->tree) return REMIXDB_NOMEM;

  uint64_t *p = ix->tree;
  for (uint32_t i = 0; i < ix->nr_prefixes; i++) p[i] = key_prefix(anchor_at(ix, i + 1), ix->common);
  for (size_t i = ix->nr_prefixes; i < len[0]; i++) p[i] = UINT64_MAX;
  ix->level[0] = p;
  for (uint32_t l = 1; l < nr; l++) {
    const uint64_t *const below = p;
    const size_t nodes = len[l - 1] / REMIX_NODE;
    p += len[l - 1];
    for (size_t i = 0; i < nodes; i++) p[i] = below[i * REMIX_NODE + REMIX_NODE - 1];
    for (size_t i = nodes; i < len[l]; i++) p[i] = UINT64_MAX;
    ix->level[l] = p;
  }
  ix->nr_levels = nr;
  return REMIXDB_OK;
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
  ix->anchor_offs = p + offs;
  ix->anchors = p + anchors;
  return REMIXDB_OK;
}

static enum remixdb_status check_anchors(const struct remix *x) {
  const struct remix_index *const ix = x->index;
  const uint64_t at = (uint64_t)(ix->anchor_offs - x->image), len = load64le(x->image + 96);
  const uint32_t nr = x->nr_segs;
  uint32_t prev = load32le(ix->anchor_offs);
  if (prev != 0) return err_corrupt(x->path, at, "first anchor at %u", prev);
  for (uint32_t i = 1; i <= nr; i++) {
    const uint32_t off = load32le(ix->anchor_offs + 4 * (size_t)i);
    if (off < prev || off > len) return err_corrupt(x->path, at + 4 * (uint64_t)i, "anchor ends at %u", off);
    prev = off;
  }
  if (prev != len) return err_corrupt(x->path, at + 4 * (uint64_t)nr, "anchors end at %u of %llu", prev, (unsigned long long)len);
  if (nr && anchor_at(ix, 0).len != 0) return err_corrupt(x->path, at, "first anchor is not empty");
  for (uint32_t i = 1; i < nr; i++)
    if (kv_cmp(anchor_at(ix, i - 1), anchor_at(ix, i)) >= 0)
      return err_corrupt(x->path, at + 4 * (uint64_t)i, "anchors do not ascend");
  return REMIXDB_OK;
}

// What a segment says of its entries, without the tables. NULL when all is well, else what is wrong.
static const char *check_entries(const struct remix_index *ix, const uint8_t *s) {
  const uint8_t *const sel = s + ix->lay.sel, *const dbits = s + ix->lay.dbits;
  const uint32_t nr = seg_nr(ix, s), flags = s[ix->lay.head + 1];
  if (nr == 0 || nr > REMIX_SEG) return "count of entries out of range";
  if (flags & ~REMIX_SEG_FAR) return "unknown flags";
  const uint32_t in = set_below(nr), old = seg_old(sel);
  if ((set_eq8(sel, 0xFF, 0) | in) != UINT32_MAX || set_eq8(sel, 0x20, 0) != UINT32_MAX) return "malformed selector";
  if (old & 1) return "begins with an old version";
  const uint32_t zero = set_eq16(dbits, 0), same = set_eq16(dbits, REMIX_BIT_SAME), far = set_eq16(dbits, REMIX_BIT_FAR);
  if (!(zero & 1) || (zero | in) != UINT32_MAX) return "malformed discriminating bit";
  if (same != old) return "old versions and discriminating bits disagree";
  if ((far != 0) != (flags == REMIX_SEG_FAR)) return "flag of far bits is wrong";
  if (set_lt16(dbits, (REMIX_BYTE_MAX + 1) << 4) != ~(same | far)) return "malformed discriminating bit";
  // A bit within a byte is at most 8: in each 16-bit lane, adding 7 to the low 4 bits must not carry, but for the two marks.
  uint32_t over = 0;
  for (uint32_t i = 0; i < REMIX_SEG; i += 4) {
    const uint64_t carry = ((load64le(dbits + 2 * i) & 0x000F000F000F000Full) + 0x0007000700070007ull) & 0x0010001000100010ull;
    over += (uint32_t)((carry >> 4) * 0x0001000100010001ull >> 48);
  }
  if (over != set_count(same | far)) return "malformed discriminating bit";
  // Versions of one key come from ever older runs.
  for (uint32_t m = old; m; m &= m - 1) {
    const uint32_t i = set_first(m);
    if ((sel[i] & REMIX_RUN) >= (sel[i - 1] & REMIX_RUN)) return "versions of a key out of order";
  }
  return NULL;
}

// Every segment, and that its cursor offsets and selectors walk each table exactly from its beginning to its end.
static enum remixdb_status check_segments(const struct remix *x) {
  const struct remix_index *const ix = x->index;
  sst_pos pos[REMIX_RUNS_MAX];
  uint64_t seen[REMIX_RUNS_MAX] = {0}, entries = 0, keys = 0;
  for (uint32_t r = 0; r < x->nr_runs; r++) pos[r] = sst_advance(x->runs[r], sst_pos_make(0, 0), 0);
  for (uint32_t i = 0; i < x->nr_segs; i++) {
    const uint8_t *const s = seg_at(ix, i), *const sel = s + ix->lay.sel;
    const uint64_t at = (uint64_t)(s - x->image);
    const char *const wrong = check_entries(ix, s);
    if (unlikely(wrong != NULL)) return err_corrupt(x->path, at, "segment %u: %s", i, wrong);
    const uint32_t nr = seg_nr(ix, s), in = set_below(nr);
    uint32_t known = 0;
    for (uint32_t r = 0; r < x->nr_runs; r++) {
      if (unlikely(seg_off(ix, s, r) != pos[r])) return err_corrupt(x->path, at, "segment %u: cursor offset of run %u", i, r);
      const uint32_t n = set_count(set_eq8(sel, REMIX_RUN, (uint8_t)r) & in);
      pos[r] = sst_advance(x->runs[r], pos[r], n);
      seen[r] += n;
      known += n;
    }
    if (unlikely(known != nr)) return err_corrupt(x->path, at, "segment %u: selector of a run that is not there", i);
    entries += nr;
    keys += set_count(set_eq8(sel, REMIX_OLD | REMIX_TOMB, 0) & in);
  }
  for (uint32_t r = 0; r < x->nr_runs; r++)
    if (pos[r] != sst_end(x->runs[r]) || seen[r] != x->runs[r]->nr_records)
      return err_corrupt(x->path, 0, "%llu entries of run %u, whose table has %llu records", (unsigned long long)seen[r], r,
                         (unsigned long long)x->runs[r]->nr_records);
  if (entries != x->nr_entries) return err_corrupt(x->path, 48, "counts %llu entries", (unsigned long long)x->nr_entries);
  if (keys != x->nr_keys) return err_corrupt(x->path, 56, "counts %llu keys", (unsigned long long)x->nr_keys);
  return REMIXDB_OK;
}

// Reads the file and makes x->image of it. What tells another format from a damaged file is looked at first.
static enum remixdb_status read_image(struct remix *x) {
  struct env *const env = x->ctx->env;
  int fd = -1;
  uint8_t head[40], *file = NULL;
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
  const uint32_t format = load32le(head + 8);
  if (format > REMIX_FORMAT) {
    s = err_set(REMIXDB_VERSION, "%s: format %u is newer than this library's %u", x->path, format, REMIX_FORMAT);
    goto out;
  }
  if (format == 0 || load64le(head + 32) != x->file_size || x->file_size < remix_segs_off(0) + 4 + 8) {
    s = err_corrupt(x->path, 0, "malformed header, or a file of %llu bytes cut from %llu", (unsigned long long)x->file_size,
                    (unsigned long long)load64le(head + 32));
    goto out;
  }
  file = mem_alloc_aligned(REMIX_ALIGN, x->file_size);
  if (!file) {
    s = REMIXDB_NOMEM;
    goto out;
  }
  s = env_read(env, fd, x->path, file, x->file_size, 0);
  if (s != REMIXDB_OK) goto out;
  if (hash64_seed(file, x->file_size - 8, x->number) != load64le(file + x->file_size - 8)) {
    s = err_corrupt(x->path, x->file_size - 8, "checksum does not match");
  } else if (format == 1) {
    x->image = file;
    x->image_size = x->file_size;
    file = NULL;
  } else {
    s = remix_unpack(file, x->file_size, x->runs, x->nr_runs, x->path, &x->image, &x->image_size);
  }
out:
  mem_free(file);
  env_close_quiet(env, fd);
  return s;
}

static void remix_free(struct remix *x) {
  if (x->runs)
    for (uint32_t r = 0; r < x->nr_runs; r++) sst_unref(x->runs[r]);
  mem_free(x->runs);
  mem_free(x->image);
  mem_free(x->path);
  mem_free(x->index->tree);
  mem_free(x);
}

enum remixdb_status remix_open(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs, uint32_t nr_runs,
                               struct remix **out) {
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

  s = read_image(x);
  if (s == REMIXDB_OK && x->image_size < remix_segs_off(nr_runs)) s = err_corrupt(x->path, 32, "too short for %u runs", nr_runs);
  if (s == REMIXDB_OK) s = check_header(x);
  if (s == REMIXDB_OK) s = check_anchors(x);
  if (s == REMIXDB_OK) s = check_segments(x);
  if (s == REMIXDB_OK) s = index_build(x);
out:
  if (s != REMIXDB_OK)
    remix_free(x);
  else
    *out = x;
  return s;
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

size_t remix_memory(const struct remix *x) {
  return sizeof(struct remix_whole) + x->nr_runs * sizeof(x->runs[0]) + x->image_size + x->index->tree_size;
}

struct kref remix_anchor(const struct remix *x, uint32_t seg) { return anchor_at(x->index, seg); }

// ---- searching within a segment

// The record of entry i, until the epoch is left: what a search looks at is not pinned. A hold is for one table at a time.
static enum remixdb_status entry_read(const struct remix *x, const uint8_t *s, uint32_t i, struct sst_hold *h,
                                      struct kv_rec *rec_out) {
  const uint32_t run = s[x->index->lay.sel + i] & REMIX_RUN;
  struct sst *const t = x->runs[run];
  if (h->sst && h->sst != t) sst_hold_drop(h);
  REMIX_COUNT(key_reads);
  return sst_read(t, seg_pos(x, s, run, i), false, h, rec_out);
}

// Where a key is, or would be, in a segment.
struct spot {
  uint32_t at;        // first entry whose key is >= the key; the segment's count when there is none
  bool equal;
  struct kv_rec rec;  // of that entry, when equal
};

// For segments whose discriminating bits do not all fit 16 bits. holds: one per run (cursors), or just one for all.
static enum remixdb_status spot_binary(const struct remix *x, const uint8_t *s, struct kref key, struct sst_hold *holds,
                                       bool per_run, struct spot *out) {
  const struct remix_index *const ix = x->index;
  const uint8_t *const sel = s + ix->lay.sel;
  uint32_t lo = 0, hi = seg_nr(ix, s);
  out->equal = false;
  while (lo < hi) {
    uint32_t mid = (lo + hi) / 2;
    while (mid > lo && sel[mid] & REMIX_OLD) mid--;  // the newest version stands for all
    struct kv_rec rec;
    const enum remixdb_status st = entry_read(x, s, mid, per_run ? &holds[sel[mid] & REMIX_RUN] : holds, &rec);
    if (st != REMIXDB_OK) return st;
    REMIX_COUNT(key_compares);
    const int r = kv_cmp(kref(rec.key, rec.klen), key);
    if (r == 0) {
      out->at = mid;
      out->equal = true;
      out->rec = rec;
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

// The key's bits at the discriminating bits of all entries. All of them are taken, without a branch: which of them are asked for
// is as hard to foresee as the bits themselves.
static inline uint32_t blind_bits(const uint8_t *dbits, uint32_t base, struct kref key) {
  static const uint8_t none[1];
  const uint8_t *const p = key.len ? key.ptr : none;
  uint32_t bits = 0;
  for (uint32_t i = 0; i < REMIX_SEG; i++) {
    const uint32_t d = load16le(dbits + 2 * i), byte = base + (d >> 4);
    const bool in = byte < key.len;
    // the leading bit and the byte: 9 bits, of which b counts from the highest; a mark's b is none of them
    const uint32_t v = (0x100u | p[in ? byte : 0]) & (in ? UINT32_MAX : 0);
    bits |= (v >> ((8 - (d & 15)) & 31) & 1) << i;
  }
  return bits;
}

#if defined(REMIX_SSE2) && defined(__GNUC__)
#define REMIX_SSSE3 1
#include <tmmintrin.h>

// The same when the bits lie in 16 bytes behind the base, as they do for most keys: the bytes are looked up for all entries at
// once.
__attribute__((target("ssse3"))) static uint32_t blind_bits_ssse3(const uint8_t *dbits, uint32_t base, struct kref key) {
  const __m128i iota = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), zero = _mm_setzero_si128();
  const __m128i weights = _mm_setr_epi8(0, (char)0x80, 0x40, 0x20, 0x10, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0);
  const __m128i low = _mm_set1_epi16(15);
  const uint32_t rest = key.len > base ? key.len - base : 0;
  // Bytes of the key from `skip` before the base on, without reading beyond it; what the shuffle has no byte for is 0.
  __m128i window;
  uint32_t skip;
  if (rest >= 16) {
    window = _mm_loadu_si128((const __m128i *)(key.ptr + base));
    skip = 0;
  } else if (key.len >= 16) {
    window = _mm_loadu_si128((const __m128i *)(key.ptr + key.len - 16));
    skip = 16 - rest;
  } else {
    uint64_t lo = 0, hi = 0;
    if (key.len >= 8) {
      lo = load64le(key.ptr);
      if (key.len > 8) hi = load64le(key.ptr + key.len - 8) >> 8 * (16 - key.len);
    } else {
      for (uint32_t i = key.len; i > 0; i--) lo = lo << 8 | key.ptr[i - 1];
    }
    window = _mm_set_epi64x((long long)hi, (long long)lo);
    skip = base < 16 ? base : 16;
  }
  window = _mm_shuffle_epi8(window, _mm_add_epi8(iota, _mm_set1_epi8((char)(0x70 + skip))));
  const __m128i end = _mm_set1_epi8((char)(rest < 16 ? rest : 16));
  uint32_t bits = 0;
  for (uint32_t i = 0; i < REMIX_SEG; i += 16) {
    const __m128i d0 = _mm_loadu_si128((const __m128i *)(dbits + 2 * i));
    const __m128i d1 = _mm_loadu_si128((const __m128i *)(dbits + 2 * i + 16));
    const __m128i byte = _mm_packus_epi16(_mm_srli_epi16(d0, 4), _mm_srli_epi16(d1, 4));
    const __m128i b = _mm_packus_epi16(_mm_and_si128(d0, low), _mm_and_si128(d1, low));
    const __m128i clear = _mm_cmpeq_epi8(_mm_and_si128(_mm_shuffle_epi8(window, byte), _mm_shuffle_epi8(weights, b)), zero);
    const __m128i in = _mm_and_si128(_mm_cmpeq_epi8(b, zero), _mm_cmpgt_epi8(end, byte));
    bits |= (((uint32_t)_mm_movemask_epi8(clear) ^ 0xFFFF) | (uint32_t)_mm_movemask_epi8(in)) << i;
  }
  return bits;
}
#endif

// The entry that the blind trie of the segment leads the key to: no other entry shares more leading bits with it.
static inline uint32_t blind_candidate(const uint8_t *dbits, uint32_t nr, uint32_t base, struct kref key) {
  uint32_t zeros;
#if defined(REMIX_SSSE3)
  if (likely(__builtin_cpu_supports("ssse3") && (set_lt16(dbits, 16 << 4) | set_eq16(dbits, REMIX_BIT_SAME)) == UINT32_MAX))
    zeros = ~blind_bits_ssse3(dbits, base, key);
  else
#endif
    zeros = ~blind_bits(dbits, base, key);
  zeros &= set_below(nr);
  uint32_t cand = 0, i = 1;
  for (;;) {
    // Where the key has the 1 the entry is the better candidate, and the next one is asked.
    const uint32_t m = zeros & set_above(i - 1);
    const uint32_t zero = m ? set_first(m) : nr;
    if (zero > i) cand = zero - 1;
    if (m == 0) return cand;
    // Where it has the 0, all entries up to the next smaller bit have the 1 that it has not.
    const uint32_t less = set_lt16(dbits, load16le(dbits + 2 * zero)) & set_above(zero) & set_below(nr);
    if (less == 0) return cand;
    i = set_first(less);
  }
}

// A blind search (Ferguson, "Bit-Tree", 1992; Ferragina and Grossi, "The String B-tree", 1999): the trie gives the one candidate;
// its key is read, and the first bit at which it differs from the target tells how far left or right of it the target belongs.
static enum remixdb_status spot_find(const struct remix *x, const uint8_t *s, struct kref key, struct sst_hold *holds,
                                     bool per_run, struct spot *out) {
  const struct remix_index *const ix = x->index;
  if (unlikely(s[ix->lay.head + 1] & REMIX_SEG_FAR)) return spot_binary(x, s, key, holds, per_run, out);
  const uint8_t *const dbits = s + ix->lay.dbits;
  const uint32_t nr = seg_nr(ix, s), base = seg_base(ix, s);
  const uint32_t cand = blind_candidate(dbits, nr, base, key);
  struct sst_hold *const h = per_run ? &holds[s[ix->lay.sel + cand] & REMIX_RUN] : holds;
  const enum remixdb_status st = entry_read(x, s, cand, h, &out->rec);
  if (st != REMIXDB_OK) return st;

  REMIX_COUNT(key_compares);
  const struct kref found = kref(out->rec.key, out->rec.klen);
  const uint32_t lcp = kv_lcp_from(key, found, 0);
  out->equal = lcp == key.len && lcp == found.len;
  if (out->equal) {
    out->at = cand;
    return REMIXDB_OK;
  }
  bool greater;  // the target than the candidate
  uint32_t b;    // the first bit they differ in
  if (lcp == key.len || lcp == found.len) {
    greater = lcp == found.len;
    b = 0;
  } else {
    greater = key.ptr[lcp] > found.ptr[lcp];
    b = (uint32_t)__builtin_clz((uint32_t)(key.ptr[lcp] ^ found.ptr[lcp])) - 23;
  }
  if (lcp < base) {  // in what all entries share
    out->at = greater ? nr : 0;
    return REMIXDB_OK;
  }
  // Behind all bits that can be stored it counts as one more, less than the mark of an old version.
  const uint32_t bit = lcp - base <= REMIX_BYTE_MAX ? (lcp - base) << 4 | b : REMIX_BIT_FAR;
  const uint32_t less = set_lt16(dbits, bit);
  if (greater) {
    const uint32_t m = less & set_above(cand) & set_below(nr);
    out->at = m ? set_first(m) : nr;
  } else {
    const uint32_t m = less & ~set_above(cand);
    out->at = m ? set_last(m) : 0;
  }
  return REMIXDB_OK;
}

enum remixdb_status remix_get(struct remix *x, struct kref key, uint64_t hash, struct sst_hold *h, struct kv_rec *rec_out) {
  const struct remix_index *const ix = x->index;
  if (unlikely(x->nr_segs == 0)) return REMIXDB_NOTFOUND;
  const uint8_t *const s = seg_at(ix, seg_find(ix, key));
  seg_prefetch(ix, s);
  if (!x->tags) {
    struct spot spot;
    const enum remixdb_status st = spot_find(x, s, key, h, false, &spot);
    if (st != REMIXDB_OK) return st;
    *rec_out = spot.rec;
    return spot.equal ? REMIXDB_OK : REMIXDB_NOTFOUND;
  }
  uint32_t m = set_eq8(s, 0xFF, remix_tag(hash)) & ~seg_old(s + ix->lay.sel) & set_below(seg_nr(ix, s));
  for (; m; m &= m - 1) {
    const enum remixdb_status st = entry_read(x, s, set_first(m), h, rec_out);
    if (unlikely(st != REMIXDB_OK)) return st;
    REMIX_COUNT(key_compares);
    if (likely(kv_eq(kref(rec_out->key, rec_out->klen), key))) return REMIXDB_OK;
  }
  return REMIXDB_NOTFOUND;
}

// ---- many keys at once

// Group prefetching (Chen, Ailamaki, Gibbons, Mowry: "Improving Hash Join Performance through Prefetching", ICDE 2004), level by level
// of the prefix tree and then line by line of the segment. The upper levels are in the processor's caches, but not all of them in the
// first.
void remix_probe_find(struct remix_probe *p, const uint8_t *which, uint32_t nr) {
  uint32_t levels = 0;
  for (uint32_t i = 0; i < nr; i++) {
    struct remix_probe *const w = &p[which[i]];
    const struct remix_index *const ix = w->x->index;
    uint32_t seg;
    w->search = false;
    w->set = 0;
    w->at = 0;
    w->levels = 0;
    w->seg = NULL;
    if (unlikely(w->x->nr_segs == 0)) continue;
    if (likely(seg_prefixed(ix, w->key, &w->prefix, &seg)))
      w->levels = ix->nr_levels;
    else
      w->seg = seg_at(ix, seg);
    if (w->levels > levels) levels = w->levels;
  }
  for (; levels > 0; levels--) {
    for (uint32_t i = 0; i < nr; i++) {
      struct remix_probe *const w = &p[which[i]];
      if (w->levels < levels) continue;
      const struct remix_index *const ix = w->x->index;
      w->at = prefix_step(ix, levels - 1, w->at, w->prefix);
      if (likely(levels > 1)) {
        __builtin_prefetch(ix->level[levels - 2] + (size_t)w->at * REMIX_NODE);
        continue;
      }
      w->seg = seg_at(ix, seg_ranked(ix, w->key, w->prefix, w->at));
    }
  }
  for (uint32_t i = 0; i < nr; i++) {
    const struct remix_probe *const w = &p[which[i]];
    if (!w->seg) continue;
    const struct remix_layout *const lay = &w->x->index->lay;
    const uint32_t needed = w->x->tags ? lay->dbits : lay->stride;
    for (uint32_t o = 0; o < needed; o += CACHE_LINE) __builtin_prefetch(w->seg + o);
    __builtin_prefetch(w->seg + needed - 1);  // a segment need not begin with a line
  }
  for (uint32_t i = 0; i < nr; i++) {
    struct remix_probe *const w = &p[which[i]];
    const uint8_t *const s = w->seg;
    if (!s) continue;
    const struct remix_index *const ix = w->x->index;
    if (likely(w->x->tags))
      w->set = set_eq8(s, 0xFF, remix_tag(w->hash)) & ~seg_old(s + ix->lay.sel) & set_below(seg_nr(ix, s));
    else if (unlikely(s[ix->lay.head + 1] & REMIX_SEG_FAR))
      w->search = true;
    else
      w->set = 1u << blind_candidate(s + ix->lay.dbits, seg_nr(ix, s), seg_base(ix, s), w->key);
  }
}

void remix_probe_next(struct remix_probe *p, const uint8_t *which, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) {
    struct remix_probe *const w = &p[which[i]];
    const struct remix_index *const ix = w->x->index;
    const uint32_t entry = set_first(w->set), run = w->seg[ix->lay.sel + entry] & REMIX_RUN;
    w->set &= w->set - 1;
    w->sst = w->x->runs[run];
    w->pos = seg_off(ix, w->seg, run);
    w->at = set_count(set_eq8(w->seg + ix->lay.sel, REMIX_RUN, (uint8_t)run) & set_below(entry));
    __builtin_prefetch(&w->sst->nr_recs[sst_pos_block(w->pos)]);
  }
  for (uint32_t i = 0; i < nr; i++) {
    struct remix_probe *const w = &p[which[i]];
    REMIX_COUNT(key_reads);
    w->pos = sst_advance(w->sst, w->pos, w->at);
    if (w->sst->cache.cache) __builtin_prefetch((const void *)&w->sst->cache.slots[sst_pos_block(w->pos)]);
  }
}

// ---- cursors

void remix_cursor_init(struct remix_cursor *c, struct blkio_queue *queue) {
  *c = (struct remix_cursor){0};
  c->queue = queue;
}

static void cursor_drop(struct remix_cursor *c) {
  if (c->x)
    for (uint32_t r = 0; r < c->x->nr_runs; r++) sst_hold_drop(&c->holds[r]);
}

static inline void cursor_end(struct remix_cursor *c) { c->seg = c->x ? c->x->nr_segs : 0; }

void remix_cursor_fini(struct remix_cursor *c) {
  cursor_drop(c);
  for (uint32_t r = 0; r < c->cap; r++) sst_hold_fini(&c->holds[r]);
  mem_free(c->pos);
  mem_free(c->holds);
  remix_cursor_init(c, NULL);
}

enum remixdb_status remix_cursor_set(struct remix_cursor *c, struct remix *x) {
  cursor_drop(c);
  c->x = NULL;
  c->seg = 0;
  c->sel = NULL;
  c->ahead = 0;
  if (x && x->nr_runs > c->cap) {
    sst_pos *const pos = mem_realloc(c->pos, x->nr_runs * sizeof(*pos));
    if (!pos) return REMIXDB_NOMEM;
    c->pos = pos;
    struct sst_hold *const holds = mem_realloc(c->holds, x->nr_runs * sizeof(*holds));
    if (!holds) return REMIXDB_NOMEM;
    memset(holds + c->cap, 0, (x->nr_runs - c->cap) * sizeof(*holds));
    c->holds = holds;
    c->cap = x->nr_runs;
  }
  c->x = x;
  cursor_end(c);
  return REMIXDB_OK;
}

void remix_park(struct remix_cursor *c) {
  cursor_drop(c);
  cursor_end(c);
}

static inline void cursor_seg(struct remix_cursor *c, uint32_t seg) {
  const struct remix_index *const ix = c->x->index;
  const uint8_t *const s = seg_at(ix, seg);
  c->seg = seg;
  c->nr = seg_nr(ix, s);
  c->sel = s + ix->lay.sel;
}

// Stands at entry `at` (< its count) of segment seg. The runs' positions follow from that and are worked out when they are asked
// for, so that a seek, and the steps before a run's first record is wanted, cost nothing per run.
static void cursor_stand(struct remix_cursor *c, uint32_t seg, uint32_t at) {
  cursor_seg(c, seg);
  c->at = at;
  for (uint32_t r = 0; r < c->x->nr_runs; r++) c->pos[r] = REMIX_POS_NONE;
}

static inline void cursor_ahead_reset(struct remix_cursor *c) {
  if (c->ahead != REMIX_AHEAD_OFF) c->ahead = 0;
}

// The last newest version before entry `at` of segment seg, or nowhere.
static void cursor_stand_before(struct remix_cursor *c, uint32_t seg, uint32_t at) {
  const struct remix_index *const ix = c->x->index;
  if (at == 0) {
    if (seg == 0) {
      cursor_end(c);
      return;
    }
    at = seg_nr(ix, seg_at(ix, --seg));
  }
  const uint8_t *const sel = seg_at(ix, seg) + ix->lay.sel;
  do at--;
  while (at > 0 && sel[at] & REMIX_OLD);
  cursor_stand(c, seg, at);
}

static enum remixdb_status cursor_find(struct remix_cursor *c, struct kref key, uint32_t *seg_out, struct spot *spot_out) {
  const struct remix_index *const ix = c->x->index;
  const uint32_t seg = seg_find(ix, key);
  const uint8_t *const s = seg_at(ix, seg);
  seg_prefetch(ix, s);
  cursor_end(c);
  cursor_ahead_reset(c);
  *seg_out = seg;
  return spot_find(c->x, s, key, c->holds, true, spot_out);
}

enum remixdb_status remix_seek(struct remix_cursor *c, struct kref key) {
  uint32_t seg;
  struct spot spot;
  if (!c->x || c->x->nr_segs == 0) return REMIXDB_OK;
  const enum remixdb_status st = cursor_find(c, key, &seg, &spot);
  if (st != REMIXDB_OK) return st;
  if (spot.at < seg_nr(c->x->index, seg_at(c->x->index, seg)))
    cursor_stand(c, seg, spot.at);
  else if (seg + 1 < c->x->nr_segs)
    cursor_stand(c, seg + 1, 0);
  return REMIXDB_OK;
}

enum remixdb_status remix_seek_for_prev(struct remix_cursor *c, struct kref key) {
  uint32_t seg;
  struct spot spot;
  if (!c->x || c->x->nr_segs == 0) return REMIXDB_OK;
  const enum remixdb_status st = cursor_find(c, key, &seg, &spot);
  if (st != REMIXDB_OK) return st;
  if (spot.equal)
    cursor_stand(c, seg, spot.at);
  else
    cursor_stand_before(c, seg, spot.at);
  return REMIXDB_OK;
}

void remix_seek_first(struct remix_cursor *c) {
  if (!c->x || c->x->nr_segs == 0) return;
  cursor_ahead_reset(c);
  cursor_stand(c, 0, 0);
}

void remix_seek_last(struct remix_cursor *c) {
  if (!c->x || c->x->nr_segs == 0) return;
  cursor_ahead_reset(c);
  cursor_stand_before(c, c->x->nr_segs, 0);
}

void remix_next(struct remix_cursor *c) {
  const struct remix *const x = c->x;
  do {
    const uint32_t run = c->sel[c->at] & REMIX_RUN;
    if (c->pos[run] != REMIX_POS_NONE) c->pos[run] = sst_advance(x->runs[run], c->pos[run], 1);
    if (++c->at == c->nr) {
      // The positions are what the next segment's cursor offsets say (R4).
      if (c->seg + 1 == x->nr_segs) {
        cursor_end(c);
        return;
      }
      cursor_seg(c, c->seg + 1);
      c->at = 0;
    }
  } while (c->sel[c->at] & REMIX_OLD);
}

void remix_prev(struct remix_cursor *c) {
  cursor_ahead_reset(c);
  if (c->at == 0) {
    if (c->seg == 0) {
      cursor_end(c);
      return;
    }
    cursor_seg(c, c->seg - 1);
    c->at = c->nr;
  }
  do {
    c->at--;
    const uint32_t run = c->sel[c->at] & REMIX_RUN;
    // Back over the border of a block there is nothing to step by.
    if (c->pos[run] != REMIX_POS_NONE) c->pos[run] = sst_pos_idx(c->pos[run]) > 0 ? c->pos[run] - 1 : REMIX_POS_NONE;
  } while (c->at > 0 && c->sel[c->at] & REMIX_OLD);
}

// Reads ahead in a run when, stepping forward, its next block is not in the cache for the third time; then more each time.
static void cursor_ahead(struct remix_cursor *c, struct sst *t, uint32_t block, const struct sst_hold *h) {
  if (c->ahead == REMIX_AHEAD_OFF || !t->cache.cache || h->sst != t || h->block + sst_block_pages(t, h->block) != block) return;
  if (atomic_load_explicit(&t->cache.slots[block], memory_order_relaxed) != 0) return;
  c->ahead = c->ahead < REMIX_AHEAD_MIN / 2 ? c->ahead + 1 : c->ahead < REMIX_AHEAD_MAX ? c->ahead * 2 : REMIX_AHEAD_MAX;
  if (c->ahead < REMIX_AHEAD_MIN) return;
  const uint32_t left = t->nr_pages - block;
  sst_prefetch(t, c->queue, block, c->ahead < left ? c->ahead : left);
  // A cache that keeps nothing (none, or all of it pinned) would have every page read again and again.
  if (atomic_load_explicit(&t->cache.slots[block], memory_order_relaxed) == 0) c->ahead = REMIX_AHEAD_OFF;
}

enum remixdb_status remix_record(struct remix_cursor *c, struct kv_rec *rec_out) {
  const uint32_t run = c->sel[c->at] & REMIX_RUN;
  struct sst *const t = c->x->runs[run];
  struct sst_hold *const h = &c->holds[run];
  sst_pos pos = c->pos[run];
  if (unlikely(pos == REMIX_POS_NONE)) c->pos[run] = pos = seg_pos(c->x, seg_at(c->x->index, c->seg), run, c->at);
  if (c->queue && h->sst && h->block != sst_pos_block(pos)) cursor_ahead(c, t, sst_pos_block(pos), h);
  return sst_read(t, pos, true, h, rec_out);
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
  if (w->at == 0) return w->seg ? anchor_at(ix, w->seg).len - 1 : 0;
  const uint8_t *const s = seg_at(ix, w->seg);
  const uint32_t d = load16le(s + ix->lay.dbits + 2 * w->at);
  if (d == REMIX_BIT_SAME) return UINT32_MAX;
  *known_out = d != REMIX_BIT_FAR;
  return seg_base(ix, s) + (d >> 4);
}
