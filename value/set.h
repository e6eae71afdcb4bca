// SPDX-License-Identifier: Apache-2.0
//
// Sets of value files, each with a reference.
#ifndef VALUE_SET_H
#define VALUE_SET_H

#include "value/file.h"

// All zero: empty. Ascending by number. One thread changes a set; others may read it when it does not change any more.
struct value_set {
  struct value_file **files;
  uint32_t nr, cap;
};
// The index of the first file whose number is not smaller.
uint32_t value_set_place(const struct value_set *s, uint64_t number);
struct value_file *value_set_find(const struct value_set *s, uint64_t number);  // NULL: it is not there
// Adds a file and takes a reference, unless the file is there. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status value_set_add(struct value_set *s, struct value_file *f);
void value_set_fini(struct value_set *s);  // drops the references

// A list that several threads extend while others search it.
struct value_node {
  struct value_file *file;
  struct value_node *next;
};
struct value_list {
  _Atomic(struct value_node *) first;  // pushed with release
};
struct value_file *value_list_find(const struct value_list *l, uint64_t number);  // NULL: it is not there
// Adds a file and takes a reference, unless the file is there. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status value_list_add(struct value_list *l, struct value_file *f);
void value_list_fini(struct value_list *l);  // drops the references; no other thread uses the list
#endif
