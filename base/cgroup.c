// SPDX-License-Identifier: Apache-2.0
#include "base/cgroup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define TEXT_MAX 4096u  // bytes of proc/self/cgroup that count

// Reads a text file, at most cap - 1 bytes of it. False: it cannot be read.
static bool read_text(struct env *env, const char *path, char *buf, size_t cap) {
  int fd;
  size_t nr = 0;
  if (env_open(ENV_PATHS(env), path, ENV_READ, &fd) != REMIXDB_OK) return false;
  const bool good = env_read_upto(env, fd, path, buf, cap - 1, 0, &nr) == REMIXDB_OK;
  env_close_quiet(env, fd);
  buf[good ? nr : 0] = '\0';
  return good;
}

// Reads the limit of one cgroup. "max" (version 2) means none, and so does a number near 2^63 (version 1).
static uint64_t limit_of(struct env *env, const char *dir, const char *file) {
  char path[ENV_PATH_MAX], text[32], *end;
  const int len = snprintf(path, sizeof(path), "%s/%s", dir, file);
  if (len < 0 || (size_t)len >= sizeof(path) || !read_text(env, path, text, sizeof(text))) return UINT64_MAX;
  if (text[0] < '0' || text[0] > '9') return UINT64_MAX;
  errno = 0;
  const uint64_t limit = strtoull(text, &end, 10);
  if (errno != 0 || (*end != '\n' && *end != '\0') || limit >= (uint64_t)1 << 62) return UINT64_MAX;
  return limit;
}

// Returns the least limit of the cgroup `name`, which begins with a slash, and of those above it, up to the mount.
static uint64_t limit_above(struct env *env, const char *root, const char *mount, const char *name, const char *file) {
  char dir[ENV_PATH_MAX];
  const int top = snprintf(dir, sizeof(dir), "%s%s", root, mount);
  if (top < 0 || (size_t)top + strlen(name) >= sizeof(dir)) return UINT64_MAX;
  memcpy(dir + top, name, strlen(name) + 1);
  uint64_t least = UINT64_MAX;
  for (;;) {
    const uint64_t limit = limit_of(env, dir, file);
    if (limit < least) least = limit;
    char *const slash = strrchr(dir + top, '/');
    if (!slash) return least;
    *slash = '\0';
  }
}

// Whether a list of names with commas between them has this one.
static bool list_has(const char *list, const char *name) {
  const size_t len = strlen(name);
  for (const char *at = list; at; at = strchr(at, ',')) {
    at += *at == ',';
    if (strncmp(at, name, len) == 0 && (at[len] == ',' || at[len] == '\0')) return true;
  }
  return false;
}

// Handles a line of proc/self/cgroup: "number:controllers:path". The line of version 2 has no controllers.
static uint64_t limit_of_line(struct env *env, const char *root, char *line) {
  char *const list = strchr(line, ':'), *const path = list ? strchr(list + 1, ':') : NULL;
  if (!path || path[1] != '/') return UINT64_MAX;
  *path = '\0';
  if (list[1] == '\0') return limit_above(env, root, "/sys/fs/cgroup", path + 1, "memory.max");
  if (!list_has(list + 1, "memory")) return UINT64_MAX;
  return limit_above(env, root, "/sys/fs/cgroup/memory", path + 1, "memory.limit_in_bytes");
}

uint64_t cgroup_limit(struct env *env, const char *root) {
  char path[ENV_PATH_MAX], text[TEXT_MAX];
  uint64_t least = UINT64_MAX;
  const int len = snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
  if (len < 0 || (size_t)len >= sizeof(path)) return least;
  err_cleanup_begin();  // a file that is absent is no failure of the caller
  if (read_text(env, path, text, sizeof(text))) {
    for (char *line = text, *end; line; line = end) {
      if ((end = strchr(line, '\n'))) *end++ = '\0';
      const uint64_t limit = limit_of_line(env, root, line);
      if (limit < least) least = limit;
    }
  }
  err_cleanup_end();
  return least;
}

_Atomic uint64_t cgroup_test_memory;

uint64_t cgroup_memory(void) {
  const uint64_t test = atomic_load_explicit(&cgroup_test_memory, memory_order_relaxed);
  if (unlikely(test)) return test;
  const uint64_t machine = memory_size(), limit = cgroup_limit(env_posix(), "");
  return machine == 0 || limit < machine ? (limit == UINT64_MAX ? 0 : limit) : machine;
}
