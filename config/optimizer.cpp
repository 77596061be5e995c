#include "config/sections.h"

namespace zerorun::config {
namespace {

// The default of torch.optim.AdamW. All other optimizers default to 0.
constexpr double torch_adamw_weight_decay = 0.01;
// The defaults of DeepSpeed's MuonWithAuxAdam.
const std::vector<double> muon_betas = {0.9, 0.95};
constexpr double muon_eps = 1e-10;
constexpr double muon_default_adam_lr = 3e-4;

// Reads the hyperparameters that many optimizers share, if `Optimizer` has them.
template <typename Optimizer>
Optimizer with_common(const Resolution& resolution, Optimizer optimizer) {
  resolution.read("optimizer.params.lr", optimizer.lr);
  resolution.read("optimizer.params.weight_decay", optimizer.weight_decay);
  if constexpr (requires { optimizer.eps; }) resolution.read("optimizer.params.eps", optimizer.eps);
  if constexpr (requires { optimizer.momentum; }) {
    resolution.read("optimizer.params.momentum", optimizer.momentum);
  }
  if constexpr (requires { optimizer.bias_correction; }) {
    resolution.read("optimizer.params.bias_correction", optimizer.bias_correction);
  }
  if constexpr (requires { optimizer.beta1; }) {
    if (const auto betas = resolution.settings.get<std::vector<double>>("optimizer.params.betas")) {
      optimizer.beta1 = betas->at(0);
      optimizer.beta2 = betas->at(1);
    }
  }
  return optimizer;
}

// read_params() reads one optimizer's hyperparameters. This one is for an optimizer whose hyperparameters are
// all shared and have the defaults that config/keys/optimizer.cpp gives; the others have overloads.
template <typename Optimizer>
Optimizer read_params(const Resolution& resolution, const Optimizer& defaults) {
  return with_common(resolution, defaults);
}

AdamConfig read_params(const Resolution& resolution, const AdamConfig& defaults) {
  Settings& settings = resolution.settings;
  const auto type = settings.get<std::string>("optimizer.type");
  const std::optional<bool> adam_w_mode = settings.get<bool>("optimizer.params.adam_w_mode");
  const bool torch_adam = settings.get<bool>("optimizer.params.torch_adam").value_or(false);
  const bool decoupled = type == "AdamW" || adam_w_mode.value_or(true);
  if (type == "AdamW" && !adam_w_mode.value_or(true)) {
    resolution.note("optimizer.params.adam_w_mode",
                    "false has no effect: AdamW always decouples weight decay; use \"Adam\" to change that");
  }
  if (torch_adam && decoupled) settings.derive("optimizer.params.weight_decay", torch_adamw_weight_decay);
  AdamConfig adam = with_common(resolution, defaults);
  adam.decoupled = decoupled;
  adam.silently_decoupled = type == "Adam" && !settings.given("optimizer.params.adam_w_mode");
  if (torch_adam && !adam.bias_correction) {
    resolution.report("optimizer.params.bias_correction", "true with torch_adam", "false",
                      "remove one of the two");
  }
  resolution.read("optimizer.params.amsgrad", adam.amsgrad);
  if (adam.amsgrad && !torch_adam) {
    resolution.note("optimizer.params.amsgrad", "true works here; DeepSpeed accepts it only with torch_adam");
  }
  return adam;
}

SgdConfig read_params(const Resolution& resolution, const SgdConfig& defaults) {
  SgdConfig sgd = with_common(resolution, defaults);
  resolution.read("optimizer.params.dampening", sgd.dampening);
  resolution.read("optimizer.params.nesterov", sgd.nesterov);
  if (sgd.nesterov && (sgd.momentum == 0.0 || sgd.dampening != 0.0)) {
    resolution.report("optimizer.params.nesterov", "false without momentum or with dampening", "true",
                      "set momentum above 0 and dampening to 0, or nesterov to false");
  }
  return sgd;
}

AdagradConfig read_params(const Resolution& resolution, const AdagradConfig& defaults) {
  resolution.settings.derive("optimizer.params.lr", defaults.lr);
  resolution.settings.derive("optimizer.params.eps", defaults.eps);
  AdagradConfig adagrad = with_common(resolution, defaults);
  resolution.read("optimizer.params.lr_decay", adagrad.lr_decay);
  resolution.read("optimizer.params.initial_accumulator_value", adagrad.initial_accumulator_value);
  return adagrad;
}

RmspropConfig read_params(const Resolution& resolution, const RmspropConfig& defaults) {
  resolution.settings.derive("optimizer.params.lr", defaults.lr);
  RmspropConfig rmsprop = with_common(resolution, defaults);
  resolution.read("optimizer.params.alpha", rmsprop.alpha);
  resolution.read("optimizer.params.centered", rmsprop.centered);
  return rmsprop;
}

LambConfig read_params(const Resolution& resolution, const LambConfig& defaults) {
  LambConfig lamb = with_common(resolution, defaults);
  resolution.read("optimizer.params.eps_inside_sqrt", lamb.eps_inside_sqrt);
  resolution.read("optimizer.params.max_coeff", lamb.max_coeff);
  resolution.read("optimizer.params.min_coeff", lamb.min_coeff);
  if (lamb.min_coeff > lamb.max_coeff) {
    resolution.note("optimizer.params.min_coeff", "is above max_coeff: every trust ratio is min_coeff");
  }
  return lamb;
}

// "muon_lr" defaults to "lr". "adam_lr", for the parameters that AdamW updates, defaults to "lr" if that is
// given, else to 3e-4.
MuonConfig read_params(const Resolution& resolution, const MuonConfig& defaults) {
  Settings& settings = resolution.settings;
  settings.derive("optimizer.params.betas", muon_betas);
  settings.derive("optimizer.params.eps", muon_eps);
  settings.derive("optimizer.params.momentum", defaults.momentum);
  const bool has_lr = settings.given("optimizer.params.lr");
  settings.derive("optimizer.params.lr", defaults.lr);
  const double lr = settings.get<double>("optimizer.params.lr").value_or(defaults.lr);
  settings.derive("optimizer.params.muon_lr", lr);
  settings.derive("optimizer.params.adam_lr", has_lr ? lr : muon_default_adam_lr);
  MuonConfig muon = with_common(resolution, defaults);
  muon.adamw = with_common(resolution, AdamConfig{});
  muon.adamw.bias_correction = true;
  resolution.read("optimizer.params.muon_lr", muon.lr);
  resolution.read("optimizer.params.adam_lr", muon.adamw.lr);
  resolution.read("optimizer.params.per_head_muon", muon.per_head);
  if (settings.get<std::string>("optimizer.params.ns_method") == "standard") {
    muon.newton_schulz = NewtonSchulz::standard;
  }
  return muon;
}

// The optimizer of `type`, one of the variant's names. Nothing for another type: it was refused and has been
// reported.
template <typename... Optimizers>
std::optional<OptimizerConfig> read_params_of(const Resolution& resolution, std::string_view type,
                                              const std::variant<Optimizers...>& /*any*/) {
  std::optional<OptimizerConfig> optimizer;
  const auto read_if = [&]<typename Optimizer>(const Optimizer& defaults) {
    if (type == Optimizer::name) optimizer = read_params(resolution, defaults);
  };
  (read_if(Optimizers{}), ...);
  return optimizer;
}

}  // namespace

std::optional<OptimizerConfig> resolve_optimizer(const Resolution& resolution) {
  const Settings& settings = resolution.settings;
  if (!settings.find("optimizer")) return std::nullopt;
  const auto type = settings.get<std::string>("optimizer.type");
  if (!type) return std::nullopt;
  return read_params_of(resolution, *type == "AdamW" ? AdamConfig::name : *type, OptimizerConfig());
}

}  // namespace zerorun::config

namespace zerorun {

const char* name_of(const OptimizerConfig& optimizer) {
  const auto* adam = std::get_if<AdamConfig>(&optimizer);
  if (adam && adam->decoupled) return "AdamW";
  return std::visit([](const auto& config) { return config.name; }, optimizer);
}

std::optional<std::string> reason_against_narrow_states(const OptimizerConfig& optimizer,
                                                        const PrecisionConfig& precision) {
  const auto* adam = std::get_if<AdamConfig>(&optimizer);
  if (precision.moments_in_8_bits) {
    if (adam && adam->amsgrad) return "whose amsgrad needs the largest squares exactly";
    if (!adam && !std::holds_alternative<LionConfig>(optimizer))
      return "which has no states that can be in 8 bits";
  }
  if (!precision.has_narrow_states()) return std::nullopt;
  if (std::holds_alternative<LambConfig>(optimizer) || std::holds_alternative<MuonConfig>(optimizer))
    return "whose step needs whole parameters in fp32";
  // The difference of two rounded averages is often not positive, and the step is then divided by eps alone.
  const auto* rmsprop = std::get_if<RmspropConfig>(&optimizer);
  if (rmsprop && rmsprop->centered && precision.moments != Dtype::fp32)
    return "whose centered variance is a small difference of two averages";
  return std::nullopt;
}

}  // namespace zerorun
