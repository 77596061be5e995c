// bench_checkpoint: measures how much a durable checkpoint after every step adds to the time of a step.
// Blocks of steps with saves alternate with blocks without saves. Later, saves without training alternate
// with runs of dd. So noise of the machine or disk affects both sides of a comparison. At the end the write
// speed is limited, so that a save takes as long as two steps.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "benchmarks/command_line.h"
#include "benchmarks/figures.h"
#include "benchmarks/local_ranks.h"
#include "benchmarks/training_options.h"
#include "benchmarks/work_meter.h"
#include "comm/connect/rendezvous.h"
#include "engine/engine.h"
#include "engine/engine_state.h"
#include "engine/saving/checkpoints.h"
#include "samples/gpt2/model.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Options : TrainingOptions {
  int stage = 2;
  int rounds = 5;
  int steps = 10;
  std::string folder;
};

/// The local file system with a limited write speed.
class SlowFileSystem : public checkpoint::FileSystem {
 public:
  explicit SlowFileSystem(double bytes_per_ms) : bytes_per_ms_(bytes_per_ms) {}

  int create(const fs::path& file, checkpoint::Caching caching) override {
    return files_.create(file, caching);
  }
  int open(const fs::path& file) override { return files_.open(file); }
  int create_nameless(const fs::path& folder) override { return files_.create_nameless(folder); }
  int link_open(int file, const fs::path& name) override { return files_.link_open(file, name); }
  int allocate(int file, int64_t bytes) override { return files_.allocate(file, bytes); }
  bool has_descriptors() const override { return true; }
  void close(int file) override { files_.close(file); }
  int64_t write(int file, std::span<const std::byte> bytes, int64_t offset) override {
    std::this_thread::sleep_for(
        std::chrono::duration<double, std::milli>(static_cast<double>(bytes.size()) / bytes_per_ms_));
    return files_.write(file, bytes, offset);
  }
  int64_t read(int file, std::span<std::byte> bytes, int64_t offset) override {
    return files_.read(file, bytes, offset);
  }
  int64_t size(int file) override { return files_.size(file); }
  int sync(int file) override { return files_.sync(file); }
  int make_folder(const fs::path& folder) override { return files_.make_folder(folder); }
  int sync_folder(const fs::path& folder) override { return files_.sync_folder(folder); }
  int rename(const fs::path& from, const fs::path& to) override { return files_.rename(from, to); }
  int link(const fs::path& file, const fs::path& name) override { return files_.link(file, name); }
  int exchange(const fs::path& one, const fs::path& other) override { return files_.exchange(one, other); }
  int remove_file(const fs::path& file) override { return files_.remove_file(file); }
  int remove_folder(const fs::path& folder) override { return files_.remove_folder(folder); }
  std::optional<std::vector<std::string>> list(const fs::path& folder) override {
    return files_.list(folder);
  }
  int open_folder(const fs::path& folder) override { return files_.open_folder(folder); }
  std::optional<std::vector<std::string>> list_open(int folder) override { return files_.list_open(folder); }
  int open_at(int folder, const std::string& name) override { return files_.open_at(folder, name); }
  int remove_at(int folder, const std::string& name) override { return files_.remove_at(folder, name); }
  std::optional<fs::path> link_target(const fs::path& path) override { return files_.link_target(path); }
  std::optional<checkpoint::FileIdentity> identity(const fs::path& file) override {
    return files_.identity(file);
  }
  std::shared_ptr<checkpoint::FolderLock> lock_folder(const fs::path& folder) override {
    return files_.lock_folder(folder);
  }

 private:
  checkpoint::FileSystem& files_ = checkpoint::local_file_system();
  double bytes_per_ms_;
};

/// The peak resident memory of this process since reset().
class PeakMemory {
 public:
  static void reset() { std::ofstream("/proc/self/clear_refs") << "5"; }
  static double megabytes() { return number_in("/proc/self/status", "VmHWM") / 1024; }
};

struct Block {
  double step_ms = 0;  // time per step, including the save if there is one, on the slowest rank
  double cpu_ms = 0;   // CPU time per step, sum over ranks
  double call_ms = 0;  // time per step in the call of save_checkpoint(), on the slowest rank
  double copy_ms = 0;  // time per step in which step() copies state that is not in the file yet
  double kept_mb = 0;  // the largest number of megabytes that step() copied on one rank for one save
  double peak_mb = 0;  // peak memory, maximum over ranks
};

// Writes `bytes` with dd (O_DIRECT, fsync). Returns milliseconds.
double write_with_dd(const std::string& folder, double bytes) {
  const std::string file = folder + "/dd";
  const std::string command = "dd if=/dev/zero of='" + file + "' bs=1M count=" +
                              std::to_string(std::max<int64_t>(1, static_cast<int64_t>(bytes / (1 << 20)))) +
                              " oflag=direct conv=fsync 2>/dev/null";
  const auto begin = Clock::now();
  if (std::system(command.c_str()) != 0) throw UserError("dd cannot write to " + folder);
  const double ms = milliseconds_since(begin);
  fs::remove(file);
  return ms;
}

class Training {
 public:
  explicit Training(const Options& options)
      : options_(&options), communicator_(connect()), model_(options.model) {
    const Config config =
        parse_config(options.config({{"stage", options.stage}, {"overlap_comm", true}}).dump(),
                     "bench_checkpoint", options.ranks);
    InitializeOptions given;
    given.communicator = communicator_;
    state_ = std::make_shared<EngineState>(model_of(*model_), config, Mesh(communicator_),
                                           collect_parameters(model_of(*model_), config, given), given);
    engine_.emplace(state_);
    tokens_ = random_tokens(options.model, options.micro_batch, communicator_->rank());
  }

  Communicator& communicator() { return *communicator_; }
  bool talks() const { return communicator_->rank() == 0; }
  double largest(double mine) {
    at::Tensor all = torch::zeros({communicator_->world_size()}, at::kDouble);
    all[communicator_->rank()] = mine;
    communicator_->all_reduce(all, "figures")->wait();
    return all.max().item<double>();
  }

  /// Bytes that all ranks write for one checkpoint.
  double state_bytes() { return sum(static_cast<double>(state_->checkpoints.bytes())); }
  double sum(double mine) {
    at::Tensor all = torch::full({1}, mine, at::kDouble);
    communicator_->all_reduce(all, "figures")->wait();
    return all.item<double>();
  }

  /// Returns the step time while rank 0 runs dd, which writes `bytes` per step. If `bytes` is the size of a
  /// checkpoint, the result shows how much the disk's work alone slows training down.
  double step_ms_beside_dd(double bytes) {
    communicator_->barrier("the start of a block")->wait();
    const auto begin = Clock::now();
    std::thread writer;
    for (int step = 0; step < options_->steps; ++step) {
      if (writer.joinable()) writer.join();
      if (talks()) writer = std::thread([&] { write_with_dd(options_->folder, bytes); });
      engine_->backward(model_->loss(tokens_));
      engine_->step();
    }
    if (writer.joinable()) writer.join();
    return largest(milliseconds_since(begin) / options_->steps);
  }

  /// Runs a block of steps. If `files` is given, saves after each step, and waits at the end until all saves
  /// are durable.
  Block run(checkpoint::FileSystem* files) {
    Block block;
    communicator_->barrier("the start of a block")->wait();
    PeakMemory::reset();
    const double cpu = meter_.so_far().cpu_seconds;
    const auto begin = Clock::now();
    for (int step = 0; step < options_->steps; ++step) {
      engine_->backward(model_->loss(tokens_));
      engine_->step();
      if (!files) continue;
      block.copy_ms += state_->checkpoints.keeping_ms();
      block.kept_mb = std::max(block.kept_mb, static_cast<double>(state_->checkpoints.kept_bytes()) / 1e6);
      const auto call = Clock::now();
      save(*files);
      block.call_ms += milliseconds_since(call);
    }
    if (files) engine_->wait_for_checkpoint();
    block.step_ms = largest(milliseconds_since(begin) / options_->steps);
    block.cpu_ms = sum((meter_.so_far().cpu_seconds - cpu) * 1000 / options_->steps);
    block.call_ms = largest(block.call_ms / options_->steps);
    block.copy_ms = largest(block.copy_ms / options_->steps);
    block.kept_mb = largest(block.kept_mb);
    block.peak_mb = largest(PeakMemory::megabytes());
    return block;
  }

  double save_alone_ms() {
    communicator_->barrier("the start of a save")->wait();
    const auto begin = Clock::now();
    save(checkpoint::local_file_system());
    engine_->wait_for_checkpoint();
    return largest(milliseconds_since(begin));
  }

 private:
  void save(checkpoint::FileSystem& files) {
    state_->checkpoints.write_to(files);
    save_checkpoint(*state_, options_->folder, "", {.keep_last = 1});
  }

  const Options* options_;
  WorkMeter meter_;
  std::shared_ptr<Communicator> communicator_;
  samples::Gpt2 model_;
  std::shared_ptr<EngineState> state_;
  std::optional<Engine> engine_;
  at::Tensor tokens_;
};

int run_rank(const Options& options) {
  at::set_num_threads(1);
  Training training(options);
  training.run(nullptr);
  training.run(&checkpoint::local_file_system());
  std::vector<double> without, with, ratio, beside_dd, cpu_without, cpu_with, call, copy, kept, save_gb_s,
      dd_gb_s, of_dd;
  const double bytes = training.state_bytes();
  for (int round = 0; round < options.rounds; ++round) {
    const Block plain = training.run(nullptr);
    const Block saving = training.run(&checkpoint::local_file_system());
    without.push_back(plain.step_ms);
    with.push_back(saving.step_ms);
    ratio.push_back(saving.step_ms / plain.step_ms);
    beside_dd.push_back(training.step_ms_beside_dd(bytes) / plain.step_ms);
    cpu_without.push_back(plain.cpu_ms);
    cpu_with.push_back(saving.cpu_ms);
    call.push_back(saving.call_ms);
    copy.push_back(saving.copy_ms);
    kept.push_back(saving.kept_mb);
  }
  for (int round = 0; round < options.rounds; ++round) {
    save_gb_s.push_back(bytes / training.save_alone_ms() / 1e6);
    training.communicator().barrier("dd begins")->wait();
    if (training.talks()) dd_gb_s.push_back(bytes / write_with_dd(options.folder, bytes) / 1e6);
    training.communicator().barrier("dd has ended")->wait();
    if (training.talks()) of_dd.push_back(save_gb_s.back() / dd_gb_s.back());
  }
  const double step_ms = median(without);
  SlowFileSystem slow(bytes / options.ranks / (2 * step_ms));
  const Block plain = training.run(nullptr);
  const Block slowed = training.run(&slow);
  if (!training.talks()) return 0;
  const nlohmann::json result = {{"ranks", options.ranks},
                                 {"stage", options.stage},
                                 {"precision", options.precision},
                                 {"state_mb", bytes / 1e6},
                                 {"step_ms", step_ms},
                                 {"step_with_save_ms", median(with)},
                                 {"ratio", median(ratio)},
                                 {"ratio_beside_dd", median(beside_dd)},
                                 {"cpu_ms", median(cpu_without)},
                                 {"cpu_with_save_ms", median(cpu_with)},
                                 {"save_call_ms", median(call)},
                                 {"copies_in_step_ms", median(copy)},
                                 {"copies_in_step_share", median(copy) / step_ms},
                                 {"copied_mb", median(kept)},
                                 {"save_gb_s", median(save_gb_s)},
                                 {"dd_gb_s", median(dd_gb_s)},
                                 {"save_of_dd", median(of_dd)},
                                 {"slowed",
                                  {{"step_ms", slowed.step_ms},
                                   {"copies_in_step_ms", slowed.copy_ms},
                                   {"copied_mb", slowed.kept_mb},
                                   {"peak_mb", slowed.peak_mb},
                                   {"peak_without_mb", plain.peak_mb}}}};
  if (options.json) {
    std::printf("%s\n", result.dump(2).c_str());
    return 0;
  }
  std::printf(
      "%d ranks, stage %d, %s, %.0f MB of state; medians of %d blocks of %d steps\n"
      "a step                                  %8.1f ms\n"
      "a step and a durable checkpoint         %8.1f ms, %.3f of that; while dd writes as much %.3f\n"
      "  CPU time of all ranks                 %8.1f ms, without saves %.1f ms\n"
      "  in save_checkpoint()                  %8.1f ms\n"
      "  in step(), copying what is unwritten  %8.1f ms, %.1f MB of the largest rank\n"
      "a save alone                            %8.2f GB/s, %.2f of dd's %.2f (direct, fsync)\n"
      "a save slowed down to two steps: a step %8.1f ms, of which copying %.1f ms and %.1f MB; peak %.0f MB "
      "a rank, "
      "without saves %.0f MB\n",
      options.ranks, options.stage, options.precision.c_str(), bytes / 1e6, options.rounds, options.steps,
      step_ms, median(with), median(ratio), median(beside_dd), median(cpu_with), median(cpu_without),
      median(call), median(copy), median(kept), median(save_gb_s), median(of_dd), median(dd_gb_s),
      slowed.step_ms, slowed.copy_ms, slowed.kept_mb, slowed.peak_mb, plain.peak_mb);
  return 0;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::Options options;
  CLI::App app("Times training steps with a durable checkpoint after each, beside steps without.",
               "bench_checkpoint");
  app.option_defaults()->always_capture_default();
  options.add_to(app);
  app.add_option("--folder", options.folder, "for checkpoints, on the disk to be measured")->required();
  app.add_option("--stage", options.stage)->check(CLI::Range(0, 3));
  app.add_option("--rounds", options.rounds, "blocks of each kind")->check(CLI::Range(1, 1000));
  app.add_option("--steps", options.steps, "of a block")->check(CLI::Range(1, 1000));
  return zerorun::parse_and_run(app, argc, argv, [&] {
    return zerorun::run_local_ranks(options.ranks, [&] { return zerorun::run_rank(options); });
  });
}
