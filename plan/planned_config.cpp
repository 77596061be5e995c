#include "plan/planned_config.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "config/check.h"
#include "config/config.h"
#include "config/document.h"

namespace zerorun {
namespace {

using nlohmann::ordered_json;

ordered_json as_json(const config::Value& value) {
  if (value.kind == config::ValueKind::object) {
    ordered_json object = ordered_json::object();
    for (const config::DocumentMember& member : value.members) object[member.key] = as_json(member.value);
    return object;
  }
  if (value.kind == config::ValueKind::array) {
    ordered_json array = ordered_json::array();
    for (const config::Value& item : value.items) array.push_back(as_json(item));
    return array;
  }
  return ordered_json::parse(value.literal);
}

// For "auto", as programs often have them; no size depends on them.
Arguments usual_arguments() {
  return {{"train_micro_batch_size_per_gpu", int64_t{1}},
          {"gradient_accumulation_steps", int64_t{1}},
          {"gradient_clipping", 1.0},
          {"optimizer.params.lr", 1e-4},
          {"optimizer.params.betas", std::vector<double>{0.9, 0.999}},
          {"optimizer.params.eps", 1e-8},
          {"optimizer.params.weight_decay", 0.0},
          {"scheduler.params.warmup_min_lr", 0.0},
          {"scheduler.params.warmup_max_lr", 1e-4},
          {"scheduler.params.warmup_num_steps", int64_t{1}},
          {"scheduler.params.total_num_steps", int64_t{1000}}};
}

}  // namespace

ordered_json as_json(const std::string& text, const std::string& origin) {
  config::Diagnostics diagnostics(origin, text);
  const auto document = config::read_document(text, diagnostics);
  diagnostics.throw_if_any();
  return as_json(*document);
}

Config planned_config(const std::string& text, const std::string& origin, LoadOptions options) {
  options.arguments.merge(usual_arguments());
  return parse_config(text, origin, options);
}

}  // namespace zerorun
