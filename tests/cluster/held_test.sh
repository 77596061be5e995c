#!/usr/bin/env bash
# held_test.sh BIN SOURCE: jobs on two hosts of two ranks each that go on from memory (--hold_every), which a keeper on each host
# holds. When a rank, an agent, ssh, a keeper or the launcher is killed, the training ends with the bits of an undisturbed one, and
# no keeper is left. Likewise when a host is lost, with copies on the next one (zerorun.restart.partner). With ZERORUN_KILLS=N it
# does instead N kills of random kinds at random moments (ZERORUN_SEED), and prints how long each restart took.
set -euo pipefail
bin=$1 source=$2
# shellcheck source=tests/cluster/hosts.bash
source "$(dirname "${BASH_SOURCE[0]}")/hosts.bash"
trap clean_up EXIT

make_hosts 2
start_sshds
cd "$work"
export OMP_NUM_THREADS=1
steps=40
all=${ZERORUN_TEST_ALL:-}
stages=(3)
if [[ -n $all ]]; then stages=(0 3); fi
more=() # arguments of the program
kills=${ZERORUN_KILLS:-0} restarts=4 limit=90

# start NAME STAGE [OPTIONS...]: a training in the folder NAME that saves no checkpoint. It waits before its last step for the file
# NAME/go.
start() {
  name=$1 stage=$2
  shift 2
  mkdir "$name"
  on 0 timeout "$limit" "$bin/zerorun" --device cpu --timeout 60 --hostfile "$work/hostfile" --max_restarts "$restarts" "$@" \
    "$bin/restarted_program" "$work/$name" "$steps" 1000 "$stage" fp32 "${more[@]}" </dev/null >"$name.out" 2>"$name.log" &
  job=$!
}
# logged RANK: how many lines of steps the rank has written.
logged() { if [[ -e $name/rank$1 ]]; then grep -cv '^#' "$name/rank$1" || true; else echo 0; fi; }
# reaches STEPS: waits until all ranks have written so many.
reaches() {
  local rank
  for rank in 0 1 2 3; do
    for ((i = 0; i < 600; ++i)); do
      (($(logged "$rank") >= $1)) && break
      sleep 0.02
    done
    (($(logged "$rank") >= $1)) || fail "$name: rank $rank does not reach step $1"
  done
}
# said PATTERN [TIMES]: waits until the launcher has said it.
said() {
  for ((i = 0; i < 1000; ++i)); do
    if (($(grep -cE -- "$1" "$name.log") >= ${2:-1})); then return; fi
    sleep 0.02
  done
  fail "$name: the launcher does not say '$1'"
}
nothing_left() {
  for host in 0 1; do
    for ((i = 0; i < 100; ++i)); do
      [[ -z $(processes_on "$host" 'bin/zerorun|zr-guardian|restarted_program') ]] && continue 2
      sleep 0.02
    done
    fail "$1: processes are left on host $host"
  done
}
# ends: the training ends with the bits of the undisturbed one of its stage.
ends() {
  touch "$name/go"
  wait "$job" || fail "$name: exit code $?"
  nothing_left "$name"
  cmp "$name/end.safetensors" "calm$stage/end.safetensors" || fail "$name: other weights"
  for rank in 0 1 2 3; do
    cmp <(grep -v '^#' "$name/rank$rank" | sort -un) <(grep -v '^#' "calm$stage/rank$rank") || fail "$name: other losses on rank $rank"
    # A step is logged before it ends, so of those that a kill interrupts one more may be logged again.
    repeated=$(($(logged "$rank") - $(grep -v '^#' "$name/rank$rank" | sort -u | wc -l)))
    ((repeated <= 2 * ${1:-1})) || fail "$name: rank $rank has done $repeated steps again"
  done
  pass "$name"
}
agent_on() { processes_on "$1" '^[^ ]*bin/zerorun --agent' | head -n 1; }
keeper_on() { processes_on "$1" '^[^ ]*bin/zerorun --keeper'; }
rank_on() { processes_on "$1" '^[^ ]*bin/restarted_program' | head -n 1; }

# The next host has copies. A host is lost with its memory, and comes back.
lose() { kill -9 $(processes_on "$1" '^[^ ]*bin/zerorun --(agent|keeper)|^[^ ]*bin/restarted_program'); }

# moments_of EVENT: when rank 0 has written it.
moments_of() { [[ ! -e $name/rank0 ]] || awk -v event="$1" '$1 == "#" && $2 == event { print $3 }' "$name/rank0"; }
# random_kills: one after the other, each when rank 0 has ended a step since the one before.
random_kills() {
  local kill kind host before
  RANDOM=${ZERORUN_SEED:-1}
  restarts=$kills limit=$((60 + 10 * kills)) steps=$((60 * kills)) more=(partner)
  start calm3 3
  touch calm3/go
  wait "$job" || fail "the undisturbed training"
  start random 3 --hold_every 1
  for ((kill = 1; kill <= kills; ++kill)); do
    for ((i = 0; i < 1000 && $(moments_of stepped | wc -l) < kill; ++i)); do sleep 0.02; done
    (($(moments_of stepped | wc -l) >= kill)) || fail "kill $kill: rank 0 has not ended a step for 20 s"
    sleep "0.$((RANDOM % 10))"
    kind=$((RANDOM % 4)) host=$((RANDOM % 2)) before=$(date +%s.%N)
    case $kind in
      0) kill -9 "$(rank_on $host)" ;;
      1) kill -9 "$(agent_on $host)" ;;
      2) kill -9 "$(processes_on 0 '^ssh -T' | head -n 1)" ;;
      3) lose $host ;;
    esac
    printf '%s %s %s\n' "$kill" "$kind" "$before" >>kills
  done
  for ((i = 0; i < 1000 && $(moments_of stepped | wc -l) <= kills; ++i)); do sleep 0.02; done
  ends "$kills"
  # Seconds from a kill until ranks had been started again, had read their state, and had ended a step.
  paste -d ' ' kills <(moments_of began | tail -n +2) <(moments_of read | tail -n +2) <(moments_of stepped | tail -n +2) | sort -k 2,2 -s | awk '
    BEGIN { split("rank agent ssh host", names, " "); print "killed  times  started: mean, most  read  first step  together: mean, most" }
    function show() { if (n) printf "%-7s %5d %8.2f %6.2f %13.2f %8.2f %12.2f %6.2f\n", names[kind + 1], n, a / n, b, c / n, d / n, e / n, f }
    $2 != kind { show(); n = a = b = c = d = e = f = 0; kind = $2 }
    { ++n; a += $4 - $3; if ($4 - $3 > b) b = $4 - $3; c += $5 - $4; d += $6 - $5; e += $6 - $3; if ($6 - $3 > f) f = $6 - $3 }
    END { show() }'
}
if ((kills > 0)); then
  random_kills
  echo "$passed passed, 0 failed"
  exit
fi

for stage in "${stages[@]}"; do
  start calm$stage $stage
  touch calm$stage/go
  wait "$job" || fail "the undisturbed training"
done

# Of the two agents one is that of the launcher's own host.
for stage in "${stages[@]}"; do
  start disturbed$stage $stage --hold_every 1
  reaches 6
  kill -9 "$(rank_on 1)"
  said 'restart 1 of 4: rank [23] on worker-1 killed by signal 9'
  said 'load_newest\(\): step [0-9]+ from memory' 1
  reaches 12
  kill -9 "$(processes_on 0 '^ssh -T')"
  said 'restart 2 of 4: (ssh to )?worker-1'
  said 'load_newest\(\): step [0-9]+ from memory' 2
  reaches 18
  kill -9 "$(agent_on $((stage == 0)))"
  said "restart 3 of 4: worker-$((stage == 0)) was lost"
  said 'load_newest\(\): step [0-9]+ from memory' 3
  ends 3
done

start killed 3 --hold_every 1
reaches 6
kill -9 "$(processes_on 0 '^[^ ]*bin/zerorun --device')"
wait "$job" && fail "a killed launcher has exit code 0"
nothing_left "the launcher is killed"
pass "the launcher is killed"

# One host is lost, then the other one.
for stage in "${stages[@]}"; do
  more=(partner)
  start partner$stage $stage --hold_every 1
  reaches 6
  lose 1
  said 'load_newest\(\): step [0-9]+ from memory'
  reaches 12
  if [[ -n $all ]]; then
    lose 0
    said 'load_newest\(\): step [0-9]+ from memory' 2
    reaches 18
    kill -9 "$(rank_on 1)"
    said 'load_newest\(\): step [0-9]+ from memory' 3
  fi
  ends 3
  grep -q 'with the copies to the next host: .* MiB sent' partner$stage.log || fail "the copies' cost is not said"
done

more=()
if [[ -n $all ]]; then
  # Without a checkpoint to fall back to, training begins anew.
  start anew 0 --hold_every 1
  reaches 6
  kill -9 "$(keeper_on 1)"
  said 'worker-1: the memory that was held there \(--hold_every\) is lost: its keeper \(process [0-9]+\) has ended'
  kill -9 "$(rank_on 0)"
  said 'restart 1 of 4'
  reaches 12
  [[ -n $(keeper_on 1) ]] || fail "the keeper is not replaced"
  kill -9 "$(rank_on 0)"
  said 'load_newest\(\): step [0-9]+ from memory'
  ends 20
  (($(grep -c 'from memory' anew.log) == 1)) || fail "a restart without a keeper is from memory"

  for kind in alone partner; do
    if [[ $kind == partner ]]; then more=(partner); fi
    start stopped_$kind 0 --hold_every 1
    reaches 6
    stopped=$(keeper_on 1)
    kill -STOP "$stopped"
    kill -9 "$(rank_on 0)"
    said 'rank 0: the generation of step [0-9]+ in memory cannot be read: the memory that host worker-1 holds'
    said 'a checkpoint is damaged and passed over: rank [01]: memory/global_step'
    # Without the keeper there are no copies, but each rank's own memory goes on.
    if [[ $kind == partner ]]; then said 'generations are not copied to the next host: .*worker-1'; fi
    reaches 12
    kill -CONT "$stopped"
    kill -9 "$(rank_on 1)"
    said 'load_newest\(\): step [0-9]+ from memory'
    ends 20
  done
  more=()

  start early 3 --hold_every 1
  for kill in 1 2 3; do
    for ((i = 0; i < 500; ++i)); do
      [[ -n $(rank_on 1) ]] && break
      sleep 0.01
    done
    kill -9 "$(rank_on 1)"
    said "restart $kill of 4"
  done
  ends 3
fi
echo "$passed passed, 0 failed"
