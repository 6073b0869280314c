# shellcheck shell=bash
# Checks of the header and the C++ side by compilers and tools, each with a planted defect, since a
# checker that is not at work says nothing either. Sourced, not run; called in the repository's root.

# Counts the lines "passed: ..." and "failed: ..." of checks that report themselves.
count_reported() {
  awk '/^passed: / { passed++ } /^failed: / { failed++ } END { print passed + 0, failed + 0 }' "$1"
}

# must NAME COMMAND...: reports whether the command succeeds.
must() {
  local name=$1
  shift
  if "$@"; then echo "passed: $name"; else echo "failed: $name"; fi
}

# must_find NAME TEXT COMMAND...: reports whether the command fails and says TEXT, a regular
# expression, which stands for the planted defect.
must_find() {
  local name=$1 text=$2 said
  shift 2
  if said=$("$@" 2>&1); then
    echo "failed: $name was not found"
  elif [[ $said =~ $text ]]; then
    echo "passed: $name was found"
  else
    printf '%s\n' "$said" "failed: $name: something else was found"
  fi
}

# ---- the headers ----

# compiles COMPILER LANGUAGE STANDARD SOURCE: without a warning.
compiles() {
  printf '%b' "$4" |
    "$1" -x "$2" "-std=$3" -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude -
}

# check_headers COMPILER: each header alone and twice, in each language that it is for.
check_headers() {
  local row language standard header line
  for row in c:c11:kvbridge.h c++:c++17:kvbridge.h c++:c++17:kvbridge.hpp \
    c++:c++17:kvbridge_kvcache.hpp c++:c++17:kvbridge_mooncake.hpp; do
    IFS=: read -r language standard header <<<"$row"
    line="#include \"kvbridge/$header\"\n"
    must "$header, $standard, alone" compiles "$1" "$language" "$standard" "$line"
    must "$header, $standard, twice" compiles "$1" "$language" "$standard" "$line$line"
    must_find "an unused variable in $standard" "unused variable" \
      compiles "$1" "$language" "$standard" "${line}void f(void);\nvoid f(void) { int lost; }\n"
  done
}

# ---- the manual ----

# doxygen_with HEADER SED: doxygen over copies of the headers, of which one was changed.
doxygen_with() {
  local work=build/doxygen-planted
  rm -rf "$work"
  mkdir -p "$work"
  cp -r include "$work"
  sed -i "$2" "$work/include/kvbridge/$1"
  if cmp -s "$work/include/kvbridge/$1" "include/kvbridge/$1"; then
    echo "$1 is as it was"
    return 0
  fi
  {
    cat docs/Doxyfile
    echo "INPUT = $work/include/kvbridge"
    echo "STRIP_FROM_INC_PATH = $work/include"
    echo "USE_MDFILE_AS_MAINPAGE ="
    echo "OUTPUT_DIRECTORY = $work"
  } | doxygen -
}

check_doxygen() {
  must "headers and documents" doxygen docs/Doxyfile
  must_find "a field without a comment" "Member tokens_per_block" \
    doxygen_with kvbridge.h '/Tokens per block; at least 1/d'
  must_find "a constant without a comment" "Member KVB_PANIC" \
    doxygen_with kvbridge.h '/A defect of the library, caught/d'
  must_find "a method without a comment" 'Member release\(\)' \
    doxygen_with kvbridge.hpp '/Gives the handle up/d'
  must_find "a reference to nothing" kvb_nothing \
    doxygen_with kvbridge.h 's/Frees a metadata/& as #kvb_nothing/'
  must_find "a parameter that is none" "argument 'nothing'" \
    doxygen_with kvbridge.h 's/Frees a metadata/@param nothing \0/'
}

# ---- misuse of handles ----

# errors_of COMPILER ARGUMENT...: compiles the misuse of handles; says the errors alone, without the
# lines of the source that a compiler shows with them.
errors_of() {
  local compiler=$1 said status=0
  shift
  # Without locale the quotes are plain.
  said=$(LC_ALL=C "$compiler" -x c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only \
    -Iinclude "$@" cpp_tests/misuse.cc 2>&1) || status=$?
  grep 'error:' <<<"$said" || true
  return "$status"
}

# check_misuse COMPILER: each misuse is refused for its own reason, and the rest compiles.
check_misuse() {
  local macro error count=0
  must "what is right compiles" errors_of "$1"
  while read -r macro error; do
    must_find "$macro" "$error" errors_of "$1" "-D$macro"
    count=$((count + 1))
  done < <(sed -nE 's|^#ifdef ([A-Z_]+) /\* (.+) \*/$|\1 \2|p' cpp_tests/misuse.cc)
  must "every case was compiled" test "$count" -eq "$(grep -c '^#if' cpp_tests/misuse.cc)"
}

# ---- sanitizers ----

# build_sanitized BUILD LIBRARY: the C++ side alone; the library is the one that was built already.
# The installed package is the ordinary build's business.
build_sanitized() {
  # Not optimised: that would take twice as long to build and gain seconds.
  local flags="-g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
  cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=None -DKVBRIDGE_INSTALL=OFF \
    -DKVBRIDGE_BUILD_TESTS=ON -DKVBRIDGE_BUILD_EXAMPLES=ON "-DKVBRIDGE_PREBUILT=$2" \
    "-DCMAKE_C_FLAGS=$flags" "-DCMAKE_CXX_FLAGS=$flags"
  cmake --build "$1"
}

# calls_sanitizers PROGRAM: its code reports to both.
calls_sanitizers() {
  local symbols
  symbols=$(nm --undefined-only "$1")
  [[ $symbols == *__asan_report_load* && $symbols == *__ubsan_handle_* ]]
}

check_sanitizers_work() {
  local program planted=$1/cpp_tests/kvbridge_planted
  for program in kvbridge_tests kvbridge_plugin_test kvbridge_plugin_exit kvbridge_engine_tests \
    kvbridge_engine_cuda_tests kvbridge_replay_tests kvbridge_cuda_tests kvbridge_gpu_tests; do
    must "$program is sanitized" calls_sanitizers "$1/cpp_tests/$program"
  done
  must "no defect is no report" "$planted" none
  must_find "an overflow" heap-buffer-overflow "$planted" overflow
  must_find "undefined behaviour" "signed integer overflow" "$planted" undefined
  must_find "a leak" "detected memory leaks" "$planted" leak
  must_find "a handle that is never freed" "Handle<.*kvb_config>" "$planted" handle
}

# ---- valgrind ----

under_valgrind() {
  valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite \
    --errors-for-leak-kinds=definite --fair-sched=yes "$@"
}

# check_valgrind BUILD: what takes seconds there, where threads take turns: not the replays, and the engine
# on the device alone, with four ranks left out, which show no more there than two.
check_valgrind() {
  local planted=$1/cpp_tests/kvbridge_planted
  local program end
  for program in kvbridge_tests kvbridge_plugin_test; do
    must "$program" under_valgrind "$1/cpp_tests/$program" --gtest_brief=1
  done
  # The loader has to find the stand-in as the driver's library.
  for program in kvbridge_cuda_tests kvbridge_engine_cuda_tests; do
    LD_LIBRARY_PATH=$1/cpp_tests/cuda must "$program" \
      under_valgrind "$1/cpp_tests/$program" --gtest_brief=1 '--gtest_filter=-*Ranks.*/4*'
  done
  for end in return close free; do
    must "a process that ends by $end" under_valgrind "$1/cpp_tests/kvbridge_plugin_exit" "$end"
  done
  must "structs of other versions" under_valgrind "$1/cpp_tests/kvbridge_frozen_structs"
  must "no defect is no report" under_valgrind "$planted" none
  must_find "a leak" "definitely lost" under_valgrind "$planted" leak
  must_find "a handle that is never freed" "Handle<.*kvb_config>" under_valgrind "$planted" handle
  must_find "an overflow" "Invalid read" under_valgrind "$planted" overflow
}

# ---- the folder for a machine with a GPU ----

# succeeds_saying TEXT COMMAND...: with status 0, and a line that has the text.
succeeds_saying() {
  local text=$1 said
  shift
  said=$("$@" 2>&1) || { echo "$said"; return 1; }
  [[ $said == *"$text"* ]] || { echo "$said"; return 1; }
}

# check_gpu_folder STAND_IN: that scripts/gpu-check makes it, and that it runs to its end on the stand-in of
# the driver, of which all figures are labelled so. What it finds on a GPU is nobody's business here.
check_gpu_folder() {
  local folder=build/gpu-check none=build/gpu-check-none broken=build/gpu-check-broken
  scripts/gpu-check build
  rm -rf "$none" "$broken"
  mkdir -p "$none"
  # The loader looks no further when it finds something that is no library.
  echo "no library" >"$none/libcuda.so.1"
  must "without a GPU it says so and ends well" \
    succeeds_saying "no GPU here" env "LD_LIBRARY_PATH=$PWD/$none" "$folder/run"
  must "on the stand-in it runs to its end" \
    succeeds_saying "A STAND-IN" env "LD_LIBRARY_PATH=$1" "$folder/run" --quick
  must "the figures of all workloads are there" \
    test "$(env "LD_LIBRARY_PATH=$1" "$folder/kvbridge_gpu_bench" measure --quick |
      grep -cE '^gpu_(gather|scatter) ')" -eq 32
  cp -r "$folder" "$broken"
  printf '#!/bin/sh\necho "[  FAILED  ] 1 test, listed below:"\nexit 1\n' >"$broken/kvbridge_gpu_tests"
  must_find "a test that fails" "2 passed, 1 failed|1 passed, 1 failed" \
    env "LD_LIBRARY_PATH=$1" "$broken/run" --quick
  printf '#!/bin/sh\nexit 127\n' >"$broken/kvbridge_gpu_bench"
  must_find "a program that does not start" "cannot be asked" "$broken/run"
}
