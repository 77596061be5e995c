#!/usr/bin/env bash
# test_build.sh SOURCE: when scripts/build configures, and whether as unity build, with a CMake that only writes the cache.
set -euo pipefail
source=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset ZERORUN_UNITY ZERORUN_USE_TORCH

checkout=$scratch/checkout
mkdir -p "$checkout/.deps" "$scratch/bin"
cp -r "$source/scripts" "$checkout/"
touch -d '1 hour ago' "$checkout/CMakePresets.json"
printf '#!/bin/sh\necho /torch >"%s"\n' "$checkout/.deps/torch_dir" >"$checkout/scripts/setup"
cat >"$scratch/bin/cmake" <<'PROGRAM'
#!/usr/bin/env bash
[[ $1 == --preset && $3 == -B ]] || exit 0
echo "$*" >>"$(dirname "$0")/configured"
cache=$4/CMakeCache.txt
unity=OFF
if [[ -f $cache ]]; then unity=$(sed -n 's/^ZERORUN_UNITY:BOOL=//p' "$cache"); fi
for option in "$@"; do
  case $option in -DZERORUN_UNITY=*) unity=${option#*=} ;; esac
done
printf '%s\n' TORCH_DIR:PATH=/torch "ZERORUN_UNITY:BOOL=$unity" >"$cache"
touch "$4/build.ninja"
PROGRAM
chmod +x "$scratch/bin/cmake"

fail() {
  printf 'FAILED: %s\n%s\n' "$1" "$(cat "$scratch/text")"
  exit 1
}
# build [NAME=VALUE] [OPTION...]
build() {
  local variable=A=b
  if [[ ${1:-} == *=* ]]; then variable=$1 && shift; fi
  env "$variable" PATH="$scratch/bin:$PATH" "$checkout/scripts/build" "$@" >"$scratch/text" 2>&1
}
# is FOLDER ON|OFF TIMES: the folder's choice, and how often CMake has configured since the last call.
is() {
  local times
  grep -qx "ZERORUN_UNITY:BOOL=$2" "$checkout/$1/CMakeCache.txt" || fail "$1 is not built with ZERORUN_UNITY=$2"
  times=$(wc -l <"$scratch/bin/configured")
  [[ $times == "$3" ]] || fail "CMake has configured $times times, not $3"
  : >"$scratch/bin/configured"
}

build && is build ON 1
build release && is build ON 0
build ZERORUN_UNITY=OFF && is build OFF 1
build && is build OFF 0
touch "$checkout/CMakePresets.json"
touch -d '1 minute ago' "$checkout/build/build.ninja"
build && is build OFF 1
build ZERORUN_UNITY=OFF && is build OFF 0
build ZERORUN_UNITY=ON && is build ON 1
build ZERORUN_UNITY=OFF asan && is build-asan OFF 1
build tsan && is build-tsan ON 1
if build ZERORUN_UNITY=no; then fail "ZERORUN_UNITY=no is taken"; fi
grep -qF "ZERORUN_UNITY=no: give ON or OFF" "$scratch/text" || fail "the error does not name the variable"
echo "a folder keeps the choice of a unity build"
