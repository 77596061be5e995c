// What a plan knows of a model: names, shapes and dtypes of its tensors, no values. Plain values; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/model.h"

namespace zerorun {

struct TensorShape {
  std::string name;
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  bool is_trained = true;
};

struct ModelShapes {
  std::vector<TensorShape> parameters;  // tied ones once
  std::vector<TensorShape> buffers;
  std::optional<int64_t> hidden_size = {};  // from which "auto" bucket sizes are made

  int64_t numel() const;  // of parameters
};

/// The tensors of a folder with safetensors files, or of one such file. Reads headers only. All are taken for
/// trained parameters. Throws UserError naming the file, and the tensor if its dtype has no gradients.
ModelShapes shapes_of_folder(const std::filesystem::path& path);
/// A model of `numel` parameters in square matrices.
ModelShapes shapes_of_size(int64_t numel);
/// A model of these tensors on LibTorch's meta device.
Model imagine(const ModelShapes& shapes);

}  // namespace zerorun
