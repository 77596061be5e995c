#include "engine/run_log.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/Version.h>
#include <ATen/ops/zeros.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "base/run_log_board.h"
#include "comm/agreement.h"
#include "engine/engine_state.h"

namespace zerorun {
namespace {

std::string name_of_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

// "2 ranks on worker-0, worker-1"
std::string describe_ranks(const RunRecord& run) {
  std::string text = std::to_string(run.world_size) + (run.world_size == 1 ? " rank on " : " ranks on ");
  for (const std::string& host : run.hosts) text += (&host == &run.hosts.front() ? "" : ", ") + host;
  return text;
}

}  // namespace

RunRecord run_record_of(const EngineState& state, std::vector<LoggedParameter> parameters) {
  const Config& config = state.config;
  const BytesPerParameter bytes = state.bytes_per_parameter();
  const TimelineConfig& timeline = config.monitoring.timeline;
  return {.precision = name_of(config.precision.training),
          .master = name_of(config.precision.master),
          .optimizer = state.optimizer_name,
          .seed = at::detail::getDefaultCPUGenerator().current_seed(),
          .micro_batch = config.batch.micro_batch_size_per_gpu,
          .accumulation = config.batch.gradient_accumulation_steps,
          .sums_micro_steps = state.policy.reduce_every_backward,
          .has_hashes = config.monitoring.run_log.has_hashes(),
          .states = LoggedStates{.parameters = static_cast<double>(state.buckets.numel()),
                                 .value = static_cast<double>(bytes.value),
                                 .gradient = static_cast<double>(bytes.gradient),
                                 .master = bytes.master,
                                 .moments = bytes.moments},
          .timeline = timeline.enabled ? std::filesystem::absolute(timeline.path).string() : "",
          .settings = settings_of(config.resolved),
          .parameters = std::move(parameters)};
}

RunLog::RunLog(const RunLogConfig& config, Mesh mesh)
    : mesh_(std::move(mesh)),
      path_(std::filesystem::absolute(config.path)),
      last_end_(std::chrono::steady_clock::now()),
      exceptions_(std::uncaught_exceptions()) {
  if (mesh_.world().rank() == 0) writer_.emplace(config.path);
  on_host_ = mesh_.world().device().allocate_on_host(2 * int64_t{mesh_.sizes().data}, at::kDouble);
}

RunLog::~RunLog() {
  if (!has_begun_) return;
  const bool failed = std::uncaught_exceptions() > exceptions_;
  writer_->write(RunEvent{.step = step_,
                          .kind = failed ? RunEventKind::failed : RunEventKind::ended,
                          .time = now_in_utc(),
                          .text = failed ? "rank 0: an exception ended the engine" : ""});
}

void RunLog::start(RunRecord run) {
  Communicator& world = mesh_.world();
  for (std::string& host : exchange_texts(name_of_host(), world, "the hosts of the run log")) {
    if (std::ranges::count(run.hosts, host) == 0) run.hosts.push_back(std::move(host));
  }
  run.started = now_in_utc();
  run.device = world.device().location().str();
  run.device.resize(std::min(run.device.find(':'), run.device.size()));
  run.transport = world.shares_memory() ? "shared memory" : "messages";
  run.libtorch = TORCH_VERSION;
  run.processor = at::get_cpu_capability();
  run.world_size = world.world_size();
  run.mesh = mesh_.sizes();
  on_all_ranks(world, "the file of the run log", [&] {
    if (writes()) writer_->write(run);
  });
  if (writes()) {
    writer_->write(RunEvent{.time = run.started, .text = describe_ranks(run)});
    show_run_log(path_);
    has_begun_ = true;
  }
  sent_ = elements_sent();
  last_end_ = std::chrono::steady_clock::now();
}

void RunLog::write_start(int64_t step, const HashText& values) {
  if (writes()) writer_->write(StepRecord{.step = step, .is_start = true, .values = values});
}

void RunLog::add_loss(const at::Tensor& loss) {
  const at::Tensor value = loss.detach().to(mesh_.world().device().location(), at::kDouble).reshape({1});
  sum_ = sum_.defined() ? sum_ + value : value;
  ++losses_;
}

void RunLog::drop_losses() {
  sum_.reset();
  losses_ = 0;
}

void RunLog::begin_step() {
  mean_.reset();
  if (losses_ > 0) mean_ = sum_ / losses_;
  drop_losses();
}

// Of the ranks of a data coordinate, which have one loss, the first tensor rank of the last pipeline stage
// tells it.
void RunLog::share_losses() {
  const int64_t ranks = mesh_.sizes().data, rank = mesh_.coordinates().data;
  Communicator& world = mesh_.world();
  const at::Tensor all =
      at::zeros({2 * ranks}, at::TensorOptions(at::kDouble).device(world.device().location()));
  const bool tells =
      mesh_.coordinates().tensor == 0 && mesh_.coordinates().pipeline == mesh_.sizes().pipeline - 1;
  if (tells && mean_.defined()) {
    all.narrow(0, rank, 1).copy_(mean_);
    all.narrow(0, ranks + rank, 1).fill_(1);
  }
  world.all_reduce(all, "losses for the run log")->wait();
  world.device().copy(on_host_, all);
}

void RunLog::add_losses(StepRecord& step) const {
  const int ranks = mesh_.sizes().data;
  const double* values = on_host_.const_data_ptr<double>();
  double sum = 0;
  int known = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool has_loss = values[ranks + rank] > 0;
    step.losses.push_back(has_loss ? std::optional(values[rank]) : std::nullopt);
    if (!has_loss) continue;
    sum += values[rank];
    ++known;
  }
  if (known > 0) step.loss = sum / known;
  if (known == 0) step.losses.clear();
}

std::map<std::string, double> RunLog::elements_sent() const {
  std::map<std::string, double> sent;
  for (Communicator* each : mesh_.communicators()) {
    const Volume& volume = each->volume();
    for (int kind = 0; kind < kCollectiveKinds; ++kind) {
      const auto collective = static_cast<Collective>(kind);
      sent[name_of(collective)] += volume.elements(collective);
    }
    sent["send"] += volume.elements_of_messages();
  }
  return sent;
}

void RunLog::end_step(StepRecord step) {
  if (!writes()) return;
  add_losses(step);
  step.tokens = tokens_per_step_;
  const auto now = std::chrono::steady_clock::now();
  step.seconds = std::chrono::duration<double>(now - std::exchange(last_end_, now)).count();
  const std::map<std::string, double> sent = elements_sent();
  for (const auto& [kind, elements] : sent) {
    const double before = sent_[kind];
    // The program may have reset the counters.
    const double since = elements >= before ? elements - before : elements;
    if (since > 0) step.elements[kind] = since;
  }
  sent_ = sent;
  step_ = step.step;
  writer_->write(step);
}

}  // namespace zerorun
