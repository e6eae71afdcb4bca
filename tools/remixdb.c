// SPDX-License-Identifier: Apache-2.0
//
// The command `remixdb`: reads, writes and looks after a store from the shell.
#include "tools/commands.h"

int main(int argc, char **argv) {
  tool_begin("remixdb", argc > 0 ? argv[0] : "remixdb");
  return commands_run(argc, argv);
}
