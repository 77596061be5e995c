#include "config/leftovers.h"

#include <algorithm>

#include "config/key_table.h"

namespace zerorun::config {
namespace {

constexpr Leftover table[] = {
    {"bf16",
     "loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis min_loss_scale "
     "dynamic_loss_scale loss_scaling",
     "bf16 has the range of fp32 and needs no loss scale"},
    {"", "disable_fused_adam", "every optimizer of ZeroRun is one fused pass"},
    {"", "zero3_init_flag", "a setting of Accelerate, which DeepSpeed does not read"},
    {"", "zero3_save_16bit_model",
     "a setting of Accelerate, which DeepSpeed does not read; save_16bit_model() always gathers the "
     "parameters"},
    {"", "checkpointing", "DeepSpeed has no such section; the program decides when it saves"},
    {"", "fp32_allreduce", "a key of old DeepSpeed versions, and false is what happens without it", true},
};

}  // namespace

std::span<const Leftover> leftovers() {
  return table;
}

const Leftover* find_leftover(std::string_view section, std::string_view name, const Value& value) {
  const KeyFact* fact = find_key(section);
  if (fact && fact->status == KeyStatus::old_name) section = fact->target;
  const bool is_false = value.literal == "false" || value.text == "false" || value.literal == "0";
  const auto found = std::ranges::find_if(leftovers(), [&](const Leftover& leftover) {
    return leftover.section == section && has_word(leftover.names, name) &&
           (is_false || !leftover.only_false);
  });
  return found == leftovers().end() ? nullptr : &*found;
}

}  // namespace zerorun::config
