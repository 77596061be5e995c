#include "engine/saving/save_checks.h"

#include <cmath>
#include <variant>

#include "base/error.h"
#include "checkpoint/json_text.h"
#include "engine/saving/checkpoint_contents.h"
#include "engine/saving/restart_items.h"

namespace zerorun {
namespace {

constexpr const char* kMetadata = "__metadata__";  // what safetensors files have besides tensors

void check_name(const std::string& name, const std::string& call) {
  if (can_name_tensor(name)) return;
  throw UserError(call + "(): a parameter or buffer is named " + checkpoint::printable_text(name) +
                  ", which a safetensors file cannot have: give it another name, in UTF-8");
}

// Whether copies of its elements, in the order of their indices, are all that the tensor holds.
bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_quantized();
}

}  // namespace

bool can_name_tensor(const std::string& name) {
  return checkpoint::is_json_text(name) && name != kMetadata;
}

void check_names_and_dtypes(const EngineState& state, const std::string& call) {
  for (const NamedParameter& parameter : state.buckets.parameters()) check_name(parameter.name, call);
  for (const NamedTensor& other : state.unbucketed) {
    check_name(other.name, call);
    try {
      if (!is_plain(other.tensor)) throw UserError("a sparse or quantized tensor has no place there");
      spelled(other.tensor.scalar_type());
    } catch (const UserError& error) {
      throw UserError(call + "(): " + (other.is_buffer ? "buffer " : "frozen parameter ") + other.name +
                      " cannot be saved: " + error.what() +
                      "; convert it, or keep it in a member that is not registered");
    }
  }
}

void check_numbers(EngineState& state, const std::string& call) {
  for (const RestartItem& item : restart_items(state)) {
    const checkpoint::RestartValue value = item.read();
    const double* number = std::get_if<double>(&value);
    if (!number || std::isfinite(*number)) continue;
    throw UserError(call + "(): \"" + item.name + "\" is " + std::to_string(*number) +
                    ", which no training can continue with: set a finite number (param_groups() of the "
                    "optimizer, or engine.set_lr())");
  }
}

}  // namespace zerorun
