#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_path.h"
#include "checkpoint/safetensors_folder.h"
#include "comm/agreement.h"
#include "engine/saving/checkpoint_contents.h"
#include "engine/saving/checkpoints.h"
#include "engine/saving/save_checks.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

constexpr const char* kExtension = ".safetensors";

std::string stem_of(const std::string& filename) {
  const fs::path name = filename;
  if (name.extension() == kExtension && name.filename() == name && filename.front() != '.')
    return name.stem().string();
  throw UserError("save_16bit_model: expected a file name that ends with " + std::string(kExtension) +
                  ", found \"" + filename + "\"");
}

// Of tensors that several pipeline stages have, the first of these gives the values.
bool is_written(const NamedParameter& parameter) {
  return !is_tied_behind(parameter);
}

bool is_written(const NamedTensor& other, bool exclude_frozen) {
  return (other.is_buffer || !exclude_frozen) && !is_tied_behind(other);
}

// The parameter's values, all of them: a collective of the tensor group if it is split. Its bucket is held.
at::Tensor whole_values(const EngineState& state, const NamedParameter& parameter) {
  if (!parameter.split) return parameter.tensor;
  return whole_of(state.buckets.local_view(parameter.tensor), *parameter.split, state.tensor_rule->group(),
                  "parameter " + parameter.name);
}

// The tensors that this rank's pipeline stage gives, in the order in which it gives them.
std::vector<TensorToStore> tensors_of(const EngineState& state, int buckets, bool exclude_frozen) {
  std::vector<TensorToStore> tensors;
  for (int bucket = 0; bucket < buckets; ++bucket) {
    for (const int index : state.store.layout(bucket).parameters) {
      const NamedParameter& parameter = state.buckets.parameters()[index];
      if (!is_written(parameter)) continue;
      tensors.push_back(
          {parameter.name, spelled(parameter.tensor.scalar_type()), state.buckets.whole_sizes(index)});
    }
  }
  for (const NamedTensor& other : state.unbucketed) {
    if (!is_written(other, exclude_frozen)) continue;
    tensors.push_back({other.name, spelled(other.tensor.scalar_type()), other.tensor.sizes().vec()});
  }
  return tensors;
}

std::string encode(const std::vector<TensorToStore>& tensors) {
  nlohmann::json list = nlohmann::json::array();
  for (const TensorToStore& tensor : tensors) list.push_back({tensor.name, tensor.dtype, tensor.shape});
  return list.dump();
}

std::vector<TensorToStore> decode(const std::string& text) {
  std::vector<TensorToStore> tensors;
  for (const auto& one : nlohmann::json::parse(text))
    tensors.push_back(
        {one[0].get<std::string>(), one[1].get<std::string>(), one[2].get<std::vector<int64_t>>()});
  return tensors;
}

// The output file, which rank 0 writes; on other ranks all functions do nothing. Keeps an exception until
// finish(), so that all ranks complete their gathers.
class ModelFile {
 public:
  explicit ModelFile(bool is_writer) : is_writer_(is_writer) {}

  template <typename Action>
  void run(const Action& action) {
    if (!is_writer_ || failure_) return;
    try {
      action();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  void open(checkpoint::FileSystem& files, const fs::path& directory, std::vector<TensorToStore> tensors,
            const std::string& stem) {
    run([&] {
      folder_.emplace(files, directory, std::move(tensors), std::numeric_limits<int64_t>::max(), stem);
    });
  }
  void write(const at::Tensor& tensor) {
    run([&] {
      const at::Tensor values = tensor.detach().to(at::kCPU, false, /*copy=*/true).contiguous();
      folder_->write({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
    });
  }
  void finish() {
    run([&] { folder_->finish(); });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  bool is_writer_;
  std::optional<SafetensorsFolder> folder_;
  std::exception_ptr failure_;
};

// How pipeline stages give their tensors to rank 0: stage by stage, each its own in its own order.
class ModelParts {
 public:
  /// A collective. `own`: what this stage gives.
  ModelParts(const EngineState& state, const std::vector<TensorToStore>& own, const std::string& label)
      : place_(state.mesh.coordinates()) {
    if (!state.stage) {
      lists_ = {own};
      return;
    }
    pipeline_ = &state.mesh.along(MeshAxis::pipeline);
    const auto texts = exchange_texts(is_giver() ? encode(own) : "", state.mesh.world(), label);
    for (const std::string& text : texts) {
      if (!text.empty()) lists_.push_back(decode(text));
    }
  }

  bool is_first_stage() const { return place_.pipeline == 0 || !pipeline_; }
  /// Whether this rank takes part in joining the parts of tensor ranks.
  bool joins() const { return place_.data == 0; }
  std::vector<TensorToStore> all() const {
    std::vector<TensorToStore> all;
    for (const auto& list : lists_) all.insert(all.end(), list.begin(), list.end());
    return all;
  }

  void send(const at::Tensor& values, const std::string& name) const {
    if (!is_giver()) return;
    pipeline_->send(values.detach().to(at::kCPU).contiguous(), 0, name)->wait();
  }
  /// On rank 0 calls `take` with each tensor of the other stages.
  template <typename Take>
  void receive_others(const Take& take) const {
    if (!is_first_stage() || !is_giver()) return;
    for (size_t stage = 1; stage < lists_.size(); ++stage) {
      for (const TensorToStore& tensor : lists_[stage]) {
        const at::Tensor values = at::empty(tensor.shape, dtype_of(tensor.dtype));
        pipeline_->receive(values, static_cast<int>(stage), tensor.name)->wait();
        take(values);
      }
    }
  }

 private:
  bool is_giver() const { return place_.data == 0 && place_.tensor == 0; }

  MeshCoordinates place_;
  Communicator* pipeline_ = nullptr;               // null if the model is not divided
  std::vector<std::vector<TensorToStore>> lists_;  // by stage
};

}  // namespace

void save_16bit_model(EngineState& state, const fs::path& directory, const std::string& filename,
                      bool exclude_frozen, checkpoint::FileSystem& files) {
  c10::NoGradGuard no_grad;
  state.check_knows_parts("engine.save_16bit_model");
  state.finish_open_step();
  const std::string label = "saving the model to " + (directory / filename).string();
  const int buckets = exclude_frozen ? state.buckets.trained_count() : state.store.count();
  std::string stem;
  on_all_ranks(state.mesh.world(), label, [&] {
    check_path(directory, filename, "save_16bit_model");
    state.check_between_steps("engine.save_16bit_model");
    check_names_and_dtypes(state, "save_16bit_model");
    stem = stem_of(filename);
  });
  const std::vector<TensorToStore> own = tensors_of(state, buckets, exclude_frozen);
  const ModelParts parts(state, own, label);
  ModelFile file(state.mesh.world().rank() == 0);
  file.open(files, directory, parts.all(), stem);
  const auto give = [&](const at::Tensor& values, const std::string& name) {
    if (parts.is_first_stage()) {
      file.write(values);
    } else {
      parts.send(values, name);
    }
  };
  for (int bucket = 0; bucket < buckets; ++bucket) {
    const int held[] = {bucket};
    if (state.residency) state.residency->hold(held);
    for (const int index : state.store.layout(bucket).parameters) {
      const NamedParameter& parameter = state.buckets.parameters()[index];
      if (parts.joins() && is_written(parameter)) give(whole_values(state, parameter), parameter.name);
    }
    if (state.residency) state.residency->unhold(held, ScopeEnd::read);
  }
  for (const NamedTensor& other : state.unbucketed) {
    if (parts.joins() && is_written(other, exclude_frozen)) give(other.tensor, other.name);
  }
  parts.receive_others([&](const at::Tensor& values) { file.write(values); });
  on_all_ranks(state.mesh.world(), label, [&] { file.finish(); });
}

}  // namespace zerorun
