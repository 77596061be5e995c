# Sourced by the tests in this folder. Makes hosts from namespaces of this machine. Each host has its own network
# interface, name, processes, /tmp, /run and /dev/shm. A bridge connects the hosts. As on Debian, a host's own name
# resolves to a loopback address.
#
#   make_hosts N        worker-0 to worker-N-1 with the addresses 10.77.0.1 and so on, under $work
#   start_sshds         an sshd on each, and keys by which root logs in
#   on HOST COMMAND...  runs a command on host number HOST
# shellcheck shell=bash

id=zr$$
work=$(mktemp -d /var/tmp/zerorun_cluster_XXXXXX)
inits=() # by host: the PID of its process 1 in this machine's PID namespace
passed=0

skip() { echo "skipped: $*" && exit 77; }
fail() {
  echo "FAILED: $*"
  tail -n 30 "$work"/*.log 2>/dev/null
  exit 1
}
pass() { echo "passed: $*" && passed=$((passed + 1)); }

clean_up() {
  local init host
  for init in "${inits[@]}"; do kill -9 "$init" 2>/dev/null || true; done
  for ((host = 0; host < ${#inits[@]}; ++host)); do ip netns del "${id}h$host" 2>/dev/null || true; done
  ip netns del "${id}b" 2>/dev/null || true
  rm -rf "$work"
}

check_namespaces() {
  command -v ip >/dev/null || skip "no ip command (Debian's package iproute2)"
  unshare --net --pid --mount --uts --ipc --fork true 2>/dev/null || skip "no permission to make namespaces"
  ip netns add "${id}b" 2>/dev/null || skip "no permission to make network namespaces"
  ip -n "${id}b" link add bridge type bridge 2>/dev/null || skip "no bridges between network namespaces"
  ip -n "${id}b" link set bridge up
}

make_hosts() {
  local count=$1 host other
  check_namespaces
  # If the build folder or the source folder is in /tmp, the hosts must see it. Then they have no /tmp of their own.
  own_folders=(/run /dev/shm)
  [[ $bin/ == /tmp/* || $source/ == /tmp/* ]] || own_folders+=(/tmp)
  for ((host = 0; host < count; ++host)); do
    ip netns add "${id}h$host"
    ip link add eth0 netns "${id}h$host" type veth peer name "port$host" netns "${id}b" ||
      skip "no veth interfaces"
    ip -n "${id}b" link set "port$host" master bridge up
    ip -n "${id}h$host" link set lo up
    ip -n "${id}h$host" addr add "10.77.0.$((host + 1))/24" dev eth0
    ip -n "${id}h$host" link set eth0 up
    {
      printf '127.0.0.1 localhost\n127.0.1.1 worker-%d\n' "$host"
      for ((other = 0; other < count; ++other)); do
        ((other == host)) || printf '10.77.0.%d worker-%d\n' $((other + 1)) "$other"
      done
    } >"$work/etc_hosts_$host"
    start_init "$host"
  done
  printf 'worker-%d slots=2\n' $(seq 0 $((count - 1))) >"$work/hostfile"
}

# Starts process 1 of a host, which reaps orphans and keeps the namespaces alive.
start_init() {
  local host=$1
  # shellcheck disable=SC2016
  # Uses nsenter, because `ip netns exec` would mount another /sys, without cgroups.
  nsenter --net="/run/netns/${id}h$host" unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc bash -ec '
    hostname "worker-$1"
    for folder in $3; do mount -t tmpfs tmpfs "$folder"; done
    mount --bind "$2/etc_hosts_$1" /etc/hosts
    mkdir -p /run/sshd
    touch "$2/up_$1"
    while :; do sleep 1000 & wait; done' _ "$host" "$work" "${own_folders[*]}" \
    </dev/null >"$work/init_$host.log" 2>&1 &
  for ((i = 0; i < 100; ++i)); do
    [[ -e $work/up_$host ]] && break
    sleep 0.1
  done
  [[ -e $work/up_$host ]] || fail "host $host does not start"
  inits[host]=$(pgrep -P $! | head -n 1)
}

on() {
  local host=$1
  shift
  nsenter --target "${inits[host]}" --net --pid --mount --uts --ipc -- env --chdir="$PWD" "$@"
}

# Prints the PIDs, in this machine's PID namespace, of the processes on a host whose command line matches.
processes_on() {
  local host=$1 pattern=$2 namespace process
  namespace=$(readlink "/proc/${inits[host]}/ns/pid")
  for process in $(pgrep -f -- "$pattern"); do
    if [[ $(readlink "/proc/$process/ns/pid") == "$namespace" ]]; then echo "$process"; fi
  done
}

start_sshds() {
  local host
  command -v ssh >/dev/null && [[ -x /usr/sbin/sshd ]] || skip "no ssh and sshd (openssh-client, openssh-server)"
  mkdir -p "$work/ssh"
  chmod 700 "$work/ssh"
  ssh-keygen -q -t ed25519 -N '' -f "$work/ssh/id_ed25519"
  ssh-keygen -q -t ed25519 -N '' -f "$work/host_key"
  cp "$work/ssh/id_ed25519.pub" "$work/ssh/authorized_keys"
  printf 'Host worker-*\n  UserKnownHostsFile %s\n  IdentityFile %s\n' "$work/known_hosts" "$work/ssh/id_ed25519" \
    >"$work/ssh/config"
  sed "s/^/worker-* /; s/ [^ ]*$//" "$work/host_key.pub" >"$work/known_hosts"
  for ((host = 0; host < ${#inits[@]}; ++host)); do
    # Each host has the test's folder as /root/.ssh, so that ssh does not use the user's own keys.
    on "$host" mkdir -p /root/.ssh
    on "$host" mount --bind "$work/ssh" /root/.ssh
    # Nor do the user's own startup files run: one that takes a lock would keep it when a test kills its host.
    [[ ! -e /root/.bashrc ]] || on "$host" mount --bind /dev/null /root/.bashrc
    on "$host" /usr/sbin/sshd -f /dev/null -h "$work/host_key" -o PermitRootLogin=yes -o StrictModes=no -o UsePAM=no \
      -o MaxStartups=100 -o PidFile=/run/sshd.pid -E "$work/sshd_$host.log"
  done
}
