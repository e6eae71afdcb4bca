// SPDX-License-Identifier: Apache-2.0
//
// Single keys of a table, read from its compressed keys (table/ckb.h): for iterators that need no values. A reader
// holds one chunk of the compressed keys. The places of the chunks are found once per table, from the chunks' heads.
#ifndef TABLE_KEYS_H
#define TABLE_KEYS_H

#include "table/ckb.h"
#include "table/state.h"

// Where the chunks of a table's compressed keys are, and at which record each begins. One more element ends the array.
struct sst_chunks {
  uint32_t nr;
  struct sst_chunk_at {
    uint64_t off;  // in the compressed keys
    sst_pos first;
  } at[];
};

// A reader's claim on a chunk. Zero it before the first use. It may serve one table after the other. One thread.
struct sst_key_hold {
  const struct sst *sst;  // the chunk's table; NULL: there is no chunk
  uint64_t number;        // the table's; distinguishes a closed table from a new one at the same address
  uint32_t chunk;
  sst_pos pos;   // a record of the chunk,
  uint32_t at;   // and its number in the chunk
  uint8_t *buf;  // the chunk as it is in the file; aligned to BLKIO_ALIGN
  uint8_t *key;  // a key behind the reader's, decoded again
  uint32_t key_cap;
  struct ckb_read read;
};

// Whether the table has compressed keys.
static inline bool sst_has_keys(const struct sst *t) { return t->ckb_len != 0; }
// Reads the key of the record at pos. The key is valid until the next call, and does not need the table. The table has
// compressed keys. Steps on, and short steps back, decode no more than the keys between. REMIXDB_CORRUPT, REMIXDB_IO,
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_key_at(struct sst *t, sst_pos pos, struct sst_key_hold *h, struct kref *key_out);
// Whether a read of that key takes no more bytes from the file than a read of the record's block: its chunk is held, or
// is as short as that. False if the places of the chunks are not known yet; the answer is then counted, and after
// SST_KEYS_WANTED such answers sst_key_at is worth its search for them, so it is true. Any thread.
#define SST_KEYS_WANTED 64u
bool sst_key_cheap(struct sst *t, sst_pos pos, const struct sst_key_hold *h);
void sst_key_hold_fini(struct sst_key_hold *h);
size_t sst_chunks_memory(const struct sst *t);  // bytes
#endif
