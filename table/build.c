// SPDX-License-Identifier: Apache-2.0
#include "table/build.h"

#include <assert.h>
#include <stdio.h>
#define ZDICT_STATIC_LINKING_ONLY
#include <zdict.h>
#include <zstd_errors.h>

#include "table/ckb.h"
#include "table/format.h"
#include "table/pieces.h"
#include "base/zmem.h"

#if !defined(SST_BUILD_GATHER)       // small in fuzzing builds
#define SST_BUILD_GATHER (1u << 20)  // bytes of blocks that wait for the dictionary
#endif
// The dictionary is trained on a quarter of the pages of these blocks, within these bounds. Four times as many pages
// take three times as long, and make tables 1 % smaller.
#define SST_BUILD_SAMPLES_LEAST 16u
#define SST_BUILD_SAMPLES 64u
#define SST_BUILD_DICT_PART 32u   // a dictionary has at most 1/32 of the blocks' bytes, so it saves more than it costs
#define SST_BUILD_DICT_MIN 1024u  // a table whose dictionary would have to be smaller has none
// A table has a compressed-keys block if the block has at most 3/10 of the bytes of the table's blocks, and at most
// half of the bytes that these have in the file. Else to write and read the block would cost as much as to read the
// records in their place. A block of a few pages is kept: it costs next to nothing. The builder gives the block up
// early when the block has more than 1/SST_BUILD_SURE of a full table's bytes.
#define SST_BUILD_FEW_KEYS (2u * BLOCK_PAGE)
#define SST_BUILD_SURE 8u
// Chunks are not packed while the block is too large for the table, packed or not. They are not packed either while
// keys have this many bytes or more on average and their entries, before packing, more than half of the bytes of keys
// and values.
#define SST_BUILD_LONG_KEY 1024u

// The keys of a table that will be merged soon are not packed while they have at most this part of the data's bytes:
// packing them, and unpacking them for each REMIX until then, would cost more than to write them as they are.
#define SST_BUILD_SMALL_KEYS 8u

struct sst_build {
  const struct sst_ctx *ctx;
  struct sst_build_opts opts;
  struct blkio_writer *writer;
  struct block_build block;
  struct ckb_build ckb;
  bool ckeys;  // this table still gets a compressed-keys block
  uint64_t number;
  bool begun;            // a table is being built
  bool ajar, made;       // its file is open only while the builder writes to it; it was opened before
  bool direct;           // past the page cache
  int fd;                // the file's, unless it is ajar; in a pack the pack's
  uint32_t held;         // places of the pool that it holds from table to table
  struct packing *pack;  // NULL: the table has a file of its own
  uint64_t off, taken;   // the table's place in the pack: its offset and its bytes
  char path[ENV_PATH_MAX];
  struct err_saved error;  // the first; sticky until the next start
  uint32_t nr_pages;       // pages of the closed blocks
  uint64_t nr_records, nr_tombs, key_bytes, value_bytes;
  uint64_t blocks_sum;        // as in the footer
  uint64_t seq_min, seq_top;  // bounds of the numbers, as the caller gave them
  uint64_t seq_max;           // the largest number so far
  struct spread_build spread;
  uint32_t min_len, max_len;
  uint8_t *min, *max;         // KV_KEY_MAX bytes each
  uint8_t *nr_recs;           // per page: the records of the block that begins there, or 0
  struct sst_pieces *pieces;  // per page, cap_pieces of them; NULL: none
  uint32_t cap_pieces;
  struct sst_apart *apart;  // nr_apart elements, ascending by file; room for cap_apart
  uint32_t nr_apart, cap_apart;
  // The rest is for compression.
  uint32_t *stored;  // per page that begins a block: the block's bytes in the file
  ZSTD_CCtx *zstd;
  const ZSTD_CDict *zdict;  // in zdict_mem
  void *zdict_mem;
  uint8_t *dict;  // FORMAT_SST_DICT_MAX bytes
  uint32_t dict_len;
  uint8_t *gathered;  // the first blocks, until they are enough to train a dictionary
  size_t gathered_len;
  bool gathering;
  bool spaces;       // the records are of the spaces' tree
  uint8_t *samples;  // SST_BUILD_SAMPLES pages
  uint8_t *packed;   // head and frame of one block
};

static inline bool sst_build_ok(const struct sst_build *b) { return likely(b->error.status == REMIXDB_OK); }

static void sst_build_fail(struct sst_build *b, enum remixdb_status s) {
  if (s != REMIXDB_OK && sst_build_ok(b)) err_save(&b->error, s);
}

static enum remixdb_status sst_build_create_zstd(struct sst_build *b) {
  b->stored = mem_alloc(FORMAT_SST_PAGES_MAX * sizeof(*b->stored));
  b->dict = mem_alloc(FORMAT_SST_DICT_MAX);
  b->gathered = mem_alloc(SST_BUILD_GATHER + BLOCK_BYTES_MAX);
  b->samples = mem_alloc(SST_BUILD_SAMPLES * BLOCK_PAGE);
  b->packed = mem_alloc(FORMAT_SST_STORED_HEAD + BLOCK_BYTES_MAX);
  if (!b->stored || !b->dict || !b->gathered || !b->samples || !b->packed) return REMIXDB_NOMEM;
  b->zstd = ZSTD_createCCtx_advanced(zmem());
  if (!b->zstd) return err_set(REMIXDB_NOMEM, "no memory for compression");
  // A table has at most one dictionary, so frames have no dictionary id. Blocks have the format's own checksum. zstd
  // replaces a level that is out of range by the nearest one.
  (void)ZSTD_CCtx_setParameter(b->zstd, ZSTD_c_dictIDFlag, 0);
  (void)ZSTD_CCtx_setParameter(b->zstd, ZSTD_c_checksumFlag, 0);
  (void)ZSTD_CCtx_setParameter(b->zstd, ZSTD_c_compressionLevel, b->opts.level);
  return REMIXDB_OK;
}

_Static_assert(SST_BUILD_PAGES == FORMAT_SST_PAGES_MAX - BLOCK_PAGES_MAX, "the last block may be of any length");

void sst_build_pages(struct sst_build *b, uint32_t max_pages) {
  if (max_pages == 0) max_pages = SST_FULL_PAGES;
  b->opts.max_pages = max_pages < SST_BUILD_PAGES ? max_pages : SST_BUILD_PAGES;
}

enum remixdb_status sst_build_create(const struct sst_ctx *ctx, const struct sst_build_opts *o, struct blkio_queue *q,
                                     struct sst_build **out) {
  *out = NULL;
  struct sst_build *const b = mem_calloc(1, sizeof(*b));
  if (!b) return REMIXDB_NOMEM;
  b->ctx = ctx;
  b->opts = *o;
  sst_build_pages(b, o->max_pages);
  b->fd = -1;
  ckb_build_init(&b->ckb, 0);
  enum remixdb_status s = block_build_init(&b->block);
  if (s == REMIXDB_OK) s = blkio_writer_create(q, &b->writer);
  if (s != REMIXDB_OK) goto out;
  b->nr_recs = mem_alloc(FORMAT_SST_PAGES_MAX);
  b->min = mem_alloc(KV_KEY_MAX);
  b->max = mem_alloc(KV_KEY_MAX);
  if (!b->nr_recs || !b->min || !b->max) s = REMIXDB_NOMEM;
  if (s == REMIXDB_OK && o->compression != REMIXDB_COMPRESSION_NONE) s = sst_build_create_zstd(b);
out:
  if (s != REMIXDB_OK) {
    sst_build_destroy(b);
    return s;
  }
  *out = b;
  return REMIXDB_OK;
}

// The table's file is closed: its place goes back, unless the builder holds it.
static void sst_build_give_place(const struct sst_build *b) {
  if (!b->opts.pauses) fdpool_unreserve(b->ctx->fds);
}

// Removes an unfinished file. Does not change the thread's error message.
static void sst_build_abandon(struct sst_build *b) {
  if (!b->begun) return;
  b->begun = false;
  if (!b->ajar)
    IGNORED(blkio_writer_finish(b->writer, false),
            "it only has to wait: nothing may be in flight to a closed descriptor");
  if (b->pack) return;  // the pack goes with all its parts
  env_close_quiet(b->ctx->env, b->fd);
  if (!b->ajar) sst_build_give_place(b);
  IGNORED(env_unlink(b->ctx->dir, env_name(b->path)), "opening the store removes files that no version names");
}

void sst_build_destroy(struct sst_build *b) {
  if (!b) return;
  sst_build_abandon(b);
  if (b->held) fdpool_unhold(b->ctx->fds, b->held);
  blkio_writer_destroy(b->writer);
  block_build_fini(&b->block);
  ckb_build_fini(&b->ckb);
  (void)ZSTD_freeCCtx(b->zstd);
  mem_free(b->zdict_mem);
  mem_free(b->min);
  mem_free(b->max);
  mem_free(b->nr_recs);
  mem_free(b->apart);
  mem_free(b->pieces);
  mem_free(b->stored);
  mem_free(b->dict);
  mem_free(b->gathered);
  mem_free(b->samples);
  mem_free(b->packed);
  mem_free(b);
}

static void sst_build_anew(struct sst_build *b, uint64_t number) {
  assert(number < (uint64_t)1 << 47);
  sst_build_abandon(b);
  b->pack = NULL;
  b->begun = b->ajar = b->made = false;
  b->fd = -1;
  b->number = number;
  b->error.status = REMIXDB_OK;
  mem_free(b->pieces);
  b->pieces = NULL;
  b->cap_pieces = 0;
  b->nr_pages = 0;
  b->nr_records = b->nr_tombs = b->key_bytes = b->value_bytes = b->blocks_sum = 0;
  b->min_len = b->max_len = 0;
  b->block.count = 0;
  b->block.used = 0;
  b->seq_min = b->seq_top = b->seq_max = 1;
  b->spaces = false;
  spread_begin(&b->spread);
  b->block.form = BLOCK_FORM_KINDS;
  b->nr_apart = 0;
  b->dict_len = 0;
  b->gathered_len = 0;
  b->gathering = b->opts.compression != REMIXDB_COMPRESSION_NONE;
  b->ckeys = b->opts.ckeys;
  ckb_build_init(&b->ckb, number);
  if (b->zdict) (void)ZSTD_CCtx_refCDict(b->zstd, NULL);
  mem_free(b->zdict_mem);  // also that of a dictionary that zstd refused
  b->zdict = b->zdict_mem = NULL;
}

// Takes the places to hold, if the pool has them. Two, where the writer may make a ring.
static bool sst_build_hold(struct sst_build *b) {
  struct fdpool *const p = b->ctx->fds;
  const uint32_t nr = b->ctx->io->kind == BLKIO_URING ? SST_BUILD_HELD : 1;
  if (b->held && !fdpool_holds_fit(p)) {
    fdpool_unhold(p, b->held);
    b->held = 0;
  }
  if (!b->held && fdpool_hold(p, nr)) b->held = nr;
  return b->held > 0;
}

static unsigned sst_build_flags(const struct sst_build *b) { return ENV_WRITE | (b->direct ? ENV_DIRECT : 0); }

// struct blkio_door
static enum remixdb_status sst_build_open(void *arg, int *fd_out) {
  struct sst_build *const b = arg;
  const struct env_dir *const dir = b->ctx->dir;
  const char *const name = env_name(b->path);
  fdpool_reserve(b->ctx->fds);
  enum remixdb_status s = b->made ? env_open(dir, name, sst_build_flags(b), fd_out)
                                  : env_create(dir, name, sst_build_flags(b), fd_out);
  if (s == REMIXDB_NOTFOUND) s = err_set(REMIXDB_IO, "%s: removed while it was being written", b->path);
  if (s == REMIXDB_OK) b->made = true;
  else fdpool_unreserve(b->ctx->fds);
  return s;
}

static enum remixdb_status sst_build_shut(void *arg, int fd) {
  const struct sst_build *const b = arg;
  const enum remixdb_status s = env_close(b->ctx->env, fd, b->path);
  fdpool_unreserve(b->ctx->fds);
  return s;
}

void sst_build_start(struct sst_build *b, uint64_t number) {
  sst_build_anew(b, number);
  char name[32];
  sst_name(name, number);
  enum remixdb_status s = env_path(b->path, b->ctx->dir->path, name);
  b->direct = blkio_past(b->ctx->io);
  if (s == REMIXDB_OK && b->opts.pauses && !sst_build_hold(b)) {
    const struct blkio_door door = {sst_build_open, sst_build_shut, b};
    b->begun = b->ajar = true;
    blkio_writer_start_ajar(b->writer, b->path, b->direct, &door);
    return;
  }
  if (!b->opts.pauses) fdpool_reserve(b->ctx->fds);
  // The number is new, but a process that died may have left a file with it. env_create replaces such a file.
  if (s == REMIXDB_OK) s = env_create(b->ctx->dir, name, sst_build_flags(b), &b->fd);
  if (s == REMIXDB_OK) {
    b->begun = true;
    blkio_writer_start(b->writer, b->fd, b->path, b->direct);
  } else {
    b->fd = -1;
    sst_build_give_place(b);
  }
  sst_build_fail(b, s);
}

// Bytes of a table of this builder, at most: its data; the compressed keys, which are at most half of that, or a few
// pages; the metadata.
static uint64_t sst_build_most(const struct sst_build *b) {
  const uint64_t pages = b->opts.max_pages + BLOCK_PAGES_MAX, data = pages * (BLOCK_PAGE + 1);
  return data + data / 2 + SST_BUILD_FEW_KEYS + pages * 6 + 2 * (uint64_t)KV_KEY_MAX + FORMAT_SST_DICT_MAX +
         FORMAT_SST_APART * (uint64_t)FORMAT_SST_APART_MAX + 2 * FORMAT_SST_ALIGN;
}

// blkio_place_fn
static uint64_t sst_build_place(void *arg, uint64_t len, bool all) {
  struct sst_build *const b = arg;
  b->taken = all ? len : sst_build_most(b);
  return b->off = packing_take(b->pack, b->taken);
}

void sst_build_start_in(struct sst_build *b, uint64_t number, struct packing *pack) {
  sst_build_anew(b, number);
  b->pack = pack;
  b->fd = packing_fd(pack);
  b->begun = true;
  (void)snprintf(b->path, sizeof(b->path), "%s", packing_path(pack));
  blkio_writer_start_part(b->writer, b->fd, b->path, packing_direct(pack), sst_build_place, b);
}

// Writes one block: compressed, or raw if that is not larger.
static enum remixdb_status sst_build_pack(struct sst_build *b, const uint8_t *block, uint32_t number) {
  const size_t len = (size_t)block_pages(block) * BLOCK_PAGE - FORMAT_SST_STORED_SKIP;
  const uint8_t *const src = block + FORMAT_SST_STORED_SKIP;
  uint8_t *const p = b->packed, *const dst = p + FORMAT_SST_STORED_HEAD;
  size_t n = ZSTD_compress2(b->zstd, dst, len - 1, src, len);
  if (ZSTD_isError(n)) {
    // The frame that did not fit is still open, and zstd takes no dictionary while a frame is open.
    (void)ZSTD_CCtx_reset(b->zstd, ZSTD_reset_session_only);
    if (ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation)
      return err_set(REMIXDB_NOMEM, "%s: no memory for compression", b->path);
    p[FORMAT_SST_STORED_KIND] = FORMAT_SST_STORED_RAW;
    memcpy(dst, src, len);
    n = len;
  } else {
    p[FORMAT_SST_STORED_KIND] = FORMAT_SST_STORED_ZSTD;
  }
  n += FORMAT_SST_STORED_HEAD;
  const uint64_t sum = hash64_seed(p + FORMAT_SST_STORED_KIND, n - FORMAT_SST_STORED_KIND,
                                   block_seed(b->number, number));
  store64le(p + FORMAT_SST_STORED_SUM, sum);
  b->blocks_sum += sum;
  blkio_writer_put(b->writer, p, n);
  b->stored[number] = (uint32_t)n;
  return REMIXDB_OK;
}

// How dictionaries are trained. ZDICT_trainFromBuffer tries five lengths of segments, with 4 MiB of counters each. It
// takes 25 to 41 ms, as long as the compression of 5 to 8 MB. With these parameters it takes 2 to 3 ms, and tables are
// 2 % larger or smaller (docs/DECISIONS.md). Versions before 1.4.5 may have another struct.
#if ZSTD_VERSION_NUMBER < 10405
#error "zstd 1.4.5 or later is needed"
#endif
static const ZDICT_fastCover_params_t trained_by = {.k = 100, .d = 6, .f = 16, .accel = 2, .splitPoint = 1};

// Trains a dictionary on pages spread over the gathered blocks. A table that is too small or too random has none.
static enum remixdb_status sst_build_train(struct sst_build *b) {
  size_t cap = b->gathered_len / SST_BUILD_DICT_PART;
  if (cap > FORMAT_SST_DICT_MAX) cap = FORMAT_SST_DICT_MAX;
  if (cap < SST_BUILD_DICT_MIN) return REMIXDB_OK;
  const size_t pages = b->gathered_len / BLOCK_PAGE;
  const size_t wanted = pages / 4 > SST_BUILD_SAMPLES_LEAST ? pages / 4 : SST_BUILD_SAMPLES_LEAST;
  size_t nr = wanted < SST_BUILD_SAMPLES ? wanted : SST_BUILD_SAMPLES;
  if (nr > pages) nr = pages;
  size_t sizes[SST_BUILD_SAMPLES];
  for (size_t i = 0; i < nr; i++) {
    memcpy(b->samples + i * BLOCK_PAGE, b->gathered + i * pages / nr * BLOCK_PAGE, BLOCK_PAGE);
    sizes[i] = BLOCK_PAGE;
  }
  const size_t n = ZSTD_versionNumber() < 10405
                       ? ZDICT_trainFromBuffer(b->dict, cap, b->samples, sizes, (unsigned)nr)
                       : ZDICT_trainFromBuffer_fastCover(b->dict, cap, b->samples, sizes, (unsigned)nr, trained_by);
  if (ZDICT_isError(n) || n == 0) return REMIXDB_OK;
  // The parameters are for inputs of one page, because most blocks have one page. Without a size zstd would choose
  // parameters for large inputs. This function allocates the dictionary's memory itself, because zstd up to 1.5.4
  // crashes if it cannot allocate that memory. The memory is zeroed, because zstd does not set the dictionary's level
  // when a caller gives parameters. zstd reads this level with each block; 0 means that there is none.
  const ZSTD_compressionParameters params = ZSTD_getCParams(b->opts.level, BLOCK_PAGE, n);
  const size_t size = ZSTD_estimateCDictSize_advanced(n, params, ZSTD_dlm_byRef);
  if (!(b->zdict_mem = mem_calloc(1, size))) return REMIXDB_NOMEM;
  b->zdict = ZSTD_initStaticCDict(b->zdict_mem, size, b->dict, n, ZSTD_dlm_byRef, ZSTD_dct_auto, params);
  if (!b->zdict) return err_set(REMIXDB_NOMEM, "%s: no memory for a dictionary", b->path);
  const size_t r = ZSTD_CCtx_refCDict(b->zstd, b->zdict);
  if (ZSTD_isError(r)) return err_set(REMIXDB_NOMEM, "%s: dictionary: %s", b->path, ZSTD_getErrorName(r));
  b->dict_len = (uint32_t)n;
  return REMIXDB_OK;
}

// Ends the gathering: trains, then writes the gathered blocks.
static enum remixdb_status sst_build_put_gathered(struct sst_build *b) {
  b->gathering = false;
  enum remixdb_status s = sst_build_train(b);
  uint32_t number = 0;
  while (s == REMIXDB_OK && (size_t)number * BLOCK_PAGE < b->gathered_len) {
    const uint8_t *const p = b->gathered + (size_t)number * BLOCK_PAGE;
    s = sst_build_pack(b, p, number);
    number += block_pages(p);
  }
  return s;
}

// Makes room for the pieces of cap pages. False: no memory; nothing has changed.
static bool sst_build_more_pieces(struct sst_build *b, uint32_t cap) {
  struct sst_pieces *const p = sst_pieces_make(cap);
  if (!p) return false;
  if (b->pieces) memcpy(p, b->pieces, (b->cap_pieces < cap ? b->cap_pieces : cap) * sizeof(*p));
  mem_free(b->pieces);
  b->pieces = p;
  b->cap_pieces = cap;
  return true;
}

// Computes the pieces of a block (table/pieces.h). If memory is missing, a reader computes them later.
static void sst_build_cut(struct sst_build *b, const uint8_t *block, uint32_t number) {
  if (!b->opts.pieces || b->opts.compression != REMIXDB_COMPRESSION_NONE || b->ctx->direct_io) return;
  if (b->key_bytes + b->value_bytes > b->nr_records * SST_PIECES_RECORD) return;  // the records so far are too large
  if (b->nr_pages > b->cap_pieces && !sst_build_more_pieces(b, b->nr_pages * 2)) return;
  sst_pieces_cut(&b->pieces[number], block, b->number, number);
}

// Tells whether the keys so far are long, and most of the records (SST_BUILD_LONG_KEY).
static bool sst_build_keys_long(const struct sst_build *b) {
  return b->key_bytes >= b->nr_records * SST_BUILD_LONG_KEY && 2 * b->ckb.entries > b->key_bytes + b->value_bytes;
}

// Tells whether a compressed-keys block of so many bytes is small enough beside the blocks that are closed, which have
// so many bytes in the file.
static bool sst_build_keys_small(const struct sst_build *b, size_t len, uint64_t stored) {
  const uint64_t n = len, blocks = (uint64_t)b->nr_pages * BLOCK_PAGE;
  return n <= SST_BUILD_FEW_KEYS || (10 * n <= 3 * blocks && 2 * n <= stored);
}

// Tells whether such a block is worth its room.
static bool sst_build_keys_pay(const struct sst_build *b, size_t len, uint64_t stored) {
  return len <= SST_BUILD_FEW_KEYS || (sst_build_keys_small(b, len, stored) && !sst_build_keys_long(b));
}

// Leaves out the compressed-keys block.
static void sst_build_drop_ckeys(struct sst_build *b) {
  b->ckeys = false;
  ckb_build_init(&b->ckb, b->number);
}

// Looks whether the block of compressed keys pays so far, after a block of data.
static void sst_build_judge_keys(struct sst_build *b) {
  // the data as it is in the file; blocks that wait for a dictionary count in full
  const uint64_t data = blkio_writer_offset(b->writer) + (b->gathering ? b->gathered_len : 0);
  const size_t len = b->ckb.chunk;  // the chunks that are closed
  b->ckb.plain = sst_build_keys_long(b) || !sst_build_keys_small(b, len, data) ||
                 (b->opts.brief && SST_BUILD_SMALL_KEYS * b->ckb.entries <= data);
  if (len > (uint64_t)b->opts.max_pages * BLOCK_PAGE / SST_BUILD_SURE && !sst_build_keys_pay(b, len, data))
    sst_build_drop_ckeys(b);
}

static enum remixdb_status sst_build_close_block(struct sst_build *b) {
  const uint32_t number = b->nr_pages, count = b->block.count;
  const uint32_t pages = block_build_finish(&b->block, b->number, number);
  const uint8_t *const buf = b->block.buf;
  enum remixdb_status s = REMIXDB_OK;
  b->nr_recs[number] = (uint8_t)count;
  memset(b->nr_recs + number + 1, 0, pages - 1);
  b->nr_pages += pages;

  sst_build_cut(b, buf, number);

  const size_t size = (size_t)pages * BLOCK_PAGE;
  if (b->gathering) {
    memcpy(b->gathered + b->gathered_len, buf, size);
    // the checksum is not stored, and would be noise for the training
    memset(b->gathered + b->gathered_len, 0, FORMAT_SST_STORED_SKIP);
    b->gathered_len += size;
    if (b->gathered_len >= SST_BUILD_GATHER) s = sst_build_put_gathered(b);
  } else if (b->opts.compression != REMIXDB_COMPRESSION_NONE) {
    s = sst_build_pack(b, buf, number);
  } else {
    b->blocks_sum += load64le(buf + BLOCK_OFF_SUM);
    blkio_writer_put(b->writer, buf, size);
  }
  if (b->ckeys) sst_build_judge_keys(b);
  return s;
}

// Returns how many bytes a number takes.
static uint32_t width_of(uint64_t n) { return n ? (64 - (uint32_t)__builtin_clzll(n) + 7) / 8 : 0; }

void sst_build_numbers(struct sst_build *b, uint64_t min, uint64_t max) {
  assert(b->nr_records == 0 && min > 0 && min <= max && max <= FORMAT_SST_SEQ_MAX);
  b->seq_min = min;
  b->seq_top = max;
  b->seq_max = min;
  b->block.form = BLOCK_FORM_KINDS | width_of(max - min);
}

void sst_build_spaces(struct sst_build *b) {
  assert(b->nr_records == 0);
  b->spaces = true;
}

// The number of a record, less the table's smallest one. The number of a damaged record may be out of bounds.
static inline uint64_t sst_build_seq(struct sst_build *b, const struct kv_rec *r) {
  if (b->seq_top == b->seq_min) return 0;
  if (unlikely(r->seq - b->seq_min > b->seq_top - b->seq_min)) {
    sst_build_fail(b, err_corrupt(b->path, blkio_writer_offset(b->writer),
                                  "the number of record %llu for this table is out of bounds",
                                  (unsigned long long)b->nr_records));
    return 0;
  }
  if (r->seq > b->seq_max) b->seq_max = r->seq;
  return r->seq - b->seq_min;
}

void sst_build_add(struct sst_build *b, const struct kv_rec *given) {
  if (!sst_build_ok(b)) return;
  struct kv_rec rec;
  const struct kv_rec *r = given;
  if (unlikely(given->kind & ~KV_IN_TABLE)) {
    rec = *given;
    rec.kind &= KV_IN_TABLE;
    r = &rec;
  }
  assert(kv_lengths_fit(r->kind, r->klen, r->kind & KV_TOMB ? 0 : r->vlen));
  const size_t size = block_build_size(&b->block, r);
  const uint64_t seq = sst_build_seq(b, r);
  enum remixdb_status s = REMIXDB_OK;
  // Old files may be damaged, so the order of their records is checked here, and not only when the new table is read.
  if (unlikely(b->nr_records && kv_cmp(kref(b->max, b->max_len), kref(r->key, r->klen)) >= 0)) {
    sst_build_fail(b, err_corrupt(b->path, blkio_writer_offset(b->writer),
                                  "the records for this table are out of order at record %llu",
                                  (unsigned long long)b->nr_records));
    return;
  }
  if (!block_build_fits(&b->block, size)) s = sst_build_close_block(b);
  if (s == REMIXDB_OK && b->ckeys) s = ckb_build_add(&b->ckb, kref(r->key, r->klen), r->kind);
  if (unlikely(s != REMIXDB_OK)) {
    sst_build_fail(b, s);
    return;
  }
  assert(b->nr_pages + BLOCK_PAGES_MAX <= FORMAT_SST_PAGES_MAX);
  if (r->klen) memcpy(b->max, r->key, r->klen);
  b->max_len = r->klen;
  if (unlikely(b->nr_records == 0)) {
    if (r->klen) memcpy(b->min, r->key, r->klen);
    b->min_len = r->klen;
  }
  block_build_add(&b->block, r, seq);
  b->nr_records++;
  b->nr_tombs += r->kind & KV_TOMB;
  if (unlikely(r->kind & KV_EXPIRES)) spread_add(&b->spread, r->expiry, size);
  b->key_bytes += r->klen;
  b->value_bytes += r->kind & KV_TOMB ? 0 : r->vlen;
}

struct sst_pieces *sst_build_pieces(struct sst_build *b) {
  struct sst_pieces *p = NULL;
  if (b->pieces && b->cap_pieces >= b->nr_pages) {
    if (b->cap_pieces > b->nr_pages) (void)sst_build_more_pieces(b, b->nr_pages);  // shrinks, or keeps what it has
    p = b->pieces;
  } else {
    mem_free(b->pieces);
  }
  b->pieces = NULL;
  b->cap_pieces = 0;
  return p;
}

bool sst_build_failed(const struct sst_build *b) {
  return !sst_build_ok(b) || (b->begun && blkio_writer_failed(b->writer));
}

bool sst_build_full(const struct sst_build *b) {
  return b->nr_pages + block_build_pages(&b->block) >= b->opts.max_pages;
}

bool sst_build_takes(const struct sst_build *b, const struct kv_rec *r) {
  return !sst_build_full(b) || (b->block.count && block_build_fits(&b->block, block_build_size(&b->block, r)));
}

uint64_t sst_build_bytes(const struct sst_build *b) {
  return ((uint64_t)b->nr_pages + block_build_pages(&b->block)) * BLOCK_PAGE;
}

void sst_build_apart(struct sst_build *b, uint64_t file, uint64_t bytes) {
  uint32_t at = b->nr_apart;
  while (at > 0 && b->apart[at - 1].file >= file) at--;
  if (at < b->nr_apart && b->apart[at].file == file) {
    b->apart[at].bytes += bytes;
    return;
  }
  if (!sst_build_ok(b)) return;
  if (b->nr_apart == FORMAT_SST_APART_MAX) {
    sst_build_fail(b, err_set(REMIXDB_INVALID, "%s: the records refer to too many value files", b->path));
    return;
  }
  if (b->nr_apart == b->cap_apart) {
    const uint32_t cap = b->cap_apart ? 2 * b->cap_apart : 16;
    struct sst_apart *const grown = mem_realloc(b->apart, cap * sizeof(*grown));
    if (!grown) {
      sst_build_fail(b, REMIXDB_NOMEM);
      return;
    }
    b->apart = grown;
    b->cap_apart = cap;
  }
  memmove(b->apart + at + 1, b->apart + at, (b->nr_apart - at) * sizeof(*b->apart));
  b->apart[at] = (struct sst_apart){file, bytes};
  b->nr_apart++;
}

static uint8_t *put_apart(const struct sst_build *b, uint8_t *p) {
  for (uint32_t i = 0; i < b->nr_apart; i++, p += FORMAT_SST_APART) {
    store64le(p, b->apart[i].file);
    store64le(p + 8, b->apart[i].bytes);
  }
  return p;
}

// Writes the metadata and the footer.
static enum remixdb_status sst_build_put_meta(struct sst_build *b, uint64_t data_size) {
  const bool zstd = b->opts.compression != REMIXDB_COMPRESSION_NONE;
  const size_t cap = (size_t)b->nr_pages + b->min_len + b->max_len + b->dict_len +
                     (zstd ? (size_t)b->nr_pages * 5 : 0) + FORMAT_SST_APART * (size_t)b->nr_apart + FORMAT_SST_ALIGN;
  uint8_t *const meta = mem_calloc(1, cap + FORMAT_SST_FOOTER);
  if (!meta) return REMIXDB_NOMEM;
  uint8_t *p = meta;
  memcpy(p, b->nr_recs, b->nr_pages);
  p += b->nr_pages;
  memcpy(p, b->min, b->min_len);
  p += b->min_len;
  memcpy(p, b->max, b->max_len);
  p += b->max_len;
  if (b->dict_len) memcpy(p, b->dict, b->dict_len);
  p += b->dict_len;
  const uint8_t *const sizes = p;
  for (uint32_t i = 0; zstd && i < b->nr_pages; i++)
    if (b->nr_recs[i]) p = kv_varint_put(p, b->stored[i]);
  const uint32_t sizes_len = (uint32_t)(p - sizes);
  p = put_apart(b, p);

  const uint64_t meta_off = blkio_writer_offset(b->writer);
  const uint64_t file_size = align_up(meta_off + (uint64_t)(p - meta) + FORMAT_SST_FOOTER, FORMAT_SST_ALIGN);
  const uint64_t meta_len = file_size - FORMAT_SST_FOOTER - meta_off;
  assert(meta_len <= cap);
  struct spread expiry;
  spread_end(&b->spread, &expiry);
  const struct format_sst_footer f = {
      .store_id = b->ctx->store_id,
      .number = b->number,
      .nr_records = b->nr_records,
      .nr_tombs = b->nr_tombs,
      .key_bytes = b->key_bytes,
      .value_bytes = b->value_bytes,
      .data_size = data_size,
      .ckb_off = b->ckb.len ? data_size : 0,
      .ckb_len = b->ckb.len,
      .meta_off = meta_off,
      .meta_len = meta_len,
      .meta_sum = hash64_seed(meta, meta_len, format_sst_meta_seed(b->number)),
      .file_size = file_size,
      .nr_pages = b->nr_pages,
      .flags = (b->ckb.len ? FORMAT_SST_FLAG_CKB : 0) | (zstd ? FORMAT_SST_FLAG_ZSTD : 0) |
               (b->spaces ? FORMAT_SST_FLAG_SPACES : 0),
      .min_len = b->min_len,
      .max_len = b->max_len,
      .dict_len = b->dict_len,
      .sizes_len = sizes_len,
      .nr_apart = b->nr_apart,
      .blocks_sum = b->blocks_sum,
      .seq_min = b->seq_min,
      .seq_max = b->seq_max,
      .expiry = expiry,
      .seq_width = block_form_width(b->block.form),
  };
  format_sst_footer_put(meta + meta_len, &f);
  blkio_writer_put(b->writer, meta, meta_len + FORMAT_SST_FOOTER);
  mem_free(meta);
  return REMIXDB_OK;
}

enum remixdb_status sst_build_finish(struct sst_build *b, uint64_t *size_out) {
  assert(b->nr_records > 0 || !sst_build_ok(b));
  enum remixdb_status s = b->error.status;
  if (s == REMIXDB_OK && b->nr_records == 0) s = err_set(REMIXDB_INVALID, "%s: a table without records", b->path);
  if (s == REMIXDB_OK) s = sst_build_close_block(b);
  if (s == REMIXDB_OK && b->gathering) s = sst_build_put_gathered(b);
  if (s == REMIXDB_OK) {
    const uint64_t data_size = blkio_writer_offset(b->writer);
    if (b->ckeys) s = ckb_build_finish(&b->ckb);
    if (b->ckeys && s == REMIXDB_OK && !sst_build_keys_pay(b, b->ckb.len, data_size)) sst_build_drop_ckeys(b);
    if (b->ckeys && s == REMIXDB_OK) blkio_writer_put(b->writer, b->ckb.buf, b->ckb.len);
    if (s == REMIXDB_OK) s = sst_build_put_meta(b, data_size);
  }
  if (s == REMIXDB_OK) {
    *size_out = blkio_writer_offset(b->writer);
    s = blkio_writer_finish(b->writer, b->pack == NULL);
  }
  if (s == REMIXDB_OK && b->pack) {
    s = *size_out <= b->taken ? packing_add(b->pack, PACK_TABLE, b->number, b->off, *size_out, b->taken)
                              : err_set(REMIXDB_INVALID, "%s: a table is longer than its place", b->path);
    if (s == REMIXDB_OK) b->begun = false;
  } else if (s == REMIXDB_OK) {
    b->begun = false;
    if (!b->ajar) {
      s = env_close(b->ctx->env, b->fd, b->path);
      sst_build_give_place(b);
    }
    sst_build_fail(b, s);
    if (s != REMIXDB_OK)
      IGNORED(env_unlink(b->ctx->dir, env_name(b->path)), "opening the store removes files that no version names");
  }
  sst_build_fail(b, s);
  sst_build_abandon(b);
  return err_raise(&b->error);
}
