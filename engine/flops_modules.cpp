#include "engine/flops_modules.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>

#include "zero/node_pointer.h"

namespace zerorun {
namespace {

std::string path_around(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

}  // namespace

FlopsModules::FlopsModules(const Model::NamedTensors& parameters)
    : modules_(1), around_{0}, by_path_{{"", 0}} {
  for (const auto& [name, tensor] : parameters) {
    const int module = add(path_around(name));
    if (of_parameter_.emplace(tensor.unsafeGetTensorImpl(), module).second)  // else it is tied
      modules_[static_cast<size_t>(module)].parameters += tensor.numel();
  }
}

int FlopsModules::add(const std::string& path) {
  const auto found = by_path_.find(path);
  if (found != by_path_.end()) return found->second;
  const int around = add(path_around(path));
  const auto module = static_cast<int>(modules_.size());
  modules_.push_back({.path = path});
  around_.push_back(around);
  by_path_.emplace(path, module);
  return module;
}

void FlopsModules::note(Thread& thread, Place place) {
  thread.now = place;
  const size_t module = static_cast<size_t>(place.module);
  const int owner = place.is_inside ? place.module : around_[module];
  thread.history.emplace_back(at::sequence_number::peek(), owner);
}

std::optional<FlopsModules::Place> FlopsModules::enter(c10::ArrayRef<const c10::IValue> inputs) {
  for (const c10::IValue& input : inputs) {
    if (!input.isTensor() || !input.toTensor().defined()) continue;
    const auto found = of_parameter_.find(input.toTensor().unsafeGetTensorImpl());
    if (found == of_parameter_.end()) continue;
    Thread& thread = threads_[at::RecordFunction::currentThreadId()];
    const Place before = thread.now;
    note(thread, {.module = found->second, .is_inside = true});
    return before;
  }
  return {};
}

void FlopsModules::leave(Place before) {
  Thread& thread = threads_[at::RecordFunction::currentThreadId()];
  note(thread,
       {.module = before.is_inside ? before.module : thread.now.module, .is_inside = before.is_inside});
}

void FlopsModules::add_flops(size_t phase, int64_t flops) {
  modules_[static_cast<size_t>(of_operator())].flops[phase] += flops;
}

// A block's forward runs with gradients inside of a backward, which itself runs without.
int FlopsModules::of_operator() const {
  const NodePointer node(torch::autograd::get_current_node());
  const bool is_backward = node && !c10::GradMode::is_enabled();
  const uint64_t number = is_backward ? node->sequence_nr() : at::sequence_number::peek();
  const auto thread = threads_.find(is_backward ? node->thread_id() : at::RecordFunction::currentThreadId());
  if (thread == threads_.end()) return 0;
  const auto& history = thread->second.history;
  const auto after = std::ranges::upper_bound(history, number, {}, &std::pair<uint64_t, int>::first);
  return after == history.begin() ? 0 : std::prev(after)->second;
}

}  // namespace zerorun
