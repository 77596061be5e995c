#include "checkpoint/verification.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "checkpoint/checksums.h"
#include "checkpoint/saved_state.h"

namespace zerorun::checkpoint {
namespace fs = std::filesystem;
namespace {

// Names the states that have elements in a block, for a message: "h.0.weight (value, exp_avg), h.1.weight
// (value)".
std::string states_in(const StateFileFacts& facts, int64_t block) {
  constexpr size_t kMostNamed = 4;
  std::map<std::string, std::string> states;  // by parameter
  for (const StateRange& range : facts.ranges) {
    const int64_t end = range.offset + range.numel * element_bytes(range.dtype);
    if (end <= block * kChecksumBlock || range.offset >= (block + 1) * kChecksumBlock) continue;
    std::string& names = states[range.parameter];
    names += (names.empty() ? "" : ", ") + range.state;
  }
  std::string text;
  size_t named = 0;
  for (const auto& [parameter, names] : states) {
    if (named++ == kMostNamed) return text + " and " + std::to_string(states.size() - kMostNamed) + " more";
    text += (text.empty() ? "" : ", ") + parameter + " (" + names + ")";
  }
  return text.empty() ? "no parameter" : text;
}

// Verifies a file block by block. Adds the number of bytes read to `bytes_read`.
std::vector<Damage> verify_file(FileSystem& files, const fs::path& folder, const std::string& name,
                                const StateFileFacts& facts, std::vector<std::byte>& buffer,
                                std::atomic<int64_t>& bytes_read) {
  std::vector<Damage> damages;
  try {
    const OpenFile file = OpenFile::open(files, folder / name);
    const int64_t size = file.size();
    if (size != facts.bytes) {
      damages.push_back(
          {name, -1,
           "has " + std::to_string(size) + " bytes, the manifest says " + std::to_string(facts.bytes)});
      return damages;
    }
    const auto blocks = static_cast<int64_t>(facts.checksums.size());
    if (blocks != (size + kChecksumBlock - 1) / kChecksumBlock)
      damages.push_back({name, -1, "the manifest has checksums of " + std::to_string(blocks) + " blocks"});
    for (int64_t block = 0; block < blocks && block * kChecksumBlock < size; ++block) {
      const auto bytes = std::min(kChecksumBlock, size - block * kChecksumBlock);
      const auto memory = std::span(buffer).first(static_cast<size_t>(bytes));
      file.read(memory, block * kChecksumBlock);
      bytes_read += bytes;
      if (checksum_of(memory) != facts.checksums[static_cast<size_t>(block)])
        damages.push_back({name, block, "differs from its checksum: " + states_in(facts, block)});
    }
  } catch (const UserError& error) {
    damages.push_back({name, -1, error.what()});
  }
  return damages;
}

// Reports the first element of a part of a state that is in no file, or in more than one.
void verify_coverage(const SavedParameter& parameter, const std::string& what,
                     std::vector<StateRange>& ranges, std::vector<Damage>& damages) {
  const int64_t numel = numel_of(parameter);
  std::ranges::sort(ranges, {}, &StateRange::begin);
  int64_t covered = 0;
  for (const StateRange& range : ranges) {
    if (range.numel == 0) continue;
    if (range.begin == covered) {
      covered += range.numel;
      continue;
    }
    damages.push_back({"", -1,
                       what + ": element " + std::to_string(std::min(covered, range.begin)) +
                           (range.begin > covered ? " is in no file" : " is in two files")});
    return;
  }
  if (covered != numel)
    damages.push_back({"", -1, what + ": element " + std::to_string(covered) + " is in no file"});
}

// Gradients of an unfinished window, before they are summed over ranks.
bool belongs_to_one_rank(const std::string& state) {
  return state.starts_with("gradient of rank ");
}

void check_manifest(const Manifest& manifest, std::vector<Damage>& damages) {
  std::map<std::pair<std::string, std::string>, std::map<int, std::vector<StateRange>>> ranges;
  std::set<std::string> present;
  for (const auto& [name, file] : manifest.files) {
    for (const StateRange& range : file.ranges) {
      ranges[{range.parameter, range.state}][range.part].push_back(range);
      present.insert(range.parameter);
    }
  }
  for (auto& [key, parts] : ranges) {
    const auto& [name, state] = key;
    const SavedParameter& parameter = manifest.parameters.at(name);
    if (parameter.split && !belongs_to_one_rank(state)) {
      for (size_t part = 0; part < parameter.split->parts.size(); ++part) parts[static_cast<int>(part)];
    }
    for (auto& [part, of_part] : parts)
      verify_coverage(part_of(parameter, part), state + " of " + name + in_words(part), of_part, damages);
  }
  for (const auto& [name, parameter] : manifest.parameters) {
    const bool is_empty = std::ranges::find(parameter.shape, 0) != parameter.shape.end();
    if (!parameter.excluded && !is_empty && !present.contains(name))
      damages.push_back({"", -1, name + " is in no file"});
  }
}

}  // namespace

Verification verify_checkpoint(FileSystem& files, const fs::path& folder) {
  const SavedState saved(files, folder);
  const auto& described = saved.manifest().files;
  Verification result;
  result.files = static_cast<int64_t>(described.size());
  check_manifest(saved.manifest(), result.damages);

  std::vector<decltype(described.begin())> order;
  for (auto file = described.begin(); file != described.end(); ++file) order.push_back(file);
  std::vector<std::vector<Damage>> damages(order.size());
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> bytes = 0;
  {
    constexpr unsigned kMostThreads = 8;
    const auto threads = std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads);
    std::vector<std::jthread> workers;
    for (unsigned thread = 0; thread < threads && thread < order.size(); ++thread) {
      workers.emplace_back([&] {
        std::vector<std::byte> buffer(kChecksumBlock);
        for (size_t index = next++; index < order.size(); index = next++)
          damages[index] =
              verify_file(files, folder, order[index]->first, order[index]->second, buffer, bytes);
      });
    }
  }
  for (std::vector<Damage>& of_file : damages) std::ranges::move(of_file, std::back_inserter(result.damages));
  result.bytes = bytes;
  return result;
}

}  // namespace zerorun::checkpoint
