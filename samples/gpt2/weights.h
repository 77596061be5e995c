// Loads and saves a module's parameters by name, in a .safetensors file. One thread, while no step is under
// way.
#pragma once

#include <torch/torch.h>

#include <filesystem>

namespace zerorun {

/// Copies the tensors (F32, F16, BF16) of a .safetensors file, or of a folder as Hugging Face lays it out,
/// into the parameters of `model`. A parameter `transformer.x` may
/// also be called `x`, as in the files of the GPT-2 family; their attention masks and tied lm_head.weight are
/// skipped. Throws UserError naming the tensor that is missing, superfluous, or of another shape.
void load_weights(torch::nn::Module& model, const std::filesystem::path& path);

/// Whether a Hugging Face folder has weights that load_weights() can try.
bool has_weights(const std::filesystem::path& folder);

/// Writes every parameter, whole and in its own type (fp32, fp16, bf16), under its name. Throws UserError.
void save_weights(const torch::nn::Module& model, const std::filesystem::path& file);

}  // namespace zerorun
