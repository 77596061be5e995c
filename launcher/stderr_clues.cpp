#include "launcher/stderr_clues.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <string_view>
#include <thread>

#include "base/memory_report.h"

namespace zerorun::launcher {
namespace {

using Lines = std::vector<std::string>;

bool has(std::string_view line, std::string_view text) {
  return line.find(text) != std::string_view::npos;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// The last line that contains one of `texts`.
std::optional<std::string> last_with(const Lines& lines, std::initializer_list<std::string_view> texts) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    for (const std::string_view text : texts) {
      if (has(*line, text)) return std::string(trimmed(*line));
    }
  }
  return std::nullopt;
}

// "terminate called after throwing an instance of 'TYPE'", then "  what():  TEXT" if it is a std::exception.
std::optional<FoundException> cpp_exception(const Lines& lines) {
  constexpr std::string_view kThrown = "terminate called after throwing an instance of '";
  constexpr std::string_view kWhat = "what():  ";
  std::string type;
  std::optional<std::string> what;
  size_t next_line = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (const size_t at = line.find(kThrown); at != std::string::npos) {
      type = line.substr(at + kThrown.size());
      type = type.substr(0, type.rfind('\''));
      what.reset();
      next_line = i + 1;
    } else if (trimmed(line).starts_with(kWhat)) {
      what = trimmed(line).substr(kWhat.size());
      next_line = i + 1;
    } else if (has(line, "terminate called without an active exception")) {
      return FoundException{
          "none: std::terminate() was called, for example for a std::thread that nobody joined", i + 1};
    }
  }
  if (next_line == 0) return std::nullopt;
  const char* colon = what && !type.empty() ? ": " : "";
  return FoundException{type + colon + what.value_or(""), next_line};
}

// "NAME" or "NAME: text", as Python ends a traceback; NAME is an identifier with dots.
bool names_python_exception(std::string_view line) {
  const std::string_view name = line.substr(0, line.find(':'));
  const auto is_part = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; };
  return !name.empty() && std::isalpha(static_cast<unsigned char>(name.front())) != 0 &&
         std::ranges::all_of(name, is_part);
}

// The unindented line that follows the indented lines of a traceback. The header may be cut off.
std::optional<FoundException> python_exception(const Lines& lines) {
  std::optional<FoundException> found;
  bool in_traceback = false;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (line.starts_with("Traceback (most recent call last)") || line.starts_with("  File \"")) {
      in_traceback = true;
    } else if (in_traceback && !line.starts_with(" ")) {
      in_traceback = false;
      if (names_python_exception(line)) found = {line, i + 1};
    }
  }
  return found;
}

}  // namespace

std::optional<FoundException> find_exception(const Lines& lines) {
  if (auto exception = cpp_exception(lines)) return exception;
  return python_exception(lines);
}

std::optional<std::string> find_failed_assertion(const Lines& lines) {
  // The messages of assert(), of glibc's heap and stack checks, of libstdc++'s assertions, of LibTorch and
  // Python.
  return last_with(lines, {"Assertion `", "free(): ", "malloc(): ", "double free or corruption",
                           "corrupted size vs. prev_size", "malloc_consolidate(): ", "realloc(): ",
                           "stack smashing detected", "buffer overflow detected", "Assertion '",
                           "INTERNAL ASSERT FAILED", "Fatal Python error"});
}

std::optional<std::string> find_full_disk(const Lines& lines) {
  return last_with(lines, {"No space left on device", "Disk quota exceeded", "ENOSPC", "EDQUOT"});
}

std::optional<std::string> find_failed_allocation(const Lines& lines) {
  const auto found = std::find_if(lines.rbegin(), lines.rend(), tells_of_lack_of_memory);
  return found == lines.rend() ? std::nullopt : std::optional<std::string>(trimmed(*found));
}

}  // namespace zerorun::launcher
