#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/launch_options.h"

using Catch::Matchers::Contains;
using zerorun::Information;
using zerorun::LaunchOptions;
using Words = std::vector<std::string>;

namespace {

auto parse(const Words& words) {
  std::vector<const char*> argv = {"zerorun"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return zerorun::parse_launch_options(static_cast<int>(argv.size()), argv.data());
}

LaunchOptions options(const Words& words) {
  return std::get<LaunchOptions>(parse(words));
}

std::string mistake(const Words& words) {
  try {
    parse(words);
  } catch (const zerorun::UserError& error) {
    return error.what();
  }
  return "no mistake";
}

}  // namespace

TEST_CASE("defaults") {
  LaunchOptions found = options({"prog"});
  CHECK_FALSE(found.ranks_per_node);
  CHECK_FALSE(found.nodes);
  CHECK_FALSE(found.node_rank);
  CHECK(found.hostfile.empty());
  CHECK(found.exclude.empty());
  CHECK_FALSE((found.module || found.no_python || found.dry_run));
  CHECK(found.include.empty());
  CHECK(found.master_addr.empty());
  CHECK_FALSE(found.master_port);
  CHECK(found.device.empty());
  CHECK(found.comm.empty());
  CHECK(found.timeout_seconds == 600);
  CHECK(found.grace.count() == 3000);
  CHECK(found.command == Words{"prog"});
}

TEST_CASE("options are read in DeepSpeed's and in torchrun's spelling") {
  LaunchOptions found = options({"--num_accelerators=4", "--master_addr", "::1", "--master_port", "2000",
                                 "--timeout", "1.5", "--grace", "0", "prog"});
  CHECK(found.ranks_per_node == 4);
  CHECK(found.master_addr == "::1");
  CHECK(found.master_port == 2000);
  CHECK(found.timeout_seconds == 1.5);
  CHECK(found.grace.count() == 0);
  CHECK(options({"-i", "localhost:1", "prog"}).include == "localhost:1");
  CHECK(options({"-e", "a:1", "prog"}).exclude == "a:1");
  CHECK(options({"-H", "hosts", "prog"}).hostfile == "hosts");
  CHECK(options({"--num_nodes", "3", "prog"}).nodes == 3);
  CHECK(options({"--no_ssh", "--node_rank=0", "prog"}).node_rank == 0);
  // torchrun's spellings
  found = options(
      {"--nnodes=2", "--nproc-per-node=4", "--node-rank=1", "--master-addr=a", "--master-port=1", "p"});
  CHECK(found.nodes == 2);
  CHECK(found.ranks_per_node == 4);
  CHECK(found.node_rank == 1);
  CHECK(found.master_addr == "a");
  CHECK(found.master_port == 1);
  CHECK(options({"--module", "package.tool"}).module);
  CHECK(options({"--no_python", "a.py"}).no_python);
  CHECK(options({"--dry_run", "--no_local_rank", "p"}).dry_run);
  for (const char* device : {"auto", "cpu", "cuda"})
    CHECK(options({"--device", device, "prog"}).device == device);
  for (const char* comm : {"auto", "shm", "gloo"}) CHECK(options({"--comm", comm, "prog"}).comm == comm);
}

TEST_CASE("all words after the program's name belong to the program") {
  const Words command = {"prog", "--num_gpus", "9",  "--help", "two words", "",  "-i",
                         "--",   "-x",         "++", "--a=b",  "[1,2]",     "%", "--version"};
  Words words = {"--num_gpus", "2"};
  words.insert(words.end(), command.begin(), command.end());
  CHECK(options(words).ranks_per_node == 2);
  CHECK(options(words).command == command);
  CHECK(options({"--num_gpus", "2", "--", "-prog", "--help"}).command == Words{"-prog", "--help"});
}

TEST_CASE("--help has examples, --version prints the version") {
  CHECK_THAT(std::get<Information>(parse({"--help"})).text,
             Contains("--num_gpus") && Contains("build/bin/gpt2 --deepspeed ds_config.json"));
  CHECK_THAT(std::get<Information>(parse({"--version"})).text, Catch::Matchers::Matches("zerorun [0-9.]+\n"));
}

TEST_CASE("mistakes name the option, what was expected and what was found") {
  CHECK_THAT(mistake({}), Contains("no program given"));
  CHECK_THAT(mistake({"--num_gpus", "2"}), Contains("no program given"));
  CHECK_THAT(mistake({"--num_gpus", "0", "p"}),
             Contains("--num_gpus") && Contains("from 1 to") && Contains("'0'"));
  CHECK_THAT(mistake({"--num_gpus", "2.5", "p"}), Contains("--num_gpus") && Contains("'2.5'"));
  CHECK_THAT(mistake({"--num_gpus", "99999999999", "p"}), Contains("--num_gpus"));
  CHECK_THAT(mistake({"--master_port", "65536", "p"}), Contains("--master_port") && Contains("'65536'"));
  CHECK_THAT(mistake({"--timeout", "0", "p"}), Contains("--timeout") && Contains("more than 0"));
  CHECK_THAT(mistake({"--timeout", "nan", "p"}), Contains("--timeout"));
  CHECK_THAT(mistake({"--grace", "-1", "p"}), Contains("--grace"));
  CHECK_THAT(mistake({"--master_addr", "", "p"}), Contains("--master_addr"));
  CHECK_THAT(mistake({"--device", "gpu", "p"}),
             Contains("--device") && Contains("expected auto, cpu or cuda") && Contains("'gpu'"));
  CHECK_THAT(mistake({"--comm", "nccl", "p"}),
             Contains("--comm") && Contains("expected auto, shm or gloo") && Contains("'nccl'"));
  CHECK_THAT(mistake({"--num_gpus", "2", "--include", "localhost", "p"}),
             Contains("--num_gpus") && Contains("--include"));
  CHECK_THAT(mistake({"--num_gpu", "2", "p"}), Contains("--num_gpu: unknown option"));
  CHECK_THAT(mistake({"--elastic_training", "p"}),
             Contains("--elastic_training") && Contains("does not support"));
  for (const char* option : {"--hostfile", "--include", "--exclude"})
    CHECK_THAT(mistake({option, "", "p"}), Contains(option) && Contains("found an empty text"));
  CHECK_THAT(mistake({"--include", "a", "--exclude", "b", "p"}),
             Contains("--include") && Contains("--exclude"));
  CHECK_THAT(mistake({"--num_nodes", "2", "--exclude", "b", "p"}),
             Contains("--num_nodes") && Contains("--exclude"));
  CHECK_THAT(mistake({"--no_ssh", "p"}), Contains("--no_ssh") && Contains("--node_rank"));
  CHECK_THAT(mistake({"--node_rank", "-1", "p"}), Contains("--node_rank"));
  CHECK_THAT(mistake({"--module", "--no_python", "p"}), Contains("--module") && Contains("--no_python"));
}
