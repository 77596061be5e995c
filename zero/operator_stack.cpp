#include "zero/operator_stack.h"

#include <utility>

namespace zerorun {

const at::Tensor& tensor_at(const torch::jit::Stack& stack, size_t index, std::optional<size_t> item) {
  return item ? stack[index].toListRef()[*item].toTensor() : stack[index].toTensor();
}

void put_tensor(torch::jit::Stack& stack, size_t index, std::optional<size_t> item, at::Tensor tensor) {
  if (item) {
    stack[index].toList().set(*item, std::move(tensor));
  } else {
    stack[index] = std::move(tensor);
  }
}

torch::jit::Stack with_own_lists(const torch::jit::Stack& stack, size_t count) {
  torch::jit::Stack copy(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
  for (c10::IValue& value : copy) {
    if (value.isList()) value = value.toList().copy();
  }
  return copy;
}

void give_results(torch::jit::Stack& stack, size_t arguments, torch::jit::Stack results) {
  torch::jit::drop(stack, arguments);
  for (c10::IValue& result : results) stack.push_back(std::move(result));
}

std::optional<size_t> argument_named(const c10::OperatorHandle& op, std::string_view name) {
  const auto& arguments = op.schema().arguments();
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (arguments[index].name() == name) return index;
  }
  return {};
}

}  // namespace zerorun
