// SPDX-License-Identifier: Apache-2.0
//
// Finding tables in packs.
#include "admin/repair_state.h"

#include <inttypes.h>

#include "table/pack.h"

#define SCAN_PAGES 256u  // pages of one read

enum remixdb_status repair_packs_named(struct repair *p, const struct version_names *v) {
  struct pack_list l;
  if (v->packs_len == 0) return REMIXDB_OK;
  const char *flaw = pack_list_begin(&l, v->packs, v->packs_len, v->next_file);
  enum remixdb_status s = REMIXDB_OK;
  while (s == REMIXDB_OK && !flaw && !(flaw = pack_list_next(&l)) && l.nr) {
    struct pack_entry *const e = mem_array(l.nr, sizeof(*e), 0);
    if (!e) return REMIXDB_NOMEM;
    for (uint32_t i = 0; i < l.nr && !flaw; i++)
      flaw = pack_entry_get(l.entries + (size_t)PACK_ENTRY * i, i ? &e[i - 1] : NULL, l.next_file, &e[i]);
    s = packs_claim(p->ctx.packs, l.number, e, l.nr);
    mem_free(e);
    if (s != REMIXDB_OK && s != REMIXDB_NOMEM) {  // CURRENT names a file twice: each is read once
      repair_note(p, "%s", err_msg());
      s = REMIXDB_OK;
    }
  }
  return s;  // CURRENT was checked when it was read
}

struct found {
  struct pack_entry *parts;
  uint32_t nr, cap;
};

static enum remixdb_status found_add(struct found *f, const struct pack_entry *e) {
  if (f->nr == f->cap) {
    struct pack_entry *const grown = mem_grow32(f->parts, &f->cap, 64, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    f->parts = grown;
  }
  f->parts[f->nr++] = *e;
  return REMIXDB_OK;
}

// If the page that ends at `end` ends a table, adds the table.
static enum remixdb_status look_at_page(struct found *f, const uint8_t *page, uint64_t end, const char *path) {
  const uint8_t *const foot = page + PACK_ALIGN - FORMAT_SST_FOOTER;
  struct format_sst_footer t;
  if (load64le(page + PACK_ALIGN - 8) != FORMAT_SST_MAGIC) return REMIXDB_OK;
  const uint64_t size = format_sst_footer_size(foot),
                 before = f->nr ? f->parts[f->nr - 1].off + f->parts[f->nr - 1].len : 0;
  if (size == 0 || size % PACK_ALIGN || size > end - before) return REMIXDB_OK;
  if (format_sst_footer_at(foot, end - size, size, path, &t) != REMIXDB_OK) return REMIXDB_OK;
  const struct pack_entry e = {pack_id(PACK_TABLE, t.number), end - size, size};
  return found_add(f, &e);
}

// Finds tables by their footers.
static enum remixdb_status scan_pack(struct repair *p, const struct files_entry *file, struct found *f) {
  char path[ENV_PATH_MAX];
  uint8_t *const buf = mem_alloc((size_t)SCAN_PAGES * PACK_ALIGN);
  uint64_t size = 0;
  int fd = -1;
  enum remixdb_status s = buf ? env_path(path, p->dir.path, file->name) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = env_open(&p->dir, file->name, ENV_READ, &fd);
  if (s == REMIXDB_OK) s = env_size(p->env, fd, path, &size);
  for (uint64_t off = 0; off < size && s == REMIXDB_OK;) {
    off = env_next_data(p->env, fd, off, size);
    off -= off % PACK_ALIGN;
    size_t n = 0;
    if (off >= size) break;
    s = env_read_upto(p->env, fd, path, buf, (size_t)SCAN_PAGES * PACK_ALIGN, off, &n);
    if (s == REMIXDB_IO) {  // pages that cannot be read hide at most the tables that they are of
      s = env_read_upto(p->env, fd, path, buf, PACK_ALIGN, off, &n);
      if (s == REMIXDB_IO) {
        s = REMIXDB_OK;
        off += PACK_ALIGN;
        continue;
      }
    }
    if (n < PACK_ALIGN) break;
    for (size_t at = 0; at + PACK_ALIGN <= n && s == REMIXDB_OK; at += PACK_ALIGN)
      s = look_at_page(f, buf + at, off + at + PACK_ALIGN, path);
    off += n - n % PACK_ALIGN;
  }
  env_close_quiet(p->env, fd);
  mem_free(buf);
  return s == REMIXDB_NOTFOUND || s == REMIXDB_IO ? REMIXDB_OK : s;
}

static enum remixdb_status search_pack(struct repair *p, const struct files_entry *file) {
  enum remixdb_status s = packs_load(p->ctx.packs, NULL, file->number, NULL, NULL, 0);
  if (s == REMIXDB_OK || s == REMIXDB_NOMEM || s == REMIXDB_VERSION) return s;
  repair_note(p, "%s: tables in the pack are looked for page by page", err_msg());
  struct found f = {0};
  s = scan_pack(p, file, &f);
  if (s == REMIXDB_OK && f.nr) s = packs_claim(p->ctx.packs, file->number, f.parts, f.nr);
  mem_free(f.parts);
  if (s == REMIXDB_OK || s == REMIXDB_NOMEM) return s;
  repair_note(p, "%s", err_msg());
  return REMIXDB_OK;
}

struct packed {
  struct repair *p;
  uint64_t nr;
  struct version_names *v;  // NULL: they are only counted
  uint64_t newest, id;
};

// The first page and the last one are zeros then.
bool repair_part_is_gone(const struct pack_part *part) {
  static const uint8_t zeros[64];
  uint8_t first[64], last[64];
  err_cleanup_begin();
  const bool read = pack_part_read(part, first, sizeof(first), 0) == REMIXDB_OK &&
                    pack_part_read(part, last, sizeof(last), part->at.len - sizeof(last)) == REMIXDB_OK;
  err_cleanup_end();
  return read && memcmp(first, zeros, sizeof(zeros)) == 0 && memcmp(last, zeros, sizeof(zeros)) == 0;
}

static void see_part(void *arg, const struct pack_part *part) {
  struct packed *const w = arg;
  if (pack_id_kind(part->at.id) != PACK_TABLE || repair_part_is_gone(part)) return;
  const uint64_t number = pack_id_number(part->at.id);
  if (w->v) w->v->tables[w->v->nr_tables++] = number;
  if (number > w->newest && part->pack->origin) {
    w->newest = number;
    w->id = part->pack->origin;
  }
  w->nr++;
}

enum remixdb_status repair_packs_search(struct repair *p, const struct files_entry *list, size_t nr,
                                        uint64_t *tables_out) {
  struct packed w = {.p = p};
  enum remixdb_status s = REMIXDB_OK;
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++)
    if (list[i].kind == FILES_IS_PACK) s = search_pack(p, &list[i]);
  if (s == REMIXDB_OK) packs_each(p->ctx.packs, see_part, &w);
  *tables_out = w.nr;
  return s;
}

void repair_packs_tables(struct repair *p, struct version_names *v) {
  struct packed w = {.p = p, .v = v};
  packs_each(p->ctx.packs, see_part, &w);
}

void repair_packs_id(struct repair *p, uint64_t *newest_io, uint64_t *id_out) {
  struct packed w = {.p = p, .newest = *newest_io};
  packs_each(p->ctx.packs, see_part, &w);
  if (w.newest > *newest_io) {
    *newest_io = w.newest;
    *id_out = w.id;
  }
}
