// SPDX-License-Identifier: Apache-2.0
//
// The commands on a store that `remixdb` consists of, and that xdbdemo has as well.
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include <stdio.h>

#include "tools/text.h"
#include "tools/tool.h"

// What the options of a command line ask for.
struct options {
  bool verbose;
  bool escapes;  // KEY and VALUE are given with escapes, and values are printed with them
  bool keys_only, reverse;
  struct text_format format;
  char *from, *to, *prefix;  // keys; NULL: not given
  size_t from_len, to_len, prefix_len;
  unsigned long long limit;
};

// Does what the arguments behind the program's name ask for: argv[1] is a command, or --help, or --version. Returns how
// the program is to end, or ends it.
int commands_run(int argc, char **argv);
// A line of help for each command: for the ones named in `only` (a list that ends with NULL), or for all (NULL).
void commands_list(FILE *out, const char *const *only);

// ---- a store in use by a command

enum store_how {
  STORE_READ,  // nothing on disk is changed, and others may read at the same time
  STORE_WRITE,
  STORE_MAKE  // it is made when there is none
};

struct store {
  const char *dir;
  struct xdb *xdb;
  struct xdb_ref *ref;
};

// Opens it, or ends the program. `messages`: the library's messages that begin so are shown in any case, NULL none; all
// are with o->verbose.
struct store store_open(const char *dir, enum store_how how, const struct options *o, const char *messages);
// Closes it; a failure ends the program.
void store_close(const struct store *s);

// ---- records as text (transfer.c)
int command_import(char **arg, const struct options *o);
int command_dump(char **arg, const struct options *o);
int command_scan(char **arg, const struct options *o);
#endif
