#include "config/sections.h"

namespace zerorun::config {
namespace {

constexpr std::string_view prescale_key = "prescale_gradients";
constexpr std::string_view factor_key = "gradient_predivide_factor";

/// With "gradient_allreduce_op": "sum", refuses the keys that divide gradients. DeepSpeed ignores these keys
/// in that case.
void check_sum(const Resolution& resolution, const Config& config) {
  if (config.prescale_gradients) {
    resolution.report(prescale_key, "false beside \"gradient_allreduce_op\": \"sum\"", "true",
                      "remove one of the two: gradients divided by the number of ranks make an average");
  }
  if (config.gradient_predivide_factor != 1) {
    resolution.report(factor_key, "1 beside \"gradient_allreduce_op\": \"sum\"",
                      to_json(config.gradient_predivide_factor),
                      "remove one of the two: it is a part of the division that makes an average");
  }
}

}  // namespace

void resolve_gradients(const Resolution& resolution, Config& config) {
  resolution.read("gradient_clipping", config.gradient_clipping);
  resolution.read(prescale_key, config.prescale_gradients);
  resolution.read("managed_gradient_accumulation", config.managed_gradient_accumulation);
  resolution.read(factor_key, config.gradient_predivide_factor);
  config.average_gradients = resolution.settings.get<std::string>("gradient_allreduce_op") != "sum";
  if (!config.average_gradients) {
    check_sum(resolution, config);
  } else if (config.prescale_gradients && config.gradient_predivide_factor != 1) {
    resolution.note(factor_key,
                    to_json(config.gradient_predivide_factor) +
                        " has no effect: with prescale_gradients the whole division comes before the sum");
  }
}

}  // namespace zerorun::config
