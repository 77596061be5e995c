// Loads and saves a module's parameters by name in .safetensors files. Call from one thread, while no
// training step is in progress.
#pragma once

#include <torch/torch.h>

#include <filesystem>

namespace samples {

/// Copies the tensors (F32, F16, BF16) of a .safetensors file, or of a folder as Hugging Face lays it out,
/// into the parameters of `model`. A parameter `transformer.x` may be named `x` in the file, as in files of
/// the GPT-2 family. Attention masks and a tied lm_head.weight in the file are skipped. Throws UserError
/// naming a tensor that is missing, superfluous or of another shape.
void load_weights(torch::nn::Module& model, const std::filesystem::path& path);

/// Whether a Hugging Face folder has weights in .safetensors files.
bool has_weights(const std::filesystem::path& folder);

/// Writes every parameter in full, in its own dtype (fp32, fp16 or bf16), under its name. Throws UserError.
void save_weights(const torch::nn::Module& model, const std::filesystem::path& file);

}  // namespace samples
