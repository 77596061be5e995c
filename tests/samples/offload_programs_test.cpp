// Runs the gpt2 sample as a user does with state in files. Tests a disk that returns wrong bytes, and ranks
// that are killed.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "tests/samples/programs_support.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

// Returns the PID of rank `rank` of the gpt2 job whose command line contains `folder`, or -1.
pid_t find_rank(const fs::path& folder, int rank) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (read_file(entry.path() / "comm") != "gpt2\n") continue;
    if (read_file(entry.path() / "cmdline").find(folder.string()) == std::string::npos) continue;
    const std::string variables = '\0' + read_file(entry.path() / "environ");
    if (variables.find('\0' + ("RANK=" + std::to_string(rank)) + '\0') != std::string::npos)
      return static_cast<pid_t>(std::stol(name));
  }
  return -1;
}

template <typename Condition>
bool comes_true(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// Flips one bit in each MiB of the nameless files that the process has open in `folder`. Leaves out the first
// 4 KiB of a file. Returns the number of flipped bits.
int flip_bits(pid_t process, const fs::path& folder) {
  int flipped = 0;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(process) + "/fd", gone)) {
    const fs::path target = fs::read_symlink(entry.path(), gone);
    if (gone || target.string().find(folder.string()) != 0) continue;
    struct stat facts {};
    if (::stat(entry.path().c_str(), &facts) != 0 || facts.st_nlink > 0) continue;
    const int file = ::open(entry.path().c_str(), O_RDWR);
    if (file < 0) continue;
    for (off_t at = 4096; at < facts.st_size; at += 1 << 20) {
      char byte = 0;
      if (::pread(file, &byte, 1, at) != 1) continue;
      byte = static_cast<char>(byte ^ 16);
      flipped += ::pwrite(file, &byte, 1, at) == 1;
    }
    ::close(file);
  }
  return flipped;
}

std::string state_in_files(const TemporaryFolder& folder) {
  const std::string nvme = R"({"device": "nvme", "nvme_path": ")" + (folder / "nvme").string() + '"';
  return R"({"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 20000,
      "stage3_max_live_parameters": 20000, "offload_optimizer": )" +
         nvme + R"(}, "offload_param": )" + nvme + R"(, "max_in_cpu": 0}})";
}

// Returns a command that trains a model of many buckets. Buffers for file transfers hold only a few buckets.
std::string gpt2(const TemporaryFolder& folder) {
  return kBin + "zerorun --num_gpus 2 " + kBin +
         "gpt2 --layers 4 --hidden 64 --heads 2 --seq 16 --generate 0 --data " + write_text(folder) +
         " --deepspeed " + write_config(folder, 2, 1, state_in_files(folder)) + " ";
}

}  // namespace

TEST_CASE("wrong bytes from a disk end the job, and training resumes from the previous checkpoint") {
  const TemporaryFolder folder;
  const std::string saves = folder / "saves";
  REQUIRE(run(folder, gpt2(folder) + "--steps 3 --save-dir " + saves).exit_code == 0);
  const fs::path csv = folder / "log.csv";
  int flipped = 0;
  std::thread saboteur([&] {
    if (comes_true([&] { return fs::exists(csv) && read_file(csv).size() > 200; }))
      flipped = flip_bits(find_rank(folder / "", 1), folder / "nvme");
  });
  const Outcome ended =
      run(folder, gpt2(folder) + "--steps 5000 --resume " + saves + " --csv " + csv.string());
  saboteur.join();
  CHECK(flipped > 0);
  INFO(ended.err);
  CHECK(ended.exit_code == 1);
  CHECK_THAT(ended.err, Contains("error: rank 1: the offloaded state of bucket ") &&
                            Contains(" on rank 1, in a file of ") && Contains("another checksum") &&
                            Contains("resume from the newest checkpoint"));
  const Outcome resumed = run(folder, gpt2(folder) + "--steps 5 --resume " + saves);
  CHECK(resumed.exit_code == 0);
  CHECK_THAT(resumed.out, Contains("resumed from " + saves + "/global_step3"));
}

TEST_CASE("if a rank is killed in the middle of a step, no saved step is lost") {
  const TemporaryFolder folder;
  const fs::path saves = folder / "saves", csv = folder / "log.csv", straight = folder / "straight.csv";
  const int kSteps = tries_all() ? 60 : 40;
  const std::string steps = "--steps " + std::to_string(kSteps) + " ";
  REQUIRE(run(folder, gpt2(folder) + steps + "--csv " + straight.string()).exit_code == 0);
  const std::vector<double> expected = column(read_csv(straight), "loss");
  REQUIRE(std::ssize(expected) == kSteps);

  std::mt19937 random(1);
  auto saved_step = [&] {
    const std::string latest = read_file(saves / "latest");
    return latest.empty() ? 0 : std::stoi(latest.substr(std::string("global_step").size()));
  };
  int kills = 0;
  while (saved_step() < kSteps) {
    const int begin = saved_step();
    const int killed_at = begin + 5 + static_cast<int>(random() % 10);
    std::thread killer([&] {
      const bool is_there = comes_true([&] { return saved_step() >= std::min(killed_at, kSteps); });
      const pid_t rank = find_rank(folder / "", 1);
      if (!is_there || killed_at >= kSteps || rank < 0) return;
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
      ::kill(rank, SIGKILL);
      ++kills;
    });
    const std::string resume = begin > 0 ? "--resume " + saves.string() + " " : "";
    const Outcome outcome = run(folder, gpt2(folder) + steps + resume + "--save-dir " + saves.string() +
                                            " --save-every 1 --keep-last 3 --csv " + csv.string());
    killer.join();
    const auto rows = read_csv(csv);
    REQUIRE(rows.size() > 0);
    for (const auto& row : rows) CHECK(row.at("loss") == expected.at(static_cast<size_t>(row.at("step"))));
    REQUIRE(saved_step() > begin);
    INFO(outcome.err);
    if (outcome.exit_code == 0) CHECK(saved_step() == kSteps);
  }
  CHECK(kills >= (tries_all() ? 4 : 2));
}

}  // namespace zerorun::testing
