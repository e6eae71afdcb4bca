// SPDX-License-Identifier: Apache-2.0
//
// The commands of `remixdb`; xdbdemo has them, too.
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include <stdio.h>

#include "tools/text.h"
#include "tools/tool.h"

// The options of a command line.
struct options {
  bool verbose;
  bool escapes;  // KEY and VALUE are given with escapes, and values are printed with them
  bool keys_only, reverse;
  struct text_format format;
  char *from, *to, *prefix;  // keys; NULL: not given
  size_t from_len, to_len, prefix_len;
  const char *space;  // name of a key space; NULL: the unnamed one
  unsigned long long limit;
};

// Runs the command line: argv[1] is a command, or --help, or --version. Returns the program's exit status, or ends the
// program.
int commands_run(int argc, char **argv);
// Prints a line of help for each command in `only` (a list that ends with NULL), or for all commands (NULL).
void commands_list(FILE *out, const char *const *only);

// ---- a store in use by a command

enum store_how {
  STORE_READ,  // nothing on disk is changed, and others may read at the same time
  STORE_WRITE,
  STORE_MAKE  // makes the store when there is none
};

struct store {
  const char *dir;
  struct xdb *xdb;
  struct xdb_space *space;  // NULL: the unnamed one
  struct xdb_ref *ref;      // a ref of the space
};

// Opens the store and o->space in it, or ends the program. STORE_MAKE makes the space, too. o->verbose shows all
// messages of the library; else those that begin with `messages` are shown, NULL: none.
struct store store_open(const char *dir, enum store_how how, const struct options *o, const char *messages);
// Closes it; a failure ends the program.
void store_close(const struct store *s);

// ---- records as text (transfer.c)
int command_import(char **arg, const struct options *o);
int command_dump(char **arg, const struct options *o);
int command_scan(char **arg, const struct options *o);
#endif
