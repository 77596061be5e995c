#include "monitor/timeline_step.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "monitor/timeline_transfers.h"

namespace zerorun {
namespace {

// Of a step's time. A figure is less than this many pixels wide.
constexpr uint64_t kShortest = 2000;

struct Step {
  int32_t number;
  uint64_t begin, end;
};

// Between the last two ends of steps.
std::optional<Step> find_step(const std::vector<TimelineEvent>& events) {
  std::vector<const TimelineEvent*> ends;
  for (const TimelineEvent& one : events) {
    if (one.kind == TimelineKind::instant && one.name == TimelineName::end_of_step) ends.push_back(&one);
  }
  if (ends.empty()) return std::nullopt;
  const uint64_t begin = ends.size() > 1 ? ends[ends.size() - 2]->time_ns : events.front().time_ns;
  return Step{ends.back()->number, begin, ends.back()->time_ns};
}

class StepSpans {
 public:
  explicit StepSpans(const Step& step) : step_(step), shortest_((step.end - step.begin) / kShortest) {}

  void add(const std::string& track, size_t row, TimelineName name, uint64_t begin, uint64_t end) {
    begin = std::max(begin, step_.begin);
    end = std::min(end, step_.end);
    if (end <= begin || end - begin < shortest_) return;
    spans_.push_back(
        {track, row, kTimelineTexts[static_cast<size_t>(name)].name, begin - step_.begin, end - step_.begin});
  }
  /// On the first row that has nothing at that time.
  void add_beside(TimelineName name, uint64_t begin, uint64_t end) {
    std::vector<uint64_t>& rows = ends_[name];
    auto row = std::ranges::find_if(rows, [&](uint64_t last) { return last <= begin; });
    if (row == rows.end()) row = rows.insert(row, 0);
    *row = end;
    add(kTimelineTexts[static_cast<size_t>(name)].name, static_cast<size_t>(row - rows.begin()), name, begin,
        end);
  }
  nlohmann::json take() { return std::move(spans_); }

 private:
  Step step_;
  uint64_t shortest_;
  nlohmann::json spans_ = nlohmann::json::array();
  std::map<TimelineName, std::vector<uint64_t>> ends_;  // of the last span of each row
};

void add_nested(StepSpans& spans, const std::vector<TimelineThread>& threads,
                const std::vector<TimelineEvent>& events) {
  std::array<std::vector<TimelineEvent>, kTimelineThreads> open;  // begins by thread, the inner ones last
  for (const TimelineEvent& one : events) {
    std::vector<TimelineEvent>& begins = open[one.thread];
    if (one.kind == TimelineKind::begin) begins.push_back(one);
    if (one.kind != TimelineKind::end || begins.empty() || begins.back().name != one.name) continue;
    const std::string track =
        one.thread == kEngineTrack ? "engine"
        : one.thread < threads.size()
            ? std::string("thread ") + std::to_string(one.thread) + ", " + threads[one.thread].name.data()
            : "another thread";
    spans.add(track, begins.size() - 1, one.name, begins.back().time_ns, one.time_ns);
    begins.pop_back();
  }
}

}  // namespace

nlohmann::json last_step_of(const std::vector<TimelineThread>& threads,
                            const std::vector<TimelineEvent>& events) {
  const std::optional<Step> step = find_step(events);
  if (!step || step->end <= step->begin) return nullptr;
  StepSpans spans(*step);
  add_nested(spans, threads, events);
  for (const RecordedTransfer& one : transfers_of(events)) {
    if (one.end != UINT64_MAX) spans.add_beside(one.start.name, one.start.time_ns, one.end);
  }
  return {
      {"number", step->number}, {"begin_ns", step->begin}, {"end_ns", step->end}, {"spans", spans.take()}};
}

}  // namespace zerorun
