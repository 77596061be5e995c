#include "engine/gradient_marks.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "base/error.h"
#include "zero/interception.h"

namespace zerorun {
namespace {

const char* const kRemedy =
    "The engine has taken this gradient and averages it over ranks. To read or change it call "
    "safe_get_full_grad() and safe_set_full_grad() of zerorun.utils (C++: zerorun::ParameterStates); to "
    "clip, set \"gradient_clipping\" in the config; to drop all gradients call engine.zero_grad()";

}  // namespace

struct GradientMarks::Mark : StorageOwner {
  std::shared_ptr<Recorder> keeps;  // a mark may outlive the engine
  int64_t numel = 0;
  bool zeroed = false;
};

struct GradientMarks::Recorder final : OperatorRecorder {
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override {
    const std::string& name = op.operator_name().name;
    if (name == "aten::detach_") return op.redispatchBoxed(below, stack);
    if (name != "aten::zero_" && name != "aten::_foreach_zero_") refuse(op);
    const c10::IValue target = torch::jit::pop(*stack);
    if (target.isTensor()) {
      zero(target.toTensor(), op);
      stack->push_back(target);
      return;
    }
    for (const at::Tensor& tensor : target.toTensorVector()) zero(tensor, op);
  }

  void zero(const at::Tensor& tensor, const c10::OperatorHandle& op) const {
    StorageOwner* owner = owner_of(tensor);
    if (!owner || !dynamic_cast<Recorder*>(owner->recorder)) {
      tensor.zero_();
      return;
    }
    auto* mark = static_cast<Mark*>(owner);
    if (tensor.numel() != mark->numel) refuse(op);  // some rows of a gradient only
    mark->zeroed = true;
  }

  [[noreturn]] static void refuse(const c10::OperatorHandle& op) {
    throw UserError("operator " + c10::toString(op.operator_name()) +
                    " on grad() of a parameter of an engine. " + kRemedy);
  }
};

// Runs before LibTorch adds a gradient to grad().
struct GradientMarks::Hook : torch::autograd::FunctionPreHook {
  Hook(std::shared_ptr<GradientMarks*> marks, int index) : marks(std::move(marks)), index(index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    if (*marks && gradients[0].defined()) (*marks)->take(index);
    return gradients;
  }

  std::shared_ptr<GradientMarks*> marks;
  int index;
};

// LibTorch's zero_grad(set_to_none=false) in C++ replaces grad() with grad().detach(), which has the mark's
// storage.
bool GradientMarks::Entry::is_marked() const {
  const at::Tensor& gradient = parameter.grad();
  return gradient.defined() && owner_of(gradient) == owner;
}

void GradientMarks::Entry::make_view() {
  mark = marked_view(storage, parameter.scalar_type(), parameter.sizes(), parameter.strides(), 0);
}

void GradientMarks::Entry::place() {
  if (owner_of(mark) != owner) make_view();  // the program has given the mark other data
  parameter.mutable_grad() = mark;
}

bool GradientMarks::Entry::is_gone() const {
  return held && (owner->zeroed || lost || (!taken && !parameter.grad().defined()));
}

GradientMarks::GradientMarks(std::span<const NamedParameter> trained)
    : recorder_(std::make_shared<Recorder>()), self_(std::make_shared<GradientMarks*>(this)) {
  install_interception();
  for (const auto& [name, parameter, group, share, split, tied] : trained) {
    Entry& entry = entries_.emplace_back();
    entry.name = name;
    entry.parameter = parameter;
    entry.node = torch::autograd::impl::grad_accumulator(parameter);
    entry.node->add_pre_hook(std::make_unique<Hook>(self_, static_cast<int>(entries_.size() - 1)));
    make_mark(entry);
  }
}

GradientMarks::~GradientMarks() {
  *self_ = nullptr;
  for (Entry& entry : entries_) {
    if (entry.is_marked()) entry.parameter.mutable_grad().reset();
  }
}

void GradientMarks::make_mark(Entry& entry) const {
  const at::Tensor& parameter = entry.parameter;
  auto owner = std::make_unique<Mark>();
  owner->recorder = recorder_.get();
  owner->keeps = recorder_;
  owner->numel = parameter.numel();
  owner->storage_gone = [](StorageOwner* gone) { delete static_cast<Mark*>(gone); };
  entry.owner = owner.get();
  const auto nbytes = static_cast<int64_t>(parameter.numel() * parameter.element_size());
  entry.storage = make_owned_storage(*owner.release(), nbytes, parameter.device(), kRemedy);
  entry.make_view();
}

void GradientMarks::place() {
  for (Entry& entry : entries_) {
    entry.held = entry.held || entry.taken;
    entry.owner->zeroed = entry.taken = entry.lost = entry.is_set = false;
    if (entry.held) entry.place();
  }
}

void GradientMarks::place(std::span<const char> has_gradient) {
  for (size_t index = 0; index < entries_.size(); ++index) entries_[index].held = has_gradient[index] != 0;
  place();
}

// A gradient that a backward has brought and the engine has not taken is left from a backward that threw. A
// mark that the program has kept, or given other data, is not used again: if it came back, it would stand for
// a gradient of another window.
void GradientMarks::clear() {
  const int now = current();
  for (size_t index = 0; index < entries_.size(); ++index) {
    Entry& entry = entries_[index];
    const bool is_left = entry.taken && static_cast<int>(index) != now;
    if (is_left || entry.is_marked()) entry.parameter.mutable_grad().reset();
    entry.owner->zeroed = entry.held = entry.lost = entry.is_set = false;
    entry.taken = static_cast<int>(index) == now;
    const bool is_own = entry.mark.use_count() == 1 && entry.storage.use_count() == 2;
    if (!is_own) make_mark(entry);
  }
}

void GradientMarks::empty() {
  const int now = current();
  for (size_t index = 0; index < entries_.size(); ++index) {
    if (static_cast<int>(index) != now) entries_[index].parameter.mutable_grad().reset();
  }
}

void GradientMarks::hook_again() {
  for (const Entry& entry : entries_) set_grad_accumulator(entry.parameter, entry.node);
}

void GradientMarks::refuse() {
  for (Entry& entry : entries_) {
    const bool comes_back = entry.held && !entry.is_gone();
    entry.parameter.mutable_grad().reset();
    if (comes_back) entry.place();
    entry.owner->zeroed = entry.taken = entry.lost = entry.is_set = false;
  }
}

void GradientMarks::take(int index) {
  last_taken_ = index;
  Entry& entry = entries_[index];
  at::Tensor& gradient = entry.parameter.mutable_grad();
  if (!std::exchange(entry.taken, true)) {
    entry.lost = !gradient.defined();
    entry.is_set = gradient.defined() && !entry.is_marked();
  }
  gradient.reset();
}

// The parameter whose gradient a running backward has brought last; -1 outside of a backward.
int GradientMarks::current() const {
  return torch::autograd::get_current_graph_task_id() >= 0 ? last_taken_ : -1;
}

bool GradientMarks::dropped(const std::string& call) {
  const Entry* gone = nullptr;
  const Entry* kept = nullptr;
  for (const Entry& entry : entries_) {
    if (entry.is_set || (!entry.taken && entry.parameter.grad().defined() && !entry.is_marked())) {
      refuse();
      throw UserError(
          call + "(): the program has set grad() of parameter " + entry.name +
          ", which has no effect on the engine and is undone: call safe_set_full_grad() of zerorun.utils "
          "(C++: zerorun::ParameterStates) instead, after the last backward() before a step");
    }
    if (entry.held) (entry.is_gone() ? gone : kept) = &entry;
  }
  if (!gone) return false;
  if (kept) {
    throw UserError(call + "(): the program has dropped the gradient of parameter " + gone->name +
                    " and not that of " + kept->name +
                    ": drop those of all parameters (engine.zero_grad()), or set a gradient to zeros by "
                    "safe_set_full_grad() of zerorun.utils (C++: zerorun::ParameterStates)");
  }
  return true;
}

}  // namespace zerorun
