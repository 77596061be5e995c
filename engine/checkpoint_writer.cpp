#include "engine/checkpoint_writer.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/program.h"
#include "checkpoint/publication.h"
#include "comm/agreement.h"
#include "engine/save_agreement.h"
#include "zero/slice_store.h"

namespace zerorun {
namespace {

constexpr char kPart = 'p';  // the first character of a part's text; texts of failures start with another

// Adds the rank to a failure if there are several ranks.
std::string with_rank(std::string failure, int rank, int world_size) {
  if (failure.empty() || world_size == 1) return failure;
  return failure.insert(1, "rank " + std::to_string(rank) + ": ");
}

// Throws UserError if the files of all ranks together have too few or too many elements of a parameter: then
// the ranks have saved different states.
void check_complete(const Manifest& manifest) {
  std::map<std::string, int64_t> elements;
  for (const auto& [name, file] : manifest.files) {
    for (const StateRange& range : file.ranges) {
      if (range.state == kValue) elements[range.parameter] += range.numel;
    }
  }
  for (const auto& [name, parameter] : manifest.parameters) {
    int64_t numel = 1;
    for (const int64_t size : parameter.shape) numel *= size;
    const int64_t expected = parameter.excluded ? 0 : numel;
    if (elements[name] == expected) continue;
    throw UserError("the ranks' files have " + std::to_string(elements[name]) + " elements of " + name +
                    ", expected " + std::to_string(expected));
  }
}

// Called on rank 0. Waits until all ranks have written, then writes the manifest and publishes the tag.
// Returns the failure, or an empty text.
std::string publish(Publication& publication, const CheckpointPart& part, SaveAgreement& agreement,
                    int world_size) {
  std::string of_a_rank;
  const std::string own = failure_of([&] {
    Manifest manifest = part.manifest;
    manifest.numbers.clear();
    for (int rank = 0; rank < world_size; ++rank) {
      const std::string text = agreement.await_part(rank);
      if (text.front() == kPart) {
        add_part(manifest, text.substr(1), "checkpoint " + manifest.tag);
      } else if (of_a_rank.empty()) {
        of_a_rank = with_rank(text, rank, world_size);
      }
    }
    if (!of_a_rank.empty()) return;
    check_complete(manifest);
    publication.publish(to_json(manifest), part.save_latest);
  });
  return of_a_rank.empty() ? with_rank(own, 0, world_size) : of_a_rank;
}

}  // namespace

CheckpointWriter::CheckpointWriter(Communicator& communicator)
    : communicator_(&communicator),
      pins_(communicator.device()),
      notices_(communicator.open_notices()),
      patience_ends_(std::chrono::steady_clock::time_point::max()) {}

CheckpointWriter::~CheckpointWriter() {
  constexpr std::chrono::seconds kPatienceAtAnEnd(2);
  if (std::uncaught_exceptions() > 0) patience_ends_ = std::chrono::steady_clock::now() + kPatienceAtAnEnd;
  if (!home_.is_current()) return;  // a forked child has no copy of the thread
  if (thread_.joinable()) thread_.join();
  if (outcome_.valid() && !outcome_.get().empty() && !failure_is_logged_) note_failure();
}

void CheckpointWriter::start(CheckpointPart part, FileSystem& files) {
  written_ = 0;
  kept_ = 0;
  keeping_ns_ = 0;
  bytes_ = 0;
  for (const FileToWrite& file : part.files) bytes_ += file.bytes();
  {
    const std::lock_guard lock(mutex_);
    pinned_ = std::move(part.pinned);
    for (const FileToWrite& file : part.files) {
      if (!file.is_frozen) continue;
      published_.erase(file.name);
      outdated_.erase(file.name);
    }
  }
  reads_state_ = true;
  failure_is_logged_ = false;
  auto outcome = std::make_shared<std::promise<std::string>>();
  outcome_ = outcome->get_future().share();
  auto write_it = [this, number = saves_++, &files, outcome,
                   part = std::make_shared<CheckpointPart>(std::move(part))] {
    write(*part, files, number, *outcome);
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

void CheckpointWriter::write(CheckpointPart& part, FileSystem& files, int64_t number,
                             std::promise<std::string>& outcome) {
  const int rank = communicator_->rank();
  const int world_size = communicator_->world_size();
  SaveAgreement agreement(*notices_, *communicator_, number, part.manifest.tag, patience_ends_);
  std::optional<Publication> publication;  // on rank 0 only
  std::string failure;
  const std::string own = failure_of([&] {
    if (rank == 0) {
      const std::string made =
          failure_of([&] { publication.emplace(files, part.directory, part.manifest.tag); });
      agreement.say_ready(with_rank(made, 0, world_size));
    }
    failure = agreement.await_ready();
    if (failure.empty()) agreement.say_part(write_files(part, files, agreement));
    part.files.clear();  // also frees the copies that keep() made
    reads_state_ = false;
    if (!failure.empty()) return;
    if (rank == 0) {
      failure = publish(*publication, part, agreement, world_size);
      agreement.say_outcome(failure);
    } else {
      failure = agreement.await_outcome();
    }
  });
  reads_state_ = false;
  if (failure.empty()) failure = own;
  if (!failure.empty()) forget_published();
  if (!failure.empty() && rank == 0)
    log_warning("checkpoint " + part.manifest.tag + " was not saved: " + failure.substr(1));
  outcome.set_value(failure);

  if (publication && failure.empty()) publication->remove_old(part.keep_last);
  publication.reset();
  failure_of([&] { agreement.leave(); });  // a failure is ignored, because the outcome is known
}

// Returns the text of this rank's part (starting with kPart), or the failure.
std::string CheckpointWriter::write_files(CheckpointPart& part, FileSystem& files, SaveAgreement& agreement) {
  if (!part.failure.empty()) return part.failure;
  std::string text;
  const std::string failure = failure_of([&] {
    pins_.await(communicator_->timeout());
    const auto folder = partial_folder(part.directory, part.manifest.tag);
    std::map<std::string, StateFileFacts> facts;
    for (const FileToWrite& file : part.files) {
      facts[file.name] = write_state_file(files, folder, file, [&](int64_t bytes) {
        written_ += bytes;
        agreement.note_progress();
      });
      if (!file.is_frozen) continue;
      const std::lock_guard lock(mutex_);
      published_[file.name] = {.path = part.directory / part.manifest.tag / file.name,
                               .facts = facts[file.name],
                               .digest = file.digest};
    }
    text = kPart + to_json(facts, part.manifest.numbers.front());
  });
  return failure.empty() ? text : failure;
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
  if (!outcome_.valid() || outcome_.get().empty()) return;
  failure_is_logged_ = true;
  throw_failure(outcome_.get(), -1);
}

bool CheckpointWriter::is_writing() const {
  return outcome_.valid() && outcome_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

const PublishedFile* CheckpointWriter::published(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = published_.find(name);
  return found == published_.end() || outdated_.contains(name) ? nullptr : &found->second;
}

void CheckpointWriter::forget_published(const std::string& name) {
  if (!home_.is_current()) return;
  const std::lock_guard lock(mutex_);
  outdated_.insert(name);
}

void CheckpointWriter::forget_published() {
  const std::lock_guard lock(mutex_);
  published_.clear();
}

void CheckpointWriter::keep(int bucket) {
  pins_.before_change();
  if (reads_state_) copy_unwritten(bucket);
}

void CheckpointWriter::keep_all() {
  pins_.before_change();
  if (!reads_state_) return;
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
