#include "config/config.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include "base/error.h"
#include "config/diagnostics.h"
#include "config/document.h"
#include "config/section_reader.h"
#include "config/sections.h"

namespace zerorun {
namespace {

constexpr std::size_t max_file_bytes = 16 << 20;

[[noreturn]] void refuse_file(const std::filesystem::path& file, const std::string& found) {
  throw UserError(file.string() + ": expected a configuration file, found " + found +
                  "; give the path of a ds_config.json that can be read");
}

std::string read_file(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (status.type() == std::filesystem::file_type::not_found) refuse_file(file, "no such file");
  if (std::filesystem::is_directory(status)) refuse_file(file, "a directory");
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) refuse_file(file, std::string("one that cannot be opened: ") + std::strerror(errno));
  // One byte more than allowed tells a file that is too large, be it as endless as a device.
  std::string text(max_file_bytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) refuse_file(file, std::string("one that cannot be read: ") + std::strerror(errno));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > max_file_bytes) refuse_file(file, "more than 16 MiB");
  return text;
}

}  // namespace

Config parse_config(std::string_view text, const std::string& origin, int world_size) {
  ZR_CHECK(world_size >= 1, "world size " + std::to_string(world_size));
  Diagnostics diagnostics(origin);
  const std::optional<Value> document = read_document(text, diagnostics);
  Config config;
  if (document) {
    SectionReader top(*document, "", diagnostics);
    config.batch = read_batch(top, world_size);
    config.optimizer = read_optimizer(top);
    config.scheduler = read_scheduler(top);
    config.zero = read_zero(top);
    read_precision(top);
    top.read("gradient_clipping", config.gradient_clipping);
    top.read("steps_per_print", config.steps_per_print);
    top.read("wall_clock_breakdown", config.wall_clock_breakdown);
    top.read("prescale_gradients", config.prescale_gradients);
    top.read("gradient_predivide_factor", config.gradient_predivide_factor);
  }
  diagnostics.throw_if_any();
  config.notes = diagnostics.notes();
  return config;
}

Config load_config(const std::filesystem::path& file, int world_size) {
  return parse_config(read_file(file), file.string(), world_size);
}

}  // namespace zerorun
