#include "samples/gpt2/weights.h"

#include <zerorun/program.h>
#include <zerorun/safetensors.h>

#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace samples {
namespace {

using zerorun::UserError;

constexpr std::string_view kPrefix = "transformer.";
constexpr const char* kHead = "lm_head.weight";

std::optional<at::ScalarType> scalar_type(std::string_view dtype) {
  if (dtype == "F32") return at::kFloat;
  if (dtype == "F16") return at::kHalf;
  if (dtype == "BF16") return at::kBFloat16;
  return std::nullopt;
}

const char* dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "F32";
    case at::kHalf:
      return "F16";
    case at::kBFloat16:
      return "BF16";
    default:
      throw UserError(std::string("parameters of type ") + at::toString(type) + " cannot be saved");
  }
}

// Whether a tensor is a causal mask, which older files contain as a buffer.
bool is_mask(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

// The name of a parameter in the file; empty if the file does not have it.
std::string name_in(const zerorun::SafetensorsReader& reader, const std::string& parameter) {
  if (reader.tensors().contains(parameter)) return parameter;
  if (parameter.starts_with(kPrefix)) {
    const std::string short_name = parameter.substr(kPrefix.size());
    if (reader.tensors().contains(short_name)) return short_name;
  }
  return {};
}

at::Tensor read_tensor(const zerorun::SafetensorsReader& reader, const std::string& name) {
  const zerorun::TensorInfo& info = reader.tensors().at(name);
  const std::string where = reader.file_of(info).string() + ": tensor '" + name + "': ";
  const std::optional<at::ScalarType> type = scalar_type(info.dtype);
  if (!type) throw UserError(where + "expected F32, F16 or BF16, found " + info.dtype);
  std::vector<std::byte> bytes = reader.read(name);
  return at::from_blob(bytes.data(), info.shape, at::TensorOptions(*type))
      .to(at::kFloat, false, /*copy=*/true);
}

void check_superfluous(const zerorun::SafetensorsReader& reader, const std::set<std::string>& used) {
  for (const auto& [name, info] : reader.tensors()) {
    if (used.contains(name) || is_mask(name) || name == kHead) continue;
    throw UserError(reader.file_of(info).string() + ": tensor '" + name + "' (" + zerorun::to_string(info) +
                    ") is no parameter of this model: give the model the size that the file has (--layers)");
  }
}

// Throws UserError if the file's head differs from its token embedding, to which this model's head is tied.
void check_head(const zerorun::SafetensorsReader& reader, const std::string& embedding) {
  if (embedding.empty() || !reader.tensors().contains(kHead)) return;
  if (at::equal(read_tensor(reader, kHead), read_tensor(reader, embedding))) return;
  throw UserError(reader.file_of(reader.tensors().at(kHead)).string() + ": tensor '" + kHead +
                  "' differs from '" + embedding + "': expected a model whose head is tied to its embedding");
}

}  // namespace

void load_weights(torch::nn::Module& model, const std::filesystem::path& path) {
  at::NoGradGuard no_grad;
  const zerorun::SafetensorsReader reader(path);
  std::set<std::string> used;
  for (auto& parameter : model.named_parameters()) {
    const std::string name = name_in(reader, parameter.key());
    const std::vector<int64_t> shape = parameter->sizes().vec();
    if (name.empty()) {
      throw UserError(path.string() + ": tensor '" + parameter.key() + "' is missing (expected " +
                      zerorun::to_string(shape) + "; found " + std::to_string(reader.tensors().size()) +
                      " tensors)");
    }
    const zerorun::TensorInfo& info = reader.tensors().at(name);
    if (info.shape != shape) {
      throw UserError(reader.file_of(info).string() + ": tensor '" + name + "': expected shape " +
                      zerorun::to_string(shape) + ", found " + zerorun::to_string(info.shape) +
                      ": give the model the size that the file has");
    }
    parameter->copy_(read_tensor(reader, name));
    used.insert(name);
  }
  check_superfluous(reader, used);
  check_head(reader, name_in(reader, "transformer.wte.weight"));
}

bool has_weights(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / "model.safetensors", error) ||
         std::filesystem::exists(folder / "model.safetensors.index.json", error);
}

void save_weights(const torch::nn::Module& model, const std::filesystem::path& file) {
  at::NoGradGuard no_grad;
  const auto parameters = model.named_parameters();
  std::vector<zerorun::TensorToStore> tensors;
  for (const auto& parameter : parameters)
    tensors.push_back({parameter.key(), dtype_name(parameter->scalar_type()), parameter->sizes().vec()});
  zerorun::SafetensorsFolder folder(zerorun::checkpoint::local_file_system(),
                                    file.has_parent_path() ? file.parent_path() : ".", tensors,
                                    std::numeric_limits<int64_t>::max(), file.stem().string());
  for (const auto& parameter : parameters) {
    const at::Tensor values = parameter->detach().to(at::kCPU).contiguous();
    folder.write({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  folder.finish();
}

}  // namespace samples
