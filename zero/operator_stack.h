// Tensors on an operator's stack: among its arguments or its results, alone or in lists.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string_view>

namespace zerorun {

/// Calls `visit(index, item, tensor)` for each defined tensor among the values.
template <typename Visit>
void for_each_tensor(c10::ArrayRef<c10::IValue> values, Visit visit) {
  for (size_t index = 0; index < values.size(); ++index) {
    if (values[index].isTensor()) {
      if (values[index].toTensor().defined()) visit(index, std::optional<size_t>(), values[index].toTensor());
    } else if (values[index].isList()) {
      const auto items = values[index].toListRef();
      for (size_t item = 0; item < items.size(); ++item) {
        if (items[item].isTensor() && items[item].toTensor().defined()) {
          visit(index, std::optional<size_t>(item), items[item].toTensor());
        }
      }
    }
  }
}

/// The tensor at position `index` of the stack, or at position `item` of the list there.
const at::Tensor& tensor_at(const torch::jit::Stack& stack, size_t index, std::optional<size_t> item);
/// Puts `tensor` at such a position. Changes a list in place, so no other stack may share it.
void put_tensor(torch::jit::Stack& stack, size_t index, std::optional<size_t> item, at::Tensor tensor);

/// A copy of the last `count` values, which shares no lists with them.
torch::jit::Stack with_own_lists(const torch::jit::Stack& stack, size_t count);

/// A copy of the values with `stand_in(tensor)` in place of each tensor.
template <typename StandIn>
torch::jit::Stack replace_tensors(const torch::jit::Stack& values, StandIn stand_in) {
  torch::jit::Stack replaced = with_own_lists(values, values.size());
  for_each_tensor(values, [&](size_t index, std::optional<size_t> item, const at::Tensor& tensor) {
    put_tensor(replaced, index, item, stand_in(tensor));
  });
  return replaced;
}

/// Replaces the last `arguments` values of the stack by `results`.
void give_results(torch::jit::Stack& stack, size_t arguments, torch::jit::Stack results);

/// The index of the operator's argument of this name.
std::optional<size_t> argument_named(const c10::OperatorHandle& op, std::string_view name);

}  // namespace zerorun
