#!/usr/bin/env bash
# restarts_test.sh BIN SOURCE: jobs on several hosts whose ranks, agents or hosts fail are started again (--max_restarts), by ssh and
# by launchers that join, also without a host that does not come back (--min_nodes), and then train with the same global batch.
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

# Launchers that the user starts on each host. Each job has a folder and a port of its own, so that several run at once.
# join JOB HOST BEHAVIOUR OPTIONS...: starts the launcher of a host. Its exit code will be in JOB/code_HOST.
join() {
  local name=$1 host=$2 behaviour=$3
  shift 3
  mkdir -p "$name"
  (
    cd "$name"
    found=0
    on "$host" timeout 60 "$bin/zerorun" --device cpu --nnodes 2 --nproc_per_node 2 --max_restarts 3 "$@" \
      bash ../rank.sh "$behaviour" </dev/null >>"out_$host" 2>>"log_$host" || found=$?
    echo "$found" >"code_$host"
  ) &
  joining+=($!)
}
# numbered JOB HOST BEHAVIOUR PORT OPTIONS...
numbered() { join "$1" "$2" "$3" --node_rank "$2" --master_addr 10.77.0.1 --master_port "$4" "${@:5}"; }
joined_run() {
  for ((i = 0; i < 300; ++i)); do
    # shellcheck disable=SC2012
    (($(ls "$1"/up_* 2>/dev/null | wc -l) == 4)) && return
    sleep 0.05
  done
  fail "$1: the ranks of launchers that join do not start"
}
launcher_on() { processes_on "$1" "^[^ ]*bin/zerorun --device .*$2" | head -n 1; }
# joined_ends JOB CODE_0 CODE_1 RANKS: checks the exit codes, and that RANKS ranks of the second attempt ran.
joined_ends() {
  for ((i = 0; i < 400; ++i)); do
    [[ -s $1/code_0 && -s $1/code_1 ]] && break
    sleep 0.05
  done
  [[ $(cat "$1/code_0" "$1/code_1" | xargs) == "$2 $3" ]] ||
    fail "$1: exit codes $(cat "$1/code_0" "$1/code_1" | xargs) instead of $2 $3: $(tail "$1"/log_*)"
  (($(cat "$1"/out_* | grep -cE 'attempt 1: rank [0-3] of 4, of all') == $4)) || fail "$1: other ranks: $(cat "$1"/out_*)"
  pass "launchers that join: $1"
}

joining=()
for host in 0 1; do
  numbered killed "$host" : 29521 --timeout 30
  numbered gone "$host" : 29522 --timeout 3
done
joined_run killed
joined_run gone
kill -9 "$(launcher_on 1 29521)"
until [[ -s killed/code_1 ]]; do sleep 0.02; done
rm killed/code_1
numbered killed 1 : 29521 --timeout 30 # as a batch system does
kill -TERM "$(launcher_on 1 29522)"

for host in 0 1; do numbered rank_exits "$host" 'exit 7' 29523 --timeout 30; done
joined_ends rank_exits 0 0 4
grep -q 'restart 1 of 3: rank 2 on node 1 exited with code 7, found' rank_exits/log_0 || fail "the restart is not explained"
grep -q 'restart 1: the ranks of this host have started again' rank_exits/log_1 || fail "the launcher that joins says nothing"

# shellcheck disable=SC2016
for host in 0 1; do join rank_killed "$host" 'kill -9 $BASHPID' --rdzv_endpoint 10.77.0.1:29524 --timeout 30; done
joined_ends rank_killed 0 0 4

for host in 0 1; do numbered interrupted "$host" : 29525 --timeout 30; done
joined_run interrupted
kill -TERM "$(launcher_on 0 29525)"
joined_ends interrupted 143 1 0

joined_ends gone 1 143 0
grep -q 'restart 1: waits for .* until the launcher of node 1 comes again' gone/log_0 || fail "the wait is not told"
grep -q 'no agent of node 1 has connected in time' gone/log_0 || fail "the host that does not come again is not named"
joined_ends killed 0 0 4
grep -qE 'restart 1 of 3: node 1 was lost' killed/log_0 || fail "the lost host is not named"
wait "${joining[@]}"
for host in 0 1; do
  [[ -z $(processes_on "$host" 'bin/zerorun|zr-guardian|rank_of_the_test') ]] ||
    fail "launchers that join: processes are left on host $host"
done

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
