#include <c10/core/GradMode.h>

#include <exception>
#include <limits>
#include <optional>
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

bool is_written(const NamedTensor& other, bool exclude_frozen) {
  return other.is_buffer || !exclude_frozen;
}

// The parameter's values, all of them: a collective of the tensor group if it is split. Its bucket is held.
at::Tensor whole_values(const EngineState& state, const NamedParameter& parameter) {
  if (!parameter.split) return parameter.tensor;
  return whole_of(state.buckets.local_view(parameter.tensor), *parameter.split, state.tensor_rule->group(),
                  "parameter " + parameter.name);
}

std::vector<TensorToStore> tensors_of(const EngineState& state, int buckets, bool exclude_frozen) {
  std::vector<TensorToStore> tensors;
  for (int bucket = 0; bucket < buckets; ++bucket) {
    for (const int index : state.store.layout(bucket).parameters) {
      const NamedParameter& parameter = state.buckets.parameters()[index];
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
  const bool joins = state.mesh.coordinates().data == 0;  // the tensor group of the file's writer
  ModelFile file(state.mesh.world().rank() == 0);
  file.open(files, directory, tensors_of(state, buckets, exclude_frozen), stem);
  for (int bucket = 0; bucket < buckets; ++bucket) {
    const int held[] = {bucket};
    if (state.residency) state.residency->hold(held);
    for (const int index : state.store.layout(bucket).parameters) {
      if (joins) file.write(whole_values(state, state.buckets.parameters()[index]));
    }
    if (state.residency) state.residency->unhold(held, ScopeEnd::read);
  }
  for (const NamedTensor& other : state.unbucketed) {
    if (is_written(other, exclude_frozen)) file.write(other.tensor);
  }
  on_all_ranks(state.mesh.world(), label, [&] { file.finish(); });
}

}  // namespace zerorun
