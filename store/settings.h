// SPDX-License-Identifier: Apache-2.0
//
// Options that change while the store is open (remixdb_set_option).
#ifndef STORE_SETTINGS_H
#define STORE_SETTINGS_H

#include "store/state.h"

// Any thread but those of the store, outside of any epoch and lock. Fails with REMIXDB_INVALID (no such option, or not
// such a value), REMIXDB_READONLY, or as the change does; the old value then holds.
MUST_CHECK enum remixdb_status settings_set(struct xdb *x, const char *name, const char *value);
#endif
