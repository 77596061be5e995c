// The training state of bucket slices, by bucket and name: values, master weights, gradients and optimizer
// state. The only owner of that memory: buckets, the gradient reducer and optimizers put it here and borrow
// it, and code that counts, saves or moves state finds all of it here. Owned by the engine, filled by
// initialize(); any thread may read.
//
// [Note: who writes] One writer at a time, in turn:
//   value     the optimizer writes this rank's slice (all slices if the stage updates all on each rank);
//             between steps the program, by operators and scopes (zero/residency.h)
//   master    the optimizer; before each update Buckets::follow_writes(), with the program's writes
//   gradient  the reducer, until finish_window() returns; then the optimizer, until start_window()
//   moment    the optimizer
//
// [Note: chunks] Master weights and moments in files are read into memory by chunks: consecutive elements of
// the slice, with all of these states. Values are read as whole slices, from files of their own, since they
// are needed at other times. Callers open before they read or write and close afterwards. For state that is
// always in memory this does nothing, and the slice is one chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "zero/layout.h"
#include "zero/slice_files.h"

namespace zerorun {

enum class StateKind { value, master, gradient, moment };

// The names of states that do not belong to an optimizer.
inline constexpr const char* kValue = "value";
inline constexpr const char* kMaster = "master";
inline constexpr const char* kGradient = "gradient";

/// The part of a bucket that this rank keeps.
enum class Extent { slice, bucket };

/// Where it is stored.
enum class Home {
  device,  // private memory of the rank, on the device where it computes
  shared,  // memory that the ranks of the host share; each rank owns its slice
  host,    // host memory, of a rank that computes on another device
  file,    // files; read into memory around uses
};

struct StateTensor {
  StateKind kind;
  std::string name;  // "value", "master", "gradient", or as torch.optim names it: "exp_avg"
  Extent extent;
  Home home;
  at::Tensor memory;  // 1-D, a slice or a bucket long (`extent`); undefined if its home is a file
  at::Tensor own;     // this rank's slice; values in files have memory only while open
  std::vector<at::Tensor> chunks = {};  // of state that is read by chunks: 1-D, likewise
};

/// A state of a bucket's slice to be kept in files, other than values: fp32, initially zero.
struct StateInFile {
  StateKind kind;
  std::string name;
};

enum class ValueUse {
  read,
  change,
  overwrite,  // all of the slice, without reading it
};

/// The part of one parameter in a rank's slice, in one of the slice's states.
struct StatePiece {
  const StateTensor* state;
  at::Tensor values;  // 1-D
  int64_t begin;      // its first element, counted from the parameter's first
};

class SliceStore {
 public:
  /// `numels`: elements of each parameter of the layout.
  SliceStore(Layout layout, std::vector<int64_t> numels, int rank, int world_size);

  const Layout& layout() const { return layout_; }
  const BucketLayout& layout(int bucket) const { return layout_.buckets[bucket]; }
  int count() const { return static_cast<int>(layout_.buckets.size()); }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  /// Takes ownership of `memory`. The bucket must have no state of this name. The reference stays valid.
  const StateTensor& put(int bucket, StateKind kind, std::string name, Extent extent, at::Tensor memory,
                         Home home = Home::device);
  bool has(int bucket, std::string_view name) const { return find(bucket, name) != nullptr; }
  /// The bucket's state of this name, which must exist.
  const StateTensor& at(int bucket, std::string_view name) const;
  /// `rank`'s slice of the state, which this rank must keep.
  at::Tensor slice(int bucket, std::string_view name, int rank) const;

  /// Keeps `states`, listed by bucket, in files from now on; the buckets must have no states of these names.
  /// `names`: of the layout's parameters. Throws UserError.
  void keep_in_files(FileSystem& files, StateFilesOptions options,
                     std::span<const std::vector<StateInFile>> states, std::span<const std::string> names);
  /// Likewise keeps this rank's slices of the values of `buckets`.
  void keep_values_in_files(FileSystem& files, StateFilesOptions options, Dtype dtype,
                            std::span<const int> buckets, std::span<const std::string> names);
  /// The files of master weights and moments; null if all are in memory.
  SliceFiles* files() { return files_.get(); }
  const SliceFiles* files() const { return files_.get(); }
  SliceFiles* value_files() { return value_files_.get(); }
  const SliceFiles* value_files() const { return value_files_.get(); }
  bool has_in_files(int bucket) const { return files_ && files_->has(bucket); }
  bool has_values_in_files(int bucket) const { return value_files_ && value_files_->has(bucket); }
  /// Returns when all changes are in files. Throws TrainingError if a disk fails.
  void finish_generation();

  /// The number of chunks of the bucket's slice: [Note: chunks].
  int chunks(int bucket) const;
  /// The chunk's place in the slice.
  Range chunk_range(int bucket, int chunk) const;
  /// The chunk of this rank's slice of the state.
  at::Tensor chunk(int bucket, const StateTensor& state, int chunk) const;
  /// These throw TrainingError if a disk fails.
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

  /// `rank`'s slice of a tensor laid out like the bucket.
  at::Tensor slice_of(int bucket, const at::Tensor& flat, int rank) const;
  /// The parameter's part of `rank`'s slice, counted from the slice's first element.
  Range range_in_slice(int parameter, int rank) const;

  /// Calls visit(bucket, state) for all states, bucket by bucket.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (int bucket = 0; bucket < count(); ++bucket) {
      for (const StateTensor& state : states_[bucket]) visit(bucket, state);
    }
  }
  /// Calls visit(StatePiece) for the parameter's part of each state of this rank's slice, which it opens for
  /// reading. Over all ranks the pieces of one name cover each element once.
  template <typename Visit>
  void for_each_piece(int parameter, const Visit& visit) {
    if (range_in_slice(parameter, rank_).numel == 0) return;
    const int bucket = layout_.locations[parameter].bucket;
    with_values(bucket, ValueUse::read, [&] {
      for_each_chunk(bucket, /*changes=*/false,
                     [&](int chunk) { for_each_piece_of(chunk, parameter, visit); });
    });
  }
  /// Likewise for one chunk, which the caller opens. State without chunks counts as part of the first chunk.
  template <typename Visit>
  void for_each_piece_of(int chunk, int parameter, const Visit& visit) const {
    const Range range = range_in_slice(parameter, rank_);
    const auto [bucket, offset] = layout_.locations[parameter];
    const int64_t begin = std::max<int64_t>(rank_ * layout(bucket).slice_numel - offset, 0);
    for (const StateTensor& state : states_[bucket]) {
      if (!state.chunks.empty()) {
        const Range of_chunk = chunk_range(bucket, chunk);
        const int64_t first = std::max(range.begin, of_chunk.begin);
        const int64_t end = std::min(range.begin + range.numel, of_chunk.begin + of_chunk.numel);
        if (first >= end) continue;
        visit(StatePiece{&state, state.chunks[chunk].narrow(0, first - of_chunk.begin, end - first),
                         begin + first - range.begin});
      } else if (chunk == 0 && range.numel > 0) {
        visit(StatePiece{&state, state.own.narrow(0, range.begin, range.numel), begin});
      }
    }
  }
  /// Bytes of memory that the state takes on this rank. Shared memory counts 1/world size; files count 0.
  int64_t bytes(const StateTensor& state) const;

 private:
  const StateTensor* find(int bucket, std::string_view name) const;
  StateTensor& add_in_files(int bucket, StateKind kind, const std::string& name);
  SliceContents contents_of(int bucket, std::vector<SliceState> states,
                            std::span<const std::string> names) const;

  Layout layout_;
  std::vector<int64_t> numels_;  // by parameter
  int rank_;
  int world_size_;
  std::vector<std::deque<StateTensor>> states_;  // by bucket
  std::unique_ptr<SliceFiles> files_;
  std::unique_ptr<SliceFiles> value_files_;
};

}  // namespace zerorun
