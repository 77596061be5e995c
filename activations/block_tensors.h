// Conversions between the tensors of a block and what its function takes and returns, for recomputable().
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "activations/recomputed_block.h"

namespace zerorun {

namespace detail {

inline Tensors to_tensors(at::Tensor result) {
  return {std::move(result)};
}
inline Tensors to_tensors(Tensors result) {
  return result;
}
template <typename... Each>
Tensors to_tensors(std::tuple<Each...> result) {
  return std::apply([](auto&&... each) { return Tensors{std::move(each)...}; }, std::move(result));
}
template <typename First, typename Second>
Tensors to_tensors(std::pair<First, Second> result) {
  return {std::move(result.first), std::move(result.second)};
}

template <typename Result>
Result from_tensors(Tensors tensors) {
  if constexpr (std::is_same_v<Result, Tensors>) {
    return tensors;
  } else if constexpr (std::is_same_v<Result, at::Tensor>) {
    return std::move(tensors.at(0));
  } else {
    return [&]<size_t... Index>(std::index_sequence<Index...>) {
      return Result{std::move(tensors.at(Index))...};
    }
    (std::make_index_sequence<std::tuple_size_v<Result>>());
  }
}

template <typename Function, size_t... Index>
decltype(auto) call(Function& function, const Tensors& inputs, std::index_sequence<Index...>) {
  return function(inputs[Index]...);
}

template <typename Input>
concept TensorInput = std::convertible_to<const Input&, at::Tensor>;

}  // namespace detail

}  // namespace zerorun
