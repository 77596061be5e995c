#include "plan/model_shapes.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "checkpoint/file_system.h"
#include "checkpoint/safetensors_reader.h"

namespace zerorun {
namespace {

at::ScalarType dtype_of(const std::string& name, const TensorInfo& info, const std::filesystem::path& file) {
  static const std::map<std::string, at::ScalarType> kTrained = {
      {"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}, {"F64", at::kDouble}};
  const auto found = kTrained.find(info.dtype);
  if (found != kTrained.end()) return found->second;
  throw UserError(
      file.string() + ": tensor " + name + " has dtype " + info.dtype +
      ", and a plan is for models of F32, BF16, F16 or F64: give the model's unquantized files, or "
      "its number of parameters (--params)");
}

// The hidden size that the model's config.json names, as Hugging Face's models spell it.
std::optional<int64_t> hidden_size_beside(const std::filesystem::path& folder) {
  const auto text = checkpoint::read_text(checkpoint::local_file_system(), folder / "config.json");
  if (!text) return std::nullopt;
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  for (const char* key : {"hidden_size", "n_embd", "d_model"}) {
    if (json.is_object() && json.contains(key) && json.at(key).is_number_integer())
      return json.at(key).get<int64_t>();
  }
  return std::nullopt;
}

// Masks, positions and counts are buffers. Bytes are refused as parameters: they are quantized weights.
std::optional<at::ScalarType> dtype_of_buffer(const std::string& spelled) {
  if (spelled == "I64") return at::kLong;
  if (spelled == "I32") return at::kInt;
  if (spelled == "BOOL") return at::kBool;
  return std::nullopt;
}

at::Tensor imagine(const TensorShape& shape) {
  const at::Tensor tensor = at::empty(shape.sizes, at::dtype(shape.dtype).device(at::kMeta));
  return shape.is_trained ? tensor.set_requires_grad(true) : tensor;
}

}  // namespace

int64_t ModelShapes::numel() const {
  int64_t total = 0;
  for (const TensorShape& parameter : parameters) total += c10::multiply_integers(parameter.sizes);
  return total;
}

ModelShapes shapes_of_folder(const std::filesystem::path& path) {
  const SafetensorsReader reader(path);
  std::vector<std::pair<const std::string*, const TensorInfo*>> tensors;
  for (const auto& [name, info] : reader.tensors()) tensors.emplace_back(&name, &info);
  // In the files' order, which is closer to the model's than that of the names.
  std::ranges::stable_sort(
      tensors, {}, [](const auto& tensor) { return std::pair(tensor.second->file, tensor.second->begin); });
  ModelShapes shapes;
  for (const auto& [name, info] : tensors) {
    if (const auto dtype = dtype_of_buffer(info->dtype)) {
      shapes.buffers.push_back({.name = *name, .sizes = info->shape, .dtype = *dtype, .is_trained = false});
      continue;
    }
    shapes.parameters.push_back(
        {.name = *name, .sizes = info->shape, .dtype = dtype_of(*name, *info, reader.file_of(*info))});
  }
  if (shapes.numel() == 0)
    throw UserError(path.string() + ": the model has no parameters: give another folder, or --params N");
  if (std::filesystem::is_directory(path)) shapes.hidden_size = hidden_size_beside(path);
  return shapes;
}

ModelShapes shapes_of_size(int64_t numel) {
  constexpr int64_t kSide = 4096;
  // Large models have larger matrices rather than more of them: Llama 70B has 562.
  const int64_t largest = std::max(kSide * kSide, numel / 512);
  const int64_t matrix = std::max<int64_t>(std::min(largest, numel / 64), 1);
  ModelShapes shapes;
  for (int64_t begin = 0; begin < numel; begin += matrix) {
    shapes.parameters.push_back({.name = "parameter " + std::to_string(shapes.parameters.size()),
                                 .sizes = {std::min(matrix, numel - begin)}});
  }
  return shapes;
}

Model imagine(const ModelShapes& shapes) {
  Model model;
  for (const TensorShape& shape : shapes.parameters)
    model.parameters.emplace_back(shape.name, imagine(shape));
  for (const TensorShape& shape : shapes.buffers) model.buffers.emplace_back(shape.name, imagine(shape));
  model.is_training = [] { return true; };
  model.set_training = [](bool) {};
  return model;
}

}  // namespace zerorun
