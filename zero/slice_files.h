// State of slices that is kept in files, as tensors that have memory while they are open. Owned by the slice
// store; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "offload/state_files.h"
#include "zero/layout.h"

namespace zerorun {

/// A chunk of a bucket's slice.
struct ChunkOfSlice {
  int bucket;
  int chunk;
};

class SliceFiles {
 public:
  /// `slices`: by bucket; slices without states or elements get no file. Throws UserError as StateFiles does.
  SliceFiles(FileSystem& files, StateFilesOptions options, const std::vector<SliceContents>& slices);

  bool has(int bucket) const { return slice_of_[bucket] >= 0; }
  int chunks(int bucket) const { return static_cast<int>(layout(bucket).chunks.size()); }
  /// The chunk's range in the slice.
  Range chunk_range(int bucket, int chunk) const;
  /// A chunk of the bucket's state number `state`: 1-D, without memory unless it is open.
  at::Tensor tensor(int bucket, size_t state, int chunk) const;

  // These throw TrainingError if a disk fails.

  /// Announces the order in which chunks will be opened. Ignores chunks of buckets without a file.
  void plan(std::span<const ChunkOfSlice> chunks);
  /// `overwrites`: the caller writes all of the chunk, so it need not be read.
  void open(int bucket, int chunk, bool overwrites = false);
  void close(int bucket, int chunk, bool changed);
  /// close() for use while an exception propagates.
  void abandon(int bucket, int chunk, bool changed) noexcept;
  void finish_generation();
  LentSlot lend(int bucket);

  /// For its counters.
  const StateFiles& files() const { return *files_; }

 private:
  struct ChunkMemory {
    c10::Storage storage;  // of all states of a chunk
    int opened = 0;
  };

  const SlotLayout& layout(int bucket) const { return files_->layout(slice_of_[bucket]); }
  int number_of(int bucket, int chunk) const { return files_->first_chunk(slice_of_[bucket]) + chunk; }

  std::vector<int> slice_of_;  // by bucket; -1: none
  mutable std::mutex mutex_;   // guards all below
  std::unique_ptr<StateFiles> files_;
  std::vector<std::vector<at::ScalarType>> dtypes_;  // by bucket and state
  std::vector<ChunkMemory> memory_;                  // by number of the chunk in files_
  std::vector<int> planned_;
};

}  // namespace zerorun
