// A pointer to a node of autograd's graph, in all supported versions of LibTorch. Any thread.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace zerorun {

/// std::shared_ptr up to LibTorch 2.12, c10::intrusive_ptr from 2.13 on.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

namespace detail {
template <typename T>
std::weak_ptr<T> weak_of(const std::shared_ptr<T>& pointer) {
  return pointer;
}
template <typename T>
c10::weak_intrusive_ptr<T> weak_of(const c10::intrusive_ptr<T>& pointer) {
  return c10::weak_intrusive_ptr<T>(pointer);
}
// `Weak` is the weak pointer of the same kind.
template <typename Weak>
void set_accumulator(void set(const at::Tensor&, Weak), const at::Tensor& parameter,
                     const NodePointer& node) {
  set(parameter, Weak(node));
}
}  // namespace detail

using WeakNodePointer = decltype(detail::weak_of(std::declval<NodePointer>()));

inline void set_grad_accumulator(const at::Tensor& parameter, const NodePointer& node) {
  detail::set_accumulator(torch::autograd::impl::set_grad_accumulator, parameter, node);
}

}  // namespace zerorun
