#include "config/sections.h"

namespace zerorun {

namespace {

void check_scaling(const Resolution& resolution) {
  if (resolution.settings.get<double>("fp16.loss_scale").value_or(0) != 0) return;
  for (const std::string_view key : {"fp16.loss_scale_window", "fp16.min_loss_scale"}) {
    if (resolution.settings.get<int64_t>(key) != 0) continue;
    resolution.report(key, "an integer of at least 1 where the loss scale is found while training", "0",
                      "write a larger number, or a loss_scale above 0");
  }
}

}  // namespace

void check_precision(const Resolution& resolution) {
  const bool fp16 = resolution.settings.get<bool>("fp16.enabled").value_or(false);
  const bool bf16 = resolution.settings.get<bool>("bf16.enabled").value_or(false);
  if (fp16) check_scaling(resolution);
  if (fp16 && bf16) {
    resolution.report("bf16.enabled", "one of fp16 and bf16", "both", "set one of the two to false");
  }
}

}  // namespace zerorun
