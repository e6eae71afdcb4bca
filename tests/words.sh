#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# words.sh [LIST]: looks for the words of LIST (tests/words.txt) in the tracked sources and documents. One idea has one
# word; the list has the words that had a second meaning, and the shapes of sentences that readers stumble over. Fails
# and prints each place with its advice. An entry of the list has an example, which its pattern must find; if not, the
# entry would find nothing, and that fails, too.
list=${1:-tests/words.txt}
tab=$(printf '\t')
bad=0
set -f # a scope is a list of patterns for git
while IFS="$tab" read -r pattern advice example scope; do
  case $pattern in '' | '#'*) continue ;; esac
  if ! printf '%s\n' "$example" | grep -qE "$pattern"; then
    echo "words: \"$pattern\" does not find its example, \"$example\""
    bad=1
  fi
  # shellcheck disable=SC2086 # split on purpose
  found=$(git grep -nE "$pattern" -- ${scope:-*.c *.h *.py *.sh *.md} ':!tests/words.sh' ':!tests/golden' \
    ':!docs/CHANGELOG.md' 2>/dev/null)
  [ -z "$found" ] && continue
  printf '%s\n' "$found"
  echo "words: $advice"
  bad=1
done <"$list"
[ $bad -eq 0 ] && echo "words: none of $(grep -c "$tab" "$list") banned ones"
exit $bad
