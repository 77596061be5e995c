#include "comm/meeting/slurm_lists.h"

#include <charconv>
#include <cstdint>
#include <string_view>

namespace zerorun {
namespace {

// The largest number of entries of a list. No cluster has so many hosts; the limit keeps a malformed range
// from filling the memory.
constexpr size_t kMostEntries = size_t{1} << 20;

using Texts = std::vector<std::string>;

std::optional<uint32_t> number_in(std::string_view text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Splits `text` at the commas that are not inside brackets. Returns nothing if the brackets do not match.
std::optional<std::vector<std::string_view>> split(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == ']') {
      if (inside == (text[i] == '[')) return std::nullopt;
      inside = !inside;
    } else if (text[i] == ',' && !inside) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  if (inside) return std::nullopt;
  parts.push_back(text.substr(begin));
  return parts;
}

// Expands "01-03,7" to 01 02 03 7. Zeros pad the numbers of a range to the width of its first number.
std::optional<Texts> expand_ranges(std::string_view text) {
  Texts numbers;
  const auto parts = split(text);
  if (!parts) return std::nullopt;
  for (const std::string_view part : *parts) {
    const size_t dash = part.find('-');
    const std::string_view low = part.substr(0, dash);
    const auto first = number_in(low);
    const auto last = dash == std::string_view::npos ? first : number_in(part.substr(dash + 1));
    if (!first || !last || *last < *first || *last - *first >= kMostEntries) return std::nullopt;
    for (uint32_t number = *first; number <= *last; ++number) {
      std::string digits = std::to_string(number);
      if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
      numbers.push_back(std::move(digits));
    }
  }
  return numbers;
}

// Expands one entry of a host list. It may have several ranges, as in "rack[1-2]n[1-4]"; the last varies
// fastest.
std::optional<Texts> expand_entry(std::string_view entry) {
  Texts hosts{""};
  while (!entry.empty()) {
    const size_t open = entry.find('[');
    for (std::string& host : hosts) host += entry.substr(0, open);
    if (open == std::string_view::npos) break;
    const size_t close = entry.find(']', open);
    const auto numbers = expand_ranges(entry.substr(open + 1, close - open - 1));
    if (!numbers || hosts.size() * numbers->size() > kMostEntries) return std::nullopt;
    Texts longer;
    for (const std::string& host : hosts) {
      for (const std::string& number : *numbers) longer.push_back(host + number);
    }
    hosts = std::move(longer);
    entry.remove_prefix(close + 1);
  }
  return hosts;
}

}  // namespace

std::optional<std::vector<std::string>> expand_host_list(const std::string& text) {
  Texts all;
  const auto entries = split(text);
  if (!entries) return std::nullopt;
  for (const std::string_view entry : *entries) {
    const auto hosts = expand_entry(entry);
    if (entry.empty() || !hosts || all.size() + hosts->size() > kMostEntries) return std::nullopt;
    all.insert(all.end(), hosts->begin(), hosts->end());
  }
  return all;
}

std::optional<std::vector<int>> expand_task_counts(const std::string& text) {
  std::vector<int> all;
  const auto entries = split(text);
  if (!entries) return std::nullopt;
  for (std::string_view entry : *entries) {
    uint32_t times = 1;
    if (const size_t open = entry.find("(x"); open != std::string_view::npos) {
      const auto repeated = number_in(entry.substr(open + 2, entry.size() - open - 3));
      if (!entry.ends_with(')') || !repeated || *repeated == 0) return std::nullopt;
      times = *repeated;
      entry = entry.substr(0, open);
    }
    const auto count = number_in(entry);
    if (!count || *count > kMostEntries || all.size() + times > kMostEntries) return std::nullopt;
    all.insert(all.end(), times, static_cast<int>(*count));
  }
  return all;
}

}  // namespace zerorun
