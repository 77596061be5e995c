#!/usr/bin/env bash
# memory_limit_test.sh BIN: where the kernel kills a rank at the limit of a memory cgroup, the launcher, which is outside of it, prints
# the table of the rank's memory. Skipped where no memory cgroup can be made.
set -euo pipefail
bin=$1
source "$(dirname "${BASH_SOURCE[0]}")/../../benchmarks/memory_group.sh"

name_group "zerorun_memory_limit_$$"
mkdir "$group" 2>/dev/null || { echo "skipped: no memory cgroup can be made here" && exit 77; }
folder=$(mktemp -d)
trap 'rmdir "$group" 2>/dev/null || true; rm -rf "$folder"' EXIT
seq 100000 >"$folder/text.txt"
cat >"$folder/ds_config.json" <<'JSON'
{"train_micro_batch_size_per_gpu": 256, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "zero_optimization": {"stage": 2}}
JSON

# Libraries and states fit into the limit, activations do not.
rank='source "$1" && group=$2 limit_file=$3 swap_file=$4 && enter_group 400000000 && shift 4 && exec "$@"'
status=0
"$bin/zerorun" --num_gpus 2 bash -c "$rank" bash "$(dirname "${BASH_SOURCE[0]}")/../../benchmarks/memory_group.sh" \
  "$group" "$limit_file" "$swap_file" "$bin/gpt2" --deepspeed "$folder/ds_config.json" --data "$folder/text.txt" --seq 256 --steps 3 \
  >"$folder/out.txt" 2>&1 || status=$?

fail() {
  cat "$folder/out.txt"
  echo "failed: $1"
  exit 1
}
[[ $status == 137 ]] || fail "expected the exit code 137, found $status"
for expected in 'killed by signal 9 \(SIGKILL\): out of memory: the kernel killed it at ' \
  'memory of rank [01] in MiB, in step 1 when it was last counted' '^ *optimizer states +[0-9.]+' \
  '^ *activations and the rest +[0-9.]+' '^ *resident memory of the process +[0-9.]+' \
  'what may help: a smaller train_micro_batch_size_per_gpu'; do
  sed 's/^zerorun: //' "$folder/out.txt" | grep -qE "$expected" || fail "no line like '$expected'"
done
echo "passed"
