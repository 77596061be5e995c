#!/usr/bin/env bash
# restarts_test.sh BIN SOURCE: jobs on several hosts whose ranks, agents or hosts fail are started again (--max_restarts), also
# without a host that does not come back (--min_nodes), and then train with the same global batch.
set -euo pipefail
bin=$1 source=$2
# shellcheck source=tests/cluster/hosts.bash
source "$(dirname "${BASH_SOURCE[0]}")/hosts.bash"
trap clean_up EXIT

make_hosts 2
start_sshds
cd "$work"
export OMP_NUM_THREADS=1
hosts=("$bin/zerorun" --device cpu --timeout 60 --hostfile "$work/hostfile" --max_restarts 3)

# The program of a rank. In the first attempt, when all ranks run, rank 2, the first one of worker-1, runs $1, and the others wait.
cat >rank.sh <<'RANK'
if [[ -n ${ZERORUN_RESTARTS:-} ]]; then
  echo "attempt $ZERORUN_RESTARTS: rank $RANK of $WORLD_SIZE, of ${ZERORUN_FULL_WORLD_SIZE:-all}"
  exit
fi
exec -a rank_of_the_test bash -c '
  : >"up_$RANK"
  while [[ $(ls up_* | wc -l) -lt 4 ]]; do sleep 0.02; done
  if [[ $RANK == 2 ]]; then eval "$1"; fi
  while :; do sleep 0.2; done' rank_of_the_test "$1"
RANK

# start BEHAVIOUR [OPTIONS...]: starts a job whose rank 2 runs BEHAVIOUR, and waits until all ranks run.
start() {
  local behaviour=$1
  shift
  rm -f up_*
  on 0 timeout 90 "${hosts[@]}" "$@" bash rank.sh "$behaviour" </dev/null >job.out 2>job.log &
  job=$!
  for ((i = 0; i < 300; ++i)); do
    # shellcheck disable=SC2012
    (($(ls up_* 2>/dev/null | wc -l) == 4)) && return
    sleep 0.05
  done
  fail "the ranks do not start"
}
# said PATTERN: waits until the launcher has said it.
said() {
  for ((i = 0; i < 400; ++i)); do
    if grep -qE -- "$1" job.log; then return; fi
    sleep 0.05
  done
  fail "the launcher does not say '$1'"
}
# ends NAME CODE RANKS FULL: checks the exit code, and that RANKS ranks of the last attempt ran, of FULL.
ends() {
  local found=0
  wait "$job" || found=$?
  [[ $found == "$2" ]] || fail "$1: exit code $found instead of $2"
  (($(grep -cE "attempt [0-9]+: rank [0-9]+ of $3, of $4" job.out) == $3)) || fail "$1: other ranks: $(<job.out)"
  for host in 0 1; do
    [[ -z $(processes_on "$host" 'bin/zerorun|zr-guardian|rank_of_the_test') ]] || fail "$1: processes are left on host $host"
  done
  pass "$1"
}
# With it end the connections that it serves.
stop_sshd() { xargs kill -9 <<<"$(processes_on "$1" '^(/usr/sbin/)?sshd')"; }
start_sshd() {
  on "$1" /usr/sbin/sshd -f /dev/null -h "$work/host_key" -o PermitRootLogin=yes -o StrictModes=no -o UsePAM=no \
    -o PidFile=/run/sshd.pid -E "$work/sshd_$1.log"
}

start 'exit 7'
ends "a rank exits" 0 4 all
grep -q 'restart 1 of 3: rank 2 on worker-1 exited with code 7, found' job.log || fail "the restart is not explained"

start :
kill -9 "$(processes_on 1 '^[^ ]*bin/zerorun --agent' | head -n 1)"
ends "an agent is killed" 0 4 all
grep -q 'restart 1 of 3: worker-1 was lost' job.log || fail "the lost host is not named"

start 'sleep 1; kill -9 $BASHPID' --launcher pdsh
ends "pdsh starts the agents again" 0 4 all

start :
stop_sshd 1
said 'not all hosts can be reached: tries again for [0-9]+ s'
start_sshd 1
ends "a host that comes back" 0 4 all

start : --min_nodes 1 --host_wait 1
stop_sshd 1
ends "a host that does not come back" 0 2 4
grep -q 'restart 1: goes on without worker-1 (--min_nodes 1)' job.log || fail "the host that is left out is not named"

found=0
on 0 timeout 60 "${hosts[@]}" true >job.out 2>job.log || found=$?
[[ $found == 1 ]] && ! grep -q 'restart 1' job.log || fail "a host that is missing at the first start"
pass "a host that is missing at the first start ends the job"
start_sshd 1

start : --timeout 300
stop_sshd 1
said 'tries again for'
kill -TERM "$(processes_on 0 '^[^ ]*bin/zerorun --device' | head -n 1)"
found=0
wait "$job" || found=$?
((found != 0)) || fail "SIGTERM while hosts are awaited: exit code 0"
pass "SIGTERM while hosts are awaited ends the job"
start_sshd 1

# Training: without half of the hosts, with the same global batch.
head -c 20000 "$source/README.md" "$source/docs/guide.md" >text
sed 's/"train_micro_batch_size_per_gpu": 8/"train_micro_batch_size_per_gpu": 2/' "$source/samples/gpt2/ds_config.json" >small.json
gpt2=("$bin/gpt2" --deepspeed "$work/small.json" --layers 1 --hidden 32 --heads 2 --seq 16 --data "$work/text" --generate 0
  --cache "$work/tokens" --steps 400)
on 0 timeout 100 "${hosts[@]}" "${gpt2[@]}" --csv calm.csv >calm.log 2>&1 || fail "the undisturbed training"
on 0 timeout 100 "${hosts[@]}" --min_nodes 1 --host_wait 0 "${gpt2[@]}" --save-dir "$work/saves" --save-every 20 \
  --csv half.csv >half.log 2>&1 &
job=$!
for ((i = 0; i < 400; ++i)); do
  [[ -e saves/latest ]] && break
  sleep 0.05
done
kill -9 "${inits[1]}"
wait "$job" || fail "the training on half of the hosts"
python3 - <<'PYTHON' || fail "the training on half of the hosts has other losses"
import csv

def losses(name):
    return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(open(name))}

calm, half = losses("calm.csv"), losses("half.csv")
assert half.keys() == calm.keys(), (len(half), len(calm))
# Sums over other ranks and micro-steps are rounded otherwise, and in time training makes more of that.
apart = {step: abs(calm[step] - half[step]) / calm[step] for step in calm}
first = min(step for step in apart if apart[step] > 0)
soon, worst = max(apart[step] for step in range(first + 20)), max(apart.values())
assert soon <= 1e-6 and worst <= 1e-3, (first, soon, worst)
print(f"losses on half of the hosts: 20 steps within {soon:.1e}, all {len(apart)} within {worst:.1e}")
PYTHON
grep -qE 'resumed from .*global_step[0-9]+' half.log || fail "the training on half of the hosts begins anew"
grep -q 'gradient_accumulation_steps.*2 in place of 1, so that train_batch_size stays 8' half.log || fail "the accumulation"
pass "half of the hosts are gone: the same global batch, the same losses"
echo "$passed passed, 0 failed"
