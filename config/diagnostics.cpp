#include "config/diagnostics.h"

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"

namespace zerorun::config {
namespace {

constexpr std::size_t max_kept = 1000;       // messages kept per severity
constexpr std::size_t max_path_bytes = 240;  // longer than all known paths
constexpr int max_columns_before = 70;       // characters of a source line shown before the caret, at most
constexpr int max_columns = 110;

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

}  // namespace

std::string_view name_of(Severity severity) {
  constexpr std::string_view names[] = {"error", "warning", "note"};
  return names[static_cast<std::size_t>(severity)];
}

void Diagnostics::report(Mistake mistake, Severity severity) {
  std::string text = "expected " + mistake.expected + ", found " + mistake.found + "; " + mistake.remedy;
  add({severity, std::move(mistake), std::move(text)});
}

void Diagnostics::add_message(Severity severity, const Position& at, std::string_view path,
                              std::string_view text) {
  add({severity, Mistake{at, std::string(path), "", "", ""}, std::string(text)});
}

void Diagnostics::add(Diagnostic diagnostic) {
  const bool kept = keeps(diagnostic.severity);
  ++counts_[static_cast<std::size_t>(diagnostic.severity)];
  if (kept) messages_.push_back(std::move(diagnostic));
}

bool Diagnostics::keeps(Severity severity) const {
  return count_of(severity) < max_kept;
}

std::size_t Diagnostics::left_out(Severity severity) const {
  return count_of(severity) - std::min(count_of(severity), max_kept);
}

std::string Diagnostics::left_out_line(Severity severity) const {
  const std::size_t count = left_out(severity);
  if (count == 0) return {};
  return origin_ + ": and " + std::to_string(count) + " more " + std::string(name_of(severity)) +
         (count == 1 ? "" : "s");
}

std::vector<Diagnostic> Diagnostics::messages() const {
  std::vector<Diagnostic> sorted = messages_;
  std::ranges::stable_sort(sorted, {}, [](const Diagnostic& diagnostic) { return diagnostic.at().offset; });
  return sorted;
}

std::string Diagnostics::headline(const Diagnostic& diagnostic) const {
  const std::string path =
      diagnostic.mistake.path.empty() ? "top level" : shortened(diagnostic.mistake.path, max_path_bytes);
  return origin_ + ":" + std::to_string(diagnostic.at().line) + ":" + std::to_string(diagnostic.at().column) +
         ": " + std::string(name_of(diagnostic.severity)) + ": " + printable(path + ": " + diagnostic.text);
}

std::string Diagnostics::render(const Diagnostic& diagnostic) const {
  const std::string line = source_line(diagnostic.at());
  return line.empty() ? headline(diagnostic) : headline(diagnostic) + "\n" + line;
}

// Returns the source line at `at` with a caret below it. A long line is cut to the part around the position.
std::string Diagnostics::source_line(const Position& at) const {
  if (at.offset > text_.size()) return {};
  std::size_t begin = at.offset;
  int before = 0;
  const auto ends_line = [&](std::size_t i) { return text_[i] == '\n' || text_[i] == '\r'; };
  while (begin > 0 && !ends_line(begin - 1) && before < max_columns_before) {
    if (!continues_character(text_[--begin])) ++before;
  }
  std::size_t end = at.offset;
  int columns = before;
  while (end < text_.size() && !ends_line(end) && columns < max_columns) {
    if (!continues_character(text_[end++])) ++columns;
  }
  while (end < text_.size() && continues_character(text_[end])) ++end;
  if (begin == end) return {};
  std::string number = std::to_string(at.line);
  const std::string margin(std::max<std::size_t>(5, number.size()) - number.size(), ' ');
  std::string shown = text_.substr(begin, end - begin);
  std::ranges::replace(shown, '\t', ' ');
  return margin + number + " | " + printable(shown) + "\n" + std::string(margin.size() + number.size(), ' ') +
         " | " + std::string(static_cast<size_t>(before), ' ') + "^";
}

void Diagnostics::throw_if_any() const {
  std::string message;
  for (const Diagnostic& diagnostic : messages()) {
    if (diagnostic.severity != Severity::error) continue;
    if (!message.empty()) message += '\n';
    message += render(diagnostic);
  }
  if (const std::string more = left_out_line(Severity::error); !more.empty()) message += "\n" + more;
  if (!message.empty()) throw UserError(message);
}

std::string shortened(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  std::size_t end = max_bytes;
  while (end > 0 && continues_character(text[end])) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string in_quotes(std::string_view text) {
  std::string result(1, '"');
  result += shortened(text);
  result += '"';
  return result;
}

}  // namespace zerorun::config
