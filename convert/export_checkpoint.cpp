#include "convert/export_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/narrow_floats.h"
#include "base/progress_bar.h"
#include "checkpoint/safetensors_dtype.h"
#include "checkpoint/safetensors_folder.h"

namespace zerorun::convert {
namespace {

constexpr int64_t kChunkNumel = int64_t{1} << 18;

// The state in the checkpoint from which an exported tensor is read.
struct Source {
  std::string parameter;
  std::string state;
  std::string dtype;  // dtype in the checkpoint
  int64_t numel = 0;
};

// Throws UserError if the strides place an element outside the parameter's `numel` elements.
void check_strides(const std::string& name, const checkpoint::SavedParameter& parameter, int64_t numel) {
  __int128 last = 0;
  bool is_valid = parameter.strides.size() == parameter.shape.size();
  for (size_t dim = 0; is_valid && dim < parameter.shape.size(); ++dim) {
    is_valid = parameter.strides[dim] >= 0;
    last += static_cast<__int128>(parameter.shape[dim] - 1) * parameter.strides[dim];
  }
  if (numel == 0 || (is_valid && last < numel)) return;
  throw UserError("the checkpoint's strides of " + name + " do not fit its shape");
}

bool is_contiguous(const checkpoint::SavedParameter& parameter) {
  int64_t expected = 1;
  for (size_t dim = parameter.shape.size(); dim-- > 0;) {
    if (parameter.shape[dim] == 0) return true;
    if (parameter.shape[dim] != 1 && parameter.strides[dim] != expected) return false;
    expected *= parameter.shape[dim];
  }
  return true;
}

// Reorders elements from memory order to row-major order.
std::vector<std::byte> in_row_major_order(const checkpoint::SavedParameter& parameter,
                                          std::span<const std::byte> elements, size_t element_bytes) {
  std::vector<std::byte> ordered(elements.size());
  for (size_t index = 0; index < ordered.size() / element_bytes; ++index) {
    int64_t offset = 0;
    auto rest = static_cast<int64_t>(index);
    for (size_t dim = parameter.shape.size(); dim-- > 0; rest /= parameter.shape[dim])
      offset += rest % parameter.shape[dim] * parameter.strides[dim];
    std::memcpy(&ordered[index * element_bytes], &elements[static_cast<size_t>(offset) * element_bytes],
                element_bytes);
  }
  return ordered;
}

// Copies tensor rank `rank`'s part to its place in the parameter. Both are in row-major order.
void copy_to_whole(std::span<std::byte> whole, std::span<const std::byte> part,
                   const checkpoint::SavedParameter& parameter, int rank, size_t element_bytes) {
  const auto dim = parameter.shape.begin() + parameter.split->dim;
  const auto product = [](auto begin, auto end) {
    return static_cast<size_t>(std::accumulate(begin, end, int64_t{1}, std::multiplies<>()));
  };
  const size_t rows = product(parameter.shape.begin(), dim);
  const size_t step = product(dim + 1, parameter.shape.end()) * element_bytes;
  for (size_t row = 0; row < rows; ++row) {
    for (const auto& [begin, numel] : parameter.split->parts[static_cast<size_t>(rank)]) {
      const size_t bytes = static_cast<size_t>(numel) * step;
      std::memcpy(&whole[(row * static_cast<size_t>(*dim) + static_cast<size_t>(begin)) * step], part.data(),
                  bytes);
      part = part.subspan(bytes);
    }
  }
}

class Exporter {
 public:
  Exporter(checkpoint::SavedState& saved, const ExportOptions& options) : saved_(saved), options_(options) {
    for (const auto& [name, parameter] : saved.manifest().parameters) {
      if (parameter.excluded) {
        result_.left_out.push_back(name);
        continue;
      }
      const std::string state = saved.dtype_of(name, "master").empty() ? "value" : "master";
      const int64_t numel = numel_of(parameter);
      const std::string dtype = numel == 0 ? "F32" : saved.dtype_of(name, state);
      if (dtype.empty()) throw UserError("the checkpoint has no values of " + name);
      check_strides(name, parameter, numel);
      TensorToStore& tensor = tensors_.emplace_back();
      tensor.name = name;
      tensor.dtype = training_dtype_named(dtype) ? safetensors_name(options.dtype) : dtype;
      tensor.shape = parameter.shape;
      sources_.push_back({name, state, dtype, numel});
      numel_ += numel;
      result_.bytes += tensor.bytes();
    }
    result_.tensors = static_cast<int64_t>(tensors_.size());
  }

  ExportedModel run(checkpoint::FileSystem& files, const std::filesystem::path& folder) && {
    SafetensorsFolder output(files, folder, tensors_, options_.max_shard_bytes, "model", Replaceable::none);
    ProgressBar bar("exporting", numel_, /*shows=*/true);
    for (const Source& source : sources_) {
      const checkpoint::SavedParameter& parameter = saved_.manifest().parameters.at(source.parameter);
      if (source.numel == 0) continue;
      if (parameter.split) {
        write_split(source, parameter, output);
      } else if (is_contiguous(parameter)) {
        write_contiguous(source, output);
      } else {
        write_all(source, read_in_order(source, parameter, checkpoint::kWhole), output);
      }
      bar.advance(source.numel);
    }
    result_.files = output.finish();
    return std::move(result_);
  }

 private:
  void write_contiguous(const Source& source, SafetensorsFolder& output) {
    const int64_t size = checkpoint::element_bytes(source.dtype);
    for (int64_t begin = 0; begin < source.numel; begin += kChunkNumel) {
      const int64_t count = std::min(kChunkNumel, source.numel - begin);
      read_.resize(static_cast<size_t>(count * size));
      saved_.read(source.parameter, source.state, begin, count, read_);
      write_converted(source, read_, output);
    }
  }

  void write_split(const Source& source, const checkpoint::SavedParameter& parameter,
                   SafetensorsFolder& output) {
    const auto size = static_cast<size_t>(checkpoint::element_bytes(source.dtype));
    std::vector<std::byte> whole(static_cast<size_t>(source.numel) * size);
    for (int rank = 0; rank < static_cast<int>(parameter.split->parts.size()); ++rank) {
      const auto part = read_in_order(source, part_of(parameter, rank), rank);
      copy_to_whole(whole, part, parameter, rank, size);
    }
    write_all(source, whole, output);
  }

  // The elements of one part in row-major order. `parameter`: the shape and strides of the part.
  std::vector<std::byte> read_in_order(const Source& source, const checkpoint::SavedParameter& parameter,
                                       int part) {
    const int64_t size = checkpoint::element_bytes(source.dtype);
    const int64_t numel = numel_of(parameter);
    std::vector<std::byte> elements(static_cast<size_t>(numel * size));
    if (numel == 0) return elements;
    saved_.read(source.parameter, source.state, 0, numel, elements, part);
    return in_row_major_order(parameter, elements, static_cast<size_t>(size));
  }

  void write_all(const Source& source, std::span<const std::byte> elements, SafetensorsFolder& output) {
    const auto bytes = static_cast<size_t>(kChunkNumel * checkpoint::element_bytes(source.dtype));
    for (; elements.size() > bytes; elements = elements.subspan(bytes))
      write_converted(source, elements.first(bytes), output);
    write_converted(source, elements, output);
  }

  void write_converted(const Source& source, std::span<const std::byte> elements, SafetensorsFolder& output) {
    const auto from = training_dtype_named(source.dtype);
    if (!from || *from == options_.dtype) {
      output.write(elements);
    } else {
      const auto numel = static_cast<int64_t>(elements.size()) / size_of(*from);
      wide_.resize(static_cast<size_t>(numel));
      narrow_.resize(static_cast<size_t>(numel * size_of(options_.dtype)));
      widen(elements.data(), *from, wide_.data(), numel);
      narrow(wide_.data(), narrow_.data(), options_.dtype, numel);
      output.write(narrow_);
    }
  }

  checkpoint::SavedState& saved_;
  const ExportOptions& options_;
  std::vector<TensorToStore> tensors_;
  int64_t numel_ = 0;
  std::vector<Source> sources_;  // one per tensor
  ExportedModel result_;
  std::vector<std::byte> read_;
  std::vector<float> wide_;
  std::vector<std::byte> narrow_;
};

}  // namespace

ExportedModel export_checkpoint(checkpoint::FileSystem& files, checkpoint::SavedState& saved,
                                const std::filesystem::path& folder, const ExportOptions& options) {
  return Exporter(saved, options).run(files, folder);
}

}  // namespace zerorun::convert
