// SPDX-License-Identifier: Apache-2.0
#include "view/current.h"

#include <assert.h>

#include "remix/format.h"

// Offsets in the file, little-endian: the head, then the sections, then a checksum of all before. In formats 1 and 2
// the partitions follow the head, without a section around them.
enum {
  HEAD_MAGIC = 0,       // u8[8]
  HEAD_FORMAT = 8,      // u32
  HEAD_PARTS = 12,      // u32, partitions, at least 1: formats 1 and 2
  HEAD_SECTIONS = 12,   // u32, how many
  HEAD_STORE_ID = 16,   // u64
  HEAD_NUMBER = 24,     // u64
  HEAD_NEXT_FILE = 32,  // u64
  HEAD_LOG_GEN = 40,    // u64
  HEAD_LOG_SEQ = 48,    // u64
  HEAD_SIZE_OLD = 56,   // in formats 1 and 2
  HEAD_LOG_PRINT = 56,  // u64
  HEAD_SIZE = 64,
  SUM_SIZE = 8,  // u64, XXH3-64
};
// Offsets in a section's head. Sections ascend by kind, so there is at most one of each.
enum {
  SECTION_KIND = 0,    // u32
  SECTION_FLAGS = 4,   // u32
  SECTION_LENGTH = 8,  // u64, bytes that follow
  SECTION_HEAD = 16,
};
enum {
  KIND_ORIGINS = 1,
  KIND_PARTS = 2,
  KIND_SPACES_PARTS = 3,
  KIND_NAMES = 4,
  KIND_ERASED = 5,
  KIND_VALUES = 8,
  KIND_MOVES = 9,
  KIND_PACKS = 10
};
#define ERASED_SIZE 8u   // that section: u64
#define SECTION_MUST 1u  // flag: a reader that does not know the kind refuses the store
// Offsets in a section of partitions.
enum {
  PARTS_COUNT = 0,  // u32, at least 1
  PARTS_ZERO = 4,   // u32
  PARTS_HEAD = 8,
};
// Offsets in a partition: its head, then the anchor's bytes, then the name of each table.
enum {
  PART_ANCHOR = 0,         // u32, length
  PART_TABLES = 4,         // u32, how many
  PART_REMIX = 8,          // u64, 0 without tables
  PART_REMIX_PRINT = 16,   // u64
  PART_YOUNG = 24,         // u64, 0: none
  PART_YOUNG_PRINT = 32,   // u64
  PART_YOUNG_TABLES = 40,  // u64, how many of the tables, the last ones, are the young view's
  PART_HEAD = 48,
};
// The same in formats 1 and 2. The first fields are in the same places. Names have no fingerprints.
enum {
  PART_HEAD_1 = 16,
  PART_YOUNG_2 = 16,         // u64
  PART_YOUNG_TABLES_2 = 24,  // u64
  PART_HEAD_2 = 32,
  NAME_OLD = 8,
};
static const char current_magic[8] = {'R', 'M', 'X', 'D', 'B', 'V', 'E', 'R'};
#define CURRENT_RUNS_MAX REMIX_RUNS_MAX
#define CURRENT_SIZE_MAX (1u << 30)    // a larger file is neither written nor read
#define CURRENT_SIZE_SMALL (1u << 20)  // a larger file is compared with the number of tables in the directory
#define CURRENT_HOLE (128u << 10)      // no part of the file has so many zeros: an anchor has fewer bytes
// The most bytes of a partition, its tables left out.
#define CURRENT_PART_MAX (PART_HEAD + KV_KEY_MAX)
#define CURRENT_REST_MAX                                                                              \
  (HEAD_SIZE + 8 * SECTION_HEAD + PACK_SECTION_HEAD + ERASED_SIZE + 2 * PARTS_HEAD + NAMES_SIZE_MAX + \
   SUM_SIZE)  // bytes that are there once
// Bytes of a table's name, of origins of it and its REMIX files, and of their places in packs, each in another one.
#define CURRENT_TABLE_MAX (CURRENT_NAME + 3 * 8 + 3 * (PACK_LIST_HEAD + PACK_ENTRY))

bool current_is_magic(const uint8_t *bytes) { return memcmp(bytes, current_magic, sizeof(current_magic)) == 0; }

static uint32_t part_head(uint32_t format) { return format == 1 ? PART_HEAD_1 : format == 2 ? PART_HEAD_2 : PART_HEAD; }

static void get_head(const uint8_t *p, struct current_head *out) {
  *out = (struct current_head){.format = load32le(p + HEAD_FORMAT),
                               .store_id = load64le(p + HEAD_STORE_ID),
                               .number = load64le(p + HEAD_NUMBER),
                               .next_file = load64le(p + HEAD_NEXT_FILE),
                               .log_gen = load64le(p + HEAD_LOG_GEN),
                               .log_seq = load64le(p + HEAD_LOG_SEQ)};
  if (current_prints(out)) out->log_print = load64le(p + HEAD_LOG_PRINT);
}

static enum remixdb_status check_file(const struct current *c) {
  if (c->len < HEAD_SIZE_OLD + SUM_SIZE || !current_is_magic(c->buf + HEAD_MAGIC))
    return err_corrupt(c->path, 0, "not a version file");
  if (hash64(c->buf, c->len - SUM_SIZE) != load64le(c->buf + c->len - SUM_SIZE))
    return err_corrupt(c->path, c->len - SUM_SIZE, "checksum does not match");
  // Read after the checksum: a flipped bit is damage, not a later format.
  const uint32_t format = load32le(c->buf + HEAD_FORMAT);
  if (format == 0 || format > CURRENT_FORMAT)
    return err_set(REMIXDB_VERSION, "%s: format %u is not known to this library (it knows up to %u)", c->path, format,
                   CURRENT_FORMAT);
  if (format > 2 && c->len < HEAD_SIZE + SUM_SIZE) return err_corrupt(c->path, 0, "the head is cut short");
  return REMIXDB_OK;
}

// Tells whether a number is 0, or so large that counting cannot have reached it.
static enum remixdb_status check_head(const char *path, const struct current_head *h) {
  if (h->number == 0 || h->number > CURRENT_COUNT_MAX)
    return err_corrupt(path, HEAD_NUMBER, "version number %llu", (unsigned long long)h->number);
  if (h->next_file == 0) return err_corrupt(path, HEAD_NEXT_FILE, "the next file number is 0");
  if (h->next_file > CURRENT_NUMBER_MAX) return err_corrupt(path, HEAD_NEXT_FILE, "file numbers have run out");
  if (h->log_gen == 0 || h->log_gen > CURRENT_COUNT_MAX)
    return err_corrupt(path, HEAD_LOG_GEN, "generation %llu of the log", (unsigned long long)h->log_gen);
  if (h->log_seq > CURRENT_COUNT_MAX)
    return err_corrupt(path, HEAD_LOG_SEQ, "sequence number %llu", (unsigned long long)h->log_seq);
  return REMIXDB_OK;
}

struct counting {
  const struct env_dir *dir;
  uint64_t tables;
};

// A value file counts as a table: it explains a name, and no more. Each page of a pack may be one.
static bool count_table(void *arg, const char *name) {
  struct counting *const c = arg;
  const enum files_kind kind = files_kind_of(name, NULL);
  struct env_stat st;
  c->tables += kind == FILES_IS_TABLE || kind == FILES_IS_VALUE;
  if (kind != FILES_IS_PACK) return true;
  err_cleanup_begin();
  if (env_stat(c->dir, name, &st) == REMIXDB_OK && st.is_file) c->tables += st.size / PACK_ALIGN;
  err_cleanup_end();
  return true;
}

// A large file may be a hole that nobody has written, or claim partitions without any files. A partition that is not
// empty has a table. The bound counts the longest anchors, so a sound file stays far below it: also one that has lost
// most of its tables, which a repair reads.
static enum remixdb_status check_size(const struct env_dir *dir, const char *path, int fd) {
  struct counting c = {dir, 0};
  uint64_t size;
  enum remixdb_status s = env_size(dir->env, fd, path, &size);
  if (s != REMIXDB_OK || size <= CURRENT_SIZE_SMALL || size > CURRENT_SIZE_MAX) return s;
  if (env_is_hollow(dir->env, fd, 0, size, CURRENT_HOLE))
    return err_corrupt(path, 0, "has a hole where partitions should be");
  if ((s = env_list(dir, count_table, &c)) != REMIXDB_OK) return s;
  const uint64_t tables = c.tables < CURRENT_SIZE_MAX ? c.tables : CURRENT_SIZE_MAX;
  if (size <= CURRENT_REST_MAX + TREES * CURRENT_PART_MAX + tables * (CURRENT_PART_MAX + CURRENT_TABLE_MAX))
    return REMIXDB_OK;
  return err_corrupt(path, 0, "the file has %llu bytes, far more than partitions with %llu tables take",
                     (unsigned long long)size, (unsigned long long)tables);
}

static enum remixdb_status read_bytes(const struct env_dir *dir, struct current *out) {
  int fd;
  enum remixdb_status s = env_open(dir, FILES_CURRENT, ENV_READ, &fd);
  if (s != REMIXDB_OK) return s;
  s = check_size(dir, out->path, fd);
  if (s == REMIXDB_OK) s = env_read_all(dir->env, fd, out->path, CURRENT_SIZE_MAX, &out->buf, &out->len);
  env_close_quiet(dir->env, fd);
  return s;
}

// ---- sections

static enum remixdb_status read_origins(struct current *c, size_t at, uint64_t len) {
  c->origins = c->buf + at;
  if (len == 0 || len % 8 || len / 8 > UINT32_MAX)
    return err_corrupt(c->path, at, "%llu bytes of origins", (unsigned long long)len);
  c->nr_origins = (uint32_t)(len / 8);
  uint64_t before = 0;
  for (uint32_t i = 0; i < c->nr_origins; i++) {
    const uint64_t id = load64le(c->origins + 8 * (size_t)i);
    if (id <= before || id == c->head.store_id)
      return err_corrupt(c->path, at + 8 * (size_t)i, "origins do not ascend, or one is the store itself");
    before = id;
  }
  return REMIXDB_OK;
}

static enum remixdb_status read_erased(struct current *c, size_t at, uint64_t len) {
  const uint64_t seq = c->head.erased = len == ERASED_SIZE ? load64le(c->buf + at) : 0;
  if (seq > c->head.log_seq && seq <= CURRENT_COUNT_MAX) return REMIXDB_OK;
  return err_corrupt(c->path, at, "%llu bytes of a range deletion, number %llu", (unsigned long long)len,
                     (unsigned long long)seq);
}

static enum remixdb_status read_parts(struct current *c, uint32_t tree, size_t at, uint64_t len) {
  if (len < PARTS_HEAD || load32le(c->buf + at + PARTS_ZERO) != 0)
    return err_corrupt(c->path, at, "head of the partitions");
  c->head.nr_parts[tree] = load32le(c->buf + at + PARTS_COUNT);
  c->trees[tree].at = at + PARTS_HEAD;
  c->trees[tree].end = at + len;
  return REMIXDB_OK;
}

// Finds a list of entries of one size, `name`, at `at`. Fails if its length does not fit.
static enum remixdb_status read_list(const struct current *c, size_t at, uint64_t len, size_t entry, const char *name,
                                     const uint8_t **list_out, uint32_t *nr_out) {
  if (len == 0 || len % entry || len / entry > UINT32_MAX)
    return err_corrupt(c->path, at, "%llu bytes of %s", (unsigned long long)len, name);
  *nr_out = (uint32_t)(len / entry);
  *list_out = c->buf + at;
  return REMIXDB_OK;
}

static enum remixdb_status read_values(struct current *c, size_t at, uint64_t len) {
  const enum remixdb_status s = read_list(c, at, len, CURRENT_VALUE, "value files", &c->head.values,
                                          &c->head.nr_values);
  if (s != REMIXDB_OK) return s;
  uint64_t before = 0;
  for (uint32_t i = 0; i < c->head.nr_values; i++) {
    const uint64_t number = load64le(c->head.values + CURRENT_VALUE * (size_t)i);
    if (number <= before || number >= c->head.next_file)
      return err_corrupt(c->path, at + CURRENT_VALUE * (size_t)i, "value files do not ascend, or the number is free");
    before = number;
  }
  return REMIXDB_OK;
}

void current_move_get(const struct current_head *h, uint32_t i, struct current_move *out) {
  const uint8_t *const p = h->moves + CURRENT_MOVE * (size_t)i;
  out->number = load64le(p);
  out->bytes = load64le(p + 8);
  if (!value_ref_get(p + 16, VALUE_REF, &out->ref)) out->ref = (struct value_ref){0};
}

static enum remixdb_status read_moves(struct current *c, size_t at, uint64_t len) {
  const enum remixdb_status s = read_list(c, at, len, CURRENT_MOVE, "collected value files", &c->head.moves,
                                          &c->head.nr_moves);
  if (s != REMIXDB_OK) return s;
  uint64_t before = 0;
  for (uint32_t i = 0; i < c->head.nr_moves; i++) {
    struct current_move m;
    current_move_get(&c->head, i, &m);
    if (m.number <= before || m.number >= c->head.next_file || m.ref.len == 0 || m.ref.len % VALUE_MOVED)
      return err_corrupt(c->path, at + CURRENT_MOVE * (size_t)i,
                         "collected value files do not ascend, or an index cannot be");
    before = m.number;
  }
  return REMIXDB_OK;
}

static enum remixdb_status read_packs(struct current *c, size_t at, uint64_t len) {
  struct pack_list l;
  c->head.packs = c->buf + at;
  c->head.packs_len = (size_t)len;
  const char *flaw = pack_list_begin(&l, c->head.packs, (size_t)len, c->head.next_file);
  if (!flaw) flaw = pack_list_next(&l);
  while (!flaw && l.nr) flaw = pack_list_next(&l);
  return flaw ? err_corrupt(c->path, (size_t)(l.p - c->buf), "packs: %s", flaw) : REMIXDB_OK;
}

// One section, the bytes [at, at + len).
static enum remixdb_status read_section(struct current *c, uint32_t kind, uint32_t flags, size_t at, uint64_t len) {
  const bool known = (kind >= KIND_ORIGINS && kind <= KIND_ERASED) || (kind >= KIND_VALUES && kind <= KIND_PACKS);
  if (flags & ~SECTION_MUST || (!known && flags & SECTION_MUST))
    return err_set(REMIXDB_VERSION, "%s: a section of kind %u with flags %#x is not known to this library", c->path,
                   kind, flags);
  if (!known) return REMIXDB_OK;
  if (!(flags & SECTION_MUST)) return err_corrupt(c->path, at, "flags of a section of kind %u", kind);
  if (kind == KIND_ORIGINS) return read_origins(c, at, len);
  if (kind == KIND_ERASED) return read_erased(c, at, len);
  if (kind == KIND_NAMES) {  // version.c decodes them
    c->names = c->buf + at;
    c->names_len = (size_t)len;
    return REMIXDB_OK;
  }
  if (kind == KIND_VALUES) return read_values(c, at, len);
  if (kind == KIND_MOVES) return read_moves(c, at, len);
  if (kind == KIND_PACKS) return read_packs(c, at, len);
  return read_parts(c, kind == KIND_PARTS ? TREE_UNNAMED : TREE_SPACES, at, len);
}

static enum remixdb_status read_sections(struct current *c) {
  const size_t stop = c->len - SUM_SIZE;
  const uint32_t nr = load32le(c->buf + HEAD_SECTIONS);
  size_t at = HEAD_SIZE;
  uint32_t before = 0;
  for (uint32_t i = 0; i < nr; i++) {
    const uint8_t *const p = c->buf + at;
    if (stop - at < SECTION_HEAD) return err_corrupt(c->path, at, "a section is cut short");
    const uint32_t kind = load32le(p + SECTION_KIND);
    const uint64_t len = load64le(p + SECTION_LENGTH);
    if (kind <= before) return err_corrupt(c->path, at, "sections do not ascend");
    before = kind;
    if (len > stop - at - SECTION_HEAD) return err_corrupt(c->path, at, "a section is cut short");
    at += SECTION_HEAD;
    const enum remixdb_status s = read_section(c, kind, load32le(p + SECTION_FLAGS), at, len);
    if (s != REMIXDB_OK) return s;
    at += len;
  }
  if (at != stop) return err_corrupt(c->path, at, "%zu bytes behind the sections", stop - at);
  return c->trees[TREE_UNNAMED].at ? REMIXDB_OK : err_corrupt(c->path, HEAD_SECTIONS, "has no section of partitions");
}

// Finds the partitions.
static enum remixdb_status read_layout(struct current *c) {
  if (current_prints(&c->head)) return read_sections(c);
  c->head.nr_parts[TREE_UNNAMED] = load32le(c->buf + HEAD_PARTS);
  c->trees[TREE_UNNAMED].at = HEAD_SIZE_OLD;
  c->trees[TREE_UNNAMED].end = c->len - SUM_SIZE;
  return REMIXDB_OK;
}

enum remixdb_status current_read(const struct env_dir *dir, struct current *out) {
  *out = (struct current){.buf = NULL};
  enum remixdb_status s = env_path(out->path, dir->path, FILES_CURRENT);
  if (s == REMIXDB_OK) s = read_bytes(dir, out);
  if (s != REMIXDB_OK) return s;
  if ((s = check_file(out)) == REMIXDB_OK) {
    get_head(out->buf, &out->head);
    s = check_head(out->path, &out->head);
  }
  if (s == REMIXDB_OK) s = read_layout(out);
  if (s != REMIXDB_OK) current_close(out);
  else current_tree(out, TREE_UNNAMED);
  return s;
}

void current_tree(struct current *c, uint32_t tree) {
  c->at = c->trees[tree].at;
  c->end = c->trees[tree].end;
}

enum remixdb_status current_check(const struct current *c) {
  for (uint32_t i = 0; i < TREES; i++) {
    const uint32_t nr = c->head.nr_parts[i];
    const bool there = c->trees[i].at != 0;
    if (there && (nr == 0 || nr > (c->trees[i].end - c->trees[i].at) / part_head(c->head.format)))
      return err_corrupt(c->path, HEAD_PARTS, "%u partitions cannot be", nr);
  }
  return REMIXDB_OK;
}

enum remixdb_status current_check_end(const struct current *c, uint32_t nr_young) {
  if (nr_young == 0 && c->head.format == 2)
    return err_corrupt(c->path, HEAD_FORMAT, "the format is that of a version with young views, but it has none");
  return c->at == c->end ? REMIXDB_OK : err_corrupt(c->path, c->at, "%zu bytes too many", c->end - c->at);
}

enum remixdb_status current_other_history(const char *path) {
  return err_corrupt(path, 0,
                     "the store needs another file of this number: this one is of another history of the store, such "
                     "as a copy that went on by itself");
}

void current_close(struct current *c) {
  mem_free(c->buf);
  c->buf = NULL;
}

// Checks the files that a partition names: no number is 0 or still free, and no table is named twice.
static enum remixdb_status check_files(const struct current *c, const struct current_part *p) {
  const uint64_t next_file = c->head.next_file;
  // A file with a free number would be overwritten by a later one.
  bool used = (p->nr == 0 || p->remix < next_file) && (p->young == 0 || p->young < next_file);
  for (uint32_t i = 0; i < p->nr; i++) {
    if (current_table(p, i) == 0) return err_corrupt(c->path, c->at, "names table 0");
    used = used && current_table(p, i) < next_file;
  }
  if (!used)
    return err_corrupt(c->path, c->at, "names a file whose number is free (they are from %llu on)",
                       (unsigned long long)next_file);
  // If two tables were one file, the merge of one would remove the other.
  for (uint32_t i = 0; i < p->nr; i++)
    for (uint32_t k = 0; k < i; k++)
      if (current_table(p, i) == current_table(p, k)) return err_corrupt(c->path, c->at, "names a table twice");
  return REMIXDB_OK;
}

// The parts of a partition's head that the format has.
static void get_part(const uint8_t *p, uint32_t format, struct current_part *out, uint64_t *nr_young_out) {
  *out = (struct current_part){.nr = load32le(p + PART_TABLES),
                               .remix = load64le(p + PART_REMIX),
                               .stride = format < 3 ? NAME_OLD : CURRENT_NAME};
  *nr_young_out = 0;
  if (format == 2) {
    out->young = load64le(p + PART_YOUNG_2);
    *nr_young_out = load64le(p + PART_YOUNG_TABLES_2);
  } else if (format > 2) {
    out->remix_print = load64le(p + PART_REMIX_PRINT);
    out->young = load64le(p + PART_YOUNG);
    out->young_print = load64le(p + PART_YOUNG_PRINT);
    *nr_young_out = load64le(p + PART_YOUNG_TABLES);
  }
}

enum remixdb_status current_next(struct current *c, struct current_part *out) {
  const uint32_t head = part_head(c->head.format);
  if (c->end - c->at < head) return err_corrupt(c->path, c->at, "a partition is cut short");
  const uint8_t *p = c->buf + c->at;
  const uint32_t alen = load32le(p + PART_ANCHOR);
  const size_t left = c->end - c->at - head;
  uint64_t nr_young;
  get_part(p, c->head.format, out, &nr_young);
  if (alen > KV_KEY_MAX || out->nr > CURRENT_RUNS_MAX || left < alen || (left - alen) / out->stride < out->nr ||
      (out->nr == 0) != (out->remix == 0) || (out->remix == 0 && out->remix_print != 0))
    return err_corrupt(c->path, c->at, "a partition of %u tables and an anchor of %u bytes cannot be", out->nr, alen);
  // Each view has its own tables.
  if ((out->young == 0) != (nr_young == 0) || nr_young > out->nr || (out->young == 0 && out->young_print != 0) ||
      (out->young && (nr_young == out->nr || out->young == out->remix)))
    return err_corrupt(c->path, c->at, "a young view of %llu of %u tables cannot be", (unsigned long long)nr_young,
                       out->nr);
  out->anchor = kref(p + head, alen);
  out->nr_young = (uint32_t)nr_young;
  out->tables = p + head + alen;
  const enum remixdb_status s = check_files(c, out);
  if (s != REMIXDB_OK) return s;
  c->at += head + alen + (size_t)out->nr * out->stride;
  return REMIXDB_OK;
}

// ---- writing

static uint8_t *put_section(uint8_t *p, uint32_t kind, uint64_t len) {
  store32le(p + SECTION_KIND, kind);
  store32le(p + SECTION_FLAGS, SECTION_MUST);
  store64le(p + SECTION_LENGTH, len);
  return p + SECTION_HEAD;
}

static uint8_t *put_head(uint8_t *buf, const struct current_head *h, uint32_t nr_sections) {
  memcpy(buf + HEAD_MAGIC, current_magic, sizeof(current_magic));
  store32le(buf + HEAD_FORMAT, CURRENT_FORMAT);
  store32le(buf + HEAD_SECTIONS, nr_sections);
  store64le(buf + HEAD_STORE_ID, h->store_id);
  store64le(buf + HEAD_NUMBER, h->number);
  store64le(buf + HEAD_NEXT_FILE, h->next_file);
  store64le(buf + HEAD_LOG_GEN, h->log_gen);
  store64le(buf + HEAD_LOG_SEQ, h->log_seq);
  store64le(buf + HEAD_LOG_PRINT, h->log_print);
  return buf + HEAD_SIZE;
}

static uint8_t *put_part(uint8_t *p, const struct current_part *part) {
  assert(part->stride == CURRENT_NAME);
  store32le(p + PART_ANCHOR, part->anchor.len);
  store32le(p + PART_TABLES, part->nr);
  store64le(p + PART_REMIX, part->remix);
  store64le(p + PART_REMIX_PRINT, part->remix_print);
  store64le(p + PART_YOUNG, part->young);
  store64le(p + PART_YOUNG_PRINT, part->young_print);
  store64le(p + PART_YOUNG_TABLES, part->nr_young);
  p += PART_HEAD;
  if (part->anchor.len) memcpy(p, part->anchor.ptr, part->anchor.len);
  p += part->anchor.len;
  if (part->nr) memcpy(p, part->tables, (size_t)part->nr * CURRENT_NAME);
  return p + (size_t)part->nr * CURRENT_NAME;
}

// Bytes of a section with its head; an empty section is left out.
static size_t section_size(size_t len) { return len ? SECTION_HEAD + len : 0; }

// Bytes of a section of partitions without its head; 0 for no partitions.
static size_t parts_size(const struct current_part *parts, uint32_t nr) {
  size_t len = nr ? PARTS_HEAD : 0;
  for (uint32_t i = 0; i < nr; i++) len += PART_HEAD + parts[i].anchor.len + (size_t)parts[i].nr * CURRENT_NAME;
  return len;
}

// Puts a section of partitions, if there are any.
static uint8_t *put_parts(uint8_t *p, uint32_t kind, const struct current_part *parts, uint32_t nr, size_t len) {
  if (nr == 0) return p;
  p = put_section(p, kind, len);
  store32le(p + PARTS_COUNT, nr);
  store32le(p + PARTS_ZERO, 0);
  p += PARTS_HEAD;
  for (uint32_t i = 0; i < nr; i++) p = put_part(p, &parts[i]);
  return p;
}

enum remixdb_status current_write(const struct env_dir *dir, const struct current_head *h, const struct files_ids *ids,
                                  const struct current_part *parts, const struct names *names) {
  const size_t origins_len = 8 * (size_t)ids->nr, values_len = CURRENT_VALUE * (size_t)h->nr_values;
  const size_t moves_len = CURRENT_MOVE * (size_t)h->nr_moves;
  const size_t names_len = names_size(names);
  size_t len = HEAD_SIZE + section_size(origins_len) + section_size(names_len) + section_size(values_len) + SUM_SIZE;
  size_t parts_len[TREES];
  uint32_t nr_sections = (ids->nr != 0) + (names_len != 0) + (h->nr_values != 0) + (h->erased != 0);
  if (h->erased) len += section_size(ERASED_SIZE);
  len += section_size(moves_len) + section_size(h->packs_len);
  nr_sections += (moves_len != 0) + (h->packs_len != 0);
  for (uint32_t tree = 0, at = 0; tree < TREES; at += h->nr_parts[tree++]) {
    parts_len[tree] = parts_size(parts + at, h->nr_parts[tree]);
    len += section_size(parts_len[tree]);
    nr_sections += parts_len[tree] != 0;
  }
  if (len > CURRENT_SIZE_MAX) {
    const char *dots, *const end = err_path(dir->path, &dots);
    return err_set(REMIXDB_NOMEM, "%s%s: a version of %zu bytes is too large", dots, end, len);
  }
  char path[ENV_PATH_MAX];
  enum remixdb_status s = env_path(path, dir->path, FILES_CURRENT);
  // No opening would take the file.
  if (s == REMIXDB_OK) s = check_head(path, h);
  if (s != REMIXDB_OK) return s;
  uint8_t *buf = mem_alloc(len);
  if (!buf) return REMIXDB_NOMEM;
  uint8_t *p = put_head(buf, h, nr_sections);
  if (ids->nr) p = put_section(p, KIND_ORIGINS, origins_len);
  for (uint32_t i = 0; i < ids->nr; i++, p += 8) store64le(p, ids->origins[i]);
  p = put_parts(p, KIND_PARTS, parts, h->nr_parts[TREE_UNNAMED], parts_len[TREE_UNNAMED]);
  p = put_parts(p, KIND_SPACES_PARTS, parts + h->nr_parts[TREE_UNNAMED], h->nr_parts[TREE_SPACES],
                parts_len[TREE_SPACES]);
  if (names) p = names_put(names, put_section(p, KIND_NAMES, names_len));
  if (h->erased) {
    store64le(put_section(p, KIND_ERASED, ERASED_SIZE), h->erased);
    p += section_size(ERASED_SIZE);
  }
  if (values_len) {
    p = put_section(p, KIND_VALUES, values_len);
    memcpy(p, h->values, values_len);
    p += values_len;
  }
  if (moves_len) {
    p = put_section(p, KIND_MOVES, moves_len);
    memcpy(p, h->moves, moves_len);
    p += moves_len;
  }
  if (h->packs_len) {
    p = put_section(p, KIND_PACKS, h->packs_len);
    memcpy(p, h->packs, h->packs_len);
    p += h->packs_len;
  }
  assert(p == buf + len - SUM_SIZE);
  store64le(p, hash64(buf, len - SUM_SIZE));
  s = env_replace_file(dir, FILES_CURRENT, buf, len);
  mem_free(buf);
  return s;
}
