// SPDX-License-Identifier: Apache-2.0
#include "view/current.h"

#include "remix/format.h"

// Offsets in the file, little-endian: the head, then the partitions, then a checksum of all before.
enum {
  HEAD_MAGIC = 0,       // u8[8]
  HEAD_FORMAT = 8,      // u32
  HEAD_PARTS = 12,      // u32, at least 1
  HEAD_STORE_ID = 16,   // u64
  HEAD_NUMBER = 24,     // u64
  HEAD_NEXT_FILE = 32,  // u64
  HEAD_LOG_GEN = 40,    // u64
  HEAD_LOG_SEQ = 48,    // u64
  HEAD_SIZE = 56,
  SUM_SIZE = 8,  // u64, XXH3-64
};
// Offsets in a partition: its head, then the anchor's bytes, then a u64 for each table.
enum {
  PART_ANCHOR = 0,         // u32, length
  PART_TABLES = 4,         // u32, how many
  PART_REMIX = 8,          // u64, 0 without tables
  PART_HEAD = 16,          // size in format 1
  PART_YOUNG = 16,         // u64, 0: none
  PART_YOUNG_TABLES = 24,  // u64, how many of the tables, the last ones, are the young view's
  PART_HEAD_YOUNG = 32,    // size in format 2
};
static const char current_magic[8] = {'R', 'M', 'X', 'D', 'B', 'V', 'E', 'R'};
#define CURRENT_FORMAT 2u
#define CURRENT_RUNS_MAX REMIX_RUNS_MAX
#define CURRENT_SIZE_MAX (1u << 30)    // a larger file is neither written nor read
#define CURRENT_SIZE_SMALL (1u << 20)  // a larger file is compared with the number of tables in the directory
#define CURRENT_HOLE (128u << 10)      // no part of the file has so many zeros: an anchor has fewer bytes
// The most bytes of a partition, its tables left out.
#define CURRENT_PART_MAX (PART_HEAD_YOUNG + REMIXDB_KV_MAX)

bool current_is_magic(const uint8_t *bytes) { return memcmp(bytes, current_magic, sizeof(current_magic)) == 0; }

static uint32_t part_head(uint32_t format) { return format == 1 ? PART_HEAD : PART_HEAD_YOUNG; }

static void get_head(const uint8_t *p, struct current_head *out) {
  *out = (struct current_head){.format = load32le(p + HEAD_FORMAT),
                               .nr_parts = load32le(p + HEAD_PARTS),
                               .store_id = load64le(p + HEAD_STORE_ID),
                               .number = load64le(p + HEAD_NUMBER),
                               .next_file = load64le(p + HEAD_NEXT_FILE),
                               .log_gen = load64le(p + HEAD_LOG_GEN),
                               .log_seq = load64le(p + HEAD_LOG_SEQ)};
}

static enum remixdb_status check_file(const struct current *c) {
  if (c->len < HEAD_SIZE + SUM_SIZE || !current_is_magic(c->buf + HEAD_MAGIC))
    return err_corrupt(c->path, 0, "not a version file");
  if (hash64(c->buf, c->len - SUM_SIZE) != load64le(c->buf + c->len - SUM_SIZE))
    return err_corrupt(c->path, c->len - SUM_SIZE, "checksum does not match");
  // Read after the checksum: a flipped bit is damage, not a later format.
  const uint32_t format = load32le(c->buf + HEAD_FORMAT);
  if (format == 0 || format > CURRENT_FORMAT)
    return err_set(REMIXDB_VERSION, "%s: format %u is not known to this library (it knows up to %u)", c->path, format,
                   CURRENT_FORMAT);
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

static bool count_table(void *arg, const char *name) {
  *(uint64_t *)arg += files_kind_of(name, NULL) == FILES_IS_TABLE;
  return true;
}

// A large file may be a hole that nobody has written, or claim partitions without any files. A partition that is not
// empty has a table. The bound counts the longest anchors, so a sound file stays far below it: also one that has lost
// most of its tables, which a repair reads.
static enum remixdb_status check_size(const struct env_dir *dir, const char *path, int fd) {
  uint64_t size, tables = 0;
  enum remixdb_status s = env_size(dir->env, fd, path, &size);
  if (s != REMIXDB_OK || size <= CURRENT_SIZE_SMALL || size > CURRENT_SIZE_MAX) return s;
  if (env_is_hollow(dir->env, fd, 0, size, CURRENT_HOLE))
    return err_corrupt(path, 0, "has a hole where partitions should be");
  if ((s = env_list(dir, count_table, &tables)) != REMIXDB_OK) return s;
  if (size <= HEAD_SIZE + SUM_SIZE + CURRENT_PART_MAX + tables * (CURRENT_PART_MAX + 8)) return REMIXDB_OK;
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

enum remixdb_status current_read(const struct env_dir *dir, struct current *out) {
  *out = (struct current){.buf = NULL};
  enum remixdb_status s = env_path(out->path, dir->path, FILES_CURRENT);
  if (s == REMIXDB_OK) s = read_bytes(dir, out);
  if (s != REMIXDB_OK) return s;
  if ((s = check_file(out)) == REMIXDB_OK) {
    get_head(out->buf, &out->head);
    s = check_head(out->path, &out->head);
  }
  if (s != REMIXDB_OK) {
    current_close(out);
    return s;
  }
  out->at = HEAD_SIZE;
  out->end = out->len - SUM_SIZE;
  return REMIXDB_OK;
}

enum remixdb_status current_check(const struct current *c) {
  const uint32_t nr = c->head.nr_parts;
  if (nr == 0 || nr > (c->end - HEAD_SIZE) / PART_HEAD)
    return err_corrupt(c->path, HEAD_PARTS, "%u partitions cannot be", nr);
  return REMIXDB_OK;
}

enum remixdb_status current_check_end(const struct current *c, uint32_t nr_young) {
  if (nr_young == 0 && c->head.format > 1)
    return err_corrupt(c->path, HEAD_FORMAT, "the format is that of a version with young views, but it has none");
  return c->at == c->end ? REMIXDB_OK : err_corrupt(c->path, c->at, "%zu bytes too many", c->end - c->at);
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

enum remixdb_status current_next(struct current *c, struct current_part *out) {
  const uint32_t head = part_head(c->head.format);
  if (c->end - c->at < head) return err_corrupt(c->path, c->at, "a partition is cut short");
  const uint8_t *p = c->buf + c->at;
  const uint32_t alen = load32le(p + PART_ANCHOR), nr = load32le(p + PART_TABLES);
  const uint64_t remix = load64le(p + PART_REMIX);
  const uint64_t young = head > PART_HEAD ? load64le(p + PART_YOUNG) : 0,
                 nr_young = head > PART_HEAD ? load64le(p + PART_YOUNG_TABLES) : 0;
  const size_t left = c->end - c->at - head;
  if (alen > REMIXDB_KV_MAX || nr > CURRENT_RUNS_MAX || left < alen || (left - alen) / 8 < nr ||
      (nr == 0) != (remix == 0))
    return err_corrupt(c->path, c->at, "a partition of %u tables and an anchor of %u bytes cannot be", nr, alen);
  // Each view has its own tables.
  if ((young == 0) != (nr_young == 0) || nr_young > nr || (young && (nr_young == nr || young == remix)))
    return err_corrupt(c->path, c->at, "a young view of %llu of %u tables cannot be", (unsigned long long)nr_young, nr);
  *out = (struct current_part){.anchor = kref(p + head, alen),
                               .remix = remix,
                               .young = young,
                               .nr = nr,
                               .nr_young = (uint32_t)nr_young,
                               .tables = p + head + alen};
  const enum remixdb_status s = check_files(c, out);
  if (s != REMIXDB_OK) return s;
  c->at += head + alen + (size_t)nr * 8;
  return REMIXDB_OK;
}

enum remixdb_status current_write(const struct env_dir *dir, const struct current_head *h,
                                  const struct current_part *parts) {
  const uint32_t head = part_head(h->format);
  size_t len = HEAD_SIZE + SUM_SIZE;
  for (uint32_t i = 0; i < h->nr_parts; i++) len += head + parts[i].anchor.len + (size_t)parts[i].nr * 8;
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
  memcpy(buf + HEAD_MAGIC, current_magic, sizeof(current_magic));
  store32le(buf + HEAD_FORMAT, h->format);
  store32le(buf + HEAD_PARTS, h->nr_parts);
  store64le(buf + HEAD_STORE_ID, h->store_id);
  store64le(buf + HEAD_NUMBER, h->number);
  store64le(buf + HEAD_NEXT_FILE, h->next_file);
  store64le(buf + HEAD_LOG_GEN, h->log_gen);
  store64le(buf + HEAD_LOG_SEQ, h->log_seq);
  uint8_t *p = buf + HEAD_SIZE;
  for (uint32_t i = 0; i < h->nr_parts; i++) {
    const struct current_part *const part = &parts[i];
    store32le(p + PART_ANCHOR, part->anchor.len);
    store32le(p + PART_TABLES, part->nr);
    store64le(p + PART_REMIX, part->remix);
    if (head > PART_HEAD) {
      store64le(p + PART_YOUNG, part->young);
      store64le(p + PART_YOUNG_TABLES, part->nr_young);
    }
    p += head;
    if (part->anchor.len) memcpy(p, part->anchor.ptr, part->anchor.len);
    p += part->anchor.len;
    if (part->nr) memcpy(p, part->tables, (size_t)part->nr * 8);
    p += (size_t)part->nr * 8;
  }
  store64le(p, hash64(buf, len - SUM_SIZE));
  s = env_replace_file(dir, FILES_CURRENT, buf, len);
  mem_free(buf);
  return s;
}
