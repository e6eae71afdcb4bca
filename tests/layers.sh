#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# layers.sh [ORDER]: checks the includes of the library's files against the layers in ORDER (tests/layers.txt).
# It fails on an include that goes upwards, on one into a header that another layer keeps to itself, on a file without a
# layer, and on files that include each other in a circle (a .c and its .h count as one). Run it in the root of a
# checkout.
order=${1:-tests/layers.txt}
others='^(tests|tools|compat|python|server|build)/|^xdb(demo|test|exit)\.c$'
files=$(git ls-files '*.c' '*.h' 2>/dev/null | grep -vE "$others")
[ -n "$files" ] || files=$(find . -name '*.[ch]' | sed 's|^\./||' | LC_ALL=C sort | grep -vE "$others")
# The files outside, on top of the public face, include that and their own files.
outside=$(grep -H '^#include "' compat/*/*.[ch] compat/*/*/*.h 2>/dev/null | grep -vE '"(remixdb\.h|compat/|leveldb/)')
if [ -n "$outside" ]; then
  echo "layers: compat/ includes more than the public face: $outside"
  exit 1
fi
# shellcheck disable=SC2086
grep -H '^#include "' $files | awk -v files="$files" -v order="$order" '
function pattern(glob) { gsub(/\./, "\\.", glob); gsub(/\*/, "[^/]*", glob); return "^" glob "$" }
function layer_of(file,   i) { for (i = 1; i <= nr_owned; i++) if (file ~ owned[i]) return owner[i]; return 0 }
function is_shown(file,   i) { for (i = 1; i <= nr_shown; i++) if (file ~ shown[i]) return 1; return 0 }
function unit(file) { sub(/\.[ch]$/, "", file); return file }
function fault(text) { print "layers: " text; bad = 1 }
BEGIN {
  while ((getline line < order) > 0) {
    if (line ~ /^#/ || line ~ /^ *$/) continue
    nr_words = split(line, word, " ")
    name[++nr_layers] = word[1]
    behind = 0
    for (w = 2; w <= nr_words; w++) {
      if (word[w] == "|") behind = 1
      else if (behind) shown[++nr_shown] = pattern(word[w])
      else { owned[++nr_owned] = pattern(word[w]); owner[nr_owned] = nr_layers }
    }
  }
  if (!nr_layers) fault("no order in " order)
  nr_files = split(files, file, /[ \n]+/)
  for (f = 1; f <= nr_files; f++) if (!layer_of(file[f])) fault(file[f] " belongs to no layer")
}
{
  from = $0; sub(/:#include.*/, "", from)
  to = $0; sub(/^[^"]*"/, "", to); sub(/".*/, "", to)
  a = layer_of(from); b = layer_of(to)
  if (!b) fault(from " includes " to ", which belongs to no layer")
  else if (b > a) fault(from " (" name[a] ") includes " to " of the higher layer " name[b])
  else if (b < a && !is_shown(to)) fault(from " (" name[a] ") includes " to ", which " name[b] " keeps to itself")
  u = unit(from); v = unit(to)
  if (u != v && to != "remixdb.h" && !((u, v) in edge)) { edge[u, v] = 1; nr_out[u]++; nr_in[v]++; node[u]; node[v] }
}
END {
  # Files that include nothing that is left, or that nothing left includes, are taken away again and again: only
  # circles, and what lies between two, stay.
  do {
    changed = 0
    for (n in node) if (!(n in gone) && (!nr_out[n] || !nr_in[n])) {
      gone[n]; changed = 1
      for (m in node) {
        if ((m, n) in edge) nr_out[m]--
        if ((n, m) in edge) nr_in[m]--
      }
    }
  } while (changed)
  for (n in node) if (!(n in gone)) fault(n " is in a circle of includes")
  if (!bad) print "layers: " nr_files " files in " nr_layers " layers, every include goes down"
  exit bad
}'
