// Runs `zerorun doctor` as users do: on this host, with wrong settings, and with ranks that cannot connect.
// The host that runs this test may itself have problems, so the exit code may be 1 although the ranks work.
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/launcher/command_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

std::string text_about(const json& findings, const std::string& subject) {
  std::string text;
  for (const json& finding : findings) {
    if (finding.at("subject") == subject)
      text += finding.at("verdict").get<std::string>() + ": " + finding.at("text").get<std::string>() + "\n";
  }
  return text;
}

// Depends on the PID, so that several tests can run at once.
std::string port() {
  return std::to_string(20000 + ::getpid() % 10000);
}

}  // namespace

TEST_CASE("doctor: checks this host, and starts two ranks on the CPU") {
  const CommandFolder folder;
  const Outcome outcome = folder.run("doctor --device cpu");
  INFO(outcome.out);
  CHECK(outcome.exit_code <= 1);
  CHECK(outcome.err.empty());
  for (const char* subject : {"built with", "system", "GPU driver", "memory", "locked memory", "open files",
                              "processes", "shared memory", "interface", "ports", "all-reduce", "bandwidth"})
    CHECK_THAT(outcome.out, Contains(std::string(" ") + subject + " "));
  CHECK_THAT(outcome.out, Contains("2 ranks on 1 host over shared memory, the sums are right"));
  CHECK_THAT(outcome.out, Contains("slowest link") && Contains("(rank 0) - ") && Contains("B/s over TCP"));
}

TEST_CASE("doctor: checks the GPUs of this host") {
  const CommandFolder folder;
  ::setenv("LD_LIBRARY_PATH", ZERORUN_FAKE_DRIVER_FOLDER, 1);
  ::setenv("FAKE_NVML_GPUS", "2", 1);
  ::setenv("FAKE_LOST", "1", 1);
  const Outcome outcome = folder.run("doctor --device cpu");
  for (const char* name : {"LD_LIBRARY_PATH", "FAKE_NVML_GPUS", "FAKE_LOST"}) ::unsetenv(name);
  INFO(outcome.out);
  CHECK(outcome.exit_code == 1);
  CHECK_THAT(outcome.out, Contains("GPU 0            NVIDIA H100 80GB HBM3, 80.0 GiB") &&
                              Contains("problem  GPU 1            does not answer: GPU is lost") &&
                              Contains("ok       NCCL             2.30.7, "));
}

TEST_CASE("doctor: a GPU that ranks cannot use is a problem of the host, and no mistake of the user") {
  const CommandFolder folder;
  ::setenv("LD_LIBRARY_PATH", ZERORUN_FAKE_DRIVER_FOLDER, 1);
  for (const char* name : {"FAKE_NVML_GPUS", "FAKE_GPUS"}) ::setenv(name, "1", 1);
  ::setenv("FAKE_ERRORS", "1", 1);
  ::setenv("FAKE_CAPABILITY", "7", 1);
  const Outcome outcome = folder.run("doctor --num_gpus 1");
  for (const char* name :
       {"LD_LIBRARY_PATH", "FAKE_NVML_GPUS", "FAKE_GPUS", "FAKE_ERRORS", "FAKE_CAPABILITY"})
    ::unsetenv(name);
  INFO(outcome.out);
  CHECK(outcome.exit_code == 1);
  CHECK_THAT(outcome.out, Contains("1 rank, no usable GPU: GPU 0 has compute capability 7.x"));
}

TEST_CASE("doctor: --json, with the number of ranks that --num_gpus gives") {
  const CommandFolder folder;
  const Outcome outcome = folder.run("doctor --device cpu --num_gpus 3 --comm gloo --json");
  INFO(outcome.out << outcome.err);
  CHECK(outcome.exit_code <= 1);
  const json report = json::parse(outcome.out);
  CHECK_FALSE(report.at("findings").empty());
  const json& job = report.at("job");
  CHECK(job.at("world_size") == 3);
  CHECK(job.at("transport") == "Gloo");
  CHECK(job.at("members").size() == 3);
  CHECK(job.at("members")[0].at("host") == report.at("host"));
  REQUIRE(job.at("links").size() == 3);
  for (const json& link : job.at("links")) {
    CHECK(link.at("latency_us") > 0);
    CHECK(link.at("bytes_per_second") > 1e6);
  }
  CHECK(job.at("all_reduce_us") > 0);
  CHECK(job.at("output").empty());
}

TEST_CASE("doctor: with a launcher on each host, the first one has the results") {
  const CommandFolder folder;
  const std::string options =
      " --device cpu --no_ssh --num_nodes 2 --num_gpus 1 --master_addr 127.0.0.1 --master_port " + port();
  folder.write("both", "'" ZERORUN_BINARY_DIR "/bin/zerorun' doctor --json --node_rank 1" + options +
                           " >second 2>&1 &\n'" ZERORUN_BINARY_DIR "/bin/zerorun' doctor --node_rank 0" +
                           options + " >first 2>&1\ncode=$?\nwait\nexit $code\n");
  const Outcome both = folder.run("--version; sh ./both");
  const std::string first = read_file(folder / "first");
  INFO(first << read_file(folder / "second"));
  CHECK(both.exit_code <= 1);
  CHECK_THAT(first, Contains("2 ranks on 1 host") && Contains("(rank 0) - ") && Contains("(rank 1): "));
  const json second = json::parse(read_file(folder / "second"));
  CHECK_THAT(text_about(second.at("job").at("findings"), "collectives"), Contains("the host of rank 0"));
}

TEST_CASE("doctor: a link that does not work is named, and collectives are not tried over it") {
  const CommandFolder folder;
  ::setenv("GLOO_SOCKET_IFNAME", "no_such_interface", 1);
  const Outcome outcome = folder.run("doctor --device cpu --json");
  ::unsetenv("GLOO_SOCKET_IFNAME");
  INFO(outcome.out << outcome.err);
  CHECK(outcome.exit_code == 1);
  const json findings = json::parse(outcome.out).at("job").at("findings");
  CHECK_THAT(text_about(findings, "link"),
             Contains("problem: ") && Contains("(rank 1)") && Contains("GLOO_SOCKET_IFNAME"));
  CHECK_THAT(text_about(findings, "collectives"), Contains("note: ") && Contains("not tried"));
}

TEST_CASE("doctor: ranks that fail are a problem, and their output is shown") {
  const CommandFolder folder;
  ::setenv("ZERORUN_COMM", "nonsense", 1);
  const Outcome mistake = folder.run("doctor --device cpu");
  const Outcome as_json = folder.run("doctor --device cpu --json");
  ::unsetenv("ZERORUN_COMM");
  CHECK(mistake.exit_code == 2);
  CHECK_THAT(mistake.out,
             Contains("problem  collectives") && Contains("exited with code 2") && Contains("ZERORUN_COMM"));
  CHECK_FALSE(json::parse(as_json.out).at("job").at("output").empty());

  // With this deadline some wait times out. It may happen when a rank connects, measures a link or tries
  // collectives.
  const Outcome late = folder.run("doctor --device cpu --timeout 0.001 --json");
  CHECK(late.exit_code == 1);
  const json findings = json::parse(late.out).at("job").at("findings");
  CHECK_THAT(text_about(findings, "collectives") + text_about(findings, "link"), Contains("problem: "));
}

TEST_CASE("doctor: mistakes on its command line") {
  const CommandFolder folder;
  folder.write("hosts", "worker-0 slots=two\n");
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"doctor --nonsense", "--nonsense"},
      {"doctor train", "doctor runs a program of its own: leave out 'train'"},
      {"doctor --num_gpus 2 -- train", "leave out 'train'"},
      {"doctor --dry_run", "--dry_run has no meaning here"},
      {"doctor --version", "--version"},
      {"doctor --num_gpus zero", "found 'zero'"},
      {"doctor --hostfile missing", "missing"},
      {"doctor --hostfile hosts", "hosts"},
      {"doctor --timeout -1", "--timeout"},
      {"doctor --hostfile", "--hostfile"}};
  for (const auto& [command, message] : rows) {
    CAPTURE(command);
    const Outcome outcome = folder.run(command);
    CHECK(outcome.exit_code == 2);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, Catch::Matchers::StartsWith("zerorun: ") && Contains(message));
    CHECK(std::ranges::count(outcome.err, '\n') == 1);
  }
  CHECK_THAT(folder.run("doctor --help").out, Contains("Usage: zerorun doctor"));
}

TEST_CASE("doctor: without zerorun_probe it still checks the host") {
  const CommandFolder folder;
  std::filesystem::copy_file(ZERORUN_BINARY_DIR "/bin/zerorun", folder / "zerorun");
  const Outcome outcome = folder.run("--version >/dev/null; ./zerorun doctor");
  CHECK(outcome.exit_code <= 1);
  CHECK_THAT(outcome.out,
             Contains("note     collectives") && Contains("zerorun_probe is not beside zerorun"));
}

}  // namespace zerorun::testing
