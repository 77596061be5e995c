#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/commands/doctor_command.h"
#include "launcher/hosts/host_name.h"
#include "launcher/hosts/launch_options.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;
using namespace zerorun::launcher;

namespace {

auto parse(const Words& words) {
  std::vector<const char*> argv = {"zerorun"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_launch_options(static_cast<int>(argv.size()), argv.data());
}

LaunchOptions options(const Words& words) {
  return std::get<LaunchOptions>(parse(words));
}

std::string mistake(const Words& words) {
  return zerorun::testing::user_error([&] { parse(words); });
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
  CHECK(options({"--no_ssh", "--node_rank=0", "-H", "h", "prog"}).node_rank == 0);
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
  CHECK(options({"--as-deepspeed", "a.py"}).as_deepspeed);
  CHECK_FALSE(options({"--as-deepspeed", "a.py"}).pass_local_rank);
  CHECK(options({"--as_deepspeed", "--pass_local_rank", "a.py"}).pass_local_rank);
  CHECK_FALSE(options({"--as_deepspeed", "--pass_local_rank", "--no_local_rank", "a.py"}).pass_local_rank);
  for (const char* device : {"auto", "cpu", "cuda"})
    CHECK(options({"--device", device, "prog"}).device == device);
  for (const char* comm : {"auto", "shm", "two-level", "gloo"})
    CHECK(options({"--comm", comm, "prog"}).comm == comm);
}

TEST_CASE("an empty text after = is the option's value, and an option is no value") {
  CHECK(options({"--rdzv_id=", "--nproc_per_node=2", "./p", "a"}).ranks_per_node == 2);
  CHECK(options({"--rdzv_id=", "--nproc_per_node=2", "./p", "a"}).command == Words{"./p", "a"});
  CHECK(options({"--launcher_args=", "--num_gpus=2", "./p"}).ranks_per_node == 2);
  for (const char* option : {"--venv_script=", "--master_addr=", "--hostfile=", "--local_addr="})
    CHECK_THAT(mistake({option, "./p", "./p"}), Contains("found an empty text"));
  for (const char* option : {"--num_gpus=", "--num_nodes="})
    CHECK_THAT(mistake({option, "./p", "./p"}), Contains("found ''"));
  CHECK_THAT(mistake({"--rdzv_id", "--nproc_per_node=2", "./p"}),
             Contains("--rdzv_id: expected a value, found '--nproc_per_node=2'"));
  CHECK_THAT(mistake({"--num_gpus"}), Contains("--num_gpus"));
  CHECK(options({"--launcher_args=--mpi=pmix", "p"}).launcher_args == Words{"--mpi=pmix"});
  CHECK(options({"--launcher_args", "--mpi pmix", "p"}).launcher_args == Words{"--mpi", "pmix"});
  CHECK(options({"--launcher_args", "-v", "p"}).launcher_args == Words{"-v"});
  CHECK(options({"--launcher_args", "--allow-run-as-root", "p"}).launcher_args ==
        Words{"--allow-run-as-root"});
  CHECK(options({"--num_gpus", "1", "--num_gpus", "2", "p"}).ranks_per_node == 2);  // as argparse: the last
  CHECK(options({"-H", "a", "-i", "x:1", "-q", "p", "-q"}).command == Words{"p", "-q"});
  CHECK_THAT(mistake({"--quiet=", "p"}), Contains("--quiet"));
  for (const char* word : {"-q", "-m", "-H"}) {
    CHECK_THAT(mistake({"--rdzv_id", word, "./p"}),
               Contains("--rdzv_id: expected a value, found '" + std::string(word) + "'"));
  }
  CHECK(options({"--rdzv_id", "-7", "./p"}).rdzv_id == "-7");  // a negative number is no option
  CHECK(options({"--rdzv_id", "-a b", "./p"}).rdzv_id == "-a b");
  CHECK(options({"-H=hf", "p"}).hostfile == "hf");
  CHECK(options({"-i=localhost:1", "p", "-i=2"}).include == "localhost:1");
  CHECK_THAT(mistake({"--hostfile=x", "--hostfile=", "p"}), Contains("--hostfile: expected a file"));
  CHECK(options({"--hostfile=", "--hostfile=x", "p"}).hostfile == "x");
}

TEST_CASE("a number has digits only, and means what it says") {
  for (const char* option : {"--num_gpus", "--num_nodes", "--node_rank", "--master_port", "--ssh_port"}) {
    for (const char* number : {"+2", "0x2", "2 ", " 2", "2,0", "1_0"}) {
      CAPTURE(option, number);
      CHECK_THAT(mistake({option, number, "p"}),
                 Contains(option) && Contains("found '" + std::string(number)));
    }
  }
  CHECK(options({"--num_gpus", "010", "p"}).ranks_per_node == 10);
  CHECK(options({"--nnodes=2", "--node_rank", "010", "p"}).node_rank == 10);
  CHECK(options({"--master_port", "02000", "p"}).master_port == 2000);
}

TEST_CASE("the defaults of DeepSpeed's launcher, which wrappers write out, count as not given") {
  const LaunchOptions found = options({"--num_gpus", "-1", "--num_nodes=-1", "--node_rank", "-1", "--include",
                                       "localhost:0", "p", "--num_gpus", "-1"});
  CHECK(found.include == "localhost:0");
  CHECK_FALSE((found.nodes || found.ranks_per_node || found.node_rank));
  CHECK(found.command == Words{"p", "--num_gpus", "-1"});
}

TEST_CASE("options of torchrun that ask for this host leave DeepSpeed's usual hostfile alone") {
  for (const Words& line : {Words{"--standalone", "p"},
                            {"--nnodes=1", "--rdzv_endpoint=localhost:0", "--nproc_per_node=1", "p"},
                            {"--rdzv_endpoint=localhost:29411", "--nproc_per_node=2", "p"},
                            {"--rdzv_endpoint=[::1]:0", "--nproc_per_node=2", "p"},
                            {"--local_addr=10.0.0.1", "--nproc_per_node=2", "p"},
                            {"--node_rank", "0", "--nproc_per_node=2", "p"},
                            {"--nproc_per_node=gpu", "p"},
                            {"--nproc_per_node=cpu", "p"},
                            {"--nproc_per_node=auto", "p"}}) {
    CAPTURE(line);
    CHECK(options(line).this_host_alone);
    CHECK(options(line).rdzv_endpoint.empty());
  }
  for (const Words& line : {Words{"p"},
                            {"--num_gpus", "2", "p"},
                            {"--num_nodes", "1", "p"},
                            {"--nnodes=2", "--nproc_per_node=2", "--rdzv_endpoint=a:1", "p"}}) {
    CAPTURE(line);
    CHECK_FALSE(options(line).this_host_alone);
  }
  // ::0 is an IPv6 address, not port 0 of an empty name.
  CHECK(options({"--nnodes=2", "--rdzv_endpoint", "::0", "p"}).rdzv_endpoint == "::0");
  CHECK_THAT(mistake({"--nnodes=2", "--rdzv_endpoint", "[::1]:0", "p"}), Contains("cannot find a free port"));
  CHECK_THAT(mistake({"--no_ssh", "--node_rank", "0", "p"}), Contains("--no_ssh needs --hostfile"));
}

TEST_CASE("an address that is none of a host is refused at once") {
  for (const char* none : {"-oX", "-x", "a b", "a;b", "$(hostname)", "a\x1b[2J", "a/b", "u@a"}) {
    CAPTURE(none);
    const std::string address = none;
    CHECK_THAT(mistake({"--nnodes=2", "--master_addr=" + address, "p"}),
               Contains("--master_addr: expected the name or address of a host; found '" + address + "'"));
    for (const char* port : {"", ":1", ":0"}) {
      CHECK_THAT(mistake({"--nnodes=2", "--rdzv_endpoint=" + address + port, "p"}),
                 Contains("--rdzv_endpoint: expected HOST or HOST:PORT") &&
                     Contains("found '" + address + port + "'"));
    }
  }
  for (const char* none : {"a:", "a:65536", "a:1x", "a:-1", ":1", "[::1", "::1]:5", "[]:1"})
    CHECK_THAT(mistake({"--nnodes=2", std::string("--rdzv_endpoint=") + none, "p"}), Contains("HOST:PORT"));
  for (const char* good : {"a", "10.0.0.1", "node-1.a_b", "::1", "fe80::1%eth0"})
    CHECK(options({"--nnodes=2", "--master_addr", good, "p"}).master_addr == good);
}

TEST_CASE("an endpoint has an address and a port") {
  struct Row {
    const char* text;
    const char* address;
    int port;
  };
  for (const Row& row : {Row{"a", "a", kDefaultPort},
                         {"a:1", "a", 1},
                         {"10.0.0.1:0", "10.0.0.1", 0},
                         {"[::1]:65535", "::1", 65535},
                         {"[fe80::1%eth0]", "fe80::1%eth0", kDefaultPort},
                         {"::0", "::0", kDefaultPort}}) {
    CAPTURE(row.text);
    const Endpoint endpoint = parse_endpoint(row.text);
    CHECK(endpoint.address == row.address);
    CHECK(endpoint.port == row.port);
  }
}

TEST_CASE("doctor examines this host unless its options say otherwise") {
  const auto arguments = [](const Words& words, int gpus) {
    Words with_program = words;
    with_program.emplace_back("p");
    return with_doctor_defaults(words, options(with_program), gpus);
  };
  CHECK(arguments({}, 0) == Words{"--standalone", "--num_gpus", "2", "--device", "cpu", "--timeout", "30"});
  CHECK(arguments({}, 4) == Words{"--standalone", "--timeout", "30"});
  CHECK(arguments({"--hostfile", "h"}, 0) == Words{"--hostfile", "h", "--timeout", "30"});
  CHECK(arguments({"--num_gpus=2", "--timeout=5"}, 0) == Words{"--num_gpus=2", "--timeout=5"});
}

TEST_CASE("torchrun's and DeepSpeed's lines for one host are read as they mean it") {
  const std::vector<Words> lines = {
      {"--standalone", "--nnodes=1", "--nproc_per_node=2", "./p"},
      {"--standalone", "--nnodes", "1", "--node_rank", "0", "--nproc-per-node", "2", "./p"},
      {"--standalone", "--rdzv_endpoint=localhost:29400", "--nproc_per_node=2", "./p"},
      {"--nnodes=1", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "--nproc_per_node=2", "./p"},
      {"--nnodes=1:1", "--nproc_per_node=2", "--max_restarts=0", "--rdzv-id=7", "./p"},
      {"--nproc_per_node=2", "--local_addr=10.0.0.1", "--monitor-interval=5", "--start-method=spawn", "./p"},
      {"--num_gpus", "2", "--num_nodes", "-1", "./p"}};
  for (const Words& line : lines) {
    std::string text;
    for (const std::string& word : line) text += word + " ";
    CAPTURE(text);
    const LaunchOptions found = options(line);
    CHECK(found.ranks_per_node == 2);
    CHECK(found.nodes.value_or(1) == 1);
    CHECK_FALSE(found.node_rank);
    CHECK(found.rdzv_endpoint.empty());
    CHECK(found.command == Words{"./p"});
  }
  CHECK_FALSE(options({"--num_gpus", "-1", "p"}).ranks_per_node);
  CHECK(options({"--num_gpus", "-1", "p"}).ranks_by_kind.empty());
  for (const char* kind : {"gpu", "cpu", "auto"})
    CHECK(options({std::string("--nproc_per_node=") + kind, "p"}).ranks_by_kind == kind);
  CHECK(options({"-m", "package.tool"}).module);

  CHECK_THAT(mistake({"--standalone", "--nnodes=2", "p"}), Contains("leave out --nnodes"));
  CHECK_THAT(mistake({"--standalone", "--hostfile", "h", "p"}), Contains("leave out --hostfile"));
  CHECK_THAT(mistake({"--nnodes=1:4", "p"}), Contains("fixed number of hosts") && Contains("'1:4'"));
  CHECK_THAT(mistake({"--nnodes=2", "--rdzv_endpoint=a:0", "p"}), Contains("cannot find a free port"));
  CHECK(options({"--max_restarts=3", "p"}).max_restarts == 3);
  CHECK_THAT(mistake({"--max_restarts=-1", "p"}), Contains("found '-1'"));
  CHECK(options({"--max_restarts=3", "p"}).hold_every == 0);
  CHECK(options({"--max_restarts=3", "--hold-every=2", "p"}).hold_every == 2);
  CHECK_THAT(mistake({"--max_restarts=3", "--hold_every=0", "p"}), Contains("found '0'"));
  CHECK_THAT(mistake({"--hold_every=1", "p"}), Contains("--max_restarts"));
  CHECK(options({"--max_restarts=3", "p"}).min_nodes == 0);
  const LaunchOptions fewer = options({"--max_restarts=3", "--min_nodes=2", "--host_wait=0", "p"});
  CHECK((fewer.min_nodes == 2 && fewer.host_wait_seconds == 0));
  CHECK_THAT(mistake({"--min_nodes=1", "p"}), Contains("--max_restarts"));
  CHECK_THAT(mistake({"--max_restarts=3", "--host_wait=5", "p"}), Contains("--min_nodes"));
  CHECK_FALSE(options({"p"}).hung_after_seconds);
  CHECK(options({"--hung_after=2.5", "p"}).hung_after_seconds == 2.5);
  CHECK(options({"--hung-after", "3", "p"}).hung_after_seconds == 3);
  CHECK_THAT(mistake({"--hung_after=0", "p"}), Contains("--hung_after") && Contains("found '0'"));
  CHECK_THAT(mistake({"--nnodes=2", "--local_addr=a", "p"}), Contains("--local_addr"));
  CHECK_THAT(mistake({"--nproc_per_node=all", "p"}), Contains("gpu, cpu or auto; found 'all'"));
  for (const char* option :
       {"--rdzv_conf=a=1", "--rdzv-conf", "--role=x", "--run-path", "--numa-binding=node"})
    CHECK_THAT(mistake({option, "p"}), Contains("torchrun has this option"));
}

TEST_CASE("a timeline has an archive, and steps in order") {
  const LaunchOptions given = options({"--timeline", "t.tar", "--timeline-steps", "3:7", "p"});
  CHECK(given.timeline == "t.tar");
  CHECK(given.timeline_steps == "3:7");
  CHECK(options({"p"}).timeline.empty());
  CHECK_THAT(mistake({"--timeline=t.tar", "--timeline-steps=7:3", "p"}),
             Contains("such as 10:20; found '7:3'"));
  CHECK_THAT(mistake({"--timeline-steps=3:7", "p"}), Contains("--timeline"));
  CHECK_THAT(mistake({"--timeline=", "p"}), Contains("--timeline: expected a value, found an empty text"));
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
             Contains("--comm") && Contains("expected auto, shm, two-level or gloo") && Contains("'nccl'"));
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
  CHECK_THAT(mistake({"--node_rank", "-2", "p"}), Contains("--node_rank"));
  CHECK_THAT(mistake({"--module", "--no_python", "p"}), Contains("--module") && Contains("--no_python"));
}
