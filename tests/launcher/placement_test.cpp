// Slots, GPUs and the environment of a rank.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/machine.h"
#include "launcher/program_path.h"
#include "launcher/rank_environment.h"
#include "launcher/slots.h"

using Catch::Matchers::Contains;
using Slots = std::vector<int>;
using zerorun::UserError;

TEST_CASE("an include filter names slots of this machine") {
  CHECK(zerorun::parse_include("localhost:0,2", "node7.example.org") == Slots{0, 2});
  CHECK(zerorun::parse_include("127.0.0.1:3", "node7") == Slots{3});
  CHECK(zerorun::parse_include("node7:1,0", "node7.example.org") == Slots{1, 0});
  CHECK(zerorun::parse_include("node7.example.org:1", "node7.example.org") == Slots{1});
  CHECK(zerorun::parse_include("localhost", "node7").empty());
}

TEST_CASE("filters that are refused") {
  CHECK_THROWS_WITH(zerorun::parse_include("localhost:0@other:0", "node7"),
                    Contains("several hosts are not offered"));
  CHECK_THROWS_WITH(
      zerorun::parse_include("other:0", "node7"),
      Contains("'other' is not this machine (node7)") && Contains("several hosts are not offered"));
  for (const char* filter :
       {"", ":0", "localhost:", "localhost:0,", "localhost:,1", "localhost:-1", "localhost:x",
        "localhost:0-2", "localhost:0 ,1", "localhost:99999999999", "localhost:1,1", "node:0"}) {
    CAPTURE(filter);
    CHECK_THROWS_AS(zerorun::parse_include(filter, "node7"), UserError);
  }
}

TEST_CASE("slots are checked against the GPUs, where there are any") {
  CHECK_NOTHROW(zerorun::check_slots({0, 3}, 4));
  CHECK_NOTHROW(zerorun::check_slots({9}, 0));
  CHECK_THROWS_WITH(zerorun::check_slots({0, 9}, 4), Contains("slot 9 does not exist") && Contains("4 GPUs"));
}

TEST_CASE("GPUs are counted by their device files") {
  char folder[] = "/tmp/zerorun_devices_XXXXXX";
  REQUIRE(mkdtemp(folder));
  for (const char* name :
       {"nvidia", "nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia1x", "anvidia3"}) {
    std::ofstream(std::string(folder) + "/" + name) << "";
  }
  CHECK(zerorun::count_gpus(folder) == 2);
  std::filesystem::remove_all(folder);
  CHECK(zerorun::count_gpus(folder) == 0);
}

TEST_CASE("programs that cannot be run are refused with a remedy") {
  CHECK(zerorun::find_program("/bin/sh") == "/bin/sh");
  CHECK_THAT(zerorun::find_program("sh"), Catch::Matchers::EndsWith("/sh"));
  CHECK_THROWS_WITH(zerorun::find_program("/nowhere/prog"),
                    Contains("/nowhere/prog") && Contains("build it"));
  CHECK_THROWS_WITH(zerorun::find_program("/etc/passwd"), Contains("chmod +x /etc/passwd"));
  CHECK_THROWS_WITH(zerorun::find_program("/tmp"), Contains("directory"));
  CHECK_THROWS_WITH(zerorun::find_program("no_such_program_here"), Contains("PATH"));
  CHECK_THROWS_AS(zerorun::find_program(""), UserError);
}

namespace {

std::string value_of(const std::vector<std::string>& environment, const std::string& name) {
  std::string found = "(none)";
  for (const std::string& entry : environment) {
    if (!entry.starts_with(name + "=")) continue;
    REQUIRE(found == "(none)");  // the variable occurs only once
    found = entry.substr(name.size() + 1);
  }
  return found;
}

}  // namespace

TEST_CASE("the environment of a rank") {
  zerorun::JobEnvironment job;
  job.world_size = 4;
  job.master_addr = "127.0.0.1";
  job.master_port = 1234;
  job.listening_fd = 5;
  job.token = "token";
  job.timeout_seconds = 2.5;
  job.threads_per_rank = 3;
  const std::vector<std::string> inherited = {"HOME=/h",
                                              "RANK=9",
                                              "WORLD_SIZE=",
                                              "TORCHELASTIC_USE_AGENT_STORE=True",
                                              "ZERORUN_JOB=of a job around us",
                                              "ZERORUN_LISTEN_FD=9",
                                              "ZERORUN_TERMINAL=1",
                                              "CUDA_VISIBLE_DEVICES=7",
                                              "ZERORUN_DEVICE=cuda",
                                              "OMP_NUM_THREADS="};
  auto rank2 = zerorun::rank_environment(inherited, job, 2);
  CHECK(value_of(rank2, "HOME") == "/h");
  CHECK(value_of(rank2, "RANK") == "2");
  CHECK(value_of(rank2, "LOCAL_RANK") == "2");
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"})
    CHECK(value_of(rank2, name) == "4");
  CHECK(value_of(rank2, "MASTER_ADDR") == "127.0.0.1");
  CHECK(value_of(rank2, "MASTER_PORT") == "1234");
  CHECK(value_of(rank2, "ZERORUN_JOB") == "token");
  CHECK(value_of(rank2, "ZERORUN_LISTEN_FD") == "(none)");
  CHECK(value_of(rank2, "ZERORUN_TIMEOUT") == "2.5");
  CHECK(value_of(rank2, "OMP_NUM_THREADS") == "3");
  CHECK(value_of(rank2, "CUDA_VISIBLE_DEVICES") == "7");
  CHECK(value_of(rank2, "ZERORUN_DEVICE") == "cuda");
  CHECK(value_of(rank2, "ZERORUN_COMM") == "(none)");
  CHECK(value_of(rank2, "ZERORUN_TERMINAL") == "(none)");
  CHECK(value_of(rank2, "TORCHELASTIC_USE_AGENT_STORE") == "(none)");

  job.terminal = true;
  job.visible_devices = "0,2";
  job.device = "cpu";
  job.comm = "gloo";
  job.timeout_seconds = 600;
  auto rank0 = zerorun::rank_environment(
      {"OMP_NUM_THREADS=8", "CUDA_VISIBLE_DEVICES=7", "ZERORUN_DEVICE=cuda"}, job, 0);
  CHECK(value_of(rank0, "ZERORUN_LISTEN_FD") == "5");
  CHECK(value_of(rank0, "ZERORUN_DEVICE") == "cpu");
  CHECK(value_of(rank0, "ZERORUN_COMM") == "gloo");
  CHECK(value_of(rank0, "ZERORUN_TERMINAL") == "1");
  CHECK(value_of(rank0, "CUDA_VISIBLE_DEVICES") == "0,2");
  CHECK(value_of(rank0, "OMP_NUM_THREADS") == "8");
  CHECK(value_of(rank0, "ZERORUN_TIMEOUT") == "600");
}

TEST_CASE("the devices that ranks see") {
  CHECK(zerorun::choose_visible_devices({2, 0}, "5,6", 4, 2) == "2,0");
  CHECK(zerorun::choose_visible_devices({2, 0}, "", 0, 2) == "2,0");
  CHECK(zerorun::choose_visible_devices({}, "", 4, 2) == "0,1");
  CHECK(zerorun::choose_visible_devices({}, "", 2, 8) == "0,1");
  CHECK(zerorun::choose_visible_devices({}, "5,6,7", 8, 2) == "5,6");
  CHECK(zerorun::choose_visible_devices({}, "5", 0, 2) == "");
}
