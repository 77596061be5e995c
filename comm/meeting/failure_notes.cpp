#include "comm/meeting/failure_notes.h"

#include <chrono>
#include <thread>

#include "base/error.h"

namespace zerorun {
namespace {

constexpr std::chrono::milliseconds kPatienceWithNotes(500);

}  // namespace

void FailureNotes::post(int rank, const std::string& error) {
  if (!open_ || posted_.exchange(true)) return;
  try {
    store_->set(std::to_string(rank), error, Deadline(kPatienceWithNotes));
    if (rank == 0) std::this_thread::sleep_for(kTimeToRead);
  } catch (const CommError&) {
    // Ignored: the store does not answer, or is gone because rank 0 has ended.
  }
}

std::string FailureNotes::first_of(const std::vector<int>& ranks) const {
  if (!open_) return "";
  try {
    const Deadline deadline(kPatienceWithNotes);
    for (const int rank : ranks) {
      if (const auto error = store_->find(std::to_string(rank), deadline))
        return "; rank " + std::to_string(rank) + " had failed before: " + *error;
    }
  } catch (const CommError&) {
    // Ignored for the same reason as in post().
  }
  return "";
}

}  // namespace zerorun
