#include "engine/saving/checkpoint_writer.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <map>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/program.h"
#include "base/timeline.h"
#include "zero/slice_store.h"

namespace zerorun {
CheckpointWriter::CheckpointWriter(Communicator& communicator)
    : files_(&checkpoint::local_file_system()),
      communicator_(&communicator),
      pins_(communicator.device()),
      notices_(communicator.open_notices()),
      patience_ends_(std::chrono::steady_clock::time_point::max()) {}

CheckpointWriter::~CheckpointWriter() {
  constexpr std::chrono::seconds kPatienceAtAnEnd(2);
  if (std::uncaught_exceptions() > 0) patience_ends_ = std::chrono::steady_clock::now() + kPatienceAtAnEnd;
  if (!home_.is_current()) return;  // a forked child has no copy of the thread
  if (thread_.joinable()) thread_.join();
  if (outcome_.valid() && outcome_.get() && !failure_is_logged_) note_failure();
}

void CheckpointWriter::write_to(checkpoint::FileSystem& files) {
  finish();
  files_ = &files;
}

void CheckpointWriter::start(CheckpointPart part) {
  written_ = 0;
  kept_ = 0;
  keeping_ns_ = 0;
  bytes_ = 0;
  for (const checkpoint::FileToWrite& file : part.files) bytes_ += file.bytes();
  {
    const std::lock_guard lock(mutex_);
    pinned_ = std::move(part.pinned);
  }
  frozen_.start_save(part.files);
  reads_state_ = true;
  failure_is_logged_ = false;
  auto outcome = std::make_shared<std::promise<Failure>>();
  outcome_ = outcome->get_future().share();
  auto write_it = [this, number = saves_++, outcome,
                   part = std::make_shared<CheckpointPart>(std::move(part))] {
    write(*part, number, *outcome);
  };
  try {
    thread_ = std::thread([write_it] {
      ::pthread_setname_np(::pthread_self(), "checkpoint");
      write_it();
    });
  } catch (const std::system_error&) {
    write_it();  // no thread can be created: write in this one
  }
}

void CheckpointWriter::write(CheckpointPart& part, int64_t number, std::promise<Failure>& outcome) {
  const TimelineSpan span(TimelineName::save);
  std::erase_if(locks_, [&](const auto& entry) { return !files_->identity(entry.first); });
  SaveAgreement agreement(*notices_, *communicator_, number, part.manifest.tag, patience_ends_);
  CheckpointPublisher publisher(*files_, part, agreement, *communicator_);
  Failure failure;
  const Failure own = failure_of([&] {
    failure = publisher.open();
    std::string text;
    Failure no_part = part.failure;
    if (!failure && !no_part)
      no_part = failure_of([&] { text = write_files(part, publisher.folder(), agreement); });
    part.files.clear();  // also frees the copies that keep() made
    reads_state_ = false;
    if (!failure) failure = publisher.publish(text, no_part);
  });
  reads_state_ = false;
  if (!failure) failure = own;
  if (failure) frozen_.forget_all();
  if (failure && communicator_->rank() == 0)
    log_warning("checkpoint " + part.manifest.tag + " was not saved: " + failure.text);
  outcome.set_value(failure);

  if (!failure) publisher.remove_old();
  if (auto lock = publisher.lock()) locks_[part.directory] = std::move(lock);
  publisher.close();
  failure_of([&] { agreement.leave(); });  // a failure is ignored, because the outcome is known
}

// Returns the facts about this rank's files, as JSON.
std::string CheckpointWriter::write_files(CheckpointPart& part, const std::filesystem::path& folder,
                                          SaveAgreement& agreement) {
  pins_.await(communicator_->timeout());
  std::map<std::string, checkpoint::StateFileFacts> facts;
  for (const checkpoint::FileToWrite& file : part.files) {
    facts[file.name] = checkpoint::write_state_file(*files_, folder, file, [&](int64_t bytes) {
      written_ += bytes;
      agreement.note_progress();
    });
    if (!file.is_frozen) continue;
    frozen_.add(file.name, {.path = part.directory / part.manifest.tag / file.name,
                            .facts = facts[file.name],
                            .digest = file.digest,
                            .identity = files_->identity(folder / file.name)});
  }
  return to_json(facts, part.manifest.numbers.front());
}

void CheckpointWriter::check_not_forked() const {
  zerorun::check_not_forked(home_, communicator_->rank(), "a checkpoint");
}

void CheckpointWriter::finish() {
  check_not_forked();
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::wait() {
  check_not_forked();
  if (!outcome_.valid() || !outcome_.get()) return;
  failure_is_logged_ = true;
  outcome_.get().raise();
}

bool CheckpointWriter::is_writing() const {
  return outcome_.valid() && outcome_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void CheckpointWriter::keep(int bucket) {
  pins_.before_change();
  if (reads_state_) copy_unwritten(bucket);
}

void CheckpointWriter::keep_all() {
  pins_.before_change();
  if (!reads_state_) return;
  const TimelineSpan span(TimelineName::keep_for_save);
  for (int bucket = 0; bucket < static_cast<int>(pinned_.size()); ++bucket) copy_unwritten(bucket);
}

void CheckpointWriter::copy_unwritten(int bucket) {
  if (!home_.is_current()) return;  // a forked child writes no checkpoint
  const auto begin = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  for (const auto& pinned : pinned_[bucket]) {
    if (const auto bytes = pinned.lock()) kept_ += bytes->keep();
  }
  pinned_[bucket].clear();
  keeping_ns_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace zerorun
