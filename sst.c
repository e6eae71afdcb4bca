// SPDX-License-Identifier: Apache-2.0
#include "sst.h"

#include <assert.h>
#include <stdio.h>

#include "table/dict.h"
#include "table/format.h"
#include "table/keys.h"
#include "table/pieces.h"
#include "table/stored.h"

_Static_assert(FORMAT_SST_ALIGN % BLKIO_ALIGN == 0, "aligned reads do not pass the end of a file");

// ---- opening and closing

void sst_name(char *buf, uint64_t number) { files_table_name(buf, number); }

static size_t sst_dict_memory(const struct sst *t) {
  return t->dict ? atomic_load_explicit(&t->dict->bytes, memory_order_relaxed) : 0;
}

// Without the dictionary, which counts for itself, because it may go at any time.
static size_t sst_lasting_memory(const struct sst *t) {
  size_t n = sizeof(*t) + t->nr_pages + 1 + t->min.len + t->max.len + sst_pieces_memory(t);
  n += t->part ? sizeof(*t->part) : strlen(t->path) + 1;
  n += sst_chunks_memory(t);
  if (t->cache.slots) n += (size_t)t->nr_pages * sizeof(*t->cache.slots);
  if (t->offs) n += ((size_t)t->nr_pages + 1) * sizeof(*t->offs);
  if (t->dict) n += sizeof(*t->dict);
  n += t->nr_apart * sizeof(*t->apart);
  return n;
}

size_t sst_memory(const struct sst *t) { return sst_lasting_memory(t) + sst_dict_memory(t); }

static void sst_free(struct sst *t) {
  budget_give(t->ctx->budget, BUDGET_TABLES, t->counted + sst_chunks_memory(t));
  budget_give(t->ctx->budget, BUDGET_PIECES, sst_pieces_memory(t));
  cache_table_fini(&t->cache);
  for (uint32_t i = 0; i < 3; i++)
    if (t->own[i].pool) fdpool_remove(&t->own[i]);
  mem_free(atomic_load_explicit(&t->pieces, memory_order_relaxed));
  mem_free(atomic_load_explicit(&t->chunks, memory_order_relaxed));
  mem_free(t->nr_recs);
  mem_free(t->apart);
  mem_free(t->offs);
  sst_dict_close(t);
  mem_free((void *)(uintptr_t)t->min.ptr);  // one allocation: max follows min
  if (!t->part) mem_free(t->path);
  mem_free(t);
  sst_scratch_leave();
}

#define SST_HOLE (128u << 10)  // no table has so long a hole: it would span a block, which begins with a checksum

// Checks the counts of records: a block begins where its count is not 0, it has at most BLOCK_PAGES_MAX pages, and the
// counts add up. Sets t->last and t->least.
static enum remixdb_status sst_check_pages(struct sst *t, uint64_t off) {
  uint64_t sum = 0;
  const uint32_t most = t->form == BLOCK_FORM_BARE ? BLOCK_PAGES_MAX_BARE : BLOCK_PAGES_MAX;
  uint32_t pages = most;  // the block's pages so far; a table whose first count is 0 exceeds it at once
  t->last = 0;
  t->least = BLOCK_RECORDS_MAX + 1;
  for (uint32_t i = 0; i < t->nr_pages; i++) {
    sum += t->nr_recs[i];
    if (t->nr_recs[i]) {
      if (i > 0 && t->nr_recs[t->last] < t->least) t->least = t->nr_recs[t->last];
      t->last = i;
      pages = 1;
    } else if (++pages > most) {
      return err_corrupt(t->path, off + i, "page %u of a table belongs to no block", i);
    }
  }
  if (sum != t->nr_records) return err_corrupt(t->path, off, "counts of records do not add up");
  return REMIXDB_OK;
}

// Makes the file offsets of the blocks from their stored sizes.
static enum remixdb_status sst_decode_sizes(struct sst *t, const uint8_t *p, const uint8_t *end, uint64_t off) {
  t->offs = mem_array((size_t)t->nr_pages + 1, sizeof(*t->offs), 0);
  if (!t->offs) return REMIXDB_NOMEM;
  uint64_t at = t->base;
  for (uint32_t block = 0; block < t->nr_pages;) {
    const uint32_t pages = sst_block_pages(t, block);
    uint32_t size;
    p = kv_varint_get(p, end, &size);
    // Records differ in offset and key, which bounds the compressed size from below. A raw block is the longest.
    const uint32_t raw = pages * BLOCK_PAGE - FORMAT_SST_STORED_SKIP + FORMAT_SST_STORED_HEAD;
    if (!p || size <= FORMAT_SST_STORED_HEAD + t->nr_recs[block] / 4u || size > raw)
      return err_corrupt(t->path, off, "stored size of block %u", block);
    for (uint32_t i = 0; i < pages; i++) t->offs[block + i] = at;
    at += size;
    block += pages;
  }
  t->offs[t->nr_pages] = at;
  if (p != end || at - t->base != t->data_size)
    return err_corrupt(t->path, off, "stored sizes of blocks do not add up");
  return REMIXDB_OK;
}

// Decodes the list of value files.
static enum remixdb_status sst_decode_apart(struct sst *t, const struct format_sst_footer *f, uint64_t off,
                                            const uint8_t *p) {
  if (!(t->apart = mem_array(f->nr_apart, sizeof(*t->apart), 0))) return REMIXDB_NOMEM;
  t->nr_apart = f->nr_apart;
  for (uint32_t i = 0; i < f->nr_apart; i++, p += FORMAT_SST_APART) {
    t->apart[i] = (struct sst_apart){load64le(p), load64le(p + 8)};
    if (t->apart[i].file <= (i ? t->apart[i - 1].file : 0) || t->apart[i].bytes == 0)
      return err_corrupt(t->path, off, "value files do not ascend, or one has no bytes");
  }
  return REMIXDB_OK;
}

// Decodes the metadata: counts, smallest and largest key, dictionary, stored sizes. off: the place of the metadata in
// the file.
static enum remixdb_status sst_decode_meta(struct sst *t, const struct format_sst_footer *f, uint64_t off,
                                           const uint8_t *meta) {
  if (f->meta_sum != hash64_seed(meta, f->meta_len, format_sst_meta_seed(t->number)))
    return err_corrupt(t->path, off, "checksum of metadata");
  const uint8_t *const min = meta + t->nr_pages, *const dict = min + f->min_len + f->max_len,
                       *const sizes = dict + f->dict_len;

  // one more count, not 0, ends the last block
  t->nr_recs = mem_alloc((size_t)t->nr_pages + 1);
  if (!t->nr_recs) return REMIXDB_NOMEM;
  memcpy(t->nr_recs, meta, t->nr_pages);
  t->nr_recs[t->nr_pages] = 1;
  enum remixdb_status s = sst_check_pages(t, off);
  if (s != REMIXDB_OK) return s;

  uint8_t *const keys = mem_alloc((size_t)f->min_len + f->max_len);
  if (!keys) return REMIXDB_NOMEM;
  if (f->min_len + f->max_len) memcpy(keys, min, f->min_len + f->max_len);
  t->min = kref(keys, f->min_len);
  t->max = kref(keys + f->min_len, f->max_len);
  const int order = kv_cmp(t->min, t->max);
  if (order > 0 || (order == 0) != (t->nr_records == 1))
    return err_corrupt(t->path, off + t->nr_pages, "smallest and largest key");

  if (f->dict_len) s = sst_dict_open(t, dict, f->dict_len, off + (uint64_t)(dict - meta));
  if (s != REMIXDB_OK) return s;
  if (f->flags & FORMAT_SST_FLAG_ZSTD) s = sst_decode_sizes(t, sizes, sizes + f->sizes_len, off);
  return s == REMIXDB_OK && f->nr_apart ? sst_decode_apart(t, f, off, sizes + f->sizes_len) : s;
}

// Tells whether the footer is that of table `number`, of this store. end: the end of the table, in the file.
static enum remixdb_status sst_check_owner(const struct sst_ctx *ctx, const struct format_sst_footer *f,
                                           uint64_t number, const char *path, uint64_t end) {
  const uint64_t foot = end - FORMAT_SST_FOOTER;
  const struct files_ids ids = sst_ctx_ids(ctx);
  if (f->number != number) return err_corrupt(path, foot, "this is table %llu", (unsigned long long)f->number);
  if (files_ids_have(&ids, f->store_id)) return REMIXDB_OK;
  return err_corrupt(path, foot, "table of another store (%016llx)", (unsigned long long)f->store_id);
}

static enum remixdb_status sst_check_size(const char *path, uint64_t size) {
  if (size > 0 && size % FORMAT_SST_ALIGN == 0) return REMIXDB_OK;
  return err_corrupt(path, size, "table is truncated or of a wrong size");
}

static enum remixdb_status read_own_footer(const struct sst_ctx *ctx, uint64_t number, char path[ENV_PATH_MAX],
                                           uint8_t foot[FORMAT_SST_FOOTER], uint64_t *size_out) {
  char name[32];
  int fd;
  sst_name(name, number);
  enum remixdb_status s = env_path(path, ctx->dir->path, name);
  if (s == REMIXDB_OK) s = env_open(ctx->dir, name, ENV_READ, &fd);
  if (s == REMIXDB_NOTFOUND) return err_corrupt(path, 0, "table is missing");
  if (s != REMIXDB_OK) return s;
  env_advise(ctx->env, fd, 0, 0, ENV_RANDOM);
  s = env_size(ctx->env, fd, path, size_out);
  if (s == REMIXDB_OK) s = sst_check_size(path, *size_out);
  if (s == REMIXDB_OK) s = env_read(ctx->env, fd, path, foot, FORMAT_SST_FOOTER, *size_out - FORMAT_SST_FOOTER);
  env_close_quiet(ctx->env, fd);
  return s;
}

enum remixdb_status sst_look(const struct sst_ctx *ctx, uint64_t number, struct sst_peek *out) {
  char own[ENV_PATH_MAX];
  uint8_t foot[FORMAT_SST_FOOTER];
  struct format_sst_footer f;
  const struct pack_part *const part = packs_find(ctx->packs, PACK_TABLE, number);
  const char *const path = part ? part->pack->path : own;
  const uint64_t base = part ? part->at.off : 0;
  enum remixdb_status s;
  if (part) {
    out->size = part->at.len;
    s = pack_part_read(part, foot, sizeof(foot), part->at.len - sizeof(foot));
  } else {
    s = read_own_footer(ctx, number, own, foot, &out->size);
  }
  if (s == REMIXDB_OK) s = format_sst_footer_at(foot, base, out->size, path, &f);
  if (s == REMIXDB_OK) s = sst_check_owner(ctx, &f, number, path, base + out->size);
  if (s != REMIXDB_OK) return s;
  out->print = f.print;
  out->origin = f.store_id;
  out->spaces = f.flags & FORMAT_SST_FLAG_SPACES;
  return REMIXDB_OK;
}

// Reads footer and metadata.
static enum remixdb_status sst_load_meta(struct sst *t, int fd) {
  struct blkio *const io = t->ctx->io;
  const uint64_t end = t->base + t->file_size;
  struct format_sst_footer f;
  uint8_t *meta = NULL;
  uint8_t *const tail = mem_alloc_aligned(BLKIO_ALIGN, BLKIO_ALIGN);
  enum remixdb_status s = tail ? REMIXDB_OK : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = blkio_read_one(io, fd, t->path, tail, BLKIO_ALIGN, end - BLKIO_ALIGN);
  if (s == REMIXDB_OK)
    s = format_sst_footer_at(tail + BLKIO_ALIGN - FORMAT_SST_FOOTER, t->base, t->file_size, t->path, &f);
  if (s != REMIXDB_OK) goto out;

  if ((s = sst_check_owner(t->ctx, &f, t->number, t->path, end)) != REMIXDB_OK) goto out;
  t->origin = f.store_id;
  t->print = f.print;
  t->form = f.version < FORMAT_SST_VERSION_KINDS ? BLOCK_FORM_BARE : BLOCK_FORM_KINDS | f.seq_width;
  t->flags = f.flags;
  t->seq_min = f.seq_min;
  t->seq_max = f.seq_max;
  t->expiry = f.expiry;
  t->nr_pages = f.nr_pages;
  t->nr_records = f.nr_records;
  t->nr_tombs = f.nr_tombs;
  t->key_bytes = f.key_bytes;
  t->value_bytes = f.value_bytes;
  t->data_size = f.data_size;
  const uint32_t klen = (uint32_t)(f.key_bytes / f.nr_records), vlen = (uint32_t)(f.value_bytes / f.nr_records);
  t->rec_size = (uint32_t)kv_rec_size(&(struct kv_rec){.klen = klen, .vlen = vlen}) + f.seq_width;
  t->ckb_off = f.ckb_off ? t->base + f.ckb_off : 0;
  t->ckb_len = f.ckb_len;

  const uint64_t from = sst_align_down(f.meta_off);
  const uint32_t len = (uint32_t)(t->file_size - from);  // the footer's checks bound it to less than 1 MB
  meta = mem_alloc_aligned(BLKIO_ALIGN, len);
  if (!meta) s = REMIXDB_NOMEM;
  else memcpy(meta + len - BLKIO_ALIGN, tail, BLKIO_ALIGN);
  if (s == REMIXDB_OK && len > BLKIO_ALIGN)
    s = blkio_read_one(io, fd, t->path, meta, len - BLKIO_ALIGN, t->base + from);
  if (s == REMIXDB_OK) s = sst_decode_meta(t, &f, t->base + f.meta_off, meta + (f.meta_off - from));
out:
  mem_free(tail);
  mem_free(meta);
  return s;
}

static enum remixdb_status take_part(struct sst *t) {
  struct pack *const k = t->part->pack;
  t->path = k->path;
  t->base = t->part->at.off;
  t->file_size = t->part->at.len;
  t->file = &k->file;
  t->scans = &k->scans;
  t->past = &k->past;
  return sst_check_size(t->path, t->file_size);
}

static enum remixdb_status take_file(struct sst *t) {
  const struct sst_ctx *const ctx = t->ctx;
  char name[32];
  struct env_stat file;
  sst_name(name, t->number);
  if (!(t->path = env_path_new(ctx->dir, name))) return REMIXDB_NOMEM;
  enum remixdb_status s = env_stat(ctx->dir, name, &file);
  if (s == REMIXDB_NOTFOUND) s = err_corrupt(t->path, 0, "table is missing");
  if (s != REMIXDB_OK) return s;
  t->file_size = file.size;
  if ((s = sst_check_size(t->path, file.size)) != REMIXDB_OK) return s;
  t->file = &t->own[0];
  t->scans = &t->own[1];
  t->past = &t->own[2];
  fdpool_add(ctx->fds, t->file, ctx->dir, t->path, ENV_READ | (ctx->direct_io ? ENV_DIRECT : 0));
  fdpool_add(ctx->fds, t->scans, ctx->dir, t->path, t->file->flags);
  t->scans->advice = ENV_SEQUENTIAL;
  fdpool_add(ctx->fds, t->past, ctx->dir, t->path, ENV_READ | ENV_DIRECT);
  return s;
}

enum remixdb_status sst_open(const struct sst_ctx *ctx, uint64_t number, struct sst **out) {
  *out = NULL;
  struct sst *const t = mem_calloc(1, sizeof(*t));
  if (!t) return REMIXDB_NOMEM;
  sst_scratch_enter();
  t->ctx = ctx;
  t->number = number;
  atomic_init(&t->pieces, NULL);
  atomic_init(&t->chunks, NULL);
  atomic_init(&t->keys_wanted, 0);
  atomic_init(&t->refs, 1);
  atomic_init(&t->obsolete, false);

  int fd;
  t->part = packs_find(ctx->packs, PACK_TABLE, number);
  enum remixdb_status s = t->part ? take_part(t) : take_file(t);
  if (s != REMIXDB_OK) goto out;
  s = fdpool_acquire(t->file, &fd);
  if (s != REMIXDB_OK) goto out;
  s = env_is_hollow(ctx->env, fd, t->base, t->base + t->file_size, SST_HOLE)
          ? err_corrupt(t->path, t->base, "has a hole where blocks should be")
          : sst_load_meta(t, fd);
  fdpool_release(t->file);
  if (s == REMIXDB_OK) s = cache_table_init(&t->cache, ctx->cache, t->nr_pages, number);
out:
  if (s != REMIXDB_OK) {
    sst_free(t);
    return s;
  }
  t->counted = sst_lasting_memory(t);
  budget_take(ctx->budget, BUDGET_TABLES, t->counted);
  *out = t;
  return REMIXDB_OK;
}

void sst_give_pieces(struct sst *t, struct sst_pieces *p) {
  if (!p || !sst_pieces_suit(t) || !sst_pieces_room(t)) {
    mem_free(p);
    return;
  }
  atomic_store_explicit(&t->pieces, p, memory_order_release);
  budget_take(t->ctx->budget, BUDGET_PIECES, sst_pieces_memory(t));
}

void sst_number_as(struct sst *t, uint64_t seq) { t->seq_min = t->seq_max = seq; }

enum remixdb_status sst_renumber(struct sst *t, uint64_t seq) {
  struct env *const env = t->ctx->env;
  uint8_t foot[FORMAT_SST_FOOTER];
  struct format_sst_footer f;
  const uint64_t at = t->file_size - sizeof(foot);
  int fd;
  enum remixdb_status s = env_open(t->ctx->dir, env_name(t->path), ENV_READ | ENV_WRITE, &fd);
  if (s != REMIXDB_OK) return s;
  s = env_read(env, fd, t->path, foot, sizeof(foot), at);
  if (s == REMIXDB_OK) s = format_sst_footer_get(foot, t->file_size, t->path, &f);
  if (s == REMIXDB_OK && (f.seq_width != 0 || f.number != t->number))
    s = err_corrupt(t->path, at, "not a table of one sequence number");
  if (s == REMIXDB_OK) {
    f.seq_min = f.seq_max = seq;
    format_sst_footer_put(foot, &f);
    s = env_write(env, fd, t->path, foot, sizeof(foot), at);
  }
  if (s == REMIXDB_OK) s = env_sync_data(env, fd, t->path);
  env_close_quiet(env, fd);
  if (s != REMIXDB_OK) return s;
  sst_number_as(t, seq);
  t->print = format_sst_print(foot);
  return s;
}

void sst_ref(struct sst *t) { (void)atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed); }

void sst_unref(struct sst *t) {
  // acq_rel: other threads' accesses come before the end
  if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1) return;
  struct pack_part *part = NULL;
  if (atomic_load_explicit(&t->obsolete, memory_order_relaxed)) {
    if (t->ctx->retired) sst_retired_add(t->ctx->retired, -1, t->file_size);
    part = t->part;
    if (!part)
      IGNORED(env_unlink(t->ctx->dir, env_name(t->path)),
              "a file left over costs room until the store is opened again");
  }
  sst_free(t);
  pack_part_drop(part);
}

void sst_retire(struct sst *t) {
  if (!atomic_exchange_explicit(&t->obsolete, true, memory_order_relaxed) && t->ctx->retired)
    sst_retired_add(t->ctx->retired, 1, t->file_size);
}

void sst_trim(void) { sst_scratch_trim(); }
