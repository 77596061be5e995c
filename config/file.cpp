#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/small_file.h"
#include "config/check.h"

namespace zerorun::config {
namespace {

constexpr std::size_t max_file_bytes = 16 << 20;

[[noreturn]] void refuse_file(const std::filesystem::path& file, const std::string& found) {
  throw UserError(file.string() + ": expected a configuration file, found " + found +
                  "; give the path of a ds_config.json that can be read");
}

std::string read_standard_input() {
  std::string text;
  std::array<char, 65536> block;
  while (text.size() <= max_file_bytes &&
         (std::cin.read(block.data(), block.size()) || std::cin.gcount() > 0)) {
    text.append(block.data(), static_cast<std::size_t>(std::cin.gcount()));
  }
  constexpr const char* kName = "standard input";
  if (std::cin.bad()) refuse_file(kName, std::string("one that cannot be read: ") + std::strerror(errno));
  if (text.size() > max_file_bytes) refuse_file(kName, "more than 16 MiB");
  return text;
}

}  // namespace

std::string read_config_file(const std::filesystem::path& file) {
  if (file == "-") return read_standard_input();
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (status.type() == std::filesystem::file_type::not_found) refuse_file(file, "no such file");
  if (std::filesystem::is_directory(status)) refuse_file(file, "a directory");
  SmallFile read = read_small_file(file, max_file_bytes);
  if (!read.problem.empty()) refuse_file(file, "one that cannot be read: " + read.problem);
  return std::move(read.text);
}

}  // namespace zerorun::config
