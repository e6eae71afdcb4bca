// SPDX-License-Identifier: Apache-2.0
//
// Crafted files: fields of a store's files get other values, and all checksums are made right again. Then nothing
// crashes, hangs or takes much memory. The opening refuses the store, or verify reports it, or get, seek and scans in
// both directions agree on every key. Repair ends, and makes a whole store.
//
// A mutant is a change of a field; or of a few; or of what a zstd frame holds, which is then packed again; or of two
// files, often of fields that say the same in both.
//
// The fields are those of docs/FORMAT.md (tests/lib/fields.h), so that a new field is changed without being named here.
// A table of the document that this program does not know, and a field that no sample has, are failures. The samples
// are the stores of tests/golden, and one with key spaces and values in value files that this program makes.
//
// MUTANTS=N: so many; TEST_SEED=S: other ones; MUTANT=I: only the I-th, for a debugger.
#include "tests/lib/check.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "admin/repair.h"
#include "admin/verify.h"
#include "log/format.h"
#include "remix/format.h"
#include "remix/pack.h"
#include "store/space_ref.h"
#include "store/syncer.h"
#include "table/block.h"
#include "table/format.h"
#include "tests/lib/fields.h"
#include "tests/lib/repack.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/starve.h"
#include "tests/lib/store.h"
#include "tests/lib/tiny.h"
#include "value/format.h"

#define GOLDEN "tests/golden"
#define HOME "/m"
#define SAMPLES_MAX 32u
#define FILES_MAX 24u
#define PRINTS_MAX 128u
#define SUMS_MAX 512u
#define PACKED_MAX 256u  // frames of a sample
#define REFS_MAX 64u     // references of a sample
#define VALUE_MAX (1u << 18)
#define SPACE "a"  // a key space of the sample that has some
#define KEYS_MAX 2048u
#define REMIX_COLUMNS 6u        // columns of a REMIX file
#define STEPS_MAX 20000u        // steps of a scan: far more than there are records
#define MEMORY_MB 768u          // MiB of address space, beyond that at the start of the program
#define GROWTH_KB (256u << 10)  // KiB of resident memory
#define MUTANT_S 60u            // a mutant that takes longer hangs

// ---- samples

// A checksum: which bytes it covers, in the order in which they are made right (inner ones first).
enum sum_kind { SUM_BYTES, SUM_LEVEL, SUM_FRAME, SUM_CHUNK, SUM_VALUE };
struct sum {
  enum sum_kind kind;
  uint64_t at, from, to, seed;
};
struct file {
  char name[64];
  uint8_t *p;
  size_t len;
  uint32_t nr_sums;
  struct sum sums[SUMS_MAX];
  // For the content of a frame, which has no name and no checksums: the file that has the frame, and where. Else NULL.
  struct file *in;
  struct repack frame;
};
// Where CURRENT has a file's fingerprint.
struct print {
  char name[40];
  uint64_t at;
};
// Where a file has a reference to a value.
struct ref_spot {
  struct file *file;
  uint64_t off;
};
struct sample {
  char name[64];
  uint32_t nr, nr_keys, nr_packed, nr_prints, nr_refs;
  struct ref_spot refs[REFS_MAX];
  struct print prints[PRINTS_MAX];
  struct file files[FILES_MAX];
  struct file *packed[PACKED_MAX];  // contents of frames
  struct kref keys[KEYS_MAX];       // the keys of all records there are, and keys beside them
};
// Where a field is in a file; an array is one spot.
struct spot {
  struct field_table *table;
  struct field *field;
  struct sample *sample;
  struct file *file;
  uint64_t off, len;
  uint32_t width;
};

static struct sample samples[SAMPLES_MAX];
static uint32_t nr_samples;
static struct spot *spots;
static uint32_t nr_spots, cap_spots;
static struct sample *walk_sample;  // the sample of the file that is walked through
static struct file *walk_file;

static void add_sum(enum sum_kind kind, uint64_t at, uint64_t from, uint64_t to, uint64_t seed) {
  struct file *const f = walk_file;
  CHECK(f->nr_sums < SUMS_MAX && at + 8 <= f->len && from <= to && to <= f->len);
  f->sums[f->nr_sums++] = (struct sum){kind, at, from, to, seed};
}

static void add_spot(struct field_table *t, struct field *field, uint64_t off, uint64_t len) {
  if (!len) return;
  CHECK(off + len <= walk_file->len);
  if (nr_spots == cap_spots) {
    cap_spots = cap_spots ? 2 * cap_spots : 4096;
    spots = realloc(spots, cap_spots * sizeof(*spots));
    assert_non_null(spots);
  }
  uint32_t width = field_width(field);
  if (len % width) width = 1;
  spots[nr_spots++] = (struct spot){t, field, walk_sample, walk_file, off, len, width};
  field->hits++;
}

// One instance of the table's structure is at `base`, and ends at `end`. Fields below `skip`, counted from base, are
// not there. lens: what the fields take that the document has no number for; NULL: it has one for all.
static void emit(const char *heading, uint32_t nth, uint64_t base, uint64_t end, uint64_t skip, struct field_vars *v,
                 const uint64_t *lens) {
  struct field_table *const t = fields_find(heading, nth);
  uint64_t pos = base, format = 0;
  (void)field_var(v, "format", 6, &format);
  for (uint32_t i = 0; i < t->nr; i++) {
    struct field *const f = &t->rows[i];
    uint64_t off, len, next;
    if (strstr(f->meaning, "only in format 2") && format != 2) continue;
    if (*f->offset) {
      if (!field_eval(v, f->offset, &off)) fail_msg("%s: \"%s\" is no offset", t->heading, f->offset);
      pos = base + off;
    }
    if (pos >= end) continue;
    if (lens) len = lens[i];
    else if (!field_eval(v, f->size, &len)) {
      if (*f->size && strncmp(f->size, "the rest", 8) != 0) fail_msg("%s: \"%s\" is no size", t->heading, f->size);
      len = end - pos;
      if (i + 1 < t->nr && *t->rows[i + 1].offset && field_eval(v, t->rows[i + 1].offset, &next) && base + next < end)
        len = base + next - pos;
    }
    if (pos - base >= skip) add_spot(t, f, pos, len);
    pos += len;
  }
}

static uint64_t varint_at(const uint8_t *p, uint64_t *at) {
  uint64_t v = 0;
  for (uint32_t shift = 0;; shift += 7) {
    const uint8_t b = p[(*at)++];
    v |= (uint64_t)(b & 0x7F) << shift;
    if (b < 0x80) return v;
  }
}

static void add_key(struct kref k) {
  struct sample *const s = walk_sample;
  uint8_t *const copy = malloc(k.len + 1);
  assert_non_null(copy);
  if (k.len) memcpy(copy, k.ptr, k.len);
  copy[k.len] = 0;
  if (s->nr_keys + 2 > KEYS_MAX) {
    free(copy);
    return;
  }
  s->keys[s->nr_keys++] = kref(copy, k.len);
  if (k.len < REMIXDB_KV_MAX) s->keys[s->nr_keys++] = kref(copy, k.len + 1);  // the next key there can be
}

// The bytes of a varint, and its value.
static uint64_t varint_len(const uint8_t *p, uint64_t *at, uint64_t *value_out) {
  const uint64_t from = *at;
  *value_out = varint_at(p, at);
  return *at - from;
}

static void walk_ref(uint64_t at) {
  struct sample *const s = walk_sample;
  struct field_vars none = {0};
  emit("Reference to a value", 0, at, at + VALUE_REF, 0, &none, NULL);
  CHECK(s->nr_refs < REFS_MAX);
  if (!walk_file->in) s->refs[s->nr_refs++] = (struct ref_spot){walk_file, at};
}

// A record, of a block or a frame. Returns its end. kinds: special records have a kind.
static uint64_t walk_record(uint64_t at, bool kinds) {
  enum { HEAD, KIND, NUMBER, EXPIRY, LENGTH, KEY, VALUE, PARTS };
  const uint8_t *const p = walk_file->p;
  struct field_vars v = {0};
  uint64_t lens[PARTS] = {0}, next = at, head, ignored;
  lens[HEAD] = varint_len(p, &next, &head);
  lens[KEY] = head >> 1;
  uint32_t kind = head & 1;
  if (kind && kinds) {
    kind = p[next++];
    lens[KIND] = 1;
    if (kind & KV_SEQ) lens[NUMBER] = varint_len(p, &next, &ignored);
    if (kind & KV_EXPIRES) lens[EXPIRY] = varint_len(p, &next, &ignored);
  }
  if (!(kind & KV_TOMB)) lens[LENGTH] = varint_len(p, &next, &lens[VALUE]);
  add_key(kref(p + next, (uint32_t)lens[KEY]));
  const uint64_t end = next + lens[KEY] + lens[VALUE];
  emit("Record", 0, at, end, 0, &v, lens);
  if (kind & KV_APART) walk_ref(next + lens[KEY]);
  return end;
}

// ---- frames

// Walks on in the content of a frame. Returns the file that it is in.
static struct file *packed_begin(enum repack_kind kind, uint32_t nr, uint64_t at, uint64_t len, uint64_t whole) {
  struct sample *const s = walk_sample;
  struct file *const in = walk_file, *const f = calloc(1, sizeof(*f));
  CHECK(f && s->nr_packed < PACKED_MAX && at + len <= in->len);
  f->in = in;
  f->frame = (struct repack){kind, nr, at, len, whole};
  f->p = repack_content(in->p, in->len, &f->frame);
  f->len = whole;
  walk_file = s->packed[s->nr_packed++] = f;
  return in;
}

// The content is bytes of this field.
static void walk_packed(struct field_table *t, uint32_t row, enum repack_kind kind, uint32_t nr, uint64_t at,
                        uint64_t len, uint64_t whole) {
  struct file *const in = packed_begin(kind, nr, at, len, whole);
  CHECK(row < t->nr);
  add_spot(t, &t->rows[row], 0, whole);
  walk_file = in;
}

// ---- CURRENT

static void walk_current_old(void) {
  const struct file *const f = walk_file;
  const uint32_t format = load32le(f->p + 8);
  struct field_vars v = {0};
  field_set(&v, "format", format);
  field_set(&v, "end", f->len);
  emit("Formats 1 and 2 of the version", 0, 0, f->len, 0, &v, NULL);
  uint64_t at = 56;
  for (uint32_t i = 0; i < load32le(f->p + 12); i++) {
    const uint32_t anchor = load32le(f->p + at), tables = load32le(f->p + at + 4);
    const uint64_t end = at + (format == 2 ? 32 : 16) + anchor + 8ull * tables;
    field_set(&v, "A", anchor);
    field_set(&v, "N", tables);
    emit("Formats 1 and 2 of the version", 1, at, end, 0, &v, NULL);
    at = end;
  }
  CHECK(at == f->len - 8);
  add_sum(SUM_BYTES, at, 0, at, 0);
}

// Notes where CURRENT has the fingerprint of a file.
static void add_print(const char *ext, uint64_t number, uint64_t at) {
  struct sample *const s = walk_sample;
  CHECK(s->nr_prints < PRINTS_MAX);
  struct print *const p = &s->prints[s->nr_prints++];
  (void)snprintf(p->name, sizeof(p->name), "%06llu.%s", (unsigned long long)number, ext);
  p->at = at;
}

static void walk_parts(struct field_vars *v, uint64_t at, uint64_t end) {
  const struct file *const f = walk_file;
  const uint32_t nr = load32le(f->p + at);
  emit("The version", 3, at, end, 0, v, NULL);
  at += 8;
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t anchor = load32le(f->p + at), tables = load32le(f->p + at + 4);
    const uint64_t names = at + 48 + anchor, next = names + 16ull * tables;
    field_set(v, "A", anchor);
    field_set(v, "N", tables);
    emit("The version", 4, at, next, 0, v, NULL);
    if (tables) add_print("remix", load64le(f->p + at + 8), at + 16);
    if (load64le(f->p + at + 24)) add_print("remix", load64le(f->p + at + 24), at + 32);
    for (uint64_t k = names; k < next; k += 16) add_print("sst", load64le(f->p + k), k + 8);
    at = next;
  }
  CHECK(at == end);
}

static void walk_names(struct field_vars *v, uint64_t at, uint64_t end) {
  emit("The version", 5, at, end, 0, v, NULL);
  for (at += 8; at < end; at += 8 + load32le(walk_file->p + at + 4)) {
    const uint32_t len = load32le(walk_file->p + at + 4);
    field_set(v, "N", len);
    emit("The version", 6, at, at + 8 + len, 0, v, NULL);
  }
  CHECK(at == end);
}

static void walk_values(struct field_vars *v, uint64_t at, uint64_t end) {
  emit("The version", 8, at, end, 0, v, NULL);
  for (; at < end; at += 24) add_print("val", load64le(walk_file->p + at), at + 8);
}

static void walk_moves(struct field_vars *v, uint64_t at, uint64_t end) {
  for (; at < end; at += 40) {
    emit("The version", 9, at, at + 40, 0, v, NULL);
    walk_ref(at + 16);
  }
}

static void walk_packs(struct field_vars *v, uint64_t at, uint64_t end) {
  emit("The version", 10, at, end, 0, v, NULL);
  for (at += 8; at < end;) {
    const uint64_t nr = load64le(walk_file->p + at + 16), next = at + 24 + 24 * nr;
    field_set(v, "N", nr);
    emit("The version", 11, at, next, 0, v, NULL);
    add_print("pack", load64le(walk_file->p + at), at + 8);
    at = next;
  }
  CHECK(at == end);
}

static void walk_section(struct field_vars *v, uint32_t kind, uint64_t at, uint64_t end) {
  switch (kind) {
    case 1: emit("The version", 2, at, end, 0, v, NULL); return;
    case 2:
    case 3: walk_parts(v, at, end); return;
    case 4: walk_names(v, at, end); return;
    case 5: emit("The version", 7, at, end, 0, v, NULL); return;
    case 8: walk_values(v, at, end); return;
    case 9: walk_moves(v, at, end); return;
    case 10: walk_packs(v, at, end); return;
    default: fail_msg("section %u is not known here", kind);
  }
}

static void walk_current(void) {
  const struct file *const f = walk_file;
  struct field_vars v = {0};
  if (load32le(f->p + 8) < 3) {
    walk_current_old();
    return;
  }
  field_set(&v, "end", f->len);
  emit("The version", 0, 0, f->len, 0, &v, NULL);
  uint64_t at = 64;
  for (uint32_t i = 0; i < load32le(f->p + 12); i++) {
    const uint64_t content = at + 16, end = content + load64le(f->p + at + 8);
    field_set(&v, "content", end - content);
    emit("The version", 1, at, content, 0, &v, NULL);
    walk_section(&v, load32le(f->p + at), content, end);
    at = end;
  }
  CHECK(at == f->len - 8);
  add_sum(SUM_BYTES, at, 0, at, 0);
}

// ---- the log

static void walk_log(void) {
  const struct file *const f = walk_file;
  struct field_vars v = {0};
  if (f->len < WAL_HEAD || load64le(f->p) != WAL_MAGIC) return;
  emit("Segment header", 0, 0, WAL_HEAD, 0, &v, NULL);
  emit("Watermark", 0, 0, WAL_HEAD, 0, &v, NULL);
  add_sum(SUM_BYTES, WAL_HEAD_SUM, 0, WAL_LEVEL, 0);
  add_sum(SUM_LEVEL, WAL_LEVEL, WAL_LEVEL + 8, WAL_LEVEL + WAL_LEVEL_LEN, 0);
  const struct wal_key k = wal_key(load64le(f->p + 16), load64le(f->p + 24));
  uint64_t at = WAL_HEAD;
  struct wal_frame h;
  while (at + WAL_FRAME_HEAD < f->len && wal_frame_get(f->p + at, &k, at, &h)) {
    uint64_t end = at + WAL_FRAME_HEAD + h.len, rec = at + WAL_FRAME_HEAD;
    if (end > f->len) break;
    field_set(&v, "length", h.len);
    emit("Frame", 0, at, end, 0, &v, NULL);
    if (wal_frame_sum(&k, at, f->p + at, h.len) == h.sum)
      for (uint32_t i = 0; i < h.count; i++) rec = walk_record(rec, h.kinds != KV_BARE);
    add_sum(SUM_FRAME, at, at + 8, end, 0);
    at = end;
  }
}

// ---- tables

static void walk_block(uint64_t base, uint64_t end, uint64_t skip) {
  const uint8_t *const p = walk_file->p;
  struct field_vars v = {0};
  field_set(&v, "count", p[base + 9]);
  emit("Block", 0, base, end, skip, &v, NULL);
  for (uint32_t i = 0; i < p[base + 9]; i++)
    CHECK(walk_record(base + load16le(p + base + 12 + 2 * (uint64_t)i), p[base + 10] != BLOCK_FORM_BARE) <= end);
}

static void walk_blocks(const struct format_sst_footer *h) {
  const uint8_t *const p = walk_file->p;
  uint64_t at = 0, size, sizes = h->meta_off + h->nr_pages + h->min_len + h->max_len + h->dict_len;
  struct field_vars none = {0};
  for (uint32_t b = 0, next; b < h->nr_pages; b = next, at += size) {
    for (next = b + 1; next < h->nr_pages && !p[h->meta_off + next];) next++;
    size = (next - b) * (uint64_t)BLOCK_PAGE;
    if (h->flags & FORMAT_SST_FLAG_ZSTD) {
      size = varint_at(p, &sizes);
      emit("Stored block", 0, at, at + size, 0, &none, NULL);
      if (p[at + 8] == FORMAT_SST_STORED_RAW) {
        walk_block(at + 1, at + size, 8);
      } else {
        struct file *const in = packed_begin(REPACK_BLOCK, b, at + 9, size - 9, (next - b) * (uint64_t)BLOCK_PAGE);
        walk_block(0, walk_file->len, 8);
        walk_file = in;
      }
    } else {
      walk_block(at, at + size, 0);
    }
    add_sum(SUM_BYTES, at, at + 8, at + size, h->number << 16 | b);
  }
}

static void walk_chunks(const struct format_sst_footer *h) {
  const uint8_t *const p = walk_file->p;
  struct field_vars none = {0};
  for (uint64_t at = h->ckb_off, end = at + h->ckb_len, next; at < end; at = next) {
    const uint32_t word = load32le(p + at + 8);
    next = at + (word & 0x3FFFFFFF);
    emit("Compressed keys", 0, at, word >> 31 ? at + 16 : next, 0, &none, NULL);
    if (word >> 31) {
      struct field_table *const t = fields_find("Compressed keys", 1);
      emit("Compressed keys", 1, at, next, 0, &none, NULL);
      walk_packed(t, t->nr - 1, REPACK_CHUNK, 0, at + 20, next - at - 20, load32le(p + at + 16));
    }
    add_sum(SUM_CHUNK, at, at + 8, next, ~(h->number << 32) ^ (at - h->ckb_off));
  }
}

static void walk_table(void) {
  const struct file *const f = walk_file;
  const uint64_t at = f->len - FORMAT_SST_FOOTER;
  struct format_sst_footer h;
  struct field_vars v = {0};
  OK(format_sst_footer_get(f->p + at, f->len, f->name, &h));
  walk_blocks(&h);
  if (h.flags & FORMAT_SST_FLAG_CKB) walk_chunks(&h);
  field_set(&v, "nr_pages", h.nr_pages);
  field_set(&v, "min_len", h.min_len);
  field_set(&v, "max_len", h.max_len);
  field_set(&v, "dict_len", h.dict_len);
  field_set(&v, "sizes_len", h.sizes_len);
  field_set(&v, "apart", load32le(f->p + at + 240));
  emit("Metadata", 0, h.meta_off, at, 0, &v, NULL);
  add_sum(SUM_BYTES, at + 96, h.meta_off, h.meta_off + h.meta_len, ~h.number);
  emit("Footer", 0, at, f->len, 0, &v, NULL);
  add_sum(SUM_BYTES, at, at + 8, f->len, 0);
}

// ---- REMIX files

static void walk_image(struct field_vars *v, uint32_t runs, uint32_t segs, bool tags, uint64_t at) {
  const struct file *const f = walk_file;
  const struct remix_layout l = remix_layout(runs, tags);
  field_set(v, "stride", l.stride);
  emit("The image", 0, 0, f->len, 0, v, NULL);
  for (uint32_t i = 0; i < segs; i++, at += l.stride) emit("A segment", 0, at, at + l.stride, 0, v, NULL);
}

// Columns, which fill the place from `at` to `end`. lens: of each its length, and its length in the file.
static void walk_columns(struct field_vars *v, uint64_t at, uint64_t end, uint64_t (*lens)[2]) {
  struct field_table *const t = fields_find("The file, formats 2 and 3", 1);
  uint64_t stored[REMIX_COLUMNS];
  for (uint32_t i = 0; i < REMIX_COLUMNS; i++) stored[i] = lens[i][1];
  emit("The file, formats 2 and 3", 1, at, end, 0, v, stored);
  for (uint32_t i = 0; i < REMIX_COLUMNS; at += stored[i++])
    if (lens[i][0] != stored[i]) walk_packed(t, i, REPACK_COLUMN, i, at, stored[i], lens[i][0]);
}

static void walk_whole(struct field_vars *v, uint64_t at) {
  const struct file *const f = walk_file;
  uint64_t lens[REMIX_COLUMNS][2];
  emit("The file, formats 2 and 3", 0, 0, f->len, 0, v, NULL);
  for (uint32_t i = 0; i < REMIX_COLUMNS; i++) {
    lens[i][0] = load64le(f->p + at + 16 * i);
    lens[i][1] = load64le(f->p + at + 16 * i + 8);
  }
  walk_columns(v, at + 16 * REMIX_COLUMNS, f->len - 8, lens);
}

// The pages and their directory.
static void walk_pages(struct field_vars *v, uint32_t runs, bool tags, uint64_t at) {
  const struct file *const f = walk_file;
  const uint64_t at_dir = load64le(f->p + 72), number = load64le(f->p + 24);
  field_set(v, "D", at_dir);
  emit("The file, format 4", 0, 0, f->len, 0, v, NULL);
  for (uint64_t d = at_dir; d < f->len - 16;) {
    const uint32_t size = load32le(f->p + d), segs = load32le(f->p + d + 4), entries = load32le(f->p + d + 8);
    const uint64_t end = d + 32 + 4ull * runs + load32le(f->p + d + 20);
    uint64_t lens[REMIX_COLUMNS][2] = {
        {tags ? entries : 0, 0},      {4ull * segs, 0}, {entries, 0}, {entries, 0}, {entries, 0},
        {load32le(f->p + at + 24), 0}};
    field_set(v, "P", size);
    field_set(v, "L", load32le(f->p + d + 20));
    emit("The file, format 4", 1, at, at + size, 0, v, NULL);
    emit("The file, format 4", 2, d, end, 0, v, NULL);
    for (uint32_t i = 0; i < REMIX_COLUMNS; i++) lens[i][1] = load32le(f->p + at + 4 * i);
    walk_columns(v, at + 28, at + size, lens);
    add_sum(SUM_BYTES, d + 24, at, at + size, number);
    at += size;
    d = end;
  }
  CHECK(at == at_dir);
  add_sum(SUM_BYTES, f->len - 16, at_dir, f->len - 16, number);
}

static void walk_remix(void) {
  const struct file *const f = walk_file;
  const uint32_t format = load32le(f->p + 8), runs = load32le(f->p + 40), segs = load32le(f->p + 44);
  const bool tags = load32le(f->p + 12) & REMIX_FLAG_TAGS;
  const uint64_t at = remix_segs_off(runs);
  struct field_vars v = {0};
  field_set(&v, "size", f->len);
  field_set(&v, "R", runs);
  field_set(&v, "S", segs);
  field_set(&v, "A", load64le(f->p + 96));
  field_set(&v, "F", at);
  field_set(&v, "T", tags ? REMIX_SEG : 0);
  field_set(&v, "stride", 0);
  if (format == 1) {
    walk_image(&v, runs, segs, tags, at);
  } else {
    emit("The image", 0, 0, at, 0, &v, NULL);
    if (format == REMIX_FORMAT_PAGED) walk_pages(&v, runs, tags, at);
    else walk_whole(&v, at);
  }
  add_sum(SUM_BYTES, f->len - 8, 0, f->len - 8, load64le(f->p + 24));
}

// ---- value files

// Value records without gaps: the writers of the samples leave none.
static void walk_value_file(void) {
  const struct file *const f = walk_file;
  struct field_vars none = {0};
  struct value_head h;
  struct value_rec r;
  OK(value_head_get(f->p, f->name, &h));
  emit("Header of a value file", 0, 0, VALUE_HEAD, 0, &none, NULL);
  add_sum(SUM_BYTES, 56, 0, 56, 0);
  for (uint64_t at = VALUE_HEAD, next; at < f->len; at = next) {
    CHECK(value_rec_get(f->p + at, f->len - at, h.key, at, &r));
    next = at + value_rec_len(r.klen, r.vlen, r.stored);
    const uint64_t lens[] = {
        8, 4, 4, 4, 4, 8, 8, value_entries_at(r.klen) - VALUE_REC_HEAD, VALUE_ENTRY * value_chunks(r.vlen), r.stored};
    CHECK(fields_find("Value record", 0)->nr == sizeof(lens) / sizeof(lens[0]));
    emit("Value record", 0, at, next, 0, &none, lens);
    add_sum(SUM_VALUE, at, at, at + VALUE_REC_HEAD, 0);
    for (uint64_t e = at + value_data_at(r.klen, r.vlen), end = e + r.stored; r.index && e < end; e += VALUE_MOVED)
      emit("Index of a collected file", 0, e, e + VALUE_MOVED, 0, &none, NULL);
  }
}

// ---- reading the samples

// The parts are files as others are.
static void walk_pack(void) {
  const struct file *const f = walk_file;
  const uint64_t at = f->len - PACK_FOOTER, entries = load64le(f->p + at + 32);
  struct field_vars none = {0};
  for (uint32_t i = 0; i < load32le(f->p + at + 48); i++)
    emit("The directory of a pack", 0, entries + PACK_ENTRY * i, entries + PACK_ENTRY * (i + 1), 0, &none, NULL);
  emit("The footer of a pack", 0, at, f->len, 0, &none, NULL);
  add_sum(SUM_BYTES, at + 40, entries, at, ~load64le(f->p + at + 16));
  add_sum(SUM_BYTES, at, at + 8, f->len, 0);
}

static void take_bytes(struct env *e, const char *path, const char *name) {
  struct sample *const s = walk_sample;
  CHECK(s->nr < FILES_MAX);
  struct file *const f = walk_file = &s->files[s->nr++];
  field_copy(f->name, sizeof(f->name), name);
  OK(paths_read_file(ENV_PATHS(e), path, 16 << 20, &f->p, &f->len));
  const char *const dot = strrchr(name, '.');
  if (strcmp(name, "CURRENT") == 0) walk_current();
  else if (strncmp(name, "wal-", 4) == 0) walk_log();
  else if (dot && strcmp(dot, ".sst") == 0) walk_table();
  else if (dot && strcmp(dot, ".remix") == 0) walk_remix();
  else if (dot && strcmp(dot, ".val") == 0) walk_value_file();
  else if (dot && strcmp(dot, ".pack") == 0) walk_pack();
  else fail_msg("%s: unknown kind of file", path);
}

static bool take_file(void *arg, const char *name) {
  const struct sample *const s = arg;
  char path[256];
  if (strcmp(name, "expected.json") == 0) return true;
  (void)snprintf(path, sizeof(path), GOLDEN "/%s/%s", s->name, name);
  take_bytes(env_posix(), path, name);
  return true;
}

static struct sample *new_sample(const char *name) {
  CHECK(nr_samples < SAMPLES_MAX);
  struct sample *const s = walk_sample = &samples[nr_samples++];
  field_copy(s->name, sizeof(s->name), name);
  return s;
}

static bool take_sample(void *arg, const char *name) {
  (void)arg;
  char path[256];
  struct sample *const s = new_sample(name);
  (void)snprintf(path, sizeof(path), GOLDEN "/%s", name);
  OK(paths_list(env_posix(), path, take_file, s));
  return true;
}

static void put_some(struct tiny *t, struct xdb_ref *ref, const char *key, uint32_t vlen, bool noise) {
  static uint8_t value[VALUE_MAX];
  const struct kref k = kref(key, (uint32_t)strlen(key));
  const struct tiny_rec r = {(uint8_t *)(uintptr_t)k.ptr, k.len, ++t->number, vlen, noise, true, 0};
  tiny_value(&r, value);
  OK(xdb_put(ref, KV_REC(k, value, vlen, 0)));
}

// Key spaces; values of one chunk and of several, as they are and as frames; in tables and in the log. A collection has
// moved some.
static void make_sample(void) {
  uint64_t (*const source)(void) = atomic_load(&random_seed_source);
  struct tiny *const t = tiny_create(true, true, REMIXDB_COMPRESSION_NONE);
  struct xdb_space *a, *b;
  struct xdb_ref *in_a;
  struct tiny_files files;
  char key[16];
  tiny_open(t);
  packs_cannot(t->x->packs);  // the fields are those of files; a golden store has packs
  OK(xdb_space_open(t->x, SPACE, 1, true, &a));
  OK(xdb_space_open(t->x, "another", 7, true, &b));
  OK(xdb_space_ref(a, &in_a));
  for (uint32_t i = 0; i < 90; i++) {
    (void)snprintf(key, sizeof(key), "key/%02u", i);
    put_some(t, i % 3 ? t->ref : in_a, key, i % 10 ? 20 + i : i % 20 ? 17000 : 140000, i == 20);
    if (i == 60) OK(xdb_flush(t->x));
  }
  put_some(t, t->ref, "key/20", 10, false);
  put_some(t, t->ref, "key/40", 16500, true);
  OK(xdb_compact(t->x));
  CHECK(atomic_load(&t->x->collect.nr) == 1);
  put_some(t, t->ref, "key/05", 70000, false);
  put_some(t, in_a, "key/06", 20000, true);
  put_some(t, in_a, "key/07", 5, false);
  OK(xdb_sync(t->ref));
  xdb_unref(in_a);
  xdb_space_close(a);
  xdb_space_close(b);
  OK(tiny_close(t));
  tiny_drop_pool(t);
  atomic_store(&random_seed_source, source);
  (void)new_sample("spaces and values");
  tiny_list(t, &files);
  for (uint32_t i = 0; i < files.nr; i++) take_bytes(simdisk_env(t->disk), tiny_path(files.names[i]), files.names[i]);
  CHECK(walk_sample->nr_refs > 8);
  tiny_destroy(t);
}

// The document has no table that the walks above leave out, and no field that no sample has.
static void check_document(void) {
  (void)fields_find("Files on disk", 0);  // names of files
  (void)fields_find("Record", 1);         // bits of a field
  (void)fields_find("Segment", 0);        // header and frames have tables of their own
  (void)fields_find("Tables", 0);         // and so have the parts of a table
  (void)fields_find("Value files", 0);    // and of a value file
  (void)fields_find("Packs", 0);          // and of a pack
  for (uint32_t i = 0; i < field_tables_nr; i++) {
    const struct field_table *const t = &field_tables[i];
    if (!t->known) fail_msg(FIELDS_DOC ": table %u below \"%s\" is not known here", t->nth, t->heading);
    bool any = false;
    for (uint32_t j = 0; j < t->nr; j++) any = any || t->rows[j].hits;
    for (uint32_t j = 0; any && j < t->nr; j++)
      if (!t->rows[j].hits && *t->rows[j].type)
        fail_msg(FIELDS_DOC ": \"%s\": no sample has \"%s\"", t->heading, t->rows[j].meaning);
  }
}

// ---- making mutants

// A file that is changed.
struct changed {
  struct file *file;
  uint8_t *p;  // its bytes
  size_t len;
  uint64_t pin, pin_len;  // a checksum that was changed, and stays wrong
};
#define CHANGED_MAX FILES_MAX  // two, the files that refer to their values, and CURRENT with all fingerprints
struct mutant {
  struct sample *sample;
  uint32_t nr;
  struct changed c[CHANGED_MAX];
  bool in_frame, two;
};

static void seal_put(const struct changed *m, uint64_t at, uint64_t value, uint32_t width) {
  if (at + width > m->len || (at < m->pin + m->pin_len && m->pin < at + width)) return;
  if (width == 8) store64le(m->p + at, value);
  else store32le(m->p + at, (uint32_t)value);
}

// A frame: mark, check of its head, checksum; for the length that it says, where that can be.
static void seal_frame(const struct changed *m, const struct sum *s, const struct wal_key *k) {
  uint64_t end = s->at + WAL_FRAME_HEAD + (load32le(m->p + s->at + 12) & 0x7FFFFFFF);
  if (end > m->len) end = s->to;
  seal_put(m, s->at + 8, k->magic, 4);
  seal_put(m, s->at + 36, hash64_seed(m->p + s->at + 8, 28, ~(k->seed + s->at)), 4);
  seal_put(m, s->at, hash64_seed(m->p + s->at + 8, (size_t)(end - s->at - 8), k->seed + s->at), 8);
}

// A value record: mark, checksums of the chunks that its entries state, checksum of the head; as far as its lengths let
// that be.
static void seal_value(const struct changed *m, uint64_t at) {
  const uint64_t key = hash64_seed(m->p + 16, 24, load64le(m->p + 56)), seed = load64le(m->p + at + 32);
  const uint32_t klen = load32le(m->p + at + 12), vlen = load32le(m->p + at + 16);
  const uint64_t entries = at + value_entries_at(klen), data = at + value_data_at(klen, vlen);
  seal_put(m, at + 8, (uint32_t)(key >> 32) | 1, 4);
  if (klen > KV_KEY_MAX || at + VALUE_REC_HEAD + klen > m->len) return;
  uint64_t begin = 0, end;
  for (uint64_t e = entries; e < data && data <= m->len; e += VALUE_ENTRY, begin = end) {
    end = load64le(m->p + e);
    if (end < begin || end > m->len - data) break;
    seal_put(m, e + 8, hash64_seed(m->p + data + begin, (size_t)(end - begin), seed + 2 * begin + 1), 8);
  }
  seal_put(m, at, hash64_seed(m->p + at + 8, VALUE_REC_HEAD - 8 + klen, key + at), 8);
}

static void seal(const struct changed *m) {
  const bool log = strncmp(m->file->name, "wal-", 4) == 0;
  const struct wal_key k = log ? wal_key(load64le(m->p + 16), load64le(m->p + 24)) : (struct wal_key){0, 0};
  for (uint32_t i = 0; i < m->file->nr_sums; i++) {
    const struct sum *const s = &m->file->sums[i];
    uint64_t to = s->to, seed = s->seed;
    if (s->kind == SUM_FRAME) {
      seal_frame(m, s, &k);
      continue;
    }
    if (s->kind == SUM_VALUE) {
      seal_value(m, s->at);
      continue;
    }
    if (s->kind == SUM_LEVEL) {
      if (load64le(m->p + s->from) == 0) continue;  // there is none
      seed = k.seed + WAL_LEVEL;
    }
    if (s->kind == SUM_CHUNK) {
      const uint64_t len = load32le(m->p + s->at + 8) & 0x3FFFFFFF;
      if (len >= 16 && s->at + len <= m->len) to = s->at + len;
    }
    seal_put(m, s->at, hash64_seed(m->p + s->from, (size_t)(to - s->from), seed), 8);
  }
}

static uint64_t near_end(uint64_t *rng) {
  static const uint64_t ends[] = {0,          0,          1ull << 8,  1ull << 16, 1ull << 22, 1ull << 30,
                                  1ull << 31, 1ull << 32, 1ull << 46, 1ull << 47, 1ull << 48, 1ull << 62,
                                  1ull << 63, 65500,      65520,      4096};
  return ends[below(rng, sizeof(ends) / sizeof(ends[0]))] + below(rng, 5) - 2;
}

static uint64_t other_value(uint64_t old, uint32_t width, uint64_t *rng) {
  switch (below(rng, 9)) {
    case 0: return 0;
    case 1: return UINT64_MAX;
    case 2: return old + 1 + below(rng, 3);
    case 3: return old - 1 - below(rng, 3);
    case 4: return old ^ 1ull << below(rng, 8 * width);
    case 5: return near_end(rng);
    case 6: return below(rng, 40);
    case 7: return old * 2;
    default: return rng_next(rng);
  }
}

static uint64_t load_width(const uint8_t *p, uint32_t width) {
  uint64_t v = 0;
  for (uint32_t i = width; i-- > 0;) v = v << 8 | p[i];
  return v;
}

static void store_width(uint8_t *p, uint32_t width, uint64_t v) {
  for (uint32_t i = 0; i < width; i++, v >>= 8) p[i] = (uint8_t)v;
}

static void say_change(const struct spot *s, uint64_t at, uint64_t old, uint64_t now) {
  const size_t said = strlen(check_what);
  (void)snprintf(check_what + said, sizeof(check_what) - said, "; \"%.30s\" \"%.40s\" at %llu: %llx to %llx",
                 s->table->heading, s->field->meaning, (unsigned long long)at, (unsigned long long)old,
                 (unsigned long long)now);
}

// An element's value before a change, and after it.
struct value {
  uint64_t old, now;
};

// Changes an element of the field, or a few bytes of one that is bytes.
static struct value change(struct changed *m, const struct spot *s, uint64_t *rng) {
  uint64_t at = s->off + below(rng, s->len / s->width) * s->width;
  uint32_t width = s->width;
  if (width == 1 && s->len > 1 && chance(rng, 20)) {
    width = (uint32_t)(s->off + s->len - at < 8 ? s->off + s->len - at : 8);
    width = 1 + (uint32_t)below(rng, width);
  }
  const uint64_t old = load_width(m->p + at, width), bits = width == 8 ? UINT64_MAX : (1ull << 8 * width) - 1;
  uint64_t now = old;
  for (uint32_t tries = 0; tries < 8 && now == old; tries++) now = other_value(old, width, rng) & bits;
  if (chance(rng, 10) && s->len >= 2 * s->width)  // or the value of another element
    now = load_width(m->p + s->off + below(rng, s->len / s->width) * s->width, s->width);
  store_width(m->p + at, width, now);
  if (s->field->sum) {
    m->pin = at;
    m->pin_len = width;
  }
  say_change(s, at, old, now);
  return (struct value){old, now};
}

// The file's bytes, to be changed.
static struct changed *begin_change(struct mutant *m, struct file *f) {
  CHECK(m->nr < CHANGED_MAX);
  struct changed *const c = &m->c[m->nr++];
  *c = (struct changed){.file = f, .p = malloc(f->len + 4096), .len = f->len};
  assert_non_null(c->p);
  memcpy(c->p, f->p, f->len);
  const size_t said = strlen(check_what);
  (void)snprintf(check_what + said, sizeof(check_what) - said, ", %s/%s", m->sample->name,
                 f->in ? f->in->name : f->name);
  return c;
}

// The changed content of a frame becomes the file with that content.
static void pack_again(struct changed *c) {
  struct file *const content = c->file;
  uint8_t *const bytes = c->p;
  CHECK(c->len == content->len);
  c->file = content->in;
  c->p = repack_file(content->in->p, content->in->len, &content->frame, bytes, &c->len);
  free(bytes);
}

// The fields that `choose` may take.
enum among { ALL, FRAMES, SAME_FILE, OTHER_FILE };

static bool is_among(const struct spot *s, enum among among, const struct spot *than) {
  switch (among) {
    case ALL: return !s->file->in;
    case FRAMES: return s->file->in != NULL;
    case SAME_FILE: return s->file == than->file;
    default: return s->sample == than->sample && !s->file->in && s->file != than->file && s->file != than->file->in;
  }
}

// A field: all of the document are equally likely, and then all the places of it. than: for SAME_FILE and OTHER_FILE.
static const struct spot *choose(enum among among, const struct spot *than, uint64_t *rng) {
  for (;;) {
    const struct field_table *const t = &field_tables[below(rng, field_tables_nr)];
    if (!t->nr) continue;
    const struct field *const f = &t->rows[below(rng, t->nr)];
    if (!f->hits) continue;
    uint32_t at = (uint32_t)below(rng, nr_spots), left = nr_spots;
    while (left && !(spots[at].field == f && is_among(&spots[at], among, than))) {
      at = (at + 1) % nr_spots;
      left--;
    }
    if (left) return &spots[at];
  }
}

// A field of another file that has the value, as both name a file, a generation or a count: it gets the other one, too.
static bool change_alike(struct mutant *m, const struct spot *than, struct value v, uint64_t *rng) {
  uint32_t at = (uint32_t)below(rng, nr_spots);
  for (uint32_t left = nr_spots; left; left--, at = (at + 1) % nr_spots) {
    const struct spot *const s = &spots[at];
    if (s->width < 4 || !is_among(s, OTHER_FILE, than)) continue;
    for (uint64_t off = s->off; off < s->off + s->len; off += s->width) {
      if (load_width(s->file->p + off, s->width) != v.old) continue;
      struct changed *const c = begin_change(m, s->file);
      store_width(c->p + off, s->width, v.now);
      say_change(s, off, v.old, v.now);
      return true;
    }
  }
  return false;
}

// An image with other segments, as a file of a format that is written. Packing trusts the numbers of entries.
static void pack_image(struct changed *m, const struct spot *s) {
  uint8_t *file;
  size_t len;
  if (strcmp(s->table->heading, "A segment") != 0 || strncmp(s->field->meaning, "number of entries", 17) == 0) return;
  store32le(m->p + 8, REMIX_FORMAT_KINDS);
  OK(remix_pack(m->p, m->len, false, &file, &len));
  store64le(file + len - 8, hash64_seed(file, len - 8, load64le(file + 24)));
  CHECK(len <= m->len + 4096);
  memcpy(m->p, file, len);
  m->len = len;
  mem_free(file);
}

// The fingerprint of a table, a REMIX file, a value file or a log segment. False: it has none.
static bool print_of(const struct changed *c, uint64_t *out) {
  const char *const dot = strrchr(c->file->name, '.');
  const uint64_t at = !dot                        ? WAL_HEAD_SUM
                      : strcmp(dot, ".val") == 0  ? VALUE_HEAD - 8
                      : strcmp(dot, ".sst") == 0  ? c->len - FORMAT_SST_FOOTER
                      : strcmp(dot, ".pack") == 0 ? c->len - PACK_FOOTER
                                                  : c->len - 8;
  if (at + 8 > c->len) return false;
  *out = load64le(c->p + at);
  return true;
}

static struct file *file_named(struct sample *s, const char *name) {
  for (uint32_t i = 0; i < s->nr; i++)
    if (strcmp(s->files[i].name, name) == 0) return &s->files[i];
  return NULL;
}

static struct changed *changed_of(struct mutant *m, struct file *f) {
  for (uint32_t i = 0; i < m->nr; i++)
    if (m->c[i].file == f) return &m->c[i];
  return begin_change(m, f);
}

// References to records of the changed value file state the checks of today.
static void seal_refs_to(struct mutant *m, const struct changed *c) {
  const char *const dot = strrchr(c->file->name, '.');
  if (!dot || strcmp(dot, ".val") != 0) return;
  for (uint32_t i = 0; i < m->sample->nr_refs; i++) {
    const struct ref_spot *const r = &m->sample->refs[i];
    struct value_ref ref;
    CHECK(value_ref_get(r->file->p + r->off, VALUE_REF, &ref));
    if (ref.file != strtoull(c->file->name, NULL, 10)) continue;
    const uint32_t check = load32le(c->p + ref.at);
    if (check == ref.check) continue;
    struct changed *const with = changed_of(m, r->file);
    if (with->len != r->file->len) continue;
    seal_put(with, r->off + 20, check, 4);
    seal(with);
  }
}

static void seal_refs(struct mutant *m) {
  for (uint32_t i = 0, nr = m->nr; i < nr; i++) seal_refs_to(m, &m->c[i]);
}

// CURRENT states the fingerprints of the changed files, as one that was crafted together with them does.
static void seal_prints(struct mutant *m) {
  struct file *const f = file_named(m->sample, "CURRENT");
  uint64_t print;
  if (!f || load32le(f->p + 8) < 3) return;
  const uint32_t nr = m->nr;
  for (uint32_t i = 0; i < nr; i++)
    if (m->c[i].file == f) return;
  struct changed *const current = begin_change(m, f);
  for (uint32_t i = 0; i < nr; i++) {
    const struct changed *const c = &m->c[i];
    const bool log = strncmp(c->file->name, "wal-", 4) == 0;
    if (!print_of(c, &print)) continue;
    if (log && load64le(c->file->p + 24) == load64le(f->p + 40)) store64le(current->p + 56, print);
    for (uint32_t k = 0; k < m->sample->nr_prints; k++)
      if (strcmp(m->sample->prints[k].name, c->file->name) == 0) store64le(current->p + m->sample->prints[k].at, print);
  }
  seal(current);
}

static void mutate_files(struct mutant *m, uint64_t *rng) {
  const bool frame = chance(rng, 20), two = chance(rng, 25);
  const struct spot *const s = choose(frame ? FRAMES : ALL, NULL, rng);
  *m = (struct mutant){.sample = s->sample, .in_frame = frame};
  struct changed *const c = begin_change(m, s->file);
  const struct value v = change(c, s, rng);
  if (chance(rng, 12)) (void)change(c, choose(SAME_FILE, s, rng), rng);
  else if (!frame && !two && chance(rng, 50)) pack_image(c, s);
  if (frame) pack_again(c);
  else if (c->len == s->file->len) seal(c);
  if (!two) return;
  m->two = true;
  if (!chance(rng, 60) || v.old == 0 || !change_alike(m, s, v, rng)) {
    const struct spot *const other = choose(OTHER_FILE, s, rng);
    (void)change(begin_change(m, other->file), other, rng);
  }
  seal(&m->c[1]);
}

static void mutate(struct mutant *m, uint64_t *rng) {
  mutate_files(m, rng);
  seal_refs(m);
  seal_prints(m);
}

static void mutant_free(struct mutant *m) {
  for (uint32_t i = 0; i < m->nr; i++) free(m->c[i].p);
}

static struct simdisk *make_disk(const struct mutant *m) {
  struct simdisk *const d = simdisk_create();
  struct env *const e = simdisk_env(d);
  assert_non_null(d);
  simdisk_no_allocate(d, true);
  OK(env_mkdir(ENV_PATHS(e), HOME));
  for (uint32_t i = 0; i < m->sample->nr; i++) {
    const struct file *const f = &m->sample->files[i];
    char path[128];
    int fd;
    (void)snprintf(path, sizeof(path), HOME "/%s", f->name);
    OK(env_open(ENV_PATHS(e), path, ENV_WRITE | ENV_CREATE, &fd));
    const uint8_t *p = f->p;
    size_t len = f->len;
    for (uint32_t k = 0; k < m->nr; k++) {
      if (m->c[k].file != f) continue;
      p = m->c[k].p;
      len = m->c[k].len;
    }
    OK(env_write(e, fd, path, p, len, 0));
    OK(env_sync_all(e, fd, path));
    OK(env_close(e, fd, path));
  }
  OK(env_sync_dir(simdisk_dir(e, HOME)));
  return d;
}

// ---- the checks

// A refusal says that the files are at fault, and nothing else: memory that a file asks for is no reason.
static bool refused(enum remixdb_status s) {
  if (s == REMIXDB_OK) return false;
  if (s != REMIXDB_CORRUPT && s != REMIXDB_VERSION) FAILS(s, REMIXDB_CORRUPT);
  return true;
}

static bool read_ok(enum remixdb_status s, bool sound) {
  if (s == REMIXDB_OK || s == REMIXDB_NOTFOUND) return s == REMIXDB_OK;
  if (sound || s != REMIXDB_CORRUPT) FAILS(s, REMIXDB_OK);
  return false;
}

struct record {
  uint8_t *key;
  uint32_t klen;
  uint64_t value;  // the value's bytes
};
struct records {
  struct record *r;
  uint32_t nr;
};

static struct records scan(struct xdb_iter *it, bool back, bool sound) {
  struct records out = {calloc(STEPS_MAX, sizeof(struct record)), 0};
  struct kv_rec rec;
  assert_non_null(out.r);
  bool more = read_ok(back ? xdb_iter_seek_last(it) : xdb_iter_seek(it, kref("", 0)), sound);
  while (more && read_ok(xdb_iter_record(it, &rec), sound)) {
    CHECK(out.nr < STEPS_MAX);
    struct record *const r = &out.r[out.nr++];
    *r = (struct record){malloc(rec.klen + 1u), rec.klen, hash64_seed(rec.val, rec.vlen, 0)};
    assert_non_null(r->key);
    if (rec.klen) memcpy(r->key, rec.key, rec.klen);
    more = read_ok(back ? xdb_iter_prev(it) : xdb_iter_skip(it, 1), sound);
  }
  return out;
}

static void records_free(struct records *r) {
  for (uint32_t i = 0; i < r->nr; i++) free(r->r[i].key);
  free(r->r);
}

static struct kref record_key(const struct record *r) { return kref(r->key, r->klen); }

// The first record whose key is not less.
static uint32_t records_find(const struct records *r, struct kref k) {
  uint32_t lo = 0, hi = r->nr;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (kv_cmp(record_key(&r->r[mid]), k) < 0) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

// Compares the answers of get and both seeks about a key with the scan. !sound: they end, with any answer.
static void check_key(struct xdb_ref *r, struct xdb_iter *it, const struct records *all, struct kref k, bool sound) {
  static uint8_t value[VALUE_MAX];
  uint32_t vlen = 0;
  struct kv_rec rec;
  const enum remixdb_status got = xdb_get(r, k, value, sizeof(value), &vlen);
  const bool found = !(got == REMIXDB_TOOBIG && !sound) && read_ok(got, sound);
  const bool at = read_ok(xdb_iter_seek(it, k), sound) && read_ok(xdb_iter_record(it, &rec), sound);
  const struct kref first = at ? kref(rec.key, rec.klen) : kref("", 0);
  if (sound) {
    const uint32_t n = records_find(all, k);
    const bool there = n < all->nr && kv_eq(record_key(&all->r[n]), k);
    CHECK(found == there);
    if (there) CHECK(hash64_seed(value, vlen, 0) == all->r[n].value);
    CHECK(at == (n < all->nr));
    if (at) CHECK(kv_eq(first, record_key(&all->r[n])));
    if (at) CHECK(hash64_seed(rec.val, rec.vlen, 0) == all->r[n].value);
    const bool prev = read_ok(xdb_iter_seek_for_prev(it, k), sound) && read_ok(xdb_iter_record(it, &rec), sound);
    CHECK(prev == (there || n > 0));
    if (prev) CHECK(kv_eq(kref(rec.key, rec.klen), record_key(&all->r[there ? n : n - 1])));
  } else {
    (void)(read_ok(xdb_iter_seek_for_prev(it, k), sound) && read_ok(xdb_iter_record(it, &rec), sound));
  }
}

static void check_reads(struct xdb_ref *r, const struct sample *s, bool sound) {
  struct xdb_iter *it;
  OK(xdb_iter_create(r, &it));
  struct records all = scan(it, false, sound), back = scan(it, true, sound);
  for (uint32_t i = 0; sound && i < all.nr; i++) {
    if (i) CHECK(kv_cmp(record_key(&all.r[i - 1]), record_key(&all.r[i])) < 0);
    CHECK(all.nr == back.nr);
    const struct record *const b = &back.r[all.nr - 1 - i];
    CHECK(kv_eq(record_key(b), record_key(&all.r[i])) && b->value == all.r[i].value);
  }
  CHECK(!sound || all.nr == back.nr);
  for (uint32_t i = 0; i < s->nr_keys; i += sound ? 1 : 7) check_key(r, it, &all, s->keys[i], sound);
  for (uint32_t i = 0; i < all.nr; i += sound ? 1 : 7) check_key(r, it, &all, record_key(&all.r[i]), sound);
  xdb_iter_destroy(it);
  records_free(&all);
  records_free(&back);
}

// The same in the key space, if the store has it.
static void check_space(struct xdb *x, const struct sample *s, bool sound) {
  struct xdb_space *sp;
  struct xdb_ref *r;
  const enum remixdb_status opened = xdb_space_open(x, SPACE, 1, false, &sp);
  if (opened == REMIXDB_NOTFOUND) return;
  OK(opened);
  OK(xdb_space_ref(sp, &r));
  check_reads(r, s, sound);
  xdb_unref(r);
  xdb_space_close(sp);
}

enum outcome { REFUSED, REPORTED, AGREES, OUTCOMES };

static struct remixdb_opts mutant_opts(bool read_only) {
  struct remixdb_opts o = small_opts(0);
  o.cache_mb = 0;
  o.read_only = read_only;
  return o;
}

static enum outcome look(struct env *e, const struct sample *s, bool read_only) {
  const struct remixdb_opts o = mutant_opts(read_only);
  struct xdb *x;
  struct xdb_ref *r;
  struct verify_report report;
  if (refused(xdb_open(HOME, &o, e, &x))) return REFUSED;
  OK(xdb_ref(x, &r));
  const bool sound = !refused(verify_store(r, &report));
  check_reads(r, s, sound);
  check_space(x, s, sound);
  xdb_unref(r);
  if (read_only) OK(xdb_close(x));
  else (void)refused(xdb_close(x));  // it brings the memtable into tables, for which it reads them
  return sound ? AGREES : REPORTED;
}

// A store that verify has nothing to say of takes writes, or refuses them when it is opened; what it took is there.
static void check_writes(struct env *e, const struct sample *s) {
  const struct remixdb_opts o = mutant_opts(false);
  const struct kref k = kref("\x7f mutant", 8);
  struct xdb *x;
  struct xdb_ref *r;
  if (refused(xdb_open(HOME, &o, e, &x))) return;
  OK(xdb_ref(x, &r));
  const enum remixdb_status put = xdb_put(r, KV_REC(k, "v", 1, false)), synced = put == REMIXDB_OK ? xdb_sync(r) : put;
  const enum remixdb_status compacted = put == REMIXDB_OK ? xdb_compact(x) : put;
  (void)compacted;
  xdb_unref(r);
  const enum remixdb_status closed = xdb_close(x);
  (void)closed;
  if (synced != REMIXDB_OK) return;
  OK(xdb_open(HOME, &o, e, &x));
  OK(xdb_ref(x, &r));
  OK(xdb_get(r, k, NULL, 0, NULL));
  struct verify_report report;
  OK(verify_store(r, &report));
  check_reads(r, s, true);
  xdb_unref(r);
  OK(xdb_close(x));
}

static bool check_repair(struct env *e, const struct sample *s) {
  struct repair_report report;
  const enum remixdb_status repaired = repair_store(e, HOME, &report);
  if (repaired == REMIXDB_VERSION || repaired == REMIXDB_NOTFOUND) return false;
  OK(repaired);
  CHECK(look(e, s, true) == AGREES);
  CHECK(look(e, s, false) == AGREES);
  return true;
}

// ---- limits

static long resident_kb(void) {
  struct rusage u;
  CHECK(getrusage(RUSAGE_SELF, &u) == 0);
#ifdef __APPLE__
  return u.ru_maxrss >> 10;  // it counts bytes
#else
  return u.ru_maxrss;
#endif
}

// The system refuses memory beyond this, and REMIXDB_NOMEM fails the test. Sanitizers take address space of their own:
// with them only the memory in use counts.
static void limit_memory(void) {
#if !LIB_SANITIZED && !defined(TEST_SLOW)
  FILE *const f = fopen("/proc/self/statm", "r");
  unsigned long pages;
  if (!f) return;
  const int nr = fscanf(f, "%lu", &pages);
  (void)fclose(f);
  if (nr != 1) return;
  const rlim_t most = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)MEMORY_MB << 20);
  CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){most, most}) == 0);
#endif
}

static void say_and_die(int sig) {
  static const char text[] = "\nended by a signal; TEST_SEED and mutant: ";
  ssize_t n = write(2, text, sizeof(text) - 1);
  n += write(2, check_what, strlen(check_what));
  n += write(2, "\n", 1);
  (void)n;
  (void)signal(sig, SIG_DFL);
  (void)raise(sig);
}

#if LIB_ASAN
void __sanitizer_set_death_callback(void (*callback)(void));
static void say_at_death(void) {
  const ssize_t n = write(2, check_what, strlen(check_what)) + write(2, "\n", 1);
  (void)n;
}
#endif

static void watch_signals(void) {
  (void)signal(SIGALRM, say_and_die);
#if LIB_ASAN
  __sanitizer_set_death_callback(say_at_death);
#else
  (void)signal(SIGSEGV, say_and_die);
  (void)signal(SIGBUS, say_and_die);
  (void)signal(SIGABRT, say_and_die);
#endif
}

// ---- the test

static uint64_t number_from(const char *name, uint64_t standard) {
  const char *const s = getenv(name);
  return s && *s ? strtoull(s, NULL, 10) : standard;
}

// Mutants of a kind, and their outcomes.
enum kind { ONE_FILE, TWO_FILES, IN_FRAME, KINDS };
struct tally {
  uint64_t count[KINDS][OUTCOMES], repaired;
};

static void one(uint64_t i, uint64_t seed, struct tally *t) {
  uint64_t rng = seed * 0x9E3779B97F4A7C15ull + i;
  struct mutant m;
  (void)rng_next(&rng);
  (void)snprintf(check_what, sizeof(check_what), "TEST_SEED=%llu MUTANT=%llu", (unsigned long long)seed,
                 (unsigned long long)i);
  mutate(&m, &rng);
  struct simdisk *d = make_disk(&m);
  starve(strcmp(m.sample->name, "paged") == 0 && chance(&rng, 70));
  const enum outcome out = look(simdisk_env(d), m.sample, true);
  t->count[m.in_frame ? IN_FRAME : m.two ? TWO_FILES : ONE_FILE][out]++;
  if (out != AGREES) t->repaired += check_repair(simdisk_env(d), m.sample);
  else if (chance(&rng, 25)) check_writes(simdisk_env(d), m.sample);
  if (out != AGREES && chance(&rng, 25)) {  // an opening that may write
    simdisk_destroy(d);
    d = make_disk(&m);
    (void)look(simdisk_env(d), m.sample, false);
  }
  starve(false);
  simdisk_destroy(d);
  mutant_free(&m);
}

static void test_mutants(void **state) {
  (void)state;
  static const char *const names[KINDS] = {"of one file", "of two files", "of a frame"};
  const uint64_t seed = check_seed_or(1), nr = number_from("MUTANTS", 1000 / SLOW);
  const uint64_t only = number_from("MUTANT", UINT64_MAX);
  struct tally t = {.repaired = 0};
  print_message("TEST_SEED=%llu, %llu mutants of %u fields\n", (unsigned long long)seed, (unsigned long long)nr,
                nr_spots);
  const long before = resident_kb();
  for (uint64_t i = only == UINT64_MAX ? 0 : only; i < (only == UINT64_MAX ? nr : only + 1); i++) {
    (void)alarm(MUTANT_S * SLOW);
    one(i, seed, &t);
    CHECK(resident_kb() - before < (long)(GROWTH_KB * (SLOW > 1 ? 4 : 1)));
  }
  (void)alarm(0);
  uint64_t all[OUTCOMES] = {0};
  for (uint32_t k = 0; k < KINDS; k++) {
    print_message("%s: %llu refused, %llu reported by verify, %llu that read the same\n", names[k],
                  (unsigned long long)t.count[k][REFUSED], (unsigned long long)t.count[k][REPORTED],
                  (unsigned long long)t.count[k][AGREES]);
    for (uint32_t o = 0; o < OUTCOMES; o++) all[o] += t.count[k][o];
    // the code looks at a frame's contents
    if (nr >= 50 && only == UINT64_MAX) CHECK(t.count[k][REFUSED] && t.count[k][REPORTED] + t.count[k][AGREES]);
  }
  print_message("%llu repaired\n", (unsigned long long)t.repaired);
  if (nr >= 50 && only == UINT64_MAX) CHECK(all[REFUSED] > nr / 10 && all[REPORTED] > nr / 20 && t.repaired > nr / 10);
}

// Walks, seals and frames are right: a file that is sealed as it is stays as it is, and one whose frame is packed again
// as it is holds the same.
static void test_samples(void **state) {
  (void)state;
  for (uint32_t i = 0; i < nr_samples; i++) {
    struct sample *const s = &samples[i];
    for (uint32_t j = 0; j < s->nr + s->nr_packed; j++) {
      struct mutant m = {.sample = s};
      check_what[0] = 0;
      struct file *const f = j < s->nr ? &s->files[j] : s->packed[j - s->nr];
      struct changed *const c = begin_change(&m, f);
      if (f->in) {
        pack_again(c);
      } else {
        seal(c);
        if (strncmp(s->name, "torn", 4) != 0) assert_memory_equal(c->p, f->p, f->len);
      }
      seal_prints(&m);
      if (j == 0 || f->in) {
        struct simdisk *const d = make_disk(&m);
        CHECK(look(simdisk_env(d), s, true) == AGREES);
        simdisk_destroy(d);
      }
      mutant_free(&m);
    }
  }
  check_what[0] = 0;
}

static int read_all(void **state) {
  (void)state;
  fields_read();
  OK(paths_list(env_posix(), GOLDEN, take_sample, NULL));
  make_sample();
  check_document();
  watch_signals();
  limit_memory();
  return 0;
}

static int free_all(void **state) {
  (void)state;
  for (uint32_t i = 0; i < nr_samples; i++) {
    for (uint32_t j = 0; j < samples[i].nr; j++) mem_free(samples[i].files[j].p);
    for (uint32_t j = 0; j < samples[i].nr_packed; j++) {
      free(samples[i].packed[j]->p);
      free(samples[i].packed[j]);
    }
    for (uint32_t j = 0; j < samples[i].nr_keys; j++)  // a key and the next one share their bytes
      if (!j || samples[i].keys[j].ptr != samples[i].keys[j - 1].ptr) free((void *)(uintptr_t)samples[i].keys[j].ptr);
  }
  free(spots);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_samples), cmocka_unit_test(test_mutants)};
  return cmocka_run_group_tests(tests, read_all, free_all);
}
