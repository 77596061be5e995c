// The ring of a timeline, its file and the archive, without an engine.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/timeline.h"
#include "base/timeline_steps.h"
#include "monitor/timeline_archive.h"
#include "monitor/timeline_file.h"
#include "monitor/timeline_step.h"
#include "tests/support/temporary_folder.h"
#include "tests/timeline/perfetto_reader.h"

namespace zerorun::testing {
namespace {

// Lets this thread record in a new ring.
class Recording {
 public:
  explicit Recording(int64_t mib = 1) : ring_(TimelineRing::create(-1, mib).release()) {
    timeline::use(*ring_);
  }
  ~Recording() { timeline::leave(*ring_); }  // a ring stays until the process ends
  TimelineRing& ring() { return *ring_; }

 private:
  TimelineRing* ring_;
};

ReadTrace trace_of(const TimelineRing& ring, const TimelineOwner& owner = {}) {
  return read_trace(perfetto_trace(owner, ring.threads(), ring.events(owner.first_ticket)));
}

}  // namespace

TEST_CASE("Nothing is recorded without a ring") {
  CHECK_FALSE(timeline::is_on());
  {
    const TimelineSpan span(TimelineName::sum, 1, 2);
    timeline::instant(TimelineName::end_of_step, 3);
    timeline::note_use();
    const TimelineBusy busy;
  }
  Recording recording;
  CHECK(timeline::is_on());
  CHECK(recording.ring().events().empty());
}

TEST_CASE("A ring has the last events in order") {
  Recording recording;
  TimelineRing& ring = recording.ring();
  CHECK(ring.capacity() == (1 << 20) / 32);
  const auto capacity = static_cast<int>(ring.capacity());
  for (int i = 0; i < capacity + 100; ++i) timeline::instant(TimelineName::end_of_step, i);
  const auto events = ring.events();
  REQUIRE(events.size() == ring.capacity());
  CHECK(events.front().number == 100);
  CHECK(events.front().ticket == 100);
  CHECK(events.back().number == capacity + 99);
  for (size_t i = 1; i < events.size(); ++i) REQUIRE(events[i].time_ns >= events[i - 1].time_ns);
  CHECK(ring.events(static_cast<uint64_t>(capacity + 90)).size() == 10);
}

TEST_CASE("Several threads write while one reads") {
  Recording recording(16);  // no event is overwritten
  TimelineRing& ring = recording.ring();
  constexpr int kThreads = 4, kEvents = 40000;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([thread] {
      for (int i = 0; i < kEvents; ++i) {
        const TimelineSpan span(TimelineName::sum, -1, static_cast<int64_t>(thread) << 32 | i);
      }
    });
  }
  for (int look = 0; look < 20; ++look) {
    for (const TimelineEvent& event : ring.events()) {
      REQUIRE(event.name == TimelineName::sum);
      REQUIRE((event.kind == TimelineKind::end || event.value >> 32 < kThreads));
    }
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ring.next_ticket() == 2 * kThreads * kEvents);
  std::map<uint16_t, int64_t> last;
  std::set<uint16_t> tracks;
  for (const TimelineEvent& event : ring.events()) {
    tracks.insert(event.thread);
    if (event.kind != TimelineKind::begin) continue;
    const auto found = last.find(event.thread);
    if (found != last.end()) REQUIRE(event.value == found->second + 1);
    last[event.thread] = event.value;
  }
  CHECK(!tracks.contains(kEngineTrack));
  const ReadTrace trace = trace_of(ring);
  CHECK(check_nesting(trace).empty());
}

TEST_CASE("A rank-thread records in its own ring, and other threads of such a process nowhere") {
  Recording first;
  std::thread([&] {
    Recording second;
    timeline::instant(TimelineName::end_of_step, 2);
    std::thread([] { timeline::instant(TimelineName::end_of_step, 3); }).join();
    CHECK(second.ring().events().size() == 1);
    CHECK(first.ring().events().empty());
  }).join();
  std::thread([] { timeline::instant(TimelineName::end_of_step, 4); }).join();  // one ring is left
  timeline::instant(TimelineName::end_of_step, 5);
  CHECK(first.ring().events().size() == 2);
}

TEST_CASE("A forward lasts from the first use of parameters until a backward or a step") {
  Recording recording;
  timeline::note_use();
  timeline::note_use();
  {
    const TimelineBusy busy;
    timeline::note_use();
    { const TimelineBusy nested; }
    timeline::note_use();
  }
  timeline::note_use();
  std::vector<TimelineKind> kinds;
  for (const TimelineEvent& event : recording.ring().events()) {
    CHECK(event.name == TimelineName::forward);
    CHECK(event.thread == kEngineTrack);
    kinds.push_back(event.kind);
  }
  CHECK(kinds == std::vector{TimelineKind::begin, TimelineKind::end, TimelineKind::begin});
}

TEST_CASE("The file of a rank says what its events are") {
  Recording recording;
  {
    const TimelineSpan phase(TimelineName::backward);
    const TimelineTransfer first(TimelineName::all_gather, 3, 4096);
    const TimelineTransfer second(TimelineName::all_gather, 4, 64);
    const TimelineSpan wait(TimelineName::wait_for_ranks, 1);
    second.finish();
    first.finish();
    const TimelineTransfer third(TimelineName::all_gather, 5, 64);
    third.finish();
    const TimelineTransfer unfinished(TimelineName::send, 1, 8);
  }
  timeline::instant(TimelineName::end_of_step, 7);
  timeline::count(TimelineName::gradients, int64_t{5} << 33);
  const TimelineOwner owner{
      .rank = 2, .process = 77, .monotonic_ns = 10, .boottime_ns = 20, .realtime_ns = 30};
  const ReadTrace trace = trace_of(recording.ring(), owner);
  CHECK(trace.clocks ==
        std::map<uint64_t, uint64_t>{{3, 10}, {6, 20}, {1, 30}});  // MONOTONIC, BOOTTIME, REALTIME
  CHECK(trace.primary_clock == 3);
  CHECK(trace.clock == 3);
  CHECK(trace.packets.size() == 1);
  CHECK(trace.packets.contains(3));
  CHECK(check_nesting(trace) == std::set<std::string>{"send"});
  CHECK(trace.on("engine", TraceEvent::begin).front().name == "backward");
  CHECK(trace.on("engine", TraceEvent::end).size() == 1);
  CHECK(trace.named("wait for ranks", TraceEvent::begin).front().arguments.at("first rank") == 1);
  const auto gathers = trace.on("all_gather", TraceEvent::begin);
  REQUIRE(gathers.size() == 3);
  CHECK(gathers[0].arguments == std::map<std::string, int64_t>{{"bucket", 3}, {"bytes", 4096}});
  CHECK(gathers[0].track != gathers[1].track);  // they overlap
  CHECK(gathers[2].track == gathers[0].track);
  CHECK(trace.on("all_gather", TraceEvent::end).size() == 3);
  CHECK(trace.on("send", TraceEvent::end).empty());
  CHECK(trace.on("engine", TraceEvent::instant).front().arguments.at("step") == 7);
  CHECK(trace.on("gradients", TraceEvent::counter).front().value == int64_t{5} << 33);
  for (const auto& [uuid, track] : trace.tracks) {
    if (track.is_process) {
      CHECK(track.name == "rank 2");
    } else {
      CHECK(trace.tracks.at(track.parent).is_process);
    }
  }
}

TEST_CASE("Ends without a begin are left out of a file") {
  Recording recording;
  uint64_t first = 0;
  {
    const TimelineSpan outer(TimelineName::save);
    const TimelineTransfer before(TimelineName::all_reduce, -1, 8);
    first = recording.ring().next_ticket();
    const TimelineSpan inner(TimelineName::sum, -1, 3);
    before.finish();
  }
  const ReadTrace trace = trace_of(recording.ring(), {.first_ticket = first});
  CHECK(trace.events.size() == 2);
  CHECK(check_nesting(trace).empty());
}

TEST_CASE("A ring in a memory file is read by another mapping") {
  const UniqueFd file = make_timeline_file();
  CHECK(TimelineRing::open(file.get()) == nullptr);  // no rank has made one
  CHECK(is_timeline_file(file.get()));
  CHECK_FALSE(is_timeline_file(STDIN_FILENO));
  const auto ring = TimelineRing::create(file.get(), 1);
  TimelineOwner owner{.rank = 1, .world_size = 2};
  owner.machine.fill('m');
  ring->set_owner(owner);
  ring->write(TimelineKind::instant, TimelineName::end_of_step, kEngineTrack, 9, -1);
  const auto other = TimelineRing::open(file.get());
  REQUIRE(other);
  CHECK(other->owner().rank == 1);
  CHECK(std::string(other->owner().machine.data()).size() == owner.machine.size() - 1);
  REQUIRE(other->events().size() == 1);
  CHECK(other->events().front().number == 9);
  const uint64_t wrong = 1;
  REQUIRE(::pwrite(file.get(), &wrong, sizeof wrong, 0) == sizeof wrong);
  CHECK(TimelineRing::open(file.get()) == nullptr);  // another version's
}

// The rules are those of https://perfetto.dev/docs/reference/perfetto-manifest.
TEST_CASE("A manifest relates the clocks of machines") {
  const std::vector<RankOfTimeline> ranks = {
      {.rank = 0, .world_size = 3, .machine = "a", .clock_offset_ns = 0},
      {.rank = 1, .world_size = 3, .machine = "a", .clock_offset_ns = 0},
      {.rank = 2, .world_size = 3, .machine = "b \"q\"", .clock_offset_ns = -5}};
  const std::string text = perfetto_manifest(ranks);
  CHECK(text.starts_with("{\"perfetto_manifest\""));  // by which it is recognized
  const auto manifest = nlohmann::json::parse(text).at("perfetto_manifest");
  CHECK(manifest.at("version") == 1);
  CHECK(manifest.at("trace_time") == nlohmann::json{{"clock", "MONOTONIC"}, {"file", "rank0.pftrace"}});
  const auto& files = manifest.at("files");
  REQUIRE(files.size() == 3);
  CHECK(files[1] == nlohmann::json{{"path", "rank1.pftrace"}, {"machine", {{"name", "a"}}}});
  CHECK(files[2].at("machine").at("name") == "b \"q\"");
  CHECK(files[2].at("clocks") ==
        nlohmann::json{{"clock", "MONOTONIC"},
                       {"sync_to", {{"file", "rank0.pftrace"}, {"clock", "MONOTONIC"}}},
                       {"offset_ns", -5}});
}

TEST_CASE("An archive has the manifest and the files of ranks that are whole") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "t.tar";
  for (int rank = 0; rank < 2; ++rank) {
    const auto ring = TimelineRing::create(-1, 1);
    TimelineOwner owner{.rank = rank, .world_size = 2};
    path.string().copy(owner.path.data(), owner.path.size() - 1);
    ring->set_owner(owner);
    ring->write(TimelineKind::instant, TimelineName::end_of_step, kEngineTrack, 1, -1);
    CHECK(write_rank_file(*ring) == 0);
  }
  std::filesystem::remove(folder_of_ranks(path) / "rank1.json");
  CHECK(ranks_with_files(path).size() == 1);
  write_timeline_archive(path, ranks_with_files(path));
  const auto files = read_tar(read_file(path));
  REQUIRE(files.size() == 2);
  CHECK(files.contains("perfetto_manifest.json"));
  CHECK(read_trace(files.at("rank0.pftrace")).events.size() == 1);
  remove_rank_files(path, 0);
  CHECK(ranks_with_files(path).empty());
}

TEST_CASE("The last whole step of a rank: its spans, cut at its ends, without those that nobody could see") {
  using enum TimelineKind;
  using enum TimelineName;
  constexpr uint16_t kThread = 1;
  uint64_t ticket = 0;
  const auto event = [&](uint64_t time, TimelineName name, TimelineKind kind, uint16_t thread,
                         int32_t number = -1) {
    return TimelineEvent{
        .ticket = ticket++, .time_ns = time, .name = name, .kind = kind, .thread = thread, .number = number};
  };
  const std::vector<TimelineEvent> events = {
      event(1'000, forward, begin, kEngineTrack),
      event(5'000, end_of_step, instant, kEngineTrack, 7),
      event(9'000, forward, end, kEngineTrack),
      event(10'000, optimizer_step, begin, kEngineTrack),
      event(11'000, all_gather, start, kThread),  // ticket 4
      event(12'000, all_gather, start, kThread),  // ticket 5
      event(12'500, sum, begin, kThread),
      event(12'502, sum, end, kThread),  // less than 1/2000 of the step
      event(13'000, norm, begin, kEngineTrack),
      event(14'000, norm, end, kEngineTrack),
      event(15'000, all_gather, finish, kThread, 4),
      event(16'000, all_gather, finish, kThread, 5),
      event(24'000, optimizer_step, end, kEngineTrack),
      event(25'000, end_of_step, instant, kEngineTrack, 8),
      event(26'000, forward, begin, kEngineTrack),
  };
  TimelineThread thread{.id = 4};
  std::string("main").copy(thread.name.data(), 5);
  const nlohmann::json step = last_step_of({{}, thread}, events);
  CHECK(step.at("number") == 8);
  CHECK(step.at("begin_ns") == 5'000);
  CHECK(step.at("end_ns") == 25'000);
  CHECK(step.at("spans") == nlohmann::json{{"engine", 0, "forward", 0, 4'000},
                                           {"engine", 1, "norm", 8'000, 9'000},
                                           {"engine", 0, "step", 5'000, 19'000},
                                           {"all_gather", 0, "all_gather", 6'000, 10'000},
                                           {"all_gather", 1, "all_gather", 7'000, 11'000}});
  CHECK(last_step_of({}, {}).is_null());
  CHECK(last_step_of({}, {events[0]}).is_null());
}

TEST_CASE("Steps are two numbers in order") {
  CHECK(parse_timeline_steps("10:20") == std::pair<int64_t, int64_t>(10, 20));
  CHECK(parse_timeline_steps("1:1"));
  for (const char* wrong : {"", ":", "1", "1:", ":2", "0:2", "3:2", "1:2:3", "a:b", "1:2 ", "-1:2"})
    CHECK_FALSE(parse_timeline_steps(wrong));
}

}  // namespace zerorun::testing
