// SPDX-License-Identifier: Apache-2.0
//
// Reading a damaged table.
#include "admin/repair_state.h"

#include <inttypes.h>
#include <stdio.h>

#include "table/scan.h"

// ---- a table with whole metadata

// Writes the beginning of a key into buf for a message, with escapes.
static const char *readable(struct kref key, char *buf, size_t cap) {
  size_t n = 0;
  for (uint32_t i = 0; i < key.len && n + 5 < cap; i++) {
    const uint8_t c = key.ptr[i];
    n += (size_t)snprintf(buf + n, cap - n, c >= 0x20 && c < 0x7f && c != '\\' ? "%c" : "\\x%02x", c);
  }
  buf[n] = '\0';
  return buf;
}

// Keeps the records of all whole blocks. Returns the status of a failed write.
static enum remixdb_status keep_table(struct repair *p, struct sst *t, const uint8_t *erased) {
  struct sst_hold h = {0};
  uint64_t at = 0;  // the number of the block's first record
  char last[160] = "", text[160];
  uint64_t lost = 0;
  bool gap = false;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t block = 0; block < t->nr_pages && s == REMIXDB_OK; block += sst_block_pages(t, block)) {
    const uint64_t first = at;
    at += t->nr_recs[block];
    for (uint32_t i = 0; i < t->nr_recs[block] && s == REMIXDB_OK; i++) {
      struct kv_rec rec;
      if (erased && erased[(first + i) / 8] >> (first + i) % 8 & 1) continue;
      epoch_enter(&p->epoch, &p->slot);
      const enum remixdb_status read = sst_read(t, sst_pos_make(block, i), false, &h, &rec);
      if (read == REMIXDB_OK) {
        if (t->flags & FORMAT_SST_FLAG_SPACES) rec.kind |= KV_SPACES;
        s = repair_keep(p, &rec);
        if (gap) repair_note(p, "  ... before key %s", readable(kref(rec.key, rec.klen), text, sizeof(text)));
        gap = false;
        if (i + 1u == t->nr_recs[block]) (void)readable(kref(rec.key, rec.klen), last, sizeof(last));
      }
      epoch_exit(&p->slot);
      if (read == REMIXDB_NOMEM) s = read;
      if (read == REMIXDB_OK || s != REMIXDB_OK) continue;
      repair_lose(p, t->nr_recs[block], false, "%u records: %s", t->nr_recs[block], err_msg());
      if (!gap) repair_note(p, "  ... after key %s ...", last);
      gap = true;
      lost++;
      break;  // the rest of the block is lost, too
    }
  }
  sst_hold_fini(&h);
  p->report.blocks_lost += lost;
  if (lost) p->report.tables_damaged++;
  else p->report.tables++;
  return s;
}

// Reads as many bytes as the longest block has, from the offset of a page on. If the disk cannot read them all, reads
// only the pages of the block that begins at the page, so that a bad sector after the block does no harm.
static enum remixdb_status read_block(struct repair *p, int fd, const char *path, uint8_t *buf, uint64_t off,
                                      size_t *nr_out) {
  enum remixdb_status s = env_read_upto(p->env, fd, path, buf, BLOCK_BYTES_MAX, off, nr_out);
  if (s != REMIXDB_IO) return s;
  s = env_read_upto(p->env, fd, path, buf, BLOCK_PAGE, off, nr_out);
  if (s != REMIXDB_OK || *nr_out < BLOCK_PAGE || block_pages(buf) <= 1 || block_pages(buf) > BLOCK_PAGES_MAX) return s;
  size_t more;
  s = env_read_upto(p->env, fd, path, buf + BLOCK_PAGE, (block_pages(buf) - 1u) * BLOCK_PAGE, off + BLOCK_PAGE, &more);
  *nr_out += more;
  return s;
}

// ---- a table with damaged metadata
//
// A block tells its own length and its number of records, and its checksum covers its place. So blocks can be found
// page by page. The blocks of a compressed table cannot be found without the metadata.

// Bytes to read after the blocks: counts and two keys. A chunk of compressed keys is shorter.
#define PAGES_TAIL (FORMAT_SST_PAGES_MAX + 2 * KV_KEY_MAX)

struct pages {
  uint64_t number;
  uint64_t base, size;    // the table's place in its file
  const uint64_t *print;  // that CURRENT has; NULL: none
  bool spaces;            // it is of the tree of the named spaces
  int fd;
  char path[ENV_PATH_MAX];
  uint8_t *buf;  // one block
  struct format_sst_footer foot;
  bool footed;       // the footer is whole
  uint64_t blocks;   // number of whole blocks
  uint64_t records;  // records in whole blocks
  uint64_t bad;      // pages that are in no whole block
  uint32_t end;      // the page after the last whole block
  bool gap;          // a page before that is in no whole block
  // The beginning of the metadata, if all blocks are whole: the counts of all pages, the smallest key, the largest key.
  uint32_t min_len, max_len;
  uint64_t min_hash, max_hash;
  uint8_t counts[FORMAT_SST_PAGES_MAX];
};

// Reads the footer, which may be damaged. Fails with REMIXDB_CORRUPT if the table belongs to another store, or to
// another history.
static enum remixdb_status pages_footer(struct repair *p, struct pages *g) {
  uint8_t bytes[FORMAT_SST_FOOTER];
  if (g->size < sizeof(bytes)) return REMIXDB_OK;
  const enum remixdb_status s = env_read(p->env, g->fd, g->path, bytes, sizeof(bytes),
                                         g->base + g->size - sizeof(bytes));
  if (s != REMIXDB_OK) return s == REMIXDB_NOMEM ? s : REMIXDB_OK;
  g->footed = format_sst_footer_at(bytes, g->base, g->size, g->path, &g->foot) == REMIXDB_OK &&
              g->foot.number == g->number;
  const struct files_ids ids = sst_ctx_ids(&p->ctx);
  if (!g->footed) return REMIXDB_OK;
  g->spaces = g->foot.flags & FORMAT_SST_FLAG_SPACES;
  if (g->print && g->foot.print != *g->print)
    return err_corrupt(g->path, g->base + g->size - FORMAT_SST_FOOTER, "a table of another history of the store");
  if (p->ctx.store_id == 0 || files_ids_have(&ids, g->foot.store_id)) return REMIXDB_OK;
  return err_corrupt(g->path, g->base + g->size - FORMAT_SST_FOOTER, "a table of another store");
}

// Keeps the records of the block that begins at the page. *pages_out: its pages; 0: there is no whole block.
static enum remixdb_status pages_block(struct repair *p, struct pages *g, uint64_t page, uint32_t *pages_out) {
  size_t nr;
  *pages_out = 0;
  enum remixdb_status s = read_block(p, g->fd, g->path, g->buf, g->base + page * BLOCK_PAGE, &nr);
  if (s != REMIXDB_OK) return s == REMIXDB_NOMEM ? s : REMIXDB_OK;
  const uint32_t pages = block_pages(g->buf), count = block_count(g->buf);
  if (pages < 1 || pages > BLOCK_PAGES_MAX || count < 1 || !block_form_valid(block_form(g->buf)) ||
      (size_t)pages * BLOCK_PAGE > nr || page + pages > FORMAT_SST_PAGES_MAX)
    return REMIXDB_OK;
  if (block_verify(g->buf, pages, count, block_form(g->buf), g->number, (uint32_t)page, g->path,
                   g->base + page * BLOCK_PAGE) != REMIXDB_OK)
    return REMIXDB_OK;
  for (uint32_t i = 0; i < count && s == REMIXDB_OK; i++) {
    struct kv_rec rec;
    block_record(g->buf, i, &rec);
    if (g->spaces) rec.kind |= KV_SPACES;
    s = repair_keep(p, &rec);
    g->max_len = rec.klen;
    g->max_hash = hash64(rec.key, rec.klen);
    if (g->records == 0 && i == 0) {
      g->min_len = g->max_len;
      g->min_hash = g->max_hash;
    }
  }
  g->gap = g->gap || page != g->end;
  g->counts[page] = (uint8_t)count;
  g->end = (uint32_t)page + pages;
  g->records += count;
  g->blocks++;
  *pages_out = pages;
  return s;
}

// Tells whether these bytes are the beginning of metadata for exactly the blocks that were read.
static bool pages_meta_begins(const struct pages *g, const uint8_t *bytes, size_t nr) {
  if (nr < (size_t)g->end + g->min_len + g->max_len || memcmp(bytes, g->counts, g->end) != 0) return false;
  const uint8_t *const min = bytes + g->end, *const max = min + g->min_len;
  return hash64(min, g->min_len) == g->min_hash && hash64(max, g->max_len) == g->max_hash;
}

// Tells whether no block is missing after the last block that was found. That is so if the metadata follows, or the
// first chunk of compressed keys. The chunk's checksum covers the chunk's place.
static enum remixdb_status pages_complete(struct repair *p, struct pages *g, bool *out) {
  const uint64_t at = g->base + (uint64_t)g->end * BLOCK_PAGE;
  uint8_t *const tail = mem_alloc(PAGES_TAIL);
  size_t nr = 0;
  *out = false;
  if (!tail) return REMIXDB_NOMEM;
  const enum remixdb_status s = g->gap || !g->blocks ? REMIXDB_OK
                                                     : env_read_upto(p->env, g->fd, g->path, tail, PAGES_TAIL, at, &nr);
  *out = s == REMIXDB_OK && sst_keys_begin(g->number, tail, nr, g->path, at);
  if (s == REMIXDB_OK && !*out) *out = pages_meta_begins(g, tail, nr);
  mem_free(tail);
  return s == REMIXDB_NOMEM ? s : REMIXDB_OK;
}

// Reports the records that were kept and the losses.
static void pages_tell(struct repair *p, const struct pages *g, bool complete) {
  repair_note(p,
              "%s: %" PRIu64 " blocks with %" PRIu64 " records were read without the metadata; %" PRIu64
              " other pages (of blocks, compressed keys or metadata) were not",
              g->path, g->blocks, g->records, g->bad);
  if (g->blocks) p->report.tables_damaged++;
  else p->report.tables_lost++;
  if (g->footed && g->foot.nr_records > g->records)
    repair_lose(p, g->foot.nr_records - g->records, false, "%" PRIu64 " records: %s", g->foot.nr_records - g->records,
                g->path);
  else if (!g->footed && !complete)
    repair_lose(p, !g->blocks, true, "%s: %s",
                g->blocks ? "an unknown number of records, perhaps none" : "at least 1 record", g->path);
}

static enum remixdb_status pages_keep(struct repair *p, struct pages *g) {
  enum remixdb_status s = pages_footer(p, g);
  if (s == REMIXDB_CORRUPT) {
    repair_lose(p, 0, true, "%s: it is left out", err_msg());
    p->report.tables_lost++;
    return REMIXDB_OK;
  }
  for (uint64_t page = 0; s == REMIXDB_OK && (page + 1) * BLOCK_PAGE <= g->size;) {
    uint32_t pages;
    s = pages_block(p, g, page, &pages);
    g->bad += pages == 0;
    page += pages ? pages : 1;
  }
  bool complete = false;
  if (s == REMIXDB_OK) s = pages_complete(p, g, &complete);
  if (s == REMIXDB_OK) pages_tell(p, g, complete);
  return s;
}

static enum remixdb_status pages_open(struct repair *p, struct pages *g) {
  char name[32];
  const struct pack_part *const part = packs_find(p->ctx.packs, PACK_TABLE, g->number);
  if (part) files_pack_name(name, part->pack->number);
  else files_table_name(name, g->number);
  enum remixdb_status s = env_path(g->path, p->dir.path, name);
  if (s == REMIXDB_OK) s = env_open(&p->dir, name, ENV_READ, &g->fd);
  if (part) {
    g->base = part->at.off;
    g->size = part->at.len;
  } else if (s == REMIXDB_OK) {
    s = env_size(p->env, g->fd, g->path, &g->size);
  }
  if (s != REMIXDB_NOTFOUND && s != REMIXDB_IO) return s;
  // The repair goes on without this table, which had at least one record.
  if (s == REMIXDB_NOTFOUND) repair_lose(p, 1, true, "at least 1 record: %s: is missing", g->path);
  else repair_lose(p, 1, true, "at least 1 record: %s", err_msg());
  p->report.tables_lost++;
  return s;
}

static enum remixdb_status keep_pages(struct repair *p, uint64_t number, const uint64_t *print, bool spaces) {
  struct pages *const g = mem_calloc(1, sizeof(*g));
  if (!g) return REMIXDB_NOMEM;
  g->number = number;
  g->print = print;
  g->spaces = spaces;
  g->fd = -1;
  enum remixdb_status s = pages_open(p, g);
  const bool unread = s == REMIXDB_NOTFOUND || s == REMIXDB_IO;
  if (s == REMIXDB_OK && !(g->buf = mem_alloc_aligned(BLOCK_PAGE, BLOCK_BYTES_MAX))) s = REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = pages_keep(p, g);
  env_close_quiet(p->env, g->fd);
  mem_free(g->buf);
  mem_free(g);
  return unread ? REMIXDB_OK : s;
}

// ---- erased records

void repair_erased_fini(struct repair_erased *e) {
  for (uint32_t i = 0; i < e->nr; i++) mem_free(e->bits[i]);
  e->nr = 0;
}

static enum remixdb_status erased_read(const struct remix *x, struct repair_erased *out) {
  struct remix_walk w;
  uint64_t at[REMIX_RUNS_MAX] = {0};
  for (out->nr = 0; out->nr < x->nr_runs; out->nr++)
    if (!(out->bits[out->nr] = mem_calloc(x->runs[out->nr]->nr_records / 8 + 1, 1))) return REMIXDB_NOMEM;
  for (remix_walk_init(&w, x); remix_walk_valid(&w); remix_walk_next(&w)) {
    const uint32_t run = w.sel[w.at] & REMIX_RUN;
    if ((w.sel[w.at] & REMIX_ERASED) == REMIX_ERASED) out->bits[run][at[run] / 8] |= (uint8_t)(1u << at[run] % 8);
    at[run]++;
  }
  return REMIXDB_OK;
}

// A view cannot be read, as the thread's message tells, so its erased records are kept. That counts as a loss, unless
// the head of the index tells that there are none. Fails with REMIXDB_NOMEM.
static enum remixdb_status erased_unknown(struct repair *p, uint64_t remix) {
  struct remix_peek ends;
  struct err_saved why;
  err_save(&why, REMIXDB_CORRUPT);
  const enum remixdb_status s = remix_look(&p->ctx, remix, &ends);
  if (s == REMIXDB_NOMEM) return s;
  if (s == REMIXDB_OK && !ends.expires && !ends.odd) repair_note(p, "%s", why.msg);
  else repair_lose(p, 0, true, "keys that were deleted as a range may come back: %s", why.msg);
  return REMIXDB_OK;
}

enum remixdb_status repair_erased_find(struct repair *p, const struct version_names *v, const struct version_view *view,
                                       struct repair_erased *out) {
  struct sst *runs[REMIX_RUNS_MAX];
  struct remix *x = NULL;
  uint32_t nr = 0;
  enum remixdb_status s = REMIXDB_OK;
  *out = (struct repair_erased){.nr = 0};
  for (; nr < view->nr && s == REMIXDB_OK; nr += s == REMIXDB_OK)
    s = sst_open(&p->ctx, v->tables[view->first + nr], &runs[nr]);
  if (s == REMIXDB_OK) s = remix_open(&p->ctx, view->remix, runs, nr, &x);
  if (s == REMIXDB_OK) s = erased_read(x, out);
  else if (s != REMIXDB_NOMEM) s = erased_unknown(p, view->remix);
  remix_unref(x);
  while (nr > 0) sst_unref(runs[--nr]);
  return s == REMIXDB_NOMEM ? s : REMIXDB_OK;
}

enum remixdb_status repair_table(struct repair *p, uint64_t number, const uint64_t *print, bool spaces,
                                 const uint8_t *erased) {
  struct sst *t;
  enum remixdb_status s = sst_open(&p->ctx, number, &t);
  if (s == REMIXDB_OK && (!print || t->print == *print)) {
    s = keep_table(p, t, erased);
    sst_unref(t);
    return s;
  }
  if (s == REMIXDB_OK) {  // its footer says the same below
    sst_unref(t);
    return keep_pages(p, number, print, spaces);
  }
  if (s == REMIXDB_NOMEM || s == REMIXDB_VERSION) return s;  // VERSION: a newer library wrote it, it is not damaged
  repair_note(p, "%s", err_msg());
  return keep_pages(p, number, print, spaces);
}
