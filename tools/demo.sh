#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# demo.sh [FILE]: the demonstration. Runs the tour, then imports the lines of FILE into a store, reads them back in
# another process, and compares them with what `LC_ALL=C sort -u` prints. Without FILE it takes 100,000 words that it
# makes up.
set -eu

program=$(dirname "$0")/../xdbdemo.out
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

words=${1:-$work/words}
if [ $# -eq 0 ]; then
  # Words of two to five syllables, in no order and some of them more than once, the same every time.
  awk 'BEGIN {
    n = split("ba de fi go lu ma ne pi ro su ta ve wi xo zu kra ple sti tho cha", syllable, " ")
    x = 1
    for (i = 0; i < 100000; i++) {
      word = ""
      for (j = i % 4 + 2; j > 0; j--) {
        x = (x * 16807) % 2147483647
        word = word syllable[x % n + 1]
      }
      print word
    }
  }' >"$words"
fi

echo "== the tour"
TMPDIR=$work "$program"
echo "== importing ${1:-made-up words}, $(wc -l <"$words") lines"
"$program" import "$work/store" "$words"
echo "== reading them back in another process"
"$program" dump "$work/store" >"$work/out"
if ! LC_ALL=C sort -u "$words" | cmp - "$work/out"; then
  echo "demo: what came back differs from LC_ALL=C sort -u"
  exit 1
fi
echo "== $(wc -l <"$work/out") records came back in order, byte for byte what LC_ALL=C sort -u prints"
