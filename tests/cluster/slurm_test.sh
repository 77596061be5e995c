#!/usr/bin/env bash
# slurm_test.sh BIN SOURCE: a Slurm cluster of three hosts (slurmctld, slurmd, munge) runs the unchanged scripts of
# samples/cluster. The losses must have the same bits as on one host.
set -euo pipefail
bin=$1 source=$2
# shellcheck source=tests/cluster/hosts.bash
source "$(dirname "${BASH_SOURCE[0]}")/hosts.bash"
trap clean_up EXIT
for program in slurmctld slurmd munged srun sbatch scontrol; do
  PATH=$PATH:/usr/sbin command -v "$program" >/dev/null ||
    skip "no $program (Debian's packages slurmctld, slurmd, slurm-client, munge)"
done
id munge >/dev/null 2>&1 || skip "no user munge"

make_hosts 3
cd "$work"
chmod 755 "$work"
dd if=/dev/urandom of="$work/munge.key" bs=128 count=1 status=none
chmod 400 "$work/munge.key"
cat >slurm.conf <<CONF
ClusterName=zerorun
SlurmctldHost=worker-0(10.77.0.1)
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd_%n.log
SlurmctldParameters=enable_configless
SlurmdParameters=config_overrides
NodeName=worker-0 NodeAddr=10.77.0.1 CPUs=4
NodeName=worker-1 NodeAddr=10.77.0.2 CPUs=4
NodeName=worker-2 NodeAddr=10.77.0.3 CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
mkdir state
for host in 0 1 2; do
  on "$host" mkdir -p /run/munge /run/slurmd
  on "$host" chmod 755 /run/munge
  on "$host" munged --force --key-file="$work/munge.key" --socket=/run/munge/munge.socket.2 --pid-file=/run/munge/munged.pid \
    --log-file="/run/munge/munged.log" --seed-file=/run/munge/munge.seed >"$work/munged_$host.log" 2>&1 ||
    skip "munged does not start: $(tail -n 1 "$work/munged_$host.log")"
done
export SLURM_CONF=$work/slurm.conf
on 0 slurmctld -f "$SLURM_CONF" || skip "slurmctld does not start: $(tail -n 1 slurmctld.log)"
for host in 0 1 2; do
  on "$host" slurmd -N "worker-$host" -f "$SLURM_CONF" || skip "slurmd does not start: $(tail -n 1 "slurmd_worker-$host.log")"
done
for ((i = 0; i < 100; ++i)); do
  [[ $(on 0 sinfo -h -t idle -o %D 2>/dev/null) == 3 ]] && break
  sleep 0.2
done
((i < 100)) || skip "the nodes of Slurm do not become idle: $(on 0 sinfo -R | tail -n 2)"

export OMP_NUM_THREADS=1 PATH=$bin:$PATH ZERORUN_DEVICE=cpu ZERORUN_TIMEOUT=60
head -c 20000 "$source/README.md" "$source/docs/guide.md" >text
gpt2=("$bin/gpt2" --deepspeed "$source/samples/gpt2/ds_config.json" --layers 1 --hidden 32 --heads 2 --seq 16
  --data "$work/text" --generate 0 --cache "$work/tokens" --steps 5)
"$bin/zerorun" --comm gloo --num_gpus 6 "${gpt2[@]}" --csv alone.csv >alone.log 2>&1 || fail "the job on one host"
compare() {
  cmp alone.csv "$1.csv" || fail "$1: other losses than on one host"
  grep -q "collectives use Gloo instead of shared memory: rank [0-9]* is on another host" "$1.log" ||
    fail "$1: the ranks should have seen that they are on several hosts"
  pass "$1: the losses of one host, to the bit, over Gloo"
}

on 0 timeout 100 "$source/samples/cluster/train.srun" 3 2 "${gpt2[@]}" --csv srun.csv >srun.log 2>&1 || fail "srun"
compare srun

on 0 timeout 100 sbatch --wait --nodes 3 --output sbatch.log "$source/samples/cluster/train.sbatch" "${gpt2[@]}" \
  --csv sbatch.csv >submitted.log 2>&1 || fail "sbatch"
compare sbatch

# If a rank fails, the step ends on all nodes, and the batch script ends with the rank's exit code.
code=0
# shellcheck disable=SC2016
on 0 timeout 60 sbatch --wait --nodes 3 --output failing.log "$source/samples/cluster/train.sbatch" \
  sh -c 'if [ "$RANK" = 4 ]; then exit 5; fi; sleep 100' >submitted.log 2>&1 || code=$?
((code == 5)) || fail "a failing rank: sbatch --wait ended with $code instead of 5"
grep -q 'rank 4 on worker-2 exited with code 5' failing.log || fail "the failing rank is not reported"
pass "a rank that fails ends the job"
for host in 0 1 2; do
  [[ -z $(processes_on "$host" 'bin/gpt2|bin/zerorun|zr-guardian') ]] || fail "processes are left on host $host"
done
echo "$passed passed, 0 failed"
