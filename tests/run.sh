#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh [-jN] ITEM...: runs tests, N at a time (-j: one per core; 1 without it), and prints a line for each in the
# order of the arguments: its place, its name, how it ended and how many seconds it took. The log of a failed item
# follows its line. The last lines name what failed and give the totals. The exit status is 0 when nothing failed.
#
# An ITEM is a test program, a file of Python tests (*.py), or a target of the Makefile (check-*, lint).
#
# Environment:
#   UNDER         what a test program is run by, such as an emulator
#   TEST_TIMEOUT  the seconds that one item may take (1200)
#   PYTHON        a Python that has pytest, xxhash and zstandard; looked for without it
#   LOGS          the directory of the logs (build/logs); the line of the totals is also in LOGS/total
#   RUN_NAME      one word that stands before the totals (tests)
#   IN_MEMORY     names of items: their files are below /dev/shm if it has 4 GiB of room, and TMPDIR is not set
set -u

cores() { getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1; }

# Prints the name of an item: the last part of its path, without its ending.
name_of() {
  name=${1##*/}
  echo "${name%.py}"
}

# Makes a directory in memory and prints it, or prints nothing.
memory_dir() {
  [ -z "${TMPDIR:-}" ] && [ -d /dev/shm ] && [ -w /dev/shm ] || return 0
  df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $4 >= 4 * 1024 * 1024 { good = 1 } END { exit !good }' || return 0
  mktemp -d /dev/shm/remixdb-tests-XXXXXX
}

# Runs one item in this process's place.
run() {
  case " ${IN_MEMORY:-} " in
    *" $(name_of "$1") "*) [ -z "$MEMORY_DIR" ] || export TMPDIR="$MEMORY_DIR" ;;
  esac
  timeout=
  command -v timeout >/dev/null 2>&1 && timeout="timeout ${TEST_TIMEOUT:-1200}"
  case $1 in
    *.py)
      # shellcheck disable=SC2086
      exec $timeout "$PYTHON" -m pytest -q -p no:cacheprovider "$1"
      ;;
    check-* | lint)
      # The jobs of the make that runs this one are out of its reach.
      MAKEFLAGS=$(printf '%s\n' "${MAKEFLAGS:-}" | sed -E -e 's/(^| )-j[0-9]*//g' -e 's/(^| )--jobserver[^ ]*//g')
      export MAKEFLAGS
      exec "${MAKE:-make}" --no-print-directory "$1"
      ;;
    *)
      [ -x "$1" ] || { echo "$1 was not built"; exit 1; }
      case $1 in */*) ;; *) set -- "./$1" ;; esac
      # shellcheck disable=SC2086
      exec $timeout ${UNDER:-} "$1"
      ;;
  esac
}

# The other end of xargs: runs item $3, the $2-th, and leaves its exit status and its seconds in WORK. Prints a line
# then.
if [ "${1:-}" = --one ]; then
  log=$LOGS/$(name_of "$3").log
  began=$(date +%s)
  (run "$3") >"$log" 2>&1
  echo "$? $(($(date +%s) - began))" >"$WORK/$2.new"
  mv "$WORK/$2.new" "$WORK/$2"
  echo "$2"
  exit 0
fi

jobs=1
case ${1:-} in
  -j) jobs=$(cores) && shift ;;
  -j*) jobs=${1#-j} && shift ;;
esac
[ $# -gt 0 ] || { echo "usage: $0 [-jN] ITEM..." >&2; exit 2; }

LOGS=${LOGS:-build/logs}
mkdir -p "$LOGS" && WORK=$(mktemp -d) || exit 1
MEMORY_DIR=
trap 'rm -rf "$WORK" ${MEMORY_DIR:+"$MEMORY_DIR"}' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ -z "${PYTHON:-}" ]; then
  for PYTHON in python3 /usr/bin/python3; do
    $PYTHON -c 'import pytest, xxhash, zstandard' >/dev/null 2>&1 && break
  done
fi
MEMORY_DIR=$(memory_dir)
export LOGS WORK PYTHON MEMORY_DIR PYTHONDONTWRITEBYTECODE=1

# Prints how many tests passed, failed and were skipped, as the log of an item says.
count() {
  case $1 in
    *.py)
      awk '/^=* *[0-9]+ [a-z]+.* in [0-9.]+s/ {
        p = f = s = 0
        for (i = 1; i < NF; i++) {
          if ($(i + 1) ~ /^passed/) p += $i
          if ($(i + 1) ~ /^(failed|error)/) f += $i
          if ($(i + 1) ~ /^skipped/) s += $i
        }
      } END { print p + 0, f + 0, s + 0 }' "$2"
      ;;
    check-* | lint) echo 1 0 0 ;;
    *)
      awk '/^\[  (PASSED|FAILED|SKIPPED) +\] .*test\(s\)/ {
        for (i = 4; i <= NF; i++) if ($i ~ /^test\(s\)/) n[$2] = $(i - 1)
      } END { print n["PASSED"] + 0, n["FAILED"] + 0, n["SKIPPED"] + 0 }' "$2"
      ;;
  esac
}

# Prints the names of the tests that failed within an item.
failures() {
  sed -nE -e 's/^\[  FAILED  \] ([A-Za-z0-9_]+)$/\1/p' -e 's/^(FAILED|ERROR) [^ ]*::([^ ]*).*/\2/p' "$1" |
    LC_ALL=C sort -u | tr '\n' ' '
}

# Reads a line whenever an item has ended, prints those whose turn it is, then the totals.
report() {
  nr=$# next=0 passed=0 failed=0 skipped=0 bad=
  : >"$WORK/bad"
  while read -r _; do
    while [ $# -gt 0 ] && [ -f "$WORK/$((next + 1))" ]; do
      next=$((next + 1))
      read -r status seconds <"$WORK/$next"
      log=$LOGS/$(name_of "$1").log
      read -r p f s <<TOTALS
$(count "$1" "$log")
TOTALS
      case $status in
        0)
          how="$p passed"
          [ $((p + s)) -gt 0 ] || how="FAILED: it ran no test" f=1
          ;;
        77) how="skipped: $(tail -n 1 "$log")" p=0 f=0 s=1 ;;
        124) how="FAILED: not done after ${TEST_TIMEOUT:-1200} s" ;;
        *) how="FAILED: exit status $status" ;;
      esac
      case $status in
        0) [ "$s" -eq 0 ] || how="$how, $s skipped" ;;
        77) ;;
        *)
          case $1 in check-* | lint) p=0 ;; esac
          [ "$f" -gt 0 ] || f=1
          ;;
      esac
      printf '[%*d of %d] %-24s %5s s  %s\n' "${#nr}" "$next" "$nr" "$(name_of "$1")" "$seconds" "$how"
      case $how in
        FAILED*)
          tail -n 200 "$log"
          echo "failed: $(name_of "$1"): $(failures "$log")($log)" >>"$WORK/bad"
          ;;
      esac
      passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
      shift
    done
  done
  # An item that left no result was ended from outside.
  for item; do
    echo "failed: $(name_of "$item"): it has no result" >>"$WORK/bad"
    failed=$((failed + 1))
  done
  cat "$WORK/bad"
  [ "$skipped" -eq 0 ] || bad=", $skipped skipped"
  echo "${RUN_NAME:-tests}: $passed passed, $failed failed$bad" >"$LOGS/total"
  echo "$nr programs, files and checks in $(($(date +%s) - began)) s, $jobs at a time"
  cat "$LOGS/total"
  [ ! -s "$WORK/bad" ]
}

began=$(date +%s)
n=0
for item; do
  n=$((n + 1))
  echo "$n $item"
done | xargs -n 2 -P "$jobs" sh "$0" --one | report "$@"
