#!/usr/bin/env bash
# test_gpu_check.sh SOURCE BUILD TORCH_DIR
#
# Runs scripts/gpu_check in this checkout, on the CPU: steps that need no GPU pass, others say why they are skipped, and
# failures, time limits and mistakes in the options are reported.
set -euo pipefail

source=$1
build=$2
torch_dir=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  printf 'FAILED: %s\n%s\n' "$1" "$(cat "$scratch/text")"
  exit 1
}
# expect PATTERN: the last run of gpu_check has printed a line that matches PATTERN.
expect() { grep -qE -- "$1" "$scratch/text" || fail "no line matches: $1"; }

# A Python package torch that has only what gpu_check asks for.
mkdir -p "$scratch/packages/torch" "$scratch/checkout/tests"
touch "$scratch/packages/torch/__init__.py"
torch=$(<"$build/torch_version")
echo "__version__ = '$torch.1+cu130'" >"$scratch/packages/torch/version.py"
ln -s "$torch_dir/lib" "$scratch/packages/torch/lib"
ln -s "$torch_dir/../nvidia" "$scratch/packages/nvidia"
# gpu_check finds programs in build/ beside scripts/, and the tests' data beside both.
ln -s "$build" "$scratch/checkout/build"
ln -s "$source/scripts" "$scratch/checkout/scripts"
ln -s "$source/tests/golden" "$scratch/checkout/tests/golden"

check() {
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$scratch/packages CUDA_VISIBLE_DEVICES='' \
    python3 "$scratch/checkout/scripts/gpu_check" --out "$scratch/out" "$@" >"$scratch/text" 2>&1
}

check --only cpu,streams || fail "a run without failures has an exit code"
last_loss=$(sed -n 's/^3 steps in .* -> \([0-9.]*\),.*/\1/p' "$scratch/out/cpu.log")
expect '^ +[0-9.]+ s +passed +cpu +last loss '"${last_loss/./\\.}"'$'
grep -qE 'info: step 3: over 3 steps, ms each: whole [0-9.]+ \| backward' "$scratch/out/cpu.log" ||
  fail "cpu.log does not say where the time of a step was spent"
expect '^ +[0-9.]+ s +skipped +streams +(no NVIDIA driver|the NVIDIA driver )'
expect '^\| [0-9-]+ \| .* \| '"${torch/./\\.}"'\.1\+cu130 \| '"$(<"$build/interception_key")"' \| .* \| 1 / 0 / 1 \|$'
expect '^1 passed, 0 failed, 1 skipped$'
python3 - "$scratch/out/result.json" <<'PYTHON' || fail "result.json"
import json, sys
steps = json.load(open(sys.argv[1]))["steps"]
assert [step["result"] for step in steps] == ["passed", "skipped"], steps
PYTHON

check --only cpu --minutes 0 || fail "no time left is no failure"
expect 'skipped +cpu +0 s are left, it needs'

# Programs that fail and that do not end.
rm "$scratch/checkout/build"
mkdir -p "$scratch/checkout/build/bin"
cp "$build/torch_version" "$scratch/checkout/build/"
printf '#!/bin/sh\necho "error: broken"\nexit 3\n' >"$scratch/checkout/build/bin/zerorun"
chmod +x "$scratch/checkout/build/bin/zerorun"
if check --only cpu; then fail "a failed step is success"; fi
expect 'failed +cpu +exit code 3: error: broken$'
expect '^\| .* \| \? \| .* \| 0 / 1 / 0 \|$' # a build without the file of the dispatch key
printf '#!/bin/sh\necho started\nsleep 100 & sleep 100\n' >"$scratch/checkout/build/bin/zerorun"
if check --only cpu --minutes 0.2; then fail "a step that does not end is success"; fi
expect 'failed +cpu +ended after [0-9]+ s; last line: started$'

if check --only nothing; then fail "an unknown step is accepted"; fi
expect "^error: no step nothing; the steps are: machine, "
echo "__version__ = '2.10.0'" >"$scratch/packages/torch/version.py"
if check --only cpu; then fail "another version of torch is accepted"; fi
expect '^error: .* is torch 2\.10\.0; the programs here are built for torch '"${torch/./\\.}"'$'
echo "1 passed, 0 failed"
