// Tests launchers that users start on each host of a job (--node_rank, --rdzv_endpoint). Here two launchers
// run on one machine.
#include "launcher/hosts/joining.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/listening.h"
#include "base/seal.h"
#include "launcher/hosts/frame_socket.h"
#include "launcher/hosts/handshake.h"
#include "launcher/hosts/node_order.h"
#include "tests/launcher/launched.h"
#include "tests/launcher/leased_program.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using Catch::Matchers::Matches;
using zerorun::Seal;
using zerorun::testing::Launched;
using zerorun::testing::LeasedProgram;
using zerorun::testing::Result;
using zerorun::testing::Setup;
using namespace zerorun::launcher;

namespace {

// Returns a port that depends on the PID, because several of these programs may run at once.
std::string port() {
  static int next = 21000 + ::getpid() % 9000;
  return std::to_string(next++);
}

// One of two launchers, with one rank each. `options`: how it finds the other launcher.
Setup setup(const std::vector<std::string>& options, const std::string& script) {
  Setup result = {.options = {"--nnodes", "2", "--nproc_per_node", "1", "--grace", "0.5"}, .script = script};
  result.options.insert(result.options.end(), options.begin(), options.end());
  return result;
}

// Runs the program on two nodes of one rank, each with a launcher of its own, until both have ended.
std::pair<Result, Result> run_joined(const std::string& max_restarts, const std::string& program) {
  const std::string at = "127.0.0.1:" + port();
  const auto start = [&](const std::string& node) {
    return setup(
        {"--rdzv_endpoint", at, "--node_rank", node, "--max_restarts", max_restarts, "--timeout", "20"},
        program);
  };
  Launched first(start("0"));
  Launched second(start("1"));
  std::pair<Result, Result> results{first.finish(), second.finish()};
  for (Launched* job : {&first, &second}) job->wait_until_nothing_is_left();
  return results;
}

}  // namespace

TEST_CASE("two launchers, one for each host, run the ranks of one job") {
  const std::string number = port();
  const auto start = [&](const std::string& node) {
    return Setup{.options = {"--num_nodes", "2", "--num_gpus", "2", "--no_ssh", "--node_rank", node,
                             "--master_addr", "127.0.0.1", "--master_port", number},
                 .script =
                     "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $CROSS_RANK/$CROSS_SIZE "
                     "$MASTER_ADDR:$MASTER_PORT $ZERORUN_JOB ${ZERORUN_LISTEN_FD+listens}.; "
                     "[ $RANK != 3 ] && exit; while [ ! -e $DIR/seen ]; do sleep 0.05; done; exit 1"};
  };
  Launched first(start("0"));
  Launched second(start("1"));
  for (const char* line : {"0/4 ", "1/4 "}) first.wait_for_output(line);
  for (const char* line : {"2/4 ", "3/4 "}) second.wait_for_output(line);
  second.create_file("seen");
  const Result of_first = first.finish();
  const Result of_second = second.finish();
  const std::string job = " 127.0.0.1:" + number + " port-" + number + " ";
  CHECK_THAT(of_first.out,
             Contains("0/4 0/2 0/2" + job + "listens.\n") && Contains("1/4 1/2 0/2" + job + ".\n"));
  CHECK_THAT(of_second.out, Contains("2/4 0/2 1/2" + job + ".\n") && Contains("3/4 1/2 1/2" + job + ".\n"));
  // Prefixes and failure reports contain the rank's number in the job, not its number on the host.
  CHECK_THAT(of_second.out, Contains("[node 1 rank 2] ") || Contains("[node 1 rank 3] "));
  CHECK(of_first.exit_code == 1);
  CHECK_THAT(of_first.err, Contains("zerorun: rank 3 on node 1 exited with code 1\n"));
  CHECK(of_second.exit_code == 1);
  CHECK_THAT(of_second.err, Contains("zerorun: rank 3 exited with code 1\n"));
}

TEST_CASE("launchers that join find the first one by any address of its host") {
  for (const std::string address : {"127.0.0.1", "127.0.0.2", "localhost", "[::1]"}) {
    CAPTURE(address);
    const std::string endpoint = address + ":" + port();
    if (address == "[::1]" && ::access("/proc/net/if_inet6", R_OK) != 0) continue;
    const Setup both =
        setup({"--rdzv_endpoint", endpoint}, "echo $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT");
    Launched one(both);
    Launched other(both);
    const Result results[] = {one.finish(), other.finish()};
    for (const Result& result : results) {
      CAPTURE(result.err);
      CHECK(result.exit_code == 0);
    }
    const std::string out = results[0].out + results[1].out;
    const std::string plain = address == "[::1]" ? "::1" + endpoint.substr(5) : endpoint;
    CHECK_THAT(out, Contains("0 of 2 at " + plain) && Contains("1 of 2 at " + plain));
  }
}

TEST_CASE("a launcher that joins fails with the job, although its own ranks had no fault") {
  const std::string at = "127.0.0.1:" + port();
  Launched first(setup({"--rdzv_endpoint", at, "--node_rank", "0"},
                       "while [ ! -e $DIR/fail ]; do sleep 0.05; done; exit 5"));
  // Nobody reads the output of this launcher.
  Launched second(setup({"--rdzv_endpoint", at, "--node_rank", "1"},
                        ": >$DIR/up; while :; do echo flood of output; done"));
  second.wait_for_file("up");
  first.create_file("fail");
  CHECK(first.finish(8).exit_code == 5);
  const Result joined = second.finish_unread(8);
  CHECK(joined.exit_code == 1);
  CHECK_THAT(joined.err, Contains("the job has ended because of a failure on another host"));
  for (Launched* job : {&first, &second}) job->wait_until_nothing_is_left();
}

TEST_CASE("a launcher whose ranks have ended waits for its reader, until a signal") {
  const std::string at = "127.0.0.1:" + port();
  Launched first(setup({"--rdzv_endpoint", at, "--node_rank", "0"},
                       "yes 'more than a pipe holds' | head -n 20000; : >$DIR/done"));
  Launched second(setup({"--rdzv_endpoint", at, "--node_rank", "1"}, "true"));
  CHECK(second.finish(8).exit_code == 0);
  first.wait_for_file("done");
  first.signal(SIGTERM);
  CHECK(first.finish_unread(5).exit_code == 128 + SIGTERM);
  first.wait_until_nothing_is_left();
}

TEST_CASE("a launcher that joins runs what its own command line says, not what the first one says") {
  const std::string at = "127.0.0.1:" + port();
  const zerorun::testing::TemporaryFolder folder;
  const auto launcher = [&](const std::string& node, const std::string& name, const std::string& device) {
    return setup({"--rdzv_endpoint", at, "--node_rank", node, "--device", device, "--venv_script",
                  folder.write(name, "export WHO=" + name + "\n")},
                 "echo $WHO $ZERORUN_DEVICE");
  };
  Launched first(launcher("0", "one", "auto"));
  Launched second(launcher("1", "two", "cpu"));
  const Result of_first = first.finish();
  const Result of_second = second.finish();
  CHECK_THAT(of_first.out, Contains("one auto\n"));
  CHECK_THAT(of_second.out, Contains("two cpu\n"));
  CHECK(of_second.exit_code == 0);
}

TEST_CASE("a launcher that joins obeys the first one while the system still loads its program") {
  const LeasedProgram program;
  if (!program.is_leased()) {
    WARN("no leases in this file system: skipped");
    return;
  }
  const std::string at = "127.0.0.1:" + port();
  Launched first(setup({"--rdzv_endpoint", at, "--node_rank", "0"}, ": >$DIR/up; sleep 0.5; exit 5"));
  Launched second(std::vector<std::string>{"--nnodes", "2", "--nproc_per_node", "1", "--rdzv_endpoint", at,
                                           "--node_rank", "1", program.path()});
  const Result of_first = first.finish(8);
  CHECK(of_first.exit_code == 5);
  CHECK_THAT(of_first.err, !Contains("does not say that its ranks have ended"));
  CHECK(second.finish(8).exit_code == 1);
}

TEST_CASE("a launcher that joins says why it is not the first one") {
  const zerorun::ListeningSocket other = zerorun::listen_on("127.0.0.1", 0);
  Launched job(
      setup({"--rdzv_endpoint", "127.0.0.1:" + std::to_string(other.port), "--timeout", "1"}, "true"));
  const Result result = job.finish();
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err, Contains("cannot connect to the launcher") &&
                             Contains("joins because it cannot listen on 127.0.0.1:") &&
                             Contains("the port is in use, by process "));
}

TEST_CASE("a launcher that joins waits for a name to become known, and then says that it is not") {
  std::vector<std::unique_ptr<Launched>> jobs;
  const auto start = std::chrono::steady_clock::now();
  for (const bool numbered : {false, true}) {
    Setup one = setup({"--rdzv_endpoint", "nope.invalid", "--timeout", "2"}, "true");
    if (numbered) one.options.insert(one.options.end(), {"--node_rank", "1"});
    jobs.push_back(std::make_unique<Launched>(one));
  }
  for (const auto& job : jobs) {
    const Result result = job->finish();
    CHECK(std::chrono::steady_clock::now() - start > std::chrono::milliseconds(1500));
    CHECK(result.exit_code == 1);
    CHECK_THAT(result.err, Contains("nope.invalid:29500: ") && Contains("this host does not know the name") &&
                               !Contains("firewall"));
  }
}

TEST_CASE("a launcher that joins says within seconds why it waits") {
  const std::string number = port();  // nobody listens there
  struct Case {
    std::vector<std::string> options;
    const char* cause;
  };
  const std::vector<Case> cases = {
      {{"--rdzv_endpoint", "nope.invalid:" + number}, "): this host does not know the name: give "},
      {{"--node_rank", "1", "--master_addr", "nope.invalid", "--master_port", number},
       "): this host does not know the name: give "},
      {{"--node_rank", "1", "--master_addr", "127.0.0.1", "--master_port", number},
       ": Connection refused): nothing listens there"}};
  std::vector<std::unique_ptr<Launched>> jobs;
  for (const Case& one : cases) jobs.push_back(std::make_unique<Launched>(setup(one.options, "true")));
  for (const auto& job : jobs) job->wait_for_error("; this launcher tries again for ");
  std::this_thread::sleep_for(std::chrono::seconds(1));  // further attempts say nothing
  for (size_t i = 0; i < cases.size(); ++i) {
    jobs[i]->signal(SIGTERM);
    const std::string told = jobs[i]->finish().err;
    CHECK_THAT(told, Contains("zerorun: cannot connect yet to the launcher of the job (") &&
                         Contains(":" + number + ": ") && Contains(cases[i].cause) &&
                         Matches("[^]* tries again for 5[0-9]{2} s \\(--timeout\\)\n"));
    CHECK(told.find("tries again") == told.rfind("tries again"));
  }
}

TEST_CASE("the first launcher says at once that its host does not know the address") {
  const Result result = Launched(setup({"--node_rank", "0", "--master_addr", "nope.invalid", "--master_port",
                                        port(), "--timeout", "1"},
                                       "true"))
                            .finish();
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err, Contains("zerorun: the address of nope.invalid (MASTER_ADDR) cannot be found: ") &&
                             Contains("give an address of this host that all hosts know (--master_addr, "));
}

TEST_CASE("what another host sends does not reach the terminal as control characters") {
  const std::string number = port();
  Launched first(
      setup({"--rdzv_endpoint", "127.0.0.1:" + number, "--node_rank", "0", "--timeout", "4"}, "true"));
  const Seal ticket("port-" + number);
  FrameSocket socket(connect_to_launcher({"127.0.0.1"}, std::stoi(number), ticket,
                                         std::chrono::steady_clock::now() + std::chrono::seconds(10),
                                         [] { return true; }));
  socket.send(FrameType::hello, encode(AgentHello{"9\x1b[2J", 1, "evil\x1b[2J\nzerorun: all is well", ""}));
  first.wait_for_error("cannot take part");
  const Result result = first.finish();
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err, Contains("host evil?[2J?zerorun: all is well") && !Contains("\x1b"));
}

TEST_CASE("launchers that join start their ranks again together, with another secret") {
  const auto [first, second] =
      run_joined("2",
                 "echo rank $RANK restarts ${ZERORUN_RESTARTS-none} secret $ZERORUN_JOB\n"
                 "[ -n \"$ZERORUN_RESTARTS\" ] && exit\n"
                 "[ $RANK = 1 ] && exit 3; exec sleep 300");
  CHECK(first.exit_code == 0);
  CHECK(second.exit_code == 0);
  CHECK_THAT(first.err, Contains("zerorun: restart 1 of 2: rank 1 on node 1 exited with code 3, found "));
  CHECK_THAT(second.err, Contains("zerorun: rank 1 exited with code 3") &&
                             Contains("zerorun: restart 1: the ranks of this host have started again"));
  const std::string kAgain = "restarts 1 secret ";
  const auto secret = [&](const std::string& out) {
    return out.substr(out.find(kAgain) + kAgain.size(), 32);
  };
  CHECK_THAT(first.out, Contains("rank 0 restarts none secret port-") && Contains("rank 0 " + kAgain));
  CHECK_THAT(second.out, Contains("rank 1 restarts none secret port-") && Contains("rank 1 " + kAgain));
  CHECK(is_token(secret(first.out)));
  CHECK(secret(first.out) == secret(second.out));
}

TEST_CASE("launchers that join end with the failure after the last restart") {
  const auto [first, second] = run_joined("1", "[ $RANK = 1 ] && exit 3; exec sleep 300");
  CHECK(first.exit_code == 3);
  CHECK_THAT(first.err, Contains("not started again: this was attempt 2 of 2 (--max_restarts 1)"));
  CHECK(second.exit_code == 3);
  CHECK_THAT(second.err, Contains("the job is not started again, as the first launcher reports"));
}

TEST_CASE("a launcher that joins with another --max_restarts is refused") {
  const std::string at = "127.0.0.1:" + port();
  Launched first(setup({"--rdzv_endpoint", at, "--node_rank", "0", "--max_restarts", "2"}, "true"));
  Launched second(setup({"--rdzv_endpoint", at, "--node_rank", "1"}, "true"));
  const Result refused = second.finish();
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err,
             Contains("the launcher of node 0 for 'node 0: 1, node 1: 1, --max_restarts 2': give "
                      "all the same options"));
  first.signal(SIGTERM);
  CHECK(first.finish().exit_code == 128 + SIGTERM);
}

TEST_CASE("a launcher that joins takes only what a restart needs from the first one") {
  JoinPlan plan;
  plan.order.nodes = {{"a", {0}}, {"b", {0}}};
  plan.order.token = "shared";
  plan.order.arguments = {"own"};
  plan.max_restarts = 2;
  NodeOrder sent = plan.order;
  sent.node = 1;
  sent.token = "of the first start";
  sent.arguments = {"other"};
  const NodeOrder at_first = order_for_this_host(plan, sent);
  CHECK(at_first.token == "shared");
  CHECK(at_first.arguments == plan.order.arguments);
  sent.logs.attempt = 2;
  CHECK_THROWS_WITH(order_for_this_host(plan, sent), Contains("a secret for the ranks that is none"));
  sent.token = random_token();
  const NodeOrder later = order_for_this_host(plan, sent);
  CHECK(later.token == sent.token);
  CHECK(later.logs.attempt == 2);
  CHECK(later.arguments == plan.order.arguments);
  sent.logs.attempt = 3;
  CHECK_THROWS_WITH(order_for_this_host(plan, sent), Contains("expected at most 2 (--max_restarts)"));
  sent.node = 0;
  CHECK_THROWS_WITH(order_for_this_host(plan, sent), Contains("expected 1 to 1"));
}

TEST_CASE("a variable that an earlier agent left behind does not disturb the first launcher") {
  const std::string at = "127.0.0.1:" + port();
  Setup first = setup({"--rdzv_endpoint", at, "--node_rank", "0"}, "echo $RANK ${ZERORUN_MEETING_FD-unset}");
  Setup second = setup({"--rdzv_endpoint", at, "--node_rank", "1"}, "echo $RANK ${ZERORUN_MEETING_FD-unset}");
  for (Setup* one : {&first, &second}) one->environment = {{"ZERORUN_MEETING_FD", "1"}};
  Launched one(first);
  Launched other(second);
  const Result results[] = {one.finish(), other.finish()};
  for (const Result& result : results) CHECK(result.exit_code == 0);
  CHECK_THAT(results[0].out, Contains("0 unset\n"));
  CHECK_THAT(results[1].out, Contains("1 unset\n"));
}
