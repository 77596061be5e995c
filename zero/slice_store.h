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
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

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
};

struct StateTensor {
  StateKind kind;
  std::string name;  // "value", "master", "gradient", or as torch.optim names it: "exp_avg"
  Extent extent;
  Home home;
  at::Tensor memory;  // 1-D, of the length that `extent` says
  at::Tensor own;     // this rank's slice of it
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
  /// Calls visit(StatePiece) for what this rank's slice has of the parameter. Over all ranks the pieces of a
  /// name cover each element once.
  template <typename Visit>
  void for_each_piece(int parameter, const Visit& visit) const {
    const Range range = range_in_slice(parameter, rank_);
    if (range.numel == 0) return;
    const auto [bucket, offset] = layout_.placements[parameter];
    const int64_t begin = std::max<int64_t>(rank_ * layout(bucket).slice_numel - offset, 0);
    for (const StateTensor& state : states_[bucket]) {
      visit(StatePiece{&state, state.own.narrow(0, range.begin, range.numel), begin});
    }
  }
  /// What it costs this rank: of shared memory its part.
  int64_t bytes(const StateTensor& state) const;

 private:
  const StateTensor* find(int bucket, std::string_view name) const;

  Layout layout_;
  std::vector<int64_t> numels_;  // by parameter
  int rank_;
  int world_size_;
  std::vector<std::deque<StateTensor>> states_;  // by bucket
};

}  // namespace zerorun
