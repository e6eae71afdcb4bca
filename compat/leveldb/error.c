// SPDX-License-Identifier: Apache-2.0
#include "compat/leveldb/internal.h"

#include <stdio.h>

// The message without memory for one. Nobody frees it or writes to it.
static char no_memory[] = "IO error: no memory for the message of an error";

void *(*ldb_malloc)(size_t size) = malloc;

void ldb_message_free(char *message) {
  if (message != no_memory) free(message);
}

static void set(char **errptr, char *message) {
  ldb_message_free(*errptr);
  *errptr = message ? message : no_memory;
}

void ldb_error(char **errptr, const char *kind, const char *what) {
  const size_t size = strlen(kind) + strlen(what) + 3;
  char *const text = ldb_malloc(size);
  if (text) (void)snprintf(text, size, "%s: %s", kind, what);
  set(errptr, text);
}

void ldb_message_copy(char **errptr, const char *message) {
  const size_t size = strlen(message) + 1;
  char *const text = ldb_malloc(size);
  if (text) memcpy(text, message, size);
  set(errptr, text);
}

static const char *kind_of(enum remixdb_status s) {
  switch (s) {
    case REMIXDB_NOTFOUND: return "NotFound";
    case REMIXDB_CORRUPT:
    case REMIXDB_VERSION: return "Corruption";
    case REMIXDB_INVALID:
    case REMIXDB_TOOBIG:
    case REMIXDB_EXISTS: return "Invalid argument";
    default: return "IO error";
  }
}

void ldb_failed(char **errptr, const struct xdb_ref *ref) {
  const enum remixdb_status s = ref ? remixdb_ref_errcode(ref) : remixdb_errcode();
  const char *const msg = ref ? remixdb_ref_errmsg(ref) : remixdb_errmsg();
  ldb_error(errptr, kind_of(s), msg[0] ? msg : remixdb_strerror(s));
}

void leveldb_free(void *ptr) { ldb_message_free(ptr); }
int leveldb_major_version(void) { return 1; }
int leveldb_minor_version(void) { return 23; }
