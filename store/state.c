// SPDX-License-Identifier: Apache-2.0
#include "store/state.h"

#include <stdarg.h>
#include <stdio.h>

void xdb_say(struct xdb *x, const char *fmt, ...) {
  if (!x->opts.logger) return;
  char line[ERR_MSG_MAX + 128];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof(line), fmt, ap);
  va_end(ap);
  CANCEL_LATER;
  x->opts.logger(x->opts.logger_priv, line);
}

void xdb_fail(struct xdb *x, const struct err_saved *why) {
  pthread_mutex_lock(&x->lock);
  if (atomic_load_explicit(&x->failed, memory_order_relaxed) == 0) {
    x->error = *why;
    atomic_store_explicit(&x->failed, (uint32_t)why->status, memory_order_release);
  }
  pthread_cond_broadcast(&x->changed);
  pthread_mutex_unlock(&x->lock);
  xdb_say(x, "writes are refused from now on: %s", why->msg);
}

enum remixdb_status xdb_failure_raise(struct xdb *x) {
  return atomic_load_explicit(&x->failed, memory_order_acquire) ? err_raise(&x->error) : REMIXDB_OK;
}
