// Tests the variables, arguments and descriptors that ranks receive, and programs that cannot be started.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/cores.h"
#include "base/processor_list.h"
#include "launcher/core_binding.h"
#include "tests/launcher/launched.h"

using Catch::Matchers::Contains;
using Catch::Matchers::Matches;
using zerorun::testing::Launched;
using zerorun::testing::Result;
using zerorun::testing::Setup;
using namespace zerorun::launcher;

TEST_CASE("every rank has its variables") {
  Launched job(
      {.options = {"--num_gpus", "2", "--timeout", "12", "--master_port", "23456"},
       .script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $LOCAL_SIZE $MASTER_ADDR $MASTER_PORT "
                 "$ZERORUN_TIMEOUT ${ZERORUN_TERMINAL-unset} >$DIR/rank$RANK"});
  CHECK(job.finish().exit_code == 0);
  for (std::string rank : {"0", "1"}) {
    std::string line;
    std::getline(std::ifstream(job.folder() + "/rank" + rank), line);
    CHECK(line == rank + " " + rank + " 2 2 2 127.0.0.1 23456 12 unset");
  }
}

TEST_CASE("a free port is chosen, the same for all ranks") {
  Launched job({.options = {"--num_gpus", "2"}, .script = "echo $MASTER_PORT >$DIR/port$RANK"});
  CHECK(job.finish().exit_code == 0);
  int ports[2] = {0, 1};
  for (int rank : {0, 1}) std::ifstream(job.folder() + "/port" + std::to_string(rank)) >> ports[rank];
  CHECK(ports[0] == ports[1]);
  CHECK(ports[0] > 1023);
  CHECK(ports[0] < 65536);
}

TEST_CASE("included slots are one rank each and become the visible devices") {
  Launched job(
      {.options = {"--include", "localhost:0,2"}, .script = "echo $RANK/$WORLD_SIZE $CUDA_VISIBLE_DEVICES"});
  Result result = job.finish();
  if (result.exit_code == 2 && result.err.find("slot 2 does not exist") != std::string::npos)
    return;  // this machine has one or two GPUs
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("0/2 0,2\n") && Contains("1/2 0,2\n"));
}

TEST_CASE("threads of a rank: cores divided by ranks, at least one, unless OMP_NUM_THREADS is set") {
  const int cores = zerorun::count_usable_cores();
  const std::string script = "echo threads=$OMP_NUM_THREADS";
  CHECK(Launched({.options = {"--num_gpus", "1"}, .script = script}).finish().out ==
        "threads=" + std::to_string(cores) + "\n");
  CHECK(
      Launched({.options = {"--num_gpus", "1"}, .script = script, .environment = {{"OMP_NUM_THREADS", "7"}}})
          .finish()
          .out == "threads=7\n");
  // More ranks than cores.
  Launched many({.options = {"--num_gpus", std::to_string(cores + 3)}, .script = script});
  Result result = many.finish();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.err, Contains(std::to_string(cores + 3) + " ranks"));
  for (int rank = 1; rank < cores + 3; ++rank) CHECK_THAT(result.out, Contains("threads=1\n"));
}

TEST_CASE("without --num_gpus on a machine without GPUs there is one rank, and a message says so") {
  Launched job({.script = "echo $WORLD_SIZE"});
  Result result = job.finish();
  struct stat info {};
  if (::stat("/dev/nvidia0", &info) == 0) return;
  CHECK(result.out == "1\n");
  CHECK(result.err == "zerorun: no GPU found: 1 rank runs on CPU\n");
}

TEST_CASE("--device reaches the ranks, and a CPU has any number of slots") {
  const std::string script = "echo $RANK/$WORLD_SIZE ${ZERORUN_DEVICE-unset}";
  Result result =
      Launched({.options = {"--device", "cpu", "--include", "localhost:900,901"}, .script = script}).finish();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("0/2 cpu\n") && Contains("1/2 cpu\n"));
  CHECK(result.err == "zerorun: 2 ranks run on CPU\n");
  CHECK(Launched({.options = {"--device", "cpu"}, .script = script}).finish().out == "0/1 cpu\n");
  CHECK(Launched({.options = {"--num_gpus", "1"}, .script = script}).finish().out == "0/1 unset\n");
  // Without --device, the variable ZERORUN_DEVICE chooses the device.
  result = Launched({.options = {"--include", "localhost:900"},
                     .script = script,
                     .environment = {{"ZERORUN_DEVICE", "cpu"}}})
               .finish();
  CHECK(result.out == "0/1 cpu\n");
  CHECK(result.err == "zerorun: 1 rank runs on CPU\n");
  CHECK(Launched({.options = {"--device", "cuda", "--num_gpus", "1"},
                  .script = script,
                  .environment = {{"ZERORUN_DEVICE", "cpu"}}})
            .finish()
            .out == "0/1 cuda\n");
}

TEST_CASE("arguments reach the program untouched") {
  Launched job(
      {.options = {"--num_gpus", "1"},
       .script = "for argument; do printf '<%s>\\n' \"$argument\"; done",
       .arguments = {"two words", "--num_gpus", "7", "-i", "", "--help", "--", "*", "$HOME", "a\\b\"c'"}});
  CHECK(job.finish().out ==
        "<two words>\n<--num_gpus>\n<7>\n<-i>\n<>\n<--help>\n<-->\n<*>\n<$HOME>\n<a\\b\"c'>\n");
}

TEST_CASE("ranks inherit no descriptors of the launcher") {
  Result result = Launched(std::vector<std::string>{"--num_gpus", "3", "/bin/ls", "/proc/self/fd"}).finish();
  CHECK(result.exit_code == 0);
  std::map<std::string, int> seen;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) ++seen[line.substr(line.rfind(' ') + 1)];
  CHECK(seen == std::map<std::string, int>{{"0", 3}, {"1", 3}, {"2", 3}, {"3", 3}, {"4", 1}});
  // On ranks 1 and 2, descriptor 3 is the folder /proc/self/fd, which ls reads. On rank 0 that folder is
  // descriptor 4, and descriptor 3 is the socket on which the ranks meet.
}

TEST_CASE("the job's token is the same for all ranks, and differs between jobs") {
  const Setup setup = {.options = {"--num_gpus", "2"}, .script = "echo $ZERORUN_JOB >$DIR/token$RANK"};
  std::set<std::string> tokens;
  for (int number = 0; number < 2; ++number) {
    Launched job(setup);
    CHECK(job.finish().exit_code == 0);
    std::string read[2];
    for (int rank : {0, 1})
      std::getline(std::ifstream(job.folder() + "/token" + std::to_string(rank)), read[rank]);
    CHECK(read[0] == read[1]);
    CHECK(read[0].size() == 32);
    tokens.insert(read[0]);
  }
  CHECK(tokens.size() == 2);
}

TEST_CASE("ranks inherit no blocked or ignored signals of the launcher") {
  Result result =
      Launched(std::vector<std::string>{"/bin/grep", "-E", "SigBlk|SigIgn", "/proc/self/status"}).finish();
  CHECK(result.out == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_CASE("a dry run starts nothing, and its lines can be run") {
  Launched dry(
      std::vector<std::string>{"--dry_run", "--num_gpus", "2", "/bin/sh", "-c", "echo $RANK of $WORLD_SIZE"});
  const Result result = dry.finish();
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  std::istringstream lines(result.out);
  for (std::string rank : {"0", "1"}) {
    std::string line;
    REQUIRE(std::getline(lines, line));
    REQUIRE(line.starts_with("localhost: env "));
    Launched shell(std::vector<std::string>{"/bin/sh", "-c", line.substr(line.find(' ') + 1)});
    CHECK(shell.finish().out == rank + " of 2\n");
  }
}

TEST_CASE("mistakes end with exit code 2 and one message") {
  struct {
    std::vector<std::string> arguments;
    std::string message;
  } const cases[] = {
      {{"--num_gpus", "2", "/nowhere/prog"}, "zerorun: cannot run '/nowhere/prog': no such file"},
      {{"--num_gpus", "2", "/etc/passwd"}, "chmod +x /etc/passwd"},
      {{"--num_gpus", "none", "/bin/true"}, "--num_gpus"},
      {{"--num_gpu", "2", "/bin/true"}, "--num_gpu: unknown option"},
      {{"-i", "a:0@b:0", "/bin/true"}, "is not among those of the job"},
      {{}, "no program given"},
  };
  for (const auto& [arguments, message] : cases) {
    Result result = Launched(arguments).finish();
    CAPTURE(arguments);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, Contains(message) && Matches("zerorun: [^\n]*\n"));
  }
}

TEST_CASE("help and version are no mistakes") {
  for (const char* option : {"--help", "-h", "--version"}) {
    Result result = Launched(std::vector<std::string>{option}).finish();
    CHECK(result.exit_code == 0);
    CHECK_THAT(result.out, Contains("zerorun"));
    CHECK(result.err.empty());
  }
}

TEST_CASE("a file that the system cannot run is refused, and nothing is left") {
  Launched folder({.script = ":"});
  CHECK(folder.finish().exit_code == 0);
  const std::string file = folder.folder() + "/prog";
  for (std::string content : {"no program", "#!/nowhere/interpreter\n"}) {
    std::ofstream(file) << content;
    REQUIRE(::chmod(file.c_str(), 0755) == 0);
    Launched job(std::vector<std::string>{"--num_gpus", "2", file});
    Result result = job.finish();
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Contains("cannot run '" + file + "'"));
    job.wait_until_nothing_is_left();
  }
}

TEST_CASE("ranks bound to cores: each core belongs to one rank and has one thread") {
  const std::string script =
      "while read name value; do [ $name = Cpus_allowed_list: ] && echo cores=$value "
      "threads=$OMP_NUM_THREADS; "
      "done </proc/self/status >$DIR/rank$RANK; exit 0";
  const HostCores host = read_host_cores();
  const int ranks = bind_cores(host, 1, "", {})[0].threads > 1 ? 2 : 1;
  Launched job({.options = {"--num_gpus", std::to_string(ranks), "--bind_cores_to_rank"}, .script = script});
  CHECK(job.finish().exit_code == 0);
  const auto shares = bind_cores(host, ranks, "", zerorun::cpu_quota());
  for (int rank = 0; rank < ranks; ++rank) {
    std::string line;
    std::getline(std::ifstream(job.folder() + "/rank" + std::to_string(rank)), line);
    CHECK(line == "cores=" + zerorun::processor_list(shares[rank].processors) +
                      " threads=" + std::to_string(shares[rank].threads));
  }
}

TEST_CASE("binding that cannot be done is refused before a rank starts") {
  const std::string last = std::to_string(read_host_cores().usable.back());
  Result few = Launched({.options = {"--num_gpus", "2", "--bind_cores_to_rank", "--bind_core_list", last},
                         .script = "echo started"})
                   .finish();
  CHECK(few.exit_code == 2);
  CHECK_THAT(few.err, Contains("2 ranks on this host need a core each, and --bind_core_list has 1"));
  CHECK(few.out.empty());
  Result conflict = Launched({.options = {"--bind_cores_to_rank"},
                              .script = "echo started",
                              .environment = {{"GOMP_CPU_AFFINITY", "0"}}})
                        .finish();
  CHECK(conflict.exit_code == 2);
  CHECK_THAT(conflict.err, Contains("GOMP_CPU_AFFINITY"));
  Result alone = Launched({.options = {"--bind_core_list", "0"}, .script = "echo started"}).finish();
  CHECK(alone.exit_code == 2);
  CHECK_THAT(alone.err, Contains("--bind_core_list requires --bind_cores_to_rank"));
  Result empty =
      Launched({.options = {"--bind_cores_to_rank", "--bind_core_list", ""}, .script = "echo started"})
          .finish();
  CHECK(empty.exit_code == 2);
  CHECK_THAT(empty.err, Contains("--bind_core_list: expected a list such as 0-3,5, found an empty text"));
}

TEST_CASE("a dry run uses the topology that HWLOC_SYNTHETIC describes") {
  Result result =
      Launched({.options = {"--num_gpus", "2", "--device", "cpu", "--bind_cores_to_rank", "--dry_run"},
                .script = "echo started",
                .environment = {{"HWLOC_SYNTHETIC", "pack:2 numa:1 core:4 pu:2"}}})
          .finish();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains(" taskset -c 0-7 ") && Contains(" taskset -c 8-15 "));
}
