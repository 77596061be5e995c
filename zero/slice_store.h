// Everything that training keeps of the slices of buckets, by bucket and name: values, master weights,
// gradients and what optimizers remember. The one owner of that memory: buckets, the gradient reducer and
// optimizers put it here and borrow it, and whoever counts, saves or moves it finds all of it. Owned by the
// engine, filled by initialize(); any thread may read.
//
// [Note: who writes] One writer at a time, in turn:
//   value     the optimizer, its owner's slice (every slice where a stage updates all); between steps the
//             program, by operators and scopes (zero/residency.h)
//   master    the optimizer; before it what the program wrote (Buckets::follow_writes)
//   gradient  the reducer, until finish_window() returns; then the optimizer, until start_window()
//   moment    the optimizer
//
// [Note: chunks] What is at home in files comes to memory chunk by chunk: consecutive elements of the slice,
// with all that is kept of them in files. Whoever reads or writes it opens the chunk before and closes it
// afterwards; for what is always in memory that does nothing, and the slice is one chunk. One thread opens.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "offload/state_files.h"
#include "zero/layout.h"

namespace zerorun {

enum class StateKind { value, master, gradient, moment };

// The names of what is not an optimizer's.
inline constexpr const char* kValue = "value";
inline constexpr const char* kMaster = "master";
inline constexpr const char* kGradient = "gradient";

/// What of a bucket this rank keeps.
enum class Extent { slice, bucket };

/// Where it lies.
enum class Home {
  device,  // in memory of the rank's own, where it computes
  shared,  // there once for the ranks of the host, each of which owns its slice
  file,    // in files, of which chunks come to memory around their use
};

struct StateTensor {
  StateKind kind;
  std::string name;  // "value", "master", "gradient", or as torch.optim names it: "exp_avg"
  Extent extent;
  Home home;
  at::Tensor memory;  // 1-D, of the length that `extent` says; undefined where its home is a file
  at::Tensor own;     // this rank's slice of it; likewise
  std::vector<at::Tensor> chunks = {};  // those of a file: 1-D, without memory unless they are open
};

/// What is to be kept in files of a bucket's slice: fp32, zero at first.
struct StateInFile {
  StateKind kind;
  std::string name;
};

/// Consecutive elements.
struct Range {
  int64_t begin;
  int64_t numel;  // 0: none
};

/// What a rank's slice has of one parameter, in one of the tensors that belong to the slice.
struct StatePiece {
  const StateTensor* state;
  at::Tensor values;  // 1-D
  int64_t begin;      // its first element, counted from the parameter's
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

  /// Takes over `memory`, under another name than those that the bucket has; what it returns stays in place.
  const StateTensor& put(int bucket, StateKind kind, std::string name, Extent extent, at::Tensor memory,
                         Home home = Home::device);
  bool has(int bucket, std::string_view name) const { return find(bucket, name) != nullptr; }
  /// What is kept of a bucket under a name, which it has.
  const StateTensor& at(int bucket, std::string_view name) const;
  /// `rank`'s slice of it, which this rank keeps.
  at::Tensor slice(int bucket, std::string_view name, int rank) const;

  /// Has what is listed, by bucket, in files from now on, under names that the bucket does not have.
  /// `names`: of the layout's parameters. Throws UserError.
  void keep_in_files(FileSystem& files, StateFilesOptions options,
                     std::span<const std::vector<StateInFile>> states, std::span<const std::string> names);
  /// Of what is in files; null where nothing is.
  StateFiles* files() { return files_.get(); }
  const StateFiles* files() const { return files_.get(); }
  /// The file in which something of the bucket is; -1: none.
  int slice_in_files(int bucket) const { return slices_in_files_.empty() ? -1 : slices_in_files_[bucket]; }

  /// In how many chunks the bucket's slice comes to memory: [Note: chunks].
  int chunks(int bucket) const;
  /// Its place in the slice.
  Range chunk_range(int bucket, int chunk) const;
  /// Of this rank's slice of the state.
  at::Tensor chunk(int bucket, const StateTensor& state, int chunk) const;
  /// Throws TrainingError where a disk fails.
  void open_chunk(int bucket, int chunk);
  void close_chunk(int bucket, int chunk, bool changed);
  /// Calls visit(chunk) for each chunk of the bucket while it is open.
  template <typename Visit>
  void for_each_chunk(int bucket, bool changes, const Visit& visit) {
    for (int chunk = 0; chunk < chunks(bucket); ++chunk) {
      open_chunk(bucket, chunk);
      try {
        visit(chunk);
      } catch (...) {
        abandon_chunk(bucket, chunk, changes);
        throw;
      }
      close_chunk(bucket, chunk, changes);
    }
  }

  /// `rank`'s slice of a tensor laid out like the bucket.
  at::Tensor slice_of(int bucket, const at::Tensor& flat, int rank) const;
  /// The part of `rank`'s slice that is of the parameter, counted from the slice's first element.
  Range range_in_slice(int parameter, int rank) const;

  /// Calls visit(bucket, state) for all there is, bucket by bucket.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (int bucket = 0; bucket < count(); ++bucket) {
      for (const StateTensor& state : states_[bucket]) visit(bucket, state);
    }
  }
  /// Calls visit(StatePiece) for what this rank's slice has of the parameter, opening chunks for that. Over
  /// all ranks the pieces of a name cover each element once.
  template <typename Visit>
  void for_each_piece(int parameter, const Visit& visit) {
    if (range_in_slice(parameter, rank_).numel == 0) return;
    for_each_chunk(layout_.placements[parameter].bucket, /*changes=*/false,
                   [&](int chunk) { for_each_piece_of(chunk, parameter, visit); });
  }
  /// Likewise of one chunk, which is open. What is always in memory counts as of the first one.
  template <typename Visit>
  void for_each_piece_of(int chunk, int parameter, const Visit& visit) const {
    const Range range = range_in_slice(parameter, rank_);
    const auto [bucket, offset] = layout_.placements[parameter];
    const int64_t begin = std::max<int64_t>(rank_ * layout(bucket).slice_numel - offset, 0);
    for (const StateTensor& state : states_[bucket]) {
      if (state.home == Home::file) {
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
  /// What it costs this rank in memory: of what is shared its part.
  int64_t bytes(const StateTensor& state) const;

 private:
  struct ChunkMemory {
    c10::Storage storage;  // of all states of a chunk; without memory unless it is open
    int opened = 0;
  };

  const StateTensor* find(int bucket, std::string_view name) const;
  int number_of(int bucket, int chunk) const;
  void add_chunks(int bucket, std::span<const StateInFile> states);
  void abandon_chunk(int bucket, int chunk, bool changed) noexcept;

  Layout layout_;
  std::vector<int64_t> numels_;  // by parameter
  int rank_;
  int world_size_;
  std::vector<std::deque<StateTensor>> states_;  // by bucket
  std::unique_ptr<StateFiles> files_;
  std::vector<int> slices_in_files_;    // by bucket
  std::vector<ChunkMemory> in_memory_;  // by number of the chunk in files_
};

}  // namespace zerorun
