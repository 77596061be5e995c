#include "base/processor_list.h"

#include <charconv>
#include <optional>

#include "base/error.h"

namespace zerorun {
namespace {

constexpr int kHighestProcessor = 1 << 20;

std::optional<int> number_in(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 || number > kHighestProcessor)
    return std::nullopt;
  return number;
}

}  // namespace

std::vector<int> parse_processor_list(std::string_view text, const std::string& name) {
  const auto refuse = [&](const std::string& why) {
    throw UserError(name + ": expected numbers and ranges such as 0-3,5, found '" + std::string(text) + "'" +
                    why);
  };
  std::vector<int> processors;
  for (size_t from = 0; from <= text.size();) {
    const std::string_view part = text.substr(from, text.find(',', from) - from);
    from += part.size() + 1;
    const size_t dash = part.find('-');
    const std::optional<int> first = number_in(part.substr(0, dash));
    const std::optional<int> last = dash == std::string_view::npos ? first : number_in(part.substr(dash + 1));
    if (!first || !last) refuse("");
    if (*last < *first) refuse(": the range " + std::string(part) + " ends before it begins");
    if (!processors.empty() && *first <= processors.back()) {
      refuse(": the numbers must increase, but " + std::to_string(*first) + " follows " +
             std::to_string(processors.back()));
    }
    for (int number = *first; number <= *last; ++number) processors.push_back(number);
  }
  return processors;
}

std::string processor_list(const std::vector<int>& processors) {
  std::string text;
  for (size_t first = 0; first < processors.size();) {
    size_t last = first;
    while (last + 1 < processors.size() && processors[last + 1] == processors[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(processors[first]);
    if (last > first) text += "-" + std::to_string(processors[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace zerorun
