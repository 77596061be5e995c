// The width of a model, read off its parameters: what "auto" sizes in a ds_config.json are made from. A pure
// function of names and sizes; any thread.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <optional>

namespace zerorun {

/// The size that occurs most often among the dimensions of the parameters: a block of a GPT-2 has its width h
/// in eleven places, 4h in three, 3h in two. Where two sizes occur equally often the smaller one is taken: a
/// layer's width rather than that of what it is projected to, and the choice that keeps less gathered. Sizes
/// 1 do not count, a parameter registered twice counts once, and of more than two dimensions only the first
/// two count: a convolution's others are its kernel. Nothing if no size is left.
std::optional<int64_t> hidden_size_of(const torch::nn::Module& model);

}  // namespace zerorun
