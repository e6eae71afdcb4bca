// SPDX-License-Identifier: Apache-2.0
//
// Tests that run with stores without young views, and with such that have some: a test asks with_young when it makes
// its store.
#ifndef TESTS_BOTH_H
#define TESTS_BOTH_H

static bool with_young;

static int setup_old(void **state) {
  (void)state;
  with_young = false;
  return 0;
}

static int setup_young(void **state) {
  (void)state;
  with_young = true;
  return 0;
}

#define OLD(test) \
  { #test, test, setup_old, NULL, NULL }
#define YOUNG(test) \
  { #test ", young views", test, setup_young, NULL, NULL }
#define BOTH(test) OLD(test), YOUNG(test)
#endif
