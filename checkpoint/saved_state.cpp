#include "checkpoint/saved_state.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/publication.h"

namespace zerorun::checkpoint {
namespace fs = std::filesystem;
namespace {

Manifest read_manifest(FileSystem& files, const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  const auto text = read_text(files, path);
  if (text) return parse_manifest(*text, path.string());
  throw UserError(folder.string() + " is not a checkpoint: it has no " + kManifestName);
}

}  // namespace

SavedState::SavedState(FileSystem& files, fs::path folder)
    : files_(&files), folder_(std::move(folder)), manifest_(read_manifest(files, folder_)) {
  for (const auto& [name, file] : manifest_.files) {
    for (const StateRange& range : file.ranges)
      places_[{range.parameter, range.state}][range.part].push_back({name, range});
  }
  for (auto& [state, parts] : places_) {
    const std::string& dtype = parts.begin()->second.front().range.dtype;
    for (auto& [part, places] : parts) {
      std::ranges::sort(places, {}, [](const Place& place) { return place.range.begin; });
      if (std::ranges::all_of(places, [&](const Place& place) { return place.range.dtype == dtype; }))
        continue;
      throw UserError(folder_.string() + ": " + state.second + " of " + state.first +
                      " exists in several dtypes");
    }
  }
}

const SavedState::Places* SavedState::places_of(const std::string& parameter,
                                                const std::string& state) const {
  const auto found = places_.find({parameter, state});
  return found == places_.end() ? nullptr : &found->second;
}

std::string SavedState::dtype_of(const std::string& parameter, const std::string& state) const {
  const Places* places = places_of(parameter, state);
  return places ? places->begin()->second.front().range.dtype : "";
}

std::vector<int> SavedState::parts_of(const std::string& parameter, const std::string& state) const {
  std::vector<int> parts;
  if (const Places* places = places_of(parameter, state)) {
    for (const auto& [part, of_part] : *places) parts.push_back(part);
  }
  return parts;
}

std::vector<std::string> SavedState::states_of(const std::string& parameter) const {
  std::vector<std::string> states;
  for (auto at = places_.lower_bound({parameter, ""}); at != places_.end() && at->first.first == parameter;
       ++at)
    states.push_back(at->first.second);
  return states;
}

StateFileReader& SavedState::reader_of(const std::string& file) {
  constexpr size_t kMostOpen = 16;
  if (!readers_.contains(file) && readers_.size() == kMostOpen) {
    bytes_before_ += readers_.begin()->second->bytes_read();
    readers_.erase(readers_.begin());
  }
  auto& reader = readers_[file];
  if (reader) return *reader;
  try {
    reader = std::make_unique<StateFileReader>(*files_, folder_ / file, manifest_.files.at(file));
  } catch (const UserError&) {
    const auto names = files_->list(folder_);
    if (!names || std::ranges::find(*names, file) != names->end()) throw;
    throw UserError((folder_ / file).string() +
                    ": missing. If each host saved to its own folder (checkpoint.use_node_local_storage), "
                    "copy the checkpoint's files of all hosts into one folder");
  }
  return *reader;
}

void SavedState::read(const std::string& parameter, const std::string& state, int64_t begin, int64_t numel,
                      std::span<std::byte> into, int part) {
  const std::string what = folder_.string() + ": " + state + " of " + parameter + in_words(part);
  const Places* places = places_of(parameter, state);
  if (!places || !places->contains(part)) throw UserError(what + " is not in the checkpoint");
  const int64_t size = element_bytes(places->at(part).front().range.dtype);
  const int64_t end = begin + numel;
  for (const auto& [file, range] : places->at(part)) {
    if (begin == end) break;
    if (range.begin + range.numel <= begin) continue;
    if (range.begin > begin) break;
    const int64_t count = std::min(end, range.begin + range.numel) - begin;
    reader_of(file).read(range, begin, into.first(static_cast<size_t>(count * size)));
    into = into.subspan(static_cast<size_t>(count * size));
    begin += count;
  }
  if (begin == end) return;
  throw UserError(what + ": element " + std::to_string(begin) + " is in no file of the checkpoint");
}

int64_t SavedState::bytes_read() const {
  int64_t bytes = bytes_before_;
  for (const auto& [file, reader] : readers_) bytes += reader->bytes_read();
  return bytes;
}

}  // namespace zerorun::checkpoint
