// SPDX-License-Identifier: Apache-2.0
//
// The contract of every public call: a failing call sets its status and a message, a successful one sets REMIXDB_OK and
// no message.
#ifndef CONTRACT_H
#define CONTRACT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "remixdb.h"

static inline const char *status_now(void) { return remixdb_strerror(remixdb_errcode()); }

// The call before failed with this status and a message that has the part in it.
static inline void check_failed(enum remixdb_status s, const char *part, int line) {
  if (remixdb_errcode() != s)
    fail_msg("line %d: status %s, expected %s (%s)", line, status_now(), remixdb_strerror(s), remixdb_errmsg());
  if (s != REMIXDB_NOTFOUND && remixdb_errmsg()[0] == '\0') fail_msg("line %d: no message", line);
  if (part && !strstr(remixdb_errmsg(), part))
    fail_msg("line %d: \"%s\" says nothing of \"%s\"", line, remixdb_errmsg(), part);
}
#define FAILED(s, part) check_failed(s, part, __LINE__)

// The call before succeeded.
static inline void check_good(bool good, const char *what, int line) {
  if (!good) fail_msg("line %d: %s: %s: %s", line, what, status_now(), remixdb_errmsg());
  if (remixdb_errcode() != REMIXDB_OK)
    fail_msg("line %d: %s succeeded, but the status is %s", line, what, status_now());
  if (remixdb_errmsg()[0]) fail_msg("line %d: %s succeeded, but there is a message: %s", line, what, remixdb_errmsg());
}
#define GOOD(call) check_good((call), #call, __LINE__)
#endif
