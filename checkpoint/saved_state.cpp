#include "checkpoint/saved_state.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "checkpoint/checksums.h"
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
  if (!readers_.contains(file) && readers_.size() == kMostOpen) readers_.erase(readers_.begin());
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

struct SavedState::Step {
  const std::string* file;
  int64_t block;
  const StateRange* range;
  const WantedElements* wanted;
  std::shared_ptr<const PartMap> map;

  // The elements of the range that lie in the block.
  ElementRange elements() const {
    const int64_t size = element_bytes(range->dtype);
    const int64_t before = block * kChecksumBlock - range->offset;
    return {range->begin + std::max<int64_t>(before, 0) / size,
            range->begin + std::min(range->numel, (before + kChecksumBlock) / size)};
  }
};

std::vector<SavedState::Step> SavedState::steps_for(std::span<const WantedElements> wanted) const {
  std::vector<Step> steps;
  for (const WantedElements& one : wanted) {
    const Places* parts = places_of(one.parameter, one.state);
    if (!parts) continue;
    const SavedParameter& saved = manifest_.parameters.at(one.parameter);
    for (const auto& [part, places] : *parts) {
      // Of gradients of a whole parameter each tensor rank has its own.
      if (!saved.split && part != (one.own.split ? kWhole : one.part)) continue;
      const auto map = std::make_shared<PartMap>(saved, part, one.own, one.part);
      if (map->empty()) continue;
      for (const auto& [file, range] : places) {
        const int64_t end = range.offset + range.numel * element_bytes(range.dtype);
        for (int64_t block = range.offset / kChecksumBlock; block * kChecksumBlock < end; ++block)
          steps.push_back({&file, block, &range, &one, map});
      }
    }
  }
  std::ranges::stable_sort(
      steps, {}, [](const Step& step) { return std::tie(*step.file, step.block, step.range->offset); });
  return steps;
}

void SavedState::read(std::span<const WantedElements> wanted) {
  for (const Step& step : steps_for(wanted)) {
    const StateRange& range = *step.range;
    const WantedElements& one = *step.wanted;
    step.map->visit(step.elements(), {one.begin, one.begin + one.numel}, [&](const ElementRows& rows) {
      const int64_t offset = range.offset + (rows.from - range.begin) * element_bytes(range.dtype);
      const auto within = static_cast<size_t>(offset - step.block * kChecksumBlock);
      one.put(rows, reader_of(*step.file).block(step.block).subspan(within));
    });
  }
}

namespace {

// Gradients of an unfinished window, before they are summed over ranks.
bool belongs_to_one_rank(const std::string& state) {
  return state.starts_with("gradient of rank ");
}

bool is_gradient(const std::string& state) {
  return state.starts_with("gradient");
}

// Says which element of a part of a state is the first that is in no file, or in more than one.
template <typename Places>
std::optional<std::string> fault_of(const SavedParameter& part, const Places& places) {
  int64_t covered = 0;
  for (const auto& [file, range] : places) {
    if (range.numel == 0) continue;
    if (range.begin != covered) {
      return "element " + std::to_string(std::min(covered, range.begin)) +
             (range.begin > covered ? " is in no file" : " is in two files");
    }
    covered += range.numel;
  }
  if (covered == numel_of(part)) return std::nullopt;
  return "element " + std::to_string(covered) + " is in no file";
}

// The parts of which a state must have all elements, besides those that it has.
std::vector<int> parts_wanted(const SavedParameter& parameter, const std::string& state) {
  if (!parameter.split) return is_gradient(state) ? std::vector<int>() : std::vector<int>{kWhole};
  std::vector<int> parts;
  if (belongs_to_one_rank(state)) return parts;
  for (size_t part = 0; part < parameter.split->parts.size(); ++part) parts.push_back(static_cast<int>(part));
  return parts;
}

}  // namespace

std::vector<std::string> SavedState::faults() const {
  std::vector<std::string> faults;
  for (const auto& [key, there] : places_) {
    const auto& [name, state] = key;
    const SavedParameter& parameter = manifest_.parameters.at(name);
    Places parts = there;
    for (const int part : parts_wanted(parameter, state)) parts[part];
    for (const auto& [part, places] : parts) {
      const std::string what = state + " of " + name + in_words(part) + ": ";
      if (!parameter.split && part != kWhole && !is_gradient(state)) {
        faults.push_back(what + "the parameter is not split");
      } else if (const auto fault = fault_of(part_of(parameter, part), places)) {
        faults.push_back(what + *fault);
      }
    }
  }
  for (const auto& [name, parameter] : manifest_.parameters) {
    const bool is_empty = std::ranges::find(parameter.shape, 0) != parameter.shape.end();
    if (!parameter.excluded && !is_empty && states_of(name).empty())
      faults.push_back(name + " is in no file");
  }
  return faults;
}

}  // namespace zerorun::checkpoint
