// The header of a file of slices: a safetensors header of whole pages, in which every gap between tensors is
// listed as a padding tensor (docs/checkpoint_format.md). Pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace zerorun::checkpoint {

/// Instead of a tensor rank: all of a parameter.
inline constexpr int kWhole = -1;

/// Consecutive elements of one state of one parameter, and their position in a file.
struct StateRange {
  std::string parameter;
  std::string state;   // "value", "exp_avg"
  std::string dtype;   // as spelled in safetensors: "F32", "BF16", "F16"
  int64_t begin = 0;   // first element, counted from the start of the parameter
  int64_t numel = 0;   // number of elements
  int64_t offset = 0;  // bytes from the start of the file
  /// The tensor rank whose part of the parameter, or whose gradient of a whole parameter, has the elements.
  int part = kWhole;
  friend bool operator==(const StateRange&, const StateRange&) = default;
};

/// For messages: " (tensor rank 1)"; "" for the whole.
std::string in_words(int part);

/// Returns the bytes per element of a dtype. Throws UserError for a dtype that checkpoints do not use.
int64_t element_bytes(const std::string& dtype);

inline constexpr int64_t kTensorAlignment = 64;  // in bytes; every tensor starts at a multiple of this

int64_t rounded_up(int64_t value, int64_t multiple);

/// Places the ranges one after the other, each aligned, and sets their offsets relative to the start of the
/// data. Returns the size of the data in bytes, rounded up to whole pages.
int64_t pack(std::vector<StateRange>& ranges);

/// Returns the header of a file with these ranges. Their offsets must ascend and count from the start of the
/// data. `data_bytes` and `least_bytes` are whole pages. The header is padded with spaces to at least
/// `least_bytes`.
std::string state_header(const std::map<std::string, std::string>& metadata,
                         std::span<const StateRange> ranges, int64_t data_bytes, int64_t least_bytes = 0);

}  // namespace zerorun::checkpoint
