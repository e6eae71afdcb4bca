// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a file on the real disk, read and written from outside of the store.
#ifndef TESTS_BYTES_H
#define TESTS_BYTES_H

#include <stddef.h>
#include <stdint.h>

// All of the file, at most 64 MB, for free.
uint8_t *file_read(const char *path, size_t *len_out);
// The file becomes these bytes. They are written over the old ones: some file systems sync a file that is truncated and
// written again.
void file_write(const char *path, const uint8_t *buf, size_t len);
#endif
