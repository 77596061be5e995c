// What an engine writes and prints about its steps (docs/monitoring.md).
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "activations/recomputation.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/engine_state.h"
#include "engine/run_log.h"
#include "engine/step_hashes.h"
#include "engine/timeline_session.h"
#include "monitor/run_record.h"

namespace zerorun {
namespace {

constexpr int64_t kStepsPerBreakdown = 10;  // when steps_per_print is absent

// The categories that have something.
std::vector<std::pair<std::string, int64_t>> named(const BytesByCategory& bytes) {
  std::vector<std::pair<std::string, int64_t>> all = {
      {"parameters", bytes.parameters}, {"gradients", bytes.gradients}, {"master", bytes.master},
      {"moments", bytes.moments},       {"buckets", bytes.buckets},     {"buffers", bytes.buffers},
      {"gathered", bytes.gathered},     {"on_host", bytes.on_host},     {"in_files", bytes.in_files}};
  std::erase_if(all, [](const auto& category) { return category.second == 0; });
  return all;
}

// "parameters 1048576, gradients 1048576, ..."
std::string describe(const BytesByCategory& bytes) {
  std::string text;
  for (const auto& [name, value] : named(bytes))
    text += (text.empty() ? "" : ", ") + name + ' ' + std::to_string(value);
  return text;
}

}  // namespace

int64_t EngineState::begin_step_events(int64_t backwards) {
  const BatchConfig& batch = config.batch;
  const int64_t of_step = config.managed_gradient_accumulation
                              ? batch.train_batch_size
                              : backwards * batch.micro_batch_size_per_gpu * mesh.data().world_size();
  const int64_t samples = progress.counts().samples + of_step;
  RunMonitor::Step step{.lr = optimizer->groups() > 0 ? optimizer->lr(0) : 0, .samples = samples};
  if (scaler) step.loss_scale = loss_scale();
  monitor->begin_step(step);
  return samples;
}

void EngineState::record_end_of_step() {
  if (TimelineSession* timeline = monitor->timeline())
    timeline->end_step(progress.counts().global, bytes_by_category());
}

StepRecord EngineState::step_record() const {
  StepRecord record{.step = progress.counts().global, .is_skipped = !outcome.applied()};
  if (!monitor->run_log()) return record;
  for (const auto& [name, value] : named(bytes_by_category())) record.bytes[name] = value;
  if (hashes) hashes->add_to(record);
  return record;
}

void EngineState::report_step() {
  if (mesh.world().rank() != 0) return;
  const int64_t interval = config.steps_per_print.value_or(kStepsPerBreakdown);
  const bool is_due = progress.counts().global % interval == 0;
  if (!is_due && !config.monitoring.memory_breakdown) return;
  const std::string step = "step " + std::to_string(progress.counts().global) + ": ";
  if (config.monitoring.memory_breakdown)
    log_info(step + "bytes of rank 0: " + describe(bytes_by_category()));
  if (!is_due) return;
  if (timer.enabled()) log_info(step + timer.report(interval));
  const std::string recomputed = recomputation ? recomputation->report() : "";
  if (!recomputed.empty()) log_info(step + recomputed);
}

void Engine::log(const std::string& tag, double value) {
  state_->monitor->log(tag, value, global_samples());
}

int64_t Engine::global_samples() const {
  return state_->progress.counts().samples;
}

void Engine::set_tokens_per_step(int64_t tokens) {
  if (RunLog* log = state_->monitor->run_log()) log->set_tokens_per_step(tokens);
}

void Engine::set_global_samples(int64_t samples) {
  if (samples < 0) {
    throw UserError("engine.set_global_samples(): expected a number of samples of at least 0, found " +
                    std::to_string(samples));
  }
  state_->progress.restored_counts().samples = samples;
}

std::string Engine::log_communication() const {
  const std::string table = state_->monitor->communication();
  if (!table.empty()) log_info("collectives of rank 0 so far\n" + table);
  return table;
}

}  // namespace zerorun
