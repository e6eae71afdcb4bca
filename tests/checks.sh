#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# checks.sh CHECK [ARGUMENT...]: one check of what was built, and that the check notices what it is there for.
#   headers HEADER...   every header compiles alone, and remixdb.h as C++
#   compile SOURCE...   every source compiles without io_uring; nothing is linked or run
#   exports LIBRARY...  each library exports what its header declares, no more and no less
#   seam OBJECT...      the library's objects ask of the system only what tests/seam.sh allows
#   prefetch OBJECT     the compiler kept the prefetches of a read from the cache (OBJECT is that of table/hold.c)
#   leaks PROGRAM       a program that leaks a descriptor fails; with LEAK_MEMORY=1 one that leaks memory too
#
# Environment: B, a directory for what the checks make (build/checks); CCC, the compiler (cc); CFLAGS, its flags; MODE,
# how the objects were built (release); UNDER, what a program is run by; LEAK_MEMORY.
set -u

B=${B:-build/checks}
CCC=${CCC:-cc}
CFLAGS=${CFLAGS:--std=gnu11 -D_GNU_SOURCE -I.}
MODE=${MODE:-release}
check=${1:-}
[ $# -gt 0 ] && shift
mkdir -p "$B" || exit 1

# Compilers and their flags are words divided by blanks.
# shellcheck disable=SC2086
compiler() { $CCC $CFLAGS "$@"; }

headers() {
  bad=0
  # The headers of vector instructions have three quarters of all lines. clang reads them once if they are a module.
  # Those that include nothing of a module see nothing of it.
  map=$($CCC -print-resource-dir 2>/dev/null)/include/module.modulemap
  modules=
  if [ -f "$map" ]; then
    modules="-fmodules -fmodules-cache-path=$B/modules -fno-implicit-module-maps -fmodule-map-file=$map"
  fi
  for h; do
    # shellcheck disable=SC2086
    printf '#include "%s"\n' "$h" | compiler $modules -Werror -fsyntax-only -x c - ||
      { echo "$h: does not compile alone" && bad=1; }
  done
  cxx=
  for c in ${CXX:-} clang++ g++ c++; do
    [ -n "$cxx" ] || { command -v "$c" >/dev/null 2>&1 && cxx=$c; }
  done
  if [ -n "$cxx" ]; then
    printf '#include "%s"\n' remixdb.h compat/leveldb/leveldb/c.h |
      $cxx -std=c++17 -Wall -Wextra -Werror -I. -fsyntax-only -x c++ - || bad=1
  fi
  echo "headers: $# compiled alone, $([ $bad -eq 0 ] && echo good || echo BAD)"
  return $bad
}

compile() {
  bad=
  for f; do
    compiler -DREMIXDB_NO_URING -Werror -c "$f" -o /dev/null || bad="$bad $f"
  done
  echo "compiled: $# files, failed:${bad:- none}"
  [ -z "$bad" ]
}

# exports_of LIBRARY HEADER PREFIX
exports_of() {
  sed -e 's,//.*,,' -e 's,/\*.*\*/,,' "$2" | grep -oE "\\b$3_[a-z0-9_]+\(" | tr -d '(' | LC_ALL=C sort -u >"$B/declared"
  nm -D --defined-only "$1" | awk '$2 ~ /[TBDRWV]/ { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort -u >"$B/exported"
  if ! [ -s "$B/exported" ] || ! diff "$B/declared" "$B/exported" >"$B/exports.diff"; then
    echo "exports of $1 differ from $2 (< declared, > exported):"
    cat "$B/exports.diff"
    return 1
  fi
  echo "exports: $1 has $(wc -l <"$B/exported") functions, as declared"
}

exports() {
  bad=0
  for lib; do
    case $lib in
      *leveldb*) exports_of "$lib" compat/leveldb/leveldb/c.h leveldb || bad=1 ;;
      *) exports_of "$lib" remixdb.h remixdb || bad=1 ;;
    esac
  done
  return $bad
}

seam() {
  sh tests/seam.sh "$MODE" "$@" || { echo "seam: BAD" && return 1; }
  mkdir -p "$B/seam/log"
  for f in open fopen read pwrite close unlink mmap malloc free pthread_create pthread_cond_wait pthread_join puts \
    abort exit signal setlocale dlsym; do
    echo "int $f(); int seam_bad(void); int seam_bad(void) { return $f(); }" >"$B/seam/log/wal.c"
    # shellcheck disable=SC2086
    $CCC -w -fno-builtin -c "$B/seam/log/wal.c" -o "$B/seam/log/wal.o" || return 1
    ! sh tests/seam.sh "$MODE" "$B/seam/log/wal.o" >/dev/null ||
      { echo "seam: a call of $f is not noticed" && return 1; }
  done
  echo "seam: $# objects ask nothing of the system that they must not"
}

# Nothing but time tells that a compiler dropped a prefetch (lib.h).
prefetch() {
  command -v objdump >/dev/null 2>&1 || { echo "prefetch: no objdump here, not checked" && return 0; }
  objdump -d "$1" >"$B/hold.dis" || return 1
  n=$(awk '/<sst_read_some>:/ { on = 1; next } /^$/ { on = 0 } on' "$B/hold.dis" | grep -cE 'prefetch|prfm')
  [ "$n" -ge 3 ] || { echo "prefetch: $n in sst_read_some: the compiler has dropped them" && return 1; }
  echo "prefetch: $n in a read of the cache"
}

# shellcheck disable=SC2086
leak() { ${UNDER:-} "$@" >"$B/leak.log" 2>&1; }

leaks() {
  case $1 in */*) ;; *) set -- "./$1" ;; esac
  leak "$1" || { cat "$B/leak.log" && echo "leaks: a program without one fails" && return 1; }
  ! leak "$1" descriptor || { echo "leaks: that of a descriptor is not noticed" && return 1; }
  if [ -n "${LEAK_MEMORY:-}" ]; then
    ! leak "$1" memory || { echo "leaks: that of memory is not noticed" && return 1; }
  fi
  echo "leaks: of descriptors${LEAK_MEMORY:+, and memory} are noticed"
}

case $check in
  headers | compile | exports | seam | prefetch | leaks)
    [ $# -gt 0 ] || { echo "checks.sh $check: nothing to check" >&2; exit 2; }
    "$check" "$@"
    ;;
  *)
    sed -n '3,/^$/p' "$0" | sed -e 's/^# \{0,1\}//' -e '/^set/d' >&2
    exit 2
    ;;
esac
