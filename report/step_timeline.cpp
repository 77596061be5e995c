#include "report/step_timeline.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "monitor/timeline_file.h"
#include "report/figures.h"

namespace zerorun {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNsPerMs = 1e6;

struct RankStep {
  int64_t number = 0;
  double begin = 0, end = 0;  // ms, by rank 0's clock
  Json spans = {};
};

// Spans by track: the engine's, then in the order in which tracks are named first.
std::vector<Json> tracks_of(const Json& spans, double begin) {
  std::vector<Json> tracks;
  for (const Json& span : spans) {
    const auto name = span.at(0).get<std::string>();
    auto track = std::ranges::find_if(tracks, [&](const Json& one) { return one["name"] == name; });
    if (track == tracks.end()) track = tracks.insert(track, Json{{"name", name}, {"spans", Json::array()}});
    (*track)["spans"].push_back({span.at(1).get<int64_t>(), span.at(2).get<std::string>(),
                                 number_in_figure(begin + span.at(3).get<double>() / kNsPerMs),
                                 number_in_figure(begin + span.at(4).get<double>() / kNsPerMs)});
  }
  std::ranges::stable_sort(tracks, {}, [](const Json& one) { return one["name"] != "engine"; });
  return tracks;
}

// Absent if the rank has left no step, or its file is not what it should be.
std::optional<RankStep> read_rank(const std::filesystem::path& folder, int rank, int world_size) {
  std::ifstream file(folder / rank_facts_name(rank), std::ios::binary);
  try {
    const Json facts = Json::parse(std::string{std::istreambuf_iterator<char>(file), {}});
    if (facts.at("world_size") != world_size || facts.at("step").is_null()) return std::nullopt;
    const Json& step = facts.at("step");
    const double offset = facts.at("clock_offset_ns").get<double>();
    return RankStep{.number = step.at("number"),
                    .begin = (step.at("begin_ns").get<double>() + offset) / kNsPerMs,
                    .end = (step.at("end_ns").get<double>() + offset) / kNsPerMs,
                    .spans = step.at("spans")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

Json step_timeline_of(const ReportedRun& run) {
  if (run.record.timeline.empty()) return nullptr;
  const std::filesystem::path folder = folder_of_ranks(run.record.timeline);
  std::map<int, RankStep> steps;
  for (int rank = 0; rank < std::min(run.record.world_size, kMostRanksShown); ++rank) {
    const auto step = read_rank(folder, rank, run.record.world_size);
    if (step && (steps.empty() || step->number == steps.begin()->second.number)) steps.emplace(rank, *step);
  }
  if (steps.empty()) return nullptr;
  double begin = steps.begin()->second.begin, end = begin;
  for (const auto& [rank, step] : steps) {
    begin = std::min(begin, step.begin);
    end = std::max(end, step.end);
  }
  Json ranks = Json::array();
  try {
    for (const auto& [rank, step] : steps)
      ranks.push_back({{"rank", rank}, {"tracks", tracks_of(step.spans, step.begin - begin)}});
  } catch (const nlohmann::json::exception&) {  // no list of spans
    return nullptr;
  }
  return {{"step", steps.begin()->second.number},
          {"ms", number_in_figure(end - begin)},
          {"of", run.record.world_size},
          {"ranks", ranks}};
}

}  // namespace zerorun
