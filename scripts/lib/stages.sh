# shellcheck shell=bash
# Runs checks one after another, times them, counts what passed and failed, and goes on after a
# failure. Sourced, not run. The caller may set `logs`, the folder for what the checks say.

logs=${logs:-build/logs}
stages_passed=0
stages_failed=0
stages_table=()
stages_began=$SECONDS

# Counters read a log and print "PASSED FAILED".

# Every test binary and the documentation tests end with a line "test result: ...".
count_cargo() {
  awk '/^test result: / {
         for (i = 2; i <= NF; i++) {
           if ($i ~ /^passed;?$/) passed += $(i - 1)
           if ($i ~ /^failed;?$/) failed += $(i - 1)
         }
       }
       END { print passed + 0, failed + 0 }' "$1"
}

# The last line "N% tests passed, F tests failed out of T". Skipped tests are not counted.
count_ctest() {
  awk '/^[0-9]+% tests? passed, [0-9]+ tests? failed out of [0-9]+/ {
         failed = $4; total = $NF; skipped = 0
       }
       /\(Skipped\)$|\(Disabled\)$/ { skipped++ }
       END { print total - failed - skipped, failed + 0 }' "$1"
}

# The check is one test, and its status is the result.
count_one() {
  if [ "$2" -eq 0 ]; then echo 1 0; else echo 0 1; fi
}

# stage NAME COUNTER COMMAND...: runs the command with its output in a log, which is shown when it
# fails. Not for use in a condition: the command would run on after an error inside it.
stage() {
  local name=$1 counter=$2 log=$logs/$1.log began=$SECONDS status passed failed verdict
  shift 2
  printf '%-24s ' "$name"
  set +e
  (
    set -e
    "$@"
  ) >"$log" 2>&1 </dev/null
  status=$?
  set -e
  read -r passed failed < <("$counter" "$log" "$status")
  if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
    # It did not get as far as a result: a build that failed, a test that took its process along.
    failed=1
  elif [ "$((passed + failed))" -eq 0 ]; then
    echo "$name: no test ran" >>"$log"
    failed=1
  fi
  verdict=ok
  [ "$failed" -eq 0 ] || verdict=FAILED
  stages_passed=$((stages_passed + passed))
  stages_failed=$((stages_failed + failed))
  stages_table+=("$(printf '%-24s %-7s %5d s  %5d passed %4d failed' \
    "$name" "$verdict" "$((SECONDS - began))" "$passed" "$failed")")
  printf '%-7s %5d s\n' "$verdict" "$((SECONDS - began))"
  if [ "$failed" -ne 0 ]; then
    echo "---- the end of $log ----"
    tail -n 150 "$log"
    echo "---- $name ----"
  fi
}

# skip NAME WHY: says that a check cannot run here. It counts as neither passed nor failed.
skip() {
  stages_table+=("$(printf '%-24s %-7s %s' "$1" skipped "$2")")
  printf '%-24s skipped: %s\n' "$1" "$2"
}

# note NAME TEXT: a figure for the summary, which counts as nothing.
note() {
  stages_table+=("$(printf '%-24s %-7s %s' "$1" "" "$2")")
  printf '%-24s %s\n' "$1" "$2"
}

# The summary and the exit status; for a trap on EXIT, so that a script that ends early ends with
# the same last line.
summary() {
  local status=$?
  trap - EXIT
  if [ "$status" -ne 0 ]; then
    echo "stopped early with status $status"
    stages_failed=$((stages_failed + 1))
  fi
  if [ "$((stages_passed + stages_failed))" -eq 0 ]; then
    echo "nothing ran"
    status=1
  fi
  echo
  printf '%s\n' ${stages_table[@]+"${stages_table[@]}"}
  printf '%-24s %-7s %5d s\n' "all" "" "$((SECONDS - stages_began))"
  echo
  echo "$stages_passed passed, $stages_failed failed"
  [ "$stages_failed" -eq 0 ] || status=1
  exit "$status"
}
