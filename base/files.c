// SPDX-License-Identifier: Apache-2.0
#include "base/files.h"

#include <stdio.h>
#include <stdlib.h>

#define LOG_PREFIX "wal-"

void files_table_name(char *buf, uint64_t number) { (void)snprintf(buf, 32, "%06llu.sst", (unsigned long long)number); }
void files_remix_name(char *buf, uint64_t number) {
  (void)snprintf(buf, 32, "%06llu.remix", (unsigned long long)number);
}

void files_value_name(char *buf, uint64_t number) { (void)snprintf(buf, 32, "%06llu.val", (unsigned long long)number); }

void files_pack_name(char *buf, uint64_t number) { (void)snprintf(buf, 32, "%06llu.pack", (unsigned long long)number); }

// The kind of a name that begins with a file's number.
static enum files_kind numbered_kind(const char *name, uint64_t number) {
  static const struct {
    void (*name_of)(char *buf, uint64_t number);
    enum files_kind kind;
  } kinds[] = {{files_table_name, FILES_IS_TABLE},
               {files_remix_name, FILES_IS_REMIX},
               {files_value_name, FILES_IS_VALUE},
               {files_pack_name, FILES_IS_PACK}};
  char want[32];
  for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
    kinds[i].name_of(want, number);
    if (strcmp(name, want) == 0) return kinds[i].kind;
  }
  return FILES_OTHER;
}

static bool log_number(const char *digits, uint64_t *number_out) {
  const size_t len = strlen(digits);
  if (len == 0 || len > 9 || (digits[0] == '0' && len > 1) || strspn(digits, "0123456789") != len) return false;
  *number_out = strtoull(digits, NULL, 10);
  return true;
}

bool files_ids_have(const struct files_ids *ids, uint64_t id) {
  if (id == ids->own) return true;
  uint32_t lo = 0, hi = ids->nr;
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (ids->origins[mid] < id) lo = mid + 1;
    else hi = mid;
  }
  return lo < ids->nr && ids->origins[lo] == id;
}

enum files_kind files_kind_of(const char *name, uint64_t *number_out) {
  static const struct {
    const char *name;
    enum files_kind kind;
  } fixed[] = {{FILES_CURRENT, FILES_IS_CURRENT},
               {FILES_CURRENT_TMP, FILES_IS_CURRENT_TMP},
               {FILES_LOCK, FILES_IS_LOCK},
               {FILES_CREATING, FILES_IS_CREATING},
               {FILES_CHECKPOINTING, FILES_IS_CHECKPOINTING},
               {FILES_RESERVE, FILES_IS_RESERVE}};
  for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
    if (strcmp(name, fixed[i].name) == 0) return fixed[i].kind;
  uint64_t number = 0;
  enum files_kind kind = FILES_OTHER;
  if (strncmp(name, LOG_PREFIX, strlen(LOG_PREFIX)) == 0) {
    if (log_number(name + strlen(LOG_PREFIX), &number)) kind = FILES_IS_LOG;
  } else if (name[0] >= '0' && name[0] <= '9') {
    number = strtoull(name, NULL, 10);
    if (number >> 62 == 0) kind = numbered_kind(name, number);
  }
  if (number_out) *number_out = number;
  return kind;
}

struct listing {
  struct files_entry *list;
  size_t nr, cap;
  bool nomem;
};

static bool add_name(void *arg, const char *name) {
  struct listing *l = arg;
  struct files_entry e = {.number = 0};
  e.kind = files_kind_of(name, &e.number);
  if (e.kind == FILES_OTHER) return true;
  if (l->nr == l->cap) {
    struct files_entry *grown = mem_grow(l->list, &l->cap, 64, sizeof(*grown));
    if (!grown) {
      l->nomem = true;
      return false;
    }
    l->list = grown;
  }
  (void)snprintf(e.name, sizeof(e.name), "%s", name);
  l->list[l->nr++] = e;
  return true;
}

enum remixdb_status files_list(const struct env_dir *dir, struct files_entry **list_out, size_t *nr_out) {
  struct listing l = {0};
  enum remixdb_status s = env_list(dir, add_name, &l);
  if (s == REMIXDB_OK && l.nomem) s = REMIXDB_NOMEM;
  if (s != REMIXDB_OK) {
    mem_free(l.list);
    return s;
  }
  *list_out = l.list;
  *nr_out = l.nr;
  return REMIXDB_OK;
}

enum remixdb_status files_has_dir(const struct env_dir *dir, const char *name, bool *out) {
  struct env_stat st = {.is_dir = false};
  const enum remixdb_status s = env_stat(dir, name, &st);
  *out = s == REMIXDB_OK && st.is_dir;
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
}

enum remixdb_status files_has_mark(const struct env_dir *dir, const char *name, bool *out) {
  struct env_stat st = {.size = 0};
  const enum remixdb_status s = env_stat(dir, name, &st);
  *out = s == REMIXDB_OK && st.is_file && st.size == 0;
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
}

enum remixdb_status files_repair_pending(const struct env_dir *dir, bool *out) {
  const enum remixdb_status s = files_has_dir(dir, FILES_REPAIR_DONE, out);
  return s != REMIXDB_OK || *out ? s : files_has_dir(dir, FILES_REPAIR_IN, out);
}

enum remixdb_status files_remove_dir(const struct env_dir *dir, const char *name) {
  struct env_dir sub;
  struct files_entry *list = NULL;
  size_t nr = 0;
  bool there;
  enum remixdb_status s = files_has_dir(dir, name, &there);
  if (s != REMIXDB_OK || !there) return s;
  s = env_dir_open(dir, name, &sub);
  if (s == REMIXDB_OK) s = files_list(&sub, &list, &nr);
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    struct env_stat st;
    s = env_stat(&sub, list[i].name, &st);
    if (s == REMIXDB_OK && st.is_file) s = env_unlink(&sub, list[i].name);
    if (s == REMIXDB_NOTFOUND) s = REMIXDB_OK;
  }
  mem_free(list);
  env_dir_close(&sub);
  if (s != REMIXDB_OK) return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
  return env_rmdir(dir, name);
}

enum remixdb_status files_sync_parent(struct env *env, const char *dir, bool made) {
  char parent[ENV_PATH_MAX];
  size_t len = strlen(dir);
  while (len > 1 && dir[len - 1] == '/') len--;
  while (len > 0 && dir[len - 1] != '/') len--;
  if (len >= sizeof(parent)) return err_set(REMIXDB_INVALID, "path too long: %s", dir);
  memcpy(parent, len ? dir : ".", len ? len : 1);
  parent[len ? len : 1] = '\0';
  struct env_dir up;
  enum remixdb_status s = env_dir_open(ENV_PATHS(env), parent, &up);
  if (s == REMIXDB_OK) s = env_sync_dir(&up);
  else if (!made && s != REMIXDB_NOMEM) s = REMIXDB_OK;
  else if (s == REMIXDB_NOTFOUND) s = err_set(REMIXDB_IO, "%s: was removed meanwhile", parent);
  env_dir_close(&up);
  return s;
}
