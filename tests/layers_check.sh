#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the layers, then plants faults in a copy of the sources and checks that tests/layers.sh notices each.
sh tests/layers.sh || exit 1
here=$(pwd)
copy=$(mktemp -d) || exit 1
trap 'rm -rf "$copy"' EXIT
tar cf - --exclude=./build --exclude=./.git ./*.[ch] ./*/*.[ch] compat tests/layers.txt | tar xf - -C "$copy" || exit 1
cd "$copy" || exit 1
# plant FILE LINE WORDS: the line at the end of the file must make the check fail with these words
plant() {
  cp "$1" kept 2>/dev/null || : >kept
  echo "$2" >>"$1"
  said=$(sh "$here/tests/layers.sh" 2>&1) && { echo "layers: '$2' in $1 is not noticed"; exit 1; }
  case $said in *"$3"*) ;; *) echo "layers: '$2' in $1 is noticed, but not as '$3': $said"; exit 1 ;; esac
  if [ -s kept ]; then mv kept "$1"; else rm -f "$1"; fi
}
plant base/env.h '#include "sst.h"' 'of the higher layer table'
plant kv.c '#include "xdb.h"' 'of the higher layer store'
plant view/merge.c '#include "wh/leaf.h"' 'keeps to itself'
plant remix/pack.h '#include "remix/splice.h"' 'in a circle of includes'
plant loose.c '#include "kv.h"' 'belongs to no layer'
plant compat/leveldb/batch.c '#include "store/batch.h"' 'more than the public face'
sh "$here/tests/layers.sh" >/dev/null || { echo "layers: the copy is not as it was"; exit 1; }
echo "layers: faults are noticed"
