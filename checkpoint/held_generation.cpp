#include "checkpoint/held_generation.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/memory_limits.h"
#include "checkpoint/checksums.h"

namespace zerorun::checkpoint {
namespace {

using nlohmann::json;

constexpr uint64_t kWholeMark = 0x31646c6568727a00;  // "\0zrheld1"
constexpr uint64_t kClearedMark = 1;
constexpr int64_t kMostBytes = int64_t{1} << 50;

struct FirstPage {
  uint64_t mark;  // kWholeMark; without a generation kClearedMark, or 0 in a file that nobody has used
  int64_t text_offset;
  int64_t text_bytes;
  uint64_t text_checksum;
};
static_assert(sizeof(FirstPage) <= kHeldBegin);

std::span<const std::byte> text_bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void write_held(int descriptor, std::span<const std::byte> bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      throw UserError(std::string("the system gives no memory for it: ") + std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
}

json places_of(const HeldGeneration& generation) {
  json places = json::object();
  for (const auto& [name, place] : generation.places) places[name] = {place.offset, place.bytes};
  return places;
}

HeldGeneration parse_description(const std::string& text, const HeldSlot& slot) {
  const json value = json::parse(text);
  HeldGeneration generation{.run = value.at("run").get<std::string>(),
                            .attempt = value.at("attempt").get<std::string>(),
                            .step = value.at("step").get<int64_t>(),
                            .manifest = value.at("manifest").get<std::string>(),
                            .part = value.at("part").get<std::string>(),
                            .places = {}};
  for (const auto& [name, place] : value.at("places").items())
    generation.places[name] = {slot, place.at(0).get<int64_t>(), place.at(1).get<int64_t>()};
  return generation;
}

}  // namespace

bool was_used(int descriptor) {
  uint64_t mark = 0;
  return ::pread(descriptor, &mark, sizeof mark, 0) == sizeof mark && mark != 0;
}

void clear_generation(int descriptor) {
  const FirstPage none{.mark = kClearedMark, .text_offset = 0, .text_bytes = 0, .text_checksum = 0};
  write_held(descriptor, std::as_bytes(std::span(&none, 1)), 0);
}

int64_t finish_generation(int descriptor, const HeldGeneration& generation, int64_t end) {
  const std::string text = json({{"run", generation.run},
                                 {"attempt", generation.attempt},
                                 {"step", generation.step},
                                 {"manifest", generation.manifest},
                                 {"part", generation.part},
                                 {"places", places_of(generation)}})
                               .dump();
  FirstPage page{.mark = kClearedMark,
                 .text_offset = end,
                 .text_bytes = static_cast<int64_t>(text.size()),
                 .text_checksum = checksum_of(text_bytes_of(text))};
  write_held(descriptor, text_bytes_of(text), end);
  write_held(descriptor, std::as_bytes(std::span(&page, 1)), 0);
  page.mark = kWholeMark;
  write_held(descriptor, std::as_bytes(std::span(&page.mark, 1)), 0);
  return page.text_offset + page.text_bytes;
}

std::optional<HeldGeneration> read_generation(const HeldSlot& slot) {
  FirstPage page{};
  if (slot.read(std::as_writable_bytes(std::span(&page, 1)), 0) != sizeof page || page.mark == 0 ||
      page.mark == kClearedMark)
    return std::nullopt;
  const bool fits = page.mark == kWholeMark && page.text_offset >= kHeldBegin &&
                    page.text_offset <= kMostBytes && page.text_bytes > 0 &&
                    page.text_bytes <= kMostTextBytes;
  if (!fits) throw UserError("its first page is not what was written");
  std::string text(static_cast<size_t>(page.text_bytes), '\0');
  const int64_t read = slot.read(std::as_writable_bytes(std::span(text)), page.text_offset);
  if (read != page.text_bytes || checksum_of(text_bytes_of(text)) != page.text_checksum)
    throw UserError("its description is not what was written (another checksum)");
  return parse_description(text, slot);
}

void reserve_generation(int descriptor, int64_t bytes) {
  rlimit most{};  // beyond it the system would kill the process
  if (::getrlimit(RLIMIT_FSIZE, &most) == 0 && static_cast<rlim_t>(bytes) > most.rlim_cur)
    throw UserError("files may have " + std::to_string(most.rlim_cur) + " bytes (ulimit -f), and it needs " +
                    std::to_string(bytes));
  // Beyond that the system would not refuse, but kill processes.
  struct stat status {};
  ::fstat(descriptor, &status);
  const int64_t available = available_memory(), more = bytes - 512 * int64_t{status.st_blocks};
  if (more > available)
    throw UserError("the machine has " + std::to_string(available) + " bytes left, and it needs " +
                    std::to_string(more));
  int outcome = 0;
  do {
    outcome = ::fallocate(descriptor, 0, 0, bytes);
  } while (outcome != 0 && errno == EINTR);
  if (outcome == 0) return;
  throw UserError("the system does not give " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
}

}  // namespace zerorun::checkpoint
