// The width of a model, found from its parameters, for sizes that are "auto" in a ds_config.json. A pure
// function of the parameters' sizes; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/model.h"

namespace zerorun {

/// The size that occurs most often among the parameters' dimensions: a block of a GPT-2 has its width h in
/// eleven places, 4h in three, 3h in two. If several sizes occur equally often, returns the smallest: it is
/// more likely the width of the model than a width inside a layer, and with a smaller size fewer parameters
/// stay gathered. Dimensions of size 1 do not count, a parameter registered twice counts once, and only a
/// parameter's first two dimensions count, because the others are the kernel of a convolution. Empty if no
/// size is left.
std::optional<int64_t> hidden_size_of(const Model& model);

}  // namespace zerorun
