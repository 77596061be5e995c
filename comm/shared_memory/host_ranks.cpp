#include "comm/shared_memory/host_ranks.h"

#include <unistd.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/random_bits.h"
#include "comm/meeting/exchange.h"
#include "comm/shared_memory/shared_transfers.h"

namespace zerorun {
namespace {

constexpr char kReady[] = "ready";

// Returns a text that differs between hosts, and between containers of one host that have separate PID
// namespaces.
std::string name_of_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  std::array<char, 128> processes{};
  const ssize_t length = readlink("/proc/self/ns/pid", processes.data(), processes.size());
  return boot + "/" + std::string(processes.data(), length > 0 ? static_cast<size_t>(length) : 0);
}

// This mark is at the start of a rank's arena until all ranks have checked it. With it a rank detects that a
// segment that it has opened belongs to another job, to another rank, or to a process that later got the same
// PID.
struct Mark {
  uint64_t job = 0;
  int64_t rank = 0;
  uint64_t number = 0;

  bool operator==(const Mark&) const = default;
};

// The process id and file descriptors by which other ranks open this rank's segments.
struct SegmentHandles {
  pid_t pid = 0;
  int arena = -1;
  size_t arena_bytes = 0;
  size_t blocks_bytes = 0;
  uint64_t number = 0;  // the random number in this rank's Mark
  int control = -1;     // set on the host's first rank only, else -1
  int blocks = -1;      // likewise

  std::string text() const {
    std::ostringstream words;
    words << pid << ' ' << arena << ' ' << arena_bytes << ' ' << blocks_bytes << ' ' << number << ' '
          << control << ' ' << blocks;
    return words.str();
  }
  static SegmentHandles read(const std::string& text) {
    SegmentHandles handles;
    std::istringstream words(text);
    words >> handles.pid >> handles.arena >> handles.arena_bytes >> handles.blocks_bytes >> handles.number >>
        handles.control >> handles.blocks;
    return handles;
  }
};

Mark& mark_in(const SharedSegment& segment) {
  return *reinterpret_cast<Mark*>(segment.data());
}

// Starts to watch the process before it checks the mark. So if the mark matches, the watched process is the
// one that owns this arena.
SharedSegment open_arena(const SegmentHandles& theirs, const Mark& mark, ProcessWatch& processes) {
  processes.add(theirs.pid);
  SharedSegment segment = SharedSegment::open(theirs.pid, theirs.arena, theirs.arena_bytes, false);
  segment.close_descriptor();
  if (mark_in(segment) == mark) return segment;
  throw Error("process " + std::to_string(theirs.pid) + " is not rank " + std::to_string(mark.rank) +
              " of this job");
}

struct Own {
  SharedSegment arena;
  SharedSegment control;  // on the host's first rank only
  SharedSegment blocks;   // likewise
  SegmentHandles handles;
};

size_t control_bytes(const RanksOfHost& ranks) {
  return RankBoard::bytes(ranks.world_size) + SharedTransfers::control_bytes(ranks.count);
}

Own make_own(const RanksOfHost& ranks, uint64_t job) {
  constexpr size_t kLeast = size_t{1} << 20;
  const size_t bytes = arena_bytes(ranks.count);
  if (bytes < kLeast || blocks_bytes(ranks.count) / static_cast<size_t>(ranks.count) < kLeast)
    throw Error("limits of the process (ulimit -f, ulimit -v) do not allow shared memory");
  Own own;
  own.arena = SharedSegment::create("zerorun arena", bytes);
  if (ranks.rank == ranks.first) {
    own.control = SharedSegment::create("zerorun control", control_bytes(ranks));
    RankBoard::prepare(own.control.data(), job);
    own.blocks = SharedSegment::create("zerorun blocks", blocks_bytes(ranks.count));
  }
  const uint64_t number = random_bits();
  mark_in(own.arena) = {.job = job, .rank = ranks.rank, .number = number};
  own.handles = {.pid = getpid(),
                 .arena = own.arena.descriptor(),
                 .arena_bytes = own.arena.bytes(),
                 .blocks_bytes = own.blocks.bytes(),
                 .number = number,
                 .control = own.control.descriptor(),
                 .blocks = own.blocks.descriptor()};
  return own;
}

// `handles`: by place on the host.
std::unique_ptr<HostRanks> open_all(const std::vector<std::string>& handles, const RanksOfHost& ranks,
                                    uint64_t job, Own own) {
  const int rank = ranks.rank;
  ProcessWatch processes(rank, ranks.first);
  std::vector<SharedSegment> lent(static_cast<size_t>(ranks.first + ranks.count));
  for (int place = 0; place < ranks.count; ++place) {
    const int other = ranks.first + place;
    if (other == rank) {
      processes.add(getpid());
    } else {
      const SegmentHandles theirs = SegmentHandles::read(handles[place]);
      lent[other] = open_arena(theirs, {.job = job, .rank = other, .number = theirs.number}, processes);
    }
  }
  const SegmentHandles first = SegmentHandles::read(handles[0]);
  const bool is_first = rank == ranks.first;
  SharedSegment control = is_first
                              ? std::move(own.control)
                              : SharedSegment::open(first.pid, first.control, control_bytes(ranks), true);
  SharedSegment blocks = is_first ? std::move(own.blocks)
                                  : SharedSegment::open(first.pid, first.blocks, first.blocks_bytes, true);
  RankBoard board(control.data(), rank, ranks.world_size, job);
  return std::make_unique<HostRanks>(
      HostRanks{.count = ranks.count,
                .control = std::move(control),
                .board = board,
                .arena = std::make_shared<SharedArena>(std::move(own.arena)),
                .lent = std::move(lent),
                .blocks = std::make_shared<SharedBlocks>(std::move(blocks), rank - ranks.first, ranks.count),
                .processes = std::move(processes)});
}

// Returns the first report that is not kReady, with its rank, or an empty text if all reports are kReady.
// `first`: the rank of the first report.
std::string first_obstacle(const std::vector<std::string>& reports, int first) {
  for (size_t place = 0; place < reports.size(); ++place) {
    if (reports[place] != kReady)
      return "on rank " + std::to_string(first + static_cast<int>(place)) + ": " + reports[place];
  }
  return "";
}

}  // namespace

std::unique_ptr<HostRanks> meet_on_host(const RanksOfHost& ranks, const StorePointer& store, uint64_t job,
                                        const Deadline& deadline, std::string& obstacle) {
  const StorePointer part = store->part("shm");
  auto exchange = [&](const char* name, const std::string& word) {
    return exchange_words(*part, name, ranks.rank - ranks.first, ranks.count, word, deadline,
                          "connecting the ranks of a host", ranks.first);
  };
  const std::vector<std::string> hosts = exchange("host", name_of_host());
  for (size_t other = 1; other < hosts.size(); ++other) {
    if (hosts[other] == hosts[0]) continue;
    obstacle = "rank " + std::to_string(ranks.first + static_cast<int>(other)) +
               " is on another host or in another container than rank " + std::to_string(ranks.first);
    return nullptr;
  }

  // After each step the ranks exchange reports, so that a failure on one rank makes all ranks return null.
  std::string report = kReady;
  Own own;
  try {
    own = make_own(ranks, job);
  } catch (const Error& error) {
    report = error.what();
  }
  obstacle = first_obstacle(exchange("made", report), ranks.first);
  if (!obstacle.empty()) return nullptr;
  const std::vector<std::string> handles = exchange("handles", own.handles.text());
  std::unique_ptr<HostRanks> opened;
  try {
    opened = open_all(handles, ranks, job, std::move(own));
  } catch (const Error& error) {
    report = error.what();
  }
  obstacle = first_obstacle(exchange("opened", report), ranks.first);
  if (!obstacle.empty()) return nullptr;
  mark_in(opened->arena->segment()) = {};
  opened->control.close_descriptor();
  opened->arena->segment().close_descriptor();
  return opened;
}

}  // namespace zerorun
