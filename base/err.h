// SPDX-License-Identifier: Apache-2.0
//
// Errors: status and message of the thread. A function that can fail returns enum remixdb_status and is marked
// MUST_CHECK. The function that finds a failure calls err_set (or err_errno, err_corrupt) once. That call records the
// thread's message and returns the status. Callers pass the status up and add nothing. Breakpoints on err_set and
// err_corrupt stop at every error. REMIXDB_NOTFOUND is an answer, not an error: a function returns it without err_set.
#ifndef ERR_H
#define ERR_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "remixdb.h"

#define MUST_CHECK __attribute__((warn_unused_result))
#define ERR_MSG_MAX 512  // bytes of a message, its end included; a longer one loses its middle

// Writes head (NULL: none) and what vsnprintf makes of fmt into buf, which has cap bytes, at least 16. If the text does
// not fit, its first quarter and its end stay, with "..." between them: a long text has a long path, and the reason is
// before it or behind it. A text with more than ERR_TEXT_MAX bytes loses its end, too.
#define ERR_TEXT_MAX 8192
void err_text(char *buf, size_t cap, const char *head, const char *fmt, va_list ap)
    __attribute__((format(printf, 4, 0)));

// Records the thread's message and returns s.
enum remixdb_status err_set(enum remixdb_status s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// Records the message of a failed system call: "REASON: op PATH". The system's words for errnum come first, because
// they tell a user more than the status does. Statuses: ENOSPC, EDQUOT -> REMIXDB_NOSPACE; ENOMEM -> REMIXDB_NOMEM;
// EMFILE, ENFILE -> REMIXDB_NOMEM, and the message names the limit to raise; all others -> REMIXDB_IO. The caller
// handles EWOULDBLOCK of a lock itself. path may be NULL.
enum remixdb_status err_errno(int errnum, const char *op, const char *path);
// Returns the part of a path that a message shows. For a long path that is the end of the path, so that the message has
// room for the reason. *dots_out is the text to print before this part: "..." or "".
const char *err_path(const char *path, const char **dots_out);
// Records the message "PATH: offset N: ..." and returns REMIXDB_CORRUPT.
enum remixdb_status err_corrupt(const char *path, uint64_t off, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// The plural ending of a counted noun in a message: "" for 1, else "s".
static inline const char *err_s(uint64_t n) { return n == 1 ? "" : "s"; }

// The values of remixdb_errcode and remixdb_errmsg. Only the public face sets the code.
enum remixdb_status err_code(void);
const char *err_msg(void);
void err_finish(enum remixdb_status s);  // sets the thread's code; on REMIXDB_OK/NOTFOUND clears the message

// Every public call writes these few bytes. They are in the static TLS block, where a write is one store even in a
// shared library. On musl the static TLS block has no room for a library that a running program loads, and musl would
// refuse to load this library. So other systems use the default model.
#if defined(__GLIBC__) || defined(__FreeBSD__)
#define ERR_TLS_FAST __thread __attribute__((tls_model("initial-exec")))
#else
#define ERR_TLS_FAST __thread
#endif
struct err_state {  // a thread's, private to base/err.c and err_finish_ok; or a ref's
  uint16_t code;
  uint16_t has_msg;  // there is a message
};
#define ERR_STATE_OK ((struct err_state){REMIXDB_OK, 0})
#define ERR_STATE_NOTFOUND ((struct err_state){REMIXDB_NOTFOUND, 0})
extern ERR_TLS_FAST struct err_state err_state;
static inline void err_finish_ok(void) { err_state = ERR_STATE_OK; }          // err_finish(REMIXDB_OK)
static inline void err_finish_none(void) { err_state = ERR_STATE_NOTFOUND; }  // err_finish(REMIXDB_NOTFOUND)

// Copies the thread's state and message to a ref, which shows them to the next thread that has it. msg has ERR_MSG_MAX
// bytes, and is left alone if there is no message.
void err_keep(struct err_state *state, char *msg);

// These two calls enclose the clean-up after a failure. Between them no call changes the thread's message, so the user
// gets the message of the earliest failure. Code between them must not save a message (err_save). Pairs may nest.
void err_cleanup_begin(void);
void err_cleanup_end(void);
// Makes a call, ignores its failure, and keeps the thread's message unchanged. `why` tells the reader why that is
// right.
#define IGNORED(call, why)                             \
  do {                                                 \
    err_cleanup_begin();                               \
    const enum remixdb_status ignored_status = (call); \
    (void)ignored_status;                              \
    (void)(why);                                       \
    err_cleanup_end();                                 \
  } while (0)

// An error that one thread saves, so that other threads can report it later.
struct err_saved {
  enum remixdb_status status;
  char msg[ERR_MSG_MAX];
};
void err_save(struct err_saved *e, enum remixdb_status s);  // saves s and this thread's message
enum remixdb_status err_raise(
    const struct err_saved *e);               // makes the saved message this thread's message, returns the saved status
void err_restore(const struct err_saved *e);  // makes the saved message this thread's message, or clears this thread's
                                              // message: later errors were handled
// Returns the system's words for an errno, in buf or elsewhere.
const char *err_reason(int errnum, char *buf, size_t cap);
#endif
