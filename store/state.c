// SPDX-License-Identifier: Apache-2.0
#include "store/state.h"

#include <stdarg.h>

#ifndef NDEBUG
static __thread char self;  // its address names the thread

void xdb_lock_note(struct xdb *x, bool mine) { x->lock_owner = mine ? &self : NULL; }
bool xdb_lock_is_mine(const struct xdb *x) { return x->lock_owner == &self; }
#endif

// A call of a store's logger that has not returned.
struct saying {
  const struct xdb *x;
  const struct saying *outer;  // the logger may use another store, which calls its own logger
};

static __thread const struct saying *saying;  // this thread's; NULL: none

enum remixdb_status xdb_may_wait(const struct xdb *x) {
  for (const struct saying *s = saying; s; s = s->outer)
    if (s->x == x)
      return err_set(REMIXDB_INVALID,
                     "%s: the logger has made a call that must wait for work that waits for the logger", x->dir);
  return REMIXDB_OK;
}

void xdb_say(struct xdb *x, const char *fmt, ...) {
  if (!x->opts.logger) return;
  char line[2 * ERR_MSG_MAX];  // three quarters of it have room for a message and its head
  va_list ap;
  va_start(ap, fmt);
  err_text(line, sizeof(line), NULL, fmt, ap);
  va_end(ap);
  CANCEL_LATER;
  const struct saying now = {x, saying};
  saying = &now;
  x->opts.logger(x->opts.logger_priv, line);
  saying = now.outer;
}

void xdb_fail(struct xdb *x, const struct err_saved *why) {
  xdb_lock(x);
  if (atomic_load_explicit(&x->failed, memory_order_relaxed) == 0) {
    x->error = *why;
    atomic_store_explicit(&x->failed, (uint32_t)why->status, memory_order_release);
  }
  xdb_unlock_changed(x);
  xdb_say(x, "writes are refused from now on: %s", why->msg);
}

enum remixdb_status xdb_failure_raise(struct xdb *x) {
  return atomic_load_explicit(&x->failed, memory_order_acquire) ? err_raise(&x->error) : REMIXDB_OK;
}
