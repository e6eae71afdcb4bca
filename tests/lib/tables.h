// SPDX-License-Identifier: Apache-2.0
//
// Fixture of the tests of single tables: a directory with all that tables need, records to build them from, and whole
// tables read. Random choices come from check_seed, and are made in the thread of the test only.
#ifndef TESTS_TABLES_H
#define TESTS_TABLES_H

#include "tests/lib/check.h"

#include "table/build.h"

static inline uint32_t below(uint32_t n) { return (uint32_t)(rng_next(&check_seed) % n); }

// ---- surroundings

struct world {
  char dir[512];
  struct env_dir at;  // the same, held
  struct blkio io;
  struct blkio_queue *q;
  struct fdpool *fds;
  struct epoch epoch;
  struct epoch_slot slot;
  struct cache *cache;
  struct sst_ctx ctx;
};

// For the whole program: make and remove the directory that the worlds are in.
int root_setup(void **state);
int root_teardown(void **state);

// A new directory on env, with each kind of disk engine in turn. cache_size 0: there is no cache.
struct world *world_open(struct env *env, size_t cache_size, bool direct);
void world_close(struct world *w);
uint32_t files_in(const struct world *w);
static inline uint64_t reads_of(const struct world *w) { return atomic_load(&w->io.nr_reads); }

// ---- records

struct model {
  struct kv_rec *r;  // in the order of their keys
  uint32_t nr;
  uint64_t tombs, key_bytes, value_bytes;
  uint8_t *mem;
  size_t used;
};

// EXACT: pages filled to the last byte, or one less, or one more.
enum style { SMALL, TINY, MIXED, EXACT, LONG_KEYS, ONE, TEXT, STYLES };
extern const uint32_t style_nr[STYLES];  // numbers of records that suit each

struct model model_make(enum style style, uint32_t nr);
void model_free(struct model *m);
// Adds a record whose key and value are the next bytes of mem.
void model_record(struct model *m, uint32_t klen, uint32_t vlen, bool tomb);

void assert_rec(const struct kv_rec *a, const struct kv_rec *b);

// ---- tables

static inline struct sst_build_opts opts(bool ckeys, bool zstd) {
  return (struct sst_build_opts){.ckeys = ckeys,
                                 .compression = zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE};
}

// Build table `number` of the records, with a builder of their own or the one that is given.
enum remixdb_status build(struct world *w, uint64_t number, const struct model *m, struct sst_build_opts o,
                          uint64_t *size_out);
enum remixdb_status build_with(struct sst_build *b, uint64_t number, const struct model *m, uint64_t *size_out);

// Builds and opens a table. *pos_out: as from positions. table_end ends both.
struct sst *table_new(struct world *w, uint64_t number, const struct model *m, struct sst_build_opts o,
                      sst_pos **pos_out);
void table_end(struct sst *t, sst_pos *pos);

// The position of each of the nr records, computed from the counts of the table, and the end. For free.
sst_pos *positions(const struct sst *t, uint32_t nr);
// Reads some pages ahead, from the block on.
void read_on(struct sst *t, uint32_t block, struct sst_hold *h);
// Opens the table and reads all of it in each way. Returns the first error. m: the expected records, or NULL.
enum remixdb_status read_whole(struct world *w, uint64_t number, const struct model *m);

void table_path(const struct world *w, uint64_t number, char path[ENV_PATH_MAX]);
#endif
