// SPDX-License-Identifier: Apache-2.0
#include "base/err.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

ERR_TLS_FAST struct err_state err_state;
static __thread char err_buf[ERR_MSG_MAX];
static __thread uint32_t err_cleaning;  // depth of err_cleanup_begin: no message changes above 0

// Writes as much of the text as fits. Returns whether all of it does.
__attribute__((format(printf, 4, 0))) static bool write_text(char *buf, size_t cap, const char *head, const char *fmt,
                                                             va_list ap) {
  const int n = head ? snprintf(buf, cap, "%s", head) : 0;
  const size_t used = n < 0 ? 0 : (size_t)n < cap ? (size_t)n : cap - 1;
  buf[used] = '\0';
  const int more = vsnprintf(buf + used, cap - used, fmt, ap);
  if (more < 0) buf[used] = '\0';
  return n < 0 || more < 0 || (size_t)n + (size_t)more < cap;
}

// The same for a text that does not fit: leaves its middle out.
__attribute__((format(printf, 4, 0), noinline)) static void shorten_text(char *buf, size_t cap, const char *head,
                                                                         const char *fmt, va_list ap) {
  char all[ERR_TEXT_MAX];
  (void)write_text(all, sizeof(all), head, fmt, ap);
  static const char dots[] = "...";
  const size_t len = strlen(all), keep = cap - sizeof(dots), first = keep / 4, last = keep - first;
  memcpy(buf, all, first);
  memcpy(buf + first, dots, sizeof(dots) - 1);
  memcpy(buf + first + sizeof(dots) - 1, all + len - last, last + 1);
}

void err_text(char *buf, size_t cap, const char *head, const char *fmt, va_list ap) {
  va_list again;
  assert(cap >= 16 && cap < ERR_TEXT_MAX);
  va_copy(again, ap);
  if (!write_text(buf, cap, head, fmt, ap)) shorten_text(buf, cap, head, fmt, again);
  va_end(again);
}

// Formats into a separate buffer, because the arguments may point into err_buf.
__attribute__((format(printf, 2, 0))) static void err_format(const char *head, const char *fmt, va_list ap) {
  if (err_cleaning) return;
  char buf[ERR_MSG_MAX];
  err_text(buf, sizeof(buf), head, fmt, ap);
  memcpy(err_buf, buf, strlen(buf) + 1);
  err_state.has_msg = 1;
}

enum remixdb_status err_set(enum remixdb_status s, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  err_format(NULL, fmt, ap);
  va_end(ap);
  return s;
}

// strerror_r has two signatures. It may open files for words in the user's language, so it is a cancellation point.
const char *err_reason(int errnum, char *buf, size_t cap) {
  const char *words = buf;
  int cancel;
  buf[0] = '\0';
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
#if defined(__GLIBC__)
  words = strerror_r(errnum, buf, cap);
#else
  if (strerror_r(errnum, buf, cap) != 0 && buf[0] == '\0') (void)snprintf(buf, cap, "error %d", errnum);
#endif
  (void)pthread_setcancelstate(cancel, NULL);
  return words;
}

const char *err_path(const char *path, const char **dots_out) {
  const size_t len = strlen(path), keep = ERR_MSG_MAX / 2;
  *dots_out = len > keep ? "..." : "";
  return len > keep ? path + len - keep : path;
}

enum remixdb_status err_errno(int errnum, const char *op, const char *path) {
  enum remixdb_status s = REMIXDB_IO;
  if (errnum == ENOSPC || errnum == EDQUOT) s = REMIXDB_NOSPACE;
  if (errnum == ENOMEM) s = REMIXDB_NOMEM;
  const char *todo = "";
  if (errnum == EMFILE || errnum == ENFILE) {
    s = REMIXDB_NOMEM;  // like a lack of memory: nothing has begun, and it passes when descriptors are closed
    todo = errnum == EMFILE ? "; raise the limit (ulimit -n) or lower max_open_files"
                            : "; raise the system's limit or lower max_open_files";
  }
  char reason[128];
  const char *dots, *const end = err_path(path ? path : "", &dots);
  return err_set(s, "%s: %s%s%s%s%s", err_reason(errnum, reason, sizeof(reason)), op, path ? " " : "", dots, end, todo);
}

enum remixdb_status err_corrupt(const char *path, uint64_t off, const char *fmt, ...) {
  char head[ERR_MSG_MAX];
  const char *dots, *const end = err_path(path, &dots);
  (void)snprintf(head, sizeof(head), "%s%s: offset %llu: ", dots, end, (unsigned long long)off);
  va_list ap;
  va_start(ap, fmt);
  err_format(head, fmt, ap);
  va_end(ap);
  return REMIXDB_CORRUPT;
}

void err_cleanup_begin(void) { err_cleaning++; }

void err_cleanup_end(void) {
  assert(err_cleaning > 0);
  err_cleaning--;
}

enum remixdb_status err_code(void) { return (enum remixdb_status)err_state.code; }

const char *err_msg(void) { return err_state.has_msg ? err_buf : ""; }

void err_finish(enum remixdb_status s) {
  const bool failed = s != REMIXDB_OK && s != REMIXDB_NOTFOUND;
  err_state = (struct err_state){(uint16_t)s, failed ? err_state.has_msg : 0};
}

void err_keep(struct err_state *state, char *msg) {
  *state = err_state;
  if (err_state.has_msg) memcpy(msg, err_buf, strlen(err_buf) + 1);
}

void err_save(struct err_saved *e, enum remixdb_status s) {
  e->status = s;
  const char *const msg = err_msg();
  memcpy(e->msg, msg, strlen(msg) + 1);
}

enum remixdb_status err_raise(const struct err_saved *e) {
  if (e->status == REMIXDB_OK || e->status == REMIXDB_NOTFOUND) return e->status;
  return err_set(e->status, "%s", e->msg);
}

void err_restore(const struct err_saved *e) {
  memcpy(err_buf, e->msg, strlen(e->msg) + 1);
  err_state.has_msg = e->msg[0] != '\0';
}
