// What a Job says of its ranks, and to whom.
#include <exception>
#include <filesystem>
#include <string>

#include "launcher/end_evidence.h"
#include "launcher/job.h"
#include "launcher/rank_status.h"
#include "monitor/run_log_writer.h"

namespace zerorun::launcher {

// A stopped rank may be the reason why the other ranks failed. Call before SIGCONT is sent, which continues
// the rank.
void Job::report_stopped_ranks() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const bool is_hung =
        failure_ && failure_->is_hung && failure_->rank == plan_.first_rank + static_cast<int>(rank);
    if (ranks_[rank].status || is_hung) continue;
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

// Only ranks that have ended say that a job has failed: a log of which one still writes is left alone.
void Job::note_in_run_log() {
  const std::filesystem::path folder = plan_.run_log.folder();
  if (folder.empty() || (!failure_ && !interrupted_by_)) return;
  RunEvent event{.step = plan_.memory.of(0).step, .kind = RunEventKind::failed, .time = now_in_utc()};
  event.text = "the job was ended by " + signal_name(interrupted_by_.value_or(0));
  if (failure_) {
    event.text = "rank " + std::to_string(failure_->rank) + " " + describe_end(*failure_);
    if (!failure_->cause.empty()) event.text += ": " + failure_->cause;
  }
  try {
    append_event(folder, event);
  } catch (const std::exception& error) {
    output_.notice("zerorun.run_log: " + std::string(error.what()) +
                   ": the end of this job is not in the log");
  }
}

void Job::report_failure() {
  if (!failure_ || !plan_.reports_failure) return;
  for (const std::string& line : report_lines(*failure_, "rank " + std::to_string(failure_->rank))) {
    output_.notice(line);
  }
}

void Job::let_judge() {
  if (!failure_ || !plan_.judge || is_unwanted_) return;
  times_.ended = Clock::now();
  FailedAttempt attempt = failed_attempt(*failure_, "rank " + std::to_string(failure_->rank), times_);
  attempt.has_survivors = has_survivors_;
  for (const std::string& line : plan_.judge(attempt)) output_.notice(line);
}

}  // namespace zerorun::launcher
