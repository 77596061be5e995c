#include "engine/saving/save_agreement.h"

#include <algorithm>

#include "base/error.h"

namespace zerorun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLongestSilence(1000);

std::string of(const char* name, int rank) {
  return std::string(name) + "/" + std::to_string(rank);
}

}  // namespace

SaveAgreement::SaveAgreement(Notices& notices, const Communicator& communicator, int64_t number,
                             const std::string& tag, const std::atomic<Clock::time_point>& patience_ends)
    : notices_(&notices),
      communicator_(&communicator),
      prefix_(std::to_string(number) + "/"),
      what_("saving checkpoint " + tag),
      patience_ends_(&patience_ends),
      is_missing_(communicator.world_size()),
      progress_(communicator.world_size()) {}

void SaveAgreement::say_published(const Failure& failure) {
  post(of("published", communicator_->rank()), failure.encoded());
}

Failure SaveAgreement::await_published(int rank) {
  return Failure::decoded(await(of("published", rank), rank));
}

Failure SaveAgreement::broken() {
  const auto posted = notices_->await(prefix_ + "broken", Deadline(std::chrono::milliseconds(1)));
  return Failure::decoded(posted.value_or(""));
}

void SaveAgreement::say_part(const std::string& text) {
  post(of("part", communicator_->rank()), text);
}

std::string SaveAgreement::await_part(int rank) {
  is_missing_[rank] = 1;
  std::string text = await(of("part", rank), rank);
  is_missing_[rank] = 0;
  return text;
}

void SaveAgreement::note_progress() {
  const auto now = Clock::now();
  if (now - last_posted_ < std::min(kLongestSilence, communicator_->timeout() / 4)) return;
  last_posted_ = now;
  post(of("progress", communicator_->rank()), std::to_string(++posted_progress_));
}

void SaveAgreement::note_waiting() {
  note_progress();
  if (Clock::now() >= patience_ends_->load()) throw CommError(what_ + " is abandoned: this rank ends");
}

void SaveAgreement::leave() {
  const int ranks = communicator_->world_size();
  if (communicator_->rank() != 0) return post(of("heard", communicator_->rank()), "");
  for (int rank = 1; rank < ranks; ++rank) {
    if (is_missing_[rank] == 0) await(of("heard", rank), rank);
  }
  const Deadline deadline(communicator_->timeout());
  for (int rank = 0; rank < ranks; ++rank) {
    for (const char* name : {"part", "progress", "heard", "published"})
      notices_->remove(prefix_ + of(name, rank), deadline);
  }
  for (const char* name : {"ready", "broken", "manifest", "outcome"})
    notices_->remove(prefix_ + name, deadline);
}

void SaveAgreement::post(const std::string& name, const std::string& text) {
  notices_->post(prefix_ + name, text, Deadline(communicator_->timeout()));
}

std::string SaveAgreement::await(const std::string& name, int rank) {
  const std::chrono::milliseconds a_while = std::min(kLongestSilence, communicator_->timeout() / 4);
  auto end = Clock::now() + communicator_->timeout();
  while (true) {
    if (auto text = notices_->await(prefix_ + name, Deadline(a_while))) return *text;
    const auto patience_ends = patience_ends_->load();
    if (Clock::now() >= patience_ends)
      throw CommError(what_ + " is abandoned: this rank ends, and rank " + std::to_string(rank) +
                      " has not taken part");
    note_progress();
    if (has_progressed(rank)) end = Clock::now() + communicator_->timeout();
    if (Clock::now() >= end) throw CommError(missed_deadline(what_, {rank}, communicator_->timeout()));
  }
}

bool SaveAgreement::has_progressed(int rank) {
  const auto posted = notices_->await(prefix_ + of("progress", rank), Deadline(std::chrono::milliseconds(1)));
  if (!posted || *posted == progress_[rank]) return false;
  progress_[rank] = *posted;
  return true;
}

}  // namespace zerorun
