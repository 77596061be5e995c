#!/usr/bin/env bash
# test_torch_versions.sh SOURCE: which versions of LibTorch CMake takes for the project, and for an installed ZeroRun. The LibTorchs
# here are folders that hold what CMake reads.
set -euo pipefail
source=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
number_of() { sed -n "s/^#define ZERORUN_TORCH_$1_MINOR //p" "$source/base/torch_version.h"; }
oldest=$(number_of OLDEST) newest=$(number_of NEWEST)

mkdir -p "$scratch/project/base"
cp "$source/base/torch_version.h" "$scratch/project/base/"
cat >"$scratch/project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(versions LANGUAGES CXX)
include($source/cmake/LibTorch.cmake)
message(STATUS "takes \${ZERORUN_TORCH_VERSION} as \${ZERORUN_TORCH_MINOR}")
END

# configure VERSION [OPTION...]: configures the project with a LibTorch VERSION; its output is in $scratch/text, in one line.
configure() {
  local torch=$scratch/torch
  mkdir -p "$torch/include/torch/headeronly" "$torch/lib"
  touch "$torch/lib/libtorch_cpu.so"
  printf '#define TORCH_VERSION \\\n  "%s"\n' "$1" >"$torch/include/torch/headeronly/version.h"
  local status=0
  cmake -G Ninja -S "$scratch/project" -B "$scratch/build" -DTORCH_DIR="$torch" "${@:2}" >"$scratch/output" 2>&1 || status=$?
  tr -s ' \n' '  ' <"$scratch/output" >"$scratch/text"
  return $status
}
fail() {
  printf 'FAILED: %s\n%s\n' "$1" "$(cat "$scratch/output")"
  exit 1
}
expect() { grep -qF -- "$1" "$scratch/text" || fail "the output does not say: $1"; }
reject() { ! grep -qF -- "$1" "$scratch/text" || fail "the output says: $1"; }

for version in "2.$oldest.0" "2.$oldest.4" "2.$newest.0" "2.$newest.3"; do
  configure "$version" || fail "LibTorch $version is refused"
  expect "takes $version as ${version%.*}"
  reject "CMake Warning"
  [[ $(<"$scratch/build/torch_version") == "${version%.*}" ]] || fail "torch_version does not name ${version%.*}"
done
configure "2.$((newest + 1)).0" || fail "a newer LibTorch is refused"
expect "CMake Warning"
expect "LibTorch 2.$((newest + 1)).0"
expect "newer than 2.$newest"
for version in "2.$((oldest - 1)).9" 3.0.0 1.13.0; do
  if configure "$version"; then fail "LibTorch $version is taken"; fi
  expect "holds LibTorch '$version', expected 2.$oldest to 2.$newest"
done

# What ZeroRunConfig.cmake does.
configure "2.$newest.2" -DZERORUN_BUILT_FOR_TORCH="2.$newest" || fail "the installed ZeroRun refuses a patch release"
if configure "2.$oldest.0" -DZERORUN_BUILT_FOR_TORCH="2.$newest"; then fail "the installed ZeroRun takes another LibTorch"; fi
expect "built for LibTorch 2.$newest, and TORCH_DIR=$scratch/torch holds LibTorch 2.$oldest.0"
expect "a LibTorch 2.$newest, or build and install ZeroRun for LibTorch 2.$oldest"
grep -q '^ *set(ZERORUN_BUILT_FOR_TORCH @ZERORUN_TORCH_MINOR@)' "$source/cmake/ZeroRunConfig.cmake.in" ||
  fail "ZeroRunConfig.cmake does not say what ZeroRun was built for"
echo "LibTorch 2.$oldest to 2.$newest are taken, later ones with a warning"
