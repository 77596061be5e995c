#include "config/sections.h"

namespace zerorun {
namespace {

// torch.optim.AdamW's own default; every other optimizer's is 0.
constexpr double torch_adamw_weight_decay = 0.01;

void read_adam(SectionReader& params, const std::string& type, OptimizerConfig& optimizer) {
  bool adam_w_mode = true;
  bool torch_adam = false;
  bool amsgrad = false;
  params.read("adam_w_mode", adam_w_mode);
  params.read("torch_adam", torch_adam);
  params.read("amsgrad", amsgrad);
  optimizer.type = type == "AdamW" || adam_w_mode ? OptimizerType::adam_w : OptimizerType::adam;
  if (type == "AdamW" && !adam_w_mode) {
    params.note("adam_w_mode",
                "false changes nothing: AdamW always decouples weight decay; \"Adam\" can do without");
  }
  const bool torch_adamw = torch_adam && optimizer.type == OptimizerType::adam_w;
  if (torch_adamw) optimizer.weight_decay = torch_adamw_weight_decay;

  params.read_pair("betas", optimizer.beta1, optimizer.beta2);
  params.read("eps", optimizer.eps);
  params.read("bias_correction", optimizer.bias_correction);
  if (torch_adam && !optimizer.bias_correction) {
    params.report("bias_correction", "true beside torch_adam", "false", "remove one of the two");
  }
}

void read_sgd(SectionReader& params, OptimizerConfig& optimizer) {
  params.read("momentum", optimizer.momentum);
  params.read("dampening", optimizer.dampening);
  params.read("nesterov", optimizer.nesterov);
  if (optimizer.nesterov && (optimizer.momentum == 0.0 || optimizer.dampening != 0.0)) {
    params.report("nesterov", "false without momentum or with dampening", "true",
                  "set momentum above 0 and dampening to 0, or nesterov to false");
  }
}

}  // namespace

std::optional<OptimizerConfig> read_optimizer(SectionReader& top) {
  std::optional<SectionReader> section = top.section("optimizer");
  if (!section) return std::nullopt;
  std::optional<std::string> type;
  const bool type_fits = section->read_choice("type", type);
  if (type_fits && !type) section->report_absent("type");
  std::optional<SectionReader> params = section->section("params", type.value_or(""));

  OptimizerConfig optimizer;
  if (type == "SGD") optimizer.type = OptimizerType::sgd;
  if (!params) return optimizer;
  if (type == "SGD") {
    read_sgd(*params, optimizer);
  } else if (type) {
    read_adam(*params, *type, optimizer);
  }
  params->read("lr", optimizer.lr);
  params->read("weight_decay", optimizer.weight_decay);
  return optimizer;
}

}  // namespace zerorun
