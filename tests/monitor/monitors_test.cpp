// Tests of CSV files, of folders and disks that cannot be written, and of tags.
#include "monitor/monitors.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "monitor/append_file.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Contains;

MonitoringConfig csv_in(const std::filesystem::path& folder) {
  MonitoringConfig config;
  config.csv = {.enabled = true, .output_path = folder.string(), .job_name = "job"};
  return config;
}

// Files of this process may not become longer meanwhile.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

}  // namespace

TEST_CASE("A CSV file is named after its tag, and a second run continues it") {
  const TemporaryFolder folder;
  for (int run = 0; run < 2; ++run) {
    Monitors monitors(csv_in(folder / "out"), {});
    CHECK(monitors.any());
    monitors.write({.tag = "Train/Samples/train_loss", .value = 0.1, .samples = 4});
    monitors.write({.tag = "my, metric", .value = -std::numeric_limits<double>::infinity(), .samples = 4});
  }
  CHECK(read_file(folder / "out/job/Train_Samples_train_loss.csv") == "step,train_loss\n4,0.1\n4,0.1\n");
  CHECK(read_file(folder / "out/job/my,_metric.csv") == "step,\"my, metric\"\n4,-inf\n4,-inf\n");
}

TEST_CASE("A tag cannot leave the folder") {
  const TemporaryFolder folder;
  Monitors monitors(csv_in(folder / "out"), {});
  monitors.write({.tag = "../../x", .value = 1, .samples = 0});
  CHECK(read_file(folder / "out/job/.._.._x.csv") == "step,x\n0,1\n");
}

TEST_CASE("A sink gets the events too") {
  std::vector<std::string> tags;
  Monitors monitors({}, [&](const MonitorEvent& event) { tags.push_back(event.tag); });
  CHECK(monitors.any());
  monitors.write({.tag = "a", .value = 1, .samples = 0});
  CHECK(tags == std::vector<std::string>{"a"});
  CHECK(!Monitors({}, {}).any());
}

TEST_CASE("A folder that cannot be written is an error that names key and path") {
  const TemporaryFolder folder;
  folder.write("file", "");
  const std::string error = user_error([&] { Monitors(csv_in(folder / "file"), {}); });
  CHECK_THAT(error, Contains("csv_monitor.output_path \"" + (folder / "file").string() + '"') &&
                        Contains("csv_monitor.job_name \"job\"") && Contains("Not a directory"));
  MonitoringConfig config;
  config.tensorboard = {.enabled = true, .output_path = (folder / "file").string(), .job_name = "job"};
  CHECK_THAT(user_error([&] { Monitors(config, {}); }), Contains("tensorboard.output_path"));
}

TEST_CASE("When the disk is full, each monitor warns once and its files stay whole") {
  const TemporaryFolder folder;
  MonitoringConfig config = csv_in(folder / "out");
  config.tensorboard = config.csv;
  Monitors monitors(config, {});
  // The limit is one of the captured log too, so it must leave room for the warnings.
  for (int64_t step = 0; step < 1000; ++step) monitors.write({.tag = "loss", .value = 1, .samples = step});
  const std::string whole = read_file(folder / "out/job/loss.csv");
  StderrCapture capture;
  {
    const FileLimit limit(whole.size() + 3);  // of the next line a part
    for (int64_t step = 0; step < 3; ++step) monitors.write({.tag = "loss", .value = 1.25, .samples = 1000});
  }
  const std::string log = capture.text();
  for (const std::string name : {"csv_monitor: ", "tensorboard: "}) {
    CHECK_THAT(log, Contains(name));
    CHECK(log.find(name) == log.rfind(name));
  }
  CHECK(read_file(folder / "out/job/loss.csv") == whole);
  monitors.write({.tag = "loss", .value = 2, .samples = 1001});  // there is room again
  CHECK(read_file(folder / "out/job/loss.csv") == whole + "1001,2\n");
}

TEST_CASE("A record that does not fit leaves the file as it was") {
  const TemporaryFolder folder;
  AppendFile file(folder / "file");
  file.append("12345");
  {
    const FileLimit limit(8);
    CHECK_THAT(user_error([&] { file.append("67890"); }), Contains("cannot write to"));
  }
  CHECK(read_file(folder / "file") == "12345");
}

TEST_CASE("Monitors of Python programs are a warning elsewhere") {
  MonitoringConfig config;
  config.wandb.enabled = config.comet.enabled = true;
  const std::vector<std::string> warnings = warnings_of_monitors(config, /*has_sink=*/false);
  REQUIRE(warnings.size() == 2);
  CHECK_THAT(warnings[0], Contains("wandb.enabled") && Contains("csv_monitor"));
  CHECK_THAT(warnings[1], Contains("comet.enabled"));
  CHECK(warnings_of_monitors(config, /*has_sink=*/true).empty());
}

TEST_CASE("A tag has 1 to 200 bytes without control characters") {
  CHECK_NOTHROW(check_tag("eval/loss"));
  CHECK_NOTHROW(check_tag(std::string(200, 'a')));
  for (const std::string& tag :
       {std::string(), std::string(201, 'a'), std::string("a\nb"), std::string("a\0b", 3)})
    CHECK_THAT(user_error([&] { check_tag(tag); }), Contains("expected a tag"));
}

}  // namespace zerorun::testing
