#include "engine/parameter_owners.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "engine/has_engine.h"

namespace zerorun {
namespace {

struct Owner {
  const OwnedParameters* engine;
  const std::function<void(int)>* lost;
  int index;
};

// Never destroyed, because destructors of static engines may still use it at the end of the process.
std::mutex& mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
std::unordered_map<const c10::TensorImpl*, Owner>& owners() {
  static auto* const owners = new std::unordered_map<const c10::TensorImpl*, Owner>;
  return *owners;
}

}  // namespace

bool has_engine(const at::Tensor& parameter) {
  const std::lock_guard lock(mutex());
  return owners().contains(parameter.unsafeGetTensorImpl());
}

OwnedParameters::OwnedParameters(std::span<const NamedParameter> parameters, std::function<void(int)> lost)
    : lost_(std::move(lost)) {
  std::lock_guard lock(mutex());
  for (const NamedParameter& parameter : parameters) {
    const auto index = static_cast<int>(parameters_.size());
    parameters_.push_back(parameter.tensor);
    Owner& owner = owners()[parameter.tensor.unsafeGetTensorImpl()];
    if (owner.engine) (*owner.lost)(owner.index);
    owner = {this, &lost_, index};
  }
}

OwnedParameters::~OwnedParameters() {
  std::lock_guard lock(mutex());
  for (const at::Tensor& parameter : parameters_) {
    const auto found = owners().find(parameter.unsafeGetTensorImpl());
    if (found != owners().end() && found->second.engine == this) owners().erase(found);
  }
}

}  // namespace zerorun
