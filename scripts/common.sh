# Sourced by the scripts beside it: the checkout's folder, messages, and the installation of wheels.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The version of LibTorch that scripts/setup installs if no other is chosen.
default_torch=2.15

# use_torch VERSION: lets this script and those that it calls use LibTorch VERSION (such as 2.15), whatever the checkout uses
# otherwise, in folders of its own: build-torch2.15, .deps/python-torch2.15.
use_torch() {
  require_torch_version "$1"
  export ZERORUN_USE_TORCH=$1
  set_torch_names
}

# Sets torch_suffix, which the names of those folders end with, and torch_dir_file, in which scripts/setup names the folder
# of LibTorch.
set_torch_names() {
  torch_suffix=${ZERORUN_USE_TORCH:+-torch$ZERORUN_USE_TORCH}
  torch_dir_file=$root/.deps/torch_dir$torch_suffix
}
set_torch_names

# The file with the wheels of LibTorch VERSION and their hashes.
torch_requirements_of() { echo "$root/scripts/libtorch-requirements-$1.txt"; }

require_torch_version() {
  [[ -f $(torch_requirements_of "$1") ]] || fail "LibTorch '$1' is not one of those that scripts/setup installs:" \
    "$(supported_torch). Give one of these, or set TORCH_DIR to the folder of another"
}
supported_torch() {
  local file
  for file in "$root"/scripts/libtorch-requirements-*.txt; do
    file=${file##*-}
    printf '%s ' "${file%.txt}"
  done | sed 's/ $//'
}

# version_of_torch FOLDER: prints the version of the LibTorch in FOLDER, such as 2.15.0, or nothing if there is none.
version_of_torch() {
  [[ -f $1/lib/libtorch_cpu.so && -f $1/include/torch/headeronly/version.h ]] || return 0
  sed -n 's/^ *"\([0-9.]*\).*/\1/p' "$1/include/torch/headeronly/version.h"
}

# torch_minor_of FOLDER: likewise its minor version, such as 2.15.
torch_minor_of() { version_of_torch "$1" | cut -d . -f 1,2; }

# say TEXT: prints a progress line, one per step of a script.
say() { printf '== %s\n' "$*"; }

# fail TEXT: prints an error in one line, which includes the remedy, and exits with 1.
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# fail_with_pips_reason WHAT LOG: fails because pip could not install WHAT, with the reason from pip's output
# in LOG.
fail_with_pips_reason() {
  if grep -qE 'NewConnectionError|ConnectTimeout|ReadTimeout|Connection (reset|broken|aborted)|ProxyError' "$2"; then
    fail "no network: pip cannot reach its package index; connect this machine or set pip's proxy or index," \
      "then run this again (details: $2)"
  fi
  fail "pip cannot install $1: $(grep '^ *ERROR' "$2" | head -n 1 | sed 's/^ *ERROR: //') (details: $2)"
}

# install_wheels NAME: installs scripts/NAME-requirements.txt into .deps/NAME, unless that is done already.
# Installs into another folder and renames it at the end, so .deps/NAME is never incomplete.
install_wheels() {
  local requirements=$root/scripts/$1-requirements.txt target=$root/.deps/$1 partial=$root/.deps/partial-$1
  local log=$root/.deps/$1.log stamp
  mkdir -p "$root/.deps"
  exec 9>>"$root/.deps/lock"
  flock 9
  stamp="requirements $(sha256sum <"$requirements")"
  if [[ ! -f $target/.complete || $(<"$target/.complete") != "$stamp" ]]; then
    say "installing $1 into .deps/$1"
    rm -rf "$partial"
    /usr/bin/python3 -m pip install --no-deps --require-hashes --no-cache-dir --no-input \
      --disable-pip-version-check --progress-bar off --only-binary=:all: --target "$partial" \
      --requirement "$requirements" >"$log" 2>&1 </dev/null || fail_with_pips_reason "$1" "$log"
    printf '%s\n' "$stamp" >"$partial/.complete"
    rm -rf "$target"
    mv "$partial" "$target"
  fi
  exec 9>&-
}
