#include "config/sections.h"

namespace zerorun {
namespace {

// torch.optim.AdamW's own default; every other optimizer's is 0.
constexpr double torch_adamw_weight_decay = 0.01;
// What torch.optim.Adagrad and RMSprop have where DeepSpeed's own optimizers have 1e-3 and 1e-8.
constexpr double torch_larger_lr = 0.01;
constexpr double torch_adagrad_eps = 1e-10;
// Those of DeepSpeed's MuonWithAuxAdam.
const std::vector<double> muon_betas = {0.9, 0.95};
constexpr double muon_eps = 1e-10;
constexpr double muon_momentum = 0.95;
constexpr double muon_default_lr = 0.02;
constexpr double muon_default_adam_lr = 3e-4;

void read_betas(const Resolution& resolution, OptimizerConfig& optimizer) {
  const auto betas = resolution.settings.get<std::vector<double>>("optimizer.params.betas");
  if (!betas) return;
  optimizer.beta1 = betas->at(0);
  optimizer.beta2 = betas->at(1);
}

void resolve_adam(const Resolution& resolution, const std::string& type, OptimizerConfig& optimizer) {
  const Settings& settings = resolution.settings;
  const std::optional<bool> adam_w_mode = settings.get<bool>("optimizer.params.adam_w_mode");
  const bool decoupled = adam_w_mode.value_or(true);
  const bool torch_adam = settings.get<bool>("optimizer.params.torch_adam").value_or(false);
  optimizer.type = type == "AdamW" || decoupled ? OptimizerType::adam_w : OptimizerType::adam;
  optimizer.silently_adam_w = type == "Adam" && !settings.given("optimizer.params.adam_w_mode");
  if (type == "AdamW" && !decoupled) {
    resolution.note("optimizer.params.adam_w_mode",
                    "false changes nothing: AdamW always decouples weight decay; \"Adam\" can do without");
  }
  if (torch_adam && optimizer.type == OptimizerType::adam_w) {
    resolution.settings.derive("optimizer.params.weight_decay", torch_adamw_weight_decay);
  }
  read_betas(resolution, optimizer);
  resolution.read("optimizer.params.bias_correction", optimizer.bias_correction);
  if (torch_adam && !optimizer.bias_correction) {
    resolution.report("optimizer.params.bias_correction", "true beside torch_adam", "false",
                      "remove one of the two");
  }
  resolution.read("optimizer.params.amsgrad", optimizer.amsgrad);
  if (optimizer.amsgrad && !torch_adam) {
    resolution.note("optimizer.params.amsgrad", "true works here; DeepSpeed takes it beside torch_adam only");
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

void resolve_adagrad(const Resolution& resolution, OptimizerConfig& optimizer) {
  optimizer.type = OptimizerType::adagrad;
  resolution.settings.derive("optimizer.params.lr", torch_larger_lr);
  resolution.settings.derive("optimizer.params.eps", torch_adagrad_eps);
  resolution.read("optimizer.params.lr_decay", optimizer.lr_decay);
  resolution.read("optimizer.params.initial_accumulator_value", optimizer.initial_accumulator_value);
}

void resolve_rmsprop(const Resolution& resolution, OptimizerConfig& optimizer) {
  optimizer.type = OptimizerType::rmsprop;
  resolution.settings.derive("optimizer.params.lr", torch_larger_lr);
  resolution.read("optimizer.params.alpha", optimizer.alpha);
  resolution.read("optimizer.params.momentum", optimizer.momentum);
  resolution.read("optimizer.params.centered", optimizer.centered);
}

void resolve_lion(const Resolution& resolution, OptimizerConfig& optimizer) {
  optimizer.type = OptimizerType::lion;
  read_betas(resolution, optimizer);
}

void resolve_lamb(const Resolution& resolution, OptimizerConfig& optimizer) {
  optimizer.type = OptimizerType::lamb;
  read_betas(resolution, optimizer);
  resolution.read("optimizer.params.bias_correction", optimizer.bias_correction);
  resolution.read("optimizer.params.eps_inside_sqrt", optimizer.eps_inside_sqrt);
  resolution.read("optimizer.params.max_coeff", optimizer.max_coeff);
  resolution.read("optimizer.params.min_coeff", optimizer.min_coeff);
  if (optimizer.min_coeff > optimizer.max_coeff) {
    resolution.note("optimizer.params.min_coeff", "is above max_coeff: every trust ratio is min_coeff");
  }
}

// Muon's own lr is the file's "lr"; what AdamW updates follows adam_lr.
void resolve_muon(const Resolution& resolution, OptimizerConfig& optimizer) {
  Settings& settings = resolution.settings;
  optimizer.type = OptimizerType::muon;
  settings.derive("optimizer.params.betas", muon_betas);
  settings.derive("optimizer.params.eps", muon_eps);
  settings.derive("optimizer.params.momentum", muon_momentum);
  const bool has_lr = settings.given("optimizer.params.lr");
  settings.derive("optimizer.params.lr", muon_default_lr);
  const double lr = settings.get<double>("optimizer.params.lr").value_or(muon_default_lr);
  settings.derive("optimizer.params.muon_lr", lr);
  settings.derive("optimizer.params.adam_lr", has_lr ? lr : muon_default_adam_lr);
  read_betas(resolution, optimizer);
  resolution.read("optimizer.params.momentum", optimizer.momentum);
  resolution.read("optimizer.params.adam_lr", optimizer.adam_lr);
  if (settings.get<std::string>("optimizer.params.ns_method") == "standard") {
    optimizer.newton_schulz = NewtonSchulz::standard;
  }
}

}  // namespace

const char* name_of(OptimizerType type) {
  switch (type) {
    case OptimizerType::adam_w:
      return "AdamW";
    case OptimizerType::adam:
      return "Adam";
    case OptimizerType::sgd:
      return "SGD";
    case OptimizerType::adagrad:
      return "Adagrad";
    case OptimizerType::rmsprop:
      return "RMSprop";
    case OptimizerType::lion:
      return "Lion";
    case OptimizerType::lamb:
      return "Lamb";
    case OptimizerType::muon:
      return "Muon";
  }
  return "";
}

std::optional<OptimizerConfig> resolve_optimizer(const Resolution& resolution) {
  const Settings& settings = resolution.settings;
  if (!settings.find("optimizer")) return std::nullopt;
  const auto type = settings.get<std::string>("optimizer.type");
  OptimizerConfig optimizer;
  if (type == "Adam" || type == "AdamW") resolve_adam(resolution, *type, optimizer);
  if (type == "SGD") resolve_sgd(resolution, optimizer);
  if (type == "Adagrad") resolve_adagrad(resolution, optimizer);
  if (type == "RMSprop") resolve_rmsprop(resolution, optimizer);
  if (type == "Lion") resolve_lion(resolution, optimizer);
  if (type == "Lamb") resolve_lamb(resolution, optimizer);
  if (type == "Muon") resolve_muon(resolution, optimizer);
  resolution.read(type == "Muon" ? "optimizer.params.muon_lr" : "optimizer.params.lr", optimizer.lr);
  resolution.read("optimizer.params.eps", optimizer.eps);
  resolution.read("optimizer.params.weight_decay", optimizer.weight_decay);
  return optimizer;
}

}  // namespace zerorun
