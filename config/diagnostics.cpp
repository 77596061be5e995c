#include "config/diagnostics.h"

#include <algorithm>

#include "base/error.h"

namespace zerorun {
namespace {

constexpr std::size_t max_shown_bytes = 60;

// Keys and values come from the user's file: what could move a terminal's cursor must not reach it.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

std::string render(const std::string& origin, const Mistake& mistake) {
  const std::string& path = mistake.path.empty() ? "top level" : mistake.path;
  return origin + ":" + std::to_string(mistake.at.line) + ":" + std::to_string(mistake.at.column) + ": " +
         printable(path + ": expected " + mistake.expected + ", found " + mistake.found + "; " +
                   mistake.remedy);
}

}  // namespace

void Diagnostics::note(const Position& at, std::string_view path, std::string_view text) {
  notes_.push_back(origin_ + ":" + std::to_string(at.line) + ": " + std::string(path) + ": " +
                   std::string(text));
}

void Diagnostics::throw_if_any() const {
  if (mistakes_.empty()) return;
  std::vector<const Mistake*> sorted;
  for (const Mistake& mistake : mistakes_) sorted.push_back(&mistake);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Mistake* a, const Mistake* b) { return a->at.offset < b->at.offset; });
  std::string message;
  for (const Mistake* mistake : sorted) {
    if (!message.empty()) message += '\n';
    message += render(origin_, *mistake);
  }
  throw UserError(message);
}

std::string shortened(std::string_view text) {
  if (text.size() <= max_shown_bytes) return std::string(text);
  std::size_t end = max_shown_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string quoted(std::string_view text) {
  std::string result(1, '"');
  result += shortened(text);
  result += '"';
  return result;
}

}  // namespace zerorun
