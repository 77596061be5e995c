#include "zero/slice_files.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/safetensors_dtype.h"
#include "device/dtypes.h"

namespace zerorun {

SliceFiles::SliceFiles(checkpoint::FileSystem& files, StateFilesOptions options,
                       const std::vector<SliceContents>& slices) {
  std::vector<SliceContents> kept;
  for (const SliceContents& slice : slices) {
    const bool is_kept = !slice.states.empty() && slice.numel > 0;
    slice_of_.push_back(is_kept ? static_cast<int>(kept.size()) : -1);
    if (is_kept) kept.push_back(slice);
    std::vector<at::ScalarType>& dtypes = dtypes_.emplace_back();
    for (const SliceState& state : slice.states) {
      const auto dtype = training_dtype_named(state.dtype);
      ZR_CHECK(dtype, "no state of slices is of dtype " + state.dtype);
      dtypes.push_back(scalar_type(*dtype));
    }
  }
  files_ = std::make_unique<StateFiles>(files, std::move(options), std::move(kept));
  for (int slice = 0; slice < files_->slices(); ++slice) {
    for (const Chunk& chunk : files_->layout(slice).chunks) {
      memory_.push_back(
          {.storage = c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(chunk.bytes),
                                   c10::DataPtr(nullptr, at::kCPU), nullptr, false)});
    }
  }
}

Range SliceFiles::chunk_range(int bucket, int chunk) const {
  const Chunk& place = layout(bucket).chunks[chunk];
  return {.begin = place.begin, .numel = place.numel};
}

at::Tensor SliceFiles::tensor(int bucket, size_t state, int chunk) const {
  const Chunk& place = layout(bucket).chunks[chunk];
  if (files_->sizes_only())
    return at::empty({place.numel}, at::dtype(dtypes_[bucket][state]).device(at::kMeta));
  at::Tensor values = at::empty({0}, dtypes_[bucket][state]);
  values.set_(memory_[number_of(bucket, chunk)].storage,
              place.state_offsets[state] / static_cast<int64_t>(values.element_size()), {place.numel}, {1});
  return values;
}

void SliceFiles::plan(std::span<const ChunkOfSlice> chunks) {
  if (files_->sizes_only()) return;
  const std::lock_guard lock(mutex_);
  planned_.clear();
  for (const auto& [bucket, chunk] : chunks) {
    if (has(bucket)) planned_.push_back(number_of(bucket, chunk));
  }
  files_->plan(planned_);
}

void SliceFiles::open(int bucket, int chunk, bool overwrites) {
  if (files_->sizes_only()) return;
  const std::lock_guard lock(mutex_);
  const int number = number_of(bucket, chunk);
  std::byte* memory = files_->open(number, overwrites);
  auto& [storage, opened] = memory_[number];
  if (opened++ == 0) storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(memory, at::kCPU));
}

void SliceFiles::close(int bucket, int chunk, bool changed) {
  if (files_->sizes_only()) return;
  const std::lock_guard lock(mutex_);
  const int number = number_of(bucket, chunk);
  auto& [storage, opened] = memory_[number];
  if (--opened == 0) storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, at::kCPU));
  files_->close(number, changed);
}

void SliceFiles::abandon(int bucket, int chunk, bool changed) noexcept {
  try {
    close(bucket, chunk, changed);
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

void SliceFiles::finish_generation() {
  if (files_->sizes_only()) return;
  const std::lock_guard lock(mutex_);
  files_->finish_generation();
}

LentSlot SliceFiles::lend(int bucket) {
  const std::lock_guard lock(mutex_);
  return files_->lend(slice_of_[bucket]);
}

}  // namespace zerorun
