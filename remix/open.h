// SPDX-License-Identifier: Apache-2.0
//
// Opening a REMIX, and its life: references, the file's end, figures. remix/remix.h has what a REMIX is.
#ifndef REMIX_OPEN_H
#define REMIX_OPEN_H

#include "remix/state.h"

// Reads the file and checks it: the checksum, and every count, offset, selector and position against the tables. *out
// has one reference, and references the tables. Fails with REMIXDB_CORRUPT (also if the file is missing),
// REMIXDB_VERSION, REMIXDB_NOMEM or REMIXDB_IO.
MUST_CHECK enum remixdb_status remix_open(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs,
                                          uint32_t nr_runs, struct remix **out);
// A file that was just written and synced, and the image that it was made of (remix/build.h).
struct remix_built {
  const uint8_t *image;
  size_t image_size;
  uint64_t file_size, print;
};
// Opens such a REMIX. Copies the image in its narrow form (remix/narrow.h), checks it as remix_open does, and does not
// read the file. Fails with REMIXDB_NOMEM or REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status remix_open_built(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs,
                                                uint32_t nr_runs, const struct remix_built *built, struct remix **out);
// The facts that both ends of a REMIX file tell.
struct remix_peek {
  struct sst_peek file;
  uint64_t entries, keys;  // as struct remix has them
  bool expires;            // some record expires
  bool odd;                // the format is not known: the whole file tells whether it is a later one, or damage
};
// Reads both ends of a REMIX file, and checks that they are of this file and of this store. Two reads. Fails as
// remix_open does.
MUST_CHECK enum remixdb_status remix_look(const struct sst_ctx *ctx, uint64_t number, struct remix_peek *out);
void remix_ref(struct remix *x);
// NULL is allowed. The last reference drops the references to the tables, and removes the file if the REMIX is
// obsolete.
void remix_unref(struct remix *x);
void remix_retire(struct remix *x);           // makes x obsolete: no version will name it
void remix_name(char *buf, uint64_t number);  // "000001.remix"; buf has 32 bytes
// Makes x a young view, which readers read beside an older view. The tombstones of a young view are live, because they
// hide entries of the older view: a get or a cursor returns them like any record. Each block that a seek reads from
// disk, or with which a scan begins, is a jump. Call it before another thread has x.
void remix_make_young(struct remix *x);
bool remix_is_young(const struct remix *x);
size_t remix_memory(const struct remix *x);  // bytes
// Sets the watch of x's scan debt; the watch outlives x. NULL, as after the opening, means no watch. Call it before
// another thread has x.
void remix_watch(struct remix *x, const struct remix_watch *w);
// Adds to x's scan debt, and calls the watch if the debt is due. Any thread.
void remix_add_debt(struct remix *x, uint64_t scan_debt);
// Tells whether some record of the view expires.
bool remix_expires(const struct remix *x);
// The anchor of a segment, seg < nr_segs, of a whole view or a page: points into the image, or to `room`, which has
// KV_KEY_MAX bytes.
struct kref remix_anchor(const struct remix *x, uint32_t seg, uint8_t *room);
int remix_anchor_cmp(const struct remix *x, uint32_t seg, struct kref key);  // as kv_cmp of the anchor and the key

// ---- steps of an opening, for this file and remix/paged.c

// Makes a REMIX with its path and its tables, and without an image.
MUST_CHECK enum remixdb_status remix_create(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs,
                                            uint32_t nr_runs, struct remix **out);
void remix_free(struct remix *x);
// Frees the image of a whole REMIX.
void remix_drop_image(struct remix *x);
// Checks the fields that every format has in the same place, before the checksum.
MUST_CHECK enum remixdb_status remix_check_start(const char *path, uint64_t file_size, const uint8_t *head);
// Compares flags, owner, size of a segment and tables in the header with what is known, and takes the counts.
MUST_CHECK enum remixdb_status remix_check_head(struct remix *x, const uint8_t *head);
// Checks anchors and segments of a plain image whose pointers are set, and counts. anchors_len: bytes of all anchors.
// walked: the cursor offsets are right.
MUST_CHECK enum remixdb_status remix_check_image(struct remix *x, uint64_t anchors_len, bool walked);
// Prepares the search for anchors, of an image that stays where it is. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_take_anchors(struct remix *x);
#endif
