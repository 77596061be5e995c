// Owns the training state of bucket slices: values, master weights, gradients and optimizer state, found by
// bucket and name. Buckets, the gradient reducer and optimizers put tensors here and use them from here, so
// code that counts, saves or moves state finds all of it. Owned by the engine, filled by initialize(). Any
// thread may read.
//
// [Note: who writes] Each state has one writer at a time:
//   value     during a step the optimizer, in this rank's slice (at stage 0 in all slices);
//             between steps the program, by operators and scopes (zero/shared_writes.h)
//   master    the optimizer; before each update MasterWeights::follow_writes() copies the program's writes
//   into it gradient  GradientReducer until finish_window() returns, then the optimizer until start_window()
//   moment    the optimizer
//
// [Note: chunks] Master weights and moments in files are read chunk by chunk. A chunk is a range of the
// slice's elements with all of these states. Values in files are read as whole slices from separate files,
// because they are needed at other times. Callers open a chunk or slice before they access it, and close it
// afterwards. For state that is always in memory, open and close do nothing, and the slice is one chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "device/tensor_run.h"
#include "zero/layout.h"
#include "zero/slice_files.h"

namespace zerorun {

enum class StateKind { value, master, gradient, moment };

// The names of states that do not belong to an optimizer.
inline constexpr const char* kValue = "value";
inline constexpr const char* kMaster = "master";
inline constexpr const char* kGradient = "gradient";

/// The part of a bucket that a state tensor covers: this rank's slice or the whole bucket.
enum class Extent { slice, bucket };

/// Where a state tensor is stored.
enum class Home {
  device,  // private memory of the rank, on the device where it computes
  shared,  // memory that the ranks of the host share; each rank owns its slice
  host,    // host memory, while the rank computes on another device
  file,    // files; the state is in memory only while it is open
};

struct StateTensor {
  StateKind kind;
  std::string name;  // "value", "master", "gradient", or torch.optim's name of a moment ("exp_avg")
  Extent extent;
  Home home;
  at::Tensor memory;       // 1-D, a slice or a bucket long (`extent`); undefined if `home` is a file
  at::Tensor own;          // this rank's slice, 1-D; values in files have memory only while open
  at::Tensor scales = {};  // of a moment in codes (device/moment_codes.h), for all of `memory`
  /// For master weights or moments in files: one 1-D tensor per chunk, which has memory only while open.
  std::vector<at::Tensor> chunks = {};
};

/// A state of a bucket's slice to keep in files: the master weights or a moment. It is initially zero.
struct StateInFile {
  StateKind kind;
  std::string name;
  Dtype dtype;
};

enum class ValueUse {
  read,
  change,
  overwrite,  // writes the whole slice without reading it
};

/// The elements of one parameter that lie in this rank's slice, in one state of the slice.
struct StatePiece {
  const StateTensor* state;
  at::Tensor values;  // 1-D; codes of a moment in codes (zero/coded_states.h)
  int64_t begin;      // index of the first of these elements in the parameter
};

class SliceStore {
 public:
  /// `numels`: the number of elements of each parameter of the layout.
  SliceStore(Layout layout, std::vector<int64_t> numels, int rank, int world_size);

  const Layout& layout() const { return layout_; }
  const BucketLayout& layout(int bucket) const { return layout_.buckets[bucket]; }
  int count() const { return static_cast<int>(layout_.buckets.size()); }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  /// How many ranks have one copy of what is in shared memory.
  int ranks_sharing() const { return ranks_sharing_; }
  void set_ranks_sharing(int ranks) { ranks_sharing_ = ranks; }

  /// Adds a state and takes ownership of `memory`. The bucket must not have a state of this name yet. The
  /// returned reference stays valid.
  const StateTensor& put(int bucket, StateKind kind, std::string name, Extent extent, at::Tensor memory,
                         Home home = Home::device, at::Tensor scales = {});
  bool has(int bucket, std::string_view name) const { return find(bucket, name) != nullptr; }
  /// The bucket's state of this name, which must exist.
  const StateTensor& at(int bucket, std::string_view name) const;
  /// Returns `rank`'s slice of the state; this rank must keep that slice.
  at::Tensor slice(int bucket, std::string_view name, int rank) const;
  /// The same slice's scales; undefined for a state without codes.
  at::Tensor scales(int bucket, std::string_view name, int rank) const;

  /// Keeps `states` (listed by bucket) in files from now on. The buckets must not have states of these names
  /// yet. `names`: the names of the layout's parameters. Throws UserError if the files cannot be created.
  void keep_in_files(checkpoint::FileSystem& files, StateFilesOptions options,
                     std::span<const std::vector<StateInFile>> states, std::span<const std::string> names);
  /// Keeps this rank's slices of the values of `buckets` in files, like keep_in_files().
  void keep_values_in_files(checkpoint::FileSystem& files, StateFilesOptions options, Dtype dtype,
                            std::span<const int> buckets, std::span<const std::string> names);
  /// The files of master weights and moments; null if all are in memory.
  SliceFiles* files() { return files_.get(); }
  const SliceFiles* files() const { return files_.get(); }
  SliceFiles* value_files() { return value_files_.get(); }
  const SliceFiles* value_files() const { return value_files_.get(); }
  bool has_in_files(int bucket) const { return files_ && files_->has(bucket); }
  bool has_values_in_files(int bucket) const { return value_files_ && value_files_->has(bucket); }
  /// Returns when all changes have been written to the files. Throws TrainingError if a disk fails.
  void finish_generation();

  /// The number of chunks of the bucket's slice: [Note: chunks].
  int chunks(int bucket) const;
  /// The chunk's range of elements in the slice.
  Range chunk_range(int bucket, int chunk) const;
  /// Returns the chunk's elements of the state.
  at::Tensor chunk(int bucket, const StateTensor& state, int chunk) const;
  /// The next four functions open or close a chunk, or this rank's slice of the bucket's values. They throw
  /// TrainingError if a disk fails. `changed`: the caller has written to the chunk.
  void open_chunk(int bucket, int chunk);
  void close_chunk(int bucket, int chunk, bool changed);
  void open_values(int bucket, ValueUse use);
  void close_values(int bucket, ValueUse use);
  /// Calls visit(chunk) for each chunk of the bucket while the chunk is open; does not open values.
  template <typename Visit>
  void for_each_chunk(int bucket, bool changes, const Visit& visit) {
    for (int chunk = 0; chunk < chunks(bucket); ++chunk) {
      open_chunk(bucket, chunk);
      try {
        visit(chunk);
      } catch (...) {
        if (has_in_files(bucket)) files_->abandon(bucket, chunk, changes);
        throw;
      }
      close_chunk(bucket, chunk, changes);
    }
  }
  /// Calls visit() while this rank's slice of the bucket's values is open.
  template <typename Visit>
  void with_values(int bucket, ValueUse use, const Visit& visit) {
    open_values(bucket, use);
    try {
      visit();
    } catch (...) {
      if (has_values_in_files(bucket)) value_files_->abandon(bucket, 0, use != ValueUse::read);
      throw;
    }
    close_values(bucket, use);
  }

  /// Returns `rank`'s slice of `flat`, a tensor with the bucket's layout.
  at::Tensor slice_of(int bucket, const at::Tensor& flat, int rank) const;
  /// Returns the range of the parameter's elements in `rank`'s slice, relative to the start of the slice.
  Range range_in_slice(int parameter, int rank) const;
  /// The index in the parameter of the element at `in_slice` of `rank`'s slice.
  int64_t index_in_parameter(int parameter, int rank, int64_t in_slice) const;

  /// Calls visit(bucket, state) for all states, bucket by bucket.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (int bucket = 0; bucket < count(); ++bucket) {
      for (const StateTensor& state : states_[bucket]) visit(bucket, state);
    }
  }
  /// Calls visit(StatePiece) for the parameter's elements in each state of this rank's slice, and opens
  /// values and chunks for reading. The pieces of one state on all ranks together cover each element once.
  template <typename Visit>
  void for_each_piece(int parameter, const Visit& visit) {
    if (range_in_slice(parameter, rank_).numel == 0) return;
    const int bucket = layout_.locations[parameter].bucket;
    with_values(bucket, ValueUse::read, [&] {
      for_each_chunk(bucket, /*changes=*/false,
                     [&](int chunk) { for_each_piece_of(chunk, parameter, visit); });
    });
  }
  /// Like for_each_piece(), but for one chunk that the caller has opened. States without chunks are visited
  /// with chunk 0.
  template <typename Visit>
  void for_each_piece_of(int chunk, int parameter, const Visit& visit) const {
    const Range range = range_in_slice(parameter, rank_);
    const int bucket = layout_.locations[parameter].bucket;
    for (const StateTensor& state : states_[bucket]) {
      if (!state.chunks.empty()) {
        const Range of_chunk = chunk_range(bucket, chunk);
        const auto [begin, numel] = overlap(range, of_chunk);
        if (numel == 0) continue;
        visit(StatePiece{&state, run_of(state.chunks[chunk], begin - of_chunk.begin, numel),
                         index_in_parameter(parameter, rank_, begin)});
      } else if (chunk == 0 && range.numel > 0) {
        visit(StatePiece{&state, run_of(state.own, range.begin, range.numel),
                         index_in_parameter(parameter, rank_, range.begin)});
      }
    }
  }
  /// Bytes of memory that the state takes on this rank. Shared memory counts 1/ranks_sharing(); files count
  /// 0.
  int64_t bytes(const StateTensor& state) const;

 private:
  const StateTensor* find(int bucket, std::string_view name) const;
  StateTensor& add_in_files(int bucket, StateKind kind, const std::string& name);
  SliceContents contents_of(int bucket, std::vector<SliceState> states, std::span<const std::string> names,
                            const StateFilesOptions& options) const;

  Layout layout_;
  std::vector<int64_t> numels_;  // by parameter
  int rank_;
  int world_size_;
  int ranks_sharing_;
  std::vector<std::deque<StateTensor>> states_;  // by bucket
  std::unique_ptr<SliceFiles> files_;
  std::unique_ptr<SliceFiles> value_files_;
};

}  // namespace zerorun
