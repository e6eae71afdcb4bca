// SPDX-License-Identifier: Apache-2.0
//
// The dictionaries of compressed tables, as zstd needs them to unpack blocks: each takes 27 KB and its bytes, up to 16
// KiB. A store with many tables cannot keep all of them. So the dictionaries of its tables share a bound
// (budget.dicts_most). Beyond that bound, one that was not used for a while goes (CLOCK). It is read and made again
// when a block of its table is unpacked.
//
// Invariants
//   Z1  A thread counts itself as a user before it loads `made`, and until it has unpacked its block. A thread that
//       drops a dictionary takes it out of `made`, and looks for users then; if there are some, it puts the dictionary
//       back. All these accesses are sequentially consistent, so one of the two threads sees what the other has done.
//   Z2  `made` changes under the pool's lock only.
//   Z3  The bytes were checked when the table was opened. When they are read again they have the same hash.
#ifndef TABLE_DICT_H
#define TABLE_DICT_H

#include "table/state.h"

struct sst_dict {
  _Atomic(void *) made;    // ZSTD_DDict; NULL: there is none now
  _Atomic uint32_t users;  // threads that unpack with it, or look for it
  _Atomic bool used;       // since the hand last passed; relaxed
  _Atomic size_t bytes;    // bytes of `made`; relaxed
  uint64_t off, hash;      // its bytes' offset in the file, and their hash
  uint32_t len;
  struct sst_dict *next, *prev;  // the pool's ring of those that are made; guarded by its lock. NULL: not in it
  struct budget *budget;
};

void sst_dicts_init(struct sst_dicts *p);
void sst_dicts_fini(struct sst_dicts *p);  // after its tables
// Drops what is beyond the bound, as far as nobody uses it. Any thread.
void sst_dicts_trim(struct sst_dicts *p, struct budget *b);

// The table is opened: sets t->dict. off: where in its file the dictionary is. Fails with REMIXDB_NOMEM, or with
// REMIXDB_CORRUPT: it is malformed.
MUST_CHECK enum remixdb_status sst_dict_open(struct sst *t, const uint8_t *bytes, uint32_t len, uint64_t off);
void sst_dict_close(struct sst *t);  // nobody uses it; NULL is allowed as t->dict

// Reads the dictionary again and makes it. Keeps it if the bound allows that; else *own_out is set, and sst_dict_end
// frees it. Fails with REMIXDB_NOMEM, REMIXDB_IO or REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status sst_dict_again(const struct sst *t, const void **dict_out, void **own_out);
// These two enclose the use of t->dict, which is not NULL. sst_dict_end follows a failure, too.
MUST_CHECK static inline enum remixdb_status sst_dict_begin(const struct sst *t, const void **dict_out,
                                                            void **own_out) {
  struct sst_dict *const d = t->dict;
  *own_out = NULL;
  (void)atomic_fetch_add_explicit(&d->users, 1, memory_order_seq_cst);  // Z1
  *dict_out = atomic_load_explicit(&d->made, memory_order_seq_cst);
  if (unlikely(*dict_out == NULL)) return sst_dict_again(t, dict_out, own_out);
  if (!atomic_load_explicit(&d->used, memory_order_relaxed))
    atomic_store_explicit(&d->used, true, memory_order_relaxed);
  return REMIXDB_OK;
}
void sst_dict_free(void *own);  // NULL is allowed
static inline void sst_dict_end(const struct sst *t, void *own) {
  (void)atomic_fetch_sub_explicit(&t->dict->users, 1, memory_order_seq_cst);
  if (unlikely(own != NULL)) sst_dict_free(own);
}
#endif
