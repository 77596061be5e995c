#include "launcher/job.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/error.h"
#include "launcher/end_evidence.h"
#include "launcher/rank_status.h"

namespace zerorun::launcher {
namespace {

using std::chrono::milliseconds;

// These two times and the default grace of 3 s together stay below the 5 s that ending a job may take.
constexpr milliseconds kKillPatience(1000);
constexpr milliseconds kFlushPatience(500);
// The interval at which process groups are polled. No SIGCHLD announces the end of a group whose last
// processes are not our children.
constexpr milliseconds kTick(50);
// A second SIGINT within this time is ignored, because `timeout -s INT` and shell wrappers send two at once.
constexpr milliseconds kSameInterruption(100);
// Helpers of a rank, such as Python's resource tracker, end by themselves within this time after the rank.
constexpr milliseconds kHelperPatience(200);
constexpr size_t kReadSize = 1 << 16;
// Bounds drain(), because a process may fill a pipe as fast as drain() empties it. This many reads empty the
// largest pipe that the system's default limits allow (1 MiB).
constexpr int kReadsPerDrain = 16;

}  // namespace

Job::Job(JobPlan plan, JobOutput& output, Signals& signals, const Guardian& guardian, JobControl* control)
    : plan_(std::move(plan)),
      output_(output),
      signals_(signals),
      guardian_(guardian),
      control_(control),
      hung_ranks_(plan_.hung_after, plan_.timeout),
      oom_before_(read_oom_counts()),
      buffer_(kReadSize, '\0') {}

Job::~Job() {
  if (phase_ == Phase::over) return;
  kill_everything();
  for (const Rank& rank : ranks_) {
    if (!rank.status) ::waitpid(rank.process.pid, nullptr, 0);
  }
}

void Job::start_ranks() {
  for (size_t rank = 0; rank < plan_.environments.size(); ++rank) {
    Rank started;
    ProcessPlan process = {.name = "rank " + name_of(rank),
                           .file = plan_.file,
                           .arguments = plan_.arguments,
                           .environment = plan_.environments[rank],
                           .inherited = plan_.listening.get(),
                           .binding = plan_.bindings.empty() ? nullptr : &plan_.bindings[rank]};
    if (control_ != nullptr) {
      process.gives_up = [this] {
        control_->service();
        return control_->must_end();
      };
      if (process.gives_up()) return;
    }
    started.process = start_process(process, signals_, guardian_);
    ranks_.push_back(std::move(started));
    plan_.listening.reset();  // rank 0 has inherited it
  }
}

int Job::run() {
  times_.began = Clock::now();
  try {
    start_ranks();
    if (plan_.describe_start) output_.notice(plan_.describe_start());
  } catch (const Interrupted&) {
  }
  // start_process() may have read signals and orders, so they are handled before the first wait.
  for (handle_events(); phase_ != Phase::over; handle_events()) wait_for_something();
  if (failure_) return std::max(1, exit_code_of(failure_->wait_status));
  return interrupted_by_ ? 128 + *interrupted_by_ : 0;
}

void Job::handle_events() {
  handle_signals();
  if (control_ != nullptr) obey_control();
  if (output_.is_gone() && !interrupted_by_) handle_interruption(SIGPIPE);
  enter_phase_that_is_due();
}

void Job::move_to(Phase phase) {
  ZR_CHECK(phase > phase_, "the job cannot go from phase " + std::to_string(static_cast<int>(phase_)) +
                               " to phase " + std::to_string(static_cast<int>(phase)));
  phase_ = phase;
  deadline_.reset();
}

void Job::enter_phase_that_is_due() {
  if (phase_ == Phase::ending || phase_ == Phase::killing) look_for_empty_groups();
  if (phase_ == Phase::running) look_for_missing_rank();
  if (phase_ == Phase::running) look_for_hung_rank();
  const bool late = deadline_ && Clock::now() >= *deadline_;
  if (phase_ < Phase::flushing && all_ranks_ended() && all_groups_gone() && orphans().empty()) {
    begin_flushing();
  } else if (phase_ == Phase::running && all_ranks_ended() && !deadline_) {
    deadline_ = Clock::now() + kHelperPatience;  // no rank failed, but processes that ranks started still run
  } else if (phase_ == Phase::running && all_ranks_ended() && late) {
    report_leftovers();
    begin_ending(plan_.grace);
  } else if (phase_ == Phase::ending && late) {
    begin_killing();
  } else if (phase_ == Phase::ending) {
    end_new_orphans();
  } else if (phase_ == Phase::killing && !late) {
    // An orphan's own children become this process's children when it ends.
    orphans_.kill(own_children());
  } else if (phase_ == Phase::killing && late) {
    report_survivors();
    begin_flushing();
  }
  if (phase_ == Phase::flushing && (output_.is_flushed() || late)) move_to(Phase::over);
}

void Job::begin_ending(milliseconds grace) {
  times_.found = Clock::now();
  if (!interrupted_by_) report_stopped_ranks();
  if (grace == milliseconds(0)) {
    begin_killing();
    return;
  }
  move_to(Phase::ending);
  deadline_ = Clock::now() + grace;
  signal_groups(SIGTERM);
  signal_groups(SIGCONT);  // a stopped process handles SIGTERM only when it continues
  end_new_orphans();
}

void Job::begin_killing() {
  move_to(Phase::killing);
  deadline_ = Clock::now() + kKillPatience;
  kill_everything();
}

void Job::begin_flushing() {
  move_to(Phase::flushing);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    drain(static_cast<int>(rank));
    // A process that has left the rank's process group may still hold the pipe. It is no longer part of the
    // job.
    for (Stream stream : kStreams) output_.close(static_cast<int>(rank), stream);
  }
  const bool failed = failure_ || interrupted_by_ || told_to_end_;
  for (const std::string& line : plan_.timelines.finish(failed, plan_.first_rank == 0)) output_.notice(line);
  report_failure();
  note_in_run_log();
  let_judge();
  // Waits for a slow reader without limit, except when the job failed or was interrupted and must end soon.
  if (failed) deadline_ = Clock::now() + kFlushPatience;
}

void Job::wait_for_something() {
  std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}};
  std::vector<std::pair<int, Stream>> sources = {{-1, Stream::out}};  // sources[i] belongs to entries[i]
  for (size_t rank = 0; rank < ranks_.size() && phase_ < Phase::flushing; ++rank) {
    const RankProcess& process = ranks_[rank].process;
    for (Stream stream : kStreams) {
      const UniqueFd& pipe = stream == Stream::out ? process.out : process.err;
      if (!pipe.is_open() || !output_.takes_more(stream)) continue;
      entries.push_back({pipe.get(), POLLIN, 0});
      sources.emplace_back(rank, stream);
    }
  }
  output_.append_poll_entries(entries);
  if (control_ != nullptr) control_->append_poll_entries(entries);

  int timeout = control_ != nullptr ? static_cast<int>(kControlTick.count()) : -1;
  const bool some_ended =
      std::ranges::any_of(ranks_, [](const Rank& rank) { return rank.status.has_value(); });
  if (phase_ == Phase::running && some_ended && timeout < 0) timeout = static_cast<int>(kMissingTick.count());
  if (phase_ == Phase::running && watches_for_hung_ranks() && timeout < 0)
    timeout = static_cast<int>(kHungTick.count());
  if (deadline_) {
    const auto left = std::chrono::ceil<milliseconds>(*deadline_ - Clock::now());
    timeout = static_cast<int>(std::clamp(left, milliseconds(0), kTick).count());
  }
  ::poll(entries.data(), entries.size(), timeout);
  for (size_t i = 1; i < sources.size(); ++i) {
    if (entries[i].revents != 0) read_some(sources[i].first, sources[i].second);
  }
  output_.write_some();
  if (control_ != nullptr) control_->service();
}

void Job::obey_control() {
  const std::optional<milliseconds> grace = control_->take_order_to_end();
  if (!grace) return;
  if (phase_ < Phase::flushing) told_to_end_ = true;
  if (phase_ == Phase::running) {
    begin_ending(*grace);
  } else if (phase_ == Phase::ending && *grace == milliseconds(0)) {
    begin_killing();
  }
}

void Job::handle_signals() {
  while (std::optional<int> signal = signals_.next()) {
    if (*signal == SIGCHLD) {
      reap();
    } else {
      handle_interruption(*signal);
    }
  }
}

void Job::handle_interruption(int signal) {
  const auto now = Clock::now();
  const bool first = !interrupted_by_;
  is_unwanted_ = true;
  if (first && !failure_) {
    interrupted_by_ = signal;
    interrupted_at_ = now;
  }
  if (phase_ == Phase::running) {
    output_.notice(signal == SIGPIPE  ? "nobody reads stdout any more: ending the job"
                   : signal == SIGINT ? "SIGINT: ending the job (Ctrl-C once more kills it at once)"
                                      : signal_name(signal) + ": ending the job");
    begin_ending(plan_.grace);
  } else if (phase_ == Phase::ending && signal == SIGINT &&
             (first || now - interrupted_at_ > kSameInterruption)) {
    begin_killing();
  } else if (phase_ == Phase::flushing) {
    move_to(Phase::over);
  }
}

void Job::reap() {
  std::vector<int> ended;
  while (true) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) break;
    // A child that is no rank is an orphan of a rank, which the system reparents to the launcher (see
    // launch.cpp), or a guardian that was killed.
    auto rank =
        std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return r.process.pid == pid; });
    if (rank == ranks_.end() || rank->status) continue;
    rank->status = status;
    ended.push_back(static_cast<int>(rank - ranks_.begin()));
  }
  // Ranks that lost a killed one end soon after it, and are not the cause.
  std::stable_partition(ended.begin(), ended.end(),
                        [&](int rank) { return WIFSIGNALED(*ranks_[rank].status); });
  for (const int rank : ended) handle_rank_end(rank);
  look_for_empty_groups();
}

void Job::handle_rank_end(int rank) {
  drain(rank);
  const Rank& ended = ranks_[rank];
  const int status = *ended.status;
  if (phase_ != Phase::running || succeeded(status) || ended_behind_hung_rank(rank)) return;
  const std::vector<std::string> lines = ended.last_lines.lines();
  const EndEvidence evidence = collect_evidence(ended.process.pid, status, lines, oom_before_, plan_.folders);
  failure_ = {plan_.first_rank + rank, status, describe_cause(evidence), lines};
  const MemoryNow memory = plan_.memory.of(rank);
  failure_->memory = lack_of_memory(evidence, memory);
  if (memory.phase != MemoryPhase::no_engine) failure_->steps = memory.step;
  failure_->killed_from_outside = was_killed_from_outside(evidence);
  if (control_ != nullptr) control_->report(*failure_);
  begin_ending(was_user_mistake(status) ? milliseconds(0) : plan_.failure_grace);
}

void Job::look_for_missing_rank() {
  std::vector<std::optional<int>> statuses;
  for (const Rank& rank : ranks_) statuses.push_back(rank.status);
  const auto found = missing_rank_.look(plan_.board, plan_.world_size, statuses);
  if (!found) return;
  failure_ = {plan_.first_rank + static_cast<int>(found->missing),
              *statuses[found->missing],
              "it did not join the job, and rank " + name_of(found->waiting) +
                  " waits for it: all ranks of a job must call initialize()",
              {}};
  if (control_ != nullptr) control_->report(*failure_);
  begin_ending(plan_.failure_grace);
}

void Job::look_for_empty_groups() {
  for (Rank& rank : ranks_) {
    if (!rank.group_exists || !rank.status || ::kill(-rank.process.pid, 0) == 0 || errno != ESRCH) continue;
    rank.group_exists = false;
    guardian_.forget(rank.process.pid);
  }
}

void Job::signal_groups(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.group_exists) ::kill(-rank.process.pid, signal);
  }
}

// A process may become an orphan at any time, when its parent ends.
void Job::end_new_orphans() {
  std::set<pid_t> groups;
  for (const Rank& rank : ranks_) {
    if (rank.group_exists) groups.insert(rank.process.pid);
  }
  orphans_.ask_to_end(own_children(), groups);
}

void Job::kill_everything() {
  signal_groups(SIGKILL);
  orphans_.kill(own_children());
}

std::vector<pid_t> Job::own_children() const {
  std::vector<pid_t> children = {guardian_.pid()};
  for (const Rank& rank : ranks_) children.push_back(rank.process.pid);
  return children;
}

std::vector<pid_t> Job::orphans() const {
  return orphans_.find(own_children());
}

Job::ReadResult Job::read_some(int rank, Stream stream) {
  RankProcess& process = ranks_[rank].process;
  UniqueFd& pipe = stream == Stream::out ? process.out : process.err;
  if (!pipe.is_open()) return ReadResult::end;
  const ssize_t size = ::read(pipe.get(), buffer_.data(), buffer_.size());
  if (size < 0) return errno == EINTR ? ReadResult::some : ReadResult::nothing;
  if (size == 0) {
    pipe.reset();
    output_.close(rank, stream);
    return ReadResult::end;
  }
  const std::string_view bytes(buffer_.data(), size);
  if (stream == Stream::err) ranks_[rank].last_lines.feed(bytes);
  std::string failure;
  if (plan_.logs.feed(rank, stream, bytes, failure)) output_.feed(rank, stream, bytes);
  if (!failure.empty()) output_.notice(failure);
  return ReadResult::some;
}

void Job::drain(int rank) {
  for (Stream stream : kStreams) {
    for (int reads = 0; reads < kReadsPerDrain && read_some(rank, stream) == ReadResult::some; ++reads)
      continue;
  }
}

bool Job::all_ranks_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.status.has_value(); });
}

bool Job::all_groups_gone() const {
  return std::none_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.group_exists; });
}

std::string Job::name_of(size_t rank) const {
  return std::to_string(plan_.first_rank + rank);
}

}  // namespace zerorun::launcher
