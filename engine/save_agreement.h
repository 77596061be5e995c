// How the ranks' writers of one checkpoint come to one outcome, beside training: by notices. Used by the
// writer's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/notices.h"

namespace zerorun {

// A rank waits for another for the communicator's timeout, counted anew whenever that one has made progress.
// Texts are failures as failure_of() has them, or empty; those of parts are the caller's.
class SaveAgreement {
 public:
  /// All arguments outlive it. `number`: of the save, the same on all ranks. `patience_ends`: from then on no
  /// other rank is waited for.
  SaveAgreement(Notices& notices, const Communicator& communicator, int64_t number, const std::string& tag,
                const std::atomic<std::chrono::steady_clock::time_point>& patience_ends);

  // Rank 0's; the others wait for it.
  void say_ready(const std::string& failure) { post("ready", failure); }
  void say_outcome(const std::string& failure) { post("outcome", failure); }
  std::string await_ready() { return await("ready", 0); }
  std::string await_outcome() { return await("outcome", 0); }

  // Each rank's; rank 0 waits for it.
  void say_part(const std::string& text);
  std::string await_part(int rank);

  /// This rank is still at work. To be called often: it is told now and then.
  void note_progress();
  /// The outcome is known: rank 0, which may keep the store, returns when all have heard it but those that it
  /// has missed.
  void leave();

 private:
  void post(const std::string& name, const std::string& text);
  std::string await(const std::string& name, int rank);
  bool has_progressed(int rank);

  Notices* notices_;
  const Communicator* communicator_;
  std::string prefix_;
  std::string what_;
  const std::atomic<std::chrono::steady_clock::time_point>* patience_ends_;
  std::vector<char> is_missing_;       // by rank: its part was waited for in vain, on rank 0
  std::vector<std::string> progress_;  // by rank: as it was told last
  int64_t told_progress_ = 0;
  std::chrono::steady_clock::time_point last_told_ = std::chrono::steady_clock::now();
};

}  // namespace zerorun
