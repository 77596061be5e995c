// bench_offload: compares training steps that keep optimizer states in files with the same steps that keep
// everything in memory. Blocks of both kinds of steps alternate within one run. They also alternate with fio,
// which measures the disk: one process per rank reads and writes at the same time, in requests of 1 MiB.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "benchmarks/command_line.h"
#include "benchmarks/figures.h"
#include "benchmarks/local_ranks.h"
#include "benchmarks/training_options.h"
#include "comm/connect/rendezvous.h"
#include "engine/engine.h"
#include "engine/engine_state.h"
#include "samples/gpt2/model.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Options : TrainingOptions {
  Options() { precision = "bf16"; }

  int stage = 2;
  int rounds = 5;
  int steps = 5;
  int64_t queue_depth = 8;
  std::string folder;
};

// Bytes that one rank has read from files and written to files.
struct Moved {
  double read = 0;
  double written = 0;
};

class Training {
 public:
  Training(const Options& options, std::shared_ptr<Communicator> communicator, bool in_files)
      : options_(&options), communicator_(std::move(communicator)), model_(options.model) {
    nlohmann::json text = options.config({{"stage", options.stage}, {"overlap_comm", true}});
    text["aio"]["queue_depth"] = options.queue_depth;
    if (in_files) {
      text["zero_optimization"]["offload_optimizer"] = {{"device", "nvme"}, {"nvme_path", options.folder}};
    }
    const Config config = parse_config(text.dump(), "bench_offload", options.ranks);
    InitializeOptions given;
    given.communicator = communicator_;
    state_ = std::make_shared<EngineState>(model_of(*model_), config, Mesh(communicator_),
                                           collect_parameters(model_of(*model_), config, given), given);
    engine_.emplace(state_);
    tokens_ = random_tokens(options.model, options.micro_batch, communicator_->rank());
  }

  /// Runs a block of steps. Returns milliseconds per step on the slowest rank, including the writes that
  /// follow the last step.
  double run() {
    communicator_->barrier("the start of a block")->wait();
    const auto begin = Clock::now();
    for (int step = 0; step < options_->steps; ++step) {
      engine_->backward(model_->loss(tokens_));
      engine_->step();
    }
    state_->store.finish_generation();
    at::Tensor all = torch::zeros({communicator_->world_size()}, at::kDouble);
    all[communicator_->rank()] = milliseconds_since(begin) / options_->steps;
    communicator_->all_reduce(all, "figures")->wait();
    return all.max().item<double>();
  }

  const StateFiles& files() const { return state_->store.files()->files(); }
  Moved moved() const {
    return {static_cast<double>(files().read_bytes()), static_cast<double>(files().written_bytes())};
  }
  double parameters() const { return static_cast<double>(state_->buckets.numel()) / options_->ranks; }

 private:
  const Options* options_;
  std::shared_ptr<Communicator> communicator_;
  samples::Gpt2 model_;
  std::shared_ptr<EngineState> state_;
  std::optional<Engine> engine_;
  at::Tensor tokens_;
};

/// Returns the sum of the rates at which fio reads and writes, in bytes per millisecond; 0 if fio cannot run.
double rate_of_fio(const Options& options, int64_t request_bytes) {
  const std::string report = options.folder + "/fio.json";
  const std::string command =
      "fio --name=mixed --directory='" + options.folder +
      "' --rw=rw --direct=1 --ioengine=io_uring --bs=" + std::to_string(request_bytes) +
      " --iodepth=" + std::to_string(options.queue_depth) + " --numjobs=" + std::to_string(options.ranks) +
      " --size=256m --group_reporting --unlink=1 --output-format=json --output='" + report + "' 2>/dev/null";
  if (std::system(command.c_str()) != 0) return 0;
  const auto job = nlohmann::json::parse(std::ifstream(report)).at("jobs").at(0);
  fs::remove(report);
  return (job.at("read").at("bw_bytes").get<double>() + job.at("write").at("bw_bytes").get<double>()) / 1000;
}

int run_rank(const Options& options) {
  at::set_num_threads(1);
  const auto communicator = connect();
  Training in_memory(options, communicator, false);
  Training in_files(options, communicator, true);
  in_memory.run();
  in_files.run();
  const bool talks = communicator->rank() == 0;
  const double parameters = in_files.parameters();
  std::vector<double> without, with, ratio, rates, of_bound, read, written, by_kernel;
  for (int round = 0; round < options.rounds; ++round) {
    without.push_back(in_memory.run());
    const Moved before = in_files.moved();
    const double io = number_in("/proc/self/io", "read_bytes") + number_in("/proc/self/io", "write_bytes");
    with.push_back(in_files.run());
    const Moved after = in_files.moved();
    by_kernel.push_back(
        (number_in("/proc/self/io", "read_bytes") + number_in("/proc/self/io", "write_bytes") - io) /
        options.steps / parameters);
    read.push_back((after.read - before.read) / options.steps / parameters);
    written.push_back((after.written - before.written) / options.steps / parameters);
    ratio.push_back(with.back() / without.back());
    communicator->barrier("fio begins")->wait();
    if (talks) rates.push_back(rate_of_fio(options, 1 << 20));
    communicator->barrier("fio has ended")->wait();
    if (!talks) continue;
    const double bytes = (read.back() + written.back()) * parameters * options.ranks;
    of_bound.push_back(with.back() / (without.back() + (rates.back() > 0 ? bytes / rates.back() : 0)));
  }
  if (!talks) return 0;
  const double state = static_cast<double>(in_files.files().file_bytes()) / 2;
  const double buffers = static_cast<double>(in_files.files().buffer_bytes());
  const nlohmann::json result = {{"ranks", options.ranks},
                                 {"stage", options.stage},
                                 {"precision", options.precision},
                                 {"parameters_of_a_rank", parameters},
                                 {"transfers", in_files.files().transfers()},
                                 {"step_ms", median(without)},
                                 {"step_in_files_ms", median(with)},
                                 {"ratio", median(ratio)},
                                 {"read_per_parameter", median(read)},
                                 {"written_per_parameter", median(written)},
                                 {"by_kernel_per_parameter", median(by_kernel)},
                                 {"state_mb", state / 1e6},
                                 {"buffers_of_state", buffers / state},
                                 {"fio_gb_s", median(rates) / 1e6},
                                 {"of_computation_and_disk", median(of_bound)}};
  if (options.json) {
    std::printf("%s\n", result.dump(2).c_str());
    return 0;
  }
  std::printf(
      "%d ranks, stage %d, %s, %.0f MB of state in files on each, through %s; medians of %d blocks of %d "
      "steps\n"
      "a step with everything in memory   %8.1f ms\n"
      "a step with states in files        %8.1f ms, %.3f of that\n"
      "  read and written                 %8.2f and %.2f bytes per parameter; by /proc/self/io %.2f in all\n"
      "  buffers                          %8.1f MB, %.3f of the state\n",
      options.ranks, options.stage, options.precision.c_str(), state / 1e6, in_files.files().transfers(),
      options.rounds, options.steps, median(without), median(with), median(ratio), median(read),
      median(written), median(by_kernel), buffers / 1e6, buffers / state);
  if (median(rates) > 0) {
    std::printf(
        "fio, reading and writing at once   %8.2f GB/s; the step takes %.3f of computation + bytes / that\n",
        median(rates) / 1e6, median(of_bound));
  } else {
    std::printf("fio fails, or is not installed: no figure of the disk alone\n");
  }
  return 0;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::Options options;
  CLI::App app("Times training steps with optimizer states in files, beside steps with them in memory.",
               "bench_offload");
  app.option_defaults()->always_capture_default();
  options.add_to(app);
  app.add_option("--folder", options.folder, "for the files, on the disk to be measured")->required();
  app.add_option("--stage", options.stage)->check(CLI::Range(1, 3));
  app.add_option("--rounds", options.rounds, "blocks of each kind")->check(CLI::Range(1, 1000));
  app.add_option("--steps", options.steps, "of a block")->check(CLI::Range(1, 1000));
  app.add_option("--queue-depth", options.queue_depth)->check(CLI::PositiveNumber);
  return zerorun::parse_and_run(app, argc, argv, [&] {
    std::filesystem::create_directories(options.folder);
    return zerorun::run_local_ranks(options.ranks, [&] { return zerorun::run_rank(options); });
  });
}
