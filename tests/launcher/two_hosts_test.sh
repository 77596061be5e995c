#!/usr/bin/env bash
# two_hosts_test.sh BIN_FOLDER SOURCE_FOLDER: trains on two hosts, a launcher on each. The hosts are namespaces of this
# machine with a network interface, name, processes, /run, /dev/shm and /tmp of their own. As on Debian, a host's own name
# leads to its loopback interface. Exit code 77: such namespaces cannot be made here.
set -euo pipefail
bin=$1 source=$2
id=zr$$
work=$(mktemp -d /var/tmp/zerorun_two_hosts_XXXXXX)

skip() { echo "skipped: $*" && exit 77; }
fail() { echo "FAILED: $*" && tail -n 30 "$work"/*.log && exit 1; }

clean_up() {
  for host in 0 1; do
    ip netns pids "${id}h$host" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
    ip netns del "${id}h$host" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap clean_up EXIT

command -v ip >/dev/null || skip "no ip command (Debian's package iproute2)"
unshare --net --pid --mount --uts --ipc --fork true 2>/dev/null || skip "no permission to make namespaces"
# A bridge is not needed for two hosts: the ends of one pair of interfaces.
for host in 0 1; do ip netns add "${id}h$host" 2>/dev/null || skip "no permission to make network namespaces"; done
ip link add "${id}a" netns "${id}h0" type veth peer name "${id}b" netns "${id}h1" 2>/dev/null || skip "no veth interfaces"
for host in 0 1; do
  ip -n "${id}h$host" link set lo up
  ip -n "${id}h$host" addr add "10.77.0.$((host + 1))/24" dev "$id$( ((host)) && echo b || echo a)"
  ip -n "${id}h$host" link set "$id$( ((host)) && echo b || echo a)" up
  printf '127.0.0.1 localhost\n127.0.1.1 worker-%d\n10.77.0.%d worker-%d\n' "$host" $((2 - host)) $((1 - host)) \
    >"$work/etc_hosts_$host"
done
head -c 20000 "$source/README.md" "$source/docs/guide.md" >"$work/text"
printf 'worker-0 slots=2\nworker-1 slots=2\n' >"$work/hostfile"

own_folders=(/run /dev/shm)
[[ $bin/ == /tmp/* || $source/ == /tmp/* ]] || own_folders+=(/tmp)

# on HOST COMMAND...
on() {
  local host=$1
  shift
  # shellcheck disable=SC2016
  ip netns exec "${id}h$host" unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc bash -ec '
    hostname "worker-$1"
    for folder in $3; do mount -t tmpfs tmpfs "$folder"; done
    mount --bind "$2/etc_hosts_$1" /etc/hosts
    shift 3
    exec "$@"' _ "$host" "$work" "${own_folders[*]}" "$@"
}

# train HOST STEPS FILE [OPTIONS OF THE LAUNCHER...]
train() {
  local host=$1 steps=$2 csv=$3
  shift 3
  on "$host" timeout 120 "$bin/zerorun" --device cpu --timeout 60 --hostfile "$work/hostfile" --no_ssh --node_rank "$host" \
    "$@" "$bin/gpt2" --deepspeed "$source/samples/gpt2/ds_config.json" --layers 1 --hidden 32 --heads 2 --seq 16 \
    --data "$work/text" --steps "$steps" --generate 0 --cache "$work/tokens" --csv "$csv"
}

export ZERORUN_JOB=a-secret-of-the-test OMP_NUM_THREADS=1
"$bin/zerorun" --device cpu --comm gloo --num_gpus 4 "$bin/gpt2" --deepspeed "$source/samples/gpt2/ds_config.json" \
  --layers 1 --hidden 32 --heads 2 --seq 16 --data "$work/text" --steps 5 --generate 0 --cache "$work/tokens" \
  --csv "$work/alone.csv" >"$work/alone.log" 2>&1 || fail "the job on one host"

echo "== the losses of two hosts are those of one, to the bit"
train 1 5 "$work/unused.csv" >"$work/host1.log" 2>&1 &
train 0 5 "$work/together.csv" >"$work/host0.log" 2>&1 || fail "the job on two hosts"
wait $! || fail "the second host of the job"
cmp "$work/alone.csv" "$work/together.csv" || fail "other losses"
grep -q "collectives go over Gloo, not over shared memory: rank 2 is on another host" "$work/host0.log" ||
  fail "the ranks should have seen that they are on two hosts"

echo "== zerorun doctor measures the link between them"
for host in 1 0; do
  on "$host" timeout 120 "$bin/zerorun" doctor --device cpu --timeout 60 --hostfile "$work/hostfile" --no_ssh \
    --node_rank "$host" >"$work/doctor$host.log" 2>&1 &
done
wait $! || { (($? == 1)) && ! grep -q 'problem  *\(collectives\|link\)' "$work/doctor0.log"; } || fail "zerorun doctor"
wait
for text in '4 ranks on 2 hosts over Gloo, the sums are right' '^host worker-1' \
  'slowest link  *worker-0 - worker-1: [0-9]* us, .*B/s'; do
  grep -q "$text" "$work/doctor0.log" || fail "zerorun doctor does not say '$text'"
done
grep -q "results are on the host of rank 0" "$work/doctor1.log" || fail "the second host's doctor"

echo "== a rank that is killed on one host ends the job on both"
train 1 100000 "$work/unused.csv" >"$work/host1.log" 2>&1 &
second=$!
train 0 100000 "$work/killed.csv" >"$work/host0.log" 2>&1 &
first=$!
for ((i = 0; i < 300; ++i)); do
  [[ -s $work/killed.csv ]] && (($(wc -l <"$work/killed.csv") > 3)) && break
  sleep 0.1
done
((i < 300)) || fail "the training that is to be killed did not start"
for process in $(ip netns pids "${id}h1"); do
  if [[ $(cat "/proc/$process/comm") == gpt2 ]]; then kill -9 "$process" && break; fi
done
started=$SECONDS
wait $second && fail "the launcher of the killed rank should fail"
wait $first && fail "the launcher of the other host should fail"
echo "both launchers ended after $((SECONDS - started)) s"
((SECONDS - started <= 20)) || fail "that is too late"
grep -q "killed by signal 9\|SIGKILL" "$work/host1.log" || fail "the killed rank is not named"
for host in 0 1; do
  [[ -z $(ip netns pids "${id}h$host") ]] || fail "processes are left on host $host"
done
echo "3 passed, 0 failed"
