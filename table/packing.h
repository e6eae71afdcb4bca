// SPDX-License-Identifier: Apache-2.0
//
// Writing a pack (table/pack.h). The tasks of a round write their parts side by side: each takes a place in the file,
// writes its bytes there and adds the part, which can be read from then on. At the end the caller writes the directory
// and syncs the file. A pack that is not finished is removed with all its parts.
//
// A task that knows the length of its part takes exactly that. A table that is longer than the writer's buffer takes a
// place for the longest table, and gives the rest back when it ends. Places that were given back are used for other
// parts first. A place that stays unused takes no room on disk.
#ifndef TABLE_PACKING_H
#define TABLE_PACKING_H

#include "table/pack.h"

struct packing;
// Makes the file of this number. direct: the parts, the directory and the footer are written past the page cache. Takes
// a place of the pool for its descriptor: the caller holds none. *out is NULL, with REMIXDB_OK, if the system makes no
// holes: then the caller writes files. Fails with REMIXDB_NOMEM, REMIXDB_IO or REMIXDB_NOSPACE.
MUST_CHECK enum remixdb_status packing_begin(struct packs *packs, uint64_t store_id, uint64_t number, bool direct,
                                             struct packing **out);
int packing_fd(const struct packing *w);
bool packing_direct(const struct packing *w);  // all writes must be whole aligned pages, as BLKIO_ALIGN says
const char *packing_path(const struct packing *w);
// Takes a place of `len` bytes, and returns its offset. Any thread.
uint64_t packing_take(struct packing *w, uint64_t len);
// A part is written: len bytes at off, of a place of `taken` bytes. Then packs_find finds it. Any thread. Fails with
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status packing_add(struct packing *w, enum pack_kind kind, uint64_t number, uint64_t off,
                                           uint64_t len, uint64_t taken);
// Takes a place, writes the bytes and adds the part. Any thread. Fails as a write does, or with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status packing_put(struct packing *w, enum pack_kind kind, uint64_t number, const void *bytes,
                                           size_t len);
// Writes directory and footer, and syncs the file. Nobody writes any more. On failure only packing_end may follow.
MUST_CHECK enum remixdb_status packing_finish(struct packing *w);
// Ends it. keep: the parts stay, if packing_finish was called and has succeeded. Else all parts are dropped and the
// file is removed; no table and no REMIX of it is open. NULL is allowed.
void packing_end(struct packing *w, bool keep);
#endif
