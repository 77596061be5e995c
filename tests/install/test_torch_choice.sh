#!/usr/bin/env bash
# test_torch_choice.sh SOURCE: which LibTorch scripts/setup chooses, in a copy of the scripts. The LibTorchs here are folders that hold
# what setup reads, so nothing is downloaded.
set -euo pipefail
source=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset TORCH_DIR VIRTUAL_ENV CONDA_PREFIX ZERORUN_USE_TORCH

checkout=$scratch/checkout
mkdir -p "$checkout/.deps" "$checkout/base" "$checkout/build"
cp -r "$source/scripts" "$checkout/"
cp "$source/base/torch_version.h" "$checkout/base/"
[[ ! -e $source/.deps/valijson ]] || ln -s "$source/.deps/valijson" "$checkout/.deps/valijson"
default=$(sed -n 's/^default_torch=//p' "$source/scripts/common.sh")
layout=$(sed -n "s/^stamp() { printf '\(layout [0-9]*\),.*/\1/p" "$source/scripts/setup")

# make_torch FOLDER VERSION
make_torch() {
  mkdir -p "$1/include/torch/headeronly" "$1/lib"
  touch "$1/lib/libtorch_cpu.so"
  printf '#define TORCH_VERSION \\\n  "%s"\n' "$2" >"$1/include/torch/headeronly/version.h"
}
for version in 2.11 2.13 2.15; do
  make_torch "$checkout/.deps/libtorch-$version/torch" "$version.0"
  printf '%s, cpu and cuda, requirements %s\n' "$layout" "$(sha256sum <"$checkout/scripts/libtorch-requirements-$version.txt")" \
    >"$checkout/.deps/libtorch-$version/.complete"
done
for version in 2.10.1 2.13.1 2.16.0; do make_torch "$scratch/$version/lib/python3.12/site-packages/torch" "$version"; done
torch_of() { echo "$scratch/$1/lib/python3.12/site-packages/torch"; }

fail() {
  printf 'FAILED: %s\n%s\n' "$1" "$(cat "$scratch/text")"
  exit 1
}
# setup [NAME=VALUE...] [OPTION...]: runs setup in this environment.
setup() {
  local variables=()
  while [[ ${1:-} == *=* ]]; do
    variables+=("$1")
    shift
  done
  env "${variables[@]}" "$checkout/scripts/setup" "$@" >"$scratch/text" 2>&1
}
# chosen FOLDER [FILE]
chosen() { [[ $(<"$checkout/.deps/${2:-torch_dir}") == "$1" ]] || fail "the choice is $(<"$checkout/.deps/${2:-torch_dir}"), not $1"; }
refused() { grep -qF -- "$1" "$scratch/text" || fail "the error does not say: $1"; }

setup && chosen "$checkout/.deps/libtorch-$default/torch"
setup TORCH_DIR="$(torch_of 2.16.0)" && chosen "$(torch_of 2.16.0)"
if setup TORCH_DIR="$(torch_of 2.10.1)"; then fail "LibTorch 2.10 is taken"; fi
refused "holds 2.10.1, expected LibTorch 2.11 or later"
if setup TORCH_DIR="$scratch"; then fail "a folder without LibTorch is taken"; fi
refused "holds no LibTorch"

# The active environment, if its version is supported.
setup VIRTUAL_ENV="$scratch/2.13.1" && chosen "$(torch_of 2.13.1)"
setup CONDA_PREFIX="$scratch/2.16.0" && chosen "$(torch_of 2.16.0)"
setup VIRTUAL_ENV="$scratch/2.10.1" && chosen "$checkout/.deps/libtorch-$default/torch"

# --torch holds until another is chosen; an environment is used if its torch is of that version.
setup --torch 2.15 && chosen "$checkout/.deps/libtorch-2.15/torch"
setup && chosen "$checkout/.deps/libtorch-2.15/torch"
setup VIRTUAL_ENV="$scratch/2.13.1" && chosen "$checkout/.deps/libtorch-2.15/torch"
setup --torch 2.13 && chosen "$checkout/.deps/libtorch-2.13/torch"
setup VIRTUAL_ENV="$scratch/2.13.1" && chosen "$(torch_of 2.13.1)"
if setup --torch 2.9; then fail "--torch 2.9 is taken"; fi
refused "LibTorch '2.9' is not one of those that scripts/setup installs: 2.11 2.12"

# What scripts/build --torch and others do: for one call, beside the checkout's choice.
setup
setup ZERORUN_USE_TORCH=2.11 && chosen "$checkout/.deps/libtorch-2.11/torch" torch_dir-torch2.11
chosen "$checkout/.deps/libtorch-2.13/torch"
if setup ZERORUN_USE_TORCH=2.11 TORCH_DIR="$(torch_of 2.13.1)"; then fail "TORCH_DIR of another version is taken"; fi
refused "holds LibTorch 2.13.1, and --torch 2.11 was given"
echo "setup chooses the LibTorch that was asked for"
