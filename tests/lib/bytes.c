// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/bytes.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/lib/check.h"
#include "tests/lib/paths.h"

uint8_t *file_read(const char *path, size_t *len_out) {
  uint8_t *buf;
  OK(paths_read_file(ENV_PATHS(env_posix()), path, 64u << 20, &buf, len_out));
  uint8_t *const copy = malloc(*len_out + 1);
  assert_non_null(copy);
  memcpy(copy, buf, *len_out);
  mem_free(buf);
  return copy;
}

void file_write(const char *path, const uint8_t *buf, size_t len) {
  const int fd = open(path, O_WRONLY | O_CREAT, 0600);
  assert_true(fd >= 0);
  assert_int_equal(pwrite(fd, buf, len, 0), len);
  assert_int_equal(ftruncate(fd, (off_t)len), 0);
  assert_int_equal(close(fd), 0);
}
