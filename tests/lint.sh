#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# lint.sh [DIR]: the form of all C, Python, shell and make in DIR (the repository). Lines have at most 120 columns, no
# tabs, and no blanks at their end; no wrap has torn a comment of C; only lib.h prefetches; shellcheck and clang-format
# find nothing. Those two are used where they are installed, clang-format in one version only: others make something
# else of .clang-format in places.
# lint.sh --format [DIR]: brings all C into the format first, also what is exempt.
#
# DIR/tests/lint.exempt lists what is not looked at, a line each: a rule (width, format), a blank, a pattern of paths.
set -u
export LC_ALL=C

FORMATTER=14
WIDTH=120

fix=
[ "${1:-}" != --format ] || { fix=1 && shift; }
cd "${1:-$(dirname "$0")/..}" || exit 2
bad=0

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
find . \( -name build -o -name .git -o -name __pycache__ -o -path ./bench/results \) -prune -o -type f \
  \( -name '*.[ch]' -o -name '*.inc' -o -name '*.py' -o -name '*.sh' -o -name '*.mk' -o -name Makefile \
  -o -path './.ci/*' \) -print | sed 's,^\./,,' | sort >"$work/all"
[ -s "$work/all" ] || { echo "lint: no files in $PWD" >&2; exit 2; }

# files RULE PATTERN...: the paths of which the last part fits a pattern and that are not exempt from the rule.
files() {
  rule=$1
  shift
  while read -r path; do
    for pattern; do
      # shellcheck disable=SC2254
      case ${path##*/} in $pattern) exempt "$rule" "$path" || echo "$path" ;; esac
    done
  done <"$work/all"
}

exempt() {
  [ -f tests/lint.exempt ] || return 1
  while read -r for_rule paths; do
    # shellcheck disable=SC2254
    if [ "$for_rule" = "$1" ]; then case $2 in $paths) return 0 ;; esac fi
  done <tests/lint.exempt
  return 1
}

# complain TEXT: prints $work/found, or its beginning, below the text. When the file is empty there is nothing to
# complain about.
complain() {
  [ -s "$work/found" ] || return
  echo "lint: $1:"
  head -n 100 "$work/found"
  bad=1
}

# check COMMAND...: what a command finds in the files of standard input, if there are any, into $work/found.
check() {
  cat >"$work/files"
  : >"$work/found"
  [ ! -s "$work/files" ] || xargs "$@" <"$work/files" >"$work/found" 2>&1 || [ -s "$work/found" ] ||
    echo "$1 failed" >"$work/found"
}

# grep prints the name of the only file, too, when /dev/null is another one.
search() { xargs grep -n "$@" /dev/null; }

# torn: the lines of comments that have one word, after a long line and before the rest of the paragraph. clang-format
# makes these of a line that is too long.
torn() {
  # shellcheck disable=SC2016
  xargs awk '
  FNR == 1 { word = ""; before = 0 }
  {
    mark = match($0, /^ *\/\/ */) ? RLENGTH : 0
    if (word != "" && mark >= indent && length($0) > mark) print word
    word = mark && before > 100 && substr($0, mark + 1) ~ /^[a-z]+$/ ? FILENAME ":" FNR ":" $0 : ""
    indent = mark
    before = mark ? length($0) : 0
  }'
}

formatter() {
  for c in clang-format "clang-format-$FORMATTER"; do
    case $("$c" --version 2>/dev/null) in *"version $FORMATTER."*) echo "$c" && return ;; esac
  done
}

format=$(formatter)
if [ -n "$fix" ]; then
  [ -n "$format" ] || { echo "lint: no clang-format of version $FORMATTER here" >&2; exit 2; }
  grep -E '\.([ch]|inc)$' "$work/all" | xargs "$format" -i || exit 1
fi

files width '*' | search ".\{$((WIDTH + 1))\}" | cut -c 1-100 >"$work/found"
complain "lines of more than $WIDTH columns"
files form '*' | grep -vE '(Makefile|\.mk)$' | search "$(printf '\t')" >"$work/found"
complain "tabs"
files form '*' | search ' $' >"$work/found"
complain "blanks at the end of a line"
files torn '*.[ch]' '*.inc' | torn >"$work/found"
complain "a wrap has torn the comment: fill the lines again"
files prefetch '*.[ch]' | grep -vE '^(lib\.h|(tests|tools)/.*)$' | search __builtin_prefetch >"$work/found"
complain "lib.h has the functions for that"
if command -v shellcheck >/dev/null 2>&1; then
  files shell '*.sh' run deps | check shellcheck
  complain "shellcheck"
fi
if [ -n "$format" ]; then
  files format '*.[ch]' '*.inc' | check "$format" --dry-run -Werror
  complain "the format; \`sh tests/lint.sh --format\` sets it right"
fi

echo "lint: $(wc -l <"$work/all") files, $([ $bad -eq 0 ] && echo good || echo BAD)"
exit $bad
