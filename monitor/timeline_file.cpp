#include "monitor/timeline_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/protobuf.h"
#include "monitor/timeline_step.h"
#include "monitor/timeline_transfers.h"
#include "monitor/whole_file.h"

namespace zerorun {
namespace {

// Numbers of fields and enums in Perfetto's protos/perfetto/trace.
namespace packet {
constexpr int clock_snapshot = 6, timestamp = 8, sequence = 10, track_event = 11, interned = 12, flags = 13,
              dropped = 42, clock = 58, defaults = 59, track = 60, first_of_sequence = 87;
constexpr uint64_t cleared = 1, needs_interned = 2;  // flags
}  // namespace packet
namespace event {
constexpr int annotation = 4, type = 9, name = 10, track = 11, counter = 30;
constexpr uint64_t begin = 1, end = 2, instant = 3, count = 4;  // types
}  // namespace event
namespace track {
constexpr int uuid = 1, name = 2, process = 3, thread = 4, parent = 5, counter = 8, child_ordering = 11,
              rank = 12;
constexpr uint64_t explicit_order = 3;
}  // namespace track
constexpr uint64_t kRealtime = 1, kMonotonic = 3, kBoottime = 6;  // clocks
constexpr uint64_t kBytes = 3;                                    // unit of a counter

// Track identities within a rank.
constexpr uint64_t kProcess = 1, kEngine = 2, kThreads = 0x100, kCounters = 0x200, kLanes = 0x1000;

class TraceWriter {
 public:
  explicit TraceWriter(const TimelineOwner& owner) : owner_(owner) {}

  std::string write(const std::vector<TimelineThread>& threads, const std::vector<TimelineEvent>& events) {
    write_start(events);
    write_tracks(threads, events);
    write_spans(events);
    write_transfers(events);
    return std::move(bytes_);
  }

 private:
  uint64_t uuid(uint64_t own) const { return (static_cast<uint64_t>(owner_.rank) + 1) << 20 | own; }

  void add(const ProtobufMessage& content) {
    ProtobufMessage trace;
    trace.add(1, content);
    bytes_ += trace.bytes();
  }
  ProtobufMessage packet_at(uint64_t time) const {
    ProtobufMessage content;
    content.add(packet::timestamp, time);
    content.add(packet::sequence, static_cast<uint64_t>(owner_.rank) + 1);
    return content;
  }

  // The clocks, the names that events refer to, and the clock of all that follows.
  void write_start(const std::vector<TimelineEvent>& events) {
    ProtobufMessage snapshot;
    for (const auto& [clock, time] :
         {std::pair(kMonotonic, owner_.monotonic_ns), std::pair(kBoottime, owner_.boottime_ns),
          std::pair(kRealtime, owner_.realtime_ns)}) {
      ProtobufMessage reading;
      reading.add(1, clock);
      reading.add_signed(2, time);
      snapshot.add(1, reading);
    }
    snapshot.add(2, kMonotonic);  // the clock of a trace that is opened alone
    ProtobufMessage clocks;
    clocks.add(packet::sequence, static_cast<uint64_t>(owner_.rank) + 1);
    clocks.add(packet::clock_snapshot, snapshot);
    add(clocks);

    ProtobufMessage interned;
    const auto intern = [&](int field, uint64_t number, const char* text) {
      ProtobufMessage name;
      name.add(1, number);
      name.add_bytes(2, text);
      interned.add(field, name);
    };
    for (size_t i = 0; i < kTimelineTexts.size(); ++i) intern(2, i + 1, kTimelineTexts[i].name);
    for (const TimelineText& text : kTimelineTexts) {
      for (const char* what : {text.number, text.value}) {
        if (what == nullptr || annotations_.contains(what)) continue;
        const uint64_t number = annotations_.size() + 1;
        annotations_.emplace(what, number);
        intern(3, number, what);
      }
    }
    ProtobufMessage defaults;
    defaults.add(packet::clock, kMonotonic);
    ProtobufMessage first =
        packet_at(events.empty() ? static_cast<uint64_t>(owner_.monotonic_ns) : events.front().time_ns);
    first.add(packet::clock, kMonotonic);
    first.add(packet::interned, interned);
    first.add(packet::flags, packet::cleared);
    first.add(packet::defaults, defaults);
    first.add(packet::first_of_sequence, uint64_t{1});
    if (!events.empty() && events.front().ticket > owner_.first_ticket)
      first.add(packet::dropped, uint64_t{1});
    add(first);
  }

  void add_track(uint64_t own, const std::string& name, int field, const ProtobufMessage* content, int rank) {
    ProtobufMessage description;
    description.add(track::uuid, uuid(own));
    if (own == kProcess) {
      description.add(track::child_ordering, track::explicit_order);
    } else {
      description.add(track::parent, uuid(kProcess));
      description.add(track::rank, static_cast<uint64_t>(rank));
    }
    if (!name.empty()) description.add_bytes(track::name, name);
    if (content != nullptr) description.add(field, *content);
    ProtobufMessage whole;
    whole.add(packet::sequence, static_cast<uint64_t>(owner_.rank) + 1);
    whole.add(packet::track, description);
    add(whole);
  }

  void write_tracks(const std::vector<TimelineThread>& threads, const std::vector<TimelineEvent>& events) {
    ProtobufMessage process;
    process.add_signed(1, owner_.process);
    process.add_bytes(6, "rank " + std::to_string(owner_.rank));
    add_track(kProcess, "", track::process, &process, 0);
    add_track(kEngine, "engine", 0, nullptr, 0);
    for (size_t number = 1; number < threads.size(); ++number) {
      ProtobufMessage thread;
      thread.add_signed(1, owner_.process);
      thread.add_signed(2, threads[number].id);
      thread.add_bytes(5, threads[number].name.data());
      add_track(kThreads + number, "", track::thread, &thread, 100);
    }
    std::array<bool, kTimelineTexts.size()> has_counter{};
    for (const TimelineEvent& one : events) {
      if (one.kind == TimelineKind::counter) has_counter[static_cast<size_t>(one.name)] = true;
    }
    ProtobufMessage counter;
    counter.add(3, kBytes);
    for (size_t name = 0; name < has_counter.size(); ++name) {
      if (has_counter[name])
        add_track(kCounters + name, kTimelineTexts[name].name, track::counter, &counter, 300);
    }
  }

  void add_event(uint64_t time, uint64_t type, uint64_t own_track, const TimelineEvent* named) {
    ProtobufMessage what;
    what.add(event::type, type);
    what.add(event::track, uuid(own_track));
    if (type == event::count) {
      what.add_signed(event::counter, named->value);
    } else if (named != nullptr) {
      what.add(event::name, static_cast<uint64_t>(named->name) + 1);
      const TimelineText& text = text_of(named->name);
      annotate(what, text.number, named->number);
      annotate(what, text.value, named->value);
    }
    ProtobufMessage whole = packet_at(time);
    whole.add(packet::flags, packet::needs_interned);
    whole.add(packet::track_event, what);
    add(whole);
  }

  void annotate(ProtobufMessage& what, const char* name, int64_t value) {
    if (name == nullptr || value < 0) return;
    ProtobufMessage annotation;
    annotation.add(1, annotations_.at(name));
    annotation.add_signed(4, value);
    what.add(event::annotation, annotation);
  }

  void write_spans(const std::vector<TimelineEvent>& events) {
    std::array<std::vector<TimelineName>, kTimelineThreads> open;  // spans by thread, the inner ones last
    for (const TimelineEvent& one : events) {
      const uint64_t own_track = one.thread == kEngineTrack ? kEngine : kThreads + one.thread;
      std::vector<TimelineName>& spans = open[one.thread];
      switch (one.kind) {
        case TimelineKind::begin:
          spans.push_back(one.name);
          add_event(one.time_ns, event::begin, own_track, &one);
          break;
        case TimelineKind::end:
          if (spans.empty() || spans.back() != one.name) break;
          spans.pop_back();
          add_event(one.time_ns, event::end, own_track, nullptr);
          break;
        case TimelineKind::instant:
          add_event(one.time_ns, event::instant, one.name == TimelineName::end_of_step ? kEngine : own_track,
                    &one);
          break;
        case TimelineKind::counter:
          add_event(one.time_ns, event::count, kCounters + static_cast<uint64_t>(one.name), &one);
          break;
        default:
          break;  // write_transfers() has them
      }
    }
  }

  // Transfers of one kind that overlap lie on several tracks of one name, which Perfetto draws as one.
  void write_transfers(const std::vector<TimelineEvent>& events) {
    struct Lane {
      TimelineName name;
      uint64_t end;
    };
    std::vector<Lane> lanes;
    for (const RecordedTransfer& transfer : transfers_of(events)) {
      const TimelineEvent& start = transfer.start;
      auto lane = std::ranges::find_if(
          lanes, [&](const Lane& one) { return one.name == start.name && one.end <= start.time_ns; });
      if (lane == lanes.end()) {
        lanes.push_back({start.name, 0});
        lane = lanes.end() - 1;
        add_track(kLanes + lanes.size() - 1, text_of(start.name).name, 0, nullptr, 200);
      }
      lane->end = transfer.end;
      const uint64_t own_track = kLanes + static_cast<uint64_t>(lane - lanes.begin());
      add_event(start.time_ns, event::begin, own_track, &start);
      if (transfer.end != UINT64_MAX) add_event(transfer.end, event::end, own_track, nullptr);
    }
  }

  const TimelineOwner& owner_;
  std::string bytes_;
  std::map<std::string, uint64_t> annotations_;  // their numbers
};

}  // namespace

std::string perfetto_trace(const TimelineOwner& owner, const std::vector<TimelineThread>& threads,
                           const std::vector<TimelineEvent>& events) {
  return TraceWriter(owner).write(threads, events);
}

std::filesystem::path folder_of_ranks(const std::filesystem::path& path) {
  return path.string() + ".ranks";
}

std::string rank_file_name(int rank) {
  return "rank" + std::to_string(rank) + ".pftrace";
}

std::string rank_facts_name(int rank) {
  return "rank" + std::to_string(rank) + ".json";
}

uint64_t write_rank_file(const TimelineRing& ring) {
  const TimelineOwner& owner = ring.owner();
  const std::filesystem::path folder = folder_of_ranks(owner.path.data());
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);  // write_whole_file() says what is wrong
  const std::vector<TimelineEvent> events = ring.events(owner.first_ticket);
  const std::vector<TimelineThread> threads = ring.threads();
  write_whole_file(folder / rank_file_name(owner.rank), perfetto_trace(owner, threads, events));
  nlohmann::json facts = {{"rank", owner.rank},
                          {"world_size", owner.world_size},
                          {"machine", owner.machine.data()},
                          {"clock_offset_ns", owner.clock_offset_ns},
                          {"round_trip_ns", owner.round_trip_ns},
                          {"step", last_step_of(threads, events)}};
  if (owner.last_step > 0) facts["steps"] = {owner.first_step, owner.last_step};
  write_whole_file(folder / rank_facts_name(owner.rank), facts.dump() + "\n");
  const uint64_t first = events.empty() ? owner.first_ticket : events.front().ticket;
  return first - owner.first_ticket;
}

void write_last_events(const TimelineRing& ring) {
  TimelineOwner owner = ring.owner();
  owner.first_ticket = 0;
  write_whole_file(
      folder_of_ranks(owner.path.data()) / ("rank" + std::to_string(owner.rank) + ".last.pftrace"),
      perfetto_trace(owner, ring.threads(), ring.events()));
}

void remove_rank_files(const std::filesystem::path& path, int rank) {
  std::error_code ignored;
  const std::filesystem::path folder = folder_of_ranks(path);
  std::filesystem::remove(folder / rank_facts_name(rank), ignored);  // first: it says that the other is whole
  std::filesystem::remove(folder / rank_file_name(rank), ignored);
  std::filesystem::remove(folder / ("rank" + std::to_string(rank) + ".last.pftrace"), ignored);
}

}  // namespace zerorun
