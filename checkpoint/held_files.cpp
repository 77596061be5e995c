#include "checkpoint/held_files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/state_header.h"

namespace zerorun::checkpoint {
namespace fs = std::filesystem;

void HeldFiles::add(const std::string& name, const Place& place) {
  files_.push_back({.name = name, .place = place, .content = {}});
}

void HeldFiles::keep(const std::string& name, const Place& place) {
  add(name, place);
  end_ = std::max(end_, place.offset + place.bytes);
}

void HeldFiles::add(const std::string& name, std::string content) {
  const auto bytes = static_cast<int64_t>(content.size());
  files_.push_back({.name = name, .place = {.bytes = bytes}, .content = std::move(content)});
}

std::map<std::string, HeldFiles::Place> HeldFiles::places() const {
  std::map<std::string, Place> places;
  for (const Entry& entry : files_) places[entry.name] = entry.place;
  return places;
}

int HeldFiles::find(const std::string& name) const {
  const auto found = std::ranges::find(files_, name, &Entry::name);
  return found == files_.end() ? -ENOENT : static_cast<int>(found - files_.begin());
}

int HeldFiles::create(const fs::path& file, Caching /*caching*/) {
  if (find(file.filename()) >= 0) return -EEXIST;
  if (descriptor_ < 0) return -EROFS;
  add(file.filename(), Place{.slot = {.descriptor = descriptor_}, .offset = rounded_up(end_, kPageBytes)});
  return static_cast<int>(files_.size()) - 1;
}

int HeldFiles::open(const fs::path& file) {
  return find(file.filename());
}

int64_t HeldFiles::write(int file, std::span<const std::byte> bytes, int64_t offset) {
  Place& place = files_[static_cast<size_t>(file)].place;
  const ssize_t written = ::pwrite(place.slot.descriptor, bytes.data(), bytes.size(), place.offset + offset);
  if (written < 0) return -errno;
  place.bytes = std::max<int64_t>(place.bytes, offset + written);
  end_ = std::max(end_, place.offset + place.bytes);
  return written;
}

int64_t HeldFiles::read(int file, std::span<std::byte> bytes, int64_t offset) {
  const auto& [name, place, content] = files_[static_cast<size_t>(file)];
  const auto count = std::min(static_cast<int64_t>(bytes.size()), place.bytes - offset);
  if (count <= 0) return 0;
  if (place.slot.descriptor < 0 && place.slot.keeper == nullptr) {
    std::memcpy(bytes.data(), content.data() + offset, static_cast<size_t>(count));
    return count;
  }
  return place.slot.read(bytes.first(static_cast<size_t>(count)), place.offset + offset);
}

int64_t HeldFiles::size(int file) {
  return files_[static_cast<size_t>(file)].place.bytes;
}

std::optional<std::vector<std::string>> HeldFiles::list(const fs::path& folder) {
  if (find(folder.filename()) >= 0) return std::nullopt;
  std::vector<std::string> names;
  for (const Entry& entry : files_) {
    if (entry.place.slot.keeper == nullptr) names.push_back(entry.name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace zerorun::checkpoint
