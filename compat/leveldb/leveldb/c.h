/* SPDX-License-Identifier: Apache-2.0 */
/*
   LevelDB's C interface, on RemixDB stores (docs/LEVELDB.md). A program that was written for leveldb/c.h compiles with
   this header and links with -lremixdb-leveldb. The functions and their types are those of LevelDB 1.23. The data is
   not: a directory that LevelDB has written does not open.

   Arguments. Every pointer is valid, unless a comment allows NULL. A key or a value is a pointer and a length in bytes.
   A flag of type uint8_t is false when it is 0.

   Errors. A function that can fail has `char **errptr` as its last argument. *errptr is NULL, or a message that malloc
   gave. A failure frees that message and sets a new one; a success leaves *errptr as it is. The caller frees a message
   with leveldb_free: without memory for it, a message is not malloc's. It begins with its kind: "NotFound: ",
   "Corruption: ", "Invalid argument: " or "IO error: ".

   Memory. A function whose name ends in _create returns an object, which the function of the same family that ends in
   _destroy frees; NULL: there is no memory. Objects that were given to leveldb_options_t outlive every store that was
   opened with it.

   Threads. Any number of threads may use a leveldb_t and its snapshots. All other objects are for one thread at a time.
*/
#ifndef REMIXDB_LEVELDB_C_H
#define REMIXDB_LEVELDB_C_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifndef LEVELDB_EXPORT
#if defined(__GNUC__)
#define LEVELDB_EXPORT __attribute__((visibility("default")))
#else
#define LEVELDB_EXPORT
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct leveldb_t leveldb_t;                           /* an open store */
typedef struct leveldb_cache_t leveldb_cache_t;               /* the size of a block cache */
typedef struct leveldb_comparator_t leveldb_comparator_t;     /* an order of keys: must be that of bytes */
typedef struct leveldb_env_t leveldb_env_t;                   /* accepted, without effect */
typedef struct leveldb_filelock_t leveldb_filelock_t;         /* no function has one */
typedef struct leveldb_filterpolicy_t leveldb_filterpolicy_t; /* accepted, without effect */
typedef struct leveldb_iterator_t leveldb_iterator_t;
typedef struct leveldb_logger_t leveldb_logger_t; /* no function makes one */
typedef struct leveldb_options_t leveldb_options_t;
typedef struct leveldb_randomfile_t leveldb_randomfile_t; /* no function has one */
typedef struct leveldb_readoptions_t leveldb_readoptions_t;
typedef struct leveldb_seqfile_t leveldb_seqfile_t; /* no function has one */
typedef struct leveldb_snapshot_t leveldb_snapshot_t;
typedef struct leveldb_writablefile_t leveldb_writablefile_t; /* no function has one */
typedef struct leveldb_writebatch_t leveldb_writebatch_t;
typedef struct leveldb_writeoptions_t leveldb_writeoptions_t;

/* ---- a store */

/* Opens the store in the directory `name`. Returns NULL on failure: there is no store and create_if_missing is false;
   there is one and error_if_exists is true; another open has it; the comparator is not that of bytes. */
LEVELDB_EXPORT leveldb_t *leveldb_open(const leveldb_options_t *options, const char *name, char **errptr);
/* Closes the store. Its iterators are destroyed and its snapshots released before. */
LEVELDB_EXPORT void leveldb_close(leveldb_t *db);
LEVELDB_EXPORT void leveldb_put(leveldb_t *db, const leveldb_writeoptions_t *options, const char *key, size_t keylen,
                                const char *val, size_t vallen, char **errptr);
/* A key that is not there is no error. */
LEVELDB_EXPORT void leveldb_delete(leveldb_t *db, const leveldb_writeoptions_t *options, const char *key, size_t keylen,
                                   char **errptr);
/* Writes the whole batch or nothing. The batch stays as it is. An operation that leveldb_writebatch_put could not take
   is reported here. */
LEVELDB_EXPORT void leveldb_write(leveldb_t *db, const leveldb_writeoptions_t *options, leveldb_writebatch_t *batch,
                                  char **errptr);
/* Returns the value in memory that malloc gave, and its length in *vallen. Returns NULL, with *vallen 0, if there is no
   such key, or on failure. */
LEVELDB_EXPORT char *leveldb_get(leveldb_t *db, const leveldb_readoptions_t *options, const char *key, size_t keylen,
                                 size_t *vallen, char **errptr);
/* Makes an iterator without a position. It shows the snapshot of the options, or else the store as it is now, whatever
   is written later. */
LEVELDB_EXPORT leveldb_iterator_t *leveldb_create_iterator(leveldb_t *db, const leveldb_readoptions_t *options);
/* The store as it is now. Iterators of a snapshot may outlive it. NULL: there is no memory. */
LEVELDB_EXPORT const leveldb_snapshot_t *leveldb_create_snapshot(leveldb_t *db);
LEVELDB_EXPORT void leveldb_release_snapshot(leveldb_t *db, const leveldb_snapshot_t *snapshot);
/* Returns a text that malloc gave, or NULL for a name that is not known. The names: "leveldb.stats" (the figures of the
   store, as JSON), "leveldb.sstables", "leveldb.approximate-memory-usage", "leveldb.num-files-at-levelN" with N from 0
   to 6. All tables count as level 0. */
LEVELDB_EXPORT char *leveldb_property_value(leveldb_t *db, const char *propname);
/* Sets sizes[i] to about how many bytes the keys from range_start_key[i] to range_limit_key[i], without the latter,
   take with their values. */
LEVELDB_EXPORT void leveldb_approximate_sizes(leveldb_t *db, int num_ranges, const char *const *range_start_key,
                                              const size_t *range_start_key_len, const char *const *range_limit_key,
                                              const size_t *range_limit_key_len, uint64_t *sizes);
/* Drops old versions and deleted keys between the two keys, and waits for that. A key that is NULL is an open end. */
LEVELDB_EXPORT void leveldb_compact_range(leveldb_t *db, const char *start_key, size_t start_key_len,
                                          const char *limit_key, size_t limit_key_len);

/* ---- a store that is not open */

/* Removes the store's files. A directory without a store is no error, and stays. */
LEVELDB_EXPORT void leveldb_destroy_db(const leveldb_options_t *options, const char *name, char **errptr);
/* Makes a store of the readable part of a damaged one (remixdb_repair). */
LEVELDB_EXPORT void leveldb_repair_db(const leveldb_options_t *options, const char *name, char **errptr);

/* ---- iterators. A function that moves leaves the iterator without a position at an end, and on failure, which
   leveldb_iter_get_error then tells. Key and value are valid until the iterator moves; NULL without a position. */

LEVELDB_EXPORT void leveldb_iter_destroy(leveldb_iterator_t *it);
LEVELDB_EXPORT uint8_t leveldb_iter_valid(const leveldb_iterator_t *it);
LEVELDB_EXPORT void leveldb_iter_seek_to_first(leveldb_iterator_t *it);
LEVELDB_EXPORT void leveldb_iter_seek_to_last(leveldb_iterator_t *it);
/* To the first key that is not below this one. */
LEVELDB_EXPORT void leveldb_iter_seek(leveldb_iterator_t *it, const char *k, size_t klen);
LEVELDB_EXPORT void leveldb_iter_next(leveldb_iterator_t *it);
LEVELDB_EXPORT void leveldb_iter_prev(leveldb_iterator_t *it);
LEVELDB_EXPORT const char *leveldb_iter_key(const leveldb_iterator_t *it, size_t *klen);
LEVELDB_EXPORT const char *leveldb_iter_value(const leveldb_iterator_t *it, size_t *vlen);
LEVELDB_EXPORT void leveldb_iter_get_error(const leveldb_iterator_t *it, char **errptr);

/* ---- batches */

LEVELDB_EXPORT leveldb_writebatch_t *leveldb_writebatch_create(void);
LEVELDB_EXPORT void leveldb_writebatch_destroy(leveldb_writebatch_t *batch);
LEVELDB_EXPORT void leveldb_writebatch_clear(leveldb_writebatch_t *batch);
LEVELDB_EXPORT void leveldb_writebatch_put(leveldb_writebatch_t *batch, const char *key, size_t klen, const char *val,
                                           size_t vlen);
LEVELDB_EXPORT void leveldb_writebatch_delete(leveldb_writebatch_t *batch, const char *key, size_t klen);
/* Calls one of the two functions for each operation, in the order of adding. */
LEVELDB_EXPORT void leveldb_writebatch_iterate(const leveldb_writebatch_t *batch, void *state,
                                               void (*put)(void *state, const char *k, size_t klen, const char *v,
                                                           size_t vlen),
                                               void (*deleted)(void *state, const char *k, size_t klen));
LEVELDB_EXPORT void leveldb_writebatch_append(leveldb_writebatch_t *destination, const leveldb_writebatch_t *source);

/* ---- options of an opening. Those that say so change nothing. */

LEVELDB_EXPORT leveldb_options_t *leveldb_options_create(void);
LEVELDB_EXPORT void leveldb_options_destroy(leveldb_options_t *options);
/* NULL: the order of bytes. */
LEVELDB_EXPORT void leveldb_options_set_comparator(leveldb_options_t *options, leveldb_comparator_t *comparator);
LEVELDB_EXPORT void leveldb_options_set_filter_policy(leveldb_options_t *options,
                                                      leveldb_filterpolicy_t *policy);                /* no effect */
LEVELDB_EXPORT void leveldb_options_set_create_if_missing(leveldb_options_t *options, uint8_t value); /* default 0 */
LEVELDB_EXPORT void leveldb_options_set_error_if_exists(leveldb_options_t *options, uint8_t value);   /* default 0 */
LEVELDB_EXPORT void leveldb_options_set_paranoid_checks(leveldb_options_t *options, uint8_t value);   /* no effect */
LEVELDB_EXPORT void leveldb_options_set_env(leveldb_options_t *options, leveldb_env_t *env);          /* no effect */
LEVELDB_EXPORT void leveldb_options_set_info_log(leveldb_options_t *options, leveldb_logger_t *log);  /* no effect */
/* The size of a memtable in bytes, rounded up to MiB. Default: 256 MiB. */
LEVELDB_EXPORT void leveldb_options_set_write_buffer_size(leveldb_options_t *options, size_t bytes);
/* Descriptors for tables; less than 16 means 16. Default: RemixDB's. */
LEVELDB_EXPORT void leveldb_options_set_max_open_files(leveldb_options_t *options, int nr);
/* The store gets a block cache of this capacity, rounded up to MiB, at most half of the machine's memory. Each store
   has a cache of its own. Default: 256 MiB. */
LEVELDB_EXPORT void leveldb_options_set_cache(leveldb_options_t *options, leveldb_cache_t *cache);
LEVELDB_EXPORT void leveldb_options_set_block_size(leveldb_options_t *options, size_t bytes);       /* no effect */
LEVELDB_EXPORT void leveldb_options_set_block_restart_interval(leveldb_options_t *options, int nr); /* no effect */
LEVELDB_EXPORT void leveldb_options_set_max_file_size(leveldb_options_t *options, size_t bytes);    /* no effect */
enum { leveldb_no_compression = 0, leveldb_snappy_compression = 1 };
/* Any other value than leveldb_no_compression compresses new tables with zstd. Default: no compression. */
LEVELDB_EXPORT void leveldb_options_set_compression(leveldb_options_t *options, int compression);

/* ---- comparators, filters, caches, environments */

/* leveldb_open calls `compare` for a few thousand pairs of keys, and refuses a comparator that does not order them as
   their bytes do. The store uses the order of bytes; each write compares its key with an earlier one, and fails if the
   comparator orders the two otherwise. Any thread may call `compare`, several at a time. leveldb_comparator_destroy
   calls `destructor`. */
LEVELDB_EXPORT leveldb_comparator_t *leveldb_comparator_create(void *state, void (*destructor)(void *state),
                                                               int (*compare)(void *state, const char *a, size_t alen,
                                                                              const char *b, size_t blen),
                                                               const char *(*name)(void *state));
LEVELDB_EXPORT void leveldb_comparator_destroy(leveldb_comparator_t *comparator);
/* The store never calls create_filter and key_may_match. leveldb_filterpolicy_destroy calls `destructor`. */
LEVELDB_EXPORT leveldb_filterpolicy_t *leveldb_filterpolicy_create(
    void *state, void (*destructor)(void *state),
    char *(*create_filter)(void *state, const char *const *key_array, const size_t *key_length_array, int num_keys,
                           size_t *filter_length),
    uint8_t (*key_may_match)(void *state, const char *key, size_t length, const char *filter, size_t filter_length),
    const char *(*name)(void *state));
LEVELDB_EXPORT void leveldb_filterpolicy_destroy(leveldb_filterpolicy_t *policy);
LEVELDB_EXPORT leveldb_filterpolicy_t *leveldb_filterpolicy_create_bloom(int bits_per_key);
LEVELDB_EXPORT leveldb_cache_t *leveldb_cache_create_lru(size_t capacity);
LEVELDB_EXPORT void leveldb_cache_destroy(leveldb_cache_t *cache);
LEVELDB_EXPORT leveldb_env_t *leveldb_create_default_env(void);
LEVELDB_EXPORT void leveldb_env_destroy(leveldb_env_t *env);
/* Makes a directory for tests, if it is not there: TEST_TMPDIR of the environment, or leveldbtest-UID in /tmp. Returns
   its name in memory that malloc gave. */
LEVELDB_EXPORT char *leveldb_env_get_test_directory(leveldb_env_t *env);

/* ---- options of reads and writes */

LEVELDB_EXPORT leveldb_readoptions_t *leveldb_readoptions_create(void);
LEVELDB_EXPORT void leveldb_readoptions_destroy(leveldb_readoptions_t *options);
LEVELDB_EXPORT void leveldb_readoptions_set_verify_checksums(leveldb_readoptions_t *options,
                                                             uint8_t value); /* no effect: every read verifies them */
LEVELDB_EXPORT void leveldb_readoptions_set_fill_cache(leveldb_readoptions_t *options, uint8_t value); /* no effect */
/* NULL, the default: the store as it is. */
LEVELDB_EXPORT void leveldb_readoptions_set_snapshot(leveldb_readoptions_t *options,
                                                     const leveldb_snapshot_t *snapshot);
LEVELDB_EXPORT leveldb_writeoptions_t *leveldb_writeoptions_create(void);
LEVELDB_EXPORT void leveldb_writeoptions_destroy(leveldb_writeoptions_t *options);
/* The write is on disk when the call returns. Default 0. */
LEVELDB_EXPORT void leveldb_writeoptions_set_sync(leveldb_writeoptions_t *options, uint8_t value);

/* ---- the rest */

/* Frees memory that malloc gave in a function of this header. NULL is allowed. */
LEVELDB_EXPORT void leveldb_free(void *ptr);
/* The version of LevelDB whose interface this is: 1 and 23. */
LEVELDB_EXPORT int leveldb_major_version(void);
LEVELDB_EXPORT int leveldb_minor_version(void);

#ifdef __cplusplus
}
#endif
#endif
