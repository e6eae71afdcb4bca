#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh run DIR TARGET...: runs the fuzz targets DIR/fuzz_TARGET, one after the other. It keeps its findings in
# build/fuzz: the corpus grows there, and an input that fails is build/fuzz/TARGET-crash-*, -timeout-* or -oom-*.
# fuzz.sh merge DIR TARGET...: makes tests/corpus few inputs that reach as much as build/fuzz and tests/corpus together.
# How often each place is reached does not count.
# fuzz.sh mutants PROGRAM: runs tests/store/test_mutant.c, built as PROGRAM, on MUTANTS (20,000) crafted stores with a
# new seed. It prints the seed; TEST_SEED repeats it.
#
# Environment: FUZZ_SECONDS for each target (60), FUZZ_JOBS at a time (one per core).
set -u

if [ "${1:-}" = mutants ] && [ $# -eq 2 ]; then
  echo "== mutants: ${MUTANTS:=20000}"
  MUTANTS=$MUTANTS TEST_SEED=${TEST_SEED:-$(date +%s)} exec "$2"
fi
[ $# -ge 3 ] || { echo "usage: $0 run|merge DIR TARGET..., or $0 mutants PROGRAM" >&2; exit 2; }
verb=$1 dir=$2
shift 2
seconds=${FUZZ_SECONDS:-60}
jobs=${FUZZ_JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}

run() {
  # Choosing inputs by rarity costs time for each place that one reaches: a target that reaches thousands of places runs
  # two to three times as often without it.
  pace=
  [ "$1" != api ] || pace=-entropic=0
  # With -fork libFuzzer would otherwise ignore inputs that take too long or too much memory.
  # shellcheck disable=SC2086
  "$dir/fuzz_$1" $pace "-fork=$jobs" "-max_total_time=$seconds" -timeout=60 -rss_limit_mb=4096 -ignore_timeouts=0 \
    -ignore_ooms=0 "-artifact_prefix=build/fuzz/$1-" "build/fuzz/$1" "tests/corpus/$1" >"build/fuzz/$1.log" 2>&1
}

merge() {
  rm -rf build/fuzz/merged && mkdir -p build/fuzz/merged &&
    "$dir/fuzz_$1" -merge=1 -use_counters=0 build/fuzz/merged "tests/corpus/$1" "build/fuzz/$1" \
      >"build/fuzz/$1.merge.log" 2>&1 &&
    rm -rf "tests/corpus/$1" && mv build/fuzz/merged "tests/corpus/$1"
}

bad=
for t; do
  mkdir -p "build/fuzz/$t"
  case $verb in
    run)
      echo "== $t: $seconds s, $jobs at a time"
      run "$t" && failed= || failed=1
      grep -aE '^#[0-9]+: cov:' "build/fuzz/$t.log" | tail -n 1
      [ -z "$failed" ] || { bad="$bad $t" && tail -n 40 "build/fuzz/$t.log"; }
      ;;
    merge)
      merge "$t" || { echo "fuzz: $t was not merged: see build/fuzz/$t.merge.log" && exit 1; }
      echo "$t: $(find "tests/corpus/$t" -type f | wc -l) inputs, $(cat "tests/corpus/$t"/* | wc -c) bytes"
      ;;
    *)
      echo "$0: no verb \"$verb\"" >&2
      exit 2
      ;;
  esac
done
[ "$verb" = merge ] || echo "fuzzing: failed:${bad:- none}"
[ -z "$bad" ]
