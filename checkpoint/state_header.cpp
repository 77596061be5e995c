#include "checkpoint/state_header.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "checkpoint/file_system.h"
#include "checkpoint/safetensors_dtype.h"

namespace zerorun::checkpoint {
namespace {

constexpr int64_t kHeaderLengthBytes = 8;

nlohmann::json entry_of(const std::string& dtype, int64_t numel, int64_t begin, int64_t end) {
  return {{"dtype", dtype}, {"shape", {numel}}, {"data_offsets", {begin, end}}};
}

}  // namespace

int64_t element_bytes(const std::string& dtype) {
  if (const auto bytes = bytes_per_element(dtype)) return *bytes;
  throw UserError("dtype \"" + dtype + "\": not one that ZeroRun saves");
}

std::string in_words(int part) {
  return part == kWhole ? "" : " (tensor rank " + std::to_string(part) + ")";
}

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int64_t pack(std::vector<StateRange>& ranges) {
  int64_t end = 0;
  for (StateRange& range : ranges) {
    range.offset = rounded_up(end, kTensorAlignment);
    end = range.offset + range.numel * element_bytes(range.dtype);
  }
  return rounded_up(end, kPageBytes);
}

std::string state_header(const std::map<std::string, std::string>& metadata,
                         std::span<const StateRange> ranges, int64_t data_bytes, int64_t least_bytes) {
  nlohmann::json header = {{"__metadata__", metadata}};
  int64_t end = 0;
  int paddings = 0;
  auto pad_to = [&](int64_t begin) {
    if (begin > end)
      header["padding." + std::to_string(paddings++)] = entry_of("U8", begin - end, end, begin);
    end = begin;
  };
  for (const StateRange& range : ranges) {
    ZR_CHECK(range.offset >= end, range.parameter + ":" + range.state + " lies in another tensor");
    pad_to(range.offset);
    end = range.offset + range.numel * element_bytes(range.dtype);
    const std::string name = range.parameter + ":" + range.state + "@" + std::to_string(range.begin);
    ZR_CHECK(!header.contains(name), name + " is in the file twice");
    header[name] = entry_of(range.dtype, range.numel, range.offset, end);
  }
  pad_to(data_bytes);
  std::string text = header.dump();
  const int64_t bytes =
      std::max(least_bytes, rounded_up(kHeaderLengthBytes + static_cast<int64_t>(text.size()), kPageBytes));
  text.resize(static_cast<size_t>(bytes - kHeaderLengthBytes), ' ');
  std::string whole(kHeaderLengthBytes, '\0');
  const uint64_t length = text.size();
  std::memcpy(whole.data(), &length, sizeof length);
  return whole + text;
}

}  // namespace zerorun::checkpoint
