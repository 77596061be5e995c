// How a Job finds and ends a rank that makes no progress while others wait for it.
#include <array>
#include <csignal>
#include <cstdio>

#include "launcher/job.h"
#include "launcher/process_state.h"
#include "launcher/rank_status.h"

namespace zerorun::launcher {
namespace {

// What a job with a hung rank ends with: the exit code of a rank whose wait is over.
constexpr int kFailed = 1 << 8;

std::string in_seconds(std::chrono::milliseconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", static_cast<double>(time.count()) / 1000);
  return text.data();
}

pid_t thread_of(const ActivityNow& now, pid_t process) {
  return now.process == process && now.thread > 0 ? static_cast<pid_t>(now.thread) : process;
}

}  // namespace

bool Job::watches_for_hung_ranks() const {
  return plan_.hung_after > std::chrono::milliseconds(0) && ranks_.size() > 1;
}

void Job::look_for_hung_rank() {
  const auto now = Clock::now();
  if (!watches_for_hung_ranks() || !hung_ranks_.is_due(now)) return;
  std::vector<SeenRank> seen;
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    seen.push_back({.is_running = !ranks_[rank].status, .now = plan_.activity.of(static_cast<int>(rank))});
  if (hung_ranks_.needs_states(seen)) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const pid_t process = process_of(seen[rank].now, ranks_[rank].process.pid);
      if (seen[rank].is_running) seen[rank].state = state_of(process, thread_of(seen[rank].now, process));
    }
  }
  hung_ranks_.see(seen, now);
  if (const auto found = hung_ranks_.find()) end_hung_rank(*found);
}

// The deadline of the rank that waited may have come before its launcher's.
bool Job::ended_behind_hung_rank(int rank) {
  if (!watches_for_hung_ranks() || !WIFEXITED(*ranks_[static_cast<size_t>(rank)].status)) return false;
  const auto found = hung_ranks_.find_behind(static_cast<size_t>(rank), plan_.timeout);
  if (found) end_hung_rank(*found);
  return found.has_value();
}

void Job::end_hung_rank(const HungRanks::Found& found) {
  const RankProcess& rank = ranks_[found.rank].process;
  const auto number = static_cast<int>(found.rank);
  const pid_t process = process_of(plan_.activity.of(number), rank.pid);
  const char state = state_of(process, thread_of(plan_.activity.of(number), process));
  failure_ = {.rank = plan_.first_rank + number,
              .wait_status = kFailed,
              .cause = describe_hung_rank(found, process),
              .last_lines = {},
              .is_hung = true};
  const MemoryNow memory = plan_.memory.of(number);
  if (memory.phase != MemoryPhase::no_engine) failure_->steps = memory.step;
  failure_->killed_from_outside = state == 'T';
  std::vector<std::string> stack;
  if (state == 'R' || state == 'S') stack = ask_for_stack(plan_.activity, number, process);
  output_.notice("rank " + name_of(found.rank) + " hangs: " + failure_->cause);
  output_.notice(stack.empty() ? "its stack is not to be had" : "its stack, the innermost call first:");
  for (const std::string& line : stack) output_.notice("  " + line);
  // Not SIGTERM and SIGCONT, as for the others: it would go on.
  ::kill(-rank.pid, SIGKILL);
  if (control_ != nullptr) control_->report(*failure_);
  begin_ending(plan_.failure_grace);
}

std::string Job::describe_hung_rank(const HungRanks::Found& found, pid_t process) const {
  const ActivityNow now = plan_.activity.of(static_cast<int>(found.rank));
  const MemoryNow memory = plan_.memory.of(static_cast<int>(found.rank));
  std::string text = "no progress for " + in_seconds(found.time) + ", " + place_of(now);
  if (memory.phase != MemoryPhase::no_engine) text += ", in step " + std::to_string(memory.step + 1);
  text += ", while rank " + name_of(found.waiting) + " waits " +
          place_of(plan_.activity.of(static_cast<int>(found.waiting)));
  for (const size_t other : found.others)
    text += ", and rank " + name_of(other) + " is " + place_of(plan_.activity.of(static_cast<int>(other)));
  return text + "; process " + std::to_string(process) + " " +
         describe_state(process, thread_of(now, process)) + ". If it works on something long, raise " +
         (plan_.timeout <= plan_.hung_after ? "--timeout (" + in_seconds(plan_.timeout)
                                            : "--hung_after (" + in_seconds(plan_.hung_after)) +
         ")";
}

}  // namespace zerorun::launcher
