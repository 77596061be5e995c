// Provides tensors for slice state that is kept in files. A tensor has memory only while its chunk is open.
// Owned by the slice store; any thread may call it.
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
  /// `slices`: the slice of each bucket. A slice without states or elements gets no file. Throws UserError if
  /// the files cannot be created.
  SliceFiles(checkpoint::FileSystem& files, StateFilesOptions options,
             const std::vector<SliceContents>& slices);

  bool has(int bucket) const { return slice_of_[bucket] >= 0; }
  int chunks(int bucket) const { return static_cast<int>(layout(bucket).chunks.size()); }
  /// The chunk's range of elements in the slice.
  Range chunk_range(int bucket, int chunk) const;
  /// Returns the chunk's elements of one state of the bucket, 1-D. `state`: index of the state.
  at::Tensor tensor(int bucket, size_t state, int chunk) const;

  // The functions below throw TrainingError if a disk fails.

  /// Sets the order in which chunks will be opened from now on. Skips buckets without a file.
  void plan(std::span<const ChunkOfSlice> chunks);
  /// `overwrites`: the caller will write the whole chunk, so it is not read from the file.
  void open(int bucket, int chunk, bool overwrites = false);
  void close(int bucket, int chunk, bool changed);
  /// Like close(), for use while an exception propagates: logs its own errors and throws none.
  void abandon(int bucket, int chunk, bool changed) noexcept;
  void finish_generation();
  LentSlot lend(int bucket);

  /// For reading the counters of the files.
  const StateFiles& files() const { return *files_; }

 private:
  struct ChunkMemory {
    c10::Storage storage;  // the memory of all states of the chunk
    int opened = 0;
  };

  const SlotLayout& layout(int bucket) const { return files_->layout(slice_of_[bucket]); }
  int number_of(int bucket, int chunk) const { return files_->first_chunk(slice_of_[bucket]) + chunk; }

  std::vector<int> slice_of_;  // by bucket: index of its slice in files_; -1: the bucket has no file
  mutable std::mutex mutex_;   // guards all members below
  std::unique_ptr<StateFiles> files_;
  std::vector<std::vector<at::ScalarType>> dtypes_;  // by bucket and state
  std::vector<ChunkMemory> memory_;                  // by index of the chunk in files_
  std::vector<int> planned_;
};

}  // namespace zerorun
