#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build.sh COMPILER: builds the extension module _xdb beside xdb.py, for each Python here that has its headers. Where
# there are none, xdb.py does without the module. PYTHON names the Pythons (python3 and /usr/bin/python3).
set -u
cd "$(dirname "$0")/.." || exit 1

# Prints where Python's headers are, and the name of the module's file.
facts='
import os, sys, sysconfig
include = sysconfig.get_path("include")
if sys.version_info >= (3, 10) and os.path.exists(os.path.join(include, "Python.h")):
    print(include)
    print("_xdb" + sysconfig.get_config_var("EXT_SUFFIX"))'

build() {
  include=$(echo "$2" | sed -n 1p)
  module=$(echo "$2" | sed -n 2p)
  [ -n "$module" ] || return 0
  if [ -f "$module" ] && [ -z "$(find python/_xdb.c python/build.sh remixdb.h -newer "$module")" ]; then return 0; fi
  echo "CC   $module"
  undefined=
  [ "$(uname)" != Darwin ] || undefined='-undefined dynamic_lookup'
  # Another process may have the old file loaded, so the new one takes its place at once.
  # shellcheck disable=SC2086
  $1 -std=gnu11 -O2 -g -Wall -Wextra -Wshadow -fPIC -shared $undefined -I. -I"$include" python/_xdb.c \
    -o "$module.new" && mv "$module.new" "$module"
}

for python in ${PYTHON:-python3 /usr/bin/python3}; do
  build "${1:-cc}" "$($python -c "$facts" 2>/dev/null)" || exit 1
done
