#include "monitor/csv_writer.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "monitor/append_file.h"

namespace zerorun {
namespace {

// The shortest text that reads back as the same value; "inf", "-inf", "nan".
std::string shortest(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

std::string file_of(std::string tag) {
  std::ranges::replace_if(
      tag, [](char letter) { return letter == '/' || letter == ' '; }, '_');
  return tag + ".csv";
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) quoted += letter == '"' ? "\"\"" : std::string(1, letter);
  return quoted + '"';
}

}  // namespace

void make_writable_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw UserError("cannot create the folder " + folder.string() + ": " + error.message());
  const std::filesystem::path probe = folder / (".writable." + std::to_string(::getpid()));
  AppendFile{probe};
  std::filesystem::remove(probe, error);
}

CsvWriter::CsvWriter(std::filesystem::path folder) : folder_(std::move(folder)) {
  make_writable_folder(folder_);
}

void CsvWriter::write(const MonitorEvent& event) {
  AppendFile file(folder_ / file_of(event.tag));
  std::string lines;
  if (file.is_empty()) lines = "step," + quoted(event.tag.substr(event.tag.rfind('/') + 1)) + '\n';
  file.append(lines + std::to_string(event.samples) + ',' + shortest(event.value) + '\n');
}

}  // namespace zerorun
