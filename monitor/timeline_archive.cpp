#include "monitor/timeline_archive.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "monitor/timeline_file.h"
#include "monitor/whole_file.h"

namespace zerorun {
namespace {

constexpr size_t kBlock = 512;
constexpr char kManifestName[] = "perfetto_manifest.json";

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw UserError(path.string() + " cannot be read: start the training again");
  return content;
}

std::optional<RankOfTimeline> read_facts(const std::filesystem::path& path) {
  try {
    const auto facts = nlohmann::json::parse(content_of(path));
    return RankOfTimeline{facts.at("rank"), facts.at("world_size"), facts.at("machine"),
                          facts.at("clock_offset_ns")};
  } catch (const std::exception&) {
    return std::nullopt;  // of something else
  }
}

std::string tar_header(const std::string& name, size_t size) {
  std::string header(kBlock, '\0');
  const auto put = [&](size_t place, std::string_view text) {
    text.copy(header.data() + place, text.size());
  };
  char octal[16];
  std::snprintf(octal, sizeof octal, "%011llo", static_cast<unsigned long long>(size));
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, octal);
  put(136, "00000000000");  // the time of change
  put(148, "        ");     // the checksum counts as spaces
  put(156, "0");            // a regular file
  put(257, std::string_view("ustar\0"
                            "00",
                            8));
  unsigned sum = 0;
  for (const unsigned char byte : header) sum += byte;
  std::snprintf(octal, sizeof octal, "%06o", sum);
  put(148, std::string_view(octal, 7));  // with a zero, then a space
  return header;
}

}  // namespace

std::string perfetto_manifest(const std::vector<RankOfTimeline>& ranks) {
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  const RankOfTimeline& first = ranks.front();
  for (const RankOfTimeline& rank : ranks) {
    nlohmann::ordered_json file = {{"path", rank_file_name(rank.rank)},
                                   {"machine", {{"name", rank.machine}}}};
    if (rank.machine != first.machine) {
      file["clocks"] = {{"clock", "MONOTONIC"},
                        {"sync_to", {{"file", rank_file_name(first.rank)}, {"clock", "MONOTONIC"}}},
                        {"offset_ns", rank.clock_offset_ns - first.clock_offset_ns}};
    }
    files.push_back(file);
  }
  const nlohmann::ordered_json manifest = {
      {"perfetto_manifest",
       {{"version", 1},
        {"trace_time", {{"clock", "MONOTONIC"}, {"file", rank_file_name(first.rank)}}},
        {"files", files},
        {"attributes", {{"zerorun.ranks", first.world_size}}}}}};
  return manifest.dump() + "\n";
}

std::string tar_of(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string tar;
  for (const auto& [name, content] : files) {
    ZR_CHECK(name.size() < 100, name);
    tar += tar_header(name, content.size());
    tar += content;
    tar.resize((tar.size() + kBlock - 1) / kBlock * kBlock, '\0');
  }
  return tar.append(2 * kBlock, '\0');
}

std::vector<RankOfTimeline> ranks_with_files(const std::filesystem::path& path) {
  std::vector<RankOfTimeline> ranks;
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of_ranks(path), problem)) {
    if (entry.path().extension() != ".json") continue;
    const std::optional<RankOfTimeline> facts = read_facts(entry.path());
    if (facts && entry.path().filename() == rank_facts_name(facts->rank)) ranks.push_back(*facts);
  }
  std::ranges::sort(ranks, {}, &RankOfTimeline::rank);
  // Files of a run with more ranks.
  if (!ranks.empty())
    std::erase_if(ranks,
                  [&](const RankOfTimeline& one) { return one.world_size != ranks.front().world_size; });
  return ranks;
}

void write_timeline_archive(const std::filesystem::path& path, const std::vector<RankOfTimeline>& ranks) {
  std::vector<std::pair<std::string, std::string>> files = {{kManifestName, perfetto_manifest(ranks)}};
  for (const RankOfTimeline& rank : ranks) {
    const std::string name = rank_file_name(rank.rank);
    files.emplace_back(name, content_of(folder_of_ranks(path) / name));
  }
  write_whole_file(path, tar_of(files));
}

}  // namespace zerorun
