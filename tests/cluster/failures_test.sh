#!/usr/bin/env bash
# failures_test.sh BIN SOURCE: makes jobs on three hosts fail in different ways. Checks that each job reports the cause,
# how soon all processes have ended on every host, and that none is left.
set -euo pipefail
bin=$1 source=$2
# shellcheck source=tests/cluster/hosts.bash
source "$(dirname "${BASH_SOURCE[0]}")/hosts.bash"
memory_group=/sys/fs/cgroup/memory/$id
trap 'clean_up; rmdir "$memory_group" 2>/dev/null || true' EXIT

# Added to every deadline, because processes may be scheduled late on a busy machine.
margin_ms=700

make_hosts 3
start_sshds
# If a memory cgroup of version 1 can be made here, it limits the memory of all processes that sshd starts on host 1.
limited=0
if mkdir "$memory_group" 2>/dev/null && echo 200000000 >"$memory_group/memory.limit_in_bytes" &&
  processes_on 1 '^sshd' | head -n 1 >"$memory_group/cgroup.procs"; then
  limited=1
fi
on 1 mkdir /run/small
on 1 mount -t tmpfs -o size=64k tmpfs /run/small
cd "$work"

milliseconds() { echo $(($(date +%s%N) / 1000000)); }
processes() { processes_on "$1" 'bin/zerorun|zr-guardian|rank_of_the_test|bin/gpt2'; }
first_process() { processes_on "$1" "$2" | head -n 1; }
# A rank of host $1 whose command line matches $2. A child that the rank has just forked has the same command line, but
# is not the leader of a process group.
rank_process() {
  local process
  for process in $(processes_on "$1" "$2"); do
    if (($(ps -o pgid= -p "$process" || echo 0) == process)); then echo "$process" && return; fi
  done
}

# The program of a rank. When all ranks run, rank 2, which is the first rank of host 1, runs $1; the other ranks wait.
cat >rank.sh <<'RANK'
exec -a rank_of_the_test bash -c '
  : >"up_$RANK"
  while [[ $(ls up_* | wc -l) -lt 6 ]]; do sleep 0.02; done
  if [[ $RANK == 2 ]]; then eval "$1"; fi
  while :; do sleep 0.2; done' rank_of_the_test "$1"
RANK

# start BEHAVIOUR [OPTIONS...]: starts a job whose rank 2 runs BEHAVIOUR, and waits until all ranks run.
start() {
  local behaviour=$1 i
  shift
  rm -f up_*
  on 0 timeout 60 "$bin/zerorun" --device cpu --timeout 30 --hostfile "$work/hostfile" "$@" \
    bash rank.sh "$behaviour" </dev/null >job.out 2>job.log &
  job=$!
  for ((i = 0; i < 300; ++i)); do
    # shellcheck disable=SC2012
    (($(ls up_* 2>/dev/null | wc -l) == 6)) && return
    sleep 0.05
  done
  fail "the ranks do not start"
}

# ends CAUSE LIMIT_MS CODE TEXT...: checks that the job ends on all hosts within LIMIT_MS, that its exit code is CODE
# (-: any), and that its log matches each TEXT.
ends() {
  local cause=$1 limit=$2 code=$3 started found=0 host text left
  shift 3
  started=$(milliseconds)
  wait "$job" || found=$?
  while :; do
    left=
    for host in 0 1 2; do [[ $host == "${unreachable:-}" ]] || left+=" $(processes "$host")"; done
    left=$(xargs <<<"$left")
    [[ -z $left ]] && break
    (($(milliseconds) - started < limit + margin_ms)) || break
    sleep 0.05
  done
  local took=$(($(milliseconds) - started))
  cp job.log "cause.log"
  [[ -z $left ]] || fail "$cause: processes are left after $took ms: $(xargs ps -o pid,args -p <<<"$left")"
  ((took <= limit + margin_ms)) || fail "$cause: all was over only after $took ms"
  [[ $code == - || $found == "$code" ]] || fail "$cause: exit code $found instead of $code"
  for text in "$@"; do grep -qE -- "$text" job.log || fail "$cause: the report lacks '$text'"; done
  pass "$cause: over on all hosts after $took ms"
}

start 'exit 7'
ends "a rank exits" 2000 7 'rank 2 on worker-1 exited with code 7'

start 'for i in {1..30}; do echo "line $i" >&2; done; kill -SEGV $BASHPID'
ends "segmentation fault" 2000 139 'rank 2 on worker-1 killed by signal 11 \(SIGSEGV\): segmentation fault' \
  '  line 11$' '  line 30$'
if grep -q '^zerorun:   line 10$' job.log; then fail "more than the last 20 lines"; fi

start 'exec python3 -c "raise ValueError(\"a bad value\")"'
ends "uncaught exception" 2000 1 'rank 2 on worker-1 .*ValueError: a bad value'

start 'exec dd if=/dev/zero of=/run/small/file'
ends "full disk" 2000 1 'rank 2 on worker-1 .*(disk|space)'

if ((limited)); then
  # If the cgroup's limit does not work, ulimit ends the rank at 2 GB.
  start 'ulimit -v 2000000; exec tail /dev/zero'
  ends "out of memory" 6000 137 'rank 2 on worker-1 killed by signal 9 \(SIGKILL\): out of memory'
else
  echo "not run: out of memory (no memory cgroup of version 1 can be made here)"
fi

start :
kill -9 "$(rank_process 1 '^rank_of_the_test')"
ends "a rank is killed" 2000 137 'rank [23] on worker-1 killed by signal 9 \(SIGKILL\)'

start :
kill -9 "$(first_process 1 '^[^ ]*bin/zerorun --agent')"
ends "an agent is killed" 2000 1 'worker-1: the connection to its agent has been closed'

start :
kill -9 "$(first_process 1 'sshd: root@notty')"
ends "sshd is killed" 2000 1 'ssh to worker-1 exited with code 255, although ranks still ran'

start :
kill -9 "$(first_process 0 '^[^ ]*bin/zerorun --device')"
ends "the launcher is killed" 2000 - 'the launcher was killed'

if [[ -n ${ZERORUN_TEST_ALL:-} ]]; then  # causes that are found only after a deadline
  start :
  unreachable=1
  ip -n "${id}b" link set port1 down
  ends "the link is down" 8000 1 'worker-1: no sign of life for 5 s, and nothing that is sent arrives: the network link is down'
  unset unreachable
  for ((i = 0; i < 40; ++i)); do [[ -z $(processes 1) ]] && break || sleep 0.1; done
  [[ -z $(processes 1) ]] || fail "the host that was cut off still has processes"
  ip -n "${id}b" link set port1 up

  start :
  unreachable=1
  # kill fails for processes that have ended in the meantime, such as the ranks' `sleep`.
  for process in $(processes_on 1 .); do kill -STOP "$process" 2>/dev/null || true; done
  ends "a host stops" 8000 1 'worker-1: no sign of life for 5 s, although its system acknowledges what is sent'
  for process in $(processes_on 1 .); do kill -CONT "$process" 2>/dev/null || true; done
  unset unreachable
  for ((i = 0; i < 80; ++i)); do [[ -z $(processes 1) ]] && break || sleep 0.1; done
  [[ -z $(processes 1) ]] || fail "the host that was stopped still has processes"

  # After --timeout the collectives of the other ranks detect a stopped rank, or the agent does.
  head -c 20000 "$source/README.md" "$source/docs/guide.md" >text
  rm -f up_*
  OMP_NUM_THREADS=1 on 0 timeout 60 "$bin/zerorun" --device cpu --timeout 5 --hostfile "$work/hostfile" "$bin/gpt2" \
    --deepspeed "$source/samples/gpt2/ds_config.json" --layers 1 --hidden 32 --heads 2 --seq 16 --data "$work/text" \
    --generate 0 --cache "$work/tokens" --steps 1000000 --csv steps.csv >job.out 2>job.log &
  job=$!
  for ((i = 0; i < 300; ++i)); do [[ -s steps.csv ]] && (($(wc -l <steps.csv) > 3)) && break || sleep 0.1; done
  kill -STOP "$(rank_process 1 "^$bin/gpt2 --deepspeed")"
  ends "a rank is stopped" 9000 1 'rank [23] on worker-1 (hung: .*; process [0-9]+ )?is stopped by a signal'
fi

# Errors before the ranks start.
on 0 timeout 30 "$bin/zerorun" --hostfile "$work/missing" true >job.log 2>&1 && fail "a missing hostfile is an error"
grep -q "$work/missing" job.log || fail "the missing hostfile is not named"
printf 'worker-0 slots=1\nworker-9 slots=1\n' >unknown
on 0 timeout 30 "$bin/zerorun" --device cpu --hostfile unknown sleep 100 >job.log 2>&1 && fail "a host that does not exist"
grep -q 'ssh to worker-9 exited with code 255, before the agent there had connected' job.log || fail "unknown host"
if command -v pdsh >/dev/null; then
  # pdsh keeps running on the host that it has reached, so the launcher must end the job by itself.
  on 0 timeout 30 env PDSH_RCMD_TYPE=ssh "$bin/zerorun" --device cpu --launcher pdsh --hostfile unknown sleep 100 \
    </dev/null >job.out 2>job.log && fail "a host that does not exist, by pdsh"
  grep -q 'worker-9: ssh exited with exit code 255, before the agent there had connected' job.log || fail "pdsh"
fi
on 0 timeout 30 "$bin/zerorun" --device cpu --hostfile hostfile no_such_program >job.log 2>&1 && fail "no such program"
grep -q "cannot run 'no_such_program'" job.log || fail "no such program is not named"
pass "mistakes before the ranks start"
for host in 0 1 2; do
  for ((i = 0; i < 40; ++i)); do [[ -z $(processes "$host") ]] && break || sleep 0.1; done
  [[ -z $(processes "$host") ]] || fail "processes are left on host $host: $(xargs ps -o pid,args -p <<<"$(processes "$host")")"
done
echo "$passed passed, 0 failed"
