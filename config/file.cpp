#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <system_error>

#include "base/error.h"
#include "config/check.h"

namespace zerorun {
namespace {

constexpr std::size_t max_file_bytes = 16 << 20;

[[noreturn]] void refuse_file(const std::filesystem::path& file, const std::string& found) {
  throw UserError(file.string() + ": expected a configuration file, found " + found +
                  "; give the path of a ds_config.json that can be read");
}

/// Stops reading soon after max_file_bytes, because `file` may be an endless device such as /dev/zero.
std::string read_stream(std::istream& stream, const std::filesystem::path& file) {
  std::string text;
  std::array<char, 65536> block;
  while (text.size() <= max_file_bytes && (stream.read(block.data(), block.size()) || stream.gcount() > 0)) {
    text.append(block.data(), static_cast<std::size_t>(stream.gcount()));
  }
  if (stream.bad()) refuse_file(file, std::string("one that cannot be read: ") + std::strerror(errno));
  if (text.size() > max_file_bytes) refuse_file(file, "more than 16 MiB");
  return text;
}

}  // namespace

std::string read_config_file(const std::filesystem::path& file) {
  if (file == "-") return read_stream(std::cin, "standard input");
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (status.type() == std::filesystem::file_type::not_found) refuse_file(file, "no such file");
  if (std::filesystem::is_directory(status)) refuse_file(file, "a directory");
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) refuse_file(file, std::string("one that cannot be opened: ") + std::strerror(errno));
  return read_stream(stream, file);
}

}  // namespace zerorun
