#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# soak.sh DIR [SECONDS]: random campaigns with new seeds, by the programs test_model, test_model_spaces, test_history,
# test_serial and test_crash (with test_crash_faults) in DIR. Each of the five has a sixth of the time. The campaign
# that fails every call once, test_crash_nth, and the one that flips every bit, test_rot, run in full, which takes about
# five minutes. So do the campaigns that `make test` shortens (TEST_LONG). The logs, DIR/soak_*.log, have the seeds of
# failures; the command that repeats one is at the top of the test's source.
set -u

[ $# -ge 1 ] || { echo "usage: $0 DIR [SECONDS]" >&2; exit 2; }
dir=$1
share=$((${2:-600} / 6))
bad=

for t in model model_spaces history serial; do
  SOAK_SECONDS=$share "$dir/test_$t" >"$dir/soak_$t.log" 2>&1 || bad="$bad $t"
  # The checker of test_serial has shown cycles that were planted, too.
  echo "$t: $(grep -a operations "$dir/soak_$t.log" | grep -v ', a cycle:$' | tail -n 1)"
done

CRASH_NTH=all "$dir/test_crash_nth" test_nth >"$dir/soak_nth.log" 2>&1 || bad="$bad nth"
echo "failing calls: $(grep -a 'lives in all' "$dir/soak_nth.log")"

ROT_ALL=1 "$dir/test_rot" >"$dir/soak_rot.log" 2>&1 || bad="$bad rot"
echo "damage: $(grep -a 'bits flipped' "$dir/soak_rot.log" | tail -n 1)"

: >"$dir/soak_long.log"
for t in store/test_crash store/test_crash_faults store/test_crash_nth store/test_history store/test_partitions \
  store/test_queue unit/test_remix_build unit/test_remix_cost; do
  TEST_LONG=1 "$dir/../$t" >>"$dir/soak_long.log" 2>&1 || { bad="$bad long" && break; }
done
echo "in full: $(grep -ac '^\[       OK' "$dir/soak_long.log") tests"

for mb in 128 512; do
  TEST_BUDGET_MB=$mb "$dir/test_budget" >"$dir/soak_budget.log" 2>&1 || { bad="$bad budget" && break; }
  echo "budget: $(grep -a 'after close' "$dir/soak_budget.log" | tail -n 1)"
done

seed=$(date +%s)
end=$((seed + share))
: >"$dir/soak_crash.log"
while [ "$(date +%s)" -lt $end ]; do
  {
    CRASH_SEED=$seed CRASH_SEEDS=10 "$dir/test_crash" &&
      CRASH_SEED=$seed CRASH_SEEDS=10 "$dir/test_crash_faults" &&
      CRASH_SEED=$seed CRASH_SEEDS=10 "$dir/test_crash_nth" test_nth_with_a_worker &&
      CRASH_SEED=$seed CRASH_SEEDS=100 "$dir/test_crash" test_each_call
  } >>"$dir/soak_crash.log" 2>&1 || bad="$bad crash"
  case $bad in *crash*) break ;; esac
  seed=$((seed + 100))
done
echo "crash: $(grep -ao '[0-9]* power cuts' "$dir/soak_crash.log" | awk '{ n += $1 } END { print n + 0 }') power cuts"

for t in $bad; do tail -n 20 "$dir/soak_$t.log"; done
echo "soak: failed:${bad:- none}"
[ -z "$bad" ]
