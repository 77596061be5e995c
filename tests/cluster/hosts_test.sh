#!/usr/bin/env bash
# hosts_test.sh BIN SOURCE: trains gpt2 on three hosts, started by ssh, pdsh, OpenMPI, MPICH, and a launcher on each host. The
# losses must have the same bits as on one host. Checkpoints of two hosts must load on one host, and the reverse.
set -euo pipefail
bin=$1 source=$2
# shellcheck source=tests/cluster/hosts.bash
source "$(dirname "${BASH_SOURCE[0]}")/hosts.bash"
trap clean_up EXIT

make_hosts 3
start_sshds
cd "$work"
export OMP_NUM_THREADS=1
printf 'OMP_NUM_THREADS=1\nZERORUN_TEST_TEXT=$(touch %s/was_run) "a  b"\n' "$work" >.deepspeed_env
head -c 20000 "$source/README.md" "$source/docs/guide.md" >text
gpt2=("$bin/gpt2" --deepspeed "$source/samples/gpt2/ds_config.json" --layers 1 --hidden 32 --heads 2 --seq 16
  --data "$work/text" --generate 0 --cache "$work/tokens")
hosts=("$bin/zerorun" --device cpu --timeout 60 --hostfile "$work/hostfile")

# compare NAME: checks that NAME.csv has the losses of one host, and that the ranks of NAME.log used Gloo.
compare() {
  cmp alone.csv "$1.csv" || fail "$1: other losses than on one host"
  grep -q "collectives use Gloo instead of shared memory: rank [0-9]* is on another host" "$1.log" ||
    fail "$1: the ranks should have seen that they are on several hosts"
  pass "$1: the losses of one host, to the bit, over Gloo"
}

"$bin/zerorun" --device cpu --comm gloo --num_gpus 6 "${gpt2[@]}" --steps 5 --csv alone.csv >alone.log 2>&1 ||
  fail "the job on one host"

on 0 timeout 100 "${hosts[@]}" "${gpt2[@]}" --steps 5 --csv ssh.csv >ssh.log 2>&1 || fail "ssh"
compare ssh

# On two levels: the losses of one host where two ranks are summed first too.
sed '1s/{/{"zerorun": {"sum_group": 2},/' "$source/samples/gpt2/ds_config.json" >in_pairs.json
levels=("${gpt2[@]/#"$source/samples/gpt2/ds_config.json"/"$work/in_pairs.json"}")
"$bin/zerorun" --device cpu --num_gpus 6 "${levels[@]}" --steps 5 --csv alone_in_pairs.csv >alone_in_pairs.log 2>&1 ||
  fail "the job on one host, with sums in pairs"
on 0 timeout 100 "${hosts[@]}" --comm two-level "${levels[@]}" --steps 5 --csv levels.csv >levels.log 2>&1 || fail "two levels"
cmp alone_in_pairs.csv levels.csv || fail "two levels: other losses than on one host with the same sum_group"
pass "two levels: the losses of one host, to the bit"

on 0 timeout 100 env PDSH_RCMD_TYPE=ssh "${hosts[@]}" --launcher pdsh "${gpt2[@]}" --steps 5 --csv pdsh.csv \
  >pdsh.log 2>&1 || fail "pdsh"
compare pdsh

if command -v mpirun.openmpi >/dev/null; then
  on 0 timeout 100 "${hosts[@]}" --launcher openmpi --launcher_args "--allow-run-as-root" "${gpt2[@]}" --steps 5 \
    --csv openmpi.csv >openmpi.log 2>&1 || fail "zerorun --launcher openmpi"
  compare openmpi
  on 0 timeout 100 mpirun.openmpi --allow-run-as-root --host worker-0:2,worker-1:2,worker-2:2 -x OMP_NUM_THREADS \
    -x ZERORUN_DEVICE=cpu "${gpt2[@]}" --steps 5 --csv mpirun.csv >mpirun.log 2>&1 || fail "mpirun alone"
  compare mpirun
else
  echo "not run: OpenMPI (Debian's package openmpi-bin)"
fi

if command -v mpiexec.hydra >/dev/null; then
  on 0 timeout 100 "${hosts[@]}" --launcher mpich "${gpt2[@]}" --steps 5 --csv mpich.csv >mpich.log 2>&1 ||
    fail "zerorun --launcher mpich"
  compare mpich
  on 0 timeout 100 mpiexec.hydra -n 6 -ppn 2 -hosts worker-0,worker-1,worker-2 -genv MASTER_ADDR worker-0 \
    -genv OMP_NUM_THREADS 1 -genv ZERORUN_DEVICE cpu "${gpt2[@]}" --steps 5 --csv mpiexec.csv >mpiexec.log 2>&1 ||
    fail "mpiexec alone"
  compare mpiexec
else
  echo "not run: MPICH (Debian's package mpich)"
fi

joining=()
for host in 1 2; do
  on "$host" timeout 100 "$bin/zerorun" --device cpu --timeout 60 --nnodes 3 --nproc_per_node 2 \
    --rdzv_endpoint worker-0:29511 "${gpt2[@]}" --steps 5 --csv "unused$host.csv" >"joined$host.log" 2>&1 &
  joining+=($!)
done
on 0 timeout 100 "$bin/zerorun" --device cpu --timeout 60 --nnodes 3 --nproc_per_node 2 \
  --rdzv_endpoint 10.77.0.1:29511 "${gpt2[@]}" --steps 5 --csv joined.csv >joined.log 2>&1 || fail "launchers that join"
wait "${joining[@]}"
compare joined

# The working folder, the variables of .deepspeed_env and the arguments arrive unchanged, and no shell interprets any
# part of them.
odd=$'two words $(touch was_run) "quoted" \'single\' ; * \\ \n line'
# shellcheck disable=SC2016
on 0 timeout 60 "${hosts[@]}" --include worker-1:0@worker-2:1 sh -c \
  'printf "%s|%s|%s|%s|%s\n" "$(hostname)" "$PWD" "$LOCAL_RANK/$LOCAL_WORLD_SIZE" "$ZERORUN_TEST_TEXT" "$(printf %s "$1" | sha256sum)"' \
  sh "$odd" >arguments.log 2>arguments.err || fail "arguments"
hash=$(printf %s "$odd" | sha256sum)
for host in 1 2; do
  grep -qF "worker-$host|$work|0/1|\$(touch $work/was_run) \"a  b\"|$hash" arguments.log ||
    fail "host $host: folder, variables or arguments have changed on the way: $(cat arguments.log)"
done
[[ ! -e was_run ]] || fail "a shell has run a part of an argument or of .deepspeed_env"
pass "folder, variables and arguments arrive unchanged"

# Checkpoints: saved on two hosts with a common folder, resumed on one; and the other way round.
train() { # train HOSTS LOG OPTIONS...
  local include=$1 log=$2
  shift 2
  on 0 timeout 100 "${hosts[@]}" --include "$include" "${gpt2[@]}" "$@" >"$log" 2>&1 || fail "$log"
}
train worker-0:0@worker-1:0 steady.log --steps 6 --csv steady.csv
train worker-0:0@worker-1:0 save_two.log --steps 3 --save-dir two --save-every 3 --csv first.csv
train worker-0:0,1 resume_one.log --steps 6 --resume two --csv second.csv
train worker-0:0,1 save_one.log --steps 3 --save-dir one --save-every 3 --csv third.csv
train worker-0:0@worker-1:0 resume_two.log --steps 6 --resume one --csv fourth.csv
for file in second fourth; do
  diff <(tail -n 3 steady.csv) <(tail -n 3 "$file.csv") || fail "$file.csv: other losses after resuming"
done
pass "checkpoints move between two hosts and one"

# Checkpoints without a common folder: each host has a /run of its own.
sed '1s/{/{"checkpoint": {"use_node_local_storage": true},/' "$source/samples/gpt2/ds_config.json" >local.json
common=("${gpt2[@]}")
gpt2=("${gpt2[@]/$source\/samples\/gpt2\/ds_config.json/$work\/local.json}")
train worker-0:0@worker-1:0 save_local.log --steps 3 --save-dir /run/two --save-every 3 --csv first.csv
train worker-0:0@worker-1:0 resume_local.log --steps 6 --resume /run/two --csv fifth.csv
on 0 cp -r /run/two merged
on 1 cp -rn /run/two/. merged/
gpt2=("${common[@]}")
train worker-0:0,1 resume_merged.log --steps 6 --resume "$work/merged" --csv sixth.csv
for host in 0 1; do on "$host" cp -r one /run/one; done
train worker-0:0@worker-1:0 resume_copies.log --steps 6 --resume /run/one --csv seventh.csv
for file in fifth sixth seventh; do
  diff <(tail -n 3 steady.csv) <(tail -n 3 "$file.csv") || fail "$file.csv: other losses after resuming"
done
on 0 timeout 100 "${hosts[@]}" --include worker-0:0@worker-1:0 "${gpt2[@]}" --steps 3 --save-dir /run/three --save-every 3 \
  >unshared.log 2>&1 && fail "a save to a folder that the hosts do not share"
grep -q 'rank 1: this host does not see /run/three/.*use_node_local_storage' unshared.log || fail "the remedy is not named"
pass "checkpoints without a common folder"

for host in 0 1 2; do
  [[ -z $(processes_on "$host" 'bin/gpt2|bin/zerorun|zr-guardian') ]] || fail "processes are left on host $host"
done
echo "$passed passed, 0 failed"
