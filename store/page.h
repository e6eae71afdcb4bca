// SPDX-License-Identifier: Apache-2.0
//
// Pages: many records copied from an iterator by one call.
#ifndef STORE_PAGE_H
#define STORE_PAGE_H

#include "xdb.h"

// The contracts of remixdb_iter_page and remixdb_iter_unread. An iterator that reaches its end with records in the page
// is not valid, but holds its super until the next call, which may be an unread.
MUST_CHECK enum remixdb_status xdb_iter_page(struct xdb_iter *it, struct remixdb_page *p);
MUST_CHECK enum remixdb_status xdb_iter_unread(struct xdb_iter *it, struct remixdb_page *p, uint32_t nr);
#endif
