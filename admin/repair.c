// SPDX-License-Identifier: Apache-2.0
#include "admin/repair.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "admin/repair_state.h"
#include "base/dirlock.h"
#include "admin/witness.h"
#include "store/flush.h"
#include "store/install.h"
#include "store/syncer.h"

#define MEMTABLE_MB 64u
#define LOST_MAX 1000u
#define LOST_DIR "lost"
#define REPORT_FILE "REPORT"
#define REPORT_FIRST "repair %016" PRIx64 ": %s\n"  // the new store's id, and one of the two below
#define REPORT_LOST "LOST, see below  "
#define REPORT_WHOLE "nothing is lost  "
#define REPORT_HEAD (7u + 16 + 2 + sizeof(REPORT_LOST) - 1 + 1)  // bytes of the first line

// ---- directories

static enum remixdb_status rename_in(struct repair *p, const char *from, const char *to) {
  const enum remixdb_status s = env_rename(&p->dir, from, &p->dir, to);
  return s == REMIXDB_OK ? env_sync_dir(&p->dir) : s;
}

// Opens a directory that must exist.
static enum remixdb_status enter(const struct env_dir *at, const char *name, struct env_dir *out) {
  const enum remixdb_status s = env_dir_open(at, name, out);
  return s == REMIXDB_NOTFOUND ? err_set(REMIXDB_IO, "%s: was removed meanwhile", out->path) : s;
}

// ---- reading the damaged files

static int cmp_u64(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

// Finds the store's id in the footers of the tables in the list: that of the newest table, because the older ones of a
// checkpoint have the id of its source. Fails with REMIXDB_NOTFOUND if no footer can be read.
static enum remixdb_status id_of_tables(struct repair *p, const struct files_entry *list, size_t nr, uint64_t *id_out) {
  uint64_t newest = 0;
  for (size_t i = 0; i < nr; i++) {
    char path[ENV_PATH_MAX];
    uint8_t footer[FORMAT_SST_FOOTER];
    struct format_sst_footer f;
    uint64_t size;
    int fd;
    if (list[i].kind != FILES_IS_TABLE || list[i].number < newest ||
        env_path(path, p->dir.path, list[i].name) != REMIXDB_OK)
      continue;
    enum remixdb_status s = env_open(&p->dir, list[i].name, ENV_READ, &fd);
    if (s == REMIXDB_NOMEM) return s;
    if (s != REMIXDB_OK) continue;
    s = env_size(p->env, fd, path, &size);
    if (s == REMIXDB_OK && size >= sizeof(footer))
      s = env_read(p->env, fd, path, footer, sizeof(footer), size - sizeof(footer));
    else s = REMIXDB_CORRUPT;
    env_close_quiet(p->env, fd);
    if (s != REMIXDB_OK || format_sst_footer_get(footer, size, path, &f) != REMIXDB_OK) continue;
    *id_out = f.store_id;
    newest = list[i].number;
  }
  repair_packs_id(p, &newest, id_out);
  return newest ? REMIXDB_OK : REMIXDB_NOTFOUND;
}

// Finds the tables, from the oldest to the newest, and the store's id.
static enum remixdb_status find_tables(struct repair *p, const struct files_entry *list, size_t nr,
                                       struct version_names *v) {
  enum remixdb_status s = version_list(&p->dir, v);
  if (s == REMIXDB_OK) return repair_packs_named(p, v);
  if (s == REMIXDB_NOMEM || s == REMIXDB_INVALID) return s;
  if (s == REMIXDB_VERSION) return s;  // a newer library wrote it: it is not damaged
  if (s == REMIXDB_NOTFOUND) repair_lose(p, 0, true, "%s/" FILES_CURRENT ": is missing", p->dir.path);
  else repair_lose(p, 0, true, "%s", err_msg());
  repair_note(
      p, "  all tables in the directory are used, from the oldest to the newest; deleted keys may come back if their "
         "tombstones were compacted away");
  p->report.version_lost = true;
  *v = (struct version_names){0};
  uint64_t packed = 0;
  if ((s = repair_packs_search(p, list, nr, &packed)) != REMIXDB_OK) return s;
  if (!(v->tables = mem_array(nr + packed ? nr + packed : 1, sizeof(uint64_t), 0))) return REMIXDB_NOMEM;
  for (size_t i = 0; i < nr; i++)
    if (list[i].kind == FILES_IS_TABLE) v->tables[v->nr_tables++] = list[i].number;
  repair_packs_tables(p, v);
  qsort(v->tables, v->nr_tables, sizeof(uint64_t), cmp_u64);
  s = wal_read_ids(&p->dir, &p->ids);
  v->store_id = p->ids.own;
  if (s == REMIXDB_NOTFOUND) s = id_of_tables(p, list, nr, &v->store_id);
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;  // single blocks can be read without the id
}

// Fills the new store.
static enum remixdb_status collect(struct repair *p, const struct files_entry *list, size_t nr) {
  struct version_names v = {0};
  enum remixdb_status s = find_tables(p, list, nr, &v);
  p->ctx.store_id = v.store_id;
  p->ctx.origins = p->report.version_lost ? p->ids.origins : v.origins;
  p->ctx.nr_origins = p->report.version_lost ? p->ids.nr_origins : v.nr_origins;
  if (s == REMIXDB_OK && p->report.version_lost) s = repair_ingests(p, list, nr, &v);
  if (s == REMIXDB_OK && p->report.version_lost) s = repair_order(p, v.tables, v.nr_tables);
  if (s == REMIXDB_OK) s = memtable_spaces(xdb_super(p->x)->active);
  if (s == REMIXDB_OK && v.names) s = install_names(p->x, v.names);
  struct repair_erased erased = {.nr = 0};
  p->current = p->report.version_lost ? NULL : &v;
  p->of_table = true;
  for (size_t i = 0; i < v.nr_tables && s == REMIXDB_OK; i++) {
    const struct version_view *const view = v.views ? &v.views[i] : NULL;
    if (view && view->first == i) {
      repair_erased_fini(&erased);
      s = repair_erased_find(p, &v, view, &erased);
    }
    const size_t run = view ? i - view->first : 0;
    if (s == REMIXDB_OK)
      s = repair_table(p, v.tables[i], v.printed ? &v.prints[i] : NULL, !p->report.version_lost && i >= v.nr_unnamed,
                       run < erased.nr ? erased.bits[run] : NULL);
  }
  repair_erased_fini(&erased);
  p->of_table = false;
  if (s == REMIXDB_OK) s = repair_log(p, &v);
  p->current = NULL;
  version_names_fini(&v);
  return s;
}

// Returns a file number above those of all old files, so that a file in lost.N is never taken for one of the new store.
// Ignores numbers that no store reaches: anybody can give a file such a name.
static uint64_t number_above(const struct files_entry *list, size_t nr) {
  uint64_t above = 1;
  for (size_t i = 0; i < nr; i++) {
    if (files_is_numbered(list[i].kind) && list[i].number >= above && list[i].number < UINT32_MAX)
      above = list[i].number + 1;
  }
  return above;
}

static enum remixdb_status close_new(struct repair *p) {
  xdb_unref(p->r);
  const enum remixdb_status s = xdb_close(p->x);
  p->x = NULL;
  p->r = NULL;
  return s;
}

static enum remixdb_status build(struct repair *p, const struct files_entry *list, size_t nr) {
  struct remixdb_opts o = {.size = sizeof(o),
                           .memtable_mb = MEMTABLE_MB,
                           .ckeys = true,
                           .tags = true,
                           .create = true,
                           .error_if_exists = true};
  enum remixdb_status s = xdb_open_at(&p->dir, FILES_REPAIR_NEW, &o, &p->x);
  if (s != REMIXDB_OK) return s;
  p->x->leave_log = true;  // the flush below empties the log
  const uint64_t above = number_above(list, nr);
  if (above > atomic_load_explicit(&p->x->compact.next_file, memory_order_relaxed))
    atomic_store_explicit(&p->x->compact.next_file, above, memory_order_relaxed);
  p->new_id = p->x->store_id;
  s = xdb_ref(p->x, &p->r);
  if (s == REMIXDB_OK) s = collect(p, list, nr);
  if (s == REMIXDB_OK) s = xdb_flush(p->x);  // the next opening has nothing to replay
  if (s == REMIXDB_OK) s = xdb_sync(p->r);
  if (s == REMIXDB_OK) return close_new(p);
  IGNORED(close_new(p), "the new store is thrown away");
  return s;
}

// ---- the new files take the place of the old ones

// Moves CURRENT to `lost`, or all other listed files except RESERVE and LOCK.
static enum remixdb_status move_aside(struct repair *p, const struct env_dir *lost, const struct files_entry *list,
                                      size_t nr, bool current) {
  enum remixdb_status s = REMIXDB_OK;
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++)
    if (list[i].kind != FILES_IS_RESERVE && list[i].kind != FILES_IS_LOCK &&
        (list[i].kind == FILES_IS_CURRENT) == current)
      s = env_rename(&p->dir, list[i].name, lost, list[i].name);
  return s == REMIXDB_OK ? env_sync_dir(&p->dir) : s;
}

// Moves the directory of the old files from repair.done into the store's, as lost.N.
static enum remixdb_status name_lost(struct repair *p, const struct env_dir *done) {
  for (uint32_t i = 1; i <= LOST_MAX; i++) {
    char name[32];
    struct env_stat st;
    (void)snprintf(name, sizeof(name), "lost.%u", i);
    enum remixdb_status s = env_stat(&p->dir, name, &st);
    if (s == REMIXDB_OK) continue;
    if (s == REMIXDB_NOTFOUND) s = env_rename(done, LOST_DIR, &p->dir, name);
    memcpy(p->lost_name, name, sizeof(name));
    return s == REMIXDB_OK ? env_sync_dir(&p->dir) : s;
  }
  return err_set(REMIXDB_EXISTS,
                 "%s: holds %u directories of earlier repairs, lost.1 and on: remove some, then repair again",
                 p->dir.path, LOST_MAX);
}

// Moves all of the old store into `lost`, CURRENT first. LOCK stays.
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

// Phase 2, repair.done: puts the old files aside.
static enum remixdb_status put_aside(struct repair *p) {
  struct env_dir done, lost = {.fd = -1};
  enum remixdb_status s = enter(&p->dir, FILES_REPAIR_DONE, &done);
  if (s == REMIXDB_OK) {
    s = env_dir_open(&done, LOST_DIR, &lost);
    if (s == REMIXDB_OK) s = fill_lost(p, &lost);
    if (s == REMIXDB_OK) s = name_lost(p, &done);
    if (s == REMIXDB_NOTFOUND) s = REMIXDB_OK;  // it is lost.N already
  }
  env_dir_close(&lost);
  env_dir_close(&done);
  return s == REMIXDB_OK ? rename_in(p, FILES_REPAIR_DONE, FILES_REPAIR_IN) : s;
}

// Moves the files of repair.in into the store's directory, CURRENT last.
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
  return s == REMIXDB_OK ? env_sync_dir(in) : s;  // a moved file must not be in both after a crash
}

// Phase 3, repair.in: moves the new files in.
static enum remixdb_status move_in(struct repair *p) {
  struct env_dir in;
  enum remixdb_status s = enter(&p->dir, FILES_REPAIR_IN, &in);
  if (s == REMIXDB_OK) s = move_files(p, &in);
  env_dir_close(&in);
  if (s == REMIXDB_OK) s = env_rmdir(&p->dir, FILES_REPAIR_IN);
  return s == REMIXDB_OK ? env_sync_dir(&p->dir) : s;
}

// Ends the repair from the phase that it is in.
static enum remixdb_status finish(struct repair *p) {
  struct env_stat st;
  enum remixdb_status s = env_stat(&p->dir, FILES_REPAIR_IN, &st);
  if (s == REMIXDB_NOTFOUND) s = put_aside(p);
  return s == REMIXDB_OK ? move_in(p) : s;
}

// Tells whether dir/name/REPORT belongs to the repair that made the store `id`, and whether the report names a loss.
static enum remixdb_status read_verdict(struct repair *p, const char *name, uint64_t id, bool *mine_out,
                                        bool *lost_out) {
  char head[REPORT_HEAD + 1] = "", want[REPORT_HEAD + 1];
  struct env_dir aside;
  int fd = -1;
  size_t nr = 0;
  *mine_out = false;
  enum remixdb_status s = env_dir_open(&p->dir, name, &aside);
  if (s == REMIXDB_OK) s = env_open(&aside, REPORT_FILE, ENV_READ, &fd);
  if (s == REMIXDB_OK) s = env_read_upto(p->env, fd, REPORT_FILE, head, REPORT_HEAD, 0, &nr);
  env_close_quiet(p->env, fd);
  env_dir_close(&aside);
  if (s == REMIXDB_NOTFOUND) return REMIXDB_OK;
  for (uint32_t lost = 0; lost < 2 && s == REMIXDB_OK && nr == REPORT_HEAD; lost++) {
    (void)snprintf(want, sizeof(want), REPORT_FIRST, id, lost ? REPORT_LOST : REPORT_WHOLE);
    if (memcmp(head, want, REPORT_HEAD) != 0) continue;
    *mine_out = true;
    *lost_out = lost;
  }
  return s;
}

// Does the same for the lost.N that has the report of that repair.
static enum remixdb_status find_verdict(struct repair *p, uint64_t id, bool *mine_out, bool *lost_out) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 1; i <= LOST_MAX && s == REMIXDB_OK && !*mine_out; i++) {
    char name[32];
    bool there;
    (void)snprintf(name, sizeof(name), "lost.%u", i);
    s = files_has_dir(&p->dir, name, &there);
    if (s == REMIXDB_OK && there) s = read_verdict(p, name, id, mine_out, lost_out);
    if (*mine_out) memcpy(p->lost_name, name, sizeof(name));
  }
  return s;
}

// Finds out whether the repair that an earlier call began has lost records. It reads that repair's report, which is
// beside the old files. An unreadable report counts as a loss, and does not make the repair fail.
static void recall(struct repair *p) {
  uint64_t id = 0;
  bool mine = false, lost = true;
  enum remixdb_status s = version_peek(&p->dir, &id);
  if (s == REMIXDB_OK) s = find_verdict(p, id, &mine, &lost);
  if (s == REMIXDB_OK && mine && !lost) return;
  p->report.losses = 1;
  p->report.more_lost = true;
  (void)snprintf(p->report.told, sizeof(p->report.told),
                 mine ? "LOST: the report tells what" : "LOST, perhaps: no report can be read");
}

// ---- all of it

// Puts the losses into words, for the report's last line and the caller.
static void sum_up(struct repair *p) {
  struct repair_report *const r = &p->report;
  if (r->losses == 0) return;
  const char *const places = r->losses == 1 ? "place" : "places";
  if (r->records_lost == 0)
    (void)snprintf(r->told, sizeof(r->told), "LOST: an unknown number of records, in %u %s", r->losses, places);
  else
    (void)snprintf(r->told, sizeof(r->told), "LOST: %s%" PRIu64 " records, in %u %s", r->more_lost ? "at least " : "",
                   r->records_lost, r->losses, places);
}

static enum remixdb_status write_report(struct repair *p) {
  struct env_dir new_dir, lost = {.fd = -1};
  char head[REPORT_HEAD + 1];
  const struct repair_report *r = &p->report;
  sum_up(p);
  repair_note(p,
              "%" PRIu64 " record%s kept: %u table%s whole, %u in part (%" PRIu64 " block%s lost), %u lost; %" PRIu64
              " record%s of the log; %s",
              r->records, err_s(r->records), r->tables, err_s(r->tables), r->tables_damaged, r->blocks_lost,
              err_s(r->blocks_lost), r->tables_lost, r->log_records, err_s(r->log_records),
              r->losses ? r->told : "nothing is lost");
  // A call that only ends this repair finds the report by its first line, and learns from it whether anything is lost.
  (void)snprintf(head, sizeof(head), REPORT_FIRST, p->new_id, r->losses ? REPORT_LOST : REPORT_WHOLE);
  if (p->text) memcpy(p->text, head, REPORT_HEAD);
  enum remixdb_status s = enter(&p->dir, FILES_REPAIR_NEW, &new_dir);
  if (s == REMIXDB_OK) s = env_mkdir(&new_dir, LOST_DIR);
  if (s == REMIXDB_OK) s = enter(&new_dir, LOST_DIR, &lost);
  if (s == REMIXDB_OK)
    s = env_replace_file(&lost, REPORT_FILE, p->text ? p->text : head, p->text ? p->text_len : REPORT_HEAD);
  if (s == REMIXDB_OK) s = env_sync_dir(&new_dir);
  env_dir_close(&lost);
  env_dir_close(&new_dir);
  return s;
}

// Removes the new store, which no file names, so that its room is free again.
static enum remixdb_status remove_new(struct repair *p) {
  struct env_dir new_dir, lost = {.fd = -1};
  enum remixdb_status s = env_dir_open(&p->dir, FILES_REPAIR_NEW, &new_dir);
  if (s == REMIXDB_OK) s = env_dir_open(&new_dir, LOST_DIR, &lost);
  if (s == REMIXDB_OK) s = env_unlink(&lost, REPORT_FILE);
  if (s == REMIXDB_OK) s = env_rmdir(&new_dir, LOST_DIR);
  if (s == REMIXDB_OK || s == REMIXDB_NOTFOUND) s = files_remove_dir(&p->dir, FILES_REPAIR_NEW);
  env_dir_close(&lost);
  env_dir_close(&new_dir);
  return s;
}

static enum remixdb_status repair_locked(struct repair *p) {
  struct files_entry *list;
  size_t nr;
  bool pending;
  enum remixdb_status s = files_repair_pending(&p->dir, &pending);
  if (s != REMIXDB_OK) return s;
  if (pending) {
    if ((s = finish(p)) == REMIXDB_OK) recall(p);
    return s;
  }
  if ((s = files_remove_dir(&p->dir, FILES_REPAIR_NEW)) != REMIXDB_OK) return s;
  if ((s = files_list(&p->dir, &list, &nr)) != REMIXDB_OK) return s;
  repair_note(p, "%*s", (int)REPORT_HEAD - 1, "");  // room for the first line, which write_report fills in
  s = build(p, list, nr);
  mem_free(list);
  if (s == REMIXDB_OK) s = write_report(p);
  if (s == REMIXDB_OK) s = rename_in(p, FILES_REPAIR_NEW, FILES_REPAIR_DONE);
  if (s == REMIXDB_OK) return finish(p);
  // If only the sync after the rename has failed, repair.new is absent and repair.done stays.
  IGNORED(remove_new(p), "the next repair throws it away");
  return s;
}

// Fails with REMIXDB_NOTFOUND if the directory has no witness of a store, or only a witness of a destroyed store or of
// an unfinished checkpoint.
static enum remixdb_status check_store(const struct env_dir *dir) {
  struct files_entry *list;
  size_t nr;
  const char *witness;
  enum remixdb_status s = files_list(dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  s = witness_find(dir, list, nr, &witness);
  static const char *const rests[] = {FILES_LOCK, FILES_REPAIR_NEW, FILES_CHECKPOINTING};
  for (size_t i = 0; i < sizeof(rests) / sizeof(rests[0]) && s == REMIXDB_OK; i++)
    if (strcmp(witness, rests[i]) == 0) s = REMIXDB_NOTFOUND;
  mem_free(list);
  return s;
}

// Repairs the store whose directory p has opened and locked.
static enum remixdb_status repair_held(struct repair *p) {
  struct env *const env = p->env;
  enum remixdb_status s = check_store(&p->dir);
  if (s != REMIXDB_OK) return s;  // the store was destroyed before p had the lock
  epoch_init(&p->epoch);
  epoch_join(&p->epoch, &p->slot);
  blkio_init(&p->io, env, BLKIO_SYNC);
  if ((s = fdpool_create(env, 16, &p->fds)) == REMIXDB_OK) {
    p->ctx = (struct sst_ctx){.env = env, .dir = &p->dir, .io = &p->io, .fds = p->fds};
    p->value_ctx.sst = &p->ctx;
    s = packs_create(&p->dir, p->fds, false, false, &p->ctx.packs);
    if (s == REMIXDB_OK) s = repair_locked(p);
  }
  repair_values_fini(p);
  value_ctx_fini(&p->value_ctx);
  packs_destroy(p->ctx.packs);
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
  struct repair_report *const r = &p->report;
  const size_t used = strlen(r->told);
  if (r->losses)
    (void)snprintf(r->told + used, sizeof(r->told) - used, "; %s/" REPORT_FILE " in the store's directory",
                   p->lost_name[0] ? p->lost_name : "lost.*");
  if (report_out && dirlock_held(&lock)) *report_out = *r;
  dirlock_give(&lock);
  env_dir_close(&p->dir);
  mem_free(p);
  return s;
}
