// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

static void test_set(void **state) {
  (void)state;
  FAILS(err_set(REMIXDB_INVALID, "klen %d", 7), REMIXDB_INVALID);
  assert_string_equal(err_msg(), "klen 7");
  err_finish(REMIXDB_INVALID);
  FAILS(err_code(), REMIXDB_INVALID);
  assert_string_equal(err_msg(), "klen 7");
  // an answer and a success leave no message
  err_finish(REMIXDB_NOTFOUND);
  FAILS(err_code(), REMIXDB_NOTFOUND);
  assert_string_equal(err_msg(), "");
  (void)err_set(REMIXDB_IO, "x");
  err_finish(REMIXDB_OK);
  OK(err_code());
  assert_string_equal(err_msg(), "");
}

static void test_errno(void **state) {
  (void)state;
  FAILS(err_errno(ENOSPC, "write", "/d/f"), REMIXDB_NOSPACE);
  assert_non_null(strstr(err_msg(), ": write /d/f"));
  assert_non_null(strstr(err_msg(), strerror(ENOSPC)));
  FAILS(err_errno(EDQUOT, "write", "f"), REMIXDB_NOSPACE);
  FAILS(err_errno(ENOMEM, "mmap", "f"), REMIXDB_NOMEM);
  // these pass, as a lack of memory does; the message gives advice
  FAILS(err_errno(EMFILE, "open", "f"), REMIXDB_NOMEM);
  assert_non_null(strstr(err_msg(), strerror(EMFILE)));
  assert_non_null(strstr(err_msg(), "max_open_files"));
  FAILS(err_errno(ENFILE, "open", "f"), REMIXDB_NOMEM);
  assert_non_null(strstr(err_msg(), strerror(ENFILE)));
  FAILS(err_errno(EIO, "read", "f"), REMIXDB_IO);
  FAILS(err_errno(987654, "read", "f"), REMIXDB_IO);
  assert_true(strlen(err_msg()) > strlen(": read f"));
}

// The system's own words come first.
static void test_the_reason_comes_first(void **state) {
  (void)state;
  static const int errnums[] = {ENOENT, EACCES, EROFS, ENOSPC, EMFILE, EIO};
  for (uint32_t i = 0; i < sizeof(errnums) / sizeof(errnums[0]); i++) {
    char head[200];
    const int len = snprintf(head, sizeof(head), "%s: open /d/f", strerror(errnums[i]));
    (void)err_errno(errnums[i], "open", "/d/f");
    assert_memory_equal(err_msg(), head, (size_t)len);
  }
}

static void test_corrupt(void **state) {
  (void)state;
  FAILS(err_corrupt("a/b.sst", 4096, "count %u", 300u), REMIXDB_CORRUPT);
  assert_string_equal(err_msg(), "a/b.sst: offset 4096: count 300");
  // the end of a path that is too long stays, and so does the reason
  char path[2000];
  memset(path, 'p', sizeof(path));
  memcpy(path + sizeof(path) - 8, "/17.sst", 8);
  (void)err_corrupt(path, 18446744073709551615ull, "broken");
  assert_non_null(strstr(err_msg(), "/17.sst: offset 18446744073709551615: broken"));
}

// So it is with a failed call.
static void test_long_path(void **state) {
  (void)state;
  char path[600];
  memset(path, 'p', sizeof(path));
  memcpy(path + sizeof(path) - 8, "/17.sst", 8);
  static const int errnums[] = {EIO, ENOSPC, EMFILE, ENFILE};
  for (uint32_t i = 0; i < sizeof(errnums) / sizeof(errnums[0]); i++) {
    (void)err_errno(errnums[i], "open", path);
    assert_non_null(strstr(err_msg(), "open ..."));
    assert_non_null(strstr(err_msg(), "/17.sst"));
    assert_non_null(strstr(err_msg(), strerror(errnums[i])));
  }
  // a short one is there whole
  (void)err_errno(EIO, "open", path + sizeof(path) - 200);
  assert_non_null(strstr(err_msg(), path + sizeof(path) - 200));
  (void)err_errno(EIO, "open", NULL);
  assert_string_equal(strstr(err_msg(), ": open"), ": open");
}

static void test_long_is_cut(void **state) {
  (void)state;
  char text[3 * ERR_MSG_MAX];
  memset(text, 'a', sizeof(text) - 1);
  text[sizeof(text) - 1] = '\0';
  (void)err_set(REMIXDB_IO, "%s", text);
  assert_int_equal(strlen(err_msg()), ERR_MSG_MAX - 1);
  (void)err_corrupt(text, 1, "%s", text);
  assert_int_equal(strlen(err_msg()), ERR_MSG_MAX - 1);
}

// The message is as long as it may be, with these words at its ends and dots in between.
static void check_cut(const char *begin, const char *end) {
  const char *const msg = err_msg();
  assert_int_equal(strlen(msg), ERR_MSG_MAX - 1);
  assert_memory_equal(msg, begin, strlen(begin));
  assert_string_equal(msg + strlen(msg) - strlen(end), end);
  assert_non_null(strstr(msg, "..."));
}

// A message begins with a path that is too long, ends with it, or has it between its words. The other words stay.
static void test_long_keeps_words(void **state) {
  (void)state;
  static char path[4096];
  memset(path, '#', sizeof(path) - 1);
  (void)err_set(REMIXDB_READONLY, "%s: opened with read_only", path);
  check_cut("####", "####: opened with read_only");
  (void)err_set(REMIXDB_INVALID, "path too long: %s", path);
  check_cut("path too long: ####", "####");
  (void)err_set(REMIXDB_IO, "between %s and %s, nothing", path, path + 96);
  check_cut("between ####", "####, nothing");
  (void)err_set(REMIXDB_IO, "%s%s%s", path, path, path);  // longer than what is looked at
  check_cut("####", "####");
  (void)err_corrupt(path, 7, "%.300s: a long reason", path);
  check_cut("...####", "####: a long reason");
  // the longest that is whole, and the next one
  (void)err_set(REMIXDB_IO, "%s", path + sizeof(path) - ERR_MSG_MAX);
  assert_string_equal(err_msg(), path + sizeof(path) - ERR_MSG_MAX);
  (void)err_set(REMIXDB_IO, "%s", path + sizeof(path) - ERR_MSG_MAX - 1);
  check_cut("####", "####");
}

static void test_message_may_quote_itself(void **state) {
  (void)state;
  (void)err_set(REMIXDB_IO, "inner");
  (void)err_set(REMIXDB_IO, "outer: %s", err_msg());
  assert_string_equal(err_msg(), "outer: inner");
}

static void *thread_fails(void *arg) {
  struct err_saved *const e = arg;
  if (err_code() != REMIXDB_OK || err_msg()[0] != '\0') return (void *)1;  // another thread's error is not ours
  err_save(e, err_set(REMIXDB_NOSPACE, "in the thread"));
  return NULL;
}

static void test_save_and_threads(void **state) {
  (void)state;
  struct err_saved e;
  pthread_t t;
  void *ret;
  (void)err_set(REMIXDB_IO, "mine");
  err_finish(REMIXDB_IO);
  assert_int_equal(pthread_create(&t, NULL, thread_fails, &e), 0);
  assert_int_equal(pthread_join(t, &ret), 0);
  assert_null(ret);
  assert_string_equal(err_msg(), "mine");
  FAILS(err_raise(&e), REMIXDB_NOSPACE);
  assert_string_equal(err_msg(), "in the thread");
  // nothing saved, nothing raised
  err_finish(REMIXDB_OK);
  err_save(&e, REMIXDB_OK);
  OK(err_raise(&e));
  assert_string_equal(err_msg(), "");
}

static enum remixdb_status clean_one(void) { return err_set(REMIXDB_IO, "while cleaning"); }

static void test_cleanup_keeps_the_first(void **state) {
  (void)state;
  (void)err_set(REMIXDB_CORRUPT, "the first");
  err_cleanup_begin();
  FAILS(clean_one(), REMIXDB_IO);
  IGNORED(clean_one(), "it nests");
  FAILS(clean_one(), REMIXDB_IO);
  err_cleanup_end();
  assert_string_equal(err_msg(), "the first");
  IGNORED(clean_one(), "alone");
  assert_string_equal(err_msg(), "the first");
  FAILS(clean_one(), REMIXDB_IO);  // over: messages are taken again
  assert_string_equal(err_msg(), "while cleaning");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_set),
      cmocka_unit_test(test_errno),
      cmocka_unit_test(test_the_reason_comes_first),
      cmocka_unit_test(test_corrupt),
      cmocka_unit_test(test_long_path),
      cmocka_unit_test(test_long_is_cut),
      cmocka_unit_test(test_long_keeps_words),
      cmocka_unit_test(test_message_may_quote_itself),
      cmocka_unit_test(test_save_and_threads),
      cmocka_unit_test(test_cleanup_keeps_the_first),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
