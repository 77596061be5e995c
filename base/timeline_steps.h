// The steps of a timeline as text, of the command line and of ranks' environment. Pure; any thread.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace zerorun {

/// The 10 and 20 of "10:20", both from 1 and in this order; absent if the text is not of this form.
inline std::optional<std::pair<int64_t, int64_t>> parse_timeline_steps(std::string_view text) {
  int64_t first = 0, last = 0;
  const char* end = text.data() + text.size();
  const auto begin = std::from_chars(text.data(), end, first);
  if (begin.ec != std::errc() || begin.ptr == end || *begin.ptr != ':') return std::nullopt;
  const auto rest = std::from_chars(begin.ptr + 1, end, last);
  if (rest.ec != std::errc() || rest.ptr != end || first < 1 || last < first) return std::nullopt;
  return std::pair(first, last);
}

}  // namespace zerorun
