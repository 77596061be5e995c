#include "benchmarks/step_watched.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/timeline.h"
#include "benchmarks/figures.h"
#include "comm/connect/rendezvous.h"

namespace zerorun {
namespace {

constexpr int64_t kRingMib = 4;

// The folder of what the run writes; rank 0 makes and removes it.
std::string folder_of_job() {
  const char* job = std::getenv("MASTER_PORT");
  return (std::filesystem::temp_directory_path() / ("bench_step_" + std::string(job != nullptr ? job : "0")))
      .string();
}

nlohmann::json config_of(const StepOptions& options, bool is_watched) {
  nlohmann::json config = options.config({{"stage", 3}, {"overlap_comm", options.overlap}});
  if (!is_watched) return config;
  const std::string folder = folder_of_job();
  config["zerorun"]["run_log"] = {{"path", folder + "/run"}};
  config["csv_monitor"] = {{"enabled", true}, {"output_path", folder}, {"job_name", "csv"}};
  config["tensorboard"] = {{"enabled", true}, {"output_path", folder}, {"job_name", "events"}};
  config["comms_logger"] = {{"enabled", true}};
  return config;
}

// Nanoseconds of an event that is recorded.
double cost_of_event() {
  constexpr int kSpans = 20'000;
  std::vector<double> times;
  for (int round = 0; round < 9; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int span = 0; span < kSpans; ++span) const TimelineSpan recorded(TimelineName::sum, -1, span);
    times.push_back(milliseconds_since(begin) * 1e6 / (2 * kSpans));
  }
  return median(std::move(times));
}

}  // namespace

int run_step_watched(const StepOptions& options) {
  const WorkMeter meter;
  at::set_num_threads(1);
  const auto communicator = connect();
  TimelineRing& ring = *TimelineRing::create(-1, kRingMib).release();  // stays until the process ends
  std::vector<Variant> variants;
  for (const bool is_watched : {false, false, true})
    variants.push_back(make_variant(options, config_of(options, is_watched), true, communicator));
  const at::Tensor tokens = random_tokens(options.model, options.micro_batch, communicator->rank())
                                .to(communicator->device().location());
  constexpr int kWarmUp = 2;
  double steps = 0;
  for (int round = -kWarmUp; round < options.rounds; ++round) {
    for (Variant& variant : variants) {
      const bool is_watched = &variant == &variants.back();
      if (is_watched) timeline::use(ring);
      const StepCost cost = time_step(variant, tokens, *communicator, meter);
      if (is_watched) timeline::leave(ring);
      if (round >= 0) variant.note(cost);
      if (is_watched) steps += kStepsOfTurn;
    }
  }
  const double events = static_cast<double>(ring.next_ticket()) / steps;
  timeline::use(ring);
  const double nanoseconds = cost_of_event();
  timeline::leave(ring);
  if (communicator->rank() != 0) return 0;
  std::filesystem::remove_all(folder_of_job());
  const double step = median(variants[0].milliseconds), cpu = median(variants[0].cpu_milliseconds);
  const nlohmann::json result{{"step_ms", step},
                              {"again", median(variants[1].milliseconds) / step},
                              {"watched", median(variants[2].milliseconds) / step},
                              {"again_cpu", median(variants[1].cpu_milliseconds) / cpu},
                              {"watched_cpu", median(variants[2].cpu_milliseconds) / cpu},
                              {"events_of_step", events},
                              {"ns_of_event", nanoseconds},
                              {"events_share", events * nanoseconds * 1e-6 / step}};
  if (options.json) {
    std::printf("%s\n", result.dump(2).c_str());
    return 0;
  }
  std::printf(
      "stage 3, medians of %d turns: step %.1f ms; again %.3f, watched %.3f of it (CPU time: %.3f, %.3f)\n"
      "%.0f events in a step, %.0f ns each: %.4f %% of the step\n",
      options.rounds, step, result["again"].get<double>(), result["watched"].get<double>(),
      result["again_cpu"].get<double>(), result["watched_cpu"].get<double>(), events, nanoseconds,
      100 * result["events_share"].get<double>());
  return 0;
}

}  // namespace zerorun
