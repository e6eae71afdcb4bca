#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# words.sh [LIST]: looks for the words of LIST (tests/words.txt) in the tracked sources and documents. One idea has one
# word; the list has the words that had a second meaning. Fails and prints each place with its advice.
list=${1:-tests/words.txt}
tab=$(printf '\t')
bad=0
while IFS="$tab" read -r pattern advice; do
  case $pattern in '' | '#'*) continue ;; esac
  found=$(git grep -nE "$pattern" -- '*.c' '*.h' '*.py' '*.sh' '*.md' ':!tests/words.sh' ':!tests/golden' \
    ':!docs/CHANGELOG.md' 2>/dev/null)
  [ -z "$found" ] && continue
  printf '%s\n' "$found"
  echo "words: $advice"
  bad=1
done <"$list"
[ $bad -eq 0 ] && echo "words: none of $(grep -c "$tab" "$list") banned ones"
exit $bad
