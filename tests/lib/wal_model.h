// SPDX-License-Identifier: Apache-2.0
//
// Fixture of the tests of the write-ahead log: a log on a simulated disk, and a model of the records that a test has
// appended to it. Calls that return a status hand on the log's; all else that goes wrong fails the test. Only the
// test's thread uses it.
#ifndef TESTS_WAL_MODEL_H
#define TESTS_WAL_MODEL_H

#include "tests/lib/check.h"

#include "log/wal.h"
#include "tests/lib/simdisk.h"

#define STORE 0x5eedf00dcafe1234ull
#define HEAD 512u
#define FRAME_HEAD 40u
#define LEVEL 448u      // offset of the watermark in the header
#define LEVEL_END 504u  // end of the bytes that the header's checksum leaves out
#define DIR "/db"
#define MODEL_MAX 60000u

// The records that were appended. Each is made from a tag, so that a stale record differs from the right one.
struct model {
  uint64_t tags[MODEL_MAX];         // the tags of record i, from 1 on
  bool ends[MODEL_MAX];             // a batch ends with record i
  uint64_t nr;                      // appended
  uint64_t synced;                  // acknowledged as durable
  uint64_t oldest_gen, oldest_seq;  // as the version file would have them
  uint64_t gen, gen_seq;            // the active segment and the number it began after
  uint64_t secured, secured_gen;    // wal_sync_active has returned for records up to here, of this segment
  uint32_t nr_continued;            // openings that appended to a segment with records
  bool fresh;
};

struct model *model_create(void);

// A disk with the directory of the log, which is durable.
struct simdisk *disk_create(void);
static inline const struct env_dir *dir_of(struct simdisk *d) { return simdisk_dir(simdisk_env(d), DIR); }
// Frees both.
void log_end(struct simdisk *d, struct model *m);

static inline uint64_t pick(uint64_t *rng, uint64_t below) { return rng_next(rng) % below; }

// ---- a log with a model

// Opens the log and compares each replayed record with the model, which stays as it is. *out is NULL after a failure.
enum remixdb_status open_as(const struct env_dir *dir, const struct model *m, bool read_only, struct wal_recovery *rec,
                            struct wal **out);
// Opens for writing; after a success the model is cut to the records that were recovered.
enum remixdb_status open_model(const struct env_dir *dir, struct model *m, struct wal **out);
// A new log whose segments grow by so many bytes.
struct wal *open_steps(struct simdisk *d, struct model *m, uint32_t step);
// Appends one batch of nr records, begun by wal_begin or by the function that is given.
enum remixdb_status append(struct wal *w, struct model *m, uint64_t *rng, uint32_t nr);
enum remixdb_status append_by(struct wal *w, struct model *m, uint64_t *rng, uint32_t nr,
                              enum remixdb_status (*begin)(struct wal *w, size_t nbytes, uint64_t *gen_out));
enum remixdb_status sync_model(struct wal *w, struct model *m);
enum remixdb_status secure_model(struct wal *w, struct model *m);  // wal_sync_active
// For wal_switch, with the model as its argument.
void switched(void *arg, uint64_t gen);
// Acts as an installed version does: it releases every segment before the active one. The first one syncs the log
// before; for the other it is enough that the active segment is secured.
enum remixdb_status release_model(struct wal *w, struct model *m);
enum remixdb_status install_model(struct wal *w, struct model *m);

// The image opens, holds a prefix with all synced records, and is not changed by opening it read-only.
void check_image(struct simdisk *d, const struct model *m);
// The same for the images that nr different power cuts leave.
void check_cuts(struct simdisk *d, const struct model *m, uint64_t nr);

// ---- a log without a model

// Opens generation 1. read_only, rec: as for wal_open.
enum remixdb_status open_any(struct simdisk *d, bool fresh, bool read_only, struct wal_recovery *rec, struct wal **out);
// Appends records that take nbytes on disk together, in a frame of their own, and writes the frame.
void append_sized(struct wal *w, size_t nbytes);
// Ends the log as the death of the process does: the file keeps all written bytes, and the buffers are lost.
void die(struct simdisk *d, struct wal *w);

// ---- files

// The path of the file that holds a generation, in a static buffer; NULL: there is none.
const char *file_of(struct simdisk *d, uint64_t gen);
unsigned nr_files(struct simdisk *d);
#endif
