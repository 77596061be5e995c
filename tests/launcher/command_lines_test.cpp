// The command lines that the documentation of DeepSpeed's launcher and of torchrun show: each is accepted
// with the same meaning, or refused with a reason.
#include <regex>
#include <sstream>
#include <vector>

#include "tests/launcher/command_folder.h"

namespace zerorun::testing {
namespace {

struct Line {
  const char* arguments;
  // The ranks by host and the command, as summary() writes them; or a part of the error.
  const char* expected;
};

// A line of --dry_run is HOST: [cd FOLDER &&] env ... ZERORUN_TIMEOUT=600 COMMAND. Returns "HOST 0 1, HOST 2:
// COMMAND", with the numbers of the ranks on each host.
std::string summary(const std::string& plan) {
  static const std::regex shape(R"(^(.+?): .* RANK=(\d+) .*ZERORUN_TIMEOUT=600 (.*)$)");
  std::string hosts, host, command;
  std::istringstream lines(plan);
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    REQUIRE(std::regex_match(line, found, shape));
    if (found[1] != host) hosts += (hosts.empty() ? "" : ", ") + found[1].str();
    host = found[1];
    hosts += " " + found[2].str();
    if (!command.empty()) CHECK(found[3] == command);
    command = found[3];
  }
  return hosts + ": " + command;
}

void check(const std::vector<Line>& table) {
  const CommandFolder folder;
  folder.write("hosts", "worker-0 slots=2\nworker-1 slots=2\nworker-2 slots=2\nworker-3 slots=4\n");
  folder.write("train.py", "");
  folder.write("train.sh", "#!/bin/sh\n");
  std::filesystem::permissions(folder / "train.sh", std::filesystem::perms::owner_all);
  for (const Line& line : table) {
    INFO(line.arguments);
    const Outcome outcome = folder.run(std::string("--dry_run ") + line.arguments);
    if (outcome.exit_code == 0) {
      CHECK(summary(outcome.out) == line.expected);
    } else {
      CHECK(outcome.exit_code == 2);
      CHECK_THAT(outcome.err, Catch::Matchers::Contains(line.expected));
    }
  }
}

}  // namespace

TEST_CASE("command lines of DeepSpeed's documentation") {
  check({
      {"--hostfile=hosts train.py --deepspeed --deepspeed_config ds.json",
       "worker-0 0 1, worker-1 2 3, worker-2 4 5, worker-3 6 7 8 9: "
       "python3 -u train.py --deepspeed --deepspeed_config ds.json"},
      {"--hostfile=hosts --num_nodes=2 train.py", "worker-0 0 1, worker-1 2 3: python3 -u train.py"},
      {"--hostfile=hosts --num_nodes 2 --num_gpus 1 train.py", "worker-0 0, worker-1 1: python3 -u train.py"},
      {"--hostfile=hosts --exclude=\"worker-2:0@worker-3:0,1\" train.py",
       "worker-0 0 1, worker-1 2 3, worker-2 4, worker-3 5 6: python3 -u train.py"},
      {"--hostfile=hosts --include=\"worker-2:0,1\" train.py", "worker-2 0 1: python3 -u train.py"},
      {"-H hosts -i worker-1 train.py", "worker-1 0 1: python3 -u train.py"},
      {"-H hosts -e worker-1@worker-3 train.py", "worker-0 0 1, worker-2 2 3: python3 -u train.py"},
      {"--include localhost:1 train.py", "localhost 0: python3 -u train.py"},
      {"--include=localhost:0,1 --master_port=29501 train.py", "localhost 0 1: python3 -u train.py"},
      {"--hostfile=hosts --num_nodes 2 --no_ssh --node_rank=1 --master_addr=worker-0 --master_port=29600 "
       "train.py",
       "worker-0 0 1, worker-1 2 3: python3 -u train.py"},
      {"--num_gpus=2 train.py --deepspeed", "localhost 0 1: python3 -u train.py --deepspeed"},
      {"--num_nodes -1 --num_gpus -1 train.py", "localhost 0: python3 -u train.py"},
      {"--num_gpus 2 --no_local_rank --no_python ./train.sh --epochs 1",
       "localhost 0 1: ./train.sh --epochs 1"},
      {"--num_gpus 2 --module package.train --epochs 1",
       "localhost 0 1: python3 -u -m package.train --epochs 1"},
      {"--num_accelerators 1 --bind_cores_to_rank --bind_core_list 0 train.py",
       "localhost 0: taskset -c 0 python3 -u train.py"},
      {"-H hosts -i worker-1 --launcher pdsh train.py", "worker-1 0 1: python3 -u train.py"},
      {"-H hosts -i worker-1 --launcher OPENMPI --launcher_args \"--mca btl tcp,self\" train.py",
       "worker-1 0 1: python3 -u train.py"},
      {"-H hosts -i worker-1 --launcher mpich train.py", "worker-1 0 1: python3 -u train.py"},
      {"-H hosts -i worker-1 --launcher slurm train.py", "worker-1 0 1: python3 -u train.py"},
      {"-H hosts --launcher impi train.py", "DeepSpeed has impi, zerorun does not support it"},
      {"-H hosts --launcher mvapich train.py", "DeepSpeed has mvapich, zerorun does not support it"},
      {"-H hosts -i worker-1 --force_multi --ssh_port 2222 --no_ssh_check train.py",
       "worker-1 0 1: python3 -u train.py"},
      {"-H hosts -i worker-1:0 --venv_script /opt/env.sh train.py",
       "worker-1 0: /bin/bash -c '. \"$0\" && exec \"$@\"' /opt/env.sh python3 -u train.py"},
      {"--num_gpus 1 --enable_each_rank_log logs --save_pid --log_level debug train.py",
       "localhost 0: python3 -u train.py"},
      {"--elastic_training --min_elastic_nodes 1 --max_elastic_nodes 2 train.py",
       "--elastic_training: DeepSpeed's launcher has this option, but zerorun does not support it"},
      {"--autotuning run train.py", "--autotuning: DeepSpeed's launcher has this option"},
      {"--num_gpus -1 --num_nodes -1 --node_rank -1 --include localhost:0 train.py",
       "localhost 0: python3 -u train.py"},
      {"--num_gpus +2 train.py", "found '+2'"},
      {"--num_gpus 0x3 train.py", "found '0x3'"},
      {"-H=hosts -i=worker-1 train.py", "worker-1 0 1: python3 -u train.py"},
      {"--hostfile=hosts --hostfile= train.py", "--hostfile: expected a file"},
      {"--no_ssh --node_rank 0 train.py", "--no_ssh needs --hostfile, or --num_nodes"},
      {"--num_gpus 2 --local_rank 0 train.py", "--local_rank: unknown option before the program's name"},
  });
}

TEST_CASE("command lines of torchrun's documentation") {
  check({
      {"--standalone --nnodes=1 --nproc-per-node=2 train.py --epochs 3",
       "localhost 0 1: python3 -u train.py --epochs 3"},
      {"--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node=2 train.py",
       "localhost 0 1: python3 -u train.py"},
      {"--nnodes=2 --nproc-per-node=2 --rdzv-id=100 --rdzv-backend=c10d --rdzv-endpoint=localhost:29400 "
       "train.py",
       "node 0 0 1, node 1 2 3: python3 -u train.py"},
      {"--nnodes=2 --nproc-per-node=2 --max-restarts=3 --rdzv-id=100 --rdzv-endpoint=localhost:29400 "
       "train.py",
       "node 0 0 1, node 1 2 3: python3 -u train.py"},
      {"--nnodes=1:4 --nproc-per-node=2 --max-restarts=0 train.py",
       "a job starts on a fixed number of hosts"},
      {"--nnodes=1:1 --nproc-per-node=1 --max-restarts=0 train.py", "localhost 0: python3 -u train.py"},
      {"--nnodes=2 --node-rank=1 --nproc-per-node=2 --master-addr=worker-0 --master-port=29500 train.py",
       "node 0 0 1, node 1 2 3: python3 -u train.py"},
      {"--nproc-per-node=2 --log-dir=logs --redirects=3 --tee=0:3 train.py",
       "localhost 0 1: python3 -u train.py"},
      {"--nproc-per-node=2 --local-ranks-filter=0 -m package.train",
       "localhost 0 1: python3 -u -m package.train"},
      {"--nproc-per-node=2 --start-method spawn --monitor-interval 1 train.py",
       "localhost 0 1: python3 -u train.py"},
      {"--nproc-per-node=2 --local-addr 127.0.0.1 train.py", "localhost 0 1: python3 -u train.py"},
      {"--nproc-per-node=2 --use-env --no-python ./train.sh", "localhost 0 1: ./train.sh"},
      {"--nproc_per_node=2 --use_env train.py", "localhost 0 1: python3 -u train.py"},
      {"--nproc_per_node=2 --rdzv_endpoint=localhost:29411 train.py", "localhost 0 1: python3 -u train.py"},
      {"--node_rank 0 --nproc_per_node 2 --master_addr 127.0.0.1 --master_port 29500 train.py",
       "localhost 0 1: python3 -u train.py"},
      {"--rdzv_endpoint ::1 --nnodes 2 --nproc_per_node 1 train.py",
       "node 0 0, node 1 1: python3 -u train.py"},
      {"--nnodes 2 --node_rank 0 --master_addr a train.py", "needs --num_gpus (--nproc_per_node)"},
      {"--rdzv_id -q train.py", "--rdzv_id: expected a value, found '-q'"},
      {"--rdzv_id -m package.train", "--rdzv_id: expected a value, found '-m'"},
      {"--rdzv_id -7 --nproc_per_node 1 train.py", "localhost 0: python3 -u train.py"},
      {"--nnodes=2 --rdzv-backend=etcd-v2 --rdzv-endpoint=etcd:2379 train.py", "expected c10d or static"},
      {"--nproc-per-node=2 --role trainer train.py",
       "--role: torchrun has this option, but zerorun does not support it"},
      {"--nproc-per-node=2 --rdzv-conf timeout=30 train.py", "--rdzv-conf: torchrun has this option"},
      {"--nproc-per-node=2 --run-path train.py", "--run-path: torchrun has this option"},
      {"--nproc-per-node=2 --numa-binding node train.py", "--numa-binding: torchrun has this option"},
      {"--nproc-per-node=2 --virtual-local-rank train.py", "--virtual-local-rank: torchrun has this option"},
      {"--nproc-per-node=2 --logs-specs default train.py", "--logs-specs: torchrun has this option"},
  });
}

}  // namespace zerorun::testing
