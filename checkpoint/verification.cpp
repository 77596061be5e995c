#include "checkpoint/verification.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
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
  } catch (const Error& error) {
    damages.push_back({name, -1, error.what()});
  }
  return damages;
}

}  // namespace

Verification verify_checkpoint(FileSystem& files, const fs::path& folder, const VerifiedPart& part) {
  const SavedState saved(files, folder);
  const auto& described = saved.manifest().files;
  Verification result;
  result.manifest_checksum = saved.manifest().checksum;
  for (const std::string& fault : saved.faults()) result.damages.push_back({"", -1, fault});

  std::vector<decltype(described.begin())> order;
  const auto there = part.may_be_missing ? files.list(folder) : std::nullopt;
  int64_t number = 0;
  for (auto file = described.begin(); file != described.end(); ++file, ++number) {
    const bool is_elsewhere = there && std::ranges::find(*there, file->first) == there->end();
    if (number % part.every == part.first && !is_elsewhere) order.push_back(file);
  }
  result.files = static_cast<int64_t>(order.size());
  std::vector<std::vector<Damage>> damages(order.size());
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> bytes = 0;
  {
    constexpr unsigned kMostThreads = 8;
    const auto threads =
        std::clamp(std::thread::hardware_concurrency() / static_cast<unsigned>(part.every), 1U, kMostThreads);
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
