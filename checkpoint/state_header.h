// The header of a file of slices: a safetensors header of whole pages, which lists every gap between tensors
// as a padding tensor. docs/checkpoint_format.md. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace zerorun {

/// Consecutive elements of one parameter, and where in a file they are.
struct StateRange {
  std::string parameter;
  std::string state;   // "value", "exp_avg"
  std::string dtype;   // as safetensors spells it: "F32", "BF16", "F16"
  int64_t begin = 0;   // first element, counted from the parameter's first
  int64_t numel = 0;   // elements
  int64_t offset = 0;  // bytes from the start of the file
  friend bool operator==(const StateRange&, const StateRange&) = default;
};

/// Bytes of an element of that dtype. Throws UserError for a dtype that is not saved.
int64_t element_bytes(const std::string& dtype);

inline constexpr int64_t kTensorAlignment = 64;  // of each tensor's start, in bytes

int64_t rounded_up(int64_t value, int64_t multiple);

/// Places the ranges one after the other, each aligned, and sets their offsets, counted from the start of the
/// data. Returns the size of the data in bytes, a whole number of pages.
int64_t pack(std::vector<StateRange>& ranges);

/// The header of a file with these ranges, whose offsets count from the start of the data and ascend.
/// `data_bytes`: whole pages. The header is padded with spaces to at least `least_bytes` (whole pages).
std::string state_header(const std::map<std::string, std::string>& metadata,
                         std::span<const StateRange> ranges, int64_t data_bytes, int64_t least_bytes = 0);

}  // namespace zerorun
