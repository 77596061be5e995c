#include "launcher/timeline_rings.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/timeline_ring.h"
#include "monitor/timeline_archive.h"
#include "monitor/timeline_file.h"

namespace zerorun::launcher {
namespace {

// Ranks of other hosts, which may end a little later, write to the same folder if hosts share it.
constexpr std::chrono::seconds kPatienceWithHosts(3);

// Each ring is an open file of the launcher.
constexpr int kMostRings = 256;

std::vector<RankOfTimeline> await_files(const std::filesystem::path& path, int world_size, bool waits) {
  const auto end = std::chrono::steady_clock::now() + kPatienceWithHosts;
  std::vector<RankOfTimeline> ranks = ranks_with_files(path);
  while (waits && std::ssize(ranks) < world_size && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ranks = ranks_with_files(path);
  }
  return ranks;
}

void write_file(const TimelineRing& ring, bool failed) {
  if (!ring.has_file()) {
    write_rank_file(ring);
  } else if (failed && ring.owner().last_step > 0) {
    write_last_events(ring);
  }
}

}  // namespace

TimelineRings::TimelineRings(int ranks) {
  if (ranks > kMostRings) return;
  for (int rank = 0; rank < ranks; ++rank) files_.push_back(make_timeline_file());
}

std::string TimelineRings::path(int local_rank) const {
  if (static_cast<size_t>(local_rank) >= files_.size()) return {};
  const UniqueFd& file = files_[static_cast<size_t>(local_rank)];
  if (!file.is_open()) return {};
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file.get());
}

std::vector<std::string> TimelineRings::finish(bool failed, bool has_first) const {
  std::vector<std::string> lines;
  std::filesystem::path path;
  int world_size = 0;
  for (const UniqueFd& file : files_) {
    const std::unique_ptr<TimelineRing> ring = file.is_open() ? TimelineRing::open(file.get()) : nullptr;
    if (!ring || ring->owner().path.front() == '\0') continue;
    path = ring->owner().path.data();
    world_size = ring->owner().world_size;
    try {
      write_file(*ring, failed);
    } catch (const std::exception& error) {
      lines.push_back(std::string("the timeline of a rank was not written: ") + error.what());
    }
  }
  if (path.empty() || !has_first) return lines;
  try {
    const bool waits = !failed && std::ssize(files_) < world_size;
    const std::vector<RankOfTimeline> ranks = await_files(path, world_size, waits);
    if (ranks.empty()) return lines;
    write_timeline_archive(path, ranks);
    if (failed) lines.push_back("what the ranks did last is in " + path.string() + " (docs/monitoring.md)");
  } catch (const std::exception& error) {
    lines.push_back(std::string("the timeline's archive was not written: ") + error.what());
  }
  return lines;
}

}  // namespace zerorun::launcher
