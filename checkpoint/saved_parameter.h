// A parameter or buffer as a manifest describes it, and how tensor ranks have divided it among them
// (docs/checkpoint_format.md, "Meshes"). Plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zerorun::checkpoint {

/// A parameter that is divided along dimension `dim`.
struct SavedSplit {
  struct Interval {
    int64_t begin = 0;
    int64_t numel = 0;
    friend bool operator==(const Interval&, const Interval&) = default;
  };

  int64_t dim = 0;
  /// By tensor rank: the indices along `dim` that it has, in this order.
  std::vector<std::vector<Interval>> parts;
  friend bool operator==(const SavedSplit&, const SavedSplit&) = default;
};

struct SavedParameter {
  std::vector<int64_t> shape;    // of the whole parameter, as are the strides
  std::vector<int64_t> strides;  // ranges in files count elements in the memory order of these strides
  bool trained = true;
  bool excluded = false;  // true: in no file, so the program that loads the checkpoint must have it
  std::vector<std::string> aliases = {};  // other names of the same parameter (tied weights)
  int64_t group = -1;  // index of its parameter group; -1: not trained, or unknown (imported, version 1)
  std::optional<SavedSplit> split = {};
  friend bool operator==(const SavedParameter&, const SavedParameter&) = default;
};

/// The strides of a tensor of `shape` without gaps, whose dimensions lie in memory in the order of `like`.
std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape, const std::vector<int64_t>& like);

/// Whether elements of two tensors of the same shape lie alike in memory.
bool same_order(const SavedParameter& a, const SavedParameter& b);
/// Whether each place in memory belongs to one element: only then the strides tell the order of the elements.
bool is_dense(const SavedParameter& parameter);

/// What ranges of part `part` count the elements of: tensor rank `part`'s part of a split parameter, which
/// has its shape and strides; else the parameter.
SavedParameter part_of(const SavedParameter& parameter, int part);

int64_t numel_of(const SavedParameter& parameter);

/// For messages: "along dimension 0 among 2 tensor ranks: [0, 8) | [8, 16)"; "not" if the parameter is whole.
std::string describe(const std::optional<SavedSplit>& split);

}  // namespace zerorun::checkpoint
