// Tests the parts of the launcher that start ranks on other hosts and talk to their agents, but without other
// hosts: commands, variables and messages. The tests in tests/cluster use several hosts.
#include <sys/socket.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/listening.h"
#include "base/seal.h"
#include "launcher/hosts/agent_link.h"
#include "launcher/hosts/forwarded_environment.h"
#include "launcher/hosts/frame_socket.h"
#include "launcher/hosts/handshake.h"
#include "launcher/hosts/joining.h"
#include "launcher/hosts/node_order.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/hosts/starter_processes.h"
#include "launcher/rank_labels.h"
#include "tests/launcher/tcp_ends.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using zerorun::UniqueFd;
using zerorun::UserError;
using zerorun::testing::connected;
using Words = std::vector<std::string>;
using namespace zerorun::launcher;

namespace {

StartPlan plan(Starter starter) {
  return {starter, {"--extra", "two words"}, 2222, "/opt/a b/zerorun", {"10.0.0.1", "head"}, 4000, "TICKET"};
}

// A message that encode() does not write.
std::string encoded(const nlohmann::json& message) {
  std::string bytes;
  nlohmann::json::to_cbor(message, bytes);
  return bytes;
}

}  // namespace

TEST_CASE("ssh gets one word for the other host's shell, and the ticket on stdin only") {
  const auto commands = start_commands(plan(Starter::ssh), {"a", "me@b", "c"}, {1, 2});
  REQUIRE(commands.size() == 2);
  const Words& words = commands[0].arguments;
  CHECK(words.front() == "ssh");
  CHECK(words[words.size() - 3] == "--");  // a host's name is no option
  CHECK(words[words.size() - 2] == "me@b");
  CHECK(words.back() == "exec '/opt/a b/zerorun' --agent 10.0.0.1,head 4000 1");
  CHECK(std::ranges::search(words, Words{"-p", "2222", "--extra", "two words"}).begin() != words.end());
  CHECK(commands[0].input == "TICKET\n");
  CHECK(commands[0].node == 1);
  CHECK(commands[1].node == 2);
  for (const std::string& word : words) CHECK_THAT(word, !Contains("TICKET"));
}

TEST_CASE("a process that starts agents gets the launcher's additions behind the user's own values") {
  Console console({"pdsh"}, false);
  Signals signals;
  std::string program = "zerorun";
  char* argv[] = {program.data(), nullptr};
  const Guardian guardian(1, argv);
  StarterProcesses starters(console, 0, signals, guardian);
  ::setenv("PDSH_SSH_ARGS_APPEND", "-i /key", 1);
  StartCommand command = start_commands(plan(Starter::pdsh), {"a"}, {0}).front();
  command.arguments = {"sh", "-c", "test \"$PDSH_SSH_ARGS_APPEND\" = '-i /key -p 2222'"};
  starters.start(command, "/bin/sh");
  ::unsetenv("PDSH_SSH_ARGS_APPEND");
  std::vector<StarterProcesses::Ended> ended;
  for (int round = 0; round < 500 && ended.empty(); ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ended = starters.reap();
  }
  REQUIRE(ended.size() == 1);
  CHECK(ended.front().wait_status == 0);
}

TEST_CASE("a program that starts agents and is not installed is named with the remedy") {
  Console console({"mpirun"}, false);
  Signals signals;
  const Guardian guardian(0, nullptr);
  StarterProcesses starters(console, 0, signals, guardian);
  StartCommand command = start_commands(plan(Starter::openmpi), {"a"}, {0}).front();
  command.candidates = {"no-such-mpirun", "no-such-mpiexec"};
  CHECK_THROWS_WITH(starters.start(command),
                    "agents on other hosts are started by no-such-mpirun or "
                    "no-such-mpiexec, which is not in PATH: install it, or choose "
                    "another --launcher");
}

TEST_CASE("pdsh, mpirun and srun start all agents, and only pdsh has the ticket in its command") {
  for (const auto starter : {Starter::pdsh, Starter::openmpi, Starter::mpich, Starter::slurm}) {
    const auto commands = start_commands(plan(starter), {"a", "b"}, {0, 1});
    REQUIRE(commands.size() == 1);
    CHECK(commands[0].node == -1);
    const bool has_hosts = std::ranges::count(commands[0].arguments, "a,b") == 1;
    CHECK(has_hosts);
    CHECK(std::ranges::count(commands[0].arguments, "two words") == 1);
    bool in_command = false;
    for (const std::string& word : commands[0].arguments)
      in_command |= word.find("TICKET") != std::string::npos && word != "ZERORUN_TICKET";
    CHECK(in_command == (starter == Starter::pdsh));
  }
  CHECK_THROWS_WITH(parse_starter("impi"), Contains("DeepSpeed has impi, zerorun does not support it"));
  CHECK_THROWS_AS(parse_starter("rsh"), UserError);
}

TEST_CASE("variables of libraries are forwarded, and .deepspeed_env runs nothing") {
  const VariableList expected = {{"NCCL_DEBUG", "a=b"}, {"PYTHONPATH", ""}, {"OMP_NUM_THREADS", "2"}};
  CHECK(forwarded_variables(
            {"PATH=/bin", "NCCL_DEBUG=a=b", "PYTHONPATH=", "MY_NCCL=1", "OMP_NUM_THREADS=2"}) == expected);
  const VariableList read =
      parse_environment_file("# a comment\n\nA=$(touch x) \"y\"\r\nB=\nA_1=c=d\n", "file");
  CHECK(read == VariableList{{"A", "$(touch x) \"y\""}, {"B", ""}, {"A_1", "c=d"}});
  CHECK(parse_environment_file("\xEF\xBB\xBF A = x \nB=\"a b\"\nC=\'$D\' \nD=\"\"\n", "file") ==
        VariableList{{"A", "x"}, {"B", "a b"}, {"C", "$D"}, {"D", ""}});
  for (const char* text : {"export A=1\n", "A\n", "=1\n", "1A=2\n", "A B=1\n"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(parse_environment_file(text, "file"), Contains("file:1: expected NAME=VALUE"));
  }
  CHECK(merge_variables({{"A", "1"}, {"B", "2"}}, {{"A", "3"}}) == VariableList{{"B", "2"}, {"A", "3"}});
  // A home folder in which this user may not look has no file.
  const std::string home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
  ::setenv("HOME", ("/" + std::string(5000, 'h')).c_str(), 1);
  CHECK(read_environment_files().empty());
  ::setenv("HOME", home.c_str(), 1);
}

TEST_CASE("a file of variables that is missing, a folder, a pipe or endless is an error that names it") {
  const zerorun::testing::TemporaryFolder folder;
  const std::string home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
  ::setenv("HOME", (folder / "").c_str(), 1);
  const auto refusal = [] { return zerorun::testing::user_error([] { read_environment_files(); }); };
  CHECK(refusal() == "no error");
  ::setenv("DS_ENV_FILE", "nosuch.env", 1);
  CHECK_THAT(refusal(), Contains("DS_ENV_FILE=nosuch.env: there is no such file"));
  ::setenv("DS_ENV_FILE", "/dev/zero", 1);
  CHECK_THAT(refusal(), Contains("cannot read the variables in /dev/zero: it has more than 1 MiB"));
  ::unsetenv("DS_ENV_FILE");
  std::filesystem::create_directory(folder / ".deepspeed_env");
  CHECK_THAT(refusal(), Contains(".deepspeed_env: it is a directory"));
  std::filesystem::remove(folder / ".deepspeed_env");
  REQUIRE(::mkfifo((folder / ".deepspeed_env").c_str(), 0600) == 0);
  CHECK_THAT(refusal(), Contains(".deepspeed_env: it is a pipe into which nobody writes"));
  ::setenv("HOME", home.c_str(), 1);
}

TEST_CASE("an order with any bytes is the same after it was encoded and decoded") {
  NodeOrder order;
  order.nodes = {{"a", {0, 1}}, {"b", {3}}};
  order.node = 1;
  order.slots_named = true;
  order.arguments = {"prog", "", "\xff\xfe not UTF-8", "line\nbreak"};
  order.variables = {{"A", "\x80"}, {"B", ""}};
  order.folder = "/f";
  order.venv_script = "v";
  order.token = "t";
  order.device = "cpu";
  order.comm = "gloo";
  order.timeout_seconds = 0.5;
  order.terminal = true;
  order.timeline = "/t.tar";
  order.timeline_steps = "1:2";
  order.grace = std::chrono::milliseconds(7);
  order.failure_grace = std::chrono::milliseconds(8);
  order.hung_after = std::chrono::milliseconds(9);
  order.bind_cores = true;
  order.bind_core_list = "0-3";
  order.logs.one_file_folder = "one";
  order.logs.folder = "folder";
  order.logs.redirects.all = 1;
  order.logs.redirects.some = {{0, 2}};
  order.logs.tee.all = 3;
  order.logs.printed = std::vector{0, 2};
  order.logs.run = "run";
  order.port = 0;
  order.full_world_size = 8;
  order.keeper = {4711, "ticket", "tag", "memory tag 1 /a /b"};
  CHECK(decode<NodeOrder>(encode(order)) == order);
  order.port.reset();
  order.logs.printed.reset();
  CHECK(decode<NodeOrder>(encode(order)) == order);

  RankFailure failure{3, 9, "cause \xff", {"one", ""}, {"memory of rank 3"}};
  CHECK(decode<RankFailure>(encode(failure)) == failure);
  failure.steps = int64_t{1} << 40;
  failure.killed_from_outside = true;
  CHECK(decode<RankFailure>(encode(failure)) == failure);
  const RankFailure hung{.rank = 3, .wait_status = 256, .cause = "cause", .last_lines = {}, .is_hung = true};
  CHECK(decode<RankFailure>(encode(hung)) == hung);
  const KeeperHello keeper{"tag", "memory tag 1 /a /b", 4711, 12};
  CHECK(decode<KeeperHello>(encode(keeper)) == keeper);
  const AgentHello hello{"0.1.0", -1, "b", "a: 2"};
  CHECK(decode<AgentHello>(encode(hello)) == hello);
  const auto output =
      decode<RankOutput>(encode(RankOutput{5, Stream::err, std::string_view("a\0b", 3)}) + "");
  CHECK(output.rank == 5);
  CHECK(output.stream == Stream::err);
  for (const std::string& bad :
       {std::string(), std::string("\xff\xff"), encode(hello), std::string(4000000, '\x81')}) {
    CHECK_THROWS_WITH(decode<NodeOrder>(bad), Contains("invalid message between launcher and agent"));
  }
  CHECK_THROWS(decode<RankOutput>("abc"));
}

TEST_CASE("an address or a number that cannot be meant is refused") {
  CHECK(decode<MeetingPoint>(encode(MeetingPoint{"fe80::1%eth0", 65535})).port == 65535);
  for (const MeetingPoint& point : {MeetingPoint{"a\nb", 1},
                                    {"a\x1b[2J", 1},
                                    {"a;b", 1},
                                    {"-oX", 1},
                                    {std::string("a\0b", 3), 1},
                                    {"a", 0},
                                    {"a", -5},
                                    {"a", 65536}}) {
    CAPTURE(point.address, point.port);
    CHECK_THROWS_WITH(decode<MeetingPoint>(encode(point)), Contains("invalid message"));
  }
  CHECK_THROWS_WITH(decode<MeetingPoint>(encoded({"a", (int64_t{1} << 40) + 80})),
                    Contains("expected a whole number from 1 to 65535"));
  // As int, each of these numbers would be the one behind it, or a number that no system knows.
  const nlohmann::json no_numbers = {(int64_t{1} << 32) + 1, UINT64_MAX, -2, 0.5, true, "1"};
  for (const nlohmann::json& number : no_numbers) {
    CAPTURE(number.dump());
    CHECK_THROWS_WITH(decode<AgentHello>(encoded({"1.0", number, "a", ""})),
                      Contains("from -1 to 2147483647"));
    CHECK_THROWS_WITH(decode<NodeResult>(encoded({number, 0})), Contains("from 0 to 255"));
    CHECK_THROWS_WITH(decode<NodeResult>(encoded({0, number})), Contains("from 0 to 64"));
    CHECK_THROWS_WITH(decode<StoppedRank>(encoded({number, "stopped"})), Contains("from 0 to 2147483647"));
    CHECK_THROWS_WITH(decode<RankFailure>(encoded({number, 0, "", nlohmann::json::array()})),
                      Contains("from 0 to 2147483647"));
    CHECK_THROWS_WITH(decode<RankFailure>(encoded({0, number, "", nlohmann::json::array()})),
                      Contains("from 0 to 65535"));
    NodeOrder order;
    order.nodes = {{"a", {0}}};
    nlohmann::json message = nlohmann::json::from_cbor(encode(order));
    message["nodes"][0][1][0] = number;
    CHECK_THROWS_WITH(decode<NodeOrder>(encoded(message)), Contains("from 0 to 2147483647"));
    message = nlohmann::json::from_cbor(encode(order));
    message["logs"]["tee"][0] = number;
    CHECK_THROWS_WITH(decode<NodeOrder>(encoded(message)), Contains("from 0 to 3"));
  }
  for (const auto& [type, payload] :
       std::vector<std::pair<FrameType, std::string>>{{FrameType::end, "abc"},
                                                      {FrameType::end, "-1"},
                                                      {FrameType::end, "9223372036854775807"},
                                                      {FrameType::end, "3600001"},
                                                      {FrameType::read, ""},
                                                      {FrameType::read, "1x"}}) {
    CAPTURE(payload);
    auto [mine, other] = connected();
    AgentLink link{FrameSocket(std::move(mine))};
    FrameSocket launcher(std::move(other));
    launcher.send(type, payload);
    launcher.service();
    const auto receive = [&] {
      for (int i = 0; i < 100; ++i) {
        link.service();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    };
    CHECK_THROWS_WITH(receive(), Contains("the launcher sent '" + payload + "': expected a number"));
  }
}

TEST_CASE("a launcher that joins with a number takes no other one") {
  const zerorun::ListeningSocket listening = zerorun::listen_on("127.0.0.1", 0);
  const zerorun::Seal ticket("TICKET");
  NodeOrder order;
  order.nodes = {{"a", {0}}, {"b", {0}}, {"c", {0}}};
  order.node = 1;
  std::thread launcher([&] {
    AgentGreeting greeting(UniqueFd(::accept4(listening.fd.get(), nullptr, nullptr, SOCK_CLOEXEC)), ticket);
    while (greeting.service() && !greeting.is_done()) continue;
    FrameSocket socket(greeting.take());
    socket.send(FrameType::order, encode(order));
    for (int i = 0; i < 500 && !socket.is_closed(); ++i) {
      socket.service();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  JoinPlan joining{{"127.0.0.1"}, listening.port,           "TICKET", {"1.0", 2, "c", ""},
                   order,         std::chrono::seconds(10), true};
  CHECK_THROWS_WITH(join_job(joining, 0, nullptr), Contains("expected 2, that of --node_rank"));
  launcher.join();
}

TEST_CASE("the options for streams in files are read as torchrun reads them") {
  CHECK(parse_stream_choice("3", "-r").of(7) == 3);
  const auto some = parse_stream_choice("0:1,2:3", "-r");
  CHECK(some.of(0) == 1);
  CHECK(some.of(1) == 0);
  CHECK(some.of(2) == 3);
  for (const char* text : {"4", "", "0:4", "x:1", "0:1,", "-1"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_stream_choice(text, "-r"), UserError);
  }
  CHECK(parse_rank_list("0,2", "-f") == std::vector{0, 2});
  CHECK_THROWS_WITH(parse_rank_list("0,a", "--local_ranks_filter"),
                    Contains("--local_ranks_filter 0,a: 'a'"));
  CHECK(rank_labels({{"a", {0}}}) == Words{"rank 0"});
  CHECK(rank_labels({{"a", {0}}, {"b", {0, 1}}}, 1) == Words{"b rank 1", "b rank 2"});
}
