# A memory cgroup without swap, for the benchmarks that source this file. Ends them with 77, "skipped", where none can be made.
# shellcheck shell=bash disable=SC2034

# name_group NAME: sets `group`, the cgroup's folder, and the names of its files.
name_group() {
  if [[ -w /sys/fs/cgroup/memory ]]; then
    group=/sys/fs/cgroup/memory/$1 limit_file=memory.limit_in_bytes peak_file=memory.max_usage_in_bytes
    swap_file=memory.memsw.limit_in_bytes
  elif [[ -w /sys/fs/cgroup/cgroup.procs ]]; then
    group=/sys/fs/cgroup/$1 limit_file=memory.max peak_file=memory.peak swap_file=memory.swap.max
  else
    echo "skipped: no memory cgroup can be made here" && exit 77
  fi
}

# enter_group BYTES: limits the cgroup, and puts this shell into it.
enter_group() {
  echo "$1" >"$group/$limit_file"
  echo "$1" >"$group/$swap_file" 2>/dev/null || true
  echo "$BASHPID" >"$group/cgroup.procs"
}
