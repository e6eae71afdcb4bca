// SPDX-License-Identifier: Apache-2.0
//
// The limit of the process's cgroup, from trees of files as Linux shows them.
#include "base/cgroup.h"
#include "tests/lib/check.h"
#include "tests/lib/temp.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static char root[TEMP_DIR];

// Writes a file and makes its directories.
static void put(const char *name, const char *text) {
  char path[TEMP_DIR + 256];
  (void)snprintf(path, sizeof(path), "%s/%s", root, name);
  for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    (void)mkdir(path, 0700);
    *slash = '/';
  }
  FILE *const f = fopen(path, "w");
  CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void begin(const char *groups) {
  CHECK(temp_make(root, "cgroup"));
  if (groups) put("proc/self/cgroup", groups);
}

// Ends a tree. Its limit should be this.
static void expect(uint64_t limit) {
  const uint64_t is = cgroup_limit(env_posix(), root);
  CHECK_SAYS(is == limit, "%llu, not %llu", (unsigned long long)is, (unsigned long long)limit);
  CHECK(remove_tree(root) == 0);
}

static void test_version_2(void **state) {
  (void)state;
  begin("0::/user/shell\n");
  put("sys/fs/cgroup/user/shell/memory.max", "1048576\n");
  expect(1048576);
  begin("0::/user/shell\n");  // the least of all above it counts
  put("sys/fs/cgroup/user/shell/memory.max", "max\n");
  put("sys/fs/cgroup/user/memory.max", "4096000\n");
  put("sys/fs/cgroup/memory.max", "5000000\n");
  expect(4096000);
  begin("0::/a/b/c\n");
  put("sys/fs/cgroup/a/b/c/memory.max", "3000\n");
  put("sys/fs/cgroup/a/memory.max", "2000\n");
  expect(2000);
  begin("0::/\n");  // in a container with a name space of its own
  put("sys/fs/cgroup/memory.max", "123456789\n");
  expect(123456789);
  begin("0::/docker/0123\n");  // in one without: the path is the host's
  put("sys/fs/cgroup/memory.max", "123456789\n");
  expect(123456789);
  begin("0::/user\n");
  put("sys/fs/cgroup/user/memory.max", "max\n");
  expect(UINT64_MAX);
}

#define OTHERS "12:pids:/jobs\n9:cpuset,memory_x:/jobs\n3:cpu,cpuacct:/jobs\n"

static void test_version_1(void **state) {
  (void)state;
  begin(OTHERS "4:memory:/jobs/7\n1:name=systemd:/\n");
  put("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "80000000\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/jobs/memory.limit_in_bytes", "1\n");  // not where the controller is
  expect(80000000);
  begin("4:hugetlb,memory:/docker/0123\n0::/\n");  // both versions
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "70000000");
  expect(70000000);
  begin(OTHERS "4:memory:/\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  expect(UINT64_MAX);
}

// A file that is not as it should be states no limit.
static void test_strange(void **state) {
  (void)state;
  static const char *const texts[] = {"", "\n", "-1\n", " 5\n", "5 MB\n", "99999999999999999999999\n", "max"};
  static const char *const groups[] = {"", "\n", ":", "0:", "0::", "0::a", "4:memory", "4:memory:", "::", "0::\n\n"};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    begin("0::/a\n");
    put("sys/fs/cgroup/a/memory.max", texts[i]);
    expect(UINT64_MAX);
  }
  for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
    begin(groups[i]);
    put("sys/fs/cgroup/memory.max", "5\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "5\n");
    expect(UINT64_MAX);
  }
  begin(NULL);
  expect(UINT64_MAX);
  begin("0::/a\n");
  expect(UINT64_MAX);
  begin("0::/../../a\n");
  put("sys/fs/cgroup/memory.max", "7\n");
  expect(7);
}

// A file that is absent is no failure of the thread's call.
static void test_message(void **state) {
  (void)state;
  begin(NULL);
  (void)err_set(REMIXDB_INVALID, "before");
  expect(UINT64_MAX);
  CHECK(strcmp(err_msg(), "before") == 0);
}

static void test_this_machine(void **state) {
  (void)state;
  const uint64_t has = cgroup_memory();
  CHECK(has > 0 && has <= memory_size());
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_version_2), cmocka_unit_test(test_version_1),    cmocka_unit_test(test_strange),
      cmocka_unit_test(test_message),   cmocka_unit_test(test_this_machine),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
