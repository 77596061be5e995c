// Checks that throw, for rank-threads, which may not use CHECK.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace zerorun::testing {

/// Throws std::runtime_error, which fails the test, unless `condition` holds.
void expect(bool condition, const std::string& what);
/// Throws unless both tensors have the same shape, dtype and bits.
void expect_same(const at::Tensor& found, const at::Tensor& expected, const std::string& what);
/// The same for lists of parameters.
void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                 const std::string& what);
/// Throws unless both modules have the same parameters and buffers.
void expect_same(const torch::nn::Module& found, const torch::nn::Module& expected, const std::string& what);
/// Throws unless `action` throws an exception with `part` in its message.
void expect_throws(const std::function<void()>& action, const std::string& part, const std::string& what);

}  // namespace zerorun::testing
