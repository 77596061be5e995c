#include "engine/zero_redundancy_optimizer.h"

#include <mutex>
#include <set>
#include <string>

#include "base/error.h"
#include "comm/rendezvous.h"

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

// With this config every step() updates, and gradients are neither divided by accumulation steps nor clipped.
Config config_of(int stage, bool overlaps, int world_size) {
  const std::string text = R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
    "managed_gradient_accumulation": false, "zero_optimization": {"stage": )" +
                           std::to_string(stage) + R"(, "overlap_comm": )" + (overlaps ? "true" : "false") +
                           "}}";
  return parse_config(text, "the settings of ZeroRedundancyOptimizer", world_size);
}

}  // namespace

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                                                 ZeroRedundancyOptions options)
    : owned_(std::move(optimizer)), parameters_(module_of(*owned_)), optimizer_(owned_.get()) {
  start(*parameters_, stage_of(options), options.overlap_communication, std::move(options.communicator));
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                                 int stage, bool overlaps,
                                                 std::shared_ptr<Communicator> communicator)
    : optimizer_(&optimizer) {
  start(model, stage, overlaps, std::move(communicator));
}

void ZeroRedundancyOptimizer::start(torch::nn::Module& model, int stage, bool overlaps,
                                    std::shared_ptr<Communicator> communicator) {
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
  InitializeOptions options;
  options.communicator = communicator ? std::move(communicator) : connect();
  options.optimizer = optimizer_;
  try {
    const Config config = config_of(stage, overlaps, options.communicator->world_size());
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
                                                     std::shared_ptr<Communicator> communicator) {
  return std::unique_ptr<ZeroRedundancyOptimizer>(
      new ZeroRedundancyOptimizer(model, optimizer, stage, /*overlaps=*/true, std::move(communicator)));
}

}  // namespace zerorun
