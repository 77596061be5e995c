#include "engine/run_monitor.h"

#include <array>
#include <exception>
#include <utility>

#include "base/log.h"
#include "comm/agreement.h"
#include "engine/run_log.h"
#include "engine/timeline_session.h"

namespace zerorun {
namespace {

constexpr const char* kLoss = "Train/Samples/train_loss";
constexpr const char* kLr = "Train/Samples/lr";
constexpr const char* kLossScale = "Train/Samples/loss_scale";
constexpr const char* kNorm = "Train/Samples/grad_norm";

}  // namespace

RunMonitor::RunMonitor(const MonitoringConfig& config, Mesh mesh, EventSink sink) : mesh_(std::move(mesh)) {
  if (config.timeline.enabled) timeline_ = std::make_unique<TimelineSession>(config.timeline, mesh_.world());
  const bool writes = mesh_.world().rank() == 0;
  const auto open = [&] {
    if (writes) monitors_.emplace(config, std::move(sink));
    if (config.run_log.is_on()) run_log_ = std::make_unique<RunLog>(config.run_log, mesh_);
  };
  if (config.writes_files()) {
    on_all_ranks(mesh_.world(), "the files of monitors", open);
  } else {
    open();
  }
  if (!writes) return;
  if (follows()) mean_ = mesh_.world().device().allocate_on_host(1, at::kDouble);
  if (!config.comms.enabled || (!config.comms.prof_all && config.comms.prof_ops.empty())) return;
  log_ = std::make_shared<CommunicationLog>(CommunicationLogOptions{
      .only = config.comms.prof_all ? std::vector<std::string>{} : config.comms.prof_ops,
      .verbose = config.comms.verbose,
      .shows_labels = config.comms.debug,
      .is_timed = !mesh_.world().device().streams().asynchronous()});
  record_in(log_);
}

RunMonitor::~RunMonitor() {
  if (!log_) return;
  record_in(nullptr);
  if (std::uncaught_exceptions() == 0) log_info("collectives of rank 0 in this run\n" + log_->table());
}

bool RunMonitor::follows() const {
  return monitors_ && monitors_->any();
}

void RunMonitor::record_in(const std::shared_ptr<CommunicationLog>& log) {
  for (Communicator* each : mesh_.communicators()) each->set_log(log);
}

void RunMonitor::add_loss(const at::Tensor& loss) {
  add_to_events(loss);
  if (run_log_) run_log_->add_loss(loss);
}

void RunMonitor::add_to_events(const at::Tensor& loss) {
  if (!follows()) return;
  const at::Tensor value = loss.detach().to(mesh_.world().device().location(), at::kDouble).reshape({1});
  sum_ = sum_.defined() ? sum_ + value : value;
  ++losses_;
}

void RunMonitor::set_loss(const at::Tensor& mean, const at::Tensor& own) {
  drop_losses();
  add_to_events(mean);
  if (run_log_) run_log_->add_loss(own);
}

void RunMonitor::drop_losses() {
  sum_.reset();
  losses_ = 0;
  if (run_log_) run_log_->drop_losses();
}

void RunMonitor::share_step() {
  if (run_log_) run_log_->share_losses();
}

// The copy to host memory is on the stream on which the facts are computed next. So it is complete when they
// are known.
void RunMonitor::begin_step(const Step& step) {
  step_ = step;
  if (run_log_) run_log_->begin_step();
  if (!follows()) return;
  has_mean_ = losses_ > 0;
  if (has_mean_) mesh_.world().device().copy(mean_, sum_ / losses_);
  drop_losses();
}

void RunMonitor::end_step(double gradient_norm, StepRecord record) {
  if (!step_) return;
  const Step step = *std::exchange(step_, std::nullopt);
  if (run_log_) {
    record.gradient_norm = gradient_norm;
    record.lr = step.lr;
    record.loss_scale = step.loss_scale;
    record.samples = step.samples;
    run_log_->end_step(std::move(record));
  }
  if (!follows()) return;
  const auto write = [&](const char* tag, double value) {
    monitors_->write({.tag = tag, .value = value, .samples = step.samples});
  };
  if (has_mean_) write(kLoss, mean_.const_data_ptr<double>()[0]);
  write(kLr, step.lr);
  if (step.loss_scale) write(kLossScale, *step.loss_scale);
  write(kNorm, gradient_norm);
}

void RunMonitor::log(const std::string& tag, double value, int64_t samples) {
  check_tag(tag);
  if (follows()) monitors_->write({.tag = tag, .value = value, .samples = samples});
}

}  // namespace zerorun
