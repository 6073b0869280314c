# shellcheck shell=bash
# What the scripts need on a fresh Debian or Ubuntu with Rust. Sourced, not run.

fail() {
  echo "${0##*/}: $*" >&2
  exit 2
}

# True when a C++ source that includes HEADER gets through the preprocessor.
has_header() {
  command -v g++ >/dev/null && echo "#include <$1>" | g++ -E -x c++ - >/dev/null 2>&1
}

# True when the dynamic loader finds the library.
has_library() {
  [[ $(PATH=$PATH:/sbin:/usr/sbin ldconfig -p) == *"$1 "* ]]
}

# True when what PACKAGE is wanted for is there, wherever it came from.
has_package() {
  case $1 in
    ninja-build) command -v ninja >/dev/null ;;
    # cc is what cargo links with.
    g++) command -v g++ >/dev/null && command -v cc >/dev/null ;;
    binutils) command -v nm >/dev/null && command -v readelf >/dev/null ;;
    abigail-tools) command -v abidiff >/dev/null && command -v abidw >/dev/null ;;
    iproute2) PATH=$PATH:/sbin:/usr/sbin command -v ip >/dev/null ;;
    python3-venv) python3 -c 'import ensurepip' >/dev/null 2>&1 ;;
    libgtest-dev) has_header gtest/gtest.h ;;
    zlib1g-dev) has_header zlib.h ;;
    libibverbs1) has_library libibverbs.so.1 ;;
    ibverbs-providers) has_library libmlx5.so.1 ;;
    libnuma1) has_library libnuma.so.1 ;;
    libcurl4) has_library libcurl.so.4 ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# install_missing LOG PACKAGE...: installs those packages that are not there; does nothing, and
# needs no rights, when all are.
install_missing() {
  local log=$1 package missing=() as_root=()
  shift
  for package in "$@"; do
    has_package "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null ||
    fail "please install ${missing[*]} (names as in Debian)"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "please install ${missing[*]}: neither root nor sudo is at hand to do it"
    as_root=(sudo)
  fi
  echo "installing ${missing[*]}" >&2
  mkdir -p "$(dirname "$log")"
  {
    "${as_root[@]}" apt-get update -qq &&
      "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}"
  } >"$log" 2>&1 </dev/null || {
    tail -n 20 "$log" >&2
    fail "the installation of ${missing[*]} failed, see $log"
  }
}

# Makes cargo callable: also from rustup's usual place, when the shell has not been told yet.
find_cargo() {
  local home=${CARGO_HOME:-$HOME/.cargo}
  command -v cargo >/dev/null && return
  [ -x "$home/bin/cargo" ] || fail "cargo is missing: install Rust from https://rustup.rs"
  export PATH=$home/bin:$PATH
}

# Makes `cargo fmt` and `cargo clippy` callable, which minimal toolchains lack.
find_cargo_checks() {
  cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return
  command -v rustup >/dev/null || fail "cargo's components rustfmt and clippy are missing"
  rustup component add rustfmt clippy >&2 || fail "rustfmt and clippy could not be installed"
}
