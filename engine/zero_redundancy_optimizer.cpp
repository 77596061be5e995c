#include "engine/zero_redundancy_optimizer.h"

#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <sstream>
#include <string>

#include "base/error.h"
#include "comm/connect/rendezvous.h"

namespace zerorun {
namespace {

// The parameters that belong to a ZeroRedundancyOptimizer of this process.
std::mutex registry_mutex;
std::set<const void*>& registry() {
  // Never destroyed, because destructors of static optimizers may still use it at the end of the process.
  static auto* const parameters = new std::set<const void*>();
  return *parameters;
}

// A module with the optimizer's parameters, named by their index.
std::unique_ptr<torch::nn::Module> module_of(const torch::optim::Optimizer& optimizer) {
  auto module = std::make_unique<torch::nn::Module>();
  int64_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params())
      module->register_parameter(std::to_string(index++), parameter, parameter.requires_grad());
  }
  return module;
}

int stage_of(const ZeroRedundancyOptions& options) {
  return options.partition_parameters ? 3 : options.partition_grad ? 2 : 1;
}

// With this config every step() updates, and gradients are not divided by accumulation steps.
Config config_of(int stage, const ZeroRedundancyOptions& options, int world_size) {
  if (!std::isfinite(options.max_grad_norm) || options.max_grad_norm < 0)
    throw UserError("max_grad_norm " + std::to_string(options.max_grad_norm) +
                    ": expected a norm above 0, or 0 for gradients that are not clipped");
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  text << R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": )" << options.max_grad_norm
       << R"(, "managed_gradient_accumulation": false, "zero_optimization": {"stage": )" << stage
       << R"(, "overlap_comm": )" << (options.overlap_communication ? "true" : "false") << "}}";
  return parse_config(text.str(), "the settings of ZeroRedundancyOptimizer", world_size);
}

}  // namespace

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                                                 ZeroRedundancyOptions options)
    : owned_(std::move(optimizer)), parameters_(module_of(*owned_)), optimizer_(owned_.get()) {
  start(*parameters_, stage_of(options), std::move(options));
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                                 int stage, std::shared_ptr<Communicator> communicator,
                                                 double max_grad_norm)
    : optimizer_(&optimizer) {
  start(model, stage, {.communicator = std::move(communicator), .max_grad_norm = max_grad_norm});
}

void ZeroRedundancyOptimizer::start(torch::nn::Module& model, int stage, ZeroRedundancyOptions given) {
  if (stage < 0 || stage > 3)
    throw UserError("enable_zero: stage " + std::to_string(stage) + ", expected 0, 1, 2 or 3");
  {
    std::lock_guard lock(registry_mutex);
    for (const auto& parameter : model.named_parameters()) {
      if (registry().contains(parameter->unsafeGetTensorImpl()))
        throw UserError("parameter " + parameter.key() +
                        " belongs to a ZeroRedundancyOptimizer already: destroy that one first");
    }
    for (const at::Tensor& parameter : model.parameters()) {
      registered_.push_back(parameter.unsafeGetTensorImpl());
      registry().insert(registered_.back());
    }
  }
  try {
    InitializeOptions options;
    options.communicator = given.communicator ? given.communicator : connect();
    options.optimizer = optimizer_;
    const Config config = config_of(stage, given, options.communicator->world_size());
    engine_ = std::make_unique<Engine>(initialize(model, config, options));
  } catch (...) {
    std::lock_guard lock(registry_mutex);
    for (const void* parameter : registered_) registry().erase(parameter);
    throw;
  }
}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() {
  engine_.reset();
  std::lock_guard lock(registry_mutex);
  for (const void* parameter : registered_) registry().erase(parameter);
}

void ZeroRedundancyOptimizer::step() {
  engine_->step();
}

void ZeroRedundancyOptimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure) {
    throw UserError(
        "ZeroRedundancyOptimizer::step(closure): a closure computes the loss again within an update, in "
        "which ranks may differ: call loss.backward() and then step()");
  }
  step();
}

void ZeroRedundancyOptimizer::zero_grad() {
  engine_->zero_grad();
}

std::unique_ptr<ZeroRedundancyOptimizer> enable_zero(torch::nn::Module& model,
                                                     torch::optim::Optimizer& optimizer, int stage,
                                                     std::shared_ptr<Communicator> communicator,
                                                     double max_grad_norm) {
  return std::unique_ptr<ZeroRedundancyOptimizer>(
      new ZeroRedundancyOptimizer(model, optimizer, stage, std::move(communicator), max_grad_norm));
}

}  // namespace zerorun
