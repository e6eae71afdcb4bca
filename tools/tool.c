// SPDX-License-Identifier: Apache-2.0
#include "tools/tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/progress.h"

// The end of the message of an opening that finds another program's files (remixdb.h).
#define NO_STORE "; there is no store of RemixDB, but another program's files"

static const char *name = "remixdb", *called = "remixdb";

void tool_begin(const char *its_name, const char *its_called) {
  name = its_name;
  called = its_called;
  progress_begin(name, false);
}

const char *tool_name(void) { return name; }
const char *tool_called(void) { return called; }

_Noreturn void tool_end(enum tool_exit status, const char *fmt, ...) {
  va_list ap;
  progress_end();
  fflush(stdout);
  fprintf(stderr, "%s: ", name);
  va_start(ap, fmt);
  vfprintf(stderr, fmt, ap);
  va_end(ap);
  fputc('\n', stderr);
  exit(status);
}

static bool message_ends(const char *text) {
  const char *const msg = remixdb_errmsg();
  const size_t len = strlen(msg), n = strlen(text);
  return len >= n && memcmp(msg + len - n, text, n) == 0;
}

enum tool_exit tool_complain(const char *dir, const char *call) {
  const enum remixdb_status s = remixdb_errcode();
  progress_end();
  fflush(stdout);
  const bool foreign = s == REMIXDB_CORRUPT && message_ends(NO_STORE);
  // the messages of these say it themselves
  if (s == REMIXDB_IO || s == REMIXDB_NOTFOUND || foreign)
    fprintf(stderr, "%s: %s: %s\n", name, call, remixdb_errmsg());
  else fprintf(stderr, "%s: %s: %s: %s\n", name, call, remixdb_strerror(s), remixdb_errmsg());
  if (s == REMIXDB_LOCKED)
    fprintf(stderr, "%s: another process has it open; try again when that has closed it\n", name);
  if (s != REMIXDB_CORRUPT || foreign) return TOOL_FAILED;
  fprintf(stderr, "%s: make a copy of the directory; then \"%s repair %s\" makes a store of the readable part\n", name,
          called, dir);
  return TOOL_DAMAGED;
}

_Noreturn void tool_fail_call(const char *dir, const char *call) { exit(tool_complain(dir, call)); }

void tool_flush(void) {
  if (ferror(stdout))
    tool_end(TOOL_FAILED, "standard output could not be written to");  // the reason belongs to an earlier call
  if (fflush(stdout) != 0) tool_end(TOOL_FAILED, "standard output: %s", strerror(errno));
}

bool tool_is_help(const char *arg) { return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0; }
bool tool_is_version(const char *arg) { return strcmp(arg, "--version") == 0 || strcmp(arg, "-V") == 0; }

_Noreturn void tool_version(void) {
  printf("%s %s\n", name, remixdb_version());
  tool_flush();
  exit(TOOL_DONE);
}

const char *tool_s(unsigned long long n) { return n == 1 ? "" : "s"; }
