// What a Job says of its ranks, and to whom.
#include "launcher/end_evidence.h"
#include "launcher/job.h"

namespace zerorun::launcher {

// A stopped rank may be the reason why the other ranks failed. Call before SIGCONT is sent, which continues
// the rank.
void Job::report_stopped_ranks() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].status) continue;
    const std::string description = describe_stop(ranks_[rank].process.pid);
    if (description.empty()) continue;
    if (control_ != nullptr) {
      control_->report_stopped(plan_.first_rank + static_cast<int>(rank), description);
    } else {
      output_.notice("rank " + name_of(rank) + " is " + description);
    }
  }
}

void Job::report_leftovers() {
  if (const size_t count = orphans().size(); count > 0) output_.notice(describe_leftovers(count));
}

void Job::report_survivors() {
  has_survivors_ = true;
  for (const pid_t orphan : orphans()) {
    output_.notice("process " + std::to_string(orphan) +
                   " of the job does not end although killed: see `ps -ej`");
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].group_exists) continue;
    output_.notice("processes of rank " + name_of(rank) + " (process group " +
                   std::to_string(ranks_[rank].process.pid) + ") do not end although killed: see `ps -ej`");
  }
}

void Job::report_failure() {
  if (!failure_ || !plan_.reports_failure) return;
  for (const std::string& line : report_lines(*failure_, "rank " + std::to_string(failure_->rank))) {
    output_.notice(line);
  }
}

// Processes that cannot be ended may still hold memory, files and ports.
void Job::let_judge() {
  if (!failure_ || !plan_.judge || is_unwanted_ || has_survivors_) return;
  attempt_.failure = *failure_;
  attempt_.ended = Clock::now();
  for (const std::string& line : plan_.judge(attempt_)) output_.notice(line);
}

}  // namespace zerorun::launcher
