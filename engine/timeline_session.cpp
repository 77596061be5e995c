#include "engine/timeline_session.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/timeline_steps.h"
#include "base/unique_fd.h"
#include "comm/agreement.h"
#include "comm/clock_offset.h"
#include "engine/engine.h"
#include "monitor/timeline_archive.h"
#include "monitor/timeline_file.h"

namespace zerorun {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Rings stay until the process ends, since any thread may still write. A rank that makes another engine uses
// its ring again.
TimelineRing& ring_of(int rank, int64_t mib) {
  static std::mutex mutex;
  static auto& rings = *new std::map<std::pair<int, int64_t>, std::unique_ptr<TimelineRing>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<TimelineRing>& ring = rings[{rank, mib}];
  if (ring) return *ring;
  // The launcher's file is for the rank that this process is. A rank-thread is none.
  const std::string path = variable(kTimelineRingVariable);
  UniqueFd file;
  if (!path.empty() && variable("RANK") == std::to_string(rank))
    file = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  ring = TimelineRing::create(file.is_open() && is_timeline_file(file.get()) ? file.get() : -1, mib);
  return *ring;
}

int64_t read_clock(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

template <size_t N>
void put(std::array<char, N>& place, const std::string& text) {
  place = {};
  text.copy(place.data(), N - 1);
}

// The thread of a process that writes files on request, while there are sessions.
class Writer {
 public:
  static Writer& get() {
    static Writer& writer = *new Writer;  // an engine may live until the process ends
    return writer;
  }

  void add(TimelineSession* session) {
    const std::lock_guard lock(mutex_);
    sessions_.push_back(session);
    if (thread_.joinable()) return;
    is_ending_ = false;
    thread_ = std::thread([this] { run(); });
    struct sigaction present {};
    if (::sigaction(SIGUSR1, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) return;
    struct sigaction ours {};
    ours.sa_handler = [](int) { timeline::request_files(); };
    ours.sa_flags = SA_RESTART;
    has_handler_ = ::sigaction(SIGUSR1, &ours, nullptr) == 0;
  }

  void remove(TimelineSession* session) {
    std::thread ended;
    {
      const std::lock_guard lock(mutex_);
      std::erase(sessions_, session);
      if (!sessions_.empty()) return;
      if (std::exchange(has_handler_, false)) ::signal(SIGUSR1, SIG_DFL);
      is_ending_ = true;
      timeline::request_files();
      ended = std::move(thread_);
    }
    ended.join();
  }

 private:
  void run() {
    ::pthread_setname_np(::pthread_self(), "timeline");
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
    while (!is_ending_) {
      timeline::await_request();
      const std::lock_guard lock(mutex_);
      if (is_ending_) return;
      for (TimelineSession* session : sessions_) session->write_now();
    }
  }

  std::mutex mutex_;
  std::vector<TimelineSession*> sessions_;
  std::thread thread_;
  std::atomic<bool> is_ending_ = false;
  bool has_handler_ = false;
};

}  // namespace

TimelineConfig wanted_timeline(const TimelineConfig& config) {
  const std::string path = variable(kTimelineVariable);
  const std::string steps = variable(kTimelineStepsVariable);
  TimelineConfig wanted = config;
  if (!path.empty()) {
    wanted.enabled = true;
    wanted.path = path;
    wanted.steps.reset();
  }
  if (path.empty() || steps.empty()) return wanted;
  wanted.steps = parse_timeline_steps(steps);
  if (!wanted.steps) {
    throw UserError(std::string(kTimelineStepsVariable) + "=" + steps +
                    ": expected the first and the last step, from 1, such as 10:20");
  }
  return wanted;
}

TimelineSession::TimelineSession(const TimelineConfig& config, Communicator& world) : config_(config) {
  const std::filesystem::path path = std::filesystem::absolute(config.path);
  TimelineOwner owner{.rank = world.rank(), .world_size = world.world_size(), .process = ::getpid()};
  on_all_ranks(world, "the files of timelines", [&] {
    std::error_code problem;
    std::filesystem::create_directories(folder_of_ranks(path), problem);
    if (problem || path.string().size() >= owner.path.size() ||
        ::access(folder_of_ranks(path).c_str(), W_OK) != 0) {
      throw UserError(folder_of_ranks(path).string() +
                      ", the folder for the ranks' timelines, cannot be written: give another path "
                      "(zerorun.timeline.path, --timeline)");
    }
    remove_rank_files(path, owner.rank);
    ring_ = &ring_of(owner.rank, config.ring_mib);
  });
  const std::string machine = machine_of_clock();
  const ClockOffset offset = measure_clock_offset(world, machine);
  owner.clock_offset_ns = offset.offset_ns;
  owner.round_trip_ns = offset.round_trip_ns;
  owner.monotonic_ns = read_clock(CLOCK_MONOTONIC);
  owner.boottime_ns = read_clock(CLOCK_BOOTTIME);
  owner.realtime_ns = read_clock(CLOCK_REALTIME);
  owner.first_ticket = ring_->next_ticket();
  if (config.steps) std::tie(owner.first_step, owner.last_step) = *config.steps;
  put(owner.machine, machine);
  put(owner.path, path.string());
  ring_->set_owner(owner);
  ring_->set_has_file(false);
  timeline::use(*ring_);
  Writer::get().add(this);
}

TimelineSession::~TimelineSession() {
  Writer::get().remove(this);
  const bool is_used = timeline::leave(*ring_);  // by another engine of this rank
  const std::lock_guard lock(mutex_);
  if (!steps_are_written_) write_file(!is_used);
}

void TimelineSession::count(const BytesByCategory& bytes) {
  const std::array values = {bytes.parameters, bytes.gradients, bytes.master,  bytes.moments, bytes.buckets,
                             bytes.buffers,    bytes.gathered,  bytes.on_host, bytes.in_files};
  for (size_t i = 0; i < values.size(); ++i) {
    const auto name = static_cast<TimelineName>(static_cast<size_t>(TimelineName::parameters) + i);
    timeline::count(name, values[i]);
  }
}

void TimelineSession::end_step(int64_t step, const BytesByCategory& bytes) {
  timeline::instant(TimelineName::end_of_step, static_cast<int32_t>(step));
  const std::lock_guard lock(mutex_);
  if (config_.steps && step == config_.steps->first - 1) {
    TimelineOwner owner = ring_->owner();
    owner.first_ticket = ring_->next_ticket();
    ring_->set_owner(owner);
  }
  count(bytes);
  if (config_.steps && step == config_.steps->second && !steps_are_written_) {
    write_file(true);
    steps_are_written_ = true;
  }
}

void TimelineSession::write_now() {
  const std::lock_guard lock(mutex_);
  write_file(false);
}

void TimelineSession::write_file(bool is_last) {
  try {
    if (steps_are_written_) {
      write_last_events(*ring_);
      return;
    }
    const uint64_t lost = write_rank_file(*ring_);
    if (is_last) ring_->set_has_file(true);
    const TimelineOwner& owner = ring_->owner();
    if (lost > 0 && is_last && config_.steps && owner.rank == 0) {
      log_warning(
          "the timeline lacks its first " + std::to_string(lost) +
          " events, for which the ring has no room: raise zerorun.timeline.ring_mib, or choose fewer steps");
    }
    if (ring_->is_shared()) return;  // the launcher makes the archive
    const std::filesystem::path path = owner.path.data();
    const std::vector<RankOfTimeline> ranks = ranks_with_files(path);
    if (std::ssize(ranks) == owner.world_size) write_timeline_archive(path, ranks);
  } catch (const std::exception& error) {
    log_warning(std::string("the timeline was not written: ") + error.what());
  }
}

}  // namespace zerorun
