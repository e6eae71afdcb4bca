// SPDX-License-Identifier: Apache-2.0
//
// Whether the compressed keys of a table are packed in the file.
#ifndef TESTS_KEYS_PACKED_H
#define TESTS_KEYS_PACKED_H

#include "tests/lib/check.h"

#include "sst.h"
#include "table/ckb.h"

static inline bool keys_packed(const struct sst *t) {
  uint8_t word[4];
  int fd;
  CHECK(t->ckb_len > 0);
  OK(fdpool_acquire(t->file, &fd));
  OK(env_read(t->ctx->env, fd, t->path, word, sizeof(word), t->ckb_off + CKB_OFF_LENGTH));
  fdpool_release(t->file);
  return load32le(word) & CKB_PACKED;
}
#endif
