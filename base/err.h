// SPDX-License-Identifier: Apache-2.0
//
// Where every error is born. A function that can fail returns enum remixdb_status and is marked MUST_CHECK. The place
// that finds a failure calls err_set (or err_errno, err_corrupt) once: that records the thread's message and returns
// the status. Callers pass the status up and add nothing. A breakpoint on err_set and err_corrupt sees every error.
// REMIXDB_NOTFOUND is an answer, not an error: return it without err_set.
#ifndef ERR_H
#define ERR_H

#include <stddef.h>
#include <stdint.h>

#include "remixdb.h"

#define MUST_CHECK __attribute__((warn_unused_result))
#define ERR_MSG_MAX 512  // bytes of a message, its end included; a longer one is cut

// Records the thread's message and returns s.
enum remixdb_status err_set(enum remixdb_status s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// The same for a failed system call: "REASON: op PATH". The system's words for errnum come first, because they tell a
// user more than the status does. Statuses: ENOSPC, EDQUOT -> REMIXDB_NOSPACE; ENOMEM -> REMIXDB_NOMEM; EMFILE, ENFILE
// -> REMIXDB_NOMEM, and the message names the limit to raise; all others -> REMIXDB_IO. The caller handles EWOULDBLOCK
// of a lock itself. path may be NULL.
enum remixdb_status err_errno(int errnum, const char *op, const char *path);
// Returns the part of a path that a message shows: the end of a long one, so that the reason stays visible. *dots_out
// goes before it: "..." or "".
const char *err_path(const char *path, const char **dots_out);
// "PATH: offset N: ..." as REMIXDB_CORRUPT.
enum remixdb_status err_corrupt(const char *path, uint64_t off, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// The plural ending of a counted noun in a message: "" for 1, else "s".
static inline const char *err_s(uint64_t n) { return n == 1 ? "" : "s"; }

// The values of remixdb_errcode and remixdb_errmsg. Only the public face sets the code.
enum remixdb_status err_code(void);
const char *err_msg(void);
void err_finish(enum remixdb_status s);  // sets the thread's code; on REMIXDB_OK/NOTFOUND clears the message

// Every public call writes these few bytes. They live in the static TLS block, where a write is one store even in a
// shared library. musl has no room there for a library that is loaded later, and would refuse to load this one.
#if defined(__GLIBC__) || defined(__FreeBSD__)
#define ERR_TLS_FAST __thread __attribute__((tls_model("initial-exec")))
#else
#define ERR_TLS_FAST __thread
#endif
struct err_state {  // private to base/err.c and err_finish_ok
  uint16_t code;
  uint16_t has_msg;  // there is a message
};
extern ERR_TLS_FAST struct err_state err_state;
static inline void err_finish_ok(void) { err_state = (struct err_state){REMIXDB_OK, 0}; }  // err_finish(REMIXDB_OK)

// Around the clean-up after a failure. In between, no call changes the thread's message, so the first failure is the
// one that the user hears of. Calls in between must not hand on a message of their own (err_save). May nest.
void err_cleanup_begin(void);
void err_cleanup_end(void);
// Makes a call and drops its failure, with the thread's message unchanged. `why` tells the reader why that is right.
#define IGNORED(call, why)                             \
  do {                                                 \
    err_cleanup_begin();                               \
    const enum remixdb_status ignored_status = (call); \
    (void)ignored_status;                              \
    (void)(why);                                       \
    err_cleanup_end();                                 \
  } while (0)

// Carries an error from the thread that met it to threads that ask later.
struct err_saved {
  enum remixdb_status status;
  char msg[ERR_MSG_MAX];
};
void err_save(struct err_saved *e, enum remixdb_status s);  // saves s and this thread's message
enum remixdb_status err_raise(const struct err_saved *e);   // makes it this thread's message, returns its status
void err_restore(
    const struct err_saved *e);  // makes it this thread's message, or clears that: errors since are handled
// Returns the system's words for an errno, in buf or elsewhere.
const char *err_reason(int errnum, char *buf, size_t cap);
#endif
