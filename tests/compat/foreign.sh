#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# foreign.sh c-test FILE   compiles LevelDB's own C test (db/c_test.c of its sources) against this library, and runs it
# foreign.sh levigo        runs the tests of levigo, a Go binding, unchanged, on this library; needs go and the network,
#                          or a Go module cache that has it
# Run it in the root of a checkout after `make`. Environment: CCC, the compiler (cc).
set -u

root=$(pwd)
[ -e libremixdb-leveldb.so.0 ] || { echo "foreign: run make first" >&2; exit 2; }
work=$(mktemp -d) || exit 1
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

c_test() {
  "${CCC:-cc}" -w -I"$root/compat/leveldb" "$1" -o "$work/c_test" -L"$root" -lremixdb-leveldb -lremixdb \
    -Wl,-rpath,"$root" || return 1
  TEST_TMPDIR=$work/store "$work/c_test" >"$work/log" 2>&1
  status=$?
  cat "$work/log"
  [ $status -eq 0 ] && [ "$(tail -n 1 "$work/log")" = PASS ]
}

levigo() {
  mkdir "$work/lib" "$work/module" && ln -s "$root/libremixdb-leveldb.so" "$work/lib/libleveldb.so" || return 1
  printf 'module check\n\ngo 1.21\n\nrequire github.com/jmhodges/levigo v1.0.0\n' >"$work/module/go.mod"
  cd "$work/module" && CGO_CFLAGS="-I$root/compat/leveldb" CGO_LDFLAGS="-L$work/lib -L$root -lremixdb" \
    LD_LIBRARY_PATH="$root" GOFLAGS=-mod=mod go test -count=1 -v github.com/jmhodges/levigo
}

case ${1:-} in
  c-test)
    [ -r "${2:-}" ] || { echo "foreign: there is no file \"${2:-}\"" >&2; exit 2; }
    c_test "$2" || { echo "foreign: LevelDB's C test failed"; exit 1; }
    ;;
  levigo) levigo || { echo "foreign: levigo's tests failed"; exit 1; } ;;
  *)
    sed -n '3,/^set/p' "$0" | sed -e 's/^# \{0,1\}//' -e '/^set/d' >&2
    exit 2
    ;;
esac
