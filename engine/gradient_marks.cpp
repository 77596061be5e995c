#include "engine/gradient_marks.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "base/error.h"
#include "zero/interception.h"

namespace zerorun {
namespace {

const char* const kRemedy =
    "The engine has taken this gradient and averages it over ranks. To read or change it call "
    "safe_get_full_grad() and safe_set_full_grad() of zerorun.utils (C++: zerorun::ParameterStates); to "
    "clip, set "
    "\"gradient_clipping\" in the config; to drop all gradients call engine.zero_grad()";

}  // namespace

struct GradientMarks::Mark : StorageOwner {
  std::shared_ptr<Recorder> keeps;  // a mark may outlive the engine
  bool zeroed = false;
};

struct GradientMarks::Recorder : OperatorRecorder {
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override {
    const std::string& name = op.operator_name().name;
    if (name == "aten::detach_") return op.redispatchBoxed(below, stack);
    if (name != "aten::zero_" && name != "aten::_foreach_zero_") {
      throw UserError("operator " + c10::toString(op.operator_name()) +
                      " on grad() of a parameter of an engine. " + kRemedy);
    }
    const c10::IValue target = torch::jit::pop(*stack);
    if (target.isTensor()) {
      zero(target.toTensor());
      stack->push_back(target);
      return;
    }
    for (const at::Tensor& tensor : target.toTensorVector()) zero(tensor);
  }

  void zero(const at::Tensor& tensor) const {
    StorageOwner* owner = owner_of(tensor);
    if (owner && dynamic_cast<Recorder*>(owner->recorder)) {
      static_cast<Mark*>(owner)->zeroed = true;
    } else {
      tensor.zero_();
    }
  }
};

// Runs before LibTorch adds a gradient to grad().
struct GradientMarks::Hook : torch::autograd::FunctionPreHook {
  Hook(std::shared_ptr<GradientMarks*> marks, int index) : marks(std::move(marks)), index(index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    if (*marks) (*marks)->take(index);
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

GradientMarks::GradientMarks(std::span<const NamedParameter> trained)
    : self_(std::make_shared<GradientMarks*>(this)) {
  install_interception();
  const auto recorder = std::make_shared<Recorder>();
  for (const auto& [name, parameter, group] : trained) {
    auto owner = std::make_unique<Mark>();
    owner->recorder = recorder.get();
    owner->keeps = recorder;
    owner->storage_gone = [](StorageOwner* gone) { delete static_cast<Mark*>(gone); };
    Entry& entry = entries_.emplace_back(Entry{.name = name,
                                               .parameter = parameter,
                                               .mark = {},
                                               .owner = owner.get(),
                                               .node = torch::autograd::impl::grad_accumulator(parameter)});
    const auto nbytes = static_cast<int64_t>(parameter.numel() * parameter.element_size());
    const c10::Storage storage = make_owned_storage(*owner.release(), nbytes, parameter.device(), kRemedy);
    entry.mark = marked_view(storage, parameter.scalar_type(), parameter.sizes(), parameter.strides(), 0);
    entry.node->add_pre_hook(std::make_unique<Hook>(self_, static_cast<int>(entries_.size() - 1)));
  }
}

GradientMarks::~GradientMarks() {
  *self_ = nullptr;
  for (Entry& entry : entries_) {
    if (entry.is_marked()) entry.parameter.mutable_grad().reset();
  }
}

void GradientMarks::place() {
  for (Entry& entry : entries_) {
    entry.parameter.mutable_grad() = entry.mark;
    entry.owner->zeroed = entry.taken = entry.lost = entry.is_set = false;
  }
  placed_ = true;
}

void GradientMarks::clear() {
  for (Entry& entry : entries_) {
    if (entry.is_marked()) entry.parameter.mutable_grad().reset();
    entry.owner->zeroed = entry.taken = entry.lost = entry.is_set = false;
  }
  placed_ = false;
}

void GradientMarks::take(int index) {
  Entry& entry = entries_[index];
  if (entry.taken) return;
  entry.taken = true;
  if (entry.is_marked()) {
    entry.parameter.mutable_grad().reset();
  } else {
    entry.is_set = entry.parameter.grad().defined();
    entry.lost = !entry.is_set;
  }
}

bool GradientMarks::dropped(const std::string& call) {
  const Entry* gone = nullptr;
  const Entry* kept = nullptr;
  for (const Entry& entry : entries_) {
    const bool is_defined = entry.parameter.grad().defined();
    if (entry.is_set || (!entry.taken && is_defined && !entry.is_marked())) {
      throw UserError(
          call + "(): the program has set grad() of parameter " + entry.name +
          ", which has no effect on the engine: empty it and call safe_set_full_grad() of zerorun.utils "
          "(C++: zerorun::ParameterStates) after the last backward() before a step");
    }
    const bool lost = entry.owner->zeroed || entry.lost || (!entry.taken && !is_defined);
    (lost ? gone : kept) = &entry;
  }
  if (!placed_ || !gone) return false;
  if (kept) {
    throw UserError(call + "(): the program has dropped the gradient of parameter " + gone->name +
                    " and not that of " + kept->name +
                    ": drop those of all parameters (engine.zero_grad()), or set a gradient to zeros by "
                    "safe_set_full_grad() of zerorun.utils (C++: zerorun::ParameterStates)");
  }
  return true;
}

}  // namespace zerorun
