#include "config/sections.h"

namespace zerorun {
namespace {

// torch.optim.AdamW's own default; every other optimizer's is 0.
constexpr double torch_adamw_weight_decay = 0.01;

void resolve_adam(const Resolution& resolution, const std::string& type, OptimizerConfig& optimizer) {
  const Settings& settings = resolution.settings;
  const bool adam_w_mode = settings.get<bool>("optimizer.params.adam_w_mode").value_or(true);
  const bool torch_adam = settings.get<bool>("optimizer.params.torch_adam").value_or(false);
  optimizer.type = type == "AdamW" || adam_w_mode ? OptimizerType::adam_w : OptimizerType::adam;
  if (type == "AdamW" && !adam_w_mode) {
    resolution.note("optimizer.params.adam_w_mode",
                    "false changes nothing: AdamW always decouples weight decay; \"Adam\" can do without");
  }
  if (torch_adam && optimizer.type == OptimizerType::adam_w) {
    resolution.settings.derive("optimizer.params.weight_decay", torch_adamw_weight_decay);
  }
  if (const auto betas = settings.get<std::vector<double>>("optimizer.params.betas")) {
    optimizer.beta1 = betas->at(0);
    optimizer.beta2 = betas->at(1);
  }
  resolution.read("optimizer.params.eps", optimizer.eps);
  resolution.read("optimizer.params.bias_correction", optimizer.bias_correction);
  if (torch_adam && !optimizer.bias_correction) {
    resolution.report("optimizer.params.bias_correction", "true beside torch_adam", "false",
                      "remove one of the two");
  }
}

void resolve_sgd(const Resolution& resolution, OptimizerConfig& optimizer) {
  optimizer.type = OptimizerType::sgd;
  resolution.read("optimizer.params.momentum", optimizer.momentum);
  resolution.read("optimizer.params.dampening", optimizer.dampening);
  resolution.read("optimizer.params.nesterov", optimizer.nesterov);
  if (optimizer.nesterov && (optimizer.momentum == 0.0 || optimizer.dampening != 0.0)) {
    resolution.report("optimizer.params.nesterov", "false without momentum or with dampening", "true",
                      "set momentum above 0 and dampening to 0, or nesterov to false");
  }
}

}  // namespace

std::optional<OptimizerConfig> resolve_optimizer(const Resolution& resolution) {
  const Settings& settings = resolution.settings;
  if (!settings.find("optimizer")) return std::nullopt;
  const auto type = settings.get<std::string>("optimizer.type");
  OptimizerConfig optimizer;
  if (type == "Adam" || type == "AdamW") resolve_adam(resolution, *type, optimizer);
  if (type == "SGD") resolve_sgd(resolution, optimizer);
  resolution.read("optimizer.params.lr", optimizer.lr);
  resolution.read("optimizer.params.weight_decay", optimizer.weight_decay);
  return optimizer;
}

}  // namespace zerorun
