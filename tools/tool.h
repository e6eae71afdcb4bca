// SPDX-License-Identifier: Apache-2.0
//
// Common part of the programs: their name, their failures and their end.
#ifndef TOOLS_TOOL_H
#define TOOLS_TOOL_H

#include "remixdb.h"

// Exit statuses. README.md and the manual page list these.
enum tool_exit {
  TOOL_DONE = 0,
  TOOL_FAILED = 1,  // the reason is on standard error
  TOOL_USAGE = 2,   // the arguments were wrong; nothing was done
  TOOL_NO_KEY = 3,  // get: there is no such key
  TOOL_DAMAGED = 4  // a file of the store is damaged; repair: the store is whole again, but something of it is lost
};

// Sets the name that messages begin with, such as "remixdb", and the name that the user called the program by, argv[0].
// The first call of all.
void tool_begin(const char *name, const char *called);
const char *tool_name(void);
const char *tool_called(void);

// Flushes standard output, prints "NAME: ..." on standard error and ends the program with this status.
_Noreturn void tool_end(enum tool_exit status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// A call of the library on the store in dir failed: prints the call, the library's message and a remedy. Returns the
// exit status: TOOL_DAMAGED or TOOL_FAILED.
enum tool_exit tool_complain(const char *dir, const char *call);
// The same, and ends the program.
_Noreturn void tool_fail_call(const char *dir, const char *call);
// Ends the program when not all of standard output could be written.
void tool_flush(void);

// Whether the argument is "--help" or "-h"; "--version" or "-V".
bool tool_is_help(const char *arg);
bool tool_is_version(const char *arg);
// Prints "NAME VERSION" and ends the program.
_Noreturn void tool_version(void);

// The ending of a counted noun: "" for 1, else "s".
const char *tool_s(unsigned long long n);
#endif
