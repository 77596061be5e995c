// Timelines of jobs of two ranks at stage 3, started by the launcher: what their files have, and what is left
// of ranks that die, miss each other or get a signal.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "monitor/timeline_file.h"
#include "tests/support/temporary_folder.h"
#include "tests/timeline/perfetto_reader.h"

namespace zerorun::testing {
namespace {

constexpr char kConfig[] = R"({
  "train_micro_batch_size_per_gpu": 4,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
  "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}TIMELINE})";

// Rank 1 runs in a time namespace whose clock is 1,000 s ahead.
constexpr char kOtherClock[] =
    "sh -c 'test $RANK = 1 && exec unshare --time --monotonic 1000 --fork \"$@\"; exec \"$@\"' sh ";

// A job in a folder of its own, with options of `zerorun` and arguments of the program.
class TimelineJob {
 public:
  TimelineJob(const std::string& options, const std::string& arguments, const std::string& section = "",
              const std::string& wrapper = "") {
    std::string config = kConfig;
    config.replace(config.find("TIMELINE"), 8, section);
    folder_.write("ds_config.json", config);
    const std::string programs = ZERORUN_BINARY_DIR "/bin/";
    const std::string command = "cd " + (folder_ / "").string() + " && export OMP_NUM_THREADS=1 && exec " +
                                programs + "zerorun --num_gpus 2 --device cpu " + options + " " + wrapper +
                                programs + "timeline_training ds_config.json " + arguments + " >out.txt 2>&1";
    process_ = ::fork();
    if (process_ == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
  }
  ~TimelineJob() {
    if (process_ > 0) finish();
  }
  TimelineJob(const TimelineJob&) = delete;
  TimelineJob& operator=(const TimelineJob&) = delete;

  int finish() {
    int status = 0;
    ::waitpid(process_, &status, 0);
    process_ = -1;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    INFO(output());
    CHECK(code >= 0);
    return code;
  }
  std::string output() const { return read_file(folder_ / "out.txt"); }
  std::map<std::string, std::string> archive(const std::string& name = "t.tar") const {
    INFO(output());
    REQUIRE(std::filesystem::exists(folder_ / name));
    return read_tar(read_file(folder_ / name));
  }
  ReadTrace trace(int rank) const { return read_trace(archive().at(rank_file_name(rank))); }
  std::filesystem::path folder() const { return folder_ / ""; }
  void write(const std::string& name) const { folder_.write(name, ""); }

 private:
  TemporaryFolder folder_;
  pid_t process_ = -1;
};

template <typename Condition>
bool becomes_true(const Condition& condition) {
  for (int look = 0; look < 1500; ++look) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
  }
  return false;
}

// All spans have ended, but gathers that a step has started and the next one waits for.
void check_spans(const ReadTrace& trace) {
  std::set<std::string> open = check_nesting(trace);
  open.erase("all_gather");
  CHECK(open.empty());
}

std::vector<int64_t> steps_of(const ReadTrace& trace) {
  std::vector<int64_t> steps;
  for (const TraceEvent& event : trace.named("end of step", TraceEvent::instant))
    steps.push_back(event.arguments.at("step"));
  return steps;
}

std::optional<pid_t> process_of(const TimelineJob& job, int rank) {
  const std::string start = "pid." + std::to_string(rank) + ".";
  for (const auto& entry : std::filesystem::directory_iterator(job.folder())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(start)) return std::stoi(name.substr(start.size()));
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("The timeline of chosen steps has their phases, waits, transfers and memory") {
  TimelineJob job("--timeline t.tar --timeline-steps 3:7", "12 end");
  REQUIRE(job.finish() == 0);
  const auto files = job.archive();
  CHECK(files.size() == 3);
  const auto manifest = nlohmann::json::parse(files.at("perfetto_manifest.json")).at("perfetto_manifest");
  CHECK(manifest.at("files").size() == 2);
  CHECK_FALSE(manifest.at("files")[1].contains("clocks"));  // one host, one clock
  std::vector<ReadTrace> traces = {job.trace(0), job.trace(1)};
  for (const ReadTrace& trace : traces) {
    check_spans(trace);
    CHECK(steps_of(trace) == std::vector<int64_t>{3, 4, 5, 6, 7});
    for (const char* phase : {"forward", "backward", "step", "update", "norm", "wait for reductions"}) {
      INFO(phase);
      // measure() waits for reductions in one span, and looks at offloaded files in one of "update".
      CHECK(trace.named(phase, TraceEvent::begin).size() == (std::string(phase) == "update" ? 10 : 5));
    }
    CHECK(trace.on("engine", TraceEvent::begin).size() == trace.on("engine", TraceEvent::end).size());
    CHECK(trace.on("parameters", TraceEvent::counter).size() == 6);  // before the first step and after each
    CHECK(trace.on("parameters", TraceEvent::counter).front().value > 0);
    CHECK(trace.on("moments", TraceEvent::counter).back().value > 0);
    const auto gathers = trace.named("all_gather", TraceEvent::begin);
    REQUIRE(gathers.size() >= 5);
    CHECK(gathers.front().arguments.at("bytes") > 0);
    CHECK(trace.named("reduce_scatter", TraceEvent::begin).size() >= 5);
    CHECK(trace.named("update a shard", TraceEvent::begin).size() >= 5);
  }
  // In five steps on one host some rank waits for the other, which its event names.
  for (int rank = 0; rank < 2; ++rank) {
    for (const TraceEvent& wait :
         traces[static_cast<size_t>(rank)].named("wait for ranks", TraceEvent::begin))
      CHECK(wait.arguments.at("first rank") == 1 - rank);
  }
  CHECK(traces[0].named("wait for ranks", TraceEvent::begin).size() +
            traces[1].named("wait for ranks", TraceEvent::begin).size() >
        0);
}

TEST_CASE("A timeline of the config has the last events of a run") {
  TimelineJob job("", "6 end",
                  R"(, "zerorun": {"timeline": {"enabled": true, "path": "sub.tar", "ring_mib": 1}})");
  REQUIRE(job.finish() == 0);
  const auto files = job.archive("sub.tar");
  REQUIRE(files.size() == 3);
  const ReadTrace trace = read_trace(files.at("rank1.pftrace"));
  check_spans(trace);
  CHECK(steps_of(trace).back() == 6);
}

TEST_CASE("Without --timeline and the key there is no timeline") {
  TimelineJob job("", "2 end");
  REQUIRE(job.finish() == 0);
  for (const auto& entry : std::filesystem::directory_iterator(job.folder()))
    CHECK(entry.path().extension() != ".tar");
}

TEST_CASE("A rank that SIGKILL ends leaves its last events") {
  TimelineJob job("--timeline t.tar", "4 kill");
  CHECK(job.finish() == 128 + SIGKILL);
  CHECK(job.output().find("what the ranks did last is in") != std::string::npos);
  CHECK(steps_of(job.trace(1)) == std::vector<int64_t>{1, 2, 3, 4});
  const ReadTrace other = job.trace(0);
  CHECK(steps_of(other) == std::vector<int64_t>{1, 2, 3, 4});
  CHECK(other.events.size() > 20);
}

TEST_CASE("A missed deadline leaves the last events of all ranks, with the wait and whom it is for") {
  TimelineJob job("--timeline t.tar --timeout 2", "3 abandon");
  CHECK(job.finish() == 1);
  const ReadTrace trace = job.trace(0);
  REQUIRE(trace.named("failed wait", TraceEvent::instant).size() >= 1);
  const auto waits = trace.named("wait for ranks", TraceEvent::begin);
  REQUIRE(!waits.empty());
  CHECK(waits.back().arguments.at("first rank") == 1);
  CHECK(steps_of(job.trace(1)) == std::vector<int64_t>{1, 2, 3});
}

TEST_CASE("SIGUSR1 writes the file of a rank that runs on") {
  TimelineJob job("--timeline t.tar", "5 wait");
  for (int rank = 0; rank < 2; ++rank)
    REQUIRE(becomes_true([&] { return process_of(job, rank).has_value(); }));
  const auto file = folder_of_ranks(job.folder() / "t.tar") / rank_file_name(1);
  CHECK_FALSE(std::filesystem::exists(file));
  REQUIRE(::kill(*process_of(job, 1), SIGUSR1) == 0);
  CHECK(becomes_true([&] { return std::filesystem::exists(file); }));
  CHECK(steps_of(read_trace(read_file(file))) == std::vector<int64_t>{1, 2, 3, 4, 5});
  job.write("go.0");
  job.write("go.1");
  CHECK(job.finish() == 0);
  CHECK(steps_of(job.trace(0)).size() == 5);
}

TEST_CASE("Ranks whose clocks differ by 1,000 s are placed within 200 us") {
  if (std::system("unshare --time --monotonic 1000 --fork true 2>/dev/null") != 0) {
    WARN("not tried: this user may not make time namespaces");
    return;
  }
  for (const char* comm : {"shm", "gloo"}) {
    INFO(comm);
    TimelineJob job(std::string("--timeline t.tar --comm ") + comm, "3 end", "", kOtherClock);
    REQUIRE(job.finish() == 0);
    const auto manifest =
        nlohmann::json::parse(job.archive().at("perfetto_manifest.json")).at("perfetto_manifest");
    const auto& file = manifest.at("files")[1];
    CHECK(file.at("machine") != manifest.at("files")[0].at("machine"));
    const int64_t error = file.at("clocks").at("offset_ns").get<int64_t>() + 1'000'000'000'000;
    CHECK(std::abs(error) < 200'000);
    // The realtime clock is no part of a namespace, so it tells how events are placed.
    const ReadTrace first = job.trace(0), other = job.trace(1);
    const auto offset = [](const ReadTrace& trace) {
      return static_cast<int64_t>(trace.clocks.at(3)) - static_cast<int64_t>(trace.clocks.at(1));
    };
    CHECK(std::abs(offset(first) - offset(other) - (error - 1'000'000'000'000)) < 200'000);
  }
}

TEST_CASE("What the command line and the config say of timelines is checked") {
  TimelineJob wrong_steps("--timeline t.tar --timeline-steps 7:3", "1 end");
  CHECK(wrong_steps.finish() == 2);
  CHECK(wrong_steps.output().find("such as 10:20; found '7:3'") != std::string::npos);
  TimelineJob wrong_folder("--timeline /proc/none/t.tar", "1 end");
  CHECK(wrong_folder.finish() == 2);
  CHECK(wrong_folder.output().find("cannot be written") != std::string::npos);
  TimelineJob wrong_key("", "1 end", R"(, "zerorun": {"timeline": {"enabled": true, "steps": [2, 1.5]}})");
  CHECK(wrong_key.finish() == 2);
  CHECK(wrong_key.output().find("zerorun.timeline.steps") != std::string::npos);
}

}  // namespace zerorun::testing
