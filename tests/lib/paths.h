// SPDX-License-Identifier: Apache-2.0
//
// Functions of env.h that take an open directory, for a directory given by its path: each opens it, uses it once and
// closes it.
#ifndef PATHS_H
#define PATHS_H

#include "base/files.h"

static inline enum remixdb_status paths_list(struct env *e, const char *path, bool (*fn)(void *arg, const char *name),
                                             void *arg) {
  struct env_dir d;
  enum remixdb_status s = env_dir_open(ENV_PATHS(e), path, &d);
  if (s == REMIXDB_OK) s = env_list(&d, fn, arg);
  env_dir_close(&d);
  return s;
}

static inline enum remixdb_status paths_sync_dir(struct env *e, const char *path) {
  struct env_dir d;
  enum remixdb_status s = env_dir_open(ENV_PATHS(e), path, &d);
  if (s == REMIXDB_OK) s = env_sync_dir(&d);
  env_dir_close(&d);
  return s;
}

static inline enum remixdb_status paths_replace_file(struct env *e, const char *path, const char *name, const void *buf,
                                                     size_t len) {
  struct env_dir d;
  enum remixdb_status s = env_dir_open(ENV_PATHS(e), path, &d);
  if (s == REMIXDB_OK) s = env_replace_file(&d, name, buf, len);
  env_dir_close(&d);
  return s;
}

static inline enum remixdb_status paths_files(struct env *e, const char *path, struct files_entry **list_out,
                                              size_t *nr_out) {
  struct env_dir d;
  enum remixdb_status s = env_dir_open(ENV_PATHS(e), path, &d);
  if (s == REMIXDB_OK) s = files_list(&d, list_out, nr_out);
  env_dir_close(&d);
  return s;
}

// Reads all of a file of at most `max` bytes, as env_read_all does. REMIXDB_NOTFOUND.
static inline enum remixdb_status paths_read_file(const struct env_dir *at, const char *name, size_t max,
                                                  uint8_t **buf_out, size_t *len_out) {
  int fd;
  *buf_out = NULL;
  *len_out = 0;
  enum remixdb_status s = env_open(at, name, ENV_READ, &fd);
  if (s != REMIXDB_OK) return s;
  s = env_read_all(at->env, fd, name, max, buf_out, len_out);
  env_close_quiet(at->env, fd);
  return s;
}
#endif
