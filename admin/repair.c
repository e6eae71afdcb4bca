// SPDX-License-Identifier: Apache-2.0
#include "admin/repair.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/dirlock.h"
#include "admin/witness.h"
#include "table/format.h"
#include "xdb.h"
#include "store/syncer.h"

#define MEMTABLE_MB 64u
#define LOST_MAX 1000u
#define LOST_DIR "lost"
#define REPORT_FILE "REPORT"

struct repair {
  struct env *env;
  struct env_dir dir;           // the store's, held
  struct sst_ctx ctx;           // of the damaged tables
  struct blkio io;
  struct fdpool *fds;
  struct epoch epoch;
  struct epoch_slot slot;
  struct xdb *x;                // the new store
  struct xdb_ref *r;
  bool put_failed;              // what failed was a write to it
  struct repair_report report;
  char *text;                   // the report's
  size_t text_len, text_cap;
};

// A line of the report. One that memory is missing for is left out: the figures still count it.
static void note(struct repair *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct repair *p, const char *fmt, ...) {
  char line[ERR_MSG_MAX + 256];
  va_list ap;
  va_start(ap, fmt);
  const int n = vsnprintf(line, sizeof(line) - 1, fmt, ap);
  va_end(ap);
  if (n < 0) return;
  size_t len = (size_t)n < sizeof(line) - 2 ? (size_t)n : sizeof(line) - 2;
  line[len++] = '\n';
  if (p->text_len + len > p->text_cap) {
    const size_t cap = p->text_cap ? p->text_cap * 2 : 4096;
    char *grown = mem_realloc(p->text, cap);
    if (!grown) return;
    p->text = grown;
    p->text_cap = cap;
  }
  memcpy(p->text + p->text_len, line, len);
  p->text_len += len;
}

// ---- moving

static enum remixdb_status rename_in(struct repair *p, const char *from, const char *to) {
  const enum remixdb_status s = env_rename(&p->dir, from, &p->dir, to);
  return s == REMIXDB_OK ? env_sync_dir(&p->dir) : s;
}

// Opens a directory that is there as long as nobody interferes.
static enum remixdb_status enter(const struct env_dir *at, const char *name, struct env_dir *out) {
  const enum remixdb_status s = env_dir_open(at, name, out);
  return s == REMIXDB_NOTFOUND ? err_set(REMIXDB_IO, "%s: was removed meanwhile", out->path) : s;
}

// ---- reading what is left

static enum remixdb_status keep(struct repair *p, const struct kv_rec *rec) {
  p->report.records++;
  const enum remixdb_status s = xdb_put(p->r, kref(rec->key, rec->klen), rec->val, rec->vlen, rec->tomb);
  p->put_failed = s != REMIXDB_OK;
  return s;
}

static enum remixdb_status keep_logged(void *arg, uint64_t seq, const struct kv_rec *rec) {
  (void)seq;
  return keep(arg, rec);
}

// For messages: the beginning of a key, made readable.
static const char *readable(struct kref key, char *buf, size_t cap) {
  size_t n = 0;
  for (uint32_t i = 0; i < key.len && n + 5 < cap; i++) {
    const uint8_t c = key.ptr[i];
    n += (size_t)snprintf(buf + n, cap - n, c >= 0x20 && c < 0x7f && c != '\\' ? "%c" : "\\x%02x", c);
  }
  buf[n] = '\0';
  return buf;
}

// A table whose metadata is whole: block by block; those that are not are left out. Returns what keeping a record failed with.
static enum remixdb_status keep_table(struct repair *p, struct sst *t) {
  struct sst_hold h = {0};
  char last[160] = "", text[160];
  uint64_t lost = 0;
  bool gap = false;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t block = 0; block < t->nr_pages && s == REMIXDB_OK; block += sst_block_pages(t, block)) {
    for (uint32_t i = 0; i < t->nr_recs[block] && s == REMIXDB_OK; i++) {
      struct kv_rec rec;
      epoch_enter(&p->epoch, &p->slot);
      const enum remixdb_status read = sst_read(t, sst_pos_make(block, i), false, &h, &rec);
      if (read == REMIXDB_OK) {
        s = keep(p, &rec);
        if (gap) note(p, "  ... before key %s", readable(kref(rec.key, rec.klen), text, sizeof(text)));
        gap = false;
        if (i + 1u == t->nr_recs[block]) (void)readable(kref(rec.key, rec.klen), last, sizeof(last));
      }
      epoch_exit(&p->slot);
      if (read == REMIXDB_NOMEM) s = read;
      if (read == REMIXDB_OK || s != REMIXDB_OK) continue;
      note(p, "%s", err_msg());
      if (!gap) note(p, "  %u records lost after key %s ...", t->nr_recs[block], last);
      gap = true;
      lost++;
      break;  // the whole block is
    }
  }
  sst_hold_fini(&h);
  p->report.blocks_lost += lost;
  if (lost) p->report.tables_damaged++;
  else p->report.tables++;
  return s;
}

// The block that a page may begin, as far as it is there: as much as the longest one takes. Where a sector cannot be read, no page before it is to be lost for that: the page
// alone then, and the others that it says are its block's.
static enum remixdb_status read_block(struct repair *p, int fd, const char *path, uint8_t *buf, uint64_t page, size_t *nr_out) {
  const uint64_t off = page * BLOCK_PAGE;
  enum remixdb_status s = env_read_upto(p->env, fd, path, buf, BLOCK_PAGE * BLOCK_PAGES_MAX, off, nr_out);
  if (s != REMIXDB_IO) return s;
  s = env_read_upto(p->env, fd, path, buf, BLOCK_PAGE, off, nr_out);
  if (s != REMIXDB_OK || *nr_out < BLOCK_PAGE || buf[8] <= 1 || buf[8] > BLOCK_PAGES_MAX) return s;
  size_t more;
  s = env_read_upto(p->env, fd, path, buf + BLOCK_PAGE, (buf[8] - 1u) * BLOCK_PAGE, off + BLOCK_PAGE, &more);
  *nr_out += more;
  return s;
}

// A table whose metadata is damaged: blocks say themselves how long they are and how many records they have, and their checksums are of their places. A
// compressed table has neither without its metadata.
static enum remixdb_status keep_pages(struct repair *p, uint64_t number) {
  char name[32], path[ENV_PATH_MAX];
  uint64_t size = 0, blocks = 0, bad = 0;
  int fd = -1;
  files_table_name(name, number);
  enum remixdb_status s = env_path(path, p->dir.path, name);
  if (s == REMIXDB_OK) s = env_open(&p->dir, name, ENV_READ, &fd);
  if (s == REMIXDB_NOTFOUND) {
    note(p, "%s: is missing", path);
    p->report.tables_lost++;
    return REMIXDB_OK;
  }
  if (s == REMIXDB_OK) s = env_size(p->env, fd, path, &size);
  if (s == REMIXDB_IO) {  // it cannot be read; the others can, and the log
    note(p, "%s", err_msg());
    p->report.tables_lost++;
    env_close_quiet(p->env, fd);
    return REMIXDB_OK;
  }
  uint8_t *buf = mem_alloc_aligned(BLOCK_PAGE, BLOCK_PAGE * BLOCK_PAGES_MAX);
  if (s == REMIXDB_OK && !buf) s = REMIXDB_NOMEM;
  for (uint64_t page = 0; s == REMIXDB_OK && (page + 1) * BLOCK_PAGE <= size;) {
    size_t nr;
    uint32_t step = 1;
    const enum remixdb_status read = read_block(p, fd, path, buf, page, &nr);
    if (read == REMIXDB_OK) {
      const uint32_t pages = buf[8], count = buf[9];
      const bool possible = pages >= 1 && pages <= BLOCK_PAGES_MAX && count >= 1 && (size_t)pages * BLOCK_PAGE <= nr && page <= UINT16_MAX;
      if (possible && block_verify(buf, pages, count, number, (uint32_t)page, path, page * BLOCK_PAGE) == REMIXDB_OK) {
        for (uint32_t i = 0; i < count && s == REMIXDB_OK; i++) {
          struct kv_rec rec;
          block_record(buf, i, &rec);
          s = keep(p, &rec);
        }
        blocks++;
        step = pages;
      } else {
        bad++;
      }
    } else if (read == REMIXDB_NOMEM) {
      s = read;
    } else {
      bad++;
    }
    page += step;
  }
  mem_free(buf);
  env_close_quiet(p->env, fd);
  if (s != REMIXDB_OK) return s;
  note(p, "%s: %" PRIu64 " blocks were read without the metadata; %" PRIu64 " other pages (of blocks, compressed keys or metadata) were not", path, blocks, bad);
  if (blocks) p->report.tables_damaged++;
  else p->report.tables_lost++;
  return s;
}

static enum remixdb_status keep_number(struct repair *p, uint64_t number) {
  struct sst *t;
  enum remixdb_status s = sst_open(&p->ctx, number, &t);
  if (s == REMIXDB_OK) {
    s = keep_table(p, t);
    sst_unref(t);
    return s;
  }
  if (s == REMIXDB_NOMEM || s == REMIXDB_VERSION) return s;  // a newer library's: nothing is damaged
  note(p, "%s", err_msg());
  return keep_pages(p, number);
}

static int cmp_u64(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

// The id that the footer of a table in the list says. REMIXDB_NOTFOUND: none does.
static enum remixdb_status id_of_tables(struct repair *p, const struct files_entry *list, size_t nr, uint64_t *id_out) {
  for (size_t i = 0; i < nr; i++) {
    char path[ENV_PATH_MAX];
    uint8_t footer[FORMAT_SST_FOOTER];
    struct format_sst_footer f;
    uint64_t size;
    int fd;
    if (list[i].kind != FILES_IS_TABLE || env_path(path, p->dir.path, list[i].name) != REMIXDB_OK) continue;
    enum remixdb_status s = env_open(&p->dir, list[i].name, ENV_READ, &fd);
    if (s == REMIXDB_NOMEM) return s;
    if (s != REMIXDB_OK) continue;
    s = env_size(p->env, fd, path, &size);
    if (s == REMIXDB_OK && size >= sizeof(footer)) s = env_read(p->env, fd, path, footer, sizeof(footer), size - sizeof(footer));
    else s = REMIXDB_CORRUPT;
    env_close_quiet(p->env, fd);
    if (s != REMIXDB_OK || format_sst_footer_get(footer, size, path, &f) != REMIXDB_OK) continue;
    *id_out = f.store_id;
    return REMIXDB_OK;
  }
  return REMIXDB_NOTFOUND;
}

// Which tables there are, oldest first, and whose.
static enum remixdb_status find_tables(struct repair *p, const struct files_entry *list, size_t nr, struct version_names *v) {
  enum remixdb_status s = version_list(&p->dir, v);
  if (s == REMIXDB_OK || s == REMIXDB_NOMEM) return s;
  if (s == REMIXDB_VERSION) return s;  // a newer library's: nothing is damaged
  if (s == REMIXDB_NOTFOUND) note(p, FILES_CURRENT ": is missing");
  else note(p, "%s", err_msg());
  note(p, "  all tables in the directory are taken, in order of their numbers; keys whose tombstones were compacted away may come back");
  p->report.version_lost = true;
  *v = (struct version_names){0};
  if (!(v->tables = mem_alloc((nr ? nr : 1) * sizeof(uint64_t)))) return REMIXDB_NOMEM;
  for (size_t i = 0; i < nr; i++)
    if (list[i].kind == FILES_IS_TABLE) v->tables[v->nr_tables++] = list[i].number;
  qsort(v->tables, v->nr_tables, sizeof(uint64_t), cmp_u64);
  s = wal_store_id(&p->dir, &v->store_id);
  if (s == REMIXDB_NOTFOUND) s = id_of_tables(p, list, nr, &v->store_id);
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;  // blocks alone can be read without it
}

// Fills the new store.
static enum remixdb_status collect(struct repair *p, const struct files_entry *list, size_t nr) {
  struct version_names v = {0};
  enum remixdb_status s = find_tables(p, list, nr, &v);
  p->ctx.store_id = v.store_id;
  for (size_t i = 0; i < v.nr_tables && s == REMIXDB_OK; i++) s = keep_number(p, v.tables[i]);
  mem_free(v.tables);
  if (s != REMIXDB_OK) return s;
  struct wal_salvage log = {0};
  const struct wal_opts wo = {.dir = &p->dir, .store_id = v.store_id, .read_only = true};
  s = wal_read_damaged(&wo, p->report.version_lost ? 0 : v.log_gen, keep_logged, p, &log);
  if (s == REMIXDB_IO && !p->put_failed) {  // a file of the old log cannot be read
    note(p, "%s", err_msg());
    s = REMIXDB_OK;
  }
  p->report.log_records = log.nr_records;
  p->report.log_bytes_lost = log.lost_bytes;
  if (log.lost_bytes) note(p, "log: %" PRIu64 " bytes between whole frames are lost", log.lost_bytes);
  return s;
}

static enum remixdb_status build(struct repair *p, const struct files_entry *list, size_t nr) {
  struct remixdb_opts o = {.size = sizeof(o), .memtable_mb = MEMTABLE_MB, .ckeys = true, .tags = true, .create = true, .error_if_exists = true};
  enum remixdb_status s = xdb_open_at(&p->dir, FILES_REPAIR_NEW, &o, &p->x);
  if (s != REMIXDB_OK) return s;
  p->x->leave_log = true;
  s = xdb_ref(p->x, &p->r);
  if (s == REMIXDB_OK) s = collect(p, list, nr);
  if (s == REMIXDB_OK) s = xdb_sync(p->r);
  struct err_saved why;
  err_save(&why, s);
  xdb_unref(p->r);
  const enum remixdb_status closed = xdb_close(p->x);
  p->x = NULL;
  p->r = NULL;
  return s == REMIXDB_OK ? closed : err_raise(&why);
}

// ---- taking the old files' place

static enum remixdb_status move_aside(struct repair *p, const struct env_dir *lost, const struct files_entry *list, size_t nr, bool current) {
  enum remixdb_status s = REMIXDB_OK;
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++)
    if (list[i].kind != FILES_IS_LOCK && (list[i].kind == FILES_IS_CURRENT) == current) s = env_rename(&p->dir, list[i].name, lost, list[i].name);
  return s == REMIXDB_OK ? env_sync_dir(&p->dir) : s;
}

// Gives the directory of what was put aside, which is in repair.done, its name in the store's.
static enum remixdb_status name_lost(struct repair *p, const struct env_dir *done) {
  for (uint32_t i = 1; i <= LOST_MAX; i++) {
    char name[32];
    struct env_stat st;
    (void)snprintf(name, sizeof(name), "lost.%u", i);
    enum remixdb_status s = env_stat(&p->dir, name, &st);
    if (s == REMIXDB_OK) continue;
    if (s == REMIXDB_NOTFOUND) s = env_rename(done, LOST_DIR, &p->dir, name);
    return s == REMIXDB_OK ? env_sync_dir(&p->dir) : s;
  }
  return err_set(REMIXDB_EXISTS, "%s: holds %u directories of earlier repairs, lost.1 and on: remove some, then call it again", p->dir.path, LOST_MAX);
}

// All of the old store goes into `lost`, CURRENT first, LOCK stays.
static enum remixdb_status fill_lost(struct repair *p, const struct env_dir *lost) {
  struct files_entry *list;
  size_t nr;
  enum remixdb_status s = files_list(&p->dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  s = move_aside(p, lost, list, nr, true);
  if (s == REMIXDB_OK) s = move_aside(p, lost, list, nr, false);
  mem_free(list);
  return s == REMIXDB_OK ? env_sync_dir(lost) : s;
}

// repair.done is there: what it replaces goes aside.
static enum remixdb_status put_aside(struct repair *p) {
  struct env_dir done, lost = {.fd = -1};
  enum remixdb_status s = enter(&p->dir, FILES_REPAIR_DONE, &done);
  if (s == REMIXDB_OK) {
    s = env_dir_open(&done, LOST_DIR, &lost);
    if (s == REMIXDB_OK) s = fill_lost(p, &lost);
    if (s == REMIXDB_OK) s = name_lost(p, &done);
    if (s == REMIXDB_NOTFOUND) s = REMIXDB_OK;  // it has its name already
  }
  env_dir_close(&lost);
  env_dir_close(&done);
  return s == REMIXDB_OK ? rename_in(p, FILES_REPAIR_DONE, FILES_REPAIR_IN) : s;
}

// The files of repair.in become the store's, CURRENT last.
static enum remixdb_status move_files(struct repair *p, const struct env_dir *in) {
  struct files_entry *list;
  size_t nr;
  enum remixdb_status s = files_list(in, &list, &nr);
  if (s != REMIXDB_OK) return s;
  bool current = false;
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    if (list[i].kind == FILES_IS_CURRENT) current = true;
    else if (files_holds_data(list[i].kind)) s = env_rename(in, list[i].name, &p->dir, list[i].name);
    else s = env_unlink(in, list[i].name);
  }
  mem_free(list);
  if (s == REMIXDB_OK) s = env_sync_dir(&p->dir);
  if (s == REMIXDB_OK && current) s = env_rename(in, FILES_CURRENT, &p->dir, FILES_CURRENT);
  if (s == REMIXDB_OK) s = env_sync_dir(&p->dir);
  return s == REMIXDB_OK ? env_sync_dir(in) : s;  // what left it must not come back
}

// repair.in is there.
static enum remixdb_status move_in(struct repair *p) {
  struct env_dir in;
  enum remixdb_status s = enter(&p->dir, FILES_REPAIR_IN, &in);
  if (s == REMIXDB_OK) s = move_files(p, &in);
  env_dir_close(&in);
  if (s == REMIXDB_OK) s = env_rmdir(&p->dir, FILES_REPAIR_IN);
  return s == REMIXDB_OK ? env_sync_dir(&p->dir) : s;
}

// Ends what was decided, from wherever it stands.
static enum remixdb_status finish(struct repair *p) {
  struct env_stat st;
  enum remixdb_status s = env_stat(&p->dir, FILES_REPAIR_IN, &st);
  if (s == REMIXDB_NOTFOUND) s = put_aside(p);
  return s == REMIXDB_OK ? move_in(p) : s;
}

// ---- all of it

static enum remixdb_status write_report(struct repair *p) {
  struct env_dir new_dir, lost = {.fd = -1};
  const struct repair_report *r = &p->report;
  note(p, "%" PRIu64 " records kept: %u tables whole, %u in part (%" PRIu64 " blocks lost), %u lost; %" PRIu64 " records of the log", r->records, r->tables,
       r->tables_damaged, r->blocks_lost, r->tables_lost, r->log_records);
  enum remixdb_status s = enter(&p->dir, FILES_REPAIR_NEW, &new_dir);
  if (s == REMIXDB_OK) s = env_mkdir(&new_dir, LOST_DIR);
  if (s == REMIXDB_OK) s = enter(&new_dir, LOST_DIR, &lost);
  if (s == REMIXDB_OK) s = env_replace_file(&lost, REPORT_FILE, p->text ? p->text : "", p->text_len);
  if (s == REMIXDB_OK) s = env_sync_dir(&new_dir);
  env_dir_close(&lost);
  env_dir_close(&new_dir);
  return s;
}

// Nothing names what was made until now: it goes, with the room that it took. What fails here is left for the next repair to throw away. Returns the first failure.
static enum remixdb_status give_up(struct repair *p, enum remixdb_status s) {
  struct env_dir new_dir, lost = {.fd = -1};
  struct err_saved why;
  err_save(&why, s);
  enum remixdb_status gone = env_dir_open(&p->dir, FILES_REPAIR_NEW, &new_dir);
  if (gone == REMIXDB_OK) gone = env_dir_open(&new_dir, LOST_DIR, &lost);
  if (gone == REMIXDB_OK) gone = env_unlink(&lost, REPORT_FILE);
  if (gone == REMIXDB_OK) gone = env_rmdir(&new_dir, LOST_DIR);
  if (gone == REMIXDB_OK || gone == REMIXDB_NOTFOUND) gone = files_remove_dir(&p->dir, FILES_REPAIR_NEW);
  (void)gone;
  env_dir_close(&lost);
  env_dir_close(&new_dir);
  return err_raise(&why);
}

static enum remixdb_status repair_locked(struct repair *p) {
  struct files_entry *list;
  size_t nr;
  bool pending;
  enum remixdb_status s = files_repair_pending(&p->dir, &pending);
  if (s != REMIXDB_OK) return s;
  if (pending) return finish(p);
  if ((s = files_remove_dir(&p->dir, FILES_REPAIR_NEW)) != REMIXDB_OK) return s;
  if ((s = files_list(&p->dir, &list, &nr)) != REMIXDB_OK) return s;
  s = build(p, list, nr);
  mem_free(list);
  if (s == REMIXDB_OK) s = write_report(p);
  if (s == REMIXDB_OK) s = rename_in(p, FILES_REPAIR_NEW, FILES_REPAIR_DONE);
  // where the new name may not be durable it is there all the same, and nothing is at the old one
  return s == REMIXDB_OK ? finish(p) : give_up(p, s);
}

// REMIXDB_NOTFOUND: nothing shows that the directory is a store's, or what does is what a destroyed one or a checkpoint leaves.
static enum remixdb_status check_store(const struct env_dir *dir) {
  struct files_entry *list;
  size_t nr;
  const char *witness;
  enum remixdb_status s = files_list(dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  s = witness_find(dir, list, nr, &witness);
  static const char *const nothing[] = {FILES_LOCK, FILES_REPAIR_NEW, FILES_CHECKPOINTING};
  for (size_t i = 0; i < sizeof(nothing) / sizeof(nothing[0]) && s == REMIXDB_OK; i++)
    if (strcmp(witness, nothing[i]) == 0) s = REMIXDB_NOTFOUND;
  mem_free(list);
  return s;
}

// Of a store whose directory p holds, and has locked.
static enum remixdb_status repair_held(struct repair *p) {
  struct env *const env = p->env;
  enum remixdb_status s = check_store(&p->dir);
  if (s != REMIXDB_OK) return s;  // another has destroyed it meanwhile
  epoch_init(&p->epoch);
  epoch_join(&p->epoch, &p->slot);
  blkio_init(&p->io, env, BLKIO_SYNC);
  if ((s = fdpool_create(env, 16, &p->fds)) == REMIXDB_OK) {
    p->ctx = (struct sst_ctx){.env = env, .dir = &p->dir, .io = &p->io, .fds = p->fds};
    s = repair_locked(p);
  }
  fdpool_destroy(p->fds);
  epoch_leave(&p->epoch, &p->slot);
  epoch_fini(&p->epoch);
  mem_free(p->text);
  return s;
}

enum remixdb_status repair_store(struct env *env, const char *path, struct repair_report *report_out) {
  struct env_stat st;
  struct dirlock lock = {0};
  enum remixdb_status s = env_stat(ENV_PATHS(env), path, &st);
  if (s == REMIXDB_OK && !st.is_dir) s = REMIXDB_NOTFOUND;
  if (s != REMIXDB_OK) return s;
  struct repair *p = mem_alloc_aligned(CACHE_LINE, align_up(sizeof(*p), CACHE_LINE));
  if (!p) return REMIXDB_NOMEM;
  memset(p, 0, sizeof(*p));
  p->env = env;
  s = env_dir_open(ENV_PATHS(env), path, &p->dir);
  if (s == REMIXDB_OK) s = check_store(&p->dir);
  if (s == REMIXDB_OK) s = dirlock_take(&p->dir, true, &lock);
  if (s == REMIXDB_OK) s = repair_held(p);
  struct err_saved why;
  err_save(&why, s);
  if (report_out && dirlock_held(&lock)) *report_out = p->report;
  dirlock_give(&lock);
  env_dir_close(&p->dir);
  mem_free(p);
  return err_raise(&why);
}
