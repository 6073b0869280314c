# shellcheck shell=bash
# The package as others get it: installed, then moved, found and linked in the usual ways. Sourced
# after verify.sh, not run; called in the repository's root.

# What Cargo.toml says, the only place that has the version.
cargo_version() {
  sed -nE 's/^version = "([0-9.]+).*/\1/p' Cargo.toml | head -n 1
}

# install_moved BUILD WORK: installs the package in a fresh folder, moves it, and leaves its path in
# `prefix` and that of its libraries in `libraries`.
install_moved() {
  rm -rf "$2"
  mkdir -p "$2"
  cmake --install "$1" --prefix "$PWD/$2/installed" >/dev/null
  mv "$2/installed" "$2/moved"
  prefix=$PWD/$2/moved
  libraries=$(dirname "$(find "$prefix" -name libkvbridge.so)")
  export PKG_CONFIG_PATH=$libraries/pkgconfig
}

# build_against_package SOURCE BUILD ARGUMENT...: a CMake project that finds the moved package. Not
# optimised, since what it builds runs for a moment.
build_against_package() {
  local source=$1 build=$2
  shift 2
  cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None \
    "-DCMAKE_PREFIX_PATH=$prefix" "$@" >/dev/null && cmake --build "$build"
}

# needs FILE: the names of the libraries that it asks the loader for.
needs() {
  readelf -d "$1" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p'
}

# ---- what is in it ----

# names_no_place: neither a text in the package nor a search path of the library names a folder where
# it was built or installed.
names_no_place() {
  local found
  found=$(grep -rnIF "$PWD" "$prefix" || true)
  found+=$(readelf -d "$libraries/libkvbridge.so" | grep -E 'RPATH|RUNPATH' || true)
  [ -z "$found" ] || { echo "$found"; return 1; }
}

# has_files: exactly these, so that neither a forgotten nor a stray file is shipped.
has_files() {
  diff <(cd "$prefix" && find . ! -type d -printf '%P %l\n' | sed 's/ $//' | sort) <(
    local library=${libraries#"$prefix"/}
    printf '%s\n' include/kvbridge/kvbridge.h include/kvbridge/kvbridge.hpp \
      include/kvbridge/kvbridge_kvcache.hpp include/kvbridge/kvbridge_mooncake.hpp \
      "$library/cmake/kvbridge/kvbridge-config.cmake" \
      "$library/cmake/kvbridge/kvbridge-config-version.cmake" \
      "$library/pkgconfig/kvbridge.pc" \
      "$library/libkvbridge.so $soname" "$library/$soname $soname.$version" \
      "$library/$soname.$version" | sort
  )
}

has_soname() {
  local dynamic
  dynamic=$(readelf -d "$libraries/libkvbridge.so")
  [[ $dynamic == *"(SONAME)"*"[$1]"* ]]
}

check_package_contents() {
  local prefix libraries soname version
  install_moved "$1" "$2"
  version=$(cargo_version)
  soname=libkvbridge.so.$(sed -nE 's/^#define KVB_ABI_VERSION //p' include/kvbridge/kvbridge.h)
  must "all files and links, and no others" has_files
  must "no file names the place where it was built" names_no_place
  must "the SONAME is $soname" has_soname "$soname"
}

# ---- versions ----

check_package_versions() {
  local prefix libraries version
  install_moved "$1" "$2"
  version=$(cargo_version)
  must "pkg-config says $version" test "$(pkg-config --modversion kvbridge)" = "$version"
  must "the library says $version" test "$(library_version "$2")" = "$version"
  must "pkg-config finds $version" pkg-config --print-errors "kvbridge >= $version"
  must_find "a request for a later version" "'kvbridge > $version'" \
    pkg-config --print-errors "kvbridge > $version"
  # Prints what is counted.
  cmake -S cpp_tests/versions -B "$2/find_package" -G Ninja "-DVERSION=$version" \
    "-DCMAKE_PREFIX_PATH=$prefix" 2>&1
}

# library_version WORK: as a program that was linked with plain flags gets it.
library_version() {
  local flags
  read -ra flags < <(pkg-config --cflags --libs kvbridge)
  printf '#include <kvbridge/kvbridge.h>\n#include <stdio.h>\nint main(void) {\n%s\n}\n' \
    'return puts(kvb_version()) < 0;' |
    cc -x c - -o "$1/version" "${flags[@]}" "-Wl,-rpath,$libraries" && "$1/version"
}

# ---- consumers ----

# by_plain_commands WORK: the consumer's three programs with the flags of pkg-config alone.
by_plain_commands() {
  local flags libs source=cpp_tests/consumer out=$1
  mkdir -p "$out"
  read -ra flags < <(pkg-config --cflags kvbridge)
  read -ra libs < <(pkg-config --libs kvbridge)
  flags+=(-std=c++17)
  libs+=("-Wl,-rpath,$libraries")
  g++ "${flags[@]}" "$source/main.cc" "$source/notebook.cc" "${libs[@]}" -o "$out/direct" &&
    g++ "${flags[@]}" -c "$source/notebook.cc" -o "$out/notebook.o" &&
    ar rcs "$out/libnotebook_static.a" "$out/notebook.o" &&
    g++ -std=c++17 "$source/main.cc" "$out/libnotebook_static.a" "${libs[@]}" \
      -o "$out/through_static" &&
    g++ "${flags[@]}" -fPIC -shared -Wl,--no-undefined "$source/notebook.cc" "${libs[@]}" \
      -o "$out/libnotebook_shared.so" &&
    g++ -std=c++17 "$source/main.cc" "$out/libnotebook_shared.so" "-Wl,-rpath,$PWD/$out" \
      -o "$out/through_shared"
}

# is_hidden_behind LIBRARY PROGRAM: the library needs kvbridge, by its SONAME and not by a path, and
# the program does not.
is_hidden_behind() {
  local library program
  library=$(needs "$1")
  program=$(needs "$2")
  grep -qx 'libkvbridge\.so\.[0-9]*' <<<"$library" && ! grep kvbridge <<<"$program"
}

check_package_consumers() {
  local prefix libraries program way
  install_moved "$1" "$2"
  must "a project with find_package builds" \
    build_against_package cpp_tests/consumer "$2/find_package"
  must "plain commands with pkg-config build" by_plain_commands "$2/pkg-config"
  # With the library that is there already, since building it takes minutes.
  must "a project with add_subdirectory builds" \
    build_against_package cpp_tests/consumer "$2/add_subdirectory" "-DKVBRIDGE_SOURCE=$PWD" \
    "-DKVBRIDGE_PREBUILT=$1/lib/libkvbridge.so"
  for way in find_package pkg-config add_subdirectory; do
    for program in direct through_static through_shared; do
      must "$way: $program" "$2/$way/$program"
    done
    must "$way: the shared C++ library asks for kvbridge, its user does not" \
      is_hidden_behind "$2/$way/libnotebook_shared.so" "$2/$way/through_shared"
  done
}

# ---- examples ----

check_package_examples() {
  local prefix libraries
  install_moved "$1" "$2"
  must "the README's program, a project of its own, builds" \
    build_against_package examples/walkthrough "$2/walkthrough"
  must "the README's program runs" "$2/walkthrough/walkthrough"
  must "all examples build" build_against_package examples "$2/all"
  must "the replay runs" "$2/all/replay" --requests 40 --json "$2/replay.json"
  must "the replay finds no wrong page" grep -q '"wrong_pages": 0,' "$2/replay.json"
  must "the replay had hits" grep -q '"hit_blocks": [1-9]' "$2/replay.json"
}
