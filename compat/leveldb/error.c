// SPDX-License-Identifier: Apache-2.0
#include "compat/leveldb/internal.h"

#include <stdio.h>

void ldb_error(char **errptr, const char *kind, const char *what) {
  const size_t size = strlen(kind) + strlen(what) + 3;
  char *const text = malloc(size);
  if (!text) return;
  (void)snprintf(text, size, "%s: %s", kind, what);
  free(*errptr);
  *errptr = text;
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

void leveldb_free(void *ptr) { free(ptr); }
int leveldb_major_version(void) { return 1; }
int leveldb_minor_version(void) { return 23; }
